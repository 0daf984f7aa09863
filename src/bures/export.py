"""From a fit to ArviZ: draws in the target's own variables, with the weights that say how far to trust them."""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Key

from bures.check import check_positive_integer
from bures.diagnostics import Pool, pareto_khat, smooth_log_weights

if TYPE_CHECKING:
    from xarray import DataTree

    from bures.fit import Fit


def to_arviz(fit: "Fit", key: Key[Array, ""], *, num_draws: int, resample: bool) -> "DataTree":
    """A DataTree with `posterior` (one chain) and `sample_stats` (log p, log q, raw and smoothed log weights)."""
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ: pip install 'bures[arviz]'.") from error
    check_positive_integer("num_draws", num_draws, "It is the number of draws to export.")
    key_pool, key_choice = jax.random.split(key)
    size = max(10 * num_draws, 10_000) if resample else num_draws
    pool = Pool.draw(key_pool, fit.approximation, fit.target, size)
    kept = pool.choose(key_choice, num_draws) if resample else slice(None)
    variables = jax.vmap(fit.target.constrain)(pool.z[kept])
    statistics = {
        "lp": pool.log_p,
        "log_q": pool.log_q,
        "log_weight": pool.log_weights,
        "log_weight_smoothed": smooth_log_weights(pool.log_weights),
    }
    groups = {
        "posterior": {name: np.asarray(value)[None] for name, value in variables.items()},
        "sample_stats": {name: np.asarray(value)[kept][None] for name, value in statistics.items()},
    }
    attributes = {
        "inference_library": "bures",
        "outcome": fit.outcome.name,
        "khat": pareto_khat(pool.log_weights),
        "resampled": int(resample),
    }
    return from_dict(groups, attrs=dict.fromkeys(groups, attributes))
