"""How much mass lies further out than each of many approximations reaches: what its own draws cannot see.

As `diagnostics.coverage` does for one: q made wider is looked at. It is a glance at tails, and no search for modes.
"""

import numpy as np

from bures.diagnostics.coverage import LEAST_OUTSIDE, SEEN, WIDTHS, find_missed
from bures.family import Gaussian
from bures.modes import View

DRAWS = 25  # of each width


def widened(noise: np.ndarray) -> np.ndarray:
    """Noise (fits, widths × draws, dim), wider for each width."""
    return noise * np.repeat(np.array(WIDTHS, noise.dtype), DRAWS)[:, None]


def mass_outside(
    mean: np.ndarray,
    chol: np.ndarray,
    noise: np.ndarray,
    log_p: np.ndarray,
    *,
    log_evidence: np.ndarray,
    num_samples: np.ndarray,
) -> np.ndarray:
    """The share of mass that draws of q, so many, cannot have seen, by log p at the draws of widened `noise`."""
    dim = noise.shape[2]
    wide = np.repeat(np.array(WIDTHS), DRAWS)
    constant = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1) + dim * np.log(2 * np.pi) / 2
    log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
    squares = (np.asarray(noise, np.float64) ** 2).sum(axis=2) / 2
    log_q = -squares * wide**2 - constant[:, None]
    log_weights = log_p + squares + constant[:, None] + dim * np.log(wide)
    is_heavy = log_p - log_q - log_evidence[:, None] > np.log(num_samples / SEEN)[:, None]
    masses = np.where(is_heavy, np.exp(log_weights - log_evidence[:, None]), 0).reshape(len(mean), len(WIDTHS), DRAWS)
    outside = np.zeros(len(mean))
    for i in np.flatnonzero((masses.mean(axis=2) > LEAST_OUTSIDE).any(axis=1)):  # few: these are looked at closely
        q = Gaussian.unchecked(np.asarray(mean[i], np.float64), np.asarray(chol[i], np.float64))
        z = q.push(widened(np.asarray(noise[i : i + 1], np.float64))[0])
        parts = [np.split(x, len(WIDTHS)) for x in (z, log_p[i], log_weights[i])]
        views = [View(z, values, weights, 0.0, 0.0) for z, values, weights in zip(*parts, strict=True)]
        outside[i] = find_missed(q, float(log_evidence[i]), int(num_samples[i]), (), views, 0.0).outside
    return outside
