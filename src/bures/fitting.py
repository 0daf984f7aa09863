"""`fit`: from a target to a `Fit`, with progress, stopping and an honest outcome."""

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import diagnostics
from bures.check import check_key, check_positive_integer, check_real, fail, is_traced
from bures.diagnostics import Diagnostics, Pool
from bures.estimator import AbstractEstimator, Stein
from bures.gaussian import Gaussian
from bures.geometry import AbstractGeometry, Whitened
from bures.loop import Carry, Method, State, Trace, advance, init as init_state
from bures.objective import IWELBO, VRIWAE, AbstractObjective
from bures.outcome import Outcome, has_converged, has_diverged
from bures.start import Start, find_start
from bures.target import Target, as_target

Callback = Callable[[int, Gaussian, dict[str, float]], bool | None]

_MAX_STEPS = 10_000  # when the number of steps is left to the stopping rule
_CAPACITY = 100  # steps in one compiled call, at the most
_RESPONSE = 0.2  # seconds one compiled call should take: how long Ctrl-C and the progress bar may wait
_DRAWS = 400  # at a step, in few dimensions: steps of few draws, averaged, cost no more than few of many
_FEW_DRAWS = 100  # at a step, from a start that is nearly exact
_K, _IW_DIM = 10, 10  # draws in a tuple by default, and the dimension up to which their weights are used as they are
_START, _JUDGED = 2**32 - 1, 2**32 - 2  # folded into the key for the start and the last word: no step has these numbers


class Fit(eqx.Module):
    """A fitted Gaussian approximation, how it came about, and what can be done with it."""

    approximation: Gaussian
    trace: Trace  # arrays by step: bound, ness, grad_norm, clipped, step_size, gap, min_eigenvalue
    path: tuple[tuple[int, Gaussian], ...]  # the Gaussians after 0, 1, 2, 5, 10, 20, 50, ... steps
    target: Target
    method: Method
    key: Key[Array, ""]
    carry: Carry
    outcome_code: Any

    @property
    def outcome(self) -> Outcome:
        """How the fit ended; printing it says what to do."""
        return Outcome(int(self.outcome_code))

    @property
    def state(self) -> State:
        """The state after the last step, for `bures.step`."""
        return self.carry.state

    @property
    def num_steps(self) -> int:
        return int(self.carry.count)

    @property
    def _num_estimates(self) -> int:
        return self.num_steps + int(self.carry.failed)

    @property
    def num_log_density_evaluations(self) -> int:
        return self._num_estimates * self.method.cost().log_densities

    @property
    def num_gradients(self) -> int:
        return self._num_estimates * self.method.cost().gradients

    @property
    def num_hessians(self) -> int:
        return self._num_estimates * self.method.cost().hessians

    def diagnose(self, key: Key[Array, ""], num_samples: int = 10_000, *, K: int | None = None) -> Diagnostics:
        """ELBO, IW-ELBO, nESS, Pareto k̂ and log evidence from fresh draws, with a sentence on whether to trust them.

        The IW-ELBO is that of `K`, by default the objective's K, or 10 for the ELBO.
        """
        own = self.method.objective.K
        clipped, smallest = np.asarray(self.trace.clipped), np.asarray(self.trace.min_eigenvalue)
        return diagnostics.diagnose(
            key,
            self.approximation,
            self.target,
            num_samples=num_samples,
            K=K if K is not None else own if own > 1 else 10,
            min_eigenvalue=float(smallest.min()) if smallest.size else None,
            clip_rate=float(clipped.mean()) if clipped.size else None,
        )

    def resample(self, key: Key[Array, ""], n: int, *, K: int | None = None) -> Float[Array, "n dim"]:
        """`n` importance-resampled draws: sampling–importance–resampling from the approximation.

        With `K` it is the paper's procedure: each draw is chosen among K fresh ones by their weights. Without, all
        draws are chosen from one pool of max(10 n, 10,000) by Pareto-smoothed weights, which costs less.
        """
        check_key(key)
        check_positive_integer("n", n, "It is the number of draws.")
        key_pool, key_choice = jax.random.split(key)
        if K is None:
            pool = Pool.draw(key_pool, self.approximation, self.target, max(10 * n, 10_000))
            return pool.z[pool.choose(key_choice, n)]
        check_positive_integer("K", K, "It is the number of candidates for each draw, e.g. K=50.")
        pool = Pool.draw(key_pool, self.approximation, self.target, n * K)
        chosen = jax.random.categorical(key_choice, pool.log_weights.reshape(n, K), axis=1)
        return pool.z.reshape(n, K, -1)[jnp.arange(n), chosen]

    def to_arviz(self, key: Key[Array, ""], num_draws: int = 1000, *, resample: bool = True) -> Any:
        """An ArviZ `DataTree` of draws in the target's own variables (needs the extra `bures[arviz]`).

        With `resample` the draws are chosen by their importance weights; without, they are plain draws of the
        approximation, and their weights are in `sample_stats`.
        """
        from bures.export import to_arviz

        return to_arviz(self, key, num_draws=num_draws, resample=resample)

    def nuts_start(self, key: Key[Array, ""], num_chains: int = 4) -> Any:
        """Initial points and a mass matrix (the covariance) for NUTS, in the forms that samplers want them."""
        from bures.export import nuts_start

        return nuts_start(self, key, num_chains)

    def save(self, path: Any) -> None:
        """Write the fit to one file, atomically. The density itself is not saved: `bures.load` takes the target."""
        from bures.storage import save

        save(self, path)

    def resume(self, num_steps: int, *, progress: bool | None = None, callback: Callback | None = None) -> "Fit":
        """The fit after `num_steps` more steps, bit for bit what an uninterrupted fit would have been."""
        check_positive_integer("num_steps", num_steps, "It is the number of further steps.")
        unsettled = eqx.tree_at(lambda fit: fit.carry.calm, self, jnp.zeros_like(self.carry.calm))
        return _run(unsettled, self.num_steps + num_steps, None, progress, callback)

    def __str__(self) -> str:
        """The outcome, with a warning if fresh draws say that the approximation may not be trusted."""
        method = self.method
        names = (type(part).__name__ for part in (method.objective, method.estimator, method.geometry))
        text = f"Fit of {self.target.dim} dimensions by {' × '.join(names)}, {self.num_steps} steps\n{self.outcome}"
        found = self.diagnose(jax.random.fold_in(self.key, _JUDGED))
        return text if found.trustworthy else f"{text}\nBut k̂ = {found.khat:.2f}. {found.message}"


