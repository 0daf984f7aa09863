"""The ten models of `bench cold`, and the same for NumPyro.

Each is a class with what a fresh process does, phase by phase. Libraries are imported inside the functions, because
how long that takes is part of what is measured.
"""

import importlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Model = Callable[[], None]  # as NumPyro takes them


class Cold(NamedTuple):
    """A model: the library it is written with, the parts of bures it needs, the target, and NumPyro's version."""

    library: str | None
    parts: tuple[str, ...]
    target: Callable[[], Any]
    numpyro: Callable[[], Model] | None


# ---- Built in -------------------------------------------------------------------------------------------------------


def _eggbox() -> Any:
    import bures

    return bures.models.eggbox()


def _eggbox_in_numpyro() -> Model:
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions

    means = jnp.array([[3.0, 3.0], [5.0, 5.0], [7.0, 2.0], [9.0, 6.0]])
    covariances = jnp.array(
        [[[1.0, -0.8], [-0.8, 1.2]], [[0.6, 0.1], [0.1, 0.3]], [[0.5, -0.2], [-0.2, 0.3]], [[0.5, 0.0], [0.0, 0.5]]]
    )

    def model():
        components = distributions.MultivariateNormal(means, covariances)
        numpyro.sample("z", distributions.MixtureSameFamily(distributions.Categorical(jnp.ones(4) / 4), components))

    return model


def _census() -> Any:
    import bures

    return bures.models.census()


def _census_in_numpyro() -> Model:
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions

    from bures.datasets import census

    X, y, _ = census("screened")

    def model():
        z = numpyro.sample("z", distributions.Normal(0, 10**0.5).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", distributions.Bernoulli(logits=jnp.asarray(X) @ z), obs=jnp.asarray(y))

    return model


# ---- posteriordb ----------------------------------------------------------------------------------------------------


def read_data(folder: str | os.PathLike, name: str) -> dict[str, Any]:
    """A data file of posteriordb, unpacked."""
    path = Path(folder) / "posterior_database" / "data" / "data" / f"{name}.json.zip"
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def _posterior(name: str) -> Callable[[], Any]:
    """The density alone: a user's model has no reference draws to read."""

    def target() -> Any:
        import bures
        from bures.posteriordb.densities import BUILDERS

        density = BUILDERS[name](read_data(os.environ["BURES_POSTERIORDB"], name.partition("-")[0]))
        return bures.Target.from_variables(density, density.variables())

    return target


def _as_factor(target: Callable[[], Any]) -> Callable[[], Model]:
    """A JAX density as a NumPyro model: a factor of one real vector."""

    def make() -> Model:
        import numpyro
        from numpyro import distributions

        made = target()

        def model():
            flat = distributions.ImproperUniform(distributions.constraints.real_vector, (), (made.dim,))
            numpyro.factor("log_density", made.log_density(numpyro.sample("z", flat)))

        return model

    return make


# ---- NumPyro, PyMC, Stan --------------------------------------------------------------------------------------------


def grouped_data(seed: int = 13, groups: int = 8, each: int = 15) -> tuple[Any, Any, Any]:
    """Groups, a covariate and a response of a regression with one intercept a group."""
    import numpy as np

    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), each)
    x = rng.standard_normal(group.size)
    y = rng.normal(1.0, 0.7, groups)[group] + 0.5 * x + rng.normal(0, 0.8, group.size)
    return group, x, y


def hierarchical_regression() -> Model:
    """y ~ N(a_group + b x, σ), a ~ N(μ, τ), non-centred: a user's small NumPyro model."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    group, x, y = map(jnp.asarray, grouped_data())

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        with numpyro.plate("groups", 8):
            shift = numpyro.sample("shift", dist.Normal(0, 1))
        intercept = numpyro.deterministic("intercept", mu + tau * shift)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(intercept[group] + slope * x, sigma), obs=y)

    return model


def _from_numpyro() -> Any:
    import bures

    return bures.frontends.from_numpyro(hierarchical_regression())


def counts_by_group(seed: int = 14, groups: int = 10) -> Any:
    """Ten counts whose rates vary."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return rng.poisson(np.exp(rng.normal(1.5, 0.6, groups)))


def _from_pymc() -> Any:
    """k ~ Poisson(exp(μ + τ η)): a user's small PyMC model."""
    import pymc

    import bures

    counts = counts_by_group()
    with pymc.Model() as model:
        mu = pymc.Normal("mu", 0, 2)
        tau = pymc.HalfNormal("tau", 1)
        eta = pymc.Normal("eta", 0, 1, shape=counts.size)
        pymc.Poisson("k", pymc.math.exp(mu + tau * eta), observed=counts)
    return bures.frontends.from_pymc(model)


def _counts_in_numpyro() -> Model:
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    counts = jnp.asarray(counts_by_group())

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        eta = numpyro.sample("eta", dist.Normal(0, 1).expand([counts.size]).to_event(1))
        numpyro.sample("k", dist.Poisson(jnp.exp(mu + tau * eta)), obs=counts)

    return model


PROGRAM = Path(__file__).with_name("schools.stan")
SCHOOLS = {"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}


def _from_stan() -> Any:
    import bures

    return bures.frontends.from_stan(PROGRAM, SCHOOLS)


def posterior_model(name: str) -> Cold:
    target = _posterior(name)
    return Cold(None, ("bures.posteriordb.densities",), target, _as_factor(target))


MODELS: dict[str, Cold] = {
    "eggbox": Cold(None, ("bures.models",), _eggbox, _eggbox_in_numpyro),
    "census9": Cold(None, ("bures.models",), _census, _census_in_numpyro),
    "eight_schools": posterior_model("eight_schools-eight_schools_noncentered"),
    "kidscore": posterior_model("kidiq-kidscore_momiq"),
    "hmm_example": posterior_model("hmm_example-hmm_example"),
    "gp_pois_regr": posterior_model("gp_pois_regr-gp_pois_regr"),
    "lotka_volterra": posterior_model("hudson_lynx_hare-lotka_volterra"),
    "numpyro": Cold("numpyro", ("bures.frontends.numpyro",), _from_numpyro, hierarchical_regression),
    "pymc": Cold("pymc", ("bures.frontends.pymc",), _from_pymc, _counts_in_numpyro),
    "stan": Cold("bridgestan", ("bures.frontends.stan",), _from_stan, None),
}
POSTERIORS = ("eight_schools", "kidscore", "hmm_example", "gp_pois_regr", "lotka_volterra")


def import_parts(model: Cold) -> None:
    """bures, what every fit loads of it, and what this model needs."""
    import bures

    for part in model.parts:
        importlib.import_module(part)
    _ = bures.fit, bures.Target
