"""The end of the page: how to do it again, on what it ran, which files there are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from partlabel.report.material import Material
from partlabel.report.wording import one_line, plain

_FILES = {
    "report.html": "this page",
    "figures/": "every figure as SVG, PNG and csv, and the table of classes",
    "config.toml": "the complete settings",
    "compare.toml": "the settings of the comparison",
    "results.csv": "one row for each training",
    "summary.csv": "mean and standard deviation over seeds",
    "differences.csv": "differences to the baseline, with intervals",
    "per_class/": "average precision per class of each training",
    "priors/": "the estimated prior of each training",
    "truth.csv": "the true share of each class",
    "frequent.csv": "the classes that count as frequent",
    "failed.csv": "trainings that failed, and why",
    "stores/": "the partial labels that were trained on",
    "runs/": "a run folder for each training",
    "metrics.jsonl": "the log of the training",
    "result.json": "the last evaluation",
    "classes.csv": "average precision per class",
    "thresholds.csv": "a threshold for each class",
    "prior.csv": "how often each class occurs, by estimate",
    "predictions.parquet": "scores at the annotated labels of the validation set",
    "checkpoints/": "the weights",
    "stage1/": "the first stage, as a run folder",
    "posteriors/": "how probably unknown labels are present, until the training is finished",
    "environment.json": "what it ran on",
}
_ENVIRONMENT = {
    "partlabel": "partlabel",
    "python": "Python",
    "torch": "PyTorch",
    "cuda": "CUDA",
    "gpu": "GPU",
    "system": "System",
    "machine": "Machine",
    "cores": "CPU cores",
    "processes": "Processes",
    "started": "Started",
}


def details_of(material: Material, figures: Path) -> dict[str, Any]:
    """What the last section shows."""
    folder = material.folder
    compare = material.kind == "compare"
    file = "compare.toml" if compare else "config.toml"
    name = shlex.quote(plain(folder / file))
    again = f"partlabel {'compare' if compare else 'train'} {name} --out NEW_FOLDER"
    environment = [
        (title, one_line(material.environment[key], 200))
        for key, title in _ENVIRONMENT.items()
        if material.environment.get(key) is not None
    ]
    there = [
        (name, text)
        for name, text in _FILES.items()
        if (folder / name).exists() or name in ("report.html", "figures/")
    ]
    if figures.parent.resolve() != folder.resolve():
        there = [entry for entry in there if entry[0] not in ("report.html", "figures/")]
        there.append((plain(figures), _FILES["figures/"]))
    return {
        "folder": plain(folder),
        "reproduce": again,
        "reproduce_lead": "From the settings as they were, into a new folder, started where the "
        "paths of the data are right:",
        "given": _given(material.environment.get("command")),
        "environment": environment,
        "files": there,
        "settings": "\n".join(plain(line) for line in material.settings.splitlines()),
        "settings_name": file,
    }


def _given(command: Any) -> str:
    """The command line that started it."""
    if not isinstance(command, list) or len(command) < 2:
        return ""
    return "partlabel " + shlex.join(one_line(part) for part in command[1:])
