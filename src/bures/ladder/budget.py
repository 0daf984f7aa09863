"""What a climb may cost: evaluations and seconds, checked before every call of the target."""

import math
import time

from bures.engine import Evaluator


class BudgetSpent(KeyboardInterrupt):
    """There is nothing left to spend. It ends work as Ctrl-C does: what survives one survives the other."""


class Budget:
    """Evaluations made so far by all rungs, and the limits.

    >>> budget = Budget(max_evaluations=100)
    >>> budget.spend(60)
    >>> budget.count, budget.left, budget.is_spent
    (60, 40, False)
    """

    def __init__(self, max_seconds: float | None = None, max_evaluations: int | None = None):
        self.max_seconds = math.inf if max_seconds is None else max_seconds
        self.max_evaluations = math.inf if max_evaluations is None else max_evaluations
        self.count = 0
        self.reason = ""  # which of the limits was met
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Evaluations that are left."""
        return max(0, self.max_evaluations - self.count)

    @property
    def is_spent(self) -> bool:
        return bool(self.reason)

    def spend(self, points: int) -> None:
        """Note so many evaluations about to be made; raises `BudgetSpent` if they are not within the limits."""
        self._check(self.count + points)
        self.count += points

    def note(self, points: int) -> None:
        """Note so many evaluations that have been made."""
        self.count += points

    def note_and_check(self, points: int) -> None:
        """The same, and raise `BudgetSpent` if that was all there is."""
        self.note(points)
        self._check(self.count + 1)

    def _check(self, count: int) -> None:
        if count > self.max_evaluations:
            self.reason = f"max_evaluations={self.max_evaluations}"
        elif self.seconds > self.max_seconds:
            self.reason = f"max_seconds={self.max_seconds:g}"
        if self.is_spent:
            raise BudgetSpent(self.reason)

    def watch(self, evaluator: Evaluator) -> Evaluator:
        """The evaluator, every call of it paid from here."""
        evaluator.before_call = self.spend
        return evaluator
