"""Where a fit begins when the user does not say, and the modes that were seen on the way.

Points climb from the target's initial point and from around it, scouts from further away. Each mode is weighed by the
mass that draws from its Gaussian see, and the fit begins at the best of the modes, of wider Gaussians around them, and
of the Gaussian that has the moments of all modes together. All of it runs through the fit's `Evaluator`, within a
number of evaluations that is fixed beforehand: nothing depends on a clock.
"""

import math
from typing import NamedTuple

import numpy as np

from bures import linalg
from bures.engine import Evaluator
from bures.family import AbstractApproximation, Gaussian
from bures.integrable import refuse_improper
from bures.modes import (
    MODES,
    UNSEEN,
    Mode as Mode,
    Seen,
    View as View,
    add_images,
    climb_to_new,
    distinct as distinct,
    gaussian_of as gaussian_of,
    look as look,
    weigh,
)
from bures.search import Budget, Summit, ascend, climb
from bures.survey import survey, unknown_places
from bures.target import Target
from bures.threads import one_blas_thread

# Evaluations of a start and of the search after the fit together, however few the steps take; and what of them is kept
# for that search.
EVALUATIONS, LATER_EVALUATIONS = 4000, 500
SEARCHED_AGAIN_DIM = 250  # dimensions up to which there is one
_FOR_CLIMBS = 2900  # of a start, for the climbs of a bound that follow where the first mode is not nearly all
SEARCHED_DIM = 50  # dimensions up to which a search for modes alone finds the start
EVEN = 10.0  # variance of log weights of a start that needs no other
_MARGIN = 0.1  # nats by which a wide Gaussian must be ahead of a mode's own
_RANDOM_POINTS, _RANDOM_ELEMENTS = 100, 2**24  # to try where the initial point has no density: points, and numbers
_NEWTON_DIM = 250  # up to this dimension Newton's method from the first point on, beyond it quasi-Newton to begin with
_DENSE_CURVATURE_DIM = 700  # up to this dimension, differences of scores give the curvature at a mode
_AROUND, _BEST = 100, (4, 3, 1)  # draws of each width around the initial point, and how many to climb from
_LEAST_ROUNDS = 4  # of a climb that may arrive
_KEPT = 500  # evaluations that climbs leave, to look at what they found
_PLACES = 8  # where scouts may have found something, that are climbed from
_FRUITLESS = 1  # climbs from points that no mode explains, that led to nothing new, before that is given up
_FEW_SCOUTS = 16
_SURVEYED = (0, 300, 1600, 2400)  # points at the most, by dimension; in more dimensions the last
_SURVEYED_SLOWLY = 200  # the same for a target whose largest array at a point has more than so many elements
SLOW = 4096
_REACH = 100.0  # how far scouts start, in standard deviations of the heaviest mode
_UNEVEN_REACH = 3.0  # the same where evaluations far away may take for ever
_LAST_RESORT = 1e9  # nats: what two or three draws see is taken only if there is nothing else


class Start(NamedTuple):
    """A Gaussian to start from, and what was seen on the way."""

    approximation: AbstractApproximation
    variance: float = math.inf  # of the log weights of its draws; infinite where not known
    modes: tuple[Mode, ...] = ()
    scale: Gaussian | None = None  # whose standard deviations the scouts' starts were measured in
    has_images: bool = False  # whether images of all modes were looked for, with evaluations to spare
    left_out: float = math.inf  # nats of correlations that a low-rank Gaussian would not have; infinite where not known


def start_budget(evaluator: Evaluator) -> Budget:
    """What all parts of a start may cost together: all there is where no search follows the fit."""
    return Budget(evaluator, EVALUATIONS - (LATER_EVALUATIONS if evaluator.dim <= SEARCHED_AGAIN_DIM else 0))


def find_start(rng: np.random.Generator, target: Target, budget: Budget) -> Start:
    """The best of a few Gaussians by the mass they see."""
    with np.errstate(all="ignore"), one_blas_thread(target.dim):
        return _Search(rng, target, budget).run()


