"""Measurements that need a process of their own: first waits, which a warm process hides, and peak memory.

python -m bures.benchmarks.speed_alone NAME JSON prints the figures as JSON. Libraries are imported inside the
functions, because how long that takes is part of what is measured.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def alone(name: str, **options: Any) -> dict[str, Any]:
    """The figures of one measurement, taken in a fresh process."""
    import bures

    package = Path(bures.__file__).parent.parent
    # An empty compilation cache: what an earlier process compiled would make this one's wait look short.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(package), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", "bures.benchmarks.speed_alone", name, json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} with {options} failed in its own process: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def imports() -> dict[str, float]:
    """Seconds to import jax, those that bures takes beyond it, and those that it puts off to its first use."""
    began = time.perf_counter()
    import jax  # noqa: F401

    middle = time.perf_counter()
    import bures

    imported = time.perf_counter()
    bures.fit  # noqa: B018
    return {"jax": middle - began, "bures": imported - middle, "first use": time.perf_counter() - imported}


def first_bures() -> dict[str, float]:
    """The eggbox with nothing set, from the first import to the numbers."""
    began = time.perf_counter()
    import jax

    import bures

    imported = time.perf_counter()
    fit = bures.fit(bures.models.eggbox(), key=jax.random.key(0), progress=False)
    np.asarray(fit.approximation.covariance)
    return {"import": imported - began, "result": time.perf_counter() - imported}


def first_numpyro(num_steps: int, step_size: float) -> dict[str, float]:
    """The same by NumPyro's AutoMultivariateNormal, the eggbox written with NumPyro's own distributions."""
    began = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    imported = time.perf_counter()
    means = jnp.array([[3.0, 3.0], [5.0, 5.0], [7.0, 2.0], [9.0, 6.0]])
    covariances = jnp.array(
        [[[1.0, -0.8], [-0.8, 1.2]], [[0.6, 0.1], [0.1, 0.3]], [[0.5, -0.2], [-0.2, 0.3]], [[0.5, 0.0], [0.0, 0.5]]]
    )

    def model():
        components = distributions.MultivariateNormal(means, covariances)
        numpyro.sample("z", distributions.MixtureSameFamily(distributions.Categorical(jnp.ones(4) / 4), components))

    guide = AutoMultivariateNormal(model)
    inference = SVI(model, guide, numpyro.optim.Adam(step_size), Trace_ELBO())
    found = inference.run(jax.random.key(0), num_steps, progress_bar=False)
    np.asarray(guide.get_posterior(found.params).covariance_matrix)
    return {"import": imported - began, "result": time.perf_counter() - imported}


def growth(kind: str, N: int, dim: int, M: int | None, K: int, num_steps: int) -> dict[str, float]:
    """Seconds of a step of the default method, and what the steps added to the peak of memory.

    `kind` is "regression", N rows of logistic regression, or "gradients", a target that is not Gaussian and has
    nothing faster than its gradient; there `N` does not count.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    import bures
    from bures.fitting import default_estimator

    if kind == "regression":
        rng = np.random.default_rng(0)
        X = rng.standard_normal((N, dim))
        target = bures.models.logistic_regression(X, rng.random(N) < 1 / (1 + np.exp(-X[:, 0])))
    else:
        target = bures.Target(lambda z: -jnp.sum(jnp.logaddexp(z, -z)), dim)
    objective = bures.IWELBO(K)
    estimator = default_estimator(target, objective) if M is None else bures.Price(M=M, draws="antithetic")
    method = dict(objective=objective, estimator=estimator, geometry=bures.Whitened())
    # Narrow, so that every size starts about as near to its optimum.
    start = bures.Gaussian(jnp.zeros(dim), jnp.eye(dim) / np.sqrt(N))
    state, before = bures.init(target, init=start, **method), _peak()
    seconds = []
    for t in range(num_steps + 1):
        began = time.perf_counter()
        state, info = bures.step(jax.random.fold_in(jax.random.key(0), t), state, target, **method)
        jax.block_until_ready(info.bound)
        seconds.append(time.perf_counter() - began)
    points = estimator.M * K
    return {"seconds": float(np.median(seconds[1:])), "bytes": _peak() - before, "total": _peak(), "points": points}


def _peak() -> int:
    """Bytes this process has held at the most."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux the other way to ask starts at what the process had that started this one
        return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


MEASUREMENTS = {
    "imports": imports,
    "first_bures": first_bures,
    "first_numpyro": first_numpyro,
    "growth": growth,
}

if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]](**json.loads(sys.argv[2]))))  # noqa: T201
