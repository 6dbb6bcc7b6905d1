"""Precision, recall and F1 at a threshold or among the best k of each image, on annotated pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partlabel.metrics.pairs import AnnotatedPairs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PrecisionRecall:
    """Precision, recall and F1: C means over classes, O means pooled over all pairs."""

    cp: float
    cr: float
    cf1: float
    """Harmonic mean of ``cp`` and ``cr``: what most papers call CF1."""
    cf1_mean: float
    """Mean of the F1 of the classes: what the paper's validation script computes."""
    op: float
    or_: float
    of1: float
    precision: Floats
    """Per class; 0 where nothing is predicted, NaN where a class has no positive or no negative."""
    recall: Floats
    f1: Floats
    tp: Ints
    fp: Ints
    fn: Ints


def precision_recall(
    metric: AnnotatedPairs,
    threshold: float | npt.ArrayLike | None = 0.5,
    *,
    top_k: bool = False,
    distributed: bool = True,
) -> PrecisionRecall:
    """Precision, recall and F1 over annotated pairs.

    Args:
        metric: What collected the pairs.
        threshold: A class is predicted where its score is at least this; one number or one per
            class, on the scale of the scores and rounded as these are. None: no threshold.
        top_k: A class is predicted only where it is among the ``metric.top_k`` best of its image.
        distributed: Gather from all processes where there are several.
    """
    pairs = metric.collect(distributed=distributed)
    count = metric.num_classes
    predicted = np.ones(len(pairs.scores), bool)
    if threshold is not None:
        at = np.broadcast_to(np.asarray(threshold, np.float64), (count,))
        if np.isnan(at).any():
            raise ValueError("a threshold is NaN")
        scores = pairs.scores.numpy()
        with np.errstate(over="ignore"):
            at = at.astype(scores.dtype)  # 0.7 in float32 is a bit less: it must equal itself
        predicted &= scores >= at[pairs.classes.numpy()]
    elif not top_k:
        raise ValueError("give a threshold, or top_k=True, or both")
    if top_k:
        if metric.top_k is None:
            raise ValueError("the metric was made without top_k; only dense updates know it")
        predicted &= pairs.in_top.numpy()
    classes, positive = pairs.classes.numpy(), pairs.positive.numpy()
    tp = np.bincount(classes[predicted & positive], minlength=count)
    fp = np.bincount(classes[predicted & ~positive], minlength=count)
    fn = np.bincount(classes[~predicted & positive], minlength=count)
    tn = np.bincount(classes[~predicted & ~positive], minlength=count)
    scored = (tp + fn > 0) & (fp + tn > 0)
    precision, recall = _share(tp, tp + fp), _share(tp, tp + fn)
    f1 = _share(2 * tp, 2 * tp + fp + fn)
    for values in (precision, recall, f1):
        values[~scored] = np.nan
    cp, cr, cf1_mean = (_mean(values[scored]) for values in (precision, recall, f1))
    op, or_ = (float(_share(tp.sum(), n.sum())) for n in (tp + fp, tp + fn))
    return PrecisionRecall(
        cp=cp,
        cr=cr,
        cf1=_harmonic(cp, cr),
        cf1_mean=cf1_mean,
        op=op,
        or_=or_,
        of1=_harmonic(op, or_),
        precision=precision,
        recall=recall,
        f1=f1,
        tp=tp,
        fp=fp,
        fn=fn,
    )


def _share(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """Part of whole, 0 where there is nothing."""
    shares: Floats = np.asarray(part, np.float64) / np.maximum(np.asarray(whole), 1)
    return shares


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else a + b  # NaN stays NaN
