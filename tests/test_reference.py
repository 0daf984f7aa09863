"""Reference chains: moments within their own Monte Carlo error, and convergence diagnostics with known answers."""

import builtins
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import low_rank_gaussian

import bures
from bures.reference import Chains, nuts, random_walk_metropolis

DIM = 3
TARGET = bures.models.gaussian(DIM, condition_number=30.0, scale=2.0, seed=1)
PROPOSAL = 2.38**2 / DIM * TARGET.covariance


def make_chains(draws, names=None):
    draws = np.asarray(draws)
    names = names or tuple(f"z[{i}]" for i in range(draws.shape[2]))
    return Chains(draws, np.full(len(draws), 0.5), names)


def autoregressive(coefficient, chains=4, draws=20_000, seed=0):
    """Stationary AR(1) series of unit variance: autocorrelation coefficient^lag, ESS n (1 − c) / (1 + c)."""
    noise = np.random.default_rng(seed).standard_normal((draws, chains))
    series = np.empty_like(noise)
    series[0] = noise[0]
    for t in range(1, draws):
        series[t] = coefficient * series[t - 1] + np.sqrt(1 - coefficient**2) * noise[t]
    return series.T[:, :, None]


def sample(sampler, key):
    if sampler == "random walk":
        initial = jnp.zeros(DIM)
        return random_walk_metropolis(
            key, TARGET, proposal_covariance=PROPOSAL, initial=initial, num_samples=5_000, num_warmup=500, thinning=3
        )
    initial = bures.Gaussian(jnp.ones(DIM), 2 * jnp.eye(DIM)) if sampler == "nuts, Gaussian" else jnp.ones(DIM)
    return nuts(key, TARGET, initial=initial, num_samples=1_000, num_warmup=500)


@pytest.mark.parametrize("sampler", ["random walk", "nuts, Gaussian", "nuts, point"])
def test_moments_of_a_correlated_gaussian(sampler, key):
    chains = sample(sampler, key)
    assert chains.names == TARGET.names
    assert np.all(chains.rhat < 1.02)
    assert np.all(chains.ess > 500)
    deviations = np.sqrt(np.diagonal(TARGET.covariance))
    assert np.all(np.abs(chains.mean) < 4 * deviations / np.sqrt(chains.ess))
    # A covariance of n independent draws has the standard error √((Σᵢᵢ Σⱼⱼ + Σᵢⱼ²) / n); squares mix a little slower.
    error = np.sqrt((np.outer(deviations, deviations) ** 2 + TARGET.covariance**2) / (chains.ess.min() / 2))
    assert np.all(np.abs(chains.covariance - TARGET.covariance) < 4 * error)
    assert chains.moment_gaussian().bures_distance(bures.Gaussian.from_moments(jnp.zeros(DIM), TARGET.covariance)) < 0.3


def test_acceptance_of_a_known_random_walk(key):
    # From N(0, 1) with steps N(0, s²), the acceptance rate is (2 / π) atan(2 / s).
    target = bures.models.gaussian(1)
    scale = 2.4
    chains = random_walk_metropolis(
        key, target, proposal_covariance=jnp.array([[scale**2]]), initial=jnp.zeros(1), num_samples=20_000
    )
    assert np.mean(chains.acceptance) == pytest.approx(2 / np.pi * np.arctan(2 / scale), abs=0.01)
    moved = np.mean(np.diff(np.asarray(chains.draws)[:, :, 0], axis=1) != 0, axis=1)
    np.testing.assert_allclose(chains.acceptance, moved, atol=1e-3)


def test_starts_of_the_random_walk(key):
    tiny = 1e-20 * jnp.eye(DIM)
    options = {"proposal_covariance": tiny, "num_samples": 1, "num_warmup": 1}
    point = jnp.array([1.0, 2.0, 3.0])
    draws = np.asarray(random_walk_metropolis(key, TARGET, initial=point, **options).draws)
    np.testing.assert_allclose(draws, np.broadcast_to(point, (4, 1, DIM)), atol=1e-8)
    starts = np.arange(6.0).reshape(2, DIM)
    draws = random_walk_metropolis(key, TARGET, initial=starts, num_chains=2, **options).draws
    np.testing.assert_allclose(np.asarray(draws)[:, 0], starts, atol=1e-8)


def test_starts_are_drawn_from_any_family(key):
    q = low_rank_gaussian(1, TARGET.dim, (2.0,))
    options = {"proposal_covariance": PROPOSAL, "num_samples": 1, "num_warmup": 1}
    starts = bures.reference._starts(jax.random.key(1), TARGET, q, None, 3)
    np.testing.assert_array_equal(starts, q.sample(jax.random.key(1), 3))
    assert random_walk_metropolis(key, TARGET, initial=q, **options).draws.shape == (4, 1, TARGET.dim)


