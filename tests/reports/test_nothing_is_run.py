"""Reports write what analysis has worked out: no simulator, no prediction, once it has answered."""

import sys

import pytest

import depgraph
from depgraph.analysis import bound, findings, run_times
from depgraph.analysis.answer import answer_bound, answer_mechanisms, program_results
from depgraph.analysis.cusync_policies import cheapest_policies
from depgraph.analysis.study import timeline_of
from depgraph.analysis.suite import Suite
from depgraph.cli.notebook import Bounds, Mechanisms, Reported
from depgraph.mechanisms import base, find_mechanisms, predicted_time
from depgraph.parsers.profiles import read_profile
from depgraph.reports.export import perfetto
from depgraph.reports.page.folder import suite_folder, write_report, write_suite
from depgraph.reports.page.study_report import study_report
from depgraph.reports.tables.answer_report import answer_report
from depgraph.reports.tables.buffer_table import buffers_report
from depgraph.reports.tables.diff_tables import diff_report
from depgraph.reports.tables.mechanism_tables import policies_report
from depgraph.reports.tables.render import render
from depgraph.reports.tables.suite_table import suite_report
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.scenario import contention
from depgraph.schedule import simulate

FORMS = ("table", "json", "csv", "markdown")
RUNS = [
    simulate.run_rules,
    simulate.event_schedule,
    base.serial,
    base.serial_schedule,
    contention.run_contended,
    contention.contended_bound,
    contention.contended_serial,
    contention.work_of_blocks,
    base.run_mechanism,
    predicted_time.predicted_time,
    bound.limits_of,
    findings.predict,
    predicted_time.predicted_chain,
    predicted_time.predicted_schedule,
    run_times.side_by_side,
]


def refused(*_, **__):
    raise AssertionError("a schedule was made while a report was written")


@pytest.fixture
def nothing_runs(monkeypatch):
    """Return what lets whoever schedules or predicts fail, by whatever name a module knows it."""

    def stop():
        modules = [m for name, m in sys.modules.items() if name.startswith("depgraph.")]
        found = [
            (module, name)
            for module in modules
            for name, value in list(vars(module).items())
            if any(value is run for run in RUNS)
        ]
        assert len(found) > len(RUNS)
        for module, name in found:
            monkeypatch.setattr(module, name, refused)

    return stop


@pytest.fixture(scope="module")
def scenario(sample_store):
    request = depgraph.Request(
        times=sample_path(KERNEL_TIMES), read_profile=read_profile,
        launch=depgraph.parse_launch("gpu"),
    )  # fmt: skip
    return depgraph.Scenario.of_store(sample_store, request)


@pytest.mark.jit_only
@pytest.mark.parametrize("mechanisms", [[], ["serial", "streams", "cuda-graph", "stream-k"]])
def test_no_answer_is_worked_out_again(scenario, nothing_runs, mechanisms, tmp_path):
    sizes, named = [8, 132], find_mechanisms(mechanisms)
    if mechanisms:
        found = answer_mechanisms(scenario, sizes, named)
    else:
        found = answer_bound(scenario, sizes)
    suite = Suite(program_results("it", "it.out", scenario, found))
    nothing_runs()
    report = answer_report(found)
    assert all(render(report, form) for form in FORMS)
    shown = (Mechanisms if mechanisms else Bounds)(found)
    assert shown._repr_html_()
    assert len(shown.to_pandas())
    assert all(render(suite_report(suite), form) for form in FORMS)
    with suite_folder(tmp_path / "suite", force=False) as folder:
        write_suite(suite, suite_report(suite), {"it": "programs/it"}, folder)


@pytest.mark.jit_only
def test_no_study_is_worked_out_again(scenario, nothing_runs, tmp_path):
    mechanisms = find_mechanisms(["all"])
    found = depgraph.study(
        scenario.on(132), drawn=find_mechanisms(["streams"]), mechanisms=mechanisms
    )
    diff = depgraph.compare(scenario.on(132), scenario.on(132))
    nothing_runs()
    report = study_report(found)
    assert all(render(each, form) for each in (report, diff_report(diff)) for form in FORMS)
    write_report(found, tmp_path / "page", flows="all")
    assert {"index.html", "plots", "report.md", "report.json", "timeline.json.gz"} == {
        file.name for file in (tmp_path / "page").iterdir()
    }
    shown = Reported(found)
    assert shown._repr_html_()
    for name in shown.plots:
        assert shown.plot(name)._repr_png_()
    assert all(len(shown.to_pandas(name)) >= 0 for name in shown.tables)


@pytest.mark.jit_only
def test_nothing_else_is_worked_out_again(scenario, nothing_runs, tmp_path):
    sized = scenario.on(8)
    policies, renaming = cheapest_policies(sized), depgraph.study_renaming(sized)
    timeline = timeline_of(sized, depgraph.serial(sized))
    nothing_runs()
    assert render(policies_report(policies, sized), "table")
    assert render(buffers_report(renaming, sized, []), "table")
    assert perfetto.write_perfetto(timeline, tmp_path / "it.json.gz") == 0
