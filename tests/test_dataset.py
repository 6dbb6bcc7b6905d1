"""Which images each step takes, and that they come out the same whatever brings them."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partlabel.augment import Augment
from partlabel.errors import UsageError
from partlabel.images import ImageError, decode
from partlabel.training.dataset import LabelledImages, OnDevice, ahead, to_device, workers_for
from partlabel.training.order import Order, Plan, stand_in
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part
from partlabel.training.supply import Resident, Streamed, Supply, _refuse_too_large
from tests.conftest import store_from

SIZE, COUNT, BATCH, SEED = 16, 23, 4, 3
CPU = torch.device("cpu")

# Three workers are more than some machines have cores, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Bytes:
    """Images in memory; those of ``bad`` rows cannot be read, or are no images."""

    def __init__(self, bad: Sequence[int] = (), count: int = COUNT) -> None:
        from PIL import Image

        rng = np.random.default_rng(0)
        self.bad, self.files = set(bad), []
        for _ in range(count):
            file = io.BytesIO()
            pixels = rng.integers(0, 256, (5, 7, 3), np.uint8)
            Image.fromarray(pixels).resize((20, 18)).save(file, "PNG")
            self.files.append(file.getvalue())

    def read(self, row: int) -> bytes:
        if row in self.bad and row % 2:
            raise ImageError(f"{row}: cannot be read")
        return b"no image" if row in self.bad else self.files[row]

    def missing(self, rows: Sequence[int] | np.ndarray) -> list[int]:
        return [int(row) for row in rows if row in self.bad]


def make_part(*, bad: Sequence[int] = (), complete: bool = False, count: int = COUNT) -> Part:
    rng = np.random.default_rng(1)
    states = rng.integers(-1, 2, (count, 6)).astype(np.int8)
    states[2] = 0  # nothing is known of one
    return Part(store_from(states, complete=complete), Bytes(bad, count), "images")


def augmenting(name: str, *, seed: int = SEED) -> Augment:
    return Augment(name, seed=seed, size=SIZE)


def make_supply(kind: type[Any], part: Part, augment: str = "paper", *, workers: int = 0) -> Supply:
    made: Supply = kind(
        part, size=SIZE, augment=augmenting(augment), batch_size=5, workers=workers, device=CPU
    )
    return made


ORDER = Order(COUNT, BATCH, SEED)


def assert_same(ones: Iterable[OnDevice], others: Iterable[OnDevice], *, pixels: bool) -> None:
    """The same batches: plan, rows, labels and, if wanted, every byte of the images."""
    for one, other in zip(ones, others, strict=True):
        assert one.plan[:2] == other.plan[:2]
        np.testing.assert_array_equal(one.plan.rows, other.plan.rows)
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.states, other.states)
        assert one.images.shape == other.images.shape
        assert not pixels or torch.equal(one.images, other.images)


def rows_of(plans: Iterable[Plan]) -> np.ndarray:
    return np.concatenate([plan.rows for plan in plans])


# Which images


@given(
    extra=st.integers(0, 40),
    size=st.integers(1, 3),
    parts=st.sampled_from([1, 2, 4]),
    world=st.sampled_from([1, 2, 4]),
    start=st.integers(0, 12),
    seed=st.integers(0, 3),
)
def test_the_global_batches_are_the_same_for_any_processes_and_parts(
    extra: int, size: int, parts: int, world: int, start: int, seed: int
) -> None:
    batch = size * parts * world
    count, stop = batch + extra, start + 5
    alone = list(Order(count, batch, seed).plans(start, stop))
    ranks = [
        list(Order(count, batch, seed, parts=parts, rank=rank, world=world).plans(start, stop))
        for rank in range(world)
    ]
    for number, whole in enumerate(alone):
        pieces = [plans[number * parts + part] for part in range(parts) for plans in ranks]
        assert {plan[:2] for plan in pieces} == {whole[:2]}
        assert {len(plan.rows) for plan in pieces} == {size}
        np.testing.assert_array_equal(rows_of(pieces), whole.rows)
    assert len(ranks[0]) == parts * len(alone) == parts * 5


@pytest.mark.parametrize(("count", "batch"), [(24, 4), (23, 4), (7, 7), (9, 5), (1, 1)])
def test_every_image_once_an_epoch_but_those_that_fill_no_batch(count: int, batch: int) -> None:
    order = Order(count, batch, SEED)
    assert order.steps == count // batch
    seen: set[int] = set()
    for epoch in range(30):
        plans = list(order.plans(epoch * order.steps, (epoch + 1) * order.steps))
        assert {plan.epoch for plan in plans} == {epoch}
        assert [plan.step for plan in plans] == [epoch * order.steps + i for i in range(len(plans))]
        rows = rows_of(plans).tolist()
        assert len(set(rows)) == len(rows) == count // batch * batch
        np.testing.assert_array_equal(np.sort(order.shuffled(epoch)), np.arange(count))
        seen |= set(rows)
    assert seen == set(range(count))  # what is left over is not always the same


@pytest.mark.parametrize("start", [0, 1, 5, 6, 13, 20])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_start_in_mid_epoch_is_the_tail_of_the_whole(start: int, parts: int) -> None:
    order = Order(COUNT, BATCH, SEED, parts=parts)
    whole = list(order.plans(0, 20))
    tail = list(order.plans(start, 20))
    assert [plan[:2] for plan in tail] == [plan[:2] for plan in whole[start * parts :]]
    for one, other in zip(tail, whole[start * parts :], strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)


def test_epochs_and_seeds_differ_and_the_numbers_stay_what_they_are() -> None:
    orders = [tuple(Order(50, 5, seed).shuffled(epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    # Were this to change, no run of before could be resumed.
    assert Order(10, 5, 0).shuffled(0).tolist() == [6, 0, 5, 8, 9, 1, 2, 3, 7, 4]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 9, "parts": 2}, "9 cannot be cut evenly for 1 processes x 2 parts"),
        ({"batch_size": 6, "parts": 2, "world": 2}, "6 cannot .* for 2 processes x 2 parts"),
        ({"batch_size": 11}, "11 exceeds the 10 images"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Order(**{"count": 10, "seed": 0, **settings})


# How they get there


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("start", [0, 2, 8])
def test_workers_and_the_first_step_change_no_bit(workers: int, start: int) -> None:
    part = make_part(bad=[4])
    supply = make_supply(Streamed, part, workers=workers)
    whole = make_supply(Streamed, part)
    expected = list(whole.steps(ORDER, 0, 12))[start:]
    assert_same(supply.steps(ORDER, start, 12), expected, pixels=True)


@pytest.mark.parametrize("kind", [Streamed, Resident])
@pytest.mark.parametrize("augment", ["none", "flip", "paper"])
def test_a_batch_is_its_images_augmented_one_by_one(kind: type[Any], augment: str) -> None:
    part, augmentation = make_part(), augmenting(augment)
    for batch in make_supply(kind, part, augment).steps(ORDER, 3, 9):
        draws = augmentation.draw(batch.plan.epoch, batch.plan.rows)
        for i, row in enumerate(batch.plan.rows.tolist()):
            image = decode(part.source.read(row), SIZE)
            assert torch.equal(batch.images[i], augmentation.one(image, draws, i))
        assert batch.rows.tolist() == batch.plan.rows.tolist()
        assert batch.skipped == []


def test_augmentation_is_of_the_image_and_epoch_not_of_the_batch() -> None:
    """The same image in the same epoch looks the same, however batches are cut."""
    found: dict[int, dict[tuple[int, int], torch.Tensor]] = {}
    for size in (2, 11):
        order = Order(COUNT - 1, size, SEED)
        supply = make_supply(Streamed, make_part())
        found[size] = {
            (batch.plan.epoch, row): image
            for batch in supply.steps(order, 0, 2 * order.steps)
            for row, image in zip(batch.rows.tolist(), batch.images, strict=True)
        }
    assert found[2].keys() == found[11].keys()
    assert all(torch.equal(image, found[11][key]) for key, image in found[2].items())
    first, second = (torch.stack([found[2][epoch, row] for row in range(22)]) for epoch in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("augment", ["none", "flip", "crop", "paper"])
@pytest.mark.parametrize("bad", [(), (3, 4, COUNT - 1)])
def test_resident_is_streamed(augment: str, bad: Sequence[int]) -> None:
    part = make_part(bad=bad)
    one, two = (make_supply(kind, part, augment) for kind in (Streamed, Resident))
    # A crop is taken before the resize where images are streamed, after it where they are kept.
    assert_same(one.steps(ORDER, 2, 12), two.steps(ORDER, 2, 12), pixels=augment != "crop")
    rows = np.array([5, 0, 3, 22, 1, 4, 7])
    ones, twos = list(one.listed(rows)), list(two.listed(rows))
    for name in ("rows", "states", "images"):
        first, second = (torch.cat([getattr(b, name) for b in found]) for found in (ones, twos))
        assert torch.equal(first, second)


@pytest.mark.parametrize("augment", ["none", "flip", "crop", "paper"])
def test_what_is_left_to_the_device_is_what_workers_would_have_done(augment: str) -> None:
    part, made = make_part(bad=[6]), augmenting(augment)
    options: dict[str, Any] = {"size": SIZE, "augment": made, "replace": True}
    here = LabelledImages(part.store, part.source, **options)
    there = LabelledImages(part.store, part.source, on_device=True, **options)
    one = ahead(here.steps(ORDER, 0, 8, workers=0), part.store, CPU)
    two = ahead(there.steps(ORDER, 0, 8, workers=0), part.store, CPU, made)
    assert_same(one, two, pixels=True)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("kind", [Streamed, Resident])
def test_labels_on_the_device_are_those_of_the_store(kind: type[Any], complete: bool) -> None:
    part = make_part(complete=complete, bad=[8])
    supply = make_supply(kind, part)
    for batch in [*supply.steps(ORDER, 0, 6), *supply.listed(np.arange(COUNT))]:
        assert batch.states.dtype == torch.int8
        np.testing.assert_array_equal(batch.states.numpy(), part.store.dense(batch.rows.numpy()))


# Images that cannot be read


@pytest.mark.parametrize("kind", [Streamed, Resident])
@pytest.mark.parametrize("bad", [(3,), (3, 4, 5), (0, COUNT - 2, COUNT - 1)])
def test_an_unreadable_image_is_replaced_by_another(kind: type[Any], bad: Sequence[int]) -> None:
    part, augmentation = make_part(bad=bad), augmenting("paper")
    named: set[int] = set()
    for batch in make_supply(kind, part).steps(ORDER, 0, 4 * ORDER.steps):
        assert len(batch.rows) == BATCH
        draws = augmentation.draw(batch.plan.epoch, batch.plan.rows)
        for i, (wanted, row) in enumerate(zip(batch.plan.rows.tolist(), batch.rows, strict=True)):
            other = wanted
            while other in bad:
                other = stand_in(other, COUNT)
            assert int(row) == other
            image = decode(part.source.read(other), SIZE)
            assert torch.equal(batch.images[i], augmentation.one(image, draws, i))
        lost = set(batch.plan.rows.tolist()) & set(bad)
        assert lost <= {one.row for one in batch.skipped} <= set(bad)
        assert all(one.reason for one in batch.skipped)
        named |= {one.row for one in batch.skipped}
    assert named == set(bad)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Streamed, Resident])
def test_listed_leaves_unreadable_images_out(kind: type[Any], workers: int) -> None:
    bad = (0, 5, 6, 7, 8, 9, 22)  # a whole batch of five among them
    supply = make_supply(kind, make_part(bad=bad), workers=workers)
    found = list(supply.listed(np.arange(COUNT)))
    assert torch.cat([batch.rows for batch in found]).tolist() == sorted(
        set(range(COUNT)) - set(bad)
    )
    for batch in found:
        assert batch.images.shape == (len(batch.rows), 3, SIZE, SIZE)
        assert batch.images.dtype == torch.uint8
        assert batch.states.shape == (len(batch.rows), 6)
    plain = make_supply(kind, make_part(), "none")
    order = np.array([9, 1, 8])
    (batch,) = plain.listed(order)
    assert batch.rows.tolist() == order.tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hundred_unreadable_images_in_a_row_stop_in_one_plain_line(workers: int) -> None:
    part = make_part(bad=range(130), count=130)
    supply = make_supply(Streamed, part, workers=workers)
    with pytest.raises(ImageError, match=r"^100 images in a row cannot be read: ") as caught:
        list(supply.steps(Order(130, 13, SEED), 0, 10))
    assert "Traceback" not in str(caught.value)


UNFINISHED = """
from tests.test_dataset import ORDER, Streamed, make_part, make_supply
batches = make_supply(Streamed, make_part(), workers=1).steps(ORDER, 0, 12)
next(batches)
"""


@pytest.mark.slow
def test_a_program_ends_though_workers_have_more_to_read() -> None:
    """At the end multiprocessing sends SIGTERM to workers that are left, and waits for them."""
    command = [sys.executable, "-W", "ignore", "-c", UNFINISHED]
    subprocess.run(command, cwd=Path(__file__).parents[1], timeout=30, check=True)


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1618])
def test_stand_ins_come_through_all_images(count: int) -> None:
    row, seen = 0, set()
    for _ in range(count):
        seen.add(row)
        row = stand_in(row, count)
    assert seen == set(range(count))
    assert row == 0


def test_nothing_that_can_be_read_is_refused() -> None:
    with pytest.raises(UsageError, match="images: no image can be read: "):
        make_supply(Resident, make_part(bad=range(COUNT)))


# The rest


def test_resident_says_how_far_it_is_and_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    Resident(
        make_part(bad=[1]), size=SIZE, augment=None, batch_size=4, workers=0, device=CPU,
        progress=done.append,
    )  # fmt: skip
    assert sum(done) == COUNT - 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 << 30, 80 << 30))
    _refuse_too_large(6 << 30, torch.device("cuda"))
    with pytest.raises(UsageError, match=r"take 8\.0 GiB, cuda has 10\.0 GiB free; leave it out"):
        _refuse_too_large(8 << 30, torch.device("cuda"))


@pytest.mark.parametrize(
    ("device", "wanted", "local", "found"),
    [
        ("cpu", None, 1, 0),
        ("cpu", 5, 1, 5),
        ("cuda", 0, 1, 0),
        ("cuda", None, 1, 12),
        ("cuda", None, 4, 3),
        ("cuda", None, 24, 1),
    ],
)
def test_as_many_workers_as_there_are_cores(
    device: str, wanted: int | None, local: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(12)))
    here = Processes(local_world=local, device=torch.device(device))
    assert workers_for(here, wanted) == found


def test_a_batch_goes_to_the_device_as_it_is() -> None:
    part = make_part()
    data = LabelledImages(part.store, part.source, size=SIZE)
    loaded = data[Plan(0, 7, np.array([4, 2, 4]))]
    batch = to_device(loaded, part.store, CPU)
    assert (batch.plan.step, batch.rows.tolist()) == (7, [4, 2, 4])
    assert torch.equal(batch.images[0], batch.images[2])
    assert batch.states[1].tolist() == [0] * 6


def test_parts_and_processes_see_the_images_of_the_whole() -> None:
    """The bytes too: what rank 1 of 2 gets in part 0 of 2 is in the whole batch at that place."""
    part = make_part()
    (whole,) = make_supply(Streamed, part).steps(ORDER, 7, 8)
    found = []
    for number, rank in product(range(2), range(2)):
        order = Order(COUNT, BATCH, SEED, parts=2, rank=rank, world=2)
        found.append(list(make_supply(Streamed, part).steps(order, 7, 8))[number].images)
    assert torch.equal(torch.cat(found), whole.images)
    assert all(not torch.equal(a, b) for a, b in pairwise(found))
