"""The start in many dimensions: not the neck of a funnel, directions by Lanczos, within its evaluations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.family.families import MeanField
from bures.start import Start, start_budget
from bures.start_in_factors import _best, _Place, _race, find_start_in_factors

GROUPS = 120
Y = np.random.default_rng(1).standard_normal((GROUPS, 4)) + 0.7 * np.random.default_rng(2).standard_normal((GROUPS, 1))


def groups(z):
    """Centred groups of unknown spread: log p is unbounded where the spread goes to zero."""
    mean, log_spread, effects = z[0], z[1], z[2:]
    likelihood = -jnp.sum((Y - effects[:, None]) ** 2) / 2
    return (
        likelihood - jnp.sum((effects - mean) ** 2) / (2 * jnp.exp(2 * log_spread)) - GROUPS * log_spread - mean**2 / 2
    )


def low_rank_gaussian(dim, rank=4):
    rng = np.random.default_rng(3)
    scale = 10 ** rng.uniform(-2, 2, dim)
    columns = rng.standard_normal((dim, rank))
    basis, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    precision = 1 / (1 + sizes**2) - 1
    mean = 30 * scale * rng.uniform(-1, 1, dim)

    def log_density(z):
        x = (z - mean) / scale
        return -(x @ x + precision @ (basis.T @ x) ** 2) / 2

    return bures.Target(log_density, dim), mean, scale, basis


def start_of(target, seed=0, searched=None, dense=False):
    evaluator = Evaluator(target, 100)
    return find_start_in_factors(
        np.random.default_rng(seed), target, start_budget(evaluator), searched, dense
    ), evaluator


def chain(dim):
    """A random walk seen with noise: no few directions hold its correlations."""
    return bures.Target(lambda z: -jnp.sum(z**2) / 2 - 20 * jnp.sum((z[1:] - z[:-1]) ** 2), dim)


def test_a_narrow_peak_without_mass_is_left_alone():
    start, evaluator = start_of(bures.Target(groups, GROUPS + 2))
    log_spread = start.approximation.mean[1]
    assert -1 < log_spread < 0.5, log_spread  # the peak is at minus infinity, the posterior near log 0.7
    assert evaluator.count <= 4200


def test_directions_of_a_gaussian_are_found():
    target, mean, scale, basis = low_rank_gaussian(300)
    start, evaluator = start_of(target)
    q = start.approximation
    assert evaluator.count <= 4200
    assert np.max(np.abs(q.mean - mean) / scale) < 100
    wide = q.basis[:, np.argsort(-q.variances)[:4]] * q.scale[:, None]  # in the coordinates of the target
    wide = np.linalg.qr(wide / scale[:, None])[0]
    np.testing.assert_allclose(np.linalg.svd(wide.T @ basis, compute_uv=False), 1, atol=0.02)


def test_the_same_key_gives_the_same_start():
    target, *_ = low_rank_gaussian(120)
    one, other = (start_of(target)[0].approximation for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.parts().values(), other.parts().values(), strict=True))


def test_what_the_search_found_is_kept_if_it_is_ahead():
    target, *_ = low_rank_gaussian(60)
    exact = bures.laplace(target)
    even = Start(exact, variance=0.1)
    assert start_of(target, searched=even)[0] is even
    uneven = Start(MeanField().of(exact), variance=1e3)
    found, _ = start_of(target, searched=uneven)
    assert np.max(np.abs(found.approximation.mean - exact.mean) / exact.standard_deviations) < 3


def test_an_improper_density_is_refused_by_name():
    target = bures.Target(lambda z: -jnp.sum(z[1:] ** 2) / 2, 300, names=[f"x{i}" for i in range(300)])
    with pytest.raises(ValueError, match=r"cannot be normalised.*x0"):
        bures.fit(target, key=jax.random.key(0), family=bures.LowRank())


def test_a_fit_in_many_dimensions_is_exact_on_a_low_rank_gaussian():
    target, mean, scale, _ = low_rank_gaussian(1000)
    fit = bures.fit(target, key=jax.random.key(0))
    assert fit.outcome is bures.Outcome.CONVERGED
    assert isinstance(fit.approximation, bures.LowRankGaussian)
    np.testing.assert_allclose(fit.approximation.mean, mean, atol=0.05 * np.max(scale))
    assert fit.diagnostics.ness > 0.99
    assert 4 <= fit.approximation.rank <= 16


def test_all_of_the_curvature_says_what_low_rank_leaves_out():
    start, evaluator = start_of(bures.Target(groups, GROUPS + 2), dense=True)
    assert start.left_out < 0.01 and isinstance(start.approximation, bures.Gaussian)
    assert evaluator.count <= 4900
    assert start_of(chain(150), dense=True)[0].left_out > 1


def test_a_start_far_from_the_target_does_not_say():
    """Two ridges that cross: curvature at one point is not what it is elsewhere."""
    target = bures.Target(lambda z: -jnp.sum(z**2) / 200 - 5 * jnp.sum((z[::2] * z[1::2]) ** 2), 120)
    assert start_of(target, dense=True)[0].left_out == np.inf


def test_a_point_of_symmetry_is_left():
    """Weights w and v of products: at zero all slopes vanish, and the target is elsewhere."""

    def log_density(z):
        w, v = z[:40], z[40:]
        return -(z @ z) / 2 - 50 * (20 - w @ v) ** 2 / 400

    fit = bures.fit(bures.Target(log_density, 80), key=jax.random.key(0), family=bures.MeanField())
    w, v = np.split(np.asarray(fit.approximation.mean), 2)
    assert w @ v > 5, w @ v


def test_columns_are_taken_if_they_cannot_be_much_worse():
    target, mean, scale, basis = low_rank_gaussian(60)
    evaluator, rng = Evaluator(target, 100), np.random.default_rng(0)
    none = bures.LowRankGaussian(mean, 0.5 * scale)
    right = none.replaced(basis=basis, variances=np.full(4, 4.0))
    wrong = none.replaced(basis=np.linalg.qr(rng.standard_normal((60, 4)))[0], variances=np.full(4, 100.0))
    assert _best(rng, evaluator, [none, wrong]) is none
    assert _best(rng, evaluator, [none, wrong, right]) is right


def test_a_promise_is_the_bound_if_it_goes_on():
    place = _Place(None, (0.0, 1.0, 2.0, 3.0, 4.0))
    assert place.promise(0) == 3.5
    assert place.promise(3) == 3.5 + 3.0
    assert _Place(None, (0.0, 1.0, 2.0, 3.0, np.nan)).promise(0) == -np.inf


def test_the_race_is_not_won_by_what_only_rises(monkeypatch):
    """Far below, a bound rises fastest; it has to show how far."""

    def follow(rng, evaluator, place, count, method=None):
        level, rate = place.state
        steps = len(place.bounds) + np.arange(1, count + 1)
        return _Place(place.state, (*place.bounds, *(level + 40 * (1 - np.exp(-rate * steps)))))

    monkeypatch.setattr("bures.start_in_factors._follow", follow)
    places = [_Place(state) for state in ((-100.0, 0.1), (-30.0, 3.0), (-39.0, 0.1))]
    budget = start_budget(Evaluator(bures.Target(groups, GROUPS + 2), 100))
    assert _race(None, budget, places)[0] == 1  # ends at 10, the first at −60
    assert _race(None, budget, [places[0], places[2]])[0] == 1
