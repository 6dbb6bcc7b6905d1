"""The command ``partlabel export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from partlabel import terminal
from partlabel.errors import UsageError, suggest

_SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".safetensors": "safetensors"}


def export(
    *,
    run: Annotated[Path, typer.Option("--run", "-r", help="the folder of a run")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the file to write")],
    format_: Annotated[
        Literal["onnx", "pt2", "safetensors"] | None,
        typer.Option("--format", help="default: as the file is called"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace what is at --out")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print json")] = False,
) -> None:
    """Write the model of a run as one file, with classes, preprocessing and thresholds inside.

    onnx and pt2 (torch.export) take uint8 RGB images (batch, 3, size, size), normalise them inside
    and give logits and probabilities. safetensors holds the weights: partlabel takes them as
    [model] weights. The file is compared with torch before it is kept.
    """
    kind = _SUFFIXES.get(out.suffix)
    if kind is None or (format_ is not None and kind != format_):
        wanted = f".{format_}" if format_ else ", ".join(_SUFFIXES)
        hint = f"; {suggest(out.suffix, _SUFFIXES)}" if format_ is None and out.suffix else ""
        raise UsageError(f"{out}: must end in {wanted}{hint}")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.absolute().parent}; make it first")
    if out.is_dir() or (out.exists() and not overwrite):
        raise UsageError(f"{out} exists; choose another --out or add --overwrite")
    from partlabel.prediction.export import export as write
    from partlabel.prediction.predict import Predictor

    predictor = Predictor.open(run, say=terminal.aside)
    done = write(predictor, out, kind)
    if as_json:
        found = {"out": str(out), "format": kind, "bytes": done.size}
        terminal.json_text({**found, "difference": done.difference})
        return
    size = predictor.model.info.size
    terminal.rows(
        f"exported {run}",
        {
            "file": f"{out} ({terminal.size(done.size)})",
            "classes": f"{len(predictor.classes):,}",
            "input": f"{size} x {size}"
            + ("" if kind == "safetensors" else ", uint8 RGB, normalised inside"),
            "thresholds": "none" if predictor.thresholds() is None else "inside, as logits",
            "difference from torch": f"{done.difference:.2g} at most",
        },
    )
