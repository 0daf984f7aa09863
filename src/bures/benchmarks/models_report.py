"""Tables, criteria and figures of `bench models`, from the cells alone."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bures.benchmarks.ladder_sections import Shown
from bures.benchmarks.models_cells import FIT, NUTS, OWN, PEERS, REFERENCE, SAMPLE, UNCONSTRAINED, is_solved
from bures.benchmarks.pages import Criterion, Grid, count, median, number, text
from bures.benchmarks.real.registry import MODELS
from bures.experiments.protocol import Results
from bures.reproduce import _png

Found = dict[str, Any]
LOW = 0.1  # nESS of a Gaussian below which the posterior is none
SHARE, SOLVED, WRONG, COY = 2 / 3, 0.9, 0.02, 0.1  # the limits of the criteria
LEAST = {"models": 60, "large": 15, "not Gaussian": 15, "several modes": 5}
SHORT = {"AutoMultivariateNormal": "AutoMVN", "AutoLowRankMultivariateNormal": "AutoLowRank"}


class Table(NamedTuple):
    """Cells by model, method and seed."""

    found: dict[tuple[str, str], dict[int, Found]]

    def runs(self, model: str, method: str) -> list[Found]:
        return list(self.found.get((model, method), {}).values())

    def first(self, model: str, method: str) -> Found | None:
        return self.found.get((model, method), {}).get(0)

    def models(self, *methods: str) -> list[str]:
        """Those on which all of these were run."""
        return [name for name in MODELS if all((name, method) in self.found for method in methods)]

    def known(self, *methods: str) -> list[str]:
        """The same, of those with a reference that can be used."""
        return [name for name in self.models(*methods) if (self.first(name, REFERENCE) or {}).get("usable")]


def read(results: Results) -> Table:
    found: dict[tuple[str, str], dict[int, Found]] = {}
    for entry in results.values():
        parameters = entry["parameters"]
        found.setdefault((parameters["model"], parameters["method"]), {})[parameters["seed"]] = entry["result"]
    return Table(found)


# ---- Answers --------------------------------------------------------------------------------------------------------


def ness(found: Found | None) -> float:
    """Zero of a run that failed or has no density."""
    return 0.0 if found is None else float(found.get("ness") or 0.0)


def solved(found: Found | None, by: str = "plain", scale: str = OWN) -> bool:
    """Whether the draws are right; of a run that failed they are not."""
    return bool(found and is_solved((found.get(by) or {}).get(scale)))


def answer(method: str) -> str:
    """Which draws a verdict is about: those of a fit are corrected by importance weights."""
    return "corrected" if method == FIT else "plain"


def gradients(table: Table, name: str) -> tuple[float | None, float | None]:
    """Evaluations of `bures.sample` and of NUTS, infinite where it does not get there; None where it was not run."""
    ours, theirs = (table.first(name, method) for method in (SAMPLE, NUTS))
    mine = None if ours is None else median(run.get("evaluations", math.inf) for run in table.runs(name, SAMPLE))
    return mine, None if theirs is None else theirs.get("evaluations") or math.inf


def confusion(table: Table, method: str, scale: str = OWN) -> Counter[tuple[bool, bool]]:
    """(trusted, solved) of every run on a model with a reference."""
    runs = (run for name in table.known(method) for run in table.runs(name, method))
    return Counter((bool(run.get("trusted")), solved(run, answer(method), scale)) for run in runs)


def by_model(table: Table, method: str) -> Counter[tuple[bool, bool]]:
    """(trusted, solved) of every model with a reference, each by most of its seeds."""
    return Counter(
        (
            _most(run.get("trusted") for run in table.runs(name, method)),
            _most(solved(run, answer(method)) for run in table.runs(name, method)),
        )
        for name in table.known(method)
    )


def _most(values: Iterable[Any]) -> bool:
    values = list(map(bool, values))
    return 2 * sum(values) > len(values)


# ---- Tables ---------------------------------------------------------------------------------------------------------


def methods_grid(table: Table) -> Grid:
    rows = []
    for method in (FIT, SAMPLE, *PEERS, NUTS):
        names, known = table.models(method), table.known(method)
        firsts = [run for name in names if (run := table.first(name, method)) is not None]
        failed = sum(run.get("outcome") == "FAILED" for run in firsts)
        quality = text(median(map(ness, firsts))) if method not in (SAMPLE, NUTS) and firsts else "–"
        by = [sum(solved(table.first(name, method), each) for name in known) for each in ("plain", "corrected")]
        if method == NUTS:
            reached = sum(run.get("evaluations") is not None for run in firsts)
            shown = (f"{reached} of {len(names)} reach 1,000", "–")
        else:
            shown = (f"{by[0]} of {len(known)}", "–" if method == SAMPLE else f"{by[1]} of {len(known)}")
        shared = table.known(FIT, method)
        there = sum(solved(table.first(name, FIT), "corrected") for name in shared)
        quality_there = text(median(ness(table.first(name, FIT)) for name in table.models(FIT, method)))
        beside = f"{quality_there}; {there} of {len(shared)}" if method in PEERS and shared else "–"
        costs = [median(run.get(name) for run in firsts) for name in ("evaluations", "seconds", "warm_seconds")]
        cost = (count(costs[0]), text(costs[1]), text(costs[2]))
        rows.append((method, str(len(names)), str(failed), quality, *shown, beside, *cost))
    heads = ("method", "models", "failed", "median nESS", "solved", "solved, corrected", "bures.fit on the same models")
    return Grid("Methods", (*heads, "median gradients", "median seconds, cold", "warm"), rows, METHODS_NOTE)


METHODS_NOTE = (
    "Seed 0. Solved: on the model's own scale, every mean is "
    "within 0.1 reference standard deviations and every standard deviation within 10%, three Monte Carlo standard "
    "errors of both sides allowed for in quadrature. Of `bures.fit` and its peers: draws of the approximation, and the "
    "same corrected by Pareto-smoothed importance weights; of Pathfinder its own draws. Only models whose reference "
    "can be used count. nESS, k̂ and evidence are by 10,000 fresh draws (fewer above d = 400); nESS sees no mode that "
    "has been missed. Not all methods were run on the same models: beside each peer are the median nESS of `bures.fit` "
    "and the models it solves, corrected, on those of the peer. Seconds are those of a shared machine: ratios at best."
)


def verdict_grid(table: Table) -> Grid:
    rows = []
    for method in (FIT, SAMPLE):
        counts = [confusion(table, method, scale) for scale in (OWN, UNCONSTRAINED)]
        for trusted in (True, False):
            label = "trust" if trusted else "do not trust"
            rows.append((method, label, *(str(each[trusted, right]) for each in counts for right in (True, False))))
    note = (
        "All seeds, models with a reference. A fit's verdict is about draws corrected by importance weights. Beside "
        "the model's own scale is the one that all methods work on, where positive variables are logarithms."
    )
    heads = ("", "verdict", "solved", "not solved", "solved, unconstrained", "not solved, unconstrained")
    return Grid("Verdicts", heads, rows, note)


def models_grid(table: Table) -> Grid:
    rows = []
    for name in table.models(FIT):
        model, fit, tree = MODELS[name], table.first(name, FIT) or {}, table.first(name, SAMPLE) or {}
        known = table.first(name, REFERENCE) or {}
        usable = bool(known.get("usable"))
        mine, theirs = gradients(table, name)
        ratio = number(mine / theirs) if mine and theirs else None
        rows.append(
            (
                *(name, model.kind, str(model.dim), model.source, _reference(known)),
                *(text(known.get("moment_ness")), text(fit.get("ness")), text(fit.get("khat"))),
                *(str(fit.get("verdict", "failed")), _marks(table, name, FIT, "corrected", usable)),
                *(str(tree.get("rung", "–")), _marks(table, name, SAMPLE, "plain", usable)),
                *(_trusts(table, name), count(number(mine)), _steps(theirs), text(ratio)),
            )
        )
    heads = ("model", "kind", "d", "data", "reference", "nESS of the moment Gaussian", "nESS of bures.fit", "k̂")
    heads += ("its verdict", "solved", "rung of bures.sample", "solved", "trusted", "gradients", "of NUTS", "ratio")
    return Grid("Models", heads, rows, MODELS_NOTE)


MODELS_NOTE = (
    "Solved and trusted: of how many seeds. Reference: posteriordb's draws, the yardstick's own chains where they "
    "agree, or longer ones (non-centred where the model names its centred variables; exact symmetries are applied to "
    "the draws of one mode), with the smallest bulk effective size; none: their R̂ is above 1.02, their size below 400 "
    "or more than one transition in a thousand diverges. NUTS: BlackJAX, four chains from standard normal starts, 500 "
    "steps of window adaptation each, gradients of warm-up and draws for a smallest bulk effective size of 1,000; "
    "∞: R̂ above 1.05, or fewer than 100, when its time was up."
)


def _reference(known: Found) -> str:
    if not known.get("usable"):
        return "none"
    return f"{known['source']}, {known['smallest_ess']:,.0f}"


def _marks(table: Table, name: str, method: str, by: str, usable: bool) -> str:
    runs = table.runs(name, method)
    return f"{sum(solved(run, by) for run in runs)}/{len(runs)}" if usable and runs else "–"


def _trusts(table: Table, name: str) -> str:
    runs = table.runs(name, SAMPLE)
    return f"{sum(bool(run.get('trusted')) for run in runs)}/{len(runs)}"


def _steps(value: float | None) -> str:
    return "∞" if value == math.inf else count(value)


def quality_grid(table: Table) -> Grid:
    methods = [FIT, *PEERS]
    rows = []
    for name in table.models(FIT):
        runs = [table.first(name, method) for method in methods]
        rows.append((name, str(MODELS[name].dim), *("–" if run is None else text(ness(run), 2) for run in runs)))
    return Grid(
        "nESS", ("model", "d", *(SHORT.get(name, name) for name in methods)), rows, "Seed 0; 0 where it failed."
    )


def errors_grid(table: Table) -> Grid:
    rows = []
    for name in table.known(FIT):
        fit, tree, peer = (table.first(name, each) or {} for each in (FIT, SAMPLE, "AutoMultivariateNormal"))
        shown = (fit.get("plain"), fit.get("corrected"), tree.get("plain"), peer.get("plain"))
        evidence = [fit.get("log_evidence"), tree.get("log_evidence")]
        rows.append((name, *map(_both, shown), *(f"{value:.2f}" if value is not None else "–" for value in evidence)))
    heads = ("model", "bures.fit", "corrected", "bures.sample", "AutoMVN", "log evidence, fit", "sample")
    note = "Of a mean, in reference standard deviations, and of a standard deviation, on the model's own scale."
    return Grid("Largest errors", heads, rows, note)


def _both(found: Found | None) -> str:
    if found is None:
        return "–"
    return f"{text(found[OWN]['mean_error'], 2)} / {text(found[OWN]['deviation_error'], 2)}"


def missing_grid(table: Table, cells: Iterable[str], done: Iterable[str]) -> Grid:
    """What failed, and what was not run."""
    rows = [
        (name, method, run["message"][:160])
        for (name, method), runs in table.found.items()
        for seed, run in runs.items()
        if run.get("outcome") == "FAILED" and seed == 0
    ]
    waiting = Counter(cell.split("--")[1:][-2] for cell in set(cells) - set(done))
    rows += [("", method, f"{number} cells not run") for method, number in sorted(waiting.items())]
    return Grid("Failures, and what was not run", ("model", "method", ""), rows)


# ---- Criteria -------------------------------------------------------------------------------------------------------


def criteria(table: Table) -> list[Criterion]:
    names = table.models(FIT, SAMPLE)
    low = [name for name in names if _below(table.first(name, REFERENCE))]
    sizes = {
        "models": len(names),
        "large": sum(MODELS[name].dim >= 100 for name in names),
        "not Gaussian": len(low),
        "several modes": sum(MODELS[name].modes > 1 for name in names),
    }
    labels = {
        "models": "models",
        "large": "of them with d ≥ 100",
        "not Gaussian": "on which the Gaussian of the posterior's moments has nESS below 0.1",
        "several modes": "with several modes",
    }
    found = [Criterion(labels[each], sizes[each], LEAST[each], at_least=True) for each in labels]
    return [*found, *_ahead(table), *_of_sample(table), *_of_verdicts(table)]


def _below(known: Found | None) -> bool:
    value = (known or {}).get("moment_ness")
    return value is not None and value < LOW


def _ahead(table: Table) -> list[Criterion]:
    """`bures.fit` beside the best of its peers, each on the models that both were run on."""
    leads, more = [], []
    for peer in PEERS:
        names, known = table.models(FIT, peer), table.known(FIT, peer)
        if not names:
            continue
        mine, their = (median(ness(table.first(name, each)) for name in names) for each in (FIT, peer))
        leads.append(((mine or 0) - (their or 0), f"{peer} {text(their)}, bures.fit {text(mine)}"))
        for by in ("plain", "corrected"):
            ours, others = (sum(solved(table.first(name, each), by) for name in known) for each in (FIT, peer))
            more.append((ours - others, f"{peer}, {by}: {others}, bures.fit {ours} of {len(known)}"))
    return [
        Criterion("bures.fit: median nESS above that of the best peer by", *_least(leads, 0.001), at_least=True),
        Criterion("bures.fit: models solved more than by the best peer", *_least(more, 1), at_least=True),
    ]


def _least(values: list[tuple[float, str]], limit: float) -> tuple[float | None, float, str]:
    """The smallest, its limit, and what it is about."""
    return (min(values)[0], limit, min(values)[1]) if values else (None, limit, "")


def _of_sample(table: Table) -> list[Criterion]:
    runs = {name: table.runs(name, SAMPLE) for name in table.known(SAMPLE)}
    bad = [name for name, found in runs.items() if not all(map(solved, found))]
    total = sum(map(len, runs.values()))
    share = sum(solved(run) for found in runs.values() for run in found) / total if total else None
    costs = {name: gradients(table, name) for name in table.models(SAMPLE, NUTS)}
    dearer = [name for name, (mine, theirs) in costs.items() if not (mine or math.inf) < (theirs or 0)]
    spared = 1 - len(dearer) / len(costs) if costs else None
    return [
        Criterion("bures.sample: share of runs solved", share, SOLVED, "; ".join(bad), at_least=True),
        Criterion(
            "bures.sample: share with fewer gradients than NUTS", spared, SHARE, "; ".join(dearer), at_least=True
        ),
    ]


def _of_verdicts(table: Table) -> list[Criterion]:
    """Of models, by most of their seeds, and of single runs."""
    wrong = [(name, method) for method in (FIT, SAMPLE) for name in table.known(method) if _misled(table, name, method)]
    note = "; ".join(f"{name} ({method})" for name, method in wrong)
    found = []
    for unit, counted in (("models", by_model), ("runs", confusion)):
        counts = counted(table, FIT) + counted(table, SAMPLE)
        unsolved, right = (counts[True, each] + counts[False, each] for each in (False, True))
        misled = counts[True, False] / unsolved if unsolved else None
        coy = counts[False, True] / right if right else None
        found.append(Criterion(f"“trust” on {unit} that are not solved", misled, WRONG, note))
        found.append(Criterion(f"“do not trust” on {unit} that are solved", coy, COY))
    return found


def _misled(table: Table, name: str, method: str) -> bool:
    return any(run.get("trusted") and not solved(run, answer(method)) for run in table.runs(name, method))


# ---- Figures --------------------------------------------------------------------------------------------------------

COLOURS = ("#0b6e99", "#b5651d", "#5b8c3a", "#8a4f9e", "#a83232", "#777777", "#c9a227")


def plot_quality(table: Table) -> Figure:
    """For each method the share of models on which its nESS is at least so much."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    names = table.models(FIT)
    for method, colour in zip((FIT, *PEERS), COLOURS, strict=False):
        values = np.sort([ness(table.first(name, method)) for name in names if (name, method) in table.found])
        if values.size:
            shares = 1 - np.arange(values.size) / values.size
            width = 2.4 if method == FIT else 1.2
            axes.step(
                np.maximum(values, 1e-4), shares, where="pre", color=colour, lw=width, label=SHORT.get(method, method)
            )
    axes.set(xscale="log", xlim=(1e-4, 1), ylim=(0, 1), xlabel="nESS at least", ylabel="share of the models")
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_gradients(table: Table) -> Figure:
    """Gradients of `bures.sample` beside those of NUTS, by the rung it ended on."""
    figure = Figure(figsize=(5.4, 4.6), layout="constrained")
    axes = figure.subplots()
    points = {name: gradients(table, name) for name in table.models(SAMPLE, NUTS)}
    finite = [value for pair in points.values() for value in pair if value is not None and math.isfinite(value)]
    limits = (min(finite, default=1e3) / 2, max(finite, default=1e6) * 4)
    rungs = dict.fromkeys(str((table.first(name, SAMPLE) or {}).get("rung", "failed")) for name in points)
    for rung, colour in zip(rungs, COLOURS * 2, strict=False):
        here = [
            pair for name, pair in points.items() if (table.first(name, SAMPLE) or {}).get("rung", "failed") == rung
        ]
        x = [min(theirs or math.inf, limits[1] / 1.5) for _, theirs in here]
        axes.scatter(x, [min(mine or math.inf, limits[1]) for mine, _ in here], s=22, color=colour, label=rung)
    axes.plot(limits, limits, color="#999999", lw=0.8)
    axes.axvline(limits[1] / 1.5, color="#cccccc", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, ylabel="gradients of bures.sample")
    axes.set_xlabel("gradients of NUTS to an effective size of 1,000 (dotted: not reached)")
    axes.legend(frameon=False, fontsize=8, title="rung")
    return figure


def present(results: Results, settings: dict[str, Any], cells: Iterable[str] = ()) -> Shown:
    table = read(results)
    grids = [methods_grid(table), verdict_grid(table), models_grid(table), quality_grid(table), errors_grid(table)]
    figures = {
        "quality": ("Share of the models on which nESS is at least so much", _png(plot_quality(table))),
        "gradients": ("Gradients of bures.sample beside those of NUTS", _png(plot_gradients(table))),
    }
    return Shown(criteria(table), [*grids, missing_grid(table, cells, results)], figures)


def flat(results: Results) -> list[Found]:
    """One record a cell, every number in full but the moments of references."""
    records = []
    for entry in results.values():
        record = {name: entry["parameters"][name] for name in ("model", "method", "seed")}
        for name, value in entry["result"].items():
            if isinstance(value, dict):
                record |= {f"{name} {part}": x for part, x in _leaves(value)}
            elif not isinstance(value, list):
                record[name] = value
        records.append(record)
    return records


def _leaves(found: Found) -> Iterator[tuple[str, Any]]:
    """Numbers of a nested record with their path; no lists, which are the moments of references."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from ((f"{name} {path}", x) for path, x in _leaves(value))
        elif not isinstance(value, list):
            yield name, value
