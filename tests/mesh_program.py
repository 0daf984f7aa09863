"""Run by test_mesh.py in a process with two devices: prints what fits of one device and of two give, as JSON."""

import json
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bures

jax.config.update("jax_enable_x64", True)


def data(rows):
    rng = np.random.default_rng(0)
    X = np.concatenate([np.ones((rows, 1)), rng.standard_normal((rows, 2))], axis=1)
    y = (rng.random(rows) < 1 / (1 + np.exp(-X @ np.array([0.3, -1.0, 0.5])))).astype(float)
    return {"X": X, "y": y}


def log_prior(z):
    return -z @ z / 20


def log_likelihood(z, row):
    linear = row["X"] @ z
    return row["y"] * linear - jnp.logaddexp(0.0, linear)


def from_data(rows):
    return bures.Target.from_data(log_prior, log_likelihood, rows, 3)


def result(fit):
    """What is compared."""
    q = fit.approximation
    return {
        "outcome": fit.outcome.name,
        "steps": fit.num_steps,
        "mean": np.asarray(q.mean).tolist(),
        "chol": np.asarray(q.chol).tolist(),
        "elbo": fit.diagnostics.elbo,
        "khat": fit.diagnostics.khat,
    }


@eqx.filter_jit
def compiled(target, z):
    return *target.value_and_score(z), target.weighted_hessian(jnp.arange(4.0), z)


def derivatives(target, also_not_compiled=False):
    """Values, scores and Hessians."""
    z = jnp.asarray(np.random.default_rng(1).standard_normal((4, 3)))
    parts = compiled(target, z)
    if also_not_compiled:
        parts += (target.value(z), *jax.value_and_grad(target.log_density)(z[0]))
    return [np.asarray(part).ravel().tolist() for part in parts]


def on(mesh, data, spec):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), data)


def main():
    key, even, odd = jax.random.key(0), data(1000), data(1001)
    explicit = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Explicit,))
    automatic = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    grid = jax.make_mesh((1, 2), ("columns", "shards"), axis_types=(AxisType.Explicit,) * 2)
    spread = PartitionSpec("rows")
    placed = {
        "one": even,
        "explicit": on(explicit, even, spread),
        "automatic": on(automatic, even, spread),
        "grid": on(grid, even, PartitionSpec("shards")),
        "labels on one device": {"X": on(explicit, even["X"], spread), "y": even["y"]},
        "replicated": on(explicit, even, PartitionSpec()),
        "columns": {"X": on(automatic, np.tile(even["X"], (1, 2)), PartitionSpec(None, "rows"))[:, :3], "y": even["y"]},
        "sharded by us": bures.shard_rows(even),
        "mesh of one": on(jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1]), even, spread),
    }
    found = {"devices": jax.device_count(), "densities": {}, "fits": {}, "odd": {}, "models": {}}
    for name, rows in placed.items():
        found["densities"][name] = derivatives(from_data(rows), name in ("one", "explicit"))
    for name in ("one", "explicit", "automatic"):
        found["fits"][name] = result(bures.fit(from_data(placed[name]), key=key))
    in_one_loop = dict(init=bures.Gaussian.standard(3), num_steps=5)
    for name in ("one", "explicit"):
        found["fits"][f"{name}, compiled"] = result(bures.fit(from_data(placed[name]), key=key, **in_one_loop))
    with jax.set_mesh(explicit):
        found["fits"]["explicit, mesh set"] = result(bures.fit(from_data(placed["explicit"]), key=key))
    found["odd"]["one"] = result(bures.fit(from_data(odd), key=key))
    for name, mesh in (("explicit", explicit), ("automatic", None)):
        found["odd"][name] = result(bures.fit(from_data(bures.shard_rows(odd, mesh)), key=key))
    for name in ("one", "explicit", "automatic", "grid", "replicated"):
        rows = placed[name]
        target = bures.models.logistic_regression(rows["X"], rows["y"])
        found["models"][name] = {"derivatives": derivatives(target)}
        if name in ("one", "explicit"):
            found["models"][name] |= result(bures.fit(target, key=key))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
