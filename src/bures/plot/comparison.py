"""Approximations against a reference: marginals and pairs, on the scale of the model's own variables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import ndimage

from bures.check import check_positive_integer
from bures.family import AbstractApproximation
from bures.fitting import Fit
from bures.plot.columns import Curve, Shown, compare, core, is_discrete
from bures.plot.contours import draw_ellipses, draw_outlines, fill_contours
from bures.plot.style import REFERENCE, check_axes, line_styles, new_figure, new_grid, share_legend, styled
from bures.plot.views import Interval, hull, widen

Approximations = Fit | AbstractApproximation | Mapping[str, Fit | AbstractApproximation]


@styled
def marginals(
    approximations: Approximations,
    reference: Any = None,
    names: Sequence[str] | None = None,
    reference_name: str | None = None,
    max_coordinates: int = 16,
    axes: Sequence[Axes] | None = None,
    *,
    variables: Sequence[str] | None = None,
    constrained: bool = True,
) -> list[Axes]:
    """The density of each variable under one approximation, or several by name, over that of a reference.

    Fits are shown on the scale of the model's own variables; with `constrained=False`, and Gaussians alone, on that of
    their coordinates. `variables` says which to show, by the names in `fit.summary()`; by default the first of each.

    `reference` is an array of draws (n, dim) in coordinates, `Chains`, a `Gaussian` of any family; or, by the names of
    the variables, a DataTree or a dict of arrays. By default it is the draws that a single fit was judged by, corrected
    by their importance weights; `False` is for none.
    """
    check_positive_integer("max_coordinates", max_coordinates, "For example 16.")
    shown = compare(approximations, reference, names, reference_name, max_coordinates, variables, constrained)
    count = len(shown.names)
    axes = check_axes(axes, count) or new_grid(count, (2.3, 1.7))
    for i, ax in enumerate(axes):
        _draw_marginal(ax, i, shown)
        ax.set_xlabel(shown.names[i])
    share_legend(axes)
    return axes


@styled
def pairs(
    approximations: Approximations,
    reference: Any = None,
    names: Sequence[str] | None = None,
    reference_name: str | None = None,
    max_coordinates: int = 10,
    figure: Figure | None = None,
    *,
    variables: Sequence[str] | None = None,
    constrained: bool = True,
) -> np.ndarray:
    """Every pair of variables: where each approximation is 1 and 2 standard deviations from its mean, over the contours
    of a reference's draws; marginals on the diagonal. Arguments as in `marginals`.

    Returns the square array of axes, `None` above the diagonal."""
    check_positive_integer("max_coordinates", max_coordinates, "For example 10.")
    shown = compare(approximations, reference, names, reference_name, max_coordinates, variables, constrained)
    count = len(shown.names)
    side = max(1.1 * count, 4)
    figure = figure or new_figure((side, side))
    grid: Any = figure.subplots(count, count, sharex="col", squeeze=False)
    for i, j in np.ndindex(count, count):
        if j > i:
            grid[i, j].remove()
            grid[i, j] = None
        elif i == j:
            _draw_marginal(grid[i, i], i, shown)
        else:
            _draw_pair(grid[i, j], j, i, shown)
    _label_outer(grid, shown.names)
    share_legend([grid[0, 0]], figure)
    return grid


def _draw_marginal(ax: Axes, i: int, shown: Shown) -> None:
    low, high = _view(i, shown)
    first = next(iter(shown.curves.values()))
    bars = first.draws is not None and is_discrete(first.draws[:, i])
    if shown.reference is not None and np.any(np.isfinite(shown.reference[:, i])):
        column = shown.reference[:, i]
        inside = np.isfinite(column) & (column >= low) & (column <= high)
        weights = None if shown.weights is None else shown.weights[inside]
        bins: Any = np.arange(np.floor(low) + 0.5, np.ceil(high) + 0.6) if bars else 40
        ax.hist(column[inside], bins=bins, density=True, color=REFERENCE, label=shown.reference_name, weights=weights)
    for (name, curve), style in zip(shown.curves.items(), line_styles(), strict=False):
        if bars and curve.draws is not None:
            values, places = np.unique(curve.draws[:, i], return_inverse=True)
            shares = np.bincount(places, weights=curve.weights) / (len(places) if curve.weights is None else 1)
            ax.plot(values, shares, "o", markersize=3, label=name, color=style["color"])
        else:
            ax.plot(*curve.density(i, low, high), label=name, **style)
    ax.set(xlim=(low, high), yticks=[])
    ax.set_ylim(bottom=0)
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=4)


def _draw_pair(ax: Axes, i: int, j: int, shown: Shown) -> None:
    views = _view(i, shown), _view(j, shown)
    reference = shown.reference
    if reference is not None and np.all(np.any(np.isfinite(reference[:, [i, j]]), axis=0)):
        fill_contours(ax, *smooth_counts(reference[:, i], reference[:, j], shown.weights, views))
    for curve, style in zip(shown.curves.values(), line_styles(), strict=False):
        _draw_curve(ax, curve, i, j, views, style)
    ax.set(xlim=views[0], ylim=views[1])


def _draw_curve(ax: Axes, curve: Curve, i: int, j: int, views: tuple[Interval, Interval], style: Any) -> None:
    """The ellipses of two coordinates, mapped; of other columns the outlines of draws."""
    first, second = curve.maps[i], curve.maps[j]
    if first is not None and second is not None and first.coordinate != second.coordinate:
        places = first.coordinate, second.coordinate
        draw_ellipses(ax, curve.q, *places, width=1.4, maps=(first, second), **style)
    elif curve.draws is not None:
        draw_outlines(
            ax, *smooth_counts(curve.draws[:, i], curve.draws[:, j], curve.weights, views), width=1.4, **style
        )


def smooth_counts(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None, views: tuple[Interval, Interval]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The middles of 60 × 60 cells and the share of draws in each, smoothed."""
    counts, across, up = np.histogram2d(x, y, bins=60, range=views, weights=weights)
    # Smoothed over a quarter of a standard deviation, which widens the contours by 3% and no more.
    widths = [np.nanstd(y) / (up[1] - up[0]), np.nanstd(x) / (across[1] - across[0])]
    density = ndimage.gaussian_filter(counts.T, [min(width / 4, 15) for width in widths])
    return (across[1:] + across[:-1]) / 2, (up[1:] + up[:-1]) / 2, density


def _view(i: int, shown: Shown) -> Interval:
    intervals = [curve.interval(i) for curve in shown.curves.values()]
    if shown.reference is None or not np.any(np.isfinite(shown.reference[:, i])):
        low, high = hull(intervals)
    else:
        low, high = widen(core(shown.reference[:, i], shown.weights), intervals, reach=0.5)
    margin = 0.5 if low == high else 0.0
    return float(low - margin), float(high + margin)


def _label_outer(grid: np.ndarray, names: Sequence[str]) -> None:
    for i in range(len(grid)):
        grid[-1, i].set_xlabel(names[i])
        grid[-1, i].locator_params(axis="x", nbins=2)
        grid[-1, i].tick_params(axis="x", rotation=45)
        for j in range(i):
            grid[i, j].locator_params(nbins=2)
            grid[i, j].tick_params(labelleft=j == 0)
        if i > 0:
            grid[i, 0].set_ylabel(names[i])
