"""Comparisons: methods x schemes x seeds from one file, on a data set of a few dozen pictures."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from partlabel import ClassTable, LabelStore
from partlabel.commands.compare import compare, show_comparison
from partlabel.compare import METHODS, Comparison, Row, read_results
from partlabel.compare.data import copy_per_class, read_per_class
from partlabel.compare.plan import CompareSettings, SweepSettings
from partlabel.compare.results import write_results
from partlabel.compare.schemes import Scheme, fingerprint
from partlabel.compare.statistics import differences, student_t, summarise
from partlabel.config import Config
from partlabel.config.schema import keys_of
from partlabel.errors import ConfigError, DataError, PartlabelError, StoreError, UsageError
from partlabel.prior import Prior
from partlabel.training.loop import Stopped
from partlabel.training.processes import processes
from partlabel.training.stages import Run
from partlabel.training.watcher import Silent
from tests.conftest import store_from
from tests.runs import CLASSES, make_data, settings

ROOT = Path(__file__).parent.parent
READY = [
    ROOT / "runs" / "demo.toml",
    *sorted((ROOT / "runs" / "compare").glob("*.toml")),
    *sorted((ROOT / "runs" / "coco-mini").glob("*.toml")),
]


class Heard(Silent):
    """Keeps what a comparison says; asks it to stop after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.steps = 0
        self.stop_after = stop_after

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        self.steps += 1

    def stopping(self) -> bool:
        return self.stop_after is not None and self.steps >= self.stop_after

    def cells(self) -> list[str]:
        """The cells that were begun."""
        return [text.split(": ", 1)[1] for text in self.said if re.match(r"\d+ of \d+: ", text)]


def complete_data(folder: Path, **options: Any) -> Path:
    """The tiny data set with complete labels, in the splits train and val."""
    path = make_data(folder, known=1.0, **options)
    some = LabelStore.open(path)
    rows = np.arange(len(some))
    ids = some.images.ids.tolist()
    whole = store_from(
        some.dense(rows), complete=True, ids=ids, paths=ids, classes=CLASSES,
        splits=some.images.splits(rows),
    )  # fmt: skip
    whole.origin = some.origin
    return whole.save(path, overwrite=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    complete_data(folder, images=24, val=12)
    return folder


def written(folder: Path, where: Path, compare: dict[str, Any], **sections: Any) -> Path:
    """A compare file for the data that is there; its results go to ``folder/out``."""
    values = settings(where, **{"train": {"epochs": 1}, **sections})
    path = folder / "file.toml"
    path.write_text(tomli_w.dumps({**values, "out": str(folder / "out"), "compare": compare}))
    return path


def made(folder: Path, where: Path, compare: dict[str, Any], **sections: Any) -> Comparison:
    return Comparison.read(written(folder, where, compare, **sections))


# --- what methods are ----------------------------------------------------------------------------

PARAMS = {"top_k": 3, "gamma_neg": 3, "gamma_unknown": 4, "reduction": "sum"}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Comparison]:
    """Reads a compare file for data that is not there."""

    def make(compare: dict[str, Any], sets: tuple[str, ...] = (), **sections: Any) -> Comparison:
        return Comparison.read(written(tmp_path, tmp_path / "none", compare, **sections), sets)

    return make


def test_every_method_has_settings_that_its_loss_takes(read: Callable[..., Comparison]) -> None:
    some = {"methods": list(METHODS)}
    plan = read(some, loss={"params": PARAMS}, train={"epochs": 9}).plan
    assert list(plan.methods) == list(METHODS)
    for name, config in plan.configs.items():
        assert config.loss.name == METHODS[name].loss
        assert config.loss.params["reduction"] == "sum"
        assert plan.methods[name].title == METHODS[name].title
    assert {METHODS[name].loss for name in METHODS} >= {"ce", "selective", "hill", "two_way"}


def test_the_selective_family_keeps_the_settings_of_the_file(
    read: Callable[..., Comparison],
) -> None:
    names = ["likelihood", "prior", "csl", "csl_soft", "csl_online", "pasl_negative", "asl", "hill"]
    configs = read({"methods": names}, loss={"params": PARAMS}).plan.configs
    gammas = {"gamma_neg": 3, "gamma_unknown": 4, "reduction": "sum"}
    assert configs["csl"].loss.params == PARAMS
    assert configs["likelihood"].loss.params == PARAMS
    assert configs["prior"].loss.params == {**PARAMS, "top_k": 0}
    assert configs["csl_soft"].loss.params == {**PARAMS, "prior_mode": "soft"}
    assert configs["pasl_negative"].loss.params == gammas
    assert configs["asl"].loss.params == {"reduction": "sum", "unknown": "negative"}
    assert configs["hill"].loss.params == {"reduction": "sum"}
    sources = {name: config.prior.source for name, config in configs.items()}
    assert sources == {
        "likelihood": "none", "prior": "estimate", "csl": "estimate", "csl_soft": "estimate",
        "csl_online": "online", "pasl_negative": "none", "asl": "none", "hill": "none",
    }  # fmt: skip
    assert configs["csl"].prior.top_n == configs["csl_online"].prior.top_n == 1
    assert configs["hill"].prior.top_n is None


@pytest.mark.parametrize(
    ("given", "source"), [("none", "estimate"), ("online", "estimate"), ("my.csv", "my.csv")]
)
def test_csl_takes_a_prior_of_the_file_or_estimates_one(
    read: Callable[..., Comparison], given: str, source: str
) -> None:
    configs = read({"methods": ["csl", "likelihood"]}, prior={"source": given}).plan.configs
    assert configs["csl"].prior.source == source
    assert configs["likelihood"].prior.source == "none"


