"""The starts of many fits at once: uphill by Newton's method, whose curvature comes from differences of scores.

Each fit has a place z and a scale L. A round looks at a trial place and at one step of the scale to either side of it
along each axis: 2 d + 1 points. The differences of scores there give the curvature over the width of a Gaussian, which
is what a start needs, and no rounding spoils it. A trial that is not higher is taken back, and the next one is shorter.
"""

from typing import NamedTuple

import numpy as np

from bures.many import algebra
from bures.many.evaluator import Evaluator

_ROUNDS = 60
_SMALL_STEP = 0.05  # standard deviations: a place whose next step is shorter is a mode
_LONGEST = 10.0  # standard deviations, as far as they are known: the longest step
_LEAST, _MOST = 1e-3, 1e3  # the change of a scale in one round
_RISE, _FALL = 8.0, 4.0  # of the damping
_GIVE_UP = 1e12


class Starts(NamedTuple):
    """Where fits begin."""

    mean: np.ndarray
    chol: np.ndarray
    is_found: np.ndarray  # False where log p was not finite at the first place


def find_starts(evaluator: Evaluator, fits: np.ndarray, first: np.ndarray) -> Starts:
    """A mode of each model and the scale around it, from the first places (fits, dim)."""
    count, dim = first.shape
    place, chol = first.astype(evaluator.dtype), np.tile(np.eye(dim, dtype=evaluator.dtype), (count, 1, 1))
    value, damping = np.full(count, -np.inf), np.zeros(count)
    step = np.zeros_like(place)  # in the scale of chol
    slope, curvature = np.zeros_like(place), np.zeros_like(chol)  # likewise
    active = np.arange(count)
    for _ in range(_ROUNDS):
        if not active.size:
            break
        trial = place[active] + algebra.times(chol[active], step[active])
        found = _look(evaluator, fits[active], trial, chol[active])
        better = np.isfinite(found.value) & (found.value >= value[active])
        better &= np.isfinite(found.slope).all(axis=1) & np.isfinite(found.curvature).all(axis=(1, 2))
        up, down = active[better], active[~better]
        place[up], value[up] = trial[better], found.value[better]
        chol[up], slope[up], curvature[up] = _rescaled(chol[up], found.slope[better], found.curvature[better])
        damping[up] /= _FALL
        damping[down] = np.maximum(damping[down], 1 / _RISE) * _RISE
        step[active] = _newton_step(slope[active], curvature[active], damping[active])
        lengths = np.linalg.norm(step[active], axis=1)
        settled = better & (lengths < _SMALL_STEP) & (damping[active] < 1)
        active = active[~settled & np.isfinite(lengths) & (damping[active] < _GIVE_UP)]
    return Starts(place, chol, np.isfinite(value))


class _Look(NamedTuple):
    """log p at a place, and its slope and curvature in the scale there."""

    value: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


def _look(evaluator: Evaluator, fits: np.ndarray, place: np.ndarray, chol: np.ndarray) -> _Look:
    axes = chol.mT  # of a factor the columns are the axes: a row each
    points = np.concatenate([place[:, None], place[:, None] + axes, place[:, None] - axes], axis=1)
    values, scores = evaluator.value_and_score(fits, points)
    dim = place.shape[1]
    slopes = np.matmul(scores, chol)  # in the scale: Lᵀ s
    curvature = algebra.symmetrised(slopes[:, 1 + dim :] - slopes[:, 1 : 1 + dim]) / 2
    return _Look(values[:, 0], slopes[:, 0], curvature)


def _rescaled(chol: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scale by which the curvature is one, as far as it may change in a round; slope and curvature in it."""
    values, vectors = algebra.eigh(curvature)
    widths = 1 / np.sqrt(np.clip(np.abs(values), _MOST**-2, _LEAST**-2))
    change = vectors * widths[:, None, :]
    factor = algebra.cholesky_of_square(np.matmul(chol, change))
    # What takes the old coordinates to the new ones: L = L' R with R = L'⁻¹ L, and a slope Lᵀ s is R'ᵀ of that.
    turn = np.linalg.solve(chol, factor)
    return factor, algebra.times(turn.mT, slope), np.matmul(turn.mT, np.matmul(curvature, turn))


def _newton_step(slope: np.ndarray, curvature: np.ndarray, damping: np.ndarray) -> np.ndarray:
    """Newton's step uphill, shortened by the damping, within a radius; a negative curvature counts as a positive."""
    values, vectors = algebra.eigh(curvature)
    along = algebra.times(vectors.mT, slope)
    step = algebra.times(vectors, along / (np.maximum(np.abs(values), 1e-3) + damping[:, None]))
    length = np.linalg.norm(step, axis=1, keepdims=True)
    return step * np.minimum(1, _LONGEST / np.maximum(length, 1e-300))
