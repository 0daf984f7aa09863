"""New components: where the pool shows mass that the mixture misses, and whether one more helps beyond noise."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bures.family.gaussian import Gaussian
from bures.mixing import bound
from bures.mixing.moving import TAIL_SIZE, Moved

_LOCAL = 4  # draws of the residual around which a component is tried
_COPIED = 4  # components, the largest, of which wider and narrower copies are tried
_WIDTHS = (2.0, 1.3, 0.7)  # of the copies, in standard deviations
_ERRORS = 2.0  # standard errors by which a component must help
_FAR = 1.0  # deficit above which there is enough to gain near by
_STEPS = 4  # with a new component before it is judged


class Growth(NamedTuple):
    """A mixture with one component more, the last one, and whether that helps enough."""

    tried: Moved
    helps: bool


def grow(rng: np.random.Generator, now: Moved, places: Sequence[Gaussian], least_gain: float) -> Growth | None:
    """The mixture with the component that helps most."""
    size = bound.K if is_far(now) else TAIL_SIZE
    before = now.deficits(size)
    best, best_gain = None, -math.inf
    for mean, covariance in (*_candidates(rng, now), *((q.mean, q.chol @ q.chol.T) for q in places)):
        chol = _factor(covariance)
        if chol is None:
            continue
        tried = now.with_component(mean, chol)
        gain, error = _gain(before, tried, size)
        if gain - error > best_gain:
            best, best_gain = tried, gain - error
    if best is None:
        return None
    for _ in range(_STEPS):
        best = best.stepped()
    gain, error = _gain(before, best, size)
    return Growth(best, gain > max(_ERRORS * error, least_gain))


def is_far(now: Moved) -> bool:
    """Whether so much is missed that few draws say most of it: to look far out would be to look at noise."""
    return float(np.mean(now.deficits())) > _FAR


def _gain(before: np.ndarray, after: Moved, size: float) -> tuple[float, float]:
    """How much smaller the deficit is, compared draw by draw, and its standard error."""
    change = before - after.deficits(size)
    return float(np.mean(change)), float(np.std(change) / math.sqrt(change.size))


def _factor(covariance: np.ndarray) -> np.ndarray | None:
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None


def _candidates(rng: np.random.Generator, now: Moved) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Means and covariances: of the residual (p − q)₊, of its parts, and components made wider and narrower."""
    q, pool = now.q, now.pool
    covariances = q.chols @ np.swapaxes(q.chols, 1, 2)
    residual = np.maximum(now.w - 1, 0) * now.drawn * pool.trust
    if np.sum(residual) > 0:
        residual = residual / np.sum(residual)
        yield _moments(pool.z, residual, np.einsum("c,cij->ij", q.shares, covariances))
        chosen = rng.choice(residual.size, size=_LOCAL, p=residual)
        for i in (*chosen, int(np.argmax(residual))):
            c = int(np.argmax(now.log_components[:, i] + q.log_shares))
            squares = np.sum(q.components[c].whiten_shift(pool.z - pool.z[i]) ** 2, axis=1)
            yield _moments(pool.z, residual * np.exp(-squares / 4), covariances[c] / 2)
    for c in np.argsort(-q.log_shares)[:_COPIED]:
        for width in _WIDTHS:
            yield q.means[c], width**2 * covariances[c]


def _moments(z: np.ndarray, weights: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of weighted draws; the fewer they are, the more of an expected covariance."""
    weights = weights / np.sum(weights)
    effective = 1 / np.sum(weights**2)
    known = effective / (effective + z.shape[1] + 1)
    mean = weights @ z
    centred = z - mean
    return mean, known * (centred.T * weights) @ centred + (1 - known) * expected
