"""NUTS from scattered draws, with the covariance of what is known already as its mass matrix.

The sampler is BlackJAX's (the extra `bures[mcmc]`). Four chains run side by side in short calls of one compiled
program; between two calls the step size is tuned, the chains are judged and the budget is looked at.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bures.compiled import compiled
from bures.reference import Chains, import_blackjax
from bures.target import Target

CHAINS = 4
_CALL = 25  # transitions in one call
_TUNING = (2, 4, 4)  # calls of a length of _SHORT that tune the step size; after each group the frame is rescaled
_SHORT = 10
_ACCEPTANCE, _GAIN = 0.8, 1.0
_DOUBLINGS = 9  # of a path, at the most
_LEAST, _MOST = 200, 10_000  # draws in each chain
_RHAT, _TAIL = 1.01, 400  # that chains which agree stay below; effective draws for the tails
_DIVERGENT = 0.02  # share of transitions that may diverge
_RESTARTS = 2  # with half the step size, where more do


class NutsRun(NamedTuple):
    """Chains, and how they were made."""

    chains: Chains
    log_p: Float[np.ndarray, "chain draw"]
    diverging: Bool[np.ndarray, "chain draw"]
    step_size: float

    @property
    def rhat(self) -> float:
        return _worst(self.chains.rhat, np.max)

    @property
    def effective(self) -> float:
        """Smallest effective number of draws for the bulk of a coordinate."""
        return _worst(self.chains.bulk_ess, np.min)

    @property
    def tail_effective(self) -> float:
        """The same for its tails."""
        return _worst(self.chains.tail_ess, np.min)

    @property
    def divergent(self) -> float:
        """Share of the transitions that diverged."""
        return float(np.mean(self.diverging))

    def is_enough(self, wanted: float) -> bool:
        """Whether the chains agree and know enough."""
        agree = self.rhat < _RHAT and self.divergent <= _DIVERGENT
        return agree and self.effective >= wanted and self.tail_effective >= min(_TAIL, wanted)


def _worst(values: np.ndarray, choose: Callable[[np.ndarray], Any]) -> float:
    """NaN, of a coordinate that never moved, is the worst."""
    return float(choose(values)) if np.all(np.isfinite(values)) else math.nan


def run_nuts(
    key: Key[Array, ""],
    target: Target,
    starts: Float[np.ndarray, "chain dim"],
    frame: Float[np.ndarray, "dim dim"],
    *,
    spend: Callable[[int], None],
    wanted: float,
    limit: float,
    keep: Callable[[NutsRun], None],
) -> NutsRun:
    """Chains until `wanted` effective draws are had, or `limit` gradients are spent.

    **Arguments:**

    - `starts`: where the chains begin, in proportion to the mass as far as that is known.
    - `frame`: a root of the covariance that serves as the inverse mass matrix.
    - `spend`: told of the gradients after each call; it may end the run.
    - `keep`: given the run so far now and then, for one that is ended.
    """
    return _Run(key, target, starts, frame, spend).go(wanted, limit, keep)


class _Run:
    """One run: where the chains are, and how they move."""

    def __init__(self, key: Any, target: Target, starts: Any, frame: np.ndarray, spend: Callable[[int], None]):
        self.key, self.target, self.spend = key, target, spend
        self.positions, self.frame = np.asarray(starts), frame
        self.step_size = 0.8 * target.dim**-0.25
        self.calls, self.gradients = 0, 0

    def go(self, wanted: float, limit: float, keep: Callable[[NutsRun], None]) -> NutsRun:
        self.tune()
        calls: list[_Call] = []
        restarts = _RESTARTS
        while True:
            calls.append(self.advance(_CALL))
            draws = _CALL * len(calls)
            if not _is_look(len(calls)):
                continue
            run = self.found(calls)
            keep(run)
            if run.divergent > _DIVERGENT and draws >= _LEAST / 2 and restarts:
                self.step_size, restarts, calls = self.step_size / 2, restarts - 1, []
                continue
            if draws >= _LEAST and (run.is_enough(wanted) or self.gradients > limit or draws >= _MOST):
                return run

    def tune(self) -> None:
        """The step size, and the scale of each column of the frame by the draws so far."""
        for count in _TUNING:
            draws = []
            for _ in range(count):
                call = self.advance(_SHORT)
                draws.append(call.z)
                self.step_size *= math.exp(_GAIN * (float(np.mean(call.acceptance)) - _ACCEPTANCE))
            self.frame = _rescaled(self.frame, np.concatenate(draws, axis=1))

    def advance(self, count: int) -> "_Call":
        """So many transitions of every chain, from where they are."""
        dtype = jnp.zeros(()).dtype  # BlackJAX cannot mix dtypes
        z, frame, step_size = (jnp.asarray(part, dtype) for part in (self.positions, self.frame, self.step_size))
        keys = jax.random.split(jax.random.fold_in(self.key, self.calls), CHAINS)
        call = _Call(*map(np.asarray, _advance(keys, self.target, z, frame, step_size, jnp.array(count))))
        call = _Call(*(part[:, :count] for part in call))
        self.positions, self.calls = call.z[:, -1], self.calls + 1
        spent = int(np.sum(call.gradients)) + CHAINS  # one at each start
        self.gradients += spent
        self.spend(spent)
        return call

    def found(self, calls: list["_Call"]) -> NutsRun:
        joined = _Call(*(np.concatenate(parts, axis=1) for parts in zip(*calls, strict=True)))
        divergences = joined.divergent.sum(axis=1)
        chains = Chains(joined.z, joined.acceptance.mean(axis=1), self.target.names, divergences)
        return NutsRun(chains, joined.log_p, joined.divergent, self.step_size)


class _Call(NamedTuple):
    """What one call of the program gives, for each chain and transition."""

    z: np.ndarray
    log_p: np.ndarray
    acceptance: np.ndarray
    divergent: np.ndarray
    gradients: np.ndarray


@compiled
def _advance(
    keys: Key[Array, " chain"],
    target: Target,
    positions: Float[Array, "chain dim"],
    frame: Float[Array, "dim dim"],
    step_size: Float[Array, ""],
    count: Array,
) -> Any:
    """The first `count` of _CALL transitions of each chain, in coordinates where the frame is the identity."""
    blackjax = import_blackjax()

    def run(key: Key[Array, ""], origin: Float[Array, " dim"]):
        # Coordinates about the chain's own start: no matrix is solved with.
        def log_density(u: Float[Array, " dim"]) -> Float[Array, ""]:
            return target.log_density(origin + frame @ u).astype(u.dtype)

        sampler = blackjax.nuts(log_density, step_size, jnp.ones_like(origin), max_num_doublings=_DOUBLINGS)
        first = sampler.init(jnp.zeros_like(origin))

        def body(t, carried):
            state, kept = carried
            state, info = sampler.step(jax.random.fold_in(key, t), state)
            new = (origin + frame @ state.position, state.logdensity, info.acceptance_rate)
            new = (*new, info.is_divergent, info.num_integration_steps)
            kept = tuple(old.at[t].set(value) for old, value in zip(kept, new, strict=True))
            return state, kept

        numbers = jnp.zeros(_CALL, origin.dtype)
        empty = (jnp.zeros((_CALL, origin.size), origin.dtype), numbers, numbers)
        empty = (*empty, jnp.zeros(_CALL, bool), jnp.zeros(_CALL, jnp.int32))
        return jax.lax.fori_loop(0, count, body, (first, empty))[1]

    return jax.vmap(run)(keys, positions)


def _is_look(calls: int) -> bool:
    """Whether to judge after so many calls: seldomer as they become many, because each look takes them all."""
    return calls % max(1, 2 ** int(math.log2(calls) - 3)) == 0


def _rescaled(frame: Float[np.ndarray, "dim dim"], z: Float[np.ndarray, "chain draw dim"]) -> np.ndarray:
    """The frame with columns as long as draws spread along them, as far as so few draws can tell."""
    flat = z.reshape(-1, z.shape[2])
    spread = np.linalg.solve(frame, (flat - flat.mean(axis=0)).T).var(axis=1)
    size = len(flat) / 10  # draws of a chain are not independent
    return frame * np.sqrt((size * spread + 10) / (size + 10))
