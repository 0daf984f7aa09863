"""Gaussian processes and random fields; no matrix is factorised where they are evaluated."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import normal, softplus
from bures.benchmarks.real.classic import COAL
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, gamma, poisson, posterior, simulation
from bures.support import Positive

Data = dict[str, Array]
BASIS, REACH = 20, 1.5  # functions of the Hilbert-space approximation, on (−REACH, REACH)


def _waves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenfunctions of the Laplacian with zero ends, and square roots of its eigenvalues; x in (−1, 1)."""
    frequencies = np.arange(1, BASIS + 1) * math.pi / (2 * REACH)
    return np.sin((x[:, None] + REACH) * frequencies) / math.sqrt(REACH), frequencies


def _weights(data: Data, z: Array, scale: Array, length: Array) -> Array:
    """z times the root of the spectral density of the squared-exponential kernel."""
    log_root = jnp.log(length) / 2 + math.log(2 * math.pi) / 4 - (length * data["frequencies"]) ** 2 / 4
    return scale * jnp.exp(log_root) * z


def _smooth(data: Data, z: Array, scale: Array, length: Array, level: Array, log_noise: Array) -> Array:
    """y ~ N(f(x), exp(noise₁ + noise₂ x))."""
    f = level + data["basis"] @ _weights(data, z, scale, length)
    log_sd = log_noise[0] + log_noise[1] * data["x"]
    seen = jnp.sum(-(((data["y"] - f) * jnp.exp(-log_sd)) ** 2) / 2 - log_sd)
    priors = normal(z, 0.0, 1.0) + normal(scale, 0.0, 1.0) + gamma(length, 3.0, 9.0)
    return seen + priors + normal(level, 0.0, 1.0) + normal(log_noise, 0.0, 1.0)


def motorcycle(folders: Folders) -> bures.Target:
    """A Gaussian process with noise that grows along x."""
    rng = simulation("motorcycle")
    x = np.sort(rng.uniform(-1, 1, 90))
    y = np.sin(5 * x) * np.exp(-((x - 0.1) ** 2) * 3) + np.exp(-1.5 + 0.6 * x) * rng.standard_normal(90)
    basis, frequencies = _waves(x)
    variables = {"z": (BASIS,), "scale": Positive(), "length": Positive(), "level": (), "log_noise": (2,)}
    return posterior(_smooth, {"x": x, "y": y, "basis": basis, "frequencies": frequencies}, variables)


def _rate(data: Data, z: Array, scale: Array, length: Array, level: Array) -> Array:
    f = level + data["basis"] @ _weights(data, z, scale, length)
    priors = normal(z, 0.0, 1.0) + normal(scale, 0.0, 1.0) + gamma(length, 3.0, 9.0) + normal(level, 0.0, 1.0)
    return poisson(data["y"], f) + priors


def coal_process(folders: Folders) -> bures.Target:
    """A log-Gaussian Cox process in time."""
    basis, frequencies = _waves(np.linspace(-1, 1, COAL.size))
    variables = {"z": (BASIS,), "scale": Positive(), "length": Positive(), "level": ()}
    return posterior(_rate, {"y": COAL, "basis": basis, "frequencies": frequencies}, variables)


def _boundary(data: Data, f: Array) -> Array:
    noise = data["whiten"] @ f
    return -noise @ noise / 2 + jnp.sum(data["y"] * f - softplus(f))


def boundary(folders: Folders) -> bures.Target:
    """Classification of 150 points in the plane by a process whose kernel is known."""
    rng = simulation("boundary")
    points = rng.uniform(-1, 1, (150, 2))
    square = np.sum((points[:, None] - points) ** 2, axis=-1)
    kernel = 4 * np.exp(-square / (2 * 0.4**2)) + 0.01 * np.eye(150)
    y = rng.random(150) < 1 / (1 + np.exp(-4 * np.sin(3 * points[:, 0]) * points[:, 1]))
    return posterior(_boundary, {"whiten": np.linalg.inv(np.linalg.cholesky(kernel)), "y": y}, {"f": (150,)})


def _map(data: Data, phi: Array, level: Array, sigma: Array) -> Array:
    """φ an intrinsic autoregression on the grid, about zero, in units of σ."""
    across, down = jnp.diff(phi, axis=1), jnp.diff(phi, axis=0)
    field = -(jnp.sum(across**2) + jnp.sum(down**2)) / 2 + normal(jnp.mean(phi), 0.0, 0.01)
    return poisson(data["y"], data["log_expected"] + level + sigma * phi) + field + normal(level, 0.0, 1.0) - sigma


def districts(folders: Folders) -> bures.Target:
    """Disease mapping: counts on a grid of 10 × 10."""
    rng = simulation("districts")
    rows, columns = np.mgrid[-1:1:10j, -1:1:10j]
    expected = rng.uniform(2, 10, (10, 10))
    y = rng.poisson(expected * np.exp(0.5 * np.sin(2 * rows) - 0.4 * columns**2))
    variables = {"phi": (10, 10), "level": (), "sigma": Positive()}
    return posterior(_map, {"y": y, "log_expected": np.log(expected)}, variables)


MODELS = {
    "motorcycle": Model("Gaussian process", SIMULATED, 25, motorcycle, "regression with growing noise, 20 waves"),
    "coal_process": Model("Gaussian process", CLASSIC, 23, coal_process, "rate of coal-mining disasters, 20 waves"),
    "boundary": Model("Gaussian process", SIMULATED, 150, boundary, "classification with a known kernel"),
    "districts": Model("random field", SIMULATED, 102, districts, "disease mapping on a grid"),
}
