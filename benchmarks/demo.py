"""How fast the demo's pictures are drawn, on one core: ``python benchmarks/demo.py``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

import numpy as np

from partlabel.demo import generate, write_demo

COUNT, ROUNDS = 2048, 7


def rates(work: Callable[[int], None]) -> str:
    found = []
    for number in range(ROUNDS + 1):
        start = time.process_time()
        work(number)
        found.append(COUNT / (time.process_time() - start))
    low, middle, high = (quantiles(found[1:], n=10)[i] for i in (1, 4, 7))  # the first warms up
    return f"{middle:,.0f} images/s (p20 {low:,.0f}, p80 {high:,.0f})"


def draw(number: int) -> None:
    for _ in generate(number, np.arange(COUNT)):
        pass


def write(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_demo(Path(folder), seed=number, train=COUNT // 2, val=COUNT // 2)


if __name__ == "__main__":
    print(f"scenes, labels and pixels             {rates(draw)}")
    print(f"the same as JPEG in a parquet file    {rates(write)}")
