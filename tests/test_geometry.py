"""Geometries: recovery of Gaussians, optimality of the proximal step, safeguards, equivariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from problems import (
    FLOATS,
    correlated_target,
    low_rank_gaussian,
    quick_jit,
    random_gaussian,
    regression_data,
    run_steps,
)

import bures
from bures.arrays import to_host
from bures.engine import Evaluator
from bures.family import gaussian_moves
from bures.loop import Method, State, take_step
from bures.target.blocks import largest_array
from bures.threads import one_blas_thread

DECAY = optax.exponential_decay(0.1, 100, 0.3)
# The last entry is the error left after 500 steps: scores of the log weight vanish at the optimum, so that most get
# there exactly; Adam by its decreasing learning rate; path gradients keep their noise, about sqrt(rate / M).
METHODS = {
    "BuresWasserstein": (bures.ELBO(), bures.Price(M=8), bures.BuresWasserstein(0.4), 1e-9),
    "BuresWasserstein by Stein": (bures.ELBO(), bures.Stein(M=64), bures.BuresWasserstein(0.2), 1e-9),
    "ForwardBackward": (bures.ELBO(), bures.Price(M=8), bures.ForwardBackward(0.2, control_variate=True), 1e-9),
    "Whitened": (bures.ELBO(), bures.Price(M=8), bures.Whitened(), 1e-9),
    "Euclidean by Price": (bures.ELBO(), bures.Price(M=8), bures.Euclidean(optax.adam(DECAY)), 0.03),
    "Euclidean by Stein": (bures.ELBO(), bures.Stein(M=64), bures.Euclidean(optax.adam(DECAY)), 0.03),
    "Euclidean by paths": (bures.ELBO(), bures.Reparameterised(M=64), bures.Euclidean(optax.adam(DECAY)), 0.12),
}


def run(key, q, target, method, num_steps):
    parts = dict(zip(("objective", "estimator", "geometry"), method, strict=False))
    state, info = quick_jit(lambda key, q: run_steps(key, q, target, parts, num_steps))(key, q)
    return state.approximation, info


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_gaussian_targets_are_recovered(name, dtype):
    target = correlated_target(dtype)
    start = random_gaussian(9, 3, 2.0, dtype)
    q, info = run(jax.random.key(0), start, target, METHODS[name], 500)
    assert np.all(info.finite)
    assert q.mean.dtype == dtype
    tolerance = max(METHODS[name][-1], 1e3 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(q.mean, target.mean, atol=tolerance)
    np.testing.assert_allclose(q.covariance, target.covariance, atol=tolerance)


def test_published_forward_backward_recovers_up_to_its_noise():
    """Without the control variate the mean keeps the noise of E∇V: a stationary variance of about η/(2M) per unit."""
    target = correlated_target()
    q, _ = run(
        jax.random.key(0),
        random_gaussian(9, 3),
        target,
        (*METHODS["ForwardBackward"][:2], bures.ForwardBackward(0.05), 0),
        500,
    )
    whitened = np.linalg.solve(np.linalg.cholesky(target.covariance), q.mean - target.mean)
    precision = np.linalg.eigvalsh(np.linalg.inv(target.covariance))[-1]
    assert np.linalg.norm(whitened) < 4 * np.sqrt(3 * 0.05 * precision / (2 * 8))
    np.testing.assert_allclose(q.covariance, target.covariance, atol=1e-6)


def exact_estimate(q, target, K=1):
    """The noise-free ELBO gradient on a Gaussian target."""
    precision = jnp.linalg.inv(target.covariance)
    a = -precision @ (q.mean - target.mean)
    S = jnp.linalg.inv(q.covariance) - precision
    zero = jnp.zeros_like(a)
    return bures.Estimate(a, S, zero, jnp.ones(()), jnp.zeros((1, K)), jnp.zeros(()), K)


def with_matrix(S, dim=3):
    S = jnp.asarray(S)
    zero = jnp.zeros(dim)
    return bures.Estimate(zero, S, zero, jnp.ones(()), jnp.zeros((1, 1)), jnp.zeros(()), 1)


# ---- forward–backward


def test_proximal_step_minimises_the_entropy_and_the_transport():
    """Σ minimises ½ W₂²(Σ½, Σ) − (η/2) log det Σ: no perturbation is better, and the derivative is zero."""
    q, target, eta = random_gaussian(1, 3), correlated_target(), 0.3
    new, _, _ = bures.ForwardBackward(eta).step(exact_estimate(q, target), q, ())
    forward = (np.eye(3) - eta * np.linalg.inv(target.covariance)) @ np.asarray(q.covariance)
    half = forward @ (np.eye(3) - eta * np.linalg.inv(target.covariance)).T

    def proximal(covariance):
        root = scipy.linalg.sqrtm(half).real
        cross = scipy.linalg.sqrtm(root @ covariance @ root).real
        return np.trace(half + covariance - 2 * cross) / 2 - eta / 2 * np.linalg.slogdet(covariance)[1]

    covariance = np.asarray(new.covariance)
    best = proximal(covariance)
    generator = np.random.default_rng(0)
    for _ in range(20):
        direction = generator.standard_normal((3, 3))
        direction = (direction + direction.T) / np.linalg.norm(direction + direction.T)
        up, down = (proximal(covariance + sign * 1e-3 * direction) for sign in (1, -1))
        assert min(up, down) > best
        assert abs(up - down) < 1e-3 * (up + down - 2 * best)


def test_forward_backward_is_stationary_only_at_the_target():
    target = correlated_target()
    q = bures.Gaussian.from_moments(target.mean, target.covariance)
    new, _, _ = bures.ForwardBackward(0.2).step(exact_estimate(q, target), q, ())
    np.testing.assert_allclose(new.covariance, target.covariance, atol=1e-12)


def test_control_variate_is_the_score_of_q():
    q = random_gaussian(1, 3)
    estimate = eqx.tree_at(
        lambda e: e.entropy_score, exact_estimate(q, correlated_target()), jnp.array([1.0, 2.0, 3.0])
    )
    plain, _, _ = bures.ForwardBackward(0.1).step(estimate, q, ())
    controlled, _, _ = bures.ForwardBackward(0.1, control_variate=True).step(estimate, q, ())
    np.testing.assert_allclose(controlled.mean - plain.mean, 0.1 * jnp.array([1.0, 2.0, 3.0]), rtol=1e-12)


# ---- Bures–Wasserstein


def clamped(q, S, eta, low, high):
    values, vectors = np.linalg.eigh(np.eye(q.dim) + eta * np.asarray(S))
    factor = (vectors * np.clip(values, low, high)) @ vectors.T
    return factor @ np.asarray(q.covariance) @ factor


@pytest.mark.parametrize(
    ("scale", "acts"),
    [(0.1, False), (0.45, False), (0.7, False), (5.0, True), (100.0, True)],
    ids=["idle", "nearly", "norm beyond, spectrum within", "acts", "acts fully"],
)
def test_the_clamp_acts_where_it_should_and_only_there(scale, acts):
    q = random_gaussian(1, 3)
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    S = (vectors * (scale * np.array([-1.0, 0.6, 0.5]))) @ vectors.T
    S = (S + S.T) / 2
    new, _, move = bures.BuresWasserstein(1.0).step(with_matrix(S), q, ())
    np.testing.assert_allclose(new.covariance, clamped(q, S, 1.0, 0.1, 1.5), rtol=1e-10)
    assert bool(move.clipped) is acts


def test_the_clamp_is_reported_step_by_step():
    target = bures.Target(lambda z: -50 * jnp.sum(z**2), 2)
    method = (bures.ELBO(), bures.Price(M=4), bures.BuresWasserstein(0.05))
    _, info = run(jax.random.key(0), bures.Gaussian.standard(2), target, method, 20)
    # I + η S = 1 + 0.05 (1/σ² − 100) is clamped at 0.1 from σ² = 1, and not near σ² = 0.01.
    assert info.clipped[0]
    assert not info.clipped[-1]


def test_bures_wasserstein_uses_the_symmetric_part():
    q = random_gaussian(1, 3)
    S = np.random.default_rng(1).standard_normal((3, 3))
    geometry = bures.BuresWasserstein(0.1)
    one, _, _ = geometry.step(with_matrix(S), q, ())
    two, _, _ = geometry.step(with_matrix((S + S.T) / 2), q, ())
    np.testing.assert_allclose(one.chol, two.chol, rtol=1e-12)


# ---- Euclidean


def gradient_descent(optimizer, q, target, num_steps, limit):
    """Plain optax on (m, L) with the autodiff gradient of the closed-form ELBO, L of either sign."""
    precision = jnp.linalg.inv(target.covariance)

    @jax.jit
    def gradient(parameters):
        def loss(parameters):
            mean, chol = parameters
            shift = mean - target.mean
            energy = jnp.trace(precision @ chol @ chol.T) / 2 + shift @ precision @ shift / 2
            return energy - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(chol))))

        gradient = jax.tree.map(jnp.tril, jax.grad(loss)((parameters[0], jnp.tril(parameters[1])))[1:])
        return jax.grad(loss)(parameters)[0], gradient[0]

    parameters = (q.mean, q.chol)
    state = optimizer.init(parameters)
    flipped, clipped = False, []
    for _ in range(num_steps):
        raw = gradient(parameters)
        norm = float(optax.tree.norm(raw))
        clipped.append(norm > limit)
        raw = jax.tree.map(lambda part, norm=norm: part * min(1.0, limit / norm), raw)
        update, state = optimizer.update(raw, state, parameters)
        parameters = optax.apply_updates(parameters, update)
        flipped = flipped or bool(jnp.any(jnp.diagonal(parameters[1]) < 0))
    return parameters, flipped, clipped


@pytest.mark.parametrize(
    ("optimizer", "limit"),
    [(optax.sgd(0.5, momentum=0.9), 2.0), (optax.adam(0.8), 1.0)],
    ids=["momentum", "adam"],
)
def test_euclidean_is_optax_on_a_signed_factor(optimizer, limit):
    """Large steps carry L through singular matrices: columns change sign, and the moments follow."""
    q, target = random_gaussian(4, 3, 9.0), correlated_target()
    (mean, chol), flipped, clipped = gradient_descent(optimizer, q, target, 25, limit)
    assert flipped
    geometry = bures.Euclidean(optimizer, max_grad_norm=limit)
    state = geometry.init(q)
    step = eqx.filter_jit(lambda q, state: geometry.step(exact_estimate(q, target), q, state))
    for i in range(25):
        q, state, move = step(q, state)
        assert np.all(np.diagonal(q.chol) > 0)
        assert bool(move.clipped) == clipped[i]
    np.testing.assert_allclose(q.mean, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(q.covariance, chol @ chol.T, rtol=1e-7, atol=1e-9)


def test_adam_by_learning_rate_is_optax_adam():
    q, target = random_gaussian(4, 3), correlated_target()
    ours, theirs = bures.Euclidean(0.05), bures.Euclidean(optax.adam(0.05))
    assert ours.is_adam
    assert not theirs.is_adam
    results = []
    for geometry in (ours, theirs):
        current, state = q, geometry.init(q)
        for _ in range(3):
            current, state, _ = geometry.step(exact_estimate(current, target), current, state)
        results.append(current)
    np.testing.assert_allclose(results[0].mean, results[1].mean, rtol=1e-12)
    np.testing.assert_allclose(results[0].chol, results[1].chol, rtol=1e-12)


def test_gradient_norm_is_clipped_and_none_leaves_it():
    q, target = bures.Gaussian(jnp.full(3, 100.0), jnp.eye(3)), correlated_target()
    sgd = optax.sgd(1.0)
    clipped, _, move = bures.Euclidean(sgd, max_grad_norm=0.5).step(
        exact_estimate(q, target), q, bures.Euclidean(sgd).init(q)
    )
    moved = np.sqrt(np.sum((clipped.mean - q.mean) ** 2) + np.sum((clipped.chol - q.chol) ** 2))
    np.testing.assert_allclose(moved, 0.5, rtol=1e-10)
    assert bool(move.clipped)
    free, _, move = bures.Euclidean(sgd, max_grad_norm=None).step(
        exact_estimate(q, target), q, bures.Euclidean(sgd).init(q)
    )
    np.testing.assert_allclose(free.mean, q.mean + exact_estimate(q, target).a, rtol=1e-12)
    assert not bool(move.clipped)


def test_a_zero_gradient_is_not_divided_by():
    target = correlated_target()
    q = bures.Gaussian.from_moments(target.mean, target.covariance)
    still = with_matrix(np.zeros((3, 3)))
    for geometry in (bures.Euclidean(0.1), bures.Whitened(), bures.BuresWasserstein(0.1)):
        new, _, move = geometry.step(still, q, geometry.init(q))
        np.testing.assert_allclose(new.mean, q.mean, rtol=1e-14)
        np.testing.assert_allclose(new.chol, q.chol, rtol=1e-12, atol=1e-15)
        assert not bool(move.clipped)


# ---- whitened


class Moved(eqx.Module):
    """The density of A z + b, where z has the given one."""

    target: bures.Target
    inverse: jax.Array
    shift: jax.Array

    def __call__(self, z):
        return self.target.log_density(self.inverse @ (z - self.shift))


def test_whitened_steps_are_equivariant_under_affine_maps():
    """The same key on a target and its image under z ↦ A z + b (A lower triangular, to keep the factors Cholesky):
    the fits are images of each other, however badly A is scaled."""
    target = bures.models.logistic_regression(*regression_data(n=15, dim=3))
    A = jnp.array([[1e-3, 0.0, 0.0], [5.0, 40.0, 0.0], [0.3, -2.0, 0.7]])
    b = jnp.array([10.0, -3.0, 0.5])
    image = bures.Target(Moved(target, jnp.linalg.inv(A), b), 3)
    start = random_gaussian(2, 3, 4.0)
    image_start = bures.Gaussian(A @ start.mean + b, jnp.tril(A @ start.chol))
    method = (bures.IWELBO(K=5), bures.Price(M=16), bures.Whitened(), None)
    key = jax.random.key(3)
    q, info = run(key, start, target, method, 25)
    moved, moved_info = run(key, image_start, image, method, 25)
    np.testing.assert_allclose(moved.mean, A @ q.mean + b, rtol=1e-7)
    np.testing.assert_allclose(moved.chol, A @ q.chol, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(moved_info.ness, info.ness, rtol=1e-7)
    np.testing.assert_allclose(moved_info.step_size, info.step_size, rtol=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_whitened_reaches_a_gaussian_in_few_steps_from_any_scale(scale):
    target = correlated_target()
    start = bures.Gaussian(target.mean + 1.0, scale * jnp.eye(3))
    q, info = run(jax.random.key(0), start, target, METHODS["Whitened"], 60)
    assert np.all(info.finite)
    assert float(q.kl(bures.Gaussian.from_moments(target.mean, target.covariance))) < 1e-6


def test_whitened_does_not_shrink_before_it_arrives():
    """From a hundred standard deviations of the posterior: the covariance must wait for the mean, the gain not fall."""
    target = bures.models.logistic_regression(*regression_data(n=1000, dim=3))
    start, best = bures.Gaussian(jnp.zeros(3), 10 * jnp.eye(3)), bures.laplace(target)
    method = (bures.IWELBO(K=10), bures.Stein(M=40, draws="antithetic"), bures.Whitened(), None)
    for seed in range(3):
        q, _ = run(jax.random.key(seed), start, target, method, 30)
        assert float(best.kl(q)) < 0.5


@pytest.mark.parametrize("deviation", [1e-3, 1.0])
def test_whitened_does_not_collapse_far_from_the_target(deviation):
    """Ten thousand standard deviations away there is only a slope: its noise must not pass for curvature."""
    target = bures.models.gaussian(10, condition_number=1e4)
    start, best = bures.Gaussian(jnp.full(10, 100.0), deviation * jnp.eye(10)), bures.laplace(target)
    method = (bures.IWELBO(K=10), bures.Stein(M=40, draws="antithetic", permutations=8), bures.Whitened(), None)
    for seed in range(2):
        q, _ = run(jax.random.key(seed), start, target, method, 200)
        assert float(best.kl(q)) < 1e-6


def test_whitened_mean_steps_stay_in_the_trust_region():
    q = random_gaussian(3, 3)
    estimate = eqx.tree_at(lambda e: e.a, with_matrix(np.zeros((3, 3))), jnp.array([1e5, -1e5, 3e4]))
    geometry = bures.Whitened(trust_radius=0.7)
    new, _, move = geometry.step(estimate, q, geometry.init(q))
    assert bool(move.clipped)
    np.testing.assert_allclose(np.linalg.norm(q.whiten(new.mean)), 0.7, rtol=1e-8)


@pytest.mark.parametrize("objective", [bures.ELBO(), bures.VRIWAE(K=5, alpha=0.9)])
def test_whitened_widens_faster_where_steps_agree(objective):
    """From scales 2⁻²⁰ of the target's, twofold variances alone would take 40 steps; up to 50 dimensions they do."""
    steps = {}
    for dim in (50, 60):
        target = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim)
        q = to_host(bures.Gaussian(jnp.zeros(dim), 2.0**-20 * jnp.eye(dim)))
        method = Method(objective, bures.Stein(M=1200, draws="antithetic"), bures.Whitened())
        state, evaluator = State(q, method.geometry.init(q)), Evaluator(target)
        rng = np.random.default_rng(0)
        steps[dim] = 0
        with one_blas_thread():
            while steps[dim] < 60 and np.mean(np.square(state.approximation.chol)) * dim < 0.5:
                state, info = take_step(rng, state, evaluator, method)
                steps[dim] += 1
                assert info.finite
    assert 38 <= steps[50] <= 44
    assert steps[60] <= 24


