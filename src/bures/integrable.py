"""Is the density integrable? A direction along which it stays level says no, and names the variables to look at."""

from collections.abc import Iterator, Sequence

import numpy as np

from bures.engine import Evaluator
from bures.search import Budget, Summit
from bures.target import Target

_POINTS = 5
_NEAR, _FAR = 1e4, 1e8  # standard deviations along the direction; 1 where there is no curvature to tell them
_FALLEN = 100.0  # nats
_LEVEL = 0.5  # nats; a Gaussian falls by more between the two distances
_SUSPICIOUS = 1e3  # a mode with standard deviations this large, or this much larger than others, is looked at
_FLAT = 1e-6  # of the largest curvature
_LARGEST_DIM = 700  # beyond it the axes of a mode take longer to find than the fit can wait
_DIRECTIONS = 8  # without curvature, where there is no mode
_AXES = 4  # of a mode, the widest, that are tried
_AWAY, _LEAST_FALL = 3.0, 1.0  # standard deviations along an axis, and nats: a Gaussian falls by 4.5


def refuse_improper(
    rng: np.random.Generator,
    target: Target,
    evaluator: Evaluator | Budget,
    mode: Summit | None,
    summits: Sequence[Summit],
    start: np.ndarray,
) -> None:
    """Raise a ValueError if the target cannot be normalised, as far as straight lines can tell.

    If log p at random points stays as it is on the way from 10⁴ to 10⁸ standard deviations along a direction, the same
    holds for a tube around it, and the integral is infinite: a flat direction, a prior that is missing, separated data.
    The directions looked at are those that the search for a mode left without curvature; a target with a clear mode is
    not looked at. A density that grows for ever is left to the fit, which ends as DIVERGED.
    """
    if target.dim > _LARGEST_DIM:
        return
    center, axes, candidates = _landscape(evaluator, mode, summits, start)
    if not candidates:
        return
    around = center + rng.standard_normal((_POINTS, target.dim)) @ axes.T
    ways = list(_both_ways(candidates))
    places = [around, *(around + distance * length * unit for unit, length in ways for distance in (_NEAR, _FAR))]
    values = np.asarray(evaluator.value(np.concatenate(places)), np.float64)
    here, beyond = values[:_POINTS], values[_POINTS:].reshape(-1, 2, _POINTS)
    for (direction, _), (near, far) in zip(ways, beyond, strict=True):
        # What has fallen far already may look level only because its values are rounded.
        if np.all(near > here - _FALLEN) and np.all(np.abs(far - near) < _LEVEL):
            raise ValueError(_message(target.names, direction))


def _landscape(
    evaluator: Evaluator | Budget, mode: Summit | None, summits: Sequence[Summit], start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, float]]]:
    """A centre, axes at most as long as the density is wide around it, and directions of little curvature."""
    if mode is not None:
        vectors, deviations = _principal(mode.axes)
        level = _level_axes(evaluator, mode, vectors, deviations)
        candidates = [(vectors[:, i], max(1.0, float(deviations[i]))) for i in level]
        return mode.point, vectors * np.minimum(deviations, 1), candidates
    if not summits:
        return start, np.eye(start.size), []
    end = summits[0]
    lengths = np.linalg.norm(end.axes, axis=0)
    flat = np.flatnonzero((np.abs(end.curvature) < 0.5) | (lengths**2 >= np.min(lengths) ** 2 / _FLAT))
    axes = end.axes / np.maximum(lengths, 1)
    longest = flat[np.argsort(-lengths[flat])][:_DIRECTIONS]
    return end.point, axes, [(end.point - start, 1.0), *((end.axes[:, i], 1.0) for i in longest)]


def _principal(axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Directions and lengths of the axes of the ellipsoid, the longest first; axes along the coordinates are their own.

    The decomposition takes d³, longer than all else of a start in factors.
    """
    lengths = np.diagonal(axes)
    if np.count_nonzero(axes) > lengths.size:
        vectors, deviations, _ = np.linalg.svd(axes)
        return vectors, deviations
    order = np.argsort(-np.abs(lengths), stable=True)
    return np.eye(lengths.size)[:, order], np.abs(lengths)[order]


def _level_axes(evaluator: Evaluator | Budget, mode: Summit, vectors: np.ndarray, deviations: np.ndarray) -> list[int]:
    """The widest axes of a mode that are wider than is plausible, or along which log p hardly falls to one side."""
    widest = np.arange(min(_AXES, deviations.size))
    steps = _AWAY * (vectors * deviations)[:, widest].T
    values = np.asarray(evaluator.value(np.concatenate([mode.point + steps, mode.point - steps])), np.float64)
    fall = mode.value - np.max(values.reshape(2, -1), axis=0)
    implausible = deviations[widest] > _SUSPICIOUS * min(1.0, max(float(deviations[-1]), 1e-300))
    return [int(i) for i in widest[implausible | (fall < _LEAST_FALL)]]


def _both_ways(candidates: list[tuple[np.ndarray, float]]) -> Iterator[tuple[np.ndarray, float]]:
    for vector, deviation in candidates:
        length = float(np.linalg.norm(vector))
        if np.isfinite(length) and length > 0:
            unit = vector / length
            unit = np.where(np.abs(unit) < 1e-8, 0, unit)  # rounding, which 10⁸ would make visible
            yield unit, deviation
            yield -unit, deviation


def _message(names: tuple[str, ...], direction: np.ndarray) -> str:
    size = np.abs(direction)
    involved = [i for i in np.argsort(-size) if size[i] >= 0.1 * size.max()][:5]
    along = ", ".join(f"{names[i]} ({direction[i]:+.2g})" for i in involved)
    return (
        f"The density cannot be normalised: however far one goes along {along}, it does not fall. "
        f"Give {names[involved[0]]!r} a proper prior, or remove the variable that the data cannot tell from others."
    )
