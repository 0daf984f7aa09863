"""Geometry or estimator? (ours): every objective × geometry × estimator, each with a step size chosen by one rule.

The paper compares Bures–Wasserstein steps driven by exact Hessians with Euclidean steps driven by reparameterised
gradients: two factors change at once. Here each changes alone. Kim et al. (2026, arXiv 2602.18718) attribute the edge
of Wasserstein variational inference to the estimator (Price's gradient), not to the geometry.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bures
from bures import datasets
from bures.diagnostics import WeightedDraws, ness
from bures.experiments.convergence import pack, reached, regression, seconds_per_step, start, track, unpack
from bures.experiments.protocol import Results, Row, Table, choose_step, final, number_plainly, select

TITLE = "Geometry or estimator?"
QUESTION = "Which factor carries the gain of BW over Euclidean methods: the geometry, or the estimator that drives it?"

OBJECTIVES = ("ELBO", "IW-ELBO")
BW, FB, EUCLIDEAN = GEOMETRIES = ("BuresWasserstein", "ForwardBackward", "Euclidean")
REPARAMETERISED, STEIN, PRICE = ESTIMATORS = ("Reparameterised", "Stein", "Price")
COLOURS = {BW: "#0072B2", FB: "#009E73", EUCLIDEAN: "#D55E00"}
MARKERS = {BW: "s", FB: "D", EUCLIDEAN: "o"}
# Steps of BW and FB for the ELBO; times K for the IW-ELBO, whose coordinatewise gradient is about K times smaller.
# Around 1 / (largest precision of the target). Adam's learning rates are the paper's grid, moved up a little.
STEPS = {
    "eggbox": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "regression": (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    "census": (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3),  # of all rows: times `every` for one row in so many
}
RESAMPLES = 400  # of the seeds, for intervals
LEARNING_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
K_OF = {"eggbox": 5, "regression": 10, "census": 5}
# Nats below the best that count as arrived; half of that is the margin for viable steps, as in the paper.
BELOW = {"eggbox": 0.5, "regression": 1.0, "census": 1.0}


def settings(quick: bool, seeds: int | None) -> dict:
    """`every`: one in so many of the Census rows. ELBO methods draw M·K points, IW-ELBO methods M tuples of K."""
    frozen = {"n": 1000, "data_seed": 2026, "num_evaluations": 500}
    if quick:
        own = {"problems": ["census"], "geometries": [BW, EUCLIDEAN], "estimators": [REPARAMETERISED, PRICE]}
        own |= {"every": 200, "M": 50, "num_steps": 250, "selection_seeds": [9001, 9002], "grid": [3, 4, 5, 6]}
        return frozen | own | {"num_evaluations": 200, "seeds": seeds or 5}
    own = {
        "problems": list(STEPS),
        "geometries": list(GEOMETRIES),
        "estimators": list(ESTIMATORS),
        "every": 20,
        "M": 100,
    }
    own |= {"num_steps": 1000, "selection_seeds": [9001, 9002, 9003], "grid": list(range(8))}
    return frozen | own | {"seeds": seeds or 10}


def tiny() -> dict:
    """A few seconds, for tests."""
    few = {"problems": ["eggbox"], "M": 5, "num_steps": 120, "grid": [3], "num_evaluations": 20}
    return settings(quick=True, seeds=2) | few


def combinations(settings: dict) -> Iterator[tuple[str, str, str]]:
    """Every legal (objective, geometry, estimator): forward–backward has no form for the IW-ELBO."""
    for objective, geometry, estimator in itertools.product(OBJECTIVES, settings["geometries"], settings["estimators"]):
        if not (geometry == FB and objective != "ELBO"):
            yield objective, geometry, estimator


def cells(settings: dict) -> dict[str, dict]:
    names = ("n", "data_seed", "num_evaluations", "every", "M")
    shared = {name: settings[name] for name in names}
    made: dict[str, dict] = {}
    for problem in settings["problems"]:
        for objective, geometry, estimator in combinations(settings):
            steps = LEARNING_RATES if geometry == EUCLIDEAN else STEPS[problem]
            scale = K_OF[problem] if objective != "ELBO" else 1
            scale = 1 if geometry == EUCLIDEAN else scale * settings["every"] if problem == "census" else scale
            made[f"{problem}-{objective}-{geometry}-{estimator}"] = dict(
                shared,
                kind="run",
                problem=problem,
                objective=objective,
                geometry=geometry,
                estimator=estimator,
                step_sizes=[float(f"{scale * steps[i]:.6g}") for i in settings["grid"]],
                num_steps=settings["num_steps"],
                selection_seeds=settings["selection_seeds"],
                seeds=settings["seeds"],
            )
        # Timed side by side, last: in one process everything is then compiled already.
        made[f"{problem}-cost"] = dict(
            shared, kind="cost", problem=problem, combinations=list(combinations(settings)), repeats=5, num_steps=20
        )
    return made


# ---- Cells ----------------------------------------------------------------------------------------------------------


def _problem(parameters: dict) -> tuple[bures.Target, bures.Gaussian]:
    match parameters["problem"]:
        case "eggbox":
            return bures.models.eggbox(), start(2, jnp.float64, [6.0, 12.0])
        case "regression":
            return regression(parameters["n"], parameters["data_seed"], jnp.float32), start(3, jnp.float32)
        case "census":
            X, y, names = datasets.census("screened")
            X, y = jnp.asarray(X[:: parameters["every"]], jnp.float32), y[:: parameters["every"]]
            return bures.models.logistic_regression(X, y, names=names), start(X.shape[1], jnp.float32)
    raise ValueError(f"problem must be one of {tuple(STEPS)}, but got {parameters['problem']!r}.")


def _method(objective: str, geometry: str, estimator: str, step_size: float, M: int, K: int) -> dict[str, Any]:
    size = M if objective == "IW-ELBO" else M * K
    kinds = {REPARAMETERISED: bures.Reparameterised, STEIN: bures.Stein, PRICE: bures.Price}
    spaces = {BW: bures.BuresWasserstein, FB: bures.ForwardBackward, EUCLIDEAN: bures.Euclidean}
    return dict(
        objective=bures.IWELBO(K=K) if objective == "IW-ELBO" else bures.ELBO(),
        estimator=kinds[estimator](M=size),
        geometry=spaces[geometry](step_size),
    )


def run(parameters: dict) -> dict:
    target, init = _problem(parameters)
    K, M, count = K_OF[parameters["problem"]], parameters["M"], parameters["num_evaluations"]

    def advance(method, seed, num_steps, evaluated=True):
        # Progress is that of the objective itself, on one fixed noise for all runs of a problem.
        size = method["objective"].K
        noise = jax.random.normal(jax.random.key(2**31 - 1), (count, target.dim), init.mean.dtype)
        noise = noise.reshape(count // size, size, target.dim)
        measure = method["objective"]
        key = jax.random.key(seed)
        return track(key, target, init, method, num_steps, measure=measure, noise=noise, evaluated=evaluated)

    if parameters["kind"] == "cost":
        runs = {}
        for combination in parameters["combinations"]:
            method = _method(*combination, 1e-5, M, K)
            runs["-".join(combination)] = lambda steps, method=method: advance(method, 0, steps, evaluated=False)
        return {"seconds": seconds_per_step(runs, parameters["repeats"], parameters["num_steps"])}

    parts = parameters["objective"], parameters["geometry"], parameters["estimator"]
    num_steps, finals = parameters["num_steps"], {}
    for step in parameters["step_sizes"]:
        method = _method(*parts, step, M, K)
        finals[step] = [final(advance(method, seed, num_steps).progress) for seed in parameters["selection_seeds"]]
    chosen, unstable = choose_step(finals, margin=BELOW[parameters["problem"]] / 2)
    result = {"step size": chosen, "unstable": unstable, "finals": [finals[s] for s in parameters["step_sizes"]]}
    if chosen is None:
        return result | {"progress": [], "final": [], "ness": []}
    runs = [advance(_method(*parts, chosen, M, K), seed, num_steps) for seed in range(parameters["seeds"])]
    key = jax.random.key(2**31 - 2)
    shares = [ness(WeightedDraws.draw(key, run.approximation, target, 5000).log_weights) for run in runs]
    return result | {
        "progress": [pack(run.progress) for run in runs],
        "final": [final(run.progress) for run in runs],
        "ness": shares,
    }


# ---- Tables ---------------------------------------------------------------------------------------------------------


class _Summary:
    """Medians over seeds of one problem and objective, by (geometry, estimator). Never arrived: all the steps."""

    def __init__(self, results: Results, problem: str, objective: str):
        entries = {
            (p["geometry"], p["estimator"]): (p, r)
            for p, r in select(results, kind="run", problem=problem, objective=objective)
        }
        medians = [
            np.median([-np.inf if x is None else x for x in r["final"]]) for _, r in entries.values() if r["final"]
        ]
        finite = [x for x in medians if np.isfinite(x)]
        self.threshold = max(finite) - BELOW[problem] if finite else np.inf
        costs = next((r["seconds"] for _, r in select(results, kind="cost", problem=problem)), {})
        self.iterations, self.arrived, self.seconds, self.ness, self.step, self.edge = {}, {}, {}, {}, {}, {}
        self.counts, self.shares = {}, {}  # by seed
        for pair, (p, r) in entries.items():
            counts = [reached(unpack(line), self.threshold) for line in r["progress"]]
            capped = [p["num_steps"] if c is None else c for c in counts] or [p["num_steps"]] * p["seeds"]
            self.counts[pair] = np.array(capped)
            self.iterations[pair] = np.quantile(capped, [0.5, 0.25, 0.75])
            self.arrived[pair] = sum(c is not None for c in counts), max(len(counts), p["seeds"])
            name = "-".join((objective, *pair))
            if name in costs:
                self.seconds[pair] = float(self.iterations[pair][0] * np.median(costs[name]))
            shares = np.array(r["ness"] or [0.0] * p["seeds"], np.float64)
            self.shares[pair] = np.where(np.isfinite(shares), shares, 0.0)  # a run that failed has none
            self.ness[pair] = float(np.median(self.shares[pair]))
            self.step[pair] = r["step size"]
            self.edge[pair] = r["step size"] in (p["step_sizes"][0], p["step_sizes"][-1])


def _summaries(results: Results, settings: dict) -> dict[tuple[str, str], _Summary]:
    made = {(p, o): _Summary(results, p, o) for p in settings["problems"] for o in OBJECTIVES}
    return {name: summary for name, summary in made.items() if summary.iterations}


Effect = tuple[str, list[tuple[tuple[str, str], tuple[str, str]]]]  # words, pairs of (geometry, estimator): from, to


def _effects(settings: dict) -> list[Effect]:
    """What changes, and the pairs of arms in which it alone changes."""
    geometries, estimators = settings["geometries"], settings["estimators"]
    made: list[Effect] = []
    for before, after in ((REPARAMETERISED, PRICE), (REPARAMETERISED, STEIN), (STEIN, PRICE)):
        if before in estimators and after in estimators:
            made.append((f"estimator: {before} → {after}", [((g, before), (g, after)) for g in geometries]))
    for before, after in ((EUCLIDEAN, BW), (EUCLIDEAN, FB), (FB, BW)):
        if before in geometries and after in geometries:
            made.append((f"geometry: {before} → {after}", [((before, e), (after, e)) for e in estimators]))
    if {EUCLIDEAN, BW} <= set(geometries) and {REPARAMETERISED, PRICE} <= set(estimators):
        made.append(("both, as in the paper", [((EUCLIDEAN, REPARAMETERISED), (BW, PRICE))]))
    return made


def _ratios(summaries: dict, effect: Effect, what: str, problem: str | None = None) -> np.ndarray:
    """before / after of each pair in each problem and objective: above 1 where the change helps."""
    found = []
    for (name, _), summary in summaries.items():
        values = getattr(summary, what)
        if problem in (None, name):
            for before, after in effect[1]:
                if before in values and after in values:
                    found.append(float(np.ravel(values[before])[0]) / float(np.ravel(values[after])[0]))
    return np.array(found)


def _gain(summaries: dict, effect: Effect) -> float:
    """The mean change of the final nESS, in percentage points."""
    pairs = [(s.ness, *pair) for s in summaries.values() for pair in effect[1]]
    gains = [100 * (ness[after] - ness[before]) for ness, before, after in pairs if before in ness and after in ness]
    return float(np.mean(gains)) if gains else float("nan")


def _mean(ratios: np.ndarray) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _resampled(summaries: dict, effect: Effect) -> tuple[np.ndarray, np.ndarray]:
    """Mean log ratio of iterations and mean gain in nESS, each for the seeds drawn again with replacement.

    The same seeds are drawn for all arms and effects, so that differences between effects can be told, too.
    """
    arms = [(s, *pair) for s in summaries.values() for pair in effect[1] if all(arm in s.counts for arm in pair)]
    seeds = len(next(iter(arms[0][0].counts.values())))
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))

    def medians(values):
        return np.median(values[drawn], axis=1)

    ratios = [np.log(medians(s.counts[before]) / medians(s.counts[after])) for s, before, after in arms]
    gains = [100 * (medians(s.shares[after]) - medians(s.shares[before])) for s, before, after in arms]
    return np.mean(ratios, axis=0), np.mean(gains, axis=0)


def _interval(samples: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(samples, [0.05, 0.95])
    return float(low), float(high)


def tables(results: Results, settings: dict) -> list[Table]:
    summaries = _summaries(results, settings)
    made = [_effect_table(summaries, settings), _arm_table(summaries, settings)]
    return [table for table in made if table.rows]


def _effect_table(summaries: dict, settings: dict) -> Table:
    rows = []
    for effect in _effects(settings):
        ratios, seconds = (_ratios(summaries, effect, what) for what in ("iterations", "seconds"))
        if not ratios.size:
            continue
        parts = [
            f"{problem} {_mean(own):.2f}×"
            for problem in settings["problems"]
            if (own := _ratios(summaries, effect, "iterations", problem)).size
        ]
        low, high = np.exp(_interval(_resampled(summaries, effect)[0]))
        measured = f"{_mean(ratios):.2f}× ({low:.2f}–{high:.2f}) [{ratios.min():.2f}, {ratios.max():.2f}]"
        measured += f", {ratios.size} pairs"
        if seconds.size:
            measured += f"; seconds {_mean(seconds):.2f}×"
        measured += f"; final nESS {_gain(summaries, effect):+.1f} points"
        rows.append(Row(effect[0], "–", measured, None, "iterations: " + ", ".join(parts)))
    note = (
        "How many times fewer iterations (and seconds) to the threshold after the change: geometric mean (90% interval "
        f"of {RESAMPLES} resamples of the {settings['seeds']} seeds) [smallest, largest] over problems, objectives and "
        "the levels of the other factor. Runs that never arrive count as the "
        f"{settings['num_steps']} iterations they had. Final nESS: the mean difference in percentage points."
    )
    return Table("Main effects", tuple(rows), note)


def _arm_table(summaries: dict, settings: dict) -> Table:
    rows = []
    for (problem, objective), summary in summaries.items():
        for (geometry, estimator), (median, q1, q3) in summary.iterations.items():
            pair = geometry, estimator
            arrived, count = summary.arrived[pair]
            seconds = f", {summary.seconds[pair]:.2f} s" if pair in summary.seconds else ""
            measured = f"{median:.0f} [{q1:.0f}, {q3:.0f}]{seconds}, nESS {100 * summary.ness[pair]:.1f}%"
            step = "no viable step" if summary.step[pair] is None else f"step {summary.step[pair]:g}"
            notes = [step + (" (end of the grid)" if summary.edge[pair] else "")]
            notes += [f"{count - arrived} of {count} never arrive"] if arrived < count else []
            label = f"{problem}, {objective}, {geometry}, {estimator}"
            rows.append(Row(label, "–", measured, None, "; ".join(notes)))
    note = (
        "Median [Q1, Q3] of iterations until the objective's own value, on fixed noise, stays within "
        + ", ".join(f"{BELOW[p]:g} ({p})" for p in settings["problems"])
        + " nats of the best median for 100 iterations; seconds without evaluations; median final "
        f"nESS, 0 where a run failed. Census: every {settings['every']}th row."
    )
    return Table(f"All arms, {settings['seeds']} seeds", tuple(rows), note)


# ---- Figures --------------------------------------------------------------------------------------------------------


def plot(results: Results, settings: dict) -> dict[str, Figure]:
    summaries = _summaries(results, settings)
    if not summaries:
        return {}
    figures = {"factorial-arms": _plot_arms(summaries, settings)}
    if any(_ratios(summaries, effect, "iterations").size for effect in _effects(settings)):
        figures["factorial-effects"] = _plot_effects(summaries, settings)
    return figures


def _plot_arms(summaries: dict, settings: dict) -> Figure:
    """Iterations to the threshold of every arm: rows of a panel are estimators, colours geometries."""
    problems, estimators = settings["problems"], settings["estimators"]
    figure = Figure(figsize=(9.5, 1.2 + (0.6 + 0.3 * len(estimators)) * len(problems)), layout="constrained")
    axes = figure.subplots(len(problems), 2, sharex=True, sharey=True, squeeze=False)
    for (i, problem), (j, objective) in itertools.product(enumerate(problems), enumerate(OBJECTIVES)):
        ax, summary = axes[i, j], summaries.get((problem, objective))
        for (geometry, estimator), (median, q1, q3) in (summary.iterations if summary else {}).items():
            at = estimators.index(estimator) + 0.2 * (settings["geometries"].index(geometry) - 1)
            arrived, count = summary.arrived[geometry, estimator]
            full = "full" if arrived == count else "none"
            style = dict(color=COLOURS[geometry], marker=MARKERS[geometry], fillstyle=full, markersize=6)
            ax.errorbar([median], [at], xerr=[[median - q1], [q3 - median]], elinewidth=1.2, **style)
        ax.axvline(settings["num_steps"], color="0.6", linestyle=":", linewidth=1)
        ax.set(xscale="log", yticks=range(len(estimators)), yticklabels=estimators, ylim=(len(estimators) - 0.5, -0.5))
        number_plainly(ax.xaxis)
        ax.set_title(f"{problem}, {objective}", fontsize=9)
        ax.grid(axis="x", color="0.9")
        ax.set_axisbelow(True)
    for ax in axes[-1]:
        ax.set_xlabel("iterations to the threshold")
    handles = [
        Line2D([], [], color=COLOURS[g], marker=MARKERS[g], linestyle="", label=g) for g in settings["geometries"]
    ]
    handles.append(
        Line2D([], [], color="0.3", marker="o", fillstyle="none", linestyle="", label="some runs never arrive")
    )
    handles.append(Line2D([], [], color="0.6", linestyle=":", label="end of the runs"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _plot_effects(summaries: dict, settings: dict) -> Figure:
    """Every matched pair as a dot, their geometric mean as a bar: to the right the change helps."""
    effects = [e for e in _effects(settings) if _ratios(summaries, e, "iterations").size]
    figure = Figure(figsize=(9.5, 1.1 + 0.42 * len(effects)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, what in zip(axes, ("iterations", "seconds"), strict=True):
        for i, effect in enumerate(effects):
            ratios = _ratios(summaries, effect, what)
            if ratios.size:
                family = effect[0].split(":")[0]
                colour = {"estimator": "#CC79A7", "geometry": "#0072B2"}.get(family, "0.4")
                ax.barh(i, _mean(ratios) - 1, left=1, height=0.65, color=colour, alpha=0.5)
                ax.text(0.99, i, f"{_mean(ratios):.2f}×", transform=ax.get_yaxis_transform(), ha="right", va="center")
                spread = np.linspace(-0.2, 0.2, ratios.size) if ratios.size > 1 else np.zeros(1)
                ax.plot(ratios, i + spread, "o", markersize=3, color="0.2", alpha=0.7)
        ax.axvline(1, color="0.2", linewidth=1)
        ax.set(
            xscale="log",
            yticks=range(len(effects)),
            yticklabels=[e[0] for e in effects],
            ylim=(len(effects) - 0.4, -0.6),
        )
        low, high = ax.get_xlim()
        ax.set_xlim(low, high * (high / low) ** 0.25)
        number_plainly(ax.xaxis)
        ax.xaxis.set_major_formatter("{x:g}×")
        ax.set_xlabel(f"times fewer {what} to the threshold")
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def reading(results: Results, settings: dict) -> str:
    summaries = _summaries(results, settings)
    effects = {effect[0]: effect for effect in _effects(settings)}
    names = f"estimator: {REPARAMETERISED} → {PRICE}", f"geometry: {EUCLIDEAN} → {BW}", "both, as in the paper"
    if not all(name in effects and _ratios(summaries, effects[name], "iterations").size for name in names):
        return "Not enough arms yet."
    estimator, geometry, both = (_mean(_ratios(summaries, effects[name], "iterations")) for name in names)
    gains = [_gain(summaries, effects[name]) for name in names]
    spread = _ratios(summaries, effects[names[1]], "iterations")
    drawn = [_resampled(summaries, effects[name]) for name in names[:2]]
    words = "saves more iterations", "adds more nESS"
    verdict = " and ".join(_compare(words[i], drawn[0][i] - drawn[1][i]) for i in range(2))
    split = []
    for problem, objective in summaries:
        own = {(problem, objective): summaries[problem, objective]}
        parts = [_ratios(own, effects[name], "iterations") for name in names[:2]]
        if all(part.size for part in parts):
            split.append(f"{problem} {objective}: estimator {_mean(parts[0]):.2f}×, geometry {_mean(parts[1]):.2f}×")
    return (
        "Price's estimator in place of the reparameterised gradient multiplies the number of iterations by "
        f"{1 / estimator:.2f} and changes the final nESS by {gains[0]:+.1f} points; Bures–Wasserstein in place of "
        f"Euclidean steps, by {1 / geometry:.2f} (from {1 / spread.max():.2f} to {1 / spread.min():.2f}) and "
        f"{gains[1]:+.1f} points; both at once, the paper's comparison, by {1 / both:.2f} and {gains[2]:+.1f} points. "
        f"Over resamples of the {settings['seeds']} seeds, {verdict}; Kim et al. (2026) credit the estimator. "
        f"Times fewer iterations by problem: {'; '.join(split)}. “Euclidean” is Adam on (m, L) with clipped gradients "
        "and BW a plain Euler step, as in the paper, so the factor geometry includes the optimiser; and a coarse grid "
        "of steps moves each arm by up to its spacing, which the resamples do not see."
    )


def _compare(words: str, differences: np.ndarray) -> str:
    """Which factor does more, estimator or geometry, if 95% of the resamples say the same."""
    share = float(np.mean(differences > 0))
    if max(share, 1 - share) < 0.95:
        return f"it is open which factor {words} (the estimator in {100 * share:.0f}%)"
    return f"the {'estimator' if share > 0.5 else 'geometry'} {words}"
