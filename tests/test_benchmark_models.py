"""`bench models`: models that are what they claim, one judge for all, cells that are kept, and what tables say."""

import collections
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import needs_posteriordb, needs_sampling
from scipy import special, stats

import bures
from bures.benchmarks import models, models_cells as cells, models_nuts, models_report as report
from bures.benchmarks.families_models import Folders
from bures.benchmarks.models_cells import FIT, LAPLACE, NUTS, REFERENCE, SAMPLE
from bures.benchmarks.real import (
    classic,
    counts,
    existing,
    fields,
    groups,
    mixtures,
    motions,
    people,
    regressions,
    series,
)
from bures.benchmarks.real.parts import POSTERIORDB, SAMPLING
from bures.benchmarks.real.registry import MODELS, find_folders

NOWHERE = Folders(None, None)
FILES = (regressions, counts, groups, people, mixtures, fields, series, motions)
OURS = {name: model for file in FILES for name, model in file.MODELS.items() if model.source != SAMPLING}

# ---- The list -------------------------------------------------------------------------------------------------------


def test_the_list_is_as_long_and_as_varied_as_promised():
    sizes = [model.dim for model in MODELS.values()]
    assert len(MODELS) >= 60 and min(sizes) == 1 and max(sizes) >= 3000
    assert sum(dim >= 100 for dim in sizes) >= 15
    assert sum(model.modes > 1 for model in MODELS.values()) >= 5
    kinds = collections.Counter(model.kind for model in MODELS.values())
    wanted = ("regression", "GLM", "robust", "ordinal", "survival", "item response", "hierarchical", "funnel", "sparse")
    wanted += ("two factors", "mixture", "Gaussian process", "time series", "hidden Markov", "ODE", "factors")
    assert not {*wanted, "change point", "capture-recapture", "random field"} - set(kinds)
    assert all((model.modes > 1) == (model.exchange is not None) for model in MODELS.values())


@eqx.filter_jit
def value_and_score(target, z):
    return jax.value_and_grad(target.log_density)(z)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__.rpartition(".")[2])
def test_densities_and_slopes_are_finite_where_a_fit_starts(file):
    for name, model in file.MODELS.items():
        if model.source == SAMPLING:
            continue
        target = model.make(NOWHERE)
        value, score = value_and_score(target, target.start())
        assert target.dim == model.dim and np.isfinite(value) and np.all(np.isfinite(score)), name


@needs_posteriordb
@needs_sampling
def test_models_on_files_have_the_stated_size():
    folders = find_folders(list(MODELS))
    for name, model in MODELS.items():
        if model.source in (POSTERIORDB, SAMPLING):
            assert model.make(folders).dim == model.dim, name
    assert existing.reference_draws("kidiq-kidscore_momiq", folders).shape == (10_000, 3)
    assert existing.reference_draws("rats", folders) is None
    assert [site.name for site in MODELS["rats"].make(folders).sites] == ["alpha", "beta"]


# ---- Densities against SciPy ----------------------------------------------------------------------------------------


def difference(name, one, two):
    """log p at one minus log p at two, of the constrained variables: constants cancel."""
    density = MODELS[name].make(NOWHERE).log_density.log_density
    return float(density(**jax.tree.map(jnp.asarray, one)) - density(**jax.tree.map(jnp.asarray, two)))


def data_of(name):
    return {key: np.asarray(value) for key, value in MODELS[name].make(NOWHERE).log_density.log_density.data.items()}


def _stack_loss(beta, sigma, nu):
    data = data_of("stack_loss")
    seen = stats.t(nu, data["X"] @ beta, sigma).logpdf(data["y"]).sum()
    priors = stats.norm(0, 10).logpdf(beta).sum() + stats.cauchy(0, 5).logpdf(sigma)
    return seen + priors + stats.gamma(2, scale=10).logpdf(nu)


def _roaches(beta, dispersion):
    data = data_of("roaches")
    mean = np.exp(data["X"] @ beta)
    seen = stats.nbinom(dispersion, dispersion / (dispersion + mean)).logpmf(data["y"]).sum()
    return seen + stats.norm(0, 2.5).logpdf(beta).sum() + stats.gamma(2, scale=2).logpdf(dispersion)


