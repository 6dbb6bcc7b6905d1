"""The annotated pairs of an evaluation: collected batch by batch, merged across processes."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from partlabel.errors import DataError

_INVALID = 3  # the two bits of a state: 0 absent, 1 unknown, 2 present


class Pairs(NamedTuple):
    """Annotated pairs, on the CPU: checked, each once."""

    scores: Tensor
    """float32, or float64 where such scores were given."""
    classes: Tensor
    """int64"""
    positive: Tensor
    """bool: present, or verified absent."""
    in_top: Tensor
    """bool: the class is among the best of its image (see ``top_k``)."""
    images: Tensor | None
    """int64"""


class AnnotatedPairs:
    """Collects the scores of annotated pairs; memory grows with these alone.

    Args:
        num_classes: C.
        top_k: Also remember which pairs are among the ``top_k`` highest scores of their image
            (all that equal the k-th highest are), for :func:`precision_recall`.
    """

    def __init__(self, num_classes: int, *, top_k: int | None = None) -> None:
        if not isinstance(num_classes, int) or num_classes < 1:
            raise ValueError(f"num_classes must be a whole number of at least 1, got {num_classes}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self.num_classes = num_classes
        self.top_k = top_k
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._scores: list[Tensor] = []
        self._codes: list[Tensor] = []  # class, in_top, state in one int32
        self._images: list[Tensor] = []
        self._with_images: bool | None = None

    def __len__(self) -> int:
        return sum(map(len, self._scores))

    def update(self, scores: Any, states: Any, *, images: Any = None) -> None:
        """Add a batch.

        Args:
            scores: (B, C), logits or any score that grows with the probability.
            states: (B, C): +1 present, -1 verified absent, 0 unknown. Finding what is known costs
                one device synchronisation where it is on a GPU; ``update_pairs`` costs none.
            images: (B,), the number of each image in the whole set. Needed for confidence
                intervals and ``ties="reference"``; with it an image seen twice counts once.
        """
        scores = _floats(scores)
        states = _integers(states, "states", scores.device)
        if scores.ndim != 2 or scores.shape[1] != self.num_classes or scores.shape != states.shape:
            shapes = f"{tuple(scores.shape)} and {tuple(states.shape)}"
            raise ValueError(f"scores and states must be (B, {self.num_classes}), got {shapes}")
        known = _nonzero(states)
        rows = known // self.num_classes
        values = scores.reshape(-1)[known]
        in_top = None
        if self.top_k is not None:
            best = scores.detach().topk(min(self.top_k, self.num_classes), dim=1).values[:, -1]
            in_top = values >= best[rows]
        if images is not None:
            images = _integers(images, "images", scores.device)
            if images.shape != scores.shape[:1]:
                raise ValueError(f"images must be ({len(scores)},), got {tuple(images.shape)}")
            images = images[rows]
        self._add(
            values, known - rows * self.num_classes, states.reshape(-1)[known], images, in_top
        )

    def update_pairs(self, scores: Any, classes: Any, states: Any, *, images: Any = None) -> None:
        """Add pairs: four arrays of equal length. Nothing waits for the device."""
        if self.top_k is not None:
            raise ValueError("top_k needs the scores of all classes: use update()")
        scores = _floats(scores)
        if scores.ndim != 1:
            raise ValueError(f"scores of pairs have one dimension, got {scores.ndim}")
        classes = _integers(classes, "classes", scores.device)
        states = _integers(states, "states", scores.device)
        if images is not None:
            images = _integers(images, "images", scores.device)
        for name, given in (("classes", classes), ("states", states), ("images", images)):
            if given is not None and given.shape != scores.shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}, scores {len(scores)}")
        self._add(scores, classes, states, images, None)

    def _add(
        self,
        scores: Tensor,
        classes: Tensor,
        states: Tensor,
        images: Tensor | None,
        in_top: Tensor | None,
    ) -> None:
        if self._with_images not in (None, images is not None):
            raise ValueError("give images with every update or with none")
        codes = _encode(classes, states, in_top, self.num_classes)
        if codes.device.type == "cpu":
            _check_codes(codes, self.num_classes)
            known = (codes & 3) != 1
            if not known.all():  # elsewhere that would wait for the device
                scores, codes = scores[known], codes[known]
                images = None if images is None else images[known]
        self._with_images = images is not None
        if not len(scores):
            return
        wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
        # Copies: the caller may write into its own buffers again.
        self._scores.append(scores.detach().to(wide, copy=True))
        self._codes.append(codes)
        if images is not None:
            self._images.append(images.to(torch.int64, copy=True))

    def merge(self, other: AnnotatedPairs) -> Self:
        """Add the pairs of another one, of another shard for example."""
        self.load_state_dict(other.state_dict(), add=True)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Everything collected, as tensors on the CPU."""
        scores, codes, images = self._joined()
        return {
            "num_classes": self.num_classes,
            "top_k": self.top_k,
            "scores": scores,
            "codes": codes,
            "images": images,
        }

    def load_state_dict(self, state: dict[str, Any], *, add: bool = False) -> None:
        """Go on from a saved state; ``add`` keeps what is here."""
        for name in ("num_classes", "top_k"):
            if state[name] != getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)} here and {state[name]} there")
        if not add:
            self.reset()
        if not len(state["scores"]):
            return
        with_images = state["images"] is not None
        if self._with_images not in (None, with_images):
            raise ValueError("one of the two has images, the other has none")
        self._with_images = with_images
        self._scores.append(state["scores"].clone())
        self._codes.append(state["codes"].clone())
        if with_images:
            self._images.append(state["images"].clone())

    def _joined(self) -> tuple[Tensor, Tensor, Tensor | None]:
        device = torch.device("cpu")
        scores = [part.to(device) for part in self._scores]
        codes = [part.to(device) for part in self._codes]
        images = [part.to(device) for part in self._images]
        return (
            torch.cat(scores) if scores else torch.empty(0),
            torch.cat(codes) if codes else torch.empty(0, dtype=torch.int32),
            torch.cat(images) if images else None,
        )

    def collect(self, *, distributed: bool = True) -> Pairs:
        """All pairs, checked, each once; from all processes where there are several.

        Every process must call it then. What this process holds stays as it is.
        """
        whole: AnnotatedPairs = self
        if distributed and dist.is_available() and dist.is_initialized():
            whole = AnnotatedPairs(self.num_classes, top_k=self.top_k)
            states: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(states, self.state_dict())
            for state in states:
                whole.load_state_dict(state, add=True)
        scores, codes, images = whole._joined()
        _check_codes(codes, self.num_classes)
        known = (codes & 3) != 1
        if not known.all():
            scores, codes = scores[known], codes[known]
            images = None if images is None else images[known]
        scores = scores + 0.0  # -0.0 equals 0.0
        positive = (codes & 3) == 2
        pairs = Pairs(scores, (codes >> 3).long(), positive, (codes & 4) != 0, images)
        _check_scores(pairs)
        return pairs if images is None else _each_once(pairs, self.num_classes)


