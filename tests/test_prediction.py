"""Predictions: NumPyro's, PyMC's and Stan's own, a function of one's own; with weights; of new data."""

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest

import bures
from bures.frontends import from_numpyro, from_pymc, from_stan
from tests.problems import needs_stan
from tests.test_frontends import EIGHT_SCHOOLS, SCHOOLS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = X @ [1.0, -2.0] + 0.5 + 0.7 * RNG.normal(size=40)
X_NEW, Y_NEW = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]), np.array([0.5, -0.5, 2.5])
MEANS = X_NEW @ [1.0, -2.0] + 0.5


def numpyro_model(X, scale, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 5).expand([2]))
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(scale))
    mu = numpyro.deterministic("mu", intercept + X @ slope)
    with numpyro.plate("row", X.shape[0]):
        numpyro.sample("y", dist.Normal(mu, noise), obs=y)


def pymc_model():
    with pm.Model(coords={"column": ["left", "right"], "row": np.arange(40)}) as model:
        x, y = pm.Data("X", X, dims=("row", "column")), pm.Data("y_data", Y, dims="row")
        slope = pm.Normal("slope", 0, 5, dims="column")
        intercept, noise = pm.Normal("intercept", 0, 5), pm.HalfNormal("noise", 2)
        mu = pm.Deterministic("mu", intercept + x @ slope, dims="row")
        pm.Normal("y", mu, noise, observed=y, dims="row")
    return model


@pytest.fixture(scope="module")
def theirs():
    return bures.fit(from_numpyro(numpyro_model, X, 2.0, y=Y), key=jax.random.key(0))


@pytest.fixture(scope="module")
def model():
    return pymc_model()


@pytest.fixture(scope="module")
def pymc_fit(model):
    return bures.fit(from_pymc(model), key=jax.random.key(0))


def check_replicated(tree):
    """Means of replicated observations, their spread, and the log likelihood, each by another route."""
    drawn, posterior = tree.posterior_predictive["y"], tree.posterior
    assert drawn.dims == ("chain", "draw", "row") and drawn.sizes["row"] == 40
    slope, noise = posterior["slope"].values[0], posterior["noise"].values[0]
    mu = posterior["intercept"].values[0][:, None] + slope @ X.T
    residuals = (drawn.values[0] - mu) / noise[:, None]
    assert np.mean(residuals) == pytest.approx(0, abs=4 / np.sqrt(residuals.size))
    assert np.std(residuals) == pytest.approx(1, abs=4 / np.sqrt(2 * residuals.size))
    expected = -(((Y - mu) / noise[:, None]) ** 2) / 2 - np.log(noise)[:, None] - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(tree.log_likelihood["y"].values[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tree.observed_data["y"], Y, rtol=1e-6)
    loo = arviz.loo(tree)
    assert loo.elpd < np.sum(np.log(np.mean(np.exp(expected), axis=0)))
    assert loo.elpd == pytest.approx(np.sum(np.log(np.mean(np.exp(expected), axis=0))) - loo.p)


def check_new(tree):
    assert set(tree.children) == {"posterior", "sample_stats", "predictions"}
    drawn = tree.predictions["y"].values[0]
    assert drawn.shape == (1000, 3)
    np.testing.assert_allclose(drawn.mean(axis=0), MEANS, atol=0.6)
    posterior = tree.posterior
    mu = posterior["intercept"].values[0][:, None] + posterior["slope"].values[0] @ X_NEW.T
    np.testing.assert_allclose(tree.predictions["mu"].values[0], mu, rtol=1e-4, atol=1e-4)
    residuals = (drawn - mu) / posterior["noise"].values[0][:, None]
    assert np.std(residuals) == pytest.approx(1, abs=4 / np.sqrt(2 * residuals.size))


# ---- NumPyro


def test_numpyro_replicates(theirs, key):
    check_replicated(theirs.predict(key))


def test_numpyro_predicts_new_rows(theirs, key):
    check_new(theirs.predict(key, X_NEW))
    by_name = theirs.predict(key, X=X_NEW)  # scale stays, y is drawn
    np.testing.assert_array_equal(by_name.predictions["y"], theirs.predict(key, X_NEW).predictions["y"])


def test_numpyro_scores_new_observations(theirs, key):
    tree = theirs.predict(key, X_NEW, y=Y_NEW)
    posterior, mu = tree.posterior, tree.predictions["mu"].values[0]
    noise = posterior["noise"].values[0][:, None]
    expected = -(((Y_NEW - mu) / noise) ** 2) / 2 - np.log(noise) - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(tree.log_likelihood["y"].values[0], expected, rtol=1e-4, atol=1e-4)


def test_numpyro_says_what_is_wrong_with_new_data(theirs, key):
    with pytest.raises(ValueError, match="NumPyro model"):
        theirs.predict(key, X_NEW[:, :1])


def test_numpyro_arguments_may_decide_sizes(key):
    """What a model is fitted with it predicts with: a size, a word, and NumPy's functions of the data."""

    def model(size, group, kind, y=None):
        level = numpyro.sample("level", dist.Normal(0, 5).expand([len(np.unique(group))]).to_event(1))
        with numpyro.plate("row", size):
            numpyro.sample("y", {"normal": dist.Normal}[kind](level[group], 1), obs=y)

    group, y = np.arange(30) % 3, np.arange(30) % 3 + 10.0
    fit = bures.fit(from_numpyro(model, 30, group, "normal", y), key=key)
    replicated = fit.predict(key).posterior_predictive["y"].mean(("chain", "draw"))
    np.testing.assert_allclose(replicated, y, atol=0.3)
    new = fit.predict(key, size=4, group=np.array([0, 1, 2, 2])).predictions["y"].mean(("chain", "draw"))
    np.testing.assert_allclose(new, [10, 11, 12, 12], atol=0.3)


def test_draws_follow_the_key(theirs, key):
    first, same, other = (theirs.predict(k, X_NEW, num_draws=50) for k in (key, key, jax.random.key(9)))
    np.testing.assert_array_equal(first.predictions["y"], same.predictions["y"])
    assert not np.array_equal(first.predictions["y"], other.predictions["y"])


def test_predictions_after_a_change_of_coordinates(key):
    """A recentred target keeps the model's own variables, and its predictions."""

    def schools(y=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(5))
        with numpyro.plate("school", 4):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, 10.0), obs=y)

    target = bures.recentre(from_numpyro(schools, y=np.array([10.0, -5.0, 3.0, 20.0])), 0.0)
    tree = bures.fit(target, key=key).predict(key, num_draws=2000)
    difference = tree.posterior_predictive["y"].values - tree.posterior["theta"].values
    assert np.std(difference) == pytest.approx(10, rel=0.05)


