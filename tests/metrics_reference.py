"""The metrics in plain Python, slow and obvious, written from their description alone.

Everything works on a list of annotated pairs. A pair without an image is never a duplicate of
another one, which is also how an image drawn twice by the bootstrap counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

NAN = math.nan
TINY = 1e-8  # in the denominator of ties="reference"


class Pair(NamedTuple):
    score: float
    label: int  # the class
    state: int  # +1 or -1
    image: int | None = None
    top: bool = True  # among the top_k scores of its image

    @property
    def positive(self) -> bool:
        return self.state == 1


def pairs_of(
    scores: Sequence[Sequence[float]],
    states: Sequence[Sequence[int]],
    images: Iterable[int | None] | None = None,
    *,
    top_k: int | None = None,
) -> list[Pair]:
    """The annotated pairs of dense rows; ties at the k-th score are all in the top."""
    found = []
    for row, (line, known) in enumerate(zip(scores, states, strict=True)):
        image = None if images is None else list(images)[row]
        for label, (score, state) in enumerate(zip(line, known, strict=True)):
            if state != 0:
                better = sum(other > score for other in line)
                found.append(Pair(score, label, state, image, top_k is None or better < top_k))
    return found


def counted_once(pairs: Sequence[Pair]) -> list[Pair]:
    """Of the same image and class, the pair with the highest score."""
    alone = [pair for pair in pairs if pair.image is None]
    best: dict[tuple[int, int], Pair] = {}
    for pair in pairs:
        if pair.image is not None:
            key = (pair.image, pair.label)
            if key not in best or pair.score > best[key].score:
                best[key] = pair
    return alone + list(best.values())


# ---------------------------------------------------------------- average precision


def grouped_ap(pairs: Sequence[Pair]) -> float:
    """Down the distinct scores: what each adds to recall, times the precision there."""
    total = sum(pair.positive for pair in pairs)
    terms, before = [], 0
    for threshold in sorted({pair.score for pair in pairs}, reverse=True):
        found = [pair.positive for pair in pairs if pair.score >= threshold]
        terms.append((sum(found) - before) / total * (sum(found) / len(found)) if total else 0.0)
        before = sum(found)
    return math.fsum(terms)


def reference_ap(pairs: Sequence[Pair]) -> float:
    """Every pair has a rank of its own; among equal scores the larger image comes first."""
    assert all(pair.image is not None for pair in pairs)
    ranked = sorted(pairs, key=lambda pair: (pair.score, pair.image), reverse=True)
    terms, found = [], 0
    for rank, pair in enumerate(ranked, start=1):
        if pair.positive:
            found += 1
            terms.append(found / rank)
    return math.fsum(terms) / (found + TINY)


AP = {"grouped": grouped_ap, "reference": reference_ap}


@dataclass
class Result:
    per_class: list[float]
    map_c: float
    map_o: float
    n_valid: int
    no_label: int
    no_positive: int
    no_negative: int
    positives: list[int]
    negatives: list[int]

    def groups(self, groups: Mapping[str, Iterable[int]]) -> dict[str, tuple[float, int]]:
        """Mean AP and number of scored classes of each."""
        done = {}
        for name, chosen in groups.items():
            scored = [self.per_class[c] for c in chosen if not math.isnan(self.per_class[c])]
            done[name] = (mean(scored), len(scored))
        return done


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else NAN


def by_class(pairs: Sequence[Pair], num_classes: int) -> list[list[Pair]]:
    return [[pair for pair in pairs if pair.label == c] for c in range(num_classes)]


def evaluate(
    pairs: Sequence[Pair], num_classes: int, *, ties: str = "grouped", policy: str = "drop"
) -> Result:
    entries = by_class(counted_once(pairs), num_classes)
    positives = [sum(pair.positive for pair in own) for own in entries]
    negatives = [sum(not pair.positive for pair in own) for own in entries]
    counts = list(zip(positives, negatives, strict=True))
    per_class = []
    for own, (pos, neg) in zip(entries, counts, strict=True):
        defined = policy == "zero" or (pos > 0 and neg > 0)
        per_class.append(AP[ties](own) if defined else NAN)
    scored = [(ap, pos) for ap, pos in zip(per_class, positives, strict=True) if not math.isnan(ap)]
    weight = sum(pos for _, pos in scored)
    return Result(
        per_class=per_class,
        map_c=mean([ap for ap, _ in scored]),
        map_o=math.fsum(ap * pos for ap, pos in scored) / weight if weight else NAN,
        n_valid=len(scored),
        no_label=sum(pos == neg == 0 for pos, neg in counts),
        no_positive=sum(pos == 0 and neg > 0 for pos, neg in counts),
        no_negative=sum(pos > 0 and neg == 0 for pos, neg in counts),
        positives=positives,
        negatives=negatives,
    )


def drawn(pairs: Sequence[Pair], images: Iterable[int]) -> list[Pair]:
    """A bootstrap replicate: the pairs of an image as often as the image was drawn."""
    return [
        pair._replace(image=None)
        for image in images
        for pair in counted_once(pairs)
        if pair.image == image
    ]


def cut_in_groups(counts: Sequence[int], parts: int) -> dict[str, list[int]]:
    """Nearly equal parts, the larger ones first; the classes with the fewest in G1."""
    order = sorted(range(len(counts)), key=lambda c: (counts[c], c))
    groups, start = {}, 0
    for part in range(parts):
        size = len(order) // parts + (part < len(order) % parts)
        groups[f"G{part + 1}"] = order[start : start + size]
        start += size
    return groups


# ---------------------------------------------------------------- at thresholds


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def harmonic(a: float, b: float) -> float:
    return ratio(2 * a * b, a + b)


@dataclass
class AtThreshold:
    tp: list[int]
    fp: list[int]
    fn: list[int]
    valid: list[int]  # classes with a positive and a negative: those of the class means
    precision: list[float]
    recall: list[float]
    f1: list[float]
    cp: float
    cr: float
    cf1: float
    cf1_mean: float
    op: float
    or_: float
    of1: float


def precision_recall(
    pairs: Sequence[Pair],
    num_classes: int,
    thresholds: Sequence[float] | None,
    *,
    top_k: bool = False,
) -> AtThreshold:
    def predicted(pair: Pair) -> bool:
        above = thresholds is None or pair.score >= thresholds[pair.label]
        return above and (pair.top or not top_k)

    entries = by_class(counted_once(pairs), num_classes)
    tp = [sum(p.positive and predicted(p) for p in own) for own in entries]
    fp = [sum(not p.positive and predicted(p) for p in own) for own in entries]
    fn = [sum(p.positive and not predicted(p) for p in own) for own in entries]
    valid = [c for c, own in enumerate(entries) if {p.state for p in own} == {-1, 1}]
    precision = [ratio(t, t + f) for t, f in zip(tp, fp, strict=True)]
    recall = [ratio(t, t + f) for t, f in zip(tp, fn, strict=True)]
    f1 = [harmonic(p, r) for p, r in zip(precision, recall, strict=True)]
    cp, cr = mean([precision[c] for c in valid]), mean([recall[c] for c in valid])
    op, or_ = ratio(sum(tp), sum(tp) + sum(fp)), ratio(sum(tp), sum(tp) + sum(fn))
    cf1_mean = mean([f1[c] for c in valid])
    class_means = (cp, cr, harmonic(cp, cr), cf1_mean)
    return AtThreshold(
        tp, fp, fn, valid, precision, recall, f1, *class_means, op, or_, harmonic(op, or_)
    )


@dataclass
class Chosen:
    threshold: float
    method: str
    positives: int
    negatives: int


def best_threshold(pairs: Sequence[Pair], precision: float | None) -> float:
    """Of the scores that occur; F1 as fractions, so that equal is equal."""
    best, threshold = Fraction(-1), math.inf
    for t in sorted({pair.score for pair in pairs}, reverse=True):
        tp = sum(pair.positive for pair in pairs if pair.score >= t)
        fp = sum(not pair.positive for pair in pairs if pair.score >= t)
        fn = sum(pair.positive for pair in pairs if pair.score < t)
        if precision is None:
            f1 = Fraction(2 * tp, 2 * tp + fp + fn)
            if f1 > best:
                best, threshold = f1, t
        elif tp / (tp + fp) >= precision:
            threshold = t
    return threshold


def choose_thresholds(
    pairs: Sequence[Pair], num_classes: int, *, precision: float | None, min_support: int
) -> list[Chosen]:
    once = counted_once(pairs)
    pooled = best_threshold(once, precision)
    own_method = "f1" if precision is None else "precision"
    chosen = []
    for own in by_class(once, num_classes):
        pos = sum(pair.positive for pair in own)
        neg = len(own) - pos
        if min(pos, neg) >= min_support:
            chosen.append(Chosen(best_threshold(own, precision), own_method, pos, neg))
        else:
            chosen.append(Chosen(pooled, "pooled", pos, neg))
    return chosen


# ---------------------------------------------------------------- calibration


@dataclass
class Calibration:
    ece: float
    confidence: list[float]
    accuracy: list[float]
    count: list[int]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def calibration_error(pairs: Sequence[Pair], bins: int, *, logits: bool = False) -> Calibration:
    once = counted_once(pairs)
    inside: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for pair in once:
        p = sigmoid(pair.score) if logits else pair.score
        place = max(i for i in range(bins) if p >= i / bins)
        inside[place].append((p, pair.positive))
    confidence = [mean([p for p, _ in own]) for own in inside]
    accuracy = [mean([float(label) for _, label in own]) for own in inside]
    gaps = [
        len(own) / len(once) * abs(hit - sure)
        for own, hit, sure in zip(inside, accuracy, confidence, strict=True)
        if own
    ]
    return Calibration(math.fsum(gaps), confidence, accuracy, [len(own) for own in inside])
