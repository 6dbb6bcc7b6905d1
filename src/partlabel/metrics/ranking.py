"""Pairs sorted by class and from the highest score down: what every exact metric starts from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from partlabel.metrics.pairs import Pairs


class Ranking(NamedTuple):
    """The order of pairs, and where equal scores end.

    At each of the ``ends``, counted within its class: ``found`` positives among ``rank`` pairs.
    """

    order: Tensor
    """Positions of the pairs, sorted by class, then by score from high to low."""
    ends: Tensor
    """Where in that order a group of equal scores (of one class) ends."""
    classes: Tensor
    """The class of each end."""
    found: Tensor
    rank: Tensor
    positives: Tensor
    """Per class."""
    negatives: Tensor


def rank(pairs: Pairs, num_classes: int, *, group_ties: bool = True) -> Ranking:
    """Sort pairs; without ``group_ties`` the later image comes first among equal scores."""
    keys = (pairs.classes << 32) + _descending(pairs.scores)
    if group_ties:
        keys, order = keys.sort()
    else:
        assert pairs.images is not None
        order = pairs.images.argsort(descending=True)
        order = order[keys[order].argsort(stable=True)]
        keys = keys[order]
    positive = pairs.positive[order]
    counts = torch.bincount(pairs.classes, minlength=num_classes)
    positives = torch.bincount(pairs.classes[pairs.positive], minlength=num_classes)
    if group_ties:
        last = torch.ones(min(len(keys), 1), dtype=torch.bool)
        ends = torch.cat([keys[1:] != keys[:-1], last]).nonzero().squeeze(1)
    else:
        ends = torch.arange(len(keys))
    classes = keys[ends] >> 32
    found = positive.cumsum(0)[ends] - (positives.cumsum(0) - positives)[classes]
    rank_in_class = ends + 1 - (counts.cumsum(0) - counts)[classes]
    return Ranking(order, ends, classes, found, rank_in_class, positives, counts - positives)


def _descending(scores: Tensor) -> Tensor:
    """Numbers in 0..2**32 that grow where scores fall, equal where scores are equal."""
    if scores.dtype == torch.float64:
        values, index = torch.unique(scores, return_inverse=True)
        return torch.sub(len(values) - 1, index)
    bits = scores.view(torch.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the order of floats as that of integers
    return torch.add(ascending.bitwise_not().long(), 2**31)
