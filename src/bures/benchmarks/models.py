"""The proof: `bures.fit`, `bures.sample`, six peers and NUTS on real models of one to three thousand dimensions.

Run by `bures bench models`. One cell a model, method and seed, kept by the protocol of the experiments: a run that was
stopped goes on where it was. First come the models that NUTS is run on, with their references, `bures.fit` and
`bures.sample`, then peers, then larger models.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.benchmarks import models_report, pages
from bures.benchmarks.families_models import Folders
from bures.benchmarks.models_cells import (
    ADVI,
    DIAGONAL,
    FIT,
    FULL,
    LAPLACE,
    LOW_RANK,
    NUTS,
    PATHFINDER,
    REFERENCE,
    SAMPLE,
    Scales,
    failure,
    measure,
    on_scales,
)
from bures.benchmarks.models_nuts import Run, effective, long_run, moment_gaussian, summarise, yardstick
from bures.benchmarks.real.existing import reference_draws
from bures.benchmarks.real.registry import MODELS, SPARE, find_folders
from bures.check import check_option, check_positive_integer
from bures.experiments.protocol import Results, Store, read_cells, run_cells

TITLE = "The proof: real models"
QUESTION = "On how many real models are means and standard deviations right, at what cost, and does the verdict know?"
METHODS = (NUTS, REFERENCE, FIT, SAMPLE, LAPLACE, FULL, LOW_RANK, DIAGONAL, ADVI, PATHFINDER)
GUIDES = (LAPLACE, FULL, LOW_RANK, DIAGONAL)
NOWHERE = Folders(None, None)  # where no data are needed
SEEDS = 5  # of bures.fit and bures.sample; of the others one
LARGEST = {NUTS: 400, FULL: 600, LAPLACE: 1_100}  # dimensions: beyond, a method is not run
SETTINGS: dict[str, Any] = {
    "num_draws": 1_000,
    "warmup": 500,
    "nuts_seconds": 30,
    "reference_warmup": 1_000,
    "reference_effective": 4_000,
    "reference_seconds": 60,
    "sample_seconds": 120,
    "patience": 5,
    "limit": 300,
    "numpyro_steps": 5_000,
    "numpyro_step_size": 0.01,
    "pymc_steps": 10_000,
}
QUICK: dict[str, Any] = {"nuts_seconds": 5, "reference_seconds": 10, "reference_effective": 1_000}


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, folders: Folders, store: Store):
        self.folders, self.store = folders, store
        self._made: tuple[str, bures.Target] | None = None
        self._run: tuple[str, Run] | None = None  # the yardstick's draws, for the reference that follows it

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        cells = {}
        for name, method, seed in passes(settings):
            if method in settings["methods"] and MODELS[name].dim <= LARGEST.get(method, np.inf):
                parameters = dict(model=name, method=method, seed=seed)
                cells[f"{name}--{method}--{seed}"] = parameters | {key: settings[key] for key in SETTINGS}
        return cells

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        name, method, seed = (parameters[key] for key in ("model", "method", "seed"))
        target = self._target(name)
        if method == NUTS:
            return _attempt(lambda: self._yardstick(name, target, parameters))
        if method == REFERENCE:
            return _attempt(lambda: self._reference(name, target, parameters))
        known = self._known(parameters)
        return measure(method, target, seed, parameters, known)

    def _target(self, name: str) -> bures.Target:
        """The target, with draws on both scales."""
        if self._made is None or self._made[0] != name:
            jax.clear_caches()
            made = MODELS[name].make(self.folders)
            options = {"initial_point": made.initial_point, "sites": made.sites, "constrain": Scales(made.constrain)}
            self._made = name, bures.Target(made.log_density, made.dim, **options)
        return self._made[1]

    def _yardstick(self, name: str, target: bures.Target, parameters: dict[str, Any]) -> dict[str, Any]:
        run, found = yardstick(target, parameters["seed"], parameters)
        self._run = name, run
        return found

    def _reference(self, name: str, target: bures.Target, parameters: dict[str, Any]) -> dict[str, Any]:
        """posteriordb's draws; else those of the yardstick if its chains agree; else longer chains.

        Chains in centred coordinates may agree without having been in the neck of a funnel: never those.
        """
        gold, model = reference_draws(name, self.folders), MODELS[name]
        if gold is not None:
            found = {"source": "posteriordb", "usable": True, "rhat": 1.0, "smallest_ess": float(len(gold))}
            moments = {scale: summarise(draws, len(gold)) for scale, draws in on_scales(target, gold).items()}
            return found | moments | {"moment_ness": moment_gaussian(target, gold, len(gold))}
        source, back, run = "yardstick", np.asarray, self._run[1] if self._run and self._run[0] == name else None
        if run is None or not run.is_reference or model.modes > 1 or target.sites:
            run, back = long_run(target, parameters["seed"], parameters, model.modes > 1)
            source = "long chains"
        chains = back(run.draws)
        draws = chains.reshape(-1, target.dim)
        sizes = {scale: effective(x, len(chains)) for scale, x in on_scales(target, draws).items()}
        if model.exchange is not None:
            draws = exchanged(target, draws, model.exchange)
        found = {"source": source, "usable": run.is_reference, "rhat": run.rhat, "smallest_ess": run.smallest}
        moments = {scale: summarise(x, sizes[scale]) for scale, x in on_scales(target, draws).items()}
        found |= {"divergences": run.divergences, **moments}
        return found | {"moment_ness": moment_gaussian(target, draws, run.smallest) if run.is_reference else None}

    def _known(self, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The reference of the model, if it was run and can be used."""
        wanted = parameters | {"method": REFERENCE, "seed": 0}
        found = self.store.get(f"{parameters['model']}--{REFERENCE}--0", wanted)
        return found if found and found.get("usable") else None


