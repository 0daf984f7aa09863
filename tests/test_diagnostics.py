"""Diagnostics: Pareto k̂ against ArviZ, and numbers with known answers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from problems import (
    assert_within_standard_errors,
    correlated_target,
    gaussian_target,
    random_covariance,
    random_gaussian,
)

import bures
from bures.diagnostics import (
    diagnose,
    forward_kl,
    khat_threshold,
    log_evidence,
    moment_errors,
    ness,
    pareto_khat,
    smooth_log_weights,
)

GENERATOR = np.random.default_rng(0)
LOG_WEIGHTS = {
    "light": 0.1 * GENERATOR.standard_normal(1000),
    "lognormal": GENERATOR.standard_normal(5000),
    "heavy lognormal": 4 * GENERATOR.standard_normal(2000),
    "Pareto 0.7": -0.7 * np.log(GENERATOR.random(10_000)),
    "Pareto 1.5": -1.5 * np.log(GENERATOR.random(4000)),
    "bounded": np.log(GENERATOR.random(3000)),
    "shifted far": -1e4 + GENERATOR.standard_normal(1000),
    "few": GENERATOR.standard_normal(100),
    "cauchy": np.abs(GENERATOR.standard_cauchy(1000)).clip(max=50),
}


@pytest.mark.parametrize("name", LOG_WEIGHTS)
def test_khat_and_smoothed_weights_are_those_of_arviz(name):
    log_weights = LOG_WEIGHTS[name]
    smoothed, khat = array_stats.psislw(-log_weights)  # ArviZ takes log likelihoods, whose weights are inverse
    assert pareto_khat(log_weights) == pytest.approx(float(khat), rel=1e-6, abs=1e-8)
    ours = smooth_log_weights(log_weights)
    # ArviZ normalises; the largest weights are the smoothed ones.
    np.testing.assert_allclose(ours - np.max(ours), smoothed - np.max(smoothed), atol=1e-6)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.7, 1.2])
def test_khat_of_samples_of_known_shape(k):
    uniform = np.random.default_rng(1).random(100_000)
    # The tail is 3 sqrt(n) = 948 draws: the standard error of the shape is (1 + k) / sqrt(948).
    assert pareto_khat(-k * np.log(uniform)) == pytest.approx(k, abs=4 * (1 + k) / math.sqrt(948))


def test_khat_of_weights_without_a_tail():
    assert pareto_khat(np.zeros(1000)) == -math.inf
    assert pareto_khat(np.full(1000, -1e5) + 1e-12 * GENERATOR.standard_normal(1000)) == -math.inf
    assert pareto_khat(np.full(1000, -np.inf)) == math.inf
    assert pareto_khat(np.where(np.arange(1000) < 3, 0.0, -np.inf)) == math.inf
    for bad in (np.nan, np.inf):
        assert pareto_khat(np.array([bad, *np.zeros(999)])) == math.inf


def test_thresholds():
    assert khat_threshold(100) == pytest.approx(0.5)
    assert khat_threshold(1000) == pytest.approx(1 - 1 / 3)
    assert khat_threshold(100_000) == 0.7


def test_ness_and_evidence_of_known_weights():
    assert ness(np.zeros(50)) == pytest.approx(1)
    assert ness(np.array([0.0, *np.full(49, -np.inf)])) == pytest.approx(1 / 50)
    assert ness(np.log([1.0, 3.0]) - 1e4) == pytest.approx(16 / (2 * 10))
    value, error = log_evidence(np.log([1.0, 3.0]) + 1000)
    assert value == pytest.approx(1000 + math.log(2))
    assert error == pytest.approx(np.std([1, 3], ddof=1) / 2 / math.sqrt(2))


LOG_CONSTANT = 3.7


def known_problem():
    """A Gaussian times exp(3.7), and the log of its integral."""
    covariance = random_covariance(2, 3)
    target = gaussian_target(jnp.array([1.0, 0.0, -1.0]), covariance, LOG_CONSTANT)
    evidence = LOG_CONSTANT + 1.5 * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1] / 2
    return target, evidence


def test_diagnostics_of_the_exact_gaussian(key):
    target, evidence = known_problem()
    result = diagnose(key, bures.Gaussian.from_moments(target.mean, target.covariance), target)
    assert result.log_evidence == pytest.approx(evidence, abs=1e-9)
    assert result.elbo == pytest.approx(evidence, abs=1e-9)
    assert result.iw_elbo == pytest.approx(evidence, abs=1e-9)
    assert result.ness == pytest.approx(1)
    assert result.log_evidence_mcse < 1e-9
    assert result.trustworthy
    assert "close to the target" in str(result)


def test_diagnostics_of_a_gaussian_that_is_off(key):
    target, evidence = known_problem()
    exact = bures.Gaussian.from_moments(target.mean, target.covariance)
    q = bures.Gaussian(target.mean + 0.2, 1.15 * exact.chol)
    result = diagnose(key, q, target, num_samples=20_000, K=10)
    assert_within_standard_errors(result.log_evidence, evidence, result.log_evidence_mcse)
    assert 0 < result.log_evidence_mcse < 0.02
    assert_within_standard_errors(result.elbo, evidence - float(q.kl(exact)), result.elbo_mcse)
    assert result.elbo < result.iw_elbo < result.log_evidence
    assert result.iw_elbo_K == 10
    assert 0.5 < result.ness < 0.99
    assert result.khat < result.khat_threshold


def test_a_gaussian_too_narrow_is_not_trusted(key):
    target, _ = known_problem()
    exact = bures.Gaussian.from_moments(target.mean, target.covariance)
    result = diagnose(key, bures.Gaussian(exact.mean, 0.35 * exact.chol), target)
    assert result.khat > result.khat_threshold
    assert not result.trustworthy
    assert "Do not trust" in result.message


def test_diagnostics_of_nothing_finite(key):
    result = diagnose(key, bures.Gaussian.standard(2), bures.Target(lambda z: jnp.nan * z[0], 2), num_samples=100)
    assert not result.trustworthy
    assert "do not use" in result.message
    assert isinstance(str(result), str)
    outside = bures.Target(lambda z: jnp.where(z[0] > 1e6, 0.0, -jnp.inf), 2)
    result = diagnose(key, bures.Gaussian.standard(2), outside, num_samples=100)
    assert not result.trustworthy
    assert result.log_evidence == -math.inf


def test_diagnostics_with_some_draws_outside_the_support(key):
    """Half of N(0, 1): evidence log ½, ELBO −inf, and nothing else spoiled."""
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -(z[0] ** 2) / 2 - math.log(2 * math.pi) / 2, -jnp.inf), 1)
    result = diagnose(key, bures.Gaussian.standard(1), half, num_samples=10_000)
    assert result.elbo == -math.inf
    assert_within_standard_errors(result.log_evidence, math.log(0.5), result.log_evidence_mcse)
    assert result.ness == pytest.approx(0.5, abs=0.02)


def test_every_line_is_printed(key):
    target, _ = known_problem()
    text = str(diagnose(key, random_gaussian(1, 3), target, min_eigenvalue=0.25, clip_rate=0.5))
    for word in ("ELBO", "IW-ELBO (K = 10)", "log evidence", "nESS", "Pareto k̂", "0.25", "50.0%"):
        assert word in text


@pytest.mark.parametrize(
    ("khat", "ness", "word"),
    [
        (-math.inf, 1.0, "as they are"),
        (0.2, 0.97, "as they are"),
        (0.5, 0.4, "resample"),
        (0.9, 0.97, "tails are heavier"),
        (0.9, 0.1, "Do not trust"),
        (math.inf, 0.01, "degenerate"),
        (math.nan, math.nan, "degenerate"),
    ],
)
def test_messages_follow_khat_and_ness(khat, ness, word):
    result = bures.Diagnostics(10_000, 0.0, 0.1, 0.1, 10, ness, khat, 0.7, 0.2, 0.1)
    assert word in result.message


def test_forward_kl_against_the_closed_form(key):
    target = bures.models.gaussian(3, condition_number=5.0)
    q = random_gaussian(3, 3, 2.0)
    value, error = forward_kl(key, target, q, num_samples=50_000)
    exact = bures.Gaussian.from_moments(target.mean, target.covariance).kl(q)
    assert 0 < error < 0.02
    assert_within_standard_errors(value, exact, error)


def test_moment_errors():
    q = bures.Gaussian(jnp.array([1.0, 2.0]), 2 * jnp.eye(2))
    assert moment_errors(q, jnp.zeros(2), jnp.eye(2)) == (5.0, 18.0)


def test_fresh_draws_differ_from_those_of_the_fit():
    """diagnose takes its own key, and two keys give two answers that agree to their errors."""
    target = correlated_target()
    q = random_gaussian(1, 3)
    first, second = (diagnose(jax.random.key(seed), q, target) for seed in (0, 1))
    assert first.elbo != second.elbo
    assert abs(first.elbo - second.elbo) < 4 * math.hypot(first.elbo_mcse, second.elbo_mcse)
