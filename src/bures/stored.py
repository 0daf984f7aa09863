"""What a saved fit must be to be believed: its description by fields, and its parts by what they say of each other.

The digest of a file tells accidents. An edited file with a digest of its own is refused where it does not hold
together; one that does is another valid fit, and only data.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bures.archive import FileError
from bures.arrays import to_host
from bures.diagnostics.weighted import WeightedDraws
from bures.estimator import Price, Reparameterised, Stein
from bures.family import AbstractApproximation, Gaussian, GaussianMixture, LowRankGaussian
from bures.fitting.result import Fit
from bures.geometry import BuresWasserstein, Euclidean, ForwardBackward, Whitened
from bures.objective import ELBO, IWELBO, VRIWAE
from bures.outcome import Outcome
from bures.recognition import NUM_PROBES, check_same_density
from bures.rows.subsampled import RowsUse
from bures.start import Mode, View

KINDS: dict[str, type[AbstractApproximation]] = {
    kind.family: kind for kind in (Gaussian, LowRankGaussian, GaussianMixture)
}
# The parts of a method that a file may name, and nothing else of the package.
PARTS: dict[str, dict[str, type]] = {
    "objective": {kind.__name__: kind for kind in (ELBO, IWELBO, VRIWAE)},
    "estimator": {kind.__name__: kind for kind in (Price, Stein, Reparameterised)},
    "geometry": {kind.__name__: kind for kind in (BuresWasserstein, ForwardBackward, Euclidean, Whitened)},
}
_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
_CHECKED_DRAWS = 64  # of the judgement
_LARGEST_COUNT = 2**53


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_size(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_plain(value: Any) -> bool:
    """A constructor's argument: a number, a word, or a few numbers."""
    if isinstance(value, int) and abs(value) >= _LARGEST_COUNT:
        return False
    single = value is None or isinstance(value, bool | int | float | str)
    return single or (isinstance(value, list) and len(value) <= 8 and all(_is_number(each) for each in value))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and all(map(_is_plain, value.values()))


def _is_method(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(PARTS):
        return False
    return all(part is None or _is_part(part) for part in value.values())


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict) or set(part) != {"type", "arguments"} or not isinstance(part["arguments"], dict):
        return False
    return isinstance(part["type"], str) and all(map(_is_plain, part["arguments"].values()))


def _is_plan(value: Any) -> bool:
    if value is None:
        return True
    whole = isinstance(value, list) and len(value) == 3 and _is_count(value[0]) and isinstance(value[2], bool)
    return whole and (value[1] is None or _is_size(value[1]))


def _is_refinement(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 5 or not all(isinstance(value[i], str) for i in (0, 4)):
        return False
    return all(_is_number(value[i]) for i in (1, 2)) and isinstance(value[3], int)


def _is_rows(value: Any) -> bool:
    """What a fit by batches of rows has read of them: the fields of `RowsUse`, by their kinds."""
    if value is None:
        return True
    kinds: dict[Any, Callable[[Any], bool]] = {
        int: _is_count,
        float: _is_number,
        str: lambda each: isinstance(each, str),
        dict[str, float]: lambda each: isinstance(each, dict) and all(map(_is_number, each.values())),
        list[float]: lambda each: isinstance(each, list) and all(map(_is_number, each)),
    }
    fields = {field.name: kinds[field.type] for field in dataclasses.fields(RowsUse)}
    if not isinstance(value, dict) or set(value) != set(fields):
        return False
    return all(fits(value[name]) for name, fits in fields.items())


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "dim": lambda value: _is_count(value) and value > 0,
    "names": _are_names,
    "outcome": lambda value: isinstance(value, str) and value in Outcome.__members__,
    "key_implementation": lambda value: value in _KEYS,
    "method": _is_method,
    "family": _is_named,
    "on_host": lambda value: isinstance(value, bool),
    "start_evaluations": _is_count,
    "grows": lambda value: isinstance(value, bool),
    "has_images": lambda value: isinstance(value, bool),
    "refinement": _is_refinement,
    "mixed": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
    "cut_evaluations": _is_count,
    "plan": _is_plan,
    "rows": _is_rows,
    "num_start_modes": _is_count,
}
_JUDGED: dict[str, Callable[[Any], bool]] = {
    "search_evaluations": _is_count,
    "rounding": _is_size,
    "reach": _is_size,
    "num_modes": _is_count,
    "num_views": _is_count,
    "looked": _is_count,
    "num_edges": lambda value: value in (0, 1),
}
_WALKED, _SINCE = {"looked", "num_edges"}, 6  # of the judgement, since this version
_OLD: dict[str, Callable[[Any], bool]] = {"log_density_at_mean": lambda value: isinstance(value, int | float)}
_ALWAYS = {"dim", "outcome", "key_implementation", "method", "family"}  # in files of all versions
STRICT = 5  # the version from which on all fields and arrays are known


def check_description(version: int, description: dict[str, Any]) -> None:
    """Fields that are there, known and of their kinds; those of the judgement all or none."""
    wanted = set(_FIELDS) if version >= STRICT else _ALWAYS
    if version >= STRICT and set(_JUDGED) & set(description):
        wanted |= set(_JUDGED) - (_WALKED if version < _SINCE else set())
    missing = wanted - set(description)
    if missing:
        raise FileError(f"its description lacks {', '.join(sorted(missing))}")
    known = _FIELDS | _JUDGED | (_OLD if version < STRICT else {})
    for name, value in description.items():
        if name not in known:
            raise FileError(f"its description has {name!r}, which is not known")
        if not known[name](value):
            raise FileError(f"its description has a wrong {name}")


