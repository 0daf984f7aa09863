"""Fits of mixtures in `bench ladder`: beside one Gaussian, of several modes, and beside published figures."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.ladder_cells import GAUSSIAN, MIXTURE, measure
from bures.benchmarks.ladder_sections import Figures, Runs, Section, Shown, collect, measured, summary, told
from bures.benchmarks.ladder_targets import MIXTURES, MODES, PUBLISHED, TARGETS
from bures.benchmarks.pages import Criterion, Grid, count, text
from bures.experiments.protocol import Results, number_plainly
from bures.plot.style import COLOURS, styled
from bures.reproduce import _png

TOLERATED = 0.01  # of nESS: the noise of 20,000 draws
SHARE = 0.9  # of seeds on which an evidence has to be right
PUBLISHED_SEEDS = 5  # as many as were published


# ---- Mixtures -------------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    ness: float
    khat: float
    beyond: int


LIMITS = {
    "eggbox": Limits(0.99, 0.3, 10_000),
    "banana, d = 2": Limits(0.93, 0.5, 25_000),
    "banana, d = 10": Limits(0.90, 0.5, 60_000),
    "funnel, d = 3": Limits(0.90, 0.5, 25_000),
    "funnel, d = 10": Limits(0.60, 0.5, 60_000),
    "Student-t, d = 2": Limits(0.97, 0.7, 10_000),
    "Student-t, d = 20": Limits(0.97, 0.7, 15_000),
    "eight schools, centred": Limits(0.62, 0.7, 60_000),
    "gp_pois_regr": Limits(0.55, 0.7, 60_000),
    "hmm_drive_0": Limits(0.93, 0.7, 15_000),
    "kilpisjarvi": Limits(0.95, 0.7, 15_000),
    "kidscore_momiq": Limits(0.99, 0.7, 15_000),
    "Census, d = 96": Limits(0.25, 0.7, 20_000),
}
MIXTURES_NOTE = (
    "Medians over seeds, each judged by {num_samples:,} fresh draws. Least gain: nESS of the mixture less that of the "
    "single Gaussian of the same seed, on the seed where it is least; 0.01 is left to the noise of the draws. Beyond: "
    "evaluations without the Gaussian's (where a fit does not say them, without the start's) and without the fit's own "
    "judgement. In all: every point at which the target was evaluated, the judgement's too."
)


def judge_mixture(name: str, ours: Runs, plain: Runs) -> list[Criterion]:
    """nESS, k̂, evaluations beyond the Gaussian's and in all, and the seed that gained least."""
    limits = LIMITS[name]
    both = [seed for seed in ours.found if seed in plain.found]
    gains = [ours.found[seed].get("ness", 0.0) - plain.found[seed].get("ness", 0.0) for seed in both]
    return [
        Criterion("nESS", ours.median("ness"), limits.ness, at_least=True),
        Criterion("k̂", ours.median("khat"), limits.khat),
        Criterion("beyond", ours.median("beyond"), limits.beyond),
        Criterion("in all", ours.median("evaluations"), 2 * limits.beyond),
        Criterion("least gain", min(gains, default=None), -TOLERATED, at_least=True),
    ]


def present_mixtures(results: Results, settings: dict[str, Any]) -> Shown:
    rows, judged = [], {}
    for name in measured(results, "mixtures", MIXTURES):
        ours, plain = (collect(results, "mixtures", name, each) for each in (MIXTURE, GAUSSIAN))
        criteria = judged[name] = judge_mixture(name, ours, plain)
        ness, khat, beyond, in_all, gain = criteria
        worst = float(np.min(ours.values("ness"))) if ours.found else None
        rows.append(
            (
                *(name, str(TARGETS[name].dim), text(plain.median("ness")), told(ness), text(worst), told(gain)),
                *(told(khat), count(ours.median("components")), told(beyond, count(beyond.value))),
                *(told(in_all, count(in_all.value)), count(plain.median("evaluations")), text(ours.median("seconds"))),
            )
        )
    heads = ("target", "d", "nESS of the Gaussian", "of the mixture", "worst seed", "least gain", "k̂", "components")
    heads += ("evaluations beyond the Gaussian's", "in all", "the Gaussian's", "seconds")
    grid = Grid("Mixtures against one Gaussian", heads, rows, MIXTURES_NOTE.format(**settings))
    caption = "nESS and evaluations of one Gaussian and of the mixture, each seed"
    figures: Figures = {"mixtures": (caption, _png(styled(plot)(results)))}
    return Shown([summary("targets of mixtures: a limit is not kept", judged)], [grid], figures)


