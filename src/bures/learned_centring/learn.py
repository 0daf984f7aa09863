"""`learn_centring`: coordinates in which a Gaussian fits a target with location–scale sites better.

First the factors of the sites, then a warp of what skewness is left. Steps of a Gaussian and of these numbers go
together, through two compiled programs of the target.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Key

from bures.arrays import to_device, to_host
from bures.centring import change_coordinates, check_has_sites
from bures.check import check_key, fail
from bures.engine import Watch
from bures.family import AbstractApproximation, FullRank, Gaussian
from bures.fitting.defaults import default_objective
from bures.learned_centring.factors import Factors, carry_start, learn_factors
from bures.learned_centring.run import Run, begin
from bures.learned_centring.warping import Warping, learn_warp
from bures.objective import IWELBO, AbstractObjective
from bures.target import Target
from bures.threads import one_blas_thread

_K = 10  # of the IW-ELBO, for which weights are even enough once the sites are conditioned


class Centring(eqx.Module):
    """A target in learned coordinates, and what it took.

    `bures.fit(centring.target, init=centring.approximation, objective=centring.objective, key=key)` goes on from there.
    Its draws come back in the model's own variables.
    """

    target: Target  # in learned coordinates
    approximation: AbstractApproximation | None  # on them, to begin a fit with; None where only a guess was affordable
    objective: AbstractObjective | None  # for that fit; None for its default
    degrees: dict[str, np.ndarray]  # of centring, by site, at the typical scale: 0 non-centred, 1 centred
    evaluations: int = eqx.field(static=True)

    def describe(self) -> str:
        """What was learned, in two sentences."""
        parts = [f"{name} {_range(degrees)}" for name, degrees in self.degrees.items()]
        return (
            f"Degrees of centring (0 non-centred, 1 centred) were learned in {self.evaluations:,} evaluations: "
            f"{', '.join(parts)}. Draws are in the model's own variables."
        )


def _range(degrees: np.ndarray) -> str:
    low, high = float(degrees.min()), float(degrees.max())
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def learn_centring(
    key: Key[Array, ""],
    target: Target,
    start: AbstractApproximation | None = None,
    *,
    watch: Watch = lambda each: each,
) -> Centring:
    """Coordinates in which a Gaussian fits a target better, as far as some thousand evaluations can tell.

    **Arguments:**

    - `key`: a typed key; the result is a function of it.
    - `target`: one with location–scale `sites`.
    - `start`: a Gaussian near the target as it is, in the place of a search for one.
    - `watch`: may note what evaluators are asked for, and end it.

    Beyond 400 dimensions, where a full covariance is too dear, a first guess of the factors is all.

    >>> import bures, jax, jax.numpy as jnp
    >>> from bures.support import Positive
    >>> y = jnp.array([3.0, -2.0, 0.5, 4.0, -3.5, 1.0])
    >>> def log_density(mu, tau, theta):  # very exact data: y ~ N(theta, 0.1)
    ...     prior = -(mu**2) / 50 - tau - jnp.sum(((theta - mu) / tau) ** 2) / 2 - 6 * jnp.log(tau)
    ...     return prior - 50 * jnp.sum((y - theta) ** 2)
    >>> variables, sites = {"mu": (), "tau": Positive(), "theta": (6,)}, {"theta": lambda mu, tau: (mu, tau)}
    >>> target = bures.Target.from_variables(log_density, variables, location_scale=sites)
    >>> centring = learn_centring(jax.random.key(0), target)
    >>> bool(jnp.all(centring.degrees["theta"] > 0.95)), centring.evaluations < 20_000
    (True, True)
    """
    check_key(key)
    check_has_sites(target)
    if start is not None and (not isinstance(start, Gaussian) or start.dim != target.dim):
        raise fail("start", f"a bures.Gaussian on R^{target.dim}", start, "Leave it out, and one is searched for.")
    with np.errstate(all="ignore"), one_blas_thread(target.dim):
        return _learn(key, target, start, watch)


def _learn(key: Key[Array, ""], target: Target, start: Gaussian | None, watch: Watch) -> Centring:
    factors = Factors.none(target)
    run = Run(key, change_coordinates(target, factors.change()), default_objective(target, FullRank()), watch)
    q = begin(run, None if start is None else carry_start(run, factors, to_host(start)))
    if not isinstance(q, Gaussian):
        draws = factors.look(q, run.noise(q.dim))
        return _conditioned(run, factors.guess(q, draws), draws.log_scale)
    factors, q, draws = learn_factors(run, factors, q)
    found = _conditioned(run, factors, draws.log_scale)
    warping = Warping.none(q)
    run = run.on(change_coordinates(found.target, warping.change()), IWELBO(_K))
    warping, q = learn_warp(run, warping, q)
    warped = change_coordinates(found.target, warping.change())
    return Centring(warped, to_device(q), IWELBO(_K), found.degrees, run.evaluations)


def _conditioned(run: Run, factors: Factors, log_scale: np.ndarray) -> Centring:
    """What the factors alone are good for."""
    change = factors.change()
    degrees = change.by_name(factors.degrees(log_scale.mean(axis=0)))
    return Centring(change_coordinates(factors.model, change), None, None, degrees, run.evaluations)
