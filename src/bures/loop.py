"""One step of a fit, and the loops around it.

`init` and `step` are pure, for people who own their loop; `advance` runs many steps in one compiled call, and
`advance_on_host` runs them in NumPy. Step t of a fit has noise of its own from the key and t, so how the steps are
grouped into calls does not change a bit of the result.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bures.arrays import AnyArray, Module, choose, namespace, on_host, pick, select
from bures.check import check_floating, check_key, check_part, fail
from bures.compiled import compiled
from bures.draws import Source, generators, host_seed
from bures.estimator import AbstractEstimator, Cost, check_dimensions
from bures.family.approximation import AbstractApproximation
from bures.geometry import AbstractGeometry
from bures.objective import AbstractObjective
from bures.target import Target, as_target
from bures.threads import one_blas_thread

# The smallest eigenvalue is watched at every step up to this dimension, and every hundredth step beyond it.
_WATCHED_DIM = 128
PATIENCE = 3  # steps in a row with a small gap that count as settled


class Method(Module):
    """An objective, an estimator and a geometry that can work together."""

    objective: AbstractObjective
    estimator: AbstractEstimator
    geometry: AbstractGeometry

    def __init__(self, objective: AbstractObjective, estimator: AbstractEstimator, geometry: AbstractGeometry):
        check_part("objective", objective, AbstractObjective, "bures.IWELBO(K=5)")
        check_part("estimator", estimator, AbstractEstimator, "bures.Price(M=100)")
        check_part("geometry", geometry, AbstractGeometry, "bures.BuresWasserstein(step_size=0.1)")
        geometry.check(objective)
        self.objective = objective
        self.estimator = estimator
        self.geometry = geometry

    def traced(self, dtype: jnp.dtype) -> "Method":
        """The same with its numbers as arrays, so that other numbers do not need another compilation."""
        return jax.tree.map(lambda x: jnp.asarray(x, dtype) if isinstance(x, float) else x, self)

    @property
    def runs_on_host(self) -> bool:
        """Whether its steps can be taken in NumPy: all parts of bures but `Euclidean`, whose optimisers are optax's."""
        known = type(self.objective).__module__, type(self.estimator).__module__
        return known == ("bures.objective", "bures.estimator") and self.geometry.runs_on_host

    def cost(self) -> Cost:
        return self.estimator.cost(self.objective)

    def parts(self) -> dict[str, Any]:
        """Its parts by name, as `init` and `step` take them."""
        return dict(objective=self.objective, estimator=self.estimator, geometry=self.geometry)


class Methods(NamedTuple):
    """The method of the early steps, and of those from a step on."""

    early: Method
    late: Method
    late_from: int = 0

    def at(self, step: int) -> Method:
        return self.early if step < self.late_from else self.late

    def cost(self, steps: int) -> Cost:
        """Of so many steps."""
        late = max(0, steps - self.late_from)
        costs = zip(self.early.cost(), self.late.cost(), strict=True)
        return Cost(*(int((steps - late) * early + late * after) for early, after in costs))


class State(NamedTuple):
    """What the next step needs."""

    approximation: AbstractApproximation
    geometry: PyTree


class Info(NamedTuple):
    """What a step saw: the bound and its gradient at the approximation it started from, and how it moved."""

    bound: Float[AnyArray, "*steps"]
    ness: Float[AnyArray, "*steps"]
    grad_norm: Float[AnyArray, "*steps"]
    clipped: Bool[AnyArray, "*steps"]
    step_size: Float[AnyArray, "*steps"]
    gap: Float[AnyArray, "*steps"]  # nats below the optimum, as far as the geometry can tell; infinite if it cannot
    finite: Bool[AnyArray, "*steps"]


class Trace(Module):
    """`Info` of every step, and the smallest eigenvalue of the covariance after it."""

    bound: Float[AnyArray, "*steps"]
    ness: Float[AnyArray, "*steps"]
    grad_norm: Float[AnyArray, "*steps"]
    clipped: Bool[AnyArray, "*steps"]
    step_size: Float[AnyArray, "*steps"]
    gap: Float[AnyArray, "*steps"]
    finite: Bool[AnyArray, "*steps"]
    min_eigenvalue: Float[AnyArray, "*steps"]

    @classmethod
    def empty(cls, length: int, dtype: Any, xp: Any = np) -> "Trace":
        """Room for a number of steps."""
        numbers, flags = xp.zeros((length,), dtype), xp.zeros((length,), bool)
        return cls(numbers, numbers, numbers, flags, numbers, numbers, flags, numbers)

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(f"The trace has no {name!r}; it has {', '.join(self.names)}.")
        return getattr(self, name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(self))


