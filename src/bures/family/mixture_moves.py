"""Moves of mixtures: those of their Gaussians, and a mirror (Fisher–Rao) step of the shares.

The first variation of the bound of a tuple at a draw z_k is F − g_k, F the bound and g_k the draw's normalised weight;
a component whose draws have a higher one than the others is worth a larger share.
"""

import math
from typing import Any, NamedTuple

from jaxtyping import Bool, Float

from bures import linalg
from bures.arrays import AnyArray, log_sum_exp, namespace
from bures.family import gaussian_moves
from bures.family.approximation import StepReport
from bures.field import Curvature, Estimate

_LARGEST_CHANGE = 1.0  # of the logarithm of a share, in one step


class MixtureSlope(NamedTuple):
    """What a mixture keeps of the slope of a field: one matrix for each component, and the gradient in the shares."""

    slopes: Float[AnyArray, "components dim dim"]
    shares: Float[AnyArray, " components"]  # of the bound, along each component, less the mean


class MixtureState(NamedTuple):
    """What a `Whitened` geometry remembers: of each component, and of all."""

    components: tuple[gaussian_moves.WhitenedState, ...]
    gap: Float[AnyArray, ""]

    @classmethod
    def start(cls, q: Any) -> "MixtureState":
        """Before the first step."""
        pairs = zip(q.means, q.chols, strict=True)
        states = tuple(gaussian_moves.WhitenedState.start(mean, chol) for mean, chol in pairs)
        return cls(states, states[0].gap)


def choose_components(
    shares: Float[AnyArray, " components"], uniform: Float[AnyArray, " n"]
) -> tuple[AnyArray, Float[AnyArray, " n"]]:
    """The component that each of some numbers in (0, 1) falls to, and where in the component's part it falls."""
    xp = namespace(shares, uniform)
    edges = xp.cumsum(shares)
    chosen = xp.searchsorted(edges[:-1], uniform, side="right")
    return chosen, (uniform - (edges - shares)[chosen]) / shares[chosen]


def log_student(squares: Float[AnyArray, " n"], dim: int, freedom: int) -> Float[AnyArray, " n"]:
    """Log density of a Student-t of identity shape, by the squared radius."""
    constant = math.lgamma((freedom + dim) / 2) - math.lgamma(freedom / 2) - dim * math.log(freedom * math.pi) / 2
    return constant - (freedom + dim) / 2 * namespace(squares).log1p(squares / freedom)


def slopes(
    q: Any,
    z: Float[AnyArray, "n dim"],
    weights: Float[AnyArray, "components n"],
    score: Float[AnyArray, "n dim"],
    responsibilities: Float[AnyArray, "components n"],
    own: Float[AnyArray, "components n"],
    curved: Curvature | None,
) -> Float[AnyArray, "components dim dim"]:
    """S_c = sym Σ_c⁻¹ E_{q_c}[(z − m_c) (A s)ᵀ] by Stein's lemma, or with Hessians E_{q_c}[A H + B s sᵀ]."""
    xp = namespace(z)
    if curved is not None:
        curvatures = [_entropy_curvature(q, z, w, responsibilities) for w in weights]
        return xp.stack([curved.weighted(o) + extra for o, extra in zip(own, curvatures, strict=True)])
    found = []
    for c in range(len(weights)):
        inverse = linalg.inverse_lower(q.chols[c])
        moments = ((z - q.means[c]) * weights[c][:, None]).T @ score
        found.append(linalg.symmetrise(inverse.T @ (inverse @ moments)))
    return xp.stack(found)


