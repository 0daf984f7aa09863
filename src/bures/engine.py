"""The engine: a target as NumPy sees it, through one compiled program.

All that a fit needs of a target is log p and ∇log p at a batch of points. That is compiled once for each target, at one
batch size; everything else of a fit is NumPy and compiles nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bures.compiled import Programs, Static, compiled, split
from bures.memory import give_back_memory
from bures.processes import refuse_fork
from bures.target import Target

_BLOCK_ELEMENTS = 2**18  # of the largest array of a block: a target of larger arrays is evaluated block by block
# Points; the second so that few cost little where a point costs much, the third where single ones are asked for.
_SMALLEST_BLOCK, _LARGE_BLOCK, _SINGLES_BLOCK = 32, 100, 13
LIGHT = 64  # elements of the largest array at a point, up to which a call of one step's draws costs no more than of one
_BATCH_ELEMENTS = 2**20  # of the array of points
MANY = 100  # dimensions beyond which draws are dear: a step takes fewer of them
FEW_POINTS, _LEAST_POINTS = 100, 8  # in one call, in many dimensions
# In few dimensions a call costs more than its points: it takes up to this many steps' worth, block by block.
_STEPS_IN_A_CALL, _SMALL_DIM = 5, 20
_DRAWS = 400  # at a step, in few dimensions: steps of few draws, averaged, cost no more than few of many


def default_draws(dim: int) -> int:
    """Draws at a step of the default fit: enough to tell d × d numbers from noise."""
    return max(_DRAWS, 10 * dim)


def _batch_size(dim: int) -> int:
    """Points in one call: those of a step, of several steps where a point is small, or as many as keep the arrays of
    points to some megabytes."""
    draws = default_draws(dim)
    if dim <= _SMALL_DIM:
        return _STEPS_IN_A_CALL * draws
    return min(draws, max(_LARGE_BLOCK, _BATCH_ELEMENTS // dim))


def present_dtype() -> np.dtype:
    """The floating type that JAX makes by default: float32, or float64 where x64 is enabled."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def evaluator_of(target: Target, full: bool, dtype: Any = None) -> "Evaluator":
    """The evaluator of a fit by full Gaussians, or by others: one for all that is asked of a fit, compiled once.

    In many dimensions, and where a step takes few draws, a call takes few points, because climbs by gradients ask for
    single ones.
    """
    if full and target.dim <= MANY:
        return Evaluator(target, dtype=dtype)
    batch = max(_LEAST_POINTS, min(FEW_POINTS, _BATCH_ELEMENTS // target.dim))
    return Evaluator(target, batch, dtype, few=target.dim > MANY)


class Evaluator:
    """log p and ∇log p of a target at NumPy points, every point counted.

    **Arguments:**

    - `target`: the target.
    - `batch`: the number of points that the program takes at the least, by default those of a step. Fewer are padded;
        more are taken in several calls.
    - `few`: whether single points are often asked for, as climbs by gradients do.
    - `dtype`: of the points and the results, by default JAX's present one.

    A target whose cost depends on the point, or of so many rows that a full batch would be slow, is evaluated in blocks
    within the program, only as many as there are points for: then a call of few points costs little.
    """

    def __init__(self, target: Target, batch: int | None = None, dtype: Any = None, few: bool = False):
        refuse_fork()
        self.target, self.dim = target, target.dim
        self.dtype = np.dtype(present_dtype() if dtype is None else dtype)
        batch = _batch_size(target.dim) if batch is None else batch
        self.count = 0  # points evaluated
        self.compile_seconds = 0.0
        # Given the points that are asked for, and 0 between the calls that they take; may end the work.
        self.before_call: Callable[[int], None] | None = None
        self.after_call: Callable[[np.ndarray, np.ndarray], None] | None = None  # given points and their log p
        self.pace: float | None = None  # seconds that one call should take at the most, where somebody is waiting
        self.block_seconds = 0.0  # what a block has taken in the last call
        self._on_host = getattr(target.log_density, "values_and_scores_on_host", None)
        self.one_pass = bool(getattr(target.log_density, "one_pass", False))  # of rows on disk: however many points
        is_light = target.width <= LIGHT and (batch <= _DRAWS or target.dim <= _SMALL_DIM)
        largest = _SMALLEST_BLOCK if target.uneven else _SINGLES_BLOCK if few else _DRAWS if is_light else _LARGE_BLOCK
        block = min(largest, max(_SMALLEST_BLOCK, _BLOCK_ELEMENTS // target.width))
        block = 1 if target.one_by_one or self._on_host is not None else block
        blocks = -(-batch // block)
        self.block = -(-batch // blocks)  # equal ones, and as many points as fill them: cutting arrays takes time, too
        self.batch = blocks * self.block
        self._static, self._arrays, owners = split(target.log_density)
        self._program = _PROGRAMS.of(owners, self._static, self._arrays)

    def value_and_score(self, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """log p (n,) and ∇log p (n, dim)."""
        z = np.ascontiguousarray(z, self.dtype)
        if not len(z):
            return np.zeros(0, self.dtype), np.zeros((0, self.dim), self.dtype)
        if self.before_call is not None:
            self.before_call(len(z))
        pieces, done = [], 0
        while done < len(z):
            if done and self.before_call is not None:
                self.before_call(0)
            pieces.append(self._call(z[done : done + self._points_at_once()]))
            done += len(pieces[-1][0])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])

    def value(self, z: Float[np.ndarray, "n dim"]) -> np.ndarray:
        """log p (n,)."""
        if not self.one_pass:
            return self.value_and_score(z)[0]
        if self.before_call is not None:
            self.before_call(len(z))
        self.count += len(z)
        density: Any = self.target.log_density
        values = np.asarray(density.values_on_host(z), self.dtype)
        if self.after_call is not None:
            self.after_call(z, values)
        return values

    def weighted_hessian(self, weights: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Σᵢ wᵢ ∇²log p(zᵢ): a second program, for the estimators that ask for it."""
        return np.asarray(_weighted_hessian(self.target, jnp.asarray(weights), jnp.asarray(z)))

    def _points_at_once(self) -> int:
        """Points of one call: a full batch, or as many blocks as keep the pace. What comes out is the same."""
        if self.one_pass:
            return 2**62
        if self.pace is None:
            return self.batch
        at_once = int(self.pace / self.block_seconds) if self.block_seconds else 1
        return int(np.clip(at_once * self.block, self.block, self.batch))

    def _call(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.count += len(z)
        began, compiled = time.perf_counter(), self.compile_seconds
        values, scores = self._call_on_host(z) if self._on_host is not None else self._evaluate(z)
        if self.compile_seconds == compiled:
            self.block_seconds = (time.perf_counter() - began) / -(-len(z) // self.block)
        if self.after_call is not None:
            self.after_call(z, values)
        return values, scores

    def _call_on_host(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._on_host is not None
        values, scores = self._on_host(z)
        return np.asarray(values, self.dtype), np.asarray(scores, self.dtype)

    def _evaluate(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(z)
        blocks = -(-n // self.block)
        end = blocks * self.block  # beyond it nothing is looked at
        if n < self.batch:
            padded = np.empty((self.batch, self.dim), self.dtype)
            padded[:n], padded[n:end] = z, z[-1]
            z = padded
        began, known = time.perf_counter(), self._program._cache_size()
        values, scores = self._program(self._static, self.block, self._arrays, z, blocks)
        values, scores = np.asarray(values)[:n], np.asarray(scores)[:n]
        if self._program._cache_size() > known:
            give_back_memory()  # what compiling took
            self.compile_seconds += time.perf_counter() - began
        return values, scores


Watch = Callable[[Evaluator], Evaluator]  # may have an evaluator note what it is asked for, and end the work


def _evaluate(static: Static, block: int, arrays: list[Any], z: jax.Array, blocks: Any) -> tuple[jax.Array, jax.Array]:
    """Values and scores at the points of the first `blocks` blocks, of which z is made up; zeros beyond."""
    log_density = static.combine(arrays)
    fast = getattr(log_density, "values_and_scores", None) or jax.vmap(jax.value_and_grad(log_density))

    def cast(values, scores):
        return values.astype(z.dtype), scores.astype(z.dtype)

    if block >= z.shape[0]:
        return cast(*fast(z))

    def body(i, found):
        at = i * block
        part = cast(*fast(jax.lax.dynamic_slice_in_dim(z, at, block)))
        return tuple(jax.lax.dynamic_update_slice_in_dim(x, new, at, 0) for x, new in zip(found, part, strict=True))

    empty = jnp.zeros(z.shape[0], z.dtype), jnp.zeros_like(z)
    return jax.lax.fori_loop(0, blocks, body, empty)


_PROGRAMS = Programs(_evaluate, static_argnums=(0, 1))


@compiled
def _weighted_hessian(target: Target, weights: jax.Array, z: jax.Array) -> jax.Array:
    return target.weighted_hessian(weights, z)
