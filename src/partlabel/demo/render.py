"""Scenes as pictures of 64 x 64 pixels: ground, sky, clutter, things with smooth edges, noise."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.demo.scenes import COLOURS, MOST, PATTERNS, PLACES, Scenes
from partlabel.demo.shapes import CELLS, REACH, SHAPES, fields

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]

SIZE = 64
_PATCH = 36  # pixels across the square that a thing is drawn in
_BIT = 12  # and a piece of clutter
_EDGE = _PATCH // 2  # room around the picture, so that nothing has to be cut off
_INSIDE = (..., slice(_EDGE, _EDGE + SIZE), slice(_EDGE, _EDGE + SIZE))
_CLUTTER = 4  # pieces behind things, and one before them
_TILES = 64  # different tiles of noise

_PAINT = {
    "red": (0.86, 0.16, 0.15), "blue": (0.15, 0.32, 0.88), "yellow": (0.96, 0.84, 0.15),
    "white": (0.95, 0.95, 0.93), "green": (0.10, 0.62, 0.25), "black": (0.09, 0.09, 0.10),
    "orange": (0.96, 0.52, 0.08), "purple": (0.56, 0.18, 0.72),
}  # fmt: skip
_GROUND = {
    "grass": (0.42, 0.58, 0.30), "road": (0.46, 0.45, 0.46), "floor": (0.58, 0.46, 0.36),
    "sand": (0.84, 0.76, 0.58), "water": (0.38, 0.55, 0.66), "snow": (0.86, 0.89, 0.93),
}  # fmt: skip
_SKIES = ((0.50, 0.68, 0.90), (0.72, 0.74, 0.78))  # clear and overcast, and all between
_WALLS = ((0.78, 0.68, 0.56), (0.58, 0.68, 0.78))
_NIGHT = np.array((0.82, 0.90, 1.20), np.float32)
_TINT = 0.24  # how far the colours of grounds vary
_SEA = np.array((0.38, 0.55, 0.66), np.float32)
_MUTED = np.array(
    ((0.45, 0.40, 0.36), (0.60, 0.57, 0.52), (0.34, 0.38, 0.35), (0.55, 0.50, 0.56)), np.float32
)


def render(scenes: Scenes) -> Images:
    """The pictures of some scenes, uint8 (scenes, 64, 64, 3)."""
    canvas = _background(scenes)  # colours first: with them last every operation is slower
    _scatter(canvas, scenes, range(_CLUTTER - 1))
    _draw_things(canvas, scenes)
    _scatter(canvas, scenes, range(_CLUTTER - 1, _CLUTTER))
    dark = np.clip((1 - scenes.light) / 0.5, 0, 1)[:, None]  # in the dark all is blue
    light = 255 * scenes.light[:, None] * (1 + dark * (_NIGHT - 1))
    camera = scenes.looks[:, MOST + 1]  # its exposure and white balance
    light *= (0.75 + 0.4 * camera[:, 3:4]) * (0.92 + 0.16 * camera[:, 4:7])
    picture = canvas[_INSIDE] * light[..., None, None]
    picture += _sensor_noise()[(scenes.looks[:, MOST, 7] * _TILES).astype(np.int64)]
    np.clip(picture, 0, 255, out=picture)
    return np.ascontiguousarray(picture.astype(np.uint8).transpose(0, 2, 3, 1))


def _background(scenes: Scenes) -> Floats:
    """Sky or wall above, ground below the horizon, (scenes, 3, side, side)."""
    looks = scenes.looks[:, MOST]
    side = SIZE + 2 * _EDGE
    canvas = np.zeros((len(looks), 3, side, side), np.float32)
    grounds = np.array([_GROUND[ground] for _, ground, _ in PLACES.values()], np.float32)
    roof = np.array([roofed for _, _, roofed in PLACES.values()])[scenes.place]
    one, other = np.array((_SKIES, _WALLS), np.float32)[roof.astype(np.int64)].swapaxes(0, 1)
    at = (np.arange(SIZE, dtype=np.float32) + 0.5) / SIZE
    down = np.minimum(at / scenes.horizon[:, None], 1)
    sky = (one + looks[:, 4:5] * (other - one))[..., None] * (0.92 + 0.16 * down[:, None])
    ground = grounds[scenes.place] * (0.85 + 0.3 * looks[:, :1])
    ground = ground + _TINT * (scenes.looks[:, MOST + 1, :3] - 0.5)
    # The ground begins along a line that is a little aslant.
    slope = 0.25 * (looks[:, 1:2] - 0.5) * ~roof[:, None]
    depth = at[:, None] - (scenes.horizon[:, None] + slope * (at - 0.5))[:, None]
    below = np.clip(depth * SIZE + 0.5, 0, 1)[:, None]
    inside = canvas[_INSIDE]
    inside[:] = sky[..., None]
    beach = np.flatnonzero(scenes.place == list(PLACES).index("beach"))
    strip = 0.10 + 0.08 * looks[beach, 2]  # the sea lies between sky and sand
    wet = np.clip((depth[beach] + strip[:, None, None]) * SIZE + 0.5, 0, 1)[:, None]
    inside[beach] += wet * (_SEA[:, None, None] - inside[beach])
    rough = _smooth_noise()[(looks[:, 3] * _TILES).astype(np.int64)][:, None]
    inside *= 1 - below
    inside += below * ground[..., None, None]
    inside *= 1 + (0.10 + 0.30 * below) * rough
    return canvas


def _scatter(canvas: Floats, scenes: Scenes, which: range) -> None:
    """Clutter that no label tells of: pebbles, sticks and shards."""
    looks = scenes.looks[:, which.start : which.stop].reshape(-1, 8)
    scene = np.repeat(np.arange(len(canvas)), len(which))
    kind = len(SHAPES) + (looks[:, 6] * 2.999).astype(np.int64)
    away, _, _ = _distances(kind, 2.0 + 3.0 * looks[:, 0], 2 * np.pi * looks[:, 1], _BIT)
    cover = np.clip(0.5 - away, 0, 1)
    colour = _MUTED[(looks[:, 7] * 3.999).astype(np.int64)]
    middle = _EDGE + SIZE * np.stack([0.05 + 0.9 * looks[:, 4], 0.25 + 0.7 * looks[:, 5]], -1)
    _put(canvas, scene, middle, cover[:, None] * colour[..., None, None], cover)


def _draw_things(canvas: Floats, scenes: Scenes) -> None:
    there = np.arange(MOST) < scenes.many[:, None]
    scene = np.nonzero(there)[0]
    looks, cell = scenes.looks[:, :MOST][there], scenes.cell[there]
    radius = 10.5 + 5.5 * looks[:, 0]
    away, x, y = _distances(scenes.thing[there], radius, 0.8 * (looks[:, 1] - 0.5), _PATCH)
    cover = np.clip(0.5 - away, 0, 1)
    paint = np.array([_PAINT[name] for name in COLOURS], np.float32)[scenes.colour[there]]
    paint = paint * (0.75 + 0.25 * looks[:, 2:3]) + 0.28 * (looks[:, 3:6] - 0.5)
    shade = _shade(x, y, scenes.pattern[there], looks[:, 6])
    shade *= 1 - 0.14 * y  # light comes from above
    shade *= np.clip(0.5 - away * 0.4, 0.55, 1)  # and an edge sets things off from the ground
    jitter = np.stack([looks[:, 7], (looks[:, 6] * 7) % 1], -1) - 0.5
    middle = _EDGE + SIZE / 2 + 27 * (np.stack([cell % 2, cell // 2], -1) - 0.5) + 12 * jitter
    shade *= cover
    _put(canvas, scene, middle, shade[:, None] * paint[..., None, None], cover)


def _distances(
    kind: npt.NDArray[np.int64], radius: Floats, turn: Floats, size: int
) -> tuple[Floats, Floats, Floats]:
    """How far each pixel of a square is from the edge of a shape, in pixels; and where it is.

    Where is in units of the shape's own radius, before it was turned.
    """
    at = np.arange(size, dtype=np.float32) - np.float32(size / 2 - 0.5)
    cos, sin = (f(turn) / radius for f in (np.cos, np.sin))
    across, down = (at[None, None, :], at[None, :, None])
    x = cos[:, None, None] * across + sin[:, None, None] * down
    y = cos[:, None, None] * down - sin[:, None, None] * across
    scale = np.float32((CELLS - 1) / (2 * REACH))
    column, row = (
        np.clip((each + np.float32(REACH)) * scale + np.float32(0.5), 0, CELLS - 1).astype(np.int32)
        for each in (x, y)
    )
    row *= CELLS
    row += column
    row += (kind * (CELLS * CELLS)).astype(np.int32)[:, None, None]
    away = fields().reshape(-1).take(row)
    away *= radius[:, None, None]
    return away, x, y


def _shade(x: Floats, y: Floats, pattern: npt.NDArray[np.int64], phase: Floats) -> Floats:
    """How bright a thing is at each pixel: plain, or in a pattern of bright and dark."""
    shade = np.ones_like(x)
    names = list(PATTERNS)
    waves = np.float32(2 * np.pi * 1.6)
    for name in names[1:]:
        which = np.flatnonzero(pattern == names.index(name))
        start = (2 * np.pi * phase[which])[:, None, None]
        u, v = waves * x[which] + start, waves * y[which] + start
        if name == "striped":
            wave = np.sin(u + v)
        elif name == "dotted":
            wave = 1.4 - 2 * (np.cos(u) + np.cos(v))
        else:
            wave = 3 * np.sin(u) * np.sin(v)
        shade[which] -= 0.5 * np.clip(0.5 - wave, 0, 1)
    return shade


def _put(
    canvas: Floats,
    scene: npt.NDArray[np.int64],
    middle: npt.NDArray[Any],
    painted: Floats,
    cover: Floats,
) -> None:
    """Lay squares over pictures, one after the other; later ones hide earlier ones."""
    clear = 1 - cover
    size = cover.shape[1]
    corner = np.round(middle - size / 2).astype(np.int64).tolist()
    for number, (picture, (left, top)) in enumerate(zip(scene.tolist(), corner, strict=True)):
        under = canvas[picture, :, top : top + size, left : left + size]
        under *= clear[number]
        under += painted[number]


@lru_cache(maxsize=1)
def _smooth_noise() -> Floats:
    """Tiles of noise as grounds have it: coarse and fine, (tiles, 64, 64), around 0."""
    noise = np.random.default_rng(1).standard_normal((_TILES, SIZE, SIZE)).astype(np.float32)
    waves = np.hypot(*np.meshgrid(np.fft.fftfreq(SIZE), np.fft.rfftfreq(SIZE), indexing="ij"))
    soft = np.fft.irfft2(np.fft.rfft2(noise) / (0.03 + waves), s=(SIZE, SIZE))
    soft /= 3 * soft.std(axis=(1, 2), keepdims=True)
    return np.asarray(soft, np.float32)


@lru_cache(maxsize=1)
def _sensor_noise() -> Floats:
    """Tiles of noise as cameras have it, in units of pixel values."""
    noise = np.random.default_rng(2).standard_normal((_TILES, 3, SIZE, SIZE))
    return (7 * noise).astype(np.float32)