# ---- Several modes --------------------------------------------------------------------------------------------------

EVIDENCE = {name: (0.05, 100_000) if name == "MoG40" else (0.02, 20_000) for name in MODES}  # error, evaluations
MODES_NOTE = (
    "A seed is right if the log evidence, by {num_samples:,} fresh draws, is off by less than the limit and the fit "
    "took no more evaluations in all, its judgement's included, than allowed; nine of ten have to be. The evidence is "
    "known: all are normalised."
)


def judge_modes(name: str, ours: Runs) -> list[Criterion]:
    """The share of seeds on which the evidence is right and the budget kept."""
    errors, evaluations = evidence_errors(name, ours), ours.values("evaluations")
    limit, budget = EVIDENCE[name]
    if not errors.size:
        return [Criterion("right", None, SHARE, at_least=True)]
    right = float(np.mean((errors < limit) & (evaluations <= budget)))
    return [Criterion("right", right, SHARE, at_least=True)]


def evidence_errors(name: str, ours: Runs, figure: str = "log_evidence") -> np.ndarray:
    """|log Z − its estimate|, infinite where there is none."""
    errors = np.abs(ours.values(figure) - (TARGETS[name].log_evidence or 0.0))
    return np.where(np.isnan(errors), np.inf, errors)


def present_modes(results: Results, settings: dict[str, Any]) -> Shown:
    rows, judged = [], {}
    for name in measured(results, "modes", MODES):
        ours = collect(results, "modes", name, MIXTURE)
        judged[name] = judge_modes(name, ours)
        limit, budget = EVIDENCE[name]
        errors, own = evidence_errors(name, ours), evidence_errors(name, ours, "own_log_evidence")
        rows.append(
            (
                *(name, str(TARGETS[name].dim), told(judged[name][0]), f"< {limit:g}"),
                *(_middle_and_most(errors), _middle_and_most(own)),
                *(f"≤ {budget:,}", _middle_and_most(ours.values("evaluations"), count)),
                *(count(ours.median("components")), text(ours.median("ness")), text(ours.median("seconds"))),
            )
        )
    heads = (
        "target",
        "d",
        "share of seeds right",
        "error allowed",
        "error, median and largest",
        "by the fit's own draws",
    )
    heads += ("evaluations allowed", "in all, median and largest", "components", "nESS", "seconds")
    grid = Grid("Several modes", heads, rows, MODES_NOTE.format(**settings))
    return Shown([summary("targets of several modes: right on fewer than nine of ten seeds", judged)], [grid], {})


def _middle_and_most(values: np.ndarray, show: Any = text) -> str:
    return f"{show(float(np.median(values)))}, {show(float(np.max(values)))}" if values.size else "–"


# ---- Published figures ----------------------------------------------------------------------------------------------

BOUNDS = {  # −ELBO and evaluations at most; theirs, of VIPS: −ELBO, evaluations to within 0.1 nats of the best, in all
    "German credit": (585.115, 10_000, "585.10, 10,600–15,200, 1.05–1.37 M"),
    "breast cancer": (78.2, 500_000, "78.15–78.23, 2.0–2.7 M, 3.6–3.9 M"),
    "ten Gaussians, d = 20": (0.008, 60_000, "0.002–0.008, 62,000–86,000, 0.57–0.83 M"),
    "planar robot": (12.0, 3_000_000, "11.87–12.12, 3.0–10.5 M, 4.9–12.3 M"),
}
PUBLISHED_NOTE = (
    "−ELBO of the mixture, by at least {num_samples:,} fresh draws and as many more, up to twenty times, as bring its "
    "standard error to {elbo_error:g}; medians over seeds. VIPS: five seeds, of its authors' files; its mixture in "
    "d = 20 has other components, drawn in the same way. German credit's −log evidence is 585.098 ± 0.002."
)


def judge_published(name: str, ours: Runs) -> list[Criterion]:
    bound, budget, _ = BOUNDS[name]
    elbo = ours.median("elbo")
    return [
        Criterion("−ELBO", None if elbo is None else -elbo, bound),
        Criterion("evaluations", ours.median("evaluations"), budget),
    ]


