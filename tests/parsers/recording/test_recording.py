"""Recordings from an H100: footprints that are known by construction, and real edges."""

import json
import lzma
import shutil
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import COPY, KERNEL, MEMSET, recording

from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse, extract
from depgraph.graph.dependences import KIND_NAMES
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import SECTORS
from depgraph.parsers.recording.packing import pack
from depgraph.parsers.recording.sectors_jit import MOST_RUNS, Masks, ranges_of_masks
from depgraph.parsers.recording.tensor_maps import TensorMap, decode, maps_in, tile_ranges
from depgraph.samples import RECORDING, sample_path
from depgraph.trace.records import READ, SYNC_READ, WRITE

DATA = Path(__file__).parent / "data"
HOOKS = Path(__file__).parents[2] / "recorder/data/hooks.recording"


@pytest.mark.jit_only
def test_edges_of_a_real_program_are_those_of_its_trace_but_for_zero_fill(sample_store):
    recorded = _edges(analyse(open_trace(sample_path(RECORDING))).graph)
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
        if made["interleave"]:
            assert found is None
            continue
        assert found.address == made["address"]
        assert list(found.sizes) == made["dims"]
        assert list(found.strides[1:]) == made["strides"]
        assert list(found.steps[1:]) == made["steps"][1:]
        assert found.element == [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4][made["type"]]
        if made["mode"] == "tiled":
            assert list(found.box) == made["box"]
        else:
            assert [list(found.lower), list(found.upper)] == [made["lower"], made["upper"]]
            assert (found.channels, found.pixels) == (made["channels"], made["pixels"])


def test_maps_are_found_among_parameters_whatever_they_load():
    for made in maps():
        words = [int(word, 16) for word in made["words"]]
        found = maps_in(bytes(8) + np.array(words, np.uint64).tobytes())
        assert [map_ for at, map_ in found if at == 8] == [decode(words)] * (not made["interleave"])


# Of an operand that all products of a batch share, as cuBLAS gives it: 256 x 1024 numbers of four
# bytes, and 2^31 - 1 of these in a dimension of stride 0.
SHARED = [0x7FABD1100000, 0x40000563B2, 0, 0, 0x3FF000000FF, 0x7FFFFFFE00000000, 0x1F << 56, 0x3F]


def test_a_dimension_of_stride_0_holds_one_element_however_often_it_is_there():
    shared = decode(SHARED)
    assert (shared.sizes, shared.strides) == ((256, 1024, 1, 1), (4, 1024, 0, 0))
    assert shared.end == shared.address + (1 << 20)
    assert maps_in(np.array(SHARED, np.uint64).tobytes()) == [(0, shared)]
    first, last, before, behind = (
        [32, 0, 0, 0],
        [32, 0, 0, 2**31 - 2],
        [32, 0, 0, -1],
        [32, 0, 1, 0],
    )
    at = shared.places(np.array([first, last, before, behind], np.int32))
    load, start, _ = tile_ranges(shared, at)
    assert np.bincount(load, minlength=4).tolist() == [64, 64, 0, 0]
    assert start[0] == start[64] == shared.address + 4 * 32


def test_a_box_that_spans_a_dimension_of_stride_0_is_not_understood():
    assert decode([*SHARED[:7], 0x3F | 1 << 16]) is None


@given(
    st.integers(0, len(maps()) - 1),
    st.lists(st.lists(st.integers(-20, 300), min_size=5, max_size=5), min_size=1, max_size=3),
)
def test_a_tile_reads_each_element_of_its_box_that_is_in_the_tensor(which, places):
    found = decode([int(word, 16) for word in maps()[which]["words"]])
    if not isinstance(found, TensorMap) or np.prod(found.box) > 600:
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
    for room in (MOST_RUNS, MOST_RUNS * len(columns)):  # one after another, and all at once
        out = np.empty(room, np.int32), np.empty(room, np.uint8), *np.empty((2, room), np.uint64)
        found, first = [], 0
        while first < len(columns):
            first, n = ranges_of_masks(masks, first, *out)
            found += zip(*(column[:n].tolist() for column in out), strict=True)
        assert found == naive_ranges(masks)


