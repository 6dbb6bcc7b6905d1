"""Which thresholds a person means: those of the run, of a file, one probability, or none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from partlabel.errors import UsageError
from partlabel.metrics import Thresholds
from partlabel.prediction.predict import Predictor, logit
from partlabel.tables import ClassTable


def thresholds_of(
    text: str,
    predictor: Predictor,
    classes: ClassTable,
    *,
    instead: float | None = None,
    say: Callable[[str], None] | None = None,
) -> npt.NDArray[np.float64] | None:
    """Thresholds as logits, in the order of some classes; None where there are to be none.

    Args:
        text: ``run``, ``none``, a probability, or a csv file with logits.
        predictor: The run.
        classes: Theirs.
        instead: The probability for a run that has chosen none; None refuses it.
        say: Is told what may be wrong.
    """
    if text == "none":
        return None
    found: Thresholds | float | None
    if text == "run":
        found = predictor.thresholds()
        if found is None:
            found = _instead(predictor, instead, say)
    else:
        found = _given(text, say)
    return np.full(len(classes), found) if isinstance(found, float) else found.align(classes)


def _instead(predictor: Predictor, value: float | None, say: Callable[[str], None] | None) -> float:
    if value is None:
        what = "has no thresholds.csv (not finished, or no validation set)"
        raise UsageError(f"{predictor.folder.path}: {what}; name a file, or a probability")
    if say is not None:
        say(f"the run has no thresholds.csv; labels are what has a probability of {value} or more")
    return logit(value)


def _given(text: str, say: Callable[[str], None] | None) -> Thresholds | float:
    try:
        value = float(text)
    except ValueError:
        found = Thresholds.read(text)
        if say is not None and ((found.values >= 0) & (found.values <= 1)).all():
            say(f"{text}: all thresholds are in 0..1, and are taken as logits all the same")
        return found
    if not 0 <= value <= 1:
        raise UsageError(f"--thresholds: {text} is not a probability; logits go into a csv file")
    return logit(value)
