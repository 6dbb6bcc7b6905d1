"""The embedded data set, the backbone for small pictures, and ``partlabel demo``."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import zlib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from partlabel import LabelStore, cli
from partlabel.commands.demo import demo, meaning
from partlabel.compare import Row, read_results
from partlabel.demo import CLASSES, SIZE, found_demo, generate, write_demo
from partlabel.demo.render import render
from partlabel.demo.scenes import COLOURS, MOST, PATTERNS, PLACES, Scenes, draw_scenes, labels_of
from partlabel.demo.shapes import CELLS, REACH, SHAPES, fields
from partlabel.errors import PartlabelError, StoreError, UsageError
from partlabel.model import build_model, description, rebuild
from tests.conftest import store_from
from tests.runs import finish, start

COLUMN = {name: number for number, name in enumerate(CLASSES)}


def drawn(seed: int, numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """All pictures and labels at once."""
    pictures, labels = zip(*generate(seed, np.asarray(numbers)), strict=True)
    return np.concatenate(pictures), np.concatenate(labels)


def ranked_above(scores: np.ndarray, having: np.ndarray) -> float:
    """How often one that has a label scores above one that has not."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    many = having.sum()
    assert 0 < many < len(scores)
    return float((ranks[having].sum() - many * (many + 1) / 2) / (many * (len(scores) - many)))


# --- scenes depend on seed and number alone ------------------------------------------------------


def test_pictures_and_labels_have_their_shapes() -> None:
    pictures, labels = next(generate(0, np.arange(3)))
    assert (pictures.dtype, pictures.shape) == (np.uint8, (3, SIZE, SIZE, 3))
    assert (labels.dtype, labels.shape) == (np.bool_, (3, len(CLASSES)))
    assert SIZE == 64
    assert len(set(CLASSES)) == len(CLASSES)
    assert list(generate(0, np.arange(0))) == []
    sizes = [len(some) for some, _ in generate(0, np.arange(150))]
    assert sum(sizes) == 150


def test_a_scene_depends_on_seed_and_number_alone() -> None:
    numbers = np.arange(150)
    pictures, labels = drawn(7, numbers)
    order = np.random.default_rng(0).permutation(150)
    again, their = drawn(7, order)
    assert np.array_equal(again, pictures[order])
    assert np.array_equal(their, labels[order])
    some = np.array([149, 3, 77])
    again, their = drawn(7, some)
    assert np.array_equal(again, pictures[some])
    assert np.array_equal(their, labels[some])
    alone = [next(generate(7, np.array([number]))) for number in (0, 63, 64)]
    assert all(
        np.array_equal(a[0][0], pictures[n]) for a, n in zip(alone, (0, 63, 64), strict=True)
    )
    twice, _ = drawn(7, [5, 5])
    assert np.array_equal(twice[0], twice[1])


def test_scenes_differ_by_number_and_by_seed() -> None:
    one, labels = drawn(0, np.arange(100))
    other, their = drawn(1, np.arange(100))
    far, _ = drawn(0, 1_000_000_000 + np.arange(100))
    everything = np.concatenate([one, other, far]).reshape(300, -1)
    assert len(np.unique(everything, axis=0)) == 300
    assert (labels != their).any(1).mean() > 0.9
    assert np.abs(one.astype(int) - other).mean() > 20
    # Numbers drawn for one purpose tell nothing of those for another, nor of the next scene.
    scenes = draw_scenes(0, np.arange(4000))
    columns = [scenes.light, scenes.horizon, scenes.many, scenes.thing[:, 2], scenes.looks[:, 0, 0]]
    table = np.stack([*columns, *(np.roll(each, 1) for each in columns)]).astype(float)
    related = np.corrcoef(table) - np.eye(len(table))
    assert np.abs(related).max() < 0.08


def test_the_data_set_is_the_one_that_its_version_names() -> None:
    """Results are compared over versions of the program: they must be of the same pictures."""
    changed = "the data set has changed: give demo._VERSION another number, and these numbers too"
    labels = labels_of(draw_scenes(0, np.arange(1000)))
    assert zlib.crc32(np.packbits(labels).tobytes()) == 2680544306, changed
    pictures, _ = drawn(0, np.arange(64))
    assert pictures.mean((0, 1, 2)).tolist() == pytest.approx([85.4, 90.9, 101.65], abs=0.1), (
        changed
    )


# --- how often labels hold -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> tuple[Scenes, np.ndarray]:
    scenes = draw_scenes(11, np.arange(20_000))
    return scenes, labels_of(scenes)


def test_a_few_labels_hold_in_most_scenes_and_many_are_rare(
    many: tuple[Scenes, np.ndarray],
) -> None:
    shares = many[1].mean(0)
    assert 30 <= len(CLASSES) <= 60
    assert 3 <= (shares > 0.5).sum() <= 8
    assert (shares < 0.05).sum() >= len(CLASSES) / 4
    assert shares.min() > 0.005  # 30 of the 6,000 images to train on: there is something to learn
    assert shares.max() < 0.95
    frequent = {CLASSES[i] for i in np.flatnonzero(shares > 0.5)}
    assert {"outdoor", "daylight", "sky"} <= frequent
    assert not frequent & set(SHAPES)
    assert 5 < many[1].sum(1).mean() < 12


