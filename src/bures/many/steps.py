"""The steps of many fits at once: for each the default step of `bures.fit`, with a gain, a gap and an end of its own.

What `family.gaussian_moves.whitened_step` and `estimator.Stein` do for one Gaussian, for a stack of them.
"""

from typing import NamedTuple

import numpy as np

from bures.arrays import softmax
from bures.estimator import Stein, blockings
from bures.geometry import Whitened
from bures.many import algebra
from bures.objective import AbstractObjective, Tempered, coefficients_of_power


class Lanes(NamedTuple):
    """A stack of Gaussians, and what is remembered of each one's earlier gradients, as in `WhitenedState`."""

    mean: np.ndarray
    chol: np.ndarray
    a: np.ndarray
    S: np.ndarray
    size: np.ndarray
    mean_A: np.ndarray
    delay: np.ndarray
    gap: np.ndarray

    @classmethod
    def begin(cls, mean: np.ndarray, chol: np.ndarray) -> "Lanes":
        size, mean_A, delay = np.zeros((3, len(mean)), mean.dtype)  # apart from each other: they change in place
        gap = np.full(len(mean), np.inf, mean.dtype)
        return cls(mean, chol, np.zeros_like(mean), np.zeros_like(chol), size, mean_A, delay, gap)

    def at(self, rows: np.ndarray) -> "Lanes":
        """Some of them."""
        return Lanes(*(part[rows] for part in self))

    def put(self, rows: np.ndarray, moved: "Lanes") -> None:
        """Others in the place of some; in place."""
        for part, new in zip(self, moved, strict=True):
            part[rows] = new


class Gradients(NamedTuple):
    """The gradient of the bound of each fit in its own whitened coordinates, before division by the mean of A."""

    shift: np.ndarray  # Lᵀ a
    whitened: np.ndarray  # Lᵀ S L
    centre: np.ndarray  # Lᵀ of the part of the entropy
    mean_A: np.ndarray
    bound: np.ndarray


def gradients(
    noise: np.ndarray, log_p: np.ndarray, scores: np.ndarray, q: Lanes, objective: AbstractObjective, estimator: Stein
) -> Gradients:
    """By Stein's lemma, from noise (fits, n, dim) and log p and ∇log p at the draws that it makes."""
    count, n, _ = noise.shape
    log_weights = (log_p - log_q(noise, q.chol)).reshape(count, estimator.M, objective.K)
    bound, A = _blocked(objective, log_weights, q.gap, estimator.permutations)
    A = A.reshape(count, n, 1)
    # A draw of weight zero contributes nothing, whatever its score is.
    whitened_scores = np.where(A != 0, np.matmul(scores, q.chol) + noise, 0)
    weighted = noise * (A / n)
    return Gradients(
        (whitened_scores * A).mean(axis=1),
        algebra.symmetrised(np.matmul(weighted.mT, whitened_scores)),
        weighted.sum(axis=1),
        A.mean(axis=(1, 2)),
        bound,
    )


def log_q(noise: np.ndarray, chol: np.ndarray) -> np.ndarray:
    """log q at the draws of some noise."""
    constant = algebra.log_determinants(chol) + noise.shape[2] * np.log(2 * np.pi) / 2
    return -(noise**2).sum(axis=2) / 2 - constant[:, None].astype(noise.dtype)


def _blocked(
    objective: AbstractObjective, log_weights: np.ndarray, gaps: np.ndarray, permutations: int
) -> tuple[np.ndarray, np.ndarray]:
    """The bound and A of each fit, averaged over several ways to block its draws into tuples."""
    count, M, K = log_weights.shape
    powers = _gradient_powers(objective, log_weights, gaps)[:, None, None, None]
    there, back, _ = blockings(M, K, permutations)
    tuples = np.moveaxis(log_weights.reshape(count, -1)[:, there], 1, -1)  # (fits, permutations, M, K)
    A = coefficients_of_power(powers, tuples).A
    A = np.moveaxis(A, -1, 1).reshape(count, -1)[:, back].mean(axis=1)
    return objective.bound(tuples).mean(axis=(1, 2)), A


