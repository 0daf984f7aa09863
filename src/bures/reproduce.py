"""Running the experiments of the paper: find them, run what is not kept yet, write tables and figures next to it.

The experiments live outside the wheel, in the repository's folder `experiments/`; its `protocol.py` says what each of
them offers and how results are kept.
"""

import csv
import importlib
import importlib.util
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bures.check import check_positive_integer
from bures.plot import _styled
from bures.storage import write_atomically

EXPERIMENTS = ("eggbox", "snr", "convergence", "census", "census-full", "banana", "factorial", "families", "mixtures")
BENCHMARKS = ("posteriordb", "speed", "cold", "honesty", "families", "ladder", "scale", "models")
MODES = ("full", "quick")
MARKS = {True: "✓", False: "✗", None: "–"}
_VARIABLE = "BURES_EXPERIMENTS"
_RESERVED = ("settings",)  # names of files next to the cells


# ---- Finding experiments --------------------------------------------------------------------------------------------


def find_folder(given: Path | None = None) -> Path:
    """The folder of the experiments: as given, from the environment, or that of the repository bures runs from."""
    named = given or (Path(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else None)
    folder = named or Path(__file__).resolve().parents[2] / "experiments"
    if not (folder / "protocol.py").is_file():
        where = "there are none" if named is None else f"{str(folder)!r} has no protocol.py"
        raise ValueError(
            f"The experiments are in bures' repository, not in the installed package, but {where}. Clone the "
            f"repository and give its folder as --experiments or in the environment variable {_VARIABLE}."
        )
    return folder.resolve()


def load_protocol(folder: Path) -> Any:
    """`experiments.protocol`, with `experiments` standing for this folder."""
    _mount("experiments", folder)
    return importlib.import_module("experiments.protocol")


def load_benchmark(name: str, folder: Path) -> Any:
    """A module of `benchmarks`, the folder next to that of the experiments, whose protocol it uses."""
    benchmarks = folder.parent / "benchmarks"
    present = [each for each in BENCHMARKS if (benchmarks / f"{each}.py").is_file()]
    if name not in present:
        raise ValueError(f"benchmark must be one of {', '.join(present) or 'none'}, in {benchmarks}, but got {name!r}.")
    load_protocol(folder)
    _mount("benchmarks", benchmarks)
    return importlib.import_module(f"benchmarks.{name}")


def _mount(package: str, folder: Path) -> None:
    """Let the name of a package stand for this folder, whatever it stood for before."""
    known = sys.modules.get(package)
    if known is not None and Path(known.__path__[0]).resolve() == folder:
        return
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(package, init, submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])


def load_experiment(name: str, folder: Path) -> Any | None:
    """The module of an experiment; None if the folder does not have it."""
    load_protocol(folder)
    module = name.replace("-", "_")
    return importlib.import_module(f"experiments.{module}") if (folder / f"{module}.py").is_file() else None


def _store(name: str, module: Any, mode: str, out: Path) -> Any:
    """Where its cells are kept: in a folder of its name, or of another if a benchmark has that."""
    return importlib.import_module("experiments.protocol").Store(out, getattr(module, "FOLDER", name), mode)


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
    experiments: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Run an experiment, or `all`; what is kept in `out` already is not run again."""
    if seeds is not None:
        check_positive_integer("seeds", seeds, "It is the number of repetitions of each cell.")
    names, folder = choose(name), find_folder(experiments)
    for each in names:
        module = load_experiment(each, folder)
        if module is None:
            say(f"{each}: skipped, {folder / each.replace('-', '_')}.py does not exist")
            continue
        mode = "quick" if quick else "full"
        began = time.perf_counter()
        shown = run_experiment(each, module, module.settings(quick, seeds), mode, out)
        verdicts = [row.agrees for table in shown.tables for row in table.rows]
        say(
            f"{each}: {shown.done} cells, {verdicts.count(True)} of {len(verdicts) - verdicts.count(None)} comparisons "
            f"agree with the paper; {time.perf_counter() - began:.0f} s; see {shown.folder / 'tables.md'}"
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


def run_experiment(name: str, module: Any, settings: dict[str, Any], mode: str, out: Path) -> Shown:
    """Run what is not kept yet, then write tables and figures."""
    protocol = importlib.import_module("experiments.protocol")
    store = _store(name, module, mode, out)
    store.folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(settings))  # as they are when read back
    if taken := set(module.cells(settings)) & set(_RESERVED):
        raise ValueError(f"The experiment {name} has a cell named {taken.pop()!r}, which is the name of another file.")
    with _alone_in(store.folder), _progress_bar(name) as report:
        for leftover in store.folder.glob(".*.json.*"):  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        write_atomically(store.folder / "settings.json", (json.dumps(settings, indent=1) + "\n").encode())
        protocol.run_cells(module, store, settings, report)
        shown = read_experiment(name, module, mode, out)
        assert shown is not None
        write_tables(shown)
    return shown


def read_experiment(name: str, module: Any, mode: str, out: Path) -> Shown | None:
    """What can be shown from the cells kept in `out`, with nothing run; None if there is nothing."""
    protocol = importlib.import_module("experiments.protocol")
    store = _store(name, module, mode, out)
    try:
        settings = json.loads((store.folder / "settings.json").read_text())
        cells = json.loads(json.dumps(module.cells(settings)))
    except (OSError, ValueError, KeyError):  # none, cut short, or those of another version of the experiment
        return None
    results = protocol.read_cells(module, store, settings)
    entries = [store.entry(cell, kept["parameters"]) for cell, kept in results.items()]
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
    )


def _present(module: Any, results: Any, settings: Any) -> tuple[list[Any], dict[str, bytes], str]:
    figures = _styled(module.plot)(results, settings)
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
    for name, content in shown.figures.items():
        write_atomically(shown.folder / f"{name}.png", content)


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
    lines += [f"![{name}]({name}.png)\n" for name in shown.figures]
    return "\n".join([*lines, shown.reading, ""])


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
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; the operating system releases the lock however the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once would only do some work twice
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ValueError(f"Another run is at work in {str(folder)!r}: wait for it, or choose another --out.") from error
    try:
        yield
    finally:
        os.close(handle)


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
