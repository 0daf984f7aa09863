"""Saving a fit to one file and loading it back: checked whole, never half-read, no pickle.

`archive.py` has the format, `stored.py` what is checked, `files.py` how files are written. Approximations are kept by
the names of their own parts, so that a family without d × d arrays has none in its files.

The log density itself is not saved, only its values at a few points, by which `load` recognises it.
"""

import dataclasses
import inspect
import json
from typing import Any

import jax
import numpy as np

import bures
from bures.archive import Arrays, FileError as FileError, pack, unpack
from bures.centring import change_by_numbers, numbers_of
from bures.check import as_array, check_part, fail
from bures.family import AbstractApproximation, AbstractFamily, Gaussian
from bures.files import check_path as check_path, write_atomically as write_atomically
from bures.fitting.judgement import Judgement, restore
from bures.fitting.result import Fit, Plan, Record, Refinement
from bures.geometry import Euclidean
from bures.loop import LoopState, Method, State, Trace
from bures.recognition import NUM_PROBES, check_same_density, log_densities, probes_of
from bures.rows.subsampled import RowsUse
from bures.start import Mode, View
from bures.stored import (
    KINDS,
    PARTS,
    STRICT,
    check_approximation,
    check_description,
    check_draws,
    check_fit,
    check_modes,
    check_views,
    make_part,
)
from bures.stored_pause import arrays_of, pause_of
from bures.target import Target, as_target

_VERSION = 6
# Version 2 has the log density at the mean only; both 2 and 3 know full Gaussians alone; 4 may lack what is new in 5.
_READABLE = ("2", "3", "4", "5", "6")
_COORDINATES = "coordinates/"
_NAMED = 10_000  # coordinates; of more than these the names are not saved


def save(fit: Fit, path: Any, *, judged: bool = True) -> None:
    """Write a fit to `path`, atomically: with its judgement, unless that is not to be made for it."""
    path = check_path("path", path)
    judgement = fit.judgement if judged else fit.record.judgement
    description = json.dumps(_description(fit) | _describe_judgement(judgement), default=_plain)
    write_atomically(path, pack(_VERSION, description, _arrays(fit) | _judged_arrays(judgement)))


def _description(fit: Fit) -> dict[str, Any]:
    """Everything that is not an array, for JSON."""
    return {
        "dim": fit.target.dim,
        "names": fit.target.names if fit.target.dim <= _NAMED else None,
        "outcome": fit.outcome.name,
        "key_implementation": str(jax.random.key_impl(fit.key)),
        "method": {part: _describe_part(getattr(fit.method, part)) for part in PARTS},
        "family": {"name": fit.approximation.family, **_static(fit.approximation)},
        "on_host": fit.loop.is_on_host,
        "start_evaluations": fit.record.start_evaluations,
        "grows": fit.record.grows,
        "has_images": fit.record.has_images,
        "refinement": fit.record.refinement,
        "mixed": [fit.record.mixed_rounds, fit.record.mixed_evaluations],
        "cut_evaluations": fit.record.cut_evaluations,
        "plan": fit.record.plan,
        "rows": None if fit.record.rows is None else dataclasses.asdict(fit.record.rows),
        "num_start_modes": len(fit.record.modes),
    }


