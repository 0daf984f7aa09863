"""The page of a fit: what it says, that it is one file, and how it does in a browser, light and dark."""

import re

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import bures
from bures.looking.fit_page import next_steps
from bures.support import Positive
from bures.target import Labels
from tests.single_page import browse, needs_browser
from tests.test_looking import Checker, text_of

LABELS = Labels(coords={"city": ["Bern", "Oslo"]}, dims={"rate": ["city"]}, attributes={"maker_version": "1.2"})


def log_density(rate, mu):
    """Rates Gamma(5, 2), mu ~ N(1, 0.5²)."""
    return jnp.sum(4 * jnp.log(rate) - 2 * rate) - (((mu - 1) / 0.5) ** 2) / 2


@pytest.fixture(scope="module")
def fit():
    target = bures.Target.from_variables(log_density, {"rate": (Positive(), (2,)), "mu": ()}, labels=LABELS)
    return bures.fit(target, key=jax.random.key(0))


@pytest.fixture(scope="module")
def reference():
    rng = np.random.default_rng(0)
    return {"rate": rng.gamma(5, 0.5, (4, 500, 2)), "mu": 1 + 0.5 * rng.normal(size=(4, 500))}


@pytest.fixture(scope="module")
def page(fit, reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "fit.html"
    assert fit.report(path, reference=reference, title="Two <cities>") == path
    return path


def body(markup: str) -> str:
    inside = markup.partition("<main>")[2].partition("</main>")[0]
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "base64,", inside)


def test_the_page_says_what_the_fit_says(page, fit):
    markup = page.read_text()
    text = text_of(body(markup))
    assert "Two <cities>" in text and "Two <cities>" not in markup
    assert fit.diagnostics.message in " ".join(text.split())
    assert "fit.predict(key)" in text and "rate[Oslo]" in text and "Bern, Oslo" in text
    assert f"{fit.num_log_density_evaluations:,}" in text and "IWELBO(K=" in text
    assert bures.__version__ in text and "maker" in text and "1.2" in text and jax.__version__ in text
    row = fit.summary()["mu"]
    assert f"{row['mean']:.3f}" in text
    assert len(markup) < 1_500_000


def test_the_page_leaves_no_figure_open(fit, tmp_path):
    plt.close("all")  # those of other tests
    fit.report(tmp_path / "fit.html")
    assert not plt.get_fignums()


def test_the_page_stands_next_to_a_reference(page, fit, reference):
    text = text_of(body(page.read_text()))
    assert "Next to the reference" in text and "2,000 draws of the reference" in text
    apart = (fit.summary()["mu"]["mean"] - reference["mu"].mean()) / reference["mu"].std()
    assert f"{apart:+.2f}".replace("-", "−") in text


def test_the_page_refers_to_nothing_outside_itself(page):
    text = page.read_text()
    assert not re.findall(r'(?:src|href|action|data|srcset)="(?!data:|#)', text)
    assert not re.search(r"https?://|file:|url\(|@import", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')


@needs_browser
def test_the_page_in_a_browser(page, tmp_path):
    seen = {}
    for width, dark in ((1280, False), (390, True)):
        seen[dark] = found = browse(page, tmp_path, width, dark=dark)
        assert found["images"] == 6 and found["broken"] == found["unnamed"] == found["dead"] == 0
        assert found["requests"] == found["problems"] == []
        assert found["overflow"] <= 0, f"the page is wider than {width} pixels"
        assert found["sections"] == ["next", "table", "reference", "marginals", "pairs", "run", "model", "settings"]
        levels = found["headings"]
        assert levels[0] == 1 and levels.count(1) == 1 and max(np.diff(levels)) <= 1
    assert (seen[False]["paper"], seen[True]["paper"]) == ("rgb(255, 255, 255)", "rgb(22, 24, 27)")
    assert seen[False]["ink"] != seen[True]["ink"] and seen[True]["width"] == 390


def test_pages_of_other_fits(tmp_path):
    planar = bures.fit(bures.models.eggbox(), key=jax.random.key(0), objective=bures.ELBO())
    text = text_of(body(planar.report(tmp_path / "eggbox.html").read_text()))
    assert "fit.refine(key)" in text and "bures.sample" in text and "The way of the fit over the density" in text
    assert not planar.diagnostics.trustworthy and any("refine" in each for each in next_steps(planar))
    one = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim=1)
    unjudged = bures.fit(one, key=jax.random.key(0), max_evaluations=20)
    text = text_of(body(unjudged.report(tmp_path / "unjudged.html").read_text()))
    assert "fit.resume" in text and "Pairs" not in text
    mixture = bures.fit(bures.models.eggbox(), key=jax.random.key(0), family=bures.Mixture())
    assert "mixture of" in text_of(body(mixture.report(tmp_path / "mixture.html").read_text()))


def test_a_page_of_a_fit_that_ended_in_a_step_that_was_not_finite(tmp_path):
    fit = bures.fit(lambda z: jnp.sum(z**2), dim=2, key=jax.random.key(1))
    assert fit.outcome is bures.Outcome.NON_FINITE
    assert fit.trace.bound.size == fit.num_steps + 1 > 50
    assert "NON_FINITE" in fit.report(tmp_path / "fit.html").read_text()


def test_a_page_in_many_dimensions_stays_small(tmp_path):
    target = bures.Target.from_variables(lambda x, s: -jnp.sum(x**2) / 2 - s**2 / 2, {"x": (1500,), "s": ()})
    fit = bures.fit(target, key=jax.random.key(0), family=bures.MeanField())
    page = fit.report(tmp_path / "many.html")
    assert page.stat().st_size < 1_500_000
    text = text_of(body(page.read_text()))
    assert "more of x" in text and "12 of 1,501 rows" in text
    Checker(body(page.read_text()))
