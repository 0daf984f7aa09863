"""What the models are made of: a density with its data, an entry of the registry, and log densities up to constants."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import float_array

POSTERIORDB, SAMPLING, CLASSIC, SIMULATED = "posteriordb", "sampling literature", "classic data", "simulated"
Values = dict[str, np.ndarray]  # of each variable, draws along the first axis


class Model(NamedTuple):
    """A model that is made when it is run.

    `exchange(rng, values)` moves draws to one of the equivalent modes at random, where the posterior has exact
    symmetries that no chain would cross.
    """

    kind: str
    source: str  # of its data
    dim: int
    make: Callable[[Folders], bures.Target]
    about: str
    modes: int = 1
    exchange: Callable[[np.random.Generator, Values], Values] | None = None


class WithData(eqx.Module):
    """A log density of data and named variables; the data are arrays of the target, not constants of its program."""

    data: dict[str, Array]
    log_density: Callable[..., Array] = eqx.field(static=True)

    def __call__(self, **values: Array) -> Array:
        return self.log_density(self.data, **values)


def posterior(
    log_density: Callable[..., Array], data: Mapping[str, Any], variables: Mapping[str, Any], **options: Any
) -> bures.Target:
    """`log_density(data, **variables)` as a target; `options` are those of `Target.from_variables`."""
    arrays = {name: float_array(value) for name, value in data.items()}
    return bures.Target.from_variables(WithData(arrays, log_density), variables, **options)


def simulation(name: str) -> np.random.Generator:
    """The random numbers of a simulated data set, fixed by the model's name."""
    return np.random.default_rng([2026, zlib.crc32(name.encode())])


def standardised(columns: np.ndarray) -> np.ndarray:
    """Columns of mean zero and standard deviation one; one that is constant stays zero."""
    deviations = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)


def with_intercept(columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(columns)), columns])


def relabelled(axes: Mapping[str, tuple[int, ...]]) -> Callable[[np.random.Generator, Values], Values]:
    """Labels in random order, along these axes of each variable (1 is the first after that of draws)."""

    def exchange(rng: np.random.Generator, values: Values) -> Values:
        changed = dict(values)
        name, which = next(iter(axes.items()))
        order = rng.permuted(np.tile(np.arange(values[name].shape[which[0]]), (len(values[name]), 1)), axis=1)
        for name, which in axes.items():
            for axis in which:
                moved = np.moveaxis(changed[name], axis, 1)
                index = order.reshape(*order.shape, *[1] * (moved.ndim - 2))
                changed[name] = np.moveaxis(np.take_along_axis(moved, index, axis=1), 1, axis)
        return changed

    return exchange


# ---- Log densities, summed, up to constants -------------------------------------------------------------------------


def student_t(x: Array, degrees: Any, mean: Any = 0.0, scale: Any = 1.0) -> Array:
    """With the constants that depend on `degrees` and `scale`."""
    constant = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - jnp.log(degrees) / 2 - jnp.log(scale)
    return jnp.sum(constant - (degrees + 1) / 2 * jnp.log1p(((x - mean) / scale) ** 2 / degrees))


def poisson(counts: Array, log_rate: Array) -> Array:
    return jnp.sum(counts * log_rate - jnp.exp(log_rate))


def gamma(x: Array, shape: Any, rate: Any) -> Array:
    """With the constants that depend on `shape` and `rate`."""
    return jnp.sum(shape * jnp.log(rate) - gammaln(shape) + (shape - 1) * jnp.log(x) - rate * x)


def negative_binomial(counts: Array, log_mean: Array, dispersion: Array) -> Array:
    """Variance mean + mean² / dispersion."""
    total = jnp.logaddexp(log_mean, jnp.log(dispersion))
    known = gammaln(counts + dispersion) - gammaln(dispersion) + dispersion * (jnp.log(dispersion) - total)
    return jnp.sum(known + counts * (log_mean - total))
