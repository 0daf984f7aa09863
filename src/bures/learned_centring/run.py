"""A run: steps of a Gaussian on a target whose coordinates are being learned, through one compiled program.

The numbers of a change of coordinates are arrays of the density, so that other numbers are the same program.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bures import linalg
from bures.arrays import to_host
from bures.centring import AbstractChange
from bures.draws import host_generator
from bures.engine import MANY, Watch, evaluator_of
from bures.estimator import Stein
from bures.family import AbstractApproximation, FullRank, Gaussian
from bures.field import Field
from bures.fitting.defaults import FULL_RANK_DIM
from bures.geometry import Whitened
from bures.loop import Method
from bures.objective import AbstractObjective
from bures.start import SEARCHED_DIM, find_start, start_budget
from bures.start_in_factors import find_start_in_factors
from bures.target import Target

LONGEST = 0.25  # step of a degree of centring, of a skewness and of a tail
_FULL = 4  # steps of the numbers before they grow shorter, to average noise away
_ALONE, _MOST_ALONE = 4, 10  # steps of q before numbers are learned: at least, and while they are still long
_STARTS, _FAR = 2, 1000.0  # that are tried, and nats from the optimum after these steps that make one a bad start
_DRAWS, _DRAWS_PER_DIMENSION, _MOST_DRAWS = 400, 4, 1000  # at a step; a regression on d coordinates needs more than d
_STREAM, _STARTING = 2**33, 2**34  # with the key: no step of a fit has such a number


class Place(NamedTuple):
    """A Gaussian on its way, and what its geometry remembers."""

    q: Gaussian
    memory: Any


class Step(NamedTuple):
    """From a Gaussian to the next, with the field at its draws."""

    before: Gaussian
    after: Place
    field: Field
    gap: float
    is_long: bool


class Run:
    """A target whose coordinates are being learned, and the evaluations that this has cost.

    **Arguments:**

    - `key`: for all that is random.
    - `target`: in coordinates by a change, which is the last one that made it.
    - `objective`: of the steps.
    - `watch`: may note what evaluators are asked for, and end it.
    - `number`, `spent`: random streams used, and evaluations made, before.
    """

    def __init__(
        self,
        key: Key[Array, ""],
        target: Target,
        objective: AbstractObjective,
        watch: Watch,
        number: int = 0,
        spent: int = 0,
    ):
        self.key, self.target, self.watch, self.number, self._spent = key, target, watch, number, spent
        self.evaluator = watch(evaluator_of(target, True))
        self.draws = int(np.clip(_DRAWS_PER_DIMENSION * target.dim, _DRAWS, _MOST_DRAWS)) // objective.K * objective.K
        self.method = Method(objective, Stein(M=self.draws // objective.K), Whitened())

    @property
    def evaluations(self) -> int:
        return self._spent + self.evaluator.count

    def on(self, target: Target, objective: AbstractObjective) -> "Run":
        """The same run on another target, by another objective."""
        return Run(self.key, target, objective, self.watch, self.number, self.evaluations)

    def rng(self) -> np.random.Generator:
        """A generator for each call."""
        self.number += 1
        return host_generator(self.key, _STREAM + self.number)

    def noise(self, dim: int) -> Float[np.ndarray, "n dim"]:
        """That of as many draws as a step takes."""
        return self.rng().standard_normal((self.draws, dim)).astype(self.evaluator.dtype)

    def use(self, change: AbstractChange) -> None:
        """Go on with other numbers."""
        self._spent = self.evaluations
        self.target = eqx.tree_at(lambda target: target.log_density.change, self.target, change)
        self.evaluator = self.watch(evaluator_of(self.target, True))

    def start(self, q: Gaussian) -> Place:
        return Place(q, self.method.geometry.init(q))

    def step(self, place: Place) -> Step | None:
        """A step of q; None if it is not finite."""
        q, method = place.q, self.method
        objective = method.geometry.next_objective(method.objective, place.memory)
        noise = method.estimator.noise(self.rng(), q, objective.K)
        field = method.estimator.field(noise, q, self.evaluator, objective)
        moved, memory, report = q.whitened_step(q.project(field), place.memory, method.geometry)
        if not np.isfinite(field.bound) or not moved.is_valid():
            return None
        return Step(q, Place(moved, memory), field, float(report.gap), bool(report.clipped))


def gain(step: int) -> float:
    """The share of a step of the numbers that is taken."""
    return 1 / (1 + max(0, step - _FULL) / 2)


def double(part: Any) -> np.ndarray:
    return np.asarray(part, np.float64)


# ---- The start ------------------------------------------------------------------------------------------------------


def begin(run: Run, start: Gaussian | None) -> AbstractApproximation:
    """A Gaussian near the target that has taken some steps, from one that is given or searched for.

    Low-rank, and without steps, where a full covariance is too dear.
    """
    q = _search(run, 0) if start is None else start
    for attempt in range(1, _STARTS + 1):
        if not isinstance(q, Gaussian):
            return q
        q, arrived = _settle(run, q)
        if arrived or attempt == _STARTS:
            break
        q = _search(run, attempt)
    return q


def _search(run: Run, attempt: int) -> AbstractApproximation:
    rng, target, evaluator = host_generator(run.key, _STARTING + attempt), run.target, run.evaluator
    budget = start_budget(evaluator)
    searched = find_start(rng, target, budget) if target.dim <= MANY else None
    if searched is None or target.dim > SEARCHED_DIM:
        searched = find_start_in_factors(rng, target, budget, searched)
    q = searched.approximation if target.dim > FULL_RANK_DIM else FullRank().of(searched.approximation)
    return jax.tree.map(lambda part: np.asarray(part, evaluator.dtype), to_host(q))


def _settle(run: Run, q: Gaussian) -> tuple[Gaussian, bool]:
    """Steps of q alone, and whether they have come near the target."""
    place, gap = run.start(q), np.inf
    for number in range(1, _MOST_ALONE + 1):
        step = run.step(place)
        if step is None:
            return place.q, False
        place, gap = step.after, step.gap
        if number >= _ALONE and not step.is_long:
            break
    return place.q, gap < _FAR


# ---- Affine maps of Gaussians ---------------------------------------------------------------------------------------


def regress(noise: Float[np.ndarray, "n dim"], values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "dim+1 k"]:
    """Coefficients of the affine functions of the noise that are nearest to values: a row for 1, then one each."""
    return np.linalg.lstsq(np.column_stack([np.ones(len(noise)), noise]), values, rcond=None)[0]


def push(q: Gaussian, moved: Gaussian, coordinates: np.ndarray, found: Float[np.ndarray, "dim+1 k"]) -> Gaussian:
    """`moved`, with some coordinates shifted by affine functions of the noise of q that `regress` has found."""
    dim, dtype = q.dim, q.mean.dtype
    change = np.zeros((dim, dim))
    change[coordinates] = found[1:].T @ linalg.inverse_lower(q.chol)
    mean = moved.mean + change @ (moved.mean - q.mean)
    mean[coordinates] += found[0]
    chol = linalg.cholesky_of_square(moved.chol + change @ moved.chol)
    return Gaussian.unchecked(mean.astype(dtype), chol.astype(dtype))
