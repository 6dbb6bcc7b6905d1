"""Streams of annotations, in any order, into rows of labels: grouped, sorted, each label once.

A reader sees (image, class, present or absent) line by line. Here they become CSR: images in
ascending order of their key, classes ascending within an image, no label twice. The work is done on
*runs* (neighbouring annotations of one image), so a file that is grouped by image costs little more
than reading it, and a shuffled one is only slower: same result, byte for byte. Runs are first dealt
into buckets by the leading bits of the key; a bucket fits the processor's cache, and buckets are
independent, so they are sorted on all cores.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

_BUCKET_BITS = 8
_RUNS_PER_BUCKET = 2_000  # below that, one bucket: dealing would cost more than it saves

_OPEN = 1 << 31  # classes not known yet: room for as many as a code can tell apart

Keys = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


@dataclass
class Assembled:
    """Labels by row, and what was found on the way."""

    keys: Keys
    """The key of each row, ascending."""
    indptr: Ints
    codes: npt.NDArray[Any]
    duplicates: int
    """Annotations that said again what another had said."""
    conflicts: int
    """Labels annotated both present and absent; present wins."""
    examples: list[tuple[int, int]] = field(default_factory=list)
    """Key and class of the first few conflicts."""

    def spread(self, rows: int) -> Ints:
        """The indptr of ``rows`` rows where keys are row numbers: rows without labels included."""
        counts = np.zeros(rows, np.int64)
        counts[self.keys.astype(np.int64)] = np.diff(self.indptr)
        return np.concatenate([[0], np.cumsum(counts)])

    def positives_only(self) -> Assembled:
        """The same without the absent labels, as a complete store lists them."""
        present = self.codes < absent_bit(self.codes.dtype)
        kept = np.concatenate([[0], np.cumsum(present)])
        return replace(self, indptr=kept[self.indptr], codes=self.codes[present])


@dataclass
class _Runs:
    """Runs of annotations in stream order; a run is one key and the next ``length`` codes."""

    keys: Keys
    lengths: Ints
    codes: npt.NDArray[Any]
    offsets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Once dealt: where each bucket starts among the runs."""
    code_offsets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


def code_type(classes: int) -> type[np.uint16] | type[np.uint32]:
    """The integer that holds a class index and one more bit, set where the class is absent."""
    return np.uint16 if classes <= 1 << 15 else np.uint32


def absent_bit(dtype: npt.DTypeLike) -> int:
    """The top bit of a code."""
    return 1 << (8 * np.dtype(dtype).itemsize - 1)