def test_things_have_a_long_tail(many: tuple[Scenes, np.ndarray]) -> None:
    shares = np.sort(many[1][:, [COLUMN[name] for name in SHAPES]].mean(0))[::-1]
    assert shares[0] > 10 * shares[-1]
    assert shares[:5].sum() > 0.5 * shares.sum()
    assert (shares < shares[0] / 5).sum() > len(shares) / 2
    colours = np.sort(many[1][:, [COLUMN[name] for name in COLOURS]].mean(0))
    assert colours[-1] > 10 * colours[0]


def lift(labels: np.ndarray, one: str, other: str) -> float:
    """How many times as often as if they were independent."""
    a, b = labels[:, COLUMN[one]], labels[:, COLUMN[other]]
    return float((a & b).mean() / (a.mean() * b.mean()))


HOMES = {
    "boat": "water", "fish": "water", "drop": "water", "box": "indoor", "cup": "indoor",
    "key": "indoor", "car": "road", "house": "road", "arrow": "road", "tree": "grass",
    "flower": "grass", "mushroom": "grass", "umbrella": "sand", "anchor": "sand", "ball": "sand",
    "kite": "snow",
}  # fmt: skip
USUAL = {"tree": "green", "car": "blue", "mushroom": "orange", "kite": "purple", "boat": "white",
         "key": "black", "flower": "dotted", "box": "checkered", "ball": "striped"}  # fmt: skip


def test_things_are_where_they_are_at_home(many: tuple[Scenes, np.ndarray]) -> None:
    lifts = {pair: lift(many[1], *pair) for pair in HOMES.items()}
    assert min(lifts.values()) > 1.5, lifts
    assert lift(many[1], "star", "grass") == pytest.approx(1, abs=0.15)  # it is at home anywhere


def test_things_have_usual_colours_and_patterns(many: tuple[Scenes, np.ndarray]) -> None:
    lifts = {pair: lift(many[1], *pair) for pair in USUAL.items()}
    assert min(lifts.values()) > 1.2, lifts


@pytest.mark.parametrize(
    ("one", "other", "least"),
    [("boat", "anchor", 2.5), ("fish", "drop", 1.8), ("car", "arrow", 1.5), ("key", "cup", 1.8)],
)
def test_partners_are_together(
    many: tuple[Scenes, np.ndarray], one: str, other: str, least: float
) -> None:
    assert lift(many[1], one, other) > least


def test_the_second_thing_is_often_the_partner_of_the_first(
    many: tuple[Scenes, np.ndarray],
) -> None:
    """Also of a house, whose tree is too frequent elsewhere for them to be together more often."""
    scenes, _ = many
    names = list(SHAPES)
    for one, other in [("house", "tree"), ("car", "arrow"), ("fish", "drop"), ("key", "cup")]:
        first = scenes.thing[:, 0] == names.index(one)
        second = scenes.thing[:, 1] == names.index(other)
        third = scenes.thing[:, 2] == names.index(other)
        assert second[first].mean() > third[first].mean() + 0.08, one
        assert abs(second[~first].mean() - third[~first].mean()) < 0.03, one


def test_other_seeds_have_the_same_profile(many: tuple[Scenes, np.ndarray]) -> None:
    other = labels_of(draw_scenes(12, np.arange(20_000)))
    assert np.abs(other.mean(0) - many[1].mean(0)).max() < 0.02
    val = labels_of(draw_scenes(11, 1_000_000_000 + np.arange(20_000)))
    assert np.abs(val.mean(0) - many[1].mean(0)).max() < 0.02


# --- labels against scenes -----------------------------------------------------------------------

GROUNDS = {"meadow": "grass", "street": "road", "beach": "sand", "lake": "water", "winter": "snow"}


def told(scenes: Scenes, number: int) -> set[str]:
    """What holds in a scene, one thing after the other."""
    place = ["meadow", "street", "room", "beach", "lake", "winter"][int(scenes.place[number])]
    found = {"indoor"} if place == "room" else {"outdoor"}
    found.add("daylight" if float(scenes.light[number]) > 0.62 else "night")
    if place != "room" and float(scenes.horizon[number]) >= 0.38:
        found.add("sky")
    if place in GROUNDS:
        found.add(GROUNDS[place])
    if place == "beach":
        found.add("water")
    for thing in range(int(scenes.many[number])):
        found.add(list(SHAPES)[int(scenes.thing[number, thing])])
        found.add(list(COLOURS)[int(scenes.colour[number, thing])])
        pattern = ["plain", "striped", "dotted", "checkered"][int(scenes.pattern[number, thing])]
        found.add(pattern)
    return found - {"plain"}


def test_labels_are_what_scenes_hold() -> None:
    numbers = np.r_[0:300, 1_000_000_000:1_000_000_100]
    scenes = draw_scenes(2, numbers)
    labels = labels_of(scenes)
    seen: set[str] = set()
    for row, states in enumerate(labels):
        expected = told(scenes, row)
        assert {CLASSES[i] for i in np.flatnonzero(states)} == expected, row
        seen |= expected
    assert seen == set(CLASSES)


