"""A real notebook kernel: a fit, its table, a figure and the progress bar each show."""

import nbclient
import nbformat
import pytest

CELLS = (
    "import jax, jax.numpy as jnp, bures\n"
    "from bures.support import Positive\n"
    "target = bures.Target.from_variables(lambda tau, mu: -tau - mu**2 / 2, {'tau': Positive(), 'mu': ()})",
    "fit = bures.fit(target, key=jax.random.key(0))",
    "fit",
    "fit.summary()",
    "fit.diagnostics",
    "bures.plot.marginals(fit);",
    "figure = bures.plot.summary(fit)\nfigure",
    "figure",
    "bures.sample(target, key=jax.random.key(1))",
    "print(repr(fit))",
)


@pytest.fixture(scope="module")
def outputs():
    """What each cell put out."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def data(outputs, kind):
    return [each.data[kind] for each in outputs if "data" in each and kind in each.data]


def test_the_progress_bar_shows_without_ipywidgets(outputs):
    (bar,) = data(outputs[1], "text/html")
    assert '<progress value="1.000"' in bar and "nESS" in bar
    assert not any("ipywidgets" in str(each) for each in outputs[1])


def test_a_fit_its_table_and_its_diagnostics_show(outputs):
    for cell in outputs[2:4]:
        (shown,) = data(cell, "text/html")
        assert "<table" in shown and "tau" in shown and "mcse" in shown
    assert "Pareto" in data(outputs[4], "text/html")[0]
    (plain,) = data(outputs[2], "text/plain")
    assert plain.startswith("<bures.Fit: 2 dimensions") and len(plain) < 150


def test_figures_show_once(outputs):
    for cell in outputs[5:8]:  # of axes; of a figure that is the cell's value, where it was made and again later
        assert len(data(cell, "image/png")) == 1


def test_the_draws_of_sample_show(outputs):
    shown = data(outputs[8], "text/html")[-1]
    assert "Trust these draws" in shown and "tau" in shown and "All groups" in shown


def test_nothing_goes_wrong(outputs):
    assert not [each for cell in outputs for each in cell if each.output_type == "error"]
    assert not [each.text for cell in outputs for each in cell if each.get("name") == "stderr"]
    assert outputs[9][0].text.startswith("<bures.Fit: ")
