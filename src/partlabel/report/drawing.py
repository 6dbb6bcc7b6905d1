"""Figures with one look: as files, and as SVG inside a page that follows its light or dark colours.

Matplotlib without a display. The same numbers give the same bytes: ids are salted by the figure's
name, and no file has a date.
"""

from __future__ import annotations

import io
import os
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from partlabel.classfile import write_rows

INK, MUTED, GRID, GROUND = "#1b1f24", "#5d6672", "#d8dce2", "#fefefe"
# Okabe and Ito's colours, told apart by most eyes; yellow is too pale for lines on paper.
BLUE, RED, GREEN, PURPLE, SKY, ORANGE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00",
)  # fmt: skip
_PAGE = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    GROUND: "var(--card)",
    BLUE: "var(--blue)",
    RED: "var(--red)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    SKY: "var(--sky)",
    ORANGE: "var(--orange)",
}
_COLOURS = re.compile("|".join(_PAGE), re.IGNORECASE)
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
AS_POINTS = 1_500
"""More points than that are drawn as one picture inside the SVG, which would be megabytes."""
HALF, WIDE, THIRD = 372, 800, 250
"""Widths of figures in units of the page's grid: one of two columns, both, one of three."""


class Look(NamedTuple):
    """How a method is drawn: never by colour alone."""

    colour: str
    marker: str
    line: Any

    @property
    def dots(self) -> dict[str, Any]:
        """For points."""
        return {"color": self.colour, "marker": self.marker, "linestyle": "none"}


_KNOWN = {
    "ignore": Look(GREEN, "^", (0, (4, 2))),
    "stage1": Look(GREEN, "^", (0, (4, 2))),
    "negative": Look(RED, "s", (0, (1.2, 1.6))),
    "csl": Look(BLUE, "o", "solid"),
    "selective": Look(BLUE, "o", "solid"),
}
_OTHERS = (
    Look(PURPLE, "D", (0, (6, 2, 1, 2))),
    Look(ORANGE, "v", (0, (3, 1))),
    Look(SKY, "P", (0, (5, 1, 1, 1, 1, 1))),
    Look(MUTED, "X", (0, (2, 2))),
    Look(INK, "*", (0, (8, 2))),
)


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method; the three of the paper always have the same."""
    found: dict[str, Look] = {}
    for method in methods:
        if method in _KNOWN and _KNOWN[method] not in found.values():
            found[method] = _KNOWN[method]
        else:
            free = [look for look in (*_OTHERS, *_KNOWN.values()) if look not in found.values()]
            found[method] = (free or list(_OTHERS))[0]
    return found


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of the page."""

    name: str
    """Of its files: figures/NAME.svg, .png and .csv."""
    title: str
    caption: str
    alt: str
    """What it shows, for those who cannot see it."""
    svg: str
    width: int


class Draft(NamedTuple):
    """A figure before it is written."""

    figure: Any
    axes: Any


@dataclass(frozen=True)
class Studio:
    """Draws into a folder.

    Args:
        folder: Where the files go; it is there.
    """

    folder: Path

    @contextmanager
    def style(self, name: str) -> Iterator[None]:
        """The look, and the salt of ids; fonts that lack a character say nothing."""
        # Matplotlib refuses to be imported where this names nothing it knows.
        os.environ["MPLBACKEND"] = "agg"
        import matplotlib as mpl

        style: Any = {**_STYLE, "svg.hashsalt": name}
        with warnings.catch_warnings(), mpl.rc_context(style):
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
            yield

    def draft(self, width: int = HALF, height: int = 264) -> Draft:
        """An empty figure of so many points."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        return Draft(figure, figure.add_subplot())

    def save(
        self, draft: Draft, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> str:
        """Write NAME.svg, .png and .csv; gives the SVG for the page."""
        figure = draft.figure
        figure.savefig(self.folder / f"{name}.png", dpi=160, metadata={"Software": None})
        figure.set_layout_engine("none")  # it is laid out, and that takes as long as drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        temporary = self.folder / f".{name}.svg.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / f"{name}.svg")
        write_rows(self.folder / f"{name}.csv", columns, rows)
        return for_page(text, name)


_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.6,
    "ytick.minor.size": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "figure.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.borderaxespad": 0.2,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.6,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a class may be called $x$
    "path.simplify": True,
}


def plain_log(axis: Any, *, minor: bool = False) -> None:
    """A logarithmic axis with 0.1, 1, 10 in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    text = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_locator(LogLocator(10))
    axis.set_major_formatter(text)
    low, high = sorted(axis.get_view_interval())
    close = minor and low > 0 and high / low < 30  # or there would be one number on the axis
    axis.set_minor_locator(LogLocator(10, subs=(2, 5) if close else (2, 3, 4, 5, 6, 7, 8, 9)))
    axis.set_minor_formatter(text if close else NullFormatter())


def legend_above(axes: Any, columns: int = 3) -> None:
    """A legend over the axes, where it hides nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        columnspacing=1.4,
        handletextpad=0.5,
        borderaxespad=0.1,
    )


def for_page(text: str, name: str) -> str:
    """An SVG file as a part of a page: its own ids, the page's font and colours, no address."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            value = element.attrib.pop(key)
            key = key.rpartition("}")[2]
            if key == "id":
                value = f"{name}-{value}"
            elif key == "href" and value.startswith("#"):
                value = f"#{name}-{value[1:]}"
            elif key in ("style", "clip-path", "fill", "stroke"):
                value = value.replace("url(#", f"url(#{name}-")
                value = _COLOURS.sub(lambda found: _PAGE[found[0].lower()], value)
                value = _FAMILY.sub("", value)
            element.set(key, value)
    for lost in [child for child in root if child.tag == "metadata"]:
        root.remove(lost)
    ground = root.find("g/g[@id='" + f"{name}-patch_1" + "']")
    if ground is not None:
        ground.clear()  # the page's own ground shows
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("aria-hidden", "true")  # its caption and its text are read instead
    root.set("focusable", "false")
    return ElementTree.tostring(root, encoding="unicode")
