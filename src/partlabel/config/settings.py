"""The settings of a run: one dataclass per section of the file, with defaults and what they mean.

A new setting is one line here, with a docstring below it. ``None`` is what a file leaves out.
Presets are other defaults.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from partlabel.config.kinds import ASIDE, called, matching, one_of, within

Count = Annotated[int, within(at_least=1)]
Amount = Annotated[float, within(above=0)]
Share = Annotated[float, within(at_least=0, at_most=1)]
Scalar = int | float | str | bool


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """[data]: which labels; relative paths are relative to the current folder."""

    train: Annotated[Path, called("the path of a label store")]
    """The label store to train on."""
    val: Path | None = None
    """The store to evaluate on; left out, it is the one to train on, if it has a split for that."""
    split: str | None = None
    """The split to train on; left out, ``train`` where the store has it, else all of it."""
    val_split: str | None = None
    """The split to evaluate on; left out, ``val`` or ``validation`` where the store has it."""

    @property
    def train_split(self) -> str | None:
        """The split to train on."""
        return self.split


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """[images]: where the pixels are and how they become tensors."""

    kind: Literal["folder", "tar", "parquet"] = "folder"
    root: Path | None = None
    """Folder, tar files or parquet files; left out, the folder that the store names."""
    val_root: Path | None = None
    """The same for the store to evaluate on; left out, ``root``."""
    size: Annotated[int, within(at_least=8)] = 224
    """Width and height in pixels; images are squashed, not cropped."""
    augment: Literal["none", "flip", "crop", "paper", "timm"] = "paper"
    """``paper`` is Cutout, then two operations of RandAugment."""
    flip: bool = False
    """Also mirror half of the images; the paper's code does not."""
    cutout: Share = 0.5
    """Side of the rectangle that ``paper`` cuts out, as a share of the image's; 0 cuts none."""
    device_resident: bool = False
    """Keep the decoded images on the device, and augment them there; for sets that fit."""
    cache: Annotated[Path | None, ASIDE] = None
    """Folder for the indices of tar and parquet files."""
    workers: Annotated[int | None, within(at_least=0), ASIDE] = None
    """Processes that read images, for each training process; left out, by the number of cores."""
    max_skipped: Annotated[Share, ASIDE] = 0.01
    """Share of images that may be unreadable before the run stops."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """[model]: a backbone of timm and a head."""

    backbone: str = "tresnet_m"
    """tresnet_m, tresnet_l, resnet50, resnet101, small, or any name that timm knows."""
    weights: Annotated[str, one_of("pretrained", "none", or_path="a path")] = "pretrained"
    """``pretrained`` fetches them; or a .safetensors or .pth file; ``none`` starts at random."""
    head: Literal["auto", "linear", "bottleneck"] = "auto"
    """``auto`` is a bottleneck for more than 5,000 classes."""
    bottleneck: Count = 512
    """Width of the bottleneck."""
    drop: Annotated[float, within(at_least=0, below=1)] = 0.0
    """Dropout before the head."""


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """[loss]: a loss by name, with its own settings (docs/losses.md)."""

    name: str = "selective"
    params: dict[str, Scalar] = field(default_factory=dict)
    """What ``build_loss`` takes; what follows from the data and the prior is filled in."""


@dataclass(frozen=True, kw_only=True)
class PriorSettings:
    """[prior]: how often each class occurs, for losses that want to know."""

    source: Annotated[
        str, one_of("estimate", "online", "none", or_path="the path of a csv file")
    ] = "estimate"
    """``estimate`` trains a first model that ignores unknown labels; ``online`` estimates along."""
    threshold: Share | None = None
    """Classes with a larger prior are ignored where unknown. One of this, quantile and top_n."""
    quantile: Share | None = None
    """The threshold as a quantile of all priors; 0.9 ignores the most frequent tenth."""
    top_n: Annotated[int, within(at_least=0)] | None = None
    """The threshold below the priors of that many classes."""
    use: Literal["mean", "em", "calibrated"] = "mean"
    """The mean prediction; the same corrected for the share of positives in training; or calibrated
    by annotations that the first model is not shown, which goes for any kind of annotation."""
    images: Count | None = None
    """Estimate on a sample of this many images; left out, on all."""
    sample: Count | None = None
    """Train the first model on a sample of this many images; left out, on all."""
    stage1: dict[str, Any] = field(default_factory=dict)
    """What the first model does otherwise: [prior.stage1.train] epochs = 2, for one."""


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """[optim]: the optimiser, its schedule, and the moving average of the weights."""

    name: Literal["adamw", "adam"] = "adamw"
    """``adam`` has its weight decay in the gradient, as the paper's code."""
    lr: Amount = 2e-4
    """The largest learning rate."""
    weight_decay: Annotated[float, within(at_least=0)] = 1e-4
    """For matrices and kernels; vectors and biases have none."""
    schedule: Literal["one_cycle", "cosine", "constant"] = "one_cycle"
    warmup: Share = 0.2
    """Share of the steps in which the learning rate rises."""
    cycle_momentum: bool = True
    """Let one_cycle also move Adam's first beta, 0.95 to 0.85 and back, as torch does."""
    clip_grad: Amount | None = None
    """Largest norm of the gradient."""
    head_lr_factor: Amount = 1.0
    """The head's learning rate, in units of the backbone's."""
    ema_decay: Annotated[float, within(at_least=0, below=1)] = 0.9997
    """Of the moving average; 0 is none."""
    ema_warmup: bool = True
    """Let the average forget faster in the first steps: min(decay, (1 + t) / (10 + t))."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """[train]: how long, how, on what."""

    preset: Annotated[Literal["paper", "reference"] | None, ASIDE] = None
    """Other defaults: as in the paper's text, or in its code. What the file says wins."""
    batch_size: Count = 64
    """Images per step, over all processes."""
    epochs: Count = 30
    seed: Annotated[int, within(at_least=0)] = 0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """``auto`` is bf16 on a GPU that has it, else fp32; the loss is always computed in fp32."""
    accumulate: Count = 1
    """Pieces in which a batch goes through the model, where memory is short."""
    channels_last: bool = True
    compile: bool = False
    capture: Annotated[bool, ASIDE] = False
    """Replay the model's passes as CUDA graphs of our own, compiled or not; for small models on one
    GPU, where launching kernels takes longer than the kernels."""
    sync_bn: bool = False
    """Batch statistics over all processes; needs CUDA."""
    hold_out: bool = False
    """Train without some annotations, at most a tenth, so that the model can be calibrated by them.
    First stages whose posteriors are wanted have it by themselves."""
    early_stop: Count | None = None
    """Stop after this many epochs without a better result."""
    deterministic: bool = False
    device: Annotated[
        str, matching(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, cuda, cuda:N or mps"), ASIDE
    ] = "auto"
    checkpoint_minutes: Annotated[Amount, ASIDE] = 10.0
    """Time between checkpoints; there is one after each epoch too."""
    checkpoint_steps: Annotated[Count | None, ASIDE] = None
    """Steps between checkpoints, besides."""
    keep: Annotated[Count, ASIDE] = 2
    """Checkpoints to keep."""
    log_steps: Annotated[Count, ASIDE] = 50
    """Steps between lines in metrics.jsonl."""
    tensorboard: Annotated[bool, ASIDE] = False


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """[eval]: what is measured on the way."""

    every: Count = 1
    """Epochs from one evaluation to the next."""
    ties: Literal["grouped", "reference"] = "grouped"
    """Equal scores as one step, or as in the paper's code."""
    policy: Literal["drop", "zero"] = "drop"
    """Classes without a positive: left out, or 0."""
    ema_only: bool = False
    """Evaluate the average alone, not also the weights themselves."""
    batch_size: Annotated[Count | None, ASIDE] = None
    """Images per step, over all processes; left out, that of [train]."""
    classes: Annotated[tuple[str, ...], ASIDE] = ()
    """Classes whose AP is shown, by id or name."""
    bootstrap: Annotated[int, within(at_least=0), ASIDE] = 0
    """Samples for confidence intervals of the last evaluation."""


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"optim": {"name": "adamw", "lr": 2e-4, "weight_decay": 3e-4}},
    "reference": {
        "optim": {
            "name": "adam",
            "lr": 2e-4,
            "weight_decay": 1e-4,
            "cycle_momentum": True,
            "ema_warmup": False,
        },
        "loss": {"params": {"reduction": "sum"}},
    },
}
"""Defaults in place of those in settings.py; ``reference`` also has top-K over the batch."""


def with_preset(values: dict[str, Any]) -> dict[str, Any]:
    """Put the defaults of a preset under what a file says."""
    train, loss = values.get("train", {}), values.get("loss", {})
    preset = train.get("preset") if isinstance(train, dict) else None
    if not isinstance(preset, str) or preset not in PRESETS:
        return values  # none, or one that the check refuses
    base = deepcopy(PRESETS[preset])
    selective = isinstance(loss, dict) and loss.get("name", "selective") == "selective"
    if preset == "reference" and selective:
        base["loss"]["params"]["scope"] = "batch"
    return _over(base, values)


def _over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(base[key], top[key])
        for key in base.keys() & top.keys()
        if isinstance(base[key], dict) and isinstance(top[key], dict)
    }
    return {**base, **top, **both}
