"""Learned centring in `bench ladder`: hierarchical models in their centred form.

By `bures.fit` as they are, in learned coordinates and nothing more, and by `fit.refine`, which may go on to a mixture.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.ladder_cells import GAUSSIAN, REFINE, facts, failure, judge as judge_draws, measure as measure_fit
from bures.benchmarks.ladder_models import MODELS, target
from bures.benchmarks.ladder_sections import Runs, Section, Shown, collect, measured, summary, told
from bures.benchmarks.pages import Criterion, Grid, count, text
from bures.experiments.protocol import Results
from bures.learned_centring import learn_centring

OTHER, LEARNED = "Gaussian, non-centred", "learned centring"
SHARE = 0.9  # of the nESS of the better of both forms
KHAT = 0.7
# nESS of `bures.fit` at af2d64c: medians of five seeds by `ladder_before.py`. That of GLMM_Poisson, which that version
# refuses in this form, and of radon's slopes are as first reported.
BEFORE = {"radon slopes": 0.002, "rats": 0.30, "GLMM_Poisson": 0.011, "seeds": 0.0049}
NOTE = (
    "nESS and k̂ by {num_samples:,} fresh draws, medians over seeds. Eight schools and radon_mn: refined from the "
    "centred form, at least 0.9 of the nESS of one Gaussian in the better of both forms. The others: at least ten "
    "times that of `bures.fit` at commit af2d64c (in brackets), or 0.5. Learned: one Gaussian in learned coordinates; "
    "last rung: `fit.refine` where this version has it, else the same."
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
    if contestant == LEARNED:
        return _learned(forms.centred, seed, parameters)
    return measure_fit(contestant, forms.centred, seed, parameters)


def _learned(target: bures.Target, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """One Gaussian in learned coordinates; what these took counts."""
    began, key = time.perf_counter(), jax.random.key(seed)
    try:
        found = learn_centring(jax.random.fold_in(key, 1), target)
        fit = bures.fit(found.target, key=key, init=found.approximation, objective=found.objective, progress=False)
        said = facts(fit)
    except Exception as error:
        return failure(error)
    said |= {"evaluations": said["evaluations"] + found.evaluations, "seconds": time.perf_counter() - began}
    said["centring"] = {name: float(np.mean(degrees)) for name, degrees in found.degrees.items()}
    return {**said, **judge_draws(fit.approximation, found.target, seed, parameters["num_samples"])}


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
        plain, other, learned, refined = (
            collect(results, "centring", name, each) for each in (GAUSSIAN, OTHER, LEARNED, REFINE)
        )
        ours = refined if refined.found else learned
        criteria = judged[name] = judge(name, ours, plain, other)
        before = f" [{BEFORE[name]:g}]" if name in BEFORE else ""
        rows.append(
            (
                *(name, str(MODELS[name].dim), text(plain.median("ness")) + before, text(other.median("ness"))),
                *(text(learned.median("ness")), told(criteria[0])),
                *(told(criteria[1]) if len(criteria) > 1 else text(ours.median("khat")), text(worst(ours))),
                *(ours.words("family"), count(ours.median("components")), ours.words("verdict")),
                *(count(each.median("evaluations")) for each in (plain, learned, refined)),
                degrees(learned),
            )
        )
    heads = ("model", "d", "nESS, centred", "non-centred", "learned", "last rung", "k̂", "worst seed", "family")
    heads += ("components", "verdict", "evaluations of the fit", "learned", "refined", "degrees by site, medians")
    grid = Grid("Centring", heads, rows, NOTE.format(**settings))
    return Shown([summary("models of centring: a limit is not kept", judged)], [grid], {})


def worst(runs: Runs) -> float | None:
    """The least nESS."""
    values = runs.values("ness")
    return float(np.min(values)) if values.size else None


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
        (GAUSSIAN, OTHER, LEARNED, REFINE),
        make,
        measure,
        present,
        {"num_samples": 20_000},
        {"num_samples": 4_000},
        lambda name: "posteriordb",
        lambda name, contestant: 5 if contestant != OTHER or MODELS[name].other else 0,
    )
}
