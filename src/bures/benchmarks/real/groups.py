"""Hierarchical models: one or two grouping factors, mostly in the centred form that people write first."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import cauchy, normal, softplus
from bures.benchmarks.real.classic import BASEBALL, DYES, PUMPS, RUGBY
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, gamma, poisson, posterior, simulation
from bures.support import Interval, Positive

Data = dict[str, Array]

# ---- One factor -----------------------------------------------------------------------------------------------------


def _batting(data: Data, theta: Array, mu: Array, sigma: Array) -> Array:
    seen = jnp.sum(data["hits"] * theta - 45.0 * softplus(theta))
    return seen + normal(theta, mu, sigma) + normal(mu, -1.0, 1.0) + normal(sigma, 0.0, 1.0)


def baseball(folders: Folders) -> bures.Target:
    """Logits of 18 batting averages about a common mean."""
    variables = {"theta": (18,), "mu": (), "sigma": Positive()}
    sites = {"theta": lambda mu, sigma: (mu, sigma)}
    return posterior(_batting, {"hits": BASEBALL}, variables, location_scale=sites)


def _failures(data: Data, rate: Array, alpha: Array, beta: Array) -> Array:
    seen = jnp.sum(data["x"] * jnp.log(rate) - rate * data["t"])
    return seen + gamma(rate, alpha, beta) - alpha + gamma(beta, 0.1, 1.0)


def pumps(folders: Folders) -> bures.Target:
    """Poisson failures, rates ~ Gamma(α, β), α ~ Exponential(1), β ~ Gamma(0.1, 1)."""
    t, x = PUMPS
    variables = {"rate": (Positive(), (10,)), "alpha": Positive(), "beta": Positive()}
    return posterior(_failures, {"t": t, "x": x}, variables)


def _batches(data: Data, b: Array, mu: Array, sigma_b: Array, sigma_y: Array) -> Array:
    scales = cauchy(sigma_b, 1.0) + cauchy(sigma_y, 1.0)
    return normal(data["y"], b[:, None], sigma_y) + normal(b, mu, sigma_b) + normal(mu, 0.0, 5.0) + scales


def dyestuff(folders: Folders) -> bures.Target:
    """Six batches of five, in units of 50 grams about 1,500."""
    variables = {"b": (6,), "mu": (), "sigma_b": Positive(), "sigma_y": Positive()}
    sites = {"b": lambda mu, sigma_b: (mu, sigma_b)}
    return posterior(_batches, {"y": (DYES - 1500) / 50}, variables, location_scale=sites)


def _schools(data: Data, theta: Array, mu: Array, tau: Array) -> Array:
    return normal(data["y"], theta, 1.0) + normal(theta, mu, tau) + normal(mu, 0.0, 5.0) + cauchy(tau, 2.0)


def fifty_schools(folders: Folders) -> bures.Target:
    """Fifty schools whose effects differ by a third of the error they are known with: centred, a funnel."""
    rng = simulation("fifty schools")
    y = rng.normal(0.5, 0.3, 50) + rng.standard_normal(50)
    variables = {"theta": (50,), "mu": (), "tau": Positive()}
    return posterior(_schools, {"y": y}, variables, location_scale={"theta": lambda mu, tau: (mu, tau)})


def _cafes(data: Data, a: Array, b: Array, mean: Array, deviations: Array, correlation: Array, sigma: Array) -> Array:
    """Intercept and slope of a café are normal with a correlation, flat in (−1, 1)."""
    first, second = (a - mean[0]) / deviations[0], (b - mean[1]) / deviations[1]
    rest = (1 - correlation) * (1 + correlation)
    square = jnp.sum(first**2 - 2 * correlation * first * second + second**2) / rest
    effects = -square / 2 - a.size * (jnp.log(rest) / 2 + jnp.sum(jnp.log(deviations)))
    seen = normal(data["y"], a[:, None] + b[:, None] * data["x"], sigma)
    return seen + effects + normal(mean, 0.0, 5.0) - jnp.sum(deviations) - sigma


def cafes(folders: Folders) -> bures.Target:
    """Waits in 20 cafés, mornings and afternoons."""
    rng = simulation("cafes")
    effects = rng.multivariate_normal([3.5, -1], [[1, -0.35], [-0.35, 0.25]], 20)
    x = np.tile([0.0, 1.0], 5)
    y = effects[:, :1] + effects[:, 1:] * x + 0.5 * rng.standard_normal((20, 10))
    scales = {"deviations": (Positive(), (2,)), "correlation": Interval(-1, 1), "sigma": Positive()}
    return posterior(_cafes, {"y": y, "x": x}, {"a": (20,), "b": (20,), "mean": (2,), **scales})


# ---- Two factors ----------------------------------------------------------------------------------------------------


def _matches(data: Data, attack: Array, defence: Array, home: Array, level: Array, sigma: Array) -> Array:
    """Points ~ Poisson(exp(level + home + attack − defence)), the matrices pick a match's teams."""
    at_home = level + home + data["home"] @ attack - data["away"] @ defence
    away = level + data["away"] @ attack - data["home"] @ defence
    seen = poisson(data["points"][0], at_home) + poisson(data["points"][1], away)
    effects = normal(attack, 0.0, sigma[0]) + normal(defence, 0.0, sigma[1])
    return seen + effects + normal(home, 0.0, 1.0) + normal(level, 3.0, 1.0) + normal(sigma, 0.0, 1.0)


