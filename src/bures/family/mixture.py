"""Mixtures of Gaussians, kept as the logarithms of their shares, means and Cholesky factors.

A component may have a tail: a small share of a Student-t of the same place and shape, which bounds the weights of draws
far out. Moving component c by a field v_c is the field r_c v_c on q, where r_c = π_c q_c / q is the part of q at a
point that is the component's; so what a component needs is an average over its own draws, E_{q_c} f = E_q[(r_c/π_c) f],
to which every draw of q contributes.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bures import linalg
from bures.arrays import AnyArray, log_sum_exp, namespace, normal_quantiles_back, on_host
from bures.check import as_array, check_floating, check_real, fail, is_traced
from bures.family import mixture_moves as moves
from bures.family.approximation import LOG_2PI, AbstractApproximation
from bures.family.gaussian import Gaussian, cast, check_coordinates
from bures.field import Estimate, Field

FREEDOM = 4  # degrees of freedom of a tail: its radius is then a closed form of two uniform numbers
_EXTRA = 3  # numbers of noise besides those of a Gaussian: which component, and the radius in a tail


def _check_tail(tail: Any, count: int, dtype: Any) -> np.ndarray:
    """One share for each component, or one for all."""
    given = np.asarray(tail)
    if given.shape not in ((), (count,)) or given.dtype.kind not in "fiu":
        raise fail("tail", f"a share, or one for each of {count} components", tail, "For example 0.05.")
    for share in given.ravel():
        check_real("tail", float(share), 0, 1, "It is a share, e.g. 0.05.")
    return np.broadcast_to(given, (count,)).astype(dtype)


class GaussianMixture(AbstractApproximation):
    """The mixture Σ_c π_c ((1 − τ_c) N(m_c, Σ_c) + τ_c t₄(m_c, Σ_c)), τ the `tail`.

    >>> q = GaussianMixture(np.log([0.5, 0.5]), np.array([[-2.0], [2.0]]), np.ones((2, 1, 1)))
    >>> q.mean.tolist(), q.covariance.round(6).tolist()
    ([0.0], [[5.0]])
    """

    log_shares: Float[AnyArray, " components"]
    means: Float[AnyArray, "components dim"]
    chols: Float[AnyArray, "components dim dim"]
    tail: Float[AnyArray, " components"]  # the share of each component that is in its tail
    family: ClassVar[str] = "Mixture"
    is_dense: ClassVar[bool] = True
    has_shares: ClassVar[bool] = True

    def __init__(self, log_shares: Any, means: Any, chols: Any, tail: Any = 0.0):
        means = check_floating("means", means, ndim=2)
        count, dim = means.shape
        log_shares = cast("log_shares", check_floating("log_shares", log_shares, ndim=1), means.dtype)
        chols = cast("chols", check_floating("chols", chols, ndim=3), means.dtype)
        if log_shares.shape != (count,):
            raise fail("log_shares", f"one number for each of {count} means", log_shares, "Check both shapes.")
        if chols.shape != (count, dim, dim):
            raise fail("chols", f"of shape ({count}, {dim}, {dim}) to match means", chols, "Check both shapes.")
        if not is_traced(chols):
            diagonals = np.diagonal(chols, axis1=1, axis2=2)
            if np.any(np.triu(np.asarray(chols), 1) != 0) or np.any(diagonals <= 0):
                raise fail("chols", "lower triangular with positive diagonals", chols, "Use numpy.linalg.cholesky.")
        if not is_traced(tail):
            tail = as_array(_check_tail(tail, count, means.dtype))
        self.log_shares = log_shares - log_sum_exp(log_shares, axis=0)
        self.means, self.chols, self.tail = means, chols, tail

    @classmethod
    def unchecked(cls, log_shares: Any, means: Any, chols: Any, tail: Any) -> "GaussianMixture":
        """The mixture of arrays as they are, of JAX or NumPy: for steps, which ask `is_valid` themselves."""
        q = object.__new__(cls)
        for name, value in (("log_shares", log_shares), ("means", means), ("chols", chols), ("tail", tail)):
            object.__setattr__(q, name, value)
        return q

    @classmethod
    def of_gaussians(cls, gaussians: Any, shares: Any) -> "GaussianMixture":
        """The mixture of some Gaussians, by their shares."""
        means, chols = (np.stack([np.asarray(part) for part in parts]) for parts in zip(*gaussians, strict=True))
        return cls.unchecked(np.log(np.asarray(shares, means.dtype)), means, chols, np.zeros(len(means), means.dtype))

    @property
    def dim(self) -> int:
        return self.means.shape[-1]

    @property
    def noise_dim(self) -> int:
        return self.dim + _EXTRA

    @property
    def num_components(self) -> int:
        return self.means.shape[-2]

    @property
    def components(self) -> tuple[Gaussian, ...]:
        """The Gaussians, without their tails."""
        return tuple(self.component(c) for c in range(self.num_components))

    def component(self, c: int) -> Gaussian:
        """One of the Gaussians, without its tail."""
        return Gaussian.unchecked(self.means[c], self.chols[c])

    @property
    def shares(self) -> Float[AnyArray, " components"]:
        return namespace(self.log_shares).exp(self.log_shares)

    @property
    def label(self) -> str:
        count = self.num_components
        share = 0.0 if is_traced(self.tail) else float(self.shares @ self.tail)
        tail = f" with {100 * share:.0f}% in tails" if share > 0.005 else ""
        return f"mixture of {count} Gaussian{'s' if count > 1 else ''}{tail}"

    # ---- Moments

    @property
    def mean(self) -> Float[AnyArray, " dim"]:
        return self.shares @ self.means

    @property
    def covariance(self) -> Float[AnyArray, "dim dim"]:
        root = self._root()
        return root @ root.T

    @property
    def standard_deviations(self) -> Float[Array, " dim"]:
        return jnp.linalg.norm(self._root(), axis=-1)

    def _root(self) -> Float[AnyArray, "dim n"]:
        """A matrix whose product with its transpose is the covariance."""
        xp, roots = namespace(self.means), self.shares**0.5
        spread = ((self.means - self.mean) * roots[:, None]).T
        roots = roots * (1 + self.tail * (FREEDOM / (FREEDOM - 2) - 1)) ** 0.5
        return xp.concatenate([*(roots[c] * self.chols[c] for c in range(len(roots))), spread], axis=1)

    def as_gaussian(self) -> Gaussian:
        """The Gaussian of the same mean and covariance."""
        return Gaussian.unchecked(self.mean, linalg.cholesky_of_square(self._root()))

    def marginal(self, indices: Any) -> "GaussianMixture":
        """The mixture of one coordinate, or of several.

        >>> q = GaussianMixture(np.log([0.3, 0.7]), np.eye(2), np.stack([np.eye(2), 2 * np.eye(2)]))
        >>> q.marginal(1).chols.tolist()
        [[[1.0]], [[2.0]]]
        """
        kept = check_coordinates(indices, self.dim)
        chols = jnp.stack([linalg.cholesky_of_square(jnp.asarray(chol)[kept]) for chol in self.chols])
        return GaussianMixture(self.log_shares, self.means[:, kept], chols, self.tail)

    def entropy(self) -> Float[Array, ""]:
        raise NotImplementedError("A mixture's entropy has no closed form: average −q.log_prob over q.sample(key, n).")

    def min_eigenvalue(self) -> Float[AnyArray, ""]:
        """The smallest eigenvalue of a component's covariance."""
        xp = namespace(self.chols)
        smallest = [linalg.singular_values(self.chols[c])[-1] for c in range(self.num_components)]
        return xp.stack(smallest).min() ** 2

    def is_valid(self) -> Bool[AnyArray, ""]:
        xp = namespace(self.chols)
        finite = xp.all(xp.isfinite(self.tail))
        for part in (self.log_shares, self.means, self.chols):
            finite = finite & xp.all(xp.isfinite(part))
        return finite & xp.all(xp.diagonal(self.chols, axis1=1, axis2=2) > 0)

    # ---- Draws and densities

    def push(self, noise: Float[AnyArray, "*n noise"]) -> Float[AnyArray, "*n dim"]:
        """Draws from noise: its first number chooses a component, the next two the radius where that is in a tail."""
        shape, noise = noise.shape[:-1], noise.reshape(-1, noise.shape[-1])
        xp = namespace(noise)
        chosen, place = moves.choose_components(self.shares, normal_quantiles_back(noise[:, 0], log=False))
        squares = -2 * normal_quantiles_back(noise[:, 1:_EXTRA], log=True).sum(axis=1)
        radius = xp.where(place < self.tail[chosen], xp.sqrt(FREEDOM / squares), 1)
        x = noise[:, _EXTRA:] * radius[:, None]
        z = xp.zeros_like(x)
        for c in range(self.num_components):
            if on_host(x):
                rows = np.flatnonzero(chosen == c)
                z[rows] = self.means[c] + x[rows] @ self.chols[c].T
            else:
                z = jnp.where((chosen == c)[:, None], self.means[c] + x @ self.chols[c].T, z)
        return z.reshape(*shape, self.dim)

    def log_components(self, z: Float[AnyArray, "n dim"]) -> Float[AnyArray, "components n"]:
        """The log density of each component, without its share."""
        xp = namespace(z, self.means)
        return xp.stack([self._log_component(c, self._squares(c, z)) for c in range(self.num_components)])

    def _squares(self, c: int, z: Float[AnyArray, "n dim"]) -> Float[AnyArray, " n"]:
        noise = (z - self.means[c]) @ linalg.inverse_lower(self.chols[c]).T
        return (noise**2).sum(axis=-1)

    def _log_component(self, c: int, squares: Float[AnyArray, " n"]) -> Float[AnyArray, " n"]:
        if on_host(self.tail) and self.tail[c] == 0:
            return self._log_gaussian(c, squares)
        gaussian, student = self.log_parts(c, squares)
        xp = namespace(squares)
        return xp.logaddexp(xp.log1p(-self.tail[c]) + gaussian, xp.log(self.tail[c]) + student)

    def log_parts(self, c: int, squares: Float[AnyArray, " n"]) -> tuple[Float[AnyArray, " n"], Float[AnyArray, " n"]]:
        """The log densities of a component's Gaussian and of its tail, by the squared whitened distance."""
        student = moves.log_student(squares, self.dim, FREEDOM) - self.component(c).log_det_root()
        return self._log_gaussian(c, squares), student

    def _log_gaussian(self, c: int, squares: Float[AnyArray, " n"]) -> Float[AnyArray, " n"]:
        return -squares / 2 - self.dim * LOG_2PI / 2 - self.component(c).log_det_root()

    def log_density(self, z: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n"]:
        flat = z.reshape(-1, self.dim)
        return log_sum_exp(self.log_shares[:, None] + self.log_components(flat), axis=0).reshape(z.shape[:-1])

    def log_prob_of_noise(self, noise: Float[AnyArray, "*n noise"]) -> Float[AnyArray, "*n"]:
        return self.log_density(self.push(noise))

    def precision_times_noise(self, noise: Float[AnyArray, "n noise"]) -> Float[AnyArray, "n dim"]:
        """−∇log q at the draws of this noise."""
        z = self.push(noise)
        return self.entropy_scores(z, self.responsibilities(z))

    def responsibilities(self, z: Float[AnyArray, "n dim"]) -> Float[AnyArray, "components n"]:
        """r_c = π_c q_c / q: whose each point is."""
        joint = self.log_shares[:, None] + self.log_components(z)
        return namespace(joint).exp(joint - log_sum_exp(joint, axis=0))

    def entropy_scores(
        self, z: Float[AnyArray, "n dim"], responsibilities: Float[AnyArray, "components n"]
    ) -> Float[AnyArray, "n dim"]:
        """−∇log q = Σ_c r_c Σ_c⁻¹ (z − m_c), less in a tail."""
        return sum(self._score_of(c, z) * responsibilities[c][:, None] for c in range(self.num_components))

    def _score_of(self, c: int, z: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        """−∇log q_c."""
        inverse = linalg.inverse_lower(self.chols[c])
        noise = (z - self.means[c]) @ inverse.T
        scores = noise @ inverse
        if on_host(self.tail) and self.tail[c] == 0:
            return scores
        xp = namespace(z)
        squares = (noise**2).sum(axis=-1)
        student = self.log_parts(c, squares)[1]
        in_tail = xp.exp(xp.log(self.tail[c]) + student - self._log_component(c, squares))
        flatter = (FREEDOM + self.dim) / (FREEDOM + squares)
        return scores * (1 - in_tail + in_tail * flatter)[:, None]

    # ---- The tangent space: a map z ↦ a_c + S_c (z − m_c) for each component, and changes of the shares

    def project(self, field: Field) -> Estimate:
        z = self.push(field.noise)
        responsibilities = self.responsibilities(z)
        own = responsibilities / self.shares[:, None]  # E_{q_c} f = E_q[own f]
        weights = own * field.weight
        slopes = moves.slopes(self, z, weights, field.score, responsibilities, own, field.curvature)
        variation = field.K * (own @ field.variation)
        return Estimate.of(field, variation - self.shares @ variation)._replace(
            a=weights @ field.score,
            S=moves.MixtureSlope(slopes, variation - self.shares @ variation),
            entropy_score=moves.centres(self, z, weights),
            mean_A=weights.sum(axis=1),
        )

    def gradient_norm(self, estimate):
        xp = namespace(self.means)
        parts = [
            (estimate.a**2).sum(axis=1),
            *((S @ L) ** 2 for S, L in zip(estimate.S.slopes, self.chols, strict=True)),
        ]
        squares = parts[0] + xp.stack([part.sum() for part in parts[1:]])
        return xp.sqrt(self.shares @ (squares + (estimate.S.shares / estimate.K) ** 2))

    def transport(self, estimate, step_size, clip):
        return moves.transport(self, estimate, step_size, clip)

    def first_frame(self):
        return jnp.ones_like(self.means)

    def free(self, frame):
        return self.log_shares, self.means, self.chols * frame[:, None, :]

    def free_gradient(self, estimate, frame):
        return moves.free_gradient(self, estimate, frame)

    def from_free(self, free, frame):
        log_shares, means, chols = free
        signs = jnp.where(jnp.diagonal(chols, axis1=1, axis2=2) < 0, -1, 1).astype(chols.dtype)
        log_shares = log_shares - log_sum_exp(log_shares, axis=0)
        return GaussianMixture.unchecked(log_shares, means, chols * signs[:, None, :], self.tail), signs

    def whitened_state(self):
        return moves.MixtureState.start(self)

    def whitened_step(self, estimate, state, settings):
        return moves.whitened_step(self, estimate, state, settings)
