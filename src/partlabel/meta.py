"""What a store says about itself in meta.json: format, and where its labels come from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partlabel.errors import StoreError, suggest

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the labels of a store come from; written into meta.json."""

    sources: tuple[dict[str, Any], ...] = ()
    """Name, bytes and sha256 of each file that was read."""
    made_by: dict[str, Any] = field(default_factory=dict)
    """The command and its options."""
    image_root: str | None = None
    """The folder that paths are relative to, where it was known."""
    conflicts: int = 0
    """Labels that were annotated present and absent; present won."""
    duplicates: int = 0
    notes: tuple[str, ...] = ()
    """What the reader left out or changed, in words."""

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Origin:
        """Read the fields back from meta.json."""
        return cls(
            sources=tuple(meta["sources"]),
            made_by=dict(meta["made_by"]),
            image_root=meta["image_root"],
            conflicts=int(meta["conflicts"]),
            duplicates=int(meta["duplicates"]),
            notes=tuple(meta["notes"]),
        )


def read_meta(path: Path) -> dict[str, Any]:
    """Read meta.json of a store folder; refuse what is not a store of this format."""
    if path.is_file():
        raise StoreError(
            f"{path}: is a file, not a store; make a store of it with partlabel import"
        )
    if not path.is_dir():
        there = (
            sorted(entry.name for entry in path.parent.glob("*.labels"))
            if path.parent.is_dir()
            else []
        )
        raise StoreError(f"{path}: no such store; in {path.parent} {suggest(path.name, there)}")
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        version = meta["format_version"]
    except FileNotFoundError as error:
        raise StoreError(
            f"{path}: not a label store (no meta.json); make one with import"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: damaged store (meta.json: {error}); import it again") from error
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{path}: store format {version}, this partlabel reads {FORMAT_VERSION}; "
            "update partlabel or import again"
        )
    return dict(meta)
