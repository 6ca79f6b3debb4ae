"""Laws that hold for every program and every combination of options, and in every command."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import edges_of
from random_programs import programs

import depgraph
from depgraph import parsers
from depgraph.analysis.answer import answer_mechanisms
from depgraph.analysis.bound import bound, bound_one, limits_of
from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.kernel_groups import kernel_loads
from depgraph.analysis.study import study
from depgraph.apply.recorded_call import Predictor
from depgraph.cli.app import main
from depgraph.errors import ModelError
from depgraph.gpu.model import load_gpu
from depgraph.graph.block_graph import dependent_operations
from depgraph.graph.dependences import Basis
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.base import run_without_launches
from depgraph.parsers.profiles import read_profile
from depgraph.parsers.workload import read_workload
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.schedule.policy import running_part, utilization_over_time
from depgraph.system.text import show_time
from depgraph.timing.program_times import NO_COSTS, LaunchChoice, LaunchModel, LaunchTime

CLOSE = 1 + 1e-9
KINDS = [{"RAW"}, {"RAW", "WAR"}, {"WAW"}, {"RAW", "WAR", "WAW"}]
STATEMENTS = ["kernel=0 duration*=3", "kernel=1: duration/=2", "merge=0,1", "merge=1,2", "gap*=2"]


launches = st.just(NO_COSTS) | st.builds(
    lambda *times: LaunchModel(*(LaunchTime(float(t), "drawn") for t in times)),
    *[st.sampled_from([0, 1, 5])] * 7,
)


@st.composite
def scenarios(draw, **options):
    """Return a random program after any of the options that change it."""
    program = draw(programs(bases=list(Basis), **options))
    program = program.with_launch(draw(launches))
    program = replace(program, memory=float(draw(st.sampled_from([0, 0, 30]))))
    # Blocks of a merged program take what the launches say, in place of what was drawn.
    given_ = program.resources
    for text in draw(st.lists(st.sampled_from(STATEMENTS), max_size=2)):
        try:
            program = apply_what_ifs(program, [parse_what_if(text)])
        except ModelError:  # no such kernel, or one that cannot be merged
            continue
        if len(program.graph.kernel) < len(given_.need):
            program = replace(program, resources_of=_by_launch)
    return program.with_kinds(draw(st.sampled_from(KINDS)))


def _by_launch(graph):
    from depgraph.gpu.sm_resources import sm_resources

    return sm_resources(graph)


def assert_within(row, serial):
    assert row.makespan * CLOSE >= row.lower_bound
    # Without launch costs it is not shorter either.
    assert row.overlap_speedup * row.lower_bound <= serial * CLOSE
    assert row.speedup == pytest.approx(row.launch_speedup * row.overlap_speedup)
    assert row.share_of_bound is None or row.share_of_bound <= 1
    assert 0 <= row.utilization <= row.held * CLOSE <= CLOSE
    assert row.held <= 1


@given(scenarios())
def test_nothing_that_is_reached_is_above_the_bound(scenario):
    for found in bound(scenario, scenario.sms).bounds:
        assert found.lower_bound == max(found.critical_path, found.work, found.memory)
        assert found.reached.speedup <= found.upper_bound * CLOSE
        for row in found.schedules:
            assert_within(row, found.serial)
            assert row.makespan * CLOSE >= found.lower_bound


@settings(deadline=None)
@given(scenarios() | scenarios(positions=True))
def test_every_mechanism_keeps_to_its_bound(scenario):
    found = compare_mechanisms(scenario, [scenario.sms, np.inf], find_mechanisms(["all"]))
    limits = {limit.sms: limit for limit in found.limits}
    assert {o.sms for o in found.outcomes} == set(limits)
    for row in found.outcomes:
        assert_within(row, limits[row.sms].serial)
        if row.against == "block" and row.mechanism != "ideal":
            assert row.makespan * CLOSE >= limits[row.sms].lower_bound


@given(scenarios(positions=True))
def test_waiting_inside_blocks_never_raises_the_bound(scenario):
    found = limits_of(scenario)
    if found.intra_block_bound is not None:  # merged kernels have no positions
        assert found.intra_block_bound <= found.lower_bound * CLOSE


@given(scenarios())
def test_serial_is_kernel_after_kernel_as_each_takes_alone(scenario):
    loads = kernel_loads(scenario)
    alone = sum(load.time for load in loads)
    assert bound_one(scenario).serial == pytest.approx(max(alone, scenario.memory))
    assert all(0 <= load.utilization <= 1 for load in loads)


@given(scenarios(), st.sampled_from(["dataflow", "pdl", "cusync-row", "streams"]))
def test_no_more_is_held_at_any_time_than_there_is(scenario, name):
    (mechanism,) = find_mechanisms([name])
    plan, _ = run_without_launches(mechanism, {}, scenario)
    edges = np.linspace(0, plan.makespan, 20)
    for shown in (plan, running_part(plan, scenario.durations)):
        used = utilization_over_time(shown, scenario.shares, scenario.sms, edges)
        assert (used <= CLOSE).all()


@given(scenarios())
def test_a_report_says_what_bound_says(scenario):
    found = study(scenario)
    (first, *_) = bound(scenario, scenario.sms).bounds
    assert found.bound == first
    at_size = {c.name: c.speedup[c.sms.index(found.sms)] for c in found.curves}
    assert at_size["upper bound"] == first.upper_bound
    assert found.schedules[0].makespan == first.serial
    assert found.schedules[1].makespan == min(row.makespan for row in first.schedules[1:])
    assert found.utilization(found.schedules[0]) == first.schedules[0].utilization
    for curves in zip(found.curves[::2], found.curves[1::2], strict=False):
        if not curves[1].is_bound:
            assert all(b * CLOSE >= r for b, r in zip(*(c.speedup for c in curves), strict=True))


@pytest.fixture(
    scope="module",
    params=["gru_train", "streams4", pytest.param("gpt2_d256", marks=pytest.mark.slow)],
)
def real_store(request, shared_data, tmp_path_factory):
    log = parsers.open_trace(shared_data / "nvbit" / f"{request.param}.log.xz")
    return depgraph.extract(log, tmp_path_factory.mktemp("real") / "out")


@pytest.mark.jit_only
@pytest.mark.parametrize("kinds", [{"RAW"}, {"RAW", "WAR", "WAW"}], ids=["raw", "all"])
def test_the_laws_hold_on_real_traces(kinds, real_store):
    store = real_store
    scenario = depgraph.build_scenario(
        store.graph(kinds), store.kernels, footprints=store.footprints,
        launch=LaunchChoice("none", {"host": 500.0, "gap": 20.0, "node": 3.0}),
    )  # fmt: skip
    for found in bound(scenario, [1, 4, 80]).bounds:
        assert all(row.makespan * CLOSE >= found.lower_bound for row in found.schedules)
    compared = compare_mechanisms(scenario, [1, 4, 80], find_mechanisms(["all"]))
    serial = {limit.sms: limit.serial for limit in compared.limits}
    for row in compared.outcomes:
        assert_within(row, serial[row.sms])


TIMED = ["gru_train", "decode_layers", "inception_block", "llama_mlp_1024", "whole_waves"]


@pytest.fixture(scope="module", params=[*TIMED, "stencil_sweeps", "uneven_tiles", "simulation"])
def timed_scenario(request, sample_store):
    if request.param == "gru_train":
        profile = read_profile(sample_path(KERNEL_TIMES))
        return Scenario.of_store(sample_store, Request(times=profile))
    found = read_workload(sample_path(f"workloads/{request.param}.toml"))
    gpu = load_gpu("H200")
    return build_scenario(found.graph, found.kernels, gpu=gpu, contention="full")


@pytest.mark.jit_only
@pytest.mark.parametrize("sms", [4, pytest.param(80, marks=pytest.mark.slow), 132])
def test_nothing_is_predicted_below_what_the_same_screen_calls_the_least(sms, timed_scenario):
    found = answer_mechanisms(timed_scenario, [sms], find_mechanisms(["all"]))
    (limit,) = found.table.limits
    least = found.conclusion.times.least_us
    assert least <= found.conclusion.times.best.us
    rows = [row for row in found.table.outcomes if row.predicted_us is not None]
    assert rows
    for row in rows:
        if row.against == "block":
            assert row.predicted_us * CLOSE >= least
            assert row.predicted_low_us is None or row.predicted_low_us <= row.predicted_us
    explained = [n for n in found.table.notes if "the lower bound for fixed durations" in n]
    assert len(explained) == (limit.contended < limit.lower_bound)
    if explained:
        assert f"{limit.contended:.4g}" in explained[0]
    else:
        assert all(
            row.predicted * CLOSE >= limit.lower_bound for row in rows if row.against == "block"
        )


# The best of all schedules


def earliest(block, sm, placed, ready, scenario, need):
    """Return when a block can start on an SM, beside those that are placed there."""
    taken, capacity = need[scenario.graph.operation_of_block], scenario.resources.capacity
    length = scenario.durations[block]
    ends = [end for _, end, where, _ in placed if where == sm]
    for start in sorted({ready, *(end for end in ends if end > ready)}):
        instants = [start, *(s for s, _, where, _ in placed if where == sm and s > start)]
        if all(
            (
                sum(
                    (taken[b] for s, e, where, b in placed if where == sm and s <= t < e),
                    np.zeros_like(capacity),
                )
                + taken[block]
                <= capacity
            ).all()
            for t in instants
            if t < start + length
        ):
            return start
    raise AssertionError


def best_makespan(scenario, need):
    """Return the shortest makespan there is, by looking at every order and every placement."""
    n, before = scenario.graph.n_blocks, {}
    for s, t, _ in edges_of(scenario.graph):
        before.setdefault(t, set()).add(s)
    best = np.inf
    for order in itertools.permutations(range(n)):
        if any(before.get(b, set()) - set(order[:i]) for i, b in enumerate(order)):
            continue
        for sms in itertools.product(range(int(scenario.sms)), repeat=n):
            end, placed = {}, []
            for block in order:
                ready = max((end[b] for b in before.get(block, ())), default=0.0)
                start = earliest(block, sms[block], placed, ready, scenario, need)
                end[block] = start + scenario.durations[block]
                placed.append((start, end[block], sms[block], block))
            best = min(best, max(end.values()))
    return best


@settings(max_examples=20, deadline=None)
@given(programs(most_kernels=3, most_blocks=2, bases=list(Basis)), st.integers(1, 2))
def test_the_best_schedule_of_all_is_not_below_the_bound(program, sms):
    scenario = program.on(sms)
    found = bound_one(scenario)
    # Not even one that places blocks by what the hardware allocates alone.
    assert best_makespan(scenario, scenario.resources.need) * CLOSE >= found.lower_bound
    reached = found.reached.makespan
    assert reached * CLOSE >= best_makespan(scenario, scenario.resources.placed)


# The same number wherever it is printed

OPTIONS = {
    "plain": [],
    "raw": ["--deps", "raw"],
    "times": ["--timing", str(sample_path(KERNEL_TIMES))],
    "launches": ["--launch", "40,2,1"],
    "fixed": ["--occupancy", "2"],
    "gpu": ["--gpu", "GTX 1080"],
    "scaled": ["--what-if", "kernel=0:9 duration*=4"],
    "merged": ["--what-if", "merge=14,15", "--deps", "raw,war"],
    "renamed": ["--what-if", "buffer=0:0xffffffffffff drop=war,waw"],
}


@pytest.fixture
def answer(capsys, sample_store):
    """Run a command on the packaged trace; return its JSON."""

    def call(command, *words):
        with pytest.raises(SystemExit) as left:
            main([command, str(sample_store.path), *map(str, words), "--format", "json"])
        out, err = capsys.readouterr()
        assert left.value.code == 0, err
        return json.loads(out)

    return call


@pytest.mark.jit_only
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            words, id=name, marks=[pytest.mark.slow] * (name in {"fixed", "gpu", "scaled"})
        )
        for name, words in OPTIONS.items()
    ],
)
def test_every_command_prints_the_same_number(answer, options, sample_store, tmp_path, capsys):
    table = answer("bound", "--sms", 4, *options)
    first = table["bounds"][0]
    dependences = first["dependences"]
    rows = {row["schedule"]: row for row in table["schedules"] if row["dependences"] == dependences}
    reached = max(
        (row for name, row in rows.items() if name != "measured"), key=lambda row: row["speedup"]
    )

    compared = answer("bound", "--sms", 4, "--mechanism", "serial,dataflow,streams", *options)
    limits = compared["bounds"][0]
    for name in ("serial", "critical_path", "work"):
        assert limits[name] == first[name]
    assert limits["lower_bound"] == first["lower_bound"]
    assert limits["upper_bound"] == first["upper_bound"]
    by_name = {row["mechanism"]: row for row in compared["mechanisms"]}
    overlap = {row["mechanism"]: row["overlap_speedup"] for row in compared.get("parts", ())}
    for name in ("serial", "dataflow (oldest-first)"):
        for column in ("share_of_bound", "utilization"):
            assert by_name[name][column] == pytest.approx(rows[name][column])
        assert overlap.get(name, by_name[name]["speedup"]) == pytest.approx(rows[name]["speedup"])
        if not overlap:
            assert by_name[name]["makespan"] == pytest.approx(rows[name]["makespan"])
    serial = limits["launched_serial"] if overlap else limits["serial"]
    assert by_name["serial"]["makespan"] == pytest.approx(serial)

    report = answer("report", "--sms", 4, *options)
    for name in ("lower_bound", "work", "serial", "critical_path"):
        assert report[name] == first[name]
    assert (report["upper_bound"], report["speedup"]) == (first["upper_bound"], reached["speedup"])
    assert report["utilization"] == rows["serial"]["utilization"]
    assert {row["schedule"] for row in report["schedules"]} <= set(rows)

    assert report["launched_serial"] == serial
    for row in report["mechanisms"]:
        same = by_name.get(row["mechanism"], {})
        assert {name: row[name] for name in row.keys() & same} == {
            name: same[name] for name in row.keys() & same
        }

    both = [] if "--timing" not in options else ["--new-timing", options[1]]
    metrics = answer("compare", sample_store.path, "--sms", 4, *options, *both)["metrics"]
    for metric in metrics:
        expected = report[metric["metric"]]
        assert (metric["base"], metric["new"]) == (expected, expected)

    if "--launch" not in options:
        path = answer("show", "path", *options)
        assert path["critical_path"] == first["critical_path"]

    file = tmp_path / "schedule.json"
    for name, row in (("serial", "serial"), ("dataflow", "dataflow (oldest-first)")):
        words = ["export", sample_store.path, "--what", "schedule", "--schedule", name]
        with pytest.raises(SystemExit):
            main([str(w) for w in (*words, "--sms", 4, *options, "-o", file, "--force", "-q")])
        ends = [json.loads(line)["end"] for line in file.read_text().splitlines()]
        assert max(ends) == pytest.approx(by_name[row]["makespan"])
    capsys.readouterr()


PREDICTED = [
    (132, {"launch": "5,2,1", "gpu": "H200"}),
    pytest.param(80, {"what_if": "kernel=3:9 duration*=2", "deps": "raw"}, marks=pytest.mark.slow),
    pytest.param(4, {"what_if": "gap*=2", "launch": "gpu,host=4"}, marks=pytest.mark.slow),
    pytest.param(132, {"what_if": "merge=3,4"}, marks=pytest.mark.slow),
    pytest.param(108, {"contention": "sm", "gpu": "A100 80GB"}, marks=pytest.mark.slow),
    pytest.param(132, {"contention": "none", "launch": "measured"}, marks=pytest.mark.slow),
]


@pytest.mark.jit_only
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("sms", "options"), PREDICTED, ids=str)
def test_one_graph_has_one_predicted_time_whoever_asks(
    sms, options, answer, sample_store, tmp_path, capsys
):
    times = sample_path(KERNEL_TIMES)
    words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
    words = ["--timing", times, "--sms", sms, *words]
    plain = answer("bound", *words)["times"]
    compared = answer("bound", *words, "--mechanism", "cuda-graph")
    everything = answer("bound", *words, "--mechanism", "all")
    report = answer("report", *words, "-o", tmp_path / "report")
    assert plain == compared["times"] == everything["times"] == report["times"]
    (row,) = compared["predictions"]
    (same,) = (r for r in everything["predictions"] if r["mechanism"] == "cuda-graph")
    assert row == same
    (reported,) = (r for r in report["mechanisms"] if r["mechanism"] == "cuda-graph")
    assert reported["predicted_us"] == row["predicted_us"]
    # The captured stream is the chain, what is proposed the graph of the true edges.
    assert plain["as_graph_us"] == row["predicted_serial_us"]
    if plain["change"] == "with independent branches side by side":
        for end in ("us", "low_us", "high_us"):
            assert plain[f"changed_{end}"] == row[f"predicted_{end}"]

    opened = depgraph.open(sample_store.path, timing=times, **options)
    assert show_time(plain["as_graph_us"]) in opened.bound(sms)._repr_html_()
    shown = opened.mechanisms("cuda-graph", sms).to_pandas()
    assert shown["predicted_us"].tolist() == [row["predicted_us"]]
    scenario = opened.scenario.on(sms)
    applied = Predictor(tuple(range(scenario.graph.n_operations)), scenario)
    edges = zip(*(ends.tolist() for ends in dependent_operations(scenario.graph)), strict=True)
    found = applied.time(list(edges))
    assert (found.us, found.low_us) == (row["predicted_us"], row["predicted_low_us"])

    with pytest.raises(SystemExit):
        main(["bound", str(sample_store.path), *map(str, words), "-q"])
    assert show_time(plain["as_graph_us"]) in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.jit_only
def test_the_page_and_markdown_print_the_number_of_bound(answer, sample_store, tmp_path, capsys):
    first = answer("bound", "--sms", 4)["bounds"][0]
    with pytest.raises(SystemExit):
        main(["report", str(sample_store.path), "--sms", "4", "-o", str(tmp_path / "r"), "-q"])
    capsys.readouterr()
    shown = f"{first['upper_bound']:.2f}x"
    assert f"upper bound on speedup {shown}" in (tmp_path / "r" / "report.md").read_text()
    assert shown in (tmp_path / "r" / "index.html").read_text()
    assert (
        json.loads((tmp_path / "r" / "report.json").read_text())["upper_bound"]
        == (first["upper_bound"])
    )
