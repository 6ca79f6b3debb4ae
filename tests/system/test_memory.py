"""Footprints beyond the memory limit go through files, and nothing else changes."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_texts import GLOBAL, Form, header_text
from programs import BASE, access_line, edges_of, launch_line
from stores import files_of

from depgraph.errors import ModelError, TraceError
from depgraph.extraction.pipeline import analyse, extract
from depgraph.footprint.footprints import (
    PAGE_BYTES,
    FileOverflow,
    Footprints,
    RangeStore,
    SpilledFootprints,
    concatenate_footprints,
    read_slice,
    write_run,
    write_run_by_start,
)
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit import text as nvbit_text
from depgraph.parsers.scanning import tables
from depgraph.store.store import Store
from depgraph.system.workers import _free_in_groups, default_limit, parse_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * MIB),
        ("8GiB", 8 << 30),
        ("1.5 GB", 1_500_000_000),
        ("100m", 100_000_000),
        ("99999999", 99_999_999),
    ],
)
def test_sizes_are_binary_with_an_i_and_decimal_without(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "12iB", "-1GiB", "1 GiB x", "1MiB"])
def test_a_size_that_makes_no_sense_is_refused(text):
    with pytest.raises(ModelError, match=r"is not a size|is too small"):
        parse_size(text)


def test_a_size_that_is_no_limit_of_a_run_may_be_small():
    assert [parse_size(text, least=0) for text in ("0", "32MiB")] == [0, 32 * MIB]


def test_the_default_limit_is_a_part_of_what_the_machine_has():
    assert 64 * MIB <= default_limit() < 1 << 50


@pytest.mark.parametrize(
    ("membership", "free"),
    [
        ("", [900]),
        ("0::/\n", [900, 900]),
        ("0::/job_7/step_0\n", [900, 70, 200, 900]),
        ("3:cpu:/x\n4:hugetlb,memory:/slurm\n1:name=systemd:/\n", [900, 5]),
    ],
)
def test_batch_jobs_may_use_less_than_the_machine_has(tmp_path, membership, free):
    for folder, names, limit, usage in (
        (".", ("memory.max", "memory.current"), "1000", "100"),
        ("job_7", ("memory.max", "memory.current"), "300", "100"),
        ("job_7/step_0", ("memory.max", "memory.current"), "100", "30"),
        ("memory/slurm", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "10", "5"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, value in zip(names, (limit, usage), strict=True):
            (tmp_path / folder / name).write_text(f"{value}\n")
    assert _free_in_groups(membership, tmp_path) == free


def test_a_grid_that_memory_cannot_hold_is_refused_at_once(tmp_path):
    trace = tmp_path / "trace.log"
    trace.write_text(
        "MEMTRACE: CTX 0x0000000033c98dc0 - LAUNCH - Kernel pc 0x00007f4d5a105000 - Kernel name k "
        "- grid launch id 0 - grid size 1073741824,1,1 - block size 32,1,1 - nregs 16 - shmem 0 - "
        "cuda stream id 0\n"
    )
    with pytest.raises(TraceError, match="kernel 0 has a grid of 1073741824 blocks"):
        extract(open_trace(trace), tmp_path / "store", memory_limit=64 * MIB)


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        ("2147483647,65535,65535", "a grid of 9223090559730712575 blocks; no more than 2146435072"),
        (
            f"{1 << 64},1,1",
            r"log:1: grid of 18446744073709551616,1,1 blocks is not possible",
        ),
        ("9" * 90 + ",1,1", r"trace\.log:1: grid of 999999999\.\.\.,1,1 blocks is not possible"),
    ],
)
def test_a_grid_that_no_gpu_could_launch_is_one_clear_line(tmp_path, grid, found):
    line = launch_line(0, (7, 7, 7)).replace(b"7,7,7", grid.encode())
    (tmp_path / "trace.log").write_bytes(line + access_line(0, 0, "LDG.E", [BASE]))
    with pytest.raises(TraceError, match=found) as caught:
        extract(open_trace(tmp_path / "trace.log"), tmp_path / "store")
    assert "\n" not in str(caught.value)
    # Another kernel can be extracted all the same.
    if "possible" not in found:
        with (tmp_path / "trace.log").open("ab") as file:
            file.write(launch_line(1) + access_line(1, 0, "LDG.E", [BASE]))
        store = extract(open_trace(tmp_path / "trace.log"), tmp_path / "store", kernels=(1, 2))
        assert [kernel.kernel for kernel in store.kernels] == [1]


@pytest.mark.parametrize("granularity", [1, 32, 128])
def test_the_last_addresses_of_all_are_as_good_as_any(tmp_path, granularity):
    top = (1 << 57) - 4
    text = launch_line(0) + access_line(0, 1, "STG.E.128", [top])
    text += launch_line(1) + access_line(1, 2, "LDG.E.128", [top])
    (tmp_path / "trace.log").write_bytes(text)
    trace = open_trace(tmp_path / "trace.log")
    with analyse(trace, granularity=granularity, memory_limit=1, scratch=tmp_path) as extraction:
        assert edges_of(extraction.graph) == [(1, 6, "RAW")]
        assert extraction.footprints.load().end.max() == (1 << 57) + 12


@pytest.mark.parametrize("granularity", [1, pytest.param(128, marks=pytest.mark.slow)])
def test_a_store_made_through_files_is_the_same_bit_by_bit(
    tmp_path, sample_trace, monkeypatch, granularity
):
    trace = open_trace(sample_trace)
    extract(trace, tmp_path / "memory", granularity=granularity)
    spilled = []
    whole = RangeStore._spill
    monkeypatch.setattr(RangeStore, "_spill", lambda self: (spilled.append(1), whole(self)))
    monkeypatch.setattr("depgraph.dependence.sweep._BYTES_PER_RANGE", 64 * MIB // 4000)
    extract(
        open_trace(sample_trace),
        tmp_path / "files",
        granularity=granularity,
        memory_limit=21 * 8 * 2000,
        scratch=tmp_path,
    )
    assert len(spilled) > 1, "the limit was not reached: this tests nothing"
    assert files_of(tmp_path / "memory") == files_of(tmp_path / "files")
    assert {path.name for path in tmp_path.iterdir()} == {"memory", "files"}


@pytest.mark.slow
def test_ranges_of_one_part_may_go_through_files(tmp_path, sample_trace, sample_store, monkeypatch):
    taken = []
    take = FileOverflow.take
    monkeypatch.setattr(FileOverflow, "take", lambda *a: (taken.append(len(a[1])), take(*a)))
    monkeypatch.setattr("depgraph.extraction.pipeline._LEAST_RANGES", 500)
    monkeypatch.setattr(tables, "_RANGES", 256)
    monkeypatch.setattr(nvbit_text, "_workspace", nvbit_text._Workspace())
    options = {"memory_limit": 1, "scratch": tmp_path, "jobs": 2}
    extract(open_trace(sample_trace), tmp_path / "files", **options)
    assert len(taken) > 10, "no part had too many ranges: this tests nothing"
    extract(open_trace(sample_trace), tmp_path / "kept", resume=tmp_path / "parts", **options)
    extract(open_trace(sample_trace), tmp_path / "again", resume=tmp_path / "parts", **options)
    expected = files_of(sample_store.path)
    for name in ("files", "kept", "again"):
        assert files_of(tmp_path / name) == expected, name
    assert not list(tmp_path.glob(".depgraph*"))


# In KiB. Unlike ru_maxrss it does not count what the process that started this one used.
PEAK = r"""
import re, sys
from pathlib import Path
import depgraph
from depgraph.parsers import open_trace
depgraph.extract(open_trace(sys.argv[1]), sys.argv[2], memory_limit=64 << 20, jobs=1)
print(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.jit_only
def test_the_limit_holds_for_a_block_of_very_many_ranges(tmp_path):
    ranges = 3_000_000
    access = "0090 ffffffff 1 R0 STG.E 1 R4 4 1 0x{:x} 8 0 \n"
    path = tmp_path / "kernel-1.traceg"
    with path.open("w") as file:
        file.write(header_text(Form()) + "#BEGIN_TB\n\nthread block = 0,0,0\nwarp = 0\n")
        file.writelines(access.format(GLOBAL + 8 * n) for n in range(0, ranges, 32))
        file.write("\n#END_TB\n")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(tmp_path / "store")],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    # Half of it is Python with its libraries.
    assert int(done.stdout) < 450 << 10
    (kernel,) = Store(tmp_path / "store").kernels
    assert kernel.written_bytes == 4 * ranges
    assert len(Store(tmp_path / "store").footprints()) == ranges


