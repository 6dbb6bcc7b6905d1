"""What is kept of logits that stream by: a histogram per class, or their running mean.

A histogram (1,024 bins, with the mean logit of each) is small, merges across processes, and holds
all that a mean, a correction or a calibration needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist

BINS = 1024
REACH = 16.0  # beyond this sigmoid is 0 or 1 to seven digits

Floats = npt.NDArray[np.float64]


class LogitHistogram:
    """Counts and sums of logits per class and bin.

    Example:
        >>> seen = LogitHistogram(2)
        >>> seen.update(torch.tensor([[0.0, 20.0], [0.0, -20.0]]))
        >>> seen.mean().round(3).tolist()
        [0.5, 0.5]
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.counts = torch.zeros(num_classes, BINS, dtype=torch.int64, device=device)
        self.sums = torch.zeros(num_classes, BINS, dtype=torch.float64, device=device)

    def update(self, logits: Tensor, where: Tensor | None = None) -> None:
        """Take the logits (B, C) of some images; does not wait for the device.

        Args:
            logits: Of any float dtype.
            where: Booleans (B, C), which of them count; left out, all do.
        """
        if logits.ndim != 2 or logits.shape[1] != self.counts.shape[0]:
            want = f"(B, {self.counts.shape[0]})"
            raise ValueError(f"logits must be {want}, got {tuple(logits.shape)}")
        clipped = logits.detach().double().clamp(-REACH, REACH).to(self.counts.device)
        if where is not None:
            if where.shape != logits.shape or where.dtype != torch.bool:
                got = f"{where.dtype} {tuple(where.shape)}"
                raise ValueError(f"where must be bool {tuple(logits.shape)}, got {got}")
            where = where.to(clipped.device)
            clipped = clipped.masked_fill(~where, 0.0)
        # NaN goes into the first bin, where its sum gives it away: see columns().
        bins = ((clipped + REACH) * (BINS / (2 * REACH))).nan_to_num(0.0).long().clamp(0, BINS - 1)
        flat = (bins + torch.arange(bins.shape[1], device=bins.device) * BINS).reshape(-1)
        # A fixed shape: what does not count is added as 0.
        each = torch.ones_like(flat) if where is None else where.reshape(-1).long()
        self.counts.view(-1).scatter_add_(0, flat, each)
        self.sums.view(-1).scatter_add_(0, flat, clipped.reshape(-1))

    def merge(self, other: LogitHistogram) -> None:
        """Add what another one has seen."""
        self.counts += other.counts.to(self.counts.device)
        self.sums += other.sums.to(self.sums.device)

    def all_reduce(self) -> None:
        """Add up what all processes have seen, where there are several."""
        _all_reduce(self.counts, self.sums)

    def state_dict(self) -> dict[str, Tensor]:
        """The state, to save."""
        return {"counts": self.counts, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a saved state."""
        self.counts.copy_(state["counts"])
        self.sums.copy_(state["sums"])

    @property
    def images(self) -> int:
        """How many images were seen; with ``where``, of the class that counted most often."""
        return int(self.labels.max())

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """How many logits of each class were counted."""
        return np.asarray(self.counts.sum(1).cpu().numpy())

    def columns(self) -> tuple[Floats, Floats]:
        """The mean logit in each bin (C, 1024), and the share of the class's logits in it."""
        counts = self.counts.cpu().numpy().astype(np.float64)
        sums = self.sums.cpu().numpy()
        wrong = np.flatnonzero(~np.isfinite(sums).all(1))
        if len(wrong):
            raise ValueError(f"logits of class {wrong[0]} had NaN")
        return sums / np.maximum(counts, 1), counts / np.maximum(self.labels, 1)[:, None]

    def _columns(self) -> tuple[Floats, Floats]:
        logits, share = self.columns()
        return 1 / (1 + np.exp(-logits)), share

    def mean(self) -> Floats:
        """The mean prediction of each class."""
        probability, share = self._columns()
        return np.asarray((probability * share).sum(1))

    def corrected(self, trained_at: Floats, *, steps: int = 60) -> Floats:
        """The prior of each class after correction for the share of positives it was trained at.

        Expectation-maximisation climbs a likelihood that is concave in the prior; its top is found
        by halving, which needs a fixed number of steps where EM may need thousands.

        Args:
            trained_at: (C,) the annotated positives over all annotations of each class; classes
                with 0 or 1 are not corrected.
            steps: How often the interval is halved.
        """
        probability, share = self._columns()
        possible = (trained_at > 0) & (trained_at < 1)
        train = np.where(possible, trained_at, 0.5)[:, None]
        up, down = probability / train, (1 - probability) / (1 - train)
        low, high = np.zeros(len(train)), np.ones(len(train))
        for _ in range(steps):
            middle = (low + high) / 2
            mixed = middle[:, None] * (up - down) + down
            slope = (share * (up - down) / mixed).sum(1)
            low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
        return np.where(possible, (low + high) / 2, (probability * share).sum(1))


class RunningMean:
    """The running mean of predictions during training, as the paper's code estimates its prior.

    Example:
        >>> running = RunningMean(1)
        >>> running.update(torch.zeros(4, 1))
        >>> running.mean().tolist()
        [0.5]
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.total = torch.zeros(num_classes, dtype=torch.float64, device=device)
        self.seen = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, logits: Tensor) -> None:
        """Take the logits (B, C) of a training step."""
        self.total += logits.detach().double().sigmoid().sum(0).to(self.total.device)
        self.seen += logits.shape[0]

    def all_reduce(self) -> None:
        """Add up what all processes have seen, where there are several."""
        _all_reduce(self.total, self.seen)

    def state_dict(self) -> dict[str, Tensor]:
        """The state, to save."""
        return {"total": self.total, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a saved state."""
        self.total.copy_(state["total"])
        self.seen.copy_(state["seen"])

    @property
    def images(self) -> int:
        """How many images were seen, repetitions included."""
        return int(self.seen)

    def mean(self) -> Floats:
        """The mean so far."""
        return np.asarray((self.total / self.seen.clamp(min=1)).cpu().numpy())


def _all_reduce(*tensors: Tensor) -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)
