"""Memory of a step on a CPU, kept for the next step instead of given back to the system.

Activations are megabytes, which glibc asks the system for one by one and gives back when they are
freed. So each step touches all its pages for the first time again, and the system clears them:
that takes up to two fifths of the time (benchmarks/allocation.py). PyTorch itself keeps a GPU's.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in malloc.h
_KEPT = 2**31 - 1
"""Bytes at the end of the heap that may be free; what is more goes back to the system."""
_LARGE = 2**30, 2**25
"""From so many bytes on an array is the system's: images that are resident, not activations. The
second is the most that glibc takes before 2.35."""


def keep_freed_memory() -> bool:
    """Let glibc keep what this process frees, for good; whether that was done.

    Settings of malloc in the environment stay as they are, and so does any other allocator.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    chosen = chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    taken = any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGE)
    return taken and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
