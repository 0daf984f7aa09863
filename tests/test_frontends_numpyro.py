"""NumPyro models: what a target costs to make, minibatches, discrete sites, models that only reverse mode can take."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan

import bures
from bures.frontends import from_numpyro

Y = np.array([-2.0, -1.5, 2.0, 2.5, 0.3])

# Minibatches


def subsampled(y, subsample_size):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


def subsampled_in_a_scan(y):
    def step(level, y):
        with numpyro.plate("inner", 7, subsample_size=3):
            level = numpyro.sample("level", dist.Normal(level, 1)).mean()
        return level, numpyro.sample("y", dist.Normal(level, 1), obs=y)

    scan(step, 0.0, y)


def of_its_own_rows(y, subsample_size):
    mean, scale = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", len(y), subsample_size=subsample_size):
        batch = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, scale), obs=batch)


def one_minibatch(y, subsample_size):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", 10, subsample_size=subsample_size):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[:2])


def one_row(y, subsample_size):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", 10, subsample_size=subsample_size):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[:1])


def with_local_latents(y, subsample_size):
    with numpyro.plate("rows", len(y), subsample_size=subsample_size) as rows:
        local = numpyro.sample("local", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(local, 1), obs=y[rows])


def with_a_mean_of_the_batch(y, subsample_size):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Normal(mean + y[rows].mean(), 1), obs=y[rows])


def with_two_plates(y, subsample_size):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    for name in ("one", "two"):
        with numpyro.plate(name, len(y), subsample_size=subsample_size) as rows:
            numpyro.sample(f"y{name}", dist.Normal(mean, 1), obs=y[rows])


@pytest.mark.parametrize("model", [subsampled, of_its_own_rows])
def test_a_subsampled_plate_has_the_posterior_of_all_rows(model):
    part, whole = from_numpyro(model, Y, 2), from_numpyro(model, Y, None)
    z = jnp.array([0.4, -0.2])[: part.dim]
    np.testing.assert_allclose(part.log_density(z), whole.log_density(z), rtol=1e-12)


@pytest.mark.parametrize("model", [subsampled, of_its_own_rows])
def test_many_rows_of_a_plate_are_a_factorised_target(model, monkeypatch):
    monkeypatch.setattr("bures.frontends.numpyro_rows.is_large", lambda rows, dim: True)
    part, whole = from_numpyro(model, Y, 2), from_numpyro(model, Y, None)
    assert part.log_density.num_rows == 5
    z = jnp.array([[0.4, -0.2], [1.0, 0.3]])[:, : part.dim]
    for found, wanted in zip(part.value_and_score(z), whole.value_and_score(z), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    arrays = [leaf for leaf in jax.tree.leaves(part.log_density.log_likelihood) if eqx.is_array(leaf)]
    np.testing.assert_array_equal(arrays[0], Y)  # an argument of what is compiled, no constant


def test_a_fit_by_batches_of_a_plate(monkeypatch):
    monkeypatch.setattr("bures.frontends.numpyro_rows.is_large", lambda rows, dim: True)
    y = np.random.default_rng(0).normal(0.3, 1.2, 3000)
    part, whole = (bures.fit(from_numpyro(of_its_own_rows, y, size), key=jax.random.key(0)) for size in (100, None))
    p = whole.approximation
    assert part.record.rows.num_rows == 3000
    np.testing.assert_allclose((part.approximation.mean - p.mean) / p.standard_deviations, 0, atol=0.02)
    np.testing.assert_allclose(part.approximation.standard_deviations / p.standard_deviations, 1, atol=0.02)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_local_latents, "latent variable 'local' is inside the plate 'rows', which takes 2 of its 5 rows"),
        (with_a_mean_of_the_batch, "log density of 'y' depends on which rows of the plate 'rows' come together"),
        (with_two_plates, "plates 'one', 'two' all take a part of their rows"),
        (one_row, "data of 'y' do not have the 10 rows of the plate 'rows'.*full data"),
        (one_minibatch, "data of 'y' do not have the 10 rows of the plate 'rows'.*full data"),
    ],
)
def test_rows_that_cannot_be_subsampled_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        from_numpyro(model, Y, 2)


def test_a_subsampled_plate_in_a_scan_is_refused():
    with pytest.raises(ValueError, match="plate 'inner' takes 3 of its 7 rows"):
        from_numpyro(subsampled_in_a_scan, Y)


def test_a_plate_of_all_rows_is_no_subsample():
    """And its indices take rows of NumPy's arrays."""
    whole, plain = (from_numpyro(subsampled, Y, size).log_density(jnp.ones(1)) for size in (5, None))
    assert whole == plain
    np.testing.assert_allclose(whole, dist.Normal(0, 1).log_prob(1) + dist.Normal(1, 1).log_prob(Y).sum(), rtol=1e-12)


