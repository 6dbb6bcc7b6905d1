"""A run or a comparison as one self-contained page, with its figures beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def write_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    gallery: int = 24,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write the report of a run folder or a compare folder; gives the path of the page.

    What is missing or damaged is named in the page and said; the rest is reported.

    Args:
        folder: What ``partlabel train`` or ``partlabel compare`` has left, finished or not.
        out: The page; default: ``report.html`` in the folder. Figures go to ``figures/`` beside it.
        gallery: Images in the gallery; 0 leaves it out.
        say: Is told what is being done, and what is missing.
    """
    from partlabel.report.assembly import assemble
    from partlabel.report.page import prepared, render, write_page
    from partlabel.report.reading import read_material

    say = say or (lambda text: None)
    material = read_material(Path(folder))
    target = Path(out) if out is not None else Path(folder) / "report.html"
    figures = prepared(target)
    context = assemble(material, figures, gallery=gallery, say=say)
    write_page(target, render(context))
    for gap in material.gaps:
        say(f"not in the report: {gap.what}: {gap.why}")
    return target
