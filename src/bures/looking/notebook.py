"""How results show themselves in a notebook and in the REPL."""

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bures.check import is_traced
from bures.diagnostics.diagnostics import Diagnostics
from bures.looking.table import Summary, heading, summarise_fit, verdict_html

if TYPE_CHECKING:
    from bures.fitting import Fit

_ROWS = 12  # of the table under a fit; fit.summary() has more


def short(fit: "Fit") -> str:
    """A fit in one line, as far as it is known without any work."""
    facts = [f"{fit.target.dim} dimensions", fit.approximation.label]
    if not is_traced(fit.approximation, fit.outcome_code, fit.loop.count):
        facts += [f"{fit.num_steps} {steps_of(fit)}", fit.outcome.name]
        if fit.record.judgement is not None:
            found = fit.record.judgement.diagnostics
            facts += [f"nESS {100 * found.ness:.1f}%", found.verdict.value]
    return f"<bures.Fit: {', '.join(facts)}>"


def steps_of(fit: "Fit") -> str:
    return "rounds" if fit.is_in_rounds else "steps"


def html_of_fit(fit: "Fit") -> str:
    """What `print(fit)` says, and the first rows of the table."""
    if is_traced(fit.approximation):
        return html.escape(repr(fit))
    first, *lines = str(fit).splitlines()
    middle = "".join(f"<p>{html.escape(line)}</p>" for line in lines[:-1])
    table = summarise_fit(fit).table_html(_ROWS)
    return f"<div>{heading(first)}{middle}{verdict_html(fit.diagnostics)}{_paragraph(fit.next_step())}{table}</div>"


def html_of_diagnostics(found: Diagnostics) -> str:
    """The figures as a table, and the verdict."""
    return f"<div>{html_of_pairs(found.rows())}{verdict_html(found)}</div>"


def html_of_pairs(pairs: Iterable[tuple[str, Any]]) -> str:
    """Names and values as a table of two columns."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(str(value))}</td></tr>'
        for name, value in pairs
    )
    return f'<div class="box" style="overflow-x:auto"><table class="facts"><tbody>{rows}</tbody></table></div>'


def html_of_tree(tree: Any, shown: Summary, whole: str) -> str:
    """Draws that came of `bures.sample`: verdict, what they cost, the table; and xarray's own view, folded."""
    facts = tree.attrs
    cost = f"{facts['evaluations']:,} evaluations, {facts['seconds']:.1f} s; rung: {facts['rung']}"
    if facts.get("log_evidence") is not None:
        cost += f"; log evidence {facts['log_evidence']:.3f} ± {facts['log_evidence_error']:.3f}"
    return (
        f"<div>{heading('Posterior draws')}{verdict_html(shown)}{_paragraph(cost)}{shown.table_html(_ROWS)}"
        f"<details><summary>All groups</summary>{whole}</details></div>"
    )


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>" if text else ""
