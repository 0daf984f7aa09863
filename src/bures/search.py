"""The search for modes, on the host: many points climb log p at once, in few evaluations.

Three ways up. `climb` is Newton's method with curvature from differences of scores, for the few points that must
arrive: d + 10 evaluations a round for each, or 2 d + 10. `scout` is for many points of which it is enough to learn
where they lead: one evaluation a round for each, in coordinates where a Gaussian that is known already is standard. In
high dimension `ascend` climbs from one point by a quasi-Newton method, one evaluation a step. All may be given a
`Budget`, which ends them when it is spent.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bures.arrays import norms, squared_norms
from bures.engine import Evaluator

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # points (n, dim) to log p (n,) and ∇log p (n, dim)

# Lengths of a step, tried at once. Long ones, because a Newton step on the logarithm of a scale is half a unit however
# far there is to go.
_LENGTHS = np.array([1.0, 8.0, 4.0, 2.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001])
_ARRIVED = 1e-4  # nats still to gain: a hundredth of a standard deviation
_FIRST_DIFFERENCE = 1e-3  # from a point to where its score is compared, before the scale is known
_DIFFERENCE = 0.01  # the same in standard deviations
EXPECTED = 0.2  # relative error of a slope that a known Gaussian explains
_PROBE = 1e-3  # standard deviations of the known Gaussian, from a scout to where its slope is compared
_MEMORY = 20  # pairs of points and scores that the quasi-Newton method keeps


class Budget:
    """An evaluator for a part of a fit that may make `limit` evaluations: what is beyond them has no density."""

    def __init__(self, evaluator: Evaluator, limit: int):
        self.evaluator, self.limit, self.dim = evaluator, limit, evaluator.dim
        self._began = evaluator.count

    @property
    def left(self) -> int:
        return max(0, self.limit - (self.evaluator.count - self._began))

    def keeping(self, kept: int) -> "Budget":
        """What is left, but for some evaluations that are kept for later."""
        return Budget(self.evaluator, max(0, self.left - kept))

    def value_and_score(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p and ∇log p; −inf and not a number at points that there are no evaluations for."""
        left = self.left
        values, scores = self.evaluator.value_and_score(z[:left])
        if len(z) <= left:
            return values, scores
        missing = len(z) - left
        nowhere = np.full(missing, -np.inf, values.dtype), np.full((missing, self.dim), np.nan, scores.dtype)
        return np.concatenate([values, nowhere[0]]), np.concatenate([scores, nowhere[1]])

    def value(self, z: np.ndarray) -> np.ndarray:
        """log p."""
        return self.value_and_score(z)[0]


class Summit(NamedTuple):
    """Where a climb ended: the place, log p, and the Gaussian with the curvature there."""

    point: np.ndarray  # (dim,)
    value: float
    axes: np.ndarray  # (dim, dim): columns one standard deviation long; the covariance is axes axesᵀ
    curvature: np.ndarray  # (dim,): 1 along an axis where log p falls, −1 where it rises, 0 where it is flat
    gain: float  # nats that another step promises
    rounds: int  # that were taken

    @property
    def is_mode(self) -> bool:
        """Whether the climb has arrived where log p falls in all directions."""
        return bool(np.all(self.curvature > 0.5)) and self.gain < 0.01


