"""The draws of a climb as files and as a table, for the command line."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bures.check import fail
from bures.storage import write_atomically

_ROWS = 30  # of the table, at the most
_ENGINES = {".nc": ("h5netcdf", "netCDF4"), ".zarr": ("zarr",)}  # packages of which one has to be there


def check_file(path: Path) -> None:
    """Check before any work is done that draws can be written there."""
    if path.suffix not in (*_ENGINES, ".npz"):
        raise fail("--out", "a name that ends in .nc, .zarr or .npz", str(path), "For example draws.npz.")
    engines = _ENGINES.get(path.suffix, ())
    if engines and _engine(path) is None:
        raise ImportError(f"A {path.suffix} file needs {engines[0]}: pip install {engines[0]}, or write a .npz file.")
    if not path.absolute().parent.is_dir():
        raise fail("--out", "in a folder that exists", str(path), "Make the folder first.")


def write_tree(tree: Any, path: Path) -> None:
    """All groups to netCDF or zarr, or the posterior and its attributes to NumPy's format."""
    plain = tree.copy()
    for node in plain.subtree:  # files take numbers and text only
        node.attrs = {name: _plain(value) for name, value in node.attrs.items()}
    if path.suffix == ".zarr":
        plain.to_zarr(path, mode="w")
    elif path.suffix == ".nc":
        plain.to_netcdf(path, engine=_engine(path))
    else:
        import io

        buffer = io.BytesIO()
        variables = {str(name): value.values for name, value in tree.posterior.data_vars.items()}
        np.savez_compressed(buffer, **variables, attributes=json.dumps(tree.attrs))
        write_atomically(path, buffer.getvalue())


def _engine(path: Path) -> Any:
    return next((name for name in _ENGINES[path.suffix] if importlib.util.find_spec(name)), None)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value) if isinstance(value, dict) else value


def summary_rows(tree: Any) -> Iterator[tuple[str, ...]]:
    """Name, mean, standard deviation and quantiles of each element of the posterior, as text."""
    for count, (name, draws) in enumerate(_elements(tree)):
        if count == _ROWS:
            yield ("...", *([""] * 5))
            return
        quantiles = np.quantile(draws, [0.05, 0.5, 0.95])
        yield name, *(f"{value:.4g}" for value in (np.mean(draws), np.std(draws), *quantiles))


def _elements(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    for name, variable in tree.posterior.data_vars.items():
        values = variable.values.reshape(-1, *variable.shape[2:])
        for index in np.ndindex(values.shape[1:]):
            label = f"{name}[{','.join(map(str, index))}]" if index else str(name)
            yield label, values[(slice(None), *index)]
