"""Figures of a fit: its path, its bound by step, its weights, and all of it on one page."""

import math
from collections.abc import Sequence
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from jaxtyping import Array, Key
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from scipy import ndimage

from bures import diagnostics
from bures.check import fail
from bures.family import AbstractApproximation
from bures.fitting import Fit
from bures.fitting.resampling import resampled
from bures.looking.elements import choose, elements_of
from bures.objective import AbstractObjective
from bures.plot.columns import draws_of
from bures.plot.comparison import marginals
from bures.plot.contours import draw_ellipses, draw_target
from bures.plot.style import ACCENT, COLOURS, new_axes, new_figure, styled, trim
from bures.plot.views import Interval, bulk, plane_views
from bures.target import Target

_LEAST_TUPLES = 20  # whose spread says anything


def _last_label(fit: Fit) -> str:
    """What the fitted approximation is: the last one, or the one the fit fell back to."""
    is_last = bool(np.all(np.asarray(fit.approximation.mean) == np.asarray(fit.state.approximation.mean)))
    return f"{fit.num_steps} (final)" if is_last else "the best, returned"


def _check_fit(fit: Any) -> None:
    if not isinstance(fit, Fit):
        raise fail("fit", "a bures.Fit", fit, "Pass what bures.fit returned.")


@styled
def evolution(fit: Fit, ax: Axes | None = None, samples: Any = None) -> Axes:
    """The path of a fit in the plane: ellipses of 1 and 2 standard deviations over the target's density.

    Grey contours hold 20 to 95% of the target's probability; `samples` (n, 2) are drawn as dots.
    """
    _check_fit(fit)
    if fit.target.dim != 2:
        raise fail("fit", "one of a target in the plane", f"{fit.target.dim} dimensions", "Use bures.plot.pairs.")
    earlier = [(str(step), q) for step, q in fit.path if step != fit.num_steps]
    return path(fit.target, [*earlier, (_last_label(fit), fit.approximation)], ax=ax, samples=samples)


@styled
def path(
    target: Target,
    gaussians: Sequence[tuple[str, AbstractApproximation]],
    ax: Axes | None = None,
    samples: Any = None,
    box: tuple[Interval, Interval] | None = None,
    legend: bool = True,
) -> Axes:
    """Labelled Gaussians in the plane, the last one marked, over the target's density, within `box` if given."""
    ax = ax or new_axes(1, (5.6, 4.2))[0]
    earlier, (last_label, last) = gaussians[:-1], gaussians[-1]
    views = box or plane_views(target, [q for _, q in gaussians])
    draw_target(ax, target, views)
    if samples is not None:
        ax.plot(*draws_of(samples)[:2000].T, ".", color="0.35", markersize=1.5, alpha=0.5)
    ramp = mpl.colormaps["Blues"](np.linspace(0.35, 1, max(len(earlier), 1)))
    for (label, q), colour in zip(earlier, ramp, strict=False):
        draw_ellipses(ax, q, color=colour, width=1.2, label=label)
    draw_ellipses(ax, last, color=ACCENT, width=2.4, label=last_label)
    ax.plot(*last.mean, "+", color=ACCENT, markersize=9, markeredgewidth=2)
    ax.set(xlim=views[0], ylim=views[1], xlabel=target.names[0], ylabel=target.names[1])
    if math.isclose(np.diff(views[0])[0], np.diff(views[1])[0]):
        ax.set_aspect("equal")
    if legend:
        ax.legend(title="after step", loc="center left", bbox_to_anchor=(1, 0.5), alignment="left")
    return ax


