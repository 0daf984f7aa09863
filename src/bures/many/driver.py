"""`fit_many`: thousands of small fits in one call, each with a start, a stop and a judgement of its own."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from bures.check import check_key, check_part, check_positive_integer, check_progress, check_real, fail
from bures.diagnostics.coverage import WIDTHS
from bures.fitting.defaults import default_estimator, default_methods, default_objective, default_tolerance
from bures.fitting.judgement import JUDGED, is_decided
from bures.fitting.progress import progress_bar
from bures.geometry import Whitened
from bures.loop import PATIENCE, Method, Methods
from bures.many.evaluator import Evaluator
from bures.many.judging import Figures, summarise_many
from bures.many.models import Models
from bures.many.noise import Noise
from bures.many.reach import DRAWS, mass_outside, widened
from bures.many.result import Fits
from bures.many.start import find_starts
from bures.many.steps import Lanes, gradients, log_q, whitened_steps
from bures.objective import AbstractObjective
from bures.outcome import FAILURES, FALL, FALL_STEPS, Outcome
from bures.target.checks import check_vector
from bures.threads import one_blas_thread

_MAX_STEPS = 500
_POOLS = 2_000, 10_000  # draws of a judgement; the second where the first leave the verdict undecided
_POINTS = 100, 50  # in a row of the evaluator: of few dimensions, and of more
_FEW_DIMENSIONS = 10
_SEEN, _WIDE = 2**32 - 1, 2**32 - 4  # streams of noise by which the start and what is far out are seen: not a step's


def fit_many(
    model: Callable[..., Any],
    data: Any,
    key: Key[Array, ""],
    *,
    dim: int | None = None,
    init: Any = None,
    objective: AbstractObjective | None = None,
    tolerance: float | None = None,
    max_steps: int = _MAX_STEPS,
    progress: bool | None = None,
) -> Fits:
    """Fit a Gaussian to the posterior of each of many data sets, in one call, with nothing to tune.

    For per-group models, bootstraps and calibration: many small models of one form. Each fit has a start, a stopping
    rule, an outcome and a judgement of its own, and its result does not depend on the others.

    **Arguments:**

    - `model`: a JAX function `log_density(z, data) -> scalar`, together with `dim`; or, without `dim`, a function of
        the data of one fit that returns a `bures.Target`.
    - `data`: a pytree of arrays whose first axis numbers the fits. They may be NumPy memory maps.
    - `key`: a typed key. Fit i has `fold_in(key, i)`.
    - `init`: where to look for a mode: a point, or one for each fit; by default the target's own, or the origin.
    - `objective`, `tolerance`: as for `bures.fit`.
    - `max_steps`: the most steps of a fit.
    - `progress`: a progress bar on standard error; by default only on a terminal.

    >>> import jax.numpy as jnp
    >>> def log_density(z, data):
    ...     return -jnp.sum((data - z[0]) ** 2) / 2
    >>> fits = fit_many(log_density, np.array([[0.0, 2.0], [3.0, 5.0]]), jax.random.key(0), dim=1)
    >>> fits.mean.round(2).ravel().tolist(), fits.standard_deviations.round(2).ravel().tolist()
    ([1.0, 4.0], [0.71, 0.71])
    """
    check_key(key)
    models = Models(model, data, dim)
    target = models.first
    objective = default_objective(target) if objective is None else objective
    check_part("objective", objective, AbstractObjective, "bures.IWELBO(K=10)")
    check_positive_integer("max_steps", max_steps, "It is the most steps of a fit.")
    check_progress(progress)
    limit = default_tolerance(target) if tolerance is None else tolerance
    limit = check_real("tolerance", limit, 0, 1e300, "It is in nats, e.g. 0.01.", open_low=True)
    few, more = (
        Method(objective, default_estimator(target, objective, variance), Whitened()) for variance in (0.0, np.inf)
    )
    began = time.perf_counter()
    run = _Run(models, key, (few, more), limit, max_steps, _places(init, models))
    chunks = []
    size = models.chunk_size
    with (
        progress_bar(progress, models.size, 0, "fits") as report,
        one_blas_thread(models.dim),
        np.errstate(all="ignore"),  # what is not finite is seen by each step
    ):
        for first in range(0, models.size, size):
            last = min(first + size, models.size)
            try:
                chunks.append(run.chunk(first, last))
            except KeyboardInterrupt:
                chunks.append(run.unfinished(models.size - first))
                break
            report(last, None)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks, is_leaf=lambda x: isinstance(x, np.ndarray))
    figures = Figures(**joined.pop("figures"))
    seconds, densities = time.perf_counter() - began, run.evaluator.seconds
    return Fits(models, key, (few, more), **joined, figures=figures, seconds=seconds, density_seconds=densities)


def _places(init: Any, models: Models) -> np.ndarray | None:
    """The first places of all fits, (fits, dim) or (dim,); None for those of the targets."""
    if init is None:
        return None
    if np.ndim(init) == 1:
        return np.asarray(check_vector("init", init, models.dim))
    places = np.asarray(init)
    if places.shape != (models.size, models.dim) or not np.issubdtype(places.dtype, np.floating):
        wanted = f"a point of shape ({models.dim},), or of shape ({models.size}, {models.dim}), one for each fit"
        raise fail("init", wanted, init, "Leave it out to begin at the origin.")
    return places


class _Run:
    """What all chunks of fits share."""

    def __init__(
        self,
        models: Models,
        key: Key[Array, ""],
        methods: tuple[Method, Method],
        tolerance: float,
        max_steps: int,
        places: np.ndarray | None,
    ):
        self.models, self.key, self.tolerance, self.max_steps, self.places = models, key, tolerance, max_steps, places
        self.methods: tuple[Methods, ...] = tuple(default_methods(method, models.first) for method in methods)
        points = _POINTS[models.dim > _FEW_DIMENSIONS]
        self.evaluator = Evaluator(models, points, few=2 * models.dim + 1)

    def chunk(self, first: int, last: int) -> dict[str, Any]:
        """The fits from one number up to another: start, steps, judgement."""
        evaluator = self.evaluator
        evaluator.load(slice(first, last))
        fits, noise = np.arange(last - first), Noise(self.key, first, last - first)
        starts = find_starts(evaluator, fits, self._first_places(first, last))
        begun = fits[starts.is_found]
        more = self._needs_more(noise, begun, starts.mean, starts.chol)
        start_evaluations = evaluator.counts.copy()
        lanes = Lanes.begin(starts.mean, starts.chol)
        codes, steps = self._steps(noise, begun, lanes, more)
        figures = self._judge(noise, begun, lanes)
        lost = fits[~starts.is_found]
        lanes.mean[lost], lanes.chol[lost], codes[lost] = np.nan, np.nan, Outcome.NON_FINITE.value
        return {
            "lanes": lanes,
            "takes_more": more,
            "outcome_codes": codes,
            "num_steps": steps,
            "start_evaluations": start_evaluations,
            "evaluations": evaluator.counts.copy(),
            "figures": vars(figures),
        }

    def _first_places(self, first: int, last: int) -> np.ndarray:
        """Where the fits from one number up to another look for a mode."""
        if self.places is None:
            return self.models.starts(slice(first, last))
        return self.places[first:last] if self.places.ndim == 2 else np.tile(self.places, (last - first, 1))

    def unfinished(self, count: int) -> dict[str, Any]:
        """Fits that an interrupt left without an approximation."""
        unknown = np.full((count, self.models.dim), np.nan, self.evaluator.dtype)
        zeros = np.zeros(count, np.int64)
        return {
            "lanes": Lanes.begin(unknown, np.repeat(unknown[:, :, None], self.models.dim, axis=2)),
            "takes_more": np.zeros(count, bool),
            "outcome_codes": np.full(count, Outcome.INTERRUPTED.value),
            "num_steps": zeros,
            "start_evaluations": zeros,
            "evaluations": zeros,
            "figures": vars(Figures.unknown(count)),
        }

    def _needs_more(self, noise: Noise, fits: np.ndarray, mean: np.ndarray, chol: np.ndarray) -> np.ndarray:
        """Whether each start is so far from the target that a step takes more draws."""
        more = np.zeros(len(mean), bool)
        estimator, K = self.methods[0].early.estimator, self.methods[0].early.objective.K
        dim = self.models.dim
        for some in self.evaluator.held(fits, estimator.M * K):
            drawn = noise.antithetic(some, _SEEN, estimator.M, K, dim, mean.dtype)
            values = self.evaluator.value(some, mean[some, None] + np.matmul(drawn, chol[some].mT))
            variance = (values - log_q(drawn, chol[some])).var(axis=1)
            more[some] = ~(dim * variance < 1)
        return more

    def _steps(self, noise: Noise, active: np.ndarray, lanes: Lanes, more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Steps until each fit has ended; the lanes are changed in place."""
        count = len(lanes.mean)
        codes, steps = np.full(count, Outcome.MAX_STEPS.value), np.zeros(count, np.int64)
        calm, falling = np.zeros(count, int), np.zeros(count, int)
        best, best_bound = Lanes(*(part.copy() for part in lanes)), np.full(count, -np.inf)
        for number in range(self.max_steps):
            if not active.size:
                break
            sound, zero = np.ones(count, bool), np.zeros(count, bool)
            for methods, group in zip(self.methods, (active[~more[active]], active[more[active]]), strict=True):
                method = methods.at(number)
                for fits in self.evaluator.held(group, method.estimator.M * method.objective.K):
                    q = lanes.at(fits)
                    moved, sound[fits], bound = self._step(noise, number, fits, q, method)
                    zero[fits] = np.isneginf(bound)
                    rises = sound[fits] & (bound > best_bound[fits])
                    best.put(fits[rises], q.at(rises))
                    best_bound[fits[rises]] = bound[rises]
                    falls = bound < best_bound[fits] - FALL * (1 + np.abs(best_bound[fits]))
                    falling[fits] = np.where(falls, falling[fits] + 1, 0)
                    lanes.put(fits[sound[fits]], moved.at(sound[fits]))
            good = active[sound[active]]
            steps[good] += 1
            calm[good] = np.where(lanes.gap[good] < self.tolerance, calm[good] + 1, 0)
            codes[active[~sound[active]]] = Outcome.NON_FINITE.value
            codes[active[zero[active]]] = Outcome.ZERO_DENSITY.value
            codes[active[falling[active] >= FALL_STEPS]] = Outcome.DIVERGED.value
            codes[good[calm[good] >= PATIENCE]] = Outcome.CONVERGED.value
            active = active[codes[active] == Outcome.MAX_STEPS.value]
        fallen = [each.value for each in (*FAILURES, Outcome.DIVERGED)]
        fallen = np.flatnonzero(np.isin(codes, fallen) & (steps > 0))
        lanes.put(fallen, best.at(fallen))
        return codes, steps

    def _step(
        self, noise: Noise, number: int, fits: np.ndarray, q: Lanes, method: Any
    ) -> tuple[Lanes, np.ndarray, np.ndarray]:
        """The next Gaussians, which of them are valid, and the bounds of those before."""
        estimator, objective = method.estimator, method.objective
        drawn = noise.antithetic(fits, number, estimator.M, objective.K, self.models.dim, q.mean.dtype)
        values, scores = self.evaluator.value_and_score(fits, q.mean[:, None] + np.matmul(drawn, q.chol.mT))
        found = gradients(drawn, values, scores, q, objective, estimator)
        moved, sound = whitened_steps(q, found, method.geometry)
        return moved, sound, found.bound

    def _judge(self, noise: Noise, fits: np.ndarray, lanes: Lanes) -> Figures:
        """Figures by fit, from more draws where few leave the verdict undecided."""
        figures = Figures.unknown(len(lanes.mean))
        for size in _POOLS:
            for some in self.evaluator.held(fits, size):
                figures.put(some, self._judged(noise, some, lanes, size))
            undecided = np.array([i for i in fits if not is_decided(figures.diagnostics(i, ()))], int)
            for some in self.evaluator.held(np.setdiff1d(fits, undecided) if size < _POOLS[-1] else fits, size):
                figures.outside[some] = self._outside(noise, some, lanes, figures)
            fits = undecided
        return figures

    def _outside(self, noise: Noise, fits: np.ndarray, lanes: Lanes, figures: Figures) -> np.ndarray:
        """The share of mass further out than the draws of each fit reach."""
        mean, chol = lanes.mean[fits], lanes.chol[fits]
        drawn = noise.normals(fits, _WIDE, (len(WIDTHS) * DRAWS, self.models.dim), mean.dtype)
        values = self.evaluator.value(fits, mean[:, None] + np.matmul(widened(drawn), chol.mT))
        evidence, size = figures.log_evidence[fits], figures.num_samples[fits]
        return mass_outside(mean, chol, drawn, values, log_evidence=evidence, num_samples=size)

    def _judged(self, noise: Noise, fits: np.ndarray, lanes: Lanes, size: int) -> Figures:
        mean, chol = lanes.mean[fits], lanes.chol[fits]
        drawn = noise.normals(fits, JUDGED, (size, self.models.dim), mean.dtype)
        z = mean[:, None] + np.matmul(drawn, chol.mT)
        log_p = np.asarray(self.evaluator.value(fits, z), np.float64)
        if z.dtype != np.float64:  # log q at the very points that p saw, which rounding has moved
            mean, chol = np.asarray(mean, np.float64), np.asarray(chol, np.float64)
            drawn = np.matmul(z - mean[:, None], np.linalg.inv(chol).mT)
        return summarise_many(z, log_p, log_q(drawn, chol))
