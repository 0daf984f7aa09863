"""What the sections of `bench scale` are made of."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bures.benchmarks.pages import Criterion, Grid
from bures.experiments.protocol import Results


class Shown(NamedTuple):
    """What a section shows: criteria for the first table of the page, its own tables, figures (caption and PNG)."""

    criteria: list[Criterion]
    grids: list[Grid]
    figures: dict[str, tuple[str, bytes]] = {}  # noqa: RUF012 - never changed


class Section(NamedTuple):
    """Cells by name from the settings, how one is measured, with a folder for data, and how all are shown."""

    cells: Callable[[dict[str, Any]], dict[str, dict[str, Any]]]
    measure: Callable[[dict[str, Any], Path], dict[str, Any]]
    present: Callable[[Results, dict[str, Any]], Shown]


def found(results: Results, section: str, *, parameters: bool = False) -> Iterator[Any]:
    """(what, result) of a section's cells, and their parameters if asked for."""
    for entry in results.values():
        each = entry["parameters"]
        if each["section"] == section:
            yield (each["what"], entry["result"], each) if parameters else (each["what"], entry["result"])
