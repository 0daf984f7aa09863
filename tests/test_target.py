"""Targets: names, the way back to constrained variables, the change of variables, blocks."""

import subprocess
import sys
import tracemalloc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import bures
from bures.support import Interval, Positive, Real


def log_density(z):
    return -jnp.sum(z**2) / 2


def test_default_names_and_variables():
    target = bures.Target(log_density, 3)
    assert target.names == ("z[0]", "z[1]", "z[2]")
    np.testing.assert_array_equal(target.constrain(jnp.arange(3.0))["z"], jnp.arange(3.0))


def test_given_names_become_variables():
    target = bures.Target(log_density, 2, names=["slope", "intercept"])
    assert target.names == ("slope", "intercept")
    assert {name: float(value) for name, value in target.constrain(jnp.array([1.0, 2.0])).items()} == {
        "slope": 1.0,
        "intercept": 2.0,
    }


def test_values_scores_and_hessians(key):
    target = bures.Target(log_density, 2)
    z = jax.random.normal(key, (5, 2))
    value, score = target.value_and_score(z)
    np.testing.assert_allclose(value, -jnp.sum(z**2, axis=1) / 2, rtol=1e-14)
    np.testing.assert_allclose(target.value(z), value, rtol=1e-14)
    np.testing.assert_allclose(score, -z, rtol=1e-14)
    np.testing.assert_allclose(target.weighted_hessian(jnp.arange(5.0), z), -10 * np.eye(2), rtol=1e-14)
    assert target.value(z.astype(jnp.float32)).dtype == jnp.float32


def test_a_given_fast_hessian_is_used(key):
    target = bures.Target(log_density, 2, weighted_hessian=lambda weights, z: 7 * jnp.eye(2))
    np.testing.assert_array_equal(target.weighted_hessian(jnp.ones(3), jnp.zeros((3, 2))), 7 * np.eye(2))


class WithData(eqx.Module):
    centre: jax.Array

    def __call__(self, z):
        return -jnp.sum((z - self.centre) ** 4)


