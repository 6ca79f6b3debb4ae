"""The instructions of a kernel as nvdisasm prints them, in blocks between which it jumps."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LOADS, STORES = ("LDG", "LD", "LDGSTS"), ("STG", "ST", "RED", "REDG", "ATOM", "ATOMG")
CALL, RETURN, EXIT = "CALL", "RET", "EXIT"
ALWAYS = frozenset({"", "PT", "UPT"})
_JUMP = "BRA"
_JUMPS, _ENDS = (_JUMP, CALL), (EXIT, "KILL", RETURN)
BRANCHES = frozenset({*_JUMPS, *_ENDS})
# What lets threads go on where they meet, and what says where that is: always right behind it.
_MEETINGS = {"BSYNC": "BSSY", "ENDCOLLECTIVE": "WARPSYNC"}
_MOST_CALLS = 8  # one inside of the other

_PLACE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
_LINE = re.compile(_PLACE.pattern + r"\s+(?:@(!?U?PT?\d*)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_NO_FUNCTION = "`(.L"  # begins a target that is none
_TARGET = re.compile(r"`\(([^)]+)\)$")
_TILE = re.compile(r"64x(\d+)x\d+$")
_OF_TENSOR_MEMORY = re.compile(r"(?:16dp(\d+)bit\w*)?\.?(?:x(\d+))?$")
_PREDICATE = re.compile(r"!?U?P(?:T|\d+)$")
_UNIFORM = re.compile(
    "^U(?=(?:IADD|IMAD|LEA|LOP|PLOP|MOV|SEL|SHF|PRMT|SGXT|FLO|POPC|BREV|BMSK|P2UR|VIADD|VIMNMX|I|F))"
)


class UnknownCodeError(Exception):
    """The code does something that cannot be followed."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    at: int  # byte of the code
    guard: str
    full_name: str
    options: tuple[str, ...]
    operands: tuple[str, ...]  # predicates among them
    target: str

    @property
    def name(self) -> str:
        """What it does, be it for a thread or for all of a warp."""
        return _UNIFORM.sub("", self.full_name)

    @property
    def sources(self) -> list[str]:
        """Operands that are no predicates; the first is what it writes, if it writes any."""
        return [o for o in self.operands if not is_predicate(o)]

    @property
    def is_sure(self) -> bool:
        """Whether it takes effect whatever a predicate holds."""
        return self.guard in ALWAYS

    @property
    def may_go_on(self) -> bool:
        """Whether what follows may run; on Blackwell an operand tells, too: ``BRA.U !UP0``."""
        asked = any(is_predicate(o) and o not in ALWAYS for o in self.operands)
        return asked or not self.is_sure or bool({"CONV", "DIV"} & set(self.options))


@dataclass(slots=True)
class Block:
    """Instructions without a branch between them."""

    instructions: list[Instruction] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)  # what may run next, of the same function
    calls: int | None = None  # the block that its last instruction calls

    @property
    def last(self) -> Instruction | None:
        """Its last instruction, which may be a jump."""
        return self.instructions[-1] if self.instructions else None

    @property
    def at(self) -> int:
        """Byte of the code; -1 if it is empty."""
        return self.instructions[0].at if self.instructions else -1


def is_predicate(operand: str) -> bool:
    """Tell whether an operand is a predicate."""
    return bool(_PREDICATE.match(operand))


def blocks_of(lines: Iterable[str]) -> list[Block]:
    """Cut code into blocks, each with those that may follow it."""
    blocks = [Block()]
    label_at: dict[str, int] = {}
    for line in lines:
        if label := _LABEL.match(line.strip()):
            if blocks[-1].instructions:
                blocks[-1].follows.append(len(blocks))
                blocks.append(Block())
            label_at[label[1]] = len(blocks) - 1
        elif found := _LINE.match(line):
            each = _instruction(found)
            blocks[-1].instructions.append(each)
            if each.name in BRANCHES:
                if each.may_go_on:
                    blocks[-1].follows.append(len(blocks))
                blocks.append(Block())
        elif _PLACE.match(line):
            raise UnknownCodeError(f"nobody can read {line.split('*/')[-1].strip()}")
    for place, block in enumerate(blocks):
        _follow_jump(block, place, label_at)
    _check_meetings(blocks, label_at)
    return blocks


