"""The dialects of ``mem_trace`` and of tools made from it, put into the one that is scanned.

NVBit 1.5 to 1.7 print ``MEMTRACE: CTX 0x... - grid_launch_id N - CTA x,y,z - warp W - OPCODE -``
and 32 addresses. NVBit 1.0 to 1.4 print no ids, so that an access belongs to the launch line above
it; some tools put more between opcode and addresses, or break the launch line. Every rewriting
keeps the number of lines.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

MARK = b"MEMTRACE: CTX 0x"

_LINE = re.compile(rb"[^\n]+")
_LAUNCH = b" - LAUNCH - "
_LAUNCH_ID = re.compile(rb" - grid launch id (\d{1,18})")
_ACCESS_ID = re.compile(rb"MEMTRACE: CTX 0x[0-9a-f]+ - (?:SM_id \d+ - )?grid_launch_id (\d{1,18}) ")

_OLD_LAUNCH_TAIL = re.compile(
    rb" - grid size \d+,\d+,\d+ - block size \d+,\d+,\d+"
    rb" - nregs -?\d+ - shmem -?\d+ - cuda stream id -?\d+"
)
_PC = re.compile(rb" - PC 0x[0-9a-f]+\Z")
_OLD_ACCESS = re.compile(rb"CTA (?=\d+,\d+,\d+ - warp \d+ - [A-Z])")
_MREF_TAIL = re.compile(rb" - (?:pc \d+ - )?Size \d+ - MREF per threads\([^)\n]{0,80}\) : ?(.*)")
_MREF_ADDRESS = re.compile(rb"Thread\d+,[^,\n]*,(0x[0-9a-f]{16})")
_TYPED_TAIL = re.compile(rb" - (?:READ|WRITE) - size \d+ - mem_type [^-\n]* - addrs: ?")
_THREE_LINE_LAUNCH = re.compile(
    rb"^LAUNCH KERNEL: (.*) - grid launch id (-?\d+)\r?\n"
    rb" - grid size \((\d+,\d+,\d+)\) - block size \((\d+,\d+,\d+)\)"
    rb" - nregs (-?\d+) - shmem (-?\d+)\r?\n"
    rb" - CTX (0x[0-9a-f]+) - stream id (-?\d+) - Kernel pc (0x[0-9a-f]+)",
    re.MULTILINE,
)
_LAST_LINES_OF_LAUNCH = re.compile(rb"^LAUNCH KERNEL: .*\n(?:.*\n)?\Z", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of putting launches and accesses into words."""

    name: str
    mark: re.Pattern[bytes]  # what its text holds and no other dialect's does
    # From whole lines of it to lines that `scan_text` reads; None if they are that.
    rewrite: Callable[[bytes], bytes] | None = None
    # Whether an access names its launch. If not, `rewrite` numbers the launches of each text from
    # 1, and gives id 0 to the accesses above the first.
    has_ids: bool = True
    in_order: bool = False  # whether lines belong together across a cut of the text


def _rewrite_old(text: bytes) -> bytes:
    pieces = []
    begin = searched = launches = 0
    for tail in _OLD_LAUNCH_TAIL.finditer(text):
        line = text.rfind(b"\n", searched, tail.start()) + 1 or searched
        at = text.find(b"Kernel ", line, tail.start())
        searched = tail.end()
        if at < 0:
            continue
        name = _PC.sub(b"", text[at + len(b"Kernel ") : tail.start()])
        pieces.append(_with_id(text[begin:at], launches))
        launches += 1
        pieces.append(
            b"MEMTRACE: CTX 0x%016x - LAUNCH - Kernel pc 0x0 - Kernel name %b"
            b" - grid launch id %d%b" % (0, name, launches, tail[0])
        )
        begin = tail.end()
    pieces.append(_with_id(text[begin:], launches))
    return b"".join(pieces)


def _with_id(text: bytes, identifier: int) -> bytes:
    return _OLD_ACCESS.sub(
        b"MEMTRACE: CTX 0x%016x - grid_launch_id %d - CTA " % (0, identifier), text
    )


def _rewrite_mref(text: bytes) -> bytes:
    return _MREF_TAIL.sub(lambda m: b" - %b " % b" ".join(_MREF_ADDRESS.findall(m[1])), text)


def _rewrite_typed(text: bytes) -> bytes:
    def launch(match: re.Match[bytes]) -> bytes:
        name, identifier, grid, block, registers, shared, context, stream, pc = match.groups()
        return (
            b"MEMTRACE: CTX 0x%016x - LAUNCH - Kernel pc %b - Kernel name %b - grid launch id %b"
            b" - grid size %b - block size %b - nregs %b - shmem %b - cuda stream id %b\n\n"
            % (int(context, 16), pc, name, identifier, grid, block, registers, shared, stream)
        )

    return _TYPED_TAIL.sub(b" - ", _THREE_LINE_LAUNCH.sub(launch, text))


DIALECTS = (
    Dialect("with data values", re.compile(rb" - MREF per threads\("), _rewrite_mref),
    Dialect(
        "CUProf",
        re.compile(
            rb" - mem_type [^-\n]* - addrs: |^LAUNCH KERNEL: .* - grid launch id ", re.MULTILINE
        ),
        _rewrite_typed,
        in_order=True,
    ),
    Dialect("NVBit 1.5 to 1.7", re.compile(re.escape(MARK))),
    Dialect("NVBit 1.0 to 1.4", _OLD_LAUNCH_TAIL, _rewrite_old, has_ids=False),
)
CURRENT = DIALECTS[2]


def dialect_of(text: bytes) -> Dialect | None:
    """Tell by its content in which dialect a text is; None if it is in none of them."""
    return next((dialect for dialect in DIALECTS if dialect.mark.search(text)), None)


def start_of_cut_launch(text: bytes) -> int:
    """Return where a launch of several lines begins that the end of `text` cuts, or its length."""
    tail = text[-4096:]
    match = _LAST_LINES_OF_LAUNCH.search(tail)
    return len(text) - len(tail) + match.start() if match else len(text)


class IdOffset:
    """Find out by how much launch lines count ahead of access lines: 1 in NVBit 1.5, else 0.

    An access never precedes its own launch line. So the id of an access that is the newest
    launch's, or a launch with id 0, means 0. Where neither shows up, accesses with the id below
    all launches, or launches that start at 1, mean 1.
    """

    def __init__(self) -> None:
        self._lowest = self._newest = -1  # ids of launches
        self._access_seen = False
        self._below_seen = False
        self.decided: int | None = None

    def look_at(self, text: bytes) -> None:
        """Take more lines into account."""
        lines = _LINE.finditer(text)
        while self.decided is None and (line := next(lines, None)) is not None:
            words = line[0]
            at = words.find(_LAUNCH)
            launches = [] if at < 0 else _LAUNCH_ID.findall(words, at)
            if launches:
                is_zero = not (identifier := int(launches[-1]))
                self._lowest = identifier if self._newest < 0 else min(self._lowest, identifier)
                self._newest = identifier
            elif self._newest >= 0 and (access := _ACCESS_ID.search(words)):
                self._access_seen = True
                is_zero = int(access[1]) == self._newest
                self._below_seen |= int(access[1]) == self._lowest - 1
            else:
                continue
            self.decided = 0 if is_zero else None

    def best(self) -> int | None:
        """Return the offset that the lines so far speak for; None where they hold no access."""
        if self.decided is not None:
            return self.decided
        return int(self._below_seen or self._lowest == 1) if self._access_seen else None
