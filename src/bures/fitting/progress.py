"""The progress bar of a fit."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bures.extras import missing
from bures.loop import Trace


@contextmanager
def progress_bar(progress: bool | None, total: int, done: int) -> Iterator[Callable[[int, Trace], None]]:
    """A bar on standard error with the current bound and nESS, or nothing; by default only on a terminal.

    Without rich there is none.
    """
    if not (sys.stderr.isatty() if progress is None else progress) or missing("rich"):
        yield lambda count, trace: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("fit"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("fit", total=total, completed=done, status="")

        def report(count: int, trace: Trace) -> None:
            if trace.bound.size:
                status = f"bound {trace.bound[-1]:.3f}  nESS {100 * trace.ness[-1]:.1f}%"
                bar.update(task, completed=count, status=status)

        yield report
        bar.update(task, total=bar.tasks[task].completed)  # done, be it early