def _describe_judgement(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    return {
        "search_evaluations": judgement.evaluations,
        "looked": judgement.looked,
        "rounding": judgement.diagnostics.rounding,
        "reach": judgement.diagnostics.coverage.reach,
        "num_modes": len(judgement.modes),
        "num_views": len(judgement.views),
        "num_edges": len(_edges(judgement)),
    }


def _judged_arrays(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    drawn = {"log_p": judgement.log_p, "log_q": judgement.log_q}
    seen = {"modes": judgement.modes, "views": judgement.views, "edge": _edges(judgement)}
    return drawn | {name: part for each, tree in seen.items() for name, part in _numbered(each, tree).items()}


def _edges(judgement: Judgement) -> tuple[View, ...]:
    """What the walk outwards saw, or nothing."""
    return () if judgement.edge is None else (judgement.edge,)


def _arrays(fit: Fit) -> dict[str, Any]:
    if fit.record.probes is None:  # once for all checkpoints of a fit
        probes = probes_of(fit.approximation)
        fit.record.probes = probes, log_densities(fit.target, probes)
    scale = fit.record.scale
    return {
        "key": jax.random.key_data(fit.key),
        "probes": fit.record.probes[0],
        "log_densities": fit.record.probes[1],
        **_parts("approximation", fit.approximation),
        "path_steps": np.array([step for step, _ in fit.path]),
        **{name: part for i, (_, q) in enumerate(fit.path) for name, part in _parts(f"path_{i}", q).items()},
        **{f"trace_{name}": fit.trace[name] for name in fit.trace.names},
        **{f"{_COORDINATES}{name}": array for name, array in numbers_of(fit.target).items()},
        **_parts("state", fit.loop.state.approximation),
        **_parts("best", fit.loop.best),
        **_numbered("carry", _without_approximations(fit.loop)),
        **_numbered("start_modes", fit.record.modes),
        **({} if scale is None else {"scale.mean": scale.mean, "scale.chol": scale.chol}),
        **arrays_of(fit.record.pause),
    }


def _parts(name: str, q: AbstractApproximation) -> dict[str, Any]:
    """The arrays of an approximation, whose shapes may change from step to step."""
    return {f"{name}.{part}": array for part, array in q.parts().items()}


def _static(q: AbstractApproximation) -> dict[str, Any]:
    """What an approximation has besides its arrays."""
    return {field.name: getattr(q, field.name) for field in dataclasses.fields(q) if field.name not in q.parts()}


def _without_approximations(loop: LoopState) -> Any:
    return loop._replace(state=loop.state._replace(approximation=None), best=None)


def _numbered(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by number."""
    return {f"{name}_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _plain(value: Any) -> Any:
    """A NumPy or JAX number as a Python number, for JSON."""
    if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0:
        return np.asarray(value).item()
    raise TypeError(f"A fit cannot be saved with {value!r} in its method: it is not a number, a string or a list.")


def load(path: Any, *, target: Any, dim: int | None = None, family: AbstractFamily | None = None, **parts: Any) -> Fit:
    """Read a fit back, for the target it was fitted to.

    Another target is refused: its log density must be the saved one at the mean and at points around it. A constant
    added to the log density makes another target, too, because bounds and evidence change with it.

    An optimiser of your own in `Euclidean`, or an objective, estimator, geometry or family defined outside bures, is
    not in the file: pass it again as `objective=`, `estimator=`, `geometry=` or `family=`.
    """
    target = as_target(target, dim)
    if unknown := set(parts) - set(PARTS):
        raise fail("load's options", f"among {(*PARTS, 'family')}", sorted(unknown), "Check the spelling.")
    path = check_path("path", path)
    try:
        version, description, arrays = unpack(path, _READABLE)
    except FileError as error:
        raise FileError(f"{str(path)!r} {error}." if _is_sentence(error) else _unreadable(path, error)) from error
    except OSError as error:
        reason = f"path must be a saved fit that can be read, but {str(path)!r} cannot: {error.strerror}. Check it."
        raise type(error)(error.errno, reason) from error
    except Exception as error:
        raise FileError(_unreadable(path, error)) from error
    try:
        return _rebuild_fit(path, version, description, Arrays(arrays), target, family, parts)
    except ValueError as error:
        is_ours = not isinstance(error, FileError) and (" must be " in str(error) or str(path) in str(error))
        raise FileError(str(error) if is_ours else _unreadable(path, error)) from error
    except (KeyError, TypeError, IndexError, AttributeError, ArithmeticError, MemoryError, RecursionError) as error:
        raise FileError(_unreadable(path, error)) from error


def _is_sentence(error: Exception) -> bool:
    return str(error).startswith(("is ", "has ", "was "))


def _unreadable(path: Any, error: Exception) -> str:
    return f"{str(path)!r} cannot be read as a saved fit: {error}. Load another, or make the fit again."


def _rebuild_fit(
    path: Any,
    version: int,
    description: dict[str, Any],
    arrays: Arrays,
    target: Target,
    family: AbstractFamily | None,
    parts: dict[str, Any],
) -> Fit:
    """The fit that a file describes, with all that can be checked of it checked."""
    if version < 4:
        description, arrays = _from_version_3(description, arrays)
    check_description(version, description)
    if description["dim"] != target.dim:
        raise fail("target", f"the one the fit was made for, on R^{description['dim']}", target.dim, "Pass that one.")
    if _is_double(arrays) and not jax.config.jax_enable_x64:
        raise ValueError(
            f"{str(path)!r} holds a float64 fit, but JAX runs in float32. "
            "Call jax.config.update('jax_enable_x64', True) first."
        )
    given, target = target, _in_coordinates(target, arrays)
    method = Method(**{part: _rebuild_part(part, description["method"][part], parts.get(part)) for part in PARTS})
    _check_probes(target, description, arrays, version)
    kind = _kind(path, description["family"]["name"], family, target.dim)

    def approximation(name: str, put: Any = as_array) -> AbstractApproximation:
        return _rebuild_approximation(kind, name, description["family"], arrays, put)

    put = np.asarray if description.get("on_host", False) else as_array
    names = [field.name for field in dataclasses.fields(Trace)]
    fit = Fit(
        approximation=approximation("approximation"),
        trace=Trace(**{name: arrays[f"trace_{name}"] for name in names}),
        path=tuple((int(step), approximation(f"path_{i}")) for i, step in enumerate(arrays["path_steps"])),
        target=target,
        method=method,
        key=_rebuild_key(arrays["key"], description["key_implementation"]),
        loop=_rebuild_loop(method, approximation("state", put), approximation("best", put), arrays, put),
        outcome_code=bures.Outcome[description["outcome"]].value,
        record=_rebuild_record(description, arrays, target.dim),
    )
    fit.record.is_recentred = target is not given
    check_fit(fit, version)
    fit.record.pause = pause_of(fit, arrays)
    if "log_p" in arrays:
        _restore_judgement(fit, description, arrays)
        check_draws(fit)
    if version >= STRICT and arrays.unused:
        raise FileError(f"it holds {', '.join(arrays.unused[:3])}, which is not known")
    return fit


def _rebuild_key(data: np.ndarray, implementation: str) -> Any:
    if data.dtype != np.uint32 or data.ndim != 1:
        raise FileError("its key is not one")
    return jax.random.wrap_key_data(as_array(data), impl=implementation)


def _check_probes(target: Target, description: dict[str, Any], arrays: Arrays, version: int) -> None:
    """The target is recognised by its log density at some points, of version 2 at the mean only."""
    if version < 3:
        mean = arrays["approximation.mean"]
        check_same_density(target, mean[None], np.array([description["log_density_at_mean"]]))
        return
    probes, found = arrays["probes"], arrays["log_densities"]
    if probes.shape != (NUM_PROBES, target.dim) or found.shape != (NUM_PROBES,):
        raise FileError("the points by which the target is recognised are not there")
    if not np.all(np.isfinite(probes)) or probes.dtype.kind != "f" or found.dtype.kind != "f":
        raise FileError("the points by which the target is recognised are not finite")
    check_same_density(target, probes, found)


def _in_coordinates(target: Target, arrays: Arrays) -> Target:
    """The target in the learned coordinates of the saved fit, if it was given in the model's own."""
    named = [name for name in arrays if name.startswith(_COORDINATES)]
    numbers = {name.removeprefix(_COORDINATES): arrays[name] for name in named}
    return target if not numbers or numbers_of(target) else change_by_numbers(target, numbers)


def _is_double(arrays: dict[str, np.ndarray]) -> bool:
    return any(array.dtype == np.float64 for name, array in arrays.items() if name.startswith("approximation."))


def _rebuild_record(description: dict[str, Any], arrays: Arrays, dim: int) -> Record:
    rounds, evaluations = description.get("mixed", (0, 0))
    plan = description.get("plan")
    modes = _rebuild("start_modes", _empty_mode(), description.get("num_start_modes", 0), arrays)
    check_modes("the modes of the start", modes, dim)
    scale = Gaussian.unchecked(arrays["scale.mean"], arrays["scale.chol"]) if "scale.mean" in arrays else None
    if scale is not None:
        check_approximation("the scale", scale, dim)
    return Record(
        modes=modes,
        scale=scale,
        cut_evaluations=description.get("cut_evaluations", 0),
        plan=None if plan is None else Plan(*plan),
        rows=None if description.get("rows") is None else RowsUse(**description["rows"]),
        probes=(arrays["probes"], arrays["log_densities"]) if "probes" in arrays else None,
        start_evaluations=description.get("start_evaluations", 0),
        grows=description.get("grows", False),
        has_images=description.get("has_images", False),
        mixed_rounds=rounds,
        mixed_evaluations=evaluations,
        refinement=None if description.get("refinement") is None else Refinement(*description["refinement"]),
    )


def _kind(path: Any, name: str, family: Any, dim: int) -> type[AbstractApproximation]:
    """The class of the saved approximation."""
    if family is None:
        if name not in KINDS:
            raise ValueError(
                f"{str(path)!r} holds a fit of the family {name!r}, but this bures knows {' and '.join(KINDS)}. "
                "Pass a family of your own as family=, or load it with the bures it was saved with."
            )
        return KINDS[name]
    check_part("family", family, AbstractFamily, "bures.LowRank()")
    kind = type(family.standard(min(dim, 2)))
    if kind.family != name:
        raise fail("family", f"that of the saved fit, {name!r}", family, "Leave it out for a family of bures.")
    return kind


def _rebuild_approximation(
    kind: type[AbstractApproximation], name: str, static: dict[str, Any], arrays: Arrays, put: Any
) -> AbstractApproximation:
    """A member of a family from its arrays, as they were; files are checked by their digest."""
    q = object.__new__(kind)
    for field in dataclasses.fields(kind):
        is_array = not field.metadata.get("static", False)
        if not is_array and field.name not in static:
            raise FileError(f"it does not hold {name}.{field.name}")
        object.__setattr__(q, field.name, put(arrays[f"{name}.{field.name}"]) if is_array else static[field.name])
    return q


def _rebuild_loop(
    method: Method, q: AbstractApproximation, best: AbstractApproximation, arrays: Arrays, put: Any
) -> LoopState:
    """The state of the loop; its arrays must be those that the geometry makes."""
    template = LoopState.start(State(q, method.geometry.init(q)))
    leaves, structure = jax.tree.flatten(_without_approximations(template))
    saved = [arrays[name] if (name := f"carry_{i}") in arrays else None for i in range(len(leaves))]
    if f"carry_{len(leaves)}" in arrays or any(
        new is None or not _is_alike(new, old, loose=put is np.asarray) for new, old in zip(saved, leaves, strict=True)
    ):
        raise fail("geometry", "the one of the saved fit", method.geometry, "Pass the same optimiser as then.")
    loop = jax.tree.unflatten(structure, [put(leaf) for leaf in saved])
    return loop._replace(state=loop.state._replace(approximation=q), best=best)


def _is_alike(new: np.ndarray, old: Any, *, loose: bool) -> bool:
    """Whether a saved array can stand for another. On the host some numbers of a float32 fit may be double: `loose`."""
    same = new.dtype == old.dtype or (loose and new.dtype.kind == np.dtype(old.dtype).kind == "f")
    return same and new.shape == np.shape(old)


def _restore_judgement(fit: Fit, description: dict[str, Any], arrays: Arrays) -> None:
    """The judgement as it was saved, from its weights and what the search saw."""
    empty, dim = _empty_mode(), fit.target.dim
    modes = _rebuild("modes", empty, description["num_modes"], arrays)
    views = _rebuild("views", empty.view, description["num_views"], arrays)
    edges = _rebuild("edge", empty.view, description.get("num_edges", 0), arrays)
    check_modes("its modes", modes, dim)
    check_views("its views", (*views, *edges), dim)
    log_p, log_q = arrays["log_p"], arrays["log_q"]
    if log_p.ndim != 1 or log_p.shape != log_q.shape or {log_p.dtype, log_q.dtype} != {np.dtype(np.float64)}:
        raise FileError("the draws that it was judged by do not fit together")
    if "num_start_modes" not in description:
        fit.record.modes = modes
    fit.record.judgement = restore(
        fit.key,
        fit.approximation,
        fit.target,
        (log_p, log_q, description["rounding"]),
        modes,
        views,
        edges[0] if edges else None,
        reach=description["reach"],
        evaluations=description["search_evaluations"],
        looked=description.get("looked", 0),
        **fit.run_facts(),
    )


def _empty_mode() -> Mode:
    """The structure of a mode."""
    view = View(np.zeros((0, 1)), np.zeros(0), np.zeros(0), 0.0, 0.0)
    return Mode(Gaussian.unchecked(np.zeros(1), np.zeros((1, 1))), view)


def _rebuild(name: str, template: Any, count: int, arrays: Arrays) -> Any:
    """So many trees like the template, with the numbered arrays as leaves; single numbers as floats."""
    leaves, structure = jax.tree.flatten(template)
    if count > len(arrays):
        raise FileError(f"it declares {count} {name}, but does not hold them")
    found = [arrays[f"{name}_{i}"] for i in range(count * len(leaves))]
    if any(array.dtype.kind != "f" for array in found):
        raise FileError(f"{name} are not of floats")
    flat = [array if array.ndim else float(array) for array in found]
    return tuple(jax.tree.unflatten(structure, flat[i : i + len(leaves)]) for i in range(0, len(flat), len(leaves)))


def _from_version_3(description: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """The same with the names of version 4. Before, all fits were of full Gaussians, and the loop was saved whole."""
    moved = {name: array for name, array in arrays.items() if not name.startswith(("carry_", "path_"))}
    means, chols = arrays["path_means"], arrays["path_chols"]
    pairs = {f"path_{i}": pair for i, pair in enumerate(zip(means, chols, strict=True))}
    pairs["approximation"] = moved.pop("mean"), moved.pop("chol")
    # The leaves of the loop: mean, chol, the geometry's state, the best mean and chol, and five numbers.
    leaves = [arrays[f"carry_{i}"] for i in range(sum(name.startswith("carry_") for name in arrays))]
    pairs["state"], pairs["best"] = (leaves[0], leaves[1]), (leaves[-7], leaves[-6])
    moved |= {f"carry_{i}": leaf for i, leaf in enumerate([*leaves[2:-7], *leaves[-5:]])}
    moved |= {
        f"{name}.{part}": x for name, pair in pairs.items() for part, x in zip(("mean", "chol"), pair, strict=True)
    }
    moved["path_steps"] = arrays["path_steps"]
    return description | {"family": {"name": Gaussian.family}}, Arrays(moved)


# ---- The parts of a method ------------------------------------------------------------------------------------------


def _describe_part(part: Any) -> dict[str, Any] | None:
    """The constructor's arguments of a part of a method that bures defines; None for one that it does not."""
    kind = type(part)
    if getattr(bures, kind.__name__, None) is not kind:
        return None
    if isinstance(part, Euclidean):
        if not part.is_adam:
            return None
        arguments = {"optimizer": part.learning_rate, "max_grad_norm": part.max_grad_norm}
    else:
        arguments = {name: getattr(part, name) for name in inspect.signature(kind).parameters}
    return {"type": kind.__name__, "arguments": arguments}


def _rebuild_part(name: str, description: dict[str, Any] | None, given: Any) -> Any:
    if given is not None:
        return given
    if description is None:
        raise fail(name, "passed to load", None, f"The file does not hold it: bures.load(path, ..., {name}=...).")
    return make_part(name, description)
