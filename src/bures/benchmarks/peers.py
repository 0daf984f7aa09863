"""The methods that are compared, each through its own library's interface: a target in, a Gaussian out.

Every method is a function `prepare(target, settings) -> run` with `run(seed) -> Answer`; what is compiled in the first
run is there for the second, so that both the first wait and the later ones can be told. The long ones, NumPyro's and
BlackJAX's optimisers, are compiled by `prepare` already.
"""

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.experiments.protocol import METHODS as PAPER, make_method


@dataclasses.dataclass(frozen=True)
class Answer:
    """The Gaussian a method ended with, how it says it ended, and what it cost."""

    approximation: Any  # a bures.Gaussian, or what else has `dim`, `sample(key, n)` and `log_prob(z)`
    outcome: str
    num_steps: int
    num_gradients: int
    num_hessians: int = 0
    draws: Any = None  # of a method that gives no density of its own


Run = Callable[[int], Answer]


def default(target: bures.Target, settings: dict[str, Any]) -> Run:
    """`bures.fit` with nothing set."""

    def run(seed: int) -> Answer:
        return _answer(bures.fit(target, key=jax.random.key(seed), progress=False))

    return run


def paper(name: str) -> Callable[[bures.Target, dict[str, Any]], Run]:
    """One of the paper's four methods, with the setting of its eggbox whatever the posterior."""

    def prepare(target: bures.Target, settings: dict[str, Any]) -> Run:
        method = make_method(name, settings["step_sizes"][name], M=settings["M"], K=settings["K"])
        start = bures.Gaussian.from_moments(jnp.zeros(target.dim), settings["start_variance"] * jnp.eye(target.dim))

        def run(seed: int) -> Answer:
            key, num_steps = jax.random.key(seed), settings["paper_steps"]
            return _answer(bures.fit(target, key=key, init=start, num_steps=num_steps, progress=False, **method))

        return run

    return prepare


def _answer(fit: bures.Fit) -> Answer:
    return Answer(fit.approximation, fit.outcome.name, fit.num_steps, fit.num_gradients, fit.num_hessians)


def laplace(target: bures.Target, settings: dict[str, Any]) -> Run:
    """The Laplace approximation, by Newton's method from the origin; its evaluations are not counted."""

    def run(seed: int) -> Answer:
        return Answer(bures.laplace(target), "CONVERGED", 0, 0)

    return run


def pathfinder(target: bures.Target, settings: dict[str, Any]) -> Run:
    """BlackJAX's Pathfinder with its own defaults, from a point uniform in (−2, 2) as Stan starts."""
    from blackjax.vi import pathfinder as algorithm

    @jax.jit
    def approximate(key):
        key_start, key_run = jax.random.split(key)
        start = jax.random.uniform(key_start, (target.dim,), minval=-2.0, maxval=2.0)
        state, info = algorithm.approximate(key_run, target.log_density, start)
        covariance = jnp.diag(state.alpha) + state.beta @ state.gamma @ state.beta.T
        mean = state.position + covariance @ state.grad_position  # as its own sampler has it
        return mean, covariance, jnp.sum(jnp.isfinite(info.path.elbo))

    def run(seed: int) -> Answer:
        mean, covariance, count = approximate(jax.random.key(seed))
        return Answer(_gaussian(mean, covariance), "RETURNED", int(count), int(count))

    return run


def numpyro(target: bures.Target, settings: dict[str, Any]) -> Run:
    """NumPyro's AutoMultivariateNormal by its SVI with Adam and one particle."""
    from numpyro.infer import Trace_ELBO

    return numpyro_model(_flat(target), settings, Trace_ELBO())


def numpyro_renyi(target: bures.Target, settings: dict[str, Any]) -> Run:
    """The same by its RenyiELBO with that class's defaults: the importance-weighted bound of two particles."""
    from numpyro.infer import RenyiELBO

    return numpyro_model(_flat(target), settings, RenyiELBO())


def _flat(target: bures.Target) -> Callable[[], None]:
    """The target as a NumPyro model: its density is a factor."""
    import numpyro as library
    from numpyro import distributions

    def model():
        flat = distributions.ImproperUniform(distributions.constraints.real_vector, (), (target.dim,))
        library.factor("log_density", target.log_density(library.sample("z", flat)))

    return model


