"""Five posteriors of posteriordb as NumPyro, PyMC and Stan models: the same density as the formula in JAX.

Derivatives are compared in units of the posterior's standard deviations, so that every coordinate has its say.
"""

import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bures import posteriordb
from bures.frontends import from_numpyro, from_pymc, from_stan
from tests.posteriordb_models import numpyro_models, pymc_models
from tests.problems import columns, needs_posteriordb, needs_stan, quick_jit

MODELS = Path(__file__).parent / "posteriordb_models"
POSTERIORS = {
    "eight_schools_noncentered": "eight_schools-eight_schools_noncentered",
    "kidscore_momiq": "kidiq-kidscore_momiq",
    "earn_height": "earnings-earn_height",
    "blr": "sblrc-blr",
    "kilpisjarvi": "kilpisjarvi_mod-kilpisjarvi",
}
FRONTENDS = {
    "numpyro": lambda model, data: from_numpyro(getattr(numpyro_models, model), data),
    "pymc": lambda model, data: from_pymc(getattr(pymc_models, model)(data)),
    "stan": lambda model, data: from_stan(MODELS / f"{model}.stan", data),
}
# The stand-in for BridgeStan has its Hessians by finite differences.
HESSIAN_TOLERANCES = {"numpyro": 1e-10, "pymc": 1e-10, "stan": 1e-7}

pytestmark = [
    needs_posteriordb,
    pytest.mark.parametrize("model", POSTERIORS),
    pytest.mark.parametrize(
        "frontend", [pytest.param(name, marks=needs_stan if name == "stan" else ()) for name in FRONTENDS]
    ),
]
load = functools.cache(lambda model: posteriordb.load(POSTERIORS[model]))


def points(model):
    """Some reference draws, and the same three times as far from the mean; and the standard deviations of all."""
    draws = np.asarray(load(model).reference.unconstrained)
    mean, some = draws.mean(axis=0), draws[::2000]
    return np.concatenate([some, mean + 3 * (some - mean)]), draws.std(axis=0)


@functools.cache
def evaluate(model, frontend=None):
    """What a target, by default the formula, has at the points, in the coordinates of the formula."""
    posterior = load(model)
    target = FRONTENDS[frontend](model, posterior.data) if frontend else posterior.target
    order = columns(target, posterior.target)
    assert sorted(order) == list(range(target.dim))
    z, scale = points(model)

    @quick_jit
    def everything(z):
        hessian = jax.vmap(lambda point: target.weighted_hessian(jnp.ones(1), point[None]))(z)
        return *target.value_and_score(z), hessian, jax.vmap(target.constrain)(z)

    value, score, hessian, variables = everything(jnp.zeros_like(z).at[:, order].set(z))
    return SimpleNamespace(
        value=np.asarray(value),
        score=np.asarray(score)[:, order] * scale,
        hessian=np.asarray(hessian)[:, order][:, :, order] * np.outer(scale, scale),
        variables=variables,
    )


def assert_close(found, expected, tolerance):
    """The error at each point is within the tolerance, relative to the norm there."""
    axes = tuple(range(1, expected.ndim))
    error = np.sqrt(np.sum((found - expected) ** 2, axis=axes) / np.sum(expected**2, axis=axes))
    assert error.max() < tolerance, f"relative errors at the points: {error}"


def test_log_densities_agree_up_to_a_constant(model, frontend):
    found, expected = evaluate(model, frontend).value, evaluate(model).value
    error = (found - found.mean()) - (expected - expected.mean())
    assert np.abs(error).max() < 1e-8 * expected.std(), f"errors at the points: {error}"


def test_gradients_agree(model, frontend):
    assert_close(evaluate(model, frontend).score, evaluate(model).score, 1e-8)


def test_hessians_agree(model, frontend):
    assert_close(evaluate(model, frontend).hessian, evaluate(model).hessian, HESSIAN_TOLERANCES[frontend])


def test_constrained_variables_agree(model, frontend):
    found = evaluate(model, frontend).variables
    for name, expected in evaluate(model).variables.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
