"""The tail of importance weights: the generalised Pareto distribution of the largest, and weights smoothed by it.

`arviz-stats` has the same fit, and a test holds this one against it. It is here because its import takes a second, more
than all of a first fit. What is ours is the rule for weights that have no tail to fit.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

NO_MEAN = 1.0  # k̂ from which a tail has no mean
ROUNDING = 32  # roundings of log p that a sum over rows adds up to
_EVEN = 0.01  # nats by which a few of the largest weights differ from all others, that are equal, without a tail


class Tail(NamedTuple):
    """The generalised Pareto distribution of the largest weights."""

    k: float
    sigma: float = math.nan
    order: np.ndarray = np.zeros(0, int)  # indices of the tail's weights, in ascending order
    cutoff: float = math.nan  # log of where the tail begins, relative to the largest weight
    top: float = math.nan  # the largest log weight

    @property
    def error(self) -> float:
        """The standard error of k, by the information of the distribution; 0 where there is nothing to fit."""
        return float(khat_error(self.k, self.order.size)) if self.order.size else 0.0


def khat_error(k: Any, length: int) -> Any:
    """The standard error of a k̂ from so many weights."""
    return (1 + np.maximum(k, -0.5)) / math.sqrt(length)


def tail_length(num_samples: int) -> int:
    """How many of the largest weights make the tail."""
    return int(min(num_samples / 5, 3 * math.sqrt(num_samples)))


def khat_threshold(num_samples: int) -> float:
    """The k̂ above which `num_samples` draws cannot correct the approximation: min(1 − 1/log10 n, 0.7)."""
    return min(1 - 1 / math.log10(num_samples), 0.7)


def pareto_khat(log_weights: Any) -> float:
    """Shape of the generalised Pareto distribution fitted to the largest weights (Vehtari et al., 2024).

    Infinite if the weights have no tail to fit because they are not finite or sit on a few draws; −inf if they are
    equal to rounding, but for a few that are a little larger, when the approximation is exact where it has draws.
    """
    return fit_tail(log_weights).k


def rounding(values: Any, dtype: Any = None) -> float:
    """How far log densities of this size, in this precision, may be off by rounding alone."""
    values = np.asarray(values)
    finite = values[np.isfinite(values)]
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    eps = float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else np.float64).eps)
    return ROUNDING * eps * (float(np.max(np.abs(finite))) if finite.size else 0.0)


def fit_tail(log_weights: Any, resolution: float | None = None) -> Tail:
    """The tail of the weights; log weights that differ by less than `resolution` count as equal."""
    resolution = rounding(log_weights) if resolution is None else resolution
    log_weights = np.asarray(log_weights, np.float64)
    if np.any(np.isnan(log_weights)) or np.max(log_weights) in (np.inf, -np.inf):
        return Tail(math.inf)
    top = float(np.max(log_weights))
    relative = log_weights - top
    size = log_weights.size
    length = tail_length(size)
    order = np.argsort(relative)[size - length - 1 :]
    cutoff, order = float(relative[order[0]]), order[1:]
    if length < 5 or cutoff < -700:
        return Tail(math.inf)
    if -cutoff <= max(resolution, 1e-9):
        return Tail(-math.inf)
    exceedances = np.exp(relative[order]) - math.exp(cutoff)
    if -cutoff < _EVEN and exceedances[length // 2] <= max(resolution, 1e-12):
        return Tail(-math.inf)
    k, sigma = fit_pareto(exceedances)
    if not math.isfinite(k):
        return Tail(math.inf)
    return Tail(float(k), float(sigma), order, cutoff, top)


def smooth_log_weights(log_weights: Any, tail: Tail | None = None) -> np.ndarray:
    """Pareto-smoothed log weights: the largest replaced by the fitted tail's expected order statistics.

    From k̂ = 1 on these do not exist, and quantiles in their place would give half of the tail the largest weight: then
    the weights are truncated instead.
    """
    tail = fit_tail(log_weights) if tail is None else tail
    log_weights = np.asarray(log_weights, np.float64)
    if not tail.order.size:
        return log_weights
    if tail.k >= NO_MEAN:
        return truncate_log_weights(log_weights)
    smoothed = log_weights.copy()
    smoothed[tail.order] = expected_log_weights(tail.k, tail.sigma, tail.cutoff, tail.order.size) + tail.top
    return smoothed


def truncate_log_weights(log_weights: Float[np.ndarray, "*fits n"]) -> Float[np.ndarray, "*fits n"]:
    """Log weights of which none is more than √n times the mean (Ionides, 2008).

    >>> np.exp(truncate_log_weights(np.log([1.0, 1.0, 1.0, 97.0]))).round(6).tolist()
    [1.0, 1.0, 1.0, 50.0]
    """
    n, top = log_weights.shape[-1], np.max(log_weights, axis=-1, keepdims=True)
    mean = top + np.log(np.mean(np.exp(log_weights - top), axis=-1, keepdims=True))
    return np.minimum(log_weights, mean + math.log(n) / 2)


def expected_log_weights(k: Any, sigma: Any, cutoff: Any, size: int) -> Float[np.ndarray, "*fits size"]:
    """The expected order statistics of a tail, on the log scale relative to the largest weight.

    The parameters may be arrays, of one tail for each of several fits.
    """
    k, sigma, cutoff = (np.asarray(number, np.float64)[..., None] for number in (k, sigma, cutoff))
    logs = np.log1p(-(np.arange(size) + 0.5) / size)
    small = np.abs(k) < 1e-12
    with np.errstate(over="ignore"):  # what overflows is bounded below
        quantiles = -sigma * np.where(small, logs, -np.expm1(-k * logs) / np.where(small, 1, k))
    return np.minimum(np.log(quantiles + np.exp(cutoff)), 0)


def fit_pareto(x: Float[np.ndarray, "*fits n"]) -> tuple[Any, Any]:
    """Shape and scale of a generalised Pareto for sorted exceedances (Zhang and Stephens, 2009, with a weak prior)."""
    n = x.shape[-1]
    grid_size = 30 + int(math.sqrt(n))
    quartile = x[..., [int(n / 4 + 0.5) - 1]]
    spread = np.sqrt(grid_size / (np.arange(1, grid_size + 1) - 0.5))
    theta = 1 / x[..., [-1]] + (1 - spread) / (3 * np.maximum(quartile, np.finfo(float).tiny))
    shape = np.mean(np.log1p(-theta[..., :, None] * x[..., None, :]), axis=-1)
    profile = n * (np.log(-theta / shape) - shape - 1)
    weights = np.exp(profile - np.max(profile, axis=-1, keepdims=True))
    estimate = np.sum(theta * weights, axis=-1) / np.sum(weights, axis=-1)
    k = np.mean(np.log1p(-estimate[..., None] * x), axis=-1)
    return (n * k + 5) / (n + 10), -k / estimate
