"""The target: an unnormalised log density on R^dim, what its coordinates mean, and any fast derivatives it has."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.arrays import Module
from bures.check import as_array, check_function, check_positive_integer, default_dtype, fail, is_traced
from bures.target.blocks import (
    calls_one_by_one,
    has_uneven_cost,
    largest_array,
    map_in_blocks,
    points_in_block,
    sum_in_blocks,
)
from bures.target.checks import (
    check_constrain,
    check_covariance,
    check_hessian_shape,
    check_names,
    check_sample,
    check_sites,
    check_vector,
    check_weighted_hessian,
)
from bures.target.closures import hoist
from bures.target.labels import NO_LABELS, Labels
from bures.target.sites import LocationScale, sites_of_variables
from bures.target.variables import ByName, Coordinates, Layout, Unconstrained

LogDensity = Callable[[Float[Array, " dim"]], Float[Array, ""]]


class Target(Module):
    """An unnormalised log density on R^dim.

    **Arguments:**

    - `log_density`: any JAX function `(dim,) -> scalar`. If it is itself a pytree (say an `equinox.Module` that
        holds data), the data are traced, so that targets of one shape share one compilation. If it has methods
        `values` and `values_and_scores`, from points (n, dim) to log p (n,) and ∇log p (n, dim), these are used in the
        place of `vmap` and automatic differentiation. If it has an attribute `smooth = True`, its derivatives are taken
        to be finite at every point.
    - `dim`: the dimension.
    - `names`: names of the `dim` coordinates, for tables and plots.
    - `constrain`: the way back from a point of R^dim to the model's own, named and constrained variables: a dict of
        arrays by name. It is traced once on construction, to see that it is one.
    - `weighted_hessian`: a fast `(weights (n,), z (n, dim)) -> Σᵢ wᵢ ∇²log p(zᵢ)`; also found as a method of
        `log_density`. Automatic differentiation is the default.
    - `sample`, `mean`, `covariance`: exact draws `(key, n) -> (n, dim)` and moments, where they are known.
    - `initial_point`: a point of positive density from which to look for a mode; by default the origin.
    - `labels`: `Labels` of the axes, the data and the like, for `Fit.to_arviz`.
    - `sites`: `LocationScale` variables, parents first, for `bures.centring`.

    >>> target = Target(lambda z: -jnp.sum(z**2) / 2, dim=3)
    >>> target.names
    ('z[0]', 'z[1]', 'z[2]')
    """

    log_density: LogDensity
    dim: int = eqx.field(static=True)
    constrain: Callable[[Float[Array, " dim"]], dict[str, Array]]
    sample: Callable[[Key[Array, ""], int], Float[Array, "n dim"]] | None
    mean: Float[Array, " dim"] | None
    covariance: Float[Array, "dim dim"] | None
    initial_point: Float[Array, " dim"] | None
    labels: Labels = eqx.field(static=True)
    sites: tuple[LocationScale, ...]
    width: int = eqx.field(static=True)  # elements of the largest array that one evaluation makes
    uneven: bool = eqx.field(static=True)  # whether the cost of an evaluation may depend on the point
    one_by_one: bool = eqx.field(static=True)  # whether code that is not JAX's takes one point after the other
    _names: tuple[str, ...] | Coordinates = eqx.field(static=True)
    _weighted_hessian: Callable | None

    def __init__(
        self,
        log_density: LogDensity,
        dim: int,
        *,
        names: Sequence[str] | Coordinates | None = None,
        constrain: Callable[[Float[Array, " dim"]], dict[str, Array]] | None = None,
        weighted_hessian: Callable | None = None,
        sample: Callable | None = None,
        mean: Any = None,
        covariance: Any = None,
        initial_point: Any = None,
        labels: Labels | None = None,
        sites: Sequence[LocationScale] = (),
    ):
        if not callable(log_density):
            raise fail("log_density", "a function (dim,) -> scalar", log_density, "Pass a JAX function.")
        self.dim = check_positive_integer("dim", dim, "It is the length of the vector log_density takes.")
        self.log_density = log_density
        self._names = check_names(names, self.dim)
        self.constrain = ByName(None if names is None else self.names) if constrain is None else constrain
        self.sample = sample
        self.mean = None if mean is None else check_vector("mean", mean, self.dim)
        self.covariance = None if covariance is None else check_covariance(covariance, self.dim)
        self.initial_point = None if initial_point is None else check_vector("initial_point", initial_point, self.dim)
        self.labels = NO_LABELS if labels is None else labels
        self.sites = check_sites(sites, self.dim)
        self._weighted_hessian = weighted_hessian
        measured = getattr(log_density, "measured", None)  # by rows it is checked and measured already
        if measured:
            self.width, self.uneven, self.one_by_one = measured(self.dim)
        else:
            jaxpr = _check_and_trace(log_density, self.dim)
            self.width, self.uneven = max(self.dim, largest_array(jaxpr)), has_uneven_cost(jaxpr)
            self.one_by_one = calls_one_by_one(jaxpr)
            self.log_density = hoist(log_density, jaxpr, _point(self.dim))
        check_constrain(self.constrain, self.dim)
        if not isinstance(self.labels, Labels):
            raise fail("labels", "bures.target.Labels", labels, "For example Labels(coords=..., dims=...).")
        if sample is not None:
            check_sample(sample, self.dim)
        if (fast := self._fast_hessian()) is not None:
            check_weighted_hessian(fast, self.dim)

    @classmethod
    def from_variables(
        cls,
        log_density: Callable[..., Float[Array, ""]],
        variables: Mapping[str, Any],
        *,
        location_scale: Mapping[str, Callable] | None = None,
        **options: Any,
    ) -> "Target":
        """A target from a log density of named, constrained variables: the change of variables is done for you.

        `variables` maps each name to a shape, to a support, or to a pair (support, shape).

        `location_scale` says which variables have a prior with a location and a scale that are variables, too, as a
        function of these: `{"theta": lambda mu, tau: (mu, tau)}` for theta ~ N(mu, tau). `bures.learn_centring` can
        then find coordinates in which a Gaussian fits them better.

        >>> from bures.support import Positive
        >>> def log_density(mu, sigma):
        ...     return -(mu**2) / (2 * sigma**2) - 2 * jnp.log(sigma) - sigma
        >>> target = Target.from_variables(log_density, {"mu": (), "sigma": Positive()})
        >>> {name: float(value) for name, value in target.constrain(jnp.zeros(2)).items()}
        {'mu': 0.0, 'sigma': 1.0}
        """
        layout = Layout(variables)
        check_function("log_density", log_density, "a function of the variables by name", "Pass a JAX function.")
        unconstrained = Unconstrained(log_density, layout)
        if location_scale is not None:
            options["sites"] = sites_of_variables(layout, location_scale)
        return cls(unconstrained, layout.dim, names=layout.coordinates(), constrain=layout.constrain, **options)

    @classmethod
    def from_data(
        cls,
        log_prior: Callable[..., Float[Array, ""]],
        log_likelihood: Callable[..., Float[Array, ""]],
        data: Any,
        dim: int | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        subsample: bool | None = None,
        **options: Any,
    ) -> "Target":
        """A target that is a prior and a sum over rows of data: log p(z) + Σᵣ log p(rowᵣ | z).

        **Arguments:**

        - `log_prior`: a JAX function `(dim,) -> scalar`.
        - `log_likelihood`: a JAX function `(z, row) -> scalar`, where a row is `data` without its first axis.
        - `data`: a pytree whose leaves have the rows as first axis: arrays, or anything that can be sliced and need not
            fit into memory (NumPy memory maps, HDF5, Zarr); or `bures.Parquet(path, columns)`.
        - `dim`: the dimension; not needed with `variables`.
        - `variables`: named, constrained variables as for `from_variables`. The functions then take them by name:
            `log_prior(mu, tau)` and `log_likelihood(mu, tau, row)`.
        - `subsample`: whether the steps of a fit take batches of rows, with an expansion of the rest (anchors and
            judgement pass over all rows a few times). By default where a fit of all rows would take more than 2·10⁹
            evaluations of a row: from about 170,000 rows on.
        - `options`: those of `Target`.

        Data are arguments of what is compiled, never constants in it. See the page "Large data".

        >>> data = {"x": np.arange(5.0), "y": np.array([0.1, 0.9, 2.2, 2.9, 4.1])}
        >>> def log_likelihood(z, row):
        ...     return -((row["y"] - z[0] - z[1] * row["x"]) ** 2) / 2
        >>> target = Target.from_data(lambda z: -jnp.sum(z**2) / 200, log_likelihood, data, dim=2)
        >>> round(float(target.log_density(jnp.array([0.0, 1.0]))), 6)
        -0.045
        """
        from bures.rows import making  # it builds on this package

        if variables is not None:
            log_prior, log_likelihood, layout = making.of_variables(log_prior, log_likelihood, variables)
            if dim not in (None, layout.dim):
                raise fail("dim", f"{layout.dim}, that of the variables", dim, "Leave dim out.")
            dim = layout.dim
            options = {"names": layout.coordinates(), "constrain": layout.constrain, **options}
        dim = check_positive_integer("dim", dim, "It is the length of the vector z; or give variables=.")
        return cls(making.density_from(log_prior, log_likelihood, data, dim, subsample), dim, **options)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates."""
        return self._names.names() if isinstance(self._names, Coordinates) else self._names

    def without_labels(self) -> "Target":
        """As a program needs it: labels hold the model and its data, and a program would keep them alive."""
        bare = object.__new__(Target)
        for field in dataclasses.fields(self):
            object.__setattr__(bare, field.name, getattr(self, field.name))
        object.__setattr__(bare, "labels", NO_LABELS)
        return bare

    def start(self) -> Float[Array, " dim"]:
        """Where to begin the search for a mode: the initial point, or else the origin, in JAX's present precision."""
        if self.initial_point is not None and is_traced(self.initial_point):
            return self.initial_point.astype(default_dtype())
        return as_array(self.start_on_host())

    def start_on_host(self) -> Float[np.ndarray, " dim"]:
        """The same in NumPy."""
        dtype = default_dtype()
        return np.zeros(self.dim, dtype) if self.initial_point is None else np.asarray(self.initial_point, dtype)

    def value(self, z: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """log p at each row of `z`, in the dtype of `z`."""
        fast = getattr(self.log_density, "values", None)
        values = fast(z) if fast else map_in_blocks(jax.vmap(self.log_density), z, points_in_block(self.width))
        return values.astype(z.dtype)

    def value_and_score(self, z: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
        """log p and ∇log p at each row of `z`."""
        fast = getattr(self.log_density, "values_and_scores", None)
        if fast:
            values, scores = fast(z)
        else:
            one = jax.value_and_grad(self.log_density)
            values, scores = map_in_blocks(jax.vmap(one), z, points_in_block(self.width))
        return values.astype(z.dtype), scores.astype(z.dtype)

    def weighted_hessian(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> Float[Array, "dim dim"]:
        """Σᵢ wᵢ ∇²log p(zᵢ): the only way the estimators use second derivatives.

        A point of weight zero contributes nothing, whatever its derivatives are (outside the support, say): another
        stands in for it, unless the density says that it is `smooth`, with finite derivatives at every point.
        """
        if not getattr(self.log_density, "smooth", False):
            z = jnp.where((weights != 0)[:, None], z, z[jnp.argmax(jnp.abs(weights))])
        if (fast := self._fast_hessian()) is not None:
            hessian = fast(weights, z)
            check_hessian_shape(hessian, self.dim)
            return hessian.astype(z.dtype)

        # One Hessian of a weighted sum of shifted densities: d Hessian-vector products, and no n x d x d array.
        def block(weights, z):
            def shifted(shift):
                return weights @ jax.vmap(self.log_density)(z + shift)

            return jax.hessian(shifted)(jnp.zeros_like(z[0]))

        return sum_in_blocks(block, weights, z, points_in_block(self.width * self.dim)).astype(z.dtype)

    def _fast_hessian(self) -> Callable | None:
        own = self._weighted_hessian
        return getattr(self.log_density, "weighted_hessian", None) if own is None else own


def as_target(target: Any, dim: int | None, argument: str = "target") -> Target:
    """A `Target` as it is, or a bare log density together with `dim`."""
    if dim is not None:
        dim = check_positive_integer("dim", dim, "It is the length of the vector that the log density takes.")
    if isinstance(target, Target):
        if dim is not None and dim != target.dim:
            raise fail("dim", f"{target.dim}, the target's dimension", dim, "Leave dim out when passing a Target.")
        return target
    if not callable(target) or isinstance(target, type):
        wanted = "a bures.Target, or a log density together with dim"
        raise fail(argument, wanted, target, "Make one with bures.Target(log_density, dim).")
    if dim is None:
        raise fail("dim", "given with a bare log density", dim, "Pass dim=..., or wrap it: bures.Target(f, dim).")
    bare: Any = target
    return Target(bare, dim)


def _point(dim: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((dim,), default_dtype())


def _check_and_trace(log_density: LogDensity, dim: int) -> Any:
    """Check that the log density maps (dim,) to a real scalar; its jaxpr."""
    try:
        jaxpr, out = jax.make_jaxpr(log_density, return_shape=True)(_point(dim))
    except Exception as error:
        raise ValueError(
            f"log_density could not be evaluated on a vector of length dim={dim}: {str(error).rstrip('. ')}. "
            "Check dim, and that it is written with jax.numpy."
        ) from error
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        received = f"{out.dtype}{list(out.shape)}" if hasattr(out, "shape") else type(out).__name__
        raise ValueError(
            f"log_density must return a real scalar, but returned {received} for a vector of length dim={dim}. "
            "Sum over observations, and write it for one point: batching is done by bures."
        )
    return jaxpr
