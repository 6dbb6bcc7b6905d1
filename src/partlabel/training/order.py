"""Which images each step takes: from (seed, epoch, step), for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partlabel.draw import mix, seed_key
from partlabel.tables import Rows


class Plan(NamedTuple):
    """The images of one (part of a) step, for one process."""

    epoch: int
    step: int
    rows: Rows


@dataclass(frozen=True)
class Order:
    """Which images each step takes.

    Args:
        count: Images in all.
        batch_size: Images of one step, over all processes and parts.
        seed: Of the shuffling.
        parts: In how many parts a step is computed (gradient accumulation).
        rank: This process.
        world: How many there are.
    """

    count: int
    batch_size: int
    seed: int
    parts: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % (self.parts * self.world):
            by = f"{self.world} processes x {self.parts} parts"
            raise ValueError(f"{self.batch_size} cannot be cut evenly for {by}")
        if self.batch_size > self.count:
            raise ValueError(f"{self.batch_size} exceeds the {self.count} images; make it smaller")

    @property
    def steps(self) -> int:
        """Steps of an epoch; images that do not fill a last one wait for the next epoch."""
        return self.count // self.batch_size

    def shuffled(self, epoch: int) -> Rows:
        """All images in the order of an epoch; numbers of our own, so no library changes it."""
        key = mix(np.array([epoch], np.uint64) + seed_key(self.seed, "order"))
        return np.argsort(mix(np.arange(self.count, dtype=np.uint64) + key), kind="stable")

    def plans(self, start: int, stop: int) -> Iterator[Plan]:
        """The parts of the steps from ``start`` to ``stop``, through all epochs."""
        rows, known = np.empty(0, np.int64), -1
        size = self.batch_size // (self.parts * self.world)
        for step in range(start, stop):
            epoch, within = divmod(step, self.steps)
            if epoch != known:
                rows, known = self.shuffled(epoch), epoch
            for part in range(self.parts):
                first = within * self.batch_size + (part * self.world + self.rank) * size
                yield Plan(epoch, step, rows[first : first + size])


def stand_in(row: int, count: int) -> int:
    """The image to take in place of one that cannot be read: far off, since trouble has neighbours.

    Asked again and again it comes through all images.
    """
    stride = max(int(0.618 * count), 1)
    while math.gcd(stride, count) > 1:
        stride += 1
    return (row + stride) % count
