"""All modes of a target, as many as a number of evaluations can find.

Points are scattered over the region that holds all that is known, and each is looked at once. A mode that is close to
Gaussian explains the slopes at all points that it rules, however far away: so a few of the unexplained points climb,
the modes that they find explain others, and so on until nothing is left to explain or to spend.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bures import linalg
from bures.arrays import norms
from bures.family.gaussian import Gaussian
from bures.images import evaluations_for, exchanges, fourth_corners, is_apart, mirror_image
from bures.search import EXPECTED, Budget, Summit, ascend, climb
from bures.survey import Known, of_known, spread, unknown_places
from bures.threads import one_blas_thread

_DRAWS = 64  # to weigh a mode
_SCATTERED = 500  # points of the first scatter; each further one is twice as large
_ENOUGH = 3000  # points in a row that led to nothing new, after which a mode that rules 1 in 500 is not likely missed
_SHARE = 0.5  # of the evaluations left, that a scatter may take: the rest is for climbs
_IMAGES = 500  # evaluations for images of modes, at the most
_FAR_BELOW = 100.0  # nats below the highest mode, from which nothing is climbed from what looked like an image
_IMAGES_SHARE = 0.3  # of the evaluations, for images of the modes that are known
_CLIMBS = 4  # at once: few, because what they find explains the next
_ROUNDS = 10  # of a climb
_NEWTON_DIM = 100  # beyond it climbs go by gradients
_ASCENT = 300  # evaluations of a climb by gradients
_WIDER = 1.5  # times the box that holds all that is known
_BOX_DIM = 3
_AROUND = 6.0  # standard deviations of a mode that the box holds
_SPANNING, _FLAT = 4, 1e-3  # modes that span a plane, at the most, and its thickness for its width
_IN_PLANE = 100  # points in it, times the square of its dimension, at the most
_WAY_HOME = 6  # climbs in a row that found nothing new, before the next scatter
UNSEEN = 0.7  # error of a log mass from which it rests on two or three draws
MODES = 6  # that are kept where evaluations are few: the heaviest
_CROWD = 100  # modes, from which on no more are looked for: each is compared with all others
_SAME, _SAME_FOR_NARROWER = 0.5, 5.0  # standard deviations between two climbs to one mode


class Mode(NamedTuple):
    """A place where log p is highest around, its Gaussian, and the mass that draws of that see."""

    gaussian: Gaussian
    view: "View"  # of draws from it

    @property
    def log_mass(self) -> float:
        return self.view.log_mass

    @property
    def height(self) -> float:
        """log p at the mode, if it is a Gaussian of this mass."""
        return self.log_mass + float(self.gaussian.log_prob_of_noise(np.zeros((1, self.gaussian.dim)))[0])

    @property
    def variance(self) -> float:
        """Of the log weights of the draws."""
        return float(np.var(self.view.log_weights))


class View(NamedTuple):
    """Draws of a Gaussian made wider, and the mass they see."""

    z: np.ndarray
    values: np.ndarray  # log p
    log_weights: np.ndarray
    log_mass: float  # −inf where they see nothing
    error: float


class Seen(NamedTuple):
    """Points that were looked at."""

    z: np.ndarray  # (n, dim)
    values: np.ndarray  # (n,)
    scores: np.ndarray  # (n, dim)

    def chosen(self, which: np.ndarray) -> "Seen":
        return Seen(self.z[which], self.values[which], self.scores[which])


def find_modes(
    rng: np.random.Generator,
    budget: Budget,
    known: Sequence[Mode],
    *,
    scale: Gaussian | None = None,
    reach: float = 100.0,
    most: int | None = None,
    enough: int = _ENOUGH,
    done: int = 0,
) -> tuple[Mode, ...]:
    """The known modes and all others that the budget's evaluations find, the heaviest first.

    **Arguments:**

    - `known`: modes that are known already, of `find_start` say; there may be none.
    - `scale`: a Gaussian in whose standard deviations the first points are scattered, by default that of the widest
        mode known, or the standard one.
    - `reach`: how far they are scattered, in those standard deviations.
    - `most`: modes that come back, at the most: the heaviest.
    - `enough`: the search ends after so many points in a row that led to nothing new, and with a hundred modes.
    - `done`: of so many of the known modes, the first, images were looked for already.

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
        modes, _ = add_images(rng, budget, modes, int(_IMAGES_SHARE * budget.left), done)
        while budget.left > 2 * _DRAWS + budget.dim and in_vain < enough and len(modes) < _CROWD:
            count = min(count, enough - in_vain, max(1, int(_SHARE * budget.left)))
            before = len(modes)
            seen = _look(budget, scatter(rng, modes, scale, count, budget.dim, reach))
            modes = climb_to_new(rng, budget, seen, modes)
            in_vain = in_vain + count if len(modes) == before else 0
            count *= 2
    modes.sort(key=lambda mode: -mode.log_mass)
    return tuple(modes[:most])


