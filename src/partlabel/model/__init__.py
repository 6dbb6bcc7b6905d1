"""The classifier: a timm backbone, pooled features, a head with one logit per class.

A model is made on the CPU from its settings and a seed alone: the same numbers whatever was drawn
before, on every machine, with or without an auxiliary head, and no other random draw is changed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor, nn

from partlabel.draw import seed_key
from partlabel.errors import UsageError, suggest
from partlabel.model import small
from partlabel.model.weights import fill_backbone, hub_weights, read_weights
from partlabel.vision import load

Head = Literal["auto", "linear", "bottleneck"]
Colour = tuple[float, float, float]

_MANY_CLASSES = 5000
_HEAD_STD = 0.01


@dataclass(frozen=True)
class Preset:
    """A backbone by its short name."""

    backbone: str
    """The name in timm, with the tag of the weights."""
    mean: Colour = (0.0, 0.0, 0.0)
    """Of the channels, where black is 0 and white is 1."""
    std: Colour = (1.0, 1.0, 1.0)


_IMAGENET: dict[str, Colour] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

PRESETS = {
    "tresnet_m": Preset("tresnet_m.miil_in21k"),
    # V2: the published Open Images checkpoint is one, and of V1 there are no ImageNet-21k weights.
    "tresnet_l": Preset("tresnet_v2_l.miil_in21k"),
    # torchvision's first weights, which is what papers of the time mean by ImageNet ResNet.
    "resnet50": Preset("resnet50.tv_in1k", **_IMAGENET),
    "resnet101": Preset("resnet101.tv_in1k", **_IMAGENET),
    # Ours, for small pictures on a CPU.
    "small": Preset("partlabel_small", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
}


@dataclass(frozen=True)
class ModelInfo:
    """What a model is made of."""

    backbone: str
    """The name in timm, with the tag of the weights."""
    classes: int
    head: Literal["linear", "bottleneck"]
    bottleneck: int
    auxiliary: bool
    size: int
    """Of the images, in pixels."""
    mean: Colour
    std: Colour


class Classifier(nn.Module):
    """Images to logits.

    Args:
        backbone: Gives pooled features (B, F).
        width: F.
        info: What to make of it.
        drop: Share of the features dropped before the head in training.
        seed: Of the heads.
    """

    auxiliary: nn.Linear | None
    """A second head, which learns from the features and does not teach them."""
    mean: Tensor
    std: Tensor
    _shift: Tensor
    _scale: Tensor

    def __init__(
        self, backbone: nn.Module, width: int, info: ModelInfo, *, drop: float, seed: int
    ) -> None:
        super().__init__()
        self.info, self.width = info, width
        self.backbone = backbone
        self.dropout = nn.Dropout(drop)
        self.head: nn.Module = nn.Linear(width, info.classes)
        if info.head == "bottleneck":
            narrow = nn.Linear(width, info.bottleneck)
            self.head = nn.Sequential(narrow, nn.Linear(info.bottleneck, info.classes))
        self.auxiliary = nn.Linear(width, info.classes) if info.auxiliary else None
        _draw_weights(self.head, seed, "head")
        _draw_weights(self.auxiliary, seed, "auxiliary head")
        for name, values in (("mean", info.mean), ("std", info.std)):
            self.register_buffer(name, _channels(values), persistent=False)
        # The same for pixels of 0-255: one rounding less, and a division by a tensor is the same
        # on every device, where CUDA takes one by a number for a product with its inverse.
        self.register_buffer("_shift", _channels([255 * v for v in info.mean]), persistent=False)
        self.register_buffer("_scale", _channels([255 * v for v in info.std]), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Bring uint8 images (B, 3, H, W) to the float32 that the backbone was trained with."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            got = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be uint8 (B, 3, H, W), got {got}")
        return (images - self._shift).div_(self._scale)

    def forward_features(self, images: Tensor) -> Tensor:
        """Pooled features (B, F) of normalised images."""
        if not images.is_floating_point():
            raise ValueError(f"images must be float, got {images.dtype}; see normalise")
        features: Tensor = self.backbone(images)
        return features

    @overload
    def forward(self, images: Tensor, *, both: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, *, both: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, images: Tensor, *, both: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, C) of normalised images.

        Args:
            images: Float (B, 3, H, W), from `normalise`.
            both: Give the logits of the auxiliary head too. An argument and not only the method
                `both`, as DistributedDataParallel sees nothing but calls of the model itself.
        """
        if both and self.auxiliary is None:
            raise ValueError("the model has no auxiliary head; build it with auxiliary=True")
        features = self.forward_features(images)
        logits: Tensor = self.head(self.dropout(features))
        if both and self.auxiliary is not None:
            return logits, self.auxiliary(features.detach())
        return logits

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the head and of the auxiliary head, whose gradient stops at the features."""
        return self.forward(images, both=True)


def build_model(  # noqa: PLR0913 - as many settings as a model has
    backbone: str,
    num_classes: int,
    *,
    weights: str | Path | None = "pretrained",
    head: Head = "auto",
    bottleneck: int = 512,
    auxiliary: bool = False,
    drop: float = 0.0,
    seed: int = 0,
    image_size: int = 224,
) -> Classifier:
    """Make a classifier.

    Args:
        backbone: A name of `PRESETS`, or any of timm, with or without a tag.
        num_classes: How many logits.
        weights: Of the backbone: "pretrained" (timm's, from the cache or the hub), a file, or
            None or "none" for random ones.
        head: "linear", "bottleneck" (two linear layers with nothing between, which for many
            classes saves most of the parameters), or "auto": a bottleneck above 5,000 classes.
        bottleneck: Its width.
        auxiliary: Add a second linear head on detached features.
        drop: Share of the features dropped before the head in training.
        seed: Of all that is random here.
        image_size: Side in pixels; transformers are made for one size.
    """
    _check_numbers(num_classes=num_classes, bottleneck=bottleneck, image_size=image_size)
    if head not in get_args(Head):
        raise ValueError(f"head must be one of {', '.join(get_args(Head))}, got {head!r}")
    if not 0 <= drop < 1:
        raise ValueError(f"drop must be at least 0 and below 1, got {drop!r}")
    preset, cfg = _find_backbone(backbone)
    if head == "auto":
        head = "bottleneck" if num_classes > _MANY_CLASSES else "linear"
    info = ModelInfo(
        preset.backbone,
        num_classes,
        head,
        bottleneck,
        auxiliary,
        image_size,
        preset.mean,
        preset.std,
    )
    if weights is None or weights == "none":
        return _assemble(info, drop, seed)
    # Read before the model is made, so that a wrong file is known at once.
    path = hub_weights(cfg) if weights == "pretrained" else Path(weights)
    tensors = read_weights(path)
    model = _assemble(info, drop, seed)
    fill_backbone(model.backbone, tensors, path)
    return model


def trained_size(backbone: str) -> int:
    """The side in pixels of the images that a backbone's weights were trained with; else 0."""
    return int((_find_backbone(backbone)[1].get("input_size") or (0,))[-1])


def synchronise_batch_norm(model: Classifier) -> Classifier:
    """Let batch normalisation see the images of all processes, on CUDA.

    By timm's converter: that of torch loses the activation that timm's layers carry with them.
    """
    model.backbone = load("timm.layers").convert_sync_batchnorm(model.backbone)
    return model


def description(model: Classifier) -> dict[str, Any]:
    """What a model is made of, for a checkpoint; equal after a way through JSON."""
    info = asdict(model.info)
    return info | {"mean": list(model.info.mean), "std": list(model.info.std)}


def rebuild(what: dict[str, Any]) -> Classifier:
    """A model as described in a checkpoint, without its weights."""
    return build_model(
        what["backbone"],
        what["classes"],
        weights=None,
        head=what["head"],
        bottleneck=what["bottleneck"],
        auxiliary=what["auxiliary"],
        image_size=what["size"],
    )


def _find_backbone(name: str) -> tuple[Preset, dict[str, Any]]:
    """The full name and normalisation of a backbone, and what timm knows about its weights."""
    timm = load("timm")
    small.register()
    preset = PRESETS.get(name) or next((p for p in PRESETS.values() if p.backbone == name), None)
    full = preset.backbone if preset else name
    architecture, dot, tag = full.partition(".")
    known = timm.list_models()
    if architecture not in known:
        hint = suggest(architecture, [*PRESETS, *known])
        raise UsageError(f"[model] backbone: timm has no {name!r}; {hint}")
    weighted = timm.list_models(f"{architecture}.*", pretrained=True)
    tags = [each.partition(".")[2] for each in weighted]
    if dot and tag not in tags:
        hint = suggest(tag, tags)
        raise UsageError(f"[model] backbone: timm's {architecture} has no {tag!r}; {hint}")
    about = timm.get_pretrained_cfg(full)
    cfg = (
        about.to_dict() if about else {"architecture": full, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    )
    full = f"{architecture}.{cfg['tag']}" if cfg.get("tag") else architecture
    return preset or Preset(full, tuple(cfg["mean"]), tuple(cfg["std"])), cfg


def _assemble(info: ModelInfo, drop: float, seed: int) -> Classifier:
    timm = load("timm")
    about = timm.get_pretrained_cfg(info.backbone)
    size = {"img_size": info.size} if about and about.fixed_input_size else {}
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that seeds the GPUs as well, which nothing here puts back.
        torch.default_generator.manual_seed(int(seed_key(seed, "backbone")))
        try:
            backbone = timm.create_model(info.backbone, num_classes=0, **size)
            with torch.no_grad():
                features = backbone.eval()(torch.zeros(1, 3, info.size, info.size))
        except Exception as error:  # each architecture has its own for a size it cannot take
            what = f"{info.backbone} cannot be made for images of {info.size} pixels ({error})"
            raise UsageError(f"[model] backbone: {what}") from error
        if not isinstance(features, Tensor) or features.ndim != 2 or not features.shape[1]:
            what = f"{info.backbone} does not give one vector of features per image"
            raise UsageError(f"[model] backbone: {what}; choose another")
        # timm states a width too, but of some architectures not that of what comes out.
        return Classifier(backbone.train(), features.shape[1], info, drop=drop, seed=seed)


def _draw_weights(head: nn.Module | None, seed: int, purpose: str) -> None:
    generator = torch.Generator().manual_seed(int(seed_key(seed, purpose)))
    layers = head.modules() if head else ()
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=_HEAD_STD, generator=generator)
            nn.init.zeros_(layer.bias)


def _channels(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1)


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
