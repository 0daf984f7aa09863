"""Hierarchical models of `bench ladder` as people write them, in NumPyro, so that their location-scale sites are seen.

`MODELS[name](folder)` is a model to be given to `bures.frontends.from_numpyro`. Data are posteriordb's, mathematics
that of the table that comes with them. Libraries are imported inside the functions: the rest of the benchmark runs
without NumPyro.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bures
from bures.benchmarks.cold_models import SCHOOLS, read_data

Model = Callable[[], None]


def eight_schools(folder: Path | None = None, *, centred: bool = True) -> Model:
    """y ~ N(θ, σ), θ ~ N(μ, τ), μ ~ N(0, 5), τ ~ Cauchy⁺(0, 5)."""
    import numpyro
    from numpyro import distributions as dist

    y, sigma = (np.asarray(SCHOOLS[name], float) for name in ("y", "sigma"))

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        theta = _effects("theta", mu, tau, y.size, centred)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    return model


def _effects(name: str, location: Any, scale: Any, size: int, centred: bool) -> Any:
    """One effect a group, about a common mean or about zero."""
    import numpyro
    from numpyro import distributions as dist

    with numpyro.plate(f"{name}_groups", size):
        if centred:
            return numpyro.sample(name, dist.Normal(location, scale))
        return numpyro.deterministic(name, location + scale * numpyro.sample(f"{name}_raw", dist.Normal(0, 1)))


def radon(folder: Path, *, centred: bool = True) -> Model:
    """log_radon ~ N(α_county + β₁ log_uppm + β₂ floor, σ_y)."""
    import numpyro
    from numpyro import distributions as dist

    data = read_data(folder, "radon_mn")
    county, y = np.asarray(data["county_idx"]) - 1, np.asarray(data["log_radon"], float)
    X = np.column_stack([data["log_uppm"], data["floor_measure"]]).astype(float)

    def model() -> None:
        mu = numpyro.sample("mu_alpha", dist.Normal(0, 10))
        sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1))
        sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]).to_event(1))
        alpha = _effects("alpha", mu, sigma_alpha, county.max() + 1, centred)
        numpyro.sample("y", dist.Normal(alpha[county] + X @ beta, sigma_y), obs=y)

    return model


def radon_slopes(folder: Path) -> Model:
    """log_radon ~ N(α_county + β_county floor, σ_y): two grouping factors."""
    import numpyro
    from numpyro import distributions as dist

    data = read_data(folder, "radon_mn")
    county, y = np.asarray(data["county_idx"]) - 1, np.asarray(data["log_radon"], float)
    floor = np.asarray(data["floor_measure"], float)

    def model() -> None:
        effects = []
        for name in ("alpha", "beta"):
            mu = numpyro.sample(f"mu_{name}", dist.Normal(0, 10))
            sigma = numpyro.sample(f"sigma_{name}", dist.HalfNormal(1))
            effects.append(_effects(name, mu, sigma, county.max() + 1, True))
        sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
        alpha, beta = effects
        numpyro.sample("y", dist.Normal(alpha[county] + beta[county] * floor, sigma_y), obs=y)

    return model


def rats(folder: Path) -> Model:
    """y ~ N(α_rat + β_rat (x − x̄), σ_y), flat positive standard deviations: two grouping factors."""
    import numpyro
    from numpyro import distributions as dist

    data = read_data(folder, "rats_data")
    rat, y = np.asarray(data["rat"]) - 1, np.asarray(data["y"], float)
    x = np.asarray(data["x"], float) - data["xbar"]

    def deviation(name: str) -> Any:
        return numpyro.sample(name, dist.ImproperUniform(dist.constraints.positive, (), ()))

    def model() -> None:
        effects = []
        for name in ("alpha", "beta"):
            mu = numpyro.sample(f"mu_{name}", dist.Normal(0, 100))
            effects.append(_effects(name, mu, deviation(f"sigma_{name}"), rat.max() + 1, True))
        alpha, beta = effects
        numpyro.sample("y", dist.Normal(alpha[rat] + beta[rat] * x, deviation("sigma_y")), obs=y)

    return model


def glmm_poisson(folder: Path) -> Model:
    """C ~ Poisson(exp(α + β₁ t + β₂ t² + β₃ t³ + ε)), ε ~ N(0, σ), uniform priors."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    data = read_data(folder, "GLMM_Poisson_data")
    year, counts = np.asarray(data["year"], float), np.asarray(data["C"])
    powers = np.column_stack([year, year**2, year**3])

    def model() -> None:
        alpha = numpyro.sample("alpha", dist.Uniform(-20, 20))
        beta = numpyro.sample("beta", dist.Uniform(-10, 10).expand([3]).to_event(1))
        sigma = numpyro.sample("sigma", dist.Uniform(0, 5))
        eps = _effects("eps", 0.0, sigma, counts.size, True)
        log_rate = alpha + powers @ beta + eps
        # By the logarithm: a rate that overflows has density zero, not one that is no number.
        numpyro.factor("counts", jnp.sum(counts * log_rate - jnp.exp(log_rate)))

    return model


def seeds(folder: Path) -> Model:
    """n ~ Binomial(N, logit⁻¹(X α + b)), b ~ N(0, 1/√τ), α ~ N(0, 1000), τ ~ Gamma(0.001, 0.001)."""
    import numpyro
    from numpyro import distributions as dist

    data = read_data(folder, "seeds_data")
    x1, x2 = np.asarray(data["x1"], float), np.asarray(data["x2"], float)
    X = np.column_stack([np.ones(x1.size), x1, x2, x1 * x2])
    n, total = np.asarray(data["n"]), np.asarray(data["N"])

    def model() -> None:
        alpha = numpyro.sample("alpha", dist.Normal(0, 1000).expand([4]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(0.001, 0.001))
        b = _effects("b", 0.0, tau**-0.5, n.size, True)
        numpyro.sample("n", dist.Binomial(total, logits=X @ alpha + b), obs=n)

    return model


class Centring(NamedTuple):
    """A model in its centred form, and in the other one where both are compared."""

    make: Callable[[Path], Model]
    dim: int
    other: Callable[[Path], Model] | None = None
    density: str | None = None  # the same in `large_models`


MODELS: dict[str, Centring] = {
    "eight schools": Centring(eight_schools, 10, lambda folder: eight_schools(folder, centred=False)),
    "radon_mn": Centring(radon, 90, lambda folder: radon(folder, centred=False), "radon_mn_centred"),
    "radon slopes": Centring(radon_slopes, 175, density="radon_mn_slopes"),
    "rats": Centring(rats, 65, density="rats"),
    "GLMM_Poisson": Centring(glmm_poisson, 45, density="GLMM_Poisson"),
    "seeds": Centring(seeds, 26, density="seeds"),
}


def target(name: str, folder: Path, *, other: bool = False) -> bures.Target:
    """The model as a target, in its centred form or in the other one."""
    listed = MODELS[name]
    make = listed.other if other else listed.make
    assert make is not None
    return bures.frontends.from_numpyro(make(folder))
