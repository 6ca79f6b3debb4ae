"""Computation beside communication: described collectives, and the rows that C3 has."""

import re

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st
from programs import edges_of
from small_graphs import graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import NotApplicableError, TraceError
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import Charges, find_mechanisms
from depgraph.parsers.workload import read_workload
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.store.store import Store, write_store

LINK = """\
[[link]]
name = "nvlink"
bandwidth = 100
alpha = 10
dma_bandwidth = 50
"""
GEMM = """\
[[kernel]]
name = "gemm"
grid = 8
duration = 10
occupancy = 1
"""
REDUCE = """\
[[kernel]]
name = "reduce"
kind = "collective"
link = "nvlink"
"""


def read(tmp_path, text):
    path = tmp_path / "program.toml"
    path.write_text(text)
    return read_workload(path)


def rows_of(extraction, sms, *names):
    """Return makespans of mechanisms on so many SMs."""
    scenario = build_scenario(extraction.graph, extraction.kernels, metadata=extraction.metadata)
    found = compare_mechanisms(scenario, [sms], find_mechanisms(names))
    assert not found.left_out
    return [row.makespan for row in found.outcomes]


def test_a_collective_takes_alpha_and_its_bytes_over_the_bandwidth(tmp_path):
    found = read(tmp_path, f"{LINK}{GEMM}{REDUCE}sms = 2\nbytes = 4_000_000\ngroups = [3, 1]\n")
    first, second = found.kernels[1:]
    assert (first.name, second.name, first.blocks, first.stream) == ("reduce[0]", "reduce[1]", 2, 1)
    assert found.graph.duration[8:].tolist() == [40, 40, 20, 20]  # 3 MB and 1 MB at 100 GB/s


def test_the_described_link_of_the_documentation(tmp_path):
    page = (ROOT / "docs" / "overlap.md").read_text()
    start = page.index("    [[link]]")
    text = "\n".join(line[4:] for line in page[start : page.index("A part takes")].splitlines())
    found = read(tmp_path, f"{GEMM}{text}")
    assert [kernel.blocks for kernel in found.kernels] == [8, 24, 24, 24, 24]
    assert found.graph.duration[8] == pytest.approx(10 + 134217728 / 4 / 330e3)
    assert found.metadata["communication"]["links"][0]["dma_alpha"] == 8


def test_groups_wait_for_their_tiles_and_kernels_for_theirs(tmp_path):
    found = read(
        tmp_path,
        f"""{LINK}{GEMM}{REDUCE}sms = 1
duration = 8
groups = [3, 1]
[[kernel]]
name = "after"
grid = 4
duration = 1
[[dependence]]
from = "gemm"
to = "reduce"
pattern = "groups"
[[dependence]]
from = "reduce"
to = "after"
pattern = "groups"
""",
    ).graph
    assert [(source, target) for source, target, _ in edges_of(found)] == [
        *((s, 8) for s in range(6)), (6, 9), (7, 9), (8, 10), (8, 11), (8, 12), (9, 13),
    ]  # fmt: skip


