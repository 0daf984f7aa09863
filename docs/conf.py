"""Sphinx configuration: MyST pages, docstrings in Markdown, links to other libraries where there is a network."""

import os
import re
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

project = "bures"
author = "The bures developers"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bures"
html_static_path = ["_static"]
html_css_files = ["gallery.css"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"


OTHERS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
    "arviz": "https://python.arviz.org/en/latest/",
    "numpyro": "https://num.pyro.ai/en/stable/",
    "pymc": "https://www.pymc.io/projects/docs/en/stable/",
}


def find_inventories(folder, fetch=urllib.request.urlopen, seconds=5):
    """The lists of names of other libraries that can be fetched now; without a network there are no links to them.

    Sphinx would warn of those that cannot, and a warning ends the build.
    """

    def inventory(name):
        try:
            with fetch(f"{OTHERS[name]}objects.inv", timeout=seconds) as answer:
                content = answer.read()
        except (OSError, ValueError):
            return None
        path = Path(folder) / f"{name}.inv"
        path.write_bytes(content)
        return str(path) if content.startswith(b"# Sphinx inventory version") else None

    with ThreadPoolExecutor(len(OTHERS)) as pool:
        found = dict(zip(OTHERS, pool.map(inventory, OTHERS), strict=True))
    return {name: (OTHERS[name], path) for name, path in found.items() if path is not None}


intersphinx_mapping = {} if os.environ.get("BURES_DOCS_OFFLINE") else find_inventories(tempfile.mkdtemp())


def markdown_to_rst(app, what, name, obj, options, lines):
    """Our docstrings use three things that Markdown and reStructuredText read differently: code, bars and lists."""
    text = "\n".join(lines)
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)", r"``\1``", text)
    text = re.sub(r"\|(\w+)\|", r"\\|\1\\|", text)  # an absolute value, not a substitution
    # Continuation lines of a list item align with its text.
    text = re.sub(r"^(- .*(?:\n +\S.*)*)", lambda item: re.sub(r"\n +", "\n  ", item[0]), text, flags=re.MULTILINE)
    lines[:] = text.split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", markdown_to_rst)
