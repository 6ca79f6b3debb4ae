"""Files of measurements: read as they were written, and refused in one line."""

import json
import lzma

import pytest

from depgraph.errors import DepgraphError, ProfileError
from depgraph.parsers.measurements import read_measurements
from depgraph.samples import sample_path

TIMES = [10.0, 9.5, 11.0]


def a_file():
    return {
        "machine": {"gpu": "NVIDIA\x1b[31m  GPU", "sms": 8, "driver": "580", "date": "today"},
        "launches": [
            ["gemm", [4, 2, 1], [128, 1, 1], 64, 1024, 512],
            ["Memset", None, None, 0, 0, 4096],
        ],
        "programs": [
            {
                "name": "two", "kind": "chain", "half": 1,
                "kernels": [[0, 0, 7.5, 7.0, 1, 1], [1, 1, None, 2.0, 0, 0]], "edges": [[0, 1]],
                "serial": TIMES, "serial_primed": [9.0, 8.5, 9.5],
                "parallel": [8.0, 7.5, 9.0], "parallel_primed": TIMES,
                "streams": [40.0, 39.0, 41.0], "streams_host": 38.5,
            },
            {"name": "failed", "kind": "fan", "half": 0, "error": "out of memory"},
        ],
    }  # fmt: skip


def written(folder, content, name="measured.json"):
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(lzma.compress(data) if name.endswith(".xz") else data)
    return path


@pytest.mark.parametrize("name", ["measured.json", "measured.json.xz"])
def test_it_is_read_as_it_was_written(tmp_path, name):
    found = read_measurements(written(tmp_path, a_file(), name))
    assert (found.gpu, found.sms, found.architecture) == ("NVIDIA GPU", 8, None)
    assert found.details == {"driver": "580", "date": "today"}
    (program,) = found.programs  # the one that failed is left out
    assert (program.serial, program.parallel) == (9.0, 8.0)  # the lesser medians
    assert (program.streams, program.streams_ahead, program.streams_host) == (40.0, None, 38.5)
    gemm, memset = program.kernels
    assert (gemm.grid, gemm.shared_bytes, gemm.time) == ((4, 2, 1), 1536, 7.5)
    assert (memset.grid, memset.time) == ((1, 1, 1), 2.0)
    assert program.edges == [(0, 1)]


def test_the_packaged_file_is_of_an_h100():
    found = read_measurements(sample_path("validation/measured/h100.json.xz"))
    assert found.gpu == "NVIDIA H100 80GB HBM3"
    assert len(found.programs) == 209
    assert sum(program.half == 0 for program in found.programs) == 105


def changed(*path, value):
    content = a_file()
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        ([], "machine is not a table"),
        (changed("programs", value=[]), "no program in it was measured"),
        (changed("programs", value=[7]), "no program in it was measured"),
        (changed("machine", "sms", value=True), "sms is not a whole number from 1"),
        (changed("machine", "gpu", value=""), "gpu is not a name"),
        (changed("launches", 0, 1, value=[1 << 20, 8, 1]), "two: kernel gemm: 8388608 blocks"),
        (changed("launches", 0, 3, value=-1), "kernel gemm: registers is not a whole number"),
        (changed("launches", 0, value=None), "launch 0 is not a list of 6"),
        (changed("programs", 0, "edges", value=[[1, 0]]), "two: an edge is not a whole number"),
        (changed("programs", 0, "edges", value=[[0]]), "two: an edge is not a list of 2"),
        (changed("programs", 0, "kernels", value=[]), "two: 0 kernels"),
        (changed("programs", 0, "kernels", 0, 0, value=9), "two: launch is not a whole number"),
        (changed("programs", 0, "kernels", 0, 2, value=-1), "gemm: time is not a time"),
        (changed("programs", 0, "half", value=2), "two: half is not a whole number from 0 to 1"),
        (changed("programs", 0, "serial", value=[float("nan")]), "two: serial is not a time"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(ProfileError, match=message) as caught:
        read_measurements(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DepgraphError, match="no such file"):
        read_measurements(tmp_path / "none.json")
