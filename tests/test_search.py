"""The search for modes: Newton, scouts and quasi-Newton on hills whose tops are known."""

import jax.numpy as jnp
import numpy as np
import pytest
from problems import correlated_target

import bures
from bures.engine import Evaluator
from bures.search import Ascent, Budget, ascend, climb, scout, send_out, whitened


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


@pytest.mark.parametrize("both_sides", [False, True])
def test_one_side_is_enough_for_a_gaussian_and_costs_less(both_sides):
    target = bures.models.gaussian(20, condition_number=100.0)
    evaluator = Evaluator(target)
    (summit,) = climb(evaluator.value_and_score, np.full((1, 20), 0.7), both_sides=both_sides)
    np.testing.assert_allclose(summit.axes @ summit.axes.T, target.covariance, rtol=1e-6, atol=1e-9)
    assert evaluator.count <= (120 if both_sides else 80)


def test_scouts_of_a_gaussian_come_home():
    target = correlated_target()
    q = bures.Gaussian.from_moments(target.mean, target.covariance)
    evaluator = Evaluator(target)
    look = whitened(evaluator.value_and_score, np.asarray(q.mean), np.asarray(q.chol))
    starts = 30 * np.random.default_rng(0).standard_normal((50, 3))
    home = scout(look, send_out(look, starts), rounds=8)[2]
    assert np.all(home)
    assert evaluator.count == 50 * 2  # each was looked at, and once more close by


def test_scouts_find_the_other_mode():
    means = jnp.array([[0.0, 0.0], [30.0, 0.0]])
    target = bures.Target(lambda z: jnp.logaddexp(*(-jnp.sum((z - means) ** 2, axis=1) / 2)), 2)
    scouts = send_out(hill(target), np.array([[40.0, 3.0], [-20.0, 1.0]]))
    ends, values, home = scout(hill(target), scouts, rounds=8)
    np.testing.assert_allclose(ends[0], means[1], atol=0.1)
    assert values[0] == pytest.approx(0, abs=0.01)
    assert home.tolist() == [False, True]


def two_widths(z):
    """N(0, I) and, ten standard deviations away, a mode a hundred times narrower."""
    narrow = -jnp.sum((z - jnp.array([10.0, 0.0])) ** 2) / 2 / 0.01**2 - 2 * jnp.log(0.01)
    return jnp.logaddexp(-jnp.sum(z**2) / 2, narrow)


def test_scouts_do_not_jump_out_of_a_narrow_mode():
    look = hill(bures.Target(two_widths, 2))
    ends, _, home = scout(look, send_out(look, np.array([[10.0, 0.09], [10.05, 0.0]])), rounds=4)
    np.testing.assert_allclose(ends, [[10, 0], [10, 0]], atol=1e-3)
    assert not np.any(home)


def test_the_log_weight_leads_to_what_the_known_gaussian_outweighs():
    """At the edge of a narrow mode's basin, from where a step uphill of log p leads to the known Gaussian."""
    place = jnp.array([10.0, 0.0])
    narrow = lambda z: -jnp.sum((z - place) ** 2) / 2 / 0.3**2 - 2 * jnp.log(0.3)  # noqa: E731
    look = hill(bures.Target(lambda z: jnp.logaddexp(-jnp.sum(z**2) / 2, narrow(z)), 2))
    scouts = send_out(look, np.array([[11.0, 3.3]]))
    assert scout(look, scouts, rounds=8)[2].tolist() == [True]
    ends, values, _ = scout(look, scouts, rounds=12, on_weight=True)
    np.testing.assert_allclose(ends, [[10 / (1 - 0.3**2), 0]], atol=0.01)  # of the weight, the top is beyond the mode
    assert values == pytest.approx(look(ends)[0])


def test_a_budget_is_kept_by_whoever_evaluates():
    evaluator = Evaluator(bures.models.gaussian(2))
    budget = Budget(evaluator, 10)
    assert budget.keeping(4).left == 6
    values, scores = budget.value_and_score(np.ones((7, 2)))
    assert np.all(np.isfinite(values)) and budget.left == 3
    values, scores = budget.value_and_score(np.ones((7, 2)))
    assert np.isfinite(values).tolist() == 3 * [True] + 4 * [False]
    assert np.isfinite(scores[:, 0]).tolist() == 3 * [True] + 4 * [False]
    assert budget.left == 0 and evaluator.count == 10
    assert np.all(budget.value(np.ones((2, 2))) == -np.inf)
    assert climb(budget.value_and_score, np.ones((2, 2))) == []


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


def test_the_compact_quasi_newton_product_is_that_of_two_loops():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((12, 12))
    steps = rng.standard_normal((5, 12))
    changes = steps @ (root @ root.T + np.eye(12))
    at = Ascent(np.zeros(12), 0.0, np.ones(12), steps, changes)

    def by_loops(right):
        inner, kept = np.sum(steps * changes, axis=1), []
        for i in reversed(range(5)):
            kept.append(steps[i] @ right / inner[i])
            right = right - kept[-1] * changes[i]
        right = right * inner[-1] / (changes[-1] @ changes[-1])
        for i in range(5):
            right = right + (kept.pop() - changes[i] @ right / inner[i]) * steps[i]
        return right

    rows = rng.standard_normal((3, 12))
    np.testing.assert_allclose(at.covariance_times(rows[0]), by_loops(rows[0]), rtol=1e-10)
    np.testing.assert_allclose(at.covariance_times(rows), [by_loops(row) for row in rows], rtol=1e-10)
