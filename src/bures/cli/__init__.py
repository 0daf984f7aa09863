"""The command line: `bures fit`, `bures sample`, `bures reproduce`, `bures report`, `bures bench`."""

from bures.cli.commands import app as app, main as main
