"""Fitting a mixture whose number of components is not given: a pool of all draws, moves on it, and growth."""

from bures.mixing.pause import Mixing as Mixing, Pause as Pause, Round as Round
from bures.mixing.rounds import first_pause as first_pause, fit_mixture as fit_mixture
