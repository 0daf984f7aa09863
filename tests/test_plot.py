"""Every figure draws, shows what it should, says what it means, and leaves nothing behind in pyplot."""

import io

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from problems import low_rank_gaussian

import bures
from bures import plot
from bures.reference import Chains

NAMES = ("intercept", "age", "hours", "sex", "race", "gain", "loss")
DIM = len(NAMES)
# Figures do not ask how a fit came about: steps that compile soon, from a start that need not be sought.
QUICK = {"objective": bures.ELBO(), "estimator": bures.Stein(M=10), "geometry": bures.BuresWasserstein(step_size=0.1)}


@pytest.fixture(scope="module")
def planar():
    """The eggbox in few steps, from a start whose first bounds are far below the rest."""
    init = bures.Gaussian.from_moments(jnp.array([6.0, 12.0]), 5 * jnp.eye(2))
    options = {"objective": bures.IWELBO(K=5), "estimator": bures.Price(M=20)}
    geometry = bures.BuresWasserstein(step_size=0.5)
    return bures.fit(
        bures.models.eggbox(), key=jax.random.key(0), init=init, num_steps=30, geometry=geometry, **options
    )


@pytest.fixture(scope="module")
def spatial():
    X = jax.random.normal(jax.random.key(1), (60, DIM))
    y = (X[:, 1] + jax.random.normal(jax.random.key(2), (60,)) > 0).astype(float)
    target = bures.models.logistic_regression(X, y, names=NAMES)
    return bures.fit(target, key=jax.random.key(0), num_steps=20, init=bures.Gaussian.standard(DIM), **QUICK)


@pytest.fixture(scope="module")
def chains():
    draws = np.random.default_rng(0).standard_normal((3, 200, DIM))
    return Chains(draws, np.full(3, 0.5), NAMES)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before, figures = dict(mpl.rcParams), plt.get_fignums()
    yield
    assert plt.get_fignums() == figures
    assert dict(mpl.rcParams) == before


def render(figure):
    """Draw it for real: layout and text errors show only then."""
    figure.savefig(io.BytesIO(), dpi=40)


def title(ax):
    return ax.get_title(loc="left")


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_evolution_shows_the_path_and_the_end(planar):
    ax = plot.evolution(planar, samples=planar.target.sample(jax.random.key(0), 50))
    render(ax.figure)
    assert labels(ax) == ["0", "1", "2", "5", "10", "20", "30 (final)"]
    ellipses = [line for line in ax.lines if len(line.get_xdata()) == 200]
    assert len(ellipses) == 2 * 7
    # The last ellipse is where the final approximation is two standard deviations from its mean.
    noise = planar.approximation.whiten(jnp.asarray(ellipses[-1].get_xydata()))
    np.testing.assert_allclose(np.linalg.norm(noise, axis=1), 2, rtol=1e-6)
    (low, high), draws = ax.get_ylim(), np.asarray(planar.target.sample(jax.random.key(1), 1000))[:, 1]
    assert np.mean((draws > low) & (draws < high)) > 0.98


def test_evolution_without_samples_or_moments(key):
    target = bures.Target(lambda z: -jnp.sum((z / jnp.array([1.0, 100.0])) ** 2) / 2, dim=2, names=("a", "b"))
    init = bures.Gaussian(jnp.zeros(2), jnp.diag(jnp.array([1.0, 100.0])))
    ax = plot.evolution(bures.fit(target, key=key, num_steps=2, init=init, **QUICK))
    render(ax.figure)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    assert ax.get_aspect() == "auto"


def test_evolution_needs_a_plane(spatial):
    with pytest.raises(ValueError, match=r"fit must be one of a target in the plane.*7 dimensions"):
        plot.evolution(spatial)


def test_bound_trace_is_robust_and_marks_the_safeguard(planar):
    ax = plot.bound_trace(planar)
    render(ax.figure)
    assert ax.get_ylabel() == "IW-ELBO, K = 5 (nats)"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), planar.trace.bound)
    clipped = np.flatnonzero(planar.trace.clipped)
    assert ("safeguard" in title(ax)) == bool(clipped.size)
    if clipped.size:
        np.testing.assert_array_equal(ax.lines[-1].get_xdata(), clipped)


