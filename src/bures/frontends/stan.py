"""Stan programs through BridgeStan: compiled once, evaluated in batches behind `jax.pure_callback`.

The Target's coordinates are Stan's unconstrained parameters, which depend on Stan's version: it is kept in the labels.
"""

import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from bures.check import fail
from bures.frontends.callback import HostLogDensity, call, points
from bures.frontends.common import (
    Result,
    find_initial_point,
    fit_target,
    import_extra,
    no_variables,
    on_device,
    sample_target,
)
from bures.frontends.stan_files import compile_program, read_data
from bures.frontends.stan_predict import Predict
from bures.target import Labels, Target

# Stan's tape of derivatives is shared by all models of a library unless it was compiled with threads.
_LOCK = threading.Lock()
_COMPILING = ("make_args", "stanc_args")  # options of `from_stan`


def fit(program: Any, data: Any = None, *, seed: int = 0, num_draws: int = 1000, **options: Any) -> Result:
    """Fit a Stan program and draw from the posterior: the fit, and a DataTree of resampled draws.

    `options` are those of `bures.fit`, and `make_args` and `stanc_args` of `from_stan`.
    """
    arguments = {name: options.pop(name) for name in _COMPILING if name in options}
    return fit_target(from_stan(program, data, **arguments), seed, num_draws, **options)


def sample(program: Any, data: Any = None, *, seed: int = 0, num_draws: int = 1000, **options: Any) -> Any:
    """Draws of a Stan program's posterior that can be trusted, as a DataTree: see `bures.sample`.

    `options` are `max_seconds`, `max_evaluations` and `progress`, and `make_args` and `stanc_args` of `from_stan`.
    """
    arguments = {name: options.pop(name) for name in _COMPILING if name in options}
    return sample_target(from_stan(program, data, **arguments), seed, num_draws, **options)


def from_stan(
    program: Any, data: Any = None, *, seed: int = 1, make_args: Sequence[str] = (), stanc_args: Sequence[str] = ()
) -> Target:
    """See `bures.frontends.from_stan`."""
    bridgestan = import_extra("bridgestan", "stan")
    if isinstance(program, bridgestan.StanModel):
        if data is not None:
            raise fail("data", "left out with a BridgeStan model", data, "That model has its data already.")
        model = program
    else:
        library = compile_program(program, make_args=make_args, stanc_args=stanc_args)
        try:
            model = bridgestan.StanModel(library, read_data(data), seed=seed, warn=False)
        except OSError as error:
            raise ValueError(
                f"The compiled Stan program cannot be loaded: {_reason(error)}. Delete {library} to compile it again."
            ) from error
        except RuntimeError as error:
            raise ValueError(
                f"Stan does not accept the data: {_reason(error)}. Compare it with the data block."
            ) from error
    dim = model.param_unc_num()
    if dim == 0:
        raise no_variables("The Stan program", "parameters block")
    evaluator = _Evaluator(model, seed)
    evaluator.start = find_initial_point(evaluator.value, [np.zeros(dim)], evaluator.explain)
    version = re.search(r"\bStan(?: version)?:?\s+(\d+\.\d+\.\d+)", model.model_info())
    return Target(
        HostLogDensity(evaluator),
        dim,
        names=[_indexed(name) for name in model.param_unc_names()],
        constrain=_Constrain(evaluator),
        initial_point=on_device(evaluator.start),
        labels=Labels(
            log_likelihood=partial(_pointwise, evaluator) if "log_lik" in evaluator.shapes else None,
            attributes={
                "stan_version": version[1] if version else "unknown",
                "bridgestan_version": ".".join(map(str, model.model_version())),
            },
            predict=Predict(evaluator, _LOCK, _shapes),
        ),
    )


class _Evaluator:
    """A Stan model at many points: arrays (..., dim) in, one call of Stan at a time."""

    start: np.ndarray

    def __init__(self, model: Any, seed: int):
        self.model, self.seed = model, seed
        self.names = model.param_names(include_tp=True, include_gq=True)
        self.shapes = _shapes(self.names)

    def value(self, z: np.ndarray) -> np.ndarray:
        return self._each(lambda point: (self.model.log_density(point),), z, 0)[0]

    def gradient(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._each(self.model.log_density_gradient, z, 1)

    def hessian(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._each(self.model.log_density_hessian, z, 2)

    def constrain(self, z: np.ndarray) -> np.ndarray:
        """Parameters, transformed parameters and generated quantities; NaN where Stan rejects the point."""
        flat = np.full((z.size // z.shape[-1], len(self.names)), np.nan)
        with _LOCK:
            generator = self.model.new_rng(self.seed)
            for row, point in zip(flat, points(z), strict=True):
                try:
                    row[:] = self.model.param_constrain(point, include_tp=True, include_gq=True, rng=generator)
                except RuntimeError:
                    continue
        return flat.reshape(*z.shape[:-1], len(self.names))

    def explain(self, z: np.ndarray) -> str:
        """Why a point has no density, in Stan's words."""
        try:
            with _LOCK:
                value = self.model.log_density(z)
        except RuntimeError as error:
            return f"Stan rejects it: {_reason(error)}"
        return f"the program's target is {value}"

    def _each(self, function: Any, z: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Value and derivatives up to `order` at each point; −inf and zeros where Stan rejects it."""
        dim, rows = z.shape[-1], points(z)
        results = tuple(np.zeros((len(rows), *(dim,) * power)) for power in range(order + 1))
        with _LOCK:
            for i, point in enumerate(rows):
                try:
                    parts = function(point)
                except RuntimeError:
                    parts = (np.nan,)
                if np.isfinite(parts[0]):
                    for result, part in zip(results, parts, strict=True):
                        result[i] = part
                else:
                    results[0][i] = -np.inf
        return tuple(result.reshape((*z.shape[:-1], *result.shape[1:])) for result in results)


class _Constrain(eqx.Module):
    """The way back: parameters, transformed parameters and generated quantities, in Stan's names and shapes."""

    evaluator: _Evaluator = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        variables = _variables(self.evaluator, z)
        return {name: value for name, value in variables.items() if name != "log_lik"}


def _pointwise(evaluator: _Evaluator, z: Float[Array, " dim"]) -> dict[str, Array]:
    """`log_lik` among the generated quantities is, by Stan's custom, the log likelihood of each observation."""
    return {"log_lik": _variables(evaluator, z)["log_lik"]}


def _variables(evaluator: _Evaluator, z: Array) -> dict[str, Array]:
    flat = call(evaluator.constrain, jax.ShapeDtypeStruct((len(evaluator.names),), z.dtype), z)
    values, start = {}, 0
    for name, shape in evaluator.shapes.items():
        size = int(np.prod(shape))
        values[name] = flat[start : start + size].reshape(shape[::-1]).T  # Stan counts the first index fastest
        start += size
    return values


def _shapes(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables from names such as theta.1, theta.2; parts that are not indices stay in the name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        base, indices = re.fullmatch(r"(.*?)((?:\.\d+)*)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
        shapes[base] = tuple(int(index) for index in indices.split(".")[1:])  # the last entry has the largest
    return shapes


def _indexed(name: str) -> str:
    """theta.2 as theta[1]: as everywhere else in bures, from zero."""
    base, *indices = name.split(".")
    if not indices or not all(index.isdigit() for index in indices):
        return name
    return f"{base}[{','.join(str(int(index) - 1) for index in indices)}]"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
