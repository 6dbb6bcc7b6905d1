"""Forward + backward of every loss, beside the paper code's algorithm and timm's ASL, in one run.

python benchmarks/losses.py [--device cpu|cuda] [--shapes 64x80,128x9600] [--losses selective,ce]
                            [--dtypes float32,bfloat16] [--no-compile] [--check]
                            [--step [--compile-model]] [--out benchmarks/results.csv]

Prints milliseconds (median, with p20 and p80), peak memory beyond the inputs, and how many times
as fast as the reference algorithm (flatten, argsort, first K x B; written here from its
description). Rows are appended to the csv with device and versions.

On a GPU (only ``selective`` unless others are asked for) times are those of the device, by events,
with inputs that no cache has; "graph" is one step within a CUDA graph, "wall" the host's clock over
many calls, against the reference's. The reference and timm get the logits in float32, as they would
in training; the cast counts. "fused x 2" has a gradient from above that is not 1. "copy" copies the
logits. "empty function" launches no kernel: what PyTorch needs itself. MB are what a loss has to
move at the least: logits and states read, the gradient written, B x C x (2 s + 1) bytes with s
bytes a logit (2 s for a copy). The share is of what a copy of 1 GiB moves in the same time.

--check compares the fused losses with the eager ones before they are timed.

--step measures the losses within a training step instead: TResNet-M at 224 pixels, 256 x 9,600,
bf16, AdamW (a toy on a CPU), in two ways that steps.py explains. "graph" is the difference of two
CUDA graphs of the whole step, with the loss and with a given gradient; "events" is the time between
events around the loss, whose kernels were in the queue. Rows of "no loss" say what each way makes
of nothing. The model is not compiled, and its step takes longer than that of a compiled one:
--compile-model measures within such a one too, which takes a minute more.
"""

from __future__ import annotations

import argparse
import csv
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from contenders import (
    COPY,
    NOTHING,
    REFERENCE,
    Key,
    check,
    contenders,
    copied,
    differentiated,
    has_fused,
    nothing,
    scaled,
)
from steps import BARE, SAMPLES, Training, replayed
from timing import Batch, Device, Step, TooSlowError, batches_for, cpu_times, forget, peak_mib

from partlabel.losses import LOSSES

SHAPES = {
    "cpu": "64x80,256x1203,128x9600,1024x9600",
    "cuda": "64x80,256x1203,128x9600,1024x9600,4096x9600,1024x65536",
}
FIELDS = ("loss", "mode", "shape", "dtype", "ms", "p20", "p80", "peak_mib", "times_reference",
          "device", "torch", "date", "bytes", "share_of_copy", "step_ms")  # fmt: skip
Way = Callable[[Step], list[float]]
T = TypeVar("T")


def ways(key: Key, sets: list[Batch], device: Device | None) -> Iterator[tuple[str, Way]]:
    """The clocks that a contender is measured with, and what they call themselves."""
    if device is None:
        yield "", lambda step: cpu_times(step, sets[0])
        return
    yield "", lambda step: device.times(step, sets)
    # The reference waits for the device, which a graph cannot.
    if key[0] == COPY or (key[1] != "compiled" and key[0] in LOSSES and has_fused(key[0])):
        yield " graph", lambda step: device.graph_times(step, sets)
    if key[0] != COPY:
        yield " wall", lambda step: device.wall_times(step, sets)