def test_the_settings_of_the_same_loss_are_kept(read: Callable[..., Comparison]) -> None:
    loss = {"name": "hill", "params": {"gamma": 1.5}}
    configs = read({"methods": ["hill", "csl", "ignore"]}, loss=loss).plan.configs
    assert configs["hill"].loss.params == {"gamma": 1.5}
    assert configs["csl"].loss.params == {}
    assert configs["ignore"].loss.params == {"unknown": "ignore"}


def test_a_preset_goes_for_every_method(read: Callable[..., Comparison]) -> None:
    compared = {"methods": ["csl", "ignore"]}
    configs = read(compared, sets=("train.preset=reference",)).plan.configs
    assert configs["csl"].loss.params == {"top_k": 1, "scope": "batch", "reduction": "sum"}
    assert configs["ignore"].loss.params == {"unknown": "ignore", "reduction": "sum"}


def test_a_definition_changes_a_method_or_the_file(read: Callable[..., Comparison]) -> None:
    define = {
        "big": {"based_on": "csl", "title": "CSL, K = 9", "loss": {"params": {"top_k": 9}}},
        "bigger": {"based_on": "big", "train": {"epochs": 7}},
        "own": {"optim": {"lr": 0.5}},
        "other": {"based_on": "csl", "loss": {"name": "splc", "params": {"start": 2}}},
    }
    plan = read({"methods": [*define, "csl"], "define": define}).plan
    assert [plan.methods[name].title for name in define] == [
        "CSL, K = 9", "bigger", "own", "other",
    ]  # fmt: skip
    configs = plan.configs
    assert configs["csl"].loss.params["top_k"] == 1
    assert configs["big"].loss.params["top_k"] == configs["bigger"].loss.params["top_k"] == 9
    assert (configs["big"].train.epochs, configs["bigger"].train.epochs) == (1, 7)
    assert configs["own"].optim.lr == 0.5
    assert configs["own"].loss == configs["csl"].loss
    assert configs["other"].loss.name == "splc"
    assert configs["other"].loss.params == {"start": 2}
    assert configs["other"].prior.source == "none"


def test_a_sweep_makes_methods_and_an_axis(read: Callable[..., Comparison]) -> None:
    k = {"based_on": "csl", "key": "loss.params.top_k", "values": [0, 5], "title": "K"}
    half = {"key": "optim.cycle_momentum", "values": [True, False]}
    plan = read({"methods": ["ignore"], "sweep": {"k": k, "half": half}}).plan
    assert list(plan.methods) == ["ignore", "k=0", "k=5", "half=true", "half=false"]
    assert [plan.configs[f"k={value}"].loss.params["top_k"] for value in (0, 5)] == [0, 5]
    assert not plan.configs["half=false"].optim.cycle_momentum
    first, second = plan.sweeps
    assert (first.title, first.key, first.values) == ("K", "loss.params.top_k", (0, 5))
    assert first.methods == ("k=0", "k=5")
    assert second.title == "optim.cycle_momentum"
    assert read({"sweep": {"k": k}}).plan.baseline == "k=0"


# --- mistakes in the file ------------------------------------------------------------------------

SWEEP = {"key": "loss.params.top_k", "values": [0, 5]}


