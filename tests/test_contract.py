"""One contract for every legal objective × estimator × geometry."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import regression_data

import bures

OBJECTIVES = [bures.ELBO(), bures.IWELBO(K=3), bures.VRIWAE(K=3, alpha=0.5)]
ESTIMATORS = [
    bures.Price(M=4),
    bures.Price(M=4, indices="last", draws="sobol"),
    bures.Stein(M=16, permutations=2),
    bures.Reparameterised(M=16),
]
GEOMETRIES = [
    bures.BuresWasserstein(step_size=0.1),
    bures.ForwardBackward(step_size=0.1),
    bures.Euclidean(0.05),
    bures.Whitened(),
]


def is_legal(objective, geometry):
    return objective.K == 1 or not isinstance(geometry, bures.ForwardBackward)


METHODS = [
    pytest.param(
        {"objective": objective, "estimator": estimator, "geometry": geometry},
        id="-".join(type(part).__name__ for part in (objective, estimator, geometry)),
    )
    for objective, estimator, geometry in itertools.product(OBJECTIVES, ESTIMATORS, GEOMETRIES)
    if is_legal(objective, geometry)
]
# One of each geometry, for what the loop adds.
GEOMETRY_METHODS = [
    pytest.param(
        {"objective": objective, "estimator": bures.Price(M=4), "geometry": geometry},
        id=type(geometry).__name__,
    )
    for objective, geometry in zip(
        [OBJECTIVES[1], OBJECTIVES[0], OBJECTIVES[2], OBJECTIVES[1]], GEOMETRIES, strict=True
    )
]


@pytest.fixture(scope="module")
def target():
    return bures.models.logistic_regression(*regression_data(n=8, dim=2))


def start(dtype=jnp.float64):
    return bures.Gaussian(jnp.array([0.3, -0.2], dtype), jnp.array([[1.0, 0.0], [0.3, 0.7]], dtype))


@eqx.filter_jit
def run(key, q, target, method, num_steps=5):
    """The user's own loop: `lax.scan` over `bures.step`."""

    def body(state, t):
        return bures.step(jax.random.fold_in(key, t), state, target, **method)

    return jax.lax.scan(body, bures.init(target, init=q, **method), jnp.arange(num_steps))


def leaves_equal(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def float_dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)}


@pytest.mark.parametrize("method", METHODS)
def test_steps_under_jit_vmap_and_scan(method, target):
    keys = jax.random.split(jax.random.key(1), 3)
    many = eqx.filter_jit(lambda keys: jax.vmap(lambda key: run(key, start(), target, method))(keys))
    states, infos = many(keys)
    assert leaves_equal((states, infos), many(keys))  # deterministic
    q = states.approximation
    assert q.mean.shape == (3, 2)
    assert q.chol.shape == (3, 2, 2)
    assert infos.bound.shape == (3, 5)
    assert np.all(infos.finite)
    assert float_dtypes((states, infos)) == {jnp.dtype("float64")}
    assert np.all(np.isfinite(infos.bound))
    assert np.all(np.isfinite(infos.grad_norm))
    assert np.all((infos.ness > 0) & (infos.ness <= 1 + 1e-12))
    assert np.all(np.asarray(q.chol)[:, 0, 1] == 0)
    assert np.all(np.diagonal(q.chol, axis1=1, axis2=2) > 0)
    assert not np.array_equal(q.mean[0], q.mean[1])


@pytest.mark.parametrize("method", METHODS)
def test_float32_is_kept_and_close_to_float64(method, target):
    state, info = run(jax.random.key(1), start(jnp.float32), target, method)
    assert float_dtypes((state, info)) == {jnp.dtype("float32")}
    assert np.all(info.finite)
    assert np.all(np.isfinite(state.approximation.chol))
    assert np.all(np.diagonal(state.approximation.chol) > 0)


