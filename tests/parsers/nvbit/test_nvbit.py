"""NVBit logs from file to graph: the traps of real logs, and laws."""

import gzip

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import BASE, access_line, edges_of, launch_line, log_records
from small_logs import CONSUMER, EXPECTED, PRODUCER, edges_in, read, write

from depgraph.errors import ModelError
from depgraph.extraction.pipeline import analyse, extract
from depgraph.footprint.footprints import SpilledFootprints
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit.log import NvbitTrace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


# What the lines say


def test_an_access_belongs_to_the_launch_with_its_id(log_file):
    late = [launch_line(0), launch_line(1), read(1, 2, BASE), write(0, 1, BASE)]
    assert edges_in(log_file(*late)) == EXPECTED


def test_the_shared_side_of_an_asynchronous_copy_is_no_access(log_file):
    copy = "LDGSTS.E.LTC128B"
    trace = log_file(
        launch_line(0),
        access_line(0, 1, "STG.E", [BASE, 0x400]),
        launch_line(1),
        access_line(1, 0, copy, [0x400]),
        access_line(1, 2, copy, [BASE]),
    )
    extraction = analyse(open_trace(trace))
    assert edges_of(extraction.graph) == EXPECTED
    assert extraction.kernels[1].accesses == 1
    assert extraction.metadata["skipped"] == {
        "shared-memory side of asynchronous copies (LDGSTS)": 1
    }


def test_unused_lanes_are_no_access_to_address_0(log_file):
    trace = log_file(launch_line(0), write(0, 1, BASE), launch_line(1), read(1, 2, BASE + 4))
    assert edges_in(trace) == []


def test_a_generic_store_is_a_global_store(log_file):
    trace = log_file(launch_line(0), access_line(0, 1, "ST.E", [BASE]), *CONSUMER)
    assert edges_in(trace) == EXPECTED


def test_an_atomic_reads_and_writes(log_file):
    add = "ATOMG.E.ADD.STRONG.GPU"
    trace = log_file(
        launch_line(0),
        access_line(0, 0, add, [BASE]),
        launch_line(1),
        access_line(1, 0, add, [BASE]),
    )
    assert edges_in(trace) == [(0, 4, "RAW"), (0, 4, "WAR"), (0, 4, "WAW")]


@pytest.mark.parametrize("opcode", ["LDS.128", "STS", "LDL.64", "STL", "ATOMS.ADD", "CCTL.E.PF2"])
def test_other_memory_does_not_count(log_file, opcode):
    trace = log_file(*PRODUCER, launch_line(1), access_line(1, 2, opcode, [BASE]))
    extraction = analyse(open_trace(trace))
    assert edges_of(extraction.graph) == []
    assert sum(extraction.metadata["skipped"].values()) == 1


def test_an_unknown_opcode_is_counted_and_named(log_file):
    trace = log_file(*PRODUCER, access_line(0, 0, "LDZ.E", [BASE]))
    metadata = analyse(open_trace(trace)).metadata
    assert metadata["skipped"] == {"instructions with an opcode not known to depgraph": 1}
    assert metadata["warnings"] == {"memory opcode not known to depgraph (LDZ)": 1}


def test_blocks_are_numbered_x_first(log_file):
    trace = log_file(
        launch_line(0, (2, 3, 4)), write(0, (1, 2, 3), BASE), launch_line(1), read(1, 0, BASE)
    )
    assert edges_in(trace) == [(1 + 2 * (2 + 3 * 3), 24, "RAW")]


def test_launch_ids_of_nvbit_1_5_count_one_ahead(log_file):
    trace = log_file(launch_line(1), write(0, 1, BASE), launch_line(2), read(1, 2, BASE))
    assert edges_in(trace) == EXPECTED


@pytest.mark.jit_only
def test_a_cut_inside_a_launch_line_does_not_shift_ids(log_file):
    launches = [launch_line(n) for n in range(3)]
    trace = log_file(*launches, write(0, 1, BASE), read(2, 2, BASE))
    for part_bytes in range(100, 300):
        extraction = analyse(NvbitTrace(trace, part_bytes=part_bytes), jobs=1)
        assert edges_of(extraction.graph) == [(1, 10, "RAW")]


