"""The RandAugment of the paper's code: two of fifteen operations, each with probability 0.5.

The paper trains with the registry's package ``randaugment`` 1.0.2 (after UDA), which draws an
operation and a level of 1 to 9, and does it with Pillow. The operations here give the same bytes;
only shears may differ, by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partlabel.augment.pixels import (
    POINT,
    Ints,
    blended,
    grey,
    histograms,
    looked_up,
    moved,
    on,
    painted,
    sheared,
    shifted,
    smooth,
)

LEVELS = 10
NOTHING = -1

_CUTOUT_SIDES = np.round(np.linspace(0, 20, LEVELS)).astype(np.int64)
_CUTOUT_COLOUR = np.array([[125, 122, 113]], np.uint8)
_FACTORS = np.linspace(0, 0.9, LEVELS)  # added to or taken from 1
_BITS = np.round(np.linspace(8, 4, LEVELS)).astype(np.int64)
_THRESHOLDS = np.linspace(256, 0, LEVELS)
_SLOPES = np.linspace(0, 0.3, LEVELS)
_SHIFTS = np.linspace(0, 150 / 331, LEVELS)  # shares of the side
_DEGREES = np.linspace(0, 30, LEVELS)


class Chosen(NamedTuple):
    """What is done to some images: arrays (images, operations)."""

    operation: Ints
    """Index into OPERATIONS, or NOTHING."""
    level: Ints
    sign: Ints
    """-1 or 1, for operations that go both ways."""
    x: Ints
    y: Ints
    """The middle of the small cutout, in pixels."""

    def of(self, rows: Any, slot: int) -> Chosen:
        """One operation of some images."""
        return Chosen(*(part[rows, slot] for part in self))


def rand_augment(images: Tensor, chosen: Chosen) -> Tensor:
    """Do what was chosen to uint8 images (B, 3, S, S); the given ones stay as they are."""
    out = images
    for slot in range(chosen.operation.shape[1]):
        kernels = _KERNEL_OF[chosen.operation[:, slot]]
        for which in np.unique(kernels[kernels >= 0]):
            rows = np.flatnonzero(kernels == which)
            part = chosen.of(rows, slot)
            if len(rows) == len(images):
                out = _KERNELS[which](out, part)
                continue
            if out is images:
                out = images.clone()
            index = on(images, rows)
            out[index] = _KERNELS[which](out[index], part)
    return out


def squares(x: Ints, y: Ints, sides: Ints, size: int) -> Ints:
    """The boxes (top, bottom, left, right) of squares around points, cut at the borders."""
    half = sides // 2
    edges = np.stack([y - half, y + half, x - half, x + half], axis=1)
    return np.clip(edges, 0, size)


def _cutout(images: Tensor, chosen: Chosen) -> Tensor:
    boxes = squares(chosen.x, chosen.y, _CUTOUT_SIDES[chosen.level], images.shape[-1])
    return painted(images, boxes, np.repeat(_CUTOUT_COLOUR, len(images), axis=0))


def _fixed(images: Tensor, chosen: Chosen) -> Tensor:
    tables = _fixed_tables()[chosen.operation, chosen.level, (chosen.sign + 1) // 2]
    return looked_up(images, on(images, tables)[:, None])


@lru_cache(maxsize=1)
def _fixed_tables() -> npt.NDArray[np.uint8]:
    """What becomes of each byte, by operation, level and sign, where no image changes that."""
    value = np.arange(256)
    tables = np.zeros((len(OPERATIONS), LEVELS, 2, 256), np.uint8)
    tables[OPERATIONS.index("invert")] = 255 - value
    for level in range(LEVELS):
        tables[OPERATIONS.index("posterize"), level] = value & -(1 << (8 - _BITS[level])) & 255
        solarized = np.where(value < _THRESHOLDS[level], value, 255 - value)
        tables[OPERATIONS.index("solarize"), level] = solarized
        for sign in (-1, 1):
            factor = _factors(np.array([level]), np.array([sign]))
            bright = np.clip(value.astype(np.float32) * factor, 0, 255)
            tables[OPERATIONS.index("brightness"), level, (sign + 1) // 2] = bright
    return tables


def _contrast(images: Tensor, chosen: Chosen) -> Tensor:
    light = grey(images)
    count = light[0].numel()
    mean = (2 * light.sum((1, 2, 3)) + count) // (2 * count)
    value = torch.arange(256, dtype=torch.float32, device=images.device)
    factor = on(images, _factors(chosen.level, chosen.sign))
    return looked_up(images, blended(mean.float()[:, None], value, factor[:, None])[:, None])


def _autocontrast(images: Tensor, chosen: Chosen) -> Tensor:
    planes = images.flatten(2)
    low, high = planes.amin(2, keepdim=True).double(), planes.amax(2, keepdim=True).double()
    value = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = torch.full_like(low, 255.0) / (high - low)  # a number / a tensor is less exact
    table = (value * scale + -low * scale).clamp_(0, 255)
    return looked_up(images, torch.where(high > low, table, value).to(torch.uint8))


def _equalize(images: Tensor, chosen: Chosen) -> Tensor:
    counts = histograms(images)
    value = torch.arange(256, device=images.device)
    last = torch.where(counts > 0, value, 0).amax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, last)) // 255
    before = counts.cumsum(2) - counts + step // 2
    table = (before // step.clamp(min=1)).clamp_(max=255)
    return looked_up(images, torch.where(step > 0, table, value).to(torch.uint8))


def _color(images: Tensor, chosen: Chosen) -> Tensor:
    return _blended(grey(images).float(), images, chosen)


def _sharpness(images: Tensor, chosen: Chosen) -> Tensor:
    return _blended(smooth(images), images, chosen)


def _blended(dull: Tensor, images: Tensor, chosen: Chosen) -> Tensor:
    factor = on(images, _factors(chosen.level, chosen.sign))
    return blended(dull, images.float(), factor[:, None, None, None])


def _factors(level: Ints, sign: Ints) -> npt.NDArray[np.float32]:
    return (1 + _FACTORS[level] * sign).astype(np.float32)


def _shear_x(images: Tensor, chosen: Chosen) -> Tensor:
    return sheared(images, _SLOPES[chosen.level] * chosen.sign)


def _shear_y(images: Tensor, chosen: Chosen) -> Tensor:
    turned = images.transpose(2, 3).contiguous()
    return _shear_x(turned, chosen).transpose(2, 3).contiguous()


def _translate(images: Tensor, chosen: Chosen) -> Tensor:
    share = _SHIFTS[chosen.level] * chosen.sign
    pixels = np.floor(share * images.shape[-1] + 0.5).astype(np.int64)
    sideways = chosen.operation == OPERATIONS.index("translate_x")
    return shifted(images, np.where(sideways, pixels, 0), np.where(sideways, 0, pixels))


def _rotate(images: Tensor, chosen: Chosen) -> Tensor:
    """Always to the same side, as in the package."""
    return moved(images, _turns(images.shape[-1])[chosen.level])


@lru_cache(maxsize=8)
def _turns(size: int) -> Ints:
    """By level: where pixels come from in Pillow's rotate, as fixed-point numbers."""
    turns = []
    for degrees in _DEGREES:
        angle = -math.radians(degrees)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        middle = size / 2 - 0.5  # of the pixels' own middles
        x = size / 2 - (cos + sin) * middle
        y = size / 2 + (sin - cos) * middle
        turns.append([math.floor(v * (1 << POINT) + 0.5) for v in (cos, sin, x, -sin, cos, y)])
    return np.array(turns, np.int64)


_KERNEL: dict[str, Callable[[Tensor, Chosen], Tensor]] = {
    "invert": _fixed,
    "cutout": _cutout,
    "sharpness": _sharpness,
    "autocontrast": _autocontrast,
    "posterize": _fixed,
    "shear_x": _shear_x,
    "translate_x": _translate,
    "translate_y": _translate,
    "shear_y": _shear_y,
    "rotate": _rotate,
    "equalize": _equalize,
    "contrast": _contrast,
    "color": _color,
    "solarize": _fixed,
    "brightness": _fixed,
}
OPERATIONS = tuple(_KERNEL)
_KERNELS = tuple(dict.fromkeys(_KERNEL.values()))
# By operation the number of its kernel; NOTHING (-1) finds the last entry.
_KERNEL_OF = np.array([*(_KERNELS.index(kernel) for kernel in _KERNEL.values()), NOTHING])
