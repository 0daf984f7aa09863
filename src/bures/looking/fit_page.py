"""The page of a fit: verdict, what to do next, table, figures, the model, settings and versions, in one file."""

import dataclasses
import importlib.metadata
import io
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bures.check import fail
from bures.diagnostics.diagnostics import Verdict
from bures.files import check_path, write_atomically
from bures.looking.elements import choose, elements_of
from bures.looking.notebook import html_of_pairs
from bures.looking.table import Summary, decimals_of, moments, number_text, sentence, summarise_fit
from bures.outcome import Outcome
from bures.page import document, figure_of, text

if TYPE_CHECKING:
    from bures.fitting import Fit

_ROWS, _MARGINALS, _PAIRS = 60, 12, 6
_DPI = 130
_STYLE = """
main { display: block; }
.next code { background: var(--wash); padding: .1rem .3rem; border-radius: .25rem; overflow-wrap: anywhere; }
table.summary { width: auto; } table.summary td, table.summary th { padding: .22rem .6rem; white-space: nowrap; }
table.summary th { font-size: inherit; font-weight: 500; color: var(--ink); border-bottom-color: var(--line); }
table.summary td, table.summary thead th { text-align: right; }
table.summary thead th { color: var(--soft); border-bottom-color: var(--edge); }
table.summary th:first-child { position: sticky; left: 0; background: var(--paper); padding-right: 1rem; }
table.facts { width: auto; } table.facts th { white-space: normal; } table.facts td { overflow-wrap: anywhere; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .8rem; margin: 1rem 0; }
.panels figure, .two figure { margin: 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.2rem; }
figure .box img { max-width: 100%; width: auto; }
.wide img { max-height: 40rem; }
.key { font-size: .82rem; color: var(--soft); }
.key span { display: inline-block; margin-right: 1rem; }
.key i { display: inline-block; width: 1.3rem; height: .7rem; margin-right: .35rem; vertical-align: -.05rem; }
@media screen and (prefers-color-scheme: dark) { .key i { filter: invert(.91) hue-rotate(180deg); } }
.key i.line { height: 0; border-top: 2px solid; vertical-align: .22rem; }
.box:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 40rem) {
  .wide .box img { max-width: none; width: 32rem; max-height: none; }
  .panels { grid-template-columns: 1fr 1fr; gap: .4rem; }
}
@media print { section { break-before: auto; } .panels { grid-template-columns: repeat(4, 1fr); } }
"""


def write_page(fit: "Fit", path: Any, *, reference: Any = None, title: str | None = None) -> Path:
    """See `Fit.report`."""
    path = check_path("path", path)
    if title is not None and not isinstance(title, str):
        raise fail("title", "text", title, "Leave it out for one made of the fit.")
    write_atomically(path, page_of(fit, reference=reference, title=title).encode())
    return path


def page_of(fit: "Fit", *, reference: Any = None, title: str | None = None) -> str:
    """The page as text."""
    table = summarise_fit(fit)
    name = title or f"A fit of {fit.target.dim} dimensions"
    parts = [_header(fit, name), _table(fit, table)]
    if reference is not None:
        parts.append(_against(fit, table, reference))
    parts += [_figures(fit, table, reference), _run(fit), _model(fit), _settings(fit)]
    return document(f"{name}: {table.verdict}", "<main>\n" + "\n".join(parts) + "\n</main>", _STYLE)


# ---- What it says