def test_a_second_process_starts_the_ids_anew_and_has_memory_of_its_own(log_file):
    second = (launch_line(0), write(0, 1, BASE), launch_line(1), read(1, 2, BASE))
    extraction = analyse(open_trace(log_file(*PRODUCER, *second, read(1, 3, BASE))))
    # Kernel 0 is the first process's, 1 and 2 are the second's.
    assert [kernel.trace_id for kernel in extraction.kernels] == [0, 0, 1]
    first = extraction.graph.first_block.tolist()
    expected = [(first[1] + 1, first[2] + 2, "RAW"), (first[1] + 1, first[2] + 3, "RAW")]
    assert edges_of(extraction.graph) == expected


def test_contexts_have_ids_and_memory_of_their_own(log_file, tmp_path):
    trace = log_file(
        launch_line(0, context=1),
        launch_line(0, context=2),
        launch_line(1, context=1),
        write(0, 1, BASE, context=1),
        write(0, 1, BASE, context=2),
        read(1, 2, BASE, context=1),
    )
    graph = extract(open_trace(trace), tmp_path / "store").graph()
    first = graph.first_block.tolist()
    assert edges_of(graph) == [(first[0] + 1, first[2] + 2, "RAW")]
    assert graph.space.tolist() == [0, 1, 0]


def test_a_kernel_is_what_its_launch_line_says(log_file):
    name = "void f<(int)4, g - h>(float const*, int)::{lambda()#1}"
    line = launch_line(
        7, (3, 2, 1), name=name, block=(64, 2, 1), registers=40, shared=1024, stream=-5, context=9
    )
    (kernel,) = analyse(open_trace(log_file(line, write(7, 0, BASE, context=9)))).kernels
    assert (kernel.name, kernel.grid, kernel.block) == (name, (3, 2, 1), (64, 2, 1))
    assert (kernel.registers, kernel.shared_bytes) == (40, 1024)
    assert (kernel.stream, kernel.context, kernel.trace_id) == (-5, 9, 7)
    assert (kernel.blocks, kernel.active_blocks, kernel.accesses) == (6, 1, 1)
    assert (kernel.read_bytes, kernel.written_bytes) == (0, 4)


def test_registers_of_a_lazily_loaded_kernel_are_unknown(log_file):
    (kernel,) = analyse(
        open_trace(log_file(launch_line(0, registers=0), write(0, 0, BASE)))
    ).kernels
    assert kernel.registers is None


