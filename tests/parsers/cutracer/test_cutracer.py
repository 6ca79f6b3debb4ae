"""Files made to CUTracer's schema: what they say of launches and bytes, and what they cannot."""

import io
import json
import lzma
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from cutracer_files import access, completion, event, files_of, metadata, ndjson, tile
from hypothesis import given
from hypothesis import strategies as st
from kernel_folders import edges, golden_edges
from programs import PACKERS, edges_of

from depgraph import parsers
from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.samples import GOLDEN_EDGES, sample_path

DATA = Path(__file__).parent / "data"
BASE = 0x7F0000000000
CODE = ("LDG.E R4, [R2.64] ;", "STG.E [R2.64], R4 ;")
READ, WRITE = 0, 1
PRODUCER = ndjson(
    metadata(name="producer", instructions=CODE),
    access(1, (1, 0, 0), None, [BASE, BASE + 4], opcode=WRITE),
)
CONSUMER = ndjson(
    metadata(name="consumer", instructions=CODE),
    access(2, (3, 0, 0), None, [BASE + 4], opcode=READ),
)


@pytest.fixture
def run(tmp_path):
    """Return a function that writes the files of a run into a folder and opens that."""

    def opened(*files, events=None, pack=bytes, suffix=""):
        for number, content in enumerate(files):
            # Names say nothing of the order of launches.
            path = tmp_path / f"kernel_{9 - number}fa_iter0_k.ndjson{suffix}"
            path.write_bytes(pack(content))
        if events is not None:
            (tmp_path / "cutracer_kernel_events_20261123_213310.ndjson").write_bytes(events)
        return parsers.open_trace(tmp_path)

    return opened


def one_file(tmp_path, content):
    path = tmp_path / "kernel.ndjson"
    path.write_bytes(content)
    return parsers.open_trace(path)


@pytest.mark.parametrize(("pack", "suffix"), [("plain", ""), ("zst", ".zst"), ("xz", ".xz")])
def test_launches_are_in_the_order_of_their_numbers(run, pack, suffix):
    trace = run(CONSUMER, PRODUCER, pack=PACKERS[pack], suffix=suffix)
    extraction = analyse(trace)
    assert [kernel.name for kernel in extraction.kernels] == ["producer", "consumer"]
    assert edges_of(extraction.graph) == [(1, 7, "RAW")]
    assert extraction.metadata["format"] == "cutracer"


