"""What a fit may cost, and where it leaves its checkpoints: `max_seconds`, `max_evaluations`, `checkpoint`.

A clock may only end a fit, never change it: one that ends by itself before its limits is the same without them.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from bures.budget import Budget, BudgetSpent, check_limits
from bures.check import check_real, fail
from bures.engine import Evaluator, evaluator_of
from bures.family import AbstractFamily, Gaussian, Mixture
from bures.fitting.result import Fit
from bures.loop import Methods
from bures.outcome import Outcome
from bures.start import Start

_KEPT_SHARE, _KEPT_EVALUATIONS = 0.2, 5_000  # for the judgement: of the limits, and at the most
_EVERY = 60.0  # seconds between checkpoints


class Limits:
    """The limits of one fit, what it has spent of them, and its checkpoints.

    **Arguments:**

    - `max_seconds`, `max_evaluations`: when either is spent the fit ends with the best so far.
    - `checkpoint`: a file for the fit so far.
    - `every`: seconds between two writes of it.
    """

    def __init__(self, max_seconds: Any = None, max_evaluations: Any = None, checkpoint: Any = None, every: Any = None):
        self.budget = Budget(*check_limits(max_seconds, max_evaluations))
        self.checkpoint = check_checkpoint(checkpoint)
        self.every = _EVERY if every is None else check_real("every", every, 0, 1e12, "It is in seconds, e.g. 600.")
        if every is not None and checkpoint is None:
            raise fail("every", "left out without a checkpoint", every, "Pass checkpoint=path, too.")
        self._written = time.perf_counter()
        self.ended = False  # whether they were spent before there was a start
        self._keeps = True  # something for the judgement
        self._best: tuple[float, np.ndarray] | None = None
        self._evaluator: Evaluator | None = None
        if self.budget.is_limited:
            self.keep_for_judgement()

    @property
    def is_set(self) -> bool:
        """Whether there is anything to watch or to write."""
        return self.budget.is_limited or self.checkpoint is not None

    def keep_for_judgement(self) -> None:
        """Keep some of the limits for the end; of the time no more than a judgement needs, once that is known."""
        budget, evaluator = self.budget, self._evaluator
        if math.isfinite(budget.max_evaluations):
            budget.kept_evaluations = min(int(_KEPT_SHARE * budget.max_evaluations), _KEPT_EVALUATIONS)
        if math.isfinite(budget.max_seconds):
            a_point = evaluator.block_seconds / evaluator.block if evaluator is not None else 0.0
            needed = 2 * _KEPT_EVALUATIONS * a_point if a_point else math.inf
            budget.kept_seconds = min(_KEPT_SHARE * budget.max_seconds, needed)

    def watch(self, evaluator: Evaluator) -> Evaluator:
        """The evaluator of the fit, paid from the limits; the best point that it sees is kept."""
        if self.budget.is_limited:
            self._evaluator = self.budget.watch(evaluator)
            evaluator.after_call = self._look
        return evaluator

    def _look(self, z: np.ndarray, values: np.ndarray) -> None:
        finite = np.where(np.isfinite(values), values, -np.inf)
        i = int(np.argmax(finite))
        if np.isfinite(finite[i]) and (self._best is None or finite[i] > self._best[0]):
            self._best = float(finite[i]), np.array(z[i])
        if self._keeps:
            self.keep_for_judgement()

    def start(self, find: Callable[[], Start], family: AbstractFamily) -> Start:
        """A start, or a Gaussian of scale one at the best point that was seen before the limits were spent."""
        try:
            return find()
        except BudgetSpent:
            if self._best is None:
                name = "max_seconds" if self.budget.by_clock else "max_evaluations"
                limit = self.budget.max_seconds if self.budget.by_clock else self.budget.max_evaluations
                wanted = "enough for one look at the log density, compilation included"
                remedy = "No point with a finite density was seen within it. Raise it, or give Target an initial_point."
                raise fail(name, wanted, limit, remedy) from None
            self.ended = True
            point = self._best[1]
            if isinstance(family, Mixture):
                return Start(family.of(Gaussian.unchecked(point, np.eye(point.size, dtype=point.dtype))))
            return Start(eqx.tree_at(lambda q: q.mean, family.standard(point.size), point))

    def check_steps(self, methods: Methods, count: int, length: int, seconds: float, on_host: bool) -> int:
        """How many of the next `length` steps are within the limits; raises `BudgetSpent` if none is.

        A step takes so many `seconds`. The evaluator of steps on the host notes what they cost; others are noted here.
        """
        if not self.budget.is_limited:
            return length
        if self.ended:
            raise BudgetSpent(self.budget.reason)
        costs = np.cumsum([methods.at(count + i).cost().log_densities for i in range(length)])
        affordable = int(np.searchsorted(costs, self.budget.left, side="right"))
        self.budget.check(int(costs[0]), seconds)
        steps = min(length, affordable)
        if not on_host:
            self.budget.note(int(costs[steps - 1]))
        return steps

    @property
    def outcome(self) -> Outcome:
        """Of a fit that was ended: by a limit, or by the user."""
        if not self.budget.is_spent:
            return Outcome.INTERRUPTED
        return Outcome.TIME_LIMIT if self.budget.by_clock else Outcome.EVALUATION_LIMIT

    def judge(self, fit: Fit) -> None:
        """The judgement of a fit, as far as what is left of the limits goes."""
        self._keeps = False
        self.budget.kept_seconds, self.budget.kept_evaluations = 0.0, 0
        q = fit.approximation
        evaluator = self.watch(evaluator_of(fit.target, q.is_dense, q.mean.dtype))
        fit.judge_with(evaluator, partly=self.budget.is_limited)

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.checkpoint is not None and time.perf_counter() - self._written >= self.every

    def write(self, fit: Fit) -> None:
        """Write a checkpoint: a saved fit, with its judgement if it has one."""
        from bures.storage import save

        if self.checkpoint is not None:
            save(fit, self.checkpoint, judged=False)
            self._written = time.perf_counter()


def check_checkpoint(path: Any) -> Path | None:
    """A file in a folder that exists, or None."""
    if path is None:
        return None
    from bures.storage import check_path

    path = check_path("checkpoint", path)
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise fail("checkpoint", "a file in a folder that exists", str(path), "Make the folder first.")
    return path
