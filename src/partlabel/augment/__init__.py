"""What is done to training images: drawn by key, so that an image's fate is its own.

Drawing is apart from doing. A draw depends on (seed, epoch, row of the image) alone, never on
workers, processes or the other images of a batch; what was drawn is then done to one image on the
CPU or to a batch on any device, with the same result.
"""

from __future__ import annotations

import random
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from partlabel.augment.pixels import Ints, flipped, on, painted, to_bytes
from partlabel.augment.randaugment import LEVELS, NOTHING, OPERATIONS, Chosen, rand_augment, squares
from partlabel.draw import Keys, mix, seed_key
from partlabel.errors import UsageError, suggest
from partlabel.vision import load

AUGMENTS = ("none", "flip", "crop", "paper", "timm")

Box = tuple[float, float, float, float]

_STEP = np.uint64(0x9E3779B97F4A7C15)  # between the numbers of one image, as in splitmix64
_TIMM = "rand-m9-mstd0.5"
_AREAS = {"crop": (0.75, 1.0), "timm": (0.08, 1.0)}  # shares of the image that a crop keeps
_RATIO = 4 / 3  # a crop is at most so much wider or higher than the image's own shape


@dataclass(frozen=True)
class Draws:
    """What happens to some images, one row each."""

    key: Keys
    flip: npt.NDArray[np.bool_]
    crop: npt.NDArray[np.float64] | None
    """(B, 4): left, top, width, height, as shares of the image."""
    cutout: Ints | None
    """(B, 4): top, bottom, left, right, in pixels."""
    colour: npt.NDArray[np.uint8]
    """(B, 3), of the cutout."""
    chosen: Chosen

    def __len__(self) -> int:
        return len(self.key)

    def of(self, rows: Any) -> Draws:
        """The draws of some of the images."""
        return Draws(
            self.key[rows],
            self.flip[rows],
            None if self.crop is None else self.crop[rows],
            None if self.cutout is None else self.cutout[rows],
            self.colour[rows],
            Chosen(*(part[rows] for part in self.chosen)),
        )


@dataclass(frozen=True)
class Augment:
    """An augmentation by name.

    ``none``   nothing
    ``flip``   half of the images, left to right
    ``crop``   a random 75 to 100 % of the image, its shape changed by up to 4:3, and flip
    ``paper``  Cutout, then the RandAugment of the paper's code; no flip
    ``timm``   a crop of 8 to 100 %, flip, and timm's RandAugment (rand-m9-mstd0.5)

    Args:
        name: One of AUGMENTS.
        seed: Of all draws.
        size: Side of the images.
        flip: Flip also where the name does not say so.
        cutout: For ``paper``: side of the rectangle as a share of the image's; 0 for none.
        rand_ops: For ``paper``: how many operations of RandAugment are drawn.

    Example:
        >>> augment = Augment("paper", seed=0, size=32)
        >>> draws = augment.draw(epoch=3, rows=np.array([7, 2]))
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> bool((augment.one(images[1], draws, 1) == augment.batch(images, draws)[1]).all())
        True
    """

    name: str
    _: KW_ONLY
    seed: int
    size: int
    flip: bool = False
    cutout: float = 0.5
    rand_ops: int = 2

    def __post_init__(self) -> None:
        if self.name not in AUGMENTS:
            raise UsageError(f"no augmentation {self.name!r}; {suggest(self.name, AUGMENTS)}")
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not 0 <= self.cutout <= 1:
            raise ValueError(f"cutout must be in 0..1, got {self.cutout}")
        if self.rand_ops < 0:
            raise ValueError(f"rand_ops must not be negative, got {self.rand_ops}")

    def draw(self, epoch: int, rows: npt.NDArray[Any]) -> Draws:
        """Draw what happens to images in an epoch, from the keys of seed, epoch and row."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"rows must be integers in one dimension, got {rows.dtype}")
        key = mix(np.array([epoch], np.uint64) + seed_key(self.seed, "augment"))
        stream = _Stream(mix(mix(rows.astype(np.uint64)) + key))
        # All is drawn, whatever the name: no option changes what another draws.
        flip = stream.below(2) == 1
        area, ratio, left, top = (stream.uniform() for _ in range(4))
        centre_x, centre_y = stream.below(self.size), stream.below(self.size)
        colour = np.stack([stream.below(256) for _ in range(3)], axis=1).astype(np.uint8)
        has_flip = self.flip or self.name in ("flip", "crop", "timm")
        bounds = _AREAS.get(self.name)
        cutout = None
        if self.name == "paper" and self.cutout:
            side = np.array(int(self.cutout * self.size + 0.5))
            cutout = squares(centre_x, centre_y, side, self.size)
        return Draws(
            stream.keys,
            flip & has_flip,
            None if bounds is None else _boxes(area, ratio, left, top, bounds),
            cutout,
            colour,
            _choose(stream, self.rand_ops if self.name == "paper" else 0, self.size),
        )

    def crop(self, draws: Draws, i: int) -> Box | None:
        """The part of image i that ``decode`` takes: left, top, width, height as shares."""
        if draws.crop is None:
            return None
        left, top, width, height = draws.crop[i].tolist()
        return left, top, width, height

    def one(self, image: Tensor, draws: Draws, i: int) -> Tensor:
        """Do to a decoded (and cropped) image what was drawn for it.

        Args:
            image: uint8 (3, S, S) on the CPU; it stays as it is.
            draws: From :meth:`draw`.
            i: Which of the draws.
        """
        if self.name == "timm":
            image = image.flip(2) if draws.flip[i] else image
            return _timm_one(image, int(draws.key[i]))
        return self._done(image[None], draws.of(slice(i, i + 1)))[0]

    def batch(self, images: Tensor, draws: Draws, *, cropped: bool = False) -> Tensor:
        """Do to images what was drawn for them.

        On the CPU the bytes are those of :meth:`one`. Another device may round a shear otherwise,
        by 1 of 255.

        Args:
            images: uint8 (B, 3, S, S) on any device; they stay as they are.
            draws: From :meth:`draw`, as many.
            cropped: ``decode`` has cropped them; else that is done here.
        """
        if self.name == "timm":
            raise UsageError("augment 'timm' works on images one by one; choose 'paper' or 'crop'")
        if images.ndim != 4 or len(images) != len(draws):
            shape = tuple(images.shape)
            raise ValueError(f"images must be ({len(draws)}, 3, S, S) as the draws, got {shape}")
        if draws.crop is not None and not cropped:
            images = _cropped(images, draws.crop)
        return self._done(images, draws)

    def _done(self, images: Tensor, draws: Draws) -> Tensor:
        if images.dtype != torch.uint8 or images.shape[1:] != (3, self.size, self.size):
            what = f"{images.dtype} {tuple(images.shape[1:])}"
            raise ValueError(f"images must be uint8 (3, {self.size}, {self.size}), got {what}")
        images = images.contiguous()
        if draws.flip.any():
            images = flipped(images, draws.flip)
        if draws.cutout is not None:
            images = painted(images, draws.cutout, draws.colour)
        return rand_augment(images, draws.chosen)


class _Stream:
    """Number after number for each of many keys."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._at = keys.copy()

    def _next(self) -> Keys:
        self._at += _STEP
        return mix(self._at)

    def uniform(self) -> npt.NDArray[np.float64]:
        """In 0 <= x < 1."""
        return (self._next() >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int) -> Ints:
        """Whole, in 0 <= x < bound."""
        scaled = (self._next() >> np.uint64(32)) * np.uint64(bound)
        return (scaled >> np.uint64(32)).astype(np.int64)


