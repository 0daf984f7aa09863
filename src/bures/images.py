"""Images of a known mode: where signs or labels are free, the same mode is there again.

A factor model does not know the sign of its factors, nor a mixture the order of its parts. No scattered point may come
near such an image in many dimensions, but it is known where to look: at the mode with some coordinates mirrored at
zero, and with two coordinates, or two blocks of them, exchanged. And where two independent parts of a model have two
modes each, three of the four tell where the fourth is.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from bures.arrays import norms, squared_norms
from bures.family.gaussian import Gaussian
from bures.search import Budget, scout, send_out, whitened

_SWEEPS = 2  # over all signs
_EXACT = 0.01  # nats by which log p differs, at the most, at an image that is the same mode again
_MIRRORED_DIM, _EXCHANGED_DIM = 250, 60
_PAIRS = 120  # of coordinates, or of blocks of them, that are exchanged, at the most
_TURNED = 200  # evaluations for the signs after an exchange of blocks
_FOLLOWED, _ROUNDS = 10, 12  # the best of them, and how far they are followed
_CORNERS = 6  # modes of which three each are taken
_APART = 3.0  # standard deviations between two coordinates whose exchange makes a difference
# A place where log p has fallen by this share of what the mode's Gaussian expects is explained by it; and one where it
# has fallen by so many nats is no image, however far away it is.
_EXPLAINED, _HOPELESS = 0.8, 5000.0


class Image(NamedTuple):
    """A mode's Gaussian with the signs of some coordinates turned."""

    gaussian: Gaussian
    value: float  # log p at its mean
    is_exact: bool  # whether that is log p at the mode


def mirror_image(budget: Budget, q: Gaussian) -> Image | None:
    """The mirror image of a mode that log p is highest at; None if that is the mode itself.

    All signs are turned, then those turned back, one at a time, that log p is higher with.

    >>> from bures import Target
    >>> from bures.engine import Evaluator
    >>> target = Target(lambda z: -8 * (z[0] * z[1] - 4) ** 2 - 8 * (z[0] - z[1]) ** 2 - z[2] ** 2 / 2 + 9 * z[2], 3)
    >>> q = Gaussian.unchecked(np.array([2.0, 2.0, 9.0]), 0.1 * np.eye(3))
    >>> image = mirror_image(Budget(Evaluator(target), 100), q)
    >>> image.gaussian.mean.tolist(), image.is_exact
    ([-2.0, -2.0, 9.0], True)
    """
    dim = q.dim
    if dim > _MIRRORED_DIM or budget.left < _SWEEPS * (dim + 1) + 1:
        return None
    signs = -np.ones(dim)
    for _ in range(_SWEEPS):
        tried = np.concatenate([signs[None], signs * (1 - 2 * np.eye(dim))])
        values = _values(budget, tried * q.mean)
        better = values[1:] > values[0]
        signs = np.where(better, -signs, signs)
        if not np.any(better) or not np.any(signs < 0):
            break
    if not is_apart(q, signs * q.mean):
        return None
    image, home = _values(budget, np.stack([signs * q.mean, q.mean]))
    if not _is_unexplained(q, home, (signs * q.mean)[None], image[None])[0]:
        return None
    root = signs[:, None] * q.chol * signs  # of the mirrored covariance: still triangular, with the same diagonal
    return Image(Gaussian.unchecked(signs * q.mean, root), float(image), bool(abs(image - home) < _EXACT))


