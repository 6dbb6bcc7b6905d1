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
from typing import Any, Literal

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
        bins = ((clipped + REACH) * (BINS / (2 * REACH))).long().clamp(max=BINS - 1)
        flat = (bins + torch.arange(bins.shape[1], device=bins.device) * BINS).reshape(-1)
        self.counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat))
        self.sums.view(-1).scatter_add_(0, flat, clipped.reshape(-1))

    def merge(self, other: LogitHistogram) -> None:
        """Add what another one has seen."""
        self.counts += other.counts.to(self.counts.device)
        self.sums += other.sums.to(self.sums.device)

    def all_reduce(self) -> None:
        """Add up what all processes have seen, where there are several."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(self.counts)
            dist.all_reduce(self.sums)

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
        logits = self.sums.cpu().numpy() / np.maximum(counts, 1)
        return 1 / (1 + np.exp(-logits)), counts / max(self.images, 1)

    def mean(self) -> Floats:
        """The mean prediction of each class."""
        probability, share = self._columns()
        return np.asarray((probability * share).sum(1))

    def corrected(
        self, trained_at: Floats, *, steps: int = 1000, tolerance: float = 1e-9
    ) -> Floats:
        """The prior of each class after correction for the share of positives it was trained at.

        Args:
            trained_at: (C,) the annotated positives over all annotations of each class; classes
                with 0 or 1 are not corrected.
            steps: Iterations at the most.
            tolerance: Stop when no class moves further than this.
        """
        probability, share = self._columns()
        prior = (probability * share).sum(1)
        possible = (trained_at > 0) & (trained_at < 1)
        train = np.where(possible, trained_at, 0.5)[:, None]
        odds = probability / np.maximum(1 - probability, 1e-300) * ((1 - train) / train)
        for _ in range(steps):
            now = np.clip(prior, 1e-12, 1 - 1e-12)[:, None]
            ratio = odds * (now / (1 - now))
            moved = (share * ratio / (1 + ratio)).sum(1)
            done = bool(np.abs(moved - prior)[possible].max(initial=0.0) < tolerance)
            prior = np.where(possible, moved, prior)
            if done:
                break
        return np.asarray(prior)


def predicted(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    num_classes: int,
    device: torch.device | str = "cpu",
) -> LogitHistogram:
    """One pass of a trained model over images: the "final" estimate of the paper.

    The model (its EMA weights, where there are any) predicts in eval mode and is left in the mode
    it was in. For a sample of a large set see :func:`sample_rows`.
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

    def mean(self) -> Floats:
        """The mean so far."""
        return np.asarray((self.total / self.seen.clamp(min=1)).cpu().numpy())


def estimate_prior(
    batches: Iterable[Tensor] | LogitHistogram,
    classes: ClassTable,
    counts: ClassCounts,
    *,
    images: int,
    use: Literal["mean", "em"] = "mean",
) -> Prior:
    """Estimate the prior from logits of an Ignore-mode model.

    Args:
        batches: Logits (B, C) of the images, batch by batch, or a histogram of them.
        classes: The classes, in the order of the logits.
        counts: The annotations the model was trained on.
        images: How many images the data set has, for the estimated number of images per class.
        use: Which estimate the loss shall use; both are reported.

    A class without verified negatives gets its annotated share of the images, with a warning: a
    model trained in Ignore mode predicts it always.
    """
    if use not in ("mean", "em"):
        raise ValueError(f"use must be mean or em, got {use!r}")
    if isinstance(batches, LogitHistogram):
        seen = batches
    else:
        seen = LogitHistogram(len(classes))
        for logits in batches:
            seen.update(logits)
    if not seen.images:
        raise ValueError("batches has no images")
    annotated = np.maximum(counts.positives + counts.negatives, 1)
    mean = seen.mean()
    em = seen.corrected(counts.positives / annotated)
    bare = (counts.negatives == 0).tolist()
    if any(bare):
        warnings.warn(
            f"{sum(bare)} of {len(bare)} classes have no verified negative, so that no model can "
            "estimate them; they get their annotated share",
            stacklevel=2,
        )
    entries = []
    for i, class_id in enumerate(classes.ids):
        value = float(
            counts.positives[i] / max(images, 1) if bare[i] else (mean if use == "mean" else em)[i]
        )
        entries.append(
            ClassPrior(
                class_id=class_id,
                class_name=classes.names[i],
                prior=min(value, 1.0),
                method="count" if bare[i] else use,
                mean=float(mean[i]),
                em=float(em[i]),
                positives=int(counts.positives[i]),
                negatives=int(counts.negatives[i]),
                estimated_images=value * images,
            )
        )
    return Prior(entries)


def compared(first: Prior, second: Prior, classes: ClassTable) -> dict[str, Any]:
    """How an estimated prior agrees with another, or with known frequencies."""
    from partlabel.agreement import spearman, spearman_curve, top_overlap

    a = np.array([entry.prior for entry in first.aligned(classes)])
    b = np.array([entry.prior for entry in second.aligned(classes)])
    tops = sorted({n for n in (5, 10, 20, 30, 40, 50, 100, 200, 500, 1000, len(a)) if n <= len(a)})
    return {
        "classes": len(a),
        "spearman": spearman(b, a),
        "spearman_top": spearman_curve(b, a, top=tops),
        "top_10_overlap": top_overlap(b, a, 10),
        "mean_absolute_error": float(np.abs(a - b).mean()),
        "sums": [float(a.sum()), float(b.sum())],
    }
