"""Moves of low-rank Gaussians, in factors: O(d (r + n)) numbers, O(d (r + n) r) work.

Coordinates: x = D⁻¹ (z − m), where the covariance is R = I + V (Λ − I) Vᵀ, and u = R^(−½) x, where q is standard
normal. A tangent vector changes R by a diagonal and by V Yᵀ + Y Vᵀ. With H = V Vᵀ, what a diagonal δ does apart from
the second kind is (I − H) diag(δ) (I − H), so the projection of a slope Ŝ has the δ that solves

    ((I − H) ∘ (I − H)) δ = diag((I − H) Ŝ (I − H)),

and the rest of Ŝ V is the second kind's.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bures import linalg
from bures.arrays import AnyArray, namespace
from bures.family.approximation import StepReport
from bures.field import Estimate, Field, Stein

if TYPE_CHECKING:
    from bures.family.low_rank import LowRankGaussian

_WORTH = 0.001  # nats from which a direction is kept
_MOST = 64  # columns by default: the work of a step grows with their square
_SOLVER_STEPS, _RIDGE = 10, 0.05
_UNUSED = 1e-10  # variances this close to one are one
_FIRST = 0.01  # length of a column that is not in use, for free parameters: at zero its gradient would vanish
_ERRORS = 3.0  # by which a new direction must be sure
_MEMORY = 0.2  # weight of a new squared signal in its running average
_TWO_ERRORS = 2 * (_MEMORY / (2 - _MEMORY)) ** 0.5  # of such an average, in errors of what is averaged
_STALE = 4.0  # how many times the present squared signal an earlier one may be
_SURE = 3.0  # errors by which a variance must be too large to be more than halved

Vector = Float[AnyArray, " dim"]
Columns = Float[AnyArray, "dim r"]


def most_columns(dim: int) -> int:
    """Columns that a fit takes into use by itself: 64, or the square root of the dimension if that is more."""
    return max(_MOST, math.isqrt(dim))


def worth(variances: AnyArray) -> AnyArray:
    """Nats that variances other than one are worth: the KL divergence of not having them."""
    precision = 1 / variances
    return (precision - 1 - namespace(variances).log(precision)) / 2


def spectrum(columns: Columns, kinds: Float[AnyArray, " r"]) -> tuple[Columns, Float[AnyArray, " r"]]:
    """Orthonormal V and Λ with I + W diag(kinds) Wᵀ = I + V (Λ − I) Vᵀ."""
    xp = namespace(columns)
    if not columns.shape[1]:
        return columns, kinds
    basis, triangle = linalg.qr(columns)
    values, vectors = linalg.eigh(xp.eye(kinds.size, dtype=columns.dtype) + (triangle * kinds) @ triangle.T)
    return basis @ vectors, xp.where(xp.abs(values - 1) <= _UNUSED, 1, values)


# ---- Bures–Wasserstein steps, and free parameters -------------------------------------------------------------------


def transport(
    q: "LowRankGaussian", estimate: Estimate, step_size: Any, clip: tuple[Any, Any]
) -> tuple[Vector, Columns, Float[AnyArray, " r"], AnyArray]:
    """D, and W and w of R = I + W diag(w) Wᵀ, after I + η S has acted, without what leaves the family; was it clamped?

    D is multiplied by 1 + η diag S, clamped, and a wide column U of D² + U Uᵀ by I + η S, its off-diagonal part
    shortened to the clamp. A narrow column keeps its direction, and its variance is multiplied by the square of
    1 + η s, clamped, where s is the slope along it.
    """
    xp = namespace(q.mean)
    low, high = clip
    raw = 1 + step_size * estimate.S.diagonal
    factor = xp.clip(raw, low, high)
    wide = q.variances >= 1
    lengths = xp.where(wide, xp.abs(q.variances - 1), 0) ** 0.5
    directions = q.scale[:, None] * q.basis
    across = step_size * (estimate.S.along - estimate.S.diagonal[:, None] * directions) * lengths
    columns = directions * lengths
    size, limit = xp.linalg.norm(across, axis=0), xp.minimum(1 - low, high - 1) * xp.linalg.norm(columns, axis=0)
    shortened = xp.minimum(1, limit / xp.where(size > 0, size, 1))
    slopes = (directions * estimate.S.along).sum(axis=0) / (directions**2).sum(axis=0)
    stretched = 1 + step_size * slopes
    clipped = xp.any(factor != raw) | xp.any(shortened < 1)
    scale = factor * q.scale
    moved = (factor[:, None] * columns + shortened * across) / scale[:, None]
    narrower = xp.minimum(q.variances * xp.clip(stretched, low, high) ** 2, 1) - 1
    return scale, xp.where(wide, moved, q.basis), xp.where(wide, 1, narrower), clipped


class Frame(NamedTuple):
    """Free parameters are the mean, the scales with signs, and columns U of Σ = D² + U diag(kinds) Uᵀ.

    Narrow columns are not free: they keep their direction and their variance in units of the scales.
    """

    signs: Vector
    columns: Columns
    kinds: Float[AnyArray, " r"]  # −1 for directions that are narrower than the scales say, else 1

    @classmethod
    def of(cls, q: "LowRankGaussian") -> "Frame":
        xp = namespace(q.mean)
        kinds = xp.where(q.variances < 1, -1, 1).astype(q.mean.dtype)
        lengths = xp.where(q.variances == 1, _FIRST, xp.sqrt(xp.abs(q.variances - 1)))
        return cls(xp.ones_like(q.scale), q.scale[:, None] * q.basis * lengths, kinds)


# ---- Whitened steps -------------------------------------------------------------------------------------------------


class LowRankState(NamedTuple):
    """What is remembered of earlier gradients."""

    a: Vector  # their running average
    S: Vector  # of the diagonal
    size: Float[AnyArray, ""]  # the running average of their squared norm
    mean_A: Float[AnyArray, ""]
    delay: Float[AnyArray, ""]  # 1 / gain − 1
    mean_delay: Float[AnyArray, ""]  # the same for the mean
    inside: Float[AnyArray, ""]  # squared size of what the columns should change by, noise apart: within their span
    across: Float[AnyArray, ""]  # and out of it
    gap: Float[AnyArray, ""]

    @classmethod
    def start(cls, q: "LowRankGaussian") -> "LowRankState":
        """Before the first step."""
        xp = namespace(q.mean)
        zero, infinity = (xp.asarray(value, q.mean.dtype) for value in (0, np.inf))
        return cls(xp.zeros_like(q.mean), xp.zeros_like(q.mean), zero, zero, zero, zero, zero, zero, infinity)


class Seen(NamedTuple):
    """The field of a step where q is standard normal, as an affine map and what that leaves."""

    a: Vector
    own: Vector  # diag((I − H) Ŝ (I − H))
    along: Columns  # Ŝ V
    residual: Float[AnyArray, "n dim"]
    spread: Vector  # variance of what is left of each coordinate
    leverage: Float[AnyArray, " r"]  # variance of the slope along each column, per variance of a draw


def whitened_step(
    q: "LowRankGaussian", estimate: Estimate, state: LowRankState, settings: Any
) -> tuple["LowRankGaussian", LowRankState, StepReport]:
    """A step of `bures.Whitened`, whose fields are the settings.

    The same rules as for full Gaussians, with three differences. The affine map is fitted to the draws of an ELBO by
    least squares, which for a field within the tangent space is exact from a few draws more than columns. The mean has
    a gain of its own, because a diagonal cannot tell directions in which it overshoots. And columns come and go: those
    not in use follow the directions that the map leaves over, and are taken into use when fresh draws say that they are
    worth more than a thousandth of a nat.
    """
    xp = namespace(q.mean)
    mean_A = state.mean_A + (estimate.mean_A - state.mean_A) * xp.where(state.mean_A > 0, 1 / (1 + state.delay), 1)
    seen = _see(q, estimate, mean_A)
    n = seen.residual.shape[0]
    delta = _solve(q.basis, seen.own)
    delay, mean_delay, average, size = _delays(q, seen.a, delta, state, settings)
    gain, mean_gain = 1 / (1 + delay), 1 / (1 + mean_delay)

    X, Y = _beside(q, seen.along, delta)
    error = _errors(seen, q.basis)
    used = (q.variances != 1) | _is_worth(xp.diagonal(X), error)
    X, Y = X * used * used[:, None], Y * used
    columns = used.sum()
    X_noise, Y_noise = columns * (error**2 * used).sum(), (seen.leverage * used).sum() * seen.spread.sum()
    inside, X_gain = _wiener(state.inside, (X**2).sum() - X_noise, X_noise)
    across, Y_gain = _wiener(state.across, (Y**2).sum() - Y_noise, Y_noise)

    doubt = seen.spread / n  # squared errors of the slope and of the mean, coordinate by coordinate
    move, overshoot = _mean_move(q, seen.a / (1 + doubt), delta, X, mean_gain, settings.trust_radius)
    change = gain * _tame(delta, doubt)
    factor = _factor(change, xp.maximum(overshoot - settings.far, 1)) * (1 + (settings.doubt * move) ** 2)
    mean = q.mean + q.scale * q.stretch(move, 0.5)
    basis, variances = _turn(q, X_gain * X, Y_gain * Y, factor, xp.max(error, initial=0))
    basis, variances = _renew(q, basis, variances, seen.residual)
    moved = q.replaced(mean=mean, scale=q.scale * xp.sqrt(factor), basis=basis, variances=variances)

    a, S = average
    gap = _nats(q.whiten_scores(a[None])[0], S * q.scale**2) + gain * size / 2
    # What may be noise of the running average is not a gap.
    doubtful = _TWO_ERRORS * (2 * ((seen.leverage * used) ** 2).sum() * (seen.spread**2).sum()) ** 0.5
    turning = xp.maximum(across - doubtful, 0) / 2 + Y_gain * Y_noise / 2
    gap = gap + xp.maximum(inside, 0) / 4 + X_gain * X_noise / 4 + turning
    state = LowRankState(a, S, size, mean_A, delay, mean_delay, inside, across, gap)
    return moved, state, StepReport(overshoot > 1, gain, gap)


def _wiener(signal: AnyArray, found: AnyArray, noise: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The running average of a squared signal, and the gain that leaves least of it and of the noise together."""
    xp = namespace(found)
    limit = _STALE * xp.maximum(xp.abs(found), noise)  # what was seen far away is no longer true
    # A first signal is believed as far as it exceeds its noise.
    signal = xp.where(signal == 0, xp.maximum(found - noise, 0), xp.clip(signal, -limit, limit))
    signal = signal + _MEMORY * (found - signal)
    positive = xp.maximum(signal, 0)
    return signal, positive / xp.maximum(positive + noise, np.finfo(found.dtype).tiny)


