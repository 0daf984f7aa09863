"""The wheel in environments that have what it asks for and nothing else: every command works, or names the extra."""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bures

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the sources, so that nothing is left beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def required(own, extras):
    """The distributions that the wheel's own requirements lead to, with these extras."""
    found, todo = set(), [(text, ("", *extras)) for text in own]
    while todo:
        text, extras = todo.pop()
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in found:
            found.add(key)
            asked = own if key[0] == "bures" else importlib.metadata.distribution(requirement.name).requires or []
            todo += [(each, ("", *requirement.extras)) for each in asked]
    return {name for name, _ in found} - {"bures"}


class Environment:
    """A virtual environment with the wheel and links to what it asks for, as it is installed here, and nothing else."""

    def __init__(self, folder, wheel, extras=()):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.programs, (site,) = folder / "bin", folder.glob("lib/python*/site-packages")
        install = [sys.executable, "-m", "pip", "--python", str(self.programs / "python"), "install", "--quiet"]
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
        own = importlib.metadata.PathDistribution(next(site.glob("bures-*.dist-info"))).requires or []
        for name in required(own, extras):
            distribution = importlib.metadata.distribution(name)
            tops = {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
            for top in tops:
                if not (site / top).exists() and not top.endswith(".pth"):
                    (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())

    def run(self, line, cwd, program="bures"):
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self.programs / program), *shlex.split(line)]
        return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=300, check=False)

    def succeeds(self, line, cwd, program="bures"):
        done = self.run(line, cwd, program)
        assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def refuses(self, line, cwd):
        """The one line that a command ends with."""
        done = self.run(line, cwd)
        assert done.returncode == 2, f"{line}: {done.stdout}\n{done.stderr}"
        (said,) = done.stderr.strip().splitlines()
        return said


@pytest.fixture(scope="module")
def full(wheel, tmp_path_factory):
    """As the README installs it."""
    return Environment(tmp_path_factory.mktemp("full") / "env", wheel, ["cli"])


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("bare") / "env", wheel)


def test_commands_of_the_wheel(full, tmp_path):
    assert full.succeeds("--version", tmp_path) == f"bures {bures.__version__}\n"
    shown = full.succeeds("--help", tmp_path)
    assert all(command in shown for command in ("fit", "sample", "reproduce", "report", "bench", "--show-completion"))
    shown = full.succeeds("fit logistic", tmp_path)
    assert "Pareto" in shown and (tmp_path / "bures-output" / "logistic.png").is_file()
    assert "5 cells" in full.succeeds("reproduce eggbox --quick --seeds 1", tmp_path)
    assert "wrote" in full.succeeds("report results", tmp_path)
    assert (tmp_path / "results" / "report.html").is_file()
    shown = full.succeeds("bench models --only challenger --method bures.fit --seeds 1", tmp_path)
    assert "0/1 challenger" in shown and (tmp_path / "results" / "models" / "full" / "models.html").is_file()


def test_commands_of_the_wheel_name_the_extra_they_need(full, tmp_path):
    assert "pip install 'bures[bench]'" in full.refuses("bench posteriordb", tmp_path)
    assert "pip install 'bures[arviz]'" in full.refuses("sample eggbox", tmp_path)
    (tmp_path / "model.py").write_text("import numpyro\n")
    assert "numpyro" in full.refuses("fit model.py:model", tmp_path)
    assert "pip install 'bures[stan]'" in full.refuses("fit model.stan", tmp_path)


FIT = """
import sys, jax, bures
fit = bures.fit(lambda z: -(z @ z) / 2, dim=2, key=jax.random.key(0), progress=True)
print(fit)
assert not {"typer", "rich", "matplotlib", "arviz"} & set(sys.modules)
try:
    bures.plot.summary
except ImportError as error:
    print(error)
"""


def test_the_library_of_the_wheel_needs_no_extra(bare, tmp_path):
    (tmp_path / "program.py").write_text(FIT)
    assert "pip install 'bures[plot]'" in bare.succeeds("program.py", tmp_path, "python")
    assert bare.succeeds("--version", tmp_path) == f"bures {bures.__version__}\n"
    for line in ("--help", "fit logistic", "reproduce eggbox --quick", "report", "bench speed"):
        assert "pip install 'bures[cli]'" in bare.refuses(line, tmp_path)


def test_the_wheel_has_all_it_reads(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = Path(bures.__file__).parent
    here = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {f"bures/{path.relative_to(package).as_posix()}" for path in here} <= names
    assert {"bures/py.typed", "bures/experiments/eggbox.py", "bures/benchmarks/schools.stan"} <= names
