"""Where a fit begins in many dimensions: along a climb by gradients, with scales from scores around the points passed.

The mode itself is often the wrong place: with hierarchical models log p has a narrow peak that holds no mass. So a
mean-field fit takes a few steps from some points on the way up, and what its bound promises is compared. At the best of
them the directions in which the density is wider or narrower than the diagonal says are found by Lanczos' method, a
block of vectors at a time. No d × d array anywhere.
"""

from typing import Any, NamedTuple

import numpy as np

from bures.estimator import Stein
from bures.family.approximation import AbstractApproximation
from bures.family.families import MeanField
from bures.family.gaussian import Gaussian
from bures.family.low_rank import LowRankGaussian
from bures.family.low_rank_moves import worth
from bures.geometry import Whitened
from bures.integrable import refuse_improper
from bures.loop import Method, State, take_step
from bures.objective import ELBO
from bures.search import Budget, Evaluate, Summit, ascend
from bures.smoothed import climb_smoothed
from bures.start import EVEN, Start, first_point
from bures.start_in_rounds import (
    DRAWS,
    LEAST_PRECISION,
    WIDEST,
    climb_in_rounds,
    curvature_cost,
    find_best,
    start_from,
    with_all_curvature,
)
from bures.target import Target
from bures.threads import one_blas_thread

_EVALUATIONS = 250  # of the climb
_ARRIVED = 0.01  # nats that its next step promises, where it ends: what a mode may be off by
_PLACES = 6  # on the way up that are compared, further and further apart
_WIDTHS = (0.1, 0.3, 1.0)  # standard deviations to look at for curvature, one after the other
_FIRST_SCALE = 1e-3
_LOOK = 13  # draws of each width: one block of the evaluator
_FIRST = Method(ELBO(), Stein(M=_LOOK), Whitened())  # of the first steps
_STEPS = Method(ELBO(), Stein(M=DRAWS), Whitened())
_FIRST_STEPS, _MORE_STEPS = 8, 10  # from every place, and from those that are ahead or promise most
_SETTLING = 6  # from where a climb of the bound has ended
_RISING = 50.0  # nats that as many steps promise where it is worth more of them
_AHEAD = (0, 5, 10)  # steps for which a rise of the bound may go on: far below, it is fastest, and misleads
_BLOCK, _BLOCKS = 24, 4  # vectors of a block of Lanczos' method, and blocks
_MOST_COLUMNS = 48
_DIRECTIONS = 2 * _BLOCK * _BLOCKS + (2 + len(WIDEST)) * DRAWS  # evaluations to find some, and to choose
_WORTH = 0.01  # nats, of a direction that is taken along
_HOPELESS = 1e3  # relative fall of the bound below the highest
_BESIDE = 0.5  # standard deviations, to break a symmetry
_ERRORS = 2.0  # by which one must be ahead of another to be surely so
_CHECKED_DIM = 700  # up to which a density that cannot be normalised is looked for


class _Place(NamedTuple):
    """A diagonal Gaussian on its way, and the bounds that its draws have seen."""

    state: State
    bounds: tuple[float, ...] = ()

    def promise(self, ahead: int) -> float:
        """The bound if it goes on to rise as it did for so many steps: places further down may be better in the end.

        Two steps at a time are averaged, against noise.
        """
        now, before = np.mean(self.bounds[-2:]), np.mean(self.bounds[-5:-3])
        return _or_lowest(now + ahead * max(now - before, 0.0) / 3)


def find_start_in_factors(
    rng: np.random.Generator,
    target: Target,
    evaluator: Budget,
    searched: Start | None = None,
    dense: bool = False,
) -> Start:
    """The best of some diagonal Gaussians on the way from the target's initial point up.

    What a search for modes has found takes part, and is returned if it is ahead as it is; at once if its log weights
    are even already. With `dense` a climb of the mean-field bound comes first, and is all if it arrives, with those in
    coordinates of the curvature that follow; and all of the curvature is looked at, d × d numbers, instead of a few
    directions, so that the start says what a low-rank Gaussian would leave out.
    """
    if searched is not None and searched.variance < EVEN:
        return searched
    with np.errstate(all="ignore"), one_blas_thread():
        point = first_point(rng, target, evaluator)
        found = _begin_smoothed(rng, target, evaluator, point, searched) if dense else None
        if found is not None:
            return found if searched is None else found._replace(modes=searched.modes, scale=searched.scale)
        whole, evaluator = evaluator, evaluator.keeping(curvature_cost(target.dim) if dense else _DIRECTIONS)
        ways, top = _climb(evaluator.value_and_score, point)
        places = [_Place(_begin(rng, evaluator, way)) for way in ways]
        if top is not None and target.dim <= _CHECKED_DIM and searched is None:
            _refuse_improper(rng, target, evaluator, top, places[-1].state.approximation.scale, point)
        if searched is not None:
            places.append(_Place(_state(MeanField().of(searched.approximation))))
        i, best = _race(rng, evaluator, places)
        won = searched if i == len(places) - 1 else None
        if won is not None and _bound(rng, evaluator, won.approximation) > best.promise(0):
            return won
        if len(ways) < _PLACES and evaluator.left >= _MORE_STEPS * DRAWS:
            best = _from_beside(rng, evaluator, best)
        q = best.state.approximation
        assert isinstance(q, LowRankGaussian)
        if dense:
            found = start_from(rng, whole, with_all_curvature(rng, whole, _as_full(q)))
        else:
            found = _with_directions(rng, whole, q)
    return found if searched is None else found._replace(modes=searched.modes, scale=searched.scale)


