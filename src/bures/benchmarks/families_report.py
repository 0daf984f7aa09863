"""What `bench families` shows: criteria, the contest on every model, evaluations and rank by d, Gaussians, figures."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bures.benchmarks import before_after, pages
from bures.benchmarks.families_cells import AUTO_LOW_RANK, AUTO_NORMAL, DEFAULT, LOW_RANK, MEAN_FIELD
from bures.benchmarks.families_models import DIMENSIONS, GAUSSIANS
from bures.benchmarks.pages import Criterion, Grid, largest, median, text
from bures.experiments.protocol import Results, number_plainly, select
from bures.plot.style import COLOURS as CYCLE, styled
from bures.reproduce import _png

TITLE = "Families: mean field, low rank, full rank"
QUESTION = "On real models of 65 to 3,075 dimensions, and on Gaussians of up to 100,000: how good, how fast, how large?"
BEATEN = (AUTO_LOW_RANK, AUTO_NORMAL, MEAN_FIELD)  # by the default's ELBO
SPARED = 2  # models of the eleven on which it may be otherwise
CHANCE = 0.023  # of two standard errors, to one side
COMFORT = ("close", "usable")
DOUBTFUL = 0.8  # k̂ by 4,000 draws, its noise allowed for
KL, SLOPE, SECONDS, GIGABYTES, SLOWER = 0.01, 1.15, 120.0, 6.0, 1.05
LARGEST = 100_000  # the dimension of the last two criteria of Gaussians
NOTE = (
    "Medians over seeds. warm: the least of up to {rounds} runs while they take under {patience:g} seconds, judgement "
    "included; cold: the first run, compilations included. ELBO: the mean over seeds, each by {num_samples:,} fresh "
    "draws; its error is the larger of the draws' and the seeds'. k̂ is by the same draws for all, verdict and outcome "
    "are the fit's own. NumPyro's guides: {numpyro_steps:,} steps of Adam with rate {numpyro_step_size:g}, one "
    "particle, their own rank and start; up to 400 dimensions four times as many seeds as we, because "
    "it is the spread of theirs that drowns a difference, and at most three beyond."
)


GAINS = (
    "of CPU s: the ratio of processor seconds, which other work on the machine disturbs less. Gains in bold are larger "
    "than two standard errors, which is what the criterion counts. †: not so, but each of our runs is above all of "
    "theirs by two errors of the draws, which chance does to so many runs less often than that."
)


class Law(NamedTuple):
    """y = factor · dᵖᵒʷᵉʳ, by least squares of the logarithms."""

    factor: float
    power: float

    def __call__(self, d: Any) -> Any:
        return self.factor * np.asarray(d, float) ** self.power

    def __str__(self) -> str:
        return f"{self.factor:.3g} d^{self.power:.2f}"


def fit_law(dims: Sequence[float], values: Sequence[float | None]) -> Law | None:
    """None of fewer than two dimensions."""
    known = [(d, y) for d, y in zip(dims, values, strict=True) if y]
    if len({d for d, _ in known}) < 2:
        return None
    power, intercept = np.polyfit(*np.log(np.array(known, float)).T, 1)
    return Law(float(np.exp(intercept)), float(power))


# ---- Models ---------------------------------------------------------------------------------------------------------


class Elbo(NamedTuple):
    """The mean over seeds and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        digits = max(0, min(3, 1 - math.floor(math.log10(self.error)))) if self.error > 0 else 3
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


def summarise_elbo(runs: list[dict[str, Any]]) -> Elbo | None:
    """None if some run has none: an approximation with draws outside of the target's support is worth nothing."""
    values = [run.get("elbo") for run in runs]
    if not values or None in values:
        return None
    n = len(values)
    by_draws = math.sqrt(sum(run["elbo_error"] ** 2 for run in runs)) / n
    by_seeds = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return Elbo(float(np.mean(values)), max(by_draws, by_seeds))


