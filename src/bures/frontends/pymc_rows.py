"""`pm.Minibatch`: the posterior of all rows, as a prior and a sum over rows.

The minibatches of a graph are replaced by the full data or, for the density of a row, by that row alone. That a row's
density does not depend on which other rows come with it is checked on a few of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import as_array, default_dtype
from bures.frontends.common import quoted
from bures.frontends.pymc_graph import Graph, Layout, freeze, jaxify, minibatches, rebuilt, without_compiler
from bures.rows.making import density_from, is_large

_CHECKED = 5  # rows that are evaluated together, and one by one
_REMEDY = "Give the model the full data, without pm.Minibatch, and leave total_size out."


class Rows:
    """The observed variables of minibatches, and the full data of these."""

    def __init__(self, variables: list[Any], nodes: list[Any], arrays: list[np.ndarray]):
        self.variables, self.nodes, self.arrays = variables, nodes, arrays
        self.size = arrays[0].shape[0]

    def log_densities(self, model: Any, data: Sequence[Any] | None = None) -> list[Any]:
        """The log density of each entry of each variable, with other data, by default the full ones, in the batches'
        place. Not scaled by `total_size`."""
        import pymc

        batches = [output for node in self.nodes for output in node.outputs[: len(node.inputs) - 1]]
        full = [value for node in self.nodes for value in node.inputs[:-1]]
        instead = dict(zip(batches, full if data is None else data, strict=True))
        made = []
        for variable in self.variables:
            value = rebuilt([model.rvs_to_values[variable]], instead)[0]
            plain = variable.owner.inputs[0] if _is_scaled(variable) else variable
            made.append(pymc.logp(_of_shape(plain, value, instead), value))
        return list(model.replace_rvs_by_values(made))


def _is_scaled(variable: Any) -> bool:
    return type(getattr(variable.owner, "op", None)).__name__ == "MinibatchRandomVariable"


def _of_shape(variable: Any, value: Any, instead: dict[Any, Any]) -> Any:
    """A random variable with other parameters, and of the shape of its value: that of a batch is in its graph."""
    from pytensor.tensor.random.op import RandomVariable

    node = variable.owner
    if not isinstance(node.op, RandomVariable):
        return rebuilt([variable], instead)[0]
    parameters = rebuilt(node.op.dist_params(node), instead)
    batch = value.ndim - node.op.ndim_supp
    return node.op.make_node(node.op.rng_param(node), value.shape[:batch], *parameters).default_output()


def find_rows(model: Any) -> Rows | None:
    """The minibatches of a model; None if it has none. What cannot be summed row by row is refused by name."""
    used = {variable: _nodes_of(model, variable) for variable in [*model.basic_RVs, *model.potentials]}
    nodes = list(dict.fromkeys(node for each in used.values() for node in each))
    _refuse_other_sizes(model, nodes)
    if not nodes:
        return None
    for variable, found in used.items():
        if found and variable not in model.observed_RVs:
            kind = "potential" if variable in model.potentials else "latent variable"
            raise ValueError(
                f"The {kind} {variable.name!r} uses pm.Minibatch, and only observed variables are sums over rows. "
                f"{_REMEDY}"
            )
        if len(found) > 1:
            raise ValueError(
                f"{variable.name!r} uses several calls of pm.Minibatch, whose rows do not belong together. Make one "
                "call of all arrays: x, y = pm.Minibatch(X, Y, batch_size=...)."
            )
    variables = [variable for variable, found in used.items() if found]
    inputs = [value for node in nodes for value in node.inputs[:-1]]
    with without_compiler():
        arrays = [np.asarray(value.data if hasattr(value, "data") else value.eval()) for value in inputs]
    if len({array.shape[0] for array in arrays}) > 1:
        lengths = sorted({array.shape[0] for array in arrays})
        raise ValueError(f"The minibatches of {quoted([v.name for v in variables])} have {lengths} rows. {_REMEDY}")
    return Rows(variables, nodes, arrays)


def _nodes_of(model: Any, variable: Any) -> list[Any]:
    values = [model.rvs_to_values[variable]] if variable in model.rvs_to_values else []
    return minibatches([variable, *values])


def _refuse_other_sizes(model: Any, nodes: Sequence[Any]) -> None:
    """A total_size that is not the number of rows: the data are a part, and the rest cannot be known."""
    for variable in model.observed_RVs:
        owner = variable.owner
        if not _is_scaled(variable):
            continue
        sizes = [getattr(size, "data", None) for size in owner.inputs[1:]]
        with without_compiler():
            value = model.rvs_to_values[variable]
            full = {out: given for node in nodes for out, given in zip(node.outputs, node.inputs[:-1], strict=False)}
            shape = rebuilt([value], full)[0].shape.eval()
        if any(size is not None and size != rows for size, rows in zip(sizes, shape, strict=False)):
            raise ValueError(
                f"{variable.name!r} has total_size={[s if s is None else int(s) for s in sizes]} but data of shape "
                f"{[int(n) for n in shape]}: the posterior would be that of one minibatch. {_REMEDY}"
            )


def row_density(model: Any, rows: Rows, layout: Layout, data: Any) -> Any:
    """The factorised density, if there are so many rows that fits should take batches of them; else None.

    Rows that depend on each other are refused in any case.
    """
    import pytensor.tensor as pt

    batches = [
        pt.tensor(f"rows_{i}", dtype=array.dtype, shape=(None, *array.shape[1:])) for i, array in enumerate(rows.arrays)
    ]
    outputs = [pt.sum(each) for each in rows.log_densities(model, batches)]
    function = jaxify(Graph([*model.value_vars, *batches], freeze([], outputs, data).outputs), layout)
    _check(function, rows, layout)
    dim = sum(int(np.prod(shape)) for shape in layout.shapes.values())
    if not is_large(rows.size, dim):
        return None
    prior = jaxify(freeze(model.value_vars, [log_density_without(model, rows)], data), layout)
    return density_from(_Prior(prior), _Likelihood(function), list(rows.arrays), dim, True)


def log_density_without(model: Any, rows: Rows) -> Any:
    """The log density of everything but the variables of minibatches, Jacobians included."""
    return model.logp([v for v in [*model.basic_RVs, *model.potentials] if v not in rows.variables])


def log_density(model: Any, rows: Rows | None) -> Any:
    """The log density of all, minibatches by their full data."""
    import pytensor.tensor as pt

    if rows is None:
        return model.logp()
    total: Any = log_density_without(model, rows)
    for each in rows.log_densities(model):
        total = total + pt.sum(each)
    return total


def _check(function: Callable[..., list[Array]], rows: Rows, layout: Layout) -> None:
    """That some rows together have the sum of the densities that each has alone."""
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(rows.size, min(_CHECKED, rows.size), replace=False))
    dim = sum(int(np.prod(shape)) for shape in layout.shapes.values())
    z = as_array(rng.uniform(-1, 1, dim).astype(default_dtype()))
    parts = [as_array(array[chosen]) for array in rows.arrays]

    def both(z: Array, parts: list[Array]) -> tuple[list[Array], list[list[Array]]]:
        alone = [function(z, *(part[i : i + 1] for part in parts)) for i in range(len(chosen))]
        return function(z, *parts), alone

    together, alone = jax.jit(both)(z, parts)
    for i, variable in enumerate(rows.variables):
        if not np.allclose(np.sum([each[i] for each in alone]), together[i], rtol=1e-4, equal_nan=True):
            raise ValueError(
                f"The log density of {variable.name!r} depends on which rows of its pm.Minibatch come together, so "
                f"that it is not a sum over rows: it cannot be subsampled. {_REMEDY}"
            )


class _Prior(eqx.Module):
    """The log density of everything but the variables of minibatches, Jacobians included."""

    function: Any

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.function(z)[0]


class _Likelihood(eqx.Module):
    """The log density of one row."""

    function: Any

    def __call__(self, z: Float[Array, " dim"], row: list[Array]) -> Float[Array, ""]:
        return sum(self.function(z, *(part[None] for part in row)), jnp.zeros((), z.dtype))