def _gradient_powers(objective: AbstractObjective, log_weights: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """1 − α for each fit, lowered as `Tempered` does for those whose tuples are degenerate: few, so one by one."""
    power = objective.power(log_weights)
    powers = np.full(len(log_weights), power)
    if objective.K == 1:
        return powers
    g = softmax(power * log_weights)
    shares = (1 / (g**2).sum(axis=2)).mean(axis=1) / objective.K
    for i in np.flatnonzero(~(shares >= 0.5) & np.isfinite(log_weights).any(axis=(1, 2))):
        tempered = Tempered.of(objective, np.minimum(gaps[i], gaps.dtype.type(1)))
        powers[i] = tempered.gradient_power(log_weights[i])
    return powers


def whitened_steps(q: Lanes, found: Gradients, settings: Whitened) -> tuple[Lanes, np.ndarray]:
    """The next Gaussians; and which of them are valid."""
    memory = 1 / (1 + q.delay)
    mean_A = np.where(q.mean_A > 0, q.mean_A + memory * (found.mean_A - q.mean_A), found.mean_A)
    shift, whitened = found.shift / mean_A[:, None], found.whitened / mean_A[:, None, None]
    inverse = np.linalg.inv(np.where(np.isfinite(q.chol), q.chol, np.eye(q.chol.shape[-1])))
    a = algebra.times(inverse.mT, shift)
    S = np.matmul(inverse.mT, np.matmul(whitened, inverse))
    average = _whiten(q.a, q.S, q.chol)
    size, average_size = _nats((shift, whitened), (shift, whitened)), _nats(average, average)
    stale = (average_size > settings.stale * size) | (average_size == 0)
    cosine = _nats((shift, whitened), average) / np.where(stale, 1, np.sqrt(size * average_size))
    change = np.where(cosine < 0, 1 / np.sqrt(np.maximum(size, 1)), -cosine / 2)
    delay = np.where(stale, q.delay, np.maximum(q.delay + change, 0))
    gain = 1 / (1 + delay)

    mean, chol = _moved(q, shift, whitened, found.centre / mean_A[:, None], gain, settings)

    share = np.where(stale, 1, gain)
    a, S = q.a + share[:, None] * (a - q.a), q.S + share[:, None, None] * (S - q.S)
    average = _whiten(a, S, q.chol)
    size = q.size + np.maximum(share, settings.memory) * (size - q.size)
    gap = _nats(average, average) + gain * size / 2
    dtype = q.mean.dtype
    moved = Lanes(*(part.astype(dtype, copy=False) for part in (mean, chol, a, S, size, mean_A, delay, gap)))
    return moved, algebra.are_valid(mean, chol) & np.isfinite(found.bound)


def _moved(
    q: Lanes, shift: np.ndarray, whitened: np.ndarray, centre: np.ndarray, gain: np.ndarray, settings: Whitened
) -> tuple[np.ndarray, np.ndarray]:
    """The means and factors after a step with these gains."""
    values, vectors = algebra.eigh(whitened)
    excess = np.maximum(-gain[:, None] * values, -1)
    widening, narrowing = 1 + np.maximum(-excess, 0), 1 + np.maximum(excess, 0)
    back = vectors.mT
    move = gain[:, None] * (algebra.times(back, centre) + algebra.times(back, shift - centre) / narrowing)
    overshoot = np.linalg.norm(move, axis=1, keepdims=True) / settings.trust_radius
    narrowing = 1 + (narrowing - 1) / np.maximum(overshoot - settings.far, 1)
    move = algebra.times(vectors, move / np.maximum(overshoot, 1))
    root = np.concatenate(
        [vectors * np.sqrt(widening / narrowing)[:, None, :], (settings.doubt * move)[:, :, None]], axis=2
    )
    return q.mean + algebra.times(q.chol, move), algebra.cholesky_of_square(np.matmul(q.chol, root))


def _whiten(a: np.ndarray, S: np.ndarray, chol: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return algebra.times(chol.mT, a), np.matmul(chol.mT, np.matmul(S, chol))


def _nats(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The inner products of whitened gradients in the Fisher metric."""
    return (one[0] * other[0]).sum(axis=1) / 2 + (one[1] * other[1]).sum(axis=(1, 2)) / 4