def rugby(folders: Folders) -> bures.Target:
    """Six Nations 2014: attack and defence of each team."""
    home, away = (np.eye(6)[RUGBY[:, i]] for i in (0, 1))
    variables = {"attack": (6,), "defence": (6,), "home": (), "level": (), "sigma": (Positive(), (2,))}
    sites: Any = {"attack": lambda sigma: (0.0, sigma[0]), "defence": lambda sigma: (0.0, sigma[1])}
    data = {"home": home, "away": away, "points": RUGBY[:, 2:].T}
    return posterior(_matches, data, variables, location_scale=sites)


def _crossed_normal(data: Data, a: Array, b: Array, mu: Array, sigma: Array) -> Array:
    expected = mu + data["first"] @ a + data["second"] @ b
    effects = normal(a, 0.0, sigma[0]) + normal(b, 0.0, sigma[1])
    return normal(data["y"], expected, sigma[2]) + effects + normal(mu, 0.0, 5.0) + normal(sigma, 0.0, 2.0)


def _pairs(rng: np.random.Generator, first: int, second: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Which levels of two factors each row has, as indicators; every level occurs."""
    one, two = (np.arange(rows) % first, np.arange(rows) % second)
    return np.eye(first)[rng.permutation(one)], np.eye(second)[rng.permutation(two)]


def crossed_normal(folders: Folders) -> bures.Target:
    """40 lecturers and 60 students, 240 marks."""
    rng = simulation("crossed normal")
    one, two = _pairs(rng, 40, 60, 240)
    y = 1 + one @ rng.normal(0, 0.5, 40) + two @ rng.normal(0, 0.3, 60) + rng.standard_normal(240)
    variables = {"a": (40,), "b": (60,), "mu": (), "sigma": (Positive(), (3,))}
    sites: Any = {"a": lambda sigma: (0.0, sigma[0]), "b": lambda sigma: (0.0, sigma[1])}
    return posterior(_crossed_normal, {"first": one, "second": two, "y": y}, variables, location_scale=sites)


def _crossed_logistic(data: Data, a: Array, b: Array, mu: Array, sigma: Array) -> Array:
    logits = mu + data["first"] @ a + data["second"] @ b
    effects = normal(a, 0.0, sigma[0]) + normal(b, 0.0, sigma[1])
    seen = jnp.sum(data["y"] * logits - softplus(logits))
    return seen + effects + normal(mu, 0.0, 2.0) + normal(sigma, 0.0, 1.0)


def crossed_logistic(folders: Folders) -> bures.Target:
    """80 speakers and 40 words, 480 answers of yes or no."""
    rng = simulation("crossed logistic")
    one, two = _pairs(rng, 80, 40, 480)
    logits = 0.5 + one @ rng.normal(0, 0.8, 80) + two @ rng.normal(0, 0.6, 40)
    variables = {"a": (80,), "b": (40,), "mu": (), "sigma": (Positive(), (2,))}
    sites: Any = {"a": lambda sigma: (0.0, sigma[0]), "b": lambda sigma: (0.0, sigma[1])}
    data = {"first": one, "second": two, "y": rng.random(480) < 1 / (1 + np.exp(-logits))}
    return posterior(_crossed_logistic, data, variables, location_scale=sites)


def _nested(data: Data, region: Array, district: Array, mu: Array, sigma: Array) -> Array:
    effects = normal(region, mu, sigma[0]) + normal(district, region[:, None], sigma[1])
    return normal(data["y"], district[..., None], sigma[2]) + effects + normal(mu, 0.0, 5.0) + normal(sigma, 0.0, 2.0)


def nested(folders: Folders) -> bures.Target:
    """Ten regions of ten districts, three measurements in each."""
    rng = simulation("nested")
    region = 2 + rng.normal(0, 0.7, 10)
    district = region[:, None] + rng.normal(0, 0.3, (10, 10))
    y = district[..., None] + 0.8 * rng.standard_normal((10, 10, 3))
    variables = {"region": (10,), "district": (10, 10), "mu": (), "sigma": (Positive(), (3,))}
    sites: Any = {
        "region": lambda mu, sigma: (mu, sigma[0]),
        "district": lambda region, sigma: (region[:, None], sigma[1]),
    }
    return posterior(_nested, {"y": y}, variables, location_scale=sites)


MODELS = {
    "baseball": Model("hierarchical", CLASSIC, 20, baseball, "Efron and Morris's batting averages, centred"),
    "pumps": Model("hierarchical", CLASSIC, 12, pumps, "failures of ten pumps, gamma rates"),
    "dyestuff": Model("hierarchical", CLASSIC, 9, dyestuff, "batches of dyestuff, centred"),
    "fifty_schools": Model("funnel", SIMULATED, 52, fifty_schools, "fifty schools that hardly differ, centred"),
    "cafes": Model("hierarchical", SIMULATED, 46, cafes, "correlated intercepts and slopes of 20 cafés, centred"),
    "rugby": Model("two factors", CLASSIC, 16, rugby, "attack and defence in the Six Nations"),
    "crossed_normal": Model("two factors", SIMULATED, 104, crossed_normal, "crossed effects, normal, centred"),
    "crossed_logistic": Model("two factors", SIMULATED, 123, crossed_logistic, "crossed effects, logistic, centred"),
    "nested": Model("two factors", SIMULATED, 114, nested, "districts in regions, centred"),
}
