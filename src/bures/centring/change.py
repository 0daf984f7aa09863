"""Changes of coordinates: one target in other coordinates, whose draws come back in the model's own variables."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import default_dtype, is_traced
from bures.target import Target


class AbstractChange(eqx.Module):
    """A smooth, invertible map from new coordinates z to the model's own.

    Its numbers are arrays, so that densities that differ in them share one compiled program.
    """

    @abc.abstractmethod
    def restore(self, z: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """The model's own coordinates, and the log Jacobian."""

    @abc.abstractmethod
    def apply(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The inverse: new coordinates from the model's own."""


class Changed(eqx.Module):
    """A log density in new coordinates: log p(x(z)) + log |∂x/∂z|."""

    log_density: Callable[[Float[Array, " dim"]], Float[Array, ""]]
    change: AbstractChange

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        x, log_jacobian = self.change.restore(z)
        return self.log_density(x) + log_jacobian

    def explain(self, z: np.ndarray) -> str:
        """What the model says of a point without density, for an error message."""
        explain = getattr(self.log_density, "explain", None)
        if explain is None:
            return "in its own coordinates, too"
        return explain(np.asarray(self.change.restore(jnp.asarray(z))[0]))

    def initial_candidates(self) -> np.ndarray:
        """The model's own, carried over."""
        offered = getattr(self.log_density, "initial_candidates", None)
        points = np.zeros((0, 0)) if offered is None else np.atleast_2d(offered())
        if not len(points):
            return points
        return np.asarray(jax.vmap(self.change.apply)(jnp.asarray(points, default_dtype())))


class _Composed(eqx.Module):
    """A function of the model's own coordinates, as one of new coordinates."""

    function: Callable
    change: AbstractChange

    def __call__(self, z: Float[Array, " dim"]) -> Any:
        return self.function(self.change.restore(z)[0])


def change_coordinates(target: Target, change: AbstractChange) -> Target:
    """The target in new coordinates; what it says of its draws, it says in the model's own variables."""
    labels, start = target.labels, target.initial_point
    if labels.log_likelihood is not None:
        labels = dataclasses.replace(labels, log_likelihood=_Composed(labels.log_likelihood, change))
    return Target(
        Changed(target.log_density, change),
        target.dim,
        names=target.names,
        constrain=_Composed(target.constrain, change),
        initial_point=None if start is None else _carried(change, start),
        labels=labels,
    )


def changes_of(target: Target) -> tuple[AbstractChange, ...]:
    """The changes that made a target, the first first; none if it is in the model's own coordinates."""
    changes, density = [], target.log_density
    while isinstance(density, Changed):
        changes.append(density.change)
        density = density.log_density
    return tuple(reversed(changes))


def _carried(change: AbstractChange, point: Array) -> Array | None:
    """A point in the new coordinates; None where it has none there."""
    moved = change.apply(point)
    return moved if is_traced(moved) or np.all(np.isfinite(np.asarray(moved))) else None
