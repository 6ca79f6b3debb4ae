"""A file without times of single kernels is refused with the command that writes one."""

import gzip
import sqlite3

import pytest

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile


@pytest.fixture
def file(tmp_path):
    def write(content, name="times"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("content", "found", "hint"),
    [
        (
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),Name\n",
            ":1: is a summary of nsys",
            "nsys stats --report cuda_gpu_trace",
        ),
        (
            "Time(%),Total Time (ns),Num Calls,Average,Minimum,Maximum,Name\n",
            ":1: is a summary of nsys",
            "nsys stats --report cuda_gpu_trace",
        ),
        (
            "Processing...\n\nStart (ns),Duration (ns),Name,Result,CorrID,Pid,Tid\n",
            ":3: is an nsys report of API calls",
            "nsys stats --report cuda_gpu_trace",
        ),
        (
            "API Start (ns),API Dur (ns),Kernel Start (ns),Kernel Dur (ns),Kernel Name\n",
            ":1: is another report of nsys",
            "nsys stats --report cuda_gpu_trace",
        ),
        (
            "\n Start (ns)   Duration (ns)  CorrId  GrdX  GrdY\n",
            ":2: is a table for people",
            "--format csv",
        ),
        (
            " Time (%)  Total Time (ns)  Instances   Avg (ns)\n",
            ":1: is a table for people",
            "--format csv",
        ),
        (
            "SKIPPED: r.sqlite does not contain CUDA trace data.\n",
            ":1: says that no kernel was recorded",
            "--trace=cuda",
        ),
        (
            '"Process ID","Kernel Name","Invocations","Metric Name","Metric Unit","Average"\n',
            ":1: is a summary of Nsight Compute",
            "ncu --csv --page raw",
        ),
        ("==WARNING== No kernels were profiled.\n", "no kernel was recorded", "ncu --csv"),
        ("NVR\0rest", "is a report of Nsight Compute itself", "ncu --csv --page raw"),
        (
            '==1== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n',
            ":2: is a summary of nvprof",
            "nvprof --print-gpu-trace --csv",
        ),
        (
            '"Device","Context","Stream","Kernel","Correlation_ID","elapsed_cycles_sm"\n',
            ":1: is an nvprof table of metrics",
            "nvprof --print-gpu-trace --csv",
        ),
        (
            '"Device","Kernel","Invocations","Metric Name","Min","Max","Avg"\n',
            ":1: is an nvprof summary of metrics",
            "nvprof --print-gpu-trace --csv",
        ),
        (
            "   Start  Duration            Grid Size      Block Size     Regs*\n",
            ":1: is a table for people",
            "nvprof --print-gpu-trace --csv",
        ),
        (
            "            Type  Time(%)      Time     Calls       Avg\n",
            ":1: is a table for people",
            "nvprof --print-gpu-trace --csv",
        ),
        ("MEMTRACE: CTX 0x1 - LAUNCH - ...\n", "is a memory trace", "cuda_gpu_trace"),
        ("kernel,address\n0,1\n", "is in no format", "kernel,duration_us"),
        ("", "the file is empty", "kernel,duration_us"),
        (" \n\n", "the file is empty", "kernel,duration_us"),
        (b"\x7fELF\0\0\xff", "is in no format", "kernel,duration_us"),
    ],
)
def test_refusals(file, content, found, hint):
    with pytest.raises(ProfileError) as caught:
        read_profile(file(content))
    assert found in str(caught.value)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_reports_are_named(file):
    with pytest.raises(ProfileError, match=r"is a .nsys-rep report itself; .*nsys export"):
        read_profile(file(b"QDSS\0\1", "run.nsys-rep"))


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(ProfileError, match="is a folder"):
        read_profile(tmp_path)
    with pytest.raises(ProfileError, match="no such file"):
        read_profile(tmp_path / "none")


def test_a_compressed_database(file, tmp_path):
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(ProfileError, match="is gz-compressed; unpack it"):
        read_profile(file(gzip.compress((tmp_path / "db").read_bytes())))


def test_a_compressed_file_that_is_cut_off(file):
    content = gzip.compress(b"kernel,duration_us\n" + b"".join(b"%d,1\n" % n for n in range(9999)))
    with pytest.raises(ProfileError, match="ends early"):
        read_profile(file(content[:-9]))


def test_the_suffix_does_not_matter(file):
    assert read_profile(file("kernel,duration_us\n0,1\n", "x.json")).format == "kernels-csv"
