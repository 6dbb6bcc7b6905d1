"""What a loss of the asymmetric family does to each label, in a few numbers for a fused loss."""

from __future__ import annotations

from typing import NamedTuple


class Recipe(NamedTuple):
    """Cross-entropy, ASL, P-ASL and the selective loss are all of this form.

    A label costs alpha q^gamma (-log(1 - q)): q is the probability of the wrong answer, less
    ``clip`` where the label is not present; alpha and gamma are those of its state. Unknown labels
    among the ``top_k`` most likely of their image cost nothing.
    """

    gamma_pos: float = 0.0
    gamma_neg: float = 0.0
    gamma_unknown: float = 0.0
    clip: float = 0.0
    alpha_pos: float = 1.0
    alpha_neg: float = 1.0
    alpha_unknown: float = 1.0
    detach_focus: bool = True
    top_k: int = 0

    def simplified(self, classes: int) -> Recipe:
        """The same, without a search for the most likely where its result is known before."""
        if self.top_k and (self.top_k >= classes or self.alpha_unknown == 0):
            return self._replace(top_k=0, alpha_unknown=0.0)
        return self
