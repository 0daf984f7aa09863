"""What work on a target may cost: evaluations and seconds, checked before every call of the target."""

import math
import time
from typing import Any

from bures import distributed
from bures.check import check_positive_integer, check_real, fail
from bures.engine import Evaluator

_PACE = 0.2  # seconds that one call of a program should take at the most where a clock is watched


class BudgetSpent(KeyboardInterrupt):
    """There is nothing left to spend. It ends work as Ctrl-C does: what survives one survives the other."""


class Budget:
    """Evaluations made so far by all parts of the work, and the limits.

    Some of it may be `kept` for what comes last: the judgement of a fit.

    >>> budget = Budget(max_evaluations=100)
    >>> budget.spend(60)
    >>> budget.count, budget.left, budget.is_spent
    (60, 40, False)
    """

    def __init__(self, max_seconds: float | None = None, max_evaluations: int | None = None):
        self.max_seconds = math.inf if max_seconds is None else max_seconds
        self.max_evaluations = math.inf if max_evaluations is None else max_evaluations
        self.count = 0
        self.reason = ""  # which of the limits was met first
        self.by_clock = False  # whether that was the one of time
        self.kept_seconds, self.kept_evaluations = 0.0, 0
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Evaluations that are left."""
        return max(0, self.max_evaluations - self.kept_evaluations - self.count)

    @property
    def seconds_left(self) -> float:
        return self.max_seconds - self.kept_seconds - self.seconds

    @property
    def is_limited(self) -> bool:
        return math.isfinite(self.max_seconds) or math.isfinite(self.max_evaluations)

    @property
    def is_spent(self) -> bool:
        return bool(self.reason)

    def spend(self, points: int, ahead: float = 0.0) -> None:
        """Note so many evaluations about to be made; raises `BudgetSpent` if they are not within the limits.

        `ahead` are the seconds that they will surely take.
        """
        self.check(points, ahead)
        self.count += points

    def note(self, points: int) -> None:
        """Note so many evaluations that have been made."""
        self.count += points

    def note_and_check(self, points: int) -> None:
        """The same, and raise `BudgetSpent` if that was all there is."""
        self.note(points)
        self.check(1)

    def check(self, points: int, ahead: float = 0.0) -> None:
        """Raise `BudgetSpent` if so many more evaluations are not within the limits."""
        few, late = points > self.left, self.seconds_left < ahead
        if not few and not late:
            return
        if not self.reason:
            self.by_clock = not few
            by_count = f"max_evaluations={self.max_evaluations}"
            self.reason = by_count if few else f"max_seconds={self.max_seconds:g}"
        raise BudgetSpent(self.reason)

    def watch(self, evaluator: Evaluator) -> Evaluator:
        """The evaluator, every call of it paid from here; where the clock counts its calls are short."""
        evaluator.before_call = lambda points: self.spend(points, evaluator.block_seconds)
        evaluator.pace = _PACE if math.isfinite(self.max_seconds) else None
        return evaluator


def check_limits(max_seconds: Any, max_evaluations: Any) -> tuple[float | None, int | None]:
    """A number of seconds and one of evaluations, or None for no limit."""
    if max_seconds is not None:
        if distributed.count() > 1:
            remedy = "Their clocks differ: use max_evaluations; a fit with a checkpoint may be ended at any moment."
            raise fail("max_seconds", "left out where several processes make one fit", max_seconds, remedy)
        max_seconds = check_real("max_seconds", max_seconds, 0, 1e12, "For example 60.", open_low=True)
    if max_evaluations is not None:
        max_evaluations = check_positive_integer("max_evaluations", max_evaluations, "For example 100_000.")
    return max_seconds, max_evaluations
