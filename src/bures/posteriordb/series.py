"""The posteriors of time series: a GARCH model, two hidden Markov chains, and an ordinary differential equation.

Each goes through time in one `lax.scan` with scalars in its carry: under `vmap` these become long vectors.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.models import softplus
from bures.posteriordb.density import Density, Normal, Values
from bures.support import Interval, Positive, PositiveOrdered, Simplex


class Garch(Density):
    """σ_t² = α₀ + α₁ (y_{t−1} − μ)² + β₁ σ_{t−1}², y_t ~ N(μ, σ_t); β₁ as its share of 1 − α₁."""

    y: Float[Array, " times"]
    sigma1: Float[Array, ""]

    def variables(self) -> dict[str, Any]:
        return {"mu": (), "alpha0": Positive(), "alpha1": Interval(0, 1), "share": Interval(0, 1)}

    def __call__(self, mu: Array, alpha0: Array, alpha1: Array, share: Array) -> Float[Array, ""]:
        squares = (self.y - mu) ** 2
        beta1 = (1 - alpha1) * share

        def step(variance, square):
            return alpha0 + alpha1 * square + beta1 * variance, variance

        _, variances = jax.lax.scan(step, self.sigma1**2 + 0 * mu, squares)
        return -jnp.sum(squares / variances + jnp.log(variances)) / 2 + jnp.log1p(-alpha1)  # dβ₁ = (1 − α₁) d share

    def describe(self, values: Values) -> Values:
        kept = {name: values[name] for name in ("mu", "alpha0", "alpha1")}
        return {**kept, "beta1": (1 - values["alpha1"]) * values["share"]}

    def recover(self, values: Values) -> Values:
        kept = {name: values[name] for name in ("mu", "alpha0", "alpha1")}
        return {**kept, "share": values["beta1"] / (1 - values["alpha1"])}


class NormalChain(Density):
    """A hidden Markov chain of two states that emit N(μ_k, 1)."""

    y: Float[Array, " times"]

    def variables(self) -> dict[str, Any]:
        return {"theta1": Simplex(2), "theta2": Simplex(2), "mu": (PositiveOrdered(), (2,))}

    def __call__(self, theta1: Array, theta2: Array, mu: Array) -> Float[Array, ""]:
        likelihood = _log_chain(lambda y: (-((y - mu[0]) ** 2) / 2, -((y - mu[1]) ** 2) / 2), self.y, theta1, theta2)
        return likelihood + Normal(jnp.array([3.0, 10.0]), 1)(mu)


class DriveChain(Density):
    """A hidden Markov chain of two states that emit Exponential(φ_k) and Exponential(λ_k)."""

    u: Float[Array, " times"]
    v: Float[Array, " times"]
    alpha: Float[Array, "2 2"]

    def variables(self) -> dict[str, Any]:
        pair = (PositiveOrdered(), (2,))
        return {"theta1": Simplex(2), "theta2": Simplex(2), "phi": pair, "rate": pair}

    def __call__(self, theta1: Array, theta2: Array, phi: Array, rate: Array) -> Float[Array, ""]:
        constants = jnp.log(phi) + jnp.log(rate)

        def emission(seen):
            u, v = seen
            return constants[0] - u * phi[0] - v * rate[0], constants[1] - u * phi[1] - v * rate[1]

        dirichlet = jnp.sum((self.alpha - 1) * jnp.log(jnp.stack([theta1, theta2])))
        prior = Normal(jnp.array([0.0, 3.0]), 1)
        return _log_chain(emission, (self.u, self.v), theta1, theta2) + dirichlet + prior(phi) + prior(rate)

    def describe(self, values: Values) -> Values:
        return {("lambda" if name == "rate" else name): value for name, value in values.items()}

    def recover(self, values: Values) -> Values:
        return {("rate" if name == "lambda" else name): value for name, value in values.items()}


def _log_chain(emission: Any, observations: Any, first: Float[Array, " 2"], second: Float[Array, " 2"]) -> Array:
    """The forward algorithm with weight one on either first state; `first` and `second` are the transitions from each.

    `emission` gives the log likelihoods of one observation. The chain carries the log weight of the first state and
    the log odds of the second: stable whatever the odds, and light under `vmap`.
    """
    stay, leave, back, keep = jnp.log(first[0]), jnp.log(first[1]), jnp.log(second[0]), jnp.log(second[1])

    def step(carry, seen):
        weight, odds = carry
        one, two = emission(seen)
        one, two = one + stay + softplus(odds + back - stay), two + leave + softplus(odds + keep - leave)
        return (weight + one, two - one), None

    one, two = emission(jax.tree.map(lambda x: x[0], observations))
    (weight, odds), _ = jax.lax.scan(step, (one, two - one), jax.tree.map(lambda x: x[1:], observations))
    return weight + softplus(odds)


class PredatorAndPrey(Density):
    """Lotka and Volterra's hares and lynxes, seen each year with lognormal errors."""

    y: Float[Array, "years 2"]  # the first row is that of time 0

    def variables(self) -> dict[str, Any]:
        return {"theta": (Positive(), (4,)), "z_init": (Positive(), (2,)), "sigma": (Positive(), (2,))}

    def __call__(self, theta: Array, z_init: Array, sigma: Array) -> Float[Array, ""]:
        log_z = _populations(theta, jnp.log(z_init), self.y.shape[0] - 1)
        likelihood = Normal(log_z, sigma)(jnp.log(self.y)) - self.y.shape[0] * jnp.sum(jnp.log(sigma))
        rates = Normal(jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05]))(theta)
        deviations = Normal(-1, 1)(jnp.log(sigma)) - jnp.sum(jnp.log(sigma))
        start = Normal(jnp.log(10.0), 1)(jnp.log(z_init)) - jnp.sum(jnp.log(z_init))
        return likelihood + rates + deviations + start


_STEPS_A_YEAR = 10


def _populations(theta: Float[Array, " 4"], start: Float[Array, " 2"], years: int) -> Float[Array, "years_and_one 2"]:
    """Log populations at years 0, 1, ..., by Runge and Kutta's fourth-order method in the logarithms.

    In the logarithms populations stay positive; at the steps taken the log density over the reference draws is right
    to 2e-4, well within the accuracy that the draws themselves were made with.
    """
    birth, eaten, death, fed = theta
    h = 1 / _STEPS_A_YEAR

    def velocity(x, y):
        return birth - eaten * jnp.exp(y), fed * jnp.exp(x) - death

    def step(point, _):
        x, y = point
        a, b = velocity(x, y)
        c, d = velocity(x + h / 2 * a, y + h / 2 * b)
        e, f = velocity(x + h / 2 * c, y + h / 2 * d)
        g, i = velocity(x + h * e, y + h * f)
        moved = x + h / 6 * (a + 2 * c + 2 * e + g), y + h / 6 * (b + 2 * d + 2 * f + i)
        return moved, moved

    _, path = jax.lax.scan(step, (start[0], start[1]), length=years * _STEPS_A_YEAR)
    return jnp.concatenate([start[None], jnp.stack(path, axis=1)[_STEPS_A_YEAR - 1 :: _STEPS_A_YEAR]])
