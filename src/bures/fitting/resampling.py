"""Importance-resampled draws of a fit: in the coordinates of its target, and in those of the target that was given."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.centring import AbstractChange, changes_of
from bures.check import check_key, check_positive_integer, fail
from bures.compiled import compiled
from bures.diagnostics.weighted import WeightedDraws
from bures.rows.stream import affordable_draws

if TYPE_CHECKING:
    from bures.fitting.result import Fit

_POOL, _POOL_ELEMENTS = 10_000, 2**26  # draws to choose from, and their numbers: half a gigabyte


def resampled(fit: "Fit", key: Key[Array, ""], n: int, K: int | None = None) -> Float[np.ndarray, "n dim"]:
    """See `Fit.resample`; in the coordinates of the fit's target."""
    check_key(key)
    check_positive_integer("n", n, "It is the number of draws.")
    key_pool, key_choice = jax.random.split(key)
    if K is None:
        size = max(10 * n, min(_POOL, _POOL_ELEMENTS // fit.target.dim))
        size = max(n, min(size, affordable_draws(fit.target)))
        draws = WeightedDraws.draw(key_pool, fit.approximation, fit.target, size)
        return draws.z[draws.choose(key_choice, n)]
    check_positive_integer("K", K, "It is the number of candidates for each draw, e.g. K=50.")
    draws = WeightedDraws.draw(key_pool, fit.approximation, fit.target, n * K)
    log_weights = np.where(np.isnan(draws.log_weights), -np.inf, draws.log_weights).reshape(n, K)
    if lost := int(np.sum(~np.isfinite(log_weights.max(axis=1)))):
        remedy = "Raise K, or leave it out: all draws are then chosen from one pool."
        raise fail(
            "K", "so large that one of each draw's candidates has a positive, finite density", f"{lost} without", remedy
        )
    chosen = np.asarray(jax.random.categorical(key_choice, log_weights, axis=1))
    return draws.z[K * np.arange(n) + chosen]


def as_given(fit: "Fit", z: Any) -> Any:
    """Points of the fit's target as points of the one that the user gave, where `refine` has learned coordinates."""
    if fit.record.is_recentred:
        for change in reversed(changes_of(fit.target)):
            z = _restored(change, jnp.asarray(z))
    return z


@compiled
def _restored(change: AbstractChange, z: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    return jax.vmap(lambda point: change.restore(point)[0])(z)
