"""What the machine code of a kernel says of the memory it touches: by which pointers it gets there.

Every address that a kernel uses is followed back to where it comes from. One that comes from a
pointer among the parameters, whatever is added to it, stays in the memory that the pointer leads
to. One that is loaded may lead anywhere. Functions are followed into, from each call of its own.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from depgraph.apply.instructions import (
    BRANCHES,
    CALL,
    LOADS,
    RETURN,
    STORES,
    Block,
    Instruction,
    Place,
    UnknownCodeError,
    blocks_of,
    called,
    width_of,
)
from depgraph.recorder.module_code import disassembled, functions_in, read_module
from depgraph.system.workers import available_jobs

# What a register holds, as the parameters that it is an address by: several if it may be one of
# them. Numbers, and what is loaded, are by none.
Source = frozenset[int]
Value = frozenset[Source]

_NUMBER: Source = frozenset()
_ANY = -1  # one of the parameters, nobody knows which
_MODULE = -2  # a variable of the module
_PARAMETERS = -3  # the parameters themselves, where tensor maps lie, or a number beside them
_CODE = -4  # less where in the code a call returns to
_NUMBERS: Value = frozenset({_NUMBER})
_TOO_MANY: Value = frozenset({_NUMBER, frozenset({_ANY})})  # stays that whatever else it may be
_OF_MODULE: Value = frozenset({frozenset({_MODULE})})
_BANK_OF_CONSTANTS, _BANK_OF_VARIABLES = 3, 4
_MOST_SOURCES = 32
_HARMLESS = frozenset({"__assertfail"})  # functions of the driver that write nothing of others

_REGISTER = re.compile(r"(?:[-~|!]*)(U?R(?:\d+|Z))(?![\w])")
_SIGNS = "-~|!"
_OF_CONSTANTS = frozenset({"LDC", "ULDC", "LDCU"})
_CONSTANT = re.compile(r"\bc\[0x([0-9a-f]+)\]\[([^\]]*)\]")
_OTHER_CONSTANT = re.compile(r"\bc\w*\[(?!0x[0-9a-f]+\])")
_INSIDE = re.compile(r"\[([^\]]*)\]\s*$")

# Of what may do more, such as throwing memory away, what is known; a trap ends the process.
_HARMLESS_OF = {"CCTL": {"E", "IV", "IVALL", "PF1", "PF2", "DML2"}, "BPT": {"TRAP"}}
_OF_TENSORS = {"UTMALDG": False, "UTMAPF": False, "UTMASTG": True, "UTMAREDG": True}
_TABLE = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text("utf-8"))
_WITHOUT_MEMORY = BRANCHES.union(_TABLE["without_memory"].split())
_WITHOUT_RESULT = frozenset(
    {*STORES, *BRANCHES, "STS", "STL", "STSM", "R2P", "PLOP3", "WARPSYNC", "NANOSLEEP", "BAR"}
) - {"ATOM", "ATOMG"}


@dataclass(frozen=True, slots=True)
class KernelCode:
    """What a kernel does with the pointers among its parameters."""

    unknown: str = ""  # why it may reach memory that none of its pointers lead to; "" if it cannot
    stored: frozenset[int] = frozenset()  # bytes of parameters: pointers it writes by; -1: any
    reads_variables: bool = False  # whether it reads variables or constants of its module

    def may_write(self, at: int) -> bool:
        """Tell whether it may write through the pointer at a byte of its parameters."""
        return bool(self.unknown) or at in self.stored or _ANY in self.stored

    def joined(self, other: "KernelCode") -> "KernelCode":
        """Return what two kernels of one name do between them."""
        return KernelCode(
            self.unknown or other.unknown, self.stored | other.stored,
            self.reads_variables or other.reads_variables,
        )  # fmt: skip


def read_codes(
    folder: Path, pointers: Mapping[str, Collection[int]], nvdisasm: Path
) -> dict[str, KernelCode]:
    """Find what kernels of loaded modules do, by name, with pointers at bytes of parameters.

    Those of one name do what any of them does: nothing says which of them is launched.
    """
    modules = [read_module(path) for path in sorted(folder.glob("*.cubin"))]
    modules = [module for module in modules if pointers.keys() & module.begin_of.keys()]
    found: dict[str, KernelCode] = {}
    with ThreadPoolExecutor(available_jobs()) as pool:  # each waits for a process
        texts = pool.map(lambda module: disassembled(module.path, nvdisasm), modules)
        for module, text in zip(modules, texts, strict=True):
            for name in pointers.keys() & module.begin_of.keys():
                begin = module.begin_of[name]
                code = read_code(text, name, begin, pointers[name], module.functions)
                found[name] = found[name].joined(code) if name in found else code
    return found


def read_code(
    text: str,
    kernel: str,
    begin: int,
    pointers: Collection[int],
    functions: frozenset[str] = frozenset(),  # that its module calls by their address
) -> KernelCode:
    """Find by which pointers, of those at some bytes of its parameters, a kernel gets at memory."""
    lines = functions_in(text).get(kernel)
    if lines is None:
        return KernelCode(f"its code is not in the module that has {kernel}")
    try:
        blocks = blocks_of(lines)
        flow = _PointerFlow(begin, pointers, functions)
        return KernelCode(stored=flow.through(blocks), reads_variables=flow.reads_variables)
    except UnknownCodeError as error:
        return KernelCode(str(error))


class _PointerFlow:
    """Follows values through the code of one kernel."""

    def __init__(self, begin: int, pointers: Collection[int], functions: frozenset[str]) -> None:
        self._begin = begin
        self._functions = functions
        self._pointers = frozenset(pointers)
        self._stored: set[int] = set()
        self.reads_variables = False
        self._returns: set[str] = set()  # where calls may return to, as code has it

    def through(self, blocks: Sequence[Block]) -> frozenset[int]:
        """Go through all blocks until nothing new comes up; return what is written through."""
        operands = {text for block in blocks for i in block.instructions for text in i.operands}
        self.reads_variables = any(_BANK_OF_CONSTANTS in _banks_of(text) for text in operands)
        behind = [blocks[i + 1] for i, each in enumerate(blocks) if each.calls is not None]
        self._returns = {f"{each.at:#x}" for each in behind}
        entry: dict[Place, dict[str, Value]] = {(0, ()): {}}
        waiting = [*entry]
        while waiting:
            place = waiting.pop()
            state = dict(entry[place])
            for each in blocks[place[0]].instructions:
                self._step(each, state)
            for after in self._following(blocks, place, state):
                known = entry.get(after)
                joined = state if known is None else _joined(known, state)
                if joined != known:
                    entry[after] = dict(joined)
                    waiting.append(after)
        reached = {place for place, _ in entry}
        for number, block in enumerate(blocks):
            if number not in reached and not all(map(_is_harmless, block.instructions)):
                raise UnknownCodeError("nobody knows how its code is reached")
        return frozenset(self._stored)

    def _following(
        self, blocks: Sequence[Block], place: Place, state: dict[str, Value]
    ) -> Iterator[Place]:
        """Yield what may run behind a block: in a function that its caller waits for, too."""
        number, callers = place
        block = blocks[number]
        for after in block.follows:
            if after < len(blocks):
                yield after, callers
        if block.calls is not None:
            yield called(blocks, place)
        last = block.last
        if last is None:
            return
        if last.name == CALL and block.calls is None:
            is_known = "ABS" in last.options and self._value(last.operands[0], state) == _OF_MODULE
            if not (is_known and self._functions and self._functions <= _HARMLESS):
                raise UnknownCodeError("it calls functions that are not in its own code")
        elif last.name == RETURN:
            wanted = {frozenset({_CODE - blocks[each].at}) for each in callers[-1:]}
            if not wanted or self._value(last.operands[0], state) != wanted:
                raise UnknownCodeError("it returns to addresses that it computes")
            yield callers[-1], callers[:-1]

    def _step(self, each: Instruction, state: dict[str, Value]) -> None:
        name, operands = each.name, each.sources
        if name in STORES or name in LOADS:
            self._access(each, operands, state)
        elif name in _OF_TENSORS:
            self._tensor(each, operands, state)
            return
        elif not _is_harmless(each):
            raise UnknownCodeError(f"nobody knows what {each.full_name} does")
        if name in _WITHOUT_RESULT or "SETP" in name:
            return
        value = self._result(name, each, operands[1:], state)
        # A load of 256 bits has two results.
        for target in operands[: 2 if name == "LDG" and "256" in each.options else 1]:
            if register := _REGISTER.match(target):
                for step in range(width_of(each)):
                    if step:  # a pointer more, if two are loaded at once
                        is_loaded = name in _OF_CONSTANTS
                        value = self._constant(operands[-1], 4 * step) if is_loaded else _NUMBERS
                    _put(state, _next(register[1], step), value, is_sure=each.is_sure)

    def _result(
        self, name: str, each: Instruction, sources: Sequence[str], state: dict[str, Value]
    ) -> Value:
        """Return what an instruction puts into its first register."""
        first, second, third = (*sources, "", "", "")[:3]
        if name in _OF_CONSTANTS:
            return self._constant(first)
        if name == "MOV" or (name == "IMAD" and "MOV" in each.options):
            moved = sources[-1] if sources else ""
            if moved in self._returns:
                return frozenset({frozenset({_CODE - int(moved, 16)})})
            return self._value(moved, state)
        terms: dict[str, Sequence[str]] = {
            "R2UR": [first], "IADD": sources, "IADD3": sources, "VIADD": sources,
            "LEA": [second], "IMAD": [first, third] if second == "0x1" else [third],
        }  # fmt: skip
        if {"HI", "X", "OR"} & set(each.options) or name not in {"SEL", *terms}:
            return _NUMBERS
        if name == "SEL":
            return _either(self._value(first, state), self._value(second, state))
        kept = [source for source in terms[name] if source and source[0] not in _SIGNS]
        found = _sum(self._value(source, state) for source in kept)
        # The distance between two addresses is none, and leads from a third to anywhere.
        lost = (self._value(s.lstrip(_SIGNS), state) for s in sources if s not in kept)
        is_number = all(s <= _PARAMETERS for source in _sum(lost) for s in source)
        return found if is_number else _either(found, _NUMBERS)

    def _value(self, operand: str, state: dict[str, Value]) -> Value:
        """Return what an operand holds that has no sign."""
        if operand.startswith("c["):
            return self._constant(operand)
        found = _REGISTER.match(operand)
        return state.get(found[1], _NUMBERS) if found and operand[0] not in _SIGNS else _NUMBERS

    def _constant(self, operand: str, more: int = 0) -> Value:
        found = _CONSTANT.search(operand)
        if not found:
            return _NUMBERS
        bank, place = int(found[1], 16), found[2]
        if bank:
            return _OF_MODULE if bank == _BANK_OF_VARIABLES else _NUMBERS
        if "R" in place:
            return frozenset({frozenset({_ANY})})
        at = int(place or "0", 16) + more - self._begin
        if at < 0:
            return frozenset({frozenset({_PARAMETERS})}) if at % 8 == 0 else _NUMBERS
        return frozenset({frozenset({at})}) if at in self._pointers else _NUMBERS

    def _access(self, each: Instruction, operands: Sequence[str], state: dict[str, Value]) -> None:
        """Look at an access to global memory."""
        addresses = [operand for operand in operands if "[" in operand and operand[:2] != "c["]
        if not addresses:
            raise UnknownCodeError(f"{each.name} has no address")
        inside = _INSIDE.search(addresses[-1])
        terms = inside[1].split("+") if inside else []
        for by in _sum(self._value(term.strip(), state) for term in terms):
            is_load = each.name in LOADS
            source = by - {_PARAMETERS}
            if source == {_MODULE} and is_load:
                self.reads_variables = True
            elif not source or _MODULE in source:
                where = "variables of its module" if _MODULE in source else "addresses it computes"
                raise UnknownCodeError(
                    f"it uses {where}, by {each.name}, and no pointer it was given"
                )
            elif not is_load:
                self._stored |= source

    def _tensor(self, each: Instruction, operands: Sequence[str], state: dict[str, Value]) -> None:
        """Look at an access by a tensor map, which must be a parameter."""
        inside = [operand[1:-1] for operand in operands if operand[0] == "["]
        address = self._value(inside[1], state) if len(inside) > 1 else _NUMBERS
        if any(source - {_PARAMETERS} for source in address):
            raise UnknownCodeError("it uses tensor maps in memory")
        if _NUMBER in address:
            raise UnknownCodeError("it uses tensor maps that are no parameters")
        if _OF_TENSORS[each.name]:
            self._stored.add(_ANY)


def _is_harmless(each: Instruction) -> bool:
    """Tell whether an instruction touches no memory that others see."""
    known = _HARMLESS_OF.get(each.name)
    return each.name in _WITHOUT_MEMORY and (known is None or known.issuperset(each.options))


def _banks_of(operand: str) -> list[int]:
    """Return the banks of constants that an operand names; all are named by number."""
    if _OTHER_CONSTANT.search(operand):
        raise UnknownCodeError("it reads constants that it chooses")
    return [int(found[1], 16) for found in _CONSTANT.finditer(operand)]


def _sum(values: Iterable[Value]) -> Value:
    """Return what a sum is an address by: by what its terms are."""
    found: Value = _NUMBERS
    for value in values:
        found = _capped(frozenset(a | {s for s in b if s > _CODE} for a in found for b in value))
    return found


def _either(one: Value, other: Value) -> Value:
    return _capped(one | other)


def _capped(value: Value) -> Value:
    return _TOO_MANY if value > _TOO_MANY or len(value) > _MOST_SOURCES else value


def _joined(known: dict[str, Value], more: dict[str, Value]) -> dict[str, Value]:
    """Return what registers may hold that come from two places; what one left alone is a number."""
    return {
        register: _either(known.get(register, _NUMBERS), more.get(register, _NUMBERS))
        for register in known.keys() | more.keys()
    }


def _put(state: dict[str, Value], register: str, value: Value, *, is_sure: bool) -> None:
    if not register.endswith("Z"):
        state[register] = value if is_sure else _either(state.get(register, _NUMBERS), value)


def _next(register: str, step: int) -> str:
    prefix = register.rstrip("0123456789Z")
    return register if register.endswith("Z") else f"{prefix}{int(register[len(prefix) :]) + step}"
