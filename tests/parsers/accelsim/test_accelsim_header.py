"""Headers of Accel-Sim kernel files: versions, rubbish in numbers, and the layout of lines."""

import pytest
from hypothesis import given
from kernel_texts import (
    Form,
    Instruction,
    forms,
    header_text,
    instruction_line,
    kernel_text,
)

from depgraph.parsers.accelsim.header import parse_header, with_layout

FULL = 0xFFFFFFFF


def test_header():
    text = header_text(Form("5"), name="_Z9vectorAddPKfS0_Pfi").encode()
    launch = parse_header(text, context=0x2356C30).launch
    assert launch.name == "vectorAdd(float const*, float const*, float*, int)"
    assert launch.mangled_name == "_Z9vectorAddPKfS0_Pfi"
    assert (launch.grid, launch.block) == ((4, 3, 2), (96, 1, 1))
    assert (launch.registers, launch.shared_bytes, launch.architecture) == (40, 256, 80)
    assert (launch.trace_id, launch.stream, launch.context) == (7, 0, 0x2356C30)


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("nregs", "-1", "registers", None),
        ("nregs", "0", "registers", None),
        ("nregs", "32740", "registers", None),
        ("nregs", "255", "registers", 255),
        ("shmem", "-693114968", "shared_bytes", None),
        ("shmem", "283873920", "shared_bytes", None),
        ("shmem", "0", "shared_bytes", 0),
        ("shmem", "233472", "shared_bytes", 233472),
        ("binary version", "-1104674816", "architecture", None),
        ("binary version", "2960", "architecture", None),
        ("binary version", "90", "architecture", 90),
        ("cuda stream id", "-1380908160", "stream", -1380908160),
        ("cuda stream id", "18446744073709551615", "stream", -1),
        ("kernel name", "a = b", "mangled_name", "a = b"),
        ("kernel name", "main_kernel", "name", "main_kernel"),
    ],
)
def test_numbers_of_the_header_that_are_rubbish(key, value, field, expected):
    lines = header_text(Form("5")).split("\n")
    text = "\n".join(f"-{key} = {value}" if x.startswith(f"-{key} = ") else x for x in lines)
    assert getattr(parse_header(text.encode()).launch, field) == expected


@pytest.mark.parametrize(
    ("version", "number"), [(None, 0), ("1.2", 1), ("3", 3), ("4", 4), ("5", 5), ("6", 6)]
)
def test_versions(version, number):
    assert parse_header(header_text(Form(version)).encode()).version == number


@given(forms())
def test_the_layout_is_told_by_the_content(form):
    line = Instruction("FFMA", FULL, [], destinations=["R1"], sources=["R2", "R3"])
    text = kernel_text({(0, 0, 0): [[line]]}, form).encode()
    layout = with_layout(text, parse_header(text))
    assert layout.is_grouped == (not form.is_raw)
    columns = instruction_line(line, (0, 0, 0), 0, form, with_block=form.is_raw or form.has_prefix)
    assert layout.columns == columns.split().index(form.counter)


def test_an_unknown_key_of_the_header_does_no_harm():
    text = header_text(Form("5"), extra="\n-cluster dim = (1,1,1)\n-rubbish").encode()
    assert parse_header(text).launch.grid == (4, 3, 2)
