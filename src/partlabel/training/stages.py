"""The two stages of a run: a model that ignores says how frequent each class is; then the model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from partlabel.config import Config
from partlabel.errors import ClassMismatchError, StoreError
from partlabel.estimate import estimate_prior, sample_rows
from partlabel.losses.base import PartialLoss
from partlabel.model import build_model, synchronise_batch_norm
from partlabel.prior import Prior
from partlabel.training.capture import obstacle
from partlabel.training.dataset import Skipped
from partlabel.training.loop import Material, Trainer
from partlabel.training.online import OnlinePrior, give_prior
from partlabel.training.order import Order
from partlabel.training.processes import Processes
from partlabel.training.rundata import sampled, training_part, validation_part
from partlabel.training.runfolder import RunFolder
from partlabel.training.saving import keep_best, resume
from partlabel.training.scoring import Seen, chosen_precision, histogram
from partlabel.training.supplies import Decoded, Supplies
from partlabel.training.trained import load_model, usable_checkpoint
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
        if first_of is None:
            self.train = training_part(config)
            self.val = validation_part(config, self.train)
            self._supplies = Supplies(processes, watcher, decoded)
        else:
            self.train, self.val = first_of.train, first_of.val
            self._supplies = first_of._supplies
            sample = first_of.config.prior.sample
            if sample is not None:
                self.train = sampled(self.train, config, sample)
        # What is wrong with the second stage shows now, not when the first one has been trained.
        self._loss(None, online=config.needs_prior, images=1)
        self._order()
        self._validation()
        if config.train.early_stop is not None and self.val is None:
            raise config.error("train", "early_stop", what="there is nothing to evaluate on")

    def __call__(self) -> dict[str, Any]:
        """Do whatever is left to do, and give the result."""
        finished = self.processes.from_main(self.folder.finished())
        if finished is not None:
            self.folder.refuse_other(self.config)
            return dict(finished)
        with self.folder.nothing_left_of_a_mistake():
            if self.processes.main:
                self.folder.begin(self.config, processes=self.processes.world)
            self.processes.wait()
            prior = self.prior()
            if prior is not None and self.processes.main:
                prior.write(self.folder.path / "prior.csv")
            trainer = self._trainer(prior)
            self._go_on(trainer)
        trainer.run()
        return self._finish(trainer)

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
        first = Run(
            self.config.stage1(), processes=self.processes, watcher=self.watcher, first_of=self
        )
        settings = self.config.prior
        # By name of what decides it: the same model gives several priors.
        kept = first.folder.path / f"prior-{settings.use}-{settings.images or 'all'}.csv"
        if not self.processes.from_main(kept.is_file() and first.folder.finished() is not None):
            self.watcher.say("stage 1: a model that ignores what is unknown, for the prior")
            first()
            prior = self.prior_of_model(first.folder)
            if self.processes.main:
                prior.write(kept)
            self.processes.wait()
        first.folder.refuse_other(first.config)
        return Prior.read(kept)

    def prior_of_model(self, folder: RunFolder) -> Prior:
        """The prior by the model that a run has left, on the images of this one."""
        model, classes, _ = load_model(folder, self.processes.device, say=self.watcher.say)
        store, settings = self.train.store, self.config.prior
        if classes.ids != store.classes.ids:
            store.classes.positions_in(classes)  # says what differs
            raise ClassMismatchError(f"{folder.path}: has the same classes in another order")
        rows = np.arange(len(store))
        if settings.images is not None:
            rows = sample_rows(store.images, settings.images, seed=self.config.train.seed)
        self.watcher.say(f"estimating the prior on {len(rows):,} images")
        config = self.config.replaced(images={"size": model.info.size})
        skipped: list[Skipped] = []
        seen = histogram(
            model,
            self._supplies.of(config, self.train, training=True).listed,
            rows,
            num_classes=len(store.classes),
            processes=self.processes,
            precision=chosen_precision(config.train.precision, self.processes.device),
            seen_by=Seen(self._supplies.counting("the prior", len(rows)), skipped.extend),
        )
        self._supplies.report(skipped, self.train, folder, "skipped-prior.csv")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            prior = estimate_prior(
                seen, store.classes, store.counts(), images=len(store), use=settings.use
            )
        for warning in said:
            self.watcher.say(f"warning: {warning.message}")
        return prior

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

    def _trainer(self, prior: Prior | None) -> Trainer:
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
            self._supplies.of(config, self.train, training=True),
            self._order(),
            model,
            self._loss(prior, online=online).to(device),
            self._validation(),
            self._online() if online else None,
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
        config, classes = self.config, self.train.store.classes
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

    def _validation(self) -> Validation | None:
        if self.val is None:
            return None
        return Validation(self.config, self.val, self._supplies, self.folder)

    def _finish(self, trainer: Trainer) -> dict[str, Any]:
        """Evaluate the final model once more for what is written, and say that it is done."""
        if trainer.ended and trainer.best_step != trainer.done:
            keep_best(trainer)
        result: dict[str, Any] = {"steps": trainer.done, "images": len(self.train.store)}
        validation = self._validation()
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
