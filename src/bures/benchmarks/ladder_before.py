"""nESS of `bures.fit` of another version on the models of `bench ladder centring`, as the limits there need it.

git archive af2d64c src | tar -x -C DIR; PYTHONPATH=DIR/src python -P .../ladder_before.py MODEL [SEEDS]

prints it by seed. Only what every version has is used.
"""

import json
import os
import sys
from pathlib import Path

import jax
import numpy as np

import bures

bures.__path__.append(str(Path(__file__).parents[1]))  # the models are this version's if the other has none

from bures.benchmarks.ladder_models import target  # noqa: E402


def ness_of(name: str, seed: int, num_samples: int = 20_000) -> float:
    made = target(name, Path(os.environ["BURES_POSTERIORDB"]))
    q = bures.fit(made, key=jax.random.key(seed), progress=False).approximation
    z = q.sample(jax.random.fold_in(jax.random.key(seed), 2**31), num_samples)
    log_weights = np.asarray(jax.lax.map(made.log_density, z, batch_size=500)) - np.asarray(q.log_prob(z))
    weights = np.exp(log_weights - np.max(log_weights))
    return float(weights.sum() ** 2 / (num_samples * np.sum(weights**2)))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(json.dumps({sys.argv[1]: [ness_of(sys.argv[1], seed) for seed in range(count)]}), flush=True)  # noqa: T201
