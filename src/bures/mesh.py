"""Rows spread over the devices of a mesh: where they are, how they get there, and sums over all of them.

Every device sums over its own rows and one sum over the mesh adds these up: for n points n (1 + d) numbers. Points and
results are the same on every device.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from bures.check import as_array, check_integers, check_unmasked, default_dtype, fail, is_traced


class RowMesh(NamedTuple):
    """A mesh of devices, and those of its axes over which rows are spread."""

    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def sharding(self) -> NamedSharding:
        """Of an array whose first axis is the rows."""
        return NamedSharding(self.mesh, PartitionSpec(self.axes))

    @property
    def shares(self) -> int:
        """How many shares the rows have."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)


class ShardedRows(NamedTuple):
    """Rows on a mesh, for `Target.from_data`: those that make their number even have the weight zero."""

    data: PyTree
    weights: Float[Array, " rows"] | None


def shard_rows(data: PyTree, mesh: Mesh | None = None, axis: str | None = None) -> ShardedRows:
    """Spread rows over devices, whatever their number: for `Target.from_data`.

    **Arguments:**

    - `data`: a pytree of arrays whose first axis is the rows.
    - `mesh`: the devices; by default all of them, in a row.
    - `axis`: the axis of the mesh to spread the rows over; by default its first.

    Where the devices do not divide the number of rows the last row is repeated, with a weight of zero.

    >>> rows = shard_rows({"x": np.arange(5.0)})
    >>> rows.data["x"].shape[0] % jax.device_count()
    0
    """
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()), ("rows",), axis_types=(AxisType.Auto,))
    if not isinstance(mesh, Mesh):
        raise fail("mesh", "a jax.sharding.Mesh", mesh, "Leave it out for all devices.")
    chosen = str(mesh.axis_names[0]) if axis is None else axis
    if not isinstance(chosen, str) or chosen not in mesh.axis_names:
        raise fail("axis", f"one of {mesh.axis_names}, the axes of the mesh", axis, "Leave it out for the first.")
    rows = RowMesh(mesh, (chosen,))
    leaves = jax.tree.leaves(data)
    if not leaves or len({np.shape(leaf)[:1] for leaf in leaves}) > 1 or np.ndim(leaves[0]) == 0:
        shapes = [list(np.shape(leaf)) for leaf in leaves]
        raise fail("data", "arrays of one length, the number of rows", shapes, "Their first axis is the rows.")
    for leaf in leaves:
        check_unmasked("data", leaf)
        check_integers("data", np.asarray(leaf))
    return _spread(jax.tree.map(np.asarray, data), rows)


def _spread(data: PyTree, rows: RowMesh) -> ShardedRows:
    n = jax.tree.leaves(data)[0].shape[0]
    missing = -n % rows.shares

    def put(x: np.ndarray) -> jax.Array:
        padded = np.concatenate([x, np.repeat(x[-1:], missing, axis=0)]) if missing else x
        return jax.device_put(padded, rows.sharding)

    weights = None
    if missing:
        weights = jax.device_put((np.arange(n + missing) < n).astype(default_dtype()), rows.sharding)
    return ShardedRows(jax.tree.map(put, data), weights)


def is_spread(x: Any) -> bool:
    """Whether an array is on several devices."""
    return isinstance(x, jax.Array) and not is_traced(x) and len(x.sharding.device_set) > 1


def arranged(data: PyTree, weights: Any = None) -> tuple[PyTree, Any, RowMesh | None]:
    """The same rows with all arrays spread alike, and the mesh; without one if they are not spread by rows.

    Arrays that a user has put on a mesh stay where they are. Other axes than the rows are brought together; an array
    that is whole on every device counts as being on one.
    """
    data, weights = jax.tree.map(_without_mesh_of_one, (data, weights))
    spread = [x for x in jax.tree.leaves((data, weights)) if is_spread(x)]
    if not spread:
        return data, weights, None
    rows = next((found for x in spread if (found := _rows_of(x)) is not None), None)
    if rows is not None:
        data, weights = jax.tree.map(lambda x: _placed(x, rows), (data, weights))
        return data, weights, rows
    if all(x.is_fully_replicated for x in spread):
        data, weights = jax.tree.map(lambda x: as_array(np.asarray(x)) if is_spread(x) else x, (data, weights))
        return data, weights, None
    devices = sorted(spread[0].sharding.device_set, key=lambda device: device.id)
    rows = RowMesh(Mesh(np.array(devices), ("rows",), axis_types=(AxisType.Auto,)), ("rows",))
    found = _spread(jax.tree.map(np.asarray, data), rows)
    return found.data, found.weights, rows


def _without_mesh_of_one(x: Any) -> Any:
    """An array as it is, but for one on a mesh of a single device, whose axes would only be in the way."""
    if not isinstance(x, jax.Array) or is_traced(x) or not isinstance(x.sharding, NamedSharding) or is_spread(x):
        return x
    return x.addressable_data(0)


def _rows_of(x: jax.Array) -> RowMesh | None:
    """The axes of a mesh that the first axis of an array is spread over."""
    if not isinstance(x.sharding, NamedSharding) or not x.ndim:
        return None
    spec = x.sharding.spec
    first = spec[0] if len(spec) else None
    if first is None:
        return None
    axes = (first,) if isinstance(first, str) else tuple(first)
    mesh: Any = x.sharding.mesh
    if jax.sharding.get_abstract_mesh().empty:  # explicit axes are for programs that set a mesh
        mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    found = RowMesh(mesh, axes)
    return found if found.shares > 1 else None


def _placed(x: Any, rows: RowMesh) -> jax.Array:
    """An array with its rows spread as they should be; nothing moves if they are."""
    return x if isinstance(x, jax.Array) and x.sharding == rows.sharding else jax.device_put(x, rows.sharding)


def sum_over_mesh(function: Callable[..., Any], rows: RowMesh, data: PyTree, *others: PyTree) -> Any:
    """`function(data, *others)` of each device's own rows, summed over all of them; the others are on every device."""
    dynamic, static = eqx.partition(others, eqx.is_array)

    def share(data: PyTree, dynamic: PyTree) -> Any:
        return jax.lax.psum(function(data, *eqx.combine(dynamic, static)), rows.axes)

    here, everywhere = PartitionSpec(rows.axes), PartitionSpec()
    # Sums begin at zeros that are not marked as differing between devices: what they become is.
    over = jax.shard_map(share, mesh=rows.mesh, in_specs=(here, everywhere), out_specs=everywhere, check_vma=False)
    return over(data, dynamic)
