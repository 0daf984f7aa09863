"""Further rounds, by the ELBO, of targets on which weights degenerate: many components, added several at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bures.family.gaussian import Gaussian
from bures.family.mixture import GaussianMixture
from bures.images import is_apart, mirror_image
from bures.mixing import densities
from bures.mixing.elbo import ManyPool, OnPool, joined, spread_proposal
from bures.mixing.pause import Pause, Round, is_finite, ness_of
from bures.mixing.pool import Batch, Pool, draws_of
from bures.modes import distinct, gaussian_of, laplace_mass
from bures.outcome import Outcome
from bures.search import Budget, Summit, climb

FAR = (
    1.5  # deficit of fresh draws from which weights degenerate: an nESS of at most 40%, and less where it is led by few
)
_EVALUATIONS, _SLOW_DIM = 13_000_000, 30  # over the dimension, and less beyond so many: there d × d work is most of it
_WORTHWHILE = 3  # times the evaluations spent before: where fewer could follow, none do
_LEAST_DRAWS, _DRAWS_PER_DIMENSION = 1000, 2  # of a round; those for each component
_ROUNDS_KEPT = 12  # in the pool
_MOST_COMPONENTS = 300
_GROWN_EVERY, _GROWN_BY = 4, 0.125  # rounds; of the components
_GROWN_SHARE = 0.65  # of the evaluations, after which there are no new components
_SMALLEST = 3e-3  # of an even share, that a component must have
_JUDGED_ROUNDS, _LEAST_RISE, _LEAST_POLISH = 40, 0.03, 0.01  # the last ones; nats in half of them, against those before
_SEARCHED, _CLIMBS, _CLIMB_ROUNDS, _IN_VAIN = 0.05, 12, 40, 48  # share of the evaluations; climbs at once, and in vain
_WIDTHS = (1.0, 3.0, 10.0)  # of the points that they begin at
_OF_IMAGE = 100  # evaluations
_LEAST_MASS = math.log(1e-4)  # of a mode, beside the largest


def further_evaluations(dim: int, spent: int) -> int:
    """Of all further rounds; none where that is little beside what was spent before."""
    more = _EVALUATIONS // max(dim, 10) * _SLOW_DIM // max(dim, _SLOW_DIM)
    return more if more > _WORTHWHILE * spent else 0


def has_elbo(q: GaussianMixture, pool: Pool) -> bool:
    """Whether no draw of q is beyond the edge of the support, where log p has no mean."""
    drawn = np.exp(np.minimum(q.log_density(pool.z) - pool.log_proposal, 50.0))
    return math.isfinite(pool.log_evidence) and not np.any(np.isneginf(pool.log_p) & (drawn > 0))


class FurtherRun:
    """The fit from where weights are known to degenerate."""

    def __init__(self, rng: np.random.Generator, evaluator: Any, begun: Pause):
        self.rng, self.evaluator, self.begun = rng, evaluator, begun
        rng.bit_generator.state = begun.generator
        self.q, self.rounds, self.left, self.polishing = begun.q, list(begun.rounds), begun.left, begun.polishing
        self.most = begun.max_components or _MOST_COMPONENTS
        self.pool = ManyPool(self.capacity, begun.batches)
        # Of the components at each batch of the pool, where they are known.
        self.log_components: list[np.ndarray] | None = None
        self.settled, self.failure, self.flaw = False, None, None

    def pause(self) -> Pause:
        """What the next round depends on."""
        return self.begun._replace(
            q=self.q,
            batches=tuple(self.pool.batches),
            rounds=tuple(self.rounds),
            left=self.left,
            drawn=sum(each.draws for each in self.rounds),
            polishing=self.polishing,
            generator=dict(self.rng.bit_generator.state),
        )

    @property
    def draws(self) -> int:
        return max(_LEAST_DRAWS, _DRAWS_PER_DIMENSION * self.q.dim * self.q.num_components)

    @property
    def capacity(self) -> int:
        return _ROUNDS_KEPT * self.draws

    @property
    def ended(self) -> bool:
        return self.settled or self.failure is not None or self.left <= 0

    @property
    def outcome(self) -> Outcome:
        return self.failure or self.flaw or (Outcome.CONVERGED if self.settled else Outcome.MAX_STEPS)

    def next(self) -> None:
        """Nothing comes after it."""

    def round(self) -> None:
        """Draw, look at the draws, move; and grow now and then. A round that fails leaves nothing behind."""
        count = len(self.rounds) - self.begun.by_elbo
        if count == 0:
            self.search()
        n = min(self.draws, self.left)
        batch = draws_of(self.rng, spread_proposal(self.q), self.evaluator, n)
        self.left -= n
        self.failure = batch.failure
        if self.failure is not None:
            return
        self.pool.capacity = self.capacity
        new = self.add(batch)
        self.rounds.append(self.look(batch, new))
        now = OnPool(self.q, self.pool, self.log_components).stepped()
        if (count + 1) % _GROWN_EVERY == 0:  # the newest components have had some rounds to find their shapes
            now = now.without_small(_SMALLEST)
        if not is_finite(now.q):
            self.failure = Outcome.NON_FINITE
            return
        self.q, self.log_components = now.q, None if (count + 1) % _GROWN_EVERY == 0 else now.log_components
        if self.polishing:
            self.settled = self.rise(self.polishing) < _LEAST_POLISH
        elif self.is_grown():
            self.polishing = len(self.rounds)
        elif (count + 1) % _GROWN_EVERY == 0:
            room = self.most - self.q.num_components
            self.q = now.grown(self.rng, min(room, math.ceil(_GROWN_BY * self.q.num_components)))

    def add(self, batch: Batch) -> np.ndarray:
        """A batch more in the pool; the log densities of the components at its draws."""
        known = self.log_components or [densities.log_components(self.q, each.z) for each in self.pool.batches]
        new = densities.log_components(self.q, batch.z)
        self.pool.add_known(batch, [*known, new])
        self.log_components = [*known, new][-len(self.pool.batches) :]
        return new

    def is_grown(self) -> bool:
        """Whether it is time to add nothing more: there is no room, too little left to spend, or to gain."""
        spent = sum(each.draws for each in self.rounds[self.begun.by_elbo :])
        late = spent > _GROWN_SHARE * (spent + self.left)
        return late or self.q.num_components >= self.most or self.rise(self.begun.by_elbo) < _LEAST_RISE

    def rise(self, first: int) -> float:
        """How much more the ELBO is in the second half of the last rounds than in the first; none is before `first`.

        Where they are too few, or one of them has no finite ELBO, nothing is known: it may be any number.
        """
        seen = self.rounds[first:][-_JUDGED_ROUNDS:]
        if len(seen) < _JUDGED_ROUNDS or not all(math.isfinite(each.bound) for each in seen):
            return math.inf
        half = len(seen) // 2
        return _mean_bound(seen[half:]) - _mean_bound(seen[:half])

    def look(self, batch: Batch, log_components: np.ndarray) -> Round:
        """Fresh draws of the proposal, as those of q."""
        log_q = densities.log_density(log_components, self.q.log_shares)
        drawn = np.exp(log_q - densities.log_density(log_components, batch.proposal.log_shares))
        log_weights = batch.log_p - log_q
        own = drawn > 0  # others are none of q's, whatever they weigh
        elbo = float(np.average(log_weights[own], weights=drawn[own])) if own.any() else -math.inf
        self.flaw = batch.flaw(drawn) or (None if math.isfinite(elbo) else Outcome.ZERO_DENSITY)
        w = np.exp(log_weights - np.max(log_weights))
        gap = self.pool.log_evidence - elbo
        return Round(elbo, ness_of(w, drawn), 2 * gap, len(batch.z), float(self.q.min_eigenvalue()))

    def best(self) -> GaussianMixture:
        return self.q

    # ---- Modes

    def search(self) -> None:
        """Climb from points about the mixture, and begin a component at each mode: narrow, curved ones are not weighed.

        Few draws of the Gaussian of such a mode see its mass; the rounds will shape it.
        """
        before = self.evaluator.count
        budget = Budget(self.evaluator, int(_SEARCHED * self.left))
        found: list[Summit] = []
        heavy: list[Gaussian] = []
        in_vain = 0
        while budget.left > _CLIMBS * (self.q.dim + 10) and in_vain < _IN_VAIN:
            points = self.scattered(_with(self.q, heavy).as_gaussian())
            summits = climb(budget.value_and_score, points, rounds=_CLIMB_ROUNDS, both_sides=False)
            more = distinct([*found, *summits], (), None)
            in_vain = 0 if len(more) > len(found) else in_vain + _CLIMBS
            found = more
            most = max((laplace_mass(each) for each in found), default=0.0)
            heavy = [gaussian_of(each) for each in found if laplace_mass(each) > most + _LEAST_MASS]
        for image in (mirror_image(Budget(self.evaluator, _OF_IMAGE), each) for each in tuple(heavy)):
            if image is not None and image.is_exact and all(is_apart(each, image.gaussian.mean) for each in heavy):
                heavy.append(image.gaussian)
        self.left -= self.evaluator.count - before
        self.q = _with(self.q, heavy[: max(0, self.most - self.q.num_components)])

    def scattered(self, whole: Gaussian) -> np.ndarray:
        """Points about all that is known, near and far: half of them as it is spread, half to all sides alike."""
        widths = np.resize(_WIDTHS, _CLIMBS // 2)[:, None]
        noise = np.split(self.rng.standard_normal((_CLIMBS, self.q.dim)), 2)
        largest = float(np.max(np.linalg.norm(whole.chol, axis=1)))
        return np.concatenate([whole.push(widths * noise[0]), whole.mean + largest * widths * noise[1]])


def _with(q: GaussianMixture, more: Sequence[Gaussian]) -> GaussianMixture:
    """The mixture and some Gaussians, each with an even share."""
    if not more:
        return q
    return joined(q, np.stack([each.mean for each in more]), np.stack([each.chol for each in more]), 1.0)


def _mean_bound(rounds: list[Round]) -> float:
    return float(np.average([each.bound for each in rounds], weights=[each.draws for each in rounds]))
