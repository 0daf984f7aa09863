"""How good is a Gaussian approximation? Importance weights of fresh draws tell, without knowing the answer."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.check import check_key, check_positive_integer, fail
from bures.estimator import check_dimensions
from bures.gaussian import Gaussian
from bures.objective import IWELBO
from bures.target import Target

# Draws are evaluated in blocks of this many, so that memory does not grow with their number.
_BLOCK = 1024
_CLOSE = 0.9  # nESS from which plain draws are as good as corrected ones


@eqx.filter_jit
def _values(target: Target, z: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.lax.map(lambda point: target.log_density(point).astype(z.dtype), z, batch_size=_BLOCK)


class Pool(eqx.Module):
    """Draws from q with their log p and log q."""

    z: Float[Array, "n dim"]
    log_p: Float[Array, " n"]
    log_q: Float[Array, " n"]

    @classmethod
    def draw(cls, key: Key[Array, ""], q: Gaussian, target: Target, num_samples: int) -> "Pool":
        check_key(key)
        check_dimensions(q, target)
        check_positive_integer("num_samples", num_samples, "It is the number of fresh draws, e.g. 10_000.")
        noise = jax.random.normal(key, (num_samples, q.dim), q.mean.dtype)
        z = q.push(noise)
        return cls(z, _values(target, z), q.log_prob_of_noise(noise))

    @property
    def log_weights(self) -> Float[Array, " n"]:
        return self.log_p - self.log_q

    def choose(self, key: Key[Array, ""], n: int) -> Array:
        """Indices of `n` draws, chosen by their Pareto-smoothed weights.

        Systematic resampling (one uniform for all of them: the least variance in the counts), then shuffled.
        """
        weights = smooth_log_weights(self.log_weights)
        if not np.isfinite(np.max(weights)):
            raise ValueError("None of the draws has a positive, finite density: the approximation misses the target.")
        shares = np.cumsum(np.exp(weights - np.max(weights)))
        key_offset, key_order = jax.random.split(key)
        ticks = (np.arange(n) + float(jax.random.uniform(key_offset))) / n
        chosen = np.minimum(np.searchsorted(shares / shares[-1], ticks), weights.size - 1)
        return jax.random.permutation(key_order, jnp.asarray(chosen))


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Quality of an approximation, from `num_samples` fresh draws. Printable."""

    num_samples: int
    elbo: float
    elbo_mcse: float
    iw_elbo: float
    iw_elbo_K: int
    ness: float
    khat: float
    khat_threshold: float
    log_evidence: float
    log_evidence_mcse: float
    min_eigenvalue: float | None = None  # over the run, where the diagnostics are those of a fit
    clip_rate: float | None = None

    @property
    def trustworthy(self) -> bool:
        """Whether importance weights can correct what is left of the error."""
        return self.khat < self.khat_threshold

    @property
    def message(self) -> str:
        """What k̂ says, and what to do about it."""
        return advice(self.khat, self.khat_threshold, self.ness)

    def rows(self) -> list[tuple[str, str]]:
        """Names and formatted values, for tables."""
        rows = [
            ("ELBO", f"{self.elbo:.3f} ± {self.elbo_mcse:.3f}"),
            (f"IW-ELBO (K = {self.iw_elbo_K})", f"{self.iw_elbo:.3f}"),
            ("log evidence", f"{self.log_evidence:.3f} ± {self.log_evidence_mcse:.3f}"),
            ("nESS", f"{100 * self.ness:.1f}%"),
            ("Pareto k̂", f"{self.khat:.2f} (threshold {self.khat_threshold:.2f} at {self.num_samples} draws)"),
        ]
        if self.min_eigenvalue is not None:
            rows.append(("smallest eigenvalue in the run", f"{self.min_eigenvalue:.3g}"))
        if self.clip_rate is not None:
            rows.append(("steps where the safeguard acted", f"{100 * self.clip_rate:.1f}%"))
        return rows

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        return "\n".join([*(f"{name:<{width}}  {value}" for name, value in self.rows()), self.message])