def _header(fit: "Fit", name: str) -> str:
    found = fit.diagnostics
    kind = "verdict yes" if found.trustworthy else "verdict"
    items = "".join(f"<li>{each}</li>" for each in next_steps(fit))
    facts = [
        ("effective share of the draws (nESS)", f"{100 * found.ness:.1f}%"),
        ("tail of the weights (Pareto k̂)", f"{found.khat:.2f}"),
        ("log evidence", f"{found.log_evidence:.3f} ± {found.log_evidence_mcse:.3f}"),
        ("evaluations of the density", f"{fit.num_log_density_evaluations:,}"),
        ("time", f"{sum(fit.seconds.values()):.1f} s"),
    ]
    return (
        f'<header><h1>{text(name)}</h1><p class="question">{text(str(fit).splitlines()[0])}</p>'
        f'<p class="{kind}">{text(sentence(found.verdict.value, found.message))}</p></header>\n'
        f'<section id="next"><h2>What to do next</h2><ul class="next">{items}</ul>{html_of_pairs(facts)}</section>'
    )


def next_steps(fit: "Fit") -> list[str]:
    """What to do with a fit, in HTML: by its verdict and by how it ended."""
    from bures.fitting.refining import next_rung

    verdict, steps = fit.diagnostics.verdict, []
    if fit.outcome is not Outcome.CONVERGED:
        steps.append(f"The run: {text(fit.outcome.message)}")
    climb = "Draws that can be trusted, by the first rung that passes: <code>bures.sample(target, key=key)</code>."
    if fit.diagnostics.trustworthy:
        return [
            *steps,
            "Draws, corrected by weights: <code>fit.to_arviz(key)</code>, <code>fit.resample(key, n)</code>.",
            "Predictions: <code>fit.predict(key)</code>, and of new data <code>fit.predict(key, X_new)</code>.",
            "To keep it: <code>fit.save(path)</code>; to check it by NUTS: <code>fit.nuts_start(key)</code>.",
        ]
    if verdict is Verdict.ROUNDED:
        steps.append("Double precision: <code>jax.config.update('jax_enable_x64', True)</code>, then fit again.")
    if verdict is Verdict.UNDECIDED:
        steps.append("More draws may decide it: <code>fit.diagnose(key, 100_000)</code>.")
    if verdict is Verdict.UNJUDGED:
        return [*steps, "Go on with more evaluations: <code>fit.resume(num_steps)</code>."]
    if (rung := next_rung(fit)) is not None:
        steps.append(f"The next rung, {text(rung)}: <code>fit.refine(key)</code>.")
    return [*steps, climb, "Do not use the table below but to see where the fit went."]


def _table(fit: "Fit", table: Summary) -> str:
    found = fit.diagnostics
    return (
        f'<section id="table"><h2>The posterior</h2>{_focusable(table.table_html(_ROWS), "Table of the posterior")}'
        f"<details><summary>All diagnostics</summary>{html_of_pairs(found.rows())}</details></section>"
    )


def _against(fit: "Fit", table: Summary, reference: Any) -> str:
    """The table next to reference draws."""
    from bures.plot.columns import reference_columns

    elements = elements_of(fit)
    draws = reference_columns(reference, fit, elements)
    known = np.flatnonzero(np.all(np.isfinite(draws), axis=0) & (np.std(draws, axis=0) > 0))
    with np.errstate(all="ignore"):
        theirs = moments(draws, None, (0.5,))
        apart = (table.columns["mean"] - theirs["mean"]) / theirs["sd"]
        ratio = table.columns["sd"] / theirs["sd"]
    rows = "".join(
        f'<tr><th scope="row">{text(elements.names[i])}</th>'
        + "".join(f"<td>{text(each).replace('-', '−')}</td>" for each in _compared(table, theirs, apart, ratio, i))
        + "</tr>"
        for i in known[:_ROWS]
    )
    heads = ("", "mean", "reference", "apart (sd)", "sd", "reference", "ratio")
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    worst = np.max(np.abs(apart[known])) if known.size else np.nan
    shown = f'<div class="box"><table class="summary"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    left = f" The first {_ROWS} of {known.size:,} rows." if known.size > _ROWS else ""
    return (
        f'<section id="reference"><h2>Next to the reference</h2><p>Means are at most {worst:.2f} of the reference’s '
        f"standard deviations apart, standard deviations between {np.min(ratio[known]):.2f} and "
        f"{np.max(ratio[known]):.2f} of its own, by {len(draws):,} draws of the reference.{left}</p>"
        f"{_focusable(shown, 'Table next to the reference')}</section>"
    )


