"""What the machine code of a kernel says of the memory it touches: by which pointers it gets there.

Every address that a kernel uses is followed back to where it comes from. One that comes from a
pointer among the parameters, whatever is added to it, stays in the memory that the pointer leads
to. One that is loaded may lead anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from depgraph.recorder.module_code import functions_in

# What a register holds, as the parameters that it is an address by: several if it may be one of
# them. Numbers, and what is loaded, are by none.
Source = frozenset[int]
Value = frozenset[Source]

_NUMBER: Source = frozenset()
_ANY = -1  # one of the parameters, nobody knows which
_PARAMETERS = -2  # the parameters themselves: tensor maps lie there
_MODULE = -3  # a variable of the module
_NUMBERS: Value = frozenset({_NUMBER})
_MOST_SOURCES = 32

_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?PT?\d*)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_REGISTER = re.compile(r"(?:[-~|!]*)(U?R(?:\d+|Z))(?![\w])")
_PREDICATE = re.compile(r"!?U?P(?:T|\d+)$")
_CONSTANT = re.compile(r"c\[0x([0-9a-f]+)\]\[([^\]]*)\]")
_INSIDE = re.compile(r"\[([^\]]*)\]\s*$")

_LOADS, _STORES = ("LDG", "LD", "LDGSTS"), ("STG", "ST", "RED", "REDG", "ATOM", "ATOMG")
_ALWAYS = frozenset({"", "PT", "UPT"})
_BRANCHES, _ENDS = ("BRA",), ("EXIT", "KILL")
_OF_TENSORS = {"UTMALDG": False, "UTMAPF": False, "UTMASTG": True, "UTMAREDG": True}
_WITHOUT_MEMORY = frozenset(
    """
    ACQBULK ARRIVES ATOMS B2R BAR BFE BFI BGMMA BMMA BMOV BMSK BREAK BREV BSSY BSYNC CCTL
    CCTLL CCTLT CGAERRBAR CREDUX CS2R DADD DEPBAR DFMA DMMA DMUL DSETP ELECT ERRBAR F2F F2FP
    F2I F2IP FADD FADD2 FCHK FENCE FFMA FFMA2 FLO FMNMX FMNMX3 FMUL FMUL2 FRND FSEL FSET FSETP
    FSWZADD GETLMEMBASE HADD2 HFMA2 HGMMA HMMA HMNMX2 HMUL2 HSET2 HSETP2 I2F I2FP I2I I2IP
    IABS IADD IADD3 IDP IGMMA IMAD IMMA IMNMX ISCADD ISET ISETP LDC LDCU LDL LDS LDSM LDT LDTM
    LEA LEPC LOP LOP3 MATCH MEMBAR MOV MOVM MUFU NANOSLEEP NOP P2R PLOP3 POPC PREEXIT PRMT
    PSETP QGMMA QMMA R2B R2P R2UR REDUX S2R S2UR SEL SGXT SHF SHFL SHL SHR STL STS STSM STT
    STTM SYNCS UCGABAR_ARV UCGABAR_GET UCGABAR_SET UCGABAR_WAIT ULDC USETMAXREG UTCATOMSWS
    UTCBAR UTCCP UTCHMMA UTCIMMA UTCOMMA UTCQMMA UTCSHIFT UTMACCTL UTMACMDFLUSH VABSDIFF
    VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 VOTE VOTEU WARPGROUP WARPGROUPSET WARPSYNC
    YIELD
    """.split()  # noqa: SIM905 - easier to read
) | {*_BRANCHES, *_ENDS}
_WITHOUT_RESULT = frozenset(
    {*_STORES, "STS", "STL", "STSM", "R2P", "PLOP3", "WARPSYNC", "NANOSLEEP", "BAR"}
) - {"ATOM", "ATOMG"}
_UNIFORM = re.compile(
    "^U(?=(?:IADD|IMAD|LEA|LOP|MOV|SEL|SHF|PRMT|SGXT|FLO|POPC|BREV|BMSK|P2UR|I|F))"
)


@dataclass(frozen=True, slots=True)
class KernelCode:
    """What a kernel does with the pointers among its parameters."""

    unknown: str = ""  # why it may reach memory that none of its pointers lead to; "" if it cannot
    stored: frozenset[int] = frozenset()  # bytes of parameters: pointers it writes by; -1: any

    def may_write(self, at: int) -> bool:
        """Tell whether it may write through the pointer at a byte of its parameters."""
        return bool(self.unknown) or at in self.stored or _ANY in self.stored

    def joined(self, other: KernelCode) -> KernelCode:
        """Return what two kernels of one name do between them."""
        return KernelCode(self.unknown or other.unknown, self.stored | other.stored)


@dataclass(frozen=True, slots=True)
class _Instruction:
    guard: str
    name: str
    options: tuple[str, ...]
    operands: tuple[str, ...]
    target: str

    @property
    def is_sure(self) -> bool:
        """Whether it takes effect whatever a predicate holds."""
        return self.guard in _ALWAYS

    @property
    def may_go_on(self) -> bool:
        """Whether what follows may run; on Blackwell an operand tells, too: ``BRA.U !UP0``."""
        asked = any(_PREDICATE.match(o) and o not in _ALWAYS for o in self.operands)
        return asked or not self.is_sure or bool({"CONV", "DIV"} & set(self.options))


@dataclass(slots=True)
class _Block:
    """Instructions without a branch between them."""

    instructions: list[_Instruction] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)


class _UnknownError(Exception):
    """The code does something that cannot be followed."""


def read_code(text: str, kernel: str, begin: int, pointers: Collection[int]) -> KernelCode:
    """Find by which pointers, of those at some bytes of its parameters, a kernel gets at memory."""
    lines = functions_in(text).get(kernel)
    if lines is None:
        return KernelCode(f"its code is not in the module that has {kernel}")
    try:
        blocks = _blocks_of(lines)
        return KernelCode(stored=_PointerFlow(begin, pointers).through(blocks))
    except _UnknownError as error:
        return KernelCode(str(error))


def _blocks_of(lines: Iterable[str]) -> list[_Block]:
    """Cut code into blocks, each with those that may follow it."""
    blocks = [_Block()]
    label_at: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in lines:
        if label := _LABEL.match(line.strip()):
            if blocks[-1].instructions:
                blocks[-1].follows.append(len(blocks))
                blocks.append(_Block())
            label_at[label[1]] = len(blocks) - 1
        elif found := _LINE.match(line):
            each = _instruction(found)
            blocks[-1].instructions.append(each)
            if each.name in _BRANCHES:
                jumps.append((len(blocks) - 1, each.target))
            if each.name in _BRANCHES or each.name in _ENDS:
                if each.may_go_on:
                    blocks[-1].follows.append(len(blocks))
                blocks.append(_Block())
    for block, target in jumps:
        if target not in label_at:
            raise _UnknownError("it jumps to addresses that it computes, or out of its own code")
        blocks[block].follows.append(label_at[target])
    return blocks


def _instruction(found: re.Match[str]) -> _Instruction:
    name, *options = found[3].split(".")
    target = _TARGET.search(found[4])
    operands = tuple(_split(found[4]))
    return _Instruction(found[2] or "", name, tuple(options), operands, target[1] if target else "")


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


class _PointerFlow:
    """Follows values through the code of one kernel."""

    def __init__(self, begin: int, pointers: Collection[int]) -> None:
        self._begin = begin
        self._pointers = frozenset(pointers)
        self._stored: set[int] = set()

    def through(self, blocks: Sequence[_Block]) -> frozenset[int]:
        """Go through all blocks until nothing new comes up; return what is written through."""
        entry: list[dict[str, Value] | None] = [None] * len(blocks)
        entry[0] = {}
        waiting = [0]
        while waiting:
            place = waiting.pop()
            state = dict(entry[place] or {})
            for each in blocks[place].instructions:
                self._step(each, state)
            for after in blocks[place].follows:
                if after >= len(blocks):
                    continue
                known = entry[after]
                joined = state if known is None else _joined(known, state)
                if joined != known:
                    entry[after] = dict(joined)
                    waiting.append(after)
        for block, known in zip(blocks, entry, strict=True):
            names = {_UNIFORM.sub("", each.name) for each in block.instructions}
            if known is None and names - _WITHOUT_MEMORY:
                raise _UnknownError("nobody knows how its code is reached")
        return frozenset(self._stored)

    def _step(self, each: _Instruction, state: dict[str, Value]) -> None:
        name = _UNIFORM.sub("", each.name)
        operands = [o for o in each.operands if not _PREDICATE.match(o)]
        if name in _STORES or name in _LOADS:
            self._access(each, operands, state)
        elif each.name in _OF_TENSORS:
            self._tensor(each, operands, state)
            return
        elif name not in _WITHOUT_MEMORY:
            raise _UnknownError(f"nobody knows what {each.name} does")
        target = operands[0] if operands else ""
        if not (register := _REGISTER.fullmatch(target.removesuffix(".reuse"))):
            return
        if name in _WITHOUT_RESULT or "SETP" in name:
            return
        value = self._result(name, each, operands[1:], state)
        width = _width(name, each.options)
        for step in range(width):
            made = value if not step else _NUMBERS
            _put(state, _next(register[1], step), made, is_sure=each.is_sure)

    def _result(
        self, name: str, each: _Instruction, sources: Sequence[str], state: dict[str, Value]
    ) -> Value:
        """Return what an instruction puts into its first register."""
        first, second, third = (*sources, "", "", "")[:3]
        if name in {"LDC", "ULDC", "LDCU"}:
            return self._constant(first)
        if {"HI", "X"} & set(each.options):
            return _NUMBERS
        terms: dict[str, Sequence[str]] = {
            "MOV": [first], "R2UR": [first], "IADD": sources, "IADD3": sources, "VIADD": sources,
            "LEA": [second], "IMAD": [first, third] if second == "0x1" else [third],
        }  # fmt: skip
        if name == "SEL":
            return _either(self._value(first, state), self._value(second, state))
        if name not in terms:
            return _NUMBERS
        return _sum(self._value(source, state) for source in terms[name])

    def _value(self, operand: str, state: dict[str, Value]) -> Value:
        """Return what an operand holds; what is taken away from an address is a number."""
        if operand.startswith("c["):
            return self._constant(operand)
        found = _REGISTER.match(operand)
        if not found or operand.startswith(("-", "~", "|", "!")):
            return _NUMBERS
        return state.get(found[1], _NUMBERS)

    def _constant(self, operand: str) -> Value:
        found = _CONSTANT.search(operand)
        if not found:
            return _NUMBERS
        bank, place = int(found[1], 16), found[2]
        if bank == 3:  # noqa: PLR2004
            raise _UnknownError("it reads __constant__ memory")
        if bank == 4:  # noqa: PLR2004
            return frozenset({frozenset({_MODULE})})
        if bank:
            return _NUMBERS
        if "R" in place:
            return frozenset({frozenset({_ANY})})
        at = int(place, 16) - self._begin if place else 0
        if at < 0:
            return frozenset({frozenset({_PARAMETERS})}) if at % 8 == 0 else _NUMBERS
        return frozenset({frozenset({at})}) if at in self._pointers else _NUMBERS

    def _access(self, each: _Instruction, operands: Sequence[str], state: dict[str, Value]) -> None:
        """Look at an access to global memory."""
        addresses = [operand for operand in operands if "[" in operand and operand[:2] != "c["]
        if not addresses:
            raise _UnknownError(f"{each.name} has no address")
        inside = _INSIDE.search(addresses[-1])
        terms = inside[1].split("+") if inside else []
        for source in _sum(self._value(term.strip(), state) for term in terms):
            if not source or source & {_PARAMETERS, _MODULE}:
                where = "variables of its module" if _MODULE in source else "addresses it computes"
                raise _UnknownError(f"it uses {where}, by {each.name}, and no pointer it was given")
            if each.name.removeprefix("U") not in _LOADS:
                self._stored |= source

    def _tensor(self, each: _Instruction, operands: Sequence[str], state: dict[str, Value]) -> None:
        """Look at an access by a tensor map, which must be a parameter."""
        inside = [found[1] for operand in operands if (found := _INSIDE.search(operand))]
        addresses = [self._value(text.split("+", maxsplit=1)[0], state) for text in inside]
        if any(source - {_PARAMETERS} for value in addresses for source in value):
            raise _UnknownError("it uses tensor maps in memory")
        if frozenset({frozenset({_PARAMETERS})}) not in addresses:
            raise _UnknownError("it uses tensor maps that are no parameters")
        if _OF_TENSORS[each.name]:
            self._stored.add(_ANY)


def _sum(values: Iterable[Value]) -> Value:
    """Return what a sum is an address by: by what its terms are."""
    found: Value = _NUMBERS
    for value in values:
        found = frozenset(a | b for a in found for b in value)
        if len(found) > _MOST_SOURCES:
            return _NUMBERS
    return found


def _either(one: Value, other: Value) -> Value:
    found = one | other
    return found if len(found) <= _MOST_SOURCES else _NUMBERS


def _joined(known: dict[str, Value], more: dict[str, Value]) -> dict[str, Value]:
    """Return what registers may hold that come from two places; what one left alone is a number."""
    return {
        register: _either(known.get(register, _NUMBERS), more.get(register, _NUMBERS))
        for register in known.keys() | more.keys()
    }


def _put(state: dict[str, Value], register: str, value: Value, *, is_sure: bool) -> None:
    if not register.endswith("Z"):
        old = state.get(register, _NUMBERS)
        state[register] = value if is_sure else _either(old, value)


def _next(register: str, step: int) -> str:
    prefix = register.rstrip("0123456789Z")
    return register if register.endswith("Z") else f"{prefix}{int(register[len(prefix) :]) + step}"


def _width(name: str, options: Sequence[str]) -> int:
    """Return how many registers an instruction may write, or more."""
    if name.endswith("GMMA") or name.startswith("LDT"):
        return 128
    if name.endswith("MMA"):
        return 4
    if name in {"LDSM", "ATOM", "ATOMG", "ATOMS"}:
        return 4
    if name in {"CS2R", "FADD2", "FFMA2", "FMUL2"} or name[0] == "D" or "WIDE" in options:
        return 2
    bits = [int(o) for o in options if o in {"64", "128", "256"}]
    return max(bits, default=64 if any("64" in o for o in options) else 32) // 32
