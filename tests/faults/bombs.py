"""Small recordings that unpack to much, and what a run takes to refuse each.

python tests/faults/bombs.py [NAME ...] prints seconds and peak memory.
"""

import bz2
import itertools
import json
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]

import numpy as np  # noqa: E402
from recordings import KERNEL  # noqa: E402

from depgraph.parsers.recording.archive import MAPS, MARK, SECTORS, TILES  # noqa: E402
from depgraph.system.workers import BASE_BYTES  # noqa: E402

LIMIT = 256 << 20
SECONDS = 120
STORED, DEFLATED, BZIP2 = 0, 8, 12
MB = 1 << 20
ABOUT = b'{"format": 2}'
FIRST = "sectors/0000001"


class Member(NamedTuple):
    """A member of an archive, whatever it says of itself."""

    name: str
    packed: bytes
    size: int  # unpacked, as it says
    method: int = DEFLATED
    crc: int = 0


def plain(name, content):
    return Member(name, content, len(content), STORED, zlib.crc32(content))


def deflated(name, content):
    packed = zlib.compress(content, 9, wbits=-15)
    return Member(name, packed, len(content), DEFLATED, zlib.crc32(content))


def repeated(name, text, times, size=None):
    """Pack a text many times over without ever having all of it."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, wbits=-15).flush()
    return Member(name, piece * times + end, size or len(text) * times)


def archive(*members):
    """Return a recording of these members."""
    parts, entries, at = [MARK], [], len(MARK)
    for name, packed, size, method, crc in members:
        known = struct.pack("<5H3L2H", 20, 0, method, 0, 0, crc, len(packed), size, len(name), 0)
        parts += [b"PK\3\4", known, name.encode(), packed]
        tail = struct.pack("<3H2L", 0, 0, 0, 0, at)
        entries.append(b"PK\1\2" + struct.pack("<H", 20) + known + tail + name.encode())
        at += 30 + len(name) + len(packed)
    directory = b"".join(entries)
    counts = [min(len(entries), 0xFFFF)] * 2
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, *counts, len(directory), at, 0)
    return b"".join([*parts, directory, end])


def of_events(events, *more):
    return archive(plain("about.json", ABOUT), deflated("events.jsonl", events), *more)


def lines(events):
    return b"\n".join(json.dumps(event).encode() for event in events)


def of_one_kernel(*tables, **changes):
    return of_events(lines([KERNEL | changes]), *tables)


def largest(text_of):
    """Return as many lines as are read."""
    found, left = [], LIMIT // 16 - 1000
    for number in itertools.count(1):
        found.append(text_of(number))
        left -= len(found[-1]) + 1
        if left < 0:
            return b"\n".join(found)
    raise AssertionError


def tiles(n):
    """Return many loads of boxes that are a row of 16 bytes wide, and thousands high."""
    stride, rows = 1 << 20, 64 * 256
    words = [1 << 30, 1 << 56, 0, 0, 0, 0, 0, 0]
    words[1] = 0 << 7 | 2 << 4 | stride // 16 << 32  # bytes, of three dimensions
    words[2] = stride * 256 // 16
    words[4] = (1 << 16) - 1 | ((1 << 16) - 1) << 32
    words[5] = (1 << 10) - 1
    words[6] = 15 << 56
    words[7] = 255 | 63 << 8
    loads = np.zeros(n, TILES)
    loads["map"], loads["at"][:, 0] = 1, 32 * np.arange(n)
    a_map = np.zeros(1, MAPS)
    a_map["at"], a_map["words"][0, :8], a_map["is_whole"] = 1, words, 1
    assert rows <= 1 << 14
    return of_one_kernel(
        deflated("tiles/0000001", loads.tobytes()), deflated("maps/0000001", a_map.tobytes())
    )


def halves(name, n):
    """Return sectors of which blocks read and write one half each."""
    rows = np.zeros(n, SECTORS)
    rows["number"] = (1 << 25) + np.arange(n)
    rows["block"] = np.arange(n) * 1000 // n
    rows["launch"] = rows["accesses"] = 1
    rows["read"] = rows["written"] = 0xFFFF
    return deflated(name, rows.tobytes())


def maps():
    found = np.zeros(LIMIT // 16 // MAPS.itemsize, MAPS)
    found["at"] = np.arange(len(found))
    return of_one_kernel(deflated("maps/0000001", found.tobytes()))


BOMBS = {
    "about of 3 GB": lambda: archive(repeated("about.json", b"a" * MB, 3072)),
    "about that lies": lambda: archive(repeated("about.json", b" " * MB, 3072, size=100)),
    "about, nested": lambda: archive(deflated("about.json", b"[" * 1_000_000)),
    "67 million empty events": lambda: archive(
        plain("about.json", ABOUT), repeated("events.jsonl", b"{}\n" * (1 << 18), 256)
    ),
    "events by bzip2 that lie": lambda: archive(
        plain("about.json", ABOUT),
        Member("events.jsonl", bz2.compress(bytes(300 * MB)), 4096, BZIP2),
    ),
    "events, nested": lambda: of_events(b'{"a":' * 100_000),
    "manifest, nested": lambda: archive(
        plain("about.json", b'{"format": 3}'), deflated("manifest.json", b'{"members":' * 100_000)
    ),
    "table of 4 GB of zeros": lambda: of_one_kernel(repeated(FIRST, bytes(MB), 4095)),
    "table that lies": lambda: of_one_kernel(repeated(FIRST, bytes(MB), 4095, size=32 * 1024)),
    "table of zeros, as large as may be": lambda: of_one_kernel(
        deflated(FIRST, bytes(LIMIT // 6 // SECTORS.itemsize * SECTORS.itemsize))
    ),
    "300 thousand members": lambda: archive(
        plain("about.json", ABOUT), *(plain(f"sectors/{n:07d}", b"") for n in range(300_000))
    ),
    "members of an event": lambda: of_events(
        b'{"event":"recording",%s}' % b",".join(b'"%x":0' % i for i in range(100_000))
    ),
    "a grid of 2 billion blocks": lambda: of_one_kernel(grid=[(1 << 31) - 1, 1, 1]),
    "tiles of too many rows": lambda: tiles(100_000),
    "tiles of a million rows": lambda: tiles(62),
    "maps": maps,
}  # fmt: skip
LARGE = {
    "tiles of 4 million rows": lambda: tiles(250),
    "tiles of 16 million rows": lambda: tiles(1000),
    "sectors of four kernels": lambda: of_events(
        lines([KERNEL | {"number": n, "grid": [1000, 1, 1]} for n in range(1, 5)]),
        *(halves(f"sectors/{n:07d}", LIMIT // 6 // SECTORS.itemsize) for n in range(1, 5)),
    ),
    "members, as many as may be": lambda: archive(
        plain("about.json", ABOUT),
        *(plain(f"sectors/{n:07d}", b"") for n in range(LIMIT // 16 // 62)),
    ),
    "allocations": lambda: of_events(
        largest(lambda n: b'{"event":"alloc","address":%d,"bytes":1,"flags":0}' % (4096 + 64 * n))
    ),
    "frees": lambda: of_events(
        largest(lambda n: b'{"event":"free","address":%d,"bytes":1}' % (4096 + 64 * n))
    ),
    "kernels": lambda: of_events(largest(lambda n: json.dumps(KERNEL | {"number": n}).encode())),
    "copies": lambda: of_events(
        largest(
            lambda n: b'{"event":"memset","address":%d,"width":1,"height":1,"pitch":0,"element":1}'
            % (4096 + 64 * n)
        )
    ),
}  # fmt: skip
"""What is read, as it is just not too large."""


class Took(NamedTuple):
    """How a run ended, and what it took."""

    code: int
    err: str
    seconds: float
    peak: int  # bytes


def run(name, folder):
    """Extract a bomb in a process of its own."""
    path = Path(folder) / "bomb.recording"
    path.write_bytes((BOMBS | LARGE)[name]())
    command = [sys.executable, "-m", "depgraph", "extract", path, "-o", path.with_name("out"),
               "--force", "--memory-limit", str(LIMIT), "--quiet"]  # fmt: skip
    began = time.monotonic()
    with (path.with_name("said")).open("w+") as said:
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_of(process.pid))
            if time.monotonic() > began + SECONDS:
                process.kill()
            time.sleep(0.005)
        said.seek(0)
        return Took(process.returncode, said.read(), time.monotonic() - began, peak)


def peak_of(process):
    """Return the most memory that a process has had; its usage at the end counts its parent's."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 if found else 0


def main(names):
    """Print what each takes."""
    most = LIMIT + BASE_BYTES
    print(f"limit {LIMIT >> 20} MiB, {most >> 20} MiB with what a run takes at least")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or BOMBS | LARGE:
            took = run(name, folder)
            size = (Path(folder) / "bomb.recording").stat().st_size
            print(
                f"{name:36} {size / 1e6:6.1f} MB {took.seconds:5.1f} s {took.peak >> 20:5} MiB"
                f" {'TOO MUCH' if took.peak > most else ''} code {took.code}: "
                f"{took.err.strip()[-150:]}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
