"""Fits of a Gaussian of low rank plus diagonal in a process of its own: seconds, memory, arrays, and the exact KL.

python -m bures.benchmarks.families_alone JSON prints the figures as JSON. The compiled programs are dumped by XLA and
read for their largest array; NumPy's, where asked for, are sampled while a fit runs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_SHAPE = re.compile(r"\b[a-z]+\d+\[(\d+(?:,\d+)*)\]")
_ELEMENT = 8  # bytes


def alone(**options: Any) -> dict[str, Any]:
    """The figures of one size, taken in a fresh process."""
    import bures

    package = Path(bures.__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(package), environment.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
        command = [sys.executable, "-W", "ignore", "-m", "bures.benchmarks.families_alone", json.dumps(options)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"families_alone {options} failed in its own process: {done.stderr[-500:]}")
        return json.loads(done.stdout.splitlines()[-1]) | {"largest_compiled": largest_compiled(Path(folder))}


def largest_compiled(folder: Path) -> dict[str, Any]:
    """The largest array of all compiled programs: its number of elements, its shape and its program."""
    largest: dict[str, Any] = {"elements": 0, "shape": "", "program": ""}
    for path in sorted(folder.glob("*after_optimizations.txt")):
        for shape in set(_SHAPE.findall(path.read_text())):
            elements = int(np.prod([int(size) for size in shape.split(",")]))
            if elements > largest["elements"]:
                program = path.name.split(".")[1] if path.name.count(".") > 1 else path.name
                largest = {"elements": elements, "shape": shape, "program": program}
    return largest


@contextmanager
def largest_of_numpy(every: float = 0.02) -> Iterator[dict[str, int]]:
    """The largest NumPy array that is alive at some moment, looked for again and again by another thread."""
    found, done = {"elements": 0}, threading.Event()
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)

    def watch() -> None:
        while not done.wait(every):
            arrays = tracemalloc.take_snapshot().filter_traces([domain]).traces
            found["elements"] = max([found["elements"], *(trace.size // _ELEMENT for trace in arrays)])

    tracemalloc.start()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        tracemalloc.stop()


def factors(q: Any) -> Any:
    """A Gaussian as a diagonal plus weighted columns, whatever its family; None of one that this does not know.

    What it makes of the parts of q has to have the standard deviations and the entropy that q says it has.
    """
    from bures.benchmarks.families_models import Factors

    mean = np.asarray(q.mean, np.float64)
    if hasattr(q, "chol"):
        found = Factors(mean, np.zeros(mean.size), np.asarray(q.chol, np.float64), np.ones(mean.size))
    elif all(hasattr(q, name) for name in ("scale", "basis", "variances")):  # D (I + V (Λ − I) Vᵀ) D
        scale, basis, variances = (np.asarray(getattr(q, name), np.float64) for name in ("scale", "basis", "variances"))
        found = Factors(mean, scale**2, scale[:, None] * basis, variances - 1)
    else:
        return None
    agrees = np.allclose(found.marginal_variances(), np.asarray(q.standard_deviations) ** 2, rtol=1e-6)
    return found if agrees and np.isclose(found.entropy(), float(q.entropy()), rtol=1e-9, atol=1e-6) else None


def draws_of_a_step(fit: Any) -> int:
    """The most that a step takes."""
    methods = getattr(fit, "methods", None)
    if methods is not None:
        return max(methods.at(step).cost().log_densities for step in (0, max(fit.num_steps - 1, 0)))
    return -(-fit.evaluations.steps // max(fit.num_steps, 1))


def main(dim: int, kind: str, seeds: int, num_samples: int, family: str | None, sampled: bool) -> dict[str, Any]:
    """The first fit compiles; then one a seed, warm; then, where asked for, one more with its arrays watched."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import bures
    from bures.benchmarks.families_cells import COMPILES, facts, judge
    from bures.benchmarks.families_models import gaussian
    from bures.benchmarks.speed_alone import _peak

    target = gaussian(dim, kind)
    options = {} if family is None else {"family": getattr(bures, family)()}

    def run(seed: int) -> tuple[Any, float]:
        began = time.perf_counter()
        fit = bures.fit(target, key=jax.random.key(seed), progress=False, **options)
        fit.diagnostics  # noqa: B018 - the judgement is part of a fit
        return fit, time.perf_counter() - began

    before = _peak()
    _, cold = run(COMPILES)
    made = [run(seed) for seed in range(seeds)]
    memory = {"before": before, "peak": _peak()}  # the judge's own draws do not count
    fits = []
    for seed, (fit, seconds) in enumerate(made):
        q = fit.approximation
        known = factors(q)
        judged = judge(q, target, seed, num_samples, block=min(250, max(1, 2_500_000 // dim)))
        fits.append(
            {
                **facts(fit),
                "seconds": seconds,
                "step_seconds": fit.seconds["steps"] / max(fit.num_steps, 1),
                "draws": draws_of_a_step(fit),
                "kl": None if known is None else target.log_density.kl_from(known),
                "kl_by_draws": None if judged["elbo"] is None else -judged["elbo"],  # the target is normalised
                "kl_error": judged["elbo_error"],
            }
        )
    largest = None
    if sampled:
        with largest_of_numpy() as found:
            run(0)
        largest = found["elements"]
    return {"fits": fits, "cold_seconds": cold, "memory": memory, "largest_of_numpy": largest}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
