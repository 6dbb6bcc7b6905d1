from __future__ import annotations

import pickle
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from partlabel.augment import AUGMENTS
from partlabel.config import STAGE1, Config
from partlabel.config.kinds import Kind, kind_of
from partlabel.config.runfile import read_toml
from partlabel.config.schema import keys_of
from partlabel.config.settings import PRESETS, ImageSettings, with_preset
from partlabel.errors import ConfigError, DataError, PartlabelError, StoreError

ROOT = Path(__file__).parent.parent
RUNS = sorted(p for p in (ROOT / "runs").glob("*.toml") if p.stem != "demo")  # for compare
DATA = '[data]\ntrain = "a.labels"\n'
SECTIONS = {key: kind.types[0] for key, (kind, _) in keys_of(Config).items() if kind.section}


def made(**sections: Any) -> Config:
    return Config.from_dict({"data": {"train": "a.labels"}, **sections})


def read(text: str | bytes, *sets: str) -> Config:
    """Read run.toml in the current folder with this text."""
    path = Path("run.toml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Config.read(path, sets)


def refused(text: str | bytes, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, *sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def complaint(values: dict[str, Any], *sets: str) -> str:
    """What is wrong with these tables, or nothing."""
    try:
        Config.from_dict(values, place="run.toml", sets=sets)
    except ConfigError as error:
        return str(error)
    return ""


# What every setting may be, from its annotation: a new key is tested without a line here.

BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(0, 100_000) | st.integers(-(2**70), 2**70),
    float: st.floats(0, 1) | st.floats() | st.integers(-3, 3),
    str: st.text(max_size=8)
    | st.sampled_from(["cuda:1", "~/a.csv", "./~x", "a.pth", "é\t\x7f'\""]),
    Path: st.sampled_from(["a/b.labels", "~/x", "./~x", "/x y/ü", "..", "a\\b", "a\tb", "#"]),
}


def values_for(kind: Kind) -> st.SearchStrategy[Any]:
    """Values that a setting takes."""
    words = [st.sampled_from(check.choices) for check in kind.checks if check.choices]
    if kind.types[0] in (tuple, dict):
        inner = kind_of(kind.items)
        if inner.types == (Any,):
            return st.just({})  # the first stage, see below
        items = values_for(inner)
        return st.lists(items, max_size=3) if kind.types[0] is tuple else tables(items)
    return st.one_of(*words, *(BY_TYPE[base] for base in kind.types)).filter(kind._takes)


def tables(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(
        st.text(max_size=5).filter(lambda key: key != "prior"), items, max_size=3
    )


def sections_of(*names: str, without: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            name: st.fixed_dictionaries(
                {},
                optional={
                    key: values_for(kind)
                    for key, (kind, _) in keys_of(SECTIONS[name]).items()
                    if key not in without
                },
            )
            for name in names
        },
    )


TOP = st.fixed_dictionaries(
    {}, optional={key: values_for(keys_of(Config)[key][0]) for key in ("name", "out")}
)
ALL, FIRST = sections_of(*SECTIONS), sections_of(*STAGE1, without=("preset",))


@st.composite
def run_tables(draw: st.DrawFn) -> dict[str, Any]:
    found = draw(ALL)
    found.setdefault("data", {}).setdefault("train", "a.labels")
    prior = found.setdefault("prior", {})
    for key in draw(st.sampled_from([("threshold", "top_n"), ("quantile", "top_n")])):
        prior.pop(key, None)
    if "threshold" in prior:
        prior.pop("quantile", None)
    prior["stage1"] = draw(FIRST)
    return found | draw(TOP)


@given(run_tables())
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "config.toml"
    try:
        config = Config.from_dict(values)
    except ConfigError as error:
        assume(
            not any(key in str(error) for key in ("device_resident", "prior_threshold", "capture"))
        )
        raise
    for one in (config, config.stage1()):
        one.write(path)
        again = Config.read(path)
        assert again == one
        assert again.hash() == one.hash()
        assert again.to_toml() == one.to_toml()
    assert config.replaced() == config


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(st.data())
def test_any_table_is_a_config_or_a_line_that_says_where(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SECTIONS)))
    key = data.draw(st.sampled_from(sorted(keys_of(SECTIONS[name]))) | st.text(max_size=6))
    values = {"data": {"train": "a.labels"}}
    values.setdefault(name, {})[key] = data.draw(anything)
    said = complaint(values)
    assert not said or said.startswith(f"run.toml [{name}")
    assert not said or " ".join(key.split()) in said


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_file_is_read_or_explained(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"any.toml"):
        Config.read(path)  # without [data] train it cannot be one