def test_a_store_keeps_links_and_copy_engines(tmp_path):
    text = f'{LINK}{GEMM}{REDUCE}engine = "dma"\nduration = 30\n'
    extraction = read(tmp_path, text)
    write_store(extraction, tmp_path / "store")
    store = Store(tmp_path / "store")
    scenario = build_scenario(store.graph(), store.kernels, metadata=store.metadata).on(4)
    assert scenario.occupancy.tolist() == [1, 1]
    assert scenario.resources.need.tolist() == [[1], [0]]
    assert scenario.work == 20
    assert rows_of(extraction, 4, "serial", "c3") == [50, 30]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('engine = "tma"\nsms = 1\nbytes = 8', ":15: engine 'tma'; give one of sm, dma"),
        ("sms = 1", "collective 'reduce' needs bytes or a duration; give one"),
        ("bytes = 8", "collective 'reduce' has no sms; give how many SMs it takes"),
        ('engine = "dma"\nsms = 1\nbytes = 8', ":16: sms of a collective by dma"),
        ("sms = 0\nbytes = 8", ":15: sms 0; give a whole number from 1"),
        ("sms = 1\nbytes = 0", ":16: bytes 0; give a whole number from 1"),
        ("sms = 1\nduration = -1", ":16: duration -1; give a number from 0"),
        ("sms = 1\nbytes = 8\ngroups = []", r":17: groups \[\]; give a number from 1 to 4096"),
        ("sms = 1\nbytes = 8\ngroups = 5000", ":17: groups 5000"),
        ("sms = 1\nbytes = 8\nblock = 2000", "2000 threads in a block; at most 1024"),
        ("sms = 1\nbytes = 8\nunits = 8", ":17: unknown key 'units'"),
        ("sms = 1\nbytes = 8\nduration = 1", "needs bytes or a duration; give one"),
    ],
)
def test_a_collective_that_makes_no_sense_is_refused_with_its_line(tmp_path, lines, message):
    with pytest.raises(TraceError, match=message):
        read(tmp_path, f"{LINK}{GEMM}{REDUCE}{lines}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{GEMM}kind = "copy"', ':6: kind \'copy\'; give "kernel" or "collective"'),
        (f"{GEMM}{REDUCE}sms = 1\nbytes = 8", "link = 'nvlink'; describe it"),
        (f"{LINK}{LINK}{GEMM}", ":7: a second link called 'nvlink'; name it apart"),
        (f'[[link]]\nname = "a"\n{GEMM}', r"link 'a' has no bandwidth; give bandwidth \(GB/s\)"),
        (f"[[link]]\nbandwidth = 0\n{GEMM}", ":2: bandwidth 0; give a number from"),
        (f"{LINK}engines = 0\n{GEMM}", ":6: engines 0; give a whole number from 1"),
        (f"{LINK}speed = 1\n{GEMM}", ":6: unknown key 'speed'"),
        (f"link = 3\n{GEMM}", r":1: link 3; write \[\[link\]\] tables"),
        (
            f'unit = "cycles"\n{LINK}{GEMM}{REDUCE}sms = 1\nbytes = 8',
            "bytes over GB/s are no cycles; give a duration",
        ),
        (
            f"{LINK}{GEMM}{REDUCE}sms = 1\nbytes = 8\ngroups = 2\n{GEMM}".replace(
                "gemm", "reduce[1]"
            ),
            "a second kernel called 'reduce\\[1\\]'",
        ),
        (
            "{}{}[[dependence]]\nfrom = 'gemm'\nto = 'b'\npattern = 'groups'".format(
                GEMM, GEMM.replace("gemm", "b")
            ),
            "groups are of a kernel and a collective",
        ),
    ],
)
def test_links_that_make_no_sense_are_refused(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read(tmp_path, text)


def test_every_row_by_hand(tmp_path):
    """Two waves on 4 SMs beside 24 us on 2 SMs; a copy engine has half the bandwidth."""
    text = LINK.replace("alpha = 10", "alpha = 4") + GEMM + REDUCE + "sms = 2\nduration = 24\n"
    rows = {
        "serial": 44,
        "c3": 44,  # SMs are full until the last tile ends
        "c3-first": 24 + 10,  # 4 tiles on 2 SMs in 20, 2 running from 20 to 30, 2 from 24 on
        "c3-reserved": 40,  # 8 tiles on 2 SMs
        "c3-reserved(1)": 48,  # one SM for two blocks
        "c3-both": 40,
        "c3-dma": 44,  # 4 + 20 at half the bandwidth
        "c3-dma(1)": 44,
    }
    found = rows_of(read(tmp_path, text), 4, *rows)
    assert dict(zip(rows, found, strict=True)) == rows


def test_what_copy_engines_move_takes_no_sm(tmp_path):
    text = LINK + GEMM.replace("grid = 8", "grid = 4") + REDUCE + "sms = 4\nduration = 40\n"
    found = read(tmp_path, text)
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata)
    (row,) = compare_mechanisms(scenario, [4], find_mechanisms(["c3-dma"])).outcomes
    assert row.utilization == row.held == 10 / row.makespan


def test_computation_and_communication_slow_each_other(tmp_path):
    slowed = LINK + "computation_slowed = 0.5\ncommunication_slowed = 0.25\n"
    text = slowed + GEMM + REDUCE + 'engine = "dma"\nduration = 20\n'
    # The second wave began at 15, has done 6.7 of its 10 when the copy ends at 25.
    (found,) = rows_of(read(tmp_path, text), 4, "c3")
    assert found == pytest.approx(25 + 10 / 3)


