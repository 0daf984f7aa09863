"""The pool: all draws so far with log p and its score, each worth what all proposals together say.

A draw of one proposal counts for what the mixture of all proposals would have drawn there (deterministic-mixture
weights), so draws of early, poor proposals do no harm, and every draw serves every later step: moving components on the
pool costs no evaluation.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bures.arrays import log_sum_exp
from bures.family.mixture import GaussianMixture
from bures.outcome import Outcome

_TAIL = 0.2  # share of the draws that come from tails: what lies just beyond a component must be seen


def proposal_of(q: GaussianMixture) -> GaussianMixture:
    """The mixture with enough tail to draw from."""
    tail = np.maximum(q.tail, np.asarray(_TAIL, q.means.dtype))
    return GaussianMixture.unchecked(q.log_shares, q.means, q.chols, tail)


class Batch:
    """Draws of one proposal."""

    def __init__(self, proposal: Any, z: np.ndarray, log_p: np.ndarray, score: np.ndarray):
        usable = np.isfinite(log_p) & np.all(np.isfinite(score), axis=1)
        # Where no draw is usable, there is nothing to go on with.
        failure = Outcome.ZERO_DENSITY if np.all(np.isneginf(log_p)) else Outcome.NON_FINITE
        self.failure = None if usable.any() else failure
        self._unknown = ~usable & ~np.isneginf(log_p)
        self.proposal, self.z = proposal, np.asarray(z, np.float64)
        self.log_p = np.where(usable, np.asarray(log_p, np.float64), -np.inf)
        self.score = np.where(usable[:, None], np.asarray(score, np.float64), 0.0)

    def flaw(self, drawn: np.ndarray) -> Outcome | None:
        """What a mixture cannot be called converged with: one of as many draws of its own would have no log p or score.

        `drawn` is its density over that of the proposal. Where the density is zero, it is known.
        """
        return Outcome.NON_FINITE if np.sum(drawn[self._unknown]) >= 1 else None


class Pool:
    """The latest batches, at most `capacity` draws of them."""

    def __init__(self, capacity: int, batches: Sequence[Batch] = ()):
        self.capacity = capacity
        self.batches = list(batches)
        # The log density of each proposal at the draws of each batch.
        self._table = [[self.log_density(row.proposal, each.z) for each in self.batches] for row in self.batches]
        if self.batches:
            self._join()

    def log_density(self, proposal: Any, z: np.ndarray) -> np.ndarray:
        return proposal.log_density(z)

    def add(self, batch: Batch, seen: list[np.ndarray] | None = None) -> None:
        """A batch more, and the oldest ones no more where there are too many.

        `seen`: the log density of its proposal at each batch, where that is known.
        """
        for row, old in zip(self._table, self.batches, strict=True):
            row.append(self.log_density(old.proposal, batch.z))
        self.batches.append(batch)
        new = [self.log_density(batch.proposal, each.z) for each in self.batches] if seen is None else seen
        self._table.append(new)
        while sum(len(each.z) for each in self.batches[1:]) >= self.capacity:
            del self.batches[0], self._table[0]
            self._table = [row[1:] for row in self._table]
        self._join()

    def _join(self) -> None:
        sizes = [len(batch.z) for batch in self.batches]
        joined = np.array([np.concatenate(row) for row in self._table])
        shares = np.log(np.array(sizes) / sum(sizes))
        self.log_proposal = log_sum_exp(joined + shares[:, None], axis=0)
        self.z, self.log_p, self.score = (
            np.concatenate([getattr(batch, name) for batch in self.batches]) for name in ("z", "log_p", "score")
        )
        log_masses = self.log_p - self.log_proposal
        self.log_evidence = float(log_sum_exp(log_masses, axis=0)) - math.log(len(self.z))
        # No draw may weigh more than √n of them: else what a single one says would drown all others (Ionides, 2008).
        excess = log_masses - self.log_evidence - math.log(len(self.z)) / 2
        self.trust = np.exp(-np.maximum(excess, 0))

    @property
    def effective(self) -> float:
        """How many draws say what the evidence is."""
        w = np.exp(self.log_p - self.log_proposal - self.log_evidence)
        return float(np.sum(w) ** 2 / np.sum(w**2))

    def __len__(self) -> int:
        return len(self.z)


def draw_batch(rng: np.random.Generator, q: GaussianMixture, evaluator: Any, n: int) -> Batch:
    """Fresh draws of a mixture's proposal."""
    return draws_of(rng, proposal_of(q), evaluator, n)


def draws_of(rng: np.random.Generator, proposal: GaussianMixture, evaluator: Any, n: int) -> Batch:
    """Fresh draws of a mixture, each component by its share as evenly as can be."""
    noise = rng.standard_normal((n, proposal.noise_dim))
    # The first number chooses the component: one in each n-th part of (0, 1).
    from scipy.special import ndtri

    noise[:, 0] = ndtri((np.arange(n) + rng.random(n)) / n)
    z = proposal.push(noise)
    return Batch(proposal, z, *evaluator.value_and_score(z))
