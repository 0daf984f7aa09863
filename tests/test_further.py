"""The rounds by the ELBO that follow where weights degenerate: narrow, curved targets take many components."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures import Outcome
from bures.arrays import to_host
from bures.benchmarks.ladder_targets import mixture
from bures.engine import Evaluator
from bures.family import GaussianMixture
from bures.mixing import densities, further, rounds
from bures.mixing.elbo import OnPool, spread_proposal
from bures.mixing.pause import Round, ness_of
from bures.mixing.pool import Pool, draws_of

KEY = jax.random.key(0)
RING = bures.Target(lambda z: -((jnp.linalg.norm(z) - 3) ** 2) / (2 * 0.02**2), 2)


def known_mixture():
    means = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    return mixture(np.array([0.2, 0.3, 0.5]), means, np.stack([np.eye(2), np.diag([0.3, 2.0]), np.eye(2)]))


def on_pool(q, n=4000):
    target, pool = known_mixture(), Pool(n)
    pool.add(draws_of(np.random.default_rng(0), spread_proposal(q), Evaluator(target), n))
    return OnPool(q, pool)


def of_target(target):
    density = target.log_density
    parts = density.log_weights, density.means, density.chols, np.zeros(3)
    return GaussianMixture.unchecked(*(np.asarray(part, np.float64) for part in parts))


def test_the_target_itself_stays_where_it_is():
    q = to_host(of_target(known_mixture()))
    now = on_pool(q)
    assert abs(now.elbo) < 1e-6
    moved = now.stepped().q
    np.testing.assert_allclose(moved.means, q.means, atol=1e-6)
    np.testing.assert_allclose(moved.shares, q.shares, atol=1e-6)


def test_steps_and_new_components_climb_the_elbo():
    q = of_target(known_mixture())
    off = GaussianMixture.unchecked(np.log(np.full(3, 1 / 3)), q.means + 0.3, q.chols * 1.3, q.tail)
    begun = on_pool(off)
    assert begun.stepped().stepped().stepped().elbo > begun.elbo / 2
    one = GaussianMixture.unchecked(np.zeros(1), np.zeros((1, 2)), 3 * np.eye(2)[None], np.zeros(1))
    begun = on_pool(one)
    grown = begun.grown(np.random.default_rng(1), 2)
    assert grown.num_components == 3 and abs(grown.shares.sum() - 1) < 1e-12
    now = OnPool(grown, begun.pool)
    for _ in range(10):
        now = now.stepped()
    assert now.elbo > begun.elbo + 0.3
    assert now.without_small(1.0).q.num_components < 3


def test_where_there_is_no_elbo_there_are_no_further_rounds():
    q = GaussianMixture.unchecked(np.zeros(1), np.zeros((1, 2)), np.eye(2)[None], np.zeros(1))
    pool = Pool(1000)
    pool.add(draws_of(np.random.default_rng(0), q, Evaluator(known_mixture()), 1000))
    assert further.has_elbo(q, pool)
    pool.log_p[0] = -np.inf
    assert not further.has_elbo(q, pool)
    assert further.further_evaluations(10, 50_000) > 0 == further.further_evaluations(200, 20_000)


def one_component(dim):
    return GaussianMixture.of_gaussians([(np.zeros(dim), np.eye(dim))], np.ones(1))


def begun_at(q, target, run, **changes):
    """A fit of a mixture before its first round."""
    rng = np.random.default_rng(0)
    begun = rounds.first_pause(rng, q, (), 100_000, None, goes_on=True)._replace(**changes)
    return run(rng, Evaluator(target), begun)


def test_the_search_sets_out_from_what_it_has_found_as_well():
    """From the first of these modes no climb reaches the last; from the second some do."""
    means = np.array([[0.0, 0.0], [15.0, 0.0], [120.0, 0.0]])
    target = mixture(np.full(3, 1 / 3), means, np.stack([np.eye(2)] * 3))
    run = begun_at(one_component(2), target, further.FurtherRun)
    run.search()
    assert {round(x) for x in run.q.means[:, 0]} == {0, 15, 120}


def test_weights_degenerate_where_one_draw_says_all():
    """Fresh draws see nothing of the evidence of one chance draw, and so hardly a deficit."""
    run = begun_at(one_component(2), known_mixture(), rounds._Run)
    run.rounds = [Round(-1e5, 1.0, 1.0, 2000, 1.0)]
    run.pool.add(draws_of(np.random.default_rng(0), run.q, run.evaluator, 2000))
    assert run.pool.effective > 10 and not run.degenerates()
    run.pool.batches[0].log_p[0] = 1e4
    run.pool._join()
    assert run.pool.effective < 1.01 and run.degenerates()


def test_what_a_first_round_saw_is_forgotten():
    run = begun_at(one_component(2), known_mixture(), rounds._Run)
    run.pool.add(draws_of(np.random.default_rng(0), run.q, run.evaluator, 2000))
    run.rounds = [Round(-1.0, 0.01, 20.0, 600, 1.0), Round(0.0, 0.98, 0.02, 1000, 1.0)]
    assert run.fresh_deficit(1500) > further.FAR and not run.degenerates()


@pytest.fixture
def brief(monkeypatch):
    """Few evaluations before and after."""
    monkeypatch.setattr(rounds, "_LEAST_EVALUATIONS", 2500)
    monkeypatch.setattr(rounds, "_EVALUATIONS_PER_DIMENSION", 500)
    monkeypatch.setattr(further, "_EVALUATIONS", 400_000)
    monkeypatch.setattr(further, "_MOST_COMPONENTS", 30)


def test_a_thin_curved_target_is_followed_and_goes_on_as_if_nothing_had_happened(brief, tmp_path):
    whole = bures.fit(RING, key=KEY, family=bures.Mixture())
    assert whole.approximation.num_components > 8
    assert whole.diagnostics.log_evidence - whole.diagnostics.elbo < 2
    few = bures.fit(RING, key=KEY, family=bures.Mixture(max_components=4))
    assert few.approximation.num_components <= 4 and few.diagnostics.elbo < whole.diagnostics.elbo
    limited = bures.fit(RING, key=KEY, family=bures.Mixture(), max_evaluations=17_000, checkpoint=tmp_path / "fit")
    pause = limited.record.pause
    assert limited.outcome is Outcome.EVALUATION_LIMIT and pause is not None and pause.by_elbo > 0
    again = bures.load(tmp_path / "fit", target=RING).resume()
    assert again.num_steps == whole.num_steps
    np.testing.assert_array_equal(again.approximation.means, whole.approximation.means)
    np.testing.assert_array_equal(again.trace.bound, whole.trace.bound)


def test_log_densities_of_many_components_are_theirs():
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((5, 4, 4)) * np.array([1, 1, 1e-7, 1e3, 1])[:, None, None]  # some far too thin
    chols = np.linalg.cholesky(factors @ factors.transpose(0, 2, 1))
    q = GaussianMixture.unchecked(np.log(np.full(5, 0.2)), 3 * rng.standard_normal((5, 4)), chols, np.zeros(5))
    z = q.means[rng.integers(5, size=300)] + 1e-7 * rng.standard_normal((300, 4))
    found = densities.log_components(q, z)
    np.testing.assert_allclose(found, q.log_components(z), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(densities.log_density(found, q.log_shares), q.log_density(z), rtol=1e-5, atol=1e-4)


def test_a_component_that_has_left_all_draws_is_no_end():
    """In single precision its density at all of them is zero: the shares of all components were not a number then."""
    q = GaussianMixture.of_gaussians([(np.zeros(2), np.eye(2)), (np.full(2, 40.0), 0.1 * np.eye(2))], np.full(2, 0.5))
    target = bures.Target(lambda z: -z @ z / 2, 2)
    first = GaussianMixture.of_gaussians([(np.zeros(2), np.eye(2))], np.ones(1))
    pool = Pool(10**4, [draws_of(np.random.default_rng(0), first, Evaluator(target), 500)])
    shares = OnPool(q, pool).reweighed().q.shares
    assert np.all(np.isfinite(shares)) and shares[0] > 0.5


def test_effective_draws_are_a_number_where_a_weight_is_huge_and_nothing_is_drawn():
    assert ness_of(np.array([1.0, 1.0, 1e260]), np.array([1.0, 1.0, 0.0])) == 1.0
