"""The edge of an approximation: how much of the target lies just beyond the draws that weigh most.

A long tail to one side, or the thin arm of a banana, is missed by all of q's draws and by wide views of it, and the
weights of the draws that there are may be light. But it begins where q ends: the draws at its root weigh much. So a
few local Gaussians, with the curvature of log p at such draws, are drawn from; others follow at those of their draws
where p is still many times q, further and further out. Each draw is worth what all proposals together say.
"""

import math

import numpy as np

from bures import linalg
from bures.arrays import log_sum_exp, squared_norms, to_host
from bures.diagnostics.weighted import WeightedDraws, ness
from bures.engine import Evaluator
from bures.family import AbstractApproximation, Gaussian
from bures.family.approximation import LOG_2PI
from bures.mixing.pool import Batch, Pool
from bures.modes import View, view_of
from bures.search import Budget

_EVEN, _MOST_DIM = 0.9, 50  # effective share of draws from which there is nothing to see, and dimensions
_EVALUATIONS = 4000
_ROUNDS, _PLACES = 6, 8  # and local Gaussians in each
_DRAWS, _DRAWS_PER_DIMENSION = 240, 30  # of them together, the larger of the two
_OWN = 4000  # draws of q that are looked at, at the most
_LEAST_HEAVY, _HEAVY = 3.0, 8.0  # times as much of p as of q, beyond which there is something to follow
_WIDEST = 1.5  # standard deviations of q: of a local Gaussian along its longest axis
_STIFF = 4.0  # curvature, where q's is one, along which a place is moved to the ridge; at the most _STEP deviations
_STEP = 3.0
_WIDTHS, _SHARES = np.array([1.0, 2.5]), np.array([0.8, 0.2])  # of the draws of a local Gaussian
_DIFFERENCE, _ROUGH_DIFFERENCE = 1e-3, 0.03  # standard deviations between scores; in single precision
_LEADERS = 3  # draws at the most, whose masses are left out where they say most of all
_LARGEST = 600.0  # of a log weight
_EXPECTED = 0.05  # draws of q: where fewer than that would fall it has seen nothing


class _Places:
    """Local Gaussians, from each of which as many draws come, most of them from itself, some from a wider one."""

    def __init__(self, gaussians: list[Gaussian]):
        self.gaussians, self.dim = gaussians, gaussians[0].dim
        self.means, chols = np.stack([q.mean for q in gaussians]), np.stack([q.chol for q in gaussians])
        self.whiteners = np.linalg.inv(chols)
        volumes = np.sum(np.log(np.diagonal(chols, axis1=1, axis2=2)), axis=1) + math.log(len(gaussians))
        self.log_scales = np.log(_SHARES) - self.dim * (np.log(_WIDTHS) + LOG_2PI / 2) - volumes[:, None]

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        noise = rng.standard_normal((n, self.dim)) * rng.choice(_WIDTHS, (n, 1), p=_SHARES)
        parts = np.array_split(noise, len(self.gaussians))
        return np.concatenate([q.push(part) for q, part in zip(self.gaussians, parts, strict=True)])

    def log_density(self, z: np.ndarray) -> np.ndarray:
        noise = (z - self.means[:, None]) @ self.whiteners.transpose(0, 2, 1)
        logs = self.log_scales[:, :, None] - squared_norms(noise)[:, None] / (2 * _WIDTHS[:, None] ** 2)
        return log_sum_exp(logs.reshape(-1, len(z)), axis=0)


def look_beyond(
    rng: np.random.Generator, q: AbstractApproximation, evaluator: Evaluator, draws: WeightedDraws
) -> View | None:
    """A walk outwards from the edge of q where the weights of its draws are uneven and local Gaussians are small."""
    if q.dim > _MOST_DIM or evaluator.one_pass or ness(draws.log_weights) >= _EVEN:
        return None
    with np.errstate(all="ignore"):
        return walk_out(rng, q, to_host(q.as_gaussian()), Budget(evaluator, _EVALUATIONS), draws)


