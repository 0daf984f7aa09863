"""Libraries that only some parts of bures need, and the extra of the package that installs each."""

import importlib.util

EXTRAS = {
    "matplotlib": "plot",
    "typer": "cli",
    "rich": "cli",
    "arviz": "arviz",
    "arviz_base": "arviz",
    "xarray": "arviz",
    "blackjax": "mcmc",
    "numpyro": "numpyro",
    "pymc": "pymc",
    "bridgestan": "stan",
    "pymc_extras": "bench",
    "pyarrow": "parquet",
}


def remedy(error: ImportError) -> str | None:
    """One line that says which extra to install; None if no extra has what is missing.

    >>> remedy(ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.figure"))
    "This needs matplotlib: pip install 'bures[plot]'."
    """
    library = (error.name or "").partition(".")[0]
    return f"This needs {library}: pip install 'bures[{EXTRAS[library]}]'." if library in EXTRAS else None


def missing(*libraries: str) -> list[str]:
    """Those of these libraries that are not installed."""
    return [name for name in libraries if importlib.util.find_spec(name) is None]
