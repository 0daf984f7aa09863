"""Bayesian logistic regression, tuned: blocks that stay in the cache, shared logarithms, one Xᵀ D X for a Hessian."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures import datasets
from bures.check import as_array, check_floating, check_option, check_real, default_dtype, fail, is_traced
from bures.mesh import RowMesh, arranged, sum_over_mesh
from bures.target import Target, map_in_blocks, sum_in_blocks

_POINTS, _ROWS = 512, 1024  # of a regression, in a block
_LANES = 8  # points in one vector of the processor; those beyond a multiple of it are computed one by one
_GROUP = 8  # rows that share a logarithm


@jax.custom_jvp
def softplus(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """log(1 + eˣ), a quarter of the cost of `jax.nn.softplus` on CPU."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _sigmoid(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    # By the same exponential as the softplus, so that the compiler computes it once.
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
    rows: RowMesh | None = eqx.field(static=True, default=None)  # the devices over which rows are spread
    smooth: ClassVar[bool] = True

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        def loss(X, repeats, z):
            return jnp.sum(repeats * softplus(X @ z.astype(X.dtype)), dtype=z.dtype)

        return self._apart_from_loss(z) - self._on_all_devices(loss, z)

    def values(self, z: Float[Array, "points dim"]) -> Float[Array, " points"]:
        def block(z):
            def loss(X, repeats, group, z):
                return _losses(X @ z.astype(X.dtype).T, repeats, group)

            return jax.vmap(self._apart_from_loss)(z) - self._sum_over_rows(loss, z, arrays=1)

        return map_in_blocks(block, z, _POINTS, _LANES)

    def values_and_scores(
        self, z: Float[Array, "points dim"]
    ) -> tuple[Float[Array, " points"], Float[Array, "points dim"]]:
        def block(z):
            def loss_and_slope(X, repeats, group, z):
                x = X @ z.astype(X.dtype).T
                return _losses(x, repeats, group), (X * repeats[:, None]).T @ _sigmoid(x)

            loss, slope = self._sum_over_rows(loss_and_slope, z, arrays=2)
            score = self.counts[:, None] - slope - z.T / self.prior_variance
            return jax.vmap(self._apart_from_loss)(z) - loss, score.T

        return map_in_blocks(block, z, _POINTS, _LANES)

    def weighted_hessian(
        self, weights: Float[Array, " points"], z: Float[Array, "points dim"]
    ) -> Float[Array, "dim dim"]:
        def block(weights, z):
            def curvature(X, repeats, group, z, weights):
                p = _sigmoid(X @ z.astype(X.dtype).T)
                return (X.T * (repeats * ((p * (1 - p)) @ weights.astype(X.dtype)))) @ X

            return self._sum_over_rows(curvature, z, weights, arrays=2)

        prior = jnp.sum(weights) / self.prior_variance * jnp.eye(z.shape[1], dtype=z.dtype)
        return -sum_in_blocks(block, weights, z, _POINTS, _LANES) - prior

    def _apart_from_loss(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        """The term of the labels in the log likelihood, and the log prior."""
        prior = -jnp.sum(z**2) / (2 * self.prior_variance) - z.size * jnp.log(2 * jnp.pi * self.prior_variance) / 2
        return self.counts @ z.astype(self.X.dtype).astype(z.dtype) + prior

    def _sum_over_rows(self, function: Callable[..., Any], *points: Array, arrays: int) -> Any:
        """The sum of `function(X, repeats, group, *points)` over blocks of rows whose `arrays` fit into the cache."""

        def of_share(X, repeats, *points):
            grouped = self.grouped if self.rows is None else X.shape[0] // _GROUP * _GROUP
            return _sum_over_blocks(function, X, repeats, grouped, points, _ROWS // arrays)

        return self._on_all_devices(of_share, *points)

    def _on_all_devices(self, function: Callable[..., Any], *points: Array) -> Any:
        """The sum of `function(X, repeats, *points)` over the rows of each device."""
        if self.rows is None:
            return function(self.X, self.repeats, *points)
        return sum_over_mesh(lambda data, *points: function(*data, *points), self.rows, (self.X, self.repeats), *points)


def _sum_over_blocks(
    function: Callable[..., Any], X: Array, repeats: Array, grouped: int, points: tuple[Array, ...], rows: int
) -> Any:
    """The sum of `function(X, repeats, group, *points)` over blocks of about so many rows."""
    dtype = points[0].dtype

    def add(total, X, repeats, group):
        return jax.tree.map(lambda x, part: x + part.astype(dtype), total, function(X, repeats, group, *points))

    def step(i, total):
        some, often = (jax.lax.dynamic_slice_in_dim(x, i * size, size) for x in (X, repeats))
        return add(total, some, often, _GROUP)

    shapes = jax.eval_shape(lambda: function(X[:1], repeats[:1], 1, *points))
    total = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), shapes)
    blocks = -(-grouped // max(rows, _POINTS * rows // points[0].shape[0]))
    size = grouped // _GROUP // max(blocks, 1) * _GROUP  # equal blocks: few rows are left for the rest
    if blocks == 1:
        total = add(total, X[:size], repeats[:size], _GROUP)
    elif blocks:
        total = jax.lax.fori_loop(0, blocks, step, total)
    done = blocks * size
    return add(total, X[done:], repeats[done:], 1) if done < X.shape[0] else total


def _losses(x: Float[Array, "rows points"], repeats: Float[Array, " rows"], group: int) -> Float[Array, " points"]:
    """Σ repeats · log(1 + eˣ) over the rows, with one logarithm, that of a product in (1, 2^group], for each group."""
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
    """The distinct rows of a design, how often each occurs, and how many of the first form groups of equal counts.

    All rows are kept if few are repeated.
    """
    every = X, as_array(np.ones(X.shape[0], X.dtype)), X.shape[0] // _GROUP * _GROUP
    if is_traced(X):
        return every
    host = np.asarray(X)
    # Equal rows have equal projections on a random vector: a quick way to see whether rows repeat.
    digest = np.sum(host * np.random.default_rng(0).standard_normal(host.shape[1]), axis=1)
    if np.unique(digest).size > 0.9 * host.shape[0]:
        return every
    rows, repeats = np.unique(host, axis=0, return_counts=True)
    order = np.argsort(repeats, kind="stable")
    _, first, which, size = np.unique(repeats[order], return_index=True, return_inverse=True, return_counts=True)
    grouped = np.arange(order.size) - first[which] < (size // _GROUP * _GROUP)[which]
    order = np.concatenate([order[grouped], order[~grouped]])
    return as_array(rows[order]), as_array(repeats[order].astype(X.dtype)), int(grouped.sum())


def _counts_on_mesh(mesh: RowMesh, X: Array, y: Array, dtype: Any) -> Array:
    """Xᵀ y of rows that are spread over devices."""
    return sum_over_mesh(lambda data: data[0].T.astype(dtype) @ data[1].astype(dtype), mesh, (X, y))


def logistic_regression(X: Any, y: Any, prior_variance: float = 10.0, *, names: Any = None) -> Target:
    """Bayesian logistic regression with prior N(0, prior_variance I) on the coefficients.

    `X` is (n, dim), with a column of ones if there is to be an intercept; `y` holds n zeros and ones. Both may be
    spread over the devices of a mesh by their rows.

    >>> target = logistic_regression(jnp.ones((3, 1)), jnp.array([0, 1, 1]))
    >>> round(float(target.log_density(jnp.zeros(1))), 4)
    -4.1497
    """
    X = check_floating("X", X, ndim=2)
    try:
        y = as_array(y)
    except (TypeError, ValueError) as error:
        raise fail("y", "zeros and ones", y, "Encode the two classes as 0 and 1.") from error
    if y.shape != X.shape[:1]:
        raise fail("y", f"{X.shape[0]} labels, one per row of X", y, "Check the shapes of X and y.")
    (X, y), _, mesh = arranged((X, y))
    on_host = not is_traced(X, y) and mesh is None  # then nothing is compiled here
    labels = np.asarray(y) if on_host else y
    if not is_traced(y) and not bool(((labels == 0) | (labels == 1)).all()):
        raise fail("y", "zeros and ones", y, "Encode the two classes as 0 and 1.")
    variance = check_real("prior_variance", prior_variance, 0, 1e300, "For example 10.0.", open_low=True)
    precision = default_dtype()  # it may be higher than that of the data
    variance = as_array(variance, precision)
    if mesh is not None:
        counts = _counts_on_mesh(mesh, X, y, precision)
        repeats = jax.device_put(np.ones(X.shape[0], X.dtype), mesh.sharding)
        return Target(_LogisticRegression(X, repeats, counts, variance, 0, mesh), X.shape[1], names=names)
    counts = (np.asarray(X) if on_host else X).T.astype(precision) @ labels.astype(precision)
    rows, repeats, grouped = _distinct_rows(X)
    density = _LogisticRegression(rows, repeats, as_array(counts), variance, grouped)
    return Target(density, X.shape[1], names=names)


def census(design: str = "screened", prior_variance: float = 10.0) -> Target:
    """Logistic regression of income on the Census (UCI Adult) data, 45,222 rows: the paper's real posterior.

    `design` is `"screened"` (d = 9) or `"full"` (d = 96); see `bures.datasets.census`.
    """
    check_option("design", design, ("screened", "full"))
    X, y, names = datasets.census(design)
    return logistic_regression(X, y, prior_variance, names=names)
