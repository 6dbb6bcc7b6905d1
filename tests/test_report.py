"""The report: what it says, that it says so for broken folders too, and that nothing escapes."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partlabel.classfile import write_rows
from partlabel.commands.report import report as report_command
from partlabel.compare.cells import run_folder
from partlabel.compare.results import read_results, write_results
from partlabel.config import Config
from partlabel.errors import UsageError
from partlabel.prior import Prior
from partlabel.report import boundaries, write_report
from partlabel.report.assembly import assemble, mixed
from partlabel.report.classlines import ClassLine, class_lines, main_cell, read_labels
from partlabel.report.drawing import Studio, for_page, looks
from partlabel.report.figures_methods import draw_curves, draw_sweep
from partlabel.report.gallery import make_gallery
from partlabel.report.material import Cell, Material, Sweep
from partlabel.report.methodtable import Statistics, method_tables, overview
from partlabel.report.narrative import sentences
from partlabel.report.page import prepared, render
from partlabel.report.reading import read_material
from partlabel.report.sample import score_sample
from partlabel.report.views import class_view
from partlabel.report.wording import plain, points, scheme_phrase, share, shortened
from partlabel.training.processes import processes
from partlabel.training.stages import Run
from partlabel.training.watcher import Silent
from tests import report_folders
from tests.report_folders import HOSTILE
from tests.runs import make_data, settings


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._quiet = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._quiet += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._quiet -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._quiet:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two stages, trained for two epochs."""
    folder = tmp_path_factory.mktemp("run")
    make_data(folder)
    config = Config.from_dict(settings(folder), name="tiny")
    with processes("cpu") as here:
        Run(config, processes=here, watcher=Silent())()
    return folder / "run"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compare folder with two schemes and a sweep."""
    folder = tmp_path_factory.mktemp("compared")
    return make_compare(folder, schemes=("fpc:4", "fpc:8"), seeds=(0, 1), sweep=True)


@pytest.fixture(scope="module")
def page_file(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report, elsewhere."""
    return write_report(compared, out=tmp_path_factory.mktemp("page") / "r.html", gallery=6)


@pytest.fixture(scope="module")
def page(page_file: Path) -> str:
    """The same as text."""
    return page_file.read_text(encoding="utf-8")


def make_compare(folder: Path, **more: Any) -> Path:
    """A compare folder whose run folders say whose run they have."""
    out = report_folders.make_compare(folder, **more)
    for row in read_results(out):
        run = run_folder(out, row.method, row.scheme, row.seed)
        (run / "cell.json").write_text(json.dumps({"key": row.key}))
    return out


def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / folder.name)


def read(text: str, section: str) -> str:
    """The words of a section."""
    found = re.search(rf'<section id="{section}".*?</section>', text, re.S)
    assert found is not None, section
    return Page(found[0]).text


# The page


def test_a_comparison_has_all_parts_in_order(page: str) -> None:
    order = re.findall(r'<section id="(\w+)"', page)
    assert order == [
        "summary", "methods", "schemes", "training", "precision", "frequency", "boundaries",
        "classes", "gallery", "details",
    ]  # fmt: skip
    assert not re.search(r"https?://|//www|@import|url\((?!#)", page)
    assert "Not in this report" not in page
    assert len(page) < 5_000_000


def test_a_page_asks_for_nothing(page: str) -> None:
    found = Page(page)
    for name, value in found.attributes:
        if name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (value or "").startswith(("data:image/jpeg;base64,", "#")), (name, value)
        assert not name.startswith("on")
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert found.tags.count("script") == 1


def test_every_figure_is_beside_the_page_in_three_forms(
    compared: Path, page_file: Path, page: str
) -> None:
    figures = page_file.parent / "figures"
    names = re.findall(r'<figure class="chart" id="fig-([^"]+)"', page)
    assert {
        "curves-map", "curves-loss", "schemes-fpc", "sweep-k", "frequency", "ranks", "top-classes",
        "spearman", "frequent-classes", "frequency-bands", "class-differences",
        "boundaries-ignore", "boundaries-negative", "boundaries-selective",
    } == set(names)  # fmt: skip
    for name in names:
        ElementTree.parse(figures / f"{name}.svg")
        with Image.open(figures / f"{name}.png") as image:
            assert min(image.size) > 300
        with (figures / f"{name}.csv").open() as file:
            assert len(list(csv.reader(file))) > 2
    assert not (compared / "report.html").exists()
    assert not list(figures.glob(".*"))


