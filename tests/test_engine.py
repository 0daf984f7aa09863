"""The engine: one program of the target, the same mathematics on the host and inside compiled programs."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import (
    FLOATS,
    correlated_target,
    low_rank_gaussian,
    mean_field_gaussian,
    random_gaussian,
    regression_data,
    small_regression,
)

import bures
from bures.arrays import to_device, to_host
from bures.draws import generator, generators, host_seed
from bures.engine import Evaluator
from bures.estimator import _blocked
from bures.fitting.defaults import default_methods
from bures.loop import LoopState, Method, Methods, State, advance_on_host, take_step
from bures.objective import Tempered


class Rows(eqx.Module):
    """A target of so many rows that its points are evaluated block by block."""

    X: jax.Array

    def __call__(self, z):
        return -jnp.sum(jnp.logaddexp(0.0, self.X @ z)) - jnp.sum(z**2) / 2


def uneven(z):
    """The cost depends on the point."""
    steps = jax.lax.while_loop(lambda s: s[0] < jnp.abs(z[0]) + 1, lambda s: (s[0] + 0.5, s[1] + 1), (0.0, 0))[1]
    return -jnp.sum(z**2) / 2 + 0.0 * steps


TARGETS = {
    "plain": lambda: correlated_target(),
    "blocks of rows": lambda: bures.Target(Rows(jnp.asarray(np.random.default_rng(0).normal(size=(20_000, 3)))), 3),
    "fast values and scores": lambda: small_regression(),
    "a loop to convergence": lambda: bures.Target(lambda z: jax.lax.stop_gradient(uneven(z)) * 0 - z @ z / 2, 3),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("n", [1, 31, 400, 950])
def test_values_and_scores_are_those_of_the_target(name, n):
    target = TARGETS[name]()
    z = np.random.default_rng(1).normal(size=(n, target.dim))
    evaluator = Evaluator(target)
    values, scores = evaluator.value_and_score(z)
    expected = jax.vmap(jax.value_and_grad(target.log_density))(jnp.asarray(z))
    np.testing.assert_allclose(values, expected[0], rtol=1e-10)
    np.testing.assert_allclose(scores, expected[1], rtol=1e-8, atol=1e-10)
    assert evaluator.count == n


def test_no_points_are_no_evaluation():
    evaluator = Evaluator(correlated_target())
    values, scores = evaluator.value_and_score(np.zeros((0, 3)))
    assert values.shape == (0,) and scores.shape == (0, 3) and evaluator.count == 0


def test_targets_of_one_shape_share_one_program():
    first, second = (Evaluator(bures.models.gaussian(7, scale=scale)) for scale in (1.0, 2.0))
    first.value(np.zeros((1, 7)))
    assert first.compile_seconds > 0
    second.value(np.zeros((1, 7)))
    assert second.compile_seconds == 0


def test_a_density_on_the_host_is_called_as_it_is():
    class OnHost(eqx.Module):
        def __call__(self, z):
            return -jnp.sum(z**2) / 2

        def values_and_scores_on_host(self, z):
            calls.append(len(z))
            return -np.sum(z**2, axis=1) / 2, -z

    calls = []
    evaluator = Evaluator(bures.Target(OnHost(), 2))
    values, scores = evaluator.value_and_score(np.ones((7, 2)))
    assert calls == [7]
    np.testing.assert_allclose(values, -1)
    np.testing.assert_allclose(scores, -1)
    fit = bures.fit(evaluator.target, key=jax.random.key(0))
    np.testing.assert_allclose(fit.approximation.covariance, np.eye(2), atol=1e-6)
    assert sum(calls) - 7 == fit.num_log_density_evaluations


# ---- One implementation, two places ---------------------------------------------------------------------------------

OBJECTIVES = [bures.ELBO(), bures.IWELBO(K=5), bures.VRIWAE(K=5, alpha=0.4)]
ESTIMATORS = [
    bures.Price(M=30),
    bures.Price(M=30, indices="last"),
    bures.Stein(M=30, draws="antithetic", permutations=4),
    bures.Reparameterised(M=30),
]
GEOMETRIES = [bures.BuresWasserstein(0.3), bures.ForwardBackward(0.2), bures.Whitened()]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda part: f"{type(part).__name__}-{part.draws}")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda part: type(part).__name__)
def test_a_step_on_the_host_is_the_step_of_the_compiled_loop(objective, estimator, geometry):
    if isinstance(estimator, bures.Stein) and objective.K == 1:
        estimator = bures.Stein(M=30, draws="antithetic")
    if isinstance(geometry, bures.ForwardBackward) and objective.K > 1:
        with pytest.raises(ValueError, match="entropy to separate"):
            Method(objective, estimator, geometry)
        return
    target, q = small_regression(), random_gaussian(2, 3, 0.6)
    noise = np.random.default_rng(0).standard_normal((30, objective.K, 3))
    host = to_host(q)
    on_host = estimator.estimate(noise, host, Evaluator(target), objective)
    compiled = estimator.estimate(jnp.asarray(noise), q, target, objective)
    for name in ("a", "S", "entropy_score", "mean_A", "log_weights", "bound"):
        np.testing.assert_allclose(getattr(on_host, name), getattr(compiled, name), rtol=1e-9, atol=1e-10, err_msg=name)
        assert isinstance(getattr(on_host, name), np.ndarray | np.generic), name
    first, _, one = geometry.step(on_host, host, geometry.init(host))
    second, _, other = geometry.step(compiled, q, geometry.init(q))
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(first.chol, second.chol, rtol=1e-9, atol=1e-10)
    assert isinstance(first.chol, np.ndarray)
    assert bool(one.clipped) == bool(other.clipped)


FAMILIES = {
    "mean field": mean_field_gaussian(1, 4),
    "low rank": low_rank_gaussian(1, 4),
    "a column not in use": low_rank_gaussian(1, 4, (3.0, 1.0)),
}


def assert_close(first, second, case):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9, err_msg=case)


def on_the_host(objective, estimator, q):
    """An estimate of the target below, in NumPy, and its noise."""
    target = bures.models.logistic_regression(*regression_data(dim=q.dim))
    noise = np.random.default_rng(0).standard_normal((30, objective.K, q.dim))
    return target, noise, estimator.estimate(noise, to_host(q), Evaluator(target), objective)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("q", [mean_field_gaussian(1, 3), low_rank_gaussian(1, 3)], ids=["mean field", "low rank"])
def test_estimates_of_other_families_are_the_same_on_the_host(q, objective):
    for estimator in ESTIMATORS:
        target, noise, found = on_the_host(objective, estimator, q)
        compiled = estimator.estimate(jnp.asarray(noise), q, target, objective)
        for name in ("a", "S", "entropy_score", "mean_A", "log_weights", "bound"):
            assert_close(getattr(found, name), getattr(compiled, name), f"{name} of {estimator}")
            assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(getattr(found, name)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda part: type(part).__name__)
def test_steps_of_other_families_are_the_same_on_the_host(geometry, family):
    q = FAMILIES[family]
    if isinstance(geometry, bures.ForwardBackward) and family != "mean field":
        with pytest.raises(ValueError, match="able to move a LowRank approximation"):
            geometry.check_family(q)
        return
    for objective, estimator in ((bures.ELBO(), bures.Stein(M=30)), (bures.ELBO(), bures.Price(M=30))) + (
        () if isinstance(geometry, bures.ForwardBackward) else ((bures.IWELBO(K=5), bures.Stein(M=30)),)
    ):
        _, _, estimate = on_the_host(objective, estimator, q)
        step = eqx.filter_jit(lambda estimate, q: geometry.step(estimate, q, geometry.init(q)))
        second, second_state, second_report = step(to_device(estimate), q)
        host = to_host(q)
        first, first_state, first_report = geometry.step(estimate, host, geometry.init(host))
        case = f"{objective} {estimator}"
        assert_close((first.mean, first.scale), (second.mean, second.scale), f"mean and scale of {case}")
        assert_close(first.covariance, second.covariance, f"covariance of {case}")
        assert_close((first_state, first_report), (second_state, second_report), f"state of {case}")
        # Columns not in use count too: they are taken into use by later steps.
        assert_close(first.basis @ first.basis.T, second.basis @ second.basis.T, f"span of {case}")
        assert all(isinstance(part, np.ndarray) for part in first.parts().values()), case


@pytest.mark.parametrize("draws", ["iid", "antithetic", "sobol"])
def test_noise_of_the_host_is_standard_normal(draws):
    noise = bures.Stein(M=2**12, draws=draws).noise(generator(7, 0), bures.Gaussian.standard(2), 2).reshape(-1, 4)
    assert isinstance(noise, np.ndarray)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=4 / 64)
    np.testing.assert_allclose(
        np.cov(noise.T), np.eye(4), atol=4 * np.sqrt(2 / 2**11)
    )  # of pairs, half are independent


def test_noise_differs_by_step_and_key():
    seeds = [host_seed(jax.random.key(i)) for i in (0, 1)]
    rows = [generator(seed, number).standard_normal(8) for seed in seeds for number in (0, 1, 2**32 - 1)]
    assert len({tuple(row) for row in rows}) == 6


def test_what_is_not_finite_leaves_the_state_as_it_was():
    target = bures.Target(lambda z: jnp.where(z[0] > 1e9, 0.0, jnp.nan), 2)
    method = Method(bures.ELBO(), bures.Stein(M=10), bures.Whitened())
    q = to_host(bures.Gaussian.standard(2))
    state = State(q, method.geometry.init(q))
    after, info = take_step(generator(0, 0), state, Evaluator(target), method)
    assert not info.finite
    assert after is state


def test_grouping_of_steps_does_not_matter_on_the_host():
    target = bures.models.eggbox()
    method = Method(bures.IWELBO(10), bures.Stein(M=40, draws="antithetic", permutations=8), bures.Whitened())
    q = to_host(bures.Gaussian(jnp.array([6.0, 4.0]), 3 * jnp.eye(2)))
    begun = LoopState.start(State(q, method.geometry.init(q)))
    arguments = (Evaluator(target), Methods(method, method))
    key = jax.random.key(3)
    whole, trace = advance_on_host(key, begun, *arguments, 12, 0.0)
    part, first = advance_on_host(key, begun, *arguments, 5, 0.0)
    part, second = advance_on_host(key, part, *arguments, 7, 0.0)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(trace.bound, np.concatenate([first.bound, second.bound]))


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_the_dtype_is_that_of_the_start(dtype):
    q = bures.Gaussian(jnp.zeros(3, dtype), jnp.eye(3, dtype=dtype))
    fit = bures.fit(correlated_target(dtype), key=jax.random.key(0), init=q)
    assert fit.approximation.mean.dtype == fit.approximation.chol.dtype == fit.trace.bound.dtype == dtype
    assert fit.loop.is_on_host


# ---- What a first fit compiles --------------------------------------------------------------------------------------

FIRST_FIT = """
import json
import jax
jax.config.update("jax_enable_x64", True)
import bures
compiled = []
def listen(event, seconds, **facts):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(seconds)
jax.monitoring.register_event_duration_secs_listener(listen)
target = bures.models.eggbox()
made = len(compiled)
print(bures.fit(target, key=jax.random.key(0)))
first = len(compiled)
print(bures.fit(bures.models.eggbox(), key=jax.random.key(1)))
print(json.dumps([made, first, len(compiled), sum(seconds > 0.05 for seconds in compiled)]))
"""


def test_a_first_fit_compiles_one_program_that_counts():
    """Making the target compiles nothing, the first fit at most 12 programs of which at most 6 count, the next none."""
    run = subprocess.run([sys.executable, "-c", FIRST_FIT], capture_output=True, text=True, check=True)
    made, first, second, slow = json.loads(run.stdout.splitlines()[-1])
    assert made == 0
    assert first <= 12
    assert slow <= 6
    assert second == first


def test_numbered_generators_are_those_made_one_by_one():
    numbered = generators(12345)
    for number in (0, 7, 3, 2**32 - 1):
        source = numbered(number)
        np.testing.assert_array_equal(source.standard_normal(5), generator(12345, number).standard_normal(5))
        source.random(3, np.float32)  # leaves half a word behind


BLOCKED = {
    "IWELBO": bures.IWELBO(10),
    "VRIWAE": bures.VRIWAE(10, 0.94),
    "the limit of the ELBO": bures.VRIWAE(10, 1.0),
    "Tempered": Tempered.of(bures.IWELBO(10), np.float64(0.7)),
}


@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0, 1000.0])
@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_coefficients_are_those_of_the_compiled_loop(name, spread):
    """Quick on the host, also where that underflows, and where draws have no density."""
    log_weights = spread * np.random.default_rng(0).standard_normal((40, 10)) - 1000
    log_weights[3, 4] = -np.inf if name != "the limit of the ELBO" else log_weights[3, 4]
    here, there = (_blocked(BLOCKED[name], x, 8) for x in (log_weights, jnp.asarray(log_weights)))
    for mine, other in zip(here, there, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(_blocked(BLOCKED[name], log_weights, 8, second_order=False)[1], here[1])


def test_late_steps_take_more_draws_and_are_counted():
    target = correlated_target()
    method = Method(bures.IWELBO(10), bures.Stein(M=40), bures.Whitened())
    methods = default_methods(method, target)
    assert [methods.at(step).estimator.M for step in (0, 7, 8, 100)] == [40, 40, 160, 160]
    assert methods.cost(10).log_densities == 8 * 400 + 2 * 1600
    heavy = bures.Target(Rows(jnp.ones((1000, 3))), 3)
    assert default_methods(method, heavy).at(20).estimator.M == 40


def test_a_program_takes_whole_blocks():
    """A batch that is no multiple of its blocks is rounded up; as many points at a time give the same."""
    target = bures.Target(lambda z: -jnp.sum(jnp.outer(z, z)) / 2, 65)
    few, many = (Evaluator(target, batch, few=few) for batch, few in ((100, True), (650, False)))
    assert few.batch % few.block == 0 == many.batch % many.block
    assert few.batch >= 100 and many.batch >= 650 and few.block < 20
    z = np.random.default_rng(0).standard_normal((651, 65)).astype(many.dtype)
    for one, other in zip(few.value_and_score(z), many.value_and_score(z), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
