"""The selective loss of the paper: which unknown labels to ignore, and P-ASL for the rest."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from partlabel.losses.asymmetric import PartialAsymmetric, without
from partlabel.losses.base import choice, class_vector, number, whole
from partlabel.losses.recipe import Recipe


class Selective(PartialAsymmetric):
    """P-ASL that ignores the unknown labels which are probably present.

    An unknown label is ignored where its logit is among the ``top_k`` largest of the unknown
    labels of its image (ties at the threshold included), or where its class is frequent: prior >
    prior_threshold. With ``prior_mode="soft"`` the class does not decide but weighs:
    exp(-prior_alpha * prior). All other unknown labels count as absent. top_k = 0 ignores none,
    top_k >= C ignores all.

    Args:
        top_k: How many unknown labels of an image to ignore.
        prior: (C,) how often each class occurs, in [0, 1]; None leaves the class out of it.
        prior_threshold: Classes with a larger prior are ignored where unknown. At 1 none is.
        prior_mode: "hard" ignores, "soft" weighs.
        prior_alpha: How strongly "soft" weighs.
        scope: "sample" takes the top_k of each image, as the paper; "batch" takes the top_k * B
            of the batch, as the paper's code. "batch" is computed per process: with several, each
            takes top_k times its own images.
        more: What PartialAsymmetric takes.

    Example:
        >>> loss = Selective(top_k=1, prior=torch.tensor([0.9, 0.1, 0.1]), gamma_unknown=0)
        >>> states = torch.zeros(1, 3, dtype=torch.int8)
        >>> loss.terms(torch.tensor([[0.0, 2.0, 0.0]]), states).gt(0).tolist()
        [[False, False, True]]
    """

    prior: Tensor | None
    frequent: Tensor | None
    rare: Tensor | None
    """1 where a class is not frequent: what a fused loss multiplies with."""

    def __init__(
        self,
        *,
        top_k: int = 5,
        prior: Tensor | None = None,
        prior_threshold: float = 0.5,
        prior_mode: Literal["hard", "soft"] = "hard",
        prior_alpha: float = 10.0,
        scope: Literal["sample", "batch"] = "sample",
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.top_k = whole("top_k", top_k, 0)
        self.prior_threshold = number("prior_threshold", prior_threshold, 0.0)
        choice("prior_mode", prior_mode, ("hard", "soft"))
        choice("scope", scope, ("sample", "batch"))
        self.prior_mode = prior_mode
        self.prior_alpha = number("prior_alpha", prior_alpha, 0.0)
        self.scope = scope
        self.batchwise = scope == "batch"
        if prior_mode == "soft" and prior is None:
            raise ValueError('prior must be given for prior_mode="soft", got None')
        self.register_buffer("prior", None)
        self.register_buffer("frequent", None)
        self.register_buffer("rare", None, persistent=False)
        if prior is not None:
            self.set_prior(prior)

    def set_prior(self, prior: Tensor) -> None:
        """Take a prior, or another one."""
        checked = class_vector("prior", prior)
        self.prior = checked
        # Decided once, in float32, whatever the dtype of logits or of a module that is cast.
        self.frequent = checked.float() > self.prior_threshold
        self.rare = _ones_where_not(self.frequent)

    def recipe(self) -> Recipe:
        return super().recipe()._replace(top_k=self.top_k)

    def class_table(self, classes: int) -> Tensor | None:
        """Weights of unknown labels by class: 0 where it is frequent, or what a soft prior says."""
        if self.prior is None or self.frequent is None:
            return None
        self._check_prior(classes)
        if self.prior_mode == "soft":
            return torch.exp(-self.prior_alpha * self.prior.float())
        return self.rare

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.rare = None if self.frequent is None else _ones_where_not(self.frequent)

    def unknown_weight(
        self, weight: Tensor | None, logits: Tensor, unknown: Tensor
    ) -> Tensor | None:
        """Ignore the unknown labels that are probably present, or weigh them by their class."""
        if self.prior is not None and self.prior_mode == "soft":
            soft = torch.where(unknown, torch.exp(-self.prior_alpha * self._prior_for(logits)), 1.0)
            weight = soft if weight is None else weight * soft
        ignored = self.ignored(logits, unknown)
        return weight if ignored is None else without(weight, ignored, logits)

    def ignored(self, logits: Tensor, unknown: Tensor) -> Tensor | None:
        """Where an unknown label is ignored (B, C); None where none can be."""
        chosen = self.likely(logits, unknown)
        if self.prior is None or self.prior_mode == "soft":
            return chosen
        assert self.frequent is not None
        self._check_prior(logits.shape[1])
        frequent = unknown & self.frequent
        return frequent if chosen is None else chosen | frequent

    def likely(self, logits: Tensor, unknown: Tensor) -> Tensor | None:
        """Where an unknown label is among the most likely of its image (or batch)."""
        if self.top_k == 0 or logits.numel() == 0:
            return None
        scores = torch.where(unknown, logits, float("-inf"))
        ranked = scores.reshape(1, -1) if self.scope == "batch" else scores
        count = min(self.top_k * (len(logits) if self.scope == "batch" else 1), ranked.shape[1])
        threshold = ranked.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
        # Where fewer are unknown than wanted the threshold is -inf, and known labels have that too.
        return scores >= threshold.clamp(min=torch.finfo(logits.dtype).min)

    def _prior_for(self, logits: Tensor) -> Tensor:
        assert self.prior is not None
        self._check_prior(logits.shape[1])
        return self.prior.to(logits.dtype)

    def _check_prior(self, classes: int) -> None:
        if self.prior is not None and self.prior.shape[0] != classes:
            got = f"{self.prior.shape[0]} values for {classes} classes"
            raise ValueError(f"prior must have one value per class, got {got}")


def _ones_where_not(frequent: Tensor) -> Tensor:
    return (~frequent).to(torch.float32)
