"""Recordings from an H100: footprints that are known by construction, and real edges."""

from __future__ import annotations

import json
import lzma
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.graph.kinds import KIND_NAMES
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import SECTORS, pack
from depgraph.parsers.recording.sectors_jit import MOST_RUNS, Masks, ranges_of_masks
from depgraph.parsers.recording.tensor_maps import decode, tile_ranges
from depgraph.trace.records import READ, SYNC_READ, WRITE

DATA = Path(__file__).parent / "data"
# Where the arrays of tests/recorder/hooks.cu were when it was recorded.
A, B, SUMS, COUNTER = 140473110888448, 140473111937024, 140473188483072, 140473188548608


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


@pytest.fixture(scope="module")
def hooks():
    """Return what each block of each kernel touched, by kind."""
    extraction = analyse(open_trace(DATA / "hooks.recording"))
    footprints = extraction.footprints.load()

    def touched(kernel, block):
        first = extraction.kernels[kernel].first_block
        mine = footprints.of_block(first + block)
        return {
            kind: list(zip(mine.start[chosen].tolist(), mine.end[chosen].tolist(), strict=True))
            for kind in (READ, WRITE, SYNC_READ)
            if (chosen := mine.kind == kind).any()
        }

    touched.kernels = extraction.kernels
    touched.graph = extraction.graph
    return touched


@pytest.mark.parametrize(("kernel", "size"), list(enumerate([1, 2, 4, 8, 16])))
def test_loads_and_stores_of_every_width(hooks, kernel, size):
    for block in range(3):
        elements = range(64 * block, 64 * (block + 1))
        assert hooks(kernel, block) == {
            READ: joined(ranges([A + size * i for i in elements], size)),
            WRITE: joined(ranges([B + 2 * size * i for i in elements], size)),
        }


def test_atomics_read_and_write(hooks):
    for block in range(2):
        touched = [(SUMS + 160 * block, SUMS + 160 * (block + 1)), (COUNTER, COUNTER + 4)]
        assert hooks(5, block) == {SYNC_READ: touched, WRITE: touched}


def test_zero_fill_of_asynchronous_copies_reads_nothing(hooks):
    for block in range(2):
        threads = range(32)
        read = {
            (at, at + [16, 8, 4, 0][t % 4])
            for t in threads
            for at in [A + 16 * (32 * block + t)]
            if t % 4 < 3
        }
        assert hooks(6, block) == {READ: joined(read), WRITE: [(B + block, B + block + 1)]}


def test_bulk_copies_both_ways_and_reductions(hooks):
    for block in range(3):
        sums = (SUMS + 256 * block, SUMS + 256 * (block + 1))
        assert hooks(7, block) == {
            READ: [(A + 2048 * block, A + 2048 * block + 1024), sums],
            WRITE: [(B + 4096 * block, B + 4096 * block + 512), sums],
        }


