"""Running the experiments of the paper: find them, run what is not kept yet, write tables and figures next to it.

The experiments are in `bures.experiments`, whose `protocol` says what each of them offers and how results are kept, the
benchmarks in `bures.benchmarks`. A module is loaded when it is asked for.
"""

import csv
import importlib
import importlib.util
import io
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bures.check import check_positive_integer
from bures.experiments import protocol, sheet
from bures.experiments.provenance import code
from bures.experiments.store import UNKNOWN, Store
from bures.extras import missing
from bures.plot.style import styled
from bures.storage import write_atomically

EXPERIMENTS = ("eggbox", "snr", "convergence", "census", "census-full", "banana", "factorial", "families", "mixtures")
BENCHMARKS = ("posteriordb", "speed", "cold", "honesty", "families", "ladder", "scale", "models")
MODES = ("full", "quick")
MARKS = {True: "✓", False: "✗", None: "–"}


# ---- Finding experiments --------------------------------------------------------------------------------------------


def load_experiment(name: str) -> Any:
    """The module of an experiment."""
    return importlib.import_module(f"bures.experiments.{name.replace('-', '_')}")


def load_benchmark(name: str) -> Any:
    """The module of a benchmark, if the libraries that it compares with, its `NEEDS`, are installed."""
    present = [each for each in BENCHMARKS if importlib.util.find_spec(f"bures.benchmarks.{each}")]
    if name not in present:
        raise ValueError(f"benchmark must be one of {', '.join(present)}, but got {name!r}.")
    module = importlib.import_module(f"bures.benchmarks.{name}")
    if absent := missing(*getattr(module, "NEEDS", ())):
        raise ImportError(f"bench {name} compares with {', '.join(absent)}: pip install 'bures[bench]'.")
    return module


def _store(name: str, module: Any, mode: str, out: Path) -> Store:
    """Where its cells are kept: in a folder of its name, or of another if a benchmark has that."""
    return Store(out, getattr(module, "FOLDER", name), mode)


def choose(name: str) -> tuple[str, ...]:
    """The experiments that a name stands for, in order."""
    if name == "all":
        return EXPERIMENTS
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)} or all, but got {name!r}.")
    return (name,)


# ---- Running them ---------------------------------------------------------------------------------------------------


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    out: Path = Path("results"),
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Run an experiment, or `all`; what is kept in `out` already is not run again."""
    if seeds is not None:
        check_positive_integer("seeds", seeds, "It is the number of repetitions of each cell.")
    for each in choose(name):
        module = load_experiment(each)
        mode = "quick" if quick else "full"
        began = time.perf_counter()
        shown = run_experiment(each, module, module.settings(quick, seeds), mode, out)
        verdicts = [row.agrees for table in shown.tables for row in table.rows]
        say(
            f"{each}: {shown.done} cells, {verdicts.count(True)} of {len(verdicts) - verdicts.count(None)} comparisons "
            f"agree with the paper; {time.perf_counter() - began:.0f} s; see {shown.folder / 'tables.md'}"
            f"{f'; {shown.of_other_code}' if shown.of_other_code else ''}"
        )


class Shown(NamedTuple):
    """An experiment as it can be shown now, from the cells kept."""

    name: str
    module: Any
    mode: str
    settings: dict[str, Any]
    folder: Path
    done: int
    total: int
    tables: list[Any]
    figures: dict[str, bytes]  # PNG by name
    reading: str
    seconds: float
    provenances: list[dict[str, Any]]  # one of each kind, times left out
    sources: Counter[tuple[str, str]]  # cells by the code and the commit that made them
    of_other_code: str  # which cells other code than this made, in words


def run_experiment(name: str, module: Any, settings: dict[str, Any], mode: str, out: Path) -> Shown:
    """Run what is not kept yet, then write tables and figures."""
    store = _store(name, module, mode, out)
    settings = json.loads(json.dumps(settings))  # as they are when read back
    with store.alone(), _progress_bar(name) as report:
        store.keep_settings(settings)
        protocol.run_cells(module, store, settings, report)
        shown = read_experiment(name, module, mode, out)
        assert shown is not None
        write_tables(shown)
    return shown


def read_experiment(name: str, module: Any, mode: str, out: Path) -> Shown | None:
    """What can be shown from the cells kept in `out`, with nothing run; None if there is nothing."""
    store = _store(name, module, mode, out)
    settings = store.settings
    if settings is None:
        return None
    try:
        cells = json.loads(json.dumps(module.cells(settings)))
    except (ValueError, KeyError, TypeError):  # those of another version of the experiment
        return None
    results = protocol.read_cells(module, store, settings)
    found = (store.entry(cell, kept["parameters"]) for cell, kept in results.items())
    entries = [entry for entry in found if entry is not None]
    provenances = {}
    for entry in entries:
        kind = {part: value for part, value in entry["provenance"].items() if part != "time"}
        provenances.setdefault(json.dumps(kind, sort_keys=True), kind)
    complete = len(results) == len(cells)
    tables, figures, reading = _present(module, results, settings) if complete else _attempt(module, results, settings)
    return Shown(
        name,
        module,
        mode,
        settings,
        store.folder,
        len(results),
        len(cells),
        tables,
        figures,
        reading,
        sum(entry["seconds"] for entry in entries),
        list(provenances.values()),
        store.sources(results),
        other_code(store, module, results),
    )


def _present(module: Any, results: Any, settings: Any) -> tuple[list[Any], dict[str, bytes], str]:
    figures = styled(module.plot)(results, settings)
    return (
        module.tables(results, settings),
        {name: _png(figure) for name, figure in figures.items()},
        module.reading(results, settings),
    )


def _attempt(module: Any, results: Any, settings: Any) -> tuple[list[Any], dict[str, bytes], str]:
    """The same from an incomplete set of cells; where they are not enough, less is shown, without an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # means of empty arrays
        try:
            return _present(module, results, settings)
        except Exception:
            return [], {}, ""


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # No software version in the file: the same figure is the same bytes.
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def write_tables(shown: Shown) -> None:
    """Write tables and figures next to the cells they are made from."""
    write_atomically(shown.folder / "tables.md", _markdown(shown).encode())
    write_atomically(shown.folder / "tables.csv", comma_separated(shown.tables).encode())
    sheet.write_sheet(shown.folder, shown.figures)


