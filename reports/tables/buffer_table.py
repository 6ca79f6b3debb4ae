"""Buffers that are used again: tables of them, sentences, and how to keep them apart."""

from collections import Counter
from collections.abc import Callable, Sequence

from depgraph.analysis.buffers import BLOCK_BYTES, Buffer, allocators
from depgraph.analysis.next_steps import Step
from depgraph.analysis.renaming import BufferSet, Renaming, named
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import Kernel
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    common,
    kernel_names,
    show_value,
    whole_sms,
)
from depgraph.scenario.scenario import Scenario
from depgraph.system.text import (
    counted,
    operations_text,
    show_bytes,
    show_factor,
    show_number,
    size_text,
)

_FUNCTIONS_SHOWN = 2
_NUMBERS_SHOWN = 8
_BUFFERS_SHOWN = 20
_HOW_FOUND = (
    f"""written ranges, rounded out to {BLOCK_BYTES} bytes as PyTorch's allocator does, are one
    buffer where the same kernels write them side by side""",
    """a renamed buffer has no WAR and WAW dependences, as if every kernel that writes it wrote a
    copy of its own; the memory stated is for all copies at once""",
    """WAR and WAW count edges between blocks; another buffer may give the same edge""",
)
_WORKSPACE = """cuBLAS gives all matrix products of a handle and stream one workspace: run
    independent branches on streams of their own, or do without it (CUBLAS_WORKSPACE_CONFIG=:0:0 and
    CUBLASLT_WORKSPACE_SIZE=0, set before the first product; split-K products get slower)"""
_IN_PYTORCH = (
    """the caching allocator gives freed memory to the next tensor of that size: keep the tensors
    of a branch alive until the branches have joined""",
    """allocate each branch from a pool of its own: torch.cuda.use_mem_pool(torch.cuda.MemPool()),
    or for a CUDA graph torch.cuda.graph(g, pool=torch.cuda.graph_pool_handle())""",
    """let operators write to tensors made beforehand, one for each branch:
    torch.mm(a, b, out=result[i])""",
)
_IN_CUDA = """allocate a buffer for each branch, or two in turn where kernels follow one another;
    with cudaMallocAsync, from a memory pool for each branch (cudaMallocFromPoolAsync)"""
_WORKSPACE_IN_CUDA = """give cuBLAS a workspace for each stream (cublasSetWorkspace; cublasLtMatmul
    takes one a call)"""


def renaming_sentence(found: Renaming) -> str:
    """Say what renaming a few buffers would bring."""
    if not any(b.is_reused for b in found.buffers):
        return "no dependence but RAW rests on a buffer"
    if not found.sets:
        return (
            f"{counted(sum(b.is_reused for b in found.buffers), 'buffer')} are used again, but "
            f"renaming them does not raise the upper bound on {size_text(found.sms)}: "
            f"{show_factor(found.upper_bound)} with and without"
        )
    return "; ".join(_set_text(found, each) for each in found.sets)


def _set_text(renaming: Renaming, each: BufferSet) -> str:
    own = [renaming.buffers[n] for n in each.buffers]
    writers = {k for b in own for k in b.writers}
    return (
        f"{named(each)} ({show_bytes(sum(b.size for b in own))}, written by "
        f"{operations_text(writers)}): upper bound {show_factor(renaming.upper_bound)} -> "
        f"{show_factor(each.upper_bound)} when renamed, for {show_bytes(each.more_bytes)} more "
        f"memory at most"
    )


def buffer_tables(renaming: Renaming, kernels: Sequence[Kernel], graph: BlockGraph) -> list[Table]:
    """Build the tables of buffers that are used again, and of sets worth renaming."""
    return [_set_table(renaming), _buffer_table(renaming, kernels, graph)]


def _set_table(found: Renaming) -> Table:
    def size(each: BufferSet) -> int:
        return sum(found.buffers[n].size for n in each.buffers)

    def writers(each: BufferSet) -> int:
        return len({kernel for n in each.buffers for kernel in found.buffers[n].writers})

    columns = [
        Column("buffers", "buffers", is_text=True, show=_numbers),
        Column("bytes", "size", show=show_bytes, get=size),
        Column.number("kernels", "kernels that write them", get=writers),
        Column("more_bytes", "more memory, at most", show=show_bytes),
        *common("upper_bound", "critical_path"),
    ]
    return Table.of("buffer_sets", "Buffers worth renaming together", columns, found.sets)


