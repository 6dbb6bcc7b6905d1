"""``partlabel evaluate --run``: the model of a run scored on its validation set, or on a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from partlabel import terminal
from partlabel.evaluate import Evaluation, evaluation_of
from partlabel.metrics import AveragePrecision
from partlabel.prediction.evaluating import labels_of, score_run
from partlabel.prediction.pictures import store_images
from partlabel.scores.common import counted
from partlabel.store import LabelStore
from partlabel.training.processes import processes
from partlabel.training.runfolder import RunFolder, labels_digest


def labels_of_run(run: Path, labels: Path | None, split: str | None) -> tuple[Path, str | None]:
    """The labels a run is scored on: those that are named, or its own for validation."""
    config = RunFolder.existing(run).config
    if labels is not None:
        return labels, split
    path, own = labels_of(config)
    return path, split or own


def collect_run(
    run: Path,
    whole: LabelStore,
    *,
    split: str | None,
    kind: str | None,
    root: Path | None,
    device: str | None,
    **how: Any,
) -> tuple[AveragePrecision, Evaluation] | None:
    """Score the model of a run; None on all processes but the one that prints.

    Args:
        run: The folder.
        whole: The labels.
        split: Only these of them.
        kind: What the images are in, if not what the run or the store says.
        root: Where they are, likewise.
        device: Where to compute, if not where the run did.
        how: What :class:`AveragePrecision` takes.
    """

    def metric(count: int) -> AveragePrecision:
        return AveragePrecision(count, **how)

    folder = RunFolder.existing(run)
    _compare(folder, whole, split)
    with processes(device or folder.config.train.device) as here:
        path = cast(Path, whole.path)
        images = store_images(folder.config, path, split=split, kind=kind, root=root)
        made, read = score_run(folder, images, make_metric=metric, processes=here)
        if not here.main:
            return None
    unread = len(images) - read
    left_out = [f"{counted(unread, 'image', 'images')} could not be read"] if unread else []
    return made, evaluation_of(made, whole.classes, run, left_out=left_out)


def _compare(folder: RunFolder, whole: LabelStore, split: str | None) -> None:
    """Warn where a run's own validation labels are no longer those that it was trained beside."""
    path, own = labels_of(folder.config)
    then = folder.labels.get("validation")
    if then is None or split != own or path.resolve() != cast(Path, whole.path).resolve():
        return
    if labels_digest(whole.split(split) if split else whole) != then:
        what = f"{path}: has other validation labels than when {folder.path} was trained"
        terminal.warning(f"{what}; it may have learnt from some of these images", aside=True)
