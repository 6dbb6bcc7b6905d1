"""The command line as people type it: each test starts the real program."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from partlabel import LabelStore, __version__

LONG = """image_id,label,value,split
a.jpg,cat,1,train
a.jpg,dog,0,train
b.jpg,dog,1,val
c.jpg,cat,0,train
"""


def partlabel(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "partlabel", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def long_csv(in_tmp: Path) -> Path:
    path = in_tmp / "mine.csv"
    path.write_text(LONG)
    return path


def test_import_writes_a_store_beside_and_says_what_is_in_it(long_csv: Path) -> None:
    (long_csv.parent / "a.jpg").touch()
    done = partlabel("import", "table", long_csv, "--layout", "long")
    first, *rest = done.stdout.splitlines()
    assert first == (
        "mine.labels: 3 images, 2 classes, 2 positives, 2 negatives, 2 unknown (33.33%)"
    )
    assert f"1 of 3 images found in {long_csv.parent}" in rest[-1]
    store = LabelStore.open("mine.labels")
    assert store.dense([0, 1, 2]).tolist() == [[1, -1], [0, 1], [-1, 0]]
    assert store.images.split_counts == {"train": 2, "val": 1}


def test_info_as_json_and_as_a_table(long_csv: Path) -> None:
    partlabel("import", "table", long_csv, "--layout", "long")
    found = json.loads(partlabel("info", "mine.labels", "--json").stdout)
    expected = {
        "images": 3,
        "classes": 2,
        "positives": 2,
        "negatives": 2,
        "unknown": 2,
        "known_share": 4 / 6,
        "conflicts": 0,
        "duplicates": 0,
        "complete": False,
        "classes_without_positive": 0,
        "classes_without_negative": 0,
        "splits": {"train": 2, "val": 1},
        "bytes_dense": 6,
        "warnings": [],
    }
    assert expected.items() <= found.items()
    assert found["most_annotated"][0] == {
        "id": "cat",
        "name": "cat",
        "positives": 1,
        "negatives": 1,
    }
    assert found["sources"][0]["name"] == "mine.csv"
    assert found["bytes_on_disk"] == sum(f.stat().st_size for f in Path("mine.labels").iterdir())
    table = partlabel("info", "mine.labels").stdout
    for text in ("mine.labels", "known share", "66.6667% of 6 labels", "cat (+1 -1)", "dense int8"):
        assert text in table


def test_info_warns_about_classes_without_negatives(in_tmp: Path) -> None:
    Path("tags.csv").write_text("image_id,label\na.jpg,cat\nb.jpg,dog\n")
    done = partlabel("import", "table", "tags.csv", "--layout", "long")
    assert "no value column: every row counts as present" in done.stdout
    text = partlabel("info", "tags.labels").stdout
    assert "2 of 2 classes have no verified negative" in text
    assert "Ignore mode" in text
    Path("odd.csv").write_text("image_id,label,y\na.jpg,cat,0\n")
    done = partlabel("import", "table", "odd.csv", "--layout", "long")
    assert "not used: y (--value names the value)" in done.stdout


def test_val_splits_by_image_and_the_same_way_every_time(in_tmp: Path) -> None:
    rows = "".join(f"{i}.jpg,{name},1\n" for i in range(50) for name in ("cat", "dog"))
    Path("x.csv").write_text("image_id,label,value\n" + rows)
    splits = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        command = ("import", "table", "x.csv", "--layout", "long", "--val", "0.1")
        partlabel(*command, "--seed", str(seed), "-o", f"{name}.labels")
        splits.append(LabelStore.open(f"{name}.labels").images.rows("val").tolist())
    assert len(splits[0]) == 5
    assert splits[0] == splits[1] != splits[2]
    again = ("import", "stores", "a.labels", "b.labels", "--val", "0.5")
    assert "has splits already" in partlabel(*again, code=2).stderr


def test_an_existing_store_is_refused_or_replaced(long_csv: Path) -> None:
    command = ("import", "table", long_csv, "--layout", "long")
    partlabel(*command)
    before = Path("mine.labels/meta.json").stat().st_ino
    refused = partlabel(*command, code=2)
    assert refused.stderr == "error: mine.labels exists; choose another --out or add --overwrite\n"
    assert Path("mine.labels/meta.json").stat().st_ino == before
    partlabel(*command, "--overwrite")
    assert Path("mine.labels/meta.json").stat().st_ino != before
    assert [entry.name for entry in Path().iterdir() if ".tmp" in entry.name] == []


def test_simulate_takes_a_split_and_names_its_output(long_csv: Path) -> None:
    partlabel("import", "table", long_csv, "--layout", "long")
    done = partlabel("simulate", "fpc", "mine.labels", "--per-class", "1", "--split", "train")
    assert done.stdout.startswith("mine-fpc-1-seed0.labels: 2 images, 2 classes, 1 positives")
    one = partlabel("simulate", "rpa", "mine.labels", "--drop", "0.5", "-o", "rpa.labels")
    two = partlabel("simulate", "rps", "mine.labels", "--drop", "0.5", "-o", "rps.labels")
    assert one.stdout.replace("rpa", "rps") == two.stdout
    rpa, rps = (np.load(f"{name}.labels/codes.npy") for name in ("rpa", "rps"))
    assert np.array_equal(rpa, rps)
    partlabel("simulate", "single-positive", "mine.labels")
    partlabel("simulate", "drop-positives", "mine.labels", "--keep", "0.5", "--rest", "negative")
    assert LabelStore.open("mine-drop-positives-0.5-negative-seed0.labels").complete


def test_stores_are_merged_with_the_first_believed(in_tmp: Path) -> None:
    for name, value in (("human", 0), ("machine", 1)):
        Path(f"{name}.csv").write_text(f"image_id,label,value\na.jpg,cat,{value}\n")
        partlabel("import", "table", f"{name}.csv", "--layout", "long")
    done = partlabel("import", "stores", "human.labels", "machine.labels", "-o", "both.labels")
    assert "1 labels on which the two stores disagree; the first was believed" in done.stdout
    both = LabelStore.open("both.labels")
    assert both.dense([0]).tolist() == [[-1]]
    assert both.origin.conflicts == 1


def test_help_lists_every_format_and_scheme() -> None:
    formats = partlabel("import", "--help").stdout
    for name in (
        "openimages",
        "csl",
        "lvis",
        "coco",
        "voc",
        "nuswide",
        "chexpert",
        "table",
        "stores",
    ):
        assert name in formats
    schemes = partlabel("simulate", "--help").stdout
    for name in ("fpc", "rpa", "single-positive", "drop-positives"):
        assert name in schemes
    assert partlabel("--version").stdout == f"partlabel {__version__}\n"


def test_long_reading_says_how_far_it_is(in_tmp: Path) -> None:
    script = (
        "import partlabel.terminal as t; t._SECONDS_BETWEEN_LINES = 0.0\n"
        "import sys; sys.argv = ['partlabel', 'import', 'table', 'x.csv', '--layout', 'long']\n"
        "from partlabel.cli import main; main()"
    )
    with Path("x.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("image_id", "label"), *((f"{i}.jpg", "cat") for i in range(9))]
        )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "x.csv: 100%" in done.stderr
    assert "rows/s" in done.stderr
    assert "s left" in done.stderr


def test_a_warning_of_ours_is_a_line_and_said_once() -> None:
    """Those of others come as Python shows them."""
    program = """
        import warnings
        from partlabel import cli

        def main():
            for file in (cli.__file__, cli.__file__, "elsewhere.py"):
                for line in (1, 2):
                    warnings.warn_explicit("no class [can] be scored", UserWarning, file, line)
            raise SystemExit(0)

        cli.main = main
        cli.run()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    ours, *others = done.stderr.splitlines()
    assert ours == "warning: no class [can] be scored"
    assert sum("elsewhere.py" in line for line in others) == 2
    assert not any("cli.py" in line for line in others)
