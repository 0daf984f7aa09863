"""`python -m bures.cli`."""

from bures.cli.commands import main

if __name__ == "__main__":
    main()
