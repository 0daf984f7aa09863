"""Every method on every posterior of posteriordb: how good the Gaussian is, and what it cost.

Run by `bures bench posteriordb --path DIR`. One cell a posterior, method and seed, kept by the protocol of the
experiments: a run that was stopped goes on where it was.
"""

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bures import posteriordb
from bures.benchmarks import posteriordb_report
from bures.benchmarks.peers import METHODS, Answer, quiet
from bures.check import check_option, check_positive_integer
from bures.diagnostics import WeightedDraws, diagnose
from bures.experiments.eggbox import STEP_SIZES
from bures.experiments.protocol import Store, run_cells

SETTINGS = {
    "seeds": 1,
    "step_sizes": STEP_SIZES,  # the paper's four methods: those of its eggbox, K, M and start too
    "M": 100,
    "K": 5,
    "start_variance": 5.0,
    "paper_steps": 500,
    "numpyro_step_size": 0.01,
    "numpyro_steps": 10_000,
    "pymc_steps": 10_000,
    "num_samples": 10_000,
}

NEEDS = ("blackjax", "numpyro", "pymc", "pymc_extras")


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, path: Path):
        self.path = path
        self._loaded: posteriordb.Posterior | None = None

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Posterior by posterior, so that each is read once."""
        shared = {name: value for name, value in settings.items() if name not in ("only", "methods", "seeds")}
        return {
            f"{name}--{method.replace(' ', '-')}--{seed}": dict(posterior=name, method=method, seed=seed, **shared)
            for name in settings["only"]
            for method in settings["methods"]
            for seed in range(settings["seeds"])
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """One cell; a method that fails is a result too."""
        if self._loaded is None or self._loaded.name != parameters["posterior"]:
            self._loaded = posteriordb.load(parameters["posterior"], self.path)
        posterior, seed = self._loaded, parameters["seed"]
        try:
            jax.clear_caches()  # what an earlier cell compiled would make this one's first run look short
            with quiet():
                began = time.perf_counter()
                run = METHODS[parameters["method"]](posterior.target, parameters)
                run(seed)
                cold = time.perf_counter() - began
                began = time.perf_counter()
                answer = run(seed)
                warm = time.perf_counter() - began
        except ImportError:
            raise
        except Exception as error:  # whatever a library raises on a posterior it cannot do
            return {"outcome": "FAILED", "message": f"{type(error).__name__}: {error}"[:300]}
        with np.errstate(all="ignore"):  # a bad approximation may overflow
            judged = judge(answer, posterior, seed, parameters["num_samples"])
        return {**judged, "cold_seconds": cold, "warm_seconds": warm}


def judge(answer: Answer, posterior: posteriordb.Posterior, seed: int, num_samples: int) -> dict[str, Any]:
    """Quality by importance weights, and against the reference draws before and after importance resampling."""
    # The judge's draws are its own: no method's key is among these.
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31), 3)
    q, target = answer.approximation, posterior.target
    found = diagnose(keys[0], q, target, num_samples=num_samples)
    pool = WeightedDraws.draw(keys[1], q, target, 4 * num_samples)
    errors = {"plain": moment_errors(posterior, pool.z)}
    with contextlib.suppress(ValueError):  # no draw of positive density: nothing to resample
        errors["resampled"] = moment_errors(posterior, pool.z[pool.choose(keys[2], num_samples)])
    return {
        "outcome": answer.outcome,
        "num_steps": answer.num_steps,
        "num_gradients": answer.num_gradients,
        "num_hessians": answer.num_hessians,
        **{name: _number(getattr(found, name)) for name in ("ness", "khat", "elbo", "log_evidence")},
        "log_evidence_mcse": _number(found.log_evidence_mcse),
        "errors": errors,
    }


def moment_errors(posterior: posteriordb.Posterior, z: jax.Array) -> dict[str, Any]:
    """The largest error of a mean, and of a standard deviation, in units of the reference's standard deviation."""
    draws = posterior.constrain(z)
    means, deviations = [], []
    for name, reference in posterior.reference.draws.items():
        scale = reference.std()
        means.append(abs(draws[name].mean() - reference.mean()) / scale)
        deviations.append(abs(draws[name].std() - scale) / scale)
    return {"mean": _number(np.max(means)), "deviation": _number(np.max(deviations))}


def _number(value: Any) -> float | None:
    """JSON has no infinities."""
    return float(value) if math.isfinite(value) else None


def run(
    path: Path | None = None,
    *,
    seeds: int = 1,
    only: list[str] | None = None,
    methods: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
) -> Path:
    """Run what is not kept yet, then write the tables, the figure and the page; return their folder."""
    check_positive_integer("seeds", seeds, "It is the number of repetitions of each cell.")
    folder = posteriordb.find_path(path)
    only = [check_option("--only", name, posteriordb.names()) for name in only or posteriordb.names()]
    methods = [check_option("--method", name, tuple(METHODS)) for name in methods or METHODS]
    settings = {**SETTINGS, "seeds": seeds, "only": only, "methods": methods}
    store = Store(out, "posteriordb", "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    results = run_cells(Benchmark(folder), store, settings, report)
    moments = json.loads((folder / "moment_gaussian.json").read_text())
    posteriordb_report.write(results, settings, moments, store.folder)
    return store.folder
