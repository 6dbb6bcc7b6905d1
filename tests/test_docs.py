"""What the docs promise to list is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from partlabel.config import Config
from partlabel.config.schema import keys_of

DOCS = (Path(__file__).parent.parent / "docs" / "training.md").read_text()


@pytest.mark.parametrize(
    "section", ["data", "images", "model", "loss", "prior", "optim", "train", "eval"]
)
def test_every_setting_is_in_the_docs(section: str) -> None:
    kind, _ = keys_of(Config)[section]
    start = DOCS.index(f"### `[{section}]`")
    text = DOCS[start : DOCS.find("\n### ", start + 1)]
    for key in keys_of(kind.types[0]):
        assert f"| `{key}` |" in text, key