def passes(settings: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Models, methods and seeds in the order in which they are run: what says most for its time comes first.

    All seeds of a model follow each other, so that it is compiled once.
    """
    names, ours = settings["models"], [(FIT, SAMPLE, seed) for seed in range(settings["seeds"])]
    small = [name for name in names if MODELS[name].dim <= LARGEST[NUTS]]
    for part in (small, [name for name in names if name not in small]):
        for name in part:
            yield from ((name, method, 0) for method in (NUTS, REFERENCE))
            yield from ((name, method, seed) for *methods, seed in ours for method in methods)
        yield from ((name, method, 0) for name in part for method in GUIDES)
    yield from ((name, method, 0) for name in names for method in (ADVI, PATHFINDER))


def _attempt(run: Any) -> dict[str, Any]:
    try:
        return run()
    except ImportError:
        raise
    except Exception as error:
        return failure(error)


def exchanged(target: bures.Target, draws: np.ndarray, exchange: Any) -> np.ndarray:
    """Draws moved at random to one of the equivalent modes."""
    density: Any = target.log_density
    layout = density.layout
    constrained = jax.vmap(lambda z: layout.constrain(z))(jnp.asarray(draws))
    values = {name: np.asarray(value) for name, value in constrained.items()}
    values = exchange(np.random.default_rng(0), values)
    parts = zip(layout.names, layout.supports, strict=True)
    back = [jax.vmap(lambda y, s=s: s.unconstrain(y))(jnp.asarray(values[name])) for name, s in parts]
    return np.concatenate([np.asarray(part).reshape(len(draws), -1) for part in back], axis=1)


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

    `only` chooses models by name or by kind, `methods` methods; `changes` are other values of `SETTINGS`, for tests.
    The page shows all that is kept.
    """
    seeds = (1 if quick else SEEDS) if seeds is None else seeds
    check_positive_integer("seeds", seeds, "It is the number of runs of bures.fit and bures.sample on each model.")
    names = choose(only)
    chosen = [check_option("--method", name, METHODS) for name in methods or METHODS]
    settings = {**SETTINGS, **(QUICK if quick else {}), **changes, "seeds": seeds, "models": names, "methods": chosen}
    store = Store(out, "models", "quick" if quick else "full")

    def tell(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    benchmark = Benchmark(find_folders(names, path, sampling), store)
    run_cells(benchmark, store, settings, tell)
    shown = everything(settings)
    promised = benchmark.cells(shown | {"models": choose(None)})
    for line in write(read_cells(benchmark, store, shown), shown, store.folder, promised):
        say(line)
    return store.folder


def everything(settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
    """Settings of all that may be kept."""
    return settings | {"seeds": max(settings.get("seeds", 0), SEEDS), "models": list(MODELS), "methods": list(METHODS)}


def choose(only: list[str] | None) -> list[str]:
    """Models by name or by kind; by default all that are not near doubles of others.

    >>> choose(["globe", "ordinal"])
    ['globe', 'opinions']
    """
    kinds = dict.fromkeys(model.kind for model in MODELS.values())
    if only is None:
        return [name for name in MODELS if name not in SPARE]
    chosen = [check_option("--only", name, (*MODELS, *kinds)) for name in only]
    return [name for name, model in MODELS.items() if name in chosen or model.kind in chosen]


def write(results: Results, settings: dict[str, Any], folder: Path, cells: Iterable[str] = ()) -> list[str]:
    """Write the tables, the figures and the page; return the lines of the criteria. `cells` are all there may be."""
    shown = models_report.present(results, settings, cells)
    grids = [pages.criteria_grid(shown.criteria), *shown.grids]
    pages.write(folder, "models", TITLE, QUESTION, grids, models_report.flat(results), shown.figures)
    return [each.line() for each in shown.criteria]
