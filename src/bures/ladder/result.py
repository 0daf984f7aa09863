"""What a rung found, and the DataTree that comes back."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from bures.export import tree_of
from bures.target import Target

if TYPE_CHECKING:
    from xarray import DataTree

_CANDIDATES = 8  # for each draw that is chosen


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
        return tree


def choose_balanced(
    rng: np.random.Generator, z: Float[np.ndarray, "n dim"], weights: Float[np.ndarray, " n"], count: int
) -> Int[np.ndarray, " count"]:
    """Indices of draws by their weights, balanced: their means and variances stay near those of all draws.

    Of a few candidates, each drawn by the weights, the one is taken that leads furthest back from where the sum of
    (x, x² − 1) over those taken already has strayed, x being the draws standardised. Independent choices would stray as
    the square root of their number; these hardly do, and the weights lose nothing of what they know.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((5000, 3))
    >>> chosen = choose_balanced(rng, z, np.full(5000, 1 / 5000), 1000)
    >>> bool(np.max(np.abs(z[chosen].mean(axis=0) - z.mean(axis=0))) < 0.01)
    True
    """
    weights = weights / np.sum(weights)
    total = count * _CANDIDATES
    ticks = (np.arange(total) + rng.uniform()) / total
    candidates = np.minimum(np.searchsorted(np.cumsum(weights), ticks), weights.size - 1)
    candidates = rng.permutation(candidates).reshape(count, _CANDIDATES)
    mean = weights @ z
    x = (z - mean) / np.maximum(np.sqrt(weights @ (z - mean) ** 2), 1e-300)
    features = np.concatenate([x, x**2 - 1], axis=1)
    features /= np.maximum(np.sqrt(weights @ features**2), 1e-300)
    strayed, chosen = np.zeros(features.shape[1]), np.empty(count, int)
    for i, few in enumerate(candidates):
        chosen[i] = few[np.argmin(features[few] @ strayed)]
        strayed += features[chosen[i]]
    return chosen
