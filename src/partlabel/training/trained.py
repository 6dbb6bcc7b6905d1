"""The model that a run has left: its newest good checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch

from partlabel.errors import StoreError, UsageError
from partlabel.model import Classifier, description, rebuild
from partlabel.tables import ClassTable
from partlabel.training import checkpoint as checkpoints
from partlabel.training.runfolder import RunFolder


def usable_checkpoint(
    folder: RunFolder, *, say: Callable[[str], None], parts: Collection[str] | None = None
) -> checkpoints.Checkpoint | None:
    """The newest checkpoint that can be read, or parts of it; damaged ones are passed over."""
    for path in reversed(checkpoints.all_of(folder.checkpoints)):
        try:
            return checkpoints.load(path, parts=parts)
        except StoreError as error:
            if "newer than this partlabel" in str(error):
                raise
            say(f"warning: {error}; trying the one before")
    return None


class Trained(NamedTuple):
    """The model a run left."""

    model: Classifier
    """Its moving average."""
    classes: ClassTable
    """Of its logits."""
    step: int


def load_model(
    folder: RunFolder, device: torch.device, *, say: Callable[[str], None] | None = None
) -> Trained:
    """Load the model that a run has left; ``say`` hears of damaged checkpoints."""
    found = usable_checkpoint(folder, say=say or (lambda text: None), parts=("average",))
    if found is None:
        raise UsageError(f"{folder.path}: has no checkpoint yet; train it first")
    model = rebuild(found.description)
    checkpoints.refuse_other(found, found.classes, description(model))  # timm may have changed
    model.load_state_dict(found.tensors["average"])
    return Trained(model.to(device).eval(), found.classes, found.step)
