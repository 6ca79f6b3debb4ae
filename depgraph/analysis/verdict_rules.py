"""Rules of the verdict as data: when each applies, what it says, what to do next.

``docs/verdicts.md`` explains each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from depgraph.analysis.buffers import allocators
from depgraph.analysis.next_steps import Step
from depgraph.analysis.outcome import MEMORY
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.streams import Streams
from depgraph.system.ratios import ratio
from depgraph.system.text import (
    clean_text,
    counted,
    in_short,
    kernels_text,
    operations_text,
    show_bytes,
    show_factor,
    show_number,
    show_percent,
    size_text,
)
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.analysis.as_launched import AsLaunched
    from depgraph.analysis.findings import Findings
    from depgraph.analysis.predictions import Prediction

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
_PYTORCH = "at::native"  # in the names of PyTorch's own kernels
_ANY_OVERLAP = 1.02  # kernels that took longer, added up, than the time in which any ran
_ANYTHING = 1.005  # a factor below it is shown as 1.00x
_DIFFERENT = 0.02
_POLICIES = {
    Streams.name: "with its own streams",
    CudaGraph.name: "as a CUDA graph with parallel branches",
    ProgrammaticDependentLaunch.name: "with programmatic dependent launch",
}


class Topic(Enum):
    """What a rule is about: of each topic one applies at most."""

    LAUNCHES = "launches"
    OVERLAP = "overlap"
    CARVE_OUTS = "carve-outs"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the verdict."""

    name: str  # as in ``docs/verdicts.md``
    topic: Topic
    applies: Callable[[Findings], bool]  # whether it applies to what was found
    says: Callable[[Findings], str]  # the sentence
    steps: Callable[[Findings], Sequence[Step]]  # what to do next


def _mostly_idle(found: Findings) -> bool:
    return found.launched.idle_share > MOSTLY_IDLE


def _is_graph(found: Findings) -> bool:
    return found.launched.run is not None and found.launched.run.is_graph


def _idle(found: Findings) -> str:
    run = found.launched.run
    wall = 0.0 if run is None else run.wall
    return f"no kernel runs for {show_percent(found.launched.idle_share)} of {_time(found, wall)}"


def _launch_bound(found: Findings) -> str:
    run = found.launched.run
    where = "Without a profiler" if run is not None and run.is_stated else "In the profile"
    return f"Launch-bound: use a CUDA graph. {where} {_idle(found)}."


def _launch_steps(found: Findings) -> list[Step]:
    run = found.launched.run
    launch = " --launch gpu" if run is not None and run.is_stated else " --launch measured"
    return [
        Step(
            "capture it: torch.cuda.graph or torch.compile(mode='reduce-overhead'), in CUDA C++ "
            "cudaStreamBeginCapture"
        ),
        Step(
            "see what launches cost, and what each policy keeps of it:",
            _with_sms(found, "bound", "--mechanism", "serial,streams,cuda-graph")
            + ("" if found.invocation.has("--launch") else launch),
        ),
    ]


def _idle_graph(found: Findings) -> str:
    return (
        f"Nodes too short: launched as a CUDA graph, {_idle(found)}: fewer, longer kernels would "
        "fill it."
    )


def _are_serialized(found: Findings) -> bool:
    """Whether reused buffers keep apart kernels that could overlap."""
    far = found.renamed.upper_bound >= FAR_ABOVE * found.bound.upper_bound
    return far and found.buffer_set is not None


def _buffers_apply(found: Findings) -> bool:
    return _are_serialized(found) and _separated_gain(found) >= _ANYTHING


def _separated_gain(found: Findings) -> float:
    """Return how many times as fast a CUDA graph becomes by separating buffers."""
    renamed = found.renamed_prediction
    return 1.0 if renamed is None else ratio(found.graph_prediction.makespan, renamed.makespan)


def _unpaid_applies(found: Findings) -> bool:
    return _are_serialized(found) and not (_buffers_apply(found) or _ships_applies(found))


def _unpaid(found: Findings) -> str:
    best = found.renamed_prediction or found.best_prediction
    why = "on the SMs that they share they would slow each other"
    if best.overlap >= LITTLE:
        why = "launching them side by side costs what it would bring, or more"
    return (
        f"Nothing pays: reused buffers serialize independent kernels, but {why}: with these "
        f"separated {_predicted(best)}, {_bound(found)}."
    )


