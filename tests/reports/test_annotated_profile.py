"""The user's own PyTorch trace, annotated: its events as they were, and ours in front of them."""

import gzip
import json

import pytest

import depgraph
from depgraph.samples import KERNEL_TIMES, sample_path

TRACE = sample_path(KERNEL_TIMES)


@pytest.fixture
def annotated(program, sample_store, tmp_path):
    """Return a function that annotates a profile of the packaged program."""

    def made(profile=TRACE, name="annotated.json"):
        path = tmp_path / name
        words = "export", sample_store.path, "--what", "profile", "--timing", profile, "-o", path
        done = program(*words)
        return done, path

    return made


def test_events_of_the_profiler_are_as_they_were(annotated):
    _, path = annotated()
    before, after = json.loads(TRACE.read_text()), json.loads(path.read_text())
    ours = [e for e in after["traceEvents"] if e.get("cat") == "depgraph" or e["pid"] == 1_000_001]
    assert after["traceEvents"][len(ours) :] == before.pop("traceEvents")
    del after["traceEvents"]
    assert after == before


@pytest.fixture
def event_of(sample_store):
    """Return a function from the events of the profile to that of each kernel of the store."""
    match = depgraph.open(sample_store.path, timing=TRACE).scenario.fit.match
    rows = {match.profile.correlation[row]: k for k, row in match.row_of_kernel.items()}

    def found(content):
        kernels = [e for e in content["traceEvents"] if e.get("cat") == "kernel"]
        numbers = [rows.get(e["args"]["correlation"]) for e in kernels]
        return {n: e for n, e in zip(numbers, kernels, strict=True) if n is not None}

    return found


def test_slices_lie_over_kernels_of_the_critical_path(annotated, event_of, program, sample_store):
    _, path = annotated()
    content = json.loads(path.read_text())
    slices = [e for e in content["traceEvents"] if e["ph"] == "X" and e.get("cat") == "depgraph"]
    kernels = event_of(content)
    for each in slices:
        kernel = kernels[each["args"]["kernel"]]
        assert (each["ts"], each["dur"]) == pytest.approx((kernel["ts"], kernel["dur"]))
    shown = program("show", sample_store.path, "path", "--timing", TRACE, "--format", "json")
    steps = json.loads(shown.out)["path"]
    assert [s["args"]["kernel"] for s in slices] == [*dict.fromkeys(s["kernel"] for s in steps)]


def test_arrows_are_false_dependences(annotated, event_of, sample_store):
    _, path = annotated()
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    kernels = event_of(content)

    def kernel_at(arrow):
        (found,) = [
            number
            for number, k in kernels.items()
            if (k["pid"], k["tid"]) == (arrow["pid"], arrow["tid"])
            and k["ts"] - 1e-3 <= arrow["ts"] < k["ts"] + k["dur"]
        ]
        return found

    begins = {e["id"]: kernel_at(e) for e in events if e["ph"] == "s" and e["cat"] == "depgraph"}
    ends = {e["id"]: kernel_at(e) for e in events if e["ph"] == "f" and e["cat"] == "depgraph"}
    assert begins.keys() == ends.keys()
    expected = {(p.source, p.target) for p in sample_store.pairs if not p.raw and (p.war or p.waw)}
    assert {(begins[i], ends[i]) for i in begins} == expected
    assert expected


def test_arrows_that_are_left_out_are_counted(annotated, sample_store, monkeypatch):
    monkeypatch.setattr("depgraph.reports.export.kineto.MOST_ARROWS", 3)
    false = sum(1 for p in sample_store.pairs if not p.raw and (p.war or p.waw))
    done, path = annotated()
    says = f"false dependences without an arrow: {false - 3} of {false} (3 is the limit)"
    assert says in done.err
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(e["ph"] == "s" and e.get("cat") == "depgraph" for e in events) == 3
    (name,) = [
        e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"] == 1_000_001
    ]
    assert name == f"depgraph ({says})"


@pytest.mark.parametrize("text", ['[\n{"traceEvents": 1}]', '{"a": [1], "traceEvents" : [ ]}'])
def test_where_events_begin(text):
    from io import BytesIO

    from depgraph.reports.export.kineto import _copy

    out = BytesIO()
    _copy(lambda: BytesIO(text.encode()), out, [{"ph": "M"}])
    content = json.loads(out.getvalue())
    events = content if isinstance(content, list) else content["traceEvents"]
    assert events[0] == {"ph": "M"}
    assert len(events) == (2 if isinstance(content, list) else 1)


@pytest.mark.parametrize("left", range(64))
def test_the_base_of_times_may_lie_where_two_reads_meet(left):
    from io import BytesIO

    from depgraph.reports.export.kineto import _CHUNK, _base_of

    base = b'"baseTimeNanoseconds": 1790857026000000000}'
    text = b'{"a": "'.ljust(_CHUNK - left - 2, b"x") + b'",' + base
    assert _base_of(lambda: BytesIO(text)) == 1_790_857_026_000_000_000


def test_packed_as_it_is_called(annotated):
    _, path = annotated(name="annotated.json.gz")
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.mark.parametrize("ending", ["zst", "xz", "txt"])
def test_a_name_of_another_kind_is_refused(annotated, ending):
    done, path = annotated(name=f"annotated.json.{ending}")
    assert (done.code, f"profile can be written as kineto, not '{ending}'" in done.err) == (2, True)
    assert not path.exists()


def test_what_is_no_profile_of_pytorch_is_refused(annotated, tmp_path, program, sample_store):
    table = tmp_path / "times.csv"
    table.write_text("kernel,duration_us\n" + "".join(f"{n},1\n" for n in range(25)))
    done, path = annotated(table)
    assert (done.code, "a trace of PyTorch's profiler" in done.err) == (1, True)
    assert not path.exists()
    done = program("export", sample_store.path, "--what", "profile", "-o", path)
    assert (done.code, "needs --timing" in done.err) == (1, True)
