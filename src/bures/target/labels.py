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
    """

    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    observed_data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    log_likelihood: Callable[[Any], dict[str, Any]] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


NO_LABELS = Labels()  # one object, so that targets without labels share their compilations
