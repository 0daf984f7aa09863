"""Where a fit begins in many dimensions: along a climb by gradients, with scales from scores around the points passed.

The mode itself is often the wrong place: with hierarchical models log p has a narrow peak that holds no mass. So some
points of the way up are compared by the bound of a diagonal Gaussian with the curvature there. No d × d array anywhere.
"""

from typing import NamedTuple

import numpy as np

from bures.engine import Evaluator
from bures.family.low_rank import LowRankGaussian
from bures.integrable import refuse_improper
from bures.search import Evaluate, Summit, ascend
from bures.start import Start, first_point
from bures.target import Target
from bures.threads import one_blas_thread

_EVALUATIONS = 500  # of the climb
_PLACES = 8  # on the way up that are compared, further and further apart
_DRAWS = 40  # around each, in each round
_ROUNDS = 3  # to find the scales: they must be known to be looked at properly
_NEAR = 0.1  # standard deviations to look at for curvature
_FIRST_SCALE = 1e-3
_CHECKED_DIM = 700  # up to which a density that cannot be normalised is looked for


class _Place(NamedTuple):
    """A diagonal Gaussian and the bound that its draws see."""

    point: np.ndarray
    scale: np.ndarray
    bound: float


def find_start_in_factors(rng: np.random.Generator, target: Target, evaluator: Evaluator) -> Start:
    """The best of some diagonal Gaussians on the way from the target's initial point up."""
    with np.errstate(all="ignore"), one_blas_thread(target.dim):
        point = first_point(rng, target, evaluator)
        ways, top = _climb(evaluator.value_and_score, point)
        places = [_look(rng, evaluator, way) for way in ways]
        best = max(places, key=lambda place: place.bound if np.isfinite(place.bound) else -np.inf)
        if top is not None and target.dim <= _CHECKED_DIM:
            _refuse_improper(rng, target, evaluator, top, places[-1], point)
    empty = np.zeros((target.dim, 0))
    return Start(LowRankGaussian.unchecked(best.point, best.scale, empty, np.zeros(0), False))


def _climb(evaluate: Evaluate, point: np.ndarray) -> tuple[list[np.ndarray], Summit | None]:
    """Points on the way up, the first and the last among them."""
    passed: list[tuple[np.ndarray, float]] = []

    def watched(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = evaluate(z)
        best = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
        if np.isfinite(values[best]) and (not passed or values[best] > passed[-1][1]):
            passed.append((np.array(z[best], np.float64), float(values[best])))
        return values, scores

    top = ascend(watched, point, evaluations=_EVALUATIONS)
    if top is None:
        return [point], None
    chosen = sorted({round(i) for i in np.geomspace(1, len(passed), _PLACES)})
    summit = Summit(top.point, top.value, np.zeros((0, 0)), np.ones(point.size), top.gain(), 0)
    return [passed[i - 1][0] for i in chosen], summit


def _look(rng: np.random.Generator, evaluator: Evaluator, point: np.ndarray) -> _Place:
    """Scales from the curvature around a point, and the bound of the Gaussian they give."""
    scale = np.full(point.size, _FIRST_SCALE)
    for number in range(_ROUNDS):
        noise = rng.standard_normal((_DRAWS, point.size)) * (_NEAR if number < _ROUNDS - 1 else 1)
        scores = np.asarray(evaluator.value_and_score(point + scale * noise)[1], np.float64)
        scale = scale / np.sqrt(_curvature(noise, scale * np.where(np.isfinite(scores), scores, 0)))
    noise = rng.standard_normal((_DRAWS, point.size))
    values = np.asarray(evaluator.value(point + scale * noise), np.float64)
    bound = float(np.mean(values + np.sum(noise**2, axis=1) / 2) + np.sum(np.log(scale)))
    return _Place(point, scale, bound)


def _curvature(noise: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """How scores fall with each coordinate, by least squares, and no less than two errors of it."""
    centred, total = scores - scores.mean(axis=0), np.sum(noise**2, axis=0)
    slope = -np.sum(centred * noise, axis=0) / total
    left = centred + slope * noise
    error = np.sqrt(np.mean(left**2, axis=0) / total)
    return np.clip(np.maximum(slope, 2 * error), 1e-8, 1e8)


def _refuse_improper(
    rng: np.random.Generator, target: Target, evaluator: Evaluator, top: Summit, place: _Place, point: np.ndarray
) -> None:
    summit = top._replace(axes=np.diag(place.scale))
    refuse_improper(rng, target, evaluator, summit if summit.is_mode else None, [summit], point)
