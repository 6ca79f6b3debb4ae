"""Rules of the verdict as data: when each applies, what it says, what to do next.

``docs/verdicts.md`` explains each.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from depgraph.analysis.bound import MEMORY
from depgraph.analysis.buffers import allocators
from depgraph.analysis.findings import AsLaunched, Findings, Prediction
from depgraph.analysis.next_steps import Step
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.streams import Streams
from depgraph.system.arrays import grouped
from depgraph.system.text import (
    clean_text,
    counted,
    in_short,
    kernels_text,
    operations_text,
    ratio,
    show_bytes,
    show_factor,
    show_number,
    show_percent,
    size_text,
)
from depgraph.trace.names import base_name

BUFFERS = "reused-buffers"
"""The rule that names buffers."""
MOSTLY_IDLE = 0.5
"""A program is launch-bound where no kernel runs for more than this part of its wall time."""
FAR_ABOVE = 1.25
"""Buffers are named where the bound with RAW only is so many times the bound."""
LITTLE = 1.1
"""Less than this is no speedup worth having."""
BUSY = 0.5
"""Kernels fill the GPU where they keep this part of it busy, one after another."""
TAIL_COST = 0.05
"""Tail waves are named where they cost this part of the serial time."""
CARVE_OUT_COST = 0.05
"""Carve-outs are named where they cost this part of the time of a CUDA graph."""
_SHOWN = 3
_NAME_WIDTH = 32
_STATEMENTS_SHOWN = 20
_BATCH = Step("batch more work into each kernel, or fuse: torch.compile, fused optimizers")
_PYTORCH = "at::native"  # in the names of PyTorch's own kernels
_ANY_OVERLAP = 1.02  # kernels that took longer, added up, than the time in which any ran
_ANYTHING = 1.005  # a factor below it is shown as 1.00x
_DIFFERENT = 0.02
_POLICIES = {
    Streams.name: "with its own streams",
    CudaGraph.name: "as a {graph} with parallel branches",
    ProgrammaticDependentLaunch.name: "with programmatic dependent launch",
}


class Topic(Enum):
    """What a rule is about: of each topic one applies at most."""

    LAUNCHES = "launches"
    OVERLAP = "overlap"
    CARVE_OUTS = "carve-outs"


class Rule(NamedTuple):
    """A rule of the verdict."""

    name: str  # as in ``docs/verdicts.md``
    topic: Topic
    applies: Callable[[Findings], bool]
    says: Callable[[Findings], str]  # the sentence
    steps: Callable[[Findings], Sequence[Step]] = lambda _: ()  # what to do next


def _mostly_idle(facts: Findings) -> bool:
    return facts.launched.idle_share > MOSTLY_IDLE


def _launch_bound_applies(facts: Findings) -> bool:
    run = facts.launched.run
    return _mostly_idle(facts) and not (run is not None and run.is_graph)


def _idle(facts: Findings) -> str:
    run = facts.launched.run
    wall = 0.0 if run is None else run.wall
    return f"no kernel runs for {show_percent(facts.launched.idle_share)} of {_time(facts, wall)}"


def _graph(facts: Findings) -> str:
    return facts.scenario.resources.gpu.graph


def _launch_bound(facts: Findings) -> str:
    run = facts.launched.run
    where = "Without a profiler" if run is not None and run.is_stated else "In the profile"
    return f"Launch-bound: use a {_graph(facts)}. {where} {_idle(facts)}."


def _launch_steps(facts: Findings) -> list[Step]:
    run = facts.launched.run
    launch = " --launch gpu" if run is not None and run.is_stated else " --launch measured"
    return [
        Step(
            "capture it: torch.cuda.graph or torch.compile(mode='reduce-overhead'), in CUDA C++ "
            "cudaStreamBeginCapture"
        ),
        Step(
            "see what launches cost, and what each policy keeps of it:",
            _with_sms(facts, "bound", "--mechanism", "serial,streams,cuda-graph")
            + ("" if facts.invocation.has("--launch") else launch),
        ),
    ]


def _idle_graph(facts: Findings) -> str:
    return (
        f"Nodes too short: launched as a {_graph(facts)}, {_idle(facts)}: fewer, longer kernels "
        "would fill it."
    )


def _are_serialized(facts: Findings) -> bool:
    """Whether reused buffers keep apart kernels that could overlap."""
    far = facts.renamed.upper_bound >= FAR_ABOVE * facts.bound.upper_bound
    return far and facts.buffer_set is not None


def _buffers_apply(facts: Findings) -> bool:
    return _are_serialized(facts) and _separated_gain(facts) >= _ANYTHING


def _separated_gain(facts: Findings) -> float:
    """Return how many times as fast a CUDA graph becomes by separating buffers."""
    renamed = facts.renamed_prediction
    return 1.0 if renamed is None else ratio(facts.graph_prediction.makespan, renamed.makespan)


def _unpaid_applies(facts: Findings) -> bool:
    return _are_serialized(facts) and not (_buffers_apply(facts) or _ships_applies(facts))


def _unpaid(facts: Findings) -> str:
    best = facts.renamed_prediction or facts.best_prediction
    why = "on the SMs that they share they would slow each other"
    if best.overlap >= LITTLE:
        why = "launching them side by side costs what it would bring, or more"
    return (
        f"Nothing pays: reused buffers serialize independent kernels, but {why}: with these "
        f"separated {_predicted(facts, best)}, {_bound(facts)}."
    )


def _buffers(facts: Findings) -> str:
    each, renaming, best = facts.buffer_set, facts.renaming, facts.renamed_prediction
    if each is None or renaming is None or best is None:
        return ""
    own = [renaming.buffers[n] for n in each.buffers]
    writers = {k for b in own for k in b.writers}
    n = len(own)
    reuse, others = sum(b.reuse for b in own), sum(b.war + b.waw for b in own)
    why = f" ({show_percent(reuse / (reuse + others))} of it by allocator reuse)" if reuse else ""
    where = " and ".join(f"{b.start:#x}" for b in own) if n <= _SHOWN else ""
    if names := allocators(own):
        where = f"allocated by {names}"
    return (
        f"{counted(n, 'reused buffer')} ({show_bytes(sum(b.size for b in own))}"
        f"{where and f', {where}'}), written by "
        f"{operations_text(writers, len(facts.scenario.kernels))}, "
        f"{'serializes' if n == 1 else 'serialize'} independent kernels{why}; separate "
        f"{'it' if n == 1 else 'them'}: {_predicted(facts, best)}, upper bound "
        f"{show_factor(each.upper_bound)} instead of {show_factor(facts.bound.upper_bound)}, for "
        f"{show_bytes(each.more_bytes)} more memory at most."
    )


def _buffer_steps(facts: Findings) -> list[Step]:
    steps = [
        Step("see the buffers and how to keep them apart:", _with_sms(facts, "show", "buffers"))
    ]
    if facts.buffer_set is not None and facts.renaming is not None:
        own = [facts.renaming.buffers[n] for n in facts.buffer_set.buffers]
        if names := allocators(own):
            text = f"keep apart what is allocated by {names}: memory of its own for each branch"
            steps.insert(0, Step(text))
    if facts.buffer_set is not None and len(facts.buffer_set.what_ifs) <= _STATEMENTS_SHOWN:
        words = [w for text in facts.buffer_set.what_ifs for w in ("--what-if", text)]
        steps.append(Step("see the program with them renamed:", _with_sms(facts, "bound", *words)))
    return [*_real_edges(facts), *steps]


def _real_edges(facts: Findings) -> list[Step]:
    """Return what does it at once, on the GPU that recorded the program."""
    is_recorded = facts.scenario.metadata.get("format") == "recording"
    if not is_recorded and not any(_PYTORCH in name for name in facts.scenario.functions):
        return []
    return [
        Step(
            "in PyTorch, with only its real edges and buffers of their own: "
            "fast = depgraph.torch.parallelize(function, inputs)"
        )
    ]


def _overlapped_applies(facts: Findings) -> bool:
    launched = facts.launched
    return launched.streams > 1 and launched.remaining <= LITTLE <= facts.bound.upper_bound


def _overlapped(facts: Findings) -> str:
    own = next(each for each in facts.predictions if each.policy == Streams.name)
    gain = f"predicted {show_factor(own.speedup)}"
    if abs(own.speedup - own.overlap) > _DIFFERENT * own.overlap:
        gain = (
            f"predicted {show_factor(own.overlap)} before launch costs, "
            f"{show_factor(own.speedup)} with them"
        )
    run, streams = facts.launched.run, facts.launched.streams
    if run is not None and run.kernel_time < _ANY_OVERLAP * (run.wall - run.idle):
        return (
            f"Its {streams} streams permit {show_factor(facts.launched.speedup)}; the profile "
            f"shows no overlap: {gain}, {_bound(facts)}."
        )
    return (
        f"Already overlapped by its {streams} streams: {gain}, {_bound(facts)}; "
        f"{_left(facts.launched)}."
    )


def _left(launched: AsLaunched) -> str:
    if launched.remaining < _ANYTHING:
        return "nothing more to gain"
    return f"at most {show_factor(launched.remaining)} more"


def _full_applies(facts: Findings) -> bool:
    is_full = facts.utilization >= BUSY or facts.bound.limited_by == MEMORY
    return is_full and facts.bound.upper_bound < LITTLE


def _full(facts: Findings) -> str:
    what = f"the kernels keep {show_percent(facts.utilization)} of {_size(facts)} busy"
    if facts.bound.limited_by == MEMORY:
        what = "the kernels wait for the memory bus"
    return (
        f"Nothing to gain from overlap: one after another, {what}; {_best(facts)}, {_bound(facts)}."
    )


def _small_applies(facts: Findings) -> bool:
    return facts.utilization < BUSY and facts.bound.upper_bound < LITTLE


def _small(facts: Findings) -> str:
    if len(facts.scenario.kernels) == 1:
        return (
            f"The kernel is too small: alone it keeps {show_percent(facts.utilization)} of "
            f"{_size(facts)} busy; batch more work into it."
        )
    why = "They wait for one another"
    if facts.longest_share * LITTLE >= 1:
        why = f"One takes {show_percent(facts.longest_share)} of the time"
    return (
        f"Kernels too small: batch, or fuse. {why}, and one after another they keep "
        f"{show_percent(facts.utilization)} of {_size(facts)} busy; "
        f"{_best(facts)}, {_bound(facts)}."
    )


def _small_steps(facts: Findings) -> list[Step]:
    return [
        _BATCH,
        Step("see which kernels take the time:", facts.invocation.command("show", "path")),
    ]


def _tails_apply(facts: Findings) -> bool:
    cost = sum(load.tail_cost for load in facts.tails)
    over = facts.bound.serial - facts.bound.lower_bound
    return cost >= TAIL_COST * facts.bound.serial and cost >= over / 2


def _tails(facts: Findings) -> str:
    names = _short_names(facts)
    alike = grouped(
        facts.tails, lambda load: (names[load.kernel], load.tail_blocks, load.blocks, load.slots)
    )
    shown = [
        f"{kernels_text(sorted(load.kernel for load in loads))} ({name}): {tail} of "
        f"{counted(blocks, 'block')} on {counted(slots, 'slot')}"
        for (name, tail, blocks, slots), loads in alike.items()
    ]
    share = sum(load.tail_cost for load in facts.tails) / facts.bound.serial
    return (
        f"Tail waves cost {show_percent(share)} of the serial time. Last waves: {_listed(shown)}. "
        f"Overlap: {_best(facts)}, {_bound(facts)}."
    )


def _short_names(facts: Findings) -> defaultdict[int, str]:
    names = {k.kernel: clean_text(base_name(k.name)) for k in facts.scenario.kernels}
    return defaultdict(str, {kernel: in_short(n, _NAME_WIDTH) for kernel, n in names.items()})


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _tail_steps(facts: Findings) -> list[Step]:
    return [
        Step("change tile or batch sizes so that blocks fill whole waves, or cut tiles (Stream-K)"),
        _compare("with cutting them", facts),
    ]


def _ships_applies(facts: Findings) -> bool:
    return facts.best_prediction.gain >= LITTLE


def _ships(facts: Findings) -> str:
    return f"Kernels could overlap: {_best(facts)}, {_bound(facts)}{_streams_today(facts)}."


def _streams_today(facts: Findings) -> str:
    launched = facts.launched
    if launched.streams == 1:
        return ""
    return (
        f"; its {launched.streams} streams permit {show_factor(launched.speedup)}, "
        f"{_left(launched)}"
    )


def _ships_steps(facts: Findings) -> list[Step]:
    steps = {
        Streams.name: "keep its streams: more of the work fits side by side already",
        CudaGraph.name: "capture independent branches on streams of their own: torch.cuda.graph "
        "with torch.cuda.stream inside",
    }
    text = steps.get(facts.best_prediction.policy, "launch with programmatic stream serialization")
    return [
        Step(text),
        *_real_edges(facts),
        Step("see who depends on whom:", facts.invocation.command("show", "pairs")),
        _compare("all policies", facts),
    ]


def _lost_applies(facts: Findings) -> bool:
    return any(each.fixed >= LITTLE for each in facts.predictions)


def _lost(facts: Findings) -> str:
    why = "on the SMs that they share they would slow each other"
    if any(each.overlap >= LITTLE for each in facts.predictions):
        why = "launching them costs what it would bring, or more"
    elif _carve_outs_apply(facts):
        why = "their carve-outs keep them from sharing SMs"
    return f"Kernels could overlap, but {why}: {_best(facts)}, {_bound(facts)}."


def _lost_steps(facts: Findings) -> list[Step]:
    return [_BATCH, _compare("all policies", facts)]


def _carve_outs_apply(facts: Findings) -> bool:
    if facts.together is None:
        return False
    return facts.together.makespan <= (1 - CARVE_OUT_COST) * facts.graph_prediction.makespan


def _carve_outs(facts: Findings) -> str:
    together, apart = facts.together, facts.graph_prediction
    if together is None:
        return ""
    names = _short_names(facts)
    alike = grouped(
        facts.conflicts, lambda c: (names[c.first], names[c.second], c.set_to, c.needed)
    )
    shown = [
        f"{kernels_text(sorted({c.second for c in own}))} ({second}) needs {show_bytes(needed)} of "
        f"shared memory and cannot join {kernels_text(sorted({c.first for c in own}))} ({first}) "
        f"on an SM set to {show_bytes(set_to)}"
        for (first, second, set_to, needed), own in alike.items()
    ]
    return (
        f"These kernels cannot share SMs, set the preferred carve-out: {_listed(shown)}. "
        "With equal carve-outs "
        f"{_predicted(facts, together)} ({_time(facts, together.makespan)}) instead of "
        f"{show_factor(apart.speedup)} ({_time(facts, apart.makespan)}), {_bound(facts)}."
    )


def _carve_out_steps(facts: Findings) -> list[Step]:
    return [
        Step(
            "set it where you launch them: cudaFuncSetAttribute(kernel, "
            "cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared)"
        ),
        Step("see the program with equal carve-outs:",
             _with_sms(facts, "bound", "--mechanism", "cuda-graph", "--contention", "sm")),
    ]  # fmt: skip


def _children_apply(facts: Findings) -> bool:
    if facts.scenario.launches is None:
        return False
    return facts.bound.upper_bound >= LITTLE * facts.inline.upper_bound


def _children(facts: Findings) -> str:
    return (
        f"Child kernels could bring the most: {_bound(facts)}; if none are launched, "
        f"{show_factor(facts.inline.upper_bound)} at most, {_best(facts)}."
    )


def _children_steps(facts: Findings) -> list[Step]:
    command = _with_sms(facts, "bound", "--mechanism", "flat,cdp,spawn")
    return [Step("see what launching them costs:", command)]


def _blocks(facts: Findings) -> str:
    return (
        f"Only blocks could overlap, not whole kernels: {_best(facts)}, "
        f"{_bound(facts)}. Blocks would have to wait for single blocks."
    )


def _blocks_steps(facts: Findings) -> list[Step]:
    return [
        _compare("policies that wait block by block", facts),
        Step("see which pairs would gain:", _with_sms(facts, "show", "pairs", "--cusync")),
    ]


RULES = (
    Rule("launch-bound", Topic.LAUNCHES, _launch_bound_applies, _launch_bound, _launch_steps),
    Rule("short-nodes", Topic.LAUNCHES, _mostly_idle, _idle_graph, _small_steps),
    Rule(BUFFERS, Topic.OVERLAP, _buffers_apply, _buffers, _buffer_steps),
    Rule("nothing-pays", Topic.OVERLAP, _unpaid_applies, _unpaid, _lost_steps),
    Rule("already-overlapped", Topic.OVERLAP, _overlapped_applies, _overlapped),
    Rule("enough-waves", Topic.OVERLAP, _full_applies, _full),
    Rule("too-small", Topic.OVERLAP, _small_applies, _small, _small_steps),
    Rule("tail-waves", Topic.OVERLAP, _tails_apply, _tails, _tail_steps),
    Rule("ships-today", Topic.OVERLAP, _ships_applies, _ships, _ships_steps),
    Rule("gain-lost", Topic.OVERLAP, _lost_applies, _lost, _lost_steps),
    Rule("child-kernels", Topic.OVERLAP, _children_apply, _children, _children_steps),
    Rule("block-by-block", Topic.OVERLAP, lambda _: True, _blocks, _blocks_steps),
    Rule("carve-outs", Topic.CARVE_OUTS, _carve_outs_apply, _carve_outs, _carve_out_steps),
)  # fmt: skip
"""In the order in which they are tried."""


def _size(facts: Findings) -> str:
    return size_text(facts.scenario.sms)


def _time(facts: Findings, value: float) -> str:
    return f"{show_number(value)} {facts.scenario.unit}"


def _predicted(facts: Findings, best: Prediction) -> str:
    how = _POLICIES[best.policy].format(graph=_graph(facts))
    return f"predicted {show_factor(best.speedup)} {how}"


def _best(facts: Findings) -> str:
    return _predicted(facts, facts.best_prediction)


def _bound(facts: Findings) -> str:
    return f"upper bound {show_factor(facts.bound.upper_bound)} on {_size(facts)}"


def _compare(what: str, facts: Findings) -> Step:
    return Step(f"compare {what}:", _with_sms(facts, "bound", "--mechanism", "all"))


def _with_sms(facts: Findings, verb: str, *words: str) -> str:
    sms = facts.scenario.sms
    # Inside a program one looks on a GPU that there is.
    size = () if verb == "show" and math.isinf(sms) else ("--sms", f"{sms:g}")
    return facts.invocation.command(verb, *words, *size)
