"""Standard normal noise for each of many fits: that of `bures.fit` with the fit's own key."""

import jax
import numpy as np
from jaxtyping import Array, Key

from bures.draws import seed_of_words


class Noise:
    """Numbered streams of noise by fit. What a fit draws does not depend on the others."""

    def __init__(self, key: Key[Array, ""], first: int, count: int):
        self.keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(first, first + count, dtype=np.uint32))
        self._seeds = [seed_of_words(words) for words in np.asarray(jax.random.key_data(self.keys))]
        self._bits = np.random.Philox(key=0)
        self._state, self._generator = self._bits.state, np.random.Generator(self._bits)

    def normals(self, fits: np.ndarray, number: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of this shape for each fit, from its stream of this number."""
        found = np.empty((len(fits), *shape), dtype)
        state = self._state["state"]
        for row, i in enumerate(fits):
            state["key"][:] = self._seeds[i], 0
            state["counter"][:] = 0, 0, number, 0  # as `bures.draws.generator` begins
            self._bits.state = self._state
            self._generator.standard_normal(out=found[row], dtype=dtype)
        return found

    def antithetic(self, fits: np.ndarray, number: int, M: int, K: int, dim: int, dtype: np.dtype) -> np.ndarray:
        """(fits, M K, dim): half of the tuples are the negatives of the others."""
        rows = self.normals(fits, number, ((M + 1) // 2, K * dim), dtype)
        return np.concatenate([rows, -rows[:, : M // 2]], axis=1).reshape(len(fits), M * K, dim)
