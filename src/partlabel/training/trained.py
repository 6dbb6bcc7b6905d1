"""The model that a run has left: its newest good checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from partlabel.errors import StoreError, UsageError
from partlabel.model import Classifier, build_model
from partlabel.training import checkpoint as checkpoints
from partlabel.training.rundata import Part
from partlabel.training.runfolder import RunFolder


def usable_checkpoint(
    folder: RunFolder, *, say: Callable[[str], None]
) -> checkpoints.Checkpoint | None:
    """The newest checkpoint that can be read; damaged ones are passed over."""
    for path in reversed(checkpoints.all_of(folder.checkpoints)):
        try:
            return checkpoints.load(path)
        except StoreError as error:
            if "newer than this partlabel" in str(error):
                raise
            say(f"warning: {error}; trying the one before")
    return None


def load_model(folder: RunFolder, part: Part | None, device: torch.device) -> Classifier:
    """The model a run left: its moving average."""
    found = usable_checkpoint(folder, say=lambda text: None)
    if found is None:
        raise UsageError(f"{folder.path}: has no checkpoint yet; train it first")
    if part is not None:
        checkpoints.refuse_other(found, part.store.classes, {})
    what = found.description
    model = build_model(
        what["backbone"],
        len(found.classes),
        weights=None,
        head=what["head"],
        bottleneck=what["bottleneck"],
        auxiliary=what["auxiliary"],
        image_size=what["size"],
    )
    model.load_state_dict(found.tensors["average"])
    return model.to(device).eval()
