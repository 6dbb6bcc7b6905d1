"""Operations on batches of images as bytes, with Pillow's results, on any device.

Every function takes uint8 images (B, 3, S, S) and gives new ones; what it needs to know of each
image comes as numpy arrays, because it is known on the host and nothing here waits for the device.
The maths is on integers, or on floats in an order of its own, so that an image comes out the same
on every device and in every batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FILL = 128  # what is seen outside the image
POINT = 16  # bits after the point of a coordinate, as in Pillow


def on(images: Tensor, values: npt.NDArray[Any]) -> Tensor:
    """Numbers of the host, where the images are."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(images.device, non_blocking=True)


def by_host(images: Tensor) -> bool:
    """Whether to take the way that is faster on a CPU, image by image; the result is the same."""
    return images.device.type == "cpu"


def flipped(images: Tensor, which: npt.NDArray[np.bool_]) -> Tensor:
    """Mirror some of the images, left to right."""
    if which.all():
        return images.flip(3)
    return torch.where(on(images, which)[:, None, None, None], images.flip(3), images)


def painted(images: Tensor, boxes: Ints, colours: npt.NDArray[np.uint8]) -> Tensor:
    """Paint a rectangle into each image.

    Args:
        images: uint8 (B, 3, S, S).
        boxes: (B, 4): top, bottom, left, right; bottom and right are the first left alone.
        colours: (B, 3).
    """
    if by_host(images):
        out = images.clone()
        for image, box, colour in zip(out.numpy(), boxes.tolist(), colours, strict=True):
            top, bottom, left, right = box
            image[:, top:bottom, left:right] = colour[:, None, None]
        return out
    top, bottom, left, right = on(images, boxes)[:, :, None].unbind(1)
    place = torch.arange(images.shape[-1], device=images.device)
    rows, columns = (place >= top) & (place < bottom), (place >= left) & (place < right)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, on(images, colours)[:, :, None, None], images)


def looked_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace each byte by its entry in the tables: uint8 (B, 3, 256), or (B, 1, 256)."""
    tables = tables.expand(-1, 3, -1)
    if not by_host(images):
        return tables.gather(2, images.flatten(2).long()).view_as(images)
    # Faster than any indexing: bytes.translate is one plain loop.
    planes, entries = images.flatten(0, 1).numpy(), tables.flatten(0, 1).numpy()
    pairs = zip(planes, entries, strict=True)
    new = bytearray().join([plane.tobytes().translate(entry.tobytes()) for plane, entry in pairs])
    return torch.frombuffer(new, dtype=torch.uint8).view_as(images)


def histograms(images: Tensor) -> Tensor:
    """How often each byte occurs in each channel: int64 (B, 3, 256)."""
    planes = images.flatten(0, 1).flatten(1)
    if by_host(images):
        counts = np.stack([np.bincount(plane, minlength=256) for plane in planes.numpy()])
        return torch.from_numpy(counts).view(-1, 3, 256)
    first = 256 * torch.arange(len(planes), device=images.device)[:, None]
    where = (planes + first).flatten()
    total = torch.zeros(256 * len(planes), dtype=torch.int64, device=images.device)
    return total.scatter_add_(0, where, torch.ones_like(where)).view(-1, 3, 256)


def grey(images: Tensor) -> Tensor:
    """The brightness of each pixel as Pillow's mode L has it: int32 (B, 1, S, S)."""
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def smooth(images: Tensor) -> Tensor:
    """The image under Pillow's SMOOTH filter, as floats; the outermost pixels stay."""
    values = images.to(torch.int16)
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    around += 4 * values[:, :, 1:-1, 1:-1]
    values[:, :, 1:-1, 1:-1] = around.float().div_(13).add_(0.5)  # never near a whole number
    return values.float()


def blended(dull: Tensor, vivid: Tensor, factor: Tensor) -> Tensor:
    """``dull + factor * (vivid - dull)`` in floats, cut to bytes as Pillow cuts it."""
    change = vivid - dull
    change *= factor  # three steps: fused they would round differently on some devices
    change += dull
    return to_bytes(change)


def shifted(images: Tensor, right: Ints, down: Ints) -> Tensor:
    """Shift whole pixels: pixel (x, y) comes from (x + right, y + down), or is filled."""
    if not by_host(images):
        zero, one = np.zeros_like(right), np.ones_like(right)
        return moved(images, np.stack([one, zero, right, zero, one, down], axis=1) << POINT)
    size = images.shape[-1]
    out = torch.full_like(images, FILL)
    for target, image, x, y in zip(out, images, right.tolist(), down.tolist(), strict=True):
        part = image[:, max(y, 0) : max(size + y, 0), max(x, 0) : max(size + x, 0)]
        target[:, max(-y, 0) : max(size - y, 0), max(-x, 0) : max(size - x, 0)] = part
    return out


def moved(images: Tensor, matrix: Ints) -> Tensor:
    """Take each pixel from another place, or fill it.

    Args:
        images: uint8 (B, 3, S, S).
        matrix: (B, 6) fixed-point numbers a, b, c, d, e, f: pixel (x, y) comes from
            (a x + b y + c, d x + e y + f).
    """
    size = images.shape[-1]
    a, b, c, d, e, f = on(images, matrix.astype(np.int32))[:, :, None, None].unbind(1)
    place = torch.arange(size, dtype=torch.int32, device=images.device)
    x = (a * place + b * place[:, None] + c) >> POINT
    y = (d * place + e * place[:, None] + f) >> POINT
    near_x, near_y = x.clamp(0, size - 1), y.clamp(0, size - 1)
    where = (near_y * size + near_x).long().flatten(1)[:, None].expand(-1, 3, -1)
    found = images.flatten(2).gather(2, where).view_as(images)
    return _filled(found, ((near_x == x) & (near_y == y))[:, None])


def sheared(images: Tensor, slopes: Floats) -> Tensor:
    """Shift each row by a slope times its height; cubic between four neighbours, as Pillow."""
    size = images.shape[-1]
    shift = slopes[:, None] * (np.arange(size) + 0.5)
    whole = np.floor(shift)
    place = torch.arange(-1, size + 2, device=images.device)
    columns = on(images, whole.astype(np.int64))[:, :, None] + place
    columns = columns.clamp_(0, size - 1)[:, None].expand(-1, 3, -1, -1)
    taken = images.gather(3, columns).float()
    before, here, after, beyond = (taken[..., k : k + size] for k in range(4))
    # By differences: exact where all four are equal.
    part = (shift - whole)[:, None, :, None]
    weights = (
        part * (-1 + part * (2 - part)),
        part * (1 + part * (1 - part)),
        part**2 * (part - 1),
    )
    value = here
    for weight, other in zip(weights, (before, after, beyond), strict=True):
        value = torch.addcmul(value, on(images, weight.astype(np.float32)), other - here)
    source = on(images, np.floor(shift + 0.5).astype(np.int32))[:, :, None] + place[1:-2].int()
    return _filled(to_bytes(value), (source.clamp(0, size - 1) == source)[:, None])


def to_bytes(values: Tensor) -> Tensor:
    """Floats, cut to bytes; through int16, which is three times as fast on a CPU."""
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def _filled(images: Tensor, inside: Tensor) -> Tensor:
    """FILL all that is not inside, by bits: a fifth of the time of torch.where on a CPU."""
    mask = inside.to(torch.uint8).neg_()
    return (images & mask) | (~mask & FILL)