def test_a_point_of_weight_zero_does_not_spoil_the_hessian():
    target = bures.Target(lambda z: jnp.sum(jnp.log(z)), 2)
    z = jnp.array([[0.0, jnp.nan], [0.5, 2.0]])
    np.testing.assert_allclose(target.weighted_hessian(jnp.array([0.0, 2.0]), z), np.diag([-8.0, -0.5]), rtol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_blocks_change_nothing(n, key, monkeypatch):
    z = jax.random.normal(key, (n, 3))
    weights = jax.random.uniform(key, (n,))
    target = bures.Target(WithData(jnp.arange(3.0)), 3)
    whole = target.value(z), *target.value_and_score(z), target.weighted_hessian(weights, z)
    monkeypatch.setattr(sys.modules["bures.target.blocks"], "_BLOCK_ELEMENTS", 10)
    blocks = target.value(z), *target.value_and_score(z), target.weighted_hessian(weights, z)
    for one, many in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(one, many, rtol=1e-12)


def test_no_rows_at_all():
    target = bures.Target(log_density, 2)
    assert target.value(jnp.zeros((0, 2))).shape == (0,)


# ---- What is checked on construction --------------------------------------------------------------------------------

LOPSIDED = np.array([[1.0, 0.5], [0.0, 1.0]])
MISTAKES = {
    "mean too long": (dict(mean=np.zeros(3)), r"mean must be a point of R\^2"),
    "mean a number": (dict(mean=0.0), "mean must be an array with 1 axes"),
    "mean not finite": (dict(mean=[0.0, np.nan]), "mean must be finite"),
    "covariance a vector": (dict(covariance=np.ones(2)), "covariance must be an array with 2 axes"),
    "covariance too small": (dict(covariance=np.eye(1)), r"covariance must be of shape \(2, 2\)"),
    "covariance lopsided": (dict(covariance=LOPSIDED), "covariance must be symmetric"),
    "sample no function": (dict(sample=np.zeros((4, 2))), r"sample must be a function \(key, n\)"),
    "sample of one argument": (dict(sample=lambda key: key), r"sample\(key, 3\) failed"),
    "sample with draws as columns": (
        dict(sample=lambda key, n: jax.random.normal(key, (2, n))),
        r"sample\(key, 3\) returned float64\[2, 3\]",
    ),
    "sample of integers": (dict(sample=lambda key, n: jnp.zeros((n, 2), int)), r"returned int64\[3, 2\]"),
    "constrain an array": (dict(constrain=lambda z: z), r"constrain must be .* dict .* returned float64\[2\]"),
    "constrain nothing": (dict(constrain=lambda z: {}), r"constrain must be .* returned \{\}"),
    "constrain by number": (dict(constrain=lambda z: {0: z}), "constrain must be .* dict"),
    "constrain by NumPy": (dict(constrain=lambda z: {"z": np.exp(z)}), "constrain .* could not be traced"),
    "hessian a number": (dict(weighted_hessian=lambda w, z: jnp.sum(w)), r"weighted_hessian .* returned float64\[\]"),
    "hessian of each point": (
        dict(weighted_hessian=lambda w, z: w[:, None, None] * jnp.eye(2)),
        r"weighted_hessian .* returned float64\[3, 2, 2\]",
    ),
    "labels a dict": (dict(labels={"coords": {}}), "labels must be bures.target.Labels"),
    "names too few": (dict(names=["a"]), r"names must be 2 different strings"),
    "names twice the same": (dict(names=["a", "a"]), r"names must be 2 different strings"),
    "names one string": (dict(names="ab"), r"names must be 2 different strings"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found_on_construction(mistake, unchecked_types):
    options, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        bures.Target(log_density, 2, **options)


class ScalarHessian(eqx.Module):
    def __call__(self, z):
        return -jnp.sum(z**2) / 2

    def weighted_hessian(self, weights, z):
        return -jnp.sum(weights)


def test_a_hessian_found_in_the_density_is_checked_too():
    with pytest.raises(ValueError, match=r"weighted_hessian must return a \(2, 2\) array, but returned float64\[\]"):
        bures.Target(ScalarHessian(), 2)


def test_a_hessian_that_changes_its_shape_is_found_in_use():
    def hessian(weights, z):
        return jnp.eye(2) if z.shape[0] < 4 else jnp.ones(2)

    target = bures.Target(log_density, 2, weighted_hessian=hessian)
    target.weighted_hessian(jnp.ones(3), jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"returned float64\[2\]"):
        target.weighted_hessian(jnp.ones(5), jnp.zeros((5, 2)))


def test_a_sampler_that_is_not_written_in_jax_is_taken_as_it_is():
    def sample(key, n):
        return np.random.default_rng(int(jax.random.randint(key, (), 0, 100))).standard_normal((n, 2))

    assert bures.Target(log_density, 2, sample=sample).sample(jax.random.key(0), 5).shape == (5, 2)


def test_constrain_is_only_traced(key):
    seen = []

    def constrain(z):
        seen.append(isinstance(z, jax.core.Tracer))
        return {"a": z[0], "b": jnp.exp(z[1])}

    bures.Target(log_density, 2, constrain=constrain)
    assert seen == [True]


def test_ten_million_coordinates_are_named_when_asked():
    tracemalloc.start()
    target = bures.Target(log_density, 10**7)
    same = bures.Target.from_variables(lambda x: -jnp.sum(x**2), {"x": (10**4, 10**3)})
    hash(jax.tree.structure((target, same)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e8  # two lists of so many names take a gigabyte and more
    assert target.dim == same.dim == 10**7
    assert bures.Target(log_density, 2).names == ("z[0]", "z[1]")


def test_construction_compiles_nothing():
    """In a process of its own, where nothing has been compiled before."""
    program = """
import jax, numpy as np
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **labels: compiled.append(event) if "backend_compile" in event else None
)
import jax.numpy as jnp
import bures
from bures.support import Positive, Simplex

for x64 in (False, True):
    jax.config.update("jax_enable_x64", x64)
    bures.Target(lambda z: -jnp.sum(z**2) / 2, 2).start()
    bures.Target(
        lambda z: -jnp.sum(z**2) / 2, 2, names=["a", "b"], mean=np.zeros(2), covariance=np.eye(2),
        initial_point=np.ones(2, np.float32), constrain=lambda z: {"a": z[0], "b": z[1]},
        sample=lambda key, n: jax.random.normal(key, (n, 2)), weighted_hessian=lambda w, z: jnp.sum(w) * jnp.eye(2),
    ).start()
    bures.Target.from_variables(lambda tau, p: -tau + jnp.sum(p), {"tau": Positive(), "p": Simplex(3)})
    bures.models.eggbox(), bures.models.banana(), bures.models.funnel(), bures.models.student_t()
    bures.models.gaussian(3)
    bures.models.logistic_regression(np.ones((20, 2)), np.arange(20) % 2)
assert not compiled, len(compiled)
jnp.zeros(3) + 1
assert compiled  # they would have been seen
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_start_is_in_the_present_precision():
    target = bures.Target(log_density, 2, initial_point=np.ones(2, np.float32))
    assert target.start().dtype == jnp.float64
    np.testing.assert_array_equal(target.start(), np.ones(2))
    traced = eqx.filter_jit(lambda target: target.start())(target)
    np.testing.assert_array_equal(traced, np.ones(2))


VARIABLES = {"mu": (), "tau": Positive(), "theta": (Real(), (2,)), "p": (Interval(-1.0, 3.0), (1, 2)), "raw": (2,)}


def test_from_variables_lays_out_names_shapes_and_supports():
    seen = {}

    def density(mu, tau, theta, p, raw):
        seen.update(mu=mu.shape, tau=tau.shape, theta=theta.shape, p=p.shape, raw=raw.shape)
        return -(mu**2) - tau - jnp.sum(theta**2) - jnp.sum(p) - jnp.sum(raw**2)

    target = bures.Target.from_variables(density, VARIABLES)
    assert target.dim == 8
    assert target.names == ("mu", "tau", "theta[0]", "theta[1]", "p[0,0]", "p[0,1]", "raw[0]", "raw[1]")
    assert seen == {"mu": (), "tau": (), "theta": (2,), "p": (1, 2), "raw": (2,)}
    z = jnp.array([0.5, -1.0, 1.0, 2.0, -30.0, 0.0, 3.0, 4.0])
    values = target.constrain(z)
    assert float(values["tau"]) == pytest.approx(np.exp(-1))
    assert float(values["p"][0, 1]) == pytest.approx(1.0)
    assert -1 <= float(values["p"][0, 0]) < -1 + 1e-9
    np.testing.assert_array_equal(values["raw"], [3.0, 4.0])


@pytest.mark.parametrize(
    ("support", "distribution"),
    [
        (Positive(), scipy.stats.gamma(2.5, scale=0.7)),
        (Interval(-1.0, 3.0), scipy.stats.beta(2.0, 3.5, loc=-1.0, scale=4.0)),
        (Real(), scipy.stats.norm(1.0, 2.0)),
    ],
    ids=["positive", "interval", "real"],
)
def test_the_change_of_variables_keeps_the_mass(support, distribution):
    """∫ p(constrain(z)) |d constrain / dz| dz = 1, and the mean of constrain(z) is the distribution's."""
    names = {"gamma": (2.5, 0.7), "beta": (2.0, 3.5), "norm": (1.0, 2.0)}

    def density(x):
        if distribution.dist.name == "gamma":
            shape, scale = names["gamma"]
            return jax.scipy.stats.gamma.logpdf(x, shape, scale=scale)
        if distribution.dist.name == "beta":
            return jax.scipy.stats.beta.logpdf(x, *names["beta"], loc=-1.0, scale=4.0)
        return jax.scipy.stats.norm.logpdf(x, *names["norm"])

    target = bures.Target.from_variables(density, {"x": support})
    grid = jnp.linspace(-40, 40, 8001)[:, None]
    density_on_grid = np.exp(target.value(grid))
    values = jax.vmap(target.constrain)(grid)["x"]
    assert scipy.integrate.simpson(density_on_grid, x=grid[:, 0]) == pytest.approx(1, abs=1e-6)
    mean = scipy.integrate.simpson(density_on_grid * values, x=grid[:, 0])
    assert mean == pytest.approx(distribution.mean(), abs=1e-5)


@pytest.mark.parametrize("support", [Positive(), Interval(2.0, 5.0), Real()], ids=["positive", "interval", "real"])
def test_log_jacobians_are_those_of_autodiff(support):
    for x in (-3.0, 0.0, 2.5):
        slope = jax.grad(lambda x: support.constrain(x))(x)
        assert float(support.log_jacobian(jnp.array(x))) == pytest.approx(float(jnp.log(slope)), rel=1e-12, abs=1e-12)
    pair = jnp.array([0.1, -0.4])
    total = sum(float(support.log_jacobian(x)) for x in pair)
    assert float(support.log_jacobian(pair)) == pytest.approx(total)


def test_fits_report_constrained_variables(key):
    """An exponential rate with a gamma posterior: known answers through the whole chain."""

    def density(rate):
        return 9 * jnp.log(rate) - 5 * rate

    target = bures.Target.from_variables(density, {"rate": Positive()})
    result = bures.fit(target, key=key, init=bures.Gaussian.standard(1), estimator=bures.Price(M=10), num_steps=50)
    rates = jax.vmap(target.constrain)(result.resample(key, 2000))["rate"]
    assert np.mean(rates) == pytest.approx(10 / 5, abs=4 * np.sqrt(10) / 5 / np.sqrt(1000))
