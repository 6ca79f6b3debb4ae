"""The plots: always there, always the same bytes, never too wide, odd names and sizes included."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.study import Curve, study
from depgraph.mechanisms import find_mechanisms
from depgraph.reports.plots import (
    policies,
    speedup_by_sms,
    utilization_levels,
    utilization_over_time,
    write_plots,
)
from depgraph.reports.plots.style import longest_drawn
from depgraph.timing.matched_profile import AluUse

NAMES = {
    "utilization-over-time", "speedup-by-sms", "waves", "critical-path", "true-and-false",
    "dependence-map", "pair-blocks", "utilization-levels", "policies",
}  # fmt: skip


def study_of(sizes, edges, names=None, cost=None, sms=4, **options):
    graph = graph_of(sizes, edges, cost=cost)
    scenario = scenario_of(graph, occupancy=2, kernels=kernels_of(sizes, names), sms=sms)
    return study(scenario, **options)


@pytest.fixture(scope="module")
def chain():
    everything = find_mechanisms(["all"])
    return study_of([6, 8, 3], chain_edges([6, 8, 3]), mechanisms=everything)


@pytest.fixture(scope="module")
def all_drawn():
    sizes, edges = [6, 8, 3], [*chain_edges([6, 8]), ((0, 5), (2, 1), "WAR")]
    return study_of(sizes, edges, cost=range(17), drawn=find_mechanisms(["all"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plots")


@pytest.fixture(scope="module")
def plots(chain, folder):
    return write_plots(chain, folder)


def test_every_plot_is_written_as_png_and_svg(plots, folder):
    assert {plot.name for plot in plots} == NAMES
    assert {file.name for file in folder.iterdir()} == {
        f"{name}.{form}" for name in NAMES for form in ("png", "svg")
    }


def test_plots_are_as_wide_as_a_column_and_their_text_is_legible(plots):
    for plot in plots:
        assert plot.figure.get_size_inches()[0] == 3.3
        sizes = [t.get_fontsize() for t in plot.figure.findobj(mpl.text.Text) if t.get_text()]
        assert min(sizes) >= 6, plot.name


def test_utilization_is_that_of_the_alus_where_they_were_counted():
    plain = study_of([6, 8, 3], chain_edges([6, 8, 3]))
    assert "slots of 4 SMs" in utilization_levels.plot(plain).result
    alu = AluUse("sm__throughput", {0: 0.25, 2: 1.0})
    counted = utilization_levels.plot(replace(plain, alu=alu))
    assert "use less than 30 % of the ALUs" in counted.result
    assert "(sm__throughput, of the profile); not counted, and left out: 1 of 3" in counted.caption
    (axes,) = counted.figure.axes
    assert axes.get_xlabel() == "ALU utilization, as counted (%)"
    kernels = axes.lines[-1].get_ydata()
    assert [level for level, share in enumerate(kernels) if share] == [2, 9]


def test_captions_say_how_to_read_a_plot_and_go_into_the_svg(plots, folder):
    for plot in plots:
        assert len(plot.caption) > 60
        svg = (folder / f"{plot.name}.svg").read_text()
        assert plot.caption[:40] in "".join(ET.fromstring(svg).itertext())  # noqa: S314


def test_each_plot_states_its_result(plots):
    results = {plot.name: plot.result for plot in plots}
    assert (
        results["critical-path"] == "Kernel 0, kernel_0, takes most of the critical path: 33.3 %."
    )
    assert results["dependence-map"].startswith("2 dependent pairs of kernels, 2 by RAW: ")
    assert results["true-and-false"].startswith("Upper bound on the speedup: 1.00x with RAW, ")
    assert results["waves"] == "2 kernels of 3 do not fill 4 SMs once."
    assert all(result.endswith(".") for result in results.values())


def test_axes_name_their_units(plots):
    labels = {
        plot.name: " ".join(
            axes.get_xlabel() + axes.get_ylabel() for axes in plot.figure.get_axes()
        )
        for plot in plots
    }
    assert "time (instructions)" in labels["utilization-over-time"]
    assert "time (instructions)" in labels["critical-path"]
    assert "waves (blocks / slots)" in labels["waves"]
    assert "SMs" in labels["speedup-by-sms"]


def test_two_runs_give_the_same_bytes_side_by_side_and_whatever_the_users_style(
    chain, folder, plots, tmp_path
):
    with mpl.rc_context({"font.size": 20, "savefig.dpi": 50, "svg.hashsalt": None}):
        drawn = write_plots(chain, tmp_path, jobs=3)
    assert [(p.name, p.result, p.caption) for p in drawn] == [
        (p.name, p.result, p.caption) for p in plots
    ]
    for file in folder.iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes(), file.name


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("sizes", "edges", "cost"),
    [
        ([1], [], None),
        pytest.param([3, 2], [], None, marks=pytest.mark.slow),
        ([2, 2], [((0, 0), (1, 1))], [0.0, 0.0, 0.0, 0.0]),
        pytest.param(
            [700, 700], [((0, b), (1, b)) for b in range(700)], None, marks=pytest.mark.slow
        ),
    ],
    ids=["one block", "no edges", "no work", "many blocks"],
)
def test_odd_programs_are_drawn(sizes, edges, cost, tmp_path):
    plots = write_plots(study_of(sizes, edges, cost=cost), tmp_path)
    assert {plot.name for plot in plots} == NAMES
    assert all(plot.result for plot in plots)


@pytest.mark.usefixtures("undrawn")
def test_what_is_left_out_is_said(tmp_path):
    sizes = [1] * 130
    captions = {
        p.name: p.caption for p in write_plots(study_of(sizes, chain_edges(sizes)), tmp_path)
    }
    assert set(captions) == NAMES
    assert "106 more are not" in captions["waves"]
    assert "Not drawn: 106 kernels" in captions["critical-path"]
    assert "binned" in captions["dependence-map"]


@pytest.mark.jit_only
def test_names_that_look_like_formulas_are_text(tmp_path):
    names = ["$\\frac{1}{0}$_kernel", "a<b>$x^2$"]
    write_plots(study_of([2, 2], chain_edges([2, 2]), names), tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_a_pair_can_be_chosen(tmp_path):
    sizes = [3, 3, 3]
    found = study_of(sizes, chain_edges(sizes))
    results = {p.name: p.result for p in write_plots(found, tmp_path, pair=(1, 2))}
    assert results["pair-blocks"].startswith("Kernel 2 (rows) waits for kernel 1 (columns)")


def test_no_two_curves_differ_by_colour_alone():
    curves = study_of([6, 8], [*chain_edges([6, 8]), ((0, 5), (1, 7), "WAR")], cost=range(14))
    (axes,) = speedup_by_sms.plot(curves).figure.get_axes()
    curves = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert len(curves) == 4
    assert len({line.get_marker() for line in curves}) == 4
    assert len({str(line.get_linestyle()) for line in curves}) == 4


def test_at_most_five_curves_are_drawn_the_bound_among_them(all_drawn):
    plot = speedup_by_sms.plot(all_drawn)
    (axes,) = plot.figure.get_axes()
    names = [line.get_label() for line in axes.get_lines() if line.get_label()[0] != "_"]
    assert len(all_drawn.curves) > 10
    assert len(names) == 5
    assert names[:2] == ["upper bound", "best dataflow"]
    assert "serial" not in names
    assert "Not drawn: " in plot.caption


def test_curves_that_coincide_are_drawn_once_and_named(plots):
    plot = next(p for p in plots if p.name == "speedup-by-sms")
    (axes,) = plot.figure.get_axes()
    curves = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert len(curves) == 2
    assert "Upper bound, RAW only coincides with upper bound." in plot.caption


def test_slots_held_by_waiting_blocks_are_not_drawn_as_busy(chain):
    serial = chain.schedules[0]
    waiting = replace(serial, name="waits", start=np.zeros_like(serial.start), waiting=1.0)
    shares = dict.fromkeys(("serial", "waits"), chain.utilizations["serial"])
    other = replace(chain, schedules=(serial, waiting), utilizations=shares)
    plot = utilization_over_time.plot(other)
    busy = [axes.patches[-1].get_data().values for axes in plot.figure.get_axes()]
    assert busy[0].tolist() == busy[1].tolist()
    assert "slots held by blocks that wait" in plot.caption


def rows_of(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_policies_stand_in_groups_beside_the_bound(all_drawn):
    plot = policies.plot(all_drawn)
    (axes,) = plot.figure.get_axes()
    groups = [text.get_text() for text in axes.texts if text.get_weight() == "bold"]
    assert groups == ["ships today", "code change", "new hardware"]
    rows = rows_of(axes)
    assert rows.index("streams") < rows.index("cusync-row") < rows.index("wireframe")
    assert not {"serial", "ideal"} & set(rows)
    bound = all_drawn.bound.upper_bound
    assert bound in [line.get_xdata()[0] for line in axes.get_lines()]
    assert f"Upper bound on 4 SMs: {bound:.2f}x. Best policies: ships today: " in plot.result


def test_no_policy_that_waits_between_blocks_passes_the_bound(all_drawn):
    (axes,) = policies.plot(all_drawn).figure.get_axes()
    bound, rows = all_drawn.bound.upper_bound, rows_of(axes)
    for bar in axes.patches:
        if not rows[round(bar.get_y() + bar.get_height() / 2)].endswith("*"):
            assert bar.get_x() + bar.get_width() <= bound + 1e-9


def test_one_long_bar_does_not_shorten_the_others():
    assert longest_drawn([1, 1, 2, 2, 100]) == 8
    assert longest_drawn([1, 2, 3]) == 3
    assert longest_drawn([0, 0]) == 0


def test_no_text_is_cut_off_by_the_edge_of_a_plot(all_drawn, tmp_path):
    for plot in write_plots(all_drawn, tmp_path):
        figure = plot.figure
        width, height = figure.get_size_inches() * figure.dpi
        drawn = [*figure.legends, *(a.xaxis.label for a in figure.get_axes())]
        for axes in figure.get_axes():
            low, high = sorted(axes.get_ylim())
            labels = axes.get_yticklabels()
            drawn += [label for label in labels if low <= label.get_position()[1] <= high]
        for each in drawn:
            box = each.get_window_extent()
            assert min(box.x0, box.y0) > -1, (plot.name, each)
            assert max(box.x1 - width, box.y1 - height) < 1, (plot.name, each)


def test_a_mechanism_slower_than_serial_is_within_the_axes(chain):
    slow = Curve("slow", (1, 4), (0.3, 0.4), is_bound=False)
    (axes,) = speedup_by_sms.plot(replace(chain, curves=(*chain.curves, slow))).figure.get_axes()
    assert axes.get_ylim()[0] < 0.3


def test_no_two_kinds_of_dependence_differ_by_colour_alone(plots):
    left, _ = next(p for p in plots if p.name == "true-and-false").figure.get_axes()
    assert len({bar.get_hatch() for bar in left.patches}) == len(left.patches) == 4
