"""Learned centring: coordinates of location–scale sites in which a Gaussian fits a target better.

First the factors of `Conditioned` coordinates: with g the score of an element x beyond its prior's, what the data and
later sites say about it, λ = −E[∂g/∂x] and b = E[g] + λ E[x]. Both come from the scores that the steps of a Gaussian
make anyway, by a regression on the draws. Then a `Warp` of single coordinates, of what skewness is left: mostly that of
the scales. Changing a number of it by δ is the same as moving q along a field v by δ, so that the gradient of the bound
is E[A s v], with the weighted scores of a step. Steps of q and of these numbers go together, through two compiled
programs, because the numbers are arrays of the density.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import linalg
from bures.arrays import to_device, to_host
from bures.centring import Conditioned, Parameters, change_coordinates, changes_of, check_has_sites
from bures.check import check_key, default_dtype, fail
from bures.draws import host_generator
from bures.engine import MANY, Watch, default_draws, evaluator_of
from bures.estimator import Stein
from bures.family import AbstractApproximation, FullRank, Gaussian
from bures.field import Estimate
from bures.fitting.defaults import FULL_RANK_DIM, default_objective
from bures.geometry import Whitened
from bures.loop import Method, State
from bures.objective import IWELBO, AbstractObjective
from bures.start import find_start
from bures.start_in_factors import find_start_in_factors
from bures.target import Target
from bures.threads import one_blas_thread
from bures.warp import Warp

_ALONE, _MOST_ALONE = 4, 16  # steps of q before a first guess: at least, and while it is still far away
_STARTS = 2  # that are tried
_FACTOR_STEPS, _WARP_STEPS = 9, 8  # of q and of the factors, of q and of the warp
_FULL = 4  # of these before the steps of the numbers grow shorter, to average noise away
_LONGEST = 0.25  # step of a degree of centring, of a skewness and of a tail
_K = 10  # of the IW-ELBO that a fit in learned coordinates is offered
_MOST_CENTRED = 0.9999
_MOST_SKEWED, _TAILS = 1.5, (0.5, 2.0)
_LEAST_CURVATURE = 1e-3
_DRAWS, _DRAWS_PER_DIMENSION, _MOST_DRAWS = 400, 4, 1000  # at a step; a regression on d coordinates needs more than d
_SEARCHED_DIM = 50  # up to which a search for modes alone finds the start
_STREAM, _STARTING = 2**33, 2**34  # with the key: no step of a fit has such a number


class Centring(eqx.Module):
    """A target in learned coordinates, and what it took.

    `bures.fit(centring.target, init=centring.approximation, objective=centring.objective, key=key)` goes on from there.
    Its draws come back in the model's own variables.
    """

    target: Target  # in learned coordinates
    approximation: AbstractApproximation | None  # on them, to begin a fit with; None where only a guess was affordable
    objective: AbstractObjective | None  # for that fit: weights are even enough for the IW-ELBO now
    degrees: dict[str, np.ndarray]  # of centring, by site: λ σ² / (1 + λ σ²), 0 non-centred, 1 centred
    evaluations: int = eqx.field(static=True)

    def describe(self) -> str:
        """What was learned, in two sentences."""
        parts = [f"{name} {_range(degrees)}" for name, degrees in self.degrees.items()]
        return (
            f"Degrees of centring (0 non-centred, 1 centred) were learned in {self.evaluations:,} evaluations: "
            f"{', '.join(parts)}. Draws are in the model's own variables."
        )


def _range(degrees: np.ndarray) -> str:
    low, high = float(degrees.min()), float(degrees.max())
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def learn_centring(
    key: Key[Array, ""], target: Target, start: Gaussian | None = None, *, watch: Watch = lambda each: each
) -> Centring:
    """Coordinates in which a Gaussian fits a target better, as far as some thousand evaluations can tell.

    **Arguments:**

    - `key`: a typed key; the result is a function of it.
    - `target`: one with location–scale `sites`.
    - `start`: a Gaussian near the target as it is, in the place of a search for one.
    - `watch`: may note what evaluators are asked for, and end it.

    Beyond 400 dimensions, where a full covariance is too dear, a first guess is all.
    """
    check_key(key)
    check_has_sites(target)
    if start is not None and (not isinstance(start, Gaussian) or start.dim != target.dim):
        raise fail("start", f"a bures.Gaussian on R^{target.dim}", start, "Leave it out, and one is searched for.")
    with np.errstate(all="ignore"), one_blas_thread(target.dim):
        return _learn(key, target, start, watch)


def _learn(key: Key[Array, ""], target: Target, start: Gaussian | None, watch: Watch) -> Centring:
    factors = _Factors.none(target)
    run = _Run(key, target, change_coordinates(target, factors.change(target)), watch)
    q = _begin(run, start)
    if isinstance(q, Gaussian):
        factors, q, draws = _learn_factors(run, factors, q)
    else:  # too many dimensions for more
        draws = run.look(q, run.rng().standard_normal((_DRAWS, q.dim)).astype(run.evaluator.dtype))
        factors = _first_factors(q, draws, run.elements)
    change = factors.change(target)
    degrees = change.by_name(factors.degrees(draws.log_scale.mean(axis=0)))
    found = change_coordinates(target, change)
    if not isinstance(q, Gaussian):
        return Centring(found, None, None, degrees, run.evaluations)
    warp = _Numbers.none(q)
    run = run.on(change_coordinates(found, warp.change()))
    warp, q = _learn_warp(run, warp, q)
    return Centring(change_coordinates(found, warp.change()), to_device(q), IWELBO(K=_K), degrees, run.evaluations)


# ---- Steps of q -----------------------------------------------------------------------------------------------------


class _Draws(NamedTuple):
    """Draws of q, and what the sites see there."""

    noise: Float[np.ndarray, "n dim"]
    x: Float[np.ndarray, "n elements"]  # the model's own
    moved: Float[np.ndarray, "n elements"]  # x̃
    location: Float[np.ndarray, "n elements"]
    log_scale: Float[np.ndarray, "n elements"]


class _Run:
    """A target whose coordinates are being learned, and the evaluations that has cost."""

    def __init__(
        self, key: Key[Array, ""], model: Target, target: Target, watch: Watch, number: int = 0, spent: int = 0
    ):
        self.key, self.model, self.target, self.number, self._spent = key, model, target, number, spent
        self.watch = watch
        self.elements = np.concatenate([np.arange(site.start, site.start + site.size) for site in model.sites])
        self.evaluator = watch(evaluator_of(target, True))
        draws = int(np.clip(_DRAWS_PER_DIMENSION * target.dim, _DRAWS, _MOST_DRAWS))
        objective = default_objective(target, FullRank())
        self.method = Method(objective, Stein(M=draws // objective.K), Whitened())

    @property
    def evaluations(self) -> int:
        return self._spent + self.evaluator.count

    def on(self, target: Target) -> "_Run":
        """The same run on another target."""
        return _Run(self.key, self.model, target, self.watch, self.number, self.evaluations)

    def rng(self) -> np.random.Generator:
        """A generator for each call."""
        self.number += 1
        return host_generator(self.key, _STREAM + self.number)

    def use(self, change: Any) -> None:
        """Go on with other numbers: the same program with other arrays."""
        self._spent = self.evaluations
        self.target = eqx.tree_at(lambda target: target.log_density.change, self.target, change)
        self.evaluator = self.watch(evaluator_of(self.target, True))

    def start(self, q: Gaussian) -> State:
        return State(q, self.method.geometry.init(q))

    def step(self, state: State) -> tuple[State, Estimate, Any] | None:
        """A step of q; None if it is not finite."""
        q, method = state.approximation, self.method
        objective = method.geometry.next_objective(method.objective, state.geometry)
        noise = method.estimator.noise(self.rng(), q, objective.K)
        estimate = method.estimator.estimate(noise, q, self.evaluator, objective)
        moved, geometry, report = method.geometry.step(estimate, q, state.geometry)
        good = np.isfinite(estimate.bound) and moved.is_valid()
        return (State(moved, geometry), estimate, report) if good else None

    def look(self, q: AbstractApproximation, noise: np.ndarray) -> _Draws:
        """Location and scale at draws, by a program of the sites alone."""
        z = q.push(noise)
        (change,) = changes_of(self.target)
        x, parameters = _restore(change, z)
        return _Draws(noise, _double(x)[:, self.elements], z[:, self.elements], *map(_double, parameters))


def _double(part: Any) -> np.ndarray:
    return np.asarray(part, np.float64)


@eqx.filter_jit
def _restore(change: Conditioned, z: Any) -> tuple[Array, Parameters]:
    x, _, parameters = jax.vmap(change.restore_with_parameters)(jnp.asarray(z))
    return x, parameters


@eqx.filter_jit
def _apply(change: Conditioned, x: Any) -> Array:
    return jax.vmap(change.apply)(jnp.asarray(x))


def _begin(run: _Run, start: Gaussian | None) -> AbstractApproximation:
    """A Gaussian near the non-centred target that has taken some steps; low-rank in very many dimensions."""
    q = _search(run, 0) if start is None else _carry_start(run, to_host(start))
    for attempt in range(1, _STARTS + 1):
        if not isinstance(q, Gaussian):
            return q
        q, arrived = _settle(run, q)
        if arrived or attempt == _STARTS:
            break
        q = _search(run, attempt)
    return q


def _search(run: _Run, attempt: int) -> AbstractApproximation:
    rng, target, evaluator = host_generator(run.key, _STARTING + attempt), run.target, run.evaluator
    searched = find_start(rng, target, evaluator, default_draws(target.dim)) if target.dim <= MANY else None
    if searched is None or target.dim > _SEARCHED_DIM:
        searched = find_start_in_factors(rng, target, evaluator, searched)
    q = searched.approximation if target.dim > FULL_RANK_DIM else FullRank().of(searched.approximation)
    return jax.tree.map(lambda part: np.asarray(part, evaluator.dtype), to_host(q))


def _settle(run: _Run, q: Gaussian) -> tuple[Gaussian, bool]:
    """Steps of q alone, and whether they have become short."""
    state = run.start(q)
    for number in range(_MOST_ALONE):
        moved = run.step(state)
        if moved is None:
            return state.approximation, False
        state, _, report = moved
        if number + 1 >= _ALONE and not bool(report.clipped):
            return state.approximation, True
    return state.approximation, False


def _carry_start(run: _Run, start: Gaussian) -> Gaussian:
    """A Gaussian near the target as it is, in new coordinates."""
    noise = run.rng().standard_normal((run.method.cost().log_densities, start.dim))
    z = start.push(noise)
    (change,) = changes_of(run.target)
    after = np.asarray(_apply(change, z), np.float64)
    finite = np.all(np.isfinite(after), axis=1)
    found = _regress(noise[finite], (after - z)[finite])
    q = _push_affine(start, start, np.arange(start.dim), found)
    return jax.tree.map(lambda part: np.asarray(part, run.evaluator.dtype), q)


def _regress(noise: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients of the affine functions of the noise that are nearest to values: a row for 1, then one each."""
    return np.linalg.lstsq(np.column_stack([np.ones(len(noise)), noise]), values, rcond=None)[0]


