from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partlabel import ClassTable, ImageTable, Prior, build_loss
from partlabel.agreement import ranks, spearman, spearman_curve, top_overlap
from partlabel.errors import ClassMismatchError, DataError
from partlabel.estimate import (
    LogitHistogram,
    RunningMean,
    estimate_prior,
    predicted,
    sample_rows,
)
from partlabel.prior import ClassPrior, count_prior
from partlabel.scores import read_scores
from partlabel.store import ClassCounts, LabelStore
from tests.conftest import MakeStore
from tests.test_cli import partlabel

SHARED = Path(__file__).parent.parent.parent / "shared" / "coco-2014-labels"


def entry(class_id: str, prior: float, **more: object) -> ClassPrior:
    return ClassPrior(
        class_id=class_id, class_name=class_id.title(), prior=prior, method="given", **more
    )


def exact_mean(column: list[float]) -> float:
    return sum(1 / (1 + math.exp(-z)) for z in column) / len(column)


def exact_em(column: list[float], trained_at: float) -> float:
    """Where Saerens' iteration comes to rest, in plain floats: the top of its likelihood."""
    posteriors = [1 / (1 + math.exp(-z)) for z in column]

    def moved(prior: float) -> float:
        total = 0.0
        for p in posteriors:
            up = p * prior / trained_at
            down = (1 - p) * (1 - prior) / (1 - trained_at)
            total += up / (up + down)
        return total / len(posteriors)

    low, high = 1e-12, 1 - 1e-12
    for _ in range(80):  # the iteration moves up below its fixed point, and down above
        middle = (low + high) / 2
        low, high = (middle, high) if moved(middle) > middle else (low, middle)
    return (low + high) / 2


class TestHistogram:
    @settings(max_examples=25)
    @given(
        columns=st.lists(
            st.lists(
                st.floats(-12, 12) | st.sampled_from([0.0156, -3.01, 5.0]), min_size=3, max_size=40
            ),
            min_size=1,
            max_size=1,
        ),
        share=st.sampled_from([0.1, 0.5, 0.9]),
    )
    def test_mean_and_correction_are_within_a_thousandth(
        self, columns: list[list[float]], share: float
    ) -> None:
        seen = LogitHistogram(1)
        seen.update(torch.tensor(columns, dtype=torch.float64).T)
        assert seen.mean()[0] == pytest.approx(exact_mean(columns[0]), abs=1e-3)
        corrected = seen.corrected(np.array([share]))
        assert corrected[0] == pytest.approx(exact_em(columns[0], share), abs=1e-3)

    def test_a_bin_far_from_its_centre_does_not_bias(self) -> None:
        seen = LogitHistogram(1)
        seen.update(torch.full((1000, 1), 1 / 32 - 1e-6))  # all at the edge of one bin
        assert seen.mean()[0] == pytest.approx(exact_mean([1 / 32 - 1e-6]), abs=1e-9)

    def test_the_correction_is_converged_where_em_takes_thousands_of_steps(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(np.where(rng.random(4000) < 0.05, 0.1, -0.1), 1.0)
        seen = LogitHistogram(1)
        seen.update(torch.from_numpy(0.2 * x)[:, None])
        expected = exact_em((0.2 * x).tolist(), 0.5)
        assert seen.corrected(np.array([0.5]))[0] == pytest.approx(expected, abs=1e-3)

    def test_nan_is_refused_when_it_is_read(self) -> None:
        seen = LogitHistogram(2)
        seen.update(torch.tensor([[0.0, float("nan")]]))
        with pytest.raises(ValueError, match="logits of class 1 had NaN"):
            seen.mean()

    def test_batches_merging_and_dtype_do_not_matter(self) -> None:
        logits = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).double() * 5
        whole = LogitHistogram(4)
        whole.update(logits)
        parts = [LogitHistogram(4) for _ in range(3)]
        for part, rows in zip(parts, logits.split([10, 0, 50]), strict=True):
            part.update(rows)
        merged = LogitHistogram(4)
        for part in reversed(parts):
            merged.merge(part)
        assert torch.equal(merged.counts, whole.counts)
        assert np.allclose(merged.mean(), whole.mean(), rtol=0, atol=1e-12)
        assert merged.images == 60
        again = LogitHistogram(4)
        again.load_state_dict(merged.state_dict())
        assert np.array_equal(again.mean(), merged.mean())
        half = LogitHistogram(4)
        half.update(logits.to(torch.bfloat16))
        assert np.abs(half.mean() - whole.mean()).max() < 2e-3

    def test_extreme_logits_and_wrong_shapes(self) -> None:
        seen = LogitHistogram(2)
        seen.update(torch.tensor([[1e4, -1e4]]))
        assert seen.mean().round(6).tolist() == [1, 0]
        with pytest.raises(ValueError, match=r"logits must be \(B, 2\), got \(1, 3\)"):
            seen.update(torch.zeros(1, 3))

    @pytest.mark.slow
    def test_two_processes_see_what_one_sees(self, tmp_path: Path) -> None:
        script = """
import sys, torch, numpy as np, torch.distributed as dist
from partlabel import ClassTable
from partlabel.estimate import LogitHistogram, RunningMean, estimate_prior, predicted
from partlabel.store import ClassCounts
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/sync", rank=rank, world_size=2)
logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 4
own = logits[:13] if rank == 0 else logits[13:]
half = ClassCounts(np.full(3, 10), np.full(3, 10))
prior = estimate_prior([own], ClassTable("abc"), half, images=50, use="em")
running = RunningMean(3)
running.update(own)
running.all_reduce()
seen = predicted(torch.nn.Identity(), [own], num_classes=3)
np.save(f"{folder}/{rank}.npy", np.concatenate([seen.mean(), prior.values, running.mean()]))
dist.destroy_process_group()
"""
        command = [sys.executable, "-c", script]
        processes = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
        assert [process.wait(90) for process in processes] == [0, 0]
        logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 4
        one = LogitHistogram(3)
        one.update(logits)
        whole = logits.double().sigmoid().mean(0).numpy()
        expected = np.concatenate([one.mean(), one.corrected(np.full(3, 0.5)), whole])
        for rank in range(2):
            assert np.allclose(np.load(tmp_path / f"{rank}.npy"), expected, rtol=0, atol=1e-12)


