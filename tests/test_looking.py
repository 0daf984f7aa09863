"""The table of a fit and what notebooks and the REPL show: one pool of draws, on the model's own scale."""

import html.parser
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.looking import elements_of
from bures.looking.table import weighted_quantiles
from bures.support import Positive
from bures.target import Labels
from bures.target.variables import Coordinates

LABELS = Labels(coords={"city": ["Bern", "Oslo"]}, dims={"rate": ["city"]})


def log_density(rate, mu):
    """Rates Gamma(5, 2), mu ~ N(1, 0.5²)."""
    return jnp.sum(4 * jnp.log(rate) - 2 * rate) - (((mu - 1) / 0.5) ** 2) / 2


@pytest.fixture(scope="module")
def fit() -> bures.Fit:
    target = bures.Target.from_variables(log_density, {"rate": (Positive(), (2,)), "mu": ()}, labels=LABELS)
    return bures.fit(target, key=jax.random.key(0))


VOID = ("br", "img", "meta", "link", "input", "path", "use")  # tags that need no end


class Checker(html.parser.HTMLParser):
    """Tags that are opened are closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def text_of(markup: str) -> str:
    return " ".join(Checker(markup).texts)


# ---- The table


def test_the_table_is_on_the_models_own_scale(fit):
    table = fit.summary()
    assert list(table) == ["rate[Bern]", "rate[Oslo]", "mu"]
    row = table["rate[Oslo]"]
    assert list(row) == ["mean", "sd", "5%", "50%", "95%", "mcse", "moved"]
    # Gamma(5, 2): mean 2.5, sd 1.118, median 2.335, 95% 4.577
    assert row["mean"] == pytest.approx(2.5, abs=5 * row["mcse"])
    assert row["sd"] == pytest.approx(1.118, rel=0.1)
    assert row["50%"] == pytest.approx(2.335, abs=0.12)
    assert row["95%"] == pytest.approx(4.577, abs=0.4)
    assert (table.verdict, table.trustworthy) == (fit.diagnostics.verdict.value, fit.diagnostics.trustworthy)


def test_the_columns_are_weighted_sums_over_the_pool(fit):
    pool = fit.draws()
    weights = np.exp(pool.smoothed() - np.max(pool.smoothed()))
    weights /= weights.sum()
    values = np.exp(np.asarray(pool.z)[:, 0])  # Positive is exp
    row, plain = fit.summary()["rate[Bern]"], fit.summary(corrected=False)["rate[Bern]"]
    mean = weights @ values
    assert row["mean"] == pytest.approx(mean)
    assert row["mcse"] == pytest.approx(np.sqrt(np.sum((weights * (values - mean)) ** 2)))
    assert row["moved"] == pytest.approx((mean - values.mean()) / row["sd"])
    assert plain["mean"] == pytest.approx(values.mean())
    assert plain["5%"] == pytest.approx(np.quantile(values, 0.05), rel=1e-2)
    assert np.isnan(plain["moved"])


def test_weights_move_a_mean_to_where_it_should_be():
    """An approximation beside the target by half a standard deviation: the table says by how much weights moved it."""
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim=1)
    init = bures.Gaussian(jnp.array([0.5]), 1.2 * jnp.eye(1))
    geometry = bures.BuresWasserstein(step_size=1e-9)
    fit = bures.fit(target, key=jax.random.key(0), init=init, num_steps=1, geometry=geometry)
    row = fit.summary()["z[0]"]
    assert row["mean"] == pytest.approx(0, abs=4 * row["mcse"])
    assert row["moved"] == pytest.approx(-0.5, abs=0.06)


def test_monte_carlo_errors_are_those_of_repeated_tables():
    target = bures.models.gaussian(2)
    fits = [bures.fit(target, key=jax.random.key(seed), num_steps=20) for seed in range(12)]
    rows = [fit.summary()["z[0]"] for fit in fits]
    z = np.array([row["mean"] / row["mcse"] for row in rows])  # the mean is zero
    assert np.all(np.abs(z) < 4) and 0.3 < np.std(z) < 2


def test_quantiles_of_equal_weights_are_numpys():
    x = np.random.default_rng(0).normal(size=(501, 2))
    found = weighted_quantiles(x, np.full(501, 1 / 501), [0.1, 0.5])
    np.testing.assert_allclose(found, np.quantile(x, [0.1, 0.5], axis=0, method="hazen"))


def test_rows_as_dicts_and_pandas(fit):
    table = fit.summary(quantiles=(0.025, 0.975))
    assert table.to_dict()["mu"] == table["mu"]
    assert [row["name"] for row in table.rows()] == list(table)
    frame = table.to_pandas()
    assert frame.loc["mu", "2.5%"] == table["mu"]["2.5%"]
    with pytest.raises(KeyError, match=r"'rate'; rows are rate\[Bern\], rate\[Oslo\]"):
        table["rate"]
    with pytest.raises(ValueError, match="quantiles must be numbers between 0 and 1"):
        fit.summary(quantiles=(5, 95))


def test_it_prints(fit):
    lines = str(fit.summary()).splitlines()
    assert repr(fit.summary()) == str(fit.summary())
    assert lines[1].split() == ["mean", "sd", "5%", "50%", "95%", "mcse", "moved"]
    assert lines[2].startswith("rate[Bern]") and len(lines[2].split()) == 8
    assert "effective" in lines[-2] and f"k̂ = {fit.diagnostics.khat:.2f}" in lines[-2]
    assert fit.diagnostics.message in lines[-1]


def test_many_rows_are_cut_by_variable():
    def normal(field, last):
        return -jnp.sum(field**2) / 2 - last**2 / 2

    target = bures.Target.from_variables(normal, {"field": (1200,), "last": ()})
    fit = bures.fit(target, key=jax.random.key(0), family=bures.LowRank())
    table = fit.summary()
    assert len(table) == 1201 and isinstance(fit.approximation, bures.LowRankGaussian)
    lines = str(table).splitlines()
    assert len(lines) < 50
    assert any("more of field" in line for line in lines) and any(line.startswith("last") for line in lines)
    assert len(fit._repr_html_()) < 20_000
    shown = [line.split()[0] for line in lines if line.startswith("field[")]
    left_out = next(int(line.split()[1].replace(",", "")) for line in lines if "more of field" in line)
    assert len(shown) + left_out == 1200


def test_very_many_variables_are_cut():
    names = Coordinates({f"v{i}": () for i in range(300)})
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim=300, names=names)
    table = bures.fit(target, key=jax.random.key(0), family=bures.MeanField()).summary()
    assert len(str(table).splitlines()) < 50 and "280 more variables" in str(table)


@pytest.mark.parametrize("family", [bures.MeanField(), bures.LowRank(), bures.Mixture()], ids=str)
def test_every_family_has_a_table(fit, family):
    other = bures.fit(fit.target, key=jax.random.key(1), family=family)
    mine, theirs = fit.summary()["mu"], other.summary()["mu"]
    assert theirs["mean"] == pytest.approx(mine["mean"], abs=4 * (mine["mcse"] + theirs["mcse"]))
    assert other.approximation.label in str(other.summary()) and other.approximation.label in repr(other)


def test_draws_without_density_have_a_plain_table():
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -jnp.sum(z), -jnp.inf), dim=1)
    init = bures.Gaussian(-50 * jnp.ones(1), jnp.eye(1))
    fit = bures.fit(half, key=jax.random.key(0), num_steps=2, init=init)
    table = fit.summary()
    assert table["z[0]"]["mean"] == pytest.approx(-50, abs=0.1) and np.isnan(table["z[0]"]["moved"])
    assert "no weight is finite" in str(table) and "do not use" in str(table)
    assert "Degenerate" in text_of(fit._repr_html_())


def test_a_fit_without_judgement_has_a_plain_table():
    fit = bures.fit(bures.models.gaussian(3), key=jax.random.key(0), max_evaluations=20)
    assert fit.diagnostics.verdict.value == "unjudged"
    assert "not corrected: there are no weights" in str(fit.summary()) and "Unjudged" in text_of(fit._repr_html_())


def test_one_pool_for_everything(fit):
    elements, tree = elements_of(fit), fit.to_arviz(jax.random.key(1), 300, resample=False)
    assert elements is elements_of(fit)
    np.testing.assert_allclose(tree.posterior["mu"].values[0], elements.values[:300, 2])
    np.testing.assert_allclose(tree.posterior["rate"].values[0], elements.values[:300, :2])
    assert fit.summary()["mu"] == fit.summary()["mu"]


# ---- Notebooks and the REPL


def test_the_repr_is_one_short_line(fit):
    assert len(repr(fit)) < 120 and "\n" not in repr(fit)
    assert repr(fit).startswith("<bures.Fit: 3 dimensions, full rank, ") and "CONVERGED" in repr(fit)
    assert "Fit of 3 dimensions by" in str(fit)


def test_the_repr_does_no_work_and_works_under_jit():
    target = bures.models.gaussian(2)
    fit = bures.fit(target, key=jax.random.key(0), num_steps=3)
    known = fit.record.judgement
    assert "2 dimensions" in repr(fit) and fit.record.judgement is known
    seen = []

    def fit_and_look(key):
        fit = bures.fit(target, key=key, num_steps=3)
        seen.append(repr(fit))
        return fit.approximation.mean

    jax.vmap(fit_and_look)(jax.random.split(jax.random.key(0), 2))
    assert seen == ["<bures.Fit: 2 dimensions, full rank>"]


def test_a_fit_shows_itself(fit):
    text = text_of(fit._repr_html_())
    assert "rate[Bern]" in text and "CONVERGED" in text and "Fit of 3 dimensions" in text
    assert fit.diagnostics.message.split(":")[0] in text
    assert "Pareto k̂" in text_of(fit.diagnostics._repr_html_())
    assert "rate[Bern]" in text_of(fit.summary()._repr_html_())


def test_names_are_escaped():
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, dim=1, names=("<script>",))
    shown = bures.fit(target, key=jax.random.key(0), num_steps=2)._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_what_sample_returns_shows_itself_and_has_a_table():
    target = bures.Target.from_variables(log_density, {"rate": (Positive(), (2,)), "mu": ()}, labels=LABELS)
    tree = bures.sample(target, key=jax.random.key(0))
    text = text_of(tree._repr_html_())
    assert "rate[Bern]" in text and "Trust these draws" in text and "evaluations" in text
    table = tree.summary()
    assert list(table) == ["rate[Bern]", "rate[Oslo]", "mu"]
    draws = tree.posterior["mu"].values
    assert table["mu"]["mean"] == pytest.approx(draws.mean())
    assert table["mu"]["mcse"] == pytest.approx(draws.std() / np.sqrt(draws.size))
    assert table["mu"]["5%"] == pytest.approx(np.quantile(draws, 0.05), abs=0.02)
    again = pickle.loads(pickle.dumps(tree))
    np.testing.assert_array_equal(again.posterior["mu"], tree.posterior["mu"])
    assert again.attrs == tree.attrs


def test_the_error_of_chains_knows_of_autocorrelation():
    import arviz_base

    rng, draws = np.random.default_rng(0), np.zeros((4, 1000))
    for t in range(1, 1000):
        draws[:, t] = 0.9 * draws[:, t - 1] + rng.normal(size=4)
    from bures.looking import summarise_tree

    row = summarise_tree(arviz_base.from_dict({"posterior": {"x": draws}}))["x"]
    # An AR(1) chain of coefficient 0.9 has (1 − 0.9) / (1 + 0.9) effective draws for each.
    assert row["mcse"] == pytest.approx(row["sd"] / np.sqrt(4000 * 0.1 / 1.9), rel=0.3)


def test_labels_that_are_the_same_do_not_hide_rows(key):
    labels = Labels(coords={"school": ["A", "A", "B"]}, dims={"theta": ["school"]})
    target = bures.Target.from_variables(lambda theta: -jnp.sum(theta**2), {"theta": (3,)}, labels=labels)
    assert list(bures.fit(target, key=key).summary().to_dict()) == ["theta[0]", "theta[1]", "theta[2]"]
