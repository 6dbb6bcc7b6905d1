"""A run folder made without training: a tiny random model, its classes, settings and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from partlabel import ClassTable, LabelStore
from partlabel.commands import export as export_cli
from partlabel.commands import predict as predict_cli
from partlabel.config import Config
from partlabel.errors import PartlabelError
from partlabel.metrics import AveragePrecision, choose_thresholds
from partlabel.model import build_model, description
from partlabel.prediction.pictures import store_images
from partlabel.prediction.predict import Predictor
from partlabel.training import checkpoint
from partlabel.training.writing import write_pairs
from tests.conftest import store_from

BACKBONE, SIZE = "test_resnet", 32
CLASSES = ("c0", "c1", "c2", "c3", "c4")


def draw_image(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> Path:
    """A picture of its own: a few plain patches of colour, so that scores differ."""
    pixels = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(path)
    return path


def make_run(folder: Path, *, classes: ClassTable | None = None, **settings: Any) -> Path:
    """A run folder with one checkpoint."""
    classes = classes or ClassTable(CLASSES, [f"name of {name}" for name in CLASSES])
    model = build_model(BACKBONE, len(classes), weights=None, image_size=SIZE)
    with torch.no_grad():
        for layer in model.head.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.mul_(500)
    made = checkpoint.Checkpoint(
        7, classes, description(model), {"average": model.state_dict()}, {"world": 1}
    )
    checkpoint.save(folder / "checkpoints", made)
    values: dict[str, Any] = {
        "data": {"train": "train.labels"},
        "images": {"size": SIZE},
        "model": {"backbone": BACKBONE, "weights": "none"},
    }
    Config.from_dict({**values, **settings}, name=folder.name).write(folder / "config.toml")
    return folder


def image_store(root: Path, states: Any, *, suffix: str = ".png", **options: Any) -> LabelStore:
    """A store with images on the disk."""
    store = store_from(states, paths=[f"img/{i:03}{suffix}" for i in range(len(states))], **options)
    for i, path in enumerate(store.images.paths(range(len(store)))):
        draw_image(root / str(path), i)
    return store.with_labels(store.indptr, store.codes, image_root=str(root))


def add_validation(run: Path, path: Path) -> None:
    """What a run leaves of its validation set: predictions.parquet and thresholds.csv."""
    predictor = Predictor.open(run)
    pictures = store_images(predictor.config, path)
    metric = AveragePrecision(len(pictures.store.classes))
    for scored in predictor.scores(pictures):
        rows = [int(picture.place) for picture in scored.pictures]
        metric.update(scored.logits, pictures.store.dense(rows), images=np.array(rows))
    write_pairs(run / "predictions.parquet", metric.collect(), pictures.store)
    choose_thresholds(metric, pictures.store.classes).write(run / "thresholds.csv")


def command(*arguments: str | Path) -> None:
    """Run a command as the command line does, in this process."""
    app = typer.Typer()
    app.command()(predict_cli.predict)
    app.command()(export_cli.export)
    texts = [str(argument) for argument in arguments]
    if texts[0] == "predict" and "--device" not in texts:
        texts += ["--device", "cpu"]  # the same numbers everywhere
    app(texts, standalone_mode=False)


def refusal(*arguments: str | Path) -> str:
    """What a command says when it refuses; one line."""
    with pytest.raises(PartlabelError) as caught:
        command(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
