"""Hamiltonian Monte Carlo for many chains side by side, in NumPy, on a path of densities from a base to the target.

The density at temperature t is base^(1−t) p^t. All chains take the same number of leapfrog steps, each with a step size
a little its own, so that a step of all chains is one call of the target.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bures.engine import Evaluator
from bures.ladder.base import Base

_ACCEPTANCE = 0.8  # that step sizes are tuned to
_GAIN = 1.0  # of the logarithm of the step size, for an acceptance off by one
_QUARTER = math.pi / 2  # of a period: so long a path makes a draw of a standard normal independent of the last
_JITTER = 0.3  # of the length of paths, so that no period is met for ever
_MOST_STEPS = 64  # in a path
_HOPELESS = 1000.0  # error of the energy, in nats, from which a chain is not followed any further


class Cloud(NamedTuple):
    """Where the chains are, with what is known there of the target and of the base."""

    z: Float[np.ndarray, "chain dim"]
    log_p: Float[np.ndarray, " chain"]
    score_p: Float[np.ndarray, "chain dim"]
    log_q: Float[np.ndarray, " chain"]
    score_q: Float[np.ndarray, "chain dim"]

    def log_density(self, t: float) -> Float[np.ndarray, " chain"]:
        return self.log_p if t == 1 else t * self.log_p + (1 - t) * self.log_q

    def score(self, t: float) -> Float[np.ndarray, "chain dim"]:
        return self.score_p if t == 1 else t * self.score_p + (1 - t) * self.score_q

    def where(self, chosen: Float[np.ndarray, " chain"], other: "Cloud") -> "Cloud":
        """Those chosen, and the others of another cloud."""
        parts = zip(self, other, strict=True)
        return Cloud(*(np.where(chosen[:, None] if a.ndim == 2 else chosen, a, b) for a, b in parts))


class Path(NamedTuple):
    """The densities from the base to the target, and how chains move on them."""

    evaluator: Evaluator
    base: Base
    frame: Float[np.ndarray, "dim dim"]  # columns in which the density is about standard normal
    step_size: float
    length: float = _QUARTER  # of the paths, about

    def at(self, z: Float[np.ndarray, "chain dim"], t: float) -> Cloud:
        """A cloud at these points; the base is not asked at the target's end."""
        log_p, score_p = (np.asarray(part, np.float64) for part in self.evaluator.value_and_score(z))
        if t == 1:
            return Cloud(z, log_p, score_p, np.zeros_like(log_p), np.zeros_like(score_p))
        return Cloud(z, log_p, score_p, *self.base.value_and_score(z))

    def move(self, rng: np.random.Generator, cloud: Cloud, t: float) -> tuple[Cloud, float]:
        """One transition of every chain that leaves base^(1−t) p^t as it is; and the mean acceptance rate."""
        length = self.length * rng.uniform(1 - _JITTER, 1 + _JITTER)
        count = max(1, min(_MOST_STEPS, round(length / self.step_size)))
        steps = self.step_size * rng.uniform(1 - _JITTER, 1 + _JITTER, (len(cloud.z), 1))
        momentum = rng.standard_normal(cloud.z.shape)
        first = cloud.log_density(t) - np.sum(momentum**2, axis=1) / 2
        new, lost = cloud, np.zeros(len(cloud.z), bool)
        with np.errstate(all="ignore"):
            for i in range(count):
                momentum = momentum + (steps / 2 if i == 0 else steps) * (new.score(t) @ self.frame)
                z = new.z + steps * momentum @ self.frame.T
                lost |= ~np.all(np.isfinite(z), axis=1) | ~(new.log_density(t) > first - _HOPELESS)
                new = self.at(np.where(lost[:, None], cloud.z, z), t)
            momentum = momentum + steps / 2 * (new.score(t) @ self.frame)
            gain = new.log_density(t) - np.sum(momentum**2, axis=1) / 2 - first
            gain = np.where(np.isfinite(gain) & ~lost, gain, -np.inf)
            accepted = np.log(rng.uniform(size=gain.size)) < gain
            return new.where(accepted, cloud), float(np.mean(np.exp(np.minimum(gain, 0))))

    def tuned(self, acceptance: float) -> "Path":
        """With a step size nearer to the one that is accepted often enough."""
        return self._replace(step_size=self.step_size * math.exp(_GAIN * (acceptance - _ACCEPTANCE)))


def first_step_size(dim: int) -> float:
    """The step size for a standard normal of this dimension that is accepted four times in five, about."""
    return 1.2 * dim**-0.25
