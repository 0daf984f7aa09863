"""What a command is to fit: a built-in target, a Stan program, or an object of a Python file."""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def find_target(text: str, dim: int | None, data: Path | None) -> tuple[Any, str]:
    """A built-in by name, a Stan program, or an object of a Python file."""
    import bures

    builtin: dict[str, Callable[[], Any]] = {
        "eggbox": bures.models.eggbox,
        "banana": lambda: bures.models.banana() if dim is None else bures.models.banana(dim=dim),
        "funnel": lambda: bures.models.funnel() if dim is None else bures.models.funnel(dim),
        "student_t": lambda: bures.models.student_t() if dim is None else bures.models.student_t(dim),
        "logistic": bures.models.census,
    }
    if text in builtin:
        if data is not None:
            raise ValueError(f"--data is for Stan programs and NumPyro models; {text} has none. Leave it out.")
        target = builtin[text]()
        _check_dim(target, text, dim)
        return target, text
    if data is not None and not data.is_file():
        raise ValueError(f"--data must be a JSON file that exists, but got {str(data)!r}. Check the path.")
    if text.endswith(".stan"):
        target = bures.frontends.from_stan(text, data)
        _check_dim(target, text, dim)
        return target, Path(text).stem
    path, separator, attribute = text.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise ValueError(
            f"target must be one of {', '.join(builtin)}, path/to/model.stan or path/to/file.py:name, "
            f"but got {text!r}. Check the spelling."
        )
    return _as_target(_load_attribute(Path(path), attribute), text, dim, data), attribute


def _as_target(found: Any, text: str, dim: int | None, data: Path | None) -> Any:
    """A Target from an object of a Python file; a model's library is known by what the file imported."""
    import bures

    is_pymc = "pymc" in sys.modules and isinstance(found, sys.modules["pymc"].Model)
    if data is not None and (is_pymc or dim is not None or isinstance(found, bures.Target)):
        raise ValueError(f"--data is for Stan programs and NumPyro models; {text} has its data already. Leave it out.")
    if is_pymc or isinstance(found, bures.Target):
        target = bures.frontends.from_pymc(found) if is_pymc else found
        _check_dim(target, text, dim)
        return target
    if dim is not None:
        return bures.Target(found, dim)
    if "numpyro" in sys.modules:
        return bures.frontends.from_numpyro(found, **({} if data is None else _arguments(data)))
    raise ValueError(f"{text} is a bare log density: give its dimension with --dim.")


def _arguments(data: Path) -> dict[str, Any]:
    """Arguments by name, lists as arrays."""
    try:
        found = json.loads(data.read_text())
        if isinstance(found, dict):
            return {name: np.asarray(value) if isinstance(value, list) else value for name, value in found.items()}
        reason = f"it holds a {type(found).__name__}"
    except ValueError as error:  # no JSON, no text, or lists of several lengths
        reason = str(error)
    raise ValueError(
        f"--data must be a JSON file of arguments by name, but {str(data)!r} is none: {reason.rstrip('.')}. "
        'For example {"y": [1.0, 2.0]}.'
    )


def _check_dim(target: Any, text: str, dim: int | None) -> None:
    """A dimension that is given is the target's."""
    if dim not in (None, target.dim):
        raise ValueError(f"--dim must be {target.dim}, that of {text}, but got {dim}. Leave it out.")


def _load_attribute(path: Path, attribute: str) -> Any:
    if not path.is_file():
        raise ValueError(f"target names the file {str(path)!r}, which does not exist. Check the path.")
    absolute = str(path.resolve())
    spec = importlib.util.spec_from_file_location(path.stem, absolute)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(absolute).parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute]
        line = f" at line {frames[-1].lineno}" if frames else ""
        raise ValueError(f"{path} could not be run{line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"{path} has no {attribute!r}; it has {', '.join(names) or 'nothing callable'}.")
    return getattr(module, attribute)
