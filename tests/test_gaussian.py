"""Gaussians: Bures axioms, divergences against closed forms, SciPy and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings, strategies as st
from problems import FLOATS, assert_within_standard_errors, random_covariance, random_gaussian

import bures

seeds = st.integers(0, 10_000)
gaussians = st.builds(random_gaussian, seeds, st.just(3), st.floats(0.01, 100))
others = st.builds(random_gaussian, st.integers(20_000, 30_000), st.just(3), st.floats(0.01, 100))


def wasserstein(p, q):
    """W₂ by the textbook formula and SciPy's matrix square root."""
    first, second = np.asarray(p.covariance), np.asarray(q.covariance)
    root = scipy.linalg.sqrtm(first).real
    cross = scipy.linalg.sqrtm(root @ second @ root).real
    squared = np.sum(np.asarray(p.mean - q.mean) ** 2) + np.trace(first + second - 2 * cross)
    return np.sqrt(max(squared, 0))


@settings(max_examples=40, deadline=None)
@given(p=gaussians, q=others, r=gaussians)
def test_bures_distance_is_a_metric(p, q, r):
    distance = float(p.bures_distance(q))
    scale = float(jnp.linalg.norm(p.chol))
    assert float(p.bures_distance(p)) < 1e-12 * scale
    assert distance > 0
    assert distance == pytest.approx(float(q.bures_distance(p)), rel=1e-10)
    assert distance <= float(p.bures_distance(r)) + float(r.bures_distance(q)) + 1e-10


@settings(max_examples=25, deadline=None)
@given(p=gaussians, q=others)
def test_bures_distance_is_the_textbook_formula(p, q):
    assert float(p.bures_distance(q)) == pytest.approx(wasserstein(p, q), rel=1e-6, abs=1e-7)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, first=st.tuples(*[st.floats(0.01, 10)] * 3), second=st.tuples(*[st.floats(0.01, 10)] * 3))
def test_bures_distance_of_commuting_covariances(seed, first, second):
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]

    def gaussian(deviations):
        covariance = (rotation * np.square(deviations)) @ rotation.T
        return bures.Gaussian.from_moments(jnp.zeros(3), (covariance + covariance.T) / 2)

    expected = np.linalg.norm(np.subtract(first, second))
    assert float(gaussian(first).bures_distance(gaussian(second))) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_commuting_shortcut_is_wrong_elsewhere():
    p, q = random_gaussian(1, 3), random_gaussian(2, 3)
    roots = [scipy.linalg.sqrtm(np.asarray(g.covariance)).real for g in (p, q)]
    shortcut = np.sqrt(np.sum(np.asarray(p.mean - q.mean) ** 2) + np.sum((roots[0] - roots[1]) ** 2))
    assert float(p.bures_distance(q)) == pytest.approx(wasserstein(p, q), rel=1e-9)
    assert float(p.bures_distance(q)) < shortcut - 1e-3


