"""Image bytes become tensors: every format as Pillow reads it, every fault as one ImageError."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from partlabel import images as module
from partlabel.errors import PartlabelError
from partlabel.images import ImageError, decode

SIZE = 64


def pixels(width: int = 90, height: int = 70, seed: int = 0) -> np.ndarray:
    """Four soft corners of different colours, with grain."""
    rng = np.random.default_rng(seed)
    corners = np.array([[[250, 20, 20], [20, 240, 30]], [[10, 30, 230], [240, 240, 10]]], np.uint8)
    soft = Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)
    grain = rng.normal(0, 12, (height, width, 3))
    return np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8)


def saved(image: Image.Image | np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_pillow(
    data: bytes, size: int = SIZE, crop: tuple[int, int, int, int] | None = None
) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    upright = upright if crop is None else upright.crop(crop)
    return np.asarray(upright.resize((size, size), Image.Resampling.BILINEAR)).astype(int)


def difference(data: bytes, size: int = SIZE) -> int:
    done = decode(data, size)
    assert done.dtype == torch.uint8
    assert done.shape == (3, size, size)
    assert done.is_contiguous()
    return int(np.abs(done.permute(1, 2, 0).numpy() - by_pillow(data, size)).max())


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        *[(500, 375, 224), (375, 500, 448), (37, 91, 64), (1, 1, 8), (3, 900, 32), (900, 2, 7)],
        *[(64, 64, 64), (1600, 1200, 50), (20, 20, 300), (65, 64, 1)],
    ],
)
def test_every_size_is_as_pillow_resizes_it(width: int, height: int, size: int) -> None:
    for kind in ("JPEG", "PNG"):
        assert difference(saved(pixels(width, height), kind), size) <= 1


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 30},
        {"quality": 100, "subsampling": 0},
        {"subsampling": 1},
        {"subsampling": "4:1:1"},
        {"progressive": True},
        {"optimize": True, "restart_marker_blocks": 3},
        {"keep_rgb": True},
        {"comment": b"\xff\xd8 no picture"},
        {"icc_profile": b"\0" * 100_000},
    ],
    ids=str,
)
def test_every_kind_of_jpeg(options: dict[str, Any]) -> None:
    assert difference(saved(pixels(), **options)) <= 1


def converted(mode: str) -> Image.Image:
    return Image.fromarray(pixels()).convert(mode)


def with_alpha(mode: str) -> Image.Image:
    image = Image.fromarray(pixels()).convert(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


FORMATS: dict[str, Callable[[], bytes]] = {
    "png": lambda: saved(pixels(), "PNG"),
    "png grey": lambda: saved(converted("L"), "PNG"),
    "png black and white": lambda: saved(converted("1"), "PNG"),
    "png palette": lambda: saved(converted("P"), "PNG"),
    "png palette, one transparent": lambda: saved(converted("P"), "PNG", transparency=3),
    "png palette, many transparent": lambda: saved(
        converted("P"), "PNG", transparency=bytes(range(256))
    ),
    "png alpha": lambda: saved(with_alpha("RGB"), "PNG"),
    "png grey alpha": lambda: saved(with_alpha("L"), "PNG"),
    "jpeg grey": lambda: saved(converted("L")),
    "jpeg cmyk": lambda: saved(converted("CMYK")),
    "jpeg 2000": lambda: saved(pixels(), "JPEG2000", irreversible=False),
    "gif": lambda: saved(converted("P"), "GIF"),
    "bmp": lambda: saved(pixels(), "BMP"),
    "tiff": lambda: saved(pixels(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": lambda: saved(converted("CMYK"), "TIFF"),
    "webp": lambda: saved(pixels(), "WEBP"),
    "webp alpha": lambda: saved(with_alpha("RGB"), "WEBP", lossless=True),
    "ppm": lambda: saved(pixels(), "PPM"),
    "mpo": lambda: saved(
        pixels(), "MPO", save_all=True, append_images=[Image.fromarray(pixels(seed=1))]
    ),
    "animated gif": lambda: saved(
        converted("P"), "GIF", save_all=True, append_images=[converted("P").rotate(180)]
    ),
}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow, used by hand
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_as_pillow_reads_it(name: str) -> None:
    assert difference(FORMATS[name]()) <= 1


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_makes_a_warning(name: str) -> None:
    decode(FORMATS[name](), SIZE)


@pytest.mark.parametrize("kind", ["PCX", "TGA", "ICO", "SGI"])
def test_rare_formats_are_not_opened(kind: str) -> None:
    with pytest.raises(ImageError, match="known format"):
        decode(saved(pixels(), kind), SIZE)


def test_of_sixteen_bits_the_upper_eight_are_taken() -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    done = decode(saved(Image.fromarray(ramp), "PNG"), 256)
    assert torch.equal(done, torch.from_numpy(ramp >> 8).to(torch.uint8).expand(3, -1, -1))
    with pytest.raises(ImageError, match="32 bits"):
        decode(saved(Image.fromarray(ramp.astype(np.int32)), "TIFF"), 8)


def exif(orientation: Any, order: str = "<") -> bytes:
    """An EXIF block with the orientation only."""
    mark = {"<": b"II", ">": b"MM"}[order]
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    head = b"Exif\0\0" + mark + struct.pack(f"{order}HI", 42, 8)
    return head + struct.pack(f"{order}H", 1) + entry + struct.pack(f"{order}I", 0)


# Where the four corners (red, green, blue, yellow) of the stored image are when it is upright.
CORNERS = {1: "rgby", 2: "gryb", 3: "ybgr", 4: "byrg", 5: "rbgy", 6: "bryg", 7: "ygbr", 8: "gyrb"}


def corners(image: torch.Tensor) -> str:
    found = ""
    for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        red, green, blue = image[:, 8 * y or 8, 8 * x or 8].tolist()
        found += "y" if red > 128 < green else "rgb"[int(np.argmax([red, green, blue]))]
    return found


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "JPEG big-endian", "JPEG cmyk"])
def test_exif_orientation_is_honoured(orientation: int, kind: str) -> None:
    image = Image.fromarray(pixels()).convert("CMYK" if "cmyk" in kind else "RGB")
    block = exif(orientation, ">" if "big" in kind else "<")
    data = saved(image, kind.split()[0], exif=block)
    assert corners(decode(data, SIZE)) == CORNERS[orientation]
    assert difference(data) <= 1


def with_segment(data: bytes, segment: bytes) -> bytes:
    length = struct.pack(">H", len(segment) + 2)
    return data[:2] + b"\xff\xe1" + length + segment + data[2:]


def test_orientation_said_by_xmp_is_honoured() -> None:
    text = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
    data = with_segment(saved(pixels()), text)
    assert corners(decode(data, SIZE)) == CORNERS[6]
    assert difference(data) <= 1


@pytest.mark.parametrize(
    "block", [exif(0), exif(9), exif(6)[:14], b"Exif\0\0", b"Exif\0\0II*\0\xff"]
)
def test_damaged_exif_does_not_lose_the_image(block: bytes) -> None:
    plain = saved(pixels())
    assert torch.equal(decode(with_segment(plain, block), SIZE), decode(plain, SIZE))


def test_a_crop_is_of_the_upright_image() -> None:
    data = saved(pixels(200, 100), exif=exif(6))  # upright it is 100 x 200
    done = decode(data, SIZE, crop=(0.25, 0.5, 0.5, 0.25)).permute(1, 2, 0).numpy()
    assert np.abs(done - by_pillow(data, crop=(25, 100, 75, 150))).max() <= 1


def test_the_whole_is_a_crop_too_and_none_is_empty() -> None:
    data = saved(pixels(9, 7))
    assert torch.equal(decode(data, 16, crop=(0.0, 0.0, 1.0, 1.0)), decode(data, 16))
    for crop in ((0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (0.999, 0.0, 0.001, 1.0)):
        assert decode(data, 16, crop=crop).shape == (3, 16, 16)


@pytest.mark.parametrize("crop", [(-0.1, 0, 1, 1), (0.5, 0, 0.6, 1), (0, 0.5, 1, 0.6)])
def test_a_crop_outside_is_refused(crop: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="crop must be"):
        decode(saved(pixels()), SIZE, crop=crop)


JPEGS = {
    "baseline": saved(pixels(400, 300), quality=90),
    "progressive": saved(pixels(400, 300), progressive=True),
    "grey": saved(converted("L").resize((400, 300))),
    "cmyk": saved(converted("CMYK").resize((400, 300))),
}


@pytest.mark.parametrize("name", JPEGS)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999])
def test_a_jpeg_cut_short_is_refused(name: str, share: float) -> None:
    data = JPEGS[name]
    with pytest.raises(ImageError):
        decode(data[: int(len(data) * share)], SIZE)


@pytest.mark.parametrize("name", ["baseline", "progressive", "grey"])
def test_a_jpeg_cut_short_and_closed_is_refused_although_pillow_reads_it(name: str) -> None:
    data = JPEGS[name]
    for share in (0.3, 0.5, 0.9):
        closed = data[: int(len(data) * share)] + b"\xff\xd9"
        with Image.open(io.BytesIO(closed)) as image:
            image.load()  # grey from somewhere on
        with pytest.raises(ImageError, match="cut short"):
            decode(closed, SIZE)


def test_a_jpeg_with_lost_restart_markers_is_refused() -> None:
    data = bytearray(saved(pixels(400, 300), restart_marker_blocks=8))
    at = bytes(data).find(b"\xff\xd3", len(data) // 2)
    data[at + 1] = 0xD6
    with pytest.raises(ImageError, match="damaged"):
        decode(bytes(data), SIZE)


def test_harmless_extra_bytes_are_accepted() -> None:
    data = JPEGS["baseline"]
    assert torch.equal(decode(data + b"\0" * 999, SIZE), decode(data, SIZE))
    inside = data[:-2] + b"\0\0\0\0" + data[-2:]
    assert (decode(inside, SIZE).int() - decode(data, SIZE).int()).abs().max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "GIF", "BMP", "JPEG2000"])
def test_other_formats_cut_short_are_refused(kind: str) -> None:
    data = saved(converted("P") if kind == "GIF" else pixels(300, 200), kind)
    for share in (0.02, 0.3, 0.6):
        with pytest.raises(ImageError):
            decode(data[: int(len(data) * share)], SIZE)


def png_header(width: int, height: int) -> bytes:
    """A PNG that only says how large it is."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + saved(pixels(), "PNG")[33:]


