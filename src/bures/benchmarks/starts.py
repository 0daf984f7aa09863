"""How far from the target may the default start? Iterations from bad starts: `python -m bures.benchmarks.starts`.

The paper's regression (d = 3, n = 1000) drawn four times anew, with seeds other than the speed benchmark's, from a
start as wide as the paper's, one far too wide and one too narrow; and Gaussians from starts many standard deviations
away. `--doubt SHARE` sets the share of a step of the mean that `Whitened` keeps as uncertainty, `--far RADII` from how
far on it narrows less (infinity: never), to compare.
"""

import argparse

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import bures  # noqa: E402
from bures import geometry  # noqa: E402
from bures.experiments import convergence  # noqa: E402
from bures.fitting import default_estimator  # noqa: E402

DATA_SEEDS, SEEDS = (1, 2, 3, 4), range(5)
VARIANCES = (5.0, 100.0, 0.05)  # of the start
NUM_STEPS = 200
FAR = (  # dimension, condition number, and the mean and deviation of the start in each coordinate
    (3, 1e4, 100.0, 1.0),
    (10, 1.0, 100.0, 1e-3),
    (10, 1e4, 100.0, 1e-3),
    (10, 1e4, 100.0, 1.0),
    (10, 1e6, 30.0, 1.0),
    (50, 1e4, 30.0, 0.1),
)
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


def steps(dim: int, condition_number: float, mean: float, deviation: float) -> list[float]:
    """Steps of each seed until the default stops by itself; infinite if it does not."""
    target = bures.models.gaussian(dim, condition_number=condition_number)
    start = bures.Gaussian(jnp.full(dim, mean), deviation * jnp.eye(dim))
    options = dict(init=start, num_steps=1500, tolerance=0.01, progress=False)
    fits = [bures.fit(target, key=jax.random.key(seed), **options) for seed in SEEDS]
    return [fit.num_steps if fit.outcome is bures.Outcome.CONVERGED else np.inf for fit in fits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doubt", type=float, default=geometry._DOUBT)
    parser.add_argument("--far", type=float, default=geometry._FAR)
    options = parser.parse_args()
    geometry._DOUBT, geometry._FAR = options.doubt, options.far
    print(f"{'regression from':40} {'median':>7} {'worst':>7}")  # noqa: T201
    for K in (10, 50):
        for variance in VARIANCES:
            _tell(f"N(0, {variance:g} I), K = {K}", [n for seed in DATA_SEEDS for n in iterations(seed, K, variance)])
    print(f"{'Gaussian from':40} {'median':>7} {'worst':>7}")  # noqa: T201
    for dim, condition_number, mean, deviation in FAR:
        name = f"N({mean:g}, {deviation:g}² I), d = {dim}, condition {condition_number:g}"
        _tell(name, steps(dim, condition_number, mean, deviation))


def _tell(name: str, counts: list[float]) -> None:
    print(f"{name:40} {np.median(counts):7.1f} {np.max(counts):7.0f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
