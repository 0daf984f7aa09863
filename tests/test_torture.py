"""The short lane of `scripts/torture.py`: each section's limits on a few cases; the long one is run by hand."""

import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax, bures
target, key = bures.models.eggbox(), jax.random.key(0)
bures.fit(target, key=key, max_evaluations=50)
if (child := os.fork()) == 0:
    try:
        bures.fit(target, key=key)
    except RuntimeError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def section(name):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(f"tortures.{name}")
    finally:
        sys.path.pop(0)


def test_sections_hold_their_limits():
    command = [sys.executable, str(ROOT / "scripts" / "torture.py"), "--short", "files", "disk", "guard", "kills"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_bad_inputs_are_refused_by_name():
    """A few of the cases, in this process; the whole list, in workers, is for the long lane."""
    inputs = section("inputs")
    cases = list(inputs.all_cases())
    assert len(cases) > 1000 and not inputs._not_covered()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of others, before our own checks
        found = {label: inputs.judge(argument, call) for label, argument, call in cases[::17]}
    assert set(found.values()) == {"refused"}, found


def test_what_counts_as_a_clear_error():
    names_it = section("inputs").names_it
    assert names_it("dim", "dim must be a positive integer, but got 0. It is the length of z.")
    assert not names_it("dim", "K must be a positive integer, but got 0. Pass K=5.")
    assert not names_it("dim", "dim is wrong.")
    assert not names_it("x", "The truth value of an array is ambiguous. Use any.")


def test_a_fork_after_jax_has_run_is_refused_early():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["3"], done.stderr[-2000:]


def test_false_comfort_is_counted_over_all_fits_and_over_the_traps():
    traps = Counter({"false comfort": 1, "warned": 8, "right": 1})
    harmless = Counter({"right": 7, "false warning": 2, "false comfort": 1})
    shares = section("honesty")._shares({"traps": traps, "harmless": harmless})
    assert (shares["fits"], shares["traps"], shares["right"]) == (20, 10, 10)
    assert (shares["of all fits"], shares["of the traps"], shares["of the right fits"]) == (0.1, 0.1, 0.2)


def test_a_process_that_somebody_has_stopped_does_not_count_as_hanging():
    soak = section("soak")
    if not Path("/proc/self/stat").exists():
        return
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not soak._is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert soak._is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()


def test_results_of_a_stopped_benchmark_are_compared_without_clocks():
    kills = section("kills")
    one = {"cell": kills._without_clocks([{"seconds": 1.0, "ness": 0.5, "parts": {"start_seconds": 2.0, "n": 3}}])}
    other = {"cell": kills._without_clocks([{"seconds": 9.0, "ness": 0.5, "parts": {"start_seconds": 1.0, "n": 3}}])}
    assert kills._differing(one, other) == 0
    assert kills._differing(one, {"cell": [{"ness": 0.4, "parts": {"n": 3}}]}) == 1 == kills._differing(one, {})
