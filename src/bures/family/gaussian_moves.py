"""Moves of full Gaussians: one function for each geometry, on the mean and the Cholesky factor."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bures import linalg
from bures.arrays import AnyArray, choose, larger, namespace, pick
from bures.family.approximation import StepReport
from bures.field import Estimate

_FEW = 50  # dimensions up to which limits and gains are as they are for all
_FURTHEST = 1.0  # how far below zero a delay may fall: limits are then four times as wide
_CURVED = (
    2.0  # a slope above one says that log p is convex there, one above this that no series will tell how wide it is
)
_AGREES = 0.5  # the cosine of two shifts, or the slope along a direction, from which an earlier one says the same

Vector = Float[AnyArray, " dim"]
Matrix = Float[AnyArray, "dim dim"]


def transport(
    mean: Vector, chol: Matrix, estimate: Estimate, step_size: Any, clip: tuple[Any, Any]
) -> tuple[Vector, Matrix, Bool[AnyArray, ""]]:
    """m + η a and the factor of H Σ H with H = I + η S, its eigenvalues clamped; and whether that acted."""
    xp = namespace(mean)
    change = step_size * linalg.symmetrise(estimate.S)
    low, high = clip

    def clamp():
        values, vectors = linalg.eigh(change)
        clamped = xp.clip(1 + values, low, high)
        return (vectors * clamped) @ vectors.T, xp.any(clamped != 1 + values)

    def pass_through():
        return xp.eye(mean.shape[-1], dtype=change.dtype) + change, xp.asarray(False)

    # The Frobenius norm bounds the spectrum: most steps need no eigendecomposition to know the clamp is idle.
    # A change that is not finite passes through too, to be seen as such.
    largest = xp.linalg.norm(change)
    idle = (largest <= xp.minimum(1 - low, high - 1)) | ~xp.isfinite(largest)
    factor, clipped = choose(idle, pass_through, clamp)
    return mean + step_size * estimate.a, linalg.cholesky_of_square(factor @ chol), clipped


def forward_backward(
    mean: Vector, chol: Matrix, estimate: Estimate, step_size: Any, gradient: Vector
) -> tuple[Vector, Matrix]:
    """A forward step on the potential V and the proximal step of the entropy; S holds Σ⁻¹ − E∇²V."""
    xp = namespace(mean)
    identity = xp.eye(mean.shape[-1], dtype=mean.dtype)
    inverse_chol = linalg.inverse_lower(chol)
    hessian = linalg.symmetrise(estimate.S) - inverse_chol.T @ inverse_chol
    half = (identity + step_size * hessian) @ chol
    values, vectors = linalg.eigh(half @ half.T)
    return mean + step_size * gradient, linalg.cholesky_of_square(vectors * xp.sqrt(proximal(values, step_size)))


def proximal(variances: Vector, step_size: Any) -> Vector:
    """The proximal step of the entropy on variances: ½ (v + 2η + (v (v + 4η))^½)."""
    xp = namespace(variances)
    variances = xp.maximum(variances, 0)
    return (variances + 2 * step_size + xp.sqrt(variances * (variances + 4 * step_size))) / 2


class WhitenedState(NamedTuple):
    """What is remembered of earlier gradients."""

    a: Float[AnyArray, " dim"]  # their running average
    S: Float[AnyArray, "dim dim"]
    size: Float[AnyArray, ""]  # the running average of their squared norm
    mean_A: Float[AnyArray, ""]
    delay: Float[AnyArray, ""]  # 1 / gain − 1; below zero after steps that limits held back, one after the other
    gap: Float[AnyArray, ""]

    @classmethod
    def start(cls, mean: Vector, chol: Matrix) -> "WhitenedState":
        """Before the first step."""
        xp = namespace(mean)
        zero, infinity = (xp.asarray(value, mean.dtype) for value in (0, np.inf))
        return cls(xp.zeros_like(mean), xp.zeros_like(chol), zero, zero, zero, infinity)


def whitened_step(
    mean: Vector, chol: Matrix, estimate: Estimate, state: WhitenedState, settings: Any
) -> tuple[Vector, Matrix, WhitenedState, StepReport]:
    """A step of `bures.Whitened`, whose fields are the settings."""
    xp = namespace(mean)
    # By the mean of this step alone the quotient would be biased: draws of large weight are in both parts.
    delay = larger(state.delay, 0.0)
    memory = 1 / (1 + delay)
    mean_A = pick(state.mean_A > 0, state.mean_A + memory * (estimate.mean_A - state.mean_A), estimate.mean_A)
    a, S = estimate.a / mean_A, linalg.symmetrise(estimate.S) / mean_A
    along = linalg.times_lower(chol, S, transposed=True)
    shift, whitened = gradient = chol.T @ a, linalg.times_lower(chol, along.T, transposed=True)
    average = _whiten(state.a, state.S, chol)
    size, average_size = _nats(gradient, gradient), _nats(average, average)
    stale = (average_size > settings.stale * size) | (average_size == 0)
    inner = _nats(gradient, average)
    cosine = inner / pick(stale, 1.0, xp.sqrt(size * average_size))
    change = pick(cosine < 0, 1 / xp.sqrt(larger(size, 1)), -cosine / 2)
    delay = pick(stale, delay, larger(delay + change, 0.0))
    gain = 1 / (1 + delay)

    many, step = mean.shape[-1] > _FEW, gain * whitened
    stride = 4 ** larger(-state.delay, 0.0)
    centre, radius, persistent = chol.T @ estimate.entropy_score / mean_A, settings.trust_radius, 0.0
    if many:
        agreement = _agreement(shift, average[0])
        radius = radius * pick(agreement > _AGREES, stride, 1.0)
        persistent = larger(agreement, 0.0) ** 2

    def limited(narrowed):
        """The step of the mean, no longer than the radius, and how much longer it was."""
        move = gain * (centre + narrowed(shift - centre))
        if many and estimate.K == 1:
            move = move * (1 + persistent * delay) + persistent * narrowed(average[0])
        length = xp.sqrt(move @ move)
        return move / larger(length / radius, 1), length / radius

    def by_eigenvalues():
        values, vectors = linalg.eigh(whitened)
        # The bound comes after the gain: noise that is bounded on one side only would leave a bias at any gain.
        excess = xp.maximum(-gain * values, -1)
        widening, narrowing = 1 + xp.maximum(-excess, 0), 1 + xp.maximum(excess, 0)
        if many:
            widening = choose(
                stride > 1, lambda: _widened(widening, stride, values, vectors, average[1]), lambda: widening
            )
        move, overshoot = limited(lambda v: vectors @ ((vectors.T @ v) / narrowing))
        narrowing = 1 + (narrowing - 1) / larger(overshoot - settings.far, 1)
        root = xp.concatenate([vectors * xp.sqrt(widening / narrowing), (settings.doubt * move)[:, None]], axis=1)
        return move, overshoot, values[-1] > 1, linalg.cholesky_of_square(linalg.times_lower(chol, root.T).T)

    def to_first_order():
        move, overshoot = limited(lambda v: v + step @ v)
        doubt = settings.doubt * move
        eased = step / larger(overshoot - settings.far, 1)
        root = linalg.cholesky(xp.eye(move.size, dtype=move.dtype) + eased + doubt[:, None] * doubt)
        return move, overshoot, xp.asarray(False), linalg.times_lower(chol, root.T).T

    # Where a step is short both say the same but for noise, and the second needs no eigenvalues.
    short = _is_short(step) if many else False
    move, overshoot, steep, moved = choose(short, to_first_order, by_eigenvalues) if many else by_eigenvalues()
    clipped = (overshoot > 1) | steep
    if many:
        held = (delay == 0) & (inner > 0) & ((overshoot * radius > settings.trust_radius) | steep)
        delay = pick(held, larger(-larger(-state.delay, 0.0) - 0.5, -_FURTHEST), delay)
    mean = mean + chol @ move

    share = pick(stale, 1.0, gain)
    a, S = state.a + share * (a - state.a), state.S + share * (S - state.S)
    average = tuple(old + share * (new - old) for old, new in zip(average, gradient, strict=True))
    size = state.size + larger(share, settings.memory) * (size - state.size)
    gap = _nats(average, average) + gain * size / 2
    grad_norm = xp.sqrt(estimate.a @ estimate.a + mean_A**2 * (along**2).sum())
    return mean, moved, WhitenedState(a, S, size, mean_A, delay, gap), StepReport(clipped, gain, gap, grad_norm)


def _is_short(step: Matrix) -> Bool[AnyArray, ""]:
    """Whether all eigenvalues of a step are within a half: Cholesky factors tell, in a tenth of the time."""
    xp = namespace(step)
    half = xp.eye(step.shape[-1], dtype=step.dtype) / 2
    return xp.all(xp.isfinite(linalg.cholesky(half - step))) & xp.all(xp.isfinite(linalg.cholesky(half + step)))


def _widened(widening: Vector, stride: AnyArray, values: Vector, vectors: Matrix, earlier: Matrix) -> Vector:
    """What variances are multiplied by where an earlier slope says so, too: more terms of 1 / x = 1 + s + s² + ...

    With two terms, 1 + s, a direction that is far too narrow widens twofold, however often it was seen to be.
    """
    xp = namespace(values)
    says = (vectors * (earlier @ vectors)).sum(axis=0) > _AGREES
    s = widening - 1
    series = xp.where(s < 1, (1 - s ** (1 + stride)) / xp.where(s < 1, 1 - s, 1), 1 + stride)
    return xp.where(says & (values > _AGREES) & (values < _CURVED), series, widening)


def _agreement(one: Vector, other: Vector) -> Float[AnyArray, ""]:
    """The cosine of two vectors; 0 if one of them vanishes."""
    lengths = namespace(one).sqrt((one @ one) * (other @ other))
    return one @ other / pick(lengths > 0, lengths, 1.0)


def _whiten(a: Vector, S: Matrix, chol: Matrix) -> tuple[AnyArray, AnyArray]:
    """The affine map z ↦ a + S (z − m) in the coordinates where q is standard normal."""
    return chol.T @ a, linalg.whiten_matrix(chol, S)


def _nats(one: tuple[AnyArray, AnyArray], other: tuple[AnyArray, AnyArray]) -> Float[AnyArray, ""]:
    """The inner product of whitened gradients in the Fisher metric: of a small one with itself, the KL it is worth."""
    return one[0] @ other[0] / 2 + (one[1] * other[1]).sum() / 4
