"""Two versions of the code side by side in one run: warm seconds, evaluations and quality, and their ratios.

python -m bures.benchmarks.before_after --old CHECKOUT [--path DIR] [--seeds N] [--only NAME ...] [--out DIR]

CHECKOUT is a folder with another version of the repository (`git worktree add DIR COMMIT`). Each version lives in a
process of its own; they fit in turn, so that both see the machine in the same state, after two fits with other keys
that compile. One cell a target, kept by the protocol of the experiments. Exit status 1 if something got worse.
"""

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import bures
from bures import posteriordb
from bures.benchmarks import pages
from bures.benchmarks.pages import Grid, median, text
from bures.check import check_option, check_positive_integer, fail
from bures.experiments.protocol import Results, Store, run_cells

TITLE = "Before and after"
QUESTION = "Is the new code anywhere slower or worse than the old, warm, on the same machine in the same run?"
WARM_UP = (1001, 1002)  # keys of the fits that compile
SLOWER, WORSE_NESS, WORSE_ELBO = 1.1, 0.95, 0.02
SECONDS = ("fit_and_print", "fit", "steps_alone")
PATIENCE = 2.0  # seconds of a seed after which it is not repeated
SETTINGS = {"num_samples": 10_000, "rounds": 5}
NOTE = (
    "Seconds are medians over seeds of the least of up to five repetitions in turn, warm: fit and print together, and "
    "the steps alone. Ratios are new / old, medians of the ratios of each seed; above 1.1 they are marked. ELBO and "
    "nESS are by 10,000 draws with the same noise; an nESS below 95% of the old, or an ELBO lower by more than 0.02 "
    "nats and two standard deviations over seeds, is marked too. Evaluations are those each version counts: the old "
    "one left those of its start out."
)


