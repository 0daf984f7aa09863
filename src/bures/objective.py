"""Objectives: functions of the log weights ℓ of one K-tuple.

With g = softmax((1−α) ℓ), one formula gives all of them (ELBO is K = 1, IW-ELBO is α = 0):

    bound = log(mean exp((1−α) ℓ)) / (1−α)                 a lower bound on the log evidence
    A     = α g + (1−α) g²                                 weight of the score s and the Hessian H
    B     = (1−α) (g − g²) (α + 2 (1−α) g)                 weight of s sᵀ

and α → 1 is a limit, not an error: bound = mean ℓ, A = 1/K, B = 0.
"""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from bures.arrays import AnyArray, Module, choose, constant, namespace, softmax
from bures.check import check_positive_integer, check_real

_LEAST_SHARE, _LEAST_POWER, _POWERS = 0.5, 1e-6, 24
_K_REMEDY = "K is the number of draws in a tuple, e.g. K=5."


class Coefficients(NamedTuple):
    """What a tuple's log weights say about each of its draws."""

    g: Float[AnyArray, "*m K"]  # ∂ bound / ∂ ℓ: the weights of the plain reparameterised gradient
    A: Float[AnyArray, "*m K"]
    B: Float[AnyArray, "*m K"]


class AbstractObjective(Module):
    """A bound on the log evidence from K draws, and the coefficients of its gradients."""

    K: eqx.AbstractVar[int]
    alpha: eqx.AbstractVar[float]

    @property
    def has_separable_entropy(self) -> bool:
        """Whether the bound is E[log p] plus the entropy of q, as forward–backward schemes need."""
        return self.K == 1

    def bound(self, log_weights: Float[AnyArray, "*m K"]) -> Float[AnyArray, "*m"]:
        """The bound of each tuple.

        >>> IWELBO(K=2).bound(np.log(np.array([1.0, 3.0]))).round(4).tolist()
        0.6931
        """
        xp = namespace(log_weights)
        power = self.power(log_weights)
        # Centred at the largest weight and written with expm1 and log1p: exact for every power down to the limit 0.
        top = constant(log_weights.max(axis=-1, keepdims=True))
        top = xp.where(xp.isfinite(top), top, 0)
        centred = log_weights - top
        mean = xp.expm1(power * centred).sum(axis=-1) / self.K
        # In the limit α = 1 a draw of weight zero makes the bound −∞, which rounding of so small a power would hide.
        lost = (centred == -np.inf).any(axis=-1) & (self.alpha == 1)
        return xp.where(lost, -np.inf, top[..., 0] + xp.log1p(mean) / power)

    def coefficients(self, log_weights: Float[AnyArray, "*m K"]) -> Coefficients:
        """g, A and B of each draw of each tuple."""
        return coefficients_of_power(self.gradient_power(log_weights), log_weights)

    def gradient_power(self, log_weights: Float[AnyArray, "*m K"]) -> Float[AnyArray, ""]:
        """The power 1 − α whose coefficients the gradient takes: that of the bound, but for `Tempered`."""
        return self.power(log_weights)

    def tempered(self, strength: Float[AnyArray, ""]) -> "AbstractObjective":
        """The same bound with gradients for a place far from the target: see `Tempered`.

        An objective with coefficients of its own is returned as it is.
        """
        own = type(self).coefficients is not AbstractObjective.coefficients
        return self if own else Tempered.of(self, strength)

    def power(self, log_weights: Float[AnyArray, "*m K"]) -> Float[AnyArray, ""]:
        """1 − α, kept just above zero."""
        xp, dtype = namespace(log_weights), log_weights.dtype
        return xp.maximum(1 - xp.asarray(self.alpha, dtype), xp.sqrt(xp.finfo(dtype).tiny))


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

    def __init__(self, K: int, alpha: float):
        self.K = check_positive_integer("K", K, _K_REMEDY)
        self.alpha = check_real("alpha", alpha, 0, 1, "alpha=0 is the IW-ELBO, alpha=1 the ELBO.")


class Tempered(AbstractObjective):
    """An objective whose gradient is taken at a larger α while single draws outweigh the rest of their tuples.

    Far from the target a tuple's weights are degenerate, and its gradient knows little more than its best draw. The
    power 1 − α is then lowered until the effective share of a tuple's draws is one half on average, or as far towards
    that, on the log scale, as `strength` in [0, 1] says. The bound itself stays that of the given α.
    """

    K: int = eqx.field(static=True)
    alpha: Any  # a number, or an array while tracing
    strength: Float[AnyArray, ""]

    @classmethod
    def of(cls, objective: AbstractObjective, strength: Float[AnyArray, ""]) -> "Tempered":
        """Made in every step, and so without the ceremony of a constructor."""
        tempered = object.__new__(cls)
        for name, value in (("K", objective.K), ("alpha", objective.alpha), ("strength", strength)):
            object.__setattr__(tempered, name, value)
        return tempered

    def gradient_power(self, log_weights):
        xp = namespace(log_weights)
        power = self.power(log_weights)

        # Of several blockings of the same draws, one is enough to tell how degenerate they are.
        one = log_weights.reshape(-1, *log_weights.shape[-2:])[0] if log_weights.ndim > 2 else log_weights
        top = one.max(axis=-1, keepdims=True)
        centred = one - xp.where(xp.isfinite(top), top, 0)

        def effective_share(power):
            weights = xp.exp(power * centred)
            return (weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1)).mean(axis=-1) / self.K

        def search():
            """Where the share, which falls with the power, is just above one half: between powers tried at once."""
            steps = xp.linspace(0, 1, _POWERS, dtype=log_weights.dtype)
            shares = effective_share((power * _LEAST_POWER ** (1 - steps)).reshape(-1, *(1,) * centred.ndim))
            return power * _LEAST_POWER ** (1 - xp.interp(-1.04 * _LEAST_SHARE, -shares, steps).astype(power.dtype))

        def search_down(share):
            """The same from the largest power down, and no further than needed: most often a few."""
            wanted, last = 1.04 * _LEAST_SHARE, 1.0
            for step in np.linspace(0, 1, _POWERS)[-2::-1]:
                above = effective_share(power * _LEAST_POWER ** (1 - step))
                if above >= wanted:
                    between = last - (last - step) * (wanted - share) / (above - share)
                    return power * power.dtype.type(_LEAST_POWER ** (1 - between))
                share, last = above, step
            return power * power.dtype.type(_LEAST_POWER)

        share = effective_share(power)
        found = (lambda: search_down(share)) if xp is np else search
        lowest = choose(share < _LEAST_SHARE, found, lambda: power)
        return power * (lowest / power) ** self.strength


def coefficients_of_power(power: Float[AnyArray, "..."], log_weights: Float[AnyArray, "*m K"]) -> Coefficients:
    """g, A and B for a given power 1 − α, or one for each of several fits."""
    g = softmax(power * log_weights)
    A = (1 - power) * g + power * g**2
    B = power * g * (1 - g) * ((1 - power) + 2 * power * g)
    return Coefficients(g, A, B)
