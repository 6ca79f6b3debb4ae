"""Small random programs, graphs and NVBit logs for the tests."""

import bz2
import gzip
import lzma
import sys
from itertools import pairwise

import naive
import numpy as np
from hypothesis import strategies as st

from depgraph.dependence.sweep import build_graph, sweep
from depgraph.footprint.footprints import Footprints, freed_between
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import Basis
from depgraph.system.arrays import list_of_each
from depgraph.trace.records import Allocation

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKERS = {
    "plain": bytes,
    "xz": lzma.compress,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstd.compress,
}

# Where the small addresses of a random program lie in a GPU's address space.
BASE = 0x7F0000000000


def find_dependences(footprints, first_block, kernel, frees=None):
    """Return who depends on whom, byte by byte, and the bytes that blocks of a kernel share."""
    swept = sweep(footprints, list_of_each(first_block), len(kernel), frees)
    return build_graph([swept], first_block, kernel, frees), swept.shared_bytes


@st.composite
def programs_with_ways(draw, **options):
    """Draw a program as `programs` does, its blocks with four sets of bytes.

    Read plainly, written, read by atomics or ordered loads, read by LDGSTS; the reads are disjoint.
    """

    def dealt(reads, writes):
        ways = {byte: draw(st.sampled_from([0, 2, 3])) for byte in sorted(reads)}
        plain, sync, ldgsts = ({b for b in reads if ways[b] == way} for way in (0, 2, 3))
        return plain, writes, sync, ldgsts

    return [
        {block: dealt(*touched) for block, touched in operation.items()}
        for operation in draw(programs(**options))
    ]


def with_all_reads(program):
    """Return a program of `programs_with_ways` in two sets: bytes read, in whatever way."""
    return [
        {
            block: (plain | sync | ldgsts, writes)
            for block, (plain, writes, sync, ldgsts) in operation.items()
        }
        for operation in program
    ]


@st.composite
def programs(draw, *, max_operations=6, max_blocks=4, memory=24, sizes=None):
    """Draw a program: a list of operations, each a mapping of block to (bytes read, written).

    `sizes` fixes the number of operations and of their blocks.
    """
    some_bytes = st.builds(
        lambda ranges: {b for start, size in ranges for b in range(start, start + size)},
        st.lists(st.tuples(st.integers(0, memory - 1), st.integers(1, 6)), max_size=2),
    )
    program = []
    first = 0
    any_sizes = st.lists(st.integers(1, max_blocks), min_size=1, max_size=max_operations)
    for n_blocks in sizes or draw(any_sizes):
        blocks = draw(
            st.lists(st.tuples(some_bytes, some_bytes), min_size=n_blocks, max_size=n_blocks)
        )
        program.append({first + i: touched for i, touched in enumerate(blocks)})
        first += n_blocks
    return program


def n_blocks_of(program):
    return sum(len(operation) for operation in program)


def footprints_of(program, base=BASE):
    """Return a program as the core takes it: footprints, first blocks, kernel numbers."""
    ranges = [
        (block, kind, base + start, base + end)
        for operation in program
        for block, touched in operation.items()
        for kind in range(len(touched))
        for start, end in naive.byte_ranges(touched[kind])
    ]
    block, kind, start, end = zip(*ranges, strict=True) if ranges else ([],) * 4
    footprints = Footprints(
        np.array(block, np.int32),
        np.array(kind, np.uint8),
        np.array(start, np.uint64),
        np.array(end, np.uint64),
    )
    first_block = np.cumsum([0] + [len(operation) for operation in program])
    return footprints, first_block, np.arange(len(program), dtype=np.int32)


def graph_of(program, granularity=1, frees=None):
    """Return the block graph that the core finds in a program.

    `frees` are pairs of the operation after the free and the bytes.
    """
    footprints, first_block, kernel = footprints_of(program)
    rounded = footprints.rounded(granularity, n_blocks_of(program))
    return find_dependences(rounded, first_block, kernel, frees_of(frees, len(program)))[0]