def _nats(a: Vector, delta: Vector) -> AnyArray:
    """Of a small change of the mean and of the diagonal, where q is standard normal: the KL it is worth."""
    return a @ a / 2 + delta @ delta / 4


def _see(q: "LowRankGaussian", estimate: Estimate, mean_A: AnyArray) -> Seen:
    """By least squares where all draws weigh the same, else by moments, which weights do not bias."""
    field = estimate.field
    assert field is not None
    by_least_squares = field.K == 1 and isinstance(field.slope, Stein)
    return _least_squares(q, field) if by_least_squares else _moments(q, estimate, field, mean_A)


def _least_squares(q: "LowRankGaussian", field: Field) -> Seen:
    """Each coordinate of the field by a constant, by Vᵀ u and by its own coordinate of u."""
    xp, V = namespace(q.mean), q.basis
    u, s = field.noise, q.whiten_scores(field.score)
    n = u.shape[0]
    features = xp.concatenate([xp.ones((n, 1), u.dtype), u @ V], axis=1)
    values, vectors = linalg.eigh(features.T @ features / n)
    smallest = 1e-6 if u.dtype == np.float64 else 1e-3
    inverse = (vectors / xp.maximum(values, smallest)) @ vectors.T
    fitted = inverse @ (features.T / n)
    s_left, u_left = s - features @ (fitted @ s), u - features @ (fitted @ u)
    # Where a column is one coordinate, nothing of that is left to fit.
    left = (u_left**2).sum(axis=0)
    b = xp.where(left > smallest * n, (s_left * u_left).sum(axis=0), 0) / xp.where(left > smallest * n, left, 1)
    a, *C = fitted @ (s - b * u)
    along = (xp.stack(C, axis=1) if C else xp.zeros_like(V)) + b[:, None] * V
    residual = s_left - b * u_left
    spread = (residual**2).sum(axis=0) / max(n - V.shape[1] - 2, 1)
    across = along - V @ (V.T @ along)
    own = (1 - (V**2).sum(axis=1)) * b - (V * across).sum(axis=1)
    return Seen(a, own, along, residual, spread, xp.diagonal(inverse)[1:] / n)


