"""What bures reads off the sites of a NumPyro model while it is traced, and what it refuses there."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bures.check import is_traced

# What a model that does not fit its arguments or its data raises, in its own code or in NumPyro's.
ERRORS = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)

BY_HAND = "sum it out of the model yourself (numpyro.distributions.MixtureSameFamily does for mixtures)"


class Site(NamedTuple):
    """What is known of a site once the model was traced."""

    type: str
    shape: tuple[int, ...]
    unconstrained_shape: tuple[int, ...] | None  # of continuous latent sites
    dims: list[str]
    is_observed: bool
    is_discrete: bool
    num_plates: int
    value: Any  # of data and parameters, unless the model computes them; a shape with dtype of discrete sites

    @property
    def is_latent(self) -> bool:
        return self.type == "sample" and not self.is_observed

    @property
    def is_free(self) -> bool:
        """Whether it is among the coordinates of the target."""
        return self.unconstrained_shape is not None


@contextmanager
def running() -> Iterator[None]:
    """How models are run: with keys for the sites that are given no value, and without NumPyro's checks.

    The checks would compile a program each; values that are not finite are named by `explain`. The seed stands outside
    of all other handlers, so that no keys are made for sites that have a value.
    """
    import numpyro

    with numpyro.validation_enabled(False), numpyro.handlers.seed(rng_seed=jax.random.key(0)):
        yield


class RefusedError(Exception):
    """A model that must not become a target, found while it is run."""


def watch(model: Callable) -> Any:
    """A handler that remembers the name of the site that was reached last."""
    from numpyro.primitives import Messenger

    class Watch(Messenger):
        name: str | None = None

        def process_message(self, msg: dict) -> None:
            self.name = msg.get("name") or self.name

    return Watch(model)


def rows_of_plates(chosen: Mapping[str, Array], subsampled: dict[str, tuple[int, int]]) -> Callable[[dict], Any]:
    """The indices of each plate: those chosen by its name, else all, as an array that JAX does not trace.

    Plates that take a part of their rows are noted, with their size and that of the part.
    """

    def rows(site: dict[str, Any]) -> Array | None:
        if site["type"] != "plate":
            return None
        size, subsample_size = site["args"]
        if subsample_size not in (None, size):
            subsampled[site["name"]] = size, subsample_size
        if site["name"] in chosen:
            indices = chosen[site["name"]]
            site["args"] = size, indices.shape[0]
            return indices
        site["args"] = size, size
        with jax.ensure_compile_time_eval():  # the data may be NumPy's
            return jax.device_put(np.arange(size))

    return rows


def _refuse_subsampling() -> None:
    """The same for plates that no handler sees, such as those within a scan."""
    import numpyro
    from numpyro.primitives import _PYRO_STACK

    for plate in _PYRO_STACK:
        if isinstance(plate, numpyro.plate) and plate.subsample_size != plate.size:
            raise _subsampled(plate.name, plate.subsample_size, plate.size)


def _subsampled(name: str, subsample_size: int, size: int) -> Exception:
    """A plate that takes a part of its rows would be one fixed minibatch: another posterior than the model's."""
    return RefusedError(
        f"The plate {name!r} takes {subsample_size} of its {size} rows (subsample_size) within a scan, where the "
        "posterior would be that of one minibatch. Leave subsample_size out, and give the model the full data."
    )


def typical_value(site: dict[str, Any], at_origin: set[str]) -> Any:
    """A value for a continuous latent site: the prior's centre or, if it has none, the unconstrained scale's origin.

    The sites of the second kind are added to `at_origin`.
    """
    from numpyro.distributions import biject_to

    _refuse_subsampling()
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete or site["value"] is not None:
        return None
    distribution, sample_shape = site["fn"], tuple(site["kwargs"].get("sample_shape") or ())
    shape = sample_shape + tuple(distribution.shape())
    try:
        transform = biject_to(distribution.support)
    except NotImplementedError as error:
        raise RefusedError(
            f"Site {site['name']!r} has the support {distribution.support}, for which NumPyro has no unconstrained "
            "scale. Write it in other variables (numpyro.handlers.reparam has recipes)."
        ) from error
    if "_scan_current_index" not in site["infer"]:
        try:
            centre = 1.0 * _centre(distribution)
            if jnp.shape(centre) == tuple(distribution.shape()):
                return jnp.broadcast_to(centre, shape) if sample_shape else centre
        except (AttributeError, *ERRORS):
            pass
    at_origin.add(site["name"])
    if len(distribution.event_shape) == 2:  # factors of matrices, slow to trace: at the origin they are the identity
        return jnp.broadcast_to(jnp.eye(*distribution.event_shape), shape)
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def _centre(distribution: Any) -> Any:
    """The mean or, of a transformed distribution, where the mean of its base goes: LogNormal's own mean is far out."""
    import numpyro.distributions as dist

    match distribution:
        case dist.ExpandedDistribution():
            return jnp.broadcast_to(_centre(distribution.base_dist), distribution.shape())
        case dist.Independent() | dist.MaskedDistribution():
            return _centre(distribution.base_dist)
        case dist.TransformedDistribution():
            value = _centre(distribution.base_dist)
            for transform in distribution.transforms:
                value = transform(value)
            return value
    return distribution.mean


