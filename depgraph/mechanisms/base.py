"""What a mechanism is: costs, ways to launch kernels, rules; and what others are compared with."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.gpu.model import Gpu
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ANOMALY, IGNORED, PRIORITIES, Gates, Rules, Schedule
from depgraph.schedule.simulate import run_rules
from depgraph.schedule.simulate_jit import serial_schedule
from depgraph.system.text import (
    LARGEST_PARAMETER,
    LONGEST_TIME,
    TIMES,
    convert_time,
    in_short,
    read_number,
    read_whole_number,
)
from depgraph.timing.program_times import NO_COSTS, LaunchModel

Found = TypeVar("Found")

LAUNCHES = "launches"
_QUANTITY = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*([a-zµ%]*)", re.IGNORECASE)


class Availability(Enum):
    """What it takes to use a mechanism today, and the heading that it stands under."""

    SHIPS = "ships today"
    CODE = "needs a code change"
    HARDWARE = "needs hardware"
    LIMIT = "a limit, not a mechanism"

    @property
    def heading(self) -> str:
        """What its mechanisms have in common."""
        return _HEADINGS[self]


_HEADINGS = {
    Availability.SHIPS: "Today: hardware and its driver",
    Availability.CODE: "Today: a library, or kernels written anew",
    Availability.HARDWARE: "Research hardware, or a simulator",
    Availability.LIMIT: "Limits",
}


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
    value = read_number(match[1], 0.0, LONGEST_TIME)
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
        launches: LaunchModel = NO_COSTS,  # in the unit of the durations
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
    return Launching(program.is_kernel * model.host.value + _first(program, model.gap.value), none)


def once(program: Scenario, charges: Charges) -> Launching:
    """Launch the whole program as one kernel."""
    model = charges.launches
    none = program.is_kernel * 0.0
    return Launching(none + _first(program, model.host.value + model.gap.value), none)


def serialized(program: Scenario, charges: Charges, **others: Any) -> Rules:
    """Return rules by which each kernel waits for all before it, launched one by one."""
    launching = one_by_one(program, charges)
    return Rules(waits_for_all=True, enter=launching.enter, launch=launching.launch, **others)


def gated(launching: Launching, gates: Gates, **others: Any) -> Rules:
    """Return rules by which kernels wait for whole kernels, and for nothing else unless told."""
    usual: dict[str, Any] = {"joins": IGNORED, "enter": launching.enter, "launch": launching.launch}
    return Rules(gates=gates, **(usual | others))


def _first(program: Scenario, time: float) -> NDArray[np.float64]:
    """Return a time for the first kernel and none for the others: float64[n_operations]."""
    times = np.zeros(program.graph.n_operations)
    kernels = np.flatnonzero(program.is_kernel)
    times[kernels[:1]] = time
    return times


class Mechanism(ABC):
    """A way to order the blocks of dependent kernels."""

    name: ClassVar[str]  # what users call it, without parameters
    signature: ClassVar[str] = ""  # the name with its parameters
    # rule, cost: a line each
    rule: ClassVar[str]
    cost: ClassVar[str] = "none"
    availability: ClassVar[Availability]
    source: ClassVar[str]
    costs: ClassVar[tuple[Cost, ...]] = ()
    slower_because: ClassVar[str] = ANOMALY  # why a row may be slower than one of less freedom
    # Whether it is about child kernels, or collectives: where there are none it gets no row, and
    # unless `asked_by_name` nothing is said of it.
    needs_launches: ClassVar[bool] = False
    needs_collectives: ClassVar[bool] = False
    # Programs whose measured errors tell how good its predictions are; "" where none do.
    family: ClassVar[str] = ""
    vendor: str = ""  # "NVIDIA" or "AMD" where only GPUs of one have it
    least_architecture: int = 0  # of NVIDIA's that have it, compute capability times 10
    of_code: ClassVar[str] = ""  # what the code of kernels must have; `lacking_code` looks for it
    asked_by_name: bool = True
    only_where_available: bool = False  # no row on a GPU that lacks it
    shown: tuple[object, ...] = ()  # parameters that its rows name
    # Which sweep it belongs to, and a number: the larger, the less keeps blocks waiting.
    freedom: tuple[str, float] | None = None
    # Parameters of each that the bare name stands for, and the same where all are asked for.
    usual_sweep: ClassVar[Sequence[tuple[Any, ...]]] = ((),)
    among_all: ClassVar[Sequence[tuple[Any, ...]]] = ()
    takes: ClassVar[tuple[Callable[[str, str], Any], ...]] = ()  # readers of parameters

    def lacking_for(self, program: Scenario) -> str:
        """Say what the GPU, or the code of a program, lacks for this; empty for nothing."""
        return self._lacking_on(program.resources.gpu) or self.lacking_code(program)

    def lacking_code(self, program: Scenario) -> str:  # noqa: ARG002
        """Say what the code of the kernels lacks for this mechanism; empty for nothing."""
        return ""

    def _lacking_on(self, gpu: Gpu) -> str:
        if self.vendor and self.vendor != gpu.vendor:
            return f"needs a GPU of {self.vendor}, which the {gpu.name} is not"
        if self.least_architecture > gpu.architecture:
            needed, has = self.least_architecture / 10, gpu.architecture / 10
            return f"needs compute capability {needed:.1f}: the {gpu.name} has {has:.1f}"
        return ""

    @classmethod
    def needs(cls) -> str:
        """Say which GPUs and which kernels can use it; empty for all."""
        capability = f" of compute capability {cls.least_architecture / 10:.1f}"
        gpus = f"{cls.vendor} GPUs{capability * (cls.least_architecture > 0)}"
        return " and ".join(filter(None, [gpus * bool(cls.vendor), cls.of_code]))

    @property
    def label(self) -> str:
        """What a row of this mechanism, with its parameters, is called."""
        return f"{self.name}({','.join(map(str, self.shown))})" if self.shown else self.name

    @classmethod
    def every(cls) -> list[Mechanism]:
        """Return what stands for it where all mechanisms are asked for."""
        return [cls(*each) for each in cls.among_all or cls.usual_sweep]

    @classmethod
    def variants(cls) -> list[Mechanism]:
        """Return what the bare name stands for: one mechanism, or a sweep of a parameter."""
        return [cls(*each) for each in cls.usual_sweep]

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the parameters in parentheses after its name, each by one of `takes`."""
        if not cls.takes:
            given = in_short(",".join(parameters))
            raise ModelError(f"{cls.name} takes no parameters, not ({given})")
        if not 1 <= len(parameters) <= len(cls.takes):
            raise ModelError(f"give {cls.signature}")
        readers = cls.takes[: len(parameters)]
        return cls(*(r(cls.name, text) for r, text in zip(readers, parameters, strict=True)))

    def family_of(self, program: Scenario) -> str:  # noqa: ARG002 - for overriding
        """Return the family of programs that it makes of this one."""
        return self.family

    def ways(self, program: Scenario) -> Sequence[Mechanism]:  # noqa: ARG002 - for overriding
        """Return what hardware may do of it where that is not known: it, unless stated."""
        return [self]

    @abstractmethod
    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Return the rules for a program on one number of SMs, with costs in its unit.

        Raise `NotApplicableError` where the program lacks what they need.
        """


class Numbered(Mechanism):
    """A mechanism with whole numbers as parameters, which its rows name unless they are usual."""

    usual: ClassVar[tuple[int, ...]] = ()
    most: ClassVar[int] = LARGEST_PARAMETER
    more_is_freer: ClassVar[bool] = False  # a larger number should be no slower

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.shown = () if numbers == self.usual else numbers
        self.freedom = (self.name, numbers[0]) if self.more_is_freer else None

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read as many whole numbers from 1 as the signature names."""
        return cls(*whole_numbers(cls, parameters, cls.signature.count(",") + 1))


