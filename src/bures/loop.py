"""One step of a fit, and the compiled loop around it.

`init` and `step` are pure, for people who own their loop; `advance` runs many steps in one compiled call. Step t of
a fit uses `fold_in(key, t)`, so how the steps are grouped into calls does not change a bit of the result.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bures import linalg
from bures.check import check_floating, check_key, check_part, fail
from bures.estimator import AbstractEstimator, Cost, check_dimensions
from bures.gaussian import Gaussian
from bures.geometry import AbstractGeometry
from bures.objective import AbstractObjective
from bures.target import Target, as_target

# The smallest eigenvalue is watched at every step up to this dimension, and every hundredth step beyond it.
_WATCHED_DIM = 128
_PATIENCE = 3  # steps in a row with a small gap that count as settled


_Values = Array | np.ndarray  # in the loop, and on the host after it


class Method(eqx.Module):
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

    def cost(self) -> Cost:
        return self.estimator.cost(self.objective)


class State(eqx.Module):
    """What the next step needs."""

    approximation: Gaussian
    geometry: PyTree


class Info(eqx.Module):
    """What a step saw: the bound and its gradient at the Gaussian it started from, and how it moved."""

    bound: Float[_Values, "*steps"]
    ness: Float[_Values, "*steps"]
    grad_norm: Float[_Values, "*steps"]
    clipped: Bool[_Values, "*steps"]
    step_size: Float[_Values, "*steps"]
    gap: Float[_Values, "*steps"]  # nats below the optimum, as far as the geometry can tell; infinite if it cannot
    finite: Bool[_Values, "*steps"]

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(f"The trace has no {name!r}; it has {', '.join(self.names)}.")
        return getattr(self, name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(self))


class Trace(Info):
    """`Info` of every step, and the smallest eigenvalue of the covariance after it."""

    min_eigenvalue: Float[_Values, "*steps"]


def init(
    target: Target,
    *,
    init: Gaussian,
    objective: AbstractObjective,
    estimator: AbstractEstimator,
    geometry: AbstractGeometry,
) -> State:
    """The state before the first step, with every argument checked.

    >>> from bures import ELBO, Price, BuresWasserstein
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
    if not isinstance(init, Gaussian):
        raise fail("init", "a bures.Gaussian", init, "Make one with Gaussian.from_moments(mean, covariance).")
    check_dimensions(init, target)
    check_floating("init.mean", init.mean, ndim=1)
    check_floating("init.chol", init.chol, ndim=2)
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
    method = Method(objective, estimator, geometry).traced(state.approximation.mean.dtype)
    return _step(key, state, target, method)


@eqx.filter_jit
def _step(key: Key[Array, ""], state: State, target: Target, method: Method) -> tuple[State, Info]:
    q = state.approximation
    objective = method.geometry.pursue(method.objective, state.geometry)
    estimate = method.estimator(key, q, target, objective)
    proposal, geometry_state, move = method.geometry.step(estimate, q, state.geometry)
    finite = (
        jnp.isfinite(estimate.bound)
        & jnp.all(jnp.isfinite(proposal.mean))
        & jnp.all(jnp.isfinite(proposal.chol))
        & jnp.all(jnp.diagonal(proposal.chol) > 0)
    )
    moved = State(proposal, geometry_state)
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
    # The norm of the affine map z ↦ a + S (z − m) in L²(q).
    grad_norm = jnp.sqrt(jnp.sum(estimate.a**2) + jnp.sum((linalg.symmetrise(estimate.S) @ q.chol) ** 2))
    ness = normalised_ess(estimate.log_weights.reshape(-1))
    gap = jnp.asarray(move.gap, q.mean.dtype)
    return state, Info(estimate.bound, ness, grad_norm, move.clipped, move.step_size, gap, finite)


def normalised_ess(log_weights: Float[Array, " n"]) -> Float[Array, ""]:
    """(Σw)² / (n Σw²), the effective share of the draws."""
    top = jnp.max(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0))
    return jnp.sum(weights) ** 2 / (log_weights.size * jnp.sum(weights**2))


class Carry(eqx.Module):
    """What the loop takes from step to step."""

    state: State
    best: Gaussian  # the approximation with the highest bound so far, to fall back to
    best_bound: Float[Array, ""]
    min_eigenvalue: Float[Array, ""]
    count: Int[Array, ""]  # steps taken
    calm: Int[Array, ""]  # steps in a row, up to now, with a gap below the tolerance
    failed: Bool[Array, ""]

    @classmethod
    @eqx.filter_jit
    def start(cls, state: State) -> "Carry":
        q = state.approximation
        dtype = q.mean.dtype
        smallest = linalg.singular_values(q.chol)[-1] ** 2
        zero = jnp.array(0, jnp.int32)
        return cls(state, q, jnp.array(-jnp.inf, dtype), smallest, zero, zero, jnp.array(False))

    @property
    def settled(self) -> Bool[Array, ""]:
        """Whether the gap has stayed below the tolerance long enough to stop."""
        return self.calm >= _PATIENCE


@eqx.filter_jit
def advance(
    key: Key[Array, ""],
    carry: Carry,
    target: Target,
    method: Method,
    count: Int[Array, ""],
    tolerance: Float[Array, ""],
    capacity: int,
) -> tuple[Carry, Trace]:
    """Up to `count` (at most `capacity`) further steps, ending early at one that is not finite or once settled.

    Returns the trace in arrays of length `capacity`, of which the steps taken are filled.
    """
    first = carry.count
    dtype = carry.best_bound.dtype
    empty = jnp.zeros((capacity,), dtype)
    none = jnp.zeros((capacity,), bool)
    trace = Trace(empty, empty, empty, none, empty, empty, none, empty)

    def unfinished(loop):
        carry, _ = loop
        return (carry.count - first < count) & ~carry.failed & ~carry.settled

    def body(loop):
        carry, trace = loop
        at = carry.count - first
        q = carry.state.approximation
        state, info = _step(jax.random.fold_in(key, carry.count), carry.state, target, method)
        better = info.finite & (info.bound > carry.best_bound)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), q, carry.best)
        best_bound = jnp.where(better, info.bound, carry.best_bound)
        smallest = _watch(state.approximation, carry.count, carry.min_eigenvalue)
        entry = Trace(**{name: info[name] for name in info.names}, min_eigenvalue=smallest)
        trace = jax.tree.map(lambda buffer, value: buffer.at[at].set(value.astype(buffer.dtype)), trace, entry)
        failed = jnp.logical_not(info.finite)
        taken = carry.count + jnp.where(failed, 0, 1)
        calm = jnp.where(info.gap < tolerance, carry.calm + 1, 0)
        return Carry(state, best, best_bound, smallest, taken, calm, failed), trace

    return jax.lax.while_loop(unfinished, body, (carry, trace))


def _watch(q: Gaussian, count: Int[Array, ""], last: Float[Array, ""]) -> Float[Array, ""]:
    """The smallest eigenvalue of the covariance, looked at rarely where that costs as much as a step."""

    def look(chol):
        return linalg.singular_values(chol)[-1] ** 2

    if q.dim <= _WATCHED_DIM:
        return look(q.chol)
    return jax.lax.cond(count % 100 == 99, look, lambda chol: last, q.chol)
