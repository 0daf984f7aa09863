"""An evaluator that passes over all rows a few times only: an anchor, and at each call the residual of a batch.

It takes the place of `engine.Evaluator` in a fit by its steps. Batches come one after the other from a reservoir of
random rows that is read once and held. What the noise of rows is, beside that of draws, is measured as it goes: a batch
that is too noisy is doubled, and a new anchor is made where the draws have moved away from the old one.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bures.check import as_array, default_dtype
from bures.compiled import compiled
from bures.engine import Evaluator
from bures.objective import ELBO, AbstractObjective
from bures.rows.anchor import Anchor, Surrogate
from bures.rows.density import RowDensity
from bures.rows.sources import part_of
from bures.rows.stream import Stream, takes_batches
from bures.target import Target

SECOND_ORDER_DIM = 2000  # up to which an anchor has a Hessian: d × d numbers, and the cost of d points
_RESERVOIR, _RESERVOIR_BYTES, _ROWS_PER_DIM = 2**17, 2**27, 200  # rows that are held, at the most so many bytes
_PILOT, _PILOT_PER_DIM = 2**14, 100  # rows of the density that the start searches
_POINTS = 32  # in a program that is made for few of them; others are made for multiples of it
_BATCH, _GROUPS, _NOISE_POINTS = 2**10, 8, 32  # rows of the first batch; groups of it and draws that show its noise
_ANCHORS = 6  # at the most: a pass each
_QUIET = 0.02  # share of the tolerance that row noise may have, however small that of draws is
_VARIANCE = 0.1  # of the log likelihood, up to which weights of tuples are those of all rows
_MOVED = 1.0  # distance from the anchor, over that of the draws from their mean, from which a new one helps


@dataclasses.dataclass
class RowsUse:
    """What a fit read of its rows, and where its evaluator is: enough to go on from there."""

    num_rows: int
    reads: dict[str, float] = dataclasses.field(default_factory=dict)  # passes over the data, by what for
    anchors: int = 0
    anchor: list[float] = dataclasses.field(default_factory=list)
    batch: int = _BATCH
    calls: int = 0
    variance: float = 0.0  # of the subsampled log likelihood at a draw, as last measured
    row_noise: float = 0.0  # nats, of a step
    draw_noise: float = 0.0
    note: str = ""

    @property
    def total_reads(self) -> float:
        """How often all rows were read."""
        return sum(self.reads.values())

    def __str__(self) -> str:
        text = (
            f"{self.num_rows:,} rows, read {self.total_reads:.2f} times; steps from batches of {self.batch:,} rows and "
            f"{self.anchors} {'anchor' if self.anchors == 1 else 'anchors'}."
        )
        return f"{text} {self.note}" if self.note else text


class SubsampledEvaluator(Evaluator):
    """log p and ∇log p at NumPy points, by an anchor and a batch of rows; every point counted.

    **Arguments:**

    - `target`: a target from data.
    - `rng`: chooses the rows that are held.
    - `tolerance`: nats that the fit is to be near its optimum, beside which row noise is small.
    - `use`: of a fit that goes on; it continues bit for bit.
    - `is_weighted`: whether its objective has K > 1, whose weights row noise would bias.
    """

    def __init__(
        self,
        target: Target,
        rng: np.random.Generator,
        dtype: Any = None,
        tolerance: float | None = None,
        use: RowsUse | None = None,
        is_weighted: bool = False,
    ):
        super().__init__(target, dtype=dtype)
        self.one_pass, self._on_host, self.block = False, None, _POINTS
        density: Any = target.log_density
        self.stream: Stream = density.stream
        n = self.stream.num_rows
        self.use = RowsUse(n) if use is None else use
        self.tolerance = 0.005 if tolerance is None else tolerance
        self.is_weighted = is_weighted
        row_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self.stream.source.row()))
        wanted = min(max(_RESERVOIR, _ROWS_PER_DIM * self.dim), _RESERVOIR_BYTES // max(row_bytes, 1))
        size = int(min(n, max(wanted, 1)))
        numbers = np.sort(rng.choice(n, size, replace=False, shuffle=False))
        rows, read = self.stream.source.take(numbers)
        self.stream.rows_read += read
        self._note_reads("start", read)
        self._rows = jax.device_put(part_of(rows, rng.permutation(size)))  # shuffled: any slice is a random batch
        self.reservoir = size
        self.use.batch = min(self.use.batch, size)
        empty = Surrogate(self.stream.log_prior, self.stream.log_likelihood, None, _number(n), self.stream.row_width)
        self.surrogate = empty
        self._whiten: np.ndarray | None = None
        if self.use.anchor:
            self._make_anchor(np.array(self.use.anchor))

    # ---- What a fit asks --------------------------------------------------------------------------------------------

    def value_and_score(self, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        if len(z):
            self._prepare(np.asarray(z, np.float64))
            self.use.calls += 1
        return super().value_and_score(z)

    def value(self, z: Float[np.ndarray, "n dim"]) -> np.ndarray:
        return self.value_and_score(z)[0]

    def look(self, z: Float[np.ndarray, "n dim"]) -> np.ndarray:
        """log p (n,), with the anchor and the batch as they are."""
        self.use.calls += 1
        return super().value_and_score(z)[0]

    def weighted_hessian(self, weights: np.ndarray, z: np.ndarray) -> np.ndarray:
        rows = self._batch_of(self.use.calls - 1)
        return np.asarray(_weighted_hessian(self.surrogate, rows, as_array(weights), as_array(z)))

    def _evaluate(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(z)
        size = min(self.batch, -(-n // self.block) * self.block)  # few sizes, so that few programs are made
        padded = np.concatenate([z, np.repeat(z[-1:], size - n, axis=0)])
        offset = self._offset(self.use.calls - 1)
        values, scores = _evaluate(self.surrogate, self._rows, offset, self.use.batch, as_array(padded))
        self.stream.rows_evaluated += 2 * n * self.use.batch
        return np.asarray(values, self.dtype)[:n], np.asarray(scores, self.dtype)[:n]

    # ---- Rows -------------------------------------------------------------------------------------------------------

    def pilot(self) -> Target:
        """The target of a few rows, each standing for many: cheap, of the right width, a few deviations off."""
        size = min(self.reservoir, max(_PILOT, _PILOT_PER_DIM * self.dim))
        rows = jax.tree.map(lambda x: x[:size], self._rows)
        weights = as_array(np.full(size, self.use.num_rows / size, self.dtype))
        stream, target = self.stream, self.target
        density = RowDensity(stream.log_prior, stream.log_likelihood, rows, weights, stream.row_width)
        names, point = target._names, target.initial_point
        return Target(density, target.dim, names=names, constrain=target.constrain, initial_point=point)

    def anchor_at(self, point: np.ndarray) -> None:
        """A new anchor: one pass over all rows."""
        if self.before_call is not None:
            self.before_call(0)
        self.use.anchors += 1
        self.use.anchor = [float(x) for x in point]
        self._make_anchor(np.asarray(point, np.float64))

    def _make_anchor(self, point: np.ndarray) -> None:
        before = self.stream.rows_read
        second = self.dim <= SECOND_ORDER_DIM
        found = self.stream.derivatives(point, second=second)
        self._note_reads("anchors", self.stream.rows_read - before)
        hessian = None if found.hessian is None else _number(found.hessian)
        anchor = Anchor(_number(point), _number(found.value), _number(found.score), hessian)
        self.surrogate = eqx.tree_at(lambda s: s.anchor, self.surrogate, anchor, is_leaf=lambda x: x is None)
        self._whiten = None

    def _note_reads(self, what: str, rows: int) -> None:
        self.use.reads[what] = self.use.reads.get(what, 0.0) + rows / self.use.num_rows

    def _offset(self, call: int) -> int:
        """Where the batch of a call begins: one after the other, around and around."""
        fit = self.reservoir // self.use.batch
        return (call % fit) * self.use.batch

    def _batch_of(self, call: int) -> PyTree:
        return _slice(self._rows, self._offset(call), self.use.batch)

    def on_reservoir(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """log p, its gradient and Hessian at one point, by the anchor, if there is one, and all rows that are held."""
        at = _number(point)[None]
        values, scores = _evaluate(self.surrogate, self._rows, 0, self.reservoir, at)
        hessian = _weighted_hessian(self.surrogate, self._rows, jnp.ones(1, at.dtype), at)
        self.stream.rows_evaluated += self.reservoir * (2 + 2 * self.dim)
        return float(values[0]), np.asarray(scores[0], np.float64), np.asarray(hessian, np.float64)

    def suited(self, objective: AbstractObjective, q: Any, rng: np.random.Generator) -> AbstractObjective:
        """The objective for batches of rows: the ELBO, where their noise would bias the weights of tuples.

        The ELBO is linear in the log likelihood, so that any batch is right on average. Weights are not.
        """
        if objective.K == 1:
            return objective
        self.is_weighted = True
        if self.surrogate.anchor is None:  # of an `init`: rows alone are noisy anywhere
            self.anchor_at(np.asarray(q.mean, np.float64))
        self._calm(q.push(rng.standard_normal((2 * _NOISE_POINTS, q.noise_dim))))
        if self.use.variance < _VARIANCE:
            return objective
        reason = f"Batches leave a variance of {self.use.variance:.2g} in the log likelihood, too much for weights"
        return self.without_weights(f"{reason} of tuples")

    def without_weights(self, reason: str) -> AbstractObjective:
        """The ELBO, and a note why."""
        self.is_weighted = False
        self.use.note += f"{reason}: the objective is the ELBO. "
        return ELBO()

    # ---- Noise ------------------------------------------------------------------------------------------------------

    def _prepare(self, z: np.ndarray) -> None:
        """An anchor where there is none; then, now and again, a look at the noise of rows and what to do about it."""
        if self.surrogate.anchor is None:
            self.anchor_at(z.mean(axis=0))
        if len(z) >= _GROUPS and _is_due(self.use.calls):
            self._calm(z)

    def _calm(self, z: np.ndarray) -> None:
        """Measure the noise at these draws, and more rows or a new anchor while it is too much."""
        self.measure(z)
        while self._is_too_noisy():
            if self._has_moved(z) and self.use.anchors < _ANCHORS:
                self.anchor_at(z.mean(axis=0))
            elif self.use.batch < self.reservoir:
                self.use.batch = min(2 * self.use.batch, self.reservoir)
            else:
                return
            self.measure(z)

    def measure(self, z: np.ndarray) -> None:
        """Row noise and draw noise of a step with these draws, in nats, and the variance of the log likelihood."""
        use, some = self.use, np.asarray(z[:: max(1, len(z) // _NOISE_POINTS)][:_NOISE_POINTS])
        rows = self._batch_of(use.calls)
        groups = min(_GROUPS, use.batch)
        by_group = _by_group(self.surrogate, rows, groups, _number(some))
        values, scores = (np.asarray(x, np.float64) for x in by_group)
        share = 1 - use.batch / use.num_rows  # of the rows, that are not in the batch
        use.variance = float(np.mean(np.var(values, axis=0, ddof=1))) / groups * share
        root = self._deviations(z)
        means = scores.mean(axis=1) @ root
        use.row_noise = float(np.sum(np.var(means, axis=0, ddof=1))) / groups * share / 2
        _, slopes = _evaluate(self.surrogate, self._rows, self._offset(use.calls), use.batch, _number(some))
        whitened = np.asarray(slopes, np.float64) @ root
        u = np.linalg.lstsq(root, (some - some.mean(axis=0)).T, rcond=None)[0].T
        use.draw_noise = float(np.sum(np.var(whitened + u, axis=0, ddof=1))) / len(z) / 2
        self.stream.rows_evaluated += 4 * len(some) * use.batch

    def _is_too_noisy(self) -> bool:
        use = self.use
        if self.is_weighted and use.variance > _VARIANCE / 2:
            return True
        return use.row_noise > max(use.draw_noise, _QUIET * self.tolerance)

    def _has_moved(self, z: np.ndarray) -> bool:
        """Whether the draws' mean is further from the anchor than the draws are from their mean."""
        anchor = np.asarray(self.surrogate.anchor.point, np.float64) if self.surrogate.anchor is not None else z[0]
        mean, deviations = z.mean(axis=0), z.std(axis=0)
        scale = np.where(deviations > 0, deviations, 1.0)
        return bool(np.linalg.norm((mean - anchor) / scale) > _MOVED * math.sqrt(self.dim))

    def _deviations(self, z: np.ndarray) -> np.ndarray:
        """L with Σ = L Lᵀ of the posterior, by the anchor's curvature; where there is none, the draws' deviations."""
        if self._whiten is None:
            anchor = self.surrogate.anchor
            if anchor is None or anchor.hessian is None:
                return np.diag(z.std(axis=0))
            prior = _prior_hessian(self.stream.log_prior, anchor.point)
            root = inverse_root(-np.asarray(anchor.hessian, np.float64) - np.asarray(prior, np.float64))
            self._whiten = np.diag(z.std(axis=0)) if root is None else root
        return self._whiten


