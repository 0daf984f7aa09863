"""Killed at any moment (SIGKILL) while it saves, checkpoints, runs cells, or is `bures reproduce` or `bures bench`
itself; interrupted (SIGINT) while it runs cells or is one of the two.

What is on the disk is whole and what some run has written, and the next start removes what was left behind.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SAVE = """
import sys, itertools, jax, bures
target, path = bures.models.eggbox(), sys.argv[1]
fits = [bures.fit(target, key=jax.random.key(i), max_evaluations=400) for i in range(2)]
for fit in fits: fit.save(path)
print("ready", flush=True)
for i in itertools.count():
    fits[i % 2].save(path)
"""
_CHECKPOINT = """
import sys, itertools, jax, bures
target, path = bures.models.eggbox(), sys.argv[1]
bures.fit(target, key=jax.random.key(0), checkpoint=path, every=0)
print("ready", flush=True)
for i in itertools.count():
    bures.fit(target, key=jax.random.key(0), checkpoint=path, every=0)
"""
_CELLS = """
import sys, time, json
from pathlib import Path
from types import SimpleNamespace
import jax, bures
from bures.experiments.protocol import run_cells
from bures.experiments.store import Store
target = bures.models.eggbox()
def run(parameters):
    fit = bures.fit(target, key=jax.random.key(parameters["seed"]), num_steps=200)
    return {"steps": fit.num_steps, "mean": [round(float(x), 4) for x in fit.approximation.mean]}
cells = {f"cell {i}": {"seed": i} for i in range(int(sys.argv[2]))}
module = SimpleNamespace(cells=lambda settings: cells, run=run, __name__="cells", __file__=None)
run({"seed": 0})
print("ready", flush=True)
found = run_cells(module, Store(Path(sys.argv[1]), "cells", "full"), None)
print(json.dumps(found, sort_keys=True), flush=True)
"""


# Cells that take no clock into their results but for fields of seconds.
_GAUSSIANS = tuple(
    f"Gaussian, d = {d}, condition {c}, scale 1, {a} sd away" for d, c, a in ((1, 1, 0), (2, 100, 3), (3, 10, 10))
)
_COMMANDS = {
    "reproduce": ("reproduce", "eggbox", "--quick", "--seeds", "1"),
    "bench": ("bench", "honesty", "--seeds", "1", *(word for name in _GAUSSIANS for word in ("--only", name))),
}
_COUNTED = (
    *("kills", "interrupts"),
    *("lost or altered", "left behind", "cells cut short", "hangs", "status 0 though stopped"),
)
_HANG = 120  # seconds after a signal
# Kills and interrupts of each, in the long lane and in the short one.
_LONG = {"save": (70, 0), "checkpoint": (40, 0), "cells": (40, 20), "reproduce": (30, 15), "bench": (20, 15)}
_SHORT = {"save": (1, 0), "checkpoint": (1, 0), "cells": (1, 1), "bench": (1, 0)}


def run(short: bool) -> dict[str, Any]:
    rng, times = random.Random(0), _SHORT if short else _LONG
    every = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (kills, interrupts) in times.items():
            counts = every[name] = dict.fromkeys(_COUNTED, 0)
            folder = Path(place) / name
            if name in ("save", "checkpoint"):
                _kill_writers(folder, _SAVE if name == "save" else _CHECKPOINT, kills, rng, counts)
                continue
            for sign, number in ((signal.SIGKILL, kills), (signal.SIGINT, interrupts)):
                if number and name == "cells":
                    _stop_cells(folder / sign.name, sign, number, rng, counts)
                elif number:
                    _stop_command(folder / sign.name, _COMMANDS[name], sign, number, rng, counts)
            sys.stderr.write(json.dumps({name: counts}) + "\n")
    total = {kind: sum(counts[kind] for counts in every.values()) for kind in _COUNTED}
    return {
        "counts": total,
        "by what was stopped": every,
        "holds": {
            "200 kills, 50 interrupts": short or (total["kills"] >= 200 and total["interrupts"] >= 50),
            **{f"0 {kind}": total[kind] == 0 for kind in _COUNTED[2:]},
        },
    }


def _start(code: str, *arguments: str) -> subprocess.Popen:
    """A process that has said that it is ready."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _end(process: subprocess.Popen) -> None:
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _kill_writers(folder: Path, code: str, kills: int, rng: random.Random, counts: dict[str, int]) -> None:
    """A writer is killed again and again; what it has written can be read each time, and is what it was to be."""
    import jax

    import bures

    folder.mkdir()
    path, target = folder / "a.fit", bures.models.eggbox()
    whole = {}
    for seed in (0, 1):
        for options in ({"max_evaluations": 400}, {}):
            fit = bures.fit(target, key=jax.random.key(seed), **options)
            whole[str(fit.approximation.mean)] = True
    whole_fit = bures.fit(target, key=jax.random.key(0))
    for _ in range(kills):
        process = _start(code, str(path))
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        _end(process)
        counts["kills"] += 1
        try:
            found = bures.load(path, target=target)
            if "checkpoint" in code:
                found = found.resume()
                same = str(found.approximation.mean) == str(whole_fit.approximation.mean)
            else:
                same = str(found.approximation.mean) in whole
            counts["lost or altered"] += not same
        except Exception:
            counts["lost or altered"] += 1
    whole_fit.save(path)  # the first write of the next start
    counts["left behind"] += len([name for name in os.listdir(folder) if name != "a.fit"])


