"""`bures` and `python -m bures`: the command line, or one line that says what it needs."""

import sys


def main() -> None:
    """Run the command line; `--version` needs nothing installed."""
    if sys.argv[1:] == ["--version"]:
        from bures import __version__

        sys.stdout.write(f"bures {__version__}\n")
        return
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.stderr.write(f"bures: the command line needs {error.name}: pip install 'bures[cli]'\n")
        sys.exit(2)
    from bures.cli import main as run

    run()


if __name__ == "__main__":
    main()
