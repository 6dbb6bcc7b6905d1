"""Files of scores and ``partlabel evaluate``: every layout beside scikit-learn, every bad input."""

from __future__ import annotations

import csv
import itertools
import json
import pickle
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from partlabel import ClassTable, LabelStore, cli
from partlabel import evaluate as evaluating
from partlabel.errors import PartlabelError
from tests.conftest import MakeStore, store_from
from tests.test_cli import partlabel

LAYOUTS = ["npy", "npy-ids", "lists", "fixed", "wide", "pairs", "pairs-npy", "all-pairs"]
DENSE = LAYOUTS[:5]
KINDS = ["string", "hex", "int"]


class Sample(NamedTuple):
    """A store, and a score for each of its pairs."""

    store: LabelStore
    ids: list[Any]
    """As files have them: text, 16 hex digits, or numbers."""
    states: np.ndarray
    scores: np.ndarray

    @property
    def rows(self) -> range:
        return range(len(self.ids))


def sample(
    kind: str = "string", *, complete: bool = False, images: int = 60, **columns: Any
) -> Sample:
    """Six classes, the last without any label (all absent where complete), and many ties."""
    rng = np.random.default_rng(7)
    states = np.where(rng.random((images, 6)) < 0.4, 1, -1).astype(np.int8)
    states[:, 5] = -1
    if not complete:
        states[(rng.random(states.shape) < 0.5) | (np.arange(6) == 5)] = 0
    ids: Any = {
        "string": [f"img{i}" for i in range(images)],
        "hex": rng.permutation(np.arange(images, dtype=np.uint64) * np.uint64(2**64 // images)),
        "int": rng.permutation(images) - images // 2,
    }[kind]
    store = store_from(states, ids=ids, complete=complete, **columns)
    shown = [f"{int(i):016x}" for i in ids] if kind == "hex" else list(ids)
    return Sample(store, shown, states, (states + rng.normal(size=states.shape) * 2).round(1))


def parquet(columns: Any, name: str = "x.parquet") -> Path:
    pq.write_table(pa.table(columns), name, row_group_size=7)
    return Path(name)


def array(values: Any, name: str = "x.npy") -> Path:
    np.save(name, values)
    return Path(name)


def raw(data: bytes, name: str) -> Path:
    Path(name).write_bytes(data)
    return Path(name)


def pairs_array(ids: list[Any], classes: Any, scores: Any) -> np.ndarray:
    columns = {"image_id": ids, "class_id": classes, "score": scores}
    kinds = [(name, np.asarray(column).dtype) for name, column in columns.items()]
    return np.array(list(zip(*columns.values(), strict=True)), kinds)


def write(layout: str, data: Sample, scores: np.ndarray, rows: Any = None) -> dict[str, Any]:
    """Write scores of some images in an order; gives the arguments of ``collect``."""
    rows = np.arange(len(data.ids)) if rows is None else np.asarray(rows)
    names, classes = data.store.classes.ids, scores.shape[1]
    ids, values = [data.ids[i] for i in rows], scores[rows]
    match layout:
        case "npy":
            return {"path": array(scores)}
        case "npy-ids":
            Path("ids.txt").write_text("".join(f"{i}\n" for i in ids))
            return {"path": array(values), "image_ids": Path("ids.txt")}
        case "lists":
            offsets = np.arange(0, values.size + 1, classes, dtype=np.int32)
            column = pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))
            return {"path": parquet({"image_id": ids, "scores": column})}
        case "fixed":
            column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), classes)
            return {"path": parquet({"image_id": ids, "scores": column})}
        case "wide":
            columns = {names[c]: values[:, c] for c in reversed(range(classes))}
            return {"path": parquet({"image_id": ids, **columns})}
    known = np.ones(values.shape, bool) if layout == "all-pairs" else data.states[rows] != 0
    image, which = np.random.default_rng(1).permutation(np.argwhere(known)).T
    chosen = ([ids[i] for i in image], [names[c] for c in which], values[image, which])
    if layout == "pairs-npy":
        return {"path": array(pairs_array(*chosen))}
    return {"path": parquet(dict(zip(("image_id", "class_id", "score"), chosen, strict=True)))}


def collect(given: dict[str, Any], store: LabelStore, **more: Any) -> evaluating.Evaluation:
    return evaluating.collect(store=store, **given, **more)[1]


def average_precisions(scores: np.ndarray, states: np.ndarray) -> list[float]:
    """By scikit-learn, on annotated pairs; NaN where there is no positive or no negative."""
    return [
        average_precision_score(y[y != 0] > 0, s[y != 0].astype(np.float64))
        if {-1, 1} <= set(y.tolist())
        else np.nan
        for s, y in zip(scores.T, states.T, strict=True)
    ]


