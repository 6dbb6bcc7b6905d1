"""Cross-entropy: unknown labels ignored or taken as negatives; weighted, and with a temperature."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from partlabel.losses.base import (
    PartialLoss,
    Unknown,
    absent_term,
    choice,
    chosen,
    described,
    number,
    present_term,
    whole,
)
from partlabel.losses.fusable import Fusable
from partlabel.losses.recipe import Recipe


class CrossEntropy(Fusable):
    """Binary cross-entropy; unknown labels cost nothing (Ignore) or count as absent (Negative).

    Example:
        >>> states = torch.tensor([[1, 0, -1]], dtype=torch.int8)
        >>> round(CrossEntropy()(torch.zeros(1, 3), states).item(), 4)
        1.3863
        >>> round(CrossEntropy(unknown="negative")(torch.zeros(1, 3), states).item(), 4)
        2.0794
    """

    def __init__(self, *, unknown: Unknown = "ignore", **base: Any) -> None:
        super().__init__(**base)
        choice("unknown", unknown, get_args(Unknown))
        self.unknown = unknown

    def recipe(self) -> Recipe:
        return Recipe(alpha_unknown=0.0 if self.unknown == "ignore" else 1.0)

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        positive = states > 0
        term = absent_term(torch.where(positive, -logits, logits))
        return term if self.unknown == "negative" else torch.where(states == 0, 0.0, term)


class WeightedCrossEntropy(PartialLoss):
    """Cross-entropy over known labels, weighted by how many an image has.

    "durand" (Durand et al., CVPR 2019): g(n / C) / C times the sum, g(q) = alpha q^gamma + beta,
    where n is the number of known labels. "csl" is what the paper's code calls wCE: 1 + 1 / (1 +
    n).
    """

    def __init__(
        self,
        *,
        kind: Literal["durand", "csl"] = "durand",
        alpha: float = -4.45,
        beta: float = 5.45,
        gamma: float = 1.0,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        choice("kind", kind, ("durand", "csl"))
        self.kind = kind
        self.alpha = number("alpha", alpha, float("-inf"))
        self.beta = number("beta", beta, float("-inf"))
        self.gamma = number("gamma", gamma, float("-inf"))

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        known = states != 0
        term = torch.where(known, absent_term(torch.where(states > 0, -logits, logits)), 0.0)
        count = known.sum(1, keepdim=True).to(logits.dtype)
        if self.kind == "csl":
            return term * (1 + 1 / (1 + count))
        classes = max(logits.shape[1], 1)
        share = count.clamp(min=1) / classes  # an image without known labels has no terms anyway
        return term * ((self.alpha * share**self.gamma + self.beta) / classes)


class SmoothedCrossEntropy(PartialLoss):
    """Unknown labels as negatives, softened by a temperature inside their sigmoid (SE, SE(LS)).

    The paper of Kundu and Tighe (NeurIPS 2020) was not at hand; this follows what others report of
    it, and the function of the distances is a reconstruction. Without ``distances`` every unknown
    has the same temperature. With them, an unknown class near a present class of the image is
    softened up to ``temperature``, one near an absent class is not.

    Args:
        temperature: Of all unknowns, or the highest.
        distances: (C, C) in [0, 1], how far classes are from each other, or None.
        max_known: How many present (and absent) labels of an image are looked at.
    """

    distances: Tensor | None

    def __init__(
        self,
        *,
        temperature: float = 5.0,
        distances: Tensor | None = None,
        max_known: int = 32,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.temperature = number("temperature", temperature, 1.0)
        self.max_known = whole("max_known", max_known, 1)
        if distances is not None:
            good = isinstance(distances, Tensor) and distances.ndim == 2
            if not good or distances.shape[0] != distances.shape[1]:
                got = described(distances)
                raise ValueError(f"distances must be a square tensor (C, C), got {got}")
            if not bool(((distances >= 0) & (distances <= 1)).all()):
                got = f"{float(distances.min()):g} to {float(distances.max()):g}"
                raise ValueError(f"distances must be between 0 and 1, got {got}")
            distances = distances.detach().clone()
        self.register_buffer("distances", distances)

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        if self.distances is None:
            softened = absent_term(logits / self.temperature)
        else:
            near = self._nearest(states > 0, logits.dtype)
            far = self._nearest(states < 0, logits.dtype)
            evidence = far / (near + far + 1e-6)
            softened = absent_term(logits / (1 + (self.temperature - 1) * evidence))
        return chosen(states, present_term(logits), absent_term(logits), softened)

    def _nearest(self, listed: Tensor, dtype: torch.dtype) -> Tensor:
        """For each class the distance to the nearest listed one; 1 where none is listed."""
        assert self.distances is not None
        if self.distances.shape[0] != listed.shape[1]:
            raise ValueError(
                f"distances are of {self.distances.shape[0]} classes, logits of {listed.shape[1]}"
            )
        found, places = listed.to(torch.int8).topk(min(self.max_known, listed.shape[1]), dim=1)
        nearest = torch.ones(listed.shape, dtype=dtype, device=listed.device)
        for column in range(places.shape[1]):  # one (B, C) at a time; (B, known, C) may not fit
            distance = self.distances[places[:, column]].to(dtype)
            distance = torch.where(found[:, column, None] > 0, distance, 1.0)
            nearest = torch.minimum(nearest, distance)
        return nearest
