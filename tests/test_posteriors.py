"""What models say of unknown labels: written, read back, asked for, shown to the loss in time."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partlabel.calibrate import Calibration, HeldOut, Mixture
from partlabel.errors import StoreError
from partlabel.holdout import hold_out
from partlabel.model import build_model
from partlabel.store import LabelStore
from partlabel.training import teacher as teachers
from partlabel.training.asking import Source, Told, ask, head_of, heads_of, mixed, said, together
from partlabel.training.order import Order
from partlabel.training.posteriors import KEPT, Posteriors, PosteriorWriter
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part
from partlabel.training.scoring import Counting, Seen
from partlabel.training.supply import Resident, Streamed
from partlabel.training.teacher import Teacher
from tests.test_dataset import COUNT, CPU, make_part, make_supply

IMAGES = 9


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def some_calibration(classes: int, *, slope: float = 0.8, seed: int = 0) -> Calibration:
    rng = np.random.default_rng(seed)
    shift, share, prior = (
        rng.normal(-1, 1, classes),
        rng.uniform(0, 0.5, classes),
        np.zeros(classes),
    )
    return Calibration(slope, 0.25, shift, share, prior, random=False, capped=False)


def some_logits(images: int, classes: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, some of them enormous, and where labels are unknown."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator) * 6
    logits[0, 0], logits[1, 1] = 1e9, -1e9
    return logits, torch.rand(images, classes, generator=generator) < 0.7


def written(
    folder: Path, logits: Tensor, unknown: Tensor, calibration: Calibration, *, rows: Any = None
) -> Posteriors:
    """A table of these images, written in two goes and not in order."""
    images, classes = logits.shape
    before = folder.exists()
    writer = PosteriorWriter(folder, images=images, classes=classes)
    writer.make()
    order = np.arange(images)[::-1].copy() if rows is None else np.array(rows)
    for part in (order[:2], order[2:]):
        writer.write(part, logits[part], unknown[part])
    writer.flush()
    assert folder.exists() == before
    writer.finish(calibration)
    return Posteriors(folder)


def expected(
    logits: Tensor, unknown: Tensor, calibration: Calibration, kept: int
) -> list[list[float]]:
    """In plain floats: posteriors of the likeliest unknown labels of each image, 0 elsewhere."""
    found = []
    columns = (logits.tolist(), logits.half().float().tolist(), unknown.tolist())
    for exact, z, free in zip(*columns, strict=True):
        there = sorted((c for c, is_free in enumerate(free) if is_free), key=lambda c: -exact[c])
        row = [0.0] * len(z)
        for c in there[:kept]:
            inside = calibration.slope * min(max(z[c], -16), 16)
            row[c] = sigmoid(inside + calibration.offset + calibration.shift[c])
        found.append(row)
    return found


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("classes", [2, 5, 256])
def test_of_few_classes_all_are_kept(tmp_path: Path, classes: int) -> None:
    logits, unknown = some_logits(IMAGES, classes)
    calibration = some_calibration(classes)
    table = written(tmp_path / "table", logits, unknown, calibration)
    assert {path.name for path in (tmp_path / "table").iterdir()} == {
        "logits.npy", "calibration.json",
    }  # fmt: skip
    rows = np.array([3, 0, 1, 1, 8])
    found = table.dense(rows, CPU)
    assert found.dtype == torch.float32
    wanted = expected(logits, unknown, calibration, classes)
    for row, values in zip(rows.tolist(), found.tolist(), strict=True):
        assert values == pytest.approx(wanted[row], rel=1e-5, abs=1e-7)
    assert not found[~unknown[rows]].any()


@pytest.mark.parametrize("classes", [257, 70_000])
def test_of_many_classes_the_likeliest_are_kept(tmp_path: Path, classes: int) -> None:
    logits, unknown = some_logits(IMAGES, classes)
    unknown[4, 10:] = False  # fewer unknown ones than are kept
    unknown[5] = False
    calibration = some_calibration(classes)
    table = written(tmp_path / "table", logits, unknown, calibration)
    found = table.dense(np.arange(IMAGES), CPU)
    wanted = expected(logits, unknown, calibration, KEPT)
    for row in range(IMAGES):
        assert found[row].tolist() == pytest.approx(wanted[row], rel=1e-5, abs=1e-7)
    assert (found > 0).sum(1).max() <= KEPT
    assert not found[5].any()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "table").glob("*.npy")}
    assert sum(sizes.values()) - IMAGES * 384 in range(2 * 200)  # as docs/training.md says


def test_images_that_nobody_wrote_are_absent(tmp_path: Path) -> None:
    for classes in (5, 300):
        logits, unknown = some_logits(IMAGES, classes)
        calibration = some_calibration(classes)
        table = written(
            tmp_path / f"{classes}", logits, unknown, calibration, rows=[0, 1, 2, 3, 5, 6]
        )
        found = table.dense(np.arange(IMAGES), CPU)
        assert not found[[4, 7, 8]].any()
        assert found[[0, 1, 2, 3, 5, 6]].any(1).all()


def test_a_table_takes_the_place_of_one_that_was_begun_or_made_before(tmp_path: Path) -> None:
    logits, unknown = some_logits(IMAGES, 300)
    calibration = some_calibration(300)
    begun = PosteriorWriter(tmp_path / "table", images=IMAGES, classes=300)
    begun.make()
    begun.write(np.arange(IMAGES), -logits, ~unknown)
    first = written(tmp_path / "table", logits, unknown, calibration)
    before = first.dense(np.arange(IMAGES), CPU)
    second = written(tmp_path / "table", logits.flip(0), unknown.flip(0), calibration)
    after = second.dense(np.arange(IMAGES), CPU)
    assert torch.equal(after, before.flip(0))
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "gone": shutil.rmtree,
    "no logits": lambda folder: (folder / "logits.npy").unlink(),
    "empty logits": lambda folder: (folder / "logits.npy").write_bytes(b""),
    "short logits": lambda folder: (folder / "logits.npy").write_bytes(
        (folder / "logits.npy").read_bytes()[:-1]
    ),
    "no codes": lambda folder: (folder / "codes.npy").unlink(),
    "empty codes": lambda folder: (folder / "codes.npy").write_bytes(b""),
    "no calibration": lambda folder: (folder / "calibration.json").unlink(),
    "empty calibration": lambda folder: (folder / "calibration.json").write_text(""),
    "no table of numbers": lambda folder: (folder / "calibration.json").write_text("3"),
    "half a calibration": lambda folder: (folder / "calibration.json").write_text('{"slope": 1}'),
    "no weight": lambda folder: (folder / "calibration.json").write_text(
        json.dumps(some_calibration(300).to_dict())
    ),
    "flat logits": lambda folder: np.save(folder / "logits.npy", np.zeros(3, np.float16)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_table_that_cannot_be_read_says_what_to_do(tmp_path: Path, how: str) -> None:
    logits, unknown = some_logits(IMAGES, 300)
    written(tmp_path / "table", logits, unknown, some_calibration(300))
    DAMAGE[how](tmp_path / "table")
    with pytest.raises(StoreError, match=r"table: .* cannot be read .*; start anew with --fresh"):
        Posteriors(tmp_path / "table")


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = PosteriorWriter(tmp_path / "table", images=4, classes=3)
    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(StoreError, match=r"table: cannot be written \(No space.*make room"):
        writer.make()
    assert not (tmp_path / "table").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        PosteriorWriter(tmp_path / "file" / "table", images=4, classes=3).make()


# ---------------------------------------------------------------- models that are asked


class Toy(nn.Module):
    """Logits that follow from the mean colour; as much of a classifier as is needed here."""

    def __init__(self, classes: int = 6, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, classes, generator=generator) * 40)
        self.drop = nn.Dropout(0.9)  # so that training mode would show

    def normalise(self, images: Tensor) -> Tensor:
        return images.float().mean((2, 3)) / 255 - 0.5

    def forward(self, colours: Tensor) -> Tensor:
        return self.drop(colours @ self.weight)

    def both(self, colours: Tensor) -> tuple[Tensor, Tensor]:
        return self(colours), self.drop(colours @ -self.weight.flip(1)) + 1


def logits_of(model: Toy, part: Part, rows: Any) -> Tensor:
    supply = make_supply(Streamed, part, "none")
    model.eval()
    with torch.no_grad():
        found = [model(model.normalise(batch.images)) for batch in supply.listed(np.array(rows))]
    return torch.cat(found)


def nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("bad", [(), (3, 8, 9, 10, 11, 12)], ids=["all", "unreadable"])
@pytest.mark.parametrize("kind", [Streamed, Resident])
def test_a_model_is_asked_about_unknown_and_held_out_labels(
    tmp_path: Path, kind: type[Any], bad: tuple[int, ...]
) -> None:
    part, model = make_part(bad=bad), Toy()
    held = hold_out(part.store, 0.4, seed=1)[1]
    rows = np.array([row for row in range(COUNT) if row != 20])
    there = [row for row in rows.tolist() if row not in bad]
    logits = logits_of(model, part, there)
    writer = PosteriorWriter(tmp_path / "table", images=COUNT, classes=6)
    writer.make()
    heard: list[int] = []
    ((seen, found, shown, samples),) = ask(
        head_of(model.train(), "fp32"),  # type: ignore[arg-type]
        make_supply(kind, part).listed,
        rows,
        held,
        processes=Processes(),
        writer=writer,
        seen_by=Seen(heard.append, nothing),
    )
    assert sum(heard) == len(there)
    assert samples is None
    assert not model.training
    position, classes, states = held.batch(np.array(there))
    assert len(position) > 10
    assert found.logits == pytest.approx(logits[position, classes].numpy(), abs=1e-5)
    assert found.classes.tolist() == classes.tolist()
    assert found.states.tolist() == states.tolist()
    unknown = part.store.dense(there) == 0
    assert seen.labels.tolist() == unknown.sum(0).tolist()
    for c in range(6):
        mean = logits[torch.from_numpy(unknown[:, c]), c].clamp(-16, 16).double().sigmoid().mean()
        assert seen.mean()[c] == pytest.approx(float(mean), abs=1e-3)
    known = part.store.dense(there) == 1
    known[position, classes] = False
    costs = [-math.log(sigmoid(float(z))) for z in logits[torch.from_numpy(known)]]
    assert shown == pytest.approx(sum(costs) / len(costs), rel=1e-5)
    calibration = some_calibration(6)
    writer.finish(calibration)
    free = unknown.copy()
    free[position, classes] = True
    wanted = np.zeros((COUNT, 6))
    wanted[there] = expected(logits, torch.from_numpy(free), calibration, 6)
    dense = Posteriors(tmp_path / "table").dense(np.arange(COUNT), CPU).numpy()
    np.testing.assert_allclose(dense, wanted, rtol=1e-3, atol=1e-5)


def test_no_image_that_can_be_read_gives_nothing() -> None:
    part = make_part(bad=range(COUNT))
    held = hold_out(part.store, 0.4, seed=1)[1]
    rows = np.arange(COUNT)
    told = ask(
        heads_of(Toy(), "fp32"),  # type: ignore[arg-type]
        make_supply(Streamed, part).listed,
        rows,
        held,
        processes=Processes(),
    )
    assert len(told) == 2
    for seen, found, shown, _ in told:
        assert not seen.labels.any()
        assert [len(column) for column in found] == [0, 0, 0]
        assert math.isnan(shown)


def test_several_models_are_asked_together(tmp_path: Path) -> None:
    """Both heads of one, and what a table says: each as if it were asked alone."""
    part, model = make_part(), Toy().eval()
    held = hold_out(part.store, 0.4, seed=1)[1]
    rows = np.arange(COUNT)
    free = torch.ones(COUNT, 6, dtype=torch.bool)
    table = written(tmp_path / "table", some_logits(COUNT, 6)[0], free, some_calibration(6))

    def asked(source: Source) -> list[Told]:
        listed = make_supply(Streamed, part).listed
        return ask(source, listed, rows, held, processes=Processes())

    heads = heads_of(model.train(), "fp32")  # type: ignore[arg-type]
    assert not model.training
    every = together(said(table), heads)
    told = asked(every)
    assert len(told) == every.models == 3
    position, classes, _ = held.batch(rows)
    before = table.log_odds(rows, CPU)[position, classes]
    np.testing.assert_allclose(told[0].held.logits, before.numpy(), rtol=1e-6)
    alone = asked(head_of(model, "fp32"))  # type: ignore[arg-type]
    assert torch.equal(told[1].seen.counts, alone[0].seen.counts)
    assert told[1].shown == alone[0].shown
    with torch.no_grad():
        both = [model.both(model.normalise(batch.images)) for batch in
                make_supply(Streamed, part, "none").listed(rows)]  # fmt: skip
    second = torch.cat([each[1] for each in both])[position, classes]
    np.testing.assert_allclose(told[2].held.logits, second.numpy(), rtol=1e-5, atol=1e-5)
    first, last = (Calibration(a, b, *[np.zeros(6)] * 3, random=True, capped=False)
                   for a, b in ((1.0, 0.5), (0.5, 0.0)))  # fmt: skip
    (one,) = asked(mixed(heads, Mixture((first, last), (0.25, 0.75))))
    own = [np.clip(each.held.logits, -16, 16) for each in told[1:]]
    wanted = 0.25 * (own[0] + 0.5) + 0.75 * 0.5 * own[1]
    np.testing.assert_allclose(one.held.logits, wanted, rtol=1e-4, atol=1e-4)


def test_log_odds_of_a_class_that_was_not_kept(tmp_path: Path) -> None:
    """It may have been as likely as the least likely of those that were."""
    logits, unknown = some_logits(IMAGES, 300)
    unknown[5] = False
    calibration = some_calibration(300)
    table = written(tmp_path / "table", logits, unknown, calibration)
    found = table.log_odds(np.arange(IMAGES), CPU)
    for row in range(IMAGES):
        there = sorted((c for c in range(300) if unknown[row, c]), key=lambda c: -logits[row, c])
        kept, least = there[:KEPT], logits[row, there[KEPT - 1]] if there else 1e9
        for c in range(0, 300, 7):
            z = logits[row, c] if c in kept else least
            inside = calibration.slope * min(max(float(z.half() if there else z), -16), 16)
            if c in kept or unknown[row, c]:
                assert found[row, c] == pytest.approx(
                    inside + calibration.offset + calibration.shift[c], abs=1e-4
                )
    assert torch.isfinite(found).all()


# ---------------------------------------------------------------- epochs


def make_teacher(folder: Path, part: Part, epochs: int) -> tuple[Teacher, LabelStore]:
    held = hold_out(part.store, 0.4, seed=1)[1]
    teacher = Teacher(
        part.store,
        held,
        make_supply(Streamed, part).listed,
        folder,
        epochs=epochs,
        processes=Processes(),
        precision="fp32",
        counting=lambda: Seen(nothing, nothing),
    )
    return teacher, held


@pytest.mark.parametrize(
    ("epochs", "again", "release"),
    [
        (1, [], 0),
        (2, [1], 1),
        (3, [1, 2], 2),
        (4, [1, 2], 2),
        (5, [1, 3], 3),
        (12, [4, 8], 8),
        (30, [10, 20], 20),
    ],
)
def test_the_average_is_asked_after_each_third(
    tmp_path: Path, epochs: int, again: list[int], release: int
) -> None:
    teacher, _ = make_teacher(tmp_path, make_part(), epochs)
    assert teacher.again == again
    assert teacher.release == release


def test_the_loss_sees_the_labels_and_posteriors_of_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[tuple[float, HeldOut]] = []
    weigh = lambda *given: weights.append(given) or 2.5  # noqa: E731
    monkeypatch.setattr(teachers, "weight_of_present", weigh)
    part = make_part(bad=(4,))
    teacher, held = make_teacher(tmp_path / "tables", part, 6)
    assert not teacher.begun()
    calls: list[Told] = []

    def calibrated(told: Told, beside: Told | None) -> Calibration:
        assert beside is None
        assert not teacher.begun()  # what it writes beside is there before the table is
        calls.append(told)
        return some_calibration(6)

    first = make_supply(Streamed, part, "none").listed
    teacher.begin(Toy(seed=0), first, calibrated)  # type: ignore[arg-type]
    assert len(calls) == 1
    assert teacher.begun()
    assert weights == [(calls[0].shown, calls[0].held)]
    order = Order(COUNT, 4, 0)
    batches = list(make_supply(Resident, part).steps(order, 0, 6 * order.steps))
    free = part.store.dense(np.arange(COUNT)) == 0
    position, classes, _ = held.batch(np.arange(COUNT))
    free[position, classes] = True
    whole, less = part.store.dense(np.arange(COUNT)), part.store.dense(np.arange(COUNT))
    less[position, classes] = 0
    made = 0
    for batch in batches:
        epoch = batch.plan.epoch
        if batch.plan.step % order.steps == 0 and epoch:
            teacher.end_epoch(epoch, Toy(seed=epoch))  # type: ignore[arg-type]
            made = epoch if epoch in (2, 4) else made
            assert {path.name for path in (tmp_path / "tables").iterdir()} == {
                f"epoch-{each:04d}" for each in (0, 2, 4) if each <= made
            }
        states, told = teacher.view(batch)
        posterior = told["posterior"]
        assert states.dtype == torch.int8
        wanted = less if epoch < 4 else whole
        np.testing.assert_array_equal(states.numpy(), wanted[batch.there])
        table = Posteriors(tmp_path / "tables" / f"epoch-{made:04d}")
        assert torch.equal(posterior, table.dense(batch.there, CPU))
        assert told["alpha_pos"] == table.alpha_pos == 2.5
        assert (posterior > 0).numpy()[free[batch.there]].any()
        assert not posterior.numpy()[~free[batch.there]].any()
    assert made == 4
    early, late = (Posteriors(tmp_path / "tables" / f"epoch-000{n}").calibration for n in (0, 4))
    assert late.share.tolist() == early.share.tolist()
    assert late.offset == 0


def test_a_batch_of_an_earlier_epoch_has_the_table_of_then(tmp_path: Path) -> None:
    """As after a checkpoint from before the moving average was asked."""
    part = make_part()
    order = Order(COUNT, 4, 0)
    batches = list(make_supply(Streamed, part, "none").steps(order, 0, 2 * order.steps))

    def fresh() -> Teacher:
        return make_teacher(tmp_path, part, 2)[0]

    teacher = fresh()
    listed = make_supply(Streamed, part).listed
    teacher.begin(Toy(), listed, lambda *_: some_calibration(6))  # type: ignore[arg-type]
    before = [teacher.view(batch) for batch in batches[: order.steps]]
    teacher.end_epoch(1, Toy(seed=1))  # type: ignore[arg-type]
    teacher.view(batches[order.steps])
    for again in (teacher, fresh()):
        assert again.begun()
        for batch, views in zip(batches, before, strict=False):
            states, told = again.view(batch)
            assert torch.equal(states, views[0])
            assert torch.equal(told["posterior"], views[1]["posterior"])
    shutil.rmtree(tmp_path / "epoch-0001")
    with pytest.raises(StoreError, match=r"epoch-0001: .* is gone; start anew with --fresh"):
        fresh().view(batches[order.steps])


def test_the_head_that_counts_is_the_second_one() -> None:
    model = build_model("test_convnext", 5, weights=None, auxiliary=True, image_size=32).eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    counting = Counting(model).eval()
    with torch.inference_mode():
        found = counting(counting.normalise(images))
        ranks, counts = model.both(model.normalise(images))
    assert torch.equal(found, counts)
    assert not torch.equal(found, ranks)