@pytest.mark.jit_only
def test_the_public_predictor_of_flashoverlap():
    """38 waves on 108 SMs are 39 on 106; the last group of 280 tiles is sent when all are done."""
    found = read_workload(ROOT / "samples" / "workloads" / "flashoverlap.toml")
    (groups, pool) = rows_of(found, 108, "c3-groups(2)", "dataflow(newest-first)")
    assert groups == pytest.approx(39 * 118.76085 + 3000 * 280 / 4096)
    assert groups == pytest.approx(4836.8, abs=0.06)
    assert pool == pytest.approx(groups, rel=1e-3)


@pytest.mark.jit_only
def test_the_ladder_of_conccl():
    found = read_workload(ROOT / "samples" / "workloads" / "conccl.toml")
    names = ["serial", "c3", "c3-first", "c3-reserved", "c3-both", "c3-dma"]
    serial, *rows = rows_of(found, 304, *names)
    assert [100 * (serial / row - 1) for row in rows] == pytest.approx(
        [0, 46.3, 46.3, 46.3, 66.7], abs=0.1
    )


def test_without_collectives_there_is_no_row(tmp_path):
    found = read(tmp_path, GEMM)
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata).on(4)
    for mechanism in find_mechanisms(["c3", "c3-dma(1)"]):
        with pytest.raises(NotApplicableError, match="no collectives: describe some"):
            mechanism.rules(scenario, Charges(mechanism.costs))


@pytest.mark.parametrize(("groups", "merge"), [(2, "1,2"), (3, "2,3"), (1, "0,1")])
def test_it_is_said_that_a_merge_leaves_no_collective(tmp_path, groups, merge):
    """Nor is a part of one that was merged taken for computation."""
    found = read(tmp_path, f"{LINK}{GEMM}{REDUCE}sms = 2\nduration = 24\ngroups = {groups}\n")
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata)
    merged = apply_what_ifs(scenario, [parse_what_if(f"merge={merge}")])
    rows = compare_mechanisms(merged, [4], find_mechanisms(["serial", "c3"]))
    assert [row.mechanism for row in rows.outcomes] == ["serial"]
    assert re.match(r"merge= made reduce.* part of another kernel", rows.left_out["c3"])


def test_some_sms_are_left_to_computation(tmp_path):
    found = read(tmp_path, LINK + GEMM + REDUCE + "sms = 4\nduration = 24\n")
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata)
    left_out = compare_mechanisms(scenario, [4], find_mechanisms(["c3-reserved"])).left_out
    assert left_out == {"c3-reserved": "4 of 4 SMs leave computation none"}


@pytest.mark.parametrize("name", ["c3", "c3-reserved", "c3-both(99)", "c3-dma(1)"])
def test_unlimited_sms_are_not_divided(tmp_path, name):
    """No SMs are reserved, and the slowdown beside one another is not counted, nor said to be."""
    text = LINK + "computation_slowed = 0.5\n" + GEMM + REDUCE + "sms = 4\nduration = 24\n"
    found = read(tmp_path, text)
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata)
    comparison = compare_mechanisms(scenario, [float("inf")], find_mechanisms([name]))
    assert not comparison.left_out
    (row,) = comparison.outcomes
    assert row.makespan == (10 + 14 * 2 if "dma" in name else 24)
    assert not any("SMs" in note or "beside" in note for note in row.assumptions)


def test_rows_are_a_share_of_the_ideal_where_there_are_collectives(tmp_path):
    """Eight blocks of 10 us on 4 SMs, 20 us, and a collective of 24 us: 44 / 24 at best."""
    found = read(tmp_path, LINK + GEMM + REDUCE + "sms = 1\nduration = 24\n")
    scenario = build_scenario(found.graph, found.kernels, metadata=found.metadata)
    names = ["serial", "c3-first", "dataflow", "stream-k", "ideal"]
    comparison = compare_mechanisms(scenario, [4], find_mechanisms(names))
    for row in comparison.outcomes:
        if row.mechanism == "ideal":  # that of unlimited SMs, which beats this one
            assert row.share_of_ideal is None
        else:
            gain = (row.overlap_speedup - 1) / (44 / 24 - 1)
            assert row.share_of_ideal == pytest.approx(gain)
    against = {row.mechanism: row.against for row in comparison.outcomes}
    assert against.pop("serial") == against.pop("c3-first") == "block"
    assert against.pop("stream-k") == "work"
    assert against.pop("ideal") == "unlimited SMs"
    assert set(against.values()) == {"links ignored"}
    best = comparison.best(4)
    assert best is not None
    assert best.mechanism == "c3-first"


