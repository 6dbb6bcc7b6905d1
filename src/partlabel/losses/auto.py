"""The loss that needs no choice: an unknown label costs what is expected by its posterior."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from partlabel.losses.base import (
    PartialLoss,
    absent_term,
    chosen,
    described,
    number,
    power,
    present_term,
)


class Auto(PartialLoss):
    """An unknown label costs what it would cost present and absent, weighed by its posterior q.

    Present: -log p. Absent: p^gamma_neg (-log(1 - p)). Unknown: q (-log p) + (1 - q)
    p^gamma_unknown (-log(1 - p)). The focusing factors are constants in the gradient. Where q is 0
    or 1 that is an absent or a present label; there is nothing to ignore and no K.

    The trainer estimates q by itself, with a first stage (docs/training.md). Whoever trains
    otherwise gives it with every batch.

    Args:
        gamma_neg: Focusing of verified absent labels.
        gamma_unknown: Focusing of unknown labels, as far as they are absent.
        alpha_pos: Weight of labels that are known to be present. Left out, it is what the trainer
            finds, from 1 to 4; else 1.
        base: What PartialLoss takes.

    Example:
        >>> import torch
        >>> states = torch.tensor([[1, -1, 0]], dtype=torch.int8)
        >>> q = torch.tensor([[0.0, 0.0, 1.0]])
        >>> Auto(reduction="none")(torch.zeros(1, 3), states, posterior=q)[0].numpy().round(4)
        array([0.6931, 0.3466, 0.6931], dtype=float32)
    """

    def __init__(
        self,
        *,
        gamma_neg: float = 1.0,
        gamma_unknown: float = 0.5,
        alpha_pos: float | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.gamma_neg = number("gamma_neg", gamma_neg, 0.0)
        self.gamma_unknown = number("gamma_unknown", gamma_unknown, 0.0)
        self.alpha_pos = None if alpha_pos is None else number("alpha_pos", alpha_pos, 0.0)

    def forward(
        self,
        logits: Tensor,
        states: Tensor,
        *,
        posterior: Tensor | None = None,
        alpha_pos: float = 1.0,
    ) -> Tensor:
        """Compute the loss.

        Args:
            logits: (B, C), any float dtype.
            states: int8 (B, C): +1 present, -1 verified absent, 0 unknown.
            posterior: Float (B, C), how probably each label is present; read where it is unknown.
                None takes all unknown labels as absent.
            alpha_pos: The weight of known present labels, where the settings leave it open.
        """
        logits = self.checked(logits, states)
        present, absent = present_term(logits), absent_term(logits)
        p = logits.detach().sigmoid()
        unknown = power(p, self.gamma_unknown) * absent
        if posterior is not None:
            q = _checked(posterior, logits)
            unknown = q * present + (1 - q) * unknown
        known = power(p, self.gamma_neg) * absent
        weight = alpha_pos if self.alpha_pos is None else self.alpha_pos
        return self.reduced(chosen(states, weight * present, known, unknown))


def _checked(posterior: Tensor, logits: Tensor) -> Tensor:
    good = isinstance(posterior, Tensor) and posterior.is_floating_point()
    if not good or posterior.shape != logits.shape or posterior.device != logits.device:
        want = f"a float tensor {tuple(logits.shape)} on {logits.device}"
        raise ValueError(f"posterior must be {want}, got {described(posterior)}")
    return posterior.detach().to(logits.dtype)
