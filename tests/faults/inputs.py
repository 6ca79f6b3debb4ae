"""Small whole inputs of every format: traces, profiles, described programs, GPU models."""

import bz2
import functools
import gzip
import lzma
import re
import sys

from cutracer_files import access, metadata, ndjson, tile
from kernel_texts import GLOBAL, SHARED, Form, Instruction, as_tracez, header_text, kernel_text
from omniprobe_files import log, record
from programs import access_line, launch_line

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
UNPACKERS = {
    b"\xfd7zXZ\0": lzma.decompress,
    b"\x1f\x8b": gzip.decompress,
    b"\x28\xb5\x2f\xfd": zstd.decompress,
    b"BZh": bz2.decompress,
}
KERNELS = 5
BLOCKS = 3
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


def cutracer_file():
    """Return the records of two launches, as a file of each after the other."""
    code = ("LDG.E R4, [R2.64] ;", "STG.E.64 [R2.64], R4 ;", "UTMALDG.2D [UR8], [UR4] ;")
    return b"".join(
        ndjson(
            metadata((4, 1, 1), name=f"k{launch}", instructions=code),
            *(
                access(launch, (x, 0, 0), None, lanes(buffer(launch + kind, x)), opcode=kind)
                for x in range(3)
                for kind in (0, 1)
            ),
            tile(launch, (3, 0, 0), 2),
        )
        for launch in (1, 2)
    )


def omniprobe_log():
    """Return a log of two dispatches, the second of which reads what the first wrote."""
    return log(
        *(
            record(launch, (x, 0, 0), op, lanes(buffer(launch + kind, x)))
            for launch in (1, 2)
            for x in range(3)
            for kind, op in enumerate(("read", "write"))
        )
    )


# A program of five kernels, each of which reads what its neighbours of the one before wrote.


def buffer(number, block):
    return GLOBAL + 4096 * number + 128 * block


def lanes(address):
    return [address + 4 * lane for lane in range(32)]


def names():
    return [f"layer{number}(float*, int)" for number in range(KERNELS)]


def unpacked(data):
    """Return what Python's own readers of packed files make of a file."""
    unpack = next((reader for mark, reader in UNPACKERS.items() if data.startswith(mark)), bytes)
    return unpack(data)


def chain_log(shift=1):
    """Return a log of NVBit's; `shift` says which neighbour a block reads."""
    lines = [b"------------- NVBit (NVidia Binary Instrumentation Tool v1.7.6) Loaded ------\n"]
    for number, name in enumerate(names()):
        lines.append(launch_line(number, (BLOCKS, 1, 1), name=name, registers=32 + number))
        for block in range(BLOCKS):
            neighbour = (block + shift) % BLOCKS
            for opcode, address in (
                ("LDG.E", buffer(number, block)),
                ("LDGSTS.E.LTC128B", buffer(number, neighbour)),
                ("LDS.128", 1024),
                ("STG.E", buffer(number + 1, block)),
                ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", buffer(9, number)),
            ):
                lines.append(access_line(number, block, opcode, lanes(address), warp=block))
    return b"".join(lines)


def chain_kernels(form=None):
    """Return the texts of the kernel files of an Accel-Sim trace of the same program."""
    form = form or Form("5")
    texts = []
    for number, name in enumerate(names()):
        blocks = {}
        for block in range(BLOCKS):
            moves = [
                ("LDG.E", buffer(number, block), 1),
                ("LDGSTS.E.LTC128B", buffer(number, (block + 1) % BLOCKS), 0),
                ("STG.E", buffer(number + 1, block), 2),
                ("ATOMG.E.ADD.STRONG.GPU", buffer(9, number), 1),
                ("FFMA", 0, 0),
            ]
            blocks[block, 0, 0] = [
                [
                    Instruction(opcode, 0xFFFFFFFF, lanes(address), mode=mode)
                    for opcode, address, mode in moves
                ]
            ]
        text = kernel_text(blocks, form, grid=(BLOCKS, 1, 1), name=name)
        texts.append(text.replace("-kernel id = 7", f"-kernel id = {number + 1}").encode())
    return texts


