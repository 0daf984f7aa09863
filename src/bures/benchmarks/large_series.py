"""The models of `large_models.py` with a time axis, mixtures and topics; and what all of them are made of."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint
from jaxtyping import Array, Float

from bures.support import Interval, Ordered, Positive, PositiveOrdered, Simplex

# ---- Parts ----------------------------------------------------------------------------------------------------------


class Named(eqx.Module):
    """A log density of named, constrained variables that says what they are, for `Target.from_variables`."""

    def variables(self) -> dict[str, Any]:
        raise NotImplementedError

    def __call__(self, *arguments: Any, **values: Any) -> Array:
        raise NotImplementedError


def float_array(x: Any) -> Array:
    return jnp.asarray(np.asarray(x, float))


def normal(x: Array, mean: Any, scale: Any) -> Array:
    """Σ log N(x | mean, scale) up to a constant; an infinite scale is no prior."""
    if isinstance(scale, float):  # a constant of the model: its logarithm is left out
        return -jnp.sum(((x - mean) / scale) ** 2) / 2
    return -jnp.sum(((x - mean) / scale) ** 2) / 2 - jnp.size(x) * jnp.log(scale)


def cauchy(x: Array, scale: float) -> Array:
    return -jnp.sum(jnp.log1p((x / scale) ** 2))


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """log(1 + eˣ), cheaper than JAX's."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, _, x: jax.nn.sigmoid(x) * tangent)


# ---- Car drivers: level and season ----------------------------------------------------------------------------------

SEASON = 12


class Drivers(Named):
    """y = level + β x + λ w + season + noise, by month; the first eleven seasons and the first level are free."""

    y: Float[Array, " months"]
    x: Float[Array, " months"]
    w: Float[Array, " months"]
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        months = self.y.shape
        level = (Interval(self.low, self.high), months)
        return {"mu": level, "seasonal": months, "beta": (), "lambda": (), "sigma": (PositiveOrdered(), (3,))}

    def __call__(self, mu: Array, seasonal: Array, beta: Array, sigma: Array, **rest: Array) -> Array:
        # The last 11 and the month itself: what it is away from minus their sum.
        sums = jnp.cumsum(jnp.concatenate([jnp.zeros(1, seasonal.dtype), seasonal]))
        seasons = normal(sums[SEASON:] - sums[:-SEASON], 0.0, sigma[0])
        levels = normal(mu[1:], mu[:-1], sigma[1])
        noise = normal(self.y, mu + beta * self.x + rest["lambda"] * self.w + seasonal, sigma[2])
        return noise + levels + seasons - 2.5 * jnp.sum(jnp.log1p(sigma**2 / 4))


def drivers(data: dict) -> Named:
    y = np.asarray(data["y"], float)
    centre, reach = y.mean(), 3 * y.std(ddof=1)
    columns = map(float_array, (y, data["x"], data["w"]))
    return Drivers(*columns, low=float(centre - reach), high=float(centre + reach))


# ---- Hidden Markov chain --------------------------------------------------------------------------------------------


class Chain(Named):
    """A hidden Markov chain with normal emissions and ordered means."""

    y: Float[Array, " times"]
    states: int = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        K = self.states
        emissions = {"mu": (Ordered(), (K,)), "sigma": (Positive(), (K,))}
        return {"pi1": Simplex(K), "A": (Simplex(K), (K,)), **emissions}

    def __call__(self, pi1: Array, A: Array, mu: Array, sigma: Array) -> Array:
        logs = -(((self.y[:, None] - mu) / sigma) ** 2) / 2 - jnp.log(sigma)
        # Relative to the likeliest state: some state is left at every time, however far the point is.
        tops = jnp.max(logs, axis=1)
        emissions = jnp.exp(logs - tops[:, None])

        def step(forward, emission):
            forward = jnp.sum(forward[:, None] * A, axis=0) * emission
            total = jnp.sum(forward)
            return forward / total, jnp.log(total)

        first = pi1 * emissions[0]
        total = jnp.sum(first)
        _, steps = jax.lax.scan(step, first / total, emissions[1:])
        return jnp.log(total) + jnp.sum(steps) + jnp.sum(tops)


def chain(data: dict) -> Named:
    return Chain(float_array(data["y"]), data["K"])


# ---- Mixtures -------------------------------------------------------------------------------------------------------


class TwoNormals(Named):
    """y ~ θ N(μ₁, 1) + (1 − θ) N(μ₂, 1), μ ~ N(0, 10): the labels may be exchanged."""

    y: Float[Array, " n"]

    def variables(self) -> dict[str, Any]:
        return {"theta": Interval(0, 1), "mu": (2,)}

    def __call__(self, theta: Array, mu: Array) -> Array:
        first = jnp.log(theta) - (self.y - mu[0]) ** 2 / 2
        second = jnp.log1p(-theta) - (self.y - mu[1]) ** 2 / 2
        return jnp.sum(first + softplus(second - first)) + normal(mu, 0.0, 10.0)


