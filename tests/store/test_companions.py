"""Files beside a store: intact and of this very store, or refused by whoever reads them."""

from __future__ import annotations

import json
import shutil

import pytest
from small_captures import captured

import depgraph
from depgraph.apply.captured import read_captures, write_captures
from depgraph.apply.prediction import recorded_profile
from depgraph.apply.recorded_call import read_recorded
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import StoreError
from depgraph.extraction.pipeline import extract
from depgraph.parsers import open_trace
from depgraph.recorder.times import as_trace
from depgraph.samples import sample_path
from depgraph.store.companions import (
    captures_of,
    read_companion,
    recorded_times,
    remove_stale,
    store_named_by,
    times_of,
    verdicts_of,
    write_companion,
)
from depgraph.store.store import Store

OTHER = "0" * 32


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    extract(open_trace(sample_path("recording/gru_train.recording")), folder / "it.out")
    return folder / "it.out"


@pytest.fixture
def store(extracted, tmp_path):
    """Return the store of a recording with its times beside it."""
    path = tmp_path / "it.out"
    shutil.copytree(extracted, path)
    store = Store(path)
    write_times(store, store.identity)
    return store


def write_times(store, identity):
    events = [
        {
            "ph": "X", "cat": "kernel", "name": k.name, "ts": 10.0 * k.kernel, "dur": 5.0,
            "args": {"device": 0, "stream": 7, "grid": k.grid, "block": k.block},
        }
        for k in store.kernels
    ]  # fmt: skip
    write_companion(times_of(store.path), as_trace(events, ["H100"]), store=identity)


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "it.json"
    write_companion(path, {"traceEvents": [{"ts": 0.5}], "name": "gr\u00fc\ud83d"}, store=OTHER)
    found = read_companion(path, OTHER)
    assert found["traceEvents"] == [{"ts": 0.5}]
    assert found == json.loads(path.read_text())
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


def test_another_stores_times_are_refused_through_every_entry(program, store):
    write_times(store, OTHER)
    for words in (
        ["bound", "--sms", "80"],
        ["report", "-o", "page"],
        ["compare", str(store.path)],
        ["show", "kernels"],
        ["show", "path"],
        ["show", "buffers"],
    ):
        result = program(words[0], str(store.path), *words[1:])
        assert (result.code, "not with the one beside it" in result.err) == (1, True), words
        assert result.err.count("\n") == 1
    for ask in (depgraph.open, lambda path: recorded_profile(Store(path))):
        with pytest.raises(StoreError, match="not with the one beside it"):
            ask(store.path)


def test_times_of_no_store_are_not_used_without_a_word(program, store):
    write_times(store, "")
    result = program("bound", str(store.path), "--sms", "80", "--format", "json")
    assert result.code == 0
    assert "times.json" not in json.loads(result.out)["durations"]
    assert "is of no store: pass it with --timing" in result.err


def test_changed_times_are_refused(program, store):
    path = times_of(store.path)
    assert recorded_times(store) == path
    path.write_text(path.read_text().replace('"dur": 5.0', '"dur": 500.0', 1))
    result = program("bound", str(store.path), "--sms", "80")
    assert result.code == 1
    assert "it.out.times.json: has changed since it was written" in result.err
    given = program("bound", str(store.path), "--sms", "80", "--timing", str(path))
    assert given.code == 1
    assert "has changed since it was written" in given.err


def test_captures_and_verdicts_go_with_their_store(store):
    write_captures(captures_of(store.path), [captured()], store=OTHER)
    with pytest.raises(StoreError, match="goes with another store"):
        read_recorded(store.path, 0)
    Verdicts().write(verdicts_of(store.path, 0), store=OTHER)
    with pytest.raises(StoreError, match="goes with another store"):
        Verdicts.read(verdicts_of(store.path, 0), store.identity)
    remove_stale(store.path, store.identity)
    assert not captures_of(store.path).exists()
    assert not verdicts_of(store.path, 0).exists()
    assert times_of(store.path).exists()
    times_of(store.path).write_text('{"traceEvents": []}')  # as an earlier version left them
    captures_of(store.path).write_text("[]")
    remove_stale(store.path, store.identity)
    assert not times_of(store.path).exists()
    assert not captures_of(store.path).exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"captures": Infinity}'])
def test_odd_captures_are_one_line(tmp_path, text):
    path = tmp_path / "captures.json"
    write_companion(path, {"captures": []})
    path.write_text(text)
    with pytest.raises(StoreError) as error:
        read_captures(path)
    assert "\n" not in str(error.value)
