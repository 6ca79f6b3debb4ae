"""Profiles that want too much: read within limits where sound, else refused in one line."""

import json
import lzma
import sqlite3
import tracemalloc

import pytest

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import json_events, kernel_columns, nsys_sqlite, read_profile, source

KERNEL = {
    "ph": "X", "cat": "kernel", "name": "k", "ts": 10, "dur": 2,
    "args": {"grid": [2, 1, 1], "block": [32, 1, 1], "device": 0, "correlation": 1},
}  # fmt: skip
CPU = {"ph": "X", "cat": "cpu_op", "name": "op", "ts": 1, "dur": 2}


@pytest.fixture
def small_values(monkeypatch):
    """Let what is a large value be small, and pieces of text smaller still."""
    monkeypatch.setattr(json_events, "_LARGEST_VALUE", 1000)
    monkeypatch.setattr(source, "_CHUNK_CHARACTERS", 97)


def trace(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


LARGE = {
    "a text": 'x\\"y{[' * 2000,
    "a text of escapes": "\\" * 4000 + '"' * 999,
    "a list of texts": ["a" * 50] * 100,
    "a list of lists": [[i, [i], {"a": [i]}] for i in range(300)],
    "an object": {f"key {i}": {"b": i} for i in range(300)},
    "a text in a list in an object": {"a": [1, {"b": "x" * 5000}, 2]},
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("place", ["property", "event", "argument of a kernel", "last"])
@pytest.mark.usefixtures("small_values")
def test_a_large_value_is_read_or_passed_over(tmp_path, value, place):
    kernel = json.loads(json.dumps(KERNEL))
    content = {"traceEvents": [CPU, kernel, CPU], "deviceProperties": [{"id": 0, "numSms": 7}]}
    if place == "property":
        content = {"stacks": value, **content}
    elif place == "event":
        content["traceEvents"].insert(1, {"ph": "i", "args": value})
    elif place == "last":
        content["memory"] = value
    else:
        kernel["args"]["stack"] = value
    profile = read_profile(trace(tmp_path, content))
    assert profile.duration.tolist() == [2000.0]
    assert profile.grid.tolist() == [[2, 1, 1]]
    assert profile.measured_sms.tolist() == [7]
    if "text" in value or isinstance(value, str):
        assert any("were passed over" in note for note in profile.notes)


def test_a_real_large_value_takes_bounded_memory(tmp_path):
    path = tmp_path / "trace.json.xz"
    with lzma.open(path, "wt", preset=0) as file:
        file.write('{"stacks": "')
        for _ in range(60):
            file.write("x" * (1 << 20))
        file.write('", "traceEvents": [' + json.dumps(KERNEL) + "]}")
    tracemalloc.start()
    profile = read_profile(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(profile) == 1
    assert most < 80 << 20


@pytest.mark.usefixtures("small_values")
def test_a_large_value_that_ends_early_is_a_cut_file(tmp_path):
    text = json.dumps({"traceEvents": [KERNEL, {"ph": "i", "args": "x" * 5000}]})
    for end in (len(text) - 4, len(text) - 2000, len(text) - 4900):
        profile = read_profile(trace(tmp_path, text[:end]))
        assert any("ends early, on line 1" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"traceEvents": [' + "[" * 200_000, "nested too deep"),
        ('{"a": ' + '{"a": ' * 200_000, "nested too deep"),
        ('{"traceEvents": [{"ts": 1]' + 99 * " " + "}", "damaged"),
        ('{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "agents": []}]}', "rocprofiler"),
        (
            (
                '{"traceEvents": [{"ph": "X", "name": "k(float*)", "ts": "1", "dur": "2", '
                '"args": {"BeginNs": "1000", "EndNs": "3000", "DurationNs": "2000"}}]}'
            ),
            "rocprofiler",
        ),
    ],
)
def test_json_that_is_refused_says_what_it_is(tmp_path, text, found):
    with pytest.raises(ProfileError, match=found) as caught:
        read_profile(trace(tmp_path, text))
    assert "\n" not in str(caught.value)


NUMBERS = (
    400 * "9",
    5000 * "9",
    "1e400",
    "1e99999999999999999999",
    "-1e400",
    "1e-400",
    "0.1e3",
    "-5",
)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "key", ["ts", "dur", "correlation", "device", "grid", "stream", "baseTimeNanoseconds"]
)
def test_a_number_of_any_size_harms_no_other(tmp_path, key, number):
    kernel = json.loads(json.dumps(KERNEL))
    if key in {"ts", "dur"}:
        kernel[key] = "@"
    elif key in {"correlation", "device", "stream"}:
        kernel["args"][key] = "@"
    elif key == "grid":
        kernel["args"][key] = ["@", 1, 1]
    content = {"baseTimeNanoseconds": "@" if key[0] == "b" else 0, "traceEvents": [kernel, KERNEL]}
    path = trace(tmp_path, json.dumps(content).replace('"@"', number))
    assert 2000.0 in read_profile(path).duration.tolist()


@pytest.mark.parametrize("number", [400 * "9", 5000 * "9", "1e30", "5000000000", str(2**63)])
def test_a_gpu_of_impossibly_many_sms_is_refused(tmp_path, number):
    content = {"deviceProperties": [{"id": 0, "numSms": "@"}], "traceEvents": [KERNEL]}
    path = trace(tmp_path, json.dumps(content).replace('"@"', number))
    with pytest.raises(ProfileError, match=r"trace\.json: states a GPU of more than 1048576 SMs"):
        read_profile(path)


@pytest.mark.parametrize("value", ["1.2.3", 400 * "9", "."])
def test_an_option_of_a_simulator_that_is_no_number(tmp_path, value):
    path = tmp_path / "sim.log"
    path.write_text(
        f"GPGPU-Sim uArch\n-gpgpu_n_clusters {value} # x\n-gpgpu_clock_domains {value} # y\n"
        "launching kernel name: k uid: 1\nkernel_launch_uid = 1 \ngpu_sim_cycle = 10\n"
        "gpu_tot_sim_cycle = 10\n",
        encoding="utf-8",
    )
    assert read_profile(path).duration.tolist() == [10.0]


@pytest.mark.parametrize(
    "head", ["kernel,duration_us\n", "GPGPU-Sim Simulator\n", '"ID","Kernel Name"\n']
)
def test_a_line_without_end_is_refused(tmp_path, monkeypatch, head):
    monkeypatch.setattr(source, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "times"
    path.write_text(head + "x" * (3 << 20) + "\n", encoding="utf-8")
    with pytest.raises(ProfileError, match="times:2: a line of more than 1 million characters"):
        read_profile(path)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("nan", "times.csv:3: the duration is not finite"),
        ("inf", "times.csv:3: the duration is not finite"),
        ("-1", "times.csv:3: the duration is negative"),
        ("1e308", "times.csv:3: the duration is above 1e\\+15"),
        ("", "times.csv:3: no number"),
    ],
)
@pytest.mark.parametrize("head", ["kernel,duration_us", "kernel,duration_us,block"])
def test_one_bad_duration_is_named_by_its_line(tmp_path, head, value, found):
    path = tmp_path / "times.csv"
    more = ",0" if head.endswith("block") else ""
    path.write_text(f"{head}\n0,1{more}\n1,{value}{more}\n2,3{more}\n", encoding="utf-8")
    with pytest.raises(ProfileError, match=found):
        read_profile(path)


def test_too_many_kernels_and_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_columns, "MOST_KERNELS", 3)
    with pytest.raises(ProfileError, match="has more than 3 kernels"):
        read_profile(trace(tmp_path, {"traceEvents": [KERNEL] * 4}))
    monkeypatch.setattr(kernel_columns, "MOST_NAME_CHARACTERS", 1 << 20)
    names = [{**KERNEL, "name": str(i) * (1 << 19)} for i in range(3)]
    with pytest.raises(ProfileError, match="names of kernels of more than 1 MiB"):
        read_profile(trace(tmp_path, {"traceEvents": names}))


