"""A run's model as one file for others: onnx, pt2 (torch.export) or safetensors, checked.

Classes, input and thresholds are inside as metadata (:func:`metadata`). An onnx or pt2 file takes
images as they are decoded, uint8 (batch, 3, size, size) in RGB, normalises them itself and gives
``logits`` and ``probabilities``; safetensors holds the weights alone. Every file is read back and
compared with torch before it is put in place.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from partlabel.errors import DataError, PartlabelError, StoreError, UsageError
from partlabel.model import Classifier, description, rebuild
from partlabel.prediction.predict import Predictor
from partlabel.tables import ClassTable

FORMATS = ("onnx", "pt2", "safetensors")
FORMAT_VERSION = 1
TOLERANCE = 1e-3
"""Largest difference of a logit from torch's that a file may have."""

_BATCHES = (1, 2, 5)  # the number of images is not fixed
_MOST_BYTES = 2_000_000_000  # of one protobuf
_NEEDED = ("onnx", "onnxscript", "onnxruntime")

Run = Callable[[Tensor], Tensor]
"""Images to logits."""


class Exported(NamedTuple):
    """What was written."""

    path: Path
    size: int
    """Bytes."""
    difference: float
    """Largest difference of a logit from torch's."""


class _Whole(nn.Module):
    """Bytes in, logits and probabilities out: what is exported."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(self.model.normalise(images))
        return logits, logits.sigmoid()


def export(predictor: Predictor, path: Path, format: str) -> Exported:
    """Write the model of a run, on the CPU and in float32.

    Args:
        predictor: The run's.
        path: The file; what is there is replaced, once the new one is good.
        format: Of FORMATS.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "onnx":
        _refuse_without_onnx()
    model = _for_export(predictor.model)
    facts = metadata(predictor, inside=format != "safetensors")
    write = {"onnx": _write_onnx, "pt2": _write_pt2, "safetensors": _write_safetensors}[format]
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with _quiet():
            run = write(model, temporary, facts)
            difference = _difference(model, run)
        size = temporary.stat().st_size
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error
    except PartlabelError:
        raise
    except Exception as error:  # exporters have their own for each operation they do not know
        brief = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        what = f"{model.info.backbone} cannot be exported as {format} ({brief})"
        raise UsageError(f"{what}; safetensors takes every model") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, size, difference)


def metadata(predictor: Predictor, *, inside: bool) -> dict[str, str]:
    """What a file says about itself: json texts by name.

    ``partlabel`` (format, versions, what the model is made of), ``class_ids``, ``class_names``,
    ``input``, ``outputs``, and ``thresholds``: a logit per class, null where the class is never
    predicted, or null altogether where the run has chosen none.

    Args:
        predictor: The run's.
        inside: Whether the normalisation is part of the model.
    """
    from partlabel import __version__

    info, classes = predictor.model.info, predictor.classes
    thresholds = predictor.thresholds()
    chosen = None
    if thresholds is not None:
        chosen = [v if np.isfinite(v) else None for v in thresholds.align(classes).tolist()]
    side = info.size
    facts: dict[str, Any] = {
        "partlabel": {
            "format": FORMAT_VERSION,
            "version": __version__,
            "torch": torch.__version__,
            "run": predictor.config.name,
            "step": predictor.step,
            "model": description(predictor.model) | {"auxiliary": False},
        },
        "class_ids": classes.ids,
        "class_names": classes.names,
        "input": {
            "name": "images",
            "type": "uint8, 0 to 255" if inside else "float32, normalised",
            "shape": ["batch", 3, side, side],
            "colours": "RGB",
            "resize": f"to {side} x {side} whatever the shape, bilinear with antialiasing",
            "normalisation": "(x / 255 - mean) / std, "
            + ("inside the model" if inside else "not inside"),
            "mean": info.mean,
            "std": info.std,
        },
        "outputs": ["logits", "probabilities"] if inside else ["logits"],
        "thresholds": chosen,
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}


