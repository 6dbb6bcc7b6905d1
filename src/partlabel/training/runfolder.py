"""A run's folder: its settings, its log without gaps, its environment, what was skipped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from partlabel.classfile import write_rows
from partlabel.config import Config
from partlabel.errors import DataError, PartlabelError, StoreError, UsageError
from partlabel.store import LabelStore
from partlabel.tables import ImageTable
from partlabel.training.checkpoint import newest


class RunFolder:
    """``outputs/NAME``: config.toml, metrics.jsonl, environment.json, checkpoints/ and the rest."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.log_file = self.path / "metrics.jsonl"
        self._wants_board = False
        self._board: Any = None

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that a run has left."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise UsageError(f"{path}: there is no such run folder; partlabel train makes one")
        if not (folder.path / "config.toml").is_file():
            raise UsageError(f"{path}: is not a run folder (it has no config.toml)")
        return folder

    @property
    def config(self) -> Config:
        """The complete settings of the run."""
        return Config.read(self.path / "config.toml")

    @property
    def labels(self) -> dict[str, str]:
        """By purpose the digests of the labels when the run began, as far as it has left them.

        They are in a file for people, which a run does without.
        """
        try:
            text = (self.path / "environment.json").read_text(encoding="utf-8")
            return dict(json.loads(text).get("labels", {}))
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def begin(self, config: Config, *, processes: int, labels: Mapping[str, str]) -> None:
        """Make the folder, or find that it belongs to the same settings and labels."""
        self.refuse_other(config, labels)
        self.path.mkdir(parents=True, exist_ok=True)
        config.write(self.path / "config.toml")
        self._wants_board = config.train.tensorboard
        if self._wants_board:
            _board_writer()  # is it there?
        text = json.dumps({**environment(processes), "labels": labels}, indent=2) + "\n"
        (self.path / "environment.json").write_text(text, encoding="utf-8")

    def refuse_other(self, config: Config, labels: Mapping[str, str]) -> None:
        """Refuse other settings, or other labels, than those of the run that is here.

        Args:
            config: The settings.
            labels: By purpose what the labels are (:func:`labels_digest`).
        """
        written = self.path / "config.toml"
        if not written.exists() or newest(self.checkpoints) is None:
            return
        there = Config.read(written)
        if there.hash() != config.hash():
            raise UsageError(
                f"{self.path}: has a run with other settings ({difference(there, config)}); "
                "choose another --out, or --fresh to start anew"
            )
        known = self.labels
        for purpose, each in labels.items():
            if known.get(purpose, each) != each:
                what = f"{self.path}: its {purpose} labels are others than they were when it began"
                raise UsageError(f"{what}; choose another --out, or --fresh to start anew")

    @contextmanager
    def nothing_left_of_a_mistake(self) -> Iterator[None]:
        """Remove a folder that is new where the settings turn out to be wrong."""
        new = not self.path.exists()
        try:
            yield
        except PartlabelError:
            if new and not any(self.path.rglob("step-*")):
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        line = {"kind": kind, "step": step, **{k: _plain(v) for k, v in values.items()}}
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            what = f"{self.log_file}: cannot be written ({error.strerror or error})"
            raise StoreError(f"{what}; make room and run the same command again") from error
        if self._wants_board:
            self._board = self._board or _open_board(self.path / "tensorboard", step)
            for name, value in values.items():
                if isinstance(value, float) and math.isfinite(value):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def flush_log(self) -> None:
        """Bring the log to the disk: a checkpoint must never be ahead of it."""
        if self.log_file.exists():
            with self.log_file.open("rb") as file:
                os.fsync(file.fileno())

    def cut_log(self, step: int) -> None:
        """Drop what was logged after a step, which will be logged again; and a torn last line."""
        if not self.log_file.exists():
            return
        kept = [line for line in self._lines() if line["step"] <= step]
        temporary = self.log_file.with_suffix(".tmp")
        text = "".join(json.dumps(line) + "\n" for line in kept)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.log_file)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for text in self.log_file.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn by a kill
            if isinstance(line, dict) and "step" in line:
                yield line

    def write_skipped(self, name: str, skipped: Mapping[int, str], images: ImageTable) -> None:
        """Write a csv of images that could not be read, and why."""
        paths = images.paths(list(skipped)) if skipped else []
        rows = [
            (images.show_id(row), path or "", reason)
            for (row, reason), path in zip(skipped.items(), paths, strict=True)
        ]
        write_rows(self.path / name, ("image_id", "path", "reason"), rows)

    def write_ids(self, name: str, rows: Iterable[int], images: ImageTable) -> Path:
        """Write a csv with the ids of some images."""
        path = self.path / name
        write_rows(path, ("image_id",), ([images.show_id(row)] for row in rows))
        return path

    def finished(self) -> dict[str, Any] | None:
        """The last result, where the run came to its end."""
        done = self.path / "result.json"
        if not done.is_file():
            return None
        try:
            found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"is not json ({error})", path=done, fix="remove it") from error
        return found

    def finish(self, result: Mapping[str, Any]) -> None:
        """Say that the run came to its end."""
        temporary = self.path / "result.json.tmp"
        text = json.dumps({k: _plain(v) for k, v in result.items()}, indent=2) + "\n"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path / "result.json")
        if self._board is not None:
            self._board.close()


def difference(there: Config, here: Config) -> str:
    """The settings in which two runs differ, in a few words."""
    old, new = there.flat(), here.flat()
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    shown = [f"{key} is {old.get(key)!r} there, {new.get(key)!r} here" for key in keys[:3]]
    return "; ".join(shown) + (f"; {len(keys) - 3} more" if len(keys) > 3 else "")


def labels_digest(store: LabelStore) -> str:
    """Sixteen digits of the classes and the labels of a store, of images in this order.

    Without the ids of the images, which for millions of them cost gigabytes to look at.
    """
    digest = hashlib.blake2b(f"{store.complete} {store.classes.ids}".encode(), digest_size=8)
    for part in (store.indptr, store.codes):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def environment(processes: int) -> dict[str, Any]:
    """What the run ran on."""
    import torch

    from partlabel import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "partlabel": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": gpu,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "processes": processes,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _open_board(folder: Path, step: int) -> Any:
    return _board_writer()(str(folder), purge_step=step)  # what a resumed run logs again


def _board_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        what = "[train] tensorboard: is not installed"
        raise UsageError(f"{what}; pip install 'partlabel[tensorboard]'") from error
    return SummaryWriter


def _plain(value: Any) -> Any:
    """For json, which has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
