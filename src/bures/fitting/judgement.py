"""The judgement of a fit: one pool of fresh draws and the search for modes, made once and kept with the fit."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from bures.arrays import to_host
from bures.budget import BudgetSpent
from bures.diagnostics.coverage import Coverage, find_missed, search_again
from bures.diagnostics.diagnostics import Diagnostics, Verdict, summarise
from bures.diagnostics.edge import look_beyond
from bures.diagnostics.weighted import WeightedDraws, log_evidence, points_of
from bures.draws import host_generator
from bures.engine import Evaluator
from bures.family import AbstractApproximation, Gaussian
from bures.family.approximation import in_double
from bures.rows.stream import affordable_draws
from bures.start import LATER_EVALUATIONS, SEARCHED_AGAIN_DIM, SLOW, Mode, View
from bures.target import Target
from bures.threads import one_blas_thread

_POOLS = (4_000, 10_000, 40_000)  # draws; more are taken only while they leave the verdict undecided
_SLOW_POOL = 2_000  # the first, of a target that is slow to evaluate
_SECOND_PASS = 1_100  # draws of a second pass over rows: enough for weights that are even to decide
# Shares of effective draws below which more of them do not help: at all, and where k̂ is above its threshold.
_HOPELESS, _TOO_FEW = 0.01, 0.03
JUDGED, _SEARCHED = 2**32 - 2, 2**32 - 3  # with the key, for the draws and the search: no step has these numbers
_NO_TRUST = (Verdict.UNTRUSTED, Verdict.DEGENERATE, Verdict.ROUNDED, Verdict.UNJUDGED)  # none that a search could shake


@dataclasses.dataclass(frozen=True, eq=False)
class Judgement:
    """Diagnostics, the draws they come from, and what the search for modes saw."""

    diagnostics: Diagnostics
    log_p: np.ndarray
    log_q: np.ndarray
    modes: tuple[Mode, ...] = ()
    views: tuple[View, ...] = ()
    edge: View | None = None  # what a walk outwards from the edge of q saw
    evaluations: int = 0  # of the search after the fit
    looked: int = 0  # evaluations of the walk and of the last look all around

    @property
    def spent(self) -> tuple[int, int]:
        """Evaluations of the search; and of the draws, the walk and the last look."""
        return self.evaluations, self.log_p.size + self.looked

    def draws(self, key: Key[Array, ""], q: AbstractApproximation) -> WeightedDraws:
        """The pool; its points are those that the key gives, so they need not be kept."""
        z = points_of(lambda: host_generator(key, JUDGED), q, self.log_p.size)
        return WeightedDraws(z, self.log_p, self.log_q, self.diagnostics.rounding)

    def coverage(self, q: AbstractApproximation, draws: WeightedDraws) -> Coverage:
        """What other draws of q cannot have seen."""
        evidence = log_evidence(draws.log_weights)[0]
        reach = self.diagnostics.coverage.reach
        return find_missed(in_double(q), evidence, draws.log_p.size, self.modes, self.views, reach, self.edge)


def judge(
    key: Key[Array, ""],
    q: AbstractApproximation,
    target: Target,
    evaluator: Evaluator,
    modes: tuple[Mode, ...],
    scale: Gaussian | None,
    *,
    search: int = LATER_EVALUATIONS,
    has_images: bool = False,
    thorough: bool = False,
    partly: bool = False,
    **run: Any,
) -> Judgement:
    """Draws until their verdict is decided, and a look at what they cannot see, by at most `search` evaluations.

    With `has_images` those of the modes given were looked for already.

    With `partly` an evaluator whose limits are spent ends it early: what was seen by then is judged.
    """
    with one_blas_thread(target.dim if q.is_dense else 0):
        return _judge(key, q, target, evaluator, modes, scale, search, has_images, thorough, partly, run)


def _judge(
    key: Key[Array, ""],
    q: AbstractApproximation,
    target: Target,
    evaluator: Evaluator,
    modes: tuple[Mode, ...],
    scale: Gaussian | None,
    search: int,
    has_images: bool,
    thorough: bool,
    partly: bool,
    run: dict[str, Any],
) -> Judgement:
    exact, q = in_double(q), to_host(q)
    views: tuple[View, ...] = ()
    reach, edge, evaluations, looked = 0.0, None, 0, 0

    def diagnosed(draws: WeightedDraws) -> Diagnostics:
        return covered(summarise(draws, names=target.names, **run))

    def covered(found: Diagnostics) -> Diagnostics:
        if found.verdict is Verdict.UNJUDGED:
            return found
        coverage = find_missed(exact, found.log_evidence, found.num_samples, modes, views, reach, edge)
        return dataclasses.replace(found, coverage=coverage)

    def generator() -> np.random.Generator:
        return host_generator(key, JUDGED)

    pools = (_SLOW_POOL, *_POOLS) if target.width > SLOW else _POOLS
    if evaluator.one_pass:  # by rows: draws of one pass over them, and of one more if these do not decide
        few = min(pools[0], affordable_draws(target))
        pools = few, max(2 * few, _SECOND_PASS)
    began = evaluator.count
    if partly:
        draws, scores = _affordable_pool(generator, q, evaluator, pools[0])
    else:
        draws, scores = WeightedDraws.pool(generator, q, evaluator, pools[0])
    found = diagnosed(draws)
    try:
        for size in pools[1:]:
            if is_decided(found) or draws.log_p.size < pools[0]:
                break
            draws, _ = WeightedDraws.pool(generator, q, evaluator, size, draws)
            found = diagnosed(draws)
        searchable = exact.is_dense or exact.dim <= SEARCHED_AGAIN_DIM
        if searchable and scores is not None and found.verdict not in _NO_TRUST:
            rng = host_generator(key, _SEARCHED)
            modes, views, reach, evaluations, looked = search_again(
                rng,
                exact,
                evaluator,
                modes,
                scale,
                draws=draws,
                scores=scores,
                uneven=target.uneven,
                evaluations=search,
                has_images=has_images,
                thorough=thorough,
            )
            before = evaluator.count
            edge = look_beyond(rng, exact, evaluator, draws)
            looked += evaluator.count - before
            found = covered(found)
    except BudgetSpent:
        if not partly:
            raise
        found = covered(found)  # by what was seen before
        looked = evaluator.count - began - evaluations - draws.log_p.size
    return Judgement(found, draws.log_p, draws.log_q, modes, views, edge, evaluations, looked)


def _affordable_pool(
    make_generator: Callable[[], np.random.Generator], q: AbstractApproximation, evaluator: Evaluator, size: int
) -> tuple[WeightedDraws, np.ndarray | None]:
    """As much of the first pool as the evaluator's limits allow; scores only of a whole one that is held."""
    points = points_of(make_generator, q, size)
    held = isinstance(points, np.ndarray)
    draws, scores = None, None
    for _, z in [(slice(0, size), points)] if held else points.blocks():
        values, scores = _affordable(evaluator, z)
        found = WeightedDraws.at(z[: len(values)], values, q)
        found = found if held else found._replace(z=z[:0])
        draws = found if draws is None else draws.joined(found)
        if len(values) < len(z):
            break
    assert draws is not None
    draws = draws._replace(z=points_of(make_generator, q, draws.log_p.size))
    return draws, scores if held and draws.log_p.size == size else None


