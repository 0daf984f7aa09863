"""Sphinx configuration: MyST pages, and docstrings written in Markdown."""

import re

project = "bures"
author = "The bures developers"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bures"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"


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