def test_the_same_folder_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        out = tmp_path / name / "report.html"
        write_report(run, out=out, gallery=4)
        files = sorted(p for p in out.parent.rglob("*") if p.is_file())
        written.append({p.relative_to(out.parent): p.read_bytes() for p in files})
    one, other = written
    one_page, other_page = (w.pop(Path("report.html")).decode() for w in written)
    assert one == other
    assert one_page.replace(str(tmp_path / "a"), "") == other_page.replace(str(tmp_path / "b"), "")


def test_the_table_of_methods_has_means_spreads_and_paired_differences(compared: Path) -> None:
    material = read_material(compared)
    statistics = Statistics.of(material)
    table = method_tables(material, statistics)[0]
    assert table.scheme == "fpc:4"
    assert [line.method for line in table.lines] == ["ignore", "negative", "csl"]
    ignore, _, csl = table.lines
    assert ignore.baseline
    assert ignore.difference == "\u2013"
    values = {
        method: [c.numbers["map_c"] for c in material.of("fpc:4", method)]
        for method in ("ignore", "csl")
    }
    assert csl.numbers[0].text == f"{100 * np.mean(values['csl']):.1f}"
    assert csl.numbers[0].spread == f"{100 * np.std(values['csl'], ddof=1):.1f}"
    gap = np.subtract(values["csl"], values["ignore"])
    assert csl.difference == points(float(gap.mean()))
    half = 12.706 * gap.std(ddof=1) / math.sqrt(2)
    assert csl.interval == f"{points(gap.mean() - half)} to {points(gap.mean() + half)}"
    assert csl.numbers[0].best
    whole = overview(material, statistics)
    assert whole is not None
    assert whole.schemes == ["FPC, N = 4", "FPC, N = 8"]
    swept = method_tables(material, statistics, swept=True)
    assert [line.method for line in swept[0].lines] == ["k=0", "k=1", "k=5", "k=10", "k=20"]


def test_the_table_of_classes_has_annotation_prior_truth_and_precision(page: str) -> None:
    text = read(page, "classes")
    assert "20 classes, by truth the most frequent first. Fixed per class, N = 4." in text
    for heading in ("Present", "Absent", "Estimated %", "True %", "AP Ignore %", "AP CSL %"):
        assert heading in text
    first = re.search(
        r'<tbody>\s*<tr[^>]*><th scope="row">.*?(?=<tr)',
        page[page.index('class="classes"') :],
        re.S,
    )
    assert first is not None
    assert Page(first[0]).text.startswith("daylight c000 4 4 ")


# Words


def material_of(values: dict[str, list[float]], **more: Any) -> Material:
    cells = [
        Cell(method=method, title=method.upper(), scheme="fpc:100", seed=seed,
             numbers={"map_c": value, "map_frequent": value})
        for method, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]  # fmt: skip
    given = {"schemes": ["fpc:100"], "baseline": "ignore", **more}
    return Material(kind="compare", folder=Path("x"), name="x", cells=cells, **given)


def said(material: Material) -> str:
    return " ".join(sentences(material, Statistics.of(material), [], None)).replace("\xa0", " ")


def test_the_summary_says_which_method_is_best_and_by_how_much() -> None:
    text = said(material_of({"ignore": [0.6, 0.62], "negative": [0.5, 0.5], "csl": [0.7, 0.72]}))
    assert text.startswith(
        "With 100 positives and 100 negatives known of each class, CSL has the highest validation "
        "mAP(C): 71.0 %, the mean of 2 seeds, 10.0 points above IGNORE (95 % interval +10.0 to "
        "+10.0) and 21.0 above NEGATIVE (95 % interval +8.3 to +33.7)."
    )
    assert "the mean AP is 71.0 % for CSL, 61.0 % for IGNORE and 50.0 % for NEGATIVE" in text


