"""The draws that a fit was judged by, in the model's own variables: one named column for each number of a draw.

The table, the figures and the page of a fit all read these.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bures.check import fail
from bures.compiled import compiled
from bures.diagnostics.weighted import draw_points
from bures.draws import host_generator
from bures.target import Labels, Target

if TYPE_CHECKING:
    from bures.fitting import Fit

_MOST = 2**25  # numbers, 256 MB: of many variables the first draws of the pool are looked at
_BLOCK, _LEAST_ROWS = 2**20, 100  # numbers of a block, and its least draws
_UNJUDGED = 4000  # draws of a fit whose judgement had none


@dataclasses.dataclass(frozen=True, eq=False)
class Elements:
    """Draws by named column, with their weights."""

    names: tuple[str, ...]
    values: Float[np.ndarray, "n count"]
    weights: Float[np.ndarray, " n"] | None  # Pareto-smoothed, of sum 1; None where no draw has a positive one
    variables: tuple[tuple[str, int], ...]  # the model's variables, in order, and how many columns each has
    latent: int  # how many of these come first that are not computed from others

    @property
    def effective(self) -> float:
        """Effective draws."""
        return 0.0 if self.weights is None else float(1 / np.sum(self.weights**2))


def elements_of(fit: "Fit") -> Elements:
    """The pool of a fit in its model's own variables; made once. Of a fit that was not judged, plain draws."""
    if fit.record.elements is None:
        pool = fit.draws()
        if pool.log_p.size < _LEAST_ROWS:
            z = draw_points(host_generator(fit.key), fit.approximation, _UNJUDGED)
            fit.record.elements = constrained(fit.target, z, None)
        else:
            fit.record.elements = constrained(fit.target, pool.z, pool.smoothed())
    return fit.record.elements


