"""Counts: over-dispersed ones, admissions, birds that are seen again, a change of rate."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import normal, softplus
from bures.benchmarks.real.classic import ADMISSIONS, COAL, DIPPERS, DIPPERS_RELEASED
from bures.benchmarks.real.parts import (
    CLASSIC,
    SIMULATED,
    Model,
    gamma,
    negative_binomial,
    posterior,
    simulation,
    with_intercept,
)
from bures.support import Interval, Positive

Data = dict[str, Array]


def _overdispersed(data: Data, beta: Array, dispersion: Array) -> Array:
    likelihood = negative_binomial(data["y"], data["X"] @ beta, dispersion)
    return likelihood + normal(beta, 0.0, 2.5) + gamma(dispersion, 2.0, 0.5)


def roaches(folders: Folders) -> bures.Target:
    """Negative binomial regression."""
    rng = simulation("roaches")
    X = with_intercept(rng.standard_normal((150, 4)))
    mean = np.exp(X @ np.array([1.0, 0.6, -0.4, 0.0, 0.3]))
    y = rng.poisson(mean * rng.gamma(0.8, 1 / 0.8, 150))
    return posterior(_overdispersed, {"X": X, "y": y}, {"beta": (5,), "dispersion": Positive()})


def _inflated(data: Data, beta: Array, gamma: Array) -> Array:
    """Zero with probability logit⁻¹(Xγ), else Poisson(exp Xβ)."""
    logit, log_rate = data["X"] @ gamma, data["X"] @ beta
    counts = data["y"] * log_rate - jnp.exp(log_rate)  # of a Poisson, up to a constant that is zero at y = 0
    terms = jnp.where(data["y"] == 0, jnp.logaddexp(logit, -jnp.exp(log_rate)), counts)
    return jnp.sum(terms - softplus(logit)) + normal(beta, 0.0, 2.5) + normal(gamma, 0.0, 2.5)


def fishing(folders: Folders) -> bures.Target:
    """Zero-inflated Poisson regression."""
    rng = simulation("fishing")
    X = with_intercept(rng.standard_normal((150, 2)))
    fishes = rng.random(150) > 1 / (1 + np.exp(-X @ np.array([-0.3, 1.0, 0.0])))
    y = fishes * rng.poisson(np.exp(X @ np.array([0.8, 0.3, -0.5])))
    return posterior(_inflated, {"X": X, "y": y}, {"beta": (3,), "gamma": (3,)})


def _positive(data: Data, beta: Array, shape: Array) -> Array:
    log_mean = data["X"] @ beta
    likelihood = shape * jnp.log(shape) - shape * log_mean - gammaln(shape) + (shape - 1) * jnp.log(data["y"])
    likelihood = jnp.sum(likelihood - shape * data["y"] * jnp.exp(-log_mean))
    return likelihood + normal(beta, 0.0, 5.0) + gamma(shape, 2.0, 0.5)


def claims(folders: Folders) -> bures.Target:
    """Gamma regression with a logarithmic link."""
    rng = simulation("claims")
    X = with_intercept(rng.standard_normal((100, 3)))
    y = rng.gamma(1.5, np.exp(X @ np.array([2.0, 0.5, -0.3, 0.1])) / 1.5)
    return posterior(_positive, {"X": X, "y": y}, {"beta": (4,), "shape": Positive()})


def _departments(data: Data, a: Array, beta: Array, mu: Array, sigma: Array) -> Array:
    logits = a + beta * data["woman"][:, None]
    seen = jnp.sum(data["admitted"] * logits - data["applied"] * softplus(logits))
    return seen + normal(a, mu, sigma) + normal(mu, 0.0, 1.5) + normal(beta, 0.0, 1.0) + normal(sigma, 0.0, 1.0)


def admissions(folders: Folders) -> bures.Target:
    """Berkeley: an intercept for each department about a common mean, and one effect of sex."""
    data = {"admitted": ADMISSIONS[..., 0], "applied": ADMISSIONS[..., 1], "woman": [0, 1]}
    variables = {"a": (6,), "beta": (), "mu": (), "sigma": Positive()}
    return posterior(_departments, data, variables, location_scale={"a": lambda mu, sigma: (mu, sigma)})


def _recaptured(data: Data, phi: Array, p: Array) -> Array:
    """Released in year i, first seen again in year j: φ_i ⋯ φ_j (1 − p)^(j − i) p; flat."""
    log_phi = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.log(phi))])
    years = jnp.arange(6)
    lag = years - years[:, None]
    log_seen = log_phi[1:] - log_phi[:-1, None] + lag * jnp.log1p(-p) + jnp.log(p)
    possible = lag >= 0
    never = 1 - jnp.sum(jnp.where(possible, jnp.exp(jnp.where(possible, log_seen, 0.0)), 0.0), axis=1)
    lost = data["released"] - jnp.sum(data["seen"], axis=1)
    seen = jnp.sum(jnp.where(possible, data["seen"] * log_seen, 0.0))
    return seen + jnp.sum(lost * jnp.log(jnp.maximum(never, 1e-300)))


def dippers(folders: Folders) -> bures.Target:
    """Survival by year, one probability of being seen."""
    data = {"seen": DIPPERS, "released": DIPPERS_RELEASED}
    return posterior(_recaptured, data, {"phi": (Interval(0, 1), (6,)), "p": Interval(0, 1)})


def _occupied(data: Data, alpha: Array, beta: Array) -> Array:
    """A site is occupied with probability logit⁻¹(Xα), and then seen to be so on each visit with logit⁻¹(Wβ)."""
    occupied, seen = data["X"] @ alpha, data["W"] @ beta
    visits = data["y"] * seen - data["visits"] * softplus(seen)
    there = visits - softplus(-occupied)
    either = jnp.logaddexp(there, -softplus(occupied))
    return jnp.sum(jnp.where(data["y"] > 0, there, either)) + normal(alpha, 0.0, 1.5) + normal(beta, 0.0, 1.5)


def sites(folders: Folders) -> bures.Target:
    """Occupancy of 80 sites, four visits each."""
    rng = simulation("sites")
    X, W = with_intercept(rng.standard_normal((80, 1))), with_intercept(rng.standard_normal((80, 1)))
    occupied = rng.random(80) < 1 / (1 + np.exp(-X @ np.array([0.0, 1.0])))
    y = occupied * rng.binomial(4, 1 / (1 + np.exp(-W @ np.array([-0.7, 0.5]))))
    return posterior(_occupied, {"X": X, "W": W, "y": y, "visits": 4}, {"alpha": (2,), "beta": (2,)})


def _changed(data: Data, rates: Array) -> Array:
    """Poisson counts whose rate changes once, in a year that is summed over; rates ~ Exponential(1)."""
    early, late = (data["y"] * jnp.log(rate) - rate for rate in rates)
    before = jnp.cumsum(early)[:-1]
    after = jnp.sum(late) - jnp.cumsum(late)[:-1]
    total = before + after
    top = jnp.max(total)
    return top + jnp.log(jnp.sum(jnp.exp(total - top))) - jnp.sum(rates)


def coal_change(folders: Folders) -> bures.Target:
    return posterior(_changed, {"y": COAL}, {"rates": (Positive(), (2,))})


MODELS = {
    "roaches": Model("GLM", SIMULATED, 6, roaches, "negative binomial regression"),
    "fishing": Model("GLM", SIMULATED, 6, fishing, "zero-inflated Poisson regression"),
    "claims": Model("GLM", SIMULATED, 5, claims, "gamma regression"),
    "admissions": Model("hierarchical", CLASSIC, 9, admissions, "Berkeley's admissions by department, centred"),
    "dippers": Model("capture-recapture", CLASSIC, 7, dippers, "survival of European dippers"),
    "occupancy": Model("capture-recapture", SIMULATED, 4, sites, "sites that may be occupied, summed out"),
    "coal_change": Model("change point", CLASSIC, 2, coal_change, "coal-mining disasters, one change summed out"),
}
