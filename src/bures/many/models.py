"""One model and many data sets: a log density for each, and what all of them share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bures.check import check_integers, check_positive_integer, check_unmasked, default_dtype, fail
from bures.engine import MANY
from bures.target import Target
from bures.target.blocks import largest_array

_CHUNK = 1000  # fits that are under way at a time, if their data are not larger than
_CHUNK_BYTES = 2**27
_FORMS = "Pass log_density(z, data) with dim=..., or a function of the data that returns a bures.Target."


class _OfData(eqx.Module):
    """The log density of one data set, which is traced: all of them share one compilation."""

    log_density: Callable = eqx.field(static=True)
    data: Any

    def __call__(self, z: Any) -> Any:
        return self.log_density(z, self.data)


class Form(NamedTuple):
    """What all data sets share: compared by the identity of the model, so that calls share compiled programs."""

    model: Callable
    dim: int | None

    def values(self, data: Any, z: jax.Array) -> jax.Array:
        """log p of one data set at many points; to be traced."""
        if self.dim is None:
            return self.model(data).value(z)
        return jax.vmap(lambda point: self.model(point, data))(z).astype(z.dtype)

    def values_and_scores(self, data: Any, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log p and ∇log p of one data set at many points; to be traced."""
        if self.dim is None:
            return self.model(data).value_and_score(z)
        values, scores = jax.vmap(jax.value_and_grad(lambda point: self.model(point, data)))(z)
        return values.astype(z.dtype), scores.astype(z.dtype)

    def start(self, data: Any) -> jax.Array:
        """Where to look for a mode of one data set, of a model that makes targets; to be traced."""
        return self.model(data).start()

    def constrain(self, data: Any, z: jax.Array) -> dict[str, jax.Array]:
        """Points of one data set in its own variables, of a model that makes targets; to be traced."""
        return jax.vmap(self.model(data).constrain)(z)


class Models:
    """A target for each data set of a batch.

    `model` is `log_density(z, data) -> scalar` if `dim` is given, else a function from data to a `Target`. The leaves
    of `data` are arrays whose first axis numbers the fits.
    """

    def __init__(self, model: Callable, data: Any, dim: int | None):
        if not callable(model):
            raise fail("model", "a function", model, _FORMS)
        self.form, self.data = Form(model, dim), data
        self.size = _count(data)
        self.first = self._target(self.data_of(0))
        self.dim, self.names = self.first.dim, self.first.names
        if self.dim > MANY:
            remedy = "fit_many is for small models: call bures.fit for each of the large ones."
            raise fail("dim", f"at most {MANY}", self.dim, remedy)
        self.width = self._width()

    def data_of(self, i: int) -> Any:
        """The data of one fit."""
        return jax.tree.map(lambda leaf: leaf[i], self.data)

    @property
    def chunk_size(self) -> int:
        """How many fits, with their data, are dealt with at a time."""
        size = sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self.data)) / self.size
        return max(1, min(_CHUNK, int(_CHUNK_BYTES / max(size, 1))))

    def target(self, i: int) -> Target:
        """The target of one fit."""
        return self.first if i == 0 else self._target(self.data_of(i))

    def starts(self, where: slice) -> np.ndarray:
        """The initial points of some fits, each one's own."""
        if self.form.dim is not None or self.first.initial_point is None:
            return np.tile(np.asarray(self.first.start()), (where.stop - where.start, 1))
        return np.asarray(jax.vmap(self.form.start)(self._rows(where)))

    def constrain(self, where: slice, z: np.ndarray) -> dict[str, jax.Array]:
        """Points (fits, n, dim) of some fits in the variables of each one's own target, which its data may shape."""
        if self.form.dim is not None:
            return jax.vmap(jax.vmap(self.first.constrain))(jnp.asarray(z))
        return jax.vmap(self.form.constrain)(self._rows(where), jnp.asarray(z))

    def _rows(self, where: slice) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(as_rows(leaf, where)), self.data)

    def _target(self, data: Any) -> Target:
        model, dim = self.form
        if dim is None:
            target = model(data)
            if not isinstance(target, Target):
                raise fail("model", "a function that returns a bures.Target where dim is left out", target, _FORMS)
            return target
        dim = check_positive_integer("dim", dim, "It is the length of the vector log_density takes.")
        return Target(_OfData(model, jax.tree.map(jnp.asarray, data)), dim)

    def _width(self) -> int:
        """Elements of the largest array that one evaluation makes."""
        data = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], _dtype(leaf)), self.data)
        point = jax.ShapeDtypeStruct((1, self.dim), default_dtype())
        try:
            jaxpr = jax.make_jaxpr(self.form.values)(data, point)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"model must be one program for all data sets, but it could not be traced: {reason} "
                "Write it with jax.numpy, without looking at values of the data; supports and shapes must not depend "
                "on them."
            ) from error
        return max(self.dim, largest_array(jaxpr))


def _dtype(leaf: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(leaf.dtype)


def _count(data: Any) -> int:
    """The number of fits: the length of the first axis of all leaves."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise fail("data", "a pytree of arrays whose first axis numbers the fits", data, "One leaf is enough.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or len(leaf.shape) == 0:
            remedy = "Stack the data of the fits: the first axis of each array numbers the fits."
            raise fail("data", "a pytree of arrays whose first axis numbers the fits", leaf, remedy)
        check_unmasked("data", leaf)
    lengths = {int(leaf.shape[0]) for leaf in leaves}
    if len(lengths) > 1 or 0 in lengths:
        remedy = "Data sets of different sizes are padded to one size, with a weight of 0 for rows that are not there."
        raise fail("data", "arrays with a first axis of one length, the number of fits", sorted(lengths), remedy)
    return lengths.pop()


def as_rows(leaf: Any, where: slice) -> Any:
    """Some data sets of a leaf, as an array that a program takes."""
    part = leaf[where]
    if isinstance(part, jax.Array):
        return part
    part = np.asarray(part)
    check_integers("data", part)
    return part
