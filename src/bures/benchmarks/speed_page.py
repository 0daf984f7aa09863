"""The files of the benchmark of speed: tables (Markdown, CSV), two figures, and one page that holds them."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bures.benchmarks.speed_report import LADDERS, SECTIONS, Check, ladder
from bures.experiments import sheet
from bures.experiments.protocol import Results, Row, Table
from bures.experiments.store import Store
from bures.page import document, figure_of, table_of
from bures.plot.style import styled
from bures.reproduce import MARKS, _png, comma_separated, made_by
from bures.storage import write_atomically

TITLE = "Speed: what the default fit promises, measured"
QUESTION = "With nothing set, how soon is the answer there, how good is it, and how does the cost grow?"
HEADS = ("", "criterion", "measured", "holds?", "")
CAPTIONS = {
    "criteria": "How many times better than its criterion each figure is: to the left of the line it fails",
    "growth": "Seconds a step and memory added, by size",
}


def write(results: Results, settings: dict[str, Any], folder: Path) -> None:
    """Write tables.md, tables.csv, the figures and speed.html, each in one piece."""
    sections = {name: make(results, settings) for name, make in SECTIONS.items() if name in settings["only"]}
    tables = [section.table() for section in sections.values()]
    checks = {name: [e for e in section.entries if isinstance(e, Check)] for name, section in sections.items()}
    figures = {"criteria": _png(styled(plot_checks)(checks))}
    if "growth" in sections:
        figures["growth"] = _png(styled(plot_growth)(results))
    written = f"{markdown(tables, list(figures))}\n{made_by(Store.at(folder).sources())}\n"
    write_atomically(folder / "tables.md", written.encode())
    write_atomically(folder / "tables.csv", comma_separated(tables, "criterion", "holds").encode())
    sheet.write_sheet(folder, figures)
    body = [f"<h1>{TITLE}</h1>", f'<p class="question">{QUESTION}</p>', f"<p>{verdict(tables)}</p>"]
    body += [figure_of(CAPTIONS[name], content) for name, content in figures.items()]
    for table in tables:
        body += [table_of(table.title, HEADS, map(_cells, table.rows)), f'<p class="note">{table.note}</p>']
    write_atomically(folder / "speed.html", document(TITLE, "\n".join(body)).encode())


def _cells(row: Row) -> tuple[str, ...]:
    return row.label, row.paper, row.measured, MARKS[row.agrees], row.note


def verdict(tables: list[Table]) -> str:
    judged = [row.agrees for table in tables for row in table.rows if row.agrees is not None]
    return f"{sum(judged)} of {len(judged)} criteria hold."


def markdown(tables: list[Table], figures: list[str]) -> str:
    lines = [f"# {TITLE}", "", QUESTION, "", verdict(tables), ""]
    lines += sheet.link([CAPTIONS[name] for name in figures])
    for table in tables:
        lines += [f"## {table.title}", "", f"| {' | '.join(HEADS)} |", "|---|---|---|:-:|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |" for row in table.rows]
        lines += ["", table.note, ""]
    return "\n".join(lines)


def plot_checks(checks: dict[str, list[Check]]) -> Figure:
    """Every figure that has a limit, by how many times it is better than that."""
    labels = [f"{section}: {check.label}" for section, listed in checks.items() for check in listed]
    margins = np.clip([check.margin for listed in checks.values() for check in listed], 1e-3, 1e3)
    figure = Figure(figsize=(9, 1.2 + 0.27 * len(labels)), layout="constrained")
    ax = figure.subplots()
    heights = np.arange(len(labels))[::-1]
    ax.hlines(heights, 1, margins, color="0.8", linewidth=1)
    for holds, colour in ((True, "#009E73"), (False, "#D55E00")):
        chosen = (margins >= 1) == holds
        ax.scatter(margins[chosen], heights[chosen], color=colour, s=30, zorder=3)
    ax.axvline(1, color="0.3", linewidth=1)
    ax.set(xscale="log", xlabel="times better than the criterion")
    ax.set_xlim(min(0.5, margins.min() / 1.3), max(2.0, margins.max() * 1.3))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.set_yticks(heights, labels)
    return figure


def plot_growth(results: Results) -> Figure:
    """Seconds a step and the memory it adds, against each kind of size."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    for column, (seconds, memory) in enumerate(figure.subplots(2, len(LADDERS), sharex="col", sharey="row").T):
        name, (words, slope) = list(LADDERS.items())[column]
        sizes = np.array([size for size, _ in ladder(results, name)], float)
        cost = np.array([found["seconds"] for _, found in ladder(results, name)])
        seconds.loglog(sizes, cost, "o-")
        seconds.loglog(sizes, cost[-1] * (sizes / sizes[-1]) ** round(slope), ":", color="0.5")
        memory.loglog(sizes, [max(found["bytes"], 2**20) / 2**20 for _, found in ladder(results, name)], "o-")
        if name == "N":
            product = np.array([found["points"] * size * 8 / 2**20 for size, found in ladder(results, name)])
            memory.loglog(sizes, product, ":", color="0.5", label="M·K·N·8 bytes")
            memory.legend()
        memory.set(xlabel=words)
        if column == 0:
            seconds.set(ylabel="seconds a step")
            memory.set(ylabel="MiB added")
    return figure
