"""All figures of a report, in the groups that the page shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from partlabel.report.boundaries import ABOVE_IGNORE, DRAWS, draw_boundaries
from partlabel.report.classlines import ClassLine, losses_with_prior
from partlabel.report.drawing import Chart, Studio
from partlabel.report.figures_classes import draw_frequency, draw_ranks, draw_spearman, draw_top
from partlabel.report.figures_methods import draw_curves, draw_schemes, draw_sweep
from partlabel.report.figures_precision import draw_bands, draw_differences, draw_frequent
from partlabel.report.material import Material, Sweep
from partlabel.report.wording import NARROW, listed, scheme_title

_SIGNS = (
    ("known-present", "known present"),
    ("known-absent", "known absent"),
    ("really-present", "unknown, really present"),
    ("really-absent", "unknown, really absent"),
    ("learnt", "learnt boundary"),
    ("true-edge", "true boundary"),
)

_USES = {
    "selective": "the selective loss does not take a frequent class for absent where its label is "
    "unknown",
    "auto": "the loss auto counts that part of its unknown labels as present",
}
"""What losses do with the prior."""


@dataclass(frozen=True, kw_only=True)
class ChartGroup:
    """A section of figures."""

    anchor: str
    title: str
    short: str
    """In the navigation."""
    charts: list[Chart]
    lead: str = ""
    layout: str = "two"
    key: tuple[tuple[str, str], ...] = field(default=())
    """Signs that all figures of the group use."""


def draw_all(material: Material, studio: Studio, lines: list[ClassLine]) -> list[ChartGroup]:
    """Draw whatever the numbers give; a figure that cannot be drawn is a gap."""

    def drawn(what: str, make: Callable[[], list[Chart] | Chart | None]) -> list[Chart]:
        with material.gaps.noting(f"The figure of {what}"):
            made = make()
            return made if isinstance(made, list) else [made] if made is not None else []
        return []

    def swept(sweep: Sweep) -> list[Chart]:
        return drawn(sweep.title, lambda: draw_sweep(studio, material, sweep))

    several = len(material.schemes) > 1
    main = f"{scheme_title(material.main_scheme)}."
    groups = [
        ChartGroup(
            anchor="schemes",
            title="Annotation schemes and settings",
            short="Schemes",
            lead="How the result depends on which labels are known, and on the settings.",
            charts=[
                *drawn("annotation schemes", lambda: draw_schemes(studio, material)),
                *(chart for sweep in material.sweeps for chart in swept(sweep)),
            ],
        ),
        ChartGroup(
            anchor="training",
            title="Training",
            short="Training",
            lead=main if several else "",
            charts=drawn("training", lambda: draw_curves(studio, material)),
        ),
        ChartGroup(
            anchor="precision",
            title="Average precision by class",
            short="Precision",
            lead=main if several else "",
            charts=[
                *drawn("frequent classes", lambda: draw_frequent(studio, material, lines)),
                *drawn("groups of classes", lambda: draw_bands(studio, material, lines)),
                *drawn("differences", lambda: draw_differences(studio, material, lines)),
            ],
        ),
        ChartGroup(
            anchor="frequency",
            title="How frequent classes really are",
            short="Frequency",
            lead=_frequency(losses_with_prior(material)),
            charts=[
                *drawn("annotated and estimated shares", lambda: draw_frequency(studio, lines)),
                *drawn("shares by rank", lambda: draw_ranks(studio, lines)),
                *drawn("the most frequent classes", lambda: draw_top(studio, lines)),
                *drawn("rank correlation", lambda: draw_spearman(studio, material, lines)),
            ],
        ),
        ChartGroup(
            anchor="boundaries",
            title="How unknown labels are treated",
            short="Boundaries",
            lead="An illustration, not this data. Points of a plane stand for images, and the "
            "disc for a class. One small network is trained three times on the same few labels, "
            "with three losses of this package. The draw of points was picked to show the effect: "
            f"over 20 draws {DRAWS['ignore']}, {DRAWS['negative']} and {DRAWS['selective']}"
            f"{NARROW}% of the unknown labels are right on average, and Selective is above Ignore "
            f"in {ABOVE_IGNORE} of them.",
            charts=drawn("boundaries", lambda: draw_boundaries(studio)),
            layout="three",
            key=_SIGNS,
        ),
    ]
    return [group for group in groups if group.charts]


def _frequency(losses: set[str]) -> str:
    uses = [text for loss, text in _USES.items() if loss in losses] or [_USES["selective"]]
    return (
        "Partial labels do not say how often a class occurs. A model that ignores unknown labels "
        f"estimates it; {listed(uses)}."
    )
