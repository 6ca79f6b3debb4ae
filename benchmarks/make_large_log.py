"""Make a large ``mem_trace`` log: a real one again and again, with launch ids that go on.

The kernels of each repetition come after those of the one before, with the addresses they have, so
that blocks depend on blocks of the repetition before as a program's next iteration would.
"""

from __future__ import annotations

import argparse
import lzma
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 24
_LAUNCH_MARK = b" - grid launch id "
_ACCESS_MARK = b" - grid_launch_id "
_LAUNCH = re.compile(rb" - LAUNCH - .* - grid launch id (\d+) ")


def make_large_log(log: Path, output: Path, n_bytes: int) -> int:
    """Repeat a log, plain or packed, until it has a size at least; return how often."""
    launches = _launches(log)
    repetitions = 0
    with output.open("wb") as target:
        while target.tell() < n_bytes:
            shift = repetitions * launches
            for lines in _whole_lines(log):
                target.write(_shifted(lines, shift) if shift else lines)
            repetitions += 1
    return repetitions


def _launches(log: Path) -> int:
    ids = [int(found) for lines in _whole_lines(log) for found in _LAUNCH.findall(lines)]
    if not ids:
        message = f"{log}: no kernel launch"
        raise ValueError(message)
    return max(ids) + 1


def _whole_lines(log: Path) -> Iterator[bytes]:
    with _opened(log) as file:
        while chunk := file.read(_CHUNK):
            yield chunk + file.readline()


def _opened(log: Path) -> IO[bytes]:
    return lzma.open(log) if log.suffix == ".xz" else log.open("rb")


def _shifted(lines: bytes, shift: int) -> bytes:
    for mark in (_LAUNCH_MARK, _ACCESS_MARK):
        first, *rest = lines.split(mark)
        new = {text: b"%d" % (int(text) + shift) for text in {r[: r.index(b" ")] for r in rest}}
        lines = mark.join([first, *(new[r[: (at := r.index(b" "))]] + r[at:] for r in rest)])
    return lines


def main() -> None:
    """Make a log as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path, help="plain, or packed with xz")
    parser.add_argument("output", type=Path)
    parser.add_argument("megabytes", type=float, help="size to reach at least")
    arguments = parser.parse_args()
    repetitions = make_large_log(
        arguments.log, arguments.output, int(arguments.megabytes * 1_000_000)
    )
    size = arguments.output.stat().st_size
    print(f"{arguments.output}: {size / 1e6:.0f} MB, {repetitions} repetitions")


if __name__ == "__main__":
    main()