def test_scenes_are_drawn_within_bounds() -> None:
    scenes = draw_scenes(2, np.arange(5000))
    assert set(scenes.many.tolist()) == {1, 2, 3, 4}
    assert set(scenes.place.tolist()) == set(range(len(PLACES)))
    assert set(scenes.thing.ravel().tolist()) == set(range(len(SHAPES)))
    assert set(scenes.pattern.ravel().tolist()) == set(range(len(PATTERNS)))
    assert scenes.light.min() >= 0.29
    assert scenes.light.max() <= 1
    assert np.array_equal(np.sort(scenes.cell, axis=1), np.tile(np.arange(MOST), (5000, 1)))
    assert scenes.looks.min() >= 0
    assert scenes.looks.max() < 1


# --- labels against pictures ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen() -> tuple[np.ndarray, np.ndarray]:
    pictures, labels = drawn(3, np.arange(800))
    return pictures.astype(np.float32), labels


def test_nights_are_darker_and_bluer(seen: tuple[np.ndarray, np.ndarray]) -> None:
    pictures, labels = seen
    night = labels[:, COLUMN["night"]]
    light = pictures.mean((1, 2, 3))
    assert light[night].mean() < 0.7 * light[~night].mean()
    assert ranked_above(-light, night) > 0.9
    tint = pictures[..., 2].mean((1, 2)) / pictures[..., 0].mean((1, 2))
    assert tint[night].mean() > tint[~night].mean() + 0.1


def test_grounds_look_like_it(seen: tuple[np.ndarray, np.ndarray]) -> None:
    pictures, labels = seen
    low = pictures[:, -4:].mean((1, 2))
    low /= pictures.mean((1, 2, 3))[:, None]
    grass, sand, snow = (labels[:, COLUMN[name]] for name in ("grass", "sand", "snow"))
    assert ranked_above(low[:, 1] - low[:, [0, 2]].mean(1), grass) > 0.85
    assert ranked_above(low[:, 0] - low[:, 2], sand | labels[:, COLUMN["indoor"]]) > 0.75
    assert ranked_above(low.min(1), snow) > 0.8
    # Walls are browner than skies.
    high = pictures[:, :4].mean((1, 2))
    day = labels[:, COLUMN["daylight"]]
    red = high[day, 0] / high[day, 2]
    assert ranked_above(red, labels[day, COLUMN["indoor"]]) > 0.85


HUES = {"red": (220, 40, 40), "blue": (40, 80, 225), "yellow": (245, 215, 40),
        "green": (25, 160, 65), "orange": (245, 130, 20), "purple": (145, 45, 185)}  # fmt: skip


@pytest.mark.parametrize("colour", HUES)
def test_the_paint_of_a_colour_is_in_the_picture(
    seen: tuple[np.ndarray, np.ndarray], colour: str
) -> None:
    day = seen[1][:, COLUMN["daylight"]]
    pictures, labels = seen[0][day], seen[1][day]
    hue = np.array(HUES[colour]) / np.linalg.norm(HUES[colour])
    pixels = pictures / (np.linalg.norm(pictures, axis=-1, keepdims=True) + 1e-3)
    score = (pixels @ hue > 0.97).sum((1, 2))
    scores = {name: ranked_above(score, labels[:, COLUMN[name]]) for name in COLOURS}
    assert scores[colour] > 0.8
    assert max(scores, key=scores.__getitem__) == colour


