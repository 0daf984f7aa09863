"""Degrees of centring: one target written in other coordinates, between centred and non-centred.

A variable x ~ N(μ, σ) whose location or scale is a variable, too, makes funnels: where σ is small, so is the room for
x. Written x = μ + σ^(1−c) (x̃ − c μ), with x̃ ~ N(c μ, σ^c), it is as it was for c = 1, and x̃ has neither location nor
scale in its prior for c = 0. Which c makes the posterior most nearly Gaussian depends on how much the data say about
x, so there is one for each element: `bures.learned_centring` finds them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import as_array, default_dtype, fail, is_traced
from bures.target import LocationScale, Target

_REMEDY = 'Give numbers from 0 (non-centred) to 1 (centred), e.g. 0.5 or {"theta": 0.5}.'

_LOST = 0.01  # standard deviations that rounding may move a variable


class Restored(NamedTuple):
    """A point in the model's own coordinates, and what was met on the way there."""

    point: Float[Array, " dim"]
    log_jacobian: Float[Array, ""]
    location: Float[Array, " elements"]
    log_scale: Float[Array, " elements"]


class Recentring(eqx.Module):
    """The map between the coordinates of a recentred target and the model's own, by the degree c of each element.

    Elements are those of all sites, one site after the other. All other coordinates are the same in both.
    """

    sites: tuple[LocationScale, ...]
    degrees: Float[Array, " elements"]

    def restore(self, z: Float[Array, " dim"]) -> Restored:
        """The model's own coordinates: x = μ + σ^(1−c) (x̃ − c μ), site by site, because μ and σ are the model's.

        Where σ is so small that x − μ is lost in the rounding of x, the log Jacobian is −inf: there the model's density
        would be that of a rounding error.
        """
        point, terms, found = z, [jnp.zeros((), z.dtype)], []
        for site, c in self._parts():
            location, log_scale = site.location_and_log_scale(point)
            stretch = (1 - c) * log_scale
            factor = jnp.exp(stretch)
            x = factor * z[site.coordinates] + (1 - c * factor) * location  # in this form exact for c = 1
            point = point.at[site.coordinates].set(x)
            lost = (c < 1) & (jnp.finfo(z.dtype).eps * jnp.abs(location) > _LOST * jnp.exp(log_scale))
            terms.append(jnp.where(jnp.any(lost), -jnp.inf, jnp.sum(stretch)))
            found.append((location, log_scale))
        locations, log_scales = zip(*found, strict=True)
        return Restored(point, jnp.sum(jnp.stack(terms)), jnp.concatenate(locations), jnp.concatenate(log_scales))

    def apply(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The inverse of `restore`: x̃ = c μ + σ^(c−1) (x − μ)."""
        moved = x
        for site, c in self._parts():
            location, log_scale = site.location_and_log_scale(x)
            scaled = jnp.exp((c - 1) * log_scale) * (x[site.coordinates] - location)
            moved = moved.at[site.coordinates].set(c * location + scaled)
        return moved

    def by_name(self) -> dict[str, np.ndarray]:
        """The degrees of each site, in its shape."""
        return {site.name: np.asarray(c).reshape(site.shape) for site, c in self._parts()}

    def _parts(self) -> list[tuple[LocationScale, Array]]:
        ends = np.cumsum([site.size for site in self.sites])
        return [(site, self.degrees[end - site.size : end]) for site, end in zip(self.sites, ends, strict=True)]


class Recentred(eqx.Module):
    """A log density in recentred coordinates, log p(x) + Σ (1 − c) log σ.

    The degrees are an array of it, so that targets that differ in them share one compiled program.
    """

    log_density: Callable[[Float[Array, " dim"]], Float[Array, ""]]
    recentring: Recentring

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        restored = self.recentring.restore(z)
        return self.log_density(restored.point) + restored.log_jacobian

    def explain(self, z: np.ndarray) -> str:
        """What the model says of a point without density, for an error message."""
        explain = getattr(self.log_density, "explain", None)
        if explain is None:
            return "it was recentred"
        return explain(np.asarray(self.recentring.restore(jnp.asarray(z)).point))

    def initial_candidates(self) -> np.ndarray:
        """The model's own, carried over."""
        offered = getattr(self.log_density, "initial_candidates", None)
        points = np.zeros((0, 0)) if offered is None else np.atleast_2d(offered())
        if not len(points):
            return points
        return np.asarray(jax.vmap(self.recentring.apply)(jnp.asarray(points, default_dtype())))


class _Composed(eqx.Module):
    """A function of the model's own coordinates, as one of recentred coordinates."""

    function: Callable
    recentring: Recentring

    def __call__(self, z: Float[Array, " dim"]) -> Any:
        return self.function(self.recentring.restore(z).point)


def recentre(target: Target, degrees: Any) -> Target:
    """The target in coordinates of other degrees of centring c; its draws come back in the model's own variables.

    `degrees` is one number for all elements of all sites, or a mapping from sites to numbers or arrays (sites that are
    left out stay as they are), or one array over the elements of all sites. 1 is the target as it is, 0 non-centred.

    >>> from bures.support import Positive
    >>> def log_density(mu, tau, theta):
    ...     return -(mu**2) / 2 - tau - jnp.sum(((theta - mu) / tau) ** 2) / 2 - 3 * jnp.log(tau)
    >>> variables = {"mu": (), "tau": Positive(), "theta": (3,)}
    >>> target = Target.from_variables(log_density, variables, location_scale={"theta": lambda mu, tau: (mu, tau)})
    >>> noncentred = recentre(target, {"theta": 0.0})
    >>> noncentred.constrain(jnp.array([1.0, jnp.log(2.0), -1.0, 0.0, 1.0]))["theta"].tolist()
    [-1.0, 1.0, 3.0]
    """
    if not isinstance(target, Target) or not target.sites:
        remedy = "See `location_scale` of Target.from_variables; from_numpyro and from_pymc find them by themselves."
        raise fail("target", "a target with location–scale sites", target, remedy)
    recentring = Recentring(target.sites, check_degrees(target, degrees))
    labels, start = target.labels, target.initial_point
    if labels.log_likelihood is not None:
        labels = dataclasses.replace(labels, log_likelihood=_Composed(labels.log_likelihood, recentring))
    return Target(
        Recentred(target.log_density, recentring),
        target.dim,
        names=target.names,
        constrain=_Composed(target.constrain, recentring),
        initial_point=None if start is None else _carried(recentring, start),
        labels=labels,
    )


def recentring_of(target: Target) -> Recentring | None:
    """How a target was recentred; None if it was not."""
    return target.log_density.recentring if isinstance(target.log_density, Recentred) else None


def check_degrees(target: Target, degrees: Any) -> Float[Array, " elements"]:
    """Degrees of all elements, of all sites one after the other."""
    if isinstance(degrees, Mapping):
        if unknown := [name for name in degrees if name not in {site.name for site in target.sites}]:
            names = ", ".join(site.name for site in target.sites)
            raise fail("degrees", f"a mapping whose keys are among {names}", unknown[0], _REMEDY)
        parts = [_of_shape(f"degrees[{s.name!r}]", degrees.get(s.name, 1.0), s.shape) for s in target.sites]
        values = jnp.concatenate([part.reshape(-1) for part in parts])
    else:
        values = _of_shape("degrees", degrees, (sum(site.size for site in target.sites),))
    if not is_traced(values) and not np.all((np.asarray(values) >= 0) & (np.asarray(values) <= 1)):
        raise fail("degrees", "between 0 and 1", np.asarray(values), _REMEDY)
    return values


def _of_shape(argument: str, value: Any, shape: tuple[int, ...]) -> Array:
    try:
        if is_traced(value):
            return jnp.broadcast_to(value, shape).astype(default_dtype())
        return as_array(np.broadcast_to(np.asarray(value, float), shape).astype(default_dtype()))
    except (TypeError, ValueError) as error:
        raise fail(argument, f"a number or of shape {shape}", value, _REMEDY) from error


def _carried(recentring: Recentring, point: Array) -> Array | None:
    """A point in the new coordinates; None where the scale there makes it none."""
    moved = recentring.apply(point)
    return moved if is_traced(moved) or np.all(np.isfinite(np.asarray(moved))) else None
