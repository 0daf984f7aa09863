"""Where a fit begins when the user does not say, and the modes that were seen on the way.

Points climb from the target's initial point and from around it, scouts from further away. Each mode is weighed by the
mass that draws from its Gaussian see, and the fit begins at the best of the modes, of wider Gaussians around them, and
of the Gaussian that has the moments of all modes together. All of it runs through the fit's `Evaluator`, within a
number of evaluations that is fixed beforehand: nothing depends on a clock.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from bures import linalg
from bures.engine import Evaluator
from bures.gaussian import Gaussian
from bures.integrable import refuse_improper
from bures.search import Summit, ascend, climb, scout
from bures.target import Target

EVALUATIONS = 4000  # of a start, its search for modes included, where a few steps do not take more
_STEPS_WORTH = 4  # steps that a start may cost
_MARGIN = 0.1  # nats by which a wide Gaussian must be ahead of a mode's own
_RANDOM_POINTS = 100  # to try where the initial point has no density
_NEWTON_DIM = 250  # up to this dimension Newton's method, beyond it quasi-Newton
_DENSE_CURVATURE_DIM = 700  # up to this dimension, differences of scores give the curvature at a mode
_MODES = 6  # that are kept, the heaviest
_REACH = 100.0  # how far scouts start, in standard deviations of the heaviest mode
_UNEVEN_REACH = 3.0  # the same where evaluations far away may take for ever
_UNSEEN = 0.7  # error of a log mass from which it rests on two or three draws
_SAME = 0.5  # standard deviations between two climbs to one mode


class Mode(NamedTuple):
    """A place where log p is highest around, its Gaussian, and the mass that draws of that see."""

    gaussian: Gaussian
    view: "View"  # of draws from it

    @property
    def log_mass(self) -> float:
        return self.view.log_mass

    @property
    def variance(self) -> float:
        """Of the log weights of the draws."""
        return float(np.var(self.view.log_weights))


class Start(NamedTuple):
    """A Gaussian to start from, and what was seen on the way."""

    approximation: Gaussian
    variance: float = math.inf  # of the log weights of its draws; infinite where not known
    modes: tuple[Mode, ...] = ()
    scale: Gaussian | None = None  # whose standard deviations the scouts' starts were measured in


class View(NamedTuple):
    """Draws of a Gaussian made wider, and the mass they see."""

    z: np.ndarray
    values: np.ndarray  # log p
    log_weights: np.ndarray
    log_mass: float  # −inf where they see nothing
    error: float


def find_start(rng: np.random.Generator, target: Target, evaluator: Evaluator, draws: int) -> Start:
    """The best of a few Gaussians by the mass they see; a step takes `draws` draws."""
    with np.errstate(all="ignore"):
        return _Search(rng, target, evaluator, max(EVALUATIONS, _STEPS_WORTH * draws)).run()


class _Search:
    """One search: its source of randomness, its evaluator and its budget."""

    def __init__(self, rng: np.random.Generator, target: Target, evaluator: Evaluator, limit: int):
        self.rng, self.target, self.evaluator, self.limit = rng, target, evaluator, limit
        self.dim = target.dim
        self.few = target.uneven  # go easy: evaluations far away may take long
        self.began = evaluator.count

    @property
    def left(self) -> int:
        return self.limit - (self.evaluator.count - self.began)

    def run(self) -> Start:
        point = first_point(self.rng, self.target, self.evaluator)
        standard = Gaussian.unchecked(point, np.eye(self.dim))
        around = [self.look(standard, width, 32 if self.few else 64) for width in ((1,) if self.few else (1, 3, 10))]
        around_best = [view.z[np.argmax(view.values)] for view in around[::-1] if np.any(np.isfinite(view.values))]
        summits = self.climb_first(point, around_best)
        peaks = self.distinct([], [s for s in summits if s.is_mode])
        refuse_improper(self.rng, self.target, self.evaluator, peaks[0] if peaks else None, summits, point)
        scale = _gaussian(peaks[0]) if peaks else standard
        peaks = self.distinct(peaks, [s for s in self.climb_from_scouts(scale, peaks, around_best) if s.is_mode])
        modes = self.weigh(peaks)
        shapes = [_gaussian(s) for s in summits[:1] if not s.is_mode and np.all(np.isfinite(s.axes))]
        return self.choose(standard, around, modes, shapes)._replace(scale=scale)

    def climb_first(self, point: np.ndarray, around: list[np.ndarray]) -> list[Summit]:
        """From the initial point, and if that leads to no mode from the best draws around it."""
        if self.dim > _NEWTON_DIM:
            return self.ascend_first(point)
        found = climb(self.evaluator.value_and_score, point[None])
        room = int(0.3 * self.left / (12 * (2 * self.dim + 10)))  # climbs that the evaluations left are enough for
        if not any(summit.is_mode for summit in found) and room and around:
            found += climb(self.evaluator.value_and_score, np.array(around[:room]))
        return sorted(found, key=lambda summit: not summit.is_mode)

    def ascend_first(self, point: np.ndarray) -> list[Summit]:
        """In many dimensions, from the initial point alone; the curvature by differences of scores where that pays."""
        found = ascend(self.evaluator.value_and_score, point, evaluations=self.limit // 4)
        if found is None:
            return []
        if self.dim <= _DENSE_CURVATURE_DIM:
            scale = np.diag(np.sqrt(np.maximum(np.abs(np.diagonal(found.covariance_times(np.eye(self.dim)))), 1e-12)))
            rounds = max(1, min(3, self.left // (3 * self.dim)))
            return climb(self.evaluator.value_and_score, found.point[None], axes=scale, rounds=rounds)
        covariance = found.covariance_times(np.eye(self.dim))
        axes = linalg.cholesky((covariance + covariance.T) / 2)
        return [Summit(found.point, found.value, axes, np.ones(self.dim), found.gain(), 0)]

    def climb_from_scouts(self, scale: Gaussian, known: list[Summit], around: list[np.ndarray]) -> list[Summit]:
        """Summits that scouts from far and the best draws from near lead to, other than the known ones."""
        count = 16 if self.few or self.dim > _NEWTON_DIM else int(np.clip(self.limit // 32, 16, 160))
        reach = _UNEVEN_REACH if self.few else _REACH
        ends, values = scatter(self.rng, self.evaluator, scale, count, reach, also=np.array(around))
        found = unknown_places(self.evaluator, ends, values, [(s.point, s.axes) for s in known], scale)
        if self.dim > _NEWTON_DIM:
            return []
        room = self.left // 2 // (6 * (2 * self.dim + 10))
        return climb(self.evaluator.value_and_score, found[:room], axes=np.asarray(scale.chol), rounds=8)

    def distinct(self, known: list[Summit], more: list[Summit]) -> list[Summit]:
        """The known summits and those further ones that are none of them, the heaviest by their curvature first."""
        kept = list(known)
        for summit in sorted(more, key=_laplace_mass, reverse=True):
            if np.all(np.isfinite(summit.axes)) and all(_distance(other, summit) > _SAME for other in kept):
                kept.append(summit)
        return sorted(kept, key=_laplace_mass, reverse=True)

    def weigh(self, peaks: list[Summit]) -> list[Mode]:
        """The mass around each of the heaviest summits."""
        draws = int(np.clip(self.left // (2 * max(len(peaks), 1)), 16, 32 if self.few else 128))
        found = [weigh(self.rng, self.evaluator, _gaussian(peak), draws) for peak in peaks[:_MODES]]
        seen = [mode for mode in found if mode.view.error < _UNSEEN]
        return sorted(seen or found[:1], key=lambda mode: -mode.log_mass)

    def choose(self, standard: Gaussian, around: list[View], modes: list[Mode], shapes: list[Gaussian]) -> Start:
        """The candidate that surely sees most: what is wide, and often seen by few draws, must be clearly ahead."""
        candidates = [(m.log_mass - 2 * m.view.error, Start(m.gaussian, m.variance)) for m in modes]
        wide = [(view, standard, width) for view, width in zip(around, (1, 3, 10), strict=False)]
        draws = 32 if self.few else 128
        broad = [mode.gaussian for mode in modes[:2]] + ([_together(modes)] if len(modes) > 1 else []) + shapes
        for gaussian in broad:
            for width in (1, 3) if self.few or self.dim > 50 else (1, 3, 10):
                is_mode = any(gaussian is mode.gaussian for mode in modes)
                if self.left > draws and not (is_mode and width == 1):
                    wide.append((self.look(gaussian, width, draws), gaussian, width))
        for view, gaussian, width in wide:
            if width == 1:
                candidates.append((view.log_mass - 2 * view.error, Start(gaussian, float(np.var(view.log_weights)))))
            else:
                sure = view.log_mass + math.log(max(1 - 2 * view.error, 1e-300)) - _MARGIN
                candidates.append((sure, Start(_moments(view, gaussian, width))))
        score, best = max(candidates, key=lambda pair: pair[0] if np.isfinite(pair[0]) else -math.inf)
        best = best if np.isfinite(score) else Start(standard)
        return best._replace(modes=tuple(modes))

    def look(self, gaussian: Gaussian, width: float, draws: int) -> View:
        return look(self.rng, self.evaluator, gaussian, width, draws)


def first_point(rng: np.random.Generator, target: Target, evaluator: Evaluator) -> np.ndarray:
    """The first of the target's initial points, or else of some random ones, that has a finite density."""
    points = np.asarray(target.start(), np.float64)[None]
    offered = getattr(target.log_density, "initial_candidates", None)
    if offered is not None:
        points = np.concatenate([points, np.asarray(offered(), np.float64).reshape(-1, target.dim)])
    for tried in (points[:1], points[1:], rng.uniform(-2, 2, (_RANDOM_POINTS, target.dim))):
        if not len(tried):
            continue
        values, scores = evaluator.value_and_score(tried)
        good = np.flatnonzero(np.isfinite(values) & np.all(np.isfinite(scores), axis=1))
        if good.size:
            return np.array(tried[good[0]], np.float64)
    explain = getattr(target.log_density, "explain", None)
    if explain is None:  # the fit will end as NON_FINITE, with its own remedy
        return points[0]
    raise ValueError(
        f"The log density is not finite at the model's initial point, nor at {_RANDOM_POINTS} random points: "
        f"{explain(points[0])}. Check the data against the support of its distribution, and the priors."
    )