def test_thinning_keeps_every_nth_draw(key):
    options = {"proposal_covariance": PROPOSAL, "initial": jnp.zeros(DIM), "num_chains": 2, "num_warmup": 10}
    every = random_walk_metropolis(key, TARGET, num_samples=30, **options)
    thinned = random_walk_metropolis(key, TARGET, num_samples=10, thinning=3, **options)
    np.testing.assert_allclose(every.draws[:, 2::3], thinned.draws)
    np.testing.assert_allclose(every.acceptance, thinned.acceptance)


def test_chains_are_reproducible_and_differ(key):
    options = {"proposal_covariance": PROPOSAL, "initial": jnp.zeros(DIM), "num_samples": 20, "num_warmup": 20}
    first, again = (random_walk_metropolis(key, TARGET, **options) for _ in range(2))
    np.testing.assert_array_equal(first.draws, again.draws)
    assert not np.allclose(first.draws[0], first.draws[1])


def test_dtype_follows_the_start(key):
    point = jnp.zeros(DIM, jnp.float32)
    walk = random_walk_metropolis(key, TARGET, proposal_covariance=PROPOSAL, initial=point, num_samples=10)
    # The sizes are those of the test of moments, so that this one need not compile again.
    chains = nuts(key, TARGET, initial=point, num_samples=1_000, num_warmup=500)
    assert walk.draws.dtype == chains.draws.dtype == np.float32
    assert chains.moment_gaussian().mean.dtype == np.float32


def test_chains_that_do_not_mix_have_a_large_rhat(key):
    separated = bures.Target(lambda z: jnp.logaddexp(-jnp.sum((z - 20) ** 2), -jnp.sum((z + 20) ** 2)), dim=2)
    starts = jnp.array([[20.0, 20.0], [20.0, 20.0], [-20.0, -20.0], [-20.0, -20.0]])
    chains = random_walk_metropolis(key, separated, proposal_covariance=jnp.eye(2), initial=starts, num_samples=500)
    assert np.all(chains.rhat > 1.5)
    assert np.all(chains.ess < 10)


def test_rhat_sees_drift_and_scale():
    draws = np.random.default_rng(0).standard_normal((4, 1000, 3))
    draws[:, :, 1] += np.linspace(0, 3, 1000)  # a common drift, seen by the split
    draws[0, :, 2] *= 5  # one chain wider, seen by the folded ranks
    rhat = make_chains(draws).rhat
    assert rhat[0] < 1.01
    assert np.all(rhat[1:] > 1.1)


@pytest.mark.parametrize("coefficient", [-0.5, 0.0, 0.9])
def test_autoregressive_series(coefficient):
    chains = make_chains(autoregressive(coefficient))
    correlation = chains.autocorrelation(20)
    assert correlation.shape == (4, 21, 1)
    np.testing.assert_allclose(correlation.mean(axis=0)[:, 0], coefficient ** np.arange(21), atol=0.03)
    expected = 80_000 * (1 - coefficient) / (1 + coefficient)
    assert chains.ess[0] == pytest.approx(expected, rel=0.1)


def test_diagnostics_agree_with_arviz():
    from arviz_stats.base import array_stats as theirs

    draws = np.concatenate([autoregressive(0.7, draws=1001), autoregressive(0.0, draws=1001)], axis=2)
    chains = make_chains(draws)
    for i in range(2):
        assert chains.rhat[i] == pytest.approx(theirs.rhat(draws[:, :, i], method="rank"), abs=1e-6)
        assert chains.ess[i] == pytest.approx(theirs.ess(draws[:, :, i], method="mean"), rel=0.03)


def test_moments_and_shapes():
    draws = np.random.default_rng(0).standard_normal((2, 50, 1))
    chains = make_chains(draws)
    assert (chains.num_chains, chains.num_samples, chains.dim) == (2, 50, 1)
    assert chains.flat.shape == (100, 1)
    np.testing.assert_allclose(chains.mean, draws.mean())
    np.testing.assert_allclose(chains.covariance, [[draws.var(ddof=1)]])


def test_too_few_draws_and_stuck_chains_are_nan():
    assert np.isnan(make_chains(np.ones((2, 3, 1))).rhat[0])
    stuck = make_chains(np.ones((2, 100, 1)))
    assert np.isnan(stuck.rhat[0])
    assert np.isnan(stuck.ess[0])
    assert np.all(np.isnan(stuck.autocorrelation(5)))
    assert "nan" in str(stuck)


def test_chains_that_stand_still_in_different_places_do_not_agree():
    draws = np.broadcast_to(np.arange(4.0)[:, None, None], (4, 100, 1))
    assert make_chains(draws).rhat[0] > 1e6
    assert make_chains(draws).ess[0] < 10
    draws = np.random.default_rng(0).standard_normal((4, 100, 1))
    draws[0] = 5.0  # one of them only
    assert make_chains(draws).rhat[0] > 1.5


