"""What the newer benchmarks share on paper: tables of text, criteria with yes or no, and the files that hold them."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bures.experiments import sheet
from bures.experiments.store import Store
from bures.page import document, figure_of, table_of
from bures.reproduce import made_by
from bures.storage import write_atomically


class Grid(NamedTuple):
    """A table: heads of the columns, rows of text, and what has to be known to read it."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


class Criterion(NamedTuple):
    """A figure and the limit it has to keep; `value` is None where nothing was measured."""

    label: str
    value: float | None
    limit: float
    note: str = ""
    at_least: bool = False  # a limit from below

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return bool(self.value >= self.limit) if self.at_least else bool(self.value <= self.limit)

    @property
    def bound(self) -> str:
        """The limit as it stands in a table."""
        return f"{'≥' if self.at_least else '≤'} {count(self.limit)}"

    def row(self) -> tuple[str, ...]:
        return self.label, self.bound, text(self.value), text(self.holds), self.note

    def line(self) -> str:
        return f"{self.label}: {text(self.value)} ({self.bound}) {text(self.holds)}"


def criteria_grid(criteria: Sequence[Criterion], note: str = "") -> Grid:
    judged = [each.holds for each in criteria if each.holds is not None]
    title = f"Criteria: {sum(judged)} of {len(judged)} hold"
    return Grid(title, ("", "criterion", "measured", "holds?", ""), [each.row() for each in criteria], note)


def count(value: float | None) -> str:
    """A number of evaluations or of draws, or a limit: whole ones in full."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def text(value: Any, digits: int = 3) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def median(values: Iterable[float | None]) -> float | None:
    """The median of what there is; None of nothing."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def number(value: Any) -> float | None:
    """A float that JSON can hold: it has no infinities."""
    return float(value) if value is not None and np.isfinite(value) else None


def markdown(title: str, question: str, grids: Sequence[Grid], figures: dict[str, str]) -> str:
    """`figures`: captions by name."""
    lines = [f"# {title}", "", question, ""]
    lines += sheet.link(list(figures.values()))
    for grid in grids:
        lines += [f"## {grid.title}", "", f"| {' | '.join(grid.heads)} |", f"|{'---|' * len(grid.heads)}"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in grid.rows]
        lines += ["", *([grid.note, ""] if grid.note else [])]
    return "\n".join(lines)


def comma_separated(records: Sequence[dict[str, Any]]) -> str:
    """One line a record, every number in full."""
    buffer = io.StringIO()
    heads = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(buffer, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def write(
    folder: Path,
    name: str,
    title: str,
    question: str,
    grids: Sequence[Grid],
    records: Sequence[dict[str, Any]],
    figures: dict[str, tuple[str, bytes]],
) -> None:
    """Write tables.md, tables.csv, the figures (caption and PNG by name) and NAME.html, each in one piece."""
    captions = {each: caption for each, (caption, _) in figures.items()}
    written = "\n".join([markdown(title, question, grids, captions), made_by(Store.at(folder).sources()), ""])
    write_atomically(folder / "tables.md", written.encode())
    write_atomically(folder / "tables.csv", comma_separated(records).encode())
    sheet.write_sheet(folder, {each: content for each, (_, content) in figures.items()})
    body = [f"<h1>{title}</h1>", f'<p class="question">{question}</p>']
    body += [figure_of(caption, content) for caption, content in figures.values()]
    for grid in grids:
        body.append(table_of(grid.title, grid.heads, grid.rows))
        body += [f'<p class="note">{grid.note}</p>'] if grid.note else []
    write_atomically(folder / f"{name}.html", document(title, "\n".join(body)).encode())