def _begin_smoothed(
    rng: np.random.Generator, target: Target, evaluator: Budget, point: np.ndarray, searched: Start | None
) -> Start | None:
    """All of the curvature where climbs from the end of that of the mean-field bound have ended.

    Or what was searched, if that is ahead. None if it has not arrived, or fresh draws see no finite bound there.
    """
    smoothed = climb_smoothed(rng, evaluator, point)
    if smoothed is None or not smoothed.arrived:
        return None
    q = smoothed.approximation
    if searched is None:
        summit = Summit(q.mean, float(evaluator.value(q.mean[None])[0]), np.zeros((0, 0)), np.ones(q.dim), 0.0, 0)
        _refuse_improper(rng, target, evaluator, summit, q.scale, point)
    best = _follow(rng, evaluator, _Place(_state(q)), _SETTLING)  # fresh draws: those of the climb are not independent
    if not np.isfinite(best.promise(0)):
        return None
    settled = best.state.approximation
    assert isinstance(settled, LowRankGaussian)
    curved = climb_in_rounds(rng, evaluator, _as_full(settled))
    here = _bound(rng, evaluator, curved.approximation)
    if searched is not None and _bound(rng, evaluator, searched.approximation) > here:
        return searched
    return start_from(rng, evaluator, curved)


def _as_full(q: LowRankGaussian) -> Gaussian:
    """A diagonal Gaussian as a full one."""
    return Gaussian.unchecked(q.mean, np.diag(q.scale))


def _or_lowest(bound: Any) -> float:
    """Minus infinity for what is not a number."""
    return float(bound) if np.isfinite(bound) else -np.inf


