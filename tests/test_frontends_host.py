"""Graphs of JAX evaluated by NumPy: what it knows is right, what it does not know is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bures.frontends import host

X = np.linspace(0.1, 0.9, 6).reshape(2, 3)
FUNCTIONS = {
    "arithmetic": lambda: (jnp.asarray(X) - 0.3) * 2 / (1 + X) ** 3,
    "powers": lambda: [jnp.power(X, 1.5), jnp.asarray(X) ** -2, jnp.sqrt(X), jax.lax.rsqrt(jnp.asarray(X))],
    "functions": lambda: [
        jnp.exp(X), jnp.log1p(X), jnp.tanh(X), jax.nn.sigmoid(X), jax.scipy.special.erf(X),
        jax.lax.lgamma(jnp.asarray(X)),
    ],
    "softplus": lambda: jax.nn.softplus(jnp.asarray(X)),
    "logit": lambda: jax.scipy.special.logit(jnp.asarray(X)),
    "shapes": lambda: jnp.broadcast_to(jnp.asarray(X)[:, None, 1:], (2, 4, 2)).transpose(2, 0, 1).reshape(4, 4),
    "joins": lambda: [jnp.concatenate([X, 2 * X], 1), jnp.stack([X, 2 * X], -1), jnp.flip(jnp.asarray(X), 1)],
    "rows": lambda: jnp.asarray(X)[jnp.array([1, 0, 1])],
    "sums": lambda: [jnp.sum(jnp.asarray(X), 0), jnp.max(jnp.asarray(X)), jnp.cumsum(jnp.asarray(X), 1), jnp.mean(X)],
    "products": lambda: [jnp.asarray(X) @ X.T, jnp.asarray(X) @ jnp.ones(3)],
    "choices": lambda: [jnp.where(X > 0.5, X, -1.0), jnp.clip(X, 0.2, 0.6), jnp.arange(4), jnp.eye(3)],
    "integers": lambda: [jnp.asarray([True, False]) & True, ~jnp.asarray([5]), jnp.asarray([6]) & 3],
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_agrees_with_jax(name):
    function = FUNCTIONS[name]
    found = host.evaluate(jax.make_jaxpr(function)())
    for value, expected in zip(found, jax.tree.leaves(jax.jit(function)()), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_what_numpy_does_not_know_is_none():
    def function():
        key = jax.random.key(0)
        return jax.random.normal(key), jnp.ones(2), jnp.linalg.cholesky(jnp.eye(2))[0, 0], jnp.asarray(7) // 2

    random, ones, factor, _ = host.evaluate(jax.make_jaxpr(function)())
    assert random is None
    assert factor is None
    np.testing.assert_array_equal(ones, 1)


def test_dependence():
    jaxpr = jax.make_jaxpr(lambda x: (2 * x, jnp.ones(2), jnp.where(x > 0, 1.0, 2.0), x))(1.0)
    assert host.depends(jaxpr) == [True, False, True, True]
