"""Exact passes over the rows of a source: all points that are asked for at once, block of rows by block of rows.

Sums over blocks are added up in double precision, whatever that of a block. Every row that is read is counted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bures.check import as_array, check_integers, default_dtype
from bures.compiled import compiled
from bures.rows.density import prior_hessian, priors_and_scores
from bures.rows.sources import Source, block_rows, padded, read_ahead
from bures.rows.sums import (
    LogLikelihood,
    count_rows,
    values_and_scores_of_rows,
    values_of_rows,
    weighted_hessian_of_rows,
)
from bures.target.closures import Mortal

_LEAST_DRAWS, _ROW_EVALUATIONS = 256, 5 * 10**8  # at which a pass is evaluated: draws, and draws times rows
_FEWEST_POINTS = 8  # that a program is made for; more are padded up to the next power of two


class Derivatives(NamedTuple):
    """Σᵣ log p(rowᵣ | z) at one point and its derivatives, in double precision."""

    value: float
    score: Float[np.ndarray, " dim"]
    hessian: Float[np.ndarray, "dim dim"] | None


class Stream(Mortal):
    """A prior, a log likelihood of one row, and a source of rows. Known by its identity.

    `rows_read` counts rows that were read, `rows_evaluated` pairs of a row and a point (a Hessian counts as one point
    for each dimension).
    """

    def __init__(
        self,
        log_prior: Callable[[Float[Array, " dim"]], Float[Array, ""]],
        log_likelihood: LogLikelihood,
        source: Source,
        row_width: int = 1,
        *,
        start: Any = None,
        subsample: bool = False,
    ):
        self.log_prior, self.log_likelihood, self.source, self.row_width = log_prior, log_likelihood, source, row_width
        self.subsample = subsample  # whether fits take batches of rows
        self.start = np.zeros(0) if start is None else np.asarray(start)
        self.num_rows = source.num_rows
        self.rows_read, self.rows_evaluated = 0, 0

    def value(self, z: np.ndarray) -> np.ndarray:
        """log p at points (..., dim), in one pass."""
        points = z.reshape(-1, z.shape[-1])
        (values,) = self._pass(_values, points, [(len(points),)])
        with np.errstate(invalid="ignore"):
            return (values + _on_points(_prior, self.log_prior, points)[0]).reshape(z.shape[:-1])

    def gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p and its gradient at points (..., dim), in one pass."""
        points = z.reshape(-1, z.shape[-1])
        values, scores = self._pass(_values_and_scores, points, [(len(points),), points.shape])
        prior, prior_scores = _on_points(_prior, self.log_prior, points)
        with np.errstate(invalid="ignore"):
            return (values + prior).reshape(z.shape[:-1]), (scores + prior_scores).reshape(z.shape)

    def hessian(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log p, its gradient and its Hessian, one pass for each point."""
        points = z.reshape(-1, z.shape[-1])
        dim = points.shape[1]
        found = [self.derivatives(point) for point in points]
        prior, scores = _on_points(_prior, self.log_prior, points)
        curvature = [np.asarray(_prior_hessian(self.log_prior, _put(point))) for point in points]
        values = prior + [each.value for each in found]
        scores = scores + np.array([each.score for each in found])
        hessians = np.array([each.hessian + more for each, more in zip(found, curvature, strict=True)])
        return values.reshape(z.shape[:-1]), scores.reshape(z.shape), hessians.reshape(*z.shape, dim)

    def weighted_hessian(self, weights: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Σᵢ wᵢ ∇²log p(zᵢ), in one pass."""
        given, points = _put(weights), _put(z)
        total = np.zeros((z.shape[1],) * 2)
        for data, kept in self._blocks(z.shape[0] * z.shape[1]):
            total += _weighted_hessian(self.log_likelihood, data, kept, given, points, self.row_width)
        (total,) = self._of_all([total], z)
        return total + np.asarray(_whole_prior_hessian(self.log_prior, given, points))

    def derivatives(self, point: np.ndarray, second: bool = True) -> Derivatives:
        """Value, score and, if `second`, Hessian of the log likelihood of all rows at one point, in one pass."""
        at, dim = _put(point), point.size
        value, score = 0.0, np.zeros(dim)
        hessian = np.zeros((dim, dim)) if second else None
        for data, kept in self._blocks(1 + (dim if second else 0)):
            one = _derivatives(self.log_likelihood, data, kept, at, self.row_width, second)
            value, score = value + float(one[0]), score + np.asarray(one[1])
            if hessian is not None:
                hessian += np.asarray(one[2])
        parts = [np.asarray(value), score] if hessian is None else [np.asarray(value), score, hessian]
        total, *rest = self._of_all(parts, point)
        return Derivatives(float(total), rest[0], rest[1] if second else None)

    def explain(self, z: np.ndarray) -> str:
        """Why a point has no density."""
        prior = float(_on_points(_prior, self.log_prior, np.asarray(z)[None])[0][0])
        where = "log_likelihood of some row" if np.isfinite(prior) else "log_prior"
        return f"{where} is not finite"

    def _blocks(self, points: int) -> Any:
        """Blocks of rows on the device, each with its weights: the last is padded by its last row, of weight zero."""
        size = block_rows(self.source)
        for block in read_ahead(self.source.blocks(size)):
            n = count_rows(block)
            self.rows_read += n
            self.rows_evaluated += n * points
            for leaf in jax.tree.leaves(block):
                check_integers("data", leaf)
            if n < size:
                block = padded(block, size)
            yield jax.device_put(block), as_array((np.arange(size) < n).astype(default_dtype()))

    def _pass(self, function: Any, z: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        """Sums over all rows of a function of points, whose results have one entry for each point."""
        n = len(z)
        points, totals = _padded(z), [np.zeros(shape) for shape in shapes]
        for data, kept in self._blocks(n):
            parts = function(self.log_likelihood, data, kept, points, self.row_width)
            for total, part in zip(totals, parts, strict=True):
                total += np.asarray(part)[:n]
        return self._of_all(totals, z)

    def _of_all(self, parts: list[np.ndarray], z: np.ndarray) -> list[np.ndarray]:
        """Sums over all rows from those over the rows of this process; all processes ask for the same points z."""
        return parts


def affordable_draws(target: Any) -> int:
    """Draws at which one pass over all rows of a target may be evaluated; of a target that has none, any number."""
    stream = getattr(target.log_density, "stream", None)
    return 2**62 if stream is None else max(_LEAST_DRAWS, _ROW_EVALUATIONS // stream.num_rows)


def takes_batches(target: Any) -> bool:
    """Whether steps of a fit take batches of rows."""
    stream = getattr(target.log_density, "stream", None)
    return stream is not None and stream.subsample


def rows_read_of(target: Any) -> int:
    """Rows that were read of a target's data so far."""
    stream = getattr(target.log_density, "stream", None)
    return 0 if stream is None else stream.rows_read


class StreamedDensity(eqx.Module):
    """The density of rows that are not in memory, by exact passes: what `Target.from_data` makes of files.

    A fit asks `values_and_scores_on_host`; compiled loops and other samplers go through a callback, one pass over the
    rows for every batch of points.
    """

    stream: Stream

    one_pass = True  # all points of a call share one pass

    @property
    def num_rows(self) -> int:
        return self.stream.num_rows

    def measured(self, dim: int) -> tuple[int, bool, bool]:
        """What `Target` else finds by tracing: elements of the largest array of a point; its cost is even."""
        return max(dim, self.num_rows * self.stream.row_width), False, False

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        from bures.frontends.callback import HostLogDensity

        return HostLogDensity(self.stream)(z)

    def values_on_host(self, z: np.ndarray) -> np.ndarray:
        return self.stream.value(np.asarray(z, np.float64))

    def values_and_scores_on_host(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.stream.gradient(np.asarray(z, np.float64))

    def weighted_hessian(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Float[Array, "dim dim"]:
        from bures.frontends.callback import call

        return call(self.stream.weighted_hessian, jax.ShapeDtypeStruct((z.shape[-1],) * 2, z.dtype), weights, z)

    def explain(self, z: np.ndarray) -> str:
        return self.stream.explain(z)


def _put(x: Any) -> jax.Array:
    return as_array(np.asarray(x, default_dtype()))


def _padded(z: np.ndarray) -> jax.Array:
    """Points on the device, padded by the last one so that few programs serve all numbers of them."""
    size = max(_FEWEST_POINTS, 1 << max(len(z) - 1, 0).bit_length())
    size = len(z) if len(z) > 512 else size
    return _put(np.concatenate([z, np.repeat(z[-1:], size - len(z), axis=0)]))


def _on_points(function: Any, part: Any, z: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(x, np.float64)[: len(z)] for x in function(part, _padded(z))]


_prior = compiled(priors_and_scores)


@compiled
def _prior_hessian(log_prior: Any, point: Array) -> Array:
    return prior_hessian(log_prior, jnp.ones(1, point.dtype), point[None])


_whole_prior_hessian = compiled(prior_hessian)
_values_and_scores = compiled(values_and_scores_of_rows)
_weighted_hessian = compiled(weighted_hessian_of_rows)


@compiled
def _values(log_likelihood: Any, data: PyTree, weights: Array, z: Array, width: int) -> tuple[Array]:
    return (values_of_rows(log_likelihood, data, weights, z, width),)


@compiled
def _derivatives(log_likelihood: Any, data: PyTree, weights: Array, z: Array, width: int, second: bool) -> Any:
    """Value, score and Hessian of one block at one point."""
    values, scores = values_and_scores_of_rows(log_likelihood, data, weights, z[None], width)
    if not second:
        return values[0], scores[0]
    one = jnp.ones(1, z.dtype)
    return values[0], scores[0], weighted_hessian_of_rows(log_likelihood, data, weights, one, z[None], width)