def check(found: evaluating.Evaluation, scores: np.ndarray, states: np.ndarray) -> None:
    expected = np.array(average_precisions(scores, states))
    positives, scored = (states > 0).sum(0), ~np.isnan(expected)
    assert found.result.per_class == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert found.result.map_c == pytest.approx(expected[scored].mean(), abs=1e-12)
    weighted = np.average(expected[scored], weights=positives[scored])
    assert found.result.map_o == pytest.approx(weighted, abs=1e-12)
    assert found.result.positives.tolist() == positives.tolist()
    assert found.result.negatives.tolist() == (states < 0).sum(0).tolist()
    assert found.pairs == (states != 0).sum()


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stretches even of small files, with ends that are not those of row groups."""
    monkeypatch.setattr("partlabel.scores._VALUES_AT_ONCE", 6 * 11)
    monkeypatch.setattr("partlabel.scores.pairs._PAIRS_AT_ONCE", 13)


@pytest.mark.usefixtures("in_tmp")
class TestLayouts:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.usefixtures("stretches")
    def test_the_numbers_are_those_of_scikit_learn(self, layout: str, kind: str) -> None:
        for complete, dtype in itertools.product((False, True), ("f2", "f4", "f8")):
            data = sample(kind, complete=complete)
            scores = data.scores.astype(dtype)
            order = np.random.default_rng(3).permutation(data.rows)
            found = collect(write(layout, data, scores, order), data.store)
            check(found, scores, data.states)
            assert found.left_out == []

    def test_in_one_stretch_as_in_many(self) -> None:
        data = sample()
        for layout in LAYOUTS:
            check(collect(write(layout, data, data.scores), data.store), data.scores, data.states)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_images_are_counted_the_same_way(self, layout: str) -> None:
        data = sample()
        data.states[3] = 0  # an image that nobody looked at
        data = data._replace(store=store_from(data.states))
        counts = {
            name: collect(write(name, data, data.scores), data.store).images
            for name in ("npy", layout)
        }
        assert len(set(counts.values())) == 1, counts

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_reference_ties_do_not_depend_on_the_order_of_the_file(self, layout: str) -> None:
        data = sample()
        given = write(layout, data, data.scores, data.rows[::-1])
        found = collect(given, data.store, ties="reference").result.per_class
        for which in range(5):
            image = np.flatnonzero(data.states[:, which])[::-1]  # the later image first
            image = image[np.argsort(-data.scores[image, which], kind="stable")]
            hits = data.states[image, which] > 0
            total = (hits.cumsum() / np.arange(1, len(hits) + 1))[hits].sum()
            assert found[which] == pytest.approx(total / (hits.sum() + 1e-8), abs=1e-12)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_doubles_stay_doubles(self, layout: str) -> None:
        data = sample()
        scores = 1 + data.scores * 1e-12  # all equal as float32
        check(collect(write(layout, data, scores), data.store), scores, data.states)

    @pytest.mark.parametrize("layout", ["lists", "wide", "pairs", "pairs-npy"])
    def test_hex_ids_may_be_numbers(self, layout: str) -> None:
        data = sample("hex")
        numbers = data._replace(ids=list(data.store.images.ids))
        check(collect(write(layout, numbers, data.scores), data.store), data.scores, data.states)

    @pytest.mark.parametrize("kind", ["large_string", "string_view", "binary", "dictionary"])
    def test_types_of_text(self, kind: str) -> None:
        data = sample()

        def text(values: list[str]) -> Any:
            column = pa.array(values)
            return column.dictionary_encode() if kind == "dictionary" else column.cast(kind)

        parquet({"image_id": text(data.ids), "scores": data.scores.tolist()}, "lists.parquet")
        image, which = np.nonzero(data.states)
        columns = {
            "image_id": text([data.ids[i] for i in image]),
            "class_id": text([f"c{i}" for i in which]),
            "score": data.scores[image, which],
        }
        parquet(columns, "pairs.parquet")
        for name in ("lists.parquet", "pairs.parquet"):
            check(collect({"path": name}, data.store), data.scores, data.states)

    def test_orders_of_bytes_and_axes(self) -> None:
        data = sample()
        for scores in (data.scores.astype(">f4"), np.asfortranarray(data.scores)):
            check(collect({"path": array(scores)}, data.store), scores, data.states)

    def test_integer_ids_as_text_or_floats(self) -> None:
        data = sample("int")
        for kind in (str, float):
            ids = [kind(i) for i in data.ids]
            check(
                collect(write("lists", data._replace(ids=ids), data.scores), data.store),
                data.scores,
                data.states,
            )

    def test_classes_as_integers_mean_ids(self) -> None:
        data = sample(classes=list("135024"))
        image, which = np.nonzero(data.states)
        classes = [int("135024"[c]) for c in which]
        ids, scores = [data.ids[i] for i in image], data.scores[image, which]
        for path in (
            parquet({"image_id": ids, "class_id": classes, "score": scores}),
            array(pairs_array(ids, classes, scores)),
        ):
            check(collect({"path": path}, data.store), data.scores, data.states)

    @pytest.mark.parametrize("layout", ["lists", "wide", "pairs"])
    @pytest.mark.parametrize(
        "names",
        [["scores", *"bcdef"], ["a", "a.b", "a.b.c", "scores.x", "image_id.x", "list"]],
        ids=["scores", "dots"],
    )
    def test_names_of_classes_that_are_in_the_way(self, layout: str, names: list[str]) -> None:
        data = sample(classes=names)
        check(collect(write(layout, data, data.scores), data.store), data.scores, data.states)

    @pytest.mark.parametrize("kind", ["string", "int"])
    def test_ids_are_not_the_scores_of_a_class_with_that_name(self, kind: str) -> None:
        data = sample(kind, classes=["image_id", *"bcdef"])
        columns = {name: data.scores[:, i] for i, name in enumerate("bcdef", 1)}
        path = parquet({"image_id": data.ids, **columns})
        with pytest.raises(PartlabelError, match="image_id"):
            collect({"path": path}, data.store)
        for layout in ("lists", "pairs"):
            check(collect(write(layout, data, data.scores), data.store), data.scores, data.states)

    @pytest.mark.parametrize("text", ["{}\r\n", "{}\n", "\ufeff{}\n"], ids=["crlf", "lf", "bom"])
    def test_image_ids_as_editors_save_them(self, text: str) -> None:
        data = sample()
        mark, line = text[: text.index("{")], text[text.index("{") :]
        content = mark + "".join(line.format(i) for i in data.ids[::-1])
        Path("ids.txt").write_bytes(content.encode())
        given = {"path": array(data.scores[::-1]), "image_ids": Path("ids.txt")}
        check(collect(given, data.store), data.scores, data.states)

    @pytest.mark.parametrize("layout", LAYOUTS[1:])
    @pytest.mark.usefixtures("stretches")
    def test_what_both_have(self, layout: str) -> None:
        data = sample()
        inside = data.states.copy()
        inside[:20] = 0  # the first 20 images are not in the file, 10 others are
        more = Sample(
            data.store,
            [*data.ids, *(f"other{i}" for i in range(10))],
            np.vstack([data.states, np.ones((10, 6), np.int8)]),
            np.vstack([data.scores, np.full((10, 6), np.nan)]),
        )
        given = write(layout, more, more.scores, np.random.default_rng(0).permutation(50) + 20)
        with pytest.raises(PartlabelError, match=r"not in the store.*--common"):
            collect(given, data.store)
        found = collect(given, data.store, common=True)
        check(found, data.scores, inside)
        said = " ".join(found.left_out)
        if layout in DENSE:
            assert "10 images are not in the store" in said
            assert "20 images of the store have no scores" in said
        else:
            assert f"{(data.states[:20] != 0).sum()} annotated pairs have no score" in said
            assert "not in the store" in said  # 10 images, 40 or 60 pairs

    @pytest.mark.parametrize("layout", ["wide", "pairs", "all-pairs"])
    def test_classes_that_both_have(self, layout: str) -> None:
        data = sample()
        names = ClassTable(["c0", "c1", "new", "c3", "c4", "c5"])  # new instead of c2
        given = write(layout, data._replace(store=_with_classes(data.store, names)), data.scores)
        with pytest.raises(PartlabelError, match=r"c2|new.*--common"):
            collect(given, data.store)
        inside = data.states.copy()
        inside[:, 2] = 0
        found = collect(given, data.store, common=True)
        check(found, data.scores, inside)
        assert any("no score" in text for text in found.left_out)
        assert any("not in the store" in text or "new" in text for text in found.left_out)

    def test_columns_that_are_no_floats_are_no_classes(self) -> None:
        data = sample()
        write("wide", data, data.scores)
        more = {"path": ["a.jpg"] * 60, "width": range(60), "seen": [True] * 60}
        path = parquet({**pq.read_table("x.parquet").to_pydict(), **more}, "more.parquet")
        found = collect({"path": path}, data.store)
        check(found, data.scores, data.states)
        assert found.left_out == []

    def test_pairs_of_others_are_counted(self) -> None:
        data = sample()
        columns = pq.read_table(write("pairs", data, data.scores)["path"]).to_pydict()
        for name, value in (("image_id", "other"), ("class_id", "new")):
            rows = 2 if name == "class_id" else 1
            for key, column in columns.items():
                column += [value if key == name else column[0]] * rows
        found = collect({"path": parquet(columns)}, data.store, common=True)
        check(found, data.scores, data.states)
        assert found.left_out == [
            "1 pair is of images not in the store",
            "2 pairs are of classes not in the store",
        ]

    @pytest.mark.parametrize("layout", ["lists", "wide", "pairs"])
    def test_classes_named_as_the_columns_of_pairs(self, layout: str) -> None:
        data = sample(classes=["class_id", "score", *"cdef"])
        check(collect(write(layout, data, data.scores), data.store), data.scores, data.states)

    def test_float_columns_of_different_width_in_common(self) -> None:
        data = sample()
        scores = 1 + data.scores * 1e-12
        scores[:, 0] = data.scores[:, 0].astype(np.float32)
        columns = {f"c{i}": scores[:, i] for i in range(4)} | {"c0": scores[:, 0].astype("f4")}
        path = parquet({"image_id": data.ids, **columns})
        inside = data.states.copy()
        inside[:, 4:] = 0
        check(collect({"path": path}, data.store, common=True), scores, inside)

    @pytest.mark.parametrize("name", ["x.NPY", "x.Parquet"])
    def test_suffixes_in_capitals(self, name: str) -> None:
        data = sample()
        path = write("npy" if name == "x.NPY" else "lists", data, data.scores)["path"]
        path.rename(name)
        check(collect({"path": name}, data.store), data.scores, data.states)

    def test_the_first_pair_without_a_score_of_many(self) -> None:
        states = np.ones((3000, 2), np.int8)
        states[::2] = -1
        data = sample()._replace(
            store=store_from(states), states=states, ids=[f"img{i}" for i in range(3000)]
        )
        image, which = np.argwhere(states)[:-500].T
        ids = [data.ids[i] for i in image]
        columns = {"image_id": ids, "class_id": [f"c{c}" for c in which], "score": image * 1.0}
        with pytest.raises(
            PartlabelError, match=r"500 annotated pairs .image 'img2750', class 'c0'"
        ):
            collect({"path": parquet(columns)}, data.store)


def _with_classes(store: LabelStore, classes: ClassTable) -> LabelStore:
    return LabelStore(
        classes, store.images, indptr=store.indptr, codes=store.codes, complete=store.complete
    )


class Done(NamedTuple):
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        def refuse(text: str) -> None:
            raise AssertionError(f"{text} is no json")

        found: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return found


def said(line: str, text: str) -> None:
    assert re.search(text, line), line


def read_csv(name: str) -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))


Run = Callable[..., Done]
Refused = Callable[..., str]


def _files() -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in Path().rglob("*") if file.is_file()}


@pytest.fixture
def run(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The command, in this process: an exception that is not for the user ends the test."""
    before = signal.getsignal(signal.SIGTERM)

    def command(
        scores: str | Path, *options: object, store: str = "s.labels", code: int = 0
    ) -> Done:
        arguments = ["evaluate", "--scores", scores, "--labels", store, *options]
        monkeypatch.setattr(sys, "argv", ["partlabel", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        done = Done(*capsys.readouterr())
        assert ended.value.code == code, done
        return done

    yield command
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def refused(run: Run) -> Refused:
    """One line, exit code 2, nothing printed, nothing written; gives the line."""

    def command(*arguments: object, **more: Any) -> str:
        before = _files()
        done = run(*arguments, code=2, **more)
        assert done.out == ""
        assert _files() == before
        (line,) = done.err.splitlines()
        assert line.startswith("error: ")
        return line

    return command


STATES = np.array([[1, -1, 0], [-1, 1, 1], [-1, 0, -1], [1, 0, 0]], np.int8)
SCORES = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
IDS = [f"img{i}" for i in range(4)]
PAIRS = {
    "image_id": [f"img{i}" for i in np.nonzero(STATES)[0]],
    "class_id": [f"c{i}" for i in np.nonzero(STATES)[1]],
    "score": SCORES[STATES != 0].tolist(),
}
WIDE = {"image_id": IDS, **{f"c{i}": SCORES[:, i] for i in range(3)}}
LISTS = {"image_id": IDS, "scores": SCORES.tolist()}


def changed(columns: dict[str, Any], name: str, first: Any) -> Path:
    """A parquet file with another value in the first row of a column."""
    return parquet({**columns, name: [first, *list(columns[name])[1:]]})


def replaced(columns: dict[str, Any], **others: Any) -> Path:
    return parquet({**columns, **others})


def with_value(value: float) -> np.ndarray:
    scores = SCORES.copy()
    scores[2, 1] = value  # not annotated; the model is broken all the same
    return scores


def twice(columns: dict[str, Any], name: str) -> Path:
    table = pa.table(columns)
    pq.write_table(table.append_column(name, table[name]), "x.parquet")
    return Path("x.parquet")


def npy_header(text: str) -> Path:
    head = text.encode().ljust(118) + b"\n"
    return raw(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(48), "x.npy")


def npz_named_npy() -> Path:
    np.savez("x.npz", SCORES)
    return Path(shutil.move("x.npz", "x.npy"))


def cut(path: Path, *, by: int) -> Path:
    return raw(path.read_bytes()[:-by], str(path))


def a_folder(name: str) -> Path:
    Path(name).mkdir()
    return Path(name)


ARRAY = pairs_array(*PAIRS.values())

BAD: dict[str, tuple[Callable[[], Path], str]] = {
    # not such a file at all
    "nothing there": (lambda: Path("nope.npy"), r"nope.npy: no such file"),
    "no such folder": (lambda: Path("no/x.npy"), r"no/x.npy: no such file; there is no folder no"),
    "a folder": (lambda: a_folder("x.parquet"), r"x.parquet: is a folder, not a file"),
    "a folder npy": (lambda: a_folder("x.npy"), r"x.npy: is a folder, not a file"),
    "csv": (
        lambda: raw(b"image_id,c0\nimg0,1\n", "x.csv"),
        r"x.csv: .*(npy.*parquet|parquet.*npy)",
    ),
    "no suffix": (lambda: raw(b"junk", "scores"), r"scores: .*(npy.*parquet|parquet.*npy)"),
    "empty npy": (lambda: raw(b"", "x.npy"), r"x.npy: is not readable as npy"),
    "empty parquet": (lambda: raw(b"", "x.parquet"), r"x.parquet: is not readable as parquet"),
    "text named npy": (lambda: raw(b"0.5,0.1", "x.npy"), r"x.npy: is not (?!.*trust)"),
    "text named parquet": (lambda: raw(b"0.5,0.1\n" * 9, "x.parquet"), r"x.parquet: is not"),
    "pickle": (lambda: raw(pickle.dumps(SCORES), "x.npy"), r"x.npy: is not (?!.*trust)"),
    "npz": (npz_named_npy, r"x.npy: is not"),
    "npy cut": (lambda: cut(array(SCORES), by=5), r"x.npy: is not readable as npy"),
    "npy cut in the header": (lambda: cut(array(SCORES), by=99), r"x.npy: is not readable as npy"),
    "npy header": (lambda: npy_header("{'descr': '<f4', "), r"x.npy: is not readable as npy"),
    "npy header 2": (lambda: npy_header("{'descr': '<f4'}"), r"x.npy: is not readable as npy"),
    "parquet cut": (lambda: cut(parquet(LISTS), by=9), r"x.parquet: is not readable as parquet"),
    "parquet names": (
        lambda: raw(parquet(WIDE).read_bytes().replace(b"c1", b"\xff1"), "x.parquet"),
        r"x.parquet: is not",
    ),
    "parquet ids": (
        lambda: raw(
            parquet({**LISTS, "image_id": ["xyz1", "xyz2", "xyz3", "xyz4"]})
            .read_bytes()
            .replace(b"xyz", b"\xffyz"),
            "x.parquet",
        ),
        r"x.parquet: ",
    ),
    # dense npy
    "integers": (lambda: array(SCORES.astype(int)), r"x.npy: has int64 .*needs floats"),
    "booleans": (lambda: array(SCORES > 0), r"x.npy: has bool .*needs floats"),
    "integers are converted": (lambda: array(SCORES.astype(int)), r"; convert it: .*float32"),
    "npz by its name": (lambda: raw(b"PK", "x.npz"), r"x.npz: .*\.npy or \.parquet"),
    "complex": (lambda: array(SCORES.astype(complex)), r"x.npy: has complex128 .*needs floats"),
    "objects": (lambda: array(SCORES.astype(object)), r"x.npy: is not readable as npy"),
    "one number": (lambda: array(np.float32(1)), r"has float32 \(\), .*floats \(4, 3\)"),
    "three axes": (lambda: array(SCORES[None]), r"has float32 \(1, 4, 3\)"),
    "on its side": (lambda: array(SCORES.T), r"has float32 \(3, 4\), .*floats \(4, 3\)"),
    "no rows": (lambda: array(SCORES[:0]), r"has float32 \(0, 3\), .*floats \(4, 3\)"),
    "nan": (lambda: array(with_value(np.nan)), r"score nan of image img2, class c1; must be fin"),
    "inf": (lambda: array(with_value(np.inf)), r"score inf of image img2, class c1; must be fin"),
    "nan list": (
        lambda: replaced(LISTS, scores=with_value(np.nan).tolist()),
        r"x.parquet: score nan of image img2, class c1",
    ),
    # dense parquet
    "nan wide": (lambda: changed(WIDE, "c1", -np.inf), r"score -inf of image img0, class c1"),
    "null wide": (lambda: changed(WIDE, "c1", None), r"image img0, class c1"),
    "null integers": (lambda: replaced(WIDE, c1=[None, 1, 2, 3]), r"c1"),
    "null in a list": (
        lambda: changed(LISTS, "scores", [0.0, None, 0.0]),
        r"image img0, class c1",
    ),
    "null list": (lambda: changed(LISTS, "scores", None), r"a list in 'scores' .*3 classes"),
    "short list": (lambda: changed(LISTS, "scores", [0.0]), r"has 1 entry; .*has 3 classes"),
    "lists that add up": (
        lambda: replaced(LISTS, scores=[[0.0] * n for n in (4, 2, 3, 3)]),
        r"has 4 entries; .*has 3 classes",
    ),
    "no lists": (lambda: replaced(LISTS, scores=[0.1] * 4), r"'scores'.*list(?!_value_length)"),
    "lists of text": (lambda: replaced(LISTS, scores=[["0", "1", "2"]] * 4), r"not numbers"),
    "lists of lists": (lambda: replaced(LISTS, scores=[[[0.0]] * 3] * 4), r"not numbers"),
    "text": (lambda: replaced(WIDE, c1=list("0123")), r"column 'c1' is not numbers"),
    "dates": (lambda: replaced(WIDE, c1=pa.array(range(4), pa.timestamp("s"))), r"'c1' is not"),
    "flags": (lambda: replaced(WIDE, c1=[True] * 4), r"'c1' is not"),
    "whole numbers": (lambda: replaced(WIDE, c1=range(4)), r"'c1' .*(not floats|int64)"),
    "structs": (lambda: replaced(WIDE, c1=[{"x": 0.1}] * 4), r"'c1' is not numbers"),
    "no ids": (lambda: parquet({"imageid": IDS, "scores": LISTS["scores"]}), r"mean imageid\?"),
    "ids alone": (lambda: parquet({"image_id": IDS}), r"no column 'scores'"),
    "no rows in parquet": (
        lambda: parquet(pa.table(LISTS).slice(0, 0)),
        r"no scores for 4 of 4 images \('img0'\); --common",
    ),
    "a class less": (
        lambda: parquet({k: v for k, v in WIDE.items() if k != "c1"}),
        r"none for 1 class.*c1.*--common",
    ),
    "a class more": (lambda: replaced(WIDE, c9=[0.5] * 4), r"c9.*--common"),
    "ids twice": (lambda: twice(LISTS, "image_id"), r"column 'image_id'.* (twice|2 times)"),
    "lists twice": (lambda: twice(LISTS, "scores"), r"column 'scores'.* (twice|2 times)"),
    "a class twice": (lambda: twice(WIDE, "c1"), r"column 'c1'.* (twice|2 times)"),
    "pairs' scores twice": (lambda: twice(PAIRS, "score"), r"column 'score'.* (twice|2 times)"),
    "null id": (lambda: changed(LISTS, "image_id", None), r"x.parquet: .*(null|no id|empty)"),
    "lists as ids": (lambda: replaced(LISTS, image_id=[[i] for i in IDS]), r"image ids of type"),
    "numbers as ids": (lambda: replaced(LISTS, image_id=range(4)), r"image '?0'? is not in the st"),
    "bytes as ids": (lambda: replaced(LISTS, image_id=[b"\xff"] * 4), r"image ids of type binary"),
    "an image twice": (
        lambda: parquet({k: [*v, v[2]] for k, v in LISTS.items()}),
        r"image 'img2' is there twice",
    ),
    "an image more": (
        lambda: parquet({"image_id": [*IDS, "new"], "scores": [*LISTS["scores"], [0.0] * 3]}),
        r"image 'new' is not in the store; --common",
    ),
    "an image less": (
        lambda: parquet({k: v[1:] for k, v in LISTS.items()}),
        r"no scores for 1 of 4 images \('img0'\); --common",
    ),
    # pairs
    "no pairs": (lambda: parquet(pa.table(PAIRS).slice(0, 0)), r"no score"),
    "no pairs npy": (lambda: array(ARRAY[:0]), r"x.npy: .*no score"),
    "no annotated pair": (
        lambda: parquet({"image_id": ["img0"], "class_id": ["c2"], "score": [0.1]}),
        r"no score",
    ),
    "a pair less": (
        lambda: parquet({k: v[:-1] for k, v in PAIRS.items()}),
        r"no score for 1 annotated pairs? \(image 'img3', class 'c0'\); --common",
    ),
    "a pair twice": (
        lambda: parquet({k: [*v, v[0]] for k, v in PAIRS.items()}),
        r"img0.*c0.* twice",
    ),
    "a pair of another image": (
        lambda: changed(PAIRS, "image_id", "new"),
        r"image 'new' is not in the store; --common",
    ),
    "a pair of another class": (
        lambda: changed(PAIRS, "class_id", "c00"),
        r"x.parquet: class 'c00' is not in the store; did you mean c0\?; --common",
    ),
    "classes by number": (
        lambda: replaced(PAIRS, class_id=np.nonzero(STATES)[1]),
        r"class '0' is not in the store; there is: c0, c1, c2",
    ),
    "null class": (lambda: changed(PAIRS, "class_id", None), r"x.parquet: .*class"),
    "null image": (lambda: changed(PAIRS, "image_id", None), r"x.parquet: .*(null|no id|empty)"),
    "null score": (lambda: changed(PAIRS, "score", None), r"image img0, class c0"),
    "nan score": (lambda: changed(PAIRS, "score", np.nan), r"score nan of image img0, class c0"),
    "lists as classes": (
        lambda: replaced(PAIRS, class_id=[[c] for c in PAIRS["class_id"]]),
        r"x.parquet: .*class",
    ),
    "bytes as classes": (lambda: replaced(PAIRS, class_id=[b"\xff"] * 8), r"x.parquet: .*class"),
    "text as scores": (lambda: replaced(PAIRS, score=["0.5"] * 8), r"'score' is not numbers"),
    "whole scores": (lambda: replaced(PAIRS, score=range(8)), r"'score' .*(not floats|int64)"),
    "another name": (
        lambda: parquet({**{k: PAIRS[k] for k in ("image_id", "class_id")}, "Score": [0.1] * 8}),
        r"x.parquet: has no column",
    ),
    "several scores per pair": (
        lambda: array(np.zeros(8, [*ARRAY.dtype.descr[:2], ("score", "f4", 3)])),
        r"x.npy: field 'score' has several values",
    ),
    "characters that do not exist": (
        lambda: raw(array(ARRAY).read_bytes().replace(b"i\0\0\0m", b"i\0\xff\xffm"), "x.npy"),
        r"x.npy: field 'image_id' .*cannot be read",
    ),
    "no field score": (lambda: array(ARRAY[["image_id", "class_id"]]), r"x.npy: has "),
    "one pair, no list": (lambda: array(ARRAY[0]), r"x.npy: "),
    "pairs on two axes": (lambda: array(ARRAY.reshape(2, 4)), r"x.npy: "),
    "complex scores": (
        lambda: array(pairs_array(PAIRS["image_id"], PAIRS["class_id"], [1j] * 8)),
        r"x.npy: .*score.*is not",
    ),
    "text as scores npy": (
        lambda: array(pairs_array(PAIRS["image_id"], PAIRS["class_id"], ["0.5"] * 8)),
        r"'score' is not numbers",
    ),
    "bytes as classes npy": (
        lambda: array(pairs_array(PAIRS["image_id"], [b"\xff"] * 8, PAIRS["score"])),
        r"x.npy: .*class",
    ),
}
NOT_IN_COMMON = [  # --common does not help here, and is not offered
    *("nan", "nan score", "null score", "null id", "null image", "null class", "an image twice"),
    *("a pair twice", "no pairs", "no annotated pair", "ids alone", "no rows in parquet"),
    *("no pairs npy", "a class twice"),
]


class TestBadFiles:
    @pytest.fixture(autouse=True)
    def _store(self, in_tmp: Path, make_store: MakeStore) -> None:
        make_store(STATES).save("s.labels")

    @pytest.mark.parametrize("name", BAD)
    def test_one_line_says_what_is_wrong(self, refused: Refused, name: str) -> None:
        make, text = BAD[name]
        path = make()
        line = refused(path, "--choose-thresholds", "t.csv", "--per-class", "c.csv")
        assert line == " ".join(line.split())
        said(line, text)

    @pytest.mark.parametrize("name", NOT_IN_COMMON)
    def test_common_is_no_cure(self, refused: Refused, name: str) -> None:
        assert "--common" not in refused(BAD[name][0](), "--common")

    def test_a_type_that_only_numpy_has(self, run: Run) -> None:
        wide = ARRAY.astype([*ARRAY.dtype.descr[:2], ("score", np.longdouble)])
        found = run(array(wide), "--json").json
        assert found["map_c"] == pytest.approx(np.mean(average_precisions(SCORES, STATES)))

    def test_ids_of_another_kind(self, refused: Refused) -> None:
        data = sample("hex")
        data.store.save("hex.labels")
        more = {"scores": data.scores.tolist()}
        for ids, text in (
            (["zz", *data.ids[1:]], "zz"),
            ([f"{i}.jpg" for i in data.ids], ".jpg"),
            (["f" * 17, *data.ids[1:]], "do not fit the store's uint64"),
            ([None, *data.ids[1:]], "x.parquet"),
            ([-1] * 60, "do not fit the store's uint64"),
            (["00000000000000ff", *data.ids[1:]], "image '00000000000000ff' is not in the store"),
        ):
            assert text in refused(parquet({"image_id": ids, **more}), store="hex.labels")
        scores = data.scores.copy()
        scores[7, 2] = np.nan
        line = refused(write("lists", data, scores)["path"], store="hex.labels")
        assert f"score nan of image {data.ids[7]}, class c2" in line

    def test_image_ids_that_do_not_fit(self, refused: Refused) -> None:
        path = array(SCORES)

        def line(content: bytes | None) -> str:
            if content is not None:
                Path("ids.txt").write_bytes(content)
            return refused(path, "--image-ids", "ids.txt")

        assert "ids.txt: no such file" in line(None)
        assert "ids.txt: cannot be read as text" in line(b"\xff\xfe")
        assert "image 'img0' is there twice" in line(b"img0\n" * 4)
        assert "image 'x' is not in the store" in line(b"img0\nimg1\nimg2\nx\n")
        assert "ids.txt: has 0 ids, x.npy has 4 rows" in line(b"")
        assert "ids.txt: has 1 id, x.npy has 4 rows" in line(b"img0\n")

    def test_image_ids_are_not_ignored(self, refused: Refused) -> None:
        for path in (parquet(LISTS), array(ARRAY)):
            line = refused(path, "--image-ids", "ids.txt")
            assert "--image-ids goes with a dense npy file" in line

    def test_stores_with_nothing_to_score(self, refused: Refused) -> None:
        for value, text in ((0, "annotated"), (1, "3 no negative"), (-1, "3 no positive")):
            store_from(np.full((4, 3), value)).save("n.labels", overwrite=True)
            for path in (array(SCORES), parquet(WIDE), parquet(PAIRS, "p.parquet")):
                common = ["--common"] if path.name == "p.parquet" else []
                line = refused(path, *common, store="n.labels")
                assert text in line
                assert "nothing to score" in line
                assert path.name in line
                assert refused(path, *common, "--policy", "zero", store="n.labels") == line

    @pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
    def test_stores_without_images_or_classes(
        self, refused: Refused, shape: tuple[int, int]
    ) -> None:
        store_from(np.zeros(shape)).save("n.labels")
        assert "nothing to score" in refused(array(np.zeros(shape)), store="n.labels")

    def test_stores_that_are_none(self, refused: Refused) -> None:
        path = array(SCORES)
        assert "did you mean s.labels?" in refused(path, store="x.labels")
        assert "is a file, not a store" in refused(path, store="x.npy")
        a_folder("empty")
        assert "not a label store" in refused(path, store="empty")
        assert "no such store" in refused(path, store="no/s.labels")

    def test_scores_of_the_whole_set_for_a_split(self, refused: Refused, run: Run) -> None:
        store_from(STATES, splits=["val", "val", "val", "train"]).save("sp.labels")
        more = {"store": "sp.labels"}
        assert "the splits are: val, train" in refused(array(SCORES), "--split", "test", **more)
        assert "(3, 3)" in refused(array(SCORES), "--split", "val", **more)
        line = refused(parquet(LISTS), "--split", "val", **more)
        assert "image 'img3' is not in the split but in 'train'" in line
        assert "--common" in line
        expected = average_precisions(SCORES[:3], STATES[:3])
        for path, common in (
            (array(SCORES[:3]), []),
            (parquet(LISTS), ["--common"]),
            (parquet(PAIRS, "p.parquet"), ["--common"]),
        ):
            found = run(path, "--split", "val", "--json", *common, **more).json
            assert found["map_c"] == pytest.approx(np.nanmean(expected))
            assert len(found["left_out"]) == len(common)

    @pytest.mark.parametrize("layout", ["npy", "lists", "wide", "pairs", "pairs-npy"])
    def test_damaged_files(self, layout: str) -> None:
        """Bytes changed, cut off or left out: numbers, or one of our own errors."""
        store = store_from(STATES)
        path = write(layout, Sample(store, IDS, STATES, SCORES), SCORES)["path"]
        whole, rng, odd = path.read_bytes(), np.random.default_rng(5), {}
        for i in range(500):
            data, at = bytearray(whole), int(rng.integers(len(whole)))
            if i % 3 == 0:
                del data[at:]
            elif i % 3 == 1:
                del data[at : at + 4]
            else:
                data[at % 300 if "npy" in layout else at] = int(rng.integers(256))
            path.write_bytes(data)
            try:
                collect({"path": path}, store)
            except PartlabelError:
                pass
            except Exception as error:
                odd.setdefault(type(error).__name__, str(error))
        assert not odd


class TestCommand:
    @pytest.fixture(autouse=True)
    def data(self, in_tmp: Path) -> Sample:
        data = sample(classes=[f"/m/{i}" for i in range(6)])
        names = ClassTable(data.store.classes.ids, ["Person", "Bat", "bat", "Dog", "Dog", "Sky"])
        data.store.classes = names
        data.store.save("s.labels")
        array(data.scores.astype(np.float32))
        return data._replace(scores=data.scores.astype(np.float32))

    def test_the_table(self, run: Run, data: Sample) -> None:
        done = run("x.npy", "--class", "PERSON", "--class", "/m/5")
        aps = average_precisions(data.scores, data.states)
        text = " ".join(done.out.split())
        for part in (
            f"x.npy against s.labels scored {(data.states != 0).sum()} annotated pairs",
            f"mAP(C) {100 * np.nanmean(aps):.2f} mean over 5 of 6 classes",
            f"AP of PERSON {100 * aps[0]:.2f}",
            "AP of /m/5 undefined",
            "left out 1 class without any label",
            "calibration error",
        ):
            assert part in text
        assert done.err == ""
        assert "nan" not in text

    def test_json_has_the_same_numbers(self, run: Run, data: Sample) -> None:
        found = run("x.npy", "--json", "--class", "/m/1", "--class", "sky").json
        aps = average_precisions(data.scores, data.states)
        assert found["map_c"] == pytest.approx(np.nanmean(aps))
        assert found["named"] == {"/m/1": pytest.approx(aps[1]), "sky": None}
        assert (found["n_valid"], found["no_label"]) == (5, 1)
        assert found["images"] == (data.states != 0).any(axis=1).sum()
        known = data.states != 0
        probability = 1 / (1 + np.exp(-data.scores[known].astype(float)))
        bins = np.minimum((probability * 15).astype(int), 14)
        gaps = [
            abs((data.states[known] > 0)[bins == b].sum() - probability[bins == b].sum())
            for b in range(15)
        ]
        assert found["ece"] == pytest.approx(sum(gaps) / known.sum())
        point = found["points"]["threshold 0.5"]
        hits = ((data.scores >= 0) & (data.states > 0)).sum()
        assert point["op"] == pytest.approx(hits / ((data.scores >= 0) & known).sum())
        assert point["or"] == pytest.approx(hits / (data.states > 0).sum())

    def test_a_class_by_its_very_name(self, run: Run, data: Sample) -> None:
        aps = average_precisions(data.scores, data.states)
        found = run("x.npy", "--json", "--class", "Bat", "--class", "bat").json["named"]
        assert found == {"Bat": pytest.approx(aps[1]), "bat": pytest.approx(aps[2])}

    @pytest.mark.parametrize("name", ["BAT", "dog"])
    def test_which_of_two_classes_is_not_guessed(self, refused: Refused, name: str) -> None:
        assert "/m/" in refused("x.npy", "--class", name)

    def test_per_class_csv(self, run: Run, data: Sample) -> None:
        done = run("x.npy", "--per-class", "c.csv", "--bootstrap", "20", "--top-k", "2")
        assert "written: c.csv" in done.out
        rows = read_csv("c.csv")
        aps = average_precisions(data.scores, data.states)
        assert [float(row["ap"] or "nan") for row in rows] == pytest.approx(aps, nan_ok=True)
        assert [row["class_id"] for row in rows] == [f"/m/{i}" for i in range(6)]
        assert [row["class_name"] for row in rows][:2] == ["Person", "Bat"]
        assert [int(row["positives"]) for row in rows] == (data.states > 0).sum(0).tolist()
        assert all(float(row["ap_low"]) <= float(row["ap_high"]) for row in rows[:5])
        best = -np.sort(-data.scores, axis=1)[:, 1:2]
        predicted = (data.scores >= best) & (data.states != 0)
        precision = (predicted & (data.states > 0)).sum(0)[:5] / predicted.sum(0)[:5]
        found = [float(row["precision at top 2"]) for row in rows[:5]]
        assert found == pytest.approx(precision.tolist())

    def test_groups_of_a_store_and_of_a_csv(self, run: Run, refused: Refused, data: Sample) -> None:
        aps = np.array(average_precisions(data.scores, data.states))
        for key, counts in (("annotations", data.states != 0), ("positives", data.states > 0)):
            parts = np.array_split(np.argsort(counts.sum(0), kind="stable"), 4)
            found = run(
                "x.npy", "--json", "--groups", "s.labels", "--parts", "4", "--group-key", key
            ).json["groups"]
            for name, members in zip(("G1", "G2", "G3", "G4"), parts, strict=True):
                assert found[name]["map"] == pytest.approx(np.nanmean(aps[members]))
                assert found[name]["classes"] == len(members)
        Path("g.csv").write_text("group,class_id\nrare,/m/5\ncommon,/m/0\ncommon,/m/3\n")
        found = run("x.npy", "--json", "--groups", "g.csv").json["groups"]
        assert found["rare"] == {"map": None, "n_valid": 0, "classes": 1}
        assert found["common"]["map"] == pytest.approx((aps[0] + aps[3]) / 2)
        assert "mAP of rare undefined" in " ".join(run("x.npy", "--groups", "g.csv").out.split())
        rows = run("x.npy", "--json", "--groups", "s.labels", "--parts", "9").json["groups"]
        assert sum(row["classes"] for row in rows.values()) == 6

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("class_id,group\n/m/9,a\n", r"g.csv line 2: no class '/m/9'"),
            ("class_id,group\n\n\n/m/9,a\n", r"g.csv line 4: no class '/m/9'"),
            ("class,group\n/m/0,a\n", r"g.csv.*expected class_id, group"),
            ("", r"g.csv.*expected class_id, group"),
            ("class_id,group\n", r"g.csv.*(no|empty)"),
            ("class_id,group\n/m/0\n", r"g.csv line 2"),
            ("class_id,group\n/m/0,\n", r"g.csv line 2"),
            ("class_id,group\n/m/0,a\n/m/0,a\n", r"g.csv.*/m/0.*twice"),
        ],
    )
    def test_groups_that_are_none(self, refused: Refused, content: str, text: str) -> None:
        Path("g.csv").write_text(content)
        said(refused("x.npy", "--groups", "g.csv"), text)

    def test_groups_from_elsewhere(self, refused: Refused) -> None:
        store_from(STATES).save("other.labels")
        line = refused("x.npy", "--groups", "other.labels")
        assert "the classes differ" in line
        assert "other.labels" in line
        assert "no such file" in refused("x.npy", "--groups", "nope.csv")
        a_folder("empty")
        assert "not a label store" in refused("x.npy", "--groups", "empty")

    @pytest.mark.parametrize("precision", [None, 0.8])
    def test_thresholds_of_one_run_are_used_in_the_next(
        self, run: Run, precision: float | None
    ) -> None:
        wanted = [] if precision is None else ["--precision", precision]
        run("x.npy", "--choose-thresholds", "t.csv", "--min-support", "3", *wanted)
        chosen = read_csv("t.csv")
        assert {row["method"] for row in chosen[:5]} == {"precision" if wanted else "f1"}
        assert chosen[5]["method"] == "pooled"
        run("x.npy", "--threshold", "t.csv", "--per-class", "again.csv")
        again = read_csv("again.csv")
        for before, after in zip(chosen[:5], again[:5], strict=True):
            for key in ("precision", "recall", "f1"):
                value = float(after[f"{key} at threshold t.csv"])
                assert value == pytest.approx(float(before[key]))
            assert precision is None or float(before["precision"]) >= precision

    def test_the_thresholds_of_both_csv_files_mean_the_same(self, run: Run) -> None:
        run("x.npy", "--choose-thresholds", "t.csv", "--per-class", "c.csv", "--min-support", "3")
        one, two = (run("x.npy", "--json", "--threshold", n).json for n in ("t.csv", "c.csv"))
        assert [*one["points"].values()] == [*two["points"].values()]

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("class_id,threshold\n/m/0,x\n", r"t.csv line 2: is not a threshold"),
            ("class_id,threshold\n\n/m/0,x\n", r"t.csv line 3: is not a threshold"),
            ("class_id,threshold\n/m/0,nan\n", r"t.csv.*/m/0.*NaN"),
            ("class_id,threshold\n/m/0\n", r"t.csv.*/m/0"),
            ("class_id,threshold\n/m/0,1\n/m/0,1\n", r"t.csv.*twice"),
            ("class_id,threshold\n/m/0,1\n", r"lacks 5 of 6 classes: /m/1"),
            ("class,threshold\n/m/0,1\n", r"t.csv.*expected class_id and threshold"),
            ("", r"t.csv.*expected class_id and threshold"),
        ],
    )
    def test_thresholds_that_are_none(self, refused: Refused, content: str, text: str) -> None:
        Path("t.csv").write_text(content)
        said(refused("x.npy", "--threshold", "t.csv"), text)

    def test_a_threshold_is_a_probability(self, run: Run, data: Sample) -> None:
        path = array(1 / (1 + np.exp(-data.scores.astype(float))), "p.npy")
        for at in ("0", "0.3", "0.9", "1"):
            key = f"threshold {at}"
            one = run("x.npy", "--json", "--threshold", at).json
            two = run(path, "--json", "--threshold", at, "--scores-are", "probabilities").json
            assert one["points"][key] == pytest.approx(two["points"][key], nan_ok=True)
            assert one["ece"] == pytest.approx(two["ece"], abs=1e-6)
        done = run(path)
        assert done.err == "warning: all scores are in 0..1: say --scores-are probabilities?\n"

    @pytest.mark.parametrize("kind", ["f4", "f8"])
    def test_a_score_at_the_threshold_is_predicted(self, run: Run, kind: str) -> None:
        store_from([[1], [-1], [1]]).save("one.labels")
        path = array(np.array([[0.7], [0.1], [0.9]], kind))  # 0.7 as float32 is a bit less
        options = ("--json", "--threshold", "0.7", "--scores-are", "probabilities")
        point = run(path, *options, store="one.labels").json["points"]["threshold 0.7"]
        assert point["or"] == 1

    def test_logits_are_no_probabilities(self, refused: Refused) -> None:
        line = refused("x.npy", "--scores-are", "probabilities", "--per-class", "c.csv")
        assert "are not probabilities" in line
        assert "x.npy" in line
        assert "--scores-are logits" in line

    def test_the_best_k_among_all_classes(self, run: Run, refused: Refused, data: Sample) -> None:
        found = run("x.npy", "--json", "--top-k", "1").json["points"]["top 1"]
        best = data.scores >= data.scores.max(axis=1, keepdims=True)
        hits = (best & (data.states > 0)).sum()
        assert found["op"] == pytest.approx(hits / (best & (data.states != 0)).sum())
        assert run("x.npy", "--json", "--top-k", "99").json["points"]["top 99"]["or"] == 1
        path = write("pairs", data, data.scores)["path"]
        assert "--top-k needs the scores of all classes" in refused(path, "--top-k", "1")
        without = dict(zip(data.store.classes.ids, data.scores.T, strict=True))
        del without["/m/3"]
        path = parquet({"image_id": data.ids, **without})
        found = run(path, "--json", "--top-k", "1", "--common").json["points"]["top 1"]
        scores, states = np.delete(data.scores, 3, 1), np.delete(data.states, 3, 1)
        best = scores >= scores.max(axis=1, keepdims=True)
        expected = (best & (states > 0)).sum() / (best & (states != 0)).sum()
        assert found["op"] == pytest.approx(expected)

    def test_intervals_depend_on_the_seed_alone(self, run: Run, data: Sample) -> None:
        def intervals(path: str | Path, seed: int) -> list[float]:
            found = run(path, "--json", "--bootstrap", "50", "--seed", seed).json
            low, high = found["map_c_interval"]
            assert low < found["map_c"] < high
            return [low, high, *found["map_o_interval"]]

        first = intervals("x.npy", 1)
        assert intervals("x.npy", 1) == first
        assert intervals("x.npy", 2) != first
        for layout in ("lists", "pairs"):
            given = write(layout, data, data.scores, data.rows[::-1])
            assert intervals(given["path"], 1) == pytest.approx(first)
        text = " ".join(run("x.npy", "--bootstrap", "50", "--seed", 1).out.split())
        assert f"({100 * first[0]:.2f} to {100 * first[1]:.2f})" in text

    def test_policy_and_ties(self, run: Run, data: Sample) -> None:
        aps = np.nan_to_num(average_precisions(data.scores, data.states))
        found = run("x.npy", "--json", "--policy", "zero").json
        assert (found["map_c"], found["n_valid"]) == (pytest.approx(aps.mean()), 6)
        tied = [run("x.npy", "--json", "--ties", ties).json for ties in ("grouped", "reference")]
        assert tied[0]["map_c"] != tied[1]["map_c"]

    def test_outputs_are_checked_before_the_work(self, run: Run, refused: Refused) -> None:
        for option in ("--per-class", "--choose-thresholds"):
            assert "there is no folder" in refused("nope.npy", option, "no/c.csv")
            Path("c.csv").write_text("mine")
            assert "c.csv exists" in refused("x.npy", option, "c.csv")
            run("x.npy", option, "c.csv", "--overwrite")
            assert Path("c.csv").read_text().startswith("class_id,class_name,")

    def test_one_file_for_two_outputs(self, refused: Refused) -> None:
        for same in ("c.csv", "./c.csv"):
            assert "c.csv" in refused("x.npy", "--per-class", "c.csv", "--choose-thresholds", same)

    def test_both_outputs_or_none(self, refused: Refused) -> None:
        a_folder("c.csv")
        options = ("--choose-thresholds", "t.csv", "--per-class", "c.csv", "--overwrite")
        assert "c.csv" in refused("x.npy", *options)

    @pytest.mark.parametrize("option", ["--per-class", "--choose-thresholds"])
    def test_an_input_is_not_an_output(self, refused: Refused, option: str) -> None:
        assert "x.npy" in refused("x.npy", option, "x.npy", "--overwrite")
        assert "s.labels" in refused("x.npy", option, "s.labels", "--overwrite")
        assert "s.labels" in refused("x.npy", option, "s.labels/classes.csv", "--overwrite")
        Path("in.csv").write_text("class_id,group\n/m/0,a\n")
        for given in ("--groups", "--threshold", "--image-ids"):
            line = refused("x.npy", option, "./in.csv", given, "in.csv", "--overwrite")
            assert "would write over the input in.csv" in line

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ("--threshold 1.5", "--threshold is a probability or a file"),
            ("--threshold nan", "--threshold is a probability or a file"),
            ("--threshold t.csv", "t.csv: no such file"),
            ("--threshold . --per-class c.csv", ".: is a folder, not a file"),
            ("--precision 0.5", "goes with --choose-thresholds"),
            ("--precision 90 --choose-thresholds t.csv", "above 0, up to 1"),
            ("--precision nan --choose-thresholds t.csv", "above 0, up to 1"),
            ("--min-support 0 --choose-thresholds t.csv", "--min-support"),
            ("--top-k 0", "--top-k"),
            ("--parts 0 --groups s.labels", "--parts"),
            ("--group-key names --groups s.labels", "--group-key"),
            ("--bootstrap -1", "--bootstrap"),
            ("--seed -1", "--seed"),
            ("--ties none", "--ties"),
            ("--policy none", "--policy"),
            ("--scores-are odd", "--scores-are"),
            ("--class nobody", "no class 'nobody'"),
            ("--class Persn", "did you mean Person?"),
            ("--split val", "there is no split 'val'"),
            ("--what", "--what"),
            ("more", "more"),
        ],
    )
    def test_options_that_do_not_fit(self, refused: Refused, options: str, text: str) -> None:
        assert text in refused("x.npy", *options.split())

    def test_common_with_nothing_in_common(self, refused: Refused, data: Sample) -> None:
        scores = data.scores.tolist()
        other = parquet({"image_id": [f"other{i}" for i in data.rows], "scores": scores})
        assert "has no image of the store" in refused(other, "--common")
        other = parquet({"image_id": data.ids, "a": data.scores[:, 0]})
        line = refused(other, "--common")
        assert "nothing in common" in line
        assert "--common" not in line


@pytest.mark.slow  # each starts a process that imports torch
def test_as_people_type_it(in_tmp: Path) -> None:
    data = sample()
    data.store.save("s.labels")
    write("lists", data, data.scores)
    command = ("evaluate", "--labels", "s.labels", "--scores")
    made = ("--choose-thresholds", "t.csv", "--per-class", "c.csv", "--bootstrap", "20")
    done = partlabel(*command, "x.parquet", *made, "--groups", "s.labels", "--class", "c0")
    assert "mAP(C)" in done.stdout
    assert done.stderr == ""
    done = partlabel(*command, "x.parquet", "--threshold", "t.csv", "--json")
    assert json.loads(done.stdout)["n_valid"] == 5
    assert done.stderr == ""
    data.scores[4, 3] = np.nan
    done = partlabel(*command, array(data.scores), "--per-class", "new.csv", code=2)
    assert done.stderr == "error: x.npy: score nan of image img4, class c3; must be finite\n"
    assert done.stdout == ""
    assert not Path("new.csv").exists()
    done = partlabel("evaluate", "--scores", "x.npy", code=2)
    assert done.stderr == "error: give --scores FILE with --labels STORE, or --run FOLDER\n"
