"""Npy and parquet files of numbers: opened, or explained in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError
from partlabel.files import existing_file

Floats = npt.NDArray[np.floating[Any]]


def load(path: Path) -> npt.NDArray[Any]:
    """Map a npy file."""
    try:
        # Not np.load: that opens zip files too, and advises to trust pickles.
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, TokenError) as error:
        raise DataError(f"is not readable as npy ({error})", path=path) from error
    return array


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what reading parquet raises into one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"is not readable as parquet ({error})", path=path) from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path)


def columns(path: Path) -> dict[str, Any]:
    """The columns of a parquet file and their Arrow types; refuses one that is there twice."""
    with _explained(path):
        schema = _parquet(path).schema_arrow
        names = schema.names
    found: dict[str, Any] = {}
    for name, kind in zip(names, schema.types, strict=True):
        if name in found:
            raise DataError(f"column {name!r} is there twice", path=path, fix="rename or drop one")
        found[name] = kind
    return found


def read_column(path: Path, name: str) -> Any:
    """One column of a parquet file, whole."""
    with _explained(path):
        column = _parquet(path).read(columns=[name])[name].combine_chunks()
        column.validate(full=True)
        return column


def batches(path: Path, names: list[str], size: int) -> Iterator[Any]:
    """Some columns of a parquet file, ``size`` rows at a time."""
    with _explained(path):
        for batch in _parquet(path).iter_batches(size, columns=names):
            batch.validate(full=True)
            yield batch


def refuse_null(path: Path, column: Any, name: str, *, start: int) -> None:
    """Refuse an Arrow column with a gap; its first row is the row ``start`` of the file."""
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{name} of row {row + 1} is null", path=path, fix="fill it or drop the row"
        )


def read_ids(path: Path) -> list[str]:
    """One id per line."""
    try:
        with existing_file(path).open(encoding="utf-8-sig") as file:
            return [line.removesuffix("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read as text ({error})", path=path) from error


def check_floats(path: Path, name: str, kind: Any) -> None:
    """Refuse a column whose type, Arrow's or numpy's, is not one of floats."""
    import pyarrow as pa

    fine = kind.kind == "f" if isinstance(kind, np.dtype) else pa.types.is_floating(kind)
    if not fine:
        what = f"column {name!r} is not numbers of type float but {kind}"
        raise DataError(what, path=path, fix="convert it to float")


def numbers(column: Any) -> Floats:
    """An Arrow column of floats as an array; NaN where it is null."""
    return wide(column.to_numpy(zero_copy_only=False))


def wide(values: npt.NDArray[Any]) -> Floats:
    """As float32 where nothing is lost by it, else as float64."""
    small = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return values.astype(np.float32 if small else np.float64, copy=False)
