"""Sums over rows, block by block: values, scores and Hessians of Σᵣ wᵣ log p(rowᵣ | z).

Pure functions of the rows they are given, a pytree of arrays whose first axis is the rows: all rows of a target in
memory, a block of a file, a batch, or one device's share of a mesh. A sum over rows that are in several places is the
sum of these sums.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bures.target.blocks import map_in_blocks, sum_in_blocks

LogLikelihood = Callable[[Float[Array, " dim"], PyTree], Float[Array, ""]]

# Elements of the largest array of a block, 4 MB: a shared cache holds them. Points that share a block of rows, so that
# there are rows enough for long products.
_BLOCK_ELEMENTS, _POINTS, _LEAST_ROWS = 2**19, 512, 64


def count_rows(data: PyTree) -> int:
    """The length of the first axis."""
    return jax.tree.leaves(data)[0].shape[0]


def likelihood_of(log_likelihood: LogLikelihood, z: Array, data: PyTree, weights: Array | None) -> Array:
    """Σᵣ wᵣ log p(rowᵣ | z) of rows in one block; a row of weight zero counts for nothing, whatever its value."""
    values = jax.vmap(log_likelihood, in_axes=(None, 0))(z, data)
    if weights is None:
        return jnp.sum(values)
    return jnp.sum(jnp.where(weights != 0, weights.astype(values.dtype) * values, 0))


def sum_over_blocks(
    function: Callable[[PyTree, Array | None], Any], data: PyTree, weights: Array | None, elements: int
) -> Any:
    """The sum of `function(data, weights)` over equal blocks of rows, where a row makes an array of so many elements.

    Rows that do not fill another row of blocks come last, in a block of their own: nothing is padded or copied.
    """
    n = count_rows(data)
    blocks = -(-n // max(_LEAST_ROWS, _BLOCK_ELEMENTS // max(elements, 1)))
    size = n // max(blocks, 1)

    def part(start: Any, count: int) -> Any:
        rows, kept = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, count), (data, weights))
        return function(rows, kept)

    if blocks <= 1:
        return function(data, weights)
    shapes = jax.eval_shape(lambda: part(0, size))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    # Under reverse mode a block is computed twice, so that what it makes is not kept for all of them.
    again = jax.checkpoint(lambda i: part(i * size, size))

    def add(total: Any, i: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, again(i)), None

    total, _ = jax.lax.scan(add, zero, jnp.arange(blocks))
    rest = n - blocks * size
    return jax.tree.map(jnp.add, total, part(blocks * size, rest)) if rest else total


def values_of_rows(
    log_likelihood: LogLikelihood, data: PyTree, weights: Array | None, z: Float[Array, "n dim"], width: int = 1
) -> Float[Array, " n"]:
    """Σᵣ wᵣ log p(rowᵣ | z) at each of n points; one row at one point makes an array of `width` elements."""

    def points(z: Array) -> Array:
        def block(data: PyTree, weights: Array | None) -> Array:
            return jax.vmap(lambda point: likelihood_of(log_likelihood, point, data, weights))(z)

        return sum_over_blocks(block, data, weights, z.shape[0] * width)

    return map_in_blocks(points, z, _POINTS)


def values_and_scores_of_rows(
    log_likelihood: LogLikelihood, data: PyTree, weights: Array | None, z: Float[Array, "n dim"], width: int = 1
) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    """The same with gradients in z."""

    def points(z: Array) -> tuple[Array, Array]:
        def block(data: PyTree, weights: Array | None) -> tuple[Array, Array]:
            one = jax.value_and_grad(lambda point: likelihood_of(log_likelihood, point, data, weights))
            return jax.vmap(one)(z)

        return sum_over_blocks(block, data, weights, z.shape[0] * width)

    return map_in_blocks(points, z, _POINTS)


def weighted_hessian_of_rows(
    log_likelihood: LogLikelihood,
    data: PyTree,
    weights: Array | None,
    point_weights: Float[Array, " n"],
    z: Float[Array, "n dim"],
    width: int = 1,
) -> Float[Array, "dim dim"]:
    """Σᵢ vᵢ ∇² Σᵣ wᵣ log p(rowᵣ | zᵢ) with weights v of the points: d Hessian-vector products of each block of rows."""
    dim = z.shape[1]

    def points(v: Array, z: Array) -> Array:
        def block(data: PyTree, weights: Array | None) -> Array:
            def shifted(shift: Array) -> Array:
                one = jax.vmap(lambda point: likelihood_of(log_likelihood, point, data, weights))
                return v @ one(z + shift).astype(v.dtype)

            return jax.hessian(shifted)(jnp.zeros_like(z[0]))

        return sum_over_blocks(block, data, weights, z.shape[0] * max(dim, width))

    return sum_in_blocks(points, point_weights, z, max(1, _POINTS // 4))
