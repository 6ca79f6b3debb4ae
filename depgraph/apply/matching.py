"""A captured graph and the recording of one: the same nodes, or a refusal."""

from collections.abc import Sequence
from typing import TypeAlias

from depgraph.apply.captured import COPY, KERNEL, MEMSET, Captured, Node
from depgraph.errors import ApplyError
from depgraph.graph.program import Copy, Kernel
from depgraph.system.text import in_short

Operation: TypeAlias = Kernel | Copy
_AGAIN = "record the program as it is now"


def operations_of(kernels: Sequence[Kernel], copies: Sequence[Copy]) -> list[Operation]:
    """Return kernels, copies and memsets in program order."""
    return sorted([*kernels, *copies], key=lambda each: each.operation)


def match_nodes(
    captures: Sequence[Captured], operations: Sequence[Operation], which: int
) -> list[int | None]:
    """Return the recorded operation of each node of a graph, None for an empty or host node."""
    at = 0
    found: list[int | None] = []
    for graph, captured in enumerate(captures):
        for number, node in enumerate(captured.nodes):
            place = None
            if node.kind in {KERNEL, MEMSET, COPY}:
                if at == len(operations) or not _is_same(node, operations[at]):
                    raise ApplyError(
                        f"the recording is not of the captured graph alone: node {number} is "
                        f"{_node_text(node)}, the recording has {_text(operations, at)}",
                        _AGAIN,
                    )
                place = at
                at += 1
            if graph == which:
                found.append(place)
    if at < len(operations):
        raise ApplyError(
            f"the recording has {len(operations) - at} operations more than the captured graphs",
            _AGAIN,
        )
    return found


def _is_same(node: Node, operation: Operation) -> bool:
    if isinstance(operation, Copy):
        return node.kind == (MEMSET if operation.what == "memset" else COPY)
    return (
        node.kind == KERNEL
        and (operation.mangled_name or operation.name) == node.name
        and operation.grid == node.grid
        and operation.block == node.block
    )


def _node_text(node: Node) -> str:
    if node.kind != KERNEL:
        return f"a {node.kind}"
    return _launch_text(node.name, node.grid, node.block)


def _text(operations: Sequence[Operation], at: int) -> str:
    if at == len(operations):
        return "no more"
    found = operations[at]
    if isinstance(found, Copy):
        return f"a {found.what}"
    return _launch_text(found.mangled_name or found.name, found.grid, found.block)


def _launch_text(name: str, grid: tuple[int, ...], block: tuple[int, ...]) -> str:
    return f"{in_short(name)} <<<{grid}, {block}>>>"


def refuse_other_nodes(recorded: Captured, captured: Captured) -> None:
    """Refuse a captured graph whose nodes or their order are not those that were recorded."""
    if len(recorded.nodes) != len(captured.nodes):
        raise ApplyError(
            f"another program: {len(captured.nodes)} nodes were captured, {len(recorded.nodes)} "
            "recorded",
            _AGAIN,
        )
    for number, (old, new) in enumerate(zip(recorded.nodes, captured.nodes, strict=True)):
        if _kernel_of(old) != _kernel_of(new):
            raise ApplyError(
                f"another program: node {number} is {_node_text(new)}, recorded was "
                f"{_node_text(old)}",
                _AGAIN,
            )


def _kernel_of(node: Node) -> tuple[object, ...]:
    return node.kind, node.name, node.grid, node.block, node.shared, node.to_host