def is_higher(one: Elbo | None, other: Elbo | None) -> bool:
    """By more than two standard errors; anything is higher than no ELBO at all."""
    if one is None or other is None:
        return one is not None
    return one.mean - other.mean > 2 * math.hypot(one.error, other.error)


def is_apart(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    """Whether each of our runs is above each of theirs by two errors of the draws, and chance hardly ever does that.

    A rank test at the level of two standard errors, for contestants whose runs differ by thousands of nats: there the
    spread of the worse one enters its error, and the worse it is the less it seems to be beaten.
    """
    if 1 / math.comb(len(runs) + len(others), len(runs)) > CHANCE or any(run.get("elbo") is None for run in runs):
        return False
    known = [other for other in others if other.get("elbo") is not None]
    pairs = [(run, other) for run in runs for other in known]
    return all(a["elbo"] - b["elbo"] > 2 * math.hypot(a["elbo_error"], b["elbo_error"]) for a, b in pairs)


class Entry(NamedTuple):
    """One contestant on one model."""

    runs: list[dict[str, Any]]
    elbo: Elbo | None

    def beats(self, other: "Entry") -> bool:
        """By the means over seeds and their errors."""
        return is_higher(self.elbo, other.elbo)

    def median(self, name: str) -> float | None:
        return median(run.get(name) for run in self.runs)

    def words(self, name: str) -> str:
        """What the runs say, each answer once."""
        return "/".join(sorted({str(run[name]) for run in self.runs if run.get(name) is not None})) or "–"

    @property
    def is_honest(self) -> bool:
        """No failure, and no comfort where the weights have none."""
        failed = any(run["outcome"] in ("FAILED", "NON_FINITE", "DIVERGED") for run in self.runs)
        false = any(run.get("verdict") in COMFORT and (run.get("khat") or 0) > DOUBTFUL for run in self.runs)
        return not failed and not false


Table = dict[str, dict[str, Entry]]  # by model and contestant


def tabulate(results: Results, settings: dict[str, Any]) -> Table:
    table: Table = {}
    for model in settings["models"]:
        for contestant in settings["contestants"]:
            runs = [found for _, found in select(results, section="models", model=model, contestant=contestant)]
            if runs:
                table.setdefault(model, {})[contestant] = Entry(runs, summarise_elbo(runs))
    return table


def judge_models(table: Table) -> list[Criterion]:
    """Only where all that is compared was run; a share of the eleven may have a lower ELBO."""
    ours = {model: row[DEFAULT] for model, row in table.items() if DEFAULT in row}
    timed = [model for model in ours if AUTO_LOW_RANK in table[model]]
    contested = [model for model in ours if all(name in table[model] for name in BEATEN)]

    def is_slower(model: str) -> bool:
        theirs = table[model][AUTO_LOW_RANK].median("warm_seconds")
        return theirs is not None and (ours[model].median("warm_seconds") or math.inf) > theirs

    def is_lower(model: str) -> bool:
        return not all(ours[model].beats(table[model][name]) for name in BEATEN)

    def criterion(label: str, among: list[str], is_bad: Callable[[str], bool], limit: int) -> Criterion:
        bad = [model for model in among if is_bad(model)]
        value = float(len(bad)) if among else None
        return Criterion(f"of {len(among)} models: {label}", value, limit, ", ".join(bad))

    law = evaluations_law(table)
    spared = SPARED * len(contested) // len(DIMENSIONS)
    return [
        criterion(f"slower, warm, than {AUTO_LOW_RANK}", timed, is_slower, 0),
        criterion(f"ELBO not higher by two errors than {', '.join(BEATEN)}", contested, is_lower, spared),
        criterion("no honest outcome", list(ours), lambda model: not ours[model].is_honest, 0),
        Criterion("evaluations by d, the power", law and law.power, 1, str(law) if law else ""),
    ]


def evaluations_law(table: Table) -> Law | None:
    entries = {model: row[DEFAULT] for model, row in table.items() if DEFAULT in row}
    return fit_law([DIMENSIONS[model] for model in entries], [e.median("evaluations") for e in entries.values()])


def by_model(table: Table) -> Grid:
    """The default against the others, a line a model."""
    others = [name for name in (*BEATEN, LOW_RANK) if any(name in row for row in table.values())]
    rows = []
    for model, row in table.items():
        if DEFAULT not in row:
            continue
        ours, theirs = row[DEFAULT], row.get(AUTO_LOW_RANK)
        warm, other = ours.median("warm_seconds"), theirs and theirs.median("warm_seconds")
        cells = [model, str(DIMENSIONS[model]), ours.words("family"), text(warm), text(other)]
        cells.append(text(warm / other if warm and other else None))
        used, by_them = ours.median("cpu_seconds"), theirs and theirs.median("cpu_seconds")
        cells.append(text(used / by_them if used and by_them else None))
        cells.append(str(ours.elbo or "–"))
        cells += [_gain(ours, row.get(name)) for name in others]
        rows.append(tuple(cells))
    heads = (
        "model",
        "d",
        "family",
        "warm s",
        "AutoLowRank's",
        "ratio",
        "of CPU s",
        "ELBO",
        *(f"− {name}" for name in others),
    )
    return Grid("The default against the others", heads, rows, GAINS)


def _gain(ours: Entry, other: Entry | None) -> str:
    if other is None or ours.elbo is None:
        return "–"
    if other.elbo is None:
        return "not finite"
    gain, error = ours.elbo.mean - other.elbo.mean, math.hypot(ours.elbo.error, other.elbo.error)
    if gain > 2 * error:
        return f"**{gain:.3g}**"
    return f"{gain:.3g} ± {error:.2g}" + (" †" if is_apart(ours.runs, other.runs) else "")


def details(table: Table, settings: dict[str, Any]) -> Grid:
    rows = []
    for model, row in table.items():
        for contestant, entry in row.items():
            figures = [text(entry.median(name)) for name in ("cold_seconds", "warm_seconds")]
            counts = [_count(entry.median(name)) for name in ("evaluations", "steps", "rank")]
            said = [entry.words("outcome"), entry.words("verdict"), text(entry.median("khat"), 2)]
            message = next((run["message"] for run in entry.runs if "message" in run), "")
            rows.append((model, contestant, *figures, str(entry.elbo or message or "not finite"), *counts, *said))
    heads = ("model", "contestant", "cold s", "warm s", "ELBO", "evaluations", "steps", "rank")
    return Grid("Every contestant on every model", (*heads, "outcome", "verdict", "k̂"), rows, NOTE.format(**settings))


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def by_dimension(table: Table) -> Grid:
    """What a default fit costs, by phase."""
    rows = []
    for model, row in table.items():
        if DEFAULT not in row or not row[DEFAULT].median("evaluations"):
            continue
        entry, d = row[DEFAULT], DIMENSIONS[model]
        phases = [run.get("evaluations_by_phase") or {} for run in entry.runs]
        parts = [
            _count(median(each.get(name) for each in phases)) for name in ("start", "steps", "search", "judgement")
        ]
        total = entry.median("evaluations") or 0.0
        rows.append((model, str(d), _count(total), *parts, text(total / d), _count(entry.median("rank"))))
    law = evaluations_law(table)
    heads = ("model", "d", "evaluations", "start", "steps", "search", "judgement", "evaluations / d", "rank")
    return Grid(f"Evaluations of a default fit by d: about {law}" if law else "Evaluations by d", heads, rows)


# ---- Gaussians ------------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """The fits of one Gaussian."""

    kind: str
    dim: int
    found: dict[str, Any]

    @property
    def fits(self) -> list[dict[str, Any]]:
        return self.found.get("fits", [])

    def median(self, name: str) -> float | None:
        return median(fit.get(name) for fit in self.fits)

    @property
    def kl(self) -> float:
        """The largest, per thousand dimensions; in closed form or, of a family that has none here, by draws.

        Infinite where there is no fit at all: a size that failed keeps no limit.
        """
        if not self.fits:
            return math.inf
        values = [fit["kl_by_draws"] if fit["kl"] is None else fit["kl"] for fit in self.fits]
        return math.inf if None in values else max(values) * 1000 / self.dim

    @property
    def gigabytes(self) -> float | None:
        return self.found["memory"]["peak"] / 2**30 if "memory" in self.found else None

    @property
    def compiled(self) -> float | None:
        """The largest array of a compiled program, in units of (n + r) d, with n draws a step."""
        return self.found["largest_compiled"]["elements"] / self._unit("draws") if self.fits else None

    @property
    def held(self) -> float | None:
        """The largest of NumPy's arrays, n the draws of the judgement, which are held if d is not too large."""
        watched = self.fits and self.found["largest_of_numpy"]
        return self.found["largest_of_numpy"] / self._unit("judgement") if watched else None

    def _unit(self, draws: str) -> int:
        counts = [fit["draws"] if draws == "draws" else fit["evaluations_by_phase"][draws] for fit in self.fits]
        ranks = [fit["rank"] or self.dim for fit in self.fits]
        return max(n + r for n, r in zip(counts, ranks, strict=True)) * self.dim


def sizes(results: Results) -> list[Size]:
    found = [Size(p["kind"], p["dim"], result) for p, result in select(results, section="gaussians")]
    return sorted(found, key=lambda size: (GAUSSIANS.index(size.kind), size.dim))


def step_laws(found: list[Size]) -> dict[str, Law | None]:
    kinds = {kind: [size for size in found if size.kind == kind] for kind in GAUSSIANS}
    return {
        kind: fit_law([size.dim for size in mine], [size.median("step_seconds") for size in mine])
        for kind, mine in kinds.items()
    }


def judge_gaussians(found: list[Size]) -> list[Criterion]:
    def worst(name: str, among: list[Size]) -> tuple[float | None, str]:
        known = [(getattr(size, name), f"{size.kind}, d = {size.dim:,}") for size in among]
        return max(((value, where) for value, where in known if value is not None), default=(None, ""))

    last = [size for size in found if size.dim == LARGEST]
    slope = largest(law and law.power for law in step_laws(found).values())
    seconds = largest(size.median("seconds") for size in last)
    kl, memory = worst("kl", found), worst("gigabytes", last)
    compiled, held = worst("compiled", found), worst("held", found)
    return [
        Criterion("Gaussians: KL per thousand dimensions, largest", kl[0], KL, kl[1]),
        Criterion("Gaussians: slope of seconds a step in d", slope, SLOPE),
        Criterion("Gaussians: largest array of a program / (n + r) d, n draws a step", compiled[0], 3, compiled[1]),
        Criterion("Gaussians: largest array of NumPy / (n + r) d, n draws of the judgement", held[0], 3, held[1]),
        Criterion(f"Gaussians: seconds of a fit, warm, d = {LARGEST:,}", seconds, SECONDS),
        Criterion(f"Gaussians: gigabytes at the peak, d = {LARGEST:,}", memory[0], GIGABYTES, memory[1]),
    ]


def gaussians_grid(found: list[Size]) -> Grid:
    rows = []
    for size in found:
        if not size.fits:
            rows.append((size.kind, f"{size.dim:,}", size.found.get("message", "failed")[:80], *["–"] * 11))
            continue
        compiled = size.found["largest_compiled"]
        draws = _largest_pair(size.fits)
        cells = [f"{size.kind}", f"{size.dim:,}", "/".join(sorted({fit["family"] for fit in size.fits}))]
        cells += [_count(size.median("rank")), text(size.kl, 2), draws, text(size.median("seconds"))]
        cells += [text(size.median("step_seconds")), _count(size.median("steps")), _count(size.median("draws"))]
        cells += [
            _count(size.median("evaluations")),
            text(size.gigabytes),
            f"{compiled['shape']} in {compiled['program']}",
        ]
        cells += [_count(size.found["largest_of_numpy"])]
        rows.append(tuple(cells))
    heads = (
        "λ",
        "d",
        "family",
        "rank",
        "KL / thousand d",
        "KL by draws",
        "warm s",
        "s a step",
        "steps",
        "draws a step",
    )
    heads += ("evaluations", "GB", "largest compiled array", "largest of NumPy, elements")
    laws = ", ".join(f"{kind} {law}" for kind, law in step_laws(found).items() if law)
    note = (
        "KL(q ‖ p) in closed form, the largest of the seeds, and by fresh draws as a check of it. λ: eigenvalues of "
        "the covariance beyond its diagonal, fixed (3 to 300) or growing with d. Memory: in a process of its own; "
        "NumPy's arrays are looked at while a fit runs. Seconds a step: " + (laws or "–")
    )
    return Grid("Gaussians of rank 10 plus diagonal", heads, rows, note)


def _largest_pair(fits: list[dict[str, Any]]) -> str:
    known = [(fit["kl_by_draws"], fit["kl_error"]) for fit in fits if fit["kl_by_draws"] is not None]
    return "{:.2g} ± {:.1g}".format(*max(known)) if known else "–"


# ---- Unchanged ------------------------------------------------------------------------------------------------------


def unchanged(results: Results) -> list[dict[str, Any]]:
    """Records of `before_after`, with the ratio of seconds a step."""
    records = []
    for parameters, found in select(results, section="unchanged"):
        record = before_after.compare(parameters["target"], found)
        if "failed" not in found:
            pairs = zip(found["new"], found["old"], strict=True)
            record["step, ratio"] = median(_a_step(new) / _a_step(old) for new, old in pairs)
        records.append(record)
    return records


def _a_step(fit: dict[str, Any]) -> float:
    return max(fit["steps_alone"], 1e-9) / max(fit["steps"], 1)


def judge_unchanged(records: list[dict[str, Any]]) -> Criterion:
    ratio = median(record.get("step, ratio") for record in records)
    return Criterion("full Gaussian: seconds a step, new / old, median", ratio, SLOWER)


def unchanged_grid(records: list[dict[str, Any]]) -> Grid:
    grid = before_after.table(records)
    rows = [(*row, text(record.get("step, ratio"))) for row, record in zip(grid.rows, records, strict=True)]
    return Grid("The full Gaussian, old → new", (*grid.heads, "a step, ratio"), rows, grid.note)


# ---- Figures --------------------------------------------------------------------------------------------------------

# By their values: names such as C1 are looked up when the figure is saved, outside of our style.
COLOURS = dict(zip((DEFAULT, AUTO_LOW_RANK, MEAN_FIELD, AUTO_NORMAL, LOW_RANK), CYCLE, strict=False))
MARKS = {DEFAULT: "D", MEAN_FIELD: "s", LOW_RANK: "v", AUTO_LOW_RANK: "o", AUTO_NORMAL: "^"}
FLOOR = 0.01  # nats: what is nearer to the best is drawn there


def plot_elbo(table: Table) -> Figure:
    """Nats below the best of all contestants, model by model."""
    figure = Figure(figsize=(8, 1.6 + 0.36 * len(table)), layout="constrained")
    ax = figure.subplots()
    heights = {model: len(table) - 1 - i for i, model in enumerate(table)}
    present = [name for name in COLOURS if any(name in row for row in table.values())]
    for i, name in enumerate(present):
        points = []
        for model, row in table.items():
            best = max((entry.elbo.mean for entry in row.values() if entry.elbo), default=None)
            if best is not None and name in row and row[name].elbo is not None:
                gap = max(best - row[name].elbo.mean, FLOOR)
                points.append((gap, heights[model] + 0.24 - 0.12 * i))
        size = 45 if name == DEFAULT else 26
        ax.scatter(
            *np.array(points).reshape(-1, 2).T, color=COLOURS[name], marker=MARKS[name], s=size, label=name, zorder=3
        )
    for height in heights.values():
        ax.axhline(height - 0.5, color="0.9", linewidth=0.6, zorder=0)
    ax.set(xscale="log", xlabel=f"nats below the best ELBO ({FLOOR} and less on the left)")
    ax.set_xlim(FLOOR / 1.5, None)
    ax.set_yticks(list(heights.values()), [f"{model}, {DIMENSIONS[model]:,}" for model in heights])
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def plot_evaluations(table: Table) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    found = {m: count for m, row in table.items() if DEFAULT in row and (count := row[DEFAULT].median("evaluations"))}
    dims, counts = [DIMENSIONS[model] for model in found], list(found.values())
    ax.scatter(dims, counts, color=COLOURS[DEFAULT], zorder=3, label="bures.fit")
    _name_points(ax, found, dims, counts)
    if (law := evaluations_law(table)) is not None:
        grid = np.geomspace(min(dims), max(dims), 50)
        ax.plot(grid, law(grid), color=COLOURS[DEFAULT], linewidth=1, label=_told(law))
        middle = math.exp(np.mean(np.log(dims)))
        ax.plot(grid, law(middle) * grid / middle, color="0.6", linewidth=1, linestyle="--", label="as d")
    return _log_log(figure, ax, "dimension d", "evaluations of a fit")


def _name_points(ax: Any, names: Any, x: Sequence[Any], y: Sequence[Any]) -> None:
    """Every other name below its point, in the order of x, so that neighbours do not meet."""
    placed = sorted((a, b, name) for name, a, b in zip(names, x, y, strict=True))
    for i, (a, b, name) in enumerate(placed):
        above = i % 2 == 0
        offset, side = ((-3, 5), "right") if above else ((3, -10), "left")
        ax.annotate(name, (a, b), xytext=offset, textcoords="offset points", ha=side, fontsize=7, color="0.3")


def plot_gaussians(found: list[Size]) -> Figure:
    """Seconds a step and of whole fits."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    laws = step_laws(found)
    for i, kind in enumerate(GAUSSIANS):
        mine = [size for size in found if size.kind == kind and size.fits]
        if not mine:
            continue
        dims = [size.dim for size in mine]
        law = f": {_told(laws[kind])} s" if laws[kind] else ""
        name = f"λ {kind}"
        ax.plot(dims, [size.median("seconds") for size in mine], "o-", color=CYCLE[i], label=f"a fit, {name}")
        steps = [size.median("step_seconds") for size in mine]
        ax.plot(dims, steps, "s--", color=CYCLE[i], label=f"a step, {name}{law}")
    return _log_log(figure, ax, "dimension d", "seconds, warm")


def plot_rank(table: Table, found: list[Size]) -> Figure:
    """Active directions against d: of models, of the Gaussians, and NumPyro's."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    for name in (LOW_RANK, DEFAULT):
        ranks = {m: rank for m, row in table.items() if name in row and (rank := row[name].median("rank"))}
        dims = [DIMENSIONS[model] for model in ranks]
        if ranks:
            label = f"models, {name}"
            colours = dict(facecolor="none" if name == LOW_RANK else COLOURS[name], edgecolor=COLOURS[name])
            ax.scatter(
                dims, list(ranks.values()), marker=MARKS[name], s=70 if name == LOW_RANK else 20, label=label, **colours
            )
            if name == LOW_RANK or not any(LOW_RANK in row for row in table.values()):
                _name_points(ax, ranks, dims, list(ranks.values()))
    for i, kind in enumerate(GAUSSIANS):
        points = [(size.dim, rank) for size in found if size.kind == kind and (rank := size.median("rank"))]
        if points:
            ax.plot(
                *np.array(points).T, ("x-", "+--")[i], color="0.4", linewidth=1, label=f"Gaussians of rank 10, λ {kind}"
            )
    known = [DIMENSIONS[model] for model in table] + [size.dim for size in found]
    grid = np.geomspace(min(known, default=10), max(known, default=1000), 50)
    ax.plot(grid, np.sqrt(grid), color=COLOURS[AUTO_LOW_RANK], linewidth=1, linestyle="--", label="NumPyro's: √d")
    return _log_log(figure, ax, "dimension d", "rank: active directions")


def _told(law: Law | None) -> str:
    """For a figure, where mathematics is set."""
    if law is None:
        return ""
    exponent = math.floor(math.log10(law.factor))
    plain = -3 <= exponent < 5
    factor = f"{law.factor:.3g}" if plain else rf"{law.factor / 10.0**exponent:.2g} \cdot 10^{{{exponent}}}"
    return rf"${factor}\; d^{{{law.power:.2f}}}$"


def _log_log(figure: Figure, ax: Any, x: str, y: str) -> Figure:
    ax.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    ax.margins(0.12)
    for axis in (ax.xaxis, ax.yaxis):
        number_plainly(axis)
        axis.set_minor_locator(NullLocator())
    figure.legend(loc="outside lower center", ncols=2)
    return figure


# ---- Pages ----------------------------------------------------------------------------------------------------------


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figures and the page; return the lines of the criteria."""
    table, found, records = tabulate(results, settings), sizes(results), unchanged(results)
    criteria: list[Criterion] = []
    grids: list[Grid] = []
    figures: dict[str, tuple[str, bytes]] = {}

    def draw(name: str, caption: str, plot: Callable[..., Figure], *arguments: Any) -> None:
        figures[name] = caption, _png(styled(plot)(*arguments))

    if table:
        criteria += judge_models(table)
        grids += [by_model(table), by_dimension(table), details(table, settings)]
        draw("elbo", "Nats below the best ELBO, by model and contestant", plot_elbo, table)
    if any(DEFAULT in row and row[DEFAULT].median("evaluations") for row in table.values()):
        draw("evaluations", "Evaluations of a default fit against the dimension", plot_evaluations, table)
    if found:
        criteria += judge_gaussians(found)
        grids.append(gaussians_grid(found))
    if any(size.fits for size in found):
        draw("gaussians", "Seconds on Gaussians of rank 10 plus diagonal", plot_gaussians, found)
    if table or found:
        draw("rank", "Rank against the dimension", plot_rank, table, found)
    if records:
        criteria.append(judge_unchanged(records))
        grids.append(unchanged_grid(records))
    grids.insert(0, pages.criteria_grid(criteria))
    pages.write(folder, "families", TITLE, QUESTION, grids, flat(results), figures)
    return [each.line() for each in criteria]


def flat(results: Results) -> list[dict[str, Any]]:
    """One record a fit, every number in full."""
    records = []
    for parameters, found in select(results, section="models"):
        names = {name: parameters[name] for name in ("section", "model", "contestant", "seed")}
        records.append(names | {"d": DIMENSIONS[parameters["model"]]} | _spread(found))
    for parameters, found in select(results, section="gaussians"):
        names = {"section": "gaussians", "model": parameters["kind"], "d": parameters["dim"]}
        records += [names | {"seed": seed} | _spread(fit) for seed, fit in enumerate(found.get("fits", []))]
    return records


def _spread(found: dict[str, Any]) -> dict[str, Any]:
    """Nested figures as columns of their own."""
    record = {}
    for name, value in found.items():
        if isinstance(value, dict):
            record |= {f"{name} {part}": x for part, x in value.items()}
        else:
            record[name] = value
    return record
