"""Ids of 16 hex digits, kept as 64-bit numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Ints
from partlabel.readers.scan_csv import BadRow

_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NIBBLE[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def hex_bytes(ids: Any) -> npt.NDArray[np.uint8]:
    """The bytes (n, 16) of an Arrow array of 16-character ids."""
    data = np.frombuffer(ids.buffers()[1], np.uint8)
    return data.reshape(-1, 16)[ids.offset : ids.offset + len(ids)]


def run_starts(raw: npt.NDArray[np.uint8]) -> Ints:
    """Where another id begins."""
    if not len(raw):
        return np.zeros(0, np.int64)
    words = raw.view(np.uint64)
    new = (words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1])
    return np.concatenate([[0], np.flatnonzero(new) + 1])


def decode_hex(raw: npt.NDArray[np.uint8], rows: Ints) -> npt.NDArray[np.uint64]:
    """The numbers that some rows of 16 hex digits spell."""
    nibbles = _NIBBLE[raw[rows]]
    if len(nibbles) and nibbles.max() > 15:
        row = int(rows[np.argmax((nibbles > 15).any(axis=1))])
        text = raw[row].tobytes().decode("utf-8", errors="replace")
        raise BadRow(row, f"image id {text!r} is not 16 hex digits")
    whole = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    return np.ascontiguousarray(whole).view(">u8").reshape(-1).astype(np.uint64)