def _buffers(found: Findings) -> str:
    each, renaming, best = found.buffer_set, found.renaming, found.renamed_prediction
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
        f"{operations_text(writers, len(found.scenario.kernels))}, "
        f"{'serializes' if n == 1 else 'serialize'} independent kernels{why}; separate "
        f"{'it' if n == 1 else 'them'}: {_predicted(best)}, upper bound "
        f"{show_factor(each.upper_bound)} instead of {show_factor(found.bound.upper_bound)}, for "
        f"{show_bytes(each.more_bytes)} more memory at most."
    )


def _buffer_steps(found: Findings) -> list[Step]:
    steps = [
        Step("see the buffers and how to keep them apart:", _with_sms(found, "show", "buffers"))
    ]
    if found.buffer_set is not None and found.renaming is not None:
        own = [found.renaming.buffers[n] for n in found.buffer_set.buffers]
        if names := allocators(own):
            text = f"keep apart what is allocated by {names}: memory of its own for each branch"
            steps.insert(0, Step(text))
    if found.buffer_set is not None and len(found.buffer_set.what_ifs) <= _STATEMENTS_SHOWN:
        words = [w for text in found.buffer_set.what_ifs for w in ("--what-if", text)]
        steps.append(Step("see the program with them renamed:", _with_sms(found, "bound", *words)))
    return [*_real_edges(found), *steps]


def _real_edges(found: Findings) -> list[Step]:
    """Return what does it at once, on the GPU that recorded the program."""
    is_recorded = found.scenario.metadata.get("format") == "recording"
    if not is_recorded and not any(_PYTORCH in kernel.name for kernel in found.scenario.kernels):
        return []
    return [
        Step(
            "in PyTorch, with only its real edges and buffers of their own: "
            "fast = depgraph.torch.parallelize(function, inputs)"
        )
    ]


def _overlapped_applies(found: Findings) -> bool:
    launched = found.launched
    return launched.streams > 1 and launched.remaining <= LITTLE <= found.bound.upper_bound


def _overlapped(found: Findings) -> str:
    own = next(each for each in found.predictions if each.policy == Streams.name)
    said = f"predicted {show_factor(own.speedup)}"
    if abs(own.speedup - own.overlap) > _DIFFERENT * own.overlap:
        said = (
            f"predicted {show_factor(own.overlap)} before launch costs, "
            f"{show_factor(own.speedup)} with them"
        )
    run, streams = found.launched.run, found.launched.streams
    if run is not None and run.kernel_time < _ANY_OVERLAP * (run.wall - run.idle):
        return (
            f"Its {streams} streams permit {show_factor(found.launched.speedup)}; the profile "
            f"shows no overlap: {said}, {_bound(found)}."
        )
    return (
        f"Already overlapped by its {streams} streams: {said}, {_bound(found)}; "
        f"{_left(found.launched)}."
    )


def _left(launched: AsLaunched) -> str:
    if launched.remaining < _ANYTHING:
        return "nothing more to gain"
    return f"at most {show_factor(launched.remaining)} more"


def _full_applies(found: Findings) -> bool:
    is_full = found.utilization >= BUSY or found.bound.limited_by == MEMORY
    return is_full and found.bound.upper_bound < LITTLE


def _full(found: Findings) -> str:
    what = f"the kernels keep {show_percent(found.utilization)} of {_size(found)} busy"
    if found.bound.limited_by == MEMORY:
        what = "the kernels wait for the memory bus"
    return (
        f"Nothing to gain from overlap: one after another, {what}; "
        f"{_predicted(found.best_prediction)}, {_bound(found)}."
    )


def _small_applies(found: Findings) -> bool:
    return found.utilization < BUSY and found.bound.upper_bound < LITTLE


def _small(found: Findings) -> str:
    if len(found.scenario.kernels) == 1:
        return (
            f"The kernel is too small: alone it keeps {show_percent(found.utilization)} of "
            f"{_size(found)} busy; batch more work into it."
        )
    why = "They wait for one another"
    if found.longest_share * LITTLE >= 1:
        why = f"One takes {show_percent(found.longest_share)} of the time"
    return (
        f"Kernels too small: batch, or fuse. {why}, and one after another they keep "
        f"{show_percent(found.utilization)} of {_size(found)} busy; "
        f"{_predicted(found.best_prediction)}, {_bound(found)}."
    )


def _small_steps(found: Findings) -> list[Step]:
    return [
        Step("batch more work into each kernel, or fuse: torch.compile, fused optimizers"),
        Step("see which kernels take the time:", found.invocation.command("show", "path")),
    ]


