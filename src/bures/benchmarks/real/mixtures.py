"""Models with several equivalent modes: labels that may be exchanged, and signs."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import bures
from bures.benchmarks.families_models import Folders
from bures.benchmarks.large_series import normal
from bures.benchmarks.real.classic import GALAXIES
from bures.benchmarks.real.parts import CLASSIC, SIMULATED, Model, Values, gamma, posterior, relabelled, simulation
from bures.support import Interval, Positive, Simplex

Data = dict[str, Array]

# ---- Labels ---------------------------------------------------------------------------------------------------------


def _normals(data: Data, share: Array, mu: Array, sigma: Array) -> Array:
    """y ~ Σ share_k N(μ_k, σ_k), μ ~ N(2, 1), σ ~ Gamma(4, 20), shares ~ Dirichlet(2)."""
    logs = jnp.log(share) - jnp.log(sigma) - ((data["y"][:, None] - mu) / sigma) ** 2 / 2
    priors = normal(mu, 2.0, 1.0) + gamma(sigma, 4.0, 20.0) + jnp.sum(jnp.log(share))
    return jnp.sum(jax.nn.logsumexp(logs, axis=1)) + priors


def galaxies(folders: Folders) -> bures.Target:
    """Three components, in units of 10,000 km/s."""
    variables = {"share": Simplex(3), "mu": (3,), "sigma": (Positive(), (3,))}
    # At the origin all components are equal, which is a saddle.
    return posterior(
        _normals, {"y": GALAXIES / 10_000}, variables, initial_point=np.r_[0, 0, 1, 2, 3, -1.5, -1.5, -1.5]
    )


def _lines(data: Data, share: Array, line: Array, sigma: Array) -> Array:
    expected = line[:, 0] + line[:, 1] * data["x"][:, None]
    logs = jnp.log(share) - ((data["y"][:, None] - expected) / sigma) ** 2 / 2 - jnp.log(sigma)
    return jnp.sum(jax.nn.logsumexp(logs, axis=1)) + normal(line, 0.0, 3.0) + normal(sigma, 0.0, 1.0)


def two_lines(folders: Folders) -> bures.Target:
    """A mixture of two regressions, one standard deviation."""
    rng = simulation("two lines")
    x, first = rng.uniform(-2, 2, 80), rng.random(80) < 0.4
    y = np.where(first, 1 + 1.5 * x, -1 - x) + 0.5 * rng.standard_normal(80)
    variables = {"share": Simplex(2), "line": (2, 2), "sigma": Positive()}
    return posterior(_lines, {"x": x, "y": y}, variables)


def _classes(data: Data, share: Array, p: Array) -> Array:
    logs = jnp.log(share) + data["y"] @ jnp.log(p).T + (1 - data["y"]) @ jnp.log1p(-p).T
    return jnp.sum(jax.nn.logsumexp(logs, axis=1))


def symptoms(folders: Folders) -> bures.Target:
    """Latent classes: two kinds of patients, six symptoms; flat."""
    rng = simulation("symptoms")
    p = np.array([[0.8, 0.7, 0.9, 0.6, 0.7, 0.8], [0.2, 0.3, 0.1, 0.4, 0.2, 0.3]])
    y = rng.random((150, 6)) < p[(rng.random(150) < 0.6).astype(int)]
    return posterior(_classes, {"y": y}, {"share": Simplex(2), "p": (Interval(0, 1), (2, 6))})


def _chain(data: Data, rows: Array, mu: Array, sigma: Array) -> Array:
    """Two hidden states, N(μ_k, σ); forward recursion in shares, the first state uniform."""
    logs = -(((data["y"][:, None] - mu) / sigma) ** 2) / 2 - jnp.log(sigma)
    tops = jnp.max(logs, axis=1)

    def step(forward: Array, emission: Array) -> tuple[Array, Array]:
        forward = jnp.sum(forward[:, None] * rows, axis=0) * emission
        total = jnp.sum(forward)
        return forward / total, jnp.log(total)

    _, steps = jax.lax.scan(step, jnp.full(2, 0.5), jnp.exp(logs - tops[:, None]))
    return jnp.sum(steps) + jnp.sum(tops) + normal(mu, 0.0, 5.0) + normal(sigma, 0.0, 2.0)


def regimes(folders: Folders) -> bures.Target:
    """A hidden Markov chain of two states whose labels may be exchanged."""
    rng = simulation("regimes")
    states = np.cumsum(rng.random(100) < 0.1) % 2
    y = np.where(states == 0, -1.0, 1.5) + 0.7 * rng.standard_normal(100)
    return posterior(_chain, {"y": y}, {"rows": (Simplex(2), (2,)), "mu": (2,), "sigma": Positive()})


# ---- Signs ----------------------------------------------------------------------------------------------------------


def _factor(data: Data, loading: Array, variance: Array) -> Array:
    """Rows ~ N(0, λλᵀ + diag ψ): by Woodbury's identity no matrix is factorised."""
    scaled = loading / variance
    inner = 1 + loading @ scaled
    square = jnp.sum(jnp.diagonal(data["products"]) / variance) - scaled @ data["products"] @ scaled / inner
    log_det = jnp.sum(jnp.log(variance)) + jnp.log(inner)
    priors = normal(loading, 0.0, 1.0) - 3 * jnp.sum(jnp.log(variance)) - jnp.sum(1 / variance)
    return -(square + data["rows"] * log_det) / 2 + priors


