"""Built-in targets with known answers, and logistic regression with fast derivatives.

Each is an `equinox.Module` that holds its data as arrays, so that targets of one shape share one compilation.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import datasets
from bures.check import check_floating, check_positive_integer, check_real, fail, is_traced
from bures.target import Target, map_in_blocks, sum_in_blocks

_LOG_2PI = math.log(2 * math.pi)
_DIM_REMEDY = "It is the dimension of the target."
_POINTS, _ROWS = 512, 1024  # of a regression, in a block
_LANES = 8  # points in a vector of the processor: what a block has beyond a multiple is computed one by one
_GROUP = 8  # rows that share a logarithm


class _Mixture(eqx.Module):
    """An equally weighted mixture of Gaussians, normalised. Whitening matrices, not solves: it is vmapped."""

    means: Float[Array, "components dim"]
    chols: Float[Array, "components dim dim"]
    whiteners: Float[Array, "components dim dim"]
    log_scales: Float[Array, " components"]

    def __init__(self, means: np.ndarray, covariances: np.ndarray):
        chols = np.linalg.cholesky(covariances)
        log_dets = np.sum(np.log(np.diagonal(chols, axis1=1, axis2=2)), axis=1)
        self.means = jnp.asarray(means)
        self.chols = jnp.asarray(chols)
        self.whiteners = jnp.asarray(np.linalg.inv(chols))
        self.log_scales = jnp.asarray(-log_dets - means.shape[1] * _LOG_2PI / 2 - math.log(len(means)))

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
    check_positive_integer("dim", dim, _DIM_REMEDY)
    check_real("condition_number", condition_number, 1, 1e300, "It is the ratio of extreme eigenvalues.")
    check_real("scale", scale, 0, 1e300, "It is the largest standard deviation.", open_low=True)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]
    deviations = scale * np.logspace(-np.log10(condition_number) / 2, 0, dim)
    density = _Rotated(jnp.asarray(rotation), jnp.asarray(deviations))
    covariance = (rotation * deviations**2) @ rotation.T
    return Target(density, dim, sample=density.sample, mean=np.zeros(dim), covariance=(covariance + covariance.T) / 2)


class _Rotated(eqx.Module):
    """N(0, R diag(deviations²) Rᵀ), evaluated in its eigenbasis so that its accuracy does not feel its condition."""

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
    density = _Banana(jnp.asarray(b, float), dim)
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
    density = _Funnel(jnp.asarray(scale, float), dim)
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
    density = _StudentT(jnp.asarray(df, float), dim)
    mean = np.zeros(dim) if df > 1 else None
    covariance = np.eye(dim) * df / (df - 2) if df > 2 else None
    return Target(density, dim, sample=density.sample, mean=mean, covariance=covariance)


@jax.custom_jvp
def softplus(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """log(1 + eˣ), a quarter of the cost of `jax.nn.softplus` on CPU."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _sigmoid(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    # From the same exponential as the softplus, which the compiler then takes once.
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x > 0, 1, small) / (1 + small)


@softplus.defjvp
def _softplus_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return softplus(x), _sigmoid(x) * dx


