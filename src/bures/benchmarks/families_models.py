"""The targets of `bench families`: eleven real models of d = 65 to 3,075, and Gaussians of low rank plus diagonal.

`MODELS[name](folders)` is a `Target`. Seven are in `large_models.py`; here are the others: a log-Gaussian Cox process,
stochastic volatility and a neural network, the last two on simulated data with a fixed seed.
"""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import linalg

import bures
from bures import posteriordb
from bures.benchmarks import large_models
from bures.benchmarks.large_series import Named, cauchy, float_array, normal
from bures.check import fail
from bures.support import Interval, Positive

_VARIABLE = "BURES_SAMPLING"
_LOG_2PI = math.log(2 * math.pi)


class Folders(NamedTuple):
    """Where the data are; None where no model asks for them."""

    posteriordb: Path | None
    sampling: Path | None  # of the sampling literature: pines.csv


# ---- Cox process ----------------------------------------------------------------------------------------------------

GRID, VARIANCE, RANGE = 40, 1.91, 40 / 33  # cells a side; of the prior, over indices of cells


class Cox(eqx.Module):
    """Trees in cells: counts y ~ Poisson(eᶠ / cells), f ~ N(μ, K); `whiten` is L⁻¹ of K = L Lᵀ, an array of the target.

    log p = log N(f; μ, K) + Σ (y f − eᶠ / cells): no factorisation where it is evaluated.
    """

    counts: Float[Array, " cells"]
    whiten: Float[Array, "cells cells"]
    log_det: Float[Array, ""]  # of whiten
    mean: float = eqx.field(static=True)

    def __call__(self, f: Float[Array, " cells"]) -> Float[Array, ""]:
        noise, cells = self.whiten @ (f - self.mean), self.counts.size
        prior = -noise @ noise / 2 + self.log_det - cells * _LOG_2PI / 2
        return prior + jnp.sum(self.counts * f - jnp.exp(f) / cells)


def cox(points: np.ndarray, grid: int = GRID) -> Cox:
    """From points in the unit square; the range is that of 40 cells a side, whatever the grid."""
    places = np.minimum((points * grid).astype(int), grid - 1)
    counts = np.bincount(places[:, 0] * grid + places[:, 1], minlength=grid**2)
    whiten = linalg.solve_triangular(np.linalg.cholesky(cox_covariance(grid)), np.eye(grid**2), lower=True)
    log_det = np.sum(np.log(np.diagonal(whiten)))
    return Cox(*map(float_array, (counts, whiten, log_det)), mean=math.log(len(points)) - VARIANCE / 2)


def cox_covariance(grid: int) -> np.ndarray:
    cells = np.stack(np.meshgrid(np.arange(grid), np.arange(grid), indexing="ij"), axis=-1).reshape(-1, 2)
    distances = np.linalg.norm(cells[:, None] - cells, axis=-1)
    return VARIANCE * np.exp(-distances / RANGE)


def read_pines(folder: Path) -> np.ndarray:
    return np.loadtxt(folder / "pines.csv", delimiter=",", skiprows=1, usecols=(1, 2))


def _pines(folders: Folders) -> bures.Target:
    assert folders.sampling is not None
    density = cox(read_pines(folders.sampling))
    return bures.Target(density, density.counts.size)


# ---- Stochastic volatility ------------------------------------------------------------------------------------------


class Volatility(Named):
    """y_t ~ N(0, exp(h_t / 2)), h an autoregression about μ: centred, priors as in Stan's manual."""

    y: Float[Array, " days"]

    def variables(self) -> dict[str, Any]:
        return {"mu": (), "phi": Interval(-1, 1), "sigma": Positive(), "h": self.y.shape}

    def __call__(self, mu: Array, phi: Array, sigma: Array, h: Array) -> Array:
        first = normal(h[0], mu, sigma / jnp.sqrt((1 - phi) * (1 + phi)))
        others = normal(h[1:], mu + phi * (h[:-1] - mu), sigma)
        seen = -jnp.sum(self.y**2 * jnp.exp(-h) + h) / 2
        return first + others + seen + cauchy(sigma, 5.0) + cauchy(mu, 10.0)


def volatility(days: int) -> Volatility:
    """Returns of so many days, simulated with φ = 0.95, σ = 0.25, μ = −1."""
    mu, phi, sigma = -1.0, 0.95, 0.25
    rng = np.random.default_rng([2026, days])
    noise, h = rng.standard_normal(days), np.empty(days)
    h[0] = mu + sigma / math.sqrt(1 - phi**2) * noise[0]
    for t in range(1, days):
        h[t] = mu + phi * (h[t - 1] - mu) + sigma * noise[t]
    return Volatility(float_array(np.exp(h / 2) * rng.standard_normal(days)))


