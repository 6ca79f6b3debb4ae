"""Mechanisms: what each lets run before what, as rules for one and the same schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.errors import NotApplicableError
from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.base import Availability, Charges, Cost, Mechanism, Quantity, parse_cost
from depgraph.schedule.policy import (
    ALL_ENDED,
    ALL_PLACED,
    HOLDS,
    IGNORED,
    PLACES,
    Against,
    Gates,
    Rules,
)

if TYPE_CHECKING:
    from depgraph.mechanisms.registry import MECHANISMS, find_mechanisms, split_names

__all__ = [
    "ALL_ENDED",
    "ALL_PLACED",
    "HOLDS",
    "IGNORED",
    "MECHANISMS",
    "PLACES",
    "Against",
    "Availability",
    "Charges",
    "Cost",
    "Gates",
    "Mechanism",
    "NotApplicableError",
    "Quantity",
    "Rules",
    "dependent_operations",
    "find_mechanisms",
    "parse_cost",
    "split_names",
]

_OF_REGISTRY = ("MECHANISMS", "find_mechanisms", "split_names")


def __getattr__(name: str) -> Any:
    """Import all mechanisms once somebody asks for one by name: most runs need a few."""
    if name not in _OF_REGISTRY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from depgraph.mechanisms import registry

    return getattr(registry, name)
