"""Forward + backward of every loss, beside the paper code's algorithm and timm's ASL, in one run.

python benchmarks/losses.py [--device cpu|cuda] [--shapes 64x80,128x9600] [--losses selective,ce]
                            [--no-compile] [--out benchmarks/results.csv]

Prints milliseconds (median, with p20 and p80), peak memory beyond the inputs, and how many times
as fast as the reference algorithm (flatten, argsort, first K x B; written here from its
description). Rows are appended to the csv with device and versions.
"""

from __future__ import annotations

import argparse
import csv
import gc
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partlabel.losses import LOSSES, build_loss
from partlabel.vision import load

SHAPES = "64x80,256x1203,128x9600,1024x9600"
FIELDS = ("loss", "mode", "shape", "dtype", "ms", "p20", "p80", "peak_mib", "times_reference",
          "device", "torch", "date")  # fmt: skip
Call = Callable[[Tensor, Tensor], Tensor]


def reference(prior: Tensor, *, top_k: int, threshold: float = 0.05) -> Call:
    """The selective loss the way the paper's code computes it, gammas 1, 2, 7."""

    def loss(logits: Tensor, states: Tensor) -> Tensor:
        present, absent, unknown = (states > 0).float(), (states < 0).float(), (states == 0).float()
        weight = torch.ones_like(logits)
        weight[:, prior > threshold] = 0
        weight[states != 0] = 1
        p = torch.sigmoid(logits)
        q = 1 - p
        flat = torch.where(states == 0, q, 2.0).reshape(-1)
        weight.view(-1)[torch.argsort(flat)[: top_k * len(logits)]] = 0
        with torch.no_grad():
            focus = (1 - p * present - q * (absent + unknown)) ** (
                present + 2 * absent + 7 * unknown
            )
        value = present * torch.log(p.clamp(min=1e-8)) + (absent + unknown) * torch.log(
            q.clamp(min=1e-8)
        )
        return -(value * focus * weight).sum()

    return loss


def settings(name: str, images: int, classes: int, prior: Tensor, top_k: int) -> dict[str, object]:
    if name == "selective":
        gammas = {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 7}
        return {"top_k": top_k, "prior": prior, "prior_threshold": 0.05, **gammas}
    if name == "role":
        return {"num_images": images, "num_classes": classes}
    return {}


def call_of(name: str, images: int, classes: int, prior: Tensor, top_k: int) -> Call:
    loss = build_loss(name, **settings(name, images, classes, prior, top_k)).to(prior.device)
    if name == "role":
        rows = torch.arange(images, device=prior.device)
        return lambda logits, states: loss(logits, states, index=rows)
    if name in ("splc", "large_loss", "pseudo_label"):
        return lambda logits, states: loss(logits, states, epoch=2)
    return loss


def measure(call: Call, logits: Tensor, states: Tensor) -> tuple[list[float], float]:
    """Milliseconds of a number of runs, and peak MiB beyond what was there before."""
    cuda = logits.is_cuda

    def step() -> float:
        logits.grad = None
        if cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call(logits, states).backward()
            stop.record()
            torch.cuda.synchronize()
            return start.elapsed_time(stop)
        begin = time.perf_counter()
        call(logits, states).backward()
        return 1e3 * (time.perf_counter() - begin)

    step()
    first = step()
    peak = _peak(step, logits, cuda=cuda)
    runs = int(np.clip(1500 / max(first, 0.01), 5, 200))
    return [step() for _ in range(runs)], peak


def _peak(step: Callable[[], float], logits: Tensor, *, cuda: bool) -> float:
    gc.collect()
    if cuda:
        logits.grad = None  # it is made anew in each step, so its memory counts
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Freed memory stays mapped, so the process's size says nothing: add up what torch allocates.
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = [
        e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"
    ]
    return float(np.cumsum([0, *changes]).max() / 2**20)


def contenders(
    images: int, classes: int, options: argparse.Namespace
) -> dict[tuple[str, str], Call]:
    device = options.device
    prior = torch.rand(classes, generator=torch.Generator().manual_seed(0)).pow(8).to(device)
    top_k = min(200, classes // 4)
    found: dict[tuple[str, str], Call] = {
        ("reference algorithm", "eager"): reference(prior, top_k=top_k)
    }
    try:
        asl = load("timm.loss").AsymmetricLossMultiLabel()
        found["timm ASL", "eager"] = lambda logits, states: asl(logits, (states > 0).float())
    except ImportError:
        print("timm is not installed: left out")
    for name in options.losses.split(",") if options.losses else LOSSES:
        found[name, "eager"] = call_of(name, images, classes, prior, top_k)
        if options.compile:
            found[name, "compiled"] = torch.compile(call_of(name, images, classes, prior, top_k))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--losses", default="")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.csv"))
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    about = {"device": f"{name}, {torch.get_num_threads()} threads", "torch": torch.__version__,
             "date": time.strftime("%Y-%m-%d"), "dtype": "float32"}  # fmt: skip
    print(f"{about['device']}, torch {about['torch']}")
    titles = "".join(f"{title:>9}" for title in ("ms", "p20", "p80", "MiB", "x ref"))
    print(f"{'shape':>10} {'loss':20} {'mode':9}{titles}")
    for shape in options.shapes.split(","):
        images, classes = map(int, shape.split("x"))
        rng = torch.Generator().manual_seed(0)
        logits = (torch.randn(images, classes, generator=rng) * 2 - 4).to(options.device)
        logits.requires_grad_()
        known = torch.rand(images, classes, generator=rng) < 7 / classes
        signs = torch.where(torch.rand(images, classes, generator=rng) < 0.35, 1, -1)
        states = torch.where(known, signs, 0).to(torch.int8).to(options.device)
        base = 0.0
        for (loss, mode), call in contenders(images, classes, options).items():
            torch.compiler.reset()  # losses share their forward: it would count as recompiling
            times, peak = measure(call, logits, states)
            low, middle, high = np.percentile(times, [20, 50, 80])
            base = base or middle
            numbers = (
                f"{middle:.3f}",
                f"{low:.3f}",
                f"{high:.3f}",
                f"{peak:.1f}",
                f"{base / middle:.1f}",
            )
            row = dict(zip(FIELDS, (loss, mode, shape, "float32", *numbers), strict=False)) | about
            columns = "".join(f"{number:>9}" for number in numbers)
            print(f"{shape:>10} {loss:20} {mode:9}{columns}", flush=True)
            _append(options.out, row)


def _append(path: Path, row: dict[str, str]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
