"""What is known of PyTorch's operators: which touch the elements of their tensors and no more."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of an operator that touches the elements of its tensors alone."""

    family: str
    is_library: bool  # may be given a workspace that a library keeps: each lane has its own
    also_writes: frozenset[str]  # arguments that are changed although its schema does not say so


@cache
def known_operators() -> dict[str, Rule]:
    """Return the rules of `operators.toml`, by name, such as ``aten::add``."""
    text = (files("depgraph.apply") / "operators.toml").read_text(encoding="utf-8")
    return {
        f"aten::{name}": Rule(
            family=family,
            is_library=each.get("library", False),
            also_writes=frozenset(each.get("also_writes", ())),
        )
        for family, each in tomllib.loads(text).items()
        for name in each["operators"].split()
    }


def rule_of(operator: str) -> Rule | None:
    """Return what is known of an operator, by its name with or without the overload."""
    operator = operator.split(".", maxsplit=1)[0]
    known = known_operators()
    found = known.get(operator)
    if found is None and operator.endswith("_") and not operator.endswith("__"):
        found = known.get(operator[:-1])
    return found