def _choose(stream: _Stream, count: int, size: int) -> Chosen:
    slots = []
    for _ in range(count):
        applied = stream.below(2) == 1
        operation = np.where(applied, stream.below(len(OPERATIONS)), NOTHING)
        level, sign = 1 + stream.below(LEVELS - 1), 2 * stream.below(2) - 1
        slots.append((operation, level, sign, stream.below(size), stream.below(size)))
    parts = np.array(slots, np.int64).reshape(count, len(Chosen._fields), len(stream.keys))
    return Chosen(*parts.transpose(1, 2, 0))


def _boxes(
    area: npt.NDArray[np.float64],
    ratio: npt.NDArray[np.float64],
    left: npt.NDArray[np.float64],
    top: npt.NDArray[np.float64],
    bounds: tuple[float, float],
) -> npt.NDArray[np.float64]:
    """Crops from numbers in 0..1; where one side would exceed the image, the other makes up."""
    low, high = bounds
    area = low + (high - low) * area
    ratio = _RATIO ** (2 * ratio - 1)
    width = np.clip(np.sqrt(area * ratio), area, 1)
    height = area / width
    return np.stack([left * (1 - width), top * (1 - height), width, height], axis=1)


def _cropped(images: Tensor, boxes: npt.NDArray[np.float64]) -> Tensor:
    """Enlarge a part of each image to the whole."""
    size = images.shape[-1]
    left, top, width, height = on(images, boxes.astype(np.float32))[:, :, None].unbind(1)
    # Middles of pixels, in grid_sample's -1..1.
    place = (torch.arange(size, dtype=torch.float32, device=images.device) + 0.5) / size
    x, y = 2 * (left + width * place) - 1, 2 * (top + height * place) - 1
    grid = torch.stack([x[:, None].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=3)
    taken = grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return to_bytes(taken.add_(0.5))


def _timm_one(image: Tensor, key: int) -> Tensor:
    """RandAugment of timm, which draws from the global generators: they are lent a state."""
    from PIL import Image

    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002
    try:
        picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
        done = np.array(_timm_transform(image.shape[-1])(picture))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
    return torch.from_numpy(done).permute(2, 0, 1).contiguous()


@lru_cache(maxsize=8)
def _timm_transform(size: int) -> Any:
    settings = {"translate_const": int(size * 0.45), "img_mean": (124, 116, 104)}
    return load("timm.data.auto_augment").rand_augment_transform(_TIMM, settings)
