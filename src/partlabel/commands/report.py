"""The command ``partlabel report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partlabel import terminal


def report(
    folder: Annotated[
        Path, typer.Argument(help="a folder of partlabel train or compare", metavar="FOLDER")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="the page; default: report.html in the folder"),
    ] = None,
    gallery: Annotated[
        bool, typer.Option("--gallery/--no-gallery", help="show training images")
    ] = True,
) -> None:
    """Write a page about a run or a comparison: tables, figures, classes, a gallery.

    One file that needs nothing else; its figures are also beside it, as SVG, PNG and csv. What is
    missing or damaged is named, and the rest is reported.
    """
    from partlabel.report import write_report

    written = write_report(folder, out=out, gallery=24 if gallery else 0, say=terminal.aside)
    terminal.note(f"{written} ({terminal.size(written.stat().st_size)})")
