"""Twenty real models, up to 3,075 dimensions, from posteriordb's data files: `MODELS[name](folder)` is a `Target`.

The second table of the models that come with those data says what each is; no constants of log densities are kept.
Here are the registry and the regressions, many of them through sums over groups that do not grow with the rows; those
with a time axis, and mixtures, are in `large_series.py`.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import bures
from bures.benchmarks import large_series
from bures.benchmarks.cold_models import read_data
from bures.benchmarks.large_series import Named, cauchy, float_array, normal, softplus
from bures.support import Interval, Positive

__all__ = ["MODELS"]

# ---- Counts ---------------------------------------------------------------------------------------------------------


def _binomial(successes: Array, trials: Array, logits: Array) -> Array:
    return jnp.sum(successes * logits - trials * softplus(logits))


class Surgical(Named):
    """Deaths in twelve hospitals; σ² ~ InvGamma(0.001, 0.001)."""

    r: Float[Array, " hospitals"]
    n: Float[Array, " hospitals"]

    def variables(self) -> dict[str, Any]:
        return {"mu": (), "sigmasq": Positive(), "b": self.r.shape}

    def __call__(self, mu: Array, sigmasq: Array, b: Array) -> Array:
        effects = normal(b, mu, jnp.sqrt(sigmasq)) + normal(mu, 0.0, 1000.0)
        return _binomial(self.r, self.n, b) + effects - 1.001 * jnp.log(sigmasq) - 0.001 / sigmasq


class Seeds(Named):
    """Germination of seeds on 21 plates; τ ~ Gamma(0.001, 0.001) is a precision."""

    X: Float[Array, "plates 4"]
    n: Float[Array, " plates"]
    N: Float[Array, " plates"]

    def variables(self) -> dict[str, Any]:
        return {"alpha": (4,), "tau": Positive(), "b": self.n.shape}

    def __call__(self, alpha: Array, tau: Array, b: Array) -> Array:
        priors = normal(alpha, 0.0, 1000.0) - 0.999 * jnp.log(tau) - 0.001 * tau
        return _binomial(self.n, self.N, self.X @ alpha + b) + normal(b, 0.0, 1 / jnp.sqrt(tau)) + priors


class Counts(Named):
    """Poisson counts by year with a cubic trend and an effect of each year."""

    powers: Float[Array, "years 3"]
    C: Float[Array, " years"]

    def variables(self) -> dict[str, Any]:
        wide = (Interval(-10, 10), (3,))
        return {"alpha": Interval(-20, 20), "beta": wide, "eps": self.C.shape, "sigma": Interval(0, 5)}

    def __call__(self, alpha: Array, beta: Array, eps: Array, sigma: Array) -> Array:
        log_rate = alpha + self.powers @ beta + eps
        return jnp.sum(self.C * log_rate - jnp.exp(log_rate)) + normal(eps, 0.0, sigma)


# ---- Groups ---------------------------------------------------------------------------------------------------------


class GroupSums(eqx.Module):
    """Σ over rows of (y − a_group − X b)² without the rows: about the means of the groups, and within them.

    With v = (1, −b) it is vᵀ W v + Σ_g n_g (means_g · v − a_g)², W the sums of products within groups.
    """

    sizes: Float[Array, " groups"]
    means: Float[Array, "groups columns"]
    within: Float[Array, "columns columns"]
    count: int = eqx.field(static=True)

    def __init__(self, group: np.ndarray, columns: list[Any]):
        values = np.column_stack(columns).astype(float)
        sizes = np.bincount(group)
        means = np.stack([np.bincount(group, weights=column) for column in values.T], axis=1) / sizes[:, None]
        rest = values - means[group]
        self.sizes, self.means, self.within = map(jnp.asarray, (sizes.astype(float), means, rest.T @ rest))
        self.count = len(values)

    def __call__(self, intercepts: Array, slopes: Array) -> Array:
        v = jnp.concatenate([jnp.ones(1, slopes.dtype), -slopes])
        return v @ self.within @ v + jnp.sum(self.sizes * (self.means @ v - intercepts) ** 2)


class Radon(Named):
    """Radon by county: one intercept a county about a common mean, slopes of uranium and floor."""

    sums: GroupSums
    centred: bool = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        scales = {"mu_alpha": (), "sigma_alpha": Positive(), "sigma_y": Positive()}
        return {"alpha" if self.centred else "alpha_raw": self.sums.sizes.shape, "beta": (2,), **scales}

    def __call__(self, beta: Array, mu_alpha: Array, sigma_alpha: Array, sigma_y: Array, **effects: Array) -> Array:
        if self.centred:
            alpha = effects["alpha"]
            prior = normal(alpha, mu_alpha, sigma_alpha)
        else:
            alpha = mu_alpha + sigma_alpha * effects["alpha_raw"]
            prior = normal(effects["alpha_raw"], 0.0, 1.0)
        likelihood = -self.sums(alpha, beta) / (2 * sigma_y**2) - self.sums.count * jnp.log(sigma_y)
        scales = -(sigma_alpha**2 + sigma_y**2) / 2
        return likelihood + prior + normal(beta, 0.0, 10.0) + normal(mu_alpha, 0.0, 10.0) + scales


class SlopeSums(eqx.Module):
    """Σ over rows of (y − a_group − b_group x)², group by group, without the rows."""

    sizes: Float[Array, " groups"]
    means: Float[Array, "groups 2"]  # of y and x
    products: Float[Array, "groups 3"]  # within the group: yy, xy, xx
    count: int = eqx.field(static=True)

    def __init__(self, group: np.ndarray, y: Any, x: Any):
        values = np.column_stack([y, x]).astype(float)
        sizes = np.bincount(group)
        means = np.stack([np.bincount(group, weights=column) for column in values.T], axis=1) / sizes[:, None]
        rest = values - means[group]
        pairs = ((0, 0), (0, 1), (1, 1))
        products = [np.bincount(group, weights=rest[:, i] * rest[:, j]) for i, j in pairs]
        self.sizes, self.means = jnp.asarray(sizes.astype(float)), jnp.asarray(means)
        self.products, self.count = jnp.asarray(np.stack(products, axis=1)), len(values)

    def __call__(self, intercepts: Array, slopes: Array) -> Array:
        yy, xy, xx = self.products.T
        about = self.sizes * (self.means[:, 0] - intercepts - slopes * self.means[:, 1]) ** 2
        return jnp.sum(yy - 2 * slopes * xy + slopes**2 * xx + about)


class Slopes(Named):
    """An intercept and a slope for each group about common means.

    `mean_scale` and `deviation_scale` are those of normal priors on means and deviations, infinite for none.
    """

    sums: SlopeSums
    mean_scale: float = eqx.field(static=True)
    deviation_scale: float = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        groups, deviations = self.sums.sizes.shape, (Positive(), (2,))
        return {"alpha": groups, "beta": groups, "mu": (2,), "sigma": deviations, "sigma_y": Positive()}

    def __call__(self, alpha: Array, beta: Array, mu: Array, sigma: Array, sigma_y: Array) -> Array:
        likelihood = -self.sums(alpha, beta) / (2 * sigma_y**2) - self.sums.count * jnp.log(sigma_y)
        effects = normal(alpha, mu[0], sigma[0]) + normal(beta, mu[1], sigma[1])
        deviations = -(jnp.sum(sigma**2) + sigma_y**2) / (2 * self.deviation_scale**2)
        return likelihood + effects + normal(mu, 0.0, self.mean_scale) + deviations


# ---- Logistic -------------------------------------------------------------------------------------------------------


class ItemResponse(Named):
    """Two-parameter logistic: persons θ, items with discrimination a and difficulty b."""

    y: Float[Array, "items persons"]

    def variables(self) -> dict[str, Any]:
        items, persons = self.y.shape
        scales = {"sigma_theta": Positive(), "sigma_a": Positive(), "mu_b": (), "sigma_b": Positive()}
        return {"theta": (persons,), "a": (Positive(), (items,)), "b": (items,), **scales}

    def __call__(
        self, theta: Array, a: Array, b: Array, sigma_theta: Array, sigma_a: Array, mu_b: Array, sigma_b: Array
    ) -> Array:
        logits = a[:, None] * (theta - b[:, None])
        persons = normal(theta, 0.0, sigma_theta)
        items = normal(jnp.log(a), 0.0, sigma_a) - jnp.sum(jnp.log(a)) + normal(b, mu_b, sigma_b)
        scales = cauchy(sigma_theta, 2.0) + cauchy(sigma_a, 2.0) + cauchy(sigma_b, 2.0) + normal(mu_b, 0.0, 5.0)
        return jnp.sum(self.y * logits - softplus(logits)) + persons + items + scales


class SchoolTest(Named):
    """A thousand persons and five items that share one discrimination β."""

    r: Float[Array, "persons items"]

    def variables(self) -> dict[str, Any]:
        persons, items = self.r.shape
        return {"alpha": (items,), "theta": (persons,), "beta": Positive()}

    def __call__(self, alpha: Array, theta: Array, beta: Array) -> Array:
        logits = beta * theta[:, None] - alpha
        priors = normal(theta, 0.0, 1.0) + normal(alpha, 0.0, 100.0) + normal(beta, 0.0, 100.0)
        return jnp.sum(self.r * logits - softplus(logits)) + priors


class Horseshoe(Named):
    """Logistic regression on 1,536 genes with the regularised horseshoe."""

    X: Float[Array, "n genes"]
    y: Float[Array, " n"]
    scale_intercept: float = eqx.field(static=True)
    scale_global: float = eqx.field(static=True)
    nu_global: float = eqx.field(static=True)
    nu_local: float = eqx.field(static=True)
    slab_scale: float = eqx.field(static=True)
    slab_df: float = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        genes = (self.X.shape[1],)
        scales = {"tau": Positive(), "lambda": (Positive(), genes), "caux": Positive()}
        return {"beta0": (), "z": genes, **scales}

    def __call__(self, beta0: Array, z: Array, tau: Array, caux: Array, **local: Array) -> Array:
        scales, slab = local["lambda"], self.slab_scale**2 * caux
        widths = jnp.sqrt(slab * scales**2 / (slab + tau**2 * scales**2))
        logits = beta0 + self.X @ (z * widths * tau)
        priors = normal(z, 0.0, 1.0) + normal(beta0, 0.0, self.scale_intercept)
        priors += _student_t(scales, self.nu_local, 1.0) + _student_t(tau, self.nu_global, 2 * self.scale_global)
        priors += -(self.slab_df / 2 + 1) * jnp.log(caux) - self.slab_df / 2 / caux
        return jnp.sum(self.y * logits - softplus(logits)) + priors


def _student_t(x: Array, df: float, scale: float) -> Array:
    return -(df + 1) / 2 * jnp.sum(jnp.log1p((x / scale) ** 2 / df))


class Logistic(Named):
    """A logistic regression with independent normal coefficients, or flat ones."""

    X: Float[Array, "n dim"]
    y: Float[Array, " n"]
    scale: float = eqx.field(static=True)

    def variables(self) -> dict[str, Any]:
        return {"beta": (self.X.shape[1],)}

    def __call__(self, beta: Array) -> Array:
        logits = self.X @ beta
        return jnp.sum(self.y * logits - softplus(logits)) + normal(beta, 0.0, self.scale)


# ---- From the data --------------------------------------------------------------------------------------------------


def _surgical(data: dict) -> Named:
    return Surgical(float_array(data["r"]), float_array(data["n"]))


def _seeds(data: dict) -> Named:
    x1, x2 = np.asarray(data["x1"]), np.asarray(data["x2"])
    X = np.column_stack([np.ones(x1.size), x1, x2, x1 * x2])
    return Seeds(*map(float_array, (X, data["n"], data["N"])))


def _rats(data: dict) -> Named:
    x = np.asarray(data["x"], float) - data["xbar"]
    return Slopes(SlopeSums(np.asarray(data["rat"]) - 1, data["y"], x), 100.0, math.inf)


def _counts(data: dict) -> Named:
    year = np.asarray(data["year"])
    return Counts(float_array(np.column_stack([year, year**2, year**3])), float_array(data["C"]))


def _radon(data: dict, *, centred: bool) -> Named:
    columns = [data["log_radon"], data["log_uppm"], data["floor_measure"]]
    return Radon(GroupSums(np.asarray(data["county_idx"]) - 1, columns), centred)


def _radon_slopes(data: dict) -> Named:
    county = np.asarray(data["county_idx"]) - 1
    return Slopes(SlopeSums(county, data["log_radon"], data["floor_measure"]), 10.0, 1.0)


def _school_test(data: dict) -> Named:
    """`culm` counts persons up to each pattern of responses."""
    repeats = np.diff(data["culm"], prepend=0)
    return SchoolTest(float_array(np.repeat(np.asarray(data["response"]), repeats, axis=0)))


def _horseshoe(data: dict) -> Named:
    names = ("scale_icept", "scale_global", "nu_global", "nu_local", "slab_scale", "slab_df")
    return Horseshoe(float_array(data["x"]), float_array(data["y"]), *(float(data[name]) for name in names))


def _wells(data: dict) -> Named:
    distance, arsenic, education = (
        (np.asarray(data[name], float) - np.mean(data[name])) / unit
        for name, unit in (("dist", 100), ("arsenic", 1), ("educ", 4))
    )
    products = [distance * arsenic, distance * education, arsenic * education]
    X = np.column_stack([np.ones(distance.size), distance, arsenic, education, *products])
    return Logistic(float_array(X), float_array(data["switched"]), math.inf)


def _dogs(data: dict) -> Named:
    """A dog is shocked (1) or avoids it (0), trial after trial; what counts are its earlier trials."""
    y = np.asarray(data["y"], float)
    shocked = np.cumsum(y, axis=1) - y
    avoided = np.cumsum(1 - y, axis=1) - (1 - y)
    X = np.column_stack([np.ones(y.size), avoided.ravel(), shocked.ravel()])
    return Logistic(float_array(X), float_array(y.ravel()), 100.0)


# Near the published rates. At the origin, a unit rate each, the epidemic is over in days: all that is left are rounding
# errors of the number of susceptibles, and no derivative means anything.
_OUTBREAK = np.log([0.5, 0.25, 10.0, 0.33])

BUILDERS: dict[str, tuple[str, Callable[[dict], Named]]] = {  # the data, and the density from them
    "surgical": ("surgical_data", _surgical),
    "seeds": ("seeds_data", _seeds),
    "rats": ("rats_data", _rats),
    "GLMM_Poisson": ("GLMM_Poisson_data", _counts),
    "radon_mn_centred": ("radon_mn", functools.partial(_radon, centred=True)),
    "radon_mn_noncentred": ("radon_mn", functools.partial(_radon, centred=False)),
    "radon_mn_slopes": ("radon_mn", _radon_slopes),
    "radon_all": ("radon_all", functools.partial(_radon, centred=True)),
    "irt_2pl": ("irt_2pl", lambda data: ItemResponse(float_array(data["y"]))),
    "lsat": ("lsat_data", _school_test),
    "uk_drivers": ("uk_drivers", large_series.drivers),
    "ovarian": ("ovarian", _horseshoe),
    "hmm_gaussian_simulated": ("hmm_gaussian_simulated", large_series.chain),
    "normal_2": ("normal_2", large_series.two_normals),
    "normal_5": ("normal_5", large_series.five_normals),
    "three_docs1200": ("three_docs1200", large_series.documents),
    "sir": ("sir", large_series.cholera),
    "sir_odeint": ("sir", large_series.cholera_adaptive),
    "wells": ("wells_data", _wells),
    "dogs": ("dogs", _dogs),
}
INITIAL_POINTS = {"sir": _OUTBREAK, "sir_odeint": _OUTBREAK}  # elsewhere the origin


def density(name: str, folder: Path) -> Named:
    """The log density of a model's constrained variables."""
    data, build = BUILDERS[name]
    return build(read_data(folder, data))


def _target(name: str, folder: Path) -> bures.Target:
    made = density(name, folder)
    return bures.Target.from_variables(made, made.variables(), initial_point=INITIAL_POINTS.get(name))


MODELS: dict[str, Callable[[Path], bures.Target]] = {name: functools.partial(_target, name) for name in BUILDERS}


def values_and_scores(target: bures.Target) -> Callable[[Array], tuple[Array, Array]]:
    """Log densities and scores of many points, as one compiled program."""
    return jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))
