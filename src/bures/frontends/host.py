"""Small JAX graphs on the host: evaluated by NumPy, so that a prior mean costs no compilation, and followed by eye.

What NumPy has no rule for is unknown, never wrong: the caller has something else to fall back on.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.special

_MAX_ELEMENTS = 10**7  # a start is not worth more memory than this


def evaluate(jaxpr: Any) -> list[np.ndarray | None]:
    """The outputs of a closed jaxpr without inputs; None where one cannot be had."""
    with np.errstate(all="ignore"):
        return _run(jaxpr.jaxpr, [np.asarray(value) for value in jaxpr.consts], [])


def depends(jaxpr: Any) -> list[bool]:
    """Whether each output of a closed jaxpr depends on any of its inputs; in doubt, yes."""
    reached = set(jaxpr.jaxpr.invars)
    for equation in jaxpr.jaxpr.eqns:
        if any(_is_variable(atom) and atom in reached for atom in equation.invars):
            reached.update(equation.outvars)
    return [_is_variable(atom) and atom in reached for atom in jaxpr.jaxpr.outvars]


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in _needed(jaxpr):
        inputs = [_value(values, atom) for atom in equation.invars]
        outputs = _apply(equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [_value(values, atom) for atom in jaxpr.outvars]


def _needed(jaxpr: Any) -> Iterable[Any]:
    """The equations that the outputs depend on, in their order."""
    wanted = {atom for atom in jaxpr.outvars if _is_variable(atom)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            wanted.update(atom for atom in equation.invars if _is_variable(atom))
            kept.append(equation)
    return reversed(kept)


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # a literal has a value


def _value(values: dict[Any, Any], atom: Any) -> Any:
    return values[atom] if _is_variable(atom) else np.asarray(atom.val)


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    unknown = [None] * len(equation.outvars)
    if any(np.prod(getattr(out.aval, "shape", ())) > _MAX_ELEMENTS for out in equation.outvars):
        return unknown
    params = equation.params
    inner = next((params[name] for name in ("jaxpr", "call_jaxpr") if hasattr(params.get(name), "consts")), None)
    if inner is not None and equation.primitive.name in _CALLS:
        return _run(inner.jaxpr, [np.asarray(value) for value in inner.consts], inputs)
    rule = _RULES.get(equation.primitive.name)
    if rule is None or any(value is None for value in inputs):
        return unknown
    try:
        outputs = rule(*inputs, **params)
    except (NotImplementedError, TypeError, ValueError):  # another version of JAX, other parameters
        return unknown
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    agree = len(outputs) == len(unknown) and all(
        np.shape(value) == out.aval.shape for value, out in zip(outputs, equation.outvars, strict=True)
    )
    return outputs if agree else unknown


def _elementwise(function: Callable) -> Callable:
    return lambda *values, **_: function(*values)


def _reduction(function: Callable) -> Callable:
    return lambda value, *, axes, **_: function(value, axis=tuple(axes))


def _divide(x: Any, y: Any, **_: Any) -> Any:
    if not np.issubdtype(np.result_type(x, y), np.floating):
        raise NotImplementedError  # integers are divided towards zero
    return np.divide(x, y)


def _broadcast(value: Any, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    kept = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, np.shape(value), strict=True):
        kept[axis] = size
    return np.broadcast_to(np.reshape(value, kept), shape)


def _slice(value: Any, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> Any:
    steps = strides or (None,) * len(start_indices)
    return value[tuple(map(slice, start_indices, limit_indices, steps))]


def _dot(x: Any, y: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    contracted, batch = dimension_numbers
    if batch[0] or batch[1]:
        raise NotImplementedError
    return np.tensordot(x, y, axes=contracted)


def _cumsum(value: Any, *, axis: int, reverse: bool, **_: Any) -> Any:
    if reverse:
        return np.flip(np.cumsum(np.flip(value, axis), axis=axis), axis)
    return np.cumsum(value, axis=axis)


def _iota(*, dtype: Any, shape: Any, dimension: int, **_: Any) -> Any:
    along = [size if axis == dimension else 1 for axis, size in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(along), shape)


def _gather(value: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **_: Any) -> Any:
    """Rows of an array, `value[indices]`: the only case of a gather that models are full of."""
    numbers, rest = dimension_numbers, tuple(range(np.ndim(indices) - 1, np.ndim(indices) + np.ndim(value) - 2))
    rows = numbers.start_index_map == numbers.collapsed_slice_dims == (0,) and numbers.offset_dims == rest
    if not rows or numbers.operand_batching_dims or tuple(slice_sizes) != (1, *np.shape(value)[1:]):
        raise NotImplementedError
    return np.take(value, np.asarray(indices)[..., 0], axis=0, mode="clip")


_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"})

_NUMPY = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "ceil": np.ceil, "cos": np.cos,
    "eq": np.equal, "exp": np.exp, "expm1": np.expm1, "floor": np.floor, "ge": np.greater_equal, "gt": np.greater,
    "is_finite": np.isfinite, "le": np.less_equal, "log": np.log, "log1p": np.log1p, "lt": np.less, "max": np.maximum,
    "min": np.minimum, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "not": np.invert,
    "or": np.bitwise_or, "pow": np.power, "sign": np.sign, "sin": np.sin, "sqrt": np.sqrt, "square": np.square,
    "sub": np.subtract, "tanh": np.tanh,
    "erf": scipy.special.erf, "erf_inv": scipy.special.erfinv, "erfc": scipy.special.erfc,
    "lgamma": scipy.special.gammaln, "logistic": scipy.special.expit, "digamma": scipy.special.digamma,
}  # fmt: skip

_RULES: dict[str, Callable] = {
    **{name: _elementwise(function) for name, function in _NUMPY.items()},
    "broadcast_in_dim": _broadcast,
    "clamp": lambda low, value, high, **_: np.clip(value, low, high),
    "concatenate": lambda *values, dimension, **_: np.concatenate(values, axis=dimension),
    "convert_element_type": lambda value, *, new_dtype, **_: np.asarray(value).astype(new_dtype),
    "copy": lambda value, **_: value,
    "cumsum": _cumsum,
    "div": _divide,
    "dot_general": _dot,
    "gather": _gather,
    "integer_pow": lambda value, *, y, **_: np.power(np.asarray(value), float(y)),
    "iota": _iota,
    "reduce_and": _reduction(np.all),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_sum": _reduction(np.sum),
    "reshape": lambda value, *, new_sizes, **_: np.reshape(value, new_sizes),
    "rev": lambda value, *, dimensions, **_: np.flip(value, dimensions),
    "rsqrt": lambda value, **_: 1 / np.sqrt(value),
    "select_n": lambda which, *cases, **_: np.choose(np.asarray(which, int), cases),
    "slice": _slice,
    "stack": lambda *values, axis, **_: np.stack(values, axis=axis),
    "squeeze": lambda value, *, dimensions, **_: np.squeeze(value, tuple(dimensions)),
    "transpose": lambda value, *, permutation, **_: np.transpose(value, permutation),
}
