"""Dense d x d factorisations, one at a time.

Under `vmap` they run in sequence instead of as one batched LAPACK call: batches of small factorisations are
slow in JAX on CPU and have been seen to hang on two cores.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float


def one_at_a_time[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in sequence under `vmap`; its derivatives are those of the function itself."""
    in_sequence = sequential_vmap(function)

    @jax.custom_jvp
    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        return in_sequence(*arguments)

    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped  # pyright: ignore[reportReturnType]


@one_at_a_time
def cholesky(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Lower Cholesky factor; NaN where the matrix is not positive definite."""
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


@one_at_a_time
def eigh(matrix: Float[Array, "dim dim"]) -> tuple[Float[Array, " dim"], Float[Array, "dim dim"]]:
    """Eigenvalues in ascending order and the eigenvectors, of a symmetric matrix."""
    return tuple(jnp.linalg.eigh(matrix, symmetrize_input=False))


@one_at_a_time
def singular_values(matrix: Float[Array, "dim dim"]) -> Float[Array, " dim"]:
    """Singular values in descending order."""
    return jnp.linalg.svd(matrix, compute_uv=False)


@one_at_a_time
def polar_rotation(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The orthogonal factor of the polar decomposition."""
    left, _, right = jnp.linalg.svd(matrix)
    return left @ right


@one_at_a_time
def solve_lower(chol: Float[Array, "dim dim"], right: Float[Array, "dim n"]) -> Float[Array, "dim n"]:
    """`chol⁻¹ right` for a lower triangular `chol`."""
    return jax.scipy.linalg.solve_triangular(chol, right, lower=True)


@one_at_a_time
def cholesky_of_square(root: Float[Array, "dim n"]) -> Float[Array, "dim dim"]:
    """Lower Cholesky factor of `root rootᵀ` by QR, without forming (and squaring the condition of) the product."""
    upper = jnp.linalg.qr(root.T, mode="r")
    signs = jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(root.dtype)
    return (upper * signs[:, None]).T


def inverse_lower(chol: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Inverse of a lower triangular matrix."""
    return solve_lower(chol, jnp.eye(chol.shape[0], dtype=chol.dtype))


def symmetrise(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The symmetric part."""
    return (matrix + matrix.T) / 2
