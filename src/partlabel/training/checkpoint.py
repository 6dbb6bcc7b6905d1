"""Checkpoints: a folder for each, written in one step, without a pickle in it.

``checkpoints/step-00000120/`` holds ``state.json`` (format, step, what the model is, and everything
that is not a tensor), ``classes.csv``, and the tensors as safetensors: ``model``, ``average``,
``optimiser``, ``loss``. A crash or a full disk leaves the checkpoints that were there.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partlabel.errors import ClassMismatchError, StoreError
from partlabel.folder import new_folder
from partlabel.tables import ClassTable

FORMAT = 1
_NAME = re.compile(r"step-(\d+)")


@dataclass
class Checkpoint:
    """What a checkpoint holds."""

    step: int
    classes: ClassTable
    description: dict[str, Any]
    """Of the model: backbone, head, input; what must agree to load it."""
    tensors: dict[str, dict[str, Tensor]]
    """By part: model, average, optimiser, loss."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The rest, as json."""
    path: Path | None = None


def save(
    folder: Path, checkpoint: Checkpoint, *, keep: int = 2, protect: int | None = None
) -> Path:
    """Write a checkpoint into ``folder``, and then remove all but the newest few.

    The one of step ``protect`` stays too.
    """
    from safetensors.torch import save_file

    path = at_step(folder, checkpoint.step)
    state = {
        "format": FORMAT,
        "step": checkpoint.step,
        "classes": len(checkpoint.classes),
        "model": checkpoint.description,
        "parts": {part: len(tensors) for part, tensors in checkpoint.tensors.items()},
        "facts": checkpoint.facts,
    }
    if path.exists():  # of a run that came as far as this before and was resumed from an older one
        shutil.rmtree(path)
    try:
        with new_folder(path, overwrite=False) as temporary:
            for part, tensors in checkpoint.tensors.items():
                whole = {
                    name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
                }
                try:
                    save_file(_unshared(whole), temporary / f"{part}.safetensors")
                except Exception as error:  # safetensors has its own exception for a full disk
                    if "Io" in str(error) or "No space" in str(error):
                        raise OSError(28, "No space left on device") from error
                    raise
            checkpoint.classes.write(temporary / "classes.csv")
            (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    except StoreError as error:
        before = [old.name for old in all_of(folder) if _step_of(old) < checkpoint.step]
        kept = f"the last good one is {before[-1]}" if before else "there is none yet"
        raise StoreError(
            f"{path}: cannot write the checkpoint ({_reason(error)}); {kept}; "
            "make room and run the same command again"
        ) from error
    # Newer ones are damaged: this run went on from before them.
    there = [old for old in all_of(folder) if _step_of(old) != protect]
    older = [old for old in there if _step_of(old) <= checkpoint.step]
    for old in [*older[:-keep], *(old for old in there if _step_of(old) > checkpoint.step)]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def load(path: Path, *, parts: Collection[str] | None = None) -> Checkpoint:
    """Read a checkpoint, or some parts of it; refuses one that is damaged or of a newer format."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["format"] > FORMAT:
            raise StoreError(
                f"{path}: format {state['format']} is newer than this partlabel ({FORMAT}); "
                "upgrade it"
            )
        tensors = {}
        for part, count in state["parts"].items():
            if parts is not None and part not in parts:
                continue
            tensors[part] = load_file(path / f"{part}.safetensors")
            if len(tensors[part]) != count:
                raise ValueError(f"{part} has {len(tensors[part])} tensors, not {count}")
        classes = ClassTable.read(path / "classes.csv")
        if len(classes) != state["classes"]:
            raise ValueError(f"classes.csv has {len(classes)} classes, not {state['classes']}")
        return Checkpoint(
            state["step"], classes, state["model"], tensors, state["facts"], path=path
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StoreError(f"{path}: damaged checkpoint ({error}); remove it") from error


def all_of(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of)


def at_step(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return folder / f"step-{step:08d}"


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, if there is any."""
    found = all_of(folder)
    return found[-1] if found else None


def refuse_other(checkpoint: Checkpoint, classes: ClassTable, description: dict[str, Any]) -> None:
    """Refuse a checkpoint that was made for other classes or another model."""
    place = f"{checkpoint.path}: " if checkpoint.path else ""
    if checkpoint.classes.ids != classes.ids:
        try:
            classes.positions_in(checkpoint.classes)
        except ClassMismatchError as error:
            raise ClassMismatchError(f"{place}made for other classes: {error}") from error
        raise ClassMismatchError(f"{place}made for the same classes in another order")
    for key, value in json.loads(json.dumps(description)).items():
        there = checkpoint.description.get(key)
        if there != value:
            raise StoreError(
                f"{place}made for another model: {key} is {there!r} there and {value!r} here"
            )


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser by number of the parameter."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for name, value in entries.items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Go on from what :func:`optimiser_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for place, entries in state.items():
        like = parameters[place]
        for name, value in entries.items():
            if value.shape == like.shape:  # in its layout, which a fused step on a GPU asks for
                entries[name] = torch.empty_like(like).copy_(value)
    now = optimiser.state_dict()
    optimiser.load_state_dict({"state": state, "param_groups": now["param_groups"]})


def module_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of a module as tensors on the CPU and json; extra state may hold both."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for key, value in module.state_dict().items():
        if isinstance(value, Tensor):
            tensors[key] = value.cpu()
        else:
            facts[key] = {k: v for k, v in value.items() if not isinstance(v, Tensor)}
            tensors |= {f"{key}/{k}": v.cpu() for k, v in value.items() if isinstance(v, Tensor)}
    return tensors, facts


def load_module(module: nn.Module, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Go on from what :func:`module_tensors` gave."""
    state: dict[str, Any] = {key: dict(value) for key, value in facts.items()}
    for key, value in tensors.items():
        place, _, name = key.partition("/")
        if name:
            state[place][name] = value
        else:
            state[key] = value
    module.load_state_dict(state)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that share memory, which safetensors refuses."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        if tensor.numel() and memory in seen:
            tensors[name] = tensor.clone()
        seen.add(memory)
    return tensors


def _step_of(path: Path) -> int:
    return int(path.name[5:])


def _reason(error: StoreError) -> str:
    return "no space left on the disk" if "no space left" in str(error) else str(error)
