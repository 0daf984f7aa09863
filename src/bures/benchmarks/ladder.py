"""The ladder: what comes after one Gaussian, section by section, each with the limits it has to keep.

Run by `bures bench ladder`. `mixtures`, `modes` and `published` are fits of mixtures; `centring` is `fit.refine` of
hierarchical models; `sample` is `bures.sample` beside NUTS; `honesty` is what both say of traps. One cell a section,
target, contestant and seed, kept by the protocol of the experiments: a run that was stopped goes on where it was. A
cell knows the code that made it, and is kept whatever the code is now: give another `--out` to measure another version.
"""

from pathlib import Path
from typing import Any

from bures.benchmarks import ladder_centring, ladder_fits, ladder_honesty, ladder_sample, pages
from bures.benchmarks.families_models import Folders
from bures.benchmarks.ladder_cells import available
from bures.benchmarks.ladder_sections import Section
from bures.benchmarks.ladder_targets import find_folders
from bures.check import check_option, check_positive_integer
from bures.experiments.protocol import Results, Store, read_cells, run_cells

TITLE = "The ladder: when one Gaussian is not enough"
QUESTION = "How good are mixtures, what do they cost, do they find all modes, and can their draws be trusted?"
SECTIONS: dict[str, Section] = {
    **ladder_fits.SECTIONS,
    **ladder_centring.SECTIONS,
    **ladder_sample.SECTIONS,
    **ladder_honesty.SECTIONS,
}
CONTESTANTS = list(dict.fromkeys(name for section in SECTIONS.values() for name in section.contestants))
SEEDS = 10  # keys of the fits of each target
SETTINGS: dict[str, Any] = {name: value for section in SECTIONS.values() for name, value in section.settings.items()}
QUICK: dict[str, Any] = {name: value for section in SECTIONS.values() for name, value in section.quick.items()}


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, folders: Folders):
        self.folders = folders
        self._made: tuple[tuple[str, str], Any] | None = None

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Target by target, so that each is read and compiled once."""
        return {
            short(name, target, contestant, seed): dict(
                section=name, target=target, contestant=contestant, seed=seed, **section.of(settings)
            )
            for name, section in SECTIONS.items()
            if name in settings["sections"]
            for target in section.targets
            if target in settings["targets"]
            for contestant in section.contestants
            if contestant in settings["contestants"]
            for seed in range(section.seeds(settings, target, contestant))
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        section, name = SECTIONS[parameters["section"]], (parameters["section"], parameters["target"])
        if self._made is None or self._made[0] != name:
            self._made = name, section.make(parameters["target"], self.folders)
        return section.measure(self._made[1], parameters)


def short(*parts: Any) -> str:
    """The name of a cell."""
    return "--".join(
        str(part).replace(",", "").replace(" = ", "").replace(" ", "-").replace("/", "-") for part in parts
    )


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
    """Run what is not kept yet, then write the tables, the figures and the page; return their folder.

    `only` chooses sections and targets, `methods` contestants; `changes` are other values of `SETTINGS`, for tests. The
    page shows all that is kept, whatever was chosen.
    """
    seeds = (2 if quick else SEEDS) if seeds is None else seeds
    check_positive_integer("seeds", seeds, "It is the number of fits of each target.")
    sections, targets = choose(only)
    ready = available(CONTESTANTS)
    methods = [check_option("--method", name, tuple(ready)) for name in methods or ready]
    settings = {**SETTINGS, **(QUICK if quick else {}), **changes, "seeds": seeds}
    settings |= {"sections": sections, "targets": targets, "contestants": methods}
    store = Store(out, "ladder", "quick" if quick else "full")

    def tell(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    needed = {
        SECTIONS[name].data(target) for name in sections for target in targets if target in SECTIONS[name].targets
    }
    benchmark = Benchmark(find_folders(needed, path, sampling))
    run_cells(benchmark, store, settings, tell)
    shown = everything(settings)
    for line in write(read_cells(benchmark, store, shown), shown, store.folder):
        say(line)
    return store.folder


def everything(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of all that may be kept."""
    sections, targets = choose(None)
    most = {"seeds": max(settings["seeds"], SEEDS), "sections": sections, "targets": targets}
    return settings | most | {"contestants": CONTESTANTS}


def choose(only: list[str] | None) -> tuple[list[str], list[str]]:
    """Sections and targets by name; a target alone stands for itself in every section that has it.

    >>> choose(["modes"])[0], choose(["eggbox"])
    (['modes'], (['mixtures'], ['eggbox']))
    """
    known = list(dict.fromkeys(target for section in SECTIONS.values() for target in section.targets))
    chosen = [check_option("--only", name, (*SECTIONS, *known)) for name in only or SECTIONS]
    sections = [name for name in SECTIONS if name in chosen]
    targets = [name for name in known if name in chosen]
    if not targets:
        targets = [name for name in known if any(name in SECTIONS[section].targets for section in sections)]
    if not sections:
        sections = [name for name, section in SECTIONS.items() if set(section.targets) & set(targets)]
    return sections, targets


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figures and the page; return the lines of the criteria."""
    present = {entry["parameters"]["section"] for entry in results.values()}
    shown = [section.present(results, settings) for name, section in SECTIONS.items() if name in present]
    criteria = [criterion for each in shown for criterion in each.criteria]
    grids = [pages.criteria_grid(criteria), *(grid for each in shown for grid in each.grids)]
    figures = {name: figure for each in shown for name, figure in each.figures.items()}
    pages.write(folder, "ladder", TITLE, QUESTION, grids, flat(results), figures)
    return [each.line() for each in criteria]


def flat(results: Results) -> list[dict[str, Any]]:
    """One record a run, every number in full."""
    names = ("section", "target", "contestant", "seed")
    return [{name: entry["parameters"][name] for name in names} | spread(entry["result"]) for entry in results.values()]


def spread(found: dict[str, Any]) -> dict[str, Any]:
    """Nested figures as columns of their own, but for long lists of them."""
    record = {}
    for name, value in found.items():
        if isinstance(value, dict):
            record |= {f"{name} {part}": x for part, x in value.items() if not isinstance(x, dict)}
        else:
            record[name] = value
    return record
