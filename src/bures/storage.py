"""Saving a fit to one file and loading it back: checked whole, never half-read, no pickle.

A file is a line that names the format and its version, a line with the SHA-256 of the rest, and a NumPy archive of
arrays with a JSON description. Writing goes through a temporary file in the same folder, then one rename.
Approximations are kept by the names of their own parts, so that a family without d × d arrays has none in its files.

The log density itself is not saved, only its values at a few points, by which `load` recognises it.
"""

import dataclasses
import hashlib
import inspect
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import bures
from bures.arrays import to_host
from bures.centring import change_by_numbers, numbers_of
from bures.check import as_array, check_part, fail
from bures.engine import Evaluator
from bures.family import AbstractApproximation, AbstractFamily, Gaussian, GaussianMixture, LowRankGaussian
from bures.fitting.judgement import Judgement, restore
from bures.fitting.result import Fit, Plan, Record, Refinement
from bures.geometry import Euclidean
from bures.loop import LoopState, Method, State, Trace
from bures.rows.subsampled import RowsUse
from bures.start import Mode, View
from bures.target import Target, as_target
from bures.target.blocks import equations

_FORMAT = "bures-fit"
_VERSION = 4
# Version 2 has the log density at the mean only; both 2 and 3 know full Gaussians alone.
_READABLE = ("2", "3", "4")
_PARTS = ("objective", "estimator", "geometry")
_KINDS: dict[str, type[AbstractApproximation]] = {
    kind.family: kind for kind in (Gaussian, LowRankGaussian, GaussianMixture)
}


_COORDINATES = "coordinates/"
_NUM_PROBES = 16
_NAMED = 10_000  # coordinates; of more than these the names are not saved


