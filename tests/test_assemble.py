from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partlabel import assemble
from partlabel.assemble import Assembled, Assembler, absent_bit, encode, segments

Annotations = list[tuple[int, int, bool]]  # key, class, absent
ANNOTATIONS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 9), st.integers(0, 6), st.booleans()),
    max_size=60,
)


def reference(annotations: Annotations) -> tuple[dict[int, dict[int, bool]], int, int]:
    """Plain Python: labels by key (True is absent), duplicates, conflicts."""
    said: dict[tuple[int, int], list[bool]] = {}
    for key, which, absent in annotations:
        said.setdefault((key, which), []).append(absent)
    labels: dict[int, dict[int, bool]] = {}
    for (key, which), values in said.items():
        labels.setdefault(key, {})[which] = all(values)
    conflicts = sum(len(set(values)) == 2 for values in said.values())
    duplicates = sum(len(values) - len(set(values)) for values in said.values())
    return labels, duplicates, conflicts


def as_dict(done: Assembled) -> dict[int, dict[int, bool]]:
    flag = absent_bit(done.codes.dtype)
    rows = {}
    for i, key in enumerate(done.keys.tolist()):
        codes = done.codes[done.indptr[i] : done.indptr[i + 1]].tolist()
        rows[key] = {code & (flag - 1): code >= flag for code in codes}
        assert list(rows[key]) == sorted(rows[key])
    return rows


def assembled(annotations: Annotations, *, pieces: int = 1) -> Assembled:
    labels = Assembler(classes=7)
    for part in np.array_split(np.arange(len(annotations)), pieces):
        chosen = [annotations[i] for i in part]
        labels.add(
            np.array([key for key, _, _ in chosen], np.uint64),
            np.array([which for _, which, _ in chosen], np.int64),
            np.array([absent for _, _, absent in chosen], np.bool_),
        )
    return labels.finish()


@given(annotations=ANNOTATIONS, pieces=st.integers(1, 4))
def test_labels_duplicates_and_conflicts_equal_a_plain_count(
    annotations: Annotations, pieces: int
) -> None:
    done = assembled(annotations, pieces=pieces)
    labels, duplicates, conflicts = reference(annotations)
    assert as_dict(done) == labels
    assert done.keys.tolist() == sorted(labels)
    assert (done.duplicates, done.conflicts) == (duplicates, conflicts)
    assert len(done.examples) == min(conflicts, 5)
    for key, which in done.examples:
        assert labels[key][which] is False


@given(annotations=ANNOTATIONS, seed=st.integers(0, 99))
def test_the_order_of_annotations_does_not_matter(annotations: Annotations, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(annotations))
    one, two = assembled(annotations), assembled([annotations[i] for i in order], pieces=3)
    assert one.keys.tobytes() == two.keys.tobytes()
    assert one.indptr.tobytes() == two.indptr.tobytes()
    assert one.codes.tobytes() == two.codes.tobytes()


def test_many_runs_are_dealt_into_buckets_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, 3_000, dtype=np.uint64)[rng.integers(0, 3_000, 9_000)]
    columns = (keys, rng.integers(0, 7, 9_000), rng.random(9_000) < 0.5)
    annotations = list(zip(*(column.tolist() for column in columns), strict=True))
    dealt = assembled(annotations, pieces=5)
    monkeypatch.setattr(assemble, "_RUNS_PER_BUCKET", 10**9)
    whole = assembled(annotations)
    assert as_dict(dealt) == as_dict(whole) == reference(annotations)[0]
    assert dealt.codes.tobytes() == whole.codes.tobytes()


def test_classes_found_on_the_way_are_renumbered_at_the_end() -> None:
    labels = Assembler()
    labels.add(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([False, True, False]))
    done = labels.finish(np.array([1, 0]))
    assert done.codes.dtype == np.uint16
    assert as_dict(done) == {0: {1: False, 0: True}, 1: {0: False}}


@pytest.mark.parametrize("classes", [1, 2, 1 << 15, (1 << 15) + 1, 100_000])
def test_codes_hold_the_last_class_and_the_flag(classes: int) -> None:
    codes = encode(np.array([classes - 1, classes - 1]), np.array([False, True]), classes)
    assert codes.dtype == (np.uint16 if classes <= 1 << 15 else np.uint32)
    flag = absent_bit(codes.dtype)
    assert codes.tolist() == [classes - 1, classes - 1 + flag]


def test_nothing_gives_no_rows() -> None:
    done = Assembler(classes=3).finish()
    assert done.indptr.tolist() == [0]
    assert done.spread(2).tolist() == [0, 0, 0]


def test_spread_keeps_rows_without_labels() -> None:
    labels = Assembler(classes=3)
    labels.add(np.array([3, 1]), np.array([0, 2]), np.array([False, True]))
    done = labels.finish()
    assert done.spread(5).tolist() == [0, 0, 1, 1, 2, 2]
    assert done.positives_only().codes.tolist() == [0]
    assert done.positives_only().spread(5).tolist() == [0, 0, 0, 0, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=12))
def test_segments_are_the_ranges_one_after_the_other(parts: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in parts], np.int64)
    lengths = np.array([length for _, length in parts], np.int64)
    expected = [i for start, length in parts for i in range(start, start + length)]
    assert segments(starts, lengths).tolist() == expected
