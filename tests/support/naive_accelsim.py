"""A slow, plain reader of Accel-Sim kernel files: every line split at blanks, every byte counted.

Nothing here is shared with the fast reader, and what an opcode does stands in a table of its own.
"""

import re
from collections import defaultdict
from itertools import takewhile

# What each opcode of the tests does to global memory (r, w or both), and bytes a lane; "" for none.
# g marks generic addresses, which may lie in the shared or local window.
OPCODES = {
    "LDG.E": ("r", 4),
    "LDG.E.U8": ("r", 1),
    "LDG.E.S16": ("r", 2),
    "LDG.E.64": ("r", 8),
    "LDG.E.128.CONSTANT": ("r", 16),
    "LDG.E.ENL2.256": ("r", 32),
    "LDG.E.LTC128B.64": ("r", 8),
    "STG.E": ("w", 4),
    "STG.E.U8": ("w", 1),
    "STG.E.U16": ("w", 2),
    "STG.E.EF.128": ("w", 16),
    "LD.E": ("rg", 4),
    "LD.E.U8": ("rg", 1),
    "LD.E.128": ("rg", 16),
    "ST.E.64": ("wg", 8),
    "ATOM.E.ADD.F64.RN": ("rwg", 8),
    "LDG.E.128.STRONG.SYS": ("r", 16),
    "ATOMG.E.ADD.STRONG.GPU": ("rw", 4),
    "ATOMG.E.CAS.64.STRONG.SYS": ("rw", 8),
    "RED.E.ADD.F16x2.RN": ("rwg", 4),
    "REDG.E.ADD.F32x4": ("rw", 16),
    "LDGSTS.E.LTC128B": ("async", 4),
    "LDGSTS.E.BYPASS.LTC128B.128": ("async", 16),
    "UTMALDG.2D": ("bulk r", 0),
    "UTMASTG.3D": ("bulk w", 0),
    "UTMAREDG.2D.ADD": ("bulk rw", 0),
    "UBLKCP.S.G": ("bulk r", 0),
    "UBLKCP.G.S": ("bulk w", 0),
    "UBLKPF.L2": ("bulk", 0),
    "LDS.U.128": ("", 0),
    "STS.64": ("", 0),
    "LDSM.16.MT88.4": ("", 0),
    "STL": ("", 0),
    "ATOMS.ADD": ("", 0),
    "LDC.64": ("", 0),
    "TEX.B.LL": ("", 0),
    "HGMMA.64x16x16.F32": ("", 0),
    "FFMA": ("", 0),
    "IMAD.MOV.U32": ("", 0),
    "ARRIVES.LDGSTSBAR.64": ("", 0),
    "EXIT": ("", 0),
}
WINDOW = 16 << 20
SHARED_OFFSETS = 1 << 20


class Block:
    """What one thread block did: instructions, accesses, and the bytes it read and wrote."""

    def __init__(self):
        self.instructions = self.accesses = 0
        self.read, self.written = set(), set()
        self.read_plainly, self.read_in_order = set(), set()  # the rest by LDGSTS alone

    def __eq__(self, other):
        return self._facts() == other._facts()

    def _facts(self):
        in_order = self.read_in_order - self.read_plainly
        return {**vars(self), "read_in_order": in_order}

    __hash__ = None

    def __repr__(self):
        return repr(vars(self))


def read_kernel(text):
    """Return the header of a kernel file, and what each of its blocks did."""
    header, blocks = {}, defaultdict(Block)
    is_grouped = "#BEGIN_TB" in text
    here = None
    for line in text.split("\n"):
        tokens = line.split()
        if not tokens or tokens[0].startswith("#"):
            continue
        if line.startswith("-"):
            key, _, value = line[1:].partition(" =")
            header[key] = value.strip()
        elif tokens[0] == "thread":
            here = tuple(int(n) for n in tokens[3].split(","))
        elif tokens[0] not in {"warp", "insts", "cluster"}:
            at = instruction_at(tokens)
            if not is_grouped:
                here = tuple(int(n) for n in tokens[:3])
            take(blocks, here, tokens[at:], header)
    return header, {key: block for key, block in blocks.items() if block.instructions}


def instruction_at(tokens):
    """Find the program counter: mask, number of destinations and opcode stand where they must."""
    for at in range(len(tokens) - 3):
        if re.fullmatch("[0-9a-f]{4,}", tokens[at]) and re.fullmatch("[0-9a-f]{8}", tokens[at + 1]):
            opcode = at + 3 + int(tokens[at + 2])
            if tokens[at + 2].isdigit() and tokens[opcode][0].isupper():
                return at
    raise AssertionError(tokens)


def take(blocks, here, tokens, header):
    mask = int(tokens[1], 16)
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    rest = tokens[3 + int(tokens[2]) :]
    opcode, rest = rest[0], rest[2 + int(rest[1]) :]
    effect, width = OPCODES[opcode]
    if effect == "async" and not lanes:
        return
    block = blocks[here]
    if "GMMA" in opcode and version_of(header) == 6:
        rest = rest[1:]
    if not effect or effect == "bulk" or not lanes:
        block.instructions += 1
        return
    if effect.startswith("bulk"):
        addresses, width = bulk_addresses(rest[1:]) if version_of(header) == 6 else ([], 0)
        block.instructions += 1
        block.accesses += version_of(header) == 6
    else:
        addresses = list(lane_addresses(lanes, rest[1:], version_of(header)))
        if effect == "async" and max(addresses) < SHARED_OFFSETS:
            return
        if effect.endswith("g"):
            addresses = [a for a in addresses if not in_window(a, header)]
        block.instructions += 1
        block.accesses += bool(addresses)
    touched = {byte for a in addresses if a for byte in range(a, a + width)}
    if effect == "async" or "r" in effect:
        block.read |= touched
    if "r" in effect:
        in_order = "w" in effect or ".STRONG." in opcode
        (block.read_in_order if in_order else block.read_plainly).update(touched)
    if "w" in effect:
        block.written |= touched


def version_of(header):
    return int(header.get("accelsim tracer version", "0")[0])


def in_window(address, header):
    bases = (header.get(key) for key in ("shmem base_addr", "local mem base_addr"))
    return any(
        base and int(base, 16) and int(base, 16) <= address < int(base, 16) + WINDOW
        for base in bases
    )


def lane_addresses(lanes, tokens, version):
    mode, tokens = tokens[0], tokens[1:]
    if mode == "0":
        more = takewhile(lambda token: token.startswith("0x"), tokens[len(lanes) :])
        yield from (int(token, 16) for token in [*tokens[: len(lanes)], *more])
    elif mode == "1":
        base, stride = int(tokens[0], 16), int(tokens[1])
        yield from (base + (lane - lanes[0]) * stride for lane in lanes)
    else:
        address = int(tokens[0], 16)
        yield address
        listed = len(tokens) - 1 if version <= 3 else len(lanes) - 1
        for delta in tokens[1 : 1 + listed]:
            address += int(delta)
            yield address


def bulk_addresses(tokens):
    tokens = tokens[3:] if tokens[1] == "1" else tokens[2:]
    total, outside, mode = (int(token) for token in tokens[:3])
    tokens = tokens[3:]
    if mode == 3:
        count = int(tokens[0])
        addresses = [int(token, 16) for token in tokens[1 : 1 + count]]
    else:
        count = int(tokens[1])
        addresses = [int(tokens[0], 16)][:count]
        for delta in tokens[2 : 1 + count]:
            addresses.append(addresses[-1] + int(delta))
    return addresses, -(-(total - outside) // count) if count else 0
