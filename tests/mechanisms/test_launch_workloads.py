"""Programs described from graphs: levels of a search, a thread a vertex."""

import gzip

import numpy as np
import pytest

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.cli.commands import bound
from depgraph.cli.options.suite_file import programs_of
from depgraph.errors import InputError
from depgraph.mechanisms import find_mechanisms
from depgraph.parsers.workload import read_workload
from depgraph.reproduce.programs import scenario_of
from depgraph.samples.launches import bfs_levels, main, read_csr, rmat
from depgraph.samples.suite import launching, summaries
from depgraph.scenario.build_scenario import build_scenario

# A star of vertex 0 with 1 to 5, and an edge from 5 to 6.
STAR = "%%MatrixMarket matrix coordinate pattern symmetric\n% a star\n7 7 6\n" + "".join(
    f"{row} {column}\n" for row, column in [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 6)]
)


@pytest.fixture
def star(tmp_path):
    path = tmp_path / "star.mtx"
    path.write_text(STAR, encoding="utf-8")
    return path


def described(path, *options):
    assert main([str(path), "-o", str(path.with_suffix(".toml")), "--force", *options]) == 0
    extraction = read_workload(path.with_suffix(".toml"))
    return build_scenario(extraction.graph, extraction.kernels)


def test_matrices_are_read_however_they_are_written(star, tmp_path):
    indptr, indices = read_csr(star)
    packed = tmp_path / "star.mtx.gz"
    packed.write_bytes(gzip.compress(STAR.encode()))
    archive = tmp_path / "star.npz"
    np.savez(archive, indptr=indptr, indices=indices, format="csr", shape=(7, 7), data=indices)
    assert np.diff(indptr).tolist() == [5, 1, 1, 1, 1, 2, 1]
    for other in (packed, archive):
        assert [part.tolist() for part in read_csr(other)] == [indptr.tolist(), indices.tolist()]
    levels = [level.tolist() for level in bfs_levels(indptr, indices, 0)]
    assert levels == [[0], [1, 2, 3, 4, 5], [6]]


def test_levels_become_kernels_and_vertices_launches(star):
    scenario = described(star, "--edge-cycles", "100", "--vertex-cycles", "40", "--block", "2")
    assert [k.blocks for k in scenario.kernels] == [1, 3, 1]
    launches = scenario.launches
    assert launches.block.tolist() == [0, 1, 1, 2, 2, 3, 4]
    assert launches.items.tolist() == [5, 1, 1, 1, 1, 2, 1]
    assert launches.child_grid.tolist() == [3, 1, 1, 1, 1, 1, 1]
    # The threads of a warp loop side by side: a block takes what its largest vertex does.
    assert scenario.durations.tolist() == [540, 140, 140, 240, 140]
    rows = compare_mechanisms(scenario.on(8), [8], find_mechanisms(["flat", "spawn"])).outcomes
    assert [row.makespan for row in rows] == [540 + 240 + 140] * 2


def test_few_items_are_never_launched_and_a_search_can_begin_anywhere(star):
    scenario = described(star, "--least", "2", "--edge-cycles", "100", "--source", "6")
    assert [k.blocks for k in scenario.kernels] == [1, 1, 1, 1]
    assert scenario.launches.items.tolist() == [2, 5]
    assert scenario.durations.tolist() == [4100, 4200, 4500, 4100]


def test_all_rows_at_once(star):
    scenario = described(star, "--work", "rows")
    assert [k.blocks for k in scenario.kernels] == [1]
    assert len(scenario.launches) == 7


def test_a_graph_can_be_made_up_and_is_the_same_each_time():
    indptr, indices = rmat(6, 8)
    assert len(indptr) == 65
    assert len(indices) == indptr[-1] == 64 * 8
    assert [part.tolist() for part in rmat(6, 8)] == [indptr.tolist(), indices.tolist()]
    assert np.diff(indptr).max() > 4 * 8  # few vertices have most of the edges