def _compared(table: Summary, theirs: Mapping[str, Any], apart: Any, ratio: Any, i: int) -> Iterator[str]:
    decimals = decimals_of(float(theirs["sd"][i]))
    pairs = [(columns["mean"][i], columns["sd"][i]) for columns in (table.columns, theirs)]
    (mean, sd), (mean_there, sd_there) = pairs
    yield from (number_text(mean, decimals), number_text(mean_there, decimals), f"{apart[i]:+.2f}")
    yield from (number_text(sd, decimals), number_text(sd_there, decimals), f"{ratio[i]:.2f}")


# ---- What it shows


def _figures(fit: "Fit", table: Summary, reference: Any) -> str:
    from bures import plot
    from bures.plot.style import detached_axes

    names = [elements_of(fit).names[i] for i in choose(elements_of(fit), _MARGINALS)]
    given = {"reference": reference, "reference_name": "reference"} if reference is not None else {}
    axes = [detached_axes((2.3, 1.55)) for _ in names]
    plot.marginals(fit, variables=names, axes=axes, **given)
    panels = "".join(_figure(ax.figure, "", _density_of(name, table)) for name, ax in zip(names, axes, strict=True))
    count = f" {len(names)} of {len(table):,} rows of the table are shown." if len(names) < len(table) else ""
    bars = "the reference’s draws" if reference is not None else "draws corrected by importance weights"
    key = (
        '<p class="key"><span><i class="line" style="color:#0072B2"></i>the approximation</span>'
        + ('<span><i class="line" style="color:#D55E00"></i>corrected by importance weights</span>' if given else "")
        + f'<span><i style="background:#bbb"></i>{bars}</span></p>'
    )
    return (
        f'<section id="marginals"><h2>Marginals</h2><p>On the scale of the model’s own variables.{count}</p>{key}'
        f'<div class="panels">{panels}</div></section>{_pairs(fit, names[:_PAIRS], given)}'
    )


def _density_of(name: str, table: Summary) -> str:
    row = table[name]
    return f"Density of {name}: mean {row['mean']:.3g}, standard deviation {row['sd']:.3g}."


def _pairs(fit: "Fit", names: list[str], given: dict[str, Any]) -> str:
    from matplotlib.figure import Figure

    from bures import plot

    if len(names) < 2:
        return ""
    side = max(1.15 * len(names), 4)
    figure = Figure(figsize=(side, side), layout="constrained")
    plot.pairs(fit, variables=names, figure=figure, **given)
    shown = _figure(figure, _ABOUT_PAIRS, f"Pairs of {', '.join(names)}.")
    return f'<section id="pairs"><h2>Pairs</h2><div class="wide">{shown}</div></section>'


_ABOUT_PAIRS = (
    "Lines: where the approximation is one and two standard deviations from its mean. Grey: the regions that hold 20 "
    "to 95% of the draws that the bars above show."
)


def _run(fit: "Fit") -> str:
    from bures import plot
    from bures.plot.style import detached_axes

    found, shown, size = fit.diagnostics, [], (4.4, 2.8)
    if found.verdict is not Verdict.UNJUDGED:
        tail = plot.weights_tail(fit, ax=detached_axes(size)).figure
        described = f"The largest importance weights and the Pareto tail fitted to them: k̂ = {found.khat:.2f}."
        shown.append(_figure(tail, "The flatter the largest weights end, the fewer draws count.", described))
    if bounds := np.asarray(fit.trace.bound).tolist():  # one of `fit_many` has none
        trace = plot.bound_trace(fit, ax=detached_axes(size)).figure
        described = f"The bound over {len(bounds)} steps, ending at {bounds[-1]:.4g}."
        shown.append(_figure(trace, "The bound by step. What is within the band is noise.", described))
    if fit.target.dim == 2 and fit.outcome not in (Outcome.TIME_LIMIT, Outcome.EVALUATION_LIMIT):
        path = plot.evolution(fit, ax=detached_axes((5.4, 4))).figure
        described = f"Ellipses of the approximation after steps 0 to {fit.num_steps}, over the density."
        shown.append(_figure(path, "The way of the fit over the density, in its own coordinates.", described))
    return f'<section id="run"><h2>Weights and run</h2><div class="two">{"".join(shown)}</div></section>'


