"""Moves of a mixture on the pool: components by the field fitted to its draws, shares by mirror steps.

At the draws of the pool, weighted by what is a component's and by A, the score s of the log weight is fitted by an
affine map u ↦ a + S u in the coordinates where the component is standard normal, by least squares: where s is affine,
as between Gaussians, there is no noise. At the optimum both are zero, as those of Stein's lemma are.
"""

import numpy as np

from bures import linalg
from bures.arrays import log_sum_exp
from bures.family.mixture import GaussianMixture
from bures.mixing import bound
from bures.mixing.pool import Pool

TAIL_SIZE = 3 * bound.K  # of the tuples by which tails and new components are chosen: larger ones see more of the tails
_GAIN, _TRUST_RADIUS = 0.5, 1.0  # of a step, and the longest one of a mean in standard deviations
_MOST_WIDER = 0.5  # of a variance, in a step
_LEAST_DRAWS = 10  # effective, and 1.5 for each dimension: with fewer a component stays where it is
_LEAST_SHARE = 0.05  # of the draws that have a weight
_NEGLIGIBLE = 1e-3  # times the mean weight: draws that need not be looked at
_FIRST_TAIL, _TAIL_STEPS = 0.05, 100
_MIRROR_STEPS, _LARGEST_CHANGE, _SMALLEST = 5, 1.0, -9.0  # of log shares


class Moved:
    """A mixture with its densities at the draws of a pool."""

    def __init__(self, q: GaussianMixture, pool: Pool, log_components: np.ndarray | None = None):
        self.q, self.pool = q, pool
        self.log_components = q.log_components(pool.z) if log_components is None else log_components
        self.log_q = log_sum_exp(self.log_components + q.log_shares[:, None], axis=0)
        self.w = bound.weights(pool.log_p, self.log_q, pool.log_evidence)
        self.drawn = np.exp(np.minimum(self.log_q - pool.log_proposal, 50.0))

    def deficits(self, size: float = bound.K) -> np.ndarray:
        return self.pool.trust * bound.deficits(self.w, self.drawn, size)

    def own(self) -> np.ndarray:
        """Each component's density over that of the pool, (components, n)."""
        return np.exp(np.minimum(self.log_components - self.pool.log_proposal, 50.0))

    def reweighed(self, steps: int = _MIRROR_STEPS) -> "Moved":
        """The same components with better shares: the bound is concave in them."""
        log_shares = mirror_steps(self.own(), self.q.log_shares, self.pool, steps)
        q = GaussianMixture.unchecked(log_shares, self.q.means, self.q.chols, self.q.tail)
        return Moved(q, self.pool, self.log_components)

    def stepped(self) -> "Moved":
        """After a step of every component that enough draws see, and of the shares."""
        q, pool = self.q, self.pool
        responsibilities = np.exp(self.log_components + q.log_shares[:, None] - self.log_q)
        score = pool.score + entropy_scores(q, pool.z, responsibilities)
        A = bound.coefficients(self.w, self.drawn, _LEAST_SHARE)
        means, chols = q.means.copy(), q.chols.copy()
        for c, weight in enumerate(self.own() * (A * pool.trust)):
            moved = moved_component(q.means[c], q.chols[c], pool.z, score, weight)
            if moved is not None:
                means[c], chols[c] = moved
        return Moved(GaussianMixture.unchecked(q.log_shares, means, chols, q.tail), pool).reweighed()

    def without(self, kept: np.ndarray) -> "Moved":
        """Only some of the components."""
        log_shares = self.q.log_shares[kept]
        q = GaussianMixture.unchecked(
            log_shares - log_sum_exp(log_shares, axis=0), self.q.means[kept], self.q.chols[kept], self.q.tail[kept]
        )
        return Moved(q, self.pool, self.log_components[kept])

    def with_component(self, mean: np.ndarray, chol: np.ndarray, share: float = 0.1) -> "Moved":
        """One component more, with shares to match."""
        q = self.q
        one = GaussianMixture.unchecked(np.zeros(1), mean[None], chol[None], np.zeros(1))
        grown = GaussianMixture.unchecked(
            np.append(q.log_shares + np.log1p(-share), np.log(share)),
            np.concatenate([q.means, one.means]),
            np.concatenate([q.chols, one.chols]),
            np.append(q.tail, 0.0),
        )
        return Moved(
            grown, self.pool, np.concatenate([self.log_components, one.log_components(self.pool.z)])
        ).reweighed()


