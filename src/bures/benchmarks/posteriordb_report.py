"""What the benchmark on posteriordb shows: tables (Markdown, CSV), a figure, and one page that holds them."""

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bures.benchmarks.peers import DEFAULT
from bures.experiments import sheet
from bures.experiments.store import Store
from bures.page import document, figure_of, table_of
from bures.plot.style import styled
from bures.reproduce import _png, made_by
from bures.storage import write_atomically

TITLE = "posteriordb: real posteriors with reference draws"
QUESTION = "How good a Gaussian does each method find on each posterior, with nothing tuned, and at what cost?"
SHARE = 0.95  # of the moment-matched Gaussian's nESS
MEAN_LIMIT, DEVIATION_LIMIT = 0.1, 0.1

NOTE = (
    "nESS, k̂, ELBO and log evidence are from fresh draws of each Gaussian. Errors are the largest over the variables, "
    "in units of the reference's standard deviations, from plain draws and after importance resampling. The log "
    "evidence is compared with the highest among the methods, two standard errors allowed for. A posterior is solved "
    f"if, after resampling, every mean is within {MEAN_LIMIT} and every standard deviation within "
    f"{DEVIATION_LIMIT:.0%}. Seconds are those of the first run in a process, compilation included, and of the second. "
    "Laplace's evaluations are not counted. BlackJAX 1.7 adds the inverse Hessian times the gradient of −log p to the "
    "points of its path, where Pathfinder subtracts it; its Gaussians are taken as it gives them. "
    "PyMC's Pathfinder, of pymc-extras, gives 1,000 draws, importance-resampled: the Gaussian has their moments."
)


class Grid(NamedTuple):
    """A table: heads of the columns, and rows of text."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def write(results: dict[str, Any], settings: dict[str, Any], moments: dict[str, Any], folder: Path) -> None:
    """Write tables.md, tables.csv, the figure and posteriordb.html, each in one piece."""
    records = collect(results, moments)
    grids = [summary(records, settings), against_moments(records, settings), *details(records, settings)]
    figure = _png(styled(plot)(records, settings))
    write_atomically(folder / "tables.md", f"{markdown(grids)}\n{made_by(Store.at(folder).sources())}\n".encode())
    write_atomically(folder / "tables.csv", comma_separated(records).encode())
    sheet.write_sheet(folder, {"ness": figure})
    body = [f"<h1>{TITLE}</h1>", f'<p class="question">{QUESTION}</p>', figure_of("nESS by method", figure)]
    body += [table_of(grid.title, grid.heads, grid.rows) for grid in grids]
    page = document(TITLE, "\n".join([*body, f'<p class="note">{NOTE}</p>']))
    write_atomically(folder / "posteriordb.html", page.encode())


def collect(results: dict[str, Any], moments: dict[str, Any]) -> list[dict[str, Any]]:
    """One flat record a cell, with what takes the other cells to know."""
    records = []
    for entry in results.values():
        parameters, result = entry["parameters"], entry["result"]
        errors = result.get("errors", {})
        flat = {name: value for name, value in result.items() if name != "errors"}
        for kind in ("plain", "resampled"):
            for part in ("mean", "deviation"):
                flat[f"{kind}_{part}_error"] = errors.get(kind, {}).get(part)
        named = {name: parameters[name] for name in ("posterior", "method", "seed")}
        records.append({**named, **flat, "moment_ness": moments[parameters["posterior"]]["moment_gaussian_ness"]})
    for record in records:
        rivals = [other for other in _of(records, posterior=record["posterior"]) if other.get("log_evidence_mcse")]
        # A Gaussian that misses a part of the target may seem precise, but its estimate is too low: the highest counts.
        best = max(rivals, key=lambda other: other["log_evidence"] - 2 * other["log_evidence_mcse"], default=None)
        known = best is not None and record.get("log_evidence") is not None
        record["log_evidence_error"] = abs(record["log_evidence"] - best["log_evidence"]) if known else None
        record["solved"] = _below(record, "resampled_mean_error", MEAN_LIMIT) and _below(
            record, "resampled_deviation_error", DEVIATION_LIMIT
        )
    return records


def _below(record: dict[str, Any], name: str, limit: float) -> bool:
    return record.get(name) is not None and record[name] < limit


def _of(records: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [record for record in records if all(record[name] == value for name, value in wanted.items())]


def _median(records: list[dict[str, Any]], name: str, missing: float) -> float:
    """The median over cells; a method that gave nothing counts as `missing`, not as absent."""
    values = [record.get(name) for record in records]
    return float(np.median([missing if value is None else value for value in values]))


def _text(value: Any, digits: int = 3) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else f"{value:.{digits}g}"


# ---- Tables ---------------------------------------------------------------------------------------------------------


def summary(records: list[dict[str, Any]], settings: dict[str, Any]) -> Grid:
    """Each method over all posteriors."""
    rows = []
    for method in settings["methods"]:
        mine = _of(records, method=method)
        warm = [record["warm_seconds"] for record in mine if "warm_seconds" in record]
        rows.append(
            (
                method,
                _text(_median(mine, "ness", 0.0)),
                f"{sum(record['solved'] for record in mine)} of {len(mine)}",
                f"{sum(_below(record, 'khat', 0.7) for record in mine if 'khat' in record)} of {len(mine)}",
                _text(_median(mine, "resampled_mean_error", np.inf)),
                _text(_median(mine, "resampled_deviation_error", np.inf)),
                _text(float(np.median(warm)) if warm else None),
                _text(float(np.max(warm)) if warm else None),
                str(sum(record["outcome"] in ("FAILED", "NON_FINITE", "DIVERGED") for record in mine)),
            )
        )
    heads = ("method", "median nESS", "solved", "k̂ < 0.7", "mean error", "sd error", "warm s", "slowest", "failed")
    return Grid("The methods, over all posteriors", heads, rows)


def against_moments(records: list[dict[str, Any]], settings: dict[str, Any]) -> Grid:
    """The default fit next to the Gaussian with the reference's own moments."""
    rows, reached = [], 0
    for name in settings["only"]:
        for record in _of(records, posterior=name, method=DEFAULT):
            ratio = (record.get("ness") or 0.0) / record["moment_ness"]
            reached += ratio >= SHARE
            cells = (record.get("ness"), record["moment_ness"], ratio, record.get("khat"))
            rows.append((name, *map(_text, cells), _outcome(record), _text(ratio >= SHARE)))
    title = f"The default fit against the moment-matched Gaussian: {reached} of {len(rows)} reach {SHARE:.0%} of it"
    heads = ("posterior", "nESS", "moment-matched", "ratio", "k̂", "outcome", "reached")
    return Grid(title, heads, rows)


