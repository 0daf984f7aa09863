"""Gaussians whose covariance is a diagonal and a few directions: N(m, D (I + V (Λ − I) Vᵀ) D), no d × d array anywhere.

D is a diagonal of scales, the columns of V are orthonormal, and Λ holds the variances along them in units of the
scales: above one for directions wider than the scales say, below one for narrower ones, and exactly one for columns
that are not in use. Without columns it is the mean-field family. Everything costs O(d r) or O(d r²).
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bures import linalg
from bures.arrays import AnyArray, namespace
from bures.check import check_flag, check_floating, fail, is_traced
from bures.family import low_rank_moves as moves
from bures.family.approximation import AbstractApproximation
from bures.family.gaussian import Gaussian, cast, check_coordinates
from bures.family.gaussian_moves import proximal
from bures.field import Estimate
from bures.threads import one_blas_thread

_LARGEST_MATRIX = 4000  # dimensions up to which a d × d array is made on request


class DiagonalPlus(NamedTuple):
    """diag(diagonal) + columns · diag(weights) · columnsᵀ, as an operator."""

    diagonal_part: Float[AnyArray, " dim"]
    columns: Float[AnyArray, "dim r"]
    weights: Float[AnyArray, " r"]

    def matrix(self) -> Float[AnyArray, "dim dim"]:
        return namespace(self.columns).diag(self.diagonal_part) + (self.columns * self.weights) @ self.columns.T

    def diagonal(self) -> Float[AnyArray, " dim"]:
        return self.diagonal_part + (self.columns**2) @ self.weights

    def times(self, vectors: Float[AnyArray, "dim k"]) -> Float[AnyArray, "dim k"]:
        along = self.weights[:, None] * (self.columns.T @ vectors)
        return self.diagonal_part[:, None] * vectors + self.columns @ along


class Slope(NamedTuple):
    """What a low-rank Gaussian keeps of the slope S: its diagonal, and S D V."""

    diagonal: Float[AnyArray, " dim"]
    along: Float[AnyArray, "dim r"]


class LowRankGaussian(AbstractApproximation):
    """N(mean, D (I + V (Λ − I) Vᵀ) D) with D = diag(scale), V = `basis`, Λ = diag(variances).

    The columns of `basis` are orthonormal; a variance of exactly one is that of a column that is not in use. Without
    columns it is mean field. It has no d × d array; `covariance` and `as_gaussian` make one where asked, up to 4000
    dimensions.

    >>> q = LowRankGaussian(jnp.zeros(3), jnp.ones(3), jnp.eye(3)[:, :1], jnp.array([4.0]))
    >>> q.standard_deviations.tolist(), q.rank
    ([2.0, 1.0, 1.0], 1)
    """

    mean: Float[AnyArray, " dim"]
    scale: Float[AnyArray, " dim"]
    basis: Float[AnyArray, "dim r"]
    variances: Float[AnyArray, " r"]
    grows: bool = eqx.field(static=True)  # whether steps on the host may add columns
    family: ClassVar[str] = "LowRank"

    def __init__(self, mean: Any, scale: Any, basis: Any = None, variances: Any = None, *, grows: bool = False):
        mean = check_floating("mean", mean, ndim=1)
        check_flag("grows", grows, "Whether fits may take more columns.")
        d = mean.size
        basis = np.zeros((d, 0), mean.dtype) if basis is None else basis
        variances = np.zeros(0, mean.dtype) if variances is None else variances
        scale, basis, variances = (
            cast(name, check_floating(name, value, ndim=ndim), mean.dtype)
            for name, value, ndim in (("scale", scale, 1), ("basis", basis, 2), ("variances", variances, 1))
        )
        if scale.shape != (d,):
            raise fail("scale", f"of shape ({d},) to match mean", scale, "Pass one scale for each coordinate.")
        if basis.shape != (d, variances.size) or variances.size > d:
            raise fail("basis", f"of shape ({d}, {variances.size}), at most {d} columns", basis, "Match variances.")
        if not is_traced(scale, basis, variances):
            _check_values(*(np.asarray(part) for part in (scale, basis, variances)))
        self.mean, self.scale, self.basis, self.variances, self.grows = mean, scale, basis, variances, grows

    @classmethod
    def unchecked(cls, mean: Any, scale: Any, basis: Any, variances: Any, grows: bool) -> "LowRankGaussian":
        """The Gaussian of arrays as they are, of JAX or NumPy: for steps, which ask `is_valid` themselves."""
        q = object.__new__(cls)
        parts = zip(
            ("mean", "scale", "basis", "variances", "grows"), (mean, scale, basis, variances, grows), strict=True
        )
        for name, value in parts:
            object.__setattr__(q, name, value)
        return q

    def replaced(self, **parts: Any) -> "LowRankGaussian":
        """The same with other parts, unchecked."""
        own = {name: getattr(self, name) for name in ("mean", "scale", "basis", "variances", "grows")}
        return LowRankGaussian.unchecked(**(own | parts))

    @property
    def capacity(self) -> int:
        """The number of columns, in use or not."""
        return self.variances.shape[-1]

    @property
    def rank(self) -> int:
        """The number of columns in use."""
        return int(np.sum(np.asarray(self.variances) != 1))

    @property
    def label(self) -> str:
        return f"low rank {self.rank}" if self.capacity else "mean field"

    # ---- Draws and densities

    def stretch(self, x: Float[AnyArray, "*n dim"], power: float) -> Float[AnyArray, "*n dim"]:
        """(I + V (Λ − I) Vᵀ) to a power, times each row."""
        return x + ((x @ self.basis) * (self.variances**power - 1)) @ self.basis.T

    def push(self, noise: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The map m + D R^½ ε from standard normal noise to draws, with R = I + V (Λ − I) Vᵀ."""
        return self.mean + self.scale * self.stretch(noise, 0.5)

    def whiten(self, z: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The inverse of `push`."""
        return self.whiten_shift(z - self.mean)

    def whiten_shift(self, shift: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """R^(−½) D⁻¹ times each row."""
        return self.stretch(shift / self.scale, -0.5)

    def log_det_root(self) -> Float[AnyArray, ""]:
        """log det D + ½ log det Λ."""
        xp = namespace(self.mean)
        return xp.log(self.scale).sum() + xp.log(self.variances).sum() / 2

    def precision(self) -> DiagonalPlus:
        """Σ⁻¹ = D⁻¹ (I + V (Λ⁻¹ − I) Vᵀ) D⁻¹."""
        return DiagonalPlus(self.scale**-2, self.basis / self.scale[:, None], 1 / self.variances - 1)

    def precision_times_noise(self, noise: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        """Σ⁻¹ (z − m) = D⁻¹ R^(−½) ε."""
        return self.stretch(noise, -0.5) / self.scale

    def whiten_scores(self, scores: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        """Gradients in z as gradients in the noise: R^½ D times each row."""
        return self.stretch(self.scale * scores, 0.5)

    # ---- Moments

    @property
    def standard_deviations(self) -> Float[Array, " dim"]:
        return self.scale * jnp.sqrt(1 + self.basis**2 @ (self.variances - 1))

    @property
    def covariance(self) -> Float[Array, "dim dim"]:
        """The d × d matrix, where that is not too large."""
        self._refuse_matrix("covariance")
        columns = self.basis * self.scale[:, None]
        return DiagonalPlus(self.scale**2, columns, self.variances - 1).matrix()

    def marginal(self, indices: Any) -> Gaussian:
        """The Gaussian of one coordinate, or of several."""
        kept = check_coordinates(indices, self.dim)
        if kept.size > _LARGEST_MATRIX:
            raise fail(
                "indices", f"at most {_LARGEST_MATRIX} coordinates", kept, "Draw from the approximation instead."
            )
        columns = self.basis[kept] * self.scale[kept][:, None]
        covariance = DiagonalPlus(self.scale[kept] ** 2, columns, self.variances - 1).matrix()
        return Gaussian.from_moments(self.mean[kept], covariance)

    def as_gaussian(self) -> Gaussian:
        """The same distribution with a d × d factor."""
        self._refuse_matrix("as_gaussian")
        with one_blas_thread(self.dim):
            root = self.scale[:, None] * self.stretch(np.eye(self.dim, dtype=self.mean.dtype), 0.5)
            return Gaussian(self.mean, linalg.cholesky_of_square(root))

    def _refuse_matrix(self, name: str) -> None:
        if self.dim > _LARGEST_MATRIX:
            remedy = "Use standard_deviations, marginal(indices), or the parts scale, basis and variances."
            raise fail(name, f"asked for in at most {_LARGEST_MATRIX} dimensions", self.dim, remedy)

    def kl(self, other: AbstractApproximation) -> Float[Array, ""]:
        """KL(self ‖ other), in closed form, and in factors where both have them.

        >>> narrow, wide = (LowRankGaussian(jnp.zeros(2), jnp.full(2, scale)) for scale in (1.0, 2.0))
        >>> round(float(narrow.kl(wide)), 4), round(float(narrow.kl(wide.as_gaussian())), 4)
        (0.6363, 0.6363)
        """
        self._check_same_dim(other)
        if not isinstance(other, LowRankGaussian):
            return self.as_gaussian().kl(other)
        ratio = self.scale / other.scale
        own, theirs = self.variances - 1, 1 / other.variances - 1
        columns = ratio[:, None] * self.basis
        between = other.basis.T @ columns
        trace = (
            jnp.sum(ratio**2)
            + jnp.sum(columns**2 @ own)
            + jnp.sum((other.basis * ratio[:, None]) ** 2 @ theirs)
            + theirs @ between**2 @ own
        )
        shift = other.whiten(self.mean)
        log_det = other.log_det_root() - self.log_det_root()
        return (trace + jnp.sum(shift**2) - self.dim) / 2 + log_det

    def bures_distance(self, other: Any) -> Float[Array, ""]:
        """The 2-Wasserstein (Bures–Wasserstein) distance, by d × d factors: see `Gaussian.bures_distance`."""
        self._check_same_dim(other)
        return self.as_gaussian().bures_distance(other)

    # ---- Validity

    def is_valid(self) -> Bool[AnyArray, ""]:
        """Whether all parts are finite, scales and variances positive."""
        xp = namespace(self.mean)
        finite = xp.all(xp.isfinite(self.mean)) & xp.all(xp.isfinite(self.scale)) & xp.all(xp.isfinite(self.basis))
        positive = xp.all(self.scale > 0) & xp.all(self.variances > 0)
        return finite & positive & xp.all(xp.isfinite(self.variances))

    def min_eigenvalue(self) -> Float[AnyArray, ""]:
        """A bound below the smallest eigenvalue of the covariance."""
        narrowest = self.variances.min() if self.capacity else 1.0
        return self.scale.min() ** 2 * namespace(self.mean).minimum(narrowest, 1)

    # ---- The tangent space: changes of the covariance by a diagonal and by V Yᵀ + Y Vᵀ

    def can(self, move: str) -> bool:
        """Whether the family has this move: all of them without columns, all but the proximal step with."""
        return move != "forward_backward" or self.capacity == 0

    def project(self, field):
        return Estimate.of(field, Slope(field.slope.diagonal(), field.slope.times(self.scale[:, None] * self.basis)))

    def gradient_norm(self, estimate):
        xp = namespace(self.mean)
        variances = self.scale**2 * (1 + self.basis**2 @ (self.variances - 1))
        return xp.sqrt((estimate.a**2).sum() + (estimate.S.diagonal**2 * variances).sum())

    def transport(self, estimate, step_size, clip):
        scale, columns, weights, clipped = moves.transport(self, estimate, step_size, clip)
        basis, variances = moves.spectrum(columns, weights)
        mean = self.mean + step_size * estimate.a
        return self.replaced(mean=mean, scale=scale, basis=basis, variances=variances), clipped

    def forward_backward(self, estimate, step_size, gradient):
        half = self.scale * (1 + step_size * (estimate.S.diagonal - self.scale**-2))
        scale = namespace(half).sqrt(proximal(half**2, step_size))
        return self.replaced(mean=self.mean + step_size * gradient, scale=scale)

    def first_frame(self):
        return moves.Frame.of(self)

    def free(self, frame):
        return self.mean, self.scale * frame.signs, frame.columns

    def free_gradient(self, estimate, frame):
        # ∂/∂U of the bound is K S U with U in the span of D V, of which S D V is known.
        along = estimate.S.along @ (self.basis.T @ (frame.columns / self.scale[:, None]))
        scale = estimate.K * estimate.S.diagonal * self.scale * frame.signs
        return estimate.K * estimate.a, scale, estimate.K * along * frame.kinds

    def from_free(self, free, frame):
        mean, scale, columns = free
        signs = jnp.where(scale < 0, -1, 1).astype(scale.dtype)
        rescaled = frame.columns * (scale * signs / self.scale)[:, None]
        columns = jnp.where(frame.kinds > 0, columns, rescaled)
        basis, variances = moves.spectrum(columns / (scale * signs)[:, None], frame.kinds)
        moved = self.replaced(mean=mean, scale=scale * signs, basis=basis, variances=variances)
        return moved, moves.Frame(signs, columns, frame.kinds)

    def whitened_state(self):
        return moves.LowRankState.start(self)

    def whitened_step(self, estimate, state, settings):
        return moves.whitened_step(self, estimate, state, settings)


def _check_values(scale: np.ndarray, basis: np.ndarray, variances: np.ndarray) -> None:
    if np.any(scale <= 0):
        raise fail("scale", "positive", float(scale.min()), "It holds a scale for each coordinate.")
    if np.any(variances <= 0):
        raise fail("variances", "positive", float(variances.min()), "They are variances along the columns of basis.")
    off = np.max(np.abs(basis.T @ basis - np.eye(variances.size)), initial=0.0)
    if off > 1e4 * np.finfo(basis.dtype).eps:
        raise fail("basis", "of orthonormal columns", f"columns off by {off:.2g}", "Pass numpy.linalg.qr(columns)[0].")
