"""Every option is honoured in every command, or refused in one line."""

import csv
import io
import json

import pytest
from programs import access_line, launch_line

from depgraph.samples import KERNEL_TIMES, sample_path

APART = """
[[kernel]]
name = "first"
grid = [2, 4]
duration = 1.0

[[kernel]]
name = "second"
grid = [2, 4]
duration = 2.0

[[kernel]]
name = "third"
grid = [4, 4]
duration = 3.0

[[dependence]]
from = "first"
to = "second"
pattern = "one-to-one"

[[dependence]]
from = "second"
to = "third"
edges = [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [3, 5], [4, 8], [5, 9], [6, 12], [7, 15]]
"""
FUSED = """
[[kernel]]
name = "first + second"
grid = 8
duration = 3.0

[[kernel]]
name = "third"
grid = [4, 4]
duration = 3.0

[[dependence]]
from = "first + second"
to = "third"
edges = [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [3, 5], [4, 8], [5, 9], [6, 12], [7, 15]]
"""


@pytest.fixture
def stores(program, tmp_path):
    """Return the stores of a described program, and of the same fused by hand."""
    paths = []
    for name, text in (("apart", APART), ("fused", FUSED)):
        (tmp_path / f"{name}.toml").write_text(text)
        path = tmp_path / f"{name}.out"
        assert program("extract", tmp_path / f"{name}.toml", "-o", path, "-q")[0] == 0
        paths.append(path)
    return paths


WORDS = ("--sms", 3, "--occupancy", 1, "--mechanism", "all")


def rows_of(text):
    content = json.loads(text)
    names = ("mechanism", "makespan", "speedup", "share_of_bound", "utilization", "against")
    # Where inside its blocks a merged kernel needs what is not known, as the program says itself.
    return {
        tuple(row[name] for name in names)
        for row in content["mechanisms"]
        if row["against"] not in {"intra-block", "assumed steps"}
    }


def test_a_merged_program_is_the_program_fused_by_hand(program, stores):
    apart, fused = stores
    code, merged, err = program(
        "bound", apart, *WORDS, "--what-if", "merge=0,1", "--format", "json"
    )
    assert (code, err) == (0, "")
    _, by_hand, _ = program("bound", fused, *WORDS, "--format", "json")
    assert rows_of(merged) == rows_of(by_hand)
    assert len(rows_of(merged)) > 10


@pytest.mark.jit_only
def test_a_report_of_a_merged_program_is_that_of_the_program_fused_by_hand(program, stores):
    apart, fused = stores
    words = (*WORDS[:4], "--mechanism", "cusync-row,dataflow-learned", "--format", "json")
    _, merged, _ = program("report", apart, *words, "--what-if", "merge=0,1")
    _, by_hand, _ = program("report", fused, *words)
    assert rows_of(merged) == rows_of(by_hand)
    for name in ("upper_bound", "speedup", "utilization", "edges", "serial", "blocks"):
        assert json.loads(merged)[name] == json.loads(by_hand)[name]


def test_pairs_and_edges_are_of_the_changed_program(program, stores, tmp_path):
    apart, _ = stores
    words = ("--what-if", "merge=0,1")
    pairs = list(csv.DictReader(io.StringIO(
        program("show", apart, "pairs", *words, "--format", "csv")[1]
    )))  # fmt: skip
    assert [(pair["source"], pair["target"]) for pair in pairs] == [("0", "2")]
    kernels = json.loads(program("show", apart, "kernels", *words, "--format", "json")[1])[
        "kernels"
    ]
    assert [kernel["name"] for kernel in kernels] == ["first + second", "third"]
    file = tmp_path / "edges.csv"
    assert program("export", apart, "--what", "edges", "-o", file, *words)[0] == 0
    with file.open() as lines:
        assert len(list(csv.DictReader(lines))) == 10
    policies = program("show", apart, "pairs", "--cusync", *words, "--format", "csv")
    assert policies[0] == 0


@pytest.mark.jit_only
def test_dependences_that_do_not_count_hold_no_mechanism_up(program, sample_store):
    words = ("bound", sample_store.path, "--sms", 80, "--mechanism", "kernel-graph,acs-hw",
             "--cost", "acs-hw.launch=0us", "--format", "json")  # fmt: skip
    every, raw = (
        {row["mechanism"]: row["makespan"] for row in json.loads(out)["mechanisms"]}
        for out in (program(*words)[1], program(*words, "--deps", "raw")[1])
    )
    assert raw["acs-hw"] < every["acs-hw"]


@pytest.mark.jit_only
def test_filters_see_the_merged_blocks_but_no_renamed_buffers(program, sample_store):
    words = ("bound", sample_store.path, "--sms", 8, "--mechanism", "dataflow-bloom(65536,4)",
             "--deps", "raw,war", "--format", "json")  # fmt: skip
    merged = json.loads(program(*words, "--what-if", "merge=14,15")[1])
    (row,) = merged["mechanisms"]
    plain = json.loads(
        program(*words[:5], "dataflow", *words[6:], "--what-if", "merge=14,15")[1]
    )["mechanisms"]  # fmt: skip
    assert row["makespan"] >= plain[0]["makespan"]
    renamed = json.loads(program(*words, "--what-if", "buffer=0:0xffffffffffff drop=war")[1])
    assert "renamed buffers" in renamed["left_out"]["dataflow-bloom(65536,4)"]


