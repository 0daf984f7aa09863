"""Targets come and go with their data: resident memory does not grow, and data are copied once at the most."""

import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

_MEGABYTE = 2**20


def run(short: bool) -> dict[str, Any]:
    """Each part in a process of its own."""
    many = _alone("many", 14 if short else 300, 10)
    large = _alone("large", 64 if short else 2048)
    return {
        "targets": many["targets"],
        "growth after the first ten, MB": many["growth"],
        "data, MB": large["data"],
        "peak beyond the data of the user, in copies of them": large["copies"],
        "holds": {
            "300 targets of 10 MB: less than 100 MB": many["growth"] < 100,
            "one copy at the most": large["beyond"] <= large["data"] + 400,
        },
    }


def _alone(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE


def _many(targets: int, megabytes: int) -> dict[str, Any]:
    """Closures over data, fitted briefly by host steps and in the compiled loop, and forgotten."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import bures

    key, first = jax.random.key(0), 0.0
    for i in range(targets):
        X = np.random.default_rng(i).normal(size=(megabytes * _MEGABYTE // 16, 4)).astype(np.float32)
        data = jnp.asarray(X) if i % 2 else X

        def density(z: Any, data: Any = data) -> Any:
            return -0.5 * jnp.sum(z**2) - 0.5 * jnp.mean((data @ z - 1) ** 2)

        target = bures.Target(density if i % 3 else lambda z, f=density: f(z), 4)
        options = {"num_steps": 2, "estimator": bures.Stein(M=4)} if i % 5 == 0 else {}
        bures.fit(target, key=key, max_evaluations=60, **options)
        del target, density, X, data
        gc.collect()
        if i == 9:
            first = _resident()
    return {"targets": targets, "growth": round(_resident() - first, 1)}


def _large(megabytes: int) -> dict[str, Any]:
    """One target of much data in the closure of its log density."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import bures

    dim = 1000
    X = np.ones((megabytes * _MEGABYTE // (4 * dim), dim), np.float32)
    before = _resident()
    target = bures.Target(lambda z: -0.5 * jnp.sum(z**2) - 0.5 * jnp.mean((X @ z - 1) ** 2), dim)
    bures.fit(target, key=jax.random.key(0), max_evaluations=30)
    beyond = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    return {"data": megabytes, "beyond": round(beyond), "copies": round(beyond / megabytes, 2)}


if __name__ == "__main__":
    done = {"many": _many, "large": _large}[sys.argv[1]](*map(int, sys.argv[2:]))
    sys.stdout.write(json.dumps(done) + "\n")
