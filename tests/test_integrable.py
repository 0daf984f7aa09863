"""Densities that cannot be normalised are told from those that are merely wide, heavy-tailed or without a mode."""

import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.draws import host_generator
from bures.engine import Evaluator
from bures.integrable import _principal, refuse_improper
from bures.search import climb
from bures.start import find_start, start_budget

X = np.column_stack([np.ones(20), np.linspace(-2, 2, 20)])


def separated(z):
    logit = X @ z
    return jnp.sum(jnp.where(X[:, 1] > 0, logit, 0) - jnp.logaddexp(0.0, logit))


def centred_schools(z):
    """Its density is unbounded where all effects agree, and yet it is proper."""
    effects, mean, log_scale = z[:3], z[3], z[4]
    prior = jnp.sum(-(((effects - mean) / jnp.exp(log_scale)) ** 2) / 2 - log_scale) - mean**2 / 50
    return (
        prior + log_scale - jnp.exp(2 * log_scale) / 50 - jnp.sum((effects - jnp.array([28.0, 8.0, -3.0])) ** 2) / 200
    )


IMPROPER = {
    "a variable that is not used": (lambda z: -(z[0] ** 2), 2, r"z\[1\]"),
    "a sum": (lambda z: -(((z[0] + z[1] - 1) / 0.3) ** 2) - z[2] ** 2, 3, r"z\[0\].*z\[1\]"),
    "a sum with odd weights": (lambda z: -(((z[0] + 2.3 * z[1] - 0.7 * z[2]) / 0.01) ** 2) - z[2] ** 2, 3, r"z\[0\]"),
    "separated data": (separated, 2, r"z\[1\]"),
}
PROPER = {
    "wide": lambda z: -((z[0] / 1e6) ** 2) / 2 - ((z[1] - 1) / 1e-3) ** 2 / 2,
    "Cauchy": lambda z: -jnp.sum(jnp.log1p(z**2)),
    "no mode": centred_schools,
    "so far down that rounding hides the fall": lambda z: -1e20 * jnp.tanh(jnp.abs(z[0]) / 50) - jnp.sum(jnp.abs(z)),
}


def start_of(target, key):
    return find_start(host_generator(key), target, start_budget(Evaluator(target)))


@pytest.mark.parametrize("case", IMPROPER)
def test_improper_densities_are_refused_by_name(case, key):
    log_density, dim, names = IMPROPER[case]
    target = bures.Target(log_density, dim)
    with pytest.raises(ValueError, match=rf"cannot be normalised.*{names}.*proper prior"):
        start_of(target, key)


@pytest.mark.parametrize("case", PROPER)
def test_proper_densities_pass(case, key):
    target = bures.Target(PROPER[case], 5 if case == "no mode" else 2)
    start_of(target, key)


@pytest.mark.parametrize("case", PROPER)
def test_proper_densities_pass_where_no_mode_was_found(case, key):
    target = bures.Target(PROPER[case], 5 if case == "no mode" else 2)
    evaluator = Evaluator(target)
    summits = climb(evaluator.value_and_score, np.zeros((1, target.dim)), rounds=3)
    refuse_improper(host_generator(key), target, evaluator, None, summits, np.zeros(target.dim))


@pytest.mark.parametrize("deviation", [1e10, 1e30, 1e60])
def test_a_gaussian_is_proper_however_wide(deviation, key):
    target = bures.Target(lambda z: -jnp.sum((z / deviation) ** 2) / 2, 2)
    q = start_of(target, key).approximation
    np.testing.assert_allclose(np.linalg.norm(q.chol, axis=1), deviation, rtol=1e-3)


def test_axes_along_the_coordinates_are_their_own():
    axes = np.diag([0.5, 3.0, 1.0])
    vectors, deviations = _principal(axes)
    np.testing.assert_allclose(deviations, np.linalg.svd(axes)[1])
    np.testing.assert_allclose((vectors * deviations) @ vectors.T, axes)
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0] @ axes
    np.testing.assert_allclose(_principal(turned)[1], deviations)
