"""The numbers of a calibration: slope and offset, shifts of the log odds, means that match.

Distributions of logits come as the columns of a histogram: the mean logit of each bin (C, bins),
and the share of the class's logits in it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST = 1e-5
"""The smallest share of unknown labels that are present; 0 would have no log odds."""

RIDGE = 25.0, 1.0  # of slope and offset
EVIDENCE = 100  # observations that the unknown labels of a class count for, at most
GRID = np.linspace(-9, 9, 181)
NARROWEST = 0.1  # the step of the grid: what is narrower cannot be told on it

_FAR = 60.0  # log odds beyond which nothing changes
_CLASSES = 64  # at a time, so that their columns stay in the cache


def sigmoid(x: Floats) -> Floats:
    """The probability at some log odds."""
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -_FAR, _FAR))))


def log_odds(p: Floats) -> Floats:
    """The log odds of a probability, finite for 0 and 1 too."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def platt(logits: Floats, present: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Slope a and offset b at which sigmoid(a logit + b) is most likely, with ridge to (1, 0).

    The ridge makes the objective strictly convex, so that separable labels have an answer too:
    sum over labels of log(1 + exp(-y (a z + b))), y = +1 or -1, plus (25 (a - 1)^2 + b^2) / 2.
    """
    slope, offset = logistic(np.stack([logits, np.ones_like(logits)], 1), present, RIDGE)
    return float(slope), float(offset)


def logistic(inputs: Floats, present: npt.NDArray[np.bool_], ridge: tuple[float, ...]) -> Floats:
    """The weights of inputs (N, k) at which labels are most likely.

    Args:
        inputs: The first is a logit.
        present: (N,)
        ridge: Of each weight, to 1 for the first and to 0 for the others.
    """
    sign = np.where(present, 1.0, -1.0)
    start, pull = np.eye(inputs.shape[1])[0], np.array(ridge)

    def objective(w: Floats) -> float:
        loss = np.logaddexp(0, -sign * (inputs @ w)).sum()
        return float(loss + 0.5 * (pull * (w - start) ** 2).sum())

    found, value = start, objective(start)
    for _ in range(100):
        p = sigmoid(inputs @ found)
        gradient = inputs.T @ (p - present) + pull * (found - start)
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + np.diag(pull)
        step = np.linalg.solve(curvature, gradient)
        if gradient @ step < 1e-18:
            break
        for _ in range(40):
            if (lower := objective(found - step)) < value:
                break
            step = step / 2
        else:
            break  # as low as floats go
        found, value = found - step, lower
    return np.asarray(found)


def matching(logits: Floats, share: Floats, target: Floats) -> Floats:
    """(C,) what to add to the logits of each class for their mean probability to be the target."""
    found = np.zeros(len(logits))
    target = np.clip(target, LEAST, 1 - LEAST)
    for part in _parts(len(logits)):
        z, weight, wanted = logits[part], share[part], target[part]
        reach = np.abs(z).max() - np.log(LEAST) + 1
        low, high = np.full(len(z), -reach), np.full(len(z), reach)
        for _ in range(55):
            middle = (low + high) / 2
            short = (sigmoid(z + middle[:, None]) * weight).sum(1) < wanted
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        found[part] = np.where(weight.any(1), (low + high) / 2, 0.0)
    return found


def shifts(logits: Floats, share: Floats, trained: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """(C,) by how much the log odds of being present differ between unknown and annotated labels.

    The odds at a logit, over those of the share t that the model was trained at, are the ratio r
    of the densities of present and absent labels; so unknown labels of which a share s is present
    have the likelihood product(s r + 1 - s). It counts as that of at most 100 labels, since r was
    learnt from few annotations itself. The shifts of all classes are drawn from one normal
    distribution, whose mean and spread are found from them all (empirical Bayes): one class's few
    unknown positives say little, those of all classes tell what kind of annotation this is.

    Args:
        logits: (C, bins) calibrated at the share the model was trained at.
        share: (C, bins) the share of unknown labels in each bin.
        trained: (C,) the log odds of the share the model was trained at.
        labels: (C,) how many unknown labels there are.
    """
    evidence = np.minimum(labels, EVIDENCE)
    rows = [_likelihood(*row) for row in zip(logits, share, trained, strict=True)]
    likelihood = evidence[:, None] * np.array(rows)
    middle, width = 0.0, 3.0
    for _ in range(30):
        mean, spread = _moments(likelihood, middle, width)
        middle = float(mean.mean())
        width = max(float(np.sqrt((spread + (mean - middle) ** 2).mean())), NARROWEST)
    return _moments(likelihood, middle, width)[0]


def _likelihood(logits: Floats, share: Floats, trained: float) -> Floats:
    """Mean log likelihood of the unknown labels of a class at each shift of the grid."""
    there = share > 0
    ratio = np.exp(np.clip(logits[there] - trained, -_FAR, _FAR))
    present = sigmoid(trained + GRID)
    mixed: Floats = np.log(np.outer(ratio, present) + (1 - present))
    return np.asarray(share[there] @ mixed)


def _moments(likelihood: Floats, middle: float, width: float) -> tuple[Floats, Floats]:
    """Mean and variance of the shift of each class, given how the shifts are distributed."""
    log_posterior = likelihood - 0.5 * ((GRID - middle) / width) ** 2
    weight = np.exp(log_posterior - log_posterior.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = weight @ GRID
    return mean, weight @ GRID**2 - mean**2


def _parts(count: int) -> list[slice]:
    return [slice(start, start + _CLASSES) for start in range(0, count, _CLASSES)]
