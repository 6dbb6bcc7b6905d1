"""What is in each scene: place, light, things with their colours and patterns; and so its labels.

Everything about a scene is drawn from (seed, number of the scene) alone. A few labels hold in most
scenes, since they tell of the place, the light or any of the things; most things are rare.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.demo.shapes import SHAPES
from partlabel.draw import mix, seed_key

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

MOST = 4
"""Things in a scene, at most."""

PLACES = {  # how often, its ground, whether there is a roof
    "meadow": (0.34, "grass", False),
    "street": (0.24, "road", False),
    "room": (0.18, "floor", True),
    "beach": (0.12, "sand", False),
    "lake": (0.08, "water", False),
    "winter": (0.04, "snow", False),
}
COLOURS = {"red": 0.40, "blue": 0.23, "yellow": 0.14, "white": 0.09, "green": 0.06, "black": 0.04,
           "orange": 0.025, "purple": 0.015}  # fmt: skip
PATTERNS = {"plain": 0.55, "striped": 0.25, "dotted": 0.14, "checkered": 0.06}

_LIKES = {  # of each thing: the place it is at home in, its usual colour and pattern
    "ball": ("beach", "red", "striped"), "tree": ("meadow", "green", "plain"),
    "star": (None, "yellow", "plain"), "house": ("street", "red", "plain"),
    "flower": ("meadow", "yellow", "dotted"), "car": ("street", "blue", "plain"),
    "box": ("room", "blue", "checkered"), "heart": (None, "red", "dotted"),
    "ring": (None, "white", "plain"), "fish": ("lake", "blue", "striped"),
    "arrow": ("street", "black", "plain"), "boat": ("lake", "white", "striped"),
    "cup": ("room", "green", "striped"),
    "flag": ("street", "red", "checkered"),
    "drop": ("lake", "blue", "dotted"), "mushroom": ("meadow", "orange", "dotted"),
    "kite": ("winter", "purple", "striped"), "bell": ("room", "yellow", "striped"),
    "umbrella": ("beach", "orange", "striped"),
    "crown": ("room", "orange", "plain"), "key": ("room", "black", "striped"),
    "gear": ("street", "black", "checkered"),
    "anchor": ("beach", "black", "dotted"),
}  # fmt: skip
_AT_HOME, _AWAY = 3.0, 0.6
_USUAL = 0.7  # how often a thing has its usual colour, and its usual pattern
_TOGETHER = {"boat": "anchor", "house": "tree", "fish": "drop", "car": "arrow", "key": "cup"}
_COMPANY = 0.15  # how often the second thing is what goes with the first
_HEAD, _TAIL = 3.0, 1.7  # the things' frequencies fall like (_HEAD + rank) ** -_TAIL
_DAY, _DARK, _DUSK = 0.78, 0.3, 0.62  # how often, and how bright at midnight and at dusk
_LOW, _HIGH = 0.3, 0.75  # the horizon, as a share of the height
_SKYLINE = 0.38  # with a horizon above that there is no sky to speak of

_ATTRIBUTES = ("outdoor", "daylight", "sky", "night", "indoor", "grass", "road", "sand", "water",
               "snow")  # fmt: skip
CLASSES = (*_ATTRIBUTES, *COLOURS, *(name for name in PATTERNS if name != "plain"), *SHAPES)
"""Labels of a scene."""


class Scenes(NamedTuple):
    """Some scenes, one entry each; things as (scenes, MOST), drawn in this order."""

    place: Numbers
    light: Floats
    """How bright it is; 1 is noon."""
    horizon: Floats
    """As a share of the height, from the top."""
    many: Numbers
    """How many things there are."""
    thing: Numbers
    colour: Numbers
    pattern: Numbers
    cell: Numbers
    """Which quarter of the picture it is in."""
    looks: Floats
    """(scenes, MOST + 2, 8) uniform numbers for how things (and last, twice, the scene) look."""


def uniform(seed: int, purpose: str, numbers: Numbers, *shape: int) -> Floats:
    """Uniform numbers of some scenes, (scenes, *shape); each from the scene's own number."""
    per_scene = int(np.prod(shape))
    index = numbers.astype(np.uint64)[:, None] * np.uint64(per_scene)
    keys = mix(index + np.arange(per_scene, dtype=np.uint64))
    keys = mix(keys + seed_key(seed, f"demo:{purpose}"))
    values = (keys >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return values.reshape(len(numbers), *shape)


def draw_scenes(seed: int, numbers: Numbers) -> Scenes:
    """The scenes with these numbers."""
    one = uniform(seed, "scene", numbers, 4)
    place = _pick([share for share, _, _ in PLACES.values()], one[:, 0])
    each = uniform(seed, "things", numbers, MOST, 4)
    return Scenes(
        place=place,
        light=np.interp(one[:, 1], (0, 1 - _DAY, 1), (_DARK, _DUSK, 1)).astype(np.float32),
        horizon=_LOW + (_HIGH - _LOW) * one[:, 3],
        many=1 + _pick([0.14, 0.28, 0.32, 0.26], one[:, 2]),
        thing=(thing := _things(place, each[..., 0], each[:, 0, 3])),
        colour=_usually(thing, 1, COLOURS, each[..., 1]),
        pattern=_usually(thing, 2, PATTERNS, each[..., 2]),
        cell=np.argsort(uniform(seed, "cells", numbers, MOST), axis=1),
        looks=uniform(seed, "looks", numbers, MOST + 2, 8),
    )


def labels_of(scenes: Scenes) -> npt.NDArray[np.bool_]:
    """Which labels hold, (scenes, CLASSES): complete, since nobody had to look for them."""
    count = len(scenes.place)
    labels = np.zeros((count, len(CLASSES)), np.bool_)
    column = {name: number for number, name in enumerate(CLASSES)}
    grounds = [ground for _, ground, _ in PLACES.values()]
    roof = np.array([roofed for _, _, roofed in PLACES.values()])[scenes.place]
    labels[:, column["indoor"]] = roof
    labels[:, column["outdoor"]] = ~roof
    labels[:, column["daylight"]] = scenes.light > _DUSK
    labels[:, column["night"]] = scenes.light <= _DUSK
    labels[:, column["sky"]] = ~roof & (scenes.horizon >= _SKYLINE)
    for number, ground in enumerate(grounds):
        if ground in column:
            labels[:, column[ground]] |= scenes.place == number
    beach = list(PLACES).index("beach")
    labels[:, column["water"]] |= scenes.place == beach  # the sea behind the sand
    there = np.arange(MOST) < scenes.many[:, None]
    rows = np.broadcast_to(np.arange(count)[:, None], there.shape)[there]
    shown: tuple[tuple[tuple[str, ...], Numbers], ...] = (
        (tuple(SHAPES), scenes.thing),
        (tuple(COLOURS), scenes.colour),
        (tuple(PATTERNS), scenes.pattern),
    )
    for names, values in shown:
        to = np.array([column.get(name, -1) for name in names])[values[there]]
        labels[rows[to >= 0], to[to >= 0]] = True
    return labels


def _things(place: Numbers, each: Floats, company: Floats) -> Numbers:
    names = list(SHAPES)
    base = (_HEAD + np.arange(len(names))) ** -_TAIL
    drawn = np.zeros(each.shape, np.int64)
    for number, name in enumerate(PLACES):
        likes = [
            1.0 if home is None else _AT_HOME if home == name else _AWAY
            for home, _, _ in (_LIKES[thing] for thing in names)
        ]
        here = place == number
        drawn[here] = _pick((base * likes).tolist(), each[here])
    partner = np.array([names.index(_TOGETHER.get(name, name)) for name in names])
    together = company < _COMPANY
    drawn[together, 1] = partner[drawn[together, 0]]
    return drawn


def _usually(thing: Numbers, which: int, shares: dict[str, float], at: Floats) -> Numbers:
    """What a thing usually has, or any by its share."""
    names = list(shares)
    usual = np.array([names.index(str(_LIKES[name][which])) for name in SHAPES])[thing]
    any_one = _pick(list(shares.values()), np.maximum(at - _USUAL, 0) / (1 - _USUAL))
    return np.where(at < _USUAL, usual, any_one)


def _pick(weights: list[float], at: Floats) -> Numbers:
    """Choices by weight, where uniform numbers fall."""
    edges = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(edges, at, side="right"), len(weights) - 1)
