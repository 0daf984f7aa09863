"""The ladder: mixtures beside one Gaussian, several modes, and published figures, each with the limits it has to keep.

Run by `bures bench ladder`. One cell a section, target, contestant and seed, kept by the protocol of the experiments: a
run that was stopped goes on where it was. Cells do not know the version of bures: give another `--out` to another.
"""

from pathlib import Path
from typing import Any

import bures
from benchmarks import ladder_cells as cells, ladder_report as report, pages
from benchmarks.families_models import Folders
from benchmarks.ladder_cells import GAUSSIAN, MIXTURE
from benchmarks.ladder_targets import MIXTURES, MODES, PUBLISHED, TARGETS, find_folders
from benchmarks.pages import Criterion, Grid
from bures.check import check_option, check_positive_integer
from bures.plot import _styled
from bures.reproduce import _png
from experiments.protocol import Results, Store, read_cells, run_cells

TITLE = "The ladder: when one Gaussian is not enough"
QUESTION = "How good are mixtures, what do they cost, do they find all modes, and can their draws be trusted?"
SECTIONS = {"mixtures": MIXTURES, "modes": MODES, "published": PUBLISHED}  # and their targets
CONTESTANTS = {"mixtures": (GAUSSIAN, MIXTURE), "modes": (MIXTURE,), "published": (GAUSSIAN, MIXTURE)}
PRESENT = {"mixtures": report.mixtures, "modes": report.modes, "published": report.published}
SEEDS = 10  # keys of the fits of each target
SETTINGS = {
    "num_samples": 20_000,  # fresh draws of the judge
    "elbo_error": 0.001,  # of published figures: more draws are taken until the standard error is this
    "published_seeds": 5,  # at most: as many as were published
}
QUICK = {"num_samples": 4_000, "elbo_error": 0.01, "published_seeds": 1}


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, folders: Folders):
        self.folders = folders
        self._made: tuple[str, bures.Target] | None = None

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Target by target, so that each is read and compiled once."""
        return {
            short(section, target, contestant, seed): _parameters(settings, section, target, contestant, seed)
            for section in settings["sections"]
            for target in SECTIONS[section]
            if target in settings["targets"]
            for contestant in CONTESTANTS[section]
            if contestant in settings["contestants"]
            for seed in range(_seeds(section, settings))
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        target = self._target(parameters["target"])
        return cells.measure(parameters["contestant"], target, parameters["seed"], parameters)

    def _target(self, name: str) -> bures.Target:
        if self._made is None or self._made[0] != name:
            self._made = name, TARGETS[name].make(self.folders)
        return self._made[1]


def short(*parts: Any) -> str:
    """The name of a cell."""
    return "--".join(str(part).replace(",", "").replace(" = ", "").replace(" ", "-") for part in parts)


def _seeds(section: str, settings: dict[str, Any]) -> int:
    return min(settings["seeds"], settings["published_seeds"]) if section == "published" else settings["seeds"]


def _parameters(settings: dict[str, Any], section: str, target: str, contestant: str, seed: int) -> dict[str, Any]:
    shared = {"num_samples": settings["num_samples"]}
    if section == "published":
        shared["elbo_error"] = settings["elbo_error"]
    return dict(section=section, target=target, contestant=contestant, seed=seed, **shared)


def run(
    path: Path | None = None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: list[str] | None = None,
    methods: list[str] | None = None,
    sampling: Path | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figure and the page; return their folder.

    `only` chooses sections and targets, `methods` contestants; `changes` are other values of `SETTINGS`, for tests.
    """
    seeds = (2 if quick else SEEDS) if seeds is None else seeds
    check_positive_integer("seeds", seeds, "It is the number of fits of each target.")
    sections, targets = choose(only)
    methods = [check_option("--method", name, tuple(cells.available())) for name in methods or cells.available()]
    settings = {**SETTINGS, **(QUICK if quick else {}), **changes, "seeds": seeds}
    settings |= {"sections": sections, "targets": targets, "contestants": methods}
    store = Store(out, "ladder", "quick" if quick else "full")
    store.folder.mkdir(parents=True, exist_ok=True)

    def tell(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    benchmark = Benchmark(find_folders(targets, path, sampling))
    run_cells(benchmark, store, settings, tell)
    shown = everything(settings)
    for line in write(read_cells(benchmark, store, shown), shown, store.folder):
        say(line)
    return store.folder


def everything(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of all that may be kept: the page shows what other runs have left, too."""
    sections, targets = choose(None)
    most = {"seeds": max(settings["seeds"], SEEDS), "published_seeds": max(settings["published_seeds"], SEEDS)}
    return settings | most | {"sections": sections, "targets": targets, "contestants": list(cells.CONTESTANTS)}


def choose(only: list[str] | None) -> tuple[list[str], list[str]]:
    """Sections and targets by name; a target alone stands for itself in every section that has it.

    >>> choose(["modes"])[0], choose(["eggbox"])
    (['modes'], (['mixtures'], ['eggbox']))
    """
    chosen = [check_option("--only", name, (*SECTIONS, *TARGETS)) for name in only or SECTIONS]
    sections = [name for name in SECTIONS if name in chosen]
    targets = [name for name in TARGETS if name in chosen]
    if not targets:
        targets = [name for name in TARGETS if any(name in SECTIONS[section] for section in sections)]
    if not sections:
        sections = [name for name, mine in SECTIONS.items() if set(mine) & set(targets)]
    return sections, targets


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figure and the page; return the lines of the criteria."""
    criteria: list[Criterion] = []
    grids: list[Grid] = []
    sections = {entry["parameters"]["section"] for entry in results.values()}
    for section in (each for each in settings["sections"] if each in sections):
        criterion, grid = PRESENT[section](results, settings)
        criteria.append(criterion)
        grids.append(grid)
    figures = {}
    if "mixtures" in sections:
        caption = "nESS and evaluations of one Gaussian and of the mixture, each seed"
        figures["mixtures"] = caption, _png(_styled(report.plot)(results))
    pages.write(folder, "ladder", TITLE, QUESTION, [pages.criteria_grid(criteria), *grids], flat(results), figures)
    return [each.line() for each in criteria]


def flat(results: Results) -> list[dict[str, Any]]:
    """One record a fit, every number in full."""
    names = ("section", "target", "contestant", "seed")
    return [{name: entry["parameters"][name] for name in names} | spread(entry["result"]) for entry in results.values()]


def spread(found: dict[str, Any]) -> dict[str, Any]:
    """Nested figures as columns of their own."""
    record = {}
    for name, value in found.items():
        record |= {f"{name} {part}": x for part, x in value.items()} if isinstance(value, dict) else {name: value}
    return record