def _unnamed(scenario: Scenario) -> list[str]:
    if not scenario.allocations or any(a.op or a.line for a in scenario.allocations):
        return []
    known = "who allocated a buffer is not known: PyTorch's profiler tells"
    return [f"{known} (depgraph extract --memory-profile)"]


def _buffer_table(renaming: Renaming, kernels: Sequence[Kernel], graph: BlockGraph) -> Table:
    name = kernel_names(kernels, graph.copies)
    place = {n: i for i, each in reversed(list(enumerate(renaming.sets, 1))) for n in each.buffers}
    columns = [
        Column("buffer", "buffer", get=lambda b: b.number),
        Column("start", "address", show=hex),
        Column("bytes", "size", show=show_bytes, get=lambda b: b.size),
        Column("writers", "kernels", show=lambda kernels: show_number(len(kernels))),
        Column.text("written_by", "written by", lambda b: _functions(b, name)),
        *[Column.text("allocated_by", "allocated by", lambda b: allocators([b]), wraps=True)]
        * any(b.allocated_by for b in renaming.ranked),
        *common("war", "waw"),
        *common("reuse") * (graph.frees is not None),
        Column.factor("upper_bound_alone", "alone", lambda b: renaming.upper_bound_alone[b.number]),
        Column("set", "set", show=show_value, get=lambda b: place.get(b.number)),
    ]  # fmt: skip
    more = "--format csv or json shows all"
    return Table.of("buffers", "Buffers that are used again", columns, renaming.ranked, more)


def buffers_report(renaming: Renaming, scenario: Scenario, steps: Sequence[Step]) -> Report:
    """Describe the buffers of a program: which keep blocks waiting, and how to keep them apart."""
    kernels = scenario.kernels
    sets, buffers = buffer_tables(renaming, kernels, scenario.graph)
    names = {k.kernel: k.name for k in kernels}
    advice = renaming_advice(renaming, names)
    return Report(
        "buffers",
        {
            "sms": whole_sms(renaming.sms),
            "unit": scenario.unit,
            "durations": scenario.timing.source,
            "gpu": scenario.resources.gpu.name,
            "upper_bound": renaming.upper_bound,
            "upper_bound_renamed": renaming.renamed_upper_bound,
            "n_buffers": len(renaming.buffers),
        },
        headline=[
            f"{size_text(renaming.sms)}: {renaming_sentence(renaming)}",
            f"durations: {scenario.timing.source} ({scenario.unit})",
        ],
        steps=steps,
        tables=[sets, buffers.cut(_BUFFERS_SHOWN)],
        csv_table=buffers,
        notes=[*scenario.assumptions, *_one_line(_HOW_FOUND), *_unnamed(scenario)],
        sections=advice,
        extra={
            "what_ifs": [list(each.what_ifs) for each in renaming.sets],
            "advice": {title: list(lines) for title, lines in advice},
        },
    )


def renaming_advice(renaming: Renaming, names: dict[int, str]) -> list[tuple[str, list[str]]]:
    """Say how to keep apart the buffers that are worth it, by the language of the program."""
    if not renaming.sets:
        return []
    chosen = [renaming.buffers[n] for n in renaming.sets[-1].buffers]
    workspaces = sum(is_workspace(b, names) for b in chosen)
    in_pytorch = (*[_WORKSPACE] * (workspaces > 0), *_IN_PYTORCH * (workspaces < len(chosen)))
    in_cuda = (*[_WORKSPACE_IN_CUDA] * (workspaces > 0), *[_IN_CUDA] * (workspaces < len(chosen)))
    return [("In PyTorch", _one_line(in_pytorch)), ("In CUDA C++", _one_line(in_cuda))]


def _one_line(texts: Sequence[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def is_workspace(buffer: Buffer, names: dict[int, str]) -> bool:
    """Tell whether a buffer is one of matrix products, read by them or by sums of their parts."""

    def name(kernel: int) -> str:
        return names.get(kernel, "").lower()

    return (
        all("gemm" in name(k) or "splitk" in name(k) for k in buffer.writers)
        and all(k in buffer.writers or "splitk" in name(k) for k in buffer.readers)
        and bool(buffer.readers)
    )


def _functions(buffer: Buffer, name: Callable[[int], str]) -> str:
    """Name the functions that write a buffer, those of most launches first."""
    counts = Counter(map(name, buffer.writers))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} x{n}" if n > 1 else name for name, n in ranked[:_FUNCTIONS_SHOWN]]
    more = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _numbers(values: tuple[int, ...]) -> str:
    more = len(values) - _NUMBERS_SHOWN
    return ", ".join(map(str, values[:_NUMBERS_SHOWN])) + (f" and {more} more" if more > 0 else "")
