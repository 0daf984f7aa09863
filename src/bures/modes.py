"""All modes of a target, as many as a number of evaluations can find.

Points are scattered over the region that holds all that is known, and each is looked at once. A mode that is close to
Gaussian explains the slopes at all points that it rules, however far away: so a few of the unexplained points climb,
the modes that they find explain others, and so on until nothing is left to explain or to spend.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bures.family.gaussian import Gaussian
from bures.search import EXPECTED, Budget, Summit, ascend, climb
from bures.start import Mode, distinct, gaussian_of, look
from bures.survey import spread
from bures.threads import one_blas_thread

_DRAWS = 64  # to weigh a mode
_SCATTERED = 500  # points of the first scatter; each further one is twice as large
_ENOUGH = 3000  # points in a row that led to nothing new, after which a mode that rules 1 in 500 is not likely missed
_SHARE = 0.5  # of the evaluations left, that a scatter may take: the rest is for climbs
_CLIMBS = 4  # at once: few, because what they find explains the next
_ROUNDS = 10  # of a climb
_NEWTON_DIM = 100  # beyond it climbs go by gradients
_ASCENT = 300  # evaluations of a climb by gradients
_WIDER = 1.5  # times the box that holds all that is known
_AROUND = 6.0  # standard deviations of a mode that the box holds
_WAY_HOME = 6  # times without a new mode that climbs are tried, for each point scattered, before the next scatter
_SINGLE_DRAW = 0.7  # error of a log mass from which it rests on two or three draws


class _Seen(NamedTuple):
    """Points that were looked at."""

    z: np.ndarray  # (n, dim)
    values: np.ndarray  # (n,)
    scores: np.ndarray  # (n, dim)

    def chosen(self, which: np.ndarray) -> "_Seen":
        return _Seen(self.z[which], self.values[which], self.scores[which])


def find_modes(
    rng: np.random.Generator,
    budget: Budget,
    known: Sequence[Mode],
    *,
    scale: Gaussian | None = None,
    reach: float = 100.0,
    most: int | None = None,
) -> tuple[Mode, ...]:
    """The known modes and all others that the budget's evaluations find, the heaviest first.

    **Arguments:**

    - `known`: modes that are known already, of `find_start` say; there may be none.
    - `scale`: a Gaussian in whose standard deviations the first points are scattered, by default that of the widest
        mode known, or the standard one.
    - `reach`: how far they are scattered, in those standard deviations.
    - `most`: modes that come back, at the most: the heaviest.

    >>> import bures
    >>> from bures.engine import Evaluator
    >>> target = bures.models.gaussian(2)
    >>> [mode] = find_modes(np.random.default_rng(0), Budget(Evaluator(target), 2000), ())
    >>> bool(np.allclose(mode.gaussian.covariance, target.covariance, atol=1e-3))
    True
    """
    with np.errstate(all="ignore"), one_blas_thread(budget.dim):
        modes = list(known)
        count, in_vain = _SCATTERED, 0
        while budget.left > 2 * _DRAWS + budget.dim and in_vain < _ENOUGH:
            count = min(count, max(1, int(_SHARE * budget.left)))
            before = len(modes)
            seen = _look(budget, scatter(rng, modes, scale, count, budget.dim, reach))
            modes = _climb_to_new(rng, budget, seen, modes)
            in_vain = in_vain + count if len(modes) == before else 0
            count *= 2
    modes.sort(key=lambda mode: -mode.log_mass)
    return tuple(modes[:most])


def scatter(
    rng: np.random.Generator, modes: Sequence[Mode], scale: Gaussian | None, count: int, dim: int, reach: float
) -> np.ndarray:
    """Points all around: by thirds about the widest mode, about each mode, and in the box that holds all modes."""
    if scale is None:
        standard = Gaussian.unchecked(np.zeros(dim), np.eye(dim))
        scale = max((mode.gaussian for mode in modes), key=lambda q: float(q.log_det_root()), default=standard)
    if len(modes) < 2:
        return scale.push(spread(rng, count, dim, reach))
    third = count // 3
    around = np.array_split(spread(rng, third, dim, reach)[rng.permutation(third)], len(modes))
    near = [mode.gaussian.push(u) for mode, u in zip(modes, around, strict=True)]
    means = np.stack([mode.gaussian.mean for mode in modes])
    margin = _AROUND * np.stack([mode.gaussian.standard_deviations for mode in modes])
    low, high = np.min(means - margin, axis=0), np.max(means + margin, axis=0)
    middle, half = (low + high) / 2, _WIDER * (high - low) / 2
    inside = middle + half * rng.uniform(-1, 1, (count - 2 * third, dim))
    return np.concatenate([scale.push(spread(rng, third, dim, reach)), *near, inside])


def _look(budget: Budget, z: np.ndarray) -> _Seen:
    """log p and its slopes, where they are finite."""
    values, scores = (np.asarray(x, np.float64) for x in budget.value_and_score(z))
    return _Seen(z, values, scores).chosen(np.isfinite(values) & np.all(np.isfinite(scores), axis=1))


def _climb_to_new(rng: np.random.Generator, budget: Budget, seen: _Seen, modes: list[Mode]) -> list[Mode]:
    """The modes, and those that unexplained points lead to."""
    for mode in modes:
        seen = seen.chosen(~is_explained(mode.gaussian, seen.z, seen.scores))
    fruitless = 0
    while len(seen.z) and fruitless < _WAY_HOME and budget.left > 2 * _DRAWS:
        chosen = _next(rng, seen)
        found = distinct(_climb(budget.keeping(_DRAWS), seen.z[chosen], modes), [m.gaussian for m in modes], None)
        seen = seen.chosen(np.setdiff1d(np.arange(len(seen.z)), chosen))
        new = weigh(rng, budget, found)
        fruitless = 0 if new else fruitless + 1
        for mode in new:
            seen = seen.chosen(~is_explained(mode.gaussian, seen.z, seen.scores))
        modes = modes + new
    return modes


def is_explained(q: Gaussian, z: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether slopes are about those of a Gaussian."""
    u = q.whiten(z)
    return np.linalg.norm(scores @ q.chol + u, axis=1) < EXPECTED * np.linalg.norm(u, axis=1)


