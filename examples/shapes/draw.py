"""Draw the images and labels of this example: coloured shapes, of which only some labels are known.

python examples/shapes/draw.py  writes labels.csv, images/ and scores.parquet beside this file, the
same every time. The scores are logits of a made-up model: right on the whole, and noisy.
"""

import csv
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIZE = 32
COLOURS = {"red": (214, 64, 56), "green": (60, 158, 86), "blue": (58, 104, 196)}
SHAPES = ("circle", "square", "stripe")
HERE = Path(__file__).parent


def picture(colour: tuple[int, int, int], shape: str, rng: np.random.Generator) -> np.ndarray:
    """One shape on a light ground."""
    y, x = np.mgrid[:SIZE, :SIZE]
    cx, cy = rng.integers(11, 21, 2)
    inside = {
        "circle": (x - cx) ** 2 + (y - cy) ** 2 < 81,
        "square": (abs(x - cx) < 8) & (abs(y - cy) < 8),
        "stripe": abs(y - cy) < 4,
    }[shape]
    image = np.full((SIZE, SIZE, 3), 240, np.uint8)
    image[inside] = colour
    return image


def png(image: np.ndarray) -> bytes:
    """The bytes of a png file."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def main() -> None:
    """Draw everything."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(1)
    names, scores = [], []
    (HERE / "images").mkdir(exist_ok=True)
    with (HERE / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image_id", "label", "value"])
        for number in range(24):
            colour = list(COLOURS)[rng.integers(3)]
            shape = SHAPES[rng.integers(3)]
            name = f"images/{number:02d}.png"
            (HERE / name).write_bytes(png(picture(COLOURS[colour], shape, rng)))
            labels = {label: label in (colour, shape) for label in (*COLOURS, *SHAPES)}
            known = [label for label in labels if rng.random() < 0.4]
            writer.writerows([name, label, int(labels[label])] for label in known)
            if known:  # an image without any label is not in the store
                names.append(name)
                scores.append(np.array([3.0 * here - 2.0 for here in labels.values()]))
    table = {"image_id": names}
    for i, label in enumerate(labels):
        values = np.array(scores)[:, i] + noise.normal(0, 1.5, len(scores))
        table[label] = values.astype(np.float32)
    pq.write_table(pa.table(table), HERE / "scores.parquet")


if __name__ == "__main__":
    main()
