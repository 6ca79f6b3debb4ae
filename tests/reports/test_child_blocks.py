"""Reports, timelines and exported schedules show parents and the children that they launched."""

import base64
import csv
import gzip
import itertools
import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from launching import launches_of, with_launches
from small_graphs import graph_of, kernels_of, scenario_of

from depgraph.analysis.study import study
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.reports.export import perfetto
from depgraph.reports.page.study_report import study_report
from depgraph.reports.page.timeline import timeline_data
from depgraph.reports.plots.utilization_over_time import plot

COSTS = {"cdp": {k: Quantity(v, "") for k, v in (("stall", 2), ("lane", 0))}}


@pytest.fixture(scope="module")
def found():
    """Return two kernels; block 1 of the first may launch 3 child blocks, block 2 of it one."""
    graph = graph_of([3, 2], [((0, 0), (1, 0))])
    rows = [
        {"block": 1, "child_grid": 3, "child_duration": 5, "inline": 30, "items": 9},
        {"block": 2, "child_grid": 1, "child_duration": 5, "inline": 5},
    ]
    kernels = kernels_of([3, 2], ["expand", "next"])
    scenario = scenario_of(graph, [4.0] * 5, kernels=kernels, sms=2)
    timing = replace(scenario.timing, unit="cycles")
    scenario = with_launches(replace(scenario, timing=timing), launches_of(rows))
    resources = replace(scenario.resources, gpu_is_assumed=True)
    scenario = replace(scenario, resources_of=lambda _: resources)
    drawn = find_mechanisms(["flat", "cdp", "cdp(9)"])
    return study(scenario, drawn=drawn, costs=COSTS)


def schedule_of(found, name):
    (plan,) = [s for s in found.schedules if s.name == name]
    return plan


def test_a_slice_for_each_child_block_that_ran(found, tmp_path):
    file = tmp_path / "timeline.json.gz"
    perfetto.write_perfetto(found, file)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    process = {
        e["pid"]: e["args"]["name"].split(" on ")[0]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    children = [e for e in events if e["ph"] == "X" and e["name"] == "child of 0 expand"]
    counted = {name: sum(process[e["pid"]] == name for e in children) for name in process.values()}
    assert [counted[name] for name in ("serial", "flat", "cdp", "cdp(9)")] == [0, 0, 4, 3]
    assert {(e["args"]["launch"], e["args"]["parent"]) for e in children} == {(0, 1), (1, 2)}
    lanes = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in lanes.values():
        slices.sort(key=lambda e: e["ts"])
        for before, after in itertools.pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def test_the_page_has_the_children_of_a_kernel_after_all_kernels(found):
    data, cuts = timeline_data(found)
    assert cuts == []
    assert data["blocks"] == 5 + 4
    last = data["operations"][-1]
    assert (last["name"], last["first"], last["kernel"]) == ("children of expand", 5, 2)
    sm = {
        s["name"]: np.frombuffer(base64.b64decode(s["sm"]), "<i4").tolist()
        for s in data["schedules"]
    }
    assert [n >= 0 for n in sm["cdp(9)"][5:]] == [True, True, True, False]
    assert sm["flat"][5:] == [-1] * 4


def test_no_more_is_held_than_there_is(found):
    for schedule in found.schedules:
        assert 0 <= found.utilization(schedule) <= 1
    assert found.utilization(schedule_of(found, "flat")) == (5 * 4 + 35) / 2 / 38
    assert "cdp" in plot(found).result.lower()


def test_the_report_has_a_row_for_each(found):
    tables = {table.key: table for table in study_report(found).tables}
    rows = [dict(zip([c.key for c in tables["child_kernels"].columns], row, strict=True))
            for row in tables["child_kernels"].rows]  # fmt: skip
    assert [row["mechanism"] for row in rows] == ["flat", "cdp", "cdp(9)"]
    assert [row["launches"] for row in rows] == [0, 2, 1]
    assert [row["possible_launches"] for row in rows] == [2, 2, 2]
    path = tables["path"]
    assert sum(step.duration for step in found.path) == found.bound.critical_path
    assert path.rows


def test_files_of_the_worked_cases_give_their_times_from_end_to_end(program):
    workloads = resources.files("depgraph.samples") / "workloads"
    for name, times, made in (
        ("launches_few", [410_000, 117_400, 86_000, 86_000], [0, 16, 1, 1]),
        ("launches_many", [120_000, 293_600, 120_000, 120_000], [0, 64, 0, 0]),
    ):
        extracted = program("extract", workloads / f"{name}.toml", "-o", name)
        assert f"{max(made)} launches from the device" in extracted.out
        asked = "flat,cdp,cdp(best),spawn"
        done = program("bound", name, "--sms", 8, "--mechanism", asked, "--format", "json")
        rows = json.loads(done.out)["child_kernels"]
        assert [row["makespan"] for row in rows] == times
        assert [row["launches"] for row in rows] == made


def test_an_exported_schedule_names_the_launch_of_child_blocks(program, tmp_path):
    workload = resources.files("depgraph.samples") / "workloads" / "launches_few.toml"
    program("extract", workload, "-o", "few")
    program(
        "export", "few", "--what", "schedule", "--mechanism", "spawn", "--sms", 8, "-o", "s.csv"
    )
    with (tmp_path / "s.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    children = [row for row in rows if row["launch"]]
    assert (len(rows), len(children)) == (24, 8)
    assert max(float(row["end"]) for row in children) == 86_000


@pytest.mark.parametrize(
    "options", [["--contention", "full"], ["--what-if", "kernel=0 duration*=2"]]
)
def test_what_cannot_count_children_is_refused_in_a_line(program, options):
    workload = resources.files("depgraph.samples") / "workloads" / "launches_few.toml"
    program("extract", workload, "-o", "few")
    done = program("bound", "few", "--sms", 8, *options)
    assert done.code == 1
    assert "do not count child kernels" in done.err
    assert done.err.count("\n") == 1
