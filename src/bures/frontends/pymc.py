"""PyMC models: their log density compiled to JAX by PyTensor, as a `Target` on PyMC's own unconstrained scale.

Where an Op has no JAX form, PyTensor's own compiled functions stand in, behind a callback.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import default_dtype
from bures.frontends.callback import HostLogDensity
from bures.frontends.common import fit_target, import_extra, no_variables, on_device, quoted, sample_target
from bures.frontends.pymc_graph import (
    Graph,
    HostGraph,
    Layout,
    PyTensorEvaluator,
    call_on_host,
    freeze,
    jaxify,
    location_and_scale,
    minibatches,
    read_data,
    without_compiler,
)
from bures.frontends.pymc_predict import Predict
from bures.frontends.pymc_rows import Rows, find_rows, log_density, row_density
from bures.target import Labels, LocationScale, Target, coordinate_names
from bures.target.closures import Mortal

# What PyTensor and JAX raise of a graph that does not fit its data, or that JAX cannot trace.
_ERRORS = (AssertionError, NotImplementedError, TypeError, ValueError)


def fit(
    model: Any = None, *, random_seed: int = 0, progressbar: bool | None = None, draws: int = 1000, **options: Any
) -> Any:
    """Fit a PyMC model (by default that of the `with` block) and return a DataTree, as `pm.sample` does.

    Its draws are importance-resampled. Outcome and k̂ are in `tree.posterior.attrs`; `options` are those of `bures.fit`.
    For the fit itself use `bures.fit(bures.frontends.from_pymc(model), key=...)`.
    """
    return fit_target(from_pymc(model), random_seed, draws, progress=progressbar, **options).draws


def sample(
    model: Any = None, *, random_seed: int = 0, progressbar: bool | None = None, draws: int = 1000, **options: Any
) -> Any:
    """Draws of a PyMC model's posterior (by default that of the `with` block) that can be trusted, as a DataTree.

    See `bures.sample`; `options` are `max_seconds` and `max_evaluations`.
    """
    return sample_target(from_pymc(model), random_seed, draws, progress=progressbar, **options)


def from_pymc(model: Any = None) -> Target:
    """See `bures.frontends.from_pymc`."""
    pymc = import_extra("pymc", "pymc")
    try:
        model = pymc.modelcontext(model)
    except TypeError as error:
        raise ValueError("model must be given, or be that of a `with model:` block around. Pass model=...") from error
    if not isinstance(model, pymc.Model):
        raise ValueError(f"model must be a pymc.Model, but got {type(model).__name__}. Pass the model itself.")
    _refuse(model)
    rows = find_rows(model)
    with without_compiler():
        start = model.initial_point(random_seed=0)
    layout = Layout({variable.name: np.shape(start[variable.name]) for variable in model.value_vars})
    flat = np.concatenate([np.ravel(start[name]) for name in layout.shapes]).astype(float)
    source = _Source(model, layout, np.where(np.isfinite(flat), flat, 0.0), rows)
    by_rows = None if rows is None else row_density(model, rows, layout, source.data)
    density = source.log_density() if by_rows is None else by_rows
    coords, dims = pymc.backends.arviz.coords_and_dims_for_inferencedata(model)
    return Target(
        density,
        flat.size,
        names=coordinate_names(layout.shapes),
        constrain=_Named(source.constrained),
        initial_point=on_device(source.start),
        labels=Labels(
            coords=coords,
            dims=dims,
            observed_data={} if rows is not None else pymc.backends.arviz.find_observations(model),
            log_likelihood=_Named(source.pointwise) if model.observed_RVs and rows is None else None,
            attributes={"pymc_version": pymc.__version__},
            predict=Predict(source, coords, dims),
        ),
        sites=source.location_scale_sites() if isinstance(density, _Summed) else (),
    )


class _Source(Mortal):
    """A model and what is made of it; graphs are converted when they are first used, with the data of now."""

    def __init__(self, model: Any, layout: Layout, start: np.ndarray, rows: Rows | None = None):
        self.model, self.layout, self.start, self.rows = model, layout, start, rows
        self.data = read_data(model)
        variables, observed = model.unobserved_RVs, model.observed_RVs  # the first: free and deterministic
        variables = [variable for variable in variables if not minibatches([variable])]
        names = tuple(variable.name for variable in variables)
        self.constrained = _Functions(self, names, lambda: model.replace_rvs_by_values(variables))
        names = tuple(variable.name for variable in observed)
        self.pointwise = _Functions(self, names, lambda: model.logp(observed, sum=False))

    def log_density(self) -> Any:
        """The log density in JAX; by PyTensor if it cannot be had there."""
        graph = None
        try:
            graph = freeze(self.model.value_vars, [log_density(self.model, self.rows)], self.data)
            density = _Summed(self, jax.jit(jaxify(graph, self.layout)))
            jax.eval_shape(density, jax.ShapeDtypeStruct(self.start.shape, default_dtype()))
        except _ERRORS as error:
            _check_shapes(self.model, self.layout.point(self.start))  # if the model is at fault it is said here
            if graph is None:
                raise
            return HostLogDensity(self._evaluator(graph, error))
        return density

    def location_scale_sites(self) -> tuple[LocationScale, ...]:
        """The variables whose location or scale depends on latent ones, in the order of the model: parents first."""
        from pytensor.graph.traversal import ancestors

        latent, sites = set(self.model.free_RVs), []
        starts = np.cumsum([0, *map(math.prod, self.layout.shapes.values())]).tolist()
        places = dict(zip(self.layout.shapes, starts, strict=False))
        for variable in self.model.free_RVs:
            pair = location_and_scale(variable, self.model.rvs_to_transforms.get(variable))
            if pair is None or not latent.intersection(ancestors(pair)):
                continue
            value = self.model.rvs_to_values[variable].name
            parameters = _Parameters(_Functions(self, (), functools.partial(self.model.replace_rvs_by_values, pair)))
            sites.append(LocationScale(variable.name, places[value], self.layout.shapes[value], parameters))
        return tuple(sites)

    def _evaluator(self, graph: Graph, reason: Exception) -> PyTensorEvaluator:
        """The log density by PyTensor, which has to know its gradient."""
        ops = _ops_without_jax(graph)
        try:
            evaluator = PyTensorEvaluator(graph, self.layout, self.start, self.explain)
            _refuse_disconnected(graph, ops)
        except _ERRORS as error:
            fed = [name for name, outputs in self._factors() if ops & _ops(outputs)]
            names = ", ".join(sorted(str(op) for op in ops)) or "An Op"
            detail = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{names}, which the log density of {quoted(fed)} uses, has neither a JAX form nor a gradient: "
                f"{detail}. Give the Op a `pullback` method, or write it with pytensor.tensor."
            ) from reason
        return evaluator

    def _factors(self) -> list[tuple[str, list[Any]]]:
        """The log density of each variable, by name."""
        return [(v.name, self.model.logp([v], sum=False)) for v in [*self.model.basic_RVs, *self.model.potentials]]

    def candidates(self) -> np.ndarray:
        """Points from which to begin: PyMC's initial point, and the origin."""
        return np.stack([self.start, np.zeros_like(self.start)]) if self.start.any() else self.start[None]

    def explain(self, z: np.ndarray) -> str:
        """Which variables have no density at a point."""
        factors = [*self.model.basic_RVs, *self.model.potentials]
        values = _evaluate(self.model, self.model.logp(factors, sum=False), self.layout.point(np.asarray(z, float)))
        bad = [v.name for v, value in zip(factors, values, strict=True) if not np.all(np.isfinite(value))]
        return f"it is not finite for {quoted(bad)}" if bad else "no single variable is to blame"


