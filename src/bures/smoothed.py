"""A climb of the mean-field bound itself, its draws fixed: where full Gaussians begin in more than 50 dimensions.

With fixed draws ε the bound of a diagonal Gaussian, the mean of log p(m + s ε) and the sum of log s, is a smooth
function of m and log s, and a quasi-Newton method climbs it (Giordano, Ingram and Broderick, 2024). It goes around the
narrow peaks of hierarchical models, because its draws are never all in them; and a call of the evaluator with so many
points costs hardly more than one with a single point.
"""

from typing import NamedTuple

import numpy as np

from bures.draws import antithetic
from bures.engine import Evaluator
from bures.family.low_rank import LowRankGaussian
from bures.search import ascend

_DRAWS = 24  # the same at every point of the climb, in pairs: one block of the evaluator
_CLIMB, _MORE = 40, 40  # evaluations of the bound, and as many again where it may arrive with them
_ARRIVED = 0.1  # nats that its next step promises, where it ends: fixed draws are off by more
_FIRST_SCALES = (1.0, 0.1, 0.01, 1e-3)  # the first that has a finite bound
# Nats by which the last evaluations raise the bound of a climb that was cut off far below, and of one that would not
# arrive with more.
_LAST, _RISING, _FAR = 10, 10.0, 50.0


class Climbed(NamedTuple):
    """Where a climb has ended, and whether the bound was hardly rising any more."""

    approximation: LowRankGaussian
    arrived: bool


def climb_smoothed(rng: np.random.Generator, evaluator: Evaluator, point: np.ndarray) -> Climbed | None:
    """The diagonal Gaussian where the climb from a point ends; None if no bound is finite there."""
    dim = point.size
    noise = antithetic(rng, _DRAWS, dim, np.float64)
    highest: list[float] = []

    def bound(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds and their gradients at rows (m, log s)."""
        mean, scale = places[:, None, :dim], np.exp(places[:, None, dim:])
        values, scores = evaluator.value_and_score((mean + scale * noise).reshape(-1, dim))
        values = np.asarray(values, np.float64).reshape(-1, _DRAWS)
        scores = np.asarray(scores, np.float64).reshape(-1, _DRAWS, dim)
        along = np.mean(scale * noise * scores, axis=1) + 1
        bounds = values.mean(axis=1) + places[:, dim:].sum(axis=1)
        highest.append(max([*highest[-1:], *bounds[np.isfinite(bounds)]], default=-np.inf))
        return bounds, np.concatenate([scores.mean(axis=1), along], axis=1)

    for scale in _FIRST_SCALES:
        begin = np.concatenate([point, np.full(dim, np.log(scale))])
        top = ascend(bound, begin, evaluations=_CLIMB, arrived=_ARRIVED)
        if top is not None and highest[-1] - highest[-_LAST:][0] < _FAR:
            top = ascend(bound, top, evaluations=_MORE, arrived=_ARRIVED)
        if top is not None:
            mean, scales = top.point[:dim], np.exp(top.point[dim:])
            q = LowRankGaussian.unchecked(mean, scales, np.zeros((dim, 0)), np.zeros(0), False)
            return Climbed(q, bool(top.gain() < _ARRIVED or highest[-1] - highest[-_LAST:][0] < _RISING))
    return None
