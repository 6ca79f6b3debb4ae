"""Readers of trace and profile files, one module a format."""

from __future__ import annotations

from depgraph.parsers.traces import open_trace

__all__ = ["open_trace"]
