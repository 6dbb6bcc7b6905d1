"""Run folders of a comparison: whose they are, by the key that each has in cell.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from partlabel.config import Config
from partlabel.errors import StoreError, UsageError
from partlabel.training.checkpoint import newest
from partlabel.training.runfolder import RunFolder

_FILE = "cell.json"
_PLACES = ("data.", "images.root", "images.val_root", "prior.source")
"""Settings that name paths; what is there is in the key."""


def key_in(folder: Path) -> str | None:
    """The key of the run that a folder was made for."""
    try:
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return str(found["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refuse_other(folder: Path, key: str, config: Config, *, runs: Path | None = None) -> None:
    """Refuse a folder that has a run of other settings, or of the same ones on other data.

    Args:
        folder: Of a run.
        key: Of the run that wants it.
        config: Its settings.
        runs: The folder of all runs, to name in what would do.
    """
    begun = newest(folder / "checkpoints") is not None or (folder / "result.json").is_file()
    if not begun or key_in(folder) == key:
        return
    why = "a run on other data"
    if (folder / "config.toml").is_file():
        old, new = RunFolder(folder).config.flat(), config.flat()
        keys = [each for each in {**old, **new} if old.get(each) != new.get(each)]
        keys = [each for each in keys if not each.startswith(_PLACES)]
        shown = [f"{k} is {old.get(k)!r} there, {new.get(k)!r} here" for k in keys[:3]]
        if shown:
            why = f"a run with other settings ({'; '.join(shown)})"
    raise UsageError(f"{folder}: has {why}; choose another --out, or remove {runs or 'it'}")


def claim(folder: Path, key: str, config: Config) -> None:
    """Make a folder that of a key; where it is already, let its settings have today's paths."""
    refuse_other(folder, key, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if key_in(folder) != key:
            (folder / _FILE).write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error.strerror or error})") from error
    for place, settings in ((folder, config), (folder / "stage1", config.stage1())):
        if (place / "config.toml").is_file():
            settings.write(place / "config.toml")


def has_model_or(file: str, folder: Path, key: str) -> bool:
    """Whether a folder has the finished model of a key, or a file that was made by it."""
    if key_in(folder) != key or RunFolder(folder).finished() is None:
        return False
    return (folder / file).is_file() or newest(folder / "checkpoints") is not None


def with_key(runs: Path, key: str) -> Iterator[Path]:
    """The folders below ``runs`` that were made for a key, by whatever method."""
    for found in sorted(runs.rglob(_FILE)):
        if key_in(found.parent) == key:
            yield found.parent
