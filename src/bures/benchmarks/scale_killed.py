"""A process of several is killed at a random moment: do the others end with an error, and does the fit go on?

A section of `bench scale`. Two processes make one fit, one of them is killed, the other must end by itself within a
minute and say why; both are started again and must reach what an undisturbed fit reaches, bit for bit. `python -m
bures.benchmarks.scale_killed ADDRESS COUNT NUMBER CHECKPOINT RESULT` is one of the processes.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS, DIM, TOLERANCE = 1_001, 5, 3e-7  # an odd number of rows, and a tolerance that takes some hundred steps
EVERY = 0.05  # seconds between checkpoints
LIMIT = 60.0  # seconds in which a survivor has to end
_WAIT = 600.0  # seconds after which a run counts as hanging
# What a survivor says: our own error, or that of JAX's runtime if that was first to notice.
SAYINGS = "Another process of this run has ended", "another task died"


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    seconds: float  # after the kill, or the start
    said: str


def free_address() -> str:
    """An address on this machine with a port that is free."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start_processes(count: int, checkpoint: Path, result: Path) -> list[subprocess.Popen]:
    """The processes of one fit, their output in files beside the result."""
    address, module = free_address(), "bures.benchmarks.scale_killed"
    processes = []
    for number in range(count):
        command = [sys.executable, "-m", module, address, str(count), str(number), str(checkpoint), str(result)]
        with open(f"{result}.{number}.log", "wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    return processes


def wait(process: subprocess.Popen, log: Path, began: float) -> Ended:
    """Until a process ends; one that does not is killed, and has the code −999."""
    try:
        code = process.wait(timeout=_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        code = -999
    return Ended(code, time.perf_counter() - began, log.read_text(errors="replace"))


def undisturbed(folder: Path, count: int = 2) -> dict[str, Any]:
    """The fit that nobody kills."""
    result = folder / f"undisturbed-{count}.json"
    began = time.perf_counter()
    processes = start_processes(count, folder / f"undisturbed-{count}.fit", result)
    ends = [wait(process, Path(f"{result}.{i}.log"), began) for i, process in enumerate(processes)]
    if any(end.code for end in ends):
        raise RuntimeError(f"the undisturbed fit failed: {ends[0].said[-2000:]}")
    return json.loads(result.read_text()) | {"wall": time.perf_counter() - began}


def killed(folder: Path, victim: int, after: float | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """Kill one of two processes so many seconds after the start, or at its first checkpoint; then start both again.

    What there was at the kill stays in `kept.fit`.
    """
    checkpoint, result = folder / "killed.fit", folder / "killed.json"
    for path in (checkpoint, result):
        path.unlink(missing_ok=True)
    processes = start_processes(2, checkpoint, result)
    began = time.perf_counter()
    while time.perf_counter() - began < _WAIT and not (checkpoint.exists() if after is None else False):
        if after is not None and time.perf_counter() - began >= after:
            break
        time.sleep(0.005)
    finished = result.exists()
    os.kill(processes[victim].pid, signal.SIGKILL)
    after, began = time.perf_counter() - began, time.perf_counter()
    survivor = 1 - victim
    end = wait(processes[survivor], Path(f"{result}.{survivor}.log"), began)
    processes[victim].wait()
    had_checkpoint = checkpoint.exists()
    if had_checkpoint:
        shutil.copy(checkpoint, folder / "kept.fit")
    again = None
    if not result.exists():
        restarted = start_processes(2, checkpoint, result)
        ends = [wait(process, Path(f"{result}.{i}.log"), time.perf_counter()) for i, process in enumerate(restarted)]
        again = max(abs(each.code) for each in ends)
    found = json.loads(result.read_text()) if result.exists() else None
    return {
        "victim": victim,
        "after": after,
        "finished": finished,  # the fit, before the kill
        "code": end.code,
        "seconds": end.seconds,
        "clear": any(saying in end.said for saying in SAYINGS),
        "ours": SAYINGS[0] in end.said,
        "had_checkpoint": had_checkpoint,
        "resumed_code": again,
        "same": found is not None and found["mean"] == wanted["mean"] and found["chol"] == wanted["chol"],
        "resumed_steps": None if found is None else found["resumed_from"],
        "tail": "" if end.code != -999 else end.said[-1000:],
    }


@functools.cache
def _undisturbed_once() -> dict[str, Any]:
    """The fit that nobody kills, once for all kills of a run."""
    with tempfile.TemporaryDirectory() as name:
        return undisturbed(Path(name))


def measure(seed: int) -> dict[str, Any]:
    """One kill at a random moment of the undisturbed fit's time; the victim is either process in turn."""
    rng, wanted = np.random.default_rng(seed), _undisturbed_once()
    while True:
        with tempfile.TemporaryDirectory() as name:
            seen = killed(Path(name), seed % 2, float(rng.uniform(0.1, 0.95) * wanted["wall"]), wanted)
        if not seen["finished"]:  # else the moment was too late
            return seen


def main(address: str, count: int, number: int, checkpoint: Path, result: Path) -> None:
    """One process: begin the fit, or go on from its checkpoint; process 0 writes the result."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import bures

    if count > 1:
        bures.distributed.start(address, count, number)
    target = make_target()
    begun = bures.load(checkpoint, target=target) if checkpoint.exists() else None
    if begun is None:
        fit = bures.fit(target, key=jax.random.key(0), tolerance=TOLERANCE, checkpoint=checkpoint, every=EVERY)
    else:
        fit = begun.resume(checkpoint=checkpoint, every=EVERY)
    q = fit.approximation
    found = {
        "mean": np.asarray(q.mean).tolist(),
        "chol": np.asarray(q.chol).tolist(),
        "outcome": fit.outcome.name,
        "steps": fit.num_steps,
        "khat": fit.diagnostics.khat,
        "resumed_from": 0 if begun is None else begun.num_steps,
    }
    if bures.distributed.is_first():
        result.write_text(json.dumps(found))


def make_target(place: Callable[[Any], Any] = lambda data: data) -> Any:
    """A logistic regression from rows that every process can make, placed where a function puts them."""
    import jax.numpy as jnp

    import bures

    rng = np.random.default_rng(0)
    X = np.concatenate([np.ones((ROWS, 1)), rng.standard_normal((ROWS, DIM - 1))], axis=1)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-X @ np.linspace(-1, 1, DIM)))).astype(float)

    def log_prior(z: Any) -> Any:
        return -jnp.sum(z**2) / 20

    def log_likelihood(z: Any, row: Any) -> Any:
        linear = row["X"] @ z
        return row["y"] * linear - jnp.maximum(linear, 0) - jnp.log1p(jnp.exp(-jnp.abs(linear)))

    return bures.Target.from_data(log_prior, log_likelihood, place({"X": X, "y": y}), DIM, subsample=False)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], int(given[1]), int(given[2]), Path(given[3]), Path(given[4]))