def frees_of(frees, n_operations, base=BASE):
    """Return frees as the core takes them."""
    if frees is None:
        return None
    allocations = [
        Allocation(base + start, end - start, 0, after)
        for after, freed in frees
        for start, end in naive.byte_ranges(freed)
    ]
    return freed_between([*allocations, Allocation(0, 1, 0)], n_operations)


@st.composite
def frees_in(draw, program, memory=24):
    """Draw what is freed between the operations of a program."""
    ranges = st.builds(
        lambda start, size: set(range(start, start + size)),
        st.integers(0, memory - 1), st.integers(1, memory),
    )  # fmt: skip
    return draw(st.lists(st.tuples(st.integers(0, len(program)), ranges), max_size=4))


def list_arrays(lists):
    """Return lists as the pair (offsets, values) that compiled code takes."""
    offsets = np.cumsum([0] + [len(values) for values in lists]).astype(np.int64)
    return offsets, np.array([v for values in lists for v in values], np.int32)


def to_lists(offsets, values):
    """Return a pair (offsets, values) as lists."""
    return [values[low:high].tolist() for low, high in pairwise(offsets)]


@st.composite
def graphs(draw, *, max_operations=5, max_blocks=5):
    """Draw a graph in factored form, with joins that overlap as those of real traces do.

    Some joins are only possible, some rest on LDGSTS reads alone.
    """
    sizes = draw(st.lists(st.integers(1, max_blocks), min_size=1, max_size=max_operations))
    first_block = np.cumsum([0, *sizes])
    sets = []
    for operation, size in enumerate(sizes):
        members = st.sets(st.integers(0, size - 1), min_size=1)
        sets += [
            (operation, [int(first_block[operation]) + block for block in sorted(chosen)])
            for chosen in draw(st.lists(members, max_size=3))
        ]
    numbers = {}
    for number, (operation, _) in enumerate(sets):
        numbers.setdefault(operation, []).append(number)
    joins = []
    pairs = [(t, s) for t in numbers for s in numbers if s < t]
    if pairs:
        for target, source in draw(st.lists(st.sampled_from(pairs), max_size=8)):
            kind = draw(st.integers(0, 2))
            basis = draw(st.sampled_from([b for b in Basis if kind < 2 or b != Basis.LDGSTS]))
            joins.append(
                (
                    target,
                    source,
                    basis >= Basis.OPAQUE,
                    kind,
                    basis,
                    draw(st.lists(st.sampled_from(numbers[source]), min_size=1, unique=True)),
                    draw(st.lists(st.sampled_from(numbers[target]), min_size=1, unique=True)),
                )
            )
    joins.sort(key=lambda join: join[:5])
    set_offsets, set_blocks = list_arrays([blocks for _, blocks in sets])
    source_offsets, sources = list_arrays([join[5] for join in joins])
    target_offsets, targets = list_arrays([join[6] for join in joins])
    return BlockGraph(
        kernel=np.arange(len(sizes), dtype=np.int32),
        first_block=first_block,
        set_operation=np.array([operation for operation, _ in sets], np.int32),
        set_offsets=set_offsets,
        set_blocks=set_blocks,
        join_kind=np.array([join[3] for join in joins], np.uint8),
        join_basis=np.array([join[4] for join in joins], np.uint8),
        join_source_operation=np.array([join[1] for join in joins], np.int32),
        join_target_operation=np.array([join[0] for join in joins], np.int32),
        source_offsets=source_offsets,
        sources=sources,
        target_offsets=target_offsets,
        targets=targets,
    )


@st.composite
def graphs_with_durations(draw):
    """Draw a graph and a whole number of time units for each of its blocks."""
    graph = draw(graphs())
    times = st.lists(st.integers(0, 9), min_size=graph.n_blocks, max_size=graph.n_blocks)
    return graph, np.array(draw(times), np.float64)


