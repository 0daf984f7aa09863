"""Supports of constrained variables: smooth maps from the real line onto them, with their log Jacobians."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.check import check_real, fail


class Real(eqx.Module):
    """The real line: no transformation."""

    def constrain(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return x

    def log_jacobian(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return jnp.zeros((), x.dtype)


class Positive(eqx.Module):
    """(0, ∞) through the exponential."""

    def constrain(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.exp(x)

    def log_jacobian(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return jnp.sum(x)


class Interval(eqx.Module):
    """(low, high) through the logistic function."""

    low: float
    high: float

    def __check_init__(self):
        check_real("low", self.low, -1e300, 1e300, "Give a finite lower end.")
        check_real("high", self.high, -1e300, 1e300, "Give a finite upper end.")
        if not self.low < self.high:
            raise fail("high", f"larger than low={self.low}", self.high, "Swap the two ends.")

    def constrain(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def log_jacobian(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        width = jnp.log(jnp.asarray(self.high - self.low, x.dtype))
        return jnp.sum(width + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))
