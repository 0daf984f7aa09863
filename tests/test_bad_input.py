"""What users get wrong: a ValueError that names the argument and the remedy, or an Outcome with a usable Gaussian.

The type checker of the test suite is off here: users do not run it, and it would answer before our own checks do.
"""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import box, regression_data

import bures
from bures.diagnostics import diagnose, forward_kl
from bures.support import Interval, Positive

pytestmark = pytest.mark.usefixtures("unchecked_types")


def log_density(z):
    return -jnp.sum(z**2) / 2


KEY = jax.random.key(0)
Q = bures.Gaussian.standard(2)
TARGET = bures.Target(log_density, 2)


def fit(target=TARGET, **options):
    options = {"key": KEY, "init": Q, "estimator": bures.Price(M=4), "num_steps": 2, **options}
    return bures.fit(target, **options)


def mixture():
    return bures.GaussianMixture(np.log([0.5, 0.5]), np.array([[0.0], [5.0]]), np.ones((2, 1, 1)))


def regression(X=None, y=None, **options):
    good_X, good_y = regression_data(n=5, dim=2)
    return bures.models.logistic_regression(good_X if X is None else X, good_y if y is None else y, **options)


def moments(covariance, mean=(0.0, 0.0)):
    return bures.Gaussian.from_moments(jnp.array(mean), jnp.array(covariance))


