"""Named, constrained variables: where each sits in the flat vector, its support, and the change of variables."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import fail
from bures.support import Real


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """One coordinate for each entry of named arrays, laid one after the other; their names are made when asked for.

    >>> len(Coordinates({"mu": (), "theta": (10_000, 1_000)}))
    10000001
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        object.__setattr__(self, "shapes", tuple((name, tuple(shape)) for name, shape in shapes.items()))

    def __len__(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    def names(self) -> tuple[str, ...]:
        """`name` for a scalar, `name[i]`, `name[i,j]`, ... for an element of an array."""
        return tuple(
            name + (f"[{','.join(map(str, index))}]" if index else "")
            for name, shape in self.shapes
            for index in np.ndindex(shape)
        )


def coordinate_names(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """One name for each entry of the named arrays, laid one after the other.

    >>> coordinate_names({"mu": (), "theta": (2,)})
    ('mu', 'theta[0]', 'theta[1]')
    """
    return Coordinates(shapes).names()


class ByName(eqx.Module):
    """The default way back: one variable `z`, or one scalar variable per given name."""

    names: tuple[str, ...] | None = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return {"z": z} if self.names is None else dict(zip(self.names, z, strict=True))


class Layout(eqx.Module):
    """Where each named variable sits in the flat vector, its shape there (unconstrained), and its support."""

    names: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    supports: tuple[Any, ...]

    def __init__(self, variables: Mapping[str, Any]):
        named = isinstance(variables, Mapping) and all(isinstance(name, str) for name in variables)
        if not named or not variables:
            remedy = 'For example {"mu": (), "tau": Positive()}.'
            raise fail("variables", "a non-empty mapping of names to shapes or supports", variables, remedy)
        self.names = tuple(variables)
        parts = [_support_and_shape(name, value) for name, value in variables.items()]
        self.supports = tuple(support for support, _ in parts)
        self.shapes = tuple(shape for _, shape in parts)

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def coordinates(self) -> Coordinates:
        return Coordinates(dict(zip(self.names, self.shapes, strict=True)))

    def split(self, z: Float[Array, " dim"]) -> list[Array]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(jnp.split(z, ends), self.shapes, strict=True)]

    def constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        parts = zip(self.names, self.supports, self.split(z), strict=True)
        return {name: support.constrain(part) for name, support, part in parts}

    def log_jacobian(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        terms = [s.log_jacobian(part) for s, part in zip(self.supports, self.split(z), strict=True)]
        return jnp.sum(jnp.stack(terms))


def _support_and_shape(name: str, value: Any) -> tuple[Any, tuple[int, ...]]:
    """The support of a variable and its shape on the unconstrained scale.

    The elements of most supports are numbers; a support whose elements have axes of their own names their lengths on
    the unconstrained scale as `free_shape`.
    """
    parts = value if isinstance(value, tuple | list) else (value, ())
    if len(parts) == 2 and hasattr(parts[0], "constrain") and not isinstance(parts[0], type):
        support, shape = parts
    else:
        support, shape = Real(), value
    if not isinstance(shape, tuple | list) or not all(isinstance(n, int) and n > 0 for n in shape):
        remedy = "For example (3,), Positive() or (Positive(), (3,))."
        raise fail(f"variables[{name!r}]", "a shape, a support, or (support, shape)", value, remedy)
    if getattr(support, "of_vectors", False) and not shape:
        remedy = f"For example ({type(support).__name__}(), (3,))."
        raise fail(f"variables[{name!r}]", "a support with a shape, whose last axis is in order", value, remedy)
    return support, (*shape, *getattr(support, "free_shape", ()))


class Unconstrained(eqx.Module):
    """log p(constrain(z)) + log |det ∂constrain/∂z|."""

    log_density: Callable[..., Float[Array, ""]]
    layout: Layout

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.log_density(**self.layout.constrain(z)) + self.layout.log_jacobian(z)
