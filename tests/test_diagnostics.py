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
    Correction,
    Coverage,
    Missed,
    Verdict,
    WeightedDraws,
    diagnose,
    forward_kl,
    khat_threshold,
    log_evidence,
    moment_errors,
    ness,
    pareto_khat,
    smooth_log_weights,
)
from bures.diagnostics.correction import measure_correction
from bures.fitting.judgement import is_decided

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
    if khat < 1:  # ArviZ normalises; the largest weights are the smoothed ones.
        np.testing.assert_allclose(ours - np.max(ours), smoothed - np.max(smoothed), atol=1e-6)
    else:  # without a mean there is nothing to smooth by
        largest = math.sqrt(ours.size) * np.mean(np.exp(log_weights))
        np.testing.assert_allclose(np.exp(ours), np.minimum(np.exp(log_weights), largest), rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_resampled_draws_of_an_exponential_tail_do_not_exaggerate_it(seed):
    """Many draws of a Gaussian see the tail of a Gumbel: k̂ is far above 1, and no draw weighs much."""
    target = bures.Target(lambda z: -jnp.sum(z + jnp.exp(-z)), dim=1)
    q = bures.Gaussian.from_moments(jnp.array([0.6]), jnp.array([[1.3**2]]))
    pool = WeightedDraws.draw(jax.random.key(seed), q, target, 100_000)
    draws = pool.z[pool.choose(jax.random.key(1), 10_000)]
    assert draws.mean() == pytest.approx(np.euler_gamma, abs=0.1 * math.pi / math.sqrt(6))
    assert draws.std() == pytest.approx(math.pi / math.sqrt(6), rel=0.1)


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


def test_weights_equal_but_for_a_few_that_are_little_larger_have_no_tail():
    """As those of a mode that is exactly Gaussian, of which one draw fell a little towards another mode."""
    even = 1e-15 * GENERATOR.standard_normal(3999)
    for few in ([4e-5], [1e-8, 4e-5, 1e-3]):
        assert pareto_khat(np.append(even, few)) == -math.inf
    assert pareto_khat(np.append(even, [0.5, 3.0])) > 0.7


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
    assert result.verdict is Verdict.USABLE and result.zero_share == pytest.approx(0.5, abs=0.02)
    assert f"{100 * result.zero_share:.0f}% of its draws lie where the density is zero" in result.message
    assert "Target.from_variables" in result.message


def test_every_line_is_printed(key):
    target, _ = known_problem()
    text = str(diagnose(key, random_gaussian(1, 3), target, min_eigenvalue=0.25, clip_rate=0.5))
    for word in ("ELBO", "IW-ELBO (K = 10)", "log evidence", "nESS", "Pareto k̂", "0.25", "50.0%"):
        assert word in text


PRECISE = Correction(mean_error=0.01, deviation_error=0.01, effective=5000.0, shift=0.0, largest=0.05)
EVEN = Correction(mean_error=0.01, deviation_error=0.01, effective=5000.0, shift=0.0, largest=0.001)
VAGUE = Correction(mean_error=0.3, deviation_error=0.4, effective=20.0, shift=1.0, largest=0.2)
NARROW = Correction(mean_error=0.01, deviation_error=0.01, effective=5000.0, shift=0.0, largest=0.001, widening=1.4)
WILD = Correction(mean_error=0.01, deviation_error=0.2, effective=9900.0, shift=0.0, largest=0.001, widening=1.1)
APART = Missed(np.array([30.0, 0.0]), 0.25, is_apart=True)
NEAR = Missed(np.array([0.0, 0.0]), 0.25, is_apart=False)


def judged(khat=0.2, ness=0.97, *, error=0.05, correction=PRECISE, coverage=None, rounding=1e-12):
    coverage = Coverage(reach=100.0) if coverage is None else coverage
    return bures.Diagnostics(
        10_000, 0.0, 0.1, 0.1, 10, ness, khat, error, 0.7, 0.2, 0.1, rounding, correction, coverage, names=("a", "b")
    )


def test_what_weights_widen_is_measured(key):
    target = bures.Target(lambda z: -jnp.sum(z**2 / jnp.array([2.0, 0.5])) / 2, 2)  # variances 2 and 1/2
    found = diagnose(key, bures.Gaussian.standard(2), target, num_samples=100_000)
    assert found.correction.widening == pytest.approx(math.sqrt(2), rel=0.1)
    assert not found.trustworthy
    wide = diagnose(key, bures.Gaussian.from_moments(jnp.zeros(2), 2 * jnp.eye(2)), target)
    assert wide.correction.widening == pytest.approx(1, abs=0.03) and wide.trustworthy


def test_weights_that_reach_far_to_both_sides_are_not_called_narrow(key):
    """A Gaussian between two modes, twice as narrow as both together, but with draws beyond them."""
    target = bures.Target(lambda z: jax.nn.logsumexp(-((z[0] - jnp.array([-1.6, 1.6])) ** 2) / 0.5), 1)
    found = diagnose(key, bures.Gaussian.from_moments(jnp.zeros(1), jnp.eye(1) * 1.6), target)
    assert found.correction.widening > 1.3 and found.khat < 0.1
    assert found.verdict is Verdict.USABLE


def test_weights_without_a_spread_are_as_good_as_none(key):
    """Exact draws of a t with 1.8 degrees of freedom do not know its width; that is no fault of weights."""
    z = np.random.default_rng(0).standard_t(1.8, (10_000, 1))
    log_p = np.log1p(0.01 * np.random.default_rng(1).random(10_000) ** -0.8)
    found = bures.diagnostics.summarise(WeightedDraws(z, log_p, np.zeros(10_000), 1e-12))
    assert found.correction.deviation_error > 0.08 and not found.is_light
    assert found.verdict is Verdict.CLOSE


@pytest.mark.parametrize(
    ("result", "verdict", "word"),
    [
        (judged(-math.inf, 1.0, error=0.0), Verdict.CLOSE, "as they are"),
        (judged(0.2, 0.97), Verdict.CLOSE, "as they are"),
        (judged(0.9, 0.97), Verdict.CLOSE, "tails may be lighter"),
        (judged(2.0, 0.97), Verdict.HEAVY_TAILS, "tails are heavier"),
        (judged(0.5, 0.4), Verdict.USABLE, "resample"),
        (judged(0.8, 0.4), Verdict.USABLE, "do correct the moments"),
        (judged(0.95, 0.4), Verdict.UNDECIDED, "If it is below 1"),
        (judged(0.8, 0.03), Verdict.UNDECIDED, "If it is below 1"),  # smoothing has made 300 draws worth 5,000
        (judged(0.95, 0.4, correction=VAGUE), Verdict.UNTRUSTED, "Do not trust"),
        (judged(1.3, 0.4), Verdict.UNTRUSTED, "Do not trust"),
        (judged(1.3, 0.4, correction=EVEN), Verdict.USABLE, "do correct the moments"),
        (judged(0.5, 0.4, correction=NARROW), Verdict.UNTRUSTED, "widen a standard deviation by 40%"),
        (judged(0.2, 0.97, correction=NARROW), Verdict.CLOSE, "as they are"),
        (judged(0.2, 0.4, correction=NARROW), Verdict.UNTRUSTED, "widen a standard deviation by 40%"),
        (judged(0.05, 0.4, correction=NARROW), Verdict.USABLE, "resample"),
        (judged(0.9, 0.99, error=0.1, correction=WILD), Verdict.CLOSE, "tails may be lighter"),
        (judged(2.0, 0.99, correction=WILD), Verdict.HEAVY_TAILS, "tails are heavier"),
        (judged(0.9, 0.8, error=0.1, correction=WILD), Verdict.UNTRUSTED, "Do not trust"),
        (judged(math.inf, 0.01), Verdict.DEGENERATE, "degenerate"),
        (judged(math.nan, math.nan), Verdict.DEGENERATE, "degenerate"),
        (judged(3.0, 0.99, rounding=0.2), Verdict.ROUNDED, "jax_enable_x64"),
        (judged(0.5, 0.4, correction=NARROW, rounding=8.0), Verdict.ROUNDED, "jax_enable_x64"),
        (judged(coverage=Coverage((APART,), reach=100.0)), Verdict.SEVERAL_MODES, "25.0% around (a = 30, b = 0)"),
        (judged(coverage=Coverage((NEAR,), reach=100.0)), Verdict.SEVERAL_MODES, "holds about 75.0%"),
        (judged(1.3, 0.4, coverage=Coverage((NEAR,), reach=100.0)), Verdict.UNTRUSTED, "Do not trust"),
        (judged(coverage=Coverage(outside=0.1, reach=100.0)), Verdict.MASS_OUTSIDE, "About 10% of the mass"),
        (judged(coverage=Coverage()), Verdict.CLOSE, "Other modes were not searched for"),
    ],
)
def test_verdicts_and_messages(result, verdict, word):
    assert result.verdict is verdict
    assert word in result.message
    assert result.trustworthy == (verdict in (Verdict.CLOSE, Verdict.USABLE))


def corrected(deviation_error=0.01, effective=1500.0, largest=0.001, widening=1.0):
    return Correction(0.03, deviation_error, effective, 0.0, largest, widening)


@pytest.mark.parametrize(
    ("result", "decided"),
    [
        (judged(0.3, 0.4, correction=corrected()), True),
        (judged(6.9, 0.07, error=0.5, correction=corrected(largest=0.007)), False),  # more may see that none is heavy
        (judged(6.9, 0.07, error=0.5, correction=corrected(largest=0.02)), True),
        (judged(6.9, 0.07, error=0.5, correction=corrected(effective=200.0, largest=0.007)), True),
        (judged(0.5, 0.3, correction=corrected(0.03, widening=1.25)), False),
        (judged(0.5, 0.3, correction=corrected(0.03, widening=1.35)), False),
        (judged(0.5, 0.3, correction=corrected(0.03, widening=1.5)), True),
        (judged(0.5, 0.3, correction=corrected(0.03, widening=1.1)), True),
        (judged(0.02, 0.3, correction=corrected(0.03, widening=1.25)), True),  # no tail at all
        (judged(0.5, 0.95, correction=corrected(0.03, widening=1.25)), True),  # close
    ],
)
def test_more_draws_are_taken_where_they_may_tell(result, decided):
    assert is_decided(result) == decided


def test_draws_are_never_recommended_as_they_are_without_a_search(key):
    """On one of two modes far apart the weights are perfect: only the search tells."""
    result = diagnose(key, bures.Gaussian.standard(2), bures.models.gaussian(2))
    assert result.verdict is Verdict.CLOSE
    assert "as they are" not in result.message
    assert "not searched for" in result.message


# ---- Rounding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("dim", [1, 3, 20])
def test_an_exact_gaussian_in_float32_has_no_tail(dim, scale, key):
    target = bures.Target(lambda z: -jnp.sum((z / scale - 3) ** 2) / 2 - 40.0, dim)
    q = bures.Gaussian(jnp.full(dim, 3 * scale, jnp.float32), scale * jnp.eye(dim, dtype=jnp.float32))
    result = diagnose(key, q, target)
    assert result.verdict is Verdict.CLOSE
    assert result.khat < result.khat_threshold


def test_a_large_regression_in_float32_is_not_called_heavy_tailed(key):
    """Log densities near −50,000 are 0.004 apart in float32: that is no tail of the target."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 3)).astype(np.float32)
    y = rng.poisson(np.exp(X @ np.array([0.3, -0.2, 0.1]) + 1)).astype(np.float32)

    def log_density(z):
        rate = X @ z + 1
        return jnp.sum(y * rate - jnp.exp(rate)) - jnp.sum(z**2) / 20

    target = bures.Target(log_density, 3)
    laplace = bures.laplace(target)
    q = bures.Gaussian(laplace.mean.astype(jnp.float32), laplace.chol.astype(jnp.float32))
    result = diagnose(key, q, target)
    assert result.ness > 0.95
    assert result.verdict is Verdict.CLOSE


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_a_real_tail_is_seen_whatever_constant_is_added(offset):
    log_weights = -0.9 * np.log(np.random.default_rng(3).random(10_000))
    assert pareto_khat(log_weights + offset) == pytest.approx(pareto_khat(log_weights), abs=0.05)


def test_log_weights_of_float32_that_differ_by_rounding_alone_have_no_tail():
    exact = np.full(10_000, -58_000.0)
    rounded = (exact + np.random.default_rng(0).normal(0, 0.003, 10_000)).astype(np.float32)
    assert pareto_khat(rounded) == -math.inf


# ---- The correction -------------------------------------------------------------------------------------------------


def test_the_measured_correction_is_the_spread_over_repetitions():
    """Means of weighted draws have the error that a hundred repetitions of the whole show."""
    target = bures.models.gaussian(2)
    q = bures.Gaussian(jnp.array([0.5, 0.0]), 1.3 * jnp.eye(2))
    pools = [WeightedDraws.draw(jax.random.key(seed), q, target, 1000) for seed in range(100)]
    weights = [np.exp(pool.log_weights - np.max(pool.log_weights)) for pool in pools]
    means = [w @ pool.z / np.sum(w) for w, pool in zip(weights, pools, strict=True)]
    actual = np.max(np.std(means, axis=0))
    measured = np.mean([measure_correction(pool.z, pool.smoothed()).mean_error for pool in pools])
    assert measured == pytest.approx(actual, rel=0.35)  # ten splits: the largest of two errors is a little above


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
