"""A release in one command, `make release`: checks, builds, tries the wheel in an empty environment.

    python scripts/release.py [--offline] [--out dist]

1. The version in `src/bures/__init__.py` has a dated section in `CHANGELOG.md`, is that of `CITATION.cff`, and has no
   tag yet; nothing is uncommitted.
2. Source archive and wheel are built into `dist/`.
3. The wheel is installed with the extra `cli` into a new environment, where `bures --version`, `--help` and
   `fit eggbox` have to work. `--offline` leaves this step to `tests/test_wheel.py`, which needs no download.

It uploads nothing and tags nothing: the last lines say how.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def find_version(source: str) -> str:
    """The version that the package names."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    assert found is not None
    return found[1]


def problems(version: str, changelog: str, citation: str, tags: list[str], changed: str) -> list[str]:
    """What stands in the way of a release."""
    found = []
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md needs a section `## {version} (YYYY-MM-DD)`")
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE):
        found.append(f"CITATION.cff needs `version: {version}`")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} exists: raise the version in src/bures/__init__.py")
    if changed:
        found.append(f"there are changes that are not committed:\n{changed}")
    return found


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"FAILED: {' '.join(command)}\n{done.stdout}")
    return done.stdout


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel as a user would, and run what a newcomer runs."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", f"{folder}/env")
        run(f"{folder}/env/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[cli]")
        bures, place = f"{folder}/env/bin/bures", Path(folder)
        assert run(bures, "--version", cwd=place).strip() == f"bures {version}"
        run(bures, "--help", cwd=place)
        run(bures, "fit", "eggbox", "--no-progress", cwd=place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true", help="do not install the wheel with its dependencies")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    version = find_version((ROOT / "src" / "bures" / "__init__.py").read_text())
    texts = [(ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff")]
    found = problems(version, *texts, run("git", "tag").split(), run("git", "status", "--porcelain").rstrip())
    if found:
        sys.exit("\n".join([f"bures {version} cannot be released yet:", *(f"- {each}" for each in found)]))
    say(f"bures {version}: building into {options.out}")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(options.out))
    wheel = next(options.out.glob(f"bures-{version}-*.whl"))
    if not options.offline:
        say(f"trying {wheel.name} in an empty environment")
        try_wheel(wheel.resolve(), version)
    say(f"bures {version} is ready. What is left:\n  git tag v{version} && git push origin v{version}")
    say(f"  python -m twine upload {options.out}/bures-{version}*")


if __name__ == "__main__":
    main()
