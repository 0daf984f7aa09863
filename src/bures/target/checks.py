"""Checks of what a target is given. Functions are traced with shapes alone: nothing is computed, nothing compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bures.check import check_floating, default_dtype, describe, fail, is_traced
from bures.target.sites import LocationScale
from bures.target.variables import Coordinates


def check_names(names: Any, dim: int) -> tuple[str, ...] | Coordinates:
    """One name for each coordinate; those that follow from shapes are not made before they are asked for."""
    if names is None:
        return Coordinates({"z": (dim,)})
    remedy = "Give one name per coordinate."
    if not isinstance(names, Sequence | Coordinates) or isinstance(names, str):
        raise fail("names", f"{dim} different strings", names, remedy)
    if len(names) != dim:
        raise fail("names", f"{dim} different strings", names if len(names) < 10 else f"{len(names)} of them", remedy)
    if isinstance(names, Coordinates):
        return names
    names = tuple(names)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != dim:
        raise fail("names", f"{dim} different strings", names, remedy)
    return names


def check_vector(argument: str, value: Any, dim: int) -> Array:
    """A finite point of R^dim."""
    point = check_floating(argument, value, ndim=1)
    if point.size != dim:
        raise fail(argument, f"a point of R^{dim}", point, "Match dim.")
    return point


def check_covariance(value: Any, dim: int) -> Array:
    """A finite, symmetric (dim, dim) matrix."""
    covariance = check_floating("covariance", value, ndim=2)
    if covariance.shape != (dim, dim):
        raise fail("covariance", f"of shape ({dim}, {dim})", covariance, "Match dim.")
    if not is_traced(covariance):
        values = np.asarray(covariance)
        if np.max(np.abs(values - values.T)) > 1e3 * np.finfo(values.dtype).eps * np.max(np.abs(values)):
            raise fail("covariance", "symmetric", covariance, "Pass (covariance + covariance.T) / 2.")
        if np.any(np.diagonal(values) <= 0):
            raise fail("covariance", "positive definite", covariance, "Its diagonal are variances: all above zero.")
    return covariance


def check_sample(sample: Any, dim: int) -> None:
    """A sampler (key, n) -> (n, dim). One that is not written in JAX is taken as it is."""
    wanted, remedy = f"a function (key, n) -> floats of shape (n, {dim})", "It gives n exact draws, one a row."
    if not callable(sample):
        raise fail("sample", wanted, sample, remedy)
    n = 3 if dim == 2 else 2  # rows and columns cannot be mistaken
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        out = jax.eval_shape(lambda key: sample(key, n), key)
    except jax.errors.JAXTypeError:  # it looks at values, as NumPy does
        return
    except Exception as error:
        raise ValueError(f"sample must be {wanted}, but sample(key, {n}) failed: {error} {remedy}") from error
    if getattr(out, "shape", None) != (n, dim) or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"sample must be {wanted}, but sample(key, {n}) returned {_shape(out)}. {remedy}")


def check_sites(sites: Any, dim: int) -> tuple[LocationScale, ...]:
    """Location–scale sites whose coordinates are those of the target, none twice."""
    remedy = "from_variables makes them: see its location_scale."
    if not isinstance(sites, Sequence) or not all(isinstance(site, LocationScale) for site in sites):
        raise fail("sites", "a tuple of LocationScale", sites, remedy)
    taken = [i for site in sites for i in range(site.start, site.start + site.size)]
    if len(set(taken)) < len(taken) or not all(0 <= i < dim for i in taken):
        wanted = f"without overlap, within the {dim} coordinates of the target"
        raise fail("sites", wanted, [(site.name, site.start, site.shape) for site in sites], remedy)
    return tuple(sites)


def check_constrain(constrain: Any, dim: int) -> None:
    """A function (dim,) -> dict of arrays by name; that of bures' own front-ends, slow to trace, is right already."""
    wanted, remedy = f"a function ({dim},) -> dict of arrays by name", "Return {'name': array, ...}, in jax.numpy."
    if not callable(constrain):
        raise fail("constrain", wanted, constrain, remedy)
    if _is_own(constrain):
        return
    out = _trace("constrain", wanted, remedy, constrain, jax.ShapeDtypeStruct((dim,), default_dtype()))
    arrays = isinstance(out, dict) and all(isinstance(k, str) and hasattr(v, "shape") for k, v in out.items())
    if not arrays or not out:
        raise ValueError(f"constrain must be {wanted}, but it returned {_shape(out)}. {remedy}")


def check_weighted_hessian(function: Any, dim: int) -> None:
    """A function (weights (n,), z (n, dim)) -> (dim, dim); those of bures' own models are right already."""
    wanted = f"a function (weights (n,), z (n, {dim})) -> ({dim}, {dim})"
    remedy = "It returns the sum over i of weights[i] times the Hessian at z[i]."
    if not callable(function):
        raise fail("weighted_hessian", wanted, function, remedy)
    if _is_own(function):
        return
    n, dtype = 3 if dim == 2 else 2, default_dtype()
    weights, z = jax.ShapeDtypeStruct((n,), dtype), jax.ShapeDtypeStruct((n, dim), dtype)
    check_hessian_shape(_trace("weighted_hessian", wanted, remedy, function, weights, z), dim)


def check_hessian_shape(out: Any, dim: int) -> None:
    """What a fast Hessian returned: anything but a (dim, dim) array would be broadcast, or fail far from here."""
    if getattr(out, "shape", None) != (dim, dim):
        remedy = "Return the sum over i of weights[i] times the Hessian at z[i]."
        raise ValueError(f"weighted_hessian must return a ({dim}, {dim}) array, but returned {_shape(out)}. {remedy}")


def _trace(argument: str, wanted: str, remedy: str, function: Callable, *shapes: jax.ShapeDtypeStruct) -> Any:
    try:
        return jax.eval_shape(function, *shapes)
    except Exception as error:
        raise ValueError(f"{argument} must be {wanted}, but it could not be traced: {error} {remedy}") from error


def _is_own(function: Any) -> bool:
    """Whether bures itself defines a function."""
    return (getattr(function, "__module__", None) or "").startswith("bures.")


def _shape(out: Any) -> str:
    return f"{out.dtype}{list(out.shape)}" if hasattr(out, "shape") else describe(out)
