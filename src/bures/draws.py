"""Standard normal noise for the estimators: independent, antithetic, or scrambled Sobol points.

A source of noise is a JAX key inside compiled programs, or a NumPy generator on the host.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from bures.arrays import AnyArray, namespace
from bures.check import fail, is_traced

_BITS = 32
_MAX_DIM = 21201  # as far as the direction numbers go


Source = Key[Array, ""] | np.random.Generator


def host_generator(key: Key[Array, ""], number: int = 0) -> np.random.Generator:
    """A NumPy generator for each key and each number, such as that of a step."""
    return generator(host_seed(key), number)


_latest: list[tuple[Any, int]] = []  # the key that was asked for last, and its number: a fit asks six times


def host_seed(key: Key[Array, ""]) -> int:
    """A number for each key, to seed NumPy's generators by."""
    for known, seed in _latest:
        if known is key:
            return seed
    data = jax.random.key_data(key)
    if is_traced(data):
        remedy = "Call it outside; under jit and vmap only bures.fit with num_steps, bures.step and the gradients work."
        raise fail("key", "used outside jit and vmap: this looks at values", key, remedy)
    seed = seed_of_words(np.ravel(data))
    _latest[:] = [(key, seed)]
    return seed


def seed_of_words(words: np.ndarray) -> int:
    """The same from the words of a key."""
    return int(np.random.SeedSequence(words.tolist()).generate_state(1, np.uint64)[0])


def generator(seed: int, number: int) -> np.random.Generator:
    """The generator of a seed whose stream has this number: far apart from all others, and made in no time."""
    return np.random.Generator(np.random.Philox(key=seed, counter=number << 128))


def generators(seed: int) -> Callable[[int], np.random.Generator]:
    """`generator` of a seed, for each number the same stream, faster: each is good until the next is asked for."""
    bits = np.random.Philox(key=seed)
    fresh, one = bits.state, np.random.Generator(bits)

    def numbered(number: int) -> np.random.Generator:
        fresh["state"]["counter"][:] = 0, 0, number, 0  # in words of 64 bits
        bits.state = fresh
        return one

    return numbered


def iid(source: Source, n: int, dim: int, dtype: Any) -> Float[AnyArray, "n dim"]:
    """Independent standard normal rows.

    Drawn as one long vector, because the compiler does not vectorise rows of a few elements. The barrier has them made
    once: else the compiler repeats the last part of the computation in each place that uses the noise.
    """
    if isinstance(source, np.random.Generator):
        return source.standard_normal((n, dim), np.dtype(dtype))
    return jax.lax.optimization_barrier(jax.random.normal(source, (n * dim,), dtype)).reshape(n, dim)


def antithetic(source: Source, n: int, dim: int, dtype: Any) -> Float[AnyArray, "n dim"]:
    """Half of the rows independent, the other half their negatives (and a row of its own if n is odd).

    Odd functions of the noise then average to exactly zero: to first order in how far a target is from Gaussian, the
    noise of S, and to zeroth order that of a.
    """
    rows = iid(source, (n + 1) // 2, dim, dtype)
    return namespace(rows).concatenate([rows, -rows[: n // 2]])


def sobol(source: Source, n: int, dim: int, dtype: Any) -> Float[AnyArray, "n dim"]:
    """Scrambled Sobol rows mapped to normals: each row is standard normal, the rows together are evenly spread.

    The randomisation is Matoušek's: a random lower triangular bit matrix for each dimension, then a digital shift.
    """
    if dim > _MAX_DIM:
        raise fail("draws", f"'iid' for more than {_MAX_DIM} dimensions (here K * dim = {dim})", "sobol", "Use iid.")
    matrix, shift = _bits(source, dim)
    xp = namespace(matrix)
    columns = _scramble(matrix, xp.asarray(_direction_numbers(dim, n)))
    points = xp.zeros((1, dim), np.uint32)
    for column in columns:
        points = xp.concatenate([points, points ^ column])
    points = points[:n] ^ shift
    # As many bits as the mantissa holds beside the half that keeps the points off 0 and 1.
    kept = min(_BITS, jnp.finfo(dtype).nmant)
    uniform = ((points >> (_BITS - kept)).astype(dtype) + 0.5) * 2.0**-kept
    if xp is jnp:
        return jax.scipy.special.ndtri(uniform)
    from scipy.special import ndtri

    return ndtri(uniform)


def _bits(source: Source, dim: int) -> tuple[UInt32[AnyArray, "bits dim"], UInt32[AnyArray, " dim"]]:
    """Random bits for the matrices and the shift."""
    if isinstance(source, np.random.Generator):
        both = source.integers(0, 2**32, (_BITS + 1, dim), np.uint32)
        return both[:-1], both[-1]
    key_matrix, key_shift = jax.random.split(source)
    return jax.random.bits(key_matrix, (_BITS, dim), jnp.uint32), jax.random.bits(key_shift, (dim,), jnp.uint32)


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


def _scramble(
    bits: UInt32[AnyArray, "bits dim"], columns: UInt32[AnyArray, "levels dim"]
) -> UInt32[AnyArray, "levels dim"]:
    """Multiply each direction number by a random unit lower triangular matrix over GF(2), one matrix a dimension."""
    xp = namespace(bits)
    place = np.arange(_BITS, dtype=np.uint32)
    diagonal = np.uint32(1) << (_BITS - 1 - place)
    above = ~((diagonal << 1) - np.uint32(1))  # the more significant bits; none for the first row
    above[0] = 0
    rows = (bits & above[:, None]) | diagonal[:, None]
    parity = xp.bitwise_count(rows[None] & columns[:, None]).astype(np.uint32) & 1
    return xp.sum(parity << (_BITS - 1 - place)[:, None], axis=1, dtype=np.uint32)