def one_factor(folders: Folders) -> bures.Target:
    """Eight tests and one ability: all loadings may change their sign; ψ ~ InvGamma(2, 1)."""
    rng = simulation("one factor")
    y = rng.standard_normal((100, 1)) * np.linspace(0.5, 1.2, 8) + 0.7 * rng.standard_normal((100, 8))
    variables = {"loading": (8,), "variance": (Positive(), (8,))}
    start = np.r_[np.ones(8), np.zeros(8)]  # the origin is a saddle
    return posterior(_factor, {"products": y.T @ y, "rows": 100}, variables, initial_point=start)


def _rank_one(data: Data, u: Array, v: Array, sigma: Array) -> Array:
    rest = data["seen"] * (data["y"] - u[:, None] * v)
    likelihood = -jnp.sum(rest**2) / (2 * sigma**2) - jnp.sum(data["seen"]) * jnp.log(sigma)
    return likelihood + normal(u, 0.0, 1.0) + normal(v, 0.0, 1.0) + normal(sigma, 0.0, 1.0)


def ratings(folders: Folders) -> bures.Target:
    """Matrix factorisation of rank one, half of the entries seen: all signs may change at once."""
    rng = simulation("ratings")
    y = np.outer(rng.standard_normal(25), rng.standard_normal(15)) + 0.3 * rng.standard_normal((25, 15))
    data = {"y": y, "seen": rng.random(y.shape) < 0.5}
    variables = {"u": (25,), "v": (15,), "sigma": Positive()}
    left, values, right = np.linalg.svd(y * data["seen"])
    start = np.r_[left[:, 0] * np.sqrt(2 * values[0]), right[0] * np.sqrt(2 * values[0]), 0] / 1.5
    return posterior(_rank_one, data, variables, initial_point=start)


def _signs(*names: str):
    def exchange(rng: np.random.Generator, values: Values) -> Values:
        sign = rng.choice([-1.0, 1.0], len(values[names[0]]))[:, None]
        return values | {name: sign * values[name] for name in names}

    return exchange


_LABELS = {
    "galaxies": relabelled({"share": (1,), "mu": (1,), "sigma": (1,)}),
    "two_lines": relabelled({"share": (1,), "line": (1,)}),
    "symptoms": relabelled({"share": (1,), "p": (1,)}),
    "regimes": relabelled({"mu": (1,), "rows": (1, 2)}),
}
MODELS = {
    "galaxies": Model("mixture", CLASSIC, 8, galaxies, "three normals, labels free", 6, _LABELS["galaxies"]),
    "two_lines": Model("mixture", SIMULATED, 6, two_lines, "two regressions, labels free", 2, _LABELS["two_lines"]),
    "symptoms": Model("mixture", SIMULATED, 13, symptoms, "two latent classes, labels free", 2, _LABELS["symptoms"]),
    "regimes": Model("hidden Markov", SIMULATED, 5, regimes, "two states, labels free", 2, _LABELS["regimes"]),
    "one_factor": Model("factors", SIMULATED, 16, one_factor, "factor analysis, sign free", 2, _signs("loading")),
    "ratings": Model("factors", SIMULATED, 41, ratings, "matrix factorisation, sign free", 2, _signs("u", "v")),
}
