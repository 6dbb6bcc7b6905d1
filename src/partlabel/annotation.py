"""How labels came to be known, as far as counts tell, and which loss that asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.store import ClassCounts, LabelStore

_BUDGET = 5  # fewer positives are the same in several classes by chance

PAGE = "docs/choosing.md"


def has_budget(positives: npt.NDArray[np.int64]) -> bool:
    """Whether so many classes have the same, largest number of positives that it was planned.

    By chance some do, too; but then as many again have nearly that many.

    Example:
        >>> has_budget(np.array([100, 100, 100, 7])), has_budget(np.array([100, 98, 97, 7]))
        (True, False)
    """
    most = positives.max(initial=0)
    full, nearly = (positives == most).sum(), (positives >= most - np.sqrt(most)).sum()
    return bool(most >= _BUDGET and full >= 3 and full > len(positives) / 10 and full > nearly / 2)


@dataclass(frozen=True)
class Recommendation:
    """What to train a set of labels with."""

    loss: str
    """[loss] name."""
    one_training: str
    """What to set where two trainings are too many; empty where the loss takes one."""
    annotation: str
    """How the labels came to be known, in a few words."""
    why: tuple[str, ...]
    """Sentences, with the numbers that decide."""

    def to_dict(self) -> dict[str, Any]:
        """For json."""
        return {
            "loss": self.loss,
            "one_training": self.one_training,
            "annotation": self.annotation,
            "why": list(self.why),
            "more": PAGE,
        }


def recommend(store: LabelStore, counts: ClassCounts | None = None) -> Recommendation:
    """The loss for a store, from its counts; docs/choosing.md says by which measurements.

    Args:
        store: The labels to train with.
        counts: Its counts, where they are there already.

    Example:
        >>> from partlabel.tables import ClassTable, ImageTable
        >>> tags = LabelStore(
        ...     ClassTable(["cat", "dog"]), ImageTable.make(["a.jpg"]),
        ...     indptr=np.array([0, 1]), codes=np.array([1], np.uint16),
        ... )
        >>> recommend(tags).loss, recommend(tags).annotation
        ('hill', 'only present labels')
    """
    counts = store.counts() if counts is None else counts
    positives, negatives = int(counts.positives.sum()), int(counts.negatives.sum())
    pairs = len(store) * len(store.classes)
    if store.complete or positives + negatives == pairs:
        why = "nothing is unknown, so there is nothing to choose: ce, or asymmetric"
        return Recommendation("ce", "", "complete", (why,))
    if not negatives:
        return Recommendation(
            "hill",
            "",
            "only present labels",
            (
                "no label is verified absent, so a model that ignores unknown labels would predict "
                "everything, and nothing can be calibrated",
                "hill takes unknown labels as absent unless the model disagrees; auto does the "
                "same here",
            ),
        )
    if not positives:
        why = "no label is present: there is nothing to learn"
        return Recommendation("ce", "", "only absent labels", (why,))
    return _partial(store, counts)


def _partial(store: LabelStore, counts: ClassCounts) -> Recommendation:
    """Some labels are known to be present, some to be absent, the rest is unknown."""
    known = counts.positives + counts.negatives
    alike = float((counts.positives[known > 0] / known[known > 0]).sum())
    shown = counts.positives.sum() / len(store)
    number = len(store.classes)
    if has_budget(counts.positives):
        most = int(counts.positives.max())
        full = int((counts.positives == most).sum())
        return Recommendation(
            "auto",
            'selective with prior.source = "online"',
            "a number of labels per class",
            (
                f"{full:,} of {number:,} classes have exactly {most:,} verified present labels, as "
                "if annotation had stopped there: unknown labels are not like annotated ones",
                "auto finds from the annotations how many unknown labels of each class are present",
            ),
        )
    return Recommendation(
        "auto",
        'ce with unknown = "ignore" where labels are missing at random, else selective with '
        'prior.source = "online"',
        "some labels; counts do not tell by which rule",
        (
            f"if unknown labels are present as often as annotated ones, an image shows about "
            f"{alike:.1f} of {number:,} classes ({shown:.1f} are known to be present); if that is "
            "far more than your images do, people annotated what they saw",
            "auto finds out which it is, from the annotations and its first stage",
        ),
    )
