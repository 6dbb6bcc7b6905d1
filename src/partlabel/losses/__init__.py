"""Losses for labels of which most are unknown: a small module per family, a table of them all."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

from partlabel.losses.assume_negative import Focal, LabelSmoothing, WeakAssumeNegative
from partlabel.losses.asymmetric import Asymmetric, PartialAsymmetric
from partlabel.losses.auto import Auto
from partlabel.losses.base import PartialLoss
from partlabel.losses.ce import CrossEntropy, SmoothedCrossEntropy, WeightedCrossEntropy
from partlabel.losses.entropy_max import EntropyMax
from partlabel.losses.expected_positive import ExpectedPositive, Role
from partlabel.losses.hill import Hill, SelfPacedCorrection
from partlabel.losses.large_loss import LargeLoss
from partlabel.losses.pseudo_label import PseudoLabel
from partlabel.losses.selective import Selective
from partlabel.losses.two_way import TwoWay

__all__ = [
    "LOSSES",
    "Asymmetric",
    "Auto",
    "CrossEntropy",
    "EntropyMax",
    "ExpectedPositive",
    "Focal",
    "Hill",
    "LabelSmoothing",
    "LargeLoss",
    "PartialAsymmetric",
    "PartialLoss",
    "PseudoLabel",
    "Role",
    "Selective",
    "SelfPacedCorrection",
    "SmoothedCrossEntropy",
    "TwoWay",
    "WeakAssumeNegative",
    "WeightedCrossEntropy",
    "build_loss",
    "settings_of",
    "takes_posterior",
]

LOSSES: dict[str, type[PartialLoss]] = {
    "ce": CrossEntropy,
    "weighted_ce": WeightedCrossEntropy,
    "smoothed_ce": SmoothedCrossEntropy,
    "asymmetric": Asymmetric,
    "partial_asymmetric": PartialAsymmetric,
    "selective": Selective,
    "focal": Focal,
    "hill": Hill,
    "splc": SelfPacedCorrection,
    "large_loss": LargeLoss,
    "entropy_max": EntropyMax,
    "role": Role,
    "wan": WeakAssumeNegative,
    "label_smoothing": LabelSmoothing,
    "expected_positive": ExpectedPositive,
    "two_way": TwoWay,
    "pseudo_label": PseudoLabel,
    "auto": Auto,
}


def build_loss(name: str, **params: Any) -> PartialLoss:
    """Make a loss by name; its constructor's keywords are its settings.

    Example:
        >>> build_loss("partial_asymmetric", gamma_unknown=4).gamma_unknown
        4.0
        >>> build_loss("asymetric")
        Traceback (most recent call last):
            ...
        ValueError: loss 'asymetric' does not exist; did you mean 'asymmetric'?
    """
    if name not in LOSSES:
        close = get_close_matches(str(name), LOSSES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(LOSSES)}"
        raise ValueError(f"loss {name!r} does not exist; {hint}")
    settings = settings_of(name)
    for key in params:
        if key not in settings:
            raise ValueError(f"loss {name!r} has no setting {key!r}; it has {', '.join(settings)}")
    missing = [k for k, p in settings.items() if p.default is p.empty and k not in params]
    if missing:
        raise ValueError(f"loss {name!r} needs {', '.join(missing)}")
    return LOSSES[name](**params)


def takes_posterior(name: str) -> bool:
    """Whether a loss wants to know how probably each unknown label is present."""
    return name in LOSSES and "posterior" in inspect.signature(LOSSES[name].forward).parameters


def settings_of(name: str) -> dict[str, inspect.Parameter]:
    """The keywords of a loss's constructor, those of its base classes included."""
    settings: dict[str, inspect.Parameter] = {}
    for kind in LOSSES[name].__mro__:
        if "__init__" in vars(kind):
            found = inspect.signature(vars(kind)["__init__"]).parameters.values()
            for parameter in found:
                if parameter.kind is parameter.KEYWORD_ONLY:
                    settings.setdefault(parameter.name, parameter)
        if kind is PartialLoss:
            break
    if name == "asymmetric":
        settings.pop("gamma_unknown", None)  # there it is gamma_neg
    return settings
