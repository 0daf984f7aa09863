"""The Laplace approximation: recovery, far starts, and honest refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import FLOATS, correlated_target, small_regression

import bures


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_a_gaussian_is_recovered(dtype):
    target = correlated_target(dtype)
    q = bures.laplace(target, init=jnp.array([30.0, -20.0, 5.0], dtype))
    assert q.mean.dtype == dtype
    tolerance = 2e-3 if dtype == jnp.float32 else 1e-10
    np.testing.assert_allclose(q.mean, target.mean, atol=tolerance)
    np.testing.assert_allclose(q.covariance, target.covariance, atol=tolerance)


@pytest.mark.parametrize("distance", [0.0, 10.0, 300.0, -300.0])
def test_the_mode_of_a_regression_is_found_from_far_away(distance):
    target = small_regression()
    q = bures.laplace(target, init=jnp.full(3, distance))
    np.testing.assert_allclose(jax.jit(jax.grad(target.log_density))(q.mean), 0, atol=1e-6)
    expected = np.linalg.inv(-jax.jit(jax.hessian(target.log_density))(q.mean))
    np.testing.assert_allclose(q.covariance, expected, rtol=1e-6)


def test_a_start_where_the_curvature_is_wrong():
    """Student-t tails are convex: Newton's plain step would run away, the reflected one comes back."""
    q = bures.laplace(bures.models.student_t(2, 3.0), init=jnp.array([40.0, -25.0]))
    np.testing.assert_allclose(q.mean, 0, atol=1e-6)
    np.testing.assert_allclose(q.covariance, 3 / 5 * np.eye(2), rtol=1e-6, atol=1e-12)


def test_a_gaussian_and_a_bare_density_are_accepted():
    q = bures.laplace(lambda z: -jnp.sum((z - 2) ** 2), dim=2, init=bures.Gaussian.standard(2))
    np.testing.assert_allclose(q.mean, 2, atol=1e-10)
    np.testing.assert_allclose(q.covariance, np.eye(2) / 2, atol=1e-10)


def double_well(z):
    return -((z[0] ** 2 - 1) ** 2) - z[1] ** 2 / 2


def test_a_saddle_is_refused_and_left_from_beside_it():
    target = bures.Target(double_well, 2)
    with pytest.raises(ValueError, match=r"not negative definite.*saddle"):
        bures.laplace(target)
    q = bures.laplace(target, init=jnp.array([0.01, 0.5]))
    np.testing.assert_allclose(q.mean, [1, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("log_density", "reason"),
    [
        (lambda z: -(z[0] ** 2), "flat direction"),
        (lambda z: 0.0 * jnp.sum(z), "flat direction"),
        (lambda z: jnp.sum(z), "no maximum"),
        (lambda z: jnp.sum(z**2), "no maximum|not negative definite"),
        (lambda z: jnp.sum(jnp.exp(z)), "no maximum|no mode"),
    ],
    ids=["one flat direction", "constant", "linear", "convex", "exponential"],
)
def test_improper_densities_are_refused_with_the_reason(log_density, reason):
    with pytest.raises(ValueError, match=reason):
        bures.laplace(bures.Target(log_density, 2), init=jnp.array([0.1, 0.2]))


def test_few_iterations_are_not_passed_off_as_a_mode():
    with pytest.raises(ValueError, match="no mode after 1 Newton steps"):
        bures.laplace(small_regression(), init=jnp.full(3, 50.0), max_iterations=1)


def test_a_density_with_a_support():
    """log z on z > 0 with an exponential tail: steps out of the support are halved back."""
    q = bures.laplace(lambda z: jnp.sum(jnp.where(z > 0, 3 * jnp.log(z) - z, -jnp.inf)), dim=1, init=jnp.array([40.0]))
    np.testing.assert_allclose(q.mean, 3, atol=1e-6)
    np.testing.assert_allclose(q.covariance, 3, rtol=1e-6)


def test_the_search_begins_at_the_targets_initial_point():
    """Two modes: the origin leads to one, the initial point to the other."""
    wells = bures.Target(lambda z: -(((z[0] - 1) ** 2 - 4) ** 2), 1, initial_point=jnp.array([2.5]))
    np.testing.assert_allclose(bures.laplace(wells).mean, 3, atol=1e-6)
    np.testing.assert_allclose(bures.laplace(wells, init=jnp.array([-0.5])).mean, -1, atol=1e-6)


def test_one_derivative_is_enough():
    """As for ODE solvers whose rules allow reverse mode only."""

    @jax.custom_vjp
    def square(z):
        return jnp.sum(z**2)

    square.defvjp(lambda z: (jnp.sum(z**2), z), lambda z, g: (2 * g * z,))
    target = bures.Target(lambda z: -square(z - 1) / 2, 2)
    np.testing.assert_allclose(bures.laplace(target).covariance, np.eye(2), atol=1e-8)
    fit = bures.fit(target, key=jax.random.key(0))
    np.testing.assert_allclose(fit.approximation.mean, 1, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_kinks_and_flat_tops_have_no_approximation(dtype):
    """Their curvature is 0 or infinite; what differences find is that of their distance."""
    for density in (lambda z: -jnp.sum(jnp.abs(z)), lambda z: -jnp.sum(z**4), lambda z: -(z[0] ** 2) - z[1] ** 4):
        for dim in (2, 3):
            with pytest.raises(ValueError, match=r"no mode|kink or a flat top|not negative definite"):
                bures.laplace(density, dim=dim, init=jnp.zeros(dim, dtype))
    for wide in (0.1, 1.0, 10.0):  # and those that are smooth have theirs, heavy tails and all
        target = bures.Target(lambda z: -2 * jnp.sum(jnp.log1p((z / wide) ** 2 / 3)), 2)  # noqa: B023
        np.testing.assert_allclose(
            bures.laplace(target, init=jnp.full(2, wide, dtype)).standard_deviations, wide * np.sqrt(3) / 2, rtol=2e-3
        )
