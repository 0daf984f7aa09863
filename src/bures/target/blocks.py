"""Many points, some at a time: blocks whose arrays stay in the cache, of a size that follows the log density."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Arrays of a block are kept to about this many elements, 4 MB: a shared cache holds them, products are long.
_BLOCK_ELEMENTS = 2**19


def points_in_block(elements: int) -> int:
    """How many points a block has, when one point makes an array of so many elements."""
    return max(1, _BLOCK_ELEMENTS // elements)


def map_in_blocks(function: Callable, z: Float[Array, "n dim"], size: int, lanes: int = 1) -> Any:
    """A function of many points, applied to at most `size` of them at a time, in multiples of `lanes`.

    Blocks whose arrays stay in the cache are faster than all points at once, and bound the memory.
    """
    n = z.shape[0]
    blocks, size = _split(n, size, lanes)
    padded = _pad(z, blocks * size)
    if blocks == 1:
        return jax.tree.map(lambda x: x[:n], function(padded))
    out = jax.lax.map(function, padded.reshape(blocks, size, -1))
    return jax.tree.map(lambda x: x.reshape(blocks * size, *x.shape[2:])[:n], out)


def sum_in_blocks(
    function: Callable[[Array, Array], Array],
    weights: Float[Array, " n"],
    z: Float[Array, "n dim"],
    size: int,
    lanes: int = 1,
) -> Array:
    """The sum of `function(weights, z)`, linear in the weights, over blocks of points as in `map_in_blocks`."""
    n = z.shape[0]
    blocks, size = _split(n, size, lanes)
    weights, padded = jnp.pad(weights, (0, blocks * size - n)), _pad(z, blocks * size)
    if blocks == 1:
        return function(weights, padded)
    weights, padded = weights.reshape(blocks, size), padded.reshape(blocks, size, -1)
    zero = jnp.zeros_like(function(weights[0], padded[0]))
    return jax.lax.scan(lambda total, block: (total + function(*block), None), zero, (weights, padded))[0]


def _split(n: int, size: int, lanes: int) -> tuple[int, int]:
    """The number of equal blocks for n points, of at most `size`, and their size: of many, a multiple of `lanes`."""
    blocks = max(1, math.ceil(n / max(size, 1)))
    size = math.ceil(n / blocks)
    return blocks, size if size < 8 * lanes else math.ceil(size / lanes) * lanes


def _pad(z: Float[Array, "n dim"], size: int) -> Float[Array, "size dim"]:
    """The last point again and again, up to `size` points."""
    return jnp.concatenate([z, jnp.broadcast_to(z[-1], (size - z.shape[0], z.shape[1]))]) if size > len(z) else z


_UNEVEN = {"while", "pure_callback", "io_callback", "ffi_call"}  # loops to convergence, and code that is not JAX's


def largest_array(jaxpr: Any) -> int:
    """Elements of the largest array made in a jaxpr, those of its inner jaxprs included."""
    sizes = [math.prod(getattr(out.aval, "shape", ())) for equation in equations(jaxpr) for out in equation.outvars]
    return max(1, *sizes) if sizes else 1


def has_uneven_cost(jaxpr: Any) -> bool:
    """Whether the cost of a jaxpr may depend on the values it is given."""
    return any(equation.primitive.name in _UNEVEN for equation in equations(jaxpr))


def calls_one_by_one(jaxpr: Any) -> bool:
    """Whether a jaxpr calls Python for one point after the other, so that points together are no faster than alone."""
    return any("sequential" in str(equation.params.get("vmap_method", "")) for equation in equations(jaxpr))


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of those inside it."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:  # a closed jaxpr holds one
        yield equation
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
        for sub in inner:
            if hasattr(sub, "eqns"):
                yield from equations(sub)
