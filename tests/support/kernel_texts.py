"""Random Accel-Sim kernels, written as any version of the tracer would write them."""

import re
import struct
import sys
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from naive_accelsim import OPCODES, WINDOW, Block

from depgraph.trace.records import READ, SYNC_READ, WRITE

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GLOBAL = 0x7F6500000000
SHARED = 0x7F9000000000
LOCAL = 0x7F8E00000000
VERSIONS = (None, "1.2", "3", "4", "5", "6")
TOUCHES_MEMORY = ("r", "w", "async", "bulk")
REGISTERS = ("R0", "R12", "R255", "UR4", "UP1", "P0")


@dataclass
class Instruction:
    opcode: str
    mask: int
    addresses: list[int]  # of the active lanes; of a bulk copy all
    total: int = 0  # bytes of a bulk copy, and how many of them lie outside the tensor
    outside: int = 0
    destinations: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    mode: int = 0
    is_shared_side: bool = False


@dataclass
class Form:
    """How to write a kernel."""

    version: str | None = "5"
    is_raw: bool = False
    has_lines: bool = False
    has_cores: bool = False
    has_clusters: bool = False
    has_prefix: bool = False  # thread block and warp in grouped text, up to version 1.2
    end_of_line: str = " \n"
    counter: str = "01a0"
    declares: bool = True

    @property
    def number(self):
        return int(self.version[0]) if self.version else 0


def forms(*, is_raw=None, versions=VERSIONS):
    def consistent(form):
        form.has_clusters &= form.is_raw and form.number >= 5
        form.has_prefix &= not form.is_raw and form.number < 3
        return form

    return st.builds(
        Form,
        version=st.sampled_from(versions),
        is_raw=st.booleans() if is_raw is None else st.just(is_raw),
        has_lines=st.booleans(),
        has_cores=st.booleans(),
        has_clusters=st.booleans(),
        has_prefix=st.booleans(),
        end_of_line=st.sampled_from([" \n", "\n", " \r\n"]),
        counter=st.sampled_from(["01a0", "10fd0"]),
        declares=st.booleans(),
    ).map(consistent)


@st.composite
def instructions(draw, opcodes=tuple(OPCODES)):
    opcode = draw(st.sampled_from(opcodes))
    effect, _ = OPCODES[opcode]
    registers = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    made = Instruction(
        opcode,
        draw(masks()),
        [],
        destinations=list(REGISTERS[: registers[0]]),
        sources=list(REGISTERS[-registers[1] :]) if registers[1] else [],
    )
    lanes = [lane for lane in range(32) if made.mask >> lane & 1]
    if effect.startswith("bulk"):
        made.mode = draw(st.sampled_from([3, 4]))
        count = draw(st.integers(0, 6))
        offsets = draw(st.binary(min_size=count, max_size=count))
        made.addresses = [GLOBAL + 20 * offset for offset in offsets]
        made.total = draw(st.integers(max(count, 1), 300))
        made.outside = draw(st.sampled_from([0, 0, made.total // 2, made.total * (not count)]))
        return made
    if effect == "async":
        made.is_shared_side = draw(st.booleans())
    made.addresses = draw(lane_addresses(lanes, effect, shared_side=made.is_shared_side))
    made.mode = draw(st.sampled_from(modes_of(lanes, made.addresses)))
    return made


def masks():
    runs = st.builds(
        lambda first, size: (1 << min(size, 32 - first)) - 1 << first,
        st.integers(0, 31),
        st.integers(0, 32),
    )
    return st.one_of(st.just(0xFFFFFFFF), runs, st.integers(0, 0xFFFFFFFF), st.just(0))


@st.composite
def lane_addresses(draw, lanes, effect, *, shared_side):
    if shared_side:
        base = 16 * draw(st.integers(1, 4000))
    elif effect.endswith("g"):
        base = draw(st.sampled_from([GLOBAL, SHARED, LOCAL, SHARED + WINDOW - 64]))
    else:
        base = GLOBAL + draw(st.sampled_from([0, 4, 1000, 1 << 33]))
    if draw(st.booleans()):
        stride = draw(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 128, -4, -16, -1024]))
        base += 32 * 1024 * (stride < 0 and not effect.endswith("g"))
        stride = abs(stride) if effect.endswith("g") or shared_side else stride
        return [base + (lane - lanes[0]) * stride for lane in lanes]
    return [base + 2 * byte for byte in draw(st.binary(min_size=len(lanes), max_size=len(lanes)))]


def modes_of(lanes, addresses):
    """Return the address modes that can write these addresses."""
    run = lanes == list(range(lanes[0], lanes[0] + len(lanes))) if lanes else False
    steps = {b - a for a, b in pairwise(addresses)}
    if not lanes:
        return [1]
    return [0, 2] + [1] * (run and len(lanes) > 1 and len(steps) == 1)


BLOCKS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)),
    st.lists(st.lists(instructions(), max_size=4), min_size=1, max_size=2),
    max_size=3,
)


