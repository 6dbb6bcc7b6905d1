"""What models say of unknown labels: calibrated posteriors, and the prior."""

from partlabel.calibrate.calibration import Calibration, HeldOut, calibrated_prior
from partlabel.calibrate.discriminant import Discriminant, FeatureSums
from partlabel.calibrate.mixture import Mixture, mixture
from partlabel.calibrate.rescale import rescaled, too_few
from partlabel.calibrate.shares import calibrate
from partlabel.calibrate.tilt import Samples, share_present
from partlabel.calibrate.trust import information, weight_of_present

__all__ = [
    "Calibration",
    "Discriminant",
    "FeatureSums",
    "HeldOut",
    "Mixture",
    "Samples",
    "calibrate",
    "calibrated_prior",
    "information",
    "mixture",
    "rescaled",
    "share_present",
    "too_few",
    "weight_of_present",
]
