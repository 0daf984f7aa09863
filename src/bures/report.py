"""One self-contained page of all experiments: question, settings, paper | measured | agrees?, figures, reading."""

import json
from pathlib import Path
from typing import Any

from bures.page import cell, document, figure_of, text
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
        parts.append(f"<p>No results here: {text(', '.join(missing))}.</p>")
    if False in verdicts:
        listed = "".join(_differing(each, table) for each in shown for table in each.tables)
        parts.append(f"<details open><summary>What differs ({verdicts.count(False)})</summary>{listed}</details>")
    return "\n".join([*parts, "</header>"])


def _differing(each: Shown, table: Any) -> str:
    items = [
        f"<li>{text(row.label)}: paper {text(row.paper)}, measured {text(row.measured)}{_note(row)}</li>"
        for row in table.rows
        if row.agrees is False
    ]
    link = f'<a href="#{each.name}">{text(each.name)}</a>, {text(table.title)}'
    return f"<p>{link}</p><ul>{''.join(items)}</ul>" if items else ""


def _contents(shown: list[Shown]) -> str:
    rows = []
    for each in shown:
        verdicts = [row.agrees for table in each.tables for row in table.rows]
        rows.append(
            f'<tr><td><a href="#{each.name}">{text(each.module.TITLE)}</a></td><td>{each.mode}</td>'
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
        f"<h2>{text(each.module.TITLE)}</h2>",
        f'<p class="question">{text(each.module.QUESTION)}</p>',
        f'<p class="state"><span class="badge">{each.mode} protocol</span> '
        f'<span class="badge{" partial" if partial else ""}">{state}</span></p>',
    ]
    if each.of_other_code:
        parts.append(f'<p class="note">{text(each.of_other_code)}.</p>')
    if partial and not each.tables:
        parts.append("<p>That is not enough for the tables yet: run it again, and it goes on where it stopped.</p>")
    if each.reading:
        parts.append(f'<p class="reading">{text(each.reading)}</p>')
    parts += [_table(table) for table in each.tables]
    parts += [_figure(name, content, each) for name, content in each.figures.items()]
    parts += [_details(each), "</section>"]
    return "\n".join(parts)


def _table(table: Any) -> str:
    rows = "\n".join(_row(row) for row in table.rows)
    note = f'<p class="note">{text(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{text(table.title)}</h3>\n<div class="box"><table class="comparison"><thead><tr><th></th><th>paper</th>'
        f'<th>measured</th><th class="mark">agrees?</th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n{note}'
    )


def _row(row: Any) -> str:
    kind = _CLASSES[row.agrees]
    return (
        f'<tr class="{kind}"><td>{text(row.label)}{_note(row)}</td>{cell(row.paper)}{cell(row.measured)}'
        f'<td class="mark {kind}" title="{_WORDS[row.agrees]}">{MARKS[row.agrees]}</td></tr>'
    )


def _note(row: Any) -> str:
    return f'<span class="note">{text(row.note)}</span>' if row.note else ""


def _figure(name: str, content: bytes, each: Shown) -> str:
    caption = name.replace("-", " ")
    return figure_of(caption, content, f"{each.module.TITLE}: {caption}")


def _details(each: Shown) -> str:
    settings = "".join(f"<dt>{text(name)}</dt><dd>{text(_plain(value))}</dd>" for name, value in each.settings.items())
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
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{text(value)}</dd>' for name, value in entries.items())}</dl>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
