"""Climbs in coordinates of the curvature: off the saddles of hierarchical models, and nowhere if they do not help."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.family.gaussian import Gaussian
from bures.search import Budget
from bures.smoothed import climb_around, climb_smoothed
from bures.start import start_budget
from bures.start_in_rounds import climb_in_rounds, find_best, start_from, with_all_curvature

GROUPS = 60
EFFECTS = 100 + 10 * np.random.default_rng(1).standard_normal((GROUPS, 1))
Y = EFFECTS + np.random.default_rng(2).standard_normal((GROUPS, 3))


def hierarchy(z):
    """Groups about a mean far from the origin: where the spread is small none can move alone."""
    mean, log_spread, log_noise, effects = z[0], z[1], z[2], z[3:]
    prior = -jnp.sum((effects - mean) ** 2) * jnp.exp(-2 * log_spread) / 2 - GROUPS * log_spread - mean**2 / 1e6
    likelihood = -jnp.sum((Y - effects[:, None]) ** 2) * jnp.exp(-2 * log_noise) / 2 - Y.size * log_noise
    return prior + likelihood - (log_spread**2 + log_noise**2) / 200


def correlated(dim):
    rng = np.random.default_rng(3)
    root = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * 10 ** rng.uniform(-1, 1, dim)
    mean, precision = root @ rng.standard_normal(dim), np.linalg.inv(root @ root.T)
    return bures.Target(lambda z: -(z - mean) @ precision @ (z - mean) / 2, dim), mean, root


def bound(evaluator, q):
    noise = np.random.default_rng(0).standard_normal((400, q.dim))
    return float(np.mean(evaluator.value(q.push(noise)) - q.log_prob_of_noise(noise)))


def test_a_saddle_is_left_before_the_first_step():
    target = bures.Target(hierarchy, GROUPS + 3)
    evaluator = Evaluator(target, 100)
    climbed = climb_smoothed(np.random.default_rng(0), evaluator, np.zeros(target.dim))
    assert climbed is not None and climbed.arrived
    begin = Gaussian.unchecked(np.asarray(climbed.approximation.mean), np.diag(climbed.approximation.scale))
    ended = climb_in_rounds(np.random.default_rng(0), start_budget(evaluator), begin).approximation
    fit = bures.fit(target, key=jax.random.key(0))
    assert bound(evaluator, begin) < fit.diagnostics.elbo - 50
    assert bound(evaluator, ended) > fit.diagnostics.elbo - 20
    assert fit.num_steps < 20


def test_where_the_curvature_says_all_nothing_else_is_taken():
    target, mean, root = correlated(60)
    evaluator = Evaluator(target, 100)
    begin = Gaussian.unchecked(mean, np.eye(60))
    curved = climb_in_rounds(np.random.default_rng(0), start_budget(evaluator), begin)
    np.testing.assert_allclose(curved.approximation.covariance, root @ root.T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(curved.approximation.mean, mean)  # the first draws' own best place would be another
    assert start_from(np.random.default_rng(0), start_budget(evaluator), curved).left_out > 1


def test_convex_directions_are_as_wide_as_they_bend():
    target = bures.Target(lambda z: -jnp.sum(z[1:] ** 2) / 2 + z[0] ** 2 / 8 - z[0] ** 4 / 64, 60)
    begin = Gaussian.unchecked(np.zeros(60), np.diag(np.r_[0.1, np.ones(59)]))
    q = with_all_curvature(np.random.default_rng(0), start_budget(Evaluator(target, 100)), begin).approximation
    assert 1.0 < q.chol[0, 0] < 2.1


def test_curvature_that_is_not_finite_changes_nothing():
    target = bures.Target(lambda z: jnp.where(jnp.all(jnp.abs(z) < 0.5), -jnp.sum(z**2), -jnp.inf), 60)
    begin = Gaussian.unchecked(np.full(60, np.nan), np.eye(60))
    curved = climb_in_rounds(np.random.default_rng(0), start_budget(Evaluator(target, 100)), begin)
    assert curved.approximation is begin
    assert climb_around(np.random.default_rng(0), start_budget(Evaluator(target, 100)), begin) is None


def test_the_first_is_left_only_for_what_is_hardly_worse():
    noise = np.random.default_rng(0).standard_normal(25)
    assert find_best(np.array([noise, noise - 1, noise + 3])) == 2
    assert find_best(np.array([noise, noise + 0.1 + 5 * noise[::-1] * noise.std()])) == 0
    assert find_best(np.array([noise, np.full(25, np.nan)])) == 0


def centred(groups):
    """Few rows in each of many groups, whose spread is hardly known: a climb of the mean-field bound may not arrive."""
    rng = np.random.default_rng(7)
    effects = 1.4 + 0.35 * rng.standard_normal(groups)
    sizes = 1 + rng.poisson(6, groups)
    means = effects + 0.75 * rng.standard_normal(groups) / np.sqrt(sizes)

    def log_density(z):
        mean, log_spread, log_noise, alpha = z[0], z[1], z[2], z[3:]
        prior = -jnp.sum((alpha - mean) ** 2) * jnp.exp(-2 * log_spread) / 2 - groups * log_spread - mean**2 / 200
        rows = jnp.sum(sizes * (means - alpha) ** 2) + 0.5 * np.sum(sizes)
        likelihood = -rows * jnp.exp(-2 * log_noise) / 2 - np.sum(sizes) * log_noise
        return prior + likelihood - (log_spread**2 + log_noise**2) / 2

    return bures.Target(log_density, groups + 3)


@pytest.mark.parametrize("target", [bures.Target(hierarchy, GROUPS + 3), centred(80), centred(250), centred(380)])
def test_a_start_and_the_search_after_the_fit_cost_no_more_than_the_steps_or_4000(target):
    for seed in range(2):
        spent = bures.fit(target, key=jax.random.key(seed)).evaluations
        assert spent.start + spent.search <= max(4000, spent.steps), spent
        assert spent.start <= 4000, spent  # whatever the steps take


def test_climbs_end_where_there_are_no_evaluations_left():
    target = bures.Target(hierarchy, GROUPS + 3)
    begin = Gaussian.unchecked(np.zeros(target.dim), np.eye(target.dim))
    for limit in (0, 100, 300, 1000, 2000):
        evaluator = Evaluator(target, 100)
        curved = climb_in_rounds(np.random.default_rng(0), Budget(evaluator, limit), begin)
        assert evaluator.count <= limit
        assert np.all(np.isfinite(curved.approximation.mean)) and np.all(np.isfinite(curved.approximation.chol))
