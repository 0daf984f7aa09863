"""Objectives: functions of the log weights ℓ of one K-tuple.

With g = softmax((1−α) ℓ), one formula gives all of them (ELBO is K = 1, IW-ELBO is α = 0):

    bound = log(mean exp((1−α) ℓ)) / (1−α)                 a lower bound on the log evidence
    A     = α g + (1−α) g²                                 weight of the score s and the Hessian H
    B     = (1−α) (g − g²) (α + 2 (1−α) g)                 weight of s sᵀ

and α → 1 is a limit, not an error: bound = mean ℓ, A = 1/K, B = 0.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.check import check_positive_integer, check_real

_LEAST_SHARE, _LEAST_POWER, _BISECTIONS = 0.5, 1e-6, 8
_K_REMEDY = "K is the number of draws in a tuple, e.g. K=5."


class Coefficients(NamedTuple):
    """What a tuple's log weights say about each of its draws."""

    g: Float[Array, "*m K"]  # ∂ bound / ∂ ℓ: the weights of the plain reparameterised gradient
    A: Float[Array, "*m K"]
    B: Float[Array, "*m K"]


class AbstractObjective(eqx.Module):
    """A bound on the log evidence from K draws, and the coefficients of its gradients."""

    K: eqx.AbstractVar[int]
    alpha: eqx.AbstractVar[float]

    @property
    def has_separable_entropy(self) -> bool:
        """Whether the bound is E[log p] plus the entropy of q, as forward–backward schemes need."""
        return self.K == 1

    def bound(self, log_weights: Float[Array, "*m K"]) -> Float[Array, "*m"]:
        """The bound of each tuple.

        >>> IWELBO(K=2).bound(jnp.log(jnp.array([1.0, 3.0]))).round(4).tolist()
        0.6931
        """
        power = self._power(log_weights)
        # Centred at the largest weight and written with expm1 and log1p: exact for every power down to the limit 0.
        top = jax.lax.stop_gradient(jnp.max(log_weights, axis=-1, keepdims=True))
        top = jnp.where(jnp.isfinite(top), top, 0)
        centred = log_weights - top
        mean = jnp.mean(jnp.expm1(power * centred), axis=-1)
        # At a power this small exp(power · −∞) is the only term that still matters, and it must not round to a number.
        lost = jnp.any(centred == -jnp.inf, axis=-1) & (jnp.asarray(self.alpha) == 1)
        return jnp.where(lost, -jnp.inf, top[..., 0] + jnp.log1p(mean) / power)

    def coefficients(self, log_weights: Float[Array, "*m K"]) -> Coefficients:
        """g, A and B of each draw of each tuple."""
        return _coefficients(self._power(log_weights), log_weights)

    def tempered(self, strength: Float[Array, ""]) -> "AbstractObjective":
        """The same bound with gradients for a place far from the target: see `Tempered`.

        An objective with coefficients of its own is returned as it is.
        """
        own = type(self).coefficients is not AbstractObjective.coefficients
        return self if own else Tempered(self.K, self.alpha, strength)

    def _power(self, log_weights: Float[Array, "*m K"]) -> Float[Array, ""]:
        """1 − α, kept just above zero."""
        dtype = log_weights.dtype
        return jnp.maximum(1 - jnp.asarray(self.alpha, dtype), jnp.sqrt(jnp.finfo(dtype).tiny))


class ELBO(AbstractObjective):
    """The evidence lower bound E_q[log p − log q]."""

    K: int = eqx.field(static=True)
    alpha: float = eqx.field(static=True)

    def __init__(self):
        self.K, self.alpha = 1, 0.0


class IWELBO(AbstractObjective):
    """The importance-weighted ELBO: E[log (1/K) Σ p(z_k)/q(z_k)] over tuples of K draws (Burda et al., 2016)."""

    K: int = eqx.field(static=True)
    alpha: float = eqx.field(static=True)

    def __init__(self, K: int):
        self.K, self.alpha = check_positive_integer("K", K, _K_REMEDY), 0.0


class VRIWAE(AbstractObjective):
    """The variational Rényi bound E[log (1/K) Σ (p(z_k)/q(z_k))^(1−α)] / (1−α), 0 ≤ α ≤ 1 (Daudel et al., 2023)."""

    K: int = eqx.field(static=True)
    alpha: float

    def __check_init__(self):
        check_positive_integer("K", self.K, _K_REMEDY)
        check_real("alpha", self.alpha, 0, 1, "alpha=0 is the IW-ELBO, alpha=1 the ELBO.")


class Tempered(AbstractObjective):
    """An objective whose gradient is taken at a larger α while single draws outweigh the rest of their tuples.

    Far from the target a tuple's weights are degenerate, and its gradient knows little more than its best draw. The
    power 1 − α is then lowered until the effective share of a tuple's draws is one half on average, or as far towards
    that, on the log scale, as `strength` in [0, 1] says. The bound itself stays that of the given α.
    """

    K: int = eqx.field(static=True)
    alpha: Any  # a number, or an array while tracing
    strength: Float[Array, ""]

    def coefficients(self, log_weights):
        power = self._power(log_weights)

        def degenerate(power):
            squares = jnp.sum(jax.nn.softmax(power * log_weights, axis=-1) ** 2, axis=-1)
            return jnp.mean(1 / squares) < _LEAST_SHARE * self.K

        def bisect(_, ends):
            low, high = ends
            middle = jnp.sqrt(low * high)
            bad = degenerate(middle)
            return jnp.where(bad, low, middle), jnp.where(bad, middle, high)

        def search():
            return jax.lax.fori_loop(0, _BISECTIONS, bisect, (_LEAST_POWER * power, power))[0]

        lowest = jax.lax.cond(degenerate(power), search, lambda: power)
        return _coefficients(power * (lowest / power) ** self.strength, log_weights)


def _coefficients(power: Float[Array, ""], log_weights: Float[Array, "*m K"]) -> Coefficients:
    """g, A and B for a given power 1 − α."""
    g = jax.nn.softmax(power * log_weights, axis=-1)
    A = (1 - power) * g + power * g**2
    B = power * g * (1 - g) * ((1 - power) + 2 * power * g)
    return Coefficients(g, A, B)
