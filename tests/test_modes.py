"""All modes of a target within a number of evaluations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.family.gaussian import Gaussian
from bures.modes import Mode, View, find_modes, is_explained, scatter, weigh
from bures.search import Budget, climb


class Gaussians(eqx.Module):
    """Σ w_k N(mean_k, precision_k⁻¹)."""

    log_weights: jax.Array
    means: jax.Array
    precisions: jax.Array

    def __call__(self, z):
        away = z - self.means
        squares = jnp.einsum("ki,kij,kj->k", away, self.precisions, away)
        constants = jnp.linalg.slogdet(self.precisions)[1] / 2 - z.size * jnp.log(2 * jnp.pi) / 2
        return jax.nn.logsumexp(self.log_weights - squares / 2 + constants)


def mixture(weights, means, covariances):
    parts = (np.log(weights), means, np.linalg.inv(covariances))
    return bures.Target(Gaussians(*map(jnp.asarray, parts)), means.shape[1])


def ten(dim, seed):
    """Flat Dirichlet weights, means uniform in [−10, 10]^d, Wishart covariances of d + 2 degrees of freedom."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((10, dim + 2, dim)) / np.sqrt(dim)
    return rng.dirichlet(np.ones(10)), rng.uniform(-10, 10, (10, dim)), np.einsum("kni,knj->kij", roots, roots)


def found(modes, means, covariances):
    """Whether each mean is within a standard deviation of a mode."""
    chols = np.linalg.cholesky(covariances)
    away = [
        [np.linalg.norm(np.linalg.solve(c, q.gaussian.mean - m)) for q in modes]
        for m, c in zip(means, chols, strict=True)
    ]
    return np.min(np.reshape(away, (len(means), -1)), axis=1, initial=np.inf) < 1


@pytest.mark.parametrize("dim", [5, 20])
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_gaussians_are_found_and_weighed(dim, seed):
    weights, means, covariances = ten(dim, seed)
    evaluator = Evaluator(mixture(weights, means, covariances))
    modes = find_modes(np.random.default_rng(seed), Budget(evaluator, 10_000), ())
    assert np.all(found(modes, means, covariances))
    assert evaluator.count <= 10_000
    masses = [mode.log_mass for mode in modes]
    assert masses == sorted(masses, reverse=True)
    np.testing.assert_allclose(np.exp(masses), np.sort(weights)[::-1], rtol=0.02, atol=0.002)


def test_forty_gaussians_in_the_plane():
    """Those that have a mode of their own: of two that overlap, one may be the other's shoulder."""
    means = np.random.default_rng(4).uniform(-40, 40, (40, 2))
    covariances = np.repeat(np.eye(2)[None], 40, axis=0)
    evaluator = Evaluator(mixture(np.full(40, 1 / 40), means, covariances))
    modes = find_modes(np.random.default_rng(0), Budget(evaluator, 50_000), ())
    apart = np.linalg.norm(means[:, None] - means, axis=2) + 10 * np.eye(40)
    alone = np.min(apart, axis=1) > 4
    assert alone.sum() >= 25
    assert np.all(found(modes, means[alone], covariances[alone]))
    assert len(modes) <= 40


def test_what_is_known_is_kept_and_not_found_again():
    target = mixture(np.array([0.4, 0.6]), np.array([[-9.0, 0, 0], [9.0, 0, 0]]), np.stack([np.eye(3)] * 2))
    first = find_modes(np.random.default_rng(0), Budget(Evaluator(target), 3000), ())
    again = find_modes(np.random.default_rng(1), Budget(Evaluator(target), 3000), first)
    assert len(first) == len(again) == 2
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert len(find_modes(np.random.default_rng(1), Budget(Evaluator(target), 3000), first, most=1)) == 1


def test_one_gaussian_ends_the_search_early():
    target = bures.models.gaussian(4, condition_number=100.0)
    evaluator = Evaluator(target)
    [mode] = find_modes(np.random.default_rng(0), Budget(evaluator, 20_000), ())
    np.testing.assert_allclose(mode.log_mass, 0, atol=1e-3)
    assert evaluator.count < 9000


@pytest.mark.parametrize("limit", [0, 10, 300])
def test_a_small_budget_is_kept(limit):
    weights, means, covariances = ten(5, 0)
    evaluator = Evaluator(mixture(weights, means, covariances))
    find_modes(np.random.default_rng(0), Budget(evaluator, limit), ())
    assert evaluator.count <= limit


def test_no_density_anywhere_is_no_mode():
    target = bures.Target(lambda z: jnp.where(z[0] > 1e9, 0.0, -jnp.inf), 2)
    assert find_modes(np.random.default_rng(0), Budget(Evaluator(target), 1000), ()) == ()


