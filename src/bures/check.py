"""Checks of what users pass: every message names the argument, what came, and the remedy.

Values are checked only when they are concrete, so the same constructors work under `jit` and `vmap`.
"""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is an abstract value of a JAX transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def fail(argument: str, wanted: str, received: Any, remedy: str) -> ValueError:
    """An error in the form that all of ours have."""
    return ValueError(f"{argument} must be {wanted}, but got {describe(received)}. {remedy}")


def describe(value: Any) -> str:
    """A short description of a value: arrays by dtype and shape, the rest by repr."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_positive_integer(argument: str, value: Any, remedy: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise fail(argument, "a positive integer", value, remedy)
    return int(value)


def check_real(argument: str, value: Any, low: float, high: float, remedy: str, *, open_low: bool = False) -> Any:
    """A finite real number in [low, high], or (low, high] if `open_low`; tracers pass."""
    if is_traced(value):
        return value
    number = value.item() if isinstance(value, jax.Array | np.ndarray) and value.size == 1 else value
    wanted = f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise fail(argument, wanted, value, remedy)
    number = float(number)
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise fail(argument, wanted, value, remedy)
    return number


def check_part(argument: str, value: Any, kind: type, example: str) -> None:
    """A part of a method: an objective, an estimator or a geometry."""
    if not isinstance(value, kind):
        raise fail(argument, f"one of bures' {argument} objects", value, f"For example {example}.")


def check_option(argument: str, value: Any, options: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in options:
        raise fail(argument, f"one of {options}", value, "Choose one of these.")
    return value


def check_flag(argument: str, value: Any, remedy: str) -> None:
    """True or False, or None for what is left to bures."""
    if value is not None and not isinstance(value, bool | np.bool_):
        raise fail(argument, "True or False", value, remedy)


def check_progress(value: Any) -> None:
    """Whether to show how it goes."""
    check_flag("progress", value, "Leave it out to see it on a terminal only.")


def check_function(argument: str, value: Any, wanted: str, remedy: str) -> None:
    """Something that can be called."""
    if not callable(value):
        raise fail(argument, wanted, value, remedy)


def check_points(argument: str, value: Any, dim: int, dtype: Any) -> jax.Array:
    """Points of R^dim with any leading axes, in a dtype."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise fail(argument, f"an array whose last axis is {dim}", value, "Pass a JAX or NumPy array.") from error
    if array.shape[-1:] != (dim,):
        raise fail(argument, f"an array whose last axis is {dim}", array, "Pass points of the Gaussian's dimension.")
    if not jnp.issubdtype(array.dtype, jnp.floating) and not jnp.issubdtype(array.dtype, jnp.integer):
        raise fail(argument, "an array of real numbers", array, f"Pass {argument} as floats.")
    return array.astype(dtype)


def check_key(key: Any) -> None:
    """A typed, single JAX key."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise fail("key", "a typed JAX random key", key, "Make one with jax.random.key(0).")
    if key.shape != ():
        raise fail("key", "a single key", key, "For several fits, use jax.vmap over the keys.")


def as_array(value: Any, dtype: Any = None) -> jax.Array:
    """`jnp.asarray`, but for NumPy arrays and numbers without the program that JAX compiles for each new shape."""
    if isinstance(value, jax.Array | np.ma.MaskedArray) or is_traced(value):
        return jnp.asarray(value, dtype)
    return jax.device_put(np.asarray(value, dtype))


def check_unmasked(argument: str, value: Any) -> None:
    """No masked array, of which NumPy and JAX would take the hidden values for data."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise fail(argument, "without masked entries", value, "Leave them out, or give the row a weight of zero.")


def check_integers(argument: str, value: np.ndarray) -> None:
    """Integers that JAX's present precision holds: larger ones would become others without a word."""
    kept = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype.kind not in "iu" or kept == value.dtype or not value.size:
        return
    low, high = np.iinfo(kept).min, np.iinfo(kept).max
    if value.min() < low or value.max() > high:
        remedy = "Call jax.config.update('jax_enable_x64', True) first, or pass differences from a number near them."
        raise fail(argument, f"integers from {low} to {high}, as {kept} holds them", value, remedy)


def default_dtype() -> np.dtype:
    """The floating dtype JAX uses now: float64 if `jax_enable_x64` is set, else float32."""
    return np.dtype(jax.dtypes.result_type(float))


def check_floating(argument: str, value: Any, ndim: int) -> jax.Array:
    """A real floating array with `ndim` axes; finite where that can be seen."""
    try:
        array = as_array(value)
    except (TypeError, ValueError) as error:
        raise fail(argument, f"a real array with {ndim} axes", value, "Pass a JAX or NumPy array.") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise fail(argument, "a floating array", array, f"Pass {argument} as floats, e.g. {argument}.astype(float).")
    if array.dtype not in (jnp.float32, jnp.float64):
        raise fail(argument, "of float32 or float64", array, f"Half precision is too coarse: {argument}.astype(float).")
    if array.ndim != ndim:
        raise fail(argument, f"an array with {ndim} axes", array, "Check its shape.")
    if not is_traced(array) and not np.all(np.isfinite(np.asarray(array))):
        raise fail(argument, "finite", np.asarray(array), "It holds NaN or infinity; remove them first.")
    return array