# SQLite


COLUMNS = "start INT, end INT, demangledName INT"


@pytest.fixture
def database(tmp_path):
    def write(*statements):
        path = tmp_path / "report.sqlite"
        connection = sqlite3.connect(path)
        for statement in (
            "CREATE TABLE StringIds (id INT, value TEXT)",
            "INSERT INTO StringIds VALUES (1, 'k')",
            *statements,
        ):
            connection.execute(statement)
        connection.commit()
        connection.close()
        return path

    return write


TABLE = f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({COLUMNS})"
ROWS = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 30, 1)"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i, i FROM n"


def test_a_sound_database(database):
    profile = read_profile(database(TABLE, ROWS))
    assert (profile.name, profile.duration.tolist()) == (("k",), [20.0])


def test_a_view_is_no_table(database):
    path = database(
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL(start, end, demangledName) AS {ENDLESS}"
    )
    with pytest.raises(ProfileError, match="has no table of kernels"):
        read_profile(path)


def test_a_virtual_table_is_no_table(database):
    path = database("CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)")
    with pytest.raises(ProfileError, match="has no table of kernels"):
        read_profile(path)


def test_names_from_a_view_are_not_read(tmp_path):
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE VIEW StringIds(id, value) AS {ENDLESS.replace('i, i, i', 'i, i')}")
    connection.execute(TABLE)
    connection.execute(ROWS)
    connection.commit()
    connection.close()
    assert read_profile(path).name == ("",)


