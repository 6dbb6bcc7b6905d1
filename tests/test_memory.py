"""Memory does not grow with the number of images: nine million of them, two workers.

Run as a program it measures one store: ``python -m tests.test_memory STORE``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partlabel import ClassTable, ImageTable, LabelStore
from partlabel.assemble import absent_bit

SMALL, LARGE = 90_000, 9_000_000
BATCHES, BATCH, WORKERS = 200, 64, 2
MIB = 1 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux"),
]


def make_store(path: Path, images: int) -> Path:
    """Every image has 6 or 7 labels of 9,600 classes; one in a hundred is for validation."""
    import pyarrow as pa

    rows = np.arange(images)
    lengths = 6 + (rows % 3 > 0)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    codes = np.arange(indptr[-1], dtype=np.uint32)
    codes %= 9600  # ascending within nearly every row
    codes = codes.astype(np.uint16)
    codes[::3] |= np.uint16(absent_bit(np.dtype(np.uint16)))
    split = pa.DictionaryArray.from_arrays(
        pa.array((rows >= images // 100).astype(np.int8)), pa.array(["val", "train"])
    )
    table = ImageTable.make(rows.astype(np.uint64), splits=split, template="{id:016x}.jpg")
    classes = ClassTable([f"c{i}" for i in range(9600)])
    return LabelStore(classes, table, indptr=indptr, codes=codes).save(path)


class Few:
    """All images are one of eight, found by their path as in a folder."""

    def __init__(self, images: ImageTable) -> None:
        from PIL import Image

        self.images, self.files = images, []
        for value in range(8):
            file = io.BytesIO()
            Image.new("RGB", (16, 16), (30 * value, 99, 10)).save(file, "JPEG")
            self.files.append(file.getvalue())

    def read(self, row: int) -> bytes:
        name = self.images.paths([row])[0]
        assert name is not None
        return self.files[int(name[:16], 16) % 8]

    def missing(self, rows: Sequence[int] | np.ndarray) -> list[int]:
        return []


def usage(process: int) -> dict[str, int]:
    """What a process holds, in bytes: shared pages divided among those who share them."""
    found = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) << 10
    return found


def children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(one) for one in text.split()]


def measure(path: Path) -> dict[str, Any]:
    """Iterate over batches as a training does; what its processes hold on the way."""
    import torch

    from partlabel.augment import Augment
    from partlabel.training.dataset import LabelledImages, Order, ahead

    store = LabelStore.open(path).split("train")
    augment = Augment("flip", seed=0, size=16)
    data = LabelledImages(store, Few(store.images), size=16, augment=augment, replace=True)
    order = Order(len(store), BATCH, 0)
    start = order.steps // 2
    loaded = data.steps(order, start, start + BATCHES, workers=WORKERS)
    marks: dict[int, list[dict[str, int]]] = {}
    labels = 0
    for number, batch in enumerate(ahead(loaded, store, torch.device("cpu"))):
        labels += int(batch.states.count_nonzero())
        if number in (BATCHES // 4, BATCHES - 6):  # while both workers have something to do
            marks[number] = [usage(os.getpid()), *(usage(child) for child in children())]
    # Not getrusage: its peak may be that of whoever started this process.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    early, late = marks.values()
    assert len(early) == len(late) == 1 + WORKERS
    return {"images": len(store), "labels": labels, "peak": peak, "early": early, "late": late}


def measured(folder: Path, images: int) -> dict[str, Any]:
    """Make a store, measure it in a process of its own, and remove it."""
    path = make_store(folder / f"{images}.labels", images)
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_memory", str(path)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = sum(file.stat().st_size for file in path.iterdir())
    shutil.rmtree(path)
    return {**json.loads(done.stdout), "files": files}


def test_nine_million_images_take_few_bytes_each_and_workers_share_them(tmp_path: Path) -> None:
    """One test, since the store is large and making it takes a while."""
    small, large = measured(tmp_path, SMALL), measured(tmp_path, LARGE)
    images, files = (large[key] - small[key] for key in ("images", "files"))

    def grown(key: str) -> int:
        """How much more all processes together hold for the large store."""
        before, after = (sum(part[key] for part in found["late"]) for found in (small, large))
        return int(after - before)

    # Both saw as many labels.
    assert large["labels"] == pytest.approx(small["labels"], rel=0.01)
    assert small["labels"] == pytest.approx(BATCHES * BATCH * 20 / 3, rel=0.01)
    # A worker has about 14 MB to itself, of its buffers, which grows neither with the images nor
    # with time: pages are shared, not copied as they are read. 16 MiB more would be 2 bytes per
    # image, and no table with an entry for each could hide in that.
    for worker in range(1, 1 + WORKERS):
        own = [found[when][worker]["Private_Dirty"] for found in (small, large)
               for when in ("early", "late")]  # fmt: skip
        assert own[3] - own[1] < 16 * MIB
        assert max(own[1] - own[0], own[3] - own[2]) < 8 * MIB
    # All together, 40 bytes per image beyond the mapped files, in plain arrays: the order of the
    # epoch is 8; of the split indptr 8, id 8 and split 4: 28. Python objects would be more: a list
    # of numbers is 40 by itself, one of paths 90.
    assert grown("Pss_Anon") < 40 * images
    assert grown("Pss") < 40 * images + files
    # At the peak, in the main process, 80: the tables of the whole store while they are split.
    assert large["peak"] - small["peak"] < 80 * images + files


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))))
