"""One self-contained page of all experiments: question, settings, paper | measured | agrees?, figures, reading."""

import base64
import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bures.reproduce import (
    EXPERIMENTS,
    MARKS,
    MODES,
    Shown,
    load_experiment,
    read_experiment,
    write_tables,
)
from bures.storage import write_atomically

_WORDS = {True: "agrees", False: "differs", None: "not compared"}
_CLASSES = {True: "yes", False: "no", None: "none"}

_STYLE = """
:root { --ink: #1c1e21; --soft: #5f6670; --line: #d9dce1; --wash: #f6f7f9; --yes: #00734f; --no: #b03a00;
  --accent: #0060a0; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 58rem; color: var(--ink); background: #fff;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .4rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
a { color: var(--accent); text-decoration-thickness: 1px; text-underline-offset: 2px; }
p { margin: .5rem 0; max-width: 44rem; }
section { margin-top: 3.2rem; padding-top: 1.6rem; border-top: 1px solid var(--line); }
.question { font-size: 1.08rem; color: var(--soft); }
.state { font-size: .85rem; color: var(--soft); }
.badge { display: inline-block; padding: .05rem .5rem; border: 1px solid var(--line); border-radius: 1rem;
  background: var(--wash); color: var(--ink); }
.badge.partial { border-color: var(--no); color: var(--no); }
.reading { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem 1rem; margin: 1.1rem 0; }
.box { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .34rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-size: .78rem; font-weight: 600; color: var(--soft); border-bottom-color: #9aa1ab; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
td.value { white-space: nowrap; }
td.mark, th.mark { text-align: center; }
td.mark { font-weight: 700; }
td.yes { color: var(--yes); } td.no { color: var(--no); } td.none, tr.none td { color: var(--soft); }
tr.no td { background: #fdf4ef; }
.note { display: block; font-size: .82rem; color: var(--soft); white-space: normal; }
.comparison td:first-child { min-width: 17rem; }
.contents { width: auto; }
figure { margin: 1.6rem 0; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .82rem; color: var(--soft); margin-top: .3rem; }
details { margin: .8rem 0; font-size: .88rem; }
summary { cursor: pointer; color: var(--accent); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; margin: .2rem 0 .8rem; } li { margin: .15rem 0; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  th, td { padding: .34rem .4rem; }
  table { font-size: .82rem; }
  /* A comparison is two lines: what is compared, with its note, and below it paper, measured and verdict. */
  .comparison, .comparison thead, .comparison tbody { display: block; }
  .comparison tr { display: grid; grid-template-columns: 1fr 1fr 4.6rem; border-bottom: 1px solid var(--line); }
  .comparison th, .comparison td { border-bottom: 0; }
  .comparison th:first-child { display: none; }
  .comparison th:nth-child(2), .comparison td:nth-child(2) { padding-left: 0; }
  .comparison td:first-child { grid-column: 1 / -1; min-width: 0; padding-bottom: 0; }
  .comparison td.value { white-space: normal; }
  figure img { max-width: none; width: 40rem; } /* scrolls in its box: legible rather than small */
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
}
@media print { details > * { display: block; } section { break-before: page; } }
"""


def write_report(out: Path) -> Path:
    """Write `out/report.html` from the cells kept in `out`: full results where there are any, else quick ones.

    Tables and figures of runs that are not finished are written as well, as far as they got.
    """
    if not out.is_dir():
        raise ValueError(f"DIR must be a folder of results, but {str(out)!r} is none. Run `bures reproduce` first.")
    shown = [found for name in EXPERIMENTS if (found := _find(name, out)) is not None]
    if not shown:
        raise ValueError(f"{str(out)!r} holds no results of any experiment. Run `bures reproduce` first.")
    for each in shown:
        if each.done < each.total and each.tables:
            write_tables(each)
    missing = [name for name in EXPERIMENTS if name not in {each.name for each in shown}]
    path = out / "report.html"
    write_atomically(path, _page(shown, missing).encode())
    return path


def _find(name: str, out: Path) -> Shown | None:
    """The full results of an experiment if any cell of them is there, else the quick ones."""
    module = load_experiment(name)
    found = [read_experiment(name, module, mode, out) for mode in MODES]
    return next((shown for shown in found if shown is not None and shown.done), None)


def _page(shown: list[Shown], missing: list[str]) -> str:
    sections = "\n".join(_section(each) for each in shown)
    return document("bures: the paper’s experiments, measured", f"{_summary(shown, missing)}\n{sections}")


