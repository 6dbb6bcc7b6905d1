"""Images read and decoded batch by batch, by workers or here; what cannot be read is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from partlabel.images import ImageError, decode
from partlabel.prediction.pictures import Picture, Pictures
from partlabel.training.dataset import give_way


class Skipped(NamedTuple):
    """An image that could not be read."""

    key: str
    reason: str


class Read(NamedTuple):
    """A batch as workers give it: uint8 images (B, 3, size, size)."""

    pictures: list[Picture]
    images: Tensor
    skipped: list[Skipped]


@dataclass(frozen=True)
class Stretch:
    """Some of the images, one after the other."""

    pictures: Pictures
    start: int
    stop: int

    def batches(self, batch_size: int, *, size: int, workers: int) -> Iterator[Read]:
        """Read and decode them, listed only as fast as they are read."""
        return iter(
            DataLoader(
                _Images(self.pictures, size),
                batch_size=None,
                worker_init_fn=give_way,
                sampler=_Lists(self, batch_size),
                collate_fn=_as_it_is,  # type: ignore[arg-type]  # not a list: one batch each
                num_workers=workers,
                pin_memory=torch.cuda.is_available(),
                prefetch_factor=4 if workers else None,
                multiprocessing_context="fork" if workers and hasattr(os, "fork") else None,
            )
        )


class _Lists(Sampler[list[Picture]]):
    def __init__(self, stretch: Stretch, size: int) -> None:
        self.stretch, self.size = stretch, size

    def __iter__(self) -> Iterator[list[Picture]]:
        pictures = self.stretch.pictures.part(self.stretch.start, self.stretch.stop)
        while batch := list(islice(pictures, self.size)):
            yield batch


class _Images(Dataset[Read]):
    """Reads and decodes; what is asked for is a list of pictures."""

    def __init__(self, pictures: Pictures, size: int) -> None:
        self.pictures, self.size = pictures, size

    def __getitem__(self, wanted: list[Picture]) -> Read:
        there, images, skipped = [], [], []
        for picture in wanted:
            try:
                images.append(decode(self.pictures.read(picture), self.size))
                there.append(picture)
            except ImageError as error:
                skipped.append(Skipped(picture.key, str(error)))
        empty = torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
        return Read(there, torch.stack(images) if images else empty, skipped)


def _as_it_is(read: Read) -> Read:
    return read
