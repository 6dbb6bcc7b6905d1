"""What README and docs show runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import MakeStore
from tests.test_cli import partlabel

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:30])
def test_python_in_the_readme_runs(block: str, in_tmp: Path, make_store: MakeStore) -> None:
    rng = np.random.default_rng(0)
    make_store(rng.integers(-1, 2, (300, 8))).save("coco-fpc-1000-seed0.labels")
    Path("prior.csv").write_text("class_id,prior\n" + "".join(f"c{i},0.{i}\n" for i in range(8)))
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert "store" in names


def test_the_example_import_prints_what_the_readme_shows(in_tmp: Path) -> None:
    shown = re.search(r"\$ (partlabel import table labels.csv[^\n]*)\n([^\n]+)\n", README)
    assert shown is not None
    for name in ("labels.csv", *(f"images/{i:02d}.png" for i in range(24))):
        target = in_tmp / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((ROOT / "examples" / "shapes" / name).read_bytes())
    done = partlabel(*shlex.split(shown[1])[1:])
    assert done.stdout.splitlines()[0] == shown[2]
    assert done.stdout.splitlines()[1] == f"22 of 22 images found in {in_tmp}"


def test_the_example_evaluation_prints_what_the_readme_shows(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.search(r"\$ (partlabel evaluate [^\n]*)\n(.*?)```", README, re.S)
    assert shown is not None
    for name in ("labels.csv", "scores.parquet"):
        (in_tmp / name).write_bytes((ROOT / "examples" / "shapes" / name).read_bytes())
    partlabel("import", "table", "labels.csv", "--layout", "long")
    monkeypatch.setenv("COLUMNS", "120")
    done = partlabel(*shlex.split(shown[1])[1:])
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines == shown[2].splitlines()


def test_every_loss_is_in_the_readme_and_in_the_docs() -> None:
    from partlabel import LOSSES

    docs = (ROOT / "docs" / "losses.md").read_text()
    for name in LOSSES:
        assert f"`{name}`" in README
        assert f"### `{name}`" in docs


def test_no_placeholder_is_left_in_the_readme() -> None:
    assert not re.search(r"^[A-Z]{5,}$", README, re.M)