@pytest.mark.parametrize(
    ("compared", "message"),
    [
        ({"methods": ["ignor"]}, r"\[compare\] methods: no such method as 'ignor'; did you mean"),
        ({"methods": ["what"]}, "no such method as 'what'; there is: ignore, negative"),
        ({"methods": []}, r"\[compare\] methods: must name at least one, got none"),
        ({"methods": "csl"}, r'methods: must be a list, .* got \'csl\'; write \["csl"\]'),
        ({"methods": ["csl", "csl"]}, "methods: 'csl' is there twice"),
        ({"schemes": ["ffpc:3"]}, r"schemes: no such scheme as 'ffpc:3'; did you mean fpc\?"),
        ({"schemes": ["fpc:0"]}, "schemes: must be fpc:N, .* got 'fpc:0'"),
        ({"schemes": ["fpc"]}, "schemes: must be fpc:N, .* got 'fpc'"),
        ({"schemes": ["rpa:1"]}, "schemes: must be rpa:P, .* got 'rpa:1'"),
        ({"schemes": ["rpa:nan"]}, "schemes: must be rpa:P, .* got 'rpa:nan'"),
        ({"schemes": ["given:3"]}, "schemes: given takes no number"),
        ({"schemes": ["rpa:0.5", "rpa:.50"]}, "schemes: a scheme is there twice"),
        ({"seeds": []}, "seeds: must name at least one"),
        ({"seeds": [-1]}, "seeds: must be a whole number of at least 0, got -1"),
        ({"seeds": [0, 0]}, "seeds: 0 is there twice"),
        ({"baseline": "ignore"}, "baseline: 'ignore' is not among the methods; there is: csl"),
        ({"frequent": 0}, "frequent: must be a whole number of at least 1"),
        ({"keep": "last"}, "keep: must be one of all, first, none, got 'last'"),
        ({"sheme": []}, r"\[compare\] sheme: no such key; did you mean schemes\?"),
        ({"define": {"x": {"based_on": "cls"}}}, r"\[compare.define.x\] based_on: no such method"),
        ({"define": {"x": {"based_on": "x"}}}, r"based_on: is based on itself \(x -> x\)"),
        ({"define": {"x": {"loos": {}}}}, r"\[compare.define.x\] loos: no such section here; did"),
        ({"define": {"x": {"data": {"train": "a"}}}}, r"\[compare.define.x\] data: no such sect"),
        ({"define": {"x": {"train": {"seed": 1}}}}, r"seed: seeds are in \[compare\] seeds"),
        ({"define": {"x": {"train": {"epocs": 1}}}},
         r"file.toml \[compare.define.x.train\] epocs: no such key; did you mean epochs"),
        ({"define": {"x": {"train": {"epochs": "3"}}}},
         r"\[compare.define.x.train\] epochs: must be a whole number .* leave out the quotes"),
        ({"define": {"x": {"loss": {"params": {"gama": 1}}}}}, "has no setting 'gama'"),
        ({"define": {"x": 3}}, r"must be a section \[compare.define.x\]"),
        ({"define": {"../x": {}}}, "must be a name of letters"),
        ({"define": {"stage1": {}}}, "and not stage1"),
        ({"methods": ["csl", "CSL"], "define": {"CSL": {}}}, "differ in capitals alone"),
        ({"sweep": {"k": {**SWEEP, "values": []}}}, r"\[compare.sweep.k\] values: must be a list"),
        ({"sweep": {"k": {**SWEEP, "values": [1, 1]}}}, "values: a value is there twice"),
        ({"sweep": {"k": {**SWEEP, "key": "top_k"}}}, r"key: must be SECTION.KEY, as in loss"),
        ({"sweep": {"k": {**SWEEP, "key": "train.epocs"}}}, "values: no such key; did you mean"),
        ({"sweep": {"k": {**SWEEP, "values": ["a"]}}}, "top_k must be"),
        ({"sweep": {"k": {"values": [1]}}}, r"\[compare.sweep.k\] key: is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_its_place(
    read: Callable[..., Comparison], compared: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read({"methods": ["csl"], **compared})
    assert "\n" not in str(caught.value)


def test_what_options_say_goes_over_the_file(read: Callable[..., Comparison]) -> None:
    compared = {"methods": ["ignore", "csl"], "define": {"x": {"train": {"epochs": 9}}}}
    sets = ("train.epochs=4", "compare.seeds=[3, 4]", 'compare.methods=["x", "csl"]')
    plan = read(compared, sets=sets).plan
    assert plan.settings.seeds == (3, 4)
    assert {name: config.train.epochs for name, config in plan.configs.items()} == {
        "x": 9, "csl": 4,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"--set compare.seeds: must be a whole number"):
        read(compared, sets=('compare.seeds=["a"]',))
    with pytest.raises(ConfigError, match=r"--set train.epochs: must be a whole number"):
        read(compared, sets=('train.epochs="a"',))
    with pytest.raises(ConfigError, match=r"--set train.seed: seeds are in \[compare\] seeds"):
        read(compared, sets=("train.seed=1",))


def test_a_run_file_is_no_compare_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(settings(tmp_path)))
    with pytest.raises(ConfigError, match=r"run.toml \[compare\]: is missing: say what to compare"):
        Comparison.read(path)
    path.write_text('compare = 3\n[data]\ntrain = "a"')
    with pytest.raises(ConfigError, match="must be a section"):
        Comparison.read(path)


def test_schemes_need_complete_labels_and_something_to_evaluate_on(tmp_path: Path) -> None:
    make_data(tmp_path, images=8, val=4)
    compared = {"methods": ["ignore"], "schemes": ["given", "fpc:2"]}
    with pytest.raises(ConfigError, match=r"schemes: fpc:2 needs complete labels.*say given"):
        made(tmp_path, tmp_path, compared).cells  # noqa: B018
    assert len(made(tmp_path, tmp_path, {"methods": ["ignore"]}).cells) == 1
    store = LabelStore.open(tmp_path / "data.labels")
    store.split("train").save(tmp_path / "data.labels", overwrite=True)
    with pytest.raises(ConfigError, match=r"\[data\] val: there is nothing to compare on"):
        made(tmp_path, tmp_path, {"methods": ["ignore"]}).cells  # noqa: B018


def test_an_unknown_class_and_a_missing_prior_show_before_anything_runs(
    tmp_path: Path, data: Path
) -> None:
    compared = {"methods": ["csl"]}
    with pytest.raises(ConfigError, match=r"\[eval\] classes: no class 'gren'; did you mean gr"):
        made(tmp_path, data, compared, eval={"classes": ["gren"]}).run()
    with pytest.raises(DataError, match=r"my.csv: cannot be read \(No such file"):
        made(tmp_path, data, compared, prior={"source": str(tmp_path / "my.csv")}).run()
    assert not (tmp_path / "out").exists()


# --- schemes -------------------------------------------------------------------------------------


def test_schemes_leave_what_they_say(data: Path) -> None:
    store = LabelStore.open(data / "data.labels").split("train")
    rows = np.arange(len(store))

    def left(text: str) -> np.ndarray:
        return Scheme.read(text).applied(store, 0).dense(rows)

    whole = store.dense(rows)
    assert (left("given") == whole).all()
    assert ((left("fpc:3") == 1).sum(0) == 3).all()
    assert ((left("fpc:3") == -1).sum(0) == 3).all()
    assert 0.2 < (left("rpa:0.7") != 0).mean() < 0.4
    assert ((left("single-positive") == 1).sum(1) <= 1).all()
    share = (left("drop-positives:0.8") == 1).sum() / (whole == 1).sum()
    assert 0.05 < share < 0.4


def test_labels_are_drawn_once_and_again_when_the_data_changed(tmp_path: Path, data: Path) -> None:
    store = LabelStore.open(data / "data.labels").split("train")
    scheme, path = Scheme.read("fpc:3"), tmp_path / "a.labels"
    scheme.saved(store, 0, path)
    before = (path / "codes.npy").stat().st_ino
    scheme.saved(store, 0, path)
    assert (path / "codes.npy").stat().st_ino == before
    less = store.select(np.arange(12))
    scheme.saved(less, 0, path)
    assert len(LabelStore.open(path)) == 12
    assert fingerprint(less) != fingerprint(store)


# --- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 120, 1001])
@pytest.mark.parametrize("probability", [0.5, 0.95, 0.999])
def test_quantiles_of_student_s_t(freedom: int, probability: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.t.ppf((1 + probability) / 2, freedom)
    assert student_t(probability, freedom) == pytest.approx(expected, rel=1e-9)


def row(method: str, seed: int, map_c: float, **more: Any) -> Row:
    given = {"key": f"{method}{seed}", "title": method.title(), "scheme": "given", **more}
    return Row(method=method, seed=seed, map_c=map_c, **given)


def test_mean_spread_and_paired_differences() -> None:
    rows = [
        row("a", 0, 0.5), row("a", 1, 0.6), row("a", 2, 0.7),
        row("b", 0, 0.6), row("b", 1, 0.8), row("b", 2, 0.7), row("b", 3, 0.1),
        row("c", 0, 0.4, ap={"x": 0.25}), row("a", 0, 0.1, scheme="fpc:1"),
    ]  # fmt: skip
    found = {(each.scheme, each.method, each.number): each for each in summarise(rows)}
    a = found["given", "a", "map_c"]
    assert (a.n, a.title) == (3, "A")
    assert (a.mean, a.sd) == (pytest.approx(0.6), pytest.approx(0.1))
    assert found["given", "c", "ap:x"].mean == 0.25
    assert math.isnan(found["given", "c", "map_c"].sd)
    assert ("given", "c", "map_o") not in found  # NaN
    assert found["fpc:1", "a", "map_c"].mean == 0.1
    apart = {(each.method, each.number): each for each in differences(rows, "a")}
    b = apart["b", "map_c"]
    assert (b.n, b.baseline, b.mean) == (3, "a", pytest.approx(0.1))
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    assert (b.low, b.high) == (pytest.approx(0.1 - half), pytest.approx(0.1 + half))
    c = apart["c", "map_c"]
    assert (c.n, c.mean) == (1, pytest.approx(-0.1))
    assert math.isnan(c.low)
    assert math.isnan(c.high)
    assert ("a", "map_c") not in apart
    assert ("c", "ap:x") not in apart  # the baseline has none


def test_a_table_of_results_comes_back_as_it_was(tmp_path: Path) -> None:
    odd = row("x", 1, 0.25, title='a "b", ü\nc', ap={"per,son": 0.5}, n_valid=4, device="H200")
    rows = [odd, row("y", 2, 0.125)]
    write_results(tmp_path / "results.csv", rows)
    first, second = read_results(tmp_path)
    assert (first.title, first.ap, first.n_valid) == (odd.title, odd.ap, 4)
    assert (first.map_c, second.map_c, second.seed) == (0.25, 0.125, 2)
    assert math.isnan(second.ap["per,son"])
    assert math.isnan(first.map_o)
    assert read_results(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("n_valid", "valid"), "line 1: has no column n_valid"),
        (lambda text: text.replace("0.25", "high"), "line 2 map_c: must be a number, got 'high'"),
        (lambda text: text.rsplit(",", 3)[0], "line 2: is cut short"),
        (lambda text: "", "has no column key"),
    ],
)
def test_a_table_of_another_kind_is_refused(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "results.csv"
    write_results(path, [row("x", 1, 0.25)])
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message) as caught:
        read_results(path)
    assert str(path) in str(caught.value)


# --- running -------------------------------------------------------------------------------------

COMPARE = {
    "methods": ["csl", "ignore", "negative"],
    "schemes": ["fpc:6", "complete"],
    "seeds": [0, 1],
    "baseline": "ignore",
    "frequent": 2,
    "sweep": {"k": {"based_on": "csl", "key": "loss.params.top_k", "values": [0, 1]}},
}


class Done:
    """A comparison that was run, and what it said."""

    def __init__(self, comparison: Comparison, heard: Heard) -> None:
        self.comparison, self.heard = comparison, heard
        self.folder = comparison.folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Done:
    folder = tmp_path_factory.mktemp("compared")
    more = {"images": {"device_resident": True}, "eval": {"classes": ["red"]}}
    comparison, heard = made(folder, data, COMPARE, **more), Heard()
    assert comparison.run(heard) == []
    return Done(comparison, heard)


def copied(done: Done, folder: Path) -> Comparison:
    """The same comparison in another folder, with what was done."""
    shutil.copytree(done.folder, folder / "out")
    path = done.folder.parent / "file.toml"
    return Comparison.read(path, out=folder / "out")


def test_there_is_a_row_for_each_method_scheme_and_seed(done: Done) -> None:
    rows = done.comparison.results()
    assert [(row.scheme, row.method, row.seed) for row in rows] == [
        (scheme, method, seed)
        for scheme in ("fpc:6", "complete")
        for method in ("csl", "ignore", "negative", "k=0", "k=1")
        for seed in (0, 1)
    ]
    assert {(row.key, row.method) for row in read_results(done.folder)} == {
        (row.key, row.method) for row in rows
    }
    for row in rows:
        assert 0 < row.map_c <= 1
        assert (row.images, row.steps, row.n_valid, row.device) == (24, 3, 5, "cpu")
        assert row.seconds > 0
        assert list(row.ap) == ["red"]
        assert row.true_sum == pytest.approx(sum(done.comparison.data.truth.values()))
        assert math.isnan(row.prior_sum) == (row.method in ("ignore", "negative"))


def test_equal_settings_are_trained_once(done: Done) -> None:
    rows = {(row.scheme, row.method, row.seed): row for row in done.comparison.results()}
    csl, same = rows["fpc:6", "csl", 1], rows["fpc:6", "k=1", 1]
    assert csl.key == same.key
    assert csl.map_c == same.map_c
    assert not (done.folder / "runs" / "k=1").exists()
    begun = done.heard.cells()
    assert len(begun) == 4 * 4
    assert begun[0] == "ignore, fpc:6, seed 0"  # the first stage of those that follow


def test_the_ignore_run_is_the_first_stage(done: Done) -> None:
    assert not (done.folder / "runs" / "stage1").exists()
    assert not any(text.startswith("first stage") for text in done.heard.said)
    assert sum("estimating the prior" in text for text in done.heard.said) == 4


def test_images_are_decoded_once(done: Done) -> None:
    decoded = [text for text in done.heard.said if text.startswith("decoding")]
    assert len(decoded) == 2  # those to train on, and those to evaluate on


def test_a_cell_is_what_partlabel_train_gives(done: Done, tmp_path: Path) -> None:
    """Neither the shared first stage nor shared images change a digit."""
    cell = next(cell for cell in done.comparison.cells if cell.method == "csl")
    config = cell.config.replaced(prior={"source": "estimate"}, out=str(tmp_path / "run"))
    with processes("cpu") as here:
        result = Run(config, processes=here, watcher=Silent())()
    row = next(row for row in done.comparison.results() if row.key == cell.key)
    assert row.map_c == pytest.approx(result["map_c"], abs=1e-9)
    assert row.map_o == pytest.approx(result["map_o"], abs=1e-9)
    ours, theirs = (
        Prior.read(path).values
        for path in (done.folder / "priors" / f"{cell.key}.csv", tmp_path / "run" / "prior.csv")
    )
    assert ours.tolist() == theirs.tolist()


def test_what_is_written_beside(done: Done) -> None:
    folder = done.folder
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        "compare.toml", "results.csv", "cells.csv", "truth.csv", "frequent.csv", "summary.csv",
        "differences.csv", "per_class", "priors", "runs", "stores",
    }  # fmt: skip
    keys = {cell.key for cell in done.comparison.cells}
    assert {path.stem for path in (folder / "per_class").iterdir()} == keys
    header, *lines = (folder / "per_class" / f"{min(keys)}.csv").read_text().splitlines()
    assert header == "class_id,class_name,positives,negatives,ap"
    assert len(lines) == len(CLASSES)
    store = LabelStore.open(folder.parent / "out" / "stores" / "fpc-6-seed1.labels")
    assert set(store.counts().negatives.tolist()) == {6}
    truth = (folder / "truth.csv").read_text().splitlines()
    assert truth[0] == "class_id,class_name,share"
    assert len((folder / "frequent.csv").read_text().splitlines()) == 3
    again = Comparison.read(folder / "compare.toml", out=folder)
    assert [cell.key for cell in again.cells] == [cell.key for cell in done.comparison.cells]
    cells = (folder / "cells.csv").read_text().splitlines()
    assert len(cells) == 1 + len(done.comparison.cells)
    assert cells[1].endswith(",0,runs/ignore/fpc-6/seed0")


