"""The public names: each is what its module has, type checkers see the same ones, and nothing loads before its use."""

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bures


@pytest.mark.parametrize(("name", "home"), bures._HOMES.items())
def test_a_public_name_is_what_its_module_has(name, home):
    module = importlib.import_module(home)
    found = getattr(bures, name)
    assert found is (module if isinstance(found, ModuleType) else getattr(module, name))
    assert name in dir(bures)
    assert (name in bures.__all__) == (not isinstance(found, ModuleType))


def test_the_list_re_exports_every_name():
    # `name as name` is what makes an import of a stub public to type checkers.
    stub = ast.parse(Path(bures.__file__).with_suffix(".pyi").read_text())
    aliases = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {alias.name: alias.asname for alias in aliases} == {name: name for name in bures._HOMES}
    assert len(aliases) == len(bures._HOMES)


def test_a_star_import_has_the_names_that_are_not_modules():
    names: dict = {}
    exec("from bures import *", names)
    assert set(bures.__all__) <= set(names)
    assert names["Target"] is bures.Target


def test_the_version_is_that_of_the_package():
    assert bures.__version__ == importlib.metadata.version("bures")
    assert (Path(bures.__file__).parent / "py.typed").is_file()


def test_modules_do_not_take_the_place_of_other_names():
    # Importing bures.x sets the attribute x of the package to that module, whatever it was.
    package = Path(bures.__file__).parent
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert not modules & set(bures.__all__)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'bures' has no attribute 'fti'"):
        bures.fti  # noqa: B018


def modules_after(program: str) -> set[str]:
    """What a fresh process has imported after running a program."""
    program += "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_bures_loads_nothing_else():
    loaded = modules_after("import bures; dir(bures)")
    assert {name for name in loaded if name.startswith("bures")} == {"bures"}
    assert not {"jax", "numpy", "equinox", "jaxtyping", "optax", "scipy", "matplotlib"} & loaded


def test_help_loads_no_jax():
    program = """
import sys
from bures import cli
sys.argv = ["bures", "--help"]
try:
    cli.main()
except SystemExit:
    pass
"""
    assert not {"jax", "equinox", "optax", "scipy", "matplotlib"} & modules_after(program)


def test_a_fit_loads_neither_plots_nor_front_ends():
    loaded = modules_after("import bures; bures.fit")
    assert "bures.fitting" in loaded
    assert not {"bures.plot", "bures.frontends", "bures.models", "matplotlib", "optax"} & loaded
