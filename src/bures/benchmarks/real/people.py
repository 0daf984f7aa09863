"""Item response, paired comparison, and survival."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import cauchy, normal, softplus
from bures.benchmarks.real.classic import REMISSION
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, gamma, posterior, simulation, with_intercept
from bures.support import Positive

Data = dict[str, Array]

# ---- Answers --------------------------------------------------------------------------------------------------------


def _rasch(data: Data, ability: Array, difficulty: Array, sigma: Array) -> Array:
    logits = ability[:, None] - difficulty
    seen = jnp.sum(data["y"] * logits - softplus(logits))
    return seen + normal(ability, 0.0, sigma) + normal(difficulty, 0.0, 2.0) + normal(sigma, 0.0, 2.0)


def rasch(folders: Folders) -> bures.Target:
    """100 persons answer 20 items."""
    rng = simulation("rasch")
    logits = rng.normal(0, 1.2, (100, 1)) - rng.normal(0, 1, 20)
    data = {"y": rng.random((100, 20)) < 1 / (1 + np.exp(-logits))}
    variables = {"ability": (100,), "difficulty": (20,), "sigma": Positive()}
    return posterior(_rasch, data, variables, location_scale={"ability": lambda sigma: (0.0, sigma)})


def _pairs(data: Data, skill: Array, sigma: Array) -> Array:
    margin = data["X"] @ skill
    return -jnp.sum(softplus(-margin)) + normal(skill, 0.0, sigma) + normal(sigma, 0.0, 1.0)


def tennis(folders: Folders) -> bures.Target:
    """Bradley and Terry: 30 players, 150 matches; a row is the winner minus the loser."""
    rng = simulation("tennis")
    skill = rng.normal(0, 1, 30)
    teams = np.array([rng.choice(30, 2, replace=False) for _ in range(150)])
    wins = rng.random(150) < 1 / (1 + np.exp(skill[teams[:, 1]] - skill[teams[:, 0]]))
    X = np.where(wins, 1, -1)[:, None] * (np.eye(30)[teams[:, 0]] - np.eye(30)[teams[:, 1]])
    variables = {"skill": (30,), "sigma": Positive()}
    return posterior(_pairs, {"X": X}, variables, location_scale={"skill": lambda sigma: (0.0, sigma)})


# ---- Survival -------------------------------------------------------------------------------------------------------


def _weibull(data: Data, beta: Array, shape: Array) -> Array:
    """Hazard shape t^(shape − 1) exp(Xβ)."""
    log_hazard = data["X"] @ beta
    seen = data["ended"] * (log_hazard + jnp.log(shape) + (shape - 1) * data["log_t"])
    survived = jnp.exp(log_hazard + shape * data["log_t"])
    return jnp.sum(seen - survived) + normal(beta, 0.0, 5.0) + gamma(shape, 2.0, 1.0)


def remission(folders: Folders) -> bures.Target:
    """Leukaemia: Weibull with censored times."""
    weeks, ended, treated = REMISSION
    data = {"log_t": np.log(weeks / 10), "ended": ended, "X": with_intercept(treated)}
    return posterior(_weibull, data, {"beta": (2,), "shape": Positive()})


def _log_normal(data: Data, beta: Array, sigma: Array) -> Array:
    z = (data["log_t"] - data["X"] @ beta) / sigma
    survived = jnp.log(jnp.maximum(0.5 * erfc(z / jnp.sqrt(2.0)), 1e-300))
    seen = jnp.where(data["ended"] > 0, -(z**2) / 2 - jnp.log(sigma), survived)
    return jnp.sum(seen) + normal(beta, 0.0, 5.0) + normal(sigma, 0.0, 2.0)


def repairs(folders: Folders) -> bures.Target:
    """Accelerated failure: log-normal times, a third of them censored."""
    rng = simulation("repairs")
    X = with_intercept(rng.standard_normal((120, 3)))
    log_t = X @ np.array([1.0, 0.5, -0.5, 0.0]) + 0.8 * rng.standard_normal(120)
    limit = np.log(rng.uniform(1, 10, 120))
    data = {"log_t": np.minimum(log_t, limit), "ended": log_t <= limit, "X": X}
    return posterior(_log_normal, data, {"beta": (4,), "sigma": Positive()})


def _frailty(data: Data, beta: Array, w: Array, shape: Array, sigma: Array) -> Array:
    """Weibull, the log hazard of a patient shifted by w ~ N(0, σ): both kidneys share it."""
    log_hazard = (data["X"] @ beta + w)[:, None]
    seen = data["ended"] * (log_hazard + jnp.log(shape) + (shape - 1) * data["log_t"])
    survived = jnp.exp(log_hazard + shape * data["log_t"])
    effects = normal(w, 0.0, sigma) + cauchy(sigma, 1.0)
    return jnp.sum(seen - survived) + effects + normal(beta, 0.0, 5.0) + gamma(shape, 2.0, 1.0)


def kidneys(folders: Folders) -> bures.Target:
    """40 patients, two times each."""
    rng = simulation("kidneys")
    X = with_intercept(rng.standard_normal((40, 1)))
    log_hazard = (X @ np.array([0.0, 0.7]) + rng.normal(0, 0.6, 40))[:, None]
    t = (rng.exponential(size=(40, 2)) * np.exp(-log_hazard)) ** (1 / 1.2)
    limit = rng.uniform(0.5, 4, (40, 2))
    data = {"log_t": np.log(np.minimum(t, limit)), "ended": t <= limit, "X": X}
    variables = {"beta": (2,), "w": (40,), "shape": Positive(), "sigma": Positive()}
    return posterior(_frailty, data, variables, location_scale={"w": lambda sigma: (0.0, sigma)})


MODELS = {
    "rasch": Model("item response", SIMULATED, 121, rasch, "100 persons and 20 items, one parameter"),
    "tennis": Model("item response", SIMULATED, 31, tennis, "Bradley and Terry's comparison of 30 players, centred"),
    "remission": Model("survival", CLASSIC, 3, remission, "Weibull times of leukaemia, censored"),
    "repairs": Model("survival", SIMULATED, 5, repairs, "log-normal accelerated failure, censored"),
    "kidneys": Model("survival", SIMULATED, 44, kidneys, "Weibull with frailties, centred"),
}
