"""The climb of the mean-field bound with fixed draws: where it ends, and that it says when it has not arrived."""

import jax.numpy as jnp
import numpy as np

import bures
from bures.engine import Evaluator
from bures.smoothed import climb_smoothed
from bures.start import start_budget
from bures.start_in_factors import find_start_in_factors

DIM = 80


def climbed(target, point=None, seed=0):
    evaluator = Evaluator(target, 100)
    begin = np.zeros(target.dim) if point is None else point
    return climb_smoothed(np.random.default_rng(seed), evaluator, begin), evaluator


def test_it_ends_at_the_bound_of_a_diagonal_gaussian():
    """Antithetic draws know the mean exactly; 12 pairs know a scale to about one part in seven."""
    rng = np.random.default_rng(1)
    mean, scale = rng.standard_normal(DIM), 10 ** rng.uniform(-0.3, 0.3, DIM)
    found, _ = climbed(bures.Target(lambda z: -jnp.sum(((z - mean) / scale) ** 2) / 2, DIM))
    assert found.arrived
    off = (np.asarray(found.approximation.mean) - mean) / scale
    assert np.max(np.abs(off)) < 0.5
    ratio = np.log(np.asarray(found.approximation.scale) / scale)
    assert abs(np.mean(ratio)) < 0.1 and np.std(ratio) < 0.35


def test_it_stays_out_of_a_neck():
    """log p of groups is unbounded where their spread vanishes; their posterior is near log 0.7."""
    groups = 60
    y = np.random.default_rng(2).standard_normal((groups, 4)) + 0.7 * np.random.default_rng(3).standard_normal((60, 1))

    def log_density(z):
        effects, spread = z[2:], jnp.exp(z[1])
        prior = -jnp.sum((effects - z[0]) ** 2) / (2 * spread**2) - groups * z[1] - z[0] ** 2 / 2
        return prior - jnp.sum((y - effects[:, None]) ** 2) / 2

    found, evaluator = climbed(bures.Target(log_density, groups + 2))
    assert found.arrived and evaluator.count <= 50 * 24 + 6 * 24
    assert -1.2 < found.approximation.mean[1] < 0.5, found.approximation.mean[1]


def test_a_climb_that_is_still_rising_says_so_and_the_start_is_a_race():
    rng = np.random.default_rng(4)
    scale = 10 ** rng.uniform(-2, 2, DIM)
    mean = 30 * scale * rng.uniform(-1, 1, DIM)
    target = bures.Target(lambda z: -jnp.sum(((z - mean) / scale) ** 2) / 2, DIM)
    found, _ = climbed(target)
    assert not found.arrived
    start = find_start_in_factors(np.random.default_rng(0), target, start_budget(Evaluator(target, 100)), None, True)
    off = (np.asarray(start.approximation.mean) - mean) / scale
    assert np.sqrt(np.mean(off**2)) < 1.0


def test_a_bound_that_is_finite_at_no_scale_is_none():
    found, _ = climbed(bures.Target(lambda z: jnp.where(jnp.all(z == 0), 0.0, -jnp.inf) + 0 * jnp.sum(z), 60))
    assert found is None


def test_a_smaller_scale_is_tried_where_the_first_has_no_density():
    box = bures.Target(lambda z: jnp.where(jnp.all(jnp.abs(z) < 0.2), -jnp.sum(z**2) * 500, -jnp.inf), 60)
    found, _ = climbed(box)
    assert found is not None and np.all(np.asarray(found.approximation.scale) < 0.2)
