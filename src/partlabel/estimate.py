"""The prior from the predictions of an Ignore-mode model: mean, and corrected for prior shift.

The correction: the model of a class was trained on its annotated labels, of which a share t is
positive, and its posteriors carry that share. Expectation-maximisation (Saerens et al., 2002) finds
the share at which the posteriors, moved from t to it, have it as their mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from partlabel import draw
from partlabel.histogram import LogitHistogram as LogitHistogram
from partlabel.histogram import RunningMean as RunningMean
from partlabel.prior import ClassPrior, Prior
from partlabel.store import ClassCounts
from partlabel.tables import ClassTable, ImageTable, Rows


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
