"""`fit`: the driver of the steps, on the host or in compiled calls, with stopping and an honest outcome."""

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.arrays import to_device, to_host
from bures.budget import BudgetSpent
from bures.check import check_key, check_part, check_positive_integer, check_progress, check_real, fail, is_traced
from bures.draws import host_generator
from bures.engine import MANY, Evaluator, evaluator_of
from bures.estimator import AbstractEstimator
from bures.family import AbstractApproximation, AbstractFamily, FullRank, Mixture
from bures.family.approximation import in_double
from bures.family.gaussian import check_matrix_dim
from bures.fitting.defaults import (
    FULL_RANK_DIM,
    default_estimator,
    default_family,
    default_geometry,
    default_objective,
    default_tolerance,
)
from bures.fitting.limits import Limits
from bures.fitting.milestones import is_checkpoint, is_milestone, next_checkpoint
from bures.fitting.mixture import begin_mixture, check_mixture_dim, resume_rounds, run_rounds, weigh_modes
from bures.fitting.progress import progress_bar
from bures.fitting.result import Callback, Fit, Plan, Record
from bures.geometry import AbstractGeometry
from bures.loop import LoopState, Method, Methods, Trace, advance, advance_on_host, init as init_state
from bures.mixing.rounds import evaluations_for
from bures.objective import AbstractObjective
from bures.outcome import CUT_SHORT, Outcome, has_converged, has_diverged, is_rising
from bures.rows.settling import settle
from bures.rows.subsampled import SubsampledEvaluator, subsampled_evaluator
from bures.start import SEARCHED_DIM, Start, find_start, start_budget
from bures.start_in_factors import find_start_in_factors
from bures.target import Target, as_target

MAX_STEPS = 10_000  # when the number of steps is left to the stopping rule
_CAPACITY = 100  # steps in one call, at the most
_RESPONSE = 0.2  # seconds one call should take: how long Ctrl-C and the progress bar may wait
# With the key, for the start, the rows that are held and the start from them: no step has these numbers.
_START, _ROWS, _SETTLED = 2**32 - 1, 2**32 - 4, 2**32 - 5


