"""Modes that draws do not reach: chains cannot tell, so the search for modes looks once more, around the draws."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bures.diagnostics.coverage import search_again
from bures.diagnostics.weighted import WeightedDraws, log_evidence
from bures.engine import Evaluator
from bures.family import Gaussian
from bures.modes import Mode, View
from bures.threads import one_blas_thread

_DRAWS = 400  # of the Gaussian with the draws' moments, to search from
_SEARCHED_DIM = 250
_LEAST_SHARE = 0.01  # of the mass that is worth a word
_SEEN = 10  # times fewer draws around a mode than its mass asks for: it is missed
_CERTAIN = 0.7  # error of a log mass from which it rests on two or three draws


class Searched(NamedTuple):
    """What the search found: the share of the mass that draws do not reach, and how far it looked."""

    missed: float
    modes: tuple[Mode, ...]
    reach: float  # in standard deviations; 0 where there was no search


def search_around(
    rng: np.random.Generator,
    evaluator: Evaluator,
    z: Float[np.ndarray, "n dim"],
    evidence: float | None,
    modes: Sequence[Mode],
    scale: Gaussian | None,
) -> Searched:
    """Search around equally weighted draws of the target, and see which modes they leave out."""
    if evaluator.dim > _SEARCHED_DIM:
        return Searched(0.0, tuple(modes), 0.0)
    with one_blas_thread(evaluator.dim), np.errstate(all="ignore"):
        around = _moment_gaussian(z)
        draws, scores = WeightedDraws.pool(lambda: rng, around, evaluator, _DRAWS)
        assert scores is not None
        evidence = log_evidence(draws.log_weights)[0] if evidence is None else evidence
        uneven = evaluator.target.uneven
        found = search_again(rng, around, evaluator, modes, scale, draws=draws, scores=scores, uneven=uneven)
        missed = sum(_unreached(mode, z, evidence) for mode in found.modes)
        missed = max(missed, *(_further_out(view, around, z, evidence) for view in found.views), 0.0)
    return Searched(missed / (1 + missed), found.modes, found.reach)


def _unreached(mode: Mode, z: Float[np.ndarray, "n dim"], evidence: float) -> float:
    """The mass around a mode in terms of the evidence, if far too few draws are there; else 0."""
    mass = math.exp(min(mode.log_mass - evidence, 50.0))
    if mode.view.error > _CERTAIN or not mass > _LEAST_SHARE:
        return 0.0
    near = np.linalg.norm(mode.gaussian.whiten(z), axis=1) < math.sqrt(z.shape[1]) + 3
    return mass if np.mean(near) < min(mass, 1.0) / _SEEN else 0.0


def _further_out(view: View, around: Gaussian, z: Float[np.ndarray, "n dim"], evidence: float) -> float:
    """The mass further out than all draws, in terms of the evidence, if more than two or three of a view see it."""
    furthest = np.max(np.linalg.norm(around.whiten(z), axis=1))
    beyond = np.linalg.norm(around.whiten(view.z), axis=1) > furthest
    masses = np.where(beyond, np.exp(np.minimum(view.log_weights - evidence, 50.0)), 0.0) / beyond.size
    mass = float(np.sum(masses))
    is_seen = mass > 2 * _LEAST_SHARE and float(np.sum(masses**2)) < mass**2 / 4
    return mass if is_seen else 0.0


def _moment_gaussian(z: Float[np.ndarray, "n dim"]) -> Gaussian:
    covariance = np.atleast_2d(np.cov(z, rowvar=False))
    chol = np.linalg.cholesky(covariance + 1e-9 * np.diag(np.diagonal(covariance)))
    return Gaussian.unchecked(np.asarray(z.mean(axis=0), np.float64), chol)
