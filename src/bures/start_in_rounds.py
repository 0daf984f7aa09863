"""Where full Gaussians begin in more than 50 dimensions: all of the curvature, and climbs in its coordinates.

Curvature at one point may say little of where the mass is, and a climb of the mean-field bound ends where correlations
stop it, on the saddles of hierarchical models, too: there the groups would have to move together. In coordinates where
what is known of the curvature is one, the same climb goes on; where it ends the curvature is looked at again.
"""

from typing import NamedTuple

import numpy as np

from bures import linalg
from bures.family.families import FIRST_COLUMNS
from bures.family.gaussian import Gaussian
from bures.family.low_rank_moves import worth
from bures.search import Budget
from bures.smoothed import CLIMB_DRAWS, climb_around
from bures.start import Start

DRAWS = 25  # for the bound at a place
LEAST_PRECISION = 1e-6
WIDEST = (np.inf, 16.0, 4.0, 1.0)  # variances along directions that are tried: curvature may not reach that far
_LEAST_CALLS = 20  # of the bound: a climb of fewer leads nowhere
_NEAR = 0.12  # nats a dimension by which a climb may raise the bound of its own draws where there is nowhere to go
_ERRORS, _MUCH = 2.0, 0.5  # errors of a difference of bounds, and nats by which a start may be worse
_NEAR_ENOUGH = 1.0  # nats to the target, of a start whose curvature says what a fit will need


class Curved(NamedTuple):
    """A Gaussian, and the curvature of log p at its mean in the coordinates where another is standard."""

    approximation: Gaussian
    curvature: np.ndarray
    other: Gaussian


def climb_in_rounds(rng: np.random.Generator, budget: Budget, q: Gaussian) -> Curved:
    """The Gaussian with the curvature where climbs end, each in the coordinates of the curvature found before.

    As many as there are evaluations for: after each of them the curvature is looked at once more.
    """
    curved = with_all_curvature(rng, budget, q)
    while (left := budget.keeping(curvature_cost(q.dim))).left >= _LEAST_CALLS * CLIMB_DRAWS:
        climbed = climb_around(rng, left, curved.approximation)
        # It ends where its own draws are best, and no others: if that is near, what counts is where it began.
        if climbed is None or (climbed.arrived and climbed.rise < _NEAR * q.dim):
            break
        curved = with_all_curvature(rng, budget, climbed.approximation)
    return curved


def curvature_cost(dim: int) -> int:
    """Evaluations of a look at all of the curvature, and at how far it reaches."""
    return 2 * dim + (2 + len(WIDEST)) * DRAWS


def with_all_curvature(rng: np.random.Generator, evaluator: Budget, q: Gaussian) -> Curved:
    """The Gaussian with all of the curvature at its mean, as far as that reaches; as it is if that may be much worse.

    All see the same noise, so that what differs is theirs.
    """
    inner = _curvature(evaluator, q)
    if not np.all(np.isfinite(inner)):
        return Curved(q, inner, q)
    precision, axes = np.linalg.eigh(inner)
    variances = 1 / np.maximum(np.abs(precision), LEAST_PRECISION)  # where log p is convex, by how much it bends
    scales = np.sqrt([np.ones(q.dim), *(np.minimum(variances, widest) for widest in WIDEST)])
    noise = rng.standard_normal((DRAWS, q.dim))
    tried = np.concatenate([noise, *((noise @ axes * scale) @ axes.T for scale in scales[1:])])
    values = np.asarray(evaluator.value(q.push(tried)), np.float64).reshape(len(scales), DRAWS)
    best = find_best(values + np.log(scales).sum(axis=1)[:, None])
    root = q.chol @ (axes * scales[best])
    return Curved(Gaussian.unchecked(q.mean, linalg.cholesky_of_square(root)) if best else q, inner, q)


def find_best(values: np.ndarray) -> int:
    """The row of log weights with the highest bound; the first, if that one may be much worse.

    At one point curvature may say little of what it is on average: correlations that do not help would have to be
    unlearned.
    """
    change = values - values[0]
    gains, errors = np.mean(change, axis=1), np.std(change, axis=1) / np.sqrt(values.shape[1])
    best = int(np.argmax(np.where(np.isfinite(gains), gains, -np.inf)))
    return best if gains[best] - _ERRORS * errors[best] > -_MUCH else 0


def start_from(rng: np.random.Generator, evaluator: Budget, curved: Curved) -> Start:
    """The start, with what the best directions alone would leave out of it, if it is near enough to say."""
    q = curved.approximation
    noise = rng.standard_normal((DRAWS, q.dim))
    scores = np.asarray(evaluator.value_and_score(q.push(noise))[1], np.float64)
    # Nats to the target at the most, if that is about as even as q: half the Fisher divergence (log-Sobolev).
    distance = np.mean(np.sum((scores @ q.chol + noise) ** 2, axis=1)) / 2
    return Start(q, left_out=_left_out(curved) if distance < _NEAR_ENOUGH else np.inf)


def _curvature(evaluator: Budget, q: Gaussian) -> np.ndarray:
    """−∇²log p at the mean, where q is standard: from scores a standard deviation to both sides along each axis."""
    scores = evaluator.value_and_score(np.concatenate([q.mean + q.chol.T, q.mean - q.chol.T]))[1]
    above, below = np.split(np.asarray(scores, np.float64), 2)
    return linalg.symmetrise((below - above) @ q.chol / 2)


def _left_out(curved: Curved) -> float:
    """Nats of the curvature that scales, and as many directions as a low-rank fit begins with, do not have."""
    inverse = linalg.inverse_lower(curved.other.chol)
    precision = inverse.T @ curved.curvature @ inverse
    root = np.sqrt(np.maximum(np.diagonal(precision), np.finfo(float).tiny))
    values = np.linalg.eigvalsh(precision / root / root[:, None])
    gains = np.sort(worth(1 / np.maximum(values, LEAST_PRECISION)))
    return float(gains[: -min(FIRST_COLUMNS, gains.size // 2)].sum())
