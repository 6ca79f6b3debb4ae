"""Small whole traces of every format, and damage of every kind, both from a seed."""

import bz2
import gzip
import lzma
import random
import re
import sys

from kernel_texts import GLOBAL, SHARED, Form, header_text

from depgraph.errors import DepgraphError
from depgraph.parsers import open_trace
from depgraph.pipeline import analyse
from depgraph.samples import sample_path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKERS = {
    "plain": bytes,
    "xz": lambda text: lzma.compress(text, preset=0),
    "gz": gzip.compress,
    "zst": zstd.compress,
    "bz2": bz2.compress,
}
MEMORY_BYTES = 256 << 20
NUMBERS = [0, 1, -1, 255, 65536, 10**9, 2**31 - 1, 2**31, 2**32, 2**57, 2**63, 2**64, 10**30]
INSTRUCTIONS = f"""\
0000 ffffffff 1 R1 IMAD.MOV.U32 2 R255 R255 0 0
0010 ffffffff 1 R4 LDG.E.64 1 R2 8 1 0x{GLOBAL:x} 8 0
0020 0000f0f1 0 STG.E.U8 2 R4 R5 1 2 0x{GLOBAL + 512:x} 1 1 1 40 -8 1 900 16 0
0030 00000007 1 R6 ATOMG.E.ADD.STRONG.GPU 2 R4 R5 4 0 0x{GLOBAL:016x} 0x{GLOBAL:016x} 0x{0:016x} 0
0040 ffffffff 1 R6 LD.E.128 1 R4 16 1 0x{SHARED:x} 16 0
0050 00000000 1 R6 LDG.E 1 R4 4 1 0x0 0 0
0060 ffffffff 0 LDGSTS.E.LTC128B 2 R24 R30 4 1 0x400 4 0
0060 ffffffff 0 LDGSTS.E.LTC128B 2 R24 R30 4 1 0x{GLOBAL + 4096:x} 4 0
0070 00000001 0 UTMALDG.2D 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x} 2 1024 0 0 NoVal
0080 00000001 0 UTMASTG.2D 2 R4 UR6 16 0x400 1 3 256 0 3 1 0x{GLOBAL + 8192:x} 0 0 Val 1 0x4
0090 ffffffff 1 R24 HGMMA.64x16x16.F32 2 UR4 R24 1 0 0 0 NoVal
00a0 ffffffff 0 EXIT 0 0 0
"""
REQUEST = (
    "  mf: uid=71 sid=3 warp=2 (1520) addr=0x{:x}, {}, size=32, {} 0x00b0 cta={},0,0 kernel={} "
    "active_threads=0101\n"
)


def nvbit_log():
    """Return the first launches of the packaged trace, each with a few accesses."""
    lines = lzma.decompress(sample_path().read_bytes())[: 8 << 20].splitlines(keepends=True)
    launches = [line for line in lines if b" - LAUNCH - " in line][:4]
    kept = [*lines[:3], *launches]
    for number in range(4):
        mark = b" - grid_launch_id %d - " % number
        accesses = [line for line in lines if mark in line]
        kept += accesses[:: len(accesses) // 4 or 1][:4]
    return b"".join(kept)


def old_nvbit_log():
    return b"".join(
        b"Kernel k%d(int) - grid size 4,1,1 - block size 32,1,1 - nregs 8 - shmem 0"
        b" - cuda stream id 0\n"
        b"CTA %d,0,0 - warp 0 - LDG.E.SYS - %b\n"
        b"CTA %d,0,0 - warp 1 - STG.E - %b\n"
        % (i, i, b"0x00007f6500000000 " * 32, i, b"0x00007f6500000040 " * 32)
        for i in range(4)
    )


def kernel(version="5", *, number=1, is_raw=False):
    form = Form(version, is_raw=is_raw)
    header = header_text(form).replace("-kernel id = 7", f"-kernel id = {number}")
    lines = INSTRUCTIONS.splitlines()
    if version != "6":
        lines = [line for line in lines if "UTMA" not in line and "HGMMA" not in line]
    if version is None:  # without the immediate at the end
        lines = [line.rpartition(" ")[0] for line in lines]
    if is_raw:
        prefixes = [f"{x} 0 0 {warp} " for x in (0, 2) for warp in (0, 1)]
        return (header + "".join(f"{p}{line} \n" for line in lines for p in prefixes)).encode()
    warp = f"insts = {len(lines)}\n" + "".join(f"{line} \n" for line in lines)
    blocks = (
        f"#BEGIN_TB\n\nthread block = {x},0,0\n\nwarp = 0\n{warp}\nwarp = 1\n{warp}\n#END_TB\n\n"
        for x in (0, 2)
    )
    return (header + "".join(blocks)).encode()


def real_kernel():
    """Return the beginning of a kernel of the packaged trace."""
    folder = sample_path("accelsim/gru_train")
    text = lzma.decompress((folder / "kernel-7.traceg.xz").read_bytes())
    head, count, rest = re.split(rb"(?<=insts = )(\d+)\n", text, maxsplit=1)
    lines = rest.splitlines(keepends=True)[: int(count)]
    some = [line for line in lines if b" LD" in line or b" ST" in line] + lines[:20]
    return head + b"%d\n" % len(some) + b"".join(some) + b"\n#END_TB\n"


def kernels_list():
    return (
        b"MemcpyHtoD,0x00007f6500000000,4096\nkernel-1.traceg\ncudaMalloc,0x00007f6500000000,8\n"
        b"MemcpyHtoD,0x00007f6500001000,64\nkernel-2.trace\nncclAllReduce\n"
        b"MemcpyHtoD,0x00007f6500000000,1\n"
    )


def simulator_log():
    header = "\n".join(header_text(Form("3")).split("\n")[:12]) + "\nHeader info loaded\n"
    text = "launching memcpy command : MemcpyHtoD,0x00007f4e34a00000,64\n" + header
    text += header.replace("-kernel id = 7", "-kernel id = 8")
    for kernel_number in (1, 2):
        for x in (0, 1):
            text += f"thread block = {x},0,0\n"
            text += "GPGPU-Sim uArch: Started CTA (0,0,0) #1 (10,0), 1 CTAs running, kernel=0\n"
            text += REQUEST.format(0x7F4E34A00000 + 32 * x, "load ", "GLOBAL_R", x, kernel_number)
            text += REQUEST.format(0x7F4E34A10000 + 32 * x, "store", "GLOBAL_W", x, kernel_number)
            text += (
                f"GPGPU-Sim uArch: Finished CTA ({x},0,0) #1 (90,0), 0 CTAs running, "
                f"kernel={kernel_number}\n"
            )
    return text.encode()


def seeds():
    """Return whole traces by name, as they come unpacked."""
    return {
        "nvbit": nvbit_log(),
        "old nvbit": old_nvbit_log(),
        "real kernel": real_kernel(),
        "grouped kernel": kernel("5"),
        "kernel of version 6": kernel("6"),
        "kernel without version": kernel(None),
        "raw kernel": kernel("5", number=2, is_raw=True),
        "list": kernels_list(),
        "simulator": simulator_log(),
    }


# Damage


def cut(data, rng, _others):
    return data[: rng.randrange(len(data) + 1)]


def flip_bits(data, rng, _others):
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(data, rng, _others):
    at, size = rng.randrange(len(data)), rng.choice([1, 4, 40, 400])
    return (
        data[:at] + rng.choice([rng.randbytes(size), bytes(size), b"\n" * size]) + data[at + size :]
    )


def remove(data, rng, _others):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice([1, 2, 10, 200]) :]


