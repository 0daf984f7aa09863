"""Supports of constrained variables: smooth maps from the real line onto them, back, and their log Jacobians.

The maps are Stan's, so that a Gaussian on the unconstrained scale means the same here and there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.check import check_real, fail


class Real(eqx.Module):
    """The real line: no transformation."""

    def constrain(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return x

    def unconstrain(self, y: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return y

    def log_jacobian(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return jnp.zeros((), x.dtype)


class Positive(eqx.Module):
    """(0, ∞) through the exponential."""

    def constrain(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.exp(x)

    def unconstrain(self, y: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.log(y)

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

    def unconstrain(self, y: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_jacobian(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        width = jnp.log(jnp.asarray(self.high - self.low, x.dtype))
        return jnp.sum(width + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))


class Ordered(eqx.Module):
    """Increasing sequences: the first element as it is, then the logarithms of the increments."""

    def constrain(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(jnp.concatenate([x[:1], jnp.exp(x[1:])]))

    def unconstrain(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.concatenate([y[:1], jnp.log(jnp.diff(y))])

    def log_jacobian(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.sum(x[1:])


class PositiveOrdered(eqx.Module):
    """Increasing sequences of positive numbers: the logarithms of the first element and of the increments."""

    def constrain(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(jnp.exp(x))

    def unconstrain(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.log(jnp.diff(y, prepend=0))

    def log_jacobian(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.sum(x)


class Shares(eqx.Module):
    """Two shares that sum to one, through the logit of the first: the simplex of two."""

    def constrain(self, x: Float[Array, ""]) -> Float[Array, " 2"]:
        return jnp.stack([jax.nn.sigmoid(x), jax.nn.sigmoid(-x)])

    def unconstrain(self, y: Float[Array, " 2"]) -> Float[Array, ""]:
        return jnp.log(y[0]) - jnp.log(y[1])

    def log_jacobian(self, x: Float[Array, ""]) -> Float[Array, ""]:
        return jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)