@pytest.mark.parametrize("objective", OBJECTIVES[1:], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_illegal_pairs_are_refused_with_the_reason(objective, estimator, target):
    method = {"objective": objective, "estimator": estimator, "geometry": bures.ForwardBackward(0.1)}
    message = r"ForwardBackward needs the entropy to separate.*ELBO\(\)"
    with pytest.raises(ValueError, match=message):
        bures.fit(target, key=jax.random.key(0), init=start(), num_steps=1, **method)
    with pytest.raises(ValueError, match=message):
        bures.init(target, init=start(), **method)


@pytest.mark.parametrize("method", GEOMETRY_METHODS)
def test_the_loop_takes_the_steps_of_the_pure_pair(method, target):
    key = jax.random.key(2)
    result = bures.fit(target, key=key, init=start(), num_steps=5, **method)
    state, info = run(key, start(), target, method)
    np.testing.assert_allclose(result.approximation.mean, state.approximation.mean, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(result.approximation.chol, state.approximation.chol, rtol=1e-10, atol=1e-13)
    for name in info.names:
        np.testing.assert_allclose(result.trace[name], info[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("method", GEOMETRY_METHODS)
def test_watching_does_not_change_a_fit(method, target, capsys):
    key = jax.random.key(3)
    seen = []

    def callback(step, q, info):
        seen.append((step, q, info))
        q.sample(key, 3)

    plain = bures.fit(target, key=key, init=start(), num_steps=12, **method)
    watched = bures.fit(target, key=key, init=start(), num_steps=12, progress=True, callback=callback, **method)
    watched.diagnose(key, 100)
    watched.resample(key, 5)
    again = bures.fit(target, key=key, init=start(), num_steps=12, progress=False, **method)
    assert "12/12" in capsys.readouterr().err
    assert leaves_equal(plain.carry, watched.carry)
    assert leaves_equal(plain.trace, watched.trace)
    assert leaves_equal(plain.carry, again.carry)
    assert [step for step, _, _ in seen] == [1, 2, 5, 10]
    assert set(seen[0][2]) >= {"bound", "ness", "grad_norm", "clipped", "step_size", "min_eigenvalue"}


@pytest.mark.parametrize("method", GEOMETRY_METHODS)
def test_vmapped_fits_are_the_separate_fits(method, target):
    keys = jax.random.split(jax.random.key(4), 10)

    def fit(key):
        return bures.fit(target, key=key, init=start(), num_steps=8, **method)

    def summary(key):
        result = fit(key)
        return result.approximation, result.trace, result.outcome_code

    q, trace, codes = jax.jit(jax.vmap(summary))(keys)
    assert np.all(codes == bures.Outcome.MAX_STEPS.value)
    assert trace.bound.shape == (10, 8)
    for i, key in enumerate(keys):
        alone = fit(key)
        np.testing.assert_allclose(q.mean[i], alone.approximation.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(q.chol[i], alone.approximation.chol, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(trace.bound[i], alone.trace.bound, rtol=1e-9, atol=1e-12)


def test_vmap_over_starts_and_targets(target):
    """Everything that holds arrays may be batched: the start and the data, here."""
    method = {"objective": bures.ELBO(), "estimator": bures.Price(M=4), "geometry": bures.BuresWasserstein(0.1)}
    targets = [bures.models.logistic_regression(*regression_data(seed=seed, n=8, dim=2)) for seed in (1, 2)]
    starts = [start(), bures.Gaussian.standard(2)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *targets)
    q = jax.tree.map(lambda *parts: jnp.stack(parts), *starts)
    key = jax.random.key(5)

    def last(q, target):
        return bures.fit(target, key=key, init=q, num_steps=4, **method).approximation

    both = eqx.filter_jit(eqx.filter_vmap(last))(q, stacked)
    for i in range(2):
        np.testing.assert_allclose(both.mean[i], last(starts[i], targets[i]).mean, rtol=1e-10)


def test_a_different_step_size_does_not_compile_again(target):
    """Numbers of a method are traced: ten step sizes share one compiled loop."""
    options = {"key": jax.random.key(6), "init": start(), "num_steps": 3, "objective": bures.ELBO()}
    traces = 0

    def counting(z):
        nonlocal traces
        traces += 1
        return target.log_density(z)

    counted = bures.Target(counting, 2)
    bures.fit(counted, estimator=bures.Stein(M=3), geometry=bures.BuresWasserstein(0.1), **options)
    before = traces
    for step_size in (0.2, 0.3, 0.4):
        bures.fit(counted, estimator=bures.Stein(M=3), geometry=bures.BuresWasserstein(step_size), **options)
    assert traces == before


@pytest.mark.parametrize("optimizer", [optax.sgd(0.05, momentum=0.9), optax.adamw(0.01), optax.rmsprop(0.01)])
def test_any_optax_optimiser_keeps_the_contract(optimizer, target):
    method = {"objective": bures.ELBO(), "estimator": bures.Stein(M=16), "geometry": bures.Euclidean(optimizer)}
    state, info = run(jax.random.key(7), start(), target, method)
    assert np.all(info.finite)
    assert not np.array_equal(state.approximation.mean, start().mean)