def test_whitened_widens_further_only_where_an_earlier_slope_said_so():
    slopes, earlier = np.array([0.1, 0.9, 0.9, 1.5, 9.0]), np.diag([0.9, 0.9, 0.1, 2.0, 9.0])
    widened = gaussian_moves._widened(1 + np.minimum(slopes, 1), np.float64(4), slopes, np.eye(5), earlier)
    series = sum(0.9**k for k in range(5))  # of 1 / (1 − 0.9), as many terms as the stride and one
    np.testing.assert_allclose(widened, [1.1, series, 1.9, 5.0, 2.0], rtol=1e-12)


def test_whitened_steps_in_many_dimensions_are_the_same_in_numpy_and_jax():
    """Twelve steps from far away and far too narrow, limits and all."""
    dim = 60
    target = bures.Target(lambda z: -jnp.sum((z - 30) ** 2) / 2 - jnp.sum(z[1:] * z[:-1]) / 5, dim)
    method = Method(bures.ELBO(), bures.Stein(M=300), bures.Whitened())
    noise = np.random.default_rng(1).standard_normal((12, 300, 1, dim))
    ends = []
    for convert, through in ((np.asarray, Evaluator(target)), (jnp.asarray, target)):
        q = jax.tree.map(convert, bures.Gaussian(jnp.zeros(dim), 1e-3 * jnp.eye(dim)))
        memory, delays = method.geometry.init(q), []
        with one_blas_thread():
            for draws in noise:
                estimate = method.estimator.estimate(convert(draws), q, through, method.objective)
                q, memory, _ = method.geometry.step(estimate, q, memory)
                delays.append(float(memory.delay))
        assert min(delays) < 0
        ends.append(jax.tree.map(np.asarray, q))
    np.testing.assert_allclose(ends[0].mean, ends[1].mean, rtol=1e-6)
    np.testing.assert_allclose(ends[0].chol, ends[1].chol, atol=1e-6)


