"""The targets of `bench ladder`, by name: toys, several modes, posteriors of the literature and of posteriordb.

`TARGETS[name].make(folders)` is a `Target`. Random ones are fixed by a seed of their own: seeds of the benchmark are
those of fits. Normalised densities have log evidence zero and exact draws.
"""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import bures
from bures import posteriordb
from bures.benchmarks.families_models import Folders
from bures.check import as_array, fail

_VARIABLE = "BURES_SAMPLING"
_LOG_2PI = math.log(2 * math.pi)
_SEED = 2026  # of the targets


class Listed(NamedTuple):
    """A target that is made when it is run, and what is known of it."""

    make: Callable[[Folders], bures.Target]
    dim: int
    log_evidence: float | None = None
    data: str | None = None  # a file of the sampling literature, or a posterior of posteriordb


# ---- Several modes --------------------------------------------------------------------------------------------------


class GaussianMixture(eqx.Module):
    """Σ w_k N(mean_k, L_k L_kᵀ), normalised; whitening matrices, not solves, because it is vmapped."""

    log_weights: Float[Array, " components"]
    means: Float[Array, "components dim"]
    chols: Float[Array, "components dim dim"]
    whiteners: Float[Array, "components dim dim"]
    log_scales: Float[Array, " components"]

    def __init__(self, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray):
        chols = np.linalg.cholesky(covariances)
        log_dets = np.sum(np.log(np.diagonal(chols, axis1=1, axis2=2)), axis=1)
        self.log_weights, self.means, self.chols = as_array(np.log(weights)), as_array(means), as_array(chols)
        self.whiteners = as_array(np.linalg.inv(chols))
        self.log_scales = as_array(np.log(weights) - log_dets - means.shape[1] * _LOG_2PI / 2)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        noise = jnp.einsum("kij,kj->ki", self.whiteners, z - self.means)
        return jax.nn.logsumexp(self.log_scales - jnp.sum(noise**2, axis=1) / 2)

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        key_component, key_noise = jax.random.split(key)
        k = jax.random.categorical(key_component, self.log_weights, shape=(n,))
        noise = jax.random.normal(key_noise, (n, self.means.shape[1]), self.means.dtype)
        return self.means[k] + jnp.einsum("nij,nj->ni", self.chols[k], noise)


