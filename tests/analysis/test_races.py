"""Programs of several streams, with and without each kind of order between two kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import COPY, KERNEL, MEMSET

from depgraph.analysis.races import HostOrder, find_races
from depgraph.errors import NotApplicableError
from depgraph.extraction.pipeline import extract
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import SECTORS, pack
from depgraph.trace.records import HOST_CALLS, HostCall

LEGACY, BLOCKING, NON_BLOCKING = 0, 1, 2
ADDRESS = 128 * 32
# Bytes that a kernel reads, writes, and reads by atomics or ordered loads.
MASKS = {True: (0, 1, 0), False: (1, 0, 0), "atomic": (0, 1, 1), "ordered": (0, 0, 1)}


def stream(number, kind=NON_BLOCKING, context=0):
    return {"event": "stream", "stream": number, "context": context, "kind": kind}


def sync(what, **about):
    return {"event": "sync", "what": what, **about}


def kernel(number, on, *, writes=True, **more):
    """Return a kernel that touches the same 32 bytes as all others."""
    return KERNEL | {"number": number, "grid_id": number, "stream": on, "writes": writes} | more


def graph(begins, on, edges=None):
    known = {} if edges is None else {"edges": edges}
    return {"event": "graph", "begins": begins, "stream": on, **known}


@pytest.fixture
def races_of(tmp_path):
    """Return a function that records a program and finds its races."""

    def found(*events):
        return find_races(recorded_store(tmp_path, *events))

    return found


def recorded_store(folder, *events, fresh=True):
    raw, made = b"", []
    for given_event in events:
        event = dict(given_event)
        if event["event"] == "kernel":
            masks = MASKS[event.pop("writes")]
            row = np.array([(128, 0, event["number"], *masks, 1)], SECTORS)
            event |= {"sectors_at": len(raw), "sectors": 1}
            raw += row.tobytes()
        made.append(event)
    path = folder / "it.recording"
    pack(path, {"process": 1}, made, np.frombuffer(raw, np.uint8))
    return extract(open_trace(path), folder / "it.out", force=fresh)


TWO = stream(1), stream(2)
FIRST, SECOND = kernel(1, 1), kernel(2, 2)
RECORD, WAIT = sync("record", stream=1, id=7), sync("wait", stream=2, id=7)
LEGACY_ONE = kernel(3, 0) | {"writes": False}

ORDERED = {
    "one stream": (*TWO, FIRST, kernel(2, 1)),
    "an event": (*TWO, FIRST, RECORD, WAIT, SECOND),
    "the host waits for an event": (*TWO, FIRST, RECORD, sync("event", id=7), SECOND),
    "the host waits for the stream": (*TWO, FIRST, sync("stream", stream=1), SECOND),
    "the host waits for the context": (*TWO, FIRST, sync("context", context=0), SECOND),
    "a third stream": (
        *TWO, stream(3), FIRST, RECORD, sync("wait", stream=3, id=7),
        sync("record", stream=3, id=8), sync("wait", stream=2, id=8), SECOND,
    ),
    "the legacy stream behind a blocking one": (
        stream(0, LEGACY), stream(1, BLOCKING), FIRST, kernel(2, 0),
    ),
    "a blocking stream behind the legacy one": (
        stream(0, LEGACY), stream(1, BLOCKING), kernel(1, 0), kernel(2, 1),
    ),
    "the legacy stream between blocking ones": (
        stream(0, LEGACY), stream(1, BLOCKING), stream(2, BLOCKING),
        FIRST, MEMSET | {"address": 1 << 20}, SECOND,
    ),
    "a copy to the host that is waited for": (
        *TWO, FIRST, COPY | {"direction": 3, "from": 4 << 20, "to": 0, "stream": 1, "async": 0},
        SECOND,
    ),
    "an event of a graph launch": (
        *TWO, graph(1, 1, []), kernel(1, 9, node=0), graph(0, 1), RECORD, WAIT, SECOND,
    ),
    "an edge of a graph": (
        *TWO, graph(1, 1, [[0, 1]]), kernel(1, 1, node=0), kernel(2, 1, node=1), graph(0, 1),
    ),
    "edges of a graph past a node": (
        *TWO, graph(1, 1, [[0, 1], [1, 2]]), kernel(1, 1, node=0),
        MEMSET | {"address": 1 << 20, "node": 1}, kernel(2, 1, node=2), graph(0, 1),
    ),
}  # fmt: skip
UNORDERED = {
    "two streams": (*TWO, FIRST, SECOND),
    "an event of before": (*TWO, RECORD, FIRST, WAIT, SECOND),
    "an event that is waited for too late": (*TWO, FIRST, RECORD, SECOND, WAIT),
    "an event that is recorded anew": (
        *TWO, FIRST, sync("record", stream=2, id=7), WAIT, SECOND,
    ),
    "an event that was never recorded": (*TWO, FIRST, WAIT, SECOND),
    "a wait for another stream": (*TWO, FIRST, sync("stream", stream=2), SECOND),
    "a wait for another context": (*TWO, FIRST, sync("context", context=4), SECOND),
    "a stream that does not block": (stream(0, LEGACY), stream(1), FIRST, kernel(2, 0)),
    "the legacy stream of another context": (
        stream(0, LEGACY, 5), stream(1, BLOCKING, 0), FIRST, kernel(2, 0),
    ),
    "a copy on the device": (
        *TWO, FIRST,
        COPY | {"direction": 4, "from": 1 << 20, "to": 2 << 20, "stream": 1, "async": 0}, SECOND,
    ),
    "nodes without an edge": (
        *TWO, graph(1, 1, []), kernel(1, 1, node=0), kernel(2, 1, node=1), graph(0, 1),
    ),
    "nodes behind one node": (
        *TWO, graph(1, 1, [[0, 1], [0, 2]]), MEMSET | {"address": 1 << 20, "node": 0},
        kernel(1, 1, node=1), kernel(2, 1, node=2), graph(0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_an_order_is_no_race(races_of, name):
    found = races_of(*ORDERED[name])
    assert (found.races, found.unjudged, found.conflicts) == ((), 0, 1)


@pytest.mark.parametrize("name", UNORDERED)
def test_without_an_order_there_is_one(races_of, name):
    (race,) = races_of(*UNORDERED[name]).races
    assert (race.source, race.target, race.kinds) == (0, 1, ("WAW",))
    assert (race.address, race.size) == (ADDRESS, 1)


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [(True, False, [("RAW",)]), (False, True, [("WAR",)]), (False, False, [])],
)
def test_one_of_two_must_write(races_of, first, second, kinds):
    program = (*TWO, kernel(1, 1, writes=first), kernel(2, 2, writes=second))
    assert [race.kinds for race in races_of(*program).races] == kinds


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        ("atomic", "atomic", []),
        ("atomic", "ordered", []),
        ("ordered", "atomic", []),
        ("atomic", True, [("WAR", "WAW")]),
        (True, "atomic", [("RAW", "WAW")]),
        ("atomic", False, [("RAW",)]),
        (True, "ordered", [("RAW",)]),
    ],
)
def test_atomics_do_not_race_with_each_other(races_of, first, second, kinds):
    program = (*TWO, kernel(1, 1, writes=first), kernel(2, 2, writes=second))
    assert [race.kinds for race in races_of(*program).races] == kinds


def test_an_atomic_hides_no_other_that_nothing_orders_it_with(races_of):
    atomics = [kernel(n, n, writes="atomic") for n in (1, 2, 3)]
    last = sync("record", stream=3, id=7), sync("wait", stream=4, id=7)
    program = (*TWO, stream(3), stream(4), *atomics, *last, kernel(4, 4, writes=False))
    found = races_of(*program)
    assert [(race.source, race.target) for race in found.races] == [(0, 3), (1, 3)]
    assert races_of(*program[:-1], sync("context", context=0), program[-1]).races == ()


def test_copies_and_memsets_race_too(races_of):
    memset = MEMSET | {"address": ADDRESS, "stream": 2}
    (race,) = races_of(*TWO, FIRST, memset).races
    assert (race.source, race.target, race.source_stream, race.target_stream) == (0, -1, 1, 2)


def test_the_buffer_is_the_allocation(races_of):
    memory = {"event": "alloc", "address": ADDRESS, "bytes": 512, "flags": 0, "context": 0}
    (race,) = races_of(memory, *TWO, FIRST, SECOND).races
    assert race.buffer == ""  # nobody told who allocated it


def test_a_graph_of_unknown_edges_is_not_judged(races_of):
    found = races_of(*TWO, graph(1, 1), kernel(1, 1), kernel(2, 1), graph(0, 1), kernel(3, 2))
    assert (found.unjudged, [(r.source, r.target) for r in found.races]) == (1, [(1, 2)])


def test_recordings_that_do_not_tell_are_refused(tmp_path, sample_store):
    old = recorded_store(tmp_path, FIRST, SECOND)
    with pytest.raises(NotApplicableError, match=r"of a recording by an earlier version.*again"):
        find_races(old)
    with pytest.raises(NotApplicableError, match="record the program with depgraph record"):
        find_races(sample_store)


def test_the_command(tmp_path, program):
    recorded_store(tmp_path, *UNORDERED["two streams"])
    done = program("check", "--races", "it.out", "--format", "json")
    content = json.loads(done.out)
    assert (done.code, content["n_races"], content["races"][0]["kinds"]) == (1, 1, ["WAW"])
    assert "1 pair of accesses without an order" in program("check", "--races", "it.out").out
    recorded_store(tmp_path, *ORDERED["an event"])
    assert program("check", "--races", "it.out").code == 0
    refused = program("check", "--races", "it.out", "--jobs", "2")
    assert (refused.code, "--races needs a store" in refused.err) == (2, True)


# The slow twin: a graph of what comes before what, searched anew for each pair.


def naive_order(calls, streams):  # noqa: C901 - one branch a kind of call
    """Return the pairs of operations of which the first has ended when the second starts."""
    after, last, events, host, kinds = {}, {}, {}, set(), {}
    legacy = next((c.stream for c in calls if c.what == "legacy stream"), None)

    def settled(stream):
        before = set(last.get(stream, ())) | host
        if stream == legacy:
            for other, done in last.items():
                before |= done if kinds.get(other) != "non-blocking stream" else set()
        elif kinds.get(stream) == "blocking stream" and legacy is not None:
            before |= last.get(legacy, set())
        last[stream] = before
        return before

    for n, stream in enumerate([*streams, None]):
        for call in [c for c in calls if c.operation == n]:
            if call.what.endswith("stream") and not call.what.startswith("host"):
                kinds[call.stream] = call.what
                last.setdefault(call.stream, set())
            elif call.what == "record":
                events[call.event] = set(settled(call.stream))
            elif call.what == "wait":
                last[call.stream] = last.get(call.stream, set()) | events.get(call.event, set())
            elif call.what == "host waits for event":
                host |= events.get(call.event, set())
            elif call.what == "host waits for stream":
                host |= settled(call.stream)
            elif call.what == "host waits for context":
                for each in last.values():
                    host |= each
        if stream is not None:
            before = settled(stream)
            after[n] = set(before)
            last[stream] = before | {n}
    return {(i, j) for j, before in after.items() for i in before}


SOME = st.sampled_from(HOST_CALLS[4:9])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 8), SOME, st.integers(0, 3), st.integers(0, 2)), max_size=10),
    st.lists(st.sampled_from(HOST_CALLS[1:3]), min_size=3, max_size=3),
)
def test_what_is_ordered_is_what_a_search_finds(streams, drawn, kinds):
    declared = [HostCall(0, kind, n, context=0) for n, kind in enumerate(["legacy stream", *kinds])]
    calls = declared + [
        HostCall(min(at, len(streams)), what, stream, event, 0)
        for at, what, stream, event in sorted(drawn, key=lambda call: call[0])
    ]
    order = HostOrder(calls, streams, range(len(streams)))
    found = {(i, j) for j in range(len(streams)) for i in range(j) if order.is_ordered(i, j)}
    assert found == naive_order(calls, streams)
