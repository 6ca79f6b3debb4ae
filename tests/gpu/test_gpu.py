"""GPU models: what they say, how they are found, and the occupancy they give."""

import gzip
import json
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.errors import ModelError
from depgraph.gpu.model import (
    Gpu,
    MeasuredErrors,
    available_gpus,
    compiler_target,
    gpu_for_architecture,
    load_gpu,
    load_gpu_file,
    with_errors,
)
from depgraph.gpu.sm_resources import occupancy

ROOT = Path(__file__).resolve().parents[2]
GPUS = available_gpus()
NUMBERS = {entry.name for entry in fields(Gpu)} - {
    "name", "aliases", "architecture", "sources", "errors",
}  # fmt: skip
MEASURED = (
    "gpc_sms", "launch_", "device_", "graph_", "stream_", "contention", "block_spread",
    "kernel_lead_us", "blocks_per_us", "cluster_start_us", "fill_us",
)  # fmt: skip
MEASURED_NUMBERS = {n for n in NUMBERS if n.startswith(MEASURED)}
KIB = 1024
ERRORS = MeasuredErrors("fans", "My GPU", 40, 0.08, 0.2, 0.5, 0.95, 0.8, 1.3)
OTHERS = ERRORS._replace(family="pairs")


def write_model(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("V100", "V100"),
        ("tesla v100-sxm2-16gb", "V100"),
        ("titan-v", "TITAN V"),
        ("Quadro GV100", "QV100"),
        ("a100", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("H100_PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("nvidia geforce rtx 2080 ti", "RTX 2080 Ti"),
        ("rtx5090", "RTX 5090"),
    ],
)
def test_names_are_matched_as_people_write_them(name, expected):
    assert load_gpu(name).name == expected


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_name_and_alias_leads_to_its_model(gpu):
    assert {load_gpu(label) for label in (gpu.name, *gpu.aliases)} == {gpu}


def test_unknown_name_lists_close_matches():
    with pytest.raises(ModelError, match=r"'RTX 3080'; did you mean 'RTX 3090'") as caught:
        load_gpu("RTX 3080")
    assert "\n" not in str(caught.value)


def test_unknown_name_without_close_match_lists_all():
    with pytest.raises(ModelError, match=r"known: A100 40GB, .*V100") as caught:
        load_gpu("wafer")
    assert "--gpu-file" in str(caught.value)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_number_of_a_packaged_model_has_one_source(gpu):
    sourced = [number for source in gpu.sources for number in source.numbers]
    stated = {number for number in NUMBERS if getattr(gpu, number) is not None}
    assert sorted(sourced) == sorted(stated)
    assert stated >= NUMBERS - {"base_clock_mhz"} - MEASURED_NUMBERS


def test_an_h100_is_what_cuda_reports():
    # cudaGetDeviceProperties on an NVIDIA H100 80GB HBM3, driver 580
    gpu = load_gpu("H100")
    assert gpu.architecture == 90
    assert gpu.sms == 132
    assert gpu.max_threads_per_sm == 2048
    assert gpu.max_warps_per_sm == 64
    assert gpu.max_blocks_per_sm == 32
    assert gpu.registers_per_sm == gpu.max_registers_per_block == 65536
    assert gpu.shared_bytes_per_sm == 233472
    assert gpu.max_shared_bytes_per_block == 232448
    assert gpu.reserved_shared_bytes_per_block == 1024
    assert gpu.l2_bytes == 52428800
    assert gpu.boost_clock_mhz == 1980


@pytest.mark.parametrize("architecture", [61, 70, 75, 80, 86, 89, 90, 100, 120])
def test_each_architecture_has_a_default_model(architecture):
    assert gpu_for_architecture(architecture).architecture == architecture


def test_architecture_without_model():
    with pytest.raises(ModelError, match=r"sm_37 .*known: sm_61, sm_70.*--gpu NAME"):
        gpu_for_architecture(37)


def test_loading_needs_no_numpy():
    program = (
        "import sys, depgraph.gpu.model; depgraph.gpu.model.load_gpu('H100'); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'pandas', 'pyarrow', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_own_model_based_on_a_packaged_one(tmp_path):
    path = write_model(
        tmp_path,
        """
        name = "H100 with twice the shared memory"
        based_on = "H100 SXM"
        shared_carveouts = ["456 KiB"]
        """,
    )
    gpu = load_gpu_file(path)
    assert (gpu.sms, gpu.aliases) == (132, ())
    assert gpu.shared_bytes_per_sm == 456 * KIB
    assert "shared_carveouts" not in {key for source in gpu.sources for key in source.numbers}
    assert occupancy(gpu, threads=32, registers=32, shared_bytes=56 * KIB).blocks_per_sm == 8


def test_errors_of_predictions_are_read_as_they_are_written(tmp_path):
    text = 'name = "Mine"\nbased_on = "H100 SXM"\ncontention = 0.7\n'
    text = with_errors(text, (ERRORS, OTHERS))
    assert load_gpu_file(write_model(tmp_path, text)).errors == (ERRORS, OTHERS)


def test_errors_found_with_other_constants_are_not_taken_over(tmp_path):
    assert load_gpu("H100 SXM").errors
    larger = 'name = "Mine"\nbased_on = "H100 SXM"\nsms = 160\n'
    assert load_gpu_file(write_model(tmp_path, larger)).errors == load_gpu("H100 SXM").errors
    other = 'name = "Mine"\nbased_on = "H100 SXM"\ncontention = 0.7\n'
    assert load_gpu_file(write_model(tmp_path, other)).errors == ()


def test_new_errors_replace_those_of_a_file():
    old = '[[errors]]\ngpu = "Mine"\nmean = 0.5\n'
    before = f'name = "Mine"\n\n{old}\n[[sources]]\ntitle = "it"\n\n{old}'
    after = f'name = "Mine"\n\n[[sources]]\ntitle = "it"\n\n{ERRORS.to_toml()}\n{OTHERS.to_toml()}'
    assert with_errors(before, (ERRORS, OTHERS)) == after
    assert with_errors(after, (ERRORS, OTHERS)) == after


def test_own_model_of_a_known_architecture(tmp_path):
    text = 'name = "Orin"\narchitecture = 87\nsms = 16\nl2_bytes = 4_194_304\n'
    gpu = load_gpu_file(write_model(tmp_path, text))
    assert (gpu.max_threads_per_sm, gpu.shared_bytes_per_sm) == (1536, 164 * KIB)
    assert gpu.memory_gb_per_s is None


def test_own_model_of_an_unknown_architecture_gives_all_its_numbers(tmp_path):
    text = 'name = "Next"\narchitecture = 130\nsms = 200\n'
    with pytest.raises(ModelError, match=r"max_threads_per_sm is missing; sm_130 is not among"):
        load_gpu_file(write_model(tmp_path, text))
    text += (
        "max_threads_per_sm = 2048\nmax_blocks_per_sm = 32\n"
        'shared_carveouts = ["256 KiB"]\nmax_shared_bytes_per_block = "255 KiB"\n'
    )
    assert load_gpu_file(write_model(tmp_path, text)).max_warps_per_sm == 64


OWN = 'name = "mine"\narchitecture = 90\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sms = 1\narchitecture = 90", "name is missing"),
        (OWN, "sms is missing"),
        ('name = ""', "name = '': expected text"),
        ('name = "mine"\nsms = 4', "architecture is missing; give architecture or based_on"),
        (OWN + "sms = 0", "sms = 0: expected a whole number from 1 to 1048576"),
        (OWN + "sms = true", "sms = True: expected a whole number"),
        (OWN + 'sms = "many"', "sms = 'many': expected a whole number"),
        (OWN + "sm = 4", r"unknown key 'sm'; did you mean sms\?"),
        (OWN + "colour = 4", "unknown key 'colour'; known keys: name, aliases, architecture"),
        (OWN + "sms = 4\nl2_bytes = '4 MB'", "l2_bytes = '4 MB': expected a number of bytes, or"),
        (OWN + "sms = 4\nmemory_gb_per_s = nan", "memory_gb_per_s = nan: expected a number from"),
        (OWN + "sms = 4\nshared_carveouts = []", r"shared_carveouts = \[\]: expected a list"),
        (OWN + "sms = 4\naliases = 'x'", "aliases = 'x': expected a list of texts"),
        (OWN + "sms = 4\nsources = ['x']", "sources = .*expected tables with title"),
        (OWN + "sms = 4\nsources = 'x'", "sources = 'x': expected tables with title"),
        (OWN + "sms = 4\nmax_threads_per_sm = 100", "max_threads_per_sm = 100: .*warp size, 32"),
        (OWN + "sms = 4\nmax_threads_per_sm = 64", "max_threads_per_block = 1024: .*at most"),
        (OWN + "sms = 4\nregisters_per_sm = 65537", "registers_per_sm = 65537: .*multiple"),
        (OWN + "sms = 4\nregisters_per_sm = 32768", "max_registers_per_block = 65536: .*at most"),
        (OWN + "sms = 4\nshared_carveouts = [9, 8]", "shared_carveouts.*ascending"),
        (OWN + "sms = 4\nshared_carveouts = [8]", "max_shared_bytes_per_block = 232448: .*most 8"),
        (OWN + 'based_on = "V100"', "architecture, not both"),
        ('name = "mine"\nbased_on = "V1000"', "based_on: no GPU model is called 'V1000'"),
        (OWN + "sms = 4\nerrors = 1", r"errors = 1: expected tables \[\[errors\]\], one a family"),
        (
            OWN + "sms = 4\n" + ERRORS.to_toml().replace("mean = 0.08", "mean = -1"),
            "expected mean: a share, from 0 to 1000",
        ),
        ("name = ", "not TOML: "),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_and_key(tmp_path, text, message):
    path = write_model(tmp_path, text)
    with pytest.raises(ModelError, match=message) as caught:
        load_gpu_file(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"none.toml: No such file"):
        load_gpu_file(tmp_path / "none.toml")


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"name = \xff")
    with pytest.raises(ModelError, match="not TOML"):
        load_gpu_file(path)


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        # block slots: 32 blocks of 1 warp fill half of the 64 warp slots
        ("V100", 32, 32, 0, 32, ("blocks",)),
        ("RTX 2080 Ti", 32, 32, 0, 16, ("blocks",)),
        ("RTX 4090", 32, 32, 0, 24, ("blocks",)),
        # warp slots: 33 threads take 2 warps; 64 / 8 = 8 and registers (32 a thread) allow as many
        ("H100 SXM", 256, 32, 0, 8, ("warps", "registers")),
        ("RTX 3090", 1024, 32, 0, 1, ("warps",)),
        ("GTX 1080", 65, 16, 0, 21, ("warps",)),
        # registers: 37 * 32 = 1184, rounded up to 1280 a warp; 12 warps in each of 4 x 16384
        ("A100 80GB", 128, 37, 0, 12, ("registers",)),
        # 168 * 32 = 5376: 3 warps a sub-partition, 12 an SM, 5 a block
        ("V100", 160, 168, 0, 2, ("registers",)),
        # shared memory: 13000 -> 13056 of 98304 (units of 256, no reserve) on Volta;
        # 13000 + 1024 -> 14080 of 167936 (units of 128) on Ampere
        ("V100", 64, 16, 13000, 7, ("shared memory",)),
        ("A100 40GB", 64, 16, 13000, 11, ("shared memory",)),
        ("L4", 64, 16, 99 * KIB, 1, ("shared memory",)),
        ("B200", 64, 16, 227 * KIB, 1, ("shared memory",)),
    ],
)
def test_occupancy_by_hand(name, threads, registers, shared, blocks, limited_by):
    result = occupancy(load_gpu(name), threads=threads, registers=registers, shared_bytes=shared)
    assert (result.blocks_per_sm, result.limited_by) == (blocks, limited_by)
    assert result.assumed == ()


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks"),
    [
        (18, 33, 0, 32),
        (38, 96, 3000, 16),
        (38, 100, 6528, 12),
        (52, 160, 0, 7),
        (52, 416, 33000, 2),
        (88, 128, 0, 5),
        (88, 100, 33000, 5),
        (136, 160, 0, 2),
        (136, 33, 75000, 3),
        (246, 256, 0, 1),
        (255, 33, 0, 4),
        (18, 1024, 115712, 2),
        (18, 32, 232448, 1),
    ],
)
def test_occupancy_counted_on_an_h100(registers, threads, shared, blocks):
    # The most blocks that were resident on one SM at a time, counted by the blocks themselves; the
    # driver's cudaOccupancyMaxActiveBlocksPerMultiprocessor said the same.
    gpu = load_gpu("NVIDIA H100 80GB HBM3")
    result = occupancy(gpu, threads=threads, registers=registers, shared_bytes=shared)
    assert result.blocks_per_sm == blocks


