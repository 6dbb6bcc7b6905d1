"""Output folders: written beside, put in place in one step, so that a crash leaves the old one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partlabel.errors import StoreError


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
