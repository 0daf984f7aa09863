"""Does the verdict of a fit depend on its key? Ten keys on every posterior of posteriordb.

python -m bures.benchmarks.verdicts [--keys 10] [--path DIR] prints a line for each posterior: how often each verdict
was given, and the evaluations of start and steps. Keys are those from 1000 on, which no other benchmark uses.
"""

import argparse
import collections
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import bures  # noqa: E402
from bures import posteriordb  # noqa: E402


def verdicts(name: str, path: Path | None, keys: int) -> tuple[collections.Counter[str], list[bures.Fit]]:
    """The verdicts of a posterior by how often they were given, and the fits."""
    target = posteriordb.load(name, posteriordb.find_path(path)).target
    fits = [bures.fit(target, key=jax.random.key(1000 + key)) for key in range(keys)]
    return collections.Counter(fit.diagnostics.verdict.value for fit in fits), fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--path", type=Path, default=None)
    options = parser.parse_args()
    agreed, undecided = 0, 0
    for name in posteriordb.names():
        found, fits = verdicts(name, options.path, options.keys)
        others = set(found) - {"undecided"}
        agreed, undecided = agreed + (len(others) <= 1), undecided + ("undecided" in found)
        start = max(fit.evaluations.start + fit.evaluations.search for fit in fits)
        within = all(sum(fit.evaluations[::2]) <= max(4000, fit.evaluations.steps) for fit in fits)
        text = ", ".join(f"{verdict} {count}" for verdict, count in found.most_common())
        print(f"{name:42} {text:32} start and search at most {start}, {'within' if within else 'BEYOND'} their limit")  # noqa: T201
    total = len(posteriordb.names())
    print(f"one verdict, or undecided beside it: {agreed} of {total}; undecided at least once: {undecided}")  # noqa: T201


if __name__ == "__main__":
    main()
