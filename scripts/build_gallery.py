"""Outputs and pictures of docs/gallery: `python scripts/build_gallery.py [page ...]`, or `make figures`.

The Python blocks of a page run in order in one namespace. What a block prints is written below it as a block of text,
and the figures that are open at the end are saved as the pictures that the page shows, in its order. The site itself
then builds without running anything.
"""

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from bures.plot.style import _STYLE
from bures.storage import write_atomically

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[(?P<alt>[^\]]+)\]\((?P<path>(?:\.\./)?figures/gallery/[\w-]+\.png)\)")
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
STYLE = {**_STYLE, "figure.constrained_layout.use": True, "figure.figsize": (7, 3), "figure.dpi": 130}
COLOURS = 64  # of a picture: a palette makes it a third as large


class Run(NamedTuple):
    """What came of the blocks of a page."""

    outputs: list[str]
    figures: list[Any]


def models() -> list[Path]:
    """The worked models: all pages of the gallery but its index."""
    return sorted(path for path in GALLERY.glob("*.md") if path.name != "index.md")


def pages() -> list[Path]:
    """All pages that show what their code prints."""
    return [*models(), *(GALLERY.parent / f"{name}.md" for name in ("looking_at_a_fit", "predict", "when_not"))]


def run_page(page: Path) -> Run:
    """Run the blocks of a page in the present folder; the caller closes the figures that the page opened."""
    text, outputs = page.read_text(), []
    others = set(plt.get_fignums())
    namespace: dict[str, Any] = {"__name__": page.stem}
    with mpl.rc_context(STYLE):
        for block in BLOCK.finditer(text):
            # Blank lines before the block, so that a traceback has the line of the page.
            source = "\n" * (text.count("\n", 0, block.start()) + 1) + block["code"]
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(source, str(page), "exec"), namespace)
            outputs.append("\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines()))
        return Run(outputs, [plt.figure(number) for number in plt.get_fignums() if number not in others])


def kept_outputs(text: str) -> list[str]:
    """The outputs that a page shows, block by block."""
    return [(block["output"] or "").rstrip("\n") for block in BLOCK.finditer(text)]


def with_outputs(text: str, outputs: list[str]) -> str:
    """The page with other outputs."""
    new = iter(outputs)

    def block(match: re.Match[str]) -> str:
        output = next(new)
        code = f"```python\n{match['code']}```\n"
        return f"{code}\n```text\n{output}\n```\n" if output else code

    return BLOCK.sub(block, text)


def without_numbers(output: str) -> list[str]:
    """The words of an output, line by line: what must be the same on every machine."""
    lines = [re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip() for line in output.splitlines()]
    return [re.sub(r"-{2,}|─+|━+", "-", line) for line in lines]


def png(figure: Any) -> bytes:
    """A figure as a small PNG."""
    with mpl.rc_context(STYLE):  # colours by number are looked up now
        figure.canvas.draw()
    drawn = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    drawn.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        buffer, "PNG", optimize=True
    )
    return buffer.getvalue()


def build(page: Path) -> None:
    """Run a page, and write what it shows."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run = run_page(page)
    pictures = [page.parent / match["path"] for match in PICTURE.finditer(text)]
    if len(pictures) != len(run.figures):
        raise SystemExit(f"{page.name} shows {len(pictures)} pictures and draws {len(run.figures)}")
    for path, figure in zip(pictures, run.figures, strict=True):
        write_atomically(path, png(figure))
    plt.close("all")
    write_atomically(page, with_outputs(text, run.outputs).encode())


def main(names: list[str]) -> None:
    mpl.use("Agg")
    for page in [page for page in pages() if page.stem in names or not names]:
        sys.stderr.write(f"{page.name}\n")
        build(page)


if __name__ == "__main__":
    main(sys.argv[1:])
