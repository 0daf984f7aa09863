"""Is the density integrable? A direction along which it stays level says no, and names the variables to look at."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures import linalg
from bures.gaussian import Gaussian
from bures.newton import newton
from bures.target import Target

_POINTS = 5
_NEAR, _FAR = 1e4, 1e8
_LEVEL = 0.5  # nats; a Gaussian tail falls by more between the two distances if its scale is below 1e8
_SUSPICIOUS = 1e3  # a mode with standard deviations this large, or this much larger than others, is looked at


def refuse_improper(key: Key[Array, ""], target: Target, mode: Gaussian | None) -> None:
    """Raise a ValueError if the target cannot be normalised, as far as straight lines can tell.

    If log p at random points stays as it is on the way from 10⁴ to 10⁸ along a direction, the same holds for a tube
    around it, and the integral is infinite: a flat direction, a prior that is missing, separated data. The directions
    looked at are those that the search for a mode left without curvature; a target with a clear mode is not looked at.
    A density that grows for ever is left to the fit, which ends as DIVERGED.
    """
    if mode is not None and not _is_suspicious(mode):
        return
    center, axes, candidates = _landscape(target, mode)
    around = center + jax.random.normal(key, (_POINTS, target.dim), center.dtype) @ axes.T
    for direction in _both_ways(candidates):
        near, far = (_values(target, around + distance * direction) for distance in (_NEAR, _FAR))
        if np.all(np.isfinite(near)) and np.all(np.abs(far - near) < _LEVEL):
            raise ValueError(_message(target.names, np.asarray(direction)))


def _is_suspicious(mode: Gaussian) -> bool:
    deviations = np.sqrt(np.maximum(np.linalg.eigvalsh(np.asarray(mode.covariance, np.float64)), 0))
    return bool(deviations[-1] > _SUSPICIOUS * min(1.0, max(float(deviations[0]), 1e-300)))


def _landscape(target: Target, mode: Gaussian | None) -> tuple[Array, Array, list[Array]]:
    """A centre, axes at most as long as the density is wide around it, and directions of little curvature."""
    if mode is not None:
        negative_variance, vectors = linalg.eigh(-mode.covariance)  # the widest first
        return mode.mean, vectors * jnp.minimum(jnp.sqrt(-negative_variance), 1), [vectors[:, 0]]
    start = target.start()
    end, hessian = newton(target, start, 100)
    center = jnp.where(jnp.all(jnp.isfinite(end.z)), end.z, start)
    curvature, vectors = linalg.eigh(hessian)
    size = np.abs(np.asarray(curvature))
    flat = np.flatnonzero(size <= 1e-6 * np.max(size, initial=1e-300))
    axes = vectors / jnp.sqrt(jnp.maximum(jnp.abs(curvature), 1))
    return center, axes, [center - start, *(vectors[:, i] for i in flat)]


def _both_ways(candidates: list[Array]) -> Iterator[Float[Array, " dim"]]:
    for vector in candidates:
        length = float(jnp.linalg.norm(vector))
        if np.isfinite(length) and length > 0:
            unit = vector / length
            unit = jnp.where(jnp.abs(unit) < 1e-8, 0, unit)  # rounding, which 10⁸ would make visible
            yield unit
            yield -unit


@eqx.filter_jit
def _evaluate(target: Target, z: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return target.value(z)


def _values(target: Target, z: Float[Array, "n dim"]) -> np.ndarray:
    return np.asarray(_evaluate(target, z), np.float64)


def _message(names: tuple[str, ...], direction: np.ndarray) -> str:
    size = np.abs(direction)
    involved = [i for i in np.argsort(-size) if size[i] >= 0.1 * size.max()][:5]
    along = ", ".join(f"{names[i]} ({direction[i]:+.2g})" for i in involved)
    return (
        f"The density cannot be normalised: however far one goes along {along}, it does not fall. "
        f"Give {names[involved[0]]!r} a proper prior, or remove the variable that the data cannot tell from others."
    )
