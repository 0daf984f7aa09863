"""The models that other benchmarks have already: posteriordb's, and large ones; the hierarchical with their sites."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import bures
from bures import posteriordb
from bures.benchmarks import families_models, large_models
from bures.benchmarks.families_models import Folders
from bures.benchmarks.real.parts import POSTERIORDB, SAMPLING, SIMULATED, Model, Values, relabelled

# ---- With reference draws -------------------------------------------------------------------------------------------

SITES: dict[str, dict[str, Callable[..., Any]]] = {
    "eight_schools-eight_schools_centered": {"theta": lambda mu, tau: (mu, tau)},
    "surgical": {"b": lambda mu, sigmasq: (mu, jnp.sqrt(sigmasq))},
    "seeds": {"b": lambda tau: (0.0, 1 / jnp.sqrt(tau))},
    "rats": {"alpha": lambda mu, sigma: (mu[0], sigma[0]), "beta": lambda mu, sigma: (mu[1], sigma[1])},
    "GLMM_Poisson": {"eps": lambda sigma: (0.0, sigma)},
    "radon_mn_centred": {"alpha": lambda mu_alpha, sigma_alpha: (mu_alpha, sigma_alpha)},
    "radon_all": {"alpha": lambda mu_alpha, sigma_alpha: (mu_alpha, sigma_alpha)},
    "irt_2pl": {"theta": lambda sigma_theta: (0.0, sigma_theta), "b": lambda mu_b, sigma_b: (mu_b, sigma_b)},
}
SITES["radon_mn_slopes"] = SITES["rats"]


def reference_draws(name: str, folders: Folders) -> np.ndarray | None:
    """Gold-standard draws on the scale of the target, of posteriordb's fifteen."""
    if name not in posteriordb.names():
        return None
    return np.asarray(posteriordb.load(name, folders.posteriordb).reference.unconstrained)


def _posterior(name: str, folders: Folders) -> bures.Target:
    target = posteriordb.load(name, folders.posteriordb).target
    if name not in SITES:
        return target
    density: Any = target.log_density
    return bures.Target.from_variables(density.log_density, density.log_density.variables(), location_scale=SITES[name])


def _large(name: str, folders: Folders) -> bures.Target:
    assert folders.posteriordb is not None
    density = large_models.density(name, folders.posteriordb)
    options = {"initial_point": large_models.INITIAL_POINTS.get(name), "location_scale": SITES.get(name)}
    return bures.Target.from_variables(density, density.variables(), **options)


def _model(kind: str, dim: int, name: str, about: str, **options: Any) -> Model:
    make = _posterior if name in posteriordb.names() else _large
    return Model(kind, POSTERIORDB, dim, functools.partial(make, name), about, **options)


def _family(kind: str, name: str, about: str, source: str = SIMULATED) -> Model:
    return Model(kind, source, families_models.DIMENSIONS[name], families_models.MODELS[name], about)


# ---- Labels ---------------------------------------------------------------------------------------------------------


def _two_normals(rng: np.random.Generator, values: Values) -> Values:
    swap = rng.random(len(values["mu"])) < 0.5
    theta, mu = values["theta"], values["mu"]
    return {"theta": np.where(swap, 1 - theta, theta), "mu": np.where(swap[:, None], mu[:, ::-1], mu)}


_NORMALS = relabelled({"theta": (1,), "mu": (1,), "sigma": (1,)})
_TOPICS = relabelled({"theta": (2,), "phi": (1,)})

# ---- The list -------------------------------------------------------------------------------------------------------

_REFERENCED = {
    "nes2000-nes": ("regression", 10, "party by ideology, race, age, education, sex and income"),
    "kidiq-kidscore_momiq": ("regression", 3, "children's scores by mothers' IQ"),
    "earnings-earn_height": ("regression", 3, "earnings by height"),
    "mesquite-mesquite": ("regression", 8, "weight of mesquite bushes"),
    "kilpisjarvi_mod-kilpisjarvi": ("regression", 3, "summer temperatures by year"),
    "sblrc-blr": ("regression", 6, "Bayesian linear regression, correlated columns"),
    "eight_schools-eight_schools_centered": ("funnel", 10, "eight schools, centred"),
    "eight_schools-eight_schools_noncentered": ("hierarchical", 10, "eight schools, not centred"),
    "arK-arK": ("time series", 7, "autoregression of order five"),
    "garch-garch11": ("time series", 4, "GARCH(1, 1)"),
    "gp_pois_regr-gp_pois_regr": ("Gaussian process", 13, "Poisson counts about a Gaussian process"),
    "hmm_example-hmm_example": ("hidden Markov", 4, "two states, normal emissions"),
    "bball_drive_event_0-hmm_drive_0": ("hidden Markov", 6, "two states of a basketball drive"),
    "hudson_lynx_hare-lotka_volterra": ("ODE", 8, "lynxes and hares"),
    "low_dim_gauss_mix-low_dim_gauss_mix": ("mixture", 5, "two ordered normals"),
}
MODELS: dict[str, Model] = {
    **{name: _model(kind, dim, name, about) for name, (kind, dim, about) in _REFERENCED.items()},
    "wells": _model("GLM", 7, "wells", "logistic regression of switching wells"),
    "dogs": _model("GLM", 3, "dogs", "logistic regression of dogs that learn"),
    "surgical": _model("hierarchical", 14, "surgical", "deaths in twelve hospitals, centred"),
    "seeds": _model("hierarchical", 26, "seeds", "germination on 21 plates, vague precision, centred"),
    "rats": _model("two factors", 65, "rats", "growth of thirty rats, centred"),
    "GLMM_Poisson": _model("hierarchical", 45, "GLMM_Poisson", "counts by year, over-dispersed, centred"),
    "radon_mn_centred": _model("hierarchical", 90, "radon_mn_centred", "radon by county in Minnesota, centred"),
    "radon_mn_noncentred": _model("hierarchical", 90, "radon_mn_noncentred", "the same, not centred"),
    "radon_mn_slopes": _model("two factors", 175, "radon_mn_slopes", "the same with slopes, centred"),
    "radon_all": _model("hierarchical", 391, "radon_all", "radon in 386 counties, centred"),
    "irt_2pl": _model("item response", 144, "irt_2pl", "two-parameter logistic, centred"),
    "lsat": _model("item response", 1006, "lsat", "1,000 persons, five items"),
    "uk_drivers": _model("time series", 389, "uk_drivers", "level and season of car drivers killed"),
    "hmm_gaussian": _model("hidden Markov", 14, "hmm_gaussian_simulated", "three ordered states"),
    "ovarian": _model("sparse", 3075, "ovarian", "1,536 genes with the regularised horseshoe"),
    "sir": _model("ODE", 4, "sir", "cholera with a water compartment"),
    "normal_2": _model("mixture", 3, "normal_2", "two normals, labels free", modes=2, exchange=_two_normals),
    "normal_5": _model("mixture", 14, "normal_5", "five normals, labels free", modes=120, exchange=_NORMALS),
    "three_docs": _model("mixture", 7, "three_docs1200", "two topics, labels free", modes=2, exchange=_TOPICS),
    "volatility_200": _family("time series", "volatility_200", "stochastic volatility of 200 days, centred"),
    "volatility_1000": _family("time series", "volatility_1000", "the same of 1,000 days"),
    "network": _family("neural network", "network", "one hidden layer of 50"),
    "cox_process": _family("random field", families_models.COX, "pines in 40 × 40 cells", SAMPLING),
}
