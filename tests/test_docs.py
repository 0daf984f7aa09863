"""The documentation runs, names everything public, and builds."""

import inspect
import io
import os
import re
import runpy
import subprocess
import sys
import urllib.error
import zlib
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import bures

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    if page.name == "stan.md" and "BRIDGESTAN" not in os.environ:
        pytest.skip("BRIDGESTAN is not set")
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    text = page.read_text()
    namespace = {"__name__": page.stem}
    for block in PYTHON_BLOCK.finditer(text):
        # Blank lines before the block, so that a traceback has the line of the page.
        source = "\n" * (text.count("\n", 0, block.start()) + 1) + block[1]
        exec(compile(source, str(page), "exec"), namespace)
    plt.close("all")


def test_python_blocks_are_found():
    assert all(PYTHON_BLOCK.search((DOCS / f"{page}.md").read_text()) for page in ("index", "get_started", "extending"))


@pytest.mark.parametrize("name", bures._HOMES)
def test_public_name_is_documented(name):
    assert inspect.getdoc(getattr(bures, name))
    directive = rf"auto(function|class|data|module):: (bures\.)?(frontends\.)?{re.escape(name)}\b"
    pages = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    assert re.search(directive, pages), f"no page of docs/api documents bures.{name}"


def test_docs_build_without_warnings(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path / "html"),
    ]
    result = subprocess.run([*command, "-d", str(tmp_path / "doctrees")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_pages_link_to_pages_that_exist():
    for page in DOCS.glob("*.md"):
        for link in re.findall(r"\]\(([a-z_]+\.md)", page.read_text()):
            assert (DOCS / link).is_file(), f"{page.name} links to {link}"


INVENTORY = b"# Sphinx inventory version 2\n# Project: other\n# Version: 1\n# The remainder is zlib.\n" + zlib.compress(
    b"numpy.ndarray py:class 1 ndarray.html#$ -\n"
)


@pytest.mark.parametrize("answers", ["all", "one", "none"])
def test_links_to_other_libraries_need_no_network(tmp_path, monkeypatch, answers):
    monkeypatch.setenv("BURES_DOCS_OFFLINE", "1")
    conf = runpy.run_path(str(DOCS / "conf.py"))
    assert conf["intersphinx_mapping"] == {}

    def fetch(address, timeout):
        if answers == "none" or (answers == "one" and "numpy" not in address):
            raise urllib.error.URLError("no network")
        return io.BytesIO(INVENTORY if "jax" not in address else b"<html>a page that is no inventory</html>")

    found = conf["find_inventories"](tmp_path, fetch)
    assert set(found) == {"all": set(conf["OTHERS"]) - {"jax"}, "one": {"numpy"}, "none": set()}[answers]
    assert all(Path(path).read_bytes() == INVENTORY for _, path in found.values())
