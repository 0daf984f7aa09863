"""The frame of our pages: one self-contained file, light and dark, from a phone to a wide screen."""

import base64
import html
from collections.abc import Iterable
from typing import Any

_STYLE = """
:root { --ink: #1c1e21; --soft: #5f6670; --line: #d9dce1; --edge: #9aa1ab; --paper: #fff; --wash: #f6f7f9;
  --no-wash: #fdf4ef; --yes: #00734f; --no: #b03a00; --accent: #0060a0; color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e3e5e8; --soft: #a3abb5; --line: #353a41; --edge: #5d6570; --paper: #16181b; --wash: #1f2226;
    --no-wash: #2a1e18; --yes: #4cc596; --no: #f08a58; --accent: #6cb6f0; }
  figure img { filter: invert(.91) hue-rotate(180deg); } /* white paper becomes dark, hues stay */
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 58rem; color: var(--ink); background: var(--paper);
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
th { font-size: .78rem; font-weight: 600; color: var(--soft); border-bottom-color: var(--edge); white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
td.value { white-space: nowrap; }
td.mark, th.mark { text-align: center; }
td.mark { font-weight: 700; }
td.yes { color: var(--yes); } td.no { color: var(--no); } td.none, tr.none td { color: var(--soft); }
tr.no td { background: var(--no-wash); }
.verdict { border-left: .3rem solid var(--no); padding: .3rem 0 .3rem 1rem; margin: 1.1rem 0; }
.verdict.yes { border-left-color: var(--yes); }
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


def document(title: str, body: str, style: str = "") -> str:
    """A whole page in the style of our reports, from its title and the HTML of its body; `style` is CSS of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table_of(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of plain text under a heading."""
    head = "".join(f"<th>{text(name)}</th>" for name in heads)
    lines = "\n".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    return (
        f'<h3>{text(title)}</h3>\n<div class="box"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def figure_of(caption: str, content: bytes, description: str = "") -> str:
    """A PNG with its caption, embedded in the page."""
    data = base64.b64encode(content).decode()
    return (
        f'<figure><div class="box"><img alt="{text(description or caption)}" '
        f'src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def cell(value: str) -> str:
    """A number stays on one line; a sentence may break."""
    return f'<td class="value">{text(value)}</td>' if len(value) <= 16 else f"<td>{text(value)}</td>"


def text(value: Any) -> str:
    return html.escape(str(value))
