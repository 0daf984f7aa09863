"""What a mixture's fit is between two of its rounds, and at its end."""

from typing import Any, NamedTuple

import numpy as np

from bures.family.gaussian import Gaussian
from bures.family.mixture import GaussianMixture
from bures.mixing.pool import Batch
from bures.outcome import Outcome


class Round(NamedTuple):
    """What a round saw of the mixture that it began with, by fresh draws."""

    bound: float  # the IW-ELBO, or the ELBO where that is climbed
    ness: float
    deficit: float
    draws: int
    smallest: float  # eigenvalue of a component's covariance


class Pause(NamedTuple):
    """A fit between two rounds: all that the next one depends on, so that it goes on as if there had been no pause."""

    q: GaussianMixture
    doubtful: GaussianMixture | None  # q and components that may help, to draw from
    kept: tuple[GaussianMixture, ...]  # the last ones
    places: tuple[Gaussian, ...]  # that may be worth a component
    batches: tuple[Batch, ...]  # of the pool
    rounds: tuple[Round, ...]
    left: int  # evaluations
    idle: int  # draws since the last new component
    drawn: int
    checking: bool  # whether the next round only checks
    expected: float  # the deficit that it should see
    max_components: int  # 0: as many as help
    further: int  # evaluations that may follow by the ELBO, where weights degenerate
    by_elbo: int  # rounds before those by the ELBO; 0: there are none yet
    polishing: int  # rounds before the first without new components; 0: there are none yet
    generator: dict[str, Any]  # the state of NumPy's

    @property
    def is_before_start(self) -> bool:
        """Whether the search for where to begin was ended: there is nothing to go on with."""
        return not self.rounds and self.left == 0


class Mixing(NamedTuple):
    """A fitted mixture, its rounds, and why there are no more of them."""

    approximation: GaussianMixture
    rounds: tuple[Round, ...]
    outcome: Outcome
    pause: Pause | None = None  # where it goes on, if it was interrupted


def ness_of(w: Any, drawn: Any) -> float:
    """Of draws of q, by draws of another density: `drawn` is q over that."""
    p = drawn * w  # first, not w²: w may be huge where next to nothing is drawn
    return float(np.sum(p) ** 2 / max(drawn.sum() * (p @ w), 1e-300))


def is_finite(q: GaussianMixture) -> bool:
    """Whether one can draw from it; a share may be zero."""
    return bool(np.all(np.isfinite(q.means)) and np.all(np.isfinite(q.chols)) and not np.any(np.isnan(q.log_shares)))
