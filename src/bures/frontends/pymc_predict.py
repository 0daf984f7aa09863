"""Predictions of a PyMC model by `pymc.sample_posterior_predictive`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from bures.check import fail
from bures.export import import_from_dict
from bures.target import Predicted


class Predict:
    """Draws of the observed variables, with the data of the model or with others in their place (`pm.set_data`)."""

    def __init__(self, source: Any, coords: Mapping[str, Any], dims: Mapping[str, Any]):
        self.source, self.coords, self.dims = source, coords, dims

    def __call__(self, variables: Mapping[str, Any], key: Any, args: tuple, kwargs: dict[str, Any]) -> Predicted:
        import pymc

        data, coords = self._new_data(args, kwargs)
        model, seed = self.source.model, int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
        kept = {variable.name: value for variable, value in self.source.data.items() if variable.name}
        draws = self._tree(variables, kept)
        wanted = [variable.name for variable in (*model.observed_RVs, *model.deterministics)] if data else None
        with _with_data(model, kept, data, coords):
            found = pymc.sample_posterior_predictive(
                draws, model=model, var_names=wanted, random_seed=seed, progressbar=False, predictions=bool(data)
            )
            log_likelihood = self._log_likelihood(draws, model) if data and self._observes(set(data)) else {}
            _, dims = pymc.backends.arviz.coords_and_dims_for_inferencedata(model)
        group = found["predictions" if data else "posterior_predictive"].dataset
        values = {str(name): value.values[0] for name, value in group.data_vars.items()}
        axes = {str(name): value.values for name, value in group.coords.items() if name not in ("chain", "draw")}
        return Predicted(values, log_likelihood, axes, {name: list(each) for name, each in dims.items()})

    def _new_data(self, args: tuple, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """New values by the name of their `pm.Data`, and coords."""
        if args:
            raise fail("data", "given by name for a PyMC model", args[0], "For example fit.predict(key, x=x_new).")
        data = dict(kwargs)
        coords = data.pop("coords", None)
        known = [variable.name for variable in self.source.model.data_vars]
        if unknown := [name for name in data if name not in known]:
            listed = ", ".join(known) or "none: wrap the data in pm.Data first"
            raise fail("data", f"named as the pm.Data of the model ({listed})", unknown[0], "Check the name.")
        return data, coords

    def _tree(self, variables: Mapping[str, Any], data: Mapping[str, np.ndarray]) -> Any:
        """The draws as PyMC wants them, with the data they were made with: it draws anew what these no longer fit."""
        free = {variable.name for variable in self.source.model.unobserved_RVs}
        groups: dict[str, Any] = {"posterior": {k: np.asarray(v)[None] for k, v in variables.items() if k in free}}
        dims = {name: list(axes) for name, axes in self.dims.items() if name in groups["posterior"] or name in data}
        if data:
            groups["constant_data"] = dict(data)
        return import_from_dict()(groups, coords=dict(self.coords), dims=dims)

    def _observes(self, names: set[str]) -> bool:
        """Whether all observed variables take their values from these data."""
        from pytensor.graph.traversal import ancestors

        model = self.source.model
        values = [model.rvs_to_values[variable] for variable in model.observed_RVs]
        return bool(values) and all(any(each.name in names for each in ancestors([value])) for value in values)

    def _log_likelihood(self, draws: Any, model: Any) -> dict[str, np.ndarray]:
        import pymc

        with model:
            found = pymc.compute_log_likelihood(draws, extend_inferencedata=False, progressbar=False)
        return {str(name): value.values[0] for name, value in found.data_vars.items()}


@contextmanager
def _with_data(model: Any, kept: Mapping[str, Any], data: dict[str, Any], coords: Any) -> Iterator[None]:
    """The model with the data of the fit, or new ones; afterwards it is as it was before."""
    import pymc

    names = {variable.name for variable in model.data_vars}
    before = {name: np.array(model[name].get_value()) for name in names}
    axes = {name: values for name, values in model.coords.items() if values is not None}
    changed = {k: kept[k] for k in names & kept.keys() if k not in data and not np.array_equal(kept[k], before[k])}
    try:
        pymc.set_data({**changed, **data}, model=model, coords=coords)
        yield
    finally:
        touched = {name: axes[name] for name in (coords or {}) if name in axes}
        pymc.set_data({name: before[name] for name in (*changed, *data)}, model=model, coords=touched or None)