def _opinions(beta, cuts):
    data = data_of("opinions")
    below = special.expit(np.r_[-np.inf, cuts, np.inf] - (data["X"] @ beta)[:, None])
    shares = np.diff(below, axis=1)[np.arange(len(below)), data["Y"].argmax(axis=1)]
    return np.log(shares).sum() + stats.norm(0, 2).logpdf(beta).sum() + stats.norm(0, 3).logpdf(cuts).sum()


def _dippers(phi, p):
    total = 0.0
    for i in range(6):
        seen = [np.prod(phi[i : j + 1]) * (1 - p) ** (j - i) * p for j in range(i, 6)]
        numbers = [*classic.DIPPERS[i, i:], classic.DIPPERS_RELEASED[i] - classic.DIPPERS[i].sum()]
        total += stats.multinomial(classic.DIPPERS_RELEASED[i], [*seen, 1 - sum(seen)]).logpmf(numbers)
    return total


def _coal_change(rates):
    paths = [
        stats.poisson(np.where(np.arange(classic.COAL.size) <= t, *rates)).logpmf(classic.COAL).sum()
        for t in range(classic.COAL.size - 1)
    ]
    return special.logsumexp(paths) - sum(rates)


def _cafes(a, b, mean, deviations, correlation, sigma):
    data = data_of("cafes")
    cross = correlation * deviations[0] * deviations[1]
    covariance = [[deviations[0] ** 2, cross], [cross, deviations[1] ** 2]]
    effects = stats.multivariate_normal(mean, covariance).logpdf(np.stack([a, b], axis=1)).sum()
    seen = stats.norm(a[:, None] + b[:, None] * data["x"], sigma).logpdf(data["y"]).sum()
    return seen + effects + stats.norm(0, 5).logpdf(mean).sum() - sum(deviations) - sigma


def _remission(beta, shape):
    weeks, ended, treated = classic.REMISSION
    scale = np.exp(-(beta[0] + beta[1] * treated) / shape)
    times = stats.weibull_min(shape, scale=scale)
    seen = np.where(ended, times.logpdf(weeks / 10), times.logsf(weeks / 10)).sum()
    return seen + stats.norm(0, 5).logpdf(beta).sum() + stats.gamma(2).logpdf(shape)


def _repairs(beta, sigma):
    data = data_of("repairs")
    times = stats.norm(data["X"] @ beta, sigma)
    seen = np.where(data["ended"] > 0, times.logpdf(data["log_t"]), times.logsf(data["log_t"])).sum()
    return seen + stats.norm(0, 5).logpdf(beta).sum() + stats.norm(0, 2).logpdf(sigma)


def _one_factor(loading, variance):
    products = data_of("one_factor")["products"]
    covariance = np.outer(loading, loading) + np.diag(variance)
    log_det = np.linalg.slogdet(covariance)[1]
    seen = -(np.trace(np.linalg.solve(covariance, products)) + 100 * log_det) / 2
    return seen + stats.norm.logpdf(loading).sum() + stats.invgamma(2).logpdf(variance).sum()


def _nile_filter(sigma):
    y = data_of("nile_filter")["y"]
    times = np.arange(y.size)
    covariance = 4 + sigma[1] ** 2 * np.minimum(times[:, None], times) + sigma[0] ** 2 * np.eye(y.size)
    return stats.multivariate_normal(np.zeros(y.size), covariance).logpdf(y) + stats.norm.logpdf(sigma).sum()


def _airline(beta, rho, sigma):
    data = data_of("airline")
    lags = np.abs(np.subtract.outer(np.arange(144), np.arange(144)))
    covariance = sigma**2 / (1 - rho**2) * rho**lags
    seen = stats.multivariate_normal(data["X"] @ beta, covariance).logpdf(data["y"])
    return seen + stats.norm(0, 3).logpdf(beta).sum() + stats.norm.logpdf(sigma)


def _drug(logs, mean, deviation, sigma):
    data = data_of("drug")
    ka, k, v = np.exp(logs.T)[..., None]
    level = ka / (v * (ka - k)) * (np.exp(-k * data["t"]) - np.exp(-ka * data["t"]))
    seen = stats.norm(np.log(level), sigma).logpdf(data["log_level"]).sum()
    people = stats.norm(mean, deviation).logpdf(logs).sum() + stats.norm(data["guess"], 0.5).logpdf(mean).sum()
    return seen + people + stats.norm(0, 0.5).logpdf(deviation).sum() + stats.norm(0, 0.5).logpdf(sigma)


