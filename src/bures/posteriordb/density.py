"""What every density of posteriordb is: a function of named, constrained variables, and the priors it is made of."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.support import Real

Values = dict[str, Array]


# ---- Priors ---------------------------------------------------------------------------------------------------------


class Flat(eqx.Module):
    """No prior: constant on the constrained scale."""

    def __call__(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return jnp.zeros((), x.dtype)


class Normal(eqx.Module):
    """N(mean, scale²), of each element."""

    mean: Any
    scale: Any

    def __call__(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return -jnp.sum(((x - self.mean) / self.scale) ** 2) / 2


class Cauchy(eqx.Module):
    """Cauchy(0, scale), of each element."""

    scale: float

    def __call__(self, x: Float[Array, "*s"]) -> Float[Array, ""]:
        return -jnp.sum(jnp.log1p((x / self.scale) ** 2))


# ---- Densities ------------------------------------------------------------------------------------------------------


class Density(eqx.Module):
    """A log density of named, constrained variables."""

    def variables(self) -> dict[str, Any]:
        """Support, shape or both of each variable, as `Target.from_variables` takes them."""
        raise NotImplementedError

    def __call__(self, *arguments: Any, **values: Any) -> Float[Array, ""]:
        raise NotImplementedError

    def describe(self, values: Values) -> Values:
        """The variables of the reference draws."""
        return values

    def recover(self, values: Values) -> Values:
        """The inverse of `describe`."""
        return values


def support_of(declared: Any) -> Any:
    """The support in a declaration of `variables`."""
    parts = declared if isinstance(declared, tuple) else (declared,)
    return parts[0] if parts and hasattr(parts[0], "constrain") else Real()