def test_whitened_does_not_depend_on_the_scale_of_the_coefficients():
    """A and B fall with K; the division by E[A] takes that out of the step."""
    q, target = random_gaussian(3, 3), correlated_target()
    one = exact_estimate(q, target)
    small = eqx.tree_at(lambda e: (e.a, e.S, e.mean_A), one, (1e-4 * one.a, 1e-4 * one.S, 1e-4 * one.mean_A))
    geometry = bures.Whitened()
    first, second = (geometry.step(estimate, q, geometry.init(q))[0] for estimate in (one, small))
    np.testing.assert_allclose(first.chol, second.chol, rtol=1e-10)
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-10)


# ---- States that do not belong --------------------------------------------------------------------------------------


def test_a_state_of_another_geometry_or_dimension_is_refused(key):
    target = correlated_target()
    method = dict(objective=bures.ELBO(), estimator=bures.Stein(M=10))
    q = bures.Gaussian.standard(3)
    state = bures.init(target, init=q, geometry=bures.Whitened(), **method)
    with pytest.raises(ValueError, match=r"state must be one of BuresWasserstein.*bures\.init"):
        bures.step(key, state, target, geometry=bures.BuresWasserstein(0.1), **method)
    with pytest.raises(ValueError, match=r"R\^2, where the target lives"):
        bures.step(key, state, bures.models.gaussian(2), geometry=bures.Whitened(), **method)
    with pytest.raises(ValueError, match=r"state must be a bures\.State"):
        bures.step(key, q, target, geometry=bures.Whitened(), **method)


