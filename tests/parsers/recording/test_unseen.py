"""What no hook sees: kernels whose machine code does it are opaque, and say why."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import COPY, KERNEL, MEMSET, recording

from depgraph.errors import RecorderError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import SECTORS
from depgraph.parsers.recording.packing import is_left_by, ordinary_memory, pack
from depgraph.recorder import unseen
from depgraph.recorder.module_code import find_nvdisasm
from depgraph.recorder.unseen import (
    READS_CONSTANTS,
    READS_TEXTURES,
    STORES_TILES,
    UNKNOWN,
    USES_OWN_MAPS,
    USES_SURFACES,
    function_in,
    note_unseen,
)

SASS = Path(__file__).parents[2] / "apply/data/kernels.sass"
MODULE = {"event": "alloc", "address": 1 << 20, "bytes": 4096, "flags": 1, "stream": 0}
DATA = MODULE | {"address": 1 << 21, "flags": 0}
PINNED = MODULE | {"address": 1 << 30, "flags": 12}


def code(*instructions):
    return [f"        /*{16 * i:04x}*/    {each} ;" for i, each in enumerate(instructions)]


@pytest.mark.parametrize(
    ("instruction", "found"),
    [
        ("UTMASTG.2D [UR8], [UR4]", {STORES_TILES}),
        ("@P0 UTMAREDG.2D.ADD [UR8], [UR4]", {STORES_TILES}),
        ("TLD.LZ RZ, R5, R7, UR4, 0x0, 1D, 0x1", {READS_TEXTURES}),
        ("@!P2 TEX.SCR R4, R2, R4, 0x0, 2D", {READS_TEXTURES}),
        ("SUST.D.BA.1D.STRONG.SM.TRAP [R2], R0, 0x0", {USES_SURFACES}),
        ("LDC R0, c[0x3][R0]", {READS_CONSTANTS}),
        ("FADD R0, R0, c[0x3][0x10]", {READS_CONSTANTS}),
        ("LDG.E R4, desc[UR4][R2.64]", set()),
        ("ULDC.64 UR8, c[0x0][0x208]", set()),
        ("HGMMA.64x64x16.F32 R24, gdesc[UR4], !UPT", set()),
        ("CCTL.E.PF2 [R4]", set()),
        ("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ", set()),
        ("FROB.E R4, desc[UR4][R2.64]", {UNKNOWN.format("FROB")}),
        ("FROB [R2.64+0x10], R4", {UNKNOWN.format("FROB")}),
        ("UTMACCTL.PF [UR8]", set()),
        ("UTMACCTL.IV [UR8]", {USES_OWN_MAPS}),
        ("FADD R0, R0, c[0x0][0x10]", set()),
        ("STXYZ [R2], R0", {UNKNOWN.format("STXYZ")}),
    ],
)
def test_instructions_tell_what_hooks_miss(instruction, found):
    assert function_in(code("S2R R0, SR_TID.X", instruction, "EXIT"))[:2] == (found, False)


def module(functions, kernels):
    """Return an ELF file with code by function, in which some are kernels."""
    info = struct.pack("<BBHIHH", 4, 0x0A, 8, 0, 0x210, 16)
    parts = {".text." + name: content for name, content in functions.items()}
    parts |= {".nv.info." + name: info for name in kernels}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*parts, ".names"))
    contents = [b"", *parts.values(), names]
    rows, at = b"", 64
    for name, content in zip(["", *parts, ".names"], contents, strict=True):
        place = names.index(name.encode() + b"\0")
        rows += struct.pack("<IIQQQQIIQQ", place, 0, 0, 0, at, len(content), 0, 0, 0, 0)
        at += len(content)
    numbers = 2, 190, 1, 0, 0, at, 0, 64, 0, 0, 64, len(contents), len(contents) - 1
    header = struct.pack("<4sBB10xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, *numbers)
    return header + b"".join(contents) + rows


def test_a_store_knows_what_the_code_of_kernels_has(tmp_path):
    events = [
        KERNEL | {"number": 0, "programmatic": "trigger"},
        KERNEL | {"number": 1, "programmatic": ""},
        KERNEL | {"number": 2},
    ]
    kernels = analyse(open_trace(recording(tmp_path, *events))).kernels
    assert [k.programmatic for k in kernels] == ["trigger", "", None]


INSTRUCTIONS = {
    b"T": "TLD.LZ RZ, R5, R7, UR4, 0x0, 1D, 0x1",
    b"C": "FADD R0, R0, c[0x3][0x10]",
    b"S": "UTMASTG.2D [UR8], [UR4]",
    b".": "LDG.E R4, desc[UR4][R2.64]",
    b"J": "CALL.REL.NOINC 0x100",
    b"W": "ACQBULK",
    b"G": "@P0 PREEXIT",
}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Return a function that reads modules, and what the kernels of these names do."""

    def disassembled(content, *_):
        if b"?" in content:
            message = "an illegal instruction"
            raise RecorderError(message)
        words = (INSTRUCTIONS[content[i : i + 1]] for i in range(0, len(content), 16))
        return "\n".join(code(*words))

    def read_it(modules, *names):
        for number, (functions, kernels) in enumerate(modules):
            whole = {n: b"".join(bytes([c]) * 16 for c in text) for n, text in functions.items()}
            (tmp_path / f"module-7-{number}.cubin").write_bytes(module(whole, kernels))
        events = [{"event": "kernel", "mangled": name} for name in names]
        reason = note_unseen(events, tmp_path, 7, 90)
        return [event.get("unseen") for event in events], reason

    monkeypatch.setattr(unseen, "find_nvdisasm", lambda: Path("nvdisasm"))
    monkeypatch.setattr(unseen, "disassembled_code", disassembled)
    return read_it