def test_frequent_classes_and_priors_are_measured(done: Done) -> None:
    comparison = done.comparison
    truth = comparison.data.truth
    assert truth is not None
    most = sorted(truth, key=lambda name: -truth[name])[:2]
    assert set(comparison.data.frequent) == set(most)
    row = next(row for row in comparison.results() if row.method == "csl")
    lines = (done.folder / "per_class" / f"{row.key}.csv").read_text().splitlines()[1:]
    ap = {line.split(",")[0]: float(line.split(",")[-1]) for line in lines}
    assert row.map_frequent == pytest.approx(sum(ap[name] for name in most) / 2, rel=1e-6)
    assert row.ap["red"] == pytest.approx(ap["red"], rel=1e-6)
    prior = Prior.read(done.folder / "priors" / f"{row.key}.csv")
    assert row.prior_sum == pytest.approx(prior.values.sum(), rel=1e-6)
    assert -1 <= row.prior_spearman <= 1


def test_checkpoints_of_the_first_seed_are_kept(done: Done) -> None:
    for cell in done.comparison.cells:
        assert (cell.folder / "checkpoints").exists() == (cell.seed == 0)
        assert (cell.folder / "result.json").is_file()
        assert (cell.folder / "metrics.jsonl").is_file()


def test_what_is_done_is_not_trained_again(done: Done, tmp_path: Path) -> None:
    again = copied(done, tmp_path)
    shutil.rmtree(tmp_path / "out" / "runs")
    heard = Heard()
    assert again.run(heard) == []
    assert heard.said == []
    assert (tmp_path / "out" / "results.csv").read_text() == (
        done.folder / "results.csv"
    ).read_text()


