"""Described programs: patterns of dependence, and faults that name their line."""

from pathlib import Path

import numpy as np
import pytest
from programs import edges_of

from depgraph.errors import TraceError
from depgraph.parsers.workload import read_workload
from depgraph.store.store import Store, write_store
from depgraph.system.described import line_of_key
from depgraph.timing.program_times import default_durations

KERNELS = """\
unit = "ns"

[[kernel]]
name = "first"
grid = [3, 2]
duration = 4

[[kernel]]
name = "second"
grid = [3, 2]
duration = [1, 2, 3, 4, 5, 6]
occupancy = 2
"""


def read(tmp_path, text):
    file = tmp_path / "program.toml"
    file.write_text(text)
    return read_workload(file)


def with_pattern(tmp_path, lines):
    text = f'{KERNELS}\n[[dependence]]\nfrom = "first"\nto = "second"\n{lines}\n'
    return read(tmp_path, text).graph


def sources_of(graph, block):
    return [source for source, target, _ in edges_of(graph) if target == block]


@pytest.mark.parametrize(
    ("lines", "block", "expected"),
    [
        ('pattern = "all"', 6, [0, 1, 2, 3, 4, 5]),
        ('pattern = "one-to-one"', 8, [2]),
        ('pattern = "row"', 10, [3, 4, 5]),
        ('pattern = "tile"', 10, [3, 4, 5]),
        ('pattern = "strided"\ntiles = 3', 6, [0, 1, 2]),
        ('pattern = "stencil"', 6, [0, 1, 3, 4]),
        ('pattern = "stencil"\nradius = 2', 6, [0, 1, 2, 3, 4, 5]),
        ("edges = [[0, 5], [4, 5]]", 11, [0, 4]),
    ],
)
def test_a_pattern_joins_the_blocks_it_says(tmp_path, lines, block, expected):
    assert sources_of(with_pattern(tmp_path, lines), block) == expected


def test_parts_of_a_split_product_need_their_share_of_a_row(tmp_path):
    text = (
        '[[kernel]]\nname = "first"\ngrid = [4, 2]\nduration = 1\n'
        '[[kernel]]\nname = "second"\ngrid = [3, 2, 2]\nduration = 1\n'
        '[[dependence]]\nfrom = "first"\nto = "second"\npattern = "split-k"\n'
    )
    graph = read(tmp_path, text).graph
    # Blocks of row 0, part 0; row 1, part 0; row 0, part 1; row 1, part 1.
    for block, expected in ((0, [0, 1]), (3, [4, 5]), (6, [2, 3]), (11, [6, 7])):
        assert sources_of(graph, 8 + block) == expected
    assert set(graph.first_use) == {0, 0.5}
    with pytest.raises(TraceError, match="a row of 4 blocks cannot be cut into 3 parts"):
        read(tmp_path, text.replace("[3, 2, 2]", "[3, 2, 3]"))
    with pytest.raises(TraceError, match="give the first a z of 1 and both the same y"):
        read(tmp_path, text.replace("[3, 2, 2]", "[3, 1, 2]"))


def test_tiles_are_needed_one_after_another(tmp_path):
    graph = with_pattern(tmp_path, 'pattern = "tile"')
    assert sorted(set(graph.first_use)) == [0, 1 / 3, 2 / 3]
    assert set(with_pattern(tmp_path, 'pattern = "row"').first_use) == {0}


def test_a_described_program_survives_the_store(tmp_path):
    extraction = read(
        tmp_path, f'{KERNELS}[[dependence]]\nfrom = "first"\nto = "second"\npattern = "tile"\n'
    )
    graph = write_store(extraction, tmp_path / "out").graph()
    durations = default_durations(graph)
    assert durations.unit == "ns"
    assert durations.values.tolist() == [4, 4, 4, 4, 4, 4, 1, 2, 3, 4, 5, 6]
    assert graph.occupancy.tolist() == [0, 2]
    np.testing.assert_array_equal(graph.first_use, extraction.graph.first_use)
    np.testing.assert_array_equal(graph.last_use, extraction.graph.last_use)


def test_a_kernel_can_be_said_to_be_cuttable(tmp_path):
    text = KERNELS.replace('name = "first"', 'name = "first"\ncuttable = true')
    write_store(read(tmp_path, text), tmp_path / "out")
    assert [k.cuttable for k in Store(tmp_path / "out").kernels] == [True, None]


