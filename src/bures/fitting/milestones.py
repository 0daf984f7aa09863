"""When a fit is looked at: after 1, 2, 5, 10, 20, 50, ... steps, and every so often."""

import itertools
from collections.abc import Iterator


def milestones() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))


def is_milestone(count: int) -> bool:
    return count == next(m for m in milestones() if m >= count)


def next_checkpoint(count: int) -> int:
    """The next milestone, or multiple of a hundred (of a thousand from 10,000 on, and so forth), after `count`.

    Ever further apart, because a checkpoint looks at the whole trace.
    """
    spacing = 10 ** max(2, len(str(count)) - 2)
    return min(next(m for m in milestones() if m > count), (count // spacing + 1) * spacing)


def is_checkpoint(count: int) -> bool:
    return count > 0 and count == next_checkpoint(count - 1)