ranges = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 4 * PAGE_BYTES),
        st.integers(1, 2 * PAGE_BYTES),
    ),
    max_size=30,
)


def footprints_of(rows):
    block, kind, start, size = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else [[]] * 4)
    )
    return concatenate_footprints(
        [
            Footprints(
                block.astype(np.int32),
                kind.astype(np.uint8),
                start.astype(np.uint64),
                (start + size).astype(np.uint64),
            )
        ],
        6,
    )


def listed(footprints):
    columns = footprints.block, footprints.kind, footprints.start, footprints.end
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(ranges)
def test_slices_of_a_run_put_together_are_the_footprints(tmp_path_factory, rows):
    footprints = footprints_of(rows)
    path = tmp_path_factory.mktemp("run") / "run.parquet"
    write_run_by_start(footprints, path)
    bounds = [0, PAGE_BYTES, 3 * PAGE_BYTES, 1 << 64]
    slices = [read_slice(path, "start", low, high) for low, high in pairwise(bounds)]
    assert all(
        low <= start and end <= high
        for piece, low, high in zip(slices, bounds[:-1], bounds[1:], strict=True)
        for _, _, start, end in listed(piece)
    )
    assert listed(concatenate_footprints(slices, 6)) == listed(footprints)


@given(ranges, st.integers(1, 10))
def test_spilled_footprints_come_back_in_the_order_of_blocks(
    tmp_path_factory,
    rows,
    batch_ranges,
):
    footprints = footprints_of(rows)
    folder = tmp_path_factory.mktemp("shards")
    write_run_by_start(footprints, folder / "all")
    paths = [folder / "low", folder / "high"]
    before = np.zeros(7, np.int64)
    for path, low, high in zip(paths, (0, 2 * PAGE_BYTES), (2 * PAGE_BYTES, 1 << 64), strict=True):
        shard = concatenate_footprints([read_slice(folder / "all", "start", low, high)], 6)
        write_run(shard, path)
        before[1:] += np.cumsum(np.bincount(shard.block, minlength=6))
    spilled = SpilledFootprints(paths, before, batch_ranges)
    assert listed(spilled.load()) == listed(footprints)
