"""`Fit`: a fitted approximation, how it came about, and what can be done with it."""

import difflib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bures.arrays import Module
from bures.centring import changes_of
from bures.check import fail, is_traced
from bures.diagnostics.diagnostics import Diagnostics, Verdict, check_diagnosis, summarise
from bures.diagnostics.weighted import WeightedDraws
from bures.engine import Evaluator, evaluator_of
from bures.estimator import Cost
from bures.family import AbstractApproximation, Gaussian
from bures.fitting.defaults import default_methods
from bures.fitting.judgement import Judgement, judge
from bures.fitting.resampling import as_given, resampled
from bures.loop import LoopState, Method, Methods, State, Trace
from bures.mixing import Pause
from bures.outcome import Outcome
from bures.rows.stream import rows_read_of
from bures.rows.subsampled import RowsUse
from bures.start import EVALUATIONS, LATER_EVALUATIONS, Mode
from bures.target import Target

if TYPE_CHECKING:
    from bures.looking import Summary

_MOST_SEARCH, _SHARE = 2500, 0.1  # evaluations of the search after a fit, or such a share of those of its steps

Callback = Callable[[int, AbstractApproximation, dict[str, float]], bool | None]


class Evaluations(NamedTuple):
    """Points at which the target was evaluated, by what for."""

    start: int  # with the search for modes
    steps: int
    search: int  # after the steps, where something points to another mode
    judgement: int  # its draws, the walk outwards from its edge, and the last look all around


class Plan(NamedTuple):
    """How far a fit was to go: what `resume()` without a number finishes."""

    total: int  # steps at the most
    tolerance: float | None  # nats, where the fit stops by itself
    judged: bool  # whether it is judged when it ends


class Refinement(NamedTuple):
    """What a rung gained, and what it cost."""

    rung: str
    before: float  # nESS
    after: float
    evaluations: int
    note: str = ""

    def __str__(self) -> str:
        change = f"nESS {100 * self.before:.1f}% → {100 * self.after:.1f}%"
        text = f"Refined by {self.rung}: {change}, for {self.evaluations:,} evaluations."
        return f"{text} {self.note}" if self.note else text


class Record:
    """What a fit knows besides its arrays: what its start saw and cost, and its judgement, made at first use.

    One object for the life of a fit, so that the judgement is made once. It is the same whenever it is made, because
    its draws come from the fit's key.
    """

    def __init__(
        self,
        *,
        start_evaluations: int = 0,
        grows: bool = False,
        modes: tuple[Mode, ...] = (),
        scale: Gaussian | None = None,
        has_images: bool = False,
        seconds: dict[str, float] | None = None,
        judgement: Judgement | None = None,
        mixed_rounds: int = 0,
        mixed_evaluations: int = 0,
        refinement: Refinement | None = None,
        cut_evaluations: int = 0,
        plan: Plan | None = None,
        probes: Any = None,
        rows: RowsUse | None = None,
        pause: Pause | None = None,
        is_recentred: bool = False,
    ):
        self.start_evaluations, self.modes, self.scale = start_evaluations, modes, scale
        self.has_images = has_images  # whether the start looked for images of all its modes
        self.grows = grows  # whether late steps take more draws, as those of the default method on the host do
        self.seconds = dict(seconds or {})
        self.judgement = judgement
        self.mixed_rounds = mixed_rounds  # of a mixture, before other steps; one that failed is among them
        self.mixed_evaluations = mixed_evaluations  # of those that did not
        self.refinement = refinement
        self.cut_evaluations = cut_evaluations  # of steps that were begun when a limit, or the user, ended the fit
        self.plan = plan
        self.pause = pause  # where the rounds of a mixture go on, if they were interrupted
        self.rows = rows  # what a fit by batches of rows has read, and where it is
        self.probes = probes  # points and their log densities, by which files recognise the target
        self.is_recentred = is_recentred  # whether `refine` has put the target that was given in learned coordinates
        self.elements: Any = None  # the judgement's draws in the model's own variables: see bures.looking


def _search_evaluations(start: int, steps: int) -> int:
    """Of the search after a fit: with the start no more than the steps took, or than both may in any case."""
    return max(LATER_EVALUATIONS, EVALUATIONS - start, min(steps - start, max(_MOST_SEARCH, int(_SHARE * steps))))


def _check_concrete(what: str, value: Any) -> None:
    if is_traced(value):
        raise fail(what, "asked for outside jit and vmap", value, "Return the fit first, then look at it.")


