"""Supports of constrained variables: smooth maps from the real line onto them, back, and their log Jacobians.

The maps are Stan's, so that a Gaussian on the unconstrained scale means the same here and there.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import check_positive_integer, check_real, fail


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
    """Increasing sequences: the first element as it is, then the logarithms of the increments.

    A sequence is the last axis: a variable `(Ordered(), (5, 3))` is five sequences of three.
    """

    of_vectors: ClassVar[bool] = True

    def constrain(self, x: Float[Array, "*s n"]) -> Float[Array, "*s n"]:
        return jnp.cumsum(jnp.concatenate([x[..., :1], jnp.exp(x[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, y: Float[Array, "*s n"]) -> Float[Array, "*s n"]:
        return jnp.concatenate([y[..., :1], jnp.log(jnp.diff(y, axis=-1))], axis=-1)

    def log_jacobian(self, x: Float[Array, "*s n"]) -> Float[Array, ""]:
        return jnp.sum(x[..., 1:])


class PositiveOrdered(eqx.Module):
    """Increasing sequences of positive numbers, the last axis: the logarithms of the first and of the increments."""

    of_vectors: ClassVar[bool] = True

    def constrain(self, x: Float[Array, "*s n"]) -> Float[Array, "*s n"]:
        return jnp.cumsum(jnp.exp(x), axis=-1)

    def unconstrain(self, y: Float[Array, "*s n"]) -> Float[Array, "*s n"]:
        return jnp.log(jnp.diff(y, axis=-1, prepend=0))

    def log_jacobian(self, x: Float[Array, "*s n"]) -> Float[Array, ""]:
        return jnp.sum(x)


class Simplex(eqx.Module):
    """n positive shares that sum to one, from n − 1 numbers by stick-breaking.

    Share k is the part `sigmoid(x_k − log(n − k))` of what the shares before it have left over, k = 1, ..., n − 1, and
    the last share is the rest. This is the map of Stan up to 2.36 (later versions use another) and of NumPyro. For
    n = 2 it is the logit of the first share.

    The shares are the last axis: a variable `(Simplex(3), (5,))` is five simplexes, an array (5, 3).

    >>> Simplex(4).constrain(jnp.zeros(3)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    n: int = eqx.field(static=True)

    def __check_init__(self):
        if check_positive_integer("n", self.n, "It is the number of shares.") < 2:
            raise fail("n", "at least 2", self.n, "A single share is always one: leave it out.")

    @property
    def free_shape(self) -> tuple[int, ...]:
        """The axes that one simplex has on the unconstrained scale."""
        return (self.n - 1,)

    def constrain(self, x: Float[Array, "*s free"]) -> Float[Array, "*s shares"]:
        logits = x - self._offsets(x.dtype)
        one = jnp.ones_like(x[..., :1])
        parts = jnp.concatenate([jax.nn.sigmoid(logits), one], axis=-1)
        left = jnp.concatenate([one, jnp.cumprod(jax.nn.sigmoid(-logits), axis=-1)], axis=-1)
        return parts * left

    def unconstrain(self, y: Float[Array, "*s shares"]) -> Float[Array, "*s free"]:
        left = jnp.flip(jnp.cumsum(jnp.flip(y[..., 1:], -1), axis=-1), -1)
        return jnp.log(y[..., :-1]) - jnp.log(left) + self._offsets(y.dtype)

    def log_jacobian(self, x: Float[Array, "*s free"]) -> Float[Array, ""]:
        # Σ_k log (part_k (1 − part_k) left_k), where left_k is the product of 1 − part_j over j < k.
        logits = x - self._offsets(x.dtype)
        repeats = np.arange(self.n - 1, 0, -1).astype(x.dtype)
        return jnp.sum(jax.nn.log_sigmoid(logits) + repeats * jax.nn.log_sigmoid(-logits))

    def _offsets(self, dtype: Any) -> np.ndarray:
        """log(n − k): zeros on the unconstrained scale are equal shares."""
        return np.log(np.arange(self.n - 1, 0, -1)).astype(dtype)
