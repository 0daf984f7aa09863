"""What a fitted model says of data: replicated and new observations, generated quantities, pointwise log likelihoods.

Front-ends do it by their own means (see `Labels.predict`); for other targets a function of a draw is given.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bures.check import check_function, check_key, fail
from bures.export import import_from_dict, to_arviz
from bures.target import Labels, Predicted, Target, as_target

if TYPE_CHECKING:
    from xarray import DataTree

    from bures.fitting import Fit


def predict(
    draws: "DataTree",
    target: Target | Any,
    key: Key[Array, ""],
    *data: Any,
    function: Callable[[dict[str, Array], Key[Array, ""]], Any] | None = None,
    **named: Any,
) -> "DataTree":
    """What a model says of data at posterior draws, in a DataTree with the draws: those of `bures.sample`, or of MCMC.

    **Arguments:**

    - `draws`: a DataTree with a group `posterior` in the model's own variables.
    - `target`: the `Target` of the model, as `from_numpyro` and the like make it; or a PyMC model.
    - `key`: a typed key, `jax.random.key(0)`.
    - `data`, `named`: new data. Arguments of a NumPyro model: those that are not given stay as they were, and what was
        observed is drawn. By name the `pm.Data` of a PyMC model, and `coords`. `data=` of a Stan program.
    - `function`: for any target, a JAX function of a draw (a dict of the variables) and a key, to an array or to a dict
        of arrays. It may be the only entry of `data`.

    Without new data the tree has `posterior_predictive`, replicated observations; and `log_likelihood` and
    `observed_data` where the model has them, which is what `arviz.loo` takes. With new data it has `predictions`, and
    the `log_likelihood` of the new observations where these are given.

    >>> import jax, bures
    >>> tree = bures.sample(lambda z: -jnp.sum((z - 3) ** 2) / 2, dim=1, key=jax.random.key(0))
    >>> target = bures.Target(lambda z: -jnp.sum((z - 3) ** 2) / 2, dim=1)
    >>> noisy = lambda draw, key: draw["z"] + jax.random.normal(key, (2,))
    >>> bures.predict(tree, target, jax.random.key(1), noisy).posterior_predictive["prediction"].shape
    (1, 1000, 2)
    """
    check_key(key)
    _check_draws(draws)
    target = _target_of(target)
    if function is None and len(data) == 1 and not named and callable(data[0]):
        function, data = data[0], ()
    if function is not None:
        check_function("function", function, "a function of a draw and a key", "Leave it out for the model's own.")
        if data or named:
            received = f"{len(data) + len(named)} of them"
            raise fail("data", "left out where a function is given", received, "Let the function hold them.")
    return _extended(draws, target.labels, key, function, data, named)


def predict_fit(
    fit: "Fit",
    key: Key[Array, ""],
    data: tuple,
    named: dict[str, Any],
    *,
    num_draws: int,
    resample: bool,
    function: Any,
) -> "DataTree":
    """See `Fit.predict`."""
    check_key(key)
    key_draws, key_data = jax.random.split(key)
    draws = to_arviz(fit, key_draws, num_draws=num_draws, resample=resample)
    return predict(draws, fit.target, key_data, *data, function=function, **named)


def _check_draws(draws: Any) -> None:
    if "posterior" not in getattr(draws, "children", {}):
        raise fail("draws", "a DataTree with a group `posterior`", draws, "For example what bures.sample returns.")
    if not {"chain", "draw"} <= set(dims := draws["posterior"].dataset.sizes):
        remedy = "Give the draws as they were before they were put together."
        raise fail("draws", "with the dimensions `chain` and `draw`", list(dims), remedy)


def _target_of(given: Any) -> Target:
    from bures.ladder.climb import target_of

    target = target_of(given)
    if not isinstance(target, Target):
        remedy = "Make one first: bures.frontends.from_numpyro(model, X, y), from_stan(program, data)."
        raise fail("target", "a bures.Target or a PyMC model", given, remedy)
    return as_target(target, None)


def _extended(
    draws: "DataTree", labels: Labels, key: Any, function: Callable | None, data: tuple, named: dict[str, Any]
) -> "DataTree":
    """The tree with what is predicted."""
    posterior = draws["posterior"].dataset.transpose("chain", "draw", ...)
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    variables = {str(name): value.values.reshape(-1, *value.shape[2:]) for name, value in posterior.data_vars.items()}
    new = bool(data or named)
    if function is not None:
        found = _by_function(function, variables, key)
    elif labels.predict is not None:
        found = labels.predict(variables, key, data, named)
    else:
        remedy = "For example fit.predict(key, lambda draw, key: draw['mu'] + jax.random.normal(key))."
        raise fail("function", "given for a target without a model", function, remedy)
    group = "predictions" if new else "posterior_predictive"
    made: dict[str, Mapping[str, Any]] = {group: found.values}
    if found.log_likelihood:
        made["log_likelihood"] = found.log_likelihood
    shaped = {name: {k: _by_chain(v, shape) for k, v in values.items()} for name, values in made.items() if values}
    names = {name for values in shaped.values() for name in values}
    dims = {name: list(axes) for name, axes in found.dims.items() if name in names}
    attributes = {name: dict(posterior.attrs) for name in shaped}
    coords = _used(found.coords, dims)
    options = {"coords": coords, "dims": dims, "pred_coords": coords, "pred_dims": dims}
    more = import_from_dict()(shaped, attrs=attributes, **options)
    kept = ("posterior", "sample_stats") if new else tuple(draws.children)
    groups = {name: draws[name].dataset for name in kept if name in draws.children}
    groups |= {name: more[name].dataset for name in more.children}
    tree = type(more).from_dict(groups)
    tree.attrs.update(draws.attrs)
    return tree


def _by_function(function: Callable, variables: Mapping[str, np.ndarray], key: Any) -> Predicted:
    """A function of a draw and a key, at all draws."""
    draws = {name: jnp.asarray(value) for name, value in variables.items()}
    keys = jax.random.split(key, len(next(iter(variables.values()))))
    found = jax.jit(jax.vmap(function))(draws, keys)
    return Predicted(found if isinstance(found, Mapping) else {"prediction": found})


def _by_chain(values: Any, shape: tuple[int, int]) -> np.ndarray:
    values = np.asarray(values)
    return values.reshape(*shape, *values.shape[1:])


def _used(coords: Mapping[str, Any], dims: Mapping[str, list[str]]) -> dict[str, Any]:
    axes = {axis for each in dims.values() for axis in each}
    return {name: values for name, values in coords.items() if name in axes and values is not None}
