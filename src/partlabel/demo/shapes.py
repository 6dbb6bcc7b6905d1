"""The shapes of things, as signed distances: negative inside, positive outside, 0 at the edge.

A shape is built once, on a grid; a renderer looks distances up there at any angle and size, and has
smooth edges for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Field = npt.NDArray[np.float32]

CELLS = 96
"""Cells along each side of a field, which spans -1.25 to 1.25."""
REACH = 1.25


def _grid() -> tuple[Field, Field]:
    at = np.linspace(-REACH, REACH, CELLS, dtype=np.float32)
    x, y = np.meshgrid(at, at)
    return x, y


_X, _Y = _grid()


def _circle(x: float, y: float, radius: float) -> Field:
    return np.asarray(np.hypot(_X - x, _Y - y) - radius, np.float32)


def _box(x: float, y: float, width: float, height: float) -> Field:
    """Half of its width and height."""
    dx, dy = np.abs(_X - x) - width, np.abs(_Y - y) - height
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return np.asarray(outside + np.minimum(np.maximum(dx, dy), 0), np.float32)


def _line(x0: float, y0: float, x1: float, y1: float, radius: float) -> Field:
    dx, dy = x1 - x0, y1 - y0
    along = ((_X - x0) * dx + (_Y - y0) * dy) / (dx * dx + dy * dy)
    along = np.clip(along, 0, 1)
    return np.asarray(np.hypot(_X - x0 - along * dx, _Y - y0 - along * dy) - radius, np.float32)


def _polygon(*points: tuple[float, float]) -> Field:
    inside = np.zeros_like(_X, bool)
    nearest = np.full_like(_X, np.inf)
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        nearest = np.minimum(nearest, _line(x0, y0, x1, y1, 0.0))
        if y0 != y1:
            crosses = (y0 > _Y) != (y1 > _Y)
            inside ^= crosses & ((x1 - x0) * (_Y - y0) / (y1 - y0) + x0 > _X)
    return np.where(inside, -nearest, nearest)


def _rays(count: int, outer: float, inner: float, turn: float = -np.pi / 2) -> Field:
    """A star: ``count`` points, and as many between them nearer to the middle."""
    angles = turn + np.pi * np.arange(2 * count) / count
    radii = np.where(np.arange(2 * count) % 2, inner, outer)
    points = zip((radii * np.cos(angles)).tolist(), (radii * np.sin(angles)).tolist(), strict=True)
    return _polygon(*points)


def _any(*fields: Field) -> Field:
    nearest: Field = np.minimum.reduce(fields)
    return nearest


def _without(field: Field, *holes: Field) -> Field:
    return np.maximum(field, -_any(*holes))


def _both(first: Field, second: Field) -> Field:
    return np.maximum(first, second)


def _gear() -> Field:
    angles = np.pi / 4 * np.arange(4)
    teeth = [
        _line(-0.9 * np.cos(a), -0.9 * np.sin(a), 0.9 * np.cos(a), 0.9 * np.sin(a), 0.13)
        for a in angles.tolist()
    ]
    return _without(_any(_circle(0, 0, 0.68), *teeth), _circle(0, 0, 0.3))


def _flower() -> Field:
    angles = 2 * np.pi * np.arange(5) / 5 - np.pi / 2
    petals = [_circle(0.55 * np.cos(a), 0.55 * np.sin(a), 0.38) for a in angles.tolist()]
    return _without(_any(*petals, _circle(0, 0, 0.4)), _circle(0, 0, 0.2))


def _umbrella() -> Field:
    cover = _both(_circle(0, 0, 0.9), _Y - np.float32(0.0))
    stick = _any(_line(0, 0, 0, 0.7, 0.07), _line(0, 0.72, 0.2, 0.78, 0.07))
    return _any(cover, stick)


def _anchor() -> Field:
    hook = _without(_both(_circle(0, 0.1, 0.85), -_Y + np.float32(0.15)), _circle(0, 0, 0.6))
    ring = _without(_circle(0, -0.72, 0.24), _circle(0, -0.72, 0.1))
    return _any(hook, ring, _line(0, -0.5, 0, 0.8, 0.1), _line(-0.4, -0.3, 0.4, -0.3, 0.09))


def _car() -> Field:
    cabin = _polygon((-0.5, -0.15), (-0.3, -0.55), (0.35, -0.55), (0.6, -0.15))
    wheels = _any(_circle(-0.5, 0.38, 0.25), _circle(0.5, 0.38, 0.25))
    return _any(cabin, _box(0, 0.1, 0.95, 0.27), wheels)


def _tree() -> Field:
    crown = _any(
        _polygon((0, -1.0), (-0.6, -0.2), (0.6, -0.2)),
        _polygon((0, -0.6), (-0.75, 0.5), (0.75, 0.5)),
    )
    return _any(crown, _box(0, 0.7, 0.13, 0.25))


def _house() -> Field:
    roof = _polygon((0, -0.9), (-0.95, -0.1), (0.95, -0.1))
    return _without(_any(roof, _box(0, 0.35, 0.7, 0.5)), _box(0.0, 0.6, 0.18, 0.3))


def _fish() -> Field:
    body = _both(_circle(-0.15, -0.55, 0.95), _circle(-0.15, 0.55, 0.95))
    tail = _polygon((0.4, 0.0), (1.0, -0.5), (1.0, 0.5))
    return _without(_any(body, tail), _circle(-0.55, -0.08, 0.09))


def _heart() -> Field:
    lobes = _any(_circle(-0.42, -0.3, 0.48), _circle(0.42, -0.3, 0.48))
    return _any(
        lobes, _polygon((-0.83, -0.05), (0.83, -0.05), (0.0, 0.95)), _box(0, -0.2, 0.3, 0.2)
    )


def _mushroom() -> Field:
    cap = _both(_circle(0, 0.05, 0.9), _Y - np.float32(0.05))
    return _any(cap, _box(0, 0.45, 0.25, 0.42))


def _boat() -> Field:
    hull = _polygon((-0.95, 0.35), (0.95, 0.35), (0.55, 0.85), (-0.55, 0.85))
    return _any(
        hull, _polygon((0.05, -0.95), (0.05, 0.2), (0.75, 0.2)), _line(0, -0.9, 0, 0.4, 0.06)
    )


def _key() -> Field:
    bow = _without(_circle(-0.55, 0, 0.42), _circle(-0.55, 0, 0.2))
    return _any(
        bow, _line(-0.2, 0, 0.9, 0, 0.11), _box(0.8, 0.2, 0.09, 0.2), _box(0.5, 0.17, 0.09, 0.17)
    )


def _crown() -> Field:
    return _polygon((-0.9, 0.6), (-0.95, -0.5), (-0.45, 0.0), (0, -0.8), (0.45, 0.0), (0.95, -0.5),
                    (0.9, 0.6))  # fmt: skip


def _bell() -> Field:
    dome = _any(
        _circle(0, -0.25, 0.55), _polygon((-0.55, -0.2), (0.55, -0.2), (0.85, 0.55), (-0.85, 0.55))
    )
    return _any(dome, _circle(0, 0.72, 0.2), _circle(0, -0.85, 0.12))


def _cup() -> Field:
    bowl = _polygon((-0.75, -0.7), (0.5, -0.7), (0.35, 0.8), (-0.6, 0.8))
    handle = _without(_circle(0.55, -0.05, 0.42), _circle(0.55, -0.05, 0.22))
    return _any(bowl, handle)


def _flag() -> Field:
    cloth = _polygon((-0.5, -0.9), (0.85, -0.65), (0.55, -0.3), (0.85, 0.05), (-0.5, 0.1))
    return _any(cloth, _line(-0.6, -0.9, -0.6, 0.95, 0.1))


SHAPES: dict[str, Callable[[], Field]] = {
    "ball": lambda: _circle(0, 0, 0.8),
    "tree": _tree,
    "star": lambda: _rays(5, 1.0, 0.42),
    "house": _house,
    "flower": _flower,
    "car": _car,
    "box": lambda: _box(0, 0, 0.7, 0.7),
    "heart": _heart,
    "ring": lambda: _without(_circle(0, 0, 0.85), _circle(0, 0, 0.45)),
    "fish": _fish,
    "arrow": lambda: _any(_polygon((0.95, 0), (0.2, -0.7), (0.2, 0.7)), _box(-0.35, 0, 0.6, 0.25)),
    "boat": _boat,
    "cup": _cup,
    "flag": _flag,
    "drop": lambda: _any(_circle(0, 0.3, 0.55), _polygon((0, -1.0), (-0.48, 0.05), (0.48, 0.05))),
    "mushroom": _mushroom,
    "kite": lambda: _polygon((0, -1.0), (0.6, -0.2), (0, 1.0), (-0.6, -0.2)),
    "bell": _bell,
    "umbrella": _umbrella,
    "crown": _crown,
    "key": _key,
    "gear": _gear,
    "anchor": _anchor,
}
"""What a scene may hold, the more frequent first."""

_CLUTTER: tuple[Callable[[], Field], ...] = (
    lambda: _circle(0, 0, 0.8),
    lambda: _line(-0.9, 0, 0.9, 0, 0.18),
    lambda: _polygon((-0.8, 0.5), (0.1, -0.8), (0.8, 0.4)),
)


@lru_cache(maxsize=1)
def fields() -> Field:
    """All shapes (things, CELLS, CELLS), in the order of SHAPES; then pebbles, sticks, shards."""
    made = [make() for make in (*SHAPES.values(), *_CLUTTER)]
    return np.stack(made).astype(np.float32)