def _next(rng: np.random.Generator, seen: _Seen) -> np.ndarray:
    """Indices of points to climb from: the highest, and some others."""
    others = rng.permutation(len(seen.z))[: _CLIMBS - 1]
    return np.unique(np.append(others, np.argmax(seen.values)))


def _climb(budget: Budget, points: np.ndarray, modes: Sequence[Mode]) -> list[Summit]:
    """Where points lead; curvature is compared at first along the axes of the narrowest mode known."""
    if budget.dim > _NEWTON_DIM:
        climbed = (ascend(budget.value_and_score, z, evaluations=min(_ASCENT, budget.left)) for z in points)
        ends = [ascent for ascent in climbed if ascent is not None]
        summits = [climb(budget.value_and_score, end.point[None], rounds=3, both_sides=False) for end in ends]
        return [summit for found in summits for summit in found]
    narrowest = min((mode.gaussian for mode in modes), key=lambda q: float(q.log_det_root()), default=None)
    axes = None if narrowest is None else np.asarray(narrowest.chol)
    return climb(budget.value_and_score, points, axes=axes, rounds=_ROUNDS, both_sides=False)


def weigh(rng: np.random.Generator, budget: Budget, summits: Sequence[Summit]) -> list[Mode]:
    """The mass around each summit, where more than two or three draws see it."""
    gaussians = [gaussian_of(summit) for summit in summits]
    views = look(rng, budget, [(gaussian, 1, _DRAWS) for gaussian in gaussians])
    modes = [Mode(gaussian, view) for gaussian, view in zip(gaussians, views, strict=True)]
    return [mode for mode in modes if np.isfinite(mode.log_mass) and mode.view.error < _SINGLE_DRAW]
