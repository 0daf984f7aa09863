"""Seeking: climbs to where the mixture misses mass that hardly any draw has seen.

Thin, bent ends of a target are hit by few draws of a tail, and have the heaviest weights. But draws near one know the
way: the density of the deficit, q φ(w) with φ(w) = (w − 1) − K log(1 + (w − 1) / K), rises towards it, has a summit
where p is well above q, and falls with p. A climb costs as much as a few draws, and its curvature gives a Gaussian.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bures.arrays import log_sum_exp
from bures.family.gaussian import Gaussian
from bures.mixing import bound
from bures.mixing.moving import TAIL_SIZE, Moved
from bures.modes import distinct, gaussian_of
from bures.search import Budget, Evaluate, climb

_CLIMBS, _ROUNDS, _ARRIVED = 4, 15, 0.01  # at once, the rounds of each, and nats still to gain at its end
_DRAWS = 16  # of a Gaussian at a summit
_HEAVY = 1.2  # weight from which a draw is a place to begin at
_LARGEST = 30.0  # of a log weight


class Place(NamedTuple):
    """A Gaussian where the mixture misses mass, and about how much of the deficit that is."""

    gaussian: Gaussian
    deficit: float


def seek(
    rng: np.random.Generator, now: Moved, budget: Budget, known: Sequence[Gaussian], least: float
) -> tuple[Place, ...]:
    """Places of more than so much of the deficit, none of those known."""
    starts = _starts(rng, now)
    if not starts.size:
        return ()
    evaluate = _deficit(now, budget)
    summits = climb(evaluate, now.pool.z[starts], rounds=_ROUNDS, arrived=_ARRIVED, both_sides=False)
    found = (gaussian_of(each) for each in distinct(summits, known))
    places = (Place(each, _seen(rng, evaluate, each)) for each in found)
    return tuple(place for place in places if place.deficit > least)


def _seen(rng: np.random.Generator, evaluate: Evaluate, q: Gaussian) -> float:
    """The deficit by a few draws: on a ring the curvature at a summit would promise far too much."""
    z = q.push(rng.standard_normal((_DRAWS, q.dim)))
    return float(np.mean(np.exp(np.nan_to_num(evaluate(z)[0] - q.log_density(z), nan=-np.inf))))


def _starts(rng: np.random.Generator, now: Moved) -> np.ndarray:
    """Draws of the pool: half by what they add to the deficit, half those that weigh most."""
    w = np.where(np.isfinite(now.pool.log_p), now.w, 0.0)
    part = np.where(w > _HEAVY, now.deficits(TAIL_SIZE), 0.0)
    if np.count_nonzero(part) < _CLIMBS:
        return np.zeros(0, int)
    half = _CLIMBS // 2
    return np.unique([*rng.choice(part.size, size=half, p=part / np.sum(part)), *np.argsort(-w)[:half]])


def _deficit(now: Moved, budget: Budget) -> Evaluate:
    """The log density of the deficit and its gradient; nothing where p is below q."""
    q, log_evidence = now.q, now.pool.log_evidence

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_p, score = budget.value_and_score(z)
        logs = q.log_components(z) + q.log_shares[:, None]
        log_q = log_sum_exp(logs, axis=0)
        w = np.exp(np.minimum(log_p - log_evidence - log_q, _LARGEST))
        part = 2 * TAIL_SIZE * (w - 1 - bound.of_tuples(w, TAIL_SIZE))
        slope = 2 * TAIL_SIZE * w * (w - 1) / (TAIL_SIZE - 1 + w) / part  # of log φ along log w
        down = q.entropy_scores(z, np.exp(logs - log_q))
        value = np.where(w > 1, log_q + np.log(part), -np.inf)
        return value.astype(log_p.dtype), slope[:, None] * (score + down) - down

    return evaluate
