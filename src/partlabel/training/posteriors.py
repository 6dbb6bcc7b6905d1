"""What a model says of unknown labels, on disk: of each image the likeliest classes, with logits.

A table is ``logits.npy`` (images, kept), ``codes.npy`` of the same shape where not all classes are
kept, and ``calibration.json``, which makes posteriors of them. It is memory-mapped; with many
classes it has 384 bytes per image and not images x classes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partlabel.calibrate import Calibration
from partlabel.errors import StoreError
from partlabel.tables import Rows

KEPT = 64
"""Classes of an image that are kept; unknown labels of all others count as absent."""
_ALL = 256
"""Up to so many classes all of them are kept."""
_AT_ONCE = 1 << 16  # rows
_NEVER = -6e4  # a logit that float16 has, and that makes a posterior of 0


class Posteriors:
    """A table that is complete.

    Args:
        folder: Of the table.
    """

    def __init__(self, folder: Path) -> None:
        try:
            state = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
            self.calibration = Calibration.from_dict(state)
            self.alpha_pos = float(state["alpha_pos"])
            """The weight of labels that are known to be present."""
            self.logits = np.load(folder / "logits.npy", mmap_mode="r")
            whole = self.logits.shape[1] == len(self.calibration.shift)
            self.codes = None if whole else np.load(folder / "codes.npy", mmap_mode="r")
        except (OSError, ValueError, TypeError, EOFError, LookupError) as error:
            what = f"{folder}: what a model said of unknown labels cannot be read ({error})"
            raise StoreError(f"{what}; start anew with --fresh") from error

    def dense(self, rows: Rows, device: torch.device) -> Tensor:
        """The posteriors of some images, float32 (B, C); meant for unknown labels only."""
        logits = self._spread(sent(self.logits[rows], device).float(), rows, _NEVER)
        found = self.calibration.posterior(logits)
        return torch.where(logits > _NEVER, found, 0.0)

    def log_odds(self, rows: Rows, device: torch.device) -> Tensor:
        """The log odds of some images, float32 (B, C), to be mixed with those of another model.

        A class that was not kept may have been as likely as the least that was.
        """
        logits = sent(self.logits[rows], device).float()
        least = torch.where(logits > _NEVER, logits, torch.inf).amin(1, keepdim=True)
        return self.calibration.log_odds(self._spread(logits, rows, least))

    def _spread(self, logits: Tensor, rows: Rows, rest: Tensor | float) -> Tensor:
        """The logits (B, kept) as (B, C), with something in place of those that were not kept."""
        if self.codes is None:
            return logits
        codes = sent(self.codes[rows].astype(np.int64), logits.device)
        spread = logits.new_empty((len(rows), len(self.calibration.shift)))
        spread.copy_(rest if isinstance(rest, Tensor) else logits.new_tensor(rest))
        return spread.scatter_(1, codes, logits)


class PosteriorWriter:
    """Writes a table, each process the rows of its images.

    Args:
        folder: Where the table will be; until it is complete it has another name.
        images: How many there are.
        classes: How many there are.
    """

    def __init__(self, folder: Path, *, images: int, classes: int) -> None:
        self.folder, self.images, self.classes = folder, images, classes
        self.temporary = folder.with_name(f".{folder.name}.part")
        self.kept = classes if classes <= _ALL else KEPT
        self._logits: npt.NDArray[np.float16] | None = None
        self._codes: npt.NDArray[np.uint32] | None = None

    def make(self) -> None:
        """Make the files; done by one process, before any writes."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        try:
            self.temporary.mkdir(parents=True)
            self._make("logits.npy", np.float16(_NEVER))
            if self.kept < self.classes:
                self._make("codes.npy", np.uint32(0))
        except OSError as error:
            raise self._cannot_write(error) from error

    def _make(self, name: str, value: np.generic) -> None:
        """A file of one value. Written, since a full disk kills who writes to a map of it."""
        shape = (self.images, self.kept)
        with (self.temporary / name).open("wb") as file:
            header = {"descr": value.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, self.images, _AT_ONCE):
                rows = min(_AT_ONCE, self.images - start)
                file.write(np.full((rows, self.kept), value).tobytes())

    def _cannot_write(self, error: OSError) -> StoreError:
        what = f"{self.folder}: cannot be written ({error.strerror or error})"
        return StoreError(f"{what}; make room and run the same command again")

    def write(self, rows: Rows, logits: Tensor, unknown: Tensor) -> None:
        """Write the images of a batch."""
        if self._logits is None:
            self._logits = np.load(self.temporary / "logits.npy", mmap_mode="r+")
            if self.kept < self.classes:
                self._codes = np.load(self.temporary / "codes.npy", mmap_mode="r+")
        values = logits.float().clamp(-3e4, 3e4).masked_fill(~unknown, _NEVER)
        if self._codes is not None:
            values, codes = values.topk(self.kept, dim=1)
            self._codes[rows] = codes.cpu().numpy()
        self._logits[rows] = values.half().cpu().numpy()

    def flush(self) -> None:
        """Bring to the disk what this process has written."""
        for part in (self._logits, self._codes):
            if isinstance(part, np.memmap):
                part.flush()
        self._logits = self._codes = None

    def finish(self, calibration: Calibration, *, alpha_pos: float = 1.0) -> None:
        """Make the table complete; done by one process, when all have written."""
        text = json.dumps({**calibration.to_dict(), "alpha_pos": alpha_pos})
        try:
            with (self.temporary / "calibration.json").open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(self.folder, ignore_errors=True)
            self.temporary.rename(self.folder)
        except OSError as error:
            raise self._cannot_write(error) from error


def sent(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """An array on the device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":  # from pinned memory, or the copy would wait for all that is queued
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