def _moments(q: "LowRankGaussian", estimate: Estimate, field: Field, mean_A: AnyArray) -> Seen:
    """The projected slope itself, in the coordinates where q is standard normal."""
    V = q.basis
    a = q.whiten_scores(estimate.a[None])[0] / mean_A
    diagonal, MV = q.scale**2 * estimate.S.diagonal / mean_A, q.scale[:, None] * estimate.S.along / mean_A
    own = diagonal - 2 * (V * MV).sum(axis=1) + (V * (V @ (V.T @ MV))).sum(axis=1)
    along = q.stretch(MV.T, 0.5).T * q.variances**0.5
    weight = field.weight / field.weight.sum()
    s = q.whiten_scores(field.score)
    n = s.shape[0]
    residual = s - a - own * field.noise - (field.noise @ V) @ (along - own[:, None] * V).T
    residual = residual * (n * weight[:, None]) ** 0.5
    spread = n * (weight**2 @ (s - a) ** 2)
    return Seen(a, own, along, residual, spread, namespace(a).ones_like(q.variances) / n)


def _solve(V: Columns, own: Vector) -> Vector:
    """δ from the equation above, by conjugate gradients.

    The ridge matters where a column of V is almost one coordinate: its variance may then be in D or in Λ. It slows the
    way to the solution down, and leaves the solution where it is.
    """
    if not V.shape[1]:
        return own
    xp, share = namespace(own), (V**2).sum(axis=1)

    def times(x):
        return (1 + _RIDGE - 2 * share) * x + (V * (V @ (V.T @ (x[:, None] * V)))).sum(axis=1)

    x, residual = xp.zeros_like(own), own
    direction, size = residual, residual @ residual
    tiny = np.finfo(own.dtype).tiny
    for _ in range(_SOLVER_STEPS):
        image = times(direction)
        step = size / xp.maximum(direction @ image, tiny)
        x, residual = x + step * direction, residual - step * image
        smaller = residual @ residual
        direction, size = residual + smaller / xp.maximum(size, tiny) * direction, smaller
    return x


