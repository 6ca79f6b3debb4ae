"""Costs of mechanisms in the unit of the durations, and what they keep of launch costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import IGNORED, Gates, Rules
from depgraph.system.quantities import LONGEST_TIME, TIMES, convert_time, number
from depgraph.system.text import in_short
from depgraph.timing.launch_model import OFF, LaunchModel

if TYPE_CHECKING:
    from depgraph.mechanisms.base import Mechanism


LAUNCHES = "launches"
_QUANTITY = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*([a-zµ%]*)", re.IGNORECASE)


class Cost(NamedTuple):
    """A named number of a mechanism that users may change."""

    name: str
    default: float
    # "us", "ns", "cycles", "launches" (of `LaunchModel.plain`), "share" (0.02 is 2 %) or "count".
    unit: str
    meaning: str
    source: str  # where the default comes from
    # Whether it is a launch cost: charged only where launches cost anything, or if the user gave
    # it.
    is_launch: bool = False


class Quantity(NamedTuple):
    """A number and its unit; "" for the unit of the default."""

    value: float
    unit: str


ChangedCosts: TypeAlias = Mapping[str, Mapping[str, Quantity]]
"""Mechanism to the costs of it that are not the defaults."""


def parse_cost(text: str) -> tuple[str, str, Quantity]:
    """Read ``mechanism.cost=value``, such as ``acs-sw.launch=8us``: mechanism, cost, quantity."""
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
    """The costs of one mechanism, converted to the unit of the durations."""

    def __init__(
        self,
        costs: Sequence[Cost],  # what the mechanism declares
        changed: Mapping[str, Quantity] | None = None,  # what the user gave instead
        *,
        unit: str = "us",  # of the durations
        clock_mhz: float | None = None,
        launches: LaunchModel = OFF,  # in the unit of the durations
    ) -> None:
        self.launches = launches
        self.notes: list[str] = []  # what was charged, and what could not be
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
        """Return a cost that is not a time: a share or a count; refuse one in another unit."""
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
        """Return a time in the unit of the durations, 0 where it has none there."""
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
        converted = convert_time(given.value, given.unit, self._unit, self._clock_mhz)
        if converted is None:
            reason = f"durations are {self._unit}, no times"
            if self._unit in TIMES:
                reason = "the clock is not known"
            self.notes.append(f"{shown} left out: {reason}")
            return 0.0
        if given.unit != self._unit and "cycles" in (given.unit, self._unit):
            shown = f"{shown} at {self._clock_mhz:g} MHz"
        self.notes.append(shown)
        return converted

    def is_given(self, name: str) -> bool:
        """Tell whether the user gave a cost."""
        return name in self._changed


LAUNCH = Cost(
    "launch",
    1.0,
    "launches",
    "instead of what the launch model says: a time that the GPU needs before each kernel",
    "--launch",
    is_launch=True,
)
INVOCATION = LAUNCH._replace(
    meaning="instead of what the launch model says: a time for each kernel, one after another, "
    "ahead of the GPU",
)


class Launching(NamedTuple):
    """What launches cost each operation."""

    enter: NDArray[np.floating[Any]]  # [n_operations]: time to issue it, one after another
    launch: NDArray[np.floating[Any]]  # [n_operations]: on the GPU, once it is issued and may start


def one_by_one(program: Scenario, charges: Charges) -> Launching:
    """Launch kernels into streams: the host issues each, the GPU needs its gap before each."""
    if charges.is_given(LAUNCH.name):
        return Launching(program.is_kernel * 0.0, program.is_kernel * charges.time(LAUNCH.name))
    model = charges.launches
    return Launching(program.is_kernel * model.host.value, program.is_kernel * model.gap.value)


def ahead(program: Scenario, charges: Charges, *, name: str | None = None) -> Launching:
    """Launch kernels that wait on the GPU: the host issues each, the first alone pays the gap."""
    none = program.is_kernel * 0.0
    if name is not None and charges.is_given(name):
        return Launching(program.is_kernel * charges.time(name), none)
    model = charges.launches
    return Launching(program.is_kernel * model.host.value + first(program, model.gap.value), none)


def once(program: Scenario, charges: Charges) -> Launching:
    """Launch the whole program as one kernel."""
    model = charges.launches
    none = program.is_kernel * 0.0
    return Launching(none + first(program, model.host.value + model.gap.value), none)


def serialized(program: Scenario, charges: Charges, **others: Any) -> Rules:
    """Return rules by which each kernel waits for all before it, launched one by one."""
    launching = one_by_one(program, charges)
    return Rules(waits_for_all=True, enter=launching.enter, launch=launching.launch, **others)


def gated(launching: Launching, gates: Gates, **others: Any) -> Rules:
    """Return rules by which kernels wait for whole kernels, and for nothing else unless told."""
    usual: dict[str, Any] = {"joins": IGNORED, "enter": launching.enter, "launch": launching.launch}
    return Rules(gates=gates, **(usual | others))


def first(program: Scenario, time: float) -> NDArray[np.float64]:
    """Return a time for the first kernel and none for the others: float64[n_operations]."""
    times = np.zeros(program.graph.n_operations)
    kernels = np.flatnonzero(program.is_kernel)
    times[kernels[:1]] = time
    return times


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