def _outcome(record: dict[str, Any]) -> str:
    """How the method says it ended; that a fit has converged is never said without what its weights say."""
    doubtful = record["outcome"] == "CONVERGED" and not _below(record, "khat", 0.7)
    return f"{record['outcome']}, but k̂ ≥ 0.7" if doubtful else record["outcome"]


COLUMNS = {
    "nESS": "ness",
    "k̂": "khat",
    "ELBO": "elbo",
    "log Z error": "log_evidence_error",
    "mean error": "plain_mean_error",
    "resampled": "resampled_mean_error",
    "sd error": "plain_deviation_error",
    "sd, resampled": "resampled_deviation_error",
    "gradients": "num_gradients",
    "Hessians": "num_hessians",
    "cold s": "cold_seconds",
    "warm s": "warm_seconds",
}


def details(records: list[dict[str, Any]], settings: dict[str, Any]) -> list[Grid]:
    """All figures, posterior by posterior."""
    grids = []
    for name in settings["only"]:
        rows = [
            (record["method"], *(_text(record.get(column), 4) for column in COLUMNS.values()), _outcome(record))
            for record in _of(records, posterior=name)
        ]
        grids.append(Grid(name, ("method", *COLUMNS, "outcome"), rows))
    return grids


def markdown(grids: list[Grid]) -> str:
    lines = [f"# {TITLE}", "", QUESTION, "", *sheet.link(["nESS by method"])]
    for grid in grids:
        lines += [f"## {grid.title}", "", f"| {' | '.join(grid.heads)} |", f"|{'---|' * len(grid.heads)}"]
        lines += [f"| {' | '.join(row)} |" for row in grid.rows] + [""]
    return "\n".join([*lines, NOTE, ""])


def comma_separated(records: list[dict[str, Any]]) -> str:
    """One line a cell, every number in full."""
    buffer = io.StringIO()
    heads = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(buffer, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


# ---- Figure ---------------------------------------------------------------------------------------------------------


def plot(records: list[dict[str, Any]], settings: dict[str, Any]) -> Figure:
    """nESS of every method on every posterior; crosses on the left are methods that gave nothing usable."""
    floor = 1e-4
    posteriors = settings["only"]
    figure = Figure(figsize=(9, 1.6 + 0.33 * len(posteriors)), layout="constrained")
    ax = figure.subplots()
    places = {name: len(posteriors) - 1 - i for i, name in enumerate(posteriors)}
    for i, method in enumerate(settings["methods"]):
        mine = _of(records, method=method)
        ness = np.array([max(record.get("ness") or 0.0, floor) for record in mine])
        height = np.array([places[record["posterior"]] for record in mine]) + 0.3 - 0.07 * i
        first = method == DEFAULT
        style = dict(s=55, zorder=3, marker="D") if first else dict(s=22, marker="osv^<>ph"[i % 8], alpha=0.9)
        colour = f"C{i % 7}"
        ax.scatter(ness, height, color=colour, label=method, **style)
        lost = ness <= floor
        ax.scatter(ness[lost], height[lost], color=colour, marker="x", s=22)
    for name, height in places.items():
        for record in _of(records, posterior=name)[:1]:
            ax.plot([record["moment_ness"]] * 2, [height - 0.4, height + 0.4], color="0.4", linewidth=1)
        ax.axhline(height - 0.5, color="0.9", linewidth=0.6, zorder=0)
    ax.set(xscale="log", xlim=(floor / 1.3, 1.3), xlabel="nESS (grey bar: the moment-matched Gaussian's)")
    ax.set_yticks(list(places.values()), list(places))
    figure.legend(loc="outside lower center", ncols=5)
    return figure
