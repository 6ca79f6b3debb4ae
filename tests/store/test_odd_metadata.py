"""Whatever stands in the JSON that depgraph writes: an answer, or one line."""

import json
import shutil
import warnings

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_captures import captured, memory, operator
from stores import set_metadata, write_times

import depgraph
from depgraph.apply.captured import read_captures, write_captures
from depgraph.apply.verdicts import Verdict, Verdicts
from depgraph.cli.app import in_one_line
from depgraph.errors import DepgraphError
from depgraph.store.companions import (
    CAPTURES,
    TIMES,
    captures_of,
    checked,
    read_companion,
    times_of,
    verdicts_of,
    write_companion,
)
from depgraph.store.store import Store

ODD = st.one_of(
    st.sampled_from(
        [
            None, True, -1, 0, 2**31, 2**32 - 1, 2**63, 2**64, 10**400, 1e308, 0.5, "", "7",
            "\ud800", "\0", "x" * 3000, [], {}, [[]], [{}], {"": {}}, "NaN", "RAW", [-1], [2**70],
        ]
    ),
    st.floats(),  # Infinity and NaN, too
    st.recursive(
        st.integers() | st.text() | st.floats(allow_nan=False) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
)  # fmt: skip


def places_in(value, at=()):
    """Yield the way to each value inside another."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield (*at, key)
        yield from places_in(value[key], (*at, key))


def changed(data, content):
    """Draw JSON that differs in one place from what depgraph writes."""
    content = json.loads(json.dumps(content))
    *way, key = data.draw(st.sampled_from(list(places_in(content))))
    holder = content
    for step in way:
        holder = holder[step]
    if data.draw(st.booleans()) and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = data.draw(ODD)
    return content


def ends_well(ask):
    """Ask; a refusal is one line, of an error that is meant."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of times that do not fit
            return ask()
    except DepgraphError as error:
        said = in_one_line(error)
        assert "\n" not in said
        assert len(said) < 2000
        return None


@pytest.fixture(scope="module")
def odd_store(recorded_store, tmp_path_factory):
    """Return a copy of a store, with all files beside it."""
    path = shutil.copytree(recorded_store, tmp_path_factory.mktemp("odd") / "it.out")
    store = Store(path)
    write_times(store, store.identity)
    graph = captured(operator("mm", [memory(0)], [memory(1)]))
    write_captures(captures_of(path), [graph], store=store.identity)
    Verdicts(weights=[1.0], graphs=[Verdict("free", "abc", 3.0)]).write(
        verdicts_of(path, 0), store=store.identity
    )
    return path


@pytest.mark.jit_only
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_odd_metadata(recorded_store, tmp_path_factory, data):
    path = shutil.copytree(recorded_store, tmp_path_factory.mktemp("odd") / "it.out")
    known = json.loads(pq.read_schema(path / "kernels.parquet").metadata[b"depgraph"])
    set_metadata(path, json.dumps(changed(data, known)))
    program = ends_well(lambda: depgraph.open(path))
    if program is not None:
        ends_well(lambda: program.bound([8]))
        ends_well(program.store._repr_html_)
        ends_well(program.scenario.graph.pairs)


READERS = {
    TIMES: depgraph.open,
    CAPTURES: lambda path: read_captures(captures_of(path), Store(path).identity),
    checked(0): lambda path: Verdicts.read(verdicts_of(path, 0), Store(path).identity),
}


@pytest.mark.jit_only
@pytest.mark.parametrize("what", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_odd_files_beside_a_store(odd_store, what, data):
    beside = {TIMES: times_of, CAPTURES: captures_of, checked(0): lambda s: verdicts_of(s, 0)}
    path = beside[what](odd_store)
    whole = path.read_bytes()
    content = changed(data, read_companion(path, what=what))
    try:
        if content:
            write_companion(path, content, store=Store(odd_store).identity, what=what)
        ends_well(lambda: READERS[what](odd_store))
    finally:
        path.write_bytes(whole)
