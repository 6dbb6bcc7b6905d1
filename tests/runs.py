"""A tiny data set on disk and run files for it: what the tests of training start from."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import store_from

SIZE = 32
CLASSES = ["red", "green", "blue", "bright", "striped"]


def draw(states: np.ndarray, seed: int) -> np.ndarray:
    """A picture that shows what its labels say: colours, brightness, stripes."""
    rng = np.random.default_rng(seed)
    image = rng.integers(60, 120, (SIZE, SIZE, 3))
    for channel in range(3):
        if states[channel] > 0:
            y, x = rng.integers(0, SIZE // 2, 2)
            image[y : y + SIZE // 2, x : x + SIZE // 2, channel] += 110
    if states[3] > 0:
        image += 40
    if states[4] > 0:
        image[::4] -= 50
    return np.clip(image, 0, 255).astype(np.uint8)


def make_data(folder: Path, *, images: int = 48, val: int = 16, known: float = 0.5) -> Path:
    """Images and a store ``data.labels`` with the splits train (partial) and val (complete)."""
    from PIL import Image

    rng = np.random.default_rng(0)
    truth = np.where(rng.random((images + val, len(CLASSES))) < 0.4, 1, -1).astype(np.int8)
    truth[:2] = [[1] * 5, [-1] * 5]
    truth[images : images + 2] = [[1] * 5, [-1] * 5]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    paths = [f"images/{i:03d}.jpg" for i in range(len(truth))]
    for i, states in enumerate(truth):
        Image.fromarray(draw(states, i)).save(folder / paths[i], quality=92)
    partial = truth.copy()
    hidden = rng.random(truth.shape) > known
    hidden[images:] = False
    hidden[:2] = False
    partial[hidden] = 0
    splits = ["train"] * images + ["val"] * val
    store = store_from(partial, ids=paths, paths=paths, splits=splits, classes=CLASSES)
    store.origin = dataclasses.replace(store.origin, image_root=str(folder))
    store.save(folder / "data.labels")
    return folder / "data.labels"


def settings(folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run of a few seconds; sections replace or add keys."""
    made: dict[str, Any] = {
        "out": str(folder / "run"),
        "data": {"train": str(folder / "data.labels")},
        "images": {"size": SIZE, "augment": "flip", "workers": 0},
        "model": {"backbone": "test_convnext", "weights": "none"},
        "loss": {"name": "selective", "params": {"top_k": 1}},
        "prior": {"source": "estimate", "top_n": 1},
        "optim": {"lr": 2e-3, "ema_decay": 0.9},
        "train": {"batch_size": 8, "epochs": 2, "log_steps": 3, "device": "cpu"},
    }
    for name, keys in sections.items():
        made[name] = {**made[name], **keys} if isinstance(made.get(name), dict) else keys
    return made


def write_run(folder: Path, **sections: dict[str, Any]) -> Path:
    """The same as a file ``run.toml``."""
    import tomli_w

    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(settings(folder, **sections)))
    return path


def start(*arguments: str | Path, processes: int = 1, **environment: str) -> subprocess.Popen[str]:
    """Start the command line, under torchrun where several processes are wanted."""
    command = [sys.executable, "-m", "partlabel", *map(str, arguments)]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        command = [sys.executable, *launcher, str(processes), *command[1:]]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, code: int = 0) -> tuple[str, str]:
    """Wait for it; what it printed."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, out + err
    return out, err


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, Any]:
    """All tensors of the newest checkpoint of a run."""
    from partlabel.training import checkpoint

    newest = checkpoint.newest(folder / "checkpoints")
    assert newest is not None
    found = checkpoint.load(newest)
    return {f"{part}/{k}": v for part, whole in found.tensors.items() for k, v in whole.items()}