def scatter(
    rng: np.random.Generator, modes: Sequence[Mode], scale: Gaussian | None, count: int, dim: int, reach: float
) -> np.ndarray:
    """Points all around: about the widest mode, about each mode, in the box that holds all modes, and in the plane
    through them.

    Where the widest rules, others are seen last: in more dimensions than boxes can be filled in, it has twice as many.
    Modes that are images of each other, or those of independent parts of a model, lie in a plane of few dimensions that
    some of them span, often with zero: there even narrow ones are not far from a few points.
    """
    if scale is None:
        standard = Gaussian.unchecked(np.zeros(dim), np.eye(dim))
        scale = max((mode.gaussian for mode in modes), key=lambda q: float(q.log_det_root()), default=standard)
    if len(modes) < 2:
        return scale.push(spread(rng, count, dim, reach))
    plane = _plane_of(modes, scale)
    parts = 3 + bool(plane.shape[1]) + (dim > _BOX_DIM)
    each = count // parts
    around = np.array_split(spread(rng, each, dim, reach)[rng.permutation(each)], len(modes))
    near = [mode.gaussian.push(u) for mode, u in zip(modes, around, strict=True)]
    if plane.shape[1]:
        few = min(each, _IN_PLANE * plane.shape[1] ** 2)
        near.append(scale.push(spread(rng, few, plane.shape[1], reach) @ plane.T))
    means = np.stack([mode.gaussian.mean for mode in modes])
    margin = _AROUND * np.stack([mode.gaussian.standard_deviations for mode in modes])
    low, high = np.min(means - margin, axis=0), np.max(means + margin, axis=0)
    middle, half = (low + high) / 2, _WIDER * (high - low) / 2
    inside = middle + half * rng.uniform(-1, 1, (each, dim))
    rest = count - len(inside) - sum(map(len, near))
    return np.concatenate([scale.push(spread(rng, rest, dim, reach)), *near, inside])


def _plane_of(modes: Sequence[Mode], scale: Gaussian) -> np.ndarray:
    """Orthonormal columns, where a Gaussian is standard, of the plane through its middle, the heaviest modes and zero.

    None where that is all of space, or more than a few dimensions.
    """
    heaviest = sorted(modes, key=lambda mode: -mode.log_mass)[:_SPANNING]
    spanning = scale.whiten(np.stack([*(mode.gaussian.mean for mode in heaviest), np.zeros(scale.dim)]))
    vectors, sizes, _ = np.linalg.svd(spanning.T, full_matrices=False)
    columns = vectors[:, sizes > _FLAT * sizes[0]]
    return columns if columns.shape[1] < min(scale.dim, _SPANNING + 1) else columns[:, :0]


def _look(budget: Budget, z: np.ndarray) -> Seen:
    """log p and its slopes, where they are finite."""
    values, scores = (np.asarray(x, np.float64) for x in budget.value_and_score(z))
    return Seen(z, values, scores).chosen(np.isfinite(values) & np.all(np.isfinite(scores), axis=1))


def climb_to_new(
    rng: np.random.Generator, budget: Budget, seen: Seen, modes: list[Mode], most_fruitless: int = _WAY_HOME
) -> list[Mode]:
    """The modes, and those that unexplained points lead to, until so many in a row found nothing new.

    `most_fruitless` counts them in fours. The first four may explain the others; the more were in vain, the more climb
    together.
    """
    seen = _unexplained(seen, modes)
    fruitless = 0
    while len(seen.z) and fruitless < most_fruitless and budget.left > 2 * _DRAWS and len(modes) < _CROWD:
        fours = min(1 + fruitless, most_fruitless - fruitless)
        chosen = _next(rng, seen, fours * _CLIMBS)
        found = distinct(_climb(budget.keeping(_DRAWS), seen.z[chosen], modes), [m.gaussian for m in modes], None)
        seen = seen.chosen(np.setdiff1d(np.arange(len(seen.z)), chosen))
        new = weigh(rng, budget, found, modes)
        fruitless = 0 if new else fruitless + fours
        modes = modes + new
        if new:
            seen = _unexplained(seen, modes)
    return modes


