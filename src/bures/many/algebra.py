"""Small matrices, one for each fit, in NumPy's stacked LAPACK calls.

These are as quick as a loop in C; JAX's batched ones on a CPU are not. A row that is not finite does not harm others.
"""

import numpy as np
from jaxtyping import Float

Vectors = Float[np.ndarray, "fits dim"]
Matrices = Float[np.ndarray, "fits dim dim"]


def times(matrices: Matrices, vectors: Vectors) -> Vectors:
    """A matrix times a vector, for each fit."""
    return np.matmul(matrices, vectors[:, :, None])[:, :, 0]


def symmetrised(matrices: Matrices) -> Matrices:
    return (matrices + matrices.mT) / 2


def eigh(matrices: Matrices) -> tuple[Vectors, Matrices]:
    """Eigenvalues in ascending order and eigenvectors; NaN for a matrix that is not finite."""
    sound = np.isfinite(matrices).all(axis=(1, 2))
    values, vectors = np.linalg.eigh(np.where(sound[:, None, None], matrices, 0))
    return np.where(sound[:, None], values, np.nan), vectors


def cholesky_of_square(roots: Float[np.ndarray, "fits dim n"]) -> Matrices:
    """The lower Cholesky factor of `root rootᵀ` by QR; NaN where the root is not finite."""
    upper = np.linalg.qr(roots.mT, mode="r")
    signs = np.where(np.diagonal(upper, axis1=1, axis2=2) < 0, -1, 1).astype(roots.dtype)
    return (upper * signs[:, :, None]).mT


def are_valid(means: Vectors, chols: Matrices) -> np.ndarray:
    """Whether each is a Gaussian: finite, with a positive diagonal."""
    finite = np.isfinite(means).all(axis=1) & np.isfinite(chols).all(axis=(1, 2))
    return finite & (np.diagonal(chols, axis1=1, axis2=2) > 0).all(axis=1)


def log_determinants(chols: Matrices) -> Float[np.ndarray, " fits"]:
    """log det L."""
    return np.log(np.diagonal(chols, axis1=1, axis2=2)).sum(axis=1)