def _delays(
    q: "LowRankGaussian", a: Vector, delta: Vector, state: LowRankState, settings: Any
) -> tuple[AnyArray, AnyArray, tuple[Vector, Vector], AnyArray]:
    """The delays after this gradient, the new average gradient, and the running average of its squared norm."""
    xp = namespace(a)
    old_a, old_delta = q.whiten_scores(state.a[None])[0], state.S * q.scale**2
    size, old_size = _nats(a, delta), _nats(old_a, old_delta)
    stale = (old_size > settings.stale * size) | (old_size == 0)
    inner = a @ old_a / 2 + delta @ old_delta / 4
    cosine = inner / xp.where(stale, 1, xp.sqrt(size * old_size))
    change = xp.where(cosine < 0, 1 / xp.sqrt(xp.maximum(size, 1)), -cosine / 2)
    delay = xp.where(stale, state.delay, xp.maximum(state.delay + change, 0))

    lengths = xp.linalg.norm(a) * xp.linalg.norm(old_a)
    mean_cosine = a @ old_a / xp.where(lengths > 0, lengths, 1)
    mean_delay = xp.maximum(state.mean_delay + xp.where(mean_cosine < 0, 1, -mean_cosine / 2), 0)

    share = xp.where(stale, 1, 1 / (1 + delay))
    new_a, new_S = q.stretch(a, -0.5) / q.scale, delta / q.scale**2
    average = state.a + share * (new_a - state.a), state.S + share * (new_S - state.S)
    running = state.size + xp.maximum(share, settings.memory) * (size - state.size)
    return delay, mean_delay, average, running