def test_numbers_of_any_kind_become_floats_and_share_a_compilation():
    for step_size in (1, np.float32(0.5), np.int64(1), jnp.asarray(0.5)):
        assert type(bures.BuresWasserstein(step_size).step_size) is float
    assert type(bures.VRIWAE(np.int64(5), np.float32(0.5)).alpha) is float
    assert type(bures.Price(M=np.int64(10)).M) is int
    assert type(bures.Whitened(trust_radius=3).trust_radius) is float


@pytest.mark.parametrize("name", ["trust_radius", "stale", "memory", "far", "doubt"])
def test_constants_of_whitened_are_fields_that_are_checked(name):
    assert getattr(bures.Whitened(**{name: 0.5}), name) == 0.5
    with pytest.raises(ValueError, match=name):
        bures.Whitened(**{name: float("nan")})


# ---- mean field and low rank


class Scaled(eqx.Module):
    """The density of c z + b, coordinate by coordinate, where z has the given one."""

    target: bures.Target
    factor: jax.Array
    shift: jax.Array

    def __call__(self, z):
        return self.target.log_density((z - self.shift) / self.factor)


@pytest.mark.parametrize(
    ("variances", "objective", "estimator"),
    [
        ((), bures.ELBO(), bures.Stein(M=30)),
        ((3.0, 1.0), bures.ELBO(), bures.Stein(M=30)),
        ((3.0, 1.0), bures.IWELBO(K=5), bures.Price(M=16)),
    ],
    ids=["mean field", "low rank by least squares", "low rank by moments"],
)
def test_whitened_steps_of_families_are_equivariant_under_scaling(variances, objective, estimator):
    """The same key on a target and its image under z ↦ c z + b: the fits are images of each other."""
    target = bures.models.logistic_regression(*regression_data(n=15, dim=4))
    factor, shift = jnp.array([1e-3, 40.0, 0.7, 5.0]), jnp.array([10.0, -3.0, 0.5, 0.0])
    start = low_rank_gaussian(2, 4, variances)
    image_start = start.replaced(mean=factor * start.mean + shift, scale=factor * start.scale)
    method = (objective, estimator, bures.Whitened(), None)
    parts = dict(zip(("objective", "estimator", "geometry"), method, strict=False))
    both = jax.tree.map(lambda *x: jnp.stack(x), start, image_start)
    factors, shifts = jnp.stack([jnp.ones(4), factor]), jnp.stack([jnp.zeros(4), shift])

    @quick_jit
    @jax.vmap
    def fits(q, factor, shift):  # one program for both
        return run_steps(jax.random.key(3), q, bures.Target(Scaled(target, factor, shift), 4), parts, 12)

    states, info = fits(both, factors, shifts)
    q = states.approximation
    np.testing.assert_allclose(q.mean[1], factor * q.mean[0] + shift, rtol=1e-7)
    np.testing.assert_allclose(q.scale[1], factor * q.scale[0], rtol=1e-7)
    np.testing.assert_allclose(q.variances[1], q.variances[0], rtol=1e-7)
    spans = [basis @ basis.T for basis in q.basis]
    np.testing.assert_allclose(spans[1], spans[0], atol=1e-7)
    assert not np.allclose(q.mean[0], start.mean)  # it did move
    for name in ("ness", "step_size", "gap"):
        np.testing.assert_allclose(getattr(info, name)[1], getattr(info, name)[0], rtol=1e-6, err_msg=name)