def location_and_scale(site: dict[str, Any]) -> tuple[Any, Any] | None:
    """Location and scale of a real latent site whose distribution is of a location–scale family; else None.

    That of a LogNormal is of its logarithm, which is its coordinate.
    """
    import numpyro.distributions as dist

    if site["type"] != "sample" or site["is_observed"] or "_scan_current_index" in site["infer"]:
        return None
    distribution: Any = site["fn"]
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        distribution = distribution.base_dist
    if type(distribution) is dist.LogNormal:
        distribution = distribution.base_dist
    families = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel)
    if type(distribution) not in families:
        return None
    return distribution.loc, distribution.scale


def describe(name: str, site: dict[str, Any]) -> Site:
    """What is kept of a site; it must outlive the trace, so there is no tracer in it."""
    import numpyro.distributions as dist

    kind, value = site["type"], site["value"]
    if kind == "plate":
        return Site(kind, (), None, [], False, False, 0, None)
    is_observed, unconstrained_shape, is_discrete = bool(site.get("is_observed")), None, False
    if kind == "sample" and not is_observed:
        distribution: Any = site["fn"]
        is_discrete = bool(distribution.support.is_discrete)
        if isinstance(distribution, dist.Delta):
            raise ValueError(f"Site {name!r} has a Delta distribution. Use numpyro.deterministic, or give it obs=.")
        if not is_discrete:
            unconstrained_shape = tuple(dist.biject_to(distribution.support).inverse_shape(jnp.shape(value)))
    shape = tuple(jnp.shape(value)) if kind != "mutable" else ()
    if is_discrete:
        value = jax.ShapeDtypeStruct(shape, value.dtype)
    elif not (is_observed or kind in ("param", "mutable")) or is_traced(value):
        value = None
    num_plates = max((-frame.dim for frame in site.get("cond_indep_stack") or ()), default=0)
    return Site(kind, shape, unconstrained_shape, _dims(site), is_observed, is_discrete, num_plates, value)


def find_support(name: str, distribution: Any) -> Array:
    """The values of a discrete site."""
    try:
        return distribution.enumerate_support(expand=False)
    except ERRORS as error:
        remedy = f"{type(distribution).__name__} has no enumerate support, so NumPyro cannot sum it out: {BY_HAND}"
        raise refuse_discrete(name, remedy) from error


def refuse_discrete(name: str, remedy: str) -> ValueError:
    return ValueError(
        f"The latent variable {name!r} is discrete, and a Gaussian cannot approximate it. {remedy}, or observe it."
    )


def check_plates(trace: dict[str, Any]) -> None:
    """Axes without a plate would be taken for one more value of a discrete site."""
    from numpyro.util import _validate_model

    with warnings.catch_warnings(action="ignore"):
        _validate_model(trace, plate_warning="error")


def _dims(site: dict[str, Any]) -> list[str]:
    """Names of the axes of a site: its plates, then what `infer={"event_dims": ...}` says."""
    if site["type"] not in ("sample", "deterministic"):
        return []
    plates = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
    names = [frame.name for frame in plates]
    names += list((site.get("infer") or {}).get("event_dims", ()))
    return names if len(names) <= jnp.ndim(site["value"]) else []


def log_densities(sites: dict[str, Any]) -> dict[str, Array]:
    """The log density of every entry of every sample site."""
    densities = {}
    for name, site in sites.items():
        if site["type"] == "sample":
            try:
                with warnings.catch_warnings(action="ignore", category=UserWarning):  # bures says so by name
                    densities[name] = site["fn"].log_prob(site["value"])
            except ERRORS as error:
                shape = jnp.shape(site["value"])
                raise ValueError(
                    f"Site {name!r} has values of shape {list(shape)}, which do not fit its distribution of "
                    f"shape {list(site['fn'].shape())}: {error} Check the shape of the data."
                ) from error
    return densities


def finite_mean(mean: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """A prior mean, with zero where it is unknown, infinite or on the boundary of its support."""
    if mean is None or np.shape(mean) != shape:
        return np.zeros(math.prod(shape))
    flat = np.ravel(mean).astype(float)
    return np.where(np.isfinite(flat), flat, 0.0)


def cannot_run(name: str | None, error: Exception) -> ValueError:
    where = f" at site {name!r}" if name else ""
    reason = str(error).partition("\n")[0].rstrip(".")
    if isinstance(error, jax.errors.JAXTypeError):
        remedy = (
            "JAX traces the model: use NumPy for what the data alone decide, such as sizes, and jax.numpy elsewhere."
        )
    else:
        remedy = "Check its arguments and the shapes of the data."
    return ValueError(f"The NumPyro model cannot be run{where}: {reason}. {remedy}")
