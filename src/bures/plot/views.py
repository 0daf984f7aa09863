"""Where to look: the part of an axis that a figure shows."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bures.family import AbstractApproximation, Gaussian
from bures.target import Target

Interval = tuple[float, float]


def plane_views(target: Target, path: Sequence[AbstractApproximation]) -> list[Interval]:
    """The view of each coordinate: the target and the last Gaussian, and as much of the path as leaves room for them.

    Square, for one scale on both axes, unless the coordinates are of different orders of magnitude.
    """
    views = []
    for i in range(2):
        core = [interval_of(path[-1], i, 3)]
        if target.sample is not None:
            exact = np.asarray(target.sample(jax.random.key(0), 2000))[:, i]
            core = [tuple(np.quantile(exact, [0.002, 0.998])), interval_of(path[-1], i, 2.2)]
        elif target.mean is not None and target.covariance is not None:
            core.append(interval_of(Gaussian.from_moments(target.mean, target.covariance), i, 3))
        views.append(widen(hull(core), [interval_of(q, i, 2.2) for q in path], reach=1))
    lengths = [high - low for low, high in views]
    if max(lengths) > 3 * min(lengths):
        return views
    margins = [(max(lengths) - length) / 2 for length in lengths]
    return [(low - margin, high + margin) for (low, high), margin in zip(views, margins, strict=True)]


def interval_of(q: Any, i: int, radius: float) -> Interval:
    mean, deviation = float(q.mean[i]), float(q.standard_deviations[i])
    return mean - radius * deviation, mean + radius * deviation


def hull(intervals: Sequence[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def widen(core: Interval, others: Sequence[Interval], reach: float) -> Interval:
    """The interval that holds the core, and the others up to `reach` times its length away."""
    low, high = hull([core, *others])
    room = reach * (core[1] - core[0])
    return float(max(low, core[0] - room)), float(min(high, core[1] + room))


def bulk(values: np.ndarray) -> Interval:
    """From the highest value to a few times the bulk's spread below the bulk, or to the lowest if that is nearer."""
    finite = values[np.isfinite(values)]
    quartile, high = np.quantile(finite, 0.25), np.max(finite)
    spread = max(high - quartile, 1e-4 * max(1.0, abs(high)))
    return max(np.min(finite), quartile - 3 * spread) - 0.1 * spread, high + 0.1 * spread
