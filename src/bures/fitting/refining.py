"""`Fit.refine`: the next rung from a fit. First learned centring, where a target has sites for it; then a mixture."""

from jaxtyping import Array, Key

from bures.check import check_key, fail
from bures.diagnostics.weighted import log_evidence
from bures.engine import Watch, evaluator_of
from bures.family import Gaussian, GaussianMixture, Mixture
from bures.family.approximation import in_double
from bures.fitting.defaults import FULL_RANK_DIM
from bures.fitting.driver import MAX_STEPS, fit_from
from bures.fitting.mixture import heavy_modes, mixture_of_modes, run_rounds
from bures.fitting.result import Fit, Record, Refinement
from bures.learned_centring import learn_centring
from bures.mixing.rounds import evaluations_for
from bures.start import Mode, View

_SEEN = 64  # draws of a mode
SEARCHED = 3000  # evaluations of the search for other modes after a rung


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
    rung = next_rung(fit)
    if rung is None:
        remedy = "Use bures.sample(target, key=key), which goes on by MCMC."
        raise fail("fit", "one that has a next rung", fit.approximation.label, remedy)
    if rung == "centring":
        better, note = _centre(fit, key, progress, watch, num_steps)
    else:
        better, note = _mix(fit, key, progress, watch), ""
    q = better.approximation
    better.judge_with(watch(evaluator_of(better.target, q.is_dense, q.mean.dtype)), SEARCHED)
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
    return better, learned.describe()


def _mix(fit: Fit, key: Key[Array, ""], progress: bool | None, watch: Watch) -> Fit:
    """A mixture that begins with the approximation, and with the modes that it misses."""
    evaluator = watch(evaluator_of(fit.target, True, fit.approximation.mean.dtype))
    record = Record(start_evaluations=fit.num_log_density_evaluations, modes=fit.modes, scale=fit.record.scale)
    evaluations = evaluations_for(fit.target.dim)
    q = Mixture().of(in_double(fit.approximation))
    known = _own_and_missed(fit) if fit.diagnostics.coverage.missed else fit.modes
    if len(heavy_modes(known)) > 1:
        q, record.modes = mixture_of_modes(key, evaluator, known, fit.record.scale, evaluations)
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


def _own_and_missed(fit: Fit) -> tuple[Mode, ...]:
    """The approximation as if it were a mode, and the modes that it misses."""
    q, draws = in_double(fit.approximation.as_gaussian()), fit.draws()
    evidence, error = log_evidence(draws.log_weights)
    own = View(draws.z[:_SEEN], draws.log_p[:_SEEN], draws.log_weights[:_SEEN], evidence, error)
    missed = {tuple(each.location) for each in fit.diagnostics.coverage.missed}
    return Mode(q, own), *(mode for mode in fit.modes if tuple(mode.gaussian.mean) in missed)
