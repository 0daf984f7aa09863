"""The pages of the gallery run, and show what they print and draw."""

import re

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from scripts.build_gallery import (
    GALLERY,
    PICTURE,
    build,
    kept_outputs,
    models,
    pages,
    run_page,
    with_outputs,
    without_numbers,
)

# Pages whose programs run longer than they compile: these are optimised, in the tests, too (see conftest.py).
RUN_LONG = {"large_data", "time_series", "when_not"}
REMEDY = "run `python scripts/build_gallery.py {}`, look at the page and commit it"


@pytest.fixture(autouse=True)
def no_window():
    mpl.use("Agg")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_page_runs_and_is_current(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.stem in RUN_LONG:
        jax.config.update("jax_disable_most_optimizations", False)
    text = page.read_text()
    run = run_page(page)
    assert any(run.outputs)
    for shown, printed in zip(kept_outputs(text), run.outputs, strict=True):
        assert without_numbers(shown) == without_numbers(printed), REMEDY.format(page.stem)
    assert len(PICTURE.findall(text)) == len(run.figures), REMEDY.format(page.stem)


@pytest.mark.parametrize("page", models(), ids=lambda page: page.stem)
def test_pictures_are_small_and_described(page):
    shown = list(PICTURE.finditer(page.read_text()))
    assert shown
    for picture in shown:
        file = page.parent / picture["path"]
        assert file.is_file(), REMEDY.format(page.stem)
        assert file.stat().st_size < 80_000 and len(picture["alt"]) > 20


def test_index_has_a_card_for_every_page():
    text = (GALLERY / "index.md").read_text()
    names = [page.stem for page in models()]
    assert len(names) >= 12
    assert sorted(re.findall(r"\]\((\w+)\.md\)\n", text)) == names
    assert sorted(re.search(r":hidden:\n\n([\w\n]+)```", text)[1].split()) == names
    assert len(PICTURE.findall(text)) == len(names)


PAGE = """# Example

```python
x = 1 + 1
```

Then:

```python
import matplotlib.pyplot as plt
print("x is", x)
figure, ax = plt.subplots()
```
{}
![A figure with nothing in it](../figures/gallery/example.png)
"""


def test_a_page_has_the_figures_it_opened_itself(tmp_path):
    plt.figure()
    page = tmp_path / "example.md"
    page.write_text(PAGE.format(""))
    assert len(run_page(page).figures) == 1


def test_building_a_page_writes_outputs_and_pictures(tmp_path):
    page = tmp_path / "gallery" / "example.md"
    (tmp_path / "figures" / "gallery").mkdir(parents=True)
    page.parent.mkdir()
    page.write_text(PAGE.format("\n```text\nx is 3\nan older line\n```\n"))
    build(page)
    assert page.read_text() == PAGE.format("\n```text\nx is 2\n```\n")
    assert (tmp_path / "figures" / "gallery" / "example.png").read_bytes().startswith(b"\x89PNG")
    assert with_outputs(page.read_text(), ["", ""]) == PAGE.format("")
    page.write_text(PAGE.format("").replace("![", "["))
    with pytest.raises(SystemExit, match="shows 0 pictures and draws 1"):
        build(page)


def test_outputs_are_compared_by_their_words():
    assert without_numbers("nESS 94.2%, k̂ = -0.52\n  slope   1,234") == ["nESS #%, k̂ = #", "slope #"]
    assert without_numbers("trust") != without_numbers("do not trust")
