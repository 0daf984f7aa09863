"""Small targets with known answers: normalised densities, exact draws, exact moments where they exist."""

import math
import numbers

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.check import as_array, check_positive_integer, check_real, fail
from bures.family.gaussian import check_matrix_dim
from bures.target import Target

_LOG_2PI = math.log(2 * math.pi)
_DIM_REMEDY = "It is the dimension of the target."


class _Mixture(eqx.Module):
    """An equally weighted mixture of Gaussians, normalised. Whitening matrices, not solves: it is vmapped."""

    means: Float[Array, "components dim"]
    chols: Float[Array, "components dim dim"]
    whiteners: Float[Array, "components dim dim"]
    log_scales: Float[Array, " components"]

    def __init__(self, means: np.ndarray, covariances: np.ndarray):
        chols = np.linalg.cholesky(covariances)
        log_dets = np.sum(np.log(np.diagonal(chols, axis1=1, axis2=2)), axis=1)
        self.means = as_array(means)
        self.chols = as_array(chols)
        self.whiteners = as_array(np.linalg.inv(chols))
        self.log_scales = as_array(-log_dets - means.shape[1] * _LOG_2PI / 2 - math.log(len(means)))

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        noise = jnp.einsum("kij,kj->ki", self.whiteners, z - self.means)
        return jax.nn.logsumexp(self.log_scales - jnp.sum(noise**2, axis=1) / 2)

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        key_component, key_noise = jax.random.split(key)
        k = jax.random.randint(key_component, (n,), 0, len(self.means))
        noise = jax.random.normal(key_noise, (n, self.means.shape[1]), self.means.dtype)
        return self.means[k] + jnp.einsum("nij,nj->ni", self.chols[k], noise)


def _mixture_target(means: np.ndarray, covariances: np.ndarray) -> Target:
    density = _Mixture(means, covariances)
    mean = means.mean(axis=0)
    spread = (means - mean).T @ (means - mean) / len(means)
    covariance = covariances.mean(axis=0) + spread
    return Target(density, means.shape[1], sample=density.sample, mean=mean, covariance=covariance)


def eggbox() -> Target:
    """The paper's eggbox: four equally weighted Gaussians in the plane (its Table 8), with exact moments and draws.

    >>> eggbox().mean.tolist()
    [6.0, 4.0]
    """
    means = np.array([[3.0, 3.0], [5.0, 5.0], [7.0, 2.0], [9.0, 6.0]])
    covariances = np.array(
        [[[1.0, -0.8], [-0.8, 1.2]], [[0.6, 0.1], [0.1, 0.3]], [[0.5, -0.2], [-0.2, 0.3]], [[0.5, 0.0], [0.0, 0.5]]]
    )
    return _mixture_target(means, covariances)


def gaussian(dim: int, *, condition_number: float = 1.0, scale: float = 1.0, seed: int = 0) -> Target:
    """A normalised Gaussian centred at the origin, randomly rotated.

    The eigenvalues of its covariance are spaced logarithmically from `scale² / condition_number` to `scale²`.
    """
    check_matrix_dim(dim)
    check_real("condition_number", condition_number, 1, 1e300, "It is the ratio of extreme eigenvalues.")
    check_real("scale", scale, 0, 1e300, "It is the largest standard deviation.", open_low=True)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise fail("seed", "an integer that is not negative", seed, "It chooses the rotation, e.g. seed=0.")
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]
    deviations = scale * np.logspace(-np.log10(condition_number) / 2, 0, dim)
    density = _Rotated(as_array(rotation), as_array(deviations))
    covariance = (rotation * deviations**2) @ rotation.T
    return Target(density, dim, sample=density.sample, mean=np.zeros(dim), covariance=(covariance + covariance.T) / 2)


class _Rotated(eqx.Module):
    """N(0, R diag(deviations²) Rᵀ), evaluated in its eigenbasis, so that a large condition number costs no accuracy."""

    rotation: Float[Array, "dim dim"]
    deviations: Float[Array, " dim"]

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        noise = (self.rotation.T @ z) / self.deviations
        return -jnp.sum(noise**2) / 2 - jnp.sum(jnp.log(self.deviations)) - z.size * _LOG_2PI / 2

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        noise = jax.random.normal(key, (n, self.deviations.size), self.deviations.dtype)
        return (noise * self.deviations) @ self.rotation.T


