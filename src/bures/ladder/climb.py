"""`sample`: climb from a Gaussian to NUTS until the draws can be trusted."""

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float, Key

from bures.budget import Budget, check_limits
from bures.check import check_key, check_positive_integer, check_progress
from bures.draws import host_generator
from bures.engine import Evaluator, default_draws, evaluator_of
from bures.estimator import Stein
from bures.export import import_from_dict
from bures.family import FullRank, GaussianMixture
from bures.fitting import Fit
from bures.fitting.defaults import default_estimator, default_family, default_objective
from bures.fitting.driver import fit_briefly
from bures.fitting.refining import evaluations_of_search, next_rung, refine
from bures.ladder.modes import Searched, search_around
from bures.ladder.nuts import NutsRun, run_nuts
from bures.ladder.result import Rung
from bures.ladder.rungs import (
    base_of,
    key_of,
    pool_of,
    rung_of_fit,
    rung_of_nuts,
    rung_of_smc,
    rung_of_start,
    rung_unjudged,
    starts_of_chains,
    wanted_draws,
)
from bures.ladder.smc import Tempered, run_smc
from bures.outcome import Outcome
from bures.target import Target, as_target

if TYPE_CHECKING:
    from xarray import DataTree

_STEP_EVALUATIONS = 8_000  # of the Gaussian's steps: what follows corrects the rest for less
_LEAST_STEPS = 10
_START_AND_JUDGEMENT = 8_000  # evaluations that are kept from a small budget for them
_MOST_REFINED = 4  # rungs between the Gaussian and SMC
_CENTRED_STEPS = 20  # of the fit in learned coordinates
_MIXED_DIM = 30  # beyond which components gain little for what they cost
_SMC_LIMIT = 60_000  # evaluations of tempered SMC: NUTS takes over where they do not do
_NUTS_LIMIT = 1_000_000
_FIT, _REFINE, _SMC, _NUTS, _SEARCH, _CHOICE = range(6)  # with the key, for the parts of a climb

_UNKNOWN = (
    " Where the log density is NaN or plus infinity, as at {share:.2g}% of the Gaussian's draws, it counts as minus "
    "infinity: there are no draws there."
)


def sample(
    target_or_model: Target | Callable[[Float[Array, " dim"]], Float[Array, ""]] | Any,
    *,
    key: Key[Array, ""],
    num_draws: int = 1000,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    progress: bool | None = None,
    dim: int | None = None,
) -> "DataTree":
    """Draws that can be trusted, and nothing to choose: an ArviZ `DataTree` (needs the extra `bures[arviz]`).

    It climbs, and what comes back is of the first rung that passes, judged by fresh draws and by a search for other
    modes: a Gaussian corrected by importance weights; what `Fit.refine` makes of it; tempered sequential Monte Carlo,
    q^(1−t) p^t for t from 0 to 1, from there; NUTS with the covariance known by then (needs the extra `bures[mcmc]`).

    **Arguments:**

    - `target_or_model`: a `Target`, a JAX log density `(dim,) -> scalar` together with `dim`, or a PyMC model. For
        models of NumPyro and Stan see `bures.numpyro.sample` and `bures.stan.sample`.
    - `key`: a typed key, `jax.random.key(0)`. The same key gives the same draws.
    - `num_draws`: draws that come back. Chains of NUTS come back whole: so many at the least.
    - `max_seconds`, `max_evaluations`: when they are spent, the best so far comes back and says so. Evaluations are
        points at which log p and its gradient were computed. Neither is needed: it ends by itself.
    - `progress`: a line on standard error for each rung that does not pass; by default only on a terminal.
    - `dim`: the dimension of a bare log density.

    The tree has `posterior` in the target's own variables and `sample_stats` (log p; for draws that were resampled
    log q and the log weights they had). Its attributes, and those of `posterior`: `rung`; `verdict`, a sentence;
    `trustworthy`; `log_evidence` and `log_evidence_error` where a fit gave the draws; `evaluations`,
    `evaluations_by_rung`, `seconds`.

    >>> import jax, jax.numpy as jnp, bures
    >>> tree = bures.sample(lambda z: -jnp.sum((z - 3) ** 2) / 8, dim=2, key=jax.random.key(0))
    >>> tree.attrs["rung"], tree.attrs["trustworthy"]
    ('Gaussian', True)
    >>> tree.posterior["z"].mean(("chain", "draw")).values.round(1).tolist()
    [3.0, 3.0]
    """
    import_from_dict()  # before any work is done
    target = as_target(target_of(target_or_model), dim, "target_or_model")
    check_key(key)
    check_positive_integer("num_draws", num_draws, "It is the number of posterior draws.")
    check_progress(progress)
    budget = Budget(*check_limits(max_seconds, max_evaluations))
    climb = _Climb(target, key, num_draws, budget, progress)
    return climb.tree(climb.run())


