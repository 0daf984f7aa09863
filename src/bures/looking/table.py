"""`Summary`: the table of a fit, on the scale of the model's own variables, with one verdict."""

import dataclasses
import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bures.check import check_flag, fail
from bures.diagnostics.diagnostics import Verdict
from bures.looking.elements import elements_of, elements_of_tree

if TYPE_CHECKING:
    from bures.fitting import Fit

QUANTILES = (0.05, 0.5, 0.95)
_SHOWN = 40  # rows that are printed, about
_HINT = "All rows: summary[name], summary.rows(), summary.to_pandas()."
_COLOURS = {True: "#00734f", False: "#b03a00"}  # of a verdict that trusts, and of one that does not


@dataclasses.dataclass(frozen=True, eq=False)
class Summary(Mapping[str, dict[str, float]]):
    """A table with a row for each number of a draw, and a verdict. A mapping from names to rows; printable.

    Columns: `mean`, `sd`, quantiles such as `5%`; `mcse`, the Monte Carlo standard error of the mean; `moved`, how far
    importance weights moved the mean, in standard deviations.
    """

    names: tuple[str, ...]
    variables: tuple[tuple[str, int], ...]  # the model's variables and how many rows each has
    columns: dict[str, np.ndarray]
    verdict: str  # in a word or two
    message: str  # what to do
    trustworthy: bool
    basis: str  # what the figures come from
    title: str = ""

    def __getitem__(self, name: str) -> dict[str, float]:
        if name not in self.names:
            near = [each for each in self.names if each.startswith(f"{name}[")] or list(self.names)
            raise KeyError(f"{name!r}; rows are {', '.join(near[:5])}{', ...' if len(near) > 5 else ''}")
        return self._row(self.names.index(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def _row(self, i: int) -> dict[str, float]:
        return {column: float(values[i]) for column, values in self.columns.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A list of rows, each a dict with its `name`."""
        return [{"name": name, **self._row(i)} for i, name in enumerate(self.names)]

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Rows by name."""
        return {name: self._row(i) for i, name in enumerate(self.names)}

    def to_pandas(self) -> Any:
        """A pandas `DataFrame` with the names as its index."""
        import pandas

        return pandas.DataFrame(self.columns, index=list(self.names))

    def texts(self, most: int = _SHOWN) -> list[tuple[str, ...]]:
        """Names and figures of about so many rows as text. Of large variables a line of one entry says what is left
        out."""
        if len(self.names) <= most:
            return [self._text(i) for i in range(len(self.names))]
        shown = self.variables[: most // 2]
        few = max(3, most // len(shown))  # rows of a variable
        texts: list[tuple[str, ...]] = []
        start = 0
        for name, size in shown:
            rows = range(start, start + size)
            if size <= few:
                texts += [self._text(i) for i in rows]
            else:
                texts += [self._text(i) for i in rows[: few - 2]]
                texts += [(f"... {size - few + 1:,} more of {name}",), self._text(rows[-1])]
            start += size
        if rest := len(self.names) - start:
            texts.append((f"... {rest:,} more rows of {len(self.variables) - len(shown):,} more variables",))
        return texts

    def _text(self, i: int) -> tuple[str, ...]:
        row = self._row(i)
        moved = row.pop("moved", None)
        error = row.pop("mcse")
        decimals = decimals_of(row["sd"])
        figures = [number_text(value, decimals) for value in row.values()]
        end = [] if moved is None else [_signed(moved)]
        return self.names[i], *figures, f"{error:.1g}" if error == 0 or error < 1e5 else f"{error:.0f}", *end

    @property
    def heads(self) -> tuple[str, ...]:
        return ("", *self.columns)

    def __str__(self) -> str:
        texts = self.texts()
        lines = [self.heads, *(row for row in texts if len(row) > 1)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.heads))]
        formatted = [_aligned(line, widths) if len(line) > 1 else "".join(line) for line in [self.heads, *texts]]
        hint = [_HINT] if len(lines) - 1 < len(self.names) else []
        title = [self.title] if self.title else []
        return "\n".join([*title, *formatted, *hint, self.basis, sentence(self.verdict, self.message)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<div>{heading(self.title)}{self.table_html()}{verdict_html(self)}</div>"

    def table_html(self, most: int = _SHOWN) -> str:
        """The table alone."""
        head = "".join(f'<th scope="col" style="text-align:right">{html.escape(name)}</th>' for name in self.heads)
        rows = "".join(self._html_row(row) for row in self.texts(most))
        return (
            f'<div class="box" style="overflow-x:auto"><table class="summary"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
            f'<p class="note" style="font-size:.85em;opacity:.8">{html.escape(self.basis)}</p>'
        )

    def _html_row(self, row: tuple[str, ...]) -> str:
        if len(row) == 1:
            return f'<tr><td colspan="{len(self.heads)}" style="text-align:left">{html.escape(row[0])}</td></tr>'
        texts = (html.escape(text.replace("-", "−")) for text in row[1:])
        cells = "".join(f'<td style="text-align:right">{text}</td>' for text in texts)
        return f'<tr><th scope="row" style="text-align:left">{html.escape(row[0])}</th>{cells}</tr>'


def summarise_fit(fit: "Fit", quantiles: Sequence[float] = QUANTILES, *, corrected: bool = True) -> Summary:
    """The table of a fit, from the draws it was judged by."""
    check_flag("corrected", corrected, "Whether weights correct the draws.")
    found, elements = fit.diagnostics, elements_of(fit)
    weights = elements.weights if corrected else None
    columns = moments(elements.values, weights, check_quantiles(quantiles))
    n = len(elements.values)
    if weights is None:
        why = "there are no weights" if found.verdict is Verdict.UNJUDGED else "no weight is finite"
        how = f"{n:,} plain draws" + (f", not corrected: {why}" if corrected else "")
    else:
        how = f"{n:,} draws, corrected by importance weights: {elements.effective:,.0f} effective"
    if n < found.num_samples:
        how += f" (the first of {found.num_samples:,})"
    note = "" if weights is None else "; moved: what the weights did to the mean, in sd"
    basis = f"{how}; nESS {100 * found.ness:.1f}%, k̂ = {found.khat:.2f}{note}."
    title = f"{fit.target.dim} dimensions, {fit.approximation.label}"
    parts = elements.names, elements.variables, columns
    return Summary(*parts, found.verdict.value, found.message, found.trustworthy, basis, title)


def summarise_tree(tree: Any, quantiles: Sequence[float] = QUANTILES, coordinates: tuple[str, ...] = ()) -> Summary:
    """The table of a DataTree of draws that count alike, as `bures.sample` gives; latent coordinates come first."""
    elements = elements_of_tree(tree, coordinates)
    columns = moments(elements.values, None, check_quantiles(quantiles))
    del columns["moved"]
    columns["mcse"] = _errors_of_chains(tree["posterior"].sizes["chain"], elements.values, columns)
    posterior = tree["posterior"]
    facts = {**posterior.attrs, **tree.attrs}
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    basis = f"{chains * draws:,} draws{f' of {chains} chains' if chains > 1 else ''}, by {facts.get('rung', 'MCMC')}."
    trusted = bool(facts.get("trustworthy", True))
    return Summary(elements.names, elements.variables, columns, "", str(facts.get("verdict", "")), trusted, basis)


def moments(values: np.ndarray, weights: np.ndarray | None, quantiles: Sequence[float]) -> dict[str, np.ndarray]:
    """The columns of a table: of weighted draws, or of plain ones."""
    n = len(values)
    shares = np.full(n, 1 / n) if weights is None else weights
    seen = shares > 0  # a draw without weight need not have a value
    x, w = values[seen], shares[seen]
    with np.errstate(all="ignore"):
        mean = w @ x
        centred = x - mean
        sd = np.sqrt(w @ centred**2)
        columns = {"mean": mean, "sd": sd}
        found = weighted_quantiles(x, w, quantiles)
        columns |= {_percent(p): row for p, row in zip(quantiles, found, strict=True)}
        columns["mcse"] = np.sqrt(w**2 @ centred**2)
        if weights is None:
            columns["moved"] = np.full(mean.shape, np.nan)
        else:
            change = mean - np.mean(values, axis=0)
            columns["moved"] = np.where(sd > 1e-12 * np.abs(mean), change / sd, 0.0)
    return columns


def weighted_quantiles(x: np.ndarray, weights: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """Quantiles (p, count) of the columns of x; between two draws, linear in the middles of their weights.

    >>> weighted_quantiles(np.array([[3.0], [1.0], [2.0]]), np.full(3, 1 / 3), [0.5]).tolist()
    [[2.0]]
    """
    found = np.empty((len(quantiles), x.shape[1]))
    for i, column in enumerate(x.T):
        order = np.argsort(column)
        w = weights[order]
        found[:, i] = np.interp(quantiles, np.cumsum(w) - w / 2, column[order])
    return found


def check_quantiles(quantiles: Any) -> tuple[float, ...]:
    try:
        given = tuple(np.atleast_1d(np.asarray(quantiles, float)).tolist())
    except (TypeError, ValueError):
        given = ()
    if not given or not all(isinstance(p, float) and 0 < p < 1 for p in given):
        raise fail("quantiles", "numbers between 0 and 1", quantiles, "For example (0.05, 0.5, 0.95).")
    return given


def heading(title: str) -> str:
    return f"<p><strong>{html.escape(title)}</strong></p>" if title else ""


def sentence(verdict: str, message: str) -> str:
    """A verdict in a word, then what it means; without the word where the message begins with it."""
    repeated = message.lower().startswith(verdict.lower())
    return message if repeated else f"{verdict.capitalize()}. {message}"


def verdict_html(shown: Any) -> str:
    """The verdict in a box: a `Summary`, or anything with `verdict`, `message` and `trustworthy`."""
    text = sentence(str(getattr(shown.verdict, "value", shown.verdict)), shown.message)
    first = re.match(r".*?[.:](?= |$)", text)
    head = first[0] if first and len(first[0]) < 40 else ""
    return (
        f'<p class="verdict" style="border-left:.3em solid {_COLOURS[bool(shown.trustworthy)]};padding:.2em .8em;'
        f'margin:.6em 0"><strong>{html.escape(head)}</strong>{html.escape(text[len(head) :])}</p>'
    )


def _errors_of_chains(chains: int, values: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of chains, whose draws are not independent, by their effective sizes; else as of independent draws."""
    if chains == 1:
        return columns["mcse"]
    from arviz_stats.base.array import array_stats

    draws = values.reshape(chains, -1, values.shape[1])
    sizes = [array_stats.ess(draws[:, :, i], method="mean") for i in range(draws.shape[2])]
    return columns["sd"] / np.sqrt(np.maximum(np.asarray(sizes, float), 1))


def _percent(p: float) -> str:
    return f"{100 * p:g}%"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def decimals_of(sd: float) -> int:
    """Decimals by which a standard deviation has three digits."""
    if not math.isfinite(sd) or sd <= 0:
        return 3
    return int(np.clip(2 - math.floor(math.log10(sd)), 0, 8))


def number_text(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return str(value)
    if value != 0 and (decimals > 6 or abs(value) >= 1e7):
        return f"{value:.3g}"
    return f"{value:.{decimals}f}"


def _signed(moved: float) -> str:
    if math.isnan(moved):
        return ""
    return "0" if abs(moved) < 0.005 else f"{moved:+.2f}"
