"""The loop: how fits end, what they record, and that stopping, resuming and watching change nothing."""

import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import box, correlated_target, regression_data

import bures
from bures.fitting import default_estimator, default_objective, default_tolerance
from bures.fitting.defaults import default_family
from bures.fitting.milestones import next_checkpoint
from bures.outcome import Outcome, bound_gain, has_converged, has_diverged, is_rising
from bures.start import Start

PAPER = {"objective": bures.ELBO(), "estimator": bures.Price(M=8), "geometry": bures.BuresWasserstein(0.3)}
ADAM = {"objective": bures.IWELBO(K=3), "estimator": bures.Reparameterised(M=8), "geometry": bures.Euclidean(0.02)}
WHITENED = {"objective": bures.IWELBO(K=3), "estimator": bures.Price(M=8), "geometry": bures.Whitened()}


@pytest.fixture(scope="module")
def target():
    return bures.models.logistic_regression(*regression_data(n=12, dim=2))


def fit(target, num_steps=30, method=PAPER, **options):
    options = {"key": jax.random.key(0), "init": bures.Gaussian.standard(target.dim), **method, **options}
    return bures.fit(target, num_steps=num_steps, **options)


def assert_same(first, second):
    """Bit for bit: every array of the fit, and how it ended."""
    parts = ("approximation", "trace", "path", "loop")
    for part in parts:
        pairs = zip(jax.tree.leaves(getattr(first, part)), jax.tree.leaves(getattr(second, part)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), part
    assert first.num_steps == second.num_steps


def test_converges_by_itself_on_an_easy_target(key):
    target = correlated_target()
    result = bures.fit(target, key=key)
    assert result.outcome is Outcome.CONVERGED
    assert result.num_steps < 500
    assert np.linalg.norm(result.approximation.mean - target.mean) < 0.1
    np.testing.assert_allclose(result.approximation.covariance, target.covariance, atol=0.15)


def test_resume_goes_on_after_convergence(key):
    result = bures.fit(correlated_target(), key=key)
    more = result.resume(7)
    assert more.num_steps == result.num_steps + 7
    assert more.trace.bound.shape == (more.num_steps,)


def test_stops_before_num_steps_only_with_a_tolerance(target):
    exact = fit(target, 250, WHITENED)
    assert exact.num_steps == 250
    early = fit(target, 250, WHITENED, tolerance=0.5)
    assert early.outcome is Outcome.CONVERGED
    assert early.num_steps < 250
    np.testing.assert_array_equal(early.trace.bound, exact.trace.bound[: early.num_steps])


def test_max_steps_and_what_to_do(target):
    result = fit(target, 12, ADAM)
    assert result.outcome is Outcome.MAX_STEPS
    assert "resume" in str(result.outcome)
    assert result.num_steps == 12
    assert "12 steps" in str(result)


def test_trace_and_counters(target):
    result = fit(target, 23, ADAM)
    for name in result.trace.names:
        assert result.trace[name].shape == (23,), name
        assert isinstance(result.trace[name], np.ndarray)
    assert np.all(result.trace.finite)
    assert np.all(result.trace.min_eigenvalue > 0)
    assert result.num_log_density_evaluations == 23 * 24
    assert result.num_gradients == 23 * 24
    assert result.num_hessians == 0
    with pytest.raises(KeyError, match="grad_norm"):
        result.trace["gradient"]
    assert 0 < np.sum(result.trace.clipped) <= 23
    assert result.diagnose(jax.random.key(1), 100).clip_rate == np.mean(result.trace.clipped)
    assert result.diagnose(jax.random.key(1), 100).min_eigenvalue == np.min(result.trace.min_eigenvalue)


def test_min_eigenvalue_is_that_of_the_covariance_after_the_step(target):
    result = fit(target, 20)
    expected = np.linalg.eigvalsh(result.approximation.covariance)[0]
    np.testing.assert_allclose(result.trace.min_eigenvalue[-1], expected, rtol=1e-10)


def test_path_keeps_the_milestones(target):
    result = fit(target, 30)
    assert [step for step, _ in result.path] == [0, 1, 2, 5, 10, 20]
    assert np.array_equal(result.path[0][1].mean, np.zeros(2))
    shorter = fit(target, 10)
    assert np.array_equal(result.path[4][1].chol, shorter.approximation.chol)
    resumed = shorter.resume(20)
    assert [step for step, _ in resumed.path] == [0, 1, 2, 5, 10, 20]


@pytest.mark.parametrize("method", [PAPER, ADAM, WHITENED], ids=["paper", "adam", "whitened"])
def test_resumed_is_uninterrupted_bit_for_bit(method, target):
    whole = fit(target, 30, method)
    assert_same(fit(target, 13, method).resume(17), whole)
    assert_same(fit(target, 1, method).resume(4).resume(20).resume(5), whole)


def test_chunks_do_not_matter(target, monkeypatch):
    whole = fit(target, 130)
    monkeypatch.setattr(sys.modules["bures.fitting.driver"], "_RESPONSE", 0.0)  # one step a call
    assert_same(fit(target, 130), whole)


def test_callback_sees_every_checkpoint_and_stops_the_fit(target):
    seen = []

    def callback(step, q, info):
        seen.append((step, q, info))
        return step >= 20

    result = fit(target, 300, callback=callback)
    assert [step for step, _, _ in seen] == [1, 2, 5, 10, 20]
    assert result.outcome is Outcome.INTERRUPTED
    assert result.num_steps == 20
    assert result.trace.bound.shape == (20,)
    assert seen[-1][2]["bound"] == result.trace.bound[-1]
    assert np.array_equal(seen[3][1].mean, result.path[4][1].mean)
    assert_same(result.resume(10).resume(1), fit(target, 31))


def test_checkpoints_are_milestones_and_hundreds():
    assert [next_checkpoint(count) for count in (0, 1, 2, 5, 10, 99, 100, 200, 250, 1000)] == [
        *(1, 2, 5, 10, 20, 100, 200, 300, 300, 1100)
    ]


def test_keyboard_interrupt_keeps_the_best_so_far(target):
    def callback(step, q, info):
        if step == 10:
            raise KeyboardInterrupt

    result = fit(target, 300, callback=callback)
    assert result.outcome is Outcome.INTERRUPTED
    assert result.num_steps == 10
    assert result.trace.bound.shape == (10,)
    best = int(np.argmax(result.trace.bound))
    assert result.loop.best_bound == result.trace.bound[best]
    at_best = fit(target, best) if best else fit(target, 1).path[0][1]
    at_best = at_best.approximation if best else at_best
    assert np.array_equal(result.approximation.mean, at_best.mean)
    assert_same(result.resume(20), fit(target, 30))


def test_a_real_interrupt_signal_ends_the_fit_with_its_trace(target):
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])

    def callback(step, q, info):
        if step == 100:
            timer.start()  # the loop is running: the signal falls into it

    # The workers of pytest-xdist ignore the signal unless told otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = fit(target, 200_000, callback=callback)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.outcome is Outcome.INTERRUPTED
    assert 100 <= result.num_steps < 200_000
    assert result.trace.bound.shape == (result.num_steps,)
    assert np.all(np.isfinite(result.approximation.chol))
    assert result.resume(3).num_steps == result.num_steps + 3


