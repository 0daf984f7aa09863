"""The search for modes: Newton, scouts and quasi-Newton on hills whose tops are known."""

import jax.numpy as jnp
import numpy as np
import pytest
from problems import correlated_target

import bures
from bures.engine import Evaluator
from bures.search import ascend, climb, scout


def hill(target):
    return Evaluator(target).value_and_score


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dim", [1, 2, 30])
def test_newton_finds_a_gaussian_of_any_scale(dim, scale):
    target = bures.models.gaussian(dim, condition_number=1e6 if dim > 1 else 1.0, scale=scale)
    (summit,) = climb(hill(target), np.full((1, dim), 0.7))
    assert summit.is_mode
    assert np.linalg.norm(np.linalg.solve(summit.axes, summit.point)) < 0.02  # standard deviations from the top
    ratio = np.linalg.eigvals(np.linalg.solve(target.covariance, summit.axes @ summit.axes.T))
    np.testing.assert_allclose(ratio, 1, rtol=1e-4)


def test_newton_climbs_many_points_at_once():
    target = bures.models.eggbox()
    points = np.array([[3.2, 2.5], [5.1, 5.2], [7.3, 1.8], [8.5, 6.4]])
    summits = climb(hill(target), points)
    np.testing.assert_allclose([s.point for s in summits], [[3, 3], [5, 5], [7, 2], [9, 6]], atol=0.02)
    assert all(s.is_mode for s in summits)


def test_points_without_a_density_are_left_out():
    target = bures.Target(lambda z: jnp.where(z[0] > 0, jnp.log(z[0]) - z[0], -jnp.inf), 1)
    summits = climb(hill(target), np.array([[-1.0], [0.5]]))
    assert len(summits) == 1
    np.testing.assert_allclose(summits[0].point, 1, atol=0.02)


def test_a_saddle_and_a_slope_are_no_modes():
    saddle = bures.Target(lambda z: z[0] ** 2 - z[1] ** 2, 2)
    assert not climb(hill(saddle), np.zeros((1, 2)))[0].is_mode
    slope = bures.Target(lambda z: jnp.sum(z), 2)
    assert not climb(hill(slope), np.zeros((1, 2)))[0].is_mode


def test_scouts_of_a_gaussian_arrive_with_the_first_step():
    target = correlated_target()
    q = bures.Gaussian.from_moments(target.mean, target.covariance)
    evaluator = Evaluator(target)
    starts = 30 * np.random.default_rng(0).standard_normal((50, 3))
    ends, _ = scout(evaluator.value_and_score, np.asarray(q.mean), np.asarray(q.chol), starts, rounds=8)
    np.testing.assert_allclose(ends, 0, atol=1e-6)
    assert evaluator.count <= 50 * 3


def test_scouts_find_the_other_mode():
    means = jnp.array([[0.0, 0.0], [30.0, 0.0]])
    target = bures.Target(lambda z: jnp.logaddexp(*(-jnp.sum((z - means) ** 2, axis=1) / 2)), 2)
    starts = np.array([[40.0, 3.0], [-20.0, 1.0]])
    ends, _ = scout(hill(target), np.zeros(2), np.eye(2), starts, rounds=8)
    np.testing.assert_allclose(ends, means[::-1], atol=0.1)


@pytest.mark.parametrize("dim", [5, 300])
def test_quasi_newton_reaches_the_top_and_knows_the_curvature(dim):
    deviations = np.logspace(-1, 1, dim)
    target = bures.Target(lambda z: -jnp.sum(((z - 2) / deviations) ** 2) / 2, dim)
    end = ascend(hill(target), np.zeros(dim), evaluations=1000)
    assert end is not None
    assert end.value > -0.5
    top = ascend(hill(target), np.full(dim, 2.0), evaluations=1000)
    assert top is not None and top.value == 0


def test_quasi_newton_keeps_to_its_evaluations():
    evaluator = Evaluator(bures.models.funnel(20))
    ascend(evaluator.value_and_score, np.ones(20), evaluations=60)
    assert evaluator.count <= 60 + 6


def test_no_density_no_ascent():
    assert ascend(hill(bures.Target(lambda z: jnp.nan * z[0], 1)), np.zeros(1), evaluations=10) is None