@pytest.mark.parametrize(
    ("name", "untraced"),
    [
        ("sm90_xmma_gemm_f32(float*)", "copies by TMA, by its name, which the trace does not show"),
        ("void cutlass::device_kernel<Sm90TmaWarpSpecialized>(int)", "copies by TMA"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "copies by TMA"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(int)", "copies by TMA"),
        ("void deep_gemm::sm100_fp8_gemm_1d1d_impl<1>(int)", "copies by TMA"),
        ("softmax_warp_forward(float*)", None),
        ("void gemm_sm80_tn(float*)", None),
        ("void kernel_sm1000(float*)", None),
        ("sample_tex2D(float*)", None),
    ],
)
def test_a_name_may_say_that_a_kernel_is_opaque(log_file, name, untraced):
    (kernel,) = analyse(open_trace(log_file(launch_line(0, name=name), read(0, 0, BASE)))).kernels
    assert (kernel.untraced or "").startswith(untraced or "")
    assert bool(kernel.untraced) == bool(untraced)


def test_a_name_does_not_count_where_the_trace_shows_bulk_copies(log_file):
    log = log_file(
        launch_line(0, name="sm90_gemm(float*)"), access_line(0, 0, "STG.E", [BASE]),
        launch_line(1, name="other(float*)"), access_line(1, 0, "UTMALDG.2D", [BASE]),
    )  # fmt: skip
    kernels = analyse(open_trace(log)).kernels
    assert [kernel.untraced for kernel in kernels] == [
        None, "reaches global memory at addresses the trace does not hold",
    ]  # fmt: skip


def test_texture_instructions_make_a_kernel_opaque_and_texture_names_are_remarked(log_file):
    log = log_file(
        launch_line(0, name="blur(float*)"), access_line(0, 0, "TEX.B.LL", [BASE]),
        launch_line(1, name="sample_tex2D(float*)"), access_line(1, 0, "STG.E", [BASE]),
    )  # fmt: skip
    extraction = analyse(open_trace(log))
    assert [kernel.untraced for kernel in extraction.kernels] == [
        "uses texture memory, which the trace does not show", None,
    ]  # fmt: skip
    remark = "launches named as if they read textures, which the trace does not show"
    assert extraction.metadata["warnings"] == {remark: 1}


def test_a_kernel_that_writes_nothing_is_not_opaque(log_file):
    log = log_file(launch_line(0), read(0, 0, BASE), launch_line(1))
    assert [kernel.untraced for kernel in analyse(open_trace(log)).kernels] == [None, None]


# Laws


def as_program(log):
    """Give every block of every launch its sets, those that touch nothing too."""
    program, first = [], 0
    for launch, touched in zip(log.launches, log.program(), strict=True):
        gx, gy, gz = launch["grid"]
        blocks = range(first, first + gx * gy * gz)
        program.append({block: touched.get(block, (set(), set())) for block in blocks})
        first += gx * gy * gz
    return program


@given(log_records(max_launches=3))
def test_edges_and_counts_are_those_of_a_plain_reader(folder, records):
    (folder / "drawn.log").write_bytes(b"".join(records))
    extraction = analyse(open_trace(folder / "drawn.log"), jobs=1, allow_empty=True)
    log = naive.Log(b"".join(records))
    program = as_program(log)
    assert edges_of(extraction.graph.certain()) == sorted(naive.dependences(program))
    accesses = [log.accesses[k, b] for k, blocks in enumerate(program) for b in range(len(blocks))]
    assert extraction.counts.accesses.tolist() == accesses
    assert extraction.metadata["lines"] == log.counts["lines"]
    assert extraction.metadata["opcodes"] == log.opcodes
    for kernel, blocks in zip(extraction.kernels, program, strict=True):
        touched = [set().union(*(both[how] for both in blocks.values())) for how in (0, 1)]
        assert [kernel.read_bytes, kernel.written_bytes] == [len(t) for t in touched]
        assert kernel.shared_written_bytes == naive.shared_bytes(blocks)


def outcome(extraction):
    """Return all that an extraction found, but for how the input was cut."""
    graph, footprints = extraction.graph, extraction.footprints
    if isinstance(footprints, SpilledFootprints):
        footprints = footprints.load()
    return {
        "edges": edges_of(graph),
        "sets": graph.set_blocks.tolist(),
        "joins": [graph.sources.tolist(), graph.targets.tolist(), graph.join_kind.tolist()],
        "footprints": [a.tolist() for a in (footprints.block, footprints.kind, footprints.start)],
        "accesses": extraction.counts.accesses.tolist(),
        "instructions": extraction.counts.instructions.tolist(),
        "kernels": extraction.kernels,
        "metadata": {k: v for k, v in extraction.metadata.items() if k != "sources"},
    }


@given(log_records(), st.integers(16, 3000), st.sampled_from([1, 3]), st.booleans())
def test_nothing_depends_on_where_the_log_is_cut(folder, records, part_bytes, jobs, is_packed):
    text = b"".join(records)
    (folder / "whole.log").write_bytes(text)
    (folder / "cut.log").write_bytes(gzip.compress(text, 1) if is_packed else text)
    whole = analyse(NvbitTrace(folder / "whole.log"), jobs=1, allow_empty=True)
    cut = analyse(
        NvbitTrace(folder / "cut.log", part_bytes=part_bytes), jobs=jobs, allow_empty=True
    )
    expected, found = outcome(whole), outcome(cut)
    expected["metadata"]["input_bytes"] = found["metadata"]["input_bytes"]
    assert found == expected


@given(log_records(max_launches=3), st.randoms())
def test_edges_do_not_depend_on_the_order_of_accesses(folder, records, random):
    launches = [record for record in records if b" - LAUNCH - " in record]
    others = [record for record in records if b" - LAUNCH - " not in record]
    (folder / "drawn.log").write_bytes(b"".join(records))
    random.shuffle(others)
    (folder / "shuffled.log").write_bytes(b"".join(launches + others))
    assert edges_in(folder / "shuffled.log") == edges_in(folder / "drawn.log")


@pytest.mark.jit_only
@pytest.mark.parametrize("part_bytes", [100_003, 1 << 20])
def test_the_packaged_trace_cut_into_other_parts(sample_trace, sample_store, part_bytes):
    extraction = analyse(NvbitTrace(sample_trace, part_bytes=part_bytes))
    graph, whole = extraction.graph, sample_store.graph()
    for name in ("set_offsets", "set_blocks", "join_kind", "sources", "targets"):
        assert (getattr(graph, name) == getattr(whole, name)).all()
    assert extraction.kernels == sample_store.kernels


# Which kernels


@pytest.mark.parametrize(
    ("kernels", "numbers"),
    [((None, None), [0, 1, 2]), ((1, 3), [1, 2]), ((None, 1), [0]), ((2, None), [2])],
)
def test_a_window_of_kernels(log_file, kernels, numbers):
    trace = log_file(*(launch_line(n) + write(n, 0, BASE) for n in range(3)))
    extraction = analyse(open_trace(trace), kernels=kernels)
    assert [kernel.kernel for kernel in extraction.kernels] == numbers
    assert [kernel.first_block for kernel in extraction.kernels] == [
        4 * i for i in range(len(numbers))
    ]
    assert edges_of(extraction.graph) == [
        (4 * i, 4 * i + 4, "WAW") for i in range(len(numbers) - 1)
    ]


def test_a_window_without_kernels(log_file):
    with pytest.raises(ModelError, match="no kernel is selected; the trace has kernels 0 to 1"):
        analyse(open_trace(log_file(*PRODUCER, *CONSUMER)), kernels=(5, 7))


@pytest.mark.parametrize("granularity", [0, 3, 64])
def test_granularities_are_bytes_sectors_and_lines(log_file, granularity):
    with pytest.raises(ModelError, match=f"granularity {granularity}: give one of 1, 32, 128"):
        analyse(open_trace(log_file(*PRODUCER)), granularity=granularity)


@given(log_records(max_launches=3), st.sampled_from([32, 128]))
def test_false_edges_are_those_that_bytes_do_not_have(folder, records, granularity):
    (folder / "drawn.log").write_bytes(b"".join(records))
    coarse = analyse(
        open_trace(folder / "drawn.log"), granularity=granularity, jobs=1, allow_empty=True
    )
    program = as_program(naive.Log(b"".join(records)))
    exact = naive.dependences(program)
    rounded = naive.dependences(naive.rounded(program, granularity))
    assert edges_of(coarse.graph.certain()) == sorted(rounded)
    assert coarse.metadata["false_edges"] == len(rounded - exact)
    assert coarse.footprints.end.max(initial=0) == max(
        (b + 1 for k in program for both in k.values() for b in both[0] | both[1]), default=0
    )


@pytest.mark.jit_only
def test_little_memory_gives_the_same_through_files(sample_trace, sample_store, tmp_path):
    with analyse(open_trace(sample_trace), memory_limit=1 << 16, scratch=tmp_path) as extraction:
        assert list(tmp_path.iterdir()) != []
        graph, whole = extraction.graph, sample_store.graph()
        for name in ("set_offsets", "set_blocks", "join_kind", "sources", "targets"):
            assert (getattr(graph, name) == getattr(whole, name)).all()
        assert extraction.kernels == sample_store.kernels
    assert list(tmp_path.iterdir()) == []


@given(log_records(max_launches=3), st.integers(1, 100))
def test_footprints_may_go_through_files(folder, records, memory_limit):
    (folder / "drawn.log").write_bytes(b"".join(records))
    in_memory = outcome(
        analyse(open_trace(folder / "drawn.log"), jobs=1, allow_empty=True, granularity=32)
    )
    with analyse(
        open_trace(folder / "drawn.log"),
        jobs=1,
        granularity=32,
        allow_empty=True,
        memory_limit=memory_limit,
        scratch=folder,
    ) as extraction:
        assert outcome(extraction) == in_memory
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []
