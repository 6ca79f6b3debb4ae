"""``--wall``: how long a program takes without a profiler, wherever that is said."""

import json

import pytest

from depgraph.samples import KERNEL_TIMES, sample_path

TIMES = sample_path(KERNEL_TIMES)
WORDS = ("--timing", TIMES, "--sms", 132, "--format", "json")
DOUBT = "A profiler slows the host; bound --wall TIME"

pytestmark = pytest.mark.jit_only


@pytest.mark.parametrize("words", [("bound",), ("bound", "--mechanism", "streams"), ("report",)])
def test_now_is_the_time_without_a_profiler(program, sample_store, words):
    verb, *more = words
    words = (verb, sample_store.path, *more, *WORDS)
    before = json.loads(program(*words).out)
    after = json.loads(program(*words, "--wall", "2.3ms").out)
    assert after["times"]["now_us"] == after["as_launched"]["wall"] == 2300
    busy = {f["as_launched"]["wall"] - f["as_launched"]["idle"] for f in (before, after)}
    assert max(busy) == pytest.approx(min(busy))
    assert [f["as_launched"]["wall_is_stated"] for f in (before, after)] == [False, True]
    for same in ("as_graph_us", "changed_us", "least_us"):
        assert after["times"][same] == before["times"][same]
    assert after["times"]["speedup"] == pytest.approx(2300 / after["times"]["changed_us"])


def test_now_is_that_of_the_profile_alone(program, sample_store):
    of_store = json.loads(program("bound", sample_store.path, *WORDS, "--wall", "1ms").out)
    alone = json.loads(program("bound", TIMES, "--wall", "1ms", "--format", "json").out)
    assert of_store["times"]["now_us"] == alone["now_us"] == 1000


def test_a_launch_bound_profile_is_doubted_until_the_time_is_known(program, sample_store):
    words = ("bound", sample_store.path, "--timing", TIMES, "--sms", 132)
    assert DOUBT in program(*words).out
    told = program(*words, "--wall", "2.3ms").out
    assert DOUBT not in told
    assert "Without a profiler no kernel runs for 97.6 % of\n2300 us." in told
    # What it says to do next goes with what was given.
    details = program(*words, "--wall", "2.3ms", "--details").out
    assert "--launch measured" not in details
    assert DOUBT not in program(*words, "--wall", "60us").out


def test_a_suite_file_states_it_for_each_program(program, sample_store, tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f'[[program]]\nname = "it"\nstore = "{sample_store.path}"\ntiming = "{TIMES}"\n'
        'wall = "60us"\n'
    )
    outcome = program("bound", suite, "--sms", 132)
    assert outcome.code == 0
    assert "Launch-bound" not in outcome.out
    refused = program("bound", suite, "--wall", "60us")
    assert (refused.code, "--wall is of one program" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("bound", "STORE", "--timing", TIMES, "--wall", "10us"), 1,
         "--wall 10 us: kernels alone take 54.15 us; give the time of one iteration"),
        (("bound", "STORE", "--wall", "1ms"), 1, "--wall needs a profile"),
        (("report", "STORE", "--wall", "1ms", "--format", "json"), 1, "--wall needs a profile"),
        (("bound", "STORE", "--timing", TIMES, "--wall", "1ms", "--launch", "measured"), 1,
         "--wall does not go with --launch measured"),
        (("compare", "STORE", "STORE", "--wall", "1ms"), 2, "No such option"),
        (("show", "STORE", "pairs", "--wall", "1ms"), 2, "No such option"),
        (("export", "STORE", "--what", "edges", "--wall", "1ms", "-o", "-"), 2, "No such option"),
        (("timing", TIMES, "STORE", "--wall", "1ms"), 2, "No such option"),
    ],
)  # fmt: skip
def test_where_it_says_nothing_it_is_refused(program, sample_store, words, code, message):
    words = [sample_store.path if word == "STORE" else word for word in words]
    outcome = program(*words)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
