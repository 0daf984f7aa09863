"""The measurements of `bench families`: one fit of a model by a contestant, and its ELBO by draws of one judge.

Every contestant is a function `prepare(target, settings) -> run` with `run(seed) -> Found`; the first run compiles.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

import bures
from bures.benchmarks import peers
from bures.benchmarks.pages import number
from bures.diagnostics.pareto import pareto_khat

DEFAULT, MEAN_FIELD, LOW_RANK = "bures.fit", "MeanField", "LowRank"
AUTO_LOW_RANK, AUTO_NORMAL = "AutoLowRankMultivariateNormal", "AutoNormal"
JUDGE = 2**31  # folded into a key: no step of a fit has this number
COMPILES = 1001  # the seed of the run that compiles


class Found(NamedTuple):
    """An approximation with `dim`, `sample` and `log_prob`, and what is known of how it came about."""

    approximation: Any
    facts: dict[str, Any]


Run = Callable[[int], Found]


# ---- Contestants ----------------------------------------------------------------------------------------------------


def has_families() -> bool:
    """Whether this version of bures knows families at all."""
    return hasattr(bures, MEAN_FIELD)


def ours(family: str | None) -> Callable[[bures.Target, dict[str, Any]], Run]:
    """`bures.fit` with nothing set but the family, its judgement included."""

    def prepare(target: bures.Target, settings: dict[str, Any]) -> Run:
        options = {} if family is None else {"family": getattr(bures, family)()}

        def run(seed: int) -> Found:
            fit = bures.fit(target, key=jax.random.key(seed), progress=False, **options)
            return Found(fit.approximation, facts(fit))

        return run

    return prepare


def facts(fit: bures.Fit) -> dict[str, Any]:
    """What a fit says of itself."""
    judged, q = fit.diagnostics, fit.approximation
    return {
        "family": type(q).__name__,
        "rank": rank_of(q),
        "outcome": fit.outcome.name,
        "verdict": judged.verdict.value,
        "own_khat": number(judged.khat),
        "steps": int(fit.num_steps),
        "evaluations": int(fit.num_log_density_evaluations),
        "evaluations_by_phase": {name: int(count) for name, count in fit.evaluations._asdict().items()},
        "phases": {name: float(seconds) for name, seconds in fit.seconds.items()},
    }


def rank_of(q: Any) -> int | None:
    """The number of active directions; None of a full Gaussian."""
    rank = getattr(q, "rank", None)
    return None if rank is None else int(rank)


def theirs(prepare_peer: Callable[[bures.Target, dict[str, Any]], peers.Run]) -> Callable[..., Run]:
    def prepare(target: bures.Target, settings: dict[str, Any]) -> Run:
        peer = prepare_peer(target, settings)

        def run(seed: int) -> Found:
            with peers.quiet():
                answer = peer(seed)
            q = answer.approximation
            counts = {"steps": answer.num_steps, "evaluations": answer.num_gradients}
            return Found(q, {"outcome": answer.outcome, "rank": rank_of(q), **counts})

        return run

    return prepare


CONTESTANTS: dict[str, Callable[[bures.Target, dict[str, Any]], Run]] = {
    DEFAULT: ours(None),
    MEAN_FIELD: ours(MEAN_FIELD),
    LOW_RANK: ours(LOW_RANK),
    AUTO_LOW_RANK: theirs(peers.numpyro_low_rank),
    AUTO_NORMAL: theirs(peers.numpyro_diagonal),
}
PEERS = (AUTO_LOW_RANK, AUTO_NORMAL)


def available() -> list[str]:
    """All contestants, or those that this version of bures has."""
    return [name for name in CONTESTANTS if has_families() or name not in (MEAN_FIELD, LOW_RANK)]


# ---- One cell -------------------------------------------------------------------------------------------------------


class Contest:
    """One contestant on one target: the first run is timed with its compilations, the later ones without."""

    def __init__(self, contestant: str, target: bures.Target, settings: dict[str, Any]):
        self.target, self.settings = target, settings
        jax.clear_caches()  # what another contestant compiled would make this one's first run look short
        began = time.perf_counter()
        self.run = CONTESTANTS[contestant](target, settings)
        self.run(COMPILES)
        self.cold_seconds = time.perf_counter() - began

    def measure(self, seed: int) -> dict[str, Any]:
        found, seconds, processor = self._timed(seed)
        judged = judge(found.approximation, self.target, seed, self.settings["num_samples"])
        clocks = {"cold_seconds": self.cold_seconds, "warm_seconds": seconds, "cpu_seconds": processor}
        return {**found.facts, **judged, **clocks}

    def _timed(self, seed: int) -> tuple[Found, float, float]:
        """The same run again and again while it is short, by the clock and by the processors' time.

        What exceeds the least is the machine's.
        """
        spent: list[float] = []
        processor: list[float] = []
        while True:
            began, used = time.perf_counter(), time.process_time()
            found = self.run(seed)
            spent.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
            if len(spent) == self.settings["rounds"] or sum(spent) > self.settings["patience"]:
                return found, min(spent), min(processor)


def judge(q: Any, target: bures.Target, seed: int, num_samples: int, block: int = 250) -> dict[str, Any]:
    """The ELBO with its standard error, and k̂, by fresh draws, block by block: one function for all contestants."""
    key = jax.random.fold_in(jax.random.key(seed), JUDGE)
    log_weights = []
    for i in range(math.ceil(num_samples / block)):
        z = q.sample(jax.random.fold_in(key, i), min(block, num_samples - i * block))
        log_weights.append(np.asarray(_values(target, z), np.float64) - np.asarray(q.log_prob(z), np.float64))
    values = np.concatenate(log_weights)
    if not np.all(np.isfinite(values)):
        return {"elbo": None, "elbo_error": None, "khat": None}
    error = np.std(values, ddof=1) / math.sqrt(values.size)
    return {"elbo": float(np.mean(values)), "elbo_error": float(error), "khat": number(pareto_khat(values))}


@eqx.filter_jit
def _values(target: bures.Target, z: jax.Array) -> jax.Array:
    return target.value(z)


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """That a contestant fails on a model is a result too."""
    try:
        return measure()
    except ImportError:
        raise
    except Exception as error:
        return {"outcome": "FAILED", "message": f"{type(error).__name__}: {error}"[:300]}
