"""Saving a fit to one file and loading it back: checked whole, never half-read, no pickle.

A file is a line that names the format and its version, a line with the SHA-256 of the rest, and a NumPy archive of
arrays with a JSON description. Writing goes through a temporary file in the same folder, then one rename.
"""

import hashlib
import inspect
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.check import fail
from bures.fitting import Fit
from bures.gaussian import Gaussian
from bures.geometry import Euclidean
from bures.loop import Carry, Method, State, Trace
from bures.target import Target, as_target

_FORMAT = "bures-fit"
_VERSION = 2
_PARTS = ("objective", "estimator", "geometry")


def save(fit: Fit, path: Any) -> None:
    """Write a fit to `path`, atomically."""
    q = fit.approximation
    description = {
        "dim": q.dim,
        "names": fit.target.names,
        "outcome": fit.outcome.name,
        "log_density_at_mean": float(fit.target.log_density(q.mean)),
        "key_implementation": str(jax.random.key_impl(fit.key)),
        "method": {part: _describe_part(getattr(fit.method, part)) for part in _PARTS},
    }
    arrays = {
        "description": np.frombuffer(json.dumps(description).encode(), np.uint8),
        "key": jax.random.key_data(fit.key),
        "mean": q.mean,
        "chol": q.chol,
        "path_steps": np.array([step for step, _ in fit.path]),
        "path_means": np.stack([np.asarray(point.mean) for _, point in fit.path]),
        "path_chols": np.stack([np.asarray(point.chol) for _, point in fit.path]),
        **{f"trace_{name}": fit.trace[name] for name in fit.trace.names},
        **{f"carry_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(fit.carry))},
    }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    payload = buffer.getvalue()
    header = f"{_FORMAT} {_VERSION}\n{hashlib.sha256(payload).hexdigest()}\n".encode()
    write_atomically(path, header + payload)


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


def load(path: Any, *, target: Any, dim: int | None = None, **parts: Any) -> Fit:
    """Read a fit back, for the target it was fitted to.

    An optimiser of your own in `Euclidean`, or an objective, estimator or geometry defined outside bures, is not in
    the file: pass it again as `objective=`, `estimator=` or `geometry=`.
    """
    target = as_target(target, dim)
    if unknown := set(parts) - set(_PARTS):
        raise fail("load's options", f"among {_PARTS}", sorted(unknown), "Check the spelling.")
    description, arrays = _read(Path(path))
    if description["dim"] != target.dim:
        raise fail("target", f"the one the fit was made for, on R^{description['dim']}", target.dim, "Pass that one.")
    if arrays["mean"].dtype == np.float64 and not jax.config.jax_enable_x64:
        raise ValueError(
            f"{str(path)!r} holds a float64 fit, but JAX runs in float32. "
            "Call jax.config.update('jax_enable_x64', True) first."
        )
    method = Method(**{part: _rebuild_part(part, description["method"][part], parts.get(part)) for part in _PARTS})
    q = Gaussian(arrays["mean"], arrays["chol"])
    _check_same_density(target, q, description["log_density_at_mean"])
    template = Carry.start(State(q, method.geometry.init(q)))
    leaves, structure = jax.tree.flatten(template)
    saved = [arrays.get(f"carry_{i}") for i in range(len(leaves))]
    if f"carry_{len(leaves)}" in arrays or any(
        new is None or new.shape != old.shape or new.dtype != old.dtype for new, old in zip(saved, leaves, strict=True)
    ):
        raise fail("geometry", "the one of the saved fit", method.geometry, "Pass the same optimiser as then.")
    steps = zip(arrays["path_steps"], arrays["path_means"], arrays["path_chols"], strict=True)
    return Fit(
        approximation=q,
        trace=Trace(**{name[6:]: array for name, array in arrays.items() if name.startswith("trace_")}),
        path=tuple((int(step), Gaussian(mean, chol)) for step, mean, chol in steps),
        target=target,
        method=method,
        key=jax.random.wrap_key_data(jnp.asarray(arrays["key"]), impl=description["key_implementation"]),
        carry=jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved]),
        outcome_code=bures.Outcome[description["outcome"]].value,
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and arrays of a file whose every byte has been checked."""
    content = path.read_bytes()
    first, _, rest = content.partition(b"\n")
    digest, separator, payload = rest.partition(b"\n")
    name, _, version = first.partition(b" ")
    if name != _FORMAT.encode() or not separator:
        raise ValueError(f"{str(path)!r} is not a saved fit of bures, or its beginning is lost.")
    if version != str(_VERSION).encode():
        raise ValueError(
            f"{str(path)!r} has format version {version.decode(errors='replace')!r}, but this bures reads "
            f"{_VERSION}. Load it with the bures it was saved with."
        )
    if hashlib.sha256(payload).hexdigest().encode() != digest:
        raise ValueError(f"{str(path)!r} was cut short or changed since it was saved; nothing of it was read.")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return json.loads(arrays.pop("description").tobytes()), arrays
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a saved fit: {error}.") from error


def _check_same_density(target: Target, q: Gaussian, saved: float) -> None:
    """A cheap guard against resuming on another density: the value at the approximation's mean."""
    value = float(target.log_density(q.mean))
    if not np.isclose(value, saved, rtol=1e3 * float(jnp.finfo(q.mean.dtype).eps), equal_nan=True):
        raise ValueError(
            f"target must be the one the fit was made for, but its log density at the fitted mean is {value}, "
            f"where the file has {saved}. Pass the same target."
        )


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