# ---- PyMC


def test_pymc_replicates(pymc_fit, key):
    check_replicated(pymc_fit.predict(key))


def test_pymc_predicts_new_rows_and_keeps_the_model(pymc_fit, model, key):
    tree = pymc_fit.predict(key, X=X_NEW, coords={"row": [100, 101, 102]})
    check_new(tree)
    assert tree.predictions["row"].values.tolist() == [100, 101, 102]
    np.testing.assert_array_equal(model["X"].get_value(), X)
    assert list(model.coords["row"]) == list(range(40))


def test_pymc_scores_new_observations(pymc_fit, key):
    tree = pymc_fit.predict(key, X=X_NEW, y_data=Y_NEW, coords={"row": [100, 101, 102]})
    mu, noise = tree.predictions["mu"].values[0], tree.posterior["noise"].values[0][:, None]
    expected = -(((Y_NEW - mu) / noise) ** 2) / 2 - np.log(noise) - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(tree.log_likelihood["y"].values[0], expected, rtol=1e-4, atol=1e-4)


def test_pymc_wants_names(pymc_fit, key):
    with pytest.raises(ValueError, match="data must be given by name for a PyMC model"):
        pymc_fit.predict(key, X_NEW)
    with pytest.raises(ValueError, match=r"named as the pm.Data of the model \(X, y_data\), but got 'Z'"):
        pymc_fit.predict(key, Z=X_NEW)


# ---- Stan


@needs_stan
def test_stan_generates_quantities(key):
    fit = bures.fit(from_stan(EIGHT_SCHOOLS, SCHOOLS), key=jax.random.key(0))
    tree = fit.predict(key)
    residuals = (tree.posterior_predictive["y_rep"].values - tree.posterior["theta"].values) / SCHOOLS["sigma"]
    assert np.std(residuals) == pytest.approx(1, abs=4 / np.sqrt(2 * residuals.size))
    assert tree.log_likelihood["log_lik"].shape == (1, 1000, 8)
    exact = {**SCHOOLS, "sigma": np.full(8, 0.01)}
    new = fit.predict(key, data=exact)
    np.testing.assert_allclose(new.predictions["y_rep"], new.posterior["theta"], atol=0.06)
    np.testing.assert_allclose(new.predictions["theta"], new.posterior["theta"], rtol=1e-6)
    assert new.log_likelihood["log_lik"].shape == (1, 1000, 8)
    with pytest.raises(ValueError, match="Stan does not accept the new data"):
        fit.predict(key, data={"J": 8})
    with pytest.raises(ValueError, match="data must be for the same parameters"):
        fit.predict(key, data={"J": 1, "y": [1.0], "sigma": [1.0]})


