"""Differential equations, and what a body does with a drug."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import normal
from bures.benchmarks.real.classic import INFLUENZA
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, negative_binomial, posterior, simulation
from bures.support import Positive

Data = dict[str, Array]
State = tuple[Array, ...]


def runge_kutta(flow: Callable[..., State], start: State, steps: int, length: float) -> tuple[Array, ...]:
    """The path of `flow(*state)` after each of so many steps, by the classical fourth-order method."""

    def move(state: State, scale: float, slope: State) -> State:
        return tuple(a + scale * b for a, b in zip(state, slope, strict=True))

    def step(state: State, _: None) -> tuple[State, State]:
        one = flow(*state)
        two = flow(*move(state, length / 2, one))
        three = flow(*move(state, length / 2, two))
        four = flow(*move(state, length, three))
        slopes = zip(one, two, three, four, strict=True)
        moved = move(state, length / 6, tuple(a + 2 * b + 2 * c + d for a, b, c, d in slopes))
        return moved, moved

    return jax.lax.scan(step, start, length=steps)[1]


def _influenza(data: Data, beta: Array, gamma: Array, spread: Array) -> Array:
    """Susceptible and infected; boys in bed are negative binomial about the infected, 1/φ ~ Exponential(5)."""
    steps, boys = 5, 763.0
    start = (jnp.full_like(beta, boys - 1), jnp.ones_like(beta))

    def flow(s: Array, i: Array) -> State:
        return -beta * s * i / boys, beta * s * i / boys - gamma * i

    infected = runge_kutta(flow, start, steps * data["y"].size, 1 / steps)[1][steps - 1 :: steps]
    good = jnp.all(jnp.isfinite(infected))
    log_mean = jnp.log(jnp.maximum(jnp.where(good, infected, 1.0), 1e-10))
    seen = negative_binomial(data["y"], log_mean, 1 / spread)
    priors = normal(beta, 2.0, 1.0) + normal(gamma, 0.4, 0.5) - 5 * spread
    return jnp.where(good, seen, -jnp.inf) + priors


def influenza(folders: Folders) -> bures.Target:
    variables = {"beta": Positive(), "gamma": Positive(), "spread": Positive()}
    return posterior(_influenza, {"y": INFLUENZA}, variables, initial_point=np.log([1.7, 0.5, 0.1]))


def _prey(data: Data, theta: Array, start: Array, sigma: Array) -> Array:
    """Lotka and Volterra, every fourth of the steps seen with log-normal errors; priors as posteriordb has them."""
    steps = 20

    def flow(u: Array, v: Array) -> State:
        return (theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v

    path = runge_kutta(flow, (start[0], start[1]), steps * len(data["y"]), 4.0 / steps)
    path = jnp.stack([part[steps - 1 :: steps] for part in path], axis=1)
    good = jnp.all(jnp.isfinite(path)) & jnp.all(path > 0)
    log_path = jnp.log(jnp.where(good, path, 1.0))
    seen = sum(normal(data["y"][:, i], log_path[:, i], sigma[i]) for i in (0, 1))
    seen += sum(normal(data["first"][i], jnp.log(start[i]), sigma[i]) for i in (0, 1))
    rates = normal(theta[::2], 1.0, 0.5) + normal(theta[1::2], 0.05, 0.05)
    others = normal(jnp.log(sigma), -1.0, 1.0) - jnp.sum(jnp.log(sigma))
    others += normal(jnp.log(start), np.log(10.0), 1.0) - jnp.sum(jnp.log(start))
    return jnp.where(good, seen, -jnp.inf) + rates + others


def few_hares(folders: Folders) -> bures.Target:
    """Lotka and Volterra seen five times only, four years apart."""
    rng = simulation("few hares")
    u, v, path = 30.0, 5.0, []
    for _ in range(20 * 1000):
        u, v = u + 1e-3 * (0.55 - 0.028 * v) * u, v + 1e-3 * (0.024 * u - 0.8) * v
        path.append((u, v))
    y = np.log(np.array(path)[3999::4000]) + 0.25 * rng.standard_normal((5, 2))
    first = np.log([30.0, 5.0]) + 0.25 * rng.standard_normal(2)
    variables = {"theta": (Positive(), (4,)), "start": (Positive(), (2,)), "sigma": (Positive(), (2,))}
    origin = np.log([0.55, 0.028, 0.8, 0.024, 30, 5, 0.3, 0.3])
    return posterior(_prey, {"y": y, "first": first}, variables, initial_point=origin)


def _drug(data: Data, logs: Array, mean: Array, deviation: Array, sigma: Array) -> Array:
    """Absorbed at rate kₐ, eliminated at rate k, volume V: logarithms of the three for each person about a mean."""
    absorption, elimination, volume = jnp.exp(logs.T)[..., None]
    x = (absorption - elimination) * data["t"]
    small = jnp.abs(x) < 1e-4
    growth = jnp.where(small, 1 - x / 2, -jnp.expm1(-jnp.where(small, 1.0, x)) / jnp.where(small, 1.0, x))
    log_level = jnp.log(absorption * data["t"] * growth / volume) - elimination * data["t"]
    people = sum(normal(logs[:, i], mean[i], deviation[i]) for i in range(3))
    scales = normal(deviation, 0.0, 0.5) + normal(sigma, 0.0, 0.5)
    return normal(data["log_level"], log_level, sigma) + people + normal(mean, data["guess"], 0.5) + scales


def drug(folders: Folders) -> bures.Target:
    """Ten persons, one compartment, six times; centred."""
    rng = simulation("drug")
    guess = np.array([0.5, -2.5, -0.7])
    k = np.exp(guess + 0.3 * rng.standard_normal((10, 3)))[..., None]
    t = np.array([0.25, 0.5, 1, 3, 8, 20])
    level = k[:, 0] / (k[:, 2] * (k[:, 0] - k[:, 1])) * (np.exp(-k[:, 1] * t) - np.exp(-k[:, 0] * t))
    data = {"t": t, "log_level": np.log(level) + 0.15 * rng.standard_normal(level.shape), "guess": guess}
    variables = {"logs": (10, 3), "mean": (3,), "deviation": (Positive(), (3,)), "sigma": Positive()}
    start = np.r_[np.tile(guess, 10), guess, -1, -1, -1, -1]
    sites = {"logs": lambda mean, deviation: (mean, deviation)}
    return posterior(_drug, data, variables, initial_point=start, location_scale=sites)


MODELS = {
    "influenza": Model("ODE", CLASSIC, 3, influenza, "an epidemic in a boarding school"),
    "few_hares": Model("ODE", SIMULATED, 8, few_hares, "predator and prey, seen five times"),
    "drug": Model("pharmacokinetics", SIMULATED, 37, drug, "one compartment, ten persons, centred"),
}
