"""What a captured graph may read and write, for every value of its tensors, and what must wait.

Nodes that one operator launched stay one after another: together they are a *unit*, as is a node
that no operator launched. Two units conflict if some values let one write a byte that the other
touches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depgraph.apply.captured import (
    COPY,
    EMPTY,
    KERNEL,
    LIBRARY,
    MEMSET,
    TARGET,
    Allocation,
    Call,
    Captured,
    Node,
    View,
)
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.operators import rule_of
from depgraph.system.text import in_short

DATA = "tensors that one writes and the other uses"
REUSE = "memory that one tensor gave back and another got"
WORKSPACE = "workspaces and temporaries"
VARIABLES = "variables of modules"
_MOST_RUNS = 4096  # of a view: of more pieces the whole is taken
_MOST_PAIRS = 20_000  # of views with gaps, in one memory: further ones count as one behind another


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that a unit may touch."""

    start: int
    end: int
    view: View | None  # which bytes from start to end, if not all
    memory: Allocation
    writes: bool
    reason: str  # what says so


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that stay one after another."""

    first: int  # nodes `first` to `end` - 1
    end: int
    accesses: tuple[Access, ...]  # of a fixed unit those that are known
    fixed: str = ""  # why it stays behind all before it and ahead of all after it; "" if not


def units_of(captured: Captured, codes: Mapping[str, KernelCode]) -> list[Unit]:
    """Return what each operator, and each node of none, may touch."""
    found = []
    foreign = _foreign(captured)
    first = 0
    while first < len(captured.nodes):
        call = captured.nodes[first].call
        end = first + 1
        while call >= 0 and end < len(captured.nodes) and captured.nodes[end].call == call:
            end += 1
        found.append(_unit_of(captured, first, end, codes, foreign))
        first = end
    return found


def _foreign(captured: Captured) -> list[Allocation]:
    """Return all memory that PyTorch did not allocate and somebody has pointers to."""
    # Whoever changes a variable of a module has a pointer to it, or keeps its place.
    pointers = (p.memory for n in captured.nodes if _is_of_others(captured, n) for p in n.pointers)
    operands = (o.view.memory for call in captured.calls for o in call.operands)
    return [each for each in dict.fromkeys([*pointers, *operands]) if each.number < 0]


def _unit_of(
    captured: Captured,
    first: int,
    end: int,
    codes: Mapping[str, KernelCode],
    foreign: Sequence[Allocation],
) -> Unit:
    nodes = captured.nodes[first:end]
    fixed = next((node.kind for node in nodes if not is_understood(node)), "")
    fixed = fixed or _not_known_of(captured, nodes, codes)
    accesses: list[Access] = []
    if nodes[0].call >= 0:
        accesses += _of_call(captured.calls[nodes[0].call], nodes)
    elif not fixed:
        accesses += _of_node(nodes[0], codes)
    if any(needs_code(captured, n) and _code_of(n, codes).reads_variables for n in nodes):
        accesses += (_whole(each, VARIABLES, writes=False) for each in foreign)
    if fixed:
        accesses += (_whole(p.memory, fixed) for node in nodes for p in node.pointers)
    return Unit(first, end, tuple(dict.fromkeys(accesses)), fixed)


def _not_known_of(
    captured: Captured, nodes: Sequence[Node], codes: Mapping[str, KernelCode]
) -> str:
    """Say why a kernel may reach what it has no pointer to; "" if none may."""
    for node in nodes:
        if needs_code(captured, node) and (unknown := _code_of(node, codes).unknown):
            whose = captured.calls[node.call].operator if node.call >= 0 else "no operator"
            return f"{in_short(node.name)}, a kernel of {whose}: {unknown}"
    return ""


def needs_code(captured: Captured, node: Node) -> bool:
    """Tell whether only a kernel's machine code can say what it reaches."""
    # PyTorch's own kernels reach what they are given; those of others may use a module's variables.
    return node.kind == KERNEL and _is_of_others(captured, node)


def _is_of_others(captured: Captured, node: Node) -> bool:
    return node.call < 0 or not captured.calls[node.call].name.startswith("aten::")


