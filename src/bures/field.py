"""The field: the Wasserstein gradient of a bound at draws of q, and what is known of its slope.

An estimator makes a field, a family projects it onto its tangent space. At a draw z the field is A s, the weighted
score of the log weight ℓ = log p − log q. Its slope S, the linear map that goes with it, is an operator here, so that a
family pays only for what it needs: all of S, its diagonal, or its action on a few vectors.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float

from bures import linalg
from bures.arrays import AnyArray, namespace


@runtime_checkable
class Operator(Protocol):
    """A d × d matrix by what can be asked of it."""

    def matrix(self) -> Float[AnyArray, "dim dim"]:
        """All of it."""
        ...

    def diagonal(self) -> Float[AnyArray, " dim"]:
        """Its diagonal."""
        ...

    def times(self, vectors: Float[AnyArray, "dim r"]) -> Float[AnyArray, "dim r"]:
        """Its symmetric part times some columns."""
        ...


class Dense(NamedTuple):
    """A matrix whose d × d numbers are there, as with Hessians."""

    S: Float[AnyArray, "dim dim"]

    def matrix(self) -> Float[AnyArray, "dim dim"]:
        return self.S

    def diagonal(self) -> Float[AnyArray, " dim"]:
        return namespace(self.S).diagonal(self.S)

    def times(self, vectors: Float[AnyArray, "dim r"]) -> Float[AnyArray, "dim r"]:
        return linalg.symmetrise(self.S) @ vectors


class Stein(NamedTuple):
    """The symmetric part of leftᵀ right: by Stein's lemma S = E[Σ⁻¹ (z − m) (A s)ᵀ], with a row for each draw."""

    left: Float[AnyArray, "n dim"]
    right: Float[AnyArray, "n dim"]

    def matrix(self) -> Float[AnyArray, "dim dim"]:
        return linalg.symmetrise(self.left.T @ self.right)

    def diagonal(self) -> Float[AnyArray, " dim"]:
        return (self.left * self.right).sum(axis=0)

    def times(self, vectors: Float[AnyArray, "dim r"]) -> Float[AnyArray, "dim r"]:
        return (self.left.T @ (self.right @ vectors) + self.right.T @ (self.left @ vectors)) / 2


class Path(NamedTuple):
    """leftᵀ right + precision / K: of draws without the part of the entropy, which is known; not symmetric."""

    left: Float[AnyArray, "n dim"]
    right: Float[AnyArray, "n dim"]
    precision: Operator  # of q
    K: int

    def matrix(self) -> Float[AnyArray, "dim dim"]:
        return self.left.T @ self.right + self.precision.matrix() / self.K

    def diagonal(self) -> Float[AnyArray, " dim"]:
        return (self.left * self.right).sum(axis=0) + self.precision.diagonal() / self.K

    def times(self, vectors: Float[AnyArray, "dim r"]) -> Float[AnyArray, "dim r"]:
        return Stein(self.left, self.right).times(vectors) + self.precision.times(vectors) / self.K


class Curvature(NamedTuple):
    """A H + B s sᵀ at each draw, to be averaged with weights: what a mixture asks of Hessians, for each component."""

    target: Any
    z: Float[AnyArray, "n dim"]
    score: Float[AnyArray, "n dim"]
    A: Float[AnyArray, " n"]  # over the number of draws
    B: Float[AnyArray, " n"]

    def weighted(self, weights: Float[AnyArray, " n"]) -> Float[AnyArray, "dim dim"]:
        """Σ w (A ∇²log p + B s sᵀ): the part of −∇²log q is the family's to add."""
        return self.target.weighted_hessian(weights * self.A, self.z) + (self.score.T * (weights * self.B)) @ self.score


class Field(NamedTuple):
    """The Wasserstein gradient of a bound at n draws of q: what an estimator reports, and a family projects.

    At a draw z it is A s, with s = ∇(log p − log q) and A the coefficient of the bound; its mean is `a`, its `slope`
    the operator S of the affine map z ↦ a + S (z − m) that is nearest to it.

    >>> import bures, jax, jax.numpy as jnp
    >>> target = bures.Target(lambda z: -jnp.sum((z - 1.0) ** 2), dim=2)
    >>> q, noise = bures.Gaussian.standard(2), jax.random.normal(jax.random.key(0), (100, 1, 2))
    >>> field = bures.Price(M=100).field(noise, q, target, bures.ELBO())
    >>> field.score.shape, field.slope.diagonal().round(6).tolist()  # Σ⁻¹ − 2 I
    ((100, 2), [-1.0, -1.0])
    >>> bures.MeanField().of(q).project(field).S.diagonal.round(6).tolist()
    [-1.0, -1.0]
    """

    noise: Float[AnyArray, "n dim"]  # the draws, where q is standard normal
    score: Float[AnyArray, "n dim"]  # ∇ℓ at the draws; zero where the weight is
    weight: Float[AnyArray, " n"]  # of each draw, with sum E[A]
    a: Float[AnyArray, " dim"]  # the mean of the field, E[A s]
    slope: Operator
    entropy_score: Float[AnyArray, " dim"]  # the part of `a` that −∇log q contributed; zero in expectation if K = 1
    mean_A: Float[AnyArray, ""]  # over all draws, so that it cannot vanish: at least 1/K²
    log_weights: Float[AnyArray, "M K"]
    bound: Float[AnyArray, ""]
    K: int
    variation: Float[AnyArray, " n"] | None = None  # F − g at each draw, over their number, where q has shares
    curvature: Curvature | None = None  # where there are Hessians and q has more than one slope


class Estimate(NamedTuple):
    """The gradient of a bound at q: the field, projected onto the tangent space of q's family.

    What S is depends on the family: a matrix for full Gaussians, a vector for diagonal ones.
    """

    a: Float[AnyArray, " dim"]
    S: Any  # of a matrix, a geometry that needs symmetry takes the symmetric part
    entropy_score: Float[AnyArray, " dim"]
    mean_A: Float[AnyArray, ""]
    log_weights: Float[AnyArray, "M K"]
    bound: Float[AnyArray, ""]
    K: int
    field: Field | None = None  # before its projection

    @classmethod
    def of(cls, field: Field, S: Any) -> "Estimate":
        """The field with its slope as a family has it."""
        return cls(field.a, S, field.entropy_score, field.mean_A, field.log_weights, field.bound, field.K, field)
