"""The first stage: a model that ignores unknown labels is asked how frequent classes are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from partlabel.calibrate import (
    Calibration,
    HeldOut,
    calibrate,
    calibrated_prior,
    information,
    too_few,
)
from partlabel.config import Config
from partlabel.errors import ClassMismatchError, PartlabelError, UsageError
from partlabel.estimate import estimate_prior, sample_rows
from partlabel.model import Classifier
from partlabel.prior import Prior
from partlabel.store import ClassCounts, LabelStore
from partlabel.tables import Rows
from partlabel.training.asking import Source, Told, ask, head_of, together
from partlabel.training.dataset import Skipped
from partlabel.training.frozen import Frozen
from partlabel.training.runfolder import RunFolder
from partlabel.training.scoring import Batches, Seen, chosen_precision, counting, histogram
from partlabel.training.teacher import Teacher
from partlabel.training.trained import load_model

if TYPE_CHECKING:
    from partlabel.training.stages import Run

_AS_MUCH = 0.5
"""Of what a trained head tells of held-out annotations; frozen features that tell less are left."""


class FirstStage:
    """What a run takes from its first stage; trains it, where that was not done.

    Args:
        run: The run that needs it.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.config

    def prior(self) -> Prior:
        """The prior by a model in Ignore mode: the first stage, or what it left."""
        first, settings = self.run.first(), self.config.prior
        # By name of what decides it: the same model gives several priors.
        kept = first.folder.path / f"prior-{settings.use}-{settings.images or 'all'}.csv"
        if not self.run.processes.from_main(kept.is_file() and first.folder.finished() is not None):
            self.run.watcher.say("stage 1: a model that ignores what is unknown, for the prior")
            first()  # or what is left of it
            prior = self.prior_of_model(first.folder)
            if self.run.processes.main:
                prior.write(kept)
            self.run.processes.wait()
        first.refuse_other()
        return Prior.read(kept)

    def _model_of(self, folder: RunFolder) -> Classifier:
        """The model that a run has left, if its classes are those of this one."""
        model, classes, _ = load_model(folder, self.run.processes.device, say=self.run.watcher.say)
        wanted = self.run.whole.store.classes
        if classes.ids != wanted.ids:
            wanted.positions_in(classes)  # says what differs
            raise ClassMismatchError(f"{folder.path}: has the same classes in another order")
        return model

    def prior_of_model(self, folder: RunFolder) -> Prior:
        """The prior by the model that a run has left, on the images of this one."""
        store, settings = self.run.whole.store, self.config.prior
        if settings.use == "calibrated":
            self._refuse_all_seen(folder)
        model = self._model_of(folder)
        rows = np.arange(len(store))
        if settings.images is not None:
            rows = sample_rows(store.images, settings.images, seed=self.config.train.seed)
        self.run.watcher.say(f"estimating the prior on {len(rows):,} images")
        batches, skipped = self._batches(model), list[Skipped]()
        precision = chosen_precision(self.config.train.precision, self.run.processes.device)
        common: dict[str, Any] = {
            "processes": self.run.processes,
            "seen_by": Seen(self.run.supplies.counting("the prior", len(rows)), skipped.extend),
        }
        if settings.use == "calibrated":
            held = self.run.held_back(folder.config.train.seed)[1]
            source = head_of(counting(model), precision)
            frozen = self._frozen(folder.config, batches, rows, held)
            source = source if frozen is None else together(source, frozen)
            told = ask(source, batches, rows, held, **common)
            _, prior = self._calibrated(told[0], told[1] if frozen is not None else None)
        else:
            number = len(store.classes)
            seen = histogram(
                counting(model), batches, rows, num_classes=number, precision=precision, **common
            )
            with self._warnings():
                prior = estimate_prior(
                    seen, store.classes, store.counts(), images=len(store), use=settings.use
                )
        self.run.supplies.report(skipped, self.run.whole, folder, "skipped-prior.csv")
        return prior

    def _batches(self, model: Classifier) -> Batches:
        """All images, of the size that a model takes, with all their labels."""
        config = self.config.replaced(images={"size": model.info.size})
        return self.run.supplies.of(config, self.run.whole, training=True).listed

    def _frozen(
        self, config: Config, batches: Batches, rows: Rows, held: LabelStore
    ) -> Source | None:
        """What the features say that a run began with; nothing where those were random."""
        if config.model.weights == "none":
            return None
        run = self.run
        frozen: Frozen | None
        try:
            frozen = Frozen(config, run.processes.device)
        except PartlabelError as error:  # of a run that was made elsewhere
            run.watcher.say(f"warning: without the weights that {config.out} began with: {error}")
            frozen = None
        if not all(run.processes.gather(frozen is not None)) or frozen is None:
            return None
        run.watcher.say(f"learning classes from the features of {len(rows):,} images")
        hears = Seen(run.supplies.counting("features", len(rows)), lambda _: None)
        return frozen.learned(batches, rows, held, processes=run.processes, seen_by=hears)

    def _calibrated(self, told: Told, beside: Told | None) -> tuple[Calibration, Prior]:
        """What logits at unknown and at held-out labels say of all classes.

        Args:
            told: By the head that counts.
            beside: By frozen features.
        """
        store = self.run.whole.store
        counts, images = store.counts(), len(store)
        samples = None
        if beside:
            by_features, by_head = (information(each.held, counts) for each in (beside, told))
            if by_features > 0 and by_features >= _AS_MUCH * by_head:
                samples = beside.samples
        with self._warnings():
            found = calibrate(told.seen, told.held, counts, images=images, samples=samples)
        self.run.watcher.say(_found(found, told.held, counts, images))
        return found, calibrated_prior(found, told.seen, store.classes, counts, images=images)

    def _refuse_all_seen(self, folder: RunFolder) -> None:
        if not folder.config.train.hold_out:
            what = f"{folder.path}: was trained on all annotations, none is left to calibrate it by"
            raise UsageError(f"{what}; set [train] hold_out = true for it, or --use mean")

    @contextmanager
    def _warnings(self) -> Iterator[None]:
        """Let the watcher say what we warn of."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
        for warning in said:
            self.run.watcher.say(f"warning: {warning.message}")

    def teacher(self) -> Teacher:
        """Who tells the loss of unknown labels; its first table by the first stage."""
        config, whole, first = self.config, self.run.whole, self.run.first()
        first.refuse_other()
        skipped: list[Skipped] = []
        teacher = Teacher(
            whole.store,
            self.run.held_back(first.config.train.seed)[1],
            self.run.supplies.of(config, whole, training=True).listed,
            self.run.posteriors,
            epochs=config.train.epochs,
            processes=self.run.processes,
            precision=chosen_precision(config.train.precision, self.run.processes.device),
            counting=lambda: Seen(
                self.run.supplies.counting("unknown labels", len(whole.store)), skipped.extend
            ),
        )
        if teacher.begun():
            return teacher
        self.run.watcher.say("stage 1: a model that says which unknown labels are present")
        first()

        def calibrated(told: Told, beside: Told | None) -> Calibration:
            found, prior = self._calibrated(told, beside)
            self.run.supplies.report(skipped, whole, self.run.folder, "skipped-posteriors.csv")
            if self.run.processes.main:
                prior.write(self.run.folder.path / "prior.csv")
            return found

        model = self._model_of(first.folder)
        batches, rows = self._batches(model), np.arange(len(whole.store))
        frozen = self._frozen(first.folder.config, batches, rows, teacher.held)
        self.run.watcher.say(f"asking it about {len(rows):,} images")
        sample, seed = config.prior.sample, first.config.train.seed
        learnt = None if sample is None else sample_rows(whole.store.images, sample, seed=seed)
        teacher.begin(model, batches, calibrated, frozen, learnt)
        return teacher


def _found(what: Calibration, held: HeldOut, counts: ClassCounts, images: int) -> str:
    """What a calibration found out, for people."""
    known = counts.positives + counts.negatives
    unknown = images - known
    annotated = counts.positives.sum() / max(known.sum(), 1)
    others = (what.share * unknown).sum() / max(unknown.sum(), 1)
    if what.capped:
        kind = f"annotation stopped at {counts.positives.max():,} present labels of a class"
    else:
        kind = f"labels are {'' if what.random else 'not '}missing at random"
    shares = f"of annotated labels {annotated:.2%} are present, of unknown ones {others:.2%}"
    present = int((held.states > 0).sum())
    by = f"{len(held.states):,} labels that were held out, {present:,} of them present"
    rough = "; so few that this is rough" if too_few(held) else ""
    return f"as it seems, {kind}: {shares} (by {by}{rough})"
