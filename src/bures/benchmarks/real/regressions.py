"""Regressions: linear, logistic, robust, ordinal, sparse."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks import ladder_targets
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import cauchy, normal, softplus
from bures.benchmarks.real.classic import BEETLES, CHALLENGER, DUGONGS, STACKS
from bures.benchmarks.real.parts import (
    CLASSIC,
    SAMPLING,
    SIMULATED,
    Model,
    gamma,
    posterior,
    simulation,
    standardised,
    student_t,
    with_intercept,
)
from bures.support import Interval, Ordered, Positive

Data = dict[str, Array]

# ---- Few coefficients -----------------------------------------------------------------------------------------------


def _binomial(data: Data, p: Array) -> Array:
    return data["successes"] * jnp.log(p) + data["failures"] * jnp.log1p(-p)


def globe(folders: Folders) -> bures.Target:
    """Six of nine throws of a globe fall on water; flat."""
    return posterior(_binomial, {"successes": 6, "failures": 3}, {"p": Interval(0, 1)})


def _logistic(data: Data, beta: Array) -> Array:
    logits = data["X"] @ beta
    return jnp.sum(data["y"] * logits - softplus(logits)) + normal(beta, 0.0, 10.0)


def challenger(folders: Folders) -> bures.Target:
    temperature, damage = CHALLENGER
    X = with_intercept((temperature - 70) / 10)
    return posterior(_logistic, {"X": X, "y": damage}, {"beta": (2,)})


def _complementary(data: Data, beta: Array) -> Array:
    """Pr(killed) = 1 − exp(−exp(Xβ))."""
    rate = jnp.exp(data["X"] @ beta)
    killed = data["killed"] * jnp.log(-jnp.expm1(-jnp.maximum(rate, 1e-300)))
    return jnp.sum(killed - (data["n"] - data["killed"]) * rate) + normal(beta, 0.0, 10.0)


def beetles(folders: Folders) -> bures.Target:
    dose, n, killed = BEETLES
    X = with_intercept(10 * (dose - dose.mean()))
    return posterior(_complementary, {"X": X, "n": n, "killed": killed}, {"beta": (2,)})


def _student(data: Data, beta: Array, sigma: Array, nu: Array) -> Array:
    likelihood = student_t(data["y"], nu, data["X"] @ beta, sigma)
    return likelihood + normal(beta, 0.0, 10.0) + cauchy(sigma, 5.0) + gamma(nu, 2.0, 0.1)


def stack_loss(folders: Folders) -> bures.Target:
    """y ~ t_ν(Xβ, σ), ν ~ Gamma(2, 0.1)."""
    X, y = with_intercept(standardised(STACKS[:, :3].astype(float))), STACKS[:, 3] - STACKS[:, 3].mean()
    variables = {"beta": (4,), "sigma": Positive(), "nu": Positive()}
    return posterior(_student, {"X": X, "y": y}, variables)


def _growth(data: Data, alpha: Array, beta: Array, gamma: Array, sigma: Array) -> Array:
    expected = alpha - beta * gamma ** data["x"]
    return normal(data["y"], expected, sigma) + normal(alpha, 0.0, 10.0) + normal(beta, 0.0, 10.0) + cauchy(sigma, 1.0)


def dugongs(folders: Folders) -> bures.Target:
    """Length α − β γ^age, γ in (0, 1)."""
    x, y = DUGONGS
    variables = {"alpha": (), "beta": Positive(), "gamma": Interval(0, 1), "sigma": Positive()}
    return posterior(_growth, {"x": x, "y": y}, variables)


def _outliers(data: Data, line: Array, share: Array, centre: Array, sigma: Array) -> Array:
    """A line with errors that are known, or else a wide normal: which of the two a point is, is summed over."""
    good = -(((data["y"] - line[0] - line[1] * data["x"]) / data["s"]) ** 2) / 2 - jnp.log(data["s"])
    variance = sigma**2 + data["s"] ** 2
    bad = -((data["y"] - centre) ** 2) / (2 * variance) - jnp.log(variance) / 2
    mixed = jnp.logaddexp(jnp.log1p(-share) + good, jnp.log(share) + bad)
    return jnp.sum(mixed) + normal(line, 0.0, 10.0) + normal(centre, 0.0, 10.0) + normal(sigma, 0.0, 10.0)


def outliers(folders: Folders) -> bures.Target:
    rng = simulation("outliers")
    x, s = rng.uniform(-2, 2, 25), rng.uniform(0.2, 0.6, 25)
    y = 1 + 2 * x + s * rng.standard_normal(25)
    y[:4] += rng.normal(0, 6, 4)
    variables = {"line": (2,), "share": Interval(0, 0.5), "centre": (), "sigma": Positive()}
    return posterior(_outliers, {"x": x, "y": y, "s": s}, variables)


# ---- Classes --------------------------------------------------------------------------------------------------------


def _classes(data: Data, beta: Array) -> Array:
    logits = jnp.concatenate([jnp.zeros((len(data["X"]), 1)), data["X"] @ beta], axis=1)
    return jnp.sum(data["Y"] * jax.nn.log_softmax(logits, axis=1)) + normal(beta, 0.0, 3.0)


def flowers(folders: Folders) -> bures.Target:
    """Three classes by four features."""
    rng = simulation("flowers")
    X = with_intercept(rng.standard_normal((120, 4)))
    logits = np.column_stack([np.zeros(120), X @ rng.normal(0, 1.5, (5, 2))])
    chosen = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return posterior(_classes, {"X": X, "Y": np.eye(3)[chosen]}, {"beta": (5, 2)})


def _ordinal(data: Data, beta: Array, cuts: Array) -> Array:
    """Proportional odds: Pr(y ≤ k) = logit⁻¹(cut_k − Xβ)."""
    below = jax.nn.sigmoid(cuts - (data["X"] @ beta)[:, None])
    ends = jnp.zeros((len(below), 1))
    shares = jnp.diff(jnp.concatenate([ends, below, ends + 1], axis=1), axis=1)
    return jnp.sum(data["Y"] * jnp.log(jnp.maximum(shares, 1e-300))) + normal(beta, 0.0, 2.0) + normal(cuts, 0.0, 3.0)


def opinions(folders: Folders) -> bures.Target:
    """Answers of 1 to 5 by three predictors."""
    rng = simulation("opinions")
    X = rng.standard_normal((200, 3))
    hidden = X @ np.array([1.0, -0.5, 0.2]) + rng.logistic(size=200)
    Y = np.eye(5)[np.searchsorted([-2, -0.5, 0.5, 2.5], hidden)]
    return posterior(_ordinal, {"X": X, "Y": Y}, {"beta": (3,), "cuts": (Ordered(), (4,))})


def _read_table(folder: Path | None, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of −1 and 1, and the features."""
    assert folder is not None
    table = np.loadtxt(folder / name, delimiter=",", comments="#")
    return table[:, 1:], (table[:, 0] > 0).astype(float)