CHECKED = {
    "stack_loss": _stack_loss,
    "roaches": _roaches,
    "opinions": _opinions,
    "dippers": _dippers,
    "coal_change": _coal_change,
    "cafes": _cafes,
    "remission": _remission,
    "repairs": _repairs,
    "one_factor": _one_factor,
    "nile_filter": _nile_filter,
    "airline": _airline,
    "drug": _drug,
}


@pytest.mark.parametrize("name", CHECKED)
def test_a_density_is_that_of_scipy(name):
    target = MODELS[name].make(NOWHERE)
    points = target.start() + 0.3 * jax.random.normal(jax.random.key(3), (2, target.dim))
    one, two = ({key: np.asarray(value) for key, value in target.constrain(z).items()} for z in points)
    expected = CHECKED[name](**one) - CHECKED[name](**two)
    assert difference(name, one, two) == pytest.approx(expected, rel=1e-8, abs=1e-6)


def test_paths_of_differential_equations_converge():
    def path(steps):
        flow = lambda u, v: ((0.5 - 0.02 * v) * u, (0.02 * u - 0.8) * v)  # noqa: E731
        return np.array([part[-1] for part in motions.runge_kutta(flow, (30.0, 5.0), steps, 10.0 / steps)])

    coarse, fine = np.abs(path(100) - path(1600)).max(), np.abs(path(200) - path(1600)).max()
    assert fine < 1e-3 and 10 < coarse / fine < 25  # fourth order: sixteen times


@pytest.mark.parametrize("name", [name for name, model in OURS.items() if model.modes > 1])
def test_exchanged_draws_have_the_same_density(name):
    target = MODELS[name].make(NOWHERE)
    draws = np.asarray(target.start() + 0.5 * jax.random.normal(jax.random.key(1), (6, target.dim)))
    layout, density = target.log_density.layout, target.log_density.log_density
    moved = models.exchanged(target, draws, MODELS[name].exchange)
    before, after = ([float(density(**layout.constrain(jnp.asarray(z)))) for z in each] for each in (draws, moved))
    np.testing.assert_allclose(after, before, rtol=1e-8)
    assert not np.allclose(moved, draws)


# ---- The judge ------------------------------------------------------------------------------------------------------


def exact(dim, ess=1e8):
    """The reference of a standard normal."""
    return {name: [value] * dim for name, value in (("mean", 0.0), ("sd", 1.0), ("ess", ess), ("sd_error", 1e-4))}


def test_monte_carlo_errors_are_allowed_for_and_no_more():
    mean, sd = np.array([0.11, 0.0]), np.ones(2)
    assert not cells.is_solved(cells.errors(mean, sd, 1e8, exact(2)))
    assert cells.is_solved(cells.errors(mean, sd, 1_000, exact(2)))  # 3 / √1000 = 0.095
    assert cells.is_solved(cells.errors(mean, sd, 1e8, exact(2, ess=1_000.0)))
    assert not cells.is_solved(cells.errors(np.array([0.3, 0]), sd, 10, exact(2)))  # ten draws count as a thousand
    assert not cells.is_solved(cells.errors(0 * mean, np.array([1.0, 1.2]), 1e8, exact(2)))
    assert not cells.is_solved(cells.errors(np.array([np.nan, 0]), sd, 1e8, exact(2)))
    assert cells.is_solved(None) is None


def test_importance_weights_correct_what_is_off():
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, 2, constrain=cells.Scales(lambda z: {"twice": 2 * z}))
    q = bures.Gaussian.from_moments(jnp.array([0.3, 0.0]), 1.5 * jnp.eye(2))
    twice = exact(2) | {"sd": [2.0, 2.0]}
    found = cells.judge(q, target, 0, {cells.OWN: twice, cells.UNCONSTRAINED: exact(2)})
    assert not report.solved(found, "plain") and report.solved(found, "corrected")
    assert found["plain"][cells.OWN]["mean_error"] == pytest.approx(found["plain"][cells.UNCONSTRAINED]["mean_error"])
    assert found["log_evidence"] == pytest.approx(np.log(2 * np.pi), abs=0.05) and 0.6 < found["ness"] < 0.9


