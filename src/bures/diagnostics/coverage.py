"""What an approximation does not reach: modes that the search has seen, and mass further out than its draws go.

Importance weights of q's own draws cannot tell: on one of two modes far apart they are perfect. So the draws of each
mode's own Gaussian are asked how heavy they would be among q's draws, and q itself is looked at made wider.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bures import linalg
from bures.arrays import to_host
from bures.diagnostics.edge import beyond, without_leaders
from bures.diagnostics.weighted import WeightedDraws, log_evidence
from bures.engine import Evaluator
from bures.family import AbstractApproximation, Gaussian, GaussianMixture
from bures.images import is_apart
from bures.modes import add_images, find_modes
from bures.search import Budget, climb
from bures.start import LATER_EVALUATIONS, SEARCHED_AGAIN_DIM, SLOW, Mode, View, distinct, look
from bures.survey import Known, surprising_places, survey, unknown_places

_LEAST_SHARE = 0.01  # of the mass that is worth a word
LEAST_OUTSIDE = 2 * _LEAST_SHARE  # the same further out than q reaches
SEEN = 200  # among n draws, one that weighs up to n / 200 times the mean has company
_FEW = 10  # draws that are needed to see a mode
WIDTHS = (3.0, 10.0, 30.0, 100.0)  # of views of an approximation, times its own
_DRAWS = 32  # of each width
_WIDE_DIM = 50  # beyond this dimension wide draws see nothing
_HEAVY, _LEAST_MASS, _CLIMBS = math.log(20), math.log(0.002), 4  # draws of q and of wide views to climb from
_FOLLOW_EVALUATIONS = 150
_ROUNDS, _LEAST_ROUNDS, _MODE_DRAWS = 8, 4, 64  # of a climb, and draws to weigh what it finds
_TOLD_APART = 100  # evaluations to tell places apart from what is known, and from each other
_WORTHWHILE, _ENOUGH = 1000, 1000  # evaluations that a search for further modes needs, and points in vain that end it
# Evaluations of a last look all around where one mode is known: as many as are left, or, in dimensions where a mode is
# easily passed by, so many of a target whose arrays stay small.
_LAST_LOOK, _CLOSE_LOOK, _CLOSE_ELEMENTS, _CLOSE_DIM = 1500, 6000, 2**20, 4
_OTHER_SCALE = 3.0  # an approximation this many times wider or narrower than where scouts set out is searched anew


class Missed(NamedTuple):
    """A mode that the approximation does not reach, and its share of all the mass that was seen."""

    location: np.ndarray
    share: float
    is_apart: bool  # further away than q's own draws are


class Coverage(NamedTuple):
    """What is known of the mass that the approximation does not reach."""

    missed: tuple[Missed, ...] = ()
    outside: float = 0.0  # share of the mass that is further out than the draws reach, tails or other modes
    reach: float = 0.0  # how far was searched, in standard deviations; 0 where there was no search

    @property
    def missed_share(self) -> float:
        return sum(missed.share for missed in self.missed)


class Searched(NamedTuple):
    """What a search after a fit has seen, and what it took."""

    modes: tuple[Mode, ...]
    views: tuple[View, ...]
    reach: float  # how far was searched, in standard deviations of q
    evaluations: int  # but for those of the last look
    looked: int  # evaluations of the last look all around


def search_again(
    rng: np.random.Generator,
    approximation: AbstractApproximation,
    evaluator: Evaluator,
    modes: Sequence[Mode],
    scale: Gaussian | None,
    *,
    draws: WeightedDraws,
    scores: np.ndarray,
    uneven: bool,
    evaluations: int = LATER_EVALUATIONS,
    has_images: bool = False,
    thorough: bool = False,
) -> Searched:
    """After a fit: views of q made wider, and where strange draws of q and theirs lead; a survey if the scale is new.

    Where there are several modes, or the search is to be `thorough`, and evaluations for it, more are looked for: with
    all of them if the approximation would be trusted, by what is known so far; where one mode is known, a last look all
    around. With `has_images` those of the modes given were looked for already.
    """
    before, looked = evaluator.count, 0
    modes, budget = tuple(modes), Budget(evaluator, LATER_EVALUATIONS)
    has_images, with_images = False, modes if has_images else ()
    q, parts = _gaussian_and_parts(approximation)
    widths = WIDTHS[:1] if uneven else WIDTHS if q.dim <= _WIDE_DIM else ()
    reach = WIDTHS[0] if uneven else WIDTHS[-1]
    evidence = log_evidence(draws.log_weights)[0]
    masses, known = [], []  # Gaussians that are known, with the logarithms of their masses and of p at their means
    own = [_as_mode(part, evidence + share) for part, share in parts]
    with np.errstate(all="ignore"):
        views = tuple(look(rng, budget, [(q, width, _DRAWS) for width in widths]))
        if q.dim <= SEARCHED_AGAIN_DIM:
            places = [_heaviest(draws, evidence), _uncovered_draws(approximation, evidence, views)]
            others = _others(modes, parts)
            masses = [_exact(modes, part, evidence + share, draws) for part, share in parts]
            masses += [(mode.gaussian, mode.log_mass) for mode in others]
            n = len(scores) if len(parts) == 1 else 0  # slopes of a mixture's weights are not those of its Gaussian
            ends, values = surprising_places(
                budget, q, draws.z[:n], draws.log_p[:n], scores[:n], _FOLLOW_EVALUATIONS, masses
            )
            if not uneven and (scale is None or _is_other_scale(q, scale)):
                nowhere = np.zeros((0, q.dim))
                far = survey(rng, budget, q, masses, count=100, reach=reach, also=nowhere)
                ends, values = np.concatenate([ends, far.ends]), np.concatenate([values, far.values])
            tops = [(part, evidence + share + float(part.log_density(part.mean[None])[0])) for part, share in parts]
            known = [*tops, *((mode.gaussian, mode.height) for mode in modes)]
            places.insert(0, unknown_places(budget, ends, values, known, q, _CLIMBS))
            modes += _climb_and_weigh(rng, q, budget, np.concatenate(places), modes)
            if not uneven:
                sources, done = _sources(own, _others(modes, parts), with_images)
                found, has_images = add_images(rng, budget, sources, done=done)
                modes += tuple(found[len(sources) :])
        left = evaluations - (evaluator.count - before)
        wanted = thorough or len(modes) > 1
        if wanted and left > _WORTHWHILE and q.dim <= SEARCHED_AGAIN_DIM and not uneven:
            names_modes = bool(find_missed(approximation, evidence, draws.log_p.size, modes, views, reach).missed)
            widest = max((mode.gaussian for mode in modes), key=lambda each: each.log_det_root()) if modes[1:] else q
            everything, enough = [*modes, *own], _ENOUGH if names_modes and not thorough else left
            done = len(everything) if has_images else 0
            budget = Budget(evaluator, left)
            found = find_modes(rng, budget, everything, scale=widest, reach=reach, enough=enough, done=done)
            modes = tuple(mode for mode in found if mode.view.z.size)
        elif q.dim <= _WIDE_DIM and not wanted and not uneven and not is_slow(evaluator):
            budget = Budget(evaluator, max(min(left, _LAST_LOOK), _close_look(q.dim, evaluator)))
            modes += _look_all_around(rng, q, budget, masses, known, modes, reach)
            looked = budget.limit - budget.left
    return Searched(modes, views, reach, evaluator.count - before - looked, looked)


def _close_look(dim: int, evaluator: Evaluator) -> int:
    """Evaluations of a last look where they cost little beside the draws of the judgement."""
    return min(_CLOSE_LOOK, _CLOSE_ELEMENTS // evaluator.target.width) if dim >= _CLOSE_DIM else 0


def is_slow(evaluator: Evaluator) -> bool:
    """Whether a point costs so much that none is looked at but with a reason."""
    return evaluator.one_pass or evaluator.target.width > SLOW


def _look_all_around(
    rng: np.random.Generator,
    q: Gaussian,
    budget: Budget,
    masses: Known,
    tops: Known,
    modes: Sequence[Mode],
    reach: float,
) -> tuple[Mode, ...]:
    """The modes that points all around lead to: as many points as leave enough to follow a few, and for a climb."""
    follow, arrive = _FOLLOW_EVALUATIONS, 2 * _MODE_DRAWS + _ROUNDS * (2 * q.dim + 10) + _TOLD_APART
    count = budget.left - follow - arrive
    if count < follow:
        return ()
    nowhere = np.zeros((0, q.dim))
    far = survey(rng, budget.keeping(arrive), q, masses, count=count, reach=reach, also=nowhere)
    places = unknown_places(budget, far.ends, far.values, tops, q, _CLIMBS)
    return _climb_and_weigh(rng, q, budget, places, modes)


def _exact(modes: Sequence[Mode], part: Gaussian, log_mass: float, draws: WeightedDraws) -> tuple[Gaussian, float]:
    """A part of q, or in its place the mode's own Gaussian with its mass, if p varies less about that.

    Steps are noisy: what is left of p without a mode that is exact shows other modes long before draws fall onto them.
    """
    same = [mode for mode in modes if _is_q(part, mode.gaussian)]
    if same and same[0].variance < float(np.var(draws.log_weights)):
        return same[0].gaussian, same[0].log_mass
    return part, log_mass


def _gaussian_and_parts(q: AbstractApproximation) -> tuple[Gaussian, list[tuple[Gaussian, float]]]:
    """The Gaussian of q's moments, and the Gaussians that q is made of with the logarithms of their shares."""
    if isinstance(q, GaussianMixture):
        return q.as_gaussian(), list(zip(q.components, q.log_shares.tolist(), strict=True))
    one: Gaussian = to_host(q.as_gaussian())
    return one, [(one, 0.0)]


