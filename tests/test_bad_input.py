"""What a user can get wrong: each mistake is refused with its place, or read all the same."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partlabel import cli
from partlabel.errors import (
    DataError,
    LabelValueError,
    PartlabelError,
    StoreError,
    UsageError,
)
from partlabel.readers import READERS, import_labels
from partlabel.store import LabelStore

pytestmark = pytest.mark.slow  # the whole file: many processes, many bytes

A, B, C = ("000000000000000a", "000000000000000b", "000000000000000c")
BOM = b"\xef\xbb\xbf"
EMPTY_GZIP = gzip.compress(b"", mtime=0)

# ---------------------------------------------------------------------------------- helpers


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def imported(name: str, sources: Any, folder: Path, **options: Any) -> LabelStore:
    out = folder / "out.labels"
    import_labels(name, sources, out=out, overwrite=True, **options)
    return LabelStore.open(out)


def refusal(
    name: str,
    sources: Any,
    folder: Path,
    *parts: str,
    error: type[Exception] = DataError,
    **options: Any,
) -> str:
    """Import must be refused with a text that has all ``parts``; nothing may be written."""
    out = folder / "refused.labels"
    with pytest.raises(error) as caught:
        import_labels(name, sources, out=out, **options)
    text = without_folder(str(caught.value), folder)
    for part in parts:
        assert without_folder(part, folder) in text
    assert not out.exists()
    assert not list(folder.glob(".*.tmp"))
    return text


def without_folder(text: str, folder: Path) -> str:
    """Pytest's folders have the name of the test in them, where words would be found by chance."""
    return text.replace(str(folder), "FOLDER")


def states(store: LabelStore) -> list[list[int]]:
    return store.dense(range(len(store))).tolist()


# ------------------------------------------------------------------------- csv: every format


@dataclass(frozen=True)
class Csv:
    """A good file of one format, and the rows that spoil it."""

    format: str
    file: str
    text: str
    good: list[list[int]]
    column: tuple[str, str]  # a required column, and how it is misspelt
    cut: str  # a row that ends too early
    again: str  # a row that says again what the file says
    repeats: int  # how many labels it says again
    clash: str  # a row that says the opposite of what the file says of one label
    about: tuple[str, str]  # image and class of the clash
    latin: str  # a row with a letter in a column that is read
    outside: tuple[str, tuple[str, ...]] = ("", ())  # a value outside the convention
    word: tuple[str, str] = ("", "")  # text where a number belongs
    no_image: str = ""
    leaves: str = ""  # a row whose image path is {}
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.format}-{self.options['layout']}" if self.options else self.format

    @property
    def fields(self) -> int:
        return self.text.splitlines()[0].count(",") + 1

    def path(self, folder: Path, content: str | bytes) -> list[str]:
        return [str(write(folder / self.file, content))]

    def read(self, folder: Path, content: str | bytes, **options: Any) -> LabelStore:
        return imported(self.format, self.path(folder, content), folder, **self.options | options)

    def refuse(self, folder: Path, content: str | bytes, *parts: str, **options: Any) -> str:
        sources = self.path(folder, content)
        return refusal(self.format, sources, folder, self.file, *parts, **self.options | options)


OPENIMAGES = Csv(
    "openimages",
    "labels.csv",
    f"ImageID,Source,LabelName,Confidence\n{A},verification,/m/1,1\n{B},verification,/m/2,0\n",
    [[1, 0], [0, -1]],
    ("LabelName", "LabelNam"),
    f"{A},verif",
    f"{A},verification,/m/1,1",
    1,
    f"{A},verification,/m/1,0",
    (A, "/m/1"),
    f"{A},verification,/m/é,1",
    (f"{C},verification,/m/1,0.5", ("Confidence 0.5 is not 1 or 0", "--machine")),
    (f"{C},verification,/m/1,yes", "Confidence 'yes' is not a number"),
)
CSL = Csv(
    "csl",
    "data.csv",
    "filepath,label,label_neg,split_name\n"
    "a.jpg,['/m/1'],['/m/2'],train\nb.jpg,\"['/m/2', '/m/3']\",[],val\n",
    [[1, -1, 0], [0, 1, 1]],
    ("label_neg", "labelneg"),
    "c.jpg,\"['/m/1', '/m",
    "a.jpg,['/m/1'],['/m/2'],train",
    2,
    "a.jpg,[],['/m/1'],train",
    ("a.jpg", "/m/1"),
    "é.jpg,[],[],train",
    no_image=",['/m/1'],[],train",
    leaves="{},[],[],train",
)
CHEXPERT = Csv(
    "chexpert",
    "train.csv",
    "Path,Sex,Age,Frontal/Lateral,AP/PA,Edema,Fracture\n"
    "p/1.jpg,M,1,Frontal,AP,1.0,0.0\np/2.jpg,F,2,Frontal,AP,-1.0,\n",
    [[1, -1], [0, 0]],
    ("Path", "Paths"),
    "p/3.jpg,M",
    "p/1.jpg,M,1,Frontal,AP,1.0,0.0",
    2,
    "p/1.jpg,M,1,Frontal,AP,0.0,",
    ("p/1.jpg", "Edema"),
    "p/é.jpg,M,1,Frontal,AP,1.0,0.0",
    ("p/3.jpg,M,1,Frontal,AP,2.0,0.0", ("Edema 2", "1, 0, -1 or blank")),
    ("p/3.jpg,M,1,Frontal,AP,yes,0.0", "Edema 'yes' is not a number"),
    ",M,1,Frontal,AP,1.0,0.0",
    "{},M,1,Frontal,AP,1.0,0.0",
)
LONG = Csv(
    "table",
    "table.csv",
    "image_id,label,value\na.jpg,cat,1\nb.jpg,dog,0\n",
    [[1, 0], [0, -1]],
    ("label", "lable"),
    "c.jpg,ca",
    "a.jpg,cat,1",
    1,
    "a.jpg,cat,0",
    ("a.jpg", "cat"),
    "é.jpg,cat,1",
    ("c.jpg,cat,-1", ("value -1 is not in convention 'nan'", "'reference' (1 present, 0 absent")),
    ("c.jpg,cat,yes", "value 'yes' is not a number"),
    ",cat,1",
    "{},cat,1",
    {"layout": "long"},
)
WIDE = Csv(
    "table",
    "table.csv",
    "image_id,cat,dog\na.jpg,1,0\nb.jpg,,1\n",
    [[1, -1], [0, 1]],
    ("image_id", "imageid"),
    "c.jpg,1",
    "a.jpg,1,0",
    2,
    "a.jpg,0,",
    ("a.jpg", "cat"),
    "é.jpg,1,0",
    ("c.jpg,1,3", ("dog: value 3", "1 present, 0 absent", "(0, 1, 3)")),
    ("c.jpg,1,yes", "dog 'yes' is not a number"),
    ",1,0",
    "{},1,0",
    {"layout": "wide"},
)
LISTS = Csv(
    "table",
    "table.csv",
    "image_id,positives,negatives\na.jpg,['cat'],['dog']\nb.jpg,\"['dog', 'cow']\",[]\n",
    [[1, 0, -1], [0, 1, 1]],
    ("positives", "positive"),
    "c.jpg,\"['cat', 'do",
    "a.jpg,['cat'],['dog']",
    2,
    "a.jpg,[],['cat']",
    ("a.jpg", "cat"),
    "é.jpg,[],[]",
    no_image=",['cat'],[]",
    leaves="{},['cat'],[]",
    options={"layout": "lists"},
)
FORMATS = [OPENIMAGES, CSL, CHEXPERT, LONG, WIDE, LISTS]
WITH_VALUES = [case for case in FORMATS if case.outside[0]]
WITH_PATHS = [case for case in FORMATS if case.leaves]
every_csv = pytest.mark.parametrize("case", FORMATS, ids=str)


@every_csv
def test_good_file_is_read(case: Csv, tmp_path: Path) -> None:
    store = case.read(tmp_path, case.text)
    assert states(store) == case.good
    assert (store.origin.conflicts, store.origin.duplicates) == (0, 0)


@every_csv
def test_cut_row(case: Csv, tmp_path: Path) -> None:
    text = f"{case.text}{case.cut}\n{case.again}\n"
    if '"' in case.cut:  # the open quote swallows the rest of the file
        text = f"{case.text}{case.cut}"
    case.refuse(
        tmp_path, text, "line 4", f"2 fields, the header has {case.fields}", "is the row cut off?"
    )


@every_csv
def test_file_cut_in_its_last_row(case: Csv, tmp_path: Path) -> None:
    cut = case.text[: case.text.rindex(",")]
    case.refuse(tmp_path, cut, "line 3", f"fields, the header has {case.fields}", "cut off?")


@every_csv
def test_row_with_too_many_fields(case: Csv, tmp_path: Path) -> None:
    text = f"{case.text}{case.again},more\n"
    said = case.refuse(
        tmp_path, text, "line 4", f"{case.fields + 1} fields, the header has {case.fields}"
    )
    assert "cut off" not in said  # it is too long, not too short


@every_csv
def test_wrong_column(case: Csv, tmp_path: Path) -> None:
    right, wrong = case.column
    text = case.text.replace(right, wrong, 1)
    said = case.refuse(tmp_path, text, "line 1", f"no column '{right}'", f"did you mean {wrong}?")
    options = READERS[case.format].__annotations__
    named = [word for word in said.split() if word.startswith("--")]
    assert all(word.removeprefix("--") in options for word in named)  # this command has them


@every_csv
def test_column_that_is_nothing_like_those_there(case: Csv, tmp_path: Path) -> None:
    header = case.text.splitlines()[0]
    names = ["x" * (place + 1) for place in range(case.fields)]
    text = case.text.replace(header, ",".join(names), 1)
    case.refuse(tmp_path, text, "line 1", "no column", f"there is: {', '.join(names)}")


