"""How figures look, and where they are drawn: colours, sizes, new figures."""

import functools
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import matplotlib as mpl
from matplotlib import rcsetup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bures.check import fail

# Okabe and Ito's colours, which the colour-blind tell apart. The target and reference draws are always grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ACCENT = COLOURS[1]
DASHES = ("-", "--", "-.", ":")  # so that curves that agree are all seen
REFERENCE = "0.8"
_STYLE = {
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.prop_cycle": rcsetup.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.dpi": 150,
    "figure.titlesize": 10,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def styled[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    """A function that draws, in our style."""

    @functools.wraps(draw)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> R:
        with mpl.rc_context(cast(Any, _STYLE)):
            return draw(*arguments, **options)

    return wrapped


def line_styles() -> Iterator[dict[str, Any]]:
    colours, dashes = itertools.cycle(COLOURS), itertools.cycle(DASHES)
    return ({"color": colour, "linestyle": dash} for colour, dash in zip(colours, dashes, strict=True))


class _Figure(Figure):
    """A figure that a notebook shows once, whether it is the value of a cell or not."""

    def _ipython_display_(self) -> None:
        import matplotlib.pyplot as plt
        from IPython.display import Image, display

        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        display(Image(buffer.getvalue()))
        if "inline" in mpl.get_backend():
            plt.close(self)  # or the end of the cell would show it again


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure that pyplot knows of."""
    import matplotlib.pyplot as plt

    return plt.figure(FigureClass=_Figure, figsize=size, layout="constrained")


@styled
def detached_axes(size: tuple[float, float]) -> Axes:
    """Axes of a figure that pyplot does not know of: for files, where none is to be left open."""
    return Figure(figsize=size, layout="constrained").subplots()


def new_axes(rows: int, size: tuple[float, float], **options: Any) -> list[Axes]:
    return list(new_figure(size).subplots(rows, 1, squeeze=False, **options).flat)


def new_grid(count: int, size: tuple[float, float], **options: Any) -> list[Axes]:
    """`count` small axes, near a square."""
    columns = min(count, max(3, math.isqrt(count)))
    rows = -(-count // columns)
    figure = new_figure((size[0] * columns, size[1] * rows + 0.3))
    return trim(list(figure.subplots(rows, columns, squeeze=False, **options).flat), count)


def trim(axes: list[Axes], count: int) -> list[Axes]:
    """The first `count` axes, the rest taken off the figure."""
    for ax in axes[count:]:
        ax.remove()
    return axes[:count]


def check_axes(axes: Sequence[Axes] | None, count: int) -> list[Axes]:
    if axes is not None and len(axes) != count:
        raise fail("axes", f"{count} axes, one per coordinate shown", f"{len(axes)} axes", "Or leave axes out.")
    return list(axes or [])


def share_legend(axes: Sequence[Axes], figure: Any = None) -> None:
    """One legend for axes that show the same things, above them; none where there is nothing to tell apart."""
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > 1 and all(ax.figure is axes[0].figure for ax in axes):
        (figure or axes[0].figure).legend(handles, labels, loc="outside upper right", ncols=len(labels))