def test_the_summary_does_not_claim_what_the_seeds_do_not_show() -> None:
    text = said(material_of({"ignore": [0.60, 0.66], "csl": [0.64, 0.63]}))
    assert "which includes zero" in text
    alone = said(material_of({"ignore": [0.60], "csl": [0.64]}))
    assert "interval" not in alone
    assert "4.0 points above IGNORE" in alone
    worse = said(material_of({"ignore": [0.7, 0.71], "csl": [0.6, 0.605]}))
    assert "IGNORE has the highest" in worse
    assert "10.2 points above CSL (95 % interval +7.1 to +13.4)" in worse


def test_methods_are_compared_over_the_same_seeds_only() -> None:
    values = {"ignore": [0.6, 0.7], "negative": [0.5, 0.65], "csl": [0.68, 0.74], "hill": [0.9]}
    material = material_of(values)
    text = said(material)
    assert "CSL has the highest validation mAP(C): 71.0 %" in text
    assert "13.5 above NEGATIVE (95 % interval" in text  # neither of them is the baseline
    assert "HILL has fewer seeds and is not ranked." in text
    lines = {x.method: x for x in method_tables(material, Statistics.of(material))[0].lines}
    assert lines["csl"].numbers[0].best
    assert not lines["hill"].numbers[0].best
    assert [lines[m].numbers[0].seeds for m in ("csl", "hill")] == ["", "n = 1"]
    gap = Statistics.of(material).gap("fpc:100", "csl", "hill", "map_c")
    assert gap is not None
    assert gap.mean == pytest.approx(0.68 - 0.9)
    apart = material_of({"ignore": [0.6, 0.7]})
    apart.cells[1].method = "csl"
    assert said(apart).startswith("No method has all the seeds yet")


def test_what_is_of_one_seed_says_so(compared: Path, page: str) -> None:
    summary = read(page, "summary")
    assert re.search(r"classes are found \(seed 0\)\.", summary)
    assert re.search(r"per image \(seed 0\)\.", summary)


def test_the_summary_speaks_of_schemes_that_disagree() -> None:
    material = material_of({"ignore": [0.6], "negative": [0.7]}, schemes=["fpc:100", "rpa:0.5"])
    material.cells += [
        Cell(method=method, title=method, scheme="rpa:0.5", numbers={"map_c": value})
        for method, value in (("ignore", 0.7), ("negative", 0.6))
    ]
    assert "depends on how labels were chosen: negative under fpc:100 and ignore under rpa:0.5" in (
        said(material)
    )


def test_a_comparison_without_results_says_so() -> None:
    assert said(material_of({})) == "There are no results yet; what is there is shown below."


def test_words_and_numbers() -> None:
    assert [points(v) for v in (0.012, -0.012, 0.0001)] == ["+1.2", "\u22121.2", "0.0"]
    assert [share(v) for v in (1.0, 0.123, 0.0007, 0.0, math.nan)] == [
        "100",
        "12",
        "0.07",
        "0",
        "\u2013",
    ]
    assert plain("a\x00b\x1bc\nd") == "a\ufffdb\ufffdc d"
    assert shortened("x" * 50, 10) == "x" * 9 + "\u2026"
    assert shortened("\u202eabc") == "abc"  # a figure has no room for a line that turns around
    assert scheme_phrase("what:is:this") == "With the labels of what:is:this"


# Figures


