"""The columns that several tables have, by key: the same head, unit and look in all of them."""

from __future__ import annotations

from dataclasses import replace

from depgraph.reports.tables.table import (
    Column,
    kernel_name,
    show_bytes,
    show_dimensions,
    show_factor,
    show_number,
    show_percent,
)

_TIMES = {
    "critical_path": "critical path",
    "duration": "time",
    "lower_bound": "lower bound",
    "makespan": "makespan",
    "memory": "memory",
    "serial": "serial",
    "time": "time",
    "work": "work",
}
_FACTORS = {"speedup": "speedup", "upper_bound": "upper bound"}
_SHARES = {"share": "share", "share_of_bound": "share of bound", "utilization": "utilization"}
_COUNTS = {
    "accesses": "accesses",
    "blocks": "blocks",
    "count": "count",
    "edges": "edges",
    "kernels": "kernels",
    "raw": "RAW",
    "reuse": "reuse",
    "war": "WAR",
    "waw": "WAW",
}
_TEXTS = {
    "against": "compared with",
    "meaning": "meaning",
    "rank": "rank",
    "status": "match",
}
_COLUMNS = {
    **{key: Column(key, head, show=show_number) for key, head in (_TIMES | _COUNTS).items()},
    **{key: Column(key, head, show=show_factor) for key, head in _FACTORS.items()},
    **{key: Column(key, head, show=show_percent) for key, head in _SHARES.items()},
    **{key: Column(key, head, is_text=True) for key, head in _TEXTS.items()},
    "grid": Column("grid", "grid", show=show_dimensions),
    "kernel": Column("kernel", "kernel"),
    "mechanism": Column("mechanism", "mechanism", is_text=True, wraps=True),
    "name": Column("name", "name", is_text=True, show=kernel_name),
    "read_bytes": Column("read_bytes", "reads", show=show_bytes),
    "source": Column("source", "waits for"),
    "target": Column("target", "kernel"),
    "written_bytes": Column("written_bytes", "writes", show=show_bytes),
}


def common(*keys: str, unit: str = "") -> list[Column]:
    """Return columns by key; those of times get the unit."""
    return [replace(_COLUMNS[key], unit=unit if key in _TIMES else "") for key in keys]
