"""What comes of a calibration: posteriors of any logits, a prior, something to save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partlabel.calibrate.fit import log_odds, matching
from partlabel.histogram import REACH, Floats, LogitHistogram
from partlabel.prior import ClassPrior, Prior
from partlabel.store import ClassCounts
from partlabel.tables import ClassTable


class HeldOut(NamedTuple):
    """Annotated pairs that a model was not shown: three arrays of equal length."""

    logits: Floats
    classes: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]
    """+1 or -1."""


def annotated_odds(counts: ClassCounts) -> Floats:
    """(C,) the log odds that an annotated label of each class is present.

    At least half a label of each state is added to those of a class, in the proportion of all
    classes, so that a class with a few absent labels is as rare as others and not one in four.

    Example:
        >>> counts = ClassCounts(np.array([9, 0]), np.array([90, 1]))
        >>> (1 / (1 + np.exp(-annotated_odds(counts)))).round(2).tolist()
        [0.09, 0.08]
    """
    known = counts.positives + counts.negatives
    share = np.clip(counts.positives.sum() / max(known.sum(), 1), 0.001, 0.999)
    added = 0.5 / min(share, 1 - share)
    return log_odds((counts.positives + added * share) / (known + added))


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the logits of a model become posteriors of unknown labels.

    Example:
        >>> flat = np.zeros(2)
        >>> half = Calibration(0.5, 0.0, flat, flat, flat, random=True, capped=False)
        >>> half.posterior(torch.tensor([[0.0, 4.0]])).numpy().round(3).tolist()
        [[0.5, 0.8809999823570251]]
    """

    slope: float
    offset: float
    """Of all classes: slope * logit + offset is right for labels that are annotated."""
    shift: Floats
    """(C,) what is added to that for labels that are unknown."""
    share: Floats
    """(C,) the share of the unknown labels of a class that are present; 1e-5 at least."""
    prior: Floats
    """(C,) the share of all images that show the class."""
    random: bool
    """Whether labels are missing at random."""
    capped: bool
    """Whether the annotation had a budget of positives per class."""
    _tensors: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False)

    def posterior(self, logits: Tensor) -> Tensor:
        """P(present) for unknown labels with these logits (B, C), float32, without a gradient."""
        return self.log_odds(logits).sigmoid()

    def log_odds(self, logits: Tensor) -> Tensor:
        """The log odds of that probability.

        Logits count to 16 either way, as they did when the calibration was made.
        """
        if logits.ndim != 2 or logits.shape[1] != len(self.shift):
            want = f"(B, {len(self.shift)})"
            raise ValueError(f"logits must be {want}, got {tuple(logits.shape)}")
        if logits.device not in self._tensors:  # later calls wait for no copy
            added = torch.from_numpy(self.offset + self.shift).float()
            self._tensors[logits.device] = added.to(logits.device)
        clipped = logits.detach().float().clamp(-REACH, REACH)
        return clipped * self.slope + self._tensors[logits.device]

    def matched(self, seen: LogitHistogram) -> Calibration:
        """The calibration for logits of another model, seen at the same unknown labels.

        Each class is shifted until its mean posterior is ``share`` again; all else stays.
        """
        logits, weight = seen.columns()
        if len(logits) != len(self.shift):
            raise ValueError(f"seen must have {len(self.shift)} classes, got {len(logits)}")
        return Calibration(
            1.0,
            0.0,
            matching(logits, weight, self.share),
            self.share,
            self.prior,
            random=self.random,
            capped=self.capped,
        )

    def to_dict(self) -> dict[str, Any]:
        """Numbers and lists, for json."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in ((name, getattr(self, name)) for name in _NAMES)
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Calibration:
        """What :meth:`to_dict` gave."""
        lacking = [name for name in _NAMES if name not in state]
        if lacking:
            raise ValueError(f"state lacks {', '.join(lacking)}")
        arrays = {name: np.array(state[name], np.float64) for name in _NAMES[2:5]}
        if len({array.shape for array in arrays.values()}) > 1 or arrays["shift"].ndim != 1:
            raise ValueError("shift, share and prior of state must be lists of equal length")
        return cls(
            float(state["slope"]),
            float(state["offset"]),
            **arrays,
            random=bool(state["random"]),
            capped=bool(state["capped"]),
        )


_NAMES = ("slope", "offset", "shift", "share", "prior", "random", "capped")


def calibrated_prior(
    calibration: Calibration,
    seen: LogitHistogram,
    classes: ClassTable,
    counts: ClassCounts,
    *,
    images: int,
) -> Prior:
    """The prior of a calibration, with what it was made from.

    ``mean`` and ``em`` of a class are those of its unknown labels in ``seen``; classes without a
    verified negative were counted.
    """
    if len(calibration.prior) != len(classes):
        raise ValueError(
            f"calibration must have {len(classes)} classes, got {len(calibration.prior)}"
        )
    known = counts.positives + counts.negatives
    mean, em = (
        np.where(seen.labels > 0, value, np.nan)
        for value in (seen.mean(), seen.corrected(counts.positives / np.maximum(known, 1)))
    )
    bare = (counts.positives > 0) & (counts.negatives == 0)
    return Prior(
        [
            ClassPrior(
                class_id=class_id,
                class_name=classes.names[i],
                prior=float(calibration.prior[i]),
                method="count" if bare[i] else "calibrated",
                mean=float(mean[i]),
                em=float(em[i]),
                positives=int(counts.positives[i]),
                negatives=int(counts.negatives[i]),
                estimated_images=float(calibration.prior[i] * images),
            )
            for i, class_id in enumerate(classes.ids)
        ]
    )