class _LogisticRegression(eqx.Module):
    """log p(y, z) with z ~ N(0, prior_variance I), from the distinct rows of the design and how often each occurs.

    Many points are evaluated on blocks of rows that stay in the cache, arranged as (rows, points). The first `grouped`
    rows come in groups of `_GROUP` that occur equally often, so that Σ log(1 + e^−|x|) over a group is the log of a
    product: one logarithm, nearly half of what a softplus costs, for eight rows. The Hessian is one Xᵀ D X whatever the
    number of points. If X is of a lower precision than z, the density is that of the rounded point, and sums over
    blocks are taken in the precision of z.
    """

    X: Float[Array, "n dim"]
    repeats: Float[Array, " n"]
    counts: Float[Array, " dim"]  # Xᵀ y over all observations: all that the labels contribute
    prior_variance: Float[Array, ""]
    grouped: int = eqx.field(static=True)
    smooth: ClassVar[bool] = True

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        loss = jnp.sum(self.repeats * softplus(self.X @ z.astype(self.X.dtype)), dtype=z.dtype)
        return self._apart_from_loss(z) - loss

    def values(self, z: Float[Array, "points dim"]) -> Float[Array, " points"]:
        def block(z):
            rounded = z.astype(self.X.dtype)

            def loss(X, repeats, group):
                return _losses(X @ rounded.T, repeats, group)

            return jax.vmap(self._apart_from_loss)(z) - self._sum_over_rows(loss, z, arrays=1)

        return map_in_blocks(block, z, _POINTS, _LANES)

    def values_and_scores(
        self, z: Float[Array, "points dim"]
    ) -> tuple[Float[Array, " points"], Float[Array, "points dim"]]:
        def block(z):
            rounded = z.astype(self.X.dtype)

            def loss_and_slope(X, repeats, group):
                x = X @ rounded.T
                return _losses(x, repeats, group), (X * repeats[:, None]).T @ _sigmoid(x)

            loss, slope = self._sum_over_rows(loss_and_slope, z, arrays=2)
            score = self.counts[:, None] - slope - z.T / self.prior_variance
            return jax.vmap(self._apart_from_loss)(z) - loss, score.T

        return map_in_blocks(block, z, _POINTS, _LANES)

    def weighted_hessian(
        self, weights: Float[Array, " points"], z: Float[Array, "points dim"]
    ) -> Float[Array, "dim dim"]:
        def block(weights, z):
            rounded = z.astype(self.X.dtype)

            def curvature(X, repeats, group):
                p = _sigmoid(X @ rounded.T)
                return (X.T * (repeats * ((p * (1 - p)) @ weights.astype(X.dtype)))) @ X

            return self._sum_over_rows(curvature, z, arrays=2)

        prior = jnp.sum(weights) / self.prior_variance * jnp.eye(z.shape[1], dtype=z.dtype)
        return -sum_in_blocks(block, weights, z, _POINTS, _LANES) - prior

    def _apart_from_loss(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        """The part of the labels, and the log prior."""
        prior = -jnp.sum(z**2) / (2 * self.prior_variance) - z.size * jnp.log(2 * jnp.pi * self.prior_variance) / 2
        return self.counts @ z.astype(self.X.dtype).astype(z.dtype) + prior

    def _sum_over_rows(
        self, function: Callable[[Array, Array, int], Any], z: Float[Array, "points dim"], arrays: int
    ) -> Any:
        """The sum of `function(X, repeats, group)` over blocks of rows whose `arrays` go into the cache."""

        def add(total, X, repeats, group):
            return jax.tree.map(lambda x, part: x + part.astype(z.dtype), total, function(X, repeats, group))

        def step(i, total):
            X, repeats = (jax.lax.dynamic_slice_in_dim(x, i * size, size) for x in (self.X, self.repeats))
            return add(total, X, repeats, _GROUP)

        shapes = jax.eval_shape(lambda: function(self.X[:1], self.repeats[:1], 1))
        total = jax.tree.map(lambda x: jnp.zeros(x.shape, z.dtype), shapes)
        rows = _ROWS // arrays
        blocks = -(-self.grouped // max(rows, _POINTS * rows // z.shape[0]))
        size = self.grouped // _GROUP // max(blocks, 1) * _GROUP  # equal blocks: few rows are left for the rest
        if blocks == 1:
            total = add(total, self.X[:size], self.repeats[:size], _GROUP)
        elif blocks:
            total = jax.lax.fori_loop(0, blocks, step, total)
        done = blocks * size
        return add(total, self.X[done:], self.repeats[done:], 1) if done < self.X.shape[0] else total


def _losses(x: Float[Array, "rows points"], repeats: Float[Array, " rows"], group: int) -> Float[Array, " points"]:
    """Σ repeats · log(1 + eˣ) over the rows, a logarithm for each `group`: its factors, all in (1, 2], are few."""
    x = x.reshape(-1, group, x.shape[1])
    product, positive = _product_and_sum(1 + jnp.exp(-jnp.abs(x)), jnp.maximum(x, 0))
    return jnp.sum((jnp.log(product) + positive) * repeats[::group, None], axis=0)


@jax.custom_jvp
def _product_and_sum(
    factors: Float[Array, "groups rows points"], terms: Float[Array, "groups rows points"]
) -> tuple[Float[Array, "groups points"], Float[Array, "groups points"]]:
    """The product of one and the sum of the other over the rows of a group, in a single pass."""
    start = jnp.ones((), factors.dtype), jnp.zeros((), terms.dtype)
    return tuple(jax.lax.reduce((factors, terms), start, lambda a, b: (a[0] * b[0], a[1] + b[1]), (1,)))


@_product_and_sum.defjvp
def _product_and_sum_jvp(primals, tangents):
    (factors, _), (factor_changes, changes) = primals, tangents
    product, total = _product_and_sum(*primals)
    return (product, total), (product * jnp.sum(factor_changes / factors, axis=1), jnp.sum(changes, axis=1))


def _distinct_rows(X: Float[Array, "n dim"]) -> tuple[Array, Array, int]:
    """The distinct rows of a design, how often each occurs, and how many of the first form groups that occur alike.

    All rows, if few are repeated or they are far away.
    """
    every = X, jnp.ones(X.shape[0], X.dtype), X.shape[0] // _GROUP * _GROUP
    if is_traced(X) or len(X.devices()) > 1:
        return every
    host = np.asarray(X)
    # One number for each row, the same for the same row, tells quickly whether to look further.
    digest = np.sum(host * np.random.default_rng(0).standard_normal(host.shape[1]), axis=1)
    if np.unique(digest).size > 0.9 * host.shape[0]:
        return every
    rows, repeats = np.unique(host, axis=0, return_counts=True)
    order = np.argsort(repeats, kind="stable")
    _, first, which, size = np.unique(repeats[order], return_index=True, return_inverse=True, return_counts=True)
    grouped = np.arange(order.size) - first[which] < (size // _GROUP * _GROUP)[which]
    order = np.concatenate([order[grouped], order[~grouped]])
    return jnp.asarray(rows[order]), jnp.asarray(repeats[order], X.dtype), int(grouped.sum())


def logistic_regression(X: Any, y: Any, prior_variance: float = 10.0, *, names: Any = None) -> Target:
    """Bayesian logistic regression with prior N(0, prior_variance I) on the coefficients.

    `X` is (n, dim), with a column of ones if there is to be an intercept; `y` holds n zeros and ones.

    >>> target = logistic_regression(jnp.ones((3, 1)), jnp.array([0, 1, 1]))
    >>> round(float(target.log_density(jnp.zeros(1))), 4)
    -4.1497
    """
    X = check_floating("X", X, ndim=2)
    try:
        y = jnp.asarray(y)
    except TypeError as error:
        raise fail("y", "zeros and ones", y, "Encode the two classes as 0 and 1.") from error
    if y.shape != X.shape[:1]:
        raise fail("y", f"{X.shape[0]} labels, one per row of X", y, "Check the shapes of X and y.")
    if not bool(jnp.all((y == 0) | (y == 1))):
        raise fail("y", "zeros and ones", y, "Encode the two classes as 0 and 1.")
    variance = check_real("prior_variance", prior_variance, 0, 1e300, "For example 10.0.", open_low=True)
    precision = jnp.zeros(()).dtype  # the present one of JAX, which may be higher than that of the data
    counts = X.T.astype(precision) @ y.astype(precision)
    rows, repeats, grouped = _distinct_rows(X)
    density = _LogisticRegression(rows, repeats, counts, jnp.asarray(variance, precision), grouped)
    return Target(density, X.shape[1], names=names)


def census(design: str = "screened", prior_variance: float = 10.0) -> Target:
    """Logistic regression of income on the Census (UCI Adult) data, 45,222 rows: the paper's real posterior.

    `design` is `"screened"` (d = 9) or `"full"` (d = 96); see `bures.datasets.census`.
    """
    X, y, names = datasets.census(design)
    return logistic_regression(X, y, prior_variance, names=names)
