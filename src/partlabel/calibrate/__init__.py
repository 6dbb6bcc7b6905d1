"""What an Ignore-mode model says of unknown labels: calibrated posteriors, and the prior."""

from partlabel.calibrate.calibration import Calibration, HeldOut, calibrated_prior
from partlabel.calibrate.mixture import Mixture, mixture
from partlabel.calibrate.rescale import rescaled
from partlabel.calibrate.shares import calibrate
from partlabel.calibrate.trust import weight_of_present

__all__ = [
    "Calibration",
    "HeldOut",
    "Mixture",
    "calibrate",
    "calibrated_prior",
    "mixture",
    "rescaled",
    "weight_of_present",
]