def test_what_one_block_takes():
    result = occupancy(load_gpu("H100"), threads=100, registers=37, shared_bytes=6528)
    assert result.warps_per_block == 4
    assert result.registers_per_block == 4 * 1280
    assert result.shared_bytes_per_block == 6528 + 1024


@pytest.mark.parametrize("registers", [None, 0, -1, 32740])
def test_unknown_registers_set_no_limit(registers):
    result = occupancy(load_gpu("V100"), threads=256, registers=registers, shared_bytes=0)
    assert result.blocks_per_sm == 8
    assert result.limited_by == ("warps",)
    assert result.registers_per_block is None
    said = "unknown" if registers is None else f"unusable ({registers})"
    assert result.assumed == (f"registers per thread {said}: no limit",)


@pytest.mark.parametrize("shared_bytes", [None, -693058320, 283873920])
def test_unknown_shared_memory_sets_no_limit(shared_bytes):
    result = occupancy(load_gpu("H100"), threads=256, registers=64, shared_bytes=shared_bytes)
    assert (result.blocks_per_sm, result.limited_by) == (4, ("registers",))
    assert result.shared_bytes_per_block is None
    assert len(result.assumed) == 1
    assert result.assumed[0].startswith("shared memory per block un")


def test_a_block_of_a_larger_gpu_counts_as_one_per_sm():
    result = occupancy(load_gpu("V100"), threads=128, registers=64, shared_bytes=200 * KIB)
    assert (result.blocks_per_sm, result.limited_by) == (1, ("shared memory",))
    (said,) = result.assumed
    assert said.startswith("a block of 204800 bytes of shared memory does not fit on V100")
    assert said.endswith("(at most 98304): one block per SM")


