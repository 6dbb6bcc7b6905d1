"""The paper's illustration: what Ignore, Negative and Selective make of the same few labels.

Points of a plane stand for images, discs for classes. Few labels are known; a small network is
trained with each of our losses, and the boundary of one class is drawn. All gammas are 0, so that
the losses differ in nothing but what they do with unknown labels.

The draw of points that is shown was picked since it shows the effect; DRAWS says how often that is
so, and the page repeats it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from partlabel.losses import build_loss
from partlabel.report.drawing import BLUE, GRID, INK, MUTED, RED, SKY, THIRD, Chart, Studio
from partlabel.report.wording import NARROW

_DISCS = ((0.36, 0.60, 0.30), (0.78, 0.30, 0.20), (0.80, 0.78, 0.17))
_POINTS, _POSITIVES, _NEGATIVES = 220, 16, 9
_STEPS, _WIDTH = 350, 48
_MESH = 90
DRAWS = {"ignore": 81, "negative": 77, "selective": 84}
"""Percent of unknown labels right, the mean over the draws 0 to 19 (a slow test counts again)."""
ABOVE_IGNORE = 12
"""Of those 20 draws, in how many Selective has more right than Ignore."""
MODES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ignore": ("Ignore", "ce", {"unknown": "ignore"}),
    "negative": ("Negative", "ce", {"unknown": "negative"}),
    "selective": (
        "Selective",
        "selective",
        {"top_k": 1, "gamma_pos": 0, "gamma_neg": 0, "gamma_unknown": 0},
    ),
}
_SAYS = {
    "ignore": "Unknown labels cost nothing. Where no absent label is known, nothing holds the "
    "boundary back.",
    "negative": "Unknown labels count as absent. Those that are really present push the boundary "
    "inwards.",
    "selective": "Unknown labels that are likely present are ignored, the others count as absent.",
}

Floats = npt.NDArray[np.float32]


class Toy(NamedTuple):
    """Points, what is true of them, and what is known."""

    points: Floats
    truth: npt.NDArray[np.bool_]
    states: npt.NDArray[np.int8]


class Boundary(NamedTuple):
    """What a network makes of the first class."""

    scores: Floats
    """(points,) probabilities."""
    mesh: Floats
    """(_MESH, _MESH) probabilities over the plane."""


def make_toy(seed: int = 2) -> Toy:
    """The same points every time."""
    rng = np.random.default_rng(seed)
    points = rng.random((_POINTS, 2), np.float32)
    truth = np.stack([np.hypot(points[:, 0] - x, points[:, 1] - y) < r for x, y, r in _DISCS], 1)
    states = np.zeros(truth.shape, np.int8)
    for which in range(truth.shape[1]):
        for value, number in ((True, _POSITIVES), (False, _NEGATIVES)):
            rows = np.flatnonzero(truth[:, which] == value)
            some = rng.choice(rows, min(number, len(rows) // 3), replace=False)
            states[some, which] = 1 if value else -1
    return Toy(points, truth, states)


def learn(toy: Toy, mode: str, seed: int = 0) -> Boundary:
    """Train a network with one of the losses."""
    _, name, params = MODES[mode]
    loss = build_loss(name, **params)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, len(_DISCS)))
    points, states = _features(toy.points), torch.from_numpy(toy.states)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03, weight_decay=3e-4)
    for _ in range(_STEPS):
        optimiser.zero_grad()
        loss(model(points), states).backward()
        optimiser.step()
    axis = np.linspace(0, 1, _MESH, dtype=np.float32)
    mesh = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    with torch.inference_mode():
        scores = model(points)[:, 0].sigmoid().numpy()
        whole = model(_features(mesh))[:, 0].sigmoid().numpy().reshape(_MESH, _MESH)
    return Boundary(scores, whole)


def _features(points: Floats) -> Tensor:
    return (torch.from_numpy(points) - 0.5) * 4


def draw_boundaries(studio: Studio) -> list[Chart]:
    """The three panels."""
    return [_panel(studio, mode) for mode in MODES]


def accuracy(toy: Toy, found: Boundary) -> float:
    """The share of unknown labels of the first class that the model has right."""
    unknown = toy.states[:, 0] == 0
    return float(((found.scores >= 0.5) == toy.truth[:, 0])[unknown].mean())


@lru_cache(maxsize=1)
def _learnt() -> tuple[Toy, dict[str, Boundary]]:
    """The same for every report, and it takes a second."""
    toy = make_toy()
    return toy, {mode: learn(toy, mode) for mode in MODES}


def _panel(studio: Studio, mode: str) -> Chart:
    title = MODES[mode][0]
    toy, every = _learnt()
    name, found = f"boundaries-{mode}", every[mode]
    right = accuracy(toy, found)
    with studio.style(name):
        draft = studio.draft(THIRD, THIRD - 26)
        axes = draft.axes
        axis = np.linspace(0, 1, _MESH)
        axes.contourf(axis, axis, found.mesh, levels=[0.5, 1.01], colors=[SKY], alpha=0.28)
        axes.contour(axis, axis, found.mesh, levels=[0.5], colors=[BLUE], linewidths=1.8)
        angle = np.linspace(0, 2 * np.pi, 120)
        x, y, r = _DISCS[0]
        axes.plot(x + r * np.cos(angle), y + r * np.sin(angle), color=INK, lw=0.9, ls=(0, (4, 3)))
        states, truth = toy.states[:, 0], toy.truth[:, 0]
        for chosen, style in (
            ((states == 0) & ~truth, {"marker": ".", "s": 9, "color": MUTED, "alpha": 0.65}),
            (
                (states == 0) & truth,
                {"marker": "o", "s": 13, "facecolor": "none", "edgecolor": BLUE, "lw": 0.9},
            ),
            (states > 0, {"marker": "o", "s": 34, "color": BLUE}),
            (states < 0, {"marker": "X", "s": 36, "color": RED, "lw": 0}),
        ):
            axes.scatter(*toy.points[chosen].T, **style)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=GRID)
        svg = studio.save(
            draft,
            name,
            ("x", "y", "known", "present", "probability"),
            zip(*toy.points.T, states, truth.astype(int), found.scores, strict=True),
        )
    caption = (
        f"{_SAYS[mode]} It has {100 * right:.0f}{NARROW}% of the unknown labels of this draw right."
    )
    return Chart(
        name=name, title=title, caption=caption, svg=svg, width=THIRD,
        alt=f"Points of a plane and the boundary of one class, learnt with {title}",
    )  # fmt: skip
