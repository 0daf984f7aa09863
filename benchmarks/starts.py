"""How far from the target may the default start? Iterations on fresh data: `python -m benchmarks.starts`.

The paper's regression (d = 3, n = 1000) drawn four times anew, with seeds other than the speed benchmark's, from a
start as wide as the paper's, one far too wide and one too narrow. `--doubt SHARE` sets the share of a step of the mean
that `Whitened` keeps as uncertainty, to compare.
"""

import argparse

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import bures  # noqa: E402
from bures import geometry  # noqa: E402
from bures.fitting import default_estimator  # noqa: E402
from experiments import convergence  # noqa: E402

DATA_SEEDS, SEEDS = (1, 2, 3, 4), range(5)
VARIANCES = (5.0, 100.0, 0.05)  # of the start
NUM_STEPS = 200
DTYPE = jnp.dtype("float32")


def iterations(data_seed: int, K: int, variance: float) -> list[float]:
    """Iterations of each seed to the paper's threshold; infinite if it is not reached."""
    target = convergence.regression(1000, data_seed, DTYPE)
    best = bures.fit(target, key=jax.random.key(0), objective=bures.ELBO(), progress=False).approximation
    noise = jax.random.normal(jax.random.key(2**31 - 1), (500, 1, target.dim), DTYPE)
    points = noise[:, 0].astype(best.mean.dtype)
    limit = float(jnp.mean(target.value(best.push(points)) - best.log_prob_of_noise(points))) - convergence.BELOW
    objective = bures.IWELBO(K)
    method = dict(objective=objective, estimator=default_estimator(target, objective), geometry=bures.Whitened())
    start = bures.Gaussian(jnp.zeros(target.dim, DTYPE), np.sqrt(variance) * jnp.eye(target.dim, dtype=DTYPE))
    options = dict(measure=bures.ELBO(), noise=noise)
    runs = [convergence.track(jax.random.key(s), target, start, method, NUM_STEPS, **options) for s in SEEDS]
    found = [convergence.reached(np.asarray(run.progress), limit) for run in runs]
    return [np.inf if count is None else count for count in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doubt", type=float, default=geometry._DOUBT)
    geometry._DOUBT = parser.parse_args().doubt
    print(f"{'K':>4} {'start':>12} {'median':>7} {'worst':>7}   iterations of {len(DATA_SEEDS) * len(SEEDS)} runs")  # noqa: T201
    for K in (10, 50):
        for variance in VARIANCES:
            found = [count for seed in DATA_SEEDS for count in iterations(seed, K, variance)]
            print(f"{K:4} {f'N(0, {variance:g} I)':>12} {np.median(found):7.1f} {np.max(found):7.0f}")  # noqa: T201


if __name__ == "__main__":
    main()