def test_low_rank_without_columns_is_mean_field_to_the_bit():
    target = bures.models.logistic_regression(*regression_data(n=15, dim=4))
    start = random_gaussian(2, 4)
    fits = [
        bures.fit(target, key=jax.random.key(0), init=start, family=family)
        for family in (bures.MeanField(), bures.LowRank(rank=0))
    ]
    one, other = (jax.tree.leaves((fit.approximation, fit.trace, fit.loop)) for fit in fits)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("variances", [(), (12.0, 0.05)], ids=["diagonal", "diagonal plus rank 2"])
def test_gaussians_of_a_family_are_recovered(variances):
    """Scales over decades and a mean ten standard deviations from the origin, in 30 dimensions."""
    generator = np.random.default_rng(1)
    scale = np.exp(generator.normal(0, 1.5, 30))
    basis = np.linalg.qr(generator.standard_normal((30, len(variances))))[0]
    truth = bures.LowRankGaussian(10 * scale * generator.standard_normal(30), scale, basis, np.array(variances))
    target = bures.Target(truth.log_prob, 30)
    families = [bures.LowRank(rank=len(variances)), bures.LowRank()] if variances else [bures.MeanField()]
    for family in families:
        fit = bures.fit(target, key=jax.random.key(0), family=family, tolerance=1e-7)
        q = fit.approximation
        assert fit.outcome is bures.Outcome.CONVERGED
        assert float(q.kl(truth)) < 1e-6
        np.testing.assert_allclose(q.mean, truth.mean, atol=1e-4 * scale.max())
        np.testing.assert_allclose(q.covariance, truth.covariance, atol=1e-4 * scale.max() ** 2)


