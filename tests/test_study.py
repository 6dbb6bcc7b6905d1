"""The scripts of the study: many comparisons at a time, and their tables."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from partlabel.compare import Comparison, Row, read_results
from partlabel.compare.results import write_results
from tests.test_compare import complete_data, written

ROOT = Path(__file__).parent.parent


def script(name: str, *arguments: str | Path) -> str:
    """What a script prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_many_at_a_time_are_what_one_after_the_other_is(tmp_path: Path) -> None:
    complete_data(tmp_path / "data", images=24, val=12)
    compare = {
        "methods": ["ignore", "csl"],
        "schemes": ["rpa:0.5"],
        "seeds": [0, 1],
        "baseline": "ignore",
    }
    file = written(tmp_path, tmp_path / "data", compare, train={"epochs": 1, "device": "cpu"})
    where = ["--jobs", "2", "--no-mps", "--results", tmp_path / "kept"]
    where += ["--out", tmp_path / "study", "--parts", tmp_path / "parts"]
    said = script("study.py", file, *where)
    assert said.count("ended with 0") == 2
    assert "4 of 4 cells" in said
    found = {row.key: row for row in read_results(tmp_path / "study" / "file")}
    alone = Comparison.read(file, [], tmp_path / "alone")
    assert alone.run() == []
    wanted = {row.key: row for row in read_results(tmp_path / "alone")}
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        same = (row.method, row.scheme, row.seed, row.map_c, row.map_o)
        there = found[key]
        assert (there.method, there.scheme, there.seed, there.map_c, there.map_o) == same
        assert (tmp_path / "study" / "file" / "per_class" / f"{key}.csv").is_file()
    assert {row.key for row in read_results(tmp_path / "kept" / "file.csv")} == wanted.keys()
    again = script("study.py", file, *where)
    assert "ended" not in again  # nothing is trained twice
    assert "4 of 4 cells" in again
    elsewhere = ["--out", tmp_path / "elsewhere", "--no-mps", "--results", tmp_path / "kept"]
    there = script("study.py", file, *elsewhere)  # as on another machine
    assert "ended" not in there
    assert "4 of 4 cells" in there


def some_rows() -> list[Row]:
    """Three methods, two schemes, three seeds; one method lacks a seed."""
    draws = np.random.default_rng(0)
    return [
        Row(
            key=f"{method}{scheme}{seed}",
            method=method,
            title=method.title(),
            scheme=scheme,
            seed=seed,
            map_c=float(level + draws.normal(0, 0.02)),
            ap={"person": float(draws.random())},
            prior_sum=3.0 + seed,
            seconds=60.0,
            device="cpu",
        )
        for scheme in ("rpa:0.5", "fpc:200", "fpc:25")
        for method, level in (("ignore", 0.4), ("negative", 0.3), ("auto", 0.5))
        for seed in (10, 11, 12)
        if (method, scheme, seed) != ("auto", "rpa:0.5", 11)
    ]


def test_tables_say_what_the_rows_do(tmp_path: Path) -> None:
    rows, figure = some_rows(), tmp_path / "new" / "figure.svg"
    write_results(tmp_path / "rows.csv", rows)
    numbers = ["map_c", "ap:person", "prior_sum"]
    against = ["--against", "negative", "ignore"]
    told = script(
        "study_tables.py",
        tmp_path / "rows.csv",
        "--numbers",
        *numbers,
        *against,
        "--figure",
        figure,
    )
    assert "| method | FPC 25 | FPC 200 | RPA 0.5 |" in told
    mean = re.search(r"\| Auto \| \*\*([\d.]+) ± ([\d.]+)\*\* \|", told)
    assert mean is not None
    values = [100 * r.map_c for r in rows if (r.method, r.scheme) == ("auto", "fpc:25")]
    assert mean.groups() == (f"{np.mean(values):.1f}", f"{np.std(values, ddof=1):.1f}")
    # differences go to the better of the two, and only over seeds that both have
    line = re.search(r"minus the better of .*?\| Auto \| .*? \| .*? \| (.*?) \|", told, re.S)
    assert line is not None
    auto, base = (
        {r.seed: 100 * r.map_c for r in rows if (r.method, r.scheme) == (name, "rpa:0.5")}
        for name in ("auto", "ignore")
    )
    both = [auto[seed] - base[seed] for seed in auto]
    assert len(both) == 2
    half = 12.7062 * np.std(both, ddof=1) / math.sqrt(2)
    middle = np.mean(both)
    assert line[1] == f"{middle:+.1f} ({middle - half:+.1f} to {middle + half:+.1f}) ignore"
    sums = [3.0 + seed for seed in (10, 11, 12)]
    wanted = f"| Ignore | {np.mean(sums):.2f} ± 1.00 |"
    assert wanted in told  # not in percent
    assert "26 runs, seeds 10, 11, 12; cpu; 26 minutes of training" in told
    text = figure.read_text()
    assert "RPA 0.5" in text  # text is text
    assert "Negative" in text


def test_a_table_of_some_methods_and_of_one_seed(tmp_path: Path) -> None:
    rows = [row for row in some_rows() if row.seed == 10]
    write_results(tmp_path / "rows.csv", rows)
    told = script(
        "study_tables.py", tmp_path / "rows.csv", "--methods", "auto", "--numbers", "map_c"
    )
    assert "±" not in told
    assert "Negative" not in told
    assert told.count("| Auto |") == 1


@pytest.mark.skipif(
    shutil.which("c++") is None
    or not Path("/proc/cpuinfo").exists()
    or "avx512_bf16" not in Path("/proc/cpuinfo").read_text(),
    reason="needs a C++ compiler and a processor with AVX-512 and bfloat16",
)
def test_kernels_for_cpus_compute_what_pytorch_computes() -> None:
    printed = script("cpu_kernels.py", "--check")
    assert len(re.findall("^depthwise", printed, re.MULTILINE)) == 5
    assert len(re.findall("^normalise", printed, re.MULTILINE)) == 3
