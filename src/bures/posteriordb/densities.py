"""The fifteen posteriors as log densities of their constrained variables, up to constants.

Each is an `equinox.Module` that holds its data as arrays. Here are the regressions and the hierarchical ones, and how
each of the fifteen is built from posteriordb's data; those of time series are in `series.py`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import as_array
from bures.models import softplus
from bures.posteriordb.density import Cauchy, Density, Flat, Normal, Values
from bures.posteriordb.series import DriveChain, Garch, NormalChain, PredatorAndPrey
from bures.support import Interval, Ordered, Positive


class Regression(Density):
    """y ~ N(X b, σ), through the least-squares fit: ‖y − X b‖² = residual + ‖R (b − b̂)‖² with X = QR.

    The cost does not depend on the number of observations, and large means of y or X cost no accuracy.
    """

    coefficients: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)  # names and shapes of parts of b
    factor: Float[Array, "dim dim"]
    best: Float[Array, " dim"]
    residual: Float[Array, ""]
    count: int = eqx.field(static=True)
    prior: Any
    deviation_prior: Any

    def __init__(
        self, coefficients: dict[str, tuple[int, ...]], columns: list, y: Any, prior: Any, deviation_prior: Any
    ):
        X, y = np.column_stack(columns).astype(float), np.asarray(y, float)
        orthogonal, factor = np.linalg.qr(X)
        best = np.linalg.solve(factor, orthogonal.T @ y)
        self.coefficients = tuple(coefficients.items())
        self.factor, self.best = as_array(factor), as_array(best)
        self.residual = as_array(np.sum((y - X @ best) ** 2))
        self.count = y.size
        self.prior, self.deviation_prior = prior, deviation_prior

    def variables(self) -> dict[str, Any]:
        return {**dict(self.coefficients), "sigma": Positive()}

    def __call__(self, *, sigma: Array, **values: Array) -> Float[Array, ""]:
        b = jnp.concatenate([jnp.ravel(values[name]) for name, _ in self.coefficients])
        squares = self.residual + jnp.sum((self.factor @ (b - self.best)) ** 2)
        likelihood = -squares / (2 * sigma**2) - self.count * jnp.log(sigma)
        return likelihood + self.prior(b) + self.deviation_prior(sigma)


class CenteredSchools(Density):
    """y ~ N(θ, σ), θ ~ N(μ, τ): a funnel in (θ, τ)."""

    y: Float[Array, " schools"]
    sigma: Float[Array, " schools"]

    def variables(self) -> dict[str, Any]:
        return {"theta": self.y.shape, "mu": (), "tau": Positive()}

    def __call__(self, theta: Array, mu: Array, tau: Array) -> Float[Array, ""]:
        schools = Normal(mu, tau)(theta) - theta.size * jnp.log(tau)
        return Normal(theta, self.sigma)(self.y) + schools + Normal(0, 5)(mu) + Cauchy(5)(tau)


class NoncenteredSchools(Density):
    """The same with θ = μ + τ θ̃, which removes the funnel."""

    y: Float[Array, " schools"]
    sigma: Float[Array, " schools"]

    def variables(self) -> dict[str, Any]:
        return {"theta_trans": self.y.shape, "mu": (), "tau": Positive()}

    def __call__(self, theta_trans: Array, mu: Array, tau: Array) -> Float[Array, ""]:
        likelihood = Normal(mu + tau * theta_trans, self.sigma)(self.y)
        return likelihood + Normal(0, 1)(theta_trans) + Normal(0, 5)(mu) + Cauchy(5)(tau)

    def describe(self, values: Values) -> Values:
        theta = values["mu"] + values["tau"] * values["theta_trans"]
        return {"theta": theta, "mu": values["mu"], "tau": values["tau"]}

    def recover(self, values: Values) -> Values:
        mu, tau = values["mu"], values["tau"]
        return {"theta_trans": (values["theta"] - mu) / tau, "mu": mu, "tau": tau}


class PoissonProcess(Density):
    """k ~ Poisson(exp f) with f = L f̃ a Gaussian process, L the Cholesky factor of its kernel."""

    x: Float[Array, " n"]
    k: Float[Array, " n"]

    def variables(self) -> dict[str, Any]:
        return {"rho": Positive(), "alpha": Positive(), "f_tilde": self.x.shape}

    def _factor(self, rho: Array, alpha: Array) -> Float[Array, "n n"]:
        return _kernel_factor(jnp.stack([rho, alpha]), self.x)

    def __call__(self, rho: Array, alpha: Array, f_tilde: Array) -> Float[Array, ""]:
        f = jnp.sum(self._factor(rho, alpha) * f_tilde, axis=1)
        priors = 24 * jnp.log(rho) - 4 * rho + Normal(0, 2)(alpha) + Normal(0, 1)(f_tilde)
        return jnp.sum(self.k * f - jnp.exp(f)) + priors

    def describe(self, values: Values) -> Values:
        f = self._factor(values["rho"], values["alpha"]) @ values["f_tilde"]
        return {"rho": values["rho"], "alpha": values["alpha"], "f": f}

    def recover(self, values: Values) -> Values:
        factor, f_tilde = self._factor(values["rho"], values["alpha"]), []
        for i, f in enumerate(values["f"]):
            f_tilde.append((f - sum(factor[i, j] * f_tilde[j] for j in range(i))) / factor[i, i])
        return {"rho": values["rho"], "alpha": values["alpha"], "f_tilde": jnp.stack(f_tilde)}


def _by_jacobians(function: Any, order: int) -> Any:
    """A function (p, x) of a short vector p whose derivatives in p are contractions of its Jacobians.

    The Jacobians are then computed once, however many tangents the Hessian of a larger function needs.
    """
    if order == 0:
        return function
    jacobian = _by_jacobians(jax.jacfwd(function), order - 1)
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), jnp.sum(jacobian(*primals) * tangents[0], axis=-1)))
    return wrapped


def _plain_kernel_factor(parameters: Float[Array, " 2"], x: Float[Array, " n"]) -> Float[Array, "n n"]:
    """The lower Cholesky factor of α² exp(−(x − x')² / 2ρ²) + 1e-10 I.

    Column by column in elementwise operations: LAPACK is slow on batches of matrices this small.
    """
    rho, alpha = parameters
    kernel = alpha**2 * jnp.exp(-((x[:, None] - x) ** 2) / (2 * rho**2)) + 1e-10 * jnp.eye(x.size)
    order = jnp.arange(x.size)

    def eliminate(rest, j):
        column = jnp.where(order >= j, rest[:, j] / jnp.sqrt(rest[j, j]), 0)
        return rest - column[:, None] * column, column

    return jax.lax.scan(eliminate, kernel, order)[1].T


_kernel_factor = _by_jacobians(_plain_kernel_factor, order=2)


class Mixture(Density):
    """y ~ θ N(μ₁, σ₁) + (1 − θ) N(μ₂, σ₂) with μ₁ < μ₂."""

    y: Float[Array, " n"]

    def variables(self) -> dict[str, Any]:
        return {"mu": (Ordered(), (2,)), "sigma": (Positive(), (2,)), "theta": Interval(0, 1)}

    def __call__(self, mu: Array, sigma: Array, theta: Array) -> Float[Array, ""]:
        first, second = (-(((self.y - mu[k]) / sigma[k]) ** 2) / 2 - jnp.log(sigma[k]) for k in range(2))
        first, second = first + jnp.log(theta), second + jnp.log1p(-theta)
        likelihood = first + softplus(second - first)
        beta = 4 * (jnp.log(theta) + jnp.log1p(-theta))
        return jnp.sum(likelihood) + Normal(0, 2)(mu) + Normal(0, 2)(sigma) + beta


# ---- From the data of posteriordb -----------------------------------------------------------------------------------


def _nes(data: dict) -> Density:
    age = np.asarray(data["age_discrete"])
    ages = [age == group for group in (2, 3, 4)]
    rest = [data[name] for name in ("educ1", "gender", "income")]
    columns = [np.ones(age.size), data["real_ideo"], data["race_adj"], *ages, *rest]
    return Regression({"beta": (9,)}, columns, data["partyid7"], Flat(), Flat())


def _kidscore(data: dict) -> Density:
    columns = [np.ones(data["N"]), data["mom_iq"]]
    return Regression({"beta": (2,)}, columns, data["kid_score"], Flat(), Cauchy(2.5))


def _earnings(data: dict) -> Density:
    return Regression({"beta": (2,)}, [np.ones(data["N"]), data["height"]], data["earn"], Flat(), Flat())


def _mesquite(data: dict) -> Density:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    columns = [np.ones(data["N"]), *(data[name] for name in names)]
    return Regression({"beta": (7,)}, columns, data["weight"], Flat(), Flat())


def _kilpisjarvi(data: dict) -> Density:
    means, scales = ([data[f"{kind}{name}"] for name in ("alpha", "beta")] for kind in ("pmu", "ps"))
    prior = Normal(as_array(means, float), as_array(scales, float))
    return Regression({"alpha": (), "beta": ()}, [np.ones(data["N"]), data["x"]], data["y"], prior, Flat())


def _blr(data: dict) -> Density:
    return Regression({"beta": (data["D"],)}, [np.asarray(data["X"])], data["y"], Normal(0, 10), Normal(0, 10))


def _autoregression(data: dict) -> Density:
    K, y = data["K"], np.asarray(data["y"])
    columns = [np.ones(y.size - K), *(y[K - lag : y.size - lag] for lag in range(1, K + 1))]
    return Regression({"alpha": (), "beta": (K,)}, columns, y[K:], Normal(0, 10), Cauchy(2.5))


def _arrays(kind: type[Density], *names: str) -> Any:
    """A density whose fields are these entries of the data."""
    return lambda data: kind(*(as_array(data[name], float) for name in names))


def _hares(data: dict) -> Density:
    return PredatorAndPrey(as_array(np.vstack([data["y_init"], data["y"]]), float))


BUILDERS: dict[str, Any] = {
    "nes2000-nes": _nes,
    "kidiq-kidscore_momiq": _kidscore,
    "earnings-earn_height": _earnings,
    "mesquite-mesquite": _mesquite,
    "kilpisjarvi_mod-kilpisjarvi": _kilpisjarvi,
    "sblrc-blr": _blr,
    "eight_schools-eight_schools_centered": _arrays(CenteredSchools, "y", "sigma"),
    "eight_schools-eight_schools_noncentered": _arrays(NoncenteredSchools, "y", "sigma"),
    "arK-arK": _autoregression,
    "garch-garch11": _arrays(Garch, "y", "sigma1"),
    "gp_pois_regr-gp_pois_regr": _arrays(PoissonProcess, "x", "k"),
    "hmm_example-hmm_example": _arrays(NormalChain, "y"),
    "bball_drive_event_0-hmm_drive_0": _arrays(DriveChain, "u", "v", "alpha"),
    "hudson_lynx_hare-lotka_volterra": _hares,
    "low_dim_gauss_mix-low_dim_gauss_mix": _arrays(Mixture, "y"),
}