@every_csv
def test_column_twice(case: Csv, tmp_path: Path) -> None:
    names = case.text.splitlines()[0].split(",")
    text = case.text.replace(f"{names[1]},", f"{names[0]},", 1)
    case.refuse(tmp_path, text, "line 1", f"column '{names[0]}' twice", "rename")


@pytest.mark.parametrize("case", WITH_VALUES, ids=str)
def test_value_outside_the_convention(case: Csv, tmp_path: Path) -> None:
    row, parts = case.outside
    case.refuse(tmp_path, f"{case.text}{row}\n{case.again}\n", "line 4", *parts)


@pytest.mark.parametrize("case", [LONG, WIDE], ids=str)
def test_value_outside_the_convention_is_a_label_value_error(case: Csv, tmp_path: Path) -> None:
    text = f"{case.text}{case.outside[0]}\n"
    case.refuse(tmp_path, text, "line 4", error=LabelValueError)


@pytest.mark.parametrize("case", WITH_VALUES, ids=str)
def test_word_where_a_number_belongs(case: Csv, tmp_path: Path) -> None:
    row, what = case.word
    case.refuse(tmp_path, f"{case.text}{case.again}\n{row}\n", "line 5", what)


@pytest.mark.parametrize("word", ["NA", "null", "N/A", ""])
def test_line_of_a_bad_value_after_empty_ones(tmp_path: Path, word: str) -> None:
    """Arrow takes these words as empty, so the mistake is in the line after."""
    text = f"{LONG.text}c.jpg,cat,{word}\nd.jpg,cat,yes\n"
    LONG.refuse(tmp_path, text, "line 5", "'yes' is not a number")


@pytest.mark.parametrize("cell", ["1_0", "0x1"])
def test_number_in_a_language_other_than_csv(tmp_path: Path, cell: str) -> None:
    text = f"{LONG.text}c.jpg,cat,{cell}\n"
    LONG.refuse(tmp_path, text, "line 4", f"'{cell}' is not a number")


@every_csv
def test_line_numbers_in_crlf_files_with_empty_lines(case: Csv, tmp_path: Path) -> None:
    header, *rows = case.text.splitlines()
    wrong = f"{case.again},more"
    text = "\r\n".join([header, "", *rows, "", wrong, ""])
    case.refuse(tmp_path, text, "line 6", f"{case.fields + 1} fields")


def test_line_number_after_a_quoted_line_break(tmp_path: Path) -> None:
    text = 'image_id,label,value\n"a\nb.jpg",cat,1\nb.jpg,dog,7\n'
    LONG.refuse(tmp_path, text, "line 4", "value 7")


