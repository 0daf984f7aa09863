"""Geometries: how an estimate of the gradient at q becomes the next Gaussian.

A geometry has a state (an optimiser's moments; nothing for most), `init(q) -> state`, and a step
`(estimate, q, state) -> (next q, next state, StepReport)`. All of them increase the bound.
"""

import functools
import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PyTree

from bures import linalg
from bures.arrays import AnyArray, Module, choose, namespace
from bures.check import check_real, fail
from bures.estimator import Estimate
from bures.gaussian import Gaussian
from bures.objective import AbstractObjective

if TYPE_CHECKING:
    import optax

_STEP_REMEDY = "It is the length of a step, e.g. 0.1."


class StepReport(NamedTuple):
    """What a step reports besides the new Gaussian."""

    clipped: Bool[AnyArray, ""]  # whether a safeguard acted
    step_size: Float[AnyArray, ""] | float
    gap: Float[AnyArray, ""] | float = math.inf  # nats below the optimum, where the geometry can tell


def _number(name: str, high: float, remedy: str, *, low: float = 0.0, **options: Any) -> Any:
    """A field that is a number in (low, high], converted to a float when it is given."""
    return eqx.field(converter=lambda value: check_real(name, value, low, high, remedy, open_low=True), **options)


def _check_clip(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise fail("clip", "a pair (low, high)", value, "The paper uses (0.1, 1.5).")
    low = check_real("clip[0]", value[0], 0, 1, "A step must keep the covariance positive.", open_low=True)
    return low, check_real("clip[1]", value[1], 1, 1e300, "It must allow the identity.")


class AbstractGeometry(Module):
    """Turns an estimate of the gradient of a bound at q into the next Gaussian.

    One that is written for NumPy arrays as well as JAX's says so by `runs_on_host`: then `bures.fit` need not compile.
    """

    runs_on_host: ClassVar[bool] = False

    def check(self, objective: AbstractObjective) -> None:
        """Raise a ValueError with the reason if this geometry cannot serve the objective."""

    def init(self, q: Gaussian) -> PyTree:
        """The state before the first step."""
        return ()

    def next_objective(self, objective: AbstractObjective, state: PyTree) -> AbstractObjective:
        """The objective whose gradient the next step takes: by default the one to be optimised."""
        return objective

    def step(self, estimate: Estimate, q: Gaussian, state: PyTree) -> tuple[Gaussian, PyTree, StepReport]:
        """The next Gaussian."""
        raise NotImplementedError


class BuresWasserstein(AbstractGeometry):
    """Forward Euler on the Bures–Wasserstein manifold (Algorithm 1 of the paper).

    m ← m + η a and Σ ← H Σ H with H = I + η S, the eigenvalues of H clamped to `clip`. The gradient is the
    coordinatewise one (not K times it), so the paper's step sizes apply as they are.
    """

    step_size: float = _number("step_size", 1e300, _STEP_REMEDY)
    clip: tuple[float, float] = eqx.field(default=(0.1, 1.5), converter=_check_clip)
    runs_on_host: ClassVar[bool] = True

    def step(self, estimate, q, state):
        xp = namespace(q.mean)
        mean = q.mean + self.step_size * estimate.a
        change = self.step_size * linalg.symmetrise(estimate.S)
        low, high = self.clip

        def clamp():
            values, vectors = linalg.eigh(change)
            clamped = xp.clip(1 + values, low, high)
            return (vectors * clamped) @ vectors.T, xp.any(clamped != 1 + values)

        def pass_through():
            return xp.eye(q.dim, dtype=change.dtype) + change, xp.asarray(False)

        # The Frobenius norm bounds the spectrum: most steps need no eigendecomposition to know the clamp is idle.
        # A change that is not finite passes through too, to be seen as such.
        largest = xp.linalg.norm(change)
        idle = (largest <= xp.minimum(1 - low, high - 1)) | ~xp.isfinite(largest)
        factor, clipped = choose(idle, pass_through, clamp)
        chol = linalg.cholesky_of_square(factor @ q.chol)
        return Gaussian.unchecked(mean, chol), state, StepReport(clipped, self.step_size)


class ForwardBackward(AbstractGeometry):
    """Forward–backward Gaussian VI (FB-GVI, Diao et al., 2023), for the ELBO.

    A forward step on the potential V = −log p, then the proximal step of the entropy in closed form:
    m ← m − η E∇V, Σ½ = M Σ M with M = I − η E∇²V, Σ ← ½ (Σ½ + 2η I + (Σ½ (Σ½ + 4η I))^½).

    `control_variate=True` keeps the zero-mean score of q in E∇V, which the published method leaves out: the same
    expectation with far less variance near the optimum.
    """

    step_size: float = _number("step_size", 1e300, _STEP_REMEDY)
    control_variate: bool = eqx.field(static=True, default=False)
    runs_on_host: ClassVar[bool] = True

    def check(self, objective):
        if not objective.has_separable_entropy:
            raise fail(
                "geometry",
                "able to serve the objective; ForwardBackward needs the entropy to separate from the potential",
                objective,
                "Use objective=ELBO(), or geometry=BuresWasserstein(step_size) for importance-weighted bounds.",
            )

    def step(self, estimate, q, state):
        eta, xp = self.step_size, namespace(q.mean)
        identity = xp.eye(q.dim, dtype=q.mean.dtype)
        gradient = estimate.a if self.control_variate else estimate.a - estimate.entropy_score
        inverse_chol = linalg.inverse_lower(q.chol)
        hessian = linalg.symmetrise(estimate.S) - inverse_chol.T @ inverse_chol
        half = (identity + eta * hessian) @ q.chol
        values, vectors = linalg.eigh(half @ half.T)
        values = xp.maximum(values, 0)
        values = (values + 2 * eta + xp.sqrt(values * (values + 4 * eta))) / 2
        chol = linalg.cholesky_of_square(vectors * xp.sqrt(values))
        return Gaussian.unchecked(q.mean + eta * gradient, chol), state, StepReport(xp.asarray(False), eta)


class Euclidean(AbstractGeometry):
    """Plain gradients in (m, L) through an optax optimiser, with gradient-norm clipping.

    The gradient is (K a, tril(K S L)). With `Reparameterised` that is the paper's baseline, with `Price` or `Stein`
    the fair one it lacks.

    **Arguments:**

    - `optimizer`: a learning rate for Adam, or any `optax.GradientTransformation`.
    - `max_grad_norm`: the gradient's norm is clipped to this (the paper: 1.0); None for no clipping.
    """

    learning_rate: float
    max_grad_norm: float | None
    optimizer: Any  # an optax.GradientTransformation: a pair of functions

    def __init__(self, optimizer: "float | optax.GradientTransformation" = 0.01, max_grad_norm: float | None = 1.0):
        if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
            self.optimizer, self.learning_rate = optimizer, 1.0
        else:
            remedy = "Pass a learning rate for Adam, e.g. 0.01, or an optax optimiser."
            self.learning_rate = check_real("optimizer", optimizer, 0, 1e300, remedy, open_low=True)
            self.optimizer = _adam()
        if max_grad_norm is not None:
            max_grad_norm = check_real("max_grad_norm", max_grad_norm, 0, 1e300, "The paper uses 1.0.", open_low=True)
        self.max_grad_norm = max_grad_norm

    @property
    def is_adam(self) -> bool:
        """Whether the optimiser is our own Adam, known by its learning rate alone."""
        return self.optimizer is _adam()

    def init(self, q):
        # A gradient step may take L through a singular matrix. Gaussian keeps the Cholesky factor, whose diagonal
        # is positive; the signs of the columns of the optimiser's own L are kept here.
        return jnp.ones_like(q.mean), self.optimizer.init((q.mean, q.chol))

    def step(self, estimate, q, state):
        signs, moments = state
        free = (q.mean, q.chol * signs)
        gradient = (estimate.K * estimate.a, jnp.tril(estimate.K * estimate.S @ q.chol) * signs)
        norm = jnp.sqrt(sum(jnp.sum(part**2) for part in gradient))
        limit = jnp.inf if self.max_grad_norm is None else self.max_grad_norm
        loss_gradient = jax.tree.map(lambda part: -part * jnp.minimum(1, limit / norm), gradient)
        update, moments = self.optimizer.update(loss_gradient, moments, free)
        mean, chol = jax.tree.map(lambda part, change: part + self.learning_rate * change, free, update)
        signs = jnp.where(jnp.diagonal(chol) < 0, -1, 1).astype(chol.dtype)
        return Gaussian.unchecked(mean, chol * signs), (signs, moments), StepReport(norm > limit, self.learning_rate)


@functools.cache
def _adam() -> "optax.GradientTransformation":
    """Adam without its learning rate, made once so that compiled loops are shared between learning rates."""
    import optax

    return optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


class WhitenedState(NamedTuple):
    """What is remembered of earlier gradients."""

    a: Float[AnyArray, " dim"]  # their running average
    S: Float[AnyArray, "dim dim"]
    size: Float[AnyArray, ""]  # the running average of their squared norm
    mean_A: Float[AnyArray, ""]
    delay: Float[AnyArray, ""]  # 1 / gain − 1
    gap: Float[AnyArray, ""]


class Whitened(AbstractGeometry):
    """Bures–Wasserstein steps in the coordinates u = L⁻¹ (z − m), where q is standard normal: nothing to tune.

    In those coordinates the gradient is â = Lᵀ a / E[A] and Ŝ = Lᵀ S L / E[A]: the whitening makes the step
    equivariant under affine maps of the target, the division makes it independent of K. Let x = 1 − s for each
    eigenvalue s of Ŝ (for a Gaussian target, its precision as q sees it), and y = gain · (x − 1).

    - The variance is divided by 1 + y where y > 0, which is exact for a Gaussian target however wide q is, and
      multiplied by 1 − y where y < 0, Newton's iteration for the inverse of x. That is even in log σ, so that noise
      in x does not make σ drift.
    - The mean moves to where Newton's method goes from the A-weighted mean of the draws: by gain times
      E_A[u] + E_A[∇log p] / max(1 + y, 1), within `trust_radius`. For K = 1 the first term is zero in expectation, near
      the optimum the sum is â, and far from it, where the best of K draws are nearer the target than q is, it goes
      where they are.
    - From a place so far that this step would be many trust radii long, draws see a slope and hardly any curvature, and
      the noise in Ŝ is in proportion to the slope: the variance is then narrowed in proportion less.
    - A tenth of the mean's step stays uncertain, and is added to the covariance in its direction. Else a wide q would
      shrink to the target's scale before its mean is there, and walk the rest of the way in steps of that scale.
    - The gain is 1 / (1 + delay). The delay grows when a gradient points away from the average of those before it, by
      one, or by one over the gradient's norm where that is more than one: far from the optimum it is not noise that
      turns it. The delay falls by half the cosine when it does not point away: steps are full while gradients agree,
      and average the noise away once only noise is left (Kesten, 1958).
    - While `gap` is large the gradient is that of a larger α if the weights of the tuples are degenerate: see
      `bures.objective.Tempered`.

    Norms are those of the Fisher metric, in nats: ½ ‖â‖² + ¼ ‖Ŝ‖². The `gap` reported, how far the optimum still is,
    is the squared norm of the average gradient plus what noise and gain leave.

    **Arguments**, none of which needs to be set; they are fields so that each can be tried without:

    - `trust_radius`: the longest step of the mean, in standard deviations of q.
    - `stale`: the average gradient is forgotten when its squared norm is this many times that of a new gradient: it was
        taken where the gradient was different.
    - `memory`: the least weight of a new squared norm in the running average of squared norms.
    - `far`: how many trust radii a step of the mean may be long before the variance is narrowed less.
    - `doubt`: the share of a step of the mean that is added to the covariance.
    """

    trust_radius: float = _number("trust_radius", 1e300, "It bounds a mean step, e.g. 2.0.", default=2.0)
    stale: float = _number("stale", 1e300, "It is a ratio of squared norms, e.g. 2.0.", default=2.0)
    memory: float = _number("memory", 1, "It is the least weight of a new squared norm, e.g. 0.1.", default=0.1)
    far: float = _number("far", 1e300, "It counts trust radii, e.g. 3.0.", default=3.0)
    doubt: float = _number("doubt", 1, "It is a share of a mean step, e.g. 0.1.", low=-1e-300, default=0.1)
    runs_on_host: ClassVar[bool] = True

    def init(self, q):
        xp = namespace(q.mean)
        zero, infinity = (xp.asarray(value, q.mean.dtype) for value in (0, np.inf))
        return WhitenedState(xp.zeros_like(q.mean), xp.zeros_like(q.chol), zero, zero, zero, infinity)

    def next_objective(self, objective, state):
        return objective.tempered(namespace(state.gap).minimum(state.gap, 1))

    def step(self, estimate, q, state):
        xp = namespace(q.mean)
        # By the mean of this step alone the quotient would be biased: draws of large weight are in both parts.
        memory = 1 / (1 + state.delay)
        mean_A = xp.where(state.mean_A > 0, state.mean_A + memory * (estimate.mean_A - state.mean_A), estimate.mean_A)
        a, S = estimate.a / mean_A, linalg.symmetrise(estimate.S) / mean_A
        shift, whitened = gradient = _whiten(a, S, q)
        average = _whiten(state.a, state.S, q)
        size, average_size = _nats(gradient, gradient), _nats(average, average)
        stale = (average_size > self.stale * size) | (average_size == 0)
        cosine = _nats(gradient, average) / xp.where(stale, 1, xp.sqrt(size * average_size))
        change = xp.where(cosine < 0, 1 / xp.sqrt(xp.maximum(size, 1)), -cosine / 2)
        delay = xp.where(stale, state.delay, xp.maximum(state.delay + change, 0))
        gain = 1 / (1 + delay)

        values, vectors = linalg.eigh(whitened)
        # The bound comes after the gain: noise that is bounded on one side only would leave a bias at any gain.
        excess = xp.maximum(-gain * values, -1)
        widening, narrowing = 1 + xp.maximum(-excess, 0), 1 + xp.maximum(excess, 0)
        centre = q.chol.T @ estimate.entropy_score / mean_A
        move = gain * (vectors.T @ centre + (vectors.T @ (shift - centre)) / narrowing)
        length = xp.linalg.norm(move)
        clipped = (length > self.trust_radius) | (values[-1] > 1)
        overshoot = length / self.trust_radius
        narrowing = 1 + (narrowing - 1) / xp.maximum(overshoot - self.far, 1)
        move = vectors @ (move / xp.maximum(overshoot, 1))
        mean = q.mean + q.chol @ move
        root = xp.column_stack([vectors * xp.sqrt(widening / narrowing), self.doubt * move])
        chol = linalg.cholesky_of_square(q.chol @ root)

        share = xp.where(stale, 1, gain)
        a, S = state.a + share * (a - state.a), state.S + share * (S - state.S)
        average = _whiten(a, S, q)
        size = state.size + xp.maximum(share, self.memory) * (size - state.size)
        gap = _nats(average, average) + gain * size / 2
        return (
            Gaussian.unchecked(mean, chol),
            WhitenedState(a, S, size, mean_A, delay, gap),
            StepReport(clipped, gain, gap),
        )


def _whiten(a: Float[AnyArray, " dim"], S: Float[AnyArray, "dim dim"], q: Gaussian) -> tuple[AnyArray, AnyArray]:
    """The affine map z ↦ a + S (z − m) in the coordinates where q is standard normal."""
    return q.chol.T @ a, q.chol.T @ S @ q.chol


def _nats(one: tuple[AnyArray, AnyArray], other: tuple[AnyArray, AnyArray]) -> Float[AnyArray, ""]:
    """The inner product of whitened gradients in the Fisher metric: of a small one with itself, the KL it is worth."""
    return one[0] @ other[0] / 2 + (one[1] * other[1]).sum() / 4