def target_of(given: Any) -> Any:
    """A target made of a PyMC model; anything else as it is."""
    if "pymc" in sys.modules and isinstance(given, sys.modules["pymc"].Model):
        from bures.frontends import from_pymc

        return from_pymc(given)
    return given


class _Climb:
    """One climb: what it has spent, and the best rung so far."""

    def __init__(self, target: Target, key: Any, num_draws: int, budget: Budget, progress: bool | None):
        self.target, self.key, self.num_draws, self.budget = target, key, num_draws, budget
        self.progress = sys.stderr.isatty() if progress is None else progress
        self.best: Rung | None = None
        self.spent: dict[str, int] = {}
        self.note = ""  # why it ended before the last rung
        self.unknown = 0.0  # share of the first fit's draws that have no log density

    def run(self) -> Rung:
        """Up to the first rung that passes, or to where the budget, or the user, ends it."""
        try:
            self.climb()
        except KeyboardInterrupt:
            if self.best is None and not self.budget.is_spent:
                raise
            self.note = "Interrupted; this is the best so far. "
        best = rung_of_start(self.target, self.part(_CHOICE), self.num_draws) if self.best is None else self.best
        if self.budget.is_spent:
            self.note = f"Ended by {self.budget.reason}; this is the best so far. "
        return best

    def tree(self, rung: Rung) -> "DataTree":
        verdict = rung.verdict if rung.trustworthy else self.note + rung.verdict
        verdict += _UNKNOWN.format(share=100 * self.unknown) if self.unknown else ""
        return rung.tree(verdict, self.spent, self.budget.seconds)

    def climb(self) -> None:
        fit = self.fit_gaussian()
        if self.passed():
            return
        fit = self.refine(fit)
        if self.passed():
            return
        tempered = self.run_smc(fit)
        if self.passed():
            return
        self.run_nuts(fit, tempered)

    # ---- The rungs

    def fit_gaussian(self) -> Fit:
        """A Gaussian, fitted briefly: what is left to gain is gained for less by the next rungs."""
        target, name = self.target, "Gaussian"
        evaluator = self.evaluator(target)
        with _Spending(self, name):
            fit = fit_briefly(
                target, key=self.part(_FIT), num_steps=self.num_steps(), evaluator=evaluator, progress=False
            )
            self.best = rung_unjudged(name, fit, self.part(_CHOICE), self.num_draws)
            if fit.outcome is Outcome.INTERRUPTED:
                raise KeyboardInterrupt
            fit.judge_with(evaluator, evaluations_of_search(target.dim, fit.record.modes))
        log_p = fit.draws().log_p
        self.unknown = float(np.mean(np.isnan(log_p) | np.isposinf(log_p)))
        self.reach_fit(name, fit)
        return fit

    def refine(self, fit: Fit) -> Fit:
        """The rungs of `Fit.refine`, one after the other."""
        for number in range(_MOST_REFINED):
            if (name := next_rung_of(fit)) is None:
                return fit
            with _Spending(self, name):
                key, steps = key_of(self.part(_REFINE), number), _CENTRED_STEPS
                fit = refine(fit, key, progress=False, watch=self.budget.watch, num_steps=steps)
            self.reach_fit(name, fit)
            if self.passed():
                return fit
        return fit

    def run_smc(self, fit: Fit) -> Tempered | None:
        """Tempered SMC from the fit; what it found comes back even where it does not pass."""
        target, wanted = fit.target, wanted_draws(fit.target.dim, self.num_draws)
        kept: list[Tempered] = []

        def rung(found: Tempered, searched: Searched | None = None) -> Rung:
            return rung_of_smc(target, found, self.part(_CHOICE), self.num_draws, wanted, searched)

        try:
            with _Spending(self, "SMC"):
                base, pool = base_of(fit)
                evaluator, rng = self.evaluator(target), host_generator(self.part(_SMC))
                limit = int(_SMC_LIMIT * wanted / wanted_draws(2, 1))
                found = run_smc(rng, evaluator, base, wanted=wanted, limit=limit, pool=pool, keep=kept.append)
                searched = None
                if found.precision is not None and found.precision.is_enough(wanted):
                    flat = found.states.reshape(-1, target.dim)
                    searched = self.search(evaluator, flat, found.log_evidence, fit)
        except KeyboardInterrupt:
            if kept:
                self.best = rung(kept[-1])
            raise
        if found.arrived:
            self.reach(rung(found, searched))
        return found

    def run_nuts(self, fit: Fit, tempered: Tempered | None) -> None:
        """NUTS from the draws of the last rung."""
        assert self.best is not None
        target, wanted = fit.target, wanted_draws(fit.target.dim, self.num_draws)
        evidence = tempered.log_evidence if tempered is not None and tempered.arrived else None
        frame = np.asarray(fit.approximation.covariance, np.float64) if tempered is None else None
        frame = np.linalg.cholesky(frame) if frame is not None else tempered.frame  # pyright: ignore
        starts = starts_of_chains(self.part(_NUTS), np.asarray(self.best.z).reshape(-1, target.dim), fit.modes)
        kept: list[NutsRun] = []
        try:
            with _Spending(self, "NUTS"):
                run = run_nuts(
                    self.part(_NUTS), target, starts, frame,
                    spend=self.budget.note_and_check, wanted=wanted, limit=_NUTS_LIMIT, keep=kept.append,
                )  # fmt: skip
                flat = run.chains.flat
                searched = self.search(self.evaluator(target), flat, evidence, fit)
        except ImportError as error:
            self.note = f"The last rung is missing. {error} "
            return
        except KeyboardInterrupt:
            if kept:
                self.best = rung_of_nuts(target, kept[-1], wanted, None)
            raise
        self.reach(rung_of_nuts(target, run, wanted, searched))

    # ---- What they share

    def part(self, number: int) -> Key[Array, ""]:
        return key_of(self.key, number)

    def evaluator(self, target: Target) -> Evaluator:
        return self.budget.watch(evaluator_of(target, isinstance(default_family(target), FullRank)))

    def num_steps(self) -> int:
        """Steps of the brief fit."""
        family = default_family(self.target)
        objective = default_objective(self.target, family)
        estimator = default_estimator(self.target, objective, family=family)
        draws = estimator.M * objective.K if isinstance(estimator, Stein) else default_draws(self.target.dim)
        allowed = min(_STEP_EVALUATIONS, self.budget.left - _START_AND_JUDGEMENT)
        fewest = _LEAST_STEPS if math.isinf(self.budget.max_evaluations) else 1
        return max(fewest, int(allowed) // draws)

    def search(self, evaluator: Evaluator, z: np.ndarray, evidence: float | None, fit: Fit) -> Searched:
        rng = host_generator(self.part(_SEARCH))
        return search_around(rng, evaluator, z, evidence, fit.modes, fit.record.scale)

    def reach_fit(self, name: str, fit: Fit) -> None:
        """The draws of a fit that has been judged, and more of them where they are few."""
        key = self.part(_CHOICE)
        needs_even = isinstance(fit.approximation, GaussianMixture) or next_rung_of(fit) is not None
        self.reach(rung_of_fit(name, fit, fit.draws(), key, self.num_draws, needs_even))
        with _Spending(self, name):
            pool = pool_of(fit, key, self.evaluator(fit.target), self.num_draws)
        self.reach(rung_of_fit(name, fit, pool, key, self.num_draws, needs_even))

    def reach(self, rung: Rung) -> None:
        """A rung that passes is kept until another one does."""
        if rung.trustworthy or not self.passed():
            self.best = rung
        if self.progress and not rung.trustworthy:
            sys.stderr.write(f"{rung.name}, {sum(self.spent.values())} evaluations: {rung.verdict}\n")

    def passed(self) -> bool:
        return self.best is not None and self.best.trustworthy


class _Spending:
    """Notes what is spent within by the name of a rung, however it ends."""

    def __init__(self, climb: _Climb, name: str):
        self.climb, self.name = climb, name

    def __enter__(self) -> None:
        self.before = self.climb.budget.count

    def __exit__(self, *error: object) -> None:
        spent = self.climb.spent
        spent[self.name] = spent.get(self.name, 0) + self.climb.budget.count - self.before


def next_rung_of(fit: Fit) -> str | None:
    """What `Fit.refine` would make of a fit; nothing where it has components and there are too many dimensions."""
    name = next_rung(fit)
    return None if name == "mixture" and fit.target.dim > _MIXED_DIM else name
