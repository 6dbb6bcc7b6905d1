"""Import of a label file of Open Images V6 size, beside pandas and polars, in one run.

python benchmarks/import_labels.py [--rows 57524352] [--folder FOLDER] [--no-peers]

Generates the file (human labels of V6 train: as many rows, images and classes, ids random hex)
once grouped by image and once shuffled, imports each in a process of its own, and prints wall time,
peak memory, size of the store, time of `info` and of a random batch of labels. The peers read the
same file into the same arrays (row starts, class codes) in memory; they write nothing and take no
checksum.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

ROWS, IMAGES, CLASSES = 57_524_352, 9_011_219, 9_605
CHUNK = 2_000_000

PANDAS = """
import sys, numpy as np, pandas as pd
columns = {"ImageID": "string[pyarrow]", "LabelName": "category", "Confidence": "float32"}
frame = pd.read_csv(sys.argv[1], usecols=list(columns), dtype=columns, engine="c")
image, ids = pd.factorize(frame.ImageID)
code = frame.LabelName.cat.codes.to_numpy().astype("u2")
code |= (frame.Confidence == 0).to_numpy() * np.uint16(1 << 15)
order = np.argsort(image, kind="stable")
codes, indptr = code[order], np.concatenate([[0], np.cumsum(np.bincount(image))])
print(len(ids), len(codes))
"""

POLARS = """
import sys, numpy as np, polars as pl
frame = (
    pl.scan_csv(sys.argv[1], schema_overrides={"Confidence": pl.Float32})
    .select(
        image=pl.col("ImageID").str.to_integer(base=16, dtype=pl.UInt64),
        code=pl.col("LabelName").cast(pl.Categorical).to_physical().cast(pl.UInt16),
        absent=pl.col("Confidence") == 0,
    )
    .sort("image")
    .collect(engine="streaming")
)
codes = frame["code"].to_numpy() | frame["absent"].to_numpy() * np.uint16(1 << 15)
image = frame["image"].to_numpy()
starts = np.flatnonzero(np.concatenate([[True], image[1:] != image[:-1]]))
indptr = np.append(starts, len(image))
print(len(starts), len(codes))
"""

BATCH = """
import sys, time, numpy as np
from partlabel import LabelStore
store = LabelStore.open(sys.argv[1])
rng = np.random.default_rng(0)
batches = [rng.integers(0, len(store), 1024) for _ in range(2200)]
times = []
for rows in batches:
    start = time.perf_counter()
    store.batch(rows)
    times.append(time.perf_counter() - start)
