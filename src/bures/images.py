"""Images of a known mode: where signs or labels are free, the same mode is there again.

A factor model does not know the sign of its factors, nor a mixture the order of its parts. No scattered point may come
near such an image in many dimensions, but it is known where to look: at the mode with some coordinates mirrored at
zero, and with two coordinates exchanged.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from bures.family.gaussian import Gaussian
from bures.search import Budget, scout, send_out, whitened

_SWEEPS = 2  # over all signs
_EXACT = 0.01  # nats by which log p differs, at the most, at an image that is the same mode again
_MIRRORED_DIM, _EXCHANGED_DIM = 250, 60
_PAIRS = 120  # of coordinates that are exchanged, at the most
_FOLLOWED, _ROUNDS = 10, 12  # the best of them, and how far they are followed
_APART = 3.0  # standard deviations between two coordinates whose exchange makes a difference


class Image(NamedTuple):
    """A mode's Gaussian with the signs of some coordinates turned."""

    gaussian: Gaussian
    value: float  # log p at its mean
    is_exact: bool  # whether that is log p at the mode


def mirror_image(budget: Budget, q: Gaussian) -> Image | None:
    """The mirror image of a mode that log p is highest at; None if that is the mode itself.

    All signs are turned, then those turned back, one at a time, that log p is higher with.

    >>> from bures import Target
    >>> from bures.engine import Evaluator
    >>> target = Target(lambda z: -8 * (z[0] * z[1] - 4) ** 2 - 8 * (z[0] - z[1]) ** 2 - z[2] ** 2 / 2 + 9 * z[2], 3)
    >>> q = Gaussian.unchecked(np.array([2.0, 2.0, 9.0]), 0.1 * np.eye(3))
    >>> image = mirror_image(Budget(Evaluator(target), 100), q)
    >>> image.gaussian.mean.tolist(), image.is_exact
    ([-2.0, -2.0, 9.0], True)
    """
    dim = q.dim
    if dim > _MIRRORED_DIM or budget.left < _SWEEPS * (dim + 1) + 1:
        return None
    signs = -np.ones(dim)
    for _ in range(_SWEEPS):
        tried = np.concatenate([signs[None], signs * (1 - 2 * np.eye(dim))])
        values = _values(budget, tried * q.mean)
        signs = np.where(values[1:] > values[0], -signs, signs)
    image, home = _values(budget, np.stack([signs * q.mean, q.mean]))
    if not is_apart(q, signs * q.mean) or not math.isfinite(image):
        return None
    root = signs[:, None] * q.chol * signs  # of the mirrored covariance: still triangular, with the same diagonal
    return Image(Gaussian.unchecked(signs * q.mean, root), float(image), bool(abs(image - home) < _EXACT))


def exchanges(budget: Budget, q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Where a mode with two coordinates exchanged leads, from the best such places, and log p there."""
    nowhere = np.zeros((0, q.dim)), np.zeros(0)
    if q.dim > _EXCHANGED_DIM:
        return nowhere
    i, j = np.triu_indices(q.dim, 1)
    deviations = np.linalg.norm(q.chol, axis=1)
    differ = np.abs(q.mean[i] - q.mean[j]) > _APART * np.maximum(deviations[i], deviations[j])
    chosen = np.flatnonzero(differ)
    chosen = chosen[:: max(1, -(-chosen.size // _PAIRS))]
    if not chosen.size or budget.left < chosen.size + _FOLLOWED * (_ROUNDS + 2):
        return nowhere
    rows, i, j = np.arange(chosen.size), i[chosen], j[chosen]
    places = np.repeat(q.mean[None], chosen.size, axis=0)
    places[rows, i], places[rows, j] = q.mean[j], q.mean[i]
    best = np.argsort(-_values(budget, places))[:_FOLLOWED]
    look = whitened(budget.value_and_score, q.mean, q.chol)
    ends, values, home = scout(look, send_out(look, q.whiten(places[best])), rounds=_ROUNDS)
    return q.push(ends[~home]), values[~home]


def _values(budget: Budget, z: np.ndarray) -> np.ndarray:
    values = np.asarray(budget.value(z), np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def is_apart(q: Any, point: np.ndarray) -> bool:
    """Whether a point is further away than the draws of a Gaussian, dense or in factors, are."""
    return float(np.linalg.norm(q.whiten(point[None]))) > math.sqrt(q.dim) + _APART