def test_a_backend_that_does_not_exist_loses_no_figure(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from partlabel.report.drawing import Studio\n"
        "studio = Studio(pathlib.Path(sys.argv[1]))\n"
        "with studio.style('x'): studio.save(studio.draft(), 'x', ('a',), [(1,)])\n"
    )
    environment = {**os.environ, "MPLBACKEND": "no such backend"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.svg").is_file()


def test_sweeps_with_odd_names_have_figures_of_their_own(tmp_path: Path) -> None:
    material = material_of({"ignore": [0.6], "csl": [0.7]})
    names = ["\u03b3", "\u03b1", "a/b", "a b"]
    sweeps = [Sweep(name, name, (1, 2), ("ignore", "csl")) for name in names]
    charts = [draw_sweep(Studio(tmp_path), material, sweep) for sweep in sweeps]
    assert len({chart.name for chart in charts if chart is not None}) == len(names)
    assert len(list(tmp_path.glob("*.svg"))) == len(names)


def test_axes_of_classes_are_labelled(page_file: Path) -> None:
    for name, label in (
        ("class-differences", "Class, from the most frequent down"),
        ("frequent-classes", "Class"),
        ("top-classes", "Class"),
    ):
        root = ElementTree.parse(page_file.parent / "figures" / f"{name}.svg").getroot()
        assert label in {"".join(x.itertext()).strip() for x in root.iter() if "text" in x.tag}


def test_a_log_of_one_line_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    material = material_of({"ignore": [0.6]})
    material.cells[0].log = [{"kind": "train", "step": 1, "epoch": 0, "loss": 0.5}]
    drawn = []
    monkeypatch.setattr(Studio, "save", lambda self, draft, *a: drawn.append(draft.axes) or "")
    assert [chart.name for chart in draw_curves(Studio(tmp_path), material)] == ["curves-loss"]
    assert drawn[0].lines[0].get_marker() == "^"


def test_our_losses_draw_the_papers_illustration() -> None:
    toy = boundaries.make_toy()
    found = {mode: boundaries.learn(toy, mode) for mode in boundaries.MODES}
    right = {mode: boundaries.accuracy(toy, each) for mode, each in found.items()}
    assert right["selective"] > right["ignore"] > right["negative"]
    inside = {mode: (each.mesh > 0.5).mean() for mode, each in found.items()}
    disc = math.pi * 0.3**2
    assert inside["negative"] < 0.5 * disc < disc < inside["selective"] < inside["ignore"]
    again = boundaries.learn(toy, "selective")
    assert (again.scores == found["selective"].scores).all()


@pytest.mark.slow
def test_what_the_page_says_of_other_draws_of_the_illustration_is_so() -> None:
    right: dict[str, list[float]] = {mode: [] for mode in boundaries.MODES}
    for seed in range(20):
        toy = boundaries.make_toy(seed)
        for mode, values in right.items():
            values.append(boundaries.accuracy(toy, boundaries.learn(toy, mode)))
    for mode, wanted in boundaries.DRAWS.items():
        assert abs(100 * np.mean(right[mode]) - wanted) <= 1
    above = sum(s > i for s, i in zip(right["selective"], right["ignore"], strict=True))
    assert abs(above - boundaries.ABOVE_IGNORE) <= 2  # rounding differs between machines


def test_methods_look_different_and_the_papers_three_always_the_same() -> None:
    found = looks(["a", "ignore", "negative", "b", "csl"])
    assert len({(look.colour, look.marker) for look in found.values()}) == 5
    assert found["csl"] == looks(["csl"])["csl"]


def test_a_figure_in_the_page_takes_its_colours_and_has_ids_of_its_own(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    with studio.style("one"):
        draft = studio.draft()
        draft.axes.plot([1, 2], [1, 2], label="</svg><script>1</script> $x$ ]]>")
        draft.axes.legend()
        svg = studio.save(draft, "one", ("x",), [(1,)])
    assert "currentColor" in svg
    assert "DejaVu" not in svg
    assert "http" not in svg
    ids = re.findall(r'id="([^"]+)"', svg)
    assert all(each.startswith("one-") for each in ids)
    assert len(set(ids)) == len(ids)
    assert "<script>" not in svg
    texts = [each.text for each in ElementTree.fromstring(svg).iter("text")]
    assert "</svg><script>1</script> $x$ ]]>" in texts
    file = (tmp_path / "one.svg").read_text()
    assert for_page(file, "two") == svg.replace("one-", "two-")


# The gallery


def test_the_gallery_says_what_the_loss_ignored_and_why(compared: Path) -> None:
    material = read_material(compared)
    cell = main_cell(material)
    assert cell is not None
    sample = score_sample(material, cell)
    unknown = sample.states == 0
    logits = np.where(unknown, sample.logits, -np.inf)
    top = np.sort(logits, axis=1)[:, -2][:, None]  # top_k = 2
    assert (sample.likely == (unknown & (logits >= top))).all()
    assert cell.prior is not None
    values = cell.prior.align(sample.store.classes).numpy()
    assert (sample.frequent == (unknown & (values > np.sort(values)[-4]))).all()  # top_n = 3
    assert sample.truth is not None
    known = sample.states != 0
    assert (sample.truth[known] == sample.states[known]).all()
    gallery = make_gallery(material, cell, 5)
    assert len(gallery.cards) == 5
    assert sum(group.labels for group in gallery.groups) == unknown.sum()
    really = sum(group.present or 0 for group in gallery.groups)
    assert really == (unknown & (sample.truth > 0)).sum()
    for card in gallery.cards:
        assert card.image.startswith("data:image/jpeg;base64,")
        assert max(card.width, card.height) <= 192
        assert {r for guess in card.ignored for r in guess.reasons} <= {"likelihood", "prior"}
        assert all(guess.reasons and guess.right is not None for guess in card.ignored)


def test_the_gallery_shows_many_classes(compared: Path) -> None:
    material = read_material(compared)
    cell = main_cell(material)
    assert cell is not None
    cards = make_gallery(material, cell, 12).cards
    assert len({card.image_id for card in cards}) == 12
    assert len({name for card in cards for name in card.present}) >= 12


# A run


def test_a_run_reports_both_stages(run: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    path = write_report(run, out=tmp_path / "r.html", gallery=4, say=heard.append)
    text = path.read_text()
    summary = read(text, "summary")
    result = json.loads((run / "result.json").read_text())
    assert f"The model reaches a validation mAP(C) of {100 * result['map_c']:.1f}" in summary
    assert "The first stage, which ignores unknown labels" in summary
    assert "First stage (Ignore)" in read(text, "methods")
    assert "Threshold" in read(text, "classes")
    assert "Probably missing" in read(text, "gallery")
    assert "partlabel train" in read(text, "details")
    assert "really present" not in read(text, "gallery")  # nobody knows
    assert not [line for line in heard if line.startswith("not in the report")]


def test_the_table_of_a_run_is_its_files(run: Path) -> None:
    material = read_material(run)
    labels = read_labels(material, material.cells[0])
    lines = class_lines(material, material.cells[0], labels)
    prior = Prior.read(run / "prior.csv")
    counts = labels.store.counts()
    for i, line in enumerate(lines):
        assert line.positives == counts.positives[i]
        assert line.annotated == counts.positives[i] / len(labels.store)
        assert line.prior == prior.classes[line.class_id].prior
        assert set(line.aps) == {"selective", "stage1"}
        assert 0 < line.threshold < 1


def test_an_unfinished_run_is_reported_and_says_so(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path)
    for name in ("result.json", "classes.csv", "thresholds.csv", "predictions.parquet"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    with (folder / "metrics.jsonl").open("a") as log:
        log.write('{"kind": "eval", "st')  # torn by a kill
    text = write_report(folder).read_text()
    summary = read(text, "summary")
    assert "It is still in training." in summary
    assert "The final numbers : the run is not finished; it has come to step 12" in summary
    assert "The gallery : Selective loss: has no checkpoint (any more)" in summary
    assert "curves-map" in text


DAMAGE: dict[str, str] = {
    "config.toml": "The settings",
    "environment.json": "The environment",
    "metrics.jsonl": "Training curves",
    "result.json": "The result",
    "classes.csv": "Average precision per class",
    "prior.csv": "The estimated prior",
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("how", ["garbage", "gone", "empty"])
def test_a_damaged_file_is_a_gap(run: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = copied(run, tmp_path)
    if how == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(b"\xff\xfe\x00[[[,,{\n\x00" * 3 if how == "garbage" else b"")
    material = read_material(folder)
    silent = name == "metrics.jsonl" and how != "gone"  # no line in it is good, and that is all
    wanted = "The final numbers" if (name, how) == ("result.json", "gone") else DAMAGE[name]
    if (name, how) == ("prior.csv", "gone"):
        return  # said when the page is put together: some losses have none
    assert silent or any(gap.what.startswith(wanted) for gap in material.gaps), material.gaps


def test_a_folder_where_everything_is_damaged_still_gives_a_page(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path)
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\x00\xff{{{")
    context = assemble(read_material(folder), prepared(folder / "r.html"), gallery=4, say=print)
    text = render(context)
    assert read(text, "summary").count(":") >= 6
    assert "There are no results" not in text or "boundaries" in text


def test_images_that_are_gone_are_a_gap(run: Path, tmp_path: Path) -> None:
    folder = copied(run.parent, tmp_path)
    config = Config.read(folder / "run" / "config.toml").to_dict()
    config["images"]["root"] = str(tmp_path / "nowhere")
    Config.from_dict(config).write(folder / "run" / "config.toml")
    material = read_material(folder / "run")
    cell = main_cell(material)
    assert cell is not None
    with material.gaps.noting("The gallery"):
        make_gallery(material, cell, 4)
    assert [gap.what for gap in material.gaps] == ["The gallery"]
    assert "nowhere" in material.gaps[0].why


# A comparison that is not whole


def test_a_comparison_says_what_is_missing(compared: Path, tmp_path: Path) -> None:
    folder = copied(compared, tmp_path)
    lines = (folder / "results.csv").read_text().splitlines()
    rows = [line for line in lines if ",negative," not in line or "fpc:8" not in line]
    rows[3] = rows[3][:20]  # cut short
    (folder / "results.csv").write_text("\n".join(rows) + "\n")
    (folder / "per_class" / "0000000000000000.csv").unlink()
    (folder / "failed.csv").write_text(
        "key,method,scheme,seed,error\nab,negative,fpc:8,0,the loss is not finite\n"
    )
    gaps = {gap.what: gap.why for gap in read_material(folder).gaps}
    assert gaps["Some results"] == "1 row of results.csv cannot be read"
    assert gaps["3 of 32 trainings"].startswith("not finished or failed: negative, fpc:4")
    assert gaps["A training that failed: negative, fpc:8, seed 0"] == "the loss is not finite"
    assert any(what.startswith("Average precision per class of Ignore (CE)") for what in gaps)


def test_a_comparison_of_another_version_is_reported_as_far_as_it_goes(
    compared: Path, tmp_path: Path
) -> None:
    folder = copied(compared, tmp_path)
    (folder / "results.csv").write_text("when,what\n1,2\n")
    material = read_material(folder)
    assert not material.cells
    assert any("has no column key" in gap.why for gap in material.gaps)
    context = assemble(material, prepared(folder / "r.html"), gallery=4, say=print)
    assert "There are no results yet" in render(context)


def test_a_comparison_without_its_run_folders_still_has_tables_and_figures(
    compared: Path, tmp_path: Path
) -> None:
    folder = copied(compared, tmp_path)
    shutil.rmtree(folder / "runs")
    material = read_material(folder)
    cell = main_cell(material)
    lines = class_lines(material, cell, None)
    assert len(lines) == 20
    assert all(math.isfinite(line.truth) and line.aps for line in lines)


def test_a_run_folder_is_known_by_its_key(compared: Path, tmp_path: Path) -> None:
    folder = copied(compared, tmp_path)
    rows = read_results(folder)
    taken = run_folder(folder, "ignore", "fpc:4", 0)
    (taken / "cell.json").write_text('{"key": "feed"}')  # used again for other settings
    renamed = [replace(row, method="ours") if row.method == "csl" else row for row in rows]
    write_results(folder / "results.csv", renamed)
    material = read_material(folder)
    first = {c.method: c for c in material.of("fpc:4") if c.seed == 0}
    assert first["ignore"].folder is None
    assert not first["ignore"].log
    assert first["ours"].folder == run_folder(folder, "csl", "fpc:4", 0)
    gaps = {gap.what: gap.why for gap in material.gaps}
    wanted = "the run folder has another run by now: Ignore (CE), fpc:4, seed 0"
    assert gaps["Curves and images of 1 training"] == wanted


def test_rows_of_other_versions_and_devices_are_a_warning() -> None:
    material = material_of({"ignore": [0.6, 0.6], "csl": [0.7]})
    assert mixed(material) == []
    for cell, version, device in zip(
        material.cells, ("0.5.0", "0.6.0", "0.6.0"), ("cpu", "cpu", "H200"), strict=True
    ):
        cell.version, cell.device = version, device
    versions, devices = mixed(material)
    assert "different versions of partlabel, 0.5.0 (1 row) and 0.6.0 (2 rows)" in versions
    assert "different devices, H200 (1 row) and cpu (2 rows)" in devices


def test_a_comparison_that_has_only_begun_names_and_draws_what_has(
    compared: Path, tmp_path: Path
) -> None:
    folder = copied(compared, tmp_path)
    rows = [row for row in read_results(folder) if row.scheme == "fpc:4" and row.seed == 0]
    write_results(folder / "results.csv", [])
    columns = ("key", "method", "title", "scheme", "seed")
    cells = [[getattr(row, name) for name in columns] for row in rows]
    write_rows(folder / "cells.csv", columns, [*cells, ["beef", "negative", "N", "fpc:4", 1]])
    material = read_material(folder)
    assert [c.method for c in material.cells if not c.finished] == [row.method for row in rows]
    gaps = {gap.what: gap.why for gap in material.gaps}
    assert gaps["The result of Ignore (CE), fpc:4, seed 0"].endswith("has come to step 40")
    assert "32 of 32 trainings" in gaps
    assert "The environment" not in gaps
    page = render(assemble(material, prepared(folder / "r.html"), gallery=0, say=print))
    assert "No training is finished yet; begun: Ignore (CE) (Fixed per class" in read(
        page, "summary"
    )
    assert "Validation over epochs" in read(page, "training")
    shutil.rmtree(folder / "runs")
    gaps = {gap.what: gap.why for gap in read_material(folder).gaps}
    assert gaps["The environment"] == "no training is finished yet"


# What is refused


def test_a_folder_that_may_not_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UsageError, match=r"compare.toml: cannot be read \(Permission denied\); "):
        read_material(tmp_path)


def test_what_cannot_be_reported_is_one_line(tmp_path: Path, compared: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for folder, out, wanted in (
        (tmp_path / "nowhere", None, "there is no such folder"),
        (tmp_path / "file", None, "is a file"),
        (tmp_path / "empty", None, "has nothing to report"),
        (compared, tmp_path, "is a folder; name a file"),
        (
            compared,
            tmp_path / "file" / "r.html",
            "cannot be written (Not a directory); name another",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(wanted)) as caught:
            write_report(folder, out=out)
        assert "\n" not in str(caught.value)


def test_a_read_only_folder_names_the_way_out(
    compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: Any, **more: Any) -> None:
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match=r"Read-only file system\); name another place with --out"):
        write_report(compared)


def test_the_command_prints_the_page_and_what_is_missing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(run, tmp_path)
    (folder / "environment.json").unlink()
    report_command(folder, out=tmp_path / "page.html", gallery=False)
    printed = capsys.readouterr()
    assert f"{tmp_path / 'page.html'} (" in printed.out
    assert "not in the report: The environment: environment.json: is not there" in printed.err


# Hostile names


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = make_compare(
        tmp_path, names=HOSTILE, methods={"ignore": HOSTILE[0], "csl": HOSTILE[1]}, seeds=(0,)
    )
    text = write_report(folder, gallery=4).read_text(encoding="utf-8")
    found = Page(text)
    assert found.tags.count("script") == 1
    assert not {"img", "b", "iframe"} & set(found.tags) - {"img"}
    assert found.tags.count("img") == 4
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    for name in HOSTILE:
        assert plain(name) in found.text or " ".join(plain(name).split()) in found.text
    assert "{{" in found.text  # a template in a name is not filled in
    for path in (folder / "figures").glob("*.svg"):
        names = {each.tag.rpartition("}")[2] for each in ElementTree.parse(path).iter()}
        assert "script" not in names
    assert all(re.fullmatch(r"[\w=.-]+", path.name) for path in (folder / "figures").iterdir())


@pytest.mark.slow
def test_a_large_vocabulary_makes_a_page_that_opens(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        ClassLine(class_id=f"/m/{i:06x}", name=f"Class number {i}", positives=i, negatives=2 * i,
                  annotated=i / 1e5, prior=float(rng.random()), aps={"csl": float(rng.random())})
        for i in range(9_605)
    ]  # fmt: skip
    material = material_of({"csl": [0.5]})
    context = assemble(material, prepared(tmp_path / "r.html"), gallery=0, say=print)
    context["classes"] = class_view(material, lines, tmp_path)
    assert len(render(context)) < 3_000_000