def diagnose(
    key: Key[Array, ""], q: Gaussian, target: Target, *, num_samples: int = 10_000, K: int = 10, **run: Any
) -> Diagnostics:
    """Diagnostics of q as an approximation to the target, from fresh importance weights."""
    check_positive_integer("K", K, "It is the tuple size of the reported IW-ELBO, e.g. K=10.")
    if num_samples < max(K, 25):
        raise fail("num_samples", f"at least {max(K, 25)}", num_samples, "k̂ needs a tail to look at.")
    values = np.asarray(Pool.draw(key, q, target, num_samples).log_weights, np.float64)
    finite = bool(np.all(np.isfinite(values)))
    tuples = jnp.asarray(values[: num_samples // K * K].reshape(-1, K))
    evidence, evidence_mcse = log_evidence(values)
    return Diagnostics(
        num_samples=num_samples,
        elbo=float(np.mean(values)),
        elbo_mcse=float(np.std(values, ddof=1) / math.sqrt(num_samples)) if finite else math.inf,
        iw_elbo=float(jnp.mean(IWELBO(K).bound(tuples))),
        iw_elbo_K=K,
        ness=ness(values),
        khat=pareto_khat(values),
        khat_threshold=khat_threshold(num_samples),
        log_evidence=evidence,
        log_evidence_mcse=evidence_mcse,
        **run,
    )


def ness(log_weights: Any) -> float:
    """Normalised effective sample size (Σw)² / (n Σw²)."""
    log_weights = np.asarray(log_weights, np.float64)
    if not np.isfinite(np.max(log_weights)):
        return 0.0
    weights = _relative_weights(log_weights)
    return float(np.sum(weights) ** 2 / (weights.size * np.sum(weights**2)))


def log_evidence(log_weights: Any) -> tuple[float, float]:
    """log mean w, and its Monte Carlo standard error by the delta method."""
    log_weights = np.asarray(log_weights, np.float64)
    top = float(np.max(log_weights))
    if not math.isfinite(top):
        return top, math.inf
    weights = _relative_weights(log_weights)
    mean = np.mean(weights)
    error = np.std(weights, ddof=1) / (mean * math.sqrt(weights.size))
    return top + float(np.log(mean)), float(error)


def khat_threshold(num_samples: int) -> float:
    """The k̂ above which `num_samples` draws cannot correct the approximation: min(1 − 1/log10 n, 0.7)."""
    return min(1 - 1 / math.log10(num_samples), 0.7)


def pareto_khat(log_weights: Any) -> float:
    """Shape of the generalised Pareto distribution fitted to the largest weights (Vehtari et al., 2024).

    Infinite if the weights have no tail to fit because they are not finite or sit on a few draws; −inf if they are
    all equal, when the approximation is exact.
    """
    tail = _tail(np.asarray(log_weights, np.float64))
    return tail if isinstance(tail, float) else tail[0]


def smooth_log_weights(log_weights: Any) -> np.ndarray:
    """Pareto-smoothed log weights: the largest replaced by the fitted tail's expected order statistics."""
    log_weights = np.asarray(log_weights, np.float64)
    tail = _tail(log_weights)
    if isinstance(tail, float):
        return log_weights
    k, sigma, order, cutoff, top = tail
    ranks = (np.arange(order.size) + 0.5) / order.size
    quantiles = -sigma * np.log1p(-ranks) if abs(k) < 1e-12 else sigma * np.expm1(-k * np.log1p(-ranks)) / k
    smoothed = log_weights.copy()
    smoothed[order] = np.minimum(np.log(quantiles + math.exp(cutoff)), 0) + top
    return smoothed


def _relative_weights(log_weights: np.ndarray) -> np.ndarray:
    return np.exp(log_weights - np.max(log_weights))


def _tail(log_weights: np.ndarray) -> Any:
    """(k, sigma, indices of the tail, log cutoff, largest log weight), or k alone where there is nothing to fit."""
    if np.any(np.isnan(log_weights)) or np.max(log_weights) in (np.inf, -np.inf):
        return math.inf
    top = float(np.max(log_weights))
    relative = log_weights - top
    size = log_weights.size
    length = int(min(size / 5, 3 * math.sqrt(size)))
    order = np.argsort(relative)[size - length - 1 :]
    cutoff, order = float(relative[order[0]]), order[1:]
    if length < 5 or cutoff < -700:
        return math.inf
    # Weights equal to rounding have no tail: the approximation is exact.
    if -cutoff <= 1e-9 * max(1.0, abs(top)):
        return -math.inf
    exceedances = np.exp(relative[order]) - math.exp(cutoff)
    return (*_fit_pareto(exceedances), order, cutoff, top)


def _fit_pareto(x: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto for sorted exceedances (Zhang and Stephens, 2009, with a weak prior)."""
    n = x.size
    grid_size = 30 + int(math.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1]
    spread = np.sqrt(grid_size / (np.arange(1, grid_size + 1) - 0.5))
    theta = 1 / x[-1] + (1 - spread) / (3 * max(quartile, np.finfo(float).tiny))
    shape = np.mean(np.log1p(-theta[:, None] * x), axis=1)
    profile = n * (np.log(-theta / shape) - shape - 1)
    weights = np.exp(profile - np.max(profile))
    estimate = np.sum(theta * weights) / np.sum(weights)
    k = float(np.mean(np.log1p(-estimate * x)))
    return (n * k + 5) / (n + 10), -k / float(estimate)


def forward_kl(key: Key[Array, ""], target: Target, q: Gaussian, *, num_samples: int = 10_000) -> tuple[float, float]:
    """KL(p ‖ q) = E_p[log p − log q] with its standard error, for a normalised target that can be sampled."""
    check_key(key)
    if target.sample is None:
        raise fail("target", "one with a `sample` function", target.log_density, "Use q.kl between Gaussians instead.")
    z = target.sample(key, num_samples)
    terms = np.asarray(_values(target, z) - q.log_prob(z), np.float64)
    return float(np.mean(terms)), float(np.std(terms, ddof=1) / math.sqrt(num_samples))


def moment_errors(q: Gaussian, mean: Any, covariance: Any) -> tuple[float, float]:
    """‖m − m*‖² and ‖Σ − Σ*‖_F² (Table 2 of the paper)."""
    return float(jnp.sum((q.mean - mean) ** 2)), float(jnp.sum((q.covariance - covariance) ** 2))


def advice(khat: float, threshold: float, ness: float) -> str:
    """What k̂ and nESS say about an approximation, and what to do about it."""
    if khat == math.inf or math.isnan(khat):
        return "The weights are degenerate or not finite: do not use this approximation. Try a wider init."
    if khat < threshold and ness >= _CLOSE:
        return "The approximation is close to the target: use its draws as they are, or resample them."
    if khat < threshold:
        return "Usable: take fit.resample draws, which importance weights correct, instead of plain ones."
    if ness >= _CLOSE:
        return (
            "The bulk of the target is matched, but its tails are heavier than the approximation's: "
            "do not trust tail probabilities, nor importance weights to correct them; check those by MCMC."
        )
    return (
        "Do not trust this approximation: its weights are too heavy-tailed to correct. Try an IW objective "
        "with larger K, a wider init, a reparameterised model, or MCMC started from here."
    )