class Worker:
    """A process with one version of the code."""

    def __init__(self, source: Path):
        environment = {name: x for name, x in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
        environment["PYTHONPATH"] = str(source)
        # By its path, which the other version may not have; its folder is not to be searched for modules.
        command = [sys.executable, "-P", "-W", "ignore", str(Path(__file__).with_name("side.py"))]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`; a full pipe would block the worker
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            raise RuntimeError(f"{do} failed in its own process: {self.errors.read()[-1000:]}")
        return json.loads(answer)

    def end(self) -> None:
        """Without commands it ends by itself; one that is still busy after an error is stopped."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    def __init__(self, sources: dict[str, Path], path: Path | None):
        self.sources, self.path = sources, path

    def cells(self, settings: dict[str, Any]) -> dict[str, Any]:
        shared = {name: settings[name] for name in ("seeds", "versions", *SETTINGS)}
        return {_short(name): dict(shared, target=name) for name in settings["only"]}

    def run(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Every seed by either side in turn; a side that fails is a result too."""
        workers = {name: Worker(source) for name, source in self.sources.items()}
        found: dict[str, Any] = {name: [] for name in workers}
        try:
            path = None if self.path is None else str(self.path)
            for worker in workers.values():
                found["dim"] = worker.ask("load", target=parameters["target"], path=path)["dim"]
            for seed in WARM_UP:
                for worker in workers.values():
                    worker.ask("run", seed=seed)
            for seed in range(parameters["seeds"]):
                for name, fitted in _in_turn(workers, seed, parameters["rounds"]).items():
                    judged = workers[name].ask("judge", seed=seed, num_samples=parameters["num_samples"])
                    found[name].append(fitted | judged)
        except RuntimeError as error:
            return {"failed": str(error)[-500:]}
        finally:
            for worker in workers.values():
                worker.end()
        return found


def _in_turn(workers: dict[str, Worker], seed: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The same fit by either side, again and again while it is short; the least seconds of each count.

    The work is the same each time: what exceeds the least is the machine's.
    """
    best: dict[str, dict[str, Any]] = {}
    spent = 0.0
    for turn in range(rounds):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            fitted = workers[name].ask("run", seed=seed)
            spent += fitted["fit_and_print"]
            least = {each: min(fitted[each], best.get(name, fitted)[each]) for each in SECONDS}
            best[name] = fitted | least
        if spent > PATIENCE:
            break
    return best


def _short(name: str) -> str:
    return name.replace(",", "").replace(" = ", "").replace(" ", "-")


# ---- Tables ---------------------------------------------------------------------------------------------------------


def compare(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """One record of a target: medians of either side, and ratios."""
    if "failed" in found:
        return {"target": name, "failed": found["failed"], "marks": "failed"}
    record: dict[str, Any] = {"target": name, "dim": found["dim"]}
    for column in ("fit_and_print", "steps_alone", "elbo", "ness", "evaluations", "steps"):
        for side in ("old", "new"):
            record[f"{column}, {side}"] = median(fit[column] for fit in found[side])
    pairs = list(zip(found["new"], found["old"], strict=True))
    for column in ("fit_and_print", "steps_alone"):
        record[f"{column}, ratio"] = float(np.median([new[column] / max(old[column], 1e-9) for new, old in pairs]))
    gains = [new["elbo"] - old["elbo"] for new, old in pairs if None not in (new["elbo"], old["elbo"])]
    record["elbo, gain"] = median(gains)
    record["outcomes"] = " → ".join(_outcomes(found[side]) for side in ("old", "new"))
    record["marks"] = ", ".join(_marks(record, float(np.std(gains)) if gains else 0.0))
    return record


def _outcomes(fits: list[dict[str, Any]]) -> str:
    return "/".join(sorted({fit["outcome"] for fit in fits}))


def _marks(record: dict[str, Any], spread: float) -> list[str]:
    marks = []
    if record["fit_and_print, ratio"] > SLOWER:
        marks.append("slower")
    if record["steps_alone, ratio"] > SLOWER:
        marks.append("slower steps")
    if (record["ness, new"] or 0) < WORSE_NESS * (record["ness, old"] or 0):
        marks.append("lower nESS")
    if record["elbo, gain"] is not None and record["elbo, gain"] < -max(WORSE_ELBO, 2 * spread):
        marks.append("lower ELBO")
    return marks


def table(records: list[dict[str, Any]]) -> Grid:
    rows = []
    for record in records:
        if "failed" in record:
            rows.append((record["target"], record["failed"][-120:].replace("\n", " "), *["–"] * 10, "failed"))
            continue
        cells = [record["target"], str(record["dim"])]
        for column in ("fit_and_print", "steps_alone"):
            cells += [_arrow(record, column), text(record[f"{column}, ratio"], 2)]
        cells += [_arrow(record, "elbo", 6), text(record["elbo, gain"], 2), _arrow(record, "ness")]
        cells += [_arrow(record, "evaluations", 4), _arrow(record, "steps"), record["outcomes"], record["marks"] or "–"]
        rows.append(tuple(cells))
    heads = ("target", "d", "fit and print, s", "ratio", "steps, s", "ratio", "ELBO", "gain", "nESS")
    heads += ("evaluations", "steps taken", "outcome", "worse")
    marked = sum(record["marks"] != "" for record in records)
    ratio = median(record.get("fit_and_print, ratio") for record in records)
    steps = median(record.get("steps_alone, ratio") for record in records)
    title = f"Old → new: median ratio {text(ratio, 2)}, of the steps {text(steps, 2)}; {marked} of {len(records)} worse"
    return Grid(title, heads, rows, NOTE)


def _arrow(record: dict[str, Any], column: str, digits: int = 2) -> str:
    return f"{text(record[f'{column}, old'], digits)} → {text(record[f'{column}, new'], digits)}"


def write(results: Results, folder: Path) -> list[dict[str, Any]]:
    records = [compare(entry["parameters"]["target"], entry["result"]) for entry in results.values()]
    pages.write(folder, "before_after", TITLE, QUESTION, [table(records)], records, {})
    return records


# ---- Running --------------------------------------------------------------------------------------------------------


def default_names() -> list[str]:
    from bures.benchmarks.side import SLOW, TARGETS

    return [*(name for name in TARGETS if name not in SLOW), *posteriordb.names()]


def run(
    old: Path | None = None,
    path: Path | None = None,
    *,
    seeds: int = 5,
    only: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the table and the page; return their folder."""
    from bures.benchmarks.side import TARGETS

    check_positive_integer("seeds", seeds, "It is the number of fits of each target.")
    if old is None:
        raise ValueError("Say what to compare with: python -m bures.benchmarks.before_after --old CHECKOUT.")
    if not (old / "src" / "bures").is_dir():
        raise fail("old", "a checkout with src/bures in it", str(old), "Make one: git worktree add DIR COMMIT.")
    only = [check_option("--only", name, (*TARGETS, *posteriordb.names())) for name in only or default_names()]
    folder = posteriordb.find_path(path) if set(only) & set(posteriordb.names()) else None
    sources = {"old": old.resolve() / "src", "new": Path(bures.__file__).resolve().parents[1]}
    versions = {name: _version(source) for name, source in sources.items()}
    settings = {**SETTINGS, **changes, "seeds": seeds, "only": only, "versions": versions}
    store = Store(out, "before_after", "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    results = run_cells(Benchmark(sources, folder), store, settings, report)
    write(results, store.folder)
    return store.folder


def _version(source: Path) -> str:
    """The commit, so that cells of other versions are not mistaken for these."""
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a checkout of the other version")
    parser.add_argument("--path", type=Path, help="posteriordb's folder [default: BURES_POSTERIORDB]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="targets by their names [default: all but the slowest]")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    say = lambda message: print(message, file=sys.stderr, flush=True)  # noqa: E731, T201
    folder = run(options.old, options.path, seeds=options.seeds, only=options.only, out=options.out, say=say)
    print((folder / "tables.md").read_text())  # noqa: T201
    with (folder / "tables.csv").open() as file:
        sys.exit(1 if any(row["marks"] for row in csv.DictReader(file)) else 0)


if __name__ == "__main__":
    main()