def _tails_apply(found: Findings) -> bool:
    cost = sum(load.tail_cost for load in found.tails)
    over = found.bound.serial - found.bound.lower_bound
    return cost >= TAIL_COST * found.bound.serial and cost >= over / 2


def _tails(found: Findings) -> str:
    names = _short_names(found)
    alike: dict[tuple[str, int, int, int], list[int]] = {}
    for load in found.tails:
        key = names.get(load.kernel, ""), load.tail_blocks, load.blocks, load.slots
        alike.setdefault(key, []).append(load.kernel)
    shown = [
        f"{kernels_text(sorted(kernels))} ({name}): {tail} of {counted(blocks, 'block')} on "
        f"{counted(slots, 'slot')}"
        for (name, tail, blocks, slots), kernels in alike.items()
    ]
    share = sum(load.tail_cost for load in found.tails) / found.bound.serial
    return (
        f"Tail waves cost {show_percent(share)} of the serial time. Last waves: {_listed(shown)}. "
        f"Overlap: {_predicted(found.best_prediction)}, {_bound(found)}."
    )


def _short_names(found: Findings) -> dict[int, str]:
    return {
        k.kernel: in_short(clean_text(base_name(k.name)), _NAME_WIDTH)
        for k in found.scenario.kernels
    }


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _tail_steps(found: Findings) -> list[Step]:
    return [
        Step("change tile or batch sizes so that blocks fill whole waves, or cut tiles (Stream-K)"),
        Step("compare with cutting them:", _with_sms(found, "bound", "--mechanism", "all")),
    ]


def _ships_applies(found: Findings) -> bool:
    return found.best_prediction.gain >= LITTLE


def _ships(found: Findings) -> str:
    return (
        f"Kernels could overlap: {_predicted(found.best_prediction)}, {_bound(found)}"
        f"{_streams_today(found)}."
    )


def _streams_today(found: Findings) -> str:
    launched = found.launched
    if launched.streams == 1:
        return ""
    return (
        f"; its {launched.streams} streams permit {show_factor(launched.speedup)}, "
        f"{_left(launched)}"
    )


def _ships_steps(found: Findings) -> list[Step]:
    steps = {
        Streams.name: "keep its streams: more of the work fits side by side already",
        CudaGraph.name: "capture independent branches on streams of their own: torch.cuda.graph "
        "with torch.cuda.stream inside",
    }
    text = steps.get(found.best_prediction.policy, "launch with programmatic stream serialization")
    return [
        Step(text),
        *_real_edges(found),
        Step("see who depends on whom:", found.invocation.command("show", "pairs")),
        Step("compare all policies:", _with_sms(found, "bound", "--mechanism", "all")),
    ]


def _lost_applies(found: Findings) -> bool:
    return any(each.fixed >= LITTLE for each in found.predictions)


def _lost(found: Findings) -> str:
    why = "on the SMs that they share they would slow each other"
    if any(each.overlap >= LITTLE for each in found.predictions):
        why = "launching them costs what it would bring, or more"
    elif _carve_outs_apply(found):
        why = "their carve-outs keep them from sharing SMs"
    return (
        f"Kernels could overlap, but {why}: {_predicted(found.best_prediction)}, {_bound(found)}."
    )


def _lost_steps(found: Findings) -> list[Step]:
    return [
        Step("batch more work into each kernel, or fuse: torch.compile, fused optimizers"),
        Step("compare all policies:", _with_sms(found, "bound", "--mechanism", "all")),
    ]


def _carve_outs_apply(found: Findings) -> bool:
    if found.together is None:
        return False
    return found.together.makespan <= (1 - CARVE_OUT_COST) * found.graph_prediction.makespan


def _carve_outs(found: Findings) -> str:
    together, apart = found.together, found.graph_prediction
    if together is None:
        return ""
    names = _short_names(found)
    alike: dict[tuple[str, str, int, int], tuple[set[int], set[int]]] = {}
    for each in found.conflicts:
        first, second = names.get(each.first, ""), names.get(each.second, "")
        key = first, second, each.set_to, each.needed
        members = alike.setdefault(key, (set(), set()))
        members[0].add(each.first)
        members[1].add(each.second)
    shown = [
        f"{kernels_text(sorted(seconds))} ({second}) needs {show_bytes(needed)} of shared memory "
        f"and cannot join {kernels_text(sorted(firsts))} ({first}) on an SM set to "
        f"{show_bytes(set_to)}"
        for (first, second, set_to, needed), (firsts, seconds) in alike.items()
    ]
    return (
        f"These kernels cannot share SMs, set the preferred carve-out: {_listed(shown)}. "
        "With equal carve-outs "
        f"{_predicted(together)} ({_time(found, together.makespan)}) instead of "
        f"{show_factor(apart.speedup)} ({_time(found, apart.makespan)}), {_bound(found)}."
    )


