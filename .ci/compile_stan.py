"""Compile Stan programs with the stand-in for BridgeStan, two at a time; those that the user's cache has are kept.

More than half of a compilation is Stan's headers. They are precompiled, beside the stand-in's interface, into a folder
that is removed at the end: it has close to a gigabyte.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bures.frontends.stan_files import compile_program, find_library

missing = [program for program in sys.argv[1:] if not find_library(program).is_file()]
if missing:
    with tempfile.TemporaryDirectory() as headers, ThreadPoolExecutor(2) as pool:
        rules = Path(__file__).with_name("stan.mk")
        subprocess.run(["make", "-s", "-j2", "-f", rules, "shared", f"HEADERS={headers}"], check=True)
        os.environ["CXXFLAGS"] = f"-I{headers}"
        list(pool.map(compile_program, missing))
