"""Estimators: (noise, q, target, objective) -> the field, the Wasserstein gradient of a bound at draws of q.

For full Gaussians N(m, Σ) its projection is the affine map z ↦ a + S (z − m) with a = E[A s] and S = E[A H + B s sᵀ],
where s and H are the score and Hessian of the log weight ℓ = log p − log q (Proposition 2 of the paper). The gradient
of the bound in (m, L) is K a and tril(K S L). Other families keep less of S.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import draws as noise_sources, linalg
from bures.arrays import AnyArray, Module, namespace, on_host, softmax
from bures.check import check_floating, check_key, check_option, check_part, check_positive_integer, fail
from bures.compiled import compiled
from bures.family.approximation import AbstractApproximation
from bures.family.gaussian import Gaussian
from bures.field import Curvature, Dense, Estimate, Field, Operator, Path, Stein as SteinSlope
from bures.objective import AbstractObjective
from bures.target import Target

_SOURCES = {"iid": noise_sources.iid, "antithetic": noise_sources.antithetic, "sobol": noise_sources.sobol}
# Below these, the quick way to block draws loses digits: powers that divide, and sums whose inverses are cubed.
_LEAST_POWER, _LEAST_SUM = 1e-3, {"f": 1e-12, "d": 1e-90}
_SMALL_POWER = 1e-4  # 1 − α below which its limit is as good, and has no rounding errors
_MANY = 100  # dimensions beyond which pairs of draws share their linear algebra
_M_REMEDY = "M is the number of K-tuples drawn at each step, e.g. M=100."


def _check_count(M: Any) -> int:
    return check_positive_integer("M", M, _M_REMEDY)


def _check_permutations(count: Any) -> int:
    return check_positive_integer("permutations", count, "1 uses each draw in one tuple.")


class Cost(NamedTuple):
    """Evaluations of the target that one estimate pays."""

    log_densities: int
    gradients: int
    hessians: int


class AbstractEstimator(Module):
    """Monte Carlo estimator of the gradient of a bound from M tuples of K draws."""

    M: eqx.AbstractVar[int]
    draws: eqx.AbstractVar[str]

    def __check_init__(self):
        _check_count(self.M)
        check_option("draws", self.draws, tuple(_SOURCES))

    def noise(self, source: noise_sources.Source, q: AbstractApproximation, K: int) -> Float[AnyArray, "M K noise"]:
        """Standard normal noise from a key or a generator: rows of a tuple are independent whatever the kind."""
        return _SOURCES[self.draws](source, self.M, K * q.noise_dim, q.mean.dtype).reshape(self.M, K, -1)

    def __call__(
        self, key: Key[Array, ""], q: AbstractApproximation, target: Target, objective: AbstractObjective
    ) -> Estimate:
        return _estimate(self, key, q, target, objective)

    def estimate(
        self, noise: Float[AnyArray, "M K dim"], q: AbstractApproximation, target: Any, objective: AbstractObjective
    ) -> Estimate:
        """The field of given noise, projected onto the tangent space of q's family."""
        return q.project(self.field(noise, q, target, objective))

    def field(
        self, noise: Float[AnyArray, "M K dim"], q: AbstractApproximation, target: Any, objective: AbstractObjective
    ) -> Field:
        """The field at the draws of given noise; `target` is a `Target`, or an `Evaluator` of one on the host."""
        raise NotImplementedError

    def check_family(self, q: AbstractApproximation) -> None:
        """Raise a ValueError with the reason if it cannot serve members of q's family."""

    def cost(self, objective: AbstractObjective) -> Cost:
        """Evaluations of the target a call pays."""
        raise NotImplementedError