def numpyro_model(model: Callable[[], None], settings: dict[str, Any], loss: Any) -> Run:
    """AutoMultivariateNormal on a NumPyro model whose only latent variable is a real vector."""
    import numpyro as library
    from numpyro.infer import SVI
    from numpyro.infer.autoguide import AutoMultivariateNormal

    guide = AutoMultivariateNormal(model)
    inference = SVI(model, guide, library.optim.Adam(settings["numpyro_step_size"]), loss)
    num_steps = settings["numpyro_steps"]

    @jax.jit  # else its `run` would compile again at each call
    def optimise(key):
        return inference.run(key, num_steps, progress_bar=False).params

    compiled = optimise.lower(jax.random.key(0)).compile()

    def run(seed: int) -> Answer:
        posterior = guide.get_posterior(compiled(jax.random.key(seed)))
        return Answer(bures.Gaussian(posterior.loc, posterior.scale_tril), "RETURNED", num_steps, num_steps)

    return run


class Posterior:
    """A distribution of NumPyro with the interface of our approximations."""

    def __init__(self, distribution: Any, rank: int):
        self.distribution, self.rank = distribution, rank
        self.dim = distribution.event_shape[0]

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return self.distribution.sample(key, (n,))

    def log_prob(self, z: jax.Array) -> jax.Array:
        return self.distribution.log_prob(z)


def numpyro_low_rank(target: bures.Target, settings: dict[str, Any]) -> Run:
    """NumPyro's AutoLowRankMultivariateNormal with its own defaults: the rank is the square root of d."""
    from numpyro.infer.autoguide import AutoLowRankMultivariateNormal as Guide

    guide = Guide(_flat(target))

    def posterior(params: dict[str, jax.Array]) -> Posterior:
        return Posterior(guide.get_posterior(params), params["auto_cov_factor"].shape[1])

    return _numpyro_in_factors(target, settings, Guide, posterior)


def numpyro_diagonal(target: bures.Target, settings: dict[str, Any]) -> Run:
    """NumPyro's AutoNormal with its own defaults."""
    from numpyro.distributions import Normal
    from numpyro.infer.autoguide import AutoNormal

    def posterior(params: dict[str, jax.Array]) -> Posterior:
        return Posterior(Normal(params["z_auto_loc"], params["z_auto_scale"]).to_event(1), 0)

    return _numpyro_in_factors(target, settings, AutoNormal, posterior)


def _numpyro_in_factors(target: bures.Target, settings: dict[str, Any], guide: Any, posterior: Any) -> Run:
    """An automatic guide by SVI with Adam and one particle; the first run compiles.

    The target's arrays are arguments of the program: as constants the compiler would take a long look at them.
    """
    import numpyro as library
    from numpyro.infer import SVI, Trace_ELBO

    arrays, static = eqx.partition(target, eqx.is_array)
    num_steps = settings["numpyro_steps"]

    @jax.jit
    def optimise(key, arrays):
        model = _flat(eqx.combine(arrays, static))
        inference = SVI(model, guide(model), library.optim.Adam(settings["numpyro_step_size"]), Trace_ELBO())
        return inference.run(key, num_steps, progress_bar=False).params

    def run(seed: int) -> Answer:
        params = jax.block_until_ready(optimise(jax.random.key(seed), arrays))
        finite = all(bool(jnp.all(jnp.isfinite(value))) for value in params.values())
        return Answer(posterior(params), "RETURNED" if finite else "NON_FINITE", num_steps, num_steps)

    return run


def blackjax(target: bures.Target, settings: dict[str, Any]) -> Run:
    """BlackJAX's full-rank VI with Adam and its step's own default of five draws, the cheaper of its two defaults."""
    import blackjax as library
    import optax

    num_steps, num_draws = settings["blackjax_steps"], 5
    algorithm = library.fullrank_vi(target.log_density, optax.adam(settings["blackjax_step_size"]), num_draws)

    @jax.jit
    def optimise(key):
        def one(state, key):
            return algorithm.step(key, state)[0], None

        state, _ = jax.lax.scan(one, algorithm.init(jnp.zeros(target.dim)), jax.random.split(key, num_steps))
        return state

    compiled = optimise.lower(jax.random.key(0)).compile()

    def run(seed: int) -> Answer:
        state = compiled(jax.random.key(seed))
        # As its state documents them: logarithms of the diagonal, then the rows below it.
        diagonal, below = jnp.split(state.chol_params, [target.dim])
        chol = jnp.diag(jnp.exp(diagonal)).at[jnp.tril_indices(target.dim, k=-1)].set(below)
        return Answer(bures.Gaussian(state.mu, chol), "RETURNED", num_steps, num_steps * num_draws)

    return run


