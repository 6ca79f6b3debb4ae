"""What a check in another process found of a function's graphs."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from depgraph.apply.captured import Captured
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.order import Edge
from depgraph.errors import ApplyError
from depgraph.store.companions import checked, read_companion, write_companion
from depgraph.system.output import new_file
from depgraph.system.strict_json import restore


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one graph."""

    name: str
    edges: str  # tells the graph's edges from others
    measured: float  # microseconds a replay, there
    wrong: str = ""  # why it must not be used; "" if nothing was found
    orders: int = 0  # in which it was run
    pairs_left: int = 0  # free pairs of nodes that no order turned around


@dataclass(slots=True)
class Verdicts:
    """What came of a function."""

    refused: str = ""  # why it cannot run as a graph at all; "" if it can
    weights: list[float] = field(default_factory=list)  # microseconds of each node
    graphs: list[Verdict] = field(default_factory=list)
    inputs: int = 0  # how many inputs results were compared on
    varies: bool = False  # whether the function leaves other bits in each run
    may_change: list[str] = field(default_factory=list)  # paths to tensors custom kernels reach
    codes: dict[str, KernelCode] = field(default_factory=dict)  # of such kernels, by name
    wants_code: bool = False  # whether the machine code of its kernels is to be read first
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path, *, store: str = "", call: int = 0) -> None:
        """Write them, for `read`; beside a store, with its id and the number of the call."""
        codes = {
            name: {**asdict(code), "stored": sorted(code.stored)}
            for name, code in self.codes.items()
        }
        with new_file(path, force=True) as made:
            write_companion(made, {**asdict(self), "codes": codes}, store=store, what=checked(call))

    @classmethod
    def read(cls, path: Path, store: str = "", *, call: int = 0) -> "Verdicts":
        """Read what `write` wrote; refuse what is damaged, or goes with another store or call."""
        found = read_companion(path, store, what=checked(call))
        try:
            verdicts: Verdicts = restore(cls, found)
        except ValueError as error:
            raise ApplyError(f"{path}: what the check found cannot be read ({error})") from None
        return verdicts

    def of(self, name: str, edges: str) -> Verdict | None:
        """Return what came of a graph; None if it was not looked at."""
        return next((v for v in self.graphs if v.name == name and v.edges == edges), None)


def fingerprint(captured: Captured, edges: Sequence[Edge]) -> str:
    """Return a text that tells a graph from others: its operators, kernels and edges."""
    digest = hashlib.sha256()
    for call in captured.calls:
        shapes = [(o.name, o.view.shape, o.view.strides, o.is_written) for o in call.operands]
        digest.update(repr((call.name, shapes)).encode())
    for node in captured.nodes:
        digest.update(repr((node.kind, node.name, node.grid, node.block, node.call)).encode())
    digest.update(repr(list(edges)).encode())
    return digest.hexdigest()[:16]
