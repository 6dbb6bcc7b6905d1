"""The training loop beside the bare model: how much of a step is the model's own work.

python benchmarks/training.py [--device cuda] [--small]

On an H200: TResNet-M, 224 pixels, batch 256, 9,600 classes, bf16. The peer is the compiled model alone,
forward, backward and optimiser on tensors that are already there, without loss and data. The loop is
``partlabel train`` itself: JPEGs of 500 x 375 from disk, decoded by workers, augmented, labels gathered from
the store, the selective loss, EMA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partlabel import ClassTable, ImageTable, LabelStore
from partlabel.assemble import Assembler
from partlabel.config import Config
from partlabel.model import build_model
from partlabel.processes import Processes
from partlabel.stages import Run


def make_data(folder: Path, *, images: int, classes: int, seed: int = 0) -> Path:
    """Photographs-like JPEGs (smooth noise) of 500 x 375, and seven labels each."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    paths = [f"images/{i:05d}.jpg" for i in range(images)]
    for i, path in enumerate(paths[: min(images, 512)]):
        small = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(picture, np.int16) + rng.normal(0, 6, (375, 500, 3)).astype(np.int16)
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(folder / path, quality=90)
        del i
    for i in range(512, images):
        os.link(folder / paths[i % 512], folder / paths[i])
    labels = Assembler(classes=classes)
    rows = np.repeat(np.arange(images), 7)
    which = rng.integers(0, classes, len(rows))
    labels.add(rows, which, rng.random(len(rows)) < 0.6)
    done = labels.finish()
    store = LabelStore(
        ClassTable([f"c{i}" for i in range(classes)]),
        ImageTable.make(paths, paths=paths),
        indptr=done.spread(images),
        codes=done.codes,
    )
    store.save(folder / "data.labels", overwrite=True)
    return folder / "data.labels"


def bare(backbone: str, *, size: int, batch: int, classes: int, device: str, steps: int) -> float:
    """Seconds of a step of the compiled model alone: forward, backward, optimiser."""
    cuda = device == "cuda"
    model = build_model(backbone, classes, weights=None, image_size=size).to(device)
    model = model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), fused=cuda or None)
    compiled = torch.compile(model) if cuda else model
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.to(memory_format=torch.channels_last)
    seconds = []
    for step in range(steps + 10):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            out = compiled(images)
        out.float().sum().backward()
        optimiser.step()
        if cuda:
            torch.cuda.synchronize()
        if step >= 10:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


class Clock:
    """Times the steps of a training; stops it after enough of them."""

    def __init__(self, steps: int) -> None:
        self.began = time.perf_counter()
        self.first: float | None = None
        self.times: list[float] = []
        self.steps = steps

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        if self.first is None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.first = time.perf_counter() - self.began
        if len(self.times) == self.steps // 2 and torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def say(self, text: str) -> None:
        pass

    def stopping(self) -> bool:
        return len(self.times) >= self.steps

    @property
    def per_step(self) -> float:
        """Seconds of a step, over the second half."""
        half = self.times[self.steps // 2 :]
        return (half[-1] - half[0]) / (len(half) - 1)


def loop(folder: Path, settings: dict[str, Any], *, steps: int, name: str) -> dict[str, Any]:
    """Our training, data included, for some steps."""
    from partlabel.train import Stopped

    settings = {**settings, "out": str(folder / f"run-{name}")}
    config = Config.from_dict(settings)
    device = (
        torch.device("cuda", 0) if settings["train"]["device"] == "cuda" else torch.device("cpu")
    )
    clock = Clock(steps)
    try:
        Run(config, processes=Processes(device=device), watcher=clock)()
    except Stopped:
        pass
    return {"name": name, "ms": 1000 * clock.per_step, "first_step_s": clock.first}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--json", help="also write the numbers there")
    asked = parser.parse_args()
    small = asked.small
    backbone = "test_resnet" if small else "tresnet_m"
    size, batch, classes = (64, 16, 50) if small else (224, 256, 9_600)
    steps = 8 if small else asked.steps
    found: list[dict[str, Any]] = []
    alone = bare(
        backbone, size=size, batch=batch, classes=classes, device=asked.device, steps=steps // 2
    )
    found.append(
        {
            "name": "bare compiled step" if asked.device == "cuda" else "bare step",
            "ms": 1000 * alone,
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, images=256 if small else 16_384, classes=classes)
        settings: dict[str, Any] = {
            "data": {"train": str(folder / "data.labels")},
            "images": {"size": size, "root": str(folder), "augment": "paper"},
            "model": {"backbone": backbone, "weights": "none"},
            "loss": {"name": "selective", "params": {"top_k": 200 if not small else 2}},
            "prior": {"source": "none"},
            "train": {"batch_size": batch, "epochs": 1000, "device": asked.device, "log_steps": 20},
        }
        variants: dict[str, dict[str, Any]] = {
            "eager, flip": {"images": {"augment": "flip"}},
            "compiled, flip": {"images": {"augment": "flip"}, "train": {"compile": not small}},
            "compiled, paper's RandAugment": {"train": {"compile": not small}},
        }
        for label, changes in variants.items():
            changed = {k: {**settings[k], **changes.get(k, {})} for k in settings}
            found.append(loop(folder, changed, steps=steps, name=label))
            print(json.dumps(found[-1]), flush=True)
    print(
        f"{'batch ' + str(batch) + ', ' + backbone:40} ms a step   images/s   share of bare   first step s"
    )
    for entry in found:
        share = 1000 * alone / entry["ms"]
        first = f"{entry['first_step_s']:12.1f}" if "first_step_s" in entry else ""
        rate = 1000 * batch / entry["ms"]
        print(f"{entry['name']:40} {entry['ms']:9.2f} {rate:10,.0f} {share:14.1%} {first}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
