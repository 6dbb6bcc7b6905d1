"""The promises about the package as a whole."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import partlabel

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "partlabel").rglob("*.py"))


def test_public_names_are_there_and_no_others_leak() -> None:
    for name in partlabel.__all__:
        assert hasattr(partlabel, name)
    assert partlabel.__all__ == sorted(
        partlabel.__all__, key=lambda n: (not n.isupper(), n.islower(), n)
    )


def test_importing_is_light() -> None:
    heavy = {"pyarrow", "timm", "torchvision", "matplotlib", "triton", "typer", "rich", "torch"}
    script = "import sys, partlabel; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_modules_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def test_the_readme_lists_every_module_with_its_first_line() -> None:
    listed = dict(re.findall(r"^  (\S+\.py|\w+/) +(.+)$", (ROOT / "README.md").read_text(), re.M))
    package = ROOT / "src" / "partlabel"
    for path in SOURCES:
        name = path.name if path.parent == package else f"{path.parent.name}/"
        if path.name == "__init__.py" and path.parent == package:
            continue
        if path.parent == package or (path.name == "__init__.py" and path.parents[1] == package):
            first = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
            assert listed.get(name) == first.rstrip("."), name


def test_the_readme_names_every_format() -> None:
    from partlabel.readers import READERS

    text = (ROOT / "README.md").read_text()
    for name in READERS:
        assert f"`{name}`" in text


def test_the_changelog_has_the_version() -> None:
    assert f"## [{partlabel.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_shipped_example_is_what_its_script_draws(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "shapes"
    copy = tmp_path / "draw.py"
    copy.write_text((folder / "draw.py").read_text())
    subprocess.run([sys.executable, str(copy)], check=True)
    drawn = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
    assert drawn == {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    assert (tmp_path / "labels.csv").read_text() == (folder / "labels.csv").read_text()


@pytest.mark.slow
def test_the_benchmark_runs_at_a_small_size(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/import_labels.py", "--rows", "20000", "--no-peers"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"partlabel import, grouped +\d+\.\d +\d+\.\d\d", done.stdout)
    assert "batch of 1,024 random rows" in done.stdout
    grouped, shuffled = re.findall(r"train.labels: ([\d,]+) images", done.stdout)
    assert grouped == shuffled


@pytest.mark.slow
def test_the_metric_benchmark_runs_at_a_small_size() -> None:
    command = [sys.executable, "benchmarks/metrics.py", "--small", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    values = [found[name]["map_c"] for name in ("partlabel", "scikit-learn", "torchmetrics")]
    assert max(values) - min(values) < 1e-6
