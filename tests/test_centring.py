"""Degrees of centring: the change of variables, the sites that front-ends find, and what is learned."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bures import Target, engine, fit
from bures.centring import (
    Conditioned,
    Recentred,
    Warp,
    change_by_numbers,
    change_coordinates,
    changes_of,
    numbers_of,
    recentre,
)
from bures.engine import Evaluator
from bures.learned_centring import learn_centring
from bures.support import Positive
from bures.target import LocationScale


def normal(x, mean, scale):
    return -jnp.sum(((x - mean) / scale) ** 2) / 2 - jnp.sum(jnp.log(scale * jnp.ones_like(x)))


def schools(errors, *, spread=10.0, groups=8):
    """Group means with known errors: of the kind of the eight schools, but other data."""
    means = np.random.default_rng(3).normal(size=groups) * spread

    def log_density(mu, tau, theta):
        prior = normal(mu, 0.0, 20.0) - jnp.log1p((tau / 10) ** 2)
        return prior + normal(theta, mu, tau) - jnp.sum(((means - theta) / errors) ** 2) / 2

    variables = {"mu": (), "tau": Positive(), "theta": (groups,)}
    return Target.from_variables(log_density, variables, location_scale={"theta": lambda mu, tau: (mu, tau)})


def two_levels():
    """Regions, and places in them; a second factor with scales of its own."""

    def log_density(region, place, other, mu, scales):
        total = normal(mu, 0.0, 3.0) - jnp.sum(scales) + normal(region, mu, scales[0])
        total += normal(place, region[:, None], scales[1]) + normal(other, 0.0, scales[2])
        return total - jnp.sum((place + other - 1.0) ** 2)

    variables = {"place": (3, 2), "region": (3,), "other": (2,), "mu": (), "scales": (Positive(), (3,))}
    sites = {
        "place": lambda region, scales: (region[:, None], scales[1]),
        "other": lambda scales: (0.0, scales[2]),
        "region": lambda mu, scales: (mu, scales[0]),
    }
    return Target.from_variables(log_density, variables, location_scale=sites)


@pytest.fixture(params=["schools", "two_levels"])
def target(request):
    return schools(1.0) if request.param == "schools" else two_levels()


def compiled() -> int:
    """Programs of targets that there are."""
    return engine._PROGRAMS.count


def some_degrees(target):
    count = sum(site.size for site in target.sites)
    return np.random.default_rng(1).uniform(size=count)


def test_parents_come_first():
    assert [site.name for site in two_levels().sites] == ["other", "region", "place"]


def changes(target):
    """One change of coordinates of each kind, with numbers of no meaning."""
    rng, count, dim = np.random.default_rng(2), sum(site.size for site in target.sites), target.dim
    numbers = 0.3 * rng.normal(size=(2, dim)), rng.uniform(0.7, 1.4, size=(2, dim))
    origin, *slopes = 0.3 * rng.normal(size=dim - count), *(0.3 * rng.normal(size=(2, count, dim - count)))
    factors = rng.exponential(size=count), rng.normal(size=count)
    return {
        "recentred": Recentred(target.sites, jnp.asarray(some_degrees(target))),
        "conditioned": Conditioned(target.sites, *map(jnp.asarray, factors)),
        "following": Conditioned(target.sites, *map(jnp.asarray, (*factors, origin, *slopes))),
        "warp": Warp(*map(jnp.asarray, (numbers[0][0], numbers[1][0], numbers[0][1], numbers[1][1]))),
    }


@pytest.mark.parametrize("kind", ["recentred", "conditioned", "following", "warp"])
def test_change_of_variables_is_exact(target, kind):
    change = changes(target)[kind]
    changed = change_coordinates(target, change)
    z = jax.random.normal(jax.random.key(0), (target.dim,))
    x, log_jacobian = change.restore(z)
    jacobian = jax.jacobian(lambda z: change.restore(z)[0])(z)
    assert jnp.allclose(log_jacobian, jnp.linalg.slogdet(jacobian)[1], rtol=1e-10)
    assert jnp.allclose(changed.log_density(z), target.log_density(x) + log_jacobian, rtol=1e-10)
    assert jnp.allclose(change.apply(x), z, rtol=1e-8)
    assert changes_of(changed) == (change,)


def test_score_is_that_of_the_density(target):
    found = target
    for kind in ("following", "warp"):
        found = change_coordinates(found, changes(target)[kind])
    evaluator = Evaluator(found, 2 * target.dim)
    z, steps = np.random.default_rng(0).normal(size=target.dim), 1e-5 * np.eye(target.dim)
    values, _ = evaluator.value_and_score(np.concatenate([z + steps, z - steps]))
    slopes = (values[: target.dim] - values[target.dim :]) / 2e-5
    assert np.allclose(evaluator.value_and_score(z[None])[1][0], slopes, rtol=1e-4, atol=1e-5)


def test_conditioned_elements_are_standard_normal_if_the_factor_is_right():
    errors, means = np.linspace(0.5, 5, 8), np.random.default_rng(3).normal(size=8) * 10
    target = schools(errors)
    change = Conditioned(target.sites, jnp.asarray(errors**-2), jnp.asarray(means / errors**2))
    changed = change_coordinates(target, change)
    z = jax.random.normal(jax.random.key(0), (5, target.dim))
    scores = jax.vmap(jax.grad(changed.log_density))(z)
    assert jnp.allclose(scores[:, 2:], -z[:, 2:], rtol=1e-9)


def test_degree_one_is_the_target_itself(target):
    z = jax.random.normal(jax.random.key(0), (5, target.dim))
    assert jnp.array_equal(recentre(target, 1.0).value(z), target.value(z))


def test_draws_come_back_in_the_models_own_variables(target):
    recentred = recentre(target, 0.3)
    (change,) = changes_of(recentred)
    z = jax.random.normal(jax.random.key(0), (target.dim,))
    found, expected = recentred.constrain(z), target.constrain(change.restore(z)[0])
    assert {name: value.shape for name, value in found.items()} == {n: v.shape for n, v in expected.items()}
    assert all(jnp.allclose(found[name], expected[name]) for name in expected)
    assert recentred.names == target.names


def test_float32():
    with jax.enable_x64(False):
        target = schools(1.0)
        recentred = recentre(target, 0.5)
        z = jax.random.normal(jax.random.key(0), (3, target.dim))
        assert recentred.value(z).dtype == np.float32
        assert np.all(np.isfinite(recentred.value_and_score(z)[1]))


@pytest.mark.parametrize("log_tau", [-np.inf, np.inf, np.nan, -800.0])
def test_no_density_where_the_scale_is_none(log_tau):
    recentred = recentre(schools(1.0), 0.5)
    z = jnp.ones(recentred.dim).at[1].set(log_tau)
    assert not np.isfinite(recentred.log_density(z))


def test_no_density_where_rounding_decides():
    recentred = recentre(schools(1.0), 0.5)
    z = jnp.ones(recentred.dim).at[1].set(-40.0)
    assert recentred.log_density(z) == -np.inf


def test_a_start_and_candidates_come_along():
    target = schools(1.0)
    start = np.linspace(0.5, 1, target.dim)
    moved = recentre(Target(target.log_density, target.dim, initial_point=start, sites=target.sites), 0.2)
    (change,) = changes_of(moved)
    assert jnp.allclose(change.restore(moved.start())[0], start)


# ---- Front-ends -----------------------------------------------------------------------------------------------------


@pytest.fixture
def numpyro_model():
    import numpyro
    import numpyro.distributions as dist

    def model(group, y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("groups", 5):
            a: Any = numpyro.sample("a", dist.Normal(mu, tau))
        mean = numpyro.deterministic("mean", 1 + jnp.repeat(a, 2))
        b: Any = numpyro.sample("b", dist.Normal(mean, scale).to_event(1))
        e: Any = numpyro.sample("e", dist.StudentT(4, 0.0, tau).expand([2, 3]).to_event(2))
        numpyro.sample("k", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(a[group] + b[group] + e.sum(), 1), obs=y)

    return model, np.arange(20) % 5, np.random.default_rng(0).normal(size=20)


def test_numpyro_sites(numpyro_model):
    from bures.frontends import from_numpyro

    target = from_numpyro(*numpyro_model)
    assert [(site.name, site.shape) for site in target.sites] == [("a", (5,)), ("b", (10,)), ("e", (2, 3))]
    assert target.names[target.sites[1].start] == "b[0]"


def test_agrees_with_numpyros_reparameterisation(numpyro_model):
    from numpyro.handlers import reparam
    from numpyro.infer.reparam import LocScaleReparam
    from numpyro.infer.util import potential_energy

    from bures.frontends import from_numpyro

    model, *data = numpyro_model
    target = from_numpyro(model, *data)
    degrees = {"a": np.linspace(0, 1, 5), "b": np.linspace(1, 0, 10)}
    recentred = recentre(target, degrees)
    theirs = reparam(model, config={name: LocScaleReparam(c) for name, c in degrees.items()})
    z = jax.random.normal(jax.random.key(1), (target.dim,))
    values = {}
    for name in ("mu", "tau", "scale", "a", "b", "e", "k"):
        at = [i for i, each in enumerate(target.names) if each.partition("[")[0] == name]
        shape = (2, 3) if name == "e" else () if len(at) == 1 else (len(at),)
        values[f"{name}_decentered" if name in degrees else name] = z[np.array(at)].reshape(shape)
    expected = -potential_energy(theirs, data, {}, values)
    assert jnp.allclose(recentred.log_density(z), expected, rtol=1e-10, atol=1e-8)
    assert set(recentred.constrain(z)) == {"mu", "tau", "scale", "a", "b", "e", "k", "mean"}
    assert recentred.labels.log_likelihood is not None
    assert recentred.labels.log_likelihood(z)["y"].shape == (20,)


def test_numpyro_model_without_sites():
    import numpyro
    import numpyro.distributions as dist

    from bures.frontends import from_numpyro

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    assert from_numpyro(model, np.zeros(3)).sites == ()


def test_pymc_sites():
    import pymc as pm

    from bures.frontends import from_pymc

    with pm.Model() as model:
        mu, tau, scale = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1), pm.HalfNormal("scale", 1)
        a = pm.Normal("a", mu, tau, shape=5)
        pm.Normal("k", 0, 1, shape=2)
        b = pm.Normal("b", pm.Deterministic("mean", pm.math.concatenate([a, a]) + 1), scale)
        pm.Normal("y", b, 1, observed=np.zeros(10))
    target = from_pymc(model)
    assert [(site.name, site.shape) for site in target.sites] == [("a", (5,)), ("b", (10,))]
    recentred = recentre(target, {"a": 0.3, "b": 0.8})
    (change,) = changes_of(recentred)
    z = jax.random.normal(jax.random.key(0), (target.dim,))
    (x, log_jacobian), values = change.restore(z), recentred.constrain(z)
    assert jnp.allclose(recentred.log_density(z), target.log_density(x) + log_jacobian)
    at = [i for i, name in enumerate(target.names) if name.startswith("a[")]
    a_expected = values["mu"] + values["tau"] ** 0.7 * (z[np.array(at)] - 0.3 * values["mu"])
    assert jnp.allclose(values["a"], a_expected)
    assert jnp.allclose(values["mean"], jnp.concatenate([values["a"], values["a"]]) + 1)
    with pm.Model() as plain:
        pm.Normal("y", pm.Normal("mu", 0, 5), 1, observed=np.zeros(3))
    assert from_pymc(plain).sites == ()


# ---- Learning -------------------------------------------------------------------------------------------------------


def test_learned_degrees_follow_the_data():
    strong = learn_centring(jax.random.key(0), schools(0.5))
    weak = learn_centring(jax.random.key(0), schools(30.0))
    assert strong.degrees["theta"].min() > 0.8
    assert weak.degrees["theta"].max() < 0.4
    mixed = learn_centring(jax.random.key(0), schools(np.array([0.5] * 4 + [50.0] * 4)))
    assert mixed.degrees["theta"][:4].min() > 0.8
    assert mixed.degrees["theta"][4:].max() < 0.4
    assert max(learned.evaluations for learned in (strong, weak, mixed)) < 20_000
    assert "theta" in mixed.describe()


def test_factors_follow_the_noise_and_the_coefficients():
    """y ~ N(theta + b x, exp(log_noise)): λ = n / noise², and the data's own estimate of theta leans by −b x̄."""
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(30), 4), rng.uniform(0.5, 1.5, 120)
    y = (2 * rng.normal(size=30))[group] + 0.3 * x + rng.normal(size=120)

    def log_density(tau, log_noise, b, theta):
        total = normal(theta, 0.0, tau) + normal(b, 0.0, 5.0) - tau
        return total + normal(jnp.asarray(y), theta[group] + b * x, jnp.exp(log_noise))

    variables = {"tau": Positive(), "log_noise": (), "b": (), "theta": (30,)}
    target = Target.from_variables(log_density, variables, location_scale={"theta": lambda tau: (0.0, tau)})
    learned = learn_centring(jax.random.key(0), target)
    factor = changes_of(learned.target)[0]
    assert np.allclose(factor.growth[:, 1], -2, atol=0.7)  # averaged over steps, the first of which are far off
    expected = -np.asarray(factor.precision) * np.bincount(group, x) / 4
    assert np.allclose(factor.lean[:, 2], expected, rtol=0.25)
    assert fit(learned.target, key=jax.random.key(1), init=learned.approximation).diagnostics.ness > 0.85


