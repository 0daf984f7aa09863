"""Where draws come from before they are moved: the fitted approximation, with the modes that it does not reach."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bures.diagnostics.weighted import WeightedDraws, draw_points
from bures.engine import Evaluator
from bures.family import AbstractApproximation, GaussianMixture
from bures.family.approximation import in_double
from bures.target import Target


class Base:
    """An equal mixture of the approximation and of the Gaussians of other modes, in NumPy.

    **Arguments:**

    - `q`: the approximation.
    - `others`: Gaussians of modes that q does not reach.
    """

    def __init__(self, q: AbstractApproximation, others: Sequence[AbstractApproximation] = ()):
        self.members = (q, *others)
        self._scores = [_score_of(member) for member in self.members]

    @property
    def q(self) -> AbstractApproximation:
        return self.members[0]

    @property
    def dim(self) -> int:
        return self.q.dim

    def draw(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n dim"]:
        """As many of each member, up to one."""
        sizes = [len(part) for part in np.array_split(np.arange(n), len(self.members))]
        return np.concatenate([draw_points(rng, q, size) for q, size in zip(self.members, sizes, strict=True)])

    def value(self, z: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """log of the density."""
        return np.logaddexp.reduce(self._values(z), axis=0) - np.log(len(self.members))

    def value_and_score(self, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """log of the density, and its gradient."""
        values = self._values(z)
        total = np.logaddexp.reduce(values, axis=0)
        shares = np.exp(values - total)
        scores = sum(share[:, None] * score(z) for share, score in zip(shares, self._scores, strict=True))
        return total - np.log(len(self.members)), np.asarray(scores)

    def _values(self, z: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "member n"]:
        return np.stack([WeightedDraws.at(z, np.zeros(len(z)), member).log_q for member in self.members])


def _score_of(q: AbstractApproximation) -> Any:
    """∇log q as a function of NumPy points: in closed form, or else by automatic differentiation."""
    exact = in_double(q)
    if isinstance(q, GaussianMixture):
        return lambda z: -exact.entropy_scores(z, exact.responsibilities(z))
    if q.can("precision_times_noise") and q.can("whiten"):
        return lambda z: -exact.precision_times_noise(exact.whiten(z))
    evaluator = Evaluator(Target(q.log_prob, q.dim))
    return lambda z: np.asarray(evaluator.value_and_score(z)[1], np.float64)