# ---- Neural network -------------------------------------------------------------------------------------------------


class Network(Named):
    """y ~ N(f(x), noise), f one hidden layer of tanh; all weights N(0, 1), scaled by the square root of what they sum.

    log noise ~ N(−1, 1).
    """

    X: Float[Array, "n inputs"]
    y: Float[Array, " n"]
    hidden: int = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        inputs, hidden = self.X.shape[1], self.hidden
        return {"w": (hidden, inputs), "b": (hidden,), "v": (hidden,), "c": (), "log_noise": ()}

    def __call__(self, w: Array, b: Array, v: Array, c: Array, log_noise: Array) -> Array:
        # Rows of w, so that over many points it is one product and nothing is transposed.
        layer = jnp.tanh(w @ self.X.T / math.sqrt(self.X.shape[1]) + b[:, None])
        rest = self.y - v @ layer / math.sqrt(self.hidden) - c
        likelihood = -(rest @ rest) * jnp.exp(-2 * log_noise) / 2 - self.y.size * log_noise
        weights = sum(normal(each, 0.0, 1.0) for each in (w, b, v, c))
        return likelihood + weights + normal(log_noise, -1.0, 1.0)


def network(inputs: int = 8, hidden: int = 50, n: int = 200) -> Network:
    """A smooth function of the first three inputs, with noise 0.3: 501 weights and the noise."""
    rng = np.random.default_rng(2026)
    X = rng.standard_normal((n, inputs))
    y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)
    return Network(float_array(X), float_array(y), hidden)


# ---- The eleven -----------------------------------------------------------------------------------------------------


def _large(name: str, folders: Folders) -> bures.Target:
    assert folders.posteriordb is not None
    return large_models.MODELS[name](folders.posteriordb)


def _simulated(make: Callable[[], Named], folders: Folders) -> bures.Target:
    density = make()
    return bures.Target.from_variables(density, density.variables())


COX = "Cox process"
LARGE = {  # our names, and those of `large_models`
    "rats": "rats",
    "irt_2pl": "irt_2pl",
    "radon_slopes": "radon_mn_slopes",
    "uk_drivers": "uk_drivers",
    "radon_all": "radon_all",
    "lsat": "lsat",
    "ovarian": "ovarian",
}
DIMENSIONS = {
    "rats": 65,
    "irt_2pl": 144,
    "radon_slopes": 175,
    "volatility_200": 203,
    "uk_drivers": 389,
    "radon_all": 391,
    "network": 502,
    "volatility_1000": 1003,
    "lsat": 1006,
    COX: 1600,
    "ovarian": 3075,
}
_BUILDERS: dict[str, Callable[[Folders], bures.Target]] = {
    **{name: functools.partial(_large, theirs) for name, theirs in LARGE.items()},
    "volatility_200": functools.partial(_simulated, functools.partial(volatility, 200)),
    "volatility_1000": functools.partial(_simulated, functools.partial(volatility, 1000)),
    "network": functools.partial(_simulated, network),
    COX: _pines,
}
MODELS: dict[str, Callable[[Folders], bures.Target]] = {name: _BUILDERS[name] for name in DIMENSIONS}


def find_folders(names: list[str], path: Path | None = None, sampling: Path | None = None) -> Folders:
    """The folders that these models need: as given, or from BURES_POSTERIORDB and BURES_SAMPLING."""
    theirs = posteriordb.find_path(path) if set(names) & set(LARGE) else None
    return Folders(theirs, find_sampling(sampling) if COX in names else None)


def find_sampling(path: Path | None = None) -> Path:
    """The folder with pines.csv: as given, or from the environment variable BURES_SAMPLING."""
    given = path or os.environ.get(_VARIABLE)
    if not given:
        raise ValueError(f"--sampling must be given, or the environment variable {_VARIABLE} set, for the {COX}.")
    if not (Path(given) / "pines.csv").is_file():
        raise fail("--sampling", "a folder with pines.csv in it", str(given), "Check the path.")
    return Path(given)


# ---- Gaussians ------------------------------------------------------------------------------------------------------