low, middle, high = np.percentile(times[200:], [20, 50, 80]) * 1e6
print(f"{middle:.0f} us (p20 {low:.0f}, p80 {high:.0f})")
"""


def generate(folder: Path, rows: int, *, shuffled: bool) -> Path:
    """Write a label file in a process of its own.

    The peak memory that the system reports of a process includes what its parent had when it was
    started, so the parent must stay small.
    """
    kind = "shuffled" if shuffled else "grouped"
    run(
        [sys.executable, __file__, "--rows", str(rows), "--folder", str(folder), "--write", kind],
        folder,
    )
    return folder / f"train-annotations-human-{kind}.csv"


def write_labels(folder: Path, rows: int, *, shuffled: bool) -> None:
    """Write a label file; labels of an image are distinct, classes are long-tailed."""
    rng = np.random.default_rng(0)
    images = max(rows * IMAGES // ROWS, 1)
    ids = np.unique(rng.integers(0, 2**64, images + 1000, dtype=np.uint64))
    ids = rng.permutation(ids)[:images]
    image = np.sort(np.concatenate([np.arange(images), rng.integers(0, images, rows - images)]))
    weight = np.cumsum(1 / np.arange(1, CLASSES + 1) ** 0.9)
    label = np.empty(rows, np.int32)
    for start in range(0, rows, CHUNK):
        part = image[start : start + CHUNK] * CLASSES
        drawn = np.searchsorted(weight, rng.random(len(part)) * weight[-1])
        while len(twice := _repeated(part + drawn)):
            drawn[twice] = rng.integers(0, CLASSES, len(twice))
        label[start : start + CHUNK] = drawn
    if shuffled:
        order = rng.permutation(rows)
        image, label = image[order], label[order]
    names = pa.array([f"/m/0{np.base_repr(i * 7919 + 12345, 36).lower()}" for i in range(CLASSES)])
    (folder / "classes-trainable.txt").write_text("\n".join(names.to_pylist()) + "\n")
    path = folder / f"train-annotations-human-{'shuffled' if shuffled else 'grouped'}.csv"
    _write(path, ids[image], label, names, rng)


def _repeated(pairs: np.ndarray) -> np.ndarray:
    order = np.argsort(pairs, kind="stable")
    return order[1:][np.diff(pairs[order]) == 0]


def _write(
    path: Path, ids: np.ndarray, label: np.ndarray, names: pa.Array, rng: np.random.Generator
) -> None:
    digits = np.array([b"%02x" % i for i in range(256)], "S2")
    sources = pa.array(["verification", "crowdsource-verification"])
    options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write(b"ImageID,Source,LabelName,Confidence\n")
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            count = len(ids[part])
            text = digits[ids[part].astype(">u8").view(np.uint8)].tobytes()
            column = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(text)])
            table = {
                "ImageID": column.cast(pa.binary()).cast(pa.string()),
                "Source": sources.take(pa.array((rng.random(count) < 0.2).astype(np.int8))),
                "LabelName": names.take(pa.array(label[part])),
                "Confidence": (rng.random(count) < 0.345).astype(np.int8),
            }
            pa.csv.write_csv(pa.table(table), file, options)


def run(arguments: list[str], folder: Path) -> tuple[float, float, str]:
    """Run a process; give seconds, peak GiB and what it printed."""
    log = folder / "log.txt"
    start = time.perf_counter()
    process = os.posix_spawn(
        arguments[0],
        arguments,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - start
    text = log.read_text()
    if status:
        raise SystemExit(f"{' '.join(arguments[:4])} ended with {status}:\n{text}")
    return seconds, usage.ru_maxrss / 2**20, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--write", choices=["grouped", "shuffled"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_labels(options.folder, options.rows, shuffled=options.write == "shuffled")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        benchmark(Path(name), options.rows, peers=not options.no_peers)


def benchmark(folder: Path, rows: int, *, peers: bool) -> None:
    partlabel = str(Path(sys.executable).with_name("partlabel"))
    lines = [f"{'':34} {'seconds':>8} {'peak GiB':>9}"]
    store = folder / "train.labels"
    for shuffled in (False, True):
        path = generate(folder, rows, shuffled=shuffled)
        kind = "shuffled" if shuffled else "grouped"
        size = path.stat().st_size / 2**30
        print(f"{path.name}: {rows:,} rows, {size:.2f} GiB", flush=True)
        classes = str(folder / "classes-trainable.txt")
        command = [partlabel, "import", "openimages", f"train={path}", "--classes", classes]
        seconds, peak, text = run([*command, "--out", str(store), "--overwrite"], folder)
        print(text, flush=True)
        lines.append(f"{'partlabel import, ' + kind:34} {seconds:8.1f} {peak:9.2f}")
        for peer, script in (("polars", POLARS), ("pandas", PANDAS)) if peers else ():
            if importlib.util.find_spec(peer) is None:
                print(f"{peer} is not installed: left out")
                continue
            seconds, peak, _ = run([sys.executable, "-c", script, str(path)], folder)
            lines.append(f"{peer + ', ' + kind:34} {seconds:8.1f} {peak:9.2f}")
        path.unlink()
    seconds, peak, _ = run([partlabel, "info", str(store)], folder)
    lines.append(f"{'partlabel info':34} {seconds:8.1f} {peak:9.2f}")
    print("\n".join(lines))
    size = sum(file.stat().st_size for file in store.iterdir()) / 2**30
    images = max(rows * IMAGES // ROWS, 1)
    print(f"store {size:.3f} GiB; dense int8 would be {images * CLASSES / 2**30:.1f} GiB")
    timed = run([sys.executable, "-c", BATCH, str(store)], folder)[2].strip()
    print(f"batch of 1,024 random rows: {timed}")


if __name__ == "__main__":
    main()
