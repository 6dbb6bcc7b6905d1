"""What several tests use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from partlabel import ClassTable, ImageTable, LabelStore
from partlabel.assemble import Assembler

hypothesis.settings.register_profile("partlabel", deadline=None, derandomize=True)
hypothesis.settings.load_profile("partlabel")

MakeStore = Callable[..., LabelStore]


def store_from(states: Any, *, complete: bool = False, **columns: Any) -> LabelStore:
    """A store with these dense states; ids are img0, img1, ... and c0, c1, ... unless given."""
    dense = np.asarray(states, np.int8)
    rows, classes = np.nonzero(dense > 0 if complete else dense)
    labels = Assembler(classes=dense.shape[1])
    labels.add(rows, classes, dense[rows, classes] < 0)
    done = labels.finish()
    ids = columns.pop("ids", [f"img{i}" for i in range(len(dense))])
    names = columns.pop("classes", [f"c{i}" for i in range(dense.shape[1])])
    return LabelStore(
        ClassTable(names),
        ImageTable.make(ids, **columns),
        indptr=done.spread(len(dense)),
        codes=done.codes,
        complete=complete,
    )


@pytest.fixture
def make_store() -> MakeStore:
    return store_from


@pytest.fixture
def random_states() -> Callable[..., np.ndarray]:
    def make(images: int, classes: int, *, seed: int = 0, known: float = 0.3) -> np.ndarray:
        rng = np.random.default_rng(seed)
        states = np.where(rng.random((images, classes)) < 0.4, 1, -1).astype(np.int8)
        states[rng.random(states.shape) > known] = 0
        return states

    return make


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
