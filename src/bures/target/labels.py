"""What the model behind a target adds to its draws: axes, data, pointwise log likelihoods."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """What the model behind a target adds to its draws. All of it is optional.

    **Arguments:**

    - `coords`, `dims`: labels of the axes of the variables, as in ArviZ and PyMC.
    - `observed_data`: the data, by the names of the observed variables.
    - `log_likelihood`: from a point of R^dim to the log likelihood of each observation, by the same names.
    - `attributes`: facts to keep with the draws, such as the version of the software.
    - `predict`: from draws of the model's own variables (arrays by name, one draw in each row), a key, and new data
        (positional and by name; none for the data of the fit) to what the model says of data: `Predicted`.
    """

    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    observed_data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    log_likelihood: Callable[[Any], dict[str, Any]] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    predict: Callable[[Mapping[str, Any], Any, tuple, dict[str, Any]], "Predicted"] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """What a model says of data, at draws of its variables: arrays by name, one draw in each row."""

    values: Mapping[str, Any]  # replicated or new observations, and quantities computed with them
    log_likelihood: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of each of the data given
    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


NO_LABELS = Labels()  # one object, so that targets without labels share their compilations
