"""Annotations written in the layout of each data set, as its makers publish it.

Nothing here is shared with the package: the tests read these files with partlabel and compare with
what was meant. A writer gets a Truth, puts files into a folder and returns a Written: how to
import them, and what the store must then say.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

State = int
Triple = tuple[int, int, State]


@dataclass(frozen=True)
class Variant:
    """How the bytes of a text file are packed."""

    gz: bool = False
    bom: bool = False
    crlf: bool = False

    def write(self, path: Path, text: str) -> Path:
        if self.gz:
            path = path.with_name(path.name + ".gz")
        data = text.encode("utf-8-sig" if self.bom else "utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if self.gz else data)
        return path

    @property
    def newline(self) -> str:
        return "\r\n" if self.crlf else "\n"


PLAIN = Variant()


@dataclass(frozen=True)
class Truth:
    """What is to be written: images by number, classes by name, annotations one by one."""

    numbers: list[int]
    classes: list[str]
    splits: list[str | None]
    triples: list[Triple]
    """Image position, class position, +1 or -1; may repeat and contradict itself."""

    def states(self) -> list[list[State]]:
        """Present wins over absent, what nobody mentions is unknown."""
        dense = [[0] * len(self.classes) for _ in self.numbers]
        for image, which, state in self.triples:
            dense[image][which] = max(state, dense[image][which], key=lambda s: (s == 1, s != 0))
        return dense

    def duplicates(self) -> int:
        return sum(count - 1 for count in Counter(self.triples).values())

    def conflicts(self) -> int:
        said: dict[tuple[int, int], set[State]] = {}
        for image, which, state in self.triples:
            said.setdefault((image, which), set()).add(state)
        return sum(len(states) == 2 for states in said.values())


@dataclass(frozen=True)
class Expected:
    """What a store must say, in its own order."""

    ids: list[Any]
    classes: list[str]
    states: list[list[State]]
    id_type: str
    names: list[str] | None = None
    paths: list[str | None] | None = None
    splits: list[str | None] | None = None
    complete: bool = False
    duplicates: int = 0
    conflicts: int = 0
    files: list[Path] = field(default_factory=list)
    """The files that meta.json must list, in any order."""


@dataclass(frozen=True)
class Written:
    """One data set on disk."""

    reader: str
    sources: Any
    expected: Expected
    options: dict[str, Any] = field(default_factory=dict)
    layers: dict[str, Expected] = field(default_factory=dict)


def columns_of(states: Sequence[Sequence[State]], order: Sequence[int]) -> list[list[State]]:
    """The same states with the classes in another order."""
    return [[row[which] for which in order] for row in states]


def sorted_order(names: Sequence[str]) -> list[int]:
    return sorted(range(len(names)), key=lambda i: names[i])


# --- csv -----------------------------------------------------------------------------------------


def csv_cell(cell: str, delimiter: str = ",") -> str:
    if any(mark in cell for mark in ('"', "\n", "\r", delimiter)):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def csv_text(rows: Iterable[Sequence[str]], newline: str = "\n", delimiter: str = ",") -> str:
    lines = (delimiter.join(csv_cell(cell, delimiter) for cell in row) for row in rows)
    return "".join(line + newline for line in lines)


# --- Open Images ---------------------------------------------------------------------------------

OI_SPLITS = ("train", "validation", "test")
OI_LIST_HEADER = [
    "ImageID",
    "Subset",
    "OriginalURL",
    "OriginalLandingURL",
    "License",
    "AuthorProfileURL",
    "Author",
    "Title",
    "OriginalSize",
    "OriginalMD5",
    "Thumbnail300KURL",
    "Rotation",
]
OI_TITLES = ("plain", 'a "quoted", title', "two\nlines, one title", "naïve 写真", "")


def mid(index: int) -> str:
    """A machine id like those of Open Images; the order of ids is not the order of indices."""
    digits = "0123456789bcdfghjklmnpqrstvwxyz_"
    number = (index * 2_654_435_761 + 12_345) % (1 << 32)
    return "/m/0" + "".join(digits[(number >> shift) & 31] for shift in range(0, 35, 5))


@dataclass
class _OpenImages:
    """The choices of one Open Images download, and the random ones made on the way."""

    folder: Path
    truth: Truth
    version: int
    case: str
    variant: Variant
    rng: random.Random

    def __post_init__(self) -> None:
        self.ids = [mid(which) for which in range(len(self.truth.classes))]
        self.splits = [split for split in OI_SPLITS if split in self.truth.splits]
        self.base = self.folder / "2017_11" if self.version == 3 else self.folder
        self.prefix = "" if self.version == 3 else "oidv6-"

    def spelt(self, number: int) -> str:
        text = f"{number:016x}"
        upper = self.case == "upper" or (self.case == "mixed" and self.rng.random() < 0.5)
        return text.upper() if upper else text

    def write(self, path: Path, rows: Iterable[Sequence[str]]) -> Path:
        return self.variant.write(path, csv_text(rows, self.variant.newline))

    def labels(self, kind: str, rows: Iterable[tuple[int, int, str]]) -> list[Path]:
        """The label files, one per split; rows are image, class, confidence."""
        paths = []
        rows = list(rows)
        for split in self.splits:
            lines = [["ImageID", "Source", "LabelName", "Confidence"]]
            for image, which, confidence in rows:
                if self.truth.splits[image] == split:
                    by = self.rng.choice(["verification", "crowdsource-verification"])
                    by = "machine" if kind == "machine" else by
                    name = self.ids[which] if which >= 0 else f"/m/other{which}"
                    number = self.truth.numbers[image]
                    lines.append([self.spelt(number), by, name, confidence])
            if rows and len(lines) == 1:
                continue  # a file without rows is refused
            paths.append(self.write(self.folder / _oi_label_name(self.version, split, kind), lines))
        return paths

    def class_list(self) -> Path:
        text = "".join(name + self.variant.newline for name in self.ids)
        path = self.base / f"{self.prefix}classes-trainable.txt"
        return Variant(bom=self.variant.bom).write(path, text)

    def descriptions(self) -> Path:
        rows = [["/m/not-used", "Something, else"]]
        rows += [list(pair) for pair in zip(self.ids, self.truth.classes, strict=True)]
        self.rng.shuffle(rows)
        if self.version == 6:
            rows.insert(0, ["LabelName", "DisplayName"])
        return self.write(self.base / f"{self.prefix}class-descriptions.csv", rows)

    def rows(self, kept: Callable[[int], bool], *, by_name: bool) -> list[int]:
        """Image positions in the order of the store: by split, then by id."""
        splits = sorted(self.splits) if by_name else self.splits
        rows = [i for i in range(len(self.truth.numbers)) if kept(i)]
        rows.sort(key=lambda i: (splits.index(str(self.truth.splits[i])), self.truth.numbers[i]))
        return rows

    def image_lists(self, *, one: bool) -> list[Path]:
        header = OI_LIST_HEADER[: 11 if self.version == 3 else 12]

        def row(number: int, split: str | None) -> list[str]:
            cells = [self.spelt(number), str(split), "https://example/1.jpg", "https://example/1"]
            cells += ["by", "https://example/people", "A. Author", self.rng.choice(OI_TITLES)]
            return [*cells, "4711", "0lJPRd6wVUxDzBmLRSGvHw==", "", "0.0"][: len(header)]

        pairs = list(zip(self.truth.numbers, self.truth.splits, strict=True))
        self.rng.shuffle(pairs)
        if one:
            path = self.base / "image_ids_and_rotation.csv"
            return [self.write(path, [header, *(row(*pair) for pair in pairs)])]
        paths = []
        for split in self.splits:
            if self.version == 3:
                path = self.base / split / "images.csv"
            elif split == "train":
                path = self.base / "oidv6-train-images-with-labels-with-rotation.csv"
            else:
                path = self.base / f"{split}-images-with-rotation.csv"
            rows = [header, *(row(*pair) for pair in pairs if pair[1] == split)]
            paths.append(self.write(path, rows))
        return paths

    def expect(
        self, states: list[list[State]], rows: list[int], order: list[int], **more: Any
    ) -> Expected:
        splits, numbers = self.truth.splits, self.truth.numbers
        return Expected(
            ids=[numbers[i] for i in rows],
            classes=[self.ids[which] for which in order],
            states=columns_of([states[i] for i in rows], order),
            id_type="uint64",
            paths=[f"{splits[i]}/{numbers[i]:016x}.jpg" for i in rows],
            splits=[splits[i] for i in rows],
            **more,
        )


def openimages(
    folder: Path,
    truth: Truth,
    *,
    version: int = 6,
    case: str = "lower",
    class_list: bool = True,
    descriptions: bool = True,
    image_list: str | None = None,
    other: int = 0,
    machine: list[tuple[int, int, float]] | None = None,
    variant: Variant = PLAIN,
    seed: int = 0,
) -> Written:
    """Verified labels; class c of the truth is named by its text and has the id mid(c).

    Args:
        version: 6, or 3 with its folders and its descriptions without header.
        case: lower, upper or mixed: how image ids are spelt.
        image_list: None, "one" (image_ids_and_rotation.csv) or "each" (a file per split).
        other: So many labels, of labelled images, for classes that are not in the class list.
        machine: Labels (image, class, confidence) of the machine layer; it is cut at 0.7.
    """
    work = _OpenImages(folder, truth, version, case, variant, random.Random(seed))
    labelled = sorted({image for image, _, _ in truth.triples})
    triples = [(image, which, "1" if state > 0 else "0") for image, which, state in truth.triples]
    for number in range(other if class_list and labelled else 0):
        foreign = (work.rng.choice(labelled), -1 - number, "1")
        triples.insert(work.rng.randint(0, len(triples)), foreign)
    sources = work.labels("human", triples)
    options: dict[str, Any] = {}
    if class_list:
        options["classes"] = work.class_list()
    if descriptions:
        options["descriptions"] = work.descriptions()
    files = [*sources, *options.values()]
    if image_list:
        options["image_list"] = work.image_lists(one=image_list == "one")
        files += options["image_list"]

    used = {which for _, which, _ in truth.triples}
    order = list(range(len(work.ids)))
    if not class_list:
        order = [which for which in sorted_order(work.ids) if which in used]
    names = [truth.classes[c] if descriptions else work.ids[c] for c in order]
    listed = image_list is not None
    layers = {}
    if machine is not None:
        paths = work.labels("machine", [(i, c, f"{value:.1f}") for i, c, value in machine])
        options |= {"machine": [str(path) for path in paths], "machine_threshold": 0.7}
        kept = Counter((i, c) for i, c, value in machine if round(value * 10) >= 7)
        states = [[int((i, c) in kept) for c in order] for i in range(len(truth.numbers))]
        layers["machine"] = work.expect(
            states,
            work.rows(lambda i: listed or any(states[i]), by_name=listed),
            order,
            names=names,
            files=paths,
            duplicates=sum(count - 1 for count in kept.values()),
        )
    expected = work.expect(
        truth.states(),
        work.rows(lambda i: listed or i in labelled, by_name=listed),
        order,
        names=names,
        files=files,
        duplicates=truth.duplicates(),
        conflicts=truth.conflicts(),
    )
    return Written("openimages", [str(path) for path in sources], expected, options, layers)


def _oi_label_name(version: int, split: str, kind: str) -> str:
    if version == 3:
        return f"2017_11/{split}/annotations-{kind}.csv"
    prefix = "oidv6-" if split == "train" and kind == "human" else ""
    return f"{prefix}{split}-annotations-{kind}-imagelabels.csv"


# --- the data.csv of the paper's authors ---------------------------------------------------------


def csl(
    folder: Path, truth: Truth, *, class_list: bool = False, variant: Variant = PLAIN
) -> Written:
    """One row per image, Python lists of class ids; classes are the sorted union."""
    states = truth.states()
    paths = [
        f"{split}/{number:016x}.jpg"
        for number, split in zip(truth.numbers, truth.splits, strict=True)
    ]
    rows = [["filepath", "label", "label_neg", "split_name"]]
    for path, row, split in zip(paths, states, truth.splits, strict=True):
        present = [name for name, state in zip(truth.classes, row, strict=True) if state > 0]
        absent = [name for name, state in zip(truth.classes, row, strict=True) if state < 0]
        rows.append([path, repr(present), repr(absent), str(split)])
    source = variant.write(folder / "data.csv", csv_text(rows, variant.newline))
    options: dict[str, Any] = {}
    files = [source]
    order = [which for which in sorted_order(truth.classes) if any(row[which] for row in states)]
    if class_list:
        order = list(range(len(truth.classes)))
        options["classes"] = write_class_list(folder, truth.classes)
        files.append(options["classes"])
    return Written(
        "csl",
        [str(source)],
        Expected(
            ids=paths,
            classes=[truth.classes[which] for which in order],
            states=columns_of(states, order),
            id_type="string",
            paths=list(paths),
            splits=list(truth.splits),
            files=files,
        ),
        options,
    )


def write_class_list(folder: Path, names: Sequence[str], *, table: bool = False) -> Path:
    """One id per line, or the classes table index,label,name in any order of rows."""
    if table:
        rows = [[str(i), name, f"Name of {name}"] for i, name in enumerate(names)]
        text = csv_text([["index", "label", "name"], *rows[::-1]])
        return PLAIN.write(folder / "classes.csv", text)
    return PLAIN.write(folder / "classes.txt", "".join(name + "\n" for name in names))


# --- COCO and LVIS -------------------------------------------------------------------------------


def category_ids(count: int) -> list[int]:
    """Ids with gaps, as COCO has them: 1..90 for 80 classes."""
    return [which + 1 + which // 8 for which in range(count)]


def _object(number: int, image: int, category: int, rng: random.Random) -> dict[str, Any]:
    x, y, w, h = (round(rng.uniform(0, 400), 2) for _ in range(4))
    return {
        "segmentation": [[x, y, x + w, y, x + w, y + h]],
        "area": w * h,
        "image_id": image,
        "bbox": [x, y, w, h],
        "category_id": category,
        "id": number,
    }


def lvis(
    folder: Path,
    truth: Truth,
    *,
    version: str = "1",
    variant: Variant = PLAIN,
    indent: int | None = None,
    ascii_only: bool = True,
    seed: int = 0,
) -> Written:
    """Annotated or not exhaustive is present, neg_category_ids absent; val has train2017 images."""
    rng = random.Random(seed)
    states = truth.states()
    ids = category_ids(len(truth.classes))
    sources, order, paths = [], [], []
    for split in ("train", "val"):
        here = [i for i, name in enumerate(truth.splits) if name == split]
        if not here:
            continue
        images, annotations = [], []
        for i in here:
            number = truth.numbers[i]
            year_folder = "train2017" if split == "train" or rng.random() < 0.7 else "val2017"
            present = [c for c, state in enumerate(states[i]) if state > 0]
            partly = [c for c in present if rng.random() < 0.3]
            for c in present:
                # A category marked as not exhaustive nearly always has an object, not always.
                times = rng.randint(0 if c in partly else 1, 3)
                annotations += [
                    _object(len(annotations) + k, number, ids[c], rng) for k in range(times)
                ]
            image = {
                "id": number,
                "date_captured": "2013-11-14 17:02:52",
                "neg_category_ids": [ids[c] for c, state in enumerate(states[i]) if state < 0],
                "license": 4,
                "height": 427,
                "width": 640,
                "flickr_url": "http://farm5.staticflickr.com/1_z.jpg",
                "coco_url": f"http://images.cocodataset.org/{year_folder}/{number:012d}.jpg",
                "not_exhaustive_category_ids": [ids[c] for c in partly],
            }
            if version == "0.5":
                image["file_name"] = f"{number:012d}.jpg"
            images.append(image)
            order.append(i)
            paths.append(f"{year_folder}/{number:012d}.jpg")
        rng.shuffle(annotations)
        content = {
            "info": {"description": "LVIS", "version": f"v{version}", "year": 2020},
            "annotations": annotations,
            "images": images,
            "licenses": [{"id": 1, "name": "by-nc-sa", "url": "http://example/"}],
            "categories": _lvis_categories(truth.classes, ids),
        }
        text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
        sources.append(variant.write(folder / f"lvis_v{version}_{split}.json", text))
    return Written(
        "lvis",
        [str(path) for path in sources],
        _instances_expected(truth, states, order, paths, ids, sources, complete=False),
    )


def _lvis_categories(names: Sequence[str], ids: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "frequency": "rcf"[number % 3],
            "id": number,
            "synset": f"thing.n.{number:02d}",
            "image_count": 7,
            "instance_count": 9,
            "synonyms": [name, "other"],
            "def": 'a "thing", defined',
            "name": name,
        }
        for number, name in zip(ids, names, strict=True)
    ]


def coco(
    folder: Path,
    truth: Truth,
    *,
    year: int = 2014,
    urls: bool = True,
    keep_empty: bool = False,
    variant: Variant = PLAIN,
    indent: int | None = None,
    ascii_only: bool = True,
    seed: int = 0,
) -> Written:
    """Objects of some classes; all others are absent. States of 0 and -1 are the same here."""
    rng = random.Random(seed)
    states = [[1 if state > 0 else -1 for state in row] for row in truth.states()]
    ids = category_ids(len(truth.classes))
    sources, order, paths = [], [], []
    for split in ("train", "val"):
        here = [i for i, name in enumerate(truth.splits) if name == split]
        if not here:
            continue
        images, annotations = [], []
        for i in here:
            number = truth.numbers[i]
            prefix = f"COCO_{split}2014_" if year == 2014 else ""
            file_name = f"{prefix}{number:012d}.jpg"
            image = {"license": 5, "file_name": file_name, "height": 480, "width": 640}
            if urls:
                image["coco_url"] = f"http://images.cocodataset.org/{split}{year}/{file_name}"
            image |= {"date_captured": "2013-11-14 16:28:13", "id": number}
            images.append(image)
            for c in (c for c, state in enumerate(states[i]) if state > 0):
                for _ in range(rng.randint(1, 3)):
                    entry = _object(900_100 + len(annotations), number, ids[c], rng)
                    annotations.append(entry | {"iscrowd": int(rng.random() < 0.3)})
            if keep_empty or any(state > 0 for state in states[i]):
                order.append(i)
                paths.append(f"{split}{year}/{file_name}" if urls else file_name)
        rng.shuffle(annotations)
        content = {
            "info": {"description": f"COCO {year} Dataset", "version": "1.0", "year": year},
            "images": images,
            "licenses": [{"url": "http://example/", "id": 1, "name": "by-nc-sa"}],
            "annotations": annotations,
            "categories": [
                {"supercategory": "thing", "id": number, "name": name}
                for number, name in zip(ids, truth.classes, strict=True)
            ],
        }
        text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
        path = folder / "annotations" / f"instances_{split}{year}.json"
        sources.append(variant.write(path, text))
    return Written(
        "coco",
        [str(path) for path in sources],
        _instances_expected(truth, states, order, paths, ids, sources, complete=True),
        {"keep_empty": True} if keep_empty else {},
    )


def _instances_expected(
    truth: Truth,
    states: list[list[State]],
    order: list[int],
    paths: list[str],
    ids: list[int],
    files: list[Path],
    *,
    complete: bool,
) -> Expected:
    return Expected(
        ids=[truth.numbers[i] for i in order],
        classes=[str(number) for number in ids],
        names=list(truth.classes),
        states=[states[i] for i in order],
        id_type="int64",
        paths=list(paths),
        splits=[truth.splits[i] for i in order],
        complete=complete,
        files=files,
    )


# --- Pascal VOC ----------------------------------------------------------------------------------


def voc(
    folder: Path, truth: Truth, *, variant: Variant = PLAIN, difficult: str = "unknown"
) -> Written:
    """ImageSets/Main: every image under every class, 0 where all objects are difficult."""
    states = truth.states()
    main = folder / "ImageSets" / "Main"
    names = [f"{number:06d}" for number in truth.numbers]
    here = {
        split: [i for i, name in enumerate(truth.splits) if name == split]
        for split in ("train", "val", "test")
    }
    here = {split: rows for split, rows in here.items() if rows}
    newline = variant.newline
    files = []
    both = [*here.get("train", []), *here.get("val", [])]
    for split, rows in {**here, "trainval": both}.items():
        listed = Variant().write(main / f"{split}.txt", "".join(names[i] + newline for i in rows))
        if split != "trainval":
            files.append(listed)
        for c, name in enumerate(truth.classes):
            text = "".join(f"{names[i]} {states[i][c]:2d}{newline}" for i in rows)
            path = Variant(bom=variant.bom).write(main / f"{name}_{split}.txt", text)
            if split != "trainval":
                files.append(path)
    order = [i for rows in here.values() for i in rows]
    becomes = {1: 1, -1: -1, 0: {"unknown": 0, "absent": -1, "present": 1}[difficult]}
    classes = sorted_order(truth.classes)
    return Written(
        "voc",
        folder,
        Expected(
            ids=[names[i] for i in order],
            classes=[truth.classes[c] for c in classes],
            states=[[becomes[states[i][c]] for c in classes] for i in order],
            id_type="string",
            paths=[f"JPEGImages/{names[i]}.jpg" for i in order],
            splits=[truth.splits[i] for i in order],
            complete=difficult != "unknown",
            files=files,
        ),
        {} if difficult == "unknown" else {"difficult": difficult},
    )


# --- NUS-WIDE ------------------------------------------------------------------------------------


def nuswide(folder: Path, truth: Truth, *, variant: Variant = PLAIN) -> Written:
    """A 0/1 line per image and concept, in the order of the image lists."""
    states = [[1 if state > 0 else -1 for state in row] for row in truth.states()]
    newline = variant.newline
    names = [f"concept {number % 7}\\{number:04d}_{number * 31}.jpg" for number in truth.numbers]
    labels = folder / "Groundtruth" / "TrainTestLabels"
    files, order = [], []
    for part, split in (("Train", "train"), ("Test", "test")):
        here = [i for i, name in enumerate(truth.splits) if name == split]
        order += here
        text = "".join(names[i] + newline for i in here)
        files.append(
            Variant(bom=variant.bom).write(folder / f"ImageList/{part}Imagelist.txt", text)
        )
        for c, concept in enumerate(truth.classes):
            marks = "".join(f"{int(states[i][c] > 0)}{newline}" for i in here)
            files.append(Variant().write(labels / f"Labels_{concept}_{part}.txt", marks))
    for c, concept in enumerate(truth.classes):  # official, and of no use here
        marks = "".join(f"{int(row[c] > 0)}{newline}" for row in states)
        Variant().write(folder / "Groundtruth" / "AllLabels" / f"Labels_{concept}.txt", marks)
    classes = sorted_order(truth.classes)
    paths = [names[i].replace("\\", "/") for i in order]
    return Written(
        "nuswide",
        folder,
        Expected(
            ids=paths,
            classes=[truth.classes[c] for c in classes],
            states=columns_of([states[i] for i in order], classes),
            id_type="string",
            paths=list(paths),
            splits=[truth.splits[i] for i in order],
            complete=True,
            files=files,
        ),
    )


# --- CheXpert ------------------------------------------------------------------------------------


def chexpert(
    folder: Path,
    truth: Truth,
    doubt: set[tuple[int, int]],
    *,
    uncertain: str = "unknown",
    variant: Variant = PLAIN,
) -> Written:
    """Observations 1.0, 0.0, blank, and -1.0 for those in ``doubt`` (image, class)."""
    root = folder / "CheXpert-v1.0"
    states = truth.states()
    marks = {1: "1.0", -1: "0.0", 0: ""}
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *truth.classes]
    paths = [
        f"CheXpert-v1.0/{split}/patient{number:05d}/study1/view1_frontal.jpg"
        for number, split in zip(truth.numbers, truth.splits, strict=True)
    ]
    sources, order = [], []
    for split in ("train", "valid"):
        here = [i for i, name in enumerate(truth.splits) if name == split]
        if not here:
            continue
        order += here
        rows = [header]
        for i in here:
            about = [paths[i], "Female", "68", "Frontal", "AP"]
            cells = [
                "-1.0" if (i, c) in doubt else marks[state] for c, state in enumerate(states[i])
            ]
            rows.append(about + cells)
        sources.append(variant.write(root / f"{split}.csv", csv_text(rows, variant.newline)))
    becomes = {"unknown": 0, "present": 1, "absent": -1}[uncertain]

    def expect(cell: Callable[[int, int], State]) -> Expected:
        return Expected(
            ids=[paths[i] for i in order],
            classes=list(truth.classes),
            states=[[cell(i, c) for c in range(len(truth.classes))] for i in order],
            id_type="string",
            paths=[paths[i] for i in order],
            splits=[truth.splits[i] for i in order],
            files=sources,
        )

    return Written(
        "chexpert",
        [str(path) for path in sources],
        expect(lambda i, c: becomes if (i, c) in doubt else states[i][c]),
        {} if uncertain == "unknown" else {"uncertain": uncertain},
        {"uncertain": expect(lambda i, c: int((i, c) in doubt))},
    )


# --- generic tables ------------------------------------------------------------------------------

CONVENTIONS = {
    "nan": {1: "1", -1: "0", 0: ""},
    "reference": {1: "1", -1: "0", 0: "-1"},
    "states": {1: "1", -1: "-1", 0: "0"},
}


@dataclass(frozen=True)
class Shape:
    """How a table is written."""

    kind: str = "csv"
    """csv, tsv or parquet."""
    ids: str = "string"
    """string, int or hex."""
    path: bool = False
    split: bool = False
    convention: str = "nan"
    classes: str | None = None
    """None, "lines" or "table": the class file."""
    variant: Variant = PLAIN


def _write_table(folder: Path, name: str, shape: Shape, columns: dict[str, pa.Array]) -> Path:
    path = folder / f"{name}.{shape.kind}"
    if shape.kind == "parquet":
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return path
    delimiter = "\t" if shape.kind == "tsv" else ","
    rows = [list(columns)]
    rows += [list(row) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)]
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    return shape.variant.write(path, csv_text(cells, shape.variant.newline, delimiter))


def _id_columns(
    truth: Truth, names: Sequence[str], shape: Shape, order: Sequence[int]
) -> tuple[dict[str, pa.Array], dict[str, Any]]:
    """The columns about the image, and how import is told about them."""
    options: dict[str, Any] = {}
    if shape.ids == "string":
        column = pa.array([names[i] for i in order], pa.string())
    elif shape.ids == "int":
        column = pa.array([truth.numbers[i] for i in order], pa.int64())
        options["ids"] = "int"
    elif shape.kind == "parquet":
        column = pa.array([truth.numbers[i] for i in order], pa.uint64())
    else:
        column = pa.array([f"{truth.numbers[i]:016x}" for i in order], pa.string())
        options["ids"] = "hex"
    columns = {"image_id": column}
    if shape.path:
        columns["path"] = pa.array([f"at/{truth.numbers[i]}.png" for i in order], pa.string())
    if shape.split:
        columns["split"] = pa.array([truth.splits[i] for i in order], pa.string())
    return columns, options


def _table_expected(
    truth: Truth,
    names: Sequence[str],
    shape: Shape,
    rows: Sequence[int],
    order: Sequence[int],
    states: list[list[State]],
    files: list[Path],
    **more: Any,
) -> Expected:
    paths: list[str | None] = [None] * len(rows)
    if shape.path:
        paths = [f"at/{truth.numbers[i]}.png" for i in rows]
    elif shape.ids == "string":
        paths = [names[i] for i in rows]
    return Expected(
        ids=[names[i] if shape.ids == "string" else truth.numbers[i] for i in rows],
        classes=[truth.classes[c] for c in order],
        names=[f"Name of {truth.classes[c]}" for c in order] if shape.classes == "table" else None,
        states=columns_of([states[i] for i in rows], order),
        id_type={"string": "string", "int": "int64", "hex": "uint64"}[shape.ids],
        paths=paths,
        splits=[truth.splits[i] if shape.split else None for i in rows],
        files=files,
        **more,
    )


def _class_file(folder: Path, truth: Truth, shape: Shape) -> tuple[dict[str, Any], list[Path]]:
    if shape.classes is None:
        return {}, []
    path = write_class_list(folder, truth.classes, table=shape.classes == "table")
    return {"classes": path}, [path]


def table_long(
    folder: Path, truth: Truth, names: Sequence[str], shape: Shape, *, seed: int = 0
) -> Written:
    """One row per annotation; images without any have a row with an unknown value."""
    rng = random.Random(seed)
    marks = CONVENTIONS[shape.convention]
    rows: list[Triple] = list(truth.triples)
    labelled = {image for image, _, _ in rows}
    rows += [
        (i, rng.randrange(len(truth.classes)), 0)
        for i in range(len(truth.numbers))
        if i not in labelled
    ]
    rng.shuffle(rows)
    columns, options = _id_columns(truth, names, shape, [image for image, _, _ in rows])
    columns["label"] = pa.array([truth.classes[c] for _, c, _ in rows], pa.string())
    values = [marks[state] for _, _, state in rows]
    if shape.kind == "parquet":
        columns["value"] = pa.array([int(v) if v else None for v in values], pa.int8())
    else:
        columns["value"] = pa.array(values)
    columns["source"] = pa.array(["someone, else"] * len(rows))
    path = _write_table(folder, "long", shape, columns)
    more, files = _class_file(folder, truth, shape)
    options |= {"layout": "long", "convention": shape.convention, **more}
    order = list(range(len(truth.classes)))
    if shape.classes is None:
        order = sorted({c for _, c, _ in rows}, key=lambda c: truth.classes[c])
    expected = _table_expected(
        truth,
        names,
        shape,
        list(dict.fromkeys(image for image, _, _ in rows)),
        order,
        truth.states(),
        [path, *files],
        duplicates=truth.duplicates(),
        conflicts=truth.conflicts(),
    )
    return Written("table", [str(path)], expected, options)


def table_wide(
    folder: Path, truth: Truth, names: Sequence[str], shape: Shape, *, complete: bool = False
) -> Written:
    """One row per image, one column per class."""
    marks = CONVENTIONS[shape.convention]
    rows = list(range(len(truth.numbers)))
    states = truth.states()
    columns, options = _id_columns(truth, names, shape, rows)
    for c, name in enumerate(truth.classes):
        values = [marks[states[i][c]] for i in rows]
        if shape.kind == "parquet":
            columns[name] = pa.array([float(v) if v else None for v in values], pa.float32())
        else:
            columns[name] = pa.array(values, pa.string())
    path = _write_table(folder, "wide", shape, columns)
    more, files = _class_file(folder, truth, shape)
    options |= {"layout": "wide", "convention": shape.convention, **more}
    if complete:
        options["complete"] = True
    order = sorted_order(truth.classes)
    if shape.classes is not None:
        order = list(range(len(truth.classes)))
    expected = _table_expected(
        truth, names, shape, rows, order, states, [path, *files], complete=complete
    )
    return Written("table", [str(path)], expected, options)


LIST_STYLES: dict[str, Callable[[list[str]], str]] = {
    "python": repr,
    "json": lambda entries: json.dumps(entries, ensure_ascii=False),
    "separator": "|".join,
}


def table_lists(
    folder: Path,
    truth: Truth,
    names: Sequence[str],
    shape: Shape,
    *,
    style: str = "python",
    numbers: bool = False,
) -> Written:
    """One row per image, two lists; with ``numbers`` they have lines of the class file."""
    rows = list(range(len(truth.numbers)))
    states = truth.states()
    columns, options = _id_columns(truth, names, shape, rows)
    for name, wanted in (("positives", 1), ("negatives", -1)):
        lists = [[c for c, state in enumerate(states[i]) if state == wanted] for i in rows]
        if shape.kind == "parquet":
            kind = pa.int16() if numbers else pa.string()
            named = lists if numbers else [[truth.classes[c] for c in cell] for cell in lists]
            columns[name] = pa.array(named, pa.list_(kind))
        elif numbers:
            columns[name] = pa.array([str(cell) for cell in lists])
        else:
            write = LIST_STYLES[style]
            columns[name] = pa.array([write([truth.classes[c] for c in cell]) for cell in lists])
    path = _write_table(folder, "lists", shape, columns)
    more, files = _class_file(folder, truth, shape)
    options |= {"layout": "lists", **more}
    if style == "separator":
        options["separator"] = "|"
    order = list(range(len(truth.classes)))
    if shape.classes is None:
        order = [c for c in sorted_order(truth.classes) if any(row[c] for row in states)]
    expected = _table_expected(truth, names, shape, rows, order, states, [path, *files])
    return Written("table", [str(path)], expected, options)