class Price(AbstractEstimator):
    """The exact-Hessian estimator: S = E[A H + B s sᵀ] (Proposition 2; Price's theorem for K = 1).

    **Arguments:**

    - `M`: the number of tuples.
    - `indices`: `"all"` averages over the K exchangeable indices of each tuple; `"last"` is the paper's choice,
        one index a tuple: K times fewer derivatives and several times the variance.
    - `draws`: `"iid"`, `"antithetic"` (tuples and their mirror images), or `"sobol"` for M scrambled Sobol points in
        K·dim dimensions.
    - `permutations`: with `indices="all"` and draws other than Sobol, how many ways to block the same draws into tuples
        (an incomplete U-statistic): weight algebra only, no further evaluations of the target.
    """

    M: int = eqx.field(static=True, default=100, converter=_check_count)
    indices: str = eqx.field(static=True, default="all")
    draws: str = eqx.field(static=True, default="iid")
    permutations: int = eqx.field(static=True, default=1, converter=_check_permutations)

    def __check_init__(self):
        _check_blocks(self)

    def field(self, noise, q, target, objective):
        at = _derivatives(noise, q, target, objective, self.indices, self.permutations)
        n = at.A.size
        if q.has_shares:
            curvature = Curvature(target, at.z, at.score, at.A / n, at.B / n)
            return at.finish(_stein(at), objective)._replace(curvature=curvature)
        hessian = target.weighted_hessian(at.A / n, at.z)
        S = hessian + namespace(at.A).mean(at.A) * q.precision().matrix()
        return at.finish(Dense(S + (at.score.T * (at.B / n)) @ at.score), objective)

    def cost(self, objective):
        derivatives = self.M * (objective.K if self.indices == "all" else 1)
        return Cost(self.M * objective.K, derivatives, derivatives)


class Stein(AbstractEstimator):
    """The gradient-only estimator: S = E[Σ⁻¹ (z − m) (A s)ᵀ] by Stein's lemma, symmetrised.

    Arguments as for `Price`. No Hessians, more variance in S.
    """

    M: int = eqx.field(static=True, default=100, converter=_check_count)
    indices: str = eqx.field(static=True, default="all")
    draws: str = eqx.field(static=True, default="iid")
    permutations: int = eqx.field(static=True, default=1, converter=_check_permutations)

    def __check_init__(self):
        _check_blocks(self)

    def field(self, noise, q, target, objective):
        pairs = self.draws == "antithetic" and _are_pairs(q, objective, noise)
        at = _derivatives(noise, q, target, objective, self.indices, self.permutations, second_order=False, pairs=pairs)
        return at.finish(_stein_of_pairs(at) if pairs else _stein(at), objective)

    def cost(self, objective):
        return Cost(self.M * objective.K, self.M * (objective.K if self.indices == "all" else 1), 0)


class Reparameterised(AbstractEstimator):
    """The plain gradient of the bound in (m, L) through z = m + L ε, the paper's Euclidean baseline.

    What automatic differentiation of the bound gives: ∇_m = E[Σ g ∇log p] and ∇_L = E[Σ g ∇log p εᵀ] + L⁻ᵀ, reported
    as a = ∇_m / K and S = ∇_L L⁻¹ / K so that tril(K S L) gives ∇_L back.
    """

    M: int = eqx.field(static=True, default=100, converter=_check_count)
    draws: str = eqx.field(static=True, default="iid")

    def check_family(self, q):
        if q.has_shares:
            wanted = f"able to serve a {q.family} approximation, whose draws are no smooth function of its shares"
            raise fail("estimator", wanted, self, "Use Stein(M) or Price(M).")

    def field(self, noise, q, target, objective):
        M, K, dim = noise.shape
        values, score = target.value_and_score(q.push(noise).reshape(-1, dim))
        log_weights = values.reshape(M, K) - q.log_prob_of_noise(noise)
        xp = namespace(log_weights)
        g, A, _ = objective.coefficients(log_weights)
        g, noise = g.reshape(-1, 1), noise.reshape(-1, dim)
        entropy_scores = q.precision_times_noise(noise)
        weighted = xp.where(g != 0, g * score, 0) / (M * K)
        return Field(
            noise=noise,
            score=xp.where(g != 0, score + entropy_scores, 0),
            weight=g[:, 0] / (M * K),
            a=xp.sum(weighted, axis=0),
            slope=Path(weighted, entropy_scores, q.precision(), K),
            entropy_score=xp.zeros_like(q.mean),
            mean_A=xp.mean(A),
            log_weights=log_weights,
            bound=xp.mean(objective.bound(log_weights)),
            K=K,
        )

    def cost(self, objective):
        return Cost(self.M * objective.K, self.M * objective.K, 0)


