"""What is kept between runs about files of images: tables, and of which files they were made."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from partlabel.tables import Rows

About = dict[str, Any]


def name_for(kind: str, files: Sequence[Path]) -> str:
    """A name for what is kept about some files, wherever they are seen from."""
    paths = "\n".join(str(path.resolve()) for path in files)
    return f"{kind}-{hashlib.sha256(paths.encode(errors='surrogateescape')).hexdigest()[:16]}"


def state_of(files: Sequence[Path]) -> list[list[int]]:
    """What tells whether files are still the same: size and time of change."""
    return [[found.st_size, found.st_mtime_ns] for found in (file.stat() for file in files)]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time make the file ``path``; the others wait, and find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on every system; there each makes its own, and the last one stays
        yield
        return
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept(path: Path) -> tuple[Any, About]:
    """A table that was kept and what was said about it; (None, {}) where there is no good one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[b"partlabel"])
    except (OSError, pa.ArrowException, TypeError, KeyError, ValueError):
        return None, {}  # it can always be made again
    return table.replace_schema_metadata(None), about


def keep(path: Path, table: Any, about: About) -> None:
    """Keep a table, in one step: a crash leaves what was there before."""
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        described = table.replace_schema_metadata({"partlabel": json.dumps(about)})
        pq.write_table(described, temporary)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write to, and put the file in place of ``path`` when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def found_in(wanted: Any, there: Any) -> tuple[Rows, int | None]:
    """Where each wanted value is in an Arrow array, or -1; and the first that is there twice."""
    import pyarrow.compute as pc

    first = np.asarray(pc.fill_null(pc.index_in(wanted, value_set=there), -1), np.int64)
    if len(there.unique()) == len(there):
        return first, None
    # Found from the end at another place, it is there more than once.
    back = pc.index_in(wanted, value_set=there.take(np.arange(len(there))[::-1]))
    last = len(there) - 1 - np.asarray(pc.fill_null(back, len(there)), np.int64)
    twice = np.flatnonzero(first != last)
    return first, int(twice[0]) if len(twice) else None
