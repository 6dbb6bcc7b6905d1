"""How many of a class's unknown labels are present: at random, or by a scheme, without being told.

Two kinds of annotation are told apart. Where labels are missing at random, unknown labels are
present as often as annotated ones. Where people annotated by what they saw (so many positives and
negatives of each class, say), they are present far less often, and by about the same factor in all
classes; and where a budget of positives was not used up, there are no more of them.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from partlabel.annotation import has_budget
from partlabel.calibrate.calibration import Calibration, HeldOut, annotated_odds
from partlabel.calibrate.fit import LEAST, log_odds, matching, platt, shifts, sigmoid
from partlabel.calibrate.tilt import Samples, share_present
from partlabel.histogram import REACH, Floats, LogitHistogram
from partlabel.store import ClassCounts

# In log odds: a factor of 1.5, and of two where few held-out labels make the offset uncertain. On
# COCO the difference is below 0.1 with labels that are missing at random, and with a fixed number
# of annotations per class beyond 0.7, though shares differ by far more: 0.5 where 0.02 is true is a
# factor of 50, but a mean prediction at 0.5 shows little of it.
_CLOSE, _NOT_FAR = 0.4, 0.7

Mask = npt.NDArray[np.bool_]


def calibrate(
    seen: LogitHistogram,
    held: HeldOut,
    counts: ClassCounts,
    *,
    images: int,
    samples: Samples | None = None,
) -> Calibration:
    """Calibrate a model that was trained to ignore unknown labels.

    Args:
        seen: Its logits at unknown labels, of all images or a sample of them.
        held: Its logits at annotated labels that it was not trained on, chosen at random.
        counts: All annotations, held-out ones included.
        images: How many images there are.
        samples: Scores of labels of all states that know no label by heart, where there are such.
            By them the shares are estimated, unless labels are missing at random.

    A class without verified negatives is not estimated: the model predicts it always. Its unknown
    labels count as absent, with a warning. One without any annotation gets the median share of the
    others, with a warning.
    """
    known = counts.positives + counts.negatives
    bare = (counts.negatives == 0) & (known > 0)
    _check(seen, held, known, images)
    if samples is not None and any(len(each.counts) != len(known) for each in samples):
        raise ValueError(f"samples must be of {len(known)} classes")
    slope, offset = _line(held, bare)
    logits, weight = seen.columns()
    logits = slope * logits + offset
    # A model that never saw a class present, or never absent, has no odds to go by.
    usable = (counts.positives > 0) & (counts.negatives > 0) & weight.any(1)
    trained = annotated_odds(counts)
    full = counts.positives == counts.positives.max()
    budget = bool(usable.any()) and has_budget(counts.positives)
    mean = (sigmoid(logits) * weight).sum(1)
    random = not budget and _at_random(mean, counts, ~bare & weight.any(1), held)
    share = sigmoid(trained)
    if not random and usable.any():
        moved = shifts(logits[usable], weight[usable], trained[usable], seen.labels[usable])
        delta = np.full(len(trained), moved.mean())
        delta[usable] = moved
        if samples is not None:
            told = usable & (full | (not budget))
            told &= (samples.present.labels > 0) & (samples.unknown.labels > 0)
            if told.any():
                delta[told] = log_odds(share_present(samples, told)) - trained[told]
                delta[~told] = delta[told].mean()
        share = sigmoid(trained + delta)
    if budget:  # a class that does not use it up has no other positives
        share = np.where(full, share, 0.0)
    share = _for_the_rest(share, bare, known)
    prior = np.minimum((counts.positives + (images - known) * share) / max(images, 1), 1.0)
    share = np.clip(share, LEAST, 1.0)
    shift = matching(logits, weight, share)
    return Calibration(slope, offset, shift, share, prior, random=random, capped=budget)


def _check(seen: LogitHistogram, held: HeldOut, known: npt.NDArray[np.int64], images: int) -> None:
    count = len(seen.counts)
    if len(known) != count:
        raise ValueError(f"counts must be of {count} classes, got {len(known)}")
    if count and known.max() > images:
        raise ValueError(f"images must be at least {known.max()}, got {images}")
    if not seen.images and (known < images).any():
        raise ValueError("seen has no labels")
    if not len(held.logits) == len(held.classes) == len(held.states):
        raise ValueError("the arrays of held must be of equal length")
    if len(held.classes) and not 0 <= held.classes.min() <= held.classes.max() < count:
        raise ValueError(f"classes of held must be in 0..{count - 1}")
    if not np.isin(held.states, (-1, 1)).all():
        raise ValueError("states of held must be +1 or -1")
    wrong = np.flatnonzero(np.isnan(held.logits))
    if len(wrong):
        raise ValueError(f"logits of class {held.classes[wrong[0]]} had NaN")


def _line(held: HeldOut, bare: Mask) -> tuple[float, float]:
    """Slope and offset, by the classes that have both states."""
    good = ~bare[held.classes.astype(np.int64)]
    present = held.states[good] > 0
    if not (present.any() and not present.all()):
        warnings.warn(
            f"{len(present)} annotations were held out, {present.sum()} of them present: too few "
            "to calibrate by, so the model's logits are taken as they are",
            stacklevel=3,
        )
        return 1.0, 0.0
    return platt(np.clip(held.logits[good].astype(np.float64), -REACH, REACH), present)


def _at_random(mean: Floats, counts: ClassCounts, which: Mask, held: HeldOut) -> bool:
    """Whether unknown labels look like annotated ones.

    Compared are the annotated labels and as many unknown ones of each class: what is predicted of
    these, and how many of those are present. Summed over classes, since one slope and one offset
    are right for all classes together and wrong for each one by itself; over those without a
    present label too, since those with one have more than their share by chance.
    """
    positives = counts.positives * which
    known = positives + counts.negatives * which
    if not known.any():
        return False
    there, annotated = log_odds(np.array([mean @ known, positives.sum()]) / known.sum())
    fewer = min((held.states > 0).sum(), (held.states < 0).sum())
    return bool(abs(there - annotated) < np.clip(3 / np.sqrt(max(fewer, 1)), _CLOSE, _NOT_FAR))


def _for_the_rest(share: Floats, bare: Mask, known: npt.NDArray[np.int64]) -> Floats:
    """Shares with those of classes that nothing can be estimated for."""
    nothing = known == 0
    if bare.any():
        warnings.warn(
            f"{bare.sum()} of {len(bare)} classes have no verified negative, so that no model can "
            "estimate them; they get their annotated share, and what is unknown counts as absent",
            stacklevel=3,
        )
    if nothing.any():
        warnings.warn(
            f"{nothing.sum()} of {len(nothing)} classes have no annotation at all; "
            "they get the median share of the others",
            stacklevel=3,
        )
    others = share[~bare & ~nothing]
    share = np.where(nothing, np.median(others) if len(others) else 0.0, share)
    return np.where(bare, 0.0, share)