class Fit(Module):
    """A fitted approximation, how it came about, and what can be done with it."""

    approximation: AbstractApproximation
    trace: Trace  # arrays by step: bound, ness, grad_norm, clipped, step_size, gap, min_eigenvalue
    path: tuple[tuple[int, AbstractApproximation], ...]  # those after 0, 1, 2, 5, 10, 20, 50, ... steps
    target: Target
    method: Method
    key: Key[Array, ""]
    loop: LoopState
    outcome_code: Any
    record: Record

    @property
    def outcome(self) -> Outcome:
        """How the fit ended; printing it says what to do."""
        _check_concrete("outcome", self.outcome_code)
        return Outcome(int(self.outcome_code))

    @property
    def state(self) -> State:
        """The state after the last step, for `bures.step`."""
        return self.loop.state

    @property
    def num_steps(self) -> int:
        _check_concrete("num_steps", self.loop.count)
        return int(self.loop.count)

    @property
    def is_in_rounds(self) -> bool:
        """Whether all its steps so far were rounds of a mixture."""
        return self.num_steps + int(self.loop.failed) == self.record.mixed_rounds > 0

    @property
    def methods(self) -> Methods:
        """The method of the early and of the late steps."""
        grows = self.record.grows
        return default_methods(self.method, self.target) if grows else Methods(self.method, self.method)

    @property
    def _cost(self) -> Cost:
        steps = self.methods.cost(self.num_steps + int(self.loop.failed) - self.record.mixed_rounds)
        mixed = self.record.mixed_evaluations + self.record.cut_evaluations
        return Cost(steps.log_densities + mixed, steps.gradients + mixed, steps.hessians)

    @property
    def evaluations(self) -> Evaluations:
        """Points at which the target was evaluated so far: by the start, the steps, the search and the judgement."""
        judgement = self.record.judgement
        searched, judged = (0, 0) if judgement is None else judgement.spent
        return Evaluations(self.record.start_evaluations, self._cost.log_densities, searched, judged)

    @property
    def num_log_density_evaluations(self) -> int:
        """Every point at which the target was evaluated: the start's, the steps', the search's, the judgement's."""
        return sum(self.evaluations)

    @property
    def num_gradients(self) -> int:
        """Points at which a gradient was used: not the judgement's draws, nor those of which only the weight counts."""
        spent = self.evaluations
        looked = 0 if self.record.judgement is None else self.record.judgement.looked
        return spent.start + self._cost.gradients + spent.search + looked

    @property
    def num_hessians(self) -> int:
        return self._cost.hessians

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase: compile, start, steps, judgement."""
        return self.record.seconds

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that the search saw, each with the mass around it."""
        return self.record.modes if self.record.judgement is None else self.record.judgement.modes

    @property
    def judgement(self) -> Judgement:
        """The diagnostics with the draws and the modes behind them, made once."""
        if self.record.judgement is None:
            if is_traced(self.approximation):
                raise ValueError("A fit cannot be judged under jit or vmap. Return it first, then ask for diagnostics.")
            q = self.approximation
            return self.judge_with(evaluator_of(self.target, q.is_dense, q.mean.dtype))
        return self.record.judgement

    def judge_with(self, evaluator: Evaluator, search: int | None = None, *, partly: bool = False) -> Judgement:
        """The judgement, made if there is none, through an evaluator that may end it.

        With `search` so many evaluations are spent on a search for other modes; `partly`, what there is when the
        evaluator ends it is a judgement, too.
        """
        record = self.record
        if record.judgement is not None:
            return record.judgement
        began, compiled = time.perf_counter(), evaluator.compile_seconds
        read = rows_read_of(self.target)
        steps = self._cost.log_densities - record.cut_evaluations  # as of a fit that was not interrupted
        allowed = _search_evaluations(record.start_evaluations, steps)
        record.judgement = judge(
            self.key,
            self.approximation,
            self.target,
            evaluator,
            record.modes,
            record.scale,
            search=allowed if search is None else search,
            has_images=record.has_images,
            thorough=search is not None,
            partly=partly,
            **self.run_facts(),
        )
        if record.rows is not None:
            record.rows.reads["judgement"] = (rows_read_of(self.target) - read) / record.rows.num_rows
        compiled = evaluator.compile_seconds - compiled
        record.seconds["judgement"] = time.perf_counter() - began - compiled
        record.seconds["compile"] = record.seconds.get("compile", 0.0) + compiled
        return record.judgement

    @property
    def diagnostics(self) -> Diagnostics:
        """The judgement of the fit, made once when it ends and kept: what `print`, tables, plots and exports show."""
        return self.judgement.diagnostics

    def marginal(self, coordinates: Any) -> Gaussian:
        """The Gaussian of a coordinate by its name in `target.names`, or its number; or of several, in a list.

        >>> from bures import fit
        >>> target = Target(lambda z: -((z[0] - 3) ** 2) / 8 - z[1] ** 2 / 2, dim=2, names=("slope", "noise"))
        >>> slope = fit(target, key=jax.random.key(0), num_steps=20).marginal("slope")
        >>> slope.mean.round(2).tolist(), slope.standard_deviations.round(2).tolist()
        ([3.0], [2.0])
        """
        several = [coordinates] if isinstance(coordinates, str) or np.ndim(coordinates) == 0 else coordinates
        if changes_of(self.target) and (named := [each for each in several if isinstance(each, str)]):
            remedy = "Its variables are in fit.summary() and fit.to_arviz(key)."
            wanted = "numbers for a target in recentred coordinates, which are not its variables"
            raise fail("coordinates", wanted, named[0], remedy)
        places = [_place(self.target.names, each) if isinstance(each, str) else each for each in several]
        return self.approximation.marginal(places)

    def draws(self) -> WeightedDraws:
        """The draws that the judgement was made by."""
        return self.judgement.draws(self.key, self.approximation)

    def run_facts(self) -> dict[str, Any]:
        """What the diagnostics show of the run."""
        clipped, smallest = np.asarray(self.trace.clipped), np.asarray(self.trace.min_eigenvalue)
        return {
            "K": self.method.objective.K if self.method.objective.K > 1 else 10,
            "min_eigenvalue": float(smallest.min()) if smallest.size else None,
            "clip_rate": float(clipped.mean()) if clipped.size else None,
        }

    def diagnose(self, key: Key[Array, ""], num_samples: int = 10_000, *, K: int | None = None) -> Diagnostics:
        """The same figures as `diagnostics` from draws anew, with a sentence on whether to trust them.

        The IW-ELBO is that of `K`, by default the objective's K, or 10 for the ELBO.
        """
        facts = self.run_facts() if K is None else self.run_facts() | {"K": K}
        check_diagnosis(num_samples, facts["K"])
        draws = WeightedDraws.draw(key, self.approximation, self.target, num_samples)
        coverage = self.judgement.coverage(self.approximation, draws)
        return summarise(draws, coverage=coverage, names=self.target.names, **facts)

    def resample(self, key: Key[Array, ""], n: int, *, K: int | None = None) -> Float[Array, "n dim"]:
        """`n` importance-resampled draws: sampling–importance–resampling from the approximation.

        With `K` it is the paper's procedure: each draw is chosen among K fresh ones by their weights. Without, all
        draws are chosen from one pool of max(10 n, 10,000) by Pareto-smoothed weights, which costs less; beyond 6,710
        dimensions of so many that they fill half a gigabyte, and with many rows as many as a pass affords.

        They are points of the target that was given to `bures.fit`, also after `refine` has learned other coordinates.
        """
        return jax.device_put(as_given(self, resampled(self, key, n, K)))

    def to_arviz(self, key: Key[Array, ""], num_draws: int = 1000, *, resample: bool = True) -> Any:
        """An ArviZ `DataTree` of draws in the target's own variables (needs the extra `bures[arviz]`).

        With `resample` the draws are chosen by their importance weights; without, they are plain draws of the
        approximation, and their weights are in `sample_stats`. They come from those that the fit was judged by where
        these are enough, so that another key chooses others of them, and without `resample` the same.
        """
        from bures.export import to_arviz

        return to_arviz(self, key, num_draws=num_draws, resample=resample)

    def summary(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95), *, corrected: bool = True) -> "Summary":
        """A table of the model's own variables, on their own scale, with one verdict: see `bures.looking.Summary`.

        Its draws are those that the fit was judged by, corrected by their importance weights; with `corrected=False`
        those of the approximation as they are.

        >>> from bures import fit, models
        >>> table = fit(models.gaussian(2), key=jax.random.key(0)).summary()
        >>> list(table), table.verdict, round(abs(table["z[0]"]["mean"]), 1)
        (['z[0]', 'z[1]'], 'close', 0.0)
        """
        from bures.looking import summarise_fit

        return summarise_fit(self, quantiles, corrected=corrected)

    def predict(
        self,
        key: Key[Array, ""],
        *data: Any,
        num_draws: int = 1000,
        resample: bool = True,
        function: Callable[[dict[str, Array], Key[Array, ""]], Any] | None = None,
        **named: Any,
    ) -> Any:
        """What the model says of data: replicated or new observations and their log likelihood, in a `DataTree`.

        Without data: `posterior_predictive`, by the means of the model's own library (NumPyro, PyMC, Stan). With new
        data, `fit.predict(key, X_new)`: `predictions`. For a target that is only a density,
        `fit.predict(key, function)` with a function of a draw and a key. `bures.predict` has the details.

        With `resample` the draws are chosen by their importance weights, `num_draws` of them; without, they are plain
        draws of the approximation, and their weights are in `sample_stats`.

        >>> from bures import fit, models
        >>> tree = fit(models.gaussian(2), key=jax.random.key(0)).predict(
        ...     jax.random.key(1), lambda draw, key: draw["z"][0] + jax.random.normal(key)
        ... )
        >>> tree.posterior_predictive["prediction"].shape
        (1, 1000)
        """
        from bures.prediction import predict_fit

        return predict_fit(self, key, data, named, num_draws=num_draws, resample=resample, function=function)

    def report(self, path: Any, *, reference: Any = None, title: str | None = None) -> Any:
        """Write a page of the fit to one file of HTML, and return its path (needs the extra `bures[plot]`).

        Verdict, what to do next, table, marginals, pairs, weights, bound, the model, settings and versions. `reference`
        are draws to hold the fit against, of NUTS say: a DataTree, a dict of arrays by variable, `Chains`, or an array
        (n, dim) in coordinates.
        """
        from bures.looking.fit_page import write_page

        return write_page(self, path, reference=reference, title=title)

    def nuts_start(self, key: Key[Array, ""], num_chains: int = 4) -> Any:
        """Initial points and a mass matrix (the covariance) for NUTS, in the forms that samplers want them.

        See `bures.export.NutsStart`; the matrix of a mean-field fit is a vector, that of a low-rank one is there in
        factors too.
        """
        from bures.export import nuts_start

        return nuts_start(self, key, num_chains)

    def save(self, path: Any) -> None:
        """Write the fit to one file, atomically. The density itself is not saved: `bures.load` takes the target."""
        from bures.storage import save

        save(self, path)

    def resume(
        self,
        num_steps: int | None = None,
        *,
        progress: bool | None = None,
        callback: Callback | None = None,
        **limits: Any,
    ) -> "Fit":
        """The fit after `num_steps` more steps, bit for bit what an uninterrupted fit would have been.

        Without `num_steps` a fit that was interrupted, met a limit or was loaded from a checkpoint goes on to where it
        would have ended by itself; a mixture by its rounds. `limits` are `max_seconds`, `max_evaluations`, `checkpoint`
        and `every`, as for `bures.fit`; they count what is done from here on.
        """
        from bures.fitting.driver import resume

        return resume(self, num_steps, progress=progress, callback=callback, **limits)

    def refine(self, key: Key[Array, ""], *, progress: bool | None = None) -> "Fit":
        """The next rung: learned centring where the model has sites for it, then a mixture of Gaussians.

        What it gained and what it cost is printed with the result. `bures.sample` climbs until draws can be trusted.

        >>> from bures import fit, models
        >>> better = fit(models.eggbox(), key=jax.random.key(0)).refine(jax.random.key(1))
        >>> better.approximation.label, better.diagnostics.ness > 0.97
        ('mixture of 4 Gaussians', True)
        """
        from bures.fitting.refining import refine

        return refine(self, key, progress=progress)

    def __repr__(self) -> str:
        """One line; `print(fit)` says more. Nothing is computed for it."""
        from bures.looking.notebook import short

        return short(self)

    def _repr_html_(self) -> str:
        from bures.looking.notebook import html_of_fit

        return html_of_fit(self)

    def __str__(self) -> str:
        """The outcome, and what the judgement says."""
        method = self.method
        names = [type(part).__name__ for part in (method.objective, method.estimator, method.geometry)]
        is_mixed = self.is_in_rounds
        by = f"{names[0]} on a pool of draws" if is_mixed else " × ".join(names)
        how = f"{by}, {self.approximation.label}, {self.num_steps} {'rounds' if is_mixed else 'steps'}"
        text = f"Fit of {self.target.dim} dimensions by {how}\n{self.outcome}"
        found = self.diagnostics
        figures = f"nESS {100 * found.ness:.1f}%"
        judged = f"{figures}." if found.trustworthy else f"But k̂ = {found.khat:.2f}, {figures}."
        refined = f"\n{self.record.refinement}" if self.record.refinement else ""
        refined = f"\n{self.record.rows}{refined}" if self.record.rows else refined
        if found.verdict is Verdict.UNJUDGED:
            return f"{text}{refined}\n{found.message}"
        return f"{text}{refined}\n{judged} {found.message} {self.next_step()}".rstrip()

    def next_step(self) -> str:
        """What to do with a fit that cannot be trusted, where there is a next rung; else nothing."""
        from bures.fitting.refining import next_rung

        rung = None if self.diagnostics.trustworthy else next_rung(self)
        return "" if rung is None else f"Next: fit.refine(key), by {rung}."


def _place(names: tuple[str, ...], name: str) -> int:
    """The number of a coordinate; for a name that is not there, the message has those like it."""
    if name in names:
        return names.index(name)
    near = [each for each in names if each.startswith(f"{name}[")] or difflib.get_close_matches(name, names, n=3)
    shown = near[:3] or names[:3]
    more = ", ..." if len(near or names) > len(shown) else ""
    raise fail("coordinates", "names of the target or numbers", name, f"Did you mean {', '.join(shown)}{more}?")