def word(mechanism: str, text: str) -> str:
    """Read a parameter that the mechanism looks at itself."""
    del mechanism
    return text


def whole_number(mechanism: str, text: str, least: int = 1, most: int = LARGEST_PARAMETER) -> int:
    """Read a parameter; refuse what is not a whole number from `least` to `most`."""
    value = read_whole_number(text, least, most)
    if value is None:
        raise ModelError(
            f"{mechanism}: {in_short(text)!r} is not a whole number from {least} to {most}"
        )
    return value


def share(mechanism: str, text: str) -> float:
    """Read a parameter; refuse what is not a number from 0 to 1."""
    value = read_number(text, 0.0, 1.0)
    if value is None:
        raise ModelError(f"{mechanism}: {in_short(text)!r} is not a share from 0 to 1")
    return value


def whole_numbers(kind: type[Numbered], parameters: Sequence[str], n: int) -> list[int]:
    """Read `n` parameters that are whole numbers from 1; refuse more or fewer."""
    if len(parameters) != n:
        raise ModelError(f"give {kind.signature}")
    return [whole_number(kind.name, text, most=kind.most) for text in parameters]


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


def run_mechanism(
    mechanism: Mechanism, scenario: Scenario, charges: Charges | None = None
) -> tuple[Schedule, Rules]:
    """Schedule a scenario, on one number of SMs, under a mechanism; by default at its own costs."""
    rules = mechanism.rules(scenario, charges or charges_of(mechanism, {}, scenario))
    schedule = run_rules(
        mechanism.label,
        rules,
        scenario.graph,
        scenario.durations,
        scenario.resources,
        scenario.sms,
    )
    return schedule._replace(least=scenario.memory), rules


