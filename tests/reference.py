"""Every loss in plain Python floats, written from docs/losses.md and from nothing else.

A reference takes a batch of logits and states (lists of rows) and gives the value of
``reduction="sum"`` and its derivative by each logit. Where the loss of an entry depends only on its
own logit (given what is detached), it is written per image, as (value, slope) of each entry.

What is a constant in the gradient: the focus factor of the asymmetric family when ``detach_focus``,
every choice (top-k, prior, large losses, pseudo-labels), soft labels, role's other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[float]
States = Sequence[int]
Entry = tuple[float, float]  # value, and its derivative by the entry's own logit
NOTHING: Entry = (0.0, 0.0)


@dataclass
class Result:
    total: float  # what reduction="sum" gives
    grad: list[list[float]]  # of the total
    terms: list[list[float]] | None = None  # what reduction="none" gives, if entries are separate


Reference = Callable[..., Result]
REFERENCE: dict[str, Reference] = {}


def batch_loss(name: str) -> Callable[[Reference], Reference]:
    def register(function: Reference) -> Reference:
        REFERENCE[name] = function
        return function

    return register


def image_loss(name: str) -> Callable[[Callable[..., list[Entry]]], Callable[..., list[Entry]]]:
    def register(function: Callable[..., list[Entry]]) -> Callable[..., list[Entry]]:
        def over_batch(logits: Sequence[Row], states: Sequence[States], **params: Any) -> Result:
            return collect([function(z, y, **params) for z, y in zip(logits, states, strict=True)])

        REFERENCE[name] = over_batch
        return function

    return register


def collect(entries: list[list[Entry]]) -> Result:
    terms = [[value for value, _ in row] for row in entries]
    grad = [[slope for _, slope in row] for row in entries]
    return Result(math.fsum(v for row in terms for v in row), grad, terms)


# ---------------------------------------------------------------- pieces


def sigmoid(z: float) -> float:
    if z >= 0:
        return 1 / (1 + math.exp(-z))
    return math.exp(z) / (1 + math.exp(z))


def softplus(z: float) -> float:
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


def present(z: float) -> Entry:
    """-log p."""
    return softplus(-z), -sigmoid(-z)


def absent(z: float) -> Entry:
    """-log(1 - p)."""
    return softplus(z), sigmoid(z)


def scaled(entry: Entry, weight: float) -> Entry:
    return entry[0] * weight, entry[1] * weight


def added(one: Entry, other: Entry) -> Entry:
    return one[0] + other[0], one[1] + other[1]


def cross_entropy(z: float, state: int) -> Entry:
    """On known labels."""
    return present(z) if state == 1 else absent(z) if state == -1 else NOTHING


def focal_present(z: float, gamma: float) -> Entry:
    """(1-p)^gamma (-log p), differentiated throughout."""
    p, rest, cost = sigmoid(z), sigmoid(-z), softplus(-z)
    focus = rest**gamma
    return focus * cost, focus * (-rest - gamma * p * cost)


def focal_absent(z: float, gamma: float) -> Entry:
    """p^gamma (-log(1-p)), differentiated throughout."""
    p, rest, cost = sigmoid(z), sigmoid(-z), softplus(z)
    focus = p**gamma
    return focus * cost, focus * (p + gamma * rest * cost)


# ---------------------------------------------------------------- cross-entropy


@image_loss("ce")
def ce(z: Row, y: States, *, unknown: str = "ignore") -> list[Entry]:
    if unknown == "negative":
        y = [state or -1 for state in y]
    return [cross_entropy(a, b) for a, b in zip(z, y, strict=True)]


@image_loss("weighted_ce")
def weighted_ce(
    z: Row,
    y: States,
    *,
    kind: str = "durand",
    alpha: float = -4.45,
    beta: float = 5.45,
    gamma: float = 1.0,
) -> list[Entry]:
    known = sum(state != 0 for state in y)
    if not known:
        return [NOTHING for _ in z]
    if kind == "durand":
        weight = (alpha * (known / len(z)) ** gamma + beta) / len(z)
    else:
        weight = 1 + 1 / (1 + known)
    return [scaled(cross_entropy(a, b), weight) for a, b in zip(z, y, strict=True)]


@image_loss("smoothed_ce")
def smoothed_ce(
    z: Row,
    y: States,
    *,
    temperature: float = 5.0,
    distances: Sequence[Row] | None = None,
    max_known: int = 128,
) -> list[Entry]:
    assert max_known >= len(z), "which of the known labels are looked at is not specified"
    entries = []
    for c, (logit, state) in enumerate(zip(z, y, strict=True)):
        if state:
            entries.append(cross_entropy(logit, state))
            continue
        heat = temperature
        if distances is not None:
            plus = min((distances[c][k] for k, s in enumerate(y) if s == 1), default=1.0)
            minus = min((distances[c][k] for k, s in enumerate(y) if s == -1), default=1.0)
            heat = 1 + (temperature - 1) * minus / (plus + minus + 1e-6)
        value, slope = absent(logit / heat)
        entries.append((value, slope / heat))
    return entries


# ---------------------------------------------------------------- the asymmetric family


def asymmetric_present(z: float, gamma: float, detach: bool) -> Entry:
    if not detach:
        return focal_present(z, gamma)
    return scaled(present(z), sigmoid(-z) ** gamma)


def asymmetric_absent(z: float, gamma: float, clip: float, detach: bool) -> Entry:
    """q^gamma (-log(1-q)), q = max(p - clip, 0)."""
    p = sigmoid(z)
    if clip == 0:
        return scaled(absent(z), p**gamma) if detach else focal_absent(z, gamma)
    q = max(p - clip, 0.0)
    if q == 0:
        return NOTHING
    cost = -math.log(sigmoid(-z) + clip) if q > 0.5 else -math.log1p(-q)
    inner = p * sigmoid(-z)  # dq/dz
    focus = q**gamma
    slope = focus * inner / (sigmoid(-z) + clip)
    if not detach and gamma:
        slope += gamma * focus * (cost / q) * inner
    return focus * cost, slope


@image_loss("partial_asymmetric")
def partial_asymmetric(
    z: Row,
    y: States,
    *,
    gamma_pos: float = 0.0,
    gamma_neg: float = 1.0,
    gamma_unknown: float = 2.0,
    clip: float = 0.0,
    alpha_pos: float = 1.0,
    alpha_neg: float = 1.0,
    alpha_unknown: float = 1.0,
    detach_focus: bool = True,
    weights: Row | None = None,
) -> list[Entry]:
    """`weights`: of the unknown labels, by class; not a setting of the loss."""
    entries = []
    for c, (logit, state) in enumerate(zip(z, y, strict=True)):
        if state == 1:
            entries.append(scaled(asymmetric_present(logit, gamma_pos, detach_focus), alpha_pos))
        elif state == -1:
            entry = asymmetric_absent(logit, gamma_neg, clip, detach_focus)
            entries.append(scaled(entry, alpha_neg))
        else:
            entry = asymmetric_absent(logit, gamma_unknown, clip, detach_focus)
            weight = 1.0 if weights is None else weights[c]
            entries.append(scaled(entry, alpha_unknown * weight))
    return entries


@image_loss("asymmetric")
def asymmetric(
    z: Row,
    y: States,
    *,
    gamma_pos: float = 1.0,
    gamma_neg: float = 4.0,
    clip: float = 0.05,
    unknown: str = "negative",
    alpha_pos: float = 1.0,
    alpha_neg: float = 1.0,
    alpha_unknown: float = 1.0,
    detach_focus: bool = True,
) -> list[Entry]:
    return partial_asymmetric(
        z,
        y,
        gamma_pos=gamma_pos,
        gamma_neg=gamma_neg,
        gamma_unknown=gamma_neg,
        clip=clip,
        alpha_pos=alpha_pos,
        alpha_neg=alpha_neg,
        alpha_unknown=alpha_unknown if unknown == "negative" else 0.0,
        detach_focus=detach_focus,
    )


@batch_loss("selective")
def selective(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    top_k: int = 5,
    prior: Row | None = None,
    prior_threshold: float = 0.5,
    prior_mode: str = "hard",
    prior_alpha: float = 10.0,
    scope: str = "sample",
    **asymmetric: Any,
) -> Result:
    def cut(values: list[float], count: int) -> float:
        """Unknown labels at or above this logit are ignored."""
        if not values or not count:
            return math.inf
        return sorted(values, reverse=True)[min(count, len(values)) - 1]

    unknown = [
        [a for a, b in zip(z, y, strict=True) if b == 0]
        for z, y in zip(logits, states, strict=True)
    ]
    if scope == "sample":
        cuts = [cut(values, top_k) for values in unknown]
    else:
        cuts = [cut([a for row in unknown for a in row], top_k * len(logits))] * len(logits)

    entries = []
    for z, y, threshold in zip(logits, states, cuts, strict=True):
        weights = []
        for c, logit in enumerate(z):
            chance = 0.0 if prior is None else prior[c]
            if logit >= threshold:
                weights.append(0.0)
            elif prior_mode == "soft":
                weights.append(math.exp(-prior_alpha * chance))
            else:
                weights.append(0.0 if chance > prior_threshold else 1.0)
        entries.append(partial_asymmetric(z, y, weights=weights, **asymmetric))
    return collect(entries)


def papers_code(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    top_k: int,
    prior: Row | None = None,
    prior_threshold: float,
    gamma_pos: float,
    gamma_neg: float,
    gamma_unknown: float,
) -> float:
    """The algorithm of the paper's code step by step (spec A6 and B), clip 0, summed.

    Its label code is 1 present, 0 absent, -1 unknown, and it clamps probabilities at 1e-8.
    """
    images, classes = len(logits), len(logits[0])
    flat = [a for row in logits for a in row]
    targets = [{1: 1, -1: 0, 0: -1}[b] for row in states for b in row]
    p = [sigmoid(a) for a in flat]
    complement = [sigmoid(-a) for a in flat]
    weight = [1.0] * len(flat)
    if prior is not None:
        for i in range(len(flat)):
            if prior[i % classes] > prior_threshold:
                weight[i] = 0.0
        for i, target in enumerate(targets):
            if target != -1:  # annotated labels are restored
                weight[i] = 1.0
    # The unknown of the whole batch compete, those the prior has masked too.
    keys = [complement[i] if targets[i] == -1 else math.inf for i in range(len(flat))]
    order = sorted(range(len(flat)), key=keys.__getitem__)
    competing = sum(target == -1 for target in targets)
    for i in order[: min(top_k * images, competing)]:
        weight[i] = 0.0
    total = 0.0
    for i, target in enumerate(targets):
        if target == 1:
            total -= complement[i] ** gamma_pos * math.log(max(p[i], 1e-8))
        else:
            gamma = gamma_neg if target == 0 else gamma_unknown
            total -= weight[i] * p[i] ** gamma * math.log(max(complement[i], 1e-8))
    return total


# ---------------------------------------------------------------- unknown as negative


@image_loss("focal")
def focal(z: Row, y: States, *, gamma: float = 2.0, unknown: str = "negative") -> list[Entry]:
    entries = []
    for logit, state in zip(z, y, strict=True):
        if state == 1:
            entries.append(focal_present(logit, gamma))
        elif state == -1 or unknown == "negative":
            entries.append(focal_absent(logit, gamma))
        else:
            entries.append(NOTHING)
    return entries


@image_loss("hill")
def hill(
    z: Row, y: States, *, lambda_: float = 1.5, margin: float = 1.0, gamma: float = 2.0
) -> list[Entry]:
    entries = []
    for logit, state in zip(z, y, strict=True):
        p = sigmoid(logit)
        if state == 1:
            entries.append(focal_present(logit - margin, gamma))
        elif state == -1:
            entries.append(absent(logit))
        else:
            slope = (2 * lambda_ * p - 3 * p * p) * p * sigmoid(-logit)
            entries.append(((lambda_ - p) * p * p, slope))
    return entries


@image_loss("splc")
def splc(
    z: Row,
    y: States,
    *,
    threshold: float = 0.6,
    margin: float = 1.0,
    gamma: float = 2.0,
    start: int = 1,
    epoch: int = 0,
) -> list[Entry]:
    entries = []
    for logit, state in zip(z, y, strict=True):
        if state == 1:
            entries.append(focal_present(logit - margin, gamma))
        elif state == -1:
            entries.append(absent(logit))
        elif epoch >= start and sigmoid(logit) > threshold:
            entries.append(focal_present(logit, gamma))
        else:
            entries.append(focal_absent(logit, gamma))
    return entries


@batch_loss("large_loss")
def large_loss(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    variant: str = "reject",
    delta: float = 0.002,
    epoch: int = 0,
    corrected: frozenset[tuple[int, int]] = frozenset(),
) -> Result:
    """`corrected`: (position in the batch, class) that earlier epochs made present for good."""
    states = [
        [1 if (i, c) in corrected else b for c, b in enumerate(y)] for i, y in enumerate(states)
    ]
    size = sum(len(z) for z in logits)
    rounds = min(epoch, 1) if variant == "permanent" else epoch
    count = math.ceil(round(rounds * delta * size, 9))  # 3 * 0.1 * 10 is 3
    unknown = [
        (a, i, c) for i, z in enumerate(logits) for c, a in enumerate(z) if states[i][c] == 0
    ]
    # Ties at the threshold included, as in selective. Of two logits the larger costs more.
    threshold = sorted((a for a, _, _ in unknown), reverse=True)[:count][-1:] or [math.inf]
    largest = {(i, c) for a, i, c in unknown if a >= threshold[0]}
    entries: list[list[Entry]] = []
    for i, (z, y) in enumerate(zip(logits, states, strict=True)):
        entries.append([])
        for c, (logit, state) in enumerate(zip(z, y, strict=True)):
            if (i, c) not in largest:
                entries[-1].append(cross_entropy(logit, state or -1))
            else:
                entries[-1].append(NOTHING if variant == "reject" else present(logit))
    return collect(entries)


@image_loss("wan")
def wan(z: Row, y: States) -> list[Entry]:
    return [
        cross_entropy(a, b) if b else scaled(absent(a), 1 / max(len(z) - 1, 1))
        for a, b in zip(z, y, strict=True)
    ]


@image_loss("label_smoothing")
def label_smoothing(z: Row, y: States, *, epsilon: float = 0.1) -> list[Entry]:
    entries = []
    for logit, state in zip(z, y, strict=True):
        plus, minus = present(logit), absent(logit)
        if state == 1:
            entries.append(added(scaled(plus, 1 - epsilon), scaled(minus, epsilon)))
        elif state == 0:
            entries.append(added(scaled(minus, 1 - epsilon), scaled(plus, epsilon)))
        else:
            entries.append(minus)
    return entries


# ---------------------------------------------------------------- unknown as unknown


@batch_loss("entropy_max")
def entropy_max(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    alpha: float = 0.1,
    beta: float = 0.9,
    soft: dict[tuple[int, int], float] | None = None,
    **_schedule: Any,
) -> Result:
    """`soft`: the soft labels so far, by (position in the batch, class)."""
    entries: list[list[Entry]] = []
    for i, (z, y) in enumerate(zip(logits, states, strict=True)):
        entries.append([])
        for c, (logit, state) in enumerate(zip(z, y, strict=True)):
            p, rest = sigmoid(logit), sigmoid(-logit)
            if state:
                entry = cross_entropy(logit, state)
            elif soft and (i, c) in soft:
                s = soft[i, c]
                entry = scaled(added(scaled(present(logit), s), scaled(absent(logit), 1 - s)), beta)
            else:
                entropy = p * softplus(-logit) + rest * softplus(logit)
                entry = -alpha * entropy, alpha * logit * p * rest
            entries[-1].append(entry)
    return collect(entries)


def count_penalty(logits: Sequence[Row], expected: float) -> tuple[float, list[list[float]]]:
    """EPR: (mean over images of the sum of p - expected)^2 / C, and its gradient."""
    images, classes = len(logits), len(logits[0])
    gap = math.fsum(sigmoid(a) for z in logits for a in z) / images - expected
    grad = [[2 * gap / classes / images * sigmoid(a) * sigmoid(-a) for a in z] for z in logits]
    return gap * gap / classes, grad


@batch_loss("expected_positive")
def expected_positive(
    logits: Sequence[Row], states: Sequence[States], *, expected: float = 2.9
) -> Result:
    images = len(logits)
    known = collect([ce(z, y) for z, y in zip(logits, states, strict=True)])
    penalty, slopes = count_penalty(logits, expected)
    grad = [
        [a + images * b for a, b in zip(one, two, strict=True)]
        for one, two in zip(known.grad, slopes, strict=True)
    ]
    return Result(known.total + images * penalty, grad)


@batch_loss("role")
def role(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    estimates: Sequence[Row],
    expected: float = 2.9,
    **_table: Any,
) -> Result:
    """`estimates`: g of the rows of this batch; those of known labels are replaced."""
    fixed = {1: math.log(0.995 / 0.005), -1: math.log(0.005 / 0.995)}
    guess = [
        [fixed.get(b, a) for a, b in zip(g, y, strict=True)]
        for g, y in zip(estimates, states, strict=True)
    ]
    one = role_side(logits, guess, states, expected)
    other = role_side(guess, logits, states, expected)
    return Result(one.total + other.total, one.grad)


def role_estimates_gradient(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    estimates: Sequence[Row],
    expected: float = 2.9,
    **_table: Any,
) -> list[list[float]]:
    """Of the total by g: nothing on known labels, which are fixed."""
    fixed = {1: math.log(0.995 / 0.005), -1: math.log(0.005 / 0.995)}
    guess = [
        [fixed.get(b, a) for a, b in zip(g, y, strict=True)]
        for g, y in zip(estimates, states, strict=True)
    ]
    grad = role_side(guess, logits, states, expected).grad
    return [
        [0.0 if b else a for a, b in zip(row, y, strict=True)]
        for row, y in zip(grad, states, strict=True)
    ]


def role_side(
    side: Sequence[Row], other: Sequence[Row], states: Sequence[States], expected: float
) -> Result:
    images = len(side)
    penalty, slopes = count_penalty(side, expected)
    total, grad = images * penalty / 2, []
    for f, o, y, row in zip(side, other, states, slopes, strict=True):
        grad.append([images * slope / 2 for slope in row])
        for c, state in enumerate(y):
            q = sigmoid(o[c])
            against = added(scaled(present(f[c]), q), scaled(absent(f[c]), 1 - q))
            value, slope = added(cross_entropy(f[c], state), against)
            total += value / 2
            grad[-1][c] += slope / 2
    return Result(total, grad)


@batch_loss("two_way")
def two_way(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    temperature_pos: float = 4.0,
    temperature_neg: float = 1.0,
    unknown: str = "negative",
) -> Result:
    """The sum over images of a mean over images and classes: B times that mean."""
    images, classes = len(logits), len(logits[0])
    if unknown == "negative":
        states = [[state or -1 for state in y] for y in states]
    lines = [[(i, c) for c in range(classes)] for i in range(images)]
    columns = [[(i, c) for i in range(images)] for c in range(classes)]
    total, grad = 0.0, [[0.0] * classes for _ in range(images)]
    for groups in (lines, columns):
        groups = [g for g in groups if any(states[i][c] == 1 for i, c in g)]
        for group in groups:
            plus = [(i, c) for i, c in group if states[i][c] == 1]
            minus = [(i, c) for i, c in group if states[i][c] == -1]
            if not minus:
                continue  # softplus(-inf)
            up, ups = log_sum_exp([logits[i][c] / temperature_neg for i, c in minus])
            down, downs = log_sum_exp([-logits[i][c] / temperature_pos for i, c in plus])
            inner = temperature_neg * up + temperature_pos * down
            total += softplus(inner) * images / len(groups)
            slope = sigmoid(inner) * images / len(groups)
            for (i, c), share in zip(minus, ups, strict=True):
                grad[i][c] += slope * share
            for (i, c), share in zip(plus, downs, strict=True):
                grad[i][c] -= slope * share
    return Result(total, grad)


def log_sum_exp(values: list[float]) -> tuple[float, list[float]]:
    """And the softmax, its gradient."""
    top = max(values)
    powers = [math.exp(a - top) for a in values]
    total = math.fsum(powers)
    return top + math.log(total), [a / total for a in powers]


@image_loss("pseudo_label")
def pseudo_label(
    z: Row,
    y: States,
    *,
    present_above: float = 0.95,
    absent_below: float = 0.05,
    start: int = 1,
    epoch: int = 0,
) -> list[Entry]:
    entries = []
    for logit, state in zip(z, y, strict=True):
        p = sigmoid(logit)
        if state == 0 and epoch >= start:
            state = 1 if p >= present_above else -1 if p <= absent_below else 0
        entries.append(cross_entropy(logit, state))
    return entries


@batch_loss("auto")
def auto(
    logits: Sequence[Row],
    states: Sequence[States],
    *,
    gamma_neg: float = 1.0,
    gamma_unknown: float = 0.5,
    alpha_pos: float = 1.0,
    posterior: Sequence[Row] | None = None,
) -> Result:
    """`posterior`: how probably each label is present; none: what is unknown is absent."""
    entries: list[list[Entry]] = []
    for i, (z, y) in enumerate(zip(logits, states, strict=True)):
        entries.append([])
        for c, (logit, state) in enumerate(zip(z, y, strict=True)):
            q = 0.0 if posterior is None else posterior[i][c]
            if state:
                q = 1.0 if state == 1 else 0.0
            focus = sigmoid(logit) ** (gamma_neg if state else gamma_unknown)
            entry = added(scaled(present(logit), q), scaled(absent(logit), (1 - q) * focus))
            entries[-1].append(scaled(entry, alpha_pos) if state == 1 else entry)
    return collect(entries)


# ---------------------------------------------------------------- settings to try

# Exact in float32 and float16, so that how a loss stores them does not matter. Cut by `fitted`.
PRIOR = [0.0, 0.625, 0.0625, 0.5, 0.375, 1.0, 0.03125, 0.5625, 0.25, 0.75, 0.125, 0.4375]
DISTANCES = [
    [0.0 if i == k else ((i * 7 + k * 7 + (i * k) % 5 * 3) % 31 + 1) / 32 for k in range(12)]
    for i in range(12)
]
MAX_IMAGES, MAX_CLASSES = 8, 12  # of a batch the cases can be fitted to
# Many are 0, some 1, the others between; exact in float16 too.
POSTERIOR = [
    [max((7 * i + 5 * c + 3 * i * c) % 25 - 8, 0) / 16 for c in range(MAX_CLASSES)]
    for i in range(MAX_IMAGES)
]
CALL = {"epoch", "index", "posterior"}  # keywords of the call, not of build_loss

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ce", {}),
    ("ce", {"unknown": "negative"}),
    ("weighted_ce", {}),
    ("weighted_ce", {"alpha": 1.0, "beta": 0.0, "gamma": -1.0}),
    ("weighted_ce", {"alpha": -2.0, "beta": 3.0, "gamma": 0.5}),
    ("weighted_ce", {"kind": "csl"}),
    ("smoothed_ce", {}),
    ("smoothed_ce", {"temperature": 1.0}),
    ("smoothed_ce", {"temperature": 2.5, "distances": DISTANCES}),
    ("smoothed_ce", {"temperature": 10.0, "distances": DISTANCES, "max_known": 12}),
    ("partial_asymmetric", {}),
    ("partial_asymmetric", {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 7}),
    ("partial_asymmetric", {"gamma_pos": 0, "gamma_neg": 0, "gamma_unknown": 0}),
    ("partial_asymmetric", {"gamma_pos": 0.5, "gamma_neg": 1.5, "gamma_unknown": 2.5}),
    (
        "partial_asymmetric",
        {"gamma_pos": 0.5, "gamma_neg": 0.3, "gamma_unknown": 0.7, "detach_focus": False},
    ),
    (
        "partial_asymmetric",
        {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 4, "detach_focus": False},
    ),
    (
        "partial_asymmetric",
        {"gamma_pos": 2, "gamma_neg": 0.5, "gamma_unknown": 1.5, "clip": 0.1},
    ),
    (
        "partial_asymmetric",
        {"gamma_neg": 0.5, "gamma_unknown": 1.5, "clip": 0.1, "detach_focus": False},
    ),
    (
        "partial_asymmetric",
        {"gamma_neg": 0, "gamma_unknown": 0, "clip": 0.25, "detach_focus": False},
    ),
    ("partial_asymmetric", {"alpha_pos": 2.0, "alpha_neg": 0.5, "alpha_unknown": 0.25}),
    ("partial_asymmetric", {"alpha_unknown": 0.0, "gamma_pos": 3}),
    ("asymmetric", {}),
    ("asymmetric", {"unknown": "ignore"}),
    ("asymmetric", {"gamma_pos": 0, "gamma_neg": 4, "detach_focus": False}),
    ("asymmetric", {"gamma_pos": 0.4, "gamma_neg": 1.7, "clip": 0.0, "detach_focus": False}),
    ("asymmetric", {"gamma_pos": 0.4, "gamma_neg": 0.6, "clip": 0.05, "detach_focus": False}),
    ("asymmetric", {"gamma_pos": 0, "gamma_neg": 0, "clip": 0.0}),
    ("asymmetric", {"alpha_pos": 0.5, "alpha_neg": 2.0, "alpha_unknown": 3.0}),
    ("selective", {}),
    ("selective", {"top_k": 0}),
    ("selective", {"top_k": 1, "clip": 0.05}),
    ("selective", {"top_k": 3, "detach_focus": False, "gamma_pos": 1, "gamma_unknown": 2.5}),
    ("selective", {"top_k": 10**6}),
    ("selective", {"top_k": 0, "prior": PRIOR}),
    ("selective", {"top_k": 1, "prior": PRIOR, "prior_threshold": 0.05}),
    ("selective", {"top_k": 3, "prior": PRIOR, "prior_threshold": 1.0}),
    ("selective", {"top_k": 2, "prior": PRIOR, "prior_mode": "soft"}),
    (
        "selective",
        {
            "top_k": 0,
            "prior": PRIOR,
            "prior_mode": "soft",
            "prior_alpha": 2.0,
            "alpha_unknown": 0.5,
        },
    ),
    (
        "selective",
        {
            "top_k": 1,
            "prior": PRIOR,
            "gamma_pos": 0,
            "gamma_neg": 3,
            "gamma_unknown": 4,
            "alpha_pos": 2,
            "alpha_neg": 0.5,
        },
    ),
    ("selective", {"top_k": 1, "scope": "batch"}),
    ("selective", {"top_k": 2, "scope": "batch", "prior": PRIOR, "prior_threshold": 0.25}),
    ("selective", {"top_k": 1, "scope": "batch", "prior": PRIOR, "prior_mode": "soft"}),
    ("selective", {"top_k": 0, "scope": "batch", "prior": PRIOR}),
    ("selective", {"top_k": 10**6, "scope": "batch"}),
    ("focal", {}),
    ("focal", {"unknown": "ignore"}),
    ("focal", {"gamma": 0}),
    ("focal", {"gamma": 0.5}),
    ("hill", {}),
    ("hill", {"lambda_": 2.0, "margin": 0.0, "gamma": 0.5}),
    ("hill", {"gamma": 0}),
    ("splc", {}),
    ("splc", {"epoch": 1}),
    ("splc", {"epoch": 3, "threshold": 0.25, "margin": 0.5, "gamma": 1.5, "start": 3}),
    ("splc", {"epoch": 1, "gamma": 0, "start": 0, "threshold": 0.9}),
    ("large_loss", {}),
    ("large_loss", {"epoch": 1}),
    ("large_loss", {"epoch": 3, "delta": 0.0625}),
    ("large_loss", {"epoch": 2, "delta": 0.125, "variant": "correct"}),
    ("large_loss", {"epoch": 9, "delta": 0.5, "variant": "correct"}),
    ("large_loss", {"epoch": 9, "delta": 0.5}),
    ("large_loss", {"epoch": 0, "delta": 0.25, "variant": "permanent", "index": None}),
    ("large_loss", {"epoch": 3, "delta": 0.125, "variant": "permanent", "index": None}),
    ("wan", {}),
    ("label_smoothing", {}),
    ("label_smoothing", {"epsilon": 0.0}),
    ("label_smoothing", {"epsilon": 0.3}),
    ("entropy_max", {}),
    ("entropy_max", {"alpha": 0.0}),
    ("entropy_max", {"alpha": 1.5, "epoch": 7}),
    (
        "entropy_max",
        {"num_images": 8, "num_classes": None, "epoch": 0, "index": None, "alpha": 0.2},
    ),
    ("expected_positive", {}),
    ("expected_positive", {"expected": 0.5}),
    ("role", {"num_images": 8, "num_classes": None, "index": None}),
    ("role", {"num_images": 8, "num_classes": None, "index": None, "expected": 1.5}),
    ("two_way", {}),
    ("two_way", {"unknown": "ignore"}),
    ("two_way", {"temperature_pos": 1.0, "temperature_neg": 2.0}),
    ("pseudo_label", {}),
    ("pseudo_label", {"epoch": 1}),
    ("pseudo_label", {"epoch": 2, "start": 2, "present_above": 0.6, "absent_below": 0.4}),
    ("pseudo_label", {"epoch": 1, "start": 2}),
    ("auto", {}),
    ("auto", {"posterior": POSTERIOR}),
    ("auto", {"posterior": POSTERIOR, "gamma_neg": 0, "gamma_unknown": 0}),
    ("auto", {"posterior": POSTERIOR, "gamma_neg": 0.5, "gamma_unknown": 2}),
    ("auto", {"posterior": POSTERIOR, "gamma_neg": 2, "gamma_unknown": 0.5}),
    ("auto", {"gamma_neg": 2, "gamma_unknown": 0}),
    ("auto", {"posterior": POSTERIOR, "alpha_pos": 2.5}),
]


def fitted(params: dict[str, Any], images: int, classes: int) -> dict[str, Any]:
    """The parameters of a case for a batch of this size."""
    done = dict(params)
    if "prior" in done:
        done["prior"] = PRIOR[:classes]
    if "distances" in done:
        done["distances"] = [row[:classes] for row in DISTANCES[:classes]]
    if "num_classes" in done:
        done["num_classes"] = classes
    if "posterior" in done:
        done["posterior"] = [row[:classes] for row in POSTERIOR[:images]]
    if "index" in done:
        done["index"] = [(3 * i + 1) % MAX_IMAGES for i in range(images)]
    return done
