"""A soak: thousands of fits of random targets, families, precisions and seeds, and what their outcomes say.

Two workers at a time, of one precision each, take a few hundred fits; one that says nothing for too long has hung.
"""

import itertools
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HANG = 300.0  # seconds without a word
_SECONDS, _FITS, _FITS_OF_A_WORKER, _WORKERS = 3600, 2000, 250, 2
_SHORT_FITS = 12


def run(short: bool) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    began, done, largest = time.monotonic(), 0, 0
    enough = threading.Event()
    lines: queue.Queue[dict[str, Any]] = queue.Queue()
    seeds = itertools.count()
    count = _SHORT_FITS // 2 if short else _FITS_OF_A_WORKER
    threads = [threading.Thread(target=_keep_working, args=(seeds, count, lines, enough)) for _ in range(_WORKERS)]
    for thread in threads:
        thread.start()
    while (done < _SHORT_FITS) if short else (done < _FITS or time.monotonic() - began < _SECONDS):
        line = lines.get()
        done += 1
        largest = max(largest, line["rss"])
        counts[line["outcome"]] += 1
        counts[f"verdict: {line['verdict']}"] += 1
        if line["wrong"]:
            wrong.append(f"{line['what']}: {line['wrong']}")
        if done % 100 == 0:
            sys.stderr.write(json.dumps({"fits": done, "wrong": wrong, "rss": largest}) + "\n")
    enough.set()
    for thread in threads:
        thread.join()
    minutes = (time.monotonic() - began) / 60
    return {
        "fits": done,
        "minutes": round(minutes, 1),
        "counts": dict(sorted(counts.items())),
        "wrong": wrong[:10],
        "largest resident memory of a worker, MB": largest,
        "holds": {
            "an hour, 2,000 fits": short or (done >= _FITS and minutes >= 59),
            "0 hangs": counts["hang"] == 0,
            "0 exceptions": counts["exception"] == 0,
            "outcomes consistent": not wrong,
        },
    }


def _keep_working(seeds: Iterator[int], count: int, lines: queue.Queue, enough: threading.Event) -> None:
    """One worker after the other, of either precision in turn, until it is enough."""
    while not enough.is_set():
        seed = next(seeds)
        for line in _worker(("float64", "float32")[seed % 2], seed, count):
            lines.put(line)
            if enough.is_set():
                return


def _worker(dtype: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """What a worker says of each of its fits, and that it hangs or has died."""
    environment = os.environ | {"JAX_ENABLE_X64": str(int(dtype == "float64"))}
    command = [sys.executable, str(Path(__file__).resolve()), str(seed), str(count)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str] = queue.Queue()
    ended = {"verdict": "none", "rss": 0, "what": f"worker {seed}"}

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            line = _next(lines, process)
            if line is None:
                yield ended | {"outcome": "hang", "wrong": f"said nothing for {_HANG:.0f} s"}
                return
            if not line:
                break
            yield json.loads(line)
        if process.wait() != 0:
            yield ended | {"outcome": "exception", "wrong": f"ended with status {process.returncode}"}
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _next(lines: queue.Queue[str], process: subprocess.Popen) -> str | None:
    """The next line; None if there is none for too long, the time in which the process was stopped left out."""
    silent = 0
    while silent < _HANG:
        try:
            return lines.get(timeout=1)
        except queue.Empty:
            silent += not _is_stopped(process.pid)
    return None


def _is_stopped(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] == "T"


def _targets() -> dict[str, Any]:
    """Built-in targets, and some that are zero or not defined somewhere, made once: another seed compiles nothing."""
    import jax.numpy as jnp
    import numpy as np

    import bures

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X @ np.arange(5.0) / 3 + rng.logistic(size=200) > 0).astype(float)
    models = bures.models
    made = {
        "eggbox": models.eggbox(),
        "banana": models.banana(),
        "banana 5": models.banana(b=0.1, dim=5),
        "funnel 3": models.funnel(dim=3),
        "student_t": models.student_t(),
        "student_t 8": models.student_t(dim=8, degrees_of_freedom=3.0),
        "logistic": models.logistic_regression(X, y),
        "census": models.census(),
        "cut at zero": bures.Target(lambda z: jnp.where(z[0] > 0, -z[0] - jnp.sum(z[1:] ** 2), -jnp.inf), 3),
        "unknown beyond one": bures.Target(lambda z: jnp.where(z[0] > 1, jnp.nan, -jnp.sum(z**2) / 2), 2),
        "overflowing": bures.Target(lambda z: -jnp.sum(z**2) / 2 - jnp.exp(jnp.exp(2 * z[0])), 2),
    }
    return made | {f"gaussian {d}": models.gaussian(d, condition_number=100.0) for d in (1, 2, 10, 40, 120)}


