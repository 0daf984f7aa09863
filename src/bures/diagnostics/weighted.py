"""Draws of an approximation with their log p and log q: the one pool that a fit is judged by."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bures.arrays import to_host
from bures.check import check_key, check_positive_integer, fail
from bures.diagnostics.pareto import Tail, fit_tail, rounding, smooth_log_weights
from bures.draws import host_generator
from bures.engine import Evaluator, evaluator_of
from bures.estimator import check_dimensions
from bures.family.approximation import AbstractApproximation, in_double
from bures.target import Target

_HELD = 2**23  # elements: draws with more are not held, but made anew, a block at a time, when they are asked for
_BLOCK, _LEAST_ROWS = 2**20, 100  # elements of a block, and its least draws

NO_DENSITY = (
    "None of the draws has a positive, finite density: the approximation misses the target. Check the log density at "
    "its mean, or give Target an initial_point where it is finite."
)


class Points:
    """Draws of q that are not held: a generator gives the same ones each time they are asked for."""

    def __init__(self, make_generator: Callable[[], np.random.Generator], q: AbstractApproximation, n: int):
        self.make_generator, self.q, self.n = make_generator, to_host(q), n

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.q.dim

    def __len__(self) -> int:
        return self.n

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The rows of each block, and its draws."""
        rng, dtype = self.make_generator(), np.dtype(self.q.mean.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // self.q.dim)
        for start in range(0, self.n, rows):
            here = slice(start, min(start + rows, self.n))
            yield here, self.q.push(rng.standard_normal((here.stop - start, self.q.noise_dim), dtype))

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some of the draws, by a slice or by their numbers."""
        wanted = np.arange(self.n)[rows]
        found = np.empty((wanted.size, self.q.dim), self.q.mean.dtype)
        for here, z in self.blocks():
            inside = (wanted >= here.start) & (wanted < here.stop)
            found[inside] = z[wanted[inside] - here.start]
        return found


class WeightedDraws(NamedTuple):
    """Draws from q, log p and log q at them, in NumPy; log q in double precision at the very points that p saw."""

    z: Float[np.ndarray, "n dim"] | Points
    log_p: Float[np.ndarray, " n"]
    log_q: Float[np.ndarray, " n"]
    resolution: float  # how far log p may be off by rounding alone

    @classmethod
    def draw(cls, key: Key[Array, ""], q: AbstractApproximation, target: Target, num_samples: int) -> "WeightedDraws":
        """Fresh draws."""
        check_key(key)
        check_dimensions(q, target)
        check_positive_integer("num_samples", num_samples, "It is the number of fresh draws, e.g. 10_000.")
        evaluator = evaluator_of(target, q.is_dense, q.mean.dtype)
        return cls.pool(lambda: host_generator(key), q, evaluator, num_samples)[0]

    @classmethod
    def pool(
        cls,
        make_generator: Callable[[], np.random.Generator],
        q: AbstractApproximation,
        evaluator: Evaluator,
        num_samples: int,
        known: "WeightedDraws | None" = None,
    ) -> tuple["WeightedDraws", np.ndarray | None]:
        """So many draws of a generator, with scores where they are held; known ones are not evaluated again."""
        first = 0 if known is None else known.log_p.size
        if num_samples * q.dim <= _HELD:
            z = draw_points(make_generator(), q, num_samples)
            new = z[first:]
            values, scores = (evaluator.value(new), None) if evaluator.one_pass else evaluator.value_and_score(new)
            found = cls.at(z[first:], values, q)
            return (found, scores) if known is None else (known.joined(found), None)
        points, found = Points(make_generator, q, num_samples), known
        for here, z in points.blocks():
            skipped = max(first - here.start, 0)
            if skipped < len(z):
                block = cls.at(z[skipped:], evaluator.value(z[skipped:]), q)._replace(z=z[:0])
                found = block if found is None else found._replace(z=z[:0]).joined(block)
        assert found is not None
        return found._replace(z=points), None

    @classmethod
    def at(cls, z: np.ndarray, log_p: np.ndarray, q: AbstractApproximation) -> "WeightedDraws":
        """Given draws of q and their log p."""
        exact = in_double(q)
        with np.errstate(all="ignore"):
            log_q = exact.log_density(np.asarray(z, np.float64))
        return cls(z, np.asarray(log_p, np.float64), log_q, rounding(log_p, z.dtype))

    @property
    def log_weights(self) -> Float[np.ndarray, " n"]:
        return self.log_p - self.log_q

    def tail(self) -> Tail:
        """The tail of the weights."""
        return fit_tail(self.log_weights, self.resolution)

    def smoothed(self) -> Float[np.ndarray, " n"]:
        """Pareto-smoothed log weights."""
        return smooth_log_weights(self.log_weights, self.tail())

    def choose(self, key: Key[Array, ""], n: int) -> np.ndarray:
        """Indices of `n` draws, chosen by their Pareto-smoothed weights.

        By systematic resampling, then shuffled.
        """
        log_weights = self.smoothed()
        if not np.isfinite(np.max(log_weights)):
            raise ValueError(NO_DENSITY)
        rng = host_generator(key)
        return rng.permutation(systematic(rng, np.exp(log_weights - np.max(log_weights)), n))

    def joined(self, more: "WeightedDraws") -> "WeightedDraws":
        """These draws and more."""
        z = np.concatenate([np.asarray(self.z), np.asarray(more.z)])
        log_p, log_q = (np.concatenate(pair) for pair in zip(self[1:3], more[1:3], strict=True))
        return WeightedDraws(z, log_p, log_q, max(self.resolution, more.resolution))


def systematic(rng: np.random.Generator, weights: Float[np.ndarray, " n"], count: int) -> Int[np.ndarray, " count"]:
    """Indices by weights, with one uniform for all of them: the least variance in how often each is there.

    >>> systematic(np.random.default_rng(0), np.array([1.0, 0.0, 3.0]), 4).tolist()
    [0, 2, 2, 2]
    """
    shares = np.cumsum(weights)
    ticks = (np.arange(count) + rng.uniform()) / count
    return np.minimum(np.searchsorted(shares / shares[-1], ticks), weights.size - 1)


def points_of(
    make_generator: Callable[[], np.random.Generator], q: AbstractApproximation, n: int
) -> np.ndarray | Points:
    """The draws that a generator gives, held if they are not too many."""
    return draw_points(make_generator(), q, n) if n * q.dim <= _HELD else Points(make_generator, q, n)


def draw_points(rng: np.random.Generator, q: AbstractApproximation, n: int) -> Float[np.ndarray, "n dim"]:
    """Draws of q in NumPy, in its own precision."""
    host = to_host(q)
    return host.push(rng.standard_normal((n, q.noise_dim), np.dtype(host.mean.dtype)))


def relative_weights(log_weights: np.ndarray) -> np.ndarray:
    return np.exp(log_weights - np.max(log_weights))


def ness(log_weights: Any) -> float:
    """Normalised effective sample size (Σw)² / (n Σw²)."""
    log_weights = np.asarray(log_weights, np.float64)
    if not np.isfinite(np.max(log_weights)):
        return 0.0
    weights = relative_weights(log_weights)
    return float(np.sum(weights) ** 2 / (weights.size * np.sum(weights**2)))


def log_evidence(log_weights: Any) -> tuple[float, float]:
    """log mean w, and its Monte Carlo standard error by the delta method."""
    log_weights = np.asarray(log_weights, np.float64)
    if not log_weights.size:
        return -math.inf, math.inf
    top = float(np.max(log_weights))
    if not math.isfinite(top):
        return top, math.inf
    weights = relative_weights(log_weights)
    mean = np.mean(weights)
    error = np.std(weights, ddof=1) / (mean * math.sqrt(weights.size))
    return top + float(np.log(mean)), float(error)


def forward_kl(
    key: Key[Array, ""], target: Target, q: AbstractApproximation, *, num_samples: int = 10_000
) -> tuple[float, float]:
    """KL(p ‖ q) = E_p[log p − log q] with its standard error, for a normalised target that can be sampled."""
    check_key(key)
    check_dimensions(q, target)
    check_positive_integer("num_samples", num_samples, "It is the number of exact draws, e.g. 10_000.")
    if target.sample is None:
        raise fail("target", "one with a `sample` function", target.log_density, "Use q.kl between Gaussians instead.")
    z = np.asarray(target.sample(key, num_samples))
    drawn = WeightedDraws.at(z, Evaluator(target, dtype=z.dtype).value(z), q)
    terms = drawn.log_weights
    return float(np.mean(terms)), float(np.std(terms, ddof=1) / math.sqrt(num_samples))


def moment_errors(q: AbstractApproximation, mean: Any, covariance: Any) -> tuple[float, float]:
    """‖m − m*‖² and ‖Σ − Σ*‖_F² (Table 2 of the paper)."""
    return float(jnp.sum((q.mean - mean) ** 2)), float(jnp.sum((q.covariance - covariance) ** 2))
