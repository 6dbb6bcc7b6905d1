"""Real files, where they lie beside the checkout; left out where they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partlabel import LabelStore, simulate
from partlabel.readers import import_labels

SHARED = Path(__file__).parent.parent.parent / "shared"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared")


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> LabelStore:
    folder = SHARED / "coco-2014-labels"
    out = tmp_path_factory.mktemp("coco") / "train.labels"
    sources = [str(folder / "train.parquet")]
    options = {"layout": "lists", "classes": folder / "classes.txt", "complete": True}
    import_labels("table", sources, out=out, **options)
    return LabelStore.open(out)


def test_coco_2014_train_has_the_published_numbers(coco: LabelStore) -> None:
    counts = coco.counts()
    assert (len(coco), len(coco.classes), counts.positives.sum()) == (82_081, 80, 241_035)
    assert counts.positives[coco.classes.index["person"]] == 45_174
    assert coco.complete


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_fpc_1000_has_the_published_size_whatever_the_seed(coco: LabelStore, seed: int) -> None:
    counts = simulate.fixed_per_class(coco, per_class=1000, seed=seed).counts()
    assert (counts.positives.sum(), counts.negatives.sum()) == (76_622, 80_000)
    assert (counts.positives < 1000).sum() == 7


def test_rpa_keeps_half_and_the_shares_of_the_classes(coco: LabelStore) -> None:
    full, half = coco.counts(), simulate.random_per_annotation(coco, drop=0.5, seed=0).counts()
    for before, after in zip(full, half, strict=True):
        assert (abs(after - before / 2) < 5 * np.sqrt(before / 4) + 1).all()


def test_lvis_sample_has_the_published_numbers(tmp_path: Path) -> None:
    out = tmp_path / "lvis.labels"
    path = str(SHARED / "lvis-sample" / "lvis_val_100.json")
    store = import_labels("lvis", [path], out=out)[out]
    counts = store.counts()
    assert (len(store), counts.positives.sum(), counts.negatives.sum()) == (100, 299, 942)
    assert int((np.diff(store.indptr) > 0).sum()) == 96


def test_openimages_descriptions_name_the_classes(tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "x.labels"
    labels.write_text(
        "ImageID,Source,LabelName,Confidence\n0000000000000001,verification,/m/0104x9kv,1\n"
    )
    names = SHARED / "openimages" / "oidv6-class-descriptions.csv"
    store = import_labels("openimages", [f"train={labels}"], out=out, descriptions=names)[out]
    assert store.classes.names == ("Vinegret",)
