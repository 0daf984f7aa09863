"""One fit to rows on disk in a process of its own: how much anonymous memory it takes, and what it reads.

Run by `bench scale` as `python -m bures.benchmarks.scale_alone SOURCE MODEL N COLUMNS GROUPS FOLDER`; prints JSON. With
a fresh process nothing that was freed before hides what is taken now.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def anonymous_bytes() -> int:
    """Resident memory of this process that is not a file's: Linux alone tells."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def watching_memory() -> Iterator[list[int]]:
    """A list whose first element is the most anonymous memory so far within the block."""
    most, done = [anonymous_bytes()], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous_bytes())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
        most[0] = max(most[0], anonymous_bytes())


def main(source: str, model: str, n: int, columns: int, groups: int, folder: Path) -> dict:
    """A default fit, with the memory it took over what the process had with JAX at hand."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np

    import bures
    from bures.benchmarks import scale_models as models

    if source == "parquet":
        data = models.parquet(folder, model, n, columns)
    else:
        data = models.memory_map(folder, model, n, columns, groups)
    jnp.ones(3).sum().block_until_ready()
    target = models.MODELS[model].target(data, columns, groups, subsample=True)
    before = anonymous_bytes()
    with watching_memory() as most:
        target.log_density.stream.value(np.zeros((1, target.dim)))
    passed = most[0] - before
    target = models.MODELS[model].target(data, columns, groups, subsample=True)
    began = time.perf_counter()
    with watching_memory() as most:
        fit = bures.fit(target, key=jax.random.key(0), progress=False)
    seconds = time.perf_counter() - began
    q = fit.approximation
    return {
        "pass_gb": passed / 1e9,
        "fit_gb": (most[0] - before) / 1e9,
        "seconds": seconds,
        "phases": fit.seconds,
        "reads": fit.record.rows.total_reads,
        "row_evaluations": target.log_density.stream.rows_evaluated / n,
        "anchors": fit.record.rows.anchors,
        "batch": fit.record.rows.batch,
        "objective": type(fit.method.objective).__name__,
        "outcome": fit.outcome.name,
        "verdict": fit.diagnostics.verdict.name,
        "ness": fit.diagnostics.ness,
        "khat": fit.diagnostics.khat,
        "elbo": fit.diagnostics.elbo,
        "elbo_mcse": fit.diagnostics.elbo_mcse,
        "parts": {name: np.asarray(part).tolist() for name, part in q.parts().items()},
    }


if __name__ == "__main__":
    source, model, n, columns, groups, folder = sys.argv[1:]
    print(json.dumps(main(source, model, int(n), int(columns), int(groups), Path(folder))))  # noqa: T201
