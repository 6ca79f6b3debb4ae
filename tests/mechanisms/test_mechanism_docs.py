"""What the pages on mechanisms and on validation say is what the program does."""

import re
from pathlib import Path

import pytest
from published import WORKLOADS
from small_graphs import graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import ModelError
from depgraph.extraction.workload import PATTERNS
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import Charges, find_mechanisms, parse_cost
from depgraph.parsers.workload import read_workload
from depgraph.scenario.build_scenario import build_scenario
from depgraph.schedule.simulate import run_rules
from depgraph.timing.program_times import launch_model, parse_launch

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["H100 SXM", "H200"])
def test_the_page_and_the_reports_state_the_same_errors_of_predictions(name):
    page = (DOCS / "validation.md").read_text()
    for found in load_gpu(name).errors:
        row = f"{found.gpu} | {found.family} | {found.programs} | {100 * found.mean:.2f}% | "
        assert row in page


def test_the_example_of_a_mechanism_runs(tmp_path, monkeypatch):
    page = (DOCS / "extending.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "(Mechanism)" in c)
    (tmp_path / "docs_example.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (mechanism,) = find_mechanisms(["docs_example:TwoAtATime"])
    graph = graph_of([1, 1, 1], [((0, 0), (1, 0))])
    program = scenario_of(graph, [2.0, 3, 4], sms=3)
    charges = Charges(mechanism.costs)
    rules = mechanism.rules(program, charges)
    plan = run_rules("example", rules, graph, program.durations, program.resources, 3)
    # The third kernel is looked up when the first has ended.
    assert plan.start.tolist() == pytest.approx([0.2, 2.2, 2.4])
    assert charges.notes == ["lookup 0.2 us"]


CASE = re.compile(
    r"\| `(\w+)` \| ([\w ]+), (\d+) \| (\w+) \| `([\w(),.-]+)( \w+=\d+%)?` "
    r"\| ([\d.]+) \| ([\d.]+)x \|"
)


def case_of(workload, gpu, sms, launch, name):
    """Return makespan and speedup of a mechanism, with a changed cost behind its name or none."""
    name, _, cost = name.partition(" ")
    model = load_gpu(gpu)
    extraction = read_workload(WORKLOADS / f"{workload}.toml")
    scenario = build_scenario(extraction.graph, extraction.kernels, gpu=model)
    scenario = scenario.with_launch(launch_model(parse_launch(launch), unit="us", gpu=model))
    (mechanism,) = find_mechanisms([name])
    costs = {}
    if cost:
        _, key, quantity = parse_cost(f"{mechanism.name}.{cost}")
        costs = {mechanism.name: {key: quantity}}
    (row,) = compare_mechanisms(scenario, [int(sms)], [mechanism], costs=costs).outcomes
    return row.makespan, row.speedup


@pytest.mark.jit_only
def test_cases_of_papers_are_as_computed():
    rows = CASE.findall((DOCS / "mechanisms.md").read_text())
    assert len(rows) == 25
    for workload, gpu, sms, launch, name, cost, makespan, speedup in rows:
        found = case_of(workload, gpu, sms, launch, name + cost)
        assert found[0] == pytest.approx(float(makespan), abs=0.051)
        assert found[1] == pytest.approx(float(speedup), abs=0.0051)


def test_the_policy_in_toml_runs(tmp_path, monkeypatch):
    page = (DOCS / "extending.md").read_text()
    (text,) = (c for c in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "half-ahead" in c)
    (tmp_path / "half-ahead.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (mechanism,) = find_mechanisms(["half-ahead.toml"])
    assert (mechanism.label, mechanism.availability.value) == ("half-ahead", "needs a code change")
    graph = graph_of([1, 1], [((0, 0), (1, 0))])
    program = scenario_of(graph=graph, durations=[9.9, 9.9], sms=2)
    charges = Charges(mechanism.costs)
    rules = mechanism.rules(program, charges)
    plan = run_rules("example", rules, graph, program.durations, program.resources, 2)
    # Blocks of 10 with their cost; the first triggers at 5.5, 1 of the second needs nothing.
    assert plan.start.tolist() == pytest.approx([0.5, 6])
    assert plan.end.tolist() == pytest.approx([10.5, 19.5])
    assert charges.notes == ["kernel 0.5 us", "block 0.1 us"]


def test_an_sm_has_no_more_workers_than_it_holds_blocks(tmp_path):
    path = tmp_path / "many.toml"
    path.write_text("workers = 1000\n")
    program = scenario_of(graph_of([16, 16], []), [100.0] * 32, sms=4)
    (row,) = compare_mechanisms(program, [4], find_mechanisms([str(path)])).outcomes
    assert row.makespan == row.lower_bound == 800
    assert row.assumptions == ("workers of an SM: 1, as many as it holds",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('unit = "warp"', r"p.toml:2: unit = 'warp': expected one of block, kernel"),
        ("window = -1", "p.toml:2: window = -1: expected a whole number from 0"),
        ("trigger = 2", "p.toml:2: trigger = 2: expected a share from 0 to 1"),
        ('kernel = "soon"', "p.toml:2: kernel = 'soon': expected a time"),
        ("strict = 1", "p.toml:2: strict = 1: expected true or false"),
        ("prefetch = 0.5", "p.toml:2: prefetch = 0.5: expected none without unit"),
        (
            'prefetch = 0.5\nunit = "kernel"\nwaits = "inside"',
            "p.toml:2: prefetch = 0.5: expected none without unit",
        ),
        ("cluster = 2", "p.toml:2: cluster = 2: expected 1 where blocks wait before"),
        (
            'cluster = 2\nwaits = "inside"\npriority = "longest-path-first"',
            "p.toml:2: cluster = 2: expected 1 with longest-path-first",
        ),
        ("windw = 1", r"p.toml:2: unknown key 'windw'; did you mean window\?"),
        ("window = ", "p.toml:2: not TOML: Invalid value"),
    ],
)
def test_what_is_no_policy_is_refused_with_its_line(tmp_path, line, message):
    path = tmp_path / "p.toml"
    path.write_text(f'name = "mine"\n{line}\n')
    with pytest.raises(ModelError, match=message):
        find_mechanisms([str(path)])
    with pytest.raises(ModelError, match=r"none\.toml: No such file"):
        find_mechanisms([str(tmp_path / "none.toml")])


def test_every_pattern_of_a_described_program_is_documented():
    page = (DOCS / "mechanisms.md").read_text()
    assert [p for p in PATTERNS if f"| `{p}` |" not in page] == []