def constrained(target: Target, z: Any, log_weights: np.ndarray | None) -> Elements:
    """Draws in the target's own variables."""
    shapes = jax.eval_shape(target.constrain, jax.ShapeDtypeStruct((target.dim,), jnp.asarray(z[:1]).dtype))
    ordered, latent = _in_order(target.names, list(shapes))
    shapes = {name: tuple(shapes[name].shape) for name in ordered}
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    n = min(len(z), max(_LEAST_ROWS, _MOST // max(count, 1)))
    values = np.empty((n, count))
    for here, block in _blocks(target, z[:n]):
        rows = here.stop - here.start
        parts = [np.asarray(block[name], np.float64)[:rows].reshape(rows, -1) for name in shapes]
        values[here] = np.concatenate(parts, axis=1)
    weights = None if log_weights is None else _normalised(log_weights[:n])
    return Elements(names_of(shapes, target.labels), values, weights, _sizes(shapes), latent)


def elements_of_tree(tree: Any, coordinates: tuple[str, ...] = ()) -> Elements:
    """The draws of a DataTree's posterior, which count alike; those of latent coordinates first, where given."""
    found = {str(name): each for name, each in tree["posterior"].data_vars.items()}
    ordered, latent = _in_order(coordinates, list(found))
    variables = {name: found[name] for name in ordered}
    flat = {name: each.values.reshape(-1, *each.shape[2:]) for name, each in variables.items()}
    shapes = {name: values.shape[1:] for name, values in flat.items()}
    dims = {name: [str(axis) for axis in each.dims[2:]] for name, each in variables.items()}
    coords = {str(name): each.values for name, each in tree["posterior"].coords.items()}
    columns = [np.asarray(values, np.float64).reshape(len(values), -1) for values in flat.values()]
    values = np.concatenate(columns, axis=1)
    weights = np.full(len(values), 1 / max(len(values), 1))
    return Elements(names_of(shapes, Labels(coords=coords, dims=dims)), values, weights, _sizes(shapes), latent)


def names_of(shapes: Mapping[str, tuple[int, ...]], labels: Labels) -> tuple[str, ...]:
    """A name for each number of named arrays: `theta[Choate]` where the model labels the axis, else `theta[0]`.

    >>> names_of({"mu": (), "theta": (2,)}, Labels(coords={"school": ["A", "B"]}, dims={"theta": ["school"]}))
    ('mu', 'theta[A]', 'theta[B]')
    """
    return tuple(each for name, shape in shapes.items() for each in _names_of_one(name, shape, labels))


def _names_of_one(name: str, shape: tuple[int, ...], labels: Labels) -> Iterator[str]:
    axes = [_labels_of_axis(labels, name, place, size) for place, size in enumerate(shape)]
    for index in np.ndindex(shape):
        inside = ", ".join(str(axis[i]) for axis, i in zip(axes, index, strict=True))
        yield f"{name}[{inside}]" if index else name


def _labels_of_axis(labels: Labels, name: str, place: int, size: int) -> Sequence[Any]:
    dims = labels.dims.get(name, ())
    found = labels.coords.get(dims[place]) if place < len(dims) else None
    if found is None or len(found) != size or len(set(map(str, found))) < size:  # names must tell elements apart
        return range(size)
    return found


def choose(
    elements: Elements, most: int, variables: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> list[int]:
    """The columns to show: those asked for by variable or by name, or the first few of each latent variable.

    Columns that do not vary are not among the latter.
    """
    names, starts = tuple(names or elements.names), np.cumsum([0, *(size for _, size in elements.variables)])
    ranges = {name: range(a, a + size) for (name, size), a in zip(elements.variables, starts.tolist(), strict=False)}
    if variables:
        known = {**{name: [i] for i, name in enumerate(names)}, **ranges}
        if unknown := [name for name in variables if name not in known]:
            raise fail("variables", f"among {', '.join(list(ranges)[:8])}, ...", unknown[0], "See fit.summary().")
        return [i for name in variables for i in known[name]][:most]
    varies = np.ptp(elements.values, axis=0) > 0
    latent = [[i for i in each if varies[i]] for each in list(ranges.values())[: elements.latent or None]]
    latent = [each for each in latent if each]
    few = 1
    while sum(len(each[:few]) for each in latent) < min(most, sum(map(len, latent))):
        few += 1
    return sorted([i for k in range(few) for each in latent for i in each[k : k + 1]][:most])


def _in_order(coordinates: tuple[str, ...], names: list[str]) -> tuple[list[str], int]:
    """The variables that the coordinates are of, in their order; then those that are computed from them.

    And how many the first are. PyMC's coordinates are named as the variable and its transform, `tau_log__`.
    """
    latent: dict[str, None] = {}
    known = set(names)
    for each in coordinates:
        base = re.sub(r"\[.*$", "", each)
        candidates = each, base, re.sub(r"_[a-z0-9-]+__$", "", base)
        latent |= dict.fromkeys([name for name in candidates if name in known][:1])
    return [*latent, *(name for name in names if name not in latent)], len(latent)


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    return tuple((name, int(np.prod(shape))) for name, shape in shapes.items())


@compiled  # one program for all that is made of a target
def _constrain_all(constrain: Callable, z: Any) -> Mapping[str, Any]:
    return jax.vmap(constrain)(z)


def _blocks(target: Target, z: np.ndarray) -> Iterator[tuple[slice, Mapping[str, Any]]]:
    """Some draws at a time in the target's own variables, all blocks of one size: one program serves them."""
    rows = min(len(z), max(_LEAST_ROWS, _BLOCK // target.width))
    for start in range(0, len(z), rows):
        here = slice(start, min(start + rows, len(z)))
        block = z[here]
        padded = np.concatenate([block, np.broadcast_to(block[-1], (rows - len(block), block.shape[1]))])
        yield here, _constrain_all(target.constrain, padded)


def _normalised(log_weights: np.ndarray) -> np.ndarray | None:
    top = np.max(log_weights)
    if not np.isfinite(top):
        return None
    weights = np.exp(log_weights - top)
    return weights / np.sum(weights)
