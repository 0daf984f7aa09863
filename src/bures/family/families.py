"""The families to choose from: `FullRank`, `MeanField`, `LowRank`, `Mixture`. Each makes members from any Gaussian."""

from typing import Any

import equinox as eqx
import numpy as np

from bures import linalg
from bures.arrays import Module, namespace
from bures.check import check_positive_integer, fail, is_traced
from bures.family.approximation import AbstractApproximation
from bures.family.gaussian import Gaussian
from bures.family.low_rank import LowRankGaussian
from bures.family.low_rank_moves import most_columns, worth
from bures.family.mixture import GaussianMixture
from bures.threads import one_blas_thread

FIRST_COLUMNS = 8  # of a low-rank Gaussian to begin with, where the rank is left to it


class AbstractFamily(Module):
    """A manifold of distributions to fit: what `family=` takes."""

    def of(self, q: AbstractApproximation) -> AbstractApproximation:
        """The member that is nearest to an approximation."""
        raise NotImplementedError

    def standard(self, dim: int, dtype: Any = None) -> AbstractApproximation:
        """The standard normal."""
        raise NotImplementedError


class FullRank(AbstractFamily):
    """Gaussians N(m, Σ) with any covariance: d (d + 3) / 2 numbers, and steps of order d³.

    >>> q = FullRank().standard(2)
    >>> type(q).__name__, q.covariance.tolist()
    ('Gaussian', [[1.0, 0.0], [0.0, 1.0]])
    """

    def of(self, q):
        return q.as_gaussian() if isinstance(q, LowRankGaussian | GaussianMixture) else q

    def standard(self, dim, dtype=None):
        return Gaussian.standard(dim, dtype)


class _Scaled(AbstractFamily):
    """Gaussians with a diagonal and some columns."""

    def columns(self, dim: int, used: int = 0) -> int:
        """Of a member to begin with, where so many are in use."""
        raise NotImplementedError

    @property
    def grows(self) -> bool:
        """Whether the fit may add columns."""
        return False

    def of(self, q):
        columns = self.columns(q.dim, _columns_in_use(q))
        if isinstance(q, LowRankGaussian):
            kept = namespace(q.variances).argsort(-worth(q.variances), stable=True)[:columns]
            mean, scale, basis, variances = q.mean, q.scale, q.basis[:, kept], q.variances[kept]
        else:
            mean, scale, basis, variances = _nearest(q, columns)
        basis, variances = _padded(basis, variances, columns)
        return LowRankGaussian.unchecked(mean, scale, basis, variances, self.grows)

    def standard(self, dim, dtype=None):
        one = np.ones(dim, np.dtype(dtype or float))
        basis, variances = _padded(np.zeros((dim, 0), one.dtype), one[:0], self.columns(dim))
        return LowRankGaussian(np.zeros_like(one), one, basis, variances, grows=self.grows)


class MeanField(_Scaled):
    """Gaussians N(m, D²) with independent coordinates: 2 d numbers, and steps of order d.

    Of a correlated Gaussian the best has scale² = 1 / diag(Σ⁻¹), narrower than its standard deviations:

    >>> q = Gaussian.from_moments(np.zeros(2), np.array([[1.0, 0.6], [0.6, 1.0]]))
    >>> MeanField().of(q).standard_deviations.round(3).tolist()
    [0.8, 0.8]
    """

    def columns(self, dim, used=0):
        return 0


def _check_rank(rank: Any) -> int | None:
    if rank is None:
        return None
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 0:
        raise fail("rank", "a whole number, or None", rank, "Leave it out: the fit finds the rank by itself.")
    return int(rank)


