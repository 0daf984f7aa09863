"""Recognising a target that is code and not in the file: by its log density at a few points around the fit."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.arrays import to_host
from bures.check import as_array
from bures.compiled import compiled
from bures.engine import Evaluator
from bures.family import AbstractApproximation
from bures.target import Target
from bures.target.blocks import equations

NUM_PROBES = 16


def probes_of(q: AbstractApproximation) -> np.ndarray:
    """The mean and points around it in fixed directions, up to twice as far out as draws are."""
    directions = np.random.default_rng(0).standard_normal((NUM_PROBES, q.noise_dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.linspace(0, 2 * np.sqrt(q.noise_dim), NUM_PROBES)
    host = to_host(q)
    return host.push(radii[:, None] * directions).astype(host.mean.dtype)


@compiled
def _values(target: Target, points: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return target.value(points)


def log_densities(target: Target, points: np.ndarray) -> np.ndarray:
    if getattr(target.log_density, "one_pass", False):  # by rows: without a callback from a compiled program
        return Evaluator(target, dtype=points.dtype).value(points)
    return np.asarray(_values(target, as_array(points)))


def check_same_density(target: Target, points: np.ndarray, saved: np.ndarray) -> None:
    """The log density at the saved points must be what it was, up to rounding."""
    found = log_densities(target, points)
    sizes = np.abs(saved[np.isfinite(saved)])
    size = max(1.0, float(np.median(sizes))) if sizes.size else 1.0
    with np.errstate(invalid="ignore"):
        near = np.abs(found - saved) <= _rounding(target, points) * np.maximum(size, np.abs(saved))
    same = np.where(np.isfinite(saved), near, (found == saved) | (np.isnan(found) & np.isnan(saved)))
    if not np.all(same):
        i = int(np.argmin(same))
        raise ValueError(
            f"target must be the one the fit was made for, but its log density is another at {np.sum(~same)} of "
            f"{same.size} points near the fitted mean: {found[i]} at the first, where the file has {saved[i]}. Pass "
            "the same target; a constant added to the log density counts."
        )


def _rounding(target: Target, points: np.ndarray) -> float:
    """How far two runs of one log density may differ, relative to its size: by the lowest precision it computes in."""
    jaxpr = jax.make_jaxpr(target.value)(jax.ShapeDtypeStruct(points.shape, points.dtype))
    made = {getattr(out.aval, "dtype", None) for equation in equations(jaxpr) for out in equation.outvars}
    floats = [dtype for dtype in made | {points.dtype} if dtype is not None and jnp.issubdtype(dtype, jnp.floating)]
    return 0.03 * max(float(jnp.finfo(dtype).eps) for dtype in floats) ** 0.5  # 1e-5 in float32, 4e-10 in float64
