"""The measurements of `bench ladder`: a fit of a target by a contestant, judged by fresh draws that are not its own."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import numpy as np

import bures
from bures.benchmarks.pages import number
from bures.diagnostics.pareto import pareto_khat
from bures.diagnostics.weighted import log_evidence, ness

GAUSSIAN, MIXTURE, REFINE, SAMPLE = "Gaussian", "Mixture", "refine", "sample"
JUDGE, AGAIN = 2**31, 2**31 + 1  # folded into a key: no step of a fit has these numbers
KHATS = (-1.0, 10.0)  # what is below is exact, what is above hopeless: JSON has no infinities
_ELEMENTS = 2**18  # of a block of draws

Contestant = Callable[[bures.Target, jax.Array], bures.Fit]


def gaussian(target: bures.Target, key: jax.Array) -> bures.Fit:
    """`bures.fit` with nothing set."""
    return bures.fit(target, key=key, progress=False)


def mixture(target: bures.Target, key: jax.Array) -> bures.Fit:
    """The adaptive mixture, its number of components not given."""
    return bures.fit(target, key=key, family=bures.Mixture(), progress=False)


def refine(target: bures.Target, key: jax.Array) -> bures.Fit:
    """`bures.fit` and the next rung; where that is centring and cannot be trusted yet, the one after it, too."""
    fit = gaussian(target, key).refine(jax.random.fold_in(key, AGAIN), progress=False)
    if isinstance(fit.approximation, bures.GaussianMixture) or fit.diagnostics.trustworthy:
        return fit
    return fit.refine(jax.random.fold_in(key, AGAIN + 1), progress=False)


CONTESTANTS: dict[str, Contestant] = {GAUSSIAN: gaussian, MIXTURE: mixture, REFINE: refine}


def available(names: Iterable[str]) -> list[str]:
    """Those of the contestants that this version of bures has."""
    known = {MIXTURE: hasattr(bures, "Mixture"), REFINE: hasattr(bures.Fit, "refine"), SAMPLE: hasattr(bures, "sample")}
    return [name for name in names if known.get(name, True)]


# ---- What a fit says of itself --------------------------------------------------------------------------------------


def facts(fit: bures.Fit) -> dict[str, Any]:
    judged, q = fit.diagnostics, fit.approximation
    parts = {name: int(count) for name, count in fit.evaluations._asdict().items()}
    total = int(fit.num_log_density_evaluations)
    return {
        "family": type(q).__name__,
        "components": components_of(q),
        "outcome": fit.outcome.name,
        "verdict": judged.verdict.value,
        "own_khat": number(judged.khat),
        "own_ness": number(judged.ness),
        "own_log_evidence": number(judged.log_evidence),
        "steps": int(fit.num_steps),
        "evaluations": total,
        "beyond": beyond(parts, total),
        "evaluations_by_phase": parts,
        "phases": {name: float(seconds) for name, seconds in fit.seconds.items()},
    }


def beyond(parts: dict[str, int], total: int) -> int:
    """Evaluations beyond the Gaussian's, the judgement's left out; all but the start's where a fit does not say.

    >>> beyond({"start": 10, "steps": 100, "judgement": 40}, 150), beyond({"gaussian": 60, "steps": 20}, 80)
    (100, 20)
    """
    return total - parts.get("gaussian", parts.get("start", 0)) - parts.get("judgement", 0)


def components_of(q: Any) -> int:
    """The number of components of a mixture; one of a Gaussian."""
    for name in ("num_components", "weights", "log_weights"):
        found = getattr(q, name, None)
        if found is not None:
            return int(found if np.ndim(found) == 0 else len(found))
    return 1


# ---- The judge ------------------------------------------------------------------------------------------------------


def judge(q: Any, target: bures.Target, seed: int, num_samples: int, error: float | None = None) -> dict[str, Any]:
    """nESS, k̂, log evidence and ELBO by fresh draws; of `error`, as many more as bring the ELBO's standard error to it.

    At most twenty times as many.
    """
    key = jax.random.fold_in(jax.random.key(seed), JUDGE)
    log_weights = _log_weights(key, q, target, 0, num_samples)
    if error is not None and np.all(np.isfinite(log_weights)):
        wanted = min(20.0, np.var(log_weights) / num_samples / error**2) * num_samples
        more = _log_weights(key, q, target, 1, max(0, math.ceil(wanted) - num_samples))
        log_weights = np.concatenate([log_weights, more])
    return figures(log_weights)


def figures(log_weights: np.ndarray) -> dict[str, Any]:
    """What log weights say; a draw outside of the support leaves no ELBO, and one that is not a number nothing."""
    if np.any(np.isnan(log_weights)) or not np.isfinite(np.max(log_weights)):
        return {"ness": 0.0, "khat": KHATS[1], "log_evidence": None, "elbo": None, "draws": log_weights.size}
    evidence, evidence_error = log_evidence(log_weights)
    error = np.std(log_weights, ddof=1) / math.sqrt(log_weights.size) if np.all(np.isfinite(log_weights)) else None
    return {
        "ness": ness(log_weights),
        "khat": float(np.clip(pareto_khat(log_weights), *KHATS)),
        "log_evidence": evidence,
        "log_evidence_error": number(evidence_error),
        "elbo": number(np.mean(log_weights)),
        "elbo_error": number(error),
        "draws": log_weights.size,
    }


def _log_weights(key: jax.Array, q: Any, target: bures.Target, part: int, n: int) -> np.ndarray:
    """log p − log q of n draws, in blocks of one size, so that one program serves them all."""
    block = max(100, _ELEMENTS // target.dim // 10)
    found = []
    for i in range(math.ceil(n / block)):
        z = q.sample(jax.random.fold_in(jax.random.fold_in(key, part), i), block)
        found.append(np.asarray(_values(target, z), np.float64) - np.asarray(q.log_prob(z), np.float64))
    return np.concatenate(found)[:n] if found else np.zeros(0)


@eqx.filter_jit
def _values(target: bures.Target, z: jax.Array) -> jax.Array:
    return target.value(z)


# ---- One cell -------------------------------------------------------------------------------------------------------


def measure(contestant: str, target: bures.Target, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One fit and its judgement. That a contestant fails on a target is a result too."""
    began = time.perf_counter()
    try:
        fit = CONTESTANTS[contestant](target, jax.random.key(seed))
        said = facts(fit)  # the judgement is part of a fit
    except ImportError:
        raise
    except Exception as error:
        return failure(error)
    seconds = time.perf_counter() - began
    # In the coordinates of the fit, which may be learned ones.
    found = judge(fit.approximation, fit.target, seed, settings["num_samples"], settings.get("elbo_error"))
    return {**said, **found, "seconds": seconds}


def failure(error: Exception) -> dict[str, Any]:
    return {"outcome": "FAILED", "message": f"{type(error).__name__}: {error}"[:300]}