def mixture(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> bures.Target:
    """A normalised mixture of Gaussians with its exact moments and draws."""
    density = GaussianMixture(weights, means, covariances)
    mean = weights @ means
    spread = np.einsum("k,ki,kj->ij", weights, means - mean, means - mean)
    covariance = np.einsum("k,kij->ij", weights, covariances) + spread
    return bures.Target(density, means.shape[1], sample=density.sample, mean=mean, covariance=covariance)


def two_modes(dim: int, apart: float = 20.0) -> bures.Target:
    """Two unit Gaussians of equal weight, so many standard deviations apart along some direction, about the origin."""
    direction = np.random.default_rng([_SEED, dim]).standard_normal(dim)
    half = apart / 2 * direction / np.linalg.norm(direction)
    return mixture(np.full(2, 0.5), np.stack([-half, half]), np.broadcast_to(np.eye(dim), (2, dim, dim)))


def ten_gaussians(dim: int) -> bures.Target:
    """Weights from a flat Dirichlet, means uniform in [−10, 10]^d, Wishart covariances (d + 2, I / d)."""
    rng = np.random.default_rng([_SEED, dim])
    weights, means = rng.dirichlet(np.ones(10)), rng.uniform(-10, 10, (10, dim))
    factors = rng.standard_normal((10, dim, dim + 2)) / math.sqrt(dim)
    return mixture(weights, means, factors @ factors.transpose(0, 2, 1))


def mog40(dim: int = 2) -> bures.Target:
    """Forty unit Gaussians of equal weight, means uniform in [−40, 40]^d."""
    means = np.random.default_rng([_SEED, 40, dim]).uniform(-40, 40, (40, dim))
    return mixture(np.full(40, 1 / 40), means, np.broadcast_to(np.eye(dim), (40, dim, dim)))


# ---- Posteriors of the sampling literature --------------------------------------------------------------------------

GOALS = ((7.0, 0.0), (-7.0, 0.0), (0.0, 7.0), (0.0, -7.0))
PRECISION = 0.01  # standard deviation of the end point about its goal


class Robot(eqx.Module):
    """Ten links of length one with joint angles θ: the end point has to be at one of the goals.

    θ₁ ~ N(0, 1), the others N(0, 0.2²); the likelihood is the largest over the goals of N(end; goal, 0.01² I).
    """

    deviations: Float[Array, " links"]
    goals: Float[Array, "goals 2"]

    def __call__(self, theta: Float[Array, " links"]) -> Float[Array, ""]:
        angles = jnp.cumsum(theta)
        end = jnp.stack([jnp.sum(jnp.cos(angles)), jnp.sum(jnp.sin(angles))])
        nearest = jnp.min(jnp.sum((end - self.goals) ** 2, axis=1))
        likelihood = -nearest / (2 * PRECISION**2) - 2 * math.log(PRECISION) - _LOG_2PI
        prior = -jnp.sum((theta / self.deviations) ** 2) / 2 - jnp.sum(jnp.log(self.deviations))
        return likelihood + prior - theta.size * _LOG_2PI / 2


def robot(links: int = 10) -> bures.Target:
    return bures.Target(Robot(as_array([1.0, *[0.2] * (links - 1)]), as_array(np.array(GOALS))), links)


def scaled_design(columns: np.ndarray) -> np.ndarray:
    """Each column divided by its standard deviation, not centred, with a column of ones first."""
    return np.column_stack([np.ones(len(columns)), columns / columns.std(axis=0)])


def german_credit(folders: Folders) -> bures.Target:
    """Logistic regression of 1,000 credits on 24 features, z ~ N(0, 10² I)."""
    data = np.loadtxt(_file(folders, GERMAN))
    return bures.models.logistic_regression(scaled_design(data[:, :24]), data[:, 24] - 1, prior_variance=100.0)


def breast_cancer(folders: Folders) -> bures.Target:
    """Logistic regression of 569 tumours on 30 features, z ~ N(0, 10² I)."""
    data = np.loadtxt(_file(folders, BREAST))
    return bures.models.logistic_regression(scaled_design(data[:, 2:]), data[:, 1], prior_variance=100.0)


def _file(folders: Folders, name: str) -> Path:
    assert folders.sampling is not None
    return folders.sampling / name


# ---- The list -------------------------------------------------------------------------------------------------------

GERMAN, BREAST = "german.data-numeric", "breast_cancer.data"


def _toy(make: Callable[[], bures.Target], dim: int, log_evidence: float | None = 0.0) -> Listed:
    return Listed(lambda folders: make(), dim, log_evidence)


def _posterior(name: str, dim: int) -> Listed:
    return Listed(lambda folders: posteriordb.load(name, folders.posteriordb).target, dim, data=name)


def _banana(dim: int) -> Listed:
    return _toy(functools.partial(bures.models.banana, dim=dim), dim)


def _funnel(dim: int, scale: float) -> Listed:
    return _toy(functools.partial(bures.models.funnel, dim, scale), dim)


def _student(dim: int) -> Listed:
    return _toy(functools.partial(bures.models.student_t, dim), dim)


TARGETS: dict[str, Listed] = {
    "eggbox": _toy(bures.models.eggbox, 2),
    "banana, d = 2": _banana(2),
    "banana, d = 10": _banana(10),
    "funnel, d = 3": _funnel(3, 1.5),
    "funnel, d = 10": _funnel(10, 3.0),
    "Student-t, d = 2": _student(2),
    "Student-t, d = 20": _student(20),
    "eight schools, centred": _posterior("eight_schools-eight_schools_centered", 10),
    "gp_pois_regr": _posterior("gp_pois_regr-gp_pois_regr", 13),
    "hmm_drive_0": _posterior("bball_drive_event_0-hmm_drive_0", 6),
    "kilpisjarvi": _posterior("kilpisjarvi_mod-kilpisjarvi", 3),
    "kidscore_momiq": _posterior("kidiq-kidscore_momiq", 3),
    "Census, d = 96": _toy(functools.partial(bures.models.census, "full"), 96, None),
    **{f"two modes, d = {d}": _toy(functools.partial(two_modes, d), d) for d in (2, 10, 50)},
    **{f"ten Gaussians, d = {d}": _toy(functools.partial(ten_gaussians, d), d) for d in (5, 20)},
    "MoG40": _toy(mog40, 2),
    "German credit": Listed(german_credit, 25, data=GERMAN),
    "breast cancer": Listed(breast_cancer, 31, data=BREAST),
    "planar robot": _toy(robot, 10, None),
}
MIXTURES = tuple(TARGETS)[:13]
MODES = tuple(TARGETS)[13:19]
PUBLISHED = ("German credit", "breast cancer", "ten Gaussians, d = 20", "planar robot")


def find_folders(data: set[str | None], path: Path | None = None, sampling: Path | None = None) -> Folders:
    """The folders that hold these data: as given, or from BURES_POSTERIORDB and BURES_SAMPLING."""
    files = sorted(data & {GERMAN, BREAST})
    theirs = posteriordb.find_path(path) if data - {None, GERMAN, BREAST} else None
    return Folders(theirs, _find_sampling(sampling, files) if files else None)


def _find_sampling(path: Path | None, files: list[str]) -> Path:
    given = path or os.environ.get(_VARIABLE)
    if not given:
        raise ValueError(f"--sampling must be given, or the environment variable {_VARIABLE} set, for {files[0]}.")
    for file in files:
        if not (Path(given) / file).is_file():
            raise fail("--sampling", f"a folder with {file} in it", str(given), "Check the path.")
    return Path(given)
