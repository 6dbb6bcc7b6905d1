"""Scores of classes by features that know no label, each label left out of its own score.

A linear discriminant: a class points from the mean of all features to that of its present labels,
in the metric of the covariance of all. It has an answer in closed form, and so has the score that a
label would get without itself, so that all labels that are known can be used twice: to learn from,
and to tell how scores of present labels lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_RIDGE = 3.0
"""Added to the variance in every direction, in units of their mean."""
_SOFT = 2.5
"""Deviations from which on scores grow by their logarithm; log odds do about that."""


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
        self.labels, self.present = zeros(num_classes), zeros(num_classes, width)

    def update(self, features: Tensor, present: Tensor) -> None:
        """Take the features (B, F) of some images, and where labels (B, C) are present."""
        features, present = features.double(), present.double()
        self.images += len(features)
        self.features += features.sum(0)
        self.products += features.T @ features
        self.labels += present.sum(0)
        self.present += present.T @ features

    def tensors(self) -> list[Tensor]:
        """All that is added up; sums of them are those of all images together."""
        return [self.images, self.features, self.products, self.labels, self.present]

    def discriminant(self) -> Discriminant:
        """What they say. A class without a present label scores 0."""
        number = self.images.clamp(min=1)
        mean = self.features / number
        covariance = self.products / number - torch.outer(mean, mean)
        # On the CPU, where the same numbers give the same axes whatever the device.
        variances, axes = torch.linalg.eigh(covariance.cpu())
        variances, axes = variances.clamp(min=0).to(mean.device), axes.to(mean.device)
        damped = variances + _RIDGE * variances.mean().clamp(min=1e-12)
        whiten = axes * damped.rsqrt()
        centre = (
            self.present / self.labels.clamp(min=1)[:, None] - mean * (self.labels > 0)[:, None]
        )
        directions = (centre @ whiten).T
        spread = ((variances / damped)[:, None] * directions**2).sum(0).sqrt()
        parts = (mean, whiten, directions, spread.clamp(min=1e-12), self.labels)
        return Discriminant(*(part.float() for part in parts))


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Features to scores; those of all images have mean 0 and deviation 1, but for large ones.

    Example:
        >>> sums = FeatureSums(1, 1)
        >>> features = torch.tensor([[0.0], [0.0], [3.0], [3.0]])
        >>> sums.update(features, features > 0)
        >>> found = sums.discriminant()
        >>> [round(score, 2) for score in found.scores(features[1:3])[:, 0].tolist()]
        [-0.98, 0.98]
    """

    mean: Tensor
    whiten: Tensor
    """(F, F)"""
    directions: Tensor
    """(F, C)"""
    spread: Tensor
    """(C,) the deviation of the scores before they are divided by it."""
    labels: Tensor
    """(C,) how many labels of the class were known to be present."""

    def scores(self, features: Tensor, present: Tensor | None = None) -> Tensor:
        """Scores (B, C), float32, of features (B, F).

        Args:
            features: Those that were taken into the sums, or others.
            present: Booleans (B, C): labels that are in the sums, and are to be left out of their
                own score. A class that has no other scores 0.
        """
        inside = (features.float() - self.mean) @ self.whiten
        scores = inside @ self.directions
        if present is not None:
            own = inside.square().sum(1, keepdim=True)
            others = self.labels - 1
            without = (scores * self.labels - own) / others.clamp(min=1)
            scores = torch.where(present, without * (others > 0), scores)
        scores = scores / self.spread
        return _SOFT * torch.asinh(scores / _SOFT)
