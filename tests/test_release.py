"""What a contributor finds: the release's checks, the hosted runner's script, and the hooks."""

import importlib.util
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

READY = ("1.2.0", "# Changelog\n\n## 1.2.0 (2027-01-31)\n", "title: bures\nversion: 1.2.0\n", ["v1.1.0"], "")


def test_a_release_needs_changelog_citation_a_new_tag_and_a_clean_tree():
    assert release.problems(*READY) == []
    version, changelog, citation, tags, _ = READY
    assert "CHANGELOG" in release.problems(version, changelog.replace("2027-01-31", "unreleased"), *READY[2:])[0]
    assert "CITATION" in release.problems(version, changelog, "version: 1.1.0\n", tags, "")[0]
    assert "tag v1.2.0 exists" in release.problems(version, changelog, citation, ["v1.2.0"], "")[0]
    assert "not committed" in release.problems(version, changelog, citation, tags, " M README.md")[0]
    assert len(release.problems("1.3.0", changelog, citation, ["v1.3.0"], " M x")) == 4


def test_the_version_is_found_where_it_is_written():
    import bures

    assert release.find_version((ROOT / "src" / "bures" / "__init__.py").read_text()) == bures.__version__
    assert f"version: {bures.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {bures.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_hosted_runner_runs_what_ci_runs():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"] and (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_hooks_run_the_ruff_of_the_tests():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    makefile = (ROOT / "Makefile").read_text()
    for hook, checked in zip(repository["hooks"], ("ruff check", "ruff format"), strict=True):
        assert hook["entry"].startswith(f".venv/bin/{checked}") and f"$(BIN)/{checked}" in makefile
