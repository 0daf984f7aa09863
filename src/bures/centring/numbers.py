"""The numbers of changes of coordinates: what a file has to keep of a target in other coordinates."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bures.centring.change import AbstractChange, change_coordinates, changes_of
from bures.centring.sites import Conditioned, Recentred, check_has_sites
from bures.centring.warp import Warp
from bures.check import as_array, fail
from bures.target import Target

_KINDS: dict[str, type[AbstractChange]] = {kind.__name__: kind for kind in (Conditioned, Recentred, Warp)}


def numbers_of(target: Target) -> dict[str, np.ndarray]:
    """The arrays of all changes that made a target, by names such as "0.Conditioned.shift"; none if there were none."""
    return {
        f"{i}.{type(change).__name__}.{field.name}": np.asarray(getattr(change, field.name))
        for i, change in enumerate(changes_of(target))
        for field in dataclasses.fields(change)
        if field.name != "sites" and getattr(change, field.name) is not None
    }


def change_by_numbers(target: Target, numbers: Mapping[str, Any]) -> Target:
    """The target in the coordinates that `numbers_of` has described, from the model's own."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for name, array in numbers.items():
        place, kind, field = name.split(".")
        found.setdefault((int(place), kind), {})[field] = as_array(array)
    sites = target.sites
    for (_, kind), arrays in sorted(found.items()):
        if kind not in _KINDS:
            raise fail("numbers", f"those of {', '.join(_KINDS)}", kind, "Use the bures that they were saved with.")
        if kind != "Warp":
            check_has_sites(target)
            arrays["sites"] = sites
        target = change_coordinates(target, _KINDS[kind](**arrays))
    return target
