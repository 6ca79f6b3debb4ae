"""Programs of several streams, with and without each kind of order between two kernels."""

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
from depgraph.parsers.recording.archive import SECTORS
from depgraph.parsers.recording.events import HostCalls
from depgraph.parsers.recording.packing import pack

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
    """Return where a launch of a graph begins or ends, and its edges, if they are known."""
    event = {"event": "graph", "begins": begins, "stream": on}
    if edges is None:
        return (event,)
    return {"event": "edges", "graph": 5, "pairs": edges}, event | {"graph": 5}


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
        *TWO, *graph(1, 1, []), kernel(1, 9, node=0), *graph(0, 1), RECORD, WAIT, SECOND,
    ),
    "an edge of a graph": (
        *TWO, *graph(1, 1, [[0, 1]]), kernel(1, 1, node=0), kernel(2, 1, node=1), *graph(0, 1),
    ),
    "edges of a graph past a node": (
        *TWO, *graph(1, 1, [[0, 1], [1, 2]]), kernel(1, 1, node=0),
        MEMSET | {"address": 1 << 20, "node": 1}, kernel(2, 1, node=2), *graph(0, 1),
    ),
    "the host waits for the legacy stream behind a blocking one": (
        stream(0, LEGACY), stream(1, BLOCKING), stream(2), FIRST, sync("stream", stream=0), SECOND,
    ),
    "an event of a blocking stream behind the legacy one": (
        stream(0, LEGACY), stream(1, BLOCKING), stream(2), kernel(1, 0), RECORD, WAIT, SECOND,
    ),
    "an event that the legacy stream waits for": (
        stream(0, LEGACY), stream(1), stream(2, BLOCKING),
        FIRST, RECORD, sync("wait", stream=0, id=7), SECOND,
    ),
    "a wait in the legacy stream between blocking ones": (
        stream(0, LEGACY), stream(1, BLOCKING), stream(2, BLOCKING),
        FIRST, sync("wait", stream=0, id=7), SECOND,
    ),
    "edges of a graph past a node that launches nothing": (
        *TWO, *graph(1, 1, [[0, 1], [1, 2]]), kernel(1, 1, node=0), kernel(2, 1, node=2),
        *graph(0, 1),
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
    "the host waits for a blocking stream behind the legacy one": (
        stream(0, LEGACY), stream(1, BLOCKING), stream(2),
        kernel(1, 0), sync("stream", stream=1), SECOND,
    ),
    "a stream that does not block": (stream(0, LEGACY), stream(1), FIRST, kernel(2, 0)),
    "the legacy stream of another context": (
        stream(0, LEGACY, 5), stream(1, BLOCKING, 0), FIRST, kernel(2, 0),
    ),
    "a copy on the device": (
        *TWO, FIRST,
        COPY | {"direction": 4, "from": 1 << 20, "to": 2 << 20, "stream": 1, "async": 0}, SECOND,
    ),
    "nodes without an edge": (
        *TWO, *graph(1, 1, []), kernel(1, 1, node=0), kernel(2, 1, node=1), *graph(0, 1),
    ),
    "nodes behind one node": (
        *TWO, *graph(1, 1, [[0, 1], [0, 2]]), MEMSET | {"address": 1 << 20, "node": 0},
        kernel(1, 1, node=1), kernel(2, 1, node=2), *graph(0, 1),
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
    found = races_of(*TWO, *graph(1, 1), kernel(1, 1), kernel(2, 1), *graph(0, 1), kernel(3, 2))
    assert (found.unjudged, [(r.source, r.target) for r in found.races]) == (1, [(1, 2)])


@pytest.mark.parametrize(
    "nodes",
    [
        [{"node": 0}, {}],  # a node that its graph lacks, such as one of a conditional node
        [{"node": 1}, {"node": 1}],
        [{"node": 1}, {"node": 0}],  # against the edges
    ],
)
def test_nodes_that_do_not_fit_their_graph_are_not_judged(races_of, nodes):
    first, second = (kernel(n, 1, **node) for n, node in enumerate(nodes, 1))
    found = races_of(*TWO, *graph(1, 1, [[0, 1]]), first, second, *graph(0, 1))
    assert (found.unjudged, found.races) == (1, ())


def test_recordings_that_do_not_tell_are_refused(tmp_path, sample_store):
    old = recorded_store(tmp_path, FIRST, SECOND)
    with pytest.raises(NotApplicableError, match=r"of a recording by an earlier version.*again"):
        find_races(old)
    with pytest.raises(NotApplicableError, match="record it with depgraph record"):
        find_races(sample_store)


def test_the_command(tmp_path, program):
    recorded_store(tmp_path, *UNORDERED["two streams"])
    done = program("check", "--races", "it.out", "--format", "json")
    content = json.loads(done.out)
    assert (done.code, content["n_races"], content["races"][0]["kinds"]) == (1, 1, ["WAW"])
    shown = program("check", "--races", "it.out").out
    assert "1 pair of accesses without an order" in shown
    assert "WAW        0x1000" in shown
    recorded_store(tmp_path, *ORDERED["an event"])
    assert program("check", "--races", "it.out").code == 0
    refused = program("check", "--races", "it.out", "--jobs", "2")
    assert (refused.code, "--races needs a store" in refused.err) == (2, True)


# The slow twin: what comes directly before what, as the CUDA programming guide says, searched anew
# for each pair. A program is a list of steps, each of them told to the reader of recordings, too.

STREAMS = {0: LEGACY, 1: BLOCKING, 2: BLOCKING, 3: NON_BLOCKING}


class Program:
    """A random program: its events, and of each moment those right before it."""

    def __init__(self):
        self.events = [stream(number, kind) for number, kind in STREAMS.items()]
        self.before = []
        self.moments = []  # of each operation
        self.tails = {number: [] for number in STREAMS}
        self.own = dict(self.tails)  # what a stream has done itself, the latest
        self.host, self.of_event, self.turns = [], {}, {}

    def moment(self, *before):
        self.before.append([each for some in before for each in some])
        return len(self.before) - 1

    def pending(self, on):
        waited = [number for number, kind in STREAMS.items() if kind != NON_BLOCKING]
        return [at for number in (waited if on == 0 else [on]) for at in self.tails[number]]

    def act(self, on, *before):
        """Let something begin in a stream; what the legacy one does the blocking ones wait for."""
        self.follow(on, [self.moment(self.pending(on), self.host, *before)])
        return self.tails[on][-1]

    def follow(self, on, moments):
        self.tails[on] = self.own[on] = moments
        for number, kind in STREAMS.items():
            if on == 0 and kind == BLOCKING:
                self.tails[number] = [*self.tails[number], *moments]

    def launch(self, on):
        self.events.append(kernel(len(self.moments) + 1, on))
        self.moments.append(self.act(on))

    def record(self, on, event):
        self.events.append(sync("record", stream=on, id=event))
        self.of_event[event] = [self.act(on)]

    def wait(self, on, event):
        self.events.append(sync("wait", stream=on, id=event))
        self.act(on, self.of_event.get(event, []))

    def host_waits_for_event(self, _, event):
        self.events.append(sync("event", id=event))
        self.host = [*self.host, *self.of_event.get(event, [])]

    def host_waits_for_stream(self, on, _):
        self.events.append(sync("stream", stream=on))
        # A stream that has nothing behind what the legacy one does has nothing to wait for.
        self.host = [*self.host, *(self.pending(on) if on == 0 else self.own[on])]

    def host_waits_for_all(self, *_):
        self.events.append(sync("context", context=0))
        self.host = [*self.host, *(at for tail in self.tails.values() for at in tail)]

    def launch_graph(self, on, number, nodes):
        """Launch a graph, whose nodes say what they wait for and whether they launch a kernel."""
        pairs = [[before, node] for node, (befores, _) in enumerate(nodes) for before in befores]
        turn = 100 + number  # launches of one graph come one after another
        self.wait(on, turn)
        self.events += graph(1, on, pairs)
        begin, of_node = self.act(on), []
        for node, (befores, is_kernel) in enumerate(nodes):
            of_node.append(self.moment([begin], [of_node[each] for each in befores]))
            if is_kernel:
                self.events.append(kernel(len(self.moments) + 1, on, node=node))
                self.moments.append(of_node[-1])
        self.follow(on, [self.moment([begin], of_node)])
        self.events.append(graph(0, on)[0])
        self.record(on, turn)

    def ordered(self):
        """Return the pairs of operations of which one has ended when the other one begins."""
        behind = []
        for before in self.before:
            behind.append(set(before).union(*(behind[each] for each in before)))
        at = self.moments
        return {(i, j) for j in range(len(at)) for i in range(j) if at[i] in behind[at[j]]}


WAITS = "record", "wait", "host_waits_for_event", "host_waits_for_stream", "host_waits_for_all"


def some_graph(random):
    """Return what each node of a graph waits for, and whether it launches a kernel."""
    n = random.randint(1, 6)
    befores = [random.sample(range(i), random.randint(0, min(i, 2))) for i in range(n)]
    return [(each, random.random() < 0.7) for each in befores]


def some_program(random):
    program = Program()
    for _ in range(30):
        on, event = random.choice(sorted(STREAMS)), random.randint(0, 2)
        step = random.random()
        if step < 0.4:
            program.launch(on)
        elif step < 0.55:
            program.launch_graph(on, event, some_graph(random))
        else:  # waits of the host for all of the device are rare: nothing is unordered behind them
            getattr(program, random.choices(WAITS, [6, 6, 2, 2, 0.3])[0])(on, event)
    return program


@given(st.randoms(use_true_random=True))
def test_what_is_ordered_is_what_a_search_finds(random):
    for program in [some_program(random) for _ in range(4)]:
        calls, streams = HostCalls(), []
        for event in program.events:
            if event["event"] == "kernel":
                calls.note_node(event, len(streams))
                streams.append(event["stream"])
            else:
                calls.take(event, len(streams))
        order = HostOrder(calls.all, streams, range(len(streams)))
        found = {(i, j) for j in range(len(streams)) for i in range(j) if order.is_ordered(i, j)}
        assert found == program.ordered()