@pytest.mark.parametrize("graph", ["rmat:19:8", "rmat:0:8", "rmat:4:0", "rmat:4", "none.mtx"])
def test_a_graph_that_is_none(tmp_path, capsys, graph):
    assert main([graph, "-o", str(tmp_path / "out.toml")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.mtx", b"7 7 6\n", "does not begin with"),
        ("cut.mtx", STAR.encode()[:-4], "5 entries, 6 announced"),
        ("far.mtx", STAR.replace("5 1\n", "5 9\n").encode(), "an index is not among"),
        ("big.mtx", STAR.replace("7 7 6", "7 7 999999999999").encode(), "999999999999 entries"),
        ("no.npz", b"PK", "is no matrix"),
        ("no.mtx.gz", b"text", "gzip"),
        ("bytes.mtx", b"%%MatrixMarket matrix coordinate \xff\xfe", "is no matrix"),
    ],
)
def test_what_is_no_matrix_is_refused_in_a_line(tmp_path, capsys, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_csr(path)
    assert main([str(path), "-o", str(tmp_path / "out.toml")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out.toml").exists()


def test_an_archive_whose_rows_go_backwards_and_a_file_that_is_there(tmp_path, star, capsys):
    archive = tmp_path / "bad.npz"
    np.savez(archive, indptr=[0, 3, 2], indices=[0, 1])
    with pytest.raises(InputError, match="indptr does not go up"):
        read_csr(archive)
    out = tmp_path / "out.toml"
    out.write_text("mine", encoding="utf-8")
    assert main([str(star), "-o", str(out)]) == 1
    assert "exists" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    "options", [["--source", "7"], ["--block", "0"], ["--edge-cycles", "nan"], ["--least", "-1"]]
)
def test_wrong_usage_ends_with_2(star, tmp_path, options):
    with pytest.raises(SystemExit, match="2"):
        main([str(star), "-o", str(tmp_path / "out.toml"), *options])


@pytest.mark.slow
def test_a_suite_file_of_all_programs(tmp_path):
    launching.write_all(tmp_path / "all", force=False)
    (path,) = (tmp_path / "all").glob("suite.toml")
    programs = programs_of(bound.command, [path])
    assert [program.name for program in programs] == list(launching.PROGRAMS)
    assert "launch" in (tmp_path / "all" / "bfs.toml").read_text(encoding="utf-8")


def scenario_of_suite(name, folder):
    path = folder / f"{name}.toml"
    path.write_text(launching.described(name), encoding="utf-8")
    return scenario_of(read_workload(path), "V100", 13)


@pytest.mark.parametrize(
    "name", ["amr", "join_uniform", pytest.param("mandelbrot", marks=pytest.mark.slow), "products"]
)
@pytest.mark.jit_only
def test_programs_of_the_suite_take_what_is_packaged(name, tmp_path):
    (expected,) = (each["cycles"] for each in summaries("launching") if each["name"] == name)
    program = scenario_of_suite(name, tmp_path)
    found = compare_mechanisms(program, [program.sms], find_mechanisms(list(expected)))
    times = [outcome.makespan for outcome in found.outcomes]
    assert times == list(expected.values())
    flat, cdp, best, _ = times
    assert best <= min(flat, cdp)


def test_each_algorithm_is_run_to_find_the_work():
    indptr, indices = rmat(12, 16)
    degree = np.diff(indptr)
    reached = np.concatenate(list(bfs_levels(indptr, indices, int(degree.argmax()))))
    assert sum(items.sum() for items in launching.bfs()) == degree[reached].sum()
    # A shorter way may be found later, so some vertices are looked at again.
    assert sum(items.sum() for items in launching.sssp()) >= degree[reached].sum()
    left = [int((items > 0).sum()) for items in launching.colouring()]
    assert left == sorted(left, reverse=True)
    (tiles,) = launching.mandelbrot(side=4, pixels=4)
    assert set(tiles[0].tolist()) <= {0, 16}
    assert (tiles[2] * 16 >= tiles[1]).all()