def fit(
    target: Target | Callable[[Float[Array, " dim"]], Float[Array, ""]],
    *,
    key: Key[Array, ""],
    dim: int | None = None,
    objective: AbstractObjective | None = None,
    estimator: AbstractEstimator | None = None,
    geometry: AbstractGeometry | None = None,
    family: AbstractFamily | None = None,
    init: AbstractApproximation | None = None,
    num_steps: int | None = None,
    tolerance: float | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    checkpoint: Any = None,
    every: float | None = None,
) -> Fit:
    """Fit a Gaussian, or a member of another family, to a target.

    **Arguments:**

    - `target`: a `Target`, or a JAX log density `(dim,) -> scalar` together with `dim`.
    - `key`: a typed key, `jax.random.key(0)`. Step t uses `fold_in(key, t)`.
    - `objective`, `estimator`, `geometry`: any legal combination; by default those of
        `default_objective` and `default_estimator`, and `Whitened`.
    - `family`: `FullRank()`, `MeanField()`, `LowRank(rank=None)` or `Mixture()`; by default that of `init`, or else
        full rank up to 400 dimensions, unless the start shows that low rank is enough, and low rank beyond.
    - `init`: the first approximation; by default one close to a mode, or a wider one that sees more mass. Its dtype is
        the dtype of the fit. One of another family is replaced by the nearest member of `family`.
    - `num_steps`: take exactly this many steps; by default, stop when the bound has stopped improving.
    - `tolerance`: stop (at the latest after `num_steps`) when the optimum is less than this many nats away as far as
        the geometry can tell, or when the last quarter of the run changed the bound by less than this with 95%
        confidence; `default_tolerance` when `num_steps` is left out. A mixture's rounds do not use it.
    - `progress`: a progress bar on standard error; by default only on a terminal.
    - `callback`: called as `callback(step, approximation, info)` now and then; if it returns True the fit stops.
    - `max_seconds`, `max_evaluations`: when either is spent the fit ends with the best so far, judged as far as a part
        of the limit that is kept for it goes. Compilation, or one call of the log density, is not cut short.
    - `checkpoint`, `every`: write the fit so far to this file every so many seconds (60 by default), and at the end.
        `bures.load(path, target=target).resume()` goes on from there as if nothing had happened.

    Under `jit` or `vmap` (over keys, say) give `num_steps`; progress, tolerance and callback then do nothing, and
    limits and checkpoints are refused.

    >>> target = Target(lambda z: -jnp.sum((z - 3) ** 2) / 8, dim=2)
    >>> result = fit(target, key=jax.random.key(0), num_steps=20)
    >>> result.approximation.mean.round(2).tolist(), result.approximation.standard_deviations.round(2).tolist()
    ([3.0, 3.0], [2.0, 2.0])
    """
    target = as_target(target, dim)
    check_key(key)
    _check_init(init)
    _check_callback(callback, progress)
    limits = Limits(max_seconds, max_evaluations, checkpoint, every)
    is_open = family is None and init is None and geometry is None and num_steps is None  # the start may say more
    family = default_family(target, init) if family is None else family
    check_part("family", family, AbstractFamily, "bures.LowRank()")
    if isinstance(family, FullRank):
        check_matrix_dim(target.dim)
    if isinstance(family, Mixture):
        check_mixture_dim(target)
        if init is None and num_steps is None and objective is None and estimator is None and geometry is None:
            return _fit_mixture(key, target, family, progress, callback, limits)
    init = None if init is None else family.of(init)
    objective = default_objective(target, family) if objective is None else objective
    given, geometry = geometry, default_geometry() if geometry is None else geometry
    chosen = default_estimator(target, objective, family=family) if estimator is None else estimator
    method = Method(objective, chosen, geometry)
    if given is not None:  # the default moves all families
        geometry.check_family(family.standard(min(target.dim, 4)) if init is None else init)
    if num_steps is not None:
        num_steps = check_positive_integer("num_steps", num_steps, "Leave it out to stop by itself.")
    if tolerance is not None:
        tolerance = check_real("tolerance", tolerance, 0, 1e300, "It is in nats, e.g. 0.01.", open_low=True)
    elif num_steps is None:
        tolerance = default_tolerance(target)
    if is_traced(key, target, init, method):
        _refuse_limits(limits)
        return _fit_traced(key, target, method, family.standard(target.dim) if init is None else init, num_steps)
    begun, evaluator = _begin(
        key,
        target,
        method,
        family,
        init,
        estimator is None,
        num_steps is None,
        is_open=is_open,
        limits=limits,
        tolerance=tolerance,
    )
    begun.record.plan = Plan(num_steps or MAX_STEPS, tolerance, num_steps is None)
    return _finish(begun, evaluator, progress, callback, limits)


def _finish(begun: Fit, evaluator: Evaluator, progress: bool | None, callback: Callback | None, limits: Limits) -> Fit:
    """The steps that were planned, and the judgement where the fit stops by itself or was cut short."""
    assert begun.record.plan is not None
    total, tolerance, judged = begun.record.plan
    result = _run(begun, evaluator, total, tolerance, progress, callback, limits)
    return _judged(result, limits, judged)


def _judged(result: Fit, limits: Limits, judged: bool) -> Fit:
    """The fit with its judgement, if it is to have one now, and its last checkpoint written."""
    if judged or result.outcome in (Outcome.TIME_LIMIT, Outcome.EVALUATION_LIMIT):
        with contextlib.suppress(KeyboardInterrupt):  # the fit is not lost: it is judged when it is first asked for
            limits.judge(result)
    limits.write(result)
    return result


def _fit_mixture(
    key: Key[Array, ""],
    target: Target,
    family: Mixture,
    progress: bool | None,
    callback: Callback | None,
    limits: Limits,
) -> Fit:
    """A mixture from nothing: a search for modes, and rounds that add components."""
    if is_traced(key, target):
        raise fail("num_steps", "given under jit or vmap", None, "Pass num_steps=1000, say, and init=.")
    evaluator = limits.watch(evaluator_of(target, True))
    began, evaluations = time.perf_counter(), evaluations_for(target.dim)
    start = limits.start(lambda: _find_start(key, target, evaluator, FullRank()), FullRank())
    try:
        q, modes = begin_mixture(key, target, evaluator, start, evaluations, family.max_components)
    except BudgetSpent:
        modes, limits.ended = start.modes, True
        q = weigh_modes(modes, family.max_components) if len(modes) > 1 else family.of(in_double(start.approximation))
    record = Record(start_evaluations=evaluator.count, modes=modes, scale=start.scale)
    record.seconds["start"] = time.perf_counter() - began - evaluator.compile_seconds
    record.seconds["compile"] = evaluator.compile_seconds
    result = run_rounds(
        key,
        target,
        evaluator,
        q,
        record,
        evaluations=0 if limits.ended else evaluations,
        max_components=family.max_components,
        goes_on=True,
        progress=progress,
        limits=limits,
        callback=callback,
    )
    return _judged(result, limits, limits.budget.is_limited)


