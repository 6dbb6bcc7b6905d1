"""Input files: found or explained, decompressed, hashed while they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from partlabel.errors import DataError, suggest

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
        self._gzip = self._file.read(2) == GZIP_MAGIC
        self._file.seek(0)
        self._hash = hashlib.sha256()
        self._streams: list[io.IOBase] = []  # kept: a stream closes its file when dropped
        self.progress.start(self.path.name, self.size)

    def readable(self) -> bool:
        """Sources are for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of the file as it is on disk, compressed or not."""
        count = self._file.readinto(buffer)
        self._account(memoryview(buffer)[:count])
        return count

    def _account(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.progress.advance(read=len(data))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _stream(self) -> io.BufferedIOBase:
        raw = io.BufferedReader(self, 1 << 20)
        self._streams.append(raw)
        return gzip.GzipFile(fileobj=raw) if self._gzip else raw  # gzip leaves raw open

    def _pieces(self, size: int) -> Iterator[bytes]:
        if self._gzip:
            stream = self._stream()
            while piece := stream.read(size):
                yield piece
        else:  # past the buffered stream: it would copy every byte once more
            while piece := self._file.read(size):
                self._account(piece)
                yield piece

    def blocks(self, size: int) -> Iterator[bytes]:
        """Give the content in pieces of about ``size`` bytes, without a byte order mark."""
        first = True
        try:
            for piece in self._pieces(size):
                if first and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise DataError("is UTF-16", path=self.path, fix="save it as UTF-8")
                yield piece.removeprefix(b"\xef\xbb\xbf") if first else piece
                first = False
        except READ_ERRORS as error:
            raise self.unreadable(error) from error

    def text(self) -> io.TextIOBase:
        """Give the content as text; the caller explains decoding errors (see unreadable)."""
        text = io.TextIOWrapper(cast(Any, self._stream()), encoding="utf-8-sig", newline="")
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
        while rest := self._file.read(1 << 20):  # what the reader of the content had no need of
            self._hash.update(rest)
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
    parent = path.parent
    if not parent.is_dir():
        raise DataError("no such folder", path=path, fix=f"there is no folder {parent}")
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    raise DataError("no such folder", path=path, fix=f"in {parent} {suggest(path.name, names)}")


def _listing(folder: Path) -> str:
    return f"in it {suggest('', sorted(entry.name for entry in folder.iterdir()))}"