def test_numbers_of_before_restore_what_they_did():
    target = schools(3.0)
    change = changes(target)["conditioned"]
    numbers = numbers_of(change_coordinates(target, change))
    assert set(numbers) == {"0.Conditioned.precision", "0.Conditioned.shift"}
    assert changes_of(change_by_numbers(target, numbers))[0].growth is None


def test_learning_follows_the_key_and_compiles_nothing_anew():
    target = schools(np.linspace(1, 20, 8))
    first = learn_centring(jax.random.key(0), target)
    programs = compiled()
    again = learn_centring(jax.random.key(0), target)
    other = learn_centring(jax.random.key(1), target)
    result = fit(other.target, key=jax.random.key(2), init=other.approximation)
    assert compiled() == programs
    assert result.diagnostics.ness > 0.3
    assert np.array_equal(first.degrees["theta"], again.degrees["theta"])
    assert not np.array_equal(first.degrees["theta"], other.degrees["theta"])


def test_other_degrees_share_one_program():
    target, z = schools(3.0), np.full((4, 10), 0.5)
    Evaluator(recentre(target, 0.5)).value(z)
    programs = compiled()
    values = [Evaluator(recentre(target, degrees)).value(z) for degrees in (0.2, 0.9, {"theta": np.linspace(0, 1, 8)})]
    assert compiled() == programs
    assert not np.allclose(values[0], values[1])


