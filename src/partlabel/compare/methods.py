"""Methods by name: the loss that each trains with, and what it keeps of the file's settings."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]

SAME_SETTINGS = ("partial_asymmetric", "selective")
"""Losses whose settings mean the same: one file's go for both."""

_FIRST_STAGE = ("source", "stage1", "sample")
"""What of [prior] says how the first stage is trained."""


@dataclass(frozen=True)
class BuiltIn:
    """A method that needs no definition."""

    title: str
    loss: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the loss over those that are kept; None leaves one to its default."""
    prior: str = "none"
    """What [prior] source becomes; ``estimate`` leaves a file's path as it is."""


_SELECTIVE: dict[str, Any] = {"prior_mode": None}

METHODS: dict[str, BuiltIn] = {
    "ignore": BuiltIn("Ignore (CE)", "ce", {"unknown": "ignore"}),
    "negative": BuiltIn("Negative (CE)", "ce", {"unknown": "negative"}),
    "weighted_ce": BuiltIn("Weighted CE, unknown ignored", "weighted_ce"),
    "smoothed_ce": BuiltIn("Smoothed CE", "smoothed_ce"),
    "asl": BuiltIn("ASL, unknown as negative", "asymmetric", {"unknown": "negative"}),
    "pasl_negative": BuiltIn("P-ASL, unknown as negative", "partial_asymmetric"),
    "likelihood": BuiltIn("Selective by likelihood", "selective", _SELECTIVE),
    "prior": BuiltIn("Selective by prior", "selective", {**_SELECTIVE, "top_k": 0}, "estimate"),
    "csl": BuiltIn("CSL (likelihood and prior)", "selective", _SELECTIVE, "estimate"),
    "csl_soft": BuiltIn("CSL, soft prior", "selective", {"prior_mode": "soft"}, "estimate"),
    "auto": BuiltIn("Auto", "auto", prior="estimate"),
    "csl_online": BuiltIn("CSL, prior online", "selective", _SELECTIVE, "online"),
    "hill": BuiltIn("Hill", "hill"),
    "splc": BuiltIn("SPLC", "splc"),
    "large_loss": BuiltIn("Large loss rejected", "large_loss"),
    "entropy_max": BuiltIn("Entropy maximised", "entropy_max"),
    "role": BuiltIn("ROLE", "role"),
    "wan": BuiltIn("Weak assume-negative", "wan"),
    "label_smoothing": BuiltIn("Assume-negative, smoothed", "label_smoothing"),
    "expected_positive": BuiltIn("Expected positives", "expected_positive"),
    "two_way": BuiltIn("Two-way", "two_way"),
    "pseudo_label": BuiltIn("Pseudo labels", "pseudo_label"),
    "focal": BuiltIn("Focal, unknown as negative", "focal"),
}


def with_method(values: Values, method: BuiltIn) -> Values:
    """The settings of a run file with the loss and the prior of a method.

    Example:
        >>> file = {"loss": {"params": {"top_k": 9, "gamma_neg": 3, "reduction": "sum"}}}
        >>> with_method(file, METHODS["prior"])["loss"]["params"]
        {'top_k': 0, 'gamma_neg': 3, 'reduction': 'sum'}
        >>> with_method(file, METHODS["ignore"])["loss"]["params"]
        {'reduction': 'sum', 'unknown': 'ignore'}
    """
    from partlabel.losses import takes_posterior

    made = _with_loss(values, method.loss)
    params = {**made["loss"]["params"], **method.params}
    made["loss"]["params"] = {key: value for key, value in params.items() if value is not None}
    prior = made.get("prior", {})
    if not isinstance(prior, dict):
        return made  # which the check refuses
    source = prior.get("source", "estimate")
    if takes_posterior(method.loss):
        source = "estimate"  # it takes no file: a prior alone is not what it needs
    elif method.prior != "estimate" or source in ("none", "online"):
        source = method.prior
    made["prior"] = {**prior, "source": source}
    return made


def with_sections(values: Values, sections: Values) -> Values:
    """The settings with those of a definition over them; another loss brings settings of its own.

    Example:
        >>> with_sections({"loss": {"name": "ce", "params": {"unknown": "ignore"}}},
        ...               {"loss": {"name": "hill"}, "train": {"epochs": 3}})
        {'loss': {'name': 'hill', 'params': {}}, 'train': {'epochs': 3}}
    """
    loss = sections.get("loss")
    name = loss.get("name") if isinstance(loss, dict) else None
    made = _with_loss(values, name) if isinstance(name, str) else deepcopy(values)
    return _merged(made, sections)


def without_useless_prior(values: Values) -> Values:
    """The settings; with no [prior] where the loss takes none, so that equal runs are equal."""
    from partlabel.losses import LOSSES, settings_of, takes_posterior

    name, prior = _name(values), values.get("prior", {})
    if name not in LOSSES or not isinstance(prior, dict):
        return values
    if takes_posterior(name):  # it has a first stage, and no use for a threshold
        kept = {key: value for key, value in prior.items() if key in _FIRST_STAGE}
        if prior.get("source") == "none":  # so it is with a method that takes no prior
            kept["source"] = "estimate"
        return {**values, "prior": kept}
    if "prior" in settings_of(name) and prior.get("source") != "none":
        return values
    return {**values, "prior": {"source": "none"}}


def _with_loss(values: Values, name: str) -> Values:
    """The settings with another loss; of the settings of the old one those that go for both."""
    made = deepcopy(values)
    loss = made.get("loss", {})
    if not isinstance(loss, dict) or not isinstance(loss.get("params", {}), dict):
        return {**made, "loss": {"name": name, "params": {}}}  # the file's own check refuses it
    made["loss"] = {"name": name, "params": _kept(_name(values), name, loss.get("params", {}))}
    return made


def _kept(old: str, new: str, params: Values) -> Values:
    from partlabel.losses import LOSSES, settings_of

    if old == new:
        return dict(params)
    if old in SAME_SETTINGS and new in SAME_SETTINGS:
        # What the old one does not have either is a mistake, and stays, to be refused.
        there, here = (settings_of(each) if each in LOSSES else {} for each in (old, new))
        return {key: value for key, value in params.items() if key in here or key not in there}
    return {key: value for key, value in params.items() if key == "reduction"}


def _name(values: Values) -> str:
    loss = values.get("loss", {})
    return str(loss.get("name", "selective")) if isinstance(loss, dict) else "selective"


def _merged(base: Values, top: Values) -> Values:
    both = {
        key: _merged(base[key], top[key])
        for key in base.keys() & top.keys()
        if isinstance(base[key], dict) and isinstance(top[key], dict)
    }
    return {**base, **top, **both}
