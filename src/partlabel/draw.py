"""Random numbers keyed by what they are for: seed, image id, class id.

A number belongs to an (image, class), not to a place in a stream, so it does not depend on the
order of rows, on what else is in the store, on a generator's version or on the number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from partlabel.tables import ClassTable, ImageTable

Keys = npt.NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15


def mix(keys: npt.NDArray[Any]) -> Keys:
    """Scramble 64-bit keys: the finaliser of splitmix64, a bijection."""
    x = np.array(keys, dtype=np.uint64, ndmin=1)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def seed_key(seed: int, purpose: str) -> np.uint64:
    """The key of a seed for one purpose; other purposes draw other numbers."""
    return _text_key(f"{purpose}:{seed}")


def image_keys(images: ImageTable, *, seed: int, purpose: str = "images") -> Keys:
    """One number per image."""
    if images.id_type == "string":
        ids = _text_keys(images.table["id"].to_pylist())
    else:
        ids = mix(images.ids.view(np.uint64))
    return mix(ids + seed_key(seed, purpose))


def class_keys(classes: ClassTable) -> Keys:
    """One number per class."""
    return _text_keys(classes.ids)


def pair_keys(images: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Keys:
    """One number per (image, class) from the keys of both; broadcasts."""
    return mix(images + mix(classes * np.uint64(_GOLDEN)))


def threshold(probability: float) -> np.uint64:
    """Keys below this are that share of all."""
    return np.uint64(min(int(probability * 2.0**64), 2**64 - 1))


def _text_keys(texts: Iterable[str]) -> Keys:
    return np.array([_text_key(text) for text in texts], dtype=np.uint64)


def _text_key(text: str) -> np.uint64:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
