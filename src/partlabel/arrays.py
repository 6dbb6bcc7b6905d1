"""Npy and parquet files of numbers: opened, or explained in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError
from partlabel.files import existing_file

Floats = npt.NDArray[np.floating[Any]]


def load(path: Path) -> npt.NDArray[Any]:
    """Map a npy file."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"is not readable as npy ({error})", path=path) from error
    return array


def parquet(path: Path) -> Any:
    """Open a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not readable as parquet ({error})", path=path) from error


def schema(path: Path) -> Any:
    """Its columns."""
    return parquet(path).schema_arrow


def read_column(path: Path, name: str) -> Any:
    """One column of a parquet file, whole."""
    import pyarrow as pa

    try:
        return parquet(path).read(columns=[name])[name].combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not readable as parquet ({error})", path=path) from error


def read_ids(path: Path) -> list[str]:
    """One id per line."""
    try:
        return existing_file(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read as text ({error})", path=path) from error


def numbers(path: Path, column: Any, name: str) -> Floats:
    """An Arrow column as floats."""
    try:
        return wide(column.to_numpy(zero_copy_only=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"column {name!r} is not numbers ({error})", path=path) from error


def wide(values: npt.NDArray[Any]) -> Floats:
    """As float32 where nothing is lost by it, else as float64."""
    small = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return values.astype(np.float32 if small else np.float64, copy=False)
