"""The manifest of a recording: no part of it is missing, unknown, there twice or changed."""

import hashlib
import json
import os
import warnings
import zipfile
from pathlib import Path

import pytest
from recordings import KERNEL, recording

from depgraph.errors import DepgraphError, TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import MARK, TABLES, Archive
from depgraph.samples import sample_path

# Every byte where this is set, in the nightly workflow or by hand.
FLIPS_EVERY_BYTE = "DEPGRAPH_TEST_FLIPS" in os.environ
SAMPLE = Path(sample_path("recording/gru_train.recording"))


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path, members, *more):
    """Write a recording with these members, and some more of any name."""
    path.write_bytes(MARK)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in [*members.items(), *more]:
            archive.writestr(name, content)
    return path


def read_whole(path):
    """Read all that is in a recording, as the commands do one by one."""
    archive = Archive(path)
    try:
        events = list(archive.events())
        numbers = [event["number"] for event in events if event["event"] == "kernel"]
        tables = [archive.table(name, number).tobytes() for number in numbers for name in TABLES]
        return events, tables
    finally:
        archive.close()


def test_each_member_is_missed_by_name(tmp_path):
    members = members_of(SAMPLE)
    for left_out in members:
        some = {name: content for name, content in members.items() if name != left_out}
        with pytest.raises(TraceError, match=f"{left_out}'? is missing"):
            Archive(packed(tmp_path / "it.recording", some))


@pytest.mark.parametrize("name", ["sectors/0000001", "events.jsonl", "manifest.json"])
def test_a_member_that_is_there_twice_is_refused(tmp_path, name):
    members = members_of(SAMPLE)
    path = packed(tmp_path / "it.recording", members, (name, members[name]))
    with pytest.raises(TraceError, match=f"'{name}' is there twice"):
        Archive(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sectors/9999999", "is not in its manifest"),
        ("sectors/1", "is no part of a recording"),
        ("tables/0000001", "is no part of a recording"),
    ],
)
def test_a_member_that_is_not_known_is_refused(tmp_path, name, said):
    with pytest.raises(TraceError, match=f"'{name}' {said}"):
        Archive(packed(tmp_path / "it.recording", members_of(SAMPLE), (name, b"")))


def test_members_that_change_places_are_refused(tmp_path):
    members = members_of(SAMPLE)
    a, b = (name for name in list(members)[:3] if name.startswith("sectors/"))
    members[a], members[b] = members[b], members[a]
    path = packed(tmp_path / "it.recording", members)
    with pytest.raises(TraceError, match=r"is not as large as|is not what its manifest says"):
        read_whole(path)


OTHER = Path(__file__).parents[2] / "recorder/data/hooks.recording"


@pytest.mark.parametrize("taken", ["manifest.json", "sectors/", "e", "m"])
def test_members_of_another_programs_recording_are_refused(tmp_path, taken):
    members = members_of(SAMPLE)
    own = {name: content for name, content in members.items() if not name.startswith(taken)}
    others = {n: content for n, content in members_of(OTHER).items() if n.startswith(taken)}
    path = packed(tmp_path / "it.recording", own | others)
    with pytest.raises(TraceError, match="is a damaged recording") as caught:
        read_whole(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "manifest",
    ["[]", "{}", '{"members": []}', '{"members": {"about.json": 1}}', "[" * 10_000, "\x00"],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, manifest):
    members = members_of(SAMPLE) | {"manifest.json": manifest.encode()}
    with pytest.raises(TraceError, match="is a damaged recording") as caught:
        Archive(packed(tmp_path / "it.recording", members))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", [0, 1, None, "many", 2**70])
