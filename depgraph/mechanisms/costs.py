"""Costs of mechanisms: what the user changed, in the unit of the durations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from depgraph.errors import ModelError
from depgraph.system.limits import LONGEST_TIME, number
from depgraph.system.text import in_short
from depgraph.system.time_units import TIMES, convert_time
from depgraph.timing.launch_model import OFF

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.mechanisms.base import Mechanism
    from depgraph.scenario.scenario import Scenario
    from depgraph.timing.launch_model import LaunchModel

LAUNCHES = "launches"
_QUANTITY = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*([a-zµ%]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cost:
    """A named number of a mechanism that users may change.

    Attributes
    ----------
    unit : str
        "us", "ns", "cycles", "launches" (of `LaunchModel.plain`), "share" (0.02 is 2 %) or "count".
    source : str
        Where the default comes from.
    is_launch : bool
        Whether it is a launch cost: charged only where launches cost anything, or if the user
        gave it.
    """

    name: str
    default: float
    unit: str
    meaning: str
    source: str
    is_launch: bool = False


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit; "" for the unit of the default."""

    value: float
    unit: str


ChangedCosts: TypeAlias = "Mapping[str, Mapping[str, Quantity]]"
"""Mechanism to the costs of it that are not the defaults."""


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
            f"cost {in_short(text)!r}: {in_short(match[1])!r} is not a number from 0 to "
            f"{LONGEST_TIME:g}"
        )
    unit = match[2].lower().replace("µ", "u")
    if unit == "%":
        value, unit = value / 100, "share"
    if unit not in {"", "share", "count", LAUNCHES, *TIMES}:
        raise ModelError(
            f"cost {in_short(text)!r}: {in_short(match[2])!r} is none of us, ns, ms, s, cycles, "
            "launches and %"
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
    launches : LaunchModel
        What launches cost, in the unit of the durations.

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
        launches: LaunchModel = OFF,
    ) -> None:
        self.launches = launches
        self.notes: list[str] = []
        self._costs = {cost.name: cost for cost in costs}
        self._changed = dict(changed or {})
        self._unit = unit
        self._clock_mhz = clock_mhz
        unknown = sorted(set(self._changed) - set(self._costs))
        if unknown:
            known = ", ".join(self._costs) or "none"
            raise ModelError(f"there is no cost {unknown[0]!r}; known: {known}")

    def _quantity(self, name: str, default: float | None = None) -> tuple[Cost, Quantity]:
        cost = self._costs[name]
        usual = Quantity(cost.default if default is None else default, cost.unit)
        given = self._changed.get(name, usual)
        return cost, Quantity(given.value, given.unit or cost.unit)

    def number(self, name: str) -> float:
        """Return a cost that is not a time: a share or a count.

        Raises
        ------
        ModelError
            If the user gave it another unit, or a count that is no whole number.
        """
        cost, given = self._quantity(name)
        if given.unit != cost.unit:
            raise ModelError(f"cost {name!r} is a {cost.unit}, not in {given.unit}")
        if cost.unit == "count" and given.value != int(given.value):
            raise ModelError(f"cost {name!r} is {given.value:g}: give a whole number")
        if given.value:
            shown = f"{100 * given.value:g} %" if cost.unit == "share" else f"{given.value:g}"
            self.notes.append(f"{name} {shown}")
        return given.value

    def time(self, name: str, *, default: float | None = None) -> float:
        """Return a time in the unit of the durations; 0 where it cannot be converted.

        Parameters
        ----------
        default : float, optional
            Instead of the cost's own default, in its unit.

        Raises
        ------
        ModelError
            If the user gave it no unit of time.
        """
        cost, given = self._quantity(name, default)
        if given.unit not in {*TIMES, LAUNCHES}:
            raise ModelError(f"cost {name!r} is a time in {cost.unit}, not a {given.unit}")
        if cost.is_launch and name not in self._changed and self.launches.is_off:
            return 0.0
        if given.value == 0:
            return 0.0
        shown = f"{name} {given.value:g} {given.unit}"
        if given.unit == LAUNCHES:
            value = given.value * self.launches.plain
            self.notes.append(f"{shown}, {value:.4g} {self._unit}")
            return value
        found = convert_time(given.value, given.unit, self._unit, self._clock_mhz)
        if found is None:
            reason = f"durations are {self._unit}, no times"
            if self._unit in TIMES:
                reason = "the clock is not known"
            self.notes.append(f"{shown} left out: {reason}")
            return 0.0
        if given.unit != self._unit and "cycles" in (given.unit, self._unit):
            shown = f"{shown} at {self._clock_mhz:g} MHz"
        self.notes.append(shown)
        return found

    def is_given(self, name: str) -> bool:
        """Tell whether the user gave a cost."""
        return name in self._changed


def charges_of(mechanism: Mechanism, costs: ChangedCosts, scenario: Scenario) -> Charges:
    """Return the costs of a mechanism in the durations' unit, as far as given the user's own."""
    try:
        return Charges(
            mechanism.costs,
            costs.get(mechanism.name),
            unit=scenario.unit,
            clock_mhz=scenario.clock_mhz,
            launches=scenario.launch,
        )
    except ModelError as error:
        raise ModelError(f"{mechanism.name}: {error}") from None


def without_launch_costs(mechanism: Mechanism, costs: ChangedCosts) -> ChangedCosts:
    """Return the costs that a user gave, but for those of launches."""
    launches = {cost.name for cost in mechanism.costs if cost.is_launch}
    changed = costs.get(mechanism.name, {})
    return {mechanism.name: {n: c for n, c in changed.items() if n not in launches}}
