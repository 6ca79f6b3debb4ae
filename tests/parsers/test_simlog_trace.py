"""Simulator logs with memory lines: accesses of a request's size, blocks and their cycles."""

import gzip
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import edges_of

from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.simlog import accesses
from depgraph.timing.program_times import default_durations
from depgraph.trace.records import MemoryOperation

BASE = 0x7F4E34A00000
BANNER = "        *** GPGPU-Sim Simulator Version 4.0.0 ***\n\nGPGPU-Sim: Configuration options:\n"


def header(number, name="_Z6kernelPf", grid=(4, 1, 1)):
    return (
        f"Processing kernel ./traces/kernel-{number}.traceg\n-kernel name = {name}\n"
        f"-kernel id = {number}\n-grid dim = ({grid[0]},{grid[1]},{grid[2]})\n"
        "-block dim = (32,1,1)\n-shmem = 0\n-nregs = 12\n-binary version = 70\n"
        "-cuda stream id = 0\n-shmem base_addr = 0x0000200006000000\n"
        "-local mem base_addr = 0x0000200004000000\n-nvbit version = 1.5.3\n"
        "-accelsim tracer version = 3\n"
        f"Header info loaded for kernel command : ./traces/kernel-{number}.traceg\n"
    )


def request(kernel, block, address, *, store=False, size=32, kind=None, mask="01" * 16):
    kind = kind or ("GLOBAL_W" if store else "GLOBAL_R")
    what = "store" if store else "load "
    return (
        f"  mf: uid=71 sid=3 warp=2 (1520) addr=0x{address:x}, {what}, size={size}, {kind} "
        f"0x00b0 cta={block},0,0 kernel={kernel} active_threads={mask}\n"
    )


def started(block, cycle, interval=0):
    return (
        f"thread block = {block},0,0\n"
        f"GPGPU-Sim uArch: Started CTA (0,0,0) #1 ({cycle},{interval}), 1 CTAs running, kernel=0\n"
    )


def finished(kernel, block, cycle, interval=0):
    return (
        f"GPGPU-Sim uArch: Finished CTA ({block},0,0) #1 ({cycle},{interval}), 0 CTAs running, "
        f"kernel={kernel}\n"
    )


LOG = (
    BANNER
    + "launching memcpy command : MemcpyHtoD,0x00007f4e34a00000,64\n"
    + header(1, name="_Z8producerPf")
    + header(2, name="_Z8consumerPf")
    + started(1, 10)
    + request(1, 1, BASE)
    + request(1, 1, BASE + 4096, store=True, size=128)
    + finished(1, 1, 250)
    + "gpu_sim_cycle = 300\ngpu_tot_sim_cycle = 300\n"
    + started(3, 5, 300)
    + request(2, 3, BASE + 4096 + 96)
    + request(2, 3, BASE, kind="LOCAL_R")
    + request(2, 3, BASE + 4096, kind="L2_WB", store=True)
    + finished(2, 3, 1, 400)
)


@pytest.fixture
def log_file(tmp_path):
    def write(text, pack=bytes):
        path = tmp_path / "simulator.log"
        path.write_bytes(pack(text.encode()))
        return path

    return write


def test_edges_come_from_requests_of_their_size(log_file):
    extraction = analyse(open_trace(log_file(LOG)))
    assert [k.name for k in extraction.kernels] == ["producer(float*)", "consumer(float*)"]
    assert edges_of(extraction.graph) == [(0, 2, "RAW"), (2, 8, "RAW")]
    producer, consumer = extraction.kernels
    assert (producer.read_bytes, producer.written_bytes, producer.accesses) == (32, 128, 2)
    assert (consumer.read_bytes, consumer.written_bytes, consumer.accesses) == (32, 0, 1)
    assert extraction.metadata["skipped"] == {"local-memory requests": 1, "l2-memory requests": 1}
    assert extraction.metadata["format"] == "simlog"


def test_texture_requests_make_a_kernel_opaque(log_file):
    text = header(1) + request(1, 0, 0x100, kind="TEXTURE_") + request(1, 0, 0x200)
    text += header(2) + request(2, 0, 0x300, store=True)
    extraction = analyse(open_trace(log_file(text)))
    assert [kernel.untraced is not None for kernel in extraction.kernels] == [True, False]
    assert extraction.graph.certain().pairs() == []
    assert {(p.source, p.target) for p in extraction.graph.pairs()} == {(0, 1)}


def test_blocks_take_the_cycles_between_their_lines(log_file):
    trace = open_trace(log_file(LOG))
    (task,) = trace.tasks()
    part = task.scan()
    rows = dict(zip(part.touches.x.tolist(), part.durations.tolist(), strict=True))
    assert rows == {1: 240.0, 3: 96.0}
    announced = [each for each in part.launches if each is not None]
    assert [o.size if isinstance(o, MemoryOperation) else o.trace_id for o in announced] == [
        64,
        1,
        2,
    ]


def test_a_block_without_its_last_line_has_no_duration(log_file):
    text = LOG.replace(finished(2, 3, 1, 400), "")
    (task,) = open_trace(log_file(text)).tasks()
    part = task.scan()
    assert math.isnan(part.durations[part.touches.x.tolist().index(3)])
    assert part.warnings == {"thread blocks that started but did not finish": 1}


def test_a_block_that_touched_nothing_has_a_duration(log_file):
    (task,) = open_trace(log_file(LOG + started(2, 5, 400) + finished(2, 2, 9, 400))).tasks()
    part = task.scan()
    assert part.durations[part.touches.x.tolist().index(2)] == 4


