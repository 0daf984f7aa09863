"""The factorised density of rows in memory: log p(z) + Σᵣ log p(rowᵣ | z), with the rows as traced arrays."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from bures.check import as_array, default_dtype
from bures.rows.sums import (
    LogLikelihood,
    count_rows,
    likelihood_of,
    sum_over_blocks,
    values_and_scores_of_rows,
    values_of_rows,
    weighted_hessian_of_rows,
)
from bures.target.blocks import map_in_blocks, sum_in_blocks

_POINTS = 2**12  # at which the prior is evaluated together


class RowDensity(eqx.Module):
    """log p(z) + Σᵣ wᵣ log p(rowᵣ | z) of rows in memory: what `Target.from_data` makes of arrays.

    It is a pytree: its arrays, `data` above all, are arguments of every compiled program, never constants in it, and
    another data set of the same shapes compiles nothing.

    **Layout**, for those who put the rows in other places (a mesh, several processes):

    - `data`: a pytree of arrays, the first axis of each the N rows; a row is the same pytree without that axis.
    - `weights`: None, or (N,) factors of the rows' log likelihoods. Rows of weight zero count for nothing, so that N
      can be padded up to a multiple of the devices by repeated rows of weight zero.
    - All methods are prior + sum over rows. The second parts are pure functions of (log_likelihood, data, weights, z)
      in `bures.rows.sums`: `values_of_rows`, `values_and_scores_of_rows` and `weighted_hessian_of_rows`. The sums of
      two shares of the rows add up to the sum of all: n (1 + d) numbers for n points.
    """

    log_prior: Callable[[Float[Array, " dim"]], Float[Array, ""]]
    log_likelihood: LogLikelihood
    data: PyTree
    weights: Float[Array, " rows"] | None = None
    row_width: int = eqx.field(static=True, default=1)  # elements of the largest array that one row at one point makes
    stream: Any = None  # passes over the same rows, where fits take batches

    @property
    def num_rows(self) -> int:
        return count_rows(self.data)

    def measured(self, dim: int) -> tuple[int, bool, bool]:
        """What `Target` else finds by tracing: elements of the largest array of a point; its cost is even."""
        return max(dim, self.num_rows * self.row_width), False, False

    @property
    def values_and_scores_on_host(self) -> Any:
        """One pass over the rows for all points, where fits count them."""
        return None if self.stream is None else self.stream.gradient

    @property
    def values_on_host(self) -> Any:
        return None if self.stream is None else self.stream.value

    @property
    def one_pass(self) -> bool:
        return self.stream is not None

    def explain(self, z: np.ndarray) -> str:
        """Why a point has no density."""
        point = as_array(np.asarray(z, default_dtype()))
        if not np.isfinite(self.log_prior(point)):
            return "log_prior is not finite"
        values = jax.lax.map(lambda row: self.log_likelihood(point, row), self.data, batch_size=_POINTS)
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            return "the gradient is not finite"
        held = any(np.isnan(x[bad[0]]).any() for x in jax.tree.leaves(self.data) if x.dtype.kind == "f")
        # With weights these are some rows in place of all, by other numbers.
        where = f"row {bad[0]}" if self.weights is None else "a row"
        more = f", and of {bad.size - 1:,} others" if bad.size > 1 and self.weights is None else ""
        return f"log_likelihood of {where}{more} is not finite{', whose data hold NaN' if held else ''}"

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        def block(data: PyTree, weights: Array | None) -> Array:
            return likelihood_of(self.log_likelihood, z, data, weights)

        return self.log_prior(z) + sum_over_blocks(block, self.data, self.weights, self.row_width)

    def values(self, z: Float[Array, "n dim"]) -> Float[Array, " n"]:
        prior = map_in_blocks(jax.vmap(self.log_prior), z, _POINTS)
        return prior + values_of_rows(self.log_likelihood, self.data, self.weights, z, self.row_width)

    def values_and_scores(self, z: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
        prior = priors_and_scores(self.log_prior, z)
        rows = values_and_scores_of_rows(self.log_likelihood, self.data, self.weights, z, self.row_width)
        return prior[0] + rows[0], prior[1] + rows[1]

    def weighted_hessian(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Float[Array, "dim dim"]:
        rows = weighted_hessian_of_rows(self.log_likelihood, self.data, self.weights, weights, z, self.row_width)
        return rows + prior_hessian(self.log_prior, weights, z)


def priors_and_scores(
    log_prior: Callable[[Array], Array], z: Float[Array, "n dim"]
) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    """log p(z) and its gradient at each of n points."""
    return map_in_blocks(jax.vmap(jax.value_and_grad(log_prior)), z, _POINTS)


def prior_hessian(
    log_prior: Callable[[Array], Array], weights: Float[Array, " n"], z: Float[Array, "n dim"]
) -> Float[Array, "dim dim"]:
    """Σᵢ wᵢ ∇²log p(zᵢ) of the prior."""

    def block(weights: Array, z: Array) -> Any:
        def shifted(shift: Array) -> Array:
            return weights @ jax.vmap(log_prior)(z + shift).astype(weights.dtype)

        return jax.hessian(shifted)(jax.numpy.zeros_like(z[0]))

    return sum_in_blocks(block, weights, z, max(1, _POINTS // z.shape[1]))