class _Search:
    """One search: its source of randomness, its target and its budget."""

    def __init__(self, rng: np.random.Generator, target: Target, evaluator: Budget):
        self.rng, self.target, self.evaluator = rng, target, evaluator
        self.dim = target.dim
        self.few = target.uneven  # go easy: evaluations far away may take long

    def run(self) -> Start:
        point = first_point(self.rng, self.target, self.evaluator)
        standard = Gaussian.unchecked(point, np.eye(self.dim))
        whole, self.evaluator = self.evaluator, self.evaluator.keeping(0 if self.dim <= SEARCHED_DIM else _FOR_CLIMBS)
        summits = self.climb_first(point)
        modes = self.weigh(distinct(summits), [])
        if any(mode.variance < EVEN for mode in modes):  # no climbs will follow
            self.evaluator = whole
        # Where a mode's own Gaussian is nearly exact, what it may miss is elsewhere: that is for scouts to find.
        nearly_exact = any(mode.variance < 1 for mode in modes)
        alone = self.few and modes  # nothing far away is looked at where that may take for ever
        around = [] if alone else self.look([(standard, w, 32 if nearly_exact else _AROUND) for w in self.widths])
        ranked = [(view, np.argsort(-view.values)[:count]) for view, count in zip(around, _BEST, strict=False)]
        best = [view.z[i] for view, order in ranked for i in order if np.isfinite(view.values[i])]
        if best and not nearly_exact and not alone:
            more = self.climb_more(np.array(best))
            summits = sorted([*summits, *more], key=lambda summit: not summit.is_mode)
            modes += self.weigh(distinct(summits, [mode.gaussian for mode in modes]), modes)
        first = next((s for s in summits if s.is_mode), None)
        # A mode of whose draws hardly any see mass is no mode to be known, but a better place than nowhere.
        lost = [] if modes or first is None else [(gaussian_of(first), 1.0, 32)]
        lost = [(view, lost[0][0]) for view in self.look(lost)]
        refuse_improper(self.rng, self.target, self.evaluator, first, summits, point)
        modes = sorted(modes, key=lambda mode: -mode.log_mass)
        scale = modes[0].gaussian if modes else standard
        near = np.concatenate([np.zeros((0, self.dim)), *(view.z[:32] for view in around)])
        modes = self.climb_from_scouts(scale, modes, near, 0.4 if nearly_exact else 0.25)
        modes, has_images = self.add_images(sorted(modes, key=lambda mode: -mode.log_mass))
        modes = sorted(modes, key=lambda mode: -mode.log_mass)[:MODES]
        shapes = [gaussian_of(s) for s in summits[:1] if not s.is_mode and np.all(np.isfinite(s.axes))]
        views = [(view, standard, width) for view, width in zip(around, self.widths, strict=False)]
        views += self.look_wider(modes, shapes, 32 if nearly_exact else 64)
        return choose(standard, views, modes, lost)._replace(modes=tuple(modes), scale=scale, has_images=has_images)

    @property
    def widths(self) -> tuple[int, ...]:
        """How much wider than a Gaussian to look, the nearest first."""
        return (1,) if self.few else (1, 3) if self.dim > 50 else (1, 3, 10)

    def climb_first(self, point: np.ndarray) -> list[Summit]:
        """From the initial point; in many dimensions by gradients first, with curvature by differences at the end."""
        evaluate, each = self.evaluator.value_and_score, self.dim + 10
        if self.dim <= _NEWTON_DIM:
            rounds = int(np.clip(0.4 * self.evaluator.limit / each, 3, 25))
            return climb(evaluate, point[None], rounds=rounds, both_sides=False, cautious=self.few)
        found = ascend(evaluate, point, evaluations=self.evaluator.limit // 8)
        if found is None:
            return []
        covariance = found.covariance_times(np.eye(self.dim))
        if self.dim <= _DENSE_CURVATURE_DIM:
            scale = np.diag(np.sqrt(np.maximum(np.abs(np.diagonal(covariance)), 1e-12)))
            rounds = int(np.clip(0.3 * self.evaluator.limit / each, 1, 8))
            return climb(evaluate, found.point[None], axes=scale, rounds=rounds, both_sides=False, cautious=self.few)
        axes = linalg.cholesky((covariance + covariance.T) / 2)
        return [Summit(found.point, found.value, axes, np.ones(self.dim), found.gain(), 0)]

    def climb_more(
        self, points: np.ndarray, axes: np.ndarray | None = None, rounds: int = 15, needed: int = 15
    ) -> list[Summit]:
        """From further points, as many as the evaluations left are enough for, if each needs so many rounds."""
        if self.dim > _NEWTON_DIM:
            return []
        budget, each = self.evaluator.keeping(_KEPT), self.dim + 10
        rounds = min(rounds, budget.left // each)
        if rounds < _LEAST_ROUNDS:
            return []
        points = points[: max(1, budget.left // (min(needed, rounds) * each))]
        found = climb(budget.value_and_score, points, axes=axes, rounds=rounds, both_sides=False, cautious=self.few)
        highest = max(found, key=lambda summit: summit.value, default=None)
        if highest is None or highest.is_mode or not np.all(np.isfinite(highest.axes)):
            return found
        # The highest is worth what was kept, if it has not arrived.
        budget = self.evaluator.keeping(_KEPT // 2)
        rounds = min(2 * _LEAST_ROUNDS, budget.left // each)
        return found + climb(
            budget.value_and_score, highest.point[None], axes=highest.axes, rounds=rounds, both_sides=False
        )

    def climb_from_scouts(self, scale: Gaussian, known: list[Mode], near: np.ndarray, share: float) -> list[Mode]:
        """The known modes, and those that scouts from far, and from near the initial point, lead to.

        A share of the evaluations left is for the first look at all of them.
        """
        few = self.few or self.dim > _NEWTON_DIM
        most = _FEW_SCOUTS if few else _SURVEYED[min(self.dim, 3)] if self.target.width <= SLOW else _SURVEYED_SLOWLY
        count = min(most, int(share * self.evaluator.left))
        climbs = 16 * (self.dim + 10)  # evaluations: two short ones
        more = min(most, self.evaluator.left - _KEPT - climbs) - count
        reach = _UNEVEN_REACH if self.few else _REACH
        masses = [(mode.gaussian, mode.log_mass) for mode in known]
        found = survey(self.rng, self.evaluator, scale, masses, count=count, reach=reach, also=near, more=more)
        tops = [(mode.gaussian, mode.height) for mode in known]
        places = unknown_places(self.evaluator, found.ends, found.values, tops, scale, _PLACES)
        summits = self.climb_more(places, np.asarray(scale.chol), 8, _LEAST_ROUNDS)
        modes = known + self.weigh(distinct(summits, [mode.gaussian for mode in known]), known)
        if few or len(modes) < 2:
            return modes
        # Where there are several modes, there may be more.
        return climb_to_new(self.rng, self.evaluator.keeping(_KEPT), Seen(*found.strange), modes, _FRUITLESS)

    def add_images(self, modes: list[Mode]) -> tuple[list[Mode], bool]:
        """The modes, and their images where signs or labels are free; not where evaluations may take long."""
        if self.few or self.target.width > SLOW:
            return modes, False
        return add_images(self.rng, self.evaluator.keeping(_KEPT // 2), modes)

    def weigh(self, peaks: list[Summit], known: list[Mode]) -> list[Mode]:
        """The mass around each summit, where more than two or three draws see it."""
        return weigh(self.rng, self.evaluator, peaks, known, 32 if self.few else 64)

    def look_wider(self, modes: list[Mode], shapes: list[Gaussian], draws: int) -> list[tuple[View, Gaussian, int]]:
        """Views of the two heaviest modes made wider, of all modes together, and of places that are no modes."""
        wanted = [(mode.gaussian, width) for mode in modes[:2] for width in self.widths[1:]]
        wanted += [(gaussian, width) for gaussian in shapes for width in self.widths]
        if len(modes) > 1:
            wanted += [(_together(modes), width) for width in self.widths[:2]]
        wanted = wanted[: max(0, self.evaluator.left // draws)]
        views = self.look([(gaussian, width, draws) for gaussian, width in wanted])
        return [(view, *each) for view, each in zip(views, wanted, strict=True)]

    def look(self, wanted: list[tuple[Gaussian, float, int]]) -> list[View]:
        return look(self.rng, self.evaluator, [(q, width, 32 if self.few else n) for q, width, n in wanted])


def choose(
    standard: Gaussian,
    views: list[tuple[View, Gaussian, int]],
    modes: list[Mode],
    lost: list[tuple[View, Gaussian]],
) -> Start:
    """The candidate that surely sees most: what is wide, and often seen by few draws, must be clearly ahead."""
    candidates = [(mode.log_mass - 2 * mode.view.error, Start(mode.gaussian, mode.variance)) for mode in modes]
    candidates += [(_surely(view), Start(gaussian)) for view, gaussian in lost]
    for view, gaussian, width in views:
        if width == 1:
            seen = view.log_mass - 2 * view.error - (_LAST_RESORT if view.error > UNSEEN else 0)
            candidates.append((seen, Start(gaussian, float(np.var(view.log_weights)))))
        else:
            candidates.append((_surely(view) - _MARGIN, Start(_moments(view, gaussian, width))))
    candidates.append((-1e300, Start(standard)))
    return max(candidates, key=lambda pair: pair[0] if np.isfinite(pair[0]) else -math.inf)[1]


def _surely(view: View) -> float:
    """The log mass that a view has seen for sure."""
    return view.log_mass + math.log(max(1 - 2 * view.error, 1e-300))


def first_point(rng: np.random.Generator, target: Target, evaluator: Budget | Evaluator) -> np.ndarray:
    """The first of the target's initial points, or else of some random ones, that has a finite density."""
    points = np.asarray(target.start_on_host(), np.float64)[None]
    offered = getattr(target.log_density, "initial_candidates", None)
    if offered is not None:
        points = np.concatenate([points, np.asarray(offered(), np.float64).reshape(-1, target.dim)])
    count = int(np.clip(_RANDOM_ELEMENTS // target.dim, 1, _RANDOM_POINTS))
    for tried in (points[:1], points[1:], rng.uniform(-2, 2, (count, target.dim))):
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