def _tensor(values: Any) -> Tensor:
    if isinstance(values, np.ndarray):  # torch takes no reversed views and no read-only arrays
        fine = values.flags.writeable and all(stride >= 0 for stride in values.strides)
        values = values if fine else values.copy()
    return torch.as_tensor(values)


def _floats(values: Any) -> Tensor:
    scores = _tensor(values)
    if not scores.is_floating_point():
        raise ValueError(f"scores must be floats, got {scores.dtype}")
    return scores


def _integers(values: Any, what: str, device: torch.device) -> Tensor:
    array = _tensor(values)
    if array.is_floating_point() or array.is_complex() or array.dtype == torch.bool:
        if array.numel():
            raise ValueError(f"{what} must be integers, got {array.dtype}")
        array = array.long()
    if array.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch hardly computes in these
        array = array.long()
    return array.to(device, non_blocking=True)


def _nonzero(states: Tensor) -> Tensor:
    flat = states.reshape(-1)
    if flat.device.type == "cpu":  # numpy finds few among many three times as fast as torch
        return torch.from_numpy(np.flatnonzero(flat.numpy() != 0))
    return flat.nonzero().squeeze(1)


def _encode(classes: Tensor, states: Tensor, in_top: Tensor | None, count: int) -> Tensor:
    """One int32 per pair; what is out of range is marked, since looking would synchronise."""
    inside = (classes >= 0) & (classes < count)
    codes = torch.where(inside, classes, count).to(torch.int32) << 3
    bits = ((states.to(torch.int32).clamp(-2, 2) + 1) & 3).to(codes.device)
    codes |= bits
    if in_top is not None:
        codes |= in_top.to(torch.int32) << 2
    return codes


def _check_codes(codes: Tensor, count: int) -> None:
    if len(codes) and int(codes.max()) >> 3 >= count:
        raise ValueError(f"a class is outside 0..{count - 1}")
    if ((codes & 3) == _INVALID).any():
        raise ValueError("states must be 1 (present), -1 (absent) or 0 (unknown); see to_states")


def _check_scores(pairs: Pairs) -> None:
    bad = pairs.scores.isnan()
    if bad.any():
        first = int(bad.nonzero()[0])
        where = "" if pairs.images is None else f" of image {int(pairs.images[first])}"
        what = f"{int(bad.sum())} scores are NaN, the first{where}, class"
        raise DataError(f"{what} {int(pairs.classes[first])}; the model or its input is broken")


def _each_once(pairs: Pairs, num_classes: int) -> Pairs:
    """Drop repeated (image, class): the highest score stays; contradictions are refused."""
    assert pairs.images is not None
    images = pairs.images
    if len(images) and (images.min() < 0 or images.max() >= 2**62 // num_classes):
        images = torch.unique(images, return_inverse=True)[1]
    keys = images * num_classes + pairs.classes
    if (keys[1:] > keys[:-1]).all() or (torch.diff(keys.sort().values) > 0).all():
        return pairs
    order = pairs.scores.argsort(descending=True)
    order = order[keys[order].argsort(stable=True)]
    keys = keys[order]
    again = torch.cat([torch.zeros(1, dtype=torch.bool), keys[1:] == keys[:-1]])
    positive = pairs.positive[order]
    contradicts = again[1:] & (positive[1:] != positive[:-1])
    if contradicts.any():
        place = order[int(contradicts.nonzero()[0])]
        what = f"image {int(pairs.images[place])}, class {int(pairs.classes[place])}"
        raise DataError(f"{what} is given twice, once present and once absent")
    keep = order[~again].sort().values
    return Pairs(*(part[keep] if part is not None else None for part in pairs))  # type: ignore[arg-type]