@pytest.mark.jit_only
@pytest.mark.parametrize("with_sass", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_golden_edges_of_the_packaged_program(tmp_path, with_sass):
    text = lzma.decompress(sample_path().read_bytes()).decode("utf-8", "replace")
    for name, content in files_of(text, with_sass=with_sass).items():
        (tmp_path / name).write_bytes(content)
    extraction = analyse(parsers.open_trace(tmp_path))
    assert len(extraction.kernels) == 25
    assert edges(extraction) == golden_edges(sample_path(GOLDEN_EDGES))


def test_bytes_of_lanes_that_took_part(tmp_path):
    records = (
        access(0, (0, 0, 0), None, [BASE, BASE + 4, BASE + 64], opcode=WRITE, mask=0b101),
        access(0, (1, 0, 0), "@P1 STG.E.64 [R2.64], R4 ;", [0, BASE + 256, BASE + 264]),
        access(0, (2, 0, 0), "RED.E.ADD.STRONG.GPU [R2.64], R4 ;", [BASE + 512] * 32),
        access(0, (2, 0, 0), "LDS R4, [R2] ;", [BASE + 1024] * 32),
        access(0, (3, 0, 0), "LDGSTS.E [R2], [R4.64] ;", [64, 68]),
        access(0, (3, 0, 0), "LDGSTS.E [R2], [R4.64] ;", [BASE + 2048, BASE + 2052]),
    )  # fmt: skip
    trace = one_file(tmp_path, ndjson(metadata(instructions=CODE), *records))
    (task,) = trace.tasks()
    touches = task.scan().touches
    ranges = zip(
        touches.x[touches.row].tolist(), touches.kind.tolist(),
        (touches.start - np.uint64(BASE)).tolist(), (touches.end - touches.start).tolist(),
        strict=True,
    )  # fmt: skip
    assert [*ranges] == [
        (0, 1, 0, 4), (0, 1, 64, 4), (1, 1, 256, 16), (2, 1, 512, 4), (2, 2, 512, 4),
        (3, 3, 2048, 8),
    ]  # fmt: skip
    assert touches.accesses.tolist() == [1, 1, 1, 1]
    assert touches.instructions.tolist() == [1, 1, 2, 1]


def test_what_the_first_line_says_of_a_kernel(run):
    line = metadata(
        (2, 3, 1), name="_Z1kPf", unmangled_name="k(float*)", block=(64, 2, 1), nregs=40,
        shmem_static=1024, shmem_dynamic=512, instructions=(*CODE, "ACQBULK ;"),
    )  # fmt: skip
    trace = run(ndjson(line, access(7, (1, 2, 0), None, [BASE], opcode=READ)))
    order = trace.program_order()
    for task in trace.tasks():
        order.add(pickle.loads(pickle.dumps(task)).scan())  # noqa: S301
    (launch,) = order.operations
    assert (launch.name, launch.mangled_name, launch.trace_id) == ("k(float*)", "_Z1kPf", 7)
    assert (launch.grid, launch.block, launch.registers) == ((2, 3, 1), (64, 2, 1), 40)
    assert (launch.shared_bytes, launch.context, launch.programmatic) == (1536, 0x33C98DC0, "wait")
    assert "on which stream a kernel was launched" in trace.blind_spots[-1]


def test_kernel_events_give_streams_and_launches_without_records(run):
    events = ndjson(
        {"type": "callstack_def", "callstack_id": "0x1", "frames": [], "source": "pytorch"},
        *(event(n, name=f"k{n}", stream=n % 2) for n in range(5)),
    )
    trace = run(CONSUMER, PRODUCER, events=events)
    extraction = analyse(trace)
    assert [k.name for k in extraction.kernels] == ["k0", "producer", "consumer", "k3", "k4"]
    assert [k.stream for k in extraction.kernels] == [0, 1, 0, 1, 0]
    assert (5, 11, "RAW") in edges_of(extraction.graph)
    assert "on which stream" not in trace.blind_spots[-1]


def test_a_launch_without_a_file_is_opaque(run):
    """Kernel events name every launch, also those that KERNEL_FILTERS kept from being traced."""
    kernels = analyse(run(CONSUMER, PRODUCER, events=ndjson(*map(event, range(1, 4))))).kernels
    assert [kernel.untraced is not None for kernel in kernels] == [False, False, True]


def test_what_the_writer_says_at_the_end_of_a_launch(run):
    idle, lost, whole = 2, 3, 4
    launches = [
        ndjson(metadata(name="idle", instructions=CODE), completion(idle)),
        ndjson(metadata(name="lost", instructions=CODE), completion(lost, "incomplete")),
        ndjson(
            metadata(name="whole", instructions=CODE),
            access(whole, (0, 0, 0), None, [BASE], opcode=READ),
            completion(whole),
        ),
    ]
    kernels = analyse(run(*launches, PRODUCER)).kernels
    assert [kernel.name for kernel in kernels] == ["producer", "idle", "lost", "whole"]
    assert [kernel.untraced is not None for kernel in kernels] == [False, False, True, False]


CAPTURE = {
    "version": 1, "grid_launch_id": 1, "launch_kind": "direct", "instr_begin": 0,
    "instr_end": 2**32 - 1, "reg_trace_ipoint": "after", "root_function": "k",
    "pc_namespace": "root_function_without_executed_calls", "root_instruction_count": 120,
    "reg_trace_instruction_count": 0, "instrumentation_errors": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "is_opaque"),
    [
        ({"instr_categories": None, "instrument_modes": ["mem_addr_trace", "tma_trace"]}, False),
        ({"capture_config": CAPTURE}, False),
        ({"capture_config": CAPTURE | {"instr_end": 120}}, False),
        ({"capture_config": CAPTURE | {"instr_end": 119}}, True),
        ({"capture_config": CAPTURE | {"instr_begin": 1}}, True),
        ({"instr_categories": ["mma", "tma"]}, True),
        ({"instrument_modes": ["tma_trace"]}, True),
    ],
)
def test_what_the_tracer_was_told_to_leave_out_makes_the_kernel_opaque(run, stated, is_opaque):
    part = ndjson(
        metadata(instructions=CODE, **stated), access(1, (1, 0, 0), None, [BASE], opcode=WRITE)
    )
    (kernel,) = analyse(run(part)).kernels
    assert (kernel.untraced is not None) is is_opaque


