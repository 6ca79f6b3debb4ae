"""What a SASS memory opcode does, and how many bytes a lane of it touches."""

import pytest

from depgraph.parsers.scanning.scanning_jit import ASYNC_COPY
from depgraph.parsers.scanning.tables import Effect, Space, decode_opcode, global_meaning

READ, WRITE, UPDATE, NONE = Effect.READ, Effect.WRITE, Effect.UPDATE, Effect.NONE
GLOBAL, GENERIC, SHARED = Space.GLOBAL, Space.GENERIC, Space.SHARED


@pytest.mark.parametrize(
    ("text", "space", "effect"),
    [
        ("LDG.E", GLOBAL, READ),
        ("STG.E", GLOBAL, WRITE),
        ("LD.E", GENERIC, READ),
        ("ST.E", GENERIC, WRITE),
        ("ATOMG.E.ADD.STRONG.GPU", GLOBAL, UPDATE),
        ("ATOM.E.CAS.64", GENERIC, UPDATE),
        ("RED.E.ADD", GLOBAL, UPDATE),
        ("REDG.E.ADD.F32x2", GLOBAL, UPDATE),
        ("LDGMC.E.ADD.F32", GLOBAL, UPDATE),
        ("USTGR.E", GLOBAL, WRITE),
        ("UREDGR.E.ADD", GLOBAL, UPDATE),
        ("LDGSTS.E.LTC128B", GLOBAL, READ),
        ("UBLKCP.S.G", GLOBAL, READ),
        ("UBLKCP.G.S", GLOBAL, WRITE),
        ("UBLKCP.T.G.S", GLOBAL, WRITE),
        ("UBLKRED.G.S.ADD", GLOBAL, UPDATE),
        ("UTMALDG.2D", GLOBAL, READ),
        ("UTMASTG.4D", GLOBAL, WRITE),
        ("UTMAREDG.4D.ADD", GLOBAL, UPDATE),
        ("UTMAPF.L2.2D", Space.NONE, NONE),
        ("UBLKPF.L2", Space.NONE, NONE),
        ("UTMACCTL.PF", Space.NONE, NONE),
        ("UTMACMDFLUSH", Space.NONE, NONE),
        ("LDS.U.128", SHARED, READ),
        ("STS.64", SHARED, WRITE),
        ("ATOMS.ADD", SHARED, UPDATE),
        ("LDSM.16.MT88.4", SHARED, READ),
        ("STSM.16.M88.4", SHARED, WRITE),
        ("STAS.64", SHARED, WRITE),
        ("REDAS.ADD", SHARED, UPDATE),
        ("SYNCS.ARRIVE.TRANS64.A1T0", SHARED, UPDATE),
        ("LDL", Space.LOCAL, READ),
        ("STL.64", Space.LOCAL, WRITE),
        ("LDC.64", Space.CONSTANT, READ),
        ("ULDC", Space.CONSTANT, READ),
        ("LDCU.128", Space.CONSTANT, READ),
        ("TEX.B.LL", Space.TEXTURE, READ),
        ("TLD4.R", Space.TEXTURE, READ),
        ("TXQ", Space.NONE, NONE),
        ("SULD.D.BA.2D", Space.SURFACE, READ),
        ("SUST.D.BA.2D", Space.SURFACE, WRITE),
        ("SUATOM.D.2D.ADD", Space.SURFACE, UPDATE),
        ("SURED.D.2D.ADD", Space.SURFACE, UPDATE),
        ("LDTM.x64", Space.TENSOR, READ),
        ("STTM.x32", Space.TENSOR, WRITE),
        ("CCTL.IVALL", Space.NONE, NONE),
        ("MEMBAR.SC.GPU", Space.NONE, NONE),
        ("LDGDEPBAR", Space.NONE, NONE),
        ("ARRIVES.LDGSTSBAR.64", Space.NONE, NONE),
        ("REDUX.SUM", Space.NONE, NONE),
    ],
)
def test_space_and_effect(text, space, effect):
    opcode = decode_opcode(text)
    assert opcode.known
    assert (opcode.space, opcode.effect) == (space, effect)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("LDG.E", 4),
        ("LDG.E.SYS", 4),
        ("LDG.E.CG", 4),
        ("LDG.E.U8", 1),
        ("LDG.E.S8", 1),
        ("LDG.E.U16", 2),
        ("LDG.E.S16", 2),
        ("LDG.E.64", 8),
        ("LDG.E.128", 16),
        ("LDG.E.128.CONSTANT", 16),
        ("LDG.E.STRONG.SYS", 4),
        ("LDG.E.128.STRONG.GPU", 16),
        ("LDG.E.LTC128B", 4),
        ("LDG.E.LTC256B.64", 8),
        ("LDG.E.ENL2.256", 32),
        ("STG.E.64.SYS", 8),
        ("STG.E.EF.U8", 1),
        ("ST.E", 4),
        ("ATOMG.E.ADD.STRONG.GPU", 4),
        ("ATOMG.E.ADD.64.STRONG.GPU", 8),
        ("ATOMG.E.ADD.F64.RN.STRONG.GPU", 8),
        ("ATOMG.E.MIN.S64.STRONG.GPU", 8),
        ("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU", 4),
        ("ATOMG.E.ADD.F16x2.RN.STRONG.GPU", 4),
        ("ATOMG.E.ADD.BF16x2.RN", 4),
        ("RED.E.ADD.BF16_V2.RN", 4),
        ("ATOMG.E.EXCH.128", 16),
        ("REDG.E.ADD.F32x2.RN", 8),
        ("REDG.E.ADD.F32x4.RN", 16),
        ("REDG.E.ADD.F32.V4", 16),
        ("REDG.E.ADD.F16x8", 16),
        ("LDGSTS.E.LTC128B", 4),
        ("LDGSTS.E.64", 8),
        ("LDGSTS.E.BYPASS.LTC128B.128", 16),
        ("LDGSTS.E.BYPASS.128.ZFILL", 16),
        ("LDS.U.128", 16),
        ("LDSM.16.MT88.4", 16),
        ("STL.64", 8),
    ],
)
def test_width(text, width):
    assert decode_opcode(text).width == width


def test_an_unknown_mnemonic():
    opcode = decode_opcode("LDQ.E.64")
    assert not opcode.known
    assert (opcode.space, opcode.effect, opcode.width) == (Space.NONE, NONE, 8)


def test_a_mnemonic_is_compared_whole():
    assert not decode_opcode("LDGX.E").known
    assert not decode_opcode("").known


@pytest.mark.parametrize("text", ["UTMALDG.2D", "UBLKCP.S.G", "TEX", "SULD.D.BA.2D"])
def test_what_a_trace_may_not_show(text):
    assert decode_opcode(text).is_untraced_global


@pytest.mark.parametrize("text", ["LDG.E", "LDS", "UTMAPF.L2.2D", "FFMA"])
def test_what_a_trace_shows(text):
    assert not decode_opcode(text).is_untraced_global


def test_the_asynchronous_copy_is_printed_twice():
    assert global_meaning(decode_opcode("LDGSTS.E")) == ASYNC_COPY
    assert global_meaning(decode_opcode("LDGDEPBAR")) != ASYNC_COPY
