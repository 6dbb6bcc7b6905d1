"""Scores of classes by features that know no label, each label left out of its own score.

A linear discriminant: a class points from its known absent labels to its known present ones, in the
metric of the covariance of all images. It has an answer in closed form, and so has the score that a
label would get without itself, so that all labels that are known can be used twice: to learn from,
and to tell how scores of present labels lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_RIDGES = (1.0, 3.0, 10.0, 30.0)
"""Added to the variance in every direction, in units of their mean: each class has one of them."""
_MOST = 0.9
"""The largest share of images that a class is taken to be in."""
_CLEAR = 2.0
"""Deviations that present labels must be from all images, before a share is told by them."""
_SOFT = 2.5
"""Deviations from which on scores grow by their logarithm; log odds do about that."""
_NONE = 1e-9
"""What is divided by is no less."""


class FeatureSums:
    """What a discriminant needs of features, added up as they stream by.

    Args:
        width: How many numbers are a feature.
        num_classes: How many classes.
        device: Where to add up.
    """

    def __init__(self, width: int, num_classes: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.images, self.features, self.products = zeros(1), zeros(width), zeros(width, width)
        # Of present and of absent labels.
        self.labels, self.by_state = zeros(2, num_classes), zeros(2, num_classes, width)

    def update(self, features: Tensor, states: Tensor) -> None:
        """Take the features (B, F) of some images, and the states (B, C) of their labels."""
        features = features.double()
        self.images += len(features)
        self.features += features.sum(0)
        self.products += features.T @ features
        for i, there in enumerate((states > 0, states < 0)):
            known = there.double()
            self.labels[i] += known.sum(0)
            self.by_state[i] += known.T @ features

    def tensors(self) -> list[Tensor]:
        """All that is added up; sums of them are those of all images together."""
        return [self.images, self.features, self.products, self.labels, self.by_state]

    def discriminant(self) -> Discriminant:
        """What they say. A class without a present label scores 0."""
        number = self.images.clamp(min=1)
        mean = self.features / number
        covariance = self.products / number - torch.outer(mean, mean)
        # On the CPU, where the same numbers give the same axes whatever the device.
        variances, axes = torch.linalg.eigh(covariance.cpu())
        variances, axes = variances.clamp(min=0).to(mean.device), axes.to(mean.device)
        mean_variance = variances.mean().clamp(min=1e-12)
        present, absent = (self.by_state - self.labels[..., None] * mean) @ axes
        inverse = torch.stack([1 / (variances + ridge * mean_variance) for ridge in _RIDGES])
        tries = [_tried(present, absent, self.labels, variances, each) for each in inverse]
        shares, spreads, parting = (torch.stack(part) for part in zip(*tries, strict=True))
        best = parting.argmax(0, keepdim=True)
        share, spread = shares.gather(0, best)[0], spreads.gather(0, best)[0]
        directions = _joined(present, absent, share) * inverse[best[0]]
        return Discriminant(
            mean.float(),
            axes.float(),
            inverse.float(),
            directions.T.float(),
            share.float(),
            spread.clamp(min=1e-12).float(),
            self.labels.float(),
            best[0],
        )


def _tried(
    present: Tensor, absent: Tensor, labels: Tensor, variances: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What comes of one metric, for each class.

    With d from absent to present images and s the share of present ones, the means of known labels
    are (1 - s) d and -s d from that of all images. So the sum of present ones times 1 - s less that
    of absent ones times s is d with the least error: of a rare class absent labels say nothing that
    all images do not, of a class in half of the images they say as much as present ones.

    Args:
        present: (C, F) the sums of present labels, less the mean of all images, along the axes.
        absent: (C, F) those of absent labels.
        labels: (2, C) how many there are of each.
        variances: (F,) of all images along the axes.
        inverse: (F,) the metric along the axes.

    Returns:
        The share of images that show a class, the deviation of the scores of all images, and how
        far present labels are from absent ones in such deviations.
    """
    n, m = labels
    own = variances @ inverse  # what a label adds to the square of a sum, on average
    noise = (variances * inverse).square().sum().sqrt()  # deviation of a product of two labels
    square = ((present**2 @ inverse) - n * own) / (n * (n - 1)).clamp(min=1)
    across = ((present * absent) @ inverse) / (n * m).clamp(min=1)
    # square is (1 - s)^2 d^2, across -s (1 - s) d^2: by that less its error, since it is better to
    # do without absent labels than to take those of a rare class for something
    across = (across + noise / (n * m).clamp(min=1).sqrt()).clamp(max=0)
    told = (n > 1) & (m > 0) & (square > _CLEAR * noise * (2 / (n * (n - 1)).clamp(min=1)).sqrt())
    share = torch.where(told, -across / torch.where(told, square - across, 1.0), 0.0)
    share = share.clamp(0, _MOST)
    weight, sums = _weight(share, n, m), _joined(present, absent, share)
    spread = ((sums * inverse) ** 2 @ variances).sqrt()
    distance = (sums**2 @ inverse) - weight * own
    return share, spread, distance / (weight * spread).clamp(min=_NONE)


def _joined(present: Tensor, absent: Tensor, share: Tensor) -> Tensor:
    """Sums of present and of absent labels as those of a direction."""
    return (1 - share)[:, None] * present - share[:, None] * absent


def _weight(share: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """What such a joined sum is divided by, to be d."""
    return (1 - share) ** 2 * present + share**2 * absent


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Features to scores; those of all images have mean 0 and deviation 1, but for large ones.

    Example:
        >>> sums = FeatureSums(1, 1)
        >>> features = torch.tensor([[0.0], [0.0], [3.0], [3.0]])
        >>> sums.update(features, torch.tensor([[0], [0], [1], [1]]))
        >>> found = sums.discriminant()
        >>> [round(score, 2) for score in found.scores(features[1:3])[:, 0].tolist()]
        [-0.98, 0.98]
    """

    mean: Tensor
    axes: Tensor
    """(F, F)"""
    inverse: Tensor
    """(ridges, F) the metrics along the axes."""
    directions: Tensor
    """(F, C) along the axes."""
    share: Tensor
    """(C,) about how many images show a class."""
    spread: Tensor
    """(C,) the deviation of the scores before they are divided by it."""
    labels: Tensor
    """(2, C) how many labels of a class were known, present and absent."""
    ridge: Tensor
    """(C,) which of the metrics a class has."""

    def scores(self, features: Tensor, states: Tensor | None = None) -> Tensor:
        """Scores (B, C), float32, of features (B, F).

        Args:
            features: Those that were taken into the sums, or others.
            states: (B, C): known labels are in the sums, and are to be left out of their own
                score. A class that has no other scores 0.
        """
        inside = (features.float() - self.mean) @ self.axes
        scores = inside @ self.directions
        if states is not None:
            weight = _weight(self.share, self.labels[0], self.labels[1])
            added = (states > 0) * (1 - self.share) - (states < 0) * self.share
            own = (inside.square() @ self.inverse.T)[:, self.ridge]
            others = weight - added**2
            without = (scores - added * own) * weight / others.clamp(min=_NONE)
            scores = torch.where(others > 1e-6 * weight, without, 0.0)
        scores = scores / self.spread
        return _SOFT * torch.asinh(scores / _SOFT)