def test_kernels_may_bear_the_numbers_of_the_trace(log_file):
    text = header(1) + header(7) + request(1, 0, BASE, store=True) + request(7, 1, BASE)
    extraction = analyse(open_trace(log_file(text)))
    assert edges_of(extraction.graph) == [(0, 5, "RAW")]


def test_execution_driven_logs_announce_kernels_otherwise(log_file):
    pushed = (
        "GPGPU-Sim PTX: pushing kernel '_Z6kernelPf' to stream 2, gridDim= (4,1,1) "
        "blockDim = (14,1,1) \n"
    )
    text = pushed + request(1, 0, BASE, store=True) + pushed + request(2, 1, BASE)
    extraction = analyse(open_trace(log_file(text)))
    assert edges_of(extraction.graph) == [(0, 5, "RAW")]
    assert [(k.name, k.stream) for k in extraction.kernels] == [("kernel(float*)", 2)] * 2


@pytest.mark.parametrize(
    "pushed", ["gridDim= (0,1,1) blockDim = (14,1,1)", "gridDim= (1,1,1) blockDim = (9999,1,1)", ""]
)
def test_an_impossible_launch_is_damage(log_file, pushed):
    text = f"GPGPU-Sim PTX: pushing kernel 'k' to stream 0, {pushed}\n" + LOG
    with pytest.raises(TraceError, match=r":1: (?:grid|block|launch line)"):
        analyse(open_trace(log_file(text)))


def test_a_request_of_a_kernel_that_is_not_announced(log_file):
    with pytest.raises(TraceError, match="with launch id 9, which no launch line announces"):
        analyse(open_trace(log_file(LOG + request(9, 0, BASE))))


@pytest.mark.parametrize(
    "line",
    [
        request(1, 0, BASE).replace("addr=0x", "addr=0y"),
        request(1, 0, BASE, size=0),
        request(1, 0, BASE, size=1 << 20),
        request(1, 0, (1 << 57) - 8),
        request(1, 1 << 31, BASE),
    ],
)
def test_damaged_requests_are_counted(log_file, line):
    (task,) = open_trace(log_file(LOG + line)).tasks()
    part = task.scan()
    assert part.damaged_lines == 1
    assert part.damaged_line.line == LOG.count("\n") + 1
    assert part.warnings == {"damaged memory lines": 1}


def test_requests_that_name_no_block_are_counted(log_file):
    line = "  mf: uid=    71, sid03:w02, part=1, addr=0x10, load , size=32, GLOBAL_R status = X\n"
    (task,) = open_trace(log_file(LOG + line)).tasks()
    part = task.scan()
    assert part.warnings == {"memory requests that name no thread block": 1}


def test_a_log_with_no_other_requests_is_refused(log_file):
    line = "  mf: uid=    71, sid03:w02, part=1, addr=0x10, load , size=32, GLOBAL_R status = X\n"
    with pytest.raises(TraceError, match="without memory lines that name a thread block"):
        open_trace(log_file(BANNER + line))


def test_a_cut_last_line_is_damage(log_file):
    text = LOG + request(2, 3, BASE)
    with pytest.raises(TraceError, match="the last line is cut"):
        analyse(open_trace(log_file(text[:-20])))
    assert len(analyse(open_trace(log_file(text[:-1]))).kernels) == 2


def test_a_cut_packed_log_is_damage(log_file):
    path = log_file(LOG * 40, gzip.compress)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceError, match="the gz stream ends early"):
        analyse(open_trace(path))


@given(st.integers(100, 2000))
def test_any_size_of_buffer_gives_the_same(tmp_path_factory, size):
    path = tmp_path_factory.getbasetemp() / "buffered.log"
    path.write_text(LOG)
    (task,) = open_trace(path).tasks()
    expected = task.scan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accesses, "_BUFFER_BYTES", size)
        part = task.scan()
    assert part.lines == expected.lines == LOG.count("\n")
    assert part.launches == expected.launches
    assert part.durations.tolist() == expected.durations.tolist()
    assert part.touches.start.tolist() == expected.touches.start.tolist()


def test_one_log_at_a_time(log_file, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(LOG)
    with pytest.raises(TraceError, match="is a second simulator log"):
        open_trace([log_file(LOG), other])


def four_blocks(cycles):
    """Return a log of a kernel of four blocks that finish at these cycles, None for never."""
    lines = [BANNER, header(1)]
    for block, cycle in enumerate(cycles):
        lines += [started(block, 10), request(1, block, BASE + 32 * block, store=True)]
        lines += [] if cycle is None else [finished(1, block, cycle)]
    return "".join(lines)


@pytest.mark.parametrize(
    ("cycles", "expected"),
    [
        ((30, 40, 60, 90), [20, 30, 50, 80]),
        ((30, None, 60, 90), [20, 50, 50, 80]),
        ((30, 5, 60, 90), [20, 50, 50, 80]),  # finishes before it starts
        ((None, None, 60, None), [50, 50, 50, 50]),
    ],
)
def test_a_block_without_a_duration_does_not_drop_those_of_others(log_file, cycles, expected):
    graph = analyse(open_trace(log_file(four_blocks(cycles)))).graph
    durations = default_durations(graph)
    assert durations.values.tolist() == expected
    assert durations.unit == "cycles"
    missing = sum(cycle is None or cycle < 10 for cycle in cycles)
    said = [note for note in durations.assumptions if "no usable duration" in note]
    assert len(said) == bool(missing)
    if missing:
        assert (
            f"for {missing} of 4 blocks (kernel 0 block {0 if cycles[0] is None else 1}" in said[0]
        )


def test_without_any_duration_instructions_count(log_file):
    graph = analyse(open_trace(log_file(four_blocks([None] * 4)))).graph
    assert default_durations(graph).unit == "instructions"