LAUNCH = (
    KERNELS.rstrip("\n")
    + """

[[launch]]
parent = "first"
block = 5
at = 0.5
lanes = 2
child_grid = 8
child_duration = 4
inline = 9
"""
)
FAULTS = [
    ("unit = 3 = 4", 1, "Expected newline"),
    (KERNELS.replace('"ns"', '"fortnight"'), 1, "unit 'fortnight'; give one of us"),
    (KERNELS.replace("grid = [3, 2]\nduration = 4", "duration = 4"), 3, "has no grid"),
    (KERNELS.replace("duration = 4", "duration = -4"), 6, "duration -4; give a number"),
    (KERNELS.replace("4, 5, 6]", "4]"), 11, "one for each block"),
    (KERNELS.replace("occupancy = 2", "occupancy = 0"), 12, "occupancy 0; give a whole number"),
    (KERNELS.replace("occupancy = 2", "cuttable = 2"), 12, "cuttable 2; give true or false"),
    (KERNELS.replace("occupancy", "ocupancy"), 12, "unknown key 'ocupancy'; did you mean"),
    (KERNELS.replace('"second"', '"first"'), 9, "a second kernel called 'first'"),
    (KERNELS + '[[dependence]]\nfrom = "first"\nto = "third"\n', 15, "to = 'third'"),
    (KERNELS + '[[dependence]]\nfrom = "second"\nto = "first"\n', 15, "not launched after"),
    (
        KERNELS + '[[dependence]]\nfrom = "first"\nto = "second"\npattern = "ring"\n',
        16,
        "pattern 'ring'; give one of all",
    ),
    (
        KERNELS.replace("[3, 2]\nduration = [1, 2, 3, 4, 5, 6]", "4\nduration = 1")
        + '[[dependence]]\nfrom = "first"\nto = "second"\npattern = "one-to-one"\n',
        16,
        "one-to-one: first has 6 blocks, second 4",
    ),
    (
        KERNELS + '[[dependence]]\nfrom = "first"\nto = "second"\nedges = [[6, 0]]\n',
        16,
        "edge 6 to 0: first has blocks 0 to 5",
    ),
    ("", 1, "no kernels"),
    ("launch = 3\n" + KERNELS, 1, "launch 3; write .*launch.* tables"),
    (
        LAUNCH.replace('parent = "first"', 'parent = "third"'),
        15,
        "parent = 'third'; give one of first, second",
    ),
    (LAUNCH.replace("block = 5", "block = 6"), 16, "block 6; give a whole number from 0 to 5"),
    (LAUNCH.replace("at = 0.5", "at = 1.5"), 17, "at 1.5; give a number from 0 to 1"),
    (LAUNCH.replace("lanes = 2", "lanes = 33"), 18, "lanes 33; give a whole number from 1 to 32"),
    (LAUNCH.replace("lanes = 2", "warp = 4"), 18, "warp 4; give a whole number from 0 to 3"),
    (
        LAUNCH.replace("grid = 8", "grid = [8, 0]"),
        19,
        "launch 1: child_grid 0; give a whole number",
    ),
    (
        LAUNCH.replace("grid = 8", "grid = [8, 8]\nitems = [3]"),
        20,
        "1 values of items for 2 launch",
    ),
    (LAUNCH.replace("child_duration = 4", "join = 'all'"), 14, "'first' has no child_duration"),
    (LAUNCH + "join = 'all'", 22, "join 'all'; give one of none, block, kernel"),
    (LAUNCH.replace("inline = 9", "inline = true"), 21, "inline True; give a number"),
    (LAUNCH + "stall = 9", 22, "unknown key 'stall'"),
    (
        LAUNCH + '[[kernel]]\nname = "reduce"\nkind = "collective"\nsms = 1\nduration = 9\n'
        'link = "wire"\n[[link]]\nname = "wire"\nbandwidth = 450\n',
        14,
        "launches from the device in a program with collectives",
    ),
    (LAUNCH.replace("grid = 8", "grid = 2097153"), 19, "from 1 to 2097152"),
    (LAUNCH + "warp = [" + "0, " * 262145 + "]", 19, "262145 launches of 2097160 child blocks"),
]


@pytest.mark.parametrize(("text", "line", "message"), FAULTS)
def test_a_fault_names_its_line(tmp_path, text, line, message):
    with pytest.raises(TraceError, match=rf"program\.toml:{line}: .*{message}"):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"none\.toml: No such file"):
        read_workload(tmp_path / "none.toml")


def test_the_line_of_a_key_is_that_of_its_own_table():
    assert line_of_key(KERNELS, "duration", "kernel", 0) == 6
    assert line_of_key(KERNELS, "duration", "kernel", 1) == 11
    assert line_of_key(KERNELS, "registers", "kernel", 1) == 8
    assert line_of_key(KERNELS, "unit") == 1
    assert line_of_key(KERNELS, "duration") is None


@pytest.mark.parametrize(
    ("text", "key", "table", "index", "line"),
    [
        ("[[a]]\n[b]\n [[ a ]] # two\n\tk = 1", "k", "a", 1, 4),
        ("[[a]]\n[b]\nk = 1\n", "k", "a", 0, 1),  # of another table
        ("[[a]]\n[[aa]]\n[[a]]\n'k'= 1", "k", "a", 1, 4),
        ('[[a]]\nkk = 1\nb.k = 2\n\n\n"k" = 3', "k", "a", 0, 6),
        ("[[a]]\n[[a]]\n\n", "", "a", 1, 2),
        ("\n\n\nk = 1", "k", "", 0, 4),
        ("[[a]]\nk = 1", "k", "", 0, None),
        ("[[a]]\nk = 1", "k", "a", 1, None),
    ],
)
def test_the_line_of_a_key(text, key, table, index, line):
    assert line_of_key(text, key, table, index) == line