@every_csv
def test_line_number_far_into_the_file(
    case: Csv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is counted across blocks."""
    monkeypatch.setattr("partlabel.readers.scan_csv.BLOCK", 256)
    rows = case.text.splitlines()[1:] * 50
    text = "\n".join([case.text.splitlines()[0], *rows, f"{case.again},more", *rows, ""])
    case.refuse(tmp_path, text, "line 102", f"{case.fields + 1} fields")
    case.refuse(tmp_path, gzip.compress(text.encode()), "line 102", f"{case.fields + 1} fields")


@every_csv
def test_same_row_twice_is_counted(case: Csv, tmp_path: Path) -> None:
    store = case.read(tmp_path, f"{case.text}{case.again}\n{case.again}\n")
    assert states(store) == case.good
    assert store.origin.duplicates == 2 * case.repeats
    assert store.origin.conflicts == 0


@every_csv
def test_present_and_absent(case: Csv, tmp_path: Path) -> None:
    for text in (f"{case.text}{case.clash}\n", _last_row_first(f"{case.text}{case.clash}\n")):
        store = case.read(tmp_path, text)
        image, name = case.about
        row = [store.images.show_id(i) for i in range(len(store))].index(image)
        assert store.dense([row])[0, store.classes.index[name]] == 1
        assert store.origin.conflicts == 1
        assert any(image in note and name in note for note in store.origin.notes)


def _last_row_first(text: str) -> str:
    header, *rows, last = text.splitlines()
    return "\n".join([header, last, *rows, ""])


@every_csv
def test_present_and_absent_is_refused_by_strict(case: Csv, tmp_path: Path) -> None:
    assert case.read(tmp_path, case.text, strict=True).origin.conflicts == 0
    sources = case.path(tmp_path, f"{case.text}{case.clash}\n")
    parts = ("present and absent", *case.about, "leave --strict out")
    refusal(case.format, sources, tmp_path, *parts, strict=True, **case.options)


@every_csv
@pytest.mark.parametrize("how", ["bom", "crlf", "gzip", "no newline at the end"])
def test_same_content_in_other_clothes(case: Csv, how: str, tmp_path: Path) -> None:
    plain = case.text.encode()
    content = {
        "bom": BOM + plain,
        "crlf": plain.replace(b"\n", b"\r\n"),
        "gzip": gzip.compress(BOM + plain),
        "no newline at the end": plain.rstrip(b"\n"),
    }[how]
    first = case.read(tmp_path, plain)
    classes = first.classes.ids
    store = case.read(tmp_path, content)
    assert states(store) == case.good
    assert store.classes.ids == classes


@every_csv
def test_old_mac_line_ends_do_not_make_an_empty_store(case: Csv, tmp_path: Path) -> None:
    """A lone CR ends lines in files of old spreadsheets: read it or refuse it, lose nothing."""
    text = case.text.replace("\n", "\r")
    try:
        store = case.read(tmp_path, text)
    except DataError as error:
        assert case.file in str(error)  # noqa: PT017
    else:
        assert states(store) == case.good


@every_csv
@pytest.mark.parametrize("content", [b"", BOM, b"\n\n", b"\r\n", EMPTY_GZIP])
def test_empty_file(case: Csv, content: bytes, tmp_path: Path) -> None:
    case.refuse(tmp_path, content, "is empty", "a header line and rows were expected")


@every_csv
def test_header_without_rows(case: Csv, tmp_path: Path) -> None:
    """A store of no images is of no use to anybody: say so now and not in training."""
    case.refuse(tmp_path, case.text.splitlines()[0] + "\n", "no ")


@every_csv
def test_latin_1(case: Csv, tmp_path: Path) -> None:
    content = f"{case.text}{case.latin}\n".encode("latin-1")
    case.refuse(tmp_path, content, "line 4", "is not UTF-8 (byte 0xe9)", "save it as UTF-8")


@every_csv
def test_latin_1_in_the_header(case: Csv, tmp_path: Path) -> None:
    content = b"\xe9" + case.text.encode()
    case.refuse(tmp_path, content, "line 1", "0xe9", "save it as UTF-8")


@every_csv
def test_utf_16(case: Csv, tmp_path: Path) -> None:
    case.refuse(tmp_path, case.text.encode("utf-16"), "is UTF-16", "save it as UTF-8")


@every_csv
def test_damaged_gzip(case: Csv, tmp_path: Path) -> None:
    whole = gzip.compress(case.text.encode() * 20)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (whole[:-9], whole[:12], bytes(flipped), whole + b"junk"):
        case.refuse(tmp_path, content, "damaged gzip", "fetch it again")


@pytest.mark.parametrize("case", [case for case in FORMATS if case.no_image], ids=str)
def test_row_without_image(case: Csv, tmp_path: Path) -> None:
    case.refuse(tmp_path, f"{case.text}{case.no_image}\n", "line 4", "no image id")


def test_row_without_class(tmp_path: Path) -> None:
    LONG.refuse(tmp_path, f"{LONG.text}c.jpg,,1\n", "line 4", "no class")


@pytest.mark.parametrize("case", WITH_PATHS, ids=str)
@pytest.mark.parametrize("path", ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "C:\\x.jpg"])
def test_path_that_leaves_the_image_root(case: Csv, path: str, tmp_path: Path) -> None:
    sources = case.path(tmp_path, f"{case.text}{case.leaves.format(path)}\n")
    parts = (repr(path), "leaves the image folder", "--images")
    refusal(case.format, sources, tmp_path, *parts, **case.options)


@pytest.mark.parametrize("case", WITH_PATHS, ids=str)
def test_path_that_leaves_the_image_root_is_said_with_its_file(case: Csv, tmp_path: Path) -> None:
    case.refuse(tmp_path, f"{case.text}{case.leaves.format('../x.jpg')}\n", "'../x.jpg'")


def test_absolute_path_below_the_image_root_is_made_relative(tmp_path: Path) -> None:
    store = LONG.read(tmp_path, f"{LONG.text}{tmp_path}/sub/c.jpg,cat,1\n")
    assert store.images.paths([2]) == ["sub/c.jpg"]


@pytest.mark.parametrize("case", WITH_PATHS[1:], ids=str)
def test_image_in_two_splits(case: Csv, tmp_path: Path) -> None:
    first = write(tmp_path / "train.csv", case.text)
    second = write(tmp_path / "valid.csv", case.text)
    sources = [f"train={first}", f"valid={second}"]
    parts = ("valid.csv line 2", "'train'", "'valid'", "one split")
    refusal(case.format, sources, tmp_path, *parts, **case.options)


def test_image_in_two_splits_openimages(tmp_path: Path) -> None:
    first = write(tmp_path / "one.csv", OPENIMAGES.text)
    second = write(tmp_path / "two.csv", OPENIMAGES.text)
    sources = [f"train={first}", f"test={second}"]
    refusal("openimages", sources, tmp_path, f"image {A} is there twice", "one split")


@every_csv
def test_wrong_path_is_met_with_a_suggestion(case: Csv, tmp_path: Path) -> None:
    case.path(tmp_path, case.text)
    wrong = str(tmp_path / case.file.replace("a", "aa"))
    parts = (wrong, "no such file", f"in {tmp_path} did you mean {case.file}?")
    refusal(case.format, [wrong], tmp_path, *parts, **case.options)


@every_csv
def test_wrong_folder_and_folder_for_a_file(case: Csv, tmp_path: Path) -> None:
    case.path(tmp_path, case.text)
    wrong = str(tmp_path / "nowhere" / case.file)
    parts = ("no such file", f"there is no folder {tmp_path / 'nowhere'}")
    refusal(case.format, [wrong], tmp_path, *parts, **case.options)
    parts = ("is a folder, not a file", case.file)
    refusal(case.format, [str(tmp_path)], tmp_path, *parts, **case.options)


# ------------------------------------------------------------------------------ path templates


JUNK_TEMPLATES = ["{foo}.jpg", "{id", "{id.__class__}.jpg", "{id!r}.jpg", "{}.jpg", "{id:s}"]


@pytest.mark.parametrize("template", JUNK_TEMPLATES)
def test_junk_path_template(template: str, tmp_path: Path) -> None:
    for name, sources, options in all_good(tmp_path):
        folder = tmp_path / "results"
        parts = ("path template", template)
        refusal(name, sources, folder, *parts, path_template=template, error=UsageError, **options)


@pytest.mark.parametrize("template", ["../{id}.jpg", "/etc/{id}.jpg", "a/../../{id}.jpg"])
def test_path_template_that_leaves_the_image_root(template: str, tmp_path: Path) -> None:
    for name, sources, options in all_good(tmp_path):
        folder = tmp_path / "results"
        refusal(
            name,
            sources,
            folder,
            template,
            path_template=template,
            error=UsageError,
            **options,
        )


def test_number_template_for_ids_that_are_words(tmp_path: Path) -> None:
    sources = LONG.path(tmp_path, LONG.text)
    template = "{id:012d}.jpg"
    refusal(
        "table",
        sources,
        tmp_path,
        template,
        path_template=template,
        error=UsageError,
        layout="long",
    )


def all_good(folder: Path) -> list[tuple[str, Any, dict[str, Any]]]:
    """A good data set of every format."""
    found: list[tuple[str, Any, dict[str, Any]]] = [
        (case.format, case.path(folder / str(case), case.text), case.options) for case in FORMATS
    ]
    found += [
        (name, [str(write(folder / f"{name}.json", json.dumps(INSTANCES)))], {})
        for name in ("lvis", "coco")
    ]
    found.append(("voc", voc(folder / "voc"), {}))
    found.append(("nuswide", nuswide(folder / "nus"), {}))
    return found


@pytest.mark.parametrize("share", [2, 1, 0, -0.1, float("nan")])
def test_share_outside_0_and_1(share: float, tmp_path: Path) -> None:
    sources = LONG.path(tmp_path, LONG.text)
    parts = ("--val must be between 0 and 1", f"{share:g}")
    refusal("table", sources, tmp_path, *parts, error=UsageError, val=share, layout="long")


def test_share_of_data_that_has_splits(tmp_path: Path) -> None:
    sources = CSL.path(tmp_path, CSL.text)
    parts = ("--val", "train, val", "leave --val out")
    refusal("csl", sources, tmp_path, *parts, error=UsageError, val=0.5)


def test_format_that_does_not_exist(tmp_path: Path) -> None:
    parts = ("no format 'tabel'", "table, openimages")
    refusal("tabel", ["x.csv"], tmp_path, *parts, error=UsageError)


# ------------------------------------------------------------------------- class lists, options


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("c.txt", "cat\ndog\ncat\n", ("'cat' is there twice", "must be unique")),
        ("c.txt", "", ("has no classes",)),
        ("c.txt", b"cat\nd\xe9g\n", ("is not UTF-8 (byte 0xe9)", "save it as UTF-8")),
        ("c.csv", "id,name\n", ("has a header but no rows",)),
        ("c.csv", "id,name\ncat,Cat\ndog\n", ("line 3", "1 fields, the header has 2")),
        ("c.csv", "klass,title\ncat,Cat\n", ("line 1", "no column id", "there is: klass, title")),
        ("c.csv", "index,id\n0,cat\n2,dog\n", ("'index' must count 0, 1, 2",)),
        ("c.csv", "index,id\n0,cat\nx,dog\n", ("'x' is not a whole number",)),
        ("c.csv", "id,name\ncat,Cat\ncat,Dog\n", ("'cat' is there twice",)),
        ("c.csv", "", ("is empty",)),
    ],
)
def test_class_file(
    file: str, content: str | bytes, parts: tuple[str, ...], tmp_path: Path
) -> None:
    classes = write(tmp_path / file, content)
    for case in (LONG, LISTS):
        sources = case.path(tmp_path, case.text)
        refusal("table", sources, tmp_path, file, *parts, classes=classes, **case.options)


@pytest.mark.parametrize("case", [LONG, LISTS, CSL], ids=str)
def test_unknown_class(case: Csv, tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "/m/2\ndogs\ncow\n")
    unknown = "/m/1" if case is CSL else "cat"
    said = case.refuse(tmp_path, case.text, "line 2", f"unknown class '{unknown}'", classes=known)
    assert "complete the class file" in said


def test_unknown_class_with_suggestion(tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ndogs\n")
    parts = ("line 3", "unknown class 'dog'", "did you mean dogs?")
    LONG.refuse(tmp_path, LONG.text, *parts, classes=known)


@pytest.mark.parametrize("case", [LONG, LISTS], ids=str)
def test_unknown_classes_can_be_dropped(case: Csv, tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ncow\n")
    store = case.read(tmp_path, case.text, classes=known, unknown_classes="drop")
    dropped = 1 if case is LONG else 2
    assert store.classes.ids == ("cat", "cow")
    assert f"{dropped} labels left out: class not in --classes" in store.origin.notes


def test_unknown_class_wide(tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ndogs\n")
    parts = ("line 1", "no column 'dogs'", "did you mean dog?")
    WIDE.refuse(tmp_path, WIDE.text, *parts, classes=known)


def test_class_outside_the_trainable_ones_is_left_out_and_counted(tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "/m/1\n")
    store = OPENIMAGES.read(tmp_path, OPENIMAGES.text, classes=known)
    assert store.classes.ids == ("/m/1",)
    assert store.origin.notes == ("1 labels left out: class not in --classes",)


def test_class_file_that_fits_no_label(tmp_path: Path) -> None:
    """Class names given where ids belong: nothing would be left."""
    known = write(tmp_path / "c.txt", "Person\nDog\n")
    OPENIMAGES.refuse(tmp_path, OPENIMAGES.text, "class", classes=known)


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("abc", "ImageID 'abc' is not 16 hex digits"),
        ("zzzzzzzzzzzzzzzz", "'zzzzzzzzzzzzzzzz' is not 16 hex digits"),
        (f"{A}0", f"'{A}0' is not 16 hex digits"),
    ],
)
def test_id_that_is_not_hex(image: str, what: str, tmp_path: Path) -> None:
    OPENIMAGES.refuse(tmp_path, f"{OPENIMAGES.text}{image},verification,/m/1,1\n", "line 4", what)
    listed = write(tmp_path / "list.csv", f"ImageID,Subset\n{A},train\n{image},train\n")
    sources = OPENIMAGES.path(tmp_path, OPENIMAGES.text)
    parts = ("list.csv line 3", what)
    refusal("openimages", sources, tmp_path, *parts, image_list=[listed])
    text = f"image_id,label\n{A},cat\n{image},cat\n"
    LONG.refuse(tmp_path, text, "line 3", what.removeprefix("ImageID "), ids="hex")


def test_confidence_left_empty(tmp_path: Path) -> None:
    text = f"{OPENIMAGES.text}{C},verification,/m/1,\n"
    said = OPENIMAGES.refuse(tmp_path, text, "line 4", "Confidence", "1 or 0")
    assert "machine" in said


def test_machine_labels_need_classes(tmp_path: Path) -> None:
    sources = OPENIMAGES.path(tmp_path, OPENIMAGES.text)
    parts = ("--machine needs --classes",)
    refusal("openimages", sources, tmp_path, *parts, error=UsageError, machine=sources)


def test_image_list_with_an_image_twice(tmp_path: Path) -> None:
    listed = write(tmp_path / "list.csv", f"ImageID,Subset\n{A},train\n{A},test\n")
    sources = OPENIMAGES.path(tmp_path, OPENIMAGES.text)
    parts = ("list.csv", f"image {A} is listed twice")
    refusal("openimages", sources, tmp_path, *parts, image_list=[listed])


def test_image_list_without_its_column(tmp_path: Path) -> None:
    listed = write(tmp_path / "list.csv", f"ImageId,Subset\n{A},train\n")
    sources = OPENIMAGES.path(tmp_path, OPENIMAGES.text)
    parts = ("list.csv line 1", "no column 'ImageID'", "did you mean ImageId?")
    refusal("openimages", sources, tmp_path, *parts, image_list=[listed])


def test_class_names_with_a_cut_row(tmp_path: Path) -> None:
    names = write(tmp_path / "names.csv", "LabelName,DisplayName\n/m/1,One\n/m/2\n")
    sources = OPENIMAGES.path(tmp_path, OPENIMAGES.text)
    parts = ("names.csv line 3", "1 fields")
    refusal("openimages", sources, tmp_path, *parts, descriptions=names)


def test_some_files_with_split_some_without(tmp_path: Path) -> None:
    first = write(tmp_path / "one.csv", OPENIMAGES.text)
    second = write(tmp_path / "two.csv", OPENIMAGES.text)
    sources = [f"train={first}", str(second)]
    parts = ("no split", "SPLIT=FILE")
    refusal("openimages", sources, tmp_path, *parts, error=UsageError)


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        ("\"['cat'\"", ("is not a list", "write ['a', 'b'], or name a --separator")),
        ("cat", ("'cat' is not a list", "--separator")),
        ("{'cat': 1}", ("is not a list",)),
        ("\"['cat', 1]\"", ("something else than class ids", "all strings or all numbers")),
        ("[['cat']]", ("something else than class ids",)),
        ("[True]", ("something else than class ids",)),
    ],
)
def test_cell_that_is_not_a_list_of_classes(
    cell: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    LISTS.refuse(tmp_path, f"{LISTS.text}c.jpg,{cell},[]\n", "line 4", *parts)
    CSL.refuse(tmp_path, f"{CSL.text}c.jpg,{cell},[],train\n", "line 4", *parts[:1])


@pytest.mark.parametrize(
    ("number", "why"), [("7", "0..1"), ("-1", "start at 0"), ("9" * 23, "is too large")]
)
def test_class_number_outside_the_class_file(number: str, why: str, tmp_path: Path) -> None:
    classes = write(tmp_path / "c.txt", "cat\ndog\n")
    text = f"image_id,positives\na.jpg,[0]\nb.jpg,[1]\nc.jpg,[{number}]\nd.jpg,[1]\n"
    LISTS.refuse(tmp_path, text, "line 4", number, why, classes=classes)


def test_class_numbers_without_a_class_file(tmp_path: Path) -> None:
    text = "image_id,positives\na.jpg,[]\nb.jpg,[3]\n"
    LISTS.refuse(tmp_path, text, "line 3", "as numbers (3)", "--classes FILE")


def test_unknown_in_a_table_said_to_be_complete(tmp_path: Path) -> None:
    parts = ("line 3", "cat is unknown here", "leave --complete out")
    WIDE.refuse(tmp_path, WIDE.text, *parts, complete=True)


def test_complete_table_with_zeros_is_read(tmp_path: Path) -> None:
    store = WIDE.read(tmp_path, "image_id,cat,dog\na.jpg,1,0\nb.jpg,0,1\n", complete=True)
    assert store.complete
    assert states(store) == [[1, -1], [-1, 1]]


def test_wide_table_without_classes(tmp_path: Path) -> None:
    WIDE.refuse(tmp_path, "image_id\na.jpg\n", "has no class columns")


def test_wide_tables_with_other_classes(tmp_path: Path) -> None:
    first = write(tmp_path / "one.csv", WIDE.text)
    second = write(tmp_path / "two.csv", WIDE.text.replace("dog", "cow"))
    parts = ("two.csv", "has other classes than the files before it")
    refusal("table", [str(first), str(second)], tmp_path, *parts, layout="wide")


def test_column_to_skip_that_is_not_there(tmp_path: Path) -> None:
    text = "image_id,cat,age\na.jpg,1,0\n"
    WIDE.refuse(tmp_path, text, "no column 'agee'", "did you mean age?", skip=["agee"])


@pytest.mark.parametrize(
    ("options", "part"), [({"delimiter": "ab"}, "delimiter"), ({"separator": ""}, "separator")]
)
def test_delimiter_that_is_none(options: dict[str, str], part: str, tmp_path: Path) -> None:
    sources = LISTS.path(tmp_path, LISTS.text)
    refusal("table", sources, tmp_path, part, error=PartlabelError, layout="lists", **options)


def test_other_delimiter_than_said(tmp_path: Path) -> None:
    said = LONG.refuse(tmp_path, LONG.text.replace(",", ";"), "line 1", "image_id;label;value")
    assert "--delimiter" in said  # that is what would do


@pytest.mark.parametrize("number", ["x1", "1.5", "99999999999999999999999"])
def test_id_that_is_not_a_whole_number(number: str, tmp_path: Path) -> None:
    text = f"image_id,label\n1,cat\n{number},cat\n"
    LONG.refuse(tmp_path, text, "line 3", "image_id", number, "whole number", ids="int")


def test_observations_that_differ(tmp_path: Path) -> None:
    first = write(tmp_path / "train.csv", CHEXPERT.text)
    second = write(tmp_path / "valid.csv", CHEXPERT.text.replace("Edema", "Oedema"))
    parts = ("valid.csv line 1", "other observations than the files before it")
    refusal("chexpert", [str(first), str(second)], tmp_path, *parts)


def test_chexpert_file_without_observations(tmp_path: Path) -> None:
    said = CHEXPERT.refuse(tmp_path, "Path,Sex\np/1.jpg,M\n", "line 1", "no observation columns")
    assert "before it" not in said  # there is no file before it


# -------------------------------------------------------------------------------------- parquet


def parquet(path: Path, columns: dict[str, Any]) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return [str(path)]


P_LONG = {"image_id": ["a", "b", "c"], "label": ["cat", "dog", "cat"], "value": [1, 0, 0]}
P_WIDE = {"image_id": ["a", "b", "c"], "cat": [1, 0, None], "dog": [0.0, None, 1.0]}
P_LISTS = {
    "image_id": ["a", "b", "c"],
    "positives": [["cat"], ["dog"], []],
    "negatives": [[], ["cat"], ["dog"]],
}
PARQUETS = {"long": P_LONG, "wide": P_WIDE, "lists": P_LISTS}
every_layout = pytest.mark.parametrize("layout", PARQUETS)


def refuse_parquet(
    folder: Path, layout: str, change: dict[str, Any], *parts: str, **options: Any
) -> str:
    sources = parquet(folder / "t.parquet", PARQUETS[layout] | change)
    return refusal("table", sources, folder, "t.parquet", *parts, layout=layout, **options)


@every_layout
def test_good_parquet_is_read(layout: str, tmp_path: Path) -> None:
    sources = parquet(tmp_path / "t.parquet", PARQUETS[layout])
    store = imported("table", sources, tmp_path, layout=layout)
    expected = {
        "long": [[1, 0], [0, -1], [-1, 0]],
        "wide": [[1, -1], [-1, 0], [0, 1]],
        "lists": [[1, 0], [-1, 1], [0, -1]],
    }
    assert states(store) == expected[layout]


@every_layout
@pytest.mark.parametrize("how", ["empty", "csv", "cut", "gzip", "overwritten"])
def test_parquet_that_is_none(layout: str, how: str, tmp_path: Path) -> None:
    path = Path(parquet(tmp_path / "t.parquet", PARQUETS[layout])[0])
    whole = path.read_bytes()
    broken = whole[:10] + b"\xff" * 40 + whole[50:]
    content = {
        "empty": b"",
        "csv": b"image_id,label\na,cat\n",
        "cut": whole[:-20],
        "gzip": gzip.compress(whole),
        "overwritten": broken,
    }[how]
    write(path, content)
    parts = ("t.parquet", "is not readable as parquet")
    refusal("table", [str(path)], tmp_path, *parts, layout=layout)


def test_parquet_with_the_ending_of_a_csv(tmp_path: Path) -> None:
    source = parquet(tmp_path / "t.parquet", P_LONG)[0]
    path = tmp_path / "t.csv"
    shutil.copy(source, path)
    said = refusal("table", [str(path)], tmp_path, "t.csv", layout="long")
    assert "parquet" in said  # that is what it is


@every_layout
def test_parquet_without_the_column(layout: str, tmp_path: Path) -> None:
    columns = {("image" if k == "image_id" else k): v for k, v in PARQUETS[layout].items()}
    sources = parquet(tmp_path / "t.parquet", columns)
    parts = ("t.parquet", "no column 'image_id'", "did you mean image?", "--image")
    refusal("table", sources, tmp_path, *parts, layout=layout)


def test_parquet_value_outside_the_convention(tmp_path: Path) -> None:
    what = "is not in convention 'nan' (1 present, 0 absent, NaN or empty unknown)"
    refuse_parquet(tmp_path, "long", {"value": [1, 0, -1]}, "row 3", f"value -1 {what}", "'states'")
    refuse_parquet(tmp_path, "wide", {"dog": [1, 7, 0]}, "row 2", f"dog: value 7 {what}")


def test_parquet_value_outside_the_convention_in_a_later_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partlabel.readers.rows._PARQUET_ROWS", 2)
    refuse_parquet(tmp_path, "long", {"value": [1, 0, 5]}, "row 3", "value 5")


def test_parquet_word_where_a_number_belongs(tmp_path: Path) -> None:
    parts = ("row 2", "'yes'")
    refuse_parquet(tmp_path, "long", {"value": ["1", "yes", "0"]}, "'value'", *parts)
    refuse_parquet(tmp_path, "wide", {"dog": ["1", "yes", "0"]}, "'dog'", *parts)


@every_layout
@pytest.mark.parametrize("missing", [None, ""])
def test_parquet_row_without_image(layout: str, missing: str | None, tmp_path: Path) -> None:
    refuse_parquet(tmp_path, layout, {"image_id": ["a", "b", missing]}, "row 3", "no image id")


@pytest.mark.parametrize("missing", [None, ""])
def test_parquet_row_without_class(missing: str | None, tmp_path: Path) -> None:
    refuse_parquet(tmp_path, "long", {"label": ["cat", missing, "dog"]}, "row 2", "no class")


@pytest.mark.parametrize("missing", [None, ""])
def test_parquet_list_with_an_empty_entry(missing: str | None, tmp_path: Path) -> None:
    lists = [["cat"], ["dog", missing], []]
    refuse_parquet(tmp_path, "lists", {"positives": lists}, "row 2", "empty entry")


@every_layout
def test_parquet_ids_of_a_type_that_is_none(layout: str, tmp_path: Path) -> None:
    parts = ("type double cannot be used", "whole numbers or strings")
    refuse_parquet(tmp_path, layout, {"image_id": [1.5, 2.0, 3.0]}, *parts)


@pytest.mark.parametrize("layout", ["long", "lists"])
def test_parquet_unknown_class(layout: str, tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ndogs\n")
    parts = ("row 2", "unknown class 'dog'", "did you mean dogs?")
    refuse_parquet(tmp_path, layout, {}, *parts, classes=known)


def test_parquet_unknown_class_wide(tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ndogs\n")
    refuse_parquet(tmp_path, "wide", {}, "no column 'dogs'", "did you mean dog?", classes=known)


def test_parquet_class_number_outside_the_class_file(tmp_path: Path) -> None:
    known = write(tmp_path / "c.txt", "cat\ndog\n")
    change = {"positives": [[0], [1], [2]], "negatives": [["cat"], [], []]}
    refuse_parquet(tmp_path, "lists", change, "row 3", "class number 2", "0..1", classes=known)


def test_parquet_lists_of_something_else(tmp_path: Path) -> None:
    parts = ("lists of double", "class ids or class numbers")
    refuse_parquet(tmp_path, "lists", {"positives": [[0.5], [], []]}, *parts)


def test_parquet_lists_that_are_all_empty(tmp_path: Path) -> None:
    """Nothing is verified absent: such a column has no type, and is no mistake."""
    sources = parquet(tmp_path / "t.parquet", P_LISTS | {"negatives": [[], [], []]})
    store = imported("table", sources, tmp_path, layout="lists")
    assert states(store) == [[1, 0], [0, 1], [0, 0]]


def test_parquet_lists_of_fixed_size(tmp_path: Path) -> None:
    column = pa.array([["cat"], ["dog"], ["cat"]], pa.list_(pa.string(), 1))
    sources = parquet(tmp_path / "t.parquet", P_LISTS | {"positives": column})
    try:
        store = imported("table", sources, tmp_path, layout="lists")
    except DataError as error:
        assert "not readable as parquet" not in str(error)  # noqa: PT017  # it is readable
    else:
        assert store.counts().positives.tolist() == [2, 1]


def test_parquet_lists_where_numbers_belong(tmp_path: Path) -> None:
    refuse_parquet(tmp_path, "wide", {"dog": [[1], [0], [1]]}, "'dog'", "list")
    refuse_parquet(tmp_path, "long", {"value": [[1], [0], [1]]}, "'value'", "list")


def test_parquet_column_twice(tmp_path: Path) -> None:
    arrays = [pa.array(["a"]), pa.array(["cat"]), pa.array(["dog"])]
    table = pa.Table.from_arrays(arrays, names=["image_id", "label", "label"])
    pq.write_table(table, tmp_path / "t.parquet")
    parts = ("t.parquet", "'label' twice")
    refusal("table", [str(tmp_path / "t.parquet")], tmp_path, *parts, layout="long")


@every_layout
def test_parquet_present_and_absent(layout: str, tmp_path: Path) -> None:
    both: dict[str, dict[str, Any]] = {
        "long": {"image_id": ["a", "a", "a"], "label": ["cat"] * 3, "value": [0, 1, 1]},
        "wide": {"image_id": ["a", "a", "a"], "cat": [0, 1, 1]},
        "lists": {
            "image_id": ["a", "a"],
            "positives": [["cat"], ["cat"]],
            "negatives": [["cat"], pa.scalar([], pa.list_(pa.string())).as_py()],
        },
    }
    sources = parquet(tmp_path / "t.parquet", both[layout])
    store = imported("table", sources, tmp_path, layout=layout)
    assert states(store) == [[1]]
    assert (store.origin.conflicts, store.origin.duplicates) == (1, 1)
    parts = ("present and absent", "image a", "class cat", "leave --strict out")
    refusal("table", sources, tmp_path, *parts, layout=layout, strict=True)


@every_layout
def test_parquet_path_that_leaves_the_image_root(layout: str, tmp_path: Path) -> None:
    change = {"image_id": ["a", "../b", "c"]}
    refuse_parquet(tmp_path, layout, change, "'../b'", "leaves the image folder", "--images")


@every_layout
def test_parquet_without_rows(layout: str, tmp_path: Path) -> None:
    table = pa.table(PARQUETS[layout]).slice(0, 0)
    pq.write_table(table, tmp_path / "t.parquet")
    refusal("table", [str(tmp_path / "t.parquet")], tmp_path, "t.parquet", "no ", layout=layout)


def test_files_with_ids_of_different_types(tmp_path: Path) -> None:
    numbers = parquet(tmp_path / "t.parquet", P_LONG | {"image_id": [1, 2, 3]})
    words = LONG.path(tmp_path, LONG.text)
    for sources in (numbers + words, words + numbers):
        last = Path(sources[-1]).name
        refusal("table", sources, tmp_path, last, "int64", "string", layout="long")


# ------------------------------------------------------------------------------- COCO and LVIS


IMAGES = [
    {
        "id": 1,
        "file_name": "a.jpg",
        "neg_category_ids": [2],
        "not_exhaustive_category_ids": [],
    },
    {
        "id": 2,
        "file_name": "b.jpg",
        "neg_category_ids": [],
        "not_exhaustive_category_ids": [1],
    },
]
CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
ANNOTATIONS = [{"image_id": 1, "category_id": 1}, {"image_id": 2, "category_id": 1}]
INSTANCES: dict[str, Any] = {
    "images": IMAGES,
    "categories": CATEGORIES,
    "annotations": ANNOTATIONS,
}
every_json = pytest.mark.parametrize("name", ["lvis", "coco"])


def instances(folder: Path, content: Any, file: str = "i.json") -> list[str]:
    if not isinstance(content, str | bytes):
        content = json.dumps(content, indent=1)
    return [str(write(folder / file, content))]


def refuse_json(name: str, folder: Path, content: Any, *parts: str, **options: Any) -> str:
    return refusal(name, instances(folder, content), folder, "i.json", *parts, **options)


def changed(key: str, place: int, **change: Any) -> dict[str, Any]:
    """The good file with one entry changed; None takes a field away."""
    entries = [dict(entry) for entry in INSTANCES[key]]
    entries[place].update(change)
    entries[place] = {k: v for k, v in entries[place].items() if v is not None}
    return INSTANCES | {key: entries}


@every_json
@pytest.mark.parametrize("how", ["plain", "bom", "crlf", "gzip"])
def test_good_instances_are_read(name: str, how: str, tmp_path: Path) -> None:
    plain = json.dumps(INSTANCES, indent=1).encode()
    content = {
        "plain": plain,
        "bom": BOM + plain,
        "crlf": plain.replace(b"\n", b"\r\n"),
        "gzip": gzip.compress(plain),
    }[how]
    store = imported(name, instances(tmp_path, content), tmp_path)
    expected = {"lvis": [[1, -1], [1, 0]], "coco": [[1, -1], [1, -1]]}
    assert states(store) == expected[name]


@every_json
def test_json_cut_off(name: str, tmp_path: Path) -> None:
    whole = json.dumps(INSTANCES, indent=1)
    for length in (len(whole) - 1, len(whole) // 2, 5, 1):
        cut = whole[:length]
        line = f"line {cut.count(chr(10)) + 1}"
        refuse_json(name, tmp_path, cut, line, "not valid json", "is it cut off?")


@every_json
def test_json_cut_off_beyond_the_first_block(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partlabel.readers.scan_json._BLOCK", 64)
    whole = json.dumps(INSTANCES, indent=1)
    cut = whole[: whole.rindex('"category_id"')]
    refuse_json(name, tmp_path, cut, f"line {cut.count(chr(10)) + 1}", "is it cut off?")


@every_json
def test_json_with_a_mistake(name: str, tmp_path: Path) -> None:
    whole = json.dumps(INSTANCES, indent=1)
    line = whole[: whole.index("},")].count("\n") + 2
    refuse_json(name, tmp_path, whole.replace("},", "}", 1), f"line {line}", "expected , or ]")
    refuse_json(name, tmp_path, whole + "x", f"line {whole.count(chr(10)) + 1}", "after the end")


@every_json
@pytest.mark.parametrize("content", [b"", BOM, b" \n", EMPTY_GZIP])
def test_json_empty(name: str, content: bytes, tmp_path: Path) -> None:
    refuse_json(name, tmp_path, content, "empty")


@every_json
@pytest.mark.parametrize("content", ["hello", "ImageID,LabelName\n", "<html></html>"])
def test_file_that_is_not_json(name: str, content: str, tmp_path: Path) -> None:
    refuse_json(name, tmp_path, content, "line 1", "not valid json", content[:5])


@every_json
@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({}, "images"),
        ({"a": 1}, "images"),
        ({"images": IMAGES, "annotations": ANNOTATIONS}, "categories"),
        ({"images": IMAGES, "categories": CATEGORIES}, "annotations"),
        ({"categories": CATEGORIES, "annotations": ANNOTATIONS}, "images"),
    ],
)
def test_json_that_is_another_format(
    name: str, content: dict[str, Any], key: str, tmp_path: Path
) -> None:
    refuse_json(name, tmp_path, content, f"has no '{key}'", "COCO or LVIS?")


@every_json
def test_json_list(name: str, tmp_path: Path) -> None:
    """The results format of COCO: valid json, but no instances file."""
    said = refuse_json(name, tmp_path, [{"image_id": 1, "category_id": 1}], "line 1")
    assert "not valid json" not in said


@every_json
def test_captions_file(name: str, tmp_path: Path) -> None:
    content = INSTANCES | {"annotations": [{"image_id": 1, "caption": "a cat"}]}
    refuse_json(name, tmp_path, content, "annotations[", "category_id", "COCO or LVIS")


@every_json
@pytest.mark.parametrize(
    ("content", "key", "part"),
    [
        (changed("annotations", 1, category_id=None), "annotations[1]", "category_id"),
        (changed("annotations", 1, image_id=None), "annotations[1]", "image_id"),
        (changed("annotations", 1, image_id="2"), "annotations[1]", "'2' is not an id"),
        (changed("annotations", 1, image_id=True), "annotations[1]", "True is not an id"),
        (changed("annotations", 1, category_id=-1), "annotations[1]", "-1 is not an id"),
        (changed("annotations", 1, category_id=1.5), "annotations[1]", "1.5 is not an id"),
        (INSTANCES | {"annotations": [*ANNOTATIONS, 5]}, "annotations[2]", "5"),
        (changed("images", 1, id=None), "images[1]", "id"),
        (changed("images", 1, file_name=None), "images[1]", "file_name"),
        (changed("images", 1, file_name="../x.jpg"), "images[1]", "'../x.jpg' leaves the image"),
        (changed("images", 1, file_name="/etc/x.jpg"), "images[1]", "'/etc/x.jpg' leaves the"),
        (changed("images", 1, coco_url="http://h/../x.jpg"), "images[1]", "'../x.jpg' leaves"),
        (changed("categories", 1, name=None), "categories[1]", "name"),
        (changed("categories", 1, id=1), "categories[1]", "category 1 is there twice"),
    ],
)
def test_entry_that_is_wrong(
    name: str, content: dict[str, Any], key: str, part: str, tmp_path: Path
) -> None:
    kind = key.split("[")[0]
    said = refuse_json(name, tmp_path, content, kind, part)
    assert key in said  # which of a million


@every_json
@pytest.mark.parametrize("key", ["images", "categories", "annotations"])
@pytest.mark.parametrize("value", [None, 5, "x"])
def test_value_that_is_not_a_list(name: str, key: str, value: Any, tmp_path: Path) -> None:
    said = refuse_json(name, tmp_path, INSTANCES | {key: value}, key)
    assert "subscriptable" not in said  # Python's words, not the user's
    assert "indices must be" not in said


@pytest.mark.parametrize("key", ["neg_category_ids", "not_exhaustive_category_ids"])
def test_lvis_image_without_its_lists(key: str, tmp_path: Path) -> None:
    content = changed("images", 0, **{key: None})
    refuse_json("lvis", tmp_path, content, "images[", key, "LVIS")


@every_json
def test_unknown_category_and_image(name: str, tmp_path: Path) -> None:
    content = changed("annotations", 1, category_id=9)
    refuse_json(name, tmp_path, content, "annotation", "category 9", "not in 'categories'")
    content = changed("annotations", 1, image_id=9)
    refuse_json(name, tmp_path, content, "annotation", "image 9", "not in 'images'")


@every_json
def test_unknown_category_is_said_of_the_right_file(name: str, tmp_path: Path) -> None:
    wrong = instances(tmp_path, changed("annotations", 1, category_id=9), "one.json")
    others = [{**image, "id": image["id"] + 10} for image in IMAGES]  # type: ignore[operator]
    annotations = [{"image_id": 11, "category_id": 1}]
    content = INSTANCES | {"images": others, "annotations": annotations}
    good = instances(tmp_path, content, "two.json")
    said = refusal(name, wrong + good, tmp_path, "category 9", "one.json")
    assert "two.json" not in said


def test_unknown_verified_category(tmp_path: Path) -> None:
    content = changed("images", 0, neg_category_ids=[77])
    refuse_json("lvis", tmp_path, content, "category 77", "not in 'categories'")


@every_json
def test_image_twice(name: str, tmp_path: Path) -> None:
    content = INSTANCES | {"images": IMAGES + IMAGES[:1]}
    sources = instances(tmp_path, content)
    refusal(name, sources, tmp_path, "image 1 is there twice")


@every_json
def test_image_twice_is_said_with_its_file(name: str, tmp_path: Path) -> None:
    refuse_json(name, tmp_path, INSTANCES | {"images": IMAGES + IMAGES[:1]}, "image 1")


@every_json
def test_categories_that_differ(name: str, tmp_path: Path) -> None:
    first = instances(tmp_path, INSTANCES, "one.json")
    second = instances(tmp_path, changed("categories", 1, name="wolf"), "two.json")
    parts = ("two.json", "other categories than the files before it")
    refusal(name, first + second, tmp_path, *parts)


@every_json
def test_json_in_the_wrong_encoding(name: str, tmp_path: Path) -> None:
    text = json.dumps(changed("categories", 1, name="chién"), ensure_ascii=False)
    refuse_json(name, tmp_path, text.encode("latin-1"), "is not UTF-8 (byte 0xe9)", "save it as")
    refuse_json(name, tmp_path, text.encode("utf-16"), "UTF-", "save it as UTF-8")


@every_json
def test_json_in_a_damaged_gzip(name: str, tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(INSTANCES).encode())
    refuse_json(name, tmp_path, whole[:-12], "damaged gzip", "fetch it again")


@every_json
def test_nested_too_deeply(name: str, tmp_path: Path) -> None:
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    refuse_json(name, tmp_path, deep, "line 1", "nested too deeply")


def test_lvis_present_and_absent(tmp_path: Path) -> None:
    sources = instances(tmp_path, changed("annotations", 0, category_id=2))
    store = imported("lvis", sources, tmp_path)
    assert states(store) == [[0, 1], [1, 0]]
    assert store.origin.conflicts == 1
    assert "image 1, class 2" in store.origin.notes[0]
    parts = ("present and absent", "image 1, class 2", "leave --strict out")
    refusal("lvis", sources, tmp_path, *parts, strict=True)


@every_json
def test_several_objects_of_a_class_are_no_duplicates(name: str, tmp_path: Path) -> None:
    sources = instances(tmp_path, INSTANCES | {"annotations": ANNOTATIONS * 3})
    assert imported(name, sources, tmp_path).origin.duplicates == 0


# ------------------------------------------------------------------------------------- VOC


VOC = {
    "train.txt": "a\nb\n",
    "cat_train.txt": "a  1\nb -1\n",
    "dog_train.txt": "a -1\nb  0\n",
}


def voc(root: Path, **change: str | bytes | None) -> Path:
    """Write the image sets; a change is named after the file without its ending."""
    files = VOC | {f"{name}.txt": content for name, content in change.items()}
    for name, content in files.items():
        if content is not None:
            write(root / "ImageSets" / "Main" / name, content)
    return root


def refuse_voc(
    folder: Path, *parts: str, options: dict[str, Any] | None = None, **change: Any
) -> str:
    return refusal("voc", voc(folder / "VOC", **change), folder, *parts, **options or {})


@pytest.mark.parametrize("how", ["plain", "bom", "crlf", "gzip"])
def test_good_voc_is_read(how: str, tmp_path: Path) -> None:
    plain = b"a -1\nb  1\n"
    content = {
        "plain": plain,
        "bom": BOM + plain,
        "crlf": plain.replace(b"\n", b"\r\n"),
        "gzip": gzip.compress(plain),
    }[how]
    store = imported("voc", voc(tmp_path / "VOC", dog_train=content), tmp_path)
    assert states(store) == [[1, -1], [-1, 1]]


@pytest.mark.parametrize(("policy", "state"), [("unknown", 0), ("absent", -1), ("present", 1)])
def test_voc_difficult_policies(policy: str, state: int, tmp_path: Path) -> None:
    store = imported("voc", voc(tmp_path / "VOC"), tmp_path, difficult=policy)
    assert states(store) == [[1, -1], [-1, state]]


@pytest.mark.parametrize("row", ["b", "b 2", "b 1 1", "b x"])
def test_voc_bad_row(row: str, tmp_path: Path) -> None:
    parts = (
        "dog_train.txt line 3",
        f"'{row}' is not an entry",
        "expected an image id and 1, -1 or 0",
    )
    refuse_voc(tmp_path, *parts, dog_train=f"a -1\n\n{row}\n")


@pytest.mark.parametrize("image", ["../b", "/etc/b", "x\\b", "..", ".hidden"])
def test_voc_id_with_a_path(image: str, tmp_path: Path) -> None:
    refuse_voc(tmp_path, "dog_train.txt line 2", "has a path in it", dog_train=f"a -1\n{image} 1\n")


def test_voc_wrong_encoding(tmp_path: Path) -> None:
    parts = ("dog_train.txt", "is not UTF-8 (byte 0xe9)", "save it as UTF-8")
    refuse_voc(tmp_path, *parts, dog_train=b"a -1\n\xe9 1\n")
    refuse_voc(tmp_path, "dog_train.txt", "is UTF-16", dog_train="a -1\nb 1\n".encode("utf-16"))


def test_voc_damaged_gzip(tmp_path: Path) -> None:
    content = gzip.compress(b"a -1\nb 1\n")[:-6]
    refuse_voc(tmp_path, "dog_train.txt", "damaged gzip", "fetch it again", dog_train=content)


@pytest.mark.parametrize("policy", ["unknown", "absent"])
@pytest.mark.parametrize("content", ["", "a -1\n"])
def test_voc_class_file_that_is_cut_off(content: str, policy: str, tmp_path: Path) -> None:
    """The lists name every image under every class; what is missing is not verified absent."""
    options = {"difficult": policy}
    refuse_voc(tmp_path, "dog_train.txt", options=options, dog_train=content)


def test_voc_duplicates_and_conflicts(tmp_path: Path) -> None:
    store = imported("voc", voc(tmp_path / "VOC", dog_train="a -1\nb 0\na -1\n"), tmp_path)
    assert (store.origin.duplicates, store.origin.conflicts) == (1, 0)
    root = voc(tmp_path / "VOC", dog_train="a 1\nb 0\na -1\n")
    store = imported("voc", root, tmp_path)
    assert states(store) == [[1, 1], [-1, 0]]
    assert store.origin.conflicts == 1
    assert "image a, class dog" in store.origin.notes[0]
    refusal("voc", root, tmp_path, "image a, class dog", "leave --strict out", strict=True)


def test_voc_missing_file(tmp_path: Path) -> None:
    parts = ("dog_val.txt", "no such file")
    refuse_voc(tmp_path, *parts, val="c\n", cat_val="c 1\n")


def test_voc_image_in_two_splits(tmp_path: Path) -> None:
    parts = ("image a is in train and in val", "--splits that do not overlap")
    refuse_voc(tmp_path, *parts, val="a\n", cat_val="a 1\n", dog_val="a 1\n")


def test_voc_split_that_does_not_exist(tmp_path: Path) -> None:
    said = refuse_voc(tmp_path, "trian.txt", options={"splits": ["trian"]})
    assert "train" in said.replace("trian", "")  # says which there are


def test_voc_without_lists_or_classes(tmp_path: Path) -> None:
    refuse_voc(tmp_path, "has no train.txt, val.txt or test.txt", "--splits", train=None)
    shutil.rmtree(tmp_path / "VOC")
    refuse_voc(tmp_path, "has no files like cat_train.txt", cat_train=None, dog_train=None)


@pytest.mark.parametrize("name", ["voc", "nuswide"])
def test_wrong_root(name: str, tmp_path: Path) -> None:
    (tmp_path / "VOC2007").mkdir()
    refusal(name, tmp_path / "VOC2008", tmp_path, "VOC2008", "no such folder")
    file = write(tmp_path / "file", "x")
    refusal(name, file, tmp_path, str(file), "is a file, not a folder")
    inside = {"voc": "ImageSets", "nuswide": "ImageList"}[name]
    refusal(name, tmp_path, tmp_path, inside, "no such folder")


@pytest.mark.parametrize("name", ["voc", "nuswide"])
def test_wrong_root_is_met_with_a_suggestion(name: str, tmp_path: Path) -> None:
    (tmp_path / "VOC2007").mkdir()
    refusal(name, tmp_path / "VOC2008", tmp_path, "did you mean VOC2007?")


# --------------------------------------------------------------------------------- NUS-WIDE


LABELS = "Groundtruth/TrainTestLabels"
NUSWIDE = {
    "ImageList/TrainImagelist.txt": "x\\a.jpg\nx\\b.jpg\n",
    "ImageList/TestImagelist.txt": "x\\c.jpg\n",
    f"{LABELS}/Labels_sky_Train.txt": "1\n0\n",
    f"{LABELS}/Labels_sky_Test.txt": "1\n",
    f"{LABELS}/Labels_sea_Train.txt": "0\n0\n",
    f"{LABELS}/Labels_sea_Test.txt": "1\n",
}
SKY = f"{LABELS}/Labels_sky_Train.txt"


def nuswide(root: Path, change: dict[str, str | bytes | None] | None = None) -> Path:
    for name, content in (NUSWIDE | (change or {})).items():
        if content is not None:
            write(root / name, content)
    return root


def refuse_nuswide(folder: Path, change: dict[str, str | bytes | None], *parts: str) -> str:
    return refusal("nuswide", nuswide(folder / "NUS", change), folder, *parts)


@pytest.mark.parametrize("how", ["plain", "bom", "crlf", "gzip"])
def test_good_nuswide_is_read(how: str, tmp_path: Path) -> None:
    plain = b"1\n0\n"
    content = {
        "plain": plain,
        "bom": BOM + plain,
        "crlf": plain.replace(b"\n", b"\r\n"),
        "gzip": gzip.compress(plain),
    }[how]
    store = imported("nuswide", nuswide(tmp_path / "NUS", {SKY: content}), tmp_path)
    assert states(store) == [[-1, 1], [-1, -1], [1, 1]]


@pytest.mark.parametrize("mark", ["2", "-1", "x", "1.0"])
def test_nuswide_bad_mark(mark: str, tmp_path: Path) -> None:
    parts = ("Labels_sky_Train.txt line 2", f"'{mark}' is not 0 or 1")
    refuse_nuswide(tmp_path, {SKY: f"1\n{mark}\n"}, *parts)


def test_nuswide_line_of_a_bad_mark_after_an_empty_line(tmp_path: Path) -> None:
    parts = ("Labels_sky_Train.txt line 3", "'2' is not 0 or 1")
    refuse_nuswide(tmp_path, {SKY: "1\n\n2\n"}, *parts)


@pytest.mark.parametrize(("content", "count"), [("1\n", 1), ("", 0), ("1\n0\n1\n", 3)])
def test_nuswide_file_of_another_length(content: str, count: int, tmp_path: Path) -> None:
    parts = ("Labels_sky_Train.txt", f"has {count} labels", "TrainImagelist.txt has 2 images")
    refuse_nuswide(tmp_path, {SKY: content}, *parts, "of the same download")


def test_nuswide_wrong_encoding(tmp_path: Path) -> None:
    parts = ("Labels_sky_Train.txt", "is not UTF-8 (byte 0xe9)", "save it as UTF-8")
    refuse_nuswide(tmp_path, {SKY: b"1\n\xe9\n"}, *parts)
    refuse_nuswide(tmp_path, {SKY: "1\n0\n".encode("utf-16")}, "is UTF-16", "save it as UTF-8")


def test_nuswide_damaged_gzip(tmp_path: Path) -> None:
    content = gzip.compress(b"1\n0\n")[:-6]
    refuse_nuswide(tmp_path, {SKY: content}, "Labels_sky_Train.txt", "damaged gzip", "fetch it")


def test_nuswide_missing_files(tmp_path: Path) -> None:
    refuse_nuswide(tmp_path / "1", {SKY: None}, "Labels_sky_Train.txt", "no such file")
    change: dict[str, str | bytes | None] = {"ImageList/TestImagelist.txt": None}
    refuse_nuswide(tmp_path / "2", change, "TestImagelist.txt", "did you mean TrainImagelist.txt?")
    change = {name: None for name in NUSWIDE if name.startswith(LABELS)}
    write(tmp_path / "3" / "NUS" / LABELS / "readme.txt", "x")
    refuse_nuswide(tmp_path / "3", change, LABELS, "has no files like Labels_sky_Train.txt")


@pytest.mark.parametrize("path", ["..\\x.jpg", "../x.jpg", "/etc/x.jpg"])
def test_nuswide_path_that_leaves_the_image_root(path: str, tmp_path: Path) -> None:
    change: dict[str, str | bytes | None] = {"ImageList/TestImagelist.txt": f"{path}\n"}
    parts = ("x.jpg' leaves the image folder", "--images")
    said = refuse_nuswide(tmp_path, change, *parts)
    assert "TestImagelist.txt" in said


def test_nuswide_image_twice(tmp_path: Path) -> None:
    change: dict[str, str | bytes | None] = {"ImageList/TestImagelist.txt": "x\\a.jpg\n"}
    said = refuse_nuswide(tmp_path, change, "image x/a.jpg is there twice")
    assert "Imagelist.txt" in said


# ------------------------------------------------------------------------- damaged stores


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A good store of two images, one in each split."""
    text = "image_id,label,value,split\na.jpg,cat,1,train\na.jpg,dog,0,train\nb.jpg,dog,1,val\n"
    LONG.read(tmp_path, text)
    return (tmp_path / "out.labels").rename(tmp_path / "good.labels")


def change_meta(path: Path, **change: Any) -> None:
    meta = json.loads((path / "meta.json").read_text()) | change
    (path / "meta.json").write_text(json.dumps(meta))


def truncate(path: Path, by: int) -> None:
    write(path, path.read_bytes()[:-by])


def _one_image(path: Path) -> None:
    table = pq.read_table(path / "images.parquet")
    pq.write_table(table.slice(0, 1), path / "images.parquet")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut codes": (lambda path: truncate(path / "codes.npy", 2), "codes.npy"),
    "cut indptr": (lambda path: truncate(path / "indptr.npy", 8), "indptr.npy"),
    "cut header": (lambda path: truncate(path / "codes.npy", 120), "codes.npy"),
    "empty codes": (lambda path: write(path / "codes.npy", b""), "codes.npy"),
    "garbage codes": (lambda path: write(path / "codes.npy", b"garbage" * 9), "codes.npy"),
    "no codes": (lambda path: (path / "codes.npy").unlink(), "codes.npy"),
    "no classes": (lambda path: (path / "classes.csv").unlink(), "classes.csv"),
    "empty classes": (lambda path: write(path / "classes.csv", ""), "classes.csv"),
    "no images": (lambda path: (path / "images.parquet").unlink(), "images.parquet"),
    "cut images": (lambda path: truncate(path / "images.parquet", 30), "images.parquet"),
    "other images": (_one_image, "images.parquet"),
    "garbage meta": (lambda path: write(path / "meta.json", "{{"), "meta.json"),
    "binary meta": (lambda path: write(path / "meta.json", b"\xff\xfe\x00"), "meta.json"),
    "empty meta": (lambda path: write(path / "meta.json", ""), "meta.json"),
    "meta of a list": (lambda path: write(path / "meta.json", "[1]"), "meta.json"),
    "meta without fields": (
        lambda path: write(path / "meta.json", '{"format_version": 1}'),
        "meta.json",
    ),
    "floats": (lambda path: np.save(path / "codes.npy", np.zeros(3)), "codes"),
    "matrix": (lambda path: np.save(path / "codes.npy", np.zeros((3, 1), np.uint16)), "codes.npy"),
    "more codes": (lambda path: np.save(path / "codes.npy", np.zeros(9, np.uint16)), "codes"),
    "class out of range": (
        lambda path: np.save(path / "codes.npy", np.full(3, 77, np.uint16)),
        "class 77 of 2",
    ),
    "pickled codes": (
        lambda path: np.save(path / "codes.npy", np.array([{}], object), allow_pickle=True),
        "codes.npy",
    ),
}


