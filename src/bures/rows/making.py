"""From what a user gives, a prior, a log likelihood of one row and data, to a density: checks and choices."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bures import distributed
from bures.check import as_array, check_integers, check_unmasked, default_dtype, describe, fail
from bures.engine import default_draws
from bures.mesh import ShardedRows, arranged, is_spread
from bures.rows.density import RowDensity
from bures.rows.on_mesh import MeshDensity
from bures.rows.shared import SharedStream, shared, unpacked
from bures.rows.sources import ArraySource, Source, is_sliceable
from bures.rows.stream import Stream, StreamedDensity
from bures.target.blocks import largest_array
from bures.target.variables import Layout, Unconstrained

# A fit of all rows evaluates about so many points; with more pairs of rows and points than this, steps take batches.
_START, _STEPS, _ROW_EVALUATIONS = 4000, 20, 2 * 10**9
_LOADED_BYTES = 2**28  # of a file that is simply read into memory, where fits are not subsampled


class LikelihoodOfVariables(eqx.Module):
    """log p(row | z) from a function of the row and of named, constrained variables."""

    log_likelihood: Callable[..., Float[Array, ""]]
    layout: Layout

    def __call__(self, z: Float[Array, " dim"], row: PyTree) -> Float[Array, ""]:
        return self.log_likelihood(row=row, **self.layout.constrain(z))


def of_variables(
    log_prior: Callable, log_likelihood: Callable, variables: Mapping[str, Any]
) -> tuple[Unconstrained, LikelihoodOfVariables, Layout]:
    """The same functions of a point of R^dim, the change of variables in the prior."""
    layout = Layout(variables)
    return Unconstrained(log_prior, layout), LikelihoodOfVariables(log_likelihood, layout), layout


def density_from(
    log_prior: Callable, log_likelihood: Callable, data: Any, dim: int, subsample: bool | None
) -> RowDensity | StreamedDensity | MeshDensity:
    """The density of rows in memory or of a source, with every argument checked."""
    for name, function in (("log_prior", log_prior), ("log_likelihood", log_likelihood)):
        if not callable(function):
            raise fail(name, "a function", function, "Pass a JAX function.")
    if subsample is not None and not isinstance(subsample, bool):
        raise fail("subsample", "True, False or None", subsample, "Leave it out to choose by the number of rows.")
    data, own = unpacked(data)
    data, weights = data if isinstance(data, ShardedRows) else (data, None)
    source = _source_of(data)
    width = _check_functions(log_prior, log_likelihood, source.row(), dim)
    if distributed.count() > 1 and not _is_spread(source):
        return _shared_density(log_prior, log_likelihood, source, dim, width, own, subsample)
    in_memory = isinstance(source, ArraySource) and not any(map(is_sliceable, jax.tree.leaves(source.arrays)))
    chosen = _is_subsampled(source, dim, subsample)
    if weights is not None and (chosen or not in_memory):
        wanted = "without weights where rows are on disk or are taken in batches"
        raise fail("data", wanted, "ShardedRows with weights", "Multiply log_likelihood by a weight in the row.")
    if not in_memory and not chosen and _bytes(source) <= _LOADED_BYTES:
        (whole,) = source.blocks(source.num_rows)
        source, in_memory = ArraySource(whole), True
    parts = log_prior, log_likelihood
    if not in_memory:
        return StreamedDensity(Stream(*parts, source, width, start=np.zeros(dim), subsample=chosen))
    assert isinstance(source, ArraySource)
    for leaf in jax.tree.leaves(source.arrays):
        if isinstance(leaf, np.ndarray):
            check_integers("data", leaf)
    arrays, weights, rows = arranged(jax.tree.map(as_array, source.arrays), weights)
    if rows is not None:
        return MeshDensity(*parts, arrays, weights, rows, width)
    if not chosen:
        return RowDensity(*parts, arrays, weights, width)
    source = ArraySource(jax.tree.map(np.asarray, arrays))
    return RowDensity(*parts, arrays, None, width, Stream(*parts, source, width, start=np.zeros(dim), subsample=True))


def _shared_density(
    log_prior: Callable,
    log_likelihood: Callable,
    source: Source,
    dim: int,
    width: int,
    own: bool,
    subsample: bool | None,
) -> StreamedDensity:
    """The density of rows that several processes share."""
    if isinstance(source, ArraySource):
        source = ArraySource(jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, source.arrays))
    part = shared(source, own)
    chosen = is_large(part.total, dim) if subsample is None else subsample
    return StreamedDensity(SharedStream(log_prior, log_likelihood, part, width, start=np.zeros(dim), subsample=chosen))


def _is_spread(source: Source) -> bool:
    """Whether rows are on several devices."""
    return isinstance(source, ArraySource) and any(map(is_spread, jax.tree.leaves(source.arrays)))


def _is_subsampled(source: Source, dim: int, wanted: bool | None) -> bool:
    """Whether fits take batches of rows: as wanted, or by their number. Rows on several devices are all evaluated."""
    spread = _is_spread(source)
    if wanted and spread:
        raise fail(
            "subsample", "False or left out for rows on several devices", wanted, "They are all evaluated there."
        )
    return not spread and (is_large(source.num_rows, dim) if wanted is None else wanted)


def is_large(num_rows: int, dim: int) -> bool:
    """Whether a fit that evaluates all rows at every point would take more row evaluations than it may."""
    return num_rows * (_START + _STEPS * default_draws(dim)) > _ROW_EVALUATIONS


def _bytes(source: Source) -> int:
    return source.num_rows * sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(source.row()))


def _source_of(data: Any) -> Source:
    if hasattr(data, "blocks") and hasattr(data, "take") and hasattr(data, "num_rows"):
        return data
    leaves, structure = jax.tree.flatten(data)
    remedy = "Pass a pytree of arrays whose first axis is the rows, e.g. {'x': X, 'y': y}."
    if not leaves:
        raise fail("data", "a pytree of arrays", data, remedy)
    arrays = [_numbers(leaf, remedy) for leaf in leaves]
    lengths = {tuple(array.shape[:1]) for array in arrays}
    if lengths == {()} or () in lengths:
        raise fail("data", "arrays with a first axis, the rows", next(a for a in arrays if not a.shape), remedy)
    if len(lengths) > 1:
        raise fail("data", "arrays of one length", [list(array.shape) for array in arrays], remedy)
    if (0,) in lengths:
        raise fail("data", "at least one row", "none", remedy)
    return ArraySource(jax.tree.unflatten(structure, arrays))


def _numbers(leaf: Any, remedy: str) -> Any:
    """A leaf as it is if it can be sliced, else an array."""
    if isinstance(leaf, jax.Array):
        return leaf
    check_unmasked("data", leaf)
    array = leaf if is_sliceable(leaf) else np.asarray(leaf)
    if np.dtype(array.dtype).kind not in "fiub":
        raise fail("data", "arrays of numbers", leaf, remedy)
    return array


def _check_functions(log_prior: Callable, log_likelihood: Callable, row: PyTree, dim: int) -> int:
    """Both give one real number; returns the size of the largest array of one row at one point. Nothing is computed."""
    point = jax.ShapeDtypeStruct((dim,), default_dtype())
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), row)
    _trace("log_prior", f"a function ({dim},) -> scalar", log_prior, point)
    remedy = f"a function (z ({dim},), row) -> scalar, where a row is {_shapes(row)}"
    return largest_array(_trace("log_likelihood", remedy, log_likelihood, point, row))


def _shapes(row: PyTree) -> str:
    return describe(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", row))


def _trace(argument: str, wanted: str, function: Callable, *arguments: Any) -> Any:
    try:
        jaxpr, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except Exception as error:
        raise ValueError(
            f"{argument} must be {wanted}, but it could not be traced: {error} Write it with jax.numpy, for one row."
        ) from error
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        received = f"{out.dtype}{list(out.shape)}" if hasattr(out, "shape") else type(out).__name__
        raise ValueError(f"{argument} must be {wanted}, but it returned {received}. Sum over its entries.")
    return jaxpr
