"""The survey: log p and its slopes at points all around a known Gaussian, and where the unexpected ones lead.

A mode that is narrower than the known one is uphill only in a small ball around it: its radius is the mode's distance
times its relative width. So many points are looked at once each, evenly spread in directions and in the logarithm of
the distance, and only those whose slope is not that of a known Gaussian are followed as scouts.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bures.arrays import norms, squared_norms
from bures.family.gaussian import Gaussian
from bures.search import EXPECTED, Budget, Evaluate, Scouts, scout, send_out, whitened

Known = Sequence[tuple[Gaussian, float]]  # Gaussians, each with its log mass

_INSIDE, _OUTSIDE = 4.5, 60.0  # standard deviations between which most points are
_NEAR_DIM = 2  # up to this dimension, points fill the inside as well
_NEAR_SHARE, _FAR_SHARE = 0.4, 0.1  # of the points, inside and outside
_EVEN_DIM = 10  # beyond it points are so few for the space that independent ones lie as well
_LAMBDA = 0.135
_FOLLOWED = 200  # scouts, at the most
_ROUNDS, _LEAST_ROUNDS = 12, 5
_SAME = 0.5  # standard deviations between two ends of scouts in one place
_HIGHER = 1.0  # nats above a known Gaussian from which a place is another, however close to its middle
_WAY = np.linspace(0, 1, 7)[1:-1]  # places between two points
_LEAST_SURPRISE = 0.1  # nats a standard deviation: slope of the log weight at a draw, from which it is followed
_STEEPER = 5.0  # times as steep as at 99% of the draws
_SURPRISING = 16  # draws to follow
_FEW = 16  # unexpected slopes among all that were looked at
# What is left of p without the known Gaussians shows where these are exact: log p − log q, over 1 + ‖u‖² for rounding
# and curvature, must be this much for a place to be followed, and this many times that of nine in ten places.
_LEAST_REST, _CLEARER = 1e-14, 30.0
_MOST_REST = 1e-3  # the same of nine in ten places: beyond it no Gaussian is exact
_LEFT = 6  # such places to follow


class Surveyed(NamedTuple):
    """Where points led, and those points whose slopes no known Gaussian explains."""

    ends: np.ndarray  # (n, dim)
    values: np.ndarray  # (n,): log p there
    strange: tuple[np.ndarray, np.ndarray, np.ndarray]  # points, log p and its slopes


def survey(
    rng: np.random.Generator,
    evaluator: Budget,
    scale: Gaussian,
    known: Known,
    *,
    count: int,
    reach: float,
    also: np.ndarray,
    more: int = 0,
) -> Surveyed:
    """Where points up to `reach` standard deviations of a Gaussian away lead, and log p there.

    `also` are further points to start from. Those whose slope is that of a known Gaussian lead there, and are left out;
    if that is so of nearly all, as many as `more` others are looked at. The rest are followed by half as many
    evaluations, and where they are few, those that came home once more without the known Gaussian's pull.
    """
    look = whitened(evaluator.value_and_score, scale.mean, scale.chol)
    scouts = send_out(look, np.concatenate([scale.whiten(also), spread(rng, count, scale.dim, reach)]))
    unexpected = _unexpected(scouts, scale, known)
    if more > 0 and unexpected.size <= _FEW:
        scouts = scouts.joined(send_out(look, spread(rng, more, scale.dim, reach)))
        unexpected = _unexpected(scouts, scale, known)
    most = (count + len(also)) // 2
    followed = scouts.chosen(unexpected[: min(_FOLLOWED, -(-most // _LEAST_ROUNDS))])
    ends, values, home = scout(look, followed, rounds=_ROUNDS, evaluations=most)
    ends, values = ends[~home], values[~home]
    if unexpected.size <= _FEW:
        pulled = scout(look, followed.chosen(home), rounds=_ROUNDS, on_weight=True)
        hidden = hidden_places(evaluator, scale, known, scouts, most)
        ends, values = (np.concatenate(parts) for parts in zip((ends, values), pulled[:2], hidden, strict=True))
    odd = scouts.chosen(unexpected)
    slopes = np.linalg.solve(scale.chol.T, odd.slopes.T).T
    return Surveyed(scale.push(ends), values, (scale.push(odd.u), odd.values, slopes))


def hidden_places(
    evaluator: Budget, scale: Gaussian, known: Known, scouts: Scouts, evaluations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where p less the known Gaussians is highest uphill of the few places that show something left, and log p there.

    Where the known Gaussians are exact, another mode shows in the last digits of log p long before it rules a place.
    Both in the coordinates of `scale`.
    """
    nothing = scouts.u[:0], scouts.values[:0]
    if not known or not len(scouts.u):
        return nothing
    log_q = of_known(known, scale.push(scouts.u))[0]
    # Draws tell the masses of known Gaussians less well than log p itself does where these are exact.
    shift = float(np.nan_to_num(np.median(scouts.values - log_q)))
    log_q, known = log_q + shift, [(q, mass + shift) for q, mass in known]
    rest = (scouts.values - log_q) / (1 + squared_norms(scouts.u))
    usual = float(np.quantile(np.abs(rest), 0.9))
    if not usual < _MOST_REST:
        return nothing
    left = np.flatnonzero(rest > max(_LEAST_REST, _CLEARER * usual))
    left = left[np.argsort(log_q[left] - scouts.values[left])][:_LEFT]
    look = whitened(without_known(evaluator.value_and_score, known), scale.mean, scale.chol)
    return scout(look, send_out(look, scouts.u[left]), rounds=_ROUNDS, evaluations=evaluations)[:2]


