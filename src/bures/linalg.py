"""Dense d × d factorisations, one at a time: by LAPACK on the host, by XLA inside compiled programs.

Under `vmap` they run in sequence instead of as one batched LAPACK call: batches of small factorisations are
slow in JAX on CPU and have been seen to hang on two cores. What cannot be factorised gives NaN, on the host too.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float

from bures.arrays import AnyArray, namespace, on_host


def one_at_a_time[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in sequence under `vmap`; its derivatives are those of the function itself."""
    in_sequence = sequential_vmap(function)

    @jax.custom_jvp
    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        return in_sequence(*arguments)

    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped  # pyright: ignore[reportReturnType]


def _or_on_host(host: Callable) -> Callable[[Callable], Callable]:
    """Let another function do the work where all arguments are NumPy's; NaN where LAPACK gives up."""

    def decorate(function: Callable) -> Callable:
        compiled = one_at_a_time(function)

        @functools.wraps(function)
        def wrapped(*arguments: Any) -> Any:
            if not on_host(*arguments):
                return compiled(*arguments)
            try:
                return host(*arguments)
            except np.linalg.LinAlgError:
                shapes = jax.eval_shape(function, *arguments)
                return jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), shapes)

        return wrapped

    return decorate


@_or_on_host(np.linalg.cholesky)
def cholesky(matrix: Float[AnyArray, "dim dim"]) -> Float[AnyArray, "dim dim"]:
    """Lower Cholesky factor; NaN where the matrix is not positive definite."""
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


@_or_on_host(lambda matrix: tuple(np.linalg.eigh(matrix)))
def eigh(matrix: Float[AnyArray, "dim dim"]) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, "dim dim"]]:
    """Eigenvalues in ascending order and the eigenvectors, of a symmetric matrix."""
    return tuple(jnp.linalg.eigh(matrix, symmetrize_input=False))


@_or_on_host(lambda matrix: np.linalg.svd(matrix, compute_uv=False))
def singular_values(matrix: Float[AnyArray, "dim dim"]) -> Float[AnyArray, " dim"]:
    """Singular values in descending order."""
    return jnp.linalg.svd(matrix, compute_uv=False)


@one_at_a_time
def polar_rotation(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The orthogonal factor of the polar decomposition."""
    left, _, right = jnp.linalg.svd(matrix)
    return left @ right


def _solve_lower_on_host(chol: np.ndarray, right: np.ndarray) -> np.ndarray:
    return _blas("trsm", chol.dtype.char)(1.0, chol, right, lower=1)


@functools.cache
def _blas(name: str, kind: str) -> Any:
    from scipy.linalg import blas  # here: the import takes a tenth of a second

    return blas.get_blas_funcs(name, dtype=kind)


_TRIANGULAR = 100  # from this dimension on, half of the work is worth a call of its own


def _is_triangular_work(chol: AnyArray, rows: AnyArray) -> bool:
    same = on_host(chol, rows) and chol.dtype == rows.dtype and chol.dtype.char in "fd"
    return same and rows.ndim == 2 and chol.shape[0] >= _TRIANGULAR


def times_lower(
    chol: Float[AnyArray, "dim dim"], rows: Float[AnyArray, "*n dim"], *, transposed: bool = False
) -> Float[AnyArray, "*n dim"]:
    """`chol` or its transpose times each row, `chol` lower triangular: on the host without the half that is zero."""
    if not _is_triangular_work(chol, rows):
        return rows @ (chol if transposed else chol.T)
    # Fortran's order: what it sees of our rows is their transpose, and of a lower factor an upper one.
    return _blas("trmm", chol.dtype.char)(1.0, chol.T, rows.T, lower=0, trans_a=0 if transposed else 1).T


def solve_lower_transposed(
    chol: Float[AnyArray, "dim dim"], rows: Float[AnyArray, "n dim"]
) -> Float[AnyArray, "n dim"]:
    """`chol⁻ᵀ` times each row."""
    if not _is_triangular_work(chol, rows):
        return rows @ inverse_lower(chol)
    return _blas("trsm", chol.dtype.char)(1.0, chol.T, rows.T, lower=0).T


def whiten_matrix(chol: Float[AnyArray, "dim dim"], matrix: Float[AnyArray, "dim dim"]) -> Float[AnyArray, "dim dim"]:
    """`cholᵀ matrix chol`, of a symmetric matrix."""
    if not _is_triangular_work(chol, matrix):
        return chol.T @ matrix @ chol
    return times_lower(chol, times_lower(chol, matrix, transposed=True).T, transposed=True)


@_or_on_host(_solve_lower_on_host)
def solve_lower(chol: Float[AnyArray, "dim dim"], right: Float[AnyArray, "dim n"]) -> Float[AnyArray, "dim n"]:
    """`chol⁻¹ right` for a lower triangular `chol`."""
    return jax.scipy.linalg.solve_triangular(chol, right, lower=True)


def _upper_on_host(root: np.ndarray) -> np.ndarray:
    dim = root.shape[0]
    if dim <= _SMALL and root.dtype.char in "fd" and root.shape[1] >= dim:
        packed, _, _, _ = _geqrf(root.dtype.char)(root.T)
        upper = packed[:dim] * _triangle(dim)
    else:
        upper = np.linalg.qr(root.T, mode="r")
    return (upper * np.where(np.diagonal(upper) < 0, -1, 1).astype(root.dtype)[:, None]).T


_SMALL = 20  # up to this dimension LAPACK itself takes a fifth of the time that NumPy's wrapper does


@functools.cache
def _geqrf(kind: str) -> Any:
    from scipy.linalg import lapack  # here: the import takes a tenth of a second

    return lapack.get_lapack_funcs("geqrf", dtype=kind)


@functools.cache
def _triangle(dim: int) -> np.ndarray:
    return np.triu(np.ones((dim, dim), bool))


@_or_on_host(_upper_on_host)
def cholesky_of_square(root: Float[AnyArray, "dim n"]) -> Float[AnyArray, "dim dim"]:
    """Lower Cholesky factor of `root rootᵀ` by QR, without forming (and squaring the condition of) the product."""
    upper = jnp.linalg.qr(root.T, mode="r")
    signs = jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(root.dtype)
    return (upper * signs[:, None]).T


@_or_on_host(lambda matrix: tuple(np.linalg.qr(matrix)))
def qr(matrix: Float[AnyArray, "dim n"]) -> tuple[Float[AnyArray, "dim n"], Float[AnyArray, "n n"]]:
    """Orthonormal columns that span those of a tall matrix, and the triangle that gives them back."""
    basis, triangle = jnp.linalg.qr(matrix)
    return basis, triangle


def inverse_lower(chol: Float[AnyArray, "dim dim"]) -> Float[AnyArray, "dim dim"]:
    """Inverse of a lower triangular matrix."""
    return solve_lower(chol, namespace(chol).eye(chol.shape[0], dtype=chol.dtype))


def symmetrise(matrix: Float[AnyArray, "dim dim"]) -> Float[AnyArray, "dim dim"]:
    """The symmetric part."""
    return (matrix + matrix.T) / 2