def make_part(part: str, described: dict[str, Any]) -> Any:
    """A part of a method by its name in the list above."""
    kinds = PARTS[part]
    if described["type"] not in kinds:
        raise FileError(f"its {part} is not one of {', '.join(kinds)}")
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in described["arguments"].items()}
    return kinds[described["type"]](**arguments)


def check_approximation(name: str, q: AbstractApproximation, dim: int) -> None:
    """Shapes that fit together, and values that steps could have made; of families of others only the dimension."""
    parts = {key: np.asarray(part) for key, part in q.parts().items()}
    if any(part.dtype not in (np.float32, np.float64) for part in parts.values()):
        raise FileError(f"{name} is not of floats")
    shapes = {key: part.shape for key, part in parts.items()}
    if type(q) in KINDS.values() and shapes != _shapes(q, parts, dim):
        raise FileError(f"{name} has parts of shapes that do not fit: {shapes}")
    if np.shape(q.mean) != (dim,):
        raise FileError(f"{name} is not on R^{dim}")
    factors = [parts[key] for key in ("chol", "chols") if key in parts]
    if type(q) in KINDS.values() and any(np.any(np.triu(factor, 1) != 0) for factor in factors):
        raise FileError(f"{name} has a factor that is not lower triangular")
    if not bool(to_host(q).is_valid()):
        raise FileError(f"{name} is not a distribution")


def _shapes(q: AbstractApproximation, parts: dict[str, np.ndarray], dim: int) -> dict[str, tuple[int, ...]]:
    """The shapes that the parts should have."""
    if isinstance(q, Gaussian):
        return {"mean": (dim,), "chol": (dim, dim)}
    if isinstance(q, GaussianMixture):
        n = parts["log_shares"].size
        return {"log_shares": (n,), "means": (n, dim), "chols": (n, dim, dim), "tail": (n,)}
    n = parts["variances"].size
    return {"mean": (dim,), "scale": (dim,), "basis": (dim, n), "variances": (n,)}


def check_modes(name: str, modes: Iterable[Mode], dim: int) -> None:
    for mode in modes:
        check_approximation(name, mode.gaussian, dim)
        check_views(name, [mode.view], dim)


def check_views(name: str, views: Iterable[View], dim: int) -> None:
    for view in views:
        n = len(view.values) if np.ndim(view.values) == 1 else -1
        if np.shape(view.z) != (n, dim) or np.shape(view.log_weights) != (n,):
            raise FileError(f"{name} have draws of shapes that do not fit")
        if not isinstance(view.log_mass, float) or not isinstance(view.error, float):
            raise FileError(f"{name} have masses that are not numbers")


def check_fit(fit: Fit, version: int) -> None:
    """What the parts of a fit say of each other."""
    count, dim = int(fit.loop.count), fit.target.dim
    named = [(f"path[{i}]", q) for i, (_, q) in enumerate(fit.path)]
    named += [("the state", fit.state.approximation), ("the best", fit.loop.best)]
    for name, q in [("the approximation", fit.approximation), *named]:
        check_approximation(name, q, dim)
    lengths = {np.shape(fit.trace[name]) for name in fit.trace.names}
    steps = [step for step, _ in fit.path]
    noted = count - (steps[0] if steps else 0)  # one of `fit_many` has no trace of the steps before its path begins
    if len(lengths) != 1 or next(iter(lengths)) not in ((noted,), (noted + 1,)) or noted < 0:
        raise FileError("its trace is not as long as the fit has steps")
    if not steps or steps[0] < 0 or any(a >= b for a, b in itertools.pairwise(steps)) or steps[-1] > count:
        raise FileError("its path does not go by its steps")
    if version >= STRICT:
        _check_chosen(fit)


def _check_chosen(fit: Fit) -> None:
    """The approximation is the last one, or the best, as the outcome says; the best bound is one of the trace."""
    last = fit.outcome in (Outcome.CONVERGED, Outcome.MAX_STEPS) or int(fit.loop.count) == 0
    chosen = fit.state.approximation if last else fit.loop.best
    for name, part in fit.approximation.parts().items():
        if not np.array_equal(np.asarray(chosen.parts()[name]).astype(part.dtype), np.asarray(part)):
            raise FileError("its approximation is neither its last nor its best")
    best = float(fit.loop.best_bound)
    if best != -math.inf and not np.any(np.asarray(fit.trace.bound) == best):
        raise FileError("its best bound is not in its trace")


def check_draws(fit: Fit) -> None:
    """The draws of the judgement are those of the approximation: log q and log p at the first are computed again."""
    kept = fit.draws()
    z = np.asarray(kept.z[:_CHECKED_DRAWS])
    if len(z) >= NUM_PROBES:
        check_same_density(fit.target, z[:NUM_PROBES], kept.log_p[:NUM_PROBES])
    found = WeightedDraws.at(z, kept.log_p[: len(z)], fit.approximation).log_q
    saved = kept.log_q[: len(z)]
    with np.errstate(invalid="ignore"):
        near = (np.abs(found - saved) <= 1e-4 * (1 + np.abs(found))) | (found == saved)
    if not np.all(near):
        raise FileError("the draws that it was judged by are not those of its approximation")
