"""What an Ignore-mode model says of unknown labels: calibrated posteriors, and the prior."""

from partlabel.calibrate.calibration import Calibration, HeldOut, calibrated_prior
from partlabel.calibrate.rescale import rescaled
from partlabel.calibrate.shares import calibrate

__all__ = ["Calibration", "HeldOut", "calibrate", "calibrated_prior", "rescaled"]
