"""How noisy is each estimator? The tables of the page on choosing a method: `python -m bures.benchmarks.noise`."""

import jax
import numpy as np

import bures
from bures.estimator import AbstractEstimator
from bures.objective import AbstractObjective

REPEATS = 200


def gradients(
    estimator: AbstractEstimator, q: bures.Gaussian, target: bures.Target, objective: AbstractObjective
) -> tuple[np.ndarray, np.ndarray]:
    """Repeated estimates of a and S."""

    def gradient(key):
        return bures.bw_gradient(key, q, target, objective, estimator)

    keys = jax.random.split(jax.random.key(0), REPEATS)
    a, S = jax.lax.map(gradient, keys)
    return np.asarray(a), np.asarray(S)


def regression() -> bures.Target:
    """The logistic regression of the page."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(200), rng.standard_normal((200, 4))])
    y = rng.random(200) < 1 / (1 + np.exp(-X @ np.array([0.5, 1.0, -1.0, 0.5, 0.0])))
    return bures.models.logistic_regression(X, y)


def near_and_far() -> str:
    """Variances near and far from the optimum, relative to the paper's estimator."""
    target, objective = regression(), bures.IWELBO(K=5)
    near = bures.laplace(target)
    far = bures.Gaussian(near.mean + near.standard_deviations / 2, 1.3 * near.chol)
    estimators = {
        'Price(M=100, indices="last")': bures.Price(M=100, indices="last"),
        "Price(M=100)": bures.Price(M=100),
        "Price(M=100, permutations=10)": bures.Price(M=100, permutations=10),
        'Price(M=100, draws="antithetic")': bures.Price(M=100, draws="antithetic"),
        'Price(M=128, draws="sobol")': bures.Price(M=128, draws="sobol"),
        "Stein(M=100)": bures.Stein(M=100),
        'Stein(M=100, draws="antithetic")': bures.Stein(M=100, draws="antithetic"),
        "Reparameterised(M=100)": bures.Reparameterised(M=100),
    }
    lines, first = ["| | a, near | S, near | a, far | S, far |", "|---|---|---|---|---|"], None
    for name, estimator in estimators.items():
        parts = [part for q in (near, far) for part in gradients(estimator, q, target, objective)]
        found = np.array([np.sum(np.var(part, axis=0)) for part in parts])
        first = found if first is None else first
        lines.append(f"| `{name}` | " + " | ".join(f"{ratio:.2g}" for ratio in found / first) + " |")
    return "\n".join(lines)


def far_from_gaussian() -> str:
    """Noise of the whitened gradient at the IW-ELBO's optimum, in nats, with and without Hessians."""
    targets = {
        "eggbox": bures.models.eggbox(),
        "banana": bures.models.banana(),
        "funnel, d = 3, scale 1.5": bures.models.funnel(dim=3, scale=1.5),
        "Student-t, d = 5": bures.models.student_t(dim=5),
        "regression above": regression(),
    }
    objective = bures.IWELBO(K=10)
    lines = ["| target | `Price` | `Stein` | median of `Price` | median of `Stein` |", "|---|---|---|---|---|"]
    for name, target in targets.items():
        q = bures.fit(target, key=jax.random.key(0), num_steps=500).approximation
        noise = []
        for kind in (bures.Price, bures.Stein):
            estimator = kind(M=100, draws="antithetic", permutations=8)
            mean_A = np.mean([float(estimator(jax.random.key(i), q, target, objective).mean_A) for i in range(10)])
            a, S = (part / mean_A for part in gradients(estimator, q, target, objective))
            shift, whitened = a @ np.asarray(q.chol), np.einsum("ji,rjk,kl->ril", q.chol, S, q.chol)
            shift, whitened = shift - shift.mean(axis=0), whitened - whitened.mean(axis=0)
            noise.append(np.sum(shift**2, axis=1) / 2 + np.sum(whitened**2, axis=(1, 2)) / 4)
        figures = [np.mean(noise[0]), np.mean(noise[1]), np.median(noise[0]), np.median(noise[1])]
        lines.append(f"| {name} | " + " | ".join(f"{figure:.2g}" for figure in figures) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(near_and_far(), far_from_gaussian(), sep="\n\n")  # noqa: T201