def test_a_block_that_no_gpu_launches():
    gpu = load_gpu("V100")
    wide = occupancy(gpu, threads=2048, registers=None, shared_bytes=None)
    assert (wide.blocks_per_sm, wide.limited_by) == (1, ("warps",))
    assert "2048 threads does not fit on V100 (at most 1024)" in wide.assumed[0]
    deep = occupancy(gpu, threads=1024, registers=255, shared_bytes=0)
    assert (deep.blocks_per_sm, deep.limited_by) == (1, ("registers",))
    assert "255 registers each does not fit" in deep.assumed[0]


@pytest.mark.parametrize("threads", [0, -32])
def test_a_block_without_threads_is_an_error(threads):
    with pytest.raises(ModelError, match="expected at least 1"):
        occupancy(load_gpu("V100"), threads=threads, registers=32, shared_bytes=0)


@pytest.mark.parametrize(
    ("percent", "blocks"),
    # 98304 bytes a Volta SM: 50 % is 48 KiB, the next carve-out 64 KiB; at least one block fits
    [(None, 9), (100, 9), (50, 6), (10, 1), (0, 1)],
)
def test_carveout(percent, blocks):
    gpu = load_gpu("V100")
    result = occupancy(
        gpu, threads=32, registers=16, shared_bytes=10 * KIB, carveout_percent=percent
    )
    assert result.blocks_per_sm == blocks


