"""The schedule, the optimiser's groups and the moving average, against torch's own."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from partlabel.training.checkpoint import load_optimiser, optimiser_tensors
from partlabel.training.optim import MovingAverage, Update, make_optimiser, pace, set_pace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return out


@pytest.mark.parametrize("cycle", [True, False])
@pytest.mark.parametrize(("total", "warmup"), [(100, 0.2), (37, 0.3), (10, 0.25)])
def test_one_cycle_is_torchs(total: int, warmup: float, cycle: bool) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.AdamW([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        theirs, max_lr=2e-4, total_steps=total, pct_start=warmup, cycle_momentum=cycle
    )
    for step in range(total):
        now = pace(step, total, schedule="one_cycle", warmup=warmup, cycle_momentum=cycle)
        assert now.lr * 2e-4 == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        if cycle:
            assert now.momentum == pytest.approx(theirs.param_groups[0]["betas"][0], rel=1e-12)
        else:
            assert now.momentum is None
        theirs.step()
        if step < total - 1:
            scheduler.step()


def test_cosine_rises_and_falls_to_nothing_and_constant_stays() -> None:
    values = [
        pace(s, 100, schedule="cosine", warmup=0.1, cycle_momentum=True).lr for s in range(100)
    ]
    assert values.index(max(values)) in (9, 10)
    assert values[0] < 0.2
    assert values[-1] < 0.001
    assert all(a < b for a, b in pairwise(values[:10]))
    assert all(a > b for a, b in pairwise(values[10:]))
    assert {
        pace(s, 9, schedule="constant", warmup=0.1, cycle_momentum=True).lr for s in range(9)
    } == {1.0}


def test_vectors_do_not_decay_and_head_and_loss_have_rates_of_their_own() -> None:
    model, loss = Net(), nn.Linear(3, 3, bias=False)
    optimiser = make_optimiser(
        model, loss, name="adamw", lr=0.1, weight_decay=0.5, head_lr_factor=3.0
    )
    rates = {}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            rates[id(parameter)] = (group["weight_decay"], round(group["lr"], 6))
    expected = {
        model.body[0].weight: (0.5, 0.1),
        model.body[0].bias: (0.0, 0.1),
        model.body[1].weight: (0.0, 0.1),
        model.head.weight: (0.5, 0.3),
        model.head.bias: (0.0, 0.3),
        loss.weight: (0.0, 1.0),
    }
    for parameter, wanted in expected.items():
        assert rates[id(parameter)] == wanted
    set_pace(optimiser, pace(0, 100, schedule="one_cycle", warmup=0.2, cycle_momentum=True))
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.1 / 25)
    assert optimiser.param_groups[-1]["lr"] == pytest.approx(1.0 / 25)
    assert optimiser.param_groups[0]["betas"][0] == pytest.approx(0.95)


def test_adam_decays_in_the_gradient_and_adamw_beside_it() -> None:
    def after(name: str) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 2.0)
        optimiser = make_optimiser(model, nn.Module(), name=name, lr=0.1, weight_decay=0.5)
        model.weight.grad = torch.zeros_like(model.weight)
        optimiser.step()
        return float(model.weight.detach())

    assert after("adamw") == pytest.approx(2.0 * (1 - 0.1 * 0.5))
    assert after("adam") == pytest.approx(2.0 - 0.1)  # the decay is the whole gradient there


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_steps_by_lists_are_torchs(kind: type[torch.optim.Adam]) -> None:
    """To the bit, with a schedule and where a gradient is missing."""
    nets = [Net(), Net()]
    updates = []
    for by_lists, net in enumerate(nets):
        groups = [
            {"params": list(net.body.parameters()), "weight_decay": 0.1, "max_lr": 0.1},
            {"params": list(net.head.parameters()), "weight_decay": 0.0, "max_lr": 0.3},
        ]
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        updates.append(Update(kind(groups, fused=True), scaler, by_lists=bool(by_lists)))
    for step in range(9):
        torch.manual_seed(step)
        gradients = [torch.randn_like(parameter) for parameter in nets[0].parameters()]
        for net, update in zip(nets, updates, strict=True):
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            if step in (0, 4):
                net.head.bias.grad = None
            now = pace(step, 9, schedule="one_cycle", warmup=0.2, cycle_momentum=True)
            set_pace(update.optimiser, now)
            update()
        for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
            assert torch.equal(mine, theirs)
    saved = [optimiser_tensors(update.optimiser) for update in updates]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(value, saved[1][key]) for key, value in saved[0].items())
    assert float(saved[0]["0.step"]) == 9


@pytest.mark.parametrize("warmup", [True, False])
def test_the_average_is_the_formula(warmup: bool) -> None:
    model = Net()
    average = MovingAverage(model, decay=0.9, warmup=warmup)
    expected = copy.deepcopy(model.state_dict())
    for step in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        model(torch.randn(2, 3, 8, 8))  # moves the running statistics
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
            else:
                expected[name] = value.clone()
    for name, value in average.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_a_resumed_optimiser_has_the_layout_of_its_parameters() -> None:
    # A fused step on a GPU refuses moments that lie in memory otherwise than their parameter.
    def made() -> tuple[Net, torch.optim.Optimizer]:
        model = Net().to(memory_format=torch.channels_last)
        return model, make_optimiser(model, nn.Module(), name="adamw", lr=0.1, weight_decay=0.1)

    model, optimiser = made()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimiser.step()
    saved = {k: v.contiguous() for k, v in optimiser_tensors(optimiser).items()}
    other, resumed = made()
    load_optimiser(resumed, saved)
    for parameter in other.parameters():
        for name in ("exp_avg", "exp_avg_sq"):
            assert resumed.state[parameter][name].stride() == parameter.stride()
    before = [optimiser.state[p]["exp_avg"] for p in model.parameters()]
    after = [resumed.state[p]["exp_avg"] for p in other.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
