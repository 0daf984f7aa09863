"""Estimators against plain automatic differentiation of the bound: the identity ∇_m = K a and ∇_L = tril(K S L)."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from problems import (
    assert_within_standard_errors,
    box,
    correlated_target,
    low_rank_gaussian,
    mean_and_error,
    mean_field_gaussian,
    random_covariance,
    random_gaussian,
    regression_data,
    small_regression,
    with_arrays,
)

import bures
from bures.draws import antithetic, sobol
from bures.engine import Evaluator
from bures.estimator import _gain

FLOAT64 = jnp.dtype("float64")
draw_sobol = jax.jit(sobol, static_argnums=(1, 2, 3))
# Those of one list differ in alpha alone, and share a compilation.
OBJECTIVES = {
    "ELBO": [bures.ELBO()],
    "IWELBO K=2": [bures.IWELBO(K=2)],
    "IWELBO K=5": [bures.IWELBO(K=5)],
    "IWELBO K=20": [bures.IWELBO(K=20)],
    "VRIWAE": [bures.VRIWAE(K=5, alpha=alpha) for alpha in (0.1, 0.5, 0.9, 1.0)],
}
TARGETS = {
    "gaussian": correlated_target(),
    "regression": small_regression(),
    "student_t": bures.models.student_t(3, 6.0),
}
STARTS = {  # far enough from the target that the gradient is well above the noise
    "gaussian": bures.Gaussian.from_moments(
        TARGETS["gaussian"].mean + jnp.array([0.9, -0.9, 0.7]), jnp.asarray(random_covariance(5, 3, 1.1))
    ),
    "regression": random_gaussian(6, 3, 0.6),
    "student_t": bures.Gaussian.from_moments(jnp.array([1.5, 1.0, -1.0]), jnp.asarray(random_covariance(2, 3, 1.5))),
}


class AnyDensity(eqx.Module):
    """One of the targets, by an index that is traced: they share their compilations."""

    index: jax.Array
    targets: list

    def __call__(self, z):
        return jax.lax.switch(self.index, [lambda z, t=t: t.log_density(z) for t in self.targets], z)

    def weighted_hessian(self, weights, z):
        branches = [lambda weights, z, t=t: t.weighted_hessian(weights, z) for t in self.targets]
        return jax.lax.switch(self.index, branches, weights, z)


def shared(name):
    return bures.Target(AnyDensity(jnp.array(list(TARGETS).index(name)), list(TARGETS.values())), 3)


def problem(name):
    return TARGETS[name], STARTS[name]


def flatten(mean_gradient, chol_gradient):
    return jnp.concatenate([mean_gradient, chol_gradient[jnp.tril_indices(mean_gradient.size)]])


def mean_bound(log_weights, objective):
    """The VR-IWAE bound by its formula."""
    power = jnp.asarray(1.0 - objective.alpha)
    nonzero = jnp.where(power == 0, 1, power)
    renyi = (jax.nn.logsumexp(nonzero * log_weights, axis=1) - jnp.log(log_weights.shape[1])) / nonzero
    return jnp.mean(jnp.where(power == 0, jnp.mean(log_weights, axis=1), renyi))


def bound_gradient(noise, q, target, objective):
    """∇ of the Monte Carlo bound in (m, L): the total derivative through z and through log q, with nothing of ours."""
    M, K, dim = noise.shape

    def bound(mean, chol):
        z = (mean + noise @ chol.T).reshape(-1, dim)
        whitened = jax.scipy.linalg.solve_triangular(chol, (z - mean).T, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(chol)))
        log_q = -jnp.sum(whitened**2, axis=0) / 2 - log_det - dim * jnp.log(2 * jnp.pi) / 2
        return mean_bound((jax.vmap(target.log_density)(z) - log_q).reshape(M, K), objective)

    return flatten(*jax.grad(bound, (0, 1))(q.mean, q.chol))


def estimated_gradient(estimate, q):
    return flatten(estimate.K * estimate.a, estimate.K * estimate.S @ q.chol)


def mean_field_bound_gradient(noise, q, target, objective):
    """The same in (m, log σ)."""
    M, K, dim = noise.shape

    def bound(mean, log_scale):
        z = (mean + jnp.exp(log_scale) * noise).reshape(-1, dim)
        log_q = jnp.sum(jax.scipy.stats.norm.logpdf(z, mean, jnp.exp(log_scale)), axis=1)
        return mean_bound((jax.vmap(target.log_density)(z) - log_q).reshape(M, K), objective)

    return jnp.concatenate(jax.grad(bound, (0, 1))(q.mean, jnp.log(q.scale)))


def low_rank_bound_gradient(noise, q, target, objective):
    """The same in (m, D, U) of Σ = D² + U diag(kinds) Uᵀ, with dense matrices.

    Draws follow Σ by z − m = (I + ½ (Σ − Σ₀) Σ₀⁻¹) (z₀ − m₀), to first order a transport map: among the ways for draws
    to follow their distribution, the one whose derivative has no rotation, as the estimators' have none.
    """
    M, K, dim = noise.shape
    kinds = jnp.where(q.variances < 1, -1.0, 1.0)
    columns = q.scale[:, None] * q.basis * jnp.sqrt(jnp.abs(q.variances - 1))

    def covariance_of(scale, columns):
        return jnp.diag(scale**2) + (columns * kinds) @ columns.T

    first = covariance_of(q.scale, columns)
    values, vectors = jnp.linalg.eigh(first / jnp.outer(q.scale, q.scale))
    shifts = (noise @ ((vectors * jnp.sqrt(values)) @ vectors.T) * q.scale).reshape(-1, dim)

    def bound(mean, scale, columns):
        covariance = covariance_of(scale, columns)
        z = mean + shifts + shifts @ jnp.linalg.solve(first, covariance - first) / 2
        log_q = jax.scipy.stats.multivariate_normal.logpdf(z, mean, covariance)
        return mean_bound((jax.vmap(target.log_density)(z) - log_q).reshape(M, K), objective)

    gradient = jax.grad(bound, (0, 1, 2))(q.mean, q.scale, columns)
    return jnp.concatenate([part.reshape(-1) for part in gradient])


def free_gradient(estimate, q):
    """What an estimate says of the free parameters: (m, log σ) without columns, else (m, D, U)."""
    mean, scale, columns = q.free_gradient(estimate, q.first_frame())
    return jnp.concatenate([mean, scale * q.scale if q.capacity == 0 else scale, columns.reshape(-1)])


@functools.cache
def sobol_replicates():
    """For 16 keys, the points of the most and largest tuples; parts of them are Sobol points for fewer and smaller."""
    keys = jax.random.split(jax.random.key(1), 16)
    return jax.jit(lambda keys: jax.lax.map(lambda key: sobol(key, 8192, 20 * 3, FLOAT64), keys))(keys)


@eqx.filter_jit
def replicate(noise, q, target, objective, estimators, gradients=(bound_gradient, estimated_gradient)):
    """Autodiff of the bound and each estimator, from the same noise, once for every row of it."""
    of_bound, of_estimate = gradients

    def once(noise):
        expected = of_bound(noise, q, target, objective)
        estimates = [estimator.estimate(noise, q, target, objective) for estimator in estimators]
        return expected, jnp.stack([of_estimate(estimate, q) for estimate in estimates])

    return jax.lax.map(once, noise)  # not vmap: it would batch the triangular solves


def check_against_autodiff(name, objective, estimators, target=None, noise=None):
    M, K, q = estimators[0].M, objective.K, STARTS[name]
    noise = sobol_replicates()[:, :M, : K * 3] if noise is None else noise
    target = shared(name) if target is None else target
    expected, estimates = replicate(noise.reshape(-1, M, K, 3), q, target, with_arrays(objective), estimators)
    for i, estimator in enumerate(estimators):
        check_replicates(expected, estimates[:, i], f"{estimator} of {objective} on {name}")


def check_replicates(expected, estimates, case):
    """The mean difference is within 4 standard errors, which are small enough to see a bias of 2%."""
    difference, error = mean_and_error(estimates - expected)
    norm = np.linalg.norm(np.mean(expected, axis=0))
    assert np.linalg.norm(error) < 0.005 * norm, f"too noisy to see a bias of 2%: {case}"
    assert_within_standard_errors(difference, 0, error, case=case)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_gradients_are_those_of_the_bound(kind):
    for name, objective in itertools.product(TARGETS, OBJECTIVES[kind]):
        M = 8192 if isinstance(objective, bures.IWELBO) and objective.K > 2 else 4096
        check_against_autodiff(name, objective, [bures.Price(M), bures.Stein(M)])


FAMILIES = {
    "mean field": (mean_field_gaussian(1, 3), mean_field_bound_gradient),
    "low rank": (low_rank_gaussian(1, 3), low_rank_bound_gradient),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("objective", "name"),
    [(bures.ELBO(), "regression"), (bures.IWELBO(K=5), "student_t"), (bures.VRIWAE(K=5, alpha=0.5), "student_t")],
    ids=["ELBO", "IWELBO", "VRIWAE"],
)
def test_projected_gradients_are_those_of_the_bound_in_the_familys_parameters(family, objective, name):
    """The path gradient is that of automatic differentiation draw by draw, the others are in expectation."""
    q, autodiff = FAMILIES[family]
    M = 8192 if objective.alpha == 0 else 4096
    noise = sobol_replicates()[:, :M, : objective.K * 3].reshape(-1, M, objective.K, 3)
    estimators = [bures.Price(M), bures.Stein(M), bures.Reparameterised(M)]
    gradients = (autodiff, free_gradient)
    expected, estimates = replicate(noise, q, TARGETS[name], with_arrays(objective), estimators, gradients)
    for i, estimator in enumerate(estimators[:2]):
        check_replicates(expected, estimates[:, i], f"{estimator} of {objective} on {name}, {family}")
    np.testing.assert_allclose(estimates[:, 2], expected, rtol=1e-10, atol=1e-10)


def test_every_variant_has_the_same_expectation():
    M, K = 4096, 5
    objective, target = bures.VRIWAE(K=K, alpha=0.5), TARGETS["student_t"]
    last = [bures.Price(M, indices="last"), bures.Stein(M, indices="last"), bures.Reparameterised(M)]
    check_against_autodiff("student_t", objective, last, target)
    blocked = [bures.Price(M, permutations=3), bures.Stein(M, permutations=3)]
    noise = jax.random.normal(jax.random.key(1), (48, M, K, 3))
    check_against_autodiff("student_t", objective, blocked, target, noise)


def test_reparameterised_is_the_autodiff_gradient_draw_by_draw(key):
    target, q = problem("regression")
    noise = jax.random.normal(key, (6, 5, 3))
    objective = bures.VRIWAE(K=5, alpha=0.3)
    estimate = eqx.filter_jit(bures.Reparameterised(M=6).estimate)(noise, q, target, objective)
    expected = eqx.filter_jit(bound_gradient)(noise, q, target, objective)
    np.testing.assert_allclose(estimated_gradient(estimate, q), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("draws", ["iid", "sobol"])
def test_elbo_on_a_gaussian_target_in_closed_form(draws, key):
    target, q = problem("gaussian")
    precision = np.linalg.inv(target.covariance)
    estimate = bures.Price(M=7, draws=draws)(key, q, target, bures.ELBO())
    np.testing.assert_allclose(estimate.S, np.linalg.inv(q.covariance) - precision, atol=1e-12)
    keys = jax.random.split(key, 400)
    a, error = mean_and_error(jax.lax.map(lambda k: bures.Price(M=7, draws=draws)(k, q, target, bures.ELBO()).a, keys))
    assert_within_standard_errors(a, -precision @ (q.mean - target.mean), error)


def test_stein_and_price_agree_in_expectation():
    target, q = problem("regression")
    keys = jax.random.split(jax.random.key(2), 64)

    def both(key):
        price, stein = (e(key, q, target, bures.IWELBO(K=5)) for e in (bures.Price(2048), bures.Stein(2048)))
        return price.S - stein.S, price.a - stein.a, price.S

    S_difference, a_difference, S = jax.lax.map(both, keys)
    mean, error = mean_and_error(S_difference)
    assert np.linalg.norm(error) < 0.01 * np.linalg.norm(np.mean(S, axis=0))
    assert_within_standard_errors(mean, 0, error)
    assert np.max(np.abs(a_difference)) < 1e-14


@pytest.mark.parametrize("estimator", [bures.Price(M=5), bures.Stein(M=5), bures.Reparameterised(M=5)], ids=str)
def test_bw_gradient_is_symmetric(estimator, key):
    target, q = problem("regression")
    a, S = bures.bw_gradient(key, q, target, bures.IWELBO(K=5), estimator)
    assert a.shape == (3,)
    assert np.array_equal(S, S.T)
    estimate = estimator(key, q, target, bures.IWELBO(K=5))
    np.testing.assert_allclose(S, (estimate.S + estimate.S.T) / 2, rtol=1e-14)


@pytest.mark.parametrize("objective", [bures.ELBO(), bures.IWELBO(K=5), bures.VRIWAE(K=5, alpha=0.4)], ids=str)
def test_wasserstein_gradient_of_an_independent_formula(objective, key):
    """A(g) s with g = w^(1−α) / Σ w^(1−α), by NumPy and finite differences of log p − log q."""
    target, q = problem("student_t")
    z = jnp.array([0.3, -0.4, 1.1])
    M = 50
    others = np.asarray(jax.random.normal(key, (M, objective.K - 1, 3))) @ np.asarray(q.chol).T + np.asarray(q.mean)
    normal = scipy.stats.multivariate_normal(q.mean, q.covariance)

    def log_weight(point):
        return float(target.log_density(jnp.asarray(point))) - normal.logpdf(point)

    power = 1 - objective.alpha
    own = np.exp(power * log_weight(z))
    totals = own + np.array([sum(np.exp(power * log_weight(point)) for point in row) for row in others])
    g = own / totals
    steps = 1e-5 * np.eye(3)
    score = np.array([(log_weight(z + step) - log_weight(z - step)) / 2e-5 for step in steps])
    expected = np.mean(objective.alpha * g + power * g**2) * score
    np.testing.assert_allclose(bures.wasserstein_gradient(key, z, q, target, objective, M=M), expected, rtol=1e-6)


def test_wasserstein_gradient_averages_to_a():
    target, q = problem("student_t")
    objective = bures.IWELBO(K=5)
    keys = jax.random.split(jax.random.key(3), 20_000)
    z = q.sample(jax.random.key(4), 20_000)
    gradients = jax.lax.map(
        lambda pair: bures.wasserstein_gradient(pair[0], pair[1], q, target, objective, M=20), (keys, z)
    )
    mean, error = mean_and_error(gradients)
    a, a_error = mean_and_error(
        jax.lax.map(lambda k: bures.Price(M=4096)(k, q, target, objective).a, jax.random.split(jax.random.key(5), 16))
    )
    assert np.linalg.norm(error) < 0.03 * np.linalg.norm(a)
    assert_within_standard_errors(mean, a, np.hypot(error, a_error))


def total_variance(estimator, objective, q, target, num_replicates=200):
    def once(key):
        estimate = estimator(key, q, target, objective)
        return jnp.concatenate([estimate.a, estimate.S.reshape(-1)])

    keys = jax.random.split(jax.random.key(6), num_replicates)
    return float(np.sum(np.var(jax.lax.map(once, keys), axis=0, ddof=1)))


def test_variances_fall_in_the_order_promised(record_property):
    target = small_regression()
    laplace = bures.laplace(target)
    q = bures.Gaussian(laplace.mean + jnp.sum(laplace.chol, axis=1) / 2, 1.5 * laplace.chol)
    objective = bures.IWELBO(K=8)
    variants = {
        "last": bures.Price(M=64, indices="last"),
        "all": bures.Price(M=64),
        "permutations": bures.Price(M=64, permutations=16),
        "sobol": bures.Price(M=64, draws="sobol"),
    }
    variance = {name: total_variance(estimator, objective, q, target) for name, estimator in variants.items()}
    ratios = {name: variance[name] / variance["last"] for name in ("all", "permutations", "sobol")}
    for name, ratio in ratios.items():
        record_property(f"variance of {name} / last", ratio)
    record_property("variance of permutations / all", ratios["permutations"] / ratios["all"])
    record_property("variance of sobol / all", ratios["sobol"] / ratios["all"])
    assert ratios["all"] < 0.5
    assert ratios["permutations"] < 0.9 * ratios["all"]
    assert ratios["sobol"] < 0.9 * ratios["all"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_sobol_points_are_standard_normal_one_by_one(dtype):
    """Each point is exactly standard normal over the keys, whatever its place in the sequence."""
    keys = jax.random.split(jax.random.key(7), 4000)
    points = np.asarray(jax.jit(jax.vmap(lambda key: sobol(key, 6, 3, jnp.dtype(dtype))))(keys))
    assert points.dtype == dtype
    assert np.all(np.isfinite(points))
    for place in (0, 1, 5):
        for axis in range(3):
            assert scipy.stats.kstest(points[:, place, axis], "norm").pvalue > 1e-4
        correlations = np.corrcoef(points[:, place].T)[np.triu_indices(3, 1)]
        assert np.all(np.abs(correlations) < 4 / np.sqrt(4000))


def test_sobol_points_are_evenly_spread():
    """2^m points have one in each of 2^m equal cells of every axis, and moments far better than iid draws."""
    n, dim = 1024, 5
    points = np.asarray(draw_sobol(jax.random.key(8), n, dim, FLOAT64))
    cells = np.floor(scipy.stats.norm.cdf(points) * n).astype(int)
    for axis in range(dim):
        assert np.array_equal(np.sort(cells[:, axis]), np.arange(n))
    assert np.all(np.abs(points.mean(axis=0)) < 0.1 / np.sqrt(n))
    assert np.all(np.abs((points**2).mean(axis=0) - 1) < 0.3 * np.sqrt(2 / n))
    products = (points.T @ points / n)[np.triu_indices(dim, 1)]
    assert np.sqrt(np.mean(products**2)) < 0.5 / np.sqrt(n)


def test_sobol_keys_differ_and_any_count_works():
    first, again, second = (draw_sobol(jax.random.key(seed), 33, 2, FLOAT64) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert first.shape == (33, 2)
    assert not np.any(np.asarray(first) == np.asarray(second))
    assert draw_sobol(jax.random.key(0), 1, 4, FLOAT64).shape == (1, 4)


@pytest.mark.parametrize("n", [1, 7, 64])
def test_antithetic_draws_come_in_pairs(n):
    noise = np.asarray(antithetic(jax.random.key(4), n, 3, FLOAT64))
    assert noise.shape == (n, 3)
    np.testing.assert_array_equal(noise[(n + 1) // 2 :], -noise[: n // 2])


@pytest.mark.parametrize("draws", ["sobol", "antithetic"])
def test_dependent_draws_give_unbiased_estimates(draws):
    target, q = problem("regression")
    keys = jax.random.split(jax.random.key(9), 256)
    values = {
        d: mean_and_error(
            jax.lax.map(lambda key, d=d: bures.Price(M=64, draws=d)(key, q, target, bures.IWELBO(K=2)).a, keys)
        )
        for d in ("iid", draws)
    }
    assert_within_standard_errors(values["iid"][0], values[draws][0], np.hypot(values["iid"][1], values[draws][1]))


def test_fast_weighted_hessian_is_that_of_autodiff(key):
    X, y = regression_data(n=30, dim=4)
    target = bures.models.logistic_regression(X, y, prior_variance=3.0)
    plain = bures.Target(lambda z: target.log_density(z), 4)
    z = 3 * jax.random.normal(key, (11, 4))
    weights = jax.random.uniform(jax.random.fold_in(key, 1), (11,))
    fast = target.weighted_hessian(weights, z)
    np.testing.assert_allclose(fast, jax.jit(lambda w, z: plain.weighted_hessian(w, z))(weights, z), rtol=1e-10)
    each = jax.jit(jax.vmap(jax.hessian(target.log_density)))(z)
    np.testing.assert_allclose(fast, jnp.tensordot(weights, each, axes=1), rtol=1e-10)


def test_derivatives_against_finite_differences(key):
    target = bures.models.eggbox()
    value, score = jax.jit(lambda z: target.value(z)), jax.jit(lambda z: target.value_and_score(z)[1])
    z = target.sample(key, 4)
    weights = jnp.array([0.1, 0.7, 0.3, 1.3])
    step = 1e-5
    steps = step * np.eye(2)
    numeric_score = np.stack([(value(z + e) - value(z - e)) / (2 * step) for e in steps], axis=1)
    np.testing.assert_allclose(score(z), numeric_score, rtol=1e-6, atol=1e-7)
    numeric_hessian = np.stack([weights @ (score(z + e) - score(z - e)) / (2 * step) for e in steps])
    np.testing.assert_allclose(
        jax.jit(lambda w, z: target.weighted_hessian(w, z))(weights, z), numeric_hessian, rtol=1e-6, atol=1e-6
    )


def jagged(z):
    """`box` times a factor; −inf with NaN derivatives outside, as `jnp.where` has it."""
    return jnp.where(jnp.all(jnp.abs(z) < 2), box(z) + jnp.sum(jnp.sqrt(2 - jnp.abs(z))), -jnp.inf)


def smooth_jagged(z):
    """The same with finite derivatives outside."""
    return box(z) + jnp.sum(jnp.sqrt(jnp.where(jnp.abs(z) < 2, 2 - jnp.abs(z), 1.0)))


@pytest.fixture
def noise_with_a_draw_inside():
    noise = np.random.default_rng(0).uniform(-1, 1, (6, 5, 2))
    noise[:, 1::2] += 5  # two of the five are outside
    return jnp.asarray(noise)


@pytest.mark.parametrize("estimator", [bures.Price(M=6), bures.Stein(M=6), bures.Reparameterised(M=6)], ids=str)
@pytest.mark.parametrize("objective", [bures.IWELBO(K=5), bures.VRIWAE(K=5, alpha=0.5)], ids=str)
def test_draws_outside_the_support_count_for_nothing(estimator, objective, noise_with_a_draw_inside):
    q = bures.Gaussian.standard(2)
    outside = eqx.filter_jit(estimator.estimate)(noise_with_a_draw_inside, q, bures.Target(box, 2), objective)
    assert all(np.all(np.isfinite(part)) for part in (outside.a, outside.S, outside.bound, outside.mean_A))
    estimate = eqx.filter_jit(estimator.estimate)
    nan = estimate(noise_with_a_draw_inside, q, bures.Target(jagged, 2), objective)
    clean = estimate(noise_with_a_draw_inside, q, bures.Target(smooth_jagged, 2), objective)
    assert np.any(np.isnan(jax.vmap(jax.grad(jagged))(q.push(noise_with_a_draw_inside).reshape(-1, 2))))
    np.testing.assert_allclose(nan.a, clean.a, rtol=1e-12)
    np.testing.assert_allclose(nan.S, clean.S, rtol=1e-12)


def test_wasserstein_gradient_is_zero_outside_the_support(key):
    q = bures.Gaussian.standard(2)
    z = jnp.array([3.0, 0.0])
    gradient = bures.wasserstein_gradient(key, z, q, bures.Target(jagged, 2), bures.IWELBO(K=5), M=10)
    assert np.array_equal(gradient, np.zeros(2))


def test_cost_counts_every_evaluation():
    objective = bures.IWELBO(K=5)
    assert bures.Price(M=10).cost(objective) == (50, 50, 50)
    assert bures.Price(M=10, indices="last").cost(objective) == (50, 10, 10)
    assert bures.Price(M=10, permutations=4).cost(objective) == (50, 50, 50)
    assert bures.Stein(M=10).cost(objective) == (50, 50, 0)
    assert bures.Reparameterised(M=10).cost(objective) == (50, 50, 0)


def test_bound_is_the_mean_of_the_objective(key):
    target, q = problem("regression")
    objective = bures.VRIWAE(K=5, alpha=0.2)
    estimate = bures.Price(M=9)(key, q, target, objective)
    assert estimate.log_weights.shape == (9, 5)
    np.testing.assert_allclose(estimate.bound, np.mean(objective.bound(estimate.log_weights)), rtol=1e-12)
    z = q.push(bures.Price(M=9).noise(key, q, 5))
    expected = target.value(z.reshape(-1, 3)) - q.log_prob(z.reshape(-1, 3))
    np.testing.assert_allclose(estimate.log_weights.reshape(-1), expected, rtol=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.999, 1.0])
def test_what_a_draw_adds_to_the_bound_of_the_others(alpha):
    """The baseline of the shares of a mixture: F less F of the other draws, without their sum."""
    log_weights = np.random.default_rng(0).standard_normal((20, 4))
    others = [bures.VRIWAE(3, alpha).bound(np.delete(log_weights, k, axis=1)) for k in range(4)]
    expected = bures.VRIWAE(4, alpha).bound(log_weights)[:, None] - np.stack(others, axis=1)
    np.testing.assert_allclose(_gain(bures.VRIWAE(4, alpha), log_weights), expected, atol=1e-11)


def test_pairs_of_draws_give_the_field_of_draws_one_by_one():
    """Beyond 100 dimensions, on the host, what is linear in antithetic noise is done for half of it."""
    dim, rng = 104, np.random.default_rng(0)
    chol = np.tril(0.1 * rng.standard_normal((dim, dim))) + np.eye(dim)
    q = bures.Gaussian.unchecked(rng.standard_normal(dim), chol)
    evaluator = Evaluator(bures.Target(lambda z: -jnp.sum(z**4) / 4 - jnp.sum(z[1:] * z[:-1]) / 3, dim))
    paired, plain = bures.Stein(M=60, draws="antithetic"), bures.Stein(M=60)
    noise = paired.noise(rng, q, 1)
    ours, theirs = (each.estimate(noise, q, evaluator, bures.ELBO()) for each in (paired, plain))
    assert ours.field.slope.left.shape[0] == 30 and theirs.field.slope.left.shape[0] == 60
    for name in ("a", "S", "bound", "log_weights", "entropy_score"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(ours.field.score, theirs.field.score, rtol=1e-9, atol=1e-9)


def test_noise_that_is_not_paired_is_taken_as_it_is():
    dim, rng = 104, np.random.default_rng(1)
    q = bures.Gaussian.unchecked(np.zeros(dim), np.eye(dim))
    evaluator = Evaluator(bures.Target(lambda z: -jnp.sum(z**4) / 4, dim))
    noise = rng.standard_normal((60, 1, dim))
    ours, theirs = (
        each.estimate(noise, q, evaluator, bures.ELBO())
        for each in (bures.Stein(M=60, draws="antithetic"), bures.Stein(M=60))
    )
    np.testing.assert_array_equal(ours.S, theirs.S)