def test_row_counts_are_held_against_sizes(tmp_path, rows):
    members = members_of(SAMPLE)
    manifest = json.loads(members["manifest.json"])
    name = next(name for name in manifest["members"] if name.startswith("sectors/"))
    manifest["members"][name]["rows"] = rows
    members["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(TraceError, match=f"'{name}' has other rows"):
        Archive(packed(tmp_path / "it.recording", members))


REFUSED = "refused in one line"


def outcome(path):
    """Return what is in a recording, or that it is refused."""
    try:
        return read_whole(path)
    except TraceError as error:
        return f"refused in {str(error).count(chr(10)) + 1} lines".replace("1 lines", "one line")


@pytest.mark.jit_only
@pytest.mark.parametrize("shard", range(8))
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, shard):
    path = tmp_path / "it.recording"
    whole, expected = SAMPLE.read_bytes(), read_whole(SAMPLE)
    names = whole.index(b"PK\x01\x02")  # the directory of the archive
    places = range(len(whole))
    if not FLIPS_EVERY_BYTE:
        places = [*range(0, names, 211), *range(names, len(whole), 41)]
    path.write_bytes(whole)
    with path.open("r+b") as file:
        for place in places[shard::8]:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << place % 8]))
            file.flush()
            assert outcome(path) in (expected, REFUSED), place
            file.seek(place)
            file.write(whole[place : place + 1])


@pytest.mark.jit_only
def test_recordings_of_earlier_versions_are_read_with_a_warning(tmp_path):
    members = members_of(SAMPLE)
    del members["manifest.json"]
    about = json.loads(members["about.json"]) | {"format": 2}
    members["about.json"] = json.dumps(about).encode()
    old = analyse(open_trace(packed(tmp_path / "old.recording", members)))
    new = analyse(open_trace(SAMPLE))
    (extra,) = old.metadata["warnings"].keys() - new.metadata["warnings"].keys()
    assert "does not tell whether parts of it are missing" in extra
    assert old.pairs == new.pairs


def bomb(tmp_path, **members):
    whole = {"about.json": b'{"format": 1}', "events.jsonl": json.dumps(KERNEL).encode()}
    names = {name.replace("_", "/") if "_" in name else f"{name}": name for name in members}
    return packed(tmp_path / "bomb.recording", whole | {n: members[k] for n, k in names.items()})


def test_what_a_memory_limit_forbids_is_not_unpacked(program, tmp_path):
    path = bomb(tmp_path, sectors_0000001=bytes(200 << 20))
    result = program("extract", str(path), "--memory-limit", "512MiB")
    assert result.code == 1
    assert "sectors/0000001 is 200.0 MiB unpacked, of which at most 85.3 MiB is read" in result.err
    assert "--memory-limit" in result.err


def test_a_large_about_is_refused(program, tmp_path):
    members = {"about.json": b'{"format": 1, "program": "' + b"a" * (8 << 20) + b'"}'}
    path = packed(tmp_path / "bomb.recording", members)
    result = program("extract", str(path))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "about.json is 8.0 MiB unpacked" in result.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}", "says one thing 200 times and more"),
        (b'{"event": "fault", "what": "a"}', "says one thing 200 times and more"),
    ],
)
def test_millions_of_events_that_say_nothing_are_refused(program, tmp_path, line, said):
    events = b"\n".join([line] * 2_000_000)
    path = packed(
        tmp_path / "bomb.recording", {"about.json": b'{"format": 1}', "events.jsonl": events}
    )
    result = program("extract", str(path))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert said in result.err


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({}, "event 1 is of a kind that is not known: None"),
        ({"event": ["kernel"]}, "event 1 is of a kind that is not known"),
        (KERNEL | {"name": "\ud800"}, "name is .*ud800.*, no text"),
        (KERNEL | {"mangled": "a\udfff"}, "mangled is .*, no text"),
        (KERNEL | {"ranges": ["\ud83d"]}, "ranges is .*, no text"),
        (KERNEL | {"registers": 2**32 - 1}, "registers is 4294967295"),
        (KERNEL | {"static_shared": 2**32 - 1}, "static_shared is 4294967295"),
        (KERNEL | {"stream": float("inf")}, "Infinity is no number"),
    ],
)
def test_what_no_recorder_writes_is_one_line(tmp_path, event, said):
    members = {"about.json": b'{"format": 1}', "events.jsonl": json.dumps(event).encode()}
    with pytest.raises(TraceError, match=said) as caught:
        open_trace(packed(tmp_path / "it.recording", members))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("about", [[], {"format": "3"}, {"format": True}, {"format": None}])