@given(st.text(max_size=12) | st.text(max_size=8).map("train.epochs={}".format))
def test_any_option_is_taken_or_explained(text: str) -> None:
    assert complaint({"data": {"train": "a.labels"}}, text)[:5] in ("", "--set")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[train]\nepochs = true",
            "[train] epochs: must be a whole number of at least 1, got true",
        ),
        (
            "[train]\nepochs = '3'",
            "epochs: must be a whole number of at least 1, got '3'; leave out",
        ),
        ("[train]\nepochs = 'three'", "got 'three'; the default is 30"),
        ("[train]\nepochs = 3.5", "must be a whole number of at least 1, got 3.5; the default is"),
        ("[train]\nepochs = 3.0", "got 3.0; write 3"),
        ("[train]\nepochs = 0", "must be a whole number of at least 1, got 0"),
        ("[train]\nepochs = 2020-01-01", "got the date 2020-01-01"),
        ("[train]\nepochs = {}", "got a table"),
        ("[train]\nseed = 99999999999999999999", "got a number with too many digits"),
        (f"[train]\nseed = 0x{'f' * 5000}", "got a number with too many digits"),
        ("[train]\nepoch = 3", "[train] epoch: no such key; did you mean epochs?"),
        ("[train]\nlr = 3", "[train] lr: no such key; it is [optim] lr"),
        ("[train]\nzzz = 3", "[train] zzz: no such key; there is: preset, batch_size, epochs"),
        ("[data.train]\nx = 1", "is not valid TOML"),
        ("[trian]\nepochs = 3", "run.toml [trian]: no such section; did you mean train?"),
        (
            "[[train]]\nepochs = 3",
            "train: must be a section, got a list; write [train], not [[train",
        ),
        (
            "[train]\nprecision = 'bf61'",
            "one of auto, fp32, bf16, fp16, got 'bf61'; did you mean bf",
        ),
        (
            "[train]\nprecision = 16",
            "must be one of auto, fp32, bf16, fp16, got 16; the default is",
        ),
        ("[train]\ndevice = 'gpu'", "must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ("[optim]\nlr = nan", "[optim] lr: must be a number above 0, got nan"),
        ("[optim]\nlr = inf", "must be a number above 0, got inf"),
        ("[optim]\nlr = '1e-4'", "got '1e-4'; leave out the quotes"),
        ("[optim]\nlr = 0", "must be a number above 0, got 0; the default is 0.0002"),
        ("[optim]\nwarmup = 20", "must be a number between 0 and 1, got 20; the default is 0.2"),
        ("[optim]\nema_decay = 1", "must be a number of at least 0 and below 1, got 1"),
        ("[images]\nflip = 'yes'", "[images] flip: must be true or false, got 'yes'; write true"),
        ("[images]\nflip = 0", "must be true or false, got 0; write false"),
        ("[images]\nroot = 3", 'must be a path, got 3; write "3"'),
        ("[images]\nroot = ''", "must be a path, got ''; or leave it out"),
        ("[images]\nroot = '~nobody-here/x'", "got '~nobody-here/x'; there is no such user"),
        ('[images]\nroot = "a\\u0000"', "must be a path"),
        (
            "[prior]\nsource = 'estimat'",
            "or the path of a csv file, got 'estimat'; did you mean est",
        ),
        (
            "[prior]\nthreshold = 0.5\ntop_n = 3",
            "[prior] top_n: only one of threshold, quantile and",
        ),
        (
            "[prior]\ntop_n = 3\n[loss.params]\nprior_threshold = 0.5",
            "[prior] top_n: [loss.params] p",
        ),
        ("[loss.params]\nprior = 'a.csv'", "[loss.params] prior: the prior is named in [prior]"),
        ("[loss]\nparams = 3", "[loss] params: must be a table, got 3"),
        (
            "[loss.params]\nx = [1]",
            "[loss.params] x: must be a number, text, true or false, got a l",
        ),
        (
            "[loss.params]\nx = nan",
            "[loss.params] x: must be a number, text, true or false, got nan",
        ),
        (
            "[eval]\nclasses = 'person'",
            "must be a list, each text, got 'person'; write [\"person\"]",
        ),
        ("[eval]\nclasses = ['a', 3]", '[eval] classes: must be text, got 3; write "3"'),
        ("[prior.stage1.train]\nepochs = 0", "[prior.stage1.train] epochs: must be a whole number"),
        (
            "[prior.stage1.train]\nepoch = 1",
            "[prior.stage1.train] epoch: no such key; did you mean",
        ),
        ("[prior.stage1.train]\nlr = 1", "no such key; it is [prior.stage1.optim] lr"),
        (
            "[prior.stage1.data]\nval = 'x'",
            "[prior.stage1] data: no such section here; there is: im",
        ),
        ("[prior]\nstage1 = {train = 3}", "[prior.stage1] train: must be a section"),
        (
            "[prior.stage1.train]\npreset = 'paper'",
            "[prior.stage1.train] preset: has no effect here",
        ),
        ("[train]\npreset = 'papr'", "[train] preset: must be one of paper, reference, got 'papr'"),
        ("[train]\npreset = ['paper']", "[train] preset: must be one of paper, reference, got a l"),
        ("[compare]\nseeds = [1]", "[compare]: is for partlabel compare run.toml; to train once"),
        (
            "[images]\naugment = 'timm'\ndevice_resident = true",
            "[images] device_resident: cannot be",
        ),
        (
            "[train]\nepochs = three",
            "run.toml line 4: is not valid TOML (Invalid value); text goes",
        ),
        ("[train]\nepochs 3", "run.toml line 4: is not valid TOML (Expected '='"),
        (
            "[train]\nseed = 1\nseed = 2\n",
            "line 5: is not valid TOML (Cannot overwrite a value); each",
        ),
        (
            "[train]\n[train]",
            "line 4: is not valid TOML (Cannot declare ('train',) twice); each sec",
        ),
        ('[images]\nroot = "C:\\data"', "line 4: is not valid TOML (Unescaped"),
        ("x = 'a", "run.toml at its end: is not valid TOML"),
        (f"x = {'[' * 5000}", "run.toml: is nested too deeply"),
        (
            f"[train]\nseed = {'9' * 5000}",
            "run.toml: is not valid TOML (a number has too many digits",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_place_and_remedy(
    in_tmp: Path, text: str, said: str
) -> None:
    found = refused(DATA + text)
    assert found.startswith("run.toml ") or found.startswith("run.toml:")
    assert said in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "run.toml [data] train: is missing; it must be the path of a label store"),
        ("epochs = 3", "run.toml epochs: no such key; it is [train] epochs"),
        ("batch_size = 3", "no such key; it is [train] batch_size or [eval] batch_size"),
        (
            "data = 'a.labels'",
            "run.toml data: must be a section, got 'a.labels'; its keys go below",
        ),
        ("name = 'a/b'\n" + DATA, "run.toml name: must be a name without slashes"),
        ("name = 3\n" + DATA, 'got 3; write "3"'),
        (b"\xff\xfe[\x00", "run.toml line 1: is not UTF-8 (byte 0xff); save it as UTF-8"),
        (b"[data]\ntrain = '\xe9'", "run.toml line 2: is not UTF-8 (byte 0xe9)"),
    ],
)
def test_a_mistake_outside_a_section(in_tmp: Path, text: str | bytes, said: str) -> None:
    assert said in refused(text)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "train.epochs=three",
            "--set train.epochs: must be a whole number of at least 1, got 'three'",
        ),
        ("train.epochs", "--set train.epochs: must be SECTION.KEY=VALUE, as in train.epochs=3"),
        ("train.epochs=", "must be SECTION.KEY=VALUE"),
        ("train..epochs=3", "must be SECTION.KEY=VALUE"),
        ("epochs=3", "--set epochs: no such key; it is [train] epochs"),
        ("trian.epochs=3", "--set trian.epochs: no such section; did you mean train?"),
        ("train.epoch=3", "--set train.epoch: no such key; did you mean epochs?"),
        (
            "train.epochs.x=3",
            "--set train.epochs.x: must be a whole number of at least 1, got a table",
        ),
        ("data.train.x=3", "--set data.train.x: data.train is no section"),
        ("train=3", "--set train: must be a section, got 3"),
        ("train.epochs=[1", "--set train.epochs: [1 is not valid TOML (Unclosed array)"),
        ("train.epochs=3\nx=4", "takes one value; write --set once for each key"),
        ("train.compile=True", "must be true or false, got 'True'; write true"),
        ("name=3", 'got 3; write "3"'),
        ("loss.params={a=[1]}", "--set loss.params: must be a number, text, true or false"),
        ("prior.stage1.train.epochs=0", "--set prior.stage1.train.epochs: must be a whole"),
        ("compare.seeds=[1]", "--set compare.seeds: is for partlabel compare"),
    ],
)
def test_a_mistake_in_an_option_names_it(in_tmp: Path, option: str, said: str) -> None:
    assert said in refused(DATA, option)


