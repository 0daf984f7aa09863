"""Predictions of a Stan program: its own generated quantities, by BridgeStan."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bures.check import fail
from bures.frontends.common import import_extra
from bures.frontends.stan_files import read_data
from bures.target import Predicted

_LOG_LIKELIHOOD = "log_lik"  # by Stan's custom


class Predict:
    """Generated quantities at draws of the parameters; with other data, those of the program with these."""

    def __init__(self, evaluator: Any, lock: Any, shapes_of: Any):
        self.evaluator, self.lock, self.shapes_of = evaluator, lock, shapes_of

    def __call__(self, variables: Mapping[str, Any], key: Any, args: tuple, kwargs: dict[str, Any]) -> Predicted:
        data, new = self._new_data(args, kwargs), bool(args or kwargs)
        seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
        model = self._with_data(data, seed) if new else self.evaluator.model
        found = self._generate(model, self._flat(variables), seed)
        wanted = self.shapes_of(model.param_names(include_tp=new, include_gq=True)[model.param_num() :])
        values = {name: found[name] for name in wanted if name != _LOG_LIKELIHOOD}
        log_likelihood = {_LOG_LIKELIHOOD: found[_LOG_LIKELIHOOD]} if new and _LOG_LIKELIHOOD in wanted else {}
        return Predicted(values, log_likelihood)

    def _new_data(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """All data of the program: a dict, JSON text or a path; or by name."""
        given = kwargs.get("data", kwargs) if kwargs else next(iter(args), None)
        if len(args) + ("data" in kwargs) > 1 or (args and kwargs):
            raise fail("data", "one dict", args, "For example fit.predict(key, data={...}), all data of the program.")
        return given

    def _with_data(self, data: Any, seed: int) -> Any:
        model, bridgestan = self.evaluator.model, import_extra("bridgestan", "stan")
        try:
            other = bridgestan.StanModel(model.lib_path, read_data(data), seed=seed, warn=False)
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rstrip(".")
            remedy = "Give all data of the program, as for the fit."
            raise ValueError(f"Stan does not accept the new data: {reason}. {remedy}") from error
        if other.param_names() != model.param_names():
            remedy = "The number of parameters must not depend on the new data."
            raise fail("data", "for the same parameters", f"{other.param_num()} parameters", remedy)
        return other

    def _flat(self, variables: Mapping[str, Any]) -> np.ndarray:
        """The parameters of each draw in Stan's order, in which the first index counts fastest."""
        shapes = self.shapes_of(self.evaluator.model.param_names())
        parts = [np.asarray(variables[name], np.float64).reshape(-1, *shape) for name, shape in shapes.items()]
        return np.concatenate([part.T.reshape(-1, len(part)).T for part in parts], axis=1)

    def _generate(self, model: Any, parameters: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        names = model.param_names(include_tp=True, include_gq=True)
        rows = np.empty((len(parameters), len(names)))
        with self.lock:
            generator = model.new_rng(seed)
            for row, point in zip(rows, parameters, strict=True):
                try:
                    z = model.param_unconstrain(point)
                    row[:] = model.param_constrain(z, include_tp=True, include_gq=True, rng=generator)
                except RuntimeError as error:
                    reason = " ".join(str(error).split()).rstrip(".")
                    raise ValueError(
                        f"Stan cannot generate quantities at a draw: {reason}. If it speaks of rounding, call "
                        "jax.config.update('jax_enable_x64', True) before the fit."
                    ) from error
        found, start = {}, 0
        for name, shape in self.shapes_of(names).items():
            size = int(np.prod(shape))
            part = rows[:, start : start + size].reshape(len(rows), *shape[::-1])
            found[name] = np.moveaxis(part, range(1, part.ndim), range(part.ndim - 1, 0, -1))
            start += size
        return found