def without_known(evaluate: Evaluate, known: Known) -> Evaluate:
    """The logarithm of a density less known Gaussians, and its slopes; −inf where nothing is left."""

    def look(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = (np.asarray(x, np.float64) for x in evaluate(z))
        log_q, slopes = of_known(known, z)
        excess = np.expm1(np.minimum(values - log_q, 700))
        excess = np.where(excess > 0, excess, 0)
        return log_q + np.log(excess), slopes + (scores - slopes) * (1 + 1 / excess)[:, None]

    return look


def of_known(known: Known, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log density of known Gaussians together, and its slopes."""
    noises = [q.whiten(z) for q, _ in known]
    logs = np.stack([mass + q.log_prob_of_noise(u) for (q, mass), u in zip(known, noises, strict=True)])
    top = np.max(logs, axis=0)
    weights = np.exp(logs - top)
    total = np.sum(weights, axis=0)
    parts = [w[:, None] * -q.precision_times_noise(u) for w, (q, _), u in zip(weights, known, noises, strict=True)]
    return top + np.log(total), sum(parts) / total[:, None]


def spread(rng: np.random.Generator, count: int, dim: int, reach: float) -> np.ndarray:
    """Points all around, most of them between 4.5 and 60 from the middle, a few up to reach √dim."""
    furthest = reach * math.sqrt(dim)
    near = int(_NEAR_SHARE * count) if dim <= _NEAR_DIM and reach > _OUTSIDE else 0
    far = int(_FAR_SHARE * count) if furthest > _OUTSIDE else 0
    inside, middle, outside = (_evenly(rng, n, dim) for n in (near, count - near - far, far))
    radii = [
        _INSIDE * inside[0] ** (1 / dim),
        _between(_INSIDE if reach > _INSIDE else 1.0, min(_OUTSIDE, furthest), middle[0]),
        _between(_OUTSIDE, furthest, outside[0]),
    ]
    return np.concatenate(radii)[:, None] * np.concatenate([inside[1], middle[1], outside[1]])


def _between(low: float, high: float, share: np.ndarray) -> np.ndarray:
    """Evenly in the logarithm."""
    return low * (high / low) ** share


def _evenly(rng: np.random.Generator, count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in (0, 1) and unit vectors, together evenly spread where that makes a difference."""
    if dim > _EVEN_DIM:
        return rng.random(count), _unit(rng.standard_normal((count, dim)))
    if dim > 3:
        x = _kronecker(rng, count, dim + 1, dim + 1)
        # Nearly normal quantiles (Tukey's lambda): all directions are about equally likely.
        return x[:, 0], _unit(x[:, 1:] ** _LAMBDA - (1 - x[:, 1:]) ** _LAMBDA)
    x = _kronecker(rng, count, 3, max(dim, 2))
    turn, height = 2 * math.pi * x[:, 1], 2 * x[:, 2] - 1
    if dim == 1:
        return x[:, 0], np.where(x[:, 1:2] < 0.5, 1.0, -1.0)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    if dim == 2:
        return x[:, 0], circle
    return x[:, 0], np.column_stack([np.sqrt(1 - height**2)[:, None] * circle, height])


def _kronecker(rng: np.random.Generator, count: int, width: int, evenly: int) -> np.ndarray:
    """Rows that fill the unit cube of the first `evenly` columns evenly, from a random one on.

    Their steps are the powers of the root of xⁿ⁺¹ = x + 1.
    """
    x = rng.random(width) + np.arange(count)[:, None] * _steps(width, evenly)
    return x - np.floor(x)


@functools.lru_cache(maxsize=64)
def _steps(width: int, evenly: int) -> np.ndarray:
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / (evenly + 1))
    return root ** -np.arange(1.0, width + 1)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / norms(x)[:, None]


def _unexpected(scouts: Scouts, scale: Gaussian, known: Known) -> np.ndarray:
    """Indices of scouts whose slopes no known Gaussian explains: in turn one that points away, and the next of all."""
    z = scale.push(scouts.u)
    strange = np.ones(len(z), bool)
    for q, _ in known:
        slopes = -scouts.u if q is scale else -q.whiten(z) @ np.linalg.solve(q.chol, scale.chol)
        error = norms(scouts.slopes - slopes)
        strange &= ~(error < EXPECTED * norms(slopes))
    strange = np.flatnonzero(strange)
    u, slopes = scouts.u[strange], scouts.slopes[strange]
    inwards = -np.sum(u * slopes, axis=1) / (norms(u) * norms(slopes))
    in_turn = np.stack([strange[np.argsort(inwards, kind="stable")], strange], axis=1).ravel()
    return in_turn[np.sort(np.unique(in_turn, return_index=True)[1])]


def surprising_places(
    evaluator: Budget,
    q: Gaussian,
    z: np.ndarray,
    log_p: np.ndarray,
    scores: np.ndarray,
    evaluations: int,
    known: Known = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Where the log weight is highest uphill of the draws of q at which it is steepest, and log p there.

    Something narrow among the draws bends the slopes around it long before a draw falls onto it and weighs much. What
    shows beside `known` Gaussians is followed as well.
    """
    if not len(z):
        return np.zeros((0, q.dim)), np.zeros(0)
    u = q.whiten(np.asarray(z, np.float64))
    scouts = Scouts(u, log_p, np.asarray(scores, np.float64) @ q.chol)
    surprise = norms(scouts.on_weight().slopes)
    surprise = np.where(np.isfinite(surprise) & np.isfinite(log_p), surprise, 0.0)
    least = max(_LEAST_SURPRISE, _STEEPER * float(np.quantile(surprise, 0.99)))
    chosen = np.flatnonzero(surprise > least)
    chosen = chosen[np.argsort(-surprise[chosen])][:_SURPRISING]
    look = whitened(evaluator.value_and_score, q.mean, q.chol)
    ends, values, _ = scout(look, scouts.chosen(chosen), rounds=_ROUNDS, evaluations=evaluations, on_weight=True)
    hidden = hidden_places(evaluator, q, known, scouts, evaluations)
    return q.push(np.concatenate([ends, hidden[0]])), np.concatenate([values, hidden[1]])


def unknown_places(
    evaluator: Budget,
    ends: np.ndarray,
    values: np.ndarray,
    known: Sequence[tuple[Gaussian, float]],
    scale: Gaussian,
    most: int,
) -> np.ndarray:
    """At most so many ends of scouts, the highest first, that are apart from known Gaussians and from each other.

    The known ones come with log p at their means. An end is the same hill as a higher place if log p does not dip on
    the straight way between them.
    """
    at = scale.whiten(ends)
    new = np.isfinite(values)
    for q, top in known:
        new &= (values >= top + _HIGHER) | (norms(q.whiten(ends)) >= 3 * _SAME)
    places: list[int] = []
    while len(places) < most and np.any(new):
        highest = int(np.argmax(np.where(new, values, -np.inf)))
        places.append(highest)
        new &= norms(at - at[highest]) >= _SAME
    places = _unjoined(evaluator, ends, values, places, [[q.mean for q, _ in known]] * len(places))
    return ends[_unjoined(evaluator, ends, values, places, [ends[places[:n]] for n in range(len(places))])]


def _unjoined(
    evaluator: Budget, ends: np.ndarray, values: np.ndarray, places: list[int], others: list[Any]
) -> list[int]:
    """The places from which log p dips on the straight way to each of some others."""
    pairs = [(i, other) for i, to in zip(places, others, strict=True) for other in to]
    if not pairs:
        return places
    begin, end = ends[[i for i, _ in pairs]][:, None], np.array([other for _, other in pairs])[:, None]
    ways = begin + _WAY[:, None] * (end - begin)
    found = np.asarray(evaluator.value(ways.reshape(-1, ends.shape[1])), np.float64).reshape(len(pairs), -1)
    joined = {i for (i, _), way in zip(pairs, found, strict=True) if np.all(way > values[i] - 0.1)}
    return [i for i in places if i not in joined]