def test_what_a_file_can_say(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = read(
        b"\xef\xbb\xbf" + DATA.replace("\n", "\r\n").encode() + b"val = '~/v'\r\n[optim]\nlr = 1\n"
        b"[prior]\nsource = '~/p.csv'\n[eval]\nclasses = ['person']\n"
    )
    assert (config.name, config.out) == ("run", Path("outputs/run"))
    assert (config.data.train, config.data.val) == (Path("a.labels"), Path("/home/me/v"))
    assert config.optim.lr == 1.0
    assert isinstance(config.optim.lr, float)
    assert config.prior.source == "/home/me/p.csv"
    assert config.eval.classes == ("person",)
    assert config.images.root is None


def test_options_win_over_the_file(in_tmp: Path) -> None:
    config = read(
        DATA + "[train]\nepochs = 30\n[prior]\nthreshold = 0.5\n[images]\nroot = 'a'\n",
        "train.epochs=3",
        " optim.lr = 1e-3",
        "model.backbone=resnet50",
        'data.split="train"',
        "name=mine",
        "loss.params.top_k=7",
        "prior.stage1.train.epochs=1",
        "images.root=/a=b/c d",
        "prior.threshold=default",
        "prior.top_n=2",
        'eval.classes=["a", "b"]',
    )
    assert (config.train.epochs, config.optim.lr, config.model.backbone) == (3, 1e-3, "resnet50")
    assert (config.data.split, config.data.train_split) == ("train", "train")
    assert (config.name, config.out) == ("mine", Path("outputs/mine"))
    assert config.loss.params == {"top_k": 7}
    assert config.images.root == Path("/a=b/c d")
    assert (config.prior.threshold, config.prior.top_n) == (None, 2)
    assert config.eval.classes == ("a", "b")
    assert config.stage1().train.epochs == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("rum.toml", "did you mean run.toml?"), (".", "is a folder"), ("no/run.toml", "no folder no")],
)
def test_a_missing_file_is_explained(in_tmp: Path, name: str, said: str) -> None:
    Path("run.toml").touch()
    with pytest.raises(DataError, match=said):
        Config.read(name)