def header_text(form, *, grid=(4, 3, 2), name="_Z6kernelPf", extra=""):
    lines = [
        f"-kernel name = {name}",
        "-kernel id = 7",
        "-grid dim = ({},{},{})".format(*grid),
        "-block dim = (96,1,1)",
        "-shmem = 256",
        "-nregs = 40",
        "-binary version = 80",
        "-cuda stream id = 0",
    ]
    if form.version:
        lines += [
            f"-shmem base_addr = 0x{SHARED:016x}",
            f"-local mem base_addr = 0x{LOCAL:016x}",
            "-nvbit version = 1.5.3",
            f"-accelsim tracer version = {form.version}",
        ]
    if form.number >= 4:
        lines.append(f"-enable lineinfo = {int(form.has_lines)}")
    # The words behind `#traces format` are wrong in real files of version 3: nothing reads them.
    return "\n".join(lines) + extra + "\n\n#traces format = threadblock_x PC mask whatever\n\n\n\n"


def kernel_text(blocks, form, **options):
    """Write a kernel: `blocks` maps coordinates to the instructions of each warp."""
    written = raw_text(blocks, form) if form.is_raw else grouped_text(blocks, form)
    return header_text(form, **options) + written


def grouped_text(blocks, form):
    pieces = []
    for block, warps in blocks.items():
        pieces.append("#BEGIN_TB\n\nthread block = {},{},{}\n".format(*block))
        if form.number == 6:
            pieces.append("cluster id = 0,0,0\ncluster cta = 0,0,0\ncluster rank = 0\n")
        for number, warp in enumerate(warps):
            lines = [
                instruction_line(i, block, number, form, with_block=form.has_prefix) for i in warp
            ]
            pieces.append(f"\nwarp = {number}\n")
            pieces.append(f"insts = {len(lines)}\n" * form.declares)
            pieces += lines
        pieces.append("\n#END_TB\n\n")
    return "".join(pieces)


def raw_text(blocks, form):
    """Write the lines of all warps in turn: in program order within a warp, mixed between them."""
    queues = [
        [instruction_line(i, block, number, form, with_block=True) for i in warp]
        for block, warps in blocks.items()
        for number, warp in enumerate(warps)
    ]
    lines = []
    while any(queues):
        lines += [queue.pop(0) for queue in queues if queue]
    return "".join(lines)


def instruction_line(instruction, block, warp, form, *, with_block):
    words = [*map(str, block), str(warp)] if with_block else []
    words += ["1", "0", "0", "0", "0", "0", "2"] * form.has_clusters
    words += ["17", "3"] * form.has_cores
    words += ["1234"] * form.has_lines
    words += [form.counter, f"{instruction.mask:08x}"]
    words += [str(len(instruction.destinations)), *instruction.destinations]
    words += [instruction.opcode, str(len(instruction.sources)), *instruction.sources]
    words += ["1"] * ("GMMA" in instruction.opcode and form.number == 6)
    words += memory_words(instruction, form)
    words += ["-16"] * (form.number >= 4)
    words += ["0", "NoVal"] if form.number == 6 and instruction.mask & 1 else []
    words += ["0", "Val", "1", "0x40"] if form.number == 6 and not instruction.mask & 1 else []
    return " ".join(words) + form.end_of_line