class Normals(Named):
    """y ~ Σ θ_k N(μ_k, σ_k), μ ~ N(0, 10), σ in (0, 10): K! modes."""

    y: Float[Array, " n"]
    components: int = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        K = self.components
        return {"theta": Simplex(K), "mu": (K,), "sigma": (Interval(0, 10), (K,))}

    def __call__(self, theta: Array, mu: Array, sigma: Array) -> Array:
        logs = jnp.log(theta) - jnp.log(sigma) - ((self.y[:, None] - mu) / sigma) ** 2 / 2
        return jnp.sum(jax.nn.logsumexp(logs, axis=1)) + normal(mu, 0.0, 10.0)


class Documents(Named):
    """Two topics, words marginalised; θ and φ flat on their simplexes. Of the words only their counts matter."""

    counts: Float[Array, "documents words"]

    def variables(self) -> dict[str, Any]:
        documents, words = self.counts.shape
        return {"theta": (Simplex(2), (documents,)), "phi": (Simplex(words), (2,))}

    def __call__(self, theta: Array, phi: Array) -> Array:
        return jnp.sum(self.counts * jnp.log(jnp.sum(theta[:, :, None] * phi, axis=1)))


def two_normals(data: dict) -> Named:
    return TwoNormals(float_array(data["y"]))


def five_normals(data: dict) -> Named:
    return Normals(float_array(data["y"]), data["K"])


def documents(data: dict) -> Named:
    counts = np.zeros((data["M"], data["V"]))
    np.add.at(counts, (np.asarray(data["doc"]) - 1, np.asarray(data["w"]) - 1), 1)
    return Documents(float_array(counts))


# ---- Cholera --------------------------------------------------------------------------------------------------------

KAPPA = 1e6  # bacteria at which infection is half as likely as it can be
STEPS_A_DAY = 4


class Cholera(Named):
    """Susceptible, infected, recovered, and bacteria in the water, weekly: infections Poisson, bacteria lognormal.

    By Runge and Kutta's fourth-order method at fixed steps or, `adaptive`, by `odeint`, which is dear at wide draws,
    goes forward over reverse nowhere, and is what users write. Where the method fails the density is zero.
    """

    infections: Float[Array, " weeks"]
    log_bacteria: Float[Array, " weeks"]
    times: Float[Array, " weeks"]
    start: Float[Array, " 4"]
    adaptive: bool = eqx.field(static=True)
    days: int = eqx.field(static=True)  # between observations

    def variables(self) -> dict[str, Any]:
        return {name: Positive() for name in ("beta", "gamma", "xi", "delta")}

    def __call__(self, beta: Array, gamma: Array, xi: Array, delta: Array) -> Array:
        path = self._adaptive(beta, gamma, xi, delta) if self.adaptive else self._fixed(beta, gamma, xi, delta)
        susceptible = jnp.concatenate([self.start[:1], path[:, 0]])
        expected = jnp.maximum(susceptible[:-1] - susceptible[1:], 1e-16)
        # A path that blew up has no density; its gradient is kept finite by taking it at a harmless path.
        good = jnp.all(jnp.isfinite(path))
        expected, bacteria = jnp.where(good, expected, 1.0), jnp.where(good, jnp.maximum(path[:, 3], 1e-16), 1.0)
        likelihood = jnp.sum(self.infections * jnp.log(expected) - expected)
        likelihood += normal(self.log_bacteria, jnp.log(bacteria), 0.15)
        priors = cauchy(beta, 2.5) + cauchy(gamma, 1.0) + cauchy(xi, 25.0) + cauchy(delta, 1.0)
        return jnp.where(good, likelihood, -jnp.inf) + priors

    def _adaptive(self, *rates: Array) -> Array:
        times = jnp.concatenate([jnp.zeros(1, self.times.dtype), self.times])
        path = odeint(lambda y, t, *rates: jnp.stack(_flow(*y, *rates)), self.start, times, *rates, mxstep=10_000)
        return path[1:]

    def _fixed(self, *rates: Array) -> Array:
        h, steps = 1 / STEPS_A_DAY, self.days * STEPS_A_DAY

        def step(y, _):
            def add(scale, k):
                return tuple(a + scale * b for a, b in zip(y, k, strict=True))

            k1 = _flow(*y, *rates)
            k2 = _flow(*add(h / 2, k1), *rates)
            k3 = _flow(*add(h / 2, k2), *rates)
            k4 = _flow(*add(h, k3), *rates)
            moved = [a + h / 6 * (b + 2 * c + 2 * d + e) for a, b, c, d, e in zip(y, k1, k2, k3, k4, strict=True)]
            return tuple(moved), tuple(moved)

        start = tuple(a + 0 * rates[0] for a in self.start)
        _, path = jax.lax.scan(step, start, length=steps * self.times.size)
        return jnp.stack([part[steps - 1 :: steps] for part in path], axis=1)


def _flow(s: Array, i: Array, r: Array, b: Array, beta: Array, gamma: Array, xi: Array, delta: Array) -> tuple:
    """The velocity of (susceptible, infected, recovered, bacteria)."""
    infected = beta * b / (b + KAPPA) * s
    return -infected, infected - gamma * i, gamma * i, xi * i - delta * b


def cholera(data: dict, adaptive: bool = False) -> Named:
    times = np.asarray(data["t"], float)
    days = int(times[1] - times[0])
    arrays = map(float_array, (data["stoi_hat"], np.log(data["B_hat"]), times, data["y0"]))
    return Cholera(*arrays, adaptive=adaptive, days=days)


def cholera_adaptive(data: dict) -> Named:
    return cholera(data, adaptive=True)
