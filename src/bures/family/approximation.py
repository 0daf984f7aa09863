"""What every variational family offers: an approximation q that can be drawn from, evaluated, projected on and moved.

A family is a manifold of distributions. Its members know how draws come from standard normal noise, how to project the
field of a bound onto the tangent space at q (`project`), and how to move along the projection, in one way for each
geometry that they can serve. A geometry asks whether its move is there and refuses the family by name if not.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from bures.arrays import AnyArray, Module, namespace, squared_norms
from bures.check import check_key, check_points, check_positive_integer, fail
from bures.field import Estimate, Field, Operator

LOG_2PI = math.log(2 * math.pi)


class StepReport(NamedTuple):
    """What a step reports besides the new approximation."""

    clipped: Bool[AnyArray, ""]  # whether a safeguard acted
    step_size: Float[AnyArray, ""] | float
    gap: Float[AnyArray, ""] | float = math.inf  # nats below the optimum, where the geometry can tell
    grad_norm: Float[AnyArray, ""] | None = None  # of the gradient, where the step has it at hand


class AbstractApproximation(Module):
    """A member of a variational family: draws are `push(noise)` of standard normal noise."""

    mean: eqx.AbstractVar[Float[AnyArray, " dim"]]
    family: ClassVar[str]  # its name in messages
    is_dense: ClassVar[bool] = False  # whether it has d × d arrays
    has_shares: ClassVar[bool] = False  # whether it has parts whose shares of the mass change, too

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers that a draw is made of."""
        return self.dim

    @property
    def label(self) -> str:
        """The family in plain words, for people."""
        return self.family

    def parts(self) -> dict[str, AnyArray]:
        """Its arrays by name."""
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields if not field.metadata.get("static", False)}

    # ---- Draws and densities

    def push(self, noise: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The map from standard normal noise to draws."""
        raise NotImplementedError

    def whiten(self, z: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The inverse of `push`."""
        raise NotImplementedError

    def whiten_shift(self, shift: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n dim"]:
        """The same for differences of points, of which the mean is not taken off."""
        raise NotImplementedError

    def log_det_root(self) -> Float[AnyArray, ""]:
        """Half the log determinant of the covariance."""
        raise NotImplementedError

    def precision(self) -> Operator:
        """Σ⁻¹."""
        raise NotImplementedError

    def precision_times_noise(self, noise: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        """Σ⁻¹ (z − m) at z = `push(noise)`: the score of −log q there."""
        raise NotImplementedError

    def sample(self, key: Key[Array, ""], n: int) -> Float[Array, "n dim"]:
        """`n` independent draws."""
        check_key(key)
        check_positive_integer("n", n, "It is the number of draws.")
        return self.push(jax.random.normal(key, (n, self.noise_dim), self.mean.dtype))

    def log_prob(self, z: Any) -> Float[Array, "*n"]:
        """Log density at `z`, with any leading axes."""
        return self.log_density(check_points("z", z, self.dim, self.mean.dtype))

    def log_density(self, z: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n"]:
        """The same for arrays of JAX or NumPy as they are."""
        return self.log_prob_of_noise(self.whiten(z))

    def log_prob_of_noise(self, noise: Float[AnyArray, "*n dim"]) -> Float[AnyArray, "*n"]:
        """Log density at `push(noise)`, without a solve."""
        return -squared_norms(noise) / 2 - self.log_det_root() - self.dim * LOG_2PI / 2

    def entropy(self) -> Float[Array, ""]:
        """Differential entropy in nats."""
        return self.log_det_root() + self.dim * (1 + LOG_2PI) / 2

    def _check_same_dim(self, other: Any) -> None:
        if not isinstance(other, AbstractApproximation) or other.dim != self.dim:
            received = other.mean if isinstance(other, AbstractApproximation) else other
            raise fail("other", f"a Gaussian on R^{self.dim}", received, "Compare Gaussians of one dimension.")
        if other.has_shares:
            remedy = "For the Gaussian of the same moments pass other.as_gaussian()."
            raise fail("other", "a Gaussian: for others there is no closed form", other.label, remedy)

    # ---- Validity

    def is_valid(self) -> Bool[AnyArray, ""]:
        """Whether it is a distribution: all of it finite, and its log determinant, too."""
        xp = namespace(self.mean)
        finite = xp.isfinite(self.log_det_root())
        for part in self.parts().values():
            finite = finite & xp.all(xp.isfinite(part))
        return finite

    def min_eigenvalue(self) -> Float[AnyArray, ""]:
        """The smallest eigenvalue of the covariance, or a bound below it where that costs less."""
        raise NotImplementedError

    # ---- The tangent space, and moves along it

    def project(self, field: Field) -> Estimate:
        """The orthogonal projection of the field onto the tangent space."""
        raise NotImplementedError

    def gradient_norm(self, estimate: Estimate) -> Float[AnyArray, ""]:
        """The norm of the projected field in L²(q)."""
        raise NotImplementedError

    def transport(
        self, estimate: Estimate, step_size: Any, clip: tuple[Any, Any]
    ) -> tuple["AbstractApproximation", Bool[AnyArray, ""]]:
        """Pushed forward by z ↦ z + step_size (a + S (z − m)), the factors clamped to `clip`; and whether they were."""
        raise NotImplementedError

    def forward_backward(
        self, estimate: Estimate, step_size: Any, gradient: Float[AnyArray, " dim"]
    ) -> "AbstractApproximation":
        """A forward step on the potential, of mean `gradient`, and the proximal step of the entropy."""
        raise NotImplementedError

    def first_frame(self) -> PyTree:
        """What free parameters have that q has not, such as signs."""
        raise NotImplementedError

    def free(self, frame: PyTree) -> PyTree:
        """Parameters for gradient steps in a vector space."""
        raise NotImplementedError

    def free_gradient(self, estimate: Estimate, frame: PyTree) -> PyTree:
        """The gradient of the bound in them."""
        raise NotImplementedError

    def from_free(self, free: PyTree, frame: PyTree) -> tuple["AbstractApproximation", PyTree]:
        """The member that free parameters stand for, and their frame."""
        raise NotImplementedError

    def whitened_state(self) -> PyTree:
        """What a `Whitened` geometry remembers, before the first step."""
        raise NotImplementedError

    def whitened_step(
        self, estimate: Estimate, state: Any, settings: Any
    ) -> tuple["AbstractApproximation", PyTree, StepReport]:
        """A step of the `Whitened` geometry with these settings."""
        raise NotImplementedError

    def can(self, move: str) -> bool:
        """Whether the family has this move."""
        return getattr(type(self), move) is not getattr(AbstractApproximation, move)


def in_double(q: Any) -> Any:
    """The same approximation in NumPy's double precision."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), q)