def walk_out(
    rng: np.random.Generator, q: AbstractApproximation, scale: Gaussian, budget: Budget, draws: WeightedDraws
) -> View | None:
    """What draws further and further out see where p is more than q; None if it is nowhere.

    `scale` is a Gaussian of q's moments.
    """
    z, log_p = np.asarray(draws.z[:_OWN], np.float64), draws.log_p[:_OWN]
    n = max(_DRAWS, _DRAWS_PER_DIMENSION * scale.dim)
    pool, log_q, drawn = Pool(2**62), draws.log_q[:_OWN], 0
    pool.add(Batch(q, z, log_p, np.zeros_like(z)), [log_q])
    for _ in range(_ROUNDS):
        excess = pool.log_p - pool.log_evidence - log_q
        residual = np.exp(pool.log_p - pool.log_evidence - pool.log_proposal) * pool.trust
        heaviest = float(np.max(excess))
        heavy = min(_HEAVY, math.exp(min(heaviest, _LARGEST)) / 2)
        residual = residual * np.maximum(1 - heavy * np.exp(-np.maximum(excess, 0)), 0)
        if heaviest < math.log(_LEAST_HEAVY) or budget.left < _PLACES * (scale.dim + 1) + n:
            break
        chosen = rng.choice(residual.size, _PLACES, p=residual / np.sum(residual))
        chosen[0] = np.argmax(excess)
        places = _local(budget, scale, pool.z[chosen])
        if places is None:
            break
        z = places.draw(rng, n)
        values, scores = budget.value_and_score(z)
        pool.add(Batch(places, z, np.asarray(values, np.float64), scores))
        log_q, drawn = np.append(log_q, q.log_density(z)), drawn + n
    if not drawn:
        return None
    kept = np.flatnonzero(pool.log_p - pool.log_evidence - log_q > math.log(_LEAST_HEAVY))
    if not kept.size:
        return None
    log_weights = (pool.log_p - pool.log_proposal)[kept] + math.log(kept.size / len(pool))
    return view_of(pool.z[kept], pool.log_p[kept], log_weights)


def _local(budget: Budget, scale: Gaussian, centres: np.ndarray) -> _Places | None:
    """Gaussians with the curvature of log p at places, which move to the ridge of log p if they stand beside it.

    None where no curvature is finite.
    """
    chol, dim = scale.chol, scale.dim
    step = _ROUGH_DIFFERENCE if budget.evaluator.dtype == np.float32 else _DIFFERENCE
    around = np.concatenate([centres[:, None], centres[:, None] + step * chol.T], axis=1)
    scores = np.asarray(budget.value_and_score(around.reshape(-1, dim))[1], np.float64)
    scores = (scores @ chol).reshape(-1, dim + 1, dim)
    curvature = _symmetric(scores[:, :1] - scores[:, 1:]) / step
    known = np.all(np.isfinite(curvature), axis=(1, 2))
    values, vectors = np.linalg.eigh(curvature[known])
    size = np.maximum(np.abs(values), 1 / _WIDEST**2)
    slopes = np.einsum("nij,ni->nj", vectors, scores[known, 0])
    to_ridge = np.where(values > _STIFF, np.clip(slopes / size, -_STEP / np.sqrt(size), _STEP / np.sqrt(size)), 0)
    means = centres[known] + np.einsum("nij,nj->ni", chol @ vectors, to_ridge)
    roots = (chol @ vectors) / np.sqrt(size)[:, None]
    parts = [Gaussian.unchecked(m, linalg.cholesky_of_square(root)) for m, root in zip(means, roots, strict=True)]
    parts = [part for part in parts if part.is_valid()]
    return _Places(parts) if parts else None


def _symmetric(matrices: np.ndarray) -> np.ndarray:
    return (matrices + matrices.transpose(0, 2, 1)) / 2


def beyond(q: AbstractApproximation, log_evidence: float, num_samples: int, view: View) -> float:
    """The mass where fewer than a twentieth of a draw is expected of so many of q, by a walk outwards.

    That is where p is more than t times q, for the smallest t that leaves q so little.
    """
    excess = view.values - q.log_density(view.z) - log_evidence
    order = np.argsort(-excess)
    masses = np.exp(view.log_weights[order] - log_evidence) / view.values.size
    expected = num_samples * np.cumsum(masses * np.exp(-excess[order]))
    return float(np.sum(without_leaders(masses[: int(np.searchsorted(expected, _EXPECTED))])))


def without_leaders(masses: np.ndarray) -> np.ndarray:
    """Masses of draws without the largest, as long as two or three of them say most of the whole: none if all do so.

    >>> without_leaders(np.array([1.0, 20.0, 1.0, 1.0, 1.0, 1.0])).tolist()
    [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    """
    masses = np.array(masses)
    for _ in range(_LEADERS + 1):
        if float(np.sum(masses**2)) < float(np.sum(masses)) ** 2 / 4:
            return masses
        if masses.size:
            masses[np.argmax(masses)] = 0
    return np.zeros_like(masses)