def test_non_finite_keeps_the_best_gaussian():
    """The density is NaN beyond 2.5, and the optimum lies there: the fit walks into it."""
    target = bures.Target(lambda z: jnp.where(z[0] > 2.5, jnp.nan, -jnp.sum((z - 4) ** 2) / 2), 2)
    start = bures.Gaussian(jnp.zeros(2), 0.2 * jnp.eye(2))
    result = fit(target, 200, init=start)
    assert result.outcome is Outcome.NON_FINITE
    assert "from_variables" in str(result.outcome)
    assert 0 < result.num_steps < 200
    assert result.trace.bound.shape == (result.num_steps,)
    assert np.all(result.trace.finite)
    assert result.loop.best_bound == np.max(result.trace.bound)
    assert 0 < result.approximation.mean[0] < 2.5
    assert result.num_log_density_evaluations == 8 * (result.num_steps + 1)


def test_a_support_is_respected_by_importance_weights(key):
    """Draws outside the support weigh nothing; only a tuple without any inside ends a fit."""
    method = {"objective": bures.IWELBO(K=50), "estimator": bures.Price(M=8), "geometry": bures.BuresWasserstein(0.5)}
    result = fit(bures.Target(box, 1), 40, method)
    assert result.outcome in (Outcome.MAX_STEPS, Outcome.CONVERGED)
    elbo = fit(bures.Target(box, 1), 40, PAPER, init=bures.Gaussian(jnp.zeros(1), 2 * jnp.eye(1)))
    assert elbo.outcome is Outcome.ZERO_DENSITY and elbo.resume(3).outcome is Outcome.ZERO_DENSITY
    assert elbo.num_steps == 0
    assert elbo.approximation.chol[0, 0] == 2


