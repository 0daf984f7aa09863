"""The log densities of many components at many points, as one product of matrices.

A Gaussian's log density is a quadratic function of the point: coefficients times the point's products. That is a tenth
of the time of whitening by each component in turn. Results are in single precision: they are used to within 1e-5.
"""

import numpy as np

from bures.arrays import log_sum_exp
from bures.family.approximation import LOG_2PI
from bures.family.mixture import GaussianMixture

_NUMBERS = 2**18  # of the products of a block of points: as many as stay in the cache
_LARGEST_TERM = 1e10  # of the quadratic function: more would leave too few digits of what terms have in common


def log_components(q: GaussianMixture, z: np.ndarray) -> np.ndarray:
    """The log density of each component at each point, (components, n); components have no tails."""
    centre = np.mean(q.means, axis=0)
    x = z - centre
    whiteners = np.linalg.inv(q.chols)
    coefficients = _coefficients(q, whiteners, centre)
    found = np.empty((len(coefficients), len(x)), np.float32)
    block = max(64, _NUMBERS // coefficients.shape[1])
    for i in range(0, len(x), block):
        found[:, i : i + block] = coefficients @ _products(x[i : i + block]).T
    largest = np.max(np.sum(x**2, axis=1), initial=0.0) + np.sum((q.means - centre) ** 2, axis=1)
    for c in np.flatnonzero(~(np.sum(whiteners**2, axis=(1, 2)) * largest < _LARGEST_TERM)):
        noise = (z - q.means[c]) @ whiteners[c].T
        found[c] = -np.sum(noise**2, axis=1) / 2 + _log_scales(q)[c]
    return found


def log_density(log_components: np.ndarray, log_shares: np.ndarray) -> np.ndarray:
    """Of the mixture with such shares."""
    return log_sum_exp(log_components + log_shares[:, None].astype(np.float32), axis=0).astype(np.float64)


def _log_scales(q: GaussianMixture) -> np.ndarray:
    return -np.sum(np.log(np.diagonal(q.chols, axis1=1, axis2=2)), axis=1) - q.dim * LOG_2PI / 2


def _coefficients(q: GaussianMixture, whiteners: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Of one, of the coordinates and of their products, for each component."""
    rows, columns = np.tril_indices(q.dim)
    precisions = np.swapaxes(whiteners, 1, 2) @ whiteners
    linear = (precisions @ (q.means - centre)[:, :, None])[:, :, 0]
    constant = _log_scales(q) - np.sum(linear * (q.means - centre), axis=1) / 2
    products = precisions[:, rows, columns] * np.where(rows == columns, -0.5, -1.0)
    return np.concatenate([constant[:, None], linear, products], axis=1)


def _products(x: np.ndarray) -> np.ndarray:
    """One, the coordinates and their products, (n, 1 + d + d (d + 1) / 2)."""
    n, dim = x.shape
    found = np.empty((n, 1 + dim + dim * (dim + 1) // 2))
    found[:, 0], found[:, 1 : 1 + dim] = 1, x
    begun = 1 + dim
    for i in range(dim):
        np.multiply(x[:, i : i + 1], x[:, : i + 1], out=found[:, begun : begun + i + 1])
        begun += i + 1
    return found