def _markdown(shown: Shown) -> str:
    lines = [f"# {shown.module.TITLE}", "", shown.module.QUESTION, ""]
    part = "" if shown.done == shown.total else f", {shown.done} of {shown.total} cells so far"
    lines += [f"Mode: {shown.mode}{part}. Settings: `{json.dumps(shown.settings, ensure_ascii=False)}`", ""]
    for table in shown.tables:
        lines += [f"## {table.title}", "", "| | paper | measured | agrees? | |", "|---|---|---|:-:|---|"]
        for row in table.rows:
            cells = (row.label, row.paper, row.measured, MARKS[row.agrees], row.note)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += ["", *([table.note, ""] if table.note else [])]
    lines += sheet.link(list(shown.figures))
    return "\n".join([*lines, shown.reading, "", made_by(shown.sources), ""])


def made_by(sources: Counter[tuple[str, str]]) -> str:
    """Which versions of the code made how many cells.

    >>> made_by(Counter({("3f2a", "0123456789"): 48, ("unknown", "abcdef0123"): 2}))
    'Made by: code 3f2a at commit 0123456 (48 cells), unknown code at commit abcdef0 (2 cells).'
    """
    if not sources:
        return ""
    named = {key: "unknown code" if key[0] == UNKNOWN else f"code {key[0]}" for key in sources}
    listed = [f"{named[key]} at commit {key[1][:7]} ({count} cells)" for key, count in sources.most_common()]
    return f"Made by: {', '.join(listed)}."


def other_code(store: Store, module: Any, cells: Iterable[str] | None = None) -> str:
    """Which cells, of these or of all, were made by other code than this; nothing if none were."""
    known = store.names() if cells is None else list(cells)
    others = set(store.of_other_code(code(module)))
    listed = [cell for cell in known if cell in others]
    if not listed:
        return ""
    commits = ", ".join(dict.fromkeys(commit[:7] for _, commit in store.sources(listed)))
    which = "" if len(listed) == len(known) else f": {', '.join(listed[:5])}{', ...' if len(listed) > 5 else ''}"
    return f"{len(listed)} of {len(known)} cells are of older or other code than this (commits {commits}){which}"


def comma_separated(tables: list[Any], expected: str = "paper", verdict: str = "agrees") -> str:
    """The rows of all tables; `expected` and `verdict` are headings: what was to be met, and whether it was."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("table", "row", expected, "measured", verdict, "note"))
    for table in tables:
        for row in table.rows:
            met = {True: "yes", False: "no", None: ""}[row.agrees]
            writer.writerow((table.title, row.label, row.paper, row.measured, met, row.note))
    return buffer.getvalue()


# ---- While they run -------------------------------------------------------------------------------------------------


@contextmanager
def _progress_bar(name: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, with the current cell and the time left; in a file, a plain line at times."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    clock = _Clock()
    if not console.is_terminal:
        last = -1e9

        def line(done: int, total: int, cell: str) -> None:
            nonlocal last
            if time.monotonic() - last >= 30 or done == total:
                last = time.monotonic()
                left = f", {clock.left(done, total)} left" if done < total else ""
                console.print(f"{name} {done}/{total} {cell}{left}", soft_wrap=True, markup=False, highlight=False)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.fields[cell]}", style="dim"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=None, left="?", cell="")

        def report(done: int, total: int, cell: str) -> None:
            bar.update(task, total=total, completed=done, left=clock.left(done, total), cell=cell)

        yield report


class _Clock:
    """Time left, from the cells that this run itself has done."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: int | None = None

    def left(self, done: int, total: int) -> str:
        if self.first is None:
            self.first = done
        if done == total:
            return "0:00"
        if done == self.first:
            return "?"
        seconds = round((time.monotonic() - self.began) / (done - self.first) * (total - done))
        hours, minutes = seconds // 3600, seconds // 60 % 60
        return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
