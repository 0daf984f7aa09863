"""Models of NumPyro, PyMC and Stan: one posterior four ways, and what happens to bad models."""

import concurrent.futures
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import arviz
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest

import bures
from bures.cli.targets import find_target
from bures.frontends import from_numpyro, from_pymc, from_stan
from bures.support import Positive
from bures.target import Target
from tests.problems import columns, needs_stan

STAN = Path(__file__).parent / "stan"
EIGHT_SCHOOLS = Path(bures.__file__).parent / "benchmarks" / "schools.stan"
Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = {"J": 8, "y": Y, "sigma": SIGMA}
TROUBLE = {"rejects": 0, "flat": 0, "N": 4, "x": [-2.0, -1.0, 1.0, 2.0], "y": [0, 1, 0, 1]}


def numpyro_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        eta = numpyro.sample("eta", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * eta)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def pymc_schools():
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        sigma = pm.Data("sigma", SIGMA, dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        eta = pm.Normal("eta", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * eta, dims="school")
        pm.Normal("y", theta, sigma, observed=Y, dims="school")
    return model


def jax_schools():
    def log_density(eta, mu, tau):
        prior = -(mu**2) / 50 - jnp.log1p((tau / 5) ** 2) - jnp.sum(eta**2) / 2
        return prior - jnp.sum(((Y - mu - tau * eta) / SIGMA) ** 2) / 2

    return Target.from_variables(log_density, {"eta": (8,), "mu": (), "tau": Positive()})


FRONTENDS = {
    "numpyro": lambda: from_numpyro(numpyro_schools, SIGMA, y=Y),
    "pymc": lambda: from_pymc(pymc_schools()),
    "stan": lambda: from_stan(EIGHT_SCHOOLS, SCHOOLS),
}
EACH = [pytest.param(name, marks=needs_stan if name == "stan" else ()) for name in FRONTENDS]


@pytest.fixture(scope="module")
def targets():
    return {name: make() for name, make in FRONTENDS.items() if name != "stan" or "BRIDGESTAN" in os.environ}


@pytest.fixture(scope="module")
def numpyro_fit(targets):
    return bures.fit(targets["numpyro"], key=jax.random.key(0))


@pytest.mark.parametrize("name", EACH)
def test_front_ends_agree_with_the_formula(name, targets, key):
    target, formula = targets[name], jax_schools()
    order = columns(target, formula)
    u = jax.random.normal(key, (20, 10))
    z = jnp.zeros_like(u).at[:, order].set(u)
    value, score = eqx.filter_jit(Target.value_and_score)(target, z)
    true_value, true_score = formula.value_and_score(u)
    np.testing.assert_allclose(value - value[0], true_value - true_value[0], atol=1e-8)
    np.testing.assert_allclose(score[:, order], true_score, rtol=1e-8, atol=1e-8)
    weights = jnp.linspace(-1, 1, 20)
    hessian = eqx.filter_jit(Target.weighted_hessian)(target, weights, z)[np.ix_(order, order)]
    np.testing.assert_allclose(hessian, formula.weighted_hessian(weights, u), atol=1e-5)
    variables = jax.vmap(target.constrain)(z)
    tau = np.exp(u[:, 9])
    np.testing.assert_allclose(variables["tau"], tau)
    np.testing.assert_allclose(variables["theta"], u[:, 8:9] + tau[:, None] * u[:, :8])
    pointwise = jax.vmap(target.labels.log_likelihood)(z)
    (log_likelihood,) = pointwise.values()
    residual = (Y - variables["theta"]) / SIGMA
    np.testing.assert_allclose(log_likelihood, -(residual**2) / 2 - np.log(SIGMA * np.sqrt(2 * np.pi)), rtol=1e-10)


@pytest.mark.parametrize("name", EACH)
def test_the_start_has_a_density(name, targets):
    assert np.isfinite(targets[name].log_density(targets[name].initial_point))


def test_dims_and_coords_come_from_the_model(targets):
    assert targets["numpyro"].labels.dims == {"eta": ["school"], "theta": ["school"], "y": ["school"]}
    assert targets["pymc"].labels.dims["theta"] == ["school"]
    assert list(targets["pymc"].labels.coords["school"]) == list("ABCDEFGH")


# One-liners, ArviZ and MCMC


def test_numpyro_to_arviz(numpyro_fit, key):
    tree = numpyro_fit.to_arviz(key, 500)
    assert tree.posterior["theta"].dims == ("chain", "draw", "school")
    np.testing.assert_allclose(
        tree.posterior["theta"], tree.posterior["mu"] + tree.posterior["tau"] * tree.posterior["eta"]
    )
    assert tree.observed_data["y"].dims == ("school",)
    assert {"lp", "log_q", "log_weight", "log_weight_smoothed"} == set(tree.sample_stats.data_vars)
    assert tree.sample_stats.attrs["khat"] < 0.7
    assert "mu" in arviz.summary(tree, kind="stats").index
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shape parameter")  # school A may be called influential
        assert arviz.loo(tree).elpd == pytest.approx(-30.7, abs=0.5)
    assert arviz.plot_forest(tree, var_names=["theta"], backend="none") is not None


def test_pymc_one_liner_inside_the_model():
    with pymc_schools():
        tree = bures.pymc.fit(random_seed=1, draws=300, progressbar=False)
    assert tree.posterior["theta"].dims == ("chain", "draw", "school")
    assert tree.posterior.sizes["draw"] == 300
    assert list(tree.posterior["school"].values) == list("ABCDEFGH")
    assert tree.posterior.attrs["outcome"] == "CONVERGED"
    # posteriordb's 10,000 reference draws of this posterior: mean 4.41, standard deviation 3.31; 300 draws err by 0.2
    assert float(tree.posterior["mu"].mean()) == pytest.approx(4.4, abs=0.8)
    assert float(tree.posterior["mu"].std()) == pytest.approx(3.3, rel=0.25)


@needs_stan
def test_stan_one_liner():
    data = json.dumps({name: np.asarray(value).tolist() for name, value in SCHOOLS.items()})
    fit, tree = bures.stan.fit(EIGHT_SCHOOLS, data, num_draws=300, num_steps=20)
    assert fit.num_steps == 20
    assert set(tree.posterior.data_vars) == {"mu", "tau", "eta", "theta", "y_rep"}
    assert tree.log_likelihood["log_lik"].shape == (1, 300, 8)
    assert tree.posterior.attrs["stan_version"].count(".") == 2


def test_nuts_start_has_every_form(numpyro_fit, key):
    start = numpyro_fit.nuts_start(key, 3)
    assert start.positions.shape == (3, 10)
    np.testing.assert_array_equal(start.inverse_mass_matrix, numpyro_fit.approximation.covariance)
    np.testing.assert_array_equal(start.unconstrained["eta"], start.positions[:, :8])
    np.testing.assert_array_equal(np.exp(start.unconstrained["tau"]), start.constrained["tau"])
    assert start.chain(2)["mu"] == start.positions[2, 8]


def test_nuts_start_shortens_the_warm_up(key):
    """Twenty steps of warm-up are enough with the covariance, and not without it."""

    def model():
        numpyro.sample("x", dist.MultivariateNormal(jnp.ones(5), jnp.diag(jnp.logspace(-4, 4, 5))))

    def effective_draws(kernel, init_params):
        chain = numpyro.infer.MCMC(kernel, num_warmup=20, num_samples=300, progress_bar=False)
        chain.run(jax.random.PRNGKey(0), init_params=init_params)
        return float(arviz.ess(np.asarray(chain.get_samples()["x"])[None, :, 4]))

    start = bures.fit(from_numpyro(model), key=key, num_steps=10).nuts_start(key, 1)
    plain = effective_draws(numpyro.infer.NUTS(model, max_tree_depth=6), {"x": jnp.zeros(5)})
    kernel = numpyro.infer.NUTS(
        model, inverse_mass_matrix=start.inverse_mass_matrix, dense_mass=True, adapt_mass_matrix=False, max_tree_depth=6
    )
    assert effective_draws(kernel, start.chain(0)) > 3 * plain


# Optional packages


def test_importing_bures_imports_no_front_end_and_keeps_float32():
    program = """
import sys, jax, bures
assert not {"numpyro", "pymc", "pytensor", "bridgestan", "arviz"} & set(sys.modules)
import pymc as pm
with pm.Model() as model:
    pm.Normal("x", 1.0, 2.0)
target = bures.frontends.from_pymc(model)
assert not jax.config.jax_enable_x64
assert target.log_density(target.initial_point).dtype == "float32"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("numpyro", "numpyro", lambda: from_numpyro(lambda: None)),
        ("pymc", "pymc", from_pymc),
        ("bridgestan", "stan", lambda: from_stan("parameters { real x; }")),
    ],
)
def test_a_missing_package_says_what_to_install(package, extra, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'bures\[{extra}\]'"):
        call()


# Bad models


def discrete_pymc():
    with pm.Model() as model:
        pm.Poisson("count", pm.HalfNormal("rate"))
    return model


def empty_pymc():
    with pm.Model() as model:
        pm.Normal("x", 0, 1, observed=1.0)
    return model


def negative_pymc():
    with pm.Model() as model:
        pm.Gamma("waiting", pm.HalfNormal("shape"), 1, observed=-1.0)
    return model


def misshaped_pymc():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(3))
        pm.Normal("outcome", pm.Normal("slope") * x, observed=np.ones(3))
        pm.set_data({"x": np.ones(4)})
    return model


def numpyro_regression(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("outcome", dist.Normal(slope * x, 1), obs=y)


BAD = {
    "discrete, NumPyro": (lambda: from_numpyro(lambda: numpyro.sample("count", dist.Poisson(3))), "'count' is discr"),
    "discrete, PyMC": (lambda: from_pymc(discrete_pymc()), "'count' is discrete"),
    "no latents, NumPyro": (lambda: from_numpyro(lambda: numpyro.sample("x", dist.Normal(), obs=1.0)), "no latent"),
    "no latents, PyMC": (lambda: from_pymc(empty_pymc()), "no latent variables"),
    "shape, NumPyro": (lambda: from_numpyro(numpyro_regression, np.ones(3), np.ones(4)), "'outcome'.*shape"),
    "shape, PyMC": (lambda: from_pymc(misshaped_pymc()), "'outcome'.*shapes"),
    "arguments, NumPyro": (lambda: from_numpyro(numpyro_regression, np.ones(3)), "cannot be run.*argument"),
    "no model, PyMC": (from_pymc, "model must be given"),
    "no program, Stan": (lambda: from_stan("missing.stan"), "a .stan file that exists"),
    "not a program, Stan": (lambda: from_stan(3), "program must be Stan code"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_models_are_refused_by_name(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


NO_DENSITY = {
    "NaN, NumPyro": (lambda: from_numpyro(numpyro_regression, np.ones(2), np.array([1.0, np.nan])), "site 'outcome'"),
    "negative, PyMC": (lambda: from_pymc(negative_pymc()), "not finite for 'waiting'"),
}


@pytest.mark.parametrize("case", NO_DENSITY)
def test_a_model_without_density_says_which_variable(case, key):
    make, message = NO_DENSITY[case]
    target = make()
    assert message in target.log_density.explain(np.asarray(target.initial_point))
    with pytest.raises(ValueError, match=message):
        bures.fit(target, key=key)


STAN_BAD = {
    "compile": ("parameters { real x; } model { x ~ normal(0, sigma); }", None, "(?s)does not compile.*sigma"),
    "discrete": ("parameters { int count; }", None, "(?s)does not compile.*int"),
    "rejects": (STAN / "trouble.stan", TROUBLE | {"rejects": 1}, "not finite.*alpha is refused"),
    "shape": (STAN / "trouble.stan", TROUBLE | {"x": [1.0, 2.0]}, "does not accept the data.*x"),
    "missing": (STAN / "trouble.stan", {"N": 4}, "does not accept the data.*rejects"),
    "no file": (STAN / "trouble.stan", "missing.json", "data must be"),
}


@needs_stan
@pytest.mark.parametrize("case", STAN_BAD)
def test_bad_stan_programs_are_refused_with_the_reason(case):
    program, data, message = STAN_BAD[case]
    with pytest.raises(ValueError, match=message):
        from_stan(program, data)


@needs_stan
def test_separated_data_with_a_flat_prior_are_refused_by_name(key):
    target = from_stan(STAN / "trouble.stan", TROUBLE | {"flat": 1, "y": [0, 0, 1, 1]})
    with pytest.raises(ValueError, match=r"cannot be normalised.*beta"):
        bures.fit(target, key=key)


def test_separated_data_with_a_flat_prior_in_pymc(key):
    with pm.Model() as model:
        slope = pm.Flat("slope")
        pm.Bernoulli("outcome", logit_p=slope * np.array([-2.0, -1.0, 1.0, 2.0]), observed=[0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"cannot be normalised.*slope"):
        bures.fit(from_pymc(model), key=key)


def test_a_flat_direction_is_refused_by_name(key):
    def model():
        first = numpyro.sample("first", dist.ImproperUniform(dist.constraints.real, (), ()))
        second = numpyro.sample("second", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(first + second, 0.1), obs=1.0)

    with pytest.raises(ValueError, match=r"cannot be normalised.*first.*second|second.*first"):
        bures.fit(from_numpyro(model), key=key)


def test_wide_beside_narrow(key):
    def model():
        numpyro.sample("wide", dist.Normal(3e4, 1e5))
        numpyro.sample("narrow", dist.Normal(2.0, 1e-3))

    q = bures.fit(from_numpyro(model), key=key).approximation
    np.testing.assert_allclose(q.mean, [2.0, 3e4], rtol=1e-3)
    np.testing.assert_allclose(q.standard_deviations, [1e-3, 1e5], rtol=1e-3)


# Stan's callbacks


@pytest.fixture(scope="module")
def stan_target():
    return from_stan(STAN / "trouble.stan", TROUBLE)


@needs_stan
def test_stan_matrices_have_their_shape(stan_target):
    z = jnp.arange(8.0)
    assert stan_target.names[2:5] == ("weights[0,0]", "weights[1,0]", "weights[0,1]")
    np.testing.assert_array_equal(stan_target.constrain(z)["weights"], [[2, 4, 6], [3, 5, 7]])


@needs_stan
def test_stan_derivatives_in_every_composition(stan_target, key):
    f, z = stan_target.log_density, jax.random.normal(key, (2, 3, 8))
    gradient = jax.vmap(jax.vmap(jax.grad(f)))(z)
    assert gradient.shape == z.shape
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(z[0]), gradient[0])
    step = 1e-5 * jnp.eye(8)[1]
    np.testing.assert_allclose((f(z[0, 0] + step) - f(z[0, 0] - step)) / 2e-5, gradient[0, 0, 1], rtol=1e-6)
    hessian = jax.vmap(jax.hessian(f))(z[0])
    np.testing.assert_allclose(
        stan_target.weighted_hessian(jnp.array([1.0, 0.0, -2.0]), z[0]), hessian[0] - 2 * hessian[2], atol=1e-6
    )
    assert f(z[0, 0].astype(jnp.float32)).dtype == jnp.float32


@needs_stan
def test_a_point_that_stan_rejects_has_no_density(stan_target):
    z = jnp.zeros(8).at[0].set(jnp.nan)
    value, gradient = jax.value_and_grad(stan_target.log_density)(z)
    assert value == -jnp.inf
    np.testing.assert_array_equal(gradient, 0)


@needs_stan
def test_stan_from_many_threads(stan_target, key):
    z = jax.random.normal(key, (8, 500, 8))
    expected = [stan_target.value_and_score(part)[1] for part in z]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: stan_target.value_and_score(part)[1], z))
    np.testing.assert_array_equal(found, expected)


@needs_stan
def test_a_bridgestan_model_and_an_included_file(tmp_path, stan_target):
    text = (STAN / "trouble.stan").read_text()
    (tmp_path / "body.stan").write_text(text)
    (tmp_path / "model.stan").write_text("#include body.stan")
    included = from_stan(tmp_path / "model.stan", TROUBLE)  # the same text, so it is compiled already
    model = stan_target.log_density.evaluator.model
    for other in (included, from_stan(model)):
        assert other.log_density(jnp.ones(8)) == stan_target.log_density(jnp.ones(8))
    with pytest.raises(ValueError, match="data must be left out"):
        from_stan(model, TROUBLE)


# The command line


@needs_stan
def test_command_line_stan(tmp_path):
    data = {name: np.asarray(value).tolist() for name, value in SCHOOLS.items()}
    (tmp_path / "data.json").write_text(json.dumps(data))
    program = str(EIGHT_SCHOOLS)
    command = [sys.executable, "-m", "bures.cli", "fit", program, "--data", "data.json", "--num-steps", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "schools: full rank, 5 steps" in done.stdout
    assert (tmp_path / "bures-output" / "schools.fit").is_file()


def test_command_line_finds_numpyro_and_pymc_models(tmp_path):
    (tmp_path / "models.py").write_text("""
import numpyro, numpyro.distributions as dist, pymc
def regression(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("outcome", dist.Normal(slope * x, 1), obs=y)
with pymc.Model() as coin:
    pymc.Binomial("heads", 10, pymc.Beta("share", 1, 1), observed=3)
""")
    (tmp_path / "data.json").write_text('{"x": [1.0, 2.0], "y": [1.0, 2.0]}')
    target, name = find_target(f"{tmp_path}/models.py:regression", None, tmp_path / "data.json")
    assert (name, target.names) == ("regression", ("slope",))
    target, name = find_target(f"{tmp_path}/models.py:coin", None, None)
    assert (name, target.names) == ("coin", ("share_logodds__",))
    with pytest.raises(ValueError, match="--data is for Stan programs and NumPyro models"):
        find_target(f"{tmp_path}/models.py:coin", None, tmp_path / "data.json")
    with pytest.raises(ValueError, match="--data must be a JSON file"):
        find_target("model.stan", None, tmp_path / "missing.json")