def test_mean_field_of_a_correlated_gaussian_has_the_diagonal_of_its_precision():
    truth = random_gaussian(3, 6)
    target = bures.Target(truth.log_prob, 6)
    method = {"objective": bures.ELBO(), "estimator": bures.Price(M=20), "geometry": bures.Whitened()}
    start = bures.MeanField().standard(6)
    state, _ = quick_jit(lambda key: run_steps(key, start, target, method, 300))(jax.random.key(0))
    q = state.approximation
    # The covariance has no noise with Hessians; the mean keeps some, since scores of q do not vanish at the optimum.
    np.testing.assert_allclose(q.scale**-2, np.diagonal(np.linalg.inv(truth.covariance)), rtol=1e-3)
    assert float(q.kl(truth)) == pytest.approx(float(bures.MeanField().of(truth).kl(truth)), abs=1e-2)


@pytest.mark.parametrize(
    "geometry",
    [bures.BuresWasserstein(0.12), bures.Euclidean(optax.adam(optax.exponential_decay(0.03, 150, 0.3)))],
    ids=lambda part: type(part).__name__,
)
def test_other_geometries_reach_the_same_optimum_of_low_rank(geometry):
    truth = low_rank_gaussian(5, 6, (6.0, 3.0))
    target = bures.Target(truth.log_prob, 6)
    turned = np.linalg.qr(np.asarray(truth.basis) + 0.3 * np.random.default_rng(3).standard_normal((6, 2)))[0]
    start = bures.LowRankGaussian(truth.mean + 0.5 * truth.scale, 1.2 * truth.scale, turned, truth.variances**0.5)
    q, info = run(jax.random.key(0), start, target, (bures.ELBO(), bures.Stein(M=100), geometry), 500)
    assert np.all(info.finite)
    assert float(start.kl(truth)) > 1 > 0.01 > float(q.kl(truth))
    assert np.mean(info.bound[:5]) < np.mean(info.bound[-5:])


