"""Built-in targets: normalised densities, exact moments against exact draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from problems import assert_within_standard_errors, regression_data

from bures import models
from bures.models import regression

EXACT = {
    "eggbox": models.eggbox(),
    "banana": models.banana(),
    "banana in five dimensions": models.banana(b=0.1, dim=5),
    "gaussian": models.gaussian(4, condition_number=50.0, scale=2.0, seed=3),
    "funnel": models.funnel(3, scale=1.0),
    "student_t": models.student_t(3, 9.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_moments_are_those_of_the_draws(name):
    target = EXACT[name]
    z = np.asarray(target.sample(jax.random.key(0), 50_000))
    assert z.shape == (50_000, target.dim)
    assert_within_standard_errors(z.mean(axis=0), target.mean, z.std(axis=0) / np.sqrt(len(z)))
    centred = z - np.asarray(target.mean)
    products = np.einsum("ni,nj->nij", centred, centred)
    assert_within_standard_errors(products.mean(axis=0), target.covariance, products.std(axis=0) / np.sqrt(len(z)))
    assert np.all(np.isfinite(target.value(jnp.asarray(z[:100]))))


def quadrature(target, x, y):
    points = jnp.stack(jnp.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(np.asarray(target.value(points))).reshape(x.size, y.size)
    return scipy.integrate.simpson(scipy.integrate.simpson(density, x=y, axis=1), x=x)


@pytest.mark.parametrize(
    ("target", "x", "y"),
    [
        (models.eggbox(), (-5, 15), (-5, 13)),
        (models.banana(), (-60, 60), (-105, 12)),
        (models.gaussian(2, condition_number=9.0), (-9, 9), (-9, 9)),
        (models.funnel(2, scale=0.5), (-4, 4), (-40, 40)),
        (models.student_t(2, 9.0), (-60, 60), (-60, 60)),
    ],
    ids=["eggbox", "banana", "gaussian", "funnel", "student_t"],
)
def test_densities_are_normalised(target, x, y):
    mass = quadrature(target, jnp.linspace(*x, 1201), jnp.linspace(*y, 1201))
    assert mass == pytest.approx(1, abs=1e-4)


def test_eggbox_is_the_papers():
    target = models.eggbox()
    np.testing.assert_allclose(target.mean, [6, 4])
    # Within: the mean of the four covariances; between: the spread of the four means around (6, 4).
    within = np.array([[2.6, -0.9], [-0.9, 2.3]]) / 4
    between = np.array([[20.0, 6.0], [6.0, 10.0]]) / 4
    np.testing.assert_allclose(target.covariance, within + between, rtol=1e-12)
    components = [
        scipy.stats.multivariate_normal(mean, covariance)
        for mean, covariance in [
            ([3, 3], [[1.0, -0.8], [-0.8, 1.2]]),
            ([5, 5], [[0.6, 0.1], [0.1, 0.3]]),
            ([7, 2], [[0.5, -0.2], [-0.2, 0.3]]),
            ([9, 6], [[0.5, 0], [0, 0.5]]),
        ]
    ]
    z = np.array([4.0, 4.2])
    expected = np.log(np.mean([component.pdf(z) for component in components]))
    assert float(target.log_density(jnp.asarray(z))) == pytest.approx(expected, rel=1e-12)


def test_banana_variances_are_100_and_19():
    np.testing.assert_allclose(np.diagonal(models.banana().covariance), [100, 19])
    np.testing.assert_allclose(models.banana().covariance[0, 1], 0)


def test_gaussian_has_the_condition_number_asked_for():
    target = models.gaussian(5, condition_number=1e4, scale=3.0, seed=1)
    values = np.linalg.eigvalsh(target.covariance)
    assert values[-1] == pytest.approx(9)
    assert values[-1] / values[0] == pytest.approx(1e4, rel=1e-6)
    z = np.array([0.3, -0.1, 0.2, 0.5, 1.0])
    expected = scipy.stats.multivariate_normal(np.zeros(5), target.covariance).logpdf(z)
    assert float(target.log_density(jnp.asarray(z))) == pytest.approx(expected, rel=1e-8)


def test_funnel_density_is_its_hierarchy():
    v, x = 0.7, np.array([0.2, -1.5])
    expected = scipy.stats.norm(0, 3).logpdf(v) + np.sum(scipy.stats.norm(0, np.exp(v / 2)).logpdf(x))
    assert float(models.funnel(3).log_density(jnp.array([v, *x]))) == pytest.approx(expected, rel=1e-12)


def test_student_t_is_that_of_scipy_and_knows_when_it_has_no_moments():
    z = np.array([0.4, -2.0, 1.0])
    expected = scipy.stats.multivariate_t(np.zeros(3), np.eye(3), df=2.5).logpdf(z)
    assert float(models.student_t(3, 2.5).log_density(jnp.asarray(z))) == pytest.approx(expected, rel=1e-10)
    assert models.student_t(3, 2.0).covariance is None
    assert models.student_t(3, 1.0).mean is None


def test_logistic_regression_is_its_definition():
    X, y = regression_data(n=7, dim=3)
    target = models.logistic_regression(X, y, prior_variance=4.0, names=["a", "b", "c"])
    z = np.array([0.3, -1.0, 2.0])
    probability = 1 / (1 + np.exp(-X @ z))
    likelihood = np.sum(y * np.log(probability) + (1 - y) * np.log(1 - probability))
    expected = likelihood + np.sum(scipy.stats.norm(0, 2).logpdf(z))
    assert float(target.log_density(jnp.asarray(z))) == pytest.approx(expected, rel=1e-12)
    assert target.names == ("a", "b", "c")
    score = X.T @ (y - probability) - z / 4
    np.testing.assert_allclose(jax.jit(jax.grad(target.log_density))(jnp.asarray(z)), score, rtol=1e-11)
    hessian = -(X.T * (probability * (1 - probability))) @ X - np.eye(3) / 4
    np.testing.assert_allclose(jax.jit(jax.hessian(target.log_density))(jnp.asarray(z)), hessian, rtol=1e-11)
    np.testing.assert_allclose(target.weighted_hessian(jnp.array([2.0]), jnp.asarray(z)[None]), 2 * hessian, rtol=1e-11)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_logistic_regression_is_stable_far_out(dtype):
    X, y = regression_data(n=7, dim=3)
    target = models.logistic_regression(jnp.asarray(X, dtype), y)
    z = jnp.array([500.0, -800.0, 300.0], dtype)
    value, score = target.value_and_score(z[None])
    assert value.dtype == score.dtype == dtype
    assert np.all(np.isfinite(value))
    assert np.all(np.isfinite(score))
    assert np.all(np.isfinite(target.weighted_hessian(jnp.ones(1, dtype), z[None])))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
@pytest.mark.parametrize("points", [3, 17, 37])
def test_logistic_regression_in_blocks_is_the_sum_over_rows(points, repeated, dtype, monkeypatch, key):
    # One block of 3 points, one of 17 and a pad, two of 19 and a pad; rows by 16, and by 8 for derivatives.
    for name, value in {"_POINTS": 20, "_LANES": 2, "_ROWS": 16}.items():
        monkeypatch.setattr(regression, name, value)
    X, y = regression_data(n=50, dim=3)
    if repeated:
        X, y = np.concatenate([X, X[:30], X[:10]]), np.concatenate([y, 1 - y[:30], y[:10]])
    target = models.logistic_regression(jnp.asarray(X, dtype), y)
    assert target.log_density.X.shape[0] == 50
    z = jax.random.normal(key, (points, 3))
    rounded, weights = jnp.asarray(X, dtype).astype(float), jnp.linspace(-1, 1, points)

    def log_density(z):
        logits = rounded @ z.astype(dtype).astype(z.dtype)
        return y @ logits - jnp.sum(jax.nn.softplus(logits)) + jnp.sum(jax.scipy.stats.norm.logpdf(z, scale=10**0.5))

    tolerance = {"rtol": 1e-5 if dtype == jnp.float32 else 1e-12, "atol": 1e-4 if dtype == jnp.float32 else 1e-12}

    @jax.jit
    def expected(z):
        hessian = jnp.tensordot(weights, jax.vmap(jax.hessian(log_density))(z), 1)
        values, scores = jax.vmap(jax.value_and_grad(log_density))(z)
        return values, scores, values, scores, hessian, values

    @jax.jit
    def found(z):
        values, back = jax.vjp(target.value, z)
        by_autodiff = back(jnp.ones_like(values))[0]
        derivatives = *target.value_and_score(z), target.weighted_hessian(weights, z)
        return values, by_autodiff, *derivatives, jax.vmap(target.log_density)(z)

    for measured, true in zip(found(z), expected(z), strict=True):
        np.testing.assert_allclose(measured, true, **tolerance)