def chain_list(suffix="traceg"):
    kernels = "".join(f"kernel-{number + 1}.{suffix}\n" for number in range(KERNELS))
    return f"MemcpyHtoD,0x{buffer(0, 0):016x},384\n{kernels}".encode()


@functools.cache
def traces():
    """Return whole traces by name, as they come unpacked; `in_folder` names their kernel files."""
    grouped = chain_kernels()[1].decode()
    return {
        "nvbit": nvbit_log(),
        "nvbit chain": chain_log(),
        "old nvbit": old_nvbit_log(),
        "real kernel": real_kernel(),
        "grouped kernel": kernel("5"),
        "kernel of version 6": kernel("6"),
        "kernel without version": kernel(None),
        "raw kernel": kernel("5", number=2, is_raw=True),
        "packed kernel": as_tracez(grouped),
        "list": kernels_list(),
        "chain list": chain_list(),
        "chain kernel": chain_kernels()[2],
        "simulator": simulator_log(),
        "cutracer": cutracer_file(),
        "omniprobe": omniprobe_log(),
    }


def kernel_files(name):
    """Return the files beside a trace, of which it is one or which it names."""
    if name == "list":
        return {
            "kernel-1.traceg": kernel("5"),
            "kernel-2.trace": kernel("5", number=2, is_raw=True),
        }
    if name.startswith("chain "):
        files = {f"kernel-{i}.traceg": text for i, text in enumerate(chain_kernels(), 1)}
        return files | {"kernelslist.g": chain_list()}
    return {}


def file_name(name):
    """Return what a trace is called in its folder."""
    endings = {
        "list": "kernelslist.g", "chain list": "kernelslist.g", "chain kernel": "kernel-3.traceg",
        "packed kernel": "kernel-2.tracez",
    }  # fmt: skip
    return endings.get(name, "trace")


def write_trace(folder, name, packing="plain"):
    """Write a trace with the files beside it; return its path."""
    for file, text in kernel_files(name).items():
        (folder / file).write_bytes(text)
    path = folder / file_name(name)
    path.write_bytes(PACKERS[packing](traces()[name]))
    return path


# Text that users write


WORKLOAD = b"""\
name = "toy"
unit = "us"

[[kernel]]
name = "producer"
grid = [2, 3]
block = 256
duration = 1
occupancy = 1
registers = 40
shared_bytes = 1024

[[kernel]]
name = "consumer"
grid = [2, 3]
duration = [1, 2, 3, 1, 2, 3.5]
stream = 1

[[kernel]]
name = "last"
grid = [6, 3]
duration = 2.5

[[dependence]]
from = "producer"
to = "consumer"
pattern = "tile"
kind = "WAW"

[[dependence]]
from = "consumer"
to = "last"
edges = [[0, 0], [1, 2]]

[[dependence]]
from = "producer"
to = "last"
pattern = "strided"
tiles = 2
"""
GPU = b"""\
name = "mine"
aliases = ["my own"]
based_on = "H100 SXM"
sms = 160
warp_size = 32
max_threads_per_block = 1024
max_threads_per_sm = 2048
max_blocks_per_sm = 32
registers_per_sm = 65536
max_registers_per_thread = 255
register_allocation_unit = 256
warp_allocation_granularity = 4
shared_carveouts = ["100 KiB", "228 KiB"]
max_shared_bytes_per_block = "227 KiB"
reserved_shared_bytes_per_block = 1024
shared_allocation_unit = 128
memory_gb_per_s = 3352
l2_bytes = "50 MiB"
boost_clock_mhz = 1980

[[sources]]
title = "a page"
url = "https://example.org"
numbers = ["sms", "l2_bytes"]
"""


def workloads():
    """Return described programs by name."""
    packaged = sample_path("workloads")
    return {"toy": WORKLOAD} | {
        path.stem: path.read_bytes() for path in sorted(packaged.glob("*.toml"))
    }


def gpu_models():
    """Return GPU models by name."""
    orin = b'name = "Orin"\narchitecture = 87\nsms = 16\n'
    return {"all keys": GPU, "few keys": orin}
