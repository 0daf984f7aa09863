"""PyMC models: their log density compiled to JAX by PyTensor, as a `Target` on PyMC's own unconstrained scale."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.frontends.common import find_initial_point, fit_target, import_extra, no_variables
from bures.target import Labels, Target, coordinate_names


def fit(
    model: Any = None, *, random_seed: int = 0, progressbar: bool | None = None, draws: int = 1000, **options: Any
) -> Any:
    """Fit a PyMC model (by default that of the `with` block) and return a DataTree, as `pm.sample` does.

    Its draws are importance-resampled. Outcome and k̂ are in `tree.posterior.attrs`; `options` are those of `bures.fit`.
    For the fit itself use `bures.fit(bures.frontends.from_pymc(model), key=...)`.
    """
    return fit_target(from_pymc(model), random_seed, draws, progress=progressbar, **options).draws


def from_pymc(model: Any = None) -> Target:
    """See `bures.frontends.from_pymc`."""
    pymc = import_extra("pymc", "pymc")
    try:
        model = pymc.modelcontext(model)
    except TypeError as error:
        raise ValueError("model must be given, or be that of a `with model:` block around. Pass model=...") from error
    _refuse(model)
    _check_shapes(model)
    variables = model.unobserved_RVs  # free and deterministic, on their own scale
    start = model.initial_point()
    names = [variable.name for variable in model.value_vars]
    shapes = {name: np.shape(start[name]) for name in names}
    split = _Split(tuple(shapes.values()))
    density = _Summed(_jaxify(model.value_vars, [model.logp()]), split)
    observed = model.observed_RVs
    pointwise = _Named(_jaxify(model.value_vars, model.logp(observed, sum=False)), split, _names(observed))
    flat = np.concatenate([np.ravel(start[name]) for name in names]).astype(jnp.zeros(()).dtype)
    coords, dims = pymc.backends.arviz.coords_and_dims_for_inferencedata(model)
    return Target(
        density,
        flat.size,
        names=coordinate_names(shapes),
        constrain=_Named(_jaxify(model.value_vars, model.replace_rvs_by_values(variables)), split, _names(variables)),
        initial_point=find_initial_point(eqx.filter_jit(density), [flat], lambda z: _explain(model)),
        labels=Labels(
            coords=coords,
            dims=dims,
            observed_data=pymc.backends.arviz.find_observations(model),
            log_likelihood=pointwise if observed else None,
            attributes={"pymc_version": pymc.__version__},
        ),
    )


class _Split(eqx.Module):
    """From a point of R^dim to the value variables, in the model's order."""

    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> list[Array]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(jnp.split(z, ends), self.shapes, strict=True)]


class _Summed(eqx.Module):
    """The log density, Jacobians of the transforms included."""

    function: Callable = eqx.field(static=True)
    split: _Split

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        with _quiet():
            return jnp.asarray(self.function(*self.split(z))[0])


class _Named(eqx.Module):
    """Several functions of the value variables, by name."""

    function: Callable = eqx.field(static=True)
    split: _Split
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        with _quiet():
            return dict(zip(self.names, map(jnp.asarray, self.function(*self.split(z))), strict=True))


def _jaxify(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable:
    """A PyTensor graph as a JAX function, with shared variables frozen at their present values.

    PyTensor's JAX link switches JAX to float64 when it is first imported. That is the user's to decide: it is undone.
    """
    precise = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    try:
        from pymc.sampling.jax import get_jaxified_graph
    finally:
        jax.config.update("jax_enable_x64", precise)
    with _quiet():
        return get_jaxified_graph(inputs=list(inputs), outputs=list(outputs))


@contextmanager
def _quiet() -> Iterator[None]:
    """In float32, JAX warns of each float64 constant in the graph; the user chose float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


def _names(variables: Sequence[Any]) -> tuple[str, ...]:
    return tuple(variable.name for variable in variables)


def _refuse(model: Any) -> None:
    """Discrete variables and models without variables have no Gaussian approximation."""
    if discrete := [v.name for v in model.free_RVs if v.dtype.startswith(("int", "uint", "bool"))]:
        raise ValueError(
            f"The latent variable {', '.join(map(repr, discrete))} is discrete, and a Gaussian cannot approximate it. "
            "Sum it out of the model (pm.Mixture does for mixtures), or observe it."
        )
    if not model.free_RVs:
        raise no_variables("The PyMC model", "variables: those with observed= are data")


def _check_shapes(model: Any) -> None:
    """Data that do not fit together, after `pm.set_data` say, are found here, with the variable's name."""
    start = model.initial_point()
    options: dict[str, Any] = dict(on_unused_input="ignore", mode="FAST_COMPILE")  # in Python: it is called once
    for variable in [*model.observed_RVs, *model.potentials]:
        density = model.compile_fn(model.logp([variable], sum=False), inputs=model.value_vars, **options)
        try:
            density(start)
        except (AssertionError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"The log density of {variable.name!r} cannot be evaluated: {reason}. Check the shapes of its data."
            ) from error


def _explain(model: Any) -> str:
    """Which variables have no density at the initial point."""
    bad = [name for name, value in model.point_logps().items() if not np.isfinite(value)]
    return f"it is not finite for {', '.join(map(repr, bad))}" if bad else "no single variable is to blame"