def test_bures_distance_of_close_gaussians_keeps_its_digits():
    q = random_gaussian(1, 3)
    moved = bures.Gaussian(q.mean, q.chol * (1 + 1e-9))
    assert float(q.bures_distance(moved)) == pytest.approx(1e-9 * float(jnp.linalg.norm(q.chol)), rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(p=gaussians, q=others)
def test_kl_is_positive_and_zero_only_for_equals(p, q):
    assert float(p.kl(q)) > 0
    assert abs(float(p.kl(p))) < 1e-10


def test_kl_and_entropy_against_monte_carlo(key):
    p, q = random_gaussian(1, 3), random_gaussian(2, 3, 2.0)
    z = p.sample(key, 100_000)
    terms = np.asarray(p.log_prob(z) - q.log_prob(z))
    assert_within_standard_errors(terms.mean(), p.kl(q), terms.std() / np.sqrt(terms.size))
    logs = -np.asarray(p.log_prob(z))
    assert_within_standard_errors(logs.mean(), p.entropy(), logs.std() / np.sqrt(logs.size))


def test_log_prob_and_entropy_are_those_of_scipy(key):
    q = random_gaussian(3, 4)
    reference = scipy.stats.multivariate_normal(q.mean, q.covariance)
    z = 3 * jax.random.normal(key, (2, 5, 4))
    np.testing.assert_allclose(q.log_prob(z), reference.logpdf(np.asarray(z)), rtol=1e-12)
    np.testing.assert_allclose(q.log_prob(z[0, 0]), reference.logpdf(np.asarray(z[0, 0])), rtol=1e-12)
    assert float(q.entropy()) == pytest.approx(reference.entropy(), rel=1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_moments_make_the_round_trip(dtype):
    mean, covariance = jnp.array([1.0, -2.0, 0.5], dtype), jnp.asarray(random_covariance(4, 3), dtype)
    q = bures.Gaussian.from_moments(mean, covariance)
    assert q.mean.dtype == q.chol.dtype == dtype
    assert q.dim == 3
    np.testing.assert_array_equal(q.mean, mean)
    tolerance = 10 * jnp.finfo(dtype).eps
    np.testing.assert_allclose(q.covariance, covariance, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(q.standard_deviations, np.sqrt(np.diagonal(covariance)), rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_samples_have_the_moments(dtype, key):
    q = random_gaussian(5, 3, dtype=dtype)
    z = np.asarray(q.sample(key, 50_000))
    assert z.dtype == dtype
    assert_within_standard_errors(z.mean(axis=0), q.mean, z.std(axis=0) / np.sqrt(len(z)))
    products = np.einsum("ni,nj->nij", z - np.asarray(q.mean), z - np.asarray(q.mean))
    assert_within_standard_errors(products.mean(axis=0), q.covariance, products.std(axis=0) / np.sqrt(len(z)))


def test_push_and_whiten_are_inverse(key):
    q = random_gaussian(6, 3)
    noise = jax.random.normal(key, (4, 2, 3))
    np.testing.assert_allclose(q.whiten(q.push(noise)), noise, atol=1e-12)
    np.testing.assert_allclose(q.log_prob_of_noise(noise), q.log_prob(q.push(noise)), rtol=1e-12)


def test_standard_and_vmap():
    q = bures.Gaussian.standard(2, jnp.float32)
    assert q.chol.dtype == jnp.float32
    pair = jax.tree.map(lambda *parts: jnp.stack(parts), random_gaussian(1, 3), random_gaussian(2, 3))
    distances = jax.vmap(lambda q: q.bures_distance(random_gaussian(3, 3)))(pair)
    np.testing.assert_allclose(distances[0], random_gaussian(1, 3).bures_distance(random_gaussian(3, 3)), rtol=1e-10)


def test_log_prob_and_kl_have_gradients():
    """For people who build on them: ∇ log q(z) = −Σ⁻¹ (z − m), and ∇ of KL in the mean."""
    p, q = random_gaussian(1, 3), random_gaussian(2, 3)
    expected = np.linalg.solve(q.covariance, p.mean - q.mean)
    np.testing.assert_allclose(jax.grad(q.log_prob)(p.mean), -expected, rtol=1e-9)
    gradient = jax.grad(lambda mean: bures.Gaussian(mean, p.chol).kl(q))(p.mean)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)


def test_what_float32_cannot_hold_is_refused():
    mean = jnp.zeros(2, jnp.float32)
    with pytest.raises(ValueError, match="covariance must be finite in float32, the dtype of mean"):
        bures.Gaussian.from_moments(mean, 1e40 * np.eye(2))
    with pytest.raises(ValueError, match="chol must be finite in float32, the dtype of mean"):
        bures.Gaussian(mean, 1e40 * np.eye(2))
    nearly_singular = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    bures.Gaussian.from_moments(np.zeros(2), nearly_singular)
    with pytest.raises(ValueError, match="covariance must be positive definite when rounded to float32"):
        bures.Gaussian.from_moments(mean, nearly_singular)
    assert bures.Gaussian.from_moments(mean, 1e30 * np.eye(2)).chol.dtype == jnp.float32
