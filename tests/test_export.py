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
