"""The ELBO on the pool: steps of all components, shares, and where new components begin.

Where weights degenerate, few draws say all that importance-weighted bounds see, and mass that q has where p has none
costs them next to nothing. The ELBO sees every draw: its field is the score of the log weight itself (A = 1), the first
variation along a component the mean of its log weights.
"""

import numpy as np

from bures.arrays import log_sum_exp
from bures.family.gaussian import Gaussian
from bures.family.mixture import GaussianMixture
from bures.mixing import densities
from bures.mixing.moving import entropy_scores, moved_component
from bures.mixing.pool import Batch, Pool

_MIRROR_STEPS, _MIRROR_GAIN, _LARGEST_CHANGE, _SMALLEST = 2, 0.7, 1.0, -12.0  # of log shares
_LEAST = -1e4  # log weight that a draw may have
_SPREAD = 0.5  # share of the draws that all components have alike
_NEW_SHARE = 0.25  # of an even share, of a new component
_MISSED = 0.5  # nats above the mean log weight, from which a draw is a place for a new component
_REACH = 1.5  # standard deviations from the mean of the component that a new one begins in
_TOP = 0.999  # quantile of the log weights above which all count alike


def spread_proposal(q: GaussianMixture) -> GaussianMixture:
    """The mixture, without tails, with shares that leave no component without draws."""
    shares = (1 - _SPREAD) * q.shares + _SPREAD / q.num_components
    return GaussianMixture.unchecked(np.log(shares), q.means, q.chols, np.zeros_like(q.tail))


class ManyPool(Pool):
    """A pool of draws of mixtures of many components."""

    def log_density(self, proposal: GaussianMixture, z: np.ndarray) -> np.ndarray:
        return densities.log_density(densities.log_components(proposal, z), proposal.log_shares)

    def add_known(self, batch: Batch, log_components: list[np.ndarray]) -> None:
        """A batch more, whose components' log densities at each batch, its own the last, are known."""
        self.add(batch, [densities.log_density(each, batch.proposal.log_shares) for each in log_components])


class OnPool:
    """A mixture at the draws of a pool, judged by the ELBO."""

    def __init__(
        self,
        q: GaussianMixture,
        pool: Pool,
        log_components: list[np.ndarray] | None = None,
        own: np.ndarray | None = None,
    ):
        self.q, self.pool = q, pool
        # At each batch: what comes out must not depend on which of them were looked at before.
        self.log_components = log_components or [densities.log_components(q, each.z) for each in pool.batches]
        # Each component's density over that of the pool, (components, n).
        self.own = self._own() if own is None else own
        self.drawn = np.maximum(q.shares @ self.own, 1e-300)
        self.log_weights = np.maximum(pool.log_p - pool.log_proposal - np.log(self.drawn), _LEAST)

    def _own(self) -> np.ndarray:
        found = np.concatenate(self.log_components, axis=1)
        found -= self.pool.log_proposal.astype(np.float32)  # in place: it is the largest array by far
        np.minimum(found, 50.0, out=found)
        return np.exp(found, out=found)

    @property
    def elbo(self) -> float:
        return float(np.average(self.log_weights, weights=self.drawn))

    def reweighed(self) -> "OnPool":
        """The same components with better shares."""
        # A component that has moved away from all draws has none: no zero by zero, in single precision either.
        averages = self.own / np.maximum(self.own.sum(axis=1, keepdims=True), np.finfo(self.own.dtype).tiny)
        now = self
        for _ in range(_MIRROR_STEPS):
            shares, gradient = now.q.shares, averages @ now.log_weights
            change = _MIRROR_GAIN * (gradient - shares @ gradient)
            log_shares = now.q.log_shares + np.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
            log_shares = np.maximum(log_shares - log_sum_exp(log_shares, axis=0), _SMALLEST)
            log_shares = log_shares - log_sum_exp(log_shares, axis=0)
            q = GaussianMixture.unchecked(log_shares, self.q.means, self.q.chols, self.q.tail)
            now = OnPool(q, self.pool, self.log_components, self.own)
        return now

    def stepped(self) -> "OnPool":
        """After a step of every component that enough draws see, and of the shares."""
        q, pool = self.q, self.pool
        responsibilities = self.own * (q.shares[:, None] / self.drawn)
        score = pool.score + entropy_scores(q, pool.z, responsibilities)
        del responsibilities
        means, chols = q.means.copy(), q.chols.copy()
        for c, weight in enumerate(self.own):
            moved = moved_component(q.means[c], q.chols[c], pool.z, score, weight)
            if moved is not None:
                means[c], chols[c] = moved
        return OnPool(GaussianMixture.unchecked(q.log_shares, means, chols, q.tail), pool).reweighed()

    def without_small(self, smallest: float) -> "OnPool":
        """Only the components with no less than so much of an even share."""
        kept = self.q.log_shares > np.log(smallest / self.q.num_components)
        if np.all(kept):
            return self
        q = self.q
        log_shares = q.log_shares[kept] - log_sum_exp(q.log_shares[kept], axis=0)
        q = GaussianMixture.unchecked(log_shares, q.means[kept], q.chols[kept], q.tail[kept])
        return OnPool(q, self.pool, [each[kept] for each in self.log_components], self.own[kept])

    def grown(self, rng: np.random.Generator, count: int) -> GaussianMixture:
        """The mixture with at most so many components more, at draws of mass that it misses."""
        q, excess = self.q, self.log_weights - self.elbo
        # Drawn without replacement by the weights, of which the largest count alike.
        places = np.minimum(excess, np.quantile(excess, _TOP)) + np.log(self.drawn) + rng.gumbel(size=excess.size)
        chosen = np.argsort(np.where(excess > _MISSED, -places, np.inf))[:count]
        chosen = chosen[excess[chosen] > _MISSED]
        if not chosen.size:
            return q
        within = np.argmax(self.own[:, chosen] * q.shares[:, None], axis=0)
        means = np.stack([_near(q.component(c), self.pool.z[i]) for i, c in zip(chosen, within, strict=True)])
        return joined(q, means, q.chols[within], _NEW_SHARE)


def _near(component: Gaussian, z: np.ndarray) -> np.ndarray:
    """A point on the way from the mean to z: in many dimensions all draws are far from the mean."""
    u = component.whiten(z)
    return component.push(u * min(1.0, _REACH / float(np.linalg.norm(u))))


def joined(q: GaussianMixture, means: np.ndarray, chols: np.ndarray, share: float) -> GaussianMixture:
    """The mixture and some components more, each with so much of an even share."""
    each = share / (q.num_components + len(means))
    log_shares = np.append(q.log_shares + np.log1p(-each * len(means)), np.full(len(means), np.log(each)))
    return GaussianMixture.unchecked(
        log_shares,
        np.concatenate([q.means, means]),
        np.concatenate([q.chols, chols]),
        np.zeros(len(log_shares)),
    )
