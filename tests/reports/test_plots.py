"""The plots: always there, always the same bytes, never too wide, odd names and sizes included."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.study import Curve, study
from depgraph.mechanisms import find_mechanisms
from depgraph.reports.plots import (
    critical_path,
    drawn,
    policies,
    schedules,
    speedup_by_sms,
    utilization_over_time,
    write_plots,
)
from depgraph.reports.plots.style import house_style, longest_drawn
from depgraph.schedule.policy import Schedule, slots_on_sm
from depgraph.timing.measured_run import MeasuredRun

NAMES = {
    "schedules", "policies", "utilization-over-time", "speedup-by-sms", "critical-path",
    "dependence-map", "pair-blocks",
}  # fmt: skip


def study_of(sizes, edges, names=None, cost=None, sms=4, **options):
    graph = graph_of(sizes, edges, cost=cost)
    scenario = scenario_of(graph, occupancy=2, kernels=kernels_of(sizes, names), sms=sms)
    return study(scenario, **options)


@pytest.fixture(scope="module")
def chain():
    return study_of([6, 8, 3], chain_edges([6, 8, 3]), mechanisms=find_mechanisms(["all"]))


@pytest.fixture(scope="module")
def branches():
    """Kernels 0 and 1 side by side, then kernel 2."""
    return study_of([2, 2, 1], [((0, 0), (2, 0)), ((1, 1), (2, 0))], cost=[5, 5, 4, 4, 3])


@pytest.fixture(scope="module")
def all_drawn():
    sizes, edges = [6, 8, 3], [*chain_edges([6, 8]), ((0, 5), (2, 1), "WAR")]
    return study_of(sizes, edges, cost=range(17), drawn=find_mechanisms(["all"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plots")


@pytest.fixture(scope="module")
def plots(all_drawn, folder):
    return write_plots(all_drawn, folder, png=True)


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


def test_captions_say_how_to_read_a_plot_and_go_into_the_svg(plots, folder):
    for plot in plots:
        assert len(plot.caption) > 60
        svg = (folder / f"{plot.name}.svg").read_text()
        assert plot.caption[:40] in "".join(ET.fromstring(svg).itertext())  # noqa: S314


def test_each_plot_states_its_result(plots):
    results = {plot.name: plot.result for plot in plots}
    assert results["critical-path"] == "kernel_2 takes 75.0 % of the critical path."
    assert results["dependence-map"].startswith("2 dependent pairs of kernels, 1 by RAW: ")
    assert all(result.endswith(".") for result in results.values())


def test_axes_name_their_units(plots):
    labels = {
        plot.name: " ".join(
            axes.get_xlabel() + axes.get_ylabel() for axes in plot.figure.get_axes()
        )
        for plot in plots
    }
    for name in ("schedules", "critical-path", "utilization-over-time"):
        assert "time (instructions)" in labels[name]
    assert "SMs" in labels["speedup-by-sms"]


@pytest.mark.jit_only
def test_two_runs_give_the_same_bytes_side_by_side_and_whatever_the_users_style(
    all_drawn, folder, plots, tmp_path
):
    with mpl.rc_context({"font.size": 20, "savefig.dpi": 50, "svg.hashsalt": None}):
        drawn = write_plots(all_drawn, tmp_path, png=True, jobs=3)
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
    found = study_of(sizes, edges, cost=cost)
    plots = write_plots(found, tmp_path)
    assert {plot.name for plot in plots} < NAMES
    with house_style():
        assert all(draw(found).result for draw in drawn().values())


@pytest.mark.usefixtures("undrawn")
def test_what_is_left_out_is_said(tmp_path):
    sizes = [1] * 130
    names = [f"kernel_{i % 12}" for i in range(130)]
    found = study_of(sizes, chain_edges(sizes), names)
    captions = {p.name: p.caption for p in write_plots(found, tmp_path)}
    assert "binned" in captions["dependence-map"]
    rows = rows_of(critical_path.plot(found).figure.get_axes()[0])
    assert (len(rows), rows[-1]) == (11, "2 others")


def test_a_plot_that_says_nothing_of_a_program_is_left_out(tmp_path):
    # All to all between two kernels: a full rectangle, one mark, one path; nothing to gain.
    pairs = [((0, a), (1, b)) for a in range(2) for b in range(2)]
    found = study_of([2, 2], pairs, ["same", "same"], mechanisms=find_mechanisms(["all"]), sms=80)
    assert write_plots(found, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def bars_of(axes):
    """Return start, length and top of each bar."""
    corners = [path.vertices for path in axes.collections[0].get_paths()]
    return [(c[0, 0], c[1, 0] - c[0, 0], c[0, 1]) for c in corners]


def test_the_schedule_with_the_change_stands_below_the_one_now_on_one_axis(branches):
    plot = schedules.plot(branches)
    now, changed = plot.figure.get_axes()
    assert now.get_xlim() == changed.get_xlim() == (0, 12)
    assert [bar[:2] for bar in bars_of(now)] == [(0, 5), (5, 4), (9, 3)]
    assert [bar[:2] for bar in bars_of(changed)] == [(0, 5), (0, 4), (5, 3)]
    assert len({bar[2] for bar in bars_of(now)}) == 1
    assert len({bar[2] for bar in bars_of(changed)}) == 2
    assert changed.get_title("left") == "with independent branches side by side: 8.000 instructions"
    assert plot.result.startswith("One kernel after another: 12.00 instructions; with independent ")


@pytest.mark.parametrize(("wall", "axis", "arrow"), [(16.0, 16.0, False), (100.0, 12.0, True)])
def test_what_was_measured_stands_on_the_same_axis(branches, wall, axis, arrow):
    run = MeasuredRun(
        wall=wall, kernel_time=12, idle=wall - 12, is_graph=False, gap=0, interval=0, host=None,
        queued_gap=None, unit="us", sms=132, others=0,
    )  # fmt: skip
    launched = branches.conclusion.launched._replace(run=run)
    found = replace(branches, conclusion=branches.conclusion._replace(launched=launched))
    measured, *others = schedules.plot(found).figure.get_axes()
    assert measured.get_title("left").startswith("now on 132 SMs: ")
    assert measured.get_title("left").endswith("→") == arrow
    assert [axes.get_xlim() for axes in (measured, *others)] == [(0, axis)] * 3


def test_functions_whose_short_names_are_alike_have_labels_of_their_own():
    names = [f"sm80_xmma_gemm_with_tiles_of_{i}_and_a_long_end_of_name" for i in range(3)]
    figure = schedules.plot(study_of([1, 1, 1], [], names)).figure
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(labels)) == len(labels) == 3


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=12))
def test_kernels_of_one_lane_do_not_overlap_and_no_lane_is_spare(kernels):
    start = np.array([first for first, _ in kernels], float)
    end = start + [length for _, length in kernels]
    lane = slots_on_sm(Schedule("", start, end, np.zeros(len(start), np.int32)))
    for i in range(len(kernels)):
        for j in range(i):
            assert lane[i] != lane[j] or end[i] <= start[j] or end[j] <= start[i]
    at_once = max(int(((start <= t) & (t < end)).sum()) for t in start)
    assert lane.max() + 1 == at_once


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


def rows_of(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


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


def test_curves_that_coincide_are_drawn_once_and_named(chain):
    plot = speedup_by_sms.plot(chain)
    (axes,) = plot.figure.get_axes()
    curves = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert len(curves) == 2
    assert "Upper bound, RAW only coincides with upper bound." in plot.caption


def test_the_bound_is_drawn_and_not_the_one_that_it_coincides_with(chain):
    bound = chain.curves[0]
    assert bound.name == "upper bound"
    both = replace(chain, curves=(replace(bound, name="intra-block bound"), *chain.curves))
    plot = speedup_by_sms.plot(both)
    labels = [line.get_label() for line in plot.figure.get_axes()[0].get_lines()]
    assert "upper bound" in labels
    assert "Intra-block bound coincides with upper bound." in plot.caption


def test_slots_held_by_waiting_blocks_are_not_drawn_as_busy(chain):
    serial = chain.schedules[0]
    waiting = serial._replace(name="waits", start=np.zeros_like(serial.start), waiting=1.0)
    shares = dict.fromkeys(("serial", "waits"), chain.utilizations["serial"])
    other = replace(chain, schedules=(serial, waiting), utilizations=shares)
    plot = utilization_over_time.plot(other)
    busy = [axes.patches[-1].get_data().values for axes in plot.figure.get_axes()]
    assert busy[0].tolist() == busy[1].tolist()
    assert "slots held by blocks that wait" in plot.caption


def test_policies_stand_in_groups_beside_the_bound(all_drawn):
    plot = policies.plot(all_drawn)
    (axes,) = plot.figure.get_axes()
    groups = [text.get_text() for text in axes.texts if text.get_weight() == "bold"]
    assert groups == ["ships today", "code change", "new hardware"]
    bound = all_drawn.bound.upper_bound
    assert bound in [line.get_xdata()[0] for line in axes.get_lines()]
    assert f"Upper bound on 4 SMs: {bound:.2f}x. Best: ships today: " in plot.result


def test_policies_that_reach_the_same_share_a_row_and_none_passes_the_bound(all_drawn):
    (axes,) = policies.plot(all_drawn).figure.get_axes()
    reached = [text.get_text() for text in axes.texts if text.get_weight() != "bold"]
    assert len(reached) == len(axes.patches) > 3
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert max(ends) <= all_drawn.bound.upper_bound + 1e-9
    assert not any("stream-k" in row or "ideal" in row for row in rows_of(axes))
    assert any(", " in row for row in rows_of(axes))


def test_one_long_bar_does_not_shorten_the_others():
    assert longest_drawn([1, 1, 2, 2, 100]) == 8
    assert longest_drawn([1, 2, 3]) == 3
    assert longest_drawn([0, 0]) == 0


@pytest.mark.jit_only
def test_no_text_is_cut_off_by_the_edge_of_a_plot(all_drawn, tmp_path):
    for plot in write_plots(all_drawn, tmp_path):
        figure = plot.figure
        width, height = figure.get_size_inches() * figure.dpi
        drawn = [*figure.legends, *(a.xaxis.label for a in figure.get_axes())]
        for axes in figure.get_axes():
            low, high = sorted(axes.get_ylim())
            labels = axes.get_yticklabels()
            drawn += [label for label in labels if low <= label.get_position()[1] <= high]
            texts = [child for child in axes.get_children() if isinstance(child, mpl.text.Text)]
            drawn += [text for text in texts if text.get_text()]
        for each in drawn:
            box = each.get_window_extent()
            assert min(box.x0, box.y0) > -1, (plot.name, each)
            assert max(box.x1 - width, box.y1 - height) < 1, (plot.name, each)


def test_a_mechanism_slower_than_serial_is_within_the_axes(chain):
    slow = Curve("slow", (1, 4), (0.3, 0.4), is_bound=False)
    (axes,) = speedup_by_sms.plot(replace(chain, curves=(*chain.curves, slow))).figure.get_axes()
    assert axes.get_ylim()[0] < 0.3