def damaged(tmp_path, change):
    path = tmp_path / "damaged.recording"
    shutil.copy(HOOKS, path)
    change(path)
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:3000])


def without_events(path):
    with zipfile.ZipFile(HOOKS) as old:
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
        (without_events, r"'events.jsonl' is missing"),
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
        open_trace([HOOKS, sample_path(RECORDING)])


def test_footprints_are_a_table_as_of_any_trace(tmp_path):
    store = extract(open_trace(HOOKS), tmp_path / "out")
    assert isinstance(store.to_pandas("footprints"), pd.DataFrame)
    assert store.metadata["format"] == "recording"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([KERNEL | {"grid": [0, 1, 1]}], "grid is 0"),
        ([KERNEL | {"grid": [-1, -1, 1]}], "grid is -1"),
        ([KERNEL | {"grid": [2**31 - 1] * 3}], "has a grid of"),
        ([KERNEL | {"grid": 7}], "grid is 7, no three numbers"),
        ([KERNEL | {"block": [1, 1, 1e3]}], "block is 1000.0"),
        ([KERNEL | {"cluster": [16, 16, 16]}], "a cluster of 4096 blocks"),
        ([KERNEL | {"stream": -1}], "stream is -1"),
        ([KERNEL | {"context": float("inf")}], "Infinity is no number"),
        ([KERNEL | {"name": ["k"]}], "name is .*, no text"),
        ([KERNEL | {"ranges": "step"}], "ranges are 'step', no texts"),
        ([KERNEL | {"ranges": [1]}], "ranges are .1., no texts"),
        ([KERNEL | {"number": True}], "number is True"),
        ([KERNEL, KERNEL | {"grid_id": 2}], "launch 1 came before"),
        ([{k: v for k, v in KERNEL.items() if k != "registers"}], "'registers' is missing"),
        ([KERNEL, COPY | {"to": -1}], "to is -1"),
        ([KERNEL, COPY | {"bytes": 2**64}], "bytes is 18446744073709551616"),
        ([KERNEL, COPY | {"to": 2**57 - 8}], "to is"),
        ([KERNEL, COPY | {"direction": 4, "from": 2**64}], "from is"),
        ([KERNEL, COPY | {"direction": "up"}], "direction is 'up'"),
        ([KERNEL, COPY | {"height": 2**31, "to_pitch": 2**56}], "to is 4096"),
        ([KERNEL, MEMSET | {"width": float("nan")}], "NaN is no number"),
        ([KERNEL, MEMSET | {"element": 2**31, "width": 2**40}], "address is 4096"),
    ],
)  # fmt: skip
def test_events_that_cannot_be_are_refused_in_one_line(tmp_path, events, said):
    with pytest.raises(TraceError, match=said) as caught:
        analyse(open_trace(recording(tmp_path, *events)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sector", "said"),
    [
        ((128, 2, 1, 1, 0, 0, 1), "block 2 of launch 1 is outside its grid"),
        ((128, 2**32 - 1, 1, 1, 0, 0, 1), "block 4294967295 of launch 1 is outside its grid"),
        ((2**59, 0, 1, 1, 0, 0, 1), "launch 1 touches an address that no GPU has"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, sector, said):
    # Interpreted code warns where compiled code wraps around.
    with np.errstate(over="ignore"), pytest.raises(TraceError, match=said):
        analyse(open_trace(recording(tmp_path, KERNEL, sectors=[sector])))


def test_a_multicast_to_blocks_that_are_not_there_is_refused(tmp_path):
    made = next(m for m in maps() if m["mode"] == "tiled" and decode_words(m))
    words = [int(word, 16) for word in made["words"]] + [0] * 16
    path = recording(
        tmp_path, KERNEL | {"cluster": [4, 1, 1]},
        tiles=[(9, 0, 1, (0, 0, 0, 0, 0), 0b1000, 0, 0)], maps=[(1, 9, words[:16], 1, 1)],
    )  # fmt: skip
    with pytest.raises(TraceError, match="block 3 of launch 1 is outside its grid"):
        analyse(open_trace(path))


def decode_words(made):
    return decode([int(word, 16) for word in made["words"]])


def test_a_tile_larger_than_shared_memory_is_not_understood(tmp_path):
    words = [0] * 16
    words[0] = 1 << 20
    words[1] = 4 << 4 | 1 << 32  # five dimensions of bytes
    words[2] = 1 | 1 << 32
    words[3] = 1
    words[4] = words[5] = 255 | 255 << 32
    words[6] = 255 | 255 << 56
    words[7] = 0xFFFFFFFF
    assert decode(words).rows == 256**4
    path = recording(
        tmp_path, KERNEL, tiles=[(9, 0, 1, (0,) * 5, 0, 0, 0)], maps=[(1, 9, words, 1, 1)]
    )
    (kernel,) = analyse(open_trace(path)).kernels
    assert kernel.untraced == "a tensor map that is not understood"


@pytest.mark.parametrize("member", ["about.json", "events.jsonl", "sectors/0000001"])
def test_a_small_file_that_unpacks_to_more_than_memory_holds_is_refused(
    tmp_path, monkeypatch, member
):
    monkeypatch.setattr("depgraph.parsers.recording.archive.default_limit", lambda: 1 << 20)
    path = tmp_path / "bomb.recording"
    path.write_bytes(b"depgraph recording\n")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as bomb:
        for name, content in (
            ("about.json", '{"format": 1}'), ("events.jsonl", json.dumps(KERNEL)),
        ):  # fmt: skip
            if name != member:
                bomb.writestr(name, content)
        bomb.writestr(member, bytes(2 << 20))
    with pytest.raises(TraceError, match=f"{member} is 2.0 MiB unpacked"):
        analyse(open_trace(path))


def test_what_would_take_too_much_memory_is_given_away_piece_by_piece(tmp_path, monkeypatch):
    class Kept:
        most_ranges = 3

        def __init__(self):
            self.taken = []

        def take(self, ranges):
            self.taken.append(ranges)

    def found(columns):
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [(*key, b) for *key, start, end in rows for b in range(start, end)]

    sectors = [(128 + i, i % 2, 1, 0x5555, 0xF, 0, 1) for i in range(10)]
    path = recording(tmp_path, KERNEL, sectors=sectors)

    def scanned(overflow):
        _, task = open_trace(path).tasks()
        touches = task.scan(overflow).touches
        return touches.row, touches.kind, touches.start, touches.end

    whole = found(scanned(None))
    monkeypatch.setattr("depgraph.parsers.recording.trace._RANGES_AT_ONCE", 2 * MOST_RUNS)
    kept = Kept()
    left = found(scanned(kept))
    assert len(kept.taken) > 1
    assert sorted(left + [row for ranges in kept.taken for row in found(ranges)]) == sorted(whole)


def test_memsets_of_rows_with_gaps_are_told(tmp_path):
    path = recording(tmp_path, KERNEL, MEMSET | {"height": 3, "pitch": 64})
    extraction = analyse(open_trace(path))
    assert [copy.size for copy in extraction.copies] == [160]
    assert any(
        "memsets of rows with gaps" in warning for warning in extraction.metadata["warnings"]
    )


def test_copies_and_memsets_say_what_they_are_and_where(tmp_path):
    to_device = COPY | {"to": 4096}
    to_host = COPY | {"from": 4096, "to": 2**60, "direction": 3}
    on_device = COPY | {"from": 4096, "to": 8192, "direction": 4}
    found = analyse(open_trace(recording(tmp_path, to_device, to_host, on_device, MEMSET, KERNEL)))
    assert [(c.what, c.source, c.address, c.size) for c in found.copies] == [
        ("memcpy HtoD", None, 4096, 32),
        ("memcpy DtoH", 4096, None, 32),
        ("memcpy DtoD", 4096, 8192, 32),
        ("memset", None, 4096, 32),
    ]
    assert [(p.source, p.target, p.raw, p.war, p.waw) for p in found.pairs] == [
        (-1, -2, 1, 0, 0),
        (-1, -3, 1, 0, 0),
        (-1, -4, 0, 0, 1),
        (-2, -4, 0, 1, 0),
        (-3, -4, 0, 1, 0),
        (-4, 0, 1, 0, 0),
    ]


ALLOC = {"event": "alloc", "address": 4096, "bytes": 512, "flags": 0, "stream": 0}
FREE = ALLOC | {"event": "free"}
SECOND = KERNEL | {"number": 2, "grid_id": 2}
SAME_BYTE = [(128, 0, 1, 1, 1, 0, 1), (128, 0, 2, 1, 1, 0, 1)]  # both kernels read and write it


@pytest.mark.parametrize(
    ("between", "kinds"),
    [
        ([], {"RAW", "WAR", "WAW"}),
        ([FREE, ALLOC], {"REUSE"}),
        ([FREE | {"bytes": 0}], {"REUSE"}),
        ([ALLOC], {"REUSE"}),  # it must have been freed: nothing is allocated twice
        ([FREE | {"address": 8192}, FREE | {"address": 12288, "bytes": 0}], {"RAW", "WAR", "WAW"}),
    ],
)
def test_memory_that_was_freed_in_between_is_allocator_reuse(tmp_path, between, kinds):
    path = recording(tmp_path, ALLOC, KERNEL, *between, SECOND, sectors=SAME_BYTE)
    graph = analyse(open_trace(path)).graph
    assert {kind for *_, kind in _edges(graph)} == kinds
    assert graph.kinds == {"RAW", "WAR", "WAW", "REUSE"}


def test_allocator_reuse_is_stored_chosen_and_shown(tmp_path, program):
    path = recording(tmp_path, ALLOC, KERNEL, FREE, ALLOC, SECOND, sectors=SAME_BYTE)
    store = extract(open_trace(path), tmp_path / "out")
    unknown = {"op": None, "line": None}
    assert store.table("allocations").to_pylist() == [
        {"address": 4096, "size": 512, "allocated": 0, "freed": 1} | unknown,
        {"address": 4096, "size": 512, "allocated": 1, "freed": None} | unknown,
    ]
    out = str(store.path)
    assert "0 WAW, 1 by allocator reuse" in program("extract", path, "-o", tmp_path / "again").out
    (pair,) = json.loads(program("show", "pairs", out, "--format", "json").out)["pairs"]
    assert (pair["raw"], pair["war"], pair["waw"], pair["reuse"]) == (0, 0, 0, 1)
    chosen = program("show", "pairs", out, "--deps", "raw,war,waw", "--format", "json").out
    assert json.loads(chosen)["pairs"] == []
    described = json.loads(program("show", "block", "1:0", out, "--format", "json").out)
    assert [(n["kinds"], n["reuse_bytes"]) for n in described["sources"]] == [("REUSE", 1)]
    buffers = json.loads(program("show", "buffers", out, "--sms", "4", "--format", "json").out)
    assert [(b["war"], b["waw"], b["reuse"]) for b in buffers["buffers"]] == [(0, 0, 1)]
    said = program("bound", out, "--sms", "4", "--deps", "raw,war,waw", "--details").out
    assert "REUSE dependences left out" in said
    dropped = ("--what-if", "buffer=0x1000:0x1200 drop=reuse")
    assert (
        json.loads(program("show", "pairs", out, *dropped, "--format", "json").out)["pairs"] == []
    )


def test_frees_are_counted_from_the_first_kernel_that_is_chosen(tmp_path):
    path = recording(tmp_path, KERNEL, ALLOC, SECOND, FREE, KERNEL | {"number": 3})
    found = analyse(open_trace(path), kernels=(1, 3))
    assert [(a.allocated, a.freed) for a in found.allocations] == [(0, 1)]
    assert analyse(open_trace(path), kernels=(0, 1)).allocations == []


def test_a_trace_without_frees_has_no_allocator_reuse(sample_store, program):
    assert sample_store.graph().kinds == {"RAW", "WAR", "WAW"}
    said = program("show", "pairs", sample_store.path, "--deps", "raw,reuse")
    assert said.code == 1
    assert "REUSE: a recording, which knows what was freed" in said.err


def test_events_that_are_written_late_stand_where_they_happened(tmp_path):
    events = [MEMSET | {"order": 3}, KERNEL | {"order": 1}, COPY | {"order": 2}]
    found = analyse(open_trace(recording(tmp_path, *events)))
    assert [k.operation for k in found.kernels] == [0]
    assert [(c.operation, c.what) for c in found.copies] == [(1, "memcpy HtoD"), (2, "memset")]


@given(st.data())
def test_a_recording_with_a_wrong_byte_is_read_or_refused(data):
    content = bytearray((HOOKS).read_bytes())
    content[data.draw(st.integers(19, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.recording"
        path.write_bytes(content)
        with suppress(TraceError):
            trace = open_trace(path)
            for task in trace.tasks():
                task.scan()


def test_a_kernel_without_room_for_all_it_touches_is_opaque(tmp_path):
    (kernel,) = analyse(open_trace(recording(tmp_path, KERNEL | {"lost": 3}))).kernels
    assert kernel.untraced == "more than the recorder had room for"


def test_copies_on_the_critical_path_are_not_counted_as_kernels(program):
    assert program("extract", HOOKS).code == 0
    said = program("show", "path").out
    assert "through 18 of 23 kernels and 2 copies and" in said


def test_a_kernel_whose_table_is_cut_is_opaque(tmp_path):
    rows = np.array([(128, 0, 1, 1, 0, 0, 1)] * 2, SECTORS).tobytes()
    path = tmp_path / "it.recording"
    event = KERNEL | {"sectors_at": 0, "sectors": 2}
    pack(path, {"process": 1}, [event], np.frombuffer(rows[:-8], np.uint8))
    (kernel,) = analyse(open_trace(path)).kernels
    assert kernel.untraced == "more than the recorder had room for"


def test_kernels_keep_the_nvtx_ranges_that_they_were_launched_in(tmp_path, program):
    inside = KERNEL | {"ranges": ["step", "fc"]}
    path = recording(tmp_path, inside, KERNEL | {"number": 2, "grid_id": 2, "ranges": []})
    assert program("extract", path, "-o", tmp_path / "it.out").code == 0
    shown = json.loads(program("show", "kernels", tmp_path / "it.out", "--format", "json").out)
    assert [kernel["nvtx"] for kernel in shown["kernels"]] == ["step / fc", None]
    assert "step / fc" in program("show", "kernels", tmp_path / "it.out").out


def test_contexts_of_a_process_have_one_address_space(tmp_path):
    events = KERNEL, COPY | {"from": 4096, "to": 8192}, KERNEL | {"number": 2, "context": 1}
    written = [(4096 // 32, 0, 1, 0, 0xFFFFFFFF, 0, 1)]
    path = recording(tmp_path, *events, sectors=written)
    store = extract(open_trace(path), tmp_path / "store")
    assert [(p.source, p.target, p.raw, p.war, p.waw) for p in store.pairs] == [
        (0, -1, 1, 0, 0),
        (0, 1, 0, 0, 1),
        (-1, 1, 0, 1, 0),
    ]
    assert store.kernels[1].context == 1


def test_a_recording_without_kernels_asks_for_a_program_that_has_some(tmp_path):
    with pytest.raises(TraceError, match=r"no kernel launch.*record a program that launches"):
        analyse(open_trace(recording(tmp_path, MEMSET)))