def _others(modes: Sequence[Mode], parts: Sequence[tuple[Gaussian, float]]) -> list[Mode]:
    """The modes that are none of q's own Gaussians."""
    return [mode for mode in modes if not any(_is_q(part, mode.gaussian) for part, _ in parts)]


def _sources(own: list[Mode], others: list[Mode], looked: Sequence[Mode]) -> tuple[list[Mode], int]:
    """The modes and q's own parts, those first that images were looked for of already, or of the same mode.

    And how many these are.
    """
    known = [mode.gaussian for mode in looked]
    done = [part for part in own if any(_is_q(part.gaussian, mode) for mode in known)]
    done += [mode for mode in others if any(mode.gaussian is each for each in known)]
    return done + [mode for mode in (*own, *others) if not any(mode is each for each in done)], len(done)


def _as_mode(part: Gaussian, log_mass: float) -> Mode:
    """A part of q as a mode that is known, without draws of its own."""
    return Mode(part, View(np.zeros((0, part.dim)), np.zeros(0), np.zeros(0), log_mass, 0.0))


def _climb_and_weigh(
    rng: np.random.Generator, q: Gaussian, budget: Budget, places: np.ndarray, modes: Sequence[Mode]
) -> tuple[Mode, ...]:
    """The modes that places lead to, other than those known, as many as there are evaluations for."""
    left = budget.left - 2 * _MODE_DRAWS
    room = max(1, left // (_ROUNDS * (2 * q.dim + 10)))
    rounds = min(_ROUNDS, left // (2 * q.dim + 10))
    if rounds < _LEAST_ROUNDS:
        return ()
    found = climb(budget.value_and_score, places[:room], axes=np.asarray(q.chol), rounds=rounds)
    new = distinct(found, [mode.gaussian for mode in modes])[:2]
    gaussians = [Gaussian.unchecked(s.point, linalg.cholesky_of_square(s.axes)) for s in new]
    seen = look(rng, budget, [(gaussian, 1, _MODE_DRAWS) for gaussian in gaussians])
    return tuple(Mode(gaussian, view) for gaussian, view in zip(gaussians, seen, strict=True))


def _heaviest(draws: WeightedDraws, log_evidence: float) -> np.ndarray:
    """The few draws that weigh far more than the mean: there may be something narrow that q does not follow."""
    order = np.argsort(-draws.log_weights)[:_CLIMBS]
    return np.asarray(draws.z[order[draws.log_weights[order] - log_evidence > _HEAVY]], np.float64)


def _uncovered_draws(q: AbstractApproximation, log_evidence: float, views: Sequence[View]) -> np.ndarray:
    """The draws of wide views that stand for most of the mass where q has next to none."""
    found = []
    for view in views:
        would_weigh = view.values - q.log_density(view.z) - log_evidence
        mass = view.log_weights - log_evidence - math.log(view.values.size)
        found += [(mass[i], view.z[i]) for i in np.flatnonzero((would_weigh > _HEAVY) & (mass > _LEAST_MASS))]
    found.sort(key=lambda pair: -pair[0])
    return np.array([z for _, z in found[:_CLIMBS]]).reshape(-1, q.dim)


def _is_q(q: Gaussian, mode: Gaussian) -> bool:
    """Whether q is the Gaussian of a mode: then its mass is not to be counted twice."""
    return bool(np.linalg.norm(q.whiten(mode.mean[None])) < 1)


def _is_other_scale(q: Gaussian, scale: Gaussian) -> bool:
    if q.dim > SEARCHED_AGAIN_DIM:
        return False
    ratio = np.linalg.svd(np.linalg.solve(scale.chol, q.chol), compute_uv=False)
    return bool(ratio[0] > _OTHER_SCALE or ratio[-1] < 1 / _OTHER_SCALE)


def find_missed(
    q: AbstractApproximation,
    log_evidence: float,
    num_samples: int,
    modes: Sequence[Mode],
    views: Sequence[View],
    reach: float,
    edge: View | None = None,
) -> Coverage:
    """What `num_samples` draws of q, which found this evidence, cannot have seen of the modes, in the views and
    beyond its edge."""
    if not math.isfinite(log_evidence):
        return Coverage(reach=reach)
    with np.errstate(all="ignore"):
        masses = [_unseen(q, log_evidence, num_samples, mode.view, 0.0) for mode in modes]
        heavy = num_samples / SEEN
        outside = max((_unseen(q, log_evidence, num_samples, view, heavy) for view in views), default=0.0)
        outside = outside if edge is None else max(outside, beyond(q, log_evidence, num_samples, edge))
    total = 1 + sum(masses)
    shares = [(mode, mass / total) for mode, mass in zip(modes, masses, strict=True) if mass / total > _LEAST_SHARE]
    missed = [Missed(mode.gaussian.mean, share, _is_apart(q, mode.gaussian.mean)) for mode, share in shares]
    missed.sort(key=lambda each: -each.share)
    outside = outside / (1 + outside)
    return Coverage(tuple(missed), outside if outside > LEAST_OUTSIDE else 0.0, reach)


def _is_apart(q: AbstractApproximation, point: np.ndarray) -> bool:
    return all(is_apart(part, point) for part in (q.components if isinstance(q, GaussianMixture) else [q]))


def _unseen(q: AbstractApproximation, log_evidence: float, num_samples: int, view: View, heavy: float) -> float:
    """The mass, relative to the evidence, where so few of q's draws fall that they cannot have seen it.

    Only places count where a draw of q would weigh more than `heavy` times the mean.
    """
    log_q = q.log_density(view.z)
    weights = np.exp(np.minimum(view.values - log_q - log_evidence, 700.0))  # of a draw of q, if there were one
    beside = np.maximum(1 - 1 / np.maximum(weights, 1e-300), 0)  # the share of p there that is not q's
    masses = without_leaders(
        np.where(weights > heavy, beside * np.exp(view.log_weights - log_evidence), 0.0) / weights.size
    )
    mass = float(np.sum(masses))
    if not mass > 0:
        return 0.0
    order = np.argsort(weights)
    typical = weights[order[np.searchsorted(np.cumsum(masses[order]), mass / 2)]]
    return mass if num_samples * mass / typical < _FEW else 0.0
