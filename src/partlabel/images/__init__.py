"""Images: where their bytes come from, and how bytes become tensors."""

from __future__ import annotations

import io
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from partlabel.errors import UsageError, suggest
from partlabel.images.files import ImageError, ImageSource, open_folder
from partlabel.images.parquet import open_parquet
from partlabel.images.tar import open_tar
from partlabel.store import LabelStore

__all__ = ["KINDS", "ImageError", "ImageSource", "decode", "open_images", "pixels"]

KINDS = ("folder", "tar", "parquet")

Pixels = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""

_MOST_PIXELS = 178_956_970  # Pillow's own limit: more is taken for an attack
# What Pillow may open: pictures. Others of its formats run programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")
_ORIENTATION = 0x0112
_SLACK = 1e-9  # for sums of shares
# A JPEG whose data ends early decodes to grey below; Pillow would accept it.
_LOST = re.compile("premature end|bad huffman|bad arithmetic|instead of rst", re.IGNORECASE)


def open_images(
    kind: str, root: Path, store: LabelStore, *, cache: Path | None = None
) -> ImageSource:
    """Open where the images of a store are.

    Args:
        kind: ``folder``: files under the store's paths; ``tar``: tar shards (WebDataset);
            ``parquet``: a column of bytes.
        root: The folder; for tar and parquet a file, a folder of them, a pattern, or several
            with commas.
        store: Whose images are looked for.
        cache: A folder for what is made once: the index of tar shards, the flat copy of parquet
            files. Without it the index is made each time and the copy is temporary.
    """
    root = Path(root).expanduser()
    try:
        if kind == "folder":
            return open_folder(root, store)
        if kind == "tar":
            return open_tar(root, store, cache)
        if kind == "parquet":
            return open_parquet(root, store, cache)
    except OSError as error:
        what = f"{error.filename or cache or tempfile.gettempdir()}: {error.strerror or error}"
        raise UsageError(f"{what}; name a cache folder with enough space") from error
    raise UsageError(f"there is no kind of images {kind!r}; {suggest(kind, KINDS)}")


def decode(
    data: bytes, size: int, *, crop: tuple[float, float, float, float] | None = None
) -> Tensor:
    """Decode an image and resize it to a square, whatever its shape (no side is cut off).

    Antialiased bilinear, equal to Pillow's within 1 of 255. Colours as Pillow converts them to RGB
    (alpha is dropped; of 16 bits the upper 8), EXIF orientation as seen by people.

    Args:
        data: A JPEG, PNG, WebP, GIF, BMP, TIFF, JPEG 2000 or PPM file.
        size: Side of the result.
        crop: The part to take, as shares of the image: left, top, width, height.

    Returns:
        uint8 (3, size, size), RGB.
    """
    whole = pixels(data)
    if crop is not None:
        whole = _cropped(whole, crop)
    # One image, channels last: the layout for which torch has a fast way.
    image = torch.from_numpy(np.ascontiguousarray(whole))[None].permute(0, 3, 1, 2)
    resized = interpolate(image, (size, size), mode="bilinear", antialias=True)
    return resized[0].contiguous()


def pixels(data: bytes) -> Pixels:
    """Decode an image as it is: its own size and shape, upright."""
    found = _jpeg_pixels(data) if data[:2] == b"\xff\xd8" else None
    return _pillow_pixels(data) if found is None else found


@lru_cache(maxsize=1)
def _simplejpeg() -> ModuleType | None:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None  # Pillow does it too, at half the speed


def _jpeg_pixels(data: bytes) -> Pixels | None:
    """The pixels of an ordinary JPEG; None where Pillow knows better."""
    decoder = _simplejpeg()
    if decoder is None:
        return None
    try:
        height, width, colours, _ = decoder.decode_jpeg_header(data)
        if colours not in ("YCbCr", "RGB", "Gray") or height * width > _MOST_PIXELS:
            return None
        pixels: Pixels = decoder.decode_jpeg(data, "RGB")
    except ValueError as error:
        if _LOST.search(str(error)):
            raise ImageError(f"the JPEG is damaged or cut short ({error})") from error
        return None
    return _upright(pixels, _jpeg_orientation(data))


def _jpeg_orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, looked for in the segments before its pixels."""
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : end] if data[at + 1] == 0xE1 else b""
        if segment.startswith(b"Exif\0\0") or b"tiff:Orientation" in segment:
            try:
                with _pillow(data) as image:
                    return _orientation(image)
            except ImageError:
                return 1
        at = end
    return 1


def _pillow_pixels(data: bytes) -> Pixels:
    if not data:
        raise ImageError("there are no bytes")
    with _pillow(data) as image:
        if image.mode.startswith("I;16"):
            upper = (np.asarray(image) >> 8).astype(np.uint8)  # convert() would cut, not scale
            pixels = np.repeat(upper[:, :, None], 3, axis=2)
        elif image.mode in ("I", "F"):
            raise ImageError("has 32 bits per pixel, whose range is not known; save it with 8")
        else:
            pixels = np.array(image.convert("RGB"))
        return _upright(pixels, _orientation(image))


@contextmanager
def _pillow(data: bytes) -> Iterator[Any]:
    """Open an image with Pillow; whatever that says of it becomes an ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, odd metadata and palettes
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ImageError(f"has {image.width} x {image.height} pixels, too many")
                yield image
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("is not an image of a known format") from error
    except Exception as error:  # decoders of damaged files raise whatever they stumble on
        raise ImageError(f"cannot be decoded ({error or type(error).__name__})") from error


def _orientation(image: Any) -> int:
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata is no reason to lose the image
        return 1
    return int(found) if found in range(1, 9) else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn an image as its EXIF orientation (1 to 8) says."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _cropped(pixels: Pixels, crop: tuple[float, float, float, float]) -> Pixels:
    """The pixels of a part given in shares; one at least."""
    left, top, width, height = crop
    if min(crop) < 0 or left + width > 1 + _SLACK or top + height > 1 + _SLACK:
        raise ValueError(f"crop must be left, top, width, height within 0..1, got {crop}")
    rows, columns = pixels.shape[:2]
    y = min(round(top * rows), rows - 1)
    x = min(round(left * columns), columns - 1)
    bottom = max(round((top + height) * rows), y + 1)
    right = max(round((left + width) * columns), x + 1)
    return pixels[y:bottom, x:right]
