"""Files in and folders out: sources hashed while they are read, folders replaced in one step."""

from __future__ import annotations

import ctypes
import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from partlabel.errors import DataError, StoreError, suggest

GZIP_MAGIC = b"\x1f\x8b"
# What the reading side of a source can raise: the disk, or a damaged gzip stream.
READ_ERRORS = (OSError, EOFError, zlib.error)


class Progress(Protocol):
    """Who wants to know how far a long reading is; the command line draws a bar."""

    def start(self, name: str, total: int) -> None:
        """A file of ``total`` bytes is about to be read."""

    def advance(self, *, read: int = 0, rows: int = 0) -> None:
        """``read`` more bytes of it are read, ``rows`` more rows are understood."""


class Silent:
    """Progress that nobody watches."""

    def start(self, name: str, total: int) -> None:
        """Say nothing."""

    def advance(self, *, read: int = 0, rows: int = 0) -> None:
        """Say nothing."""


class Source(io.RawIOBase):
    """One input file, read once from start to end and hashed on the way.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.csv")
        ...     _ = path.write_text("x")
        ...     source = Source(path)
        ...     text = source.text().read()
        ...     source.record()["bytes"]
        1
    """

    def __init__(self, path: str | Path, progress: Progress | None = None) -> None:
        super().__init__()
        self.path = existing_file(path)
        self.size = self.path.stat().st_size
        self.progress: Progress = progress or Silent()
        self._file = self.path.open("rb", buffering=0)
        self._hash = hashlib.sha256()
        self._streams: list[io.IOBase] = []  # kept: a stream closes its file when dropped
        self.progress.start(self.path.name, self.size)

    def readable(self) -> bool:
        """Sources are for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of the file as it is on disk, compressed or not."""
        count = self._file.readinto(buffer)
        self._hash.update(memoryview(buffer)[:count])
        self.progress.advance(read=count)
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def bytes_stream(self) -> io.BufferedIOBase:
        """Give the content: decompressed where the file is gzip, by its first bytes."""
        raw = io.BufferedReader(self, 1 << 20)
        self._streams.append(raw)
        if raw.peek(2)[:2] == GZIP_MAGIC:
            return gzip.GzipFile(fileobj=raw)  # does not close what it was given
        return raw

    def blocks(self, size: int) -> Iterator[bytes]:
        """Give the content in pieces of about ``size`` bytes, without a byte order mark."""
        stream = self.bytes_stream()
        try:
            block = stream.read(size)
            if block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError("is UTF-16", path=self.path, fix="save it as UTF-8")
            yield block.removeprefix(b"\xef\xbb\xbf")
            while block := stream.read(size):
                yield block
        except READ_ERRORS as error:
            raise self.unreadable(error) from error

    def text(self) -> io.TextIOBase:
        """Give the content as text; the caller explains decoding errors (see unreadable)."""
        text = io.TextIOWrapper(cast(Any, self.bytes_stream()), encoding="utf-8-sig", newline="")
        self._streams.append(text)
        return text

    def read_text(self) -> str:
        """Give all the content as text, for small files."""
        try:
            return b"".join(self.blocks(1 << 20)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> DataError:
        """Turn what went wrong below into one line for the user."""
        if isinstance(error, UnicodeDecodeError):
            return DataError(
                f"is not UTF-8 (byte {error.object[error.start]:#04x})",
                path=self.path,
                fix="save it as UTF-8",
            )
        if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
            return DataError(f"damaged gzip ({error})", path=self.path, fix="fetch it again")
        return DataError(f"cannot be read ({error})", path=self.path)

    def record(self) -> dict[str, Any]:
        """Finish reading, close, and say what was read: name, size, checksum."""
        while self.read(1 << 20):
            pass
        self.close()
        return {"name": self.path.name, "bytes": self.size, "sha256": self._hash.hexdigest()}


def existing_file(path: str | Path) -> Path:
    """Check that a path is a file, and say what is there instead."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError("is a folder, not a file", path=path, fix=_listing(path))
    if not path.parent.is_dir():
        raise DataError("no such file", path=path, fix=f"there is no folder {path.parent}")
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    raise DataError("no such file", path=path, fix=f"in {path.parent} {suggest(path.name, names)}")


def existing_folder(path: str | Path) -> Path:
    """Check that a path is a folder."""
    path = Path(path)
    if path.is_dir():
        return path
    if path.exists():
        raise DataError("is a file, not a folder", path=path)
    raise DataError("no such folder", path=path)


def _listing(folder: Path) -> str:
    return f"in it {suggest('', sorted(entry.name for entry in folder.iterdir()))}"


@contextmanager
def new_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary sibling of ``path`` to fill, and put it in place in one step at the end.

    Whatever happens before the end (an error, a full disk, a kill) leaves what was at ``path``.
    """
    refuse_existing(path, overwrite=overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
        temporary.mkdir()
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield temporary
        for file in temporary.iterdir():
            _flush(file)
        _put_in_place(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Say so, before any work is done, when the output is already there."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise StoreError(f"{path} exists; choose another --out or add --overwrite")
    if not (path / "meta.json").is_file():
        raise StoreError(f"{path} exists and is not a label store; choose another --out")


def recover(path: Path) -> None:
    """Bring back a folder that a kill left under its backup name (systems without a swap)."""
    backup = _backup(path)
    if backup.is_dir() and not path.exists():
        backup.rename(path)


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename; an old folder is swapped out in the same step where the system can do that."""
    if not path.exists():
        temporary.rename(path)
    elif not _exchange(temporary, path):
        backup = _backup(path)
        path.rename(backup)
        temporary.rename(path)
        shutil.rmtree(backup, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically (Linux, macOS); False where it can't be done."""
    names = (os.fsencode(first), os.fsencode(second))
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, 2) == 0)  # 2 is RENAME_SWAP
        here = -100  # AT_FDCWD
        return bool(library.renameat2(here, names[0], here, names[1], 2) == 0)  # RENAME_EXCHANGE
    except (AttributeError, OSError, TypeError):
        return False


def _backup(path: Path) -> Path:
    return path.parent / f".{path.name}.old"


def _remove_abandoned(path: Path) -> None:
    """Remove what earlier processes that were killed left beside ``path``."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.tmp")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)
    if path.exists():
        shutil.rmtree(_backup(path), ignore_errors=True)


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False  # the number came round again: the folder is an earlier process's
    if os.name == "nt":
        return True  # there os.kill would end the process instead of asking
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _flush(path: Path) -> None:
    """Bring a file or folder to the disk, so that a power cut after the rename loses nothing."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot_write(path: Path, error: OSError) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(
            f"{path}: no space left on the disk; free some or choose another --out "
            "(what was there before is untouched)"
        )
    return StoreError(f"{path}: cannot be written ({error.strerror or error})")
