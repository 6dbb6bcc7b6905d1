"""How good scores are where labels are partial: exact, streaming, the same on one process and many.

Everything is computed on annotated pairs (image, class) alone: what is unknown is neither right
nor wrong. ``AveragePrecision`` collects the pairs; the functions here take it and say more.
"""

from partlabel.agreement import spearman, spearman_curve, top_overlap
from partlabel.metrics.average_precision import AveragePrecision, GroupResult, Result, cut_in_groups
from partlabel.metrics.calibration import Calibration, calibration_error
from partlabel.metrics.confidence import Bootstrap, Interval, bootstrap
from partlabel.metrics.operating_point import PrecisionRecall, precision_recall
from partlabel.metrics.pairs import AnnotatedPairs
from partlabel.metrics.thresholds import ClassThreshold, Thresholds, choose_thresholds

__all__ = [
    "AnnotatedPairs",
    "AveragePrecision",
    "Bootstrap",
    "Calibration",
    "ClassThreshold",
    "GroupResult",
    "Interval",
    "PrecisionRecall",
    "Result",
    "Thresholds",
    "bootstrap",
    "calibration_error",
    "choose_thresholds",
    "cut_in_groups",
    "precision_recall",
    "spearman",
    "spearman_curve",
    "top_overlap",
]
