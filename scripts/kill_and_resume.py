"""Kill `bures reproduce` (SIGKILL) at random moments and resume it; the final tables must equal an uninterrupted run's.

    python scripts/kill_and_resume.py [--kills 20] [--seed 0] [EXPERIMENT ...]     default: eggbox banana

A run that ends before it is killed is compared at once, its results thrown away, and the next one begins afresh.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(names: list[str], out: Path) -> subprocess.Popen:
    """One process for all the experiments, so that a kill may fall between two of them."""
    code = "import sys; from bures.cli import app\nfor name in sys.argv[2:]:\n"
    code += "    app(['reproduce', name, '--quick', '--seeds', '1', '--out', sys.argv[1]], standalone_mode=False)"
    return subprocess.Popen([sys.executable, "-c", code, str(out), *names], stdout=subprocess.DEVNULL)


def tables(out: Path) -> dict[str, bytes]:
    """Everything that is shown: tables and figures."""
    wanted = (path for path in sorted(out.rglob("*")) if path.suffix in (".md", ".csv", ".png"))
    return {str(path.relative_to(out)): path.read_bytes() for path in wanted}


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
    began = time.monotonic()
    if start(options.names, folder / "whole").wait() != 0:
        sys.exit("FAILED: the uninterrupted run failed")
    whole = time.monotonic() - began
    expected = tables(folder / "whole")
    out, kills, finished = folder / "killed", 0, 0
    while kills < options.kills:
        process = start(options.names, out)
        try:
            process.wait(generator.uniform(0.5, min(whole / 3, 20)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            cells, half = len(list(out.rglob("*.json"))), len(list(out.rglob(".*")))
            sys.stdout.write(f"kill {kills}: {cells} files kept, {half} half-written\n")
            sys.stdout.flush()
            continue
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