def _standard_logistic(name: str) -> Any:
    def make(folders: Folders) -> bures.Target:
        X, y = _read_table(folders.sampling, name)
        return bures.models.logistic_regression(with_intercept(standardised(X)), y, prior_variance=1.0)

    return make


# ---- Many coefficients ----------------------------------------------------------------------------------------------


def _sparse(data: Data, z: Array, local: Array, tau: Array) -> Array:
    """Logistic; β = z λ τ, λ and τ ~ Gamma(1/2, 1/2)."""
    logits = data["X"] @ (z * local * tau)
    return (
        jnp.sum(data["y"] * logits - softplus(logits))
        + normal(z, 0.0, 1.0)
        + gamma(local, 0.5, 0.5)
        + gamma(tau, 0.5, 0.5)
    )


def german_sparse(folders: Folders) -> bures.Target:
    assert folders.sampling is not None
    data = np.loadtxt(folders.sampling / ladder_targets.GERMAN)
    X = with_intercept(standardised(data[:, :24]))
    variables = {"z": (25,), "local": (Positive(), (25,)), "tau": Positive()}
    return posterior(_sparse, {"X": X, "y": data[:, 24] - 1}, variables)


def _horseshoe(data: Data, z: Array, local: Array, tau: Array, sigma: Array, intercept: Array) -> Array:
    """β = z λ τ, λ ~ Cauchy⁺(0, 1), τ ~ Cauchy⁺(0, 0.1)."""
    expected = intercept + data["X"] @ (z * local * tau)
    scales = cauchy(local, 1.0) + cauchy(tau, 0.1) + cauchy(sigma, 1.0)
    return normal(data["y"], expected, sigma) + normal(z, 0.0, 1.0) + scales + normal(intercept, 0.0, 5.0)


