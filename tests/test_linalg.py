"""Factorisations: right, and one at a time under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import random_covariance

from bures import linalg


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), columns=st.integers(3, 6))
def test_cholesky_of_square_is_the_cholesky_factor(seed, columns):
    root = np.random.default_rng(seed).standard_normal((3, columns))
    chol = np.asarray(linalg.cholesky_of_square(jnp.asarray(root)))
    np.testing.assert_allclose(chol @ chol.T, root @ root.T, atol=1e-10)
    assert np.all(np.triu(chol, 1) == 0)
    assert np.all(np.diagonal(chol) > 0)


def test_cholesky_of_square_keeps_the_digits_that_the_product_loses():
    """Singular values 1 and 1e-9: the product has condition 1e18, beyond float64; the factor has not."""
    root = jnp.array([[1.0, 0.0], [1.0, 1e-9]])
    np.testing.assert_allclose(linalg.cholesky_of_square(root), root, rtol=1e-6)
    assert not np.all(np.isfinite(jnp.linalg.cholesky(root @ root.T)))


def test_cholesky_says_nan_where_there_is_none():
    assert np.any(np.isnan(linalg.cholesky(jnp.array([[1.0, 2.0], [2.0, 1.0]]))))


def test_polar_rotation_is_orthogonal_and_nearest():
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((3, 3)))
    rotation = linalg.polar_rotation(matrix)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    stretch = rotation.T @ matrix
    np.testing.assert_allclose(stretch, stretch.T, atol=1e-12)
    assert np.linalg.eigvalsh(stretch)[0] > 0


def test_inverse_and_symmetrise():
    chol = jnp.linalg.cholesky(jnp.asarray(random_covariance(0, 4)))
    np.testing.assert_allclose(linalg.inverse_lower(chol) @ chol, np.eye(4), atol=1e-12)
    matrix = jnp.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(linalg.symmetrise(matrix), (matrix + matrix.T) / 2)


@pytest.mark.parametrize(
    "factorise", [linalg.cholesky, linalg.eigh, linalg.singular_values, linalg.polar_rotation], ids=lambda f: "f"
)
def test_vmap_runs_them_in_sequence(factorise):
    """No batched LAPACK call: every matrix in the compiled program is a single one."""
    matrices = jnp.stack([jnp.asarray(random_covariance(seed, 3)) for seed in range(4)])
    batched = jax.vmap(factorise)(matrices)
    for i in range(4):
        pairs = zip(jax.tree.leaves(batched), jax.tree.leaves(factorise(matrices[i])), strict=True)
        assert all(np.allclose(many[i], one, atol=1e-12) for many, one in pairs)
    assert "while" in str(jax.make_jaxpr(jax.vmap(factorise))(matrices)) or "scan" in str(
        jax.make_jaxpr(jax.vmap(factorise))(matrices)
    )


@pytest.mark.parametrize("dim", [5, 130])
def test_triangular_products_are_the_products(dim):
    """In 130 dimensions by BLAS's triangular routines, in 5 and in JAX as they stand."""
    rng = np.random.default_rng(dim)
    chol, rows = np.tril(rng.standard_normal((dim, dim))) + 2 * dim * np.eye(dim), rng.standard_normal((7, dim))
    matrix = rng.standard_normal((dim, dim))
    matrix = matrix + matrix.T
    wanted = {
        "times": rows @ chol.T,
        "transposed": rows @ chol,
        "solved": rows @ np.linalg.inv(chol),
        "whitened": chol.T @ matrix @ chol,
    }
    for convert in (np.asarray, jnp.asarray):
        c, r, m = (convert(each) for each in (chol, rows, matrix))
        found = {
            "times": linalg.times_lower(c, r),
            "transposed": linalg.times_lower(c, r, transposed=True),
            "solved": linalg.solve_lower_transposed(c, r),
            "whitened": linalg.whiten_matrix(c, m),
        }
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-10, atol=1e-10, err_msg=name)
            assert isinstance(value, np.ndarray) is (convert is np.asarray)