def test_presets_are_defaults_and_the_file_wins(in_tmp: Path) -> None:
    paper = made(train={"preset": "paper"})
    assert (paper.optim.name, paper.optim.weight_decay, paper.loss.params) == ("adamw", 3e-4, {})
    reference = made(
        train={"preset": "reference"}, optim={"lr": 1e-3}, loss={"params": {"top_k": 2}}
    )
    assert (reference.optim.name, reference.optim.lr) == ("adam", 1e-3)
    assert not reference.optim.ema_warmup
    assert reference.loss.params == {"reduction": "sum", "scope": "batch", "top_k": 2}
    own = made(train={"preset": "reference"}, loss={"params": {"scope": "sample"}})
    assert own.loss.params == {"reduction": "sum", "scope": "sample"}
    other = made(train={"preset": "reference"}, loss={"name": "focal"})
    assert other.loss.params == {"reduction": "sum"}
    assert read(DATA, "train.preset=reference").optim.name == "adam"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_settings_that_exist(preset: str) -> None:
    values = with_preset({"train": {"preset": preset}})
    config = made(**values)
    assert config.train.preset == preset
    config.build_loss()


def test_a_written_file_is_complete(tmp_path: Path) -> None:
    config = made(images={"root": "pixels"}, train={"preset": "reference"})
    config.write(tmp_path / "new" / "config.toml")
    written = tomllib.loads((tmp_path / "new" / "config.toml").read_text())
    for name, section in SECTIONS.items():
        values = getattr(config, name)
        wanted = {f.name for f in fields(section) if getattr(values, f.name) is not None}
        assert set(written[name]) == wanted
    assert written["optim"]["name"] == "adam"
    assert list(tmp_path.glob("**/.*")) == []


