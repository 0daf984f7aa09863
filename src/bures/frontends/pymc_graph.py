"""PyTensor graphs as functions of a point: in JAX, or compiled by PyTensor itself and called on the host."""

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from bures.frontends.callback import call, points


class Layout(NamedTuple):
    """Where the value variables sit in a point, in the model's order."""

    shapes: Mapping[str, tuple[int, ...]]

    def split(self, z: Any) -> list[Any]:
        parts, start = [], 0
        for shape in self.shapes.values():
            size = math.prod(shape)
            parts.append(z[start : start + size].reshape(shape))
            start += size
        return parts

    def point(self, z: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.shapes, self.split(z), strict=True))


class Graph(NamedTuple):
    """Outputs as functions of the value variables, with the data in their place as constants."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


def read_data(model: Any) -> dict[Any, np.ndarray]:
    """The present values of the data of a model, and of all else that is shared."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.traversal import graph_inputs

    variables = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()]
    shared = [variable for variable in graph_inputs(variables) if isinstance(variable, SharedVariable)]
    return {v: value for v in shared if isinstance(value := v.get_value(borrow=True), np.ndarray)}


# Location–scale families on the real line: how many parameters come before location and scale. The coordinate of a
# LogNormal is its logarithm.
_FAMILIES = {"normal": 0, "t": 1, "laplace": 0, "cauchy": 0, "logistic": 0, "gumbel": 0, "lognormal": 0}


def location_and_scale(variable: Any, transform: Any) -> list[Any] | None:
    """Location and scale of a variable of such a family, as PyTensor has them; None for others."""
    name = getattr(variable.owner.op, "name", None)
    usual = type(transform).__name__ == "LogTransform" if name == "lognormal" else transform is None
    if name not in _FAMILIES or not usual or not hasattr(variable.owner.op, "dist_params"):
        return None
    first = _FAMILIES[name]
    return list(variable.owner.op.dist_params(variable.owner))[first : first + 2]


def freeze(inputs: Sequence[Any], outputs: Sequence[Any], data: Mapping[Any, np.ndarray]) -> Graph:
    """A graph that a later `pm.set_data` does not change."""
    import pytensor.tensor as pt
    from pytensor.graph.replace import clone_replace

    constants = {variable: pt.constant(value) for variable, value in data.items()}
    return Graph(list(inputs), clone_replace(list(outputs), replace=constants))


def minibatches(outputs: Sequence[Any]) -> list[Any]:
    """The nodes of a graph that draw minibatches."""
    from pytensor.graph.traversal import ancestors

    owners = [variable.owner for variable in ancestors(list(outputs)) if variable.owner is not None]
    return list(dict.fromkeys(node for node in owners if type(node.op).__name__ == "MinibatchOp"))


def rebuilt(outputs: Sequence[Any], instead: Mapping[Any, Any]) -> list[Any]:
    """The same graphs with other variables, which may be of other shapes, in the place of some."""
    from pytensor.graph.traversal import io_toposort

    new = dict(instead)
    # Node by node, so that each is made for the new shapes: `clone_replace` would insist on those of the batch.
    for node in io_toposort([], list(outputs)):
        if any(variable in new for variable in node.inputs):
            inputs = [new.get(variable, variable) for variable in node.inputs]
            made = node.clone_with_new_inputs(inputs, strict=False)
            new |= {old: out for old, out in zip(node.outputs, made.outputs, strict=True) if old not in instead}
    return [new.get(output, output) for output in outputs]


def jaxify(graph: Graph, layout: Layout) -> Callable[..., list[Array]]:
    """A graph as a JAX function of a point, and of further inputs if it has any.

    What `pymc.sampling.jax` does, without importing it: it would make a hundred devices of JAX's one.
    """
    _import_link()
    from pytensor.compile.mode import JAX
    from pytensor.graph.fg import FunctionGraph
    from pytensor.link.utils import fgraph_to_python

    with _quiet(), jax.ensure_compile_time_eval():  # constants are arrays, even while JAX traces something around
        fgraph = FunctionGraph(inputs=list(graph.inputs), outputs=list(graph.outputs), clone=True)
        JAX.optimizer.rewrite(fgraph)
        function = fgraph_to_python(fgraph, _rule, type_conversion_fn=_constant, fgraph_name="bures_pymc_graph")

    def of_point(z: Float[Array, " dim"], *others: Array) -> list[Array]:
        with _quiet():
            return list(function(*layout.split(z), *others))

    return of_point


