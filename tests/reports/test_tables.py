"""Tables for a terminal, Markdown, JSON and CSV; report texts are compared with files.

`UPDATE_GOLDEN=1 pytest tests/reports/test_tables.py` writes the files anew; look at the difference.
"""

import json
import math
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.compare_stores import compare
from depgraph.analysis.next_steps import Step
from depgraph.analysis.study import study
from depgraph.reports.page.study_report import study_report
from depgraph.reports.tables.diff_tables import diff_report
from depgraph.reports.tables.render import SCREEN, WIDTH, render
from depgraph.reports.tables.table import Column, Report, Table, shorten
from depgraph.system.text import show_bytes, show_number

GOLDEN = Path(__file__).parent / "golden_text"
NAMES = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4",
    "softmax|with`odd*marks_<b>",
]


def a_study():
    sizes = [6, 12, 3]
    graph = graph_of(
        sizes, [*chain_edges(sizes), ((0, 0), (2, 0), "WAR")], cost=[10.0 + i for i in range(21)]
    )
    scenario = scenario_of(
        graph,
        occupancy=2,
        kernels=kernels_of(sizes, NAMES, untraced={1: "may read through a texture"}),
        sms=2,
        metadata={"blind_spots": ["copies are not traced"], "warnings": {"lines were cut": 3}},
    )
    return study(scenario)


def a_diff():
    def side(sizes, edges):
        graph = graph_of(sizes, edges)
        kernels = kernels_of(sizes, NAMES[: len(sizes)])
        return scenario_of(graph, kernels=kernels, sms=4)

    return compare(side([6, 12], chain_edges([6, 12])), side([6, 9, 3], [((0, 0), (1, 8))]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report.txt", lambda: render(study_report(a_study()), "table")),
        ("report.md", lambda: render(study_report(a_study()).cut(2), "markdown")),
        ("compare.txt", lambda: render(diff_report(a_diff()), "table")),
    ],
)
def test_report_texts_are_as_they_were(name, text):
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text())
    assert text() == file.read_text()


def a_table(columns, rows, **options):
    return Report("r", {}, tables=[Table("t", "T", columns, rows, **options)])


TEXT = Column("name", "name", is_text=True)


@given(
    st.lists(
        st.tuples(
            *[st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=200)] * 3,
            *[st.integers(0, 10**12)] * 7,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_every_line_fits_the_width(rows):
    columns = [Column(f"t{i}", f"text {i}", is_text=True) for i in range(3)] + [
        Column(f"n{i}", f"number {i}", "instructions", show_number) for i in range(7)
    ]
    text = render(a_table(columns, rows), "table")
    assert max(map(len, text.splitlines())) <= WIDTH


@given(
    st.integers(1, 6), st.integers(0, 5), st.lists(st.integers(0, 2), max_size=5),
    st.integers(0, 30),
)  # fmt: skip
def test_the_first_screen_has_no_more_lines_than_a_screen(sentences, vital, steps, rows):
    table = Table("t", "Table", [Column("n", "n")], [[n] for n in range(rows)]).at_first(rows)
    report = Report(
        "it",
        {},
        headline=["word " * 30] * sentences,
        vital=["word " * 20] * vital,
        steps=[Step("word " * 20, "depgraph it" * bool(n)) for n in steps],
        tables=[table],
        notes=["note"],
    )
    assert render(report, "table", details=False, width=80).count("\n") <= SCREEN


def test_columns_without_room_follow_below_led_by_the_first():
    columns = [Column("k", "kernel"), *[Column(f"n{i}", f"a long head {i}") for i in range(9)]]
    text = render(a_table(columns, [(7, *range(9))]), "table")
    assert max(map(len, text.splitlines())) <= WIDTH
    heads = [line for line in text.splitlines() if "kernel" in line]
    assert len(heads) == 2
    assert "a long head 8" in heads[1]


def test_a_column_that_wraps_and_has_nothing_in_it_takes_little_room():
    columns = [
        Column("name", "name", is_text=True),
        Column("said", "said", is_text=True, wraps=True),
    ]
    table = Table("t", "Names", columns, [["n" * 2 * WIDTH, ""]])
    text = render(Report("bound", {}, tables=[table]), "table")
    assert max(map(len, text.splitlines())) <= WIDTH


def test_numbers_stand_to_the_right_and_names_to_the_left():
    columns = [TEXT, Column("n", "n", "us", show_number)]
    text = render(a_table(columns, [("a", 1), ("long name", 12345)]), "table")
    assert text.splitlines()[1:] == [
        "  name           n",
        "              (us)",
        "  a              1",
        "  long name  12345",
    ]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abc", 3, "abc"), ("abcdefgh", 5, "ab…gh"), ("abcdefgh", 4, "ab…h"), ("ab", 1, "…")],
)
def test_names_are_cut_in_the_middle(text, width, expected):
    assert shorten(text, width) == expected


def test_without_colour_there_is_no_escape_and_with_it_only_heads_differ():
    report = a_table([TEXT], [("\x1b[31mred\x1b[0m",)])
    bare = render(report, "table")
    assert "\x1b" not in bare
    coloured = render(report, "table", color=True)
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "") == bare


def test_markdown_survives_bars_and_markup_in_names():
    text = render(a_table([TEXT], [("a|b<c>_d_*e*`f`\\",), ("[l](http://x)",)]), "markdown")
    assert "| a\\|b&lt;c>\\_d\\_\\*e\\*'f'\\\\ |" in text
    assert "| \\[l\\](http://x) |" in text


def test_json_holds_numbers_and_infinity_as_a_word():
    report = a_table([Column("n", "n", show=show_number)], [(math.inf,), (1.5,)])
    assert json.loads(render(report, "json"))["t"] == [{"n": "inf"}, {"n": 1.5}]


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_names_cannot_steer_a_terminal_in_any_form(form):
    name = "a\x1b[31mb\x9b31mc\u202ed\udcff\r"
    report = a_table([TEXT, Column("l", "l", is_text=True, show=str)], [(name, [name])])
    text = render(report, form)
    assert text.replace("\n", "").isprintable()
    text.encode()
    if form == "json":
        assert json.loads(text)["t"] == [{"name": name, "l": [name]}]


def test_lists_are_joined_in_csv():
    report = a_table([Column("a", "a"), Column("b", "b")], [(["x, y", "z"], [])])
    assert render(report, "csv") == 'a,b\n"x, y; z",\n'


@pytest.mark.parametrize(
    ("form", "expected"),
    [("table", "T\n  none\n"), ("markdown", "**T**\n\nnone\n"), ("csv", "name\n")],
)
def test_a_table_without_rows_says_so(form, expected):
    report = a_table([TEXT], [])
    assert render(report, form) == expected
    assert json.loads(render(report, "json"))["t"] == []


def test_omitted_rows_are_counted():
    assert "1 more row: look there" in render(
        a_table([TEXT], [("a",)], omitted=1, more="look there"), "markdown"
    )
    assert "... and 1200 more" in render(a_table([TEXT], [("a",)], omitted=1200), "table")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"), (0.0, "0"), (7, "7"), (1234, "1234"), (0.12345, "0.1235"), (12.5, "12.50"),
        (999.96, "1000"), (1234.5, "1234"), (None, "-"), (math.inf, "inf"), (math.nan, "-"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits(value, expected):
    assert show_number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_bytes_have_a_binary_unit(value, expected):
    assert show_bytes(value) == expected
