"""Limits of a fit: it ends with the best so far, and one that ends by itself is the same with and without them."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures import Outcome, storage
from bures.archive import FileError, pack, unpack
from bures.budget import BudgetSpent
from bures.diagnostics import Verdict
from bures.engine import Evaluator
from bures.fitting import judgement
from bures.mixing import rounds

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


@pytest.mark.parametrize("limit", [21_000, 23_000, 25_000, 27_000])
def test_what_a_judgement_that_was_cut_short_took_is_counted(monkeypatch, limit):
    called, call = [], Evaluator._call
    monkeypatch.setattr(Evaluator, "_call", lambda self, z: called.append(len(z)) or call(self, z))
    fit = bures.fit(EGGBOX, key=KEY, max_evaluations=limit)
    assert fit.num_log_density_evaluations == sum(called)


def test_modes_that_were_seen_are_named_though_the_walk_after_them_is_cut_short(monkeypatch, tmp_path):
    def cut(*_):
        raise BudgetSpent("Nothing is left.")

    target = bures.Target(lambda z: jnp.logaddexp(-jnp.sum((z - 8) ** 2) / 2, -jnp.sum((z + 8) ** 2) / 2), 2)
    whole = bures.fit(target, key=KEY)
    monkeypatch.setattr(judgement, "look_beyond", cut)
    fit = bures.fit(target, key=KEY, max_evaluations=10**6)
    assert whole.diagnostics.verdict is fit.diagnostics.verdict is Verdict.SEVERAL_MODES
    assert fit.diagnostics.coverage.reach > 0
    fit.save(tmp_path / "fit")
    assert str(bures.load(tmp_path / "fit", target=target)) == str(fit)


@pytest.mark.parametrize("geometry", [None, bures.BuresWasserstein(step_size=0.5)], ids=["whitened", "transport"])
def test_the_compiled_loop_keeps_its_limits_too(geometry, tmp_path):
    options = dict(key=KEY, geometry=geometry, init=bures.Gaussian(jnp.zeros(2), jnp.eye(2)), num_steps=40)
    whole = bures.fit(EGGBOX, **options)
    limit, path = whole.num_log_density_evaluations // 2, tmp_path / "fit"
    limited = bures.fit(EGGBOX, max_evaluations=limit, checkpoint=path, **options)
    assert limited.outcome is Outcome.EVALUATION_LIMIT
    assert 0 < limited.num_steps < 40 and limited.num_log_density_evaluations <= limit
    assert_same(bures.load(path, target=EGGBOX).resume(), whole)


class Killed(BaseException):
    """What ends a fit as a kill does: nothing of the library takes it for its own."""


def test_a_killed_fit_goes_on_from_its_checkpoint(whole, tmp_path):
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


BANANA = bures.models.banana(b=0.1, dim=3)


@pytest.fixture(scope="module")
def mixed():
    return bures.fit(BANANA, key=KEY, family=bures.Mixture())


@pytest.mark.parametrize("limit", [500, 8000, 12000])
def test_the_rounds_of_a_mixture_go_on_as_if_nothing_had_happened(mixed, limit, tmp_path):
    path = tmp_path / "fit"
    limited = bures.fit(BANANA, key=KEY, family=bures.Mixture(), max_evaluations=limit, checkpoint=path)
    assert limited.outcome is Outcome.EVALUATION_LIMIT and limited.num_steps < mixed.num_steps
    assert (limited.num_steps > 0) == (limit > 500)  # the smallest ends the start: then all is done again
    assert_same(limited.resume(), mixed)
    assert_same(bures.load(path, target=BANANA).resume(), mixed)


def test_a_mixture_can_be_stopped_and_killed_between_rounds(mixed, tmp_path):
    def callback(step, q, info):
        if step == 4:
            assert q.num_components >= 1 and 0 < info["ness"] <= 1
            raise Killed

    options = dict(key=KEY, family=bures.Mixture())
    with pytest.raises(Killed):
        bures.fit(BANANA, checkpoint=tmp_path / "fit", every=0, callback=callback, **options)
    kept = bures.load(tmp_path / "fit", target=BANANA)
    assert kept.outcome is Outcome.INTERRUPTED and kept.num_steps == 4
    again = kept.resume(callback=lambda step, q, info: step == 7)
    assert again.outcome is Outcome.INTERRUPTED and again.num_steps == 7
    assert_same(again.resume(), mixed)
    assert mixed.record.pause is None and again.resume(num_steps=2).num_steps == 9  # other steps, from here


def test_an_interrupt_within_a_round_goes_on_from_the_last_one(mixed, monkeypatch):
    calls, draw = [], rounds.draw_batch

    def interrupted(*arguments):
        batch = draw(*arguments)
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return batch

    monkeypatch.setattr(rounds, "draw_batch", interrupted)
    half = bures.fit(BANANA, key=KEY, family=bures.Mixture())
    assert half.outcome is Outcome.INTERRUPTED and half.num_steps == 5 and half.record.cut_evaluations > 0
    whole = half.resume()
    leaves = [jax.tree.leaves((fit.approximation, fit.trace, fit.path, fit.draws().log_p)) for fit in (whole, mixed)]
    assert all(np.array_equal(*pair) for pair in zip(*leaves, strict=True))
    assert sum(whole.evaluations) == sum(mixed.evaluations) + half.record.cut_evaluations


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    path = tmp_path_factory.mktemp("paused") / "fit"
    bures.fit(BANANA, key=KEY, family=bures.Mixture(), max_evaluations=8000, checkpoint=path)
    return unpack(path, (str(storage._VERSION),))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("counts", lambda x: x[:3]),
        ("counts", lambda x: -x),
        ("lengths", lambda x: x + 1),
        ("generator", lambda x: x + np.uint64(2**40)),
        ("rounds", lambda x: x[1:]),
        ("z", lambda x: x * np.nan),
        ("z", lambda x: x.astype(np.float32)),
        ("log_p", lambda x: x + 1),
        ("score", lambda x: x[:-1]),
        ("sizes", lambda x: x * 2),
        ("q_0.chols", lambda x: -x),
        ("proposal_0.means", lambda x: x[:, :-1]),
        ("unknown", None),
    ],
)
def test_a_pause_that_does_not_hold_together_is_refused(name, change, paused, tmp_path):
    (version, description, arrays), path = paused, tmp_path / "fit"
    name = f"pause/{name}"
    arrays = dict(arrays) | {name: np.zeros(3) if change is None else change(arrays[name])}
    arrays.pop("description", None)
    path.write_bytes(pack(version, json.dumps(description), arrays))
    with pytest.raises(FileError):
        bures.load(path, target=BANANA)


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


def test_few_draws_are_no_heavy_tails():
    """A fit that is right, but of which the limits left a few draws only, is not said to be wrong."""
    fit = bures.fit(lambda z: -0.5 * jnp.sum(z**2), dim=2, key=KEY, max_evaluations=100)
    assert 25 <= fit.diagnostics.num_samples < 50
    assert fit.diagnostics.verdict is Verdict.UNJUDGED and "heavy" not in fit.diagnostics.message