class _Functions(Mortal):
    """Named functions of a point, in JAX or by PyTensor, converted when they are first called."""

    def __init__(self, source: _Source, names: tuple[str, ...], make: Any):
        self.source, self.names, self.make, self.function = source, names, make, None

    def __call__(self, z: Float[Array, " dim"]) -> list[Array]:
        if self.function is None:
            source = self.source
            graph = freeze(source.model.value_vars, self.make(), source.data)
            point = jax.ShapeDtypeStruct(source.start.shape, z.dtype)
            try:
                function = jax.jit(jaxify(graph, source.layout))
                jax.eval_shape(function, point)
            except _ERRORS:
                function = call_on_host(HostGraph(graph, source.layout), source.start)
            self.function = function
        return self.function(z)


class _Summed(eqx.Module):
    """The log density, Jacobians of the transforms included."""

    source: _Source
    function: Any

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.function(z)[0]

    def explain(self, z: np.ndarray) -> str:
        """Which variables are not finite at a point, for an error message."""
        return self.source.explain(z)

    def initial_candidates(self) -> np.ndarray:
        return self.source.candidates()


class _Named(eqx.Module):
    """Several functions of the value variables, by name."""

    functions: _Functions

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return dict(zip(self.functions.names, map(jnp.asarray, self.functions(z)), strict=True))