class TestEstimate:
    def test_correction_finds_the_prior_that_the_mean_overstates(self) -> None:
        """A perfect model of two Gaussians, trained at half positives, on a set with few."""
        rng = np.random.default_rng(0)
        true, images = 0.05, 40_000
        present = rng.random(images) < true
        x = rng.normal(np.where(present, 1.0, -1.0), 1.0)
        logits = torch.from_numpy(2 * x)[:, None]  # posterior at equal shares
        prior = estimate_prior(
            [logits],
            ClassTable(["c"]),
            ClassCounts(np.array([100]), np.array([100])),
            images=images,
            use="em",
        )
        found = prior.classes["c"]
        assert found.mean > 0.15
        assert found.em == pytest.approx(true, abs=0.01)
        assert found.prior == found.em
        assert found.method == "em"
        assert found.estimated_images == pytest.approx(found.em * images)
        assert found.deficiency == pytest.approx(found.em * images / 100)

    def test_a_class_without_negatives_gets_its_annotated_share(self) -> None:
        counts = ClassCounts(np.array([30, 30]), np.array([0, 10]))
        classes = ClassTable(["bare", "known"])
        with pytest.warns(UserWarning, match="1 of 2 classes have no verified negative"):
            prior = estimate_prior([torch.full((5, 2), 4.0)], classes, counts, images=100)
        assert prior.classes["bare"].prior == 0.3
        assert prior.classes["bare"].method == "count"
        assert prior.classes["known"].prior == pytest.approx(exact_mean([4.0]), abs=1e-6)
        assert prior.classes["known"].method == "mean"

    def test_nothing_and_nonsense_are_refused(self) -> None:
        counts = ClassCounts(np.array([1]), np.array([1]))
        with pytest.raises(ValueError, match="batches has no images"):
            estimate_prior([], ClassTable(["a"]), counts, images=1)
        with pytest.raises(ValueError, match="use must be mean or em, got 'max'"):
            estimate_prior([torch.zeros(1, 1)], ClassTable(["a"]), counts, images=1, use="max")

    def test_a_model_predicts_in_eval_mode_and_is_left_as_it_was(self) -> None:
        model = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Linear(4, 2)).train()
        images = torch.randn(10, 4)
        seen = predicted(model, images.split(3), num_classes=2)
        assert model.training
        expected = model[1](images).sigmoid().mean(0).tolist()
        assert seen.mean().tolist() == pytest.approx(expected, abs=1e-6)

    def test_a_sample_depends_on_seed_and_ids_alone(self) -> None:
        ids = [f"{i}.jpg" for i in range(50)]
        here, there = ImageTable.make(ids), ImageTable.make(ids[::-1])
        one, two, three = (
            sample_rows(table, 10, seed=seed) for table, seed in ((here, 0), (there, 0), (here, 1))
        )
        assert {ids[i] for i in one} == {ids[::-1][i] for i in two}
        assert set(one) != set(three)
        assert sorted(set(one)) == one.tolist()
        assert sample_rows(here, 99, seed=0).tolist() == list(range(50))

    def test_running_mean(self) -> None:
        running = RunningMean(2)
        running.update(torch.tensor([[0.0, 9.0]]))
        running.update(torch.tensor([[2.0, 9.0], [0.0, 9.0]]))
        assert running.mean()[0] == pytest.approx(exact_mean([0.0, 2.0, 0.0]), abs=1e-12)
        again = RunningMean(2)
        again.load_state_dict(running.state_dict())
        counts = ClassCounts(np.array([1, 1]), np.array([1, 1]))
        prior = estimate_prior(again, ClassTable(["a", "b"]), counts, images=3)
        assert prior.classes["a"].method == "running"
        assert prior.values == pytest.approx(running.mean())
        with pytest.raises(ValueError, match="use must be mean for a running mean"):
            estimate_prior(again, ClassTable(["a", "b"]), counts, images=3, use="em")

    def test_scores_that_tell_nothing_are_warned_about(self) -> None:
        counts = ClassCounts(np.array([5]), np.array([5]))
        with pytest.warns(UserWarning, match="puts 1 of 1 classes at 0 or 1"):
            estimate_prior([torch.full((9, 1), 2.0)], ClassTable(["a"]), counts, images=9, use="em")

    def test_a_class_without_positives_is_not_corrected(self) -> None:
        counts = ClassCounts(np.array([0]), np.array([5]))
        prior = estimate_prior([torch.zeros(9, 1)], ClassTable(["a"]), counts, images=9, use="em")
        assert prior.classes["a"].method == "mean"

    def test_counting_is_the_naive_prior(self, make_store: MakeStore) -> None:
        prior = count_prior(make_store([[1, 0], [1, -1], [0, 0], [-1, 0]]))
        assert prior.values.tolist() == [0.5, 0.0]
        assert prior.classes["c0"].negatives == 1