def test_a_scale_of_the_model_is_in_the_density():
    def model():
        x = numpyro.sample("x", dist.Normal(0, 1))
        with numpyro.handlers.scale(scale=3.0):
            numpyro.sample("y", dist.Normal(x, 1), obs=Y)

    expected = dist.Normal(0, 1).log_prob(0.5) + 3 * dist.Normal(0.5, 1).log_prob(Y).sum()
    np.testing.assert_allclose(from_numpyro(model).log_density(jnp.array([0.5])), expected, rtol=1e-12)


# Discrete sites


def mixture(y):
    share = numpyro.sample("share", dist.Beta(2, 2))
    mean = numpyro.sample("mean", dist.Normal(0, 3).expand([2]).to_event(1))
    numpyro.deterministic("gap", mean[1] - mean[0])
    numpyro.sample("prior_guess", dist.Normal(mean.sum(), 1), obs=0.1)
    with numpyro.plate("rows", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.deterministic("label", 2 * kind)
        numpyro.sample("y", dist.Normal(mean[kind], 0.7), obs=y)


def mixture_by_hand(z):
    mean, share = z[:2], jax.nn.sigmoid(z[2])
    prior = dist.Beta(2, 2).log_prob(share) + jnp.log(share * (1 - share)) + dist.Normal(0, 3).log_prob(mean).sum()
    parts = jnp.log(jnp.array([1 - share, share]))[:, None] + dist.Normal(mean[:, None], 0.7).log_prob(Y)
    return prior + dist.Normal(mean.sum(), 1).log_prob(0.1) + logsumexp(parts, axis=0).sum()


def hidden_markov(y):
    stay = numpyro.sample("stay", dist.Beta(2, 2))
    moves = jnp.array([[stay, 1 - stay], [1 - stay, stay]])

    def step(state, y):
        state = numpyro.sample("state", dist.Categorical(moves[state]))
        return state, numpyro.sample("y", dist.Normal(3.0 * state, 1), obs=y)

    scan(step, 0, y)


def hidden_markov_by_hand(z):
    stay = jax.nn.sigmoid(z[0])
    moves, alpha = jnp.array([[stay, 1 - stay], [1 - stay, stay]]), jnp.array([1.0, 0.0])
    total = dist.Beta(2, 2).log_prob(stay) + jnp.log(stay * (1 - stay))
    for y in Y:
        alpha = (alpha @ moves) * jnp.exp(dist.Normal(jnp.array([0.0, 3.0]), 1).log_prob(y))
        total, alpha = total + jnp.log(alpha.sum()), alpha / alpha.sum()
    return total


@pytest.mark.parametrize(
    ("model", "by_hand", "names"),
    [(mixture, mixture_by_hand, ("mean[0]", "mean[1]", "share")), (hidden_markov, hidden_markov_by_hand, ("stay",))],
)
def test_discrete_sites_are_summed_out(model, by_hand, names, key):
    pytest.importorskip("funsor")
    target = from_numpyro(model, Y)
    assert target.names == names
    z = jax.random.normal(key, (4, target.dim))
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(z)
    expected, expected_scores = jax.vmap(jax.value_and_grad(by_hand))(z)
    np.testing.assert_allclose(values, expected, rtol=1e-8)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6, atol=1e-8)