def test_only_a_newline_ends_a_line():
    text = 'name = "\u2028 \x85 \x1e"\r\n' + KERNELS
    assert line_of_key(text, "duration", "kernel", 1) == 12


BY_COLUMN = 'unit = "ns"\n' + "".join(
    f"[[kernel]]\ngrid = {grid}\nduration = {duration}\n{more}\n"
    for grid, duration, more in (
        (2, 1, ""), ("[2, 2]", "[1, 2, 3, 4]", "occupancy = 2"), (3, 2.5, 'name = "c"'), (1, 0, ""),
    )
)  # fmt: skip


def test_kernels_that_say_different_things(tmp_path):
    extraction = read(tmp_path, BY_COLUMN)
    assert [(k.name, k.grid, k.occupancy, k.stream) for k in extraction.kernels] == [
        ("kernel 0", (2, 1, 1), None, 0),
        ("kernel 1", (2, 2, 1), 2, 0),
        ("c", (3, 1, 1), None, 0),
        ("kernel 3", (1, 1, 1), None, 0),
    ]
    assert extraction.graph.duration.tolist() == [1, 1, 1, 2, 3, 4, 2.5, 2.5, 2.5, 0]


@pytest.mark.parametrize(
    ("faults", "line", "message"),
    [
        # Of several faults the first table that is wrong is named, and of that its first key.
        ({"duration = 2.5": "duration = nan", "grid = 1\n": "grid = 0\n"}, 12, "duration nan"),
        ({"grid = 3": "grid = 1.5", "duration = 2.5": "duration = nan"}, 11, "grid 1.5"),
        ({"duration = 2.5": "", "grid = 1\n": "grid = true\n"}, 10, "'c' has no duration"),
        ({"grid = 2\n": ""}, 2, "'kernel 0' has no grid"),
        ({'name = "c"': "colour = 1", "grid = 1\n": "grid = 0\n"}, 13, "unknown key 'colour'"),
        ({'name = "c"': "name = 3"}, 13, "name 3; give text"),
        ({'name = "c"': 'name = "kernel 1"'}, 13, "a second kernel called 'kernel 1'"),
        ({"occupancy = 2": "occupancy = 9223372036854775808"}, 9, "occupancy 9223372036854775808"),
        ({"3, 4]": "3, -4]"}, 8, "block 3: duration -4"),
        ({"3, 4]": "3]"}, 8, "3 values of duration for 4 blocks"),
        ({"[1, 2, 3, 4]": "[]"}, 8, "0 values of duration for 4 blocks"),
        ({"grid = 3": "grid = 2097151"}, 11, "2097157 blocks; at most 2097152"),
        ({"occupancy = 2": "block = [64, 32]"}, 9, "2048 threads in a block"),
    ],
)
def test_a_fault_of_one_table_among_many(tmp_path, faults, line, message):
    text = BY_COLUMN
    for sound, wrong in faults.items():
        assert sound in text
        text = text.replace(sound, wrong)
    with pytest.raises(TraceError, match=rf"program\.toml:{line}: .*{message}"):
        read(tmp_path, text)


def test_of_several_names_that_are_taken_the_first_is_said(tmp_path):
    parts = "".join(f'[[kernel]]\nname = "sum[{i}]"\ngrid = 1\nduration = 1\n' for i in (3, 1, 2))
    text = (
        '[[link]]\nname = "wire"\nbandwidth = 450\n' + parts
        + '[[kernel]]\nname = "sum"\nkind = "collective"\nsms = 1\nduration = 9\nlink = "wire"\n'
        "groups = [1, 1, 1, 1]\n"
    )  # fmt: skip
    with pytest.raises(TraceError, match=r"a second kernel called 'sum\[1\]'"):
        read(tmp_path, text)


def test_options_of_traces_are_refused_for_a_described_program(program, tmp_path):
    (tmp_path / "program.toml").write_text(KERNELS)
    outcome = program("extract", "program.toml", "--kernels", "0:1", "-j", "2")
    assert outcome.code == 2
    assert "--kernels: for traces, not for described programs" in outcome.err
    assert not (tmp_path / "depgraph.out").exists()


def test_a_list_of_no_blocks_launches_nothing(tmp_path):
    path = tmp_path / "w.toml"
    text = (Path(__file__).parents[2] / "samples/workloads/launches_few.toml").read_text()
    launches = text.count("[[launch]]")
    path.write_text(text.replace("block = 0\n", "block = []\n"))
    found = read_workload(path).graph.launches
    assert launches == 2
    assert found.block.min() == 1
