"""NumPyro models: the unconstrained potential and the way back that NumPyro itself gives, as a `Target`.

A target is made by tracing the model, which compiles nothing; what is not used is not traced.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import default_dtype, fail, is_traced
from bures.frontends import host
from bures.frontends.common import Result, fit_target, import_extra, no_variables, on_device, quoted, sample_target
from bures.frontends.numpyro_predict import Predict
from bures.frontends.numpyro_rows import find_plate, row_density
from bures.frontends.numpyro_sites import (
    BY_HAND,
    ERRORS,
    RefusedError,
    Site,
    cannot_run,
    check_plates,
    describe,
    find_support,
    finite_mean,
    location_and_scale,
    log_densities,
    refuse_discrete,
    rows_of_plates,
    running,
    typical_value,
    watch,
)
from bures.target import Labels, LocationScale, Target, coordinate_names
from bures.target.closures import Mortal


def fit(model: Any, *args: Any, seed: int = 0, num_draws: int = 1000, options: Any = None, **kwargs: Any) -> Result:
    """Fit a NumPyro model and draw from the posterior: the fit, and a DataTree of resampled draws.

    `args` and `kwargs` are the model's; `options`, a dict, goes to `bures.fit`.
    """
    return fit_target(from_numpyro(model, *args, **kwargs), seed, num_draws, **(options or {}))


def sample(model: Any, *args: Any, seed: int = 0, num_draws: int = 1000, options: Any = None, **kwargs: Any) -> Any:
    """Draws of a NumPyro model's posterior that can be trusted, as a DataTree: see `bures.sample`.

    `args` and `kwargs` are the model's; `options`, a dict, has `max_seconds`, `max_evaluations` or `progress`.
    """
    return sample_target(from_numpyro(model, *args, **kwargs), seed, num_draws, **(options or {}))


def from_numpyro(model: Any, *args: Any, **kwargs: Any) -> Target:
    """See `bures.frontends.from_numpyro`."""
    numpyro = import_extra("numpyro", "numpyro")
    if not callable(model):
        raise fail("model", "a NumPyro model, which is a function", model, "Pass the function and then its arguments.")
    source = _Source(model, args, kwargs)
    plate = find_plate(source) if source.subsampled else None
    source.check_shapes()
    by_rows = None if plate is None else row_density(source, plate)
    return Target(
        _LogDensity(source) if by_rows is None else by_rows,
        source.dim,
        names=source.names,
        constrain=_Constrain(source),
        initial_point=on_device(source.start),
        labels=Labels(
            dims=source.dims(),
            observed_data=_ObservedData(source),
            log_likelihood=_Pointwise(source) if source.pointwise_sites() and by_rows is None else None,
            attributes={"numpyro_version": numpyro.__version__},
            predict=Predict(source),
        ),
        sites=source.location_scale_sites(),
    )


class _Source(Mortal):
    """A model with its arguments, known by its identity."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict):
        self.model, self.args, self.kwargs = model, args, kwargs
        self.parameters: dict[str, Any] = {}
        self.subsampled: dict[str, tuple[int, int]] = {}  # plates that take a part of their rows: size, and part
        self.computed: set[str] = set()  # sites whose location or scale the model computes, perhaps from latent ones
        self.sites, means, supports = self._look()
        self.parameters = self._fixed_parameters()
        self.discrete = tuple(supports)
        self.mixed = self._check_discrete(supports) if supports else frozenset[str]()
        shapes = {name: site.unconstrained_shape for name, site in self.sites.items()}
        self.shapes = {name: shape for name, shape in sorted(shapes.items()) if shape is not None}
        if not self.shapes:
            raise no_variables("The NumPyro model", "sample statements: those with obs= are data")
        self.names = coordinate_names(self.shapes)
        self.dim = len(self.names)
        self.start = np.concatenate([finite_mean(means.get(name), shape) for name, shape in self.shapes.items()])
        # Compiled functions, so that a model is traced once for all that is done with it; they cost nothing until used.
        self.log_density = jax.jit(self._log_density)
        self.constrain = jax.jit(self._constrain)
        self.pointwise = jax.jit(self._pointwise)
        self.location_scale = jax.jit(self._location_scale)

    def _look(self) -> tuple[dict[str, Site], dict[str, Any], dict[str, Any]]:
        """The sites, prior means on the unconstrained scale, supports of discrete sites.

        The model is traced, and NumPy does the rest; what NumPy cannot do is None.
        """
        from numpyro.distributions import biject_to

        at_origin: set[str] = set()
        sites: dict[str, Site] = {}

        def look() -> tuple[dict[str, Array], dict[str, Array]]:
            trace = self.trace(lambda site: typical_value(site, at_origin))
            sites.update((name, describe(name, site)) for name, site in trace.items())
            self.computed = {name for name, site in trace.items() if is_traced(location_and_scale(site))}
            discrete = [name for name, site in sites.items() if site.is_latent and site.is_discrete]
            supports = {name: find_support(name, trace[name]["fn"]) for name in discrete}
            if discrete:
                check_plates(trace)
            chosen = [name for name, site in sites.items() if site.is_free and name not in at_origin]
            return {name: biject_to(trace[name]["fn"].support).inv(trace[name]["value"]) for name in chosen}, supports

        jaxpr, shapes = jax.make_jaxpr(look, return_shape=True)()
        means, supports = jax.tree.unflatten(jax.tree.structure(shapes), host.evaluate(jaxpr))
        return sites, means, supports

    def _check_discrete(self, supports: dict[str, Any]) -> frozenset[str]:
        """Refuse discrete sites that cannot be summed out; return the other sites that depend on them."""
        for name, values in supports.items():
            if values is None or not np.array_equal(np.ravel(values), np.arange(np.size(values))):
                raise refuse_discrete(name, "NumPyro sums over the values 0, 1, 2, ... only: shift it to begin at 0")
        try:
            import numpyro.contrib.funsor  # noqa: F401
        except ImportError as error:
            remedy = f"NumPyro sums it out where funsor is installed: pip install funsor. Or {BY_HAND}"
            raise refuse_discrete(quoted(self.discrete)[1:-1], remedy) from error
        from numpyro.distributions import biject_to

        def others(values: dict[str, Array]) -> dict[str, Any]:
            trace = self.trace(lambda s: values[s["name"]] if s["name"] in values else typical_value(s, set()))
            origin = {name: jnp.zeros(site.unconstrained_shape) for name, site in self.sites.items() if site.is_free}
            return {
                **{name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"},
                **log_densities({name: site for name, site in trace.items() if site.get("is_observed")}),
                **{name: biject_to(trace[name]["fn"].support)(value) for name, value in origin.items()},
            }

        jaxpr, shapes = jax.make_jaxpr(others, return_shape=True)({name: self.sites[name].value for name in supports})
        mixed = {name for name, depends in zip(sorted(shapes), host.depends(jaxpr), strict=True) if depends}
        if bad := [name for name in mixed if self.sites[name].is_free]:
            raise ValueError(
                f"The support of {quoted(bad)} depends on the discrete {quoted(self.discrete)}, which is summed out. "
                "Give it a support that does not."
            )
        return frozenset(mixed)

    def _fixed_parameters(self) -> dict[str, Any]:
        """`numpyro.param` sites keep their initial values; those that the model computes are computed once."""
        fixed = {name: site.value for name, site in self.sites.items() if site.type in ("param", "mutable")}
        if any(value is None for value in fixed.values()):

            def compute() -> dict[str, Any]:
                trace = self.trace(lambda site: typical_value(site, set()))
                return {name: trace[name]["value"] for name in fixed}

            fixed = jax.jit(compute)()
        return fixed

    def handled(self, rows: Mapping[str, Array] | None = None) -> Callable:
        """The model with its parameters and with all rows of its plates, or those given by the plate's name."""
        from numpyro import handlers

        chosen = rows_of_plates(rows or {}, self.subsampled)
        return handlers.substitute(handlers.substitute(self.model, substitute_fn=chosen), data=self.parameters)

    def enumerated(self) -> Callable:
        """The model with an axis for each discrete site, over all of its values."""
        from numpyro.contrib.funsor import config_enumerate, enum

        num_plates = max(site.num_plates for site in self.sites.values())
        return enum(config_enumerate(self.handled()), first_available_dim=-num_plates - 1)

    def trace(
        self,
        value_of: Callable[[dict], Any] | Mapping[str, Any],
        rows: Mapping[str, Array] | None = None,
        arguments: tuple[tuple, dict] | None = None,
    ) -> dict[str, Any]:
        """Run the model with its latent variables at values, given by name or by a function of the site."""
        from numpyro import handlers

        chosen: dict[str, Any] = {"substitute_fn" if callable(value_of) else "data": value_of}
        last = watch(self.handled(rows))
        args, kwargs = (self.args, self.kwargs) if arguments is None else arguments
        try:
            with running():
                return handlers.trace(handlers.substitute(last, **chosen)).get_trace(*args, **kwargs)
        except RefusedError as error:
            raise ValueError(str(error)) from None
        except ERRORS as error:
            raise cannot_run(last.name, error) from error

    def split(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """The unconstrained values of the sites, in alphabetical order, as `ravel_pytree` has it."""
        parts, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            parts[name] = jax.lax.slice_in_dim(z, start, start + size).reshape(shape)
            start += size
        return parts

    def _log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        from numpyro.infer.util import potential_energy

        enum = bool(self.discrete)
        model = self.enumerated() if enum else self.handled()
        with running():
            return -jnp.asarray(potential_energy(model, self.args, self.kwargs, self.split(z), enum=enum))

    def _constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        from numpyro.infer.util import constrain_fn

        with running():
            values = constrain_fn(self.handled(), self.args, self.kwargs, self.split(z), return_deterministic=True)
        return {name: value for name, value in values.items() if name not in self.mixed and not self._is_by_row(name)}

    def _is_by_row(self, name: str) -> bool:
        """Whether a computed site has a value for each row of a plate that takes a part of them."""
        return name in self.sites and not {*self.subsampled}.isdisjoint(self.sites[name].dims)

    def check_shapes(self) -> None:
        """Data that do not fit their distribution are found here, by name: the density is traced, not evaluated."""
        point = jax.ShapeDtypeStruct((self.dim,), default_dtype())
        try:
            jax.eval_shape(self.log_density, point)
        except ERRORS as error:
            jax.eval_shape(self.site_log_densities, point)  # says which site
            raise cannot_run(None, error) from error

    def site_log_densities(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """The log density of every entry of every sample site, at all values of the discrete ones."""
        values = self._constrain(z)
        if not self.discrete:
            return log_densities(self.trace(values))
        from numpyro.contrib.funsor import plate_to_enum_plate, trace
        from numpyro.handlers import substitute

        with running(), plate_to_enum_plate():
            sites = trace(substitute(self.enumerated(), data=values)).get_trace(*self.args, **self.kwargs)
        return log_densities(sites)

    def scaled_log_densities(
        self, z: Float[Array, " dim"], rows: Mapping[str, Array], arguments: tuple[tuple, dict] | None = None
    ) -> dict[str, Array]:
        """The log density of every entry of every sample site, with the scale it has in the model, from some rows."""
        sites = self.trace(self._value_of(z), rows, arguments)
        scales = {name: 1.0 if sites[name].get("scale") is None else sites[name]["scale"] for name in sites}
        return {name: scales[name] * value for name, value in log_densities(sites).items()}

    def log_density_without(
        self, z: Float[Array, " dim"], hidden: Sequence[str], rows: Mapping[str, Array], arguments: tuple[tuple, dict]
    ) -> Float[Array, ""]:
        """The log density of all sites but the hidden ones, from some rows."""
        from numpyro.handlers import block
        from numpyro.infer.util import potential_energy

        with running():
            model = block(self.handled(rows), hide=list(hidden))
            return -jnp.asarray(potential_energy(model, *arguments, self.split(z)))

    def _value_of(self, z: Float[Array, " dim"]) -> Callable[[dict], Any]:
        """The value of each site at a point."""
        from numpyro.distributions import biject_to

        parts = self.split(z)

        def value_of(site: dict[str, Any]) -> Any:
            part = parts.get(site["name"])
            return None if part is None else biject_to(site["fn"].support)(part)

        return value_of

    def pointwise_sites(self) -> tuple[str, ...]:
        """The observed sites whose entries have a log likelihood of their own."""
        return tuple(name for name, site in self.sites.items() if site.is_observed and name not in self.mixed)

    def _pointwise(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        sites = self.trace(self._constrain(z))
        return log_densities({name: sites[name] for name in self.pointwise_sites()})

    def _location_scale(self, z: Float[Array, " dim"]) -> dict[str, tuple[Array, Array]]:
        """Location and log scale of each site that has them, in the order of the model: parents first."""
        sites = self.trace(self._value_of(z))
        found = {name: location_and_scale(sites[name]) for name in sites if name in self.shapes}
        return {name: _fit_together(pair, self.shapes[name]) for name, pair in found.items() if pair is not None}

    def location_scale_sites(self) -> tuple[LocationScale, ...]:
        """The sites whose location or scale depends on latent variables."""
        if self.discrete or not self.computed:  # the first are summed out with axes that locations would have, too
            return ()
        names: list[str] = []

        def look(z: Array) -> list[tuple[Array, Array]]:
            found = self._location_scale(z)
            names.extend(found)
            return list(found.values())

        jaxpr = jax.make_jaxpr(look)(jax.ShapeDtypeStruct((self.dim,), default_dtype()))
        depends = np.reshape(host.depends(jaxpr), (-1, 2)).any(axis=1)
        starts = dict(zip(self.shapes, np.cumsum([0, *map(math.prod, self.shapes.values())]).tolist(), strict=False))
        return tuple(
            LocationScale(name, starts[name], self.shapes[name], _Parameters(self, name))
            for name, latent in zip(names, depends, strict=True)
            if latent
        )

    def dims(self) -> dict[str, list[str]]:
        """Names of the axes of the variables."""
        variables = {name for name, site in self.sites.items() if site.type != "plate"}  # no axis has the name of one
        return {name: site.dims for name, site in self.sites.items() if site.dims and not variables & {*site.dims}}

    def explain(self, z: Any) -> str:
        """Which sites have no density at a point."""

        def finite(z: Array) -> dict[str, Array]:
            return {name: good(value) for name, value in self.site_log_densities(z).items()}

        def good(value: Array) -> Array:  # one value of a discrete site may be impossible, if another is not
            one = jnp.any(jnp.isfinite(value)) & ~jnp.any(jnp.isnan(value))
            return one if self.discrete else jnp.all(jnp.isfinite(value))

        z = on_device(np.asarray(z))
        if bad := [name for name, good in jax.jit(finite)(z).items() if not good]:
            return f"it is not finite at site {quoted(bad)}"
        gradient = np.asarray(jax.jit(jax.grad(self.log_density))(z))
        if bad := [name for name, good in zip(self.names, np.isfinite(gradient), strict=True) if not good]:
            return f"its gradient is not finite in {quoted(bad[:5])}"
        return "no single site is to blame"


class _LogDensity(eqx.Module):
    source: _Source

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.source.log_density(z)

    def explain(self, z: np.ndarray) -> str:
        """Which sites are not finite at a point, for an error message."""
        return self.source.explain(z)

    def initial_candidates(self) -> np.ndarray:
        """Points from which to begin: the centres of the priors, where they are known, and the origin."""
        start = self.source.start
        return np.stack([start, np.zeros_like(start)]) if start.any() else start[None]


class _Constrain(eqx.Module):
    """The way back: latent and deterministic sites."""

    source: _Source

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return self.source.constrain(z)


class _Parameters(eqx.Module):
    """Location and log scale of a site."""

    source: _Source
    name: str = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> tuple[Array, Array]:
        return self.source.location_scale(z)[self.name]


class _Pointwise(eqx.Module):
    """The log likelihood of each observation."""

    source: _Source

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return self.source.pointwise(z)


def _fit_together(pair: tuple[Any, Any], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Location and log scale in the shape of the site's coordinates."""
    location, scale = (jnp.broadcast_to(part, shape) for part in pair)
    return location, jnp.log(scale)


class _ObservedData(Mapping):
    """The data by site. What the model computes from its arguments is computed when it is first asked for."""

    def __init__(self, source: _Source):
        self._source = source
        self._values = {name: site.value for name, site in source.sites.items() if site.is_observed}

    def __getitem__(self, name: str) -> np.ndarray:
        if self._values[name] is None:
            self._values |= jax.jit(self._compute)()
        return np.asarray(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _compute(self) -> dict[str, Array]:
        trace = self._source.trace(lambda site: typical_value(site, set()))
        return {name: trace[name]["value"] for name, value in self._values.items() if value is None}