class TestPrior:
    def test_csv_comes_back(self, tmp_path: Path) -> None:
        prior = Prior([
            entry("a,b", 0.25, mean=0.25, em=0.125, positives=3, negatives=4, estimated_images=9.0),
            entry("ü", 1 / 3),
        ])  # fmt: skip
        prior.write(tmp_path / "prior.csv")
        again = Prior.read(tmp_path / "prior.csv")
        assert list(again.classes) == ["a,b", "ü"]
        assert again.classes["a,b"] == prior.classes["a,b"]
        assert again.values == pytest.approx(prior.values, abs=1e-9)

    def test_the_published_form_is_read_with_a_warning(self, tmp_path: Path) -> None:
        path = tmp_path / "published.csv"
        path.write_text("Classes,avg_pred\nperson,0.54\ncat,0.1\n1542867\n")
        with pytest.warns(UserWarning, match="1 rows left out, the first is line 4"):
            prior = Prior.read(path)
        assert prior.values.tolist() == [0.54, 0.1]

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("a,b\n1,2\n", "no such columns"),
            ("", "no such columns"),
            ("class_id,prior\nx,2\n", "must be in"),
            ("class_id,prior\nx,nan\n", "must be in"),
            ("class_id,prior\nx,0.1\nx,0.2\n", "twice"),
        ],
    )
    def test_files_that_are_no_prior(self, tmp_path: Path, text: str, match: str) -> None:
        path = tmp_path / "p.csv"
        path.write_text(text)
        with pytest.raises(DataError, match=match):
            Prior.read(path)

    def test_classes_are_found_by_id_or_by_name(self) -> None:
        prior = Prior([entry("person", 0.5), entry("cat", 0.1)])
        assert prior.align(ClassTable(["cat", "person"])).tolist() == pytest.approx([0.1, 0.5])
        assert prior.align(ClassTable(["17", "1"], ["cat", "person"])).tolist() == pytest.approx(
            [0.1, 0.5]
        )
        with pytest.raises(
            ClassMismatchError, match=r"lacks 1 of 2 classes: pers; did you mean person"
        ):
            prior.align(ClassTable(["cat", "pers"]))

    def test_ids_that_mean_other_classes_are_refused(self) -> None:
        lvis = Prior([ClassPrior(class_id="1", class_name="airplane", prior=0.1, method="given")])
        with pytest.raises(ClassMismatchError, match="class 1 is 'person' here and 'airplane'"):
            lvis.align(ClassTable(["1"], ["person"]))
        twice = Prior([entry("bat", 0.1), entry("cat", 0.2)])
        with pytest.raises(ClassMismatchError, match="lacks 2 of 2"):
            twice.align(ClassTable(["7", "8"], ["Bat", "Bat"]))

    def test_a_threshold_means_the_same_in_every_dtype(self) -> None:
        prior = Prior([entry("a", 0.9), entry("b", 0.3), entry("c", 0.1)])
        classes = ClassTable(["a", "b", "c"])
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            settings = {"prior": prior.align(classes), "prior_threshold": prior.threshold(top_n=1)}
            loss = build_loss("selective", top_k=0, **settings).to(dtype)
            terms = loss.terms(
                torch.zeros(1, 3, dtype=dtype).float(), torch.zeros(1, 3).to(torch.int8)
            )
            assert terms.eq(0).tolist() == [[True, False, False]]

    def test_thresholds(self) -> None:
        prior = Prior(
            [entry(name, p) for name, p in zip("abcd", (0.1, 0.8, 0.4, 0.2), strict=True)]
        )
        for n in range(5):
            assert (prior.values > prior.threshold(top_n=n)).sum() == n
        assert prior.threshold(value=0.3) == pytest.approx(0.3)
        assert prior.threshold(quantile=1.0) == pytest.approx(0.8)
        for wrong in ({}, {"value": 0.1, "top_n": 2}, {"quantile": 2.0}, {"top_n": -1}):
            with pytest.raises(ValueError, match=r"give one of|quantile|top_n"):
                prior.threshold(**wrong)