def test_modules_that_a_process_leaves_are_read(read):
    modules = [
        ({"texture": b"..T", "axpy": b"....", "unused": b"?"}, ["texture", "axpy", "unused"]),
        ({"constants": b"C.", "tile": b"TS"}, ["constants", "tile"]),
    ]
    found, reason = read(modules, "texture", "constants", "tile", "axpy", "of another module")
    assert found == [
        [READS_TEXTURES], [READS_CONSTANTS], [READS_TEXTURES, STORES_TILES], [], None,
    ]  # fmt: skip
    assert reason == "of 1 of 5 kernels: 1 in modules that were too large to keep"


@pytest.mark.parametrize(
    ("kernel", "called", "has"),
    [
        (b"..", b"W", ""), (b"W.", b".", "wait"), (b"G.", b".", "trigger"),
        (b"WG", b".", "trigger and wait"), (b"J.", b"W", "wait"),
    ],
)  # fmt: skip
def test_code_tells_what_programmatic_launches_need(tmp_path, read, kernel, called, has):
    read([({"k": kernel, "called": called}, ["k"])], "k")
    event = {"event": "kernel", "mangled": "k"}
    assert note_unseen([event], tmp_path, 7, 90) == ""
    assert event["programmatic"] == has


def test_what_a_kernel_calls_counts(read):
    modules = [({"caller": b".J", "other": b"..", "called": b"T"}, ["caller", "other"])]
    assert read(modules, "caller", "other") == ([[READS_TEXTURES], []], "")


def test_code_that_is_not_read_tells_nothing_of_its_kernels_alone(read):
    functions = {"caller": b"J", "odd": b"?", "plain": b"..", "called": b"?."}
    found, reason = read([(functions, ["caller", "odd", "plain"])], "caller", "odd", "plain")
    assert found == [None, None, []]
    assert reason == "of 2 of 3 kernels: nvdisasm does not read 2"


def test_a_kernel_of_two_modules_does_what_either_does(read):
    modules = [({"k": b"T"}, ["k"]), ({"k": b"C"}, ["k"])]
    assert read(modules, "k") == ([[READS_CONSTANTS, READS_TEXTURES]], "")


def test_code_of_kernels_that_are_left_out_is_not_read(tmp_path, monkeypatch):
    """That of NCCL took more than two minutes on a machine with two GPUs."""
    (tmp_path / "module-7-0.cubin").write_bytes(module({"nccl": bytes(16)}, ["nccl"]))
    monkeypatch.setattr(unseen, "find_nvdisasm", lambda: Path("nvdisasm"))
    monkeypatch.setattr(unseen, "disassembled_code", lambda *_: pytest.fail("it was read"))
    event = {"event": "kernel", "mangled": "nccl", "state": "left out"}
    assert note_unseen([event], tmp_path, 7, 90) == ""
    assert "unseen" not in event