def use(path: Path) -> None:
    """What every command does with a store."""
    opened = LabelStore.open(path)
    opened.images.paths(range(len(opened)))
    opened.counts()


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_store(how: str, store: Path) -> None:
    use(store)
    damage, part = DAMAGES[how]
    damage(store)
    with pytest.raises(StoreError) as caught:
        use(store)
    text = without_folder(str(caught.value), store.parent)
    assert "FOLDER/good.labels" in text
    assert part in text
    assert "import" in text  # what would do


def test_indptr_that_goes_back(store: Path) -> None:
    np.save(store / "indptr.npy", np.array([0, 9, 3]))
    with pytest.raises(StoreError, match=r"good\.labels.*indptr"):
        LabelStore.open(store)


@pytest.mark.parametrize("version", [2, 99, 0, "1", None])
def test_store_of_another_format_version(version: Any, store: Path) -> None:
    change_meta(store, format_version=version)
    with pytest.raises(StoreError) as caught:
        LabelStore.open(store)
    text = str(caught.value)
    assert f"{store}: store format {version}, this partlabel reads 1" in text
    assert "update partlabel or import again" in text


def test_open_of_what_is_no_store(store: Path) -> None:
    folder = store.parent
    with pytest.raises(StoreError, match=r"no such store; in .* did you mean good\.labels\?"):
        LabelStore.open(folder / "god.labels")
    with pytest.raises(
        StoreError, match=r"not a label store \(no meta.json\); make one with import"
    ):
        LabelStore.open(folder)
    with pytest.raises(StoreError, match="no such store"):
        LabelStore.open(folder / "nowhere" / "good.labels")


