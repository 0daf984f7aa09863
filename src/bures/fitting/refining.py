"""`Fit.refine`: the next rung from a fit. First learned centring, where a target has sites for it; then a mixture."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Key

from bures.check import check_key, check_progress, fail
from bures.diagnostics.coverage import WIDTHS
from bures.diagnostics.weighted import log_evidence
from bures.draws import host_generator
from bures.engine import Evaluator, Watch, evaluator_of
from bures.family import Gaussian, GaussianMixture, Mixture
from bures.family.approximation import in_double
from bures.fitting.defaults import FULL_RANK_DIM
from bures.fitting.driver import MAX_STEPS, fit_from
from bures.fitting.mixture import heavy_modes, mixture_of_modes, run_rounds
from bures.fitting.result import Fit, Record, Refinement
from bures.learned_centring import learn_centring
from bures.mixing.rounds import evaluations_for
from bures.modes import UNSEEN, Mode, View, look
from bures.search import Budget

_SEEN = 64  # draws of a mode
_OUTSIDE = 2**35 + 2  # with the key, for views of the approximation made wider: no step has this number
# Evaluations of the search for other modes after a rung, in few dimensions and beyond. Of N(0, I) and a mode w times as
# wide, r away, the second rules a ball of radius r w / (1 − w²): of points spread evenly in directions and in log r, as
# many as wᵈ / 2.6 d fall into it. In five dimensions the first number finds nine in ten modes with w = 0.3, in ten with
# w = 0.55, in twenty with w = 0.75. Where several modes are known there are likelier more of them.
_SEARCHED_WELL, _SEARCHED, _FEW_DIMENSIONS, _FOR_SEVERAL = 8000, 3000, 20, 2.5


def evaluations_of_search(dim: int, modes: Sequence[Mode]) -> int:
    """Of the search for other modes after a rung, beside those that are known."""
    count = _SEARCHED_WELL if dim <= _FEW_DIMENSIONS else _SEARCHED
    return int(count * _FOR_SEVERAL) if len(modes) > 1 else count


def refine(
    fit: Fit,
    key: Key[Array, ""],
    *,
    progress: bool | None = None,
    watch: Watch = lambda each: each,
    num_steps: int = MAX_STEPS,
) -> Fit:
    """See `Fit.refine`. `watch` may note what evaluators are asked for, and end it, `num_steps` ends a Gaussian."""
    check_key(key)
    check_progress(progress)
    rung = next_rung(fit)
    if rung is None:
        remedy = "Use bures.sample(target, key=key), which goes on by MCMC."
        raise fail("fit", "one that has a next rung", fit.approximation.label, remedy)
    if rung == "centring":
        better, note = _centre(fit, key, progress, watch, num_steps)
    else:
        better, note = _mix(fit, key, progress, watch), ""
    q = better.approximation
    evaluator = watch(evaluator_of(better.target, q.is_dense, q.mean.dtype))
    better.judge_with(evaluator, evaluations_of_search(q.dim, better.record.modes))
    before, after = fit.diagnostics.ness, better.diagnostics.ness
    evaluations = better.num_log_density_evaluations - fit.num_log_density_evaluations
    better.record.refinement = Refinement(rung, before, after, evaluations, note)
    return better


def next_rung(fit: Fit) -> str | None:
    """Centring if the target has sites and is as the model has it; then a mixture; then none."""
    if fit.target.sites:  # a target in learned coordinates has none
        return "centring"
    beyond = isinstance(fit.approximation, GaussianMixture) or fit.target.dim > FULL_RANK_DIM
    return None if beyond else "mixture"


def _centre(fit: Fit, key: Key[Array, ""], progress: bool | None, watch: Watch, num_steps: int) -> tuple[Fit, str]:
    """A Gaussian in learned coordinates, and what was learned."""
    given = fit.approximation if isinstance(fit.approximation, Gaussian) else None
    learned = learn_centring(key, fit.target, given, watch=watch)
    evaluator = watch(evaluator_of(learned.target, True))
    better = fit_from(learned, key=key, evaluator=evaluator, progress=progress, num_steps=num_steps)
    better.record.start_evaluations += learned.evaluations + fit.num_log_density_evaluations
    better.record.is_recentred = True
    return better, learned.describe()


def _mix(fit: Fit, key: Key[Array, ""], progress: bool | None, watch: Watch) -> Fit:
    """A mixture that begins with the approximation, and with the modes that it misses."""
    evaluator = watch(evaluator_of(fit.target, True, fit.approximation.mean.dtype))
    record = Record(
        start_evaluations=fit.num_log_density_evaluations,
        modes=fit.modes,
        scale=fit.record.scale,
        is_recentred=fit.record.is_recentred,
    )
    evaluations = evaluations_for(fit.target.dim)
    q = Mixture().of(in_double(fit.approximation))
    coverage = fit.diagnostics.coverage
    known = _own_and_missed(fit) if coverage.missed or coverage.outside else fit.modes
    if coverage.outside:
        known = (*known, *_further_out(host_generator(key, _OUTSIDE), fit, evaluator))
    if len(heavy_modes(known)) > 1:
        q, record.modes = mixture_of_modes(key, evaluator, known, evaluations)
        record.start_evaluations += evaluator.count
    return run_rounds(
        key,
        fit.target,
        evaluator,
        q,
        record,
        evaluations=evaluations - evaluator.count,
        max_components=None,
        also=(in_double(fit.approximation.as_gaussian()),),
        progress=progress,
    )


def _further_out(rng: np.random.Generator, fit: Fit, evaluator: Evaluator) -> tuple[Mode, ...]:
    """The approximation made wider, by the width that sees most of the mass, as if it were a mode."""
    q = in_double(fit.approximation.as_gaussian())
    views = look(rng, Budget(evaluator, len(WIDTHS) * _SEEN), [(q, width, _SEEN) for width in WIDTHS])
    seen = [(view, width) for view, width in zip(views, WIDTHS, strict=True) if view.error < UNSEEN]
    if not seen:
        return ()
    view, width = max(seen, key=lambda each: each[0].log_mass)
    return (Mode(Gaussian.unchecked(q.mean, width * q.chol), view),)


def _own_and_missed(fit: Fit) -> tuple[Mode, ...]:
    """The approximation as if it were a mode, and the modes that it misses."""
    q, draws = in_double(fit.approximation.as_gaussian()), fit.draws()
    evidence, error = log_evidence(draws.log_weights)
    own = View(draws.z[:_SEEN], draws.log_p[:_SEEN], draws.log_weights[:_SEEN], evidence, error)
    missed = {tuple(each.location) for each in fit.diagnostics.coverage.missed}
    return Mode(q, own), *(mode for mode in fit.modes if tuple(mode.gaussian.mean) in missed)
