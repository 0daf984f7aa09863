"""NumPyro plates that take a part of their rows: the posterior of all rows, as a prior and a sum over rows.

A row is its number in the plate. The model is run with that row alone, and the log densities of what it observes there
are the row's; everything else is the prior. That this is so, that a row's density does not depend on which other rows
come with it, is checked on a few of them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bures.check import as_array, default_dtype
from bures.frontends.common import quoted
from bures.frontends.numpyro_sites import typical_value
from bures.rows.making import density_from, is_large

_CHECKED = 5  # rows that are run together, and one by one
_REMEDY = "Leave subsample_size out, and all rows are taken together."


class Plate:
    """The plate that takes a part of its rows, and the sites that are observed in it."""

    def __init__(self, name: str, size: int, observed: tuple[str, ...]):
        self.name, self.size, self.observed = name, size, observed


def find_plate(source: Any) -> Plate:
    """The one plate that takes a part of its rows; what cannot be summed row by row is refused by name."""
    if len(source.subsampled) > 1:
        raise ValueError(
            f"The plates {quoted(list(source.subsampled))} all take a part of their rows (subsample_size): rows are "
            "taken of one plate only. Leave subsample_size out of the others."
        )
    ((name, (size, taken)),) = source.subsampled.items()
    if source.discrete:
        raise ValueError(
            f"The discrete {quoted(source.discrete)} is summed out, and the plate {name!r} takes {taken} of its {size} "
            f"rows: both together are not supported. {_REMEDY}"
        )
    within = _sites_within(source, name)
    if latent := [site for site, (is_observed, _) in within.items() if not is_observed]:
        raise ValueError(
            f"The latent variable {quoted(latent)} is inside the plate {name!r}, which takes {taken} of its {size} "
            f"rows: it has a value for each row, so that rows cannot be taken a few at a time. {_REMEDY}"
        )
    if not within:
        raise ValueError(
            f"Nothing is observed in the plate {name!r}, which takes {taken} of its {size} rows. {_REMEDY}"
        )
    if few := [site for site, (_, rows) in within.items() if rows != size]:
        raise ValueError(
            f"The data of {quoted(few)} do not have the {size} rows of the plate {name!r}: the posterior would be that "
            "of one minibatch. Give the model the full data, and take its rows by the plate: `with plate(...) as rows`."
        )
    return Plate(name, size, tuple(within))


def _sites_within(source: Any, plate: str) -> dict[str, tuple[bool, int]]:
    """The sample sites in a plate: whether each is observed, and the length of its values along the plate."""
    found: dict[str, tuple[bool, int]] = {}

    def look() -> int:
        for name, site in source.trace(lambda site: typical_value(site, set())).items():
            frames = [frame for frame in site.get("cond_indep_stack") or () if frame.name == plate]
            if site["type"] == "sample" and frames:
                event, shape = site["fn"].event_dim, jnp.shape(site["value"])
                axis = len(shape) - event + frames[0].dim
                found[name] = bool(site["is_observed"]), shape[axis] if axis >= 0 else 1
        return 0

    jax.eval_shape(look)
    return found


def _check_rows(source: Any, plate: Plate) -> None:
    """That some rows together have the sum of the densities that each has alone, and change no other site."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(plate.size, min(_CHECKED, plate.size), replace=False))
    z = as_array(rng.uniform(-1, 1, source.dim).astype(default_dtype()))

    def sites(rows: np.ndarray) -> dict[str, Array]:
        with jax.ensure_compile_time_eval():  # the data may be NumPy's
            chosen = jax.device_put(rows)
        return {name: jnp.sum(value) for name, value in source.scaled_log_densities(z, {plate.name: chosen}).items()}

    together, alone = jax.jit(lambda: (sites(rows), [sites(rows[i : i + 1]) for i in range(len(rows))]))()
    for name, value in together.items():
        each = np.array([one[name] for one in alone])
        wanted = each.mean() if name in plate.observed else each  # one row alone is scaled up to all
        if not np.allclose(wanted, value, rtol=1e-4, equal_nan=True):
            raise ValueError(
                f"The log density of {name!r} depends on which rows of the plate {plate.name!r} come together, so that "
                f"it is not a sum over rows: it cannot be subsampled. {_REMEDY}"
            )


def row_density(source: Any, plate: Plate) -> Any:
    """The factorised density, if there are so many rows that fits should take batches of them; else None.

    Rows that depend on each other are refused in any case.
    """
    _check_rows(source, plate)
    if not is_large(plate.size, source.dim):
        return None
    leaves, structure = jax.tree.flatten((source.args, source.kwargs))
    held = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
    arrays = [as_array(leaf) for leaf, is_array in zip(leaves, held, strict=True) if is_array]
    others = [None if is_array else leaf for leaf, is_array in zip(leaves, held, strict=True)]
    arguments = _Arguments(structure, others, held)
    prior, likelihood = (part(source, plate, arguments, arrays) for part in (_Prior, _Likelihood))
    return density_from(prior, likelihood, np.arange(plate.size, dtype=np.int32), source.dim, True)


class _Arguments:
    """The model's arguments without their arrays, which are traced."""

    def __init__(self, structure: Any, others: list[Any], held: list[bool]):
        self.structure, self.others, self.held = structure, others, held

    def filled(self, arrays: list[Array]) -> tuple[tuple, dict]:
        given = iter(arrays)
        leaves = [next(given) if held else other for other, held in zip(self.others, self.held, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


class _Prior(eqx.Module):
    """Everything but what is observed in the plate, from a run with its first row."""

    source: Any
    plate: Plate = eqx.field(static=True)
    arguments: _Arguments = eqx.field(static=True)
    arrays: list[Array]

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        rows = {self.plate.name: jnp.zeros(1, jnp.int32)}
        return self.source.log_density_without(z, self.plate.observed, rows, self.arguments.filled(self.arrays))


class _Likelihood(eqx.Module):
    """What is observed in one row of the plate. The model's arrays are traced, not constants."""

    source: Any
    plate: Plate = eqx.field(static=True)
    arguments: _Arguments = eqx.field(static=True)
    arrays: list[Array]

    def __call__(self, z: Float[Array, " dim"], row: Int[Array, ""]) -> Float[Array, ""]:
        rows = {self.plate.name: row[None]}
        sites = self.source.scaled_log_densities(z, rows, self.arguments.filled(self.arrays))
        total = sum((jnp.sum(sites[name]) for name in self.plate.observed), jnp.zeros((), z.dtype))
        return total / self.plate.size  # one row alone is scaled up to all