def _stop_cells(folder: Path, sign: int, times: int, rng: random.Random, counts: dict[str, int]) -> None:
    """Cells are stopped at random and gone on with; in the end they are those of a run that was let alone."""
    number = str(max(3, times))
    alone = subprocess.run(
        [sys.executable, "-c", _CELLS, str(folder / "alone"), number], capture_output=True, text=True, check=True
    )
    wanted = json.loads(alone.stdout.splitlines()[-1])
    for _ in range(times):
        process = _start(_CELLS, str(folder / "stopped"), number)
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(sign)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
        _end(process)
        counts["kills" if sign == signal.SIGKILL else "interrupts"] += 1
    done = subprocess.run(
        [sys.executable, "-c", _CELLS, str(folder / "stopped"), number], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    name = "lost or altered" if sign == signal.SIGKILL else "cells cut short"
    counts[name] += sum(found[cell]["result"] != wanted[cell]["result"] for cell in wanted)
    hidden = list((folder / "stopped").rglob(".*.tmp"))
    counts["left behind"] += len(hidden)


def _stop_command(
    folder: Path, command: tuple[str, ...], sign: signal.Signals, times: int, rng: random.Random, counts: dict[str, int]
) -> None:
    """A command is stopped at random moments of its own duration and begun again, until what it shows is complete."""
    began = time.monotonic()
    wanted = _finished(command, folder / "alone")
    duration, stopped, out = time.monotonic() - began, 0, folder / "stopped"
    altered = "lost or altered" if sign == signal.SIGKILL else "cells cut short"
    while stopped < times:
        process = _begin(command, out)
        try:
            process.wait(timeout=rng.uniform(0, duration))
        except subprocess.TimeoutExpired:
            process.send_signal(sign)
            counts["hangs"] += not _ends(process)
            stopped += 1
            counts["kills" if sign == signal.SIGKILL else "interrupts"] += 1
        if process.returncode == 0:  # it was done before: then it is complete, and begun anew
            found = _shown(out)
            counts["status 0 though stopped"] += set(found) != set(wanted)
            counts[altered] += _differing(found, wanted)
            shutil.rmtree(out)
    counts[altered] += _differing(_finished(command, out), wanted)
    counts["left behind"] += len(list(out.rglob(".*")))


def _begin(command: tuple[str, ...], out: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "bures", *command, "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _ends(process: subprocess.Popen) -> bool:
    """Whether a stopped process has ended; one that has not is killed. Time in which somebody holds it is left out."""
    from tortures.soak import _is_stopped

    silent = 0
    while silent < _HANG:
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            silent += not _is_stopped(process.pid)
        else:
            return True
    process.kill()
    process.wait()
    return False


def _finished(command: tuple[str, ...], out: Path) -> dict[str, Any]:
    """What the command shows when it is let alone."""
    if (status := _begin(command, out).wait()) != 0:
        raise RuntimeError(f"bures {' '.join(command)} ended with status {status}")
    return _shown(out)


def _shown(out: Path) -> dict[str, Any]:
    """Results without clocks, tables and figures as bytes; of a benchmark, whose tables have seconds, no tables."""
    from bures.experiments.store import TABLE, Store

    found: dict[str, Any] = {}
    for table in out.rglob(TABLE):
        store = Store.at(table.parent)
        found |= {cell: _without_clocks(entry["result"]) for cell, entry in store._lines.cells.items()}
        tables = () if table.parts[-3] == "honesty" else table.parent.glob("tables.*")
        found |= {path.name: path.read_bytes() for path in (*tables, *table.parent.glob("figures.*"))}
    return found


def _without_clocks(result: Any) -> Any:
    if isinstance(result, dict):
        return {name: _without_clocks(part) for name, part in result.items() if not name.endswith("seconds")}
    return [_without_clocks(part) for part in result] if isinstance(result, list) else result


def _differing(found: dict[str, Any], wanted: dict[str, Any]) -> int:
    return sum(found.get(name) != wanted.get(name) for name in found.keys() | wanted.keys())
