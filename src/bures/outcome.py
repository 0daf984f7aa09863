"""How a fit ended, each with what to do about it; and the rules that decide."""

import enum
import math
from typing import Any

import numpy as np


class Outcome(enum.Enum):
    """How a fit ended. `str(outcome)` says what to do."""

    CONVERGED = 0
    MAX_STEPS = 1
    NON_FINITE = 2
    DIVERGED = 3
    INTERRUPTED = 4
    TIME_LIMIT = 5
    EVALUATION_LIMIT = 6
    ZERO_DENSITY = 7

    @property
    def message(self) -> str:
        return _MESSAGES[self]

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


_MESSAGES = {
    Outcome.CONVERGED: "no further gain is in sight. Check fit.diagnostics before using the approximation.",
    Outcome.MAX_STEPS: (
        "all steps asked for, or all that a mixture allows itself, were taken, and the bound was still improving or "
        "too noisy to tell. "
        "Continue with fit.resume(num_steps), or use a larger step size or M."
    ),
    Outcome.NON_FINITE: (
        "the log density, its derivatives or the next Gaussian were NaN or infinite; the approximation is the best "
        "one before that. Check the log density there (constrained variables need Target.from_variables), "
        "start narrower, or take a smaller step size."
    ),
    Outcome.ZERO_DENSITY: (
        "draws came to lie where the density is zero and the bound is minus infinity, so there was no next step; the "
        "approximation is the best one before that. Weights leave such draws out: fit.diagnostics says what the others "
        "are worth. If a variable ends there, give its support (Target.from_variables); else start narrower, or take a "
        "smaller step size."
    ),
    Outcome.DIVERGED: (
        "the bound fell far below what it had been; the approximation is the best one before that. "
        "Take a smaller step size."
    ),
    Outcome.INTERRUPTED: "stopped on request; the approximation is the best one so far. fit.resume() goes on.",
    Outcome.TIME_LIMIT: (
        "max_seconds was spent before the fit had ended; the approximation is the best one so far. Raise the limit, or "
        "go on with fit.resume()."
    ),
    Outcome.EVALUATION_LIMIT: (
        "max_evaluations was spent before the fit had ended; the approximation is the best one so far. Raise the "
        "limit, or go on with fit.resume()."
    ),
}
FAILURES = (Outcome.NON_FINITE, Outcome.ZERO_DENSITY)  # those of a step, or of a round, that could not be taken
CUT_SHORT = (Outcome.INTERRUPTED, Outcome.TIME_LIMIT, Outcome.EVALUATION_LIMIT)  # those that resume() takes further


_BATCHES = 5  # in each quarter, for a standard error that knows of autocorrelation
_SHORTEST = 200  # steps before which nothing is called converged
_NEARLY, _SHORTEST_STRETCH = 4, 12  # times the tolerance, and steps: of the stretch on which a small gap is checked
FALL = 1e3  # relative fall of the bound that is called divergence
FALL_STEPS = 10


def bound_gain(bounds: Any) -> tuple[float, float]:
    """How much the bound rose from the third to the last quarter of a run, with its standard error."""
    batch = bounds.size // (4 * _BATCHES)
    if batch == 0:
        return math.inf, math.inf
    with np.errstate(over="ignore", invalid="ignore"):  # bounds of a hopeless start may be as large as floats go
        half = np.asarray(bounds[-2 * batch * _BATCHES :], np.float64).reshape(2, _BATCHES, batch).mean(axis=2)
        error = math.sqrt(half.var(axis=1, ddof=1).sum() / _BATCHES)
        return float(half[1].mean() - half[0].mean()), error


def has_converged(bounds: Any, tolerance: float) -> bool:
    """Whether, with 95% confidence, the last quarter of the run changed the bound by less than `tolerance` nats."""
    if bounds.size < _SHORTEST:
        return False
    gain, error = bound_gain(bounds)
    return abs(gain) + 2 * error < tolerance


def is_rising(bounds: Any, gaps: Any, tolerance: float) -> bool:
    """Whether the bound has risen by more than `tolerance` nats, beyond noise, while the gap said that little was left.

    The gap is what the gradient is worth where q is standard normal. Mean field, and scales that are still far too
    small, see hardly any slope along a direction in which many coordinates have to move together, and each only far.
    """
    large = np.flatnonzero(~(np.asarray(gaps) < _NEARLY * tolerance))
    third = (bounds.size - (large[-1] + 1 if large.size else 0)) // 3
    if 3 * third < _SHORTEST_STRETCH:
        return False
    before, after = np.asarray(bounds[-2 * third :], np.float64).reshape(2, third)
    error = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / third)
    return float(after.mean() - before.mean()) - 2 * error > tolerance


def has_diverged(bounds: Any) -> bool:
    """Whether the last bounds are all far below the best."""
    if bounds.size <= FALL_STEPS:
        return False
    best = float(np.max(bounds))
    return float(np.max(bounds[-FALL_STEPS:])) < best - FALL * (1 + abs(best))