def exchanges(budget: Budget, q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Where a mode with two coordinates, or blocks of them, exchanged leads from the best places, and log p there."""
    nowhere = np.zeros((0, q.dim)), np.zeros(0)
    if q.dim > _EXCHANGED_DIM:
        return nowhere
    pairs, blocks, swept = _orders(q)
    left = budget.left - 1 - len(pairs) - _FOLLOWED * (_ROUNDS + 2)
    if left < len(blocks) + swept * (q.dim + 2):
        blocks, swept = blocks[:0], 0
    if not len(pairs) + len(blocks) or left < 0:
        return nowhere
    home, *values = _values(budget, q.mean[np.concatenate([np.arange(q.dim)[None], pairs, blocks])])
    values = np.array(values)
    blocks = blocks[np.argsort(-values[len(pairs) :], kind="stable")[:swept]]
    turned, heights = _turned(budget, q.mean[blocks], blocks != np.arange(q.dim))
    places, values = np.concatenate([q.mean[pairs], turned]), np.append(values[: len(pairs)], heights)
    kept = _is_unexplained(q, home, places, values)
    if not np.any(kept):
        return nowhere
    places, values = places[kept], values[kept]
    best = np.argsort(-values, kind="stable")[:_FOLLOWED]
    look = whitened(budget.value_and_score, q.mean, q.chol)
    ends, values, home = scout(look, send_out(look, q.whiten(places[best])), rounds=_ROUNDS)
    return q.push(ends[~home]), values[~home]


def evaluations_for(q: Gaussian) -> int:
    """That looking for all images of a mode takes, at the most; climbs from the places that are found come on top."""
    mirrored = _SWEEPS * (q.dim + 1) + 2 if q.dim <= _MIRRORED_DIM else 0
    if q.dim > _EXCHANGED_DIM:
        return mirrored
    pairs, blocks, swept = _orders(q)
    places = min(_FOLLOWED, len(pairs) + swept)
    return mirrored + 1 + len(pairs) + len(blocks) + swept * (q.dim + 2) + places * (_ROUNDS + 2)


def _orders(q: Gaussian) -> tuple[np.ndarray, np.ndarray, int]:
    """Orders of pairs and of blocks that make a difference to a mode, and how many of the latter have signs turned."""
    pairs, blocks = _moved(q, _pairs(q.dim)), _moved(q, _blocks(q.dim))
    return pairs, blocks, min(len(blocks), _TURNED // (q.dim + 2))


@functools.lru_cache(maxsize=8)
def _pairs(dim: int) -> np.ndarray:
    """Orders of the coordinates with two exchanged."""
    i, j = np.triu_indices(dim, 1)
    orders = np.tile(np.arange(dim), (i.size, 1))
    orders[np.arange(i.size), i], orders[np.arange(i.size), j] = j, i
    return orders


@functools.lru_cache(maxsize=8)
def _blocks(dim: int) -> np.ndarray:
    """Orders of the coordinates with two neighbouring blocks of one width exchanged: rows of a matrix, say.

    >>> _blocks(5).tolist()
    [[2, 3, 0, 1, 4], [0, 3, 4, 1, 2]]
    """
    places = [(begin, width) for width in range(2, dim // 2 + 1) for begin in range(dim - 2 * width + 1)]
    orders = np.tile(np.arange(dim), (len(places), 1))
    for order, (begin, width) in zip(orders, places, strict=True):
        order[begin : begin + 2 * width] = np.roll(order[begin : begin + 2 * width], width)
    return orders


def _moved(q: Gaussian, orders: np.ndarray) -> np.ndarray:
    """The orders that move the mean by more than its deviations, or so many of them."""
    deviations = norms(q.chol)
    widest = np.maximum(deviations, deviations[orders])
    moved = orders[np.any(np.abs(q.mean[orders] - q.mean) > _APART * widest, axis=1)]
    return moved[:: max(1, -(-len(moved) // _PAIRS))]


def _turned(budget: Budget, places: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places with those signs turned that log p is higher with, each by itself, and log p there.

    A class that changes places with another turns the sign of the logit between them, but of nothing that is its own:
    those coordinates are `fixed`.
    """
    dim = places.shape[1]
    signs = np.concatenate([np.ones((1, dim)), 1 - 2 * np.eye(dim)])
    values = _values(budget, (places[:, None] * signs).reshape(-1, dim)).reshape(len(places), 1 + dim)
    turned = np.where((values[:, 1:] > values[:, :1]) & ~fixed, -places, places)
    return turned, _values(budget, turned)


def fourth_corners(budget: Budget, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places that make a parallelogram of three modes, where log p is finite, and log p there.

    >>> from bures import Target
    >>> from bures.engine import Evaluator
    >>> budget = Budget(Evaluator(Target(lambda z: -((z[0] ** 2 - 9) ** 2) - (z[1] ** 2 - 16) ** 2, 2)), 100)
    >>> places, values = fourth_corners(budget, np.array([[3.0, 4.0], [-3.0, 4.0], [3.0, -4.0]]))
    >>> places[np.argmax(values)].tolist()
    [-3.0, -4.0]
    """
    means = means[:_CORNERS]
    triples = [(a, b, c) for b, c in itertools.combinations(range(len(means)), 2) for a in range(len(means))]
    places = np.array([means[b] + means[c] - means[a] for a, b, c in triples if a not in (b, c)])
    if not len(places) or budget.left < len(places):
        return np.zeros((0, means.shape[-1])), np.zeros(0)
    values = _values(budget, places)
    return places[np.isfinite(values)], values[np.isfinite(values)]


def _is_unexplained(q: Gaussian, home: float, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Whether log p at places is so much higher than the Gaussian of a mode expects that another mode may be near."""
    expected = squared_norms(q.whiten(places)) / 2
    return home - values < np.minimum(_EXPLAINED * expected, _HOPELESS)


def _values(budget: Budget, z: np.ndarray) -> np.ndarray:
    values = np.asarray(budget.value(z), np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def is_apart(q: Any, point: np.ndarray) -> bool:
    """Whether a point is further away than the draws of a Gaussian, dense or in factors, are."""
    return float(np.linalg.norm(q.whiten(point[None]))) > math.sqrt(q.dim) + _APART
