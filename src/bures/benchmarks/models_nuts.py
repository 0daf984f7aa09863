"""NUTS in `bench models`: the yardstick, and reference moments where there are no reference draws.

BlackJAX's sampler with its window adaptation, in calls of one compiled program, so that a run ends by what it has
reached or by the clock.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import bures
from bures.centring import changes_of, recentre
from bures.diagnostics.weighted import ness
from bures.reference import _diagnose

CHAINS = 4
EFFECTIVE = 1_000  # smallest bulk effective size that NUTS has to reach
RHAT, LEAST, DIVERGENT = 1.02, 400, 0.001  # of chains that serve as a reference
_CALL, _CALLS = 250, 24  # draws of each chain in one call, and calls at the most


class Run(NamedTuple):
    """Draws of all chains, and what they cost."""

    draws: np.ndarray  # (chain, draw, dim)
    warmup_gradients: int
    gradients_a_draw: float
    divergences: int
    compile_seconds: float
    warmup_seconds: float
    draw_seconds: float
    ess: np.ndarray
    rhat: float

    @property
    def smallest(self) -> float:
        return float(np.nan_to_num(np.min(self.ess)))

    @property
    def is_reference(self) -> bool:
        few = self.divergences <= DIVERGENT * self.draws.shape[0] * self.draws.shape[1]
        return self.rhat <= RHAT and self.smallest >= LEAST and few


def run_chains(
    key: Key[Array, ""], target: bures.Target, starts: Array, *, warmup: int, wanted: float, seconds: float
) -> Run:
    """Chains until the smallest bulk effective size is `wanted`, or until they have drawn for so many seconds."""
    key_warmup, key_draws = jax.random.split(key)
    began = time.perf_counter()
    adapt = _adapt.lower(jax.random.split(key_warmup, CHAINS), target, starts, warmup).compile()
    compiled = time.perf_counter()
    states, parameters, spent = jax.block_until_ready(
        adapt(jax.random.split(key_warmup, CHAINS), target, starts, warmup)
    )
    warm = time.perf_counter()
    advance = _advance.lower(jax.random.split(key_draws, CHAINS), target, states, parameters).compile()
    ready = time.perf_counter()
    parts: list[tuple[np.ndarray, ...]] = []
    drawing, look = 0.0, 4
    while True:
        keys = jax.random.split(jax.random.fold_in(key_draws, len(parts)), CHAINS)
        start = time.perf_counter()
        states, *found = jax.block_until_ready(advance(keys, target, states, parameters))
        drawing += time.perf_counter() - start
        parts.append(tuple(map(np.asarray, found)))
        late = drawing >= seconds or len(parts) >= _CALLS
        if len(parts) < look and not late:
            continue
        look = math.ceil(1.5 * len(parts))  # looks take time as well
        draws = np.concatenate([part[0] for part in parts], axis=1)
        coordinates = np.moveaxis(draws.astype(np.float64), 2, 0)
        ess = _diagnose("ess", coordinates, method="bulk")
        if late or np.nan_to_num(np.min(ess)) >= wanted:
            break
    rhat = float(np.nan_to_num(np.max(_diagnose("rhat", coordinates, method="rank")), nan=9.0))
    steps, divergent = (np.concatenate([part[i] for part in parts], axis=1) for i in (1, 2))
    times = (compiled - began + ready - warm, warm - compiled, drawing)
    return Run(draws, int(np.sum(spent)), float(steps.mean()), int(divergent.sum()), *times, ess, rhat)


def _log_density(target: bures.Target) -> Callable[[Array], Array]:
    return lambda z: target.log_density(z).astype(z.dtype)


@eqx.filter_jit
def _adapt(keys: Array, target: bures.Target, starts: Array, warmup: int) -> Any:
    import blackjax

    def count(state: Any, info: Any, adaptation: Any) -> Array:
        return info.num_integration_steps

    adaptation = blackjax.window_adaptation(blackjax.nuts, _log_density(target), adaptation_info_fn=count)

    def run(key: Array, start: Array) -> Any:
        (state, parameters), steps = adaptation.run(key, start, warmup)
        return state, parameters, jnp.sum(steps)

    return jax.vmap(run)(keys, starts)


@eqx.filter_jit
def _advance(keys: Array, target: bures.Target, states: Any, parameters: Any) -> Any:
    import blackjax

    def run(key: Array, state: Any, parameters: Any) -> Any:
        sampler = blackjax.nuts(_log_density(target), **parameters)

        def iterate(state: Any, t: Array) -> Any:
            state, info = sampler.step(jax.random.fold_in(key, t), state)
            return state, (state.position, info.num_integration_steps, info.is_divergent)

        state, found = jax.lax.scan(iterate, state, jnp.arange(_CALL))
        return state, *found

    return jax.vmap(run)(keys, states, parameters)


# ---- The yardstick --------------------------------------------------------------------------------------------------


def yardstick(target: bures.Target, seed: int, settings: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    """Four chains from standard normal starts about the target's own: gradients and seconds to an effective 1,000.

    Warm-up counts; the draws taken are scaled to those needed. No R̂, no count: chains that disagree have no size.
    """
    key_start, key = jax.random.split(jax.random.key(seed))
    starts = target.start() + jax.random.normal(key_start, (CHAINS, target.dim))
    wanted = settings["reference_effective"]
    run = run_chains(key, target, starts, warmup=settings["warmup"], wanted=wanted, seconds=settings["nuts_seconds"])
    count = run.draws.shape[0] * run.draws.shape[1]
    reached = run.rhat < 1.05 and run.smallest > 100
    needed = math.ceil(EFFECTIVE * count / run.smallest) if reached else None
    return run, {
        "evaluations": None if needed is None else int(run.warmup_gradients + needed * run.gradients_a_draw),
        "seconds": None if needed is None else run.warmup_seconds + run.draw_seconds * needed / count,
        "compile_seconds": run.compile_seconds,
        "spent_gradients": int(run.warmup_gradients + count * run.gradients_a_draw),
        "spent_seconds": run.warmup_seconds + run.draw_seconds,
        "smallest_ess": run.smallest,
        "rhat": run.rhat,
        "divergences": run.divergences,
        "draws": count,
    }


# ---- References -----------------------------------------------------------------------------------------------------


def long_run(
    target: bures.Target, seed: int, settings: dict[str, Any], several: bool
) -> tuple[Run, Callable[[np.ndarray], np.ndarray]]:
    """Longer chains from where a fit is, in non-centred coordinates where the model says which these are.

    Of `several` equivalent modes in one of them. With the chains comes the way back to the target's coordinates.
    """
    key = jax.random.key(seed + 10_000)
    starts = _starts(key, target)
    inner, back = target, np.asarray
    if target.sites and not several:
        inner = recentre(target, 0.0)
        (change,) = changes_of(inner)
        starts = jax.vmap(change.apply)(starts)
        restore = jax.jit(jax.vmap(lambda z: change.restore(z)[0]))

        def back(draws: np.ndarray) -> np.ndarray:
            return np.asarray(restore(jnp.asarray(draws.reshape(-1, target.dim)))).reshape(draws.shape)

    options = {"warmup": settings["reference_warmup"], "wanted": settings["reference_effective"]}
    return run_chains(key, inner, starts, seconds=settings["reference_seconds"], **options), back


def _starts(key: Key[Array, ""], target: bures.Target) -> Array:
    """Near the centre of a fit: in one of several modes, and nowhere that other coordinates make extreme."""
    q = bures.fit(target, key=key, progress=False).approximation
    return q.mean + 0.1 * (q.sample(key, CHAINS) - q.mean)


def effective(draws: Any, num_chains: int) -> np.ndarray:
    """Bulk effective sizes of draws that are chain after chain; of what does not vary, their number."""
    chains = np.asarray(draws, np.float64).reshape(num_chains, -1, np.shape(draws)[-1])
    sizes = _diagnose("ess", np.moveaxis(chains, 2, 0), method="bulk")
    return np.where(np.isfinite(sizes), sizes, float(len(draws)))


def summarise(draws: Any, ess: np.ndarray | float) -> dict[str, Any]:
    """Moments of each coordinate with their effective sizes, and the relative errors of standard deviations."""
    draws = np.asarray(draws, np.float64)
    ess = np.broadcast_to(np.asarray(ess, np.float64), draws.shape[1:])
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    kurtosis = np.mean(((draws - mean) / np.where(sd > 0, sd, 1)) ** 4, axis=0)
    error = np.sqrt(np.maximum(kurtosis - 1, 1) / (4 * ess))
    columns = {"mean": mean, "sd": sd, "ess": ess, "sd_error": error}
    return {name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()}


def moment_gaussian(target: bures.Target, draws: np.ndarray, effective: float) -> float | None:
    """nESS of the Gaussian with the moments of the draws; None where these are too few to know a covariance by."""
    dim = target.dim
    if effective < 5 * dim or dim > 400:
        return None
    q = bures.Gaussian.from_moments(jnp.asarray(draws.mean(axis=0)), jnp.asarray(np.atleast_2d(np.cov(draws.T))))
    z = q.sample(jax.random.key(7), 4_000)
    return ness(np.asarray(_values(target, z)) - np.asarray(q.log_prob(z)))


@eqx.filter_jit
def _values(target: bures.Target, z: Array) -> Array:
    return target.value(z)
