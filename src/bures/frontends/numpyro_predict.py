"""Predictions of a NumPyro model by NumPyro's own `Predictive`."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bures.frontends.numpyro_sites import ERRORS, cannot_run, log_densities, running, watch
from bures.target import Predicted


class Predict:
    """Draws of the observed sites, given draws of the latent ones; with other arguments of the model, for new data."""

    def __init__(self, source: Any):
        self.source = source

    def __call__(self, variables: Mapping[str, Any], key: Any, args: tuple, kwargs: dict[str, Any]) -> Predicted:
        from numpyro.infer import Predictive

        source = self.source
        latent = {name: jnp.asarray(variables[name]) for name in source.shapes}
        new = bool(args or kwargs)
        args, kwargs, given = self._arguments(args, kwargs) if new else (source.args, source.kwargs, False)
        free = _free(source.handled())
        last = watch(free)

        def draw(key: Any, latent: dict[str, Any]) -> dict[str, Any]:  # arguments may decide sizes: not traced
            return Predictive(last, posterior_samples=latent)(key, *args, **kwargs)

        try:
            found = jax.jit(draw)(key, latent)
            log_likelihood = self._log_likelihood(latent, args, kwargs) if given else {}
        except ERRORS as error:
            raise cannot_run(last.name, error) from error
        wanted = {name for name in found if new or not self._is_deterministic(name)}
        values = {name: np.asarray(value) for name, value in found.items() if name in wanted}
        return Predicted(values, log_likelihood, dims={} if new else source.dims())

    def _is_deterministic(self, name: str) -> bool:
        site = self.source.sites.get(name)
        return site is not None and site.type != "sample"

    def _arguments(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any], bool]:
        """The arguments of the fit with the new ones in their place, and whether new observations are among them.

        Observations of the fit that are not given anew become None.
        """
        source = self.source
        try:
            signature = inspect.signature(source.model)
            before = signature.bind(*source.args, **source.kwargs)
            now = signature.bind_partial(*args, **kwargs)
        except (TypeError, ValueError):  # the model's own call will say what is wrong
            return args, kwargs, False
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
            return args, kwargs, False
        observed = {name for name, value in before.arguments.items() if self._is_data(value)}
        merged = {name: None if name in observed else value for name, value in before.arguments.items()}
        now.arguments = {**merged, **now.arguments}
        ordered = {name: now.arguments[name] for name in signature.parameters if name in now.arguments}
        now.arguments = ordered
        given = bool(observed) and all(ordered[name] is not None for name in observed)
        return now.args, now.kwargs, given

    def _is_data(self, value: Any) -> bool:
        """Whether an argument is what a site observes."""
        if not isinstance(value, jax.Array | np.ndarray | list | tuple) or np.size(value) == 0:
            return False
        sites = [site.value for site in self.source.sites.values() if site.is_observed]
        known = [each for each in sites if each is not None and np.shape(each) == np.shape(value)]
        return any(each is value or np.array_equal(each, value) for each in known)

    def _log_likelihood(self, latent: Mapping[str, Any], args: tuple, kwargs: dict[str, Any]) -> dict[str, np.ndarray]:
        from numpyro import handlers

        names = self.source.pointwise_sites()

        def one(values: dict[str, Any]) -> dict[str, Any]:
            model = handlers.substitute(self.source.handled(), data=values)
            with running():
                sites = handlers.trace(model).get_trace(*args, **kwargs)
            return log_densities({name: sites[name] for name in names if name in sites})

        found = jax.jit(jax.vmap(one))(latent)
        return {name: np.asarray(value) for name, value in found.items()}


def _free(model: Any) -> Any:
    """The model with its observed sites drawn; terms added by `numpyro.factor` are not data."""
    from numpyro.primitives import Messenger

    class Free(Messenger):
        def process_message(self, msg: dict) -> None:
            if msg["type"] == "sample" and msg["is_observed"] and type(msg["fn"]).__name__ != "Unit":
                msg["is_observed"], msg["value"] = False, None

    return Free(model)
