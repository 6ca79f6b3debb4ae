"""What a recording shows of one call of `depgraph.torch.parallelize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.apply.captured import read_captures
from depgraph.apply.matching import match_nodes, operations_of, refuse_other_nodes
from depgraph.apply.plan import Recorded
from depgraph.errors import ApplyError
from depgraph.mechanisms.base import dependent_operations
from depgraph.store.companions import captures_of
from depgraph.store.store import Store

if TYPE_CHECKING:
    from depgraph.apply.captured import Captured


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of `depgraph.torch.parallelize` in a recording."""

    store: Store
    captured: Captured  # as it was recorded
    operation: tuple[int | None, ...]  # of the recording, for each node

    def shown(self) -> Recorded:
        """Return the dependences between nodes that the recording shows."""
        node_of = {place: node for node, place in enumerate(self.operation) if place is not None}
        source, target = dependent_operations(self.store.graph())
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        edges = tuple((node_of[a], node_of[b]) for a, b in pairs if a in node_of and b in node_of)
        opaque = {kernel.operation for kernel in self.store.kernels if kernel.untraced}
        unseen = (n for n, place in enumerate(self.operation) if place is None or place in opaque)
        return Recorded(edges, frozenset(unseen))


def read_recorded(path: Path, call: int, captured: Captured | None = None) -> RecordedCall:
    """Find a call of `depgraph.torch.parallelize`, by number, in a recording."""
    captures_path = captures_of(path)
    if not captures_path.is_file():
        raise ApplyError(
            f"{path}: recorded without depgraph.torch.parallelize: there is no "
            f"{captures_path.name}",
            "let depgraph apply record it",
        )
    store = Store(path)
    captures = read_captures(captures_path, store.identity)
    which = next((i for i, each in enumerate(captures) if each.call == call), None)
    if which is None:
        raise ApplyError(
            f"{path}: call {call} of depgraph.torch.parallelize is not in it, counted from 0",
            "record the program as it is now",
        )
    if captured is not None:
        refuse_other_nodes(captures[which], captured)
    operation = match_nodes(captures, operations_of(store.kernels, store.copies), which)
    return RecordedCall(store, captures[which], tuple(operation))