def test_lanes_in_the_shared_memory_of_a_cluster_touch_no_global_memory(tmp_path):
    code = ("LD.E R4, [R2.64] ;", "ST.E [R2.64], R4 ;")
    where = {"cluster_shared_mask": "0x2", "cluster_attribution": "supported"}
    content = ndjson(
        metadata(instructions=code),
        access(1, (0, 0, 0), None, [BASE, BASE + 4], opcode=WRITE) | where,
        access(2, (1, 0, 0), None, [BASE], opcode=READ),
        access(3, (2, 0, 0), None, [BASE + 4], opcode=READ),
    )
    found = [
        ndjson(metadata(instructions=code)) + line + b"\n" for line in content.splitlines()[1:]
    ]
    for number, one in enumerate(found):
        (tmp_path / f"kernel_{number}fa_iter0_k.ndjson").write_bytes(one)
    assert edges_of(analyse(parsers.open_trace(tmp_path)).graph) == [(0, 5, "RAW")]


def test_a_launch_without_records_has_no_place_without_kernel_events(run):
    extraction = analyse(run(PRODUCER, ndjson(metadata(name="idle")), CONSUMER))
    assert [kernel.name for kernel in extraction.kernels] == ["producer", "consumer"]
    warnings = extraction.metadata["warnings"]
    assert warnings["launches without records, whose place among the others is not known"] == 1


def test_several_launches_in_one_stream(tmp_path, monkeypatch):
    whole = PRODUCER + CONSUMER
    assert edges_of(analyse(one_file(tmp_path, whole)).graph) == [(1, 7, "RAW")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(whole))))
    assert edges_of(analyse(parsers.open_trace("-")).graph) == [(1, 7, "RAW")]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([PRODUCER + PRODUCER], r"launch 1 is announced twice"),
        ([PRODUCER[:-9]], r"the last line is cut"),
        ([PRODUCER.split(b"\n")[1] + b"\n"], r"launch id 1, which no launch line announces"),
        ([PRODUCER.replace(b'"grid":[4,1,1]', b'"grid":[0,1,1]')], r"kernel_metadata is damaged"),
        ([PRODUCER.replace(b'"cta":[1,0,0]', b'"cta":[9,0,0]')], r"block \(9,0,0\) is outside the"),
        ([PRODUCER + b'{"type":"mem_addr_trace"}\n'], r"1 of 2 access lines"),
        ([PRODUCER + b"\0" + CONSUMER.split(b"\n")[1] + b"\n"], r"1 of 2 access lines|damaged"),
        ([ndjson(metadata())], r"no kernel launch|without"),
        ([ndjson(metadata(), {"type": "mem_addr_trace"})], r"2 lines, 1 of which are damaged"),
        ([ndjson(metadata(instructions=CODE) | {"instructions": None})], r"are not numbered"),
        ([PRODUCER.replace(b'"1":{"sass"', b'"one":{"sass"')], r"instructions are not numbered"),
    ],
)  # fmt: skip
def test_damage_is_named(run, files, found):
    with pytest.raises(TraceError, match=found):
        analyse(run(*files))


