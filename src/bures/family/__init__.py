"""Variational families: what q can be, how the field is projected onto it, and how it moves."""

from bures.family.approximation import AbstractApproximation as AbstractApproximation
from bures.family.families import (
    AbstractFamily as AbstractFamily,
    FullRank as FullRank,
    LowRank as LowRank,
    MeanField as MeanField,
    Mixture as Mixture,
    family_of as family_of,
)
from bures.family.gaussian import Gaussian as Gaussian
from bures.family.low_rank import LowRankGaussian as LowRankGaussian
from bures.family.mixture import GaussianMixture as GaussianMixture