def test_what_depends_on_a_summed_out_site_is_left_out(key):
    pytest.importorskip("funsor")
    target = from_numpyro(mixture, Y)
    z = jax.random.normal(key, (4, 3))
    variables = jax.vmap(target.constrain)(z)
    assert set(variables) == {"gap", "mean", "share"}
    np.testing.assert_allclose(variables["gap"], z[:, 1] - z[:, 0])
    assert set(jax.vmap(target.labels.log_likelihood)(z)) == {"prior_guess"}
    np.testing.assert_array_equal(target.labels.observed_data["y"], Y)
    assert target.log_density.explain(z[0]) == "no single site is to blame"
    assert "'mean'" in target.log_density.explain(z[0] * np.nan)


def one_discrete(distribution):
    def model():
        count = numpyro.sample("count", distribution)
        numpyro.sample("x", dist.Normal(count, 1))

    return model


def test_discrete_sites_that_cannot_be_summed_out():
    with pytest.raises(ValueError, match=r"'count' is discrete.*Poisson has no enumerate support"):
        from_numpyro(one_discrete(dist.Poisson(3)))
    with pytest.raises(ValueError, match=r"'count' is discrete.*shift it to begin at 0"):  # NumPyro takes 1..3 for 0..2
        from_numpyro(one_discrete(dist.DiscreteUniform(1, 3)))


def test_without_funsor_a_discrete_site_is_refused(monkeypatch):
    for name in ("funsor", "numpyro.contrib.funsor"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(numpyro.contrib, "funsor", raising=False)
    with pytest.raises(ValueError, match=r"'kind' is discrete.*pip install funsor"):
        from_numpyro(mixture, Y)
    with pytest.raises(ValueError, match=r"'count' is discrete.*Poisson"):
        from_numpyro(one_discrete(dist.Poisson(3)))


def test_a_support_that_depends_on_a_summed_out_site_is_refused():
    pytest.importorskip("funsor")

    def model():
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Uniform(0.0, 1.0 + kind))

    with pytest.raises(ValueError, match=r"support of 'x' depends on the discrete 'kind'"):
        from_numpyro(model)


# Models of the gallery


def predator_prey(y):
    """NumPyro's example. `odeint` has a rule for reverse mode only."""

    def rate(z, t, theta):
        hares, lynxes = z
        return jnp.stack([(theta[0] - theta[1] * lynxes) * hares, (theta[3] * hares - theta[2]) * lynxes])

    start = numpyro.sample("start", dist.LogNormal(jnp.log(10), 1).expand([2]))
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.2, 0.01, 0.2, 0.01])
    theta = numpyro.sample("theta", dist.TruncatedNormal(low=0.0, loc=loc, scale=scale))
    z = odeint(rate, start, jnp.arange(float(len(y))), theta, rtol=1e-6, atol=1e-5, mxstep=1000)
    numpyro.sample("y", dist.LogNormal(jnp.log(z), 0.3), obs=y)


def test_a_model_of_reverse_mode_only_becomes_a_target():
    target = from_numpyro(predator_prey, np.full((4, 2), 10.0))
    # The start is at the centres of the priors; of a normal that is truncated far out, that is all but its location.
    np.testing.assert_allclose(target.initial_point, np.log([10, 10, 1, 0.05, 1, 0.05]), atol=1e-5)
    value, score = jax.jit(jax.value_and_grad(target.log_density))(target.initial_point)
    assert np.isfinite(value)
    assert np.all(np.isfinite(score))


def test_starts_are_prior_means_where_numpy_knows_them():
    def model():
        numpyro.sample("a", dist.Normal(3, 1))
        scale = numpyro.sample("b", dist.Gamma(2, 0.5))
        numpyro.sample("c", dist.HalfCauchy(scale))  # no mean
        means = numpyro.sample("d", dist.Normal(jnp.array([1.0, 2.0]), 1))
        numpyro.sample("e", dist.Normal(means[np.array([0, 1, 0])], 1))
        numpyro.sample("f", dist.LKJCholesky(3))  # no mean
        numpyro.sample("g", dist.ImproperUniform(dist.constraints.positive, (), ()))
        numpyro.sample("h", dist.Beta(3, 1))
        numpyro.sample("i", dist.LogNormal(2, 10).expand([2]).to_event(1))  # its mean is exp(52)

    target = from_numpyro(model)
    expected = [3, np.log(4), 0, 1, 2, 1, 2, 1, 0, 0, 0, 0, np.log(3), 2, 2]
    np.testing.assert_allclose(target.initial_point, expected, atol=1e-12)
    candidates = target.log_density.initial_candidates()
    np.testing.assert_allclose(candidates, [expected, np.zeros(15)], atol=1e-12)