@pytest.mark.parametrize("value", [-1, 1.5, 1 << 57, 1 << 70, None, "0x10", True, [1]])
def test_addresses_that_are_none_are_damage(tmp_path, value):
    record = access(1, (1, 0, 0), None, [BASE, value], opcode=WRITE)
    good = [access(1, (0, 0, 0), None, [BASE + 4 * i], opcode=WRITE) for i in range(200)]
    extraction = analyse(one_file(tmp_path, ndjson(metadata(instructions=CODE), *good, record)))
    assert extraction.metadata["skipped"]["damaged access lines"] == 1
    assert extraction.counts.accesses.tolist() == [200, 0, 0, 0]


def test_a_tile_that_lies_nowhere_is_damage(tmp_path):
    code = metadata(instructions=("UTMALDG.2D [UR8], [UR4] ;",))
    record = tile(1, (0, 0, 0), 0, tensor={"coords": [1 << 40, 0]})
    with pytest.raises(TraceError, match="access line is damaged"):
        analyse(one_file(tmp_path, ndjson(code, record)))


def test_a_name_that_is_no_text_in_utf_8(run):
    named = metadata(name="k\ud800", instructions=CODE)
    found = analyse(run(ndjson(named, access(1, (0, 0, 0), None, [BASE], opcode=WRITE))))
    assert [kernel.name for kernel in found.kernels] == ["k?"]


def test_contexts_of_a_process_share_their_addresses(run):
    other = CONSUMER.replace(b'"ctx":"0x33c98dc0"', b'"ctx":"0x44"')
    found = analyse(run(PRODUCER, other))
    assert len({kernel.context for kernel in found.kernels}) == 2
    assert edges_of(found.graph) == [(1, 7, "RAW")]


def test_one_number_in_two_files_is_of_two_runs(run):
    again = CONSUMER.replace(b'"grid_launch_id":2', b'"grid_launch_id":1')
    with pytest.raises(TraceError, match=r"two files announce launch 1.*one process and one run"):
        analyse(run(PRODUCER, again))


def test_kernel_events_may_have_empty_lines(run):
    events = b"\n".join([ndjson(event(1, stream=3)), ndjson(event(2))])
    found = analyse(run(PRODUCER, CONSUMER, events=events))
    assert [kernel.stream for kernel in found.kernels] == [3, 0]


def test_an_access_whose_instruction_is_not_named_makes_the_kernel_opaque(run):
    unnamed = ndjson(metadata(), access(3, (0, 0, 0), None, [BASE], opcode=7))
    kernels = analyse(run(PRODUCER, CONSUMER, unnamed)).kernels
    assert [kernel.untraced is not None for kernel in kernels] == [False, False, True]


def test_values_are_left_out_and_said(run):
    value = access(1, (1, 0, 0), "STG.E [R2.64], R4 ;", [BASE]) | {"type": "mem_value_trace"}
    warnings = analyse(run(PRODUCER + ndjson(value))).metadata["warnings"]
    assert any(w.startswith("mem_value_trace records, whose addresses are taken") for w in warnings)


def test_records_of_a_real_run_without_addresses_are_refused_by_name():
    with pytest.raises(TraceError, match=r"no kernel launch in 2 lines.*mem_addr_trace"):
        analyse(parsers.open_trace(DATA / "reg_trace_sample.ndjson"))


def test_kernel_events_of_a_real_run(run):
    trace = run(
        ndjson(metadata((128, 1, 1), instructions=CODE), access(5, (9, 0, 0), None, [BASE])),
        events=(DATA / "kernel_events_sample.ndjson").read_bytes(),
    )
    kernels = analyse(trace).kernels
    assert [kernel.stream for kernel in kernels] == [0, 0, 0, 1, 1, 0, 0, 1, 0, 1]
    matmul = kernels[4]
    assert matmul.name == "nvjet_sm100_tst_128x192_64x7_2x2f_2cta_h_bz_NNT"
    assert (matmul.grid, matmul.block, matmul.registers) == ((32, 1, 1), (64, 4, 1), 64)


