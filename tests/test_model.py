"""The classifier: what it is made of, what it computes, and that it is the same every time.

Where its weights come from is in test_weights.py.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from partlabel.errors import UsageError
from partlabel.model import (
    PRESETS,
    Classifier,
    ModelInfo,
    build_model,
    description,
    synchronise_batch_norm,
)
from partlabel.vision import load

SIZE = 32


def tiny(backbone: str = "test_resnet", classes: int = 5, **settings: object) -> Classifier:
    made: dict[str, object] = {"weights": None, "image_size": SIZE} | settings
    return build_model(backbone, classes, **made)


def pictures(count: int = 2, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


# What there is


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - {"small"}))  # timm does not know ours
def test_a_preset_builds_and_has_the_normalisation_that_timm_states(name: str) -> None:
    model = tiny(name, classes=4, image_size=64).eval()
    cfg = load("timm").get_pretrained_cfg(PRESETS[name].backbone)
    assert (model.info.mean, model.info.std) == (cfg.mean, cfg.std)
    assert model.info.backbone == PRESETS[name].backbone
    with torch.no_grad():
        assert model.forward_features(torch.zeros(1, 3, 64, 64)).shape == (1, 2048)
        assert model(model.normalise(pictures(2, 64))).shape == (2, 4)


def test_tresnet_l_is_the_second_version() -> None:
    assert PRESETS["tresnet_l"].backbone == "tresnet_v2_l.miil_in21k"


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "mobilenetv3_small_050"])
def test_any_backbone_of_timm_works(name: str) -> None:
    model = tiny(name).eval()
    assert model(model.normalise(pictures())).shape == (2, 5)
    assert model.info.backbone.startswith(f"{name}.")  # the tag is written down


def test_a_transformer_is_made_for_the_size_of_the_images() -> None:
    model = tiny("test_vit", image_size=64).eval()
    assert model(model.normalise(pictures(size=64))).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet5O", "timm has no 'resnet5O'; did you mean resnet50"),
        ("tresnet_m.miil_in21", "tresnet_m has no 'miil_in21'; did you mean miil_in21k?"),
        ("resnet18.zzz", "resnet18 has no 'zzz'; there is: a1_in1k"),
        ("hf-hub:timm/resnet18", "timm has no 'hf-hub:timm/resnet18'"),
        ("", "timm has no ''"),
    ],
)
def test_an_unknown_backbone_is_refused_with_a_suggestion(name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        tiny(name)
    assert says in str(caught.value)
    assert "[model] backbone" in str(caught.value)


def test_a_size_that_a_backbone_cannot_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"test_vit.* cannot be made for images of 33 pixels"):
        tiny("test_vit", image_size=33)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_backbone_without_pooled_features_is_refused() -> None:
    with pytest.raises(UsageError, match=r"inception_next_atto.* one vector of features"):
        tiny("inception_next_atto")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"classes": 0}, "num_classes must be a whole number of at least 1, got 0"),
        ({"classes": True}, "num_classes"),
        ({"bottleneck": 2.5}, "bottleneck must be a whole number"),
        ({"image_size": -1}, "image_size must be"),
        ({"head": "mlp"}, "head must be one of auto, linear, bottleneck, got 'mlp'"),
        ({"drop": 1.0}, "drop must be at least 0 and below 1"),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny(**settings)


# The heads


@pytest.mark.parametrize(("classes", "kind"), [(5000, nn.Linear), (5001, nn.Sequential)])
def test_many_classes_get_a_bottleneck(classes: int, kind: type) -> None:
    model = tiny(classes=classes)
    assert type(model.head) is kind
    assert model.info.head == ("linear" if kind is nn.Linear else "bottleneck")
    assert model(torch.zeros(2, 3, SIZE, SIZE)).shape == (2, classes)


def test_the_bottleneck_has_the_width_asked_for_and_nothing_between() -> None:
    head = tiny(head="bottleneck", bottleneck=7).head
    assert [type(layer) for layer in head.children()] == [nn.Linear, nn.Linear]
    assert [layer.out_features for layer in head.children()] == [7, 5]


def test_the_head_chosen_wins_over_the_number_of_classes() -> None:
    assert isinstance(tiny(classes=5001, head="linear").head, nn.Linear)


@pytest.mark.parametrize("head", ["linear", "bottleneck"])
def test_heads_start_small(head: str) -> None:
    model = tiny(classes=400, head=head, auxiliary=True)
    layers = [m for m in [*model.head.modules(), model.auxiliary] if isinstance(m, nn.Linear)]
    assert len(layers) == (2 if head == "linear" else 3)
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert abs(layer.weight.mean().item()) < 0.0005
        assert not layer.bias.any()
    assert not torch.equal(layers[0].weight[:5, :5], layers[-1].weight[:5, :5])


def test_dropout_is_for_training_and_between_features_and_head() -> None:
    model, plain = tiny(drop=0.5), tiny()
    images = model.normalise(pictures())
    assert same(model, plain)  # nothing in the checkpoint tells them apart
    assert torch.equal(model.forward_features(images), plain.forward_features(images))
    assert torch.equal(model.eval()(images), plain.eval()(images))
    model.dropout.train()
    assert not torch.equal(model(images), model(images))


def test_the_auxiliary_head_does_not_teach_the_features() -> None:
    model = tiny(auxiliary=True)
    assert model.auxiliary is not None
    logits, auxiliary = model.both(model.normalise(pictures()))
    auxiliary.square().sum().backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is None for p in model.head.parameters())
    assert all(p.grad is not None and p.grad.any() for p in model.auxiliary.parameters())

    learned = model.auxiliary.weight.grad.clone()
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.backbone.parameters())
    assert torch.equal(model.auxiliary.weight.grad, learned)


def test_both_heads_in_one_call_give_what_they_give_alone() -> None:
    model = tiny(auxiliary=True).eval()
    images = model.normalise(pictures())
    logits, auxiliary = model.both(images)
    assert torch.equal(logits, model(images))
    assert torch.equal(auxiliary, model.auxiliary(model.forward_features(images)))
    called = model(images, both=True)
    assert torch.equal(called[0], logits)
    assert torch.equal(called[1], auxiliary)


def test_a_model_without_auxiliary_head_says_so() -> None:
    with pytest.raises(ValueError, match="build it with auxiliary=True"):
        tiny().both(torch.zeros(1, 3, SIZE, SIZE))


# The same every time


def test_a_seed_decides_everything_and_nothing_else_is_drawn() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = tiny(seed=7, auxiliary=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    assert same(first, tiny(seed=7, auxiliary=True))

    other = tiny(seed=8, auxiliary=True)
    for (name, left), (_, right) in zip(
        first.named_parameters(), other.named_parameters(), strict=True
    ):
        assert name.endswith("bias") or left.unique().numel() == 1 or not torch.equal(left, right)


def test_no_device_but_the_cpu_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("torch.manual_seed seeds the GPUs too")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    tiny()


def test_a_part_does_not_depend_on_the_others() -> None:
    plain, more = tiny(), tiny(auxiliary=True, drop=0.3)
    assert same(plain.backbone, more.backbone)
    assert same(plain.head, more.head)
    assert same(plain.head, tiny(weights="none").head)
    assert same(plain.backbone, tiny(classes=9, head="bottleneck").backbone)


def test_a_default_device_does_not_change_the_numbers() -> None:
    with torch.device("meta"):
        assert same(tiny(), tiny())
    assert tiny().backbone.training


# Pixels


def bare(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Classifier:
    info = ModelInfo("none", 2, "linear", 512, False, 16, mean, std)
    return Classifier(nn.Flatten(), 3 * 256, info, drop=0.0, seed=0)


def every_pixel() -> Tensor:
    """Each channel has each value once."""
    return torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 3, 1, 1)


def test_pixels_of_miil_models_are_exactly_shares_of_255() -> None:
    out = bare(PRESETS["tresnet_m"].mean, PRESETS["tresnet_m"].std).normalise(every_pixel())
    assert out.dtype == torch.float32
    assert torch.equal(out, (every_pixel().double() / 255).float())


def test_pixels_around_the_middle_are_exact() -> None:
    out = bare((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).normalise(every_pixel())
    assert torch.equal(out, ((every_pixel().double() - 127.5) / 127.5).float())


def test_pixels_of_imagenet_models_are_right_to_the_last_digits() -> None:
    preset = PRESETS["resnet50"]
    out = bare(preset.mean, preset.std).normalise(every_pixel())
    mean = torch.tensor(preset.mean, dtype=torch.float64).view(1, 3, 1, 1)
    std = torch.tensor(preset.std, dtype=torch.float64).view(1, 3, 1, 1)
    true = (every_pixel().double() / 255 - mean) / std
    assert (out.double() - true).abs().max() < 2.5e-7  # two last digits at 2.6
    assert out.abs().max() > 2.6


def test_pixels_are_not_changed_in_place_and_keep_their_layout() -> None:
    model, images = bare((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), pictures(4)
    kept = images.clone()
    last = images.contiguous(memory_format=torch.channels_last)
    assert model.normalise(last).is_contiguous(memory_format=torch.channels_last)
    assert model.normalise(images).is_contiguous()
    assert torch.equal(model.normalise(last), model.normalise(images))
    assert torch.equal(images, kept)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["tresnet_m", "resnet50"])
def test_pixels_are_the_same_on_a_gpu(name: str) -> None:
    model = bare(PRESETS[name].mean, PRESETS[name].std)
    here = model.normalise(every_pixel())
    assert torch.equal(model.cuda().normalise(every_pixel().cuda()).cpu(), here)


@pytest.mark.parametrize(
    "images",
    [torch.zeros(1, 3, 8, 8), pictures()[0], pictures()[:, :1]],
    ids=["float", "3d", "grey"],
)
def test_only_bytes_are_normalised(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"images must be uint8 \(B, 3, H, W\), got"):
        tiny().normalise(images)


def test_bytes_are_not_taken_for_normalised_images() -> None:
    with pytest.raises(ValueError, match=r"images must be float, got torch.uint8; see normalise"):
        tiny()(pictures())


# How it is run


def test_autocast_leaves_the_pixels_alone_and_computes_in_bfloat16() -> None:
    model = tiny(auxiliary=True).eval()
    images = model.normalise(pictures(8))
    exact = model(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model.normalise(pictures(8))
        logits, auxiliary = model.both(inside)
    assert torch.equal(inside, images)
    assert logits.dtype == auxiliary.dtype == torch.bfloat16
    assert torch.allclose(logits.float(), exact, atol=0.05 * exact.abs().max().item())


def test_channels_last_gives_the_same_logits() -> None:
    model = tiny().eval()
    images = model.normalise(pictures())
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    out = model(images.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(out, expected, atol=1e-5)


def test_it_compiles_without_a_break() -> None:
    model = tiny(auxiliary=True, drop=0.0)

    class Step(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return model.both(model.normalise(images))

    compiled = torch.compile(Step(), backend="aot_eager", fullgraph=True)
    before = copy.deepcopy(model.state_dict())
    expected = model.both(model.normalise(pictures(4)))
    model.load_state_dict(before)  # batch statistics moved
    got = compiled(pictures(4))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, expected, strict=True))
    got[0].sum().backward()
    assert all(p.grad is not None for p in model.backbone.parameters())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_synchronised_batch_norm_computes_the_same(name: str) -> None:
    model = tiny(name).eval()
    images = model.normalise(pictures())
    expected = model(images)
    changed = synchronise_batch_norm(model)
    assert any(isinstance(layer, nn.SyncBatchNorm) for layer in changed.modules())
    assert torch.equal(changed(images), expected)


# What a checkpoint needs


def test_a_description_and_the_tensors_make_the_model_again() -> None:
    model = tiny("test_resnet", classes=6, head="bottleneck", bottleneck=4, auxiliary=True)
    said = json.loads(json.dumps(description(model)))
    assert said == description(model)
    assert said == {
        "backbone": "test_resnet.r160_in1k",
        "classes": 6,
        "head": "bottleneck",
        "bottleneck": 4,
        "auxiliary": True,
        "size": SIZE,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    again = build_model(
        said["backbone"],
        said["classes"],
        weights=None,
        head=said["head"],
        bottleneck=said["bottleneck"],
        auxiliary=said["auxiliary"],
        image_size=said["size"],
        seed=99,
    )
    again.load_state_dict(model.state_dict())
    images = pictures()
    assert torch.equal(again.eval()(again.normalise(images)), model.eval()(model.normalise(images)))


def test_tensors_are_those_that_learn_and_those_of_the_backbone() -> None:
    model = tiny(auxiliary=True)
    parts = {key.split(".")[0] for key in model.state_dict()}
    assert parts == {"backbone", "head", "auxiliary"}
    assert {"mean", "std"} <= {name for name, _ in model.named_buffers()}


def test_a_copy_is_another_model() -> None:
    model = tiny()
    average = copy.deepcopy(model)
    with torch.no_grad():
        next(average.parameters()).add_(1)
    assert not same(model, average)
    assert description(average) == description(model)
