"""Location–scale sites: the variables of a target whose prior has a location and a scale that are variables, too.

Such a variable can be written about its location, or in units of its scale, or anything in between: see
`bures.centring`.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bures.check import default_dtype, fail
from bures.support import Real
from bures.target.variables import Layout

_REMEDY = 'For example {"theta": lambda mu, tau: (mu, tau)}.'


class LocationScale(eqx.Module):
    """A real variable with density f((x − μ) / σ) / σ given coordinates that come before it: x ~ N(μ, σ), say.

    **Arguments:**

    - `name`: of the variable.
    - `start`, `shape`: its elements are the coordinates from `start` on.
    - `parameters`: from a point of R^dim to μ and log σ, which broadcast to `shape`. They may depend on other
        coordinates, those of earlier sites among them, but not on those of this site or later ones.
    """

    name: str = eqx.field(static=True)
    start: int = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    parameters: Callable[[Float[Array, " dim"]], tuple[Any, Any]]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def coordinates(self) -> slice:
        """Where its elements are in a point."""
        return slice(self.start, self.start + self.size)

    def location_and_log_scale(self, z: Float[Array, " dim"]) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """μ and log σ of each element."""
        found = self.parameters(z)
        location, log_scale = (jnp.broadcast_to(part, self.shape).reshape(-1).astype(z.dtype) for part in found)
        return location, log_scale


class _OfVariables(eqx.Module):
    """μ and log σ by a function of named, constrained variables to μ and σ."""

    function: Callable[..., tuple[Any, Any]]
    layout: Layout
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> tuple[Array, Array]:
        values = self.layout.constrain(z)
        location, scale = self.function(**{name: values[name] for name in self.names})
        return jnp.asarray(location), jnp.log(jnp.asarray(scale))


def sites_of_variables(layout: Layout, functions: Mapping[str, Callable] | None) -> tuple[LocationScale, ...]:
    """Sites from functions of the variables named by their arguments, ordered so that none comes before its parents."""
    if not functions:
        return ()
    if not isinstance(functions, Mapping):
        raise fail("location_scale", "a mapping from variables to functions (location, scale)", functions, _REMEDY)
    parents = {name: _parents(layout, name, function) for name, function in functions.items()}
    sites = []
    for name in _in_order(parents):
        place = layout.names.index(name)
        start = sum(math.prod(shape) for shape in layout.shapes[:place])
        parameters = _OfVariables(functions[name], layout, parents[name])
        site = LocationScale(name, start, layout.shapes[place], parameters)
        _check_parameters(site, layout.dim)
        sites.append(site)
    return tuple(sites)


def _parents(layout: Layout, name: str, function: Any) -> tuple[str, ...]:
    """The variables that location and scale depend on."""
    argument = f"location_scale[{name!r}]"
    if name not in layout.names:
        raise fail("location_scale", f"a mapping whose keys are among {', '.join(layout.names)}", name, _REMEDY)
    if not isinstance(layout.supports[layout.names.index(name)], Real):
        raise fail(argument, "of a variable on the real line", name, "Only such variables have a location and a scale.")
    if not callable(function):
        raise fail(argument, "a function of variables to (location, scale)", function, _REMEDY)
    names = tuple(inspect.signature(function).parameters)
    unknown = [each for each in names if each not in layout.names]
    if unknown or not names:
        wanted = f"a function whose arguments are among {', '.join(layout.names)}"
        raise fail(argument, wanted, unknown[0] if unknown else "no arguments", _REMEDY)
    return names


def _in_order(parents: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Parents first."""
    ordered: list[str] = []
    while len(ordered) < len(parents):
        waiting = [name for name in parents if name not in ordered]
        ready = [name for name in waiting if not any(parent in waiting for parent in parents[name])]
        if not ready:
            remedy = "Location and scale may depend on variables that do not depend on this one."
            raise fail("location_scale", "without circles", ", ".join(waiting), remedy)
        ordered += ready
    return ordered


def _check_parameters(site: LocationScale, dim: int) -> None:
    """Location and scale fit the variable's shape; they are traced, not computed."""
    wanted = f"a function to a location and a scale that broadcast to {site.shape}"
    try:
        jax.eval_shape(site.location_and_log_scale, jax.ShapeDtypeStruct((dim,), default_dtype()))
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        argument = f"location_scale[{site.name!r}]"
        raise ValueError(f"{argument} must be {wanted}, but it failed: {reason}. {_REMEDY}") from error
