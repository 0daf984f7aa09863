"""Stan programs and data as users have them: text or files in, a compiled library and JSON text out."""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bures.check import check_unmasked, fail
from bures.frontends.common import import_extra

_INCLUDE = re.compile(r"^\s*#include\s+[<\"]?([^>\"\s]+)[>\"]?\s*$", re.MULTILINE)

_STANC = re.compile(r"\b(?:Syntax|Semantic) error\b|\bIll-typed\b|^Error in '.*\.stan'", re.MULTILINE)

# As shells and make say it: "/bin/sh: 1: g++: not found", "make: g++: No such file or directory".
_MISSING = re.compile(r"(?:^|: )([\w+./-]+): (?:(?:[Cc]ommand )?not found|No such file or directory)\s*$", re.MULTILINE)

_HEADERS = (".h", ".hpp")  # of the sources, not of the machine


def read_data(data: Any) -> str | None:
    """Data as JSON text."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            check_unmasked(f"data[{name!r}]", value)
        return json.dumps({name: np.asarray(value).tolist() for name, value in data.items()})
    if data is None or (isinstance(data, str) and data.lstrip().startswith("{")):
        return data
    if not isinstance(data, str | os.PathLike) or not Path(data).is_file():
        raise fail("data", "a dict, JSON text or a JSON file that exists", data, "Check the path.")
    return Path(data).read_text()


def find_library(program: Any, *, make_args: Sequence[str] = (), stanc_args: Sequence[str] = ()) -> Path:
    """Where the shared library of a program is once it is compiled: under a digest of all that it depends on.

    Each program has a file of its own, because a library that is already loaded cannot be loaded anew.
    """
    bridgestan = import_extra("bridgestan", "stan")
    text = _read_program(program)  # before BridgeStan is looked for, and perhaps downloaded
    home = os.path.realpath(_find_sources(bridgestan))
    # A library remembers where the libraries are that it was linked with: in BridgeStan's folder, or the environment's.
    parts = [text, *make_args, *stanc_args, bridgestan.__version__, home, sys.prefix]
    return _cache() / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]}.so"


def compile_program(program: Any, *, make_args: Sequence[str] = (), stanc_args: Sequence[str] = ()) -> Path:
    """The shared library of a program, compiled unless it is in the cache folder."""
    bridgestan = import_extra("bridgestan", "stan")
    library = find_library(program, make_args=make_args, stanc_args=stanc_args)
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            source = Path(folder) / "model.stan"
            source.write_text(_read_program(program))
            arguments = ["STAN_THREADS=True", *make_args]
            try:
                made = bridgestan.compile_model(source, make_args=arguments, stanc_args=list(stanc_args))
            except FileNotFoundError as error:
                raise _missing_tool(str(error.filename or "make")) from error
            except RuntimeError as error:
                raise _failure(str(error)) from error
            os.replace(made, library)  # in one move, so that another process never loads half of it
    return library


def _find_sources(bridgestan: Any) -> str:
    """The folder of BridgeStan's C++ sources, downloaded if need be."""
    try:
        home = bridgestan.compile.get_bridgestan_path()
        bridgestan.compile.verify_bridgestan_path(home)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"BridgeStan's C++ sources are missing, and nothing can be compiled without them: {reason}. Set the "
            "environment variable BRIDGESTAN to the folder that has them, or leave it unset where github.com can be "
            "reached, and they are downloaded."
        ) from error
    return home


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bures" / "stan"


def _read_program(program: Any) -> str:
    """The text of a program, with the files that it includes."""
    if isinstance(program, str) and "{" in program:
        return program
    if not isinstance(program, str | os.PathLike) or not str(program).endswith(".stan"):
        raise fail("program", "Stan code, a .stan file or a BridgeStan model", program, "Check the path.")
    path = Path(program)
    if not path.is_file():
        raise fail("program", "a .stan file that exists", str(program), "Check the path.")
    return _INCLUDE.sub(lambda match: (path.parent / match[1]).read_text(), path.read_text())


def _failure(text: str) -> ValueError:
    """Who is at fault when make fails: the program, a tool that is missing, or the tools that are there."""
    message = _compiler_message(text)
    if _STANC.search(message):
        return ValueError(f"The Stan program does not compile.\n{message}")
    missing = [tool for tool in _MISSING.findall(text.partition("stderr:\n")[2] or text) if not tool.endswith(_HEADERS)]
    if missing:
        return _missing_tool(missing[0])
    return ValueError(
        "BridgeStan could not build the Stan program, though there is no error in the program itself. Check the C++ "
        f"compiler, and BridgeStan with a program of its own. What make said:\n{message or text}"
    )


def _missing_tool(tool: str) -> ValueError:
    return ValueError(
        f"Stan programs are compiled, and {tool!r} was not found. Install make and a C++ compiler (Debian, Ubuntu: apt "
        "install build-essential; macOS: xcode-select --install; Windows: RTools), and see that they are on the PATH; "
        "stanc comes with BridgeStan's sources."
    )


def _compiler_message(text: str) -> str:
    """What stanc says, without the commands that make shows around it."""
    lines = text.partition("stderr:\n")[2].splitlines() or text.splitlines()
    return "\n".join(line for line in lines if not line.startswith("make")).strip()
