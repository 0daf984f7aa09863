"""The measurements of `bench models`: one method on one model, judged by one judge and against one reference."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.benchmarks import peers
from bures.benchmarks.ladder_cells import failure, figures
from bures.benchmarks.ladder_sample import facts as facts_of_tree
from bures.benchmarks.pages import number
from bures.diagnostics.pareto import smooth_log_weights
from bures.diagnostics.weighted import relative_weights

FIT, SAMPLE, NUTS, REFERENCE, LAPLACE = "bures.fit", "bures.sample", "NUTS", "reference", "Laplace"
FULL, LOW_RANK, DIAGONAL = "AutoMultivariateNormal", "AutoLowRankMultivariateNormal", "AutoNormal"
ADVI, PATHFINDER = "ADVI", "Pathfinder"
PEERS: dict[str, Callable[[bures.Target, dict[str, Any]], peers.Run]] = {
    LAPLACE: peers.laplace,
    FULL: peers.numpyro,
    LOW_RANK: peers.numpyro_low_rank,
    DIAGONAL: peers.numpyro_diagonal,
    ADVI: peers.pymc_mean_field,
    PATHFINDER: peers.pymc_pathfinder,
}
MEAN, DEVIATION = 0.1, 0.1  # what `solved` means: in reference standard deviations, and relative
ERRORS = 3.0  # Monte Carlo standard errors that are allowed for, in quadrature
_DRAWS, _ELEMENTS = 10_000, 4_000_000  # of the judge, and their numbers at most
_JUDGE = 2**31  # folded into a key
_COUNTED = 1_000  # draws that an answer's own errors are allowed for, at the least: fewer effective ones are its fault


# ---- Scales ---------------------------------------------------------------------------------------------------------

OWN, UNCONSTRAINED = "own", "unconstrained"  # the model's variables as it names them, and the scale of the target


class Scales(eqx.Module):
    """The `constrain` of a target that is measured on both scales."""

    constrain: Callable[[Any], dict[str, Any]]

    def __call__(self, z: Any) -> dict[str, Any]:
        return {OWN: jnp.concatenate([jnp.ravel(part) for part in self.constrain(z).values()]), UNCONSTRAINED: z}


@eqx.filter_jit
def on_scales(target: bures.Target, z: jax.Array) -> dict[str, jax.Array]:
    """Draws (n, dim) by scale."""
    return jax.vmap(target.constrain)(z)


# ---- Errors ---------------------------------------------------------------------------------------------------------


def errors(mean: np.ndarray, sd: np.ndarray, draws: float, reference: dict[str, Any]) -> dict[str, Any]:
    """The largest errors, and the same with Monte Carlo errors of both sides taken off in quadrature.

    >>> known = {"mean": [0.0], "sd": [1.0], "ess": [1e8], "sd_error": [1e-4]}
    >>> found = errors(np.array([0.2]), np.array([1.1]), 1e8, known)
    >>> [round(found[name], 3) for name in ("mean_error", "mean_excess", "deviation_error")]
    [0.2, 0.2, 0.1]
    """
    known = {name: np.asarray(reference[name]) for name in ("mean", "sd", "ess", "sd_error")}
    varies = known["sd"] > 1e-9 * np.abs(known["mean"])  # a correlation of a variable with itself does not
    known, mean, sd = {name: column[varies] for name, column in known.items()}, mean[varies], sd[varies]
    draws = max(draws, _COUNTED)
    off = np.abs(mean - known["mean"]) / known["sd"]
    ratio = np.abs(sd / known["sd"] - 1)
    noise = 1 / known["ess"] + 1 / draws
    deviation_noise = known["sd_error"] ** 2 * (1 + known["ess"] / draws)
    excess = np.sqrt(np.maximum(off**2 - ERRORS**2 * noise, 0))
    deviation_excess = np.sqrt(np.maximum(ratio**2 - ERRORS**2 * deviation_noise, 0))
    return {
        "mean_error": number(np.max(off)),
        "deviation_error": number(np.max(ratio)),
        "mean_excess": number(np.max(excess)),
        "deviation_excess": number(np.max(deviation_excess)),
    }


def is_solved(found: dict[str, Any] | None) -> bool | None:
    """Whether means are within 0.1 reference standard deviations and standard deviations within 10%."""
    if found is None:
        return None
    mean, deviation = found["mean_excess"], found["deviation_excess"]
    return mean is not None and deviation is not None and mean <= MEAN and deviation <= DEVIATION


def judge(q: Any, target: bures.Target, seed: int, reference: dict[str, Any] | None) -> dict[str, Any]:
    """nESS, k̂, evidence and ELBO by fresh draws; errors of the draws, plain and corrected by importance weights."""
    n = int(min(_DRAWS, _ELEMENTS // target.dim))
    key = jax.random.fold_in(jax.random.key(seed), _JUDGE)
    z = q.sample(key, n)
    log_weights = np.asarray(_values(target, z), np.float64) - np.asarray(q.log_prob(z), np.float64)
    found = figures(log_weights)
    if reference is None or not np.all(np.isfinite(np.asarray(z))):
        return found
    scales = on_scales(target, z)
    plain = errors_by_scale(scales, np.full(n, 1 / n), n, reference)
    return found | {"plain": plain, "corrected": _corrected(scales, log_weights, reference)}


def _corrected(scales: Any, log_weights: np.ndarray, reference: dict[str, Any]) -> dict[str, Any] | None:
    """Errors of moments weighted by Pareto-smoothed importance weights."""
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    if not np.isfinite(np.max(log_weights)):
        return None
    weights = relative_weights(smooth_log_weights(log_weights))
    weights /= weights.sum()
    return errors_by_scale(scales, weights, 1 / np.sum(weights**2), reference)


def errors_by_scale(scales: Any, weights: np.ndarray, draws: float, reference: dict[str, Any]) -> dict[str, Any]:
    """Errors of the moments of weighted draws, on each scale."""
    found = {}
    for scale in (OWN, UNCONSTRAINED):
        z = np.asarray(scales[scale], np.float64)
        mean = weights @ z
        sd = np.sqrt(np.maximum(weights @ (z - mean) ** 2, 0))
        found[scale] = errors(mean, sd, draws, reference[scale])
    return found


@eqx.filter_jit
def _values(target: bures.Target, z: jax.Array) -> jax.Array:
    return target.value(z)


# ---- Methods --------------------------------------------------------------------------------------------------------


def fit(target: bures.Target, seed: int, settings: dict[str, Any], reference: Any) -> dict[str, Any]:
    """`bures.fit` with nothing set; a short one is run twice, and the second time is warm."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        found = bures.fit(target, key=jax.random.key(seed), progress=False)
        times.append(time.perf_counter() - began)
        if times[0] > settings["patience"]:
            break
    judged = found.diagnostics
    said = {
        "family": type(found.approximation).__name__,
        "outcome": found.outcome.name,
        "verdict": judged.verdict.value,
        "trusted": bool(judged.trustworthy),
        "evaluations": int(found.num_log_density_evaluations),
        "own_khat": number(judged.khat),
        "own_ness": number(judged.ness),
        "seconds": times[0],
        "warm_seconds": times[1] if len(times) > 1 else None,
    }
    return said | judge(found.approximation, found.target, seed, reference)