@pytest.mark.parametrize("family", [bures.FullRank(), bures.MeanField(), bures.LowRank()])
def test_an_edge_ends_a_fit_with_the_cause_and_its_weights_are_right(family, key):
    """A Gaussian cut off half a standard deviation below its middle."""
    target = bures.Target(lambda z: jnp.where(z[0] > -0.5, -(z @ z) / 2, -jnp.inf), 2)
    result = bures.fit(target, key=key, objective=bures.ELBO(), family=family)
    assert result.outcome is Outcome.ZERO_DENSITY and "from_variables" in str(result.outcome)
    assert result.diagnostics.trustworthy and "where the density is zero" in str(result)
    draws = np.asarray(result.resample(key, 10_000))
    np.testing.assert_allclose(draws.mean(axis=0), [0.509, 0], atol=0.05)
    np.testing.assert_allclose(draws.std(axis=0), [0.697, 1], rtol=0.05)


def test_an_edge_under_jit(key):
    @jax.jit
    def run(key):
        start = bures.Gaussian(jnp.zeros(1), 2 * jnp.eye(1))
        return fit(bures.Target(box, 1), 5, init=start, objective=bures.ELBO()).outcome_code

    assert int(run(key)) == Outcome.ZERO_DENSITY.value


def test_nan_everywhere_returns_the_start():
    start = bures.Gaussian(jnp.ones(2), 3 * jnp.eye(2))
    result = fit(bures.Target(lambda z: jnp.nan * z[0], 2), 10, init=start)
    assert result.outcome is Outcome.NON_FINITE
    assert result.num_steps == 0
    assert result.trace.bound.shape == (0,)
    assert np.array_equal(result.approximation.mean, start.mean)
    assert result.diagnose(jax.random.key(0), 100).khat == np.inf
    with pytest.raises(ValueError, match="positive"):
        result.resample(jax.random.key(0), 10)
    with pytest.raises(ValueError, match=r"K must be so large .* got '10 without'"):
        result.resample(jax.random.key(0), 10, K=20)


def test_candidates_outside_the_support_are_not_drawn(key):
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -(z @ z) / 2, -jnp.inf), 2)
    result = fit(half, 1, init=bures.Gaussian.standard(2), geometry=bures.BuresWasserstein(1e-9))
    assert np.all(np.asarray(result.resample(key, 200, K=40))[:, 0] > 0)
    with pytest.raises(ValueError, match="Raise K"):  # a quarter of all pairs are outside
        result.resample(key, 200, K=2)


def test_huge_steps_end_with_a_good_gaussian(target):
    result = fit(target, 300, geometry=bures.BuresWasserstein(1e6))
    assert result.outcome in (Outcome.DIVERGED, Outcome.NON_FINITE)
    assert "smaller step size" in str(result.outcome)
    start = bures.Gaussian.standard(2)
    assert np.max(np.abs(result.approximation.mean - start.mean)) < 10


def test_resample_has_the_moments_of_the_target(key):
    target = bures.models.gaussian(2, condition_number=4.0)
    off = bures.Gaussian(jnp.array([0.3, 0.0]), 1.3 * jnp.eye(2))
    result = fit(target, 1, init=off, geometry=bures.BuresWasserstein(1e-9))
    for draws in (result.resample(key, 4000), result.resample(key, 4000, K=200)):
        assert draws.shape == (4000, 2)
        np.testing.assert_allclose(np.mean(draws, axis=0), 0, atol=0.1)
        np.testing.assert_allclose(np.cov(np.asarray(draws).T), target.covariance, atol=0.12)


# ---- the rules of stopping


def noise(size, scale, seed=0):
    return scale * np.random.default_rng(seed).standard_normal(size)


@pytest.mark.parametrize("seed", range(5))
def test_a_plateau_converges_only_when_its_noise_is_small_enough(seed):
    """The standard error of the gain over 1000 steps of noise σ is σ sqrt(2/250): 2 of them against the tolerance."""
    assert has_converged(5 + noise(1000, 0.1, seed), tolerance=0.05)
    assert not has_converged(5 + noise(1000, 3.0, seed), tolerance=0.05)
    assert has_converged(5 + noise(1000, 3.0, seed), tolerance=3.0)