class _Banana(eqx.Module):
    b: Float[Array, ""]
    dim: int = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        bent = z[1] + self.b * (z[0] ** 2 - 100)
        squares = z[0] ** 2 / 100 + bent**2 + jnp.sum(z[2:] ** 2)
        return -squares / 2 - math.log(10) - self.dim * _LOG_2PI / 2

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        noise = jax.random.normal(key, (n, self.dim), self.b.dtype)
        first = 10 * noise[:, 0]
        return noise.at[:, 0].set(first).at[:, 1].add(-self.b * (first**2 - 100))


def banana(b: float = 0.03, dim: int = 2) -> Target:
    """The banana-shaped density of Haario et al. (2001): N(0, diag(100, 1, ..., 1)) bent along the second axis.

    >>> jnp.diagonal(banana(b=0.03).covariance).round(3).tolist()
    [100.0, 19.0]
    """
    check_positive_integer("dim", dim, _DIM_REMEDY)
    if dim < 2:
        raise fail("dim", "at least 2", dim, "The second coordinate is the bent one.")
    check_real("b", b, -1e300, 1e300, "It is the curvature, e.g. 0.03.")
    density = _Banana(as_array(b, float), dim)
    covariance = np.diag([100.0, 1 + 2 * b**2 * 100**2, *np.ones(dim - 2)])
    return Target(density, dim, sample=density.sample, mean=np.zeros(dim), covariance=covariance)


class _Funnel(eqx.Module):
    scale: Float[Array, ""]
    dim: int = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        v, x = z[0], z[1:]
        outer = -((v / self.scale) ** 2) / 2 - jnp.log(self.scale)
        inner = -jnp.exp(-v) * jnp.sum(x**2) / 2 - (self.dim - 1) * v / 2
        return outer + inner - self.dim * _LOG_2PI / 2

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        noise = jax.random.normal(key, (n, self.dim), self.scale.dtype)
        v = self.scale * noise[:, :1]
        return jnp.concatenate([v, jnp.exp(v / 2) * noise[:, 1:]], axis=1)


def funnel(dim: int = 10, scale: float = 3.0) -> Target:
    """Neal's funnel: v ~ N(0, scale²) and xᵢ | v ~ N(0, eᵛ) for the other dim − 1 coordinates."""
    check_positive_integer("dim", dim, _DIM_REMEDY)
    check_real("scale", scale, 0, 1e300, "The standard deviation of the neck, e.g. 3.0.", open_low=True)
    density = _Funnel(as_array(scale, float), dim)
    covariance = np.diag([scale**2, *np.full(dim - 1, np.exp(scale**2 / 2))])
    return Target(density, dim, sample=density.sample, mean=np.zeros(dim), covariance=covariance)


class _StudentT(eqx.Module):
    degrees_of_freedom: Float[Array, ""]
    dim: int = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        df = self.degrees_of_freedom
        power = (df + self.dim) / 2
        constant = jax.scipy.special.gammaln(power) - jax.scipy.special.gammaln(df / 2)
        return constant - self.dim * jnp.log(df * jnp.pi) / 2 - power * jnp.log1p(jnp.sum(z**2) / df)

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        key_normal, key_gamma = jax.random.split(key)
        df = self.degrees_of_freedom
        noise = jax.random.normal(key_normal, (n, self.dim), df.dtype)
        return noise / jnp.sqrt(jax.random.gamma(key_gamma, df / 2, (n, 1)) * 2 / df)


def student_t(dim: int = 2, degrees_of_freedom: float = 5.0) -> Target:
    """A multivariate Student-t centred at the origin with identity scale: tails that no Gaussian has."""
    check_positive_integer("dim", dim, _DIM_REMEDY)
    df = check_real("degrees_of_freedom", degrees_of_freedom, 0, 1e300, "For example 5.0.", open_low=True)
    density = _StudentT(as_array(df, float), dim)
    mean = np.zeros(dim) if df > 1 else None
    covariance = np.eye(dim) * df / (df - 2) if df > 2 else None
    return Target(density, dim, sample=density.sample, mean=mean, covariance=covariance)