def _race(rng: np.random.Generator, evaluator: Budget, places: list[_Place]) -> tuple[int, _Place]:
    """The place where a mean-field fit ends best, as far as some steps tell, and its number.

    Those that are ahead, or promise most, go on; and go on again if what is ahead is not what promises most. The best
    goes on while it still rises fast, as far as there are evaluations for it.
    """
    count = min(_FIRST_STEPS, max(1, evaluator.left // (len(places) * _LOOK)))
    racing = {i: _follow(rng, evaluator, place, count, _FIRST) for i, place in enumerate(places)}
    highest = max(place.promise(0) for place in racing.values())
    # Bounds that are as low as this jump about: what they promise is noise.
    racing = {i: place for i, place in racing.items() if place.promise(0) >= highest - _HOPELESS * (1 + abs(highest))}
    for again, horizons in enumerate((_AHEAD, _AHEAD[::2])):
        first = sorted({max(racing, key=lambda i: racing[i].promise(ahead)) for ahead in horizons})
        first = first[: evaluator.left // (_MORE_STEPS * DRAWS)]  # those further down have further to go
        if not first or (again and len(first) == 1):
            break
        racing = {i: _follow(rng, evaluator, racing[i], _MORE_STEPS) for i in first}
    best = max(racing, key=lambda i: racing[i].promise(_AHEAD[1]))
    place = racing[best]
    while place.promise(_MORE_STEPS) - place.promise(0) > _RISING and evaluator.left >= _MORE_STEPS * DRAWS:
        place = _follow(rng, evaluator, place, _MORE_STEPS)
    return best, place


def _from_beside(rng: np.random.Generator, evaluator: Budget, place: _Place) -> _Place:
    """The same after more steps from beside it, if that is not surely worse.

    A climb of few steps may have begun and ended at a point of symmetry, as neural networks have them, where slopes
    vanish and steps would see nothing but noise for long.
    """
    q = place.state.approximation
    assert isinstance(q, LowRankGaussian)
    moved = q.replaced(mean=q.mean + _BESIDE * q.scale * rng.standard_normal(q.dim))
    other = _follow(rng, evaluator, _Place(_state(moved)), _MORE_STEPS)
    noise = np.std(place.bounds[-_MORE_STEPS:])
    return other if other.promise(0) > place.promise(0) - _ERRORS * noise else place


def _climb(evaluate: Evaluate, point: np.ndarray) -> tuple[list[np.ndarray], Summit | None]:
    """Points on the way up, the first and the last among them."""
    passed: list[tuple[np.ndarray, float]] = []

    def watched(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = evaluate(z)
        best = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
        if np.isfinite(values[best]) and (not passed or values[best] > passed[-1][1]):
            passed.append((np.array(z[best], np.float64), float(values[best])))
        return values, scores

    top = ascend(watched, point, evaluations=_EVALUATIONS, arrived=_ARRIVED)
    if top is None:
        return [point], None
    chosen = sorted({round(i) for i in np.geomspace(1, len(passed), _PLACES)})
    summit = Summit(top.point, top.value, np.zeros((0, 0)), np.ones(point.size), top.gain(), 0)
    return [passed[i - 1][0] for i in chosen], summit


def _begin(rng: np.random.Generator, evaluator: Budget, point: np.ndarray) -> State:
    """The diagonal Gaussian with the curvature around a point: first very near, then as far as that says.

    Not at once: far away along the logarithm of a scale, scores of all other coordinates may be huge.
    """
    scale = np.full(point.size, _FIRST_SCALE)
    for width in _WIDTHS:
        noise = width * rng.standard_normal((_LOOK, point.size))
        scores = np.asarray(evaluator.value_and_score(point + scale * noise)[1], np.float64)
        scale = scale / np.sqrt(_curvature(noise, scale * np.where(np.isfinite(scores), scores, 0)))
    return _state(LowRankGaussian.unchecked(point, scale, np.zeros((point.size, 0)), np.zeros(0), False))


def _bound(rng: np.random.Generator, evaluator: Budget, q: AbstractApproximation) -> float:
    noise = rng.standard_normal((DRAWS, q.dim))
    return _or_lowest(np.mean(np.asarray(evaluator.value(q.push(noise)), np.float64) - q.log_prob_of_noise(noise)))


def _state(q: LowRankGaussian) -> State:
    return State(q, _STEPS.geometry.init(q))


def _curvature(noise: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """How scores fall with each coordinate, by least squares, and no less than two errors of it."""
    centred, total = scores - scores.mean(axis=0), np.sum(noise**2, axis=0)
    slope = -np.sum(centred * noise, axis=0) / total
    left = centred + slope * noise
    error = np.sqrt(np.mean(left**2, axis=0) / total)
    return np.clip(np.maximum(slope, 2 * error), 1e-8, 1e8)


def _follow(rng: np.random.Generator, evaluator: Budget, place: _Place, count: int, method: Any = _STEPS) -> _Place:
    """Where some steps of a mean-field fit lead from a place: which one is best shows only then."""
    state, bounds = place
    for _ in range(count):
        state, info = take_step(rng, state, evaluator, method)
        bounds = (*bounds, float(info.bound))
    return _Place(state, bounds)


def _with_directions(rng: np.random.Generator, evaluator: Budget, q: LowRankGaussian) -> Start:
    """The diagonal Gaussian with a few directions."""
    basis, variances = _directions(rng, evaluator, q)
    members = [q.replaced(basis=basis, variances=np.minimum(variances, widest)) for widest in WIDEST]
    return Start(_best(rng, evaluator, [q, *members]))


def _best(rng: np.random.Generator, evaluator: Budget, members: list[Any]) -> Any:
    """The member with the highest bound; the first, if that one may be much worse. All see the same noise."""
    noise = rng.standard_normal((DRAWS, members[0].dim))
    values = [evaluator.value(q.push(noise)) - q.log_prob_of_noise(noise) for q in members]
    return members[find_best(np.array(values, np.float64))]


def _directions(rng: np.random.Generator, evaluator: Budget, q: LowRankGaussian) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal directions, where the scales are one, that are worth most, and the variances along them."""
    dim = q.dim
    block = min(_BLOCK, dim // (2 * _BLOCKS))
    empty = np.zeros((dim, 0)), np.zeros(0)
    if block == 0:
        return empty
    vectors, images = np.zeros((dim, 0)), np.zeros((dim, 0))
    next_block = rng.standard_normal((dim, block))
    for _ in range(_BLOCKS):
        for _ in range(2):  # once is not enough for rounding
            next_block = np.linalg.qr(next_block - vectors @ (vectors.T @ next_block))[0]
        image = _curvature_times(evaluator, q, next_block)
        if not np.all(np.isfinite(image)):
            break
        vectors, images = np.concatenate([vectors, next_block], axis=1), np.concatenate([images, image], axis=1)
        next_block = image
    if not vectors.shape[1]:
        return empty
    inner = vectors.T @ images
    precision, turn = np.linalg.eigh((inner + inner.T) / 2)
    gains = np.where(precision > LEAST_PRECISION, worth(1 / np.maximum(precision, LEAST_PRECISION)), 0)
    best = np.argsort(-gains)[:_MOST_COLUMNS]
    best = best[gains[best] > _WORTH]
    return vectors @ turn[:, best], 1 / precision[best]


def _curvature_times(evaluator: Budget, q: LowRankGaussian, vectors: np.ndarray) -> np.ndarray:
    """−∇²log p times each column, where the scales are one: from scores a standard deviation to both sides."""
    steps = (q.scale[:, None] * vectors).T
    scores = evaluator.value_and_score(np.concatenate([q.mean + steps, q.mean - steps]))[1]
    above, below = np.split(np.asarray(scores, np.float64), 2)
    return (q.scale * (below - above) / 2).T


def _refuse_improper(
    rng: np.random.Generator, target: Target, evaluator: Budget, top: Summit, scale: np.ndarray, point: np.ndarray
) -> None:
    summit = top._replace(axes=np.diag(scale))
    refuse_improper(rng, target, evaluator, summit if summit.is_mode else None, [summit], point)
