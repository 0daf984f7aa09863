"""Limits of a fit: it ends with the best so far, and one that ends by itself is the same with and without them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures import Outcome
from bures.diagnostics import Verdict

KEY = jax.random.key(0)
EGGBOX = bures.models.eggbox()


def assert_same(one, other):
    leaves = [jax.tree.leaves((fit.approximation, fit.trace, fit.loop)) for fit in (one, other)]
    assert all(np.array_equal(*pair) for pair in zip(*leaves, strict=True))
    assert one.outcome is other.outcome
    assert str(one.diagnostics) == str(other.diagnostics)
    assert one.evaluations == other.evaluations


@pytest.fixture(scope="module")
def whole():
    return bures.fit(EGGBOX, key=KEY)


def test_limits_that_are_not_met_change_nothing(whole, tmp_path):
    path = tmp_path / "fit"
    limits = dict(max_seconds=1000, max_evaluations=10**6, checkpoint=path, every=0)
    assert_same(bures.fit(EGGBOX, key=KEY, **limits), whole)
    assert_same(bures.load(path, target=EGGBOX), whole)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("limit", [30, 700, 3000, 6000, 15000])
def test_evaluations_are_never_more_than_allowed_and_resume_finishes_the_fit(whole, limit, tmp_path):
    limited = bures.fit(EGGBOX, key=KEY, max_evaluations=limit)
    assert limited.outcome is Outcome.EVALUATION_LIMIT
    assert 0.9 * limit <= limited.num_log_density_evaluations <= limit
    assert np.all(np.isfinite(limited.approximation.covariance))
    assert_same(bures.fit(EGGBOX, key=KEY, max_evaluations=limit, max_seconds=1000), limited)
    if limited.num_steps:
        limited.save(tmp_path / "fit")
        assert_same(bures.load(tmp_path / "fit", target=EGGBOX).resume(), whole)


@pytest.mark.parametrize("geometry", [None, bures.BuresWasserstein(step_size=0.5)], ids=["whitened", "transport"])
def test_the_compiled_loop_keeps_its_limits_too(geometry, tmp_path):
    options = dict(key=KEY, geometry=geometry, init=bures.Gaussian(jnp.zeros(2), jnp.eye(2)), num_steps=40)
    whole = bures.fit(EGGBOX, **options)
    limit, path = whole.num_log_density_evaluations // 2, tmp_path / "fit"
    limited = bures.fit(EGGBOX, max_evaluations=limit, checkpoint=path, **options)
    assert limited.outcome is Outcome.EVALUATION_LIMIT
    assert 0 < limited.num_steps < 40 and limited.num_log_density_evaluations <= limit
    assert_same(bures.load(path, target=EGGBOX).resume(), whole)


def test_a_killed_fit_goes_on_from_its_checkpoint(whole, tmp_path):
    class Killed(BaseException):
        pass

    def callback(step, q, info):
        if step == 10:
            raise Killed

    with pytest.raises(Killed):
        bures.fit(EGGBOX, key=KEY, callback=callback, checkpoint=tmp_path / "fit", every=0)
    kept = bures.load(tmp_path / "fit", target=EGGBOX)
    assert kept.outcome is Outcome.INTERRUPTED and 0 < kept.num_steps <= 10
    assert_same(kept.resume(checkpoint=tmp_path / "fit"), whole)
    assert_same(bures.load(tmp_path / "fit", target=EGGBOX), whole)
    assert whole.resume() is whole  # there is nothing to finish


def test_a_mixture_ends_with_what_it_has(tmp_path):
    options = dict(key=KEY, family=bures.Mixture(), checkpoint=tmp_path / "fit", every=0)
    for limit, components in [(50, 1), (9000, 4)]:
        limited = bures.fit(EGGBOX, max_evaluations=limit, **options)
        assert limited.outcome is Outcome.EVALUATION_LIMIT
        assert limited.num_log_density_evaluations <= limit
        assert limited.approximation.num_components == components
        assert_same(bures.load(tmp_path / "fit", target=EGGBOX), limited)
        with pytest.raises(ValueError, match="num_steps must be given"):
            limited.resume()


def slow_density(seconds):
    def evaluate(z):
        time.sleep(seconds)
        return np.asarray(-np.sum(z**2) / 2, z.dtype)

    @jax.custom_jvp
    def log_density(z):
        return jax.pure_callback(evaluate, jax.ShapeDtypeStruct((), z.dtype), z, vmap_method="sequential")

    @log_density.defjvp
    def _(primals, tangents):
        return log_density(*primals), -primals[0] @ tangents[0]

    return log_density


@pytest.mark.parametrize("family", [None, bures.MeanField(), bures.Mixture()], ids=str)
def test_a_slow_density_ends_near_the_limit_even_during_the_start(family):
    began = time.perf_counter()
    fit = bures.fit(slow_density(0.1), dim=3, key=KEY, family=family, max_seconds=0.5)
    text, seconds = str(fit), time.perf_counter() - began  # to print it takes no evaluations either
    assert fit.outcome is Outcome.TIME_LIMIT
    assert fit.diagnostics.verdict is Verdict.UNJUDGED and not fit.diagnostics.trustworthy
    assert "Not judged" in text
    assert 1 <= fit.num_log_density_evaluations < 25
    assert seconds < 20  # a thousand points would take 100, those of the start alone 400


def test_what_cannot_be_done_within_the_limits_is_said():
    with pytest.raises(ValueError, match=r"max_evaluations must be enough for one look.*Raise it"):
        bures.fit(lambda z: jnp.log(-1 - jnp.sum(z**2)), dim=2, key=KEY, max_evaluations=50)
    for wrong in [dict(max_seconds=0), dict(max_evaluations=1.5), dict(every=-1, checkpoint="x"), dict(every=3)]:
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
            bures.fit(EGGBOX, key=KEY, **wrong)
    for path in (3, "", "no/such/folder/fit", "."):
        with pytest.raises(ValueError, match=r"^checkpoint must be"):
            bures.fit(EGGBOX, key=KEY, checkpoint=path)
    with pytest.raises(ValueError, match="left out under jit"):
        jax.jit(lambda key: bures.fit(EGGBOX, key=key, num_steps=3, max_seconds=1.0).approximation)(KEY)
