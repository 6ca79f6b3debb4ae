"""The command line: arguments, files and messages, one module a command."""

from depgraph.cli.app import main

__all__ = ["main"]
