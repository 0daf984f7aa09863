"""Data that a log density has closed over, as arguments of its programs instead of constants in them.

A large array in the closure of a function would be copied into its compiled program, more than once. Here the function
is made again with the arrays that it is given. Where that would change what it does, it is left as it is: NumPy code
over such arrays runs once while a program is traced, and code that looks at values cannot be traced at all.
"""

import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from bures.target.blocks import equations

_LARGE = 2**20  # bytes


class Mortal:
    """What holds a model and its data, and is known by its identity: programs do not keep it alive.

    As a field of a module it is no static one but a leaf, so that it is found (see `bures.compiled`).
    """


class Skeleton(Mortal):
    """A function without the large arrays of its closure, its defaults and its module."""

    def __init__(self, function: types.FunctionType):
        self.code, self.globals, self.name = function.__code__, function.__globals__, function.__name__
        self.cells: list[Any] = list(function.__closure__ or ())
        self.defaults: list[Any] = list(function.__defaults__ or ())
        self.named: dict[str, Any] = dict(function.__kwdefaults__ or {})
        self.places: list[tuple[str, Any]] = []
        self.arrays: list[Any] = []
        for i, cell in enumerate(self.cells):
            self._take("cell", i, _content(cell))
        for i, value in enumerate(self.defaults):
            self._take("default", i, value)
        for name, value in self.named.items():
            self._take("named", name, value)
        for name in _names(self.code):
            self._take("global", name, self.globals.get(name))
        self._forget()

    def _take(self, kind: str, place: Any, value: Any) -> None:
        if _is_large(value):
            self.places.append((kind, place))
            self.arrays.append(value)

    def _forget(self) -> None:
        """Keep none of the arrays that were taken."""
        for kind, place in self.places:
            if kind == "cell":
                self.cells[place] = None
            elif kind == "default":
                self.defaults[place] = None
            elif kind == "named":
                self.named[place] = None

    def taken(self) -> list[Any]:
        """The arrays, which the skeleton then has no more."""
        arrays, self.arrays = self.arrays, []
        return arrays

    def fill(self, arrays: Any) -> Callable:
        """The function with these arrays in their places."""
        cells, defaults, named = list(self.cells), list(self.defaults), dict(self.named)
        around: dict[str, Any] = {}
        for (kind, place), array in zip(self.places, arrays, strict=True):
            if kind == "cell":
                cells[place] = types.CellType(array)
            elif kind == "default":
                defaults[place] = array
            elif kind == "named":
                named[place] = array
            else:
                around[place] = array
        seen = self.globals | around if around else self.globals
        made = types.FunctionType(self.code, seen, self.name, tuple(defaults) or None, tuple(cells))
        made.__kwdefaults__ = named or None
        return made


class Hoisted(eqx.Module):
    """A log density whose data are arrays of a pytree."""

    arrays: tuple[Array, ...]
    skeleton: Skeleton

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.skeleton.fill(self.arrays)(z)


def hoist(function: Any, plain: Any, point: jax.ShapeDtypeStruct) -> Any:
    """A function with its large arrays as data of a pytree; as it is where there are none, or where it must.

    `plain` is its jaxpr as it is.
    """
    if not isinstance(function, types.FunctionType) or function.__dict__:
        return function
    skeleton = Skeleton(function)
    arrays = skeleton.taken()
    if not arrays:
        return function
    try:
        shapes = [jax.ShapeDtypeStruct(each.shape, jax.dtypes.canonicalize_dtype(each.dtype)) for each in arrays]
        traced = jax.make_jaxpr(lambda given, z: skeleton.fill(given)(z))(shapes, point)
    except Exception:  # it looks at values, or is NumPy's
        return function
    if _count(traced) != _count(plain):  # some of its work was done once, and would be done every time
        return function
    return Hoisted(tuple(jax.device_put(each) for each in arrays), skeleton)


def _count(jaxpr: Any) -> int:
    return sum(1 for _ in equations(jaxpr))


def _is_large(value: Any) -> bool:
    if isinstance(value, Tracer) or not isinstance(value, np.ndarray | jax.Array):
        return False
    return value.dtype.kind in "fiub" and value.nbytes >= _LARGE


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _names(code: types.CodeType) -> set[str]:
    """Names of globals that code, and the code of functions inside it, may look up."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*(_names(each) for each in inner))
