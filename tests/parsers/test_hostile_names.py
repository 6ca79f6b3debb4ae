"""Names from outside in everything that is written for other tools: shown, and harmless."""

import csv
import gzip
import json
import unicodedata

import pytest
from programs import BASE, access_line, launch_line

from depgraph.system.text import clean_text, csv_cell

STEERING = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
NAMES = (
    "=cmd|' /C calc'!A0",
    "+1+1(float*)",
    "-2+3",
    "@SUM(A1)",
    "\uff1d1+1",
    "txt\u202egnp",
    "c1\x9b31m",
    "\u2066hidden\u2069",
    "\x1b[31mred",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a trace whose kernels have such names, two by two dependent."""
    folder = tmp_path_factory.mktemp("names")
    lines = []
    for i, name in enumerate(NAMES):
        lines += [launch_line(i, name=name), access_line(i, 1, "STG.E", [BASE])]
    (folder / "some.log").write_bytes(b"".join(lines))
    return folder


@pytest.fixture
def export(program, folder):
    def written(*words):
        assert program("extract", folder / "some.log", "--force").code == 0
        outcome = program("export", *words, "-o", "file")
        assert outcome.code == 0, outcome.err
        with open("file", encoding="utf-8", newline="") as file:  # noqa: PTH123
            return file.read()

    return written


def steering(text):
    return {c for c in text if unicodedata.category(c) in STEERING and c not in "\r\n\t"}


def test_no_cell_of_csv_begins_a_formula(export):
    text = export("--what", "kernels", "--to", "csv")
    rows = list(csv.DictReader(text.splitlines()))
    assert not steering(text)
    names = [row["name"] for row in rows]
    assert len(names) == len(NAMES)
    assert not [name for name in names if name.startswith(("=", "+", "-", "@", "\uff1d"))]
    assert names[:4] == [f"'{name}" for name in NAMES[:4]]


def test_numbers_stay_numbers(export):
    text = export("--what", "kernels", "--to", "csv")
    for row in csv.DictReader(text.splitlines()):
        assert int(row["kernel"]) >= 0
        assert float(row["grid_x"]) > 0


@pytest.mark.parametrize(
    ("what", "form"),
    [("kernels", "json"), ("graph", "json"), ("graph", "graphml"), ("graph", "dot")],
)
def test_nothing_steers_a_terminal_in_other_forms(export, what, form):
    text = export("--what", what, "--to", form)
    assert "SUM" in text
    assert not steering(text)


def test_json_holds_the_names_as_they_are(export):
    text = export("--what", "kernels", "--to", "json")
    names = [json.loads(line)["name"] for line in text.splitlines()]
    assert "txt\u202egnp" in names


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "table"])
@pytest.mark.parametrize("words", [["show", "kernels"], ["show", "pairs"], ["show", "path"]])
def test_printed_tables(program, folder, words, form):
    assert program("extract", folder / "some.log", "--force").code == 0
    outcome = program(*words, "--format", form)
    assert outcome.code == 0, outcome.err
    assert not steering(outcome.out)
    if form == "csv":
        cells = [cell for row in csv.reader(outcome.out.splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\uff1d"))]


@pytest.mark.jit_only
def test_a_report(program, folder, tmp_path):
    assert program("extract", folder / "some.log", "--force").code == 0
    assert program("report", "--sms", "2", "-o", "report").code == 0
    timeline = gzip.decompress((tmp_path / "report/timeline.json.gz").read_bytes()).decode()
    assert not steering(json.dumps(json.loads(timeline), ensure_ascii=False))
    for name in ("index.html", "report.md", "report.json"):
        assert not steering((tmp_path / "report" / name).read_text(encoding="utf-8")), name


@pytest.mark.parametrize(
    "text", ["", "plain(int)", "a=b", "1-2", "'quoted'", "\N{GREEK SMALL LETTER PI}"]
)
def test_what_is_harmless_stays_as_it_is(text):
    assert csv_cell(text) == clean_text(text) == text


@pytest.mark.parametrize(
    "text", ["=1", "\t=1", "\r=1", "  +1", "@x", "-x", "\x1b[0m=1", "\u200b=1"]
)
def test_what_could_be_a_formula_is_marked_as_text(text):
    assert csv_cell(text)[0] in {"'", "\N{REPLACEMENT CHARACTER}"}
