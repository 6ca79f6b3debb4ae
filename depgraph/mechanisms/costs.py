"""Costs of mechanisms: what the user changed, in the unit of the durations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.limits import LONGEST_TIME, number
from depgraph.text import in_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.mechanisms.base import Cost

_MICROSECONDS = {"us": 1.0, "ns": 1e-3, "ms": 1e3, "s": 1e6}
_TIMES = {*_MICROSECONDS, "cycles"}
_QUANTITY = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*([a-zµ%]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit; "" for the unit of the default."""

    value: float
    unit: str


def parse_cost(text: str) -> tuple[str, str, Quantity]:
    """Read ``mechanism.cost=value``, such as ``acs-sw.launch=8us``.

    Returns
    -------
    mechanism, cost : str
    quantity : Quantity

    Raises
    ------
    ModelError
        If it is not of this form.
    """
    key, equals, amount = text.partition("=")
    mechanism, dot, name = key.strip().rpartition(".")
    match = _QUANTITY.fullmatch(amount.strip())
    if not (equals and dot and match):
        raise ModelError(
            f"cost {in_short(text)!r}: give MECHANISM.COST=VALUE, such as acs-sw.launch=8us"
        )
    value = number(match[1], 0.0, LONGEST_TIME)
    if value is None:
        raise ModelError(
            f"cost {in_short(text)!r}: {in_short(match[1])!r} is no number from 0 to "
            f"{LONGEST_TIME:g}"
        )
    unit = match[2].lower().replace("µ", "u")
    if unit == "%":
        value, unit = value / 100, "share"
    if unit not in {"", "share", "count", *_TIMES}:
        raise ModelError(
            f"cost {in_short(text)!r}: {in_short(match[2])!r} is none of us, ns, ms, s, cycles "
            "and %"
        )
    return mechanism, name.strip(), Quantity(value, unit)


class Charges:
    """The costs of one mechanism, converted to the unit of the durations.

    Parameters
    ----------
    costs : sequence of Cost
        What the mechanism declares.
    changed : mapping
        Name to what the user gave instead.
    unit : str
        Of the durations.
    clock_mhz : float, optional
        Cycles a microsecond, where known.
    launch_gap : float
        What a plain launch costs, in the unit of the durations.

    Attributes
    ----------
    notes : list of str
        What was charged, and what could not be.
    """

    def __init__(
        self,
        costs: Sequence[Cost],
        changed: Mapping[str, Quantity] | None = None,
        *,
        unit: str = "us",
        clock_mhz: float | None = None,
        launch_gap: float = 0.0,
    ) -> None:
        self.notes: list[str] = []
        self._costs = {cost.name: cost for cost in costs}
        self._changed = dict(changed or {})
        self._unit = unit
        self._clock_mhz = clock_mhz
        self._launch_gap = launch_gap
        unknown = sorted(set(self._changed) - set(self._costs))
        if unknown:
            known = ", ".join(self._costs) or "none"
            raise ModelError(f"there is no cost {unknown[0]!r}; known: {known}")

    def _quantity(self, name: str) -> tuple[Cost, Quantity]:
        cost = self._costs[name]
        given = self._changed.get(name, Quantity(cost.default, cost.unit))
        return cost, Quantity(given.value, given.unit or cost.unit)

    def number(self, name: str) -> float:
        """Return a cost that is no time: a share or a count.

        Raises
        ------
        ModelError
            If the user gave it another unit.
        """
        cost, given = self._quantity(name)
        if given.unit != cost.unit:
            raise ModelError(f"cost {name!r} is a {cost.unit}, not in {given.unit}")
        if given.value:
            shown = f"{100 * given.value:g} %" if cost.unit == "share" else f"{given.value:g}"
            self.notes.append(f"{name} {shown}")
        return given.value

    def time(self, name: str) -> float:
        """Return a time in the unit of the durations; 0 where it cannot be converted.

        Raises
        ------
        ModelError
            If the user gave it no unit of time.
        """
        cost, given = self._quantity(name)
        if given.unit not in _TIMES:
            raise ModelError(f"cost {name!r} is a time in {cost.unit}, not a {given.unit}")
        if given.value == 0:
            return 0.0
        shown = f"{name} {given.value:g} {given.unit}"
        if given.unit == self._unit:
            self.notes.append(shown)
            return given.value
        if "cycles" in (given.unit, self._unit) and self._clock_mhz is None:
            self.notes.append(f"{shown} left out: the clock is not known")
            return 0.0
        if self._unit not in _TIMES:
            self.notes.append(f"{shown} left out: durations are {self._unit}, no times")
            return 0.0
        clock = self._clock_mhz or 0.0
        if given.unit == "cycles":
            microseconds = given.value / clock
        else:
            microseconds = given.value * _MICROSECONDS[given.unit]
        self.notes.append(
            f"{shown} at {clock:g} MHz" if "cycles" in (given.unit, self._unit) else shown
        )
        return (
            microseconds * clock
            if self._unit == "cycles"
            else microseconds / _MICROSECONDS[self._unit]
        )

    def launch(self, name: str = "launch") -> float:
        """Return the cost of a plain launch: what the user gave for it, else the launch gap."""
        if name in self._changed:
            return self.time(name)
        if self._launch_gap:
            self.notes.append(f"{name} {self._launch_gap:g} {self._unit}")
        return self._launch_gap
