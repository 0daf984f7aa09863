"""Compiled programs that live no longer than what they were compiled for.

JAX keeps a compiled program, and all that was static in it, for as long as the process lives. A log density that is a
function holds its data in its closure, so those would never be freed. Here such functions are known to programs by weak
references only, and a program that was compiled for one goes when it does. Densities that are pytrees, as all of
`bures.models`, have their data as arrays: targets of one shape share one program. The latest of those are kept.
"""

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax

from bures.memory import give_back_memory
from bures.target import Target
from bures.target.closures import Mortal

_JITTED = type(jax.jit(lambda: None))
_KEPT = 64  # programs of one function, each for one shape of what it is given: some megabytes each


class Weak:
    """Stands for a function in the static part of a program, without keeping it alive."""

    def __init__(self, function: Any):
        self._reference = weakref.ref(function)
        self._hash = id(function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        owner = object.__getattribute__(self, "_function")()
        found = getattr(owner, name)
        if getattr(found, "__self__", None) is owner:  # a method: a callback in a program would keep its owner alive
            return functools.partial(self._call_method, name)
        return found

    def _call_method(self, name: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._function(), name)(*arguments, **named)

    def _function(self) -> Any:
        function = self._reference()
        if function is None:
            raise ReferenceError("A program is run for a log density that is gone.")
        return function

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weak) and self._reference is other._reference


class Static:
    """What of some arguments is not an array: compared by value, hashed once."""

    def __init__(self, structure: Any, leaves: list[Any]):
        self.structure, self.leaves = structure, leaves
        self._hash = hash((structure, *leaves))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Static) and self.structure == other.structure and self.leaves == other.leaves

    def strong(self) -> "Static":
        """With the functions themselves where there are weak references to them."""
        if not any(isinstance(leaf, Weak) for leaf in self.leaves):
            return self
        return Static(self.structure, [leaf._function() if isinstance(leaf, Weak) else leaf for leaf in self.leaves])

    def combine(self, arrays: list[Any]) -> Any:
        """The arguments, with their arrays back in their places."""
        given = iter(arrays)
        leaves = [next(given) if leaf is None else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


@jax.tree_util.register_pytree_node_class
class _Beside:
    """What a program returns besides arrays."""

    def __init__(self, static: Static):
        self.static = static

    def tree_flatten(self) -> tuple[tuple[()], Static]:
        return (), self.static

    @classmethod
    def tree_unflatten(cls, static: Static, _: Any) -> "_Beside":
        return cls(static)


def split(arguments: Any) -> tuple[Static, list[Any], tuple[Any, ...]]:
    """The static part of some arguments, with functions as weak references; their arrays; and those functions."""
    leaves, structure = jax.tree.flatten(arguments)
    is_array = [eqx.is_array(leaf) for leaf in leaves]
    arrays = [leaf for leaf, dynamic in zip(leaves, is_array, strict=True) if dynamic]
    owners = tuple(leaf for leaf in leaves if _is_mortal(leaf))
    static = [None if d else Weak(x) if _is_mortal(x) else x for x, d in zip(leaves, is_array, strict=True)]
    return Static(structure, static), arrays, owners


def _is_mortal(leaf: Any) -> bool:
    """Whether it is a function that may go, with what it holds; those of modules stay."""
    if isinstance(leaf, functools.partial | Mortal | _JITTED):
        return True
    return isinstance(leaf, types.FunctionType) and (leaf.__closure__ is not None or "<" in leaf.__qualname__)


class Programs:
    """One function, compiled for all that is kept, and anew for each set of functions that may go.

    Of those for what is kept, the `kept` latest stay: a process that sees new shapes for ever does not grow.
    """

    def __init__(self, function: Callable, static_argnums: tuple[int, ...] = (0,), kept: int = _KEPT):
        self.function, self.static_argnums, self.kept = function, static_argnums, kept
        self._shared: OrderedDict[Hashable, Any] = OrderedDict()
        self._own: dict[tuple[int, ...], Any] = {}

    def of(self, owners: tuple[Any, ...], static: Static, arrays: list[Any]) -> Any:
        """The program for these functions, which goes with the first of them that does; or for what is like these."""
        if not owners:
            return self._for_shapes((static, *((x.shape, x.dtype, x.weak_type) for x in map(jax.typeof, arrays))))
        name = tuple(map(id, owners))
        if name not in self._own:
            self._own[name] = self._compile()
            for owner in owners:
                weakref.finalize(owner, self._own.pop, name, None).atexit = False
        return self._own[name]

    def _for_shapes(self, name: Hashable) -> Any:
        if name not in self._shared:
            self._shared[name] = self._compile()
        self._shared.move_to_end(name)
        while len(self._shared) > self.kept:
            self._shared.popitem(last=False)
        return self._shared[name]

    @property
    def count(self) -> int:
        """How many were compiled, those that are gone left out."""
        return sum(program._cache_size() for program in (*self._shared.values(), *self._own.values()))

    def _compile(self) -> Any:
        function = self.function
        return jax.jit(lambda *arguments: function(*arguments), static_argnums=self.static_argnums)


def compiled(function: Callable) -> Callable:
    """Like `equinox.filter_jit`: arrays are traced, all else is static; but functions are not kept alive."""

    def run(static: Static, arrays: list[Any]) -> tuple[list[Any], _Beside]:
        leaves, structure = jax.tree.flatten(function(*static.combine(arrays)))
        beside = Static(structure, [None if eqx.is_array(leaf) else leaf for leaf in leaves])
        return [leaf for leaf in leaves if eqx.is_array(leaf)], _Beside(beside)

    programs = Programs(run)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        bare = [each.without_labels() if isinstance(each, Target) else each for each in arguments]
        static, arrays, owners = split(bare)
        program = programs.of(owners, static, arrays)
        before = program._cache_size()
        found, beside = program(static, arrays)
        if program._cache_size() > before:
            give_back_memory()  # what compiling took
        return beside.static.strong().combine(found)

    return call
