"""What a rung found, and the DataTree that comes back."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from bures.diagnostics.weighted import systematic
from bures.export import tree_of
from bures.target import Target

if TYPE_CHECKING:
    from xarray import DataTree

_CHOICES = 64  # of all draws, of which the most balanced is taken
_MOST_NUMBERS = 2**24  # of all choices together


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
    """Draws of one rung, and what is known of them."""

    name: str
    target: Target  # whose coordinates the draws are in; its way back leads to the model's variables
    z: Float[np.ndarray, "chain draw dim"]
    verdict: str
    trustworthy: bool = False
    statistics: Mapping[str, Float[np.ndarray, "chain draw"]] = dataclasses.field(default_factory=dict)
    log_evidence: float | None = None
    log_evidence_error: float | None = None

    def tree(self, verdict: str, spent: Mapping[str, int], seconds: float) -> "DataTree":
        """The draws with the final verdict, and what the whole climb has cost."""
        attributes: dict[str, Any] = {
            "rung": self.name,
            "verdict": verdict,
            "trustworthy": self.trustworthy,
            "evaluations": sum(spent.values()),
            "evaluations_by_rung": dict(spent),
            "seconds": round(seconds, 3),
        }
        if self.log_evidence is not None:
            attributes |= {"log_evidence": self.log_evidence, "log_evidence_error": self.log_evidence_error}
        tree = tree_of(self.target, self.z, self.statistics, attributes)
        tree.attrs.update(attributes)
        from bures.ladder.tree import SampleTree  # xarray is imported with ArviZ, not before

        return SampleTree.of(tree, self.target)


def choose_balanced(
    rng: np.random.Generator, z: Float[np.ndarray, "n dim"], weights: Float[np.ndarray, " n"], count: int
) -> Int[np.ndarray, " count"]:
    """Indices of draws by their weights, balanced: their means and variances stay near those of all draws.

    Of several independent choices by the weights, the one is taken whose largest error of a mean, or of a variance, is
    smallest in its standard errors. Each of them is a fair choice as a whole, so that nothing else of it is bent: to
    balance draw by draw, which strays less, takes extreme draws for the sake of the means. None has more copies of a
    draw than its weight asks for, rounded up.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((5000, 3))
    >>> chosen = choose_balanced(rng, z, np.full(5000, 1 / 5000), 1000)
    >>> bool(np.max(np.abs(z[chosen].mean(axis=0) - z.mean(axis=0))) < 0.03)
    True
    """
    weights = weights / np.sum(weights)
    choices = int(np.clip(_MOST_NUMBERS // (count * z.shape[1]), 1, _CHOICES))
    orders = [rng.permutation(weights.size) for _ in range(choices)]
    chosen = [order[systematic(rng, weights[order], count)] for order in orders]
    mean = weights @ z
    x = (z - mean) / np.maximum(np.sqrt(weights @ (z - mean) ** 2), 1e-300)
    spread = np.maximum(np.sqrt(weights @ (x**2 - 1) ** 2), 1e-6)  # of a squared draw

    def imbalance(few: np.ndarray) -> float:
        return max(np.max(np.abs(x[few].mean(axis=0))), np.max(np.abs((x[few] ** 2).mean(axis=0) - 1) / spread))

    return rng.permutation(min(chosen, key=imbalance))  # copies lie side by side