def sample(target: bures.Target, seed: int, settings: dict[str, Any], reference: Any) -> dict[str, Any]:
    """`bures.sample` of 1,000 draws, of which only the clock may cut something off."""
    began = time.perf_counter()
    options = {"num_draws": settings["num_draws"], "max_seconds": settings["sample_seconds"]}
    tree = bures.sample(target, key=jax.random.key(seed), progress=False, **options)
    seconds = time.perf_counter() - began
    found = facts_of_tree(tree) | {"outcome": "RETURNED", "seconds": seconds}
    found["verdict"] = found["verdict"][:200]
    if reference is not None:
        # Draws of chains depend on each other: they count as those that were asked for.
        scales = {name: np.asarray(tree["posterior"][name].values) for name in (OWN, UNCONSTRAINED)}
        scales = {name: draws.reshape(-1, draws.shape[-1]) for name, draws in scales.items()}
        count = len(scales[OWN])
        found["plain"] = errors_by_scale(scales, np.full(count, 1 / count), settings["num_draws"], reference)
    return found


def peer(name: str, target: bures.Target, seed: int, settings: dict[str, Any], reference: Any) -> dict[str, Any]:
    """A peer; the first time is with its compilation."""
    began = time.perf_counter()
    with peers.quiet():
        run = PEERS[name](target, settings)
        answer = run(seed)
        seconds = time.perf_counter() - began
        again = time.perf_counter()
        if seconds < settings["patience"]:
            run(seed)
        warm = time.perf_counter() - again if seconds < settings["patience"] else None
    said = {"outcome": answer.outcome, "evaluations": answer.num_gradients, "seconds": seconds, "warm_seconds": warm}
    if answer.approximation is not None:
        said |= judge(answer.approximation, target, seed, reference)
    if answer.draws is not None and reference is not None:
        count = len(answer.draws)
        scales = on_scales(target, jnp.asarray(answer.draws))
        said["plain"] = errors_by_scale(scales, np.full(count, 1 / count), count, reference)
    return said


def measure(
    method: str, target: bures.Target, seed: int, settings: dict[str, Any], reference: dict[str, Any] | None
) -> dict[str, Any]:
    """One cell; that a method fails, or takes too long, is a result too."""
    try:
        with at_most(settings["limit"]):
            if method == FIT:
                return fit(target, seed, settings, reference)
            if method == SAMPLE:
                return sample(target, seed, settings, reference)
            return peer(method, target, seed, settings, reference)
    except ImportError:
        raise
    except Exception as error:
        return failure(error)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TimeoutError after so many seconds, as soon as Python is back from what it called; not in other threads."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e6) if math.isfinite(seconds) else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
