"""Learned centring: which degree of centring each element of the location–scale sites of a target should have.

Changing the degree c of an element by δ, at fixed x̃, is the same as moving that coordinate of x̃ along the field
v = −(log σ · (x̃ − c μ) + μ) by δ. So the gradient of any bound in c is that of moving q along v, E[A s v] with the
weighted score A s that a step makes anyway, and all it takes besides is μ and log σ at the draws. Steps of q and of c
go together, through one compiled program, because the degrees are an array of the recentred density.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import linalg
from bures.arrays import to_device, to_host
from bures.centring import Recentring, recentre, recentring_of
from bures.check import check_key, fail
from bures.draws import host_generator
from bures.engine import MANY, default_draws, evaluator_of
from bures.estimator import Stein
from bures.family import AbstractApproximation, FullRank, Gaussian
from bures.field import Estimate
from bures.fitting.defaults import FULL_RANK_DIM, default_objective
from bures.geometry import Whitened
from bures.loop import Method, State
from bures.start import find_start
from bures.start_in_factors import find_start_in_factors
from bures.target import Target
from bures.threads import one_blas_thread

_ALONE = 4  # steps of q before its precision is good for a first guess
_STEPS = 12  # of q and of the degrees together
_FULL = 4  # of these before the degrees' steps grow shorter, to average noise away
_LONGEST = 0.25  # step of a degree
_LEAST_CURVATURE = 1e-6  # where c does not bend the density, location and scale are known: it stays as it is
_DRAWS, _DRAWS_PER_DIMENSION, _MOST_DRAWS = 400, 4, 1000  # at a step; a regression on d coordinates needs more than d
_SEARCHED_DIM = 50  # up to which a search for modes alone finds the start
_STREAM = 2**33  # with the key: no step of a fit has such a number


class Centring(eqx.Module):
    """A target in learned degrees of centring, and what it took.

    `bures.fit(centring.target, init=centring.approximation, key=key)` goes on from there. Its draws come back in the
    model's own variables.
    """

    target: Target  # in recentred coordinates
    approximation: AbstractApproximation | None  # on them, to begin a fit with; None where only a guess was affordable
    evaluations: int = eqx.field(static=True)

    @property
    def degrees(self) -> dict[str, np.ndarray]:
        """The degree c of each element, by site: 0 non-centred, 1 as the model has it."""
        recentring = recentring_of(self.target)
        return {} if recentring is None else recentring.by_name()

    def describe(self) -> str:
        """What was learned, in a sentence or two."""
        parts = [f"{name} {_range(degrees)}" for name, degrees in self.degrees.items()]
        return f"Degrees of centring (0 non-centred, 1 centred) were learned in {self.evaluations:,} evaluations: " + (
            f"{', '.join(parts)}. Draws are in the model's own variables."
        )


def _range(degrees: np.ndarray) -> str:
    low, high = float(degrees.min()), float(degrees.max())
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def learn_centring(key: Key[Array, ""], target: Target, start: Gaussian | None = None) -> Centring:
    """The degrees of centring with which a Gaussian fits a target best, as far as some thousand evaluations can tell.

    From the non-centred target, a Gaussian takes some steps, and its precision gives a first guess. With Λ the
    precision of one element given all others, of which σ^(−2c) is its prior's, c ← 1 − σ^(−2c) / Λ: the share of its
    precision that comes from the data. That is exact for a Gaussian likelihood. Then q and c take steps together, those
    of c along the gradient of the same bound, divided by its curvature where q is exact.

    **Arguments:**

    - `key`: a typed key; the result is a function of it.
    - `target`: one with location–scale `sites`.
    - `start`: a Gaussian near the target as it is, in the place of a search for one.

    Beyond 400 dimensions, where a full covariance is too dear, the first guess is all.
    """
    check_key(key)
    if not isinstance(target, Target) or not target.sites:
        remedy = "See `location_scale` of Target.from_variables; from_numpyro and from_pymc find them by themselves."
        raise fail("target", "a target with location–scale sites", target, remedy)
    if start is not None and (not isinstance(start, Gaussian) or start.dim != target.dim):
        raise fail("start", f"a bures.Gaussian on R^{target.dim}", start, "Leave it out, and one is searched for.")
    with np.errstate(all="ignore"), one_blas_thread(target.dim):
        return _Learning(key, target).run(start)


class _Draws(NamedTuple):
    """Draws of q, and what the sites see there."""

    noise: Float[np.ndarray, "n dim"]
    x: Float[np.ndarray, "n elements"]  # x̃
    location: Float[np.ndarray, "n elements"]
    log_scale: Float[np.ndarray, "n elements"]


class _Learning:
    """One run: the target, non-centred at first, and the evaluations it has cost."""

    def __init__(self, key: Key[Array, ""], target: Target):
        self.key, self.original = key, target
        self.target = recentre(target, 0.0)
        self.evaluator = evaluator_of(self.target, True)
        self.evaluations = 0
        self.elements = np.concatenate([np.arange(s.start, s.start + s.size) for s in target.sites])
        draws = int(np.clip(_DRAWS_PER_DIMENSION * target.dim, _DRAWS, _MOST_DRAWS))
        objective = default_objective(target, FullRank())
        self.method = Method(objective, Stein(M=draws // objective.K), Whitened())

    def run(self, start: Gaussian | None) -> Centring:
        q = self.begin(start)
        if not isinstance(q, Gaussian):
            degrees = self.guess(q, self.look(q, q.push(self.rng(0).standard_normal((_DRAWS, q.dim)))))
            return self.finish(degrees, None)
        degrees, state = np.zeros(len(self.elements)), State(q, self.method.geometry.init(q))
        for step in range(_ALONE + 1 + _STEPS):
            q = state.approximation
            moved = self.step(step, state)
            if moved is None:
                break
            state, estimate = moved
            if step < _ALONE:
                continue
            draws = self.look(q, estimate.field.noise)
            if step == _ALONE:
                changed = self.guess(q, draws)
                state = state._replace(geometry=self.method.geometry.init(q))  # gradients of another place
            else:
                gain = 1 / (1 + max(0, step - _ALONE - _FULL) / 2)
                changed = self.improve(degrees, q, draws, estimate, gain)
            state = state._replace(approximation=self.carry(degrees, changed, q, state.approximation, draws))
            degrees = changed
            self.use(degrees)
        return self.finish(degrees, state.approximation)

    def rng(self, number: int) -> np.random.Generator:
        return host_generator(self.key, _STREAM + number)

    def use(self, degrees: np.ndarray) -> None:
        """Evaluate at other degrees from now on: the same program with another array."""
        self.evaluations += self.evaluator.count
        place = lambda target: target.log_density.recentring.degrees  # noqa: E731
        array = jax.device_put(degrees.astype(self.evaluator.dtype))
        self.target = eqx.tree_at(place, self.target, array)
        self.evaluator = evaluator_of(self.target, True)

    def finish(self, degrees: np.ndarray, q: Any) -> Centring:
        recentred = recentre(self.original, degrees)
        spent = self.evaluations + self.evaluator.count
        return Centring(recentred, None if q is None else to_device(q), spent)

    def begin(self, start: Gaussian | None) -> AbstractApproximation:
        """A Gaussian near the non-centred target, carried over or searched for; low-rank in very many dimensions."""
        if start is not None:
            return self.carry_start(to_host(start))
        rng, target, evaluator = self.rng(2**20), self.target, self.evaluator
        searched = find_start(rng, target, evaluator, default_draws(target.dim)) if target.dim <= MANY else None
        if searched is None or target.dim > _SEARCHED_DIM:
            searched = find_start_in_factors(rng, target, evaluator, searched)
        q = searched.approximation if target.dim > FULL_RANK_DIM else FullRank().of(searched.approximation)
        return jax.tree.map(lambda part: np.asarray(part, evaluator.dtype), to_host(q))

    def step(self, number: int, state: State) -> tuple[State, Estimate] | None:
        """A step of q; None if it is not finite."""
        q, method = state.approximation, self.method
        objective = method.geometry.next_objective(method.objective, state.geometry)
        noise = method.estimator.noise(self.rng(number), q, objective.K)
        estimate = method.estimator.estimate(noise, q, self.evaluator, objective)
        moved, geometry, _ = method.geometry.step(estimate, q, state.geometry)
        return (State(moved, geometry), estimate) if np.isfinite(estimate.bound) and moved.is_valid() else None

    def look(self, q: AbstractApproximation, noise: np.ndarray) -> _Draws:
        """Location and scale at draws, by a program of the sites alone."""
        z = q.push(noise)
        found = _parameters(recentring_of(self.target), z)
        return _Draws(noise, z[:, self.elements], *(np.asarray(part, np.float64) for part in found))

    def guess(self, q: AbstractApproximation, draws: _Draws) -> np.ndarray:
        """The share of an element's precision that is not its prior's, which is 1 in non-centred coordinates."""
        precision = np.asarray(q.precision().diagonal(), np.float64)[self.elements]
        return np.clip(1 - 1 / precision, 0, 1)

    def improve(self, degrees: np.ndarray, q: Gaussian, draws: _Draws, estimate: Estimate, gain: float) -> np.ndarray:
        """A step of the degrees along the gradient of the bound, divided by its curvature where q is exact.

        What of v is affine, q can do itself: the rest counts. The curvature is the expected square of the change of
        log p̃ beyond quadratic terms, which for Gaussian log σ, w = x̃ − c μ and p = Σ⁻¹(x̃ − m) is the permanent of
        their covariances; those of p with log σ and w are 0 and 1.
        """
        field = estimate.field
        w = draws.x - degrees * draws.location
        v = -(draws.log_scale * w + draws.location)
        basis, _ = np.linalg.qr(np.column_stack([np.ones(len(v)), draws.noise]))
        rest = v - basis @ (basis.T @ v)
        rest *= len(v) / (len(v) - basis.shape[1])  # the regression has taken a share of it
        gradient = (field.weight / field.mean_A) @ (rest * field.score[:, self.elements])
        precision = np.asarray(q.precision().diagonal(), np.float64)[self.elements]
        spread, width = draws.log_scale.var(axis=0), w.var(axis=0)
        common = np.mean((draws.log_scale - draws.log_scale.mean(axis=0)) * (w - w.mean(axis=0)), axis=0)
        curvature = spread * (width * precision + 1) + common**2 * precision
        step = np.where(curvature > _LEAST_CURVATURE, gradient / np.maximum(curvature, _LEAST_CURVATURE), 0)
        return np.clip(degrees + np.clip(np.nan_to_num(gain * step), -_LONGEST, _LONGEST), 0, 1)

    def carry(self, old: np.ndarray, new: np.ndarray, q: Gaussian, moved: Gaussian, draws: _Draws) -> Gaussian:
        """Where the affine map nearest to the change of coordinates takes `moved`; the draws are those of q."""
        stretch = np.exp((new - old) * draws.log_scale)
        after = new * draws.location + stretch * (draws.x - old * draws.location)
        design = np.column_stack([np.ones(len(after)), draws.noise])
        found = np.linalg.lstsq(design, after - draws.x, rcond=None)[0]
        return _push_affine(q, moved, self.elements, found)

    def carry_start(self, start: Gaussian) -> Gaussian:
        """A Gaussian near the target as it is, in non-centred coordinates."""
        noise = self.rng(2**20).standard_normal((self.method.cost().log_densities, start.dim))
        z = start.push(noise)
        after = np.asarray(_apply(recentring_of(self.target), z), np.float64)
        finite = np.all(np.isfinite(after), axis=1)
        design = np.column_stack([np.ones(len(noise)), noise])[finite]
        found = np.linalg.lstsq(design, (after - z)[finite], rcond=None)[0]
        q = _push_affine(start, start, np.arange(start.dim), found)
        return jax.tree.map(lambda part: np.asarray(part, self.evaluator.dtype), q)


def _push_affine(q: Gaussian, moved: Gaussian, elements: np.ndarray, found: np.ndarray) -> Gaussian:
    """`moved` with a shift of some coordinates added, affine in the noise of q: its coefficients by row."""
    dim, dtype = q.dim, q.mean.dtype
    change = np.zeros((dim, dim))
    change[elements] = found[1:].T @ linalg.inverse_lower(q.chol)
    mean = moved.mean + change @ (moved.mean - q.mean)
    mean[elements] += found[0]
    chol = linalg.cholesky_of_square(moved.chol + change @ moved.chol)
    return Gaussian.unchecked(mean.astype(dtype), chol.astype(dtype))


@eqx.filter_jit
def _parameters(recentring: Recentring, z: Any) -> tuple[Array, Array]:
    """Location and log scale of every element at many points."""
    restored = jax.vmap(recentring.restore)(jnp.asarray(z))
    return restored.location, restored.log_scale


@eqx.filter_jit
def _apply(recentring: Recentring, x: Any) -> Array:
    return jax.vmap(recentring.apply)(jnp.asarray(x))
