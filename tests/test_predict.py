"""``partlabel predict``: every form of output, missing labels, and every way to go wrong."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from partlabel import ClassTable, LabelStore
from partlabel import evaluate as evaluating
from partlabel.metrics import Thresholds
from partlabel.prediction.pictures import FilePictures, Picture, find_images, store_images
from partlabel.prediction.predict import Predictor, Scored, select, share
from tests.tiny_run import (
    CLASSES,
    add_validation,
    command,
    draw_image,
    image_store,
    make_run,
    refusal,
)

IMAGES = 11


def some_states(images: int = IMAGES, *, seed: int = 0) -> np.ndarray:
    """Mostly unknown; every class has both a present and an absent label."""
    rng = np.random.default_rng(seed)
    states = rng.integers(-1, 2, (images, len(CLASSES))).astype(np.int8)
    states[0], states[1] = 1, -1
    return states


class Place(NamedTuple):
    """A run, its store and its images."""

    folder: Path
    run: Path
    store: Path
    photos: Path

    @property
    def opened(self) -> LabelStore:
        return LabelStore.open(self.store)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("predict")
    photos, store = folder / "photos", folder / "val.labels"
    image_store(photos, some_states()).save(store)
    run = make_run(folder / "run", data={"train": str(store)})
    add_validation(run, store)
    return Place(folder, run, store, photos)


@pytest.fixture
def place(made: Place, in_tmp: Path) -> Place:
    """The same, from an empty folder."""
    return made


def all_logits(place: Place, **options: Any) -> tuple[list[str], np.ndarray]:
    predictor = Predictor.open(place.run)
    found = list(predictor.scores(find_images([place.photos]), **options))
    keys = [picture.key for scored in found for picture in scored.pictures]
    return keys, np.concatenate([scored.logits for scored in found])


def table(path: str | Path) -> dict[str, list[Any]]:
    return dict(pq.read_table(path).to_pydict())


# The images


def test_images_of_a_folder_are_found_below_it_in_order(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "a.jpeg", "z.webp", "b/c/3.bmp"):
        draw_image(tmp_path / name, 0)
    for name in ("notes.txt", ".hidden.png", ".git/x.png", "b/labels.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "round").symlink_to(tmp_path, target_is_directory=True)
    found = find_images([tmp_path])
    wanted = ["a.jpeg", "b/1.png", "b/2.JPG", "b/c/3.bmp", "z.webp"]
    assert [picture.key for picture in found.part(0, 99)] == wanted
    assert len(found) == 5
    assert [picture.key for picture in found.part(1, 3)] == wanted[1:3]


def test_of_several_paths_the_keys_begin_as_they_were_given(in_tmp: Path) -> None:
    draw_image(Path("one/a.png"), 0)
    draw_image(Path("two/a.png"), 1)
    draw_image(Path("lone.jpg"), 2)
    found = FilePictures([Path("one"), Path("two"), Path("lone.jpg")])
    keys = [picture.key for picture in found.part(0, 9)]
    assert keys == ["one/a.png", "two/a.png", "lone.jpg"]


def test_a_file_name_that_is_not_unicode_gets_a_key(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")).touch()
    except OSError:
        pytest.skip("this file system takes Unicode only")
    assert next(find_images([tmp_path]).part(0, 1)).key == "\\xff.png"


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_are_all_images_once(world: int) -> None:
    shares = [share(10, rank, world) for rank in range(world)]
    assert (shares[0][0], shares[-1][1]) == (0, 10)
    assert all(one[1] == other[0] for one, other in pairwise(shares))


# Scores


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 3, "workers": 1}])
def test_batches_and_workers_change_nothing(place: Place, options: dict[str, int]) -> None:
    keys, logits = all_logits(place)
    again, others = all_logits(place, **options)
    assert keys == again == [f"img/{i:03}.png" for i in range(IMAGES)]
    np.testing.assert_allclose(others, logits, rtol=1e-5, atol=1e-5)
    assert len(np.unique(logits[:, 0])) == IMAGES


def test_the_scores_are_those_of_the_model(place: Place) -> None:
    import torch

    from partlabel.images import decode
    from partlabel.training.runfolder import RunFolder
    from partlabel.training.trained import load_model

    keys, logits = all_logits(place)
    model = load_model(RunFolder(place.run), torch.device("cpu")).model
    images = [decode((place.photos / key).read_bytes(), model.info.size) for key in keys]
    with torch.no_grad():
        wanted = model(model.normalise(torch.stack(images)))
    np.testing.assert_allclose(logits, wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_top_k_are_the_highest_in_order(place: Place) -> None:
    _, logits = all_logits(place)
    predictor = Predictor.open(place.run)
    scored = next(predictor.scores(find_images([place.photos]), top_k=2))
    assert scored.classes is not None
    assert scored.classes.tolist() == np.argsort(-logits, axis=1)[:, :2].tolist()
    assert (np.diff(scored.logits) <= 0).all()
    every = next(predictor.scores(find_images([place.photos]), top_k=99))
    assert every.logits.shape == (IMAGES, len(CLASSES))


def test_columns_put_classes_in_another_order(place: Place) -> None:
    _, logits = all_logits(place)
    order = np.array([4, 2, 0, 1, 3])
    _, others = all_logits(place, columns=order)
    assert np.array_equal(others, logits[:, order])


def test_labels_are_at_least_at_their_threshold_best_first() -> None:
    logits = np.array([[0.5, 2.0, 1.0], [3.0, -1.0, 0.0]], np.float32)
    labels = select(Scored([], logits, None, []), np.array([0.5, 3.0, 0.0]))
    assert labels.position.tolist() == [0, 0, 1, 1]
    assert labels.classes.tolist() == [2, 0, 0, 2]
    assert labels.logits.tolist() == [1.0, 0.5, 3.0, 0.0]
    assert len(select(Scored([], logits, None, []), None).classes) == 6


# Output


def test_dense_parquet_is_logits_that_evaluate_reads(place: Place) -> None:
    command("predict", "--run", place.run, "--images", place.store, "--out", "s.parquet")
    found = table("s.parquet")
    assert found["image_id"] == [f"img{i}" for i in range(IMAGES)]
    np.testing.assert_allclose(np.array(found["scores"]), all_logits(place)[1], atol=1e-5)
    metric, _ = evaluating.collect("s.parquet", place.opened)
    run, _ = evaluating.collect(place.run / "predictions.parquet", place.opened)
    assert metric.compute().map_c == pytest.approx(run.compute().map_c)
    facts = pq.read_schema("s.parquet").metadata
    assert facts[b"partlabel.scores_are"] == b"logits"
    assert json.loads(facts[b"partlabel.class_ids"]) == list(CLASSES)
    assert os.listdir() == ["s.parquet"]


def test_pairs_parquet_that_evaluate_reads(place: Place) -> None:
    command(
        "predict", "--run", place.run, "--images", place.store, "--top-k", "5", "-o", "s.parquet"
    )
    found = table("s.parquet")
    assert set(found) == {"image_id", "class_id", "score"}
    assert len(found["score"]) == 5 * IMAGES
    one, _ = evaluating.collect("s.parquet", place.opened)
    run, _ = evaluating.collect(place.run / "predictions.parquet", place.opened)
    assert one.compute().per_class == pytest.approx(run.compute().per_class)


def test_probabilities_where_they_are_wanted(place: Place) -> None:
    for kind in ("logits", "probabilities"):
        command(
            "predict", "--run", place.run, "--images", place.photos, "--scores-are", kind,
            "--out", f"{kind}.parquet", "--batch-size", "4",
        )  # fmt: skip
    logits = np.array(table("logits.parquet")["scores"])
    shares = np.array(table("probabilities.parquet")["scores"])
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), rtol=1e-5)


def test_json_lines_have_the_labels_above_the_run_s_thresholds(place: Place) -> None:
    command("predict", "--run", place.run, "--images", place.photos, "--out", "s.jsonl")
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    keys, logits = all_logits(place)
    assert [line["image"] for line in lines] == keys
    thresholds = Thresholds.read(place.run / "thresholds.csv").values
    for line, row in zip(lines, logits, strict=True):
        wanted = [i for i in np.argsort(-row) if row[i] >= thresholds[i]]
        assert [label["id"] for label in line["labels"]] == [CLASSES[i] for i in wanted]
        for label, i in zip(line["labels"], wanted, strict=True):
            assert label["name"] == f"name of {CLASSES[i]}"
            assert label["score"] == pytest.approx(1 / (1 + np.exp(-row[i])), rel=1e-5)
    assert any(line["labels"] for line in lines)


@pytest.mark.parametrize(
    ("options", "labels"),
    [(["--top-k", "2"], 2), (["--thresholds", "none"], 5), (["--thresholds", "0"], 5),
     (["--thresholds", "1"], 0), (["--thresholds", "0", "--top-k", "3"], 3)],
)  # fmt: skip
def test_without_out_lines_are_printed(
    place: Place, options: list[str], labels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    one = place.photos / "img" / "003.png"
    command("predict", "--run", place.run, one, *options)
    line = json.loads(capsys.readouterr().out)
    assert line["image"] == one.as_posix()
    assert len(line["labels"]) == labels
    scores = [label["score"] for label in line["labels"]]
    assert scores == sorted(scores, reverse=True)


def test_a_file_of_thresholds(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{name},{0 if name == 'c1' else 'inf'}\n" for name in reversed(CLASSES))
    Path("t.csv").write_text("class_id,threshold\n" + rows)
    command("predict", "--run", place.run, place.photos, "--thresholds", "t.csv", "-o", "s.parquet")
    found = table("s.parquet")
    _, logits = all_logits(place)
    assert set(found["class_id"]) <= {"c1"}
    assert len(found["score"]) == (logits[:, 1] >= 0).sum()
    Path("p.csv").write_text("class_id,threshold\n" + "".join(f"{n},0.5\n" for n in CLASSES))
    command("predict", "--run", place.run, place.photos, "--thresholds", "p.csv", "-o", "p.parquet")
    assert "p.csv: all thresholds are in 0..1" in capsys.readouterr().err


def test_a_run_without_thresholds_takes_a_half(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, photo = make_run(in_tmp / "run"), draw_image(in_tmp / "a.png", 1)
    command("predict", "--run", run, photo)
    shown = capsys.readouterr()
    assert "has no thresholds.csv" in shown.err
    assert all(label["score"] >= 0.5 for label in json.loads(shown.out)["labels"])
    said = refusal("predict", "--run", run, photo, "--thresholds", "run", "-o", "s.parquet")
    assert "has no thresholds.csv" in said


def test_ids_of_a_store_are_as_evaluate_wants_them(place: Place) -> None:
    states = some_states(4)
    for kind, ids in {
        "hex": np.array([1, 2, 2**63, 5], np.uint64),
        "int": np.array([-3, 0, 7, 2**40], np.int64),
    }.items():
        image_store(place.photos, states, ids=ids).save(f"{kind}.labels")
        command(
            "predict", "--run", place.run, "--images", f"{kind}.labels", "-o", f"{kind}.parquet"
        )
        _, found = evaluating.collect(f"{kind}.parquet", LabelStore.open(f"{kind}.labels"))
        assert found.images == 4
    assert table("int.parquet")["image_id"] == [-3, 0, 7, 2**40]
    assert table("hex.parquet")["image_id"][2] == f"{2**63:016x}"


def test_scores_are_in_the_order_of_the_store_s_classes(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    names = CLASSES[::-1]
    image_store(place.photos, some_states()[:, ::-1], classes=names).save("r.labels")
    command("predict", "--run", place.run, "--images", "r.labels", "-o", "r.parquet")
    np.testing.assert_allclose(
        np.array(table("r.parquet")["scores"])[:, ::-1], all_logits(place)[1], atol=1e-5
    )
    metric, _ = evaluating.collect("r.parquet", LabelStore.open("r.labels"))
    run, _ = evaluating.collect(place.run / "predictions.parquet", place.opened)
    assert metric.compute().map_c == pytest.approx(run.compute().map_c)
    image_store(place.photos, some_states(), classes=[*CLASSES[:4], "new"]).save("o.labels")
    command("predict", "--run", place.run, "--images", "o.labels", "-o", "o.parquet")
    assert "other classes than the model" in capsys.readouterr().err


def test_a_split_and_another_root(place: Place) -> None:
    splits = ["train"] * 4 + ["test"] * (IMAGES - 4)
    store = image_store(place.photos, some_states(), splits=splits)
    moved = store.with_labels(store.indptr, store.codes, image_root="/nowhere")
    moved.save("m.labels")
    command(
        "predict", "--run", place.run, "--images", "m.labels", "--split", "train",
        "--image-root", place.photos, "-o", "m.parquet",
    )  # fmt: skip
    assert table("m.parquet")["image_id"] == ["img0", "img1", "img2", "img3"]
    assert "/nowhere" in refusal("predict", "--run", place.run, "--images", "m.labels")


def test_the_run_s_own_store_has_its_images_where_the_run_says(in_tmp: Path) -> None:
    store = image_store(in_tmp / "here", some_states(3))
    store.with_labels(store.indptr, store.codes, image_root="/nowhere").save("v.labels")
    for images in ({"root": "here"}, {"root": "/nowhere", "val_root": "here"}):
        run = make_run(
            in_tmp / f"run{len(images)}",
            data={"train": "t.labels", "val": "v.labels"},
            images={"size": 32, **images},
        )
        config = Predictor.open(run).config
        pictures = store_images(config, Path("v.labels"))
        assert pictures.read(next(pictures.part(0, 1)))


# Images that cannot be read


def spoil(folder: Path, names: dict[str, bytes]) -> None:
    for name, data in names.items():
        (folder / name).write_bytes(data)


def test_unreadable_images_are_counted_and_listed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(6):
        draw_image(Path(f"mixed/{i}.jpg"), i)
    whole = Path("mixed/0.jpg").read_bytes()
    spoil(Path("mixed"), {"1.jpg": b"", "3.jpg": whole[:300], "5.jpg": b"no image, but text"})
    command("predict", "--run", place.run, "mixed", "-o", "s.parquet", "--batch-size", "2")
    said = capsys.readouterr()
    assert table("s.parquet")["image_id"] == ["0.jpg", "2.jpg", "4.jpg"]
    assert "3 images cannot be read" in said.err
    assert "s.skipped.csv" in said.err
    with open("s.skipped.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ["1.jpg", "3.jpg", "5.jpg"]
    assert all(row["reason"] for row in rows)
    # Replaced by a run in which all can be read, the list goes too.
    command("predict", "--run", place.run, place.photos, "-o", "s.parquet", "--overwrite")
    assert not Path("s.skipped.csv").exists()


def test_when_none_can_be_read_that_is_an_error(place: Place) -> None:
    Path("bad").mkdir()
    spoil(Path("bad"), {"a.jpg": b"", "b.png": b"nothing"})
    said = refusal("predict", "--run", place.run, "bad", "-o", "s.parquet")
    assert re.search(r"none of 2 images can be read \(a\.jpg: ", said)
    assert sorted(os.listdir()) == ["bad"]
    assert "none of 1 images" in refusal("predict", "--run", place.run, "bad/a.jpg")


def test_a_file_that_vanishes_is_skipped(place: Place) -> None:
    draw_image(Path("some/a.png"), 1)
    Path("some/b.png").symlink_to("gone.png")
    command("predict", "--run", place.run, "some", "-o", "s.parquet")
    assert "b.png,cannot be read (No such file" in Path("s.skipped.csv").read_text()


# Missing labels


def test_missing_labels_are_unknown_and_above_precise_thresholds(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--precision", "0.6", "--min-support", "1", "--batch-size", "3")
    command("predict", "--run", place.run, "--missing", place.store, "--out", "m.csv", *options)
    said = capsys.readouterr()
    metric, _ = evaluating.collect(place.run / "predictions.parquet", place.opened)
    from partlabel.metrics import choose_thresholds

    at = choose_thresholds(metric, place.opened.classes, precision=0.6, min_support=1).values
    _, logits = all_logits(place)
    states = place.opened.dense(range(IMAGES))
    missing = np.argwhere((logits >= at) & (states == 0))
    wanted = {(f"img{i}", CLASSES[c]) for i, c in missing}
    with open("m.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert wanted
    assert {(row["image_id"], row["class_id"]) for row in rows} == wanted
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(float(row["score"]) >= float(row["threshold"]) for row in rows)
    assert rows[0]["path"].startswith("img/")
    assert rows[0]["class_name"] == rows[0]["class_id"]  # as the store calls it
    assert f"{len(wanted)} labels are probably missing in {IMAGES} images" in said.out
    # The best few only, printed.
    command("predict", "--run", place.run, "--missing", place.store, "--limit", "2", *options)
    printed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert printed == rows[:2]


def test_a_limit_keeps_the_best_however_often_it_is_applied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partlabel.prediction.missing._ROOM", 1)
    store = image_store(place.photos, np.zeros((IMAGES, 5)))
    store.save("u.labels")
    options = ("--missing", "u.labels", "--thresholds", "0", "--batch-size", "1")
    command("predict", "--run", place.run, *options, "-o", "all.csv")
    command("predict", "--run", place.run, *options, "-o", "few.csv", "--limit", "4")
    every = Path("all.csv").read_text().splitlines()
    assert len(every) == 1 + 5 * IMAGES
    assert Path("few.csv").read_text().splitlines() == every[:5]


def test_classes_that_never_reach_the_precision_are_named(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{name},{'inf' if name == 'c2' else -50}\n" for name in CLASSES)
    Path("t.csv").write_text("class_id,threshold\n" + rows)
    command(
        "predict", "--run", place.run, "--missing", place.store, "--thresholds", "t.csv",
        "-o", "m.csv",
    )  # fmt: skip
    assert "1 of 5 classes are ruled out, so nothing of them: c2" in capsys.readouterr().err
    with open("m.csv", newline="") as file:
        assert "c2" not in {row["class_id"] for row in csv.DictReader(file)}


def test_nothing_is_missing_in_a_complete_store(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    image_store(place.photos, some_states(3) > 0, complete=True).save("c.labels")
    command("predict", "--run", place.run, "--missing", "c.labels")
    said = capsys.readouterr()
    assert "is complete: every label is known, so none is missing" in said.err
    assert said.out == "image_id,class_id,class_name,score,threshold,path\n"
    command("predict", "--run", place.run, "--missing", "c.labels", "-o", "m.csv")
    assert Path("m.csv").read_text() == said.out


def test_a_store_with_other_classes_is_refused_with_the_difference(place: Place) -> None:
    image_store(place.photos, some_states(3), classes=[*CLASSES[:4], "new"]).save("o.labels")
    said = refusal("predict", "--run", place.run, "--missing", "o.labels")
    assert "1 only in the first (new), 1 only in the second (c4)" in said


def test_classes_in_another_order_give_the_same_missing_labels(place: Place) -> None:
    order = [3, 0, 4, 2, 1]
    names = [CLASSES[i] for i in order]
    image_store(place.photos, some_states()[:, order], classes=names).save("r.labels")
    for name in (place.store, "r.labels"):
        out = f"{Path(name).stem}.csv"
        command(
            "predict", "--run", place.run, "--missing", name, "-o", out,
            "--precision", "0.6", "--min-support", "1",
        )  # fmt: skip

    def pairs(path: str) -> list[tuple[str, str]]:
        with open(path, newline="") as file:
            return [(row["image_id"], row["class_id"]) for row in csv.DictReader(file)]

    assert pairs("r.csv") == pairs("val.csv")


def test_missing_without_predictions_of_the_run(in_tmp: Path) -> None:
    image_store(in_tmp / "photos", some_states(3)).save("v.labels")
    run = make_run(in_tmp / "run", data={"train": "v.labels"})
    said = refusal("predict", "--run", run, "--missing", "v.labels")
    assert "has no predictions.parquet" in said
    command("predict", "--run", run, "--missing", "v.labels", "--thresholds", "0.5", "-o", "m.csv")
    assert Path("m.csv").exists()


# Mistakes


def test_mistakes_are_one_line(place: Place, in_tmp: Path) -> None:
    run = ("predict", "--run", place.run)
    Path("empty").mkdir()
    Path("texts").mkdir()
    Path("texts/a.txt").touch()
    Path("there.jsonl").touch()
    photos = ("--images", place.photos)
    cases: dict[tuple[Any, ...], str] = {
        ("predict", "--run", "none", *photos): "there is no such run folder",
        ("predict", "--run", place.photos, *photos): "is not a run folder",
        (*run,): "give --images FOLDER|FILE|STORE, or --missing STORE",
        (*run, *photos, "--missing", place.store): "give --images",
        (*run, "--images", "empty"): "no images found (there are no files)",
        (*run, "--images", "texts"): "files there end in .txt",
        (*run, "--images", "txets"): "did you mean texts?",
        (*run, "--images", "no/where"): "there is no folder no",
        (*run, *photos, "-o", "there.jsonl"): "exists; choose another --out or add --overwrite",
        (*run, *photos, "-o", "s.csv"): "must end in .parquet or .jsonl",
        (*run, "--missing", place.store, "-o", "s.parquet"): "must end in .csv",
        (*run, *photos, "-o", "no/s.parquet"): "there is no folder",
        (*run, *photos, "--precision", "0.5"): "--precision goes with --missing",
        (*run, *photos, "--min-support", "3"): "--min-support goes with --missing",
        (*run, "--missing", place.store, "--top-k", "3"): "--top-k goes with --images",
        (*run, "--missing", place.store, "--precision", "2"): "--precision is a share",
        (*run, "--missing", place.store, "--precision", "1", "--thresholds", "0.5"): (
            "--precision goes with --missing without --thresholds"
        ),
        (*run, "--missing", place.store, "--thresholds", "none"): "--missing needs thresholds",
        (*run, *photos, "--split", "val"): "--split goes with a store",
        (*run, *photos, place.store): "is a store; name it alone",
        (*run, *photos, "--images", place.photos / "img"): "is in",
        (*run, *photos, "--images", place.photos): "is there twice",
        (*run, *photos, "--thresholds", "7"): "is not a probability",
        (*run, *photos, "--thresholds", "t.csv"): "no such file",
        (*run, "--images", place.store, "--split", "test"): "there is no split 'test'",
        (*run, "--missing", place.photos): "not a label store",
        (*run, *photos, "--device", "tpu9"): "device",
    }
    for arguments, wanted in cases.items():
        assert wanted in refusal(*arguments), arguments


def test_a_run_without_a_checkpoint_or_with_a_damaged_one(in_tmp: Path) -> None:
    run, photo = make_run(in_tmp / "run"), draw_image(in_tmp / "a.png", 1)
    [folder] = (run / "checkpoints").iterdir()
    (folder / "average.safetensors").write_bytes(b"torn")
    assert "no checkpoint" in refusal("predict", "--run", run, photo)


def test_a_model_that_gives_no_numbers_is_refused(in_tmp: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    run, photo = make_run(in_tmp / "run"), draw_image(in_tmp / "a.png", 1)
    [folder] = (run / "checkpoints").iterdir()
    tensors = load_file(folder / "average.safetensors")
    tensors["head.bias"] = torch.full((5,), float("nan"))
    save_file(tensors, folder / "average.safetensors")
    said = refusal("predict", "--run", run, photo, "-o", "s.parquet")
    assert "is not finite" in said
    assert sorted(os.listdir()) == ["a.png", "run"]


def test_a_full_disk_leaves_what_was_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("s.parquet").write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("partlabel.prediction.predictions.ParquetTable.close", full)
    said = refusal("predict", "--run", place.run, place.photos, "-o", "s.parquet", "--overwrite")
    assert said == "s.parquet: cannot be written (No space left on device)"
    assert Path("s.parquet").read_text() == "old"
    assert os.listdir() == ["s.parquet"]


def test_rows_are_written_as_they_come(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partlabel.prediction.predictions._VALUES_AT_ONCE", 20)
    command("predict", "--run", place.run, place.photos, "-o", "s.parquet", "--batch-size", "2")
    assert pq.ParquetFile("s.parquet").num_row_groups == 3
    assert len(table("s.parquet")["scores"]) == IMAGES


def test_many_classes_come_in_the_bottleneck(in_tmp: Path) -> None:
    classes = ClassTable([f"c{i}" for i in range(5001)])
    run = make_run(in_tmp / "run", classes=classes)
    draw_image(in_tmp / "photos" / "a.png", 1)
    command("predict", "--run", run, "photos", "-o", "s.parquet")
    assert len(table("s.parquet")["scores"][0]) == 5001


def test_images_are_listed_only_as_they_are_read(place: Place) -> None:
    listed = 0

    class Endless:
        """As many images as nobody could hold in memory."""

        ids_are = "string"

        def __len__(self) -> int:
            return 10**12

        def part(self, start: int, stop: int) -> Iterator[Picture]:
            nonlocal listed
            for i in range(start, stop):
                listed += 1
                yield Picture(f"image {i}", i)

        def read(self, picture: Picture) -> bytes:
            return (place.photos / f"img/{int(picture.place) % IMAGES:03}.png").read_bytes()

    found = Predictor.open(place.run).scores(Endless(), batch_size=4)
    assert [len(next(found).pictures) for _ in range(3)] == [4, 4, 4]
    assert listed <= 4 * 4


@pytest.mark.gpu
def test_a_gpu_gives_the_same(place: Place) -> None:
    import torch

    pictures = find_images([place.photos])
    on_gpu = Predictor.open(place.run, device=torch.device("cuda"))
    found = list(on_gpu.scores(pictures, batch_size=4, workers=1))
    assert sum(len(scored.pictures) for scored in found) == IMAGES
    logits = np.concatenate([scored.logits for scored in found])
    wanted = all_logits(place)[1]
    np.testing.assert_allclose(logits, wanted, rtol=0.05, atol=0.05 * np.abs(wanted).max())
    best = list(on_gpu.scores(pictures, batch_size=4, top_k=2))
    top = np.concatenate([scored.logits for scored in best])
    np.testing.assert_allclose(top, -np.sort(-logits, axis=1)[:, :2], rtol=0.01, atol=0.01)
    command("predict", "--run", place.run, place.photos, "-o", "s.parquet", "--device", "cuda")
    assert len(table("s.parquet")["scores"]) == IMAGES


# Several processes

SCRIPT = """
import sys
from tests.tiny_run import command
command(*sys.argv[1:])
"""


@pytest.mark.slow
def test_two_processes_write_the_same_file(place: Place) -> None:
    Path("go.py").write_text(SCRIPT)
    bad = Path("photos")
    for i in range(7):
        draw_image(bad / f"{i}.png", i)
    spoil(bad, {"2.png": b"", "6.png": b"x"})
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}

    def together(*arguments: str | Path) -> None:
        texts = [str(argument) for argument in arguments]
        done = subprocess.run(
            [*start, "go.py", *texts], capture_output=True, text=True, env=env, timeout=300
        )
        assert done.returncode == 0, done.stderr

    for name, *options in (
        ["s.parquet"],
        ["s.jsonl", "--top-k", "2"],
    ):
        arguments = ("predict", "-r", place.run, "photos", *options, "--batch-size", "2")
        together(*arguments, "-o", f"two-{name}")
        command(*arguments, "-o", f"one-{name}")
    one, two = table("one-s.parquet"), table("two-s.parquet")
    assert one["image_id"] == two["image_id"] == ["0.png", "1.png", "3.png", "4.png", "5.png"]
    np.testing.assert_allclose(np.array(one["scores"]), np.array(two["scores"]), atol=1e-4)
    assert Path("one-s.skipped.csv").read_text() == Path("two-s.skipped.csv").read_text()
    first, second = (Path(f"{n}-s.jsonl").read_text().splitlines() for n in ("one", "two"))
    for a, b in zip(map(json.loads, first), map(json.loads, second), strict=True):
        assert a["image"] == b["image"]
        assert [label["id"] for label in a["labels"]] == [label["id"] for label in b["labels"]]
    arguments = ("predict", "-r", place.run, "--missing", place.store, "--precision", "0.6")
    together(*arguments, "--min-support", "1", "-o", "two-m.csv", "--limit", "6")
    command(*arguments, "--min-support", "1", "-o", "one-m.csv", "--limit", "6")
    rows = [
        list(csv.DictReader(Path(f"{name}-m.csv").read_text().splitlines()))
        for name in ("one", "two")
    ]
    assert [[r["image_id"], r["class_id"]] for r in rows[0]] == [
        [r["image_id"], r["class_id"]] for r in rows[1]
    ]
    assert not [name for name in os.listdir() if name.startswith(".")]