def test_many_dimensions_climb_by_gradients():
    means = np.zeros((2, 120))
    means[:, 0] = -8, 8
    evaluator = Evaluator(mixture(np.array([0.5, 0.5]), means, np.stack([np.eye(120)] * 2)))
    modes = find_modes(np.random.default_rng(0), Budget(evaluator, 20_000), (), reach=20.0)
    assert np.all(found(modes, means, np.stack([np.eye(120)] * 2)))


def test_slopes_of_a_gaussian_are_explained_by_it_alone():
    q = Gaussian.unchecked(np.array([1.0, 2.0]), np.array([[2.0, 0.0], [1.0, 0.5]]))
    z = np.random.default_rng(0).normal(0, 10, (50, 2))
    scores = -np.linalg.solve(q.chol @ q.chol.T, (z - q.mean).T).T
    assert np.all(is_explained(q, z, scores))
    assert not np.any(is_explained(q, z, 2 * scores))


def test_points_are_scattered_about_all_modes():
    nothing = View(np.zeros((0, 2)), np.zeros(0), np.zeros(0), 0.0, 0.0)
    modes = [Mode(Gaussian.unchecked(np.array([x, 0.0]), np.eye(2)), nothing) for x in (-500.0, 500.0)]
    z = scatter(np.random.default_rng(0), modes, None, 900, 2, 20.0)
    assert z.shape == (900, 2)
    for x in (-500.0, 500.0):
        assert np.sum(np.linalg.norm(z - [x, 0], axis=1) < 30) > 100
    assert np.sum(np.abs(z[:, 0]) < 400) > 50


def test_points_are_scattered_in_the_plane_of_modes_and_zero():
    nothing = View(np.zeros((0, 9)), np.zeros(0), np.zeros(0), 0.0, 0.0)
    means = np.zeros((2, 9))
    means[0, 0], means[1, 1] = 12.0, 12.0
    modes = [Mode(Gaussian.unchecked(mean, np.eye(9)), nothing) for mean in means]
    z = scatter(np.random.default_rng(0), modes, None, 900, 9, 20.0)
    assert z.shape == (900, 9)
    in_plane = np.all(np.abs(z[:, 2:]) < 1e-9, axis=1)
    assert np.sum(in_plane) > 150
    assert np.sum(in_plane & (np.linalg.norm(z - (-means[0]), axis=1) < 6)) > 2


@pytest.mark.parametrize("seed", range(3))
def test_a_narrow_mode_in_the_plane_of_others_is_found(seed):
    """A square of modes about zero, two of them a third as wide: no point all around comes near these in d = 15."""
    plane = np.linalg.qr(np.random.default_rng(0).standard_normal((15, 2)))[0]
    means = 12 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]) @ plane.T
    covariances = np.array([1.0, 1.0, 0.1, 0.1])[:, None, None] * np.eye(15)
    evaluator = Evaluator(mixture(np.full(4, 0.25), means, covariances))
    budget, rng = Budget(evaluator, 8000), np.random.default_rng(seed)
    known = weigh(rng, budget, climb(budget.value_and_score, means[:2]), ())
    assert len(find_modes(rng, budget, known)) == 4


@pytest.mark.parametrize("seed", range(10))
def test_a_draw_that_falls_onto_a_known_mode_is_not_counted(seed):
    """It would outweigh all others, and with them the mode would be taken for one that two or three draws see."""
    means = np.array([[0.0, 0.0], [6.0, 0.0]])
    covariances = np.stack([np.eye(2), 9 * np.eye(2)])
    evaluator = Evaluator(mixture(np.array([0.97, 0.03]), means, covariances))
    budget, rng = Budget(evaluator, 10_000), np.random.default_rng(seed)
    [first] = weigh(rng, budget, climb(budget.value_and_score, means[:1]), ())
    known = Mode(Gaussian.unchecked(means[0], np.eye(2)), first.view._replace(log_mass=np.log(0.97)))
    wide = Gaussian.unchecked(means[1], 3 * np.eye(2))
    summit = climb(budget.value_and_score, means[1:])[0]._replace(point=wide.mean, axes=wide.chol)
    [mode] = weigh(rng, budget, [summit], [known], 200)
    np.testing.assert_allclose(np.exp(mode.log_mass), 0.03, rtol=0.3)


def test_a_search_among_hundreds_of_modes_ends_with_a_hundred():
    lattice = bures.Target(lambda z: 3 * jnp.sum(jnp.cos(2 * z)) - jnp.sum(z**2) / 200, 2)
    evaluator = Evaluator(lattice)
    found = find_modes(np.random.default_rng(0), Budget(evaluator, 10**6), (), enough=10**6)
    assert 100 <= len(found) < 120
    assert evaluator.count < 50_000