def _follow_jump(block: Block, place: int, label_at: dict[str, int]) -> None:
    """Note where a block goes on that ends in a jump or a call."""
    last = block.last
    if last is None or last.name not in {*_JUMPS, RETURN}:
        return
    target = label_at.get(last.target)
    is_direct = target is not None and last.operands[-1].startswith("`(")
    if last.name == CALL:
        block.calls = target if is_direct else None
        block.follows += [place + 1] if block.calls is None else []
    elif last.name == RETURN:  # to a register's distance behind the label
        if target != 0:
            raise UnknownCodeError("it returns to addresses that it computes")
    elif is_direct and target is not None:
        block.follows.append(target)
    else:
        raise UnknownCodeError("it jumps to addresses that it computes, or out of its own code")


def _check_meetings(blocks: Sequence[Block], label_at: dict[str, int]) -> None:
    """Refuse code where threads that meet may go on elsewhere than behind that instruction."""
    said, meeting = set(), set()
    for place, block in enumerate(blocks):
        for each in block.instructions:
            if each.name in _MEETINGS.values() and each.target:
                said.add((each.name, _barrier(each), label_at.get(each.target)))
            elif each.name in _MEETINGS:
                behind = place + 1 if each is block.last else None
                meeting.add((_MEETINGS[each.name], _barrier(each), behind))
    if said != meeting:
        raise UnknownCodeError("its threads meet, and go on where nobody knows")


def _barrier(each: Instruction) -> str:
    """Return what threads wait for each other by, if it has a name."""
    return next((o for o in each.operands if o[0] == "B"), "")


def _instruction(found: re.Match[str]) -> Instruction:
    name, *options = found[3].split(".")
    target = _TARGET.search(found[4])
    operands = tuple(_split(found[4]))
    if name == CALL and operands and operands[-1].startswith(_NO_FUNCTION):
        name = _JUMP  # if it is returned from after all, then to an address that nobody expects
    return Instruction(
        int(found[1], 16), found[2] or "", name, tuple(options), operands,
        target[1] if target else "",
    )  # fmt: skip


def _split(text: str) -> list[str]:
    """Split operands at commas, but for those in brackets."""
    found, depth, last = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            found.append(text[last:place].strip())
            last = place + 1
    rest = text[last:].strip()
    return [*found, rest] if rest else found


Place = tuple[int, tuple[int, ...]]  # a block, and those that its callers go on with


def called(blocks: Sequence[Block], place: Place) -> Place:
    """Return where a block that ends in a call goes on."""
    number, callers = place
    if len(callers) == _MOST_CALLS:
        raise UnknownCodeError("its functions call each other, or themselves")
    return blocks[number].calls or 0, (*callers, number + 1)


def width_of(each: Instruction) -> int:
    """Return how many registers each result of an instruction may fill, or more."""
    name, options = each.name, each.options
    if name.endswith("MMA") or name.startswith("LDT"):
        return _width_of_tile(name, options)
    if name in {"LDSM", "ATOM", "ATOMG", "ATOMS"} or (name == "LDG" and "256" in options):
        return 4
    if name == "SHF":  # of U64 or S64 it keeps half
        return 2 if "64" in options else 1
    if name in {"CS2R", "FADD2", "FFMA2", "FMUL2"} or name[0] == "D" or "WIDE" in options:
        return 2
    bits = [int(o) for o in options if o in {"64", "128", "256"}]
    return max(bits, default=64 if any("64" in o for o in options) else 32) // 32


def _width_of_tile(name: str, options: Sequence[str]) -> int:
    """Return how many registers a part of a matrix fills in each thread, or more."""
    if name.startswith("LDT"):  # from tensor memory: so many times 32 to 256 bits
        found = _OF_TENSOR_MEMORY.match(".".join(options))
        return int(found[2] or 1) * max(1, int(found[1] or 32) // 64) if found else 128
    if name.endswith("GMMA"):  # 64 rows by so many columns, for 128 threads
        columns = max((int(found[1]) for o in options if (found := _TILE.match(o))), default=256)
        return columns // (4 if "F16" in options and "F32" not in options else 2)
    return 8 if name == "DMMA" and "8x8x4" not in options else 4