def horseshoe(columns: int) -> Any:
    """Three of the coefficients are 2, −2 and 1, the others zero; 80 rows."""

    def make(folders: Folders) -> bures.Target:
        rng = simulation(f"horseshoe {columns}")
        X = rng.standard_normal((80, columns))
        y = X[:, :3] @ np.array([2.0, -2.0, 1.0]) + rng.standard_normal(80)
        variables = {"z": (columns,), "local": (Positive(), (columns,)), "tau": Positive(), "sigma": Positive()}
        return posterior(_horseshoe, {"X": X, "y": y}, {**variables, "intercept": ()})

    return make


def _ridge(data: Data, beta: Array, tau: Array) -> Array:
    logits = data["X"] @ beta
    return jnp.sum(data["y"] * logits - softplus(logits)) + normal(beta, 0.0, tau) + normal(tau, 0.0, 1.0)


def ridge(folders: Folders) -> bures.Target:
    """Logistic, 200 columns and 150 rows, β ~ N(0, τ): centred."""
    rng = simulation("ridge")
    X = rng.standard_normal((150, 200))
    y = rng.random(150) < 1 / (1 + np.exp(-X @ rng.normal(0, 0.3, 200)))
    sites = {"beta": lambda tau: (0.0, tau)}
    return posterior(_ridge, {"X": X, "y": y}, {"beta": (200,), "tau": Positive()}, location_scale=sites)


MODELS = {
    "globe": Model("binomial", CLASSIC, 1, globe, "six of nine throws of a globe on water"),
    "challenger": Model("GLM", CLASSIC, 2, challenger, "logistic regression of O-ring damage"),
    "beetles": Model("GLM", CLASSIC, 2, beetles, "complementary log-log regression of Bliss's beetles"),
    "stack_loss": Model("robust", CLASSIC, 6, stack_loss, "Student-t regression of Brownlee's stack loss"),
    "dugongs": Model("nonlinear", CLASSIC, 4, dugongs, "asymptotic growth of dugongs"),
    "outliers": Model("robust", SIMULATED, 5, outliers, "a line with outliers, summed out"),
    "flowers": Model("GLM", SIMULATED, 10, flowers, "multinomial logistic regression"),
    "opinions": Model("ordinal", SIMULATED, 7, opinions, "ordered logistic regression"),
    "german_credit": Model("GLM", SAMPLING, 25, ladder_targets.german_credit, "logistic regression of credits"),
    "breast_cancer": Model("GLM", SAMPLING, 31, ladder_targets.breast_cancer, "logistic regression of tumours"),
    "ionosphere": Model("GLM", SAMPLING, 35, _standard_logistic("ionosphere.csv"), "logistic regression of radar"),
    "sonar": Model("GLM", SAMPLING, 61, _standard_logistic("sonar.csv"), "logistic regression of sonar"),
    "german_sparse": Model("sparse", SAMPLING, 51, german_sparse, "logistic regression with local gamma scales"),
    "horseshoe_20": Model("sparse", SIMULATED, 43, horseshoe(20), "linear regression with the horseshoe"),
    "horseshoe_100": Model("sparse", SIMULATED, 203, horseshoe(100), "the same with more columns than rows"),
    "ridge": Model("sparse", SIMULATED, 201, ridge, "logistic regression with one unknown scale, centred"),
}
