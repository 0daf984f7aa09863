"""ArviZ export: named, constrained variables, with weights."""

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import low_rank_gaussian

import bures
from bures import export
from bures.support import Interval, Positive


@pytest.fixture(scope="module")
def fit() -> bures.Fit:
    def log_density(mu, sigma, share):
        return (
            jnp.sum(-(((mu - 1) / 0.5) ** 2) / 2) - jnp.log(sigma) * 0 - sigma + jnp.log(share) + 2 * jnp.log(1 - share)
        )

    variables = {"mu": (3,), "sigma": Positive(), "share": Interval(0.0, 1.0)}
    target = bures.Target.from_variables(log_density, variables)
    return bures.fit(target, key=jax.random.key(0))


def test_groups_names_and_shapes(fit, key):
    tree = fit.to_arviz(key, num_draws=400)
    posterior = tree["posterior"]
    assert set(posterior.data_vars) == {"mu", "sigma", "share"}
    assert posterior["mu"].shape == (1, 400, 3)
    assert posterior["sigma"].shape == (1, 400)
    assert float(posterior["sigma"].min()) > 0
    assert 0 < float(posterior["share"].min()) < float(posterior["share"].max()) < 1
    assert {"lp", "log_q", "log_weight", "log_weight_smoothed"} <= set(tree["sample_stats"].data_vars)
    assert tree["posterior"].attrs["outcome"] == "CONVERGED"


def test_resampled_draws_have_the_known_means(fit, key):
    posterior = fit.to_arviz(key, num_draws=4000)["posterior"]
    # sigma ~ Exponential(1), share ~ Beta(2, 3), mu ~ N(1, 0.5²); about 2,000 effective draws or more
    assert float(posterior["sigma"].mean()) == pytest.approx(1.0, abs=0.1)
    assert float(posterior["share"].mean()) == pytest.approx(0.4, abs=0.03)
    np.testing.assert_allclose(posterior["mu"].mean(("chain", "draw")), 1.0, atol=0.05)


def test_plain_draws_keep_their_weights(fit, key):
    tree = fit.to_arviz(key, num_draws=100, resample=False)
    stats = tree["sample_stats"]
    np.testing.assert_allclose(stats["log_weight"], stats["lp"] - stats["log_q"])
    assert tree["posterior"].attrs["resampled"] == 0


def test_the_outcome_comes_with_advice(key):
    good = bures.fit(bures.models.gaussian(2), key=key)
    assert "close to the target" in good.to_arviz(key, num_draws=100)["posterior"].attrs["advice"]
    heavy = bures.fit(bures.models.funnel(5), key=key)
    attributes = heavy.to_arviz(key, num_draws=100)["posterior"].attrs
    assert attributes["outcome"] == "CONVERGED" and attributes["khat"] > 0.7
    assert "not trust" in attributes["advice"]


def test_arviz_can_summarise_it(fit, key):
    summary = arviz.summary(fit.to_arviz(key, num_draws=200), kind="stats")
    assert list(summary.index)[:1] == ["mu[0]"]


def test_bad_input(fit, key, unchecked_types):
    with pytest.raises(ValueError, match="num_draws"):
        fit.to_arviz(key, num_draws=0)


# ---- Families -------------------------------------------------------------------------------------------------------


FAMILIES = {"full rank": bures.FullRank(), "mean field": bures.MeanField(), "low rank": bures.LowRank(rank=3)}


def low_rank_target(dim):
    """A Gaussian that is a member of the family, by which importance weights are one."""
    truth = low_rank_gaussian(1, dim, (6.0, 0.2))
    names = (*(f"beta[{i}]" for i in range(dim - 1)), "noise")
    return bures.Target(truth.log_prob, dim, names=names), truth


def fit_of(family, dim=8):
    target, truth = low_rank_target(dim)
    return bures.fit(target, key=jax.random.key(0), init=truth, family=family)