def test_param_sites_keep_their_initial_values():
    def model():
        scale = numpyro.param("scale", 2.0)
        shift = numpyro.param("shift", lambda key: jax.random.normal(key))
        numpyro.sample("x", dist.Normal(shift, scale))

    target = from_numpyro(model)
    shift = 4 * jax.grad(target.log_density)(jnp.zeros(1))  # of N(shift, 2²)
    assert shift != 0
    np.testing.assert_allclose(target.log_density(shift), dist.Normal(0, 2).log_prob(0.0), rtol=1e-12)


def test_data_that_the_model_computes():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("log_y", dist.Normal(x, 1), obs=jnp.log(y))

    target = from_numpyro(model, np.array([1.0, np.e]))
    np.testing.assert_allclose(target.labels.observed_data["log_y"], [0, 1], atol=1e-12)
    np.testing.assert_allclose(
        target.labels.log_likelihood(jnp.zeros(1))["log_y"], dist.Normal(0, 1).log_prob(jnp.array([0.0, 1.0]))
    )


BAD = {
    "not a model": (lambda: from_numpyro(3), "model must be a NumPyro model, which is a function"),
    "Delta": (lambda: from_numpyro(lambda: numpyro.sample("x", dist.Delta(1.0))), "'x' has a Delta.*deterministic"),
    "twice": (lambda: from_numpyro(lambda: [numpyro.sample("x", dist.Normal()) for _ in "ab"]), "cannot be run.*'x'"),
    "sizes by JAX": (
        lambda: from_numpyro(lambda y: numpyro.sample("x", dist.Normal().expand([int(jnp.max(y))])), Y),
        "cannot be run.*use NumPy for what the data alone decide",
    ),
    "support": (
        lambda: from_numpyro(lambda: numpyro.sample("x", dist.ProjectedNormal(jnp.ones(3)))),
        "'x' has the support Sphere.*reparam",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_models_are_refused_with_a_remedy(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


# What it costs


def test_a_target_is_made_without_a_compilation():
    program = """
import jax
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: programs.append(event) if event.endswith("backend_compile_duration") else None
)
import jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist, bures
from tests.test_frontends_numpyro import predator_prey
from tests.test_frontends import numpyro_schools, SIGMA, Y

def slopes(group, y):
    scale = numpyro.sample("scale", dist.HalfNormal(jnp.ones(2)))
    factor = scale[:, None] * numpyro.sample("correlation", dist.LKJCholesky(2, concentration=2))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.MultivariateNormal(jnp.zeros(2), scale_tril=factor))
    numpyro.sample("y", dist.Binomial(10, logits=effect[group, 0] + effect[group, 1]), obs=y)

programs.clear()
bures.frontends.from_numpyro(numpyro_schools, SIGMA, y=Y)
bures.frontends.from_numpyro(slopes, np.array([0, 1, 2, 0]), np.array([3, 4, 5, 6]))
target = bures.frontends.from_numpyro(predator_prey, np.full((4, 2), 10.0))
assert not programs, programs
target.log_density(target.initial_point)
assert len(programs) == 1, programs  # an event that is not sent would not be counted either
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_way_back_is_not_traced_until_it_is_used():
    runs = []

    def model():
        runs.append(1)
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x, 1), obs=Y)

    target = from_numpyro(model)
    assert len(runs) == 2  # to see the sites, and to see that the density has their shapes
    jax.jit(jax.vmap(jax.value_and_grad(target.log_density))).lower(np.zeros((3, 1)))
    assert len(runs) == 2
    jax.vmap(target.constrain)(jnp.zeros((2, 1)))
    assert len(runs) == 3
