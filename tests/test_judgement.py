"""The judgement of a fit: made once, kept, saved, and honest about what draws cannot see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.diagnostics import Verdict, summarise, weighted
from bures.diagnostics.coverage import find_missed
from bures.engine import Evaluator
from bures.family import Gaussian
from bures.modes import Mode, view_of
from bures.search import Budget


def mixture(weights, means, deviations):
    """A mixture of isotropic Gaussians, normalised."""
    weights, means, deviations = (jnp.asarray(x, float) for x in (weights, means, deviations))
    dim = means.shape[1]

    def log_density(z):
        squares = jnp.sum((z - means) ** 2, axis=1) / deviations**2
        terms = jnp.log(weights) - squares / 2 - dim * jnp.log(deviations) - dim * jnp.log(2 * jnp.pi) / 2
        return jax.nn.logsumexp(terms)

    return bures.Target(log_density, dim)


# ---- What draws cannot see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dim", [1, 5, 20])
@pytest.mark.parametrize("distance", [5.0, 30.0, 50.0])
def test_the_other_of_two_modes_is_named_with_its_mass(dim, distance, seed):
    """Weights 0.1 and 0.9, the lighter at the origin: on either mode alone the weights of draws are perfect."""
    target = mixture([0.1, 0.9], [np.zeros(dim), distance * np.eye(dim)[0]], [1.0, 1.0])
    fit = bures.fit(target, key=jax.random.key(seed))
    found = fit.diagnostics
    if found.trustworthy:  # one Gaussian over both, which weights correct
        assert found.log_evidence == pytest.approx(0, abs=0.1)
        return
    if distance == 5 and found.verdict is Verdict.UNTRUSTED:  # so near that heavy draws tell
        return
    assert found.verdict is Verdict.SEVERAL_MODES
    assert "several modes" in str(fit)
    on_heavier = fit.approximation.mean[0] > distance / 2
    assert found.coverage.missed_share == pytest.approx(0.1 if on_heavier else 0.9, abs=0.06)
    assert on_heavier


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_a_spike_in_a_slab_is_not_passed_over(dim, key):
    target = mixture([0.5, 0.5], np.zeros((2, dim)), [1.0, 0.01])
    found = bures.fit(target, key=key).diagnostics
    assert not found.trustworthy or found.log_evidence == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("dim", "distance", "width"), [(1, 20.0, 0.05), (2, 14.0, 0.12), (3, 10.0, 0.3), (6, 10.0, 0.33)]
)
def test_a_mode_narrower_than_the_one_found_is_named(dim, distance, width, seed):
    place = distance * np.ones(dim) / np.sqrt(dim)
    target = mixture([0.7, 0.3], [np.zeros(dim), place], [1.0, width])
    found = bures.fit(target, key=jax.random.key(seed)).diagnostics
    assert found.verdict is Verdict.SEVERAL_MODES


@pytest.mark.parametrize("heaviest", [0.01, 0.5, 3.0])
def test_a_mode_is_named_by_its_other_draws_where_one_weighs_most(heaviest):
    """Its own Gaussian may be far too narrow: then one draw of 64 often weighs more than all others together."""
    q = Gaussian.unchecked(np.zeros(2), np.eye(2))
    mode = Gaussian.unchecked(np.array([30.0, 0.0]), np.eye(2))
    masses = np.append(np.full(63, 0.2), 64 * heaviest)
    z = mode.push(np.random.default_rng(0).standard_normal((64, 2)))
    view = view_of(z, np.full(64, -2.0), np.log(masses))
    found = find_missed(q, 0.0, 4000, [Mode(mode, view)], (), 100.0)
    assert found.missed_share == pytest.approx(0.2 / 1.2, rel=0.1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("place", "width"), [([0.7, 0.7], 0.01), ([2.0, 1.5], 0.05), ([1.2, 0.0, 0.0, 0.0, 0.9], 0.12)]
)
def test_a_spike_off_the_middle_of_a_slab_is_not_passed_over(place, width, seed):
    target = mixture([0.5, 0.5], [np.zeros(len(place)), place], [1.0, width])
    found = bures.fit(target, key=jax.random.key(seed)).diagnostics
    assert not found.trustworthy or found.log_evidence == pytest.approx(0, abs=0.1)


def judged_where_it_is(target, seed):
    """The diagnostics of the standard Gaussian, by as many draws as decide."""
    q, still = bures.Gaussian.standard(target.dim), bures.BuresWasserstein(1e-9)
    fit = bures.fit(target, key=jax.random.key(seed), init=q, objective=bures.ELBO(), geometry=still, num_steps=1)
    return fit.diagnostics


@pytest.mark.parametrize("seed", range(4))
def test_a_spike_that_draws_do_fall_onto_is_no_heavy_tail(seed):
    """Fifty draws of 10,000, all of one weight, look like a tail of k̂ = 7; more see that none is heavy."""
    found = judged_where_it_is(mixture([0.72, 0.28], [[0.0], [1.85]], [1.0, 0.03]), seed)
    assert found.verdict is Verdict.USABLE
    assert found.log_evidence == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("seed", [1, 4, 11])
def test_a_widening_near_its_limit_is_measured_by_more_draws(seed):
    """A Gaussian 36% wider, of which 4,000 draws tell less than 30% at times."""
    target = bures.Target(lambda z: -(z[0] ** 2) / 2 / 1.36**2 - z[1] ** 2 / 2, 2)
    found = judged_where_it_is(target, seed)
    assert not found.trustworthy


def test_a_target_that_is_slow_to_evaluate_is_judged_by_fewer_draws_where_they_decide(key):
    data = np.random.default_rng(0).standard_normal((500, 10))
    fits = [bures.fit(bures.Target(lambda z, y=y: -jnp.sum((y - z) ** 2) / 2, 10), key=key) for y in (data[:100], data)]
    assert [fit.judgement.log_p.size for fit in fits] == [4000, 2000]
    assert all(fit.diagnostics.verdict is Verdict.CLOSE for fit in fits)


def test_exchangeable_labels_have_two_modes(key):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 1, 60), rng.normal(2, 1, 40)])

    def log_density(mu, sigma, share):
        first = jnp.log(share) - ((y - mu[0]) / sigma[0]) ** 2 / 2 - jnp.log(sigma[0])
        second = jnp.log1p(-share) - ((y - mu[1]) / sigma[1]) ** 2 / 2 - jnp.log(sigma[1])
        prior = -jnp.sum(mu**2) / 50 - jnp.sum(sigma**2) / 8
        return jnp.sum(jnp.logaddexp(first, second)) + prior

    support = bures.support
    variables = {"mu": (2,), "sigma": (support.Positive(), (2,)), "share": support.Interval(0.0, 1.0)}
    fit = bures.fit(bures.Target.from_variables(log_density, variables), key=key)
    assert fit.diagnostics.verdict is Verdict.SEVERAL_MODES
    assert fit.diagnostics.coverage.missed_share == pytest.approx(0.5, abs=0.15)
    assert "mu[0] = " in str(fit)


@pytest.mark.parametrize("degrees_of_freedom", [1.0, 2.0])
def test_tails_that_hold_mass_are_told(degrees_of_freedom, key):
    found = bures.fit(bures.models.student_t(2, degrees_of_freedom), key=key).diagnostics
    assert not found.trustworthy


def test_a_right_fit_is_trusted_and_the_search_is_mentioned(key):
    fit = bures.fit(bures.models.gaussian(3, condition_number=10.0), key=key)
    assert fit.diagnostics.verdict is Verdict.CLOSE
    assert "use its draws as they are" in str(fit)
    assert "No other mode was found up to 100 standard deviations" in str(fit)


# ---- Made once ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return bures.fit(bures.models.student_t(2, 8.0), key=jax.random.key(4))


def test_printing_evaluates_nothing(fitted):
    before = fitted.num_log_density_evaluations
    assert str(fitted) == str(fitted)
    assert fitted.diagnostics is fitted.diagnostics
    assert fitted.num_log_density_evaluations == before


def test_the_pool_is_that_of_the_diagnostics(fitted):
    draws = fitted.draws()
    assert draws.log_p.size == fitted.diagnostics.num_samples
    np.testing.assert_allclose(draws.log_p, jax.vmap(fitted.target.log_density)(jnp.asarray(draws.z)), rtol=1e-12)
    np.testing.assert_allclose(draws.log_q, fitted.approximation.log_prob(draws.z), rtol=1e-10)
    assert np.mean(draws.log_weights) == pytest.approx(fitted.diagnostics.elbo, abs=1e-12)


def test_the_judgement_is_saved_and_loaded(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    loaded = bures.load(tmp_path / "fit", target=fitted.target)
    assert str(loaded.diagnostics) == str(fitted.diagnostics)
    assert loaded.evaluations == fitted.evaluations
    assert np.array_equal(loaded.draws().z, fitted.draws().z)
    assert len(loaded.modes) == len(fitted.modes)


def test_a_resumed_host_fit_is_the_same_from_file_and_from_memory(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    loaded = bures.load(tmp_path / "fit", target=fitted.target)
    one, other = fitted.resume(7), loaded.resume(7)
    assert np.array_equal(one.approximation.chol, other.approximation.chol)
    assert one.num_steps == fitted.num_steps + 7


def test_table_figure_and_export_show_one_khat(fitted):
    tree = fitted.to_arviz(jax.random.key(0), 200)
    assert tree.posterior.attrs["khat"] == fitted.diagnostics.khat
    title = bures.plot.weights_tail(fitted).get_title(loc="left")
    assert f"{fitted.diagnostics.khat:.2f}" in title


def test_the_same_key_gives_the_same_judgement():
    first, second = (bures.fit(bures.models.banana(), key=jax.random.key(1)) for _ in range(2))
    assert str(first) == str(second)
    assert np.array_equal(first.approximation.chol, second.approximation.chol)


# ---- Counted --------------------------------------------------------------------------------------------------------


def test_every_evaluation_is_counted():
    """By a density on the host, which sees every point."""
    import equinox as eqx

    seen = []

    class Counting(eqx.Module):
        def __call__(self, z):
            return -jnp.sum(jnp.log1p(z**2 / 5)) * 3

        def values_and_scores_on_host(self, z):
            seen.append(len(z))
            return -3 * np.sum(np.log1p(z**2 / 5), axis=1), -3 * (2 * z / 5) / (1 + z**2 / 5)

    fit = bures.fit(bures.Target(Counting(), 3), key=jax.random.key(0))
    assert fit.num_log_density_evaluations == sum(seen)
    spent = fit.evaluations
    assert fit.num_gradients == spent.start + spent.steps + spent.search


MODELS = {
    "eggbox": bures.models.eggbox,
    "banana": bures.models.banana,
    "funnel": bures.models.funnel,
    "Student-t": lambda: bures.models.student_t(20),
    "Gaussian d = 50": lambda: bures.models.gaussian(50, condition_number=1e4),
    "Gaussian d = 300": lambda: bures.models.gaussian(300, condition_number=10.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_start_costs_no_more_than_the_steps_or_four_thousand(name):
    spent = bures.fit(MODELS[name](), key=jax.random.key(2)).evaluations
    assert spent.start + spent.search <= max(4000, spent.steps)


def test_a_step_of_a_large_model_is_reached_at_once():
    """In 1,000 dimensions no matrix of curvature is made by differences: 2,000 evaluations for each step of Newton."""
    from bures.draws import host_generator
    from bures.engine import Evaluator
    from bures.start import find_start

    target = bures.Target(lambda z: -jnp.sum(jnp.logaddexp(z - 1, 1 - z)) - jnp.sum(jnp.diff(z) ** 2), 1000)
    evaluator = Evaluator(target, 400)
    start = find_start(host_generator(jax.random.key(0)), target, Budget(evaluator, 29_500))
    assert evaluator.count < 20_000
    assert np.all(np.isfinite(start.approximation.chol))


def test_an_interrupt_of_the_judgement_does_not_lose_the_fit(monkeypatch):
    from bures.fitting import result

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(result, "judge", interrupted)
        fit = bures.fit(bures.models.gaussian(2), key=jax.random.key(0))
    assert fit.evaluations.judgement == 0
    assert fit.diagnostics.verdict is Verdict.CLOSE


def test_draws_that_are_not_held_are_the_same_draws(monkeypatch):
    """Made anew block by block, they give the points, the weights and the diagnostics of draws that are held."""
    target, q = bures.models.gaussian(40, condition_number=10.0), bures.Gaussian.standard(40)
    make, evaluator = (lambda: np.random.default_rng(5)), Evaluator(target)
    held, _ = weighted.WeightedDraws.pool(make, q, evaluator, 3000)
    monkeypatch.setattr(weighted, "_HELD", 1000)
    monkeypatch.setattr(weighted, "_BLOCK", 40 * 130)
    streamed, scores = weighted.WeightedDraws.pool(make, q, evaluator, 1000)
    before = evaluator.count
    streamed, _ = weighted.WeightedDraws.pool(make, q, evaluator, 3000, streamed)
    assert scores is None
    assert evaluator.count - before == 2000  # the first thousand are known
    assert isinstance(streamed.z, weighted.Points)
    np.testing.assert_allclose(streamed.log_weights, held.log_weights, rtol=1e-12)
    np.testing.assert_array_equal(streamed.z[[7, 2999, 130]], held.z[[7, 2999, 130]])
    np.testing.assert_array_equal(streamed.z[:5], held.z[:5])
    found, wanted = (vars(summarise(draws).correction) for draws in (streamed, held))
    assert found == pytest.approx(wanted, rel=1e-9)