class Factors(NamedTuple):
    """A Gaussian N(mean, diag(variances) + columns diag(weights) columnsᵀ), in NumPy; weights may be negative."""

    mean: np.ndarray
    variances: np.ndarray
    columns: np.ndarray
    weights: np.ndarray

    def marginal_variances(self) -> np.ndarray:
        return self.variances + self.columns**2 @ self.weights

    def log_det(self) -> float:
        """log det(D + U W Uᵀ) = log det D + log det(I + W Uᵀ D⁻¹ U); D may be zero where U is square."""
        if not np.any(self.variances):
            return 2 * float(np.linalg.slogdet(self.columns)[1]) + float(np.sum(np.log(self.weights)))
        inner = self.columns.T @ (self.columns / self.variances[:, None])
        log_det = np.linalg.slogdet(np.eye(len(inner)) + self.weights[:, None] * inner)[1]
        return float(np.sum(np.log(self.variances)) + log_det)

    def entropy(self) -> float:
        return (self.log_det() + self.mean.size * (1 + _LOG_2PI)) / 2


class LowRankGaussian(eqx.Module):
    """N(mean, D + U Uᵀ), normalised, O(d r) an evaluation.

    By Woodbury's identity the precision is D⁻¹ − Cᵀ C, with C = L⁻¹ Uᵀ D⁻¹ and L Lᵀ = I + Uᵀ D⁻¹ U.
    """

    mean: Float[Array, " dim"]
    variances: Float[Array, " dim"]  # D
    columns: Float[Array, "dim rank"]  # U
    correction: Float[Array, "rank dim"]  # C
    constant: Float[Array, ""]

    def __init__(self, mean: np.ndarray, variances: np.ndarray, columns: np.ndarray):
        scaled = columns / variances[:, None]
        chol = np.linalg.cholesky(np.eye(columns.shape[1]) + columns.T @ scaled)
        correction = linalg.solve_triangular(chol, scaled.T, lower=True)
        log_det = np.sum(np.log(variances)) / 2 + np.sum(np.log(np.diagonal(chol)))
        constant = -log_det - len(mean) * _LOG_2PI / 2
        self.mean, self.variances, self.columns = map(float_array, (mean, variances, columns))
        self.correction, self.constant = float_array(correction), float_array(constant)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        x = z - self.mean
        along = self.correction @ x
        return self.constant - (jnp.sum(x * x / self.variances) - along @ along) / 2

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        one, two = jax.random.split(key)
        dim, rank = self.columns.shape
        own = jnp.sqrt(self.variances) * jax.random.normal(one, (n, dim), self.mean.dtype)
        return self.mean + own + jax.random.normal(two, (n, rank), self.mean.dtype) @ self.columns.T

    def kl_from(self, q: Factors) -> float:
        """KL(q ‖ this), in closed form and in factors: no d × d array."""
        mean, variances, C = (np.asarray(x, np.float64) for x in (self.mean, self.variances, self.correction))
        x = q.mean - mean
        distance = np.sum(x * x / variances) - np.sum((C @ x) ** 2)
        # tr((D⁻¹ − Cᵀ C)(D_q + U_q W_q U_qᵀ))
        own = np.sum(q.marginal_variances() / variances)
        trace = own - np.sum(C**2 * q.variances) - np.sum((C @ q.columns) ** 2 @ q.weights)
        log_det = -2 * float(self.constant) - mean.size * _LOG_2PI
        return float((trace + distance - mean.size + log_det - q.log_det()) / 2)


GAUSSIANS = ("fixed", "growing")


def gaussian(dim: int, kind: str = "fixed", rank: int = 10, seed: int = 2026) -> bures.Target:
    """Variances D over four decades, U of this rank, means some thirty standard deviations from the origin.

    Relative to D the covariance has the eigenvalues 1 + λ along U and else 1. `fixed`: λ from 3 to 300 in every
    dimension. `growing`: U explains half of every variable, so that λ is about d / rank, as in factor models.
    """
    rng = np.random.default_rng([seed, dim])
    variances = 10.0 ** rng.permutation(np.linspace(-2, 2, dim))
    directions = rng.standard_normal((dim, rank))
    if kind == "fixed":
        directions = np.linalg.qr(directions)[0] * np.sqrt(np.geomspace(3, 300, rank))
    else:
        directions /= math.sqrt(rank)
    columns = np.sqrt(variances)[:, None] * directions
    deviations = np.sqrt(variances + np.sum(columns**2, axis=1))
    density = LowRankGaussian(30 * deviations * rng.standard_normal(dim), variances, columns)
    return bures.Target(density, dim, sample=density.sample)
