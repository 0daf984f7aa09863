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
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import bures
from tests.browser import CHROMIUM, Site

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that show what their code prints are run by test_gallery.py.
SHOWING = set(runpy.run_path(str(ROOT / "scripts" / "build_gallery.py"))["pages"]())
PAGES = (ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if page not in SHOWING))
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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, and what its building said."""
    folder = tmp_path_factory.mktemp("site")
    how = f"-W --keep-going -q -b html -d {folder / 'doctrees'}".split()
    command = [sys.executable, "-m", "sphinx", *how, str(DOCS), str(folder / "html")]
    return folder / "html", subprocess.run(command, capture_output=True, text=True, check=False)


def test_docs_build_without_warnings(site):
    _, result = site
    assert result.returncode == 0, result.stdout + result.stderr


def test_local_references_of_the_site_exist(site):
    folder, _ = site
    texts = {path.resolve(): path.read_text() for path in folder.rglob("*.html")}
    for path, text in texts.items():
        for reference in re.findall(r'(?:href|src)="(?!https?:|data:|mailto:)([^"?]*)', text):
            name, _, anchor = unescape(reference).partition("#")
            other = (path.parent / unquote(name)).resolve() if name else path
            assert other.is_file(), f"{path.name} refers to {reference}"
            if anchor and other in texts:
                assert f'id="{anchor}"' in texts[other], f"{path.name} refers to {reference}"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: pages are not looked at in a browser")
def test_gallery_in_a_browser(site, tmp_path):
    folder, _ = site
    pages = ("gallery/index", "gallery/hierarchical", "gallery/prediction", "gallery/time_series", "when_not")
    views = [(f"{page}.html", width) for page in pages for width in (390, 1280)]
    with Site(folder, tmp_path) as served:
        seen = served.look(*views) + served.look(*views[-2:], theme="dark")
        assert served.missing == []
    for (page, width), each in zip([*views, *views[-2:]], seen, strict=True):
        assert each["width"] == width and each["overflow"] <= 0 and each["beyond"] == [], f"{page} at {width}: {each}"
        assert each["broken"] == each["complaints"] == [] and each["unnamed"] == 0, f"{page} at {width}: {each}"
        assert each["images"] >= 1 or page == "when_not.html"
        assert each["outputs"] >= 1 or page == "gallery/index.html"


WRONG = """<html><head><title>Wrong</title></head><body><article>
<p style="width: 900px">wider than a phone</p><img src="missing.png"><script>console.error("an error")</script>
</article></body></html>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: pages are not looked at in a browser")
def test_a_browser_sees_what_is_wrong(tmp_path):
    (tmp_path / "wrong.html").write_text(WRONG)
    with Site(tmp_path, tmp_path) as served:
        narrow, wide = served.look(("wrong.html", 390), ("wrong.html", 1280))
        assert any("missing.png" in path for path in served.missing)
    assert narrow["overflow"] > 400 and len(narrow["beyond"]) == 1 and narrow["unnamed"] == 1
    assert wide["overflow"] <= 0 and wide["beyond"] == []
    assert len(wide["broken"]) == 1 and "an error" in wide["complaints"]


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


FIND = ("install", "a first fit", "my model", "is it right?", "predict", "large data", "cite")


def test_a_newcomer_finds_each_thing_from_the_readme():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 150
    rows = dict(re.findall(r"^\| ([a-z? ]+) \| (.*) \|$", text, re.MULTILINE))
    for name in FIND:
        links = re.findall(r"\]\(([^)]+)\)", rows[name])
        assert links or "`make" in rows[name], name
        for link in links:
            path, _, anchor = link.partition("#")
            page = ROOT / (path or "README.md")
            assert page.is_file(), f"{name}: {link}"
            heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            assert not anchor or anchor in [re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in heads], (
                link
            )


def test_a_newcomer_finds_each_thing_from_the_first_page():
    text = (DOCS / "index.md").read_text()
    heads, rows = (
        re.findall(r"^## (.*)$", text, re.MULTILINE),
        re.findall(r"^\| ([a-z? ]+) \| .*\]\(", text, re.MULTILINE),
    )
    assert {name.lower() for name in (*heads, *rows)} >= set(FIND)


def test_links_of_the_readme_exist():
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
