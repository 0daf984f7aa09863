"""Signal-to-noise ratios of gradient estimators, and how they scale (section 4.2 of the paper)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.check import check_function, check_key, check_positive_integer, fail, is_traced
from bures.compiled import compiled


class SNR(eqx.Module):
    """Signal-to-noise ratios |mean| / standard deviation, coordinate by coordinate, kept by seed."""

    num_realisations: int = eqx.field(static=True)  # of each seed
    means: Float[np.ndarray, "seeds coordinates"]
    second_moments: Float[np.ndarray, "seeds coordinates"]  # about the mean of all seeds: no cancellation

    @property
    def coordinates(self) -> Float[np.ndarray, " coordinates"]:
        """The ratio of each coordinate, from the realisations of all seeds together."""
        return self._pooled(np.ones(len(self.means), bool))

    @property
    def value(self) -> float:
        """The average over coordinates."""
        return float(np.mean(self.coordinates))

    @property
    def leave_one_out(self) -> Float[np.ndarray, " seeds"]:
        """`value` without each of the seeds."""
        keep = ~np.eye(len(self.means), dtype=bool)
        return np.array([np.mean(self._pooled(kept)) for kept in keep])

    @property
    def noise_floor(self) -> float:
        """What `value` would be, on average, if the true gradient were zero: √(2/π) / √R."""
        return math.sqrt(2 / (math.pi * self.num_realisations * len(self.means)))

    def _pooled(self, kept: np.ndarray) -> np.ndarray:
        total = self.num_realisations * int(kept.sum())
        centre = np.mean(self.means, axis=0)
        mean = np.mean(self.means[kept], axis=0)
        variance = np.mean(self.second_moments[kept], axis=0) - (mean - centre) ** 2
        return np.abs(mean) / np.sqrt(np.maximum(variance, 0) * total / (total - 1))


def snr(
    key: Key[Array, ""],
    gradient: Callable[[Key[Array, ""]], Float[Array, " coordinates"]],
    *,
    num_seeds: int = 10,
    num_realisations: int = 200,
    batch_size: int | None = None,
) -> SNR:
    """The SNR of a stochastic gradient, a function from a key to a vector.

    Each of `num_seeds` seeds gives `num_realisations` independent realisations, `batch_size` of them at a time
    (default: one at a time, the least memory).

    >>> noisy = lambda key: 1.0 + jax.random.normal(key, (3,))
    >>> round(snr(jax.random.key(0), noisy, num_realisations=2000).value, 1)
    1.0
    """
    check_key(key)
    if is_traced(key):
        raise fail("key", "concrete", key, "It looks at values: call snr outside jit and vmap.")
    check_positive_integer("num_seeds", num_seeds, "The jackknife needs at least two seeds.")
    check_positive_integer("num_realisations", num_realisations, "It is the number of draws of each seed.")
    check_function("gradient", gradient, "a function of a key", "It returns one realisation, a vector.")
    if batch_size is not None:
        check_positive_integer("batch_size", batch_size, "It is the number of realisations at a time.")
    if num_seeds < 2:
        raise fail("num_seeds", "at least 2", num_seeds, "The jackknife leaves one seed out at a time.")
    keys = jax.vmap(lambda k: jax.random.split(k, num_realisations))(jax.random.split(key, num_seeds))
    draws = np.asarray(_realise(gradient, keys.reshape(-1), batch_size), np.float64)
    draws = draws.reshape(num_seeds, num_realisations, -1)
    centred = draws - np.mean(draws, axis=(0, 1))
    return SNR(num_realisations, np.mean(draws, axis=1), np.mean(centred**2, axis=1))


@compiled
def _realise(gradient: Callable, keys: Key[Array, " n"], batch_size: int | None) -> Float[Array, "n coordinates"]:
    return jax.lax.map(lambda key: jnp.atleast_1d(gradient(key)), keys, batch_size=batch_size)


def snr_slope(x: Any, ratios: Sequence[SNR]) -> tuple[float, float]:
    """The least-squares slope of log SNR on log x, with its leave-one-seed-out jackknife standard error."""
    if not isinstance(ratios, Sequence) or not all(isinstance(ratio, SNR) for ratio in ratios):
        raise fail("ratios", "a list of SNR", ratios, "Make each with bures.snr.")
    wanted = f"{len(ratios)} positive numbers, one for each SNR, and at least 2"
    try:
        numbers = np.asarray(x)
        values = numbers.astype(np.float64) if numbers.dtype.kind in "fiu" else np.full(1, np.nan)
    except (TypeError, ValueError) as error:
        raise fail("x", wanted, x, "Match x to the ratios.") from error
    if values.ndim != 1 or values.size != len(ratios) or values.size < 2:
        raise fail("x", wanted, x, "Match x to the ratios.")
    if not np.all(np.isfinite(values)) or np.any(values <= 0) or np.ptp(values) == 0:
        raise fail("x", f"{wanted}, not all the same", x, "Its logarithm is taken: pass K, M or the like.")
    log_x = np.log(values)
    slope = _slope(log_x, np.log([ratio.value for ratio in ratios]))
    without = np.log(np.stack([ratio.leave_one_out for ratio in ratios]))
    slopes = np.array([_slope(log_x, column) for column in without.T])
    seeds = slopes.size
    return slope, math.sqrt((seeds - 1) / seeds * np.sum((slopes - slopes.mean()) ** 2))


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))
