"""Described programs and GPU models with values that make no sense: one line, file and where."""

import pytest
from programs import BASE, access_line, launch_line

import depgraph
from depgraph import parsers
from depgraph.errors import DepgraphError, TraceError
from depgraph.gpu.model import KEYS, load_gpu_file
from depgraph.parsers.workload import read_workload

VALUES = (
    "0", "-1", "1.5", "true", "nan", "inf", "-inf", "1e308", "1e400", "5000000000", "1" + 24 * "0",
    400 * "9", 5000 * "9", "0x" + 5000 * "f", '""', '" "', '"text"', "'" + 5000 * "x" + "'", "[]",
    "[[]]", "[0]", "[1, 2, 3, 4]", "[nan]", "[-1]", "[1e400]", "[true]", "{}", "{a = 1}",
    "1979-05-27", "1979-13-27", 2000 * "[" + 2000 * "]", 2000 * "{a=" + "1" + 2000 * "}",
    '"\\u202e"', "[1,", "", "=",
)  # fmt: skip
KERNEL = {"grid": "[2, 2]", "duration": "1"}
PROGRAM_KEYS = ("name", "unit", "kernel", "dependence", "kernels")
KERNEL_KEYS = (
    "name", "grid", "block", "duration", "occupancy", "registers", "shared_bytes", "stream", "none",
)  # fmt: skip
DEPENDENCE = {"from": '"a"', "to": '"b"', "pattern": '"strided"'}
DEPENDENCE_KEYS = ("from", "to", "pattern", "edges", "kind", "tiles", "radius", "none")


def lines_of(table):
    return "".join(f"{key} = {value}\n" for key, value in table.items())


def program_with(*, top=None, kernel=None, dependence=None):
    tables = [KERNEL | {"name": '"a"'}, KERNEL | {"name": '"b"'} | (kernel or {})]
    text = lines_of(top or {}) + "".join(f"[[kernel]]\n{lines_of(table)}" for table in tables)
    return f"{text}[[dependence]]\n{lines_of(DEPENDENCE | (dependence or {}))}"


def outcome_of(read, path, text):
    """Return what a function reads of a file with a text, or the error that it refuses with."""
    path.unlink(missing_ok=True)  # to write over a file may wait for the disk
    path.write_text(text, encoding="utf-8")
    try:
        return read(path), None
    except DepgraphError as error:
        return None, error


def is_one_line(error, path):
    text = str(error)
    assert text.startswith(f"{path}:")
    assert "\n" not in text
    assert len(text) < 600 + len(str(path))
    return True


@pytest.mark.parametrize(
    ("part", "key"),
    [
        *(("top", key) for key in PROGRAM_KEYS),
        *(("kernel", key) for key in KERNEL_KEYS),
        *(("dependence", key) for key in DEPENDENCE_KEYS),
    ],
)
def test_a_described_program(tmp_path, part, key):
    path = tmp_path / "program.toml"
    refused = 0
    for value in VALUES:
        text = program_with(**{part: {key: value}})
        extraction, error = outcome_of(read_workload, path, text)
        if error is None:
            assert extraction.graph.n_blocks == 8 or key == "grid"
            continue
        refused += 1
        assert is_one_line(error, path), (part, key, value)
        assert error.line is not None or "nested" in error.found, (key, value, str(error))
    assert refused > len(VALUES) // 2


@pytest.mark.parametrize(
    ("duration", "found"),
    [
        ("[1, 2, nan, 4]", "block 2: duration nan"),
        ("[1, 2, 3, inf]", "block 3: duration inf"),
        ("[1, -2, 3, 4]", "block 1: duration -2"),
        ("[1, 2, 3, 1e308]", r"block 3: duration 1e\+308"),
        ("[1, 2, 3]", "3 values of duration for 4 blocks"),
    ],
)
def test_one_bad_duration_of_many_is_named(tmp_path, duration, found):
    path = tmp_path / "program.toml"
    path.write_text(program_with(kernel={"duration": duration}), encoding="utf-8")
    with pytest.raises(TraceError, match=found) as caught:
        read_workload(path)
    assert path.read_text(encoding="utf-8").splitlines()[caught.value.line - 1] == (
        f"duration = {duration}"
    )


