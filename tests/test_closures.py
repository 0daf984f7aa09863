"""Data of a log density: arguments of its programs, not constants in them; and gone when the target is."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.compiled import Weak, compiled, split
from bures.engine import Evaluator
from bures.target.closures import Hoisted

KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).normal(size=(2**16, 4)).astype(np.float32)  # a megabyte


def by_cell():
    rows = ROWS + 0
    return lambda z: -jnp.sum(z**2) / 2 - jnp.mean((rows @ z - 1) ** 2)


def by_default():
    return lambda z, rows=ROWS + 0: -jnp.sum(z**2) / 2 - jnp.mean((rows @ z - 1) ** 2)


def by_keyword():
    given = jnp.asarray(ROWS)

    def density(z, *, rows=given):
        return -jnp.sum(z**2) / 2 - jnp.mean((rows @ z - 1) ** 2)

    return density


def by_module():
    return lambda z: -jnp.sum(z**2) / 2 - jnp.mean((ROWS @ z - 1) ** 2)


@pytest.mark.parametrize("make", [by_cell, by_default, by_keyword, by_module], ids=lambda make: make.__name__)
def test_large_arrays_are_data_and_the_density_is_the_same(make):
    plain = make()
    target = bures.Target(plain, 4)
    assert isinstance(target.log_density, Hoisted) and len(target.log_density.arrays) == 1
    z = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    values, scores = Evaluator(target).value_and_score(z)
    wanted = [jax.value_and_grad(plain)(row) for row in jnp.asarray(z)]
    np.testing.assert_allclose(values, [value for value, _ in wanted], rtol=1e-5)
    np.testing.assert_allclose(scores, [score for _, score in wanted], rtol=1e-4, atol=1e-4)
    static, arrays, _ = split(target.log_density)
    constants = jax.make_jaxpr(lambda given, z: static.combine(given)(z))(arrays, z[0]).consts
    assert sum(np.size(constant) for constant in constants) < 10


def test_what_cannot_be_data_is_left_as_it_is():
    rows, chosen = ROWS, np.arange(2**17) % 4 == 0

    def looks_at_values(z):
        return -jnp.sum(z**2) if rows[0, 0] > -100 else z[0]

    def numpy_first(z):
        return -jnp.sum((jnp.asarray(np.linalg.norm(rows, axis=0)) * z) ** 2)

    def masked(z):
        return -jnp.sum(z**2) * jnp.sum(jnp.ones(2**17)[chosen])

    for function in (looks_at_values, numpy_first, lambda z: -jnp.sum(z**2)):
        assert bures.Target(function, 4).log_density is function
    assert bures.Target(masked, 4).log_density(jnp.ones(4)) == -4 * 2**15


def test_data_go_with_their_target():
    def make():
        rows = jnp.asarray(ROWS)
        density = lambda z: -jnp.sum(z**2) / 2 - jnp.mean((rows @ z - 1) ** 2)  # noqa: E731
        small = lambda z, scale=3.0: -scale * jnp.sum(z**2)  # noqa: E731
        return weakref.ref(rows), weakref.ref(small), bures.Target(density, 4), bures.Target(small, 4)

    rows, small, *targets = make()
    q = bures.Gaussian.standard(4)
    for target in targets:
        bures.fit(target, key=KEY, max_evaluations=60)
        bures.fit(target, key=KEY, num_steps=2, init=q, estimator=bures.Stein(M=4))
    assert rows() is not None and small() is not None
    del target, targets
    gc.collect()
    assert rows() is None and small() is None


def test_programs_are_shared_while_their_function_lives():
    traces = []

    @compiled
    def square(function, x):
        traces.append(1)
        return function(x) ** 2

    double = lambda x: 2 * x  # noqa: E731
    assert float(square(double, jnp.ones(()))) == 4 == float(square(double, jnp.ones(())))
    assert len(traces) == 1
    triple = lambda x: 3 * x  # noqa: E731
    assert float(square(triple, jnp.ones(()))) == 9 and len(traces) == 2
    gone = Weak(triple)
    del triple
    gc.collect()
    with pytest.raises(ReferenceError):
        gone(1.0)


def test_a_program_may_return_the_functions_that_it_was_given():
    @compiled
    def twice(function, x):
        return {"f": function, "x": 2 * x, "n": 3}

    def make():
        scale = 4.0
        return lambda x: scale * x

    function = make()
    for _ in range(2):
        found = twice(function, jnp.ones(2))
        assert found["f"] is function and found["n"] == 3 and float(found["x"][0]) == 2
    gone = weakref.ref(function)
    del function, found
    gc.collect()
    assert gone() is None
