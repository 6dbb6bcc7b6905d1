"""The page itself: one HTML file of a template, a style sheet and a script, all of it escaped."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from partlabel.errors import UsageError
from partlabel.report.wording import plain


def prepared(target: Path) -> Path:
    """Make the folder of figures beside a page; refuses a place that cannot be written."""
    if target.is_dir():
        raise UsageError(
            f"{target}: is a folder; name a file, as in --out {target / 'report.html'}"
        )
    figures = target.parent / "figures"
    try:
        figures.mkdir(parents=True, exist_ok=True)
        probe = figures / f".{os.getpid()}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(target, error) from error
    return figures


def render(context: Mapping[str, Any]) -> str:
    """The page as text; everything from outside is escaped by the template."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["clean"] = plain
    script = _text("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_text("template.html")).render(
        **context,
        style=Markup(_text("style.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def write_page(target: Path, text: str) -> None:
    """Write the page in one step: a crash leaves what was there before."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> UsageError:
    what = f"cannot be written ({error.strerror or error})"
    return UsageError(f"{target}: {what}; name another place with --out FILE.html")


def _text(name: str) -> str:
    return (files("partlabel.report") / name).read_text(encoding="utf-8")