def mirror_steps(own: np.ndarray, log_shares: np.ndarray, pool: Pool, steps: int, size: float = bound.K) -> np.ndarray:
    """Better shares for parts whose densities over that of the pool are `own`, (parts, n)."""
    averages = pool.trust * own / np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
    density = np.exp(pool.log_p - pool.log_evidence - pool.log_proposal)
    for _ in range(steps):
        w = density / np.maximum(np.exp(log_shares) @ own, 1e-300)
        gradient = averages @ bound.variation(w, size)
        gradient = 2 * (gradient - np.exp(log_shares) @ gradient)
        log_shares = log_shares + np.clip(gradient, -_LARGEST_CHANGE, _LARGEST_CHANGE)
        log_shares = np.maximum(log_shares - log_sum_exp(log_shares, axis=0), _SMALLEST)
        log_shares = log_shares - log_sum_exp(log_shares, axis=0)
    return log_shares


def with_tails(q: GaussianMixture, pool: Pool, least: float, size: float) -> GaussianMixture:
    """The mixture with as much tail at each component as the pool asks for, and at least so much of it.

    A component's tail is a part of its own in the bound, which is concave in the shares of all parts.
    """
    squares = [np.sum(part.whiten(pool.z) ** 2, axis=1) for part in q.components]
    logs = np.array([q.log_parts(c, each) for c, each in enumerate(squares)])  # (components, 2, n)
    own = np.exp(np.minimum(logs - pool.log_proposal, 50.0)).reshape(2 * len(squares), -1)
    begun = q.log_shares[:, None] + np.log([1 - _FIRST_TAIL, _FIRST_TAIL])
    shares = np.exp(mirror_steps(own, begun.ravel(), pool, _TAIL_STEPS, size)).reshape(-1, 2)
    total = shares.sum(axis=1)
    return GaussianMixture.unchecked(np.log(total), q.means, q.chols, np.maximum(shares[:, 1] / total, least))


def entropy_scores(q: GaussianMixture, z: np.ndarray, responsibilities: np.ndarray) -> np.ndarray:
    """−∇log q, each component only where it has a part."""
    scores = np.zeros_like(z)
    for c, part in enumerate(responsibilities):
        rows = np.flatnonzero(part > 1e-6)
        inverse = linalg.inverse_lower(q.chols[c])
        scores[rows] += part[rows, None] * ((z[rows] - q.means[c]) @ inverse.T @ inverse)
    return scores


def moved_component(
    mean: np.ndarray, chol: np.ndarray, z: np.ndarray, score: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """A Gaussian moved along the affine map that fits the scores; None where too few draws see it."""
    total, dim = np.sum(weight), mean.size
    if not total > 0:
        return None
    rows = np.flatnonzero(weight > _NEGLIGIBLE * total / weight.size)
    weight = weight[rows] / np.sum(weight[rows])
    effective = 1 / np.sum(weight**2)
    if effective < max(_LEAST_DRAWS, 1.5 * dim):
        return None
    u = (z[rows] - mean) @ linalg.inverse_lower(chol).T
    s = score[rows] @ chol
    centre, a = weight @ u, weight @ s
    weighted = (u - centre).T * weight
    slope = np.linalg.solve(weighted @ (u - centre) + 1e-9 * np.eye(dim), weighted @ s)
    slope = linalg.symmetrise(slope) * (effective / (effective + dim))  # d × d numbers from so many draws
    values, vectors = np.linalg.eigh(slope)
    excess = np.maximum(-_GAIN * values, -_MOST_WIDER)
    scale = np.sqrt((1 + np.maximum(-excess, 0)) / (1 + np.maximum(excess, 0)))
    move = _GAIN * (vectors.T @ (a - slope @ centre)) / np.maximum(1, 1 - values)
    move /= max(1.0, float(np.linalg.norm(move)) / _TRUST_RADIUS)
    moved = mean + chol @ (vectors @ move), linalg.cholesky_of_square(chol @ (vectors * scale))
    return moved if all(np.all(np.isfinite(part)) for part in moved) else None
