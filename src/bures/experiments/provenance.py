"""Where a result comes from: the code that made it, its commit, versions, machine and time.

The code is known by a fingerprint of what can change a figure: the tokens of the library's sources, without comments,
docstrings and layout, and of the modules that the experiment is made of. How results are shown is left out.
"""

import ast
import functools
import hashlib
import importlib.metadata
import io
import os
import platform
import subprocess
import time
import tokenize
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
SHOWN = ("cli", "looking", "page.py", "plot", "report.py", "reproduce.py")  # what shows results, not what makes them
STUDIES = ("experiments", "benchmarks")
KEEPING = ("protocol", "provenance", "sheet", "store")  # of `experiments`: how results are kept
_STUDY = tuple(f"bures.{study}" for study in STUDIES)
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def provenance(module: Any = None) -> dict[str, Any]:
    """Where a result of this module, or of an object of it, comes from."""
    packages = ("bures", "jax", "jaxlib", "numpy", "optax", "equinox")
    return {
        "code": code(module),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "modified": bool(_git("status", "--porcelain", "--", "src")),  # code that is not in the commit
        "versions": {name: importlib.metadata.version(name) for name in packages}
        | {"python": platform.python_version()},
        "machine": {"processor": _processor(), "system": platform.system(), "cores": os.cpu_count()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def code(module: Any = None) -> str:
    """The fingerprint of the library together with the modules of a study.

    Those are its own and all of `bures.experiments` and `bures.benchmarks` that it imports, and these in turn; pages
    and reports are left out.

    >>> import bures.experiments.eggbox as eggbox
    >>> len(code(eggbox)), code(eggbox) == code()
    (12, False)
    """
    name = getattr(module, "__name__", "") if hasattr(module, "__file__") else getattr(module, "__module__", "")
    return _code(name if name.startswith(_STUDY) else "")


@functools.cache  # as it was when it was first asked for, not after later edits
def _code(name: str) -> str:
    digest = hashlib.sha256(_library().encode())
    if name:
        for path in sorted(_parts(PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py"))):
            digest.update(f"{path.relative_to(PACKAGE).as_posix()} {_meaning(path)}\n".encode())
    return digest.hexdigest()[:12]


def _parts(path: Path) -> set[Path]:
    """A module of a study and those that it leads to."""
    found, todo = set(), [path] if path.is_file() else []
    while todo:
        path = todo.pop()
        if path in found or path.stem in (*KEEPING, "pages") or path.stem.endswith(("_report", "_page")):
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_STUDY):
                folder = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
                names = [folder, *(folder / alias.name for alias in node.names)]
                todo += [name.with_suffix(".py") for name in names if name.with_suffix(".py").is_file()]
    return found


@functools.cache
def _library() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.parts[0] not in (*STUDIES, *SHOWN):
            digest.update(f"{relative.as_posix()} {_meaning(path)}\n".encode())
    return digest.hexdigest()


def _meaning(path: Path) -> str:
    """A hash of a source's tokens but for comments, docstrings and layout; indentation counts by its depth."""
    digest, depth, begins = hashlib.sha256(), 0, True
    for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if token.type in _LAYOUT:
            begins = begins or token.type == tokenize.NEWLINE
        elif not (begins and token.type == tokenize.STRING):  # a string that begins a line does nothing
            digest.update(f"{depth if begins else ''} {token.string}\n".encode())
            begins = False
    return digest.hexdigest()


@functools.cache  # as it was when the code was loaded, not after later commits
def _git(*arguments: str) -> str:
    root = PACKAGE.parents[1]
    if not (root / ".git").exists():  # installed, not a checkout: another repository around it says nothing of bures
        return ""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor() or platform.machine())
