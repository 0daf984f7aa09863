"""Is there false comfort up the ladder? Traps of known mass and harmless targets by `fit.refine` and by `bures.sample`.

Refined fits are judged as `bench honesty` judges fits, by log p − log q at exact draws. Draws without a density are
judged by neighbours: with as many exact draws as there are of ours, an exact draw is missed if none of ours is as near
to it as its 15th neighbour among other exact ones. Of exact draws that happens to one in 30,000.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.spatial import KDTree

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.honesty import (
    DEVIATION_ERROR,
    MEAN_ERROR,
    MISSED,
    as_arrays,
    draw_exactly,
    fit_and_judge,
    moment_errors,
)
from bures.benchmarks.honesty_report import plot
from bures.benchmarks.honesty_targets import HARMLESS, TRAPS, Case
from bures.benchmarks.ladder_cells import CONTESTANTS, REFINE, SAMPLE, failure
from bures.benchmarks.ladder_sample import facts
from bures.benchmarks.ladder_sections import Section, Shown
from bures.benchmarks.pages import Criterion, Grid, median, number, text
from bures.experiments.protocol import Results, select
from bures.plot.style import styled
from bures.reproduce import _png

NEIGHBOUR = 15
FALSE, WARNED = 0.02, 0.1  # shares of the list, and of the right ones
SETTINGS = {"exact_draws": 20_000, "judge_draws": 10_000, "unseen": 0.05, "resampled": 10_000, "num_draws": 1_000}
TARGETS = {**TRAPS, **HARMLESS}


class Prepared(NamedTuple):
    """A case with exact draws and their log density."""

    case: Case
    exact: np.ndarray
    log_p: np.ndarray


def make(name: str, folders: Folders) -> Prepared:
    case = TARGETS[name].make()
    return Prepared(case, *draw_exactly(case, SETTINGS["exact_draws"]))


# ---- Contestants ----------------------------------------------------------------------------------------------------


def measure(prepared: Prepared, parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters["contestant"] == SAMPLE:
        return sample_and_judge(prepared.case, prepared.exact, parameters["seed"], parameters)
    return fit_and_judge(*prepared, parameters["seed"], parameters, CONTESTANTS[REFINE])


def sample_and_judge(case: Case, exact: np.ndarray, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """Draws of `bures.sample`, what is said of them, and what is true."""
    library: Any = bures
    began = time.perf_counter()
    try:
        target = bures.Target(as_arrays(case.density), case.dim)
        tree = library.sample(target, key=jax.random.key(seed), num_draws=parameters["num_draws"])
    except ValueError as error:  # a target that is refused
        return {**failure(error), "outcome": "REFUSED", "comfort": False, "right": False, "said": str(error)[:500]}
    except Exception as error:
        return {**failure(error), "comfort": False, "right": False, "said": str(error)[:500]}
    draws = draws_of(tree, case.dim)
    said = facts(tree)
    missed = missed_by_draws(exact, draws)
    errors = moment_errors(exact, draws, case.heavy)
    comfort = said["trusted"]
    right = missed < MISSED and errors["mean"] < MEAN_ERROR and errors["deviation"] < DEVIATION_ERROR
    return {
        **said,
        "outcome": "CONVERGED",
        "said": said["verdict"],
        "comfort": comfort,
        "named": False,
        "missed": missed,
        "right": bool(right),
        "warned": not comfort,
        "false": comfort and missed > MISSED,
        "mean_error": number(errors["mean"]),
        "deviation_error": number(errors["deviation"]),
        "seconds": time.perf_counter() - began,
    }


def draws_of(tree: Any, dim: int) -> np.ndarray:
    """The draws of a tree as points, whatever its variables are called: in the order of the target."""
    posterior = tree["posterior"]
    parts = [np.asarray(value.values).reshape(-1, value[0, 0].size) for value in posterior.data_vars.values()]
    return np.concatenate(parts, axis=1)[:, :dim]


def missed_by_draws(exact: np.ndarray, draws: np.ndarray) -> float:
    """The share of exact draws that have none of ours in their neighbourhood.

    >>> z = np.random.default_rng(0).standard_normal((4000, 2))
    >>> round(missed_by_draws(z[:2000], z[2000:3000]), 3), missed_by_draws(z[:2000], z[2000:3000] + 30)
    (0.0, 1.0)
    """
    n = min(len(draws), len(exact) // 2)
    probes, others = exact[:n], exact[n : 2 * n]
    reach = KDTree(others).query(probes, k=[NEIGHBOUR])[0][:, 0]
    chosen = draws[np.random.default_rng(0).choice(len(draws), n, replace=False)]
    return float(np.mean(KDTree(chosen).query(probes)[0] > reach))


# ---- Tables ---------------------------------------------------------------------------------------------------------

NOTE = (
    "Missed mass, right and warned as in `bench honesty`; of `bures.sample`, whose draws have no density, by "
    "neighbours among exact draws. A false comfort is a verdict of trust with more than 2% of the mass missed. Heavy "
    "tails are not counted among the right that are warned about."
)


def collect(results: Results, contestant: str) -> list[dict[str, Any]]:
    """One flat record a run."""
    records = []
    for parameters, found in select(results, section="honesty", contestant=contestant):
        listed = TARGETS[parameters["target"]]
        names = {"case": parameters["target"], "family": listed.family, "harmless": listed.harmless}
        records.append(names | {"seed": parameters["seed"]} | found)
    return records


def judge(records: list[dict[str, Any]], contestant: str) -> list[Criterion]:
    traps = [record for record in records if not record["harmless"]]
    false = [record["case"] for record in traps if record.get("false")]
    right = [record for record in records if record["right"] and record["family"] != "heavy tails"]
    warned = [record["case"] for record in right if record["warned"]]
    return [
        Criterion(
            f"honesty of {contestant}: share of {len(traps)} traps with false comfort",
            len(false) / len(traps) if traps else None,
            FALSE,
            "; ".join(false),
        ),
        Criterion(
            f"honesty of {contestant}: share of {len(right)} right ones that are warned about",
            len(warned) / len(right) if right else None,
            WARNED,
            "; ".join(warned),
        ),
    ]


def by_family(records: list[dict[str, Any]], contestant: str) -> Grid:
    rows = []
    for family in dict.fromkeys(record["family"] for record in records):
        mine = [record for record in records if record["family"] == family]
        counts = [
            len(mine),
            sum(record["right"] for record in mine),
            sum(record.get("missed", 0) > MISSED for record in mine),
            sum(record["comfort"] for record in mine),
            sum(bool(record.get("false")) for record in mine),
            sum(bool(record["right"] and record["warned"]) for record in mine),
            sum(record["outcome"] in ("REFUSED", "FAILED") for record in mine),
        ]
        spent = (text(median(record.get(name) for record in mine)) for name in ("evaluations", "seconds"))
        rows.append((family, *map(str, counts), *spent))
    heads = ("family", "runs", "right", "miss > 2%", "comforts", "false comforts", "right, warned", "refused or failed")
    return Grid(f"Honesty of {contestant}", (*heads, "evaluations", "seconds"), rows, NOTE)


def present(results: Results, settings: dict[str, Any]) -> Shown:
    shown = Shown([], [], {})
    for contestant in (REFINE, SAMPLE):
        records = collect(results, contestant)
        if records:
            shown.criteria.extend(judge(records, contestant))
            shown.grids.append(by_family(records, contestant))
            caption = f"Mass that {contestant} misses, by what it says"
            shown.figures[f"honesty-{contestant}"] = caption, _png(styled(plot)(records))
    return shown


SECTIONS = {
    "honesty": Section(
        tuple(TARGETS), (REFINE, SAMPLE), make, measure, present, SETTINGS, {}, most_seeds=lambda target, contestant: 1
    )
}