def test_what_does_not_vary_has_no_error():
    draws = np.random.default_rng(0).normal(size=(4_000, 2)) * [1, 0] + [0, 1]
    found = models_nuts.summarise(draws, models_nuts.effective(draws, 4))
    assert found["ess"][0] > 3_000 and found["sd"][1] == 0
    assert cells.errors(np.array([0.0, 1.0]), np.array([1.0, 0.0]), 1e8, found)["mean_error"] < 0.06


def test_a_failure_is_a_result():
    target = bures.Target(lambda z: jnp.sum(z**2), 1)  # has no maximum
    found = cells.measure(LAPLACE, target, 0, {"limit": 60, "patience": 1}, None)
    assert found["outcome"] == "FAILED" and "laplace" in found["message"]


def test_what_takes_too_long_is_stopped():
    def wait():
        with cells.at_most(0.05):
            time.sleep(20)

    with pytest.raises(TimeoutError, match="more than"):
        wait()


# ---- A tiny run -----------------------------------------------------------------------------------------------------

TINY = {"warmup": 100, "reference_warmup": 100, "reference_effective": 400, "nuts_seconds": 5, "reference_seconds": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    options = dict(only=["challenger", "two_lines"], methods=[NUTS, REFERENCE, FIT, SAMPLE, LAPLACE], seeds=1)
    return models.run(out=out, **options, **TINY), out, options


def test_a_run_is_kept_and_shown(folder):
    where, out, options = folder
    told = []
    again = models.run(out=out, say=told.append, **options, **TINY)
    assert again == where and not any("/" in line and "--" in line for line in told)  # nothing is run twice
    tables = (where / "tables.md").read_text()
    assert "| two_lines | mixture | 6 |" in tables and "cells not run" in tables
    assert {path.name for path in where.iterdir()} >= {"tables.md", "models.html"}


def test_what_a_run_found_is_right(folder):
    where, _, options = folder
    store = models.Store.at(where)
    settings = {**models.SETTINGS, **TINY, "seeds": 1, "models": list(options["only"]), "methods": options["methods"]}
    table = report.read(models.read_cells(models.Benchmark(NOWHERE, store), store, settings))
    assert table.known(FIT, SAMPLE) == ["challenger", "two_lines"]
    assert report.solved(table.first("challenger", FIT), "corrected") and report.solved(
        table.first("two_lines", SAMPLE)
    )
    assert table.first("two_lines", FIT)["verdict"] == "several modes"
    assert not report.solved(table.first("two_lines", FIT), "corrected")
    assert (
        table.first("two_lines", REFERENCE)["moment_ness"] < 0.1 < table.first("challenger", REFERENCE)["moment_ness"]
    )
    mine, theirs = report.gradients(table, "challenger")
    assert 1_000 < mine < 50_000 and 1_000 < theirs < 200_000
    assert report.confusion(table, FIT) == {(True, True): 1, (False, False): 1}
    limits = {each.label: each.holds for each in report.criteria(table)}
    assert limits["“trust” on runs that are not solved"] and not limits["models"]


def test_a_model_is_judged_by_most_of_its_seeds():
    def run(trusted, right):
        error = {"mean_excess": 0.0 if right else 1.0, "deviation_excess": 0.0}
        return {"trusted": trusted, "corrected": {cells.OWN: error, cells.UNCONSTRAINED: error}}

    three = {seed: run(*each) for seed, each in enumerate([(True, True), (True, False), (False, True)])}
    table = report.Table({("challenger", FIT): three, ("challenger", REFERENCE): {0: {"usable": True}}})
    assert report.by_model(table, FIT) == {(True, True): 1}
    assert report.confusion(table, FIT) == {(True, True): 1, (True, False): 1, (False, True): 1}
    found = {each.label: each.value for each in report.criteria(table)}
    assert found["“trust” on models that are not solved"] is None
    assert found["“trust” on runs that are not solved"] == 1 and found["“do not trust” on runs that are solved"] == 0.5


def test_references_are_the_moments_of_their_draws():
    draws = np.random.default_rng(0).normal(2, 3, (50_000, 1))
    found = models_nuts.summarise(draws, 50_000.0)
    assert found["mean"][0] == pytest.approx(2, abs=0.06) and found["sd"][0] == pytest.approx(3, abs=0.05)
    assert found["sd_error"][0] == pytest.approx(1 / np.sqrt(100_000), rel=0.05)  # of a normal: 1 / √(2n)


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match="--only"):
        models.choose(["nonsense"])
