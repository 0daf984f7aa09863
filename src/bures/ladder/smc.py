"""Tempered sequential Monte Carlo from an approximation q to the target p, with all states of the chains kept.

The path is q^(1−t) p^t. Draws of q are weighted up to the largest temperature t at which enough of them still count;
some hundred are chosen by weight, and each begins a chain of Hamiltonian transitions at t. All states of the chains are
the draws to weight next ("waste-free" SMC, Dau and Chopin 2022). Where q is not far from p one such step leads to p
itself. There the chains run until their means are known well enough, judged by the spread between the chains of
different ancestors among the first draws, which are independent.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from bures import linalg
from bures.diagnostics.pareto import pareto_khat
from bures.diagnostics.weighted import NO_DENSITY, WeightedDraws
from bures.engine import Evaluator
from bures.ladder.base import Base
from bures.ladder.chains import LEAST_FAMILIES, Precision, measure, slowest
from bures.ladder.hmc import Cloud, Path, first_step_size
from bures.threads import one_blas_thread

CHAINS = 200
_FIRST_DRAWS = 4000  # of the base, where there are none yet
_LENGTH = 4  # transitions at a temperature below 1
_HEAVIEST = 0.7  # k̂ of the weights: beyond it their mean, the evidence, is not known
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25)  # of a step, the first that is light enough
_EVEN = 0.3  # share of draws of chains that count after a step of temperature, at the least
_ROUND = 4  # transitions at t = 1 between two looks
_TUNED = 4  # transitions that tune the step size before
_SLOW = 0.5  # correlation of a state with the next from which longer paths are tried
_DROPPED = 1 / 3  # of the transitions at t = 1, in which the step size is tuned and errors of the weights are forgotten
_MOST_TEMPERATURES = 50
_FULL_FRAME = 10  # draws for each dimension from which their covariance is taken for the frame
_ROUNDING = 1e-12  # of a draw's coordinates: draws that differ by less are copies


class Tempered(NamedTuple):
    """Chains at the target's end of the path, or where they were when it was given up."""

    states: Float[np.ndarray, "time chain dim"]  # those at t = 1 that are kept
    log_p: Float[np.ndarray, "time chain"]
    temperatures: tuple[float, ...]
    log_evidence: float
    log_evidence_error: float
    precision: Precision | None  # of the states; None before t = 1
    frame: Float[np.ndarray, "dim dim"]

    @property
    def arrived(self) -> bool:
        return self.precision is not None


def run_smc(
    rng: np.random.Generator,
    evaluator: Evaluator,
    base: Base,
    *,
    wanted: float,
    limit: int,
    pool: WeightedDraws | None = None,
    keep: Callable[[Tempered], None] = lambda found: None,
) -> Tempered:
    """Climb from the base to the target, and stay there until `wanted` effective draws are in sight or had.

    **Arguments:**

    - `wanted`: effective draws, for every coordinate and its square.
    - `limit`: evaluations it may take; it gives up early where they will not do.
    - `pool`: draws of the base with their log p, if there are some.
    - `keep`: given what is found so far now and then, for a run that is ended.
    """
    with one_blas_thread(base.dim):
        return _Climb(rng, evaluator, base, pool).run(wanted, limit, keep)


class _Pace(NamedTuple):
    """Of a round: its evaluations, and the correlation of a state with the next, of the slowest coordinate."""

    cost: int
    memory: float

    @property
    def forgotten(self) -> float:
        """How fast chains forget, for each evaluation."""
        return -math.log(min(max(self.memory, 0.01), 0.999)) / self.cost