def test_diagnostics_do_not_depend_on_the_unit():
    draws = autoregressive(0.5, draws=400)
    chains, small = make_chains(draws), make_chains(3 + 0 * draws)
    scaled = make_chains(1e-20 * draws)
    np.testing.assert_allclose(scaled.rhat, chains.rhat, rtol=1e-12)
    np.testing.assert_allclose(scaled.ess, chains.ess, rtol=1e-12)
    assert np.isnan(small.ess[0])


def test_a_single_chain_is_compared_with_itself():
    draws = np.random.default_rng(0).standard_normal((1, 1000, 2))
    draws[0, :, 1] += np.linspace(0, 3, 1000)
    rhat = make_chains(draws).rhat
    assert rhat[0] < 1.02
    assert rhat[1] > 1.1
    assert np.all(np.isnan(make_chains(draws[:, :5]).rhat))


def test_arviz_is_imported_at_first_use():
    program = "import sys, bures.reference; sys.exit('arviz_stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_printed_table():
    draws = np.random.default_rng(0).standard_normal((2, 50, DIM))
    chains = Chains(draws, np.array([0.25, 0.5]), TARGET.names, np.array([1, 2]))
    lines = str(chains).splitlines()
    assert lines[0] == "2 chains of 50 draws, acceptance 25.0% to 50.0%, 3 divergences"
    assert [line.split()[0] for line in lines[2:]] == list(TARGET.names)
    wide = str(make_chains(np.random.default_rng(0).standard_normal((2, 20, 30)))).splitlines()
    assert len(wide) == 23
    assert wide[-1].startswith("(10 more; smallest ESS ")


HALF_LINE = bures.Target(lambda z: jnp.where(z[0] > 0, -z[0], -jnp.inf), dim=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": 0}, "key must be a typed JAX random key"),
        ({"target": lambda z: -jnp.sum(z**2)}, "target must be a bures.Target"),
        ({"num_chains": 0}, "num_chains must be a positive integer"),
        ({"num_samples": -1}, "num_samples must be a positive integer"),
        ({"num_warmup": 0}, "num_warmup must be a positive integer"),
        ({"thinning": 0}, "thinning must be a positive integer"),
        ({"initial": jnp.zeros(DIM + 1)}, r"initial must be of shape \(3,\)"),
        ({"initial": jnp.zeros((2, DIM))}, r"initial must be of shape \(4, 3\)"),
        ({"initial": bures.Gaussian.standard(2)}, r"initial must be of shape \(3,\)"),
        ({"initial": jnp.full(DIM, jnp.nan)}, "initial must be finite"),
        ({"proposal_covariance": jnp.eye(DIM + 1)}, r"proposal_covariance must be of shape \(3, 3\)"),
        ({"proposal_covariance": -jnp.eye(DIM)}, "proposal_covariance must be positive definite.*eigenvalue is -1"),
        ({"proposal_covariance": jnp.triu(jnp.ones((DIM, DIM)))}, "proposal_covariance must be symmetric"),
        (
            {"target": HALF_LINE, "proposal_covariance": jnp.eye(1), "initial": -jnp.ones(1)},
            "initial must lead to starts of finite log density, but got log density -inf at the start of chain 0",
        ),
    ],
)
def test_bad_input(change, message, key):
    arguments = {"key": key, "target": TARGET, "proposal_covariance": PROPOSAL, "initial": jnp.zeros(DIM)} | change
    walk = random_walk_metropolis
    # The wrong types are what is tested here, so the type checker of the tests is stepped around.
    walk = getattr(walk, "__wrapped__", walk)
    with pytest.raises(ValueError, match=message):
        walk(arguments.pop("key"), arguments.pop("target"), **arguments)


def test_bad_input_of_nuts(key):
    with pytest.raises(ValueError, match="finite log density"):
        nuts(key, HALF_LINE, initial=-jnp.ones(1))
    with pytest.raises(ValueError, match="target_acceptance must be a number in"):
        nuts(key, TARGET, target_acceptance=1.5)
    with pytest.raises(ValueError, match="max_lag must be below 10"):
        make_chains(np.zeros((2, 10, 1))).autocorrelation(10)


def test_missing_extra_says_what_to_install(key, monkeypatch):
    def without_blackjax(name, *arguments, **options):
        if name == "blackjax":
            raise ImportError(name)
        return original(name, *arguments, **options)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_blackjax)
    with pytest.raises(ImportError, match=r"pip install 'bures\[mcmc\]'"):
        nuts(key, TARGET, num_samples=7, num_warmup=7)