def _beside(q: "LowRankGaussian", along: Columns, delta: Vector) -> tuple[AnyArray, Columns]:
    """Ŝ V without what the diagonal δ explains of it: its part in V, symmetric, and its part across."""
    xp, V = namespace(along), q.basis
    # See `_rescaled`: along a wide column the covariance stays when the scales change, along a narrow one the
    # precision.
    shrunk = xp.minimum(q.variances, 1 / q.variances) ** 0.5
    explained = delta[:, None] * V
    explained = (explained + V @ ((shrunk - 1)[:, None] * (V.T @ explained))) * shrunk
    beside = along - explained
    X = V.T @ beside
    return linalg.symmetrise(X), beside - V @ X


def _errors(seen: Seen, V: Columns) -> Float[AnyArray, " r"]:
    """Standard errors of the slope along each column."""
    n, r = seen.residual.shape[0], V.shape[1]
    variances = ((seen.residual @ V) ** 2).sum(axis=0) / max(n - r - 2, 1)
    return namespace(V).sqrt(variances * seen.leverage)


def _is_worth(slopes: AnyArray, errors: AnyArray) -> AnyArray:
    """Whether a slope, made smaller by its errors, is worth a column."""
    xp = namespace(slopes)
    sure = xp.sign(slopes) * xp.maximum(xp.abs(slopes) - _ERRORS * errors, 0)
    return worth(_factor(sure, 1)) > _WORTH


def _mean_move(
    q: "LowRankGaussian", a: Vector, delta: Vector, X: AnyArray, gain: AnyArray, radius: Any
) -> tuple[Vector, AnyArray]:
    """Newton's step where q is standard normal, no coordinate longer than the radius; and how much longer it was."""
    xp, V = namespace(a), q.basis
    values, vectors = linalg.eigh(X) if q.capacity else (delta[:0], X)
    inside = V.T @ a
    narrowed = vectors @ ((vectors.T @ inside) / (1 + xp.maximum(-gain * values, 0)))
    move = gain * ((a - V @ inside) / (1 + xp.maximum(-gain * delta, 0)) + V @ narrowed)
    overshoot = xp.max(xp.abs(move)) / radius
    return move / xp.maximum(overshoot, 1), overshoot


def _tame(change: AnyArray, doubt: AnyArray) -> AnyArray:
    """Widening in proportion less where its squared error is above one; narrowing to less than a half if it is sure.

    Draws of a q that is too wide see little but noise, some of it as a call to widen further.
    """
    xp = namespace(change)
    narrowing = xp.where(change < -1, -xp.maximum(1, -change - _SURE * doubt**0.5), change)
    return xp.where(change > 0, change / (1 + doubt), narrowing)


def _factor(change: AnyArray, caution: Any) -> AnyArray:
    """What a variance is multiplied by: 1 + s for s > 0, at most 2; 1 / (1 − s) for s < 0, less of it with caution."""
    xp = namespace(change)
    return (1 + xp.clip(change, 0, 1)) / (1 + xp.maximum(-change, 0) / caution)


