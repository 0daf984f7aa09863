"""One contract for every legal objective × estimator × geometry × family."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import low_rank_gaussian, mean_field_gaussian, quick_jit, regression_data, run_steps

import bures

OBJECTIVES = [bures.ELBO(), bures.IWELBO(K=3), bures.VRIWAE(K=3, alpha=0.5)]
ESTIMATORS = [bures.Price(M=4), bures.Stein(M=16, permutations=2), bures.Reparameterised(M=16, draws="sobol")]
GEOMETRIES = [
    bures.BuresWasserstein(step_size=0.1),
    bures.ForwardBackward(step_size=0.1),
    bures.Euclidean(0.05),
    bures.Whitened(),
]


def is_legal(objective, geometry):
    return objective.K == 1 or not isinstance(geometry, bures.ForwardBackward)


METHODS = [
    {"objective": objective, "estimator": estimator, "geometry": geometry}
    for objective, estimator, geometry in itertools.product(OBJECTIVES, ESTIMATORS, GEOMETRIES)
    if is_legal(objective, geometry)
]
# One of each geometry, for what the loop adds.
GEOMETRY_METHODS = [
    {"objective": objective, "estimator": bures.Price(M=4), "geometry": geometry}
    for objective, geometry in zip([OBJECTIVES[i] for i in (1, 0, 2, 1)], GEOMETRIES, strict=True)
]
# For other families each pair of an objective, an estimator, a geometry and a family; all of them are traced below.
PAIRS = [
    (0, 0, 0, "mean field"),
    (0, 1, 2, "low rank"),
    (0, 2, 3, "mean field"),
    (1, 0, 2, "mean field"),
    (1, 1, 3, "low rank"),
    (1, 2, 0, "low rank"),
    (2, 0, 3, "low rank"),
    (2, 1, 0, "mean field"),
    (2, 2, 2, "low rank"),
    (0, 1, 1, "mean field"),
]
DTYPES = [jnp.float32, jnp.float64]


def name_of(method):
    return "-".join(type(part).__name__ for part in method.values())


@pytest.fixture(scope="module")
def target():
    return bures.models.logistic_regression(*regression_data(n=8, dim=2))


def start(dtype=jnp.float64):
    return bures.Gaussian(jnp.array([0.3, -0.2], dtype), jnp.array([[1.0, 0.0], [0.3, 0.7]], dtype))


FAMILIES = {
    "mean field": lambda dtype: mean_field_gaussian(1, 4, dtype),
    "low rank": lambda dtype: low_rank_gaussian(1, 4, (3.0, 0.3), dtype),
    "low rank, a column not in use": lambda dtype: low_rank_gaussian(1, 4, (3.0, 1.0), dtype),
}


@pytest.fixture(scope="module")
def wider_target():
    return bures.models.logistic_regression(*regression_data(n=8, dim=4))


def leaves_equal(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def float_dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.parametrize(
    ("method", "dtype"),
    [pytest.param(method, DTYPES[i % 2], id=name_of(method)) for i, method in enumerate(METHODS)],
)
def test_steps_under_jit_vmap_and_scan(method, dtype, target):
    """In float32 and float64 by turns, to save compilations; `test_steps_can_be_traced` has both."""
    keys = jax.random.split(jax.random.key(1), 3)
    many = quick_jit(jax.vmap(lambda key, q: run_steps(key, q, target, method, 5), in_axes=(0, None)))
    states, infos = many(keys, start(dtype))
    assert leaves_equal((states, infos), many(keys, start(dtype)))  # deterministic
    assert float_dtypes((states, infos)) == {jnp.dtype(dtype)}
    q = states.approximation
    assert q.mean.shape == (3, 2)
    assert q.chol.shape == (3, 2, 2)
    assert infos.bound.shape == (3, 5)
    assert np.all(infos.finite)
    assert np.all(np.isfinite(infos.bound))
    assert np.all(np.isfinite(infos.grad_norm))
    assert np.all((infos.ness > 0) & (infos.ness <= 1 + 1e-6))
    assert np.all(np.asarray(q.chol)[:, 0, 1] == 0)
    assert np.all(np.diagonal(q.chol, axis1=1, axis2=2) > 0)
    assert not np.array_equal(q.mean[0], q.mean[1])


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def test_steps_of_every_family_under_jit_vmap_and_scan(pair, wider_target):
    """In float32 and float64 by turns."""
    objective, estimator, geometry, family = pair
    parts = OBJECTIVES[objective], ESTIMATORS[estimator], GEOMETRIES[geometry]
    method = dict(zip(("objective", "estimator", "geometry"), parts, strict=True))
    dtype = DTYPES[(objective + estimator) % 2]
    keys = jax.random.split(jax.random.key(1), 3)
    many = quick_jit(jax.vmap(lambda key, q: run_steps(key, q, wider_target, method, 4), in_axes=(0, None)))
    start = FAMILIES[family](dtype)
    states, infos = many(keys, start)
    assert leaves_equal((states, infos), many(keys, start))  # deterministic
    assert float_dtypes((states, infos)) == {jnp.dtype(dtype)}
    assert jax.tree.structure(states.approximation) == jax.tree.structure(start)
    assert np.all(infos.finite) and np.all(np.isfinite(infos.grad_norm)) and infos.bound.shape == (3, 4)
    assert np.all(np.asarray(states.approximation.scale) > 0)
    basis = np.asarray(states.approximation.basis)
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(basis.transpose(0, 2, 1) @ basis, np.array([np.eye(basis.shape[2])] * 3), atol=tolerance)
    assert not np.array_equal(states.approximation.mean[0], states.approximation.mean[1])


@pytest.mark.parametrize("family", [bures.LowRank(), bures.LowRank(rank=1)], ids=str)
def test_geometries_that_cannot_move_a_family_are_refused_with_the_reason(family, wider_target):
    method = {"objective": bures.ELBO(), "estimator": bures.Price(M=4), "geometry": bures.ForwardBackward(0.1)}
    message = r"geometry must be able to move a LowRank approximation.*forward_backward.*Use Whitened\(\), or family="
    with pytest.raises(ValueError, match=message):
        bures.fit(wider_target, key=jax.random.key(0), family=family, num_steps=1, **method)
    with pytest.raises(ValueError, match=message):
        bures.init(wider_target, init=family.standard(4), **method)


def test_fits_of_low_rank_under_vmap_are_the_fits(wider_target):
    keys = jax.random.split(jax.random.key(4), 3)
    method = {"objective": bures.ELBO(), "estimator": bures.Stein(M=30), "geometry": bures.Whitened()}

    def fit(key):
        start = FAMILIES["low rank, a column not in use"](jnp.float64)
        result = bures.fit(wider_target, key=key, init=start, num_steps=5, **method)
        return result.approximation.mean, result.approximation.covariance, result.trace.bound

    together = quick_jit(jax.vmap(fit))(keys)
    for i, key in enumerate(keys):
        for one, many in zip(fit(key), together, strict=True):
            np.testing.assert_allclose(many[i], one, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("objective", OBJECTIVES[1:], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_illegal_pairs_are_refused_with_the_reason(objective, estimator, target):
    method = {"objective": objective, "estimator": estimator, "geometry": bures.ForwardBackward(0.1)}
    message = r"ForwardBackward needs the entropy to separate.*ELBO\(\)"
    with pytest.raises(ValueError, match=message):
        bures.fit(target, key=jax.random.key(0), init=start(), num_steps=1, **method)
    with pytest.raises(ValueError, match=message):
        bures.init(target, init=start(), **method)


@pytest.mark.parametrize("method", GEOMETRY_METHODS, ids=name_of)
def test_fits_watched_repeated_and_vmapped_are_the_same(method, target, capsys):
    keys = jax.random.split(jax.random.key(4), 10)
    seen = []

    def fit(key, **options):
        return bures.fit(target, key=key, init=start(), num_steps=12, **method, **options)

    def callback(step, q, info):
        seen.append((step, q, info))
        q.sample(keys[0], 3)

    # Watching does not change a fit.
    alone = [fit(key) for key in keys]
    watched = fit(keys[0], progress=True, callback=callback)
    watched.diagnose(keys[0], 100)
    watched.resample(keys[0], 5, K=2)
    again = fit(keys[0], progress=False)
    assert "12/12" in capsys.readouterr().err
    for other in (watched, again):
        assert leaves_equal(alone[0].loop, other.loop)
        assert leaves_equal(alone[0].trace, other.trace)
    assert [step for step, _, _ in seen] == [1, 2, 5, 10]
    assert set(seen[0][2]) >= {"bound", "ness", "grad_norm", "clipped", "step_size", "min_eigenvalue"}

    # Ten fits under vmap are the ten fits, to rounding.
    def summary(key):
        result = fit(key)
        return result.approximation, result.trace, result.outcome_code

    q, trace, codes = quick_jit(jax.vmap(summary))(keys)
    assert np.all(codes == bures.Outcome.MAX_STEPS.value)
    for i, result in enumerate(alone):
        np.testing.assert_allclose(q.mean[i], result.approximation.mean, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(q.chol[i], result.approximation.chol, rtol=1e-8, atol=1e-11)
        for name in trace.names:
            np.testing.assert_allclose(trace[name][i], result.trace[name], rtol=1e-8, atol=1e-11, err_msg=name)


def test_the_loop_takes_the_steps_of_the_pure_pair(target):
    method = GEOMETRY_METHODS[-1]
    key = jax.random.key(2)
    result = bures.fit(target, key=key, init=start(), num_steps=5, **method)
    state, info = quick_jit(lambda key, q: run_steps(key, q, target, method, 5))(key, start())
    np.testing.assert_allclose(result.approximation.mean, state.approximation.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.approximation.chol, state.approximation.chol, rtol=1e-9, atol=1e-12)
    for name, values in info._asdict().items():
        np.testing.assert_allclose(result.trace[name], values, rtol=1e-8, atol=1e-11, err_msg=name)


def test_constants_may_be_closed_over_under_jit(target):
    """A start that is a constant of the compiled function is no tracer, but operations on it are."""
    q = start()
    method = GEOMETRY_METHODS[1]

    def last(key):
        return bures.fit(target, key=key, init=q, num_steps=2, **method).approximation

    jax.eval_shape(last, jax.random.key(0))
    jax.eval_shape(lambda key: run_steps(key, q, target, method, 5), jax.random.key(0))
    mean, covariance = np.zeros(2), np.eye(2)
    jax.eval_shape(lambda x: x * bures.Gaussian.from_moments(mean, covariance).mean, 1.0)
    jax.eval_shape(lambda x: x * bures.Gaussian(jnp.asarray(mean), q.chol).mean, 1.0)


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


@pytest.mark.parametrize("optimizer", [optax.sgd(0.05, momentum=0.9), optax.adamw(0.01)], ids=["sgd", "adamw"])
def test_any_optax_optimiser_keeps_the_contract(optimizer, target):
    method = {"objective": bures.ELBO(), "estimator": bures.Stein(M=16), "geometry": bures.Euclidean(optimizer)}
    state, info = quick_jit(lambda key, q: run_steps(key, q, target, method, 5))(jax.random.key(7), start())
    assert np.all(info.finite)
    assert not np.array_equal(state.approximation.mean, start().mean)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_steps_can_be_traced(method, target):
    """What `test_annotations_hold` needs: all of a step, and nothing compiled."""
    for dtype in DTYPES:
        traced = jax.eval_shape(lambda key, q: run_steps(key, q, target, method, 2), jax.random.key(0), start(dtype))
        assert float_dtypes(traced) == {jnp.dtype(dtype)}


@pytest.mark.parametrize("family", ["mean field", "low rank"])
def test_steps_of_every_family_can_be_traced(family, wider_target):
    """Every legal combination, with nothing compiled."""
    for i, method in enumerate(METHODS):
        start = FAMILIES[family](DTYPES[i % 2])
        if isinstance(method["geometry"], bures.ForwardBackward) and family != "mean field":
            continue
        traced = jax.eval_shape(
            lambda key, q, method=method: run_steps(key, q, wider_target, method, 1), jax.random.key(0), start
        )
        assert float_dtypes(traced) == {jnp.dtype(DTYPES[i % 2])}, name_of(method)


def test_annotations_hold():
    """Shapes and types, checked at run time in a process of its own: in all processes that would cost a fifth."""
    files = ("linalg", "gaussian", "low_rank", "diagnostics", "newton", "storage")
    here = Path(__file__).parent
    traced = [
        f"{__file__}::{name}" for name in ("test_steps_can_be_traced", "test_steps_of_every_family_can_be_traced")
    ]
    # Fits of other families are judged by functions that are annotated for full Gaussians alone (diagnostics.coverage).
    left_out = "not every_family_is_saved and not columns_grow and not nothing_of_d"
    chosen = [*(str(here / f"test_{name}.py") for name in files), *traced]
    checker = "bures,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, f"--jaxtyping-packages={checker}", "-k", left_out, *chosen],
        cwd=here.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