def fit(
    target: Target | Callable[[Float[Array, " dim"]], Float[Array, ""]],
    *,
    key: Key[Array, ""],
    dim: int | None = None,
    objective: AbstractObjective | None = None,
    estimator: AbstractEstimator | None = None,
    geometry: AbstractGeometry | None = None,
    init: Gaussian | None = None,
    num_steps: int | None = None,
    tolerance: float | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
) -> Fit:
    """Fit a Gaussian to a target.

    **Arguments:**

    - `target`: a `Target`, or a JAX log density `(dim,) -> scalar` together with `dim`.
    - `key`: a typed key, `jax.random.key(0)`. Step t uses `fold_in(key, t)`.
    - `objective`, `estimator`, `geometry`: any legal combination; by default those of
        `default_objective` and `default_estimator`, and `Whitened`.
    - `init`: the first Gaussian; by default one close to a mode, or a wider one that sees more mass. Its dtype is the
        dtype of the fit.
    - `num_steps`: take exactly this many steps; by default, stop when the bound has stopped improving.
    - `tolerance`: stop (at the latest after `num_steps`) when the optimum is less than this many nats away as far as
        the geometry can tell, or when the last quarter of the run changed the bound by less than this with 95%
        confidence; `default_tolerance` when `num_steps` is left out.
    - `progress`: a progress bar on standard error; by default only on a terminal.
    - `callback`: called as `callback(step, approximation, info)` now and then; if it returns True the fit stops.

    Under `jit` or `vmap` (over keys, say) give `num_steps`; progress, tolerance and callback then do nothing.

    >>> target = Target(lambda z: -jnp.sum((z - 3) ** 2) / 8, dim=2)
    >>> result = fit(target, key=jax.random.key(0), num_steps=20)
    >>> result.approximation.mean.round(2).tolist(), result.approximation.standard_deviations.round(2).tolist()
    ([3.0, 3.0], [2.0, 2.0])
    """
    target = as_target(target, dim)
    check_key(key)
    objective = default_objective(target) if objective is None else objective
    geometry = Whitened() if geometry is None else geometry
    method = Method(objective, default_estimator(target, objective) if estimator is None else estimator, geometry)
    if num_steps is not None:
        check_positive_integer("num_steps", num_steps, "Leave it out to stop by itself.")
    if tolerance is not None:
        check_real("tolerance", tolerance, 0, 1e300, "It is in nats, e.g. 0.01.", open_low=True)
    elif num_steps is None:
        tolerance = default_tolerance(target)
    if callback is not None and not callable(callback):
        raise fail("callback", "a function (step, approximation, info)", callback, "Leave it out if not needed.")
    begin = Start(init, math.inf) if init is not None else _default_start(key, target)
    q = begin.approximation
    if estimator is None:
        method = Method(objective, default_estimator(target, objective, begin.variance), geometry)
    state = init_state(target, init=q, objective=method.objective, estimator=method.estimator, geometry=method.geometry)
    start = Fit(q, _no_trace(q.mean.dtype), ((0, q),), target, method, key, Carry.start(state), Outcome.MAX_STEPS.value)
    if is_traced(key, target, q, method):
        if num_steps is None:
            raise fail("num_steps", "given under jit or vmap", num_steps, "Pass num_steps=1000, say.")
        return _run_traced(start, num_steps)
    return _run(start, num_steps or _MAX_STEPS, tolerance, progress, callback)


