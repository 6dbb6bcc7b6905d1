"""``partlabel export``: the same numbers in every format, with all that is needed to use them."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partlabel import ClassTable
from partlabel.config import Config
from partlabel.errors import DataError, UsageError
from partlabel.metrics import Thresholds
from partlabel.model import build_model, description
from partlabel.prediction import export as exporting
from partlabel.prediction.export import FORMATS, export, load_exported, metadata
from partlabel.prediction.predict import Predictor
from partlabel.training import checkpoint
from tests.tiny_run import BACKBONE, CLASSES, SIZE, command, make_run, refusal

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra 'export' is not installed (onnx, onnxscript, onnxruntime)",
)
EVERY = [pytest.param(name, marks=[needs_onnx] if name == "onnx" else []) for name in FORMATS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("export") / "run")
    values = {"c0": -1.5, "c1": 0.25, "c2": "inf", "c3": 0.1, "c4": 3.0}
    rows = "".join(f"{name},{value}\n" for name, value in values.items())
    (folder / "thresholds.csv").write_text(f"class_id,threshold\n{rows}")
    return folder


@pytest.fixture(scope="module")
def onnx_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    command("export", "--run", run, "--format", "onnx", "--out", path)
    return path


def images(count: int, seed: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


def wanted(run: Path, batch: torch.Tensor) -> np.ndarray:
    model = Predictor.open(run).model
    with torch.inference_mode():
        return np.asarray(model(model.normalise(batch)))


def check_facts(facts: dict[str, str], *, inside: bool) -> None:
    found = {key: json.loads(text) for key, text in facts.items()}
    assert found["class_ids"] == list(CLASSES)
    assert found["class_names"] == [f"name of {name}" for name in CLASSES]
    assert found["thresholds"] == [-1.5, 0.25, None, 0.1, 3.0]
    assert found["input"]["shape"] == ["batch", 3, SIZE, SIZE]
    assert len(found["input"]["mean"]) == len(found["input"]["std"]) == 3
    assert found["input"]["type"].startswith("uint8" if inside else "float32")
    assert found["partlabel"]["model"]["backbone"].startswith(BACKBONE)
    assert found["partlabel"]["step"] == 7


@needs_onnx
def test_onnx_gives_the_same_for_any_number_of_images(run: Path, onnx_file: Path) -> None:
    import onnx
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    [place] = session.get_inputs()
    assert (place.name, place.type) == ("images", "tensor(uint8)")
    assert place.shape == ["batch", 3, SIZE, SIZE]
    for count in (1, 4, 7):
        logits, shares = session.run(None, {"images": images(count).numpy()})
        np.testing.assert_allclose(logits, wanted(run, images(count)), atol=1e-3)
        np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), atol=1e-5)
    check_facts(session.get_modelmeta().custom_metadata_map, inside=True)
    text = onnx.load(onnx_file).SerializeToString()
    assert b"site-packages" not in text
    assert os.fsencode(Path(__file__).parent.parent) not in text
    assert [path.name for path in onnx_file.parent.iterdir()] == ["model.onnx"]


def test_pt2_gives_the_same_for_any_number_of_images(run: Path, in_tmp: Path) -> None:
    command("export", "--run", run, "--out", "model.pt2")
    names = ("class_ids", "class_names", "thresholds", "input", "outputs", "partlabel")
    facts = dict.fromkeys(names, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.load("model.pt2", extra_files=facts)
    for count in (1, 4, 7):
        with torch.inference_mode():
            logits, shares = program.module()(images(count))
        np.testing.assert_allclose(logits, wanted(run, images(count)), atol=1e-3)
        np.testing.assert_allclose(shares, logits.sigmoid(), atol=1e-6)
    check_facts(facts, inside=True)
    assert b"site-packages" not in Path("model.pt2").read_bytes()


def test_safetensors_are_loaded_again(run: Path, in_tmp: Path) -> None:
    command("export", "--run", run, "--format", "safetensors", "--out", "model.safetensors")
    model, classes, facts = load_exported("model.safetensors")
    with torch.inference_mode():
        logits = model(model.normalise(images(4)))
    assert np.array_equal(logits.numpy(), wanted(run, images(4)))
    assert classes == Predictor.open(run).classes
    check_facts({key: json.dumps(value) for key, value in facts.items()}, inside=False)


def test_safetensors_are_weights_to_start_a_training_from(run: Path, in_tmp: Path) -> None:
    export(Predictor.open(run), Path("model.safetensors"), "safetensors")
    there = Predictor.open(run).model.backbone.state_dict()
    started = build_model(BACKBONE, 3, weights="model.safetensors", image_size=SIZE, seed=5)
    for key, value in started.backbone.state_dict().items():
        assert torch.equal(value, there[key])
    with pytest.raises(UsageError, match="these are not weights of test_vit"):
        build_model("test_vit", 3, weights="model.safetensors", image_size=160)


@pytest.mark.parametrize("format_", EVERY)
def test_the_auxiliary_head_and_a_bottleneck(in_tmp: Path, format_: str) -> None:
    classes = ClassTable([f"c{i}" for i in range(12)])
    options: dict[str, Any] = {"head": "bottleneck", "bottleneck": 6, "auxiliary": True}
    model = build_model(BACKBONE, 12, weights=None, image_size=SIZE, **options)
    made = checkpoint.Checkpoint(3, classes, description(model), {"average": model.state_dict()})
    checkpoint.save(Path("run/checkpoints"), made)
    Config.from_dict({"data": {"train": "t.labels"}}).write("run/config.toml")
    done = export(Predictor.open("run"), Path(f"m.{format_}"), format_)
    assert done.difference <= 1e-3
    assert done.size == Path(f"m.{format_}").stat().st_size
    if format_ == "safetensors":
        loaded, _, facts = load_exported("m.safetensors")
        assert loaded.auxiliary is None
        assert facts["thresholds"] is None


def test_what_is_said(run: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("export", "--run", run, "--out", "m.safetensors")
    shown = capsys.readouterr()
    assert "difference from torch" in shown.out
    assert not shown.err
    command("export", "--run", run, "--out", "m.safetensors", "--overwrite", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "safetensors"
    assert found["difference"] == 0
    assert found["bytes"] == Path("m.safetensors").stat().st_size


def test_a_file_that_differs_is_not_left(
    run: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = exporting._write_safetensors

    def wrong(*arguments: Any) -> Any:
        right = write(*arguments)
        return lambda batch: right(batch)[0] + 0.01

    monkeypatch.setattr(exporting, "_write_safetensors", wrong)
    Path("m.safetensors").write_text("old")
    with pytest.raises(DataError, match=r"differ by 0\.01 from torch's, more than 0\.001"):
        export(Predictor.open(run), Path("m.safetensors"), "safetensors")
    assert Path("m.safetensors").read_text() == "old"
    assert os.listdir() == ["m.safetensors"]


def test_what_cannot_be_exported_is_said_in_a_line(
    run: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: Any) -> Any:
        raise RuntimeError("no such operator\nand a page of text")

    monkeypatch.setattr(exporting, "_write_pt2", stumble)
    with pytest.raises(UsageError, match=r"cannot be exported as pt2 \(no such operator\)"):
        export(Predictor.open(run), Path("m.pt2"), "pt2")


def test_without_onnx_there_is_a_command_to_install_it(
    run: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    said = refusal("export", "--run", run, "--out", "m.onnx")
    assert said == (
        "--format onnx needs onnx and onnxscript and onnxruntime: pip install 'partlabel[export]'"
    )


def test_mistakes_are_one_line(run: Path, in_tmp: Path) -> None:
    Path("there.pt2").touch()
    Path("folder.pt2").mkdir()
    cases: dict[tuple[Any, ...], str] = {
        ("--run", "none", "--out", "m.pt2"): "there is no such run folder",
        ("--run", ".", "--out", "m.pt2"): "is not a run folder",
        ("--run", run, "--out", "m.onx"): "did you mean .onnx?",
        ("--run", run, "--out", "m.pt2", "--format", "onnx"): "must end in .onnx",
        ("--run", run, "--out", "there.pt2"): "add --overwrite",
        ("--run", run, "--out", "folder.pt2", "--overwrite"): "exists",
        ("--run", run, "--out", "no/m.pt2"): "there is no folder",
    }
    for arguments, text in cases.items():
        assert text in refusal("export", *arguments), arguments
    with pytest.raises(ValueError, match="format must be one of"):
        export(Predictor.open(run), Path("m.x"), "tflite")


def test_what_is_not_an_export_is_refused(in_tmp: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, "other.safetensors")
    Path("torn.safetensors").write_bytes(b"torn")
    for name in ("other.safetensors", "torn.safetensors", "none.safetensors"):
        with pytest.raises(DataError, match="is not a model that partlabel exported"):
            load_exported(name)


def test_thresholds_of_other_classes_are_refused(in_tmp: Path) -> None:
    folder = make_run(in_tmp / "run")
    (folder / "thresholds.csv").write_text("class_id,threshold\nc0,1\n")
    assert len(Thresholds.read(folder / "thresholds.csv")) == 1
    assert "lacks 4 of 5 classes" in refusal("export", "--run", folder, "--out", "m.safetensors")


def test_metadata_is_text(run: Path) -> None:
    for inside in (True, False):
        facts = metadata(Predictor.open(run), inside=inside)
        assert all(isinstance(value, str) for value in facts.values())
    assert "partlabel" in sys.modules
