"""Options to the parts of a fit: objective, estimator, geometry, family and start."""

import enum
import inspect
from collections.abc import Callable
from typing import Any


class ObjectiveName(enum.StrEnum):
    elbo = "elbo"
    iwelbo = "iwelbo"
    vriwae = "vriwae"


class EstimatorName(enum.StrEnum):
    price = "price"
    stein = "stein"
    reparameterised = "reparameterised"


class GeometryName(enum.StrEnum):
    whitened = "whitened"
    bures_wasserstein = "bures-wasserstein"
    forward_backward = "forward-backward"
    euclidean = "euclidean"


class FamilyName(enum.StrEnum):
    full = "full"
    mean_field = "mean-field"
    low_rank = "low-rank"
    mixture = "mixture"


class Indices(enum.StrEnum):
    all = "all"
    last = "last"


class Draws(enum.StrEnum):
    iid = "iid"
    antithetic = "antithetic"
    sobol = "sobol"


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, as plain values."""
    return {
        name: value.value if isinstance(value, enum.Enum) else value
        for name, value in options.items()
        if value is not None
    }


def make_key(seed: int) -> Any:
    import jax

    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"--seed must be a whole number of at most 64 bits, but got {seed}. For example 0.")
    return jax.random.key(seed)


def make_objective(name: ObjectiveName | None, k: int | None, alpha: float | None) -> Any:
    import bures

    options = given(K=k, alpha=alpha)
    if name is None and options:
        name = ObjectiveName.iwelbo if alpha is None else ObjectiveName.vriwae
    kinds = {ObjectiveName.elbo: bures.ELBO, ObjectiveName.iwelbo: bures.IWELBO, ObjectiveName.vriwae: bures.VRIWAE}
    return None if name is None else _construct(f"--objective {name}", kinds[name], options)


def make_estimator(
    target: Any, objective: Any, name: EstimatorName | None, options: dict[str, Any], family: Any = None
) -> Any:
    import bures

    kinds = {
        EstimatorName.price: bures.Price,
        EstimatorName.stein: bures.Stein,
        EstimatorName.reparameterised: bures.Reparameterised,
    }
    if name is not None:
        return _construct(f"--estimator {name}", kinds[name], options)
    return _change_default(target, objective, options, family) if options else None


def _change_default(target: Any, objective: Any, options: dict[str, Any], family: Any) -> Any:
    """The estimator that bures would choose, with these options changed."""
    from bures.fitting import default_estimator, default_objective
    from bures.fitting.defaults import default_family

    family = family or default_family(target)
    default = default_estimator(target, objective or default_objective(target, family), family=family)
    options = {name: getattr(default, name) for name in inspect.signature(type(default)).parameters} | options
    several = options["indices"] == "all" and options["draws"] != "sobol"  # what can be blocked in several ways
    options["permutations"] = max(1, min(options["permutations"], options["M"])) if several else 1
    return type(default)(**options)


def _construct(flag: str, kind: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a constructor; the error for an option that is unknown or missing names its flag."""
    parameters = inspect.signature(kind).parameters
    if unknown := set(options) - set(parameters):
        raise ValueError(f"{flag} takes no --{sorted(unknown)[0]}. Leave it out.")
    required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    if missing := required - set(options):
        raise ValueError(f"{flag} needs --{sorted(missing)[0]}, e.g. -K 10 or --alpha 0.1.")
    return kind(**options)


def make_geometry(name: GeometryName | None, step_size: float | None) -> Any:
    import bures

    if name in (None, GeometryName.whitened):
        if step_size is not None:
            raise ValueError("--step-size is for --geometry bures-wasserstein, forward-backward or euclidean.")
        return None if name is None else bures.Whitened()
    if step_size is None:
        raise ValueError(f"--geometry {name} needs a --step-size, e.g. --step-size 0.1.")
    kinds = {
        GeometryName.bures_wasserstein: bures.BuresWasserstein,
        GeometryName.forward_backward: bures.ForwardBackward,
        GeometryName.euclidean: bures.Euclidean,
    }
    return kinds[name](step_size)


def make_family(name: FamilyName | None, rank: int | None) -> Any:
    import bures

    if rank is not None and name is not FamilyName.low_rank:
        raise ValueError("--rank is for --family low-rank. Leave it out, or choose that family.")
    if name is FamilyName.low_rank:
        return bures.LowRank(rank)
    kinds = {
        FamilyName.full: bures.FullRank,
        FamilyName.mean_field: bures.MeanField,
        FamilyName.mixture: bures.Mixture,
    }
    return None if name is None else kinds[name]()


def make_start(mean: str | None, variance: float | None) -> Any:
    if mean is None:
        if variance is not None:
            raise ValueError("--init-variance needs --init-mean, e.g. --init-mean 6,12.")
        return None
    import jax.numpy as jnp

    import bures

    try:
        point = jnp.array([float(part) for part in mean.split(",")])
    except ValueError as error:
        raise ValueError(f"--init-mean must be numbers such as 6,12, but got {mean!r}.") from error
    return bures.Gaussian.from_moments(point, (1.0 if variance is None else variance) * jnp.eye(point.size))