def splice(data, rng, others):
    other = rng.choice(others)
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    piece = other[start : start + rng.choice([5, 50, 500])]
    return data[:at] + piece + data[at + rng.choice([0, len(piece)]) :]


def shuffle_lines(data, rng, _others):
    lines = data.splitlines(keepends=True)
    for _ in range(rng.choice([1, 3, 20])):
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def repeat_lines(data, rng, _others):
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return b"".join([*lines[:at], *lines[at : at + 3] * rng.choice([2, 50]), *lines[at:]])


def absurd_number(data, rng, _others):
    """Replace one number, most often in a launch line or a header."""
    found = list(re.finditer(rb"-?\b\d+\b", data))
    launches = [
        m
        for m in found
        if re.search(rb"grid|block|insts|kernel|Memcpy", data[m.start() - 40 : m.start()])
    ]
    if not found:
        return data
    match = rng.choice(launches if launches and rng.random() < 0.7 else found)
    return data[: match.start()] + b"%d" % rng.choice(NUMBERS) + data[match.end() :]


def absurd_address(data, rng, _others):
    found = list(re.finditer(rb"0x[0-9a-f]+", data))
    if not found:
        return data
    match = rng.choice(found)
    value = rng.choice([0, 1, 2**20, 2**57 - 1, 2**57, 2**63, 2**64 - 1, 2**64 - 8, 2**64, 2**80])
    form = rng.choice([b"0x%x", b"0x%016x"])
    return data[: match.start()] + form % value + data[match.end() :]


def join_lines(data, rng, _others):
    at = data.find(b"\n", rng.randrange(len(data)))
    return data if at < 0 else data[:at] + rng.choice([b"", b" ", b"\r", b"\0"]) + data[at + 1 :]


MUTATIONS = (
    cut, flip_bits, overwrite, remove, splice, shuffle_lines, repeat_lines, absurd_number,
    absurd_address, join_lines,
)  # fmt: skip


def mutant(number, traces):
    """Return the seed, the packing and the bytes of one mutant.

    Of packed traces, text and packed bytes are damaged in turn.
    """
    rng = random.Random(number)  # noqa: S311 - to be the same every time
    names = sorted(traces)
    name = names[number % len(names)]
    packing = rng.choice(["plain", "plain", "plain", *PACKERS])
    data = traces[name]
    damages_text = packing == "plain" or rng.random() < 0.5
    for _ in range(rng.choice([1, 1, 2, 4]) if damages_text else 0):
        data = rng.choice(MUTATIONS)(data or b"\n", rng, list(traces.values())) or b"\n"
    data = PACKERS[packing](data)
    if not damages_text:
        data = rng.choice([cut, flip_bits, overwrite, remove])(data, rng, [])
    return name, packing, data


def survive(path, *, allow_damaged):
    """Read a trace whatever is in it; return its extraction, or None if it is refused."""
    try:
        return analyse(
            open_trace(path),
            jobs=1,
            memory_limit=MEMORY_BYTES,
            allow_damaged=allow_damaged,
        )
    except DepgraphError as error:
        message = str(error)
    assert "\n" not in message
    return None
