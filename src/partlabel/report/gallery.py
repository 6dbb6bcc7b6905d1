"""The gallery: training images, what is known of them, what the loss ignored and why.

A sample of the training images is scored by the trained model, without augmentation. The loss is
rebuilt from the run's settings and prior and asked which unknown labels it ignores.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np

from partlabel.images import pixels
from partlabel.losses.selective import Selective
from partlabel.prediction.predict import probabilities
from partlabel.report.material import Cell, Material
from partlabel.report.sample import Bools, Sample, score_sample

SIDE = 192
_PRESENT, _ABSENT, _GUESSES, _IGNORED = 12, 6, 5, 5


@dataclass(frozen=True)
class Guess:
    """An unknown label of an image."""

    name: str
    probability: float
    reasons: tuple[str, ...]
    """Why the loss ignored it: likelihood, prior, both or not at all."""
    right: bool | None
    """Whether it is really there; None where nobody knows."""


@dataclass(frozen=True)
class Card:
    """One image of the gallery."""

    image: str
    """A data address."""
    width: int
    height: int
    image_id: str
    present: list[str]
    absent: list[str]
    more_present: int
    more_absent: int
    missing: list[Guess]
    """Unknown, and probably there."""
    ignored: list[Guess]
    """Ignored by the loss, and not among those."""
    more_ignored: int


@dataclass(frozen=True)
class Group:
    """What became of some unknown labels."""

    title: str
    labels: int
    present: int | None
    """How many are really there."""


@dataclass(frozen=True)
class Gallery:
    """Images, and what holds for the whole sample."""

    cards: list[Card]
    images: int
    groups: list[Group]
    top_k: int
    threshold: float | None
    """Classes with a larger prior are ignored; None: the class does not decide."""
    soft: bool
    selective: bool
    from_run: bool
    """Whether the run chose thresholds; else a label is probable from one half."""


def make_gallery(material: Material, cell: Cell, number: int) -> Gallery:
    """Score a sample, and choose images of it; whatever is missing for that raises an error."""
    sample = score_sample(material, cell)
    loss = sample.loss if isinstance(sample.loss, Selective) else None
    hard = loss is not None and loss.prior is not None and loss.prior_mode == "hard"
    return Gallery(
        cards=[_card(sample, place) for place in _spread(sample, number)],
        images=len(sample.rows),
        groups=_groups(sample),
        top_k=0 if loss is None else loss.top_k,
        threshold=float(loss.prior_threshold) if loss is not None and hard else None,
        soft=loss is not None and loss.prior is not None and loss.prior_mode == "soft",
        selective=loss is not None,
        from_run=sample.from_run,
    )


def _spread(sample: Sample, number: int) -> list[int]:
    """Images that show many classes between them; every third is taken as it comes."""
    left = list(range(len(sample.rows)))
    shown = np.zeros(sample.states.shape[1])
    interest = sample.probable | (sample.states > 0)
    chosen: list[int] = []
    while left and len(chosen) < number:
        best = left[0]
        if len(chosen) % 3 != 2:
            # Rare on the page counts most; the root keeps crowded images from winning always.
            worth = {
                i: float((interest[i] / (1 + shown) ** 2).sum() / (1 + interest[i].sum()) ** 0.5)
                for i in left
            }
            best = max(left, key=lambda i: worth[i])
        left.remove(best)
        chosen.append(best)
        shown += interest[best]
    return chosen


def _card(sample: Sample, at: int) -> Card:
    names, states = sample.store.classes.names, sample.states[at]
    chances = probabilities(sample.logits[at])
    order = np.argsort(-chances, kind="stable")

    def guesses(wanted: Bools, most: int) -> list[Guess]:
        return [
            Guess(
                names[c],
                float(chances[c]),
                tuple(
                    reason
                    for reason, where in (("likelihood", sample.likely), ("prior", sample.frequent))
                    if where[at, c]
                ),
                None if sample.truth is None else bool(sample.truth[at, c] > 0),
            )
            for c in order[wanted[order]][:most].tolist()
        ]

    missing = guesses(sample.probable[at], _GUESSES)
    rest = sample.ignored[at] & ~sample.probable[at]
    present = [names[c] for c in np.flatnonzero(states > 0).tolist()]
    absent = [names[c] for c in np.flatnonzero(states < 0).tolist()]
    row = int(sample.rows[at])
    data, width, height = _thumbnail(sample.source.read(row))
    return Card(
        image=data,
        width=width,
        height=height,
        image_id=sample.store.images.show_id(row),
        present=present[:_PRESENT],
        absent=absent[:_ABSENT],
        more_present=max(len(present) - _PRESENT, 0),
        more_absent=max(len(absent) - _ABSENT, 0),
        missing=missing,
        ignored=guesses(rest, _IGNORED),
        more_ignored=max(int(rest.sum()) - _IGNORED, 0),
    )


def _thumbnail(data: bytes) -> tuple[str, int, int]:
    """A small JPEG as a data address; its width and height."""
    from PIL import Image

    image = Image.fromarray(pixels(data))
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=84, optimize=True)
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/jpeg;base64,{text}", image.width, image.height


def _groups(sample: Sample) -> list[Group]:
    """What became of the unknown labels of the sample, and how many are really there."""
    unknown = sample.states == 0
    parts = (
        ("Ignored: among the most likely of the image", sample.likely & ~sample.frequent),
        ("Ignored: a frequent class", sample.frequent & ~sample.likely),
        ("Ignored for both reasons", sample.likely & sample.frequent),
        ("Taken as absent", unknown & ~sample.ignored),
    )
    return [
        Group(title, int(where.sum()), None if sample.truth is None else
              int((where & (sample.truth > 0)).sum()))
        for title, where in parts
        if where.any()
    ]  # fmt: skip
