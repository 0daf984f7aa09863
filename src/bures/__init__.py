"""Gaussian variational inference on Bures–Wasserstein space, with importance-weighted objectives."""

import importlib

__version__ = "0.1.0"

# The public names are listed in __init__.pyi. `import bures` loads nothing: at the first use of a name the list is
# read, and the name is fetched from its module (PEP 562). A public function may not have the name of a module of the
# package, because importing that module would put it in the function's place.
_PACKAGES = ("bures", "bures.frontends")  # what the list imports from these are modules


def _read_list() -> tuple[dict[str, str], list[str]]:
    """The module of each public name, and the names that are not modules themselves."""
    import ast
    import importlib.resources

    source = importlib.resources.files("bures").joinpath("__init__.pyi").read_text(encoding="utf-8")
    homes, names = {}, []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom):
            listed = [alias.name for alias in statement.names]
            if statement.module in _PACKAGES:
                homes |= {name: f"{statement.module}.{name}" for name in listed}
            else:
                homes |= dict.fromkeys(listed, statement.module)
                names += listed
    return homes, names


def __getattr__(name):
    if "_HOMES" not in globals():
        globals()["_HOMES"], globals()["__all__"] = _read_list()
    if name in globals():  # _HOMES or __all__, as asked for
        return globals()[name]
    home = globals()["_HOMES"].get(name)
    if home is None:
        raise AttributeError(f"module 'bures' has no attribute {name!r}")
    module = importlib.import_module(home)
    globals()[name] = value = getattr(module, name) if name in globals()["__all__"] else module
    return value


def __dir__():
    __getattr__("_HOMES")  # reads the list
    return sorted({*globals(), *globals()["_HOMES"]})
