"""Real files of every format, compared with a plain second reading of the same file."""

import csv
import gzip
import json
import re
import sqlite3

import numpy as np
import pytest

from depgraph.parsers.profiles import read_profile
from depgraph.timing.profile import BlockProfile

OUR_TRACES = {"gpt2_d256": 16, "gru_train": 29, "lstm_h128": 12, "mlp_m256": 5, "streams4": 14}
KINETO = [f"timing/{name}.kineto.json" for name in OUR_TRACES] + [
    "public/timing/kineto_alexnet.json.gz",
    "public/timing/kineto_amd.json.gz",
]
NSYS_CSV = [
    "lmhead_profile_cuda_gpu_trace.head30.csv",
    "nsys2025_3_2_cuda_gpu_trace.csv",
    "nsys2026_3_1_cuda_gpu_trace.csv",
]


@pytest.mark.parametrize("name", KINETO)
def test_kineto(shared_data, name):
    path = shared_data / name
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernels.sort(key=lambda event: event["args"]["correlation"])
    profile = read_profile(path)
    assert profile.name == tuple(event["name"] for event in kernels)
    assert profile.duration == pytest.approx([event["dur"] * 1000 for event in kernels])
    base = trace.get("baseTimeNanoseconds", 0)
    starts = [base + round(event["ts"] * 1000) for event in kernels]
    assert np.abs(profile.start - np.array(starts)).max() <= 1
    sms = {device["id"]: device["numSms"] for device in trace["deviceProperties"]}
    for key, column in (
        ("grid", profile.grid),
        ("block", profile.block),
        ("registers per thread", profile.registers),
        ("shared memory", profile.shared_bytes),
        ("stream", profile.stream),
        ("device", profile.device),
    ):
        if key in kernels[0]["args"]:
            assert column.tolist() == [event["args"][key] for event in kernels]
        else:
            assert column is None
    assert profile.measured_sms.tolist() == [sms[event["args"]["device"]] for event in kernels]
    assert not profile.skipped


@pytest.mark.parametrize(("name", "kernels"), OUR_TRACES.items())
def test_our_own_traces(shared_data, name, kernels):
    profile = read_profile(shared_data / "timing" / f"{name}.kineto.json")
    assert len(profile) == kernels
    assert set(profile.measured_sms.tolist()) == {132}
    assert profile.device_names == {0: "NVIDIA H100 80GB HBM3"}
    assert not profile.notes


def test_four_streams_are_in_launch_order_not_in_that_of_start(shared_data):
    profile = read_profile(shared_data / "timing" / "streams4.kineto.json")
    assert len(profile.streams) == 5
    assert np.all(np.diff(profile.correlation) > 0)
    assert len(profile.only(stream=profile.streams[1])) == 3


@pytest.mark.parametrize("name", NSYS_CSV)
def test_nsys_csv(shared_data, name):
    path = shared_data / "public" / "timing" / name
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["GrdX"]]
    profile = read_profile(path)
    assert profile.name == tuple(row["Name"] for row in rows)
    assert profile.duration.tolist() == [float(row["Duration (ns)"]) for row in rows]
    assert profile.start.tolist() == [int(row["Start (ns)"]) for row in rows]
    assert profile.stream.tolist() == [int(row["Strm"]) for row in rows]
    assert profile.registers.tolist() == [int(row["Reg/Trd"]) for row in rows]
    assert profile.grid[:, 1].tolist() == [int(row["GrdY"]) for row in rows]
    assert profile.block[:, 0].tolist() == [int(row["BlkX"]) for row in rows]
    assert profile.devices == (0,)
    assert not profile.skipped


def test_nsys_sqlite_of_two_gpus_and_processes(shared_data):
    path = shared_data / "public" / "timing" / "nsys_h100_2gpu.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT end - start, start, gridX, blockX, registersPerThread, streamId, value "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
            "WHERE deviceId = 1 ORDER BY correlationId"
        ).fetchall()
    connection.close()
    profile = read_profile(path)
    assert len(profile) == 3442
    assert profile.devices == (0, 1)
    assert profile.processes == (111, 112)
    second = profile.only(device=1)
    assert second.processes == (112,)
    assert len(second) == len(rows) == 1721
    duration, start, grid, block, registers, stream, name = zip(*rows, strict=True)
    assert second.duration.tolist() == list(duration)
    assert second.start.tolist() == list(start)
    assert second.grid[:, 0].tolist() == list(grid)
    assert second.block[:, 0].tolist() == list(block)
    assert second.registers.tolist() == list(registers)
    assert second.stream.tolist() == list(stream)
    assert second.name == name


def test_ncu(shared_data):
    path = shared_data / "public" / "timing" / "ncu_qmma_splitk_baseline.columns-excerpt.csv"
    profile = read_profile(path)
    assert profile.name == ("q8_qmma", "q8_qmma")
    assert profile.duration.tolist() == [73120.0, 90144.0]
    assert profile.grid.tolist() == [[1, 20, 1], [1, 12, 1]]
    assert profile.block.tolist() == [[128, 1, 1]] * 2
    assert profile.registers.tolist() == [238, 238]


def test_accelsim_log_of_an_aborted_run(shared_data):
    profile = read_profile(shared_data / "public" / "simlogs" / "accelsim_1kernel_truncated.out")
    assert profile.unit == "cycles"
    assert profile.name == ("_Z12PowerKernal2PKjS0_Pjji",)
    assert profile.duration.tolist() == [9793.0]
    assert profile.grid.tolist() == [[32, 1, 1]]
    assert profile.measured_sms.tolist() == [80]
    assert profile.clock_mhz == 1312.0
    assert "launch latency of 8606 cycles" in profile.notes[0]


def test_gpgpusim_log_with_block_lines(shared_data):
    path = shared_data / "public" / "simlogs" / "gpgpusim_comd.log"
    text = path.read_text(errors="replace")
    profile = read_profile(path)
    assert isinstance(profile, BlockProfile)
    assert np.bincount(profile.kernel).tolist() == [7, 216, 216, 7]
    for kernel, blocks in enumerate((7, 216, 216, 7)):
        assert profile.block[profile.kernel == kernel].tolist() == list(range(blocks))
    began = sorted(
        sum(map(int, pair)) for pair in re.findall(r"initialized @\((\d+),(\d+)\)", text)
    )
    ended = sorted(
        sum(map(int, pair)) for pair in re.findall(r"finished CTA #\d+ \((\d+),(\d+)\)", text)
    )
    assert sorted(profile.start) == began
    assert sorted(profile.start + profile.duration) == ended
    assert profile.measured_sms == 15
    assert profile.kernels.block[:, 0].tolist() == [128, 14, 14, 128]
    assert profile.kernels.duration.tolist() == [327696.0, 3766.0, 4248.0, 301710.0]
    assert not profile.skipped