def climb(
    evaluate: Evaluate,
    points: np.ndarray,
    *,
    axes: np.ndarray | None = None,
    rounds: int = 25,
    arrived: float = _ARRIVED,
    difference: float = _DIFFERENCE,
    both_sides: bool = True,
    cautious: bool = False,
) -> list[Summit]:
    """Newton's method uphill from each of some points; those without a finite density are left out.

    Where the curvature is not that of a maximum its sign is turned, so that every step goes uphill. `axes`, if given,
    are columns of about a standard deviation along which scores are compared at first; else those of the coordinates.
    A climb has arrived when another step promises less than `arrived` nats. Scores are compared at `difference`
    standard deviations, ten times that in single precision: to both sides of a point, or, for half of the evaluations
    and a curvature that is good to a percent, with the point itself. A `cautious` climb tries no step longer than
    Newton's, for targets that take long to evaluate far away.
    """
    lengths = _LENGTHS[_LENGTHS <= 1] if cautious else _LENGTHS
    values, scores = evaluate(points)
    rough = values.dtype == np.float32
    z, values, scores = (np.array(x, np.float64) for x in (points, values, scores))
    kept = np.isfinite(values) & np.all(np.isfinite(scores), axis=1)
    z, values, scores = z[kept], values[kept], scores[kept]
    n, dim = z.shape
    later = max(10 * difference, 0.1) if rough else difference
    difference = later if axes is not None else 10 * _FIRST_DIFFERENCE if rough else _FIRST_DIFFERENCE
    axes = np.repeat((np.eye(dim) if axes is None else axes)[None], n, axis=0)
    signs, gains, taken = np.zeros((n, dim)), np.full(n, np.inf), np.zeros(n, int)
    active = np.arange(n)
    sides = np.array([1.0, -1.0] if both_sides else [1.0])
    ahead = np.full((n, sides.size, dim, dim), np.nan)  # scores around the present points, where they are known already
    with np.errstate(all="ignore"):
        for _ in range(rounds):
            if not active.size:
                break
            unknown = active[np.isnan(ahead[active, 0, 0, 0])]
            if unknown.size:
                around = _around(z[unknown], axes[unknown], difference * sides)
                ahead[unknown] = np.asarray(evaluate(around.reshape(-1, dim))[1]).reshape(around.shape)
            curvature, rotated = _curvature(ahead[active], scores[active], axes[active], difference)
            ahead[active] = np.nan
            difference = later
            size = np.abs(curvature)
            # What is smaller than rounding of the largest is flat: a step along it stays as long as the axis was.
            flat = size <= (1e-5 if rough else 1e-12) * size.max(axis=1, keepdims=True)
            size = np.where(flat, 1.0, size)
            slopes = np.einsum("nij,ni->nj", rotated, scores[active]) / np.sqrt(size)
            axes[active] = rotated / np.sqrt(size)[:, None, :]
            signs[active] = np.where(flat, 0, np.sign(curvature))
            gains[active] = squared_norms(slopes) / 2
            taken[active] += 1
            steps = np.einsum("nij,nj->ni", axes[active], slopes)
            going = (gains[active] > arrived) & np.all(np.isfinite(steps), axis=1)
            active = active[going]
            if not active.size:
                break
            # The lengths of a step, and the surroundings of its end at full length, which is most often the best.
            tried = z[active][:, None] + lengths[:, None] * steps[going][:, None]
            around = _around(tried[:, 0], axes[active], difference * sides)
            found, slopes = evaluate(np.concatenate([tried.reshape(-1, dim), around.reshape(-1, dim)]))
            found, slopes = np.asarray(found, np.float64), np.asarray(slopes, np.float64)
            count = tried.shape[0] * tried.shape[1]
            improved, best = _advance(z, values, scores, active, tried, found[:count], slopes[:count])
            full = improved & (best == 0)
            ahead[active[full]] = slopes[count:].reshape(around.shape)[full]
            active = active[improved]
    ends = zip(z, values.tolist(), axes, signs, gains.tolist(), taken.tolist(), strict=True)
    return [Summit(*parts) for parts in ends]


