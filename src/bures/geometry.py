"""Geometries: how an estimate of the gradient at q becomes the next approximation.

A geometry has a state (an optimiser's moments; nothing for most), `init(q) -> state`, and a step
`(estimate, q, state) -> (next q, next state, StepReport)`. All of them increase the bound. What a move is in terms of
q's own numbers is known to q's family: `transport`, `forward_backward`, `free`, `whitened_step`.
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from bures.arrays import Module, namespace
from bures.check import check_flag, check_real, fail
from bures.family.approximation import AbstractApproximation, StepReport as StepReport
from bures.field import Estimate
from bures.objective import AbstractObjective

if TYPE_CHECKING:
    import optax

_STEP_REMEDY = "It is the length of a step, e.g. 0.1."


def _number(name: str, high: float, remedy: str, *, low: float = 0.0, **options: Any) -> Any:
    """A field that is a number in (low, high], converted to a float when it is given."""
    return eqx.field(converter=lambda value: check_real(name, value, low, high, remedy, open_low=True), **options)


def _check_clip(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise fail("clip", "a pair (low, high)", value, "The paper uses (0.1, 1.5).")
    low = check_real("clip[0]", value[0], 0, 1, "A step must keep the covariance positive.", open_low=True)
    return low, check_real("clip[1]", value[1], 1, 1e300, "It must allow the identity.")


class AbstractGeometry(Module):
    """Turns an estimate of the gradient of a bound at q into the next approximation.

    One that is written for NumPy arrays as well as JAX's says so by `runs_on_host`: then `bures.fit` need not compile.
    `move` names the method of a family that it needs, if it needs one.
    """

    runs_on_host: ClassVar[bool] = False
    move: ClassVar[str | None] = None

    def check(self, objective: AbstractObjective) -> None:
        """Raise a ValueError with the reason if this geometry cannot serve the objective."""

    def check_family(self, q: AbstractApproximation) -> None:
        """Raise a ValueError with the reason if this geometry cannot move members of q's family."""
        if self.move is not None and not q.can(self.move):
            wanted = f"able to move a {q.family} approximation, which has no `{self.move}`"
            others = "" if self.move == "whitened_step" else "Whitened(), or "
            raise fail("geometry", wanted, self, f"Use {others}family=FullRank().")

    def init(self, q: AbstractApproximation) -> PyTree:
        """The state before the first step."""
        return ()

    def next_objective(self, objective: AbstractObjective, state: PyTree) -> AbstractObjective:
        """The objective whose gradient the next step takes: by default the one to be optimised."""
        return objective

    def step(self, estimate: Estimate, q: Any, state: PyTree) -> tuple[AbstractApproximation, PyTree, StepReport]:
        """The next approximation."""
        raise NotImplementedError


class BuresWasserstein(AbstractGeometry):
    """Forward Euler on the Bures–Wasserstein manifold (Algorithm 1 of the paper).

    m ← m + η a and Σ ← H Σ H with H = I + η S, the eigenvalues of H clamped to `clip`. The gradient is the
    coordinatewise one (not K times it), so the paper's step sizes apply as they are.
    """

    step_size: float = _number("step_size", 1e300, _STEP_REMEDY)
    clip: tuple[float, float] = eqx.field(default=(0.1, 1.5), converter=_check_clip)
    runs_on_host: ClassVar[bool] = True
    move: ClassVar[str | None] = "transport"

    def step(self, estimate, q, state):
        moved, clipped = q.transport(estimate, self.step_size, self.clip)
        return moved, state, StepReport(clipped, self.step_size)


def _check_control_variate(value: Any) -> bool:
    check_flag("control_variate", value, "Whether to keep the score of q.")
    return bool(value)


class ForwardBackward(AbstractGeometry):
    """Forward–backward Gaussian VI (FB-GVI, Diao et al., 2023), for the ELBO.

    A forward step on the potential V = −log p, then the proximal step of the entropy in closed form:
    m ← m − η E∇V, Σ½ = M Σ M with M = I − η E∇²V, Σ ← ½ (Σ½ + 2η I + (Σ½ (Σ½ + 4η I))^½).

    `control_variate=True` keeps the zero-mean score of q in E∇V, which the published method leaves out: the same
    expectation with far less variance near the optimum.
    """

    step_size: float = _number("step_size", 1e300, _STEP_REMEDY)
    control_variate: bool = eqx.field(static=True, default=False, converter=_check_control_variate)
    runs_on_host: ClassVar[bool] = True
    move: ClassVar[str | None] = "forward_backward"

    def check(self, objective):
        if not objective.has_separable_entropy:
            raise fail(
                "geometry",
                "able to serve the objective; ForwardBackward needs the entropy to separate from the potential",
                objective,
                "Use objective=ELBO(), or geometry=BuresWasserstein(step_size) for importance-weighted bounds.",
            )

    def step(self, estimate, q, state):
        gradient = estimate.a if self.control_variate else estimate.a - estimate.entropy_score
        moved = q.forward_backward(estimate, self.step_size, gradient)
        return moved, state, StepReport(namespace(q.mean).asarray(False), self.step_size)


class Euclidean(AbstractGeometry):
    """Plain gradients in (m, L) through an optax optimiser, with gradient-norm clipping.

    The gradient is (K a, tril(K S L)). With `Reparameterised` that is the paper's baseline, with `Price` or `Stein`
    the fair one it lacks.

    **Arguments:**

    - `optimizer`: a learning rate for Adam, or any `optax.GradientTransformation`.
    - `max_grad_norm`: the gradient's norm is clipped to this (the paper: 1.0); None for no clipping.
    """

    move: ClassVar[str | None] = "free"
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
        frame = q.first_frame()
        return frame, self.optimizer.init(q.free(frame))

    def step(self, estimate, q, state):
        frame, moments = state
        free, gradient = q.free(frame), q.free_gradient(estimate, frame)
        norm = jnp.sqrt(sum(jnp.sum(part**2) for part in jax.tree.leaves(gradient)))
        limit = jnp.inf if self.max_grad_norm is None else self.max_grad_norm
        loss_gradient = jax.tree.map(lambda part: -part * jnp.minimum(1, limit / norm), gradient)
        update, moments = self.optimizer.update(loss_gradient, moments, free)
        free = jax.tree.map(lambda part, change: part + self.learning_rate * change, free, update)
        moved, frame = q.from_free(free, frame)
        return moved, (frame, moments), StepReport(norm > limit, self.learning_rate)


@functools.cache
def _adam() -> "optax.GradientTransformation":
    """Adam without its learning rate, made once so that compiled loops are shared between learning rates."""
    import optax

    return optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


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
    - In more than 50 dimensions, while limits hold back steps that agree with those before, the trust radius grows to
      four times itself, and variances that are too small along directions that were too narrow before follow more
      terms of 1 / x = 1 + s + s² + ...; and for K = 1 the mean moves further the more its gradient agrees with their
      average: means of scales in hierarchical models have far to go, in steps that are all too short.
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
    move: ClassVar[str | None] = "whitened_step"

    def init(self, q):
        return q.whitened_state()

    def next_objective(self, objective, state):
        return objective.tempered(namespace(state.gap).minimum(state.gap, 1))

    def step(self, estimate, q, state):
        return q.whitened_step(estimate, state, self)
