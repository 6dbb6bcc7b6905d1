"""The recipes in runs/: each is run as its comments say, on a small copy of its data set.

The copies have the folders, file names and columns of the official files, and as many classes.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from partlabel import LabelStore
from partlabel.config import Config
from partlabel.model import PRESETS
from partlabel.prior import Prior
from partlabel.vision import load
from tests import formats
from tests.runs import CLASSES, SIZE, draw, finish, lines, start

ROOT = Path(__file__).parent.parent
RUNS = {
    path.stem: path
    for path in sorted((ROOT / "runs").glob("*.toml"))
    if path.stem != "demo"  # is for partlabel compare
}
SHOWN = len(CLASSES)  # the first classes of a data set are those that a picture shows
TEST_IMAGES = 14
SMALL: dict[str, Any] = {
    "images.size": SIZE,
    "images.workers": 0,
    "model.backbone": "test_convnext",
    "train.batch_size": 8,
    "train.epochs": 1,
    "train.device": "cpu",
}


# --- what the comments say -----------------------------------------------------------------------


def opening(name: str) -> list[str]:
    """The lines of the opening comment."""
    comment = RUNS[name].read_text().split("\n\n")[0].splitlines()
    assert all(line == "#" or line.startswith("# ") for line in comment)
    return [line[2:] for line in comment]


def commands(name: str) -> list[list[str]]:
    """The commands in it: indented lines that begin with partlabel, and what continues them."""
    text = "\n".join(opening(name)).replace("\\\n", " ")
    found = [shlex.split(line) for line in text.splitlines() if line.startswith("  partlabel ")]
    return [words[1:] for words in found]


def command(name: str, first: str) -> list[str]:
    """The only command of a kind."""
    (found,) = (words for words in commands(name) if words[0] == first)
    return found


def settings_named(name: str) -> list[list[str]]:
    """What the comments offer as --set, those that stand together together."""
    text = " ".join(opening(name))
    one = r"--set ('[^']*'|\S+)"
    return [
        [shlex.split(each)[0].rstrip(".,;") for each in re.findall(one, group[0])]
        for group in re.finditer(rf"{one}(\s+{one})*", text)
    ]


# --- small copies of the data sets ---------------------------------------------------------------


def picture_states(count: int, rng: np.random.Generator) -> np.ndarray:
    """What some pictures show: everything, nothing, then anything."""
    states = np.where(rng.random((count, SHOWN)) < 0.4, 1, -1).astype(np.int8)
    states[:2] = [[1] * SHOWN, [-1] * SHOWN]
    return states


def make_truth(classes: list[str], *, known: float, **splits: int) -> formats.Truth:
    """Labels of the classes that are shown, of which a share is known, and a few of all others."""
    rng = np.random.default_rng(0)
    names = [split for split, count in splits.items() for _ in range(count)]
    states = np.concatenate([picture_states(count, rng) for count in splits.values()])
    kept = rng.random(states.shape) < known
    kept[np.abs(states.sum(1)) == SHOWN] = True
    triples = [(int(i), int(c), int(states[i, c])) for i, c in zip(*np.nonzero(kept), strict=True)]
    for i in range(len(names)):
        for c in rng.choice(np.arange(SHOWN, len(classes)), 4, replace=False):
            triples.append((i, int(c), int(rng.choice([1, -1]))))
    numbers = (np.sort(rng.choice(500_000, len(names), replace=False)) + 1).tolist()
    return formats.Truth(numbers, classes, list(names), triples)


def paint(root: Path, written: formats.Written) -> formats.Written:
    """Draw the images where the labels say that they are."""
    expected = written.expected
    assert expected.paths is not None
    for i, (path, states) in enumerate(zip(expected.paths, expected.states, strict=True)):
        (root / str(path)).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(np.array(states[:SHOWN]), i)).save(root / str(path), quality=92)
    return written


def openimages(folder: Path, *, version: int, classes: int) -> None:
    names = [*CLASSES, *(f"Thing {i}" for i in range(classes - SHOWN))]
    truth = make_truth(names, known=0.6, train=32, validation=12, test=TEST_IMAGES)
    written = formats.openimages(folder, truth, version=version, other=5)
    paint(folder / "FOLDER", written)


def lvis(folder: Path) -> None:
    names = ["person", *CLASSES[1:], *(f"thing_{i}" for i in range(1_203 - SHOWN))]
    written = formats.lvis(folder, make_truth(names, known=0.6, train=32, val=12))
    paint(folder / "FOLDER", written)


def coco(folder: Path) -> None:
    names = ["person", *CLASSES[1:], *(f"thing {i}" for i in range(80 - SHOWN))]
    written = formats.coco(folder / "FOLDER", make_truth(names, known=1, train=32, val=12))
    paint(folder / "FOLDER", written)


def csv_quickstart(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [["image_id", "label", "value"]]
    for i, states in enumerate(picture_states(80, rng)):
        path = folder / "images" / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw(states, i)).save(path)
        rows += [
            [f"images/{path.name}", label, str(int(state > 0))]
            for label, state in zip(CLASSES, states, strict=True)
            if rng.random() < 0.7
        ]
    formats.PLAIN.write(folder / "labels.csv", formats.csv_text(rows))


def coco_mini(folder: Path) -> None:
    rng = np.random.default_rng(0)
    root = folder / "coco-mini"
    names = ["person", *CLASSES[1:], *(f"thing {i}" for i in range(80 - SHOWN))]
    formats.write_class_list(root, names)
    for split, count, first in (("train", 40, 9), ("val", 16, 42)):
        states = picture_states(count, rng)
        jpegs = []
        for i, row in enumerate(states):
            path = folder / "one.jpg"
            Image.fromarray(draw(row, first + i)).save(path, quality=92)
            jpegs.append(path.read_bytes())
            path.unlink()
        positives = [[*np.flatnonzero(row > 0), int(rng.integers(SHOWN, 80))] for row in states]
        columns = {
            "image_id": pa.array([first + 100 * i for i in range(count)], pa.int64()),
            "jpeg": pa.array(jpegs, pa.binary()),
            "positives": pa.array(positives, pa.list_(pa.int16())),
        }
        pq.write_table(pa.table(columns), root / f"{split}.parquet", row_group_size=16)


REPLICAS: dict[str, Callable[[Path], None]] = {
    "openimages-v6": lambda folder: openimages(folder, version=6, classes=9_605),
    "openimages-v3": lambda folder: openimages(folder, version=3, classes=5_000),
    "lvis": lvis,
    "coco-fpc": coco,
    "coco-rpa": coco,
    "csv-quickstart": csv_quickstart,
    "coco-mini": coco_mini,
}


# --- the files themselves ------------------------------------------------------------------------


def test_every_recipe_has_a_replica() -> None:
    assert set(REPLICAS) == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_can_be_read_and_so_can_what_its_comments_offer(name: str) -> None:
    for sets in [[], *settings_named(name)]:
        config = Config.read(RUNS[name], sets)
        assert (config.name, config.out) == (name, Path("outputs") / name)
        config.build_loss(**({"prior": torch.rand(3)} if config.needs_prior else {}))
        backbone = config.model.backbone
        known = PRESETS[backbone].backbone if backbone in PRESETS else backbone
        assert load("timm").is_model_pretrained(known)


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_opens_with_how_to_run_it_and_what_to_expect(name: str) -> None:
    for begin in ("Hardware: ", "Time: ", "Ours"):
        assert sum(line.startswith(begin) for line in opening(name)) == 1, begin
    published = [line for line in opening(name) if line.startswith("Published")]
    assert len(published) == (name != "coco-mini")  # which is ours
    if "test split" in " ".join(published):
        assert command(name, "evaluate")[-2:] == ["--split", "test"]
    kinds = [words[0] for words in commands(name)]
    assert kinds.count("train") == 1
    assert kinds.index("import") < kinds.index("train")
    assert command(name, "train")[1] == f"runs/{name}.toml"


def test_settings_in_comments_are_found() -> None:
    assert ["loss.name=ce", 'loss.params={unknown="negative"}'] in settings_named("openimages-v3")
    assert ["prior.threshold=default", "prior.top_n=1"] in settings_named("coco-fpc")
    assert ["train.preset=paper"] in settings_named("coco-rpa")


# --- and what they do ----------------------------------------------------------------------------


def run(*words: str) -> str:
    return finish(start(*words))[0]


def make_labels(name: str) -> None:
    """Import and simulate, word for word; fewer labels per class where there are too few images."""
    for words in commands(name):
        if words[0] not in ("import", "simulate"):
            continue
        said = run(*words)
        if words[0] == "import" and name != "coco-mini":
            there, all_of = re.findall(r"^(\d+) of (\d+) images found in ", said, re.M)[0]
            assert int(there) == int(all_of) > 40
        if "--per-class" in words:
            made = said.split(": ")[0]
            assert "(0.00%)" in said  # so many labels do not exist here: nothing is unknown
            run(*words, "--per-class", "6", "--out", made, "--overwrite")


def train(name: str) -> Path:
    """Train by the recipe, word for word too, with small sizes after it; gives the run folder."""
    small = dict(SMALL)
    if Config.read(RUNS[name]).prior.images is not None:
        small["prior.images"] = 16
    sets = [f"{key}={value}" for key, value in small.items()]
    options = [word for each in sets for word in ("--set", each)]
    run(*command(name, "train"), *options, "--weights", "none")
    folder = Path("outputs") / name
    config = Config.read(RUNS[name], [*sets, "model.weights=none"])
    assert Config.read(folder / "config.toml").hash() == config.hash()
    return folder


def check(folder: Path) -> dict[str, Any]:
    """Look at what a run has left; gives its result."""
    config = Config.read(folder / "config.toml")
    store = LabelStore.open(config.data.train)
    known = store.counts().positives + store.counts().negatives
    assert known.sum() < len(store) * len(store.classes)
    assert config.prior.source == "estimate"
    prior = Prior.read(folder / "prior.csv").align(store.classes)
    assert ((prior >= 0) & (prior <= 1)).all()
    for log in (lines(folder), lines(folder / "stage1")):
        (evaluated,) = (line for line in log if line["kind"] == "eval")
        assert 0 < evaluated["map_c"] <= 1
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["images"] == store.images.split_counts.get("train", len(store))
    assert result["steps"] == math.ceil(result["images"] / SMALL["train.batch_size"])
    assert 0 < result["map_c"] <= 1
    for which in config.eval.classes:
        assert 0 < result[f"ap_{which}"] <= 1
    assert not (folder / "skipped.csv").exists()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLICAS)
def test_a_recipe_runs_as_it_says(name: str, in_tmp: Path) -> None:
    (in_tmp / "runs").symlink_to(ROOT / "runs")
    REPLICAS[name](in_tmp)
    make_labels(name)
    folder = train(name)
    result = check(folder)
    scored = json.loads(run("evaluate", "--run", str(folder), "--json"))
    assert scored["map_c"] == pytest.approx(result["map_c"], abs=1e-6)
    assert scored["left_out"] == []
    for words in commands(name):
        if words[0] != "evaluate":
            continue
        scored = json.loads(run(*words, "--json"))
        assert scored["images"] == TEST_IMAGES
        assert 0 < scored["map_c"] <= 1
        if name == "openimages-v6":
            (in_tmp / "FOLDER").rename("elsewhere")
            assert json.loads(run(*words, "--json", "--image-root", "elsewhere")) == scored