def bw_gradient(
    key: Key[Array, ""],
    q: AbstractApproximation,
    target: Target,
    objective: AbstractObjective,
    estimator: AbstractEstimator,
) -> tuple[Float[Array, " dim"], Any]:
    """The Bures–Wasserstein gradient of a bound at q: (a, S) of the affine map z ↦ a + S (z − m).

    S is the matrix for a full Gaussian, and what the family keeps of it for others.

    >>> from bures import ELBO
    >>> target = Target(lambda z: -jnp.sum((z - 1.0) ** 2) / 2, dim=2)
    >>> a, S = bw_gradient(
    ...     jax.random.key(0), Gaussian.standard(2), target, objective=ELBO(), estimator=Price(M=10)
    ... )
    >>> a.tolist(), S.round(6).tolist()  # ∇ℓ is constant where Σ is the covariance of the target
    ([1.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])
    """
    check_key(key)
    check_dimensions(q, target)
    check_part("objective", objective, AbstractObjective, "bures.IWELBO(K=5)")
    check_part("estimator", estimator, AbstractEstimator, "bures.Price(M=100)")
    estimate = estimator(key, q, target, objective)
    return estimate.a, linalg.symmetrise(estimate.S) if isinstance(q, Gaussian) else estimate.S


@compiled
def _estimate(
    estimator: AbstractEstimator,
    key: Key[Array, ""],
    q: AbstractApproximation,
    target: Target,
    objective: AbstractObjective,
) -> Estimate:
    return estimator.estimate(estimator.noise(key, q, objective.K), q, target, objective)


@compiled
def _wasserstein_gradient(key, z, q, target, objective, M):
    noise = jax.random.normal(key, (M, objective.K - 1, q.dim), q.mean.dtype)
    others = target.value(q.push(noise).reshape(-1, q.dim)).reshape(M, -1) - q.log_prob_of_noise(noise)
    value, score = target.value_and_score(z[None])
    own = jnp.broadcast_to(value - q.log_prob(z), (M, 1))
    A = objective.coefficients(jnp.concatenate([others, own], axis=1)).A[:, -1]
    entropy_score = q.precision_times_noise(q.whiten(z)[None])[0]
    mean_A = jnp.mean(A)
    # Outside the support the weight is zero, whatever the score.
    return jnp.where(mean_A != 0, mean_A * (score[0] + entropy_score), 0)


def wasserstein_gradient(
    key: Key[Array, ""],
    z: Float[Array, " dim"],
    q: AbstractApproximation,
    target: Target,
    objective: AbstractObjective,
    M: int = 100,
) -> Float[Array, " dim"]:
    """The coordinatewise Wasserstein gradient at a point z: E[A(z, z₁..z_{K−1}) ∇ℓ(z)] over M sets of K − 1 draws.

    Propositions 1 (IW-ELBO) and 4 (VR-IWAE) of the paper.
    """
    check_key(key)
    check_dimensions(q, target)
    check_part("objective", objective, AbstractObjective, "bures.IWELBO(K=5)")
    check_positive_integer("M", M, _M_REMEDY)
    if getattr(z, "shape", (q.dim,)) != (q.dim,):
        raise fail("z", f"a point of shape ({q.dim},)", z, "For several points use jax.vmap.")
    z = check_floating("z", z, ndim=1).astype(q.mean.dtype)
    if z.shape != (q.dim,):
        raise fail("z", f"a point of shape ({q.dim},)", z, "For several points use jax.vmap.")
    return _wasserstein_gradient(key, z, q, target, objective, M)


def check_dimensions(q: AbstractApproximation, target: Target) -> None:
    """The approximation and the target live on the same space."""
    if not isinstance(target, Target):
        raise fail("target", "a bures.Target", target, "Make one with bures.Target(log_density, dim).")
    if not isinstance(q, AbstractApproximation):
        raise fail("q", "a bures.Gaussian", q, "Make one with Gaussian.from_moments(mean, covariance).")
    if q.dim != target.dim:
        raise fail("q", f"a Gaussian on R^{target.dim}, where the target lives", q.mean, "Match the dimensions.")


def _check_blocks(estimator: Price | Stein) -> None:
    check_option("indices", estimator.indices, ("all", "last"))
    count = estimator.permutations
    if count == 1:
        return
    if estimator.indices != "all":
        raise fail("permutations", "1 with indices='last'", count, "Use indices='all'.")
    if estimator.draws == "sobol":
        raise fail("permutations", "1 with Sobol draws", count, "Tuples across Sobol rows are dependent: use iid.")
    if count > estimator.M:
        raise fail("permutations", f"at most M={estimator.M}", count, "There are M distinct blockings of this kind.")