def test_more_methods_and_seeds_add_to_what_is_there(done: Done, tmp_path: Path) -> None:
    """The first stages are gone but for their priors, and other names mean the same settings."""
    copied(done, tmp_path)
    values = {**COMPARE, "define": {"mine": {"based_on": "csl"}}, "frequent": 1}
    values["methods"] = ["mine", "csl_soft"]
    file = done.folder.parent / "more.toml"
    sections = {"images": {"device_resident": True}, "eval": {"classes": ["red", "blue"]}}
    base = settings(Path(), train={"epochs": 1}, **sections)
    base["data"] = {"train": str(done.comparison.plan.base.data.train)}
    values.pop("baseline")
    file.write_text(tomli_w.dumps({**base, "compare": values}))
    comparison, heard = Comparison.read(file, out=tmp_path / "out"), Heard()
    assert comparison.run(heard) == []
    assert heard.cells() == [
        f"csl_soft, {scheme}, seed {seed}" for seed in (0, 1) for scheme in ("fpc:6", "complete")
    ]
    # Seed 1 has no checkpoint any more, and needs none: its prior is there.
    assert not any(text.startswith("first stage") for text in heard.said)
    found = {(row.method, row.scheme, row.seed): row for row in read_results(tmp_path / "out")}
    assert {method for method, _, _ in found} == {"mine", "csl_soft", "k=0", "k=1"}
    old = {(row.method, row.scheme, row.seed): row for row in done.comparison.results()}
    mine = found["mine", "fpc:6", 1]
    assert mine.map_c == old["csl", "fpc:6", 1].map_c
    assert list(mine.ap) == ["red", "blue"]
    assert not math.isnan(mine.ap["blue"])
    others = read_results(tmp_path / "out" / "results-other.csv")
    assert {row.method for row in others} == {"ignore", "negative"}
    assert len({row.key for row in others} & {row.key for row in found.values()}) == 0


