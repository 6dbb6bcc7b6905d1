"""JPEG bytes to augmented 224 x 224 tensors on one core, beside Pillow with timm.

python benchmarks/loader.py [--images 256] [--rounds 5] [--quality 90] [--json]

Photographs of 500 x 375 are drawn and compressed in memory. Every way of loading runs in one
process with one thread, in turn, round after round; shown are images per second of processor time
in its best round, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image

from partlabel.augment import Augment
from partlabel.images import decode
from partlabel.vision import load

SIZE = 224
Load = Callable[[int], object]


def photograph(seed: int, quality: int) -> bytes:
    """Soft shapes, edges and grain: as many bytes as a photograph of that size has."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((375, 500, 3))
    for grain, strength in ((125, 70), (25, 35), (5, 12)):
        shape = (375 // grain + 1, 500 // grain + 1, 3)
        coarse = np.clip(rng.normal(128, strength, shape), 0, 255).astype(np.uint8)
        layer = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, float) - 128
    for _ in range(12):
        top, left = rng.integers(0, 375), rng.integers(0, 500)
        pixels[top : top + rng.integers(20, 150), left : left + rng.integers(20, 150)] += (
            rng.normal(0, 40, 3)
        )
    pixels += 128 + rng.normal(0, 4, pixels.shape)
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=quality)
    return out.getvalue()


def ours(files: list[bytes], augment: Augment) -> Load:
    draws = augment.draw(0, np.arange(len(files)))

    def run(i: int) -> object:
        image = decode(files[i], SIZE, crop=augment.crop(draws, i))
        return augment.one(image, draws, i)

    return run


def peer(files: list[bytes], auto_augment: str | None) -> Load:
    """As timm's own fast loader: crop, flip and RandAugment in Pillow, bytes as the result."""
    transform = load("timm.data").create_transform(
        SIZE,
        is_training=True,
        use_prefetcher=True,
        color_jitter=None,
        auto_augment=auto_augment,
        interpolation="bilinear",
        re_prob=0.0,
    )

    def run(i: int) -> object:
        with Image.open(io.BytesIO(files[i])) as image:
            return transform(image.convert("RGB"))

    return run


def ways(files: list[bytes]) -> dict[str, Load]:
    light = Augment("paper", seed=0, size=SIZE, flip=True, rand_ops=0)
    return {
        "partlabel: squash": ours(files, Augment("none", seed=0, size=SIZE)),
        "partlabel: squash, flip, Cutout": ours(files, light),
        "partlabel: squash, Cutout, RandAugment (paper)": ours(
            files, Augment("paper", seed=0, size=SIZE)
        ),
        "partlabel: crop, flip": ours(files, Augment("crop", seed=0, size=SIZE)),
        "Pillow + timm: crop, flip": peer(files, None),
        "Pillow + timm: crop, flip, RandAugment": peer(files, "rand-m9-mstd0.5"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = [photograph(seed, options.quality) for seed in range(options.images)]
    best: dict[str, float] = {}
    for _ in range(options.rounds + 1):  # the first one warms up, and is beaten
        for name, run in ways(files).items():
            random.seed(0)  # every round does the same
            np.random.seed(0)  # noqa: NPY002
            start = time.process_time()
            for i in range(len(files)):
                run(i)
            rate = len(files) / (time.process_time() - start)
            best[name] = max(rate, best.get(name, 0.0))
    if options.json:
        print(json.dumps(best))
        return
    mean = sum(len(file) for file in files) / len(files) / 1024
    print(f"{len(files)} JPEGs of 500 x 375, {mean:.0f} KiB each, to {SIZE} x {SIZE}, one core")
    for name, rate in best.items():
        print(f"{name:<48}{rate:8,.0f} images/s")


if __name__ == "__main__":
    main()