class _Derivatives(NamedTuple):
    """The draws at which derivatives are taken, flattened, with their coefficients and scores."""

    z: Float[AnyArray, "n dim"]
    noise: Float[AnyArray, "n dim"]
    score: Float[AnyArray, "n dim"]
    A: Float[AnyArray, " n"]
    B: Float[AnyArray, " n"]
    entropy_scores: Float[AnyArray, "n dim"]  # Σ⁻¹ (z − m), that is −∇log q
    mean_A: Float[AnyArray, ""]
    log_weights: Float[AnyArray, "M K"]
    bound: Float[AnyArray, ""]
    variation: Float[AnyArray, " n"] | None

    def finish(self, slope: Operator, objective: AbstractObjective) -> Field:
        n = self.A.size
        return Field(
            self.noise,
            self.score,
            self.A / n,
            self.A @ self.score / n,
            slope,
            self.A @ self.entropy_scores / n,
            self.mean_A,
            self.log_weights,
            self.bound,
            objective.K,
            None if self.variation is None else self.variation / n,
        )


def _derivatives(
    noise: Float[AnyArray, "M K dim"],
    q: AbstractApproximation,
    target: Any,
    objective: AbstractObjective,
    indices: str,
    permutations: int,
    second_order: bool = True,
    pairs: bool = False,
) -> _Derivatives:
    """Draw, weigh, and take scores at the draws that `indices` asks for; B may be anything if not `second_order`.

    With `pairs` the second half of the noise is minus the first: what is linear in it is done once for both.
    """
    (M, K, _), dim = noise.shape, q.dim
    xp = namespace(noise)
    if pairs:
        above = q.push(noise[: M // 2])
        z = xp.concatenate([above, 2 * q.mean - above])
    else:
        z = q.push(noise)
    first = 0 if indices == "all" else K - 1  # scores at the draws from this index on
    values, score = target.value_and_score(z[:, first:].reshape(-1, dim))
    values = values.reshape(M, -1)
    if first > 0:
        rest = target.value(z[:, :first].reshape(-1, dim)).reshape(M, -1)
        values = xp.concatenate([rest, values], axis=1)
    log_weights = values - q.log_prob_of_noise(noise)
    bound, A, B = _blocked(objective, log_weights, permutations, second_order)
    mean_A = A.sum() / A.size
    variation = _variation(objective, log_weights)[:, first:].reshape(-1) if q.has_shares else None
    A, B = A[:, first:].reshape(-1), B[:, first:].reshape(-1)
    z, noise = z[:, first:].reshape(-1, dim), noise[:, first:].reshape(-1, noise.shape[-1])

    # A draw of weight zero (outside the support, say) contributes nothing, whatever its derivatives are.
    active = (A != 0)[:, None]
    if pairs:
        above = q.precision_times_noise(noise[: M // 2])
        entropy_scores = xp.concatenate([above, -above])
    else:
        entropy_scores = q.precision_times_noise(noise)
    score = xp.where(active, score + entropy_scores, 0)
    return _Derivatives(z, noise, score, A, B, entropy_scores, mean_A, log_weights, bound, variation)


def _stein(at: _Derivatives) -> SteinSlope:
    return SteinSlope(at.entropy_scores * (at.A / at.A.size)[:, None], at.score)


def _are_pairs(q: AbstractApproximation, objective: AbstractObjective, noise: Float[AnyArray, "M K dim"]) -> bool:
    """Whether these are pairs whose draws all weigh the same, on the host, where d × d matrices are large."""
    if not (isinstance(q, Gaussian) and q.dim > _MANY and objective.K == 1 and noise.shape[0] % 2 == 0):
        return False
    half = noise.shape[0] // 2
    return on_host(noise) and all(np.array_equal(noise[i], -noise[half + i]) for i in (0, half - 1))


def _stein_of_pairs(at: _Derivatives) -> SteinSlope:
    """The same of draws that all weigh the same, the second half of them minus the first."""
    half = at.A.size // 2
    return SteinSlope(at.entropy_scores[:half] * (at.A[:half] / at.A.size)[:, None], at.score[:half] - at.score[half:])


def _variation(objective: AbstractObjective, log_weights: Float[AnyArray, "M K"]) -> Float[AnyArray, "M K"]:
    """F − g_k: the first variation of the bound at each draw of a tuple, over K, less what does not depend on the draw.

    That is F of the others, and a constant: without them the signal, of order 1/K², is lost in noise of order one.
    """
    g = objective.coefficients(log_weights).g
    if objective.K == 1 or type(objective).bound is not AbstractObjective.bound:
        return objective.bound(log_weights)[:, None] - g
    return _gain(objective, log_weights) - g + 1 / objective.K


def _gain(objective: AbstractObjective, log_weights: Float[AnyArray, "M K"]) -> Float[AnyArray, "M K"]:
    """What each draw adds to the bound of the others: the sum of weights without the k-th is 1 − g_k of the sum."""
    xp, K, power = namespace(log_weights), objective.K, objective.power(log_weights)
    share = softmax(power * log_weights)
    rest = xp.maximum(1 - share, xp.finfo(share.dtype).eps)
    limit = (log_weights - log_weights.mean(axis=-1, keepdims=True)) / (K - 1)  # of the power 0
    return xp.where(power > _SMALL_POWER, -xp.log(rest * K / (K - 1)) / power, limit)


def _blocked(
    objective: AbstractObjective, log_weights: Float[AnyArray, "M K"], permutations: int, second_order: bool = True
) -> tuple[Float[AnyArray, ""], Float[AnyArray, "M K"], Float[AnyArray, "M K"]]:
    """The bound and coefficients, averaged over several ways to block the same draws into tuples.

    Blocking p pairs draw k of row m with draw k' of row m + p (k' − k): shifts along the rows, under which two
    draws share a tuple about once, so the blockings overlap as little as they can.
    """
    xp = namespace(log_weights)
    if permutations == 1:
        _, A, B = objective.coefficients(log_weights)
        return xp.mean(objective.bound(log_weights)), A, B
    if xp is np:
        quick = _blocked_quickly(objective, log_weights, permutations, second_order)
        if quick is not None:
            return quick
    there, back, _ = blockings(*log_weights.shape, permutations)
    blocked = xp.moveaxis(log_weights.reshape(-1)[there], 0, -1)
    _, A, B = objective.coefficients(blocked)
    bound = objective.bound(blocked)
    A, B = (xp.moveaxis(x, -1, 0).reshape(-1)[back].sum(axis=0) / permutations for x in (A, B))
    return bound.sum() / bound.size, A, B


def _blocked_quickly(
    objective: AbstractObjective, log_weights: np.ndarray, permutations: int, second_order: bool
) -> tuple[np.generic, np.ndarray, np.ndarray] | None:
    """The same on the host with one exponential for each draw, not for each place of it; None where that underflows.

    With w = exp((1−α) (ℓ − max ℓ)) and one over the sum of a tuple, g is a product, and the powers of g summed over
    blockings are powers of w times sums of powers of those quotients.
    """
    own = type(objective).coefficients, type(objective).bound
    if own != (AbstractObjective.coefficients, AbstractObjective.bound):
        return None
    power, of_bound = objective.gradient_power(log_weights), objective.power(log_weights)
    top = log_weights.max()
    if not (of_bound > _LEAST_POWER and np.isfinite(top)):
        return None
    there, _, tuples = blockings(*log_weights.shape, permutations)
    centred = log_weights - top
    weights = np.exp(power * centred)
    sums = weights.take(there).sum(axis=0)
    sums_of_bound = sums if power == of_bound else np.exp(of_bound * centred).take(there).sum(axis=0)
    if not min(sums.min(), sums_of_bound.min()) > _LEAST_SUM[log_weights.dtype.char]:
        return None
    bound = top + np.log(sums_of_bound / objective.K).sum() / sums.size / of_bound
    quotients = (1 / sums).take(tuples)  # (permutations, M, K)
    squares = quotients * quotients
    g = weights * quotients.sum(axis=0) / permutations
    g2 = weights**2 * squares.sum(axis=0) / permutations
    A = (1 - power) * g + power * g2
    if not second_order:
        return bound, A, A
    g3 = weights**3 * (squares * quotients).sum(axis=0) / permutations
    return bound, A, power * ((1 - power) * g + (3 * power - 1) * g2 - 2 * power * g3)


@functools.lru_cache(maxsize=64)
def blockings(M: int, K: int, permutations: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each draw of each blocking, (K, permutations, M), comes from in the flattened draws; for each draw where
    it is in each flattened blocking, (permutations, M, K); and the number of its tuple there, likewise.

    The draws of a tuple are the first axis: sums over it are then sums of long rows.
    """
    shift, row, column = np.ogrid[:permutations, :M, :K]
    there = (row + shift * column) % M * K + column
    tuples = shift * M + (row - shift * column) % M
    return np.ascontiguousarray(np.moveaxis(there, -1, 0)), column * permutations * M + tuples, tuples