def test_bulk_ignores_a_terrible_start():
    values = np.concatenate([-np.logspace(9, 1, 20), np.linspace(-1, 0, 180)])
    low, high = plot._bulk(values)
    assert -10 < low < -1
    assert 0 < high < 1


@pytest.mark.parametrize(
    ("objective", "label"),
    [
        (bures.ELBO(), "ELBO"),
        (bures.IWELBO(K=3), "IW-ELBO, K = 3"),
        (bures.VRIWAE(K=3, alpha=0.25), "VR-IWAE, K = 3, α = 0.25"),
    ],
)
def test_objectives_are_named(objective, label):
    assert plot._describe(objective) == label


def test_weights_tail_states_khat(planar, key):
    ax = plot.weights_tail(planar, key, num_samples=1000)
    render(ax.figure)
    pool = bures.diagnostics.WeightedDraws.draw(key, planar.approximation, planar.target, 1000)
    assert f"k̂ = {bures.diagnostics.pareto_khat(pool.log_weights):.2f}" in title(ax)
    assert labels(ax) == ["fitted generalised Pareto"]


def test_weights_tail_of_exact_and_useless_approximations(key):
    exact = bures.fit(bures.models.gaussian(1), key=key, num_steps=1, init=bures.Gaussian.standard(1), **QUICK)
    assert "exact" in title(plot.weights_tail(exact, key, num_samples=500))
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -jnp.sum(z), -jnp.inf), dim=1)
    useless = bures.fit(half, key=key, num_steps=2, init=bures.Gaussian(-50 * jnp.ones(1), jnp.eye(1)), **QUICK)
    assert "not to be trusted" in title(plot.weights_tail(useless, key, num_samples=500))
    figure = plot.summary(useless, key)
    render(figure)
    assert "no finite bound to show" in [title(ax) for ax in figure.axes]


def test_marginals_against_every_kind_of_reference(spatial, chains):
    gaussian = bures.Gaussian.standard(DIM)
    for reference in (None, np.asarray(chains.flat), chains, gaussian):
        axes = plot.marginals(spatial, reference)
        render(axes[0].figure)
        assert [ax.get_xlabel() for ax in axes] == list(NAMES)
        assert bool(axes[0].patches) == (reference is not None)
    x, density = axes[1].lines[0].get_data()
    assert x[np.argmax(density)] == pytest.approx(float(spatial.approximation.mean[1]), abs=0.05)
    assert np.max(density) == pytest.approx(0.39894 / float(spatial.approximation.standard_deviations[1]), rel=1e-2)