def test_bures_wasserstein_steps_follow_narrow_directions():
    truth = low_rank_gaussian(5, 6, (0.1, 0.3))
    target = bures.Target(truth.log_prob, 6)
    start = truth.replaced(variances=truth.variances**0.5)
    method = (bures.ELBO(), bures.Stein(M=100), bures.BuresWasserstein(0.005))
    q, info = run(jax.random.key(0), start, target, method, 300)
    assert np.all(info.finite)
    assert float(q.kl(truth)) < float(start.kl(truth)) / 10


def test_columns_along_axes_do_not_amplify_rounding():
    """Where a column is one coordinate, least squares has nothing left to fit of it."""
    target, geometry = bures.models.logistic_regression(*regression_data(n=8, dim=4)), bures.Whitened()
    q, noise = to_host(bures.LowRank().standard(4)), np.random.default_rng(0).standard_normal((30, 1, 4))
    estimator, evaluator = bures.Stein(M=30), Evaluator(target)
    estimates = [estimator.estimate(noise * factor, q, evaluator, bures.ELBO()) for factor in (1, 1 + 1e-13)]
    first, second = (geometry.step(estimate, q, geometry.init(q))[0] for estimate in estimates)
    np.testing.assert_allclose(first.mean, second.mean, atol=1e-10)


