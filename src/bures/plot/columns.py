"""What marginals and pairs show: the numbers of a draw, on the scale of the model's own variables.

A column that depends on one coordinate alone, as a positive variable on its logarithm, has its exact density: that of
the coordinate, mapped. The density of any other is that of draws, smoothed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import ndimage

from bures.check import fail
from bures.diagnostics.weighted import draw_points
from bures.family import AbstractApproximation
from bures.family.approximation import in_double
from bures.fitting import Fit
from bures.looking.elements import Elements, choose, constrained, elements_of
from bures.looking.table import weighted_quantiles
from bures.reference import Chains
from bures.target import Target

CORRECTED = "corrected by weights"
_DRAWS = 4000  # of an approximation that has no pool, in the model's variables
_REFERENCE_DRAWS = 100_000  # of a reference that is an approximation, where no model is asked
_RANKED = 60  # draws that show which coordinate a column follows
_GRID, _GRID_NUMBERS = 400, 2**22
_SAME = 2e-3  # of the range of a column, by which a map may be off
_VIEW, _REACH = (0.001, 0.16, 0.5, 0.84, 0.999), 5  # quantiles, and how far to look beside the middle ones
_MOST_LEVELS = 30  # values of a column that is drawn as bars


class Map(NamedTuple):
    """A column as a monotone function of one coordinate, on a grid; None for the coordinate itself."""

    coordinate: int
    z: np.ndarray | None = None
    x: np.ndarray | None = None

    def __call__(self, z: np.ndarray) -> np.ndarray:
        return z if self.z is None or self.x is None else np.interp(z, self.z, self.x)


class Curve(NamedTuple):
    """An approximation in the columns shown."""

    q: AbstractApproximation
    maps: tuple[Map | None, ...]
    draws: np.ndarray | None  # (n, columns); None where all columns are coordinates
    weights: np.ndarray | None = None  # of the draws

    def density(self, i: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """Points of column i between two values, and the density there."""
        found = self.maps[i]
        if found is None:
            assert self.draws is not None
            return smooth_density(self.draws[:, i], self.weights, low, high)
        marginal = self.q.marginal(found.coordinate)
        if found.z is None or found.x is None:
            x = np.linspace(low, high, 300)
            return x, np.exp(np.asarray(marginal.log_density(x[:, None])))
        with np.errstate(all="ignore"):
            slopes = np.abs(np.gradient(found.x, found.z))
            values = np.exp(np.asarray(marginal.log_density(found.z[:, None]))) / slopes
        inside = np.isfinite(values) & (found.x >= low) & (found.x <= high)
        return found.x[inside], values[inside]

    def interval(self, i: int) -> tuple[float, float]:
        """Where nearly all of column i is."""
        found = self.maps[i]
        if found is None or (found.z is not None and self.draws is not None):
            assert self.draws is not None
            return core(self.draws[:, i], self.weights)
        mean = float(self.q.mean[found.coordinate])
        reach = 3.5 * float(self.q.standard_deviations[found.coordinate])
        return mean - reach, mean + reach


class Shown(NamedTuple):
    """All that a comparison shows."""

    names: tuple[str, ...]
    curves: dict[str, Curve]
    reference: np.ndarray | None  # (m, columns)
    weights: np.ndarray | None
    reference_name: str


def compare(
    approximations: Any,
    reference: Any,
    names: Sequence[str] | None,
    reference_name: str | None,
    most: int,
    variables: Sequence[str] | None,
    on_model_scale: bool,
) -> Shown:
    """Approximations by name, and draws to hold them against, in the columns to show."""
    named = approximations if isinstance(approximations, Mapping) else {"approximation": approximations}
    if not named:
        raise fail("approximations", "a fit, a Gaussian or several by name", named, 'For example {"BW": fit}.')
    fits = [each for each in named.values() if isinstance(each, Fit)]
    if on_model_scale and fits:
        return _on_model_scale(named, fits[0], reference, names, reference_name, most, variables)
    return _on_coordinates(named, reference, names, reference_name, most, variables)


# ---- The model's own variables


def _on_model_scale(
    named: Mapping[str, Any],
    first: Fit,
    reference: Any,
    names: Sequence[str] | None,
    reference_name: str | None,
    most: int,
    variables: Sequence[str] | None,
) -> Shown:
    target, elements = first.target, elements_of(first)
    approximations = {name: _approximation(each) for name, each in named.items()}
    _check_sizes([*(q.dim for q in approximations.values()), *_size_of(reference)], target.dim)
    given = _check_names(names, elements.names)
    kept = choose(elements, most, variables, given)
    curves = {}
    for name, each in named.items():
        model = each.target if isinstance(each, Fit) else target
        z, values = _draws_in_variables(each, model)
        if values.shape[1] != len(elements.names):
            raise fail("approximations", "of one model", name, "Compare posteriors of one target.")
        curves[name] = Curve(approximations[name], _maps(model, z, values[:, kept], kept), values[:, kept])
    if len(named) == 1 and reference is not None and reference is not False and elements.weights is not None:
        drawn = elements.values[:, kept]
        curves[CORRECTED] = curves[next(iter(named))]._replace(
            maps=(None,) * len(kept), draws=drawn, weights=elements.weights
        )
    drawn, weights, called = _reference_in_variables(reference, first, elements, kept, len(named) == 1)
    return Shown(tuple(given[i] for i in kept), curves, drawn, weights, reference_name or called)


def _approximation(each: Any) -> AbstractApproximation:
    """In NumPy: nothing is compiled for a figure."""
    return in_double(each.approximation if isinstance(each, Fit) else each)


def _draws_in_variables(given: Fit | AbstractApproximation, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Plain draws in coordinates and in the model's variables."""
    if isinstance(given, Fit):
        values = elements_of(given).values
        pool = given.draws()
        if pool.log_p.size >= len(values):
            return pool.z[: len(values)], values
        given = given.approximation
    z = draw_points(np.random.default_rng(0), given, _DRAWS)
    return z, constrained(target, z, None).values


