"""The walk outwards from the edge of an approximation, against masses that exact draws tell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.diagnostics import Verdict
from bures.diagnostics.edge import beyond, walk_out
from bures.diagnostics.weighted import WeightedDraws, log_evidence
from bures.engine import Evaluator
from bures.family import Gaussian
from bures.search import Budget

DRAWS = 4000


def arm(dim: int, skew: float = 1.0, bend: float = 0.8):
    """A banana whose first coordinate has a long tail to one side: its log density, and exact draws."""

    def log_density(z):
        e = jnp.sinh(jnp.arcsinh(z[0]) - skew)
        slope = jnp.log(jnp.cosh(jnp.arcsinh(z[0]) - skew)) - jnp.log1p(z[0] ** 2) / 2
        rest = z[1:].at[0].add(-bend * (z[0] ** 2 - 1))
        return slope - (e**2 + rest @ rest) / 2 - dim * jnp.log(2 * jnp.pi) / 2

    def draw(n: int) -> np.ndarray:
        z = np.random.default_rng(7).standard_normal((n, dim))
        z[:, 0] = np.sinh(np.arcsinh(z[:, 0]) + skew)
        z[:, 1] += bend * (z[:, 0] ** 2 - 1)
        return z

    return log_density, draw


def unseen_mass(target: bures.Target, q: Gaussian, exact: np.ndarray) -> float:
    """The share of exact draws where fewer than a twentieth of so many draws of q would fall, by these draws alone."""
    excess = Evaluator(target).value(exact) - q.log_density(exact)
    excess = np.sort(excess)[::-1]
    expected = DRAWS * np.cumsum(np.exp(-excess)) / excess.size
    return float(np.searchsorted(expected, 0.05) / excess.size)


def walked(target: bures.Target, q: Gaussian, seed: int) -> float:
    evaluator, rng = Evaluator(target), np.random.default_rng(seed)
    z = q.push(rng.standard_normal((DRAWS, q.dim)))
    draws = WeightedDraws.at(z, evaluator.value(z), q)
    budget = Budget(evaluator, 4000)
    with np.errstate(all="ignore"):
        view = walk_out(rng, q, q, budget, draws)
    assert evaluator.count <= DRAWS + 4000
    return 0.0 if view is None else beyond(q, log_evidence(draws.log_weights)[0], DRAWS, view)


@pytest.mark.parametrize("dim", [2, 5])
def test_the_mass_of_an_arm_that_no_draw_falls_into_is_measured(dim):
    log_density, draw = arm(dim)
    target = bures.Target(log_density, dim)
    q = bures.fit(target, key=jax.random.key(0)).approximation
    q = Gaussian.unchecked(np.asarray(q.mean), np.asarray(q.chol))
    true = unseen_mass(target, q, draw(200_000))
    assert true > 0.03
    found = [walked(target, q, seed) for seed in range(6)]
    assert np.median(found) == pytest.approx(true, rel=0.3)
    assert all(share < 2 * true for share in found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_a_fit_that_misses_an_arm_is_not_called_usable(dim, seed):
    found = bures.fit(bures.Target(arm(dim)[0], dim), key=jax.random.key(seed)).diagnostics
    assert not found.trustworthy
    assert found.verdict in (Verdict.MASS_OUTSIDE, Verdict.UNTRUSTED)


@pytest.mark.parametrize("seed", range(4))
def test_where_weights_see_all_of_it_nothing_is_beyond(seed):
    """A Gaussian too narrow by a tenth, and one too wide by half, of which draws see every part."""
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, 4)
    assert walked(target, Gaussian.unchecked(np.zeros(4), 0.9 * np.eye(4)), seed) < 0.005
    assert walked(target, Gaussian.unchecked(np.zeros(4), 1.5 * np.eye(4)), seed) == 0


@pytest.mark.parametrize("name", ["eggbox", "banana", "student_t"])
def test_what_lies_beyond_the_toys_is_measured(name):
    """About nothing, 6% and half a percent."""
    target = getattr(bures.models, name)()
    q = bures.fit(target, key=jax.random.key(1)).approximation
    q = Gaussian.unchecked(np.asarray(q.mean), np.asarray(q.chol))
    true = unseen_mass(target, q, np.asarray(target.sample(jax.random.key(2), 100_000)))
    assert np.median([walked(target, q, seed) for seed in range(5)]) == pytest.approx(true, rel=0.3, abs=0.001)


def test_a_loaded_fit_knows_what_lies_beyond(tmp_path):
    target = bures.Target(arm(3)[0], 3)
    fit = bures.fit(target, key=jax.random.key(0))
    assert fit.judgement.edge is not None
    fit.save(tmp_path / "a.fit")
    loaded = bures.load(tmp_path / "a.fit", target=target)
    assert loaded.diagnostics.coverage.outside == fit.diagnostics.coverage.outside > 0
    assert loaded.evaluations == fit.evaluations