def _carve_out_steps(found: Findings) -> list[Step]:
    return [
        Step(
            "set it where you launch them: cudaFuncSetAttribute(kernel, "
            "cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared)"
        ),
        Step("see the program with equal carve-outs:",
             _with_sms(found, "bound", "--mechanism", "cuda-graph", "--contention", "sm")),
    ]  # fmt: skip


def _children_apply(found: Findings) -> bool:
    if found.scenario.launches is None:
        return False
    return found.bound.upper_bound >= LITTLE * found.inline.upper_bound


def _children(found: Findings) -> str:
    return (
        f"Child kernels could bring the most: {_bound(found)}; if none are launched, "
        f"{show_factor(found.inline.upper_bound)} at most, {_predicted(found.best_prediction)}."
    )


def _children_steps(found: Findings) -> list[Step]:
    return [
        Step("see what launching them costs:",
             _with_sms(found, "bound", "--mechanism", "flat,cdp,spawn")),
    ]  # fmt: skip


def _always(_: Findings) -> bool:
    return True


def _blocks(found: Findings) -> str:
    return (
        f"Only blocks could overlap, not whole kernels: {_predicted(found.best_prediction)}, "
        f"{_bound(found)}. Blocks would have to wait for single blocks."
    )


def _blocks_steps(found: Findings) -> list[Step]:
    return [
        Step("compare policies that wait block by block:",
             _with_sms(found, "bound", "--mechanism", "all")),
        Step("see which pairs would gain:", _with_sms(found, "show", "pairs", "--cusync")),
    ]  # fmt: skip


def _nothing(_: Findings) -> list[Step]:
    return []


RULES = (
    Rule(
        "launch-bound", Topic.LAUNCHES, lambda f: _mostly_idle(f) and not _is_graph(f),
        _launch_bound, _launch_steps,
    ),
    Rule("short-nodes", Topic.LAUNCHES, _mostly_idle, _idle_graph, _small_steps),
    Rule(BUFFERS, Topic.OVERLAP, _buffers_apply, _buffers, _buffer_steps),
    Rule("nothing-pays", Topic.OVERLAP, _unpaid_applies, _unpaid, _lost_steps),
    Rule("already-overlapped", Topic.OVERLAP, _overlapped_applies, _overlapped, _nothing),
    Rule("enough-waves", Topic.OVERLAP, _full_applies, _full, _nothing),
    Rule("too-small", Topic.OVERLAP, _small_applies, _small, _small_steps),
    Rule("tail-waves", Topic.OVERLAP, _tails_apply, _tails, _tail_steps),
    Rule("ships-today", Topic.OVERLAP, _ships_applies, _ships, _ships_steps),
    Rule("gain-lost", Topic.OVERLAP, _lost_applies, _lost, _lost_steps),
    Rule("child-kernels", Topic.OVERLAP, _children_apply, _children, _children_steps),
    Rule("block-by-block", Topic.OVERLAP, _always, _blocks, _blocks_steps),
    Rule("carve-outs", Topic.CARVE_OUTS, _carve_outs_apply, _carve_outs, _carve_out_steps),
)  # fmt: skip
"""In the order in which they are tried."""


def _size(found: Findings) -> str:
    return size_text(found.scenario.sms)


def _time(found: Findings, value: float) -> str:
    return f"{show_number(value)} {found.scenario.unit}"


def _predicted(best: Prediction) -> str:
    return f"predicted {show_factor(best.speedup)} {_POLICIES[best.policy]}"


def _bound(found: Findings) -> str:
    return f"upper bound {show_factor(found.bound.upper_bound)} on {_size(found)}"


def _with_sms(found: Findings, verb: str, *words: str) -> str:
    sms = found.scenario.sms
    # Inside a program one looks on a GPU that there is.
    size = () if verb == "show" and math.isinf(sms) else ("--sms", f"{sms:g}")
    return found.invocation.command(verb, *words, *size)
