"""What the front-ends share: imports of extras, a first point of positive density, and the way to draws."""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bures.check import check_positive_integer, default_dtype
from bures.target import Target

if TYPE_CHECKING:
    from bures.fitting import Fit

_TRIES = 100
_RADIUS = 2.0  # random points are uniform on (−2, 2), as in Stan


class Result(NamedTuple):
    """A fit, and a DataTree of draws from it that importance weights have corrected."""

    fit: "Fit"
    draws: Any


def import_extra(module: str, extra: str) -> Any:
    """Import an optional package, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"This needs {package}: pip install 'bures[{extra}]'. ({error})") from error


def no_variables(model: str, place: str) -> ValueError:
    return ValueError(f"{model} has no latent variables: there is nothing to infer. Check its {place}.")


def quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def on_device(point: np.ndarray) -> jax.Array:
    """A point in JAX's present precision. `jnp.asarray` would compile a program for it."""
    return jax.device_put(point.astype(default_dtype()))


def find_initial_point(
    value: Callable[[Any], Any], candidates: Sequence[np.ndarray], explain: Callable[[np.ndarray], str]
) -> np.ndarray:
    """The first candidate, or else random point, where the log density is finite.

    For densities that can be evaluated at once, on the host. If there is no such point, the error has what `explain`
    says about the first candidate: which variable is to blame.
    """
    generator = np.random.default_rng(0)
    dim = candidates[0].size
    random = (generator.uniform(-_RADIUS, _RADIUS, dim) for _ in range(_TRIES))
    for points in (candidates, random):
        for point in points:
            if np.all(np.isfinite(point)) and np.isfinite(value(point)):
                return point
    raise ValueError(
        f"The log density is not finite at the model's initial point, nor at {_TRIES} random points: "
        f"{explain(candidates[0])}. Check the data against the support of its distribution, and the priors."
    )


def fit_target(target: Target, seed: int, num_draws: int, **options: Any) -> Result:
    """`bures.fit` and `Fit.to_arviz`, with keys from one seed."""
    from bures.fitting import fit

    check_positive_integer("num_draws", num_draws, "It is the number of posterior draws.")
    key_fit, key_draws = jax.random.split(jax.random.key(seed))
    result = fit(target, key=key_fit, **options)
    return Result(result, result.to_arviz(key_draws, num_draws))


def sample_target(target: Target, seed: int, num_draws: int, **options: Any) -> Any:
    """`bures.sample`, with a key from a seed."""
    from bures.ladder import sample

    return sample(target, key=jax.random.key(seed), num_draws=num_draws, **options)