def test_a_file_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        made().write(tmp_path / "file" / "config.toml")


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    made().write(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        made(train={"epochs": 3}).write(path)
    assert Config.read(path) == made().replaced()
    assert list(tmp_path.iterdir()) == [path]


def test_the_hash_is_of_what_decides_the_result() -> None:
    config = made(loss={"params": {"gamma_neg": 4}})
    aside: list[dict[str, Any]] = [
        {"images": {"workers": 3, "cache": "here", "max_skipped": 0.5}},
        {"train": {"log_steps": 1, "keep": 9, "device": "cpu", "capture": True}},
        {"train": {"checkpoint_steps": 5}},
        {"eval": {"classes": ["a"], "bootstrap": 9, "batch_size": 7}},
        {"name": "other", "out": "elsewhere"},
        {"loss": {"params": {"gamma_neg": 4.0}}},
    ]
    for change in aside:
        assert config.replaced(**change).hash() == config.hash(), change
    deciding: list[dict[str, Any]] = [
        {"train": {"seed": 1}},
        {"data": {"split": "train"}},
        {"loss": {"params": {"gamma_neg": 4.5}}},
        {"prior": {"stage1": {"train": {"epochs": 1}}}},
    ]
    assert len({config.hash(), *(config.replaced(**c).hash() for c in deciding)}) == 5
    assert config.flat()["loss.params.gamma_neg"] == 4
    assert "train.log_steps" not in config.flat()
    assert len(config.hash()) == 16


def test_the_first_stage_ignores_unknown_labels_and_has_no_prior() -> None:
    config = made(
        loss={"params": {"top_k": 9}},
        prior={
            "top_n": 3,
            "stage1": {"train": {"epochs": 2}, "model": {"backbone": "resnet18"}},
        },
    )
    first = config.stage1()
    assert (first.loss.name, first.loss.params) == ("ce", {"unknown": "ignore"})
    assert (first.prior.source, first.prior.top_n, first.prior.stage1) == ("none", None, {})
    assert (first.train.epochs, first.model.backbone) == (2, "resnet18")
    assert (first.name, first.out) == ("run-stage1", Path("outputs/run/stage1"))
    assert first.images == config.images
    assert not first.needs_prior
    assert made(train={"preset": "reference"}).stage1().loss.params == {
        "unknown": "ignore",
        "reduction": "sum",
    }
    # What decides the second stage alone does not make the first one anew.
    assert config.replaced(loss={"params": {"top_k": 1}}).stage1().hash() == first.hash()


def test_a_late_error_names_where_the_value_stands(in_tmp: Path) -> None:
    text = DATA + "[model]\nbackbone = 'a'\n[prior.stage1.model]\nbackbone = 'b'\n"
    config = read(text, "data.val=x.labels")
    error = config.error("model", "backbone", what="is unknown")
    assert str(error) == "run.toml [model] backbone: is unknown"
    first = config.stage1().error("model", "backbone", what="is unknown")
    assert str(first) == "run.toml [prior.stage1.model] backbone: is unknown"
    assert str(config.error("data", "val", what="odd")) == "--set data.val: odd"
    with pytest.raises(ConfigError, match=r"model\] drop: must be a number"):
        config.stage1().replaced(model={"drop": 3})


def test_a_copy_with_other_values() -> None:
    config = made(train={"early_stop": 3, "preset": "reference"}, loss={"params": {"top_k": 9}})
    other = config.replaced(
        train={"early_stop": None, "seed": 1}, loss={"name": "ce", "params": {}}
    )
    assert (other.train.early_stop, other.train.seed) == (None, 1)
    assert (other.loss.name, other.loss.params) == ("ce", {"reduction": "sum"})
    assert config.loss.name == "selective"
    with pytest.raises(ValueError, match="preset"):
        config.replaced(train={"preset": "paper"})
    with pytest.raises(ConfigError, match=r"settings trian: no such key"):
        config.replaced(trian=3)


def test_the_loss_gets_what_it_has_of_what_is_known(in_tmp: Path) -> None:
    prior = torch.tensor([0.9, 0.1])
    known = {"prior": prior, "prior_threshold": 0.5, "num_classes": 2, "num_images": 3}
    config = read(DATA + "[loss]\nname = 'selective'\nparams = {top_k = 1}")
    loss = config.build_loss(**known)
    assert loss.top_k == 1
    assert loss.prior is not None
    assert config.needs_prior
    config.replaced(loss={"name": "role", "params": {}}).build_loss(**known)
    plain = config.replaced(loss={"name": "ce", "params": {}})
    plain.build_loss(**known)
    assert not plain.needs_prior
    assert not config.replaced(prior={"source": "none"}).needs_prior


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("name = 'selektive'", "[loss] name: no such loss as 'selektive'; did you mean selective?"),
        (
            "params = {top_k = -1}",
            "[loss] params: top_k must be a whole number of at least 0, got -1",
        ),
        ("params = {topk = 1}", "[loss] params: loss 'selective' has no setting 'topk'"),
        ("name = 'role'", "[loss] params: loss 'role' needs num_images"),
        (
            "params = {prior_threshold = 0.1}",
            "[loss.params] prior_threshold: is filled in; leave it",
        ),
    ],
)
def test_what_a_loss_refuses_is_an_error_of_the_file(in_tmp: Path, loss: str, said: str) -> None:
    config = read(f"{DATA}[loss]\n{loss}")
    with pytest.raises(ConfigError) as caught:
        config.build_loss(prior_threshold=0.5)
    assert str(caught.value).startswith(f"run.toml {said}")