def _unexplained(seen: Seen, modes: Sequence[Mode]) -> Seen:
    """The points whose slopes are not about those of a mode, nor of all modes together."""
    for mode in modes:
        seen = seen.chosen(~is_explained(mode.gaussian, seen.z, seen.scores))
    if len(modes) < 2 or not len(seen.z):
        return seen
    slopes = of_known([(mode.gaussian, mode.log_mass) for mode in modes], seen.z)[1] @ modes[0].gaussian.chol
    error = norms(seen.scores @ modes[0].gaussian.chol - slopes)
    return seen.chosen(~(error < EXPECTED * norms(slopes)))


def add_images(
    rng: np.random.Generator, budget: Budget, modes: Sequence[Mode], most: int = _IMAGES, done: int = 0
) -> tuple[list[Mode], bool]:
    """The modes, and those found at their images, and at the images of these, with at most so many evaluations.

    Those of the first `done` modes were looked for already. Also whether evaluations were enough for a whole look.
    """
    found, budget, is_whole = list(modes), budget.keeping(max(0, budget.left - most)), True
    with np.errstate(all="ignore"):
        for source in itertools.islice(found, done, None):  # which grows
            is_whole &= budget.left >= 2 * _DRAWS + evaluations_for(source.gaussian)
            if budget.left <= 2 * _DRAWS:
                break
            image = mirror_image(budget.keeping(_DRAWS), source.gaussian)
            ends, values = exchanges(budget.keeping(_DRAWS), source.gaussian)
            if image is not None and all(is_apart(mode.gaussian, image.gaussian.mean) for mode in found):
                if image.is_exact:
                    found += weigh_gaussians(rng, budget, [image.gaussian], found)
                ends, values = np.append(ends, image.gaussian.mean[None], axis=0), np.append(values, image.value)
            found += _new_from(rng, budget, ends, values, found, source.gaussian)
        is_whole &= budget.left > 2 * _DRAWS
        if len(found) > max(2, done) and budget.left > 2 * _DRAWS:
            heaviest = sorted(found, key=lambda mode: -mode.log_mass)
            corners = fourth_corners(budget.keeping(_DRAWS), np.stack([mode.gaussian.mean for mode in heaviest]))
            found += _new_from(rng, budget, *corners, found, heaviest[0].gaussian)
    return found, is_whole and budget.left > _DRAWS


def _new_from(
    rng: np.random.Generator, budget: Budget, ends: np.ndarray, values: np.ndarray, modes: Sequence[Mode], q: Gaussian
) -> list[Mode]:
    """The modes that the highest of these places lead to, other than those known."""
    known = [(mode.gaussian, mode.height) for mode in modes]
    high = values > max(height for _, height in known) - _FAR_BELOW
    places = unknown_places(budget, ends[high], values[high], known, q, _CLIMBS)
    summits = _climb(budget.keeping(_DRAWS), places, modes)
    return weigh(rng, budget, distinct(summits, [mode.gaussian for mode in modes], None), modes)