def test_a_fit_on_the_learned_target_is_better():
    target = schools(10.0)
    learned = learn_centring(jax.random.key(0), target)
    after = fit(learned.target, key=jax.random.key(1), init=learned.approximation)
    before = fit(target, key=jax.random.key(1), num_steps=100)
    ness = [each.diagnose(jax.random.key(2), 10_000).ness for each in (before, after)]
    assert ness[1] > 2 * ness[0]
    assert ness[1] > 0.5
    draws = after.to_arviz(jax.random.key(3), 200).posterior
    assert set(draws.data_vars) == {"mu", "tau", "theta"}


def test_a_start_is_carried_over():
    target = schools(1.0)
    searched = learn_centring(jax.random.key(0), target)
    start = fit(target, key=jax.random.key(1), num_steps=30).approximation
    carried = learn_centring(jax.random.key(0), target, start)
    assert carried.evaluations < searched.evaluations
    assert np.allclose(carried.degrees["theta"], searched.degrees["theta"], atol=0.1)


def test_coordinates_can_be_kept_and_restored():
    target = schools(np.linspace(1, 20, 8))
    learned = learn_centring(jax.random.key(0), target)
    again = change_by_numbers(target, numbers_of(learned.target))
    z = jax.random.normal(jax.random.key(1), (target.dim,))
    assert again.log_density(z) == learned.target.log_density(z)
    assert all(jnp.array_equal(v, learned.target.constrain(z)[k]) for k, v in again.constrain(z).items())
    assert numbers_of(target) == {}
    with pytest.raises(ValueError, match="numbers must be those of"):
        change_by_numbers(target, {"0.Other.x": np.zeros(3)})