def edges_of(graph, **options):
    """Return the edges that a graph yields, as a sorted list: one that comes twice stands twice."""
    return sorted(
        (s, t, naive.KINDS[kind])
        for source, target, kinds in graph.edges(**options)
        for s, t, kind in zip(source.tolist(), target.tolist(), kinds.tolist(), strict=True)
    )


# NVBit logs


def launch_line(
    number, grid=(4, 1, 1), *, name="kernel(float*)", block=(32, 1, 1), registers=32, shared=0,
    stream=0, context=0x33C98DC0,
):  # fmt: skip
    return (
        f"MEMTRACE: CTX {context:#018x} - LAUNCH - Kernel pc 0x00007f4d5a105000 - Kernel name "
        f"{name} - grid launch id {number} - grid size {grid[0]},{grid[1]},{grid[2]} - block size "
        f"{block[0]},{block[1]},{block[2]} - nregs {registers} - shmem {shared} - "
        f"cuda stream id {stream}\n"
    ).encode()


def access_line(number, block, opcode, addresses, *, warp=0, context=0x33C98DC0):
    """Return the line of an access; `block` is x or (x, y, z), missing lanes are 0."""
    x, y, z = block if isinstance(block, tuple) else (block, 0, 0)
    lanes = [*addresses, *[0] * (32 - len(addresses))]
    return (
        f"MEMTRACE: CTX {context:#018x} - grid_launch_id {number} - CTA {x},{y},{z} - warp {warp} "
        f"- {opcode} - {' '.join(f'{lane:#018x}' for lane in lanes)} \n"
    ).encode()


GLOBAL_OPCODES = sorted(name for name, (effect, _) in naive.OPCODES.items() if effect != "none")
OTHER_OPCODES = sorted(name for name, (effect, _) in naive.OPCODES.items() if effect == "none")
FOREIGN_LINES = [
    b"------------- NVBit (NVidia Binary Instrumentation Tool v1.7.6) Loaded --------------\n",
    b"\n",
    b"step 1, loss 0.25\n",
    b"MEMTRACE: STARTING CONTEXT 0x555bc14decf0\n",
    b"\xff\xfe raw bytes, and MEMTRACE: CTX elsewhere\n",
    b"0x00007ba75b8002c4 0x00007ba75b8002c8 \n",
]


@st.composite
def log_records(draw, *, max_launches=4, max_accesses=8):
    """Draw the lines of a log, launches in order, accesses anywhere after their launch."""
    records = []
    where = []
    accesses = []
    for number in range(draw(st.integers(1, max_launches))):
        grid = draw(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)))
        records.append(launch_line(number, grid, name=f"kernel_{number}(int, float const*)"))
        where.append(number)
        for _ in range(draw(st.integers(0, max_accesses))):
            block = tuple(draw(st.integers(0, size - 1)) for size in grid)
            if draw(st.integers(0, 4)):
                opcode = draw(st.sampled_from(GLOBAL_OPCODES))
                low = BASE
                if naive.OPCODES[opcode][0] == "copy" and draw(st.booleans()):
                    low = 0x400
            else:
                opcode = draw(st.sampled_from(OTHER_OPCODES))
                low = 0x400
            first = low + 4 * draw(st.integers(0, 40))
            stride = draw(st.sampled_from([-16, 0, 1, 4, 8, 24]))
            lanes = [first + 1024 + lane * stride for lane in range(draw(st.integers(0, 32)))]
            accesses.append((number, access_line(number, block, opcode, lanes)))
    for number, line in accesses:
        at = draw(st.integers(where[number] + 1, len(records)))
        records.insert(at, line)
        where = [place + (place >= at) for place in where]
    for line in draw(st.lists(st.sampled_from(FOREIGN_LINES), max_size=3)):
        records.insert(draw(st.integers(0, len(records))), line)
    return records