def default_objective(target: Target) -> AbstractObjective:
    """The IW-ELBO of ten draws; in d > 10 dimensions, where weights degenerate, tempered: 1 − α = (10 / d)^(4/3).

    The power is empirical: on the Census with d = 96, 10 / d leaves the ELBO half a nat lower.

    >>> default_objective(Target(lambda z: -z @ z, dim=3)), default_objective(Target(lambda z: -z @ z, dim=80))
    (IWELBO(K=10, alpha=0.0), VRIWAE(K=10, alpha=0.9375))
    """
    return IWELBO(_K) if target.dim <= _IW_DIM else VRIWAE(_K, 1 - (_IW_DIM / target.dim) ** (4 / 3))


def default_estimator(target: Target, objective: AbstractObjective, variance: float = math.inf) -> AbstractEstimator:
    """Gradients alone, from enough antithetic draws, in several blockings, to tell d × d numbers from noise.

    Where the log weights of the start have so small a `variance` that a gradient has hardly any noise, few draws do.

    Hessians did not pay in any trial: near a Gaussian both ways are free of noise at the optimum, and far from one the
    Hessians of a few draws, weighted, are noisier than Stein's lemma; see the page on choosing a method.
    """
    # By Stein's lemma the noise of S is about d times the variance over the number of draws.
    draws = _FEW_DRAWS if target.dim * variance < 1 else _DRAWS
    M = math.ceil(max(draws, 10 * target.dim) / min(objective.K, _K))  # larger tuples are not fewer
    return Stein(M=M, draws="antithetic", permutations=min(8, M) if objective.K > 1 else 1)


def default_tolerance(target: Target) -> float:
    """0.005 nats; in more than ten dimensions, 0.001 for each of them."""
    return 0.005 if target.dim <= _IW_DIM else 0.001 * target.dim


def _default_start(key: Key[Array, ""], target: Target) -> Start:
    """A start found by looking at the target; under JAX transformations, where one cannot look, N(0, I)."""
    if is_traced(key, target):
        return Start(Gaussian.standard(target.dim), math.inf)
    return find_start(jax.random.fold_in(key, _START), target)


def _no_trace(dtype: jnp.dtype) -> Trace:
    empty, none = np.zeros(0, dtype), np.zeros(0, bool)
    return Trace(empty, empty, empty, none, empty, empty, none, empty)


def _run_traced(start: Fit, num_steps: int) -> Fit:
    """All steps in one compiled loop, for use under JAX transformations."""
    dtype = start.approximation.mean.dtype
    method = start.method.traced(dtype)
    carry, trace = advance(
        start.key, start.carry, start.target, method, jnp.array(num_steps), jnp.array(0.0, dtype), num_steps
    )
    q = jax.tree.map(lambda best, last: jnp.where(carry.failed, best, last), carry.best, carry.state.approximation)
    code = jnp.where(carry.failed, Outcome.NON_FINITE.value, Outcome.MAX_STEPS.value)
    return Fit(q, trace, start.path, start.target, start.method, start.key, carry, code)


