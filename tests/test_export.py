"""ArviZ export: named, constrained variables, with weights."""

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
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