def save(fit: Fit, path: Any, *, judged: bool = True) -> None:
    """Write a fit to `path`, atomically: with its judgement, unless that is not to be made for it."""
    path = check_path("path", path)
    judgement = fit.judgement if judged else fit.record.judgement
    description = json.dumps(_description(fit) | _describe_judgement(judgement), default=_plain)
    arrays = {"description": np.frombuffer(description.encode(), np.uint8), **_arrays(fit), **_judged_arrays(judgement)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    payload = buffer.getvalue()
    header = f"{_FORMAT} {_VERSION}\n{hashlib.sha256(payload).hexdigest()}\n".encode()
    write_atomically(path, header + payload)


def _description(fit: Fit) -> dict[str, Any]:
    """Everything that is not an array, for JSON."""
    return {
        "dim": fit.target.dim,
        "names": fit.target.names if fit.target.dim <= _NAMED else None,
        "outcome": fit.outcome.name,
        "key_implementation": str(jax.random.key_impl(fit.key)),
        "method": {part: _describe_part(getattr(fit.method, part)) for part in _PARTS},
        "family": {"name": fit.approximation.family, **_static(fit.approximation)},
        "on_host": fit.loop.is_on_host,
        "start_evaluations": fit.record.start_evaluations,
        "grows": fit.record.grows,
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
        "rounding": judgement.diagnostics.rounding,
        "reach": judgement.diagnostics.coverage.reach,
        "num_modes": len(judgement.modes),
        "num_views": len(judgement.views),
    }


def _judged_arrays(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    drawn = {"log_p": judgement.log_p, "log_q": judgement.log_q}
    return drawn | _numbered("modes", judgement.modes) | _numbered("views", judgement.views)


def _arrays(fit: Fit) -> dict[str, Any]:
    if fit.record.probes is None:  # once for all checkpoints of a fit
        probes = _probes(fit.approximation)
        fit.record.probes = probes, _log_densities(fit.target, probes)
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


def check_path(argument: str, path: Any) -> Path:
    """A path, as text or as an object that stands for one."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise fail(argument, "a path", path, "For example 'model.fit'.")
    return Path(os.fsdecode(path))


def write_atomically(path: Any, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it."""
    path = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _cannot_write(path: Path, error: OSError) -> OSError:
    reason = error.strerror or str(error)
    return OSError(f"path must be a file that can be written, but {str(path)!r} cannot: {reason}. Choose another.")


def load(path: Any, *, target: Any, dim: int | None = None, family: AbstractFamily | None = None, **parts: Any) -> Fit:
    """Read a fit back, for the target it was fitted to.

    Another target is refused: its log density must be the saved one at the mean and at points around it. A constant
    added to the log density makes another target, too, because bounds and evidence change with it.

    An optimiser of your own in `Euclidean`, or an objective, estimator, geometry or family defined outside bures, is
    not in the file: pass it again as `objective=`, `estimator=`, `geometry=` or `family=`.
    """
    target = as_target(target, dim)
    if unknown := set(parts) - set(_PARTS):
        raise fail("load's options", f"among {(*_PARTS, 'family')}", sorted(unknown), "Check the spelling.")
    description, arrays = _read(Path(path))
    if description["dim"] != target.dim:
        raise fail("target", f"the one the fit was made for, on R^{description['dim']}", target.dim, "Pass that one.")
    if _is_double(arrays) and not jax.config.jax_enable_x64:
        raise ValueError(
            f"{str(path)!r} holds a float64 fit, but JAX runs in float32. "
            "Call jax.config.update('jax_enable_x64', True) first."
        )
    target = _in_coordinates(target, arrays)
    method = Method(**{part: _rebuild_part(part, description["method"][part], parts.get(part)) for part in _PARTS})
    if "probes" in arrays:
        _check_same_density(target, arrays["probes"], arrays["log_densities"])
    else:
        mean = arrays["approximation.mean"]
        _check_same_density(target, mean[None], np.array([description["log_density_at_mean"]]))
    kind = _kind(path, description["family"]["name"], family, target.dim)

    def approximation(name: str, put: Any = as_array) -> AbstractApproximation:
        return _rebuild_approximation(kind, name, description["family"], arrays, put)

    put = np.asarray if description.get("on_host", False) else as_array
    fit = Fit(
        approximation=approximation("approximation"),
        trace=Trace(**{name[6:]: array for name, array in arrays.items() if name.startswith("trace_")}),
        path=tuple((int(step), approximation(f"path_{i}")) for i, step in enumerate(arrays["path_steps"])),
        target=target,
        method=method,
        key=jax.random.wrap_key_data(as_array(arrays["key"]), impl=description["key_implementation"]),
        loop=_rebuild_loop(method, approximation("state", put), approximation("best", put), arrays, put),
        outcome_code=bures.Outcome[description["outcome"]].value,
        record=_rebuild_record(description, arrays),
    )
    if "log_p" in arrays:
        _restore_judgement(fit, description, arrays)
    return fit


def _in_coordinates(target: Target, arrays: dict[str, np.ndarray]) -> Target:
    """The target in the learned coordinates of the saved fit, if it was given in the model's own."""
    named = {name: array for name, array in arrays.items() if name.startswith(_COORDINATES)}
    numbers = {name.removeprefix(_COORDINATES): array for name, array in named.items()}
    return target if not numbers or numbers_of(target) else change_by_numbers(target, numbers)


def _is_double(arrays: dict[str, np.ndarray]) -> bool:
    return any(array.dtype == np.float64 for name, array in arrays.items() if name.startswith("approximation."))


def _rebuild_record(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    rounds, evaluations = description.get("mixed", (0, 0))
    plan = description.get("plan")
    modes = _rebuild("start_modes", (_empty_mode(),) * description.get("num_start_modes", 0), arrays)
    scale = Gaussian.unchecked(arrays["scale.mean"], arrays["scale.chol"]) if "scale.mean" in arrays else None
    return Record(
        modes=modes,
        scale=scale,
        cut_evaluations=description.get("cut_evaluations", 0),
        plan=None if plan is None else Plan(*plan),
        rows=None if description.get("rows") is None else RowsUse(**description["rows"]),
        probes=(arrays["probes"], arrays["log_densities"]) if "probes" in arrays else None,
        start_evaluations=description.get("start_evaluations", 0),
        grows=description.get("grows", False),
        mixed_rounds=rounds,
        mixed_evaluations=evaluations,
        refinement=None if description.get("refinement") is None else Refinement(*description["refinement"]),
    )


def _kind(path: Any, name: str, family: Any, dim: int) -> type[AbstractApproximation]:
    """The class of the saved approximation."""
    if family is None:
        if name not in _KINDS:
            raise ValueError(
                f"{str(path)!r} holds a fit of the family {name!r}, but this bures knows {' and '.join(_KINDS)}. "
                "Pass a family of your own as family=, or load it with the bures it was saved with."
            )
        return _KINDS[name]
    check_part("family", family, AbstractFamily, "bures.LowRank()")
    kind = type(family.standard(min(dim, 2)))
    if kind.family != name:
        raise fail("family", f"that of the saved fit, {name!r}", family, "Leave it out for a family of bures.")
    return kind


def _rebuild_approximation(
    kind: type[AbstractApproximation], name: str, static: dict[str, Any], arrays: dict[str, np.ndarray], put: Any
) -> AbstractApproximation:
    """A member of a family from its arrays, as they were; files are checked by their digest."""
    q = object.__new__(kind)
    for field in dataclasses.fields(kind):
        saved = arrays.get(f"{name}.{field.name}")
        if saved is None and field.name not in static:
            raise ValueError(f"The saved fit cannot be read: it does not hold {name}.{field.name}.")
        object.__setattr__(q, field.name, static[field.name] if saved is None else put(saved))
    return q


def _rebuild_loop(
    method: Method, q: AbstractApproximation, best: AbstractApproximation, arrays: dict[str, np.ndarray], put: Any
) -> LoopState:
    """The state of the loop; its arrays must be those that the geometry makes."""
    template = LoopState.start(State(q, method.geometry.init(q)))
    leaves, structure = jax.tree.flatten(_without_approximations(template))
    saved = [arrays.get(f"carry_{i}") for i in range(len(leaves))]
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


def _restore_judgement(fit: Fit, description: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """The judgement as it was saved, from its weights and what the search saw."""
    empty = _empty_mode()
    modes = _rebuild("modes", (empty,) * description["num_modes"], arrays)
    views = _rebuild("views", (empty.view,) * description["num_views"], arrays)
    if "num_start_modes" not in description:
        fit.record.modes = modes
    fit.record.judgement = restore(
        fit.key,
        fit.approximation,
        fit.target,
        (arrays["log_p"], arrays["log_q"], description["rounding"]),
        modes,
        views,
        reach=description["reach"],
        evaluations=description["search_evaluations"],
        **fit.run_facts(),
    )


def _empty_mode() -> Mode:
    """The structure of a mode."""
    view = View(np.zeros((0, 1)), np.zeros(0), np.zeros(0), 0.0, 0.0)
    return Mode(Gaussian.unchecked(np.zeros(1), np.zeros((1, 1))), view)


def _rebuild(name: str, template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The tree of a template with the numbered arrays as leaves; single numbers as floats."""
    leaves, structure = jax.tree.flatten(template)
    found = [arrays[f"{name}_{i}"] for i in range(len(leaves))]
    return jax.tree.unflatten(structure, [array if array.ndim else float(array) for array in found])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and arrays of a file whose every byte has been checked."""
    content = path.read_bytes()
    first, _, rest = content.partition(b"\n")
    digest, separator, payload = rest.partition(b"\n")
    name, _, version = first.partition(b" ")
    if name != _FORMAT.encode() or not separator:
        raise ValueError(f"{str(path)!r} is not a saved fit of bures, or its beginning is lost.")
    if version.decode(errors="replace") not in _READABLE:
        raise ValueError(
            f"{str(path)!r} has format version {version.decode(errors='replace')!r}, but this bures reads "
            f"{' and '.join(_READABLE)}. Load it with the bures it was saved with."
        )
    if hashlib.sha256(payload).hexdigest().encode() != digest:
        raise ValueError(f"{str(path)!r} was cut short or changed since it was saved; nothing of it was read.")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        description = json.loads(arrays.pop("description").tobytes())
        return (description, arrays) if version == b"4" else _from_version_3(description, arrays)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a saved fit: {error}.") from error


def _from_version_3(
    description: dict[str, Any], arrays: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
    return description | {"family": {"name": Gaussian.family}}, moved


# ---- Recognising a target -------------------------------------------------------------------------------------------


def _probes(q: AbstractApproximation) -> np.ndarray:
    """The mean and points around it in fixed directions, up to twice as far out as draws are."""
    directions = np.random.default_rng(0).standard_normal((_NUM_PROBES, q.noise_dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.linspace(0, 2 * np.sqrt(q.noise_dim), _NUM_PROBES)
    host = to_host(q)
    return host.push(radii[:, None] * directions).astype(host.mean.dtype)


@eqx.filter_jit
def _values(target: Target, points: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return target.value(points)


def _log_densities(target: Target, points: np.ndarray) -> np.ndarray:
    if getattr(target.log_density, "one_pass", False):  # by rows: without a callback from a compiled program
        return Evaluator(target, dtype=points.dtype).value(points)
    return np.asarray(_values(target, as_array(points)))


def _check_same_density(target: Target, points: np.ndarray, saved: np.ndarray) -> None:
    """The log density at the saved points must be what it was, up to rounding."""
    found = _log_densities(target, points)
    sizes = np.abs(saved[np.isfinite(saved)])
    size = max(1.0, float(np.median(sizes))) if sizes.size else 1.0
    with np.errstate(invalid="ignore"):
        near = np.abs(found - saved) <= _rounding(target, points) * np.maximum(size, np.abs(saved))
    same = np.where(np.isfinite(saved), near, (found == saved) | (np.isnan(found) & np.isnan(saved)))
    if not np.all(same):
        i = int(np.argmin(same))
        raise ValueError(
            f"target must be the one the fit was made for, but its log density is another at {np.sum(~same)} of "
            f"{same.size} points near the fitted mean: {found[i]} at the first, where the file has {saved[i]}. Pass "
            "the same target; a constant added to the log density counts."
        )


def _rounding(target: Target, points: np.ndarray) -> float:
    """How far two runs of one log density may differ, relative to its size: by the lowest precision it computes in."""
    jaxpr = jax.make_jaxpr(target.value)(jax.ShapeDtypeStruct(points.shape, points.dtype))
    made = {getattr(out.aval, "dtype", None) for equation in equations(jaxpr) for out in equation.outvars}
    floats = [dtype for dtype in made | {points.dtype} if dtype is not None and jnp.issubdtype(dtype, jnp.floating)]
    return 0.03 * max(float(jnp.finfo(dtype).eps) for dtype in floats) ** 0.5  # 1e-5 in float32, 4e-10 in float64


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
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in description["arguments"].items()}
    return getattr(bures, description["type"])(**arguments)
