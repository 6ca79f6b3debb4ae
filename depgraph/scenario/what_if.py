"""What if: change the program a little, without another trace."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from depgraph.dependence.possible import with_joins_in_known_memory, with_possible_joins
from depgraph.dependence.sweep import build_graph, sweep_spaces
from depgraph.errors import ModelError, NotApplicableError
from depgraph.footprint.footprints import Footprints, join_footprints
from depgraph.graph.dependences import ALL_KINDS, KIND_NAMES
from depgraph.graph.fuse import merge_kernels
from depgraph.graph.program import Kernel
from depgraph.scenario.scenario import Scenario
from depgraph.system.text import (
    GREATEST_FACTOR,
    LARGEST_ID,
    LONGEST_TIME,
    counted,
    in_short,
    read_number,
    read_whole_number,
)
from depgraph.trace.names import base_name

GRAMMAR = (
    "kernel=N|A:B|NAME* duration*=F, buffer=FROM:TO drop=war,waw,reuse, merge=A,B, gap*=F or "
    "gap=TIME"
)
_KIND_BITS = np.uint64(3)
_ADDRESS_END = 1 << 64
_MOST_DIGITS = 20  # of an address, decimal
_TERM = re.compile(r"(?P<word>[^\s=*/]+)(?P<sign>\*=|/=|=)(?P<value>\S+)")
_SPAN = re.compile(r"(?P<low>0x[0-9a-fA-F]+|\d+)(?P<sign>[:+])(?P<high>0x[0-9a-fA-F]+|\d+)")


_POSITIONS_LOST = (
    "what if: where inside blocks dependences are needed is unknown of the changed program: whole "
    "blocks wait"
)


class Scale(NamedTuple):
    """Multiply the durations of some kernels."""

    text: str
    kernels: str
    factor: float


class Drop(NamedTuple):
    """Leave out dependences through some bytes other than RAW, as if they were renamed."""

    text: str
    low: int
    high: int
    kinds: frozenset[str]


class Merge(NamedTuple):
    """Fuse two kernels into one."""

    text: str
    first: int
    second: int


class Gap(NamedTuple):
    """Change the launch gap: multiply it, or set it."""

    text: str
    factor: float
    time: float


Statement = Scale | Drop | Merge | Gap


def parse_what_if(text: str) -> Statement:
    """Read one statement.

    Raises
    ------
    ModelError
        If it is none; the message says which there are.
    """
    terms: dict[str, tuple[str, str]] = {}
    for part in text.split():
        match = _TERM.fullmatch(part)
        if match is None:
            raise _wrong(text, f"{in_short(part)!r} is not WORD=VALUE")
        if match["word"] not in {"kernel", "duration", "buffer", "drop", "merge", "gap"}:
            raise _wrong(text, f"there is no word {in_short(match['word'])!r}")
        if match["word"] in terms:
            raise _wrong(text, f"{match['word']} stands there twice")
        terms[match["word"]] = match["sign"], match["value"]
    words = frozenset(terms)
    readers: dict[frozenset[str], Callable[[str, dict[str, tuple[str, str]]], Statement]] = {
        frozenset({"kernel", "duration"}): _scale,
        frozenset({"buffer", "drop"}): _drop,
        frozenset({"merge"}): _merge,
        frozenset({"gap"}): _gap,
    }
    if words not in readers:
        raise _wrong(text, f"{' and '.join(terms) or 'nothing'} is not a statement")
    for word in words & {"kernel", "buffer", "drop", "merge"}:
        if terms[word][0] != "=":
            raise _wrong(text, f"{word} takes '='")
    return readers[words](text, terms)


def _wrong(text: str, found: str) -> ModelError:
    return ModelError(f"--what-if {in_short(text)!r}: {found}; give {GRAMMAR}")


def _scale(text: str, terms: dict[str, tuple[str, str]]) -> Scale:
    sign, value = terms["duration"]
    if sign == "=":
        raise _wrong(text, "duration takes '*=' or '/='")
    factor = _number(text, value)
    if sign == "/=":
        if factor == 0:
            raise _wrong(text, "a duration cannot be divided by 0")
        factor = 1 / factor
    if factor > GREATEST_FACTOR:
        raise _wrong(text, f"a factor may be {GREATEST_FACTOR:g} at most")
    return Scale(text, terms["kernel"][1], factor)


def _drop(text: str, terms: dict[str, tuple[str, str]]) -> Drop:
    kinds = frozenset(kind.upper() for kind in terms["drop"][1].split(","))
    if not kinds <= ALL_KINDS - {"RAW"}:
        raise _wrong(text, "drop takes some of war,waw,reuse: a RAW dependence carries data")
    span = _SPAN.fullmatch(terms["buffer"][1])
    if span is None:
        raise _wrong(text, "buffer takes FROM:TO or FROM+BYTES, such as 0x7f10:0x7f20")
    low, high = (_address(text, span[end]) for end in ("low", "high"))
    high = low + high if span["sign"] == "+" else high
    if high <= low:
        raise _wrong(text, "the buffer is empty")
    if high > _ADDRESS_END:
        raise _wrong(text, "the buffer ends beyond the last address, 0xffffffffffffffff")
    return Drop(text, low, high, kinds)


def _address(text: str, value: str) -> int:
    digits = value.removeprefix("0x")
    if len(digits) > _MOST_DIGITS:
        raise _wrong(text, "an address has 64 bits")
    return int(digits, 10 if digits == value else 16)


def _merge(text: str, terms: dict[str, tuple[str, str]]) -> Merge:
    numbers = [read_whole_number(part, 0, LARGEST_ID) for part in terms["merge"][1].split(",")]
    if len(numbers) != len(("first", "second")) or numbers[0] is None or numbers[1] is None:
        raise _wrong(text, "merge takes two kernel numbers, such as 3,4")
    return Merge(text, min(numbers[0], numbers[1]), max(numbers[0], numbers[1]))


def _gap(text: str, terms: dict[str, tuple[str, str]]) -> Gap:
    sign, value = terms["gap"]
    factor = _number(text, value)
    if sign == "=":
        return Gap(text, 0.0, factor)
    if sign == "/=" and factor == 0:
        raise _wrong(text, "a gap cannot be divided by 0")
    factor = factor if sign == "*=" else 1 / factor
    if factor > GREATEST_FACTOR:
        raise _wrong(text, f"a factor may be {GREATEST_FACTOR:g} at most")
    return Gap(text, factor, 0.0)


def _number(text: str, value: str) -> float:
    found = read_number(value, 0.0, LONGEST_TIME)
    if found is None:
        raise _wrong(text, f"{in_short(value)!r} is not a number from 0 to {LONGEST_TIME:g}")
    return found


def apply_what_ifs(scenario: Scenario, statements: Sequence[Statement]) -> Scenario:
    """Change a program, one statement after another; buffers first, for they are traced bytes."""
    if not statements:
        return scenario
    if scenario.launches is not None:
        raise ModelError(
            f"--what-if {in_short(statements[0].text)!r}: what-ifs do not count child kernels, "
            "which this program launches from the device: leave it out"
        )
    had_positions = scenario.graph.first_use is not None
    scenario = replace(scenario, measured=None)
    drops = [s for s in statements if isinstance(s, Drop)]
    if drops:
        scenario = _without_dependences(scenario, drops)
    for statement in statements:
        if isinstance(statement, Scale):
            scenario = _with_scaled_kernels(scenario, statement)
        elif isinstance(statement, Merge):
            scenario = _with_merged_kernels(scenario, statement)
        elif isinstance(statement, Gap):
            scenario = _with_other_gap(scenario, statement)
    if had_positions and scenario.graph.first_use is None:
        scenario = scenario.noting(_POSITIONS_LOST)
    return scenario


def _with_other_gap(scenario: Scenario, gap: Gap) -> Scenario:
    if scenario.launch.is_off and gap.factor > 0:
        return scenario.noting(
            f"what if {gap.text}: changes nothing, as launches cost nothing (--launch)"
        )
    launch = scenario.launch.of_gap(gap.factor, gap.time)
    _refuse_long(gap.text, launch.plain)
    return scenario.with_launch(launch).noting(f"what if {gap.text}: what launches cost changes")


def _with_scaled_kernels(scenario: Scenario, scale: Scale) -> Scenario:
    chosen = [k for k in scenario.kernels if _is_meant(scale.kernels, k)]
    if not chosen:
        numbers = [k.kernel for k in scenario.kernels]
        raise ModelError(
            f"--what-if {in_short(scale.text)!r}: no kernel is {in_short(scale.kernels)!r}; give "
            f"a number or a range in {min(numbers)}:{max(numbers) + 1}, or a name such as "
            f"{base_name(scenario.kernels[0].name)!r}"
        )
    durations = scenario.durations.copy()
    for kernel in chosen:
        durations[kernel.first_block : kernel.first_block + kernel.blocks] *= scale.factor
    _refuse_long(scale.text, float(durations.max(initial=0.0)))
    note = (
        f"what if {scale.text}: durations of {len(chosen)} of "
        f"{counted(len(scenario.kernels), 'kernel')} "
        f"times {scale.factor:g}"
    )
    return scenario.with_durations(durations, note)


def _refuse_long(text: str, time: float) -> None:
    if time > LONGEST_TIME:
        raise ModelError(
            f"--what-if {in_short(text)!r}: makes a time of {time:.4g}; {LONGEST_TIME:g} is the "
            "longest that is taken"
        )


def _is_meant(kernels: str, kernel: Kernel) -> bool:
    """Tell whether a kernel is in a list of numbers, ranges A:B, and patterns of names."""
    for part in kernels.split(","):
        low, colon, high = part.partition(":")
        ends = [read_whole_number(end or "0", 0, LARGEST_ID) for end in (low, high)]
        if part and not colon and ends[0] is not None:
            found = kernel.kernel == ends[0]
        elif colon and ends[0] is not None and ends[1] is not None:
            found = ends[0] <= kernel.kernel and (not high or kernel.kernel < ends[1])
        else:
            found = fnmatchcase(base_name(kernel.name), part) or fnmatchcase(kernel.name, part)
        if found:
            return True
    return False


def _with_merged_kernels(scenario: Scenario, merge: Merge) -> Scenario:
    try:
        graph, kernels, block = merge_kernels(
            scenario.graph, scenario.kernels, merge.first, merge.second
        )
    except ModelError as error:
        raise ModelError(f"--what-if {merge.text!r}: {error}") from None
    durations = np.bincount(block, weights=scenario.durations, minlength=graph.n_blocks)
    note = (
        f"what if {merge.text}: kernels {merge.first} and {merge.second} are one, a block of it "
        "does what a block of the first and those that wait for it alone do"
    )
    read = scenario.read_footprints

    def read_merged() -> Footprints:
        old = cast("Callable[[], Footprints]", read)()
        number = block[old.block].astype(np.int32)
        return join_footprints(number, old.kind, old.start, old.end, graph.n_blocks)

    changed = replace(
        scenario,
        graph=graph,
        kernels=kernels,
        read_footprints=None if read is None else read_merged,
    )
    return changed.with_durations(durations.astype(np.float64), note)


def _without_dependences(scenario: Scenario, drops: Sequence[Drop]) -> Scenario:
    """Find the dependences again, and leave some out where their bytes lie in a buffer."""
    graph = scenario.graph
    if scenario.read_footprints is None:
        message = "this needs the footprints of the blocks: pass footprints=store.footprints"
        raise ModelError(message)
    footprints = scenario.read_footprints().rounded(scenario.granularity, graph.n_blocks)
    for drop in drops:
        if not len(_between(footprints, drop.low, drop.high)):
            raise ModelError(
                f"--what-if {drop.text!r}: no block touches a byte from {drop.low:#x} to "
                f"{drop.high:#x}"
            )
    edges = sorted({0, 1 << 64, *(d.low for d in drops), *(d.high for d in drops)})
    swept = []
    for low, high in pairwise(edges):
        here = _between(footprints, low, high)
        if not len(here):
            continue
        inside = [d for d in drops if d.low <= low and high <= d.high]
        left_out = {kind for drop in inside for kind in drop.kinds}
        kinds = [k for k, name in enumerate(KIND_NAMES) if name not in left_out]
        for found in sweep_spaces(
            here, graph.operation_of_block, graph.n_operations, graph.space, graph.frees
        ):
            keep = np.isin(found.pairs & _KIND_BITS, np.array(kinds, np.uint64))
            swept.append(found._replace(pairs=found.pairs[keep]))
    rebuilt = build_graph(swept, graph.first_block, graph.kernel, graph.frees)
    rebuilt = rebuilt.with_kinds(graph.kinds)
    rebuilt = with_possible_joins(replace(rebuilt, space=graph.space), scenario.kernels)
    rebuilt = with_joins_in_known_memory(rebuilt, graph)
    changed = graph.with_dependences_of(rebuilt)
    notes = [
        f"what if {d.text}: no {' or '.join(sorted(d.kinds))} dependence through the "
        f"{d.high - d.low} bytes from {d.low:#x}"
        for d in drops
    ]
    return replace(scenario, graph=changed, read_footprints=_renamed).noting(*notes)


def _renamed() -> Footprints:
    message = "which addresses renamed buffers would have is not known (--what-if 'buffer=...')"
    raise NotApplicableError(message)


def _between(footprints: Footprints, low: int, high: int) -> Footprints:
    """Cut footprints down to the bytes from `low` to `high`."""
    last = np.uint64(min(high, (1 << 64) - 1))
    first = np.uint64(low)
    touched = footprints.take((footprints.start < last) & (footprints.end > first))
    return replace(
        touched, start=np.maximum(touched.start, first), end=np.minimum(touched.end, last)
    )