def test_without_a_disassembler_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(unseen, "find_nvdisasm", lambda: None)
    events = [{"event": "kernel", "mangled": "k"}]
    assert "nvdisasm" in note_unseen(events, tmp_path, 7, 90)
    assert "unseen" not in events[0]


@pytest.mark.skipif(
    shutil.which("nvcc") is None or find_nvdisasm() is None, reason="this needs: nvcc, nvdisasm"
)
def test_instructions_are_read_from_what_nvcc_makes(tmp_path):
    made = tmp_path / "module-1-0.cubin"
    source = SASS.with_name("kernels.cu")
    command = ["nvcc", "-arch", "sm_90", "-cubin", "-o", made, source]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this nvcc does not know sm_90")
    events = [{"event": "kernel", "mangled": name} for name in ("texture", "tile", "sums")]
    assert note_unseen(events, tmp_path, 1, 90) == ""
    assert [event["unseen"] for event in events] == [[READS_TEXTURES], [STORES_TILES], []]


def untraced(tmp_path, *events, **more):
    return [k.untraced for k in analyse(open_trace(recording(tmp_path, *events, **more))).kernels]


@pytest.mark.parametrize(
    ("unseen_", "reason"),
    [
        ([], None),
        ([READS_TEXTURES], "reads textures"),
        ([READS_TEXTURES, USES_SURFACES], "reads textures; uses surfaces"),
        ([STORES_TILES], "tiles stored by TMA"),
        ([READS_CONSTANTS], None),  # which nothing has written
    ],
)
def test_a_kernel_that_does_what_no_hook_sees_is_opaque(tmp_path, unseen_, reason):
    assert untraced(tmp_path, KERNEL | {"unseen": unseen_}) == [reason]


def test_a_kernel_without_accesses_is_opaque_only_if_nobody_read_its_code(tmp_path):
    hopper = {"architecture": 90}
    silent = untraced_on(tmp_path, hopper, KERNEL)
    assert silent == ["nothing that the recorder sees: it may use TMA alone"]
    assert untraced_on(tmp_path, hopper, KERNEL | {"unseen": []}) == [None]


def untraced_on(tmp_path, about, kernel):
    path = tmp_path / "it.recording"
    second = kernel | {"number": 2, "sectors": 1, "sectors_at": 0, "grid_id": 2}
    rows = np.array([(128, 0, 2, 1, 0, 0, 1)], SECTORS)
    pack(path, {"process": 1, **about}, [kernel, second], rows.view(np.uint8))
    return [k.untraced for k in analyse(open_trace(path)).kernels][:1]


@pytest.mark.parametrize(
    ("events", "is_opaque"),
    [
        ([MODULE, DATA, COPY | {"to": DATA["address"]}], False),
        ([MODULE, DATA, COPY | {"to": MODULE["address"]}], True),
        ([MODULE, DATA, MEMSET | {"address": MODULE["address"]}], True),
        ([DATA, COPY | {"to": 1 << 22}], True),  # of which nobody knows what it is
        ([MODULE, COPY | {"direction": 3, "from": MODULE["address"]}], False),
    ],
)
def test_constants_count_where_something_wrote_them(tmp_path, events, is_opaque):
    kernel = KERNEL | {"unseen": [READS_CONSTANTS]}
    (reason,) = untraced(tmp_path, *events, kernel)
    assert (reason is not None) == is_opaque


