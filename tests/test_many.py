"""Many fits in one call: the steps and figures of single fits, and no fit that harms another."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.diagnostics.diagnostics import Verdict, summarise
from bures.diagnostics.weighted import WeightedDraws
from bures.draws import host_generator
from bures.engine import Evaluator as SingleEvaluator
from bures.family import Gaussian
from bures.fitting.defaults import default_estimator, default_objective
from bures.loop import Method, State, take_step
from bures.many import driver, models as models_module
from bures.many.judging import summarise_many
from bures.many.models import Models
from bures.many.noise import Noise
from bures.many.steps import Lanes
from bures.target import Target


def logistic(z, data):
    linear = data["X"] @ z
    return jnp.sum(data["y"] * linear - jnp.maximum(linear, 0) - jnp.log1p(jnp.exp(-jnp.abs(linear)))) - z @ z / 20


def regressions(count, rows=200, dim=5, seed=0):
    rng = np.random.default_rng(seed)
    X = np.concatenate([np.ones((count, rows, 1)), rng.standard_normal((count, rows, dim - 1))], axis=2)
    chance = 1 / (1 + np.exp(-(X @ rng.standard_normal((count, dim, 1)))[..., 0]))
    return {"X": X, "y": (rng.random((count, rows)) < chance).astype(float)}


@pytest.fixture(scope="module")
def data():
    return regressions(12)


@pytest.fixture(scope="module")
def fits(data):
    return bures.fit_many(logistic, data, jax.random.key(0), dim=5)


@pytest.mark.parametrize("offset", [0.0, 3.0], ids=["near", "far"])
def test_a_step_is_that_of_a_single_fit(offset):
    """Far from the target the objective is tempered, too."""
    data, key = regressions(3, rows=20, dim=3), jax.random.key(4)
    models = Models(logistic, data, 3)
    objective = default_objective(models.first)
    method = Method(objective, default_estimator(models.first, objective, 0.0), bures.Whitened())
    run = driver._Run(models, key, (method, method), 0.01, 10, np.zeros(3))
    run.evaluator.load(slice(0, 3))
    rng = np.random.default_rng(1)
    mean = rng.standard_normal((3, 3)) + offset
    chol = np.linalg.cholesky(np.eye(3) / 2 + 0.1 * np.ones((3, 3))) * np.array([0.2, 0.5, 1.0])[:, None, None]
    lanes, singles = Lanes.begin(mean, chol), []
    for i in range(3):
        q = Gaussian.unchecked(mean[i], chol[i])
        singles.append(State(q, method.geometry.init(q)))
    noise = Noise(key, 0, 3)
    for number in range(4):
        lanes, sound, bound = run._step(noise, number, np.arange(3), lanes, method)
        assert sound.all()
        for i in range(3):
            source = host_generator(jax.random.fold_in(key, i), number)
            singles[i], info = take_step(source, singles[i], SingleEvaluator(models.target(i)), method)
            np.testing.assert_allclose(bound[i], info.bound, rtol=1e-9)
            np.testing.assert_allclose(lanes.gap[i], info.gap, rtol=1e-7)
            np.testing.assert_allclose(lanes.mean[i], singles[i].approximation.mean, rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(lanes.chol[i], singles[i].approximation.chol, rtol=1e-8, atol=1e-9)


def test_figures_are_those_of_single_judgements():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((5, 1000, 2))
    log_q = -(z**2).sum(axis=2) / 2
    log_p = log_q + np.array([0.0, 0.3, 1.5, 0.2, 0.2])[:, None] * z[:, :, 0] ** 2 / 4 + 3
    log_p[0] = log_q[0] + 3  # exact
    log_p[3, 5:9] = -np.inf  # outside the support
    log_p[4, 7] = np.nan
    figures = summarise_many(z, log_p, log_q)
    for i in range(4):
        draws = WeightedDraws.at(z[i], log_p[i], Gaussian.standard(2))._replace(log_q=log_q[i])
        one, ours = summarise(draws), figures.diagnostics(i, ())
        assert ours.verdict is one.verdict
        for name in ("num_samples", "elbo", "iw_elbo", "ness", "khat", "khat_error", "log_evidence", "rounding"):
            np.testing.assert_allclose(getattr(ours, name), getattr(one, name), rtol=1e-9, err_msg=name)
        for name in ("mean_error", "deviation_error", "effective", "shift", "largest"):
            got, wanted = getattr(ours.correction, name), getattr(one.correction, name)
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
    assert figures.diagnostics(4, ()).verdict is Verdict.DEGENERATE


def test_agrees_with_single_fits(fits, data):
    assert len(fits) == 12
    assert all(outcome is bures.Outcome.CONVERGED for outcome in fits.outcomes)
    assert fits.trustworthy.all()
    for i in (0, 7):
        target = bures.models.logistic_regression(data["X"][i], data["y"][i])
        one = bures.fit(target, key=jax.random.key(1), tolerance=0.0005)
        tight = bures.fit_many(
            logistic, jax.tree.map(lambda x, i=i: x[i : i + 1], data), jax.random.key(2), dim=5, tolerance=0.0005
        )
        scale = np.asarray(one.approximation.standard_deviations)
        assert np.max(np.abs(fits.mean[i] - one.approximation.mean) / scale) < 0.1
        assert np.max(np.abs(tight.mean[0] - one.approximation.mean) / scale) < 0.05
        assert np.max(np.abs(tight.standard_deviations[0] / scale - 1)) < 0.03
        constant = 2.5 * np.log(2 * np.pi * 10)  # of the prior, which our density leaves out
        assert abs(fits.log_evidence[i] - constant - one.diagnostics.log_evidence) < 0.03


def test_gaussians_are_exact():
    """The answer in closed form, scales of 1e-3 to 1e3 and means far from the origin."""
    rng = np.random.default_rng(3)
    scale = 10.0 ** np.array([-3, 0, 3])
    means = rng.standard_normal((3, 2)) * 5 * scale[:, None]
    data = {"mean": means, "scale": scale}

    def log_density(z, data):
        shift = (z - data["mean"]) / data["scale"]
        return -(shift[0] ** 2 + (shift[1] - shift[0]) ** 2) / 2

    fits = bures.fit_many(log_density, data, jax.random.key(0), dim=2)
    np.testing.assert_allclose((fits.mean - means) / scale[:, None], 0, atol=1e-6)
    np.testing.assert_allclose(fits.covariance / scale[:, None, None] ** 2, [[[1, 1], [1, 2]]] * 3, rtol=1e-5)
    np.testing.assert_allclose(fits.log_evidence - 2 * np.log(scale), np.log(2 * np.pi), rtol=1e-6)
    assert set(fits.verdicts) == {Verdict.CLOSE}


def test_a_failing_fit_harms_no_other(fits, data):
    broken = {"X": data["X"].copy(), "y": data["y"]}
    broken["X"][3, 0, 0] = np.nan
    others = bures.fit_many(logistic, broken, jax.random.key(0), dim=5)
    assert others.outcomes[3] is bures.Outcome.NON_FINITE
    assert np.isnan(others.mean[3]).all()
    assert others.verdicts[3] is Verdict.DEGENERATE
    with pytest.raises(ValueError, match="Fit 3 has no approximation"):
        others[3]
    rest = np.arange(12) != 3
    np.testing.assert_allclose(others.mean[rest], fits.mean[rest], rtol=1e-10)
    np.testing.assert_allclose(others.khat[rest], fits.khat[rest], rtol=1e-8)
    assert "CONVERGED 11, NON_FINITE 1" in str(others)
    assert "Not to be trusted: 3." in str(others)


def test_draws_beyond_an_edge_are_named():
    def log_density(z, data):
        return jnp.where(z[0] < data, -jnp.inf, -(z[0] ** 2) / 2)

    fits = bures.fit_many(log_density, np.array([-1.0, -100.0]), jax.random.key(0), dim=1, objective=bures.ELBO())
    assert [outcome.name for outcome in fits.outcomes] == ["ZERO_DENSITY", "CONVERGED"]
    assert fits[0].outcome is bures.Outcome.ZERO_DENSITY and bool(fits[0].loop.failed)
    assert np.isfinite(fits.mean).all()


def test_density_that_fails_later_keeps_the_best_so_far():
    """Beyond 1 sd the density is NaN: the start sees the edge of it, the steps meet it."""

    def log_density(z, data):
        return jnp.where(jnp.abs(z[0]) > data, jnp.nan, -(z[0] ** 2) / 2)

    fits = bures.fit_many(log_density, np.array([1.5, 100.0]), jax.random.key(0), dim=1)
    assert [outcome.name for outcome in fits.outcomes] == ["NON_FINITE", "CONVERGED"]
    assert np.isfinite(fits.mean).all()
    assert fits.verdicts[0] is Verdict.DEGENERATE


def test_chunks_change_nothing(fits, data, monkeypatch):
    monkeypatch.setattr(models_module, "_CHUNK", 5)
    chunked = bures.fit_many(logistic, data, jax.random.key(0), dim=5)
    for name in ("mean", "chol", "num_steps", "evaluations"):
        np.testing.assert_allclose(getattr(chunked, name), getattr(fits, name), rtol=1e-10)


def test_interrupted_fits_are_said_to_be(data, monkeypatch):
    monkeypatch.setattr(models_module, "_CHUNK", 5)
    chunk = driver._Run.chunk

    def interrupted(self, first, last):
        if first >= 5:
            raise KeyboardInterrupt
        return chunk(self, first, last)

    monkeypatch.setattr(driver._Run, "chunk", interrupted)
    fits = bures.fit_many(logistic, data, jax.random.key(0), dim=5)
    assert [outcome.name for outcome in fits.outcomes] == ["CONVERGED"] * 5 + ["INTERRUPTED"] * 7
    assert np.isfinite(fits.mean[:5]).all()
    assert np.isnan(fits.mean[5:]).all()


def test_each_is_a_fit(fits, data):
    one = fits[-1]
    assert isinstance(one, bures.Fit)
    judged = fits.figures.num_samples[11] + 100  # and what is further out
    assert one.evaluations.start + one.evaluations.steps == fits.evaluations[11] - judged
    np.testing.assert_allclose(one.diagnostics.elbo, fits.elbo[11], atol=0.05)
    assert one.diagnostics.coverage.reach > 0  # here other modes are searched for
    assert one.resume(2).num_steps == one.num_steps + 2
    with pytest.raises(IndexError, match="no fit 12"):
        fits[12]


def test_family_of_targets_with_names(data):
    def model(data):
        return Target.from_variables(
            lambda mu, tau: -((mu - data) ** 2) / 2 - tau, {"mu": (), "tau": bures.support.Positive()}
        )

    fits = bures.fit_many(model, np.array([1.0, 2.0, 4.0]), jax.random.key(0))
    np.testing.assert_allclose(fits.mean[:, 0], [1, 2, 4], atol=0.1)
    assert fits[1].target.names == ("mu", "tau")
    tree = fits.to_arviz(jax.random.key(1), num_draws=50)
    assert dict(tree["posterior"].sizes) == {"chain": 1, "draw": 50, "fit": 3}
    assert (tree["posterior"]["tau"] > 0).all()
    assert tree["fits"]["outcome"].values.tolist() == ["CONVERGED"] * 3


def test_the_way_back_and_the_first_place_of_each_target(monkeypatch):
    """Both may depend on the data: those of the first target are not those of all."""
    monkeypatch.setattr(models_module, "_CHUNK", 2)

    def model(data):
        def log_density(z):
            return -5 * (z[0] - data) ** 2 + jnp.where(jnp.abs(z[0] - data) < 3, 0.0, -jnp.inf)

        return Target(log_density, 1, constrain=lambda z: {"x": z[0] * data}, initial_point=data[None])

    fits = bures.fit_many(model, np.array([1.0, 10.0, 30.0]), jax.random.key(0))
    assert [outcome.name for outcome in fits.outcomes] == ["CONVERGED"] * 3
    x = fits.to_arviz(jax.random.key(1), num_draws=400)["posterior"]["x"]
    np.testing.assert_allclose(x.mean(("chain", "draw")), [1, 100, 900], rtol=0.05)


def test_a_model_that_looks_at_its_data_is_refused():
    def model(data):
        return Target.from_variables(lambda t: -t, {"t": bures.support.Interval(0.0, data)})

    with pytest.raises(ValueError, match="model must be one program for all data sets"):
        bures.fit_many(model, np.array([1.0, 2.0]), jax.random.key(0))


def test_one_of_many_is_saved_and_shown(fits, tmp_path):
    """It has steps, and no trace of them."""
    fit = fits[3]
    fit.save(tmp_path / "one")
    loaded = bures.load(tmp_path / "one", target=fit.target)
    assert loaded.num_steps == fit.num_steps > 0
    again, there = fit.resume(3), loaded.resume(3)
    np.testing.assert_array_equal(again.approximation.mean, there.approximation.mean)
    there.save(tmp_path / "two")
    assert bures.load(tmp_path / "two", target=fit.target).num_steps == fit.num_steps + 3
    assert "Weights and run" in fit.report(tmp_path / "one.html").read_text()


def test_traced_logistic_regression(fits, data):
    tuned = bures.fit_many(lambda d: bures.models.logistic_regression(d["X"], d["y"]), data, jax.random.key(0))
    assert np.max(np.abs(tuned.mean - fits.mean) / fits.standard_deviations) < 0.05


def test_single_precision(fits, data):
    jax.config.update("jax_enable_x64", False)
    try:
        single = bures.fit_many(logistic, jax.tree.map(np.float32, data), jax.random.key(0), dim=5)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert single.mean.dtype == np.float32
    assert all(outcome is bures.Outcome.CONVERGED for outcome in single.outcomes)
    error = np.abs(single.mean - fits.mean) / fits.standard_deviations
    assert np.max(error) < 0.2
    np.testing.assert_allclose(single.log_evidence, fits.log_evidence, atol=0.05)


def test_heavy_tails_are_not_trusted():
    """A t distribution with one degree of freedom and one with fifty."""

    def log_density(z, data):
        return -(data + 1) / 2 * jnp.sum(jnp.log1p(z**2 / data))

    fits = bures.fit_many(log_density, np.array([1.0, 50.0]), jax.random.key(0), dim=2)
    assert fits.verdicts == (Verdict.MASS_OUTSIDE, Verdict.CLOSE)
    assert fits[0].diagnostics.verdict is Verdict.MASS_OUTSIDE


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, np.zeros((2, 1)), jax.random.key(0)), {"dim": 1}, "model must be a function"),
        ((logistic, {}, jax.random.key(0)), {"dim": 1}, "data must be a pytree of arrays"),
        ((logistic, [np.zeros(2), np.zeros(3)], jax.random.key(0)), {"dim": 1}, "first axis of one length"),
        ((lambda data: data, np.zeros((2, 1)), jax.random.key(0)), {}, "returns a bures.Target where dim is left out"),
        ((lambda z, data: z @ z, np.zeros((2, 1)), jax.random.key(0)), {"dim": 101}, "dim must be at most 100"),
        ((lambda z, data: z @ z, np.zeros((2, 1)), jax.random.key(0)), {"dim": 2, "init": np.zeros(3)}, "init must be"),
        ((lambda z, data: z @ z, np.zeros((2, 1)), 0), {"dim": 2}, "key must be a typed JAX random key"),
    ],
)
def test_bad_input(arguments, options, message, unchecked_types):
    with pytest.raises(ValueError, match=message):
        bures.fit_many(*arguments, **options)


def test_a_summary_says_that_other_modes_were_not_searched_for():
    def two_modes(z, apart):
        return jnp.logaddexp(-((z[0] - 1) ** 2) / 2, -((z[0] + apart) ** 2) / 2)

    fits = bures.fit_many(two_modes, np.array([30.0]), jax.random.key(0), dim=1)
    assert "Other modes were not searched for" in str(fits)
    assert fits[0].diagnostics.coverage.missed and not fits[0].diagnostics.trustworthy


def test_progress_is_shown_where_it_is_wanted(data, capsys):
    bures.fit_many(logistic, data, jax.random.key(0), dim=5, progress=True)
    assert "12/12 fits" in capsys.readouterr().err
    bures.fit_many(logistic, data, jax.random.key(0), dim=5, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="progress"):
        bures.fit_many(logistic, data, jax.random.key(0), dim=5, progress="yes")


def test_a_model_goes_with_its_fits(key):
    """Programs that were compiled for it do not keep what its closure holds."""

    def fit_one():
        held = np.ones((100, 2))
        model = lambda z, data: -0.5 * jnp.sum((z - data) ** 2) - 0.5 * jnp.mean((held @ z) ** 2)  # noqa: E731
        assert len(bures.fit_many(model, np.zeros((3, 2)), dim=2, key=key)) == 3
        return weakref.ref(model)

    gone = fit_one()
    gc.collect()
    assert gone() is None