def _maps(target: Target, z: np.ndarray, values: np.ndarray, kept: Sequence[int]) -> tuple[Map | None, ...]:
    """For each column the coordinate that it is a monotone function of, if there is one."""
    followed = [_followed(z[:_RANKED], column[:_RANKED]) for column in values.T]
    todo = [place for place, i in enumerate(followed) if i is not None]
    if not todo:
        return (None,) * len(followed)
    size = int(np.clip(_GRID_NUMBERS // (target.dim * len(todo)), 50, _GRID))
    points = np.repeat(z[:1], size * len(todo), axis=0).reshape(len(todo), size, target.dim)
    for row, place in enumerate(todo):
        i = followed[place]
        low, high = np.min(z[:, i]), np.max(z[:, i])
        points[row, :, i] = np.linspace(low, high, size)
    flat = constrained(target, points.reshape(-1, target.dim), None).values[:, kept]
    found: list[Map | None] = [None] * len(followed)
    for row, place in enumerate(todo):
        i = followed[place]
        assert i is not None
        x, grid = flat[row * size : (row + 1) * size, place], points[row, :, i].astype(np.float64)
        column, own = values[:, place], np.asarray(z[:, i], np.float64)
        if np.array_equal(column, own):
            found[place] = Map(i)
        elif np.max(np.abs(np.interp(own, grid, x) - column)) <= _SAME * np.ptp(column):
            found[place] = Map(i, grid, x)
    return tuple(found)


def _followed(z: np.ndarray, column: np.ndarray) -> int | None:
    """The coordinate that rises, or falls, with a column."""
    changes = np.diff(z[np.argsort(column, kind="stable")], axis=0)
    with_it = np.all(changes >= 0, axis=0) | np.all(changes <= 0, axis=0)
    return int(np.argmax(with_it)) if with_it.any() and np.ptp(column) > 0 else None


def _reference_in_variables(
    reference: Any, fit: Fit, elements: Elements, kept: Sequence[int], alone: bool
) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """Draws in the columns shown, their weights, and what they are called."""
    if reference is False or (reference is None and not alone):
        return None, None, "reference"
    if reference is None:
        if elements.weights is None:
            return None, None, "reference"
        return elements.values[:, kept], elements.weights, CORRECTED
    return reference_columns(reference, fit, elements)[:, kept], None, "reference"


def reference_columns(reference: Any, fit: Fit, elements: Elements) -> np.ndarray:
    """Draws of a reference in all columns of a fit."""
    if by_name := named_draws(reference):
        return columns_of(by_name, elements)
    if isinstance(reference, AbstractApproximation):
        z = draw_points(np.random.default_rng(1), reference, _DRAWS)
    else:
        z = draws_of(reference)
    return constrained(fit.target, z, None).values


def named_draws(reference: Any) -> dict[str, np.ndarray]:
    """Draws by the names of variables: of a DataTree's posterior, a dataset or a dict of arrays; else none."""
    if hasattr(reference, "children") and "posterior" in reference.children:
        reference = reference["posterior"].dataset
    if hasattr(reference, "data_vars"):
        reference = {str(name): each.values for name, each in reference.data_vars.items()}
    if not isinstance(reference, Mapping):
        return {}
    return {str(name): np.asarray(values, np.float64) for name, values in reference.items()}


def columns_of(by_name: Mapping[str, np.ndarray], elements: Elements) -> np.ndarray:
    """Named draws in the columns of a fit; NaN for what they do not have."""
    known = {name: size for name, size in elements.variables if name in by_name and by_name[name].size % size == 0}
    if not known:
        wanted = ", ".join(name for name, _ in elements.variables[:5])
        raise fail("reference", f"with draws of the model's variables ({wanted})", list(by_name), "Check the names.")
    rows = min(by_name[name].size // size for name, size in known.items())
    parts = [
        by_name[name].reshape(-1, size)[:rows] if name in known else np.full((rows, size), np.nan)
        for name, size in elements.variables
    ]
    return np.concatenate(parts, axis=1)


# ---- Coordinates as they are


def _on_coordinates(
    named: Mapping[str, Any],
    reference: Any,
    names: Sequence[str] | None,
    reference_name: str | None,
    most: int,
    variables: Sequence[str] | None,
) -> Shown:
    approximations = {name: _approximation(each) for name, each in named.items()}
    dim = next(iter(approximations.values())).dim
    _check_sizes([*(q.dim for q in approximations.values()), *_size_of(reference)], dim)
    known = [each.target.names for each in named.values() if isinstance(each, Fit)]
    known += [reference.names] if isinstance(reference, Chains) else []
    given = _check_names(names, tuple(next(iter(known), [f"z[{i}]" for i in range(dim)])))
    kept = [given.index(name) for name in variables] if variables else list(range(min(most, dim)))
    if isinstance(reference, AbstractApproximation):
        # Drawn like any other reference, so that it looks like them.
        drawn = np.asarray(reference.marginal(np.array(kept)).sample(jax.random.key(0), _REFERENCE_DRAWS))
    else:
        drawn = None if reference is None or reference is False else draws_of(reference)[:, kept]
    maps = tuple(Map(i) for i in kept)
    curves = {name: Curve(q, maps, None) for name, q in approximations.items()}
    return Shown(tuple(given[i] for i in kept), curves, drawn, None, reference_name or "reference")


def draws_of(reference: Any) -> np.ndarray:
    """Draws (n, dim) of chains, or given as such."""
    draws = np.asarray(reference.flat if isinstance(reference, Chains) else reference)
    if draws.ndim != 2:
        raise fail("reference", "draws (n, dim), Chains or a Gaussian", draws, "Put one draw in each row.")
    return draws


def _size_of(reference: Any) -> list[int]:
    """The dimension of a reference that is in coordinates."""
    if reference is None or reference is False or named_draws(reference):
        return []
    return [reference.dim if isinstance(reference, AbstractApproximation) else draws_of(reference).shape[1]]


def _check_sizes(sizes: Sequence[int], dim: int) -> None:
    if any(size != dim for size in sizes):
        raise fail("approximations and reference", "of one dimension", sizes, "Compare posteriors of one target.")


def _check_names(names: Sequence[str] | None, own: tuple[str, ...]) -> tuple[str, ...]:
    if names is not None and len(names) != len(own):
        raise fail("names", f"{len(own)} strings", names, "Give one name per coordinate.")
    return tuple(names or own)


# ---- Densities of draws


def smooth_density(
    values: np.ndarray, weights: np.ndarray | None, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """The density of draws between two values, by a histogram smoothed over Silverman's width.

    >>> x, p = smooth_density(np.random.default_rng(0).normal(size=20_000), None, -3.0, 3.0)
    >>> bool(abs(np.max(p) - 0.399) < 0.02)
    True
    """
    finite = np.isfinite(values)
    values, weights = values[finite], None if weights is None else weights[finite]
    counts, edges = np.histogram(values, bins=_GRID, range=(low, high), weights=weights)
    total = values.size if weights is None else np.sum(weights)
    effective = values.size if weights is None else np.sum(weights) ** 2 / np.sum(weights**2)
    spread = min(np.std(values), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.34) or np.std(values)
    width = edges[1] - edges[0]
    smooth = ndimage.gaussian_filter1d(counts.astype(float), max(0.9 * spread * effective**-0.2 / width, 1e-3))
    return (edges[1:] + edges[:-1]) / 2, smooth / (max(total, 1e-300) * width)


def is_discrete(values: np.ndarray) -> bool:
    """Whether a column has whole numbers only, and few of them."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and bool(np.all(finite == np.round(finite))) and np.unique(finite).size <= _MOST_LEVELS


def core(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Where nearly all of a column is: of a long tail only the part near the rest, so that this can be seen."""
    finite = np.isfinite(values)
    shares = np.ones(values.size) if weights is None else weights
    column, shares = values[finite][:, None], shares[finite] / np.sum(shares[finite])
    low, left, middle, right, high = weighted_quantiles(column, shares, _VIEW)[:, 0].tolist()
    return max(low, middle - _REACH * (middle - left)), min(high, middle + _REACH * (right - middle))
