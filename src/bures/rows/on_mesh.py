"""The factorised density of rows on a mesh of devices: every device has its share of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from bures.mesh import RowMesh, sum_over_mesh
from bures.rows.density import prior_hessian, priors_and_scores
from bures.rows.sums import (
    LogLikelihood,
    count_rows,
    likelihood_of,
    sum_over_blocks,
    values_and_scores_of_rows,
    values_of_rows,
    weighted_hessian_of_rows,
)


class MeshDensity(eqx.Module):
    """log p(z) + Σᵣ wᵣ log p(rowᵣ | z) as `RowDensity`, with the rows spread over devices as `rows` says."""

    log_prior: Callable[[Float[Array, " dim"]], Float[Array, ""]]
    log_likelihood: LogLikelihood
    data: PyTree
    weights: Float[Array, " rows"] | None
    rows: RowMesh = eqx.field(static=True)
    row_width: int = eqx.field(static=True, default=1)

    @property
    def num_rows(self) -> int:
        """With those of weight zero that make their number even."""
        return count_rows(self.data)

    def measured(self, dim: int) -> tuple[int, bool, bool]:
        """What `Target` else finds by tracing, for one device."""
        return max(dim, self.num_rows // self.rows.shares * self.row_width), False, False

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        def share(log_likelihood: LogLikelihood, data: PyTree, row_weights: Any, z: Array) -> Array:
            def block(data: PyTree, weights: Array | None) -> Array:
                return likelihood_of(log_likelihood, z, data, weights)

            return sum_over_blocks(block, data, row_weights, self.row_width)

        return self.log_prior(z) + self._summed(share, z)

    def values(self, z: Float[Array, "n dim"]) -> Float[Array, " n"]:
        def share(log_likelihood: LogLikelihood, data: PyTree, row_weights: Any, z: Array) -> Array:
            return values_of_rows(log_likelihood, data, row_weights, z, self.row_width)

        return jax.vmap(self.log_prior)(z) + self._summed(share, z)

    def values_and_scores(self, z: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
        def share(log_likelihood: LogLikelihood, data: PyTree, row_weights: Any, z: Array) -> tuple[Array, Array]:
            return values_and_scores_of_rows(log_likelihood, data, row_weights, z, self.row_width)

        prior, rows = priors_and_scores(self.log_prior, z), self._summed(share, z)
        return prior[0] + rows[0], prior[1] + rows[1]

    def weighted_hessian(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Float[Array, "dim dim"]:
        def share(log_likelihood: LogLikelihood, data: PyTree, row_weights: Any, weights: Array, z: Array) -> Array:
            return weighted_hessian_of_rows(log_likelihood, data, row_weights, weights, z, self.row_width)

        return self._summed(share, weights, z) + prior_hessian(self.log_prior, weights, z)

    def _summed(self, share: Callable[..., Any], *arguments: Array) -> Any:
        def of_rows(rows: Any, log_likelihood: LogLikelihood, *arguments: Array) -> Any:
            return share(log_likelihood, *rows, *arguments)

        return sum_over_mesh(of_rows, self.rows, (self.data, self.weights), self.log_likelihood, *arguments)