def test_loads_of_tiles_end_where_the_tensor_does(hooks):
    width, height = 100, 40
    for block in range(8):
        x, y = 32 * (block % 4) - 8, 16 * (block // 4)
        columns = max(x, 0), min(x + 32, width)
        read = {
            tuple(A + 4 * (width * row + column) for column in columns)
            for row in range(y, min(y + 16, height))
        }
        assert hooks(8, block)[READ] == joined(read)


def test_a_kernel_that_may_store_tiles_is_opaque(hooks):
    assert [k.kernel for k in hooks.kernels if k.untraced] == [8]
    assert not hooks.graph.join_certain.all()


def test_nodes_of_a_graph_are_kernels_of_their_own(hooks):
    assert [k.name.split("(")[0] for k in hooks.kernels[9:]] == [
        "void copies<unsigned int>", "void copies<uint4>"] * 2  # fmt: skip
    for kernel in (9, 11):
        assert hooks(kernel, 1)[READ] == [(A + 128, A + 256)]
    for kernel in (10, 12):
        assert hooks(kernel, 1)[READ] == [(B + 512, B + 1024)]


def test_a_copy_on_the_device_reads_and_writes(hooks):
    # Two memsets, a copy from B to A behind nine kernels, and a memset in each replay of a graph.
    pairs = {(p.source, p.target): p for p in hooks.graph.pairs()}
    copy = -3
    assert pairs[3, copy].raw == 3  # it reads what all blocks of kernel 3 wrote there last
    assert pairs[0, copy].war == 3  # and overwrites what those of kernel 0 read


def test_edges_of_a_real_program_are_those_of_its_trace_but_for_zero_fill(sample_store):
    recorded = _edges(analyse(open_trace(DATA / "gru_train.recording")).graph)
    traced = _edges(sample_store.graph())
    assert len(recorded) == 477
    assert recorded < traced
    loads_asynchronously = {k.kernel for k in sample_store.kernels if k.ldgsts_bytes}
    assert all(
        (kind == "RAW" and target in loads_asynchronously)
        or (kind == "WAR" and source in loads_asynchronously)
        for source, _, target, _, kind in traced - recorded
    )


def _edges(graph):
    kernel, block = graph.block_names()
    source, target, kind = (np.concatenate(column) for column in zip(*graph.edges(), strict=True))
    names = np.array(KIND_NAMES)[kind]
    rows = zip(kernel[source].tolist(), block[source].tolist(), kernel[target].tolist(),
               block[target].tolist(), names.tolist(), strict=True)  # fmt: skip
    return {row for row in rows if row[0] >= 0 and row[2] >= 0}


def maps():
    with lzma.open(DATA / "tensor_maps.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def test_tensor_maps_decode_to_what_they_were_made_from():
    for made in maps():
        found = decode([int(word, 16) for word in made["words"]])
        if made["mode"] != "tiled" or made["interleave"]:
            assert found is None
            continue
        assert found.address == made["address"]
        assert list(found.sizes) == made["dims"]
        assert list(found.strides[1:]) == made["strides"]
        assert list(found.box) == made["box"]
        assert list(found.steps[1:]) == made["steps"][1:]
        assert found.element == [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4][made["type"]]


@given(
    st.integers(0, len(maps()) - 1),
    st.lists(st.lists(st.integers(-20, 300), min_size=5, max_size=5), min_size=1, max_size=3),
)
def test_a_tile_reads_each_element_of_its_box_that_is_in_the_tensor(which, places):
    found = decode([int(word, 16) for word in maps()[which]["words"]])
    if found is None or np.prod(found.box) > 600:
        return
    at = np.array(places, np.int32)[:, : len(found.sizes)]
    load, start, end = tile_ranges(found, at)
    for number, place in enumerate(at.tolist()):
        expected = set()
        for offset in np.ndindex(*found.box):
            element = [a + o for a, o in zip(place, offset, strict=True)]
            inside = all(0 <= e < n for e, n in zip(element, found.sizes, strict=True))
            if inside and not any(o % s for o, s in zip(offset, found.steps, strict=True)):
                distance = sum(e * s for e, s in zip(element, found.strides, strict=True))
                expected.add(found.address + distance)
        mine = load == number
        bytes_read = zip(start[mine].tolist(), end[mine].tolist(), strict=True)
        assert {b for s, e in bytes_read for b in range(s, e, found.element)} == expected


def naive_ranges(masks):
    """Spell out the runs of bits of each mask."""
    found = []
    for i in range(len(masks.row)):
        read, written = int(masks.read[i]), int(masks.written[i])
        ways = [(READ, read), (SYNC_READ, int(masks.synchronised[i]) & ~read), (WRITE, written)]
        for kind, bits in ways:
            text = format(bits, "032b")[::-1] + "0"
            first = None
            for byte, bit in enumerate(text):
                if bit == "1" and first is None:
                    first = byte
                if bit == "0" and first is not None:
                    base = 32 * int(masks.number[i])
                    found.append((int(masks.row[i]), kind, base + first, base + byte))
                    first = None
    return found


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 3, st.integers(0, 2**40)), max_size=5))
def test_ranges_of_masks(sectors):
    columns = np.array(sectors, np.uint64).reshape(-1, 4)
    masks = Masks(
        np.arange(len(columns), dtype=np.int32), columns[:, 3],
        *(columns[:, i].astype(np.uint32) for i in range(3)),
    )  # fmt: skip
    room = MOST_RUNS * len(columns)
    out = np.empty(room, np.int32), np.empty(room, np.uint8), *np.empty((2, room), np.uint64)
    n = ranges_of_masks(masks, *out)
    assert list(zip(*(column[:n].tolist() for column in out), strict=True)) == naive_ranges(masks)


def test_a_kernel_without_room_for_all_it_touches_is_opaque(tmp_path):
    event = {
        "event": "kernel", "number": 1, "grid_id": 1, "name": "k()", "mangled": "_Z1kv",
        "grid": [1, 1, 1], "block": [32, 1, 1], "cluster": [0, 0, 0], "registers": 8,
        "static_shared": 0, "dynamic_shared": 0, "stream": 0, "context": 0, "device": 0,
        "graph": 0, "state": "recorded", "lost": 3, "sectors_at": 0, "sectors": 1,
    }  # fmt: skip
    row = np.array([(4096, 0, 1, 1, 0, 0, 1)], SECTORS)
    path = tmp_path / "it.recording"
    pack(path, {"process": 1}, [event], row.view(np.uint8))
    (kernel,) = analyse(open_trace(path)).kernels
    assert kernel.untraced == "more than the recorder had room for"


def damaged(tmp_path, change):
    path = tmp_path / "damaged.recording"
    shutil.copy(DATA / "hooks.recording", path)
    change(path)
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:3000])


def without_events(path):
    with zipfile.ZipFile(DATA / "hooks.recording") as old:
        path.write_bytes(b"depgraph recording\n")
        with zipfile.ZipFile(path, "a") as new:
            for name in old.namelist():
                if name != "events.jsonl":
                    new.writestr(name, old.read(name))


def of_a_later_version(path):
    path.write_bytes(b"depgraph recording\n")
    with zipfile.ZipFile(path, "a") as new:
        new.writestr("about.json", '{"format": 99}')


def with_nonsense(path):
    path.write_bytes(b"depgraph recording\n")
    with zipfile.ZipFile(path, "a") as new:
        new.writestr("about.json", '{"format": 1}')
        new.writestr("events.jsonl", '{"event": "kernel", "number": "one"}\n')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut, "is a damaged recording"),
        (without_events, r"events.jsonl is missing"),
        (of_a_later_version, "is a recording of version 99"),
        (with_nonsense, "event 1 is not understood"),
    ],
)
def test_a_damaged_recording_is_refused_in_one_line(tmp_path, change, said):
    with pytest.raises(TraceError, match=said) as caught:
        analyse(open_trace(damaged(tmp_path, change)))
    assert "\n" not in str(caught.value)


def test_recordings_come_alone():
    with pytest.raises(TraceError, match="a recording of its own"):
        open_trace([DATA / "hooks.recording", DATA / "gru_train.recording"])


def test_footprints_are_a_table_as_of_any_trace(tmp_path):
    from depgraph.extraction.pipeline import extract

    store = extract(open_trace(DATA / "hooks.recording"), tmp_path / "out")
    assert isinstance(store.to_pandas("footprints"), pd.DataFrame)
    assert store.metadata["format"] == "recording"
