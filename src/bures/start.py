"""Where a fit begins when the user does not say: close to a mode, unless a wider Gaussian sees more mass."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.diagnostics import Pool, log_evidence
from bures.gaussian import Gaussian
from bures.laplace import laplace
from bures.linalg import cholesky_of_square
from bures.target import Target

_DRAWS = 256
_WIDTHS = (1.0, 3.0, 10.0)  # how much wider than a local candidate to look, in standard deviations
_TRIES = 10  # points to try Newton's method from


def find_start(key: Key[Array, ""], target: Target) -> Gaussian:
    """A Gaussian to start from: the best of a few local and broad candidates by the mass they see.

    Local candidates are the Laplace approximation and the standard normal. Each is also looked at through wider
    versions of itself: if draws from one of these show clearly more mass than the local one does (other modes, or
    tails), the Gaussian with the moments of their importance-weighted draws takes its place.
    """
    key_mode, key_look = jax.random.split(key)
    local = [_mode(key_mode, target), Gaussian.standard(target.dim)]
    best, best_mass = local[-1], -np.inf
    for i, candidate in enumerate(q for q in local if q is not None):
        for j, width in enumerate(_WIDTHS):
            wide = Gaussian(candidate.mean, width * candidate.chol)
            pool = Pool.draw(jax.random.fold_in(key_look, i * len(_WIDTHS) + j), wide, target, _DRAWS)
            mass, error = _visible_mass(pool)
            # A broad view is noisy: it must see clearly more to win.
            margin = 2 * error + 0.1 if width > 1 or i > 0 else 0.0
            if mass - margin > best_mass:
                best_mass = mass
                best = candidate if width == 1 else _moments(pool, wide)
    return best


def _mode(key: Key[Array, ""], target: Target) -> Gaussian | None:
    """The Laplace approximation from the origin, or else from random points around it; None if there is none."""
    points = jnp.concatenate([jnp.zeros((1, target.dim)), jax.random.normal(key, (_TRIES - 1, target.dim))])
    for point in points:
        try:
            return laplace(target, init=point)
        except ValueError:
            continue
    return None


def _visible_mass(pool: Pool) -> tuple[float, float]:
    """The log evidence that the draws see, and its error; minus infinity where they see nothing."""
    weights = np.asarray(pool.log_weights, np.float64)
    weights = np.where(np.isfinite(weights), weights, -np.inf)
    return log_evidence(weights) if np.any(np.isfinite(weights)) else (-np.inf, 0.0)


def _moments(pool: Pool, wide: Gaussian) -> Gaussian:
    """The Gaussian with the weighted moments of the draws, kept from collapsing onto a few of them."""
    log_weights = jnp.where(jnp.isfinite(pool.log_weights), pool.log_weights, -jnp.inf)
    weights = jax.nn.softmax(log_weights)
    effective = 1 / jnp.sum(weights**2)
    mean = weights @ pool.z
    root = _weighted_root(pool.z - mean, weights)
    # With n effective draws the covariance is known to about 1/n of the proposal's.
    floor = wide.chol / jnp.sqrt(effective)
    return Gaussian(mean, cholesky_of_square(jnp.concatenate([root, floor], axis=1)))


def _weighted_root(centred: Float[Array, "n dim"], weights: Float[Array, " n"]) -> Float[Array, "dim n"]:
    return centred.T * jnp.sqrt(weights)