def pymc(target: bures.Target, settings: dict[str, Any]) -> Run:
    """PyMC's FullRankADVI with its own defaults."""
    import pymc as library

    model, num_steps = _potential(target), settings["pymc_steps"]

    def run(seed: int) -> Answer:
        options = dict(method="fullrank_advi", random_seed=seed, progressbar=False, fn_kwargs=C_MACHINE)
        found = library.fit(num_steps, model=model, **options)
        approximation = _gaussian(found.mean.eval(), found.cov.eval())
        return Answer(approximation, "RETURNED", num_steps, num_steps)

    return run


def pymc_mean_field(target: bures.Target, settings: dict[str, Any]) -> Run:
    """PyMC's ADVI with its own defaults: an independent normal for each coordinate."""
    import pymc as library

    model, num_steps = _potential(target), settings["pymc_steps"]

    def run(seed: int) -> Answer:
        options = dict(method="advi", random_seed=seed, progressbar=False, fn_kwargs=C_MACHINE)
        found = library.fit(num_steps, model=model, **options)
        mean, deviations = (jnp.asarray(part.eval()) for part in (found.mean, found.std))
        if not bool(jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(deviations))):
            raise ValueError("The approximation is not finite.")
        return Answer(bures.LowRankGaussian(mean, deviations), "RETURNED", num_steps, num_steps)

    return run


def pymc_pathfinder(target: bures.Target, settings: dict[str, Any]) -> Run:
    """PyMC's Pathfinder with its own defaults: four paths, whose draws are importance-resampled to a thousand.

    Draws are all it gives: the Gaussian is that of their moments. Gradients of its line searches are not counted.
    """
    import pymc_extras as library

    model = _potential(target)

    def run(seed: int) -> Answer:
        # Path after path: by default it forks a process for each, in which JAX, and so the density, may hang.
        options = dict(random_seed=seed, progressbar=False, parallel=False, compile_kwargs=C_MACHINE)
        found = library.fit("pathfinder", model=model, **options)
        draws = found["posterior"]["z"].values.reshape(-1, target.dim)
        num_steps = int(found["lbfgs"]["niter"].sum())
        few = len(draws) <= target.dim  # no covariance is known by so few draws
        approximation = None if few else _gaussian(draws.mean(0), np.atleast_2d(np.cov(draws, rowvar=False)))
        return Answer(approximation, "RETURNED", num_steps, num_steps, draws=draws)

    return run


C_MACHINE = {"mode": "CVM"}  # PyTensor's Numba one calls JAX by way of a slow object mode


def _potential(target: bures.Target) -> Any:
    """The target as a PyMC model: its density is a potential, through PyTensor's JAX bridge."""
    import pymc as library
    from pytensor import wrap_jax

    density = wrap_jax(lambda z: target.log_density(z))
    with library.Model() as model:
        z = library.Flat("z", shape=target.dim, initval=np.zeros(target.dim))
        library.Potential("log_density", density(z))
    return model


@contextlib.contextmanager
def quiet():
    """The other libraries' warnings and progress messages are not ours to show."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _gaussian(mean: Any, covariance: Any) -> bures.Gaussian:
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(covariance))):
        raise ValueError("The approximation is not finite.")
    return bures.Gaussian.from_moments(jnp.asarray(mean), jnp.asarray(covariance))


DEFAULT = "bures.fit"
METHODS: dict[str, Callable[[bures.Target, dict[str, Any]], Run]] = {
    DEFAULT: default,
    **{name: paper(name) for name in PAPER},
    "Laplace": laplace,
    "Pathfinder": pathfinder,
    "AutoMultivariateNormal": numpyro,
    "FullRankADVI": pymc,
    "PyMC Pathfinder": pymc_pathfinder,
}