def _resume_mixture(fit: Fit, progress: bool | None, callback: Callback | None, limits: Limits) -> Fit:
    """The rounds of a mixture from where they were interrupted; all anew if that was before the first could begin."""
    pause = fit.record.pause
    assert pause is not None
    if pause.is_before_start:
        return _fit_mixture(fit.key, fit.target, Mixture(pause.max_components or None), progress, callback, limits)
    evaluator = limits.watch(evaluator_of(fit.target, True, fit.approximation.mean.dtype))
    record = copy.copy(fit.record)
    record.judgement, record.elements, record.seconds = None, None, dict(fit.record.seconds)
    result = resume_rounds(fit, evaluator, record, progress, limits, callback)
    return _judged(result, limits, limits.budget.is_limited)


def fit_briefly(
    target: Target, *, key: Key[Array, ""], num_steps: int, evaluator: Evaluator, progress: bool | None
) -> Fit:
    """The default fit, ended after `num_steps` steps at the latest, and not judged: for one that will be refined.

    It goes through the caller's evaluator, which may end it at any call by a KeyboardInterrupt; before the first step
    that is passed on, later the best so far comes back.
    """
    family = default_family(target)
    objective = default_objective(target, family)
    method = Method(objective, default_estimator(target, objective, family=family), default_geometry())
    begun, _ = _begin(key, target, method, family, None, True, True, evaluator)
    begun.record.grows = False  # short steps: they are few, and far from the end
    return _run(begun, evaluator, num_steps, default_tolerance(target), progress, None)


def fit_from(
    learned: Any, *, key: Key[Array, ""], evaluator: Evaluator, progress: bool | None, num_steps: int = MAX_STEPS
) -> Fit:
    """The fit of a target in learned coordinates, from what learning them has left."""
    target, family = learned.target, default_family(learned.target, learned.approximation)
    objective = default_objective(target, family) if learned.objective is None else learned.objective
    method = Method(objective, default_estimator(target, objective, family=family), default_geometry())
    begun, _ = _begin(key, target, method, family, learned.approximation, True, True, evaluator)
    return _run(begun, evaluator, num_steps, default_tolerance(target), progress, None)


def _begin(
    key: Key[Array, ""],
    target: Target,
    method: Method,
    family: AbstractFamily,
    init: AbstractApproximation | None,
    chooses: bool,
    stops_by_itself: bool,
    evaluator: Evaluator | None = None,
    *,
    is_open: bool = False,
    limits: Limits | None = None,
    tolerance: float | None = None,
) -> tuple[Fit, Evaluator]:
    """The fit before its first step, and its evaluator.

    It `chooses` the estimator anew by what the start has seen, and the family if that `is_open`.
    """
    dtype = None if init is None else init_state(target, init=init, **method.parts()).approximation.mean.dtype
    dense = isinstance(family, FullRank | Mixture)
    began, rows = time.perf_counter(), None
    if evaluator is None:
        if method.runs_on_host and not isinstance(family, Mixture):
            rows = subsampled_evaluator(target, lambda: host_generator(key, _ROWS), dtype=dtype, tolerance=tolerance)
        evaluator = evaluator_of(target, dense, dtype) if rows is None else rows
    if init is not None:
        start = Start(init)
        evaluator = evaluator if limits is None else limits.watch(evaluator)
    elif limits is None:
        start = _find_start(key, target, evaluator, family)
    else:
        watched, kind = limits.watch(evaluator), family
        start = limits.start(lambda: _find_start(key, target, watched, kind), family)
    if is_open and type(enough := default_family(target, init, start)) is not type(family):
        family, start = enough, start._replace(approximation=enough.of(start.approximation))
    if rows is not None:
        objective = _suited(rows, method.objective, start.approximation, host_generator(key, _SETTLED), limits)
        method = Method(objective, method.estimator, method.geometry)
    if chooses:
        columns = getattr(start.approximation, "capacity", 0)
        chosen = default_estimator(target, method.objective, start.variance, family, columns)
        method = Method(method.objective, chosen, method.geometry)
    on_host = (stops_by_itself or rows is not None) and method.runs_on_host
    record = Record(start_evaluations=evaluator.count, grows=on_host and chooses, modes=start.modes, scale=start.scale)
    record.has_images = start.has_images
    record.rows = None if rows is None else rows.use
    record.seconds["start"] = time.perf_counter() - began - evaluator.compile_seconds
    q = to_host(start.approximation) if on_host else to_device(start.approximation)
    loop = LoopState.start(init_state(target, init=q, **method.parts()))
    empty = Trace.empty(0, loop.best_bound.dtype)
    return Fit(q, empty, ((0, q),), target, method, key, loop, Outcome.MAX_STEPS.value, record), evaluator


