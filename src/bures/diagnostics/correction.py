"""How well importance weights know the moments: measured by their spread over splits of the draws."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from bures.diagnostics.weighted import Points, relative_weights

SPLITS = 10  # of the draws, to measure how well their weighted moments are known
LARGEST = 0.005  # share of the heaviest draw in the weight of all
# Of a correction that works, and of one that may: errors of means in sd, of sds in shares, and effective draws.
_WORKS, _MAY_WORK = (0.04, 0.08, 1000), (0.05, 0.1, 500)


@dataclasses.dataclass(frozen=True)
class Correction:
    """How well importance weights know the moments, from splits of the draws."""

    mean_error: float  # the largest standard error of a weighted mean, in weighted standard deviations
    deviation_error: float  # the largest relative standard error of a weighted standard deviation
    effective: float  # effective draws
    shift: float  # how far the weights move a mean at the most, in weighted standard deviations
    largest: float  # share of the heaviest draw in the sum of all weights
    widening: float = 1.0  # times by which the weights widen a standard deviation at the most

    @property
    def works(self) -> bool:
        """Whether the weights know the moments well."""
        return self._reaches(*_WORKS)

    @property
    def may_work(self) -> bool:
        """Whether they nearly do."""
        return self._reaches(*_MAY_WORK)

    def _reaches(self, mean_error: float, deviation_error: float, effective: float) -> bool:
        precise = self.mean_error < mean_error and self.deviation_error < deviation_error
        return precise and self.effective >= effective

    @property
    def is_even(self) -> bool:
        """Whether it works and no draw weighs much: a tail that matters would have shown itself by a heavy draw.

        Of n draws whose weights have a tail of shape k, the heaviest has a share of about n^(k−1): 6% of 10,000 at 0.7.
        """
        return self.works and self.largest < LARGEST

    @property
    def is_as_exact(self) -> bool:
        """Whether weights that are all alike are as good as none: exact draws would know no more of wild tails."""
        return self.effective >= _WORKS[2] and self.largest < LARGEST


def measure_correction(z: np.ndarray | Points, log_weights: np.ndarray) -> Correction:
    """How well the weighted moments are known, by their spread over splits of the draws."""
    nothing = Correction(math.inf, math.inf, 0.0, math.inf, 1.0)
    size = log_weights.size // SPLITS * SPLITS
    if not np.isfinite(np.max(log_weights)) or size == 0:
        return nothing
    weights = relative_weights(np.where(np.isnan(log_weights), -np.inf, log_weights))
    plain, squares, *sums = _sums_by_split(z, weights, size)
    mean, deviation = weighted_moments(*(part.sum(axis=0) for part in sums))
    if not np.all(deviation > 0):
        return nothing
    moments = np.array([weighted_moments(*part) for part in zip(*(part[:SPLITS] for part in sums), strict=True)])
    with np.errstate(all="ignore"):
        errors = np.std(moments, axis=0, ddof=1) / (deviation * math.sqrt(SPLITS))
    errors = np.where(np.isfinite(errors), errors, math.inf)
    effective = float(np.sum(weights) ** 2 / np.sum(weights**2))
    own_mean, own = weighted_moments(weights.size, plain, squares)
    shift = float(np.max(np.abs(mean - own_mean) / deviation))
    largest = float(np.max(weights) / np.sum(weights))
    widening = float(np.max(deviation / own))
    return Correction(float(np.max(errors[0])), float(np.max(errors[1])), effective, shift, largest, widening)


def _sums_by_split(
    z: np.ndarray | Points, weights: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The sums of z and z², and sums of w, w z and w z² over each split of the first `size` draws and over those left.

    All of z about a centre.
    """
    dim, split = z.shape[1], size // SPLITS
    plain, squares = np.zeros(dim), np.zeros(dim)
    sums = np.zeros(SPLITS + 1), np.zeros((SPLITS + 1, dim)), np.zeros((SPLITS + 1, dim))
    held = isinstance(z, np.ndarray)
    centre = np.mean(z, axis=0, dtype=np.float64) if held else np.asarray(z.q.mean, np.float64)
    for here, block in [(slice(0, len(z)), z)] if held else z.blocks():
        edges = [here.start, *range((here.start // split + 1) * split, min(here.stop, size), split), here.stop]
        if here.start < size < here.stop:
            edges.insert(-1, size)
        for low, high in itertools.pairwise(edges):
            i, part = min(low // split, SPLITS), block[low - here.start : high - here.start] - centre
            both = np.stack([np.ones(high - low), weights[low:high]])
            firsts = both @ part
            np.square(part, out=part)  # small enough to stay where the processor has it
            seconds = both @ part
            plain, squares = plain + firsts[0], squares + seconds[0]
            sums[0][i] += np.sum(weights[low:high])
            sums[1][i] += firsts[1]
            sums[2][i] += seconds[1]
    return plain, squares, *sums


def weighted_moments(total: Any, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means and standard deviations from sums of w, w z and w z²."""
    total = np.maximum(total, 1e-300)
    mean = first / total
    return mean, np.sqrt(np.maximum(second / total - mean**2, 0))
