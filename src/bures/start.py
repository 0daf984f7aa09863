"""Where a fit begins when the user does not say: close to a mode, unless a wider Gaussian sees more mass."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from bures import linalg
from bures.gaussian import Gaussian
from bures.newton import laplace
from bures.proper import refuse_improper
from bures.target import Target

_MOST_DRAWS, _FEWEST_DRAWS = 256, 32  # of each width
_ELEMENTS = 2**19  # of the largest array that the draws of a width make, where that leaves enough of them
_WIDTHS = (1.0, 3.0, 10.0)  # how much wider than a local candidate to look, in standard deviations
_MARGIN = 0.1  # nats by which a broad view must be ahead
_TRIES = 10  # points to try Newton's method from until a mode is found
_CLIMBS = 2  # of the points of each width
_PLACES = 6  # to look at between a point and a mode
_CLIMBED_DIM = 30  # up to this dimension, look for further modes: beyond it random points rarely lead to any


class Start(NamedTuple):
    """A Gaussian to start from, and the variance of the log weights of draws from it; infinite where not known."""

    approximation: Gaussian
    variance: float


class _View(eqx.Module):
    """What draws from a candidate, and from wider versions of it, see of the target."""

    z: Float[Array, "widths n dim"]
    values: Float[Array, "widths n"]  # log p
    log_weights: Float[Array, "widths n"]
    mass: Float[Array, " widths"]  # the log evidence that the draws see; −inf where they see nothing
    error: Float[Array, " widths"]
    variance: Float[Array, ""]  # of the log weights of the candidate itself


def find_start(key: Key[Array, ""], target: Target) -> Start:
    """The best of a few local and broad candidates by the mass they see.

    Local candidates are Laplace approximations, from the target's initial point and from the best of some random
    points around it (unless log p is concave on the way from there to the first), and the standard normal there.
    Each is also looked at through wider versions of itself: if draws from one of these show clearly more mass than the
    local one does (other modes, or tails), the Gaussian with the moments of their importance-weighted draws takes its
    place. So does that of all modes together.
    """
    key_mode, key_look = jax.random.split(key)
    point = target.start()
    standard = Gaussian(point, jnp.eye(target.dim, dtype=point.dtype))
    first = _mode(key_mode, target)
    refuse_improper(key_look, target, first)
    around = _look(key_look, standard, target)
    modes = [] if first is None else [first]
    if target.dim <= _CLIMBED_DIM:
        for scout in _worth_climbing(target, around, first):
            _add_mode(modes, target, scout)
    views = [(mode, _look(jax.random.fold_in(key_look, i), mode, target)) for i, mode in enumerate(modes)]
    if len(modes) > 1:
        together = _mixture(modes, [view.mass for _, view in views])
        views.append((together, _look(jax.random.fold_in(key_look, len(modes)), together, target)))
    best, best_score = Start(standard, np.inf), -np.inf
    for candidate, view in [*views, (standard, around)]:
        # A view is noisy, and a broad one, often of few effective draws, must be sure to see clearly more to win.
        mass, error = np.asarray(view.mass, float), np.asarray(view.error, float)
        sure = mass + np.log(np.maximum(1 - 2 * error, 1e-300)) - _MARGIN
        scores = np.where(np.array(_WIDTHS) > 1, sure, mass - 2 * error)
        j = int(np.argmax(scores))
        if scores[j] > best_score:
            local = Start(candidate, float(view.variance))
            best = local if j == 0 else Start(_moments(view, jnp.array(j), candidate), np.inf)
            best_score = scores[j]
    return best


def _mode(key: Key[Array, ""], target: Target) -> Gaussian | None:
    """The Laplace approximation from the target's initial point, or else from random ones; None if there is none."""
    point = target.start()
    for attempt in range(_TRIES):
        try:
            return laplace(target, init=point)
        except ValueError:
            point = jax.random.normal(jax.random.fold_in(key, attempt), (target.dim,))
    return None