def test_keys_are_of_what_decides_not_of_where_or_how_it_is_called(
    done: Done, tmp_path: Path, data: Path
) -> None:
    shutil.copytree(data, tmp_path / "elsewhere")
    more = {"images": {"device_resident": True, "root": str(tmp_path / "elsewhere")}}
    moved = made(tmp_path, tmp_path / "elsewhere", COMPARE, **more)
    assert [cell.key for cell in moved.cells] == [cell.key for cell in done.comparison.cells]

    def keys(compared: dict[str, Any], **sections: Any) -> set[str]:
        return {cell.key for cell in made(tmp_path, data, compared, **sections).cells}

    small = {**COMPARE, "methods": ["csl"], "schemes": ["fpc:6"], "seeds": [0]}
    small.pop("baseline")
    first = keys(small, **more)
    assert first < {cell.key for cell in done.comparison.cells}
    assert not first & keys({**small, "schemes": ["fpc:7"]}, **more)
    assert not first & keys({**small, "seeds": [2]}, **more)
    assert not first & keys(small, **more, optim={"lr": 0.25})
    assert not first & keys(small, **more, data={"val": str(data / "data.labels"),
                                                "val_split": "train"})  # fmt: skip
    assert first == keys(small, **more, eval={"classes": ["red"], "batch_size": 3})


def test_a_prior_from_a_file_counts_by_what_is_in_it(tmp_path: Path, data: Path) -> None:
    rows = [f"{name},0.{i + 1}" for i, name in enumerate(CLASSES)]
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("\n".join(["class_id,prior", *rows]))
    compared = {"methods": ["csl"]}

    def first(name: str) -> Comparison:
        return made(tmp_path, data, compared, prior={"source": str(tmp_path / name)})

    one, two = first("one.csv"), first("two.csv")
    assert one.cells[0].key == two.cells[0].key
    assert one.cells[0].first is None
    assert one.run() == []
    (row,) = one.results()
    assert row.prior_sum == pytest.approx(1.5)
    (tmp_path / "two.csv").write_text("\n".join(["class_id,prior", *rows[1:], "red,0.5"]))
    assert first("two.csv").cells[0].key != one.cells[0].key


def test_a_first_stage_that_no_method_is_serves_all(tmp_path: Path, data: Path) -> None:
    compared = {"methods": ["csl", "prior", "csl_online"], "schemes": ["fpc:6"], "keep": "all"}
    stage1 = {"source": "estimate", "top_n": 1, "stage1": {"train": {"epochs": 2}}, "sample": 16}
    comparison, heard = made(tmp_path, data, compared, prior=stage1), Heard()
    assert comparison.run(heard) == []
    assert sum(text.startswith("first stage") for text in heard.said) == 1
    (folder,) = (tmp_path / "out" / "runs" / "stage1" / "fpc-6" / "seed0").iterdir()
    assert Config.read(folder / "config.toml").train.epochs == 2
    assert json.loads((folder / "result.json").read_text())["images"] == 16
    csl, prior, online = comparison.results()
    assert csl.prior_sum == prior.prior_sum
    assert csl.key != prior.key
    assert online.prior_sum > 0  # its last prior is kept too
    for key in (csl.key, prior.key, online.key):
        assert (tmp_path / "out" / "priors" / f"{key}.csv").is_file()


@pytest.mark.parametrize("keep", ["all", "none"])
def test_checkpoints_go_when_nobody_needs_them(tmp_path: Path, data: Path, keep: str) -> None:
    compared = {"methods": ["csl"], "keep": keep, "schemes": ["given"]}
    comparison = made(tmp_path, data, compared)
    comparison.run()
    left = list((tmp_path / "out" / "runs").rglob("step-*"))
    assert len(left) == (0 if keep == "none" else 2)
    # Another prior of the same model: it is trained again where it is gone.
    heard = Heard()
    define = {"em": {"based_on": "csl", "prior": {"use": "em"}}}
    other = made(tmp_path, data, {**compared, "methods": ["csl", "em"], "define": define})
    assert other.run(heard) == []
    assert any(text.startswith("first stage") for text in heard.said) == (keep == "none")


def test_an_interrupted_comparison_goes_on(done: Done, tmp_path: Path, data: Path) -> None:
    compared = {"methods": ["ignore", "csl"], "schemes": ["fpc:6"]}
    for steps, begun in ((2, 1), (1, 1), (2, 2)):
        heard = Heard(stop_after=steps)
        with pytest.raises(Stopped):
            made(tmp_path, data, compared).run(heard)
        assert len(heard.cells()) == begun
    heard = Heard()
    comparison = made(tmp_path, data, compared)
    assert comparison.run(heard) == []
    assert "going on from step" in " ".join(heard.said)
    whole = {row.method: row for row in done.comparison.results() if row.scheme == "fpc:6"}
    for row in comparison.results():
        assert row.steps == 3
        assert (tmp_path / "out" / "per_class" / f"{row.key}.csv").is_file()
    assert len(whole) == 5


