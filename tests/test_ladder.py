"""The ladder: each rung against known moments and evidence, and what `sample` says when none passes."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bures
from bures.budget import Budget, BudgetSpent
from bures.engine import evaluator_of
from bures.ladder import climb
from bures.ladder.base import Base
from bures.ladder.chains import measure
from bures.ladder.hmc import Path, first_step_size
from bures.ladder.modes import search_around
from bures.ladder.nuts import run_nuts
from bures.ladder.result import choose_balanced
from bures.ladder.smc import CHAINS, _fitted_frame, run_smc
from bures.support import Positive

SCALES = jnp.array([0.5, 1.0, 2.0, 4.0])
LOG_EVIDENCE = 1.5  # that the skewed target below is given


def _skewed(z):
    """Log gammas of shape 3, which are skewed, in units of their own: moments and evidence are known."""
    x = z / SCALES
    return jnp.sum(3 * x - jnp.exp(x) - jax.scipy.special.gammaln(3.0) - jnp.log(SCALES)) + LOG_EVIDENCE


MEAN = np.asarray(SCALES) * float(jax.scipy.special.digamma(3.0))
DEVIATION = np.asarray(SCALES) * math.sqrt(float(jax.scipy.special.polygamma(1, 3.0)))


@pytest.fixture(scope="module")
def skewed() -> bures.Target:
    return bures.Target(_skewed, 4)


@pytest.fixture(scope="module")
def poor() -> bures.Gaussian:
    """A Gaussian that is off by two standard deviations and too narrow: a few temperatures away."""
    return bures.Gaussian(jnp.asarray(MEAN - 2 * DEVIATION), jnp.diag(jnp.asarray(DEVIATION) / 2))


def _two_modes(z, gap=40.0):
    centre = jnp.zeros_like(z).at[0].set(gap / 2)
    return jnp.logaddexp(-jnp.sum((z - centre) ** 2) / 2, -jnp.sum((z + centre) ** 2) / 2)


def _wild(z):
    """A funnel so steep that no rung is right about it."""
    return -(z[0] ** 2) / 2 / 100 - jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 - 9 * z[0] / 2


def assert_moments(z, mean, deviation, effective):
    """Means and standard deviations within four standard errors of so many effective draws."""
    z = np.asarray(z).reshape(-1, len(mean))
    assert np.max(np.abs(z.mean(axis=0) - mean) / deviation) < 4 / math.sqrt(effective)
    assert np.max(np.abs(z.std(axis=0) / deviation - 1)) < 4 * 1.2 / math.sqrt(effective)


# ---- The parts ------------------------------------------------------------------------------------------------------


def test_smc_finds_moments_and_evidence_from_a_poor_base(skewed, poor):
    found = [
        run_smc(np.random.default_rng(seed), evaluator_of(skewed, True), Base(poor), wanted=1000, limit=10**6)
        for seed in range(6)
    ]
    assert all(each.temperatures[-1] == 1 and len(each.temperatures) > 2 for each in found)
    for each in found:
        assert each.precision is not None and each.precision.is_enough(1000)
        assert_moments(each.states, MEAN, DEVIATION, each.precision.effective)
    errors = np.array([(each.log_evidence - LOG_EVIDENCE) / each.log_evidence_error for each in found])
    assert np.max(np.abs(errors)) < 4 and math.sqrt(np.mean(errors**2)) < 2.5
    assert all(0 < each.log_evidence_error < 0.3 for each in found)


def test_copies_of_one_draw_leave_the_frame_as_it_is():
    frame, weights = np.array([[1.0, 0.0], [0.5, 2.0]]), np.full(400, 1 / 400)
    frozen = _fitted_frame(np.tile([3.0, -1.0], (400, 1)), weights, frame)
    np.testing.assert_allclose(frozen, 0.2 * frame)  # no further than one step may narrow it
    z = np.random.default_rng(0).standard_normal((400, 2)) @ frame.T
    np.testing.assert_allclose(_fitted_frame(z, weights, np.eye(2)), frame, atol=0.3)


def test_every_evaluation_of_smc_is_counted(skewed, poor):
    points = 0

    class Counting:
        smooth = True

        def __call__(self, z):
            return _skewed(z)

        def values_and_scores_on_host(self, z):
            nonlocal points
            points += len(z)
            x = z / np.asarray(SCALES)
            values = np.sum(3 * x - np.exp(x), axis=1)
            return values, (3 - np.exp(x)) / np.asarray(SCALES)

    evaluator = evaluator_of(bures.Target(Counting(), 4), True)
    budget = Budget()
    run_smc(np.random.default_rng(0), budget.watch(evaluator), Base(poor), wanted=500, limit=10**6)
    assert points == evaluator.count == budget.count


def test_base_of_several_members_is_their_mixture():
    members = [bures.Gaussian(jnp.array([shift, 0.0]), jnp.eye(2)) for shift in (-3.0, 3.0)]
    base = Base(members[0], members[1:])
    z = base.draw(np.random.default_rng(0), 1001)
    assert abs(int(np.sum(z[:, 0] > 0)) - 500) < 10

    def log_prob(x):
        return jax.nn.logsumexp(jnp.stack([q.log_prob(x) for q in members])) - math.log(2)

    values, scores = base.value_and_score(z[:5])
    np.testing.assert_allclose(values, jax.vmap(log_prob)(jnp.asarray(z[:5])), rtol=1e-4)
    np.testing.assert_allclose(scores, jax.vmap(jax.grad(log_prob))(jnp.asarray(z[:5])), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("t", [0.5, 1.0])
def test_transitions_leave_the_tempered_density_as_it_is(t):
    target = bures.Target(lambda z: -jnp.sum((z - 2) ** 2) / 2, 2)  # N(2, 1); tempered with N(0, 1): N(2 t, 1)
    base = Base(bures.Gaussian.standard(2))
    path = Path(evaluator_of(target, True), base, np.eye(2), first_step_size(2))
    rng = np.random.default_rng(0)
    cloud = path.at(rng.standard_normal((2000, 2)) + 2 * t, t)
    for _ in range(3):
        cloud, acceptance = path.move(rng, cloud, t)
        assert acceptance > 0.5
    assert_moments(cloud.z, np.full(2, 2 * t), np.ones(2), 2000)


def test_precision_counts_families_not_states():
    rng = np.random.default_rng(0)
    alone, mixing = np.arange(CHAINS), rng.standard_normal((20, CHAINS, 3))
    assert measure(mixing, alone).effective == pytest.approx(20 * CHAINS, rel=0.4)
    stuck = np.broadcast_to(mixing[:1], mixing.shape)
    assert measure(stuck, alone).effective == pytest.approx(CHAINS, rel=0.4)
    twins = np.repeat(np.arange(CHAINS // 2), 2)
    assert measure(stuck[:, twins], twins).effective == pytest.approx(CHAINS / 2, rel=0.4)
    drifting = mixing + np.linspace(0, 1, 20)[:, None, None]
    assert measure(drifting, alone).drift > 1 > measure(mixing, alone).drift


def test_nuts_finds_the_moments_and_counts_its_gradients(skewed, poor, key):
    spent = []
    starts = MEAN + DEVIATION * np.random.default_rng(0).standard_normal((4, 4))
    run = run_nuts(
        key, skewed, starts, np.asarray(poor.chol), spend=spent.append, wanted=600, limit=10**6, keep=lambda run: None
    )
    assert run.rhat < 1.01 and run.effective >= 600
    assert_moments(run.chains.draws, MEAN, DEVIATION, run.effective)
    transitions = 4 * (100 + run.chains.num_samples)
    assert transitions <= sum(spent) < 32 * transitions


def test_balanced_choice_keeps_moments_and_weights():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((4000, 5))
    weights = np.exp(z[:, 0])  # of N(1, 1) in the first coordinate
    chosen = z[choose_balanced(rng, z, weights, 1000)]
    mean = weights @ z / np.sum(weights)
    np.testing.assert_allclose(chosen.mean(axis=0), mean, atol=0.03)  # a standard error of each, not twice it of some
    # What is not balanced is as by the weights: the share beyond two of the weighted draws.
    expected = np.sum(weights * (z[:, 0] > 2)) / np.sum(weights)
    assert np.mean(chosen[:, 0] > 2) == pytest.approx(expected, abs=4 * math.sqrt(expected / 1000))


def test_balanced_choice_copies_no_draw_more_often_than_its_weight_asks():
    rng = np.random.default_rng(2)
    weights = rng.gamma(0.5, size=3000)
    copies = np.bincount(choose_balanced(rng, rng.standard_normal((3000, 2)), weights, 1000), minlength=3000)
    assert np.all(copies <= np.ceil(1000 * weights / np.sum(weights)))
    assert np.unique(choose_balanced(rng, rng.standard_normal((1500, 2)), np.ones(1500), 1000)).size == 1000


def test_balanced_choice_bends_no_marginal():
    # Two modes, where a choice that balances draw by draw takes the outer parts of both for the sake of the mean.
    rng = np.random.default_rng(1)
    z = np.where(rng.uniform(size=(20_000, 1)) < 0.03, -50, 0) + rng.standard_normal((20_000, 1))
    chosen = z[choose_balanced(rng, z, np.ones(20_000), 2000)]
    assert stats.ks_2samp(chosen[:, 0], z[:, 0]).pvalue > 0.001
    assert stats.kstest(chosen[chosen > -20], "norm").pvalue > 0.001


def test_draws_have_the_shape_of_the_target():
    def two_modes(z):
        return jnp.logaddexp(jnp.log(0.03) - (z[0] + 50) ** 2 / 2, jnp.log(0.97) - z[0] ** 2 / 2)

    tree = bures.sample(two_modes, dim=1, key=jax.random.key(2), num_draws=1000)
    assert tree.attrs["trustworthy"]
    draws = np.ravel(next(iter(tree["posterior"].data_vars.values())).values)
    assert np.mean(draws < -25) == pytest.approx(0.03, abs=4 * math.sqrt(0.03 / 1000))
    assert stats.kstest(draws[draws > -25], "norm").pvalue > 0.001


def test_a_mode_that_draws_leave_out_is_found():
    target = bures.Target(_two_modes, 2)
    fit = bures.fit(target, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    one, both = rng.standard_normal((2, 1000, 2))
    one[:, 0] += 20
    both[:, 0] += np.where(rng.uniform(size=1000) < 0.5, 20, -20)
    evidence = math.log(2 * 2 * math.pi)
    evaluator = evaluator_of(target, True)
    assert search_around(rng, evaluator, one, evidence, fit.modes, None).missed > 0.3
    assert search_around(rng, evaluator, both, evidence, fit.modes, None).missed < 0.02


# ---- The climb ------------------------------------------------------------------------------------------------------


def test_the_first_rung_that_passes_comes_back_in_the_models_variables(key):
    def log_density(mu, sigma):
        return -jnp.sum((mu - 1) ** 2) * 2 - sigma + jnp.log(sigma)

    target = bures.Target.from_variables(log_density, {"mu": (3,), "sigma": Positive()})
    tree = bures.sample(target, key=key, num_draws=800)
    facts = tree.attrs
    assert facts["rung"] == "Gaussian" and facts["trustworthy"] is True
    assert facts["verdict"].startswith("Trust these draws")
    assert tree.posterior["mu"].shape == (1, 800, 3) and float(tree.posterior["sigma"].min()) > 0
    assert float(tree.posterior["sigma"].mean()) == pytest.approx(2.0, abs=0.15)  # Gamma(2, 1)
    assert float(tree.posterior["mu"].std()) == pytest.approx(0.5, abs=0.05)
    assert facts["log_evidence"] == pytest.approx(1.5 * math.log(math.pi / 2), abs=5 * facts["log_evidence_error"])
    assert {"lp", "log_q", "log_weight"} <= set(tree.sample_stats.data_vars)
    assert facts["evaluations"] == sum(facts["evaluations_by_rung"].values()) < 30_000
    assert tree.posterior.attrs["verdict"] == facts["verdict"]


def test_the_same_key_gives_the_same_draws(skewed, key):
    one, two = (bures.sample(skewed, key=key, num_draws=50) for _ in range(2))
    np.testing.assert_array_equal(one.posterior["z"], two.posterior["z"])
    other = bures.sample(skewed, key=jax.random.key(99), num_draws=50)
    assert not np.array_equal(one.posterior["z"], other.posterior["z"])


def test_smc_takes_over_where_weights_are_too_heavy(key, monkeypatch):
    monkeypatch.setattr(climb, "next_rung_of", lambda fit: None)
    x = np.random.default_rng(0).standard_normal((60, 12))

    def log_density(z):  # few rows for each coefficient: skewed in every direction
        eta = jnp.asarray(x) @ z
        return jnp.sum(eta[:30]) - jnp.sum(jnp.logaddexp(0, eta)) - jnp.sum(z**2) / 50

    tree = bures.sample(log_density, dim=12, key=key)
    assert tree.attrs["rung"] in ("Gaussian", "SMC") and tree.attrs["trustworthy"]
    reference = bures.reference.nuts(key, bures.Target(log_density, 12), num_samples=2000)
    deviation = np.sqrt(np.diagonal(reference.covariance))
    z = tree.posterior["z"].values.reshape(-1, 12)
    assert np.max(np.abs(z.mean(axis=0) - reference.mean) / deviation) < 0.15


def test_nothing_is_trusted_that_no_rung_can_solve(key, monkeypatch):
    monkeypatch.setattr(climb, "next_rung_of", lambda fit: None)
    monkeypatch.setattr(climb, "_NUTS_LIMIT", 20_000)
    tree = bures.sample(_wild, dim=10, key=key)
    assert tree.attrs["trustworthy"] is False and "Do not trust" in tree.attrs["verdict"]
    assert np.all(np.isfinite(tree.posterior["z"]))
    assert set(tree.attrs["evaluations_by_rung"]) == {"Gaussian", "SMC", "NUTS"}
    assert tree.attrs["rung"] == "NUTS" and tree.posterior.sizes["chain"] == 4


@pytest.mark.parametrize("limit", [1, 5_000, 12_000, 30_000])
def test_a_budget_ends_it_with_the_best_so_far(key, limit, monkeypatch):
    monkeypatch.setattr(climb, "next_rung_of", lambda fit: None)
    tree = bures.sample(_wild, dim=10, key=key, max_evaluations=limit, num_draws=100)
    facts = tree.attrs
    assert facts["evaluations"] <= limit and not facts["trustworthy"]
    assert facts["verdict"].startswith(f"Ended by max_evaluations={limit}")
    assert tree.posterior["z"].shape[1:] == (100, 10) and np.all(np.isfinite(tree.posterior["z"]))


def test_seconds_end_it(key):
    tree = bures.sample(_wild, dim=10, key=key, max_seconds=1e-9, num_draws=10)
    assert tree.attrs["verdict"].startswith("Ended by max_seconds") and tree.attrs["evaluations"] == 0


def test_an_interrupt_gives_back_the_best_so_far(key, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(climb, "next_rung_of", lambda fit: None)
    monkeypatch.setattr(climb, "run_smc", interrupted)
    tree = bures.sample(_wild, dim=10, key=key, num_draws=10)
    assert tree.attrs["rung"] == "Gaussian" and "Interrupted" in tree.attrs["verdict"]
    monkeypatch.setattr(climb, "fit_briefly", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bures.sample(_wild, dim=10, key=key, num_draws=10)


def test_a_mixture_is_the_next_rung(key):
    tree = bures.sample(bures.models.banana(), key=key)
    assert tree.attrs["rung"] == "mixture" and tree.attrs["trustworthy"]
    assert list(tree.attrs["evaluations_by_rung"]) == ["Gaussian", "mixture"]


# ---- What is asked for, and what is missing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draws": 0}, "num_draws must be a positive integer"),
        ({"max_seconds": -1.0}, "max_seconds must be a number in"),
        ({"max_evaluations": 0.5}, "max_evaluations must be a positive integer"),
        ({"key": 3}, "key must be a typed JAX random key"),
        ({"dim": 7}, "dim must be 4"),
    ],
)
def test_bad_input_is_refused(skewed, options, message):
    with pytest.raises(ValueError, match=message):
        bures.sample(skewed, **({"key": jax.random.key(0)} | options))


def test_arviz_is_asked_for_before_any_work(skewed, key, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r"bures\[arviz\]"):
        bures.sample(skewed, key=key)


def test_without_blackjax_the_best_so_far_says_what_is_missing(key, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    monkeypatch.setattr(climb, "next_rung_of", lambda fit: None)
    tree = bures.sample(lambda z: _wild(z) - 0.0, dim=10, key=key, num_draws=10)
    assert not tree.attrs["trustworthy"] and "bures[mcmc]" in tree.attrs["verdict"]


def test_a_budget_is_watched():
    budget = Budget(max_evaluations=10)
    budget.spend(10)
    with pytest.raises(BudgetSpent, match="max_evaluations=10"):
        budget.spend(1)
    assert budget.count == 10


def _run(*arguments, folder):
    command = [sys.executable, "-m", "bures.cli", "sample", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_command_line(tmp_path):
    (tmp_path / "model.py").write_text("import jax.numpy as jnp\ndef log_density(z):\n    return -jnp.sum(z**2) / 2\n")
    done = _run("model.py:log_density", "--dim", "2", "--draws", "20", "--out", "draws.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Trust these draws" in done.stdout and "z[1]" in done.stdout
    assert np.load(tmp_path / "draws.npz")["z"].shape == (1, 20, 2)
    wrong = _run("eggbox", "--out", "draws.txt", folder=tmp_path)
    assert wrong.returncode == 2 and "--out must be" in wrong.stderr


def test_beside_the_fit_of_front_ends():
    numpyro = pytest.importorskip("numpyro")

    def model(y):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0, 10))
        numpyro.sample("y", numpyro.distributions.Normal(mu, 1), obs=y)

    tree = bures.numpyro.sample(model, jnp.array([1.0, 2.0, 3.0]), num_draws=500)
    assert float(tree.posterior["mu"].mean()) == pytest.approx(2.0, abs=0.15)
    assert "y" in tree.observed_data and tree.attrs["trustworthy"]


@pytest.mark.parametrize(
    ("ness", "needs_even", "trusted"), [(0.5, True, False), (0.5, False, True), (0.1, False, False)]
)
def test_draws_of_uneven_weights_are_not_the_last_word(ness, needs_even, trusted):
    import dataclasses
    from types import SimpleNamespace

    from bures.ladder.rungs import rung_of_fit

    fit = bures.fit(bures.models.gaussian(2), key=jax.random.key(0))
    found = dataclasses.replace(fit.diagnostics, ness=ness)
    assert found.trustworthy
    uneven = SimpleNamespace(diagnostics=found, approximation=fit.approximation, target=fit.target)
    assert rung_of_fit("Gaussian", uneven, fit.draws(), jax.random.key(1), 100, needs_even).trustworthy is trusted


def test_a_density_without_a_value_somewhere_is_told():
    """Rungs leave such places out, as those of density zero: who meant another value there has to hear of it."""

    def log_density(z):
        return jnp.where(z[0] > 1, jnp.nan, -jnp.sum(z**2) / 2)

    tree = bures.sample(log_density, dim=2, key=jax.random.key(0))
    assert np.all(tree.posterior["z"].values[..., 0] <= 1)
    assert "log density is NaN or plus infinity" in tree.attrs["verdict"]


def test_a_density_that_is_zero_all_over_says_what_to_do():
    with pytest.raises(ValueError, match=r"positive, finite density.*Check the log density.*initial_point"):
        bures.sample(lambda z: z[0] * 0 - jnp.inf, dim=2, key=jax.random.key(0))