def document(title: str, body: str) -> str:
    """A whole page in the style of our reports, from its title and the HTML of its body."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table_of(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of plain text under a heading."""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    lines = "\n".join(f"<tr>{''.join(_value(value) for value in row)}</tr>" for row in rows)
    return (
        f'<h3>{_text(title)}</h3>\n<div class="box"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _summary(shown: list[Shown], missing: list[str]) -> str:
    verdicts = [row.agrees for each in shown for table in each.tables for row in table.rows]
    compared = len(verdicts) - verdicts.count(None)
    parts = [
        "<header>",
        "<h1>The paper’s experiments, measured</h1>",
        f"<p><strong>{verdicts.count(True)} of {compared} comparisons agree</strong> with the paper, "
        f"{verdicts.count(False)} differ; {verdicts.count(None)} further rows are not compared: the paper has no "
        "figure there, or one of other data or of another machine, as the notes say.</p>",
        _contents(shown),
    ]
    if missing:
        parts.append(f"<p>No results here: {_text(', '.join(missing))}.</p>")
    if False in verdicts:
        listed = "".join(_differing(each, table) for each in shown for table in each.tables)
        parts.append(f"<details open><summary>What differs ({verdicts.count(False)})</summary>{listed}</details>")
    return "\n".join([*parts, "</header>"])


def _differing(each: Shown, table: Any) -> str:
    items = [
        f"<li>{_text(row.label)}: paper {_text(row.paper)}, measured {_text(row.measured)}{_note(row)}</li>"
        for row in table.rows
        if row.agrees is False
    ]
    link = f'<a href="#{each.name}">{_text(each.name)}</a>, {_text(table.title)}'
    return f"<p>{link}</p><ul>{''.join(items)}</ul>" if items else ""


def _contents(shown: list[Shown]) -> str:
    rows = []
    for each in shown:
        verdicts = [row.agrees for table in each.tables for row in table.rows]
        rows.append(
            f'<tr><td><a href="#{each.name}">{_text(each.module.TITLE)}</a></td><td>{each.mode}</td>'
            f"<td>{each.done}/{each.total}</td>"
            f'<td class="yes">{verdicts.count(True)}</td><td class="no">{verdicts.count(False)}</td></tr>'
        )
    head = "<tr><th>experiment</th><th>protocol</th><th>cells</th><th>agree</th><th>differ</th></tr>"
    return (
        f'<nav aria-label="Contents"><div class="box"><table class="contents"><thead>{head}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></nav>"
    )


def _section(each: Shown) -> str:
    partial = each.done < each.total
    state = f"{each.done} of {each.total} cells run" if partial else f"all {each.total} cells run"
    parts = [
        f'<section id="{each.name}">',
        f"<h2>{_text(each.module.TITLE)}</h2>",
        f'<p class="question">{_text(each.module.QUESTION)}</p>',
        f'<p class="state"><span class="badge">{each.mode} protocol</span> '
        f'<span class="badge{" partial" if partial else ""}">{state}</span></p>',
    ]
    if each.of_other_code:
        parts.append(f'<p class="note">{_text(each.of_other_code)}.</p>')
    if partial and not each.tables:
        parts.append("<p>That is not enough for the tables yet: run it again, and it goes on where it stopped.</p>")
    if each.reading:
        parts.append(f'<p class="reading">{_text(each.reading)}</p>')
    parts += [_table(table) for table in each.tables]
    parts += [_figure(name, content, each) for name, content in each.figures.items()]
    parts += [_details(each), "</section>"]
    return "\n".join(parts)


def _table(table: Any) -> str:
    rows = "\n".join(_row(row) for row in table.rows)
    note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{_text(table.title)}</h3>\n<div class="box"><table class="comparison"><thead><tr><th></th><th>paper</th>'
        f'<th>measured</th><th class="mark">agrees?</th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n{note}'
    )


def _row(row: Any) -> str:
    kind = _CLASSES[row.agrees]
    return (
        f'<tr class="{kind}"><td>{_text(row.label)}{_note(row)}</td>{_value(row.paper)}{_value(row.measured)}'
        f'<td class="mark {kind}" title="{_WORDS[row.agrees]}">{MARKS[row.agrees]}</td></tr>'
    )


def _note(row: Any) -> str:
    return f'<span class="note">{_text(row.note)}</span>' if row.note else ""


def _value(value: str) -> str:
    """A number stays on one line; a sentence may break."""
    return f'<td class="value">{_text(value)}</td>' if len(value) <= 16 else f"<td>{_text(value)}</td>"


def _figure(name: str, content: bytes, each: Shown) -> str:
    caption = name.replace("-", " ")
    return figure_of(caption, content, f"{each.module.TITLE}: {caption}")


def figure_of(caption: str, content: bytes, description: str = "") -> str:
    """A PNG with its caption, embedded in the page."""
    data = base64.b64encode(content).decode()
    return (
        f'<figure><div class="box"><img alt="{_text(description or caption)}" '
        f'src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )


def _details(each: Shown) -> str:
    settings = "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(_plain(value))}</dd>" for name, value in each.settings.items()
    )
    sources = "".join(_source(provenance) for provenance in each.provenances)
    return (
        f"<details><summary>Settings</summary><dl>{settings}</dl></details>\n"
        f"<details><summary>Where the results come from: {each.seconds:,.0f} s of work</summary>{sources}</details>"
    )


def _source(provenance: dict[str, Any]) -> str:
    entries = {
        "commit": provenance["commit"] + (" with changes not committed" if provenance.get("modified") else ""),
        "versions": ", ".join(f"{name} {version}" for name, version in provenance["versions"].items()),
        "machine": ", ".join(f"{name} {value}" for name, value in provenance["machine"].items()),
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{_text(value)}</dd>' for name, value in entries.items())}</dl>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return html.escape(str(value))
