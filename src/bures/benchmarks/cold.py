"""The first answer: ten models, each in a fresh process with nothing cached, from import to printed verdict, by phase.

Run by `bures bench cold`. Beside it, in turn, NumPyro's AutoMultivariateNormal on the models that both take. One cell a
model, contestant and repetition, kept by the protocol of the experiments: a run that was stopped goes on where it was.
Let the machine be idle.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bures import posteriordb
from bures.benchmarks import cold_report
from bures.benchmarks.cold_models import MODELS, POSTERIORS, PROGRAM
from bures.check import check_option, check_positive_integer
from bures.experiments.protocol import Store, run_cells

SETTINGS = {"numpyro_steps": 5_000, "numpyro_step_size": 0.01}
_PREPARE = "import sys; from bures.frontends.stan_files import compile_program; compile_program(sys.argv[1])"

NEEDS = ("numpyro", "pymc")


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, path: Path | None):
        self.path = path

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Repetition by repetition, the contestants of a model in turn: all see the machine in the same state."""
        return {
            f"{name}--{contestant}--{turn}": parameters
            for turn in range(settings["seeds"])
            for name in settings["only"]
            for contestant, parameters in _contestants(name, turn, settings)
        }

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """One fresh process; that a model cannot be had here is a result too."""
        name, contestant = parameters["model"], parameters["contestant"]
        if parameters.get("missing"):
            return {"missing": parameters["missing"]}
        options = {each: parameters[each] for each in ("num_steps", "step_size", "seed") if each in parameters}
        found = _process(["-m", "bures.benchmarks.cold_alone", contestant, name, json.dumps(options)], self.path)
        return json.loads(found.splitlines()[-1])


def _contestants(name: str, turn: int, settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    shared = {"model": name, "turn": turn, "seed": turn}
    if MODELS[name].library == "bridgestan":
        shared["missing"] = settings["missing"]  # among the parameters, so that it is tried again once it is there
    listed = [("bures", {**shared, "contestant": "bures"})]
    if MODELS[name].numpyro is not None:
        steps = {"num_steps": settings["numpyro_steps"], "step_size": settings["numpyro_step_size"]}
        listed.append(("numpyro", {**shared, **steps, "contestant": "numpyro"}))
    return listed


def prepare_stan() -> str:
    """Compile the Stan program, which the measurement takes as done; why it cannot be, if it cannot."""
    if not os.environ.get("BRIDGESTAN"):  # BridgeStan without its sources would try to download them
        return "BRIDGESTAN is not set"
    try:
        _process(["-c", _PREPARE, str(PROGRAM)], None)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if "rror" in line]
        return f"Stan programs do not compile here: {lines[-1] if lines else error}"[:200]
    return ""


def _process(arguments: list[str], path: Path | None) -> str:
    """What a fresh Python process prints."""
    import bures

    package = Path(bures.__file__).parent.parent
    # What an earlier process compiled would make this one's wait look short.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(package), environment.get("PYTHONPATH", "")])
    if path is not None:
        environment["BURES_POSTERIORDB"] = str(path)
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[1:])} failed in its own process: {done.stderr[-1000:]}")
    return done.stdout


def run(
    path: Path | None = None,
    *,
    seeds: int = 3,
    only: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figure and the page; return their folder.

    `seeds` is the number of repetitions, `only` chooses models; `changes` are other values of `SETTINGS`, for tests.
    """
    check_positive_integer("seeds", seeds, "It is the number of repetitions of each measurement.")
    only = [check_option("--only", name, tuple(MODELS)) for name in only or MODELS]
    folder = posteriordb.find_path(path) if set(only) & set(POSTERIORS) else None
    missing = prepare_stan() if "stan" in only else ""
    settings = {**SETTINGS, **changes, "seeds": seeds, "only": only, "missing": missing}
    store = Store(out, "cold", "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    results = run_cells(Benchmark(folder), store, settings, report)
    for line in cold_report.write(results, settings, store.folder):
        say(line)
    return store.folder
