"""From a fit to ArviZ and to MCMC: draws in the target's own variables, and a start for chains."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bures.check import check_flag, check_key, check_positive_integer
from bures.diagnostics import WeightedDraws
from bures.family import AbstractApproximation, LowRankGaussian
from bures.rows.stream import affordable_draws
from bures.target import Target

if TYPE_CHECKING:
    from xarray import DataTree

    from bures.fitting import Fit


def to_arviz(fit: "Fit", key: Key[Array, ""], *, num_draws: int, resample: bool) -> "DataTree":
    """A DataTree with `posterior` (one chain) and `sample_stats` (log p, log q, raw and smoothed log weights).

    The outcome, k̂ and what it advises are attributes of both. Where the target's labels have them, `log_likelihood` and
    `observed_data` are there too.
    """
    import_from_dict()
    check_positive_integer("num_draws", num_draws, "It is the number of draws to export.")
    check_key(key)
    check_flag("resample", resample, "Whether weights choose the draws.")
    target = fit.target
    pool = fit.draws()
    wanted = max(num_draws, min(10 * num_draws, affordable_draws(target))) if resample else num_draws
    if pool.log_p.size < wanted:  # the judgement's are too few: take more
        pool = WeightedDraws.draw(key, fit.approximation, target, wanted)
    kept = pool.choose(jax.random.fold_in(key, 1), num_draws) if resample else slice(num_draws)
    statistics = {name: value[kept][None] for name, value in weight_statistics(pool).items()}
    found = fit.diagnostics
    attributes = {
        "outcome": fit.outcome.name,
        "khat": found.khat,
        "verdict": found.verdict.value,
        "advice": found.message,
        "resampled": int(resample),
    }
    return tree_of(target, pool.z[kept][None], statistics, attributes)


def weight_statistics(draws: WeightedDraws) -> dict[str, np.ndarray]:
    """What is known of weighted draws, by the names it has in `sample_stats`."""
    return {
        "lp": draws.log_p,
        "log_q": draws.log_q,
        "log_weight": draws.log_weights,
        "log_weight_smoothed": draws.smoothed(),
    }


def tree_of(
    target: Target,
    z: Float[np.ndarray, "chain draw dim"],
    statistics: Mapping[str, Float[np.ndarray, "chain draw"]],
    attributes: Mapping[str, Any],
) -> "DataTree":
    """Draws of a target in its own variables, with `sample_stats` and attributes, labelled as the target says."""
    from_dict, labels = import_from_dict(), target.labels
    groups: dict[str, dict[str, Any]] = {"posterior": _by_chain(target.constrain, z)}
    if statistics:
        groups["sample_stats"] = {name: np.asarray(value) for name, value in statistics.items()}
    attributes = {"inference_library": "bures", **attributes, **labels.attributes}
    attributes_by_group = dict.fromkeys(groups, attributes)
    if labels.log_likelihood is not None:
        groups["log_likelihood"] = _by_chain(labels.log_likelihood, z)
    if labels.observed_data:
        groups["observed_data"] = dict(labels.observed_data)
    names = {name for group in groups.values() for name in group}
    dims = {name: list(axes) for name, axes in labels.dims.items() if name in names}
    return from_dict(groups, coords=dict(labels.coords), dims=dims, attrs=attributes_by_group)


def import_from_dict() -> Any:
    """ArviZ's maker of trees, or what to install."""
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise ImportError("A DataTree needs ArviZ: pip install 'bures[arviz]'.") from error
    return from_dict


def _by_chain(function: Callable[[Array], dict[str, Array]], z: Float[np.ndarray, "chain draw dim"]) -> dict[str, Any]:
    """A function of a point at all draws: arrays by name, (chain, draw, ...) each."""
    values = jax.vmap(function)(jnp.asarray(z.reshape(-1, z.shape[2])))
    return {name: np.asarray(value).reshape(*z.shape[:2], *value.shape[1:]) for name, value in values.items()}


_DENSE_MASS = 1000  # dimensions up to which a low-rank covariance is given as a matrix
_COVARIANCE_DRAWS = 4000  # at least, where the covariance is taken from draws


class LowRankMassMatrix(NamedTuple):
    """The inverse mass matrix D (I + V (Λ − I) Vᵀ) D in factors: D = diag(scale), V = basis, Λ = diag(variances).

    BlackJAX's samplers take it in this order: `blackjax.mcmc.metrics.LowRankInverseMassMatrix(*start.low_rank)`.
    """

    scale: Float[Array, " dim"]
    basis: Float[Array, "dim r"]
    variances: Float[Array, " r"]


