"""Dataflow that learns: a sequence of kernels keeps its barriers the first time it is seen."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import NotApplicableError
from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.rules import Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario


class DataflowLearned(Mechanism):
    """Dataflow whose dependences are learned from a kernel's first launch."""

    name = "dataflow-learned"
    rule = (
        "as dataflow, but a kernel keeps its barrier unless an earlier one had the same function, "
        "grid, block and pattern of dependences"
    )
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Put a barrier before each kernel that is not yet known."""
        del charges
        learned = learned_kernels(program)
        kernels = int(program.is_kernel.sum())
        share = learned.sum() / kernels if kernels else 0.0
        return Rules(
            waits_for_all=program.is_kernel & ~learned,
            strict=False,
        ).assuming(
            f"{int(learned.sum())} of {kernels} launches ({100 * share:.1f} %) reuse what an "
            "earlier one taught"
        )


def learned_kernels(program: Scenario) -> NDArray[np.bool_]:
    """Tell which operations repeat an earlier kernel: bool[n_operations].

    Two kernels are alike if function, grid and block are the same, and they depend in the same way
    on kernels as far before them, whatever the addresses.

    Raises
    ------
    NotApplicableError
        If the names of the functions are not known.
    """
    if not program.functions or program.block is None:
        raise NotApplicableError("dataflow-learned needs the names of the kernels")
    graph = program.graph
    joins_of = np.searchsorted(graph.join_target_operation, np.arange(graph.n_operations + 1))
    seen: set[bytes] = set()
    learned = np.zeros(graph.n_operations, np.bool_)
    for k in np.flatnonzero(program.is_kernel).tolist():
        digest = hashlib.sha256(program.functions[k].encode())
        digest.update(program.shape[k].tobytes() + program.block[k].tobytes())
        joins = [_relative(graph, j) for j in range(joins_of[k], joins_of[k + 1])]
        for join in sorted(joins):
            digest.update(join)
        learned[k] = digest.digest() in seen
        seen.add(digest.digest())
    return learned


def _relative(graph: BlockGraph, join: int) -> bytes:
    """Describe a join by distances in kernels and block numbers within them."""
    source, target = graph.join_source_operation[join], graph.join_target_operation[join]
    digest = hashlib.sha256(bytes([graph.join_kind[join]]) + int(target - source).to_bytes(4))
    for operation, offsets, sets in (
        (source, graph.source_offsets, graph.sources),
        (target, graph.target_offsets, graph.targets),
    ):
        lists = sorted(
            (
                graph.set_blocks[graph.set_offsets[s] : graph.set_offsets[s + 1]]
                - graph.first_block[operation]
            ).tobytes()
            for s in sets[offsets[join] : offsets[join + 1]]
        )
        for blocks in lists:
            digest.update(len(blocks).to_bytes(8) + blocks)
    return digest.digest()