def is_explained(q: Gaussian, z: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether slopes are about those of a Gaussian."""
    u = q.whiten(z)
    return norms(scores @ q.chol + u) < EXPECTED * norms(u)


def _next(rng: np.random.Generator, seen: Seen, count: int) -> np.ndarray:
    """Indices of points to climb from: the highest, and some others."""
    others = rng.permutation(len(seen.z))[: count - 1]
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


def weigh(
    rng: np.random.Generator, budget: Budget, summits: Sequence[Summit], known: Sequence[Mode], draws: int = _DRAWS
) -> list[Mode]:
    """The mass around each summit beside that of known modes, where more than two or three draws see it."""
    gaussians = [gaussian_of(summit) for summit in summits if np.all(np.isfinite(summit.axes))]
    return weigh_gaussians(rng, budget, gaussians, known, draws)


def weigh_gaussians(
    rng: np.random.Generator, budget: Budget, gaussians: Sequence[Gaussian], known: Sequence[Mode], draws: int = _DRAWS
) -> list[Mode]:
    """The same for modes that are known by their Gaussians."""
    modes: list[Mode] = []
    for gaussian, view in zip(gaussians, look(rng, budget, [(q, 1, draws) for q in gaussians]), strict=True):
        view = _beside([(mode.gaussian, mode.log_mass) for mode in (*known, *modes)], view)
        if math.isfinite(view.log_mass) and view.error < UNSEEN:
            modes.append(Mode(gaussian, view))
    return modes


def _beside(known: Known, view: View) -> View:
    """A view with the mass that is not that of known Gaussians: one draw that fell onto another mode says nothing."""
    if not known:
        return view
    explained = of_known(known, view.z)[0] - view.values
    rest = view.log_weights + np.log(-np.expm1(np.minimum(explained, 0)))
    seen = view_of(view.z, view.values, np.where(np.isnan(rest), -np.inf, rest))
    return view._replace(log_mass=seen.log_mass, error=seen.error)


def distinct(summits: list[Summit], known: Sequence[Gaussian] = (), most: int | None = MODES) -> list[Summit]:
    """The summits that are modes, none of those known, each once: the heaviest by their curvature, those first."""
    modes = [summit for summit in summits if summit.is_mode and np.all(np.isfinite(summit.axes))]
    kept: list[Summit] = []
    others = list(known)
    pairs = [(gaussian_of(summit), summit) for summit in modes]
    for gaussian, summit in sorted(pairs, key=lambda pair: _mass(*pair), reverse=True):
        if not any(_is_same(other, gaussian) for other in others):
            kept.append(summit)
            others.append(gaussian)
    return kept[:most]


def look(rng: np.random.Generator, evaluator: Budget, wanted: list[tuple[Gaussian, float, int]]) -> list[View]:
    """What draws of Gaussians made wider see of the target: (Gaussian, width, draws) each, evaluated together."""
    noises = [rng.standard_normal((draws, evaluator.dim)) for _, _, draws in wanted]
    points = [q.push(width * noise) for (q, width, _), noise in zip(wanted, noises, strict=True)]
    if not points:
        return []
    values = np.asarray(evaluator.value(np.concatenate(points)), np.float64)
    values = np.split(np.where(np.isfinite(values), values, -np.inf), np.cumsum([len(z) for z in points])[:-1])
    return [
        view_of(z, value, value - q.log_prob_of_noise(noise) + evaluator.dim * math.log(width))
        for (q, width, _), noise, z, value in zip(wanted, noises, points, values, strict=True)
    ]


def view_of(z: np.ndarray, values: np.ndarray, log_weights: np.ndarray) -> View:
    """The mass that weighted draws see, and its error."""
    top = float(np.max(log_weights))
    if not math.isfinite(top):
        return View(z, values, log_weights, -math.inf, 0.0)
    weights = np.exp(log_weights - top)
    error = math.sqrt(max(float(np.sum(weights**2) / np.sum(weights) ** 2) - 1 / weights.size, 0.0))
    return View(z, values, log_weights, top + math.log(float(np.mean(weights))), error)


def gaussian_of(summit: Summit) -> Gaussian:
    """The Gaussian with the curvature at a summit."""
    axes = summit.axes
    is_factor = axes[0, -1] == 0 and np.array_equal(axes, np.tril(axes)) and np.all(np.diagonal(axes) > 0)
    return Gaussian.unchecked(summit.point, axes if is_factor else linalg.cholesky_of_square(axes))


def laplace_mass(summit: Summit) -> float:
    """log p plus the log volume of the axes: the log mass but for a constant."""
    return _mass(gaussian_of(summit), summit)


def _mass(gaussian: Gaussian, summit: Summit) -> float:
    mass = summit.value + float(gaussian.log_det_root())
    return mass if math.isfinite(mass) else -math.inf


def _is_same(one: Gaussian, other: Gaussian) -> bool:
    """Whether two climbs have led to one mode: their ends are close for the wider one, and not far for the narrower."""
    for_one = float(np.linalg.norm(one.whiten(other.mean[None])))
    if not for_one <= _SAME_FOR_NARROWER:
        return False
    near, far = sorted((for_one, float(np.linalg.norm(other.whiten(one.mean[None])))))
    return near <= _SAME and far <= _SAME_FOR_NARROWER