def init(
    target: Target,
    *,
    init: AbstractApproximation,
    objective: AbstractObjective,
    estimator: AbstractEstimator,
    geometry: AbstractGeometry,
) -> State:
    """The state before the first step, with every argument checked.

    >>> from bures import ELBO, BuresWasserstein, Gaussian, Price
    >>> target = Target(lambda z: -jnp.sum(z**2) / 2, dim=2)
    >>> method = dict(objective=ELBO(), estimator=Price(M=10), geometry=BuresWasserstein(step_size=0.5))
    >>> state = init(target, init=Gaussian(jnp.ones(2), 2 * jnp.eye(2)), **method)
    >>> for t in range(20):
    ...     state, info = step(jax.random.fold_in(jax.random.key(0), t), state, target, **method)
    >>> state.approximation.covariance.round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    target = as_target(target, None)
    method = Method(objective, estimator, geometry)
    if not isinstance(init, AbstractApproximation):
        raise fail("init", "a bures.Gaussian", init, "Make one with Gaussian.from_moments(mean, covariance).")
    check_dimensions(init, target)
    for name, part in init.parts().items():
        if not on_host(part):  # those of NumPy are our own, from a start
            check_floating(f"init.{name}", part, ndim=part.ndim)
    method.geometry.check_family(init)
    method.estimator.check_family(init)
    return State(init, method.geometry.init(init))


def step(
    key: Key[Array, ""],
    state: State,
    target: Target,
    *,
    objective: AbstractObjective,
    estimator: AbstractEstimator,
    geometry: AbstractGeometry,
) -> tuple[State, Info]:
    """One step. If anything in it is not finite the state comes back unchanged and `info.finite` is False."""
    check_key(key)
    target = as_target(target, None)
    if not isinstance(state, State):
        raise fail("state", "a bures.State", state, "Make one with bures.init(target, init=q, ...).")
    check_dimensions(state.approximation, target)
    method = Method(objective, estimator, geometry)
    _check_geometry_state(method.geometry, state)
    return _compiled_step(key, state, target, method.traced(state.approximation.mean.dtype))


def _check_geometry_state(geometry: AbstractGeometry, state: State) -> None:
    """The state's part of the geometry has the structure and shapes that this geometry makes."""
    wanted = jax.eval_shape(geometry.init, state.approximation)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (wanted, state.geometry)]
    if jax.tree.structure(wanted) != jax.tree.structure(state.geometry) or shapes[0] != shapes[1]:
        remedy = "Pass the geometry that the state was made with, or make a new state with bures.init."
        raise fail("state", f"one of {type(geometry).__name__}", type(state.geometry).__name__, remedy)


def take_step(source: Source, state: State, target: Any, method: Method) -> tuple[State, Info]:
    """One step, from a key and a `Target` inside a compiled program, or a generator and an `Evaluator` on the host."""
    q = state.approximation
    xp = namespace(q.mean)
    objective = method.geometry.next_objective(method.objective, state.geometry)
    noise = method.estimator.noise(source, q, objective.K)
    estimate = method.estimator.estimate(noise, q, target, objective)
    proposal, geometry_state, report = method.geometry.step(estimate, q, state.geometry)
    finite = xp.isfinite(estimate.bound) & proposal.is_valid()
    state = select(finite, State(proposal, geometry_state), state)
    grad_norm = q.gradient_norm(estimate) if report.grad_norm is None else report.grad_norm
    step_size, gap = (xp.asarray(number, q.mean.dtype) for number in (report.step_size, report.gap))
    ness = normalised_ess(estimate.log_weights.reshape(-1))
    return state, Info(estimate.bound, ness, grad_norm, report.clipped, step_size, gap, finite)


_compiled_step = compiled(take_step)


def normalised_ess(log_weights: Float[AnyArray, " n"]) -> Float[AnyArray, ""]:
    """(Σw)² / (n Σw²), the effective share of the draws."""
    xp = namespace(log_weights)
    top = log_weights.max()
    weights = xp.exp(log_weights - xp.where(xp.isfinite(top), top, 0))
    return weights.sum() ** 2 / (log_weights.size * (weights**2).sum())