def _entropy_curvature(
    q: Any,
    z: Float[AnyArray, "n dim"],
    weights: Float[AnyArray, " n"],
    responsibilities: Float[AnyArray, "components n"],
) -> Float[AnyArray, "dim dim"]:
    """Σ w (−∇²log q), which is Σ_k r_k (Σ_k⁻¹ − p_k p_kᵀ) + p pᵀ with p_k = Σ_k⁻¹ (z − m_k) and p = Σ_k r_k p_k."""
    xp = namespace(z)
    total, mean = xp.zeros_like(q.chols[0]), xp.zeros_like(z)
    for k in range(len(responsibilities)):
        inverse = linalg.inverse_lower(q.chols[k])
        scores = (z - q.means[k]) @ inverse.T @ inverse
        own = weights * responsibilities[k]
        total = total + own.sum() * inverse.T @ inverse - (scores.T * own) @ scores
        mean = mean + responsibilities[k][:, None] * scores
    return total + (mean.T * weights) @ mean


def centres(
    q: Any, z: Float[AnyArray, "n dim"], weights: Float[AnyArray, "components n"]
) -> Float[AnyArray, "components dim"]:
    """Σ_c⁻¹ E_{q_c}[A (z − m_c)]: where the weighted draws of each component are."""
    found = []
    for c in range(len(weights)):
        inverse = linalg.inverse_lower(q.chols[c])
        found.append(inverse.T @ (inverse @ (weights[c] @ (z - q.means[c]))))
    return namespace(z).stack(found)


def of_component(estimate: Estimate, c: int) -> Estimate:
    """The part of an estimate that is a component's."""
    return estimate._replace(
        a=estimate.a[c],
        S=estimate.S.slopes[c],
        entropy_score=estimate.entropy_score[c],
        mean_A=estimate.mean_A[c],
    )


def change_shares(log_shares: Float[AnyArray, " components"], change: Float[AnyArray, " components"]) -> AnyArray:
    """A mirror step: the shares times exp(change), as shares again."""
    xp = namespace(log_shares)
    moved = log_shares + xp.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    return moved - log_sum_exp(moved, axis=0)


def transport(q: Any, estimate: Estimate, step_size: Any, clip: tuple[Any, Any]) -> tuple[Any, Bool[AnyArray, ""]]:
    """Every component pushed forward by its own map, the shares by the same step size."""
    xp = namespace(q.means)
    moved = [
        gaussian_moves.transport(q.means[c], q.chols[c], of_component(estimate, c), step_size, clip)
        for c in range(len(q.means))
    ]
    means, chols, clipped = (xp.stack(parts) for parts in zip(*moved, strict=True))
    log_shares = change_shares(q.log_shares, step_size * estimate.S.shares / estimate.K)
    return type(q).unchecked(log_shares, means, chols, q.tail), xp.any(clipped)


def free_gradient(q: Any, estimate: Estimate, frame: Any) -> tuple[AnyArray, AnyArray, AnyArray]:
    """The gradient of the bound in the log shares, the means and the factors: K π_c a_c and tril(K π_c S_c L_c)."""
    xp, weight = namespace(q.means), estimate.K * q.shares
    chols = xp.tril(estimate.S.slopes @ q.chols) * weight[:, None, None]
    return q.shares * estimate.S.shares, weight[:, None] * estimate.a, chols * frame[:, None, :]


def whitened_step(
    q: Any, estimate: Estimate, state: MixtureState, settings: Any
) -> tuple[Any, MixtureState, StepReport]:
    """A whitened step of each component by its own E[A], and of the shares by the mean one."""
    xp = namespace(q.means)
    moved = [
        gaussian_moves.whitened_step(q.means[c], q.chols[c], of_component(estimate, c), part, settings)
        for c, part in enumerate(state.components)
    ]
    means, chols = (xp.stack([each[i] for each in moved]) for i in (0, 1))
    states = tuple(each[2] for each in moved)
    reports = [each[3] for each in moved]
    gain = q.shares @ xp.stack([report.step_size for report in reports])
    towards = estimate.S.shares / (estimate.K * (q.shares @ estimate.mean_A))
    log_shares = change_shares(q.log_shares, gain * towards)
    gap = q.shares @ (xp.stack([report.gap for report in reports]) + towards**2 / 2)
    clipped = xp.any(xp.stack([report.clipped for report in reports]))
    q = type(q).unchecked(log_shares, means, chols, q.tail)
    return q, MixtureState(states, gap), StepReport(clipped, gain, gap)
