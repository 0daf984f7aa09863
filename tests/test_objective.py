"""Objectives: limits, monotonicity, and A and B as derivatives of the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import bures

log_weights_of_a_tuple = st.lists(st.floats(-30, 30), min_size=5, max_size=5).map(lambda x: jnp.array(x))
powers = st.floats(0, 1)


def direct_bound(log_weights, alpha):
    """The definition, in NumPy."""
    log_weights = np.asarray(log_weights)
    if alpha == 1:
        return np.mean(log_weights, axis=-1)
    scaled = (1 - alpha) * log_weights
    top = scaled.max(axis=-1, keepdims=True)
    return (np.log(np.mean(np.exp(scaled - top), axis=-1)) + top[..., 0]) / (1 - alpha)


@settings(max_examples=50, deadline=None)
@given(log_weights=log_weights_of_a_tuple, alpha=st.one_of(st.floats(0, 1 - 1e-6), st.just(1.0)))
def test_bound_is_its_definition(log_weights, alpha):
    bound = bures.VRIWAE(K=5, alpha=alpha).bound(log_weights)
    # The definition divides rounding by 1 − α: closer to one it is no oracle (test_alpha_one_is_a_limit is).
    tolerance = 1e-12 * (1 + 1 / max(1 - alpha, 1e-6))
    assert bound == pytest.approx(direct_bound(log_weights, alpha), rel=tolerance, abs=30 * tolerance)


@settings(max_examples=30, deadline=None)
@given(log_weight=st.floats(-300, 300), alpha=powers)
def test_one_draw_is_the_elbo_for_every_alpha(log_weight, alpha):
    single = jnp.array([log_weight])
    for objective in (bures.ELBO(), bures.IWELBO(K=1), bures.VRIWAE(K=1, alpha=alpha)):
        assert objective.bound(single) == pytest.approx(log_weight, rel=1e-12, abs=1e-12)
        g, A, B = objective.coefficients(single)
        assert g == A == 1
        assert B == 0
        assert objective.has_separable_entropy


@settings(max_examples=30, deadline=None)
@given(log_weights=log_weights_of_a_tuple)
def test_alpha_zero_is_the_importance_weighted_bound(log_weights):
    renyi, weighted = bures.VRIWAE(K=5, alpha=0.0), bures.IWELBO(K=5)
    assert renyi.bound(log_weights) == weighted.bound(log_weights)
    g, A, B = weighted.coefficients(log_weights)
    np.testing.assert_allclose(A, g**2, rtol=1e-14)
    np.testing.assert_allclose(B, 2 * g**2 * (1 - g), rtol=1e-12, atol=1e-300)
    for ours, theirs in zip(renyi.coefficients(log_weights), (g, A, B), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_alpha_one_is_a_limit(dtype):
    """bound = mean ℓ + (1−α)/2 var ℓ + ..., A = 1/K + O(1−α), B = O(1−α): no jump, and no loss of digits."""
    log_weights = jnp.array([-3.0, 0.5, 2.0, -1.0, 4.0], dtype)
    mean, variance = jnp.mean(log_weights), jnp.var(log_weights)
    for gap in (1e-3, 1e-6, 1e-9, 0.0):
        objective = bures.VRIWAE(K=5, alpha=1 - gap)
        bound = objective.bound(log_weights)
        eps = jnp.finfo(dtype).eps
        # α itself is known to eps only, so 1 − α is.
        assert abs(bound - mean - gap * variance / 2) < 20 * gap**2 + 20 * eps
        _, A, B = objective.coefficients(log_weights)
        np.testing.assert_allclose(A, 0.2, atol=2 * gap + 4 * eps)
        np.testing.assert_allclose(B, 0, atol=2 * gap + 4 * eps)
        assert bound.dtype == A.dtype == B.dtype == dtype


@settings(max_examples=50, deadline=None)
@given(log_weights=log_weights_of_a_tuple, alphas=st.tuples(powers, powers))
def test_bound_falls_with_alpha(log_weights, alphas):
    low, high = sorted(alphas)
    lower, upper = (bures.VRIWAE(K=5, alpha=alpha).bound(log_weights) for alpha in (high, low))
    assert lower <= upper + 1e-9
    assert jnp.min(log_weights) - 1e-9 <= lower
    assert upper <= jnp.max(log_weights) + 1e-9


def test_expected_bound_rises_with_the_tuple(key):
    """E over the same draws: the bound of tuples of K is below the bound of tuples of 2 K, tuple by tuple of 2 K."""
    log_weights = 2 * jax.random.normal(key, (20_000, 16))
    means = [float(jnp.mean(bures.VRIWAE(K=K, alpha=0.3).bound(log_weights.reshape(-1, K)))) for K in (1, 2, 4, 8, 16)]
    assert np.all(np.diff(means) > 0)
    doubled = bures.IWELBO(K=16).bound(log_weights)
    halves = bures.IWELBO(K=8).bound(log_weights.reshape(-1, 2, 8)).mean(axis=1)
    assert np.all(doubled >= halves - 1e-12)


@settings(max_examples=30, deadline=None)
@given(log_weights=log_weights_of_a_tuple, alpha=powers)
def test_g_is_the_derivative_of_the_bound(log_weights, alpha):
    objective = bures.VRIWAE(K=5, alpha=alpha)
    g, _, _ = objective.coefficients(log_weights)
    np.testing.assert_allclose(jax.grad(objective.bound)(log_weights), g, rtol=1e-9, atol=1e-12)
    assert np.sum(g) == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_coefficients_come_from_differentiating_the_bound(alpha, key):
    """A is what is left of the coefficient of s when the score-function terms of log q are added to the path ones:
    E[∂bound] = E[Σ g s − cov terms] gives α g + (1−α) g². And ∇(A s) = A H + B s sᵀ, so B = ∂A/∂ℓ of the own draw."""
    objective = bures.VRIWAE(K=5, alpha=alpha)
    log_weights = jax.random.normal(key, (5,)) * 2
    g, A, B = objective.coefficients(log_weights)
    np.testing.assert_allclose(A, alpha * g + (1 - alpha) * g**2, rtol=1e-12)
    own = jnp.diagonal(jax.jacobian(lambda x: objective.coefficients(x).A)(log_weights))
    np.testing.assert_allclose(B, own, rtol=1e-10, atol=1e-14)
    # From the Hessian of the bound: ∂²bound/∂ℓ² = (1−α) g (1 − g) = g − A, as A = g − (1−α) g (1−g).
    curvature = jnp.diagonal(jax.hessian(objective.bound)(log_weights))
    np.testing.assert_allclose(g - A, curvature, rtol=1e-8, atol=1e-12)


def test_zero_weights_drop_out():
    log_weights = jnp.array([0.3, -jnp.inf, -1.0])
    for alpha in (0.0, 0.5, 0.99):
        objective = bures.VRIWAE(K=3, alpha=alpha)
        kept = bures.VRIWAE(K=2, alpha=alpha)
        bound = kept.bound(log_weights[jnp.array([0, 2])]) + np.log(2 / 3) / (1 - alpha)
        assert objective.bound(log_weights) == pytest.approx(float(bound), rel=1e-10)
        g, A, B = objective.coefficients(log_weights)
        assert g[1] == A[1] == B[1] == 0
        np.testing.assert_allclose(A[::2], kept.coefficients(log_weights[::2]).A, rtol=1e-12)


def test_a_zero_weight_makes_the_elbo_limit_minus_infinity():
    """α = 1 is the mean of ℓ: −inf with a −inf among them, not a large finite number."""
    assert bures.VRIWAE(K=2, alpha=1.0).bound(jnp.array([0.0, -jnp.inf])) == -jnp.inf


@pytest.mark.parametrize("K", [1, 3])
def test_all_weights_zero_is_minus_infinity(K):
    for objective in (bures.IWELBO(K=K), bures.VRIWAE(K=K, alpha=0.5)):
        assert objective.bound(jnp.full(K, -jnp.inf)) == -jnp.inf


def test_infinite_and_nan_weights_are_seen():
    for objective in (bures.IWELBO(K=3), bures.VRIWAE(K=3, alpha=0.5)):
        assert not np.isfinite(objective.bound(jnp.array([0.0, jnp.inf, 1.0])))
        assert np.isnan(objective.bound(jnp.array([0.0, jnp.nan, 1.0])))
        assert np.any(np.isnan(objective.coefficients(jnp.array([0.0, jnp.nan, 1.0])).A))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_large_log_weights_do_not_overflow(dtype):
    log_weights = jnp.array([-2e4, -2.0001e4, -3e4, 1e4, 1.00005e4], dtype)
    for objective in (bures.IWELBO(K=5), bures.VRIWAE(K=5, alpha=0.3), bures.VRIWAE(K=5, alpha=1.0)):
        bound = objective.bound(log_weights)
        assert bound.dtype == dtype
        assert np.isfinite(bound)
        assert all(np.all(np.isfinite(part)) for part in objective.coefficients(log_weights))


def test_any_leading_axes():
    log_weights = jax.random.normal(jax.random.key(0), (2, 3, 4))
    objective = bures.VRIWAE(K=4, alpha=0.2)
    assert objective.bound(log_weights).shape == (2, 3)
    assert objective.coefficients(log_weights).B.shape == (2, 3, 4)
    np.testing.assert_allclose(objective.bound(log_weights)[1, 2], objective.bound(log_weights[1, 2]), rtol=1e-14)


# ---- Tempered weights -----------------------------------------------------------------------------------------------


def shares(log_weights, g):
    return np.mean(1 / np.sum(np.asarray(g) ** 2, axis=-1)) / log_weights.shape[-1]


def test_tempering_makes_degenerate_tuples_share_their_weight():
    log_weights = 200 * jax.random.normal(jax.random.key(0), (50, 10))
    plain, tempered = bures.IWELBO(K=10), bures.IWELBO(K=10).tempered(jnp.array(1.0))
    assert shares(log_weights, plain.coefficients(log_weights).g) < 0.15
    # Bisection of a range of six decades leaves the power known to a few per cent.
    assert 0.5 <= shares(log_weights, tempered.coefficients(log_weights).g) < 0.55
    np.testing.assert_array_equal(tempered.bound(log_weights), plain.bound(log_weights))


@pytest.mark.parametrize(("spread", "strength"), [(200.0, 0.0), (0.1, 1.0)], ids=["no strength", "even weights"])
def test_tempering_leaves_coefficients_alone(spread, strength):
    log_weights = spread * jax.random.normal(jax.random.key(1), (50, 10))
    plain = bures.VRIWAE(K=10, alpha=0.3)
    for ours, theirs in zip(
        plain.tempered(jnp.array(strength)).coefficients(log_weights), plain.coefficients(log_weights), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_an_objective_with_coefficients_of_its_own_is_not_tempered():
    class Own(bures.IWELBO):
        def coefficients(self, log_weights):
            return super().coefficients(log_weights)

    own = Own(K=3)
    assert own.tempered(jnp.array(1.0)) is own