def many(n, grid, dependence=""):
    kernels = "".join(f"[[kernel]]\nname = 'k{i}'\ngrid = {grid}\nduration = 1\n" for i in range(n))
    return kernels + (f"[[dependence]]\nfrom = 'k0'\nto = 'k1'\n{dependence}\n" * bool(dependence))


@pytest.mark.parametrize(
    ("text", "found", "line"),
    [
        (many(40, 1 << 20), "3145728 blocks; at most 2097152 in all kernels together", 11),
        (many(40, 1 << 24), "grid 16777216; give 1 to 3 whole numbers from 1 to 2097152", 3),
        (many(2_000, 1), "2000 kernels; at most 1024", 1),
        (many(2, 1 << 19, 'pattern = "one-to-one"'), "one-to-one: k0 and k1 need 524288 joins", 12),
        (many(2, "[512, 512]", 'pattern = "stencil"\nradius = 9999'), "stencil: k0 and k1", 12),
        ("a." * 100_000 + "b = 1\n", "a key of more than 64 parts", 1),
        ("\na = " + 100_000 * "[", "is nested too deep", None),
        ("\n\na = " + 100_000 * "9", "a number of more than 4000 digits", 3),
        ("#" * (65 << 20), "has more than 64 MiB", None),
    ],
)
def test_what_would_take_minutes_or_gigabytes_is_refused_first(
    tmp_path, monkeypatch, text, found, line
):
    monkeypatch.setattr("depgraph.parsers.workload._MOST_KERNELS", 1024)
    path = tmp_path / "program.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=found) as caught:
        read_workload(path)
    assert caught.value.line == line


def test_one_block_that_many_wait_for_takes_linear_time(tmp_path):
    edges = ", ".join(f"[0, {i}]" for i in range(20_000))
    path = tmp_path / "program.toml"
    path.write_text(many(2, 20_000, f"edges = [{edges}]"), encoding="utf-8")
    assert sum(pair.edges for pair in read_workload(path).pairs) == 20_000


def test_a_stencil_of_radius_0_is_one_to_one(tmp_path):
    path = tmp_path / "program.toml"
    path.write_text(many(2, "[4, 4]", 'pattern = "stencil"\nradius = 0'), encoding="utf-8")
    assert sum(pair.edges for pair in read_workload(path).pairs) == 16


@pytest.mark.parametrize("key", [*(key.key for key in KEYS), "based_on", "none"])
def test_a_gpu_model(tmp_path, key):
    path = tmp_path / "gpu.toml"
    base = {"name": '"Own"', "architecture": "90", "sms": "4"}
    for value in VALUES:
        table = base | {key: value}
        if key == "based_on":
            del table["architecture"]
        gpu, error = outcome_of(load_gpu_file, path, lines_of(table))
        assert gpu.sms <= 1 << 20 if error is None else is_one_line(error, path), (key, value)


@pytest.mark.jit_only
def test_a_gpu_of_the_largest_numbers_that_are_taken(program, tmp_path):
    trace = tmp_path / "some.log"
    trace.write_bytes(launch_line(0) + access_line(0, 1, "STG.E", [BASE]))
    depgraph.extract(parsers.open_trace(trace), tmp_path / "out")
    for key in sorted(
        {key.key for key in KEYS} - {"name", "aliases", "sources", "shared_carveouts"}
    ):
        for value in (1, (1 << 31) - 1, 1 << 50):
            table = {"name": '"Own"', "architecture": "90", "sms": "4"} | {key: str(value)}
            (tmp_path / "gpu.toml").write_text(lines_of(table), encoding="utf-8")
            outcome = program("bound", tmp_path / "out", "--sms", "4", "--gpu-file", "gpu.toml")
            assert outcome.code in {0, 1}, (key, value)
            assert "bug in depgraph" not in outcome.err, (key, value, outcome.err)