def look(rng: np.random.Generator, evaluator: Evaluator, gaussian: Gaussian, width: float, draws: int) -> View:
    """What draws of a Gaussian made wider see of the target."""
    noise = rng.standard_normal((draws, evaluator.dim))
    z = gaussian.push(width * noise)
    values = np.asarray(evaluator.value(z), np.float64)
    values = np.where(np.isfinite(values), values, -np.inf)
    log_weights = values - gaussian.log_prob_of_noise(noise) + evaluator.dim * math.log(width)
    top = float(np.max(log_weights))
    if not math.isfinite(top):
        return View(z, values, log_weights, -math.inf, 0.0)
    weights = np.exp(log_weights - top)
    error = math.sqrt(max(float(np.sum(weights**2) / np.sum(weights) ** 2) - 1 / draws, 0.0))
    return View(z, values, log_weights, top + math.log(float(np.mean(weights))), error)


def weigh(rng: np.random.Generator, evaluator: Evaluator, gaussian: Gaussian, draws: int) -> Mode:
    """The mass that draws from a mode's Gaussian see."""
    return Mode(gaussian, look(rng, evaluator, gaussian, 1, draws))


def scatter(
    rng: np.random.Generator,
    evaluator: Evaluator,
    scale: Gaussian,
    count: int,
    reach: float,
    also: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Where scouts lead that start up to `reach` standard deviations of a Gaussian away, and log p there.

    `also` are further points to start from.
    """
    distances = np.exp(rng.uniform(0, math.log(reach), (count, 1)))
    starts = distances * rng.standard_normal((count, scale.dim))
    if also is not None and len(also):
        starts = np.concatenate([starts, scale.whiten(also)])
    ends, values = scout(evaluator.value_and_score, scale.mean, scale.chol, starts, rounds=8)
    return scale.push(ends), values


def unknown_places(
    evaluator: Evaluator, ends: np.ndarray, values: np.ndarray, known: list[tuple[Any, Any]], scale: Gaussian
) -> np.ndarray:
    """The ends of scouts, the highest first, that are apart from the known Gaussians and from each other.

    An end is the same hill as another place if log p does not dip on the straight way between them.
    """
    dim = ends.shape[1]
    places: list[np.ndarray] = []
    shapes = [(mean, np.linalg.pinv(axes)) for mean, axes in known]
    inverse = np.linalg.pinv(np.asarray(scale.chol))
    for i in np.argsort(-values):
        if not np.isfinite(values[i]) or len(places) >= _MODES:
            break
        near_known = any(np.linalg.norm(shape @ (ends[i] - mean)) < 3 * _SAME for mean, shape in shapes)
        near_other = any(np.linalg.norm(inverse @ (ends[i] - place)) < _SAME for place in places)
        if near_known or near_other:
            continue
        others = [mean for mean, _ in known] + places
        ways = np.array([ends[i] + share * (other - ends[i]) for other in others for share in _WAY])
        if len(ways):
            found = np.asarray(evaluator.value(ways.reshape(-1, dim)), np.float64).reshape(len(others), -1)
            if np.any(np.all(found > values[i] - 0.1, axis=1)):
                continue
        places.append(ends[i])
    return np.array(places).reshape(-1, dim)


_WAY = np.linspace(0, 1, 9)[1:-1]  # places between two points


def _gaussian(summit: Summit) -> Gaussian:
    return Gaussian.unchecked(summit.point, linalg.cholesky_of_square(summit.axes))


def _laplace_mass(summit: Summit) -> float:
    """log p plus the log volume of the axes: the log mass but for a constant."""
    _, log_volume = np.linalg.slogdet(summit.axes)
    mass = summit.value + float(log_volume)
    return mass if math.isfinite(mass) else -math.inf


def _distance(known: Summit, other: Summit) -> float:
    """Between two summits in standard deviations of the wider one."""
    gap = known.point - other.point
    return min(float(np.linalg.norm(np.linalg.lstsq(s.axes, gap, rcond=None)[0])) for s in (known, other))


def _together(modes: list[Mode]) -> Gaussian:
    """The Gaussian with the moments of the mixture of all modes, by the mass that each sees of its own."""
    mass = np.array([mode.log_mass for mode in modes])
    weights = np.exp(mass - np.max(mass)) if np.any(np.isfinite(mass)) else np.ones(len(modes))
    weights = weights / np.sum(weights)
    means = np.stack([mode.gaussian.mean for mode in modes])
    mean = weights @ means
    parts = [mode.gaussian.chol * math.sqrt(weight) for mode, weight in zip(modes, weights, strict=True)]
    spread = ((means - mean) * np.sqrt(weights)[:, None]).T
    return Gaussian.unchecked(mean, linalg.cholesky_of_square(np.concatenate([*parts, spread], axis=1)))


def _moments(view: View, gaussian: Gaussian, width: float) -> Gaussian:
    """The Gaussian with the weighted moments of the draws, kept from collapsing onto a few of them."""
    weights = np.exp(view.log_weights - np.max(view.log_weights))
    weights = weights / np.sum(weights)
    mean = weights @ view.z
    root = (view.z - mean).T * np.sqrt(weights)
    # With n effective draws the covariance is known to about 1/n of the proposal's.
    floor = width * gaussian.chol * math.sqrt(float(np.sum(weights**2)))
    return Gaussian.unchecked(mean, linalg.cholesky_of_square(np.concatenate([root, floor], axis=1)))
