"""How well many short chains know the moments: by the spread between chains of different ancestors."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm

_FALSE_ALARMS = 0.001  # of drifts, over all coordinates
LEAST_FAMILIES = 20  # of chains, by ancestor, for their spread to tell
_MEAN_ERROR, _DEVIATION_ERROR = 0.04, 0.08  # in standard deviations; as of a correction by weights that works


class Precision(NamedTuple):
    """What many chains, started from draws that are related or not, know of means and standard deviations."""

    mean_error: float  # the largest standard error of a mean, in standard deviations
    deviation_error: float  # the largest relative standard error of a standard deviation
    effective: float  # independent draws that would know the worst mean as well
    drift: float  # the largest change between both halves of the chains, in the standard errors allowed
    families: int  # ancestors that are left

    def is_enough(self, wanted: float) -> bool:
        """Whether the moments are known well, and the chains have forgotten where they began."""
        precise = self.mean_error < _MEAN_ERROR and self.deviation_error < _DEVIATION_ERROR
        return precise and self.effective >= wanted and self.drift < 1 and self.families >= LEAST_FAMILIES


def measure(states: Float[np.ndarray, "time chain dim"], family: Int[np.ndarray, " chain"]) -> Precision:
    """Precision of chains, those of one family not being independent.

    Chains that do not mix count as one draw each, and fewer where their ancestors were few: the spread of family means
    about the mean of all holds both.
    """
    mean, deviation = states.mean(axis=(0, 1)), states.std(axis=(0, 1))
    if not np.all(deviation > 0):
        return Precision(math.inf, math.inf, 0.0, math.inf, 0)
    x = (states - mean) / deviation
    squares = x**2 - 1
    error, error_of_square = _error(x.mean(axis=0), family), _error(squares.mean(axis=0), family)
    half = len(x) // 2
    shifts = np.concatenate([y[-half:].mean(axis=0) - y[:half].mean(axis=0) for y in (x, squares)], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        drifts = np.abs(shifts.mean(axis=0)) / _error(shifts - shifts.mean(axis=0), family)
    drift = np.max(np.nan_to_num(drifts, nan=0.0, posinf=math.inf))  # chains that stand still do not drift
    allowed = norm.isf(_FALSE_ALARMS / (2 * shifts.shape[1]))
    worst = float(np.max(error)), float(np.max(error_of_square)) / 2
    return Precision(*worst, 1 / max(worst[0], 1e-300) ** 2, float(drift / allowed), len(np.unique(family)))


def _error(chain_means: Float[np.ndarray, "chain dim"], family: Int[np.ndarray, " chain"]) -> Float[np.ndarray, " dim"]:
    """The standard error of the mean of all, from the sums of independent families."""
    _, member = np.unique(family, return_inverse=True)
    sums = np.zeros((member.max() + 1, chain_means.shape[1]))
    np.add.at(sums, member, chain_means)
    return np.sqrt(np.sum(sums**2, axis=0)) / len(chain_means)


def slowest(states: Float[np.ndarray, "time chain dim"]) -> float:
    """The correlation of a state with the next, of the coordinate where it is largest."""
    mean, deviation = states.mean(axis=(0, 1)), states.std(axis=(0, 1))
    x = (states - mean) / np.maximum(deviation, 1e-300)
    return float(np.max(np.mean(x[1:] * x[:-1], axis=(0, 1))))
