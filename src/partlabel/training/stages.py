"""The two stages of a run: a model that ignores says how frequent each class is; then the model."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch

from partlabel.augment import Augment
from partlabel.config import Config
from partlabel.errors import ClassMismatchError
from partlabel.estimate import estimate_prior, sample_rows
from partlabel.losses.base import PartialLoss
from partlabel.model import build_model, synchronise_batch_norm
from partlabel.prior import Prior
from partlabel.training.dataset import Order, workers_for
from partlabel.training.loop import Material, Trainer, Watcher
from partlabel.training.online import OnlinePrior, give_prior
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part, training_part, validation_part
from partlabel.training.runfolder import RunFolder
from partlabel.training.saving import resume
from partlabel.training.scoring import chosen_precision, histogram
from partlabel.training.supply import Resident, Streamed, Supply
from partlabel.training.trained import load_model, usable_checkpoint
from partlabel.training.validation import Validation


class Run:
    """Trains what a run file describes; reuses whatever its folder already has.

    Args:
        config: The settings.
        processes: This process among all.
        watcher: Is told how far it is.
    """

    def __init__(self, config: Config, *, processes: Processes, watcher: Watcher) -> None:
        self.config, self.processes, self.watcher = config, processes, watcher
        self.folder = RunFolder(config.out)
        self.train = training_part(config)
        self.val = validation_part(config, self.train)
        self._supplies: dict[Any, Supply] = {}
        # What is wrong with the second stage shows now, not when the first one has been trained.
        self._loss(config, None, online=config.needs_prior)
        self._order(config)

    def __call__(self) -> dict[str, Any]:
        """Do whatever is left to do, and give the result."""
        finished = self.folder.finished()
        if self.processes.main:
            self.folder.begin(self.config, processes=self.processes.world)
        self.processes.wait()
        if finished is not None:
            return finished
        prior = self.prior()
        if prior is not None and self.processes.main:
            prior.write(self.folder.path / "prior.csv")
        return self._fit(self.config, self.folder, prior)

    def prior(self) -> Prior | None:
        """The prior that the loss needs, from a file or the first stage; None if it needs none."""
        source = self.config.prior.source
        if not self.config.needs_prior or source == "online":
            return None
        if source != "estimate":
            return Prior.read(source)
        return self.estimated()

    def estimated(self) -> Prior:
        """The prior by a model in Ignore mode: the first stage, or what it left."""
        config = self.config.stage1()
        folder = RunFolder(config.out)
        kept = folder.path / "prior.csv"
        if self.processes.main:
            folder.begin(config, processes=self.processes.world)
        self.processes.wait()
        if folder.finished() is None:
            self.watcher.say(
                "stage 1: how frequent is each class, by a model that ignores unknowns"
            )
            self._fit(config, folder, None)
        if not kept.is_file():
            prior = self.prior_of_model(folder)
            if self.processes.main:
                prior.write(kept)
            self.processes.wait()
        return Prior.read(kept)

    def prior_of_model(self, folder: RunFolder) -> Prior:
        """The prior by the model that a run has left, on the images of this one."""
        config = folder.config
        model, classes, _ = load_model(folder, self.processes.device)
        if classes.ids != self.train.store.classes.ids:
            self.train.store.classes.positions_in(classes)  # says what differs
            raise ClassMismatchError(f"{folder.path}: has the same classes in another order")
        store, settings = self.train.store, self.config.prior
        rows = np.arange(len(store))
        if settings.images is not None:
            rows = sample_rows(store.images, settings.images, seed=config.train.seed)
        self.watcher.say(f"estimating the prior on {len(rows):,} images")
        seen = histogram(
            model,
            self._supply(config, self.train, training=True).listed,
            rows,
            num_classes=len(store.classes),
            processes=self.processes,
            precision=chosen_precision(config.train.precision, self.processes.device),
        )
        counts = store.counts()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            prior = estimate_prior(seen, store.classes, counts, images=len(store), use=settings.use)
        for warning in said:
            self.watcher.say(f"warning: {warning.message}")
        return prior

    def _fit(self, config: Config, folder: RunFolder, prior: Prior | None) -> dict[str, Any]:
        trainer = self._trainer(config, folder, prior)
        found = usable_checkpoint(folder, say=self.watcher.say)
        if found is not None:
            resume(trainer, found)
            self.watcher.say(f"going on from step {found.step:,} of {trainer.total:,}")
        elif self.processes.main:
            folder.cut_log(-1)
        trainer.run()
        return self._finish(config, folder, trainer)

    def _trainer(self, config: Config, folder: RunFolder, prior: Prior | None) -> Trainer:
        device, store = self.processes.device, self.train.store
        online = config.needs_prior and config.prior.source == "online"
        torch.use_deterministic_algorithms(config.train.deterministic)
        model = build_model(
            config.model.backbone,
            len(store.classes),
            weights=config.model.weights,
            head=config.model.head,
            bottleneck=config.model.bottleneck,
            auxiliary=online,
            drop=config.model.drop,
            seed=config.train.seed,
            image_size=config.images.size,
        ).to(device)
        if config.train.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if config.train.sync_bn and self.processes.world > 1 and device.type == "cuda":
            model = synchronise_batch_norm(model)
        material = Material(
            self.train,
            self._supply(config, self.train, training=True),
            self._order(config),
            model,
            self._loss(config, prior, online=online).to(device),
            self._validation(config),
            self._online(config) if online else None,
        )
        return Trainer(
            config, material, processes=self.processes, folder=folder, watcher=self.watcher
        )

    def _online(self, config: Config) -> OnlinePrior:
        def apply(loss: PartialLoss, prior: Prior) -> None:
            give_prior(loss, prior, self.train.store.classes, config.prior)

        return OnlinePrior(
            self.train.store, device=self.processes.device, use=config.prior.use, apply=apply
        )

    def _loss(self, config: Config, prior: Prior | None, *, online: bool) -> PartialLoss:
        store = self.train.store
        known: dict[str, Any] = {
            "num_images": len(store),
            "num_classes": len(store.classes),
            "epochs": config.train.epochs,
        }
        if online:
            known["prior"] = torch.zeros(len(store.classes))  # until the first epoch has been seen
        elif prior is not None:
            known["prior"] = prior.align(store.classes)
        given = {key: value for key, value in known.items() if key not in config.loss.params}
        loss = config.build_loss(**given)
        if prior is not None:
            give_prior(loss, prior, self.train.store.classes, config.prior)
        return loss

    def _order(self, config: Config) -> Order:
        settings = config.train
        try:
            return Order(
                len(self.train.store),
                settings.batch_size,
                settings.seed,
                parts=settings.accumulate,
                rank=self.processes.rank,
                world=self.processes.world,
            )
        except ValueError as error:
            raise config.error("train", "batch_size", what=str(error)) from error

    def _supply(self, config: Config, part: Part, *, training: bool) -> Supply:
        """Batches of a part; kept, since both stages may take the same."""
        images, train = config.images, config.train
        size = train.batch_size // (train.accumulate * self.processes.world)
        if not training and config.eval.batch_size is not None:
            size = config.eval.batch_size // self.processes.world
        key = (part.name, dataclasses.astuple(images), train.seed, size)
        if key in self._supplies:
            return self._supplies[key]
        augment = None
        if training:
            augment = Augment(
                images.augment,
                seed=train.seed,
                size=images.size,
                flip=images.flip,
                cutout=images.cutout,
            )
        device = self.processes.device
        local = max(torch.cuda.device_count(), 1) if device.type == "cuda" else self.processes.world
        workers = workers_for(device, images.workers, local_world=min(local, self.processes.world))
        common: dict[str, Any] = {
            "size": images.size,
            "augment": augment,
            "batch_size": max(size, 1),
            "workers": workers,
            "device": device,
        }
        if images.device_resident:
            self.watcher.say(f"decoding {len(part.store):,} images of {part.name}")
            self._supplies[key] = Resident(part, **common)
        else:
            self._supplies[key] = Streamed(part, **common)
        return self._supplies[key]

    def _validation(self, config: Config) -> Validation | None:
        if self.val is None:
            return None
        batches = self._supply(config, self.val, training=False).listed
        return Validation(config, self.val, batches, self.processes)

    def _finish(self, config: Config, folder: RunFolder, trainer: Trainer) -> dict[str, Any]:
        """Evaluate the final model once more for what is written, and say that it is done."""
        result: dict[str, Any] = {"steps": trainer.done, "images": len(self.train.store)}
        validation = self._validation(config)
        if validation is not None:
            self.processes.copy_from_main(trainer.average.tensors)
            metric = validation.score({"average": trainer.average.model})["average"]
            result |= validation.numbers(metric)
            if trainer.best_step:
                result |= {"best_map_c": trainer.best, "reference_best": trainer.reference_best}
            result |= validation.write(metric, folder.path)
        if self.processes.main:
            folder.finish(result)
        self.processes.wait()
        return result
