"""The figure of `bench scale`: what a default fit costs by the number of rows."""

import io
from typing import Any

_STYLES = {"in memory": ("C0", "o", "-"), "streamed": ("C1", "s", "--"), "subsampled": ("C2", "D", "-")}


def draw_cost(runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> bytes:
    """Row evaluations, dotted without those of the judgement, and reads by N, one line for each way; a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, (colour, marker, line) in _STYLES.items():
        own = sorted((each["rows"], run) for each, run in runs if each["what"] == way)
        if not own:
            continue
        rows = [n for n, _ in own]
        style = dict(color=colour, marker=marker, linestyle=line, label=way)
        left.loglog(rows, [n * run["evaluations"] for n, run in own], **style)
        apart = [(n, n * (run["evaluations"] - run["judged"])) for n, run in own if "judged" in run]
        if apart:
            left.loglog(*zip(*apart, strict=True), **style | {"linestyle": ":", "label": None})
        if all(run["reads"] is not None for _, run in own):
            right.semilogx(rows, [run["reads"] for _, run in own], **style)
    for axis, title in ((left, "row evaluations"), (right, "times all rows are read")):
        axis.set_xlabel("rows N")
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
    left.legend(frameon=False)
    right.set_ylim(bottom=0)
    right.axhline(10, color="0.6", linewidth=0.8, linestyle=":")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