class _Parameters(eqx.Module):
    """Location and log scale of a variable."""

    functions: _Functions

    def __call__(self, z: Float[Array, " dim"]) -> tuple[Array, Array]:
        location, scale = self.functions(z)
        return jnp.asarray(location), jnp.log(jnp.asarray(scale, z.dtype))


def _refuse(model: Any) -> None:
    """Discrete variables and models without variables have no Gaussian approximation."""
    if discrete := [v.name for v in model.free_RVs if v.dtype.startswith(("int", "uint", "bool"))]:
        raise ValueError(
            f"The latent variable {quoted(discrete)} is discrete, and a Gaussian cannot approximate it. "
            "Sum it out of the model (pm.Mixture does for mixtures), or observe it."
        )
    if not model.free_RVs:
        raise no_variables("The PyMC model", "variables: those with observed= are data")


def _ops(outputs: Any) -> set[Any]:
    """The Ops of a graph."""
    from pytensor.graph.traversal import ancestors

    return {variable.owner.op for variable in ancestors(list(outputs)) if variable.owner is not None}


def _ops_without_jax(graph: Graph) -> set[Any]:
    from pytensor.link.jax.dispatch.basic import jax_funcify

    unknown = jax_funcify.dispatch(object)
    return {op for op in _ops(graph.outputs) if jax_funcify.dispatch(type(op)) is unknown}


def _refuse_disconnected(graph: Graph, ops: set[Any]) -> None:
    """An Op that says its output does not depend on a variable, though it does, would have a gradient of zero."""
    from pytensor.gradient import DisconnectedType
    from pytensor.graph.traversal import ancestors

    nodes = {variable.owner for variable in ancestors(list(graph.outputs)) if variable.owner is not None}
    for node in (node for node in nodes if node.op in ops):
        cotangents = [output.type() for output in node.outputs]
        terms = node.op.pullback(node.inputs, node.outputs, cotangents)
        for i, (variable, term) in enumerate(zip(node.inputs, terms, strict=True)):
            if isinstance(term.type, DisconnectedType) and set(graph.inputs) & set(ancestors([variable])):
                raise ValueError(f"pullback returned DisconnectedType for input {i}.")


def _evaluate(model: Any, outputs: Any, point: dict[str, np.ndarray]) -> Any:
    """Outputs at one point."""
    with without_compiler():
        function = model.compile_fn(outputs, inputs=model.value_vars, on_unused_input="ignore", mode="FAST_COMPILE")
        return function(point)


def _check_shapes(model: Any, start: dict[str, np.ndarray]) -> None:
    """Data that do not fit together, after `pm.set_data` say, with the variable's name."""
    for variable in [*model.observed_RVs, *model.potentials]:
        outputs = model.logp([variable], sum=False)
        try:
            _evaluate(model, outputs, start)
        except (AssertionError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"The log density of {variable.name!r} cannot be evaluated: {reason}. Check the shapes of its data."
            ) from error