def plain_spearman(a: list[float], b: list[float]) -> float:
    def rank(values: list[float]) -> list[float]:
        return [
            sum(other < value for other in values)
            + (sum(other == value for other in values) + 1) / 2
            for value in values
        ]

    x, y = rank(a), rank(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    cov = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    var = sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y)
    return cov / math.sqrt(var) if var else math.nan


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_spearman_with_ties_equals_the_definition(pairs: list[tuple[int, int]]) -> None:
    a, b = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    assert spearman(a, b) == pytest.approx(plain_spearman(a, b), abs=1e-9, nan_ok=True)


def test_curve_overlap_and_ranks() -> None:
    true, estimated = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [5.0, 4.0, 3.0, 1.0, 2.0, 9.0]
    curve = spearman_curve(true, estimated)
    assert curve[5] == pytest.approx(plain_spearman(true[:5], estimated[:5]))
    assert curve[6] == pytest.approx(plain_spearman(true, estimated))
    assert spearman_curve(true, estimated, top=[3])[3] == 1.0
    by_estimate = spearman_curve(true, estimated, top=[3], order="estimated")[3]
    assert by_estimate == pytest.approx(plain_spearman([0, 5, 4], [9, 5, 4]))
    assert top_overlap(true, estimated, 3) == 2
    assert ranks([]).tolist() == []