def jpeg_of(width: int, height: int) -> bytes:
    """A small JPEG whose header says another size."""
    data = bytearray(saved(pixels()))
    at = bytes(data).find(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("data", [png_header(60_000, 60_000), jpeg_of(65_000, 65_000)])
def test_a_decompression_bomb_is_refused_before_it_takes_memory(data: bytes) -> None:
    with pytest.raises(ImageError, match="pixels"):
        decode(data, SIZE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"hello, world\n" * 50,
        b"<html></html>",
        b"GIF89a",
        bytes(1000),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        jpeg_of(0, 9),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError) as caught:
        decode(data, SIZE)
    assert isinstance(caught.value, PartlabelError)
    assert "\n" not in str(caught.value)
    assert "0x7f" not in str(caught.value)  # the address of something


SOURCES = [JPEGS["progressive"][:9000], saved(pixels(20, 20)), saved(pixels(20, 20), "PNG")]
SOURCES += [saved(pixels(20, 20), "WEBP"), saved(pixels(20, 20), exif=exif(5))]


@given(
    st.sampled_from(SOURCES),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4),
    st.floats(0, 1),
)
def test_damaged_bytes_give_an_image_or_an_image_error(
    data: bytes, patches: list[tuple[float, bytes]], keep: float
) -> None:
    broken = bytearray(data)
    for share, patch in patches:
        at = int(share * len(data))
        broken[at : at + len(patch)] = patch
    try:
        done = decode(bytes(broken[: int(len(data) * (1 - keep / 3))]), 8)
    except ImageError:
        return
    assert done.shape == (3, 8, 8)


def test_without_simplejpeg_pillow_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(pixels(), exif=exif(6))
    fast = decode(data, SIZE)
    monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    assert (decode(data, SIZE).int() - fast.int()).abs().max() <= 1
    with pytest.raises(ImageError):
        decode(JPEGS["baseline"][:5000], SIZE)


def test_the_result_is_no_view_of_the_input() -> None:
    data = saved(pixels(SIZE, SIZE), "BMP")
    first = decode(data, SIZE)
    kept = first.clone()
    first.zero_()
    assert torch.equal(decode(data, SIZE), kept)


def test_importing_is_light() -> None:
    heavy = {"PIL", "pyarrow", "simplejpeg", "timm", "torchvision"}
    script = "import sys, partlabel.images, partlabel.augment; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not heavy & set(done.stdout.split())
