"""Buffers in words: sentences, tables, advice, and commands that can be pasted."""

import json
import shlex
from types import SimpleNamespace

import pytest

from depgraph.analysis.buffers import Buffer
from depgraph.analysis.next_steps import Invocation, Step
from depgraph.analysis.renaming import BufferSet, Renaming, renaming_steps
from depgraph.reports.tables.buffer_table import (
    buffer_tables,
    is_workspace,
    renaming_advice,
    renaming_sentence,
)
from depgraph.reports.tables.render import render
from depgraph.reports.tables.table import Report


def a_buffer(number, *, writers=(0, 1), readers=(2,), pairs=1):
    start = 0x7F00_0000_0000 + 4096 * number
    return Buffer(number, start, start + 2048, writers, readers, 2048, pairs, 3, 2 * pairs)


def a_renaming(*, sets=(((0, 1), 4.0),), buffers=None):
    buffers = buffers or [a_buffer(0), a_buffer(1, writers=(1, 3))]
    found = [
        BufferSet(
            numbers,
            bound,
            critical_path=10.0,
            more_bytes=2048 * len(numbers),
            what_ifs=tuple(f"buffer={n} drop=war" for n in numbers),
        )
        for numbers, bound in sets
    ]
    return Renaming(tuple(buffers), (1.5,) * len(buffers), tuple(found), 1.0, 4.0, 8)


def test_a_set_is_said_with_what_it_brings_and_costs():
    assert renaming_sentence(a_renaming()) == (
        "buffers 0, 1 (4.0 KiB, written by 3 kernels): upper bound 1.00x -> 4.00x when renamed, "
        "for 4.0 KiB more memory at most"
    )


def test_nothing_to_rename():
    assert "does not raise the upper bound on 8 SMs" in renaming_sentence(a_renaming(sets=()))
    unused = a_renaming(sets=(), buffers=[a_buffer(0, pairs=0)])
    assert renaming_sentence(unused) == "no dependence but RAW rests on a buffer"
    graph = SimpleNamespace(copies={}, frees=None)
    assert not buffer_tables(unused, [], graph)[1].rows


def test_a_step_for_each_set():
    found = a_renaming(sets=(((0,), 2.0), ((0, 1), 4.0)))
    first, second = renaming_steps(found, Invocation("my store", (("--gpu", "A100 80GB"),)))
    assert first.text == "see the program with buffer 0 renamed:"
    assert shlex.split(second.command) == [
        "depgraph", "bound", "my store", "--sms", "8", "--what-if", "buffer=0 drop=war",
        "--what-if", "buffer=1 drop=war", "--gpu", "A100 80GB",
    ]  # fmt: skip


def test_what_is_to_be_shown_stands_behind_the_store():
    assert (
        Invocation("s").command("show", "buffers", "--sms", "8")
        == "depgraph show s buffers --sms 8"
    )


def test_options_that_a_command_does_not_take_are_left_out():
    asked = Invocation(
        "s", (("--timing", "t.json"), ("--launch", "gpu"), ("--ignore-waits-inside",))
    )
    assert asked.command("bound").endswith("--timing t.json --launch gpu --ignore-waits-inside")
    assert asked.command("show", "path") == (
        "depgraph show s path --timing t.json --ignore-waits-inside"
    )
    assert asked.command("show", "pairs") == "depgraph show s pairs"
    assert asked.has("--launch")
    assert not asked.has("--gpu")


@pytest.mark.parametrize(
    ("writers", "readers", "expected"),
    [
        (["gemm", "sm80_xmma_GEMM"], ["splitKreduce_kernel"], True),
        (["gemm_splitK"], ["gemm_splitK"], True),
        (["gemm"], ["softmax"], False),
        (["gemm", "relu"], ["splitKreduce_kernel"], False),
        (["gemm"], [], False),
    ],
)
def test_what_looks_like_a_workspace(writers, readers, expected):
    names = dict(enumerate([*writers, *readers]))
    numbers = {name: at for at, name in names.items()}
    buffer = a_buffer(
        0, writers=tuple(numbers[w] for w in writers), readers=tuple(numbers[r] for r in readers)
    )
    assert is_workspace(buffer, names) is expected


def test_advice_depends_on_what_the_buffers_are():
    found = a_renaming(
        buffers=[a_buffer(0, writers=(0, 1), readers=(4,)), a_buffer(1, writers=(1, 3))]
    )
    names = {0: "gemm", 1: "gemm", 2: "relu", 3: "gemm", 4: "splitKreduce"}
    (_, in_pytorch), (_, in_cuda) = renaming_advice(found, names)
    assert any("CUBLAS_WORKSPACE_CONFIG=:0:0" in line for line in in_pytorch)
    assert any("MemPool" in line for line in in_pytorch)
    assert any("cublasSetWorkspace" in line for line in in_cuda)
    (_, in_pytorch), _ = renaming_advice(found, {})
    assert not any("WORKSPACE" in line for line in in_pytorch)
    assert renaming_advice(a_renaming(sets=()), {}) == []


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_next_steps_can_be_pasted(form):
    command = "depgraph bound " + "x" * 200 + " --what-if 'a b'"
    report = Report("r", {}, steps=[Step("do this:", command), Step("and read that")])
    text = render(report, form)
    if form == "json":
        assert json.loads(text)["next_steps"] == [
            {"text": "do this:", "command": command},
            {"text": "and read that", "command": ""},
        ]
    elif form == "csv":
        assert text == ""
    else:
        assert command in [line.strip() for line in text.splitlines()]
        assert "- and read that" in text
