"""What must wait for what, whatever the tensors hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_captures import captured, kernel, memory, operator, view, workspace

from depgraph.apply import may_sets
from depgraph.apply.captured import COPY, EMPTY, LIBRARY, MEMSET, TARGET, Node, Pointer
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.may_sets import (
    DATA,
    REUSE,
    VARIABLES,
    WORKSPACE,
    conflicts,
    reached_by_others,
    units_of,
    written_outside,
)
from depgraph.apply.operators import rule_of

X, Y, Z, A, B = (memory(i) for i in range(5))


def waits(*steps, codes=None):
    """Return which earlier units each waits for, and all reasons."""
    found = conflicts(units_of(captured(*steps), codes or {}))
    masks = [0] * len(found)
    for i, each in enumerate(found):
        for mask in each.values():
            masks[i] |= mask
    units = [[j for j in range(i) if masks[i] >> j & 1] for i in range(len(found))]
    return units, {reason for each in found for reason in each}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (([X], [Y]), ([Y], [Z]), [0]),  # what one writes the other reads
        (([X], [Y]), ([Z], [X]), [0]),
        (([X], [Y]), ([Z], [Y]), [0]),
        (([X], [Y]), ([X], [Z]), []),  # both read it
    ],
)
def test_one_waits_for_the_other_where_one_of_them_writes(first, second, expected):
    units, reasons = waits(operator("relu", *first), operator("relu", *second))
    assert units == [[], expected]
    assert reasons == ({DATA} if expected else set())


ROWS = [view(A, 1024 * i, (256,)) for i in range(4)]
COLUMNS = [view(A, 4 * i, (32, 8), (128, 4)) for i in (0, 8, 9, 7)]


@pytest.mark.parametrize(
    ("one", "other", "do_meet"),
    [
        (ROWS[0], ROWS[1], False),
        (ROWS[0], view(A, 1020, (2,)), True),
        (COLUMNS[0], COLUMNS[1], False),  # side by side in every row
        (COLUMNS[0], COLUMNS[3], True),
        (COLUMNS[1], COLUMNS[2], True),
        (view(A, 0, (4, 0)), A, False),  # nothing in it
        (view(A, 0, (64, 64), (0, 4)), view(A, 252, (1,)), True),  # each row the same bytes
        (view(A, 0, (4, 4), (4, 16)), view(A, 16, (4,), (4,)), True),
    ],
)
def test_views_of_known_operators_meet_byte_by_byte(one, other, do_meet):
    units, _ = waits(operator("relu", [X], [one]), operator("relu", [other], [Y]))
    assert units[1] == ([0] if do_meet else [])


@pytest.mark.parametrize("name", ["unique_dim", "no_such_operator", "mine::mix"])
def test_of_other_operators_the_whole_storages_count_and_may_be_written(name):
    """Also where its schema says that it only reads, and for two of them that share an input."""
    first, codes = operator(name, [ROWS[0]], [Y]), {"k": KernelCode()}
    units, reasons = waits(first, operator("relu", [ROWS[1]], [Z]), codes=codes)
    assert units[1] == [0]
    name = name if ":" in name else f"aten::{name}"
    assert reasons == {f"{name}: not in the table of operators"}
    assert waits(operator("relu", [X], [A]), first, codes=codes)[0][1] == [0]


def test_a_known_operator_of_tensors_that_are_not_strided_is_not_known():
    sparse = operator("mm", [X], [Y], others=(A,))
    units, reasons = waits(sparse, operator("relu", [A], [Z]))
    assert units[1] == [0]
    assert reasons == {"aten::mm: not in the table of operators"}


def test_statistics_that_no_schema_names_are_written():
    assert {"running_mean", "running_var"} <= set(rule_of("aten::native_batch_norm").also_writes)


def test_what_kernels_of_other_operators_have_pointers_to_counts_too():
    kernels = [kernel("k", X), kernel("l", Y, A)]
    for name in ("aten::no_such_operator", "mine::mix"):
        steps = (operator(name, [X], [Y]), kernels), operator("relu", [A], [Z])
        units, _ = waits(*steps, codes=dict.fromkeys("kl", KernelCode()))
        assert units[1] == [0]


@pytest.mark.parametrize("codes", [{}, {"k": KernelCode("it uses variables of its module")}])
def test_an_operator_of_ones_own_keeps_its_place_unless_its_code_says_what_it_reaches(codes):
    """Two of them may share a counter or a table of pointers, and not a single operand."""
    mix = [operator("mine::mix", [x], [y]) for x, y in ((X, Y), (Z, A))]
    units, (reason,) = waits(*mix, operator("relu", [memory(8)], [B]), codes=codes)
    assert units == [[], [0], [1]]
    assert reason.startswith("k, a kernel of mine::mix: it")
    known = captured(*mix, before=10)
    assert written_outside(known, units_of(known, codes)) == [X, Y, Z, A]
    assert waits(*mix, codes={"k": KernelCode()})[0] == [[], []]


def test_temporaries_keep_their_memory_until_the_operator_has_ended():
    again = memory(7, start=B.start)  # the same memory, for another tensor
    mean = (operator("mean", [X], [Y], made=[Y, B]), [kernel()])
    units, reasons = waits(mean, operator("relu", [Z], [again]))
    assert units[1] == [0]
    assert reasons == {REUSE}


def test_a_workspace_keeps_products_apart():
    """It is the library's, and nobody's operand: their kernels have pointers to it."""
    products = [
        (operator("mm", [X], [each]), [kernel("gemm", X, workspace(9), each)]) for each in (Y, Z)
    ]
    assert waits(*products) == ([[], [0]], {WORKSPACE})
    apart = (operator("mm", [X], [Z]), [kernel("gemm", X, workspace(10), Z)])
    assert waits(products[0], apart) == ([[], []], set())


def test_of_many_that_use_one_workspace_each_waits_for_all_before():
    products = [
        (operator("mm", [X], [each]), [kernel("gemm", X, workspace(1000), each)])
        for each in map(memory, range(10, 90))
    ]
    units, reasons = waits(*products)
    assert units == [list(range(n)) for n in range(80)]
    assert reasons == {WORKSPACE}


def test_of_too_many_columns_some_wait_that_need_not(monkeypatch):
    columns = [view(A, 4 * i, (32,), (128,)) for i in range(32)]
    steps = [operator("relu", [X], [each]) for each in columns]
    assert waits(*steps)[0] == [[] for _ in columns]
    monkeypatch.setattr(may_sets, "_MOST_PAIRS", 10)
    assert waits(*steps)[0] == [[]] * 5 + [list(range(n)) for n in range(5, 32)]


def test_kernels_of_one_operator_stay_one_after_another():
    units = units_of(captured((operator("mean", [X], [Y]), [kernel(), kernel()])), {})
    assert [(unit.first, unit.end) for unit in units] == [(0, 2)]


CODES = {"reads": KernelCode(), "adds": KernelCode(stored=frozenset({8}))}


def test_what_machine_code_writes_through_decides_for_kernels_of_no_operator():
    """Two branches may read the same tensor; without the code they may not."""
    one, other = kernel("adds", X, Y), kernel("adds", X, Z)
    assert waits(one, other, codes=CODES)[0] == [[], []]
    assert waits(one, kernel("adds", Y, Z), codes=CODES)[0] == [[], [0]]
    units, reasons = waits(one, other)
    assert units == [[], [0]]
    assert reasons == {"adds, a kernel of no operator: its machine code is not known"}


@pytest.mark.parametrize(
    "strange",
    [
        Node("host function"), Node("child graph"), Node(COPY, to_host=True), kernel("loads"),
        kernel("not read"),
    ],
)  # fmt: skip
def test_what_nobody_knows_keeps_its_place(strange):
    codes = {**CODES, "loads": KernelCode("it loads addresses", frozenset())}
    one, other, third = (operator("relu", [X], [each]) for each in (Y, Z, A))
    assert waits(one, other, strange, third, codes=codes)[0] == [[], [], [0, 1], [2]]
    # Also as a node of an operator that is known.
    if strange.kind != "kernel":
        known = (operator("relu", [X], [B]), [strange])
        assert waits(one, other, known, third)[0] == [[], [], [0, 1], [2]]


def test_memsets_and_copies_of_no_operator_write_their_target_only():
    pointers = (Pointer(0, X), Pointer(TARGET, Y))
    copies = [Node(COPY, pointers=pointers), Node(COPY, pointers=(Pointer(0, X), Pointer(8, Z)))]
    assert waits(*copies)[0] == [[], []]
    assert waits(copies[0], Node(MEMSET, pointers=(Pointer(TARGET, Y),)))[0] == [[], [0]]
    assert waits(copies[0], Node(MEMSET, pointers=(Pointer(TARGET, X),)))[0] == [[], [0]]


def test_a_copy_to_memory_that_nobody_knows_keeps_its_place():
    """Such as to a variable of a module of which the driver does not tell where it lies."""
    for strange in (Node(COPY, pointers=(Pointer(0, X),)), Node(MEMSET)):
        steps = operator("relu", [X], [Y]), strange, operator("relu", [Z], [A])
        assert waits(*steps)[0] == [[], [0], [1]]


def test_who_reads_variables_of_its_module_waits_for_who_has_pointers_to_foreign_memory():
    """A table that lies in a module is changed by nobody, or by who knows where it lies."""
    foreign = memory(-2, LIBRARY, start=1 << 40)
    codes = {**CODES, "turns": KernelCode(stored=frozenset({8}), reads_variables=True)}
    table = Node(COPY, pointers=(Pointer(0, X), Pointer(TARGET, foreign)))
    turned = kernel("turns", X, Y), kernel("turns", X, Z)
    assert waits(*turned, codes=codes)[0] == [[], []]
    units, reasons = waits(turned[0], table, turned[1], codes=codes)
    assert units == [[], [0], [1]]
    assert reasons == {VARIABLES, "a copy of no operator"}
    mine = [(operator("mine::turn", [X], [each]), [kernel("turns", X, each)]) for each in (Y, Z)]
    assert waits(mine[0], table, mine[1], codes=codes)[0] == [[], [0], [0, 1]]
    product = (operator("mm", [X], [A]), [kernel("gemm", foreign)])  # a workspace of cuBLAS
    assert waits(turned[0], product, turned[1], codes=codes)[0] == [[], [], []]


def test_empty_nodes_wait_for_nothing():
    assert waits(operator("relu", [X], [Y]), Node(EMPTY))[0] == [[], []]


def test_what_is_written_of_the_memory_that_was_there_before():
    steps = [
        operator("relu", [X], [Y]), kernel("adds", Y, Z), operator("mine::mix", [A]),
        (operator("mm", [Y], [memory(20)]), [kernel("gemm", memory(6, LIBRARY))]),
    ]  # fmt: skip
    found = captured(*steps, before=10)
    outside = written_outside(found, units_of(found, CODES))
    assert outside == [Y, Z, A]
    assert reached_by_others(found, units_of(found, CODES)) == [Y, Z, A]


def test_memory_that_pytorch_did_not_allocate_counts_where_no_operator_runs():
    """A kernel may add to an array of another library, of which nobody could keep a copy."""
    array = memory(-2, LIBRARY, start=1 << 40)
    found = captured(kernel("adds", X, array), before=10)
    assert reached_by_others(found, units_of(found, CODES)) == [X, array]
    product = captured((operator("mm", [X], [Y]), [kernel("gemm", array)]), before=10)
    assert reached_by_others(product, units_of(product, {})) == []


def test_what_a_barrier_has_pointers_to_may_be_written():
    found = captured(kernel("loads", X), before=10)
    units = units_of(found, {"loads": KernelCode("it loads addresses")})
    assert written_outside(found, units) == [X]


views = st.builds(
    lambda first, shape, strides: view(
        A, 4 * first, shape, tuple(4 * s for s in strides[: len(shape)])
    ),
    st.integers(0, 12),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.tuples(*[st.integers(0, 9)] * 3),
)


def bytes_of(each):
    """Return the bytes of a view one by one."""
    places = itertools.product(*(range(n) for n in each.shape))
    starts = [each.start + sum(map(np.multiply, at, each.strides)) for at in places]
    return {int(s) + i for s in starts for i in range(each.item)}


@given(views, views, st.booleans())
def test_views_meet_if_a_byte_is_in_both(one, other, writes):
    second = ([other], [Z]) if not writes else ([Z], [other])
    units, _ = waits(operator("relu", [X], [one]), operator("relu", *second))
    assert bool(units[1]) == bool(bytes_of(one) & bytes_of(other))
