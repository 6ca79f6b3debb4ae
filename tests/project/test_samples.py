"""The packaged samples are there, unedited, and what their README says they are."""

import json
import lzma

import pandas as pd
import pytest

from depgraph import samples
from depgraph.errors import InputError


def test_the_trace_is_an_nvbit_log_of_25_launches():
    with lzma.open(samples.sample_path(), "rt") as log:
        launches = [line for line in log if " - LAUNCH - " in line]
    assert len(launches) == 25


def test_the_kernel_times_come_from_an_h100_and_name_a_few_kernels_more():
    profile = json.loads(samples.sample_path(samples.KERNEL_TIMES).read_text())
    kernels = [event for event in profile["traceEvents"] if event.get("cat") == "kernel"]
    assert profile["deviceProperties"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert len(kernels) == 29


def test_the_golden_edges_are_distinct_and_point_forward():
    edges = pd.read_parquet(samples.sample_path(samples.GOLDEN_EDGES))
    assert list(edges) == ["src_kernel", "src_block", "dst_kernel", "dst_block", "kind"]
    assert len(edges.drop_duplicates()) == 999
    assert (edges.src_kernel < edges.dst_kernel).all()


def test_a_sample_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"nvbit/none\.log: no such sample; .*gru_train"):
        samples.sample_path("nvbit/none.log")


@pytest.mark.parametrize(
    "name",
    [
        samples.NVBIT_TRACE,
        samples.KERNEL_TIMES,
        samples.GOLDEN_EDGES,
        "accelsim/gru_train/kernelslist.g",
        "accelsim/gru_train/kernel-1.traceg.xz",
    ],
)
def test_samples_are_unedited(name, shared_data):
    assert samples.sample_path(name).read_bytes() == (shared_data / name).read_bytes()