def _turn(
    q: "LowRankGaussian", X: AnyArray, Y: Columns, factor: Vector, error: AnyArray
) -> tuple[Columns, Float[AnyArray, " r"]]:
    """The columns after the scales are multiplied by √factor and V Xᵀ Vᵀ + V Yᵀ + Y Vᵀ has acted, the best first."""
    if not q.capacity:
        return q.basis, q.variances
    xp, r = namespace(X), q.capacity
    free = min(r, q.dim - r)  # dimensions that columns can turn into
    # No column turns by more than about 45 degrees.
    across, triangle = linalg.qr(Y / xp.maximum(xp.linalg.norm(Y, axis=0), 1))
    across, triangle = across[:, :free], triangle[:free]
    nothing = xp.zeros((free, free), X.dtype)
    tangent = xp.concatenate([xp.concatenate([X, triangle.T], axis=1), xp.concatenate([triangle, nothing], axis=1)])
    values, vectors = linalg.eigh(tangent)
    acted = (vectors * _factor(_tame(values, error**2), 1)) @ vectors.T
    roots = xp.concatenate([q.variances**0.5, xp.ones(free, X.dtype)])
    values, vectors = linalg.eigh(roots[:, None] * acted * roots)
    columns = xp.concatenate([q.basis, across], axis=1) @ vectors
    columns, weights = _rescaled(columns, values, xp.sqrt(factor)[:, None])
    basis, triangle = linalg.qr(columns)
    values, vectors = linalg.eigh(xp.eye(triangle.shape[0], dtype=X.dtype) + (triangle * weights) @ triangle.T)
    gains = xp.where(values > 0, worth(xp.maximum(values, np.finfo(X.dtype).tiny)), np.inf)
    best = xp.argsort(-gains)[:r]
    kept = gains[best] > _WORTH + error**2
    return (basis @ vectors)[:, best], xp.where(kept, values[best], 1)


def _rescaled(columns: Columns, values: AnyArray, root: AnyArray) -> tuple[Columns, AnyArray]:
    """W and w of I + W diag(w) Wᵀ after the coordinates are divided by `root`, from orthonormal columns, narrow first.

    Wide columns are added to the covariance, narrow ones to the precision: both stay as they are when the scales
    change, and the covariance stays positive.
    """
    xp = namespace(columns)
    narrow = values < 1
    if xp is np and not np.any(narrow):
        return columns / root, values - 1
    inverse = xp.where(narrow, 1 / xp.maximum(values, np.finfo(columns.dtype).tiny) - 1, 0)
    basis, triangle = linalg.qr(root * columns)
    precision, vectors = linalg.eigh(xp.eye(triangle.shape[0], dtype=columns.dtype) + (triangle * inverse) @ triangle.T)
    # Those above one, as many as there are narrow columns, are last: turned round they are first, as the narrow are.
    turned, precision = (basis @ vectors)[:, ::-1], precision[::-1]
    return xp.where(narrow, turned, columns / root), xp.where(narrow, 1 / precision, values) - 1


def _renew(
    q: "LowRankGaussian", basis: Columns, variances: Float[AnyArray, " r"], residual: Float[AnyArray, "n dim"]
) -> tuple[Float[AnyArray, "dim k"], Float[AnyArray, " k"]]:
    """Columns not in use turned towards where the residual is largest; more of them if all are in use and may grow."""
    xp, n = namespace(basis), residual.shape[0]
    if not q.capacity:
        return basis, variances
    if xp is np and q.grows and np.sum(variances == 1) <= q.capacity // 8:
        room = min(2 * q.capacity, n // 3, q.dim // 2, most_columns(q.dim)) - q.capacity
        if room > 0:
            basis = np.concatenate([basis, residual[:room].T], axis=1)
            variances = np.concatenate([variances, np.ones(room, variances.dtype)])
    unused = variances == 1
    towards = residual.T @ (residual @ xp.where(unused, basis, 0))
    towards = towards / xp.maximum(xp.linalg.norm(towards, axis=0), np.finfo(basis.dtype).tiny)
    towards = xp.where((xp.abs(towards).sum(axis=0) > 0) & unused, towards, basis)
    # Those in use come first, so that they stay as they are.
    return linalg.qr(towards)[0], variances
