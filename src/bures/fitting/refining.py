"""`Fit.refine`: the next rung from a fit. First learned centring, where a target has sites for it; then a mixture."""

from collections.abc import Callable

from jaxtyping import Array, Key

from bures.check import check_key, fail
from bures.diagnostics.weighted import log_evidence
from bures.engine import Evaluator, evaluator_of
from bures.family import Gaussian, GaussianMixture, Mixture
from bures.family.approximation import in_double
from bures.fitting.driver import fit_from
from bures.fitting.mixture import check_mixture_dim, mixture_of_modes, run_rounds
from bures.fitting.result import Fit, Record, Refinement
from bures.learned_centring import learn_centring
from bures.mixing.rounds import evaluations_for
from bures.start import Mode, View

_SEEN = 64  # draws of a mode

Watch = Callable[[Evaluator], Evaluator]


def refine(fit: Fit, key: Key[Array, ""], *, progress: bool | None = None, watch: Watch = lambda each: each) -> Fit:
    """See `Fit.refine`. `watch` may note what evaluators are asked for, and end it."""
    check_key(key)
    rung = next_rung(fit)
    if rung is None:
        remedy = "Use bures.sample(target, key=key), which goes on by MCMC."
        raise fail("fit", "one that has a next rung", fit.approximation.label, remedy)
    better, note = _centre(fit, key, progress, watch) if rung == "centring" else (_mix(fit, key, progress, watch), "")
    judged = [each.diagnostics.ness for each in (fit, better)]
    evaluations = better.num_log_density_evaluations - fit.num_log_density_evaluations
    better.record.refinement = Refinement(rung, *judged, evaluations, note)
    return better


def next_rung(fit: Fit) -> str | None:
    """Centring if the target has sites and is as the model has it; then a mixture; then none."""
    if fit.target.sites:  # a target in learned coordinates has none
        return "centring"
    return None if isinstance(fit.approximation, GaussianMixture) else "mixture"


def _centre(fit: Fit, key: Key[Array, ""], progress: bool | None, watch: Watch) -> tuple[Fit, str]:
    """A Gaussian in learned coordinates, and what was learned."""
    given = fit.approximation if isinstance(fit.approximation, Gaussian) else None
    learned = learn_centring(key, fit.target, given)
    evaluator = watch(evaluator_of(learned.target, True))
    better = fit_from(learned, key=key, evaluator=evaluator, progress=progress)
    better.record.start_evaluations += learned.evaluations + fit.num_log_density_evaluations
    return better, learned.describe()


def _mix(fit: Fit, key: Key[Array, ""], progress: bool | None, watch: Watch) -> Fit:
    """A mixture that begins with the approximation, and with the modes that it misses."""
    check_mixture_dim(fit.target)
    evaluator = watch(evaluator_of(fit.target, True, fit.approximation.mean.dtype))
    record = Record(start_evaluations=fit.num_log_density_evaluations, modes=fit.modes, scale=fit.record.scale)
    evaluations = evaluations_for(fit.target.dim)
    q = Mixture().of(in_double(fit.approximation))
    if fit.diagnostics.coverage.missed:
        q, record.modes = mixture_of_modes(key, evaluator, _own_and_missed(fit), fit.record.scale, evaluations)
        record.start_evaluations += evaluator.count
    return run_rounds(
        key,
        fit.target,
        evaluator,
        q,
        record,
        evaluations=evaluations - evaluator.count,
        max_components=None,
        progress=progress,
    )


def _own_and_missed(fit: Fit) -> tuple[Mode, ...]:
    """The approximation as if it were a mode, and the modes that it misses."""
    q, draws = in_double(fit.approximation.as_gaussian()), fit.draws()
    evidence, error = log_evidence(draws.log_weights)
    own = View(draws.z[:_SEEN], draws.log_p[:_SEEN], draws.log_weights[:_SEEN], evidence, error)
    missed = {tuple(each.location) for each in fit.diagnostics.coverage.missed}
    return Mode(q, own), *(mode for mode in fit.modes if tuple(mode.gaussian.mean) in missed)
