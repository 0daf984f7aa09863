"""Figures of a fit, of its importance weights and of reference chains: results in, matplotlib axes out.

Each function draws on the axes it is given, or on those of a new figure that pyplot does not know of (so nothing is
left open): save it with `axes.figure.savefig(path)`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax

try:
    import matplotlib as mpl
except ImportError as error:
    raise ImportError("Figures need matplotlib: pip install 'bures[plot]'.") from error
import numpy as np
from jaxtyping import Array, Key
from matplotlib import rcsetup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from scipy import ndimage

from bures import diagnostics
from bures.check import check_positive_integer, fail
from bures.engine import Evaluator
from bures.family import AbstractApproximation, Gaussian, GaussianMixture
from bures.fitting import Fit
from bures.objective import AbstractObjective
from bures.reference import Chains
from bures.target import Target

# Okabe and Ito's colours, which the colour-blind tell apart. The target and reference draws are always grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_ACCENT = _COLOURS[1]
_DASHES = ("-", "--", "-.", ":")  # so that curves that agree are all seen
_REFERENCE = "0.8"
_STYLE = {
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.prop_cycle": rcsetup.cycler(color=_COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.dpi": 150,
    "figure.titlesize": 10,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
_SHARES = (0.95, 0.8, 0.6, 0.4, 0.2)  # of the probability, inside each contour
_CIRCLE = np.stack([np.cos(angle := np.linspace(0, 2 * np.pi, 200)), np.sin(angle)], axis=1)

Interval = tuple[float, float]


def _styled[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(draw)
    def styled(*arguments: P.args, **options: P.kwargs) -> R:
        with mpl.rc_context(cast(Any, _STYLE)):
            return draw(*arguments, **options)

    return styled


# ---- A fit ----------------------------------------------------------------------------------------------------------


def _last_label(fit: Fit) -> str:
    """What the fitted approximation is: the last one, or the one the fit fell back to."""
    is_last = bool(np.all(np.asarray(fit.approximation.mean) == np.asarray(fit.state.approximation.mean)))
    return f"{fit.num_steps} (final)" if is_last else "the best, returned"


@_styled
def evolution(fit: Fit, ax: Axes | None = None, samples: Any = None) -> Axes:
    """The path of a fit in the plane: ellipses of 1 and 2 standard deviations over the target's density.

    Grey contours hold 20 to 95% of the target's probability; `samples` (n, 2) are drawn as dots.
    """
    if fit.target.dim != 2:
        raise fail("fit", "one of a target in the plane", f"{fit.target.dim} dimensions", "Use bures.plot.pairs.")
    earlier = [(str(step), q) for step, q in fit.path if step != fit.num_steps]
    return path(fit.target, [*earlier, (_last_label(fit), fit.approximation)], ax=ax, samples=samples)


@_styled
def path(
    target: Target,
    gaussians: Sequence[tuple[str, AbstractApproximation]],
    ax: Axes | None = None,
    samples: Any = None,
    box: tuple[Interval, Interval] | None = None,
    legend: bool = True,
) -> Axes:
    """Labelled Gaussians in the plane, the last one marked, over the target's density, within `box` if given."""
    ax = ax or _new_axes(1, (5.6, 4.2))[0]
    earlier, (last_label, last) = gaussians[:-1], gaussians[-1]
    views = box or _plane_views(target, [q for _, q in gaussians])
    _draw_target(ax, target, views)
    if samples is not None:
        ax.plot(*_draws(samples)[:2000].T, ".", color="0.35", markersize=1.5, alpha=0.5)
    ramp = mpl.colormaps["Blues"](np.linspace(0.35, 1, max(len(earlier), 1)))
    for (label, q), colour in zip(earlier, ramp, strict=False):
        _draw_ellipses(ax, q, color=colour, width=1.2, label=label)
    _draw_ellipses(ax, last, color=_ACCENT, width=2.4, label=last_label)
    ax.plot(*last.mean, "+", color=_ACCENT, markersize=9, markeredgewidth=2)
    ax.set(xlim=views[0], ylim=views[1], xlabel=target.names[0], ylabel=target.names[1])
    if math.isclose(np.diff(views[0])[0], np.diff(views[1])[0]):
        ax.set_aspect("equal")
    if legend:
        ax.legend(title="after step", loc="center left", bbox_to_anchor=(1, 0.5), alignment="left")
    return ax


