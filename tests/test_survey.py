"""The survey: points all around a known Gaussian, and what they find beside it."""

import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.family.gaussian import Gaussian
from bures.search import Budget, Scouts
from bures.survey import _evenly, hidden_places, spread, surprising_places, survey, unknown_places, without_known


def beside(place, width, weight=0.3):
    """N(0, I) and a mode of another width at a place."""
    place = jnp.asarray(place, float)

    def log_density(z):
        narrow = -jnp.sum((z - place) ** 2) / 2 / width**2 - place.size * jnp.log(width)
        return jnp.logaddexp(jnp.log(1 - weight) - jnp.sum(z**2) / 2, jnp.log(weight) + narrow)

    return bures.Target(log_density, place.size)


def standard(dim):
    return Gaussian.unchecked(np.zeros(dim), np.eye(dim))


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_points_are_all_around_at_all_distances(dim):
    u = spread(np.random.default_rng(0), 2000, dim, 100.0)
    distances = np.linalg.norm(u, axis=1)
    assert u.shape == (2000, dim)
    assert np.max(distances) <= 100 * np.sqrt(dim)
    for low, high in ((4.5, 7), (7, 12), (12, 25), (25, 50)):
        assert np.sum((distances > low) & (distances < high)) > 100
    np.testing.assert_allclose(np.mean(u / distances[:, None], axis=0), 0, atol=0.1)


@pytest.mark.parametrize("dim", [2, 3])
def test_in_few_dimensions_no_direction_is_left_out(dim):
    """Of as many points as there are, random ones leave gaps twice as large."""
    u = spread(np.random.default_rng(1), 1000, dim, 100.0)
    far = u[np.linalg.norm(u, axis=1) > 4.5]
    directions = far / np.linalg.norm(far, axis=1, keepdims=True)
    tried = np.random.default_rng(2).standard_normal((2000, dim))
    tried /= np.linalg.norm(tried, axis=1, keepdims=True)
    gap = np.min(np.arccos(np.clip(tried @ directions.T, -1, 1)), axis=1).max()
    assert gap < (0.011 if dim == 2 else 0.16)


def survey_of(target, seed, **options):
    evaluator = Evaluator(target)
    budget = Budget(evaluator, 10_000)
    q, rng = standard(target.dim), np.random.default_rng(seed)
    nowhere = np.zeros((0, target.dim))
    mass = float(budget.value(np.zeros((1, target.dim)))[0]) + target.dim * np.log(2 * np.pi) / 2
    evaluator.count = 0
    return survey(rng, budget, q, [(q, mass)], reach=100.0, also=nowhere, **options), evaluator.count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("place", [[9.0, 4.0], [-3.0, 30.0]])
def test_a_narrow_mode_is_found(place, seed):
    """Its basin has a radius of its relative width times its distance."""
    (ends, *_), _ = survey_of(beside(place, 0.15), seed, count=800, more=800)
    assert np.any(np.linalg.norm(ends - place, axis=1) < 0.1)


def test_what_is_expected_is_looked_at_once():
    (ends, values, _), count = survey_of(bures.Target(lambda z: -jnp.sum(z**2) / 2, 3), 0, count=500, more=700)
    assert ends.shape == (0, 3) and values.shape == (0,)
    assert count == 1200


def test_a_spike_near_the_middle_of_a_known_gaussian_is_another_place():
    target = beside([0.4, 0.0], 0.01)
    budget = Budget(Evaluator(target), 1000)
    ends = np.array([[0.4, 0.0], [0.1, 0.0]])
    known = [(standard(2), float(budget.value(np.zeros((1, 2)))[0]))]
    places = unknown_places(budget, ends, budget.value(ends), known, standard(2), 8)
    np.testing.assert_array_equal(places, ends[:1])


def test_draws_with_strange_slopes_lead_to_a_spike():
    """None of the draws falls onto it: their weights are as even as can be."""
    place = np.array([2.0, 0.0, 0.0, 0.0, 0.0])
    target = beside(place, 0.1)
    evaluator = Evaluator(target)
    z = np.random.default_rng(0).standard_normal((4000, 5))
    z = np.concatenate([z[np.linalg.norm(z - place, axis=1) > 0.6], place[None] + 0.27])
    values, scores = evaluator.value_and_score(z)
    log_weights = values + np.sum(z**2, axis=1) / 2
    assert np.max(log_weights) - np.median(log_weights) < 0.2
    budget = Budget(evaluator, 200)
    ends, _ = surprising_places(budget, standard(5), z, values, scores, 200)
    assert np.any(np.linalg.norm(ends - place, axis=1) < 0.1)
    assert surprising_places(budget, standard(5), z[:-1], values[:-1], scores[:-1], 200)[0].shape == (0, 5)


def test_what_is_left_beside_known_gaussians_is_the_other_mode():
    target = beside([4.0, -3.0], 0.5)
    z = np.random.default_rng(0).normal([4.0, -3.0], 1.0, (20, 2))
    known = [(standard(2), np.log(0.7) + np.log(2 * np.pi))]
    values, scores = without_known(Evaluator(target).value_and_score, known)(z)
    squares = np.sum((z - [4.0, -3.0]) ** 2, axis=1) / 0.25
    np.testing.assert_allclose(values, np.log(0.3 / 0.25) - squares / 2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(scores, -(z - [4.0, -3.0]) / 0.25, rtol=1e-6, atol=1e-4)


def test_a_mode_shows_in_the_last_digits_before_it_rules_a_place():
    place = np.array([6.0, 0.0, 0.0, 0.0])
    target = beside(place, 0.5)
    evaluator = Evaluator(target)
    mass = np.log(0.7) + 2 * np.log(2 * np.pi)
    u = np.random.default_rng(0).standard_normal((500, 4)) * 1.5
    u = u[np.linalg.norm(u - place, axis=1) > 4]  # none is where the other mode rules
    values, scores = evaluator.value_and_score(u)
    assert np.max(np.abs(scores + u)) < 1e-3

    def left(mass, width=1.0):
        known = [(Gaussian.unchecked(np.zeros(4), width * np.eye(4)), mass)]
        return hidden_places(Budget(evaluator, 200), standard(4), known, Scouts(u, values, scores), 150)[0]

    assert np.any(np.linalg.norm(left(mass) - place, axis=1) < 0.1)
    assert np.any(np.linalg.norm(left(mass + 1) - place, axis=1) < 0.1)  # log p itself tells the mass
    assert left(mass, 1.1).shape == (0, 4)  # where no Gaussian is exact, nothing is told from its errors


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 8, 10])
def test_points_all_around_are_spread_more_evenly_than_chance(dim):
    """Counts in cells of equal size, by signs of coordinates and halves of the logarithm of the radius."""
    rng = np.random.default_rng(0)
    uneven = []
    for _ in range(20):
        share, directions = _evenly(rng, 512, dim)
        np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
        cells = (share > 0.5) + 2 * (directions[:, 0] > 0) + 4 * (directions[:, 1] > 0)
        counts = np.bincount(cells, minlength=8)
        uneven.append(np.sum((counts - 64) ** 2 / 64))
    assert np.mean(uneven) < 3.5  # of independent points 7