def _options(rng: Any, dim: int) -> dict[str, Any]:
    """A random way to fit."""
    import bures

    family = rng.choices([None, bures.FullRank(), bures.MeanField(), bures.LowRank(), bures.Mixture()], [6, 2, 3, 3, 1])
    options: dict[str, Any] = {"family": family[0]}
    if options["family"] is not None and type(options["family"]).__name__ == "Mixture":
        return options if dim <= 10 else {}
    kind = rng.random()
    if kind < 0.25:
        options["num_steps"] = rng.choice([1, 7, 30])
    elif kind < 0.35:
        options["max_evaluations"] = rng.choice([10, 300, 3000, 8000])
    elif kind < 0.42:
        options["max_seconds"] = rng.choice([0.05, 0.5, 5.0])
    elif kind < 0.5 and dim <= 10:
        options |= {"objective": bures.IWELBO(K=5), "estimator": bures.Stein(M=40), "num_steps": 40}
        options["geometry"] = rng.choice([bures.BuresWasserstein(0.1), bures.Euclidean(0.05), bures.Whitened()])
        options["family"] = None
    return options


def _inconsistent(fit: Any) -> str:
    """What of a fit does not hold together; nothing if all does."""
    import numpy as np

    import bures
    from bures.diagnostics import Verdict

    found, q = fit.diagnostics, fit.approximation
    trusted = found.verdict in (Verdict.CLOSE, Verdict.USABLE)
    converged, is_unjudged = fit.outcome is bures.Outcome.CONVERGED, found.verdict is Verdict.UNJUDGED
    steps = [step for step, _ in fit.path]
    checks = {
        "parts are finite": all(np.all(np.isfinite(part)) for part in q.parts().values()),
        "q is valid": bool(q.is_valid()),
        "trust follows the verdict": found.trustworthy == trusted,
        "nESS is a share": 0 <= found.ness <= 1 + 1e-9,
        "the trace is as long as the fit": abs(len(fit.trace.bound) - fit.num_steps) <= 1,
        "evaluations are counted": fit.num_log_density_evaluations > 0,
        "failures are called so": bool(fit.loop.failed)
        == (fit.outcome in (bures.Outcome.NON_FINITE, bures.Outcome.ZERO_DENSITY)),
        "a decided fit is close": found.verdict is not Verdict.CLOSE or found.ness >= 0.5,
        "Jensen": not trusted or found.elbo <= found.log_evidence + 1e-6,
        "what is trusted is finite": not trusted or math.isfinite(found.log_evidence),
        "one that converged took steps": not converged or fit.num_steps > 0,
        "one that converged has a bound": not converged or math.isfinite(fit.trace.bound[-1]),
        "one that converged can be judged": not converged or not math.isnan(found.elbo) or is_unjudged,
        "its path goes by its steps": all(a < b for a, b in itertools.pairwise(steps)) and steps[-1] <= fit.num_steps,
        "it prints": fit.outcome.name in str(fit),
        "a file keeps it": _loaded(fit) == str(fit),
    }
    return ", ".join(name for name, holds in checks.items() if not holds)


def _loaded(fit: Any) -> str:
    """What is printed of it after it was saved and loaded."""
    import bures

    with tempfile.TemporaryDirectory(prefix="bures-torture-") as folder:
        fit.save(Path(folder) / "x.fit")
        return str(bures.load(Path(folder) / "x.fit", target=fit.target))


def _work(seed: int, count: int) -> None:
    import random

    import jax

    import bures

    rng, targets = random.Random(seed), _targets()
    for _ in range(count):
        name = rng.choice(list(targets))
        options, number = _options(rng, targets[name].dim), rng.randrange(2**31)
        line = {"what": f"{name}, seed {number}, {options}", "wrong": "", "verdict": "none", "rss": _resident()}
        try:
            fit = bures.fit(targets[name], key=jax.random.key(number), **options)
            line |= {"outcome": fit.outcome.name, "verdict": fit.diagnostics.verdict.value, "wrong": _inconsistent(fit)}
        except Exception as error:
            # A limit that is too small for a single look is an error that says so.
            if {"max_seconds", "max_evaluations"} & options.keys() and "enough for one look" in str(error):
                line |= {"outcome": "limit too small"}
            else:
                line |= {"outcome": "exception", "wrong": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _resident() -> int:
    """Megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]))
