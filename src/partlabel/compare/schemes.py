"""Annotation schemes by name: which labels of a complete store a training gets to see."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from partlabel import simulate
from partlabel.errors import suggest
from partlabel.store import LabelStore

AS_THEY_ARE = ("given", "complete")
"""Schemes that take the store itself."""


def _whole(text: str) -> float:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise ValueError
    return number


_KINDS: dict[str, tuple[Callable[[str], float] | None, str]] = {
    "given": (None, ""),
    "complete": (None, ""),
    "fpc": (_whole, "fpc:N, N labels of each class, as in fpc:100"),
    "rpa": (_share, "rpa:P, the share of labels that is dropped, as in rpa:0.5"),
    "single-positive": (None, ""),
    "drop-positives": (
        _share,
        "drop-positives:P, the share of positives that is dropped, as in drop-positives:0.5",
    ),
}


@dataclass(frozen=True)
class Scheme:
    """One annotation scheme.

    Example:
        >>> Scheme.read("rpa:0.50")
        Scheme(kind='rpa', value=0.5)
        >>> str(Scheme.read("fpc:0100")), Scheme.read("fpc:100").file_name
        ('fpc:100', 'fpc-100')
        >>> Scheme.read("fpc1:100")
        Traceback (most recent call last):
            ...
        ValueError: no such scheme as 'fpc1:100'; did you mean fpc?
    """

    kind: str
    value: float | None = None

    @classmethod
    def read(cls, text: str) -> Scheme:
        """Read ``fpc:100`` and the like; a ValueError says what would do."""
        kind, colon, rest = text.strip().partition(":")
        if kind not in _KINDS:
            raise ValueError(f"no such scheme as {text!r}; {suggest(kind, _KINDS)}")
        parse, words = _KINDS[kind]
        if parse is None:
            if colon:
                raise ValueError(f"{kind} takes no number, got {text!r}; write {kind}")
            return cls(kind)
        try:
            return cls(kind, parse(rest))
        except ValueError:
            raise ValueError(f"must be {words}, got {text!r}") from None

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}:{self.value:.12g}"

    @property
    def file_name(self) -> str:
        """The scheme as part of a path."""
        return str(self).replace(":", "-")

    @property
    def simulated(self) -> bool:
        """Whether labels are taken away, and which depends on the seed."""
        return self.kind not in AS_THEY_ARE

    def applied(self, store: LabelStore, seed: int) -> LabelStore:
        """The store with the labels that are left."""
        if self.kind == "fpc" and self.value is not None:
            return simulate.fixed_per_class(store, per_class=int(self.value), seed=seed)
        if self.kind == "rpa" and self.value is not None:
            return simulate.random_per_annotation(store, drop=self.value, seed=seed)
        if self.kind == "drop-positives" and self.value is not None:
            return simulate.drop_positives(store, keep=round(1 - self.value, 12), seed=seed)
        if self.kind == "single-positive":
            return simulate.single_positive(store, seed=seed)
        return store

    def saved(self, store: LabelStore, seed: int, path: Path) -> Path:
        """The store that is left, in a folder; made unless it is there, of the same labels."""
        source = fingerprint(store)
        if (path / "meta.json").is_file():
            there = LabelStore.open(path)
            if there.origin.made_by.get("of") == source:
                return path
        made = self.applied(store, seed)
        made.origin.made_by["of"] = source
        return made.save(path, overwrite=path.exists())


def fingerprint(store: LabelStore) -> str:
    """Sixteen digits of what a store says: classes, images and labels, not where it is kept."""
    images = store.images
    ids = repr(images.ids.tolist()) if images.id_type == "string" else images.ids.tobytes().hex()
    digest = hashlib.sha256(f"{store.complete} {images.id_type} {store.classes.ids}".encode())
    for part in (ids.encode(), store.indptr.tobytes(), store.codes.tobytes()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
