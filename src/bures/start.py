"""Where a fit begins when the user does not say: close to a mode, unless a wider Gaussian sees more mass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bures import linalg
from bures.gaussian import Gaussian
from bures.laplace import laplace
from bures.proper import refuse_improper
from bures.target import Target

_DRAWS = 256
_WIDTHS = (1.0, 3.0, 10.0)  # how much wider than a local candidate to look, in standard deviations
_MARGIN = 0.1  # nats by which a broad view must be ahead
_TRIES = 10  # points to try Newton's method from until a mode is found
_CLIMBS = 2  # of the points of each width
_CLIMBED_DIM = 30  # up to this dimension, look for further modes: beyond it random points rarely lead to any


class _View(eqx.Module):
    """What draws from a candidate, and from wider versions of it, see of the target."""

    z: Float[Array, "widths n dim"]
    values: Float[Array, "widths n"]  # log p
    log_weights: Float[Array, "widths n"]
    mass: Float[Array, " widths"]  # the log evidence that the draws see; −inf where they see nothing
    error: Float[Array, " widths"]


def find_start(key: Key[Array, ""], target: Target) -> Gaussian:
    """A Gaussian to start from: the best of a few local and broad candidates by the mass they see.

    Local candidates are Laplace approximations, from the target's initial point and from the best of some random
    points around it, and the standard normal there. Each is also looked at through wider versions of itself: if draws
    from one of these show clearly more mass than the local one does (other modes, or tails), the Gaussian with the
    moments of their importance-weighted draws takes its place. So does that of all modes together.
    """
    key_mode, key_look = jax.random.split(key)
    point = target.start()
    standard = Gaussian(point, jnp.eye(target.dim, dtype=point.dtype))
    first = _mode(key_mode, target)
    refuse_improper(key_look, target, first)
    around = _look(key_look, standard, target)
    modes = [] if first is None else [first]
    if target.dim <= _CLIMBED_DIM:
        for z, values in zip(np.asarray(around.z), np.asarray(around.values), strict=True):
            for best in np.argsort(values)[-_CLIMBS:]:
                _add_mode(modes, target, jnp.asarray(z[best]))
    views = [(mode, _look(jax.random.fold_in(key_look, i), mode, target)) for i, mode in enumerate(modes)]
    if len(modes) > 1:
        together = _mixture(modes, [view.mass for _, view in views])
        views.append((together, _look(jax.random.fold_in(key_look, len(modes)), together, target)))
    best, best_score = standard, -np.inf
    for candidate, view in [*views, (standard, around)]:
        # A view is noisy, and a broad one must see clearly more to win.
        scores = np.asarray(view.mass) - 2 * np.asarray(view.error) - np.where(np.array(_WIDTHS) > 1, _MARGIN, 0)
        j = int(np.argmax(scores))
        if scores[j] > best_score:
            best_score, best = scores[j], candidate if j == 0 else _moments(view, jnp.array(j), candidate)
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
    noise = jax.random.normal(key, (len(_WIDTHS), _DRAWS, q.dim), q.mean.dtype)
    z = q.push(widths[:, None, None] * noise)
    log_q = q.log_prob_of_noise(noise) - q.dim * jnp.log(widths)[:, None]
    values = target.value(z.reshape(-1, q.dim)).reshape(log_q.shape)
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    log_weights = values - log_q
    mass = jax.nn.logsumexp(log_weights, axis=1) - jnp.log(_DRAWS)
    inverse_ess = jnp.sum(jax.nn.softmax(log_weights, axis=1) ** 2, axis=1)
    error = jnp.sqrt(jnp.maximum(inverse_ess - 1 / _DRAWS, 0))
    return _View(z, values, log_weights, mass, jnp.where(jnp.isfinite(mass), error, 0))


@eqx.filter_jit
def _moments(view: _View, j: Int[Array, ""], candidate: Gaussian) -> Gaussian:
    """The Gaussian with the weighted moments of the draws of width j, kept from collapsing onto a few of them."""
    weights, z = jax.nn.softmax(view.log_weights[j]), view.z[j]
    mean = weights @ z
    root = (z - mean).T * jnp.sqrt(weights)
    # With n effective draws the covariance is known to about 1/n of the proposal's.
    floor = jnp.array(_WIDTHS, z.dtype)[j] * candidate.chol * jnp.sqrt(jnp.sum(weights**2))
    return Gaussian(mean, linalg.cholesky_of_square(jnp.concatenate([root, floor], axis=1)))
