"""Coordinates of location–scale sites, between centred and non-centred.

A variable x ~ N(μ, σ) whose location or scale is a variable, too, makes funnels: where σ is small, so is the room for
x. It can be written in other coordinates x̃ in which there are none:

- x = μ + σ^(1−c) (x̃ − c μ) with a degree of centring c, `Recentred`: as it was for c = 1, and with a prior that knows
  neither location nor scale for c = 0.
- x = m + s x̃, where N(m, s²) is the prior times exp(b x − λ x² / 2), what the data say about x, as far as a Gaussian
  can: `Conditioned`. Then c = λ σ² / (1 + λ σ²) follows σ, from non-centred where σ is small to centred where it is
  large. What the data say depends on the variables u that are in no site, noise and coefficients: λ and b do, too.
  `bures.learned_centring` finds them.
"""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.centring.change import AbstractChange, change_coordinates
from bures.check import as_array, default_dtype, fail, is_traced
from bures.target import LocationScale, Target

_REMEDY = 'Give numbers from 0 (non-centred) to 1 (centred), e.g. 0.5 or {"theta": 0.5}.'
MOST_GROWTH = 10.0  # of the logarithm of λ, so that it is finite far out, where nothing was learned
_LOST = 0.01  # standard deviations that rounding may move a variable


class Parameters(NamedTuple):
    """Location and log scale of the elements of all sites, one site after the other."""

    location: Float[Array, " elements"]
    log_scale: Float[Array, " elements"]


class AbstractSiteChange(AbstractChange):
    """A change of the elements of location–scale sites, x = m + s x̃ with m and s by location and scale.

    All other coordinates are the same in both. Where σ is so small that x − μ is lost in the rounding of x, the log
    Jacobian is −inf: there the model's density would be that of a rounding error.
    """

    sites: eqx.AbstractVar[tuple[LocationScale, ...]]

    @abc.abstractmethod
    def moments(self, part: slice, z: Array, location: Array, log_scale: Array) -> tuple[Array, Array]:
        """m and log s of some elements, at a point."""

    @property
    def elements(self) -> np.ndarray:
        """The coordinates of the elements."""
        return np.concatenate([np.arange(site.start, site.start + site.size) for site in self.sites])

    def restore(self, z):
        return self.restore_with_parameters(z)[:2]

    def restore_with_parameters(self, z: Float[Array, " dim"]) -> tuple[Array, Array, Parameters]:
        """The model's own coordinates, site by site, because location and scale are the model's."""
        point, total, found = z, jnp.zeros((), z.dtype), []
        for site, part in self.parts():
            location, log_scale = site.location_and_log_scale(point)
            mean, log_width = self.moments(part, z, location, log_scale)
            point = point.at[site.coordinates].set(mean + jnp.exp(log_width) * z[site.coordinates])
            lost = jnp.finfo(z.dtype).eps * jnp.abs(location) > _LOST * jnp.exp(log_scale)
            lost = lost & ((log_width != 0) | (mean != 0))  # what is as it was cannot get lost
            total = total + jnp.where(jnp.any(lost), -jnp.inf, jnp.sum(log_width))
            found.append((location, log_scale))
        return point, total, Parameters(*map(jnp.concatenate, zip(*found, strict=True)))

    def apply(self, x):
        moved = x
        for site, part in self.parts():
            mean, log_width = self.moments(part, x, *site.location_and_log_scale(x))
            moved = moved.at[site.coordinates].set((x[site.coordinates] - mean) * jnp.exp(-log_width))
        return moved

    def by_name(self, values: Any) -> dict[str, np.ndarray]:
        """Numbers of all elements, by site and in its shape."""
        return {site.name: np.asarray(values)[part].reshape(site.shape) for site, part in self.parts()}

    def parts(self) -> list[tuple[LocationScale, slice]]:
        """The sites, each with its place among the elements."""
        ends = np.cumsum([site.size for site in self.sites]).tolist()
        return [(site, slice(end - site.size, end)) for site, end in zip(self.sites, ends, strict=True)]


class Recentred(AbstractSiteChange):
    """x = μ + σ^(1−c) (x̃ − c μ), with x̃ ~ N(c μ, σ^c)."""

    sites: tuple[LocationScale, ...]
    degrees: Float[Array, " elements"]

    def moments(self, part, z, location, log_scale):
        c = self.degrees[part]
        log_width = (1 - c) * log_scale
        return (1 - c * jnp.exp(log_width)) * location, log_width


class Conditioned(AbstractSiteChange):
    """x = m + s x̃, where N(m, s²) is N(μ, σ²) times exp(b x − λ x² / 2): 1 / s² = 1 / σ² + λ, m = s² (μ / σ² + b).

    Where the data say about x what the factor says, x̃ is standard normal whatever μ and σ are. Without factors, λ =
    b = 0, the target is non-centred. With u the coordinates that are in no site, less their origin, λ and b grow by
    exp(γᵀu) together, and b leans by βᵀu before: the data's own estimate b / λ is an affine function of u.
    """

    sites: tuple[LocationScale, ...]
    precision: Float[Array, " elements"]  # λ at the origin
    shift: Float[Array, " elements"]  # b there
    origin: Float[Array, " free"] | None = None
    growth: Float[Array, "elements free"] | None = None  # γ; like β not there in files of before
    lean: Float[Array, "elements free"] | None = None  # β

    def moments(self, part, z, location, log_scale):
        precision, shift, growth = self.precision[part], self.shift[part], 1.0
        if self.growth is not None and self.lean is not None and self.origin is not None:
            u = z[free_coordinates(self.sites, z.size)] - self.origin
            growth = jnp.exp(jnp.clip(self.growth[part] @ u, -MOST_GROWTH, MOST_GROWTH))
            shift = shift + self.lean[part] @ u
        variance = growth * jnp.exp(2 * log_scale)
        share = 1 + precision * variance
        mean = location + variance * (shift - precision * location) / share
        return mean, log_scale - jnp.log(share) / 2


def free_coordinates(sites: tuple[LocationScale, ...], dim: int) -> np.ndarray:
    """The coordinates that are in no site."""
    inside = [np.arange(site.start, site.start + site.size) for site in sites]
    return np.setdiff1d(np.arange(dim), np.concatenate(inside))


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
    check_has_sites(target)
    return change_coordinates(target, Recentred(target.sites, check_degrees(target, degrees)))


def check_has_sites(target: Any) -> None:
    if not isinstance(target, Target) or not target.sites:
        remedy = "See `location_scale` of Target.from_variables; from_numpyro and from_pymc find them by themselves."
        raise fail("target", "a target with location–scale sites", target, remedy)


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
