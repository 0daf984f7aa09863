"""NUTS beside `bures.sample`: gradients that BlackJAX needs for a smallest bulk effective size, and long references."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import bures
from bures.reference import _diagnose, nuts

CHAINS = 4


def gradients_needed(target: bures.Target, seed: int, effective: float, settings: dict[str, Any]) -> dict[str, Any]:
    """What four chains with window adaptation need for a smallest bulk effective size, from standard normal starts.

    Every leapfrog step is a gradient; those of the warm-up count. The effective size of the draws taken is scaled to
    the one wanted, so that neither more nor fewer draws than needed count.
    """
    key_start, key_chains = jax.random.split(jax.random.key(seed))
    starts = target.start() + jax.random.normal(key_start, (CHAINS, target.dim))
    keys = jax.random.split(key_chains, CHAINS)
    counts = settings["nuts_warmup"], settings["nuts_draws"]
    draws, warm, steps, divergent = map(np.asarray, _run(keys, target, starts, *counts))
    coordinates = np.moveaxis(draws.astype(np.float64), 2, 0)
    sizes = _diagnose("ess", coordinates, method="bulk")
    rhat = _diagnose("rhat", coordinates, method="rank")
    smallest = float(np.nan_to_num(np.min(sizes)))
    needed = math.ceil(effective * draws.shape[0] * draws.shape[1] / smallest) if smallest > 0 else None
    return {
        "warmup_gradients": int(warm.sum()),
        "gradients_a_draw": float(steps.mean()),
        "smallest_ess": smallest,
        "largest_rhat": float(np.nan_to_num(np.max(rhat), nan=9.0)),
        "divergences": int(divergent.sum()),
        "draws_needed": needed,
        "evaluations": None if needed is None else int(warm.sum() + needed * steps.mean()),
    }


@eqx.filter_jit
def _run(
    keys: Key[Array, " chain"], target: bures.Target, starts: Array, num_warmup: int, num_samples: int
) -> tuple[Array, Array, Array, Array]:
    """Draws, leapfrog steps of the warm-up, leapfrog steps of each draw, divergences."""
    import blackjax

    def log_density(z: Array) -> Array:
        return target.log_density(z).astype(z.dtype)

    warmup = blackjax.window_adaptation(
        blackjax.nuts, log_density, adaptation_info_fn=lambda state, info, adaptation: info.num_integration_steps
    )

    def run(key: Key[Array, ""], start: Array) -> Any:
        key_warmup, key_draws = jax.random.split(key)
        (state, parameters), spent = warmup.run(key_warmup, start, num_warmup)
        sampler = blackjax.nuts(log_density, **parameters)

        def iterate(state: Any, t: Array) -> Any:
            state, info = sampler.step(jax.random.fold_in(key_draws, t), state)
            return state, (state.position, info.num_integration_steps, info.is_divergent)

        _, (draws, steps, divergent) = jax.lax.scan(iterate, state, jnp.arange(num_samples))
        return draws, jnp.sum(spent), steps, divergent

    return jax.vmap(run)(keys, starts)


def reference(target: bures.Target, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Means and standard deviations of every variable by long chains from a fit, and how far these agree."""
    key = jax.random.key(seed)
    start = bures.fit(target, key=key, progress=False).approximation
    draws, warmup = settings["reference_draws"], settings["nuts_warmup"]
    chains = nuts(jax.random.fold_in(key, 1), target, initial=start, num_samples=draws, num_warmup=warmup)
    variables = jax.jit(jax.vmap(target.constrain))(jnp.asarray(chains.flat))
    return {
        "moments": moments({name: np.asarray(value) for name, value in variables.items()}),
        "largest_rhat": float(np.max(chains.rhat)),
        "smallest_ess": float(np.min(chains.ess)),
        "divergences": int(np.sum(chains.divergences)) if chains.divergences is not None else 0,
    }


Moments = dict[str, dict[str, list[float]]]


def moments(variables: dict[str, np.ndarray]) -> Moments:
    """Mean and standard deviation of each element, by variable; draws along the first axis."""
    found: Moments = {}
    for name, values in variables.items():
        flat = values.reshape(len(values), -1).astype(np.float64)
        found[name] = {"mean": flat.mean(axis=0).tolist(), "sd": flat.std(axis=0).tolist()}
    return found


def errors(found: Moments, reference: Moments) -> dict[str, Any]:
    """The largest error of a mean, in reference standard deviations, and of a standard deviation; and where.

    >>> one, two = {"x": {"mean": [0.1], "sd": [1.1]}}, {"x": {"mean": [0.0], "sd": [1.0]}}
    >>> [round(errors(one, two)[name], 3) for name in ("mean_error", "deviation_error")]
    [0.1, 0.1]
    """
    worst = {"mean_error": 0.0, "deviation_error": 0.0, "where": ""}
    for name, known in reference.items():
        scale = np.asarray(known["sd"])
        mean = np.abs(np.asarray(found[name]["mean"]) - known["mean"]) / scale
        deviation = np.abs(np.asarray(found[name]["sd"]) - scale) / scale
        if max(mean.max(), deviation.max()) > max(worst["mean_error"], worst["deviation_error"]):
            worst["where"] = name
        worst["mean_error"] = max(worst["mean_error"], float(mean.max()))
        worst["deviation_error"] = max(worst["deviation_error"], float(deviation.max()))
    return worst