def _code_of(node: Node, codes: Mapping[str, KernelCode]) -> KernelCode:
    return codes.get(node.name) or KernelCode("its machine code is not known")


def is_understood(node: Node) -> bool:
    """Tell whether a node's place may be left to what it touches: the host's is not known."""
    if node.kind in {MEMSET, COPY} and node.call < 0 and all(p.at != TARGET for p in node.pointers):
        return False
    return node.kind in {KERNEL, MEMSET, COPY, EMPTY} and not node.to_host


def _of_call(call: Call, nodes: Sequence[Node]) -> Iterator[Access]:
    """Yield what the nodes of an operator may touch."""
    rule = None if call.others else rule_of(call.operator)
    pointers = [pointer.memory for node in nodes for pointer in node.pointers]
    if rule is None:
        reason = f"{call.operator}: not in the table of operators"
        memory = [o.view.memory for o in call.operands] + [*call.others, *call.made, *pointers]
        yield from (_whole(each, reason) for each in dict.fromkeys(memory))
        return
    for operand in call.operands:
        writes = operand.is_written or operand.name in rule.also_writes
        if (extent := extent_of(operand.view)) is not None:
            yield Access(*extent, operand.view, operand.view.memory, writes, DATA)
    tensors = {o.view.memory.number for o in call.operands}
    own = [each for each in call.made if each.number not in tensors]
    kept = [each for each in pointers if each.owner == LIBRARY]
    yield from (_whole(each, WORKSPACE) for each in dict.fromkeys([*own, *kept]))


def _of_node(node: Node, codes: Mapping[str, KernelCode]) -> Iterator[Access]:
    """Yield what a node may touch that no operator launched."""
    for pointer in node.pointers:
        if node.kind == KERNEL:
            reason = f"{in_short(node.name)}, a kernel of no operator: all that it has pointers to"
            yield _whole(pointer.memory, reason, writes=_code_of(node, codes).may_write(pointer.at))
        else:
            reason = f"a {node.kind} of no operator"
            yield _whole(pointer.memory, reason, writes=pointer.at == TARGET)


def _whole(memory: Allocation, reason: str, *, writes: bool = True) -> Access:
    return Access(memory.start, memory.end, None, memory, writes, reason)


def written_outside(captured: Captured, units: Sequence[Unit]) -> list[Allocation]:
    """Return what a graph may write of earlier memory, but for what libraries keep."""
    return _earlier(captured, (a.memory for unit in units for a in unit.accesses if a.writes))


def reached_by_others(captured: Captured, units: Sequence[Unit]) -> list[Allocation]:
    """Return the earlier memory that kernels of others reach, but for what libraries keep."""
    others = [u for u in units if _is_of_others(captured, captured.nodes[u.first])]
    found = _earlier(captured, (access.memory for unit in others for access in unit.accesses))
    # What PyTorch did not allocate is no library's where no operator runs.
    kernels = (n for n in captured.nodes if n.kind == KERNEL and n.call < 0)
    foreign = (p.memory for node in kernels for p in node.pointers if p.memory.number < -1)
    return list(dict.fromkeys([*found, *foreign]))


def _earlier(captured: Captured, memory: Iterable[Allocation]) -> list[Allocation]:
    return [
        each
        for each in dict.fromkeys(memory)
        if each.number < captured.before and each.owner != LIBRARY
    ]


def extent_of(view: View) -> tuple[int, int] | None:
    """Return the first byte of a view and the one behind its last; None if it is empty."""
    if 0 in view.shape:
        return None
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    return view.start, view.start + last + view.item


def _runs(view: View) -> NDArray[np.int64] | None:
    """Return the bytes of a view as ranges; None where they are one, or too many."""
    dims = sorted(
        (stride, n) for n, stride in zip(view.shape, view.strides, strict=True) if n > 1 and stride
    )
    length = view.item
    while dims and dims[0][0] <= length:
        stride, n = dims.pop(0)
        length = max(length, stride * (n - 1) + length)
    if not dims or int(np.prod([n for _, n in dims], dtype=object)) > _MOST_RUNS:
        return None
    starts = np.array([view.start], np.int64)
    for stride, n in dims:
        starts = (starts[:, None] + stride * np.arange(n, dtype=np.int64)).ravel()
    starts.sort()
    return np.stack([starts, starts + length], axis=1)


