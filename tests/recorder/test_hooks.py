"""A program whose footprints are known by construction, as recorded on an H100, and here.

The recordings of `hooks.cu` that are kept here let every machine hold the reader against the truth;
`pytest -m gpu` records the program again. The one of its second program (`hooks kinds`) is of an
H200.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pixels import naive_bytes

from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.recording.tensor_maps import PixelMap
from depgraph.recorder.toolkit import Toolkit
from depgraph.trace.records import READ, SYNC_READ, WRITE

HERE = Path(__file__).parent
TOOLKIT = Toolkit()
MISSING = [each.name for each in TOOLKIT.requirements if not each.what]
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"recording needs: {', '.join(MISSING)}"),
]
TENSOR = (36, 6, 4, 3, 2)  # elements of 4 bytes, the innermost dimension first
BOX = (16, 3, 2, 2, 2)


def record_here(folder, *words):
    """Compile the program and record it; return the recording and what it printed."""
    program, kept = folder / "hooks", folder / "hooks.recording"
    subprocess.run(
        [str(TOOLKIT.nvcc), "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-rdc=true",
         "-o", str(program), str(HERE / "hooks.cu"), "-lcudadevrt"], check=True,
    )  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-m", "depgraph", "record", "--quiet", "--no-time", "--keep", str(kept),
         "-o", str(folder / "store"), "--", str(program), *words],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return kept, json.loads(said.splitlines()[0])


class Hooks:
    """What each block of each kernel touched."""

    def __init__(self, recording, arrays):
        extraction = analyse(open_trace(recording))
        self._footprints = extraction.footprints.load()
        self.kernels, self.graph = extraction.kernels, extraction.graph
        self.a, self.b = arrays["a"], arrays["b"]
        self.sums, self.counter = arrays["sums"], arrays["counter"]

    def __call__(self, kernel, block):
        """Return the ranges that a block touched, by kind."""
        mine = self._footprints.of_block(self.kernels[kernel].first_block + block)
        return {
            kind: list(zip(mine.start[chosen].tolist(), mine.end[chosen].tolist(), strict=True))
            for kind in (READ, WRITE, SYNC_READ)
            if (chosen := mine.kind == kind).any()
        }


@pytest.fixture(
    scope="module", params=["recorded on an H100", pytest.param("recorded here", marks=NEEDS_GPU)]
)
def hooks(request, tmp_path_factory):
    if request.param == "recorded here":
        return Hooks(*record_here(tmp_path_factory.mktemp("hooks")))
    return Hooks(
        HERE / "data" / "hooks.recording", json.loads((HERE / "data" / "hooks.json").read_text())
    )


def ranges(starts, size):
    return {(start, start + size) for start in starts}


def joined(found):
    """Join ranges that touch, as footprints are joined."""
    result = []
    for start, end in sorted(found):
        if result and start <= result[-1][1]:
            result[-1][1] = max(end, result[-1][1])
        else:
            result.append([start, end])
    return [tuple(each) for each in result]


@pytest.mark.parametrize(("kernel", "size"), list(enumerate([1, 2, 4, 8, 16])))
def test_loads_and_stores_of_every_width(hooks, kernel, size):
    for block in range(3):
        elements = range(64 * block, 64 * (block + 1))
        assert hooks(kernel, block) == {
            READ: joined(ranges([hooks.a + size * i for i in elements], size)),
            WRITE: joined(ranges([hooks.b + 2 * size * i for i in elements], size)),
        }


def test_atomics_read_and_write(hooks):
    for block in range(2):
        touched = [
            (hooks.sums + 160 * block, hooks.sums + 160 * (block + 1)),
            (hooks.counter, hooks.counter + 4),
        ]
        assert hooks(5, block) == {SYNC_READ: touched, WRITE: touched}


def test_zero_fill_of_asynchronous_copies_reads_nothing(hooks):
    for block in range(2):
        threads = range(32)
        read = {
            (at, at + [16, 8, 4, 0][t % 4])
            for t in threads
            for at in [hooks.a + 16 * (32 * block + t)]
            if t % 4 < 3
        }
        assert hooks(6, block) == {
            READ: joined(read),
            WRITE: [(hooks.b + block, hooks.b + block + 1)],
        }


def test_bulk_copies_both_ways_and_reductions(hooks):
    for block in range(3):
        sums = (hooks.sums + 256 * block, hooks.sums + 256 * (block + 1))
        assert hooks(7, block) == {
            READ: [(hooks.a + 2048 * block, hooks.a + 2048 * block + 1024), sums],
            WRITE: [(hooks.b + 4096 * block, hooks.b + 4096 * block + 512), sums],
        }


def test_loads_of_tiles_end_where_the_tensor_does(hooks):
    width, height = 100, 40
    for block in range(8):
        x, y = 32 * (block % 4) - 8, 16 * (block // 4)
        columns = max(x, 0), min(x + 32, width)
        read = {
            tuple(hooks.a + 4 * (width * row + column) for column in columns)
            for row in range(y, min(y + 16, height))
        }
        assert hooks(8, block)[READ] == joined(read)


def test_a_kernel_that_may_store_tiles_is_opaque(hooks):
    assert [k.kernel for k in hooks.kernels[:13] if k.untraced] == [8]
    assert not hooks.graph.join_certain.all()


def test_nodes_of_a_graph_are_kernels_of_their_own(hooks):
    assert [k.name.split("(")[0] for k in hooks.kernels[9:13]] == [
        "void copies<unsigned int>", "void copies<uint4>"] * 2  # fmt: skip
    for kernel in (9, 11):
        assert hooks(kernel, 1)[READ] == [(hooks.a + 128, hooks.a + 256)]
    for kernel in (10, 12):
        assert hooks(kernel, 1)[READ] == [(hooks.b + 512, hooks.b + 1024)]


def test_a_copy_on_the_device_reads_and_writes(hooks):
    # Two memsets, a copy from B to A behind nine kernels, and a memset in each replay of a graph.
    pairs = {(p.source, p.target): p for p in hooks.graph.pairs()}
    copy = -3
    assert pairs[3, copy].raw == 3  # it reads what all blocks of kernel 3 wrote there last
    assert pairs[0, copy].war == 3  # and overwrites what those of kernel 0 read


def box_at(hooks, place):
    """Return what of a tensor at A lies in a box."""
    strides = np.cumprod([4, *TENSOR[: len(place) - 1]])
    low = np.array(place)
    found = set()
    for offset in np.ndindex(*BOX[: len(place)]):
        element = low + offset
        if (element < TENSOR[: len(place)]).all():
            at = hooks.a + int(element @ strides)
            found.add((at, at + 4))
    return joined(found)


@pytest.mark.parametrize(("kernel", "rank"), [(13, 1), (14, 3), (15, 4), (16, 5)])
def test_loads_of_tiles_of_every_rank(hooks, kernel, rank):
    for block in range(3):
        assert hooks(kernel, block) == {
            READ: box_at(hooks, [12 * block + 4, 4, 1, 1, 1][:rank]),
            WRITE: [(hooks.sums + 4 * block, hooks.sums + 4 * block + 4)],
        }


def test_a_multicast_is_read_by_every_block_of_its_mask(hooks):
    for block in range(4):
        assert hooks(17, block)[READ] == box_at(hooks, [12 * (block // 2 * 2) + 4, 4])


def test_halves_of_sectors_make_whole_ones(hooks):
    for block in range(2):
        touched = hooks(18, block)
        assert touched[READ] == [(hooks.a + 2048 * block, hooks.a + 2048 * (block + 1))]
        assert (hooks.b + 2048 * block, hooks.b + 2048 * (block + 1)) in touched[WRITE]
    assert (hooks.b + 65536, hooks.b + 65537) in hooks(18, 0)[WRITE]


def test_blocks_of_a_cooperative_launch(hooks):
    for block in range(4):
        touched = hooks(19, block)
        other = hooks.sums + 4 * ((block + 1) % 4)
        assert (other, other + 4) in touched[READ]
        for at in (hooks.sums + 4 * block, hooks.sums + 256 + 4 * block):
            assert (at, at + 4) in touched[WRITE]


def test_a_kernel_that_launches_others_is_opaque(hooks):
    assert "launches kernels itself" in hooks.kernels[20].untraced


def test_memory_that_was_freed_in_between_is_reused(hooks):
    pairs = {(p.source, p.target): p for p in hooks.graph.pairs()}
    assert (pairs[21, 22].waw, pairs[21, 22].reuse) == (0, 2)


def test_copies_in_every_direction_are_operations(hooks):
    *_, to_device, to_host, on_device = hooks.graph.copies.values()
    assert (to_device, to_host, on_device) == ("memcpy HtoD", "memcpy DtoH", "memcpy DtoD")


class Kinds:
    """What each block of each kernel of the second program touched."""

    def __init__(self, recording, printed):
        extraction = analyse(open_trace(recording))
        self.printed, self.warnings = printed, extraction.metadata["warnings"]
        self._footprints = extraction.footprints.load()
        self.kernels, self.copies = extraction.kernels, extraction.copies
        self.pairs = extraction.pairs

    def of(self, name):
        return [kernel for kernel in self.kernels if name in kernel.name]

    def ranges(self, kernel, kind, block=0):
        mine = self._footprints.of_block(kernel.first_block + block)
        chosen = mine.kind == kind
        return list(zip(mine.start[chosen].tolist(), mine.end[chosen].tolist(), strict=True))


@pytest.fixture(
    scope="module", params=["recorded on an H200", pytest.param("recorded here", marks=NEEDS_GPU)]
)
def kinds(request, tmp_path_factory):
    if request.param == "recorded here":
        return Kinds(*record_here(tmp_path_factory.mktemp("kinds"), "kinds"))
    return Kinds(
        HERE / "data" / "kinds.recording", json.loads((HERE / "data" / "kinds.json").read_text())
    )


# Of each launch: where a box of pixels begins, how far from the last pixel it ends, steps.
COLUMNS = [
    ("3", (-1,), (-1,), (1,)),
    ("4", (-1, -2), (-1, 0), (1, 1)),
    ("5", (-1, -2, 0), (-1, 0, -1), (1, 1, 1)),
    ("4 in steps", (-1, -2), (0, 1), (2, 3)),
]
PIXELS, CHANNELS, IMAGES = (7, 5, 4), 8, 3


def column_of(address, block, lower, upper, steps):
    """Return the elements that a block of `pixels` in hooks.cu loads, by construction."""
    spatial = PIXELS[: len(lower)]
    sizes = CHANNELS, *spatial, IMAGES
    strides = np.cumprod([4, *sizes[:-1]]).tolist()
    tensor = PixelMap(address, 4, sizes, tuple(strides), lower, upper, 4, 20, (1, *steps, 1))
    place, number = [4 * (block % 2)], 20 * block
    for size, low, high, step in zip(spatial, lower, upper, steps, strict=True):
        number, at = divmod(number, (size - 1 + high - low) // step + 1)
        place.append(low + at * step)
    return naive_bytes(tensor, [*place, number], (block % 3, block // 3, 1)[: len(lower)])


@pytest.mark.parametrize("place", range(4))
def test_columns_of_pixels_are_those_that_a_block_loads(kinds, place):
    name, *corners = COLUMNS[place]
    kernel, a = kinds.of("pixels<")[place], kinds.printed["a"]
    assert not kernel.untraced
    for block in range(4):
        read = joined(ranges(column_of(a, block, *corners), 4))
        assert kinds.ranges(kernel, READ, block) == read
        if name in kinds.printed:  # what the hardware took, element by element; 0 for none
            taken = kinds.printed[name][80 * block :][:80]
            assert read == joined(ranges([a + 4 * (i - 1) for i in taken if i], 4))


def test_each_matrix_of_a_batch_of_stride_0_is_the_first(kinds):
    (kernel,) = kinds.of("one_of_many")
    assert not kernel.untraced
    rows = [kinds.printed["a"] + 4 * (36 * y + 4) for y in (2, 3, 4)]
    taken = np.array(kinds.printed["one of many"]).reshape(3, 48)  # what the hardware took
    for block in (0, 1):
        assert kinds.ranges(kernel, READ, block) == [(at, at + 64) for at in rows]
        assert taken[block].tolist() == [36 * y + x + 1 for y in (2, 3, 4) for x in range(4, 20)]
    assert kinds.ranges(kernel, READ, 2) == []  # behind the last
    assert not taken[2].any()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("read_constants", "reads __constant__ memory"),
        ("store_tile", "tiles stored by TMA"),
        ("read_texture", "reads textures"),
        ("write_surface", "uses surfaces"),
        ("store_by_a_map_in_memory", "tiles stored by TMA"),
        ("store_by_a_map_made_here", "made on the GPU"),
        ("through_one_address", "mapped at two addresses"),
        ("through_the_other", "mapped at two addresses"),
        ("(a conditional node", "not recorded"),
        ("(a stream that waits on memory)", "not recorded"),
    ],
)
def test_what_no_hook_sees_is_opaque_by_its_reason(kinds, name, reason):
    (kernel,) = kinds.of(name)
    assert reason in kernel.untraced


def test_a_node_of_a_graph_in_a_graph_is_a_kernel_of_its_own(kinds):
    (kernel,) = kinds.of("in_child_graph")
    assert kinds.ranges(kernel, WRITE) == [(kinds.printed["c"], kinds.printed["c"] + 128)]


def test_each_context_is_recorded_though_it_has_the_address_of_another(kinds):
    found = kinds.of("in_another_context")
    assert [(k.untraced, len(kinds.ranges(k, WRITE))) for k in found] == [(None, 1)] * 2


def test_launches_of_two_threads_are_recorded(kinds):
    written = [kinds.ranges(kernel, WRITE) for kernel in kinds.of("of_a_thread")]
    for thread in (1, 2):
        at = kinds.printed["c"] + 4096 * thread
        assert written.count([(at, at + 128)]) == 20


def test_a_copy_from_host_memory_reads_what_a_kernel_wrote_there(kinds):
    writers = kinds.of("writes_host")
    pairs = {(p.source, p.target): p.raw for p in kinds.pairs if p.target < 0}
    read_by = [[t for s, t in pairs if s == kernel.kernel and pairs[s, t]] for kernel in writers]
    assert [len(copies) for copies in read_by] == [1, 1]


def test_what_a_stream_writes_is_a_memset(kinds):
    at = kinds.printed["c"] + 4 * 8192
    assert [c.size for c in kinds.copies if c.address == at] == [4]