class _Climb:
    """One run: the chains, and what has been found on the way."""

    def __init__(self, rng: np.random.Generator, evaluator: Evaluator, base: Base, pool: WeightedDraws | None):
        self.rng, self.evaluator, self.began = rng, evaluator, evaluator.count
        frame = _root(np.asarray(base.q.covariance, np.float64))
        self.path = Path(evaluator, base, frame, first_step_size(base.dim))
        self.log_evidence, self.variance = 0.0, 0.0
        self.temperatures = [0.0]
        if pool is None:
            z = base.draw(rng, _FIRST_DRAWS)
            self.z, self.log_p = z, np.asarray(evaluator.value(z), np.float64)
        else:
            self.z, self.log_p = np.asarray(pool.z[:]), pool.log_p
        self.log_q = base.value(self.z)
        self.cluster = np.arange(len(self.z))  # draws whose weights are independent of those of other clusters
        self.eve = np.arange(len(self.z))  # the ancestor of each draw among the first

    def run(self, wanted: float, limit: int, keep: Callable[[Tempered], None]) -> Tempered:
        cloud = self.raise_temperature(CHAINS)
        while (t := self.temperatures[-1]) < 1:
            if self.spent > limit or len(self.temperatures) > _MOST_TEMPERATURES:
                return self.found()
            self.run_below(cloud, t)
            cloud = self.raise_temperature(_EVEN * len(self.z))
        return self.run_at_target(cloud, wanted, limit, keep)

    @property
    def spent(self) -> int:
        return self.evaluator.count - self.began

    def raise_temperature(self, least: float) -> Cloud:
        """To the next temperature: the evidence gained, and the draws that chains begin from."""
        t = self.temperatures[-1]
        with np.errstate(all="ignore"):
            log_ratio = self.log_p - self.log_q
        log_ratio = np.where(np.isnan(log_ratio), -np.inf, log_ratio)
        step = _largest_step(log_ratio, 1 - t, least)
        weights, gain = _normalised(step * log_ratio)
        self.log_evidence += gain
        totals = np.bincount(self.cluster, weights)
        self.variance += float(np.sum((totals - np.mean(totals)) ** 2))
        chosen = _systematic(self.rng, weights, CHAINS)
        self.eve = self.eve[chosen]
        self.temperatures.append(1.0 if step >= 1 - t else t + step)
        self.path = self.path._replace(frame=_fitted_frame(self.z, weights, self.path.frame))
        return self.path.at(self.z[chosen], self.temperatures[-1])

    def run_below(self, cloud: Cloud, t: float) -> None:
        """The chains at a temperature below 1; all their states are the draws to weight next."""
        states = []
        for _ in range(_LENGTH):
            cloud, acceptance = self.path.move(self.rng, cloud, t)
            self.path = self.path.tuned(acceptance)
            states.append(cloud)
        self.z, self.log_p, self.log_q = (
            np.concatenate([getattr(state, name) for state in states]) for name in ("z", "log_p", "log_q")
        )
        self.cluster, self.eve = np.tile(np.arange(CHAINS), _LENGTH), np.tile(self.eve, _LENGTH)

    def run_at_target(self, cloud: Cloud, wanted: float, limit: int, keep: Callable[[Tempered], None]) -> Tempered:
        """The chains at t = 1, until they know enough, or will not within the limit."""
        states: list[Cloud] = []
        for _ in range(_TUNED):
            cloud, acceptance = self.path.move(self.rng, cloud, 1.0)
            self.path = self.path.tuned(acceptance)
            states.append(cloud)
        pace = self.run_round(states)
        while True:
            pace = self.run_round(states) if len(states) % (2 * _ROUND) else self.lengthened(states, pace)
            found = self.found(states[math.ceil(len(states) * _DROPPED) :])
            keep(found)
            precision = found.precision
            assert precision is not None
            if precision.families < LEAST_FAMILIES:
                return found
            more = len(states) * (wanted / max(precision.effective, 1.0) - 1) / _ROUND  # rounds, at this pace
            hopeless = self.spent < limit / 3 and self.spent + pace.cost * min(more, 1e9) > limit
            if precision.is_enough(wanted) or hopeless or self.spent + pace.cost > limit:
                return found

    def run_round(self, states: list[Cloud]) -> "_Pace":
        """Some transitions at t = 1, added to the states."""
        began, cloud = self.spent, states[-1]
        for _ in range(_ROUND):
            cloud, _ = self.path.move(self.rng, cloud, 1.0)
            states.append(cloud)
        x = np.stack([state.z for state in states[-_ROUND - 1 :]])
        return _Pace(self.spent - began, slowest(x))

    def lengthened(self, states: list[Cloud], pace: "_Pace") -> "_Pace":
        """A round with paths of twice the length, which stay if chains forget more by them for what they cost."""
        if pace.memory < _SLOW:
            return self.run_round(states)
        shorter, self.path = self.path, self.path._replace(length=2 * self.path.length)
        new = self.run_round(states)
        if new.forgotten < pace.forgotten:
            self.path = shorter
            return pace
        return new

    def found(self, kept: list[Cloud] | None = None) -> Tempered:
        dim = len(self.path.frame)
        states = np.stack([cloud.z for cloud in kept]) if kept else np.zeros((0, CHAINS, dim))
        log_p = np.stack([cloud.log_p for cloud in kept]) if kept else np.zeros((0, CHAINS))
        precision = measure(states, self.eve) if kept else None
        error = math.sqrt(self.variance)
        path = tuple(self.temperatures)
        return Tempered(states, log_p, path, self.log_evidence, error, precision, self.path.frame)