@pytest.mark.slow  # each starts a process that imports torch
class TestCommands:
    @pytest.fixture
    def store(self, in_tmp: Path, make_store: MakeStore) -> Path:
        states = [[1, -1, 0], [0, 1, 1], [-1, 0, 0], [0, 0, 0]]
        return make_store(states).save("s.labels")

    def test_estimate_from_npy_and_parquet_agree(self, store: Path) -> None:
        scores = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        np.save("scores.npy", scores)
        ids = [f"img{i}" for i in (2, 0, 3, 1)]
        table = pa.table({"image_id": ids, "scores": scores[[2, 0, 3, 1]].tolist()})
        pq.write_table(table, "lists.parquet")
        wide = {f"c{i}": scores[:, i] for i in (2, 1, 0)}
        pq.write_table(
            pa.table({"image_id": [f"img{i}" for i in range(4)], **wide}), "wide.parquet"
        )
        np.save("p.npy", 1 / (1 + np.exp(-scores.astype(float))))
        texts = []
        for name, more in (
            ("scores.npy", []),
            ("lists.parquet", []),
            ("wide.parquet", []),
            ("p.npy", ["--scores-are", "probabilities"]),
        ):
            command = ("prior", "estimate", "--scores", name, "--labels", store, "-o", "p.csv")
            done = partlabel(*command, "--overwrite", *more)
            assert "p.csv: 3 classes" in done.stdout
            assert "1 of 3 classes have no verified negative" in done.stderr
            texts.append(Path("p.csv").read_text())
        values = [[float(line.split(",")[2]) for line in text.splitlines()[1:]] for text in texts]
        for other in values[1:]:
            assert other == pytest.approx(values[0], abs=1e-6)
        assert values[0][0] == pytest.approx(exact_mean(scores[:, 0].tolist()), abs=1e-4)
        assert values[0][2] == 0.25

    def test_compare_as_text_and_json(self, store: Path) -> None:
        Path("a.csv").write_text("Classes,avg_pred\nc0,0.3\nc1,0.2\nc2,0.1\nstray\n")
        done = partlabel("prior", "compare", "a.csv", store)
        assert "1 rows left out" in done.stderr
        assert "Spearman" in done.stdout
        found = json.loads(partlabel("prior", "compare", "a.csv", "a.csv", "--json").stdout)
        assert found["spearman"] == 1.0
        assert found["mean_absolute_error"] == 0.0

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: np.save("x.npy", np.zeros((4, 2))), "the store needs floats (4, 3)"),
            (
                lambda: np.save("x.npy", np.full((4, 3), np.nan)),
                "score nan of image img0, class c0",
            ),
            (lambda: Path("x.npy").write_bytes(b"junk"), "is not readable as npy"),
            (lambda: None, "no such file"),
        ],
    )
    def test_scores_that_do_not_fit(self, store: Path, make: object, text: str) -> None:
        make()
        done = partlabel("prior", "estimate", "--scores", "x.npy", "--labels", store, code=2)
        assert text in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not Path("prior.csv").exists()

    def test_lists_of_other_lengths_are_refused(self, store: Path) -> None:
        table = pa.table({"image_id": ["img0", "img1"], "scores": [[0.0] * 4, [0.0] * 2]})
        pq.write_table(table, "x.parquet")
        done = partlabel("prior", "estimate", "--scores", "x.parquet", "--labels", store, code=2)
        assert "a list in 'scores' has 4 entries; the store has 3 classes" in done.stderr

    def test_hex_ids_are_read_as_such(self, in_tmp: Path, make_store: MakeStore) -> None:
        ids = np.array([0x12, 0xAB], np.uint64)
        make_store([[1, -1], [-1, 1]], ids=ids).save("hex.labels")
        texts = ["00000000000000ab", "0000000000000012"]
        pq.write_table(
            pa.table({"image_id": texts, "scores": [[1.0, 2.0], [3.0, 4.0]]}), "x.parquet"
        )
        partlabel("prior", "estimate", "--scores", "x.parquet", "--labels", "hex.labels")
        found = [
            (rows.tolist(), values.tolist())
            for rows, values in read_scores("x.parquet", LabelStore.open("hex.labels"))
        ]
        assert found == [([1, 0], [[1.0, 2.0], [3.0, 4.0]])]

    def test_the_output_is_checked_before_the_work(self, store: Path) -> None:
        np.save("x.npy", np.full((4, 3), 0.5))
        command = ("prior", "estimate", "--scores", "x.npy", "--labels", store)
        assert "there is no folder" in partlabel(*command, "-o", "no/p.csv", code=2).stderr
        assert "say --scores-are probabilities?" in partlabel(*command).stderr
        assert "prior.csv exists" in partlabel(*command, code=2).stderr

    def test_a_partial_store_is_not_taken_for_the_truth(self, store: Path) -> None:
        Path("a.csv").write_text("class_id,prior\nc0,0.3\nc1,0.2\nc2,0.1\n")
        assert "is not complete" in partlabel("prior", "compare", "a.csv", store).stderr

    def test_scores_of_other_images(self, store: Path) -> None:
        table = pa.table({"image_id": ["other"], "scores": [[0.0, 0.0, 0.0]]})
        pq.write_table(table, "x.parquet")
        done = partlabel("prior", "estimate", "--scores", "x.parquet", "--labels", store, code=2)
        assert "image 'other' is not in the store" in done.stderr


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared")
def test_the_published_prior_against_the_true_frequencies(in_tmp: Path) -> None:
    source = SHARED / "train.parquet"
    more = (
        "--layout",
        "lists",
        "--classes",
        SHARED / "classes.txt",
        "--complete",
        "-o",
        "coco.labels",
    )
    partlabel("import", "table", source, *more)
    published = SHARED / "prior_fpc_1000_published.csv"
    done = partlabel("prior", "compare", published, "coco.labels")
    assert "Spearman 0.802" in done.stdout
    assert "10: 0.39, 20: 0.78, 30: 0.83, 40: 0.80" in done.stdout
    assert "sums of priors 7.94 and 2.94" in done.stdout