def _suited(
    rows: SubsampledEvaluator,
    objective: AbstractObjective,
    q: AbstractApproximation,
    rng: np.random.Generator,
    limits: Limits | None,
) -> AbstractObjective:
    """The objective for batches of rows; the ELBO, which needs no look at their noise, where limits are spent."""
    try:
        if limits is None or not limits.ended:
            return rows.suited(objective, q, rng)
    except BudgetSpent:
        if limits is None:
            raise
        limits.ended = True
    return objective if objective.K == 1 else rows.without_weights("The limits left no look at the noise of batches")


def resume(
    fit: Fit,
    num_steps: int | None,
    *,
    progress: bool | None,
    callback: Callback | None,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    checkpoint: Any = None,
    every: float | None = None,
) -> Fit:
    """See `Fit.resume`."""
    if num_steps is not None:
        num_steps = check_positive_integer("num_steps", num_steps, "It is the number of further steps.")
    _check_callback(callback, progress)
    limits = Limits(max_seconds, max_evaluations, checkpoint, every)
    if num_steps is None and fit.record.pause is not None:
        return _resume_mixture(fit, progress, callback, limits)
    plan = fit.record.plan
    if num_steps is None and (fit.outcome not in CUT_SHORT or (plan is not None and fit.num_steps >= plan.total)):
        return fit
    if num_steps is None and plan is None:
        raise fail("num_steps", "given for a fit that was not to stop by itself", None, "Pass num_steps=100, say.")
    calm = np.zeros_like(fit.loop.calm) if fit.loop.is_on_host else jnp.zeros_like(fit.loop.calm)
    record = copy.copy(fit.record)
    record.judgement, record.elements, record.pause, record.seconds = None, None, None, dict(fit.record.seconds)
    record.plan = plan if num_steps is None else Plan(fit.num_steps + num_steps, None, False)
    record.rows = copy.deepcopy(fit.record.rows)
    unsettled = Fit(
        fit.approximation,
        fit.trace,
        fit.path,
        fit.target,
        fit.method,
        fit.key,
        fit.loop if num_steps is None else fit.loop._replace(calm=calm),
        fit.outcome_code,
        record,
    )
    q = fit.approximation
    evaluator = evaluator_of(fit.target, q.is_dense, q.mean.dtype)
    if record.rows is not None:
        options = dict(dtype=q.mean.dtype, tolerance=None if plan is None else plan.tolerance, use=record.rows)
        options["is_weighted"] = fit.method.objective.K > 1
        evaluator = subsampled_evaluator(fit.target, lambda: host_generator(fit.key, _ROWS), **options) or evaluator
    evaluator = limits.watch(evaluator)
    return _finish(unsettled, evaluator, progress, callback, limits)


def _check_callback(callback: Callback | None, progress: Any) -> None:
    check_progress(progress)
    if callback is not None and not callable(callback):
        raise fail("callback", "a function (step, approximation, info)", callback, "Leave it out if not needed.")


def _refuse_limits(limits: Limits) -> None:
    if limits.is_set:
        wanted = "left out under jit or vmap"
        raise fail("max_seconds, max_evaluations and checkpoint", wanted, "one of them", "Pass num_steps alone.")


