"""Weights of a backbone: every way a file may hold them, and every way it may be wrong."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partlabel.errors import PartlabelError, UsageError
from partlabel.model import Classifier, build_model
from partlabel.model.weights import hub_weights, read_weights
from partlabel.vision import load

SHARED = Path(__file__).parent.parent.parent / "shared" / "weights"
NAME = "test_resnet"
INSTEAD = '--weights FILE or [model] weights = "FILE"'


def original(name: str = NAME, **settings: Any) -> nn.Module:
    """A model of timm with a classifier, and no number left as ours begin."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model: nn.Module = load("timm").create_model(name, num_classes=7, **settings)
        for value in model.state_dict().values():
            if (
                value.is_floating_point() and value.ndim == 1
            ):  # of normalisation, constants at first
                value.add_(torch.rand_like(value))
    return model.eval()


def loaded(weights: Path | str, name: str = NAME, **settings: Any) -> Classifier:
    made = {"image_size": 32} | settings
    return build_model(name, 3, weights=weights, **made).eval()


def features_of(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = model.forward_head(model.forward_features(images), pre_logits=True)
    return out


def assert_same_features(made: Classifier, source: nn.Module, size: int = 32) -> None:
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = features_of(source, images)
    assert (expected != 0).float().mean() > 0.1  # it says something
    with torch.no_grad():
        assert torch.equal(made.forward_features(images), expected)


def wrapped_all(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def with_wrong_average(state: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "state_dict": {k: torch.zeros_like(v) for k, v in state.items()},
        "state_dict_ema": state,
    }


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "model": lambda state: {"model": state, "num_classes": 7, "idx_to_class": {0: "a"}},
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "nested": lambda state: {"model": {"state_dict": state}},
    "averaged": with_wrong_average,
    "parallel": lambda state: {"state_dict": wrapped_all(state, "module.")},
    "compiled": lambda state: wrapped_all(state, "module._orig_mod."),
    "command line": lambda state: {"model": state, "args": argparse.Namespace(lr=0.1)},
    "half": lambda state: {k: v.half() if v.is_floating_point() else v for k, v in state.items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_is_read_however_it_was_wrapped(tmp_path: Path, layout: str) -> None:
    source = original()
    if layout == "half":
        source = source.half().float()
    path = tmp_path / "w.pth"
    torch.save(LAYOUTS[layout](source.state_dict()), path)
    made = loaded(path)
    assert_same_features(made, source)
    assert next(made.parameters()).dtype == torch.float32


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".ckpt", ".pth.tar"])
def test_endings_of_pickles(tmp_path: Path, suffix: str) -> None:
    torch.save(original().state_dict(), tmp_path / f"w{suffix}")
    assert_same_features(loaded(tmp_path / f"w{suffix}"), original())


def test_a_pickle_of_old_torch_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(original().state_dict(), path, _use_new_zipfile_serialization=False)
    assert_same_features(loaded(path), original())


def test_safetensors_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(original().state_dict(), tmp_path / "w.safetensors")
    assert_same_features(loaded(str(tmp_path / "w.safetensors")), original())


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(original().state_dict(), tmp_path / "w.pth")
    assert_same_features(loaded("~/w.pth"), original())


def test_the_classifier_of_a_file_is_never_taken(tmp_path: Path) -> None:
    """Not even where it has the same number of classes."""
    torch.save(original().state_dict(), tmp_path / "w.pth")
    made = build_model(NAME, 7, weights=tmp_path / "w.pth", image_size=32)
    assert torch.equal(
        made.head.weight, build_model(NAME, 7, weights=None, image_size=32).head.weight
    )
    assert not torch.equal(made.head.weight, original().fc.weight)


def test_a_whole_model_of_ours_gives_its_backbone(tmp_path: Path) -> None:
    first = build_model(NAME, 9, weights=None, image_size=32, seed=5, auxiliary=True)
    torch.save(first.state_dict(), tmp_path / "w.pth")
    second = loaded(tmp_path / "w.pth")
    theirs, ours = first.backbone.state_dict(), second.backbone.state_dict()
    assert all(torch.equal(theirs[key], ours[key]) for key in ours)


def test_positions_of_a_transformer_are_resized(tmp_path: Path) -> None:
    source = original("test_vit", img_size=64)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    assert_same_features(loaded(tmp_path / "w.pth", "test_vit", image_size=64), source, size=64)
    other = loaded(tmp_path / "w.pth", "test_vit", image_size=96)
    assert other.backbone.pos_embed.shape[1] == 1 + 36
    assert torch.equal(other.backbone.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight)


def miil_layout(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """TResNet as MIIL saves it: in-place activated batch normalisation, numbered layers."""
    out = {}
    for key, value in state.items():
        if key.endswith("num_batches_tracked"):
            continue
        # A layer with anti-aliased stride is one level deeper.
        deep = r"((?:layer2|layer3)\.0\.conv1|layer4\.0\.conv2)"
        key = re.sub(deep + r"\.conv\.", r"\1.0.0.", key)
        key = re.sub(deep + r"\.bn\.", r"\1.0.1.", key)
        key = re.sub(r"(conv\d|downsample\.\d)\.conv\.", r"\1.0.", key)
        key = re.sub(r"(conv\d|downsample\.\d)\.bn\.", r"\1.1.", key)
        out[key] = value
    return out


@pytest.mark.parametrize("wrapper", ["model", "state_dict"])
def test_files_of_miil_are_read_through_the_converter_of_timm(tmp_path: Path, wrapper: str) -> None:
    source = original("tresnet_m")
    with torch.no_grad():
        source.body.layer1[0].conv1.bn.weight.mul_(-1.5)
    state = miil_layout(source.state_dict())
    assert "body.layer4.0.conv2.0.1.running_mean" in state
    assert "body.layer2.0.downsample.1.0.weight" in state
    # The head of the published Open Images model, which is not named as one of timm.
    state["head.fc.embedding_generator.weight"] = torch.zeros(2, 2)
    state["head.decoder.query"] = torch.zeros(2)
    torch.save({wrapper: wrapped_all(state, "module."), "num_classes": 7}, tmp_path / "w.pth")

    made = loaded(tmp_path / "w.pth", "tresnet_m", image_size=64)
    with torch.no_grad():  # what the converter does to weights of in-place batch normalisation
        for key, value in source.state_dict().items():
            if key.endswith("bn.weight"):
                value.abs_().add_(1e-5)
    assert_same_features(made, source, size=64)
    assert made.info.mean == (0.0, 0.0, 0.0)


def test_a_converter_that_takes_tensors_alone_is_used_too(tmp_path: Path) -> None:
    source = original("densenet121")
    old = {
        re.sub(r"(layer\d+\.\w+)([12])\.", r"\1.\2.", k): v for k, v in source.state_dict().items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "w.pth")
    assert_same_features(loaded(tmp_path / "w.pth", "densenet121"), source)


# Files that are something else


def refusal(weights: Path | str, name: str = NAME, **settings: Any) -> str:
    with pytest.raises(PartlabelError) as caught:
        loaded(weights, name, **settings)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_deeper_model_is_refused_though_all_its_first_layers_fit(tmp_path: Path) -> None:
    deep, shallow = original("resnet34").state_dict(), original("resnet18").state_dict()
    path = tmp_path / "r34.pth"
    torch.save(deep, path)
    extra = [k for k in deep if k not in shallow and not k.endswith("num_batches_tracked")]
    said = refusal(path, "resnet18")
    assert (
        f"r34.pth: these are not weights of resnet18: {len(extra)} unexpected ({extra[0]})" in said
    )
    assert INSTEAD in said

    torch.save(shallow, path)
    said = refusal(path, "resnet34")
    assert f"not weights of resnet34: {len(extra)} missing ({extra[0]});" in said


def test_another_architecture_is_refused_with_all_differences(tmp_path: Path) -> None:
    state = original().state_dict()
    names = [key for key in state if not key.startswith("fc.")]
    state["layer1.0.conv1.weight"] = torch.zeros(2, 3)
    state["surplus"] = state.pop("bn1.weight")
    assert "bn1.weight" in names
    torch.save(state, tmp_path / "w.pth")
    said = refusal(tmp_path / "w.pth")
    assert "1 missing (bn1.weight), 1 unexpected (surplus), 1 of another shape" in said
    assert "(layer1.0.conv1.weight (2, 3), not (" in said


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    """Its converter must not stumble over them either."""
    torch.save(original("test_vit").state_dict(), tmp_path / "w.pth")
    for name in ("tresnet_m", "test_convnext", "test_resnet", "regnetx_002"):
        assert f"not weights of {name}: " in refusal(tmp_path / "w.pth", name, image_size=64)


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old"])
def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path: Path, old: bool) -> None:
    trace, path = tmp_path / "executed", tmp_path / "w.pth"
    state = {"state_dict": original().state_dict(), "extra": _Evil(trace)}
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    said = refusal(path)
    assert not trace.exists()
    assert said.startswith(f"{path}: ")
    if not old:
        assert "would execute code when opened (" in said
        assert ".safetensors" in said
    torch.load(path, weights_only=False)  # the trap is a real one
    assert trace.exists()


def test_a_bare_pickle_with_code_is_not_executed(tmp_path: Path) -> None:
    trace, path = tmp_path / "executed", tmp_path / "w.pt"
    path.write_bytes(pickle.dumps(_Evil(trace)))
    refusal(path)
    assert not trace.exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    good = tmp_path / "good.pth"
    torch.save(original().state_dict(), good)
    save_file(original().state_dict(), tmp_path / "good.safetensors")
    contents = {
        "half.pth": good.read_bytes()[: good.stat().st_size // 2],
        "empty.pth": b"",
        "text.pth": b"<!DOCTYPE html><title>404</title>",
        "empty.safetensors": b"",
        "text.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
        "half.safetensors": (tmp_path / "good.safetensors").read_bytes()[:100_000],
        "pickle.safetensors": good.read_bytes(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        said = refusal(tmp_path / name)
        assert f"{name}: is not a file of weights that can be read (" in said
        assert INSTEAD in said


def test_files_without_named_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save([torch.zeros(1)], path)
    assert "holds one list, not named tensors" in refusal(path)
    torch.save({"epoch": 3, "model": {"lr": 0.1, 4: None}}, path)
    assert "has no tensors, but lr, 4; " in refusal(path)
    torch.save({}, path)
    assert "has no tensors, but nothing; " in refusal(path)
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, path)
    assert "has no tensors, but model; " in refusal(path)


def test_a_file_that_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "backbone.pth")
    assert "did you mean backbone.pth?" in refusal(tmp_path / "backbon.pth")
    (tmp_path / "folder.pth").mkdir()
    assert "is a folder, not a file" in refusal(tmp_path / "folder.pth")


@pytest.mark.parametrize("wrong", ["pretraind", "weights.onnx", ""])
def test_a_word_that_is_no_file_is_refused(wrong: str) -> None:
    said = refusal(wrong)
    assert 'must be "pretrained", "none" or a file (.safetensors, .pth' in said


# The hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty cache and no network, wherever the tests run."""
    import huggingface_hub
    from huggingface_hub import constants

    def no_network(*args: Any, **settings: Any) -> None:
        raise ConnectionError("Name or service not known\nand more")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", no_network)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", no_network)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return huggingface_hub


def cache(tmp_path: Path, repo: str, name: str, state: dict[str, Tensor]) -> Path:
    """A file as the hub's client leaves it."""
    folder = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    path = folder / "snapshots" / "0123abc" / name
    path.parent.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.usefixtures("hub")
def test_without_a_network_the_ways_out_are_named() -> None:
    said = refusal("pretrained", "tresnet_m")
    assert said == (
        "timm/tresnet_m.miil_in21k: the weights cannot be fetched "
        "(ConnectionError: Name or service not known); give a local file with --weights FILE or "
        '[model] weights = "FILE", or start from random weights with weights = "none"'
    )


def test_offline_mode_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refusal("pretrained")
    assert "timm/test_resnet.r160_in1k: the weights cannot be fetched (" in said
    assert INSTEAD in said


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_cached_file_is_used_without_asking_the_hub(tmp_path: Path, name: str) -> None:
    cache(tmp_path, "timm/test_resnet.r160_in1k", name, original().state_dict())
    assert_same_features(loaded("pretrained"), original())
    assert_same_features(loaded("pretrained", "test_resnet.r160_in1k"), original())


def test_a_repository_without_safetensors_gives_its_pickle(
    tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import EntryNotFoundError

    asked = []

    def metadata(url: str) -> None:
        asked.append(url.rsplit("/", 1)[1])
        if url.endswith("model.safetensors"):
            raise EntryNotFoundError.__new__(EntryNotFoundError)

    def download(repo: str, name: str, *, revision: str | None) -> str:
        assert (repo, revision) == ("timm/test_resnet.r160_in1k", None)
        path = tmp_path / name
        torch.save(original().state_dict(), path)
        return str(path)

    monkeypatch.setattr(hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert_same_features(loaded("pretrained"), original())
    assert asked == ["model.safetensors", "pytorch_model.bin"]


@pytest.mark.usefixtures("hub")
def test_weights_outside_the_hub_come_from_their_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = {"architecture": "x", "url": "https://example.org/a/x-1234.pth"}

    def no_network(*args: Any, **settings: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(
        UsageError, match=r"x-1234.pth: the weights cannot be fetched \(OSError: no"
    ):
        hub_weights(cfg)

    def download(url: str, to: str, progress: bool) -> None:
        assert url == cfg["url"]
        torch.save({"a": torch.ones(1)}, to)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    first = hub_weights(cfg)
    assert read_weights(first)["a"] == 1
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    assert hub_weights(cfg) == first


def test_an_architecture_without_weights_says_so() -> None:
    with pytest.raises(UsageError, match="timm has no weights for davit_giant; give a local file"):
        build_model("davit_giant", 3, image_size=32)


# A real file


@pytest.mark.skipif(not SHARED.exists(), reason="the shared weights are not here")
def test_a_published_file_gives_the_features_that_timm_gives() -> None:
    path = SHARED / "tf_efficientnet_lite0.safetensors"
    name = "tf_efficientnet_lite0"
    made = loaded(path, name, image_size=112)
    source = load("timm").create_model(name, checkpoint_path=str(path)).eval()
    assert_same_features(made, source, size=112)
    assert made.info.mean == made.info.std == (0.5, 0.5, 0.5)
    assert "not weights of test_efficientnet: " in refusal(path, "test_efficientnet")
