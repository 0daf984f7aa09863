"""What the sections of `bench ladder` are made of: a section, what it shows, and how runs are read from the cells."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bures.benchmarks.families_models import Folders
from bures.benchmarks.pages import Criterion, Grid, text
from bures.experiments.protocol import Results, select

Figures = dict[str, tuple[str, bytes]]  # caption and PNG by name


class Shown(NamedTuple):
    """What a section shows: criteria for the first table of the page, its own tables, its figures."""

    criteria: list[Criterion]
    grids: list[Grid]
    figures: Figures


class Section(NamedTuple):
    """Targets, contestants, and how one of these is measured on one of those."""

    targets: tuple[str, ...]
    contestants: tuple[str, ...]
    make: Callable[[str, Folders], Any]
    measure: Callable[[Any, dict[str, Any]], dict[str, Any]]
    present: Callable[[Results, dict[str, Any]], Shown]
    settings: dict[str, Any]  # what a cell depends on
    quick: dict[str, Any]  # other values for a quick run
    data: Callable[[str], str | None] = lambda target: None  # the data that a target needs
    most_seeds: Callable[[str, str], int] | None = None  # of a target and a contestant

    def of(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings that are this section's."""
        return {name: settings[name] for name in self.settings}

    def seeds(self, settings: dict[str, Any], target: str, contestant: str) -> int:
        most = math.inf if self.most_seeds is None else self.most_seeds(target, contestant)
        return int(min(settings["seeds"], most))


# ---- Runs -----------------------------------------------------------------------------------------------------------

WORST = {"ness": 0.0, "khat": math.inf, "evaluations": math.inf, "beyond": math.inf, "elbo": -math.inf}


class Runs(NamedTuple):
    """What was found on one target by one contestant, by seed."""

    found: dict[int, dict[str, Any]]

    def values(self, name: str) -> np.ndarray:
        """One figure of every seed; of a run that failed the worst."""
        kept = (run.get(name) for run in self.found.values())
        return np.array([WORST.get(name, math.nan) if value is None else value for value in kept], float)

    def median(self, name: str) -> float | None:
        values = self.values(name)
        return float(np.median(values)) if values.size else None

    def words(self, name: str) -> str:
        """What the runs say, each answer once."""
        return "/".join(sorted({str(run[name]) for run in self.found.values() if run.get(name) is not None})) or "–"


def collect(results: Results, section: str, target: str, contestant: str) -> Runs:
    chosen = select(results, section=section, target=target, contestant=contestant)
    return Runs({parameters["seed"]: found for parameters, found in chosen})


def measured(results: Results, section: str, names: Sequence[str]) -> list[str]:
    """Those of the targets of a section on which something was measured."""
    known = {parameters["target"] for parameters, _ in select(results, section=section)}
    return [name for name in names if name in known]


# ---- Limits ---------------------------------------------------------------------------------------------------------


def told(criterion: Criterion, value: str | None = None) -> str:
    """A figure with its limit and whether it is kept, in one cell."""
    if criterion.holds is None:
        return "–"
    shown = text(criterion.value) if value is None else value
    return f"{shown} ({criterion.bound}) {text(criterion.holds)}"


def summary(label: str, judged: dict[str, list[Criterion]], spared: int = 0) -> Criterion:
    """How many targets do not keep all of their limits; those that were not run are left out."""
    holds = {name: [each.holds for each in criteria] for name, criteria in judged.items()}
    known = {name: all(found) for name, found in holds.items() if None not in found}
    bad = [name for name, good in known.items() if not good]
    return Criterion(f"of {len(known)} {label}", float(len(bad)) if known else None, spared, "; ".join(bad))
