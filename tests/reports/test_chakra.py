"""Chakra execution traces: what is written is read back to the schema, and by depgraph itself."""

import gzip
import itertools

import pytest
from chakra_reader import read
from cutracer_files import access, metadata, ndjson
from hypothesis import given
from hypothesis import strategies as st

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.parsers.profiles.chakra import is_chakra
from depgraph.reports.export.protobuf import delimited, embedded, varint, whole


@pytest.fixture
def exported(program, timed_store, tmp_path):
    """Return a function that exports the packaged recording with its times."""

    def made(*options):
        path = tmp_path / "it.et"
        words = "export", timed_store.path, "--what", "schedule", "-o", path, *options
        assert program(*words).code == 0
        return path

    return made


def test_nodes_have_the_dependences_of_the_store(exported, timed_store):
    metadata, nodes = read(exported("--schedule", "serial"))
    assert metadata["version"]
    assert metadata["attr"]["generator"] == "depgraph"
    numbers = timed_store.graph().kernel.tolist()
    assert [node["id"] for node in nodes] == list(range(len(numbers)))
    found = {"data_deps": set(), "ctrl_deps": set()}
    for node in nodes:
        for kind, pairs in found.items():
            pairs |= {(numbers[s], numbers[node["id"]]) for s in node.get(kind, [])}
    expected = {"data_deps": set(), "ctrl_deps": set()}
    for pair in timed_store.pairs:
        expected["data_deps" if pair.raw else "ctrl_deps"].add((pair.source, pair.target))
    assert found == expected
    assert found["data_deps"]
    assert found["ctrl_deps"]


def test_nodes_have_times_and_streams(exported, timed_store):
    _, nodes = read(exported("--schedule", "serial"))
    names = {k.operation: k.name for k in timed_store.kernels}
    for node in nodes:
        attributes = node["attr"]
        assert attributes["is_cpu_op"] == 0
        assert node["duration_micros"] == round(attributes["duration_us"])
        if node["id"] in names:
            assert (node["name"], node["type"]) == (names[node["id"]], "COMP_NODE")
            assert attributes["stream"] == 0
    kernels = [node for node in nodes if node["id"] in names]
    for before, after in itertools.pairwise(kernels):
        assert before["start_time_micros"] <= after["start_time_micros"]


def test_nodes_take_as_long_as_alone(program, tmp_path):
    code = "LDG.E R4, [R2.64] ;", "STG.E [R2.64], R4 ;"
    for launch, block, opcode in ((1, 0, 1), (2, 1, 0)):
        about = metadata((2, 1, 1), instructions=code)
        record = access(launch, (block, 0, 0), None, [1 << 40], opcode=opcode)
        (tmp_path / f"kernel_{launch}.ndjson").write_bytes(ndjson(about, record))
    assert program("extract", tmp_path, "-o", tmp_path / "two.out").code == 0
    words = "export", tmp_path / "two.out", "--what", "schedule", "--sms", "8", "-o"
    assert program(*words, tmp_path / "two.et").code == 0
    _, (_, second) = read(tmp_path / "two.et")
    # Its other block starts with the first kernel; the one that reads waits for that to end.
    assert (second["data_deps"], second.get("start_time_micros", 0)) == ([0], 0)
    assert (second["duration_micros"], second["attr"]["duration_instructions"]) == (1, 1.0)


def test_counts_are_no_times(program, sample_store, tmp_path):
    words = "export", sample_store.path, "--what", "schedule", "-o", tmp_path / "it.et"
    assert "durations are instructions, which readers take for microseconds" in program(*words).err
    with pytest.raises(ProfileError, match=r"durations are instructions, no times.*--timing"):
        read_profile(tmp_path / "it.et")


def test_raw_alone(exported):
    _, nodes = read(exported("--deps", "raw"))
    assert not any(node.get("ctrl_deps") for node in nodes)


@pytest.mark.jit_only
def test_depgraph_reads_its_own(exported, timed_store, program):
    path = exported("--schedule", "serial")
    profile = read_profile(path)
    assert profile.format == "chakra"
    assert list(profile.name) == [kernel.name for kernel in timed_store.kernels]
    _, nodes = read(path)
    exact = [n["attr"]["duration_us"] for n in nodes if "grid_x" in n["attr"]]
    assert profile.duration.tolist() == pytest.approx([1000 * us for us in exact])
    assert program("bound", timed_store.path, "--timing", path, "--sms", "8").code == 0


def node(**more):
    """Return a node as PyTorch's converter writes it, without a start."""
    stream = more.pop("stream", whole(9, 7))
    attributes = {"is_cpu_op": whole(27, more.pop("cpu", 0)), "stream": stream}
    fields = b"".join(embedded(10, embedded(1, n) + v) for n, v in attributes.items())
    name = more.pop("name", "kernel")
    return embedded(2, name) + whole(3, more.pop("type", 4)) + whole(7, 5) + fields


METADATA = delimited(embedded(1, "0.0.4"))


def test_nodes_of_the_host_are_left_out(tmp_path):
    path = tmp_path / "rank.et"
    nodes = [node(name="a"), node(cpu=1), node(name="nccl", type=7), node(type=1)]
    path.write_bytes(gzip.compress(METADATA + b"".join(map(delimited, nodes))))
    profile = read_profile(path)
    assert profile.name == ("a", "nccl")
    assert profile.duration.tolist() == [5000, 5000]
    assert profile.stream.tolist() == [7, 7]
    assert profile.start is None
    assert profile.skipped == {"nodes of the host, copies and metadata": 2}
    assert any("whole microseconds" in note for note in profile.notes)


def test_a_stream_may_be_a_number_of_any_kind(tmp_path):
    from depgraph.reports.export.protobuf import real

    kinds = whole(13, 5), whole(11, 6), real(3, float("inf"))
    nodes = [node(name=f"k{n}", stream=value) for n, value in enumerate(kinds)]
    (tmp_path / "it.et").write_bytes(METADATA + b"".join(map(delimited, nodes)))
    assert read_profile(tmp_path / "it.et").stream.tolist() == [5, 6, -1]


def test_a_node_that_is_there_twice_is_refused(tmp_path):
    twice = delimited(whole(1, 4) + node())
    (tmp_path / "it.et").write_bytes(METADATA + twice + twice)
    with pytest.raises(ProfileError, match="node 4 is there twice"):
        read_profile(tmp_path / "it.et")


def test_a_cut_file_is_refused(tmp_path):
    path = tmp_path / "rank.et"
    path.write_bytes((METADATA + delimited(node()) + delimited(node()))[:-3])
    with pytest.raises(ProfileError, match=r"node 2 is damaged \(it ends early\)"):
        read_profile(path)


@pytest.mark.parametrize(
    "field",
    [
        embedded(10, b"\x08"),  # an attribute that ends early
        embedded(10, embedded(1, "stream") + embedded(9, "x")),
        whole(0, 1),
        embedded(3, "text"),
    ],
)
def test_a_damaged_node_is_refused(tmp_path, field):
    path = tmp_path / "rank.et"
    path.write_bytes(METADATA + delimited(node()) + delimited(node() + field))
    with pytest.raises(ProfileError, match=r"node 2 is damaged.*copy the file again"):
        read_profile(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_told_apart(data):
    assert is_chakra(data) in {True, False}


@given(st.integers(0, 2**64 - 1))
def test_numbers_come_back(value):
    from chakra_reader import read_varint

    assert read_varint(varint(value), 0) == (value, len(varint(value)))