def load_exported(path: str | Path) -> tuple[Classifier, ClassTable, dict[str, Any]]:
    """Load the model of a safetensors file that was exported here, its classes and metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            facts = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        about = facts["partlabel"]
        if about["format"] > FORMAT_VERSION:
            raise DataError(f"has format {about['format']}, newer than this partlabel", path=path)
        model = rebuild(about["model"])
        model.load_state_dict(tensors)
        classes = ClassTable(facts["class_ids"], facts["class_names"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        what = f"is not a model that partlabel exported ({type(error).__name__}: {error})"
        raise DataError(what, path=path) from error
    return model.eval(), classes, facts


def _for_export(model: Classifier) -> Classifier:
    """A plain copy on the CPU, without the auxiliary head."""
    copy = rebuild(description(model) | {"auxiliary": False})
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith("auxiliary.")}
    copy.load_state_dict(kept)
    return copy.eval()


def _write_safetensors(model: Classifier, path: Path, facts: dict[str, str]) -> Run:
    from safetensors.torch import save_file

    tensors = {key: value.clone().contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, path, metadata=facts)
    return _Whole(load_exported(path)[0])


def _write_pt2(model: Classifier, path: Path, facts: dict[str, str]) -> Run:
    program = torch.export.export(
        _Whole(model), (_images(model, 2),), dynamic_shapes={"images": {0: _any_number()}}
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    torch.export.save(program, path, extra_files=facts)
    loaded = torch.export.load(path)
    return loaded.module()


def _write_onnx(model: Classifier, path: Path, facts: dict[str, str]) -> Run:
    onnx, onnxruntime = import_module("onnx"), import_module("onnxruntime")
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    if size > _MOST_BYTES:
        what = f"the weights are {size / 1e9:.1f} GB and one onnx file holds 2 GB"
        raise UsageError(f"{what}; take pt2 or safetensors")
    program = torch.onnx.export(
        _Whole(model),
        (_images(model, 2),),
        dynamo=True,
        input_names=["images"],
        output_names=["logits", "probabilities"],
        dynamic_shapes={"images": {0: _any_number()}},
        verbose=False,
    )
    assert program is not None
    made = program.model_proto
    for node in made.graph.node:
        del node.metadata_props[:]  # names and paths of this machine
    onnx.helper.set_model_props(made, facts)
    made.producer_name = "partlabel"
    onnx.checker.check_model(made)
    onnx.save(made, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        found = session.run(["logits"], {"images": images.numpy()})
        return torch.from_numpy(np.asarray(found[0]))

    return run


def _any_number() -> Any:
    return torch.export.Dim("batch", min=1)


def _images(model: Classifier, count: int) -> Tensor:
    """Noise, the same every time."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, 3, model.info.size, model.info.size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@torch.inference_mode()
def _difference(model: Classifier, run: Callable[[Tensor], Any]) -> float:
    """Compare what was written with torch; refuse a file that is not the same."""
    largest = 0.0
    for count in _BATCHES:
        images = _images(model, count)
        wanted, found = model(model.normalise(images)), run(images)
        found = found[0] if isinstance(found, tuple) else found
        if found.shape != wanted.shape:
            shapes = f"{tuple(found.shape)}, not {tuple(wanted.shape)}"
            raise DataError(f"the exported model gives {shapes}; it was not kept")
        off = float((found - wanted).abs().max())
        if not off <= TOLERANCE:  # also where it is NaN
            what = f"the exported model's logits differ by {off:.2g} from torch's"
            raise DataError(f"{what}, more than {TOLERANCE:g}; it was not kept")
        largest = max(largest, off)
    return largest


def _refuse_without_onnx() -> None:
    lacking = [name for name in _NEEDED if find_spec(name) is None]
    if lacking:
        what = f"--format onnx needs {' and '.join(lacking)}"
        raise UsageError(f"{what}: pip install 'partlabel[export]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters say to developers away from users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
