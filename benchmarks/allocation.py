"""Steps on a CPU with freed memory kept, and given back: ``python benchmarks/allocation.py``.

Each measurement is a process of its own, since what is kept cannot be undone; the two take turns.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from statistics import median

import torch

from partlabel.model import build_model
from partlabel.training.processes import processes

CASES = {"small": (64, 64), "tf_efficientnet_lite0": (112, 64), "resnet18": (224, 32)}
"""Backbone: pixels of an image, images of a batch."""
ROUNDS, SECONDS = 3, 4.0


def measure(backbone: str) -> dict[str, float]:
    """Forward and backward passes in float32."""
    size, batch = CASES[backbone]
    with processes("cpu"):
        model = build_model(backbone, 80, weights="none", head="linear", image_size=size)
        model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)

        def step() -> None:
            model(images).sum().backward()
            model.zero_grad()

        for _ in range(3):
            step()
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS:
            step()
            done += batch
        rate = done / (time.perf_counter() - start)
    return {"rate": rate, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def child(backbone: str, kept: bool) -> dict[str, float]:
    # A setting of malloc in the environment is left alone: this one is the default.
    more = {} if kept else {"MALLOC_PERTURB_": "0"}
    command = [sys.executable, __file__, backbone]
    found = subprocess.run(command, env=os.environ | more, check=True, stdout=subprocess.PIPE)
    result: dict[str, float] = json.loads(found.stdout)
    return result


def main() -> None:
    print("| backbone, pixels, batch | given back: images/s | kept | ratio | peak MiB |")
    print("| --- | --- | --- | --- | --- |")
    for backbone, (size, batch) in CASES.items():
        found = [(child(backbone, False), child(backbone, True)) for _ in range(ROUNDS)]
        back, kept = (median(pair[i]["rate"] for pair in found) for i in (0, 1))
        peaks = (median(pair[i]["peak"] for pair in found) for i in (0, 1))
        peak = ", ".join(f"{each:,.0f}" for each in peaks)
        what = f"`{backbone}`, {size}, {batch}"
        print(f"| {what} | {back:,.0f} | {kept:,.0f} | {kept / back:.2f} | {peak} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(measure(sys.argv[1])))
    else:
        main()