def _import_link() -> None:
    """PyTensor's JAX link switches JAX to float64 when it is imported. That is the user's to decide: it is undone."""
    precise = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    try:
        import pytensor.link.jax.dispatch  # noqa: F401
    finally:
        jax.config.update("jax_enable_x64", precise)


def _rule(op: Any, **options: Any) -> Any:
    """The JAX form of an Op; checks of parameters, which JAX cannot raise, are left out."""
    from pytensor.link.jax.dispatch.basic import jax_funcify
    from pytensor.raise_op import CheckAndRaise

    return (lambda value, *_: value) if isinstance(op, CheckAndRaise) else jax_funcify(op, **options)


def _constant(data: Any, dtype: Any = None, **options: Any) -> Any:
    """A constant of a graph. PyTensor's own rule compiles a program for each."""
    from pytensor.link.jax.dispatch.basic import jax_typify

    if type(data) is np.ndarray and data.ndim > 0:
        return jax.device_put(data)
    return jax_typify(data, dtype=dtype, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of what is meant: float64 constants in float32, checks that JAX leaves out, Ops in plain Python."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        warnings.filterwarnings("ignore", message="Skipping")
        warnings.filterwarnings("ignore", message="Numba will use object mode")
        yield


def without_compiler() -> Any:
    """For functions that are called once: the loops within some would take a C compiler longer than Python."""
    from pytensor.configdefaults import config

    return config.change_flags(cxx="")


class HostGraph:
    """A graph, and its gradient if it is that of one number, compiled by PyTensor when it is first called."""

    def __init__(self, graph: Graph, layout: Layout, *, gradient: bool = False):
        from pymc.pytensorf import join_nonshared_inputs
        from pytensor.gradient import grad

        origin = layout.point(np.zeros(sum(math.prod(shape) for shape in layout.shapes.values())))
        outputs, self._point = join_nonshared_inputs(origin, graph.outputs, graph.inputs)
        self._outputs = [*outputs, grad(outputs[0], self._point)] if gradient else list(outputs)
        self._function: Any = None
        self._lock = threading.Lock()  # a compiled function has one memory

    def __call__(self, point: np.ndarray) -> list[np.ndarray]:
        from pymc.pytensorf import compile

        with self._lock:
            if self._function is None:
                with _quiet():
                    self._function = compile([self._point], self._outputs, on_unused_input="ignore")
            return [np.array(value) for value in self._function(point)]


def call_on_host(graph: HostGraph, start: np.ndarray) -> Callable[[Float[Array, " dim"]], list[Array]]:
    """A graph as a JAX function of a point, behind a callback; its shapes are those at `start`."""
    examples = graph(start)

    def evaluate(z: np.ndarray) -> list[np.ndarray]:
        rows = [graph(row) for row in points(z)]
        return [np.stack(parts).reshape((*z.shape[:-1], *np.shape(parts[0]))) for parts in zip(*rows, strict=True)]

    def of_point(z: Float[Array, " dim"]) -> list[Array]:
        kinds = [z.dtype if x.dtype.kind == "f" else jax.dtypes.canonicalize_dtype(x.dtype) for x in examples]
        shapes = [jax.ShapeDtypeStruct(x.shape, kind) for x, kind in zip(examples, kinds, strict=True)]
        return call(evaluate, shapes, z)

    return of_point


class PyTensorEvaluator:
    """A log density and its gradient by PyTensor, one point at a time. Hessians are differences of gradients."""

    def __init__(self, graph: Graph, layout: Layout, start: np.ndarray, explain: Callable[[np.ndarray], str]):
        self._function = HostGraph(graph, layout, gradient=True)
        self.start, self.explain = start, explain

    def value(self, z: np.ndarray) -> np.ndarray:
        return self.gradient(z)[0]

    def gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = points(z)
        values, scores = np.full(len(rows), -np.inf), np.zeros_like(rows)
        for i, row in enumerate(rows):
            try:
                value, score = self._function(row)
            except (ArithmeticError, np.linalg.LinAlgError):  # a matrix without a factor, say: no density there
                continue
            if np.isfinite(value):
                values[i], scores[i] = value, score
        return values.reshape(z.shape[:-1]), scores.reshape(z.shape)

    def hessian(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, score = self.gradient(z)
        steps = np.cbrt(np.finfo(float).eps) * np.maximum(np.abs(z), 1.0)
        shifts = steps[..., None] * np.eye(z.shape[-1])
        forward, backward = (self.gradient(z[..., None, :] + sign * shifts)[1] for sign in (1, -1))
        hessian = (forward - backward) / (2 * steps[..., None])
        return value, score, (hessian + np.swapaxes(hessian, -1, -2)) / 2