def studio(things: int, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of one thing each, upright at noon on snow, and the same without it."""
    one = draw_scenes(0, np.array([0]))
    scenes = Scenes(*(np.repeat(each, things, 0) for each in one))
    looks = np.full_like(scenes.looks, 0.5)
    looks[:, 0, 0] = 1.0  # large
    looks[:, : MOST - 1, 4:6] = (0.9, 0.95)  # clutter behind it, out of the way
    looks[:, MOST - 1, 4:6] = (0.9, 0.95)
    looks[:, 0, 3:6] = 0.5
    plain = {
        "place": np.full(things, list(PLACES).index("winter")),
        "light": np.ones(things, np.float32),
        "horizon": np.full(things, 0.3, np.float32),
        "many": np.ones(things, np.int64),
        "thing": np.zeros((things, MOST), np.int64),
        "colour": np.full((things, MOST), list(COLOURS).index("black")),
        "pattern": np.zeros((things, MOST), np.int64),
        "cell": np.tile(np.arange(MOST), (things, 1)),
        "looks": looks,
    }
    scenes = scenes._replace(**(plain | changes))
    without = scenes._replace(many=np.zeros(things, np.int64))
    return render(scenes).astype(np.float32), render(without).astype(np.float32)


def every(count: int) -> np.ndarray:
    """A different one for each scene."""
    return np.repeat(np.arange(count)[:, None], MOST, 1)


def covered(pictures: np.ndarray, without: np.ndarray) -> np.ndarray:
    """How much of each pixel a black thing hides."""
    return (without - pictures).mean(-1) / without.mean(-1)


def test_each_colour_is_painted_in_its_own() -> None:
    pictures, without = studio(len(COLOURS), colour=every(len(COLOURS)))
    everywhere = np.abs(pictures - without).max((0, -1)) > 40
    ys, xs = np.nonzero(everywhere)
    y, x = int(ys.mean()), int(xs.mean())
    middle = pictures[:, y - 3 : y + 4, x - 3 : x + 4].mean((1, 2))
    expected = HUES | {"white": (215, 215, 210), "black": (20, 20, 22)}
    anchors = np.array([expected[name] for name in COLOURS])
    away = np.linalg.norm(middle[:, None] - 0.85 * anchors[None], axis=-1)
    assert away.argmin(1).tolist() == list(range(len(COLOURS)))


def test_each_thing_has_the_outline_of_its_name() -> None:
    names = list(SHAPES)
    hidden = covered(*studio(len(names), thing=every(len(names)))) > 0.45
    ys, xs = np.nonzero(hidden[names.index("ball")])
    y, x = ys.mean(), xs.mean()
    radius = np.sqrt(hidden[names.index("ball")].sum() / np.pi) / 0.8
    assert radius == pytest.approx(16, abs=0.5)
    # What the fields say of the same pixels.
    rows, columns = (
        np.clip(((np.arange(SIZE) - m) / radius + REACH) * (CELLS - 1) / (2 * REACH), 0, CELLS - 1)
        for m in (y, x)
    )
    rows, columns = rows.round().astype(int), columns.round().astype(int)
    inside = fields()[: len(names), rows[:, None], columns[None]] < 0
    near = (np.hypot(*np.ogrid[-y : SIZE - y, -x : SIZE - x]) < 1.05 * radius)[None]
    hidden, inside = (each & near for each in (hidden, inside))
    one, other = hidden.reshape(len(names), 1, -1), inside.reshape(1, len(names), -1)
    overlap = (one & other).sum(-1) / (one | other).sum(-1)
    assert overlap.argmax(1).tolist() == list(range(len(names)))
    assert overlap.diagonal().min() > 0.8
    # No two things look the same.
    assert (overlap - np.eye(len(names)) * overlap).max() < 0.85
    # And some that are known without the fields.
    areas = dict(zip(names, hidden.sum((1, 2)) / radius**2, strict=True))
    assert areas["box"] == pytest.approx(1.4**2, rel=0.08)
    assert areas["ring"] == pytest.approx(np.pi * (0.85**2 - 0.45**2), rel=0.08)
    assert areas["kite"] == pytest.approx(1.2, rel=0.1)
    middle = hidden[:, round(y), round(x)]
    assert not middle[names.index("ring")]
    assert not middle[names.index("gear")]
    assert middle[names.index("ball")]
    assert middle[names.index("star")]


def test_edges_are_smooth() -> None:
    hidden = covered(*studio(1))[0]
    full = (hidden > 0.8).sum()
    partly = ((hidden > 0.15) & (hidden < 0.75)).sum()
    around = 2 * np.sqrt(np.pi * full)
    assert partly > 0.4 * around
    assert partly < 2 * around  # and not blurred
    assert np.abs(np.delete(hidden.ravel(), np.flatnonzero(hidden.ravel() > 0.05))).max() < 0.05


def test_patterns_are_bright_and_dark() -> None:
    white = np.full((len(PATTERNS), MOST), list(COLOURS).index("white"))
    size = len(PATTERNS)
    road = np.full(size, list(PLACES).index("street"))
    pictures, without = studio(size, pattern=every(size), colour=white, place=road)
    where = np.abs(pictures - without).max((0, -1)) > 60
    inner = where & (pictures[0].mean(-1) > 150)
    spread = {
        name: pictures[i].mean(-1)[inner].std() for i, name in enumerate(PATTERNS)
    }  # fmt: skip
    assert min(spread[name] for name in PATTERNS if name != "plain") > 2 * spread["plain"]
    for a, b in itertools.combinations(range(size), 2):
        assert np.abs(pictures[a] - pictures[b]).mean(-1)[inner].mean() > 15, (a, b)


def test_every_labelled_thing_can_be_seen_and_no_other_is_drawn() -> None:
    """Even where others hide a part of it; another colour or shape there changes the picture."""
    scenes = draw_scenes(5, np.arange(200))
    before = render(scenes).astype(np.int64)
    for number in range(MOST):
        colour, thing = scenes.colour.copy(), scenes.thing.copy()
        colour[:, number] = (colour[:, number] + 1) % len(COLOURS)
        thing[:, number] = (thing[:, number] + 7) % len(SHAPES)
        there = scenes.many > number
        for changed in (scenes._replace(colour=colour), scenes._replace(thing=thing)):
            differs = np.abs(render(changed) - before).max(-1) > 8
            pixels = differs.sum((1, 2))
            assert pixels[there].min() > 40
            assert not pixels[~there].any()


def test_pictures_are_noisy_and_never_flat(seen: tuple[np.ndarray, np.ndarray]) -> None:
    pictures = seen[0]
    assert pictures.std((1, 2)).min() > 5
    steps = np.abs(np.diff(pictures, axis=2)).mean((1, 2, 3))
    assert steps.min() > 4
    assert ((pictures == 255).mean((1, 2, 3)) < 0.6).all()


# --- the data set on disk ------------------------------------------------------------------------

SEED, TRAIN, VAL = 4, 70, 24
WANTED = {"seed": SEED, "train": TRAIN, "val": VAL}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def pictures_of(path: Path) -> dict[int, bytes]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    assert table.column_names == ["image_id", "jpeg"]
    found = table.to_pydict()
    return dict(zip(found["image_id"], found["jpeg"], strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "made" / "here"
    write_demo(folder, **WANTED)
    return folder


@pytest.fixture
def on_disk(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_what_is_written_is_what_was_drawn(whole: Path) -> None:
    from PIL import Image

    store = LabelStore.open(whole / "data.labels")
    assert store.complete
    assert store.images.split_counts == {"train": TRAIN, "val": VAL}
    assert tuple(store.classes.names) == CLASSES
    ids = store.images.ids
    found = pictures_of(whole / "images.parquet")
    assert list(found) == ids.tolist()
    assert len(set(found)) == TRAIN + VAL
    pictures, labels = drawn(SEED, ids)
    assert np.array_equal(store.dense(np.arange(len(store))) > 0, labels)
    assert np.array_equal(store.dense(np.arange(len(store))) < 0, ~labels)
    for number, picture in zip(ids.tolist(), pictures, strict=True):
        with Image.open(io.BytesIO(found[number])) as opened:
            assert (opened.format, opened.mode, opened.size) == ("JPEG", "RGB", (SIZE, SIZE))
            away = np.abs(np.asarray(opened, np.int64) - picture)
        assert away.mean() < 5
        assert np.percentile(away, 99) < 20


def test_drawing_it_again_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    before = files_of(whole)
    assert {name.split("/")[0] for name in before} == {"data.labels", "images.parquet"}
    told: list[int] = []
    data = write_demo(tmp_path / "other", **WANTED, progress=told.append)
    assert files_of(tmp_path / "other") == before
    assert sum(told) == TRAIN + VAL
    assert (data.store, data.images) == (
        tmp_path / "other" / "data.labels", tmp_path / "other" / "images.parquet",
    )  # fmt: skip
    write_demo(tmp_path / "other", **WANTED)
    assert files_of(tmp_path / "other") == before


def test_what_to_evaluate_on_does_not_depend_on_how_much_to_train_on(
    whole: Path, tmp_path: Path
) -> None:
    write_demo(tmp_path, seed=SEED, train=5, val=VAL)
    one, other = (
        LabelStore.open(folder / "data.labels").split("val") for folder in (whole, tmp_path)
    )
    assert one.images.ids.tolist() == other.images.ids.tolist()
    assert np.array_equal(one.dense(np.arange(VAL)), other.dense(np.arange(VAL)))
    here, there = (pictures_of(folder / "images.parquet") for folder in (whole, tmp_path))
    assert [here[i] for i in one.images.ids.tolist()] == [there[i] for i in one.images.ids.tolist()]
    assert not set(LabelStore.open(whole / "data.labels").split("train").images.ids.tolist()) & set(
        one.images.ids.tolist()
    )


def test_a_data_set_is_found_again_and_no_other_is_taken_for_it(whole: Path) -> None:
    data = found_demo(whole, **WANTED)
    assert data is not None
    assert (data.store, data.images) == (whole / "data.labels", whole / "images.parquet")
    for change in ({"seed": SEED + 1}, {"train": TRAIN + 1}, {"val": VAL - 1}):
        assert found_demo(whole, **(WANTED | change)) is None
    assert found_demo(whole / "absent", **WANTED) is None
    assert found_demo(whole.parent, **WANTED) is None


def test_a_store_of_something_else_is_not_taken_for_it(on_disk: Path) -> None:
    store = LabelStore.open(on_disk / "data.labels")
    rows = np.arange(len(store))
    store.select(rows[::-1].copy()).save(on_disk / "other.labels")
    other = LabelStore.open(on_disk / "other.labels")
    other.origin = type(other.origin)()
    other.save(on_disk / "data.labels", overwrite=True)
    assert found_demo(on_disk, **WANTED) is None


@pytest.mark.parametrize(
    "gone", ["images.parquet", "data.labels", "data.labels/codes.npy", "data.labels/images.parquet"]
)  # fmt: skip
def test_a_data_set_with_something_missing_is_not_found(on_disk: Path, gone: str) -> None:
    path = on_disk / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert found_demo(on_disk, **WANTED) is None
    write_demo(on_disk, **WANTED)
    assert found_demo(on_disk, **WANTED) is not None


def test_somebodys_own_data_of_the_same_names_is_left_alone(tmp_path: Path) -> None:
    store_from([[1, -1], [0, 1]]).save(tmp_path / "data.labels")
    (tmp_path / "images.parquet").write_bytes(b"mine")
    before = files_of(tmp_path)
    with pytest.raises(PartlabelError, match="choose another --out"):
        write_demo(tmp_path, **WANTED)
    assert files_of(tmp_path) == before


def test_a_folder_that_is_no_store_is_refused_before_anything_is_written(on_disk: Path) -> None:
    (on_disk / "data.labels" / "meta.json").unlink()
    assert found_demo(on_disk, **WANTED) is None
    before = files_of(on_disk)
    with pytest.raises(PartlabelError, match="choose another --out"):
        write_demo(on_disk, **(WANTED | {"seed": SEED + 1}))
    assert files_of(on_disk) == before


@pytest.mark.parametrize(
    "damaged",
    [
        "data.labels/codes.npy",
        "data.labels/indptr.npy",
        "data.labels/meta.json",
        "data.labels/classes.csv",
        pytest.param(
            "images.parquet",
        ),
    ],
)
def test_a_damaged_data_set_is_not_found(on_disk: Path, damaged: str) -> None:
    path = on_disk / damaged
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert found_demo(on_disk, **WANTED) is None


def interrupted_at(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write another data set over one, and be interrupted."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if part == "store":
        monkeypatch.setattr(LabelStore, "save", stop)
    progress = stop if part == "pictures" else None
    with pytest.raises(KeyboardInterrupt):
        write_demo(folder, **(WANTED | {"seed": SEED + 1}), progress=progress)
    monkeypatch.undo()


@pytest.mark.parametrize(
    "part",
    [
        "pictures",
        pytest.param(
            "store",
        ),
    ],
)
def test_an_interrupted_rewrite_never_pairs_labels_with_other_pictures(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    before = files_of(on_disk)
    interrupted_at(part, on_disk, monkeypatch)
    assert not [name for name in files_of(on_disk) if "tmp" in name]
    if found_demo(on_disk, **WANTED) is not None:
        assert files_of(on_disk) == before
    assert found_demo(on_disk, **(WANTED | {"seed": SEED + 1})) is None


@pytest.mark.parametrize(
    ("train", "val"), [(0, 8), (8, 0), (-3, 8), (8, -1), (10**9, 8), (8, 10**9)]
)
def test_sizes_that_cannot_be(tmp_path: Path, train: int, val: int) -> None:
    with pytest.raises(
        UsageError, match=rf"images to train and to evaluate on, got {train}, {val}"
    ):
        write_demo(tmp_path / "none", train=train, val=val)
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"cannot be written \(.+\)") as caught:
            write_demo(folder, **WANTED)
        assert str(caught.value).startswith(str(folder))
        assert "\n" not in str(caught.value)
        assert found_demo(folder, **WANTED) is None
    (tmp_path / "images.parquet").mkdir()
    with pytest.raises(PartlabelError, match="choose another --out"):
        write_demo(tmp_path, **WANTED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "images.parquet"]


# --- the command ---------------------------------------------------------------------------------

QUICK = ["train.epochs=1"]


class Shown(NamedTuple):
    out: str
    err: str


def shown(
    folder: Path, *, seed: int = 0, images: int = 128, sets: list[str] | None = None
) -> Shown:
    """What the command prints, beside what it does."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        demo(out=folder, seed=seed, images=images, sets=QUICK if sets is None else sets)
    return Shown(out.getvalue(), err.getvalue())


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing figures takes longer than training."""
    import partlabel.report

    def write_report(folder: Path, **more: Any) -> Path:
        return folder / "report.html"

    monkeypatch.setattr(partlabel.report, "write_report", write_report)


def numbers_of(folder: Path) -> dict[str, Any]:
    """What must be the same each time: all but times."""
    rows = read_results(folder)
    assert rows
    return {
        row.method: (row.scheme, row.seed, row.map_c, row.map_o, row.map_frequent, row.n_valid,
                     repr(row.prior_spearman), repr(row.prior_sum), row.true_sum, row.images,
                     row.steps)
        for row in rows
    }  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shown]:
    folder = tmp_path_factory.mktemp("demo") / "X"
    return folder, shown(folder)


@pytest.mark.slow
def test_the_demo_prints_a_table_and_what_it_means(done: tuple[Path, Shown]) -> None:
    folder, printed = done
    table = printed.out.splitlines()
    assert table[0] == "fpc:2: 1 seed"
    rows = [re.split(r" {2,}", line.strip()) for line in table[1:5]]
    assert [row[0] for row in rows] == ["method", "ignore", "negative", "csl"]
    assert rows[0][1:] == ["mAP(C)", "mAP(O)", "frequent", "mAP(C) - ignore"]
    assert table[5] == f"report: {folder / 'report.html'}"
    results = read_results(folder / "results.csv")
    assert [row.method for row in results] == ["ignore", "negative", "csl"]
    for row, cells in zip(results, rows[1:], strict=True):
        percent = [row.map_c, row.map_o, row.map_frequent]
        assert cells[1:4] == [f"{100 * value:.2f}" for value in percent]
        assert 0.05 < row.map_c < 0.9
        assert (row.images, row.steps, row.device) == (128, 2, "cpu")
    assert table[6:] == [meaning(results)]
    assert "drawing 192 pictures" in printed.err
    page = (folder / "report.html").read_text()
    assert "</html>" in page
    assert "CSL" in page


@pytest.mark.slow
def test_the_demo_hides_most_labels_and_evaluates_on_all(done: tuple[Path, Shown]) -> None:
    folder, _ = done
    whole = LabelStore.open(folder / "data.labels")
    assert whole.images.split_counts == {"train": 128, "val": 64}
    (path,) = (folder / "stores").iterdir()
    known = LabelStore.open(path)
    states = known.dense(np.arange(len(known)))
    truth = dict(zip(whole.images.ids.tolist(), whole.dense(np.arange(len(whole))), strict=True))
    assert not known.complete
    assert (states == 0).any()
    there = np.stack([truth[i] for i in known.images.ids.tolist()])
    assert (states[states != 0] == there[states != 0]).all()
    assert (states > 0).sum(0).max() <= 100
    assert (states < 0).sum(0).max() <= 100


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_demo_again_trains_nothing_and_prints_the_same(done: tuple[Path, Shown]) -> None:
    folder, before = done
    results, files = (folder / "results.csv").read_bytes(), files_of(folder / "runs")
    data = (folder / "images.parquet").stat().st_mtime_ns
    again = shown(folder)
    assert again.out == before.out
    assert "step" not in again.err
    assert "drawing 192" not in again.err
    assert (folder / "results.csv").read_bytes() == results
    assert files_of(folder / "runs") == files
    assert (folder / "images.parquet").stat().st_mtime_ns == data


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_demo_gives_the_same_numbers_and_refuses_another_seed_in_its_folder(
    done: tuple[Path, Shown], tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = shown(one)
    assert numbers_of(one) == numbers_of(done[0])
    assert first.out == done[1].out.replace(str(done[0]), str(one))
    shown(other, seed=5)
    assert numbers_of(other) != numbers_of(done[0])
    assert all(values[1] == 5 for values in numbers_of(other).values())
    before = files_of(one)
    with pytest.raises(PartlabelError, match="demo with other pictures; choose another --out"):
        shown(one, seed=5)
    assert files_of(one) == before


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> tuple[int, list[str]]:
    """The exit code of the command line, and the lines of its errors."""
    monkeypatch.setattr(sys, "argv", ["partlabel", "demo", *map(str, arguments)])
    err, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended, redirect_stderr(err):
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(ended.value.code, int)
    return ended.value.code, err.getvalue().splitlines()


def test_the_demo_below_a_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    code, lines = call(monkeypatch, "--images", "64", "--out", tmp_path / "file" / "X")
    assert code == 2
    assert lines[0] == "drawing 128 pictures"
    assert lines[1].startswith(f"error: {tmp_path}/file/X: cannot be written (")
    assert len(lines) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_demo_in_a_read_only_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    try:
        code, lines = call(monkeypatch, "--images", "64", "--out", tmp_path / "X")
    finally:
        tmp_path.chmod(0o700)
    assert code == 2
    assert len(lines) == 2
    assert "cannot be written" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "63"], "Invalid value for '--images'"),
        (["--images", "many"], "Invalid value for '--images'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--sede", "1"], "No such option"),
        (["--images", "1000000000"], "the demo needs images to train and to evaluate on"),
        (["--images", "64", "--set", "train.epocs=1"], "did you mean epochs"),
        (["--images", "64", "--set", "compare.methods=['cls']"], "no such method as 'cls'"),
        (["--images", "64", "--seed", "18446744073709551616"], "less than or equal"),
    ],
)
def test_mistakes_are_one_line(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    code, lines = call(monkeypatch, *arguments)
    assert code == 2
    assert [line.startswith("error: ") for line in lines].count(True) == 1
    assert message in lines[-1]


def test_folders_are_named_by_seed(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["partlabel.commands.demo"]
    asked: list[Path] = []

    def stop(folder: Path, **wanted: int) -> None:
        asked.append(folder)
        raise UsageError(json.dumps(wanted))

    monkeypatch.setattr(module, "_data", stop)
    for options in ({}, {"seed": 3}, {"seed": 3, "out": Path("mine")}):
        with pytest.raises(UsageError):
            demo(**options)  # type: ignore[arg-type]
    assert asked == [Path("outputs/demo"), Path("outputs/demo-3"), Path("mine")]


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "name",
    [
        "a b#c=d,'e",
        pytest.param(
            "[x]",
        ),
    ],
)
def test_one_method_alone_in_a_folder_of_any_name(in_tmp: Path, name: str) -> None:
    sets = ["train.epochs=1", "compare.methods=['ignore']"]
    printed = shown(Path(name), images=64, sets=sets)
    assert printed.out.splitlines()[-1].startswith("report: ")  # and no word on what it means
    assert [row.method for row in read_results(name)] == ["ignore"]


def until(lines: Iterator[str], *texts: str) -> None:
    for text in texts:
        assert any(text in line for line in lines), f"it ended without {text!r}"


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_demo_is_interrupted_twice_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    sets = ["train.epochs=10"]
    command = ["demo", "--images", "128", "--set", *sets, "--out", tmp_path / "X"]
    for texts in (("1 of 3: ignore", "epoch 2:"), ("csl", "epoch 2:")):
        process = start(*command)
        assert process.stderr is not None
        until(iter(process.stderr), *texts)
        process.send_signal(signal.SIGINT)
        out, err = finish(process, code=130)
        assert "stopped; the same command goes on from the checkpoint in" in err
        assert "Traceback" not in err
        assert out == ""
    assert [row.method for row in read_results(tmp_path / "X")] == ["ignore", "negative"]
    last = shown(tmp_path / "X", sets=sets)
    assert "drawing" not in last.err
    assert "epoch 2:" not in last.err  # it did not begin again
    assert "epoch 10:" in last.err
    whole = shown(tmp_path / "Y", sets=sets)
    assert numbers_of(tmp_path / "X") == numbers_of(tmp_path / "Y")
    assert last.out == whole.out.replace(str(tmp_path / "Y"), str(tmp_path / "X"))


# --- what the table means ------------------------------------------------------------------------


def row(method: str, map_c: float, map_frequent: float = 0.5, *, seed: int = 0) -> Row:
    return Row(key=f"{method}{seed}", method=method, title=method, scheme="fpc:100", seed=seed,
               map_c=map_c, map_frequent=map_frequent)  # fmt: skip


AGAINST = {0.03: "is 3.0 points better than", 0.0: "equals", -0.0126: "is 1.3 points worse than"}
COSTS = {0.021: "gains 2.1 points", 0.0004: "changes nothing", -0.3: "costs 30.0 points"}


@pytest.mark.parametrize(("ignore", "negative"), list(itertools.product(AGAINST, AGAINST)))
def test_the_first_sentence_says_who_is_better(ignore: float, negative: float) -> None:
    rows = [row("csl", 0.5), row("negative", 0.5 - negative), row("ignore", 0.5 - ignore)]
    text = meaning(rows)
    assert text is not None
    assert text.startswith(
        f"Deciding label by label (CSL) {AGAINST[ignore]} ignoring what is unknown and "
        f"{AGAINST[negative]} calling it absent, in mAP over all classes. On the"
    )


@pytest.mark.parametrize(("negative", "csl"), list(itertools.product(COSTS, COSTS)))
def test_the_second_sentence_says_what_frequent_classes_cost(negative: float, csl: float) -> None:
    rows = [
        row("ignore", 0.4, 0.6),
        row("negative", 0.4, 0.6 + negative),
        row("csl", 0.4, 0.6 + csl),
    ]
    text = meaning(rows)
    assert text is not None
    assert text.endswith(
        f"calling it absent {COSTS[negative]} against ignoring it, and CSL {COSTS[csl]}."
    )
    assert len(re.findall(r"[a-z]\.(?: |$)", text)) == 2


@pytest.mark.parametrize("missing", ["ignore", "negative", "csl"])
def test_nothing_is_said_where_a_method_is_missing(missing: str) -> None:
    rows = [row(name, 0.4) for name in ("ignore", "negative", "csl", "asl")]
    assert meaning(rows) is not None
    assert meaning([each for each in rows if each.method != missing]) is None
    assert meaning([]) is None


def test_of_several_seeds_the_means_are_told() -> None:
    rows = [row(name, 0.3, seed=seed) for name in ("ignore", "negative") for seed in (0, 1)]
    text = meaning([*rows, row("csl", 0.6, seed=0), row("csl", 0.2, seed=1)])
    assert text is not None
    assert text.startswith("Deciding label by label (CSL) is 10.0 points better than ignoring")


def test_a_number_that_is_not_there_is_not_told_of() -> None:
    text = meaning([row("ignore", float("nan")), row("negative", 0.3), row("csl", 0.3)])
    assert text is None or "nan" not in text


# --- the backbone --------------------------------------------------------------------------------


def pixels(count: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("size", [64, 50, 33, 7, 1])
def test_the_small_backbone_takes_any_size(size: int) -> None:
    model = build_model("small", 5, weights="none", image_size=size).eval()
    assert model.info.backbone == "partlabel_small"
    images = model.normalise(pixels(3, size))
    with torch.no_grad():
        assert model.forward_features(images).shape == (3, 256)
        logits = model(images)
        alone = model(images[1:2])
    assert logits.shape == (3, 5)
    assert torch.allclose(logits[1:2], alone, atol=1e-5)
    assert torch.isfinite(logits).all()


def test_the_small_backbone_learns_with_all_its_weights() -> None:
    model = build_model("small", 4, weights=None, image_size=64).train()
    model(model.normalise(pixels(4, 64))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_the_small_backbone_sees_a_small_thing_anywhere() -> None:
    """Means alone would drown it."""
    model = build_model("small", 4, weights=None, image_size=64).eval()
    images = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    images[1, :, 30:34, 30:34] = 255
    with torch.no_grad():
        one, other = model.forward_features(model.normalise(images))
    mean, most = (one - other).abs().view(2, -1).sum(1)
    assert most > 3 * mean > 0


def test_the_small_backbone_is_rebuilt_from_its_description() -> None:
    model = build_model("small", 5, weights="none", image_size=64, seed=3, auxiliary=True)
    again = rebuild(json.loads(json.dumps(description(model))))
    assert again.info == model.info
    assert (again.info.mean, again.info.std) == ((0.5,) * 3, (0.25,) * 3)
    images = pixels(2, 64)
    assert torch.equal(again.normalise(images), model.normalise(images))
    ends = model.normalise(
        torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    )
    assert ends[:, 0, 0, 0].tolist() == pytest.approx([-2, 2])
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(*(m.eval()(m.normalise(images)) for m in (again, model)))


def test_the_small_backbone_is_made_from_its_seed_alone() -> None:
    def made(seed: int) -> dict[str, torch.Tensor]:
        torch.rand(3)
        return build_model("small", 5, weights=None, image_size=64, seed=seed).state_dict()

    one, again, other = made(3), made(3), made(4)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["backbone.stem.weight"], other["backbone.stem.weight"])


@pytest.mark.parametrize("name", ["small", "partlabel_small"])
def test_there_are_no_pretrained_weights_of_the_small_backbone(name: str) -> None:
    with pytest.raises(UsageError, match='weights = "none"') as caught:
        build_model(name, 5, weights="pretrained", image_size=64)
    assert "partlabel_small" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tag_of_the_small_backbone_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean small"):
        build_model("small.in1k", 5, weights=None, image_size=64)
