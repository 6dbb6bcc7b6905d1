"""Focal losses with a focusing of their own for present, absent and unknown labels (ASL, P-ASL)."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from partlabel.losses.base import (
    Unknown,
    absent_term,
    choice,
    margin_of,
    number,
    power,
    switch,
)
from partlabel.losses.fusable import Fusable
from partlabel.losses.recipe import Recipe


class PartialAsymmetric(Fusable):
    """P-ASL: focusing gamma_pos, gamma_neg, gamma_unknown; unknown labels count as absent.

    Present: (1 - p)^gamma_pos (-log p). Absent: q^gamma_neg (-log(1 - q)), q = max(p - clip, 0).
    Unknown: as absent with gamma_unknown. Defaults are those of the paper's code.

    Args:
        gamma_pos: Focusing of present labels.
        gamma_neg: Focusing of verified absent labels.
        gamma_unknown: Focusing of unknown labels.
        clip: Shift of the probability of absent and unknown labels.
        alpha_pos: Multiplier of present labels; alpha_neg and alpha_unknown likewise.
        alpha_neg: Multiplier of verified absent labels.
        alpha_unknown: Multiplier of unknown labels.
        detach_focus: Take the focusing factor as a constant in the gradient, as the paper's code
            does.
        base: What Fusable takes.

    Example:
        >>> loss = PartialAsymmetric(gamma_pos=0, gamma_neg=1, gamma_unknown=2)
        >>> states = torch.tensor([[1, -1, 0]], dtype=torch.int8)
        >>> [round(x, 4) for x in loss.terms(torch.zeros(1, 3), states)[0].tolist()]
        [0.6931, 0.3466, 0.1733]
    """

    def __init__(
        self,
        *,
        gamma_pos: float = 0.0,
        gamma_neg: float = 1.0,
        gamma_unknown: float = 2.0,
        clip: float = 0.0,
        alpha_pos: float = 1.0,
        alpha_neg: float = 1.0,
        alpha_unknown: float = 1.0,
        detach_focus: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.gamma_pos = number("gamma_pos", gamma_pos, 0.0)
        self.gamma_neg = number("gamma_neg", gamma_neg, 0.0)
        self.gamma_unknown = number("gamma_unknown", gamma_unknown, 0.0)
        self.clip = number("clip", clip, 0.0, 0.99)
        if 0 < self.clip < 1e-6:  # 1 - (1 - clip) would be 0 in float32
            raise ValueError(f"clip must be 0 or at least 1e-6, got {clip!r}")
        self.alpha_pos = number("alpha_pos", alpha_pos, 0.0)
        self.alpha_neg = number("alpha_neg", alpha_neg, 0.0)
        self.alpha_unknown = number("alpha_unknown", alpha_unknown, 0.0)
        self.detach_focus = switch("detach_focus", detach_focus)

    def recipe(self) -> Recipe:
        return Recipe(
            gamma_pos=self.gamma_pos,
            gamma_neg=self.gamma_neg,
            gamma_unknown=self.gamma_unknown,
            clip=self.clip,
            alpha_pos=self.alpha_pos,
            alpha_neg=self.alpha_neg,
            alpha_unknown=self.alpha_unknown,
            detach_focus=self.detach_focus,
        )

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        present, unknown = states > 0, states == 0
        margin = margin_of(logits, present)
        term = self._cross_entropy(margin, present)
        # All factors go into one weight: where none has a gradient, backward passes them once.
        weight = self._focus(margin, present, unknown)
        weight = _product(weight, self._alpha(present, unknown, term))
        weight = self.unknown_weight(weight, logits.detach(), unknown)
        return term if weight is None else term * weight

    def unknown_weight(
        self, weight: Tensor | None, logits: Tensor, unknown: Tensor
    ) -> Tensor | None:
        """Change the weight of unknown labels; None stands for one."""
        return weight

    def _cross_entropy(self, margin: Tensor, present: Tensor) -> Tensor:
        plain = absent_term(margin)
        if not self.clip:
            return plain
        probability = margin.sigmoid()
        shifted = -torch.log1p(-(probability - self.clip).clamp(min=0.0))
        return torch.where(present, plain, shifted)

    def _focus(self, margin: Tensor, present: Tensor, unknown: Tensor) -> Tensor | None:
        gammas = (self.gamma_pos, self.gamma_neg, self.gamma_unknown)
        if gammas == (0.0, 0.0, 0.0):
            return None
        base = margin.detach() if self.detach_focus else margin
        probability = base.sigmoid()
        if not self.clip:
            powers = {gamma: _power(probability, base, gamma) for gamma in set(gammas)}
            return _by_state(present, unknown, *(powers[gamma] for gamma in gammas))
        above = probability > self.clip
        # At zero a power below one has no derivative: put one there and take it out after.
        shifted = torch.where(above, probability - self.clip, 1.0)
        clipped = {
            gamma: torch.where(above, power(shifted, gamma), 0.0) for gamma in set(gammas[1:])
        }
        kept = _power(probability, base, self.gamma_pos)
        return _by_state(present, unknown, kept, clipped[gammas[1]], clipped[gammas[2]])

    def _alpha(self, present: Tensor, unknown: Tensor, like: Tensor) -> Tensor | None:
        alphas = (self.alpha_pos, self.alpha_neg, self.alpha_unknown)
        if alphas == (1.0, 1.0, 1.0):
            return None
        return _by_state(present, unknown, *(like.new_full((), alpha) for alpha in alphas))


class Asymmetric(PartialAsymmetric):
    """ASL (Ben-Baruch et al., 2020): unknown labels count as absent, or are ignored.

    Defaults are those of its authors' class; their COCO script has gamma_pos = 0.
    """

    def __init__(
        self,
        *,
        gamma_pos: float = 1.0,
        gamma_neg: float = 4.0,
        clip: float = 0.05,
        unknown: Unknown = "negative",
        **more: Any,
    ) -> None:
        if "gamma_unknown" in more:
            raise ValueError("gamma_unknown belongs to partial_asymmetric; here it is gamma_neg")
        super().__init__(
            gamma_pos=gamma_pos, gamma_neg=gamma_neg, gamma_unknown=gamma_neg, clip=clip, **more
        )
        choice("unknown", unknown, get_args(Unknown))
        self.unknown = unknown

    def recipe(self) -> Recipe:
        recipe = super().recipe()
        return recipe if self.unknown == "negative" else recipe._replace(alpha_unknown=0.0)

    def unknown_weight(
        self, weight: Tensor | None, logits: Tensor, unknown: Tensor
    ) -> Tensor | None:
        """Ignore unknown labels where that is wanted."""
        return weight if self.unknown == "negative" else without(weight, unknown, logits)


def without(weight: Tensor | None, ignored: Tensor, like: Tensor) -> Tensor:
    """A weight with zeros where a label is ignored; None stands for one."""
    if weight is None:
        return (~ignored).to(like.dtype)
    if weight.requires_grad:
        return torch.where(ignored, 0.0, weight)
    return weight.masked_fill_(ignored, 0.0)  # nobody else has it


def _product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _power(probability: Tensor, margin: Tensor, gamma: float) -> Tensor:
    if gamma == int(gamma):
        return power(probability, gamma)
    # Through log p: below one the power has no derivative at p = 0, this has.
    return torch.exp(gamma * torch.nn.functional.logsigmoid(margin))


def _by_state(
    present: Tensor, unknown: Tensor, of_present: Tensor, of_absent: Tensor, of_unknown: Tensor
) -> Tensor:
    rest = of_unknown
    if of_absent is not of_unknown:
        rest = torch.where(unknown, of_unknown, of_absent)
    return rest if of_present is rest else torch.where(present, of_present, rest)
