"""The two stages of a run: a model that ignores says how frequent each class is; then the model."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from partlabel.config import Config
from partlabel.errors import StoreError
from partlabel.losses.base import PartialLoss
from partlabel.model import build_model, synchronise_batch_norm
from partlabel.prior import Prior
from partlabel.store import LabelStore
from partlabel.training import rundata
from partlabel.training.capture import obstacle
from partlabel.training.firststage import FirstStage
from partlabel.training.loop import Material, Trainer
from partlabel.training.online import OnlinePrior, give_prior
from partlabel.training.order import Order
from partlabel.training.processes import Processes
from partlabel.training.rundata import (
    Part,
    sampled,
    training_part,
    validation_part,
)
from partlabel.training.runfolder import RunFolder, labels_digest
from partlabel.training.saving import keep_best, resume
from partlabel.training.supplies import Decoded, Supplies
from partlabel.training.teacher import Teacher
from partlabel.training.trained import usable_checkpoint
from partlabel.training.validation import Validation
from partlabel.training.watcher import Watcher


class Run:
    """Trains what a run file describes; reuses whatever its folder already has.

    Args:
        config: The settings.
        processes: This process among all.
        watcher: Is told how far it is.
        first_of: The run that this one is the first stage of, if it is.
        decoded: Images that earlier runs of this process left on the device.
    """

    def __init__(
        self,
        config: Config,
        *,
        processes: Processes,
        watcher: Watcher,
        first_of: Run | None = None,
        decoded: Decoded | None = None,
    ) -> None:
        self.config, self.processes, self.watcher = config, processes, watcher
        self.folder = RunFolder(config.out)
        self._is_first = first_of is not None
        if first_of is None:
            self.whole = training_part(config)
            """What there is to train on, with all its annotations."""
            self.val = validation_part(config, self.whole)
            self.supplies = Supplies(processes, watcher, decoded)
            self._held_back: dict[int, tuple[Part, LabelStore]] = {}
        else:
            self.whole, self.val = first_of.whole, first_of.val
            self.supplies, self._held_back = first_of.supplies, first_of._held_back
        self.train = self.whole
        if config.train.hold_out:
            self.train = self.held_back(config.train.seed)[0]
        if first_of is not None and first_of.config.prior.sample is not None:
            self.train = sampled(self.train, config, first_of.config.prior.sample)
        if self._untold:
            what = "no label is verified absent, so nothing can be calibrated"
            as_does = f"trains in one stage, as {config.untold().loss.name} does"
            watcher.say(f"warning: {what}: {config.loss.name} {as_does}")
        # What is wrong with the second stage shows now, not when the first one has been trained.
        self._loss(None, online=config.needs_prior, images=1)
        self._order()
        if self._validation is None and config.train.early_stop is not None:
            raise config.error("train", "early_stop", what="there is nothing to evaluate on")

    def __call__(self) -> dict[str, Any]:
        """Do whatever is left to do, and give the result."""
        finished = self.processes.from_main(self.folder.finished())
        if finished is not None:
            self.refuse_other()
            if not self._is_first:
                what = f"{self.folder.path} is finished, nothing is left to do"
                self.watcher.say(f"{what}; --fresh starts anew")
            self._forget_posteriors()  # a kill may have left them
            return dict(finished)
        with self.folder.nothing_left_of_a_mistake():
            if self.processes.main:
                world = self.processes.world
                self.folder.begin(self.config, processes=world, labels=self._digests)
            self.processes.wait()
            prior = self.prior()
            if prior is not None and self.processes.main:
                prior.write(self.folder.path / "prior.csv")
            teacher = FirstStage(self).teacher() if self._teaches else None
            trainer = self._trainer(prior, teacher)
            self._go_on(trainer)
        trainer.run()
        result = self._finish(trainer)
        self._forget_posteriors()
        return result

    def refuse_other(self) -> None:
        """Refuse a folder that belongs to other settings or labels."""
        self.folder.refuse_other(self.config, self._digests)

    @cached_property
    def _digests(self) -> dict[str, str]:
        parts = {"training": self.train, "validation": self.val}
        return {name: labels_digest(part.store) for name, part in parts.items() if part is not None}

    def held_back(self, seed: int) -> tuple[Part, LabelStore]:
        """The data without some annotations, and those, as a run with this seed holds them out."""
        if seed not in self._held_back:
            self._held_back[seed] = rundata.held_back(self.whole, seed)
        return self._held_back[seed]

    @property
    def posteriors(self) -> Path:
        """Where the loss's teacher keeps what it knows while the run goes on."""
        return self.folder.path / "posteriors"

    def _forget_posteriors(self) -> None:
        if self.processes.main:
            shutil.rmtree(self.posteriors, ignore_errors=True)

    @cached_property
    def _teaches(self) -> bool:
        """Whether the loss is told of unknown labels, and there is something to tell it by."""
        return self._asks and bool(self.whole.store.counts().negatives.any())

    @property
    def _untold(self) -> bool:
        """Whether the loss should be told of unknown labels, and cannot be."""
        return self._asks and not self._teaches

    @property
    def _asks(self) -> bool:
        return self.config.needs_posterior and not self.whole.store.complete

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
        return FirstStage(self).prior()

    def prior_of_model(self, folder: RunFolder) -> Prior:
        """The prior by the model that a run has left, on the images of this one."""
        return FirstStage(self).prior_of_model(folder)

    def first(self) -> Run:
        """The run of the first stage."""
        config = self.config.stage1()
        return Run(config, processes=self.processes, watcher=self.watcher, first_of=self)

    def _go_on(self, trainer: Trainer) -> None:
        """Resume from the newest checkpoint, the same one on all processes."""
        found = usable_checkpoint(self.folder, say=self.watcher.say)
        steps = self.processes.gather(None if found is None else found.step)
        if len(set(steps)) > 1:
            what = f"the processes see checkpoints of different steps ({steps})"
            raise StoreError(f"{self.folder.path}: {what}; is it on a disk that all share?")
        if found is not None:
            resume(trainer, found)
            self.watcher.say(f"going on from step {found.step:,} of {trainer.total:,}")
        elif self.processes.main:
            self.folder.cut_log(-1)

    def _trainer(self, prior: Prior | None, teacher: Teacher | None) -> Trainer:
        config, device = self.config, self.processes.device
        online = config.needs_prior and config.prior.source == "online"
        torch.use_deterministic_algorithms(config.train.deterministic)
        model = build_model(
            config.model.backbone,
            len(self.train.store.classes),
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
        if config.train.sync_bn and device.type != "cuda":
            self.watcher.say("warning: [train] sync_bn has no effect on a CPU")
        elif config.train.sync_bn and self.processes.world > 1:
            model = synchronise_batch_norm(model)
        if config.train.capture and (why := obstacle(self.processes)):
            self.watcher.say(f"warning: [train] capture has no effect {why}")
        material = Material(
            self.train,
            self.supplies.of(config, self.train, training=True),
            self._order(),
            model,
            self._loss(prior, online=online).to(device),
            self._validation,
            self._online() if online else None,
            teacher,
        )
        return Trainer(
            config, material, processes=self.processes, folder=self.folder, watcher=self.watcher
        )

    def _online(self) -> OnlinePrior:
        config, store = self.config, self.train.store
        bare = int((store.counts().negatives == 0).sum())
        if bare:
            what = f"{bare} of {len(store.classes)} classes have no verified negative"
            self.watcher.say(f"warning: {what}; they get their annotated share as prior")

        def apply(loss: PartialLoss, prior: Prior) -> None:
            give_prior(loss, prior, store.classes, config.prior)

        return OnlinePrior(
            store,
            device=self.processes.device,
            use=config.prior.use,
            reduction=str(config.loss.params.get("reduction", "mean")),
            apply=apply,
        )

    def _loss(self, prior: Prior | None, *, online: bool, images: int | None = None) -> PartialLoss:
        config = self.config.untold() if self._untold else self.config
        classes = self.train.store.classes
        known: dict[str, Any] = {
            "num_images": images or len(self.train.store),
            "num_classes": len(classes),
            "epochs": config.train.epochs,
        }
        if online:
            known["prior"] = torch.zeros(len(classes))  # until the first epoch has been seen
        elif prior is not None:
            known["prior"] = prior.align(classes)
        given = {key: value for key, value in known.items() if key not in config.loss.params}
        loss = config.build_loss(**given)
        if prior is not None:
            give_prior(loss, prior, classes, config.prior)
        return loss

    def _order(self) -> Order:
        settings = self.config.train
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
            raise self.config.error("train", "batch_size", what=str(error)) from error

    @cached_property
    def _validation(self) -> Validation | None:
        if self.val is None:
            return None
        return Validation(self.config, self.val, self.supplies, self.folder)

    def _finish(self, trainer: Trainer) -> dict[str, Any]:
        """Evaluate the final model once more for what is written, and say that it is done."""
        if trainer.ended and trainer.best_step != trainer.done:
            keep_best(trainer)
        result: dict[str, Any] = {"steps": trainer.done, "images": len(self.train.store)}
        validation = self._validation
        if validation is not None:
            self.processes.copy_from_main(trainer.average.tensors)
            metric = validation.score({"average": trainer.average.model})["average"]
            result |= validation.numbers(metric)
            if trainer.best_step:
                result |= {"best_map_c": trainer.best, "reference_best": trainer.reference_best}
            result |= validation.write(metric)
        if self.processes.main:
            self.folder.finish(result)
        self.processes.wait()
        return result