def _affordable(evaluator: Evaluator, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p and scores at the first points, as far as the evaluator's limits go."""
    pieces = [(np.zeros(0, evaluator.dtype), np.zeros((0, evaluator.dim), evaluator.dtype))]
    done, size = 0, len(z) if evaluator.one_pass else evaluator.block
    while done < len(z) and size:
        try:
            pieces.append(evaluator.value_and_score(z[done : done + size]))
            done += len(pieces[-1][0])
        except BudgetSpent:
            size //= 2
    values, scores = zip(*pieces, strict=True)
    return np.concatenate(values), np.concatenate(scores)


def restore(
    key: Key[Array, ""],
    q: AbstractApproximation,
    target: Target,
    kept: tuple[np.ndarray, np.ndarray, float],
    modes: tuple[Mode, ...],
    views: tuple[View, ...],
    edge: View | None,
    *,
    reach: float,
    evaluations: int,
    looked: int,
    **run: Any,
) -> Judgement:
    """A judgement from what was kept of it: log p, log q and its rounding, and what the search saw."""
    log_p, log_q, resolution = kept
    z = points_of(lambda: host_generator(key, JUDGED), q, log_p.size)
    draws = WeightedDraws(z, log_p, log_q, resolution)
    evidence = log_evidence(draws.log_weights)[0]
    coverage = find_missed(in_double(q), evidence, log_p.size, modes, views, reach, edge)
    found = summarise(draws, coverage=coverage, names=target.names, **run)
    return Judgement(found, log_p, log_q, modes, views, edge, evaluations, looked)


def is_decided(found: Diagnostics) -> bool:
    """Whether more draws would not change the verdict."""
    if found.is_open:
        return False
    if found.is_light or found.verdict in (Verdict.SEVERAL_MODES, Verdict.DEGENERATE, Verdict.CLOSE):
        return True
    few = _TOO_FEW if found.khat > found.khat_threshold else _HOPELESS
    if found.verdict is Verdict.UNTRUSTED and found.correction.effective < few * found.num_samples:
        return True
    return found.num_samples >= _POOLS[1] and found.verdict is not Verdict.UNDECIDED