def _figure(figure: Any, caption: str, described: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, transparent=True, metadata={"Software": None})
    return figure_of(caption, buffer.getvalue(), described)


def _focusable(markup: str, label: str) -> str:
    """Boxes that scroll can be reached by the keyboard."""
    return markup.replace(
        '<div class="box"', f'<div class="box" tabindex="0" role="region" aria-label="{text(label)}"', 1
    )


# ---- Where it comes from


def _model(fit: "Fit") -> str:
    labels, elements = fit.target.labels, elements_of(fit)
    latent = elements.variables[: elements.latent] or elements.variables
    pairs = [("dimensions", f"{fit.target.dim:,}"), ("variables", _sizes(latent))]
    if len(latent) < len(elements.variables):
        pairs.append(("computed from them", _sizes(elements.variables[elements.latent :])))
    pairs += [
        (f"labels of {name}", _few(map(str, values))) for name, values in labels.coords.items() if values is not None
    ]
    pairs += [(f"data {name}", f"array of shape {np.shape(value)}") for name, value in labels.observed_data.items()]
    return f'<section id="model"><h2>The model</h2>{html_of_pairs(pairs)}</section>'


def _settings(fit: "Fit") -> str:
    method, spent = fit.method, fit.evaluations
    pairs = [
        ("objective", _plain(method.objective)),
        ("estimator", _plain(method.estimator)),
        ("geometry", _plain(method.geometry)),
        ("family", fit.approximation.label),
        ("outcome", str(fit.outcome)),
        ("steps", f"{fit.num_steps:,}"),
        ("evaluations", ", ".join(f"{name} {count:,}" for name, count in spent._asdict().items())),
        ("seconds", ", ".join(f"{name} {seconds:.2f}" for name, seconds in fit.seconds.items())),
        ("key", " ".join(map(str, np.ravel(jax.random.key_data(fit.key)).tolist()))),
        ("precision", str(np.asarray(fit.approximation.mean).dtype)),
    ]
    return (
        f'<section id="settings"><h2>Settings and versions</h2>{html_of_pairs(pairs)}'
        f"<details><summary>Versions</summary>{html_of_pairs(_versions(fit))}</details></section>"
    )


def _versions(fit: "Fit") -> list[tuple[str, str]]:
    from bures import __version__

    found = [("bures", __version__), ("python", platform.python_version()), ("system", platform.platform())]
    found += [(name, importlib.metadata.version(name)) for name in ("jax", "jaxlib", "numpy", "equinox", "scipy")]
    found += [(name.removesuffix("_version"), str(value)) for name, value in fit.target.labels.attributes.items()]
    return found


def _plain(part: Any) -> str:
    """A part of a method by its name and its plain fields."""
    fields = [(each.name, getattr(part, each.name)) for each in dataclasses.fields(part)]
    kept = [f"{name}={_value(value)}" for name, value in fields if isinstance(value, int | float | str | tuple)]
    return f"{type(part).__name__}({', '.join(kept)})"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _sizes(variables: Iterable[tuple[str, int]]) -> str:
    return _few(f"{name} ({size:,})" if size > 1 else name for name, size in variables)


def _few(texts: Iterable[str], most: int = 30) -> str:
    listed = list(texts)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")