def test_configs_go_to_other_processes_and_stay_as_they_are() -> None:
    config = made(prior={"stage1": {"train": {"epochs": 1}}})
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.places == config.places
    with pytest.raises(AttributeError):
        config.train.epochs = 3  # type: ignore[misc]
    values = {"data": {"train": "a"}, "loss": {"params": {"top_k": 1}}}
    Config.from_dict(values, sets=["loss.params.top_k=2"]).loss.params["top_k"] = 3
    assert values["loss"] == {"params": {"top_k": 1}}


def test_augmentations_are_those_there_are() -> None:
    kind, _ = keys_of(ImageSettings)["augment"]
    assert set(kind.checks[0].choices) == set(AUGMENTS)


# Recipes. Expected: backbone, size, lr, weight decay, batch, epochs, gammas unknown, negative and
# positive, K, threshold; from spec.md part E.
RECIPES = {
    "openimages-v6": ("tresnet_m", 224, 2e-4, 3e-4, 512, 10, 7, 2, 1, 200, 0.05),
    "openimages-v3": ("resnet101", 224, 2e-4, 3e-4, 512, 10, 4, 2, 1, 200, 0.05),
    "lvis": ("tresnet_m", 448, 6e-4, 3e-4, 64, 30, 1, 0, 0, 10, 0.05),
    "coco-fpc": ("tresnet_m", 448, 2e-4, 1e-4, 64, 30, 4, 3, 0, 5, 0.5),
    "coco-rpa": ("tresnet_m", 448, 2e-4, 1e-4, 64, 30, 4, 1, 0, 5, 0.5),
    "csv-quickstart": ("resnet50", 224, 2e-4, 3e-4, 64, 15, 2, 1, 0, 5, None),
}


def test_the_recipes_are_there() -> None:
    assert set(RECIPES) <= {path.stem for path in RUNS}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_published_values(name: str) -> None:
    config = Config.read(ROOT / "runs" / f"{name}.toml")
    params = config.loss.params
    assert RECIPES[name] == (
        config.model.backbone,
        config.images.size,
        config.optim.lr,
        config.optim.weight_decay,
        config.train.batch_size,
        config.train.epochs,
        *(params[key] for key in ("gamma_unknown", "gamma_neg", "gamma_pos", "top_k")),
        config.prior.threshold,
    )
    coco = name.startswith("coco")
    assert config.optim.name == ("adam" if coco else "adamw")
    assert (params.get("scope"), params.get("reduction")) == (
        ("batch", "sum") if coco else (None,) * 2
    )
    assert (config.images.augment, config.loss.name) == ("paper", "selective")


def test_errors_are_the_users_to_mend() -> None:
    assert issubclass(ConfigError, PartlabelError)
    with pytest.raises(DataError):
        read_toml("nowhere.toml")