def test_gain_is_from_the_third_quarter_to_the_last():
    gain, error = bound_gain(np.repeat([9.0, 7.0, 1.0, 1.5], 100))
    assert gain == pytest.approx(0.5)
    assert error == 0
    assert bound_gain(np.zeros(10)) == (np.inf, np.inf)
    _, measured = bound_gain(noise(40_000, 1.0))
    assert measured == pytest.approx(np.sqrt(2 / 10_000), rel=0.6)


def test_rising_falling_and_short_runs_are_not_converged():
    rising = np.linspace(0, 1, 400)
    assert not has_converged(rising + noise(400, 0.01), tolerance=0.05)
    assert not has_converged(-rising + noise(400, 0.01), tolerance=0.05)
    assert has_converged(rising, tolerance=0.5)
    assert not has_converged(np.zeros(199), tolerance=0.05)
    assert has_converged(np.zeros(200), tolerance=0.05)


def test_autocorrelated_noise_is_not_mistaken_for_a_plateau():
    """A random walk wanders by more than its steps: batches see that where single steps would not."""
    walk = np.cumsum(noise(1000, 0.05))
    assert not has_converged(walk, tolerance=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_that_rises_where_gaps_are_small_has_not_settled(seed):
    """A stretch of 60 steps with small gaps, in which the bound rises by 0.03 a step: 0.6 nats from third to third."""
    gaps = np.concatenate([np.full(10, 50.0), np.full(60, 0.1)])
    rising = np.concatenate([np.linspace(-900, -850, 10), -850 + 0.03 * np.arange(60)])
    assert is_rising(rising + noise(70, 0.2, seed), gaps, tolerance=0.05)
    assert not is_rising(rising + noise(70, 0.2, seed), gaps, tolerance=1.0)
    assert not is_rising(rising + noise(70, 20.0, seed), gaps, tolerance=0.05)  # noise could do that
    assert not is_rising(np.where(gaps < 1, -850, rising) + noise(70, 0.2, seed), gaps, tolerance=0.05)
    assert not is_rising(rising, np.where(np.arange(70) < 60, 50.0, 0.1), tolerance=0.05)  # a fit that has just arrived
    assert not is_rising(rising, np.full(70, np.nan), tolerance=0.05)


def test_a_fit_goes_on_while_its_bound_rises(target, monkeypatch):
    begun = bures.fit(target, key=jax.random.key(0), family=bures.MeanField(), progress=False)
    monkeypatch.setattr("bures.fitting.driver.is_rising", lambda bounds, *_: bounds.size < begun.num_steps + 5)
    longer = bures.fit(target, key=jax.random.key(0), family=bures.MeanField(), progress=False)
    assert longer.outcome is Outcome.CONVERGED
    assert longer.num_steps >= begun.num_steps + 5
    assert np.array_equal(longer.trace.bound[: begun.num_steps], begun.trace.bound)


def test_divergence_is_a_large_fall_that_lasts():
    good = np.full(50, -3.0)
    assert not has_diverged(good)
    assert not has_diverged(np.concatenate([good, np.full(5, -1e6)]))
    assert has_diverged(np.concatenate([good, np.full(10, -1e6)]))
    assert not has_diverged(np.concatenate([np.full(50, -1e7), good]))
    assert not has_diverged(np.array([0.0]))


def test_huge_bounds_raise_no_warning():
    """Warnings are errors here: the rules must not overflow on the bounds of a runaway fit."""
    bounds = np.geomspace(1, 1e300, 400)
    assert not has_converged(bounds, tolerance=0.05)
    assert not has_diverged(bounds)
    assert has_diverged(-bounds)


def test_every_outcome_says_what_to_do():
    for outcome in Outcome:
        assert str(outcome).startswith(outcome.name)
        assert any(word in outcome.message.lower() for word in ("check", "continue", "take", "resume"))


# ---- Nothing set ----------------------------------------------------------------------------------------------------


def test_defaults_follow_the_dimension():
    small, large = (bures.Target(lambda z: -z @ z, dim) for dim in (3, 80))
    assert default_objective(small) == bures.IWELBO(K=10)
    assert default_objective(large) == bures.VRIWAE(K=10, alpha=0.9375)
    assert default_estimator(small, bures.IWELBO(K=10)).M == 40
    assert default_estimator(small, bures.IWELBO(K=200)).M == 40
    assert default_estimator(small, bures.ELBO()).M == 400
    assert default_estimator(small, bures.ELBO(), variance=0.3).M == 100
    assert (
        default_estimator(small, bures.ELBO(), variance=0.4).M
        == default_estimator(small, bures.ELBO(), np.nan).M
        == 400
    )
    assert default_estimator(large, bures.IWELBO(K=10)).M == 80
    assert default_tolerance(small) == 0.005 < default_tolerance(large) == 0.08


def test_a_fit_that_may_not_be_trusted_says_so_whenever_it_is_printed(key):
    good = bures.fit(bures.models.gaussian(2), key=key)
    assert good.outcome is bures.Outcome.CONVERGED
    assert "k̂" not in str(good)
    heavy = bures.fit(bures.models.funnel(dim=5), key=key)
    assert heavy.outcome is bures.Outcome.CONVERGED
    assert "But k̂" in str(heavy)


@pytest.mark.parametrize("K", [10, 200])
def test_a_start_far_too_wide_needs_few_steps_at_every_size_of_tuple(K):
    """The paper's regression start, N(0, 5 I), on fewer data: within a tenth of a nat of Laplace's fit in ten steps."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(200), rng.standard_normal((200, 2))])
    y = rng.random(200) < 1 / (1 + np.exp(-X @ np.array([1.04, 0.61, -1.25])))
    target = bures.models.logistic_regression(X, y)
    wide = bures.Gaussian(jnp.zeros(3), jnp.sqrt(5.0) * jnp.eye(3))
    estimator = bures.Stein(M=100, draws="antithetic", permutations=8)
    options = dict(objective=bures.IWELBO(K=K), estimator=estimator, init=wide)
    fit = bures.fit(target, key=jax.random.key(0), num_steps=10, **options)
    assert float(fit.approximation.kl(bures.laplace(target))) < 0.1


# ---- The family by default ------------------------------------------------------------------------------------------


def test_the_start_may_say_that_low_rank_is_enough():
    def chosen(dim, left_out):
        target = bures.Target(lambda z: -z @ z, dim)
        return default_family(target, None, Start(bures.Gaussian.standard(dim), left_out=left_out))

    assert isinstance(chosen(200, 0.1), bures.LowRank)
    assert isinstance(chosen(200, 0.3), bures.FullRank)  # more than the tolerance of 0.2 nats
    assert isinstance(chosen(200, np.inf), bures.FullRank)
    assert isinstance(chosen(80, 0.0), bures.FullRank)  # few draws are no gain there
    assert isinstance(chosen(500, np.inf), bures.LowRank)


def test_low_rank_where_it_is_enough_loses_nothing(key):
    effects = np.random.default_rng(1).standard_normal((120, 1))
    y = effects + np.random.default_rng(2).standard_normal((120, 8))

    def log_density(z):
        mean, log_spread, effects = z[0], z[1], z[2:]
        prior = -jnp.sum((effects - mean) ** 2) / (2 * jnp.exp(2 * log_spread)) - 120 * log_spread
        return prior - jnp.sum((y - effects[:, None]) ** 2) / 2 - (mean**2 + log_spread**2) / 2

    target = bures.Target(log_density, 122)
    by_itself = bures.fit(target, key=key)
    full = bures.fit(target, key=key, family=bures.FullRank())
    assert isinstance(by_itself.approximation, bures.LowRankGaussian)
    assert isinstance(full.approximation, bures.Gaussian)
    assert by_itself.diagnostics.elbo > full.diagnostics.elbo - 0.1
    # What is said to the fit in other ways leaves the family as it was.
    short = bures.fit(target, key=key, num_steps=2)
    assert isinstance(short.approximation, bures.Gaussian)


def test_dtype_follows_the_initial_mean_on_the_host():
    target = bures.Target(lambda z: -jnp.sum((z - 1) ** 4) / 2, dim=3)
    init = bures.Gaussian(jnp.zeros(3, jnp.float32), jnp.eye(3, dtype=jnp.float32))
    fit = bures.fit(target, key=jax.random.key(0), init=init)
    assert fit.num_steps > 4
    kinds = {part.dtype for part in (fit.approximation.mean, fit.approximation.chol, fit.loop.state.geometry.delay)}
    assert kinds == {jnp.dtype(jnp.float32)}