class NutsStart(eqx.Module):
    """Initial points and a mass matrix for NUTS or HMC, with one row for each chain.

    `inverse_mass_matrix` is what samplers take by that name: the covariance of the approximation, a matrix. For mean
    field it is its diagonal, a vector, and so it is for low rank beyond 1000 dimensions, where `low_rank` has all of
    it. NumPyro takes it with `dense_mass=start.inverse_mass_matrix.ndim == 2`.
    """

    positions: Float[Array, "chains dim"]
    inverse_mass_matrix: Float[Array, "dim dim"] | Float[Array, " dim"]
    unconstrained: dict[str, Array]  # the same points by variable, on the unconstrained scale
    constrained: dict[str, Array]  # and on the variables' own scale, with deterministic quantities
    low_rank: LowRankMassMatrix | None = None  # the same matrix in factors, where the approximation has them

    def chain(self, i: int) -> dict[str, np.ndarray]:
        """The unconstrained variables of chain `i`."""
        return {name: np.asarray(value[i]) for name, value in self.unconstrained.items()}


def nuts_start(fit: "Fit", key: Key[Array, ""], num_chains: int) -> NutsStart:
    """Importance-resampled points, all different as far as the weights allow, and the covariance for samplers."""
    from bures.fitting.resampling import as_given, resampled

    check_key(key)
    check_positive_integer("num_chains", num_chains, "It is the number of chains, e.g. 4.")
    q, z = fit.approximation, jnp.asarray(resampled(fit, key, num_chains))
    positions = as_given(fit, z)
    variables, constrained = _by_variable(fit.target.names, positions), jax.vmap(fit.target.constrain)(z)
    if fit.record.is_recentred:  # its covariance is one of other coordinates
        drawn = as_given(fit, q.sample(key, max(_COVARIANCE_DRAWS, 10 * q.dim)))
        return NutsStart(positions, _covariance_of(drawn), variables, constrained)
    return NutsStart(positions, _inverse_mass_matrix(q), variables, constrained, _in_factors(q))


def _covariance_of(draws: Float[Array, "n dim"]) -> Array:
    """The covariance of draws; a vector of variances where the matrix would be too large."""
    if draws.shape[1] > _DENSE_MASS:
        return jnp.var(draws, axis=0)
    return jnp.cov(draws, rowvar=False).reshape(draws.shape[1], draws.shape[1])


def _inverse_mass_matrix(q: Any) -> Array:
    """The covariance; a vector where it is diagonal, or too large and given in factors."""
    diagonal = isinstance(q, LowRankGaussian) and (q.rank == 0 or q.dim > _DENSE_MASS)
    return q.standard_deviations**2 if diagonal else q.covariance


def _in_factors(q: AbstractApproximation) -> LowRankMassMatrix | None:
    if not isinstance(q, LowRankGaussian):
        return None
    used = np.flatnonzero(np.asarray(q.variances) != 1)
    return LowRankMassMatrix(jnp.asarray(q.scale), jnp.asarray(q.basis)[:, used], jnp.asarray(q.variances)[used])


def _by_variable(names: tuple[str, ...], z: Float[Array, "n dim"]) -> dict[str, Any]:
    """Columns named theta[0,0], theta[0,1], ... put together as arrays; those that make no whole array stay alone."""
    columns: dict[str, dict[tuple[int, ...], int]] = {}
    for column, name in enumerate(names):
        base, indices = re.fullmatch(r"(.*?)(?:\[(\d+(?:,\d+)*)\])?", name, re.DOTALL).groups()  # pyright: ignore
        columns.setdefault(base, {})[tuple(map(int, indices.split(","))) if indices else ()] = column
    variables = {}
    for base, places in columns.items():
        if (shape := _whole(places)) is None:
            variables |= {names[column]: z[:, column] for column in places.values()}
            continue
        order = [places[index] for index in np.ndindex(shape)]
        variables[base] = z[:, jnp.array(order)].reshape(-1, *shape)
    return variables


def _whole(places: Collection[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the array whose entries have these indices, from zero; None if some are missing."""
    if len({len(index) for index in places}) > 1:
        return None
    shape = tuple((np.max(list(places), axis=0) + 1).astype(int).tolist())
    return shape if math.prod(shape) == len(places) else None
