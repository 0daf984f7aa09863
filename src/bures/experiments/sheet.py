"""All figures of an experiment in one file, one under the other, every pixel as it was drawn."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from bures.storage import write_atomically

FILE = "figures.webp"
_TALLEST = 12_000  # pixels of a column: WebP has at most 16,383


def write_sheet(folder: Path, figures: Mapping[str, bytes]) -> None:
    """Write the figures, PNGs by name, to one image without loss."""
    if figures:
        write_atomically(folder / FILE, join(list(figures.values())))


def link(captions: Sequence[str]) -> list[str]:
    """The line of a Markdown page that shows the sheet."""
    return [f"![{'; '.join(captions)}]({FILE})", ""] if captions else []


def join(figures: Sequence[bytes]) -> bytes:
    """PNGs to one lossless WebP: below each other, and in a further column where that grows too tall."""
    from PIL import Image

    places, column, x, y = [], 0, 0, 0
    images = [Image.open(io.BytesIO(content)).convert("RGB") for content in figures]
    for image in images:
        if y and y + image.height > _TALLEST:
            x, y, column = x + column, 0, 0
        places.append((x, y))
        y, column = y + image.height, max(column, image.width)
    size = (
        max(place[0] + image.width for place, image in zip(places, images, strict=True)),
        max(place[1] + image.height for place, image in zip(places, images, strict=True)),
    )
    sheet = Image.new("RGB", size, "white")
    for place, image in zip(places, images, strict=True):
        sheet.paste(image, place)
    buffer = io.BytesIO()
    sheet.save(buffer, format="WEBP", lossless=True, quality=80, method=4)
    return buffer.getvalue()