def test_carveout_is_a_percentage():
    with pytest.raises(ModelError, match="0 to 100"):
        occupancy(load_gpu("V100"), threads=32, registers=16, shared_bytes=0, carveout_percent=101)


gpus = st.sampled_from(GPUS)
thread_counts = st.integers(1, 1100)
register_counts = st.integers(1, 255)
shared_sizes = st.integers(0, 240 * KIB)


@given(gpus, thread_counts, register_counts, shared_sizes)
def test_resident_blocks_fit_on_the_sm(gpu, threads, registers, shared_bytes):
    result = occupancy(gpu, threads=threads, registers=registers, shared_bytes=shared_bytes)
    blocks = result.blocks_per_sm
    assert 1 <= blocks <= gpu.max_blocks_per_sm
    assert result.limited_by
    if not result.assumed:
        assert blocks * result.warps_per_block <= gpu.max_warps_per_sm
        assert blocks * result.registers_per_block <= gpu.registers_per_sm
        assert blocks * result.shared_bytes_per_block <= gpu.shared_bytes_per_sm


@given(gpus, thread_counts, register_counts, shared_sizes, st.data())
def test_asking_for_more_never_raises_the_occupancy(gpu, threads, registers, shared_bytes, data):
    few = occupancy(gpu, threads=threads, registers=registers, shared_bytes=shared_bytes)
    many = occupancy(
        gpu,
        threads=data.draw(st.integers(threads, 1100)),
        registers=data.draw(st.integers(registers, 255)),
        shared_bytes=data.draw(st.integers(shared_bytes, 240 * KIB)),
    )
    assert many.blocks_per_sm <= few.blocks_per_sm