def memory_words(instruction, form):
    effect, _ = OPCODES[instruction.opcode]
    if effect.startswith("bulk"):
        return bulk_words(instruction) if form.number == 6 else ["0"]
    if not effect.startswith(TOUCHES_MEMORY):
        return ["0"]
    if not instruction.addresses:
        return ["4", "1", "0x0", "0"]
    base, mode = instruction.addresses[0], instruction.mode
    if mode == 2 and form.number < 3:
        mode = 0
    deltas = [str(d) for d in np.diff(np.array(instruction.addresses, np.int64)).tolist()]
    return ["4"] + {
        0: ["0", *(f"0x{address:016x}" for address in instruction.addresses)],
        1: ["1", f"0x{base:x}", *deltas[:1]],
        2: ["2", f"0x{base:x}", *deltas],
    }[mode]


def bulk_words(instruction):
    count = len(instruction.addresses)
    words = ["16", "0x400", "1", "3"] if count % 2 else ["16", "0x400", "0"]
    words += [str(instruction.total), str(instruction.outside), str(instruction.mode)]
    if instruction.mode == 3:
        return [*words, str(count), *(f"0x{a:x}" for a in instruction.addresses)]
    deltas = np.diff(np.array(instruction.addresses, np.int64)).tolist()
    base = instruction.addresses[0] if count else 0
    return [*words, f"0x{base:x}", str(count), *map(str, deltas)]


def blocks_of(part):
    """Return what a scanned part says of each block, in the form of the slow reader."""
    touches = part.touches
    keys = list(zip(touches.x.tolist(), touches.y.tolist(), touches.z.tolist(), strict=True))
    found = {key: Block() for key in keys}
    assert len(found) == len(keys)
    for key, accesses, instructions in zip(
        keys, touches.accesses.tolist(), touches.instructions.tolist(), strict=True
    ):
        found[key].accesses, found[key].instructions = accesses, instructions
    for row, kind, start, end in zip(
        touches.row.tolist(), touches.kind.tolist(), touches.start.tolist(), touches.end.tolist(),
        strict=True,
    ):  # fmt: skip
        target = found[keys[row]].written if kind == WRITE else found[keys[row]].read
        assert not target & set(range(start, end))
        target |= set(range(start, end))
        if kind == READ:
            found[keys[row]].read_plainly |= set(range(start, end))
        elif kind == SYNC_READ:
            found[keys[row]].read_in_order |= set(range(start, end))
    return {key: block for key, block in found.items() if block.instructions}


def merged(parts):
    """Put together what the parts of one kernel say."""
    total = {}
    for part in parts:
        for key, block in blocks_of(part).items():
            into = total.setdefault(key, Block())
            into.accesses += block.accesses
            into.instructions += block.instructions
            into.read |= block.read
            into.read_plainly |= block.read_plainly
            into.read_in_order |= block.read_in_order
            into.written |= block.written
    return total


def as_tracez(text, *, chunk=3, dictionary=b""):
    """Pack grouped text as Accel-Sim 2.0 does."""
    header, _, body = text.partition("#BEGIN_TB")
    zstd_dict = zstd.ZstdDict(dictionary, is_raw=True) if dictionary else None
    out = bytearray(header.encode() + b"\0")
    out += struct.pack("<II", len(dictionary), chunk) + dictionary
    index = []
    for block in body.split("#BEGIN_TB"):
        x, y, z = map(int, re.search(r"thread block = (\d+),(\d+),(\d+)", block).groups())
        warps = []
        for warp in re.split(r"warp = \d+\n", block)[1:]:
            lines = [line for line in warp.split("\n") if re.match("[0-9a-f]{4} ", line)]
            chunks = [lines[i : i + chunk] for i in range(0, len(lines), chunk)]
            warps.append((len(lines), len(chunks), len(out), list(map(len, chunks))))
            out += struct.pack("<II", len(lines), len(chunks))
            for some in chunks:
                frame = zstd.compress("\n".join(some).encode(), zstd_dict=zstd_dict)
                out += struct.pack("<I", len(frame)) + frame
        index.append((x, y, z, warps))
    at = len(out)
    out += struct.pack("<I", len(index))
    for x, y, z, warps in index:
        out += struct.pack("<11I", x, y, z, 0, 0, 0, 0, 0, 0, 0, len(warps))
        for count, chunks, offset, counts in warps:
            out += struct.pack(f"<IIQ{len(counts)}I", count, chunks, offset, *counts)
    return bytes(out + struct.pack("<Q", at))