@styled
def bound_trace(fit: Fit, ax: Axes | None = None) -> Axes:
    """The bound by step, smoothed where there are many, ticks where the geometry's safeguard acted; and a band.

    The line of the band is the bound at the end, by the draws that the fit was judged by. The band around it, twice the
    standard error of a step's estimate, is where such estimates of that bound lie: what is within it is noise.

    The view follows the bulk of the run, so that a terrible start does not flatten the rest.
    """
    _check_fit(fit)
    ax = ax or new_axes(1, (5, 3))[0]
    bound, clipped = np.asarray(fit.trace.bound, np.float64), np.asarray(fit.trace.clipped)
    ax.set(xlabel="step", ylabel=f"{describe_objective(fit.method.objective)} (nats)")
    steps = np.flatnonzero(np.isfinite(bound))
    if not steps.size:
        ax.set_title("no finite bound to show")
        return ax
    bound, clipped = bound[steps], steps[clipped[steps]]
    many = bound.size >= 50
    line: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.4} if many else {"marker": "o", "markersize": 3.5}
    ax.plot(steps, bound, color=COLOURS[0], **line)
    if many:
        window = max(1, bound.size // 50)
        ax.plot(steps, ndimage.uniform_filter1d(bound, window, mode="nearest"), color=COLOURS[0])
    low, high = bulk(bound)
    if (band := noise_band(fit)) is not None:
        level, widths = band[0], band[1][steps]
        ax.axhline(level, color="0.4", linewidth=0.8, linestyle="--", zorder=0)
        edge = np.concatenate([steps - 0.5, steps[-1:] + 0.5])
        around = np.append(widths, widths[-1:])
        label = "bound at the end ± noise of a step"
        ax.fill_between(edge, level - around, level + around, step="post", color="0.88", zorder=0, label=label)
        low, high = min(low, level - 1.3 * widths[-1]), max(high, level + 1.3 * widths[-1])
        ax.legend(loc="lower right")
    ax.set_ylim(low, high)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    notes = [f"starts at {bound[0]:.4g}".replace("-", "−")] if bound[0] < low else []
    if clipped.size:
        ticks = np.full(clipped.size, 0.02)
        ax.plot(clipped, ticks, "|", color=ACCENT, markersize=6, transform=ax.get_xaxis_transform())
        notes.append(f"safeguard acted in {100 * clipped.size / bound.size:.1f}% of steps (ticks)")
    ax.set_title("; ".join(notes))
    return ax


def noise_band(fit: Fit) -> tuple[float, np.ndarray] | None:
    """The bound at the end, from the judgement's draws, and for each step twice the standard error of its estimate.

    The estimate of a step is a mean over its tuples; their spread at the end is that over tuples of the judgement's
    draws, taken to be independent. None of a mixture's rounds, which have no steps, and where draws are too few.
    """
    objective, values = fit.method.objective, fit.draws().log_weights
    tuples = values.size // objective.K
    if fit.record.mixed_rounds or tuples < _LEAST_TUPLES:
        return None
    bounds = np.asarray(objective.bound(values[: tuples * objective.K].reshape(tuples, objective.K)), np.float64)
    if not np.all(np.isfinite(bounds)):
        return None
    methods = fit.methods
    # One that was not finite ends the trace and is no step.
    sizes = np.array([methods.at(step).estimator.M for step in range(fit.trace.bound.size)] or [1])
    return float(np.mean(bounds)), 2 * np.std(bounds) / np.sqrt(np.maximum(sizes, 1))


@styled
def weights_tail(
    fit: Fit, key: Key[Array, ""] | None = None, num_samples: int | None = None, ax: Axes | None = None
) -> Axes:
    """How the largest importance weights fall off, with the generalised Pareto distribution fitted to them.

    In these axes a tail of shape k̂ ends as a line of slope −1 / k̂: the flatter, the fewer draws carry the weight. The
    draws are those the fit was judged by; with a `key`, as many new ones or `num_samples`.
    """
    _check_fit(fit)
    ax = ax or new_axes(1, (5, 3))[0]
    pool = fit.draws()
    if key is not None:
        pool = diagnostics.WeightedDraws.draw(key, fit.approximation, fit.target, num_samples or pool.log_p.size)
    log_weights, num_samples = pool.log_weights, pool.log_p.size
    tail = pool.tail()
    khat = tail.k
    ax.set_title(_verdict(khat, diagnostics.khat_threshold(num_samples)))
    ax.set(xlabel="importance weight / mean weight", ylabel="share of draws above it")
    ax.set(xscale="log", yscale="log")
    if not math.isfinite(khat):
        ax.set_axis_off()  # the title says all
        return ax
    centred = log_weights - diagnostics.log_evidence(log_weights)[0]
    shown = np.sort(centred[centred > math.log(1e-3)])[::-1][: num_samples // 2]
    ax.plot(np.exp(shown), (np.arange(shown.size) + 0.5) / num_samples, ".", color=COLOURS[0], markersize=3)
    fitted = diagnostics.smooth_log_weights(centred, tail._replace(top=float(np.max(centred))))
    tail = np.sort(fitted[fitted != centred])[::-1]
    shares = (np.arange(tail.size) + 0.5) / num_samples
    kept = tail < np.max(centred)  # smoothed weights are cut off at the largest; the distribution is not
    ax.plot(np.exp(tail[kept]), shares[kept], color=ACCENT, label="fitted generalised Pareto")
    ax.legend(loc="lower left")
    if np.ptp(shown) < math.log(10):  # within a decade every minor tick would have a label: take few, written plainly
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


@styled
def summary(fit: Fit, key: Key[Array, ""] | None = None) -> Figure:
    """A fit in one figure: in the plane its path, elsewhere marginals of the model's variables against draws corrected
    by importance weights; the bound by step; and the tail of the weights.

    The draws are those the fit was judged by; with a `key`, new ones.
    """
    _check_fit(fit)
    figure = new_figure((10, 4.6))
    if fit.target.dim == 2:
        axes = figure.subplot_mosaic("EB\nET", width_ratios=[1.2, 1])
        evolution(fit, axes["E"])
    else:
        count = len(choose(elements_of(fit), 6))
        columns = 2 if count == 4 else min(3, count)
        rows = -(-count // columns)
        figure.set_size_inches(10, 3 + 1.8 * rows)
        top, bottom = cast(Any, figure.subfigures(2, 1, height_ratios=[3, 1.8 * rows]))
        axes = top.subplot_mosaic("BT")
        panels = trim(list(bottom.subplots(rows, columns, squeeze=False).flat), count)
        drawn = None if key is None else resampled(fit, key, 4000) if _has_weights(fit) else False
        marginals(fit, drawn, reference_name="corrected by weights", max_coordinates=count, axes=panels)
    bound_trace(fit, axes["B"])
    weights_tail(fit, key, ax=axes["T"])
    ending = fit.outcome.name.lower().replace("_", " ")
    figure.suptitle(f"{str(fit).splitlines()[0]}: {ending}", x=0.01, horizontalalignment="left")
    return figure


def _has_weights(fit: Fit) -> bool:
    return elements_of(fit).weights is not None


def _verdict(khat: float, threshold: float) -> str:
    if khat == -math.inf:
        return "All importance weights are equal: the approximation is exact"
    if not math.isfinite(khat):
        return "Importance weights not finite, or all on a few draws: not to be trusted"
    return f"Pareto k̂ = {khat:.2f} ({'light' if khat < threshold else 'heavy: light would be'} below {threshold:.2f})"


def describe_objective(objective: AbstractObjective) -> str:
    if objective.K == 1:
        return "ELBO"
    if objective.alpha == 0:
        return f"IW-ELBO, K = {objective.K}"
    return f"VR-IWAE, K = {objective.K}, α = {objective.alpha:g}"
