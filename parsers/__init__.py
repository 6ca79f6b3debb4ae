"""Readers of trace and profile files, one module or folder a format."""

from depgraph.parsers.formats import open_trace

__all__ = ["open_trace"]