def _around(z: np.ndarray, axes: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Points next to each z along its axes, (n, sides, dim, dim)."""
    offsets = axes.transpose(0, 2, 1)[:, None]
    return z[:, None, None] + differences[:, None, None] * offsets


def _curvature(
    around: np.ndarray, here: np.ndarray, axes: np.ndarray, difference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of −∇²log p in the coordinates of the axes, from scores `_around`, and the axes turned to match."""
    both = around.shape[1] == 2
    change = (around[:, 0] - around[:, 1]) / 2 if both else around[:, 0] - here[:, None]
    hessian = change @ axes / difference
    hessian = (hessian + hessian.transpose(0, 2, 1)) / 2
    # Beyond the edge of the support there are no scores: there the axis stays as it was.
    hessian = np.where(np.isfinite(hessian), hessian, -np.eye(axes.shape[1]))
    curvature, vectors = np.linalg.eigh(-hessian)
    return curvature, axes @ vectors


def _advance(
    z: np.ndarray,
    values: np.ndarray,
    scores: np.ndarray,
    which: np.ndarray,
    tried: np.ndarray,
    found: np.ndarray,
    slopes: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Move the points `which` in place, each to the best of those tried, if that gains: whether it does, and which."""
    found, slopes = found.reshape(tried.shape[:2]), slopes.reshape(tried.shape)
    found = np.where(np.isfinite(found) & np.all(np.isfinite(slopes), axis=2), found, -np.inf)
    best = np.argmax(found, axis=1)
    rows = np.arange(which.size)
    improved = found[rows, best] > values[which]
    at, chosen = which[improved], (rows[improved], best[improved])
    z[at], values[at], scores[at] = tried[chosen], found[chosen], slopes[chosen]
    return improved, best


class Scouts(NamedTuple):
    """Points in coordinates where a known Gaussian is standard, with log p and its slopes there."""

    u: np.ndarray  # (n, dim)
    values: np.ndarray  # (n,)
    slopes: np.ndarray  # (n, dim)

    def chosen(self, which: np.ndarray) -> "Scouts":
        return Scouts(self.u[which], self.values[which], self.slopes[which])

    def on_weight(self) -> "Scouts":
        """The same for log p less the log density of the known Gaussian, but for a constant."""
        return Scouts(self.u, self.values + squared_norms(self.u) / 2, self.slopes + self.u)

    def joined(self, more: "Scouts") -> "Scouts":
        return Scouts(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


def whitened(evaluate: Evaluate, mean: np.ndarray, chol: np.ndarray) -> Evaluate:
    """The same as a function of u, where z = mean + chol u."""

    def look(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = evaluate(mean + u @ chol.T)
        return np.asarray(values, np.float64), np.asarray(scores, np.float64) @ chol

    return look


def without_standard(evaluate: Evaluate) -> Evaluate:
    """A log density less that of the standard Gaussian, but for a constant: the log weight of its draws."""

    def look(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return Scouts(u, *evaluate(u)).on_weight()[1:]

    return look


def send_out(evaluate: Evaluate, u: np.ndarray) -> Scouts:
    """Scouts at the points that have a finite density."""
    values, slopes = evaluate(u)
    kept = np.isfinite(values) & np.all(np.isfinite(slopes), axis=1)
    return Scouts(u[kept], values[kept], slopes[kept])


def scout(
    evaluate: Evaluate, scouts: Scouts, *, rounds: int, evaluations: int = 10**9, on_weight: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where many points lead, log p there, and which of them came home: Barzilai and Borwein's steps in u.

    The first step is Newton's along the slope: it arrives in a mode of any width, if that is round, and does not jump
    out of a narrow one. Where slopes are about those of the known Gaussian a scout leads there, and goes no further.
    With `on_weight` they climb log p less that Gaussian. The rounds end when so many evaluations have been made.
    """
    if on_weight:
        scouts, evaluate = scouts.on_weight(), without_standard(evaluate)
    u, values, slopes = (np.array(x) for x in scouts)
    spent, home = len(u), np.zeros(len(u), bool)
    if not spent or spent > evaluations:
        return u[:0], values[:0], home[:0]
    with np.errstate(all="ignore"):
        lengths = _first_lengths(evaluate, u, slopes)
        active = np.arange(len(u))
        for _ in range(rounds):
            size = squared_norms(slopes[active])
            if not on_weight:
                home[active] = is_standard(u[active], slopes[active])
            active = active[(size > 0.01) & (lengths[active] > 1e-8) & ~home[active]]
            spent += active.size
            if not active.size or spent > evaluations:
                break
            step = lengths[active, None] * slopes[active]
            # No step is longer than to the other side of the known Gaussian.
            reach = 2 * norms(u[active]) + 3 * np.sqrt(u.shape[1])
            step *= np.minimum(1, reach / norms(step))[:, None]
            tried = u[active] + step
            found, turned = evaluate(tried)
            better = (found > values[active]) & np.all(np.isfinite(turned), axis=1)
            change = np.abs(np.sum(step * (turned - slopes[active]), axis=1))
            secant = np.clip(squared_norms(step) / np.maximum(change, 1e-300), 1e-6, 1e6)
            lengths[active] = np.where(better, secant, lengths[active] / 5)
            at = active[better]
            u[at], values[at], slopes[at] = tried[better], found[better], turned[better]
    return u, values - squared_norms(u) / 2 if on_weight else values, home


def is_standard(u: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Whether slopes are about those of the standard Gaussian."""
    return norms(slopes + u) < EXPECTED * norms(u)


def _first_lengths(evaluate: Evaluate, u: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Of a Newton step along the slope, by the change of the slope close by; 1 where log p does not bend down."""
    direction = slopes / np.maximum(norms(slopes), 1e-300)[:, None]
    change = evaluate(u + _PROBE * direction)[1] - slopes
    curvature = -np.sum(direction * change, axis=1) / _PROBE
    return np.where(curvature > 0, np.clip(1 / curvature, 1e-6, 1e6), 1.0)


class Ascent(NamedTuple):
    """Where a quasi-Newton climb ended, with its last steps and the changes of the score along them."""

    point: np.ndarray
    value: float
    score: np.ndarray
    steps: np.ndarray  # (m, dim)
    changes: np.ndarray  # (m, dim): of −∇log p

    def covariance_times(self, right: np.ndarray) -> np.ndarray:
        """The inverse of the approximate curvature (L-BFGS), times a vector or each row of a matrix.

        In the compact form of Byrd, Nocedal and Schnabel (1994): a few products with all steps at once.
        """
        right = np.asarray(right, np.float64)
        if not len(self.steps):
            return np.array(right)
        inner = self.steps @ self.changes.T
        upper, curvature = np.triu(inner), np.diagonal(inner)
        scale = curvature[-1] / (self.changes[-1] @ self.changes[-1])
        along, across = right @ self.steps.T, scale * (right @ self.changes.T)
        turned = np.linalg.solve(upper, along.T)
        middle = np.diag(curvature) + scale * (self.changes @ self.changes.T)
        of_steps = np.linalg.solve(upper.T, middle @ turned - across.T).T
        return scale * right + of_steps @ self.steps - scale * (turned.T @ self.changes)

    def gain(self) -> float:
        """Nats that another step promises."""
        return float(self.score @ self.covariance_times(self.score) / 2)


def ascend(
    evaluate: Evaluate, point: "np.ndarray | Ascent", *, evaluations: int, arrived: float = _ARRIVED
) -> Ascent | None:
    """Uphill from a point by L-BFGS, with at most so many evaluations; None if it has no finite density.

    It has arrived when another step promises less than `arrived` nats. From an ascent that was cut off it goes on.
    """

    def look(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = (np.asarray(x, np.float64) for x in evaluate(points))
        return np.where(np.all(np.isfinite(scores), axis=1) & np.isfinite(values), values, -np.inf), scores

    with np.errstate(all="ignore"):
        if isinstance(point, Ascent):
            at, spent = point, 0
        else:
            values, scores = look(point[None])
            if not np.isfinite(values[0]):
                return None
            empty = np.zeros((0, point.size))
            at, spent = Ascent(np.array(point, np.float64), float(values[0]), scores[0], empty, empty), 1
        while spent < evaluations:
            direction = at.covariance_times(at.score)
            slope = float(at.score @ direction)
            if len(at.steps) and not slope / 2 > arrived:
                break
            if not len(at.steps):
                size = max(1.0, float(np.linalg.norm(at.score)))
                direction, slope = direction / size, slope / size
            for lengths in (_LENGTHS[:1], _LENGTHS[4:]):
                values, scores = look(at.point + lengths[:, None] * direction)
                spent += len(lengths)
                enough = values >= at.value + 1e-4 * lengths * slope
                if np.any(enough):
                    break
            else:
                return at
            best = int(np.argmax(np.where(enough, values, -np.inf)))
            step, change = lengths[best] * direction, at.score - scores[best]
            steps, changes = at.steps, at.changes
            if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
                steps = np.concatenate([steps, step[None]])[-_MEMORY:]
                changes = np.concatenate([changes, change[None]])[-_MEMORY:]
            at = Ascent(at.point + step, float(values[best]), scores[best], steps, changes)
    return at
