"""The progress bar of a fit: a line in a terminal, or a bar in a notebook; nothing has to be installed for either."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bures.distributed import is_first
from bures.loop import Trace

_WIDTH = 30  # of the bar, in characters
_EVERY = 0.1  # seconds between two drawings


@contextmanager
def progress_bar(
    progress: bool | None, total: int, done: int, unit: str = "steps"
) -> Iterator[Callable[[int, Trace | None], None]]:
    """A bar with the current bound and nESS, if told, or nothing; by default on a terminal and in a notebook."""
    display = notebook_display()
    wanted = display is not None or sys.stderr.isatty() if progress is None else progress
    if not wanted or not is_first():
        yield lambda count, trace: None
        return
    bar = _Bar(total, done, _Notebook(display) if display is not None else _Terminal(), unit)
    try:
        yield bar.report
    finally:
        bar.close()


def notebook_display() -> Callable | None:
    """IPython's `display` where a notebook is there to show things; else nothing."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


class _Bar:
    """What there is to say, said at most ten times a second."""

    def __init__(self, total: int, done: int, screen: Any, unit: str):
        self.total, self.count, self.screen, self.unit = max(total, 1), done, screen, unit
        self.status, self.began, self.drawn = "", time.monotonic(), 0.0
        screen.draw(0.0, self.line())

    def report(self, count: int, trace: Trace | None) -> None:
        self.count = count
        if trace is not None and trace.bound.size:
            self.status = f"bound {trace.bound[-1]:.3f}  nESS {100 * trace.ness[-1]:.1f}%"
        now = time.monotonic()
        if now - self.drawn > _EVERY:
            self.drawn = now
            self.screen.draw(self.count / self.total, self.line())

    def line(self, total: int | None = None) -> str:
        count = f"{self.count}/{self.total if total is None else total} {self.unit}"
        return f"{count}  {self.status}  {time.monotonic() - self.began:.1f} s".replace("    ", "  ")

    def close(self) -> None:
        """Done, be it early."""
        self.screen.draw(1.0, self.line(self.count))
        self.screen.close()


class _Terminal:
    """One line on standard error, written over again and again."""

    def __init__(self) -> None:
        self.length = 0

    def draw(self, share: float, line: str) -> None:
        filled = round(_WIDTH * min(share, 1.0))
        text = f"fit {'━' * filled}{'╌' * (_WIDTH - filled)} {line}"
        try:
            sys.stderr.write("\r" + text.ljust(self.length))
        except UnicodeEncodeError:  # a terminal of another age
            sys.stderr.write("\r" + text.replace("━", "#").replace("╌", "-").ljust(self.length))
        sys.stderr.flush()
        self.length = len(text)

    def close(self) -> None:
        sys.stderr.write("\n")


class _Notebook:
    """A bar of HTML, redrawn in its place."""

    def __init__(self, display: Callable):
        self.display, self.handle = display, None

    def draw(self, share: float, line: str) -> None:
        bundle = {"text/html": _html(share, line), "text/plain": f"fit: {line}"}
        if self.handle is None:
            self.handle = self.display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def close(self) -> None:
        pass


def _html(share: float, line: str) -> str:
    return (
        f'<div style="font-family:monospace">fit <progress value="{min(share, 1.0):.3f}" max="1" '
        f'aria-label="progress of the fit"></progress> {html.escape(line)}</div>'
    )