@pytest.fixture(scope="module")
def fits():
    return {name: fit_of(family) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_do_what_a_fit_can(fits, name, key):
    fit = fits[name]
    assert f"Stein × Whitened, {name}" in str(fit)
    tree = fit.to_arviz(key, num_draws=50)
    assert tree["posterior"].sizes["draw"] == 50
    assert fit.resample(key, 6).shape == fit.resample(key, 6, K=3).shape == (6, 8)
    found = fit.diagnose(key, 500)
    assert found.num_samples == 500
    if name != "mean field":  # which cannot be exact
        assert found.ness > 0.99


@pytest.mark.parametrize("name", FAMILIES)
def test_nuts_starts_have_the_covariance_as_samplers_take_it(fits, name, key):
    q, start = fits[name].approximation, fits[name].nuts_start(key, 3)
    assert start.positions.shape == (3, 8)
    assert start.unconstrained["beta"].shape == (3, 7)
    if name == "mean field":
        np.testing.assert_allclose(start.inverse_mass_matrix, q.scale**2, rtol=1e-12)
        assert start.low_rank.basis.shape == (8, 0)
        return
    np.testing.assert_allclose(start.inverse_mass_matrix, q.covariance, rtol=1e-12)
    assert (start.low_rank is None) == (name == "full rank")


def test_blackjax_takes_the_factors(fits, key):
    """Its kinetic energy with them is that of the dense matrix."""
    metrics = pytest.importorskip("blackjax.mcmc.metrics")
    start = fits["low rank"].nuts_start(key, 1)
    assert start.low_rank.basis.shape == (8, 2)  # without the column that is not in use
    momentum = jnp.arange(8.0)
    in_factors = metrics.default_metric(metrics.LowRankInverseMassMatrix(*start.low_rank))
    dense = metrics.default_metric(start.inverse_mass_matrix)
    np.testing.assert_allclose(in_factors.kinetic_energy(momentum), dense.kinetic_energy(momentum), rtol=1e-10)


def test_nuts_starts_in_many_dimensions_have_no_matrix():
    q = low_rank_gaussian(1, 1200)
    np.testing.assert_allclose(export._inverse_mass_matrix(q), q.standard_deviations**2, rtol=1e-12)
    assert export._in_factors(q).basis.shape == (1200, 2)


def test_marginals_by_name(fits, unchecked_types):
    for fit in fits.values():
        covariance = np.asarray(fit.approximation.covariance)
        np.testing.assert_allclose(fit.marginal("noise").covariance, covariance[7:, 7:], rtol=1e-9)
        np.testing.assert_allclose(fit.marginal(7).covariance, covariance[7:, 7:], rtol=1e-9)
        pair = fit.marginal(["noise", "beta[2]"])
        np.testing.assert_allclose(pair.covariance, covariance[np.ix_([7, 2], [7, 2])], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(pair.mean, fit.approximation.mean[np.array([7, 2])])
    for wrong, near in (
        ("nois", "noise"),
        ("beta", r"beta\[0\], beta\[1\], beta\[2\], \.\.\."),
        ("beta[22]", r"beta\[2\]"),
    ):
        with pytest.raises(
            ValueError, match=rf"coordinates must be names of the target or numbers.*Did you mean .*{near}"
        ):
            fit.marginal(wrong)
    with pytest.raises(ValueError, match="coordinates from 0 to 7"):
        fit.marginal(8)


# ---- After learned centring, whose coordinates are not those of the target that was given


def _schools() -> bures.Target:
    y, sigma = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]), jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_density(mu, tau, theta):
        prior = -(mu**2) / 50 - jnp.log1p((tau / 5) ** 2) - jnp.sum(((theta - mu) / tau) ** 2) / 2 - 8 * jnp.log(tau)
        return prior - jnp.sum(((y - theta) / sigma) ** 2) / 2

    variables = {"mu": (), "tau": Positive(), "theta": (8,)}
    return bures.Target.from_variables(log_density, variables, location_scale={"theta": lambda mu, tau: (mu, tau)})


@pytest.fixture(scope="module")
def refined() -> tuple[bures.Target, bures.Fit]:
    target = _schools()
    return target, bures.fit(target, key=jax.random.key(1)).refine(jax.random.key(2))


def test_draws_of_a_refined_fit_are_points_of_the_target_that_was_given(refined, key, tmp_path):
    target, fit = refined
    fit.save(tmp_path / "fit")
    for each in (fit, bures.load(tmp_path / "fit", target=target), fit.resume(1)):
        theta = jax.vmap(target.constrain)(each.resample(key, 2000))["theta"]
        table = fit.summary()
        expected = np.array([[table[f"theta[{i}]"][column] for i in range(8)] for column in ("mean", "sd")])
        np.testing.assert_allclose(theta.mean(axis=0), expected[0], atol=0.6)
        np.testing.assert_allclose(theta.std(axis=0), expected[1], rtol=0.15)
    learned = bures.load(tmp_path / "fit", target=fit.target)  # given in learned coordinates
    assert abs(float(learned.resample(key, 2000)[:, 2].mean())) < 1


def test_nuts_starts_of_a_refined_fit_are_on_the_scale_of_the_target_that_was_given(refined, key):
    target, fit = refined
    start = fit.nuts_start(key, 5)
    np.testing.assert_allclose(start.unconstrained["theta"], start.constrained["theta"], rtol=1e-9)
    np.testing.assert_allclose(jax.vmap(target.constrain)(start.positions)["tau"], start.constrained["tau"], rtol=1e-9)
    deviations = np.sqrt(np.diagonal(start.inverse_mass_matrix))
    np.testing.assert_allclose(deviations[2:], [fit.summary()[f"theta[{i}]"]["sd"] for i in range(8)], rtol=0.2)


def test_a_marginal_by_name_is_refused_where_coordinates_are_not_the_variables(refined):
    target, fit = refined
    for each in (fit, bures.fit(bures.recentre(target, 0.0), key=jax.random.key(0), num_steps=5)):
        with pytest.raises(ValueError, match=r"coordinates must be numbers .*got 'theta\[0\]'.*fit.summary\(\)"):
            each.marginal("theta[0]")
        assert each.marginal(2).dim == 1


def test_coordinates_whose_names_make_no_array_stay_alone(key):
    z = jnp.arange(10.0).reshape(2, 5)
    by_variable = export._by_variable(("b[1]", "b[2]", "a", "c[0]", "c[1]"), z)
    assert {name: value.shape for name, value in by_variable.items()} == {
        "b[1]": (2,), "b[2]": (2,), "a": (2,), "c": (2, 2)
    }  # fmt: skip
    assert set(export._by_variable(("a", "a[0]"), z[:, :2])) == {"a", "a[0]"}