REFUSED = [
    (["show", "STORE", "kernels", "--deps", "raw"], "--deps does not go with kernels"),
    (["show", "STORE", "kernels", "--gpu", "V100"], "--gpu does not go with kernels"),
    (["show", "STORE", "kernels", "--timing", "f.csv", "--what-if", "merge=0,1"],
     "--what-if does not go with kernels that have times: they are as measured"),
    (["show", "STORE", "pairs", "--gpu", "V100"], "--gpu does not go with pairs"),
    (["show", "STORE", "path", "--launch", "gpu"], "--launch does not go with path"),
    (["show", "STORE", "block", "1:0", "--what-if", "gap=0"], "--what-if does not go with block"),
    (["export", "STORE", "--what", "edges", "-o", "f.csv", "--timing", "x"],
     "--timing does not go with --what edges"),
    (["export", "STORE", "--what", "pairs", "-o", "f.csv", "--what-if", "gap=0"],
     "--what-if does not go with --what pairs"),
    (["export", "STORE", "--what", "graph", "-o", "f.dot", "--sms", "3"],
     "--sms does not go with --what graph"),
    (["export", "STORE", "--what", "schedule", "-o", "f.csv", "--sms", "3", "--schedule", "serial",
      "--priority", "newest-first"], "--priority needs a dataflow schedule"),
    (["export", "STORE", "--what", "schedule", "-o", "f.csv", "--sms", "3", "--mechanism", "pdl",
      "--schedule", "serial"], "--schedule does not go with --mechanism"),
    (["export", "STORE", "--what", "schedule", "-o", "f.csv", "--sms", "3", "--cost", "a.b=1us"],
     "--cost needs --mechanism"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_an_option_that_would_change_nothing_is_refused(program, stores, words, message):
    code, out, err = program(*(stores[0] if word == "STORE" else word for word in words))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize("words", [
    ["show", "STORE", "path"], ["compare", "STORE", "STORE"],
    ["export", "STORE", "--what", "schedule", "-o", "f.csv", "--sms", "3"],
])  # fmt: skip
def test_what_predicts_nothing_takes_no_contention(program, stores, words):
    words = [stores[0] if word == "STORE" else word for word in words]
    code, _, err = program(*words, "--contention", "sm")
    assert code == 2
    assert "No such option" in err.splitlines()[-1]


def test_programs_with_times_in_different_units_are_not_compared(program, stores, sample_store):
    code, _, err = program("compare", stores[0], sample_store.path)
    assert code == 1
    assert "durations of the base are in us, of the new program in instructions" in err


def test_what_two_timed_runs_of_the_base_differ_by_is_noise(program, stores, tmp_path):
    base, new = stores[0], stores[0]
    times = {}
    for name, first in (("before", 10), ("again", 12), ("after", 11), ("slow", 20)):
        times[name] = tmp_path / f"{name}.csv"
        times[name].write_text(f"kernel,duration_us\n0,{first}\n1,10\n2,10\n")
    words = ["compare", base, new, "--sms", 8, "--timing", times["before"], "--format", "json"]

    def serial(*more):
        code, out, _ = program(*words, *more)
        (row,) = (m for m in json.loads(out)["metrics"] if m["metric"] == "serial")
        return code, row["new"] - row["base"], row["noise"]

    for repeat in ((), ("--repeat", base)):
        more = (*repeat, "--repeat-timing", times["again"], "--fail-on-increase", "serial")
        assert serial("--new-timing", times["after"], *more) == (0, pytest.approx(1), 2)
        assert serial("--new-timing", times["slow"], *more) == (3, pytest.approx(10), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--timing", "a", "--new-timing", "a", "--repeat", "s"),
         "--repeat with --timing needs --repeat-timing: times of the other recording"),
        (("--repeat-timing", "a"), "--repeat-timing needs --timing and --new-timing"),
        (("--repeat", "s", "--repeat-timing", "a"), "--repeat-timing needs --timing and"),
    ],
)  # fmt: skip
def test_noise_needs_times_of_one_sort(program, stores, words, message):
    code, _, err = program("compare", stores[0], stores[0], *words)
    assert (code, message in err) == (2, True)


def test_a_repetition_in_another_unit_says_what_to_give(program, stores, sample_store):
    code, _, err = program("compare", stores[0], stores[0], "--repeat", sample_store.path)
    assert code == 1
    assert "of the second recording in instructions: give --timing, --new-timing and" in err


