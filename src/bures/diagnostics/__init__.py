"""How good is an approximation: weights of fresh draws, their tail, what the search for modes saw, and a verdict."""

from bures.diagnostics.correction import Correction as Correction
from bures.diagnostics.coverage import Coverage as Coverage, Missed as Missed
from bures.diagnostics.diagnostics import (
    Diagnostics as Diagnostics,
    Verdict as Verdict,
    diagnose as diagnose,
    summarise as summarise,
)
from bures.diagnostics.pareto import (
    khat_threshold as khat_threshold,
    pareto_khat as pareto_khat,
    smooth_log_weights as smooth_log_weights,
)
from bures.diagnostics.weighted import (
    WeightedDraws as WeightedDraws,
    forward_kl as forward_kl,
    log_evidence as log_evidence,
    moment_errors as moment_errors,
    ness as ness,
)
