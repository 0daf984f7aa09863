"""Fitting a mixture whose number of components is not given: a pool of all draws, moves on it, and growth."""

from bures.mixing.rounds import Mixing as Mixing, Round as Round, fit_mixture as fit_mixture
