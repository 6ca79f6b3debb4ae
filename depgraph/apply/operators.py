"""What is known of PyTorch's operators: which touch the elements of their tensors and no more."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Rule:
    """Why an operator touches the elements of its tensors alone, whatever their values.

    Attributes
    ----------
    family, reason : str
    is_library : bool
        Whether its kernels may be given a workspace that a library keeps: each lane gets its own.
    also_writes : frozenset of str
        Arguments that are changed although its schema does not say so.
    """

    family: str
    reason: str
    is_library: bool
    also_writes: frozenset[str]


@cache
def known_operators() -> dict[str, Rule]:
    """Return the rules of `operators.toml`, by name, such as ``aten::add``."""
    text = (files("depgraph.apply") / "operators.toml").read_text(encoding="utf-8")
    return {
        f"aten::{name}": Rule(
            family=family,
            reason=each["reason"],
            is_library=each.get("library", False),
            also_writes=frozenset(each.get("also_writes", ())),
        )
        for family, each in tomllib.loads(text).items()
        for name in each["operators"].split()
    }


def rule_of(operator: str) -> Rule | None:
    """Return what is known of an operator; None where it may touch whatever it can reach.

    Parameters
    ----------
    operator : str
        Without its overload; an in-place one follows the rule of the other.
    """
    known = known_operators()
    found = known.get(operator)
    if found is None and operator.endswith("_") and not operator.endswith("__"):
        found = known.get(operator[:-1])
    return found
