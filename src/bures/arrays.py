"""NumPy or `jax.numpy`: the mathematics is written once, for either.

The steps of a fit run in two places: on the host, in NumPy, where nothing has to be compiled, and inside a compiled
loop, in JAX. Functions that serve both ask `namespace` for the module of their arrays, and use the few functions below
where the two differ.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Module(eqx.Module):
    """An equinox module with Python's own attribute access, for what a step on the host touches.

    Equinox makes every method that it hands out a pytree, which takes 30 microseconds: a step calls dozens of them.
    """

    __getattribute__ = object.__getattribute__


if TYPE_CHECKING:
    AnyArray = Any  # the interface that the two share has no type of its own
else:
    AnyArray = jax.Array | np.ndarray | np.generic  # of JAX, or of NumPy with its scalars


_HOST = (np.ndarray, np.generic)


def on_host(*arrays: Any) -> bool:
    """Whether all of these are arrays or scalars of NumPy."""
    for array in arrays:  # noqa: SIM110 - written out: it is asked dozens of times in a step
        if not isinstance(array, _HOST):
            return False
    return True


def namespace(*arrays: Any) -> Any:
    """`numpy` if all of these are NumPy's, else `jax.numpy`."""
    return np if on_host(*arrays) else jnp


def softmax(x: AnyArray) -> AnyArray:
    """exp(x) over its sum, along the last axis."""
    if not on_host(x):
        return jax.nn.softmax(x, axis=-1)
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def squared_norms(x: AnyArray) -> AnyArray:
    """The squared length of each vector along the last axis."""
    return np.einsum("...i,...i->...", x, x) if on_host(x) else (x**2).sum(axis=-1)


def norms(x: np.ndarray) -> np.ndarray:
    """The length of each vector along the last axis, on the host: a third of what `numpy.linalg.norm` takes."""
    return np.sqrt(np.einsum("...i,...i->...", x, x))


def log_sum_exp(x: AnyArray, axis: int) -> AnyArray:
    """log Σ exp(x) along an axis; −inf where all are."""
    if not on_host(x):
        return jax.nn.logsumexp(x, axis=axis)
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x - top).sum(axis=axis)) + np.squeeze(top, axis=axis)


def normal_quantiles_back(x: AnyArray, log: bool) -> AnyArray:
    """The standard normal distribution function Φ(x), or its logarithm: uniform numbers from normal ones."""
    if not on_host(x):
        return jax.scipy.special.log_ndtr(x) if log else jax.scipy.special.ndtr(x)
    from scipy import special  # here: the import takes a tenth of a second

    return special.log_ndtr(x) if log else special.ndtr(x)


def constant(x: AnyArray) -> AnyArray:
    """The same, not to be differentiated."""
    return x if on_host(x) else jax.lax.stop_gradient(x)


def pick(condition: AnyArray, one: AnyArray | float, other: AnyArray | float) -> AnyArray | float:
    """`where` for scalars: NumPy's own takes a microsecond, and a step has dozens of them."""
    if isinstance(condition, jax.Array):
        return jnp.where(condition, one, other)
    return one if condition else other


def larger(one: AnyArray | float, other: AnyArray | float) -> AnyArray | float:
    """`maximum` for scalars, the first of which may be not a number; its type stays.

    NumPy would make a double of a Python number in the next function that takes it.
    """
    if isinstance(one, jax.Array):
        return jnp.maximum(one, other)
    if not one < other:
        return one
    return one.dtype.type(other) if isinstance(one, np.ndarray | np.generic) else other


def choose(condition: AnyArray, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`one()` if the condition holds, else `other()`; under JAX by `lax.cond`."""
    if on_host(condition):
        return one() if condition else other()
    return jax.lax.cond(condition, one, other)


def select(condition: AnyArray, one: Any, other: Any) -> Any:
    """The first of two trees of arrays where the condition holds, else the second."""
    if on_host(condition):
        return one if condition else other
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), one, other)


def to_host(tree: Any) -> Any:
    """The same tree with its JAX arrays as NumPy arrays."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) and not _is_key(x) else x, tree)


def to_device(tree: Any) -> Any:
    """The same tree with its NumPy arrays as JAX arrays; nothing is compiled."""
    leaves, structure = jax.tree.flatten(tree)
    ours = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | np.generic)]
    for i, array in zip(ours, jax.device_put([leaves[i] for i in ours]), strict=True):  # all at once: a call is dear
        leaves[i] = array
    return jax.tree.unflatten(structure, leaves)


def _is_key(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