def present_published(results: Results, settings: dict[str, Any]) -> Shown:
    rows, judged = [], {}
    for name in measured(results, "published", PUBLISHED):
        ours, plain = (collect(results, "published", name, each) for each in (MIXTURE, GAUSSIAN))
        criteria = judged[name] = judge_published(name, ours)
        loss, evaluations = criteria
        worst = float(-np.min(ours.values("elbo"))) if ours.found else None
        single = plain.median("elbo")
        rows.append(
            (
                *(name, str(TARGETS[name].dim), _nats(None if single is None else -single)),
                *(told(loss, _nats(loss.value)), _nats(worst), text(ours.median("elbo_error"), 2)),
                *(told(evaluations, count(evaluations.value)), BOUNDS[name][2], count(ours.median("components"))),
                *(text(ours.median("ness")), text(ours.median("khat"), 2), text(ours.median("seconds"))),
            )
        )
    heads = ("target", "d", "−ELBO of the Gaussian", "of the mixture", "worst seed", "its error", "evaluations")
    heads += ("VIPS: −ELBO, evaluations near it, in all", "components", "nESS", "k̂", "seconds")
    grid = Grid("Published figures", heads, rows, PUBLISHED_NOTE.format(**settings))
    return Shown([summary("published figures: not reached", judged)], [grid], {})


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


# ---- Figure ---------------------------------------------------------------------------------------------------------

COLOURS = {GAUSSIAN: COLOURS[1], MIXTURE: COLOURS[0]}


def plot(results: Results) -> Figure:
    """nESS and evaluations of every fit of `mixtures`, with the limits."""
    names = measured(results, "mixtures", MIXTURES)
    figure = Figure(figsize=(9.5, 1.7 + 0.34 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    heights = {name: len(names) - 1 - i for i, name in enumerate(names)}
    for contestant, offset in ((GAUSSIAN, 0.16), (MIXTURE, -0.16)):
        runs = {name: collect(results, "mixtures", name, contestant) for name in names}
        for ax, figure_name in ((left, "ness"), (right, "evaluations")):
            _dots(ax, runs, heights, offset, figure_name, contestant)
    for name, height in heights.items():
        limits = LIMITS[name]
        for ax, limit in ((left, limits.ness), (right, 2 * limits.beyond)):
            label = "limit of the mixture" if ax is left and height == 0 else None
            ax.plot([limit, limit], [height - 0.42, height + 0.1], color="0.25", linewidth=1.4, label=label)
            ax.axhline(height - 0.5, color="0.9", linewidth=0.6, zorder=0)
    left.set(xlabel="nESS of fresh draws", xlim=(-0.03, 1.03))
    right.set(xscale="log", xlabel="evaluations in all")
    number_plainly(right.xaxis)
    left.set_yticks(list(heights.values()), list(heights))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _dots(
    ax: Axes, runs: dict[str, Runs], heights: dict[str, int], offset: float, figure_name: str, contestant: str
) -> None:
    """A dot a seed, and their median as a larger one."""
    points = [(x, heights[name] + offset) for name, mine in runs.items() for x in _finite(mine.values(figure_name))]
    middles = [(np.median(x), heights[n] + offset) for n, r in runs.items() if (x := _finite(r.values(figure_name)))]
    style = dict(color=COLOURS[contestant], linewidths=0)
    ax.scatter(*_columns(points), s=10, alpha=0.5, **style)
    label = f"{contestant.lower()}, each seed and the median" if figure_name == "ness" else None
    ax.scatter(*_columns(middles), s=42, label=label, zorder=3, **style)


def _finite(values: Iterable[float]) -> list[float]:
    return [float(x) for x in values if math.isfinite(x)]


def _columns(points: Sequence[tuple[float, float]]) -> np.ndarray:
    return np.array(points, float).reshape(-1, 2).T


# ---- Sections -------------------------------------------------------------------------------------------------------


def _make(name: str, folders: Folders) -> bures.Target:
    return TARGETS[name].make(folders)


def _measure(target: bures.Target, parameters: dict[str, Any]) -> dict[str, Any]:
    return measure(parameters["contestant"], target, parameters["seed"], parameters)


def _data(name: str) -> str | None:
    return TARGETS[name].data


def _section(targets: tuple[str, ...], contestants: tuple[str, ...], present: Any, **changes: Any) -> Section:
    settings = {"num_samples": 20_000}  # fresh draws of the judge
    return Section(targets, contestants, _make, _measure, present, settings, {"num_samples": 4_000}, _data, **changes)


SECTIONS = {
    "mixtures": _section(MIXTURES, (GAUSSIAN, MIXTURE), present_mixtures),
    "modes": _section(MODES, (MIXTURE,), present_modes),
    "published": _section(
        PUBLISHED, (GAUSSIAN, MIXTURE), present_published, most_seeds=lambda target, contestant: PUBLISHED_SEEDS
    )._replace(settings={"num_samples": 20_000, "elbo_error": 0.001}, quick={"elbo_error": 0.01}),
}
