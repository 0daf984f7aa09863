"""Run by test_distributed.py: one of several processes, or the only one, that make the same fits.

python processes_program.py address count number: process 0 prints the fits as JSON, in its last line.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mesh_program import data, log_likelihood, log_prior, result

import bures
from bures.mesh import ShardedRows

jax.config.update("jax_enable_x64", True)


def main(address, count, number):
    count, number = int(count), int(number)
    if count > 1:
        bures.distributed.start(address, count, number)
    rows, own = data(1001), bures.distributed.share(1001)
    placed = {
        "shared": rows,
        "own": bures.distributed.Own({name: x[own] for name, x in rows.items()}),
        "on a mesh": on_global_mesh(rows),
        "subsampled": rows,
    }
    found = {}
    for name, where in placed.items():
        subsample = True if name == "subsampled" else None
        target = bures.Target.from_data(log_prior, log_likelihood, where, 3, subsample=subsample)
        found[name] = result(bures.fit(target, key=jax.random.key(0)))
    weights, z = jnp.arange(1.0, 3.0), jnp.array([[0.1, -0.2, 0.3], [0.0, 0.5, 0.2]])
    target = bures.Target.from_data(log_prior, log_likelihood, rows, 3)
    found["hessian"] = np.asarray(target.weighted_hessian(weights, z)).tolist()
    if count > 1:
        with pytest.raises(ValueError, match="max_seconds must be left out where several processes make one fit"):
            bures.fit(target, key=jax.random.key(0), max_seconds=10)
        with pytest.raises(RuntimeError, match="The processes have come apart"):
            target.log_density.stream.value(np.full((1, 3), float(number)))
    found["rows of this process"] = [own.start, own.stop]
    if bures.distributed.is_first():
        sys.stdout.write(f"\n{json.dumps(found)}\n")  # after what gloo says


def on_global_mesh(rows):
    """Rows on all devices of all processes, by the user's own hand; one more row of weight zero."""
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    padded = {name: np.concatenate([x, x[-1:]]) for name, x in rows.items()}
    weights = (np.arange(1002) < 1001).astype(float)
    put = lambda x: jax.make_array_from_callback(x.shape, sharding, lambda index: jnp.asarray(x[index]))  # noqa: E731
    return ShardedRows({name: put(x) for name, x in padded.items()}, put(weights))


if __name__ == "__main__":
    main(*sys.argv[1:])
