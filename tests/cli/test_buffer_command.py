"""`depgraph show buffers` on the packaged sample."""

import json
import shlex


def test_a_set_is_named_and_the_next_step_holds(program, sample_store):
    shown = program("show", sample_store.path, "buffers", "--sms", 132, "--format", "json")
    answer = json.loads(shown.out)
    best = answer["buffer_sets"][-1]
    assert best["buffers"] == [15, 17]
    assert answer["n_buffers"] == 20
    assert all(len(row["writers"]) for row in answer["buffers"])
    command = answer["next_steps"][-1]["command"]
    after = program(*shlex.split(command)[1:], "--format", "json")
    assert json.loads(after.out)["bounds"][0]["upper_bound"] == best["upper_bound"]


def test_options_are_passed_on_as_they_were_given(program, sample_store):
    shown = program(
        "show", sample_store.path, "buffers", "--gpu", "A100", "--deps", "raw,war",
        "--ignore-waits-inside", "--format", "json",
    )  # fmt: skip
    answer = json.loads(shown.out)
    assert answer["sms"] == 108
    for step in answer["next_steps"]:
        assert step["command"].endswith("--deps raw,war --gpu A100 --ignore-waits-inside")
        assert program(*shlex.split(step["command"])[1:]).code == 0


def test_other_forms(program, sample_store):
    table = program("show", sample_store.path, "buffers").out
    assert "Buffers worth renaming together" in table
    assert "In PyTorch" in table
    rows = program("show", sample_store.path, "buffers", "--format", "csv").out.splitlines()
    assert rows[0].startswith("buffer,start,bytes,writers,")
    assert len(rows) == 1 + 9
    markdown = program("show", sample_store.path, "buffers", "--format", "markdown").out
    assert "```sh" in markdown


def test_wrong_usage(program, sample_store):
    assert program("show", sample_store.path, "buffers", "--launch", "gpu").code == 2
    assert program("show", sample_store.path, "path", "--sms", 3).code == 2
    renamed = program(
        "show", sample_store.path, "buffers", "--what-if", "buffer=0:9999999999999999 drop=war"
    )
    assert renamed.code == 1
    assert "addresses renamed buffers would have" in renamed.err