# name: (what is done, words that its message must hold)
REFUSED = {
    # the log density
    "density of a vector": (lambda: bures.Target(lambda z: z, 2), ["log_density", "scalar", "Sum over"]),
    "density of a tuple": (lambda: bures.Target(lambda z: (z[0], z[1]), 2), ["log_density", "scalar", "tuple"]),
    "density of an integer": (lambda: bures.Target(lambda z: jnp.argmax(z), 2), ["log_density", "scalar", "int"]),
    "density of a boolean": (lambda: bures.Target(lambda z: z[0] > 0, 2), ["log_density", "scalar", "bool"]),
    "density of nothing": (lambda: bures.Target(lambda z: None, 2), ["log_density", "scalar", "None"]),
    "density of length one": (lambda: bures.Target(lambda z: z[:1], 2), ["log_density", "scalar", "[1]"]),
    "complex density": (lambda: bures.Target(lambda z: z[0] + 1j, 2), ["log_density", "scalar", "complex"]),
    "density for another dim": (
        lambda: bures.Target(lambda z: jnp.sum(z * jnp.ones(5)), 3),
        ["log_density", "dim=3", "Check dim"],
    ),
    "density in NumPy": (lambda: bures.Target(lambda z: float(np.sum(np.asarray(z))), 2), ["log_density", "jax.numpy"]),
    "density that is no function": (lambda: bures.Target(3.0, 2), ["log_density", "JAX function"]),
    "two targets": (lambda: bures.fit(TARGET, dim=3, key=KEY), ["dim", "2", "Leave dim out"]),
    # the dimension
    "dim zero": (lambda: bures.Target(log_density, 0), ["dim", "positive integer", "0"]),
    "dim negative": (lambda: bures.Target(log_density, -1), ["dim", "positive integer", "-1"]),
    "dim fractional": (lambda: bures.Target(log_density, 2.5), ["dim", "positive integer", "2.5"]),
    "dim missing": (lambda: bures.fit(log_density, key=KEY), ["dim", "bures.Target"]),
    "dim a string": (lambda: bures.Target(log_density, "2"), ["dim", "positive integer", "'2'"]),
    # K, M, alpha
    "K zero": (lambda: bures.IWELBO(K=0), ["K", "positive integer", "K=5"]),
    "K negative": (lambda: bures.IWELBO(K=-3), ["K", "positive integer", "-3"]),
    "K a float": (lambda: bures.IWELBO(K=5.0), ["K", "positive integer", "5.0"]),
    "K a bool": (lambda: bures.IWELBO(K=True), ["K", "positive integer", "True"]),
    "K a string": (lambda: bures.VRIWAE(K="5", alpha=0.1), ["K", "positive integer", "'5'"]),
    "M zero": (lambda: bures.Price(M=0), ["M", "positive integer", "M=100"]),
    "M negative": (lambda: bures.Stein(M=-1), ["M", "positive integer", "-1"]),
    "M a float": (lambda: bures.Reparameterised(M=1e3), ["M", "positive integer", "1000.0"]),
    "M a string": (lambda: bures.Price(M="many"), ["M", "positive integer", "many"]),
    "alpha negative": (lambda: bures.VRIWAE(K=5, alpha=-0.1), ["alpha", "[0, 1]", "-0.1"]),
    "alpha above one": (lambda: bures.VRIWAE(K=5, alpha=1.5), ["alpha", "[0, 1]", "IW-ELBO"]),
    "alpha NaN": (lambda: bures.VRIWAE(K=5, alpha=math.nan), ["alpha", "[0, 1]", "nan"]),
    "alpha a string": (lambda: bures.VRIWAE(K=5, alpha="0.5"), ["alpha", "[0, 1]", "'0.5'"]),
    # step sizes
    "step size zero": (lambda: bures.BuresWasserstein(step_size=0), ["step_size", "(0,", "0.1"]),
    "step size negative": (lambda: bures.BuresWasserstein(step_size=-0.5), ["step_size", "-0.5"]),
    "step size NaN": (lambda: bures.ForwardBackward(step_size=math.nan), ["step_size", "nan"]),
    "step size infinite": (lambda: bures.BuresWasserstein(step_size=math.inf), ["step_size", "inf"]),
    "step size a string": (lambda: bures.ForwardBackward(step_size="big"), ["step_size", "'big'"]),
    "learning rate zero": (lambda: bures.Euclidean(0.0), ["optimizer", "learning rate", "0.01"]),
    "optimiser a string": (lambda: bures.Euclidean("adam"), ["optimizer", "'adam'", "optax"]),
    "clipping negative": (lambda: bures.Euclidean(0.1, max_grad_norm=-1.0), ["max_grad_norm", "-1.0"]),
    "trust radius zero": (lambda: bures.Whitened(trust_radius=0.0), ["trust_radius", "2.0"]),
    "clip reversed": (lambda: bures.BuresWasserstein(0.1, clip=(1.5, 0.1)), ["clip[0]", "1.5", "positive"]),
    "clip a list": (lambda: bures.BuresWasserstein(0.1, clip=[0.1, 1.5]), ["clip", "pair", "(0.1, 1.5)"]),
    "clip of three": (lambda: bures.BuresWasserstein(0.1, clip=(0.1, 1.0, 1.5)), ["clip", "pair"]),
    "clip below one": (lambda: bures.BuresWasserstein(0.1, clip=(0.1, 0.9)), ["clip[1]", "0.9", "identity"]),
    # Gaussians
    "covariance indefinite": (lambda: moments([[1.0, 2.0], [2.0, 1.0]]), ["covariance", "positive definite", "-1"]),
    "covariance singular": (lambda: moments([[1.0, 1.0], [1.0, 1.0]]), ["covariance", "positive definite"]),
    "covariance not symmetric": (lambda: moments([[1.0, 0.5], [0.0, 1.0]]), ["covariance", "symmetric", ".T"]),
    "covariance of wrong shape": (lambda: moments([[1.0]]), ["covariance", "(2, 2)", "mean"]),
    "covariance a vector": (lambda: moments([1.0, 1.0]), ["covariance", "2 axes"]),
    "covariance NaN": (lambda: moments([[1.0, math.nan], [math.nan, 1.0]]), ["covariance", "finite"]),
    "chol not triangular": (
        lambda: bures.Gaussian(jnp.zeros(2), jnp.array([[1.0, 0.5], [0.5, 1.0]])),
        ["chol", "lower triangular", "from_moments"],
    ),
    "chol with a negative diagonal": (
        lambda: bures.Gaussian(jnp.zeros(2), -jnp.eye(2)),
        ["chol", "positive diagonal", "from_moments"],
    ),
    "chol of wrong shape": (lambda: bures.Gaussian(jnp.zeros(2), jnp.eye(3)), ["chol", "(2, 2)", "mean"]),
    "mean NaN": (lambda: moments(np.eye(2), mean=(0.0, math.nan)), ["mean", "finite", "NaN"]),
    "mean infinite": (lambda: moments(np.eye(2), mean=(0.0, math.inf)), ["mean", "finite"]),
    "mean of integers": (lambda: bures.Gaussian(jnp.zeros(2, int), jnp.eye(2)), ["mean", "floating", "astype"]),
    "mean a matrix": (lambda: bures.Gaussian(jnp.zeros((1, 2)), jnp.eye(2)), ["mean", "1 axes"]),
    "mean of strings": (lambda: bures.Gaussian(["a", "b"], jnp.eye(2)), ["mean", "array"]),
    "points of another dim": (lambda: Q.log_prob(jnp.zeros(3)), ["z", "2", "dimension"]),
    "no draws from a Gaussian": (lambda: Q.sample(KEY, 0), ["n", "positive integer", "0"]),
    "negative draws from a Gaussian": (lambda: Q.sample(KEY, -1), ["n", "positive integer", "-1"]),
    "Bures distance across dimensions": (
        lambda: Q.bures_distance(bures.Gaussian.standard(3)),
        ["other", "dimension"],
    ),
    "KL across dimensions": (lambda: Q.kl(bures.Gaussian.standard(3)), ["other", "dimension"]),
    # init
    "init a tuple": (lambda: fit(init=(jnp.zeros(2), jnp.eye(2))), ["init", "bures.Gaussian", "from_moments"]),
    "init a vector": (lambda: fit(init=jnp.zeros(2)), ["init", "bures.Gaussian", "from_moments"]),
    "init of another dim": (lambda: fit(init=bures.Gaussian.standard(3)), ["Gaussian on R^2", "dimensions"]),
    "init of another dim and family": (lambda: fit(init=bures.MeanField().standard(3)), ["R^2", "dimensions"]),
    # families
    "family a number": (lambda: fit(family=3), ["family", "3", "bures.LowRank()"]),
    "family a class": (lambda: fit(family=bures.MeanField), ["family", "bures.LowRank()"]),
    "family a string": (lambda: fit(family="mean-field"), ["family", "'mean-field'", "bures.LowRank()"]),
    "family an approximation": (lambda: fit(family=Q), ["family", "bures.LowRank()"]),
    "rank negative": (lambda: bures.LowRank(rank=-1), ["rank", "-1", "Leave it out"]),
    "rank a string": (lambda: bures.LowRank(rank="x"), ["rank", "'x'", "Leave it out"]),
    "rank fractional": (lambda: bures.LowRank(rank=1.5), ["rank", "1.5", "whole number"]),
    "rank a bool": (lambda: bures.LowRank(rank=True), ["rank", "True", "whole number"]),
    "forward-backward of low rank": (
        lambda: fit(objective=bures.ELBO(), geometry=bures.ForwardBackward(0.1), family=bures.LowRank()),
        ["geometry", "LowRank", "forward_backward", "Whitened()"],
    ),
    # files, pages and figures
    "Parquet of no file": (lambda: bures.Parquet("none.parquet"), ["paths", "none.parquet", "Check the path"]),
    "Parquet of a number": (lambda: bures.Parquet(3), ["paths", "3", "path"]),
    "page with a number for a path": (lambda: fit().report(3), ["path", "3"]),
    "page with a number for a title": (lambda: fit().report("x.html", title=3), ["title", "text", "3"]),
    "figure of a target": (lambda: bures.plot.summary(TARGET), ["fit", "bures.Fit", "Pass"]),
    "no draws of many fits": (
        lambda: bures.fit_many(lambda z, y: log_density(z), np.zeros((2, 1)), KEY, dim=2).to_arviz(KEY, 0),
        ["num_draws", "positive integer", "0"],
    ),
    # keys
    "key an integer": (lambda: fit(key=0), ["key", "jax.random.key(0)"]),
    "key a NumPy seed": (lambda: fit(key=np.int64(3)), ["key", "jax.random.key(0)"]),
    "key a NumPy generator": (lambda: fit(key=np.random.default_rng(0)), ["key", "jax.random.key(0)"]),
    "key of the old kind": (lambda: fit(key=jax.random.PRNGKey(0)), ["key", "typed", "jax.random.key(0)"]),
    "key none": (lambda: fit(key=None), ["key", "jax.random.key(0)"]),
    "a batch of keys": (lambda: fit(key=jax.random.split(KEY, 3)), ["key", "single", "jax.vmap"]),
    "key of sample": (lambda: Q.sample(0, 3), ["key", "jax.random.key(0)"]),
    "key of bw_gradient": (
        lambda: bures.bw_gradient(0, Q, TARGET, bures.ELBO(), bures.Price(M=4)),
        ["key", "jax.random.key(0)"],
    ),
    "key of step": (
        lambda: bures.step(
            0,
            bures.State(Q, ()),
            TARGET,
            objective=bures.ELBO(),
            estimator=bures.Price(M=4),
            geometry=bures.BuresWasserstein(0.1),
        ),
        ["key", "jax.random.key(0)"],
    ),
    # the loop
    "no steps": (lambda: fit(num_steps=0), ["num_steps", "positive integer", "0"]),
    "steps negative": (lambda: fit(num_steps=-5), ["num_steps", "positive integer", "-5"]),
    "steps fractional": (lambda: fit(num_steps=10.5), ["num_steps", "positive integer", "10.5"]),
    "tolerance negative": (lambda: fit(tolerance=-0.1), ["tolerance", "-0.1", "nats"]),
    "tolerance NaN": (lambda: fit(tolerance=math.nan), ["tolerance", "nan", "nats"]),
    "callback no function": (lambda: fit(callback=3), ["callback", "function"]),
    # methods
    "objective a class": (lambda: fit(objective=bures.ELBO), ["objective", "bures.IWELBO(K=5)"]),
    "objective a string": (lambda: fit(objective="elbo"), ["objective", "'elbo'", "bures.IWELBO(K=5)"]),
    "objective zero": (lambda: fit(objective=0), ["objective", "bures.IWELBO(K=5)"]),
    "estimator a number": (lambda: fit(estimator=100), ["estimator", "100", "bures.Price(M=100)"]),
    "estimator a class": (lambda: fit(estimator=bures.Stein), ["estimator", "bures.Price(M=100)"]),
    "geometry an objective": (lambda: fit(geometry=bures.ELBO()), ["geometry", "bures.BuresWasserstein"]),
    "geometry a class": (lambda: fit(geometry=bures.Whitened), ["geometry", "bures.BuresWasserstein"]),
    "objective of bw_gradient": (
        lambda: bures.bw_gradient(KEY, Q, TARGET, "elbo", bures.Price(M=4)),
        ["objective", "bures.IWELBO(K=5)"],
    ),
    "forward-backward of an IW bound": (
        lambda: fit(objective=bures.IWELBO(K=5), geometry=bures.ForwardBackward(0.1)),
        ["geometry", "entropy", "objective=ELBO()"],
    ),
    "permutations of the last index": (
        lambda: bures.Price(M=10, indices="last", permutations=2),
        ["permutations", "indices='all'"],
    ),
    "permutations of Sobol points": (
        lambda: bures.Price(M=10, draws="sobol", permutations=2),
        ["permutations", "Sobol", "iid"],
    ),
    "more permutations than tuples": (lambda: bures.Stein(M=3, permutations=4), ["permutations", "M=3"]),
    "no permutations": (lambda: bures.Stein(M=3, permutations=0), ["permutations", "positive integer"]),
    "unknown indices": (lambda: bures.Price(M=3, indices="first"), ["indices", "'all'", "'first'"]),
    "unknown draws": (lambda: bures.Reparameterised(M=3, draws="halton"), ["draws", "'sobol'", "'halton'"]),
    "more dimensions than Sobol has": (
        lambda: bures.bw_gradient(
            KEY, bures.Gaussian.standard(2), TARGET, bures.IWELBO(K=11_000), bures.Price(M=2, draws="sobol")
        ),
        ["draws", "21201", "iid"],
    ),
    # models
    "labels beyond one": (lambda: regression(y=np.array([0, 1, 2, 0, 1])), ["y", "zeros and ones", "0 and 1"]),
    "labels of another length": (lambda: regression(y=np.array([0, 1])), ["y", "5 labels", "shapes"]),
    "labels of strings": (lambda: regression(y=np.array(list("abcde"))), ["y", "zeros and ones"]),
    "covariates NaN": (lambda: regression(X=np.full((5, 2), math.nan)), ["X", "finite", "NaN"]),
    "labels NaN": (lambda: regression(y=np.array([0, 1, math.nan, 0, 1])), ["y", "zeros and ones"]),
    "covariates of integers": (lambda: regression(X=np.ones((5, 2), int)), ["X", "floating", "astype"]),
    "prior variance zero": (lambda: regression(prior_variance=0.0), ["prior_variance", "10.0"]),
    "names too few": (lambda: bures.Target(log_density, 2, names=["a"]), ["names", "2 different strings"]),
    "names twice": (lambda: bures.Target(log_density, 2, names=["a", "a"]), ["names", "different"]),
    "names of a regression": (lambda: regression(names=["a", "b", "c"]), ["names", "2 different strings"]),
    "banana of one dimension": (lambda: bures.models.banana(dim=1), ["dim", "2", "bent"]),
    "condition number below one": (
        lambda: bures.models.gaussian(2, condition_number=0.5),
        ["condition_number", "eigenvalues"],
    ),
    "funnel of scale zero": (lambda: bures.models.funnel(3, scale=0.0), ["scale", "3.0"]),
    "degrees of freedom negative": (lambda: bures.models.student_t(2, -1.0), ["degrees_of_freedom", "5.0"]),
    "interval reversed": (lambda: Interval(3.0, 1.0), ["high", "low=3.0", "Swap"]),
    "interval empty": (lambda: Interval(1.0, 1.0), ["high", "low=1.0"]),
    "interval without end": (lambda: Interval(0.0, math.inf), ["high", "finite"]),
    "no variables": (lambda: bures.Target.from_variables(log_density, {}), ["variables", "non-empty", "mu"]),
    "variable of shape zero": (
        lambda: bures.Target.from_variables(lambda x: jnp.sum(x), {"x": (0,)}),
        ["variables['x']", "shape"],
    ),
    "variable of a number": (
        lambda: bures.Target.from_variables(lambda x: jnp.sum(x), {"x": 3}),
        ["variables['x']", "shape", "(3,)"],
    ),
    "variable of a support class": (
        lambda: bures.Target.from_variables(lambda x: jnp.sum(x), {"x": Positive}),
        ["variables['x']", "Positive()"],
    ),
    # diagnostics and Laplace
    "diagnose few draws": (lambda: diagnose(KEY, Q, TARGET, num_samples=10), ["num_samples", "25"]),
    "diagnose no draws": (lambda: diagnose(KEY, Q, TARGET, num_samples=0), ["num_samples", "25"]),
    "diagnose a fractional number": (lambda: diagnose(KEY, Q, TARGET, num_samples=1e3), ["num_samples", "1000.0"]),
    "diagnose fewer draws than K": (lambda: diagnose(KEY, Q, TARGET, num_samples=50, K=99), ["num_samples", "99"]),
    "diagnose K zero": (lambda: diagnose(KEY, Q, TARGET, K=0), ["K", "positive integer"]),
    "diagnose another dim": (lambda: diagnose(KEY, bures.Gaussian.standard(3), TARGET), ["Gaussian on R^2"]),
    "forward KL without draws": (lambda: forward_kl(KEY, TARGET, Q), ["target", "sample"]),
    "KL to a mixture": (lambda: bures.Gaussian.standard(1).kl(mixture()), ["other", "mixture of 2", "as_gaussian"]),
    "distance to a mixture": (
        lambda: bures.LowRankGaussian(np.zeros(1), np.ones(1)).bures_distance(mixture()),
        ["other", "mixture of 2", "as_gaussian"],
    ),
    "resample nothing": (lambda: fit().resample(KEY, 0), ["n", "positive integer"]),
    "resample from no candidates": (lambda: fit().resample(KEY, 3, K=0), ["K", "positive integer"]),
    "resume by nothing": (lambda: fit().resume(0), ["num_steps", "positive integer"]),
    "Wasserstein gradient of many points": (
        lambda: bures.wasserstein_gradient(KEY, jnp.zeros((3, 2)), Q, TARGET, bures.ELBO()),
        ["z", "(2,)", "jax.vmap"],
    ),
    "Wasserstein gradient from no draws": (
        lambda: bures.wasserstein_gradient(KEY, jnp.zeros(2), Q, TARGET, bures.ELBO(), M=0),
        ["M", "positive integer"],
    ),
    "Laplace from another dim": (lambda: bures.laplace(TARGET, init=jnp.zeros(3)), ["init", "R^2"]),
    "Laplace from NaN": (lambda: bures.laplace(TARGET, init=jnp.full(2, math.nan)), ["init", "finite"]),
    "Laplace from integers": (lambda: bures.laplace(TARGET, init=jnp.zeros(2, int)), ["init", "floating", "astype"]),
    "Laplace outside the support": (
        lambda: bures.laplace(bures.Target(box, 2), init=jnp.full(2, 5.0)),
        ["init", "finite log density"],
    ),
    "Laplace without iterations": (lambda: bures.laplace(TARGET, max_iterations=0), ["max_iterations", "100"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_argument_and_the_remedy(case):
    action, words = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        action()
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert len(message) < 600


def bell(z):
    return -jnp.sum(z**2) / 2


TROUBLED = {
    "NaN everywhere": lambda z: jnp.nan * jnp.sum(z),
    "NaN in a region": lambda z: jnp.where(z[0] > 1.5, jnp.nan, bell(z)),
    "minus infinity outside a support": box,
    "minus infinity everywhere": lambda z: -jnp.inf + 0 * jnp.sum(z),
    "plus infinity in a region": lambda z: jnp.where(z[0] > 1.5, jnp.inf, bell(z)),
    "NaN gradient at finite density": lambda z: bell(z) + jnp.sqrt(jnp.abs(z[0]) * 0.0),
    "unbounded": lambda z: jnp.sum(z**4),
}


class Troubled(eqx.Module):
    """All the troubled densities in one, so that they share their compilations."""

    index: jax.Array

    def __call__(self, z):
        return jax.lax.switch(self.index, list(TROUBLED.values()), z)


def troubled(density):
    return bures.Target(Troubled(jnp.array(list(TROUBLED).index(density))), 2)


METHODS = {
    "paper": (bures.ELBO(), bures.BuresWasserstein(0.5)),
    "huge step": (bures.ELBO(), bures.BuresWasserstein(1e6)),
    "default": (bures.IWELBO(K=3), bures.Whitened()),
    "adam": (bures.IWELBO(K=3), bures.Euclidean(0.5)),
    "forward-backward": (bures.ELBO(), bures.ForwardBackward(0.5)),
}


@pytest.mark.parametrize("method", METHODS)
def test_an_outcome_and_a_finite_gaussian(method):
    objective, geometry = METHODS[method]
    for density in TROUBLED:
        result = fit(troubled(density), objective=objective, geometry=geometry, num_steps=30)
        q = result.approximation
        assert np.all(np.isfinite(q.mean)), density
        assert np.all(np.isfinite(q.chol)), density
        assert np.all(np.diagonal(q.chol) > 0), density
        assert result.trace.bound.shape == (result.num_steps,), density
        assert np.all(np.isfinite(result.trace.bound)), density
        if density in ("NaN everywhere", "minus infinity everywhere", "NaN gradient at finite density"):
            zero = density == "minus infinity everywhere"
            assert result.outcome is (bures.Outcome.ZERO_DENSITY if zero else bures.Outcome.NON_FINITE), density
            assert ("density is zero" if zero else "log density") in str(result.outcome)
            assert np.array_equal(q.mean, Q.mean), density


@pytest.mark.parametrize("density", ["NaN everywhere", "minus infinity everywhere", "unbounded"])
def test_the_default_fit_of_a_bad_density_does_not_raise_or_hang(density):
    result = bures.fit(troubled(density), key=KEY)
    assert result.outcome in (bures.Outcome.NON_FINITE, bures.Outcome.DIVERGED, bures.Outcome.ZERO_DENSITY)
    assert not result.diagnostics.trustworthy
    assert np.all(np.isfinite(result.approximation.chol))


def test_huge_step_ends_with_the_best_gaussian():
    target = bures.Target(lambda z: -jnp.sum((z - 1) ** 4), 2)
    result = fit(target, objective=bures.ELBO(), geometry=bures.BuresWasserstein(1e6), num_steps=300)
    outcomes = (bures.Outcome.DIVERGED, bures.Outcome.NON_FINITE, bures.Outcome.ZERO_DENSITY)  # it may overflow
    assert result.outcome in outcomes
    assert "smaller step size" in str(result.outcome)
    assert np.array_equal(result.approximation.mean, Q.mean)


@settings(max_examples=40, deadline=None)
@given(mean=st.lists(st.integers(1, 3), max_size=2), chol=st.lists(st.integers(1, 3), max_size=3))
def test_shapes_of_a_gaussian(mean, chol):
    """Any pair of shapes either makes a Gaussian of the mean's dimension or is refused by name."""
    factor = jnp.eye(*chol) if len(chol) == 2 else jnp.ones(chol)
    if len(mean) == 1 and chol == [mean[0], mean[0]]:
        assert bures.Gaussian(jnp.zeros(mean), factor).dim == mean[0]
    else:
        with pytest.raises(ValueError, match=r"^(mean|chol) must be"):
            bures.Gaussian(jnp.zeros(mean), factor)


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5), st.booleans(), st.text(max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(alpha=numbers, step_size=numbers, K=numbers)
def test_values_of_numbers(alpha, step_size, K):
    """Any value is either accepted as what it says or refused by name."""

    def is_real(value):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    checks = [
        ("alpha", lambda: bures.VRIWAE(K=2, alpha=alpha), is_real(alpha) and 0 <= alpha <= 1),
        ("step_size", lambda: bures.BuresWasserstein(step_size), is_real(step_size) and 0 < step_size <= 1e300),
        ("K", lambda: bures.IWELBO(K), isinstance(K, int) and not isinstance(K, bool) and K >= 1),
    ]
    for name, make, legal in checks:
        if legal:
            make()
        else:
            with pytest.raises(ValueError, match=f"^{name} must be"):
                make()