class LowRank(_Scaled):
    """Gaussians with covariance D (I + V (Λ − I) Vᵀ) D: scales, and a few directions wider or narrower than they say.

    By default the rank is found by the fit: a direction is added while it is worth more than a thousandth of a nat
    beyond its noise, and dropped when it is not. A compiled loop (`num_steps`, `jit`, `vmap`) cannot change the shape
    of its arrays: there the rank is at most 8, or the one given. It is never above half of the dimensions. Steps are of
    order d (r + n)² for n draws.

    >>> import bures, jax
    >>> target = bures.Target(lambda z: -(z @ z - 0.2 * z.sum() ** 2) / 2, dim=4)  # of covariance I + 11ᵀ
    >>> fit = bures.fit(target, key=jax.random.key(0), family=LowRank())
    >>> fit.marginal([0, 1]).covariance.round(2).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    rank: int | None = eqx.field(static=True, default=None, converter=_check_rank)

    @property
    def grows(self) -> bool:
        return self.rank is None

    def columns(self, dim, used=0):
        by_itself = min(used + FIRST_COLUMNS, most_columns(dim))
        return min(by_itself if self.rank is None else self.rank, dim // 2)


def _columns_in_use(q: Any) -> int:
    """Under `jit` none can be told from the others, and none can be added."""
    if not isinstance(q, LowRankGaussian):
        return 0
    return max(q.capacity - FIRST_COLUMNS, 0) if is_traced(q.variances) else q.rank


def _check_components(count: Any) -> int | None:
    if count is None:
        return None
    return check_positive_integer("max_components", count, "Leave it out: the fit finds the number by itself.")


class Mixture(AbstractFamily):
    """Mixtures of Gaussians Σ_c π_c N(m_c, Σ_c), for targets that one Gaussian does not cover.

    The number of components is found by the fit, up to `max_components`: one is added where fresh draws and the search
    for modes show mass that is missed, and kept if it helps beyond noise. Where weights still degenerate after that, on
    narrow, curved targets say, `fit` goes on by the ELBO with up to 200 components and a million evaluations:
    `max_evaluations` bounds it. A compiled loop (`num_steps`, `jit`, `vmap`) moves the components that `init` has.

    >>> import bures, jax
    >>> fit = bures.fit(bures.models.eggbox(), key=jax.random.key(0), family=Mixture())
    >>> fit.approximation.num_components, fit.diagnostics.ness > 0.97
    (4, True)
    """

    max_components: int | None = eqx.field(static=True, default=None, converter=_check_components)

    def of(self, q):
        if isinstance(q, GaussianMixture):
            if self.max_components is not None and q.num_components > self.max_components:
                remedy = "Raise max_components, or leave it out."
                raise fail("init", f"of at most {self.max_components} components", q.num_components, remedy)
            return q
        q = q.as_gaussian()
        xp = namespace(q.mean)
        zero = xp.zeros((1,), q.mean.dtype)
        return GaussianMixture.unchecked(zero, q.mean[None], q.chol[None], zero)

    def standard(self, dim, dtype=None):
        return self.of(Gaussian.standard(dim, dtype))


class _Own(AbstractFamily):
    """The family of a member that the user has defined: as it is."""

    def of(self, q):
        return q


def family_of(q: AbstractApproximation) -> AbstractFamily:
    """The family that an approximation is a member of."""
    if isinstance(q, Gaussian):
        return FullRank()
    if isinstance(q, GaussianMixture):
        return Mixture()
    if isinstance(q, LowRankGaussian):
        return LowRank(None if q.grows else q.capacity)
    return _Own()


def _nearest(q: Any, columns: int) -> tuple[Any, Any, Any, Any]:
    """Scales from the diagonal of the precision, as mean field has them, and the directions worth most beside them."""
    xp = namespace(q.mean)
    with one_blas_thread(q.dim):
        scale = 1 / xp.sqrt((linalg.inverse_lower(q.chol) ** 2).sum(axis=0))
        if not columns:
            return q.mean, scale, q.chol[:, :0], q.mean[:0]
        root = q.chol / scale[:, None]
        variances, vectors = linalg.eigh(root @ root.T)
    kept = xp.argsort(-worth(variances))[:columns]
    return q.mean, scale, vectors[:, kept], variances[kept]


def _padded(basis: Any, variances: Any, columns: int) -> tuple[Any, Any]:
    """With columns that are not in use up to a number of them."""
    xp, missing = namespace(basis), columns - variances.shape[-1]
    if missing <= 0:
        return basis, variances
    unit = xp.eye(basis.shape[0], columns, dtype=basis.dtype)
    filled = linalg.qr(xp.concatenate([basis, unit], axis=1))[0][:, :columns] if variances.size else unit
    return filled, xp.concatenate([variances, xp.ones(missing, variances.dtype)])
