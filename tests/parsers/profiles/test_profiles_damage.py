"""Files that are cut or damaged anywhere: a profile or a clear refusal, nothing else."""

import functools
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from profiles_made import database_of

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.timing.profile import KernelProfile

NSYS = """\
Processing [r.sqlite] with [cuda_gpu_trace.py]...

Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),\
Device,Ctx,Strm,Name
100,50,1,,,,,,,,,,GPU (0),1,13,[CUDA memcpy Host-to-Device]
200,40672,3,4096,2,1,256,1,1,16,0.001,0.000,GPU (0),1,13,"k<int>(const float *, ""x"")"
300,12345,5,64,1,1,32,1,1,24,0.001,0.000,GPU (0),1,14,plain
"""
NVPROF = """\
==1== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",\
"Registers Per Thread","Static SMem","Dynamic SMem","Device","Context","Stream","Name"
ms,us,,,,,,,,KB,B,,,,
246.1,10.5,40,1,1,64,1,1,16,0.000000,0,"V100 (0)","1","7","a(float*) [120]"
246.5,12.5,80,2,1,128,1,1,24,4.125000,512,"V100 (0)","1","7","b(int) [122]"
"""
NCU_RAW = """\
==PROF== Connected
"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","m","gpu__time_duration.sum"
"","","","","","","","us"
"0","5","q8","13","(128, 1, 1)","(1, 20, 1)","0.21","73.120000"
"1","5","q9","13","(128, 1, 1)","(1, 12, 1)","0.12","90.144000"
"""
NCU_DETAILS = """\
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","5","q8","Speed","Duration","us","73.12"
"0","5","q8","Launch","Registers Per Thread","register/thread","40"
"1","5","q9","Speed","Duration","ms","1,073.12"
"""
SIMLOG = """\
-gpgpu_n_clusters   80 # clusters
-kernel name = a
-grid dim = (2,1,1)
-nregs = 12
launching kernel name: a uid: 1 cuda_stream_id: 0
GPGPU-Sim uArch: Shader 0 bind to kernel 1 'a'
GPGPU-Sim uArch: core:  0, cta: 0 initialized @(5,0)
GPGPU-Sim uArch: Shader 0 finished CTA #0 (55,0), 0 CTAs running
Destroy streams for kernel 1: size 0
kernel_name = a
kernel_launch_uid = 1
gpu_sim_cycle = 9793
gpu_tot_sim_cycle = 9793
launching kernel name: b uid: 2 cuda_stream_id: 0
Destroy streams for kernel 2: size 0
kernel_name = b
kernel_launch_uid = 2
gpu_sim_cycle = 1234
gpu_tot_sim_cycle = 11027
"""


def kineto():
    def kernel(number):
        times = {"ts": 100 + number, "dur": 2.625 + number}
        arguments = {"device": 0, "stream": 7, "correlation": number, "grid": [number, 1, 1]}
        return {"ph": "X", "cat": "kernel", "name": f'k<"{number}">', **times, "args": arguments}

    events = [kernel(1), {"ph": "X", "cat": "cpu_op", "name": "add"}, kernel(2)]
    properties = {"deviceProperties": [{"id": 0, "numSms": 132}], "traceEvents": events}
    return json.dumps({**properties, "baseTimeNanoseconds": 1000}, indent=1).encode()


def database():
    kernels = [
        {"start": n * 100, "end": n * 100 + n, "correlationId": n, "demangledName": 1,
         "gridX": 4, "gridY": 1, "gridZ": 1, "deviceId": 0, "globalPid": 5 << 24}
        for n in range(40)
    ]  # fmt: skip
    strings = [{"id": 1, "value": "k"}]
    return database_of({"CUPTI_ACTIVITY_KIND_KERNEL": kernels, "StringIds": strings})


def parquet():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        frame = {"kernel": [0, 0, 1], "block": [0, 1, 0], "duration_us": [1.5, 2.5, 3.5]}
        pd.DataFrame(frame).to_parquet(path)
        return path.read_bytes()


@functools.cache
def examples():
    return {
        "kineto": kineto(),
        "kineto.gz": gzip.compress(kineto()),
        "kineto.xz": lzma.compress(kineto()),
        "nsys-csv": NSYS.encode(),
        "nvprof": NVPROF.encode(),
        "ncu-raw": NCU_RAW.encode(),
        "ncu-details": NCU_DETAILS.encode(),
        "simlog": SIMLOG.encode(),
        "kernels-csv": b"kernel,duration_us,sms\n0,12.5,80\n1,3.25,80\n",
        "blocks-csv": b"kernel,block,duration_ns,start_ns\n0,0,120,5\n0,1,130,6\n1,0,77,200\n",
        "sqlite": database(),
        "parquet": parquet(),
    }


FORMATS = list(examples())


def read(content, path):
    path.write_bytes(content)
    try:
        profile = read_profile(path)
    except ProfileError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(path))
        return None
    assert len(profile) > 0
    assert np.all(np.isfinite(profile.duration))
    assert np.all(profile.duration >= 0)
    if isinstance(profile, KernelProfile):
        assert len(profile.name) == len(profile)
    else:
        assert np.all(profile.block >= 0)
    return profile


def times(profile):
    starts = [None] * len(profile) if profile.start is None else profile.start.tolist()
    return set(zip(profile.duration.tolist(), starts, strict=True))


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_whole_file_is_read(tmp_path, format_name):
    assert read(examples()[format_name], tmp_path / "whole") is not None


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_cut_anywhere_gives_no_time_that_the_whole_does_not_give(tmp_path, format_name):
    content = examples()[format_name]
    path = tmp_path / "cut"
    whole = times(read(content, path))
    stride = 61 if format_name in {"sqlite", "parquet"} else 1
    for length in range(0, len(content), stride):
        profile = read(content[:length], path)
        if profile is None or "no line end" in "".join(profile.notes):
            continue
        found = times(profile)
        if profile.start is None or format_name != "kineto":
            assert found <= whole, length
        else:  # the time of the origin stands at the end of the file
            assert {duration for duration, _ in found} <= {duration for duration, _ in whole}


@pytest.mark.parametrize("format_name", FORMATS)
@given(data=st.data())
def test_damaged_bytes(tmp_path_factory, format_name, data):
    content = bytearray(examples()[format_name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    read(bytes(content), tmp_path_factory.getbasetemp() / "damaged")


@pytest.mark.parametrize("format_name", ["nsys-csv", "nvprof", "ncu-raw", "ncu-details", "simlog"])
@given(data=st.data())
def test_lines_lost_doubled_and_swapped(tmp_path_factory, format_name, data):
    lines = examples()[format_name].splitlines(keepends=True)
    shuffled = data.draw(st.lists(st.sampled_from(lines), max_size=2 * len(lines)))
    read(b"".join(shuffled), tmp_path_factory.getbasetemp() / "shuffled")


@given(content=st.binary(max_size=300))
def test_any_bytes(tmp_path_factory, content):
    assume(not content.startswith(b"PK"))
    read(content, tmp_path_factory.getbasetemp() / "noise")


NUMBERS = ["1e999999999", "-0", "1e-999999999", "9" * 5000, "0x10", "1_000", "\u0661", "null", "{}"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("format_name", ["kineto", "nsys-csv", "ncu-raw", "kernels-csv", "simlog"])
def test_strange_numbers(tmp_path, format_name, number):
    content = examples()[format_name].decode()
    for digits in ("2.625", "3.625", "101", "40672", "4096", "73.120000", "12.5", "9793", "1000"):
        if digits in content:
            read(content.replace(digits, number).encode(), tmp_path / "strange")
