"""Average precision of partial labels, beside its peers, in one process each.

python benchmarks/metrics.py [--small]

Peers: scikit-learn (a loop over classes), torchmetrics (exact, unknown = ignore_index), and the
algorithm of the paper's code (a loop over classes in numpy, on dense arrays). Every case runs in a
process of its own, so that its peak memory is its own; times are medians of several runs there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Data(NamedTuple):
    scores: np.ndarray
    states: np.ndarray


def sparse(images: int, classes: int, known: float, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((images, classes), dtype=np.float32)
    states = np.zeros((images, classes), np.int8)
    which = rng.integers(0, states.size, int(known * states.size))
    states.flat[which] = np.where(rng.random(len(which)) < 0.5, 1, -1)
    scores += 0.7 * states
    return Data(scores, states)


def pairs_like_openimages(count: int, images: int, classes: int) -> tuple[np.ndarray, ...]:
    """Annotated pairs grouped by image, classes long-tailed."""
    rng = np.random.default_rng(0)
    drawn = int(1.01 * count)  # some are drawn twice
    which = np.minimum((classes * rng.random(drawn) ** 2).astype(np.int64), classes - 1)
    keys = np.unique(rng.integers(0, images, drawn) * classes + which)
    keys = np.sort(rng.permutation(keys)[:count])
    image, which = np.divmod(keys, classes)
    count = len(keys)
    state = np.where(rng.random(count) < 0.6, 1, -1).astype(np.int8)
    score = (rng.standard_normal(count) + 0.7 * state).astype(np.float32)
    return score, which, state, image


def ours(data: Data, batch: int = 256) -> Callable[[], float]:
    from partlabel import AveragePrecision

    def run() -> float:
        metric = AveragePrecision(data.scores.shape[1])
        for start in range(0, len(data.scores), batch):
            part = slice(start, start + batch)
            metric.update(data.scores[part], data.states[part])
        return metric.compute().map_c

    return run


def scikit_learn(data: Data) -> Callable[[], float]:
    from sklearn.metrics import average_precision_score

    def run() -> float:
        values = []
        for c in range(data.scores.shape[1]):
            known = data.states[:, c] != 0
            positive = data.states[known, c] > 0
            if positive.any() and not positive.all():
                values.append(average_precision_score(positive, data.scores[known, c]))
        return float(np.mean(values))

    return run


def torchmetrics(data: Data, batch: int = 256) -> Callable[[], float]:
    import torch

    from partlabel.vision import load  # torchmetrics imports torchvision where it is installed

    kind = load("torchmetrics.classification").MultilabelAveragePrecision
    targets = np.where(data.states == 0, -1, data.states > 0).astype(np.int64)

    def run() -> float:
        count = data.scores.shape[1]
        metric = kind(count, thresholds=None, ignore_index=-1)
        for start in range(0, len(data.scores), batch):
            part = slice(start, start + batch)
            metric.update(torch.from_numpy(data.scores[part]), torch.from_numpy(targets[part]))
        return float(metric.compute())

    return run


def paper(data: Data) -> Callable[[], float]:
    """Per class: sort, walk down, precision at every positive."""
    targets = np.where(data.states == 0, -1, data.states > 0)

    def run() -> float:
        values = []
        for c in range(data.scores.shape[1]):
            scores, labels = data.scores[:, c], targets[:, c]
            known = labels != -1
            scores, labels = scores[known], labels[known]
            if not len(labels) or labels.min() == 1 or labels.max() == 0:
                continue
            hits = labels[np.argsort(scores)[::-1]] == 1
            precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
            values.append(precision[hits].sum() / (hits.sum() + 1e-8))
        return float(np.mean(values))

    return run


PEERS = {"partlabel": ours, "scikit-learn": scikit_learn, "torchmetrics": torchmetrics}
PEERS["the paper's code"] = paper


def timed(run: Callable[[], Any], repeats: int) -> tuple[list[float], Any]:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        value = run()
        seconds.append(time.perf_counter() - began)
    return seconds, value


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def row(name: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    low, high = np.quantile(seconds, [0.2, 0.8])
    return {"name": name, "s": statistics.median(seconds), "p20": low, "p80": high, **more}


def measure(case: str, peer: str, small: bool) -> dict[str, Any]:
    """One case in this process."""
    warnings.simplefilter("ignore")
    if case == "sparse":
        shape = (2000, 200) if small else (20_000, 2_000)
        data = sparse(*shape, known=0.01)
        run = PEERS[peer](data)
        if peer == "partlabel":
            ours(sparse(300, 20, known=0.1))()  # load the library before memory is looked at
        before = peak()
        seconds, value = timed(run, 9 if peer == "partlabel" else 3)
        return row(peer, seconds, map_c=value, mib=peak() - before)
    if case == "openimages":
        return openimages(small)
    if case == "update":
        return update(small)
    return draws(small)


def openimages(small: bool) -> dict[str, Any]:
    from partlabel import AveragePrecision

    count = 20_000 if small else 1_800_000
    score, which, state, image = pairs_like_openimages(count, 125_436, 9_605)
    metric = AveragePrecision(9_605)
    for start in range(0, count, 3_600):  # about 256 images
        part = slice(start, start + 3_600)
        metric.update_pairs(score[part], which[part], state[part], images=image[part])
    held = sum(t.nbytes for t in (*metric._scores, *metric._codes, *metric._images)) / 2**20
    metric.compute()
    before = peak()
    seconds, result = timed(metric.compute, 9)
    more = {"map_c": result.map_c, "mib": peak() - before, "state_mib": held}
    return row("compute, 1.8 M pairs of 125,436 x 9,605", seconds, **more)


def update(small: bool) -> dict[str, Any]:
    from partlabel import AveragePrecision

    data = sparse(256, 9_605, known=14 / 9_605)
    metric = AveragePrecision(9_605)

    def run() -> None:
        metric.update(data.scores, data.states, images=np.arange(256))

    timed(run, 5)
    seconds, _ = timed(run, 10 if small else 200)
    return row("update, dense 256 x 9,605", seconds)


def draws(small: bool) -> dict[str, Any]:
    from partlabel.metrics import AveragePrecision, bootstrap

    images = 500 if small else 20_000
    rng = np.random.default_rng(0)
    states = np.where(rng.random((images, 80)) < 0.5, 1, -1).astype(np.int8)
    scores = rng.standard_normal((images, 80), dtype=np.float32) + states
    metric = AveragePrecision(80)
    metric.update(scores, states, images=np.arange(images))
    samples = 20 if small else 1000
    seconds, _ = timed(lambda: bootstrap(metric, samples=samples), 1 if small else 3)
    return row(f"bootstrap, {samples} samples of {images:,} x 80, all annotated", seconds)


def work(pipe: Any, *what: Any) -> None:
    pipe.send(measure(*what))
    sys.stdout.flush()
    os._exit(0)


def isolated(*what: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(there, *what))
    process.start()
    there.close()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--json", action="store_true", help="print json")
    small = parser.parse_args().small
    found = [isolated("sparse", peer, small) for peer in PEERS]
    found += [isolated(case, "", small) for case in ("openimages", "update", "bootstrap")]
    if parser.parse_args().json:
        print(json.dumps(found, indent=2))
        return
    title = "20,000 x 2,000, 1 % annotated, updates included"
    print(f"{title:58} seconds (p20, p80)  extra MiB   mAP")
    for entry in found:
        spread = f"{entry['s']:.4f} ({entry['p20']:.4f}, {entry['p80']:.4f})"
        memory = f"{entry['mib']:9.1f}" if "mib" in entry else " " * 9
        value = f"{100 * entry['map_c']:7.3f}" if "map_c" in entry else ""
        state = f"  state {entry['state_mib']:.1f} MiB" if "state_mib" in entry else ""
        print(f"{entry['name']:58} {spread:24} {memory} {value}{state}")


if __name__ == "__main__":
    main()
