"""The training loop beside the bare model: how much of a step is the model's own work.

python benchmarks/training.py [--device cuda] [--small]

On an H200: TResNet-M, 224 pixels, batch 256, 9,600 classes, bf16. The peer is the compiled model
alone, forward, backward and optimiser on tensors that are already there, without loss and data. The
loop is ``partlabel train`` itself: JPEGs of 500 x 375 from disk, decoded by workers, augmented,
labels gathered from the store, the selective loss, EMA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partlabel import ClassTable, ImageTable, LabelStore
from partlabel.assemble import Assembler
from partlabel.config import Config
from partlabel.model import build_model
from partlabel.training.loop import Stopped
from partlabel.training.order import Order
from partlabel.training.processes import Processes
from partlabel.training.stages import Run


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


def without_loss(out: Tensor) -> None:
    out.float().sum().backward()


def bare(
    backbone: str,
    *,
    size: int,
    batch: int,
    classes: int,
    device: str,
    steps: int,
    finish: Callable[[Tensor], None] = without_loss,
) -> list[float]:
    """Seconds of steps of the compiled model: forward, ``finish`` with backward, optimiser."""
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
        finish(out)
        optimiser.step()
        if cuda:
            torch.cuda.synchronize()
        if step >= 10:
            seconds.append(time.perf_counter() - began)
    return seconds


class Clock:
    """Times the steps of a training, looks at what the GPU does in some more, and stops it."""

    def __init__(self, steps: int, profiled: int) -> None:
        self.began = time.perf_counter()
        self.first: float | None = None
        self.times: list[float] = []
        self.steps, self.profiled = steps, profiled
        self.profiler: Any = None
        self.busy: float | None = None
        self.largest: list[str] = []

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        count = len(self.times)
        exact = (0, self.steps // 2, self.steps - 1, self.steps + self.profiled)
        if count in exact and torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.first is None:
            self.first = time.perf_counter() - self.began
        self.times.append(time.perf_counter())
        if torch.cuda.is_available() and count == self.steps:
            self.profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]
            )
            self.profiler.start()
        if self.profiler is not None and count == self.steps + self.profiled:
            self.profiler.stop()
            self._look(self.times[-1] - self.times[self.steps])

    def _look(self, seconds: float) -> None:
        spans, names = [], {}
        for event in self.profiler.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spans.append((event.time_range.start, event.time_range.end))
                names[event.name] = names.get(event.name, 0) + event.time_range.elapsed_us()
        busy, end = 0.0, 0.0
        for start, stop in sorted(spans):
            busy += max(stop - max(start, end), 0)
            end = max(end, stop)
        self.busy = busy / 1e6 / seconds
        ranked = sorted(names.items(), key=lambda item: -item[1])[:6]
        self.largest = [f"{us / 1e3 / self.profiled:.2f} ms {name[:60]}" for name, us in ranked]

    def within(self, what: str, done: int, total: int) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def stopping(self) -> bool:
        return len(self.times) > self.steps + self.profiled + 1

    @property
    def per_step(self) -> float:
        """Seconds of a step, over the second half."""
        half = self.times[self.steps // 2 : self.steps]
        return (half[-1] - half[0]) / (len(half) - 1)


def loop(folder: Path, settings: dict[str, Any], *, steps: int, name: str) -> dict[str, Any]:
    """Our training, data included, for some steps."""
    settings = {**settings, "out": str(folder / f"run-{name}")}
    config = Config.from_dict(settings)
    cuda = settings["train"]["device"] == "cuda"
    clock = Clock(steps, profiled=10)
    with contextlib.suppress(Stopped):
        processes = Processes(device=torch.device("cuda", 0) if cuda else torch.device("cpu"))
        Run(config, processes=processes, watcher=clock)()
    found = {"name": name, "ms": 1000 * clock.per_step, "first_step_s": clock.first}
    if clock.busy is not None:
        found |= {"gpu_busy": clock.busy, "largest": clock.largest}
    return found


def data_alone(folder: Path, settings: dict[str, Any], *, steps: int) -> dict[str, Any]:
    """Batches on the device, without a model."""
    cuda = settings["train"]["device"] == "cuda"
    processes = Processes(device=torch.device("cuda", 0) if cuda else torch.device("cpu"))
    config = Config.from_dict(settings)
    run = Run(config, processes=processes, watcher=Clock(1, 1))
    supply = run.supplies.of(config, run.train, training=True)
    order = Order(len(run.train.store), config.train.batch_size, 0)
    times = []
    for _ in supply.steps(order, 0, steps):
        times.append(time.perf_counter())
    half = times[steps // 2 :]
    return {"name": "data alone", "ms": 1000 * (half[-1] - half[0]) / (len(half) - 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", help="also write the numbers there")
    asked = parser.parse_args()
    small = asked.small
    backbone = "test_resnet" if small else "tresnet_m"
    size, batch, classes = (64, 16, 50) if small else (224, 256, 9_600)
    steps = 8 if small else asked.steps
    found: list[dict[str, Any]] = []
    seconds = bare(
        backbone, size=size, batch=batch, classes=classes, device=asked.device, steps=steps // 2
    )
    alone = statistics.median(seconds)
    found.append(
        {
            "name": "bare compiled step" if asked.device == "cuda" else "bare step",
            "ms": 1000 * alone,
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # More than all steps take, so that no epoch ends, with its checkpoint, in between.
        make_data(folder, images=batch * (steps + 40), classes=classes)
        settings: dict[str, Any] = {
            "data": {"train": str(folder / "data.labels")},
            "images": {"size": size, "root": str(folder), "augment": "paper"},
            "model": {"backbone": backbone, "weights": "none"},
            "loss": {"name": "selective", "params": {"top_k": 200 if not small else 2}},
            "prior": {"source": "none"},
            "train": {"batch_size": batch, "epochs": 1000, "device": asked.device, "log_steps": 20},
        }
        variants: dict[str, dict[str, Any]] = {
            "loop, flip": {"images": {"augment": "flip"}, "train": {"compile": not small}},
            "loop, paper's RandAugment": {"train": {"compile": not small}},
            "loop, resident": {
                "images": {"device_resident": True},
                "train": {"compile": not small},
            },
            "loop, paper's RandAugment, eager": {},
        }
        for augment in ("paper",):
            images = {**settings["images"], "augment": augment}
            entry = data_alone(folder, {**settings, "images": images}, steps=steps)
            found.append({**entry, "name": f"data alone, {augment}"})
        for label, changes in variants.items():
            changed = {k: {**settings[k], **changes.get(k, {})} for k in settings}
            found.append(loop(folder, changed, steps=steps, name=label))
            print(json.dumps(found[-1]), flush=True)
    title = f"batch {batch}, {backbone}"
    print(f"{title:32} ms a step   images/s  share of bare  first step s  GPU busy")
    for entry in found:
        share = 1000 * alone / entry["ms"]
        first = f"{entry['first_step_s']:13.1f}" if "first_step_s" in entry else ""
        busy = f"{entry['gpu_busy']:9.1%}" if "gpu_busy" in entry else ""
        rate = 1000 * batch / entry["ms"]
        print(f"{entry['name']:32} {entry['ms']:9.2f} {rate:10,.0f} {share:14.1%} {first} {busy}")
    for entry in found:
        for line in entry.get("largest", []):
            print(f"  {entry['name']}: {line}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
