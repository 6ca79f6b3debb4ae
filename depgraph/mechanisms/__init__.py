"""Mechanisms: what each lets run before what, as rules for one and the same schedule."""

from __future__ import annotations

from depgraph.errors import NotApplicableError
from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations
from depgraph.mechanisms.costs import Charges, Cost, Quantity, parse_cost
from depgraph.mechanisms.registry import MECHANISMS, find_mechanisms, split_names
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