def _normalised(log_weights: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
    """Weights that sum to one, and the log of the mean weight."""
    top = float(np.max(log_weights))
    if not math.isfinite(top):
        raise ValueError(NO_DENSITY)
    weights = np.exp(log_weights - top)
    return weights / np.sum(weights), top + math.log(float(np.mean(weights)))


def _effective(log_weights: Float[np.ndarray, " n"]) -> float:
    weights, _ = _normalised(log_weights)
    return float(1 / np.sum(weights**2))


def _largest_step(log_ratio: Float[np.ndarray, " n"], most: float, least: float) -> float:
    """The largest step of temperature after which `least` draws still count; less where a heavy tail rules them."""
    low, high = 0.0, most
    if _effective(most * log_ratio) < least:
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _effective(middle * log_ratio) >= least else (low, middle)
        high = max(low, 1e-6 * most)
    with np.errstate(all="ignore"):
        light = (share for share in _SHARES if pareto_khat(share * high * log_ratio) < _HEAVIEST)
        return high * next(light, _SHARES[-1])


def _systematic(rng: np.random.Generator, weights: Float[np.ndarray, " n"], count: int) -> Int[np.ndarray, " count"]:
    """Indices by weight, with the least variance in how often each is chosen."""
    ticks = (np.arange(count) + rng.uniform()) / count
    return np.minimum(np.searchsorted(np.cumsum(weights), ticks), weights.size - 1)


def _fitted_frame(
    z: Float[np.ndarray, "n dim"], weights: Float[np.ndarray, " n"], frame: Float[np.ndarray, "dim dim"]
) -> Float[np.ndarray, "dim dim"]:
    """The root of the weighted covariance where there are draws enough; else the frame, its columns rescaled.

    Draws that are all copies of one, of a spike say, have no covariance, however many they are.
    """
    effective = 1 / np.sum(weights**2)
    centred = z - weights @ z
    spread = np.sqrt(weights @ centred**2)
    differ = np.all(spread > _ROUNDING * np.max(np.abs(z), axis=0))
    if effective >= _FULL_FRAME * z.shape[1] and differ:
        return _root((centred * weights[:, None]).T @ centred)
    whitened = linalg.solve_lower(frame, centred.T).T
    scale = np.sqrt(weights @ whitened**2)
    return frame * np.clip(scale, 0.2, 5.0)


def _root(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    jitter = 1e-10 * np.diag(np.diagonal(covariance))  # of two draws that are nearly the same
    return np.linalg.cholesky(covariance + jitter)