def subsampled_evaluator(
    target: Target, make_generator: Callable[[], np.random.Generator], **options: Any
) -> SubsampledEvaluator | None:
    """The evaluator of a target whose fits take batches of rows; None for all others."""
    return SubsampledEvaluator(target, make_generator(), **options) if takes_batches(target) else None


def inverse_root(precision: np.ndarray) -> np.ndarray | None:
    """L with L Lᵀ the inverse of a matrix; None where that is not positive definite."""
    if not np.all(np.isfinite(precision)):
        return None
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    return vectors / np.sqrt(values) if values[0] > 1e-12 * values[-1] else None


def _is_due(calls: int) -> bool:
    """Noise is looked at after 0, 1, 2, 4, 8, 16, 32, 64, ... calls, and at every 64th."""
    return calls & (calls - 1) == 0 or calls % 64 == 0


def _number(x: Any) -> jax.Array:
    return as_array(np.asarray(x, default_dtype()))


def _slice(rows: PyTree, offset: Any, batch: int) -> PyTree:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, offset, batch), rows)


@compiled
def _values_and_scores(surrogate: Surrogate, rows: PyTree, offset: Array, batch: int, z: Array) -> tuple[Array, Array]:
    return surrogate.values_and_scores(_slice(rows, offset, batch), z)


def _evaluate(surrogate: Surrogate, rows: PyTree, offset: int, batch: int, z: Array) -> tuple[Array, Array]:
    return _values_and_scores(surrogate, rows, as_array(np.asarray(offset, np.int32)), batch, z)


@compiled
def _by_group(surrogate: Surrogate, rows: PyTree, groups: int, z: Array) -> tuple[Array, Array]:
    return surrogate.by_group(rows, groups, z)


@compiled
def _weighted_hessian(surrogate: Surrogate, rows: PyTree, weights: Array, z: Array) -> Array:
    return surrogate.weighted_hessian(rows, weights, z)


@compiled
def _prior_hessian(log_prior: Any, point: Array) -> Array:
    return jax.hessian(log_prior)(point)