def test_marginals_of_several_approximations_and_few_coordinates(spatial):
    named = {"fit": spatial, "prior": bures.Gaussian.standard(DIM)}
    axes = plot.marginals(named, max_coordinates=3, names=tuple("abcdefg"))
    assert [ax.get_xlabel() for ax in axes] == ["a", "b", "c"]
    assert len(axes[0].figure.axes) == 3
    assert [line.get_label() for line in axes[0].lines] == ["fit", "prior"]
    (legend,) = axes[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fit", "prior"]


def test_marginals_draw_on_given_axes(spatial):
    figure = Figure()
    given = list(figure.subplots(1, DIM))
    assert plot.marginals(spatial, axes=given) == given
    with pytest.raises(ValueError, match="axes must be 3 axes, one per coordinate shown, but got '7 axes'"):
        plot.marginals(spatial, max_coordinates=3, axes=given)


def test_pairs_are_a_lower_triangle(spatial, chains):
    named = {"fit": spatial, "prior": bures.Gaussian.standard(DIM)}
    grid = plot.pairs(named, chains, reference_name="MCMC", max_coordinates=3)
    render(grid[0, 0].figure)
    assert grid.shape == (3, 3)
    assert [[ax is not None for ax in row] for row in grid] == np.tri(3, dtype=bool).tolist()
    assert [ax.get_xlabel() for ax in grid[-1]] == list(NAMES[:3])
    assert len(grid[2, 0].lines) == 2 * 2  # two ellipses for each of two Gaussians
    assert len(grid[2, 0].collections) == 1
    assert len(grid[1, 1].lines) == 2
    (legend,) = grid[0, 0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["MCMC", "fit", "prior"]
    points = grid[2, 0].lines[3].get_xydata()
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 2)


def test_comparisons_must_match(spatial):
    with pytest.raises(ValueError, match="approximations and reference must be of one dimension"):
        plot.marginals(spatial, np.zeros((10, 3)))
    with pytest.raises(ValueError, match="reference must be draws"):
        plot.marginals(spatial, np.zeros(10))
    with pytest.raises(ValueError, match="names must be 7 strings"):
        plot.pairs(spatial, names=("a",))
    with pytest.raises(ValueError, match="approximations must be a fit"):
        plot.pairs({})
    with pytest.raises(ValueError, match="max_coordinates must be a positive integer"):
        plot.pairs(spatial, max_coordinates=0)


def test_chain_traces(chains):
    axes = plot.chain_traces(chains, max_coordinates=2)
    render(axes[0].figure)
    assert [ax.get_ylabel() for ax in axes] == list(NAMES[:2])
    assert all(len(ax.lines) == 3 for ax in axes)
    assert "R̂ = " in title(axes[0])
    long = Chains(np.zeros((1, 5001, 1)), np.ones(1), ("z",))
    assert len(plot.chain_traces(long)[0].lines[0].get_xdata()) == 834


def test_autocorrelations(chains):
    axes = plot.autocorrelations(chains, max_lag=500)
    render(axes[0].figure)
    assert len(axes) == DIM
    curves = [line.get_ydata() for line in axes[1].lines[1:]]
    np.testing.assert_allclose(np.array(curves), chains.autocorrelation(199)[:, :, 1])


def test_summary(planar, spatial, key):
    figure = plot.summary(planar, key)
    render(figure)
    assert len(figure.axes) == 3
    assert figure.get_suptitle().startswith(
        "Fit of 2 dimensions by IWELBO × Price × BuresWasserstein, full rank, 30 steps: "
    )
    figure = plot.summary(spatial, key)
    render(figure)
    assert len(figure.axes) == 2 + 6


def test_summary_wants_a_typed_key(planar):
    draw = plot.summary.__wrapped__
    with pytest.raises(ValueError, match="key must be a typed JAX random key"):
        getattr(draw, "__wrapped__", draw)(planar, 0)


# ---- Families -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [bures.MeanField(), bures.LowRank()], ids=str)
def test_every_figure_draws_every_family(family, spatial):
    fit = bures.fit(spatial.target, key=jax.random.key(0), family=family)
    assert isinstance(fit.approximation, bures.LowRankGaussian)
    figure = plot.summary(fit)
    render(figure)
    assert fit.approximation.label in figure.get_suptitle()
    axes = plot.marginals(fit, fit.approximation)
    density = axes[1].lines[0].get_ydata()
    assert np.max(density) == pytest.approx(0.39894 / float(fit.approximation.standard_deviations[1]), rel=1e-2)
    grid = plot.pairs({"fit": fit, "full": spatial}, max_coordinates=3)
    render(grid[0, 0].figure)
    # The ellipse is where the pair's own Gaussian is two standard deviations from its mean.
    noise = fit.approximation.marginal([0, 2]).whiten(jnp.asarray(grid[2, 0].lines[1].get_xydata()))
    np.testing.assert_allclose(np.linalg.norm(noise, axis=1), 2, rtol=1e-6)


@pytest.mark.parametrize("family", [bures.MeanField(), bures.LowRank()], ids=str)
def test_paths_of_families_in_the_plane(family, key):
    target = bures.Target(lambda z: -(z[0] ** 2 + z[1] ** 2 - z[0] * z[1]), 2)
    fit = bures.fit(target, key=key, family=family, init=bures.Gaussian.standard(2), num_steps=2, **QUICK)
    ax = plot.evolution(fit)
    render(ax.figure)
    assert labels(ax) == ["0", "1", "2 (final)"]


def test_figures_in_many_dimensions_make_no_matrix(key):
    """In 5000 dimensions a covariance is refused; marginals and pairs are not."""
    q = low_rank_gaussian(1, 5000)
    axes = plot.marginals({"q": q, "mean field": bures.MeanField().of(q)}, q, max_coordinates=2)
    assert len(axes) == 2 and axes[0].patches
    assert plot.pairs(q, max_coordinates=2).shape == (2, 2)