@pytest.mark.parametrize(
    ("address", "is_opaque"), [("module", True), ("data", False), ("nowhere", True)]
)
def test_constants_that_kernels_write_through_pointers_count(tmp_path, address, is_opaque):
    at = {"module": MODULE["address"], "data": DATA["address"], "nowhere": 1 << 30}[address]
    kernel = KERNEL | {"unseen": [READS_CONSTANTS]}
    path = recording(tmp_path, MODULE, DATA, kernel, sectors=[(at // 32, 0, 1, 0, 15, 0, 1)])
    (kernel,) = analyse(open_trace(path)).kernels
    assert (kernel.untraced is not None) == is_opaque


WHOLE = 1 << 20, 1 << 12
INSIDE = [(DATA["address"] // 32 + 64, 0, 1, 0, 15, 0, 1)]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(-3, 130), *[st.integers(0, 2**32 - 1)] * 2), max_size=4
    )
)
def test_what_is_written_outside_of_ordinary_memory(rows):
    start, size = WHOLE
    made, written = [], set()
    for is_page, step, low, high in rows:
        unit, mask = (16, low | high << 32) if is_page else (1, high)
        base = start + (1024 if is_page else 32) * step
        written |= {base + unit * i for i in range(64) if mask >> i & 1}
        number = (3 << 62 | base // 1024) if is_page else base // 32
        made.append((number, 0, 1, low, high, 0, 1))
    memory = ordinary_memory([DATA | {"address": start, "bytes": size}, MODULE])
    assert is_left_by(memory, np.array(made, SECTORS)) == any(
        not start <= at < start + size for at in written
    )


MAPS_OF_ONE = [
    {"event": "map", "address": at, "bytes": 1 << 16, "memory": 7, "offset": 0}
    for at in (1 << 21, 1 << 22)
]


@pytest.mark.parametrize(
    ("mappings", "is_opaque"),
    [
        (MAPS_OF_ONE, True),
        (MAPS_OF_ONE[:1], False),
        ([MAPS_OF_ONE[0], {"event": "multicast", "memory": 7}], True),
        ([MAPS_OF_ONE[0], {"event": "multicast", "memory": 8}], False),
        ([MAPS_OF_ONE[0], MAPS_OF_ONE[1] | {"memory": 8}], False),
        ([MAPS_OF_ONE[0], MAPS_OF_ONE[1] | {"offset": 1 << 16}], False),
        ([MAPS_OF_ONE[0], MAPS_OF_ONE[0] | {"event": "unmap"}, MAPS_OF_ONE[1]], False),
    ],
)
def test_memory_at_two_addresses_makes_kernels_opaque(tmp_path, mappings, is_opaque):
    path = recording(tmp_path, *mappings, KERNEL, sectors=[(2**21 // 32 + 9, 0, 1, 0, 15, 0, 1)])
    (kernel,) = analyse(open_trace(path)).kernels
    assert kernel.untraced == (
        "touches memory that is mapped at two addresses" if is_opaque else None
    )
    elsewhere = recording(tmp_path, *mappings, KERNEL, sectors=[(128, 0, 1, 0, 15, 0, 1)])
    assert [kernel.untraced for kernel in analyse(open_trace(elsewhere)).kernels] == [None]


@pytest.mark.parametrize(
    ("event", "is_opaque"),
    [
        (COPY | {"from": 1 << 21, "to": 1 << 23}, True),
        (COPY | {"from": 1 << 23, "to": (1 << 22) + 4096}, True),
        (COPY | {"from": 1 << 23, "to": (1 << 22) - 1}, True),
        (COPY | {"from": 1 << 23, "to": 1 << 24}, False),
        (COPY | {"from": 1 << 23, "to": 1 << 20, "height": 2, "from_pitch": 1 << 20}, True),
        (COPY | {"from": 1 << 23, "to": 1 << 20, "height": 2, "depth": 2}, True),
        (MEMSET | {"address": 1 << 22}, True),
        (MEMSET | {"address": (1 << 22) + (1 << 16)}, False),
    ],
)
def test_copies_of_memory_at_two_addresses_are_opaque(tmp_path, event, is_opaque):
    path = recording(tmp_path, *MAPS_OF_ONE, KERNEL, event)
    found = analyse(open_trace(path))
    what = event["event"]
    name = f"(a {what} of memory that is mapped at two addresses)"
    assert [kernel.name for kernel in found.kernels][1:] == [name] * is_opaque
    assert len(found.copies) == (not is_opaque)


@pytest.mark.parametrize("at", [1 << 21, (1 << 22) + 256, 1 << 23])
def test_tiles_of_memory_at_two_addresses_make_kernels_opaque(tmp_path, at):
    """Loaded, or by a map among the parameters that may be for a store."""
    words = [at, 1 << 32 | 7 << 7 | 1 << 4, 0, 0, 7 | 7 << 32, 0, 1 << 56 | 7 << 56, 7, *[0] * 8]
    elsewhere = [1 << 24, *words[1:]]
    given = np.array(words[:8], np.uint64).tobytes().hex()
    params = {"event": "params", "number": 1, "at": 0, "bytes": given}
    for loaded, events in ((words, []), (elsewhere, [params])):
        tiles, maps = [(9, 0, 1, (0,) * 5, 0, 0, 0)], [(1, 9, loaded, 1, 1)]
        kernel = KERNEL | {"unseen": []}
        path = recording(tmp_path, *MAPS_OF_ONE, *events, kernel, tiles=tiles, maps=maps)
        (kernel,) = analyse(open_trace(path)).kernels
        assert (kernel.untraced is not None) == (at < 1 << 23)


def test_what_nobody_sees_into_is_opaque_by_its_name(tmp_path):
    name = "(a conditional node)"
    event = {"event": "opaque", "number": 2, "name": name, "stream": 0, "context": 0}
    path = recording(tmp_path, KERNEL, event)
    first, second = analyse(open_trace(path)).kernels
    assert (first.untraced, second.name) == (None, name)
    assert second.untraced == "not recorded"


def test_host_memory_that_kernels_can_write_is_a_source_of_copies(tmp_path):
    at = PINNED["address"]
    copy = COPY | {"from": at, "to": DATA["address"]}
    sectors = [(at // 32, 0, 1, 0, 15, 0, 1)]
    path = recording(tmp_path, PINNED, DATA, KERNEL, copy, sectors=sectors)
    found = analyse(open_trace(path))
    assert [(c.source, c.what) for c in found.copies] == [(at, "memcpy HtoD")]
    assert [(p.source, p.target, p.raw) for p in found.pairs] == [(0, -1, 1)]
    pageable = analyse(open_trace(recording(tmp_path, DATA, KERNEL, copy, sectors=INSIDE)))
    assert [c.source for c in pageable.copies] == [None]


def test_host_memory_that_a_kernel_wrote_is_a_source_whoever_told_of_it(tmp_path):
    at = PINNED["address"]
    copy = COPY | {"from": at, "to": DATA["address"]}
    path = recording(tmp_path, DATA, KERNEL, copy, sectors=[(at // 32, 0, 1, 0, 15, 0, 1)])
    assert [(p.source, p.target, p.raw) for p in analyse(open_trace(path)).pairs] == [(0, -1, 1)]


def test_a_copy_to_the_host_is_read_by_one_from_there(tmp_path):
    at = PINNED["address"]
    to_host = COPY | {"from": DATA["address"], "to": at, "direction": 3}
    to_device = COPY | {"from": at, "to": DATA["address"] + 64}
    path = recording(tmp_path, PINNED, DATA, to_host, to_device, KERNEL, sectors=INSIDE)
    assert [(p.source, p.target, p.raw) for p in analyse(open_trace(path)).pairs] == [(-1, -2, 1)]


def test_memory_that_another_context_sees_is_not_allocated_again(tmp_path):
    seen, left = DATA | {"context": 1}, DATA | {"context": 1, "event": "free"}
    mine = DATA | {"context": 0}
    path = recording(tmp_path, mine, KERNEL, seen, COPY | {"to": DATA["address"]}, left)
    assert [(a.allocated, a.freed) for a in analyse(open_trace(path)).allocations] == [(0, None)]
    again = recording(tmp_path, mine, KERNEL, seen, mine, COPY)
    assert [a.freed for a in analyse(open_trace(again)).allocations] == [1, None]


def test_a_copy_in_three_dimensions_may_reach_all_that_lies_behind(tmp_path):
    copy = COPY | {
        "to": DATA["address"] + 96, "bytes": 64, "width": 16, "height": 2, "depth": 2,
        "to_pitch": 512, "from_pitch": 16,
    }  # fmt: skip
    found = analyse(open_trace(recording(tmp_path, DATA, copy, KERNEL)))
    assert [c.size for c in found.copies] == [DATA["bytes"] - 96]
    assert any("three dimensions" in warning for warning in found.metadata["warnings"])