@given(gpus, thread_counts, register_counts, shared_sizes)
def test_an_unknown_value_never_lowers_the_occupancy(gpu, threads, registers, shared_bytes):
    known = occupancy(gpu, threads=threads, registers=registers, shared_bytes=shared_bytes)
    for unknown in (
        occupancy(gpu, threads=threads, registers=None, shared_bytes=shared_bytes),
        occupancy(gpu, threads=threads, registers=registers, shared_bytes=None),
    ):
        assert unknown.blocks_per_sm >= known.blocks_per_sm


@given(gpus, thread_counts, register_counts, shared_sizes, st.integers(0, 100))
def test_a_carveout_never_raises_the_occupancy(gpu, threads, registers, shared_bytes, percent):
    kernel = {"threads": threads, "registers": registers, "shared_bytes": shared_bytes}
    free = occupancy(gpu, **kernel).blocks_per_sm
    assert occupancy(gpu, **kernel, carveout_percent=percent).blocks_per_sm <= free
    assert occupancy(gpu, **kernel, carveout_percent=100).blocks_per_sm == free


PROFILES = [
    "timing/gpt2_d256.kineto.json",
    "timing/gru_train.kineto.json",
    "timing/lstm_h128.kineto.json",
    "timing/mlp_m256.kineto.json",
    "timing/streams4.kineto.json",
    "public/timing/kineto_alexnet.json.gz",
]


@pytest.mark.shared
@pytest.mark.parametrize("name", PROFILES)
def test_what_kineto_says_of_occupancy(shared_data, name):
    """The rule of docs/gpus.md gives Kineto's two fields for every kernel of real profiles."""
    path = shared_data / name
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        profile = json.load(file)
    kernels = [event["args"] for event in profile["traceEvents"] if event.get("cat") == "kernel"]
    assert kernels
    for args in kernels:
        gpu = load_gpu(profile["deviceProperties"][args["device"]]["name"])
        threads = math.prod(args["block"])
        blocks = math.prod(args["grid"]) / gpu.sms
        assert args["blocks per SM"] == pytest.approx(blocks, rel=1e-5, abs=1e-6)
        limit = occupancy(
            gpu,
            threads=threads,
            registers=args["registers per thread"],
            shared_bytes=args["shared memory"],
        ).blocks_per_sm
        if args["shared memory"] > 48 * KIB:
            limit = 0
        share = min(limit, blocks) * threads / gpu.max_threads_per_sm
        assert args["est. achieved occupancy %"] == int(0.5 + 100 * share)


OWN_NUMBERS = {"sms", "memory_gb_per_s", "l2_bytes", "base_clock_mhz", "boost_clock_mhz"}


def table_row(gpu):
    shared = f"{gpu.shared_bytes_per_sm // KIB} / {gpu.max_shared_bytes_per_block // KIB}"
    sources = "; ".join(
        f"[{source.title}]({source.url})" if source.url else source.title
        for source in gpu.sources
        if OWN_NUMBERS & set(source.numbers)
    )
    cells = (
        gpu.name,
        compiler_target(gpu.architecture),
        f"{gpu.sms}",
        f"{gpu.max_warps_per_sm}",
        f"{gpu.max_blocks_per_sm}",
        shared,
        f"{gpu.memory_gb_per_s:g}",
        f"{gpu.l2_bytes / KIB**2:g}",
        f"{gpu.base_clock_mhz or '-'} / {gpu.boost_clock_mhz}",
        sources,
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_table_of_the_docs_is_up_to_date(gpu):
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    assert table_row(gpu) in page.splitlines()
