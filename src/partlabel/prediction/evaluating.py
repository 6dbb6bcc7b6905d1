"""The model of a run scored on a store: on its validation images, or on any others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from partlabel.config import Config
from partlabel.errors import UsageError
from partlabel.metrics import AveragePrecision
from partlabel.prediction.pictures import StorePictures
from partlabel.store import LabelStore
from partlabel.training.dataset import workers_for
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part, automatic_split
from partlabel.training.runfolder import RunFolder
from partlabel.training.scoring import Seen, chosen_precision, score
from partlabel.training.supply import Streamed
from partlabel.training.trained import load_model


def labels_of(config: Config) -> tuple[Path, str | None]:
    """The store and split that a run is evaluated on."""
    path = config.data.val or config.data.train
    split = config.data.val_split or automatic_split(LabelStore.open(path), val=True)
    if config.data.val is None and split is None:
        raise UsageError("the run has no validation data; name a store with --labels")
    return path, split


def score_run(
    folder: RunFolder,
    images: StorePictures,
    *,
    make_metric: Callable[[int], AveragePrecision],
    processes: Processes,
) -> tuple[AveragePrecision, int]:
    """Score the images of a store; gives the metric over all processes, and how many were read.

    Classes are matched by id, and those of the store must be those of the run.
    """
    config, store = folder.config, images.store
    model, classes, _ = load_model(folder, processes.device)
    columns = None if store.classes.ids == classes.ids else store.classes.positions_in(classes)
    part = Part(store, images.source, str(store.path), columns)
    batches = Streamed(
        part,
        size=model.info.size,
        augment=None,
        batch_size=max((config.eval.batch_size or config.train.batch_size) // processes.world, 1),
        workers=workers_for(processes, config.images.workers),
        device=processes.device,
    )
    read: list[int] = []
    metrics = score(
        {"average": model},
        part,
        batches.listed,
        processes=processes,
        precision=chosen_precision(config.train.precision, processes.device),
        make_metric=lambda: make_metric(len(store.classes)),
        seen_by=Seen(read.append, lambda skipped: None),
    )
    whole = make_metric(len(store.classes))
    for state in processes.gather(metrics["average"].state_dict()):
        whole.load_state_dict(state, add=True)
    return whole, sum(processes.gather(sum(read)))