def test_more_columns_than_half_the_dimensions():
    target = bures.models.logistic_regression(*regression_data(n=8, dim=3))
    method = {"objective": bures.ELBO(), "estimator": bures.Stein(M=30), "geometry": bures.Whitened()}
    state, _ = run_steps(jax.random.key(0), low_rank_gaussian(1, 3), target, method, 2)
    assert bool(state.approximation.is_valid())


@pytest.mark.parametrize(
    "geometry",
    [bures.Whitened(), bures.BuresWasserstein(0.1), bures.Euclidean(0.1)],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.parametrize("objective", [bures.ELBO(), bures.IWELBO(K=2)], ids=str)
def test_steps_of_low_rank_make_no_matrix(geometry, objective):
    """In 2000 dimensions, with 4 columns and n = 20 draws: no array of more than 3 (n + r) d numbers, never d²."""
    dim, n, r = 2000, 20, 4
    target = bures.Target(lambda z: -jnp.sum(z**4), dim)
    q = low_rank_gaussian(1, dim, (3.0, 0.3, 1.0, 1.0))
    method = {"objective": objective, "estimator": bures.Stein(M=n // objective.K), "geometry": geometry}
    state = bures.init(target, init=q, **method)
    jaxpr = jax.make_jaxpr(lambda key, state: bures.step(key, state, target, **method))(jax.random.key(0), state)
    assert dim * n <= largest_array(jaxpr) <= 3 * (n + r) * dim < dim**2


@pytest.mark.parametrize("shift", [0.01, 0.1])
def test_short_steps_in_many_dimensions_need_no_eigenvalues(monkeypatch, shift):
    """To first order in the step they are what eigenvalues say; long ones still go by those."""
    dim, rng = 60, np.random.default_rng(0)
    root = rng.standard_normal((dim, dim)) / np.sqrt(dim)
    precision = np.eye(dim) + shift * (root + root.T)
    target = bures.Target(lambda z: -z @ precision @ z / 2, dim)
    q = bures.Gaussian.unchecked(np.full(dim, shift), np.eye(dim))
    noise = rng.standard_normal((40_000, 1, dim))
    estimate = bures.Stein(M=40_000).estimate(noise, q, Evaluator(target), bures.ELBO())
    short, *_ = bures.Whitened().step(estimate, q, bures.Whitened().init(q))
    monkeypatch.setattr(gaussian_moves, "_is_short", lambda step: False)
    long, *_ = bures.Whitened().step(estimate, q, bures.Whitened().init(q))
    np.testing.assert_allclose(short.mean, long.mean, atol=5 * shift**2)
    np.testing.assert_allclose(short.chol @ short.chol.T, long.chol @ long.chol.T, atol=10 * shift**2)
    monkeypatch.undo()
    monkeypatch.setattr(gaussian_moves.linalg, "eigh", lambda matrix: 1 / 0)
    bures.Whitened().step(estimate, q, bures.Whitened().init(q))
    wide = bures.Gaussian.unchecked(q.mean, 2 * q.chol)
    far = bures.Stein(M=40_000).estimate(noise, wide, Evaluator(target), bures.ELBO())
    with pytest.raises(ZeroDivisionError):
        bures.Whitened().step(far, wide, bures.Whitened().init(wide))
