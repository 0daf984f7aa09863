"""Killed at any moment (SIGKILL) while it saves, checkpoints, or runs cells; interrupted (SIGINT) while it runs cells.

What is on the disk is whole and what some run has written, and the next start removes what was left behind.
"""

import json
import os
import random
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
fits = [bures.fit(target, key=jax.random.key(i), num_steps=3) for i in range(2)]
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


def run(short: bool) -> dict[str, Any]:
    rng = random.Random(0)
    kills, interrupts = (4, 1) if short else (200, 50)
    counts = {"kills": 0, "interrupts": 0, "lost or altered": 0, "left behind": 0, "cells cut short": 0}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _kill_writers(folder / "save", _SAVE, kills // 2, rng, counts)
        _kill_writers(folder / "checkpoint", _CHECKPOINT, kills // 4, rng, counts)
        _stop_cells(folder / "cells", signal.SIGKILL, kills - kills // 2 - kills // 4, rng, counts)
        _stop_cells(folder / "interrupts", signal.SIGINT, interrupts, rng, counts)
    return {
        "counts": counts,
        "holds": {
            "200 kills, 50 interrupts": short or (counts["kills"] >= 200 and counts["interrupts"] >= 50),
            "0 lost or altered": counts["lost or altered"] == 0,
            "0 left behind": counts["left behind"] == 0,
            "0 cells cut short": counts["cells cut short"] == 0,
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
    from bures.files import remove_leftovers

    folder.mkdir()
    path, target = folder / "a.fit", bures.models.eggbox()
    whole = {}
    for seed in (0, 1):
        for options in ({"num_steps": 3}, {}):
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
    remove_leftovers(folder)  # what the first write of the next start does
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
