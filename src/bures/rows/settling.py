"""From the start on a part of the rows to one near the optimum of all: Newton's method, with few passes."""

import math
from typing import Any

import equinox as eqx
import numpy as np

from bures import linalg
from bures.family import AbstractFamily, Gaussian
from bures.rows.subsampled import SECOND_ORDER_DIM, SubsampledEvaluator, inverse_root
from bures.start import Mode, Start, View

_PASSES = 3  # anchors of a start, at the most
_NEAR = 0.5  # distance of a mode from its anchor, over that of draws, from which the anchor stays
_NEWTON, _HALVINGS = 8, 5
_ARRIVED = 1e-3  # nats that Newton's next step promises
_DRAWS = 64  # by which starts are compared
_SAME = math.log(100)  # nats within which another mode of a part of the rows is worth a word


def settle(evaluator: SubsampledEvaluator, start: Start, family: AbstractFamily, rng: np.random.Generator) -> Start:
    """The start of a fit to all rows, from one to a part of them: near the mode, with the curvature there.

    First on all rows that are held, then with an anchor, which is moved until the mode is near it. Whatever has the
    higher bound is returned: that Gaussian, or the start's own moved there.
    """
    point = np.asarray(start.approximation.mean, np.float64)
    if evaluator.dim > SECOND_ORDER_DIM:
        evaluator.anchor_at(point)
        return start._replace(modes=(), scale=None)
    point, root = climb(evaluator, point)
    for _ in range(_PASSES):
        evaluator.anchor_at(point)
        there, found = climb(evaluator, point)
        if found is None:
            break
        distance = np.linalg.norm(np.linalg.solve(found, there - point))
        point, root = there, found
        if distance < _NEAR * math.sqrt(point.size):
            break
    found, bound = _best(evaluator, start, point, root, family, rng)
    return found._replace(modes=_others(evaluator, start, bound))


def _others(evaluator: SubsampledEvaluator, start: Start, bound: float) -> tuple[Mode, ...]:
    """The other modes that a part of the rows shows, as heavy beside the one that is followed as they are there.

    All their masses are moved by what that one's changed by with all rows: a guess, but the judgement is not to call a
    fit of one mode among several one of the whole.
    """
    if not start.modes:
        return ()
    own = min(start.modes, key=lambda mode: float(np.sum(mode.gaussian.whiten(start.approximation.mean[None]) ** 2)))
    others = [mode for mode in start.modes if mode is not own and mode.log_mass > own.log_mass - _SAME]
    if others:
        evaluator.use.note += f"The start saw {1 + len(others)} modes on a part of the rows: this fit is of one. "
    shift = bound - own.log_mass
    return tuple(mode._replace(view=_shifted(mode.view, shift)) for mode in others)


def _shifted(view: View, shift: float) -> View:
    values, weights = view.values + shift, view.log_weights + shift
    return view._replace(values=values, log_weights=weights, log_mass=view.log_mass + shift)


def climb(evaluator: SubsampledEvaluator, point: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The mode uphill of a point by the rows that are held, and a root of the inverse curvature; None if there is none.

    Newton's method; a step that does not rise is halved.
    """
    value, score, hessian = evaluator.on_reservoir(point)
    for _ in range(_NEWTON):
        root = inverse_root(-hessian)
        if root is None or not np.all(np.isfinite(score)):
            return point, None
        step = root @ (root.T @ score)
        promised = float(score @ step) / 2
        if promised < _ARRIVED:
            return point + step, root
        for _ in range(_HALVINGS):
            there = evaluator.on_reservoir(point + step)
            if there[0] > value:
                break
            step = step / 2
        else:
            return point, root
        point, (value, score, hessian) = point + step, there
    return point, inverse_root(-hessian)


def _best(
    evaluator: SubsampledEvaluator,
    start: Start,
    point: np.ndarray,
    root: np.ndarray | None,
    family: AbstractFamily,
    rng: np.random.Generator,
) -> tuple[Start, float]:
    """The candidate with the higher bound, all seeing the same noise, the variance of its log weights, its bound."""
    q = start.approximation
    candidates: list[Any] = [eqx.tree_at(lambda each: each.mean, q, np.asarray(point, q.mean.dtype))]
    if root is not None:
        candidates.insert(0, family.of(Gaussian.unchecked(point, linalg.cholesky_of_square(root))))
    seed = int(rng.integers(2**63))
    seen = [_log_weights(evaluator, each, np.random.default_rng(seed)) for each in candidates]
    means = [float(np.mean(each)) if np.all(np.isfinite(each)) else -math.inf for each in seen]
    best = int(np.argmax(means))
    variance = float(np.var(seen[best])) if math.isfinite(means[best]) else math.inf
    return Start(candidates[best], variance), means[best]


def _log_weights(evaluator: SubsampledEvaluator, q: Any, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal((_DRAWS // 2, q.noise_dim))
    noise = np.concatenate([noise, -noise])
    return np.asarray(evaluator.look(q.push(noise)), np.float64) - q.log_prob_of_noise(noise)