class Table:
    """What is printed, and written to the csv."""

    def __init__(self, device: str, out: Path | None, *, wide: bool = False) -> None:
        name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
        self.about = {
            "device": f"{name}, {torch.get_num_threads()} threads",
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        self.out = out
        self.failures = 0
        self.digits = 4 if device == "cuda" else 3
        self.width = 26 if wide else 12
        """Of the modes."""
        print(f"{self.about['device']}, torch {self.about['torch']}")

    def head(self) -> None:
        titles = ("ms", "p20", "p80", "MiB", "x ref", "MB", "share")
        print(f"{'shape':>10} {'dtype':8} {'loss':20} {'mode':{self.width}}" + _columns(titles))

    def row(self, key: Key, batch: Batch, times: list[float], **more: float) -> None:
        """A line; ``more`` is what else is known: peak_mib, times_reference, bytes, and so on."""
        low, middle, high = np.percentile(times, [20, 50, 80])
        shape = "x".join(map(str, batch[0].shape))
        dtype = str(batch[0].dtype).removeprefix("torch.")
        texts = {name: f"{ms:.{self.digits}f}" for name, ms in (("ms", middle), ("p20", low),
                                                                ("p80", high))}  # fmt: skip
        for name, form in (("peak_mib", ".1f"), ("times_reference", ".1f"), ("bytes", ".0f"),
                           ("share_of_copy", ".3f"), ("step_ms", ".2f")):  # fmt: skip
            texts[name] = f"{more[name]:{form}}" if name in more else ""
        named = dict(zip(FIELDS, (*key, shape, dtype), strict=False))
        if self.out is not None:
            new = not self.out.exists()
            with self.out.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(named | texts | self.about)
        moved = f"{more['bytes'] / 1e6:.2f}" if "bytes" in more else ""
        first = (texts[name] for name in ("ms", "p20", "p80", "peak_mib", "times_reference"))
        line = f"{shape:>10} {dtype:8} {key[0]:20} {key[1]:{self.width}}"
        print(line + _columns((*first, moved, texts["share_of_copy"])), flush=True)

    def end(self) -> None:
        if self.failures:
            raise SystemExit(f"{self.failures} measurements failed, see above")


def _columns(texts: tuple[str, ...]) -> str:
    return "".join(f"{text:>9}" for text in texts).rstrip()


def tried(run: Callable[[], T], name: str, table: Table) -> T | None:
    """What is measured, or none, and why not is said."""
    try:
        return run()
    except (TooSlowError, torch.OutOfMemoryError) as error:
        why = type(error).__name__
    except RuntimeError as error:
        table.failures += 1
        # Where a graph cannot be captured, the reason is the error before that of the capture.
        why = (str(error.__context__ or error) or type(error).__name__).splitlines()[0]
    print(f"{'':10} {name} is left out: {why}", flush=True)
    return None


def compare(steps: dict[Key, Step], sets: list[Batch], device: Device | None, table: Table) -> None:
    """Measure every contender at one shape."""
    logits = sets[0][0]
    bases: dict[str, float] = {}
    for key, step in steps.items():
        torch.compiler.reset()  # losses share their forward: it would count as recompiling
        for label, way in ways(key, sets, device):
            forget(sets)
            times = tried(partial(way, step), f"{key[0]} {key[1]}{label}", table)
            if times is None and not label:
                break  # too slow or too large for the other clocks too
            if times is None:
                continue
            middle = float(np.median(times))
            more = {} if label else {"peak_mib": peak_mib(step, sets[0])}
            if key[0] == REFERENCE:
                bases[label] = middle
            base = bases.get(label if label == " wall" else "")
            if base is not None:
                more["times_reference"] = base / middle
            if device is not None and key[0] != NOTHING:
                a_label = 2 * logits.itemsize + (key[0] != COPY)
                more["bytes"] = logits.numel() * a_label
                more["share_of_copy"] = more["bytes"] / (1e-3 * middle) / device.bandwidth
            table.row((key[0], key[1] + label), sets[0], times, **more)
    forget(sets)


def within_step(device: str, table: Table, *, compiled: bool) -> None:
    """The losses within a training step: by events, and on a GPU by graphs."""
    what = "compiled step" if compiled else "step"
    own = torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()
    with own:
        training = tried(partial(Training, device, compiled=compiled), what, table)
        if training is None:
            return
        by_events(training, what, table)
        if training.cuda:
            by_graphs(training, what, table)


def by_events(training: Training, what: str, table: Table) -> None:
    way = f"{what} events" if training.cuda else what
    for key, call in ((BARE, None), *training.calls.items()):
        samples = tried(partial(training.by_events, call), f"{key[0]} {key[1]} {way}", table)
        if samples is None:
            continue
        times, steps = [each.loss for each in samples], [each.step for each in samples]
        table.row((key[0], f"{key[1]} {way}"), training.batch, times, step_ms=np.median(steps))
        of = f"in {len(samples)} of {SAMPLES} steps the host was ahead" if training.cuda else ""
        say_share(times, steps, of)


def by_graphs(training: Training, what: str, table: Table) -> None:
    graphs = {}
    for key, finish in training.finishes().items():
        name = f"{key[0]} {key[1]} {what} graph"
        graph = tried(partial(training.captured, finish), name, table)
        if graph is not None:
            graphs[key] = graph
    if BARE not in graphs:
        return
    found = tried(partial(replayed, graphs), f"{what} graphs", table)
    if found is None:
        return
    bare = found.pop(BARE)
    for key, steps in found.items():
        times = [whole - without for whole, without in zip(steps, bare, strict=True)]
        key = (key[0], f"{key[1]} {what} graph")
        table.row(key, training.batch, times, step_ms=np.median(steps))
        say_share(times, steps, f"{np.median(bare):.2f} ms without the loss")


def say_share(times: list[float], steps: list[float], more: str) -> None:
    """Of a step, in percent: what a loss takes, and p20 and p80 of that."""
    low, high = np.percentile(np.divide(times, steps), [20, 80])
    middle, step = np.median(times) / np.median(steps), np.median(steps)
    more = f"; {more}" if more else ""
    share = f"{middle:.2%} ({low:.2%}, {high:.2%})"
    print(f"{'':10} {share} of a step of {step:.2f} ms{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--losses", default="")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--compile-model", action="store_true", help="with --step")
    parser.add_argument("--seconds", type=float, default=0.25, help="on a GPU, per contender")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.csv"))
    options = parser.parse_args()
    cuda = options.device == "cuda"
    toy = options.step and not cuda  # says nothing about real steps
    table = Table(options.device, None if toy else options.out, wide=options.step)
    table.head()
    if options.step:
        for compiled in (False, True) if options.compile_model else (False,):
            within_step(options.device, table, compiled=compiled)
        table.end()
        return
    names = (options.losses or ("selective" if cuda else ",".join(LOSSES))).split(",")
    device = Device(options.seconds) if cuda else None
    if device is not None:
        print(f"a copy of 1 GiB moves {device.bandwidth / 1e12:.2f} TB/s, read and written")
    for dtype in (options.dtypes or ("float32,bfloat16" if cuda else "float32")).split(","):
        for shape in (options.shapes or SHAPES[options.device]).split(","):
            sets = batches_for(shape, getattr(torch, dtype), options.device)
            if options.check:
                check(names, sets[0])
            calls = contenders(names, sets[0][0], compiled=options.compile)
            steps = {key: differentiated(call) for key, call in calls.items()}
            if cuda:
                fused = [(key, call) for key, call in calls.items() if key[1] == "fused"]
                steps |= {
                    (name, "fused x 2"): scaled(call, sets[0][0]) for (name, _), call in fused
                }
                steps |= {(NOTHING, "eager"): nothing, (COPY, "copy"): copied}
            compare(steps, sets, device, table)
            del sets
            if cuda:
                torch.cuda.empty_cache()
    table.end()


if __name__ == "__main__":
    main()
