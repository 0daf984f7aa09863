"""`bures.sample` in `bench ladder`: errors of its draws, and its gradients beside those of NUTS.

Targets are posteriordb's fifteen, with their reference draws, and the models of `bench families` of at most 200
dimensions, whose reference is a long NUTS run, kept as a cell of its own.
"""

import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import bures
from bures import posteriordb
from bures.benchmarks import families_models
from bures.benchmarks.families_models import Folders
from bures.benchmarks.ladder_cells import SAMPLE, failure
from bures.benchmarks.ladder_nuts import Moments, errors, gradients_needed, moments, reference
from bures.benchmarks.ladder_sections import Runs, Section, Shown, collect, measured, told
from bures.benchmarks.pages import Criterion, Grid, count, text
from bures.experiments.protocol import Results

NUTS, REFERENCE = "NUTS", "reference"
MODELS = tuple(name for name, dim in families_models.DIMENSIONS.items() if dim <= 200)
TARGETS = (*posteriordb.names(), *MODELS)
EFFECTIVE = 1_000  # smallest bulk effective size that NUTS has to reach
MEAN, DEVIATION, SPARED, SHARE = 0.1, 0.1, 1, 2 / 3
RHAT = 1.05  # of chains that agree
SAMPLE_SEEDS = 3
SETTINGS = {"num_draws": 1_000, "nuts_warmup": 1_000, "nuts_draws": 1_000, "reference_draws": 5_000}
QUICK = {"nuts_draws": 500, "reference_draws": 1_000}


class Problem(NamedTuple):
    """A target and the moments of its variables, where these are known."""

    target: bures.Target
    moments: Moments | None


def make(name: str, folders: Folders) -> Problem:
    if name in MODELS:
        return Problem(families_models.MODELS[name](folders), None)
    posterior = posteriordb.load(name, folders.posteriordb)
    variables = {each: _draws_first(value) for each, value in posterior.reference.variables.items()}
    return Problem(posterior.target, moments(variables))


def _draws_first(values: np.ndarray) -> np.ndarray:
    """(chains, draws, ...) as (chains · draws, ...)."""
    return np.asarray(values).reshape(-1, *np.shape(values)[2:])


# ---- Contestants ----------------------------------------------------------------------------------------------------


def measure(problem: Problem, parameters: dict[str, Any]) -> dict[str, Any]:
    """One run of a contestant; that it fails is a result too."""
    run = {SAMPLE: _sample, NUTS: _nuts, REFERENCE: _reference}[parameters["contestant"]]
    began = time.perf_counter()
    try:
        found = run(problem, parameters["seed"], parameters)
    except ImportError:
        raise
    except Exception as error:
        return failure(error)
    return found | {"seconds": time.perf_counter() - began}