class LoopState(NamedTuple):
    """What the loop takes from step to step, in arrays of JAX or of NumPy."""

    state: State
    best: AbstractApproximation  # the approximation with the highest bound so far, to fall back to
    best_bound: Float[AnyArray, ""]
    min_eigenvalue: Float[AnyArray, ""]
    count: Int[AnyArray, ""]  # steps taken
    calm: Int[AnyArray, ""]  # steps in a row, up to now, with a gap below the tolerance
    failed: Bool[AnyArray, ""]

    @classmethod
    def start(cls, state: State) -> "LoopState":
        """Before the first step."""
        if not on_host(state.approximation.mean):
            return _compiled_start(state)
        with one_blas_thread(_matrix_dim(state.approximation)):
            return _start(state)

    @property
    def settled(self) -> Bool[AnyArray, ""]:
        """Whether the gap has stayed below the tolerance long enough to stop."""
        return self.calm >= PATIENCE

    @property
    def is_on_host(self) -> bool:
        """Whether the steps are taken in NumPy."""
        return on_host(self.best_bound)


def _start(state: State) -> LoopState:
    q = state.approximation
    xp, dtype = namespace(q.mean), q.mean.dtype
    smallest = q.min_eigenvalue()
    zero, failed = xp.asarray(0, np.int32), xp.asarray(False)
    return LoopState(state, q, xp.asarray(-np.inf, dtype), smallest, zero, zero, failed)


_compiled_start = eqx.filter_jit(_start)


def _advance_once(
    source: Source, loop: LoopState, target: Any, method: Method, tolerance: Float[AnyArray, ""] | float
) -> tuple[LoopState, Info]:
    """One step, with the best so far, the smallest eigenvalue and the count of calm steps kept."""
    q = loop.state.approximation
    xp = namespace(q.mean)
    state, info = take_step(source, loop.state, target, method)
    better = info.finite & (info.bound > loop.best_bound)
    best = select(better, q, loop.best)
    best_bound = pick(better, info.bound, loop.best_bound)
    smallest = _watch(state.approximation, loop.count, loop.min_eigenvalue)
    failed = xp.logical_not(info.finite)
    count = loop.count + xp.where(failed, 0, 1).astype(loop.count.dtype)
    calm = xp.where(info.gap < tolerance, loop.calm + 1, 0).astype(loop.calm.dtype)
    return LoopState(state, best, best_bound, smallest, count, calm, failed), info


def _watch(q: AbstractApproximation, count: Int[AnyArray, ""], last: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
    """The smallest eigenvalue of the covariance, looked at rarely where that costs as much as a step."""
    if q.dim <= _WATCHED_DIM or not q.is_dense:
        return q.min_eigenvalue()
    return choose(count % 100 == 99, q.min_eigenvalue, lambda: last)


@compiled
def advance(
    key: Key[Array, ""],
    loop: LoopState,
    target: Target,
    method: Method,
    count: Int[Array, ""],
    tolerance: Float[Array, ""],
    capacity: int,
) -> tuple[LoopState, Trace]:
    """Up to `count` (at most `capacity`) further steps, ending early at one that is not finite or once settled.

    Returns the trace in arrays of length `capacity`, of which the steps taken are filled.
    """
    first = loop.count
    trace = Trace.empty(capacity, loop.best_bound.dtype, jnp)

    def unfinished(carried):
        loop, _ = carried
        return (loop.count - first < count) & ~loop.failed & ~loop.settled

    def body(carried):
        loop, trace = carried
        moved, info = _advance_once(jax.random.fold_in(key, loop.count), loop, target, method, tolerance)
        at, entry = loop.count - first, Trace(*info, moved.min_eigenvalue)
        trace = jax.tree.map(lambda buffer, value: buffer.at[at].set(value.astype(buffer.dtype)), trace, entry)
        return moved, trace

    return jax.lax.while_loop(unfinished, body, (loop, trace))


def _matrix_dim(q: AbstractApproximation) -> int:
    """The dimension of its square matrices; 0 if it has none."""
    return q.dim if q.is_dense else 0


def advance_on_host(
    key: Key[Array, ""], loop: LoopState, evaluator: Any, methods: Methods, count: int, tolerance: float
) -> tuple[LoopState, Trace]:
    """The same in NumPy: nothing is compiled but the target. Step t draws from the key's generator of number t."""
    entries, numbered = [], generators(host_seed(key))
    # What is not finite is seen by the step.
    with np.errstate(all="ignore"), one_blas_thread(_matrix_dim(loop.state.approximation)):
        while len(entries) < count and not loop.failed and not loop.settled:
            number = int(loop.count)
            loop, info = _advance_once(numbered(number), loop, evaluator, methods.at(number), tolerance)
            entries.append((*info, loop.min_eigenvalue))
    if not entries:
        return loop, Trace.empty(0, loop.best_bound.dtype)
    return loop, Trace(*(np.array(column) for column in zip(*entries, strict=True)))