def _check_init(init: Any) -> None:
    if init is not None and not isinstance(init, AbstractApproximation):
        raise fail("init", "a bures.Gaussian", init, "Make one with Gaussian.from_moments(mean, covariance).")


def _find_start(key: Key[Array, ""], target: Target, evaluator: Evaluator, family: AbstractFamily) -> Start:
    """A start found by looking at the target, in the precision of the fit."""
    if isinstance(evaluator, SubsampledEvaluator):
        return _find_start_by_rows(key, evaluator, family)
    rng = host_generator(key, _START)
    budget = start_budget(evaluator)
    searched = find_start(rng, target, budget) if target.dim <= MANY else None
    if searched is not None and target.dim <= SEARCHED_DIM:
        start = searched
    else:
        dense = isinstance(family, FullRank) and target.dim <= FULL_RANK_DIM
        start = find_start_in_factors(rng, target, budget, searched, dense)
    q = jax.tree.map(lambda part: np.asarray(part, evaluator.dtype), family.of(start.approximation))
    return start._replace(approximation=q, variance=start.variance if isinstance(family, FullRank) else np.inf)


def _find_start_by_rows(key: Key[Array, ""], evaluator: SubsampledEvaluator, family: AbstractFamily) -> Start:
    """A start found by looking at a part of the rows, then moved to where all of them are."""
    part = evaluator.pilot()
    pilot = evaluator_of(part, isinstance(family, FullRank), evaluator.dtype)
    pilot.before_call, pilot.after_call = evaluator.before_call, evaluator.after_call
    start = _find_start(key, part, pilot, family)
    evaluator.count += pilot.count
    evaluator.compile_seconds += pilot.compile_seconds
    start = settle(evaluator, start, family, host_generator(key, _SETTLED))
    q = jax.tree.map(lambda part: np.asarray(part, evaluator.dtype), start.approximation)
    return start._replace(approximation=q)


def _fit_traced(
    key: Key[Array, ""], target: Target, method: Method, q: AbstractApproximation, num_steps: int | None
) -> Fit:
    """All steps in one compiled loop, under JAX transformations: one cannot look at values, so N(0, I) is the start."""
    if num_steps is None:
        raise fail("num_steps", "given under jit or vmap", num_steps, "Pass num_steps=1000, say.")
    loop = LoopState.start(init_state(target, init=q, **method.parts()))
    dtype = q.mean.dtype
    steps, tolerance = jnp.array(num_steps), jnp.array(0.0, dtype)
    loop, trace = advance(key, loop, target, method.traced(dtype), steps, tolerance, num_steps)
    last = jax.tree.map(lambda best, last: jnp.where(loop.failed, best, last), loop.best, loop.state.approximation)
    failure = jnp.where(jnp.any(jnp.isneginf(trace.bound)), Outcome.ZERO_DENSITY.value, Outcome.NON_FINITE.value)
    code = jnp.where(loop.failed, failure, Outcome.MAX_STEPS.value)
    return Fit(last, trace, ((0, q),), target, method, key, loop, code, Record())


def _advance(
    fit: Fit, methods: Methods, evaluator: Evaluator, loop: LoopState, count: int, tolerance: float
) -> tuple[LoopState, Trace, float]:
    """Up to `count` further steps, where the fit takes its steps; and the bound at the last, which may have failed."""
    if loop.is_on_host:
        moved, piece = advance_on_host(fit.key, loop, evaluator, methods, count, tolerance)
        return moved, piece, float(piece.bound[-1]) if piece.bound.size else np.nan
    dtype = fit.approximation.mean.dtype
    method, limit = fit.method.traced(dtype), jnp.array(tolerance, dtype)
    moved, piece = advance(fit.key, loop, fit.target, method, jnp.array(count), limit, _CAPACITY)
    taken = int(moved.count) - int(loop.count)
    last = float(piece.bound[taken - (not moved.failed)])
    return moved, jax.tree.map(lambda x: np.asarray(x)[:taken], piece), last