@pytest.mark.jit_only
def test_it_is_said_that_two_stores_were_tracked_differently(program, sample_trace, tmp_path):
    for size in (1, 128):
        path = tmp_path / f"by{size}"
        assert program("extract", sample_trace, "-o", path, "--granularity", size, "-q")[0] == 0
    _, out, _ = program("compare", tmp_path / "by1", tmp_path / "by128", "--format", "json")
    assert any("at granularity 1, of the new program at 128" in n for n in json.loads(out)["notes"])


@pytest.mark.jit_only
def test_memory_bandwidth_holds_in_every_command(program, sample_store, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text('name = "small"\nbased_on = "H100 SXM"\nl2_bytes = "64 KiB"\n')
    words = ("--sms", 8, "--timing", sample_path(KERNEL_TIMES), "--gpu-file", small,
             "--memory-bandwidth", 4, "--format", "json")  # fmt: skip
    path = sample_store.path
    first = json.loads(program("bound", path, *words)[1])["bounds"][0]
    assert first["lower_bound"] == first["memory"] > first["critical_path"]
    mechanisms = json.loads(program("bound", path, *words, "--mechanism", "all")[1])
    assert mechanisms["bounds"][0]["memory"] == first["memory"]
    assert all(row["makespan"] >= first["memory"] for row in mechanisms["mechanisms"])
    report = json.loads(program("report", path, *words)[1])
    assert (report["lower_bound"], report["limited_by"]) == (first["memory"], "memory bandwidth")
    assert all(row["makespan"] >= first["memory"] for row in report["schedules"])
    compared = json.loads(
        program("compare", path, path, *words, "--new-timing", sample_path(KERNEL_TIMES))[1]
    )
    bound = next(m for m in compared["metrics"] if m["metric"] == "upper_bound")
    assert bound["base"] == bound["new"] == report["upper_bound"]


def test_a_kernel_that_waits_inside_is_waited_for_as_a_whole_unless_the_user_says_otherwise(
    program, tmp_path
):
    """Kernel 0 adds up slices under a semaphore; each block of kernel 1 needs one block of it."""
    semaphore, data, out = (0x7F0000000000 + page * 0x1000 for page in range(3))
    lines = [launch_line(0, grid=(2, 1, 1)), launch_line(1, grid=(2, 1, 1))]
    for block in (0, 1):
        lines += [
            access_line(0, (block, 0, 0), "ATOMG.E.ADD.STRONG.GPU", [semaphore]),
            access_line(0, (block, 0, 0), "STG.E", [data + 4 * block]),
        ]
    lines.append(access_line(0, (1, 0, 0), "LDG.E", [data]))
    for block in (0, 1):
        lines += [
            access_line(1, (block, 0, 0), "LDG.E", [data + 4 * block]),
            access_line(1, (block, 0, 0), "STG.E", [out + 4 * block]),
        ]
    (tmp_path / "some.log").write_bytes(b"".join(lines))
    store = tmp_path / "out"
    assert program("extract", tmp_path / "some.log", "-o", store, "-q")[0] == 0
    times = tmp_path / "times.csv"
    times.write_text("kernel,block,duration_us\n0,0,1\n0,1,5\n1,0,5\n1,1,1\n")
    words = ("bound", store, "--sms", 2, "--occupancy", 1, "--timing", times, "--format", "json")

    def answer(*more):
        code, text, _ = program(*words, *more)
        assert code == 0
        found = json.loads(text)
        makespans = {row["schedule"]: row["makespan"] for row in found["schedules"]}
        return found["bounds"][0]["lower_bound"], makespans["dataflow (oldest-first)"]

    assert answer() == (6.0, 10.0)
    assert answer("--ignore-waits-inside") == (6.0, 6.0)
    notes = program(*words, "--ignore-waits-inside")[1]
    assert "blocks of kernel 0 may wait" in notes


@pytest.mark.parametrize("command", ["bound", "bound --mechanism serial", "report", "compare"])
def test_nothing_is_concluded_of_a_program_whose_blocks_take_no_time(program, tmp_path, command):
    (tmp_path / "some.log").write_bytes(launch_line(0) + launch_line(1))
    store = tmp_path / "out"
    words = ("extract", tmp_path / "some.log", "-o", store, "-q")
    assert program(*words, "--allow-empty")[0] == 0
    name, *options = command.split()
    stores = (store, store) if name == "compare" else (store,)
    code, out, err = program(name, *stores, "--sms", 4, *options)
    assert (code, out) == (1, "")
    assert "no block takes any time (traced warp instructions of each block)" in err


def test_it_is_said_why_no_block_takes_any_time(program, stores, tmp_path):
    times = tmp_path / "times.csv"
    times.write_text("kernel,duration_us\n0,0\n1,0\n2,0\n")
    _, _, err = program("bound", stores[0], "--sms", 4, "--timing", times)
    assert "no block takes any time (kernel times of times.csv): pass" in err
    _, _, err = program("bound", stores[0], "--sms", 4, "--what-if", "kernel=* duration*=0")
    assert "changed by --what-if): pass" in err