def test_a_run_of_which_only_the_row_is_missing_is_not_trained_again(
    done: Done, tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    comparison = copied(done, path)
    (path / "out" / "results.csv").unlink()
    heard = Heard()
    assert comparison.run(heard) == []
    assert heard.steps == 0
    expected = {row.key: row.map_c for row in done.comparison.results()}
    assert {row.key: row.map_c for row in comparison.results()} == expected


def test_other_settings_in_a_run_folder_are_refused_before_anything_runs(
    tmp_path: Path, data: Path
) -> None:
    compared = {"methods": ["ignore", "negative"], "keep": "none"}
    made(tmp_path, data, compared).run()
    heard = Heard()
    with pytest.raises(UsageError) as caught:
        made(tmp_path, data, compared, optim={"lr": 0.25}).run(heard)
    assert re.fullmatch(
        r".*/runs/ignore/given/seed0: has a run with other settings \(optim.lr is 0.002 there, "
        r"0.25 here\); choose another --out, or remove .*runs",
        str(caught.value),
    )
    assert heard.said == []
    assert len(read_results(tmp_path / "out")) == 2


def test_the_same_settings_on_other_data_are_another_run(tmp_path: Path) -> None:
    complete_data(tmp_path, images=24, val=12)
    compared = {"methods": ["ignore"], "schemes": ["fpc:2"]}
    made(tmp_path, tmp_path, compared).run()
    store = LabelStore.open(tmp_path / "data.labels")
    less = store.select(np.arange(1, len(store)))
    less.save(tmp_path / "data.labels", overwrite=True)
    with pytest.raises(UsageError, match=r"seed0: has a run on other data; .*remove .*runs"):
        made(tmp_path, tmp_path, compared).run()
    shutil.rmtree(tmp_path / "out" / "runs")
    assert made(tmp_path, tmp_path, compared).run() == []
    (row,) = read_results(tmp_path / "out")
    assert row.images == 23
    assert len(LabelStore.open(tmp_path / "out" / "stores" / "fpc-2-seed0.labels")) == 23


def test_a_cell_that_fails_does_not_stop_the_rest(tmp_path: Path, data: Path) -> None:
    broken = {"optim": {"lr": 1e30, "warmup": 0.0, "schedule": "constant"}}
    compared = {
        "methods": ["mad", "after", "negative"],
        "define": {
            "mad": {"based_on": "ignore", **broken},
            "after": {"based_on": "csl", **broken},
        },
    }
    comparison, heard = made(tmp_path, data, compared), Heard()
    failures = comparison.run(heard)
    assert [failure.cell.method for failure in failures] == ["mad", "after"]
    assert failures[0].error.startswith("the loss is nan at step 1")
    assert failures[1].error.startswith("its first stage failed: ")
    assert [row.method for row in comparison.results()] == ["negative"]
    header, first, second = (tmp_path / "out" / "failed.csv").read_text().splitlines()
    assert header == "key,method,scheme,seed,error"
    assert first.startswith(f"{failures[0].cell.key},mad,given,0,")
    assert second.split(",")[1] == "after"
    # What was mended is not listed any more.
    fine = made(tmp_path, data, {"methods": ["negative"]})
    assert fine.run() == []
    assert not (tmp_path / "out" / "failed.csv").exists()


def test_checkpoints_of_other_settings_that_are_not_done_stay(tmp_path: Path, data: Path) -> None:
    some = {"methods": ["ignore"], "keep": "none"}
    first = made(tmp_path, data, some)
    assert first.run() == []
    shutil.rmtree(first.folder / "runs")
    with pytest.raises(Stopped):
        made(tmp_path, data, some, train={"epochs": 2}).run(Heard(stop_after=2))
    left = sorted((first.folder / "runs").rglob("step-*"))
    assert left
    assert made(tmp_path, data, some).run() == []  # its rows come back from the table
    assert sorted((first.folder / "runs").rglob("step-*")) == left


def test_a_second_process_is_refused(tmp_path: Path, data: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    one = made(tmp_path, data, {"methods": ["ignore"]})
    one.folder.mkdir()
    with (one.folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process works on this comparison"):
            one.run()
    assert one.run() == []


def test_class_names_with_line_ends_come_through(tmp_path: Path) -> None:
    path = complete_data(tmp_path, images=24, val=12)
    store = LabelStore.open(path)
    store.images  # noqa: B018 - read before its folder is replaced
    odd = ["a\rb", "c\r\nd", "e\nf", '"g"', *store.classes.names[4:]]
    store.classes = ClassTable(store.classes.ids, odd[: len(store.classes)])
    store.save(path, overwrite=True)
    comparison = made(tmp_path, tmp_path, {"methods": ["ignore", "csl"], "schemes": ["fpc:5"]})
    assert comparison.run() == []
    for row in comparison.results():
        found = read_per_class(comparison.folder / "per_class" / f"{row.key}.csv")
        assert [name for name, _ in found.values()] == list(store.classes.names)


def test_a_damaged_table_of_classes_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text("class_id,class_name,positives,negatives,ap\na,b,1\n")
    with pytest.raises(DataError, match=r"is damaged .* it is trained again"):
        copy_per_class(tmp_path / "classes.csv", tmp_path / "out.csv")


def test_a_folder_that_is_none_of_ours_or_cannot_be_written(tmp_path: Path, data: Path) -> None:
    comparison = made(tmp_path, data, {"methods": ["ignore"]})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.toml").touch()
    with pytest.raises(UsageError, match="out: is the folder of a run; choose another --out"):
        comparison.run()
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").touch()
    with pytest.raises(StoreError, match=r"out: cannot be written .*; choose another --out"):
        comparison.run()


# --- the command ---------------------------------------------------------------------------------


def test_the_command_prints_a_table_for_each_scheme(
    done: Done, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_comparison(done.comparison)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "fpc:6: 2 seeds, mean ± standard deviation"
    assert re.split(r" {2,}", printed[1].strip()) == [
        "method", "mAP(C)", "mAP(O)", "frequent", "AP red", "mAP(C) - ignore",
    ]  # fmt: skip
    rows = [re.split(r" {2,}", line.strip()) for line in printed[2:7]]
    assert [row[0] for row in rows] == ["csl", "ignore", "negative", "k=0", "k=1"]
    assert rows[1][-1] == "(baseline)"
    assert re.fullmatch(r"[+-]\d+\.\d\d \([+-]\d+\.\d\d to [+-]\d+\.\d\d\)", rows[0][-1])
    assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cell) for row in rows for cell in row[1:5])
    assert printed[7].startswith("complete: ")


def test_the_command_lists_writes_json_and_the_report(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(done, tmp_path)
    file, out = done.folder.parent / "file.toml", tmp_path / "out"
    compare(file, out=out, listed=True, sets=["compare.seeds=[0, 2]"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{out}: 20 cells, 10 to train"
    assert [line.split() for line in printed[2:4]] == [
        ["ignore", "fpc:6", "0", "done"], ["csl", "fpc:6", "0", "done"],
    ]  # fmt: skip
    assert printed[-1].split() == ["k=1", "complete", "2"]
    compare(file, out=out, listed=True, as_json=True)
    assert all(cell["done"] for cell in json.loads(capsys.readouterr().out)["cells"])

    import partlabel.report

    asked: list[Path] = []

    def write_report(folder: Path, **more: Any) -> Path:
        asked.append(folder)
        return folder / "report.html"

    monkeypatch.setattr(partlabel.report, "write_report", write_report, raising=False)
    compare(file, out=out, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "ignore"
    assert found["failed"] == []
    assert {"scheme", "method", "title", "number", "n", "mean", "sd"} == set(found["summary"][0])
    assert found["differences"][0]["n"] == 2
    assert asked == [out]
    compare(file, out=out, report=False)
    assert "report" not in capsys.readouterr().out
    assert asked == [out]


def test_failures_are_one_line_at_the_end(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    define = {"mad": {"based_on": "ignore", "optim": {"lr": 1e30, "schedule": "constant"}}}
    file = written(tmp_path, data, {"methods": ["mad"], "define": define})
    with pytest.raises(PartlabelError) as caught:
        compare(file, report=True)
    assert re.match(
        r"1 of 1 runs failed, see .*/out/failed.csv; the first: mad, given, seed 0: ",
        str(caught.value),
    )


@pytest.mark.slow
def test_the_program_is_interrupted_and_goes_on(tmp_path: Path, data: Path) -> None:
    import signal

    from tests.runs import finish, start

    train = {"epochs": 400, "batch_size": 8, "device": "cpu"}
    values = {**settings(data, train=train), "compare": {"methods": ["ignore"]}}
    file = tmp_path / "file.toml"
    file.write_text(tomli_w.dumps(values))
    process = start("compare", file, "--out", tmp_path / "out", "--no-report")
    assert process.stderr is not None
    for line in process.stderr:
        if "epoch 2" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = finish(process, code=130)
    assert "the same command goes on from the checkpoint" in err
    bad = subprocess.run(
        [sys.executable, "-m", "partlabel", "compare", str(file), "--set", "compare.methods=['x']"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1


def test_it_refuses_to_run_under_torchrun(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from partlabel.compare import comparison as module
    from partlabel.training.processes import Processes

    @contextmanager
    def two(device: str) -> Any:
        yield Processes(world=2)

    monkeypatch.setattr(module, "processes", two)
    with pytest.raises(UsageError, match="without torchrun"):
        made(tmp_path, data, {"methods": ["ignore"]}).run()


# --- files that come with it ---------------------------------------------------------------------


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_the_ready_files_can_be_read(path: Path) -> None:
    plan = Comparison.read(path).plan
    assert len(plan.methods) > 1
    comment = path.read_text().split("\n\n")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert f"partlabel compare {path.relative_to(ROOT).as_posix()}" in comment
    assert "the paper" in comment.lower()
    assert plan.settings.methods or plan.sweeps


def test_the_experiments_of_the_paper_are_there() -> None:
    plans = {path.stem: Comparison.read(path).plan for path in READY}
    assert set(plans) >= {
        "scheme-impact", "prior-agreement", "ablation-k", "ablation-gamma", "selection", "coco-fpc",
    }  # fmt: skip
    impact = plans["scheme-impact"]
    assert list(impact.methods) == ["ignore", "negative"]
    assert {scheme.kind for scheme in impact.schemes} >= {"fpc", "rpa"}
    assert plans["ablation-k"].sweeps[0].key == "loss.params.top_k"
    assert plans["ablation-gamma"].sweeps[0].key == "loss.params.gamma_neg"
    assert {"likelihood", "prior", "csl", "csl_soft"} <= set(plans["selection"].methods)
    assert plans["coco-fpc"].base.eval.classes == ("person",)


def test_every_setting_and_method_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "compare.md").read_text()
    for section in (CompareSettings, SweepSettings):
        for key in keys_of(section):
            assert f"| `{key}` |" in text, key
    for method in METHODS:
        assert f"| `{method}` |" in text, method