@_styled
def bound_trace(fit: Fit, ax: Axes | None = None) -> Axes:
    """The bound by step: raw, smoothed, and ticks where the geometry's safeguard acted.

    The view follows the bulk of the run, so that a terrible start does not flatten the rest.
    """
    ax = ax or _new_axes(1, (5, 3))[0]
    bound, clipped = np.asarray(fit.trace.bound, np.float64), np.asarray(fit.trace.clipped)
    ax.set(xlabel="step", ylabel=f"{_describe(fit.method.objective)} (nats)")
    steps = np.flatnonzero(np.isfinite(bound))
    if not steps.size:
        ax.set_title("no finite bound to show")
        return ax
    bound, clipped = bound[steps], steps[clipped[steps]]
    ax.plot(steps, bound, color=_COLOURS[0], linewidth=0.5, alpha=0.4)
    window = max(1, bound.size // 50)
    ax.plot(steps, ndimage.uniform_filter1d(bound, window, mode="nearest"), color=_COLOURS[0])
    low, high = _bulk(bound)
    ax.set_ylim(low, high)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    notes = [f"starts at {bound[0]:.4g}".replace("-", "−")] if bound[0] < low else []
    if clipped.size:
        ticks = np.full(clipped.size, 0.02)
        ax.plot(clipped, ticks, "|", color=_ACCENT, markersize=6, transform=ax.get_xaxis_transform())
        notes.append(f"safeguard acted in {100 * clipped.size / bound.size:.1f}% of steps (ticks)")
    ax.set_title("; ".join(notes))
    return ax


@_styled
def weights_tail(
    fit: Fit, key: Key[Array, ""] | None = None, num_samples: int | None = None, ax: Axes | None = None
) -> Axes:
    """How the largest importance weights fall off, with the generalised Pareto distribution fitted to them.

    In these axes a tail of shape k̂ ends as a line of slope −1 / k̂: the flatter, the fewer draws carry the weight. The
    draws are those the fit was judged by; with a `key`, as many new ones or `num_samples`.
    """
    ax = ax or _new_axes(1, (5, 3))[0]
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
        return ax
    centred = log_weights - diagnostics.log_evidence(log_weights)[0]
    shown = np.sort(centred[centred > math.log(1e-3)])[::-1][: num_samples // 2]
    ax.plot(np.exp(shown), (np.arange(shown.size) + 0.5) / num_samples, ".", color=_COLOURS[0], markersize=3)
    fitted = diagnostics.smooth_log_weights(centred, tail._replace(top=float(np.max(centred))))
    tail = np.sort(fitted[fitted != centred])[::-1]
    shares = (np.arange(tail.size) + 0.5) / num_samples
    kept = tail < np.max(centred)  # smoothed weights are cut off at the largest; the distribution is not
    ax.plot(np.exp(tail[kept]), shares[kept], color=_ACCENT, label="fitted generalised Pareto")
    ax.legend(loc="lower left")
    if np.ptp(shown) < math.log(10):  # within a decade every minor tick would have a label: take few, written plainly
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


@_styled
def summary(fit: Fit, key: Key[Array, ""] | None = None) -> Figure:
    """A fit on one page: in the plane its path, elsewhere marginals against importance-resampled draws; the bound by
    step; and the tail of the importance weights. The draws are those the fit was judged by; with a `key`, new ones."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    if fit.target.dim == 2:
        axes = figure.subplot_mosaic("EB\nET", width_ratios=[1.2, 1])
        evolution(fit, axes["E"])
    else:
        count = min(6, fit.target.dim)
        columns = 2 if count == 4 else min(3, count)
        rows = -(-count // columns)
        figure.set_size_inches(10, 3 + 1.8 * rows)
        top, bottom = cast(Any, figure.subfigures(2, 1, height_ratios=[3, 1.8 * rows]))
        axes = top.subplot_mosaic("BT")
        panels = _trim(list(bottom.subplots(rows, columns, squeeze=False).flat), count)
        draws = _resampled(fit, key)
        marginals(fit, draws, reference_name="importance-resampled draws", max_coordinates=count, axes=panels)
    bound_trace(fit, axes["B"])
    weights_tail(fit, key, ax=axes["T"])
    ending = fit.outcome.name.lower().replace("_", " ")
    figure.suptitle(f"{str(fit).splitlines()[0]}: {ending}", x=0.01, horizontalalignment="left")
    return figure


# ---- Approximations against a reference -----------------------------------------------------------------------------


@_styled
def marginals(
    approximations: Fit | AbstractApproximation | Mapping[str, Fit | AbstractApproximation],
    reference: Any = None,
    names: Sequence[str] | None = None,
    reference_name: str = "reference",
    max_coordinates: int = 16,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """The density of each coordinate under one approximation, or several by name, over that of a reference.

    `reference` is an array of draws (n, dim), `Chains`, or a `Gaussian` of any family.
    """
    check_positive_integer("max_coordinates", max_coordinates, "For example 16.")
    curves, draws, names = _compared(approximations, reference, names, max_coordinates)
    count = len(names)
    axes = _check_axes(axes, count) or _new_grid(count, (2.3, 1.7))
    for i, ax in enumerate(axes):
        _draw_marginal(ax, i, curves, draws, reference_name)
        ax.set_xlabel(names[i])
    _share_legend(axes)
    return axes


@_styled
def pairs(
    approximations: Fit | AbstractApproximation | Mapping[str, Fit | AbstractApproximation],
    reference: Any = None,
    names: Sequence[str] | None = None,
    reference_name: str = "reference",
    max_coordinates: int = 10,
    figure: Figure | None = None,
) -> np.ndarray:
    """Every pair of coordinates: ellipses of 1 and 2 standard deviations of each approximation, over the contours of
    a reference's draws; marginals on the diagonal. Returns the square array of axes, `None` above the diagonal."""
    check_positive_integer("max_coordinates", max_coordinates, "For example 10.")
    curves, draws, names = _compared(approximations, reference, names, max_coordinates)
    count = len(names)
    side = max(1.1 * count, 4)
    figure = figure or Figure(figsize=(side, side), layout="constrained")
    grid: Any = figure.subplots(count, count, sharex="col", squeeze=False)
    for i, j in np.ndindex(count, count):
        if j > i:
            grid[i, j].remove()
            grid[i, j] = None
        elif i == j:
            _draw_marginal(grid[i, i], i, curves, draws, reference_name)
        else:
            _draw_pair(grid[i, j], j, i, curves, draws)
    _label_outer(grid, names)
    _share_legend([grid[0, 0]], figure)
    return grid


# ---- Chains ---------------------------------------------------------------------------------------------------------


@_styled
def chain_traces(chains: Chains, max_coordinates: int = 6, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Each coordinate along each chain (a thousand points of it), one colour a chain."""
    count = min(check_positive_integer("max_coordinates", max_coordinates, "For example 6."), chains.dim)
    axes = _check_axes(axes, count) or _new_axes(count, (7, 1.1 * count + 0.5), sharex=True)
    every = -(-chains.num_samples // 1000)
    for i, ax in enumerate(axes):
        for chain in chains.draws:
            ax.plot(np.arange(0, chains.num_samples, every), chain[::every, i], linewidth=0.4, alpha=0.8)
        ax.set_ylabel(chains.names[i])
        ax.margins(x=0.01)
        ax.set_title(f"R̂ = {chains.rhat[i]:.4f}, ESS = {chains.ess[i]:.0f}", fontsize=8, pad=2)
    axes[-1].set_xlabel("draw")
    return axes


@_styled
def autocorrelations(
    chains: Chains, max_lag: int = 100, max_coordinates: int = 16, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Autocorrelation of each coordinate by lag, one curve a chain."""
    count = min(check_positive_integer("max_coordinates", max_coordinates, "For example 16."), chains.dim)
    axes = _check_axes(axes, count) or _new_grid(count, (2.3, 1.7), sharey=True)
    values = np.nan_to_num(chains.autocorrelation(min(max_lag, chains.num_samples - 1)), nan=1)  # NaN: never moved
    for i, ax in enumerate(axes):
        ax.axhline(0, color="0.6", linewidth=0.8)
        ax.plot(values[:, :, i].T, linewidth=1)
        ax.set(ylim=(min(-0.15, float(np.min(values))), 1.02), xlabel="lag")
        ax.set_title(f"{chains.names[i]}, ESS = {chains.ess[i]:.0f}")
    axes[0].set_ylabel("autocorrelation")
    return axes


# ---- Parts of axes --------------------------------------------------------------------------------------------------


def _draw_target(ax: Axes, target: Target, views: Sequence[Interval]) -> None:
    """Filled contours of the target's density over the view."""
    x, y = (np.linspace(*view, 150) for view in views)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    values = np.asarray(Evaluator(target).value(points), np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    if np.any(np.isfinite(values)):
        _fill_contours(ax, x, y, np.exp(values - np.max(values)).reshape(y.size, x.size))


def _fill_contours(ax: Axes, x: np.ndarray, y: np.ndarray, density: np.ndarray) -> None:
    """Regions of highest density that hold given shares of the mass: what a level means does not depend on scale."""
    ordered = np.sort(density, axis=None)[::-1]
    mass = np.cumsum(ordered) / np.sum(ordered)
    levels = np.unique(np.append(ordered[np.searchsorted(mass, _SHARES)], ordered[0]))
    if levels.size > 1:
        shades = [str(shade) for shade in np.linspace(0.93, 0.6, levels.size - 1)]
        ax.contourf(x, y, density, levels=levels, colors=shades)


def _draw_ellipses(
    ax: Axes, q: Any, i: int = 0, j: int = 1, *, width: float, label: str | None = None, **style: Any
) -> None:
    """Where coordinates i and j are 1 and 2 standard deviations from their mean; of a mixture, for each component."""
    pair = q.marginal([i, j])
    parts = pair.components if isinstance(pair, GaussianMixture) else (pair,)
    for part in parts:
        mean, root = np.asarray(part.mean), np.asarray(part.chol)
        for radius in (1, 2):
            points = mean + radius * _CIRCLE @ root.T
            ax.plot(*points.T, label=label if radius == 1 else None, linewidth=width / radius, **style)
        label = None


def _draw_marginal(
    ax: Axes, i: int, curves: Mapping[str, Gaussian], draws: np.ndarray | None, reference_name: str
) -> None:
    low, high = _view(i, list(curves.values()), draws)
    if draws is not None:
        inside = draws[(draws[:, i] >= low) & (draws[:, i] <= high), i]
        ax.hist(inside, bins=40, density=True, color=_REFERENCE, label=reference_name)
    x = np.linspace(low, high, 300)
    for (name, q), style in zip(curves.items(), _line_styles(), strict=False):
        ax.plot(x, np.exp(np.asarray(q.marginal(i).log_prob(x[:, None]))), label=name, **style)
    ax.set(xlim=(low, high), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=4)


def _draw_pair(ax: Axes, i: int, j: int, curves: Mapping[str, Gaussian], draws: np.ndarray | None) -> None:
    views = _view(i, list(curves.values()), draws), _view(j, list(curves.values()), draws)
    if draws is not None:
        counts, x, y = np.histogram2d(draws[:, i], draws[:, j], bins=60, range=views)
        # Smoothed over a quarter of a standard deviation, which widens the contours by 3% and no more.
        widths = [np.std(draws[:, j]) / (y[1] - y[0]), np.std(draws[:, i]) / (x[1] - x[0])]
        density = ndimage.gaussian_filter(counts.T, [width / 4 for width in widths])
        _fill_contours(ax, (x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2, density)
    for q, style in zip(curves.values(), _line_styles(), strict=False):
        _draw_ellipses(ax, q, i, j, width=1.4, **style)
    ax.set(xlim=views[0], ylim=views[1])


def _line_styles() -> Iterator[dict[str, Any]]:
    colours, dashes = itertools.cycle(_COLOURS), itertools.cycle(_DASHES)
    return ({"color": colour, "linestyle": dash} for colour, dash in zip(colours, dashes, strict=True))


def _label_outer(grid: np.ndarray, names: Sequence[str]) -> None:
    for i in range(len(grid)):
        grid[-1, i].set_xlabel(names[i])
        grid[-1, i].locator_params(axis="x", nbins=2)
        grid[-1, i].tick_params(axis="x", rotation=45)
        for j in range(i):
            grid[i, j].locator_params(nbins=2)
            grid[i, j].tick_params(labelleft=j == 0)
        if i > 0:
            grid[i, 0].set_ylabel(names[i])


def _share_legend(axes: Sequence[Axes], figure: Any = None) -> None:
    """One legend for axes that show the same things, above them; none where there is nothing to tell apart."""
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        (figure or axes[0].figure).legend(handles, labels, loc="outside upper right", ncols=len(labels))


# ---- What to show ---------------------------------------------------------------------------------------------------


def _compared(
    approximations: Any, reference: Any, names: Sequence[str] | None, most: int
) -> tuple[dict[str, Gaussian], np.ndarray | None, tuple[str, ...]]:
    """Named Gaussians of the coordinates to show, the draws they are held against, and names of the coordinates."""
    named = approximations if isinstance(approximations, Mapping) else {"approximation": approximations}
    if not named:
        raise fail("approximations", "a fit, a Gaussian or several by name", named, 'For example {"BW": fit}.')
    curves = {name: q.approximation if isinstance(q, Fit) else q for name, q in named.items()}
    dim = next(iter(curves.values())).dim
    shown = np.arange(min(most, dim))
    sizes = [q.dim for q in curves.values()]
    if isinstance(reference, AbstractApproximation):
        sizes.append(reference.dim)
        kept = shown[shown < reference.dim]
        # Drawn like any other reference, so that it looks like them.
        draws = np.asarray(reference.marginal(kept).sample(jax.random.key(0), 100_000))
    else:
        draws = None if reference is None else _draws(reference)
        sizes += [] if draws is None else [draws.shape[1]]
    if any(size != dim for size in sizes):
        raise fail("approximations and reference", "of one dimension", sizes, "Compare posteriors of one target.")
    known = [x.target.names for x in named.values() if isinstance(x, Fit)]
    known += [reference.names] if isinstance(reference, Chains) else []
    names = tuple(names or next(iter(known), [f"z[{i}]" for i in range(dim)]))
    if len(names) != dim:
        raise fail("names", f"{dim} strings", names, "Give one name per coordinate.")
    marginals = {name: q.marginal(shown) for name, q in curves.items()}
    return marginals, None if draws is None else draws[:, shown], names[: shown.size]


def _draws(reference: Any) -> np.ndarray:
    draws = np.asarray(reference.flat if isinstance(reference, Chains) else reference)
    if draws.ndim != 2:
        raise fail("reference", "draws (n, dim), Chains or a Gaussian", draws, "Put one draw in each row.")
    return draws


def _resampled(fit: Fit, key: Key[Array, ""] | None) -> np.ndarray | None:
    try:
        if key is not None:
            return np.asarray(fit.resample(key, 4000))
        pool = fit.draws()
        return pool.z[pool.choose(fit.key, min(4000, pool.log_p.size))]
    except ValueError:  # no draw of positive density: there is nothing to compare with
        return None


def _verdict(khat: float, threshold: float) -> str:
    if khat == -math.inf:
        return "All importance weights are equal: the approximation is exact"
    if not math.isfinite(khat):
        return "Importance weights not finite, or all on a few draws: not to be trusted"
    return f"Pareto k̂ = {khat:.2f} ({'light' if khat < threshold else 'heavy: light would be'} below {threshold:.2f})"


def _describe(objective: AbstractObjective) -> str:
    if objective.K == 1:
        return "ELBO"
    if objective.alpha == 0:
        return f"IW-ELBO, K = {objective.K}"
    return f"VR-IWAE, K = {objective.K}, α = {objective.alpha:g}"


# ---- Where to look --------------------------------------------------------------------------------------------------


def _plane_views(target: Target, path: Sequence[AbstractApproximation]) -> list[Interval]:
    """The view of each coordinate: the target and the last Gaussian, and as much of the path as leaves room for them.

    Square, for one scale on both axes, unless the coordinates are of different orders of magnitude.
    """
    views = []
    for i in range(2):
        core = [_interval(path[-1], i, 3)]
        if target.sample is not None:
            exact = np.asarray(target.sample(jax.random.key(0), 2000))[:, i]
            core = [tuple(np.quantile(exact, [0.002, 0.998])), _interval(path[-1], i, 2.2)]
        elif target.mean is not None and target.covariance is not None:
            core.append(_interval(Gaussian.from_moments(target.mean, target.covariance), i, 3))
        views.append(_widen(_hull(core), [_interval(q, i, 2.2) for q in path], reach=1))
    lengths = [high - low for low, high in views]
    if max(lengths) > 3 * min(lengths):
        return views
    margins = [(max(lengths) - length) / 2 for length in lengths]
    return [(low - margin, high + margin) for (low, high), margin in zip(views, margins, strict=True)]


def _view(i: int, curves: Sequence[Gaussian], draws: np.ndarray | None) -> Interval:
    intervals = [_interval(q, i, 3.5) for q in curves]
    if draws is None:
        return _hull(intervals)
    low, high = np.quantile(draws[:, i], [0.001, 0.999])
    return _widen((low, high), intervals, reach=0.5)


def _interval(q: Any, i: int, radius: float) -> Interval:
    mean, deviation = float(q.mean[i]), float(q.standard_deviations[i])
    return mean - radius * deviation, mean + radius * deviation


def _hull(intervals: Sequence[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _widen(core: Interval, others: Sequence[Interval], reach: float) -> Interval:
    """The interval that holds the core, and the others up to `reach` times its length away."""
    low, high = _hull([core, *others])
    room = reach * (core[1] - core[0])
    return float(max(low, core[0] - room)), float(min(high, core[1] + room))


def _bulk(values: np.ndarray) -> Interval:
    """From the highest value to a few times the bulk's spread below the bulk, or to the lowest if that is nearer."""
    finite = values[np.isfinite(values)]
    quartile, high = np.quantile(finite, 0.25), np.max(finite)
    spread = max(high - quartile, 1e-6 * max(1.0, abs(high)))
    return max(np.min(finite), quartile - 3 * spread) - 0.1 * spread, high + 0.1 * spread


# ---- Axes to draw on ------------------------------------------------------------------------------------------------


def _new_axes(rows: int, size: tuple[float, float], **options: Any) -> list[Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return list(figure.subplots(rows, 1, squeeze=False, **options).flat)


def _new_grid(count: int, size: tuple[float, float], **options: Any) -> list[Axes]:
    """`count` small axes, near a square."""
    columns = min(count, max(3, math.isqrt(count)))
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.3), layout="constrained")
    return _trim(list(figure.subplots(rows, columns, squeeze=False, **options).flat), count)


def _trim(axes: list[Axes], count: int) -> list[Axes]:
    """The first `count` axes, the rest taken off the figure."""
    for ax in axes[count:]:
        ax.remove()
    return axes[:count]


def _check_axes(axes: Sequence[Axes] | None, count: int) -> list[Axes]:
    if axes is not None and len(axes) != count:
        raise fail("axes", f"{count} axes, one per coordinate shown", f"{len(axes)} axes", "Or leave axes out.")
    return list(axes or [])
