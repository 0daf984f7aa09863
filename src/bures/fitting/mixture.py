"""Fits of mixtures whose number of components is not given: a start from the modes, then rounds on a pool."""

import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from bures.arrays import to_device, to_host
from bures.budget import BudgetSpent
from bures.check import fail
from bures.draws import host_generator
from bures.engine import Evaluator
from bures.family import Gaussian, GaussianMixture, Mixture
from bures.family.approximation import in_double
from bures.fitting.defaults import FULL_RANK_DIM, default_estimator, default_objective
from bures.fitting.limits import Limits
from bures.fitting.milestones import is_milestone
from bures.fitting.progress import progress_bar
from bures.fitting.result import Callback, Fit, Record
from bures.geometry import Whitened
from bures.loop import LoopState, Method, Methods, Trace, advance_on_host, init as init_state
from bures.mixing import Mixing, Pause, Round, first_pause, fit_mixture
from bures.mixing.rounds import evaluations_for
from bures.modes import find_modes
from bures.objective import IWELBO
from bures.outcome import FAILURES, Outcome
from bures.search import Budget
from bures.start import Mode, Start
from bures.target import Target
from bures.threads import one_blas_thread

_ROUNDS, _SEARCHED = 2**35, 2**35 + 1  # with the key, for the rounds and the search: no step has these numbers
_GAUSSIAN_STEPS, _GAUSSIAN_GAP = 11, 0.5  # before the first round, and nats from its optimum that are near enough
_STEPS_DIM, _NEARLY_EXACT = 30, 1.0  # dimensions, and variance of the log weights, from which there are such steps
_LEAST_SHARE = 1e-4  # of a mode that is worth a component to begin with
_SEARCHED_SHARE = 0.4  # of the evaluations, for further modes where there are several


def check_mixture_dim(target: Target) -> None:
    """Components are full Gaussians."""
    if target.dim > FULL_RANK_DIM:
        remedy = "Use family=LowRank()."
        raise fail("family", f"LowRank() or MeanField() beyond {FULL_RANK_DIM} dimensions", Mixture(), remedy)


def begin_mixture(
    key: Key[Array, ""],
    target: Target,
    evaluator: Evaluator,
    start: Start,
    evaluations: int,
    most: int | None = None,
) -> tuple[GaussianMixture, tuple[Mode, ...]]:
    """The mixture of all modes, or of so many, where there are several, else the Gaussian of the start.

    It moves in the rounds as well, which use every draw again; in many dimensions, where it is far off, it takes a few
    steps before.
    """
    if len(heavy_modes(start.modes)) > 1:
        return mixture_of_modes(key, evaluator, start.modes, evaluations, most)
    if target.dim <= _STEPS_DIM or start.variance < _NEARLY_EXACT:
        return Mixture().of(in_double(start.approximation)), start.modes
    objective = default_objective(target)
    method = Method(objective, default_estimator(target, objective, start.variance), Whitened())
    loop = LoopState.start(init_state(target, init=to_host(start.approximation), **method.parts()))
    loop, _ = advance_on_host(key, loop, evaluator, Methods(method, method), _GAUSSIAN_STEPS, _GAUSSIAN_GAP)
    return Mixture().of(in_double(loop.best if loop.failed else loop.state.approximation)), start.modes


def mixture_of_modes(
    key: Key[Array, ""],
    evaluator: Evaluator,
    modes: Sequence[Mode],
    evaluations: int,
    most: int | None = None,
) -> tuple[GaussianMixture, tuple[Mode, ...]]:
    """The mixture of the Gaussians of all modes that can be found, or of the heaviest, by their masses."""
    budget = Budget(evaluator, int(_SEARCHED_SHARE * evaluations))
    found = find_modes(host_generator(key, _SEARCHED), budget, modes)
    return weigh_modes(found, most), found


def weigh_modes(modes: Sequence[Mode], most: int | None = None) -> GaussianMixture:
    """The mixture of the Gaussians of the modes that are worth a component, the heaviest first, by their masses."""
    heavy = sorted(heavy_modes(modes), key=lambda mode: -mode.log_mass)[:most]
    masses = np.array([mode.log_mass for mode in heavy])
    gaussians = [in_double(mode.gaussian) for mode in heavy]
    return GaussianMixture.of_gaussians([(q.mean, q.chol) for q in gaussians], _shares(masses))


def _shares(log_masses: np.ndarray) -> np.ndarray:
    masses = np.exp(log_masses - np.max(log_masses))
    return masses / np.sum(masses)


def heavy_modes(modes: Sequence[Mode]) -> list[Mode]:
    """Those that are worth a component."""
    most = max((mode.log_mass for mode in modes), default=0.0)
    return [mode for mode in modes if mode.log_mass > most + math.log(_LEAST_SHARE)]


