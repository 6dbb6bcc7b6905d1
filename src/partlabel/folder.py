"""Store folders on disk: written beside, put in place in one step; a crash leaves the old one."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from partlabel.errors import StoreError


@contextmanager
def new_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary sibling of ``path`` to fill, and put it in place in one step at the end.

    Whatever happens before the end (an error, a full disk, a kill) leaves what was at ``path``.
    """
    refuse_existing(path, overwrite=overwrite)
    try:
        path = path.resolve()  # a link stays a link: what it points to is replaced
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        prefix = f".{path.name}.{_host()}.{os.getpid()}."
        temporary = Path(tempfile.mkdtemp(".tmp", prefix, path.parent))
        temporary.chmod(0o755)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield temporary
        for file in temporary.iterdir():
            _flush(file)
        _put_in_place(temporary, path, overwrite=overwrite)
        _flush(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Say so, before any work is done, when the output is already there."""
    recover(path)
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise StoreError(f"{path} exists; choose another --out or add --overwrite")
    if not (path / "meta.json").is_file():
        raise StoreError(f"{path} exists and is not a label store; choose another --out")


def recover(path: Path) -> None:
    """Bring back a folder that a kill left under its backup name (systems without a swap)."""
    backup = _backup(path)
    if os.path.isdir(backup) and not os.path.lexists(path):  # False, where the name is too long
        backup.rename(path)


def locked(file: IO[Any]) -> bool:
    """Take an open file for this process alone, until it is closed; False if another has it."""
    try:
        import fcntl
    except ImportError:  # not on every system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def identity(path: Path) -> tuple[int, int] | None:
    """Which folder a name leads to now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def mapped_array(path: Path) -> npt.NDArray[Any]:
    """Map the one-dimensional array of a .npy file."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, TokenError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{path.name} is {array.dtype} with {array.ndim} dimensions")
    return array


def _put_in_place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Rename; an old folder is swapped out in the same step where the system can do that."""
    if not path.exists():
        temporary.rename(path)
        return
    refuse_existing(path, overwrite=overwrite)  # it may have come while this one was written
    if not _exchange(temporary, path):
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
    """Remove what earlier processes of this machine that were killed left beside ``path``."""
    start = f".{path.name}.{_host()}."
    for entry in path.parent.iterdir():
        match = re.fullmatch(rf"{re.escape(start)}(\d+)\..*\.tmp", entry.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)
    if path.exists():
        shutil.rmtree(_backup(path), ignore_errors=True)


def _host() -> str:
    """This machine: on a shared disk a folder may be another's, with process numbers of its own."""
    return re.sub(r"\W", "", platform.node()) or "here"


def _alive(process: int) -> bool:
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
    more = "free some or choose another --out (what was there before is untouched)"
    if error.errno is None:  # how numpy reports a short write
        what = f"cannot be written ({error}), probably no space left on the disk"
        return StoreError(f"{path}: {what}; {more}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"{path}: no space left on the disk; {more}")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            what = f"cannot be written ({parent} is a file, not a folder)"
            return StoreError(f"{path}: {what}; choose another --out")
    return StoreError(
        f"{path}: cannot be written ({error.strerror or error}); choose another --out"
    )
