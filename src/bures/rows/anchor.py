"""The control variate: all rows by their expansion at one point, the anchor, and what a batch of rows differs from it.

With F(z) = Σᵣ log p(rowᵣ | z) over all N rows, δ = z − z₀ and f the sum over a batch of B of them,

    F(z) ≈ F(z₀) + ∇F·δ + ½ δᵀ∇²F δ + N/B · [f(z) − f(z₀) − ∇f·δ − ½ δᵀ∇²f δ],

whose expectation over batches is F(z), exactly. One pass over all rows gives the first three terms. The bracket is
cubic in δ, and its gradient quadratic, so a few hundred rows do where the plain N/B f(z) needs nearly all of them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bures.rows.density import prior_hessian, priors_and_scores
from bures.rows.sums import LogLikelihood, count_rows, likelihood_of, sum_over_blocks, weighted_hessian_of_rows


class Anchor(eqx.Module):
    """A point, and the log likelihood of all rows there with its derivatives; of first order without a Hessian."""

    point: Float[Array, " dim"]
    value: Float[Array, ""]
    score: Float[Array, " dim"]
    hessian: Float[Array, "dim dim"] | None

    def expand(self, z: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
        """The expansion at n points, and its gradients."""
        shift = z - self.point
        values, scores = self.value + shift @ self.score, jnp.broadcast_to(self.score, z.shape)
        if self.hessian is None:
            return values, scores
        bent = shift @ self.hessian
        return values + jnp.sum(bent * shift, axis=1) / 2, scores + bent


def residuals(
    log_likelihood: LogLikelihood, anchor: Anchor | None, rows: PyTree, z: Float[Array, "n dim"], width: int
) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    """What Σ log p(row | z) over some rows differs by from its expansion at the anchor, at n points, with gradients.

    Without an anchor, the sum itself.
    """

    def block(data: PyTree, _: Any) -> tuple[Array, Array]:
        def total(point: Array) -> Array:
            return likelihood_of(log_likelihood, point, data, None)

        values, scores = jax.vmap(jax.value_and_grad(total))(z)
        if anchor is None:
            return values, scores
        shift = z - anchor.point
        at = total(anchor.point)
        if anchor.hessian is None:
            slope = jax.grad(total)(anchor.point)
            return values - at - shift @ slope, scores - slope
        slope, times_hessian = jax.linearize(jax.grad(total), anchor.point)
        bent = jax.vmap(times_hessian)(shift)
        return values - at - shift @ slope - jnp.sum(bent * shift, axis=1) / 2, scores - slope - bent

    return sum_over_blocks(block, rows, None, z.shape[0] * width)


class Surrogate(eqx.Module):
    """The log density as an anchor and a batch of rows know it: prior + expansion + N/B · residual of the batch."""

    log_prior: Any
    log_likelihood: Any
    anchor: Anchor | None
    num_rows: Float[Array, ""]
    row_width: int = eqx.field(static=True)

    def values_and_scores(
        self, rows: PyTree, z: Float[Array, "n dim"]
    ) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
        """log p and its gradient at n points, from these rows."""
        scale = self.num_rows / count_rows(rows)
        parts = [priors_and_scores(self.log_prior, z)]
        parts += [] if self.anchor is None else [self.anchor.expand(z)]
        rest = residuals(self.log_likelihood, self.anchor, rows, z, self.row_width)
        values, scores = (sum(part) for part in zip(*parts, strict=True))
        return values + scale * rest[0], scores + scale * rest[1]

    def weighted_hessian(self, rows: PyTree, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Array:
        """Σᵢ wᵢ ∇²log p(zᵢ), from these rows."""
        scale = self.num_rows / count_rows(rows)
        hessian = scale * weighted_hessian_of_rows(self.log_likelihood, rows, None, weights, z, self.row_width)
        total = hessian + prior_hessian(self.log_prior, weights, z)
        if self.anchor is None or self.anchor.hessian is None:
            return total
        one, there = jnp.sum(weights)[None], self.anchor.point[None]
        own = scale * weighted_hessian_of_rows(self.log_likelihood, rows, None, one, there, self.row_width)
        return total + jnp.sum(weights) * self.anchor.hessian - own

    def by_group(
        self, rows: PyTree, groups: int, z: Float[Array, "n dim"]
    ) -> tuple[Float[Array, "groups n"], Float[Array, "groups n dim"]]:
        """The residual of each of some groups of the rows, scaled to all rows as if it were the batch."""
        size = count_rows(rows) // groups
        parts = jax.tree.map(lambda x: x[: groups * size].reshape(groups, size, *x.shape[1:]), rows)
        values, scores = jax.lax.map(
            lambda part: residuals(self.log_likelihood, self.anchor, part, z, self.row_width), parts
        )
        return values * self.num_rows / size, scores * self.num_rows / size
