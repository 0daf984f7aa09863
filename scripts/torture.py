"""Torture bures: `python scripts/torture.py [section ...] [--short] [--out results.json]`.

Sections: inputs, files, kills, disk, memory, soak, honesty, bits, guard; all of them by default. Each prints its counts
and whether its limits hold; `--short` runs the lane that the tests run. The exit status says whether all limits hold.
"""

import argparse
import functools
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

SECTIONS = ("inputs", "files", "kills", "disk", "memory", "soak", "honesty", "bits", "guard")


def run_section(name: str, short: bool) -> dict:
    """The counts of a section, with `holds` for each limit."""
    began = time.perf_counter()
    found = importlib.import_module(f"tortures.{name}").run(short)
    return found | {"seconds": round(time.perf_counter() - began, 1), "short": short}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section")
    parser.add_argument("--short", action="store_true", help="the lane that the tests run")
    parser.add_argument("--out", type=Path, help="a JSON file that the counts are added to, by section")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    holds = True
    say = functools.partial(print, flush=True)
    for name in options.sections or SECTIONS:
        found = run_section(name, options.short)
        say(f"\n{name}:")
        for key, value in found.items():
            say(f"  {key}: {json.dumps(value, ensure_ascii=False)}")
        holds &= all(found["holds"].values())
        if options.out is not None:
            _note(options.out, name, found)
    say("\nall limits hold" if holds else "\nNOT all limits hold")
    return 0 if holds else 1


def _note(out: Path, name: str, found: dict) -> None:
    from bures.experiments.provenance import provenance
    from bures.files import write_atomically

    kept = json.loads(out.read_text()) if out.exists() else {}
    kept[name] = found | {"made by": provenance()}
    write_atomically(out, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
