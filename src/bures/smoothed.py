"""A climb of the mean-field bound itself, its draws fixed: where full Gaussians begin in more than 50 dimensions.

With fixed draws ε the bound of a diagonal Gaussian, the mean of log p(m + s ε) and the sum of log s, is a smooth
function of m and log s, and a quasi-Newton method climbs it (Giordano, Ingram and Broderick, 2024). It goes around the
narrow peaks of hierarchical models, because its draws are never all in them; and a call of the evaluator with so many
points costs hardly more than one with a single point.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from bures import linalg
from bures.draws import antithetic
from bures.engine import Evaluator
from bures.family.gaussian import Gaussian
from bures.family.low_rank import LowRankGaussian
from bures.search import Budget, ascend

CLIMB_DRAWS = 12  # the same at every point of the climb, in pairs: a block of the evaluator; fewer tell too little
_CLIMB, _MORE = 40, 40  # evaluations of the bound, and as many again where it may arrive with them
_ARRIVED = 0.1  # nats that its next step promises, where it ends: fixed draws are off by more
_CLIMB_AROUND = 60
_ARRIVED_AROUND = 0.01  # the same around a Gaussian: on a saddle, steps promise little at first
_MOST_CHANGED = np.log(10)  # of the logarithm of a scale, in one climb around a Gaussian
_FIRST_SCALES = (1.0, 0.1, 0.01, 1e-3)  # the first that has a finite bound
# Evaluations; nats by which they raise the bound of a climb that was cut off below, and of one that would not arrive.
_LAST, _RISING, _FAR = 10, 10.0, 25.0


class Climbed(NamedTuple):
    """Where a climb has ended, whether the bound was hardly rising any more, and by how much it rose."""

    approximation: Any
    arrived: bool
    rise: float = np.inf


class _Bound:
    """Bounds of diagonal Gaussians by fixed draws, and their gradients, at rows (m, log s).

    Their coordinates are the target's own, or those in which a Gaussian `around` is standard.
    """

    def __init__(self, rng: np.random.Generator, evaluator: Evaluator | Budget, around: Gaussian | None = None):
        self.evaluator, self.around = evaluator, around
        self.noise = antithetic(rng, CLIMB_DRAWS, evaluator.dim, np.float64)
        self.highest: list[float] = []  # after each call

    def __call__(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dim = self.evaluator.dim
        shifts = np.exp(places[:, None, dim:]) * self.noise
        z = (places[:, None, :dim] + shifts).reshape(-1, dim)
        values, scores = self.evaluator.value_and_score(z if self.around is None else self.around.push(z))
        values, scores = np.asarray(values, np.float64).reshape(-1, CLIMB_DRAWS), np.asarray(scores, np.float64)
        if self.around is not None:
            scores = linalg.times_lower(self.around.chol, scores, transposed=True)
        scores = scores.reshape(-1, CLIMB_DRAWS, dim)
        bounds = values.sum(axis=1) / CLIMB_DRAWS + places[:, dim:].sum(axis=1)
        along = (shifts * scores).sum(axis=1) / CLIMB_DRAWS + 1
        seen = [bound for bound in bounds.tolist() if math.isfinite(bound)]
        self.highest.append(max([*self.highest[-1:], *seen], default=-math.inf))
        return bounds, np.concatenate([scores.sum(axis=1) / CLIMB_DRAWS, along], axis=1)

    @property
    def rise(self) -> float:
        """Nats by which the last evaluations have raised it."""
        return self.highest[-1] - self.highest[-_LAST:][0]


def climb_smoothed(rng: np.random.Generator, evaluator: Evaluator | Budget, point: np.ndarray) -> Climbed | None:
    """The diagonal Gaussian where the climb from a point ends; None if no bound is finite there."""
    dim, bound = point.size, _Bound(rng, evaluator)
    for scale in _FIRST_SCALES:
        begin = np.concatenate([point, np.full(dim, np.log(scale))])
        top = ascend(bound, begin, evaluations=_CLIMB, arrived=_ARRIVED)
        if top is not None and bound.rise < _FAR:
            top = ascend(bound, top, evaluations=_MORE, arrived=_ARRIVED)
        if top is not None:
            mean, scales = top.point[:dim], np.exp(top.point[dim:])
            q = LowRankGaussian.unchecked(mean, scales, np.zeros((dim, 0)), np.zeros(0), False)
            return Climbed(q, bool(top.gain() < _ARRIVED or bound.rise < _RISING))
    return None


def climb_around(rng: np.random.Generator, evaluator: Evaluator | Budget, q: Gaussian) -> Climbed | None:
    """The Gaussian where a climb from q ends, among those that are diagonal where q is standard."""
    bound = _Bound(rng, evaluator, q)
    top = ascend(bound, np.zeros(2 * q.dim), evaluations=_CLIMB_AROUND, arrived=_ARRIVED_AROUND)
    if top is None:
        return None
    mean, scales = top.point[: q.dim], np.exp(np.clip(top.point[q.dim :], -_MOST_CHANGED, _MOST_CHANGED))
    moved = Gaussian.unchecked(q.push(mean[None])[0], q.chol * scales)
    return Climbed(moved, top.gain() < _ARRIVED_AROUND, bound.highest[-1] - bound.highest[0])