def _run(
    begun: Fit,
    evaluator: Evaluator,
    total: int,
    tolerance: float | None,
    progress: bool | None,
    callback: Callback | None,
    limits: Limits | None = None,
) -> Fit:
    """Steps up to `total`, some at a time, with a look at how it goes at every checkpoint."""
    loop, traces, path = begun.loop, [begun.trace], list(begun.path)
    outcome, methods = None, begun.methods
    started, compiled = time.perf_counter(), evaluator.compile_seconds
    limits = Limits() if limits is None else limits
    counted, taken = evaluator.count, int(loop.count)
    a_step = 0.0  # seconds

    def result(outcome: Outcome) -> Fit:
        settled = outcome in (Outcome.CONVERGED, Outcome.MAX_STEPS) or int(loop.count) == 0
        q, passed = to_device((loop.state.approximation if settled else loop.best, tuple(path)))
        trace, record = _join(traces), begun.record
        return Fit(q, trace, passed, begun.target, begun.method, begun.key, loop, outcome.value, record)

    try:
        with progress_bar(progress, total, int(loop.count)) as report:
            length = 1
            while outcome is None:
                count = int(loop.count)
                length = min(length, next_checkpoint(count) - count, total - count)
                length = limits.check_steps(methods, count, length, a_step, loop.is_on_host)
                began = time.perf_counter()
                loop, piece, last = _advance(begun, methods, evaluator, loop, length, tolerance or 0.0)
                traces.append(piece)
                count = int(loop.count)
                seconds = max(time.perf_counter() - began, 1e-6)
                a_step = seconds / length if taken < count - length else 0.0  # the first call may compile
                length = max(1, min(_CAPACITY, int(length * _RESPONSE / seconds)))
                report(count, piece)
                if limits.is_due():
                    limits.write(result(Outcome.INTERRUPTED))
                if bool(loop.failed):
                    zero = last == -np.inf or begun.outcome is Outcome.ZERO_DENSITY
                    outcome = Outcome.ZERO_DENSITY if zero else Outcome.NON_FINITE
                elif bool(loop.settled):
                    traces = [_join(traces)]
                    sees_all = loop.state.approximation.is_dense  # slopes along every direction: what is left is noise
                    if not sees_all and is_rising(traces[0].bound, traces[0].gap, tolerance or 0.0):
                        loop = loop._replace(calm=loop.calm * 0)
                    else:
                        outcome = Outcome.CONVERGED
                if outcome is None and is_checkpoint(count):
                    traces = [_join(traces)]
                    outcome = _at_checkpoint(traces[0], path, loop, count, tolerance, callback)
                if outcome is None and count >= total:
                    outcome = Outcome.MAX_STEPS
    except KeyboardInterrupt:
        outcome = limits.outcome
    trace = _join(traces)
    # An interrupt may fall between a call and the note of its trace: the trace is what happened.
    if outcome is Outcome.MAX_STEPS and has_converged(trace.bound, tolerance or default_tolerance(begun.target)):
        outcome = Outcome.CONVERGED
    if outcome is Outcome.MAX_STEPS and has_diverged(trace.bound):
        outcome = Outcome.DIVERGED
    if loop.is_on_host and outcome in CUT_SHORT:  # steps that were begun and are not among those taken
        noted = methods.cost(int(loop.count)).log_densities - methods.cost(taken).log_densities
        begun.record.cut_evaluations += max(0, evaluator.count - counted - noted)
    seconds, compiling = begun.record.seconds, evaluator.compile_seconds
    seconds["steps"] = seconds.get("steps", 0.0) + time.perf_counter() - started - (compiling - compiled)
    seconds["compile"] = seconds.get("compile", 0.0) + compiling
    traces = [trace]
    return result(outcome)


def _at_checkpoint(
    trace: Trace,
    path: list[tuple[int, AbstractApproximation]],
    loop: LoopState,
    count: int,
    tolerance: float | None,
    callback: Callback | None,
) -> Outcome | None:
    """Note the Gaussian, ask the callback, and see whether it is time to stop."""
    if is_milestone(count):
        path.append((count, loop.state.approximation))
    if callback is not None:
        info = {name: trace[name][-1].item() for name in trace.names}
        if callback(count, to_device(loop.state.approximation), info):
            return Outcome.INTERRUPTED
    if has_diverged(trace.bound):
        return Outcome.DIVERGED
    if tolerance is not None and has_converged(trace.bound, tolerance):
        return Outcome.CONVERGED
    return None


def _join(traces: list[Trace]) -> Trace:
    traces = [trace for trace in traces[:-1] if trace.bound.size] + traces[-1:]
    if len(traces) == 1:
        return traces[0]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *traces)