def run_without_launches(
    mechanism: Mechanism, costs: ChangedCosts, scenario: Scenario
) -> tuple[Schedule, Rules]:
    """Schedule a scenario without launch costs, be they its own or given, as bounds count."""
    if not scenario.launch.is_off:
        costs = without_launch_costs(mechanism, costs)
        scenario = scenario.without_launches()
    return run_mechanism(mechanism, scenario, charges_of(mechanism, costs, scenario))


class Serial(Mechanism):
    """What a GPU does with the kernels of one stream."""

    name = "serial"
    rule = "a kernel starts once the whole kernel before it has ended"
    cost = "launches: host and gap of each kernel"
    family = "streams"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Let every operation wait for all before it."""
        return serialized(program, charges)


def serial(scenario: Scenario, *, as_graph: bool = False) -> Schedule:
    """Run kernels one after another: launched one by one, or as a CUDA graph that is a chain."""
    # Each kernel's blocks go, in block order, to the first free of as many slots as its blocks fit
    # on the SMs; each kernel pays for its launch, a copy or memset does not.
    graph, durations = scenario.graph, scenario.durations
    # More SMs than a kernel has blocks stay empty.
    size = int(min(scenario.sms, np.diff(graph.first_block).max(initial=1)))
    slots = scenario.occupancy * size
    launch, is_kernel = scenario.launch, scenario.is_kernel
    each, gap, once = launch.host, launch.gap, 0.0
    gaps = is_kernel * float(gap.value)
    if as_graph:
        each, once = launch.node, launch.graph.value
        gaps = graph_paths(scenario) * is_kernel
        gaps[np.flatnonzero(is_kernel)[:1]] = 0.0
    issued = np.cumsum(is_kernel * float(each.value)) + once * is_kernel
    start, slot, _ = serial_schedule(durations, graph.first_block, slots, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    sm = slot % np.int32(size)
    return Schedule("serial", start, start + durations, sm, least=scenario.memory)


def graph_paths(scenario: Scenario) -> NDArray[np.float64]:
    """Return what a CUDA graph needs before each operation of a branch: float64[n_operations]."""
    launch = scenario.launch
    paths = np.full(scenario.graph.n_operations, launch.path.value)
    if math.isfinite(launch.path_share):
        paths = np.minimum(paths, launch.path_share * scenario.kernel_times)
    return paths


_DEFAULT_PRIORITY = "oldest-first"
_BEST = "best priority"


class Dataflow(Mechanism):
    """All kernels of the program in one pool; `priority` is that among blocks that are ready."""

    name = "dataflow"
    signature = "dataflow(oldest-first|newest-first|longest-path-first|best)"
    takes = (word,)
    rule = (
        "a block starts once all blocks that it depends on have ended; waiting blocks hold no "
        "slot; of those that are ready the oldest (default), the newest, or the one with the "
        "longest path to the end goes first; best: whichever of the three is fastest"
    )
    cost = "launches: the host issues each kernel, ahead of the GPU; no gaps"
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"
    among_all = ((), (_BEST,))

    def __init__(self, priority: str = _DEFAULT_PRIORITY) -> None:
        if priority == "best":
            priority = _BEST
        if priority not in (*PRIORITIES, _BEST):
            raise ModelError(f"priority {priority!r}: give one of {', '.join(PRIORITIES)}, best")
        self.priority = priority

    @property
    def label(self) -> str:
        """The name with the priority."""
        return f"{self.name} ({self.priority})"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Order ready blocks by the priority."""
        rules = Rules(strict=False, enter=ahead(program, charges).enter)
        graph, durations = program.graph, program.durations
        if self.priority != _BEST:
            return replace(rules, order=PRIORITIES[self.priority](graph, durations))
        shortest = {}
        for name, priority in PRIORITIES.items():
            ordered = replace(rules, order=priority(graph, durations))
            plan = run_rules(name, ordered, graph, durations, program.resources, program.sms)
            shortest[name] = plan.makespan, ordered
        best = min(shortest, key=lambda name: shortest[name][0])
        return shortest[best][1].assuming(f"the best of three priorities: {best}")


class Ideal(Mechanism):
    """Dataflow on unlimited SMs: the critical path."""

    name = "ideal"
    rule = "a block starts once all blocks that it depends on have ended, on unlimited SMs"
    availability = Availability.LIMIT
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Take away the limit on SMs."""
        del program, charges
        return Rules(unlimited=True, assumptions=("unlimited SMs: no utilization",))


class Remembered(Generic[Found]):
    """What a function finds of a program's graph and kernels, once for all sizes of GPU."""

    def __init__(self, find: Callable[[Scenario], Found]) -> None:
        self._find = find
        self._known: tuple[object, object, Found] | None = None

    def __call__(self, program: Scenario) -> Found:
        """Return what is found, or was found the last time if the program is the same."""
        known = self._known
        if known is None or known[0] is not program.graph or known[1] is not program.kernels:
            known = self._known = program.graph, program.kernels, self._find(program)
        return known[2]
