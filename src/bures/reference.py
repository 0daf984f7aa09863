"""Reference posteriors by MCMC, to compare an approximation with: a target and starts in, `Chains` out.

The samplers are BlackJAX's (the extra `bures[mcmc]`), compiled and run with all chains side by side.
"""

import dataclasses
import math
from functools import cached_property
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from bures import linalg
from bures.check import check_floating, check_key, check_positive_integer, check_real, fail
from bures.compiled import compiled
from bures.family import AbstractApproximation, Gaussian, MeanField
from bures.target import Target

_TABLE_ROWS = 20
_SHORTEST = 4  # draws that can be split into two halves, each with a variance


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several Markov chains, and what they say about the posterior and about themselves. Printable.

    >>> noise = np.random.default_rng(0).standard_normal((4, 1000, 2))
    >>> chains = Chains(noise, np.ones(4), ("a", "b"))
    >>> chains.flat.shape, bool(np.all(chains.rhat < 1.01))
    ((4000, 2), True)
    """

    draws: Float[np.ndarray, "chain draw dim"]
    acceptance: Float[np.ndarray, " chain"]  # mean acceptance rate of each chain, after the warm-up
    names: tuple[str, ...]
    divergences: Int[np.ndarray, " chain"] | None = None  # for samplers that can diverge

    @property
    def num_chains(self) -> int:
        return self.draws.shape[0]

    @property
    def num_samples(self) -> int:
        """Draws in each chain."""
        return self.draws.shape[1]

    @property
    def dim(self) -> int:
        return self.draws.shape[2]

    @property
    def flat(self) -> Float[np.ndarray, "n dim"]:
        """All draws, chain after chain."""
        return self.draws.reshape(-1, self.dim)

    @property
    def mean(self) -> Float[np.ndarray, " dim"]:
        return np.mean(self.flat, axis=0, dtype=np.float64)

    @property
    def covariance(self) -> Float[np.ndarray, "dim dim"]:
        return np.cov(self.flat, rowvar=False, dtype=np.float64).reshape(self.dim, self.dim)

    def moment_gaussian(self) -> Gaussian:
        """The Gaussian with the mean and covariance of the draws."""
        dtype = self.draws.dtype
        return Gaussian.from_moments(jnp.asarray(self.mean, dtype), jnp.asarray(self.covariance, dtype))

    @cached_property
    def rhat(self) -> Float[np.ndarray, " dim"]:
        """Rank-normalised split R̂ of each coordinate, of location or scale, whichever is worse (Vehtari et al., 2021).

        Near 1 (say below 1.01) where the chains agree. NaN for fewer than four draws (eight of a single chain), and
        where no chain ever moved.
        """
        coordinates = self._coordinates()
        if self.num_chains == 1:  # its halves are compared as two chains are
            half = self.num_samples // 2
            coordinates = np.concatenate(
                [coordinates[:, :, :half], coordinates[:, :, self.num_samples - half :]], axis=1
            )
        return _diagnose("rhat", coordinates, method="rank")

    @cached_property
    def ess(self) -> Float[np.ndarray, " dim"]:
        """Effective sample size: so many independent draws would give each coordinate's mean with the same error.

        NaN for fewer than four draws, and where no chain ever moved.
        """
        return _diagnose("ess", self._coordinates(), method="mean")

    @cached_property
    def bulk_ess(self) -> Float[np.ndarray, " dim"]:
        """Effective sample size of ranks, which heavy tails do not disturb (Vehtari et al., 2021)."""
        return _diagnose("ess", self._coordinates(), method="bulk")

    @cached_property
    def tail_ess(self) -> Float[np.ndarray, " dim"]:
        """Effective sample size of the 5% and 95% quantiles, whichever is less."""
        return _diagnose("ess", self._coordinates(), method="tail", prob=(0.05, 0.95))

    def autocorrelation(self, max_lag: int) -> Float[np.ndarray, "chain lag dim"]:
        """Autocorrelation of each chain and coordinate, at lags 0 to `max_lag`."""
        check_positive_integer("max_lag", max_lag, "It is the largest lag, e.g. 100.")
        if max_lag >= self.num_samples:
            raise fail("max_lag", f"below {self.num_samples}, the draws in a chain", max_lag, "Ask for fewer lags.")
        covariances = (_autocovariance(x)[:, : max_lag + 1] for x in self._coordinates())
        with np.errstate(invalid="ignore"):  # a chain that never moved has no autocorrelation: NaN
            return np.stack([covariance / covariance[:, :1] for covariance in covariances], axis=-1)

    def _coordinates(self) -> Float[np.ndarray, "dim chain draw"]:
        return np.moveaxis(self.draws.astype(np.float64), 2, 0)

    def __str__(self) -> str:
        rhat, ess, deviations = self.rhat, self.ess, np.std(self.flat, axis=0, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = deviations / np.sqrt(ess)
        width = max(10, *map(len, self.names))
        header = f"{'':<{width}} {'mean':>10} {'sd':>10} {'mcse':>10} {'ESS':>8} {'R-hat':>7}"
        rows = [
            f"{name:<{width}} {mean:>10.4g} {sd:>10.4g} {error:>10.2g} {size:>8.0f} {r:>7.4f}"
            for name, mean, sd, error, size, r in zip(self.names, self.mean, deviations, errors, ess, rhat, strict=True)
        ]
        if self.dim > _TABLE_ROWS:
            rest = self.dim - _TABLE_ROWS
            rows = [*rows[:_TABLE_ROWS], f"({rest} more; smallest ESS {ess.min():.0f}, largest R-hat {rhat.max():.4f})"]
        return "\n".join([self._headline(), header, *rows])

    def _headline(self) -> str:
        low, high = 100 * float(np.min(self.acceptance)), 100 * float(np.max(self.acceptance))
        line = f"{self.num_chains} chains of {self.num_samples} draws, acceptance {low:.1f}% to {high:.1f}%"
        return line if self.divergences is None else f"{line}, {int(np.sum(self.divergences))} divergences"


def random_walk_metropolis(
    key: Key[Array, ""],
    target: Target,
    *,
    proposal_covariance: Any,
    initial: Any,
    num_chains: int = 4,
    num_samples: int = 10_000,
    num_warmup: int = 1_000,
    thinning: int = 1,
) -> Chains:
    """Random-walk Metropolis: propose z' ~ N(z, proposal_covariance), accept with probability min(1, p(z') / p(z)).

    **Arguments:**

    - `proposal_covariance`: (dim, dim); near 2.4² / dim times the posterior covariance mixes well.
    - `initial`: where the chains start. A point starts the first chain there and each other one a proposal away; a
        `Gaussian` of any family has the starts drawn from it; an array (num_chains, dim) gives them one by one.
    - `num_samples`: draws kept per chain, each `thinning` iterations after the last, after `num_warmup` dropped ones.

    >>> target = Target(lambda z: -jnp.sum(z**2) / 2, dim=1)
    >>> chains = random_walk_metropolis(
    ...     jax.random.key(0), target, proposal_covariance=5.76 * jnp.eye(1), initial=jnp.zeros(1), num_samples=500
    ... )
    >>> chains.draws.shape
    (4, 500, 1)
    """
    _check_target_and_counts(key, target, num_chains, num_samples, num_warmup)
    check_positive_integer("thinning", thinning, "Every thinning-th draw is kept; 1 keeps all.")
    chol = _check_proposal(proposal_covariance, target.dim)
    key_start, key_chains = jax.random.split(key)
    starts = _starts(key_start, target, initial, chol, num_chains)
    keys = jax.random.split(key_chains, num_chains)
    chol = chol.astype(starts.dtype)
    draws, acceptance = _random_walk(keys, target, chol, starts, num_samples, num_warmup, thinning)
    return Chains(np.asarray(draws), np.asarray(acceptance), target.names)


@compiled
def _random_walk(
    keys: Key[Array, " chain"],
    target: Target,
    chol: Float[Array, "dim dim"],
    starts: Float[Array, "chain dim"],
    num_samples: int,
    num_warmup: int,
    thinning: int,
) -> tuple[Float[Array, "chain draw dim"], Float[Array, " chain"]]:
    blackjax = import_blackjax()
    # BlackJAX's documentation calls this matrix a covariance in one place; what it does is multiply noise by it.
    proposal = blackjax.mcmc.random_walk.normal(chol)
    walk = blackjax.additive_step_random_walk(lambda z: target.log_density(z).astype(z.dtype), proposal)
    times = num_warmup + jnp.arange(num_samples * thinning).reshape(num_samples, thinning)

    def run(key: Key[Array, ""], start: Float[Array, " dim"]):
        def iterate(state, t):
            state, info = walk.step(jax.random.fold_in(key, t), state)
            return state, info.is_accepted

        def keep_last(state, ts):
            state, accepted = jax.lax.scan(iterate, state, ts)
            return state, (state.position, jnp.mean(accepted.astype(start.dtype)))

        warm, _ = jax.lax.scan(iterate, walk.init(start), jnp.arange(num_warmup))
        _, (draws, acceptance) = jax.lax.scan(keep_last, warm, times)
        return draws, jnp.mean(acceptance)

    return jax.vmap(run)(keys, starts)


def nuts(
    key: Key[Array, ""],
    target: Target,
    *,
    initial: Any = None,
    num_chains: int = 4,
    num_samples: int = 1_000,
    num_warmup: int = 1_000,
    target_acceptance: float = 0.8,
) -> Chains:
    """The no-U-turn sampler, its step size and mass matrix adapted to each chain in the warm-up.

    **Arguments:**

    - `initial`: a Gaussian of any family (a fit's approximation, `bures.laplace(target)`; default N(0, I)) has the
        starts drawn from it, and its covariance is the first inverse mass matrix; a point starts the first chain there
        and the others a standard normal step away; an array (num_chains, dim) gives the starts one by one.
    - `target_acceptance`: nearer 1 takes smaller steps: the remedy for divergences.

    >>> target = Target(lambda z: -jnp.sum((z - 3) ** 2) / 2, dim=2)
    >>> chains = nuts(jax.random.key(0), target, num_samples=500)  # doctest: +SKIP
    >>> chains.draws.shape  # doctest: +SKIP
    (4, 500, 2)
    """
    _check_target_and_counts(key, target, num_chains, num_samples, num_warmup)
    rate = check_real("target_acceptance", target_acceptance, 0, 0.999, "For example 0.8.", open_low=True)
    initial = MeanField().standard(target.dim) if initial is None else initial
    key_start, key_chains = jax.random.split(key)
    starts = _starts(key_start, target, initial, None, num_chains)
    known = isinstance(initial, AbstractApproximation)
    frame = initial if known else MeanField().standard(target.dim, starts.dtype)
    # BlackJAX adapts in JAX's default dtype and cannot mix it with another.
    frame, whitened = jax.tree.map(lambda x: x.astype(jnp.zeros(()).dtype), (frame, frame.whiten(starts)))
    keys = jax.random.split(key_chains, num_chains)
    result = _nuts(keys, target, frame, whitened, num_samples, num_warmup, rate)
    draws, acceptance, divergent = map(np.asarray, result)
    return Chains(draws.astype(starts.dtype), acceptance.mean(axis=1), target.names, divergent.sum(axis=1))


@compiled
def _nuts(
    keys: Key[Array, " chain"],
    target: Target,
    frame: AbstractApproximation,
    starts: Float[Array, "chain dim"],
    num_samples: int,
    num_warmup: int,
    target_acceptance: float,
) -> tuple[Float[Array, "chain draw dim"], Float[Array, "chain draw"], Bool[Array, "chain draw"]]:
    blackjax = import_blackjax()

    # Whitening by the frame and adapting a diagonal mass matrix there acts like a dense mass matrix, without
    # factorising one at every step of every chain.
    def log_density(u: Float[Array, " dim"]) -> Float[Array, ""]:
        return target.log_density(frame.push(u)).astype(u.dtype)

    warmup = blackjax.window_adaptation(
        blackjax.nuts,
        log_density,
        target_acceptance_rate=target_acceptance,
        adaptation_info_fn=lambda state, info, adaptation: None,
    )

    def run(key: Key[Array, ""], start: Float[Array, " dim"]):
        key_warmup, key_draws = jax.random.split(key)
        (state, parameters), _ = warmup.run(key_warmup, start, num_warmup)
        sampler = blackjax.nuts(log_density, **parameters)

        def iterate(state, t):
            state, info = sampler.step(jax.random.fold_in(key_draws, t), state)
            return state, (frame.push(state.position), info.acceptance_rate, info.is_divergent)

        return jax.lax.scan(iterate, state, jnp.arange(num_samples))[1]

    return jax.vmap(run)(keys, starts)


def import_blackjax() -> ModuleType:
    """BlackJAX, or what to install."""
    try:
        import blackjax
    except ImportError as error:
        raise ImportError("Markov chains need BlackJAX: pip install 'bures[mcmc]'") from error
    return blackjax


def _check_target_and_counts(key: Any, target: Any, num_chains: Any, num_samples: Any, num_warmup: Any) -> None:
    check_key(key)
    if not isinstance(target, Target):
        raise fail("target", "a bures.Target", target, "Wrap a bare log density: bures.Target(log_density, dim).")
    check_positive_integer("num_chains", num_chains, "It is the number of chains, e.g. 4.")
    check_positive_integer("num_samples", num_samples, "It is the number of draws kept per chain, e.g. 1000.")
    check_positive_integer("num_warmup", num_warmup, "It is the number of iterations dropped per chain, e.g. 1000.")


def _check_proposal(covariance: Any, dim: int) -> Float[Array, "dim dim"]:
    """The Cholesky factor of the proposal covariance, taken once."""
    argument = "proposal_covariance"
    covariance = check_floating(argument, covariance, ndim=2)
    if covariance.shape != (dim, dim):
        raise fail(argument, f"of shape ({dim}, {dim})", covariance, "Match the target's dimension.")
    if not bool(jnp.allclose(covariance, covariance.T)):
        raise fail(argument, "symmetric", covariance, "Pass (covariance + covariance.T) / 2.")
    chol = linalg.cholesky(covariance)
    if not bool(jnp.all(jnp.isfinite(chol))):
        smallest = float(jnp.linalg.eigvalsh(covariance)[0])
        raise fail(argument, "positive definite", covariance, f"Its smallest eigenvalue is {smallest:.3g}.")
    return chol


def _starts(
    key: Key[Array, ""], target: Target, initial: Any, spread: Float[Array, "dim dim"] | None, num_chains: int
) -> Float[Array, "{num_chains} {target.dim}"]:
    """Where the chains start, all of finite density.

    `spread` is the Cholesky factor of the steps from a point, None for standard normal ones.
    """
    if isinstance(initial, AbstractApproximation):
        _check_shape(initial.mean, (target.dim,))
        starts = initial.sample(key, num_chains)
    elif _num_axes(initial) == 2:
        starts = _check_shape(check_floating("initial", initial, ndim=2), (num_chains, target.dim))
    else:
        point = _check_shape(check_floating("initial", initial, ndim=1), (target.dim,))
        noise = jax.random.normal(key, (num_chains, target.dim), point.dtype).at[0].set(0)
        starts = point + (noise if spread is None else noise @ spread.T.astype(point.dtype))
    values = np.asarray(target.value(starts))
    if not np.all(np.isfinite(values)):
        chain = int(np.argmin(np.isfinite(values)))
        found = f"log density {values[chain]} at the start of chain {chain}"
        raise ValueError(
            f"initial must lead to starts of finite log density, but got {found}. "
            "Start where the density is positive, or give the starts as an array (num_chains, dim)."
        )
    return starts


def _num_axes(value: Any) -> int:
    try:
        return np.ndim(value)
    except ValueError:  # rows of several lengths
        return 1


def _check_shape(starts: Array, shape: tuple[int, ...]) -> Array:
    if starts.shape != shape:
        remedy = "Match the target's dimension, and num_chains if it gives every start."
        raise fail("initial", f"of shape {shape}", starts, remedy)
    return starts


def _diagnose(name: str, coordinates: Float[np.ndarray, "dim chain draw"], **options: Any) -> Float[np.ndarray, " dim"]:
    """A diagnostic of ArviZ for each coordinate; NaN where there is nothing to judge."""
    from arviz_stats.base.array import array_stats  # takes a second to import

    values = np.full(len(coordinates), math.nan)
    if coordinates.shape[2] < _SHORTEST:
        return values
    # In units of the spread: ArviZ takes draws that differ by less than 1e-15 for equal.
    with np.errstate(divide="ignore", invalid="ignore"):  # of infinite draws, and chains that stand still apart
        spread = np.ptp(coordinates, axis=(1, 2))
        moved = (spread > 0) & np.isfinite(spread)
        centred = coordinates[moved] - np.mean(coordinates[moved], axis=(1, 2), keepdims=True)
        values[moved] = getattr(array_stats, name)(centred / spread[moved, None, None], **options)
    return values


def _autocovariance(x: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain draw"]:
    """Autocovariance of each chain at every lag, by the fast Fourier transform."""
    n = x.shape[1]
    length = 1 << (2 * n - 1).bit_length()  # padded, so that the ends do not meet
    spectrum = np.fft.rfft(x - np.mean(x, axis=1, keepdims=True), length)
    return np.fft.irfft(np.abs(spectrum) ** 2, length)[:, :n] / n