def test_open_of_a_file_says_that_it_is_one(store: Path) -> None:
    with pytest.raises(StoreError, match=r"table\.csv.*is a file"):
        LabelStore.open(store.parent / "table.csv")


def test_split_that_does_not_exist(store: Path) -> None:
    with pytest.raises(UsageError, match="no split 'test'; the splits are: train, val"):
        LabelStore.open(store).split("test")


@pytest.mark.parametrize("count", [0, 1])
def test_merging_one_store(count: int, store: Path) -> None:
    parts = ("at least two stores",)
    refusal("stores", [store] * count, store.parent, *parts, error=UsageError)


def test_merging_a_store_that_is_not_there(store: Path) -> None:
    sources = [store, store.parent / "god.labels"]
    refusal("stores", sources, store.parent, "did you mean good.labels?", error=StoreError)


# ----------------------------------------------------------------------- the command line


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "40", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "partlabel", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_mistake(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, one line that says it, nothing else."""
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def project(store: Path) -> Path:
    """A folder with label files and a store, for commands to go wrong in."""
    folder = store.parent
    write(folder / "labels.csv", LONG.text)
    write(folder / "oi.csv", OPENIMAGES.text)
    write(folder / "cut.csv", LONG.text + "c.jpg,ca\n")
    write(folder / "clash.csv", f"{LONG.text}{LONG.clash}\n")
    write(folder / "out.csv", LONG.text + "../x.jpg,cat,1\n")
    write(folder / "etc.csv", LONG.text + "/etc/x.jpg,cat,1\n")
    write(folder / "i.json", json.dumps(changed("annotations", 1, category_id=9)))
    write(folder / "gone.json", json.dumps(INSTANCES)[:-20])
    write(folder / "latin.csv", f"{LONG.text}{LONG.latin}\n".encode("latin-1"))
    write(folder / "empty.csv", "")
    write(folder / "complete.csv", "image_id,cat,dog\na.jpg,1,0\nb.jpg,0,1\n")
    return folder


MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "wrong path": (
        "import table label.csv --layout long",
        ("label.csv: no such file", "did you mean labels.csv?"),
    ),
    "wrong column": (
        "import table labels.csv --layout long --label lable",
        ("labels.csv line 1: no column 'lable'", "did you mean label?"),
    ),
    "cut row": ("import table cut.csv --layout long", ("cut.csv line 4", "cut off?")),
    "empty": ("import table empty.csv --layout wide", ("empty.csv: is empty", "header")),
    "encoding": ("import table latin.csv --layout long", ("latin.csv line 4", "UTF-8")),
    "strict": (
        "import table clash.csv --layout long --strict",
        ("image a.jpg, class cat", "leave --strict out"),
    ),
    "category": ("import lvis i.json", ("i.json", "category 9", "'categories'")),
    "cut json": ("import coco gone.json", ("gone.json line 1", "cut off?")),
    "parent": ("import table out.csv --layout long", ("'../x.jpg' leaves", "--images")),
    "absolute": ("import table etc.csv --layout long", ("'/etc/x.jpg' leaves", "--images")),
    "option": ("import table labels.csv --layoot long", ("--layoot", "--layout", "--help")),
    "command": ("imprt table labels.csv", ("'imprt'", "import", "--help")),
    "format": ("import tabel labels.csv", ("'tabel'", "table", "import --help")),
    "no layout": ("import table labels.csv", ("Missing option '--layout'", "long, wide, lists")),
    "layout": ("import table labels.csv --layout lng", ("'lng'", "'long', 'wide', 'lists'")),
    "no file": ("import table --layout long", ("Missing argument", "--help")),
    "val": (
        "import table labels.csv --layout long --val 2",
        ("--val must be between 0 and 1", "2"),
    ),
    "val word": ("import table labels.csv --layout long --val x", ("--val", "number")),
    "seed": ("import table labels.csv --layout long --seed -1", ("--seed",)),
    "template": (
        "import table labels.csv --layout long --path-template {foo}",
        ("'{foo}'", "use only {split}, {id}, {id:016x}, {id:012d}"),
    ),
    "template cut": (
        "import table labels.csv --layout long --path-template {id",
        ("path template '{id'", "expected '}'"),
    ),
    "template of numbers": (
        "import table labels.csv --layout long --path-template {id:012d}.jpg",
        ("{id:012d}.jpg",),
    ),
    "template of openimages": (
        "import openimages oi.csv --path-template {foo}",
        ("'{foo}'", "use only {split}, {id}, {id:016x}, {id:012d}"),
    ),
    "delimiter": ("import table labels.csv --layout long --delimiter ab", ("delimiter",)),
    "no images": ("import table labels.csv --layout long --images gone", ("--images", "'gone'")),
    "in the way": (
        "import table labels.csv --layout long -o good.labels",
        ("good.labels exists", "choose another --out or add --overwrite"),
    ),
    "a file in the way": (
        "import table labels.csv --layout long -o labels.csv --overwrite",
        ("labels.csv exists and is not a label store", "choose another --out"),
    ),
    "info of a wrong path": ("info god.labels", ("no such store", "did you mean good.labels?")),
    "info of a folder": ("info .", ("not a label store (no meta.json)", "import")),
    "info of nothing": ("info", ("Missing argument 'STORE'", "info --help")),
    "split": (
        "simulate fpc good.labels --per-class 1 --split test",
        ("no split 'test'", "train, val"),
    ),
    "per class": (
        "simulate fpc good.labels --per-class 0",
        ("--per-class must be at least 1, got 0",),
    ),
    "no per class": ("simulate fpc good.labels", ("Missing option '--per-class'",)),
    "drop": (
        "simulate rpa good.labels --drop 1.5",
        ("--drop must be between 0 and 1, got 1.5",),
    ),
    "drop nan": ("simulate rpa good.labels --drop nan", ("--drop must be between 0 and 1",)),
    "keep": ("simulate drop-positives good.labels --keep -1", ("--keep must be between",)),
    "scheme": ("simulate fpx good.labels", ("'fpx'", "fpc", "simulate --help")),
    "simulate nothing": (
        "simulate fpc god.labels --per-class 1",
        ("no such store", "did you mean good.labels?"),
    ),
    "one store": ("import stores good.labels -o x.labels", ("at least two stores",)),
}


@pytest.fixture
def terminate_as_before() -> Iterator[None]:
    """The command line takes SIGTERM into its own hands; give it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("how", MISTAKES)
@pytest.mark.usefixtures("terminate_as_before")
def test_mistake_on_the_command_line(
    how: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = sorted(entry.name for entry in project.iterdir())
    command, parts = MISTAKES[how]
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "argv", ["partlabel", *command.split()])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capfd.readouterr()
    code = caught.value.code
    assert isinstance(code, int)
    assert_mistake(subprocess.CompletedProcess(command, code, out, err), *parts)
    assert sorted(entry.name for entry in project.iterdir()) == before


@pytest.mark.parametrize(
    "how",
    [
        "wrong path",
        "wrong column",
        "cut row",
        "encoding",
        "strict",
        "cut json",
        "parent",
        "option",
        "command",
        "no layout",
        "val",
        "template",
        "template of openimages",
        "delimiter",
        "in the way",
        "info of a wrong path",
        "per class",
        "drop",
        "split",
    ],
)
def test_mistake_in_a_process_of_its_own(how: str, project: Path) -> None:
    before = sorted(entry.name for entry in project.iterdir())
    command, parts = MISTAKES[how]
    assert_mistake(run(project, *command.split()), *parts)
    assert sorted(entry.name for entry in project.iterdir()) == before


@pytest.mark.parametrize(
    "how", ["cut codes", "no images", "garbage meta", "other images", "class out of range"]
)
def test_damaged_store_on_the_command_line(how: str, project: Path) -> None:
    damage, part = DAMAGES[how]
    damage(project / "good.labels")
    assert_mistake(run(project, "info", "good.labels"), "good.labels", part, "import")


def test_newer_store_on_the_command_line(project: Path) -> None:
    change_meta(project / "good.labels", format_version=2)
    parts = ("store format 2, this partlabel reads 1", "update partlabel")
    assert_mistake(run(project, "info", "good.labels"), *parts)


def test_good_commands_exit_with_0(project: Path) -> None:
    done = run(project, "import", "table", "clash.csv", "--layout", "long", "-o", "new.labels")
    assert (done.returncode, done.stderr) == (0, "")
    assert "image a.jpg, class cat" in done.stdout  # the conflict is shown
    assert "1 labels were annotated present and absent" in done.stdout
    done = run(project, "info", "--json", "new.labels")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["conflicts"] == 1


def test_complete_table_on_the_command_line(project: Path) -> None:
    options = ("--layout", "wide", "--complete", "-o", "new.labels")
    done = run(project, "import", "table", "complete.csv", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert states(LabelStore.open(project / "new.labels")) == [[1, -1], [-1, 1]]


@pytest.mark.parametrize("command", ["", "import", "simulate"])
def test_no_command_shows_what_there_is(command: str, project: Path) -> None:
    """Asked for nothing it shows the help, in lines, and does not call that an error."""
    done = run(project, *command.split())
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    assert "error: Usage" not in text
    assert len(text.splitlines()) > 5


def test_wrong_path_as_a_folder_of_a_file(project: Path) -> None:
    done = run(
        project, "import", "table", "labels.csv", "--layout", "long", "-o", "oi.csv/x.labels"
    )
    assert_mistake(done, "oi.csv", "not a folder")
