"""Large losses are probably missing positives: reject or correct them (Kim et al., CVPR 2022)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from partlabel.losses.base import (
    PartialLoss,
    absent_term,
    choice,
    chosen,
    number,
    present_term,
    rows_of,
)


class LargeLoss(PartialLoss):
    """LL-R, LL-Ct, LL-Cp: unknown labels count as absent, but those with the largest loss do not.

    "reject" ignores them, "correct" takes them as present in this step, "permanent" takes them as
    present for good. In epoch t (from 0) a share of t * delta of all B * C labels of the batch is
    taken ("permanent": delta in each epoch but the first), ties included. Each process looks at
    its own images. Labels corrected for good are kept in this loss, as a sorted list of (row,
    class), and take effect from the next epoch on: an image is seen once in an epoch.

    Args:
        variant: "reject", "correct" or "permanent".
        delta: Share of labels by which the selection grows in each epoch.
    """

    batchwise = True

    def __init__(
        self,
        *,
        variant: Literal["reject", "correct", "permanent"] = "reject",
        delta: float = 0.002,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        choice("variant", variant, ("reject", "correct", "permanent"))
        self.variant = variant
        self.delta = number("delta", delta, 0.0, 1.0)
        self._epoch = 0
        self._corrected = torch.zeros(0, dtype=torch.int64)
        self._fresh: list[Tensor] = []
        self.per_process = variant == "permanent"

    def end_epoch(self) -> None:
        """Share the corrections of this epoch with the other processes."""
        if self.per_process and dist.is_available() and dist.is_initialized():
            found: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(found, self._joined().cpu())
            self._fresh = [torch.cat(found)]

    def _joined(self) -> Tensor:
        if not self._fresh:
            return torch.zeros(0, dtype=torch.int64)
        device = self._fresh[-1].device  # those of a checkpoint come from the CPU
        return torch.cat([part.to(device) for part in self._fresh])

    def forward(
        self, logits: Tensor, states: Tensor, *, epoch: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """Compute the loss; ``index`` (B,) are the rows of the images, needed by "permanent"."""
        logits = self.checked(logits, states)
        rows = rows_of(index, logits) if self.variant == "permanent" else None
        if rows is not None:
            states = self._with_corrections(states, epoch, rows)
        present, absent = present_term(logits), absent_term(logits)
        unknown = absent
        scores = torch.where(states == 0, logits.detach(), float("-inf"))
        count = self._count(logits.numel(), epoch)
        if count:
            largest, places = scores.view(-1).topk(count, sorted=False)
            lowest = largest.amin().clamp(min=torch.finfo(scores.dtype).min)
            large = scores >= lowest  # as many as wanted, and those that tie the last
            unknown = torch.where(large, 0.0 if self.variant == "reject" else present, absent)
            if rows is not None and self.training:
                keys = _keys(rows, logits.shape[1]).view(-1)[places]
                self._fresh.append(torch.where(largest >= lowest, keys, -1))
        return self.reduced(chosen(states, present, absent, unknown))

    def _count(self, labels: int, epoch: int) -> int:
        share = self.delta * (min(epoch, 1) if self.variant == "permanent" else epoch)
        return min(math.ceil(share * labels - 1e-9), labels)

    def _with_corrections(self, states: Tensor, epoch: int, index: Tensor) -> Tensor:
        if self.training and epoch != self._epoch:
            self._settle()
            self._epoch = epoch
        if self._corrected.device != states.device:
            self._corrected = self._corrected.to(states.device)
        if not len(self._corrected):
            return states
        keys = _keys(index, states.shape[1])
        place = torch.searchsorted(self._corrected, keys).clamp(max=len(self._corrected) - 1)
        corrected = (self._corrected[place] == keys) & (states == 0)
        return torch.where(corrected, 1, states).to(torch.int8)

    def _settle(self) -> None:
        """Once an epoch: sort in what the last one selected."""
        if self._fresh:
            fresh = self._joined()
            found = torch.unique(torch.cat([fresh, self._corrected.to(fresh.device)]))
            self._corrected = found[found >= 0]
            self._fresh = []

    def get_extra_state(self) -> dict[str, Any]:
        """The corrections, for the checkpoint."""
        fresh = self._joined().cpu()
        return {"epoch": self._epoch, "corrected": self._corrected.cpu(), "fresh": fresh}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the corrections of a checkpoint."""
        self._epoch = int(state["epoch"])
        self._corrected = state["corrected"]
        self._fresh = [state["fresh"]] if len(state["fresh"]) else []


def _keys(index: Tensor, classes: int) -> Tensor:
    """One number for each (row, class) of a batch."""
    return index[:, None] * classes + torch.arange(classes, device=index.device)
