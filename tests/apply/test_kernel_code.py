"""What machine code says: by which pointers a kernel gets at memory, or that nobody knows."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from depgraph.apply.kernel_code import KernelCode, read_code, read_codes
from depgraph.recorder.module_code import disassembled, find_nvdisasm, read_module

DATA = Path(__file__).parent / "data"
BEGIN = 0x210  # of the parameters on sm_90
A, B = "c[0x0][0x210]", "c[0x0][0x218]"  # the first two
COMPUTED = "it uses addresses it computes, by {}, and no pointer it was given"
KNOWN = {
    "axpy": ({0, 8, 16}, {8}),
    "sums": ({0, 8}, {8}),
    "of_a_struct": ({0, 16}, {0}),
    "one_of_two": ({0, 8}, {0, 8}),
    "tile": ({48, 176}, {-1}),  # through any pointer: which map it is nobody has asked
    "calls": ({0, 8}, {8}),
    "of_constants": ({0}, {0}),
    # as Triton makes them
    "normalised": ({0, 8, 16, 24}, {24}),  # it calls a function for the root of some numbers
    "turned": ({0, 8}, {8}),
    "summed": ({0, 8}, {8}),
    "pooled": ({0, 8}, {8}),
    "checked": ({0, 8, 16}, {16}),
}
UNKNOWN = {
    "table": COMPUTED.format("STG"),
    "of_a_variable": "it uses variables of its module, by STG, and no pointer it was given",
    "texture": "nobody knows what TLD does",
    "added": COMPUTED.format("REDG"),  # pointers that came through shared memory
    "of_rows": COMPUTED.format("STG"),
}
OF_TRITON = {"normalised", "turned", "summed", "pooled", "checked", "added", "of_rows"}
ASSERTS = frozenset({"__assertfail"})
READ_VARIABLES = {"of_constants", "turned"}


BEGINS = {80: 0x160, 90: 0x210, 120: 0x380}  # of the parameters, by architecture
# of traps.cu: where pointers stand, and by which a kernel writes
HARMLESS_TRAPS = {
    "scaled": ({0, 8}, {8}),
    "below": ({0, 8}, {8}),
    "asserts": ({0, 8}, {0}),
    "queue": ({0, 8}, {0, 8}),
    "strided": ({0, 8}, {8}),
    "staged": ({0, 8}, {8}),
    "diverging": ({0}, {0}),
    "of_doubles": ({0, 8, 16}, {16}),
    "of_eight": ({0, 8}, {8}),
}
TRAPS = {
    "by_variable": {0}, "by_constant": {0}, "by_table": {0}, "by_choice": {0}, "by_shared": {0},
    "by_shuffle": {0, 8}, "by_stack": {0, 8}, "by_pair": {0}, "by_xor": {8},
    "by_distance": {0, 8, 16}, "by_exchange": {0}, "by_result": {0, 8}, "by_jump": {0, 8, 16},
    "prints": {0}, "discards": {0}, "by_map": {128, 136},
}  # fmt: skip
SINCE = {"by_map": 90, "of_doubles": 90, "of_eight": 100}  # architectures


def of_architectures(names):
    """Return each architecture with each kernel of traps.cu that it has."""
    return [(a, name) for name in names for a in BEGINS if a >= SINCE.get(name, 0)]


@pytest.fixture(scope="module")
def trap_text():
    return {a: (DATA / f"traps_{a}.sass").read_text() for a in BEGINS}


@pytest.fixture(scope="module")
def text():
    return "\n".join((DATA / name).read_text() for name in ("kernels.sass", "triton.sass"))


@pytest.mark.parametrize("name", KNOWN)
def test_addresses_come_from_pointers(name, text):
    pointers, stored = KNOWN[name]
    assert read_code(text, name, BEGIN, pointers, ASSERTS) == KernelCode(
        stored=frozenset(stored), reads_variables=name in READ_VARIABLES
    )


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_addresses_may_lead_anywhere(name, text):
    found = read_code(text, name, BEGIN, {0, 8})
    assert found.unknown == UNKNOWN[name]
    assert found.may_write(0)


@pytest.mark.parametrize("functions", [(), ("vprintf",), ("__assertfail", ""), ("mine",)])
def test_functions_called_by_their_address_may_do_anything_but_where_they_only_assert(
    functions, text
):
    found = read_code(text, "checked", BEGIN, {0, 8, 16}, frozenset(functions))
    assert found.unknown == "it calls functions that are not in its own code"


@pytest.mark.parametrize(
    "address",
    [
        ["LDC.64 R4, c[0x4][0x8]", "LDG.E.64 R4, [R4.64]"],  # one of a table
        [f"LDC.64 R4, {A}"],  # one that the kernel is given
        ["@P0 LDC.64 R4, c[0x4][0x8]"],
    ],
)
def test_an_address_that_is_not_of_the_module_may_be_of_any_function(address):
    text = code_text(*address, "CALL.ABS.NOINC R4", "EXIT")
    found = read_code(text, "k", BEGIN, {0, 8}, ASSERTS)
    assert found.unknown == "it calls functions that are not in its own code"


def module_with(functions, variables=(), own=(), *, with_addends=True):
    """Return an ELF file of a kernel k that takes the addresses of functions and variables."""
    section = ".rela.nv.constant4" if with_addends else ".rel.nv.constant4"
    names = [*functions, *variables]
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    symbols, places = bytes(24), b""
    for number, name in enumerate(names, 1):
        at = strings.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
        kind = 1 if name in variables else 2 if name else 3
        symbols += struct.pack("<IBBHQQ", at, 0x10 | kind, 0, name in own, 0, 0)
        places += struct.pack("<QQq", 8 * number, number << 32 | 2, 0)[: 24 if with_addends else 16]
    info = struct.pack("<BBHIHH", 4, 0x0A, 8, 0, BEGIN, 16)
    parts = {
        "": b"", ".shstrtab": b"", ".strtab": strings, ".symtab": symbols,
        section: places, ".text.k": bytes(16), ".nv.info.k": info,
    }  # fmt: skip
    parts[".shstrtab"] = b"".join(name.encode() + b"\0" for name in parts)
    body, rows, at_name = b"", b"", 0
    for name, content in parts.items():
        rows += struct.pack(
            "<IIQQQQIIQQ", at_name, 1, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0
        )
        at_name += len(name) + 1
        body += content
    header = struct.pack(
        "<16xHHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(parts), 1
    )
    return b"\x7fELF\x02\x01" + header[6:] + body + rows


@pytest.mark.parametrize("functions", [(), ("__assertfail",), ("__assertfail", "mine"), ("",)])
def test_the_functions_whose_addresses_a_module_takes(functions, tmp_path):
    """A symbol without a name may be a function in a section of its own."""
    path = tmp_path / "k.cubin"
    path.write_bytes(module_with(functions, ("message",)))
    module = read_module(path)
    assert module.functions == frozenset(functions)
    assert module.begin_of == {"k": BEGIN}
    path.write_bytes(module_with(functions, ("message",), with_addends=False))  # before Hopper
    assert read_module(path) == module


def test_a_function_of_the_module_is_none_of_the_driver_whatever_its_name(tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(module_with(("__assertfail",), own={"__assertfail"}))
    assert read_module(path).functions == {""}


@pytest.mark.parametrize(("architecture", "name"), of_architectures(TRAPS))
def test_addresses_that_come_by_ways_that_are_easily_overlooked(architecture, name, trap_text):
    text, begin = trap_text[architecture], BEGINS[architecture]
    found = read_code(text, name, begin, TRAPS[name], ASSERTS | {"vprintf"})
    assert found.unknown
    assert "not in the module" not in found.unknown


@pytest.mark.parametrize(("architecture", "name"), of_architectures(HARMLESS_TRAPS))
def test_what_looks_like_such_ways_is_known(architecture, name, trap_text):
    pointers, stored = HARMLESS_TRAPS[name]
    text, begin = trap_text[architecture], BEGINS[architecture]
    assert read_code(text, name, begin, pointers, ASSERTS) == KernelCode(
        stored=frozenset(stored), reads_variables=name in {"scaled", "below"}
    )


def test_a_parameter_that_points_nowhere_known_is_no_pointer(text):
    """Such as one to memory that nobody saw allocated: what it leads to is not known."""
    assert read_code(text, "axpy", BEGIN, {0, 16}).unknown == COMPUTED.format("LDG")


def test_a_kernel_that_is_not_in_the_module(text):
    assert read_code(text, "other", BEGIN, ()).unknown == (
        "its code is not in the module that has other"
    )


def code_of(*lines):
    """Return what is found of a kernel of some instructions, with pointers at 0 and 8."""
    return read_code(code_text(*lines), "k", BEGIN, {0, 8})


def code_text(*lines):
    """Return a kernel of some instructions as nvdisasm prints it."""
    rows = [
        f"{line}" if line.endswith(":") else f"        /*{16 * i:04x}*/    {line} ;"
        for i, line in enumerate(lines)
    ]
    return "\n".join(['\t.section\t.text.k,"ax"', "k:", *rows])


@pytest.mark.parametrize(
    ("lines", "stored"),
    [
        ([f"MOV R2, {A}", "STG.E [R2.64+0x10], R0"], {0}),
        ([f"LDC.64 R2, {B}", "IADD3 R2, P0, R9, R2, RZ", "STG.E [R2.64], R0"], {8}),
        ([f"ULDC.64 UR4, {A}", "STG.E [R7.U32+UR4], R0"], {0}),
        (["SHF.L.U64.HI R7, R4, 0x2, R5", f"LDC.64 R8, {A}", "STG.E [R8.64], R0"], {0}),
        ([f"LDC.64 R8, {A}", "SHF.R.S64 R7, R4, 0x2, R5", "STG.E [R8.64], R0"], {0}),
        (
            [f"MOV R2, {A}", "UPLOP3.LUT UP0, UPT, UP0, UP1, UPT, 0x80, 0x0", "STG.E [R2.64], R0"],
            {0},
        ),
        ([f"MOV R2, {A}", f"@P0 MOV R2, {B}", "STG.E [R2.64], R0"], {0, 8}),
        ([f"MOV R2, {A}", f"@PT MOV R2, {B}", "STG.E [R2.64], R0"], {8}),
        (["IMAD.WIDE R2, R5, 0x4, R4", f"MOV R6, {A}", "ATOMG.E.ADD PT, R9, [R6.64], R8"], {0}),
        ([f"MOV R2, {A}", "RED.E.ADD [R2.64], R0", "LDG.E R3, [R2.64]"], {0}),
        ([f"MOV R2, {A}", "LDG.E R3, [R2.64]"], set()),
        ([f"MOV R2, {A}", f"MOV R4, {B}", "SEL R2, R2, R4, P0", "STG.E [R2.64], R0"], {0, 8}),
        ([f"LDCU.128 UR4, {A}", "STG.E [UR6.64], R0"], {8}),
        ([f"MOV R2, {A}", "DMMA.8x8x4 R28, R4, R8, R28", "STG.E [R2.64], R0"], {0}),
        # numbers beside the parameters, such as how large a block is
        ([f"IADD3 R2, R9, c[0x0][0x0], {A}", "STG.E [R2.64], R0"], {0}),
        ([f"MOV R2, {A}", "IMAD R4, R9, c[0x0][0x0], R2", "STG.E [R4.64], R0"], {0}),
        ([f"IADD3 R4, {A}, -{B}, RZ", f"IADD3 R2, R4, {A}, RZ", "STG.E [R2.64], R0"], {0}),
        ([f"MOV R2, {A}", "CCTL.E.PF2 [R2]", "CCTL.IVALL", "STG.E [R2.64], R0"], {0}),
        ([f"MOV R2, {A}", "BPT.TRAP 0x1", "STG.E [R2.64], R0"], {0}),  # it ends the process
        # as many registers as an instruction writes, and no more
        (
            [f"MOV R56, {A}", "HGMMA.64x64x16.F32 R24, gdesc[UR8].tnspB, R24", "RED [R56.64], R0"],
            {0},
        ),
        ([f"MOV R40, {A}", "HGMMA.64x64x16.F16 R24, R24, gdesc[UR8]", "STG.E [R40.64], R0"], {0}),
        ([f"MOV R16, {A}", "LDTM.16dp32bit_t0_t15.x8 R8, tmem[UR4]", "STG.E [R16.64], R0"], {0}),
        ([f"MOV R12, {A}", "LDTM.16dp256bit R8, tmem[UR4]", "STG.E [R12.64], R0"], {0}),
        ([f"MOV R9, {A}", "LDTM R8, tmem[UR4]", "STG.E [R9.64], R0"], {0}),
    ],
)  # fmt: skip
def test_an_address_is_followed_through_arithmetic(lines, stored):
    assert code_of(*lines, "EXIT") == KernelCode(stored=frozenset(stored))


@pytest.mark.parametrize(
    "lines",
    [
        ["STG.E [R2.64], R0"],  # a register that nobody has set
        [f"MOV R2, {A}", "LDG.E.64 R2, [R2.64]", "STG.E [R2.64], R0"],  # a loaded pointer
        [f"MOV R3, {A}", "LDG.E.128 R0, [R3.64]", "STG.E [R3.64], R9"],  # over four registers
        [f"MOV R2, {A}", "LOP3.LUT R2, R2, 0xff, RZ, 0xc0, !PT", "STG.E [R2.64], R0"],
        [f"MOV R2, {A}", "IADD3 R2, -R2, RZ, RZ", "STG.E [R2.64], R0"],
        [f"MOV R2, {A}", "SHFL.IDX PT, R2, R2, R4, 0x1f", "STG.E [R2.64], R0"],
        [f"@P0 MOV R2, {A}", "STG.E [R2.64], R0"],  # set in some threads only
        [f"MOV R2, {A}", "UBLKCP.S.G [UR4], [R2.64], UR6"],  # what it does nobody has written down
        [f"MOV R2, {A}", "BRX R4 -0x10"],
        [f"MOV R2, {A}", "BRA `(.L_elsewhere)"],
        ["MOV R2, c[0x3][0x10]", "LDG.E R0, [R2.64]"],  # a pointer among constants
        ["LDC.64 R2, c[0x4][0x8]", "LDG.E.64 R2, [R2.64]", "LDG.E R0, [R2.64]"],
        ["LDC.64 R2, c[0x4][0x8]", "RED.E.ADD [R2.64], R0"],
        [f"MOV R2, {A}", "CALL.ABS.NOINC `(vprintf)"],
        [f"MOV R2, {A}", "CALL.REL.NOINC R4"],
        [f"MOV R2, {A}", "RET.REL.NODEC R4 `(k)"],
        [f"MOV R2, {A}", "BRA P0, R4 `(k)"],
        [f"MOV R2, {A}", "LDG.E.ENL2.256 R8, R0, desc[UR4][R4.64]", "STG.E [R2.64], R0"],
        [f"MOV R3, {A}", "LDTM.16dp256bit R0, tmem[UR4]", "STG.E [R3.64], R0"],
        [f"MOV R15, {A}", "LDTM.x8 R8, tmem[UR4]", "STG.E [R15.64], R0"],
        [f"MOV R90, {A}", "LDTM.OTHER R8, tmem[UR4]", "STG.E [R90.64], R0"],
        [f"MOV R54, {A}", "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24", "STG.E [R54.64], R0"],
        [f"MOV R90, {A}", "HGMMA.SP R24, gdesc[UR8], R24", "STG.E [R90.64], R0"],
        [f"MOV R2, {A}", "BPT.PAUSE"],
        [f"MOV R14, {A}", "DMMA.16x8x16 R8, R8, R4, R16", "STG.E [R14.64], R0"],
        [f"MOV R2, {A}", "HADD2 R2.H0, R4, R5", "STG.E [R2.64], R0"],
        [f"MOV R2, {A}", "R2UR.OR UR4, R2", "STG.E [UR4.64], R0"],
        [f"MOV R2, {A}", f"IADD3 R2, R2, R6, -{B}", "STG.E [R2.64], R0"],
        [f"MOV R2, {A}", f"IMAD R2, R6, R4, {B}", f"IADD3 R2, -{A}, R2, R4", "STG.E [R2.64], R0"],
        [f"MOV R2, {A}", "CCTL.E.RML2 [R2]"],
        [f"MOV R2, {A}", "FMUL R4, R5, cx[UR4][0x10]"],
        [f"MOV R2, {A}", "LDC R4, c[UR4][0x10]"],
        ["UMOV UR4, c[0x0][0x208]", "UTMALDG.1D [UR8], [UR6], desc[UR4]"],
        ["UMOV UR8, c[0x0][0x198]", "UTMALDG.1D [UR8], [UR6]"],
        [f"MOV R2, {A}", "BSSY B0, `(.L_x_0)", "BSYNC B0", "NOP", ".L_x_0:", "NOP"],
        [f"MOV R2, {A}", "BSSY B0, `(.L_x_0)", "BSYNC B1", ".L_x_0:", "NOP"],
        [f"MOV R2, {A}", "WARPSYNC.COLLECTIVE R4, `(.L_x_0)", "ENDCOLLECTIVE", "NOP", ".L_x_0:"],
        [f"MOV R2, {A}", "{ nobody knows }"],
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_said(lines):
    assert code_of(*lines, "EXIT").unknown


@pytest.mark.parametrize(
    "line",
    [
        "FFMA R2, R3, R4, c[0x3][0x10]", "FADD R2, R3, -c[0x3][0x10]",
        "FADD R2, R3, |c[0x3][0x10]|", "ISETP.GT.AND P0, PT, R2, c[0x3][0x10], PT",
        "@P0 LDC R2, c[0x3][R4+0x10]",
        "FFMA RZ, R3, c[0x3][0x10], R4",
    ],
)  # fmt: skip
def test_constants_are_read_by_any_instruction(line):
    assert code_of(line, "EXIT").reads_variables


def test_threads_go_on_where_they_meet():
    lines = [
        f"MOV R2, {A}", "BSSY B0, `(.L_x_0)", "@P0 BRA `(.L_x_1)", f"MOV R2, {B}", ".L_x_1:",
        "BSYNC.RECONVERGENT B0", ".L_x_0:", "WARPSYNC.COLLECTIVE R9, `(.L_x_2)",
        "SHFL.BFLY PT, R4, R5, R6, R7", "ENDCOLLECTIVE", ".L_x_2:", "STG.E [R2.64], R0", "EXIT",
    ]  # fmt: skip
    assert code_of(*lines) == KernelCode(stored=frozenset({0, 8}))


def test_a_loop_is_followed_until_nothing_new_comes_up():
    """In its second round the second pointer is used, in its third what was loaded."""
    lines = [
        f"MOV R2, {A}", f"MOV R4, {B}",
        ".L_x_0:", "STG.E [R2.64], R0", "MOV R2, R4", "@P0 BRA `(.L_x_0)", "EXIT",
    ]  # fmt: skip
    assert code_of(*lines) == KernelCode(stored=frozenset({0, 8}))
    assert code_of(*lines[:5], "LDG.E R4, [R2.64]", *lines[5:]).unknown == COMPUTED.format("LDG")


def test_code_behind_a_sure_jump_is_reached_by_others_only():
    lines = [
        f"MOV R2, {A}", f"MOV R4, {B}", "BRA `(.L_x_1)",
        ".L_x_0:", "STG.E [R4.64], R0", "EXIT", ".L_x_1:", "STG.E [R2.64], R0",
    ]  # fmt: skip
    assert code_of(*lines, "@P0 BRA `(.L_x_0)", "EXIT") == KernelCode(stored=frozenset({0, 8}))
    never = code_of(*lines, "EXIT", ".L_x_2:", "NOP", "BRA `(.L_x_2)")
    assert never.unknown == "nobody knows how its code is reached"


@pytest.mark.parametrize("branch", ["BRA.U !UP0, `(.L_x_0)", "BRA.U UP1, `(.L_x_0)"])
def test_a_predicate_may_be_an_operand_of_a_branch(branch):
    """As in code for Blackwell: what stands behind runs where the branch is not taken."""
    lines = [f"MOV R2, {A}", f"MOV R4, {B}", ".L_x_0:", "STG.E [R2.64], R0", branch]
    assert code_of(*lines, "STG.E [R4.64], R0", "EXIT") == KernelCode(stored=frozenset({0, 8}))


def calling(*function, call="CALL.REL.NOINC `(f)", behind="MOV R4, 0x40"):
    """Return a kernel that calls a function with a pointer in R2, and then stores by R6."""
    before = [f"MOV R2, {A}", f"MOV R6, {B}", behind, call, "STG.E [R6.64], R0", "EXIT"]
    return code_of(*before, "f:", *function)


RETURN = "RET.REL.NODEC R4 `(k)"


@pytest.mark.parametrize(
    ("function", "stored"),
    [
        (["FADD R0, R0, R0", RETURN], {8}),
        (["STG.E [R2.64], R0", RETURN], {0, 8}),  # it writes what it is given a pointer to
        (["MOV R6, R2", RETURN], {0}),  # it returns another pointer
        (["@P0 MOV R6, R2", RETURN], {0, 8}),
        (["@P0 RET.REL.NODEC R4 `(k)", "STG.E [R2.64], R0", RETURN], {0, 8}),
        (["@P0 EXIT", RETURN], {8}),
    ],
)
def test_a_function_is_followed_into(function, stored):
    assert calling(*function) == KernelCode(stored=frozenset(stored))


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (["LDG.E.64 R6, [R2.64]", RETURN], {}),  # it returns a pointer that it has loaded
        (["LDC.64 R6, c[0x4][0x8]", RETURN], {}),
        (["STG.E [R0.64], R2", RETURN], {}),
        (["IADD3 R4, R4, 0x10, RZ", RETURN], {}),  # it returns to where nobody knows
        (["LDL R4, [R1]", RETURN], {}),
        ([RETURN], {"behind": "MOV R4, 0x50"}),
        ([RETURN], {"behind": "@P0 MOV R4, 0x40"}),
        (["RET.REL.NODEC R4 `(f)"], {}),
        ([RETURN], {"call": "CALL.REL.NOINC R2 `(f)"}),
        (["MOV R4, 0x90", "CALL.REL.NOINC `(f)", RETURN], {}),  # it calls itself
        ([RETURN], {"call": "CALL.REL.NOINC `(other)"}),
    ],
)
def test_a_function_may_do_what_cannot_be_followed(function, more):
    assert calling(*function, **more).unknown


def test_each_call_returns_to_its_own_caller():
    """What stands in R6 behind the second call is no pointer; behind the first it is one."""
    lines = [
        f"MOV R6, {A}", "MOV R4, 0x30", "CALL.REL.NOINC `(f)", "STG.E [R6.64], R0",
        "MOV R6, 0x1", "MOV R4, 0x70", "CALL.REL.NOINC `(f)", "EXIT",
        "f:", "FADD R0, R0, R0", RETURN,
    ]  # fmt: skip
    assert code_of(*lines) == KernelCode(stored=frozenset({0}))


def test_a_call_of_what_is_no_function_is_a_jump():
    """As ptxas leaves loops; where that is returned from, nobody knows where to."""
    loop = [".L_x_0:", "@P0 CALL.REL.NOINC `(.L_x_1)", f"MOV R2, {B}", "BRA `(.L_x_0)"]
    found = code_of(f"MOV R2, {A}", *loop, ".L_x_1:", "STG.E [R2.64], R0", "EXIT")
    assert found == KernelCode(stored=frozenset({0, 8}))
    lines = ["MOV R4, 0x20", "CALL.REL.NOINC `(.L_x_0)", "EXIT", ".L_x_0:", RETURN]
    assert code_of(*lines).unknown == "it returns to addresses that it computes"


def test_a_function_may_call_another():
    inner = ["MOV R8, R4", "MOV R4, 0xa0", "CALL.REL.NOINC `(g)", "MOV R4, R8", RETURN]
    found = calling(*inner, "g:", "STG.E [R2.64], R0", RETURN)
    assert found == KernelCode(stored=frozenset({0, 8}))


def test_two_kernels_of_one_name_do_what_either_does():
    one, other = KernelCode(stored=frozenset({0})), KernelCode("nobody knows", frozenset({8}))
    assert one.joined(other) == KernelCode("nobody knows", frozenset({0, 8}))
    assert one.joined(KernelCode(reads_variables=True)).reads_variables


def test_kernels_of_a_folder_of_modules_are_read_at_once(tmp_path):
    """Two modules have one of a name; the third has none that is wanted, and is not read."""
    lines = f"LDC.64 R2, {A}", f"LDC.64 R4, {B}", "STG.E [R2.64], R0", "STG.E [R4.64], R0"
    for number in (0, 2):
        module = tmp_path / f"module-{number}.cubin"
        module.write_bytes(module_with(()))
        text = code_text(*lines[:2], lines[2 + number // 2], "EXIT")
        module.with_suffix(".txt").write_text(text)
    other = module_with(()).replace(b".text.k", b".text.o").replace(b".nv.info.k", b".nv.info.o")
    (tmp_path / "module-1.cubin").write_bytes(other)
    nvdisasm = tmp_path / "nvdisasm"
    nvdisasm.write_text('#!/bin/sh\nfor last; do :; done\ncat "${last%cubin}txt"\n')
    nvdisasm.chmod(0o755)
    assert read_codes(tmp_path, {"k": {0, 8}, "l": {0}}, nvdisasm) == {
        "k": KernelCode(stored=frozenset({0, 8}))
    }


def compiled_here(name, architecture, folder):
    """Return a module of this folder's data, and its code as text."""
    if shutil.which("nvcc") is None or find_nvdisasm() is None:
        pytest.skip("this needs: nvcc, nvdisasm")
    made = folder / "kernels.cubin"
    command = ["nvcc", "-arch", f"sm_{architecture}", "-cubin", "-o", made, DATA / name]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"this nvcc does not know sm_{architecture}")
    return read_module(made), disassembled(made, find_nvdisasm())


def test_a_module_is_read_as_it_is_compiled_here(tmp_path):
    module, text = compiled_here("kernels.cu", 90, tmp_path)
    assert module.begin_of.keys() == (KNOWN.keys() | UNKNOWN.keys()) - OF_TRITON
    for name, begin in module.begin_of.items():
        pointers, stored = KNOWN.get(name, ({0, 8}, None))
        found = read_code(text, name, begin, pointers)
        assert bool(found.unknown) == (stored is None)
        assert stored is None or found.stored == stored


@pytest.mark.parametrize("architecture", BEGINS)
def test_what_is_easily_overlooked_is_not_as_it_is_compiled_here(architecture, tmp_path):
    module, text = compiled_here("traps.cu", architecture, tmp_path)
    assert {"__assertfail", "vprintf"} <= module.functions
    for since, name in of_architectures(TRAPS | HARMLESS_TRAPS):
        if since == architecture:
            pointers = TRAPS.get(name) or HARMLESS_TRAPS[name][0]
            functions = module.functions if name in TRAPS else ASSERTS
            found = read_code(text, name, module.begin_of[name], pointers, functions)
            assert bool(found.unknown) == (name in TRAPS)