# ---- Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (1.5, "degrees must be between 0 and 1"),
        (np.zeros(3), "degrees must be a number or of shape"),
        ({"phi": 0.5}, "degrees must be a mapping whose keys are among theta"),
        ({"theta": np.zeros(3)}, "degrees\\['theta'\\] must be a number or of shape"),
        ("half", "degrees must be a number"),
    ],
)
def test_bad_degrees(degrees, message):
    with pytest.raises(ValueError, match=message):
        recentre(schools(1.0), degrees)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"phi": lambda mu: (mu, 1.0)}, "keys are among mu, tau, theta"),
        ({"tau": lambda mu: (mu, 1.0)}, "on the real line"),
        ({"theta": 3}, "a function of variables"),
        ({"theta": lambda nu: (nu, 1.0)}, "arguments are among mu, tau, theta"),
        ({"theta": lambda: (0.0, 1.0)}, "no arguments"),
        ({"theta": lambda mu: (jnp.zeros(3), mu)}, "broadcast to \\(8,\\)"),
        ({"theta": lambda mu: mu}, "location_scale\\['theta'\\]"),
        ({"theta": lambda mu: (mu, 1.0), "mu": lambda theta: (theta[0], 1.0)}, "without circles"),
        ({"theta": lambda theta: (theta, 1.0)}, "without circles"),
        (["theta"], "a mapping"),
    ],
)
def test_bad_sites(sites, message):
    variables = {"mu": (), "tau": Positive(), "theta": (8,)}
    with pytest.raises(ValueError, match=message):
        Target.from_variables(lambda mu, tau, theta: -mu - tau - theta.sum(), variables, location_scale=sites)


def test_bad_targets():
    plain = Target(lambda z: -z @ z, dim=3)
    for function in (lambda: recentre(plain, 0.5), lambda: learn_centring(jax.random.key(0), plain)):
        with pytest.raises(ValueError, match="target must be a target with location–scale sites"):
            function()
    with pytest.raises(ValueError, match="start must be a bures"):
        learn_centring(jax.random.key(0), schools(1.0), start=plain)  # pyright: ignore[reportArgumentType]
    site = LocationScale("z", 2, (2,), lambda z: (z[0], z[1]))
    with pytest.raises(ValueError, match="sites must be without overlap"):
        Target(lambda z: -z @ z, dim=3, sites=(site,))
