"""Compare folders made without training: made-up numbers, a tiny random model, drawn images."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from partlabel import ClassTable, simulate
from partlabel.classfile import write_rows
from partlabel.compare.results import Row, write_results
from partlabel.config import Config
from partlabel.prior import ClassPrior, Prior
from tests.tiny_run import BACKBONE, SIZE, image_store, make_run

TITLES = {
    "ignore": "Ignore (CE)",
    "negative": "Negative (CE)",
    "csl": "CSL (likelihood and prior)",
}
WORDS = [
    "daylight",
    "outdoor",
    "sky",
    "grass",
    "road",
    "car",
    "person",
    "tree",
    "building",
    "window",
    "bird",
    "boat",
    "bicycle",
    "horse",
    "dog",
    "cat",
    "chair",
    "table",
    "cup",
    "bottle",
    "book",
    "clock",
    "lamp",
    "bag",
    "shoe",
    "hat",
    "ball",
    "kite",
    "train",
    "bus",
    "sheep",
    "cow",
    "bear",
    "zebra",
    "fork",
    "spoon",
    "bowl",
    "apple",
    "pizza",
    "cake",
    "bed",
    "sofa",
    "laptop",
    "phone",
    "oven",
    "sink",
    "vase",
    "toothbrush",
]

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>bold</b>",
    'it\'s "quoted" & <i>',
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "{{ 7 * 7 }} {% raw %} ${x} `y`",
    "]]> <!-- --> <![CDATA[",
    "$x^2$ \\frac{1}{2}",
    "long " * 60,
    "w" * 300,
    "nul\x00 bell\x07 tab\t line\nbreak",
    "\U0001f98a \u72d0\u72f8",
]
"""Names that try to be something else."""


def make_compare(
    folder: Path,
    *,
    names: list[str] | None = None,
    methods: dict[str, str] | None = None,
    schemes: tuple[str, ...] = ("fpc:4",),
    seeds: tuple[int, ...] = (0, 1, 2),
    images: int = 60,
    sweep: bool = False,
    pictures: bool = True,
) -> Path:
    """A compare folder as ``partlabel compare`` leaves it, with one model that was kept."""
    methods = dict(methods or TITLES)
    names = names or WORDS[:20]
    rng = np.random.default_rng(7)
    truth = 0.75 * np.exp(-4.2 * np.arange(len(names)) / max(len(names) - 1, 1)) + 0.01
    ids = [f"c{i:03}" for i in range(len(names))]
    classes = ClassTable(ids, names)
    out = folder / "out"
    for name in ("per_class", "priors", "stores", "runs"):
        (out / name).mkdir(parents=True, exist_ok=True)
    states = np.where(rng.random((images, len(names))) < truth, 1, -1).astype(np.int8)
    whole = image_store(folder, states, complete=True)
    whole.classes = classes
    whole.save(folder / "whole.labels")
    compare: dict[str, Any] = {
        "methods": list(methods),
        "schemes": list(schemes),
        "seeds": list(seeds),
        "baseline": "ignore",
        "frequent": min(6, len(names)),
    }
    if sweep:
        values = [0, 1, 5, 10, 20]
        compare["sweep"] = {
            "k": {"based_on": "csl", "key": "loss.params.top_k", "values": values,
                  "title": "K, labels ignored per image"},
        }  # fmt: skip
        methods |= {f"k={value}": f"k = {value}" for value in values}
    base = {
        "name": "kitchen and street",
        "data": {"train": str(folder / "whole.labels")},
        "images": {"size": SIZE},
        "model": {"backbone": BACKBONE, "weights": "none"},
        "loss": {"params": {"top_k": 2}},
        "prior": {"top_n": 3},
        "train": {"epochs": 5},
    }
    (out / "compare.toml").write_text(tomli_w.dumps({**base, "compare": compare}))
    shares = list(zip(ids, names, truth.tolist(), strict=True))
    write_rows(out / "truth.csv", ("class_id", "class_name", "share"), shares)
    write_rows(out / "frequent.csv", ("class_id", "class_name", "share"), shares[:6])
    rows = []
    for scheme in schemes:
        for method, title in methods.items():
            for seed in seeds:
                key = f"{len(rows):016x}"
                rows.append(_cell(out, key, (method, title, scheme, seed), classes, truth))
    write_results(out / "results.csv", rows)
    if pictures:
        _kept_run(out, folder, whole, base, schemes[0], seeds[0])
    return out


def _cell(
    out: Path, key: str, which: tuple[str, str, str, int], classes: ClassTable, truth: np.ndarray
) -> Row:
    """A training that never was."""
    method, title, scheme, seed = which
    rng = np.random.default_rng([seed, len(method), len(scheme)])
    labels = float(scheme.partition(":")[2] or 1)
    level = 0.62 + 0.05 * math.log10(1 + labels)
    if method == "negative":
        level += -0.02 if scheme.startswith("rpa") else 0.03
    elif method == "csl" or method.startswith("k="):
        level += 0.055 - 0.002 * abs(5 - float(method[2:] or 5) if "=" in method else 0)
    loss_of_frequent = {"negative": 0.3}.get(method, 0.02)
    aps = np.clip(
        level + 0.25 * truth - loss_of_frequent * truth + rng.normal(0, 0.05, len(truth)),
        0.02,
        0.995,
    )
    write_rows(
        out / "per_class" / f"{key}.csv",
        ("class_id", "class_name", "positives", "negatives", "ap"),
        (
            (i, n, 10, 10, float(ap))
            for i, n, ap in zip(classes.ids, classes.names, aps, strict=True)
        ),
    )
    if method == "csl" or "=" in method:
        noisy = np.clip(truth * np.exp(rng.normal(0.1, 0.3, len(truth))) + 0.02, 0, 0.99)
        _prior(classes, noisy).write(out / "priors" / f"{key}.csv")
    run = out / "runs" / method / scheme.replace(":", "-") / f"seed{seed}"
    run.mkdir(parents=True)
    (run / "cell.json").write_text(json.dumps({"key": key}))
    with (run / "metrics.jsonl").open("w") as log:
        for epoch in range(8):
            for step in range(5):
                loss = 3 * math.exp(-epoch / 4) * (1 + 0.1 * rng.random()) + len(method) / 9
                line = {"kind": "train", "step": epoch * 5 + step + 1, "epoch": epoch, "loss": loss}
                log.write(json.dumps(line) + "\n")
            value = float(aps.mean() * (1 - math.exp(-(epoch + 1) / 2.5)))
            line = {"kind": "eval", "step": epoch * 5 + 5, "epoch": epoch, "map_c": value}
            log.write(json.dumps(line) + "\n")
    environment = {"partlabel": "0.5.0", "python": "3.11.2", "torch": "2.13.0", "gpu": None,
                   "command": ["partlabel", "compare", "street.toml", "--out", str(out)],
                   "started": "2024-05-01T10:00:00+0000"}  # fmt: skip
    (run / "environment.json").write_text(json.dumps(environment))
    return Row(
        key=key, method=method, title=title, scheme=scheme, seed=seed, map_c=float(aps.mean()),
        map_o=float(aps.mean()) + 0.04, map_frequent=float(aps[:6].mean()),
        ap={classes.names[0][:30]: float(aps[0])}, n_valid=len(aps), images=100,
        steps=40, seconds=12.5,
    )  # fmt: skip


def _prior(classes: ClassTable, values: Any) -> Prior:
    return Prior(
        [
            ClassPrior(class_id=i, class_name=n, prior=float(v), method="mean")
            for i, n, v in zip(classes.ids, classes.names, values, strict=True)
        ]
    )


def _kept_run(
    out: Path, folder: Path, whole: Any, base: dict[str, Any], scheme: str, seed: int
) -> None:
    """The run folder of CSL, whose checkpoint is still there, on labels drawn from the whole."""
    kind, _, value = scheme.partition(":")
    store = whole
    if kind == "fpc":
        store = simulate.fixed_per_class(whole, per_class=int(value), seed=seed)
    store.save(out / "stores" / f"{kind}-{value}-seed{seed}.labels")
    run = out / "runs" / "csl" / scheme.replace(":", "-") / f"seed{seed}"
    settings = {key: value for key, value in base.items() if key not in ("name", "data")}
    make_run(
        run,
        classes=whole.classes,
        data={"train": str(out / "stores" / f"{kind}-{value}-seed{seed}.labels")},
        **{key: value for key, value in settings.items() if key not in ("images", "model")},
    )
    Config.read(run / "config.toml")