def test_columns_that_would_have_to_be_computed_are_not_read(database):
    table = TABLE.replace(
        ")", ", gridX INT GENERATED ALWAYS AS (length(hex(zeroblob(100000000)))))"
    )
    profile = read_profile(database(table, ROWS))
    assert profile.grid is None


def test_a_database_that_takes_too_long_is_refused(database, monkeypatch):
    monkeypatch.setattr(nsys_sqlite, "_LEAST_SECONDS", -1000.0)
    rows = f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL {ENDLESS} LIMIT 20000"
    with pytest.raises(ProfileError, match="takes longer to read than any sound file of its size"):
        read_profile(database(TABLE, rows))


def test_a_row_that_is_too_large_is_refused(database, monkeypatch):
    monkeypatch.setattr(nsys_sqlite, "_LARGEST_ROW", 1 << 20)
    rows = "INSERT INTO StringIds VALUES (2, hex(zeroblob(1 << 20)))"
    with pytest.raises(ProfileError, match="holds a row of more than 1 MiB"):
        read_profile(database(TABLE, ROWS, rows))


def test_a_database_that_is_still_written_is_refused(database):
    path = database(TABLE, ROWS)
    path.with_name("report.sqlite-wal").write_bytes(b"x")
    with pytest.raises(ProfileError, match=r"is not complete: report\.sqlite-wal holds changes"):
        read_profile(path)


def test_reading_leaves_the_folder_as_it_was(database):
    path = database("PRAGMA journal_mode = WAL", TABLE, ROWS)
    before = sorted(path.parent.iterdir()), path.read_bytes()
    assert len(read_profile(path)) == 1
    assert (sorted(path.parent.iterdir()), path.read_bytes()) == before


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 1e308, "'text'", "x'00'", "NULL"])
@pytest.mark.parametrize("column", ["deviceId", "gridX", "streamId", "globalPid", "correlationId"])
def test_a_column_may_hold_anything(database, column, value):
    table = TABLE.replace(")", f", {column} BLOB)")
    rows = ROWS.replace(")", f", {value})")
    assert read_profile(database(table, rows)).duration.tolist() == [20.0]


def test_a_gpu_of_impossibly_many_sms_in_a_database(database):
    table = TABLE.replace(")", ", deviceId INT)")
    path = database(
        table, ROWS.replace(")", ", 0)"),
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (cudaId INT, gpuId INT, numMultiprocessors INT)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 4611686018427387904)",
    )  # fmt: skip
    with pytest.raises(ProfileError, match="states a GPU of more than 1048576 SMs"):
        read_profile(path)
