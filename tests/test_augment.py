"""Augmentation: the paper's operations against Pillow, and what a draw depends on."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from partlabel.augment import AUGMENTS, Augment, Draws, pixels
from partlabel.augment.randaugment import NOTHING, OPERATIONS, Chosen, rand_augment
from partlabel.errors import UsageError
from partlabel.images import decode

GREY = (128, 128, 128)
SHEARS = ("shear_x", "shear_y")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def picture(size: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with some grain and a flat corner."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))
    pixels = np.clip(soft + rng.normal(0, 6, soft.shape), 0, 255).astype(np.uint8)
    pixels[: size // 4, : size // 4] = 90
    return pixels


def as_tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()


def as_pixels(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy().astype(int)


def pictures(count: int, size: int) -> torch.Tensor:
    return torch.stack([as_tensor(picture(size, seed)) for seed in range(count)])


def by_pillow(pixels: np.ndarray, name: str, level: int, sign: int, x: int, y: int) -> np.ndarray:
    """An operation as the registry's package describes it, with Pillow's own functions."""
    image, size = Image.fromarray(pixels), pixels.shape[0]

    def at(low: float, high: float) -> float:
        return float(np.linspace(low, high, 10)[level])

    def affine(*matrix: float, how: Image.Resampling) -> Image.Image:
        kind = Image.Transform.AFFINE
        return image.transform(image.size, kind, matrix, how, fillcolor=GREY)

    def cutout() -> Image.Image:
        half = round(at(0, 20)) // 2
        out = pixels.copy()
        out[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = (125, 122, 113)
        return Image.fromarray(out)

    def rotate() -> Image.Image:
        turned = image.convert("RGBA").rotate(at(0, 30))
        back = Image.new("RGBA", turned.size, (128,) * 4)
        return Image.composite(turned, back, turned).convert("RGB")

    factor, slope, shift = 1 + at(0, 0.9) * sign, at(0, 0.3) * sign, at(0, 150 / 331) * sign * size
    cubic, nearest = Image.Resampling.BICUBIC, Image.Resampling.NEAREST
    return np.asarray(
        {
            "invert": lambda: ImageOps.invert(image),
            "cutout": cutout,
            "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
            "autocontrast": lambda: ImageOps.autocontrast(image),
            "posterize": lambda: ImageOps.posterize(image, round(at(8, 4))),
            "shear_x": lambda: affine(1, slope, 0, 0, 1, 0, how=cubic),
            "translate_x": lambda: affine(1, 0, shift, 0, 1, 0, how=nearest),
            "translate_y": lambda: affine(1, 0, 0, 0, 1, shift, how=nearest),
            "shear_y": lambda: affine(1, 0, 0, slope, 1, 0, how=cubic),
            "rotate": rotate,
            "equalize": lambda: ImageOps.equalize(image),
            "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
            "color": lambda: ImageEnhance.Color(image).enhance(factor),
            "solarize": lambda: ImageOps.solarize(image, at(256, 0)),
            "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        }[name]()
    ).astype(int)


def every_level() -> list[tuple[int, int]]:
    return [(level, sign) for level in range(1, 10) for sign in (-1, 1)]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [128, 75])
def test_an_operation_gives_what_pillow_gives(name: str, size: int) -> None:
    pixels = picture(size)
    image = as_tensor(pixels)[None]
    for level, sign in every_level():
        values = (OPERATIONS.index(name), level, sign, size // 3, 5)
        done = rand_augment(image, Chosen(*(np.array([[value]]) for value in values)))
        difference = np.abs(as_pixels(done[0]) - by_pillow(pixels, name, level, sign, size // 3, 5))
        if name in SHEARS:  # cubic sums in another order
            assert difference.max() <= 1
            assert (difference > 0).mean() < 0.01
        else:
            assert not difference.any(), (level, sign)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("value", ["black", "white", "one colour", "two colours", "one odd pixel"])
def test_flat_images_come_out_as_from_pillow(name: str, value: str) -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    if value == "white":
        pixels[:] = 255
    elif value != "black":
        pixels[:] = (3, 200, 77)
    if value == "two colours":
        pixels[10:20] = (250, 0, 77)
    if value == "one odd pixel":
        pixels[5, 5] = 9
    for level, sign in ((1, 1), (9, -1)):
        values = (OPERATIONS.index(name), level, sign, 8, 30)
        done = rand_augment(as_tensor(pixels)[None], Chosen(*(np.array([[v]]) for v in values)))
        difference = np.abs(as_pixels(done[0]) - by_pillow(pixels, name, level, sign, 8, 30))
        assert difference.max() <= (1 if name in SHEARS else 0)


@pytest.mark.parametrize("name", ["none", "flip", "paper", "crop"])
@pytest.mark.parametrize(("cutout", "flip"), [(0.5, True), (0.0, False)])
def test_one_is_batch(name: str, cutout: float, flip: bool) -> None:
    augment = Augment(name, seed=3, size=48, flip=flip, cutout=cutout)
    images, rows = pictures(8, 48).repeat(25, 1, 1, 1), np.arange(200) * 7919
    kept = images.clone()
    draws = augment.draw(4, rows)
    done = augment.batch(images, draws, cropped=True)
    assert done.dtype == torch.uint8
    assert done.shape == images.shape
    for i in range(200):
        assert torch.equal(augment.one(images[i], draws, i), done[i])
    assert torch.equal(images, kept)


def test_the_way_of_a_device_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    augment = Augment("paper", seed=3, size=48, flip=True)
    images, draws = pictures(8, 48).repeat(50, 1, 1, 1), augment.draw(4, np.arange(400))
    by_host = augment.batch(images, draws)
    monkeypatch.setattr(pixels, "by_host", lambda images: False)
    assert torch.equal(augment.batch(images, draws), by_host)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same() -> None:
    augment = Augment("paper", seed=3, size=224, flip=True)
    images = pictures(8, 224).repeat(64, 1, 1, 1)
    draws = augment.draw(4, np.arange(512))
    here = augment.batch(images, draws).int()
    there = augment.batch(images.cuda(), draws).cpu().int()
    sheared = np.isin(draws.chosen.operation, [OPERATIONS.index(name) for name in SHEARS]).any(1)
    difference = (here - there).abs().flatten(1)
    assert not difference[~torch.from_numpy(sheared)].any()
    # What follows a shear may stretch its difference of one.
    assert (difference > 1).float().mean() < 1e-3
    crop = Augment("crop", seed=3, size=224)
    draws = crop.draw(0, np.arange(512))
    difference = crop.batch(images, draws).int() - crop.batch(images.cuda(), draws).cpu().int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_small_images_work(size: int) -> None:
    augment = Augment("paper", seed=0, size=size)
    images = pictures(1, size).repeat(300, 1, 1, 1)
    done = augment.batch(images, augment.draw(0, np.arange(300)))
    assert done.shape == images.shape


def same(a: Draws, b: Draws) -> bool:
    flat_a = [a.key, a.flip, a.crop, a.cutout, a.colour, *a.chosen]
    flat_b = [b.key, b.flip, b.crop, b.cutout, b.colour, *b.chosen]
    return all(x is y is None or np.array_equal(x, y) for x, y in zip(flat_a, flat_b, strict=True))


@pytest.mark.parametrize("name", AUGMENTS)
def test_a_draw_depends_on_seed_epoch_and_row_alone(name: str) -> None:
    augment = Augment(name, seed=5, size=64)
    rows = np.random.default_rng(0).permutation(10_000)[:500]
    whole = augment.draw(2, rows)
    assert same(whole, augment.draw(2, rows.astype(np.uint64)))
    assert same(augment.draw(2, rows[::-3]), whole.of(np.arange(500)[::-3]))
    assert same(augment.draw(2, rows[:0]), whole.of(slice(0)))
    for other in (augment.draw(3, rows), Augment(name, seed=6, size=64).draw(2, rows)):
        assert not (other.key == whole.key).any()


def test_options_do_not_change_what_else_is_drawn() -> None:
    rows = np.arange(300)
    paper = Augment("paper", seed=1, size=64).draw(0, rows)
    flip = Augment("paper", seed=1, size=64, flip=True, cutout=0.0, rand_ops=1).draw(0, rows)
    assert flip.cutout is None
    assert np.array_equal(flip.chosen.operation, paper.chosen.operation[:, :1])
    assert np.array_equal(flip.flip, Augment("crop", seed=1, size=64).draw(0, rows).flip)
    assert not paper.flip.any()


def test_draws_are_the_same_in_every_version() -> None:
    draws = Augment("paper", seed=0, size=224, flip=True).draw(1, np.array([0, 1, 9_000_000]))
    assert draws.key.tolist() == [7010533542842166657, 10770050441454078390, 10071054172321546037]
    assert draws.flip.tolist() == [False, True, False]
    assert draws.cutout is not None
    assert draws.cutout.tolist() == [[118, 224, 106, 218], [165, 224, 69, 181], [89, 201, 167, 224]]
    assert draws.chosen.operation.tolist() == [[2, -1], [-1, 0], [12, -1]]


COUNT = 60_000


@pytest.fixture(scope="module")
def many() -> Draws:
    return Augment("paper", seed=11, size=224, flip=True).draw(0, np.arange(COUNT))


def assert_uniform(values: np.ndarray, kinds: int) -> None:
    """Chi-squared: its mean is kinds - 1; five deviations more never happen by chance."""
    counts = np.bincount(values.ravel(), minlength=kinds)
    assert len(counts) == kinds
    expected = values.size / kinds
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < kinds - 1 + 5 * np.sqrt(2 * (kinds - 1))


def test_what_is_drawn_is_evenly_spread(many: Draws) -> None:
    assert_uniform(many.flip.astype(int), 2)
    for slot in range(2):
        operation = many.chosen.operation[:, slot]
        assert_uniform((operation != NOTHING).astype(int), 2)
        assert_uniform(operation[operation != NOTHING], 15)
        assert_uniform(many.chosen.level[:, slot] - 1, 9)
        assert_uniform((many.chosen.sign[:, slot] + 1) // 2, 2)
        assert_uniform(many.chosen.x[:, slot], 224)
    assert_uniform(many.colour, 256)


def test_draws_of_one_image_are_independent(many: Draws) -> None:
    columns = [many.flip, many.colour[:, 0], many.colour[:, 1]]
    assert many.cutout is not None
    columns += [many.cutout[:, 0], many.cutout[:, 2]]
    for part in many.chosen:
        columns += [part[:, 0], part[:, 1]]
    found = np.corrcoef(np.stack(columns).astype(float))
    np.fill_diagonal(found, 0)
    assert np.abs(found).max() < 5 / np.sqrt(COUNT)
    later = Augment("paper", seed=11, size=224, flip=True).draw(1, np.arange(COUNT))
    assert abs(np.corrcoef(many.flip, later.flip)[0, 1]) < 5 / np.sqrt(COUNT)
    assert abs(np.corrcoef(many.flip[1:], many.flip[:-1])[0, 1]) < 5 / np.sqrt(COUNT)


def test_cutout_covers_what_the_paper_says(many: Draws) -> None:
    assert many.cutout is not None
    top, bottom, left, right = many.cutout.T
    assert top.min() == left.min() == 0
    assert bottom.max() == right.max() == 224
    covered = (bottom - top) * (right - left) / 224**2
    assert covered.min() == 0.0625
    assert covered.max() == 0.25
    assert abs(covered.mean() - 0.1914) < 0.002


def test_cutout_paints_its_box_and_nothing_else() -> None:
    augment = Augment("paper", seed=2, size=40, rand_ops=0)
    images = pictures(20, 40)
    draws = augment.draw(0, np.arange(20))
    done = augment.batch(images, draws)
    assert draws.cutout is not None
    for i, (top, bottom, left, right) in enumerate(draws.cutout):
        box = done[i, :, top:bottom, left:right]
        assert (box == torch.from_numpy(draws.colour[i])[:, None, None]).all()
        rest = images[i].clone()
        rest[:, top:bottom, left:right] = box
        assert torch.equal(done[i], rest)


def test_flip_mirrors_half_of_the_images() -> None:
    augment = Augment("flip", seed=2, size=24)
    images = pictures(1, 24).repeat(100, 1, 1, 1)
    draws = augment.draw(0, np.arange(100))
    done = augment.batch(images, draws)
    for i in range(100):
        assert torch.equal(done[i], images[i].flip(2) if draws.flip[i] else images[i])
    assert 30 < draws.flip.sum() < 70


@pytest.mark.parametrize(("name", "least"), [("crop", 0.75), ("timm", 0.08)])
def test_crops_stay_inside_and_keep_their_share(name: str, least: float) -> None:
    augment = Augment(name, seed=4, size=32)
    draws = augment.draw(0, np.arange(20_000))
    assert draws.crop is not None
    left, top, width, height = draws.crop.T
    assert min(left.min(), top.min()) >= 0
    assert max((left + width).max(), (top + height).max()) <= 1 + 1e-12
    area, ratio = width * height, width / height
    assert least <= area.min() < least + 0.01
    assert 0.99 < area.max() <= 1
    assert abs(area.mean() - (1 + least) / 2) < 0.01
    assert 0.75 - 1e-9 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-9
    assert augment.crop(draws, 7) == tuple(draws.crop[7])


def test_names_without_a_crop_have_none() -> None:
    for name in ("none", "flip", "paper"):
        augment = Augment(name, seed=0, size=32)
        assert augment.crop(augment.draw(0, np.arange(3)), 1) is None


def test_a_batch_is_cropped_where_it_is() -> None:
    smooth = Image.fromarray(picture(7)).resize((448, 448), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    smooth.save(file, "PNG")
    augment = Augment("crop", seed=0, size=112)
    draws = augment.draw(0, np.arange(30))
    resident = decode(file.getvalue(), 112).repeat(30, 1, 1, 1)
    done = augment.batch(resident, draws)
    for i in range(30):
        loaded = decode(file.getvalue(), 112, crop=augment.crop(draws, i))
        difference = (augment.one(loaded, draws, i).int() - done[i].int()).abs().float()
        assert difference.mean() < 1.5
        assert difference.max() < 30


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_timm_depends_on_the_key_alone() -> None:
    augment = Augment("timm", seed=0, size=64)
    draws = augment.draw(0, np.arange(12))
    images = pictures(12, 64)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = [augment.one(image, draws, i) for i, image in enumerate(images)]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    random.seed(2)
    again = [augment.one(images[i], augment.draw(0, np.array([i])), 0) for i in range(12)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sum(torch.equal(a, b) for a, b in zip(first, images, strict=True)) < 6
    with pytest.raises(UsageError, match="one by one"):
        augment.batch(images, draws)


def _drawn(augment: Augment) -> Draws:
    return augment.draw(1, np.arange(50))


def test_another_process_draws_the_same() -> None:
    augment = Augment("paper", seed=9, size=64)
    assert pickle.loads(pickle.dumps(augment)) == augment
    with get_context("spawn").Pool(1) as pool:
        assert same(pool.map(_drawn, [augment])[0], _drawn(augment))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean paper"):
        Augment("papers", seed=0, size=8)
    for wrong in ({"size": 0}, {"cutout": 1.5}, {"rand_ops": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Augment("paper", **{"seed": 0, "size": 8, **wrong})
    augment = Augment("paper", seed=0, size=8)
    draws = augment.draw(0, np.arange(2))
    for images in (
        torch.zeros(3, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 3, 8, 9, dtype=torch.uint8),
        torch.zeros(2, 3, 8, 8),
    ):
        with pytest.raises(ValueError, match="images must be"):
            augment.batch(images, draws)
    with pytest.raises(ValueError, match="rows must be integers"):
        augment.draw(0, np.array([0.5]))
