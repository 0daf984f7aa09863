"""The Laplace approximation: the mode by Newton's method with a line search, and the curvature there."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures import linalg
from bures.check import check_floating, check_positive_integer, fail
from bures.gaussian import Gaussian
from bures.target import Target, as_target


class _Newton(eqx.Module):
    z: Float[Array, " dim"]
    value: Float[Array, ""]
    decrement: Float[Array, ""]  # the gain in log density that the quadratic model still promises
    iterations: Array
    stuck: Array


def laplace(target: Any, *, init: Any = None, dim: int | None = None, max_iterations: int = 100) -> Gaussian:
    """The Gaussian N(mode, (−∇²log p(mode))⁻¹).

    Newton's method from `init` (a point, or a Gaussian whose mean is used; default: the origin). Where the Hessian
    is not negative definite its eigenvalues are reflected, so that every step goes uphill.

    Raises a ValueError that says why if no mode with negative definite curvature is found.

    >>> target = Target(lambda z: -jnp.sum((z - 1) ** 2 * jnp.array([2.0, 0.5])), dim=2)
    >>> q = laplace(target)
    >>> q.mean.round(4).tolist(), q.covariance.round(4).tolist()
    ([1.0, 1.0], [[0.25, 0.0], [0.0, 1.0]])
    """
    target = as_target(target, dim)
    check_positive_integer("max_iterations", max_iterations, "It bounds the Newton steps, e.g. 100.")
    start = init.mean if isinstance(init, Gaussian) else jnp.zeros(target.dim) if init is None else init
    start = check_floating("init", start, ndim=1)
    if start.size != target.dim:
        raise fail("init", f"a point of R^{target.dim}", start, "Match the target's dimension.")
    first, end, chol = _climb(target, start, max_iterations)
    if not bool(np.isfinite(first)):
        raise fail("init", "a point of finite log density", start, "Start where the density is positive.")
    where = f"after {int(end.iterations)} Newton steps from init"
    if not float(end.decrement) < 1e-2:  # a line search may end earlier, at what rounding lets it see
        raise ValueError(
            f"laplace found no mode {where} (still {float(end.decrement):.3g} nats to gain). "
            "The density may have no maximum, or need another init."
        )
    if not np.all(np.isfinite(chol)):
        raise ValueError(
            f"laplace reached a stationary point {where}, but the Hessian there is not negative definite: "
            "a flat direction, a saddle, or an improper density. Add a prior, or try another init."
        )
    return Gaussian(end.z, chol)


@eqx.filter_jit
def newton(target: Target, start: Float[Array, " dim"], max_iterations: int) -> tuple[_Newton, Array]:
    """Newton steps uphill from `start`: where they end, and the Hessian there."""
    eps = jnp.finfo(start.dtype).eps
    # Below this gain a full step is safe, and the next gain is below what the dtype resolves.
    small = jnp.sqrt(eps)

    def derivatives(z):
        value, score = target.value_and_score(z[None])
        return value[0], score[0], linalg.symmetrise(target.weighted_hessian(jnp.ones(1, z.dtype), z[None]))

    def improve(s: _Newton) -> _Newton:
        value, score, hessian = derivatives(s.z)
        curvature, vectors = linalg.eigh(-hessian)
        floor = eps * jnp.max(jnp.abs(curvature))
        steps = (vectors.T @ score) / jnp.maximum(jnp.abs(curvature), jnp.maximum(floor, jnp.finfo(eps.dtype).tiny))
        direction = vectors @ steps
        decrement = score @ direction / 2

        def too_long(length):
            candidate = target.value((s.z + length * direction)[None])[0]
            enough = candidate >= value + 1e-4 * length * 2 * decrement
            return ~enough & (length > 1e-10) & (decrement > small)

        length = jax.lax.while_loop(too_long, lambda length: length / 2, jnp.ones((), s.z.dtype))
        stuck = (length <= 1e-10) | ~jnp.isfinite(decrement)
        z = jnp.where(stuck, s.z, s.z + length * direction)
        return _Newton(z, value, decrement, s.iterations + 1, stuck)

    def unfinished(s: _Newton):
        return (s.iterations < max_iterations) & (s.decrement > small) & ~s.stuck

    zero = jnp.zeros((), start.dtype)
    first = _Newton(start, zero, jnp.array(jnp.inf, start.dtype), jnp.array(0), jnp.array(False))
    end = jax.lax.while_loop(unfinished, improve, first)
    return end, derivatives(end.z)[2]


@eqx.filter_jit
def _climb(target: Target, start: Float[Array, " dim"], max_iterations: int) -> tuple[Array, _Newton, Array]:
    """log p at the start, where Newton's method ends, and the Cholesky factor of the covariance there."""
    end, hessian = newton(target, start, max_iterations)
    return target.value(start[None])[0], end, _inverse_cholesky(-hessian)


def _inverse_cholesky(precision: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The Cholesky factor of the inverse of a precision matrix; not finite if that is not positive definite."""
    lower = linalg.cholesky(precision[::-1, ::-1])
    # Reversing rows and columns turns the lower factor of the reversed precision into an upper factor U with
    # precision = U Uᵀ, whose inverse transpose is the lower factor of the covariance.
    return linalg.inverse_lower(lower)[::-1, ::-1].T