def _sample(problem: Problem, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    library: Any = bures
    tree = library.sample(problem.target, key=jax.random.key(seed), num_draws=parameters["num_draws"])
    variables = {str(name): _draws_first(value.values) for name, value in tree["posterior"].data_vars.items()}
    found = moments(variables)
    known = problem.moments
    judged = {} if known is None else errors(found, known)
    return {**facts(tree), **judged, "moments": found if known is None else {}}


def _nuts(problem: Problem, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    return gradients_needed(problem.target, seed, EFFECTIVE, parameters)


def _reference(problem: Problem, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    return reference(problem.target, seed, parameters)


def facts(tree: Any) -> dict[str, Any]:
    """What a tree of `bures.sample` says of itself."""
    said = tree.attrs
    posterior = tree["posterior"]
    return {
        "rung": str(said["rung"]),
        "verdict": str(said["verdict"]),
        "trusted": bool(said["trustworthy"]),
        "evaluations": int(said["evaluations"]),
        "evaluations_by_rung": {name: int(spent) for name, spent in said["evaluations_by_rung"].items()},
        "log_evidence": said.get("log_evidence"),
        "draws": int(posterior.sizes["chain"] * posterior.sizes["draw"]),
    }


# ---- Tables ---------------------------------------------------------------------------------------------------------

NOTE = (
    "sample: `bures.sample` of {num_draws:,} draws, medians over seeds of the largest error of a mean, in reference "
    "standard deviations, and of a standard deviation. {num_draws:,} independent draws have a mean off by more than "
    "0.1 in one of 600 coordinates. NUTS: BlackJAX, four chains from standard normal starts, {nuts_warmup:,} steps of "
    "window adaptation each, gradients of warm-up and draws for a smallest bulk effective size of 1,000, scaled from "
    "{nuts_draws:,} draws a chain. Reference: posteriordb's draws; of the last rows, four chains of "
    "{reference_draws:,} draws from a fit."
)


def with_errors(results: Results, name: str) -> Runs:
    """The runs of `sample`, with errors against the reference cell where the target had no moments."""
    ours, long = (collect(results, "sample", name, each).found for each in (SAMPLE, REFERENCE))
    known = next((found["moments"] for found in long.values() if "moments" in found), None)
    judged = {
        seed: found | errors(found["moments"], known) if known and found.get("moments") else found
        for seed, found in ours.items()
    }
    return Runs(judged)


def judge(ours: Runs, theirs: Runs) -> list[Criterion]:
    """Errors of mean and standard deviation, and evaluations by those of NUTS."""
    mean, deviation = (_median(ours, name) for name in ("mean_error", "deviation_error"))
    mine, their = ours.median("evaluations"), theirs.median("evaluations")
    ratio = mine / their if mine is not None and their is not None else None
    return [
        Criterion("mean", mean, MEAN),
        Criterion("sd", deviation, DEVIATION),
        Criterion("evaluations by NUTS's", 0.0 if ratio is not None and math.isnan(ratio) else ratio, 1.0),
    ]


def _median(runs: Runs, name: str) -> float | None:
    """Infinite of a run that failed; None where errors are not known."""
    values = [math.inf if found.get("outcome") == "FAILED" else found.get(name) for found in runs.found.values()]
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def present(results: Results, settings: dict[str, Any]) -> Shown:
    rows, wrong, dearer, contested, false = [], [], [], [], []
    names = measured(results, "sample", TARGETS)
    for name in names:
        ours, theirs = with_errors(results, name), collect(results, "sample", name, NUTS)
        mean, deviation, ratio = judge(ours, theirs)
        rhat = theirs.median("largest_rhat")
        if mean.holds is False or deviation.holds is False:
            wrong.append(name)
            false += [name] if _trusts(ours) else []
        if ratio.holds is not None:
            contested.append(name)
            dearer += [] if ratio.holds else [name]
        rows.append(
            (
                *(name, ours.words("rung"), ours.words("trusted"), told(mean), told(deviation)),
                *(count(ours.median("evaluations")), count(theirs.median("evaluations")), told(ratio)),
                *(text(theirs.median("smallest_ess")), text(rhat) + (" !" if rhat and rhat > RHAT else "")),
                text(ours.median("seconds")),
            )
        )
    known = [name for name in names if with_errors(results, name).found]
    heads = ("target", "rung", "trusted", "largest error of a mean", "of a standard deviation", "evaluations")
    heads += ("gradients of NUTS", "ratio", "smallest ESS of NUTS's draws", "R̂", "seconds")
    grid = Grid("`bures.sample` beside NUTS", heads, rows, NOTE.format(**settings))
    share = 1 - len(dearer) / len(contested) if contested else None
    criteria = [
        Criterion(f"of {len(known)} targets of sample: errors", _size(wrong, known), SPARED, "; ".join(wrong)),
        Criterion("sample: trusted, but wrong", _size(false, known), 0, "; ".join(false)),
        Criterion("sample: share with fewer gradients than NUTS", share, SHARE, "; ".join(dearer), at_least=True),
    ]
    return Shown(criteria, [grid], {})


def _size(names: list[str], known: list[str]) -> float | None:
    return float(len(names)) if known else None


def _trusts(runs: Runs) -> bool:
    """Whether most seeds say that their draws can be used."""
    said = [bool(found.get("trusted")) for found in runs.found.values()]
    return 2 * sum(said) > len(said)


# ---- The section ----------------------------------------------------------------------------------------------------


def _data(name: str) -> str | None:
    return "posteriordb" if name not in MODELS or name in families_models.LARGE else None


def _seeds(name: str, contestant: str) -> int:
    if contestant == REFERENCE:
        return 1 if name in MODELS else 0
    return SAMPLE_SEEDS if contestant == SAMPLE else 1


SECTIONS = {
    "sample": Section(TARGETS, (SAMPLE, NUTS, REFERENCE), make, measure, present, SETTINGS, QUICK, _data, _seeds)
}