def _push_affine(q: Gaussian, moved: Gaussian, elements: np.ndarray, found: np.ndarray) -> Gaussian:
    """`moved`, with some coordinates shifted by affine functions of the noise of q that `_regress` has found."""
    dim, dtype = q.dim, q.mean.dtype
    change = np.zeros((dim, dim))
    change[elements] = found[1:].T @ linalg.inverse_lower(q.chol)
    mean = moved.mean + change @ (moved.mean - q.mean)
    mean[elements] += found[0]
    chol = linalg.cholesky_of_square(moved.chol + change @ moved.chol)
    return Gaussian.unchecked(mean.astype(dtype), chol.astype(dtype))


def _gain(step: int) -> float:
    """The share of a step of the numbers that is taken."""
    return 1 / (1 + max(0, step - _FULL) / 2)


# ---- Factors --------------------------------------------------------------------------------------------------------


class _Factors(NamedTuple):
    """λ and b of each element."""

    precision: Float[np.ndarray, " elements"]
    shift: Float[np.ndarray, " elements"]

    @classmethod
    def none(cls, target: Target) -> "_Factors":
        zeros = np.zeros(sum(site.size for site in target.sites))
        return cls(zeros, zeros)

    def change(self, target: Target) -> Conditioned:
        return Conditioned(target.sites, *(jax.device_put(part.astype(default_dtype())) for part in self))

    def degrees(self, log_scale: np.ndarray) -> np.ndarray:
        share = self.precision * np.exp(2 * log_scale)
        return share / (1 + share)

    def moments(self, location: np.ndarray, log_scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """m and s, as `Conditioned` has them."""
        variance = np.exp(2 * log_scale)
        share = 1 + self.precision * variance
        return location + variance * (self.shift - self.precision * location) / share, np.sqrt(variance / share)


def _learn_factors(run: _Run, factors: _Factors, q: Gaussian) -> tuple[_Factors, Gaussian, _Draws]:
    """Steps of q and of the factors together, after a first guess."""
    noise = run.rng().standard_normal((run.method.cost().log_densities, q.dim)).astype(q.mean.dtype)
    draws = run.look(q, noise)
    state = run.start(q)
    for step in range(_FACTOR_STEPS + 1):
        if step == 0:
            found, moved = _first_factors(q, draws, run.elements), state
        else:
            stepped = run.step(state)
            if stepped is None:
                break
            q = state.approximation
            moved, estimate, _ = stepped
            draws = run.look(q, estimate.field.noise)
            found = _next_factors(factors, q, draws, estimate, run.elements, _gain(step - 1))
        mean, width = found.moments(draws.location, draws.log_scale)
        shift = _regress(draws.noise, (draws.x - mean) / width - draws.moved)
        state = moved._replace(approximation=_push_affine(q, moved.approximation, run.elements, shift))
        factors = found
        run.use(factors.change(run.model))
    return factors, state.approximation, draws


def _first_factors(q: AbstractApproximation, draws: _Draws, elements: np.ndarray) -> _Factors:
    """From the precision of q in non-centred coordinates, of which the prior's share is 1, and its mean there."""
    scale, location = np.exp(draws.log_scale.mean(axis=0)), draws.location.mean(axis=0)
    precision = np.asarray(q.precision().diagonal(), np.float64)[elements]
    precision = np.maximum(precision - 1, 0) / scale**2
    away = np.asarray(q.mean, np.float64)[elements] * scale  # of x from its location
    return _Factors(precision, precision * location + away * (1 / scale**2 + precision))


def _next_factors(
    factors: _Factors, q: Gaussian, draws: _Draws, estimate: Estimate, elements: np.ndarray, gain: float
) -> _Factors:
    """λ = −E[∂g/∂x] and b = E[g] + λ E[x], by a regression of g on all coordinates; λ in steps of some length."""
    field = estimate.field
    _, width = factors.moments(draws.location, draws.log_scale)
    score = (field.score - q.precision_times_noise(field.noise))[:, elements]  # of log p̃, not of the weight
    beyond = score / width + (draws.x - draws.location) * np.exp(-2 * draws.log_scale)
    slopes = _regress(draws.noise, beyond)[1:].T @ linalg.inverse_lower(q.chol)
    slope = slopes[np.arange(len(elements)), elements] / np.exp(np.log(width).mean(axis=0))
    log_scale = draws.log_scale.mean(axis=0)
    old = factors.degrees(log_scale)
    new = _Factors(np.maximum(-slope, 0), factors.shift).degrees(log_scale)
    degrees = np.clip(old + gain * np.clip(new - old, -_LONGEST, _LONGEST), 0, _MOST_CENTRED)
    precision = degrees / (1 - degrees) * np.exp(-2 * log_scale)
    shift = beyond.mean(axis=0) + precision * draws.x.mean(axis=0)
    return _Factors(precision, factors.shift + gain * (shift - factors.shift))


# ---- The warp -------------------------------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """Those of a warp: a row of skewness, and one of tails."""

    centre: Float[np.ndarray, " dim"]
    scale: Float[np.ndarray, " dim"]
    shape: Float[np.ndarray, "2 dim"]

    @classmethod
    def none(cls, q: Gaussian) -> "_Numbers":
        """No warp yet, about where q is."""
        dim = q.dim
        return cls(_double(q.mean), np.linalg.norm(_double(q.chol), axis=1), np.stack([np.zeros(dim), np.ones(dim)]))

    def change(self) -> Warp:
        return Warp(*(jax.device_put(part.astype(default_dtype())) for part in (self.centre, self.scale, *self.shape)))

    def moved(self, step: Float[np.ndarray, "2 dim"]) -> "_Numbers":
        skewness, tail = self.shape + step
        return self._replace(shape=np.stack([np.clip(skewness, -_MOST_SKEWED, _MOST_SKEWED), np.clip(tail, *_TAILS)]))

    def shift(self, new: "_Numbers", z: np.ndarray) -> np.ndarray:
        """By how much points move when the numbers change and the model's own coordinates do not."""
        inner = self.shape[1] * np.arcsinh((z - self.centre) / self.scale) + self.shape[0]
        return self.centre + self.scale * np.sinh((inner - new.shape[0]) / new.shape[1]) - z

    def fields(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """v and its slope, (2, n, dim), of the skewness and of the tail: (∂x/∂e) / (∂x/∂z), and so for t."""
        u = (z - self.centre) / self.scale
        root, angle = np.sqrt(1 + u**2), np.arcsinh(u)
        v = np.stack([root, angle * root]) * self.scale / self.shape[1]
        return v, np.stack([u / root, 1 + angle * u / root]) / self.shape[1]


def _learn_warp(run: _Run, warp: _Numbers, q: Gaussian) -> tuple[_Numbers, Gaussian]:
    """Steps of q and of the warp together."""
    state = run.start(q)
    for step in range(_WARP_STEPS):
        stepped = run.step(state)
        if stepped is None:
            break
        q = state.approximation
        state, estimate, _ = stepped
        z = _double(q.push(estimate.field.noise))
        new = warp.moved(_gain(step) * _warp_step(warp, q, z, estimate))
        state = state._replace(approximation=_push_apart(q, state.approximation, z, warp.shift(new, z)))
        warp = new
        run.use(warp.change())
    return warp, state.approximation


def _warp_step(warp: _Numbers, q: Gaussian, z: np.ndarray, estimate: Estimate) -> Float[np.ndarray, "2 dim"]:
    """A step along the gradient of the bound, divided by its curvature where q is exact.

    What of v is affine, q can do itself: the rest r counts. The curvature is the expected square of the change of log
    p̃, h = r' − r p with p = Σ⁻¹ (z − m), beyond quadratic terms. The part of p that is not of the coordinate itself is
    independent of r.
    """
    field, width = estimate.field, np.linalg.norm(_double(q.chol), axis=1)
    g = (z - q.mean) / width
    v, slope = warp.fields(z)
    basis = np.stack([np.ones_like(g), g, g**2], axis=-1)
    affine = _coefficients(basis[..., :2], v)
    rest = v - np.einsum("nda,dak->knd", basis[..., :2], affine)
    gradient = np.einsum("n,knd,nd->dk", field.weight / field.mean_A, rest, field.score)
    change = slope - (affine[:, 1] / width[:, None]).T[:, None] - rest * g / width
    change -= np.einsum("nda,dak->knd", basis, _coefficients(basis, change))
    precision = _double(q.precision().diagonal())
    others = np.maximum(precision - width**-2.0, 0)
    curvature = np.einsum("knd,lnd->dkl", change, change) + np.einsum("knd,lnd,d->dkl", rest, rest, others)
    step = np.linalg.solve(curvature / len(z) + _LEAST_CURVATURE * np.eye(2), gradient[..., None])[..., 0]
    return np.clip(np.nan_to_num(step), -_LONGEST, _LONGEST).T


def _coefficients(basis: Float[np.ndarray, "n dim a"], values: Float[np.ndarray, "k n dim"]) -> np.ndarray:
    """Of least squares for each coordinate, (dim, a, k)."""
    gram = np.einsum("nda,ndb->dab", basis, basis)
    return np.linalg.solve(gram, np.einsum("nda,knd->dak", basis, values))


def _push_apart(q: Gaussian, moved: Gaussian, z: np.ndarray, shift: np.ndarray) -> Gaussian:
    """`moved`, with each coordinate shifted by the nearest affine function of itself; the points are draws of q."""
    centred = z - z.mean(axis=0)
    slope = np.mean(centred * shift, axis=0) / np.mean(centred**2, axis=0)
    mean = moved.mean + shift.mean(axis=0) + slope * (moved.mean - z.mean(axis=0))
    chol = linalg.cholesky_of_square((1 + slope)[:, None] * moved.chol)
    return Gaussian.unchecked(mean.astype(q.mean.dtype), chol.astype(q.mean.dtype))
