"""The timeline for Perfetto holds to the trace event format, and shows what the schedules hold."""

import gzip
import itertools
import json
from collections import Counter, defaultdict

import pytest
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.study import study
from depgraph.reports.export import perfetto

SIZES = [5, 7, 3]


def study_of(edges, names=None, cost=None, sms=2):
    graph = graph_of(SIZES, edges, cost=cost)
    scenario = scenario_of(graph, occupancy=2, kernels=kernels_of(SIZES, names), sms=sms)
    return study(scenario)


@pytest.fixture(scope="module")
def found():
    return study_of(chain_edges(SIZES), cost=[1 + 0.1 * i for i in range(sum(SIZES))])


@pytest.fixture(scope="module")
def file(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("perfetto") / "timeline.json.gz"
    assert perfetto.write_perfetto(found, path) == 0
    return path


def read(file):
    return json.loads(gzip.decompress(file.read_bytes()))


def of_phase(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_events_have_the_fields_that_the_format_asks_for(file):
    needed = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "M": {"name", "pid", "tid", "args"},
        "C": {"name", "pid", "tid", "ts", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    }
    for event in read(file)["traceEvents"]:
        assert set(event) - {"ph"} == needed[event["ph"]]
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_there_is_a_process_a_schedule_and_a_slice_a_block(found, file):
    trace = read(file)
    names = {
        e["pid"]: e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "process_name"
    }
    assert len(names) == len(found.schedules) == 2
    assert names[1].startswith("serial on 2 SMs")
    assert "1 us here is 1 of instructions" in names[1]
    slices = Counter(event["pid"] for event in of_phase(trace, "X"))
    assert slices == {1: sum(SIZES), 2: sum(SIZES)}


def test_slices_are_where_and_when_the_schedule_says(found, file):
    trace = read(file)
    serial = found.schedules[0]
    tracks = {
        e["tid"]: e["args"]["name"]
        for e in of_phase(trace, "M")
        if e["name"] == "thread_name" and e["pid"] == 1
    }
    first_block = found.graph.first_block
    for event in of_phase(trace, "X"):
        if event["pid"] == 1:
            block = first_block[event["args"]["kernel"]] + event["args"]["block"]
            assert event["ts"] == pytest.approx(serial.start[block], abs=0.001)
            assert event["dur"] == pytest.approx(
                serial.end[block] - serial.start[block], abs=0.0011
            )
            assert tracks[event["tid"]].startswith(f"SM {serial.sm[block]} slot ")


def test_slices_of_one_track_do_not_overlap(file):
    tracks = defaultdict(list)
    for event in of_phase(read(file), "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        assert all(b[0] >= a[1] - 1e-6 for a, b in itertools.pairwise(slices))


def test_arrows_follow_the_critical_path_from_slice_to_slice(found, file):
    trace = read(file)
    starts = {e["id"]: e for e in of_phase(trace, "s")}
    ends = {e["id"]: e for e in of_phase(trace, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * (len(found.path) - 1)

    def slice_around(event):
        (inside,) = (
            (e["args"]["kernel"], e["args"]["block"])
            for e in of_phase(trace, "X")
            if (e["pid"], e["tid"]) == (event["pid"], event["tid"])
            and e["ts"] <= event["ts"] < e["ts"] + e["dur"]
        )
        return inside

    steps = [(step.kernel, step.block) for step in found.path]
    arrows = {(slice_around(starts[i]), slice_around(ends[i])) for i in starts}
    assert arrows == set(itertools.pairwise(steps))


def test_the_counter_ends_at_zero_and_stays_within_a_hundred(file):
    for pid in (1, 2):
        counts = [e for e in of_phase(read(file), "C") if e["pid"] == pid]
        values = [e["args"]["percent"] for e in counts]
        assert values[-1] == 0
        assert 0 < max(values) <= 100
        assert [e["ts"] for e in counts] == sorted(e["ts"] for e in counts)


def test_all_arrows_come_on_request_and_are_capped(found, tmp_path, monkeypatch):
    everything = tmp_path / "all.json.gz"
    assert perfetto.write_perfetto(found, everything, flows="all") == 0
    edges = len(chain_edges(SIZES))
    assert len(of_phase(read(everything), "s")) == 2 * edges
    monkeypatch.setattr(perfetto, "MOST_FLOWS", 3)
    assert perfetto.write_perfetto(found, everything, flows="all") == edges - 3
    assert len(of_phase(read(everything), "s")) == 2 * 3
    assert read(everything)["otherData"]["flows_left_out"] == edges - 3


def test_two_runs_give_the_same_bytes(found, file, tmp_path):
    again = tmp_path / "another name.json.gz"
    perfetto.write_perfetto(found, again)
    assert again.read_bytes() == file.read_bytes()


def test_hostile_names_are_json_strings(tmp_path):
    hostile = '"},{"ph":"X\\</script>\x1b[2J\n'
    file = tmp_path / "t.json.gz"
    perfetto.write_perfetto(study_of([], [hostile, "b", "c"]), file)
    trace = read(file)
    assert trace["otherData"]["kernels"]["0"].startswith('"},{"ph":"X\\</script>')
    assert len(of_phase(trace, "X")) == 2 * sum(SIZES)


def test_the_trace_processor_reads_it(found, file):
    api = pytest.importorskip("perfetto.trace_processor")
    try:
        processor = api.TraceProcessor(trace=str(file))
    except Exception as error:  # noqa: BLE001  it fetches its program at first use
        pytest.skip(f"the trace processor does not start: {type(error).__name__}")
    with processor:

        def count(query):
            return next(iter(processor.query(query))).n

        assert count("select count(*) n from slice") == 2 * sum(SIZES)
        assert count("select count(*) n from flow") == 2 * (len(found.path) - 1)
        assert count("select count(*) n from stats where severity = 'error' and value > 0") == 0