def _worth_climbing(target: Target, around: _View, mode: Gaussian | None) -> list[Float[Array, " dim"]]:
    """The best points of each width, but for those from which log p is concave on the way to the known mode."""
    best = np.argsort(np.asarray(around.values), axis=1)[:, -_CLIMBS:]
    points = jnp.take_along_axis(around.z, jnp.asarray(best)[:, :, None], axis=1).reshape(-1, target.dim)
    known = np.zeros(len(points), bool) if mode is None else np.asarray(_is_concave(target, points, mode.mean))
    return [point for point, leads_there in zip(points, known, strict=True) if not leads_there]


@eqx.filter_jit
def _is_concave(target: Target, points: Float[Array, "n dim"], end: Float[Array, " dim"]) -> Bool[Array, " n"]:
    """Whether log p is concave on the way from a point to the end, as far as a few places in between show."""
    shares = jnp.linspace(0, 1, _PLACES, dtype=end.dtype)
    places = points + shares[:, None, None] * (end - points)
    values = target.value(places.reshape(-1, target.dim)).reshape(_PLACES, -1)
    return jnp.all(jnp.diff(values, n=2, axis=0) < 0, axis=0)


def _add_mode(modes: list[Gaussian], target: Target, point: Float[Array, " dim"]) -> None:
    """Add the Laplace approximation that Newton's method leads to from a point, if it is a new one."""
    try:
        mode = laplace(target, init=point)
    except ValueError:
        return
    if all(_distance(known, mode) > 0.1 for known in modes):
        modes.append(mode)


def _distance(known: Gaussian, mode: Gaussian) -> float:
    """Between their means, in standard deviations of the first."""
    difference = np.asarray(mode.mean - known.mean)
    return float(np.linalg.norm(np.linalg.solve(np.asarray(known.chol), difference)))


@eqx.filter_jit
def _mixture(modes: list[Gaussian], masses: list[Float[Array, " widths"]]) -> Gaussian:
    """The Gaussian with the moments of the mixture of all modes, by the mass that each sees of its own."""
    mass = jnp.stack(masses)[:, 0]
    weights = jax.nn.softmax(jnp.where(jnp.isfinite(mass), mass, jnp.finfo(mass.dtype).min))
    means, chols = jnp.stack([mode.mean for mode in modes]), jnp.stack([mode.chol for mode in modes])
    mean = weights @ means
    roots = jnp.sqrt(weights)[:, None, None] * jnp.concatenate([chols, (means - mean)[:, :, None]], axis=2)
    return Gaussian(mean, linalg.cholesky_of_square(jnp.concatenate(list(roots), axis=1)))


@eqx.filter_jit
def _look(key: Key[Array, ""], q: Gaussian, target: Target) -> _View:
    widths = jnp.array(_WIDTHS, q.mean.dtype)
    count = max(_FEWEST_DRAWS, min(_MOST_DRAWS, _ELEMENTS // target.width))
    noise = jax.random.normal(key, (len(_WIDTHS), count, q.dim), q.mean.dtype)
    z = q.push(widths[:, None, None] * noise)
    log_q = q.log_prob_of_noise(noise) - q.dim * jnp.log(widths)[:, None]
    values = target.value(z.reshape(-1, q.dim)).reshape(log_q.shape)
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    log_weights = values - log_q
    mass = jax.nn.logsumexp(log_weights, axis=1) - jnp.log(count)
    inverse_ess = jnp.sum(jax.nn.softmax(log_weights, axis=1) ** 2, axis=1)
    error = jnp.sqrt(jnp.maximum(inverse_ess - 1 / count, 0))
    error = jnp.where(jnp.isfinite(mass), error, 0)
    return _View(z, values, log_weights, mass, error, jnp.var(log_weights[0]))


@eqx.filter_jit
def _moments(view: _View, j: Int[Array, ""], candidate: Gaussian) -> Gaussian:
    """The Gaussian with the weighted moments of the draws of width j, kept from collapsing onto a few of them."""
    weights, z = jax.nn.softmax(view.log_weights[j]), view.z[j]
    mean = weights @ z
    root = (z - mean).T * jnp.sqrt(weights)
    # With n effective draws the covariance is known to about 1/n of the proposal's.
    floor = jnp.array(_WIDTHS, z.dtype)[j] * candidate.chol * jnp.sqrt(jnp.sum(weights**2))
    return Gaussian(mean, linalg.cholesky_of_square(jnp.concatenate([root, floor], axis=1)))
