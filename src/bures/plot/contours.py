"""Parts of figures in the plane: contours of densities, ellipses of approximations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bures.engine import Evaluator
from bures.family import GaussianMixture
from bures.plot.views import Interval
from bures.target import Target

_SHARES = (0.95, 0.8, 0.6, 0.4, 0.2)  # of the probability, inside each contour
_ELLIPSES = (1 - math.exp(-2), 1 - math.exp(-0.5))  # of the probability, inside 2 and 1 standard deviations
_CIRCLE = np.stack([np.cos(angle := np.linspace(0, 2 * np.pi, 200)), np.sin(angle)], axis=1)


def draw_target(ax: Axes, target: Target, views: Sequence[Interval]) -> None:
    """Filled contours of the target's density over the view."""
    x, y = (np.linspace(*view, 150) for view in views)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    values = np.asarray(Evaluator(target).value(points), np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    if np.any(np.isfinite(values)):
        fill_contours(ax, x, y, np.exp(values - np.max(values)).reshape(y.size, x.size))


def fill_contours(ax: Axes, x: np.ndarray, y: np.ndarray, density: np.ndarray) -> None:
    """Regions of highest density that hold given shares of the mass: what a level means does not depend on scale."""
    if not np.any(density > 0):
        return
    levels = np.unique(np.append(mass_levels(density, _SHARES), np.max(density)))
    if levels.size > 1:
        shades = [str(shade) for shade in np.linspace(0.93, 0.6, levels.size - 1)]
        ax.contourf(x, y, density, levels=levels, colors=shades)


def draw_ellipses(
    ax: Axes,
    q: Any,
    i: int = 0,
    j: int = 1,
    *,
    width: float,
    label: str | None = None,
    maps: tuple[Callable, Callable] | None = None,
    **style: Any,
) -> None:
    """Where coordinates i and j are 1 and 2 standard deviations from their mean; of a mixture, for each component.

    With `maps`, on the scales that these lead to.
    """
    pair = q.marginal([i, j])
    parts = pair.components if isinstance(pair, GaussianMixture) else (pair,)
    for part in parts:
        mean, root = np.asarray(part.mean), np.asarray(part.chol)
        for radius in (1, 2):
            x, y = (mean + radius * _CIRCLE @ root.T).T
            if maps is not None:
                x, y = maps[0](x), maps[1](y)
            ax.plot(x, y, label=label if radius == 1 else None, linewidth=width / radius, **style)
        label = None


def draw_outlines(ax: Axes, x: np.ndarray, y: np.ndarray, density: np.ndarray, *, width: float, **style: Any) -> None:
    """Lines around as much of the mass as those ellipses of a Gaussian hold."""
    levels, lines = mass_levels(density, _ELLIPSES), [width / 2, width]
    if levels.size == 2 and levels[0] < levels[1]:
        ax.contour(x, y, density, levels=levels, colors=style["color"], linestyles=style["linestyle"], linewidths=lines)


def mass_levels(density: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """The densities above which given shares of the mass lie."""
    ordered = np.sort(density, axis=None)[::-1]
    mass = np.cumsum(ordered) / np.sum(ordered)
    return ordered[np.minimum(np.searchsorted(mass, shares), ordered.size - 1)]