def test_a_record_as_the_tests_of_its_writer_have_it(tmp_path):
    """Lanes 0 and 31 of 32 addresses beyond 4 GiB, in block (4, 5, 6)."""
    record = {
        "type": "mem_addr_trace", "ipoint": "B", "active_mask": "0x80000001",
        "addrs": [0x100000000 + i for i in range(32)], "cta": [4, 5, 6], "ctx": "0xabcdef12",
        "grid_launch_id": 2, "opcode_id": 0, "pc": "0xdead", "timestamp": 4, "trace_index": 3,
        "warp": 3,
    }  # fmt: skip
    code = ("LDG.E.U8 R4, [R2.64] ;",)
    trace = one_file(tmp_path, ndjson(metadata((8, 8, 8), instructions=code), record))
    footprints = analyse(trace).footprints
    assert footprints.start.tolist() == [0x100000000, 0x10000001F]
    assert footprints.block.tolist() == [4 + 8 * (5 + 8 * 6)] * 2


# Tiles by TMA


TILES = ("UTMALDG.2D [UR8], [UR4] ;", "UTMASTG.2D [UR4], [UR8] ;", "UTMAREDG.2D.ADD [UR4], [UR8] ;")


def touched_by(tmp_path, *records):
    """Return what a launch with the code of `TILES` touches, and whether it is opaque."""
    trace = one_file(tmp_path, ndjson(metadata(instructions=TILES), *records))
    (task,) = trace.tasks()
    part = task.scan()
    t = part.touches
    found = zip(t.kind.tolist(), (t.start - np.uint64(BASE)).tolist(),
                (t.end - t.start).tolist(), strict=True)  # fmt: skip
    return [*found], bool(part.untraced)


@pytest.mark.parametrize(("opcode", "kinds"), [(0, [0]), (1, [1]), (2, [1, 2])])
def test_a_tile_is_its_rows_inside_the_tensor(tmp_path, opcode, kinds):
    # 32 x 4 elements of two bytes, of a tensor of 64 x 16, from (48, 14) on.
    record = tile(0, (0, 0, 0), opcode, tensor={"coords": [48, 14, 0, 0, 0]})
    tiled = record["tma_transfer_info"]["tensor"]
    tiled["tiled"] = tile(0, (0, 0, 0), opcode)["tma_transfer_info"]["tensor"]["tiled"]
    rows = [(96 + 128 * row, 32) for row in (14, 15)]
    assert touched_by(tmp_path, record) == ([(k, *row) for k in kinds for row in rows], False)


def bulk(**info):
    record = tile(0, (0, 0, 0), 0, is_bulk=True, is_tensor=False, byte_count=512, **info)
    del record["tma_transfer_info"]["tensor"]
    return record | {"desc_addr": hex(BASE + 64)}


def test_a_bulk_copy_reads_its_bytes(tmp_path):
    assert touched_by(tmp_path, bulk()) == ([(0, 64, 512)], False)


CLUSTERED = metadata((4, 4, 4), instructions=TILES, cluster_dim=[2, 2, 2])


def test_a_multicast_load_is_for_the_blocks_of_its_mask(tmp_path):
    record = tile(0, (3, 1, 2), 0, is_multicast=True, multicast_cta_mask=0b1010_0001)
    touches = analyse(one_file(tmp_path, ndjson(CLUSTERED, record))).footprints
    # Of ranks 0, 5 and 7 in the cluster that begins at block (2, 0, 2).
    blocks = [x + 4 * (y + 4 * z) for x, y, z in ((2, 0, 2), (3, 0, 3), (3, 1, 3))]
    assert sorted(set(touches.block.tolist())) == blocks
    assert {(touches.end - touches.start)[touches.block == b].sum() for b in blocks} == {4 * 64}


