"""Full Gaussians N(m, Σ), kept as a mean and the Cholesky factor of Σ."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bures import linalg
from bures.arrays import AnyArray, namespace
from bures.check import as_array, check_floating, check_positive_integer, fail, is_traced
from bures.family import gaussian_moves as moves
from bures.family.approximation import AbstractApproximation
from bures.field import Dense, Estimate

_LARGEST_MATRIX = 50_000  # dimensions: a matrix of 20 GB


class Gaussian(AbstractApproximation):
    """A multivariate normal N(mean, chol cholᵀ).

    >>> q = Gaussian.from_moments(jnp.zeros(2), jnp.array([[4.0, 0.0], [0.0, 1.0]]))
    >>> q.chol.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """

    mean: Float[AnyArray, " dim"]
    chol: Float[AnyArray, "dim dim"]
    family: ClassVar[str] = "FullRank"
    is_dense: ClassVar[bool] = True

    def __init__(self, mean: Any, chol: Any):
        mean = check_floating("mean", mean, ndim=1)
        chol = cast("chol", check_floating("chol", chol, ndim=2), mean.dtype)
        if chol.shape != (mean.size, mean.size):
            raise fail("chol", f"of shape ({mean.size}, {mean.size}) to match mean", chol, "Check both shapes.")
        if not is_traced(chol) and (np.any(np.triu(chol, 1) != 0) or np.any(np.diagonal(chol) <= 0)):
            remedy = "For a covariance use Gaussian.from_moments(mean, covariance)."
            raise fail("chol", "lower triangular with a positive diagonal", chol, remedy)
        self.mean = mean
        self.chol = chol

    @classmethod
    def from_moments(cls, mean: Any, covariance: Any) -> "Gaussian":
        """The Gaussian of a given mean and (symmetric, positive definite) covariance."""
        mean = check_floating("mean", mean, ndim=1)
        given = check_floating("covariance", covariance, ndim=2)
        covariance = cast("covariance", given, mean.dtype)
        if covariance.shape != (mean.size, mean.size):
            raise fail("covariance", f"of shape ({mean.size}, {mean.size})", covariance, "Match it to mean.")
        if is_traced(covariance):
            return cls(mean, linalg.cholesky(covariance))
        # Concrete values are looked at with NumPy, which no transformation around this call can trace.
        values = np.asarray(covariance)
        if np.max(np.abs(values - values.T)) > 1e3 * np.finfo(values.dtype).eps * np.max(np.abs(values)):
            raise fail("covariance", "symmetric", covariance, "Pass (covariance + covariance.T) / 2.")
        try:
            return cls(mean, as_array(np.linalg.cholesky(values)))
        except np.linalg.LinAlgError as error:
            smallest = np.linalg.eigvalsh(values)[0]
            remedy = f"Its smallest eigenvalue is {smallest:.3g}; it must exceed zero."
            rounded = "" if given.dtype == mean.dtype else f" when rounded to {mean.dtype}, the dtype of mean"
            raise fail("covariance", f"positive definite{rounded}", given, remedy) from error

    @classmethod
    def unchecked(cls, mean: Float[AnyArray, " dim"], chol: Float[AnyArray, "dim dim"]) -> "Gaussian":
        """The Gaussian of arrays as they are, of JAX or NumPy: for steps, which ask `is_valid` themselves."""
        q = object.__new__(cls)
        object.__setattr__(q, "mean", mean)
        object.__setattr__(q, "chol", chol)
        return q

    @classmethod
    def standard(cls, dim: int, dtype: Any = None) -> "Gaussian":
        """The standard normal N(0, I) on R^dim."""
        check_matrix_dim(dim)
        if dtype is not None:
            check_dtype(dtype)
        return cls(as_array(np.zeros(dim, dtype or float)), as_array(np.eye(dim, dtype=dtype or float)))

    @property
    def label(self) -> str:
        return "full rank"

    @property
    def covariance(self) -> Float[Array, "dim dim"]:
        return self.chol @ self.chol.T

    @property
    def standard_deviations(self) -> Float[Array, " dim"]:
        return jnp.linalg.norm(self.chol, axis=-1)

    def marginal(self, indices: Any) -> "Gaussian":
        """The Gaussian of one coordinate, or of several.

        >>> Gaussian(jnp.arange(3.0), 2 * jnp.eye(3)).marginal(2).chol.tolist()
        [[2.0]]
        """
        kept = check_coordinates(indices, self.dim)
        return Gaussian(self.mean[kept], linalg.cholesky_of_square(self.chol[kept]))

    def min_eigenvalue(self) -> Float[AnyArray, ""]:
        """The smallest eigenvalue of the covariance."""
        return linalg.singular_values(self.chol)[-1] ** 2

    def is_valid(self) -> Bool[AnyArray, ""]:
        """Whether mean and factor are finite, and the factor's diagonal positive."""
        xp = namespace(self.chol)
        finite = xp.all(xp.isfinite(self.mean)) & xp.all(xp.isfinite(self.chol))
        return finite & xp.all(xp.diagonal(self.chol) > 0)

    def push(self, noise: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The map m + L ε from standard normal noise to draws."""
        return self.mean + linalg.times_lower(self.chol, noise.reshape(-1, self.dim)).reshape(noise.shape)

    def whiten(self, z: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The inverse of `push`: L⁻¹ (z − m)."""
        return self.whiten_shift(z - self.mean)

    def whiten_shift(self, shift: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """L⁻¹ times each row."""
        return linalg.solve_lower(self.chol, shift.reshape(-1, self.dim).T).T.reshape(shift.shape)

    def log_det_root(self) -> Float[AnyArray, ""]:
        """log det L."""
        xp = namespace(self.chol)
        return xp.log(xp.diagonal(self.chol)).sum()

    def precision(self) -> Dense:
        """Σ⁻¹."""
        inverse_chol = linalg.inverse_lower(self.chol)
        return Dense(inverse_chol.T @ inverse_chol)

    def precision_times_noise(self, noise: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        """Σ⁻¹ (z − m) = L⁻ᵀ ε."""
        return linalg.solve_lower_transposed(self.chol, noise)

    def as_gaussian(self) -> "Gaussian":
        """Itself."""
        return self

    def kl(self, other: AbstractApproximation) -> Float[Array, ""]:
        """KL(self ‖ other), in closed form; the other may be of another family of Gaussians.

        >>> p, q = Gaussian.standard(2), Gaussian(jnp.ones(2), jnp.eye(2))
        >>> round(float(p.kl(q)), 6)
        1.0
        """
        self._check_same_dim(other)
        ratio = other.whiten_shift(self.chol.T)
        shift = other.whiten(self.mean)
        log_det = other.log_det_root() - self.log_det_root()
        return (jnp.sum(ratio**2) + jnp.sum(shift**2) - self.dim) / 2 + log_det

    def bures_distance(self, other: Any) -> Float[Array, ""]:
        """The 2-Wasserstein (Bures–Wasserstein) distance between the two Gaussians, of whatever family.

        W₂² = ‖m₀ − m₁‖² + tr(Σ₀ + Σ₁ − 2 (Σ₀^½ Σ₁ Σ₀^½)^½), computed as the Procrustes distance
        min over rotations R of ‖L₀ − L₁ R‖, which does not cancel when the two are close.
        """
        self._check_same_dim(other)
        other = other.as_gaussian()
        rotation = linalg.polar_rotation(other.chol.T @ self.chol)
        covariance_part = jnp.sum((self.chol - other.chol @ rotation) ** 2)
        return jnp.sqrt(jnp.sum((self.mean - other.mean) ** 2) + covariance_part)

    # ---- The tangent space: maps z ↦ a + S (z − m) with a symmetric S

    def project(self, field):
        return Estimate.of(field, field.slope.matrix())

    def gradient_norm(self, estimate):
        xp = namespace(self.mean)
        along = linalg.times_lower(self.chol, linalg.symmetrise(estimate.S), transposed=True)
        return xp.sqrt((estimate.a**2).sum() + (along**2).sum())

    def transport(self, estimate, step_size, clip):
        mean, chol, clipped = moves.transport(self.mean, self.chol, estimate, step_size, clip)
        return Gaussian.unchecked(mean, chol), clipped

    def forward_backward(self, estimate, step_size, gradient):
        return Gaussian.unchecked(*moves.forward_backward(self.mean, self.chol, estimate, step_size, gradient))

    def first_frame(self):
        # A gradient step may take L through a singular matrix. A Cholesky factor has a positive diagonal; the signs of
        # the columns of the optimiser's own L are the frame.
        return jnp.ones_like(self.mean)

    def free(self, frame):
        return self.mean, self.chol * frame

    def free_gradient(self, estimate, frame):
        return estimate.K * estimate.a, jnp.tril(estimate.K * estimate.S @ self.chol) * frame

    def from_free(self, free, frame):
        mean, chol = free
        signs = jnp.where(jnp.diagonal(chol) < 0, -1, 1).astype(chol.dtype)
        return Gaussian.unchecked(mean, chol * signs), signs

    def whitened_state(self):
        return moves.WhitenedState.start(self.mean, self.chol)

    def whitened_step(self, estimate, state, settings):
        mean, chol, state, report = moves.whitened_step(self.mean, self.chol, estimate, state, settings)
        return Gaussian.unchecked(mean, chol), state, report


def check_coordinates(indices: Any, dim: int) -> np.ndarray:
    """One coordinate or several, as an array of integers."""
    kept = np.atleast_1d(np.asarray(indices))
    if kept.ndim != 1 or not np.issubdtype(kept.dtype, np.integer) or not np.all((-dim <= kept) & (kept < dim)):
        raise fail("indices", f"coordinates from 0 to {dim - 1}", indices, "Pass an integer, or a list of them.")
    if not kept.size or np.unique(kept % dim).size < kept.size:
        raise fail("indices", "different coordinates, one at the least", indices, "Name each of them once.")
    return kept


def check_matrix_dim(dim: Any) -> None:
    """A dimension whose d × d matrices a machine can hold."""
    check_positive_integer("dim", dim, "It is the number of coordinates.")
    if dim > _LARGEST_MATRIX:
        remedy = "In more dimensions use bures.LowRankGaussian, or family=bures.LowRank()."
        raise fail("dim", f"at most {_LARGEST_MATRIX}, for a d × d matrix", dim, remedy)


def check_dtype(dtype: Any) -> None:
    """The precision of an approximation."""
    try:
        known = np.dtype(dtype) in (np.float32, np.float64)
    except TypeError:
        known = False
    if not known:
        raise fail("dtype", "float32 or float64", dtype, "Leave it out for JAX's present one.")


def cast(argument: str, array: Array, dtype: Any) -> Array:
    """An array in the dtype of the mean; one that is too large for it is refused, not turned into infinity."""
    if is_traced(array) or array.dtype == dtype:
        return array.astype(dtype)
    values = np.asarray(array)
    if np.max(np.abs(values), initial=0) > float(np.finfo(dtype).max):
        remedy = "Pass mean in float64, or write the model in other units."
        raise fail(argument, f"finite in {dtype}, the dtype of mean", array, remedy)
    return as_array(values.astype(dtype))
