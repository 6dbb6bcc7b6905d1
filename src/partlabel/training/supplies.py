"""Batches of the parts of a run, made when they are first asked for, and kept for both stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from partlabel.augment import Augment
from partlabel.config import Config
from partlabel.training.dataset import Skipped, workers_for
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part, looks
from partlabel.training.runfolder import RunFolder
from partlabel.training.supply import Resident, Streamed, Supply
from partlabel.training.watcher import Watcher

Decoded = dict[Any, Resident]
"""Images that are on the device already, by what decides how they look there."""


class Supplies:
    """Gives batches of any part, as settings say.

    Args:
        processes: This process among all.
        watcher: Is told how far the decoding is.
        decoded: Images that other runs of this process have decoded; this one adds its own.
    """

    def __init__(
        self, processes: Processes, watcher: Watcher, decoded: Decoded | None = None
    ) -> None:
        self.processes, self.watcher = processes, watcher
        self._made: dict[Any, Supply] = {}
        self._decoded: Decoded = {} if decoded is None else decoded

    def of(self, config: Config, part: Part, *, training: bool) -> Supply:
        """Batches of a part, to train on or as they are."""
        images, train = config.images, config.train
        size = train.batch_size // (train.accumulate * self.processes.world)
        if not training and config.eval.batch_size is not None:
            size = config.eval.batch_size // self.processes.world
        key: tuple[Any, ...] = (part.name, training, dataclasses.astuple(images), train.seed)
        if not images.device_resident:  # there the size of batches does not matter
            key = (*key, size)
        if key not in self._made:
            self._made[key] = self._make(config, part, max(size, 1), training=training)
        return self._made[key]

    def _make(self, config: Config, part: Part, size: int, *, training: bool) -> Supply:
        images = config.images
        augment = Augment(
            images.augment,
            seed=config.train.seed,
            size=images.size,
            flip=images.flip,
            cutout=images.cutout,
        )
        common: dict[str, Any] = {
            "size": images.size,
            "augment": augment if training else None,
            "batch_size": size,
            "workers": workers_for(self.processes, images.workers),
            "device": self.processes.device,
        }
        if not images.device_resident:
            return Streamed(part, **common)
        # Labels may differ where images do not: of the same store other labels were left.
        key = (looks(part), images.kind, images.size, self.processes.device)
        if key in self._decoded:
            there = self._decoded[key]
            return there.sharing(part, augment=common["augment"], batch_size=size)
        self.watcher.say(f"decoding {len(part.store):,} images of {part.name}")
        whole = len(part.store) * self.processes.world  # each process decodes all
        self._decoded[key] = Resident(part, **common, progress=self.counting("decoding", whole))
        return self._decoded[key]

    def counting(self, what: str, images: int) -> Callable[[int], None]:
        """Something to call with numbers of images; the watcher is told how many are done."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more * self.processes.world
            self.watcher.within(what, min(done, images), images)

        return count

    def report(self, skipped: Iterable[Skipped], part: Part, folder: RunFolder, name: str) -> None:
        """Say and write which images could not be read; called on all processes."""
        found: dict[int, str] = {}
        for theirs in self.processes.gather(dict(skipped)):
            found |= theirs
        if not found:
            return
        if self.processes.main:
            folder.write_skipped(name, found, part.store.images)
        what = f"{len(found):,} of {len(part.store):,} images of {part.name} cannot be read"
        first = next(iter(found.values()))
        self.watcher.say(f"warning: {what}, see {folder.path / name}; the first: {first}")