def _run(start: Fit, total: int, tolerance: float | None, progress: bool | None, callback: Callback | None) -> Fit:
    """Steps up to `total`, in compiled calls, with a look around at every checkpoint."""
    dtype = start.approximation.mean.dtype
    method, gap_limit = start.method.traced(dtype), jnp.array(tolerance or 0, dtype)
    carry, traces, path = start.carry, [start.trace], list(start.path)
    outcome = None
    try:
        with _progress_bar(progress, total, int(carry.count)) as report:
            length = 1
            while outcome is None:
                count = int(carry.count)
                length = min(length, _next_checkpoint(count) - count, total - count)
                began = time.perf_counter()
                moved, piece = advance(start.key, carry, start.target, method, jnp.array(length), gap_limit, _CAPACITY)
                taken = int(moved.count) - count
                traces.append(jax.tree.map(lambda x, taken=taken: np.asarray(x)[:taken], piece))
                carry, count = moved, count + taken
                seconds = max(time.perf_counter() - began, 1e-6)
                length = max(1, min(_CAPACITY, int(length * _RESPONSE / seconds)))
                report(count, traces[-1])
                if bool(carry.failed):
                    outcome = Outcome.NON_FINITE
                elif bool(carry.settled):
                    outcome = Outcome.CONVERGED
                elif count in _checkpoints(count):
                    traces = [_join(traces)]
                    outcome = _look_around(traces[0], path, carry, count, tolerance, callback)
                if outcome is None and count >= total:
                    outcome = Outcome.MAX_STEPS
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    trace = _join(traces)
    # An interrupt may fall between a call and the note of its trace: the trace is what happened.
    if outcome is Outcome.MAX_STEPS and has_converged(trace.bound, tolerance or default_tolerance(start.target)):
        outcome = Outcome.CONVERGED
    if outcome is Outcome.MAX_STEPS and has_diverged(trace.bound):
        outcome = Outcome.DIVERGED
    settled = outcome in (Outcome.CONVERGED, Outcome.MAX_STEPS) or int(carry.count) == 0
    q = carry.state.approximation if settled else carry.best
    return Fit(q, trace, tuple(path), start.target, start.method, start.key, carry, outcome.value)


def _look_around(
    trace: Trace,
    path: list[tuple[int, Gaussian]],
    carry: Carry,
    count: int,
    tolerance: float | None,
    callback: Callback | None,
) -> Outcome | None:
    """At a checkpoint: note the Gaussian, ask the callback, and see whether it is time to stop."""
    if _is_milestone(count):
        path.append((count, carry.state.approximation))
    if callback is not None:
        info = {name: trace[name][-1].item() for name in trace.names}
        if callback(count, carry.state.approximation, info):
            return Outcome.INTERRUPTED
    if has_diverged(trace.bound):
        return Outcome.DIVERGED
    if tolerance is not None and has_converged(trace.bound, tolerance):
        return Outcome.CONVERGED
    return None


def _milestones() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))


def _is_milestone(count: int) -> bool:
    return count == next(m for m in _milestones() if m >= count)


def _next_checkpoint(count: int) -> int:
    """The next milestone, or multiple of a hundred (of a thousand from 10,000 on, and so forth), after `count`.

    Ever further apart, because a checkpoint looks at the whole trace.
    """
    spacing = 10 ** max(2, len(str(count)) - 2)
    return min(next(m for m in _milestones() if m > count), (count // spacing + 1) * spacing)


def _checkpoints(count: int) -> tuple[int, ...]:
    return (_next_checkpoint(count - 1),) if count > 0 else ()


def _join(traces: list[Trace]) -> Trace:
    return jax.tree.map(lambda *parts: np.concatenate(parts), *traces)


@contextmanager
def _progress_bar(progress: bool | None, total: int, done: int) -> Iterator[Callable[[int, Trace], None]]:
    """A bar on standard error with the current bound and nESS, or nothing."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda count, trace: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("fit"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("fit", total=total, completed=done, status="")

        def report(count: int, trace: Trace) -> None:
            if trace.bound.size:
                status = f"bound {trace.bound[-1]:.3f}  nESS {100 * trace.ness[-1]:.1f}%"
                bar.update(task, completed=count, status=status)

        yield report
        bar.update(task, total=bar.tasks[task].completed)  # done, be it early
