"""Steps by batches of rows: unbiased, far less noisy by the anchor, and the same fit with few passes over the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_rows import DIM, as_memory_map, log_prior, logistic, make_data, plain_target

import bures
from bures.engine import Evaluator
from bures.rows import subsampled
from bures.rows.subsampled import RowsUse, SubsampledEvaluator

N = 6000


@pytest.fixture(scope="module")
def data():
    return make_data(N)


@pytest.fixture(scope="module")
def exact(data):
    """The fit of all rows at every point."""
    return bures.fit(plain_target(data), key=jax.random.key(0))


def subsampled_target(data):
    return bures.Target.from_data(log_prior, logistic, data, DIM, subsample=True)


def draws_of(fit, n=40, width=1.0):
    noise = np.random.default_rng(3).standard_normal((n, DIM))
    q = fit.approximation
    return np.asarray(q.mean) + width * noise @ np.asarray(q.chol).T


def evaluator_at(data, point, seed=0, batch=500):
    evaluator = SubsampledEvaluator(subsampled_target(data), np.random.default_rng(seed))
    evaluator.use.batch = batch
    evaluator.anchor_at(np.asarray(point))
    return evaluator


def without_looking(evaluator, z):
    """Values and scores with the next batch, whatever its noise."""
    evaluator.use.calls += 1
    return Evaluator.value_and_score(evaluator, z)


def test_the_batches_of_all_rows_average_to_all_rows(data, exact):
    z = draws_of(exact)
    evaluator = evaluator_at(data, exact.approximation.mean + 0.05)
    found = [without_looking(evaluator, z) for _ in range(N // 500)]
    values, scores = (np.mean(parts, axis=0) for parts in zip(*found, strict=True))
    wanted = plain_target(data).value_and_score(jnp.asarray(z))
    np.testing.assert_allclose(values, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-9, atol=1e-8)
    assert np.std([each[0] for each in found], axis=0).min() > 0, "each batch alone is not exact"


def test_a_random_reservoir_is_unbiased(data, exact, monkeypatch):
    monkeypatch.setattr(subsampled, "_RESERVOIR", 250)
    monkeypatch.setattr(subsampled, "_ROWS_PER_DIM", 1)
    z = draws_of(exact, width=2.0)
    wanted = plain_target(data).value_and_score(jnp.asarray(z))
    point = np.asarray(exact.approximation.mean) + 0.03
    found = [without_looking(evaluator_at(data, point, seed, 250), z) for seed in range(40)]
    for part, truth in zip(zip(*found, strict=True), wanted, strict=True):
        error = (np.mean(part, axis=0) - truth) / (np.std(part, axis=0, ddof=1) / np.sqrt(len(found)))
        assert np.abs(error).max() < 4.5  # of 160 numbers
        assert np.abs(error).max() > 0.5, "there is noise to speak of"


def test_the_anchor_cuts_the_noise_of_rows(data, exact):
    evaluator = evaluator_at(data, exact.approximation.mean)
    z, rows = jnp.asarray(draws_of(exact)), evaluator._batch_of(0)
    plain = eqx.tree_at(lambda s: s.anchor, evaluator.surrogate, None)
    noise = {}
    for name, surrogate in (("plain", plain), ("anchored", evaluator.surrogate)):
        values, scores = surrogate.by_group(rows, 10, z)
        noise[name] = float(jnp.mean(jnp.var(values, axis=0))), float(jnp.mean(jnp.var(scores, axis=0)))
    assert noise["plain"][0] > 1e6 * noise["anchored"][0]
    assert noise["plain"][1] > 1e3 * noise["anchored"][1]


def test_a_hessian_of_batches(data, exact):
    evaluator = evaluator_at(data, exact.approximation.mean + 0.1)
    weights, z = np.arange(5.0), draws_of(exact, 5)
    found = []
    for _ in range(N // 500):
        evaluator.use.calls += 1
        found.append(evaluator.weighted_hessian(weights, z))
    wanted = plain_target(data).weighted_hessian(jnp.asarray(weights), jnp.asarray(z))
    np.testing.assert_allclose(np.mean(found, axis=0), wanted, rtol=1e-10)


@pytest.fixture
def small(monkeypatch):
    """A part of these few rows is held, and a smaller part searched, as of many."""
    monkeypatch.setattr(subsampled, "_RESERVOIR", 1500)
    monkeypatch.setattr(subsampled, "_PILOT", 700)
    monkeypatch.setattr(subsampled, "_BATCH", 128)


def assert_same_posterior(fit, exact, tolerance=0.02):
    q, p = fit.approximation, exact.approximation
    np.testing.assert_allclose((q.mean - p.mean) / p.standard_deviations, 0, atol=tolerance)
    np.testing.assert_allclose(q.standard_deviations / p.standard_deviations, 1, atol=tolerance)


def test_a_fit_by_batches_is_the_fit_of_all_rows(data, exact, small, tmp_path):
    target = bures.Target.from_data(log_prior, logistic, as_memory_map(data, tmp_path), DIM, subsample=True)
    fit = bures.fit(target, key=jax.random.key(1))
    assert fit.outcome is bures.Outcome.CONVERGED
    assert_same_posterior(fit, exact)
    assert fit.diagnostics.elbo == pytest.approx(exact.diagnostics.elbo, abs=0.01)
    rows = fit.record.rows
    assert rows.total_reads <= 6
    assert target.log_density.stream.rows_read == pytest.approx(rows.total_reads * N)
    assert f"{N:,} rows, read {rows.total_reads:.2f} times" in str(fit)


def test_other_methods_and_families_by_batches(data, exact, small):
    target = subsampled_target(data)
    method = dict(objective=bures.ELBO(), estimator=bures.Price(M=50), geometry=bures.BuresWasserstein(1e-3))
    stepped = bures.fit(target, key=jax.random.key(1), init=exact.approximation, num_steps=5, **method)
    assert stepped.num_steps == 5
    assert_same_posterior(stepped, exact, 0.1)
    fit = bures.fit(target, key=jax.random.key(2), family=bures.MeanField())
    np.testing.assert_allclose((fit.approximation.mean - exact.approximation.mean) / 0.05, 0, atol=0.2)


def test_noisy_batches_run_as_elbo(data, exact, small, monkeypatch):
    monkeypatch.setattr(subsampled, "_VARIANCE", 1e-12)
    fit = bures.fit(subsampled_target(data), key=jax.random.key(1), objective=bures.IWELBO(K=5))
    assert isinstance(fit.method.objective, bures.ELBO)
    assert "the objective is the ELBO" in str(fit)
    assert_same_posterior(fit, exact)


@pytest.mark.parametrize("seed", range(4))
def test_an_init_is_no_reason_for_another_objective(data, exact, small, seed):
    """Before there is an anchor rows are noisy anywhere, whichever draws one looks at."""
    options = dict(key=jax.random.key(seed), init=exact.approximation, objective=bures.IWELBO(K=5), num_steps=1)
    fit = bures.fit(subsampled_target(data), **options)
    assert isinstance(fit.method.objective, bures.IWELBO)
    assert fit.record.rows.batch < 1500 and not fit.record.rows.note


@pytest.mark.parametrize("seed", range(4))
def test_limits_that_are_spent_at_once_leave_a_fit(data, exact, small, seed):
    options = dict(key=jax.random.key(seed), init=exact.approximation, objective=bures.IWELBO(K=5))
    fit = bures.fit(subsampled_target(data), max_seconds=1e-4, **options)
    assert fit.outcome is bures.Outcome.TIME_LIMIT
    assert fit.num_steps == 0
    assert "no look at the noise of batches: the objective is the ELBO" in str(fit)
    assert_same_posterior(fit.resume(), exact)


def test_batches_grow_and_anchors_move(data, exact, monkeypatch):
    evaluator = evaluator_at(data, np.asarray(exact.approximation.mean) + 0.8, batch=128)
    evaluator.tolerance = 1e-9
    evaluator.value_and_score(draws_of(exact))
    assert evaluator.use.anchors == 2
    np.testing.assert_allclose(evaluator.use.anchor, draws_of(exact).mean(axis=0))
    assert evaluator.use.batch == 128, "row noise is below that of draws"
    monkeypatch.setattr(subsampled, "_VARIANCE", evaluator.use.variance / 4)
    evaluator.is_weighted = True
    evaluator.value_and_score(draws_of(exact))
    assert 256 <= evaluator.use.batch <= 2048


def test_a_resumed_fit_goes_on_bit_for_bit(data, small, tmp_path):
    target = subsampled_target(data)
    options = dict(key=jax.random.key(4), tolerance=1e-12)
    whole = bures.fit(target, num_steps=6, **options)
    half = bures.fit(target, num_steps=3, **options)
    half.save(tmp_path / "half.fit")
    loaded = bures.load(tmp_path / "half.fit", target=target)
    assert isinstance(loaded.record.rows, RowsUse)
    for resumed in (half.resume(3), loaded.resume(3)):
        np.testing.assert_array_equal(resumed.approximation.mean, whole.approximation.mean)
        np.testing.assert_array_equal(resumed.approximation.chol, whole.approximation.chol)
    assert half.record.rows.calls < whole.record.rows.calls


def test_a_resumed_fit_minds_the_noise_of_its_weights(data, small, monkeypatch):
    """Batches grow for weights as they would have without a pause."""
    target = subsampled_target(data)
    options = dict(key=jax.random.key(4), objective=bures.IWELBO(K=5))
    half = bures.fit(target, num_steps=3, **options)
    assert half.record.rows.batch < 1500
    monkeypatch.setattr(subsampled, "_VARIANCE", half.record.rows.variance / 100)
    assert half.resume(80).record.rows.batch == 1500


def test_a_saved_fit_knows_its_data(data, small, tmp_path):
    fit = bures.fit(subsampled_target(data), key=jax.random.key(1))
    fit.save(tmp_path / "one.fit")
    loaded = bures.load(tmp_path / "one.fit", target=subsampled_target(data))
    assert loaded.diagnostics.elbo == fit.diagnostics.elbo
    assert loaded.record.rows == fit.record.rows
    with pytest.raises(ValueError, match="target must be the one the fit was made for"):
        bures.load(tmp_path / "one.fit", target=subsampled_target(make_data(N, seed=5)))


def test_another_mode_that_a_part_of_the_rows_shows_is_not_forgotten(small):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(3000) < 0.4, -1.5, 1.5) + rng.standard_normal(3000)

    def of_two(z, row):  # two labels, either way
        return jnp.logaddexp(-((row - z[0]) ** 2) / 2, -((row - z[1]) ** 2) / 2)

    fit = bures.fit(bures.Target.from_data(log_prior, of_two, y, 2, subsample=True), key=jax.random.key(0))
    assert fit.diagnostics.verdict.name == "SEVERAL_MODES"
    assert fit.diagnostics.coverage.missed_share == pytest.approx(0.5, abs=0.1)
    assert "saw 2 modes on a part of the rows" in str(fit)


def test_many_dimensions_have_an_anchor_of_first_order(data, exact, monkeypatch):
    monkeypatch.setattr(subsampled, "SECOND_ORDER_DIM", 1)
    monkeypatch.setattr("bures.rows.settling.SECOND_ORDER_DIM", 1)
    fit = bures.fit(subsampled_target(data), key=jax.random.key(1))
    assert_same_posterior(fit, exact, 0.05)


def test_draws_of_a_fit_by_batches(data, small, key):
    fit = bures.fit(subsampled_target(data), key=jax.random.key(1))
    assert fit.resample(key, 50).shape == (50, DIM)
    assert fit.diagnose(key, 100).elbo == pytest.approx(fit.diagnostics.elbo, abs=0.05)


def test_steps_by_batches_come_nearer_to_the_optimum_than_many_dimensions_ask_for():
    from bures.fitting import default_tolerance

    data = {"x": np.zeros((40, 30))}
    made = [
        bures.Target.from_data(lambda z: -z @ z, lambda z, row: row["x"] @ z, data, 30, subsample=subsample)
        for subsample in (True, False)
    ]
    assert [default_tolerance(target) for target in made] == [0.01, pytest.approx(0.03)]
