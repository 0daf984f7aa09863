"""Log densities outside JAX: evaluated in batches on the host, and behind `jax.pure_callback` for all others."""

from functools import partial
from typing import Any, Protocol

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float


class Evaluator(Protocol):
    """A log density at many points: float64 arrays (..., dim) in, values and derivatives of the same batch out."""

    start: np.ndarray  # where to begin

    def value(self, z: np.ndarray) -> np.ndarray: ...

    def gradient(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        """Value and gradient."""
        ...

    def hessian(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        """Value, gradient and Hessian."""
        ...

    def explain(self, z: np.ndarray) -> str:
        """Why a point has no density."""
        ...


class HostLogDensity(eqx.Module):
    """A log density on the host, with first and second derivatives; points that are rejected have −inf.

    A fit calls `values_and_scores_on_host` and compiles nothing. Others differentiate it forward over reverse, as
    `jax.hessian` does; there are no third derivatives.
    """

    evaluator: Any = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return _log_density(self.evaluator, z)

    def values_and_scores_on_host(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p (n,) and ∇log p (n, dim) at the rows of `points`, in float64."""
        values, scores = self.evaluator.gradient(np.asarray(points, np.float64))
        return values, scores

    def weighted_hessian(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Float[Array, "dim dim"]:
        shape = jax.ShapeDtypeStruct((z.shape[-1],) * 2, z.dtype)
        return call(partial(_weighted_hessian, self.evaluator), shape, weights, z)

    def initial_candidates(self) -> np.ndarray:
        """Points from which to begin: that of the model, and the origin."""
        start = self.evaluator.start
        return np.stack([start, np.zeros_like(start)]) if start.any() else start[None]

    def explain(self, z: np.ndarray) -> str:
        """Why a point has no density, for an error message."""
        return self.evaluator.explain(np.asarray(z, np.float64))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_density(evaluator: Evaluator, z: Array) -> Array:
    return call(evaluator.value, jax.ShapeDtypeStruct((), z.dtype), z)


@_log_density.defjvp
def _(evaluator, primals, tangents):
    value, gradient = _value_and_gradient(evaluator, *primals)
    return value, gradient @ tangents[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_gradient(evaluator: Evaluator, z: Array) -> tuple[Array, Array]:
    shapes = jax.ShapeDtypeStruct((), z.dtype), jax.ShapeDtypeStruct(z.shape, z.dtype)
    return call(evaluator.gradient, shapes, z)


@_value_and_gradient.defjvp
def _(evaluator, primals, tangents):
    (z,), (tangent,) = primals, tangents
    shapes = [jax.ShapeDtypeStruct((z.size,) * order, z.dtype) for order in range(3)]
    value, gradient, hessian = call(evaluator.hessian, tuple(shapes), z)
    return (value, gradient), (gradient @ tangent, hessian @ tangent)


def _weighted_hessian(evaluator: Evaluator, weights: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Σ w ∇²log p over the last but one axis, without keeping the Hessians; weights of zero cost nothing."""
    total = np.zeros((*z.shape[:-2], z.shape[-1], z.shape[-1]))
    for index in zip(*np.nonzero(weights), strict=True):
        total[index[:-1]] += weights[index] * evaluator.hessian(z[index])[2]
    return total


def call(function: Any, shapes: Any, *arguments: Array) -> Any:
    """One call for the whole batch, in float64 inside and in the dtype of the point outside."""

    def convert(*values: Any) -> Any:
        results = function(*(np.asarray(value, np.float64) for value in values))
        return jax.tree.map(lambda result, shape: np.asarray(result, shape.dtype), results, shapes)

    return jax.pure_callback(convert, shapes, *arguments, vmap_method="broadcast_all")


def points(z: np.ndarray) -> np.ndarray:
    """A batch of any shape as rows."""
    return np.ascontiguousarray(z.reshape(-1, z.shape[-1]))
