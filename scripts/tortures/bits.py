"""Same key, same bits: across runs, one core and two, resumed and not, for every family."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_FAMILIES = ("default", "FullRank", "MeanField", "LowRank", "Mixture", "compiled", "sample")


def run(short: bool) -> dict[str, Any]:
    families = ("default", "LowRank") if short else _FAMILIES
    runs = [_alone(families, cores) for cores in ((None, 1) if short else (None, None, 1, 2))]
    differ = [name for name in families if len({found[name] for found in runs}) > 1]
    resumed = [name for name in families if runs[0].get(f"{name} resumed", runs[0][name]) != runs[0][name]]
    return {
        "families": list(families),
        "runs": len(runs),
        "differ": differ,
        "differ when resumed": resumed,
        "holds": {"across runs and cores": not differ, "resumed": not resumed},
    }


def _alone(families: tuple[str, ...], cores: int | None) -> dict[str, str]:
    command = [sys.executable, str(Path(__file__).resolve()), str(cores or 0), *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _digest(tree: Any) -> str:
    import jax
    import numpy as np

    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def _work(families: list[str]) -> dict[str, str]:
    import jax
    import numpy as np

    import bures

    target, key = bures.models.banana(b=0.1, dim=3), jax.random.key(7)
    found = {}
    for name in families:
        if name == "sample":
            tree = bures.sample(target, key=key, num_draws=200)
            found[name] = _digest({k: np.asarray(v) for k, v in tree.posterior.data_vars.items()})
            continue
        options: dict[str, Any] = {}
        if name == "compiled":
            options = {"num_steps": 30}
        elif name != "default":
            options = {"family": getattr(bures, name)()}
        fit = bures.fit(target, key=key, **options)
        found[name] = _digest((fit.approximation, fit.trace, fit.draws().log_p))
        if name != "Mixture":  # whose rounds do not go on
            half = bures.fit(target, key=key, callback=lambda step, q, info: step >= 2, **options)
            assert 0 < half.num_steps < fit.num_steps
            again = half.resume()
            found[f"{name} resumed"] = _digest((again.approximation, again.trace, again.draws().log_p))
    return found


if __name__ == "__main__":
    if int(sys.argv[1]) and hasattr(os, "sched_setaffinity"):  # before JAX makes its threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
    sys.stdout.write(json.dumps(_work(sys.argv[2:])) + "\n")
