"""What people describe: one message for each fault, with file, line, key and what to give."""

import json
import tomllib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.errors import ModelError, TraceError
from depgraph.gpu.model import KEYS
from depgraph.mechanisms.custom import POLICY
from depgraph.parsers.described_file import COLLECTIVE, LINK
from depgraph.parsers.workload import DEPENDENCE, KERNEL, LAUNCH, TOP
from depgraph.system.described import (
    REQUIRED,
    DescribedFile,
    Field,
    ModelFile,
    TomlError,
    any_text,
    flag,
    items,
    one_of,
    optional,
    parse_toml,
    real,
    record,
    text,
    values_of,
    whole,
)

DOCS = Path(__file__).parents[2] / "docs"
CAR = (
    Field("name", any_text, "what it is called"),
    Field("wheels", whole(3, 18), "that touch the ground", default=4),
    Field("mass", real(1, 1e6), "without load", "kg", REQUIRED),
)
TEXT = '[[car]]\nmass = 900\n\n[[car]]\nname = "truck"\nwheels = 6\nmass = 7e3\n'


def described(folder, content, kind=DescribedFile):
    path = folder / "cars.toml"
    path.write_text(content, encoding="utf-8")
    return kind(path)


def cars_of(file):
    return [file.table("car", i, table, CAR) for i, table in enumerate(file.content["car"])]


def test_a_table_says_all_keys(tmp_path):
    file = described(tmp_path, TEXT)
    assert cars_of(file) == [
        {"name": None, "wheels": 4, "mass": 900.0},
        {"name": "truck", "wheels": 6, "mass": 7000.0},
    ]
    assert file.given("car", 0, file.content["car"][0], CAR) == {"mass": 900.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT.replace("6", "2"), "cars.toml:6: wheels 2; give a whole number from 3 to 18"),
        (TEXT.replace("6", "true"), "cars.toml:6: wheels True; give a whole number from 3 to 18"),
        (TEXT.replace("7e3", "nan"), r"cars.toml:7: mass nan; give a number from 1 to 1e\+06"),
        (TEXT.replace("wheels", "weels"), r"cars.toml:6: unknown key 'weels'; did you mean wheels"),
        (TEXT.replace("mass = 7e3", ""), r"cars.toml:4: car 'truck' has no mass; give mass \(kg\)"),
        (TEXT.replace("mass = 900", ""), r"cars.toml:1: car 'car 0' has no mass; give mass \(kg\)"),
        ("car = [1]", r"cars.toml: car is not a table; write \[\[car\]\]"),
        ("car = ", "cars.toml:1: Invalid value"),
    ],
)
def test_a_fault_names_file_line_key_and_what_to_give(tmp_path, content, message):
    def read():
        return cars_of(described(tmp_path, content))

    with pytest.raises(TraceError, match=message):
        read()


def test_a_file_of_one_table_is_refused_as_a_model(tmp_path):
    file = described(tmp_path, "mass = 9\nwheels = 1\n", ModelFile)
    with pytest.raises(ModelError, match="wheels = 1: expected a whole number from 3"):
        file.table("", 0, file.content, CAR)


KEYS_OF_LINES = st.sampled_from(["a", "b", "-1", "a.b", '"a"', "é", "a b", ""])
VALUES_OF_LINES = st.one_of(
    st.sampled_from([
        '"x"', '""', '"a#b"', '"\\u00e9"', '"é\u2028"', '"\t"', '"\x7f"', "'x'", '"""x"""', "true",
        "True",
        "0", "-0", "+1", "01", "1_0", "0x1f", "9223372036854775808", "1.5", "-0.0", "00.5", "1.",
        "1e3", "1.5e3", "inf", "nan", "1979-05-27", "[1, 2]", "[]", "[1,2,]", "[01]", "[1.5]",
        "[[1]]", "[[0, 1], [2,3]]", "[[0,1],[2]]", "[[1], 2]", "[[1],]", "[[1]]]", "[[1.5]]",
        "[[]]", "[[[1]]]", "[[1],[01]]",
        "{a = 1}", "1 # one", "1 ", "1\r", "null",
    ]),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(repr),
)  # fmt: skip
LINES = st.one_of(
    st.builds("{}{}={}{}".format, KEYS_OF_LINES, st.sampled_from(["", " ", "\t"]),
              st.sampled_from(["", " "]), VALUES_OF_LINES),
    KEYS_OF_LINES.map("[[{}]]".format), KEYS_OF_LINES.map("[{}]".format),
    st.sampled_from(["", " ", "# a = 1", " [[a]]", "[[a]] ", "a", "\ufeff"]), st.text(),
)  # fmt: skip


def toml_or_fault(read, text, fault):
    try:
        return repr(read(text))
    except fault:
        return "a fault"


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_plain_lines_are_read_as_all_others_are(text):
    ours = toml_or_fault(parse_toml, text, TomlError)
    assert ours == toml_or_fault(tomllib.loads, text, ValueError)


@pytest.mark.parametrize(("value", "times"), [("7", 16), ("[7, 8]", 32)])
def test_a_long_list_takes_memory_as_its_values_do(value, times):
    text = "edges = [" + ", ".join([value] * 100_000) + "]"
    tracemalloc.start()
    try:
        assert parse_toml(text) == {"edges": [json.loads(value)] * 100_000}
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < times * len(text)


SOURCE = record(Field("path", any_text, "file", default=REQUIRED), Field("size", whole(0, 9), ""))


@pytest.mark.parametrize(
    ("reader", "value", "taken"),
    [
        (text, "a", "a"), (any_text, "", ""), (flag, False, False), (one_of("ab"), "b", "b"),
        (items(flag, "flags"), [True], (True,)), (optional(flag), None, None),
        (real(0, 1), 1, 1.0), (values_of(flag), {"a": True}, {"a": True}),
        (SOURCE, {"path": "a", "more": 1}, {"path": "a"}),
    ],
)  # fmt: skip
def test_what_readers_take(reader, value, taken):
    assert reader(value) == taken


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        (text, " ", "text"), (any_text, 1, "text"), (flag, 1, "true or false"),
        (one_of(("a", "b")), ["a"], "one of a, b"), (items(flag, "flags"), True, "flags"),
        (items(flag, "flags", 1), [], "flags"), (items(flag, "flags"), [2], "true or false"),
        (optional(flag), 0, "true or false"), (real(0, 1), float("nan"), "a number from 0 to 1"),
        (values_of(flag), [], "an object"), (SOURCE, {}, "an object with path"),
        (SOURCE, {"path": "a", "size": -1}, "a whole number from 0 to 9"),
    ],
)  # fmt: skip
def test_what_readers_refuse(reader, value, expected):
    with pytest.raises(ValueError, match=f"^{expected}$"):
        reader(value)


@pytest.mark.parametrize(
    ("page", "fields"),
    [
        ("gpus.md", KEYS),
        ("extending.md", POLICY),
        ("mechanisms.md", (*TOP, *KERNEL, *DEPENDENCE, *LAUNCH)),
        ("overlap.md", (*LINK, *COLLECTIVE)),
    ],
)
def test_every_key_is_documented(page, fields):
    written = (DOCS / page).read_text(encoding="utf-8")
    assert [field.key for field in fields if field.key not in written] == []
