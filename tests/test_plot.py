"""Every figure draws, shows what it should, says what it means, and is one that pyplot knows of."""

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
from bures.plot.fits import describe_objective, noise_band
from bures.plot.views import bulk
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
def settings_stay():
    mpl.use("Agg")
    before = dict(mpl.rcParams)
    yield
    plt.close("all")
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
    low, high = bulk(values)
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
    assert describe_objective(objective) == label


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
        assert axes[0].patches
    assert not plot.marginals(spatial, False)[0].patches
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


# ---- The model's own scale ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def positive():
    """A log-normal and a normal variable, of two elements, and a sum that is computed from them."""

    def log_density(tau, field):
        return -((jnp.log(tau) - 1) ** 2) / (2 * 0.5**2) - jnp.log(tau) - jnp.sum(field**2) / 2

    labels = bures.target.Labels(coords={"side": ["left", "right"]}, dims={"field": ["side"]})
    layout = bures.Target.from_variables(log_density, {"tau": bures.support.Positive(), "field": (2,)}, labels=labels)

    def constrain(z):
        values = layout.constrain(z)
        return {**values, "sum": jnp.sum(values["field"]), "sign": (values["field"][0] > 0).astype(int)}

    target = bures.Target(layout.log_density, 3, names=layout.names, constrain=constrain, labels=labels)
    return bures.fit(target, key=jax.random.key(0))


def log_normal(x, location=1.0, scale=0.5):
    return np.exp(-(((np.log(x) - location) / scale) ** 2) / 2) / (x * scale * np.sqrt(2 * np.pi))


def test_marginals_are_on_the_models_own_scale(positive):
    axes = plot.marginals(positive, variables=["tau", "field", "sum", "sign"])
    render(axes[0].figure)
    assert [ax.get_xlabel() for ax in axes] == ["tau", "field[left]", "field[right]", "sum", "sign"]
    x, density = axes[0].lines[0].get_data()
    assert x.min() > 0
    np.testing.assert_allclose(density, log_normal(x), atol=0.01)  # exact: not that of draws
    # The grey bars are the draws of the table, by their weights.
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height() * bar.get_width()) for bar in axes[0].patches]
    mean = sum(x * share for x, share in bars) / sum(share for _, share in bars)
    assert mean == pytest.approx(positive.summary()["tau"]["mean"], rel=0.02)
    x, density = axes[3].lines[0].get_data()  # of draws, smoothed: N(0, 2)
    np.testing.assert_allclose(density, np.exp(-(x**2) / 4) / np.sqrt(4 * np.pi), atol=0.04)
    points = dict(zip(*axes[4].lines[0].get_data(), strict=True))  # a discrete one has bars
    assert set(points) == {0.0, 1.0} and sum(points.values()) == pytest.approx(1)


def test_coordinates_are_shown_where_asked_for(positive):
    ax, *_ = plot.marginals(positive, False, constrained=False)
    x, density = ax.lines[0].get_data()
    assert ax.get_xlabel() == "tau" and x.min() < 0
    assert x[np.argmax(density)] == pytest.approx(1, abs=0.05)


def test_pairs_are_on_the_models_own_scale(positive):
    grid = plot.pairs(positive, variables=["tau", "field[right]", "sum"])
    render(grid[0, 0].figure)
    x, y = grid[1, 0].lines[0].get_data()  # one standard deviation, mapped
    assert np.max(np.log(x)) == pytest.approx(1.5, abs=0.03) and np.max(y) == pytest.approx(1, abs=0.03)
    assert not grid[2, 1].lines and len(grid[2, 1].collections) == 2  # outlines of draws over those of the weights


def test_references_by_name(positive):
    rng = np.random.default_rng(0)
    named = {"tau": np.exp(1 + 0.5 * rng.normal(size=(4, 500))), "other": np.zeros(5)}
    axes = plot.marginals(positive, named, variables=["tau", "field[left]"], reference_name="NUTS")
    assert axes[0].patches and not axes[1].patches
    tree = positive.to_arviz(jax.random.key(0))
    assert all(ax.patches for ax in plot.marginals(positive, tree, variables=["tau", "field[left]"]))
    with pytest.raises(ValueError, match="reference must be with draws of the model's variables"):
        plot.marginals(positive, {"nothing": np.zeros(3)})
    with pytest.raises(ValueError, match=r"variables must be among tau, field, .*but got 'mu'"):
        plot.marginals(positive, variables=["mu"])


def test_latent_variables_are_shown_first_and_fairly(positive):
    assert [ax.get_xlabel() for ax in plot.marginals(positive, max_coordinates=2)] == ["tau", "field[left]"]
    assert [ax.get_xlabel() for ax in plot.marginals(positive)] == ["tau", "field[left]", "field[right]"]


def test_a_long_tail_does_not_hide_the_rest():
    target = bures.Target.from_variables(lambda tau: -((jnp.log(tau)) ** 2) / 18, {"tau": bures.support.Positive()})
    (ax,) = plot.marginals(bures.fit(target, key=jax.random.key(0)))
    assert ax.get_xlim()[1] < 1e6  # log tau ~ N(9, 3): the quantile of 99.9% is 86 million


# ---- Noise, and pyplot ----------------------------------------------------------------------------------------------


def test_the_noise_band_holds_estimates_of_the_final_bound(spatial):
    level, widths = noise_band(spatial)
    draws = spatial.approximation.sample(jax.random.key(5), 20_000)
    values = np.asarray(spatial.target.value(draws) - spatial.approximation.log_prob(draws))
    assert level == pytest.approx(values.mean(), abs=0.1)
    estimates = values[: 2000 * 10].reshape(-1, 10).mean(axis=1)  # ten draws a step
    inside = np.mean(np.abs(estimates - values.mean()) < widths[-1])
    assert widths.shape == (20,) and 0.92 < inside < 0.98
    ax = plot.bound_trace(spatial)
    assert labels(ax) == ["bound at the end ± noise of a step"]
    low, high = ax.get_ylim()
    assert low < level - widths[-1] and high > level + widths[-1]


def test_a_short_run_is_drawn_within_its_noise():
    ax = plot.bound_trace(bures.fit(bures.models.student_t(3), key=jax.random.key(0), num_steps=3))
    render(ax.figure)
    assert len(ax.lines[0].get_xdata()) == 3 and ax.lines[0].get_marker() == "o" and ax.collections


def test_pyplot_knows_the_figures(positive, tmp_path):
    figure = plot.summary(positive)
    assert plt.gcf() is figure
    plt.savefig(tmp_path / "summary.png")
    ax = plot.bound_trace(positive)
    assert plt.gca() is ax and len(plt.get_fignums()) == 2
    ax.figure.savefig(tmp_path / "bound.pdf")
    assert (tmp_path / "summary.png").stat().st_size > 10_000 and (tmp_path / "bound.pdf").stat().st_size > 3_000


def test_table_and_figure_state_one_khat(planar):
    khat = f"k̂ = {planar.diagnostics.khat:.2f}"
    assert khat in title(plot.weights_tail(planar)) and khat in str(planar.summary())
