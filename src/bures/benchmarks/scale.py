"""Data of any size: memory, reads, noise and cost by the number of rows, each next to the limit it has to keep.

Run by `bures bench scale`. One cell a section and a model, source or size, kept by the protocol of the experiments: a
run that was stopped goes on where it was. Data are made block by block in a temporary folder, or kept in `--path`.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bures.benchmarks import pages, scale_rows, scale_shared
from bures.benchmarks.scale_sections import Section
from bures.check import check_option
from bures.experiments.protocol import Results, Store, read_cells, run_cells

TITLE = "Data of any size"
QUESTION = "What do fits to millions of rows read, hold and cost, and are they those of all rows?"
SECTIONS: dict[str, Section] = {**scale_rows.SECTIONS, **scale_shared.SECTIONS}
SETTINGS: dict[str, Any] = {**scale_rows.SETTINGS, **scale_shared.SETTINGS}
QUICK: dict[str, Any] = {**scale_rows.QUICK, **scale_shared.QUICK}


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            f"{name}--{cell}": dict(section=name, **parameters)
            for name in settings["sections"]
            for cell, parameters in SECTIONS[name].cells(settings).items()
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return SECTIONS[parameters["section"]].measure(parameters, self.folder)


def run(
    path: Path | None = None,
    *,
    quick: bool = False,
    only: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figure and the page; return their folder.

    `only` chooses sections, `path` is a folder that keeps the data; `changes` are other values of `SETTINGS`.
    """
    sections = [check_option("--only", name, tuple(SECTIONS)) for name in only or SECTIONS]
    settings = {**SETTINGS, **(QUICK if quick else {}), **changes}
    store = Store(out, "scale", "quick" if quick else "full")

    def tell(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    with nullcontext(path) if path is not None else tempfile.TemporaryDirectory(prefix="bures-scale-") as folder:
        run_cells(Benchmark(Path(folder)), store, settings | {"sections": sections}, tell)
    shown = settings | {"sections": list(SECTIONS)}
    for line in write(read_cells(Benchmark(Path()), store, shown), shown, store.folder):
        say(line)
    return store.folder


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figure and the page; return the lines of the criteria."""
    present = {entry["parameters"]["section"] for entry in results.values()}
    shown = [section.present(results, settings) for name, section in SECTIONS.items() if name in present]
    criteria = [criterion for each in shown for criterion in each.criteria]
    grids = [pages.criteria_grid(criteria), *(grid for each in shown for grid in each.grids)]
    figures = {name: figure for each in shown for name, figure in each.figures.items()}
    records = [
        {name: entry["parameters"].get(name) for name in ("section", "what", "rows")}
        | {name: value for name, value in entry["result"].items() if not isinstance(value, dict | list)}
        for entry in results.values()
    ]
    pages.write(folder, "scale", TITLE, QUESTION, grids, records, figures)
    return [each.line() for each in criteria]