def conflicts(units: Sequence[Unit]) -> list[dict[str, int]]:
    """Return for each unit which earlier ones, as bits, it must wait for by each reason."""
    found: list[dict[str, int]] = [{} for _ in units]
    free = [(i, access) for i, u in enumerate(units) if not u.fixed for access in u.accesses]
    for group in _touching(free):
        if any(access.writes for _, access in group):
            _compare(group, found)
    fence = -1
    for i, unit in enumerate(units):
        if fence >= 0:
            _note(found[i], units[fence].fixed, 1 << fence)
        if unit.fixed:
            _note(found[i], unit.fixed, (1 << i) - (1 << max(fence, 0)))
            fence = i
    return found


Placed = tuple[int, Access]


def _touching(accesses: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Yield groups of accesses between which no byte is shared."""
    group: list[Placed] = []
    end = -1
    for place, access in sorted(accesses, key=lambda pair: (pair[1].start, pair[0])):
        if access.start >= end and group:
            yield group
            group = []
        group.append((place, access))
        end = max(end if len(group) > 1 else -1, access.end)
    yield group


def _compare(group: list[Placed], found: list[dict[str, int]]) -> None:
    """Note which pairs of a group have a byte in common that one of them writes."""
    # What is asked of every pair is asked of arrays: a workspace may have thousands of users.
    group = sorted(group, key=lambda pair: pair[0])
    accesses = [access for _, access in group]
    places = np.array([place for place, _ in group])
    starts = np.array([access.start for access in accesses], np.int64)
    ends = np.array([access.end for access in accesses], np.int64)
    writes = np.array([access.writes for access in accesses])
    kinds = {(access.memory.number, access.reason): access for access in accesses}
    first_of = [*kinds.values()]
    number_of = {kind: number for number, kind in enumerate(kinds)}
    of_kind = np.array([number_of[access.memory.number, access.reason] for access in accesses])
    parts = [None if access.view is None else _runs(access.view) for access in accesses]
    has_gaps = np.array([each is not None for each in parts])
    is_whole = np.array([access.view is None for access in accesses])
    left = _MOST_PAIRS
    for at, (place, access) in enumerate(group):
        near = (starts[:at] < access.end) & (ends[:at] > access.start) & (places[:at] != place)
        if not access.writes:
            near &= writes[:at]
        if access.view is not None:
            unsure = np.flatnonzero(near & ~is_whole[:at] & (has_gaps[:at] | has_gaps[at]))
            for other in unsure[: max(left, 0)]:
                near[other] = _meet(*(_ranges(accesses[i], parts[i]) for i in (at, other)))
            left -= len(unsure)
        for kind in np.flatnonzero(np.bincount(of_kind[:at][near])):
            units = places[:at][near & (of_kind[:at] == kind)]
            _note(found[place], _reason(first_of[kind], access), _mask(units))


def _ranges(access: Access, parts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.array([[access.start, access.end]], np.int64) if parts is None else parts


def _mask(units: NDArray[np.int64]) -> int:
    """Return units as bits."""
    bits = np.zeros(int(units[-1]) + 1, bool)  # they ascend
    bits[units] = True
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _meet(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Tell whether ranges have a byte in common; each list ascends, and none of it overlaps."""
    next_one = np.searchsorted(one[:, 1], other[:, 0], "right")
    inside = next_one < len(one)
    return bool((one[next_one[inside], 0] < other[inside, 1]).any())


def _reason(before: Access, after: Access) -> str:
    """Say what keeps two accesses in order: other tensors in one memory, or what is not known."""
    if before.memory.number != after.memory.number:
        return REUSE
    unlike = (each.reason for each in (before, after) if each.reason not in {DATA, WORKSPACE})
    return next(unlike, DATA if before.reason == after.reason == DATA else WORKSPACE)


def _note(reasons: dict[str, int], reason: str, units: int) -> None:
    reasons[reason] = reasons.get(reason, 0) | units
