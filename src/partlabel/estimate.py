"""The prior from the predictions of an Ignore-mode model: mean, and corrected for prior shift.

Logits stream into a histogram per class (1,024 bins, with the mean logit of each), which is small,
merges across processes, and holds all that the mean and the correction need. The correction: the
model of a class was trained on its annotated labels, of which a share t is positive, and its
posteriors carry that share. Expectation-maximisation (Saerens et al., 2002) finds the share at
which the posteriors, moved from t to it, have it as their mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch import distributed as dist

from partlabel import draw
from partlabel.prior import ClassPrior, Prior
from partlabel.store import ClassCounts
from partlabel.tables import ClassTable, ImageTable, Rows

BINS = 1024
REACH = 16.0  # beyond this sigmoid is 0 or 1 to seven digits

Floats = npt.NDArray[np.float64]


class LogitHistogram:
    """Counts and sums of logits per class and bin.

    Example:
        >>> seen = LogitHistogram(2)
        >>> seen.update(torch.tensor([[0.0, 20.0], [0.0, -20.0]]))
        >>> seen.mean().round(3).tolist()
        [0.5, 0.5]
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.counts = torch.zeros(num_classes, BINS, dtype=torch.int64, device=device)
        self.sums = torch.zeros(num_classes, BINS, dtype=torch.float64, device=device)

    def update(self, logits: Tensor) -> None:
        """Take the logits (B, C) of some images; does not wait for the device."""
        if logits.ndim != 2 or logits.shape[1] != self.counts.shape[0]:
            want = f"(B, {self.counts.shape[0]})"
            raise ValueError(f"logits must be {want}, got {tuple(logits.shape)}")
        clipped = logits.detach().double().clamp(-REACH, REACH).to(self.counts.device)
        # NaN goes into the first bin, where its sum gives it away: see _columns.
        bins = ((clipped + REACH) * (BINS / (2 * REACH))).nan_to_num(0.0).long().clamp(0, BINS - 1)
        flat = (bins + torch.arange(bins.shape[1], device=bins.device) * BINS).reshape(-1)
        self.counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat))
        self.sums.view(-1).scatter_add_(0, flat, clipped.reshape(-1))

    def merge(self, other: LogitHistogram) -> None:
        """Add what another one has seen."""
        self.counts += other.counts.to(self.counts.device)
        self.sums += other.sums.to(self.sums.device)

    def all_reduce(self) -> None:
        """Add up what all processes have seen, where there are several."""
        _all_reduce(self.counts, self.sums)

    def state_dict(self) -> dict[str, Tensor]:
        """The state, to save."""
        return {"counts": self.counts, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a saved state."""
        self.counts.copy_(state["counts"])
        self.sums.copy_(state["sums"])

    @property
    def images(self) -> int:
        """How many images were seen."""
        return int(self.counts[0].sum())

    def _columns(self) -> tuple[Floats, Floats]:
        """Probability at the mean logit of each bin, and the share of images in it."""
        counts = self.counts.cpu().numpy().astype(np.float64)
        wrong = np.flatnonzero(~np.isfinite(self.sums.cpu().numpy()).all(1))
        if len(wrong):
            raise ValueError(f"logits of class {wrong[0]} had NaN")
        logits = self.sums.cpu().numpy() / np.maximum(counts, 1)
        return 1 / (1 + np.exp(-logits)), counts / max(self.images, 1)

    def mean(self) -> Floats:
        """The mean prediction of each class."""
        probability, share = self._columns()
        return np.asarray((probability * share).sum(1))

    def corrected(self, trained_at: Floats, *, steps: int = 60) -> Floats:
        """The prior of each class after correction for the share of positives it was trained at.

        Expectation-maximisation climbs a likelihood that is concave in the prior; its top is found
        by halving, which needs a fixed number of steps where EM may need thousands.

        Args:
            trained_at: (C,) the annotated positives over all annotations of each class; classes
                with 0 or 1 are not corrected.
            steps: How often the interval is halved.
        """
        probability, share = self._columns()
        possible = (trained_at > 0) & (trained_at < 1)
        train = np.where(possible, trained_at, 0.5)[:, None]
        up, down = probability / train, (1 - probability) / (1 - train)
        low, high = np.zeros(len(train)), np.ones(len(train))
        for _ in range(steps):
            middle = (low + high) / 2
            mixed = middle[:, None] * (up - down) + down
            slope = (share * (up - down) / mixed).sum(1)
            low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
        return np.where(possible, (low + high) / 2, (probability * share).sum(1))


def predicted(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    num_classes: int,
    device: torch.device | str = "cpu",
) -> LogitHistogram:
    """One pass of a trained model over images: the "final" estimate of the paper.

    The model (its EMA weights, where there are any) predicts in eval mode and is left in the mode
    it was in. For a sample of a large set see :func:`sample_rows`. With several processes each
    gives its own images, and all get what all have seen.
    """
    seen = LogitHistogram(num_classes, device)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for images in batches:
                seen.update(model(images.to(device)))
    finally:
        model.train(training)
    seen.all_reduce()
    return seen


def sample_rows(images: ImageTable, count: int, *, seed: int) -> Rows:
    """A seeded sample of images, chosen by their ids, in the order of the store."""
    if count >= len(images):
        return np.arange(len(images), dtype=np.int64)
    keys = draw.image_keys(images, seed=seed, purpose="prior")
    return np.sort(np.argpartition(keys, count)[:count])


class RunningMean:
    """The running mean of predictions during training, as the paper's code estimates its prior.

    Example:
        >>> running = RunningMean(1)
        >>> running.update(torch.zeros(4, 1))
        >>> running.mean().tolist()
        [0.5]
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.total = torch.zeros(num_classes, dtype=torch.float64, device=device)
        self.seen = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, logits: Tensor) -> None:
        """Take the logits (B, C) of a training step."""
        self.total += logits.detach().double().sigmoid().sum(0).to(self.total.device)
        self.seen += logits.shape[0]

    def all_reduce(self) -> None:
        """Add up what all processes have seen, where there are several."""
        _all_reduce(self.total, self.seen)

    def state_dict(self) -> dict[str, Tensor]:
        """The state, to save."""
        return {"total": self.total, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a saved state."""
        self.total.copy_(state["total"])
        self.seen.copy_(state["seen"])

    @property
    def images(self) -> int:
        """How many images were seen, repetitions included."""
        return int(self.seen)

    def mean(self) -> Floats:
        """The mean so far."""
        return np.asarray((self.total / self.seen.clamp(min=1)).cpu().numpy())


def estimate_prior(
    batches: Iterable[Tensor] | LogitHistogram | RunningMean,
    classes: ClassTable,
    counts: ClassCounts,
    *,
    images: int,
    use: Literal["mean", "em"] = "mean",
) -> Prior:
    """Estimate the prior from logits of an Ignore-mode model.

    Args:
        batches: Logits (B, C) of the images, batch by batch (with several processes, of each
            one's own images); or a histogram or running mean of them, which is used as it is.
        classes: The classes, in the order of the logits.
        counts: The annotations the model was trained on.
        images: How many images the data set has, for the estimated number of images per class.
        use: Which estimate the loss shall use; both are reported.

    A class without verified negatives gets its annotated share of the images, with a warning: a
    model trained in Ignore mode predicts it always.
    """
    if use not in ("mean", "em"):
        raise ValueError(f"use must be mean or em, got {use!r}")
    seen = _seen(batches, len(classes))
    if not seen.images:
        raise ValueError("batches has no images")
    mean = seen.mean()
    share = counts.positives / np.maximum(counts.positives + counts.negatives, 1)
    em, method = np.full(len(classes), np.nan), "running"
    if isinstance(seen, LogitHistogram):
        em, method = seen.corrected(share), use
    elif use == "em":
        raise ValueError("use must be mean for a running mean: it keeps no histogram")
    bare, possible = counts.negatives == 0, (share > 0) & (share < 1)
    _warn(bare, possible & ((em < 1e-6) | (em > 1 - 1e-6)) & (use == "em"))
    used = em if use == "em" else mean
    entries = []
    for i, class_id in enumerate(classes.ids):
        value = float(counts.positives[i] / max(images, 1) if bare[i] else used[i])
        how = "mean" if method == "em" and not possible[i] else method
        entries.append(
            ClassPrior(
                class_id=class_id,
                class_name=classes.names[i],
                prior=min(value, 1.0),
                method="count" if bare[i] else how,
                mean=float(mean[i]),
                em=float(em[i]),
                positives=int(counts.positives[i]),
                negatives=int(counts.negatives[i]),
                estimated_images=value * images,
            )
        )
    return Prior(entries)


def _seen(
    batches: Iterable[Tensor] | LogitHistogram | RunningMean, classes: int
) -> LogitHistogram | RunningMean:
    if isinstance(batches, LogitHistogram | RunningMean):
        return batches
    seen = LogitHistogram(classes)
    for logits in batches:
        seen.update(logits)
    seen.all_reduce()
    return seen


def _warn(bare: npt.NDArray[np.bool_], at_the_end: npt.NDArray[np.bool_]) -> None:
    if bare.any():
        warnings.warn(
            f"{bare.sum()} of {len(bare)} classes have no verified negative, so that no model can "
            "estimate them; they get their annotated share",
            stacklevel=3,
        )
    if at_the_end.any():
        warnings.warn(
            f"the correction puts {at_the_end.sum()} of {len(bare)} classes at 0 or 1: their "
            "scores do not tell positives from negatives",
            stacklevel=3,
        )


def _all_reduce(*tensors: Tensor) -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)
