"""Where a fit begins: the mode with the mass, all modes together, scales far from one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.draws import host_generator
from bures.engine import Evaluator
from bures.search import Summit
from bures.start import Start, distinct, find_start, start_budget


def start_of(target: bures.Target, key: jax.Array) -> Start:
    return find_start(host_generator(key), target, start_budget(Evaluator(target)))


def mixture(weights, means, deviations):
    """A mixture of isotropic Gaussians, with its moments."""
    weights, means, deviations = (jnp.asarray(x, float) for x in (weights, means, deviations))
    dim = means.shape[1]

    def log_density(z):
        squares = jnp.sum((z - means) ** 2, axis=1) / deviations**2
        return jax.nn.logsumexp(jnp.log(weights) - squares / 2 - dim * jnp.log(deviations))

    return bures.Target(log_density, dim)


def test_a_minor_mode_at_the_origin_does_not_keep_the_start(key):
    target = mixture([1e-6, 1.0], [[0.0, 0.0], [5.0, -4.0]], [0.3, 0.5])
    q = start_of(target, key).approximation
    np.testing.assert_allclose(q.mean, [5.0, -4.0], atol=0.1)
    np.testing.assert_allclose(np.linalg.norm(q.chol, axis=1), 0.5, rtol=0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_modes_of_equal_mass_are_covered_together(seed):
    target = mixture([0.5, 0.5], [[-2.0, 0.0], [2.0, 0.0]], [0.5, 0.5])
    q = bures.fit(target, key=jax.random.key(seed)).approximation
    np.testing.assert_allclose(q.mean, 0.0, atol=0.5)
    np.testing.assert_allclose(q.standard_deviations[0], np.sqrt(4 + 0.25), rtol=0.2)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_gaussian_of_any_scale_is_found_exactly(scale, key):
    target = bures.models.gaussian(3, condition_number=100.0, scale=scale)
    start = start_of(target, key)
    q = start.approximation
    assert start.variance < 1e-12
    np.testing.assert_allclose(q.mean, target.mean, atol=1e-6 * scale)
    np.testing.assert_allclose(q.covariance, target.covariance, rtol=1e-6, atol=1e-9 * scale**2)


HARD = {
    "funnel": bures.models.funnel,
    "banana": bures.models.banana,
    "flat": lambda: bures.Target(lambda z: -jnp.sum(jnp.abs(z) ** 0.3), 6),
    "many modes": lambda: bures.Target(lambda z: -jnp.sum(z**2) / 200 + 3 * jnp.sum(jnp.cos(3 * z)), 5),
    "no density but in a corner": lambda: bures.Target(lambda z: jnp.sum(jnp.log(z)) - jnp.sum(z), 12),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", HARD)
def test_a_start_leaves_evaluations_for_the_search_after_the_fit(name, seed):
    """Together they are 4,000 at the most, whatever the steps will be."""
    target = HARD[name]()
    evaluator = Evaluator(target)
    start = find_start(host_generator(jax.random.key(seed)), target, start_budget(evaluator))
    assert evaluator.count <= 3500
    assert all(np.isfinite(mode.log_mass) for mode in start.modes)


def test_a_spike_in_the_middle_of_a_wide_mode_is_a_mode_of_its_own():
    ones, wide, narrow = np.ones(2), np.eye(2), 0.01 * np.eye(2)
    slab = Summit(np.zeros(2), 0.0, wide, ones, 0.0, 1)
    again = Summit(np.array([0.1, 0.1]), -0.01, wide, ones, 0.005, 1)
    spike = Summit(np.array([0.3, 0.0]), 5.0, narrow, ones, 0.0, 1)
    kept = distinct([slab, again, spike])
    assert [summit.value for summit in kept] == [0.0, 5.0]


@pytest.mark.parametrize("seed", range(4))
def test_modes_in_several_directions_are_all_seen(seed):
    """Five of them, some half as wide: scouts are followed far enough, and evaluations left to climb and to weigh."""
    angles = 2 * np.pi * np.arange(5) / 5
    means = np.zeros((5, 5))
    means[:, :2] = 20 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    start = start_of(mixture(np.ones(5), means, [1.4, 1.0, 0.7, 1.2, 0.8]), jax.random.key(seed))
    assert len(start.modes) >= 4
