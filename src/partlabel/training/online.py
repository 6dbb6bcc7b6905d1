"""The prior estimated while the model is trained: one training instead of two.

A second head on the detached features of the same backbone is trained in Ignore mode; what it
predicts on the images of an epoch is the prior of the next one. It does not change the backbone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from partlabel.config.settings import PriorSettings
from partlabel.estimate import LogitHistogram, estimate_prior
from partlabel.losses import build_loss
from partlabel.losses.base import PartialLoss
from partlabel.losses.selective import Selective
from partlabel.prior import Prior
from partlabel.store import LabelStore
from partlabel.tables import ClassTable
from partlabel.training.processes import Processes
from partlabel.training.runfolder import RunFolder


class OnlinePrior:
    """Watches the auxiliary head, and gives the loss a new prior after every epoch.

    Args:
        store: The annotations it is trained on.
        device: Where the model is.
        use: ``mean`` or ``em``, see :func:`estimate_prior`.
        reduction: Of the loss beside it.
        apply: Puts a prior into the loss.
    """

    def __init__(
        self,
        store: LabelStore,
        *,
        device: torch.device,
        use: str,
        reduction: str,
        apply: Callable[[PartialLoss, Prior], None],
    ) -> None:
        self.store, self.use, self.apply = store, use, apply
        self.counts = store.counts()
        self._ignore = build_loss("ce", unknown="ignore", reduction=reduction)
        self._device = device
        self._seen = LogitHistogram(len(store.classes), device)

    def loss(self, logits: Tensor, states: Tensor) -> Tensor:
        """The auxiliary head's own loss; its predictions are counted."""
        self._seen.update(logits.detach())
        loss: Tensor = self._ignore(logits, states)
        return loss

    def end_epoch(self, loss: PartialLoss, folder: RunFolder, processes: Processes) -> None:
        """Give the loss the prior of the epoch that ends."""
        self._seen.all_reduce()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, before the training
            prior = estimate_prior(
                self._seen,
                self.store.classes,
                self.counts,
                images=len(self.store),
                use=self.use,  # type: ignore[arg-type]
            )
        self.apply(loss, prior)
        if processes.main:
            prior.write(folder.path / "prior.csv")
        self._seen = LogitHistogram(len(self.store.classes), self._device)

    def state(self, processes: Processes) -> dict[str, Tensor]:
        """What was seen in this epoch, by all processes."""
        whole = LogitHistogram(len(self.store.classes), self._device)
        whole.merge(self._seen)
        whole.all_reduce()
        return whole.state_dict()

    def resume(self, state: dict[str, Tensor], processes: Processes) -> None:
        """Go on in mid-epoch; the main process counts for all."""
        if processes.main:
            self._seen.load_state_dict(state)


def give_prior(
    loss: PartialLoss, prior: Prior, classes: ClassTable, settings: PriorSettings
) -> None:
    """Give a loss a prior, and the threshold that the settings ask for."""
    wanted = {
        "value": settings.threshold,
        "quantile": settings.quantile,
        "top_n": settings.top_n,
    }
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    selective = cast(Selective, loss)
    if given:
        selective.prior_threshold = prior.threshold(**given)
    values, current = prior.align(classes), selective.prior
    selective.set_prior(values if current is None else values.to(current.device))
