"""Warps of single coordinates: monotone maps that take skewness and heavy tails out of them, one by one.

A change of the target, not of the approximation, so that every family and geometry works as it is.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.centring.change import AbstractChange


class Warp(AbstractChange):
    """x = m + s sinh(t asinh(u) + e) with u = (z − m) / s, for each coordinate (Jones and Pewsey, 2009).

    A skewness e > 0 makes the right side longer and the left shorter, t > 1 both tails heavier; e = 0, t = 1 is no
    warp. m and s are fixed: where the coordinate is, and how wide.
    """

    centre: Float[Array, " dim"]
    scale: Float[Array, " dim"]
    skewness: Float[Array, " dim"]
    tail: Float[Array, " dim"]

    def restore(self, z):
        u = (z - self.centre) / self.scale
        inner = self.tail * jnp.arcsinh(u) + self.skewness
        log_cosh = jnp.abs(inner) + jnp.log1p(jnp.exp(-2 * jnp.abs(inner))) - np.log(2)
        log_slope = jnp.log(self.tail) + log_cosh - jnp.log1p(u**2) / 2
        return self.centre + self.scale * jnp.sinh(inner), jnp.sum(log_slope)

    def apply(self, x):
        inner = (jnp.arcsinh((x - self.centre) / self.scale) - self.skewness) / self.tail
        return self.centre + self.scale * jnp.sinh(inner)