def run_rounds(
    key: Key[Array, ""],
    target: Target,
    evaluator: Evaluator,
    q: GaussianMixture,
    record: Record,
    *,
    evaluations: int,
    max_components: int | None,
    progress: bool | None,
    goes_on: bool = False,
    also: Sequence[Gaussian] = (),
    limits: Limits | None = None,
    callback: Callback | None = None,
) -> Fit:
    """The fit after as many rounds as help; modes may be worth a component, and other Gaussians `also`.

    A fit that `goes_on` climbs the ELBO where weights still degenerate after them, and costs as much as that takes.
    """
    places = [*(in_double(mode.gaussian) for mode in record.modes), *also]
    begun = first_pause(host_generator(key, _ROUNDS), in_double(q), places, evaluations, max_components, goes_on)
    path = [(0, _cast(q, evaluator.dtype))]
    return _run_from(begun, path, key, target, evaluator, record, progress, limits, callback)


def resume_rounds(
    fit: Fit, evaluator: Evaluator, record: Record, progress: bool | None, limits: Limits, callback: Callback | None
) -> Fit:
    """The fit of a mixture that was interrupted, gone on with from its last round."""
    assert record.pause is not None
    path = [(count, to_host(q)) for count, q in fit.path]
    return _run_from(record.pause, path, fit.key, fit.target, evaluator, record, progress, limits, callback)


def _run_from(
    begun: Pause,
    path: list[tuple[int, Any]],
    key: Key[Array, ""],
    target: Target,
    evaluator: Evaluator,
    record: Record,
    progress: bool | None,
    limits: Limits | None,
    callback: Callback | None,
) -> Fit:
    keeps, limits = limits is not None, Limits() if limits is None else limits
    began, before, spent = time.perf_counter(), evaluator.count, record.seconds.get("steps", 0.0)
    dtype, cut = evaluator.dtype, record.cut_evaluations
    most = (begun.left + begun.drawn) // max(1, evaluations_for(1) // 100)

    def result(approximation: GaussianMixture, rounds: Sequence[Round], pause: Pause | None, outcome: Outcome) -> Fit:
        record.mixed_rounds, record.mixed_evaluations = len(rounds), sum(each.draws for each in rounds)
        record.mixed_rounds += outcome in FAILURES
        record.cut_evaluations = cut + evaluator.count - before - (record.mixed_evaluations - begun.drawn)
        record.seconds["steps"] = spent + time.perf_counter() - began
        record.pause = pause if keeps else None
        return _fit_of_rounds(key, target, _cast(approximation, dtype), rounds, path, outcome, record)

    with progress_bar(progress, most, len(begun.rounds)) as report, one_blas_thread(target.dim):

        def note(pause: Pause) -> bool:
            count, entry, now = len(pause.rounds), _trace(pause.rounds[-1:], dtype), _cast(pause.q, dtype)
            report(count, entry)
            if is_milestone(count):
                path.append((count, now))
            if limits.is_due():
                limits.write(result(now, pause.rounds, pause, Outcome.INTERRUPTED))
            info = {name: entry[name][-1].item() for name in entry.names}
            return callback is not None and bool(callback(count, to_device(now), info))

        try:
            found = fit_mixture(host_generator(key, _ROUNDS), evaluator, begun, note)
        except BudgetSpent:  # before the end of the first round
            if not limits.budget.is_limited:
                raise
            found = Mixing(begun.q, (), Outcome.MAX_STEPS, begun)
    pause = begun if limits.ended else found.pause
    ended = found.outcome if pause is None else limits.outcome
    return result(found.approximation, found.rounds, pause, ended)


def _fit_of_rounds(
    key: Key[Array, ""],
    target: Target,
    approximation: GaussianMixture,
    rounds: Sequence[Round],
    path: Sequence[tuple[int, Any]],
    outcome: Outcome,
    record: Record,
) -> Fit:
    """A mixture as a fit: its rounds are the steps of its trace, and other steps may follow."""
    dtype = approximation.mean.dtype
    method = Method(IWELBO(K=10), default_estimator(target, IWELBO(K=10)), Whitened())
    loop = LoopState.start(init_state(target, init=approximation, **method.parts()))
    trace = _trace(rounds, dtype)
    best = np.asarray(trace.bound[-1] if trace.bound.size else -np.inf, dtype)
    failed = np.asarray(outcome in FAILURES)
    loop = loop._replace(count=np.asarray(len(rounds), np.int32), best_bound=best, failed=failed)
    passed = tuple((count, to_device(each)) for count, each in path)
    return Fit(to_device(approximation), trace, passed, target, method, key, loop, outcome.value, record)


def _cast(q: GaussianMixture, dtype: Any) -> GaussianMixture:
    return jax.tree.map(lambda part: np.asarray(part, dtype), q)


def _trace(rounds: Sequence[Round], dtype: Any) -> Trace:
    """Rounds as steps of a trace."""
    numbers = {name: np.array([getattr(each, name) for each in rounds], dtype) for name in Round._fields}
    yes, none = np.ones(len(rounds), bool), np.zeros(len(rounds), dtype)
    return Trace(
        bound=numbers["bound"],
        ness=numbers["ness"],
        grad_norm=np.sqrt(np.maximum(numbers["deficit"], 0)),
        clipped=~yes,
        step_size=none + 0.5,
        gap=numbers["deficit"] / 2,
        finite=yes,
        min_eigenvalue=numbers["smallest"],
    )
