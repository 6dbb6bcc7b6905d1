"""Entropy maximisation on unknown labels, with asymmetric pseudo-labels (Zhou et al., 2022)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partlabel.losses.base import (
    PartialLoss,
    absent_term,
    chosen,
    number,
    present_term,
    rows_of,
    whole,
)

_BINS = 1024
_REACH = 10.0  # asinh(z / 2) of logits to 2 * 10^4


class EntropyMax(PartialLoss):
    """EM: an unknown label is worth its entropy, so that the model is not pushed to a guess.

    With ``num_images`` also APL: from epoch ``warmup`` on, each epoch the lowest-scored unknown
    labels of each class, share / (epochs - warmup) of them, get their score as a soft label for
    good, which costs beta times cross-entropy instead. Which scores are lowest is read from a
    histogram per class of the epoch before, each process from its own images.

    Args:
        alpha: Weight of the entropy.
        beta: Weight of pseudo-labels.
        warmup: Epochs before the first pseudo-labels.
        epochs: Epochs of the whole training.
        share: Share of the unknown labels that have a pseudo-label in the end.
        num_images: Rows of the table of pseudo-labels; None or 0 leaves APL out.
        num_classes: Its columns.
        max_state_gb: Refuse a larger table.
    """

    labels: Tensor | None
    histogram: Tensor
    bound: Tensor

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        beta: float = 0.9,
        warmup: int = 5,
        epochs: int = 10,
        share: float = 0.9,
        num_images: int | None = None,
        num_classes: int | None = None,
        max_state_gb: float = 4.0,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.alpha = number("alpha", alpha, 0.0)
        self.beta = number("beta", beta, 0.0)
        self.warmup = whole("warmup", warmup, 0)
        self.epochs = whole("epochs", epochs, 1)
        self.share = number("share", share, 0.0, 1.0)
        self.batchwise = bool(num_images)
        self.register_buffer("labels", None)
        if not num_images:
            return
        if warmup >= epochs:
            raise ValueError(f"warmup must be less than epochs ({epochs}), got {warmup}")
        rows, classes = (
            whole("num_images", num_images, 1),
            whole("num_classes", num_classes or 0, 1),
        )
        number("max_state_gb", max_state_gb, 0.0)
        if rows * classes * 2 / 1e9 > max_state_gb:
            raise ValueError(
                f"entropy_max needs {rows * classes * 2 / 1e9:.1f} GB for {rows} x {classes} "
                f"pseudo-labels; max_state_gb is {max_state_gb:g}, num_images=0 leaves them out"
            )
        self.labels = torch.full((rows, classes), torch.nan, dtype=torch.float16)
        self.register_buffer("histogram", torch.zeros(classes, _BINS, dtype=torch.int64))
        self.register_buffer("bound", torch.full((classes,), -torch.inf))
        self._epoch = 0
        self.per_process = True

    def end_epoch(self) -> None:
        """Share pseudo-labels and counts of this epoch with the other processes."""
        if self.labels is None or not (dist.is_available() and dist.is_initialized()):
            return
        there = self.labels.nan_to_num(-1.0)
        dist.all_reduce(there, op=dist.ReduceOp.MAX)
        self.labels.copy_(torch.where(there < 0, torch.nan, there))
        dist.all_reduce(self.histogram)

    def forward(
        self, logits: Tensor, states: Tensor, *, epoch: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """Compute the loss; ``index`` (B,) are the rows of the images, needed with num_images."""
        logits = self.checked(logits, states)
        present, absent = present_term(logits), absent_term(logits)
        p, q = logits.sigmoid(), (-logits).sigmoid()
        unknown = -self.alpha * (p * present + q * absent)
        if self.labels is not None:
            rows = rows_of(index, logits, self.labels.shape[1])
            soft = self._pseudo_labels(logits.detach(), states, epoch, rows).to(logits.dtype)
            known = soft.nan_to_num(0.0)
            cost = self.beta * (known * present + (1 - known) * absent)
            unknown = torch.where(soft.isnan(), unknown, cost)
        return self.reduced(chosen(states, present, absent, unknown))

    def _pseudo_labels(self, logits: Tensor, states: Tensor, epoch: int, index: Tensor) -> Tensor:
        """The soft labels of the batch, new ones included; NaN where there is none."""
        assert self.labels is not None
        if not self.training:
            return self.labels[index]
        if epoch != self._epoch:
            self._next_epoch(epoch)
        soft = self.labels[index]
        free = (states == 0) & soft.isnan()
        lowest = free & (logits <= self.bound.to(logits.dtype))
        soft = torch.where(lowest, logits.sigmoid().to(soft.dtype), soft)
        self.labels[index] = soft
        self._count(logits, free & ~lowest)
        return soft

    def _count(self, logits: Tensor, counted: Tensor) -> None:
        # Fine bins around 0 and coarse ones far out: low scores must still be told apart.
        scaled = (torch.asinh(logits.float() / 2) + _REACH) * (_BINS / (2 * _REACH))
        bins = scaled.clamp(0, _BINS - 1).long()
        offset = torch.arange(logits.shape[1], device=logits.device) * _BINS
        flat = (bins + offset).reshape(-1)
        self.histogram.view(-1).scatter_add_(0, flat, counted.reshape(-1).long())

    def _next_epoch(self, epoch: int) -> None:
        """Find the bound below which the lowest scores of each class lie, and count anew."""
        if epoch >= self.warmup:
            assert self.labels is not None
            labelled = (~self.labels.isnan()).sum(0)
            below = self.histogram.cumsum(1)
            plan = self.share * min((epoch - self.warmup + 1) / (self.epochs - self.warmup), 1.0)
            wanted = (plan * (labelled + below[:, -1]) - labelled).clamp(min=0.0)
            # The bin in which the count is reached, and how far into it.
            bin_ = (below < wanted[:, None]).sum(1).clamp(max=_BINS - 1)
            inside = self.histogram.gather(1, bin_[:, None])[:, 0].clamp(min=1)
            before = below.gather(1, bin_[:, None])[:, 0] - inside
            place = bin_ + ((wanted - before) / inside).clamp(0.0, 1.0)
            self.bound.copy_(2 * torch.sinh(place.float() * (2 * _REACH / _BINS) - _REACH))
            self.bound.masked_fill_((wanted < 1) | (below[:, -1] == 0), -torch.inf)
        self.histogram.zero_()
        self._epoch = epoch

    def get_extra_state(self) -> dict[str, int]:
        """The epoch, for the checkpoint."""
        return {"epoch": getattr(self, "_epoch", 0)}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Take the epoch of a checkpoint."""
        self._epoch = int(state["epoch"])