@pytest.mark.parametrize(
    ("line", "mask"),
    [
        (CLUSTERED, 0),
        (CLUSTERED, 1 << 8),
        (CLUSTERED | {"cluster_dim_source": "unknown"}, 1),
        (metadata(instructions=TILES), 1),
    ],
)
def test_a_multicast_for_blocks_that_are_not_known_makes_its_kernel_opaque(tmp_path, line, mask):
    record = tile(0, (0, 0, 0), 0, is_multicast=True, multicast_cta_mask=mask)
    (kernel,) = analyse(one_file(tmp_path, ndjson(line, record)), allow_empty=True).kernels
    assert kernel.untraced == "copies by TMA, of which the trace does not say all"


@pytest.mark.parametrize(
    "record",
    [
        tile(0, (0, 0, 0), 0, is_multicast=True),
        tile(0, (0, 0, 0), 0, tensor={"mode": "IM2COL"}),
        tile(0, (0, 0, 0), 0, tiled={"interleave_id": 1}),
        tile(0, (0, 0, 0), 0, tiled={"data_type_id": 13}),
        bulk() | {"opcode_id": 1},
        {k: v for k, v in tile(0, (0, 0, 0), 0).items() if k != "tma_transfer_info"},
        {**tile(0, (0, 0, 0), 0), "tma_transfer_info": None, "desc_raw": ["0x0"] * 16},
    ],
)
def test_what_a_copy_does_not_say_makes_its_kernel_opaque(tmp_path, record):
    assert touched_by(tmp_path, record) == ([], True)


def test_a_prefetch_touches_nothing(tmp_path):
    assert touched_by(tmp_path, tile(0, (0, 0, 0), 0, is_prefetch=True)) == ([], False)


def test_code_that_copies_by_tma_without_such_records_is_opaque(tmp_path):
    record = access(0, (0, 0, 0), "LDG.E R4, [R2.64] ;", [BASE])
    assert touched_by(tmp_path, record) == ([(0, 0, 4)], True)


# The slow twin: what json and sets of bytes make of the same lines.


def naive_bytes(records):
    """Return the bytes that each block reads and writes, lane by lane."""
    found = {}
    for record in records:
        for lane, address in enumerate(record["addrs"]):
            if address and int(record["active_mask"], 16) >> lane & 1:
                width, kind = [(4, 0), (4, 1)][record["opcode_id"]]
                key = record["cta"][0], kind
                found.setdefault(key, set()).update(range(address, address + width))
    return found


lane_addresses = st.lists(
    st.one_of(st.just(0), st.integers(BASE, BASE + 64)), min_size=32, max_size=32
)


accesses = st.tuples(
    st.integers(0, 3), st.integers(0, 1), lane_addresses, st.integers(0, 2**32 - 1)
)


@given(st.lists(accesses, max_size=6))
def test_bytes_are_those_of_the_slow_reader(tmp_path_factory, drawn):
    records = [access(0, (b, 0, 0), None, a, opcode=o, mask=m) for b, o, a, m in drawn]
    folder = tmp_path_factory.mktemp("random")
    trace = one_file(folder, ndjson(metadata(instructions=CODE), *records))
    (task,) = trace.tasks()
    t = task.scan().touches
    found = {}
    for row, kind, start, end in zip(t.row, t.kind, t.start, t.end, strict=True):
        key = int(t.x[row]), int(kind)
        found.setdefault(key, set()).update(range(int(start), int(end)))
    assert found == naive_bytes(records)


def test_a_long_first_line_is_read(run):
    code = [*CODE, *("FFMA R1, R2, R3, R4 ;" for _ in range(60_000))]
    content = ndjson(metadata(instructions=code), access(1, (1, 0, 0), None, [BASE], opcode=WRITE))
    assert content.index(b"\n") > 2 << 20
    assert len(analyse(run(content, CONSUMER)).kernels) == 2


def test_the_commands_take_the_folder(tmp_path, program):
    for number, content in enumerate((PRODUCER, CONSUMER)):
        (tmp_path / f"kernel_{number}a_iter0_k.ndjson").write_bytes(content)
    done = program("check", tmp_path, "--format", "json")
    assert json.loads(done.out)["format"] == "cutracer"