def encode(classes: npt.NDArray[Any], absent: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Codes from class indices and a mask of those verified absent."""
    dtype = code_type(count)
    codes: npt.NDArray[Any] = absent.astype(dtype)
    codes *= dtype(absent_bit(dtype))
    codes |= classes.astype(dtype)
    return codes


def segments(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Ints:
    """The indices start, start+1, ... of several stretches, one after the other.

    Example:
        >>> segments(np.array([10, 3]), np.array([2, 3]))
        array([10, 11,  3,  4,  5])
    """
    before = np.cumsum(lengths) - lengths
    index = np.repeat(starts - before, lengths)
    index += np.arange(len(index))
    return index


class Assembler:
    """Collects annotations and puts them in order once all are there.

    Where the classes are only known at the end, leave ``classes`` out, add provisional indices, and
    give :meth:`finish` the final index of each.

    Example:
        >>> labels = Assembler(classes=3)
        >>> labels.add(np.array([7, 5, 7]), np.array([2, 0, 1]), np.array([False, True, False]))
        >>> done = labels.finish()
        >>> done.keys.tolist(), done.indptr.tolist(), (done.codes & 0x7FFF).tolist()
        ([5, 7], [0, 1, 3], [0, 1, 2])
    """

    def __init__(self, *, classes: int | None = None) -> None:
        self.classes = _OPEN if classes is None else classes
        self._pieces: list[_Runs] = []

    def add(
        self, keys: npt.NDArray[Any], classes: npt.NDArray[Any], absent: npt.NDArray[Any]
    ) -> None:
        """Take annotations: for each the key of the image (>= 0), the class, whether absent."""
        starts = run_starts(keys)
        self.add_runs(
            keys[starts], lengths_of(starts, len(keys)), encode(classes, absent, self.classes)
        )

    def add_runs(self, keys: npt.NDArray[Any], lengths: Ints, codes: npt.NDArray[Any]) -> None:
        """Take annotations whose runs are already found, as :meth:`add` would find them."""
        if len(keys):
            self._pieces.append(_Runs(keys.astype(np.uint64), lengths.astype(np.int32), codes))

    def finish(self, final: Ints | None = None) -> Assembled:
        """Group by image, sort, drop duplicates, settle contradictions.

        Args:
            final: For each provisional class index the final one.
        """
        pieces, self._pieces = self._pieces, []
        if final is not None:
            self.classes = len(final)
            for piece in pieces:
                piece.codes = _renumbered(piece.codes, final)
        dtype = code_type(self.classes)
        if not pieces:
            return Assembled(
                np.zeros(0, np.uint64), np.zeros(1, np.int64), np.zeros(0, dtype), 0, 0
            )
        highest = max(int(piece.keys.max()) for piece in pieces)
        runs = sum(len(piece.keys) for piece in pieces)
        shift = max(highest.bit_length() - (_BUCKET_BITS if runs > _RUNS_PER_BUCKET else 0), 0)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda piece: _deal(piece, shift), pieces))
            buckets = [b for b in range(1 << _BUCKET_BITS) if any(len(_span(p, b)) for p in pieces)]
            parts = list(pool.map(lambda b: _sort(_gather(pieces, b), self.classes), buckets))
        indptr = np.zeros(sum(len(part.keys) for part in parts) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]), out=indptr[1:])
        return Assembled(
            np.concatenate([part.keys for part in parts]),
            indptr,
            np.concatenate([part.codes for part in parts]),
            sum(part.duplicates for part in parts),
            sum(part.conflicts for part in parts),
            [example for part in parts for example in part.examples][:5],
        )


def run_starts(keys: npt.NDArray[Any]) -> Ints:
    """Where a new run of equal keys begins."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])


def lengths_of(starts: Ints, total: int) -> Ints:
    """The lengths of runs that begin at ``starts`` and fill ``total``."""
    return np.diff(starts, append=total)


def _renumbered(codes: npt.NDArray[Any], final: Ints) -> npt.NDArray[Any]:
    flag = absent_bit(codes.dtype)
    return encode(final[codes & (flag - 1)], codes >= flag, len(final))


def _deal(piece: _Runs, shift: int) -> None:
    """Order the runs of a piece by bucket, keeping their order within it."""
    bucket = (piece.keys >> np.uint64(shift)).astype(np.uint8 if _BUCKET_BITS <= 8 else np.uint16)
    order = np.argsort(bucket, kind="stable")  # a counting sort for integers this small
    starts = np.cumsum(piece.lengths, dtype=np.int64) - piece.lengths
    piece.keys = piece.keys[order]
    piece.lengths = piece.lengths[order]
    piece.codes = piece.codes[segments(starts[order], piece.lengths)]
    counts = np.bincount(bucket, minlength=1 << _BUCKET_BITS)
    piece.offsets = np.concatenate([[0], np.cumsum(counts)])
    ends = np.concatenate([[0], np.cumsum(piece.lengths, dtype=np.int64)])
    piece.code_offsets = ends[piece.offsets]


def _span(piece: _Runs, bucket: int) -> range:
    return range(piece.offsets[bucket], piece.offsets[bucket + 1])


def _gather(pieces: list[_Runs], bucket: int) -> _Runs:
    """The runs of one bucket from all pieces, in stream order."""
    runs = [slice(*piece.offsets[bucket : bucket + 2]) for piece in pieces]
    codes = [slice(*piece.code_offsets[bucket : bucket + 2]) for piece in pieces]
    return _Runs(
        np.concatenate([piece.keys[part] for piece, part in zip(pieces, runs, strict=True)]),
        np.concatenate([piece.lengths[part] for piece, part in zip(pieces, runs, strict=True)]),
        np.concatenate([piece.codes[part] for piece, part in zip(pieces, codes, strict=True)]),
    )


def _sort(runs: _Runs, classes: int) -> Assembled:
    """Bring the runs of one bucket into their final form."""
    order = np.argsort(runs.keys, kind="stable")
    sorted_keys = runs.keys[order]
    starts = run_starts(sorted_keys)
    row_of_run = np.repeat(np.arange(len(starts)), lengths_of(starts, len(sorted_keys)))
    begin = np.cumsum(runs.lengths, dtype=np.int64) - runs.lengths
    lengths = runs.lengths[order]
    codes = runs.codes[segments(begin[order], lengths)]

    # One integer per annotation: row, then class, then present before absent.
    flag = absent_bit(codes.dtype)
    shift = max(classes - 1, 1).bit_length() + 1
    packed = np.repeat(row_of_run << shift, lengths)
    packed += (codes & (flag - 1)).astype(np.int64) << 1
    packed += codes >= flag
    packed.sort(kind="stable")  # rows are in order already, which a merge sort turns to account
    label = packed >> 1
    first = np.ones(len(packed), np.bool_)
    np.not_equal(label[1:], label[:-1], out=first[1:])
    repeated = np.flatnonzero(~first)
    # A repeated label is a conflict where it goes from present to absent, else a duplicate.
    clash = repeated[packed[repeated] != packed[repeated - 1]]
    kept = packed[first] if len(repeated) else packed
    row = kept >> shift
    counts = np.bincount(row, minlength=len(starts))
    which = (kept >> 1) & ((1 << (shift - 1)) - 1)
    keys = sorted_keys[starts]
    return Assembled(
        keys,
        np.concatenate([[0], np.cumsum(counts)]),
        encode(which, (kept & 1).astype(np.bool_), classes),
        len(repeated) - len(clash),
        len(clash),
        [
            (int(keys[int(packed[i]) >> shift]), (int(packed[i]) >> 1) & ((1 << (shift - 1)) - 1))
            for i in clash[:5]
        ],
    )
