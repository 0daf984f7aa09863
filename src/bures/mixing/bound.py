"""The bound on the pool: the IW-ELBO of tuples of K draws whose other draws are all of q.

With the weight w = p / (Z q) of a draw and K − 1 others at their mean, the bound of a tuple is log(1 + (w − 1) / K),
and the draw's own normalised weight is g = w / (K − 1 + w): the limit of infinitely many blockings of the same draws.
Its coefficients are A = g², its first variation along q is log(1 + (w − 1) / K) − g, both times K. The bound is below
zero by about χ² / (2 K) where q is near p; it is kept here as its `deficit`, 2 K times as much: about the χ² that
importance weights lose, 1 / nESS − 1, but bounded where single draws weigh much.
"""

import numpy as np

K = 10  # draws in a tuple
_POWERS = 0.75 ** np.arange(20)  # 1 − α, the largest that leaves enough effective draws is taken
_LARGEST = 600.0  # of a log weight


def weights(log_p: np.ndarray, log_q: np.ndarray, log_evidence: float) -> np.ndarray:
    """w = p / (Z q)."""
    return np.exp(np.minimum(log_p - log_q - log_evidence, _LARGEST))


def of_tuples(w: np.ndarray, size: float = K) -> np.ndarray:
    """What each draw adds to the bound of tuples of a size, beyond the log evidence."""
    return size * np.log1p((w - 1) / size)


def deficits(w: np.ndarray, drawn: np.ndarray, size: float = K) -> np.ndarray:
    """What each draw adds to the deficit, of tuples of a size; `drawn` is q over the density that it was drawn from.

    That the mean of w is one is used: w − 1 takes most of the noise away.
    """
    return 2 * size * drawn * ((w - 1) - of_tuples(w, size))


def variation(w: np.ndarray, size: float = K) -> np.ndarray:
    """The first variation of the bound of tuples of a size along q, times the size."""
    return of_tuples(w, size) - size * w / (size - 1 + w)


def coefficients(w: np.ndarray, drawn: np.ndarray, least_share: float) -> np.ndarray:
    """A at each draw, with a power 1 − α so small that enough draws have a weight, as `Tempered` has it."""
    most = np.sum(drawn) ** 2 / np.sum(drawn**2)
    A = np.ones_like(w)
    for power in _POWERS:
        tempered = w**power
        g = tempered / (tempered + (K - 1) * (drawn @ tempered) / np.sum(drawn))
        A = (1 - power) * g + power * g**2
        weight = drawn * A
        if np.sum(weight) ** 2 >= least_share * most * np.sum(weight**2):
            break
    return A
