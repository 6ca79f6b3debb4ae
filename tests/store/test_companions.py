"""Files beside a store: intact and of this very store, or refused by whoever reads them."""

import json
import resource
from contextlib import contextmanager

import pytest
from small_captures import captured, memory, operator
from stores import make_oldest, make_version, write_times

from depgraph.apply.captured import read_captures, write_captures
from depgraph.apply.recorded_call import read_recorded
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import OutputError, StoreError
from depgraph.parsers.profiles import read_profile
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.companions import (
    captures_of,
    check_companions,
    read_companion,
    recorded_times,
    remove_stale,
    store_named_by,
    times_of,
    verdicts_of,
    write_companion,
)
from depgraph.store.schema import OLDEST_VERSION, SCHEMA_VERSION
from depgraph.store.store import Store

OTHER = "0" * 32


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "it.json"
    write_companion(path, {"traceEvents": [{"ts": 0.5}], "name": "gr\u00fc\ud83d"}, store=OTHER)
    found = read_companion(path, OTHER)
    assert found == {"traceEvents": [{"ts": 0.5}], "name": "gr\u00fc\ud83d"}
    assert json.loads(path.read_text()).items() > found.items()
    assert store_named_by(path) == OTHER


def test_each_changed_byte_is_refused(tmp_path):
    path = tmp_path / "it.json"
    write_companion(path, {"call": 1, "nodes": ["a", "b"]}, store=OTHER)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for flip in (1, 32, 255):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            with pytest.raises(StoreError):
                read_companion(path, OTHER)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreError):
            read_companion(path, OTHER)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_each_flipped_byte_beside_a_store_is_refused(timed_store, step):
    graph = captured(operator("mm", [memory(0)], [memory(1)]))
    write_captures(captures_of(timed_store.path), [graph], store=timed_store.identity)
    Verdicts(weights=[1.0]).write(verdicts_of(timed_store.path, 0), store=timed_store.identity)
    check_companions(timed_store)
    for path in timed_store.path.parent.glob("it.out.*.json"):
        whole = path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            for place, byte in list(enumerate(whole))[::step]:
                file.seek(place)
                file.write(bytes([byte ^ 1 << place % 8]))
                with pytest.raises(StoreError):
                    check_companions(timed_store)
                file.seek(place)
                file.write(bytes([byte]))


def test_companions_go_with_their_store(timed_store):
    write_captures(captures_of(timed_store.path), [captured()], store=OTHER)
    with pytest.raises(StoreError, match="goes with another store"):
        read_recorded(timed_store.path, 0)
    Verdicts().write(verdicts_of(timed_store.path, 0), store=OTHER)
    with pytest.raises(StoreError, match="goes with another store"):
        Verdicts.read(verdicts_of(timed_store.path, 0), timed_store.identity)


def test_companions_are_what_their_names_say(timed_store):
    found = Verdicts(refused="it fails")
    found.write(verdicts_of(timed_store.path, 0), store=timed_store.identity)
    check_companions(timed_store)
    verdicts_of(timed_store.path, 0).rename(verdicts_of(timed_store.path, 1))
    with pytest.raises(StoreError, match="holds checked-0, not checked-1"):
        Verdicts.read(verdicts_of(timed_store.path, 1), timed_store.identity, call=1)
    with pytest.raises(StoreError, match="holds checked-0, not checked-1"):
        check_companions(timed_store)
    times_of(timed_store.path).rename(captures_of(timed_store.path))
    with pytest.raises(StoreError, match="holds times, not captures"):
        read_captures(captures_of(timed_store.path))


def test_what_does_not_go_with_a_new_store_is_removed(timed_store):
    write_captures(captures_of(timed_store.path), [captured()], store=OTHER)
    Verdicts().write(verdicts_of(timed_store.path, 0), store=OTHER)
    remove_stale(timed_store.path, timed_store.identity)
    assert not captures_of(timed_store.path).exists()
    assert not verdicts_of(timed_store.path, 0).exists()
    assert times_of(timed_store.path).exists()
    times_of(timed_store.path).write_text('{"traceEvents": []}')  # as an earlier version left them
    captures_of(timed_store.path).write_text("[]")
    remove_stale(timed_store.path, timed_store.identity)
    assert not times_of(timed_store.path).exists()
    assert not captures_of(timed_store.path).exists()


def test_times_are_taken_as_they_were_when_they_were_looked_at(timed_store):
    path = times_of(timed_store.path)

    def read(found):
        assert found == path
        write_times(timed_store, OTHER)  # another process puts others there now
        return read_profile(found)

    with pytest.raises(StoreError, match="was replaced while it was read"):
        Scenario.of_store(timed_store, Request(read_profile=read))


@contextmanager
def disk_with(room):
    """Let no file grow larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 100, 250])
def test_a_full_disk_leaves_what_was_there(timed_store, room):
    path, folder = verdicts_of(timed_store.path, 0), timed_store.path.parent
    before = sorted(folder.iterdir())
    with disk_with(room), pytest.raises(OutputError, match="cannot be written"):
        Verdicts(notes=["a"] * 100).write(path, store=timed_store.identity)
    assert sorted(folder.iterdir()) == before
    Verdicts(refused="no").write(path, store=timed_store.identity)
    with disk_with(room), pytest.raises(OutputError, match="cannot be written"):
        Verdicts(notes=["a"] * 100).write(path, store=timed_store.identity)
    assert Verdicts.read(path, timed_store.identity).refused == "no"
    assert sorted(folder.iterdir()) == sorted([*before, path])


@pytest.mark.parametrize("version", [OLDEST_VERSION, SCHEMA_VERSION + 1])
def test_companions_of_a_store_of_another_schema(timed_store, version):
    path = times_of(timed_store.path)
    if version == OLDEST_VERSION:
        make_oldest(timed_store.path)
    else:
        make_version(timed_store.path, version)
        with pytest.raises(StoreError, match=f"has schema version {version}"):
            Store(timed_store.path)
        return
    older = Store(timed_store.path)
    assert recorded_times(older) == path  # it is the same store, and these are its times
    write_times(older, OTHER)
    with pytest.raises(StoreError, match="goes with another store"):
        recorded_times(older)


def test_half_of_a_companion_is_refused(timed_store):
    path = times_of(timed_store.path)
    whole = path.read_bytes()
    for size in (0, 1, 40, 150, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"has changed|was not written by this depgraph"):
            recorded_times(timed_store)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"captures": Infinity}'])
def test_odd_captures_are_one_line(tmp_path, text):
    path = tmp_path / "captures.json"
    write_companion(path, {"captures": []})
    path.write_text(text)
    with pytest.raises(StoreError) as error:
        read_captures(path)
    assert "\n" not in str(error.value)
