"""One question, one prediction: whoever asks, the same microseconds come out."""

import json

import pytest

import depgraph
from depgraph import parsers
from depgraph.parsers.workload import read_workload
from depgraph.samples import sample_path
from depgraph.store.store import write_store

TIMES = "predicted_us", "predicted_low_us", "predicted_high_us"
ASKED = "cuda-graph,streams,pdl,dataflow"


@pytest.fixture(scope="module")
def streams4(shared_data, tmp_path_factory):
    """Return the store of a program on five streams, and its profile."""
    path = tmp_path_factory.mktemp("streams") / "streams4.out"
    depgraph.extract(parsers.open_trace(shared_data / "nvbit" / "streams4.log.xz"), path)
    return path, shared_data / "timing" / "streams4.kineto.json"


@pytest.fixture(scope="module")
def flash(tmp_path_factory):
    """Return the store of a matrix product whose parts are reduced by collectives."""
    path = tmp_path_factory.mktemp("flash") / "flash.out"
    write_store(read_workload(sample_path("workloads/flashoverlap.toml")), path)
    return path, None


@pytest.fixture(scope="module")
def gru(sample_store):
    """Return the store of a program on one stream, and its profile."""
    return sample_store.path, sample_path("timing/gru_train.kineto.json")


def of_mechanisms(rows):
    return {row["mechanism"]: [row[key] for key in TIMES] for row in rows}


@pytest.mark.parametrize(
    "name",
    ["gru", "flash", pytest.param("streams4", marks=[pytest.mark.shared, pytest.mark.slow])],
)
@pytest.mark.usefixtures("undrawn")
@pytest.mark.jit_only
def test_bound_report_suite_and_notebook_say_the_same(request, program, tmp_path, name):
    store, times = request.getfixturevalue(name)
    options = ["--gpu", "H100", *(["--timing", times] if times else [])]
    asked = ["--mechanism", ASKED]

    def answer(*words):
        done = program(*words, "-q")
        assert done.code == 0, done.err
        return done.out

    found = json.loads(answer("bound", store, *options, *asked, "--format", "json"))
    bound = of_mechanisms(found["predictions"])
    assert len(bound) == len(ASKED.split(","))
    assert all(time > 0 for time, *_ in bound.values())

    answer("report", store, *options, *asked, "-o", "alone")
    alone = json.loads((tmp_path / "alone" / "report.json").read_text())
    reported = of_mechanisms(alone["predictions"])
    assert {key: reported[key] for key in bound} == bound
    assert alone["times"] == found["times"]
    assert alone["verdict"] == found["verdict"]

    stated = [f"{key} = {json.dumps(str(value))}" for key, value in (
        ("name", name), ("store", store), *([("timing", times)] if times else []),
    )]  # fmt: skip
    (tmp_path / "suite.toml").write_text("\n".join(['gpu = "H100"', "[[program]]", *stated]))
    (row,) = json.loads(answer("bound", "suite.toml", *asked, "--format", "json"))["programs"]
    assert {key: [row[f"{time} {key}"] for time in TIMES] for key in bound} == bound

    opened = depgraph.open(store, timing=times, gpu="H100")
    frame = opened.mechanisms(ASKED).to_pandas()
    rows = frame[["mechanism", *TIMES]].astype(object).where(frame.notna(), None)
    assert of_mechanisms(rows.to_dict("records")) == bound
    page = opened.report(mechanisms=ASKED).to_pandas("mechanisms").set_index("mechanism")
    assert {key: page.loc[key, "predicted_us"] for key in bound} == {
        key: time for key, (time, *_) in bound.items()
    }
