"""Supports: maps of several numbers at once, there and back, with the Jacobians of autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.support import Ordered, PositiveOrdered, Simplex


@pytest.mark.parametrize("n", [2, 3, 7])
def test_simplex_shares_sum_to_one_and_come_back(n, key):
    x = 3 * jax.random.normal(key, (5, n - 1))
    y = Simplex(n).constrain(x)
    assert y.shape == (5, n)
    assert np.all(np.asarray(y) > 0)
    np.testing.assert_allclose(jnp.sum(y, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(Simplex(n).unconstrain(y), x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("support", "free", "kept"),
    [(Simplex(2), 1, 1), (Simplex(3), 2, 2), (Simplex(6), 5, 5), (Ordered(), 4, 4), (PositiveOrdered(), 4, 4)],
    ids=["simplex of 2", "simplex of 3", "simplex of 6", "ordered", "positive ordered"],
)
def test_log_jacobians_are_those_of_autodiff(support, free, kept, key):
    # The last share follows from the others: the Jacobian is that of the first n − 1.
    for x in (jnp.zeros(free), 2 * jax.random.normal(key, (free,))):
        jacobian = jax.jacobian(lambda x: support.constrain(x)[:kept])(x)
        expected = np.linalg.slogdet(np.asarray(jacobian))[1]
        assert float(support.log_jacobian(x)) == pytest.approx(expected, rel=1e-10, abs=1e-10)
        np.testing.assert_allclose(support.unconstrain(support.constrain(x)), x, rtol=1e-10, atol=1e-10)


def test_a_simplex_of_two_is_the_logit_of_the_first_share():
    # posteriordb's figures are for this map.
    x = jnp.array([-30.0, -1.5, 0.0, 2.0, 30.0])[:, None]
    sigmoid = jax.nn.sigmoid
    np.testing.assert_array_equal(Simplex(2).constrain(x), jnp.concatenate([sigmoid(x), sigmoid(-x)], axis=1))
    expected = jnp.sum(jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))
    assert float(Simplex(2).log_jacobian(x)) == pytest.approx(float(expected), rel=1e-15)
    y = jnp.array([0.3, 0.7])
    np.testing.assert_array_equal(Simplex(2).unconstrain(y), jnp.log(y[:1]) - jnp.log(y[1:]))


def test_a_simplex_keeps_the_dtype():
    x = jnp.zeros(3, jnp.float32)
    assert Simplex(4).constrain(x).dtype == jnp.float32
    assert Simplex(4).log_jacobian(x).dtype == jnp.float32
    assert Simplex(4).unconstrain(jnp.full(4, 0.25, jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize("support", [Ordered(), PositiveOrdered()], ids=["ordered", "positive ordered"])
def test_sequences_in_order_are_the_last_axis(support, key):
    x = jax.random.normal(key, (5, 3))
    y = support.constrain(x)
    assert y.shape == (5, 3)
    np.testing.assert_allclose(y, [support.constrain(row) for row in x], rtol=1e-12)
    np.testing.assert_allclose(support.unconstrain(y), x, rtol=1e-9, atol=1e-9)
    assert float(support.log_jacobian(x)) == pytest.approx(sum(float(support.log_jacobian(row)) for row in x))
    with pytest.raises(ValueError, match="a support with a shape, whose last axis is in order"):
        bures.Target.from_variables(lambda cut: -jnp.sum(cut**2), {"cut": support})


def test_simplexes_as_variables_of_a_target():
    concentration = jnp.array([2.0, 3.0, 4.0])

    def density(theta, many):
        assert theta.shape == (3,)
        assert many.shape == (5, 4)
        return jnp.sum((concentration - 1) * jnp.log(theta)) + jnp.sum(jnp.log(many))

    target = bures.Target.from_variables(density, {"theta": Simplex(3), "many": (Simplex(4), (5,))})
    assert target.dim == 2 + 15
    assert target.names[:3] == ("theta[0]", "theta[1]", "many[0,0]")
    values = target.constrain(jnp.zeros(17))
    np.testing.assert_allclose(values["theta"], np.full(3, 1 / 3), rtol=1e-15)
    np.testing.assert_allclose(values["many"], np.full((5, 4), 1 / 4), rtol=1e-15)


@pytest.mark.parametrize("n", [1, 0, -2, 2.5, "3"])
def test_a_simplex_of_fewer_than_two_shares_is_refused(n):
    with pytest.raises(ValueError, match="n must be"):
        Simplex(n)
