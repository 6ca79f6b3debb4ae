"""What is known of a program on one GPU size when a verdict is made; worked out when asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from depgraph.analysis.as_launched import AsLaunched, as_launched
from depgraph.analysis.carve_outs import CarveOutConflict, carve_out_conflicts, without_carve_outs
from depgraph.analysis.kernel_loads import kernel_loads
from depgraph.analysis.next_steps import AS_USUAL, Invocation
from depgraph.analysis.outcome import limits_of
from depgraph.analysis.predictions import predict, predict_as_graph
from depgraph.analysis.renaming import study_renaming
from depgraph.errors import NotApplicableError
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.predicted_time import captured_streams, graph_chain, predicted_time
from depgraph.mechanisms.streams import Streams
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.system.ratios import share_of
from depgraph.timing.durations import kernel_makespans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.kernel_loads import KernelLoad
    from depgraph.analysis.outcome import Bound
    from depgraph.analysis.predictions import Prediction
    from depgraph.analysis.renaming import BufferSet, Renaming
    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.predicted_time import Predicted
    from depgraph.scenario.scenario import Scenario

_MOST_OF_IT = 0.9
_AS_GOOD = 0.98


@dataclass(frozen=True)
class Findings:
    """A program on one GPU size."""

    scenario: Scenario  # on one number of SMs
    invocation: Invocation = AS_USUAL  # how the user asked about it
    known: Sequence[Bound] = ()  # bounds of this scenario that need not be worked out again

    @cached_property
    def bound(self) -> Bound:
        """The bound with all dependences that count."""
        return self._bound(self.scenario)

    @cached_property
    def renamed(self) -> Bound:
        """The bound with RAW dependences only."""
        if "RAW" not in self.scenario.graph.kinds:
            return self.bound
        return self._bound(self.scenario.with_kinds({"RAW"}))

    @cached_property
    def inline(self) -> Bound:
        """The bound if no block launched a child kernel, but did that work itself."""
        graph = replace(self.scenario.graph, launches=None)
        return limits_of(self.scenario.with_graph(graph).without_launches())

    def _bound(self, scenario: Scenario) -> Bound:
        wanted = scenario.sms, scenario.dependences
        known = (b for b in self.known if (b.sms, b.dependences) == wanted)
        return next(known, None) or limits_of(scenario.without_launches())

    @property
    def utilization(self) -> float:
        """Share of the SMs that kernels, one after another, keep busy, 0 to 1."""
        return share_of(self.bound.work, self.bound.serial)

    @cached_property
    def longest_share(self) -> float:
        """Part of the serial time that the longest kernel takes, 0 to 1."""
        scenario = self.scenario
        slots = scenario.occupancy * int(min(scenario.sms, scenario.graph.n_blocks))
        times = kernel_makespans(scenario.graph, scenario.durations, slots)
        return share_of(float(times.max(initial=0.0)), self.bound.serial)

    @cached_property
    def launched(self) -> AsLaunched:
        """What the program does today."""
        return as_launched(self.scenario, self.bound)

    @cached_property
    def loads(self) -> list[KernelLoad]:
        """How each kernel, alone, fills the SMs."""
        return [] if math.isinf(self.scenario.sms) else kernel_loads(self.scenario)

    @cached_property
    def renaming(self) -> Renaming | None:
        """What renaming buffers brings; None where addresses are not known."""
        try:
            return study_renaming(self.scenario.without_launches())
        except NotApplicableError:
            return None

    @property
    def buffer_set(self) -> BufferSet | None:
        """The smallest set of buffers that brings most of what renaming all would."""
        if self.renaming is None or not self.renaming.sets:
            return None
        sets = self.renaming.sets
        least = _MOST_OF_IT * sets[-1].upper_bound
        return next(each for each in sets if each.upper_bound >= least)

    @cached_property
    def predictions(self) -> list[Prediction]:
        """What policies that ship today would be measured at, the cheapest to use first."""
        policies: list[Mechanism] = [CudaGraph(), ProgrammaticDependentLaunch()]
        if self.launched.streams > 1:
            policies.insert(0, Streams())
        had = [each for each in policies if not each.lacking_for(self.scenario)]
        return predict(had, self.scenario)

    @property
    def known_predictions(self) -> tuple[Prediction, ...]:
        """Those of `predictions` if a rule has asked for them: they are not worked out for this."""
        return tuple(vars(self).get("predictions", ()))

    @property
    def best_prediction(self) -> Prediction:
        """The cheapest of the policies that ship today among those that are as good as the best."""
        best = max(each.gain for each in self.predictions)
        return next(each for each in self.predictions if each.gain >= _AS_GOOD * best)

    @cached_property
    def renamed_scenario(self) -> Scenario:
        """The program with the buffers of `buffer_set` renamed."""
        texts = () if self.buffer_set is None else self.buffer_set.what_ifs
        return apply_what_ifs(self.scenario, [parse_what_if(text) for text in texts])

    @cached_property
    def renamed_prediction(self) -> Prediction | None:
        """What a CUDA graph of it would be measured at."""
        return None if self.buffer_set is None else predict_as_graph(self.renamed_scenario)

    @property
    def graph_prediction(self) -> Prediction:
        """What a CUDA graph with parallel branches would be measured at."""
        return next(each for each in self.predictions if each.policy == CudaGraph.name)

    @cached_property
    def launched_graph(self) -> tuple[Mechanism, Predicted]:
        """The program captured as it is launched, and what that graph would be measured at."""
        if self.launched.streams <= 1:
            return graph_chain(self.scenario), self.graph_prediction.chain
        graph = captured_streams(self.scenario)
        return graph, predicted_time(graph, self.scenario)

    @cached_property
    def conflicts(self) -> list[CarveOutConflict]:
        """Kernels that would run at a time as a CUDA graph, but cannot share SMs."""
        return carve_out_conflicts(self.scenario.priced)

    @cached_property
    def together(self) -> Prediction | None:
        """What a CUDA graph would be measured at if any two kernels could share an SM."""
        return predict_as_graph(without_carve_outs(self.scenario)) if self.conflicts else None

    @cached_property
    def tails(self) -> Sequence[KernelLoad]:
        """Kernels whose last wave does not fill the SMs, those that lose most first."""
        found = [load for load in self.loads if load.tail_cost > 0]
        return sorted(found, key=lambda load: (-load.tail_cost, load.kernel))
