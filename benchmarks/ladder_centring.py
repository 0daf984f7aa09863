"""Learned centring in `bench ladder`: hierarchical models in their centred form, by `bures.fit` and by `fit.refine`."""

from typing import Any, NamedTuple

import numpy as np

import bures
from benchmarks.families_models import Folders
from benchmarks.ladder_cells import GAUSSIAN, REFINE, measure as measure_fit
from benchmarks.ladder_models import MODELS, target
from benchmarks.ladder_sections import Runs, Section, Shown, collect, measured, summary, told
from benchmarks.pages import Criterion, Grid, count, text
from experiments.protocol import Results

OTHER = "Gaussian, non-centred"
SHARE = 0.9  # of the nESS of the better of both forms
KHAT = 0.7
BEFORE = {"radon slopes": 0.002, "rats": 0.01, "GLMM_Poisson": 0.011, "seeds": 0.0049}
NOTE = (
    "nESS and k̂ by {num_samples:,} fresh draws, medians over seeds. Eight schools and radon_mn: refined from the "
    "centred form, at least 0.9 of the nESS of one Gaussian in the better of both forms. The others: at least ten "
    "times that of `bures.fit` at commit af2d64c (in brackets, by `benchmarks.ladder_before`), or 0.5."
)


class Forms(NamedTuple):
    """A model as it is written, and in its other form where that is compared."""

    centred: bures.Target
    other: bures.Target | None


def make(name: str, folders: Folders) -> Forms:
    assert folders.posteriordb is not None
    both = MODELS[name].other is not None
    return Forms(target(name, folders.posteriordb), target(name, folders.posteriordb, other=True) if both else None)


def measure(forms: Forms, parameters: dict[str, Any]) -> dict[str, Any]:
    contestant, seed = parameters["contestant"], parameters["seed"]
    if contestant == OTHER:
        assert forms.other is not None
        return measure_fit(GAUSSIAN, forms.other, seed, parameters)
    return measure_fit(contestant, forms.centred, seed, parameters)


# ---- Tables ---------------------------------------------------------------------------------------------------------


def least_ness(name: str, plain: Runs, other: Runs) -> float | None:
    """The nESS to be reached."""
    if MODELS[name].other is None:
        return min(0.5, 10 * BEFORE[name])
    known = [runs.median("ness") for runs in (plain, other)]
    return None if None in known else SHARE * max(value for value in known if value is not None)


def judge(name: str, refined: Runs, plain: Runs, other: Runs) -> list[Criterion]:
    least = least_ness(name, plain, other)
    ness = None if least is None else refined.median("ness")
    criteria = [Criterion("nESS", ness, least or 0.0, at_least=True)]
    return criteria if MODELS[name].other else [*criteria, Criterion("k̂", refined.median("khat"), KHAT)]


def present(results: Results, settings: dict[str, Any]) -> Shown:
    rows, judged = [], {}
    for name in measured(results, "centring", tuple(MODELS)):
        refined, plain, other = (collect(results, "centring", name, each) for each in (REFINE, GAUSSIAN, OTHER))
        criteria = judged[name] = judge(name, refined, plain, other)
        before = f" [{BEFORE[name]:g}]" if name in BEFORE else ""
        rows.append(
            (
                *(name, str(MODELS[name].dim), text(plain.median("ness")) + before, text(other.median("ness"))),
                *(told(criteria[0]), told(criteria[1]) if len(criteria) > 1 else text(refined.median("khat"))),
                *(refined.words("family"), count(refined.median("components")), refined.words("verdict")),
                *(count(plain.median("evaluations")), count(refined.median("evaluations")), degrees(refined)),
            )
        )
    heads = ("model", "d", "nESS, centred", "non-centred", "refined", "k̂", "family", "components", "verdict")
    heads += ("evaluations of the fit", "with the refinement", "degrees of centring by site, medians")
    grid = Grid("Centring", heads, rows, NOTE.format(**settings))
    return Shown([summary("models of centring: a limit is not kept", judged)], [grid], {})


def degrees(runs: Runs) -> str:
    """Of each site, the median over seeds of the mean degree of its elements."""
    found: dict[str, list[float]] = {}
    for run in runs.found.values():
        for site, degree in (run.get("centring") or {}).items():
            found.setdefault(site, []).append(degree)
    return ", ".join(f"{site} {np.median(values):.2f}" for site, values in found.items()) or "–"


SECTIONS = {
    "centring": Section(
        tuple(MODELS),
        (GAUSSIAN, OTHER, REFINE),
        make,
        measure,
        present,
        {"num_samples": 20_000},
        {"num_samples": 4_000},
        lambda name: "posteriordb",
        lambda name, contestant: 5 if contestant != OTHER or MODELS[name].other else 0,
    )
}
