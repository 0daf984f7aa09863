"""Same key, same bits: across runs, one core and two, resumed and not, for every family; several processes to 1e-8."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_FAMILIES = ("default", "FullRank", "MeanField", "LowRank", "Mixture", "compiled", "sample")
_SHARED = ("FullRank", "MeanField", "LowRank", "Mixture")
_ROWS, _DIM = 1001, 3
_APART = 1e-8


def run(short: bool) -> dict[str, Any]:
    families = ("default", "Mixture") if short else _FAMILIES
    runs = [_alone(families, cores) for cores in ((None, 1) if short else (None, None, 1, 2))]
    differ = [name for name in families if len({found[name] for found in runs}) > 1]
    resumed = [name for name in families if name != "sample"]
    changed = [name for name in resumed if runs[0][f"{name} resumed"] != runs[0][name]]
    apart = {} if short else _apart(_together(1), _together(2))
    return {
        "families": list(families),
        "runs": len(runs),
        "differ": differ,
        "resumed from a file": resumed,
        "differ when resumed": changed,
        "two processes, largest difference from one": apart,
        "holds": {
            "across runs and cores": not differ,
            "resumed": not changed,
            "two processes to 1e-8": all(each <= _APART for each in apart.values()),
        },
    }


def _alone(families: tuple[str, ...], cores: int | None) -> dict[str, str]:
    command = [sys.executable, str(Path(__file__).resolve()), "alone", str(cores or 0), *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _digest(tree: Any) -> str:
    import jax
    import numpy as np

    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def _work(families: list[str], folder: Path) -> dict[str, str]:
    """The digest of each fit, and of the same fit interrupted, saved, loaded and resumed."""
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
        half = bures.fit(target, key=key, callback=lambda step, q, info: step >= 2, **options)
        assert 0 < half.num_steps < fit.num_steps
        half.save(folder / "half.fit")
        again = bures.load(folder / "half.fit", target=target).resume()
        found[f"{name} resumed"] = _digest((again.approximation, again.trace, again.draws().log_p))
    return found


# ---- Several processes ----------------------------------------------------------------------------------------------


def _together(count: int) -> dict[str, Any]:
    """The fits that so many processes make of rows that they share, as the first says."""
    from bures.benchmarks.scale_killed import free_address

    address = free_address()
    program = [sys.executable, str(Path(__file__).resolve()), "together", address, str(count)]
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    started = [
        subprocess.Popen([*program, str(i)], env=environment, stdout=subprocess.PIPE, text=True) for i in range(count)
    ]
    ends = [process.communicate(timeout=1800)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"processes ended with {[process.returncode for process in started]}")
    return json.loads(ends[0].splitlines()[-1])


def _share(address: str, count: int, number: int) -> None:
    import jax
    import numpy as np

    import bures

    if count > 1:
        bures.distributed.start(address, count, number)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_ROWS, _DIM))
    y = (x @ np.array([1.0, -2.0, 0.5]) + rng.logistic(size=_ROWS) > 0).astype(float)

    def log_likelihood(z: Any, row: Any) -> Any:
        return jax.nn.log_sigmoid((2 * row["y"] - 1) * (row["x"] @ z))

    target = bures.Target.from_data(lambda z: -z @ z / 20, log_likelihood, {"x": x, "y": y}, _DIM)
    found = {}
    for name in _SHARED:
        fit = bures.fit(target, key=jax.random.key(0), family=getattr(bures, name)())
        parts = {part: np.asarray(array).tolist() for part, array in fit.approximation.parts().items()}
        found[name] = parts | {"steps": fit.num_steps, "elbo": fit.diagnostics.elbo, "khat": fit.diagnostics.khat}
    if bures.distributed.is_first():
        sys.stdout.write(f"\n{json.dumps(found)}\n")  # after what gloo says


def _apart(one: dict[str, Any], several: dict[str, Any]) -> dict[str, float]:
    """For each family the largest difference of any number, relative where that is larger than one."""
    import numpy as np

    found = {}
    for name, parts in one.items():
        pairs = [(np.asarray(part), np.asarray(several[name][key])) for key, part in parts.items()]
        if any(a.shape != b.shape for a, b in pairs):
            found[name] = float("inf")
        else:
            found[name] = max(float(np.max(np.abs(a - b) / (1 + np.abs(a)), initial=0.0)) for a, b in pairs)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "together":
        _share(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        if int(sys.argv[2]) and hasattr(os, "sched_setaffinity"):  # before JAX makes its threads
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
        with tempfile.TemporaryDirectory() as place:
            sys.stdout.write(json.dumps(_work(sys.argv[3:], Path(place))) + "\n")
