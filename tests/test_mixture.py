"""Mixtures of Gaussians: densities, the projected gradient against quadrature, moves, and fits that find components."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import assert_within_standard_errors, mean_and_error, quick_jit

import bures
from bures.arrays import to_host
from bures.engine import Evaluator
from bures.family import GaussianMixture
from bures.frontends.callback import HostLogDensity
from bures.mixing import rounds
from bures.mixing.further import FurtherRun
from bures.mixing.moving import Moved
from bures.mixing.pause import Round
from bures.mixing.pool import Batch, Pool, draw_batch
from bures.mixing.rounds import is_level
from bures.mixing.seeking import seek
from bures.search import Budget

MEANS = np.array([[-1.0, 0.5], [1.5, -0.5], [0.0, 2.0]])
CHOLS = np.array([[[1.0, 0.0], [0.3, 0.7]], [[0.5, 0.0], [-0.2, 0.9]], [[1.2, 0.0], [0.0, 0.4]]])


def plane_mixture(tail=0.0, dtype=jnp.float64):
    parts = (jnp.asarray(part, dtype) for part in (np.log([0.2, 0.5, 0.3]), MEANS, CHOLS))
    return GaussianMixture(*parts, tail)


def two_modes(dim=2, apart=8.0):
    def log_density(z):
        first, second = -jnp.sum(z**2) / 2, -jnp.sum((z - apart / np.sqrt(dim)) ** 2) / 2
        return jnp.logaddexp(jnp.log(0.3) + first, jnp.log(0.7) + second) - dim * jnp.log(2 * jnp.pi) / 2

    return bures.Target(log_density, dim)


# ---- Densities and draws


@pytest.mark.parametrize("tail", [0.0, 0.2])
def test_density_is_normalised_and_the_scores_are_its_derivative(tail):
    q = to_host(plane_mixture(tail))
    side = np.linspace(-60, 60, 1201)
    points = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    assert abs(np.exp(q.log_density(points)).sum() * (side[1] - side[0]) ** 2 - 1) < 1e-5
    z = np.random.default_rng(0).normal(0, 3, (20, 2))
    scores = jax.vmap(jax.grad(lambda z: -plane_mixture(tail).log_prob(z)))(jnp.asarray(z))
    np.testing.assert_allclose(q.entropy_scores(z, q.responsibilities(z)), scores, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tail", [0.0, 0.2])
def test_draws_have_the_moments_that_it_says(tail):
    q = plane_mixture(tail)
    z = np.asarray(q.sample(jax.random.key(0), 100_000))
    error = np.sqrt(np.diagonal(q.covariance) / len(z))
    assert_within_standard_errors(z.mean(axis=0), q.mean, error, 5)
    np.testing.assert_allclose(np.cov(z.T), q.covariance, atol=0.1)
    np.testing.assert_allclose(q.standard_deviations**2, np.diagonal(q.covariance), rtol=1e-12)
    assert np.allclose(q.marginal(1).covariance, q.covariance[1:, 1:])
    assert np.allclose(q.as_gaussian().covariance, q.covariance)


def test_draws_and_densities_are_the_same_in_numpy_and_jax():
    q, noise = plane_mixture(0.1), np.random.default_rng(1).standard_normal((50, 5))
    on_host = to_host(q)
    z = q.push(jnp.asarray(noise))
    np.testing.assert_allclose(on_host.push(noise), z, rtol=1e-12)
    np.testing.assert_allclose(on_host.log_density(np.asarray(z)), q.log_density(z), rtol=1e-12)
    np.testing.assert_allclose(
        on_host.precision_times_noise(noise), q.precision_times_noise(jnp.asarray(noise)), atol=1e-12
    )


# ---- The projected gradient, against automatic differentiation of the bound by quadrature

SHARES, PLACES, SCALES = np.array([0.35, 0.65]), np.array([-1.0, 1.2]), np.array([0.8, 0.6])
LINE = np.linspace(-9, 9, 301)


def log_target(z):
    return jnp.logaddexp(-((z + 1.5) ** 2) / 2, -((z - 1.0) ** 2) / 0.9) + 0.3


def bound_by_quadrature(parameters, objective):
    """E F over pairs (or single draws) of a mixture on the line, as a function of logits, means and scales."""
    logits, means, scales = parameters
    log_q = jax.nn.logsumexp(
        jax.nn.log_softmax(logits)[:, None]
        - ((LINE - means[:, None]) / scales[:, None]) ** 2 / 2
        - jnp.log(scales)[:, None]
        - jnp.log(2 * jnp.pi) / 2,
        axis=0,
    )
    log_weights = log_target(LINE) - log_q
    mass = jnp.exp(log_q) * (LINE[1] - LINE[0])
    if objective.K == 1:
        return mass @ objective.bound(log_weights[:, None])
    pairs = jnp.stack(jnp.broadcast_arrays(log_weights[:, None], log_weights[None]), -1)
    return mass @ objective.bound(pairs) @ mass


@pytest.mark.parametrize("objective", [bures.ELBO(), bures.IWELBO(K=2), bures.VRIWAE(K=2, alpha=0.5)], ids=str)
@pytest.mark.parametrize("estimator", [bures.Stein(M=4000), bures.Price(M=4000)], ids=lambda e: type(e).__name__)
def test_projected_gradient_is_that_of_the_bound(objective, estimator):
    parameters = (jnp.log(SHARES), jnp.asarray(PLACES), jnp.asarray(SCALES))
    exact = jax.grad(lambda p: bound_by_quadrature(p, objective))(parameters)
    q = GaussianMixture(np.log(SHARES), PLACES[:, None], SCALES[:, None, None])
    target = bures.Target(lambda z: log_target(z[0]), dim=1)

    def gradient(key):
        estimate = estimator(key, q, target, objective)
        logits, means, chols = q.free_gradient(estimate, q.first_frame())
        return logits, means[:, 0], chols[:, 0, 0]

    found = quick_jit(jax.vmap(gradient))(jax.random.split(jax.random.key(3), 60))
    for part, expected in zip(found, exact, strict=True):
        mean, error = mean_and_error(part)
        assert_within_standard_errors(mean, expected, error, case=str(objective))
        assert np.all(error < 0.02 * np.max(np.abs(expected)))  # small enough to see 2%


def test_a_mixture_of_one_has_the_gradient_of_its_gaussian():
    target, gaussian = two_modes(), bures.Gaussian(jnp.array([1.0, 2.0]), jnp.array([[1.5, 0.0], [0.4, 2.0]]))
    q = bures.Mixture().of(gaussian)
    noise = np.random.default_rng(0).standard_normal((40, 3, 5))
    for estimator in (bures.Stein(M=40), bures.Price(M=40)):
        one = estimator.estimate(jnp.asarray(noise), q, target, bures.IWELBO(K=3))
        other = estimator.estimate(jnp.asarray(noise[..., 3:]), gaussian, target, bures.IWELBO(K=3))
        np.testing.assert_allclose(one.a[0], other.a, rtol=1e-9)
        np.testing.assert_allclose(one.S.slopes[0], (other.S + other.S.T) / 2, rtol=1e-8, atol=1e-10)


# ---- Moves

GEOMETRIES = [bures.BuresWasserstein(0.5), bures.Euclidean(0.05), bures.Whitened()]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
def test_steps_reach_a_target_of_two_modes(geometry):
    target = two_modes(1, 4.0)
    begin = GaussianMixture(np.log([0.5, 0.5]), np.array([[-1.0], [5.0]]), 1.5 * np.ones((2, 1, 1)))
    fit = bures.fit(
        target,
        key=jax.random.key(0),
        init=begin,
        objective=bures.IWELBO(K=3),
        estimator=bures.Stein(M=200),
        geometry=geometry,
        num_steps=300,
    )
    assert fit.diagnostics.ness > 0.95
    np.testing.assert_allclose(sorted(np.asarray(fit.approximation.shares)), [0.3, 0.7], atol=0.08)


def test_a_fit_of_given_steps_resumes_bit_for_bit(tmp_path):
    target, method = two_modes(), dict(objective=bures.IWELBO(K=2), estimator=bures.Stein(M=20))
    whole = bures.fit(target, key=jax.random.key(1), init=plane_mixture(), num_steps=8, **method)
    half = bures.fit(target, key=jax.random.key(1), init=plane_mixture(), num_steps=4, **method)
    half.save(tmp_path / "half.fit")
    resumed = bures.load(tmp_path / "half.fit", target=target).resume(4)
    for one, other in zip(jax.tree.leaves(whole.approximation), jax.tree.leaves(resumed.approximation), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(estimator=bures.Reparameterised(M=10)), "no smooth function of its shares"),
        (dict(geometry=bures.ForwardBackward(0.1), objective=bures.ELBO()), "Mixture"),
    ],
)
def test_what_a_mixture_cannot_do_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        bures.fit(two_modes(), key=jax.random.key(0), init=plane_mixture(), num_steps=2, **options)


def test_bad_input_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="max_components"):
        bures.Mixture(max_components=0)
    with pytest.raises(ValueError, match="LowRank"):
        bures.fit(lambda z: -z @ z, dim=500, key=jax.random.key(0), family=bures.Mixture())
    for bad, name in (
        ((np.zeros(2), MEANS, CHOLS), "log_shares"),
        ((np.zeros(3), MEANS, -CHOLS), "chols"),
        ((np.zeros(3), MEANS, CHOLS, 2.0), "tail"),
        ((np.zeros(3), MEANS, CHOLS, [0.1, 0.2]), "tail"),
    ):
        with pytest.raises(ValueError, match=name):
            GaussianMixture(*bad)


# ---- The pool


def test_draws_of_poor_proposals_know_the_evidence():
    target = two_modes(apart=3.0)
    evaluator, rng, pool = Evaluator(target), np.random.default_rng(0), Pool(10_000)
    for mean, scale in ((-2.0, 1.5), (4.0, 1.0), (1.0, 2.5)):
        q = GaussianMixture(np.zeros(1), np.full((1, 2), mean), scale * np.eye(2)[None])
        pool.add(draw_batch(rng, to_host(q), evaluator, 1000))
    weights = np.exp(pool.log_p - pool.log_proposal)
    assert_within_standard_errors(weights.mean(), 1.0, weights.std() / np.sqrt(weights.size))
    assert evaluator.count == 3000


def test_the_pool_keeps_the_latest_draws_and_their_density():
    target = two_modes(apart=3.0)
    evaluator, rng, pool = Evaluator(target), np.random.default_rng(0), Pool(150)
    q = to_host(plane_mixture())
    batches = [draw_batch(rng, q, evaluator, 100) for _ in range(4)]
    for batch in batches:
        pool.add(batch)
    assert len(pool) == 200 and np.array_equal(pool.z[-100:], batches[-1].z)
    np.testing.assert_allclose(pool.log_proposal, batches[0].proposal.log_density(pool.z))


def test_points_without_a_density_weigh_nothing():
    q = to_host(plane_mixture())
    batch = Batch(q, np.zeros((3, 2)), np.array([0.0, np.nan, np.inf]), np.full((3, 2), np.nan))
    assert np.all(np.isneginf(batch.log_p[1:])) and np.all(np.isfinite(batch.score))


def test_a_step_on_the_pool_lowers_the_deficit_and_an_exact_mixture_stays():
    target = two_modes(apart=4.0)
    exact = GaussianMixture(
        np.log([0.3, 0.7]), np.array([[0.0, 0.0], [1.0, 1.0]]) * 4 / np.sqrt(2), np.stack([np.eye(2)] * 2)
    )
    off = GaussianMixture(np.log([0.5, 0.5]), np.asarray(exact.means) + 0.5, 1.4 * np.asarray(exact.chols))
    evaluator, pool = Evaluator(target), Pool(10_000)
    pool.add(draw_batch(np.random.default_rng(0), to_host(off), evaluator, 2000))
    begun = Moved(to_host(off), pool)
    assert begun.stepped().stepped().deficits().mean() < 0.5 * begun.deficits().mean()
    stayed = Moved(to_host(exact), pool).stepped().q
    np.testing.assert_allclose(stayed.means, exact.means, atol=1e-6)


# ---- Seeking what draws have missed


def test_climbs_find_the_ends_that_draws_miss():
    dim, b = 8, 0.03
    target = bures.models.banana(b, dim)
    rng, evaluator, pool = np.random.default_rng(0), Evaluator(target), Pool(10_000)
    middle = along_banana(np.arange(-14.0, 15.0, 4.0), b, dim)
    pool.add(draw_batch(rng, middle, evaluator, 3000))
    now, budget = Moved(middle, pool), Budget(evaluator, 2000)
    found = []
    for _ in range(3):
        found += [place.gaussian for place in seek(rng, now, budget, found, 0.01)]
    ends = np.array([each.mean for each in found])
    assert sorted(np.sign(ends[:, 0])) == [-1, 1]  # each once: what is known is not found again
    assert np.all((np.abs(ends[:, 0]) > 15) & (np.abs(ends[:, 0]) < 30))
    assert np.all(np.abs(ends[:, 1] + b * (ends[:, 0] ** 2 - 100)) < 1.5)
    assert evaluator.count <= 3000 + 2000


def test_nothing_is_sought_where_the_mixture_is_exact():
    evaluator, pool, rng = Evaluator(two_modes(apart=4.0)), Pool(10_000), np.random.default_rng(0)
    exact = GaussianMixture.of_gaussians(
        [(np.zeros(2), np.eye(2)), (np.full(2, 4 / np.sqrt(2)), np.eye(2))], np.array([0.3, 0.7])
    )
    pool.add(draw_batch(rng, exact, evaluator, 2000))
    assert seek(rng, Moved(exact, pool), Budget(evaluator, 2000), (), 1e-4) == ()
    assert evaluator.count == 2000


def test_most_draws_stay_those_of_the_mixture_whatever_is_in_doubt():
    far = [bures.Gaussian(np.full(2, place), 1e-3 * np.eye(2)) for place in (1e3, 2e3, 3e3)]
    q = rounds._with_doubts(to_host(plane_mixture()), far)
    np.testing.assert_allclose(q.shares[:3].sum(), 0.85)
    np.testing.assert_allclose(q.shares[3:], 0.05)


def along_banana(places, b, dim):
    """Gaussians along its middle, five wide."""
    means, chols = np.zeros((len(places), dim)), []
    for mean, place in zip(means, places, strict=True):
        mean[:2] = place, -b * (place**2 - 100)
        along = 5 * np.array([1.0, -2 * b * place, *np.zeros(dim - 2)])
        chols.append(np.linalg.cholesky(np.outer(along, along) + np.diag([0.01, *np.ones(dim - 1)])))
    shares = np.exp(-(places**2) / 200)
    return GaussianMixture.of_gaussians(list(zip(means, chols, strict=True)), shares / shares.sum())


# ---- Fits that find their components


def test_components_are_found():
    fit = bures.fit(bures.models.banana(), key=jax.random.key(0), family=bures.Mixture())
    assert fit.diagnostics.ness > 0.85
    assert fit.approximation.num_components > 3
    assert fit.diagnostics.trustworthy
    again = bures.fit(bures.models.banana(), key=jax.random.key(0), family=bures.Mixture())
    np.testing.assert_array_equal(fit.approximation.means, again.approximation.means)
    few = bures.fit(bures.models.banana(), key=jax.random.key(0), family=bures.Mixture(max_components=2))
    assert few.approximation.num_components <= 2


def test_rounds_are_level_where_no_gain_is_in_sight():
    noise = np.random.default_rng(0).standard_normal(32)

    def rounds(deficits):
        return [Round(0.0, 0.5, float(deficit), 500, 0.1) for deficit in deficits]

    assert is_level(rounds(0.6 + 0.01 * noise))
    assert not is_level(rounds(0.6 + 0.4 * noise))  # too noisy to tell
    assert not is_level(rounds(np.geomspace(5, 0.5, 32)))
    assert not is_level(rounds([0.6] * 10))


@pytest.mark.parametrize("dim", [1, 3])
def test_a_mixture_beside_an_edge_comes_to_an_end(dim, key):
    """There is always a deficit at the edge, and always a component that seems to help."""
    cut = bures.Target(lambda z: jnp.where(z[0] > -0.3, -jnp.sum(z**2) / 2, -jnp.inf), dim)
    fit = bures.fit(cut, key=key, family=bures.Mixture())
    assert fit.outcome is bures.Outcome.CONVERGED
    assert fit.diagnostics.trustworthy and "where the density is zero" in str(fit)


class FailsLate:
    """A standard Gaussian, bent, that has the value `then` once it was asked for too many points."""

    def __init__(self, then, after):
        self.then, self.left, self.start = then, after, np.zeros(2)

    def gradient(self, z):
        self.left -= len(z)
        bend = z[:, 1] - z[:, 0] ** 2
        scores = np.stack([-z[:, 0] + 4 * bend * z[:, 0], -2 * bend], axis=1)
        values = -(z[:, 0] ** 2) / 2 - bend**2
        return (values, scores) if self.left >= 0 else (np.full(len(z), self.then), scores * np.nan)

    def value(self, z):
        return self.gradient(z)[0]


@pytest.mark.parametrize(("then", "outcome"), [(np.nan, "NON_FINITE"), (-np.inf, "ZERO_DENSITY")])
@pytest.mark.parametrize("by_elbo", [False, True])
def test_a_density_that_fails_late_leaves_the_last_good_mixture(then, outcome, by_elbo, monkeypatch):
    if by_elbo:
        monkeypatch.setattr(rounds, "FAR", -1.0)
    density = FailsLate(then, after=30_000 if by_elbo else 3000)
    evaluator = Evaluator(bures.Target(HostLogDensity(density), 2))
    start = GaussianMixture.of_gaussians([(np.zeros(2), np.eye(2))], np.ones(1))
    rng = np.random.default_rng(0)
    begun = rounds.first_pause(rng, start, (), 10_000, None, by_elbo)
    found = rounds.fit_mixture(rng, evaluator, begun)
    assert found.outcome is bures.Outcome[outcome]
    assert found.approximation.is_valid()
    assert found.rounds and np.all(np.isfinite([each.bound for each in found.rounds]))


def test_where_little_is_to_be_gained_a_fit_in_many_dimensions_soon_ends():
    """Its components are at their best before the draws that say so, and those are few."""
    scales = np.linspace(0.5, 2, 12)
    target = bures.Target(lambda z: -jnp.sum((z / scales) ** 2) / 2 + jnp.sum(jnp.tanh(z / scales) * 0.3), 12)
    fit = bures.fit(target, key=jax.random.key(0), family=bures.Mixture())
    assert fit.diagnostics.ness > 0.97
    assert fit.record.mixed_evaluations <= 1800


@pytest.mark.parametrize(("then", "outcome"), [(np.nan, "NON_FINITE"), (-np.inf, "ZERO_DENSITY")])
@pytest.mark.parametrize("after", [300, 800])
def test_a_fit_whose_density_fails_in_a_round_is_whole(then, outcome, after, tmp_path):
    """Before the first round is over, and after the first: no round that failed is reported, kept or paid for twice."""
    density, reported = FailsLate(then, after), []
    target = bures.Target(HostLogDensity(density), 2)

    def note(count, q, info):
        reported.append(count)

    fit = bures.fit(target, key=jax.random.key(0), family=bures.Mixture(), callback=note)
    assert fit.outcome is bures.Outcome[outcome]
    assert fit.num_steps == (after == 800) and reported == list(range(1, fit.num_steps + 1))
    assert fit.num_log_density_evaluations == after - density.left
    assert f"{fit.num_steps} rounds" in repr(fit)
    fit.save(tmp_path / "x.fit")
    loaded = bures.load(tmp_path / "x.fit", target=target)
    assert (loaded.outcome, str(loaded)) == (fit.outcome, str(fit))


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
def test_a_mixture_whose_draws_have_no_log_density_has_not_converged(unknown):
    target = bures.Target(lambda z: jnp.where(z[0] > 1, unknown, -jnp.sum(z**2) / 2), 2)
    fit = bures.fit(target, key=jax.random.key(0), family=bures.Mixture())
    assert fit.outcome is bures.Outcome.NON_FINITE
    assert fit.approximation.is_valid()
    assert not fit.diagnostics.trustworthy


def test_a_bound_that_is_not_finite_settles_nothing():
    start = GaussianMixture.of_gaussians([(np.zeros(2), np.eye(2))], np.ones(1))
    rng = np.random.default_rng(0)
    seen = [Round(bound, 0.1, 2.0, 1000, 1.0) for bound in (*np.linspace(0, 1, 59), -np.inf)]
    begun = rounds.first_pause(rng, start, (), 10_000, None)._replace(rounds=tuple(seen), by_elbo=1, polishing=1)
    assert FurtherRun(rng, None, begun).rise(1) == np.inf


def test_many_modes_do_not_make_more_than_the_most_components():
    target = bures.models.eggbox()
    fit = bures.fit(target, key=jax.random.key(0), family=bures.Mixture(max_components=2))
    assert fit.approximation.num_components == 2
    four = bures.fit(target, key=jax.random.key(0), family=bures.Mixture(max_components=4))
    assert four.approximation.num_components == 4
    error = fit.diagnostics.log_evidence_mcse
    assert abs(fit.diagnostics.log_evidence - four.diagnostics.log_evidence) < 4 * error + 0.01
    with pytest.raises(ValueError, match="init must be of at most 2 components, but got 4"):
        bures.fit(target, key=jax.random.key(0), family=bures.Mixture(max_components=2), init=four.approximation)


def test_modes_far_apart_are_both_found_and_weighed():
    fit = bures.fit(two_modes(10, 20.0), key=jax.random.key(0), family=bures.Mixture())
    assert abs(fit.diagnostics.log_evidence) < 0.02
    assert fit.diagnostics.verdict.name == "CLOSE"
    np.testing.assert_allclose(sorted(np.asarray(fit.approximation.shares)), [0.3, 0.7], atol=0.02)


def test_refine_finds_the_mode_that_a_gaussian_misses(tmp_path):
    target = two_modes(3, 20.0)
    fit = bures.fit(target, key=jax.random.key(0))
    assert fit.diagnostics.verdict.name == "SEVERAL_MODES"
    assert "fit.refine(key), by mixture" in str(fit)
    better = fit.refine(jax.random.key(1))
    assert better.diagnostics.trustworthy and abs(better.diagnostics.log_evidence) < 0.02
    assert "Refined by mixture" in str(better)
    assert better.num_log_density_evaluations > fit.num_log_density_evaluations
    with pytest.raises(ValueError, match="next rung"):
        better.refine(jax.random.key(2))
    better.save(tmp_path / "better.fit")
    loaded = bures.load(tmp_path / "better.fit", target=target)
    assert loaded.diagnostics == better.diagnostics
    assert loaded.num_log_density_evaluations == better.num_log_density_evaluations
    assert loaded.approximation.label == better.approximation.label


def test_a_mixture_exports_as_other_fits_do():
    fit = bures.fit(two_modes(), key=jax.random.key(0), family=bures.Mixture())
    assert fit.to_arviz(jax.random.key(1)).posterior.sizes["draw"] == 1000
    assert fit.nuts_start(jax.random.key(2)).inverse_mass_matrix.shape == (2, 2)
    assert fit.resample(jax.random.key(3), 10).shape == (10, 2)
    assert fit.resume(2).num_steps == fit.num_steps + 2
    assert sum(fit.evaluations) == fit.num_log_density_evaluations