def test_rows_of_programs_without_collectives_have_no_ideal():
    program = scenario_of(graph_of([4, 4], []), np.ones(8), sms=4)
    comparison = compare_mechanisms(program, [4], find_mechanisms(["serial"]))
    assert comparison.outcomes[0].share_of_ideal is None


@st.composite
def described(draw):
    """Return a described program: kernels and collectives, some of them dependent."""
    slowed = draw(st.sampled_from([0, 0.25]))
    text = LINK + f"computation_slowed = {slowed}\ncommunication_slowed = {slowed}\n"
    n = draw(st.integers(1, 3))
    for i in range(n):
        text += f'[[kernel]]\nname = "k{i}"\ngrid = {draw(st.integers(1, 9))}\n'
        text += f"duration = {draw(st.integers(1, 9))}\noccupancy = {draw(st.integers(1, 2))}\n"
        engine = draw(st.sampled_from(["sm", "dma"]))
        text += f'[[kernel]]\nname = "c{i}"\nkind = "collective"\nlink = "nvlink"\n'
        text += f'engine = "{engine}"\nduration = {draw(st.integers(1, 40))}\n'
        text += f"groups = {draw(st.integers(1, 3))}\n"
        text += f"sms = {draw(st.integers(1, 2))}\n" * (engine == "sm")
        if draw(st.booleans()):
            text += f'[[dependence]]\nfrom = "k{i}"\nto = "c{i}"\npattern = "groups"\n'
    return text, slowed


NAMES = ["c3", "c3-first", "c3-reserved", "c3-both(1)", "c3-dma", "c3-dma(1)", "c3-groups"]


@given(described(), st.sampled_from(NAMES), st.integers(3, 6), st.sampled_from(["none", "full"]))
def test_laws(tmp_path_factory, program, name, sms, contention):
    """No row is below its bound, nor below either side alone; dependences are kept."""
    text, slowed = program
    found = read(tmp_path_factory.mktemp("laws"), text)
    scenario = build_scenario(
        found.graph, found.kernels, metadata=found.metadata, contention=contention
    )
    comparison = compare_mechanisms(scenario, [sms], find_mechanisms([name]))
    if comparison.left_out:
        return
    (row,) = comparison.outcomes
    assert row.makespan >= row.lower_bound * (1 - 1e-9)
    assert row.share_of_bound is None or row.share_of_bound <= 1
    assert row.utilization <= 1 + 1e-9
    assert row.predicted is None or row.predicted >= 0.3 * row.makespan
    talks = np.array([kernel.name.startswith("c") for kernel in found.kernels])
    of_block = talks[found.graph.operation_of_block]
    # The link moves one collective at a time; no engine of this link beats SMs.
    link_time = sum(found.graph.duration[found.graph.first_block[k]] for k in np.flatnonzero(talks))
    computing = scenario.resources.work(
        found.graph.operation_of_block, np.where(of_block, 0, found.graph.duration), sms
    )
    assert row.makespan >= max(link_time, computing) * (1 - 1e-9)
    if not slowed and name in ("c3", "c3-groups"):
        serial = comparison.limits[0].serial
        assert serial / row.makespan <= serial / max(link_time, computing) * (1 + 1e-9)


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("policy", "gpu", "said"),
    [
        ("c3", "MI300X", "not to be believed on GPUs of AMD"),
        ("c3", "H100 SXM", ""),
        ("c3-first", "MI300X", ""),
        ("c3-dma", "MI300X", ""),
        ("c3-dma(8)", "MI300X", "not to be believed: SMs fewer"),
    ],
)
def test_rows_that_hardware_contradicts_say_so(policy, gpu, said):
    found = read_workload(ROOT / "samples/workloads/conccl.toml")
    scenario = build_scenario(
        found.graph, found.kernels, gpu=load_gpu(gpu), metadata=found.metadata
    )
    (row,) = compare_mechanisms(scenario, [132], find_mechanisms([policy])).outcomes
    doubts = [note for note in row.assumptions if "not to be believed" in note]
    assert len(doubts) == bool(said)
    assert all(note.startswith(said) for note in doubts)
