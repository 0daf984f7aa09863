"""Standard normal noise for the estimators: independent, antithetic, or scrambled Sobol points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from bures.check import fail

_BITS = 32
_MAX_DIM = 21201  # as far as the direction numbers go


def iid(key: Key[Array, ""], n: int, dim: int, dtype: jnp.dtype) -> Float[Array, "n dim"]:
    """Independent standard normal rows.

    Drawn as one long vector, because the compiler does not vectorise rows of a few elements. The barrier has them made
    once: else the compiler repeats the last part of the computation in each place that uses the noise.
    """
    return jax.lax.optimization_barrier(jax.random.normal(key, (n * dim,), dtype)).reshape(n, dim)


def antithetic(key: Key[Array, ""], n: int, dim: int, dtype: jnp.dtype) -> Float[Array, "n dim"]:
    """Half of the rows independent, the other half their negatives (and a row of its own if n is odd).

    Odd functions of the noise then average to exactly zero: to first order in how far a target is from Gaussian, the
    noise of S, and to zeroth order that of a.
    """
    rows = iid(key, (n + 1) // 2, dim, dtype)
    return jnp.concatenate([rows, -rows[: n // 2]])


def sobol(key: Key[Array, ""], n: int, dim: int, dtype: jnp.dtype) -> Float[Array, "n dim"]:
    """Scrambled Sobol rows mapped to normals: each row is standard normal, the rows together are evenly spread.

    The randomisation is Matoušek's: a random lower triangular bit matrix for each dimension, then a digital shift.
    """
    if dim > _MAX_DIM:
        raise fail("draws", f"'iid' for more than {_MAX_DIM} dimensions (here K * dim = {dim})", "sobol", "Use iid.")
    key_matrix, key_shift = jax.random.split(key)
    columns = _scramble(key_matrix, jnp.asarray(_direction_numbers(dim, n)))
    points = jnp.zeros((1, dim), jnp.uint32)
    for column in columns:
        points = jnp.concatenate([points, points ^ column])
    points = points[:n] ^ jax.random.bits(key_shift, (dim,), jnp.uint32)
    # As many bits as the mantissa holds beside the half that keeps the points off 0 and 1.
    kept = min(_BITS, jnp.finfo(dtype).nmant)
    uniform = ((points >> (_BITS - kept)).astype(dtype) + 0.5) * 2.0**-kept
    return jax.scipy.special.ndtri(uniform)


@functools.lru_cache(maxsize=16)
def _direction_numbers(dim: int, n: int) -> np.ndarray:
    """Sobol direction numbers, (log2 n, dim), read off SciPy's unscrambled points (which come in Gray-code order)."""
    from scipy.stats import qmc

    levels = max(n - 1, 0).bit_length()
    if levels == 0:
        return np.zeros((0, dim), np.uint32)
    points = qmc.Sobol(dim, scramble=False, bits=_BITS).random_base2(levels)
    rows = points[[2 ** (level + 1) - 1 for level in range(levels)]]
    return (rows * 2.0**_BITS).astype(np.uint32)


def _scramble(key: Key[Array, ""], columns: UInt32[Array, "levels dim"]) -> UInt32[Array, "levels dim"]:
    """Multiply each direction number by a random unit lower triangular matrix over GF(2), one matrix a dimension."""
    dim = columns.shape[1]
    place = jnp.arange(_BITS, dtype=jnp.uint32)
    diagonal = jnp.uint32(1) << (_BITS - 1 - place)
    above = ~((diagonal << 1) - 1)  # the more significant bits; none for the first row
    above = above.at[0].set(0)
    rows = (jax.random.bits(key, (_BITS, dim), jnp.uint32) & above[:, None]) | diagonal[:, None]
    parity = jax.lax.population_count(rows[None] & columns[:, None]) & 1
    return jnp.sum(parity << (_BITS - 1 - place)[:, None], axis=1, dtype=jnp.uint32)
