"""Weights of a backbone, from a file or the hub, checked tensor by tensor.

Nothing in a file is executed: ``.safetensors`` holds tensors only, and pickles are opened by
torch's unpickler for weights. What was downloaded once is taken from the cache, and the hub is not
asked again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partlabel.errors import UsageError
from partlabel.files import existing_file
from partlabel.vision import load

Tensors = dict[str, Tensor]

_PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")

# Where training scripts keep the weights in what they save; averaged ones first: they are better.
_NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and of torch.compile
_OURS = "backbone."  # of a whole partlabel model

_INSTEAD = (
    'give a local file with --weights FILE or [model] weights = "FILE", '
    'or start from random weights with weights = "none"'
)


def read_weights(path: str | Path) -> Tensors:
    """Read the tensors of a ``.safetensors`` file or of a pickle that holds nothing but data.

    Takes the weights out of what training scripts wrap around them, and out of a whole partlabel
    model its backbone.
    """
    path = Path(path).expanduser()
    if path.suffix != ".safetensors" and path.suffix not in _PICKLES:
        kinds = ", ".join((".safetensors", *_PICKLES))
        raise UsageError(f'weights = "{path}": must be "pretrained", "none" or a file ({kinds})')
    found = _read_file(existing_file(path))
    for _ in _NESTED:  # one within the other; a loop without end could be told to hang
        inner = [key for key in _NESTED if isinstance(found.get(key), Mapping)]
        found = found[inner[0]] if inner else found
    tensors = {_bare(str(key)): each for key, each in found.items() if isinstance(each, Tensor)}
    if not tensors:
        keys = ", ".join(map(str, list(found)[:8])) or "nothing"
        raise UsageError(f"{path}: has no tensors, but {keys}; {_INSTEAD}")
    ours = [key for key in tensors if key.startswith(_OURS)]
    return {key.removeprefix(_OURS): tensors[key] for key in ours} or tensors


def hub_weights(cfg: Mapping[str, Any]) -> Path:
    """The file with timm's weights for a backbone, fetched if it is not in the cache.

    Args:
        cfg: The backbone's ``pretrained_cfg``.
    """
    repo, _, revision = (cfg.get("hf_hub_id") or "").partition("@")
    if not repo:
        return _from_url(cfg)
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    one = cfg.get("hf_hub_filename")
    names = (one,) if one else _HUB_FILES
    for name in names:
        cached = hub.try_to_load_from_cache(repo, name, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    reason: Exception | None = None
    for name in names:
        try:
            # The download alone would try an absent network for half a minute; this does not.
            hub.get_hf_file_metadata(hub.hf_hub_url(repo, name, revision=revision or None))
            return Path(hub.hf_hub_download(repo, name, revision=revision or None))
        except Exception as error:  # each version and transport has its own
            reason = error
            absent = isinstance(error, EntryNotFoundError)
            if not absent or isinstance(error, LocalEntryNotFoundError):
                break
    raise _unreachable(repo, reason) from reason


def fill_backbone(backbone: nn.Module, tensors: Tensors, source: str | Path) -> None:
    """Put tensors into a timm backbone that was made without a classifier.

    They are taken as they are, or through timm's own converters of that architecture, whichever
    fits. The classifier among them is left out; any other difference is refused.

    Args:
        backbone: From ``timm.create_model(name, num_classes=0)``.
        tensors: From `read_weights`.
        source: Where they are from, for the error.
    """
    best = _Fit.of(backbone, tensors)
    for layout in _layouts(backbone, tensors) if best.faults else ():
        best = min(best, _Fit.of(backbone, layout), key=lambda fit: fit.faults)
    if best.faults:
        name = _cfg(backbone)["architecture"]
        raise UsageError(f"{source}: these are not weights of {name}: {best}; {_INSTEAD}")
    backbone.load_state_dict(best.tensors, strict=False)  # what may lack is known: see _Fit


@dataclass(frozen=True)
class _Fit:
    """What a backbone takes from some tensors, and where they differ."""

    tensors: Tensors
    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]

    @classmethod
    def of(cls, backbone: nn.Module, tensors: Tensors) -> _Fit:
        wanted = backbone.state_dict()
        shared = {key: value for key, value in tensors.items() if key in wanted}
        heads = _classifiers(backbone)
        return cls(
            shared,
            [key for key in wanted if key not in tensors and not _optional(key)],
            [k for k in tensors if not (k in wanted or _optional(k) or k.startswith(heads))],
            [
                f"{key} {tuple(value.shape)}, not {tuple(wanted[key].shape)}"
                for key, value in shared.items()
                if value.shape != wanted[key].shape
            ],
        )

    @property
    def faults(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.reshaped)

    def __str__(self) -> str:
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "of another shape": self.reshaped,
        }
        return ", ".join(f"{len(v):,} {k} ({v[0]})" for k, v in kinds.items() if v)


def _cfg(backbone: nn.Module) -> Mapping[str, Any]:
    cfg: Any = backbone.pretrained_cfg
    return dict(cfg)


def _optional(key: str) -> bool:
    """A counter that only some kinds of batch normalisation keep (MIIL's do not)."""
    return key.endswith("num_batches_tracked")


def _classifiers(backbone: nn.Module) -> tuple[str, ...]:
    """How the keys of a classifier begin: all of ``head.`` for ``head.fc``, as heads vary."""
    names = _cfg(backbone).get("classifier") or ()
    names = (names,) if isinstance(names, str) else names
    return tuple(f"{name.split('.')[0]}." for name in names)


def _layouts(backbone: nn.Module, tensors: Tensors) -> Iterator[Tensors]:
    """The tensors as each converter gives them that timm has beside the architecture."""
    entry = load("timm").models.model_entrypoint(_cfg(backbone)["architecture"])
    for name, convert in vars(sys.modules[entry.__module__]).items():
        if "_filter_" in name and callable(convert):
            converted = _converted(convert, tensors, backbone)
            if converted is not None:
                yield converted


def _converted(
    convert: Callable[..., Any], tensors: Tensors, backbone: nn.Module
) -> Tensors | None:
    for arguments in ((backbone,), ()):
        try:
            return dict(convert(dict(tensors), *arguments))
        except Exception:  # it stumbles over weights it was not made for, each in its own way
            continue
    return None


def _bare(key: str) -> str:
    for wrapper in _WRAPPERS:
        key = key.removeprefix(wrapper)
    return key


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # timm and MIIL save their command line beside the weights; a Namespace is only data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch alone has five kinds for a damaged file
        if foreign := _foreign(path):
            what = f"would execute code when opened ({', '.join(foreign)})"
            fix = "save its tensors alone, as .safetensors, where you trust it"
            raise UsageError(f"{path}: {what}; {fix}") from error
        what = f"is not a file of weights that can be read ({_brief(error)})"
        raise UsageError(f"{path}: {what}; {_INSTEAD}") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: holds one {type(found).__name__}, not named tensors; {_INSTEAD}")
    return found


def _foreign(path: Path) -> list[str]:
    """The names in a pickle that are not data."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a pickle, or one of before 2020
        return []
    return [name for name in names if name != "argparse.Namespace"]


def _from_url(cfg: Mapping[str, Any]) -> Path:
    """For the few backbones that are not on the hub."""
    url = cfg.get("url")
    if not url:
        raise UsageError(f"timm has no weights for {cfg.get('architecture')}; {_INSTEAD}")
    path = Path(str(torch.hub.get_dir()), "checkpoints", url.rsplit("/", 1)[-1])
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), progress=False)
        except OSError as error:
            raise _unreachable(url, error) from error
    return path


def _unreachable(place: str, reason: Exception | None) -> UsageError:
    return UsageError(f"{place}: the weights cannot be fetched ({_brief(reason)}); {_INSTEAD}")


def _brief(error: Exception | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