# ---- A function of one's own, weights, and the draws of bures.sample


def noisy(draw, key):
    return {"y": draw["z"][0] + jax.random.normal(key), "sum": jnp.sum(draw["z"])}


def test_a_function_of_ones_own(key):
    fit = bures.fit(bures.models.gaussian(2), key=jax.random.key(0))
    tree = fit.predict(key, noisy, num_draws=4000)
    np.testing.assert_allclose(tree.posterior_predictive["sum"], tree.posterior["z"].sum("z_dim_0"), rtol=1e-5)
    assert np.std(tree.posterior_predictive["y"] - tree.posterior["z"][..., 0]) == pytest.approx(1, abs=0.05)
    same = fit.predict(key, function=noisy, num_draws=4000)
    np.testing.assert_array_equal(same.posterior_predictive["y"], tree.posterior_predictive["y"])
    with pytest.raises(ValueError, match="function must be given for a target without a model"):
        fit.predict(key)


def test_weights_are_carried_through(key):
    """An approximation beside the target: plain predictions are off, weighted and resampled ones are not."""
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim=1)
    init = bures.Gaussian(jnp.array([0.5]), 1.2 * jnp.eye(1))
    options = dict(init=init, num_steps=1, geometry=bures.BuresWasserstein(step_size=1e-9))
    fit = bures.fit(target, key=jax.random.key(0), **options)
    plain = fit.predict(key, lambda draw, key: draw["z"][0], num_draws=4000, resample=False)
    values, log_weights = plain.posterior_predictive["prediction"].values[0], plain.sample_stats["log_weight"].values[0]
    weights = np.exp(log_weights - log_weights.max())
    assert values.mean() == pytest.approx(0.5, abs=0.1)
    assert np.average(values, weights=weights) == pytest.approx(0, abs=0.1)
    resampled = fit.predict(key, lambda draw, key: draw["z"][0], num_draws=1000)
    assert float(resampled.posterior_predictive["prediction"].mean()) == pytest.approx(0, abs=0.15)


def test_the_draws_of_sample_predict(key):
    tree = bures.numpyro.sample(numpyro_model, X, 2.0, y=Y)
    check_new(tree.predict(key, X_NEW))
    check_replicated(tree.predict(key))
    target = from_numpyro(numpyro_model, X, 2.0, y=Y)
    by_hand = bures.predict(tree.copy(), target, key, X_NEW)
    np.testing.assert_array_equal(by_hand.predictions["y"], tree.predict(key, X_NEW).predictions["y"])
    assert by_hand.attrs["rung"] == tree.attrs["rung"]
    with pytest.raises(ValueError, match=r"tree must be as bures\.sample returned it"):
        tree.copy().predict(key)


def test_chains_keep_their_draws_in_any_order_of_axes(key):
    z = np.arange(12.0).reshape(3, 4)
    target = bures.Target(lambda z: -(z @ z), dim=1)
    tree = arviz.from_dict({"posterior": {"z": z[:, :, None]}})
    turned = type(tree).from_dict({"posterior": tree.posterior.dataset.transpose("draw", "z_dim_0", "chain")})
    for each in (tree, turned):
        found = bures.predict(each, target, key, lambda draw, key: draw["z"][0])
        np.testing.assert_array_equal(found.posterior_predictive["prediction"], z)


def test_data_beside_a_function_are_not_left_out_in_silence(key):
    fit = bures.fit(lambda z: -(z @ z), dim=1, key=key)
    with pytest.raises(ValueError, match="data must be left out where a function is given"):
        fit.predict(key, X_NEW, function=lambda draw, key: draw["z"])
    stacked = fit.to_arviz(key).posterior.dataset.stack(sample=("chain", "draw"))
    with pytest.raises(ValueError, match="dimensions `chain` and `draw`"):
        bures.predict(arviz.convert_to_datatree(stacked), fit.target, key, lambda draw, key: draw["z"])


def test_predict_wants_draws_and_a_target(theirs, key):
    with pytest.raises(ValueError, match="draws must be a DataTree with a group `posterior`"):
        bures.predict({}, theirs.target, key)
    with pytest.raises(ValueError, match=r"target must be a bures.Target or a PyMC model.*from_numpyro"):
        bures.predict(theirs.to_arviz(key), numpyro_model, key)


def test_the_draws_of_sample_predict_with_a_pymc_model(model, key):
    tree = bures.sample(model, key=key)
    check_replicated(bures.predict(tree.copy(), model, key))
