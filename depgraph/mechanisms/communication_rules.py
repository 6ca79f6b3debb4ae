"""Computation beside communication: what a GPU's SMs, links and copy engines make of it."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.graph.program import Collective, Communication
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Mechanism,
    Remembered,
    gated,
    one_by_one,
    whole_number,
)
from depgraph.mechanisms.streams import across_streams, previous_in_stream
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, IGNORED, PLACES, Against, Gates, Places, Rules
from depgraph.system.text import clean_text, in_short

# Of a link, so that it is shared out to any number of blocks with nothing left for one more.
_LINK = 1 << 40
_NAMED = 3
_AMD = "AMD"
_CONCCL = "ConCCL (arXiv 2412.14335)"
_TWO_QUEUES = (
    "not to be believed on GPUs of AMD: they serve two queues in turn (21 % of ideal, "
    + _CONCCL
    + "), here a collective waits until the last blocks before it are placed"
)
_FEWER = (
    "not to be believed: SMs fewer beside copy engines only cost time here, hardware may gain "
    "by less pressure on caches (72 instead of 66 % of ideal on AMD, "
    + _CONCCL
    + "; two H200s lost by it)"
)


def _collectives(program: Scenario) -> list[Collective | None]:
    """Return the collective of each operation, None for computation; refuse parts of kernels."""
    known = Communication.from_metadata(program.metadata).collectives
    if not known or not program.functions:
        raise NotApplicableError("the program has no collectives: describe some")
    present = set(program.functions)
    gone = [name for name in known if name not in present]
    if gone:
        names = ", ".join(in_short(clean_text(name)) for name in gone[:_NAMED])
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        message = f"merge= made {names}{more} part of another kernel, no collective: leave it out"
        raise NotApplicableError(message)
    return [known.get(name) for name in program.functions]


class CollectiveOverlap(Mechanism):
    """Streams in which some kernels are collectives, to which computation may leave SMs."""

    first: ClassVar[bool] = False
    reserves: ClassVar[bool] = False
    by_dma: ClassVar[bool] = False
    in_groups: ClassVar[bool] = False

    name = "c3"
    rule = (
        "collectives run on their own stream and SMs; a kernel's blocks are placed once those of "
        "kernels that were ready before it are; computation and communication slow each other"
    )
    cost = "launches: host and gap of each kernel"
    family = "collectives"
    availability = Availability.SHIPS
    source = _CONCCL
    costs = (LAUNCH,)
    needs_collectives = True

    def __init__(self, sms: int | None = None) -> None:
        self.sms = sms
        self.shown = () if sms is None else (sms,)
        self._collectives = Remembered(_collectives)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate kernels by their streams, and put collectives where they run."""
        collectives = self._collectives(program)
        communicates = np.array([each is not None for each in collectives])
        graph = program.graph
        of_collective = self.in_groups & (communicates[graph.join_target_operation])
        gates = Gates.between(*previous_in_stream(program), ALL_ENDED)
        source, target = across_streams(program)
        kept = ~(self.in_groups & communicates[target])
        gates += Gates.between(source[kept], target[kept], ALL_ENDED)
        places, durations, notes = self._places(program, collectives, communicates)
        is_as_launched = not (self.first or self.reserves or self.by_dma or self.in_groups)
        if is_as_launched and program.resources.gpu.vendor == _AMD:
            notes = (*notes, _TWO_QUEUES)
        if self.by_dma and self.sms and not np.isinf(program.sms):
            notes = (*notes, _FEWER)
        return gated(
            one_by_one(program, charges),
            gates,
            joins=np.where(of_collective, PLACES, IGNORED).astype(np.uint8),
            order=self._order(program, gates, communicates),
            durations=durations,
            places=places,
            against=Against.ENGINES if self.by_dma else Against.BLOCK,
            assumptions=notes,
        )

    def _order(
        self, program: Scenario, gates: Gates, communicates: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return blocks in the order in which their kernels come to their turn."""
        graph = program.graph
        turn = np.zeros(graph.n_operations, np.int64)
        for at in np.argsort(gates.target, kind="stable"):
            source, target = gates.source[at], gates.target[at]
            turn[target] = max(turn[target], turn[source] + 1)
        ready = turn[graph.operation_of_block]
        if self.first or self.in_groups:
            return np.lexsort((ready, ~communicates[graph.operation_of_block]))
        return np.argsort(ready, kind="stable")

    def _places(
        self,
        program: Scenario,
        collectives: list[Collective | None],
        communicates: NDArray[np.bool_],
    ) -> tuple[Places, NDArray[np.float64], tuple[str, ...]]:
        """Return where blocks run, how long they take there, and what that assumes."""
        graph = program.graph
        links = Communication.from_metadata(program.metadata).links
        number = {name: i for i, name in enumerate(links)}
        is_limited = not np.isinf(program.sms)
        sms = int(program.sms) if is_limited else graph.n_blocks
        n = graph.n_operations
        first, last = np.zeros(n, np.int64), np.full(n, sms - 1, np.int64)
        link, taken = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        durations = program.durations.copy()
        blocks_of = np.diff(graph.first_block)
        for k, collective in enumerate(collectives):
            if collective is None:
                continue
            crossed = links[collective.link]
            link[k], taken[k] = number[collective.link], _LINK // blocks_of[k]
            if collective.engine == "dma" or self.by_dma:
                # One engine moves what all its blocks did.
                first[k] = last[k] = sms
                taken[k] = _LINK // (crossed.engines * blocks_of[k])
                durations[graph.first_block[k] : graph.first_block[k + 1]] *= collective.slower_by(
                    "dma", crossed
                )
        on_sms = communicates & (first < sms)
        # Where SMs have no number, all have room, and nothing slows anything.
        reserved, notes = (self.sms or 0) if is_limited else 0, []
        if is_limited and self.reserves and self.sms is None:
            reserved = int(min(blocks_of[on_sms].max(initial=0), sms))
        if reserved >= sms:
            raise NotApplicableError(f"{reserved} of {sms} SMs leave computation none")
        if reserved:
            last[~communicates] = sms - reserved - 1
            first[on_sms] = sms - reserved
            notes = [f"computation has {sms - reserved} of {sms} SMs"]
        crossed_links = [links[c.link] for c in collectives if c is not None]
        beside = (
            max(crossed.computation_slowed for crossed in crossed_links),
            max(crossed.communication_slowed for crossed in crossed_links),
        )
        if is_limited and any(beside):
            notes.append(
                f"computation takes {100 * beside[0]:g} % longer beside communication, "
                f"communication {100 * beside[1]:g} % beside computation, as the link says"
            )
        capacity = np.full(len(links), _LINK, np.int64)
        places = Places(first, last, link, taken, capacity, communicates, beside)
        return places, durations, tuple(notes)


class CommunicationFirst(CollectiveOverlap):
    """Blocks of collectives before all others."""

    name = "c3-first"
    rule = "as c3, but blocks of collectives are placed before those of computation"
    first = True


class ReservedForCommunication(CollectiveOverlap):
    """SMs for collectives alone."""

    name = "c3-reserved"
    signature = "c3-reserved(k)"
    takes = (whole_number,)
    rule = "as c3, but collectives have k SMs to themselves (default: as many as they take)"
    reserves = True


class FirstAndReserved(ReservedForCommunication):
    """Both: their own SMs, and placed first."""

    name = "c3-both"
    signature = "c3-both(k)"
    rule = "collectives are placed first, and have k SMs to themselves"
    first = True


class ByCopyEngine(CollectiveOverlap):
    """Copy engines move the data, and SMs only compute."""

    name = "c3-dma"
    signature = "c3-dma(k)"
    takes = (whole_number,)
    rule = "copy engines move what collectives do, and take no SM; computation has k SMs fewer"
    availability = Availability.CODE
    by_dma = True


class TileGroups(CollectiveOverlap):
    """A part of a collective starts once its group of tiles is done."""

    name = "c3-groups"
    signature = "c3-groups(k)"
    takes = (whole_number,)
    rule = (
        "a part of a collective starts once the blocks that it depends on have ended, on k SMs of "
        "its own if given"
    )
    availability = Availability.CODE
    source = "FlashOverlap (arXiv 2504.19519; infinigence/FlashOverlap)"
    in_groups = True


COMMUNICATION_RULES = (
    CollectiveOverlap, CommunicationFirst, ReservedForCommunication, FirstAndReserved,
    ByCopyEngine, TileGroups,
)  # fmt: skip
