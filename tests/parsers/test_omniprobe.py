"""Logs made to omniprobe's format: what is certain, what only possible, and what is refused."""

import pickle

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_folders import edges
from omniprobe_files import basic_block, log, record
from programs import PACKERS

from depgraph import parsers
from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse

BASE = 0x7F0000000000
ORIGIN = (0, 0, 0)
WRITTEN = record(5, (1, 0, 0), "write", [BASE, BASE + 4])
READ = record(6, ORIGIN, "read", [BASE + 4])


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a log of some records."""

    def made(*records, pack=bytes):
        path = tmp_path / "omniprobe.json"
        path.write_bytes(pack(records[0] if isinstance(records[0], bytes) else log(*records)))
        return parsers.open_trace(path)

    return made


@pytest.mark.parametrize("pack", ["plain", "zst", "xz"])
def test_dispatches_are_in_the_order_of_their_numbers(opened, pack):
    trace = opened(READ, WRITTEN, pack=PACKERS[pack])
    extraction = analyse(trace)
    assert edges(extraction) == {(0, 1, 1, 0, "RAW")}
    assert extraction.metadata["format"] == "omniprobe"
    assert [(k.name, k.trace_id) for k in extraction.kernels] == [("k(int*)", 5), ("k(int*)", 6)]


def test_grid_and_block_are_those_that_records_name(opened):
    trace = opened(
        record(1, (0, 2, 0), "read", [BASE], wave=3), record(1, (4, 0, 1), "read", [BASE]),
        basic_block(1),
    )  # fmt: skip
    (kernel,) = analyse(trace).kernels
    assert (kernel.grid_x, kernel.grid_y, kernel.grid_z, kernel.block_x) == (5, 3, 2, 256)
    assert kernel.untraced is None
    assert "MI300X" in trace.blind_spots[-1]


def test_an_mi300x_is_taken_where_none_is_named(opened, program):
    opened(WRITTEN, READ)
    assert program("extract", "omniprobe.json", "-o", "it.out").code == 0
    done = program("bound", "it.out", "--mechanism", "all")
    assert "the limits of MI300X are assumed" in done.out
    assert "hsa-queues" in done.out
    assert "pdl" not in done.out


def test_atomics_read_and_write(opened):
    updates = [record(n, (n, 0, 0), "readwrite", [BASE]) for n in (1, 2)]
    assert edges(analyse(opened(*updates))) == {
        (0, 1, 1, 2, kind) for kind in ("RAW", "WAR", "WAW")
    }


def test_lds_and_scratch_are_no_buffers(opened):
    extraction = analyse(opened(WRITTEN, record(5, ORIGIN, "write", [0, 4096, 1 << 61, BASE])))
    assert extraction.metadata["skipped"]["addresses in LDS or scratch"] == 3
    assert extraction.kernels[0].written_bytes == 3 - 1


def test_a_dispatch_without_records_between_others_is_opaque(opened):
    extraction = analyse(opened(WRITTEN, record(7, ORIGIN, "read", [BASE])))
    assert [k.is_opaque for k in extraction.kernels] == [False, True, False]
    assert extraction.kernels[1].name == "dispatch_6"


def test_what_is_not_known_makes_a_dispatch_opaque(opened):
    unknown = record(6, ORIGIN, "undefined", [BASE])
    beyond = record(7, (65535, 0, 0), "write", [BASE])
    kernels = analyse(opened(WRITTEN, unknown, beyond)).kernels
    assert [k.is_opaque for k in kernels] == [False, True, True]
    assert "omniprobe does not say how many bytes" in kernels[0].untraced


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (log(WRITTEN) + b'{"kernel_name": "k","dispatch_id": 7', "the last line is cut"),
        (log(WRITTEN, READ | {"addresses": []}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"addresses": ["0x10"]}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"addresses": [1 << 64]}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"block_idx_x": "0"}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"dispatch_id": -1}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"wave_num": 16}), "1 of 2 access lines"),
        (log(WRITTEN, READ | {"kernel_name": "\ud800"}), "1 of 2 access lines"),
        (
            log(WRITTEN, READ | {"dispatch_id": 1 << 40}),
            "dispatches between others have no records",
        ),
        (log(basic_block(1)), "no kernel launch"),
    ],
)
def test_damage_is_named(opened, content, found):
    with pytest.raises(TraceError, match=found):
        analyse(opened(content))


def test_two_logs_are_refused(opened, tmp_path):
    first = opened(WRITTEN).sources.paths[0]
    (tmp_path / "second.json").write_bytes(first.read_bytes())
    with pytest.raises(TraceError, match="second log of omniprobe; give one run"):
        parsers.open_trace([first, tmp_path / "second.json"])


def test_the_part_may_be_sent_to_another_machine(opened):
    (task,) = opened(WRITTEN, READ).tasks()
    part, expected = pickle.loads(pickle.dumps(task)).scan(), task.scan()  # noqa: S301
    assert part.launches == expected.launches
    assert np.array_equal(part.touches.start, expected.touches.start)


# However wide accesses are: what depends on what is ordered by edges, certain or possible.

accesses = st.tuples(
    st.integers(0, 2), st.sampled_from(["read", "write"]), st.integers(0, 40), st.integers(0, 4)
)


@given(st.lists(st.lists(accesses, min_size=1, max_size=4), min_size=1, max_size=4))
def test_no_order_is_missed_and_what_is_certain_holds(tmp_path_factory, kernels):
    records, program, blocks = [], [], 0
    for number, some in enumerate(kernels):
        grid = 1 + max(block for block, *_ in some)
        operation = {blocks + block: (set(), set()) for block in range(grid)}
        for block, op, at, log_width in some:
            touched = range(at, at + (1 << log_width))
            operation[blocks + block][op == "write"].update(touched)
            records.append(record(number, (block, 0, 0), op, [BASE + at]))
        program.append(operation)
        blocks += grid
    path = tmp_path_factory.mktemp("random") / "it.json"
    path.write_bytes(log(*records))
    found = naive.expand(analyse(parsers.open_trace(path)).graph)
    true = naive.dependences(program)
    # A write between two accesses, as it is or as it might be, takes an edge away, not the order.
    assert {edge[:2] for edge in true} <= naive.reachable(found, blocks)
    certain = [edge for edge, basis in found.items() if basis <= 1]
    assert {edge[:2] for edge in certain} <= naive.reachable(true, blocks)
