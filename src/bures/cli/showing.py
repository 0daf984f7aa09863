"""What a command prints and writes."""

from pathlib import Path
from typing import Any


def check_folder(folder: Path) -> None:
    """Check that results can be written, before any work is done."""
    from bures.distributed import is_first
    from bures.storage import write_atomically

    if not is_first():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be made, but {str(folder)!r} cannot: {error}.") from error
    probe = folder / ".bures-probe"
    write_atomically(probe, b"")
    probe.unlink()


def show_fit(result: Any, name: str, seed: int, num_samples: int | None, out: Path) -> None:
    """The table, the saved fit, the figure and the page, all from the draws the fit was judged by."""
    import jax
    from rich.console import Console
    from rich.table import Table

    import bures
    from bures.looking.fit_page import page_of
    from bures.storage import write_atomically

    key = None if num_samples is None else jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    diagnostics = result.diagnostics if num_samples is None else result.diagnose(key, num_samples)
    console = Console(soft_wrap=True)
    table = Table(title=f"{name}: {result.approximation.label}, {result.num_steps} steps", show_header=False)
    for row in diagnostics.rows():
        table.add_row(*row)
    console.print(table)
    console.print(f"{result.outcome}", markup=False)
    console.print(diagnostics.message, markup=False)
    saved, figure = out / f"{name}.fit", out / f"{name}.png"
    result.save(saved)
    if result.outcome is bures.Outcome.TIME_LIMIT:
        console.print(f"saved {saved}; a figure would take more evaluations", markup=False)
        return
    drawn = bures.plot.summary(result, key)  # by all of several processes: it may ask for log p
    content, page = page_of(result, title=name), out / f"{name}.html"
    if bures.distributed.is_first():
        drawn.savefig(figure, dpi=150)
        write_atomically(page, content.encode())
    console.print(f"saved {saved}, {figure} and {page}", markup=False)


def show_draws(tree: Any, name: str) -> None:
    """Means, standard deviations and quantiles by variable, and the verdict."""
    from rich.console import Console
    from rich.table import Table

    from bures.ladder.files import summary_rows

    console, facts = Console(soft_wrap=True), tree.attrs
    title = f"{name}: {facts['rung']}, {facts['evaluations']} evaluations"
    table = Table("", "mean", "sd", "5%", "50%", "95%", title=title)
    for row in summary_rows(tree):
        table.add_row(*row)
    console.print(table)
    if "log_evidence" in facts:
        console.print(f"log evidence {facts['log_evidence']:.3f} ± {facts['log_evidence_error']:.3f}", markup=False)
    console.print(facts["verdict"], markup=False)
