"""PyMC models: minibatches, Ops that JAX does not know, and what a target costs to make."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile import maker
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.graph import Apply, Op
from scipy import stats

import bures
from bures.frontends import from_pymc

Y = np.arange(10.0)

# Minibatches


def minibatch_of_data():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), observed=pm.Minibatch(Y, batch_size=3), total_size=10)
    return model


def minibatch_of_predictors():
    with pm.Model() as model:
        rows, y = pm.Minibatch(Y, Y, batch_size=3)
        pm.Normal("y", pm.Normal("x") * rows, observed=y, total_size=10)
    return model


def total(size, *, shared=False):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), observed=pm.Data("data", Y) if shared else Y, total_size=size)
    return model


def regression(X, y, batch_size):
    with pm.Model() as model:
        rows, part = pm.Minibatch(X, y, batch_size=batch_size) if batch_size else (X, y)
        slope, scale = pm.Normal("slope", shape=X.shape[1]), pm.HalfNormal("scale")
        size = {"total_size": len(y)} if batch_size else {}
        pm.Normal("y", pt.dot(rows, slope), scale, observed=part, **size)
    return model


def without_minibatch(predictors):
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", x * Y if predictors else x, observed=Y)
    return model


X = np.stack([np.ones(10), np.cos(Y)], axis=1)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("part", "whole"),
    [
        (minibatch_of_data, lambda: without_minibatch(False)),
        (minibatch_of_predictors, lambda: without_minibatch(True)),
        (lambda: regression(X, Y, 3), lambda: regression(X, Y, None)),
    ],
)
def test_a_minibatch_has_the_posterior_of_all_rows(part, whole, many, monkeypatch):
    monkeypatch.setattr("bures.frontends.pymc_rows.is_large", lambda rows, dim: many)
    part, whole = from_pymc(part()), from_pymc(whole())
    assert getattr(part.log_density, "num_rows", None) == (10 if many else None)
    z = jnp.array([[0.3, -0.2, 0.1], [1.0, 0.2, 0.4]])[:, : part.dim]
    for found, wanted in zip(part.value_and_score(z), whole.value_and_score(z), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert part.names == whole.names


def test_a_fit_by_minibatches(monkeypatch):
    monkeypatch.setattr("bures.frontends.pymc_rows.is_large", lambda rows, dim: True)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2))
    y = X @ [1.0, -0.5] + rng.standard_normal(3000)
    part, whole = (bures.fit(from_pymc(regression(X, y, size)), key=jax.random.key(0)) for size in (100, None))
    assert part.record.rows.num_rows == 3000
    p = whole.approximation
    np.testing.assert_allclose((part.approximation.mean - p.mean) / p.standard_deviations, 0, atol=0.02)
    np.testing.assert_allclose(part.approximation.standard_deviations / p.standard_deviations, 1, atol=0.02)


def minibatch_of_a_potential():
    with pm.Model() as model:
        pm.Potential("bump", -((pm.Normal("x") - pm.Minibatch(Y, batch_size=3)) ** 2).sum())
    return model


def minibatch_of_a_latent():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", pm.Minibatch(Y, batch_size=3).mean()), observed=Y)
    return model


def minibatch_of_two_calls():
    with pm.Model() as model:
        rows, y = pm.Minibatch(Y, batch_size=3), pm.Minibatch(Y, batch_size=3)
        pm.Normal("y", pm.Normal("x") * rows, observed=y, total_size=10)
    return model


def minibatch_with_its_mean():
    with pm.Model() as model:
        y = pm.Minibatch(Y, batch_size=3)
        pm.Normal("y", pm.Normal("x") + y.mean(), observed=y, total_size=10)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (minibatch_of_a_potential, "potential 'bump' uses pm.Minibatch.*full data"),
        (minibatch_of_a_latent, "latent variable 'x' uses pm.Minibatch.*full data"),
        (minibatch_of_two_calls, "'y' uses several calls of pm.Minibatch"),
        (minibatch_with_its_mean, "log density of 'y' depends on which rows of its pm.Minibatch come together"),
    ],
)
def test_minibatches_that_are_no_sums_over_rows_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        from_pymc(make())


@pytest.mark.parametrize("shared", [False, True])
def test_total_size_with_the_full_data(shared):
    value = from_pymc(total(10, shared=shared)).log_density(jnp.zeros(1))
    np.testing.assert_allclose(value, stats.norm.logpdf(0) + stats.norm.logpdf(Y).sum(), rtol=1e-12)
    with pytest.raises(ValueError, match=r"'y' has total_size=\[20\] but data of shape \[10\].*full data"):
        from_pymc(total(20, shared=shared))


# Ops without a JAX form


class Cube(Op):
    """x³, in NumPy only."""

    __props__ = ()

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] ** 3)


class CubeWithGradient(Cube):
    def pullback(self, inputs, outputs, cotangents):
        return [3 * inputs[0] ** 2 * cotangents[0]]


class CubeNotImplemented(Cube):
    def pullback(self, inputs, outputs, cotangents):
        return [grad_not_implemented(self, 0, inputs[0], "for the test")]


class CubeDisconnected(Cube):
    def connection_pattern(self, node):
        return [[False]]

    def pullback(self, inputs, outputs, cotangents):
        return [DisconnectedType()()]


def cubed(op, *, in_density=True):
    with pm.Model() as model:
        x, scale = pm.Normal("x", shape=2), pm.HalfNormal("scale")
        cube = pm.Deterministic("cube", op(x))
        pm.Normal("y", cube if in_density else x, scale, observed=[1.0, 2.0])
    return model


def in_tensors(*, in_density=True):
    return from_pymc(cubed(lambda x: x**3, in_density=in_density))


def test_an_op_without_a_jax_form(key):
    target, expected = from_pymc(cubed(CubeWithGradient())), in_tensors()
    assert not hasattr(expected.log_density, "values_and_scores_on_host")
    z = jax.random.normal(key, (5, 3))
    values, scores = jax.vmap(jax.value_and_grad(expected.log_density))(z)
    for found in (
        target.log_density.values_and_scores_on_host(np.asarray(z)),
        target.log_density.values_and_scores_on_host(np.asarray(z, np.float32)),
        jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(z),
        target.value_and_score(z),
    ):
        np.testing.assert_allclose(found[0], values, rtol=1e-5)
        np.testing.assert_allclose(found[1], scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        jax.hessian(target.log_density)(z[0]), jax.hessian(expected.log_density)(z[0]), rtol=1e-6, atol=1e-7
    )
    weights = jnp.linspace(-1, 1, 5)
    np.testing.assert_allclose(
        target.weighted_hessian(weights, z), expected.weighted_hessian(weights, z), rtol=1e-6, atol=1e-6
    )
    for found, right in (
        (target.constrain, expected.constrain),
        (target.labels.log_likelihood, expected.labels.log_likelihood),
    ):
        found, right = jax.vmap(found)(z), jax.vmap(right)(z)
        assert found.keys() == right.keys()
        for name in right:
            np.testing.assert_allclose(found[name], right[name], rtol=1e-12)
    assert "'y'" in target.log_density.explain(np.full(3, np.nan))
    np.testing.assert_array_equal(target.log_density.initial_candidates(), np.zeros((1, 3)))


def test_points_without_density_on_the_host():
    density = from_pymc(cubed(CubeWithGradient())).log_density
    values, scores = density.values_and_scores_on_host(np.array([[np.nan, 0, 0], [0.0, 0, 0]]))
    assert values[0] == -np.inf
    assert np.isfinite(values[1])
    np.testing.assert_array_equal(scores[0], 0)


def test_an_op_outside_the_density_needs_no_gradient(key):
    target = from_pymc(cubed(Cube(), in_density=False))
    assert not hasattr(target.log_density, "values_and_scores_on_host")
    z = jax.random.normal(key, (3, 3))
    np.testing.assert_allclose(jax.jit(jax.vmap(target.constrain))(z)["cube"], z[:, :2] ** 3, rtol=1e-12)
    np.testing.assert_allclose(target.constrain(z[0])["cube"], z[0, :2] ** 3, rtol=1e-12)


@pytest.mark.parametrize("op", [Cube(), CubeNotImplemented(), CubeDisconnected()], ids=str)
def test_an_op_without_a_gradient_is_refused_by_name(op):
    message = f"{op}, which the log density of 'y' uses, has neither a JAX form nor a gradient.*`pullback`"
    with pytest.raises(ValueError, match=message):
        from_pymc(cubed(op))


# Laziness


def test_data_are_those_of_the_time_the_target_was_made():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(3))
        slope = pm.Normal("slope")
        pm.Deterministic("mean", slope * x)
        pm.Normal("y", slope * x, observed=np.ones(3))
    target = from_pymc(model)
    pm.set_data({"x": np.full(3, 5.0)}, model=model)
    z = jnp.ones(1)
    np.testing.assert_allclose(target.log_density(z), stats.norm.logpdf(1) + 3 * stats.norm.logpdf(0))
    np.testing.assert_allclose(target.constrain(z)["mean"], 1)
    np.testing.assert_allclose(target.labels.log_likelihood(z)["y"], stats.norm.logpdf(0))


def test_a_target_is_made_without_a_compilation():
    program = """
import jax
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: programs.append(event) if event.endswith("backend_compile_duration") else None
)
import sys, bures
from tests.test_frontends import pymc_schools
model = pymc_schools()
programs.clear()
target = bures.frontends.from_pymc(model)
assert not programs, programs
assert "pymc.sampling.jax" not in sys.modules  # it would make a hundred devices of one
assert len(jax.devices()) == 1
target.log_density(target.initial_point)
assert len(programs) == 1, programs
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_target_is_made_without_compiling_the_model(monkeypatch):
    made, make = [], maker.FunctionMaker.__init__

    def counted(self, *args, **kwargs):
        made.append(self)
        make(self, *args, **kwargs)

    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Normal("y", pm.Normal("x", 0, scale, shape=8), observed=np.ones(8))
    monkeypatch.setattr(maker.FunctionMaker, "__init__", counted)
    from_pymc(model)
    assert len(made) <= 1  # PyMC's own function for the initial point


def test_a_model_that_is_no_model():
    with pytest.raises(ValueError, match="model must be"):
        from_pymc(3)
