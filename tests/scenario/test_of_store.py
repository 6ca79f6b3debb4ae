"""From a store to a scenario: damaged times, and another store's, are refused whoever asks."""

import json
import warnings
from types import SimpleNamespace

import pytest
from stores import write_times

import depgraph
from depgraph.apply.recorded_call import make_predictor
from depgraph.errors import ModelError, ProfileError, StoreError
from depgraph.parsers.profiles import read_profile
from depgraph.store.companions import recorded_times, times_of

OTHER = "0" * 32
COMMANDS = [
    ["bound", "STORE", "--sms", "80"],
    ["bound", "STORE", "--sms", "80", "--mechanism", "serial"],
    ["report", "STORE", "-o", "page"],
    ["report", "STORE", "--metric", "upper_bound"],
    ["compare", "STORE", "STORE"],
    ["show", "STORE", "kernels"],
    ["show", "STORE", "kernels", "--group-by", "name"],
    ["show", "STORE", "pairs", "--what-if", "kernel=0 duration*=2"],
    ["show", "STORE", "pairs", "--cusync"],
    ["show", "STORE", "path"],
    ["show", "STORE", "buffers"],
    ["export", "STORE", "--what", "graph", "-o", "it.json"],
    ["export", "STORE", "--what", "schedule", "-o", "it.csv"],
]
TAKE_TIMING = [
    [*words, "--timing", "TIMES"]
    for words in COMMANDS
    if words[0] != "compare" and words[:3] != ["show", "STORE", "pairs"]
] + [
    ["compare", "STORE", "STORE", "--timing", "TIMES", "--new-timing", "TIMES"],
    ["show", "STORE", "pairs", "--cusync", "--timing", "TIMES"],
    ["timing", "TIMES", "STORE"],
]


@pytest.fixture
def store(timed_store, tmp_path, monkeypatch):
    """Return the store of a recording with its times beside it."""
    monkeypatch.chdir(tmp_path)
    return timed_store


def of_another(store):
    write_times(store, OTHER)
    return "goes with another store, not with the one beside it"


def changed(store):
    path = times_of(store.path)
    path.write_text(path.read_text().replace('"dur": 5.0', '"dur": 500.0', 1))
    return "has changed since it was written"


def cut(store):
    path = times_of(store.path)
    path.write_bytes(path.read_bytes()[:50])
    return "has changed since it was written"


FAULTS = [of_another, changed, cut]


def words_of(words, store, times=None):
    return [
        str({"STORE": store.path, "TIMES": times or times_of(store.path)}.get(word, word))
        for word in words
    ]


def predictor_of(store):
    """Ask as `depgraph.torch.parallelize` does, of a program that is one graph."""
    call = SimpleNamespace(store=store, operation=tuple(range(store.graph().n_operations)))
    return make_predictor(call, 132, read_profile, warnings.warn)


IN_PYTHON = [
    lambda store: depgraph.open(store.path),
    lambda store: depgraph.Scenario.of_store(store, depgraph.Request(read_profile=read_profile)),
    predictor_of,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_recorded_times_are_refused_through_every_command(program, store, fault):
    message = fault(store)
    for words in COMMANDS:
        result = program(*words_of(words, store))
        assert (result.code, message in result.err) == (1, True), words
        assert result.err.count("\n") == 1, words


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ask", IN_PYTHON)
def test_recorded_times_are_refused_in_python(store, ask, fault):
    message = fault(store)
    with pytest.raises(StoreError, match=message):
        ask(store)


@pytest.mark.parametrize("verb", ["bound", "report"])
@pytest.mark.parametrize("fault", FAULTS)
def test_recorded_times_are_refused_of_a_program_in_a_suite(program, store, fault, verb):
    message = fault(store)
    (store.path.parent / "suite.toml").write_text('[[program]]\nname = "it"\nstore = "it.out"\n')
    result = program(verb, "suite.toml", "--format", "json")
    assert result.code == 1
    (row,) = json.loads(result.out)["programs"]
    assert message in row["error"]
    assert "\n" not in row["error"]


@pytest.mark.jit_only
@pytest.mark.parametrize("words", TAKE_TIMING)
def test_times_of_another_store_that_are_named_are_taken_with_a_warning(program, store, words):
    times = times_of(store.path).rename(store.path.with_name("other.json"))
    of_another(store)
    times_of(store.path).rename(times)
    result = program(*words_of(words, store, times))
    assert result.code == 0, result.err
    line = f"depgraph: {times} holds times that were taken for another store\n"
    assert result.err.count(line) == 1 + (words[0] == "compare")


@pytest.mark.parametrize("words", TAKE_TIMING)
def test_damaged_times_that_are_named_are_refused(program, store, words):
    changed(store)
    times = times_of(store.path).rename(store.path.with_name("other.json"))
    result = program(*words_of(words, store, times))
    assert (result.code, "has changed since it was written" in result.err) == (1, True)
    assert result.err.count("\n") == 1


def test_times_that_are_named_in_python(store):
    times = times_of(store.path)
    of_another(store)
    for named in (times, read_profile(times)):
        request = depgraph.Request(times=named, read_profile=read_profile)
        with pytest.warns(UserWarning, match="taken for another store"):
            assert depgraph.Scenario.of_store(store, request).unit == "us"
    with pytest.warns(UserWarning, match="taken for another store"):
        depgraph.open(store.path, timing=times)
    cut(store)
    with pytest.raises((StoreError, ProfileError)):
        depgraph.open(store.path, timing=times)


def test_recorded_times_are_used_by_all_who_ask(store):
    assert recorded_times(store) == times_of(store.path)
    answers = [ask(store) for ask in IN_PYTHON]
    scenarios = [getattr(answer, "scenario", answer) for answer in answers]
    kernels = [s.durations[s.is_kernel[s.graph.operation_of_block]] for s in scenarios]
    assert all((each == kernels[0]).all() for each in kernels)
    with pytest.raises(ModelError, match="give read_profile"):
        depgraph.Scenario.of_store(store)


def test_times_of_no_store_are_not_used_without_a_word(program, store):
    write_times(store, "")
    result = program("bound", str(store.path), "--sms", "80", "--format", "json")
    assert result.code == 0
    assert "times.json" not in json.loads(result.out)["durations"]
    assert "is of no store: pass it with --timing" in result.err
    with pytest.warns(UserWarning, match="is of no store"):
        assert depgraph.open(store.path).scenario.fit is None


def test_a_gpu_is_a_model_or_a_name_or_a_file(store, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "Mine"\nbased_on = "V100"\nsms = 5\n')
    for gpu in (depgraph.load_gpu_file(file), file, str(file)):
        request = depgraph.Request(gpu=gpu, read_profile=read_profile)
        assert depgraph.Scenario.of_store(store, request).resources.gpu.sms == 5
    request = depgraph.Request(gpu="V100", read_profile=read_profile)
    assert depgraph.Scenario.of_store(store, request).resources.gpu.sms == 80
