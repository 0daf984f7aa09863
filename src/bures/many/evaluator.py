"""log p and its gradient at points of many models at once, through compiled programs of a few shapes.

A call takes *rows*: the number of a model and some points for it. The rows go through the program in groups whose
arrays stay in the cache, only as many groups as there are rows for.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bures.compiled import compiled
from bures.engine import present_dtype
from bures.many.models import Form, Models, as_rows

_GROUP_ELEMENTS = 2**17  # of the largest array of a group
_CALL_ELEMENTS = 2**20  # of all groups of a call
_HELD_ELEMENTS = 2**20  # of the points that are on the host at a time


class Evaluator:
    """The models of a chunk of fits, evaluated at points of theirs; every point is counted, by fit.

    A row has `points` points; a fit with more of them has several rows.
    """

    def __init__(self, models: Models, points: int, few: int):
        self.models, self.dim, self.dtype = models, models.dim, present_dtype()
        self.points, self.few = points, few
        self.data: Any = None
        self.counts = np.zeros(0, np.int64)  # of points, for each fit of the chunk
        self.seconds = 0.0  # in compiled programs

    def load(self, where: slice) -> None:
        """Take the data of another chunk."""
        self.data = jax.tree.map(lambda leaf: jax.device_put(as_rows(leaf, where)), self.models.data)
        self.counts = np.zeros(where.stop - where.start, np.int64)

    def value_and_score(self, fits: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p (a, n) and ∇log p (a, n, dim) at the points (a, n, dim) of the fits with these numbers."""
        values, scores = self._evaluate(fits, z, scores=True)
        return values, scores

    def value(self, fits: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p (a, n)."""
        return self._evaluate(fits, z, scores=False)[0]

    def held(self, fits: np.ndarray, n: int) -> Iterator[np.ndarray]:
        """The fits, so many at a time that n points of each are not too many to hold."""
        size = max(1, _HELD_ELEMENTS // (n * self.dim))
        return (fits[i : i + size] for i in range(0, len(fits), size))

    def _evaluate(self, fits: np.ndarray, z: np.ndarray, *, scores: bool) -> tuple[np.ndarray, ...]:
        (count, n, dim), points = z.shape, self.few if z.shape[1] <= self.few else self.points
        self.counts[fits] += n
        pieces = -(-n // points)
        if pieces * points > n:  # the last point again and again
            z = np.concatenate([z, np.broadcast_to(z[:, -1:], (count, pieces * points - n, dim))], axis=1)
        rows = np.ascontiguousarray(z, self.dtype).reshape(count * pieces, points, dim)
        found = self._call(np.repeat(fits, pieces).astype(np.int32), rows, points, scores)
        return tuple(part.reshape(count, pieces * points, *part.shape[2:])[:, :n] for part in found)

    def _call(self, fits: np.ndarray, z: np.ndarray, points: int, scores: bool) -> tuple[np.ndarray, ...]:
        """All rows, in calls of one shape; what the last call has too few of is not computed."""
        group, groups = self._shape(points)
        size, found = group * groups, []
        for i in range(0, len(z), size):
            part, numbers = z[i : i + size], fits[i : i + size]
            length = len(part)
            if length < size:
                part, numbers = (_padded(x, size) for x in (part, numbers))
            used = np.int32(-(-length // group))
            numbers, part = numbers.reshape(groups, group), part.reshape(groups, group, points, self.dim)
            began = time.perf_counter()
            out = [np.asarray(x) for x in _in_groups(self.models.form, scores, self.data, numbers, part, used)]
            self.seconds += time.perf_counter() - began
            found.append([x.reshape(size, *x.shape[2:])[:length] for x in out])
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def _shape(self, points: int) -> tuple[int, int]:
        """Rows in a group, and groups in a call."""
        elements = points * self.models.width
        group = max(1, _GROUP_ELEMENTS // elements)
        return group, max(1, _CALL_ELEMENTS // (elements * group))


def _padded(x: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([x, np.broadcast_to(x[-1:], (size - len(x), *x.shape[1:]))])


@compiled
def _in_groups(form: Form, scores: bool, data: Any, fits: jax.Array, z: jax.Array, used: Any) -> tuple[jax.Array, ...]:
    """log p, and scores if asked for, at each row of the first `used` groups; zeros beyond."""

    def of_row(data: Any, z: jax.Array) -> tuple[jax.Array, ...]:
        return form.values_and_scores(data, z) if scores else (form.values(data, z),)

    def of_group(fits: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vmap(of_row)(jax.tree.map(lambda leaf: leaf[fits], data), z)

    if z.shape[0] == 1:
        return tuple(part[None] for part in of_group(fits[0], z[0]))
    shapes = jax.eval_shape(of_group, fits[0], z[0])
    empty = tuple(jnp.zeros((z.shape[0], *part.shape), part.dtype) for part in shapes)

    def body(i: Any, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(x.at[i].set(part) for x, part in zip(found, of_group(fits[i], z[i]), strict=True))

    return jax.lax.fori_loop(0, used, body, empty)
