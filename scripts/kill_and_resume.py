"""Kill `bures reproduce` (SIGKILL) at random moments and resume it; the final tables must equal an uninterrupted run's.

    python scripts/kill_and_resume.py [--kills 20] [--seed 0] [EXPERIMENT ...]     default: eggbox banana

A kill comes at any moment after the start, or shortly after a new cell was kept, so that runs make progress between
kills on a busy machine, too. A run that ends before it is killed is compared at once and deleted.
"""

import argparse
import contextlib
import lzma
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bures.experiments.store import ADDED, TABLE


def start(names: list[str], out: Path) -> subprocess.Popen:
    """One process for all the experiments, so that a kill may fall between two of them."""
    code = "import sys; from bures.cli import app\nfor name in sys.argv[2:]:\n"
    code += "    app(['reproduce', name, '--quick', '--seeds', '1', '--out', sys.argv[1]], standalone_mode=False)"
    return subprocess.Popen([sys.executable, "-c", code, str(out), *names], stdout=subprocess.DEVNULL)


def tables(out: Path) -> dict[str, bytes]:
    """Everything that is shown: tables and figures."""
    wanted = (path for path in sorted(out.rglob("*")) if path.suffix in (".md", ".csv", ".webp"))
    return {str(path.relative_to(out)): path.read_bytes() for path in wanted}


def cells(out: Path) -> int:
    """Lines of the tables that are there, and whole lines added to them."""
    found = 0
    for path in (*out.rglob(TABLE), *out.rglob(ADDED)):
        with contextlib.suppress(FileNotFoundError):  # just packed
            content = path.read_bytes()
            found += (lzma.decompress(content) if path.name == TABLE else content).count(b"\n")
    return found


def wait_a_while(process: subprocess.Popen, out: Path, generator: random.Random) -> None:
    """One time in four, a moment of the start-up; else until another cell has been kept, and a random moment more."""
    before = cells(out)
    if generator.random() < 0.25:
        time.sleep(generator.uniform(0, 10))
        return
    while cells(out) == before and process.poll() is None:
        time.sleep(0.005)
    time.sleep(generator.choice((0.01, 0.1, 1, 5)) * generator.random())


def compare(out: Path, expected: dict[str, bytes]) -> None:
    found = tables(out)
    differing = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    if differing:
        sys.exit(f"FAILED: {', '.join(sorted(differing))} differ; see {out}")
    if leftover := list(out.rglob(".*")):
        sys.exit(f"FAILED: half-written files are left: {leftover}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["eggbox", "banana"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="bures-kill-"))
    if start(options.names, folder / "whole").wait() != 0:
        sys.exit("FAILED: the uninterrupted run failed")
    expected = tables(folder / "whole")
    out, kills, finished = folder / "killed", 0, 0
    while kills < options.kills:
        process = start(options.names, out)
        wait_a_while(process, out, generator)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            kills += 1
            kept, half = cells(out), len(list(out.rglob(".*"))) if out.exists() else 0
            sys.stdout.write(f"kill {kills}: {kept} cells kept, {half} half-written\n")
            sys.stdout.flush()
        else:
            compare(out, expected)
            finished += 1
            shutil.rmtree(out)
    if start(options.names, out).wait() != 0:
        sys.exit("FAILED: the last run failed")
    compare(out, expected)
    shutil.rmtree(folder)
    sys.stdout.write(
        f"{kills} kills, {finished + 1} finished runs: {len(expected)} tables and figures equal each time\n"
    )


if __name__ == "__main__":
    main()
