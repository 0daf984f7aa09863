"""From a target to a `Fit`: defaults, the driver of the steps, the judgement, and the result."""

from bures.fitting.defaults import (
    default_estimator as default_estimator,
    default_objective as default_objective,
    default_tolerance as default_tolerance,
)
from bures.fitting.driver import fit as fit
from bures.fitting.result import Fit as Fit
