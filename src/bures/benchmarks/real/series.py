"""Time series: levels, volatility, autoregressions."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders, Volatility
from bures.benchmarks.large_series import float_array, normal
from bures.benchmarks.real.classic import AIRLINE, COAL, NILE
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, poisson, posterior, simulation
from bures.support import Interval, Positive

Data = dict[str, Array]
INSTALLED = "installed packages"

# ---- Levels ---------------------------------------------------------------------------------------------------------


def _levels(data: Data, level: Array, sigma: Array) -> Array:
    seen = normal(data["y"], level, sigma[0])
    return seen + normal(level[1:], level[:-1], sigma[1]) + normal(level[0], 0.0, 2.0) + normal(sigma, 0.0, 1.0)


_NILE = (NILE - 900) / 150


def nile_levels(folders: Folders) -> bures.Target:
    """Local level of the Nile, all of the levels as variables."""
    return posterior(_levels, {"y": _NILE}, {"level": (NILE.size,), "sigma": (Positive(), (2,))})


def _filtered(data: Data, sigma: Array) -> Array:
    """The same with the levels summed out, by Kalman's filter."""

    def step(known: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        mean, variance = known
        total = variance + sigma[0] ** 2
        gain = variance / total
        log_density = -((y - mean) ** 2) / (2 * total) - jnp.log(total) / 2
        return (mean + gain * (y - mean), (1 - gain) * variance + sigma[1] ** 2), log_density

    start = (jnp.zeros_like(sigma[0]), jnp.full_like(sigma[0], 4.0))
    return jnp.sum(jax.lax.scan(step, start, data["y"])[1]) + normal(sigma, 0.0, 1.0)


def nile_filter(folders: Folders) -> bures.Target:
    return posterior(_filtered, {"y": _NILE}, {"sigma": (Positive(), (2,))})


def _walk(data: Data, x: Array, sigma: Array) -> Array:
    return poisson(data["y"], x) + normal(x[1:], x[:-1], sigma) + normal(x[0], 0.0, 2.0) + normal(sigma, 0.0, 1.0)


def coal_walk(folders: Folders) -> bures.Target:
    """Coal-mining disasters, the log rate a random walk."""
    return posterior(_walk, {"y": COAL}, {"x": (COAL.size,), "sigma": Positive()})


def _brownian(data: Data, x: Array, sigma: Array) -> Array:
    """log σ ~ N(0, 2): innovations and errors; the middle is not observed."""
    seen = -jnp.sum(data["seen"] * ((data["y"] - x) / sigma[1]) ** 2) / 2 - jnp.sum(data["seen"]) * jnp.log(sigma[1])
    moves = normal(x[0], 0.0, sigma[0]) + normal(x[1:], x[:-1], sigma[0])
    return seen + moves + normal(jnp.log(sigma), 0.0, 2.0) - jnp.sum(jnp.log(sigma))


def brownian(folders: Folders) -> bures.Target:
    rng = simulation("brownian")
    y = np.cumsum(0.1 * rng.standard_normal(30)) + 0.15 * rng.standard_normal(30)
    seen = (np.arange(30) < 10) | (np.arange(30) >= 20)
    return posterior(_brownian, {"y": y, "seen": seen}, {"x": (30,), "sigma": (Positive(), (2,))})


# ---- Autoregressions ------------------------------------------------------------------------------------------------


def _airline(data: Data, beta: Array, rho: Array, sigma: Array) -> Array:
    rest = data["y"] - data["X"] @ beta
    first = normal(rest[0], 0.0, sigma / jnp.sqrt((1 - rho) * (1 + rho)))
    return first + normal(rest[1:], rho * rest[:-1], sigma) + normal(beta, 0.0, 3.0) + normal(sigma, 0.0, 1.0)


def airline(folders: Folders) -> bures.Target:
    """Trend and months with autoregressive errors."""
    t = np.linspace(-1, 1, AIRLINE.size)
    months = np.eye(12)[np.arange(AIRLINE.size) % 12][:, 1:]
    X = np.column_stack([np.ones(t.size), t, t**2, months])
    y = np.log(AIRLINE)
    variables = {"beta": (14,), "rho": Interval(-1, 1), "sigma": Positive()}
    return posterior(_airline, {"X": X, "y": (y - y.mean()) / y.std()}, variables)


def _moving(data: Data, mu: Array, phi: Array, theta: Array, sigma: Array) -> Array:
    y = data["y"]
    expected = mu + phi * (y[:-1] - mu)

    def step(error: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        error = pair[0] - pair[1] - theta * error
        return error, error

    _, errors = jax.lax.scan(step, y[0] - mu, (y[1:], expected))
    return normal(y[0] - mu, 0.0, sigma) + normal(errors, 0.0, sigma) + normal(mu, 0.0, 5.0) + normal(sigma, 0.0, 2.0)


def arma(folders: Folders) -> bures.Target:
    """ARMA(1, 1) of 200 times, flat in (−1, 1)."""
    rng = simulation("arma")
    errors, y = rng.standard_normal(200), np.zeros(200)
    for t in range(1, 200):
        y[t] = 0.7 * y[t - 1] + errors[t] + 0.4 * errors[t - 1]
    variables = {"mu": (), "phi": Interval(-1, 1), "theta": Interval(-1, 1), "sigma": Positive()}
    return posterior(_moving, {"y": 1 + y}, variables)


# ---- Volatility -----------------------------------------------------------------------------------------------------

DAYS = 250


def google(folders: Folders) -> bures.Target:
    """Returns of Google's share, in per cent, of the last days in Matplotlib's sample data."""
    from matplotlib import cbook

    prices = np.load(cbook.get_sample_data("goog.npz", asfileobj=False))["price_data"]["adj_close"]
    returns = 100 * np.diff(np.log(prices))[-DAYS:]
    density = Volatility(float_array(returns - returns.mean()))
    return bures.Target.from_variables(density, density.variables())


MODELS = {
    "nile_levels": Model("time series", CLASSIC, 102, nile_levels, "local level of the Nile"),
    "nile_filter": Model("time series", CLASSIC, 2, nile_filter, "the same, levels summed out by Kalman's filter"),
    "coal_walk": Model("time series", CLASSIC, 110, coal_walk, "coal-mining disasters, the log rate a random walk"),
    "brownian": Model("time series", SIMULATED, 32, brownian, "Brownian motion with a gap, unknown scales"),
    "airline": Model("time series", CLASSIC, 16, airline, "trend and season with autoregressive errors"),
    "arma": Model("time series", SIMULATED, 4, arma, "ARMA(1, 1)"),
    "google": Model("time series", INSTALLED, 253, google, "stochastic volatility of Google's share, centred"),
}
