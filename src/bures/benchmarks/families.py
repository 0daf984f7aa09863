"""The families: mean field, low rank and full rank on eleven real models, against NumPyro's, and on large Gaussians.

Run by `bures bench families`. Three sections: `models`, one cell a model, contestant and seed; `gaussians`, of rank ten
plus diagonal in up to 100,000 dimensions, one cell a size, each in a process of its own; and, with `--old COMMIT`,
`unchanged`: seconds a step of the full Gaussian in that version and in this, in turn. Cells are kept by the protocol of
the experiments: a run that was stopped goes on where it was. Let the machine be idle.
"""

import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bures
from bures import posteriordb
from bures.benchmarks import before_after, families_report
from bures.benchmarks.families_alone import alone
from bures.benchmarks.families_cells import CONTESTANTS, PEERS, Contest, attempt, available
from bures.benchmarks.families_models import DIMENSIONS, GAUSSIANS, MODELS, Folders, find_folders
from bures.check import check_option, check_positive_integer
from bures.experiments.protocol import Store, run_cells

SECTIONS = ("models", "gaussians", "unchanged")
UNCHANGED = (  # where the full Gaussian is the default
    *(
        "eggbox",
        "banana",
        "funnel, d = 10",
        "Gaussian, d = 10, condition 1e+04",
        "Gaussian, d = 50",
        "Gaussian, d = 100",
    ),
    *("Census, d = 9", "eight_schools-eight_schools_noncentered", "arK-arK", "mesquite-mesquite"),
)
SETTINGS = {
    "numpyro_steps": 5_000,
    "numpyro_step_size": 0.01,
    "num_samples": 4_000,  # fresh draws of the judge
    "rounds": 3,  # runs of which the least seconds count,
    "patience": 2.0,  # while all of them take less
    "peer_factor": 4,  # up to `PEER_DIM`, times our seeds: there the spread of theirs is what drowns a difference
    "gaussians": [[1_000, 5], [10_000, 5], [100_000, 1]],  # dimensions and seeds
    "sampled": 10_000,  # the largest dimension in which NumPy's arrays are watched
    "unchanged": UNCHANGED,
    "unchanged_rounds": 5,
}
QUICK = {
    "numpyro_steps": 1_000,
    "num_samples": 1_000,
    "peer_factor": 1,
    "gaussians": [[100, 1], [200, 1]],
    "unchanged": UNCHANGED[:2],
    "unchanged_rounds": 2,
}
QUICK_DIM = 250  # of the models
PEER_DIM = 400  # up to which peers take seconds


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, folders: Folders, sources: dict[str, Path] | None = None):
        self.folders, self.sources = folders, sources
        self._target: tuple[str, bures.Target] | None = None
        self._contest: tuple[tuple[str, str], Contest] | None = None

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Model by model and contestant by contestant, so that each is read and compiled once."""
        return {
            **{_short(*key): cell for key, cell in _model_cells(settings).items()},
            **{_short("gaussian", *key): cell for key, cell in _gaussian_cells(settings).items()},
            **{_short("unchanged", *key): cell for key, cell in _unchanged_cells(settings).items()},
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        section = parameters["section"]
        if section == "models":
            return attempt(lambda: self._measure(parameters))
        if section == "gaussians":
            names = ("dim", "kind", "seeds", "num_samples", "family", "sampled")
            return attempt(lambda: alone(**{name: parameters[name] for name in names}))
        assert self.sources is not None
        return before_after.Benchmark(self.sources, self.folders.posteriordb).run(parameters)

    def _measure(self, parameters: dict[str, Any]) -> dict[str, Any]:
        model, key = parameters["model"], (parameters["model"], parameters["contestant"])
        if self._target is None or self._target[0] != model:
            self._target = model, MODELS[model](self.folders)
        if self._contest is None or self._contest[0] != key:
            self._contest = key, Contest(parameters["contestant"], self._target[1], parameters)
        return self._contest[1].measure(parameters["seed"])


def _short(*parts: Any) -> str:
    return "--".join(str(part).replace(",", "").replace(" = ", "").replace(" ", "-") for part in parts)


def _model_cells(settings: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    names = ("numpyro_steps", "numpyro_step_size", "num_samples", "rounds", "patience")
    shared = {"section": "models"} | {name: settings[name] for name in names}
    return {
        (model, contestant, seed): dict(shared, model=model, contestant=contestant, seed=seed)
        for model in settings["models"]
        for contestant in settings["contestants"]
        for seed in range(_seeds(settings, model, contestant))
    }


def _seeds(settings: dict[str, Any], model: str, contestant: str) -> int:
    if contestant not in PEERS:
        return settings["seeds"]
    return settings["peer_seeds" if DIMENSIONS[model] <= PEER_DIM else "large_peer_seeds"]


def _gaussian_cells(settings: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    if "gaussians" not in settings["sections"]:
        return {}
    shared = {"section": "gaussians", "num_samples": settings["num_samples"], "family": None}
    return {
        (kind, dim): dict(
            shared, kind=kind, dim=dim, seeds=min(seeds, settings["seeds"]), sampled=dim <= settings["sampled"]
        )
        for dim, seeds in settings["gaussians"]
        for kind in GAUSSIANS
    }


def _unchanged_cells(settings: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    if "unchanged" not in settings["sections"] or settings["versions"] is None:
        return {}
    shared = {name: settings[name] for name in ("seeds", "versions", "num_samples")}
    shared |= {"section": "unchanged", "rounds": settings["unchanged_rounds"]}
    return {(name,): dict(shared, target=name) for name in settings["unchanged"]}


# ---- Two versions ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _sources(old: str | None) -> Iterator[dict[str, Path] | None]:
    """The two versions of the package: of `old`, a checkout or a commit, and this one."""
    package = Path(__file__).resolve().parents[2]
    root = package.parent
    if old is None:
        yield None
    elif (Path(old) / "src" / "bures").is_dir():
        yield {"old": Path(old).resolve() / "src", "new": package}
    else:
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(["git", "-C", str(root), "archive", old, "src"], capture_output=True, check=False)
            if packed.returncode:
                raise ValueError(f"--old must be a commit or a checkout with src/bures in it, but got {old!r}.")
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                archive.extractall(folder, filter="data")
            yield {"old": Path(folder) / "src", "new": package}


def _versions(old: str | None) -> dict[str, str] | None:
    """So that cells of other versions are not mistaken for these."""
    if old is None:
        return None
    root = Path(__file__).resolve().parents[3]
    is_folder = (Path(old) / "src" / "bures").is_dir()
    command = ["git", "-C", str(root), "rev-parse", "--short=12", f"{old}^{{commit}}"]
    commit = None if is_folder else subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"old": commit or before_after._version(Path(old)), "new": before_after._version(root)}


# ---- Running --------------------------------------------------------------------------------------------------------


def run(
    path: Path | None = None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: list[str] | None = None,
    methods: list[str] | None = None,
    sampling: Path | None = None,
    old: str | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figures and the page; return their folder.

    `only` chooses sections and models, `methods` contestants; `seeds` is the number of fits; of peers four times
    as many up to 400 dimensions, and at most three beyond. `changes` are other values of `SETTINGS`, for tests.
    """
    seeds = (1 if quick else 5) if seeds is None else seeds
    check_positive_integer("seeds", seeds, "It is the number of fits of each model.")
    chosen = [check_option("--only", name, (*SECTIONS, *MODELS)) for name in only or SECTIONS]
    sections = [section for section in SECTIONS if section in chosen]
    models = [name for name in MODELS if name in chosen or "models" in sections]
    if quick and "models" in sections:
        models = [name for name in models if DIMENSIONS[name] <= QUICK_DIM or name in chosen]
    methods = [check_option("--method", name, tuple(CONTESTANTS)) for name in methods or available()]
    settings = {**SETTINGS, **(QUICK if quick else {}), **changes, "seeds": seeds}
    settings["peer_seeds"] = settings["peer_factor"] * seeds
    settings["large_peer_seeds"] = min(seeds, 3)
    settings |= {"sections": sections, "models": models, "contestants": methods, "versions": _versions(old)}
    folders = find_folders(models, path, sampling)
    if old is not None and "unchanged" in sections and set(settings["unchanged"]) & set(posteriordb.names()):
        folders = folders._replace(posteriordb=posteriordb.find_path(path))
    store = Store(out, "families", "quick" if quick else "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    with _sources(old) as sources:
        results = run_cells(Benchmark(folders, sources), store, settings, report)
    for line in families_report.write(results, settings, store.folder):
        say(line)
    return store.folder
