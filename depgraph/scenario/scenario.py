"""The scenario: the one input of bounds, mechanisms, what-ifs, reports and exports."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.gpu.model import MeasuredErrors, calibrated_gpu
from depgraph.gpu.sm_resources import SmResources, sm_resources
from depgraph.graph.dependences import KIND_NAMES, PairSummary, Uncertainty, uncertainty
from depgraph.system.arrays import columns_of
from depgraph.system.text import convert_time
from depgraph.timing.program_times import (
    NO_COSTS,
    OF_GPU,
    Durations,
    LaunchChoice,
    LaunchModel,
    kernel_makespans,
    launch_model,
)

if TYPE_CHECKING:
    import networkx as nx

    from depgraph.footprint.footprints import Footprints
    from depgraph.gpu.sm_sharing import SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import DeviceLaunches, Kernel
    from depgraph.scenario.contention import Contention, Trust
    from depgraph.scenario.of_store import Request
    from depgraph.store.store import Store
    from depgraph.timing.fit import Fit
    from depgraph.timing.matched_profile import AluUse
    from depgraph.timing.measured_run import MeasuredRun
    from depgraph.timing.profile import Site
    from depgraph.trace.records import Allocation


class MeasuredSchedule(NamedTuple):
    """How the program ran on the GPU that was profiled."""

    sms: int
    wall: float  # from the start of the first kernel to the end of the last one
    speedup: float  # serial time on that GPU, without launch gaps, over `wall`
    utilization: float  # work over `wall`, 0 to 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ScenarioFacts:
    """What is given of a program and a GPU, and follows from it; `Scenario` adds what is varied."""

    graph: BlockGraph
    timing: Durations
    resources_of: Callable[[BlockGraph], SmResources] = sm_resources
    kernels: Sequence[Kernel] = ()
    sms: float = math.inf
    launch: LaunchModel = NO_COSTS
    memory: float = 0.0
    fit: Fit | None = None
    run: MeasuredRun | None = None
    measured: MeasuredSchedule | None = None
    read_footprints: Callable[[], Footprints] | None = None
    granularity: int = 1
    allocations: Sequence[Allocation] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    profile_clock_mhz: float | None = None
    measured_on: Callable[[BlockGraph], SmResources] | None = None
    measured_sms: int | None = None
    contention: Contention = "none"
    alu: AluUse | None = None
    sites: Mapping[int, Site] = field(default_factory=dict)

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Which operations are kernels: bool[n_operations]."""
        return self.graph.kernel >= 0

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """Stream of each operation: int64[n_operations]."""
        resources = self.graph.resources
        if resources is None:
            return np.zeros(self.graph.n_operations, np.int64)
        return resources.stream

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Name of each operation's function; empty if unknown."""
        if not self.kernels:
            return ()
        names = [""] * self.graph.n_operations
        for kernel in self.kernels:
            names[kernel.operation] = kernel.name
        return tuple(names)

    @cached_property
    def shape(self) -> NDArray[np.int64]:
        """Grid of each operation: int64[n_operations, 3]."""
        if not self.kernels:
            raise NotApplicableError("rows of blocks need the grids of the kernels")
        return self._sizes("grid")

    @cached_property
    def block(self) -> NDArray[np.int64] | None:
        """Threads of a block of each operation: int64[n_operations, 3]; None if unknown."""
        return self._sizes("block") if self.kernels else None

    def _sizes(self, name: str) -> NDArray[np.int64]:
        sizes = np.ones((self.graph.n_operations, 3), np.int64)
        columns = columns_of(self.kernels, ("operation", *(f"{name}_{axis}" for axis in "xyz")))
        operations, *of_axes = columns.values()
        for axis, values in enumerate(of_axes):
            sizes[operations, axis] = values
        return sizes

    @cached_property
    def clusters(self) -> NDArray[np.int64]:
        """How many blocks names of kernels say are placed together: int64[n_operations]."""
        from depgraph.gpu.sm_sharing import clusters_of  # only schedules of kernels need it

        blocks = np.diff(self.graph.first_block)
        if not self.kernels:
            return np.ones(len(blocks), np.int64)
        return clusters_of(self.functions, self.shape, blocks, self.resources.gpu)

    @cached_property
    def opaque(self) -> NDArray[np.bool_]:
        """Whether the trace cannot show all that an operation touches: bool[n_operations]."""
        opaque = np.zeros(self.graph.n_operations, np.bool_)
        for kernel in self.kernels:
            opaque[kernel.operation] = kernel.untraced is not None
        return opaque

    @cached_property
    def bound_graph(self) -> BlockGraph:
        """The dependences that certainly are: a bound may count no others."""
        return self.graph.certain()

    @property
    def pairs(self) -> Sequence[PairSummary]:
        """What of the graph is between each two kernels."""
        return self.graph.pairs()

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """What of the dependences is not certain."""
        return uncertainty(self.kernels, self.pairs)

    @cached_property
    def resources(self) -> SmResources:
        """What one SM holds, and what blocks take of it."""
        return self.resources_of(self.graph)

    @property
    def occupancy(self) -> NDArray[np.int64]:
        """Blocks of each operation that one SM holds: int64[n_operations]."""
        return self.resources.occupancy

    @property
    def durations(self) -> NDArray[np.float64]:
        """How long each block takes: float64[n_blocks]."""
        return self.timing.values

    @property
    def launches(self) -> DeviceLaunches | None:
        """Child kernels that blocks can launch; None where there are none."""
        return self.graph.launches

    @property
    def own_durations(self) -> NDArray[np.float64]:
        """How long blocks take without the work of child kernels: float64[n_blocks]."""
        own = None if self.launches is None else self.graph.duration
        return self.durations if own is None else np.where(np.isnan(own), self.durations, own)

    @property
    def least_durations(self) -> NDArray[np.float64]:
        """What paths add up, child kernels included that blocks launch: float64[n_blocks]."""
        if self.launches is None:
            return self.durations
        return self.launches.least_durations(self.own_durations)

    @property
    def unit(self) -> str:
        """Unit of all times."""
        return self.timing.unit

    @property
    def dependences(self) -> str:
        """Kinds of dependence that count, such as "RAW,WAR,WAW"."""
        return ",".join(kind for kind in KIND_NAMES if kind in self.graph.kinds)

    @property
    def clock_mhz(self) -> float | None:
        """Cycles a microsecond: as the profile states them, else the GPU's boost clock."""
        return self.profile_clock_mhz or self.resources.gpu.boost_clock_mhz

    @property
    def work(self) -> float:
        """Time below which the SMs keep every schedule; see `SmResources.work`."""
        least = self.durations  # what a child kernel can do counts as the cheaper of the two ways
        if self.launches is not None:
            least = self.launches.least_work(self.own_durations)
        return self.resources.work(self.graph.operation_of_block, least, self.sms)

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """What each block takes of an SM, of the resource that sets the work: float64[n_blocks]."""
        return self.resources.shares(self.graph.operation_of_block, self.durations)

    @cached_property
    def kernel_times(self) -> NDArray[np.float64]:
        """How long each operation takes alone on the GPU it was measured on: float64[n]."""
        on = self.measured_on(self.graph) if self.measured_on else self.resources
        slots = on.occupancy * (self.measured_sms or on.gpu.sms)
        return kernel_makespans(self.graph, self.durations, slots) + self.memory_times

    @cached_property
    def memory_times(self) -> NDArray[np.float64]:
        """What predictions, and no bounds, let each memset and copy take: float64[n_operations]."""
        times = np.zeros(self.graph.n_operations)
        if self.fit is None or self.fit.match is None:
            return times
        is_memory = self.graph.kernel < 0
        known = self.fit.match.memory_node_times(int(is_memory.sum()))
        if known is not None:
            beyond = calibrated_gpu(self.resources.gpu).graph_memory_us or 0.0
            beyond = convert_time(beyond, "us", self.unit, self.clock_mhz) or 0.0
            times[is_memory] = known + beyond
        return times

    @property
    def is_timed(self) -> bool:
        """Whether durations are times, on a number of SMs: else there is nothing to predict."""
        return self.microseconds(1.0) is not None and not math.isinf(self.sms)

    def microseconds(self, time: float) -> float | None:
        """Return a time in microseconds; None where durations are no times."""
        return convert_time(time, self.unit, "us", self.clock_mhz)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario(ScenarioFacts):
    """A program, how long its blocks take, and the GPU that it is to run on.

    What-ifs have been applied: everything here is of the changed program.

    Attributes
    ----------
    graph : BlockGraph
        With the kinds of dependence that count.
    timing : Durations
        How long blocks take, in what unit, and where that comes from.
    resources_of : callable
        From a graph to what its blocks take of an SM; default by the limits of the GPU that the
        trace suggests.
    kernels : sequence of Kernel
        Empty where only the graph is known.
    sms : float
        Number of SMs, infinite for no limit. Most functions take it from elsewhere; see `on`.
    launch, memory : LaunchModel, float
        What launches cost, in the unit of the durations; time below which the memory bandwidth
        keeps every schedule, 0 where it does not count.
    fit : Fit or None
        Whether the profile is of this program.
    run, measured : MeasuredRun or None, MeasuredSchedule or None
        How the program ran when it was profiled, and the same as a schedule beside others.
    read_footprints : callable or None
        Returns the byte-exact footprints of all blocks.
    granularity, metadata : int, mapping
        Bytes that dependences were tracked by; the store's provenance.
    profile_clock_mhz : float or None
        Clock that the profile states.
    measured_on, measured_sms : callable or None, int or None
        The same as `resources_of` for the GPU that kernels were measured on, and its SMs; None
        where that is not known to be another one.
    contention : {"none", "sm", "full"}
        Whether predictions let blocks of one SM slow each other, and keep kernels that need
        different carve-outs from sharing one.
    alu, sites : AluUse or None, mapping of int to Site
        How busy the arithmetic was, and where in the code kernels were launched, by kernel number,
        as far as the profile says so.
    allocations : sequence of Allocation
        Where the input knows of frees.
    """

    @staticmethod
    def of_store(
        store: Store, request: Request | None = None, *, tell: Callable[[str], None] = warn
    ) -> Scenario:
        """Put together what a store and a request describe; `tell` takes what is odd about times.

        Raises
        ------
        StoreError
            If the times beside the store are damaged, or another store's.
        ModelError, ProfileError
            If the request makes no sense for the store.
        """
        from depgraph.scenario.of_store import Request, scenario_of_store

        return scenario_of_store(store, request or Request(), tell)

    def on(self, sms: float) -> Scenario:
        """Return the same on a GPU of so many SMs."""
        return self._with("sms", sms)

    def with_launch(self, launch: LaunchModel) -> Scenario:
        """Return the same with other launch costs."""
        return self._with("launch", launch)

    def without_launches(self) -> Scenario:
        """Return the same without launch costs, as bounds count."""
        return self.with_launch(NO_COSTS)

    def _with(self, name: str, value: object) -> Scenario:
        # What is known already depends on neither SMs nor launch costs: it is kept.
        same = copy.copy(self)
        object.__setattr__(same, name, value)
        return same

    def with_graph(self, graph: BlockGraph) -> Scenario:
        """Return the scenario with other dependences between the same blocks."""
        changed = replace(self, graph=graph)
        if "resources" in vars(self):
            vars(changed)["resources"] = self.resources
        return changed

    def with_kinds(self, kinds: Collection[str]) -> Scenario:
        """Return the scenario with only some kinds of dependence."""
        return self.with_graph(self.graph.with_kinds(kinds))

    def with_durations(self, values: NDArray[np.float64], *notes: str) -> Scenario:
        """Return the scenario with other durations of its blocks."""
        return replace(self, timing=replace(self.timing, values=values).noting(*notes))

    def noting(self, *notes: str) -> Scenario:
        """Return the scenario with more assumptions."""
        return replace(self, timing=self.timing.noting(*notes))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What all times rest on, and how far predictions can be trusted."""
        trust = self.trust
        return (
            *self.timing.assumptions,
            *self.resources.assumptions,
            *self.launch.describe(self.unit),
            *(() if trust is None else (trust.caveat,)),
        )

    @property
    def trust(self) -> Trust | None:
        """How far predictions can be trusted; None where durations are no times."""
        if self.unit == "instructions":
            return None
        from depgraph.scenario.contention import trust_in  # only predictions need it

        return trust_in(self.resources.gpu, contention=self.sharing is not None)

    @property
    def is_eager(self) -> bool:
        """Whether kernels were timed as they were launched one by one, not in a CUDA graph."""
        return self.fit is not None and self.fit.match is not None and self.fit.match.is_eager

    @property
    def eager_errors(self) -> MeasuredErrors | None:
        """How far such times are from those in a CUDA graph; None where nobody knows."""
        from depgraph.scenario.contention import EAGER

        return self.trust.of(EAGER) if self.is_eager and self.trust is not None else None

    @property
    def priced(self) -> Scenario:
        """The same with launch costs: those it has, else those of the GPU's model.

        What is predicted to be measured includes what launches cost, even where the user did not
        ask for it. Durations that are no times have none.
        """
        if self.launch != NO_COSTS:  # the user may have said that launches cost nothing
            return self
        gpu, choice = self.resources.gpu, LaunchChoice(OF_GPU, {})
        return self.with_launch(
            launch_model(choice, unit=self.unit, gpu=gpu, clock_mhz=self.clock_mhz)
        )

    def on_any_sm(self) -> Scenario:
        """Return the same where any two kernels may share an SM, and none is led to some."""
        if self.sharing is None or not self._keeps_blocks_off:
            return self
        _ = self._work_of_blocks  # of kernels that may share none
        same = self.sharing._replace(carve_outs=None, cluster_start=0.0)
        return self._with("sharing", same)

    @cached_property
    def sharing(self) -> SmSharing | None:
        """How blocks on one SM slow each other; None where predictions have no contention.

        Durations that count instructions are no times: nothing is measured that contention could be
        fitted to. With child kernels no schedule has it.
        """
        is_timed = self.unit != "instructions" and self.launches is None
        if self.contention == "none" or not is_timed:
            return None
        return self._sharing_on(self.resources)

    def _sharing_on(self, resources: SmResources) -> SmSharing:
        from depgraph.gpu.sm_sharing import sm_sharing  # only predictions need it

        return sm_sharing(resources, self.functions, carve_outs=self.contention == "full")

    @property
    def has_predictions(self) -> bool:
        """Whether schedules are made with contention too: never without a limit of SMs."""
        return self.sharing is not None and not math.isinf(self.sms)

    @property
    def _keeps_blocks_off(self) -> bool:
        """Whether some kernels keep blocks of others off SMs that have room."""
        sharing = self.sharing
        cuts = None if sharing is None else sharing.carve_outs
        apart = cuts is not None and cuts.keep_apart(self.is_kernel)
        return apart or bool((self.clusters > 1).any())

    @property
    def _microsecond(self) -> float:
        return convert_time(1.0, "us", self.unit, self.clock_mhz) or 0.0

    @cached_property
    def _work_of_blocks(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._work(in_step=False)

    @cached_property
    def _work_in_step(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._work(in_step=True)

    def _work(self, *, in_step: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        from depgraph.scenario.contention import work_of_blocks  # only predictions need it

        on = self.measured_on(self.graph) if self.measured_on else self.resources
        work, lead = work_of_blocks(
            self.graph, self.timing, on, self.measured_sms, self._sharing_on(on), self._microsecond,
            in_step=in_step,
        )  # fmt: skip
        own = self.memory_times[self.graph.operation_of_block]
        return np.where(own > 0, own, work), lead

    @property
    def in_step(self) -> Scenario:
        """The same where all SMs do the blocks of a kernel in the same order.

        Blocks that wait in their slots for the kernel before stay as even over the SMs as its
        blocks were: so it was with most chains of 20 kernels (``samples/validation``). Where only
        some blocks of a kernel found slots before the one before it ended, the others piled up in
        a third of them.
        """
        return self._with("_work_of_blocks", self._work_in_step)

    @property
    def contended(self) -> Scenario:
        """The same, the durations being what blocks would take at a rate of 1."""
        work, lead = self._work_of_blocks
        same = self._with("timing", replace(self.timing, values=work))
        vars(same)["kernel_times"] = self.kernel_times
        if self.sharing is not None:
            blocks = np.diff(self.graph.first_block)
            vars(same)["sharing"] = self.sharing.timed(
                lead, blocks, self.kernel_times, self._microsecond
            )
        return same

    def to_networkx(self, level: str = "kernel") -> nx.DiGraph[Any]:
        """Return the graph for networkx, with what is known of its nodes; see `described_graph`."""
        from depgraph.scenario.described_graph import described_graph

        return described_graph(self, level)