def test_an_about_of_other_types_is_one_line(tmp_path, about):
    path = packed(tmp_path / "it.recording", {"about.json": json.dumps(about).encode()})
    with pytest.raises(DepgraphError) as caught:
        open_trace(path)
    assert "\n" not in str(caught.value)


def test_tables_of_no_launch_are_refused(tmp_path):
    members = {"about.json": b'{"format": 2}', "events.jsonl": json.dumps(KERNEL).encode()}
    with pytest.raises(TraceError, match="'sectors/0000007' is of no launch"):
        open_trace(packed(tmp_path / "it.recording", members, ("sectors/0000007", b"")))


def sealed(members):
    """Return members with the manifest that goes with them."""
    known = json.loads(members["manifest.json"])["members"]
    for name, member in known.items():
        digest = hashlib.sha256(members[name]).hexdigest()
        member |= {"bytes": len(members[name]), "sha256": digest}
    return members | {"manifest.json": json.dumps({"members": known}).encode()}


def test_events_that_are_fewer_than_the_manifest_counts_are_refused(tmp_path):
    members = members_of(SAMPLE)
    members["events.jsonl"] = members["events.jsonl"].rpartition(b"\n")[0]
    with pytest.raises(TraceError, match="has other rows than its manifest says"):
        open_trace(packed(tmp_path / "it.recording", sealed(members)))


@pytest.mark.parametrize("name", ["about.json", "events.jsonl", "sectors/0000001"])
def test_members_of_another_recording_are_refused(tmp_path, name):
    members, other = members_of(SAMPLE), members_of(SAMPLE)
    other["about.json"] = other["about.json"].replace(b'"process": ', b'"process": 1')
    other["events.jsonl"] = other["events.jsonl"].replace(b'"name": "', b'"name": "x')
    other["sectors/0000001"] = other["sectors/0000001"][::-1]
    read_whole(packed(tmp_path / "other.recording", sealed(other)))
    mixed = packed(tmp_path / "it.recording", members | {name: other[name]})
    with pytest.raises(TraceError, match=name):
        read_whole(mixed)


@pytest.mark.parametrize(
    ("key", "value"),
    [("process", -1), ("process", "7"), ("device", 0.5), ("architecture", 10**6), ("program", "x")],
)
def test_what_a_recording_says_of_itself_is_checked(tmp_path, key, value):
    members = members_of(SAMPLE)
    members["about.json"] = json.dumps(json.loads(members["about.json"]) | {key: value}).encode()
    with pytest.raises(TraceError, match=f"about.json says .* for '{key}'"):
        Archive(packed(tmp_path / "it.recording", sealed(members)))


def test_keys_that_are_there_twice_are_refused(tmp_path):
    members = members_of(SAMPLE)
    members["about.json"] = members["about.json"].replace(b"{", b'{"device": 0, "device": 0, ', 1)
    with pytest.raises(TraceError, match="'device' is there twice"):
        Archive(packed(tmp_path / "it.recording", sealed(members)))


def test_row_counts_stand_in_the_manifest(tmp_path):
    path = recording(tmp_path, KERNEL, sectors=[(128 + i, 0, 1, 1, 0, 0, 1) for i in range(3)])
    manifest = json.loads(members_of(path)["manifest.json"])["members"]
    assert manifest["sectors/0000001"]["rows"] == 3
    assert manifest["sectors/0000001"]["bytes"] == 3 * TABLES["sectors"].itemsize
